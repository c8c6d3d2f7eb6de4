//! Commands: what an entry asks the state machine to do, and what comes of it.
//!
//! Owns the byte encoding of commands, entries and moves. Commands are encoded once, by whoever
//! proposes, and decoded as borrowed views; there is no owned tree in between.
//!
//! ```text
//! entry     := (len u32 | command)*                 payload of a log record of kind entry
//! command   := 1 | conditions u32 | writes u32 | condition* | write*         commit
//!            | 2 | name                                                     create keyspace
//!            | 3 | config | name                                            create stream
//!            | 4 | stream u32 | config                                      configure stream
//!            | 5 | stream u32                                               delete stream
//!            | 6 | stream u32 | before u64                                  trim stream
//!            | 7 | stream u32 | max u32                                     reclaim index entries
//! condition := keyspace u32 | key_len u32 | key | 0                         key is absent
//!            | keyspace u32 | key_len u32 | key | 1                         key is present
//!            | keyspace u32 | key_len u32 | key | 2 | revision u64          key is at the revision
//! write     := 1 | keyspace u32 | key_len u32 | value_len u32 | key | value put
//!            | 2 | keyspace u32 | key_len u32 | key                         delete
//!            | 3 | stream u32 | expected u64 | count u32 | len u32 | batch  append
//! config    := max_age_micros u64 | max_bytes u64 | max_records u64         u64::MAX: no limit
//! name      := len u16 | UTF-8
//! move      := from (20 bytes) | 0 | keyspace u32 | key_len u32 | key | value
//!            | from (20 bytes) | 1 | stream u32 | first u64 | batch         payload of a record of kind move
//! ```
//! Little-endian. `expected` is `u64::MAX` for an append at whatever offset comes next.

use std::time::Duration;

use crate::{
    ids::{BlobRef, KeyspaceId, Offset, Revision, StreamId},
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES},
    record::{Malformed, Reader, RecordBatch, put_u16, put_u32},
};

const COMMIT: u8 = 1;
const CREATE_KEYSPACE: u8 = 2;
const CREATE_STREAM: u8 = 3;
const CONFIGURE_STREAM: u8 = 4;
const DELETE_STREAM: u8 = 5;
const TRIM_STREAM: u8 = 6;
const RECLAIM_STREAM: u8 = 7;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const APPEND: u8 = 3;

/// A command that breaks a limit; nothing was proposed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Longer than [`MAX_KEY_BYTES`].
    #[error("key of {got} bytes is above the limit of {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// Its length.
        got: usize,
    },
    /// Longer than [`MAX_VALUE_BYTES`].
    #[error("value of {got} bytes is above the limit of {MAX_VALUE_BYTES}")]
    ValueTooLong {
        /// Its length.
        got: usize,
    },
    /// More than [`MAX_COMMIT_WRITES`] conditions and writes, or [`MAX_COMMAND_BYTES`] bytes.
    #[error("commit is above the limit of {MAX_COMMIT_WRITES} writes or {MAX_COMMAND_BYTES} bytes: split it")]
    CommitTooLarge,
    /// Empty, longer than [`MAX_NAME_BYTES`], or with other characters than names may have.
    #[error("bad name {name:?}: 1 to {MAX_NAME_BYTES} of the characters A-Z a-z 0-9 . _ -, not starting with a dot")]
    BadName {
        /// As given, shortened.
        name: String,
    },
}

/// Checks a keyspace or stream name.
pub fn check_name(name: &str) -> Result<(), CommandError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('.') || !name.bytes().all(good) {
        return Err(CommandError::BadName { name: name.chars().take(64).collect() });
    }
    Ok(())
}

/// What a condition wants of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key has no value.
    Absent,
    /// The key has some value.
    Present,
    /// The key's value was written at this revision.
    Revision(Revision),
}

/// What a stream keeps. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamConfig {
    /// Records older than this, in space time, are trimmed.
    pub max_age: Option<Duration>,
    /// The oldest batches are trimmed while the stream holds more encoded bytes than this.
    pub max_bytes: Option<u64>,
    /// The oldest records are trimmed while the stream holds more than this.
    pub max_records: Option<u64>,
}

