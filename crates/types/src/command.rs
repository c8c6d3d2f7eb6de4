//! Commands: the requests in an entry that the state machine carries out, and their outcomes.
//!
//! Owns the byte encoding of commands, entries and moves. The proposer encodes a command once, and readers decode it
//! as a borrowed view; there is no owned tree in between.
//!
//! ```text
//! entry     := (len u32 | command)*                                         payload of a log record of kind entry
//! command   := 1 | conditions u32 | writes u32 | condition* | write*        commit
//!            | 2 | settings | name                                          create keyspace
//!            | 3 | config | name                                            create stream
//!            | 4 | stream u32 | config                                      configure stream
//!            | 5 | stream u32                                               delete stream
//!            | 6 | stream u32 | before u64                                  trim stream
//!            | 7 | stream u32 | max u32                                     forget producers of a deleted stream
//!            | 8 | conditions u32 | then u32 | else u32 | condition* | operation* | operation*  transaction
//!            | 9 | keyspace u32 | settings                                  configure keyspace
//!            | 10 | keyspace u32                                            drop keyspace
//!            | 11 | max u32                                                 sweep rows of deleted prefixes
//!            | 16 to 20 | ...                                               leases and expiry, see `time.rs`
//!            | 25 | max u32 | keyspace u32                                  prune versions, of this keyspace first
//!            | 26 | id u64                                                  keep a view for a digest
//!            | 27 | to u16                                                  raise the version in force
//!            | 32 | stream u32 | producer id                                open a producer
//!            | 48 to 55 | ...                                               consumer groups, see `groups.rs`
//!            | 64 | ...                                                     Redis commands, see `redis.rs`
//!            | 254 | version u16 | command                                  a command that needs this version
//! condition := keyspace u32 | key_len u32 | key | 0                         the key is absent
//!            | keyspace u32 | key_len u32 | key | 1                         the key is present
//!            | keyspace u32 | key_len u32 | key | 2 | revision u64          the key is at this revision
//!            | keyspace u32 | key_len u32 | key | 3 | len u32 | value       the key has this value
//!            | keyspace u32 | key_len u32 | key | 4 | revision u64          the key is absent or older than that
//!            | keyspace u32 | key_len u32 | key | 5 | revision u64          the key is newer than that
//!            | keyspace u32 | key_len u32 | key | 6 | since u64 | count u32 | len u32 | end
//!                                                                           range from key up to end, exclusive, with
//!                                                                           count pairs, none newer than since;
//!                                                                           len 2^32-1: no end
//!            | 0 u32 | 0 u32 | 16                                           always holds
//! write     := 1 | keyspace u32 | key_len u32 | value_len u32 | key | value  put
//!            | 2 | keyspace u32 | key_len u32 | key                         delete
//!            | 3 | stream u32 | expected u64 | count u32 | len u32 | batch  append
//!            | 16 | ...                                                     put with a deadline, see `time.rs`
//!            | 17 | ...                                                     touch, see `time.rs`
//!            | 32 | stream u32 | expected u64 | stamp | count u32 | len u32 | batch  append of a producer
//!            | 48 or 49 | ...                                               ack or nack, see `groups.rs`
//! operation := write
//!            | 4 | keyspace u32 | delta i64 | key_len u32 | key             add to a counter
//!            | 6 | keyspace u32 | len u32 | prefix                          delete all keys with the prefix
//!            | 7 | keyspace u32 | key_len u32 | key                         get
//!            | 8 | keyspace u32 | flags u8 | limit u32 | range              scan
//! range     := len u32 | prefix | [len u32 | start] | [len u32 | end]       1 reverse, 2 keys only, 4 start, 8 end
//! settings  := see `keyspace_config.rs`
//! config    := see `stream_config.rs`
//! stamp     := see `append.rs`
//! name      := len u16 | UTF-8
//! move      := from (20 bytes) | target | bytes                             payload of a log record of kind move
//! target    := 0 | keyspace u32 | key_len u32 | key                         the bytes are a value
//!            | 1 | stream u32 | first u64                                   the bytes are a batch
//!            | 2 | stream u32 | first u64 | end u64 | sources u32 | rows crc u32 | kept u32
//!                                                                           a sparse batch, see `moves.rs`
//!            | 3 | stream u32 | before u64                                  a stretch has been compacted; no bytes
//!            | 4 | stream u32 | max u32                                     forget index entries; no bytes
//!            | 5 | revision u64 | index u64 | max u32                       raise the history floor; no bytes
//! ```
//! All integers are little-endian. `expected` is the offset that the first record must get, or `u64::MAX` for any
//! offset.

