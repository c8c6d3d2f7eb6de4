//! The parcels of one consumer group: the unsettled records of each delivery attempt, with indexes and rows.
//!
//! Owns: the parcels, the sums over them, and the list of rows to write. Does not own: the content of a parcel
//! ([`thalweg_types::parcel`]), or the rules by which parcels are made and changed (`group`).
//!
//! A command changes a parcel by taking it out and putting it back, so each index and each sum follows the change. No
//! method visits parcels that it neither returns nor removes. The exceptions are loading, and [`Parcels::held_at`],
//! which visits the parcels whose deadline has passed.
//!
//! Invariants: no parcel is empty. Each index contains each of its parcels exactly once.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use thalweg_store::WriteBatch;
use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime, budget,
    parcel::{Holder, Parcel, Run},
    steps::ROW,
};

use crate::keys;

/// Number of records, and number of delivery attempts, that one member holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldCounts {
    pub(crate) records: u64,
    pub(crate) attempts: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Parcels {
    by_attempt: BTreeMap<Attempt, Parcel>,
    /// Redelivery time and attempt of each parcel (unsettled records of one attempt) that waits for a redelivery time.
    due: BTreeSet<(SpaceTime, Attempt)>,
    /// Offset of the first record, and attempt, of each parcel (unsettled records). The flag is true for dead letters,
    /// which come last.
    firsts: BTreeSet<(bool, Offset, Attempt)>,
    dead_attempts: BTreeSet<Attempt>,
    /// Numbers of records and attempts of each member that holds records, even if their ack deadline has passed.
    holding: BTreeMap<u32, HeldCounts>,
    pending: u64,
    parked: u64,
    dead: u64,
    reason_bytes: usize,
    written_runs: u64,
    /// Attempts whose row must be written or deleted with the log record being applied. The value is true if the
    /// attempt had a row before the log record.
    changed: BTreeMap<Attempt, bool>,
}

impl Parcels {
    /// Number of delivery attempts of the group that have unsettled records.
    pub(crate) fn len(&self) -> usize {
        self.by_attempt.len()
    }

    pub(crate) fn get(&self, attempt: Attempt) -> Option<&Parcel> {
        self.by_attempt.get(&attempt)
    }

    /// Number of pending records: delivered but not acked, or waiting behind another of their key; no dead letters.
    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    /// Number of parked records, which wait behind another record of their key.
    pub(crate) fn parked(&self) -> u64 {
        self.parked
    }

    /// Number of dead letters that the group keeps.
    pub(crate) fn dead(&self) -> u64 {
        self.dead
    }

    pub(crate) fn reason_bytes(&self) -> usize {
        self.reason_bytes
    }

    /// Number of runs (ranges of records) written by all calls of [`put`](Self::put) since the group was loaded. A
    /// caller takes the difference before and after a command.
    pub(crate) fn written_runs(&self) -> u64 {
        self.written_runs
    }

    /// Returns the earliest time at which a pending record can be redelivered, and its attempt.
    pub(crate) fn first_due(&self) -> Option<(SpaceTime, Attempt)> {
        self.due.first().copied()
    }

    /// Iterates over the attempts whose records can be redelivered at `now`, in the order of these times.
    pub(crate) fn due_at(&self, now: SpaceTime) -> impl Iterator<Item = &Parcel> {
        self.due.range(..=(now, Attempt(u64::MAX))).filter_map(|(_, attempt)| self.by_attempt.get(attempt))
    }

    /// Returns the lowest offset of a pending record.
    pub(crate) fn first_pending(&self) -> Option<Offset> {
        self.firsts.first().filter(|(is_dead, ..)| !is_dead).map(|&(_, first, _)| first)
    }

    /// Returns the attempt with the lowest pending record, if this record is below the offset `end`. Otherwise does the
    /// same for dead letters.
    pub(crate) fn first_below(&self, end: Offset) -> Option<Attempt> {
        let below = |is_dead| self.firsts.range((is_dead, Offset::ZERO, Attempt(0))..(is_dead, end, Attempt(0))).next();
        below(false).or_else(|| below(true)).map(|&(.., attempt)| attempt)
    }

    /// Returns true if the member holds records, even if their ack deadline has passed.
    pub(crate) fn is_holding(&self, member: u32) -> bool {
        self.holding.contains_key(&member)
    }

    /// Returns the counts of the members that hold records whose deadline has not passed at `now`. Charges the
    /// [budget] of the thread for each attempt whose deadline has passed.
    pub(crate) fn held_at(&self, now: SpaceTime) -> BTreeMap<u32, HeldCounts> {
        let mut held = self.holding.clone();
        for (_, attempt) in self.due.range(..=(now, Attempt(u64::MAX))) {
            if budget::charge(ROW).is_break() {
                break;
            }
            let Some(parcel) = self.by_attempt.get(attempt) else { continue };
            if let Holder::Member(member) = parcel.holder
                && let Some(counts) = held.get_mut(&member)
            {
                counts.records -= parcel.records();
                counts.attempts -= 1;
            }
        }
        held
    }

