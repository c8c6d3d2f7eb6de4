//! Writes of commits, and operations of transactions.
//!
//! Owns: the kinds of writes, their encoders, and their decoder. Does not own: the commands around them (`commit`,
//! `transaction`), or the encoding of records (`record`).
//!
//! Their codec is written by hand, because it is on the path of every put and append: a decoded write borrows its key,
//! value and batch of records, and contains the byte offset at which the value or batch begins. [`WRITES`] and
//! [`OPERATIONS`] describe the bytes in the notation of `docs/formats/command.md`; a test compares them with that
//! document, and builds commands from it.

use std::ops::Bound;

use crate::{
    codec::{Field, Malformed, Reader, put_bytes, put_checked, put_u32, u32_bytes},
    command::{
        append::{AppendConditions, EncodedStamp, check_producer_id},
        error::CommandError,
        groups::{Settle, Settlement, SettlementKind},
        time::Deadline,
    },
    ids::{GroupId, KeyspaceId, LeaseId, Offset, StreamId},
    record::RecordBatch,
};

/// First byte of an encoded put, which identifies the kind of write.
pub(super) const PUT: u8 = 1;
/// Number of bytes between the first byte of an encoded put and its key. They contain the keyspace, the length of the
/// key and the length of the value.
pub(super) const PUT_SIZES: usize = 12;
const DELETE: u8 = 2;
const APPEND: u8 = 3;
const ADD: u8 = 4;
const DELETE_PREFIX: u8 = 6;
const GET: u8 = 7;
const SCAN: u8 = 8;
const PUT_UNTIL: u8 = 16;
const TOUCH: u8 = 17;
const APPEND_PRODUCED: u8 = 32;
const ACK: u8 = 48;
const NACK: u8 = 49;

/// Layouts of the writes of a commit, in the notation of `docs/formats/command.md`.
pub(super) const WRITES: &str = "\
    1 put (keyspace u32, key_len u32, value_len u32, key key_len × u8, value value_len × u8), \
    2 delete (keyspace u32, key bytes), \
    3 append (stream u32, expected u64, count u32, batch bytes), \
    16 put until (keyspace u32, key_len u32, value_len u32, deadline deadline, lease u64, key key_len × u8, \
    value value_len × u8), \
    17 touch (keyspace u32, key_len u32, deadline deadline, key key_len × u8), \
    32 append of a producer (stream u32, expected u64, stamp stamp, count u32, batch bytes), \
    48 ack (group u32, settlements [settlement]), \
    49 nack (group u32, again again, reason reason, settlements [settlement])";

/// Layouts of the operations of a transaction, in the notation of `docs/formats/command.md`.
pub(super) const OPERATIONS: &str = "write, 4 add (keyspace u32, delta i64, key bytes), \
    6 delete prefix (keyspace u32, prefix bytes), 7 get (keyspace u32, key bytes), 8 scan (keyspace u32, scan scan)";

/// Name, in decoding errors, of the position after the last byte of a command.
const END: &str = "end of the command";

const REVERSE: u8 = 1;
const KEYS_ONLY: u8 = 2;
const HAS_START: u8 = 4;
const HAS_END: u8 = 8;

/// Range and options of a scan (a read of a range of pairs of key and value) within a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanOperation<'a> {
    /// Prefix that every returned key must have.
    pub prefix: &'a [u8],
    /// Inclusive lower bound of the keys to return, in both directions of the scan.
    pub start: Option<&'a [u8]>,
    /// Exclusive upper bound of the keys to return, in both directions of the scan.
    pub end: Option<&'a [u8]>,
    /// True if the scan returns the highest key first.
    pub reverse: bool,
    /// True if the scan returns only keys, without values.
    pub keys_only: bool,
    /// Maximum number of pairs to return.
    pub limit: u32,
}

