//! Parcels. A parcel is one delivery attempt of a consumer group, with those of its records that are not settled (acked
//! or nacked) yet. The state stores each parcel in one row.
//!
//! Owns: the runs of a parcel, taking records out of it, and its encoding. Does not own: the other parcels of the
//! group, or the rules of delivery (`groups` of the state).
//!
//! Invariant: a parcel that a command has made or changed has at most [`MAX_ATTEMPT_RECORDS`] records, and so at most
//! as many runs, whichever records are taken from it ([`Parcel::divide`]). Rows of earlier builds may have up to
//! [`MAX_GROUP_PENDING`] records, until a command changes them.
//!
//! ```text
//! row := holder u8 | member u32 | due u64 | reason len u16 | reason | run*
//! run := first u64 | count u32 | deliveries u32 | key u64                     little-endian
//! ```
//! `holder` is 0 for a member, 1 for records that wait for redelivery, 2 for records behind another record of their
//! key, 3 for dead letters. `key` is the hash of the record's key; 0 for records without a key and in groups without
//! order per key.

use std::collections::VecDeque;

use crate::{
    clock::SpaceTime,
    codec::{Malformed, Reader},
    ids::Offset,
    limits::{MAX_ATTEMPT_RECORDS, MAX_GROUP_PENDING, MAX_NACK_REASON_BYTES},
};

/// Size in bytes of an encoded run (consecutive records of a parcel).
pub const RUN_BYTES: usize = 24;
/// Value of [`Parcel::due`] for records that never become deliverable by the passing of time.
pub const NEVER: SpaceTime = SpaceTime(u64::MAX);

const MEMBER: u8 = 0;
const WAITING: u8 = 1;
const PARKED: u8 = 2;
const DEAD: u8 = 3;

/// State of the records of a parcel (the unsettled records of one attempt).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A member of the consumer group, with this id, holds the records until their ack deadline.
    Member(u32),
    /// The records were returned to the group, and can be redelivered after their delay.
    Waiting,
    /// The records were never delivered. Each one waits until it is the first pending record of its key.
    Parked,
    /// The records are dead letters; the text is the reason.
    Dead(Box<str>),
}

/// A run: consecutive records of a parcel that were delivered the same number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset of the first record of the run (consecutive records of a parcel).
    pub first: Offset,
    /// Number of records in the run (consecutive records of a parcel); at least 1, and exactly 1 for a record with a
    /// key.
    pub count: u32,
    /// Number of times that each record of the run (consecutive records of a parcel) was delivered.
    pub deliveries: u32,
    /// Hash of the key of the run's only record; 0 for runs of records without a key, and in groups without order per
    /// key.
    pub key: u64,
}

impl Run {
    /// Returns the offset after the last record of the run (consecutive records of a parcel).
    #[must_use]
    pub fn end(&self) -> Offset {
        self.first.plus(u64::from(self.count))
    }

    /// Returns the part of the run (consecutive records of a parcel) that lies within `first..end`. At least one record
    /// must lie within it.
    fn within(&self, first: Offset, end: Offset) -> Self {
        let first = self.first.max(first);
        Self { first, count: (self.end().min(end).0 - first.0) as u32, ..*self }
    }
}

/// Returns the number of records in all runs (ranges of consecutive records) together.
pub fn count<'a>(runs: impl IntoIterator<Item = &'a Run>) -> u64 {
    runs.into_iter().map(|run| u64::from(run.count)).sum()
}

/// Sorts runs by offset, and joins adjacent runs without keys whose records have the same number of deliveries.
pub fn join(runs: &mut Vec<Run>) {
    runs.sort_unstable_by_key(|run| run.first);
    runs.dedup_by(|next, before| {
        let joins = before.end() == next.first
            && before.key == 0
            && next.key == 0
            && before.deliveries == next.deliveries
            && before.count.checked_add(next.count).is_some();
        if joins {
            before.count += next.count;
        }
        joins
    });
}

/// A parcel: the unsettled records of one delivery attempt, which share one state. `runs` ascend and are disjoint; a
/// parcel without runs is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// State of the parcel's records, such as held by a member, or dead letters.
    pub holder: Holder,
    /// Time from which the records can be redelivered; [`NEVER`] for dead letters, and for records that wait behind
    /// another record of the same key.
    pub due: SpaceTime,
    /// Runs (ranges of consecutive records) of the parcel, ascending by offset. The type is a queue, because
    /// redeliveries take runs from the front.
    pub runs: VecDeque<Run>,
}

impl Parcel {
    /// Returns the number of records of the parcel.
    #[must_use]
    pub fn records(&self) -> u64 {
        count(&self.runs)
    }

