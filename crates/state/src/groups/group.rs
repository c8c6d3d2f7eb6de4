//! Rules of one consumer group: delivers records, applies acks and nacks, extends ack deadlines, and moves the cursor.
//!
//! All operations change only memory and record the affected rows. Time is an argument: the entry's time.
//!
//! Owns: the rules of one group. Does not own: the other groups and the layout of rows (`table`), the unsettled records
//! of each delivery attempt (`parcels`), order per key (`order`), the commands (`commands`), or the records.
//!
//! Invariants: those in the head of `table`. New records are delivered only while the pending records and the dead
//! letters together are fewer than `max_pending`, and nothing else adds to their sum. So a group has at most
//! [`MAX_GROUP_PENDING`](thalweg_types::limits::MAX_GROUP_PENDING) of these records, and at most as many attempts. An
//! attempt has at most [`MAX_ATTEMPT_RECORDS`] records. The runs (ranges of consecutive records) take at most 25 KB in
//! one row and 2.4 MB in all rows, and the reasons of dead letters [`MAX_GROUP_REASON_BYTES`].

use std::time::Duration;

use thalweg_store::WriteBatch;
use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime,
    command::groups::{
        DeliveredRun, Fetch, Fetched, GroupConfig, GroupOrder, Lapsed, OffsetRun, Redelivery, Runs, SettlementKind,
        Settlements,
    },
    limits::{MAX_ATTEMPT_RECORDS, MAX_FETCH_RECORDS, MAX_GROUP_REASON_BYTES},
    parcel::{self, Holder, NEVER, Parcel, Run},
};

use crate::{
    groups::{
        head::{DELETED, Head, MAX_COUNTER},
        members::Members,
        order::KeyQueues,
        parcels::Parcels,
    },
    keys,
};

/// Reason stored with a dead letter whose last delivery was neither acked nor nacked.
const DEADLINE_PASSED: &str = "not acked before its deadline";

/// Reason why a fetch from a consumer group was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    TooManyMembers,
}

/// A consumer group and its pending records. The invariants are in the head of `table.rs`.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) head: Head,
    pub(crate) members: Members,
    pub(crate) parcels: Parcels,
    keys: KeyQueues,
    /// True if the head row (configuration, cursor and counters) must be written with the log record being applied.
    is_head_changed: bool,
}

/// Result of a settlement (ack or nack) of stream records: the number of settled ones, and those not settled.
#[derive(Debug, Default)]
pub(crate) struct SettledRecords {
    pub(crate) settled: u64,
    /// Number of runs (ranges of consecutive records) in the delivery attempts that the ack or nack names, before it is
    /// applied. An attempt that is named twice counts twice.
    pub(crate) runs: u64,
    pub(crate) lapsed: Vec<Lapsed>,
}

impl SettledRecords {
    /// Returns the number of settled records as 32 bits.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.settled).unwrap_or(u32::MAX)
    }
}

impl Group {
    pub(crate) fn new(head: Head) -> Self {
        Self {
            head,
            members: Members::default(),
            parcels: Parcels::default(),
            keys: KeyQueues::default(),
            is_head_changed: true,
        }
    }

    /// Returns the earliest time at which a pending record can be redelivered; `None` if no pending record waits for a
    /// time.
    pub(crate) fn next_due(&self) -> Option<SpaceTime> {
        self.parcels.first_due().map(|(due, _)| due)
    }

    /// Returns true if the group has its maximum of pending records and dead letters, so that no new record is
    /// delivered until one is acked or, as a dead letter, moved.
    pub(crate) fn is_full(&self) -> bool {
        self.room(0) == 0
    }

    /// Returns the number of new records that may be delivered before the group is full. `taken` is the number of
    /// pending records that the current fetch is about to redeliver; they still count as pending.
    fn room(&self, taken: u64) -> u64 {
        let counted = self.parcels.pending() + self.parcels.dead() + taken;
        u64::from(self.head.config.max_pending).saturating_sub(counted)
    }

    /// Returns true if a parked record can be delivered now, because no earlier record of its key is pending any more.
    pub(crate) fn has_freed(&self) -> bool {
        self.keys.has_free()
    }

