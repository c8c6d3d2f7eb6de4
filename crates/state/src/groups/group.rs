//! One consumer group: delivering, settling, extending, seeking, and dropping trimmed records.
//!
//! All operations change only memory and record the affected rows. Time is an argument: the entry's time.
//!
//! Owns: the rules of one group. Does not own: the other groups and the layout of rows (`table`), order per key
//! (`order`), the commands (`commands`), or the records. Invariants: those in the head of `table`; `pending` and `dead`
//! are the sums over the parcels; each parcel that an operation changes is in `changed`.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use thalweg_store::WriteBatch;
use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime,
    command::groups::{
        DeliveredRun, Fetch, Fetched, GroupConfig, GroupOrder, Lapsed, OffsetRun, Redelivery, Runs, SettlementKind,
        Settlements,
    },
    limits::MAX_FETCH_RECORDS,
};

use crate::{
    groups::{
        head::{DELETED, Head, MAX_COUNTER},
        members::Members,
        order::KeyQueues,
        parcel::{self, Holder, NEVER, Parcel, Run},
    },
    keys,
};

/// Reason stored with a dead letter whose last delivery was neither acked nor nacked.
const DEADLINE_PASSED: &str = "not acked before its deadline";

/// Maximum number of records that one fetch turns into dead letters, in addition to the records that it delivers.
/// Bounds the time of a command.
const MAX_DEAD_PER_FETCH: u64 = MAX_FETCH_RECORDS as u64;

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
    parcels: BTreeMap<Attempt, Parcel>,
    /// Number of parcels that each member holds; members without parcels are not in the map.
    holding: BTreeMap<u32, u32>,
    /// Delivery attempts whose records can be redelivered after a certain time, in the order of that time.
    due: BTreeSet<(SpaceTime, Attempt)>,
    keys: KeyQueues,
    /// Number of pending records: those that are delivered but not settled, except dead letters.
    pending: u64,
    dead: u64,
    changed: GroupChanges,
}

/// Rows of the group that must be written or deleted with the log record being applied.
#[derive(Debug, Default)]
struct GroupChanges {
    head: bool,
    /// Delivery attempts whose row must be written or deleted. The value is true if the attempt had a row before the
    /// log record being applied.
    parcels: BTreeMap<Attempt, bool>,
}

/// Result of a settlement (ack or nack): the number of records settled, and the records whose attempts no longer held
/// them.
#[derive(Debug, Default)]
pub(crate) struct SettledRecords {
    pub(crate) settled: u64,
    pub(crate) lapsed: Vec<Lapsed>,
}

impl Group {
    pub(crate) fn new(head: Head) -> Self {
        Self {
            head,
            members: Members::default(),
            parcels: BTreeMap::new(),
            holding: BTreeMap::new(),
            due: BTreeSet::new(),
            keys: KeyQueues::default(),
            pending: 0,
            dead: 0,
            changed: GroupChanges { head: true, parcels: BTreeMap::new() },
        }
    }

    pub(crate) fn parcels(&self) -> impl Iterator<Item = (Attempt, &Parcel)> {
        self.parcels.iter().map(|(&attempt, parcel)| (attempt, parcel))
    }

    pub(crate) fn parcel(&self, attempt: Attempt) -> Option<&Parcel> {
        self.parcels.get(&attempt)
    }

    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    pub(crate) fn dead(&self) -> u64 {
        self.dead
    }

    /// Returns the earliest time at which a pending record can be redelivered; `None` if no pending record waits for a
    /// time.
    pub(crate) fn next_due(&self) -> Option<SpaceTime> {
        self.due.first().map(|&(due, _)| due)
    }

