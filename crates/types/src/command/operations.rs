//! Lists of writes and reads, as commits and transactions carry them.

use std::ops::Bound;

use crate::{
    command::{
        AppendTerms, CommandError, ExpectedOffset,
        commit::{check_key, check_value, encode_append_write, encode_delete_write, encode_put_write},
        groups::{self, Again, Settlement},
        time::{Deadline, encode_put_until_write, encode_touch_write},
    },
    ids::{GroupId, KeyspaceId, LeaseId, StreamId},
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES},
    record::{Malformed, Reader, RecordBatch, put_u32},
};

pub(super) const ADD: u8 = 4;
pub(super) const DELETE_PREFIX: u8 = 6;
pub(super) const GET: u8 = 7;
pub(super) const SCAN: u8 = 8;

const REVERSE: u8 = 1;
const KEYS_ONLY: u8 = 2;
const HAS_START: u8 = 4;
const HAS_END: u8 = 8;

/// Which pairs a scan within a transaction reads: keys with the prefix, from `start` on, before `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanOperation<'a> {
    /// Only keys that begin with this.
    pub prefix: &'a [u8],
    /// The lowest key wanted, whichever the order.
    pub start: Option<&'a [u8]>,
    /// The first key above those wanted, whichever the order.
    pub end: Option<&'a [u8]>,
    /// Highest first.
    pub reverse: bool,
    /// Without values.
    pub keys_only: bool,
    /// At most so many pairs.
    pub limit: u32,
}

impl<'a> ScanOperation<'a> {
    /// The range of keys as bounds.
    #[must_use]
    pub fn bounds(&self) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
        (self.start.map_or(Bound::Unbounded, Bound::Included), self.end.map_or(Bound::Unbounded, Bound::Excluded))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.push(
            flag(self.reverse, REVERSE)
                | flag(self.keys_only, KEYS_ONLY)
                | flag(self.start.is_some(), HAS_START)
                | flag(self.end.is_some(), HAS_END),
        );
        out.extend_from_slice(&self.limit.to_le_bytes());
        for key in [Some(self.prefix), self.start, self.end].into_iter().flatten() {
            put_u32(out, key.len());
            out.extend_from_slice(key);
        }
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let at = reader.position();
        let flags = reader.u8("scan flags")?;
        if flags & !(REVERSE | KEYS_ONLY | HAS_START | HAS_END) != 0 {
            return Err(Malformed { at, expected: "known scan flags" });
        }
        let limit = reader.u32("scan limit")?;
        let mut key = || {
            let len = reader.u32("key length")? as usize;
            reader.take(len, "key")
        };
        let prefix = key()?;
        let start = (flags & HAS_START != 0).then(&mut key).transpose()?;
        let end = (flags & HAS_END != 0).then(&mut key).transpose()?;
        Ok(Self { prefix, start, end, reverse: flags & REVERSE != 0, keys_only: flags & KEYS_ONLY != 0, limit })
    }
}

/// A list of operations, encoded as it grows.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    bytes: Vec<u8>,
    count: u32,
    brings_data: bool,
}

impl Operations {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn brings_data(&self) -> bool {
        self.brings_data
    }

    /// Sets a key.
    pub fn put(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        check_value(value)?;
        self.brings_data = true;
        self.push(key.len() + value.len(), |out| encode_put_write(out, keyspace, key, value))
    }