impl StreamConfig {
    /// Bytes of the encoding.
    pub const ENCODED_LEN: usize = 24;

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let age = self.max_age.map_or(u64::MAX, |age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX - 1));
        for limit in [age, self.max_bytes.unwrap_or(u64::MAX), self.max_records.unwrap_or(u64::MAX)] {
            out.extend_from_slice(&limit.to_le_bytes());
        }
    }

    /// Reads the encoding.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut limit = || reader.u64("stream limit").map(|limit| (limit != u64::MAX).then_some(limit));
        Ok(Self { max_age: limit()?.map(Duration::from_micros), max_bytes: limit()?, max_records: limit()? })
    }
}

/// Builds a commit: conditions that must all hold, then writes that all happen or none.
#[derive(Clone, Debug, Default)]
pub struct CommitBuilder {
    conditions: Vec<u8>,
    condition_count: u32,
    writes: Vec<u8>,
    write_count: u32,
    expects_offset: bool,
}

impl CommitBuilder {
    /// Without conditions and writes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    pub fn expect(&mut self, keyspace: KeyspaceId, key: &[u8], expect: Expect) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.room(key.len() + 32)?;
        self.condition_count += 1;
        let out = &mut self.conditions;
        put_u32(out, keyspace.0 as usize);
        put_u32(out, key.len());
        out.extend_from_slice(key);
        match expect {
            Expect::Absent => out.push(0),
            Expect::Present => out.push(1),
            Expect::Revision(revision) => {
                out.push(2);
                out.extend_from_slice(&revision.0.to_le_bytes());
            }
        }
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

    /// Adds a delete.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        self.room(key.len() + 32)?;
        self.write_count += 1;
        encode_delete_write(&mut self.writes, keyspace, key);
        Ok(self)
    }

    /// Adds an append; with `expected`, the commit fails unless the stream's next offset is that.
    pub fn append(
        &mut self,
        stream: StreamId,
        expected: Option<Offset>,
        batch: &RecordBatch,
    ) -> Result<&mut Self, CommandError> {
        self.room(batch.bytes().len() + 32)?;
        self.write_count += 1;
        self.expects_offset |= expected.is_some();
        encode_append_write(&mut self.writes, stream, expected, batch);
        Ok(self)
    }

    /// How many writes it holds.
    #[must_use]
    pub fn write_count(&self) -> u32 {
        self.write_count
    }

    /// Whether its outcome depends on the state: conditions, or appends at an expected offset.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.condition_count > 0 || self.expects_offset
    }

    /// Appends the encoded command.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_commit_head(out, self.condition_count, self.write_count);
        out.extend_from_slice(&self.conditions);
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

fn encode_put_write(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    out.push(PUT);
    out.extend_from_slice(&keyspace.0.to_le_bytes());
    put_u32(out, key.len());
    put_u32(out, value.len());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

fn encode_delete_write(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8]) {
    out.push(DELETE);
    out.extend_from_slice(&keyspace.0.to_le_bytes());
    put_u32(out, key.len());
    out.extend_from_slice(key);
}

fn encode_append_write(out: &mut Vec<u8>, stream: StreamId, expected: Option<Offset>, batch: &RecordBatch) {
    out.push(APPEND);
    out.extend_from_slice(&stream.0.to_le_bytes());
    out.extend_from_slice(&expected.map_or(u64::MAX, Offset::get).to_le_bytes());
    out.extend_from_slice(&batch.count().to_le_bytes());
    put_u32(out, batch.bytes().len());
    out.extend_from_slice(batch.bytes());
}