    /// Returns true if a fetch at `now` would deliver records of a stream that ends at `next`.
    pub(crate) fn is_ready(&self, now: SpaceTime, next: Offset) -> bool {
        self.next_due().is_some_and(|due| due <= now)
            || self.has_freed()
            || (self.head.cursor < next && !self.is_full())
    }

    /// Returns the number of records, up to `max`, that a fetch at `now` delivers before new records; 1 if the fetch
    /// only makes dead letters.
    pub(crate) fn deliverable_again(&self, now: SpaceTime, max: u32) -> u32 {
        let mut due = self.parcels.due_at(now).peekable();
        let least = u32::from(self.has_freed() || due.peek().is_some());
        let runs = due.flat_map(|parcel| &parcel.runs);
        let again = runs.take(MAX_FETCH_RECORDS as usize).filter(|run| !is_exhausted(&self.head.config, run));
        again.fold(0_u32, |sum, run| sum.saturating_add(run.count)).clamp(least, max.max(least))
    }

    /// Replaces the group's configuration. Returns false, without a change, if the new configuration has another
    /// delivery order.
    pub(crate) fn configure(&mut self, config: GroupConfig) -> bool {
        let same = config.order == self.head.config.order;
        if same {
            self.head.config = config;
            self.is_head_changed = true;
        }
        same
    }

    /// Delivers records to a member. The group's stream has the records `start..next`.
    pub(crate) fn fetch(
        &mut self,
        now: SpaceTime,
        fetch: &Fetch<'_>,
        start: Offset,
        next: Offset,
    ) -> Result<Fetched, Refusal> {
        let member = self.members.fetches(fetch.member, now, |id| self.parcels.is_holding(id));
        let member = member.ok_or(Refusal::TooManyMembers)?;
        if self.head.cursor < start {
            self.head.cursor = start;
            self.is_head_changed = true;
        }
        let mut runs = Vec::new();
        let mut left = u64::from(fetch.max);
        self.redeliver(now, fetch, &mut left, &mut runs);
        self.deliver_freed(&mut left, &mut runs);
        self.deliver_new(now, fetch, next, &mut left, &mut runs);
        let mut fetched = Fetched {
            deadline: now.plus(self.head.config.ack_deadline),
            cursor: self.head.cursor,
            ..Fetched::default()
        };
        fetched.dead = self.parcels.dead() > 0;
        if runs.is_empty() {
            return Ok(fetched);
        }
        parcel::join(&mut runs);
        fetched.deliveries = delivered(&runs);
        self.head.delivered += parcel::count(&runs);
        let again = runs.iter().filter(|run| run.deliveries > 1).map(|run| u64::from(run.count));
        self.head.redelivered += again.sum::<u64>();
        fetched.attempt = self.insert_all(now, Holder::Member(member), fetched.deadline, runs);
        Ok(fetched)
    }

    /// Moves up to `left` records whose ack deadline or redelivery delay has passed to `runs`, the list to deliver.
    /// Records that already had the maximum number of deliveries become dead letters instead.
    fn redeliver(&mut self, now: SpaceTime, fetch: &Fetch<'_>, left: &mut u64, runs: &mut Vec<Run>) {
        let mut dead = Vec::new();
        let mut dead_left = u64::from(fetch.max_dead());
        while *left > 0 && dead_left > 0 {
            let Some((_, attempt)) = self.parcels.first_due().filter(|(due, _)| *due <= now) else { break };
            let Some(mut parcel) = self.parcels.take_out(attempt) else { break };
            while let Some(run) = parcel.runs.front_mut() {
                let exhausted = is_exhausted(&self.head.config, run);
                let room = if exhausted { &mut dead_left } else { &mut *left };
                let count = u64::from(run.count).min(*room) as u32;
                *room -= u64::from(count);
                let part = Run { count, ..*run };
                match (count, exhausted) {
                    (0, _) => break,
                    (_, true) => dead.push(part),
                    (_, false) => runs.push(Run { deliveries: run.deliveries.saturating_add(1), ..part }),
                }
                if count < run.count {
                    run.first = part.end();
                    run.count -= count;
                    break;
                }
                parcel.runs.pop_front();
            }
            self.put_back(attempt, parcel);
        }
        self.make_dead_letters(now, dead, DEADLINE_PASSED);
    }