mod append;
mod commit;
pub mod groups;
mod history;
mod keyspace_config;
mod moves;
mod operations;
mod outcome;
mod outcome_bytes;
mod redis;
mod redis_bounds;
mod stream_config;
mod time;
mod transaction;
mod versions;

use std::time::Duration;

pub use append::{AppendTerms, EncodedStamp, ExpectedOffset, ProducerRefusal, ProducerStamp, check_producer_id};
pub use commit::{
    BlindPut, Commit, CommitBuilder, Condition, Expect, UnchangedRange, Write, Writes, check_key, check_value,
    encode_append, encode_append_with, encode_delete, encode_put, encode_put_until,
};
pub use groups::GroupCommand;
pub use history::{HistoryFloor, encode_prune_versions};
pub use keyspace_config::{KeyspaceConfig, KeyspaceHistory};
pub use moves::{Compacted, Move, MoveTarget};
pub use operations::{Operations, ScanOperation};
pub use outcome::{AppendedAt, Outcome};
pub use redis::{RedisBatch, RedisBuilder, RedisCommands, offset_within};
pub use redis_bounds::max_redis_bytes;
pub use stream_config::{Compaction, StreamConfig, StreamLimit};
pub use time::{
    Deadline, StaleRows, TimeCommand, encode_expire, encode_forget_rows, encode_grant_lease, encode_keep_lease,
    encode_revoke_lease,
};
pub use transaction::{
    FailedCondition, Got, OperationError, OperationResult, ScanPage, ScannedItem, Transacted, Transaction,
    TransactionBuilder,
};
pub use versions::{
    FIRST_VERSION, Unwrapped, encode_digest, encode_raise_version, encode_versioned, unwrap, version_needed,
};

use crate::{
    ids::{KeyspaceId, Offset, StreamId},
    limits::{
        MAX_COMMAND_BYTES, MAX_COMMIT_WRITES, MAX_HISTORY_REVISIONS, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_SETTLED_RANGES,
        MAX_VALUE_BYTES, MIN_LEASE_TTL,
    },
    record::{Malformed, Reader, put_u16},
};

const COMMIT: u8 = 1;
const CREATE_KEYSPACE: u8 = 2;
const CREATE_STREAM: u8 = 3;
const CONFIGURE_STREAM: u8 = 4;
const DELETE_STREAM: u8 = 5;
const TRIM_STREAM: u8 = 6;
const FORGET_PRODUCERS: u8 = 7;
const TRANSACTION: u8 = 8;
const CONFIGURE_KEYSPACE: u8 = 9;
const DROP_KEYSPACE: u8 = 10;
const SWEEP: u8 = 11;
const PRUNE_VERSIONS: u8 = 25;
const DIGEST: u8 = 26;
const RAISE_VERSION: u8 = 27;
const OPEN_PRODUCER: u8 = 32;
const REDIS: u8 = 64;
/// Kind of the wrapper around a command that needs a version above the first: it is followed by the version and the
/// command.
const WRAPPED: u8 = 0xfe;

