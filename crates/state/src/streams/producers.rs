//! Rows of producers: the last append of each producer to a stream, and the results of recent ones.
//!
//! Owns: the rows and their reads. Does not own: the effect of an append on them (`producing`).
//!
//! ```text
//! head row   0d | stream u32 BE | 0 | id                     next u64 | last_time u64 | epoch u32 | used u8
//! result row 0d | stream u32 BE | 1 | id_len u8 | id | slot  sequence u64 | revision u64 | first u64 | count u32
//! ```
//! Values are little-endian. `slot` is the sequence modulo 64, so the results are a ring that is never cleaned: it
//! contains those of the sequences `next - 64 .. next`. Other slots are stale and never read, because sequences are
//! dense from 0 in every epoch. `used` is the number of slots ever written. One append writes 21 + 28 bytes,
//! regardless of the number of results kept.

use std::ops::ControlFlow;

use thalweg_store::{Direction, View};
use thalweg_types::{
    Offset, Revision, SpaceTime, StreamId,
    command::{ProducerRefusal, ProducerStamp, check_producer_id},
    info::Producer,
    limits::{PRODUCER_MEMORY, PRODUCER_RESULTS},
};

use crate::{
    error::MachineError,
    keys::{self, KeyRange},
};

const HEAD_LEN: usize = 21;
const RESULT_LEN: usize = 28;

/// State of an idempotent producer in a stream, as stored in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProducerRow {
    /// Sequence that the producer's next append must have.
    pub(crate) next: u64,
    /// Time at which the producer last appended or was opened.
    pub(crate) last_time: SpaceTime,
    pub(crate) epoch: u32,
    /// Number of result slots that were ever written and must be removed with the producer. `used >= min(next, 64)`.
    pub(crate) used: u8,
}

/// Stored result of one append of a producer. The client gets it again if it repeats the append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProducerResult {
    pub(crate) sequence: u64,
    pub(crate) revision: Revision,
    pub(crate) first: Offset,
    pub(crate) count: u32,
}

/// Classification of an append by its producer id, epoch and sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendOrder {
    /// The append has the sequence number that the producer's next append must have.
    Next,
    /// The append is a repetition whose result is still kept.
    Duplicate,
    Refused(ProducerRefusal),
}

impl ProducerRow {
    /// Computes the producer's row after an append with this stamp (producer id, epoch and sequence).
    pub(crate) fn after(known: Option<Self>, stamp: &ProducerStamp<'_>, time: SpaceTime) -> Self {
        let next = stamp.sequence + 1;
        let used = known.map_or(0, |row| row.used).max(next.min(PRODUCER_RESULTS) as u8);
        Self { next, last_time: time, epoch: stamp.epoch, used }
    }

    /// Returns true if the stream still remembers the producer at time `now`. The producer's row can exist for longer.
    pub(crate) fn is_known(&self, now: SpaceTime) -> bool {
        self.last_time >= now.minus(PRODUCER_MEMORY)
    }

    /// Classifies an append with this stamp (producer id, epoch and sequence) at time `now`, given the producer's row
    /// if there is one. While the row exists, lower epochs stay fenced, also after the stream has forgotten the
    /// producer's appends.
    pub(crate) fn classify_append(stored: Option<Self>, now: SpaceTime, stamp: &ProducerStamp<'_>) -> AppendOrder {
        let refused = AppendOrder::Refused;
        if let Some(row) = stored.filter(|row| stamp.epoch < row.epoch) {
            return refused(ProducerRefusal::Fenced { epoch: row.epoch });
        }
        let Some(row) = stored.filter(|row| row.is_known(now)) else {
            return if stamp.sequence == 0 { AppendOrder::Next } else { refused(ProducerRefusal::Unknown) };
        };
        let next = if stamp.epoch > row.epoch { 0 } else { row.next };
        let oldest = next.saturating_sub(PRODUCER_RESULTS);
        match stamp.sequence {
            sequence if sequence == next => AppendOrder::Next,
            sequence if sequence > next => refused(ProducerRefusal::SequenceGap { expected: next }),
            sequence if sequence >= oldest => AppendOrder::Duplicate,
            _ => refused(ProducerRefusal::DuplicateTooOld { oldest }),
        }
    }

    pub(crate) fn encode(&self) -> [u8; HEAD_LEN] {
        let mut row = [0; HEAD_LEN];
        row[..8].copy_from_slice(&self.next.to_le_bytes());
        row[8..16].copy_from_slice(&self.last_time.0.to_le_bytes());
        row[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        row[20] = self.used;
        row
    }

    pub(crate) fn decode(key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        let wrong = |_| MachineError::corrupt("producer", key, "row of a wrong length");
        let row: &[u8; HEAD_LEN] = row.try_into().map_err(wrong)?;
        Ok(Self {
            next: u64::from_le_bytes(row[..8].try_into().expect("8 bytes")),
            last_time: SpaceTime(u64::from_le_bytes(row[8..16].try_into().expect("8 bytes"))),
            epoch: u32::from_le_bytes(row[16..20].try_into().expect("4 bytes")),
            used: row[20],
        })
    }
}

/// Returns the number of the slot that stores the result of the append with this sequence.
pub(crate) fn slot(sequence: u64) -> u8 {
    (sequence % PRODUCER_RESULTS) as u8
}

impl ProducerResult {
    pub(crate) fn encode(&self) -> [u8; RESULT_LEN] {
        let mut row = [0; RESULT_LEN];
        row[..8].copy_from_slice(&self.sequence.to_le_bytes());
        row[8..16].copy_from_slice(&self.revision.0.to_le_bytes());
        row[16..24].copy_from_slice(&self.first.0.to_le_bytes());
        row[24..].copy_from_slice(&self.count.to_le_bytes());
        row
    }