    /// Adds up to `left` records to `runs` that waited behind another record of the same key and can be delivered now.
    /// Stops before the rows of their attempts, which are written again, have more than [`MAX_ATTEMPT_RECORDS`] runs
    /// (ranges of records) together. The next fetch delivers the others.
    fn deliver_freed(&mut self, left: &mut u64, runs: &mut Vec<Run>) {
        let before = runs.len();
        let mut room = MAX_ATTEMPT_RECORDS as usize;
        while *left > 0 {
            let Some(attempt) = self.keys.first_free() else { break };
            let size = self.parcels.get(attempt).map_or(0, |parcel| parcel.runs.len());
            if size > room && runs.len() > before {
                break;
            }
            room = room.saturating_sub(size);
            let Some(mut parcel) = self.parcels.take_out(attempt) else { break };
            while *left > 0
                && let Some(offset) = self.keys.pop_free(attempt)
            {
                parcel.take(offset, offset.next(), runs);
                *left -= 1;
            }
            self.put_back(attempt, parcel);
        }
        runs[before..].iter_mut().for_each(|run| run.deliveries = 1);
    }

    /// Delivers new records, from the group's cursor on, and advances the cursor.
    fn deliver_new(&mut self, now: SpaceTime, fetch: &Fetch<'_>, next: Offset, left: &mut u64, runs: &mut Vec<Run>) {
        let cursor = self.head.cursor;
        let most = self.room(parcel::count(&*runs)).min(next.0.saturating_sub(cursor.0));
        match self.head.config.order {
            GroupOrder::Competing => {
                let count = most.min(*left) as u32;
                if count > 0 {
                    runs.push(Run { first: cursor, count, deliveries: 1, key: 0 });
                    self.head.cursor = cursor.plus(u64::from(count));
                }
            }
            GroupOrder::PerKey => self.deliver_in_order(now, fetch, cursor.plus(most), left, runs),
        }
        if self.head.cursor != cursor {
            self.is_head_changed = true;
        }
    }

    /// Processes the new records whose keys the fetch contains, in order. A record is delivered or, if an earlier
    /// record of its key is pending, parked.
    fn deliver_in_order(
        &mut self,
        now: SpaceTime,
        fetch: &Fetch<'_>,
        end: Offset,
        left: &mut u64,
        runs: &mut Vec<Run>,
    ) {
        let mut parked = Vec::new();
        while *left > 0 && self.head.cursor < end {
            let offset = self.head.cursor;
            let Some(key) = fetch.key_at(offset) else { break };
            let run = Run { first: offset, count: 1, deliveries: 1, key };
            if key != 0 && self.keys.is_busy(key) {
                parked.push(Run { deliveries: 0, ..run });
            } else {
                runs.push(run);
                *left -= 1;
            }
            if key != 0 {
                self.keys.enter(key, offset);
            }
            self.head.cursor = offset.next();
        }
        self.insert_all(now, Holder::Parked, NEVER, parked);
    }

    /// Returns the number of runs (ranges of records) in a delivery attempt if it still holds all of the given records
    /// at `now`, and `None` otherwise. Used by commits, which settle all records or none.
    pub(crate) fn runs_if_held(
        &self,
        now: SpaceTime,
        how: &SettlementKind<'_>,
        attempt: Attempt,
        mut ranges: Runs<'_>,
    ) -> Option<u64> {
        let parcel = self.held(now, how, attempt)?;
        ranges.all(|range| parcel.holds(range.first, range.end())).then_some(parcel.runs.len() as u64)
    }

    /// Returns the unsettled records of a delivery attempt if they can be settled at `now`: a member holds them, or
    /// they are dead letters and the settlement is an ack.
    fn held(&self, now: SpaceTime, how: &SettlementKind<'_>, attempt: Attempt) -> Option<&Parcel> {
        self.parcels.get(attempt).filter(|parcel| match &parcel.holder {
            Holder::Member(_) => now < parcel.due,
            Holder::Dead(_) => *how == SettlementKind::Ack,
            Holder::Waiting | Holder::Parked => false,
        })
    }