impl<'a> ScanOperation<'a> {
    /// Returns the bounds of the keys that `start` and `end` determine. The prefix does not affect these bounds.
    #[must_use]
    pub fn bounds(&self) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
        (self.start.map_or(Bound::Unbounded, Bound::Included), self.end.map_or(Bound::Unbounded, Bound::Excluded))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.push(
            flag(self.reverse, REVERSE)
                | flag(self.keys_only, KEYS_ONLY)
                | flag(self.start.is_some(), HAS_START)
                | flag(self.end.is_some(), HAS_END),
        );
        out.extend_from_slice(&self.limit.to_le_bytes());
        for key in [Some(self.prefix), self.start, self.end].into_iter().flatten() {
            put_bytes(out, key);
        }
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let at = reader.position();
        let flags = reader.u8("scan flags")?;
        if flags & !(REVERSE | KEYS_ONLY | HAS_START | HAS_END) != 0 {
            return Err(Malformed { at, expected: "known scan flags" });
        }
        let limit = reader.u32("scan limit")?;
        let mut key = || <&[u8]>::take(reader, "key");
        let prefix = key()?;
        let start = (flags & HAS_START != 0).then(&mut key).transpose()?;
        let end = (flags & HAS_END != 0).then(&mut key).transpose()?;
        Ok(Self { prefix, start, end, reverse: flags & REVERSE != 0, keys_only: flags & KEYS_ONLY != 0, limit })
    }
}

/// A write of a commit, or an operation of a transaction. Fields whose names end with `_at` are byte offsets within the
/// encoded command. [`Add`](Self::Add), [`DeletePrefix`](Self::DeletePrefix), [`Get`](Self::Get) and
/// [`Scan`](Self::Scan) read the state and are malformed in a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// Sets a key to a value.
    Put {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to set.
        key: &'a [u8],
        /// Value to set.
        value: &'a [u8],
        /// Byte offset of the value within the encoded command.
        value_at: usize,
    },
    /// Removes a key.
    Delete {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to remove.
        key: &'a [u8],
    },
    /// Sets a key to a value, until a deadline.
    PutUntil {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to set.
        key: &'a [u8],
        /// Value to set.
        value: &'a [u8],
        /// Byte offset of the value within the encoded command.
        value_at: usize,
        /// Deadline of the key.
        deadline: Deadline,
        /// Lease that the key is attached to: the key lives at most as long as the lease.
        lease: Option<LeaseId>,
    },
    /// Gives a key another deadline, without changing its value.
    Touch {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key whose deadline changes.
        key: &'a [u8],
        /// New deadline of the key, at which it expires.
        deadline: Deadline,
    },
    /// Appends records to a stream.
    Append {
        /// Id of the stream to which the records are appended.
        stream: StreamId,
        /// Offset that the stream's next offset must equal, otherwise the commit fails; `None` for any offset.
        expected: Option<Offset>,
        /// Stamp (identity and sequence number) of the producer. With a stamp, the stream executes the append only
        /// once, even if the producer sends it several times.
        producer: Option<EncodedStamp<'a>>,
        /// Number of appended records.
        count: u32,
        /// Encoded batch of the records to append.
        batch: &'a [u8],
        /// Byte offset of the batch within the encoded command.
        batch_at: usize,
    },
    /// Adds an amount to a counter.
    Add {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key of the counter.
        key: &'a [u8],
        /// Amount to add to the counter; negative amounts subtract.
        delta: i64,
    },
    /// Removes all keys with a prefix.
    DeletePrefix {
        /// Keyspace of the keys.
        keyspace: KeyspaceId,
        /// Prefix of the keys to remove.
        prefix: &'a [u8],
    },
    /// Reads the value of a key.
    Get {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to read.
        key: &'a [u8],
    },
    /// Reads a range of pairs of key and value.
    Scan {
        /// Keyspace of the pairs.
        keyspace: KeyspaceId,
        /// Range and options of the scan.
        scan: ScanOperation<'a>,
    },
    /// Acks or nacks records that a consumer group delivered. The commit fails if one of the records has been acked or
    /// nacked before, or if the ack deadline of its attempt (delivery) has passed.
    Settle(Settle<'a>),
}

/// Iterator over the writes of a commit, or over a transaction's list of operations.
#[derive(Clone, Debug)]
pub struct Writes<'a> {
    reader: Reader<'a>,
    left: u32,
    /// True if the command ends with this list of writes, so that bytes after the list are an error.
    is_last: bool,
}

impl<'a> Writes<'a> {
    pub(super) fn inner(reader: Reader<'a>, count: u32) -> Self {
        Self { reader, left: count, is_last: false }
    }

    pub(super) fn last(reader: Reader<'a>, count: u32) -> Result<Self, Malformed> {
        if count == 0 {
            reader.expect_end(END)?;
        }
        Ok(Self { reader, left: count, is_last: true })
    }

    pub(super) fn into_reader(self) -> Reader<'a> {
        self.reader
    }
}

impl<'a> Iterator for Writes<'a> {
    type Item = Result<Write<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let mut write = decode_write(&mut self.reader);
        if self.left == 0 && self.is_last && write.is_ok() {
            write = self.reader.expect_end(END).and(write);
        }
        if write.is_err() {
            self.left = 0;
        }
        Some(write)
    }
}