    /// Sets a key that lives until a deadline and, with a lease, at most as long as that. Nothing happens if there is
    /// no such lease.
    pub fn put_until(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        value: &[u8],
        deadline: Deadline,
        lease: Option<LeaseId>,
    ) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        check_value(value)?;
        let deadline = deadline.check()?;
        self.brings_data = true;
        self.push(key.len() + value.len(), |out| encode_put_until_write(out, keyspace, key, value, deadline, lease))
    }

    /// Gives a key another deadline; value, revision and lease stay. Says whether there is such a key.
    pub fn touch(&mut self, keyspace: KeyspaceId, key: &[u8], deadline: Deadline) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        let deadline = deadline.check()?;
        self.push(key.len(), |out| encode_touch_write(out, keyspace, key, deadline))
    }

    /// Removes a key; in a transaction says whether there was one.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.push(key.len(), |out| encode_delete_write(out, keyspace, key))
    }

    /// Appends records; everything fails unless the stream's next offset is as `expected`. A producer's
    /// append goes into a commit: it may be answered with what came of it before, and of a transaction
    /// nobody remembers which list was carried out and what was read.
    pub fn append(
        &mut self,
        stream: StreamId,
        expected: impl Into<ExpectedOffset>,
        batch: &RecordBatch,
    ) -> Result<&mut Self, CommandError> {
        let terms: AppendTerms<'_> = expected.into().into();
        let mut encoded = Ok(());
        self.brings_data = true;
        self.push(batch.bytes().len(), |out| encoded = encode_append_write(out, stream, &terms, batch))?;
        encoded.map(|()| self)
    }

    /// Adds to a counter: a value in decimal digits, as Redis keeps it. A key without a value counts as 0.
    pub fn add(&mut self, keyspace: KeyspaceId, key: &[u8], delta: i64) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.brings_data = true;
        self.push(key.len(), |out| {
            encode_target(out, ADD, keyspace);
            out.extend_from_slice(&delta.to_le_bytes());
            put_u32(out, key.len());
            out.extend_from_slice(key);
        })
    }

    /// Removes all keys with a prefix; the empty one clears the keyspace.
    pub fn delete_prefix(&mut self, keyspace: KeyspaceId, prefix: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(prefix)?;
        self.push(prefix.len(), |out| {
            encode_target(out, DELETE_PREFIX, keyspace);
            put_u32(out, prefix.len());
            out.extend_from_slice(prefix);
        })
    }

    /// Reads a key.
    pub fn get(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.push(key.len(), |out| {
            encode_target(out, GET, keyspace);
            put_u32(out, key.len());
            out.extend_from_slice(key);
        })
    }

    /// Reads a range of pairs.
    pub fn scan(&mut self, keyspace: KeyspaceId, scan: &ScanOperation<'_>) -> Result<&mut Self, CommandError> {
        let keys = [Some(scan.prefix), scan.start, scan.end];
        keys.into_iter().flatten().try_for_each(check_key)?;
        let bytes = keys.into_iter().flatten().map(<[u8]>::len).sum();
        self.push(bytes, |out| {
            encode_target(out, SCAN, keyspace);
            scan.encode(out);
        })
    }

    /// Acks what a consumer group delivered; nothing happens unless the attempts hold all that is named.
    pub fn ack(&mut self, group: GroupId, settlements: &[Settlement]) -> Result<&mut Self, CommandError> {
        self.settle(groups::WRITE_ACK, settlements, 0, |out| groups::encode_ack_rest(out, group, settlements))
    }

    /// Gives back what a consumer group delivered; nothing happens unless the attempts hold all that is named.
    pub fn nack(
        &mut self,
        group: GroupId,
        again: Again,
        reason: &str,
        settlements: &[Settlement],
    ) -> Result<&mut Self, CommandError> {
        self.settle(groups::WRITE_NACK, settlements, reason.len(), |out| {
            groups::encode_nack_rest(out, group, again, reason, settlements)
        })
    }

    fn settle(
        &mut self,
        kind: u8,
        settlements: &[Settlement],
        extra_bytes: usize,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>,
    ) -> Result<&mut Self, CommandError> {
        let before = self.bytes.len();
        let mut encoded = Ok(());
        self.push(groups::settlements_len(settlements) + extra_bytes, |out| {
            out.push(kind);
            encoded = encode(out);
        })?;
        if let Err(error) = encoded {
            self.bytes.truncate(before);
            self.count -= 1;
            return Err(error);
        }
        Ok(self)
    }

    fn push(&mut self, bytes: usize, encode: impl FnOnce(&mut Vec<u8>)) -> Result<&mut Self, CommandError> {
        if self.count as usize >= MAX_COMMIT_WRITES || self.bytes.len() + bytes + 64 > MAX_COMMAND_BYTES {
            return Err(CommandError::CommitTooLarge);
        }
        self.count += 1;
        encode(&mut self.bytes);
        Ok(self)
    }
}

fn encode_target(out: &mut Vec<u8>, kind: u8, keyspace: KeyspaceId) {
    out.push(kind);
    out.extend_from_slice(&keyspace.0.to_le_bytes());
}
