//! All kinds of commands, and the encoders of the commands that create, change and maintain keyspaces and streams.
//!
//! Owns: the numbers and layouts of commands, and these encoders. Does not own: the commands of a family (`groups`,
//! `time`), the contents of commits and transactions (`commit`, `transaction`), or the version that a command needs
//! (`versions`).
//!
//! A command is declared here, or in the module of its family, together with its layout, and is listed in
//! `docs/formats/command.md`; a test compares the two.

use crate::{
    codec::{Field, Malformed, Reader, put_checked, variants},
    command::{
        append::{ProducerId, check_producer_id},
        checks::{Name, check_name},
        commit::{COMMIT, Commit},
        error::CommandError,
        groups::GroupCommand,
        keyspace_config::KeyspaceConfig,
        redis::{REDIS, REDIS_JOINT, RedisBatch},
        stream_config::StreamConfig,
        time::TimeCommand,
        transaction::{TRANSACTION, Transaction},
        versions::RAISE_VERSION,
        write::Write,
    },
    ids::{KeyspaceId, Offset, StreamId},
};

variants! {
    /// A decoded command, borrowed from the bytes of its log entry.
    Command<'a> as "known command kind" {
        /// Checks conditions; if all hold, carries out writes.
        Commit[commit: Commit<'a>] = COMMIT "commit",
        /// Creates a keyspace unless one with this name exists.
        CreateKeyspace = 2 "create keyspace" {
            /// Settings of the keyspace.
            config: KeyspaceConfig,
            /// Name of the new keyspace.
            name: &'a str as Name,
        },
        /// Creates a stream unless one with this name exists.
        CreateStream = 3 "create stream" {
            /// Configuration of the stream.
            config: StreamConfig,
            /// Name of the new stream.
            name: &'a str as Name,
        },
        /// Replaces a stream's configuration.
        ConfigureStream = 4 "configure stream" {
            /// Id of the stream to configure.
            stream: StreamId,
            /// New configuration of the stream.
            config: StreamConfig,
        },
        /// Deletes a stream with all its records.
        DeleteStream = 5 "delete stream" {
            /// Id of the stream to delete.
            stream: StreamId,
        },
        /// Raises a stream's log start offset, which removes the records below this offset.
        TrimStream = 6 "trim stream" {
            /// Id of the stream to trim.
            stream: StreamId,
            /// New log start offset. An offset above the stream's log end offset counts as the log end offset.
            before: Offset,
        },
        /// Removes the stored producers of a deleted stream.
        ForgetProducers = 7 "forget producers" {
            /// Id of the deleted stream.
            stream: StreamId,
            /// Maximum number of rows of producers to remove.
            max: u32,
        },
        /// Checks conditions, which choose one of two lists of operations, and carries out the chosen list.
        Transaction[transaction: Transaction<'a>] = TRANSACTION "transaction",
        /// Replaces the settings of a keyspace.
        ConfigureKeyspace = 9 "configure keyspace" {
            /// Id of the keyspace to configure.
            keyspace: KeyspaceId,
            /// New settings of the keyspace.
            config: KeyspaceConfig,
        },
        /// Drops a keyspace and everything in it.
        DropKeyspace = 10 "drop keyspace" {
            /// Id of the keyspace to drop.
            keyspace: KeyspaceId,
        },
        /// Removes rows of keys that a delete by prefix has hidden but not removed, because there were many of them.
        Sweep = 11 "sweep" {
            /// Maximum number of rows that the command reads in search of hidden rows.
            max: u32,
        },
        /// Raises a stream's log start offset as its retention requires. Does nothing if the stream's configuration has
        /// changed since the proposer computed the offset.
        EnforceRetention = 12 "enforce retention" {
            /// Id of the stream whose retention is enforced.
            stream: StreamId,
            /// New log start offset of the stream: records below it are removed.
            before: Offset,
            /// Configuration of the stream from which the offset was computed.
            config: StreamConfig,
        },
        /// Removes old versions of keys that exceed the history bounds of their keyspace.
        PruneVersions = 25 "prune versions" {
            /// Maximum number of rows to read, each of which contains an old version of a key.
            max: u32,
            /// Keyspace at which the search for old versions begins. Keyspaces with higher ids follow, then those with
            /// lower ids.
            from: KeyspaceId,
        },
        /// Makes each node keep a view of the state as of the end of this log entry, so that the nodes' digests (hashes
        /// over the state) can be compared.
        Digest = 26 "digest" {
            /// Id under which callers can request the kept view of the state.
            id: u64,
        },
        /// Raises the version of the state machine in force, on every node that has a replica of the state.
        RaiseVersion = RAISE_VERSION "raise version" {
            /// New version of the state machine. A version below the one in force changes nothing.
            to: u16,
        },
        /// Opens a producer of a stream, which gives the producer a new epoch.
        OpenProducer = 32 "open producer" {
            /// Id of the stream to which the producer appends.
            stream: StreamId,
            /// Id of the producer to open.
            id: &'a str as ProducerId,
        },
        /// A batch of Redis commands that are carried out together, in the form that earlier builds wrote to the log.
        /// Its reads and its writes use one budget of steps; in a batch of the newer kind [`Redis`](Self::Redis), reads
        /// have a separate budget.
        RedisJoint[batch: RedisBatch<'a>] = REDIS_JOINT "joint redis commands",
        /// A batch of Redis commands that are carried out together.
        Redis[batch: RedisBatch<'a>] = REDIS "redis commands",
    }
    families {
        /// A command about leases or the expiry of keys.
        Time(TimeCommand<'a>) = 16..=23,
        /// A command about a consumer group.
        Group(GroupCommand<'a>) = 48..=63,
    }
}

impl<'a> Command<'a> {
    /// Decodes the command in `bytes`. A command with bytes left over is malformed, so that a node never half
    /// understands the command of a newer version. The contents of a commit or transaction are checked when a caller
    /// iterates over them.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(bytes, 0);
        let command = Self::take(&mut reader, "command kind")?;
        if !matches!(command, Self::Commit(_) | Self::Transaction(_)) {
            reader.expect_end("end of the command")?;
        }
        Ok(command)
    }

    /// Returns the puts and appends in a command. For a transaction, it returns those of both lists, although only one
    /// list is carried out. Writes that do not decode are skipped. For Redis commands, it returns all puts that may
    /// have happened (see [`RedisBatch::values`]).
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
            Self::Redis(batch) | Self::RedisJoint(batch) => Some(batch.values()),
            _ => None,
        };
        lists.into_iter().flatten().flatten().flatten().chain(redis.into_iter().flatten())
    }
}

/// Appends the encoded command that creates a keyspace. If the keyspace exists, the command leaves it unchanged.
pub fn encode_create_keyspace(out: &mut Vec<u8>, name: &str, config: &KeyspaceConfig) -> Result<(), CommandError> {
    check_name(name)?;
    config.check()?;
    put_checked(out, &Command::CreateKeyspace { config: *config, name });
    Ok(())
}

/// Appends the encoded command that replaces a keyspace's settings.
pub fn encode_configure_keyspace(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    config: &KeyspaceConfig,
) -> Result<(), CommandError> {
    config.check()?;
    put_checked(out, &Command::ConfigureKeyspace { keyspace, config: *config });
    Ok(())
}

/// Appends the encoded command that drops a keyspace. The keyspace's id is never used again.
pub fn encode_drop_keyspace(out: &mut Vec<u8>, keyspace: KeyspaceId) {
    put_checked(out, &Command::DropKeyspace { keyspace });
}

/// Appends the encoded command that examines up to `max` rows under deleted prefixes, and removes the rows that a
/// delete has hidden.
pub fn encode_sweep(out: &mut Vec<u8>, max: u32) {
    put_checked(out, &Command::Sweep { max });
}

/// Appends the encoded command that creates a stream. If the stream exists, the command leaves it unchanged.
pub fn encode_create_stream(out: &mut Vec<u8>, name: &str, config: &StreamConfig) -> Result<(), CommandError> {
    check_name(name)?;
    put_checked(out, &Command::CreateStream { config: *config, name });
    Ok(())
}

/// Appends the encoded command that replaces a stream's configuration.
pub fn encode_configure_stream(out: &mut Vec<u8>, stream: StreamId, config: &StreamConfig) {
    put_checked(out, &Command::ConfigureStream { stream, config: *config });
}

/// Appends the encoded command that deletes a stream. The stream's id is never used again.
pub fn encode_delete_stream(out: &mut Vec<u8>, stream: StreamId) {
    put_checked(out, &Command::DeleteStream { stream });
}

/// Appends the encoded command that raises a stream's log start offset to `before`.
pub fn encode_trim_stream(out: &mut Vec<u8>, stream: StreamId, before: Offset) {
    put_checked(out, &Command::TrimStream { stream, before });
}

/// Appends the encoded command that raises a stream's log start offset to `before`, as the retention in `config`
/// requires. The command changes nothing if the stream has another configuration when it is applied.
pub fn encode_enforce_retention(out: &mut Vec<u8>, stream: StreamId, before: Offset, config: &StreamConfig) {
    put_checked(out, &Command::EnforceRetention { stream, before, config: *config });
}

/// Appends the encoded command that removes at most `max` rows of the producers of a deleted stream.
pub fn encode_forget_producers(out: &mut Vec<u8>, stream: StreamId, max: u32) {
    put_checked(out, &Command::ForgetProducers { stream, max });
}

/// Appends the encoded command that opens a producer of a stream. The producer gets a new epoch above all its earlier
/// ones and begins again at sequence number 0; clients that use an earlier epoch are rejected (fenced).
pub fn encode_open_producer(out: &mut Vec<u8>, stream: StreamId, id: &str) -> Result<(), CommandError> {
    check_producer_id(id)?;
    put_checked(out, &Command::OpenProducer { stream, id });
    Ok(())
}

/// Appends the encoded command that removes versions of keys that exceed their keyspace's history bounds. The command
/// reads up to `max` rows of versions: those of the keyspace `from` first, then those of keyspaces with higher ids,
/// then those of keyspaces with lower ids. To reach every keyspace eventually, a caller passes different values of
/// `from`.
pub fn encode_prune_versions(out: &mut Vec<u8>, from: KeyspaceId, max: u32) {
    put_checked(out, &Command::PruneVersions { max, from });
}

/// Appends the encoded command that makes each node keep a view of the state as of the end of the command's log entry,
/// under `id`.
pub fn encode_digest(out: &mut Vec<u8>, id: u64) {
    put_checked(out, &Command::Digest { id });
}

/// Appends the encoded command that raises the version of the state machine in force.
pub fn encode_raise_version(out: &mut Vec<u8>, to: u16) {
    put_checked(out, &Command::RaiseVersion { to });
}