/// Appends the command of a single put: what a [`CommitBuilder`] with one put would write.
pub fn encode_put(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Result<(), CommandError> {
    check_key(key)?;
    check_value(value)?;
    encode_commit_head(out, 0, 1);
    encode_put_write(out, keyspace, key, value);
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
pub fn encode_append(out: &mut Vec<u8>, stream: StreamId, expected: Option<Offset>, batch: &RecordBatch) {
    encode_commit_head(out, 0, 1);
    encode_append_write(out, stream, expected, batch);
}

/// Appends the command that creates a keyspace; one that exists is left as it is.
pub fn encode_create_keyspace(out: &mut Vec<u8>, name: &str) -> Result<(), CommandError> {
    check_name(name)?;
    out.push(CREATE_KEYSPACE);
    encode_name(out, name);
    Ok(())
}

/// Appends the command that creates a stream; one that exists is left as it is.
pub fn encode_create_stream(out: &mut Vec<u8>, name: &str, config: &StreamConfig) -> Result<(), CommandError> {
    check_name(name)?;
    out.push(CREATE_STREAM);
    config.encode(out);
    encode_name(out, name);
    Ok(())
}

/// Appends the command that replaces a stream's configuration.
pub fn encode_configure_stream(out: &mut Vec<u8>, stream: StreamId, config: &StreamConfig) {
    out.push(CONFIGURE_STREAM);
    out.extend_from_slice(&stream.0.to_le_bytes());
    config.encode(out);
}

/// Appends the command that deletes a stream; its id is never used again.
pub fn encode_delete_stream(out: &mut Vec<u8>, stream: StreamId) {
    out.push(DELETE_STREAM);
    out.extend_from_slice(&stream.0.to_le_bytes());
}

/// Appends the command that raises a stream's log start offset to `before`.
pub fn encode_trim_stream(out: &mut Vec<u8>, stream: StreamId, before: Offset) {
    out.push(TRIM_STREAM);
    out.extend_from_slice(&stream.0.to_le_bytes());
    out.extend_from_slice(&before.0.to_le_bytes());
}

/// Appends the command that forgets at most `max` index entries of trimmed or deleted batches.
pub fn encode_reclaim_stream(out: &mut Vec<u8>, stream: StreamId, max: u32) {
    out.push(RECLAIM_STREAM);
    out.extend_from_slice(&stream.0.to_le_bytes());
    out.extend_from_slice(&max.to_le_bytes());
}

fn encode_name(out: &mut Vec<u8>, name: &str) {
    put_u16(out, name.len());
    out.extend_from_slice(name.as_bytes());
}

/// An encoded command in its entry frame, `len u32 | command`: a payload of one command as it is, and
/// part of a longer one by concatenation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Framed(Vec<u8>);

impl Framed {
    /// A frame without a command: fill it with [`encode`](Self::encode).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the command by what `encode` writes, keeping the allocation. On error the frame holds
    /// no command.
    pub fn encode<E>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.0.clear();
        self.0.extend_from_slice(&[0; 4]);
        let encoded = encode(&mut self.0);
        if encoded.is_err() {
            self.0.clear();
            return encoded;
        }
        let len = u32::try_from(self.0.len() - 4).expect("commands are checked against MAX_COMMAND_BYTES");
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Gives back the allocation if a large command has grown it beyond `max_bytes`.
    pub fn shrink(&mut self, max_bytes: usize) {
        if self.0.capacity() > max_bytes {
            self.0 = Vec::new();
        }
    }
}

/// A decoded command, borrowed from the entry.
#[derive(Clone, Debug)]
pub enum Command<'a> {
    /// Conditions and writes.
    Commit(Commit<'a>),
    /// Create a keyspace unless it exists.
    CreateKeyspace {
        /// Its name.
        name: &'a str,
    },
    /// Create a stream unless it exists.
    CreateStream {
        /// Its name.
        name: &'a str,
        /// What it keeps.
        config: StreamConfig,
    },
    /// Replace a stream's configuration.
    ConfigureStream {
        /// Which.
        stream: StreamId,
        /// What it keeps from now on.
        config: StreamConfig,
    },
    /// Delete a stream.
    DeleteStream {
        /// Which.
        stream: StreamId,
    },
    /// Raise a stream's log start offset.
    TrimStream {
        /// Which.
        stream: StreamId,
        /// The new log start offset, at most the log end offset.
        before: Offset,
    },
    /// Forget index entries of trimmed or deleted batches.
    ReclaimStream {
        /// Which.
        stream: StreamId,
        /// At most so many.
        max: u32,
    },
}

/// A commit's inside. `conditions` and `writes` may be iterated any number of times.
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
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// The key.
    pub key: &'a [u8],
    /// What must hold.
    pub expect: Expect,
}

/// A write of a commit. `at` fields are byte offsets in the slice that was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// Set a key.
    Put {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Where the value lies.
        value_at: usize,
    },
    /// Remove a key.
    Delete {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
    },
    /// Append records.
    Append {
        /// The stream.
        stream: StreamId,
        /// Fail the commit unless this is the next offset.
        expected: Option<Offset>,
        /// How many records.
        count: u32,
        /// The encoded batch.
        batch: &'a [u8],
        /// Where the batch lies.
        batch_at: usize,
    },
}