    /// Iterates over the attempts with dead letters after the attempt `after`, in order.
    pub(crate) fn dead_from(&self, after: Option<Attempt>) -> impl Iterator<Item = (Attempt, &Parcel)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let dead = self.dead_attempts.range((from, Bound::Unbounded));
        dead.filter_map(|&attempt| Some((attempt, self.by_attempt.get(&attempt)?)))
    }

    /// Iterates over the pending records, with their attempts; the flag is true for records that wait behind another
    /// record of their key.
    pub(crate) fn pending_runs(&self) -> impl Iterator<Item = (Attempt, bool, Run)> {
        let live = self.by_attempt.iter().filter(|(_, parcel)| !parcel.is_dead());
        live.flat_map(|(&attempt, parcel)| {
            let is_parked = parcel.holder == Holder::Parked;
            parcel.runs.iter().map(move |&run| (attempt, is_parked, run))
        })
    }

    /// Removes the unsettled records of an attempt and returns them, so that the caller can change or drop them. Notes
    /// that the attempt's row must be written or deleted.
    pub(crate) fn take_out(&mut self, attempt: Attempt) -> Option<Parcel> {
        let parcel = self.by_attempt.remove(&attempt)?;
        self.changed.entry(attempt).or_insert(true);
        let records = parcel.records();
        if let Some(first) = parcel.runs.front() {
            self.firsts.remove(&(parcel.is_dead(), first.first, attempt));
        }
        if parcel.is_timed() {
            self.due.remove(&(parcel.due, attempt));
        }
        match &parcel.holder {
            Holder::Dead(reason) => {
                self.dead_attempts.remove(&attempt);
                self.dead -= records;
                self.reason_bytes -= reason.len();
                return Some(parcel);
            }
            Holder::Member(member) => {
                if let Some(counts) = self.holding.get_mut(member) {
                    counts.records -= records;
                    counts.attempts -= 1;
                    if counts.attempts == 0 {
                        self.holding.remove(member);
                    }
                }
            }
            Holder::Parked => self.parked -= records,
            Holder::Waiting => {}
        }
        self.pending -= records;
        Some(parcel)
    }

    /// Stores the unsettled records of a new or changed delivery attempt. Stores nothing if no records are left.
    pub(crate) fn put(&mut self, attempt: Attempt, parcel: Parcel) {
        let Some(first) = parcel.runs.front() else { return };
        self.changed.entry(attempt).or_insert(false);
        self.written_runs += parcel.runs.len() as u64;
        let records = parcel.records();
        self.firsts.insert((parcel.is_dead(), first.first, attempt));
        if parcel.is_timed() {
            self.due.insert((parcel.due, attempt));
        }
        match &parcel.holder {
            Holder::Dead(reason) => {
                self.dead_attempts.insert(attempt);
                self.dead += records;
                self.reason_bytes += reason.len();
            }
            Holder::Member(member) => {
                let counts = self.holding.entry(*member).or_default();
                counts.records += records;
                counts.attempts += 1;
                self.pending += records;
            }
            Holder::Parked => {
                self.parked += records;
                self.pending += records;
            }
            Holder::Waiting => self.pending += records,
        }
        self.by_attempt.insert(attempt, parcel);
    }

    /// Moves the ack deadline of an attempt that a member holds at `now`. Returns the number of runs (ranges of
    /// records) in its row, which is written again; `None` if no member holds the attempt.
    pub(crate) fn extend(&mut self, now: SpaceTime, attempt: Attempt, due: SpaceTime) -> Option<u64> {
        let parcel = self.by_attempt.get_mut(&attempt).filter(|parcel| parcel.is_held(now))?;
        self.due.remove(&(parcel.due, attempt));
        parcel.due = due;
        self.due.insert((due, attempt));
        self.changed.entry(attempt).or_insert(true);
        Some(parcel.runs.len() as u64)
    }

    pub(crate) fn drop_pending(&mut self) {
        let dead = self.firsts.split_off(&(true, Offset::ZERO, Attempt(0)));
        for (.., attempt) in std::mem::replace(&mut self.firsts, dead) {
            self.by_attempt.remove(&attempt);
            self.changed.entry(attempt).or_insert(true);
        }
        self.due.clear();
        self.holding.clear();
        (self.pending, self.parked) = (0, 0);
    }

    /// Removes up to `max` attempts of a deleted group. Returns the number of removed attempts.
    pub(crate) fn remove_some(&mut self, max: u32) -> u32 {
        let mut removed = 0;
        while removed < max
            && let Some((&attempt, _)) = self.by_attempt.first_key_value()
        {
            self.take_out(attempt);
            removed += 1;
        }
        removed
    }

    /// Forgets which rows have changed. Called after the rows of a group are loaded.
    pub(crate) fn forget_changes(&mut self) {
        self.changed.clear();
    }

    /// Writes or deletes the rows of the attempts that the log record being applied has changed.
    pub(crate) fn write(&mut self, id: GroupId, batch: &mut WriteBatch) {
        for (attempt, existed) in std::mem::take(&mut self.changed) {
            let key = keys::group_parcel(id, attempt);
            match self.by_attempt.get(&attempt) {
                Some(parcel) => batch.put(&[&key], &[&parcel.encode()]),
                None if existed => batch.delete(&[&key]),
                None => {}
            }
        }
    }

    /// Deletes all rows of a consumer group that was deleted.
    pub(crate) fn delete_rows(&self, id: GroupId, batch: &mut WriteBatch) {
        let attempts: BTreeSet<_> = self.by_attempt.keys().chain(self.changed.keys()).copied().collect();
        attempts.into_iter().for_each(|attempt| batch.delete(&[&keys::group_parcel(id, attempt)]));
    }
}
