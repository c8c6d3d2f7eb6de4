//! Commits: conditions that must all hold, then writes that happen all or not at all.
//!
//! The layouts of conditions and writes are in the head of the [`command`](super) module. A commit whose only reads
//! come from its writes (touches, and puts that keep a deadline) carries the condition 16, which always holds.

use crate::{
    command::{
        AppendTerms, COMMIT, CommandError, EncodedStamp, ExpectedOffset, expect_end,
        groups::{self, Again, Settle, Settlement},
        operations::{self, ScanOperation},
        time::{Deadline, PUT_UNTIL, TOUCH, encode_put_until_write, encode_touch_write},
    },
    ids::{GroupId, KeyspaceId, LeaseId, Offset, Revision, StreamId},
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES, MAX_KEY_BYTES, MAX_VALUE_BYTES},
    record::{Malformed, Reader, RecordBatch, put_u32},
};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const APPEND: u8 = 3;
const APPEND_PRODUCED: u8 = 32;
const ANY: u8 = 16;
const UNCHANGED: u8 = 6;
const NO_END: u32 = u32::MAX;

/// Requirement of a condition on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect<'a> {
    /// The key has no value.
    Absent,
    /// The key has a value.
    Present,
    /// The key's value was written at this revision.
    Revision(Revision),
    /// The key has exactly this value.
    Value(&'a [u8]),
    /// The key's value was written before this revision, or the key is absent: an absent key counts as written at
    /// revision 0.
    Before(Revision),
    /// The key's value was written after this revision.
    After(Revision),
    /// The range that begins at the key is unchanged since it was read: it has as many pairs, and none of a later
    /// revision.
    Unchanged(UnchangedRange<'a>),
    /// No requirement: the condition always holds. It marks a commit with a write that reads, such as a touch.
    Any,
}

/// Summary of a range of keys as it was read. The condition holds if since then no pair of the range has been put,
/// replaced or removed, and none has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnchangedRange<'a> {
    /// Exclusive end of the range; `None` for the end of the keyspace.
    pub end: Option<&'a [u8]>,
    /// Revision of the view that was read.
    pub since: Revision,
    /// Number of pairs in the range.
    pub count: u32,
}

impl Expect<'_> {
    /// Appends the encoded requirement: its kind, then its operand.
    fn encode(&self, out: &mut Vec<u8>) {
        let mut revision = |kind: u8, revision: Revision| {
            out.push(kind);
            out.extend_from_slice(&revision.0.to_le_bytes());
        };
        match *self {
            Self::Absent => out.push(0),
            Self::Present => out.push(1),
            Self::Revision(at) => revision(2, at),
            Self::Value(value) => {
                out.push(3);
                put_u32(out, value.len());
                out.extend_from_slice(value);
            }
            Self::Before(at) => revision(4, at),
            Self::After(at) => revision(5, at),
            Self::Unchanged(range) => {
                out.push(UNCHANGED);
                out.extend_from_slice(&range.since.0.to_le_bytes());
                out.extend_from_slice(&range.count.to_le_bytes());
                match range.end {
                    Some(end) => put_u32(out, end.len()),
                    None => out.extend_from_slice(&NO_END.to_le_bytes()),
                }
                out.extend_from_slice(range.end.unwrap_or_default());
            }
            Self::Any => out.push(ANY),
        }
    }

    pub(super) fn value_len(&self) -> usize {
        match self {
            Self::Value(value) => value.len(),
            Self::Unchanged(range) => range.end.map_or(0, <[u8]>::len),
            _ => 0,
        }
    }
}

/// Builder of a commit: conditions that must all hold, then writes that happen all or not at all.
#[derive(Clone, Debug, Default)]
pub struct CommitBuilder {
    conditions: Vec<u8>,
    condition_count: u32,
    writes: Vec<u8>,
    write_count: u32,
    has_terms: bool,
    settles: bool,
    needs_lease: bool,
    /// True if a write depends on the key's value before it.
    reads: bool,
}

