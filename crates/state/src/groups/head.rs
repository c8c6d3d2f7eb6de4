//! A consumer group's head: its identity, configuration, cursor and counters.

use std::sync::Arc;

use thalweg_store::WriteBatch;
use thalweg_types::{
    Attempt, GroupId, Offset, StreamId,
    codec::{Malformed, Reader},
    command::{check_name, groups::GroupConfig},
};

use crate::{error::MachineError, keys};

/// Upper bound of all counters of a group, so that adding to them never overflows.
pub(crate) const MAX_COUNTER: u64 = 1 << 62;

/// Stream id in the head row of a deleted group, until the group's other rows are removed. No stream has this id.
pub(crate) const DELETED: StreamId = StreamId(0);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) name: Arc<str>,
    pub(crate) stream: StreamId,
    pub(crate) config: GroupConfig,
    /// Lowest offset that the group has never delivered.
    pub(crate) cursor: Offset,
    pub(crate) last_attempt: Attempt,
    /// Number of deliveries of records to members of the group, including redeliveries.
    pub(crate) delivered: u64,
    pub(crate) acked: u64,
    /// Number of records moved to the group's dead-letter stream.
    pub(crate) dead: u64,
    /// Number of records that failed for good while the group had no dead-letter stream, and so were dropped.
    pub(crate) dropped: u64,
    /// Number of deliveries of records that had been delivered before.
    pub(crate) redelivered: u64,
}

impl Head {
    pub(crate) fn new(name: &str, stream: StreamId, config: GroupConfig, cursor: Offset) -> Self {
        let name = name.into();
        Self {
            name,
            stream,
            config,
            cursor,
            last_attempt: Attempt(0),
            delivered: 0,
            acked: 0,
            dead: 0,
            dropped: 0,
            redelivered: 0,
        }
    }

    pub(crate) fn write(&self, id: GroupId, batch: &mut WriteBatch) {
        let mut row = Vec::with_capacity(128);
        row.extend_from_slice(&self.stream.0.to_le_bytes());
        let counters = [self.delivered, self.acked, self.dead, self.dropped, self.redelivered];
        for field in [self.cursor.0, self.last_attempt.0].into_iter().chain(counters) {
            row.extend_from_slice(&field.to_le_bytes());
        }
        self.config.encode(&mut row);
        batch.put(&[&keys::group_head(id)], &[&row, self.name.as_bytes()]);
    }

    pub(crate) fn decode(key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        let corrupt = |message| MachineError::corrupt("consumer group", key, message);
        let head = Self::decode_fields(row).map_err(|malformed| corrupt(malformed.expected))?;
        let counters = [head.delivered, head.acked, head.dead, head.dropped, head.redelivered];
        if [head.cursor.0, head.last_attempt.0].into_iter().chain(counters).any(|counter| counter > 2 * MAX_COUNTER) {
            return Err(corrupt("a counter is out of range"));
        }
        Ok(head)
    }

    fn decode_fields(row: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(row, 0);
        let stream = StreamId(reader.u32("stream")?);
        let cursor = Offset(reader.u64("cursor")?);
        let last_attempt = Attempt(reader.u64("last attempt")?);
        let mut counter = || reader.u64("counter");
        let (delivered, acked, dead, dropped, redelivered) =
            (counter()?, counter()?, counter()?, counter()?, counter()?);
        let config = GroupConfig::decode(&mut reader)?;
        let at = reader.position();
        let name = std::str::from_utf8(reader.rest()).ok().filter(|name| check_name(name).is_ok());
        let name = name.ok_or(Malformed { at, expected: "a well-formed name" })?.into();
        Ok(Self { name, stream, config, cursor, last_attempt, delivered, acked, dead, dropped, redelivered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_store::Change;

    #[test]
    fn layout_is_pinned() {
        let mut head = Head::new("name", StreamId(2), GroupConfig::default(), Offset(3));
        (head.last_attempt, head.delivered, head.acked, head.dead, head.dropped) = (Attempt(4), 5, 6, 7, 8);
        head.redelivered = 9;
        let mut batch = WriteBatch::new();
        head.write(GroupId(9), &mut batch);
        let mut row = b"\x02\0\0\0".to_vec();
        [3_u64, 4, 5, 6, 7, 8, 9].iter().for_each(|field| row.extend_from_slice(&field.to_le_bytes()));
        row.extend_from_slice(b"\0\x80\xc3\xc9\x01\0\0\0\0\0\0\0\0\x20\x4e\0\0\0\0name");
        assert_eq!(batch.changes().next(), Some(Change::Put(b"\x0e\0\0\0\x09", &row)));
        assert_eq!(Head::decode(b"k", &row).unwrap(), head);
        assert!((0..row.len() - 4).all(|cut| Head::decode(b"k", &row[..cut]).is_err()));
    }
}