impl<'a> Command<'a> {
    /// Decodes the command that fills `bytes`: what is left over makes it malformed, so that a newer
    /// writer's command is never half understood. A commit's inside is checked as it is iterated.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(bytes, 0);
        let command = Self::decode_from(bytes, &mut reader)?;
        if !matches!(command, Self::Commit(_)) {
            expect_end(&reader)?;
        }
        Ok(command)
    }

    #[inline]
    fn decode_from(bytes: &'a [u8], reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match reader.u8("command kind")? {
            COMMIT => {
                let conditions = reader.u32("condition count")?;
                let writes = reader.u32("write count")?;
                Ok(Self::Commit(Commit { bytes, conditions_at: reader.position(), conditions, writes }))
            }
            CREATE_KEYSPACE => Ok(Self::CreateKeyspace { name: decode_name(reader)? }),
            CREATE_STREAM => {
                let config = StreamConfig::decode(reader)?;
                Ok(Self::CreateStream { name: decode_name(reader)?, config })
            }
            CONFIGURE_STREAM => Ok(Self::ConfigureStream {
                stream: StreamId(reader.u32("stream id")?),
                config: StreamConfig::decode(reader)?,
            }),
            DELETE_STREAM => Ok(Self::DeleteStream { stream: StreamId(reader.u32("stream id")?) }),
            TRIM_STREAM => Ok(Self::TrimStream {
                stream: StreamId(reader.u32("stream id")?),
                before: Offset(reader.u64("offset")?),
            }),
            RECLAIM_STREAM => Ok(Self::ReclaimStream {
                stream: StreamId(reader.u32("stream id")?),
                max: reader.u32("index entry count")?,
            }),
            _ => Err(Malformed { at: 0, expected: "known command kind" }),
        }
    }

    /// Whether these bytes are a commit with conditions on keys; does not decode them.
    #[inline]
    #[must_use]
    pub fn has_conditions(bytes: &[u8]) -> bool {
        matches!(bytes, [COMMIT, count @ ..] if count.first_chunk::<4>().is_some_and(|count| *count != [0; 4]))
    }
}

fn expect_end(reader: &Reader<'_>) -> Result<(), Malformed> {
    if reader.is_empty() { Ok(()) } else { Err(Malformed { at: reader.position(), expected: "end of the command" }) }
}

fn decode_name<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Malformed> {
    let len = usize::from(reader.u16("name length")?);
    let at = reader.position();
    let name = std::str::from_utf8(reader.take(len, "name")?).ok().filter(|name| check_name(name).is_ok());
    name.ok_or(Malformed { at, expected: "well-formed name" })
}

impl<'a> Commit<'a> {
    /// How many conditions.
    #[must_use]
    pub fn condition_count(&self) -> u32 {
        self.conditions
    }

    /// How many writes.
    #[must_use]
    pub fn write_count(&self) -> u32 {
        self.writes
    }

    /// The conditions in order.
    pub fn conditions(&self) -> impl Iterator<Item = Result<Condition<'a>, Malformed>> + use<'a> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        (0..self.conditions).map(move |_| decode_condition(&mut reader))
    }

    /// The writes in order. Fails if a condition before them does.
    pub fn writes(&self) -> Result<Writes<'a>, Malformed> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        for _ in 0..self.conditions {
            decode_condition(&mut reader)?;
        }
        if self.writes == 0 {
            expect_end(&reader)?;
        }
        Ok(Writes { reader, left: self.writes })
    }
}

/// Iterates over the writes of a commit.
#[derive(Clone, Debug)]
pub struct Writes<'a> {
    reader: Reader<'a>,
    left: u32,
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
        if self.left == 0 && write.is_ok() {
            write = expect_end(&self.reader).and(write);
        }
        if write.is_err() {
            self.left = 0;
        }
        Some(write)
    }
}

fn decode_condition<'a>(reader: &mut Reader<'a>) -> Result<Condition<'a>, Malformed> {
    let keyspace = KeyspaceId(reader.u32("keyspace id")?);
    let len = reader.u32("key length")? as usize;
    let key = reader.take(len, "key")?;
    let at = reader.position();
    let expect = match reader.u8("condition kind")? {
        0 => Expect::Absent,
        1 => Expect::Present,
        2 => Expect::Revision(Revision(reader.u64("revision")?)),
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
        APPEND => {
            let stream = StreamId(reader.u32("stream id")?);
            let expected = reader.u64("expected offset")?;
            let count = reader.u32("record count")?;
            let len = reader.u32("batch length")? as usize;
            let batch_at = reader.position();
            Ok(Write::Append {
                stream,
                expected: (expected != u64::MAX).then_some(Offset(expected)),
                count,
                batch: reader.take(len, "record batch")?,
                batch_at,
            })
        }
        _ => Err(Malformed { at, expected: "known write kind" }),
    }
}

