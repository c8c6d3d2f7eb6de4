//! Lists of writes and reads for transactions.

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

/// Range and options of a scan within a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanOperation<'a> {
    /// Prefix of all keys to return.
    pub prefix: &'a [u8],
    /// Lowest key to return, in either direction.
    pub start: Option<&'a [u8]>,
    /// Exclusive upper bound of the keys to return, in either direction.
    pub end: Option<&'a [u8]>,
    /// Return the highest key first.
    pub reverse: bool,
    /// Return keys without values.
    pub keys_only: bool,
    /// Maximum number of pairs.
    pub limit: u32,
}

impl<'a> ScanOperation<'a> {
    /// Returns the range of keys as bounds.
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

/// A list of operations, which are encoded as they are added.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    bytes: Vec<u8>,
    count: u32,
    brings_data: bool,
}

impl Operations {
    /// Number of operations.
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

    /// Adds a put.
    pub fn put(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        check_value(value)?;
        self.brings_data = true;
        self.push(key.len() + value.len(), |out| encode_put_write(out, keyspace, key, value))
    }

    /// Adds a put that lives until a deadline and, with a lease, at most as long as the lease. Nothing of the
    /// transaction happens if the lease does not exist.
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

    /// Adds a touch, which gives a key another deadline; its value, revision and lease stay. The result reports
    /// whether the key exists.
    pub fn touch(&mut self, keyspace: KeyspaceId, key: &[u8], deadline: Deadline) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        let deadline = deadline.check()?;
        self.push(key.len(), |out| encode_touch_write(out, keyspace, key, deadline))
    }

    /// Adds a delete. The result reports whether the key existed.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.push(key.len(), |out| encode_delete_write(out, keyspace, key))
    }

    /// Adds an append. Nothing of the transaction happens unless the stream's next offset matches `expected`. Appends
    /// of producers belong into commits: a repeated one is answered with its first result, and the state does not keep
    /// the results of transactions.
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

    /// Adds an addition to a counter, which is stored as decimal digits, as in Redis. A key without a value counts as
    /// 0.
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

    /// Adds the removal of all keys with a prefix. The empty prefix clears the keyspace.
    pub fn delete_prefix(&mut self, keyspace: KeyspaceId, prefix: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(prefix)?;
        self.push(prefix.len(), |out| {
            encode_target(out, DELETE_PREFIX, keyspace);
            put_u32(out, prefix.len());
            out.extend_from_slice(prefix);
        })
    }

    /// Adds a read of a key.
    pub fn get(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.push(key.len(), |out| {
            encode_target(out, GET, keyspace);
            put_u32(out, key.len());
            out.extend_from_slice(key);
        })
    }

    /// Adds a read of a range of pairs.
    pub fn scan(&mut self, keyspace: KeyspaceId, scan: &ScanOperation<'_>) -> Result<&mut Self, CommandError> {
        let keys = [Some(scan.prefix), scan.start, scan.end];
        keys.into_iter().flatten().try_for_each(check_key)?;
        let bytes = keys.into_iter().flatten().map(<[u8]>::len).sum();
        self.push(bytes, |out| {
            encode_target(out, SCAN, keyspace);
            scan.encode(out);
        })
    }

    /// Adds an ack of records that a consumer group delivered. Nothing of the transaction happens unless the attempts
    /// hold all records named.
    pub fn ack(&mut self, group: GroupId, settlements: &[Settlement]) -> Result<&mut Self, CommandError> {
        self.settle(groups::WRITE_ACK, settlements, 0, |out| groups::encode_ack_rest(out, group, settlements))
    }

    /// Adds a nack of records that a consumer group delivered. Nothing of the transaction happens unless the attempts
    /// hold all records named.
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