impl CommitBuilder {
    /// Creates a commit without conditions and writes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    pub fn expect(&mut self, keyspace: KeyspaceId, key: &[u8], expect: Expect<'_>) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.room(key.len() + expect.value_len() + 32)?;
        self.condition_count += 1;
        encode_condition(&mut self.conditions, keyspace, key, expect);
        Ok(self)
    }

    /// Adds a put.
    pub fn put(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        check_value(value)?;
        self.room(key.len() + value.len() + 32)?;
        self.write_count += 1;
        encode_put_write(&mut self.writes, keyspace, key, value);
        Ok(self)
    }

    /// Adds a put that lives until a deadline and, with a lease, at most as long as the lease. The commit fails if the
    /// lease does not exist.
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
        self.room(key.len() + value.len() + 64)?;
        self.write_count += 1;
        self.needs_lease |= lease.is_some();
        self.reads |= deadline.reads();
        encode_put_until_write(&mut self.writes, keyspace, key, value, deadline, lease);
        Ok(self)
    }

    /// Adds a touch, which gives a key another deadline; its value, revision and lease stay. A touch does nothing to a
    /// key without a value: add a condition if that matters.
    pub fn touch(&mut self, keyspace: KeyspaceId, key: &[u8], deadline: Deadline) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        let deadline = deadline.check()?;
        self.room(key.len() + 64)?;
        self.write_count += 1;
        self.reads = true;
        encode_touch_write(&mut self.writes, keyspace, key, deadline);
        Ok(self)
    }

    /// Adds a delete.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.room(key.len() + 32)?;
        self.write_count += 1;
        encode_delete_write(&mut self.writes, keyspace, key);
        Ok(self)
    }

    /// Adds an append. The commit fails unless the stream's next offset matches `expected`.
    pub fn append(
        &mut self,
        stream: StreamId,
        expected: impl Into<ExpectedOffset>,
        batch: &RecordBatch,
    ) -> Result<&mut Self, CommandError> {
        self.append_with(stream, &expected.into().into(), batch)
    }

    /// Adds an append with any terms. If a producer's append happened before, so did the whole commit, and it is
    /// answered with its first result.
    pub fn append_with(
        &mut self,
        stream: StreamId,
        terms: &AppendTerms<'_>,
        batch: &RecordBatch,
    ) -> Result<&mut Self, CommandError> {
        self.room(batch.bytes().len() + terms.producer.map_or(0, |stamp| stamp.id.len()) + 48)?;
        encode_append_write(&mut self.writes, stream, terms, batch)?;
        self.write_count += 1;
        self.has_terms |= terms.is_conditional();
        Ok(self)
    }

    /// Adds an ack. The commit fails unless the attempts hold all records that the settlements name.
    pub fn ack(&mut self, group: GroupId, settlements: &[Settlement]) -> Result<&mut Self, CommandError> {
        self.room(groups::settlements_len(settlements) + 32)?;
        let before = self.writes.len();
        self.writes.push(groups::WRITE_ACK);
        let encoded = groups::encode_ack_rest(&mut self.writes, group, settlements);
        self.settled(before, encoded)
    }

    /// Adds a nack. The commit fails unless the attempts hold all records that the settlements name.
    pub fn nack(
        &mut self,
        group: GroupId,
        again: Again,
        reason: &str,
        settlements: &[Settlement],
    ) -> Result<&mut Self, CommandError> {
        self.room(groups::settlements_len(settlements) + reason.len() + 32)?;
        let before = self.writes.len();
        self.writes.push(groups::WRITE_NACK);
        let encoded = groups::encode_nack_rest(&mut self.writes, group, again, reason, settlements);
        self.settled(before, encoded)
    }

    fn settled(&mut self, before: usize, encoded: Result<(), CommandError>) -> Result<&mut Self, CommandError> {
        if let Err(error) = encoded {
            self.writes.truncate(before);
            return Err(error);
        }
        self.write_count += 1;
        self.settles = true;
        Ok(self)
    }

    /// Number of writes.
    #[must_use]
    pub fn write_count(&self) -> u32 {
        self.write_count
    }

    /// Returns true if the outcome depends on the state: the commit has conditions, appends at an expected offset or
    /// of a producer, acks, nacks, or leases.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.condition_count > 0 || self.has_terms || self.settles || self.needs_lease
    }

    /// Appends the encoded command.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let says_that_it_reads = self.reads && self.condition_count == 0;
        encode_commit_head(out, self.condition_count + u32::from(says_that_it_reads), self.write_count);
        out.extend_from_slice(&self.conditions);
        if says_that_it_reads {
            encode_any_condition(out);
        }
        out.extend_from_slice(&self.writes);
    }

    fn room(&self, bytes: usize) -> Result<(), CommandError> {
        let count = self.condition_count as usize + self.write_count as usize;
        if count >= MAX_COMMIT_WRITES || self.conditions.len() + self.writes.len() + bytes > MAX_COMMAND_BYTES {
            return Err(CommandError::CommitTooLarge);
        }
        Ok(())
    }
}

/// Checks a key's length.
pub fn check_key(key: &[u8]) -> Result<(), CommandError> {
    if key.len() > MAX_KEY_BYTES {
        return Err(CommandError::KeyTooLong { got: key.len() });
    }
    Ok(())
}