/// Error returned when a command breaks a limit. Nothing was proposed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// A key is longer than [`MAX_KEY_BYTES`].
    #[error("key of {got} bytes is above the limit of {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// Length of the key in bytes.
        got: usize,
    },
    /// A value is longer than [`MAX_VALUE_BYTES`].
    #[error("value of {got} bytes is above the limit of {MAX_VALUE_BYTES}")]
    ValueTooLong {
        /// Length of the value in bytes.
        got: usize,
    },
    /// The command has more than [`MAX_COMMIT_WRITES`] conditions and writes, or more than [`MAX_COMMAND_BYTES`]
    /// bytes.
    #[error("commit is above the limit of {MAX_COMMIT_WRITES} writes or {MAX_COMMAND_BYTES} bytes: split it")]
    CommitTooLarge,
    /// One ack or nack has more than [`MAX_SETTLED_RANGES`] ranges of offsets.
    #[error("more than {MAX_SETTLED_RANGES} ranges of offsets in one request: split it")]
    TooManyRanges,
    /// A group's configuration or a member's name is outside its limits.
    #[error("bad consumer group request: {what}")]
    BadGroup {
        /// Rule that the request breaks.
        what: &'static str,
    },
    /// A name is empty, longer than [`MAX_NAME_BYTES`], or has characters that names may not have.
    #[error("bad name {name:?}: 1 to {MAX_NAME_BYTES} of the characters A-Z a-z 0-9 . _ -, not starting with a dot")]
    BadName {
        /// Name as received, truncated to 64 characters.
        name: String,
    },
    /// A producer's id is empty, too long, or has characters that names may not have.
    #[error(
        "bad producer id {id:?}: 1 to {} of the characters A-Z a-z 0-9 . _ -, not starting with a dot",
        crate::limits::MAX_PRODUCER_ID_BYTES
    )]
    BadProducerId {
        /// Id as received, truncated to the longest allowed length.
        id: String,
    },
    /// A time to live is 0, above [`MAX_TTL`](crate::limits::MAX_TTL), or, for a lease, below [`MIN_LEASE_TTL`].
    #[error("bad time to live {got:?}: it must be above 0 (leases: at least {MIN_LEASE_TTL:?}) and at most 100 years")]
    BadTtl {
        /// Time to live as received.
        got: Duration,
    },
    /// The bounds of a keyspace's history are outside the limits.
    #[error(
        "bad history {got:?}: give 2 to {MAX_HISTORY_REVISIONS} revisions, an age above 0 and at most 100 years, or \
        both"
    )]
    BadHistory {
        /// Bounds as received.
        got: KeyspaceHistory,
    },
    /// The client chose the lease id 0, which means "no lease".
    #[error("a lease id of 0 means no lease: leave out the id to let the server choose one")]
    BadLeaseId,
}

/// Checks the name of a keyspace, stream or group.
pub fn check_name(name: &str) -> Result<(), CommandError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('.') || !name.bytes().all(good) {
        return Err(CommandError::BadName { name: name.chars().take(64).collect() });
    }
    Ok(())
}

/// Appends the command that creates a keyspace. An existing keyspace is left unchanged.
pub fn encode_create_keyspace(out: &mut Vec<u8>, name: &str, config: &KeyspaceConfig) -> Result<(), CommandError> {
    check_name(name)?;
    config.check()?;
    out.push(CREATE_KEYSPACE);
    config.encode(out);
    encode_name(out, name);
    Ok(())
}

/// Appends the command that replaces a keyspace's configuration.
pub fn encode_configure_keyspace(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    config: &KeyspaceConfig,
) -> Result<(), CommandError> {
    config.check()?;
    out.push(CONFIGURE_KEYSPACE);
    out.extend_from_slice(&keyspace.0.to_le_bytes());
    config.encode(out);
    Ok(())
}

/// Appends the command that drops a keyspace. Its id is never used again.
pub fn encode_drop_keyspace(out: &mut Vec<u8>, keyspace: KeyspaceId) {
    out.push(DROP_KEYSPACE);
    out.extend_from_slice(&keyspace.0.to_le_bytes());
}

/// Appends the command that reads up to `max` rows of deleted prefixes and removes the dead ones.
pub fn encode_sweep(out: &mut Vec<u8>, max: u32) {
    out.push(SWEEP);
    out.extend_from_slice(&max.to_le_bytes());
}

/// Appends the command that creates a stream. An existing stream is left unchanged.
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

/// Appends the command that deletes a stream. Its id is never used again.
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

/// Appends the command that removes at most `max` rows of the producers of a deleted stream.
pub fn encode_forget_producers(out: &mut Vec<u8>, stream: StreamId, max: u32) {
    out.push(FORGET_PRODUCERS);
    out.extend_from_slice(&stream.0.to_le_bytes());
    out.extend_from_slice(&max.to_le_bytes());
}

