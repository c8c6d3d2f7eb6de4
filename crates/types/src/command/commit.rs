//! Commits: commands that consist of conditions and of writes. If all conditions hold, all writes are carried out,
//! otherwise none.
//!
//! Owns: the builder, the encoding of whole commits, and their decoded form. Does not own: the encoding of a condition
//! (`condition`) or a write (`write`), or the execution (the state machine).
//!
//! The codec is written by hand, because nearly all commands are commits: a decoded commit is a view of its bytes, and
//! [`BlindPut`] decodes the most frequent kind of commit in a few instructions.
//!
//! Some writes read the previous value of their key: touches, and puts that keep a deadline. If a commit has such a
//! write and no condition, the builder adds a condition that always holds, to declare that the commit reads.

use crate::{
    codec::{Malformed, Reader, by_hand, put_checked},
    command::{
        append::{AppendConditions, ExpectedOffset},
        checks::{check_key, check_value},
        condition::{Condition, Expect},
        error::CommandError,
        groups::{Redelivery, Settlement, SettlementKind, settlements_len},
        time::Deadline,
        write::{
            PUT, PUT_SIZES, Writes, encode_append_write, encode_delete_write, encode_put_after, encode_put_until_write,
            encode_put_write, encode_settle, encode_touch_write,
        },
    },
    ids::{GroupId, KeyspaceId, LeaseId, StreamId},
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES},
    record::RecordBatch,
};

/// First byte of an encoded commit, which identifies the kind of command.
pub(super) const COMMIT: u8 = 1;

by_hand! {
    Commit as "commit": "condition_count u32, write_count u32, \
        conditions condition_count × condition, writes write_count × write"
}

/// Builder of a commit: conditions and writes. If all conditions hold, all writes are carried out, otherwise none.
#[derive(Clone, Debug, Default)]
pub struct CommitBuilder {
    conditions: Vec<u8>,
    condition_count: u32,
    writes: Vec<u8>,
    write_count: u32,
    has_append_conditions: bool,
    settles: bool,
    needs_lease: bool,
    /// True if the commit has a write whose effect depends on the previous value of its key.
    reads: bool,
}

impl CommitBuilder {
    /// Creates a commit without conditions and writes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition on a key to the commit.
    pub fn expect(&mut self, keyspace: KeyspaceId, key: &[u8], expect: Expect<'_>) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        let condition = Condition { keyspace, key, expect };
        self.room(condition.max_bytes())?;
        self.condition_count += 1;
        condition.encode(&mut self.conditions);
        Ok(self)
    }

    /// Adds a write that sets a key to a value.
    pub fn put(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        check_value(value)?;
        self.room(key.len() + value.len() + 32)?;
        self.write_count += 1;
        encode_put_write(&mut self.writes, keyspace, key, value);
        Ok(self)
    }

    /// Adds a put (a write that sets a key) whose key lives until a deadline and, with a lease, at most as long as the
    /// lease. The commit fails if the lease does not exist.
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

    /// Adds a touch (a write that gives a key another deadline). The key's value, revision and lease stay. A touch does
    /// nothing to a key without a value; add a condition if the commit should fail then.
    pub fn touch(&mut self, keyspace: KeyspaceId, key: &[u8], deadline: Deadline) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        let deadline = deadline.check()?;
        self.room(key.len() + 64)?;
        self.write_count += 1;
        self.reads = true;
        encode_touch_write(&mut self.writes, keyspace, key, deadline);
        Ok(self)
    }

    /// Adds a write that removes a key.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.room(key.len() + 32)?;
        self.write_count += 1;
        encode_delete_write(&mut self.writes, keyspace, key);
        Ok(self)
    }

    /// Adds an append of records to a stream. The commit fails unless the stream's next offset matches `expected`.
    pub fn append(
        &mut self,
        stream: StreamId,
        expected: impl Into<ExpectedOffset>,
        batch: &RecordBatch,
    ) -> Result<&mut Self, CommandError> {
        self.append_with(stream, &expected.into().into(), batch)
    }

    /// Adds an append of records to a stream, with conditions. If the producer's stamp shows that the append was
    /// executed before, the whole commit was executed before. The commit then changes nothing, and its outcome is that
    /// of the first execution.
    pub fn append_with(
        &mut self,
        stream: StreamId,
        conditions: &AppendConditions<'_>,
        batch: &RecordBatch,
    ) -> Result<&mut Self, CommandError> {
        self.room(batch.bytes().len() + conditions.producer.map_or(0, |stamp| stamp.id.len()) + 48)?;
        encode_append_write(&mut self.writes, stream, conditions, batch)?;
        self.write_count += 1;
        self.has_append_conditions |= conditions.is_conditional();
        Ok(self)
    }

    /// Adds an ack of records that a consumer group has delivered. Each settlement names an attempt to deliver records,
    /// and records of this attempt. The commit fails if a named record has been acked or nacked before, or if the ack
    /// deadline of its attempt has passed.
    pub fn ack(&mut self, group: GroupId, settlements: &[Settlement]) -> Result<&mut Self, CommandError> {
        self.settle(group, SettlementKind::Ack, 0, settlements)
    }

    /// Adds a nack of records that a consumer group has delivered. Each settlement names an attempt to deliver records,
    /// and records of this attempt. The commit fails if a named record has been acked or nacked before, or if the ack
    /// deadline of its attempt has passed.
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
        self.room(settlements_len(settlements) + extra_bytes + 32)?;
        encode_settle(&mut self.writes, group, how, settlements)?;
        self.write_count += 1;
        self.settles = true;
        Ok(self)
    }

    /// Number of writes in the commit.
    #[must_use]
    pub fn write_count(&self) -> u32 {
        self.write_count
    }

    /// Returns true if the state can cause the rejection of the commit: the commit has conditions, acks, nacks or
    /// leases, or an append that expects an offset or has a producer.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.condition_count > 0 || self.has_append_conditions || self.settles || self.needs_lease
    }

    /// Appends the encoded commit to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let says_that_it_reads = self.reads && self.condition_count == 0;
        encode_commit_head(out, self.condition_count + u32::from(says_that_it_reads), self.write_count);
        out.extend_from_slice(&self.conditions);
        if says_that_it_reads {
            Condition::ANY.encode(out);
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

/// First bytes of a commit with no condition and one put. The last of them identifies the put.
const BLIND_PUT: [u8; 10] = [COMMIT, 0, 0, 0, 0, 1, 0, 0, 0, PUT];

fn encode_commit_head(out: &mut Vec<u8>, conditions: u32, writes: u32) {
    out.push(COMMIT);
    put_checked(out, &conditions);
    put_checked(out, &writes);
}

/// Appends the encoded command of a single put to `out`: the same bytes as a [`CommitBuilder`] with one put.
pub fn encode_put(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<(), CommandError> {
    check_key(key)?;
    check_value(value)?;
    encode_put_after(out, BLIND_PUT, keyspace, key, value);
    Ok(())
}

/// Appends the encoded command of a single put whose key lives until a deadline and at most as long as its lease.
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
        Condition::ANY.encode(out);
    }
    encode_put_until_write(out, keyspace, key, value, deadline, lease);
    Ok(())
}