/// Checks a value's length.
pub fn check_value(value: &[u8]) -> Result<(), CommandError> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(CommandError::ValueTooLong { got: value.len() });
    }
    Ok(())
}

fn encode_commit_head(out: &mut Vec<u8>, conditions: u32, writes: u32) {
    out.push(COMMIT);
    out.extend_from_slice(&conditions.to_le_bytes());
    out.extend_from_slice(&writes.to_le_bytes());
}

pub(super) fn encode_condition(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], expect: Expect<'_>) {
    out.extend_from_slice(&keyspace.0.to_le_bytes());
    put_u32(out, key.len());
    out.extend_from_slice(key);
    expect.encode(out);
}

fn encode_any_condition(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 8]);
    out.push(ANY);
}

pub(super) fn encode_put_write(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    out.push(PUT);
    out.extend_from_slice(&keyspace.0.to_le_bytes());
    put_u32(out, key.len());
    put_u32(out, value.len());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

pub(super) fn encode_delete_write(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8]) {
    out.push(DELETE);
    out.extend_from_slice(&keyspace.0.to_le_bytes());
    put_u32(out, key.len());
    out.extend_from_slice(key);
}

pub(super) fn encode_append_write(
    out: &mut Vec<u8>,
    stream: StreamId,
    terms: &AppendTerms<'_>,
    batch: &RecordBatch,
) -> Result<(), CommandError> {
    let begun_at = out.len();
    out.push(if terms.producer.is_some() { APPEND_PRODUCED } else { APPEND });
    out.extend_from_slice(&stream.0.to_le_bytes());
    out.extend_from_slice(&terms.expected.offset().map_or(u64::MAX, Offset::get).to_le_bytes());
    if let Some(stamp) = &terms.producer
        && let Err(error) = stamp.encode(out)
    {
        out.truncate(begun_at);
        return Err(error);
    }
    out.extend_from_slice(&batch.count().to_le_bytes());
    put_u32(out, batch.bytes().len());
    out.extend_from_slice(batch.bytes());
    Ok(())
}

/// Appends the command of a single put: the same bytes as a [`CommitBuilder`] with one put.
pub fn encode_put(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<(), CommandError> {
    check_key(key)?;
    check_value(value)?;
    encode_commit_head(out, 0, 1);
    encode_put_write(out, keyspace, key, value);
    Ok(())
}

/// Appends the command of a single put that lives until a deadline and at most as long as its lease.
pub fn encode_put_until(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    key: &[u8],
    value: &[u8],
    deadline: Deadline,
    lease: Option<LeaseId>,
) -> Result<(), CommandError> {
    check_key(key)?;
    check_value(value)?;
    let deadline = deadline.check()?;
    encode_commit_head(out, u32::from(deadline.reads()), 1);
    if deadline.reads() {
        encode_any_condition(out);
    }
    encode_put_until_write(out, keyspace, key, value, deadline, lease);
    Ok(())
}

/// Appends the command of a single delete.
pub fn encode_delete(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8]) -> Result<(), CommandError> {
    check_key(key)?;
    encode_commit_head(out, 0, 1);
    encode_delete_write(out, keyspace, key);
    Ok(())
}

/// Appends the command of a single append.
pub fn encode_append(out: &mut Vec<u8>, stream: StreamId, expected: impl Into<ExpectedOffset>, batch: &RecordBatch) {
    encode_commit_head(out, 0, 1);
    encode_append_write(out, stream, &expected.into().into(), batch).expect("only a producer's id can be invalid");
}

/// Appends the command of a single append with any terms.
pub fn encode_append_with(
    out: &mut Vec<u8>,
    stream: StreamId,
    terms: &AppendTerms<'_>,
    batch: &RecordBatch,
) -> Result<(), CommandError> {
    encode_commit_head(out, 0, 1);
    encode_append_write(out, stream, terms, batch)
}

/// The contents of a commit. `conditions` and `writes` may be iterated any number of times.
#[derive(Clone, Debug)]
pub struct Commit<'a> {
    bytes: &'a [u8],
    conditions_at: usize,
    conditions: u32,
    writes: u32,
}

/// A condition of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition<'a> {
    /// Keyspace of the key.
    pub keyspace: KeyspaceId,
    /// Key that the condition is about.
    pub key: &'a [u8],
    /// Requirement on the key.
    pub expect: Expect<'a>,
}