    /// Settles (acks or nacks) the named records that their delivery attempts still hold. Also returns those that they
    /// no longer hold.
    pub(crate) fn settle(
        &mut self,
        now: SpaceTime,
        how: &SettlementKind<'_>,
        settlements: &Settlements<'_>,
    ) -> SettledRecords {
        let mut done = SettledRecords::default();
        let mut returned = Vec::new();
        for (attempt, ranges) in settlements.iter() {
            let Some(is_dead) = self.held(now, how, attempt).map(Parcel::is_dead) else {
                note_lapsed(attempt, ranges, &mut done.lapsed);
                continue;
            };
            let taken = self.take(attempt, ranges, &mut done);
            let count = parcel::count(&taken);
            done.settled += count;
            match (how, is_dead) {
                // Without a stream for dead letters, the mover only acks them.
                (SettlementKind::Ack, true) if self.head.config.dead_letters.is_none() => self.head.dropped += count,
                (SettlementKind::Ack, true) => self.head.dead += count,
                (SettlementKind::Ack, false) => {
                    self.forget(&taken);
                    self.head.acked += count;
                }
                (SettlementKind::Nack { .. }, _) => returned.extend(taken),
            }
        }
        if let SettlementKind::Nack { again, reason } = how {
            self.return_nacked(now, *again, reason, returned);
        }
        self.is_head_changed |= done.settled > 0;
        done
    }

    /// Removes the records in `ranges`, or all records, from the unsettled records of a delivery attempt, and returns
    /// them. Adds the records that the attempt did not hold to `done`.
    fn take(&mut self, attempt: Attempt, ranges: Runs<'_>, done: &mut SettledRecords) -> Vec<Run> {
        let mut taken = Vec::new();
        let Some(mut parcel) = self.parcels.take_out(attempt) else { return taken };
        done.runs += parcel.runs.len() as u64;
        if ranges.is_all() {
            taken = std::mem::take(&mut parcel.runs).into();
        }
        for range in ranges {
            let before = taken.len();
            parcel.take(range.first, range.end(), &mut taken);
            note_gaps(attempt, range, &taken[before..], &mut done.lapsed);
        }
        self.put_back(attempt, parcel);
        taken
    }

    /// Makes nacked records wait for redelivery after the delay of the nack, or turns them into dead letters.
    fn return_nacked(&mut self, now: SpaceTime, again: Redelivery, reason: &str, mut runs: Vec<Run>) {
        if again == Redelivery::Uncounted {
            runs.iter_mut().for_each(|run| run.deliveries = run.deliveries.saturating_sub(1));
        }
        let is_dead = |run: &Run| again == Redelivery::Never || is_exhausted(&self.head.config, run);
        let (dead, mut waiting): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(is_dead);
        self.make_dead_letters(now, dead, reason);
        parcel::join(&mut waiting);
        let delay = match again {
            Redelivery::After(delay) => delay,
            Redelivery::Never | Redelivery::Uncounted => Duration::ZERO,
        };
        self.insert_all(now, Holder::Waiting, now.plus(delay), waiting);
    }

    /// Turns records into dead letters. They are no longer pending, but are kept until a commit has moved them to the
    /// group's dead-letter stream. Without such a stream, they are dropped. The reason is truncated to the bytes that
    /// the group may still keep.
    fn make_dead_letters(&mut self, now: SpaceTime, mut runs: Vec<Run>, reason: &str) {
        if runs.is_empty() {
            return;
        }
        self.forget(&runs);
        self.is_head_changed = true;
        let count = parcel::count(&runs);
        if self.head.config.dead_letters.is_none() {
            self.head.dropped += count;
            return;
        }
        parcel::join(&mut runs);
        let room = MAX_GROUP_REASON_BYTES.saturating_sub(self.parcels.reason_bytes());
        let reason = &reason[..reason.floor_char_boundary(room)];
        self.insert_all(now, Holder::Dead(reason.into()), NEVER, runs);
    }