/// Iterates over the commands of an entry's payload: each with the byte offset at which its own bytes
/// begin, so that `payload offset + command offset + value_at` is a position in the segment.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> Commands<'a> {
    /// Over an entry's payload.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Self {
        Self { reader: Reader::at(payload, 0), failed: false }
    }
}

impl<'a> Iterator for Commands<'a> {
    type Item = Result<(usize, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let command = self.reader.u32("command length").and_then(|len| {
            let at = self.reader.position();
            Ok((at, self.reader.take(len as usize, "command")?))
        });
        self.failed = command.is_err();
        Some(command)
    }
}

/// What a move carries: bytes copied forward and the pointer that they replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'a> {
    /// Where the bytes lay; the move is void unless the state still points there.
    pub from: BlobRef,
    /// Whose bytes they are.
    pub target: MoveTarget<'a>,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Where the bytes begin within the payload.
    pub bytes_at: usize,
}

/// Whose bytes a [`Move`] carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveTarget<'a> {
    /// The value of a key.
    Value {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
    },
    /// A stream's batch.
    Batch {
        /// The stream.
        stream: StreamId,
        /// The batch's first offset.
        first: Offset,
    },
}

impl<'a> Move<'a> {
    /// Appends the encoding of a move.
    pub fn encode(out: &mut Vec<u8>, from: &BlobRef, target: &MoveTarget<'_>, bytes: &[u8]) {
        out.extend_from_slice(&from.encode());
        match target {
            MoveTarget::Value { keyspace, key } => {
                out.push(0);
                out.extend_from_slice(&keyspace.0.to_le_bytes());
                put_u32(out, key.len());
                out.extend_from_slice(key);
            }
            MoveTarget::Batch { stream, first } => {
                out.push(1);
                out.extend_from_slice(&stream.0.to_le_bytes());
                out.extend_from_slice(&first.0.to_le_bytes());
            }
        }
        out.extend_from_slice(bytes);
    }

    /// Decodes the payload of a move record.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(payload, 0);
        let from = BlobRef::decode(reader.take(BlobRef::ENCODED_LEN, "blob reference")?)
            .ok_or(Malformed { at: 0, expected: "blob reference" })?;
        let at = reader.position();
        let target = match reader.u8("move target")? {
            0 => {
                let keyspace = KeyspaceId(reader.u32("keyspace id")?);
                let len = reader.u32("key length")? as usize;
                MoveTarget::Value { keyspace, key: reader.take(len, "key")? }
            }
            1 => MoveTarget::Batch {
                stream: StreamId(reader.u32("stream id")?),
                first: Offset(reader.u64("first offset")?),
            },
            _ => return Err(Malformed { at, expected: "known move target" }),
        };
        let bytes_at = reader.position();
        Ok(Self { from, target, bytes: reader.rest(), bytes_at })
    }
}

/// What came of a command. A failed condition is an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All writes happened at this revision.
    Committed {
        /// The command's revision, shared by all its writes.
        revision: Revision,
        /// Per append, in order: the offset of its first record and the count.
        appends: Vec<AppendedAt>,
    },
    /// A condition did not hold; nothing happened.
    ConditionFailed {
        /// Which condition, from 0.
        condition: u32,
        /// The key's revision; `None` if it has no value.
        actual: Option<Revision>,
    },
    /// An append's expected offset was not the next one; nothing happened.
    OffsetConflict {
        /// The stream.
        stream: StreamId,
        /// Its next offset.
        next: Offset,
    },
    /// The keyspace exists now.
    Keyspace {
        /// Its id.
        id: KeyspaceId,
        /// Whether this command created it.
        created: bool,
    },
    /// The stream exists now.
    Stream {
        /// Its id.
        id: StreamId,
        /// Whether this command created it.
        created: bool,
    },
    /// Configured, trimmed or deleted.
    Done,
    /// Index entries forgotten; `more` says whether some are left.
    Reclaimed {
        /// How many.
        entries: u32,
        /// Whether another command is wanted.
        more: bool,
    },
    /// The command named a keyspace that does not exist.
    NoSuchKeyspace(KeyspaceId),
    /// The command named a stream that does not exist.
    NoSuchStream(StreamId),
    /// A table of names is full.
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The command did not decode; nothing happened. Only a foreign or newer writer makes such.
    Malformed(Malformed),
}

/// Where an append put its records: `first..first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedAt {
    /// The stream.
    pub stream: StreamId,
    /// Offset of the first record.
    pub first: Offset,
    /// How many records.
    pub count: u32,
}

#[cfg(test)]
mod tests;