    /// Returns true if the group has its maximum of pending records, so that no new record is delivered until one is
    /// settled.
    pub(crate) fn is_full(&self) -> bool {
        self.pending >= u64::from(self.head.config.max_pending)
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

    /// Returns how many records, up to `max`, a fetch at `now` delivers before new ones; 1 if it only makes dead letters.
    pub(crate) fn deliverable_again(&self, now: SpaceTime, max: u32) -> u32 {
        let mut due = self.due.iter().take_while(|(due, _)| *due <= now).peekable();
        let least = u32::from(self.has_freed() || due.peek().is_some());
        let runs = due.filter_map(|(_, attempt)| self.parcels.get(attempt)).flat_map(|parcel| &parcel.runs);
        let again = runs.take(MAX_FETCH_RECORDS as usize).filter(|run| !is_exhausted(&self.head.config, run));
        again.fold(0_u32, |sum, run| sum.saturating_add(run.count)).clamp(least, max.max(least))
    }

    /// Replaces the group's configuration. Returns false, without a change, if the new configuration has another
    /// delivery order.
    pub(crate) fn configure(&mut self, config: GroupConfig) -> bool {
        let same = config.order == self.head.config.order;
        if same {
            self.head.config = config;
            self.changed.head = true;
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
        // Each new name asks, so the answer must not cost a look at all parcels.
        let holding = &self.holding;
        debug_assert!(holding.keys().copied().eq(holders(&self.parcels)));
        let member = self.members.fetches(fetch.member, now, |id| holding.contains_key(&id));
        let member = member.ok_or(Refusal::TooManyMembers)?;
        if self.head.cursor < start {
            self.head.cursor = start;
            self.changed.head = true;
        }
        let mut runs = Vec::new();
        let mut left = u64::from(fetch.max);
        self.redeliver(now, &mut left, &mut runs);
        self.deliver_freed(&mut left, &mut runs);
        self.deliver_new(now, fetch, next, &mut left, &mut runs);
        let mut fetched = Fetched {
            deadline: now.plus(self.head.config.ack_deadline),
            cursor: self.head.cursor,
            ..Fetched::default()
        };
        fetched.dead = self.dead > 0;
        if runs.is_empty() {
            return Ok(fetched);
        }
        parcel::join(&mut runs);
        fetched.deliveries = delivered(&runs);
        self.head.delivered += parcel::count(&runs);
        let again = runs.iter().filter(|run| run.deliveries > 1).map(|run| u64::from(run.count));
        self.head.redelivered += again.sum::<u64>();
        fetched.attempt = self.insert(now, Parcel { holder: Holder::Member(member), due: fetched.deadline, runs });
        Ok(fetched)
    }

    /// Takes up to `left` records whose ack deadline or redelivery delay has passed, and adds them to `runs`. Records
    /// that already had the maximum number of deliveries become dead letters instead.
    fn redeliver(&mut self, now: SpaceTime, left: &mut u64, runs: &mut Vec<Run>) {
        let mut dead = Vec::new();
        let mut dead_left = MAX_DEAD_PER_FETCH;
        while *left > 0 && dead_left > 0 {
            let Some(&(due, attempt)) = self.due.first().filter(|(due, _)| *due <= now) else { break };
            self.mark_changed(attempt);
            let Some(parcel) = self.parcels.get_mut(&attempt) else { break };
            let mut taken = 0;
            for run in &mut parcel.runs {
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
                taken += 1;
            }
            parcel.runs.drain(..taken);
            if parcel.runs.is_empty() {
                self.remove_parcel(attempt);
                self.due.remove(&(due, attempt));
            }
        }
        self.make_dead_letters(now, dead, DEADLINE_PASSED);
    }

    /// Delivers up to `left` records that waited behind another record of the same key and are now the first pending
    /// ones of their keys: adds them to `runs`.
    fn deliver_freed(&mut self, left: &mut u64, runs: &mut Vec<Run>) {
        while *left > 0 {
            let Some((offset, attempt)) = self.keys.pop_free() else { break };
            self.mark_changed(attempt);
            let Some(parcel) = self.parcels.get_mut(&attempt) else { break };
            let before = runs.len();
            parcel.take(offset, offset.next(), runs);
            runs[before..].iter_mut().for_each(|run| run.deliveries = 1);
            *left -= 1;
            if parcel.runs.is_empty() {
                self.remove_parcel(attempt);
            }
        }
    }

    /// Delivers new records, from the group's cursor on, and advances the cursor.
    fn deliver_new(&mut self, now: SpaceTime, fetch: &Fetch<'_>, next: Offset, left: &mut u64, runs: &mut Vec<Run>) {
        let room = u64::from(self.head.config.max_pending).saturating_sub(self.pending);
        let cursor = self.head.cursor;
        let most = room.min(next.0.saturating_sub(cursor.0));
        match self.head.config.order {
            GroupOrder::Competing => {
                let count = most.min(*left) as u32;
                if count > 0 {
                    runs.push(Run { first: cursor, count, deliveries: 1, key: 0 });
                    self.head.cursor = cursor.plus(u64::from(count));
                    self.pending += u64::from(count);
                }
            }
            GroupOrder::PerKey => self.deliver_in_order(now, fetch, cursor.plus(most), left, runs),
        }
        if self.head.cursor != cursor {
            self.changed.head = true;
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
            self.pending += 1;
        }
        if !parked.is_empty() {
            let offsets: Vec<_> = parked.iter().map(|run| run.first).collect();
            let attempt = self.insert(now, Parcel { holder: Holder::Parked, due: NEVER, runs: parked });
            offsets.into_iter().for_each(|offset| self.keys.park(offset, attempt));
        }
    }

    /// Returns true if the attempt still holds all of the given records at `now`. Used by commits, which settle all
    /// records or none.
    pub(crate) fn holds(&self, now: SpaceTime, how: &SettlementKind<'_>, attempt: Attempt, runs: Runs<'_>) -> bool {
        let Some(parcel) = self.held(now, how, attempt) else { return false };
        runs.into_iter().all(|run| parcel.holds(run.first, run.end()))
    }

    /// Returns the parcel (unsettled records) of an attempt if it can be settled at `now`: a member holds it, or it
    /// contains dead letters and the settlement is an ack.
    fn held(&self, now: SpaceTime, how: &SettlementKind<'_>, attempt: Attempt) -> Option<&Parcel> {
        self.parcels.get(&attempt).filter(|parcel| match &parcel.holder {
            Holder::Member(_) => now < parcel.due,
            Holder::Dead(_) => *how == SettlementKind::Ack,
            Holder::Waiting | Holder::Parked => false,
        })
    }

    /// Settles (acks or nacks) the records that the attempts still hold. Also returns the records that the attempts no
    /// longer held.
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
            let taken = self.take(attempt, ranges, &mut done.lapsed);
            let count = parcel::count(&taken);
            done.settled += count;
            match (how, is_dead) {
                (SettlementKind::Ack, true) => {
                    self.dead -= count;
                    self.head.dead += count;
                }
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
        self.changed.head |= done.settled > 0;
        done
    }

    /// Removes the records in `ranges`, or all records, from the unsettled records of an attempt, and returns them.
    /// Adds records that the attempt did not hold to `lapsed`.
    fn take(&mut self, attempt: Attempt, ranges: Runs<'_>, lapsed: &mut Vec<Lapsed>) -> Vec<Run> {
        self.mark_changed(attempt);
        let mut taken = Vec::new();
        let Some(parcel) = self.parcels.get_mut(&attempt) else { return taken };
        if ranges.is_all() {
            taken = std::mem::take(&mut parcel.runs);
        }
        for range in ranges {
            let before = taken.len();
            parcel.take(range.first, range.end(), &mut taken);
            note_gaps(attempt, range, &taken[before..], lapsed);
        }
        if parcel.runs.is_empty() {
            let due = parcel.due;
            self.remove_parcel(attempt);
            self.due.remove(&(due, attempt));
        }
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
        if waiting.is_empty() {
            return;
        }
        parcel::join(&mut waiting);
        let delay = match again {
            Redelivery::After(delay) => delay,
            Redelivery::Never | Redelivery::Uncounted => Duration::ZERO,
        };
        self.insert(now, Parcel { holder: Holder::Waiting, due: now.plus(delay), runs: waiting });
    }

    /// Turns records into dead letters. They are no longer pending, but are kept until a commit has moved them to the
    /// group's dead-letter stream. Without such a stream, they are dropped.
    fn make_dead_letters(&mut self, now: SpaceTime, mut runs: Vec<Run>, reason: &str) {
        if runs.is_empty() {
            return;
        }
        self.forget(&runs);
        self.changed.head = true;
        let count = parcel::count(&runs);
        if self.head.config.dead_letters.is_none() {
            self.head.dropped += count;
            return;
        }
        self.dead += count;
        parcel::join(&mut runs);
        self.insert(now, Parcel { holder: Holder::Dead(reason.into()), due: NEVER, runs });
    }

    /// Counts records as no longer pending. This can unblock the next records of their keys.
    fn forget(&mut self, runs: &[Run]) {
        self.pending -= parcel::count(runs);
        for run in runs.iter().filter(|run| run.key != 0) {
            self.keys.leave(run.key, run.first);
        }
    }

    /// Moves the deadline of an attempt to `by` after `now`. Returns false if no member holds the attempt any more.
    pub(crate) fn extend(&mut self, now: SpaceTime, attempt: Attempt, by: Duration) -> bool {
        self.mark_changed(attempt);
        let parcel = self.parcels.get_mut(&attempt);
        let held = |parcel: &&mut Parcel| matches!(parcel.holder, Holder::Member(_)) && now < parcel.due;
        let Some(parcel) = parcel.filter(held) else { return false };
        self.due.remove(&(parcel.due, attempt));
        parcel.due = now.plus(by);
        self.due.insert((parcel.due, attempt));
        true
    }

    /// Restarts delivery at `cursor`, as if no record had been delivered. Dead letters are kept.
    pub(crate) fn seek(&mut self, cursor: Offset) {
        let kept = std::mem::take(&mut self.parcels);
        self.holding.clear();
        for (attempt, parcel) in kept {
            if parcel.is_dead() {
                self.parcels.insert(attempt, parcel);
            } else {
                self.changed.parcels.entry(attempt).or_insert(true);
            }
        }
        self.due.clear();
        self.keys.clear();
        self.pending = 0;
        self.head.cursor = cursor;
        self.changed.head = true;
    }

    /// Moves the cursor to the offset `start` if it is lower, because the records below `start` were trimmed from the
    /// stream.
    pub(crate) fn skip_to(&mut self, start: Offset) {
        if self.head.cursor < start {
            self.head.cursor = start;
            self.changed.head = true;
        }
    }

    /// Returns true if a pending record or a dead letter is below the offset `start` of the stream.
    pub(crate) fn holds_below(&self, start: Offset) -> bool {
        self.parcels.values().any(|parcel| parcel.is_below(start))
    }

    /// Drops records below the offset `start`, which were trimmed from the stream, from the pending records and the
    /// dead letters, in the order of attempts. Ends after the attempt with which it has dropped `max` runs or more.
    /// Returns the number of dropped runs, and true if more are left.
    pub(crate) fn drop_below(&mut self, start: Offset, max: u32) -> (u32, bool) {
        let mut dropped = 0;
        let below = self.parcels.iter().filter(|(_, parcel)| parcel.is_below(start));
        let touched: Vec<_> = below.map(|(&attempt, _)| attempt).take(max as usize + 1).collect();
        for attempt in touched {
            if dropped >= max {
                return (dropped, true);
            }
            self.mark_changed(attempt);
            let Some(parcel) = self.parcels.get_mut(&attempt) else { continue };
            let (mut gone, is_dead, due) = (Vec::new(), parcel.is_dead(), parcel.due);
            parcel.take(Offset::ZERO, start, &mut gone);
            if parcel.runs.is_empty() {
                self.remove_parcel(attempt);
                self.due.remove(&(due, attempt));
            }
            if is_dead {
                self.dead -= parcel::count(&gone);
            } else {
                self.forget(&gone);
            }
            dropped += gone.len() as u32;
        }
        (dropped, false)
    }

    /// Number of attempts with unsettled records.
    pub(crate) fn attempts(&self) -> usize {
        self.parcels.len()
    }

    /// Number of rows of the group in addition to its head.
    pub(crate) fn rows(&self) -> usize {
        self.parcels.len() + self.members.len()
    }

    /// Marks the group as deleted. Its other rows stay until [`remove_rows`](Self::remove_rows) has removed them.
    pub(crate) fn mark_deleted(&mut self) {
        self.head.stream = DELETED;
        self.changed.head = true;
    }

    /// Removes up to `max` rows of a deleted group. Returns the number of removed rows.
    pub(crate) fn remove_rows(&mut self, max: u32) -> u32 {
        let mut left = max;
        while left > 0
            && let Some((&attempt, _)) = self.parcels.first_key_value()
        {
            self.mark_changed(attempt);
            self.parcels.remove(&attempt);
            left -= 1;
        }
        max - left + self.members.remove_some(left)
    }

    /// Adds a parcel (records with one state) under a new attempt number, which is returned.
    fn insert(&mut self, now: SpaceTime, parcel: Parcel) -> Attempt {
        let attempt = Attempt((self.head.last_attempt.0 + 1).max(now.0.min(MAX_COUNTER)));
        self.head.last_attempt = attempt;
        self.changed.head = true;
        self.mark_changed(attempt);
        if parcel.is_timed() {
            self.due.insert((parcel.due, attempt));
        }
        self.put_parcel(attempt, parcel);
        attempt
    }

    fn put_parcel(&mut self, attempt: Attempt, parcel: Parcel) {
        if let Holder::Member(member) = parcel.holder {
            *self.holding.entry(member).or_default() += 1;
        }
        self.parcels.insert(attempt, parcel);
    }

    fn remove_parcel(&mut self, attempt: Attempt) {
        let Some(Parcel { holder: Holder::Member(member), .. }) = self.parcels.remove(&attempt) else { return };
        if let Some(held) = self.holding.get_mut(&member) {
            *held -= 1;
            if *held == 0 {
                self.holding.remove(&member);
            }
        }
    }

    /// Notes that the unsettled records of an attempt are about to change, so that the attempt's row is written or
    /// deleted with the log record being applied.
    fn mark_changed(&mut self, attempt: Attempt) {
        let existed = self.parcels.contains_key(&attempt);
        self.changed.parcels.entry(attempt).or_insert(existed);
    }

    pub(crate) fn write(&mut self, id: GroupId, batch: &mut WriteBatch) {
        if std::mem::take(&mut self.changed.head) {
            self.head.write(id, batch);
        }
        self.members.write(id, batch);
        for (attempt, existed) in std::mem::take(&mut self.changed.parcels) {
            let key = keys::group_parcel(id, attempt);
            match self.parcels.get(&attempt) {
                Some(parcel) => batch.put(&[&key], &[&parcel.encode()]),
                None if existed => batch.delete(&[&key]),
                None => {}
            }
        }
    }

    /// Deletes all rows of a consumer group that was deleted.
    pub(crate) fn delete_rows(&self, id: GroupId, batch: &mut WriteBatch) {
        batch.delete(&[&keys::group_head(id)]);
        self.members.delete_rows(id, batch);
        let attempts: BTreeSet<_> = self.parcels.keys().chain(self.changed.parcels.keys()).copied().collect();
        attempts.into_iter().for_each(|attempt| batch.delete(&[&keys::group_parcel(id, attempt)]));
    }

    pub(crate) fn load_member(&mut self, key: &[u8], row: &[u8]) -> Result<(), &'static str> {
        self.members.load(key, row)
    }

    pub(crate) fn load_parcel(&mut self, key: &[u8], row: &[u8]) -> Result<(), &'static str> {
        let attempt = Attempt(u64::from_be_bytes(key.try_into().map_err(|_| "key of a wrong length")?));
        let parcel = Parcel::decode(row).map_err(|malformed| malformed.expected)?;
        // Dead letters stay when the cursor is moved back.
        let in_order = parcel.is_dead() || parcel.runs.last().is_some_and(|last| last.end() <= self.head.cursor);
        if attempt > self.head.last_attempt || !in_order {
            return Err("an attempt that was never assigned, or an offset above the cursor");
        }
        if parcel.is_timed() {
            self.due.insert((parcel.due, attempt));
        }
        self.put_parcel(attempt, parcel);
        Ok(())
    }