    /// Forgets the keys of records that are no longer pending. This can unblock the next records of their keys.
    fn forget(&mut self, runs: &[Run]) {
        for run in runs.iter().filter(|run| run.key != 0) {
            self.keys.leave(run.key, run.first);
        }
    }

    /// Restarts delivery at `cursor`, as if no record had been delivered. Dead letters are kept.
    pub(crate) fn seek(&mut self, cursor: Offset) {
        self.parcels.drop_pending();
        self.keys.clear();
        self.head.cursor = cursor;
        self.is_head_changed = true;
    }

    /// Moves the group's cursor to the offset `start` if it is below it, because the records there were trimmed.
    pub(crate) fn skip_to(&mut self, start: Offset) {
        if self.head.cursor < start {
            self.head.cursor = start;
            self.is_head_changed = true;
        }
    }

    /// Drops records below the offset `start`, which were trimmed from the stream. Handles attempts with pending
    /// records first, then those with dead letters. Stops after the attempt that brings the number of processed runs
    /// (ranges of records) to `max` or more. All runs of an attempt count, because those that stay are written again.
    /// Returns the number of processed runs, and true if more are left.
    pub(crate) fn drop_below(&mut self, start: Offset, max: u32) -> (u32, bool) {
        let mut processed = 0;
        while let Some(attempt) = self.parcels.first_below(start) {
            if processed >= max {
                return (processed, true);
            }
            let Some(mut parcel) = self.parcels.take_out(attempt) else { break };
            let mut gone = Vec::new();
            parcel.take(Offset::ZERO, start, &mut gone);
            if !parcel.is_dead() {
                self.forget(&gone);
            }
            processed += (gone.len() + parcel.runs.len()) as u32;
            self.put_back(attempt, parcel);
        }
        (processed, false)
    }

    /// Number of rows that the group has in addition to its head row.
    pub(crate) fn rows(&self) -> usize {
        self.parcels.len() + self.members.len()
    }

    /// Marks the group as deleted. Its other rows stay until [`remove_rows`](Self::remove_rows) has removed them.
    pub(crate) fn mark_deleted(&mut self) {
        self.head.stream = DELETED;
        self.is_head_changed = true;
    }

    /// Removes up to `max` rows of a deleted group. Returns the number of removed rows.
    pub(crate) fn remove_rows(&mut self, max: u32) -> u32 {
        let removed = self.parcels.remove_some(max);
        removed + self.members.remove_some(max - removed)
    }

    /// Adds records under new attempt numbers, each with at most [`MAX_ATTEMPT_RECORDS`] records. All of them get the
    /// same holder and due time. Returns the first of the numbers; it has no meaning if there are no records.
    fn insert_all(&mut self, now: SpaceTime, holder: Holder, due: SpaceTime, runs: Vec<Run>) -> Attempt {
        if runs.is_empty() {
            return Attempt(0);
        }
        let mut parcel = Parcel { holder, due, runs: runs.into() };
        let rest = parcel.divide();
        let first = self.insert(now, parcel);
        rest.into_iter().for_each(|parcel| _ = self.insert(now, parcel));
        first
    }

    /// Adds a parcel (records with one holder and due time) under a new attempt number, and returns this number.
    fn insert(&mut self, now: SpaceTime, parcel: Parcel) -> Attempt {
        let attempt = Attempt((self.head.last_attempt.0 + 1).max(now.0.min(MAX_COUNTER)));
        self.head.last_attempt = attempt;
        self.is_head_changed = true;
        if parcel.holder == Holder::Parked {
            parcel.runs.iter().for_each(|run| self.keys.park(run.first, attempt));
        }
        self.parcels.put(attempt, parcel);
        attempt
    }

    /// Stores a parcel (unsettled records of an attempt) again that was taken out. If it has too many records, because
    /// an earlier build wrote it, the surplus gets attempts of its own.
    fn put_back(&mut self, attempt: Attempt, mut parcel: Parcel) {
        let rest = parcel.divide();
        self.parcels.put(attempt, parcel);
        rest.into_iter().for_each(|parcel| _ = self.insert(SpaceTime(0), parcel));
    }