    /// Moves the records at offsets `first..end` from this parcel (unsettled records of an attempt) to `taken`.
    pub fn take(&mut self, first: Offset, end: Offset, taken: &mut Vec<Run>) {
        let from = self.runs.partition_point(|run| run.end() <= first);
        let to = self.runs.partition_point(|run| run.first < end);
        if from >= to {
            return;
        }
        taken.extend(self.runs.range(from..to).map(|run| run.within(first, end)));
        let (low, high) = (self.runs[from], self.runs[to - 1]);
        let below = (low.first < first).then(|| low.within(low.first, first));
        let above = (high.end() > end).then(|| high.within(end, high.end()));
        self.runs.drain(from..to);
        for rest in [above, below].into_iter().flatten() {
            self.runs.insert(from, rest);
        }
    }

    /// Returns true if this parcel (unsettled records of an attempt) contains all records at offsets `first..end`.
    #[must_use]
    pub fn holds(&self, first: Offset, end: Offset) -> bool {
        let from = self.runs.partition_point(|run| run.end() <= first);
        let mut reached = first;
        for run in self.runs.range(from..) {
            if reached >= end || run.first > reached {
                break;
            }
            reached = run.end();
        }
        reached >= end
    }

    /// Keeps the first [`MAX_ATTEMPT_RECORDS`] records in this parcel. Returns the other records in further parcels
    /// with the same state, each with at most [`MAX_ATTEMPT_RECORDS`] records. Returns an empty list if there are no
    /// others.
    #[must_use]
    pub fn divide(&mut self) -> Vec<Self> {
        if self.records() <= u64::from(MAX_ATTEMPT_RECORDS) {
            return Vec::new();
        }
        let (mut parts, mut part, mut room) = (Vec::new(), VecDeque::new(), MAX_ATTEMPT_RECORDS);
        for mut run in std::mem::take(&mut self.runs) {
            while run.count > room {
                if room > 0 {
                    part.push_back(Run { count: room, ..run });
                    run = Run { first: run.first.plus(u64::from(room)), count: run.count - room, ..run };
                }
                parts.push(std::mem::take(&mut part));
                room = MAX_ATTEMPT_RECORDS;
            }
            room -= run.count;
            part.push_back(run);
        }
        parts.push(part);
        let (holder, due, mut parts) = (self.holder.clone(), self.due, parts.into_iter());
        self.runs = parts.next().unwrap_or_default();
        parts.map(|runs| Self { holder: holder.clone(), due, runs }).collect()
    }