/// Appends an encoded put (a write that sets a key) to `out`.
#[inline]
pub(super) fn encode_put_write(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    encode_put_after(out, [PUT], keyspace, key, value);
}

/// Appends the bytes `before` and then a put to `out`. The last byte of `before` must be the byte that identifies a
/// put. The function reserves memory for all bytes at once, and appends all fields of a fixed length together, because
/// each separate append to a buffer checks the buffer's size.
#[inline]
pub(super) fn encode_put_after<const BEFORE: usize>(
    out: &mut Vec<u8>,
    before: [u8; BEFORE],
    keyspace: KeyspaceId,
    key: &[u8],
    value: &[u8],
) {
    out.reserve(BEFORE + PUT_SIZES + key.len() + value.len());
    out.extend_from_slice(&before);
    let mut sizes = [0; PUT_SIZES];
    sizes[..4].copy_from_slice(&keyspace.0.to_le_bytes());
    sizes[4..8].copy_from_slice(&u32_bytes(key.len()));
    sizes[8..].copy_from_slice(&u32_bytes(value.len()));
    out.extend_from_slice(&sizes);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Appends an encoded put whose key lives until a deadline to `out`.
pub(super) fn encode_put_until_write(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    key: &[u8],
    value: &[u8],
    deadline: Deadline,
    lease: Option<LeaseId>,
) {
    encode_target(out, PUT_UNTIL, keyspace);
    put_u32(out, key.len());
    put_u32(out, value.len());
    put_checked(out, &deadline);
    put_checked(out, &lease.unwrap_or_default());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Appends an encoded touch (a write that changes only a key's deadline) to `out`.
pub(super) fn encode_touch_write(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], deadline: Deadline) {
    encode_target(out, TOUCH, keyspace);
    put_u32(out, key.len());
    put_checked(out, &deadline);
    out.extend_from_slice(key);
}

/// Appends an encoded delete of a key to `out`.
pub(super) fn encode_delete_write(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8]) {
    encode_target(out, DELETE, keyspace);
    put_bytes(out, key);
}

/// Appends an encoded addition to a counter to `out`.
pub(super) fn encode_add(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], delta: i64) {
    encode_target(out, ADD, keyspace);
    put_checked(out, &delta);
    put_bytes(out, key);
}

/// Appends an encoded removal of all keys with a prefix to `out`.
pub(super) fn encode_delete_prefix(out: &mut Vec<u8>, keyspace: KeyspaceId, prefix: &[u8]) {
    encode_target(out, DELETE_PREFIX, keyspace);
    put_bytes(out, prefix);
}

/// Appends an encoded read of a key to `out`.
pub(super) fn encode_get(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8]) {
    encode_target(out, GET, keyspace);
    put_bytes(out, key);
}

/// Appends an encoded read of a range of pairs to `out`.
pub(super) fn encode_scan(out: &mut Vec<u8>, keyspace: KeyspaceId, scan: &ScanOperation<'_>) {
    encode_target(out, SCAN, keyspace);
    scan.encode(out);
}

/// Appends an encoded append of records to a stream to `out`. On error `out` is unchanged.
pub(super) fn encode_append_write(
    out: &mut Vec<u8>,
    stream: StreamId,
    conditions: &AppendConditions<'_>,
    batch: &RecordBatch,
) -> Result<(), CommandError> {
    conditions.producer.map_or(Ok(()), |stamp| check_producer_id(stamp.id))?;
    out.push(if conditions.producer.is_some() { APPEND_PRODUCED } else { APPEND });
    put_checked(out, &stream);
    put_checked(out, &conditions.expected.offset().unwrap_or(Offset::MAX));
    if let Some(stamp) = &conditions.producer {
        put_checked(out, stamp);
    }
    put_checked(out, &batch.count());
    put_bytes(out, batch.bytes());
    Ok(())
}

/// Appends an encoded ack or nack of records to `out`. On error `out` is unchanged.
pub(super) fn encode_settle(
    out: &mut Vec<u8>,
    group: GroupId,
    how: SettlementKind<'_>,
    settlements: &[Settlement],
) -> Result<(), CommandError> {
    Settle::encode(out, [ACK, NACK], group, how, settlements)
}

fn encode_target(out: &mut Vec<u8>, kind: u8, keyspace: KeyspaceId) {
    out.push(kind);
    out.extend_from_slice(&keyspace.0.to_le_bytes());
}

