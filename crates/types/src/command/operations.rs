//! Lists of writes and reads from which transactions are built.

use crate::{
    command::{
        append::{AppendConditions, ExpectedOffset},
        checks::{check_key, check_value},
        error::CommandError,
        groups::{Redelivery, Settlement, SettlementKind, settlements_len},
        time::Deadline,
        write::{
            ScanOperation, encode_add, encode_append_write, encode_delete_prefix, encode_delete_write, encode_get,
            encode_put_until_write, encode_put_write, encode_scan, encode_settle, encode_touch_write,
        },
    },
    ids::{GroupId, KeyspaceId, LeaseId, StreamId},
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES, MAX_TRANSACTION_SCANS},
    record::RecordBatch,
};

/// A list of a transaction's operations, each encoded when the caller adds it.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    bytes: Vec<u8>,
    count: u32,
    brings_data: bool,
    /// Number of operations in the list that only read.
    reads: u32,
    scans: u32,
    /// Keyspace and length in bytes of each deleted prefix.
    deleted_prefixes: Vec<(KeyspaceId, usize)>,
}

impl Operations {
    /// Number of operations in the list.
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

    pub(super) fn scans(&self) -> u32 {
        self.scans
    }

    pub(super) fn only_reads(&self) -> bool {
        self.reads == self.count
    }

    /// Adds a put, which sets a key to a value.
    pub fn put(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        check_value(value)?;
        self.brings_data = true;
        self.push(key.len() + value.len(), |out| encode_put_write(out, keyspace, key, value))
    }

    /// Adds a put whose key lives until a deadline and, with a lease, at most as long as the lease. If the lease does
    /// not exist, the transaction changes nothing.
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

    /// Adds a touch, which gives a key another deadline. The key's value, revision and lease stay. The result of the
    /// operation states whether the key exists.
    pub fn touch(&mut self, keyspace: KeyspaceId, key: &[u8], deadline: Deadline) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        let deadline = deadline.check()?;
        self.push(key.len(), |out| encode_touch_write(out, keyspace, key, deadline))
    }

    /// Adds a delete of a key. The result of the operation states whether the key existed.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.push(key.len(), |out| encode_delete_write(out, keyspace, key))
    }

    /// Adds an append of records to a stream. The transaction changes nothing unless the stream's next offset matches
    /// `expected`. Producers append in commits instead, because the state keeps the results of commits for repeated
    /// appends, but not those of transactions.
    pub fn append(
        &mut self,
        stream: StreamId,
        expected: impl Into<ExpectedOffset>,
        batch: &RecordBatch,
    ) -> Result<&mut Self, CommandError> {
        let conditions: AppendConditions<'_> = expected.into().into();
        self.brings_data = true;
        self.try_push(batch.bytes().len(), |out| encode_append_write(out, stream, &conditions, batch))
    }

    /// Adds an addition of `delta` to a counter. The counter's value is stored as decimal digits, as in Redis. A key
    /// without a value counts as 0.
    pub fn add(&mut self, keyspace: KeyspaceId, key: &[u8], delta: i64) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.brings_data = true;
        self.push(key.len(), |out| encode_add(out, keyspace, key, delta))
    }

    /// Adds a removal of all keys with a prefix. The empty prefix removes all keys of the keyspace.
    pub fn delete_prefix(&mut self, keyspace: KeyspaceId, prefix: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(prefix)?;
        self.push(prefix.len(), |out| encode_delete_prefix(out, keyspace, prefix))?;
        self.deleted_prefixes.push((keyspace, prefix.len()));
        Ok(self)
    }

    /// Returns the keyspace and the length in bytes of each prefix that the list deletes.
    pub(super) fn deleted_prefixes(&self) -> &[(KeyspaceId, usize)] {
        &self.deleted_prefixes
    }

    /// Adds a read of a key's value.
    pub fn get(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.push(key.len(), |out| encode_get(out, keyspace, key))?;
        self.reads += 1;
        Ok(self)
    }

    /// Adds a read of a range of pairs of key and value. A transaction has at most
    /// [`MAX_TRANSACTION_SCANS`](crate::limits::MAX_TRANSACTION_SCANS) scans.
    pub fn scan(&mut self, keyspace: KeyspaceId, scan: &ScanOperation<'_>) -> Result<&mut Self, CommandError> {
        let keys = [Some(scan.prefix), scan.start, scan.end];
        keys.into_iter().flatten().try_for_each(check_key)?;
        let bytes = keys.into_iter().flatten().map(<[u8]>::len).sum();
        if self.scans as usize >= MAX_TRANSACTION_SCANS {
            return Err(CommandError::TooManyScans);
        }
        self.push(bytes, |out| encode_scan(out, keyspace, scan))?;
        self.scans += 1;
        self.reads += 1;
        Ok(self)
    }

    /// Adds an ack of records that a consumer group has delivered. Each settlement names an attempt to deliver records,
    /// and records of this attempt. The transaction changes nothing if a named record has been acked or nacked before,
    /// or if the ack deadline of its attempt has passed.
    pub fn ack(&mut self, group: GroupId, settlements: &[Settlement]) -> Result<&mut Self, CommandError> {
        self.settle(group, SettlementKind::Ack, 0, settlements)
    }

    /// Adds a nack of records that a consumer group has delivered. Each settlement names an attempt to deliver records,
    /// and records of this attempt. The transaction changes nothing if a named record has been acked or nacked before,
    /// or if the ack deadline of its attempt has passed.
    pub fn nack(
        &mut self,
        group: GroupId,
        again: Redelivery,
        reason: &str,
        settlements: &[Settlement],
    ) -> Result<&mut Self, CommandError> {
        self.settle(group, SettlementKind::Nack { again, reason }, reason.len(), settlements)
    }

    fn settle(
        &mut self,
        group: GroupId,
        how: SettlementKind<'_>,
        extra_bytes: usize,
        settlements: &[Settlement],
    ) -> Result<&mut Self, CommandError> {
        self.try_push(settlements_len(settlements) + extra_bytes, |out| encode_settle(out, group, how, settlements))
    }

    fn push(&mut self, bytes: usize, encode: impl FnOnce(&mut Vec<u8>)) -> Result<&mut Self, CommandError> {
        self.try_push(bytes, |out| {
            encode(out);
            Ok(())
        })
    }

    /// Adds the operation that `encode` writes. Returns an error without adding the operation if the list would have
    /// too many operations or bytes, or if `encode` fails. A failing `encode` must write nothing.
    fn try_push(
        &mut self,
        bytes: usize,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>,
    ) -> Result<&mut Self, CommandError> {
        if self.count as usize >= MAX_COMMIT_WRITES || self.bytes.len() + bytes + 64 > MAX_COMMAND_BYTES {
            return Err(CommandError::CommitTooLarge);
        }
        encode(&mut self.bytes)?;
        self.count += 1;
        Ok(self)
    }
}