    /// Returns true if the parcel's records can be redelivered once `due` has passed. This excludes dead letters, and
    /// records that wait behind another record of the same key.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        matches!(self.holder, Holder::Member(_) | Holder::Waiting)
    }

    /// Returns true if a member holds the parcel's records at time `now`: they are delivered, and their ack deadline
    /// has not passed.
    #[must_use]
    pub fn is_held(&self, now: SpaceTime) -> bool {
        matches!(self.holder, Holder::Member(_)) && now < self.due
    }

    /// Returns true if the parcel's records are dead letters.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.holder, Holder::Dead(_))
    }

    /// Returns the encoded row of the parcel.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(15 + self.runs.len() * RUN_BYTES);
        let (holder, member, reason) = match &self.holder {
            Holder::Member(member) => (MEMBER, *member, ""),
            Holder::Waiting => (WAITING, 0, ""),
            Holder::Parked => (PARKED, 0, ""),
            Holder::Dead(reason) => (DEAD, 0, &**reason),
        };
        row.push(holder);
        row.extend_from_slice(&member.to_le_bytes());
        row.extend_from_slice(&self.due.0.to_le_bytes());
        row.extend_from_slice(&(reason.len() as u16).to_le_bytes());
        row.extend_from_slice(reason.as_bytes());
        for run in &self.runs {
            row.extend_from_slice(&run.first.0.to_le_bytes());
            row.extend_from_slice(&run.count.to_le_bytes());
            row.extend_from_slice(&run.deliveries.to_le_bytes());
            row.extend_from_slice(&run.key.to_le_bytes());
        }
        row
    }

    /// Decodes the row of a parcel. Returns an error if its runs (ranges of records) do not ascend, or if it has more
    /// records than a consumer group may have.
    pub fn decode(row: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(row, 0);
        let holder = reader.u8("holder")?;
        let member = reader.u32("member")?;
        let due = SpaceTime(reader.u64("due time")?);
        let reason = usize::from(reader.u16("reason length")?);
        let reason = std::str::from_utf8(reader.take(reason, "reason")?).ok();
        let reason = reason.filter(|reason| reason.len() <= MAX_NACK_REASON_BYTES);
        let reason = reason.ok_or(Malformed { at: 13, expected: "a reason" })?;
        let holder = match holder {
            MEMBER => Holder::Member(member),
            WAITING => Holder::Waiting,
            PARKED => Holder::Parked,
            DEAD => Holder::Dead(reason.into()),
            _ => return Err(Malformed { at: 0, expected: "known holder" }),
        };
        let mut runs: VecDeque<Run> = VecDeque::new();
        while !reader.is_empty() {
            let at = reader.position();
            let run = Run {
                first: Offset(reader.u64("first offset")?),
                count: reader.u32("count")?,
                deliveries: reader.u32("deliveries")?,
                key: reader.u64("key")?,
            };
            let follows = runs.back().is_none_or(|before| before.end() <= run.first);
            let fits = run.count > 0 && run.first.0.checked_add(u64::from(run.count)).is_some();
            if !follows || !fits || (run.key != 0 && run.count != 1) {
                return Err(Malformed { at, expected: "runs in order" });
            }
            runs.push_back(run);
        }
        if runs.is_empty() || count(&runs) > u64::from(MAX_GROUP_PENDING) {
            return Err(Malformed { at: row.len(), expected: "at least one run, and as many records as a group has" });
        }
        Ok(Self { holder, due, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, count: u32) -> Run {
        Run { first: Offset(first), count, deliveries: 1, key: 0 }
    }

    fn parcel(runs: Vec<Run>) -> Parcel {
        Parcel { holder: Holder::Member(3), due: SpaceTime(9), runs: runs.into() }
    }

    fn offsets<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Vec<u64> {
        runs.into_iter().flat_map(|run| run.first.0..run.end().0).collect()
    }

    #[test]
    fn taking_agrees_with_a_set() {
        let runs = vec![run(2, 3), run(7, 1), run(10, 4)];
        let all = offsets(&runs);
        for first in 0..16 {
            for end in first..16_u64 {
                let mut parcel = parcel(runs.clone());
                let mut taken = Vec::new();
                let inside = all.iter().filter(|offset| (first..end).contains(*offset)).count();
                assert_eq!(parcel.holds(Offset(first), Offset(end)), inside as u64 == end - first, "{first}..{end}");
                parcel.take(Offset(first), Offset(end), &mut taken);
                let (inside, outside): (Vec<_>, Vec<_>) = all.iter().partition(|offset| (first..end).contains(*offset));
                assert_eq!((offsets(&taken), offsets(&parcel.runs)), (inside, outside), "{first}..{end}");
            }
        }
    }

    #[test]
    fn runs_join_only_where_nothing_tells_them_apart() {
        let keyed = |first| Run { key: 5, ..run(first, 1) };
        let twice = Run { deliveries: 2, ..run(6, 1) };
        let mut runs = vec![run(4, 2), twice, run(0, 4), keyed(7), keyed(8)];
        join(&mut runs);
        assert_eq!(runs, [run(0, 6), twice, keyed(7), keyed(8)]);
    }

    #[test]
    fn layout_is_pinned() {
        let row = parcel(vec![Run { first: Offset(4), count: 1, deliveries: 6, key: 7 }]).encode();
        let head = b"\0\x03\0\0\0\x09\0\0\0\0\0\0\0\0\0".as_slice();
        let runs = b"\x04\0\0\0\0\0\0\0\x01\0\0\0\x06\0\0\0\x07\0\0\0\0\0\0\0";
        assert_eq!(row, [head, runs].concat());
        let dead = Parcel { holder: Holder::Dead("why".into()), due: NEVER, runs: vec![run(1, 2)].into() };
        assert_eq!(Parcel::decode(&dead.encode()).unwrap(), dead);
        for cut in 0..row.len() {
            assert!(Parcel::decode(&row[..cut]).is_err(), "{cut}");
        }
        assert!(Parcel::decode(&parcel(vec![run(4, 2), run(5, 1)]).encode()).is_err(), "overlapping runs");
        let decodes = |count| Parcel::decode(&parcel(vec![run(4, 2), run(9, count)]).encode()).is_ok();
        assert_eq!([MAX_GROUP_PENDING - 2, MAX_GROUP_PENDING - 1].map(decodes), [true, false]);
    }

    #[test]
    fn parcels_are_divided_at_the_most_records_of_an_attempt_and_keep_their_state() {
        let most = MAX_ATTEMPT_RECORDS;
        let mut small = parcel(vec![run(3, 1), run(5, most - 1)]);
        assert_eq!((small.divide(), small.runs.len()), (vec![], 2));
        let keyed = (0..u64::from(most)).map(|at| Run { key: 7, ..run(5 * u64::from(most) + 2 * at, 1) });
        let mut large = parcel([run(3, 1), run(5, 3 * most)].into_iter().chain(keyed).collect());
        let all = offsets(&large.runs);
        let rest = large.divide();
        let sizes: Vec<_> = rest.iter().map(Parcel::records).collect();
        assert_eq!((large.records(), sizes), (1_000, vec![1_000, 1_000, 1_000, 1]));
        assert!(rest.iter().all(|part| (&part.holder, part.due) == (&large.holder, large.due)));
        assert_eq!(offsets(large.runs.iter().chain(rest.iter().flat_map(|part| &part.runs))), all);
    }
}