/// Decodes the fields of a put, which follow the byte with its kind. Puts are the most frequent writes, so this
/// function checks the length of the bytes only twice.
#[inline]
fn decode_put<'a>(reader: &mut Reader<'a>) -> Result<Write<'a>, Malformed> {
    let at = reader.position();
    let sizes_and_rest = reader.whole().get(at..).and_then(|rest| rest.split_first_chunk::<PUT_SIZES>());
    let Some((sizes, rest)) = sizes_and_rest else { return decode_put_by_fields(reader) };
    let number = |at: usize| u32::from_le_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]);
    let (keyspace, key_len, value_len) = (KeyspaceId(number(0)), number(4) as usize, number(8) as usize);
    let Some(pair) = rest.get(..key_len.saturating_add(value_len)) else { return decode_put_by_fields(reader) };
    let (key, value) = pair.split_at(key_len);
    reader.advance(PUT_SIZES + pair.len());
    Ok(Write::Put { keyspace, key, value, value_at: at + PUT_SIZES + key_len })
}

/// Decodes a put field by field. The error names the first incomplete field.
#[cold]
fn decode_put_by_fields<'a>(reader: &mut Reader<'a>) -> Result<Write<'a>, Malformed> {
    let keyspace = KeyspaceId(reader.u32("keyspace id")?);
    let key_len = reader.u32("key length")? as usize;
    let value_len = reader.u32("value length")? as usize;
    let key = reader.take(key_len, "key")?;
    let value_at = reader.position();
    Ok(Write::Put { keyspace, key, value: reader.take(value_len, "value")?, value_at })
}

#[inline]
fn decode_write<'a>(reader: &mut Reader<'a>) -> Result<Write<'a>, Malformed> {
    let at = reader.position();
    let kind = reader.u8("write kind")?;
    match kind {
        PUT => decode_put(reader),
        APPEND | APPEND_PRODUCED => decode_append(reader, kind == APPEND_PRODUCED),
        ACK => Ok(Write::Settle(Settle::decode_ack(reader)?)),
        NACK => Ok(Write::Settle(Settle::decode_nack(reader)?)),
        PUT_UNTIL => {
            let keyspace = KeyspaceId(reader.u32("keyspace id")?);
            let key_len = reader.u32("key length")? as usize;
            let value_len = reader.u32("value length")? as usize;
            let deadline = Deadline::take(reader, "deadline")?;
            let lease = LeaseId(reader.u64("lease id")?);
            let key = reader.take(key_len, "key")?;
            let value_at = reader.position();
            let value = reader.take(value_len, "value")?;
            let lease = (lease != LeaseId::ZERO).then_some(lease);
            Ok(Write::PutUntil { keyspace, key, value, value_at, deadline, lease })
        }
        TOUCH => {
            let keyspace = KeyspaceId(reader.u32("keyspace id")?);
            let len = reader.u32("key length")? as usize;
            let deadline = Deadline::take(reader, "deadline")?;
            Ok(Write::Touch { keyspace, key: reader.take(len, "key")?, deadline })
        }
        DELETE | ADD | DELETE_PREFIX | GET | SCAN => {
            let keyspace = KeyspaceId(reader.u32("keyspace id")?);
            if kind == SCAN {
                return Ok(Write::Scan { keyspace, scan: ScanOperation::decode(reader)? });
            }
            let delta = if kind == ADD { i64::take(reader, "delta")? } else { 0 };
            let key = <&[u8]>::take(reader, "key")?;
            Ok(match kind {
                DELETE => Write::Delete { keyspace, key },
                ADD => Write::Add { keyspace, key, delta },
                DELETE_PREFIX => Write::DeletePrefix { keyspace, prefix: key },
                _ => Write::Get { keyspace, key },
            })
        }
        _ => Err(Malformed { at, expected: "known write kind" }),
    }
}

fn decode_append<'a>(reader: &mut Reader<'a>, produced: bool) -> Result<Write<'a>, Malformed> {
    let stream = StreamId(reader.u32("stream id")?);
    let expected = reader.u64("expected offset")?;
    let producer = if produced { Some(EncodedStamp::decode(reader)?) } else { None };
    let count = reader.u32("record count")?;
    let len = reader.u32("batch length")? as usize;
    let batch_at = reader.position();
    Ok(Write::Append {
        stream,
        expected: (expected != u64::MAX).then_some(Offset(expected)),
        producer,
        count,
        batch: reader.take(len, "record batch")?,
        batch_at,
    })
}