/// A write of a commit, or an operation of a transaction. `at` fields are byte offsets in the decoded slice.
/// [`Add`](Self::Add), [`DeletePrefix`](Self::DeletePrefix), [`Get`](Self::Get) and [`Scan`](Self::Scan) read the
/// state and are malformed in a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// Sets a key.
    Put {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to set.
        key: &'a [u8],
        /// Value to set.
        value: &'a [u8],
        /// Byte offset of the value.
        value_at: usize,
    },
    /// Removes a key.
    Delete {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to remove.
        key: &'a [u8],
    },
    /// Sets a key that lives until a deadline.
    PutUntil {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to set.
        key: &'a [u8],
        /// Value to set.
        value: &'a [u8],
        /// Byte offset of the value.
        value_at: usize,
        /// Deadline of the key.
        deadline: Deadline,
        /// Lease that the key is attached to: the key lives at most as long as the lease.
        lease: Option<LeaseId>,
    },
    /// Gives a key another deadline.
    Touch {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to touch.
        key: &'a [u8],
        /// New deadline of the key.
        deadline: Deadline,
    },
    /// Appends records.
    Append {
        /// Id of the stream.
        stream: StreamId,
        /// Offset that the stream's next offset must equal; otherwise the commit fails.
        expected: Option<Offset>,
        /// Stamp of the producer, which makes the append happen once however often it is sent.
        producer: Option<EncodedStamp<'a>>,
        /// Number of records.
        count: u32,
        /// Encoded batch.
        batch: &'a [u8],
        /// Byte offset of the batch.
        batch_at: usize,
    },
    /// Adds to a counter.
    Add {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key of the counter.
        key: &'a [u8],
        /// Amount to add.
        delta: i64,
    },
    /// Removes all keys with a prefix.
    DeletePrefix {
        /// Keyspace of the keys.
        keyspace: KeyspaceId,
        /// Prefix of the keys to remove.
        prefix: &'a [u8],
    },
    /// Reads a key.
    Get {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key to read.
        key: &'a [u8],
    },
    /// Reads a range of pairs.
    Scan {
        /// Keyspace of the pairs.
        keyspace: KeyspaceId,
        /// Range and options of the scan.
        scan: ScanOperation<'a>,
    },
    /// Acks or nacks records that a consumer group delivered. The commit fails if an attempt has lapsed.
    Settle(Settle<'a>),
}

impl<'a> Commit<'a> {
    /// Decodes the counts. The bytes behind them are checked when they are iterated.
    #[inline]
    pub(super) fn decode_head(bytes: &'a [u8], reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let conditions = reader.u32("condition count")?;
        let writes = reader.u32("write count")?;
        Ok(Self { bytes, conditions_at: reader.position(), conditions, writes })
    }

    /// Number of conditions.
    #[must_use]
    pub fn condition_count(&self) -> u32 {
        self.conditions
    }

    /// Number of writes.
    #[must_use]
    pub fn write_count(&self) -> u32 {
        self.writes
    }

    /// Iterates over the conditions in order.
    pub fn conditions(&self) -> impl Iterator<Item = Result<Condition<'a>, Malformed>> + use<'a> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        (0..self.conditions).map(move |_| decode_condition(&mut reader))
    }

    /// Returns an iterator over the writes in order. Fails if a condition before them does not decode.
    pub fn writes(&self) -> Result<Writes<'a>, Malformed> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        for _ in 0..self.conditions {
            decode_condition(&mut reader)?;
        }
        Writes::last(reader, self.writes)
    }
}

/// A commit without conditions whose only write is a put, which is by far the most frequent command. Decoding it as
/// this type costs a fraction of decoding it as a [`Command`](super::Command).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlindPut<'a> {
    /// Keyspace of the key.
    pub keyspace: KeyspaceId,
    /// Key to set.
    pub key: &'a [u8],
    /// Value to set.
    pub value: &'a [u8],
    /// Byte offset of the value.
    pub value_at: usize,
}

impl<'a> BlindPut<'a> {
    /// Decodes a command that is exactly a blind put. Returns `None` for every other command, malformed ones included.
    #[inline]
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        const HEAD: [u8; 10] = [COMMIT, 0, 0, 0, 0, 1, 0, 0, 0, PUT];
        let rest = bytes.strip_prefix(&HEAD)?;
        let (sizes, rest) = rest.split_first_chunk::<12>()?;
        let field = |at: usize| u32::from_le_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]);
        let (key_len, value_len) = (field(4) as usize, field(8) as usize);
        let (key, value) = rest.split_at_checked(key_len)?;
        let value_at = HEAD.len() + sizes.len() + key_len;
        (value.len() == value_len).then_some(Self { keyspace: KeyspaceId(field(0)), key, value, value_at })
    }
}