    pub(crate) fn write(&mut self, id: GroupId, batch: &mut WriteBatch) {
        if std::mem::take(&mut self.is_head_changed) {
            self.head.write(id, batch);
        }
        self.members.write(id, batch);
        self.parcels.write(id, batch);
    }

    /// Deletes all rows of a consumer group that was deleted.
    pub(crate) fn delete_rows(&self, id: GroupId, batch: &mut WriteBatch) {
        batch.delete(&[&keys::group_head(id)]);
        self.members.delete_rows(id, batch);
        self.parcels.delete_rows(id, batch);
    }

    pub(crate) fn load_member(&mut self, key: &[u8], row: &[u8]) -> Result<(), &'static str> {
        self.members.load(key, row)
    }

    pub(crate) fn load_parcel(&mut self, key: &[u8], row: &[u8]) -> Result<(), &'static str> {
        let attempt = Attempt(u64::from_be_bytes(key.try_into().map_err(|_| "key of a wrong length")?));
        let parcel = Parcel::decode(row).map_err(|malformed| malformed.expected)?;
        // Dead letters stay when the cursor is moved back.
        let in_order = parcel.is_dead() || parcel.runs.back().is_some_and(|last| last.end() <= self.head.cursor);
        if attempt > self.head.last_attempt || !in_order {
            return Err("an attempt that was never assigned, or an offset above the cursor");
        }
        self.parcels.put(attempt, parcel);
        Ok(())
    }

    /// Completes a consumer group after its rows are loaded: checks that no record belongs to two attempts, and
    /// rebuilds the queues of records with the same key.
    pub(crate) fn finish_load(&mut self) -> Result<(), &'static str> {
        self.is_head_changed = false;
        self.parcels.forget_changes();
        let mut all: Vec<(Attempt, bool, Run)> = self.parcels.pending_runs().collect();
        all.sort_unstable_by_key(|(_, _, run)| run.first);
        if all.windows(2).any(|pair| pair[0].2.end() > pair[1].2.first) {
            return Err("a record is pending twice");
        }
        for (attempt, is_parked, run) in all {
            if run.key != 0 {
                self.keys.enter(run.key, run.first);
            }
            if is_parked {
                self.keys.park(run.first, attempt);
            }
        }
        self.keys.find_free();
        Ok(())
    }

    /// Returns the lowest offset whose record is pending or not delivered yet. Those below are not delivered again.
    pub(crate) fn floor(&self) -> Offset {
        self.parcels.first_pending().unwrap_or(self.head.cursor)
    }
}

/// Converts runs (consecutive records) to the deliveries that a member receives. Adjacent runs with the same number of
/// deliveries are joined, whatever their keys.
pub(crate) fn delivered<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Vec<DeliveredRun> {
    let mut all: Vec<DeliveredRun> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if last.run.end() == run.first && last.deliveries == run.deliveries => {
                last.run.count += run.count;
            }
            _ => all.push(DeliveredRun {
                run: OffsetRun { first: run.first, count: run.count },
                deliveries: run.deliveries,
            }),
        }
    }
    all
}

fn is_exhausted(config: &GroupConfig, run: &Run) -> bool {
    config.max_deliveries.is_some_and(|max| run.deliveries >= max)
}

fn note_lapsed(attempt: Attempt, ranges: Runs<'_>, lapsed: &mut Vec<Lapsed>) {
    if ranges.is_all() {
        lapsed.push(Lapsed { attempt, run: None });
    }
    lapsed.extend(ranges.map(|run| Lapsed { attempt, run: Some(run) }));
}

/// Adds the records of `range` that are not in `taken` to `lapsed`: their delivery attempt no longer held them.
fn note_gaps(attempt: Attempt, range: OffsetRun, taken: &[Run], lapsed: &mut Vec<Lapsed>) {
    let mut reached = range.first;
    let ends = taken.iter().map(|run| (run.first, run.end())).chain([(range.end(), range.end())]);
    for (first, end) in ends {
        if reached < first {
            let count = (first.0 - reached.0) as u32;
            lapsed.push(Lapsed { attempt, run: Some(OffsetRun { first: reached, count }) });
        }
        reached = end;
    }
}