    /// Completes a consumer group after its rows are loaded: checks that no record belongs to two attempts, counts the
    /// pending records, and rebuilds the queues of records with the same key.
    pub(crate) fn finish_load(&mut self) -> Result<(), &'static str> {
        self.changed = GroupChanges::default();
        let each = |(&attempt, parcel)| runs_of(attempt, parcel);
        let (dead, live): (Vec<_>, Vec<_>) = self.parcels.iter().partition(|(_, parcel)| parcel.is_dead());
        self.dead = dead.iter().map(|(_, parcel)| parcel::count(&parcel.runs)).sum();
        let mut all: Vec<(Attempt, &Parcel, Run)> = live.into_iter().flat_map(each).collect();
        all.sort_unstable_by_key(|(_, _, run)| run.first);
        if all.windows(2).any(|pair| pair[0].2.end() > pair[1].2.first) {
            return Err("a record is pending twice");
        }
        for (attempt, parcel, run) in all {
            self.pending += u64::from(run.count);
            if run.key != 0 {
                self.keys.enter(run.key, run.first);
            }
            if parcel.holder == Holder::Parked {
                self.keys.park(run.first, attempt);
            }
        }
        self.keys.find_free();
        Ok(())
    }

    /// Returns the lowest offset whose record is pending or not delivered yet. All records below this offset are
    /// settled.
    pub(crate) fn floor(&self) -> Offset {
        let live = self.parcels.values().filter(|parcel| !parcel.is_dead());
        live.filter_map(|parcel| parcel.runs.first()).map(|run| run.first).min().unwrap_or(self.head.cursor)
    }

    /// Iterates over the attempts with dead letters after the attempt `after`, in order.
    pub(crate) fn dead_from(&self, after: Option<Attempt>) -> impl Iterator<Item = (Attempt, &Parcel)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.parcels.range((from, Bound::Unbounded)).filter(|(_, parcel)| parcel.is_dead()).map(|(&a, p)| (a, p))
    }
}