    pub(crate) fn decode(key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        let wrong = |_| MachineError::corrupt("producer result", key, "row of a wrong length");
        let row: &[u8; RESULT_LEN] = row.try_into().map_err(wrong)?;
        let u64_at = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().expect("8 bytes"));
        Ok(Self {
            sequence: u64_at(0),
            revision: Revision(u64_at(8)),
            first: Offset(u64_at(16)),
            count: u32::from_le_bytes(row[24..].try_into().expect("4 bytes")),
        })
    }
}

/// Calls `each` with every producer of a stream in the order of ids, including producers that are no longer remembered.
pub(crate) fn visit(
    view: &dyn View,
    stream: StreamId,
    each: &mut dyn FnMut(&str, ProducerRow),
) -> Result<(), MachineError> {
    let prefix = keys::producer_heads(stream);
    crate::rows::load_rows(view, &KeyRange::with_prefix(&prefix), |key, row| {
        let id = std::str::from_utf8(&key[prefix.len()..]).ok().filter(|id| check_producer_id(id).is_ok());
        let id = id.ok_or_else(|| MachineError::corrupt("producer", key, "no well-formed id"))?;
        each(id, ProducerRow::decode(key, row)?);
        Ok(())
    })
}

/// Returns the producers that the stream remembers at time `now`, in the order of ids.
pub(crate) fn list(view: &dyn View, stream: StreamId, now: SpaceTime) -> Result<Vec<Producer>, MachineError> {
    let mut found = Vec::new();
    visit(view, stream, &mut |id, row| {
        if row.is_known(now) {
            found.push(row.describe(id));
        }
    })?;
    Ok(found)
}

/// Returns the keys of at most `max` rows of a stream's producers, in any order.
pub(crate) fn some_keys(view: &dyn View, stream: StreamId, max: usize) -> Result<Vec<Vec<u8>>, MachineError> {
    let range = KeyRange::with_prefix(&keys::producers(stream));
    let mut found = Vec::new();
    if max == 0 {
        return Ok(found);
    }
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, _| {
        found.push(key.to_vec());
        if found.len() == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

impl ProducerRow {
    pub(crate) fn describe(&self, id: &str) -> Producer {
        Producer { epoch: self.epoch, next_sequence: self.next, last_time: self.last_time, id: id.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_pinned() {
        let row = ProducerRow { next: 1, last_time: SpaceTime(2), epoch: 3, used: 4 };
        let bytes = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x04";
        assert_eq!((&row.encode(), ProducerRow::decode(b"", bytes).unwrap()), (bytes, row));
        let result = ProducerResult { sequence: 1, revision: Revision(2), first: Offset(3), count: 4 };
        let bytes = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0";
        assert_eq!((&result.encode(), ProducerResult::decode(b"", bytes).unwrap()), (bytes, result));
        assert!(ProducerRow::decode(b"", &bytes[1..]).is_err());
        assert!(ProducerResult::decode(b"", &bytes[1..]).is_err());
    }

    #[test]
    fn a_stamp_stands_where_its_numbers_say() {
        let row = Some(ProducerRow { next: 100, epoch: 5, ..ProducerRow::default() });
        let now = SpaceTime(PRODUCER_MEMORY.as_micros() as u64);
        let at = |now, row, epoch, sequence| {
            ProducerRow::classify_append(row, now, &ProducerStamp { id: "p", epoch, sequence })
        };
        let standing = |row, epoch, sequence| at(now, row, epoch, sequence);
        let refused = AppendOrder::Refused;
        assert_eq!(standing(None, 9, 0), AppendOrder::Next);
        assert_eq!(standing(None, 0, 1), refused(ProducerRefusal::Unknown));
        assert_eq!(standing(row, 5, 100), AppendOrder::Next);
        assert_eq!(standing(row, 5, 101), refused(ProducerRefusal::SequenceGap { expected: 100 }));
        assert_eq!(standing(row, 5, 99), AppendOrder::Duplicate);
        assert_eq!(standing(row, 5, 36), AppendOrder::Duplicate);
        assert_eq!(standing(row, 5, 35), refused(ProducerRefusal::DuplicateTooOld { oldest: 36 }));
        assert_eq!(standing(row, 4, 100), refused(ProducerRefusal::Fenced { epoch: 5 }));
        assert_eq!(standing(row, 6, 0), AppendOrder::Next);
        assert_eq!(standing(row, 6, 100), refused(ProducerRefusal::SequenceGap { expected: 0 }));
        let later = SpaceTime(now.0 + 1);
        assert_eq!(at(later, row, 4, 0), refused(ProducerRefusal::Fenced { epoch: 5 }), "also when it is forgotten");
        assert_eq!(at(later, row, 5, 100), refused(ProducerRefusal::Unknown));
        assert_eq!((at(later, row, 5, 0), at(later, row, 6, 0)), (AppendOrder::Next, AppendOrder::Next));
    }
}
