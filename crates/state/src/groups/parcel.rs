//! Parcels: the records of one delivery attempt that are not settled yet.
//!
//! Owns: the runs of a parcel, their state, and the encoding of the row. Does not own: the changes of state (`group`).

use thalweg_types::{
    Offset, SpaceTime,
    codec::{Malformed, Reader},
    limits::MAX_NACK_REASON_BYTES,
};

const MEMBER: u8 = 0;
const WAITING: u8 = 1;
const PARKED: u8 = 2;
const DEAD: u8 = 3;

/// State of the records of a parcel (the unsettled records of one attempt).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A member of the consumer group, with this id, holds the records until their ack deadline.
    Member(u32),
    /// The records were returned to the group, and can be redelivered after their delay.
    Waiting,
    /// The records were never delivered. Each one waits until it is the first pending record of its key.
    Parked,
    /// The records are dead letters; the text is the reason.
    Dead(Box<str>),
}

/// Consecutive records of a stream with the same delivery state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: Offset,
    /// Number of records in the run; at least 1, and exactly 1 for a record with a key.
    pub(crate) count: u32,
    /// Number of times that each record of the run was delivered.
    pub(crate) deliveries: u32,
    /// Hash of the record's key; 0 for records without a key, and in groups without order per key.
    pub(crate) key: u64,
}

impl Run {
    pub(crate) fn end(&self) -> Offset {
        self.first.plus(u64::from(self.count))
    }

    /// Returns the records of the run that lie within `first..end`; there must be at least one.
    fn within(&self, first: Offset, end: Offset) -> Self {
        let first = self.first.max(first);
        Self { first, count: (self.end().min(end).0 - first.0) as u32, ..*self }
    }
}

/// Returns the number of records in all runs together.
pub(crate) fn count(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.count)).sum()
}

/// Sorts runs by offset, and joins adjacent runs without keys whose records have the same number of deliveries.
pub(crate) fn join(runs: &mut Vec<Run>) {
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
pub(crate) struct Parcel {
    pub(crate) holder: Holder,
    /// Time from which the records can be redelivered; `u64::MAX` for dead letters and parked records.
    pub(crate) due: SpaceTime,
    pub(crate) runs: Vec<Run>,
}

/// Value of `due` for records that no passing of time makes deliverable.
pub(crate) const NEVER: SpaceTime = SpaceTime(u64::MAX);

impl Parcel {
    /// Moves the records at offsets `first..end` from this parcel (unsettled records of an attempt) to `taken`.
    pub(crate) fn take(&mut self, first: Offset, end: Offset, taken: &mut Vec<Run>) {
        let from = self.runs.partition_point(|run| run.end() <= first);
        let to = self.runs.partition_point(|run| run.first < end);
        if from >= to {
            return;
        }
        taken.extend(self.runs[from..to].iter().map(|run| run.within(first, end)));
        let (low, high) = (self.runs[from], self.runs[to - 1]);
        let below = (low.first < first).then(|| low.within(low.first, first));
        let above = (high.end() > end).then(|| high.within(end, high.end()));
        self.runs.splice(from..to, below.into_iter().chain(above));
    }

    /// Returns true if this parcel (unsettled records of an attempt) contains all records at offsets `first..end`.
    pub(crate) fn holds(&self, first: Offset, end: Offset) -> bool {
        let from = self.runs.partition_point(|run| run.end() <= first);
        let mut reached = first;
        for run in &self.runs[from..] {
            if reached >= end || run.first > reached {
                break;
            }
            reached = run.end();
        }
        reached >= end
    }

    /// Returns true if the records can be redelivered once `due` has passed. This excludes dead letters, and records
    /// that wait behind another record of the same key.
    pub(crate) fn is_timed(&self) -> bool {
        matches!(self.holder, Holder::Member(_) | Holder::Waiting)
    }

    /// Returns true if a member holds the records at time `now`: their ack deadline has not passed.
    pub(crate) fn is_held(&self, now: SpaceTime) -> bool {
        matches!(self.holder, Holder::Member(_)) && now < self.due
    }

    /// Returns true if a record of this parcel is below the offset `start`.
    pub(crate) fn is_below(&self, start: Offset) -> bool {
        self.runs.first().is_some_and(|run| run.first < start)
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.holder, Holder::Dead(_))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(15 + self.runs.len() * 24);
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

    pub(crate) fn decode(row: &[u8]) -> Result<Self, Malformed> {
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
        let mut runs: Vec<Run> = Vec::new();
        while !reader.is_empty() {
            let at = reader.position();
            let run = Run {
                first: Offset(reader.u64("first offset")?),
                count: reader.u32("count")?,
                deliveries: reader.u32("deliveries")?,
                key: reader.u64("key")?,
            };
            let follows = runs.last().is_none_or(|before| before.end() <= run.first);
            let fits = run.count > 0 && run.first.0.checked_add(u64::from(run.count)).is_some();
            if !follows || !fits || (run.key != 0 && run.count != 1) {
                return Err(Malformed { at, expected: "runs in order" });
            }
            runs.push(run);
        }
        if runs.is_empty() {
            return Err(Malformed { at: row.len(), expected: "at least one run" });
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
        Parcel { holder: Holder::Member(3), due: SpaceTime(9), runs }
    }

    #[test]
    fn taking_agrees_with_a_set() {
        let runs = vec![run(2, 3), run(7, 1), run(10, 4)];
        let all: Vec<u64> = runs.iter().flat_map(|run| run.first.0..run.end().0).collect();
        for first in 0..16 {
            for end in first..16_u64 {
                let mut parcel = parcel(runs.clone());
                let mut taken = Vec::new();
                let inside = all.iter().filter(|offset| (first..end).contains(*offset)).count();
                assert_eq!(parcel.holds(Offset(first), Offset(end)), inside as u64 == end - first, "{first}..{end}");
                parcel.take(Offset(first), Offset(end), &mut taken);
                let offsets = |runs: &[Run]| -> Vec<u64> { runs.iter().flat_map(|r| r.first.0..r.end().0).collect() };
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
        let dead = Parcel { holder: Holder::Dead("why".into()), due: NEVER, runs: vec![run(1, 2)] };
        assert_eq!(Parcel::decode(&dead.encode()).unwrap(), dead);
        for cut in 0..row.len() {
            assert!(Parcel::decode(&row[..cut]).is_err(), "{cut}");
        }
        assert!(Parcel::decode(&parcel(vec![run(4, 2), run(5, 1)]).encode()).is_err(), "overlapping runs");
    }
}