/// Converts runs (consecutive records) to the deliveries that a member receives. Adjacent runs with the same number of
/// deliveries are joined, whatever their keys.
pub(crate) fn delivered(runs: &[Run]) -> Vec<DeliveredRun> {
    let mut all: Vec<DeliveredRun> = Vec::with_capacity(runs.len());
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

fn runs_of(attempt: Attempt, parcel: &Parcel) -> impl Iterator<Item = (Attempt, &Parcel, Run)> {
    parcel.runs.iter().map(move |&run| (attempt, parcel, run))
}

fn is_exhausted(config: &GroupConfig, run: &Run) -> bool {
    config.max_deliveries.is_some_and(|max| run.deliveries >= max)
}

fn holders(parcels: &BTreeMap<Attempt, Parcel>) -> BTreeSet<u32> {
    let member = |parcel: &Parcel| match parcel.holder {
        Holder::Member(member) => Some(member),
        _ => None,
    };
    parcels.values().filter_map(member).collect()
}

fn note_lapsed(attempt: Attempt, ranges: Runs<'_>, lapsed: &mut Vec<Lapsed>) {
    if ranges.is_all() {
        lapsed.push(Lapsed { attempt, run: None });
    }
    lapsed.extend(ranges.map(|run| Lapsed { attempt, run: Some(run) }));
}

/// Adds those records of `range` to `lapsed` that are not in `taken`, because their delivery attempt no longer held
/// them.
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