/// Appends the command that opens a producer. The producer gets a new epoch above all its earlier ones and begins
/// again at sequence 0; clients that use an earlier epoch are fenced.
pub fn encode_open_producer(out: &mut Vec<u8>, stream: StreamId, id: &str) -> Result<(), CommandError> {
    check_producer_id(id)?;
    out.push(OPEN_PRODUCER);
    out.extend_from_slice(&stream.0.to_le_bytes());
    append::encode_producer_id(out, id);
    Ok(())
}

fn encode_name(out: &mut Vec<u8>, name: &str) {
    put_u16(out, name.len());
    out.extend_from_slice(name.as_bytes());
}

/// An encoded command with its framing in an entry, `len u32 | command`. It is the payload of an entry with one
/// command; entries with more commands concatenate several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Framed(Vec<u8>);

impl Framed {
    /// Creates a frame without a command. Fill it with [`encode`](Self::encode).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a frame without a command, with room for a command of `bytes` bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(4 + bytes))
    }

    /// Replaces the command with the bytes that `encode` writes. The allocation is kept. On error the frame contains
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

    /// Bytes of the frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Drops the allocation if a large command has grown it beyond `max_bytes`.
    pub fn shrink(&mut self, max_bytes: usize) {
        if self.0.capacity() > max_bytes {
            self.0 = Vec::new();
        }
    }
}