/// Iterator over the writes of a commit, or over a transaction's list of operations.
#[derive(Clone, Debug)]
pub struct Writes<'a> {
    reader: Reader<'a>,
    left: u32,
    /// True if the command ends with this list.
    is_last: bool,
}

impl<'a> Writes<'a> {
    pub(super) fn inner(reader: Reader<'a>, count: u32) -> Self {
        Self { reader, left: count, is_last: false }
    }

    pub(super) fn last(reader: Reader<'a>, count: u32) -> Result<Self, Malformed> {
        if count == 0 {
            expect_end(&reader)?;
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
            write = expect_end(&self.reader).and(write);
        }
        if write.is_err() {
            self.left = 0;
        }
        Some(write)
    }
}

pub(super) fn decode_condition<'a>(reader: &mut Reader<'a>) -> Result<Condition<'a>, Malformed> {
    let keyspace = KeyspaceId(reader.u32("keyspace id")?);
    let len = reader.u32("key length")? as usize;
    let key = reader.take(len, "key")?;
    let at = reader.position();
    let expect = match reader.u8("condition kind")? {
        0 => Expect::Absent,
        1 => Expect::Present,
        2 => Expect::Revision(Revision(reader.u64("revision")?)),
        3 => {
            let len = reader.u32("value length")? as usize;
            Expect::Value(reader.take(len, "value")?)
        }
        4 => Expect::Before(Revision(reader.u64("revision")?)),
        5 => Expect::After(Revision(reader.u64("revision")?)),
        UNCHANGED => {
            let (since, count) = (Revision(reader.u64("revision")?), reader.u32("pair count")?);
            let end = match reader.u32("key length")? {
                NO_END => None,
                len => Some(reader.take(len as usize, "key")?),
            };
            Expect::Unchanged(UnchangedRange { end, since, count })
        }
        ANY => Expect::Any,
        _ => return Err(Malformed { at, expected: "known condition kind" }),
    };
    Ok(Condition { keyspace, key, expect })
}

#[inline]
fn decode_write<'a>(reader: &mut Reader<'a>) -> Result<Write<'a>, Malformed> {
    let at = reader.position();
    match reader.u8("write kind")? {
        PUT => {
            let keyspace = KeyspaceId(reader.u32("keyspace id")?);
            let key_len = reader.u32("key length")? as usize;
            let value_len = reader.u32("value length")? as usize;
            let key = reader.take(key_len, "key")?;
            let value_at = reader.position();
            Ok(Write::Put { keyspace, key, value: reader.take(value_len, "value")?, value_at })
        }
        DELETE => {
            let keyspace = KeyspaceId(reader.u32("keyspace id")?);
            let len = reader.u32("key length")? as usize;
            Ok(Write::Delete { keyspace, key: reader.take(len, "key")? })
        }
        APPEND => decode_append(reader, false),
        APPEND_PRODUCED => decode_append(reader, true),
        groups::WRITE_ACK => Ok(Write::Settle(Settle::decode_ack(reader)?)),
        groups::WRITE_NACK => Ok(Write::Settle(Settle::decode_nack(reader)?)),
        PUT_UNTIL => {
            let keyspace = KeyspaceId(reader.u32("keyspace id")?);
            let key_len = reader.u32("key length")? as usize;
            let value_len = reader.u32("value length")? as usize;
            let deadline = Deadline::decode(reader)?;
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
            let deadline = Deadline::decode(reader)?;
            Ok(Write::Touch { keyspace, key: reader.take(len, "key")?, deadline })
        }
        kind => decode_reading(kind, at, reader),
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

/// Decodes an operation that only a transaction may have.
fn decode_reading<'a>(kind: u8, at: usize, reader: &mut Reader<'a>) -> Result<Write<'a>, Malformed> {
    if !matches!(kind, operations::ADD | operations::DELETE_PREFIX | operations::GET | operations::SCAN) {
        return Err(Malformed { at, expected: "known write kind" });
    }
    let keyspace = KeyspaceId(reader.u32("keyspace id")?);
    if kind == operations::SCAN {
        return Ok(Write::Scan { keyspace, scan: ScanOperation::decode(reader)? });
    }
    let delta = if kind == operations::ADD { reader.u64("delta")?.cast_signed() } else { 0 };
    let len = reader.u32("key length")? as usize;
    let key = reader.take(len, "key")?;
    Ok(match kind {
        operations::ADD => Write::Add { keyspace, key, delta },
        operations::DELETE_PREFIX => Write::DeletePrefix { keyspace, prefix: key },
        _ => Write::Get { keyspace, key },
    })
}