/// Appends the encoded command of a single delete to `out`.
pub fn encode_delete(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8]) -> Result<(), CommandError> {
    check_key(key)?;
    encode_commit_head(out, 0, 1);
    encode_delete_write(out, keyspace, key);
    Ok(())
}

/// Appends the encoded command of a single append of records to `out`.
pub fn encode_append(out: &mut Vec<u8>, stream: StreamId, expected: impl Into<ExpectedOffset>, batch: &RecordBatch) {
    encode_commit_head(out, 0, 1);
    encode_append_write(out, stream, &expected.into().into(), batch).expect("only a producer's id can be invalid");
}

/// Appends the encoded command of a single append of records, with conditions, to `out`.
pub fn encode_append_with(
    out: &mut Vec<u8>,
    stream: StreamId,
    conditions: &AppendConditions<'_>,
    batch: &RecordBatch,
) -> Result<(), CommandError> {
    encode_commit_head(out, 0, 1);
    encode_append_write(out, stream, conditions, batch)
}

/// A decoded commit. Callers may iterate over its `conditions` and `writes` any number of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit<'a> {
    bytes: &'a [u8],
    conditions_at: usize,
    conditions: u32,
    writes: u32,
}

impl<'a> Commit<'a> {
    /// Decodes the counts of conditions and writes. The conditions and writes are checked when a caller iterates over
    /// them.
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let conditions = reader.u32("condition count")?;
        let writes = reader.u32("write count")?;
        Ok(Self { bytes: reader.whole(), conditions_at: reader.position(), conditions, writes })
    }

    /// Number of conditions of the commit.
    #[must_use]
    pub fn condition_count(&self) -> u32 {
        self.conditions
    }

    /// Number of writes of the commit.
    #[must_use]
    pub fn write_count(&self) -> u32 {
        self.writes
    }

    /// Iterates over the conditions of the commit in order.
    pub fn conditions(&self) -> impl Iterator<Item = Result<Condition<'a>, Malformed>> + use<'a> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        (0..self.conditions).map(move |_| Condition::decode(&mut reader))
    }

    /// Returns an iterator over the writes in order. Fails if one of the conditions, which come before the writes, does
    /// not decode.
    pub fn writes(&self) -> Result<Writes<'a>, Malformed> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        for _ in 0..self.conditions {
            Condition::decode(&mut reader)?;
        }
        Writes::last(reader, self.writes)
    }
}

/// A blind put: a commit without conditions whose only write is a put. Blind puts are by far the most frequent
/// commands; decoding one as this type costs a fraction of decoding it as a [`Command`](super::Command).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlindPut<'a> {
    /// Keyspace of the key.
    pub keyspace: KeyspaceId,
    /// Key to set.
    pub key: &'a [u8],
    /// Value to set.
    pub value: &'a [u8],
    /// Byte offset of the value within the encoded command.
    pub value_at: usize,
}

impl<'a> BlindPut<'a> {
    /// Decodes a command that is exactly a blind put. Returns `None` for every other command, malformed ones included.
    #[inline]
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&BLIND_PUT)?;
        let (sizes, rest) = rest.split_first_chunk::<PUT_SIZES>()?;
        let field = |at: usize| u32::from_le_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]);
        let (key_len, value_len) = (field(4) as usize, field(8) as usize);
        let (key, value) = rest.split_at_checked(key_len)?;
        let value_at = BLIND_PUT.len() + sizes.len() + key_len;
        (value.len() == value_len).then_some(Self { keyspace: KeyspaceId(field(0)), key, value, value_at })
    }
}

/// Returns true if an encoded command is a commit. A commit normally uses a revision, which is a counter that rises
/// with each successful commit. Other commands normally use none. For exceptions, such as a rejected commit, the state
/// machine stores a row (see `docs/formats/state.md`).
#[inline]
#[must_use]
pub fn uses_revision(bytes: &[u8]) -> bool {
    bytes.first() == Some(&COMMIT)
}