/// A decoded command, borrowed from the entry.
#[derive(Clone, Debug)]
pub enum Command<'a> {
    /// Checks conditions, then carries out writes.
    Commit(Commit<'a>),
    /// Checks conditions, which choose one of two lists of operations, and carries out that list.
    Transaction(Transaction<'a>),
    /// Creates a keyspace unless it exists.
    CreateKeyspace {
        /// Name of the keyspace.
        name: &'a str,
        /// Settings of the keyspace.
        config: KeyspaceConfig,
    },
    /// Replaces a keyspace's settings.
    ConfigureKeyspace {
        /// Id of the keyspace.
        keyspace: KeyspaceId,
        /// New settings.
        config: KeyspaceConfig,
    },
    /// Drops a keyspace and everything in it.
    DropKeyspace {
        /// Id of the keyspace.
        keyspace: KeyspaceId,
    },
    /// Removes rows of deleted prefixes.
    Sweep {
        /// Maximum number of rows to read.
        max: u32,
    },
    /// Creates a stream unless it exists.
    CreateStream {
        /// Name of the stream.
        name: &'a str,
        /// Configuration of the stream.
        config: StreamConfig,
    },
    /// Replaces a stream's configuration.
    ConfigureStream {
        /// Id of the stream.
        stream: StreamId,
        /// New configuration.
        config: StreamConfig,
    },
    /// Deletes a stream.
    DeleteStream {
        /// Id of the stream.
        stream: StreamId,
    },
    /// Raises a stream's log start offset.
    TrimStream {
        /// Id of the stream.
        stream: StreamId,
        /// New log start offset. An offset above the log end offset counts as the log end offset.
        before: Offset,
    },
    /// Removes the producers of a deleted stream.
    ForgetProducers {
        /// Id of the stream.
        stream: StreamId,
        /// Maximum number of rows to remove.
        max: u32,
    },
    /// Removes versions of keys that are past their keyspace's bounds.
    PruneVersions {
        /// Keyspace to begin with. Keyspaces with higher ids follow, then those with lower ids.
        from: KeyspaceId,
        /// Maximum number of rows to read.
        max: u32,
    },
    /// Keeps a view of the state at the end of this entry, for its digest.
    Digest {
        /// Id under which the view can be requested.
        id: u64,
    },
    /// Raises the version of the state machine in force.
    RaiseVersion {
        /// New version. A version below the one in force changes nothing.
        to: u16,
    },
    /// Gives a producer a new epoch.
    OpenProducer {
        /// Id of the stream.
        stream: StreamId,
        /// Id of the producer.
        id: &'a str,
    },
    /// A command about a consumer group.
    Group(GroupCommand<'a>),
    /// A command about leases or expiry.
    Time(TimeCommand<'a>),
    /// A batch of Redis commands.
    Redis(RedisBatch<'a>),
}

impl<'a> Command<'a> {
    /// Decodes the command in `bytes`. Bytes left over make it malformed, so that a node never half understands a
    /// newer writer's command. The contents of a commit or transaction are checked when they are iterated.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(bytes, 0);
        let command = Self::decode_from(bytes, &mut reader)?;
        if !matches!(command, Self::Commit(_) | Self::Transaction(_)) {
            expect_end(&reader)?;
        }
        Ok(command)
    }

    #[inline]
    fn decode_from(bytes: &'a [u8], reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match reader.u8("command kind")? {
            COMMIT => Ok(Self::Commit(Commit::decode_head(bytes, reader)?)),
            CREATE_KEYSPACE => {
                let config = KeyspaceConfig::decode(reader)?;
                Ok(Self::CreateKeyspace { name: decode_name(reader)?, config })
            }
            TRANSACTION => Ok(Self::Transaction(Transaction::decode_head(bytes, reader)?)),
            DROP_KEYSPACE => Ok(Self::DropKeyspace { keyspace: KeyspaceId(reader.u32("keyspace id")?) }),
            SWEEP => Ok(Self::Sweep { max: reader.u32("row count")? }),
            CONFIGURE_KEYSPACE => Ok(Self::ConfigureKeyspace {
                keyspace: KeyspaceId(reader.u32("keyspace id")?),
                config: KeyspaceConfig::decode(reader)?,
            }),
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
            FORGET_PRODUCERS => {
                Ok(Self::ForgetProducers { stream: StreamId(reader.u32("stream id")?), max: reader.u32("row count")? })
            }
            PRUNE_VERSIONS => {
                let max = reader.u32("row count")?;
                Ok(Self::PruneVersions { max, from: KeyspaceId(reader.u32("keyspace id")?) })
            }
            DIGEST => Ok(Self::Digest { id: reader.u64("digest id")? }),
            RAISE_VERSION => Ok(Self::RaiseVersion { to: reader.u16("version")? }),
            OPEN_PRODUCER => Ok(Self::OpenProducer {
                stream: StreamId(reader.u32("stream id")?),
                id: append::decode_producer_id(reader)?,
            }),
            kind @ groups::FIRST_KIND..=groups::LAST_KIND => Ok(Self::Group(GroupCommand::decode(kind, reader)?)),
            REDIS => Ok(Self::Redis(RedisBatch::decode(bytes, reader)?)),
            kind @ 16..=23 => Ok(Self::Time(TimeCommand::decode(kind, reader)?)),
            _ => Err(Malformed { at: 0, expected: "known command kind" }),
        }
    }

    /// Returns the puts and appends in a command, of all its branches, whether they are carried out or not. Writes
    /// that do not decode are skipped. For Redis commands it returns all puts that may have happened (see
    /// [`RedisBatch::values`]).
    pub fn writes(&self) -> impl Iterator<Item = Write<'a>> + use<'a> {
        let lists = match self {
            Self::Commit(commit) => [commit.writes().ok(), None],
            Self::Transaction(transaction) => match transaction.branches() {
                Ok([then, otherwise]) => [Some(then), Some(otherwise)],
                Err(_) => [None, None],
            },
            _ => [None, None],
        };
        let redis = match self {
            Self::Redis(batch) => Some(batch.values()),
            _ => None,
        };
        lists.into_iter().flatten().flatten().flatten().chain(redis.into_iter().flatten())
    }
}

/// Returns true if a command with these bytes uses a revision by default: only commits do. The verdicts of the state
/// record exceptions.
#[inline]
#[must_use]
pub fn uses_revision(bytes: &[u8]) -> bool {
    bytes.first() == Some(&COMMIT)
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

/// Iterator over the commands of an entry's payload. Each comes with the byte offset of its first byte, so that
/// `payload offset + command offset + value_at` is a position in the segment. For a wrapped command the offset and the
/// bytes are those of the inner command.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    reader: Reader<'a>,
    failed: bool,
    version: u16,
}

impl<'a> Commands<'a> {
    /// Creates an iterator over an entry's payload.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Self {
        Self { reader: Reader::at(payload, 0), failed: false, version: FIRST_VERSION }
    }

    /// Version of the state machine that the last returned command is wrapped for.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
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
            let framed = self.reader.take(len as usize, "command")?;
            let Unwrapped { version, bytes } = unwrap(framed);
            self.version = version;
            Ok((at + framed.len() - bytes.len(), bytes))
        });
        self.failed = command.is_err();
        Some(command)
    }
}

#[cfg(test)]
mod tests;
