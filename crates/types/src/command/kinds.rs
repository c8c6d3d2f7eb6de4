//! All kinds of commands, and the encoders of those that create, change and maintain keyspaces and streams.
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
        redis::{REDIS, RedisBatch},
        stream_config::StreamConfig,
        time::TimeCommand,
        transaction::{TRANSACTION, Transaction},
        versions::RAISE_VERSION,
        write::Write,
    },
    ids::{KeyspaceId, Offset, StreamId},
};

variants! {
    /// A decoded command, borrowed from the entry.
    Command<'a> as "known command kind" {
        /// Checks conditions, then carries out writes.
        Commit[commit: Commit<'a>] = COMMIT "commit",
        /// Creates a keyspace unless it exists.
        CreateKeyspace = 2 "create keyspace" {
            /// Settings of the keyspace.
            config: KeyspaceConfig,
            /// Name of the keyspace.
            name: &'a str as Name,
        },
        /// Creates a stream unless it exists.
        CreateStream = 3 "create stream" {
            /// Configuration of the stream.
            config: StreamConfig,
            /// Name of the stream.
            name: &'a str as Name,
        },
        /// Replaces a stream's configuration.
        ConfigureStream = 4 "configure stream" {
            /// Id of the stream.
            stream: StreamId,
            /// New configuration.
            config: StreamConfig,
        },
        /// Deletes a stream.
        DeleteStream = 5 "delete stream" {
            /// Id of the stream.
            stream: StreamId,
        },
        /// Raises a stream's log start offset.
        TrimStream = 6 "trim stream" {
            /// Id of the stream.
            stream: StreamId,
            /// New log start offset. An offset above the log end offset counts as the log end offset.
            before: Offset,
        },
        /// Removes the producers of a deleted stream.
        ForgetProducers = 7 "forget producers" {
            /// Id of the stream.
            stream: StreamId,
            /// Maximum number of rows to remove.
            max: u32,
        },
        /// Checks conditions, which choose one of two lists of operations, and carries out that list.
        Transaction[transaction: Transaction<'a>] = TRANSACTION "transaction",
        /// Replaces a keyspace's settings.
        ConfigureKeyspace = 9 "configure keyspace" {
            /// Id of the keyspace.
            keyspace: KeyspaceId,
            /// New settings.
            config: KeyspaceConfig,
        },
        /// Drops a keyspace and everything in it.
        DropKeyspace = 10 "drop keyspace" {
            /// Id of the keyspace.
            keyspace: KeyspaceId,
        },
        /// Removes rows of deleted prefixes.
        Sweep = 11 "sweep" {
            /// Maximum number of rows to read.
            max: u32,
        },
        /// Removes versions of keys that are past their keyspace's bounds.
        PruneVersions = 25 "prune versions" {
            /// Maximum number of rows to read.
            max: u32,
            /// Keyspace to begin with. Keyspaces with higher ids follow, then those with lower ids.
            from: KeyspaceId,
        },
        /// Keeps a view of the state at the end of this entry, for its digest.
        Digest = 26 "digest" {
            /// Id under which the view can be requested.
            id: u64,
        },
        /// Raises the version of the state machine in force.
        RaiseVersion = RAISE_VERSION "raise version" {
            /// New version. A version below the one in force changes nothing.
            to: u16,
        },
        /// Gives a producer a new epoch.
        OpenProducer = 32 "open producer" {
            /// Id of the stream.
            stream: StreamId,
            /// Id of the producer.
            id: &'a str as ProducerId,
        },
        /// A batch of Redis commands.
        Redis[batch: RedisBatch<'a>] = REDIS "redis commands",
    }
    families {
        /// A command about leases or expiry.
        Time(TimeCommand<'a>) = 16..=23,
        /// A command about a consumer group.
        Group(GroupCommand<'a>) = 48..=63,
    }
}

impl<'a> Command<'a> {
    /// Decodes the command in `bytes`. Bytes left over make it malformed, so that a node never half understands a
    /// newer writer's command. The contents of a commit or transaction are checked when they are iterated.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(bytes, 0);
        let command = Self::take(&mut reader, "command kind")?;
        if !matches!(command, Self::Commit(_) | Self::Transaction(_)) {
            reader.expect_end("end of the command")?;
        }
        Ok(command)
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

/// Appends the command that creates a keyspace. An existing keyspace is left unchanged.
pub fn encode_create_keyspace(out: &mut Vec<u8>, name: &str, config: &KeyspaceConfig) -> Result<(), CommandError> {
    check_name(name)?;
    config.check()?;
    put_checked(out, &Command::CreateKeyspace { config: *config, name });
    Ok(())
}

/// Appends the command that replaces a keyspace's configuration.
pub fn encode_configure_keyspace(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    config: &KeyspaceConfig,
) -> Result<(), CommandError> {
    config.check()?;
    put_checked(out, &Command::ConfigureKeyspace { keyspace, config: *config });
    Ok(())
}

/// Appends the command that drops a keyspace. Its id is never used again.
pub fn encode_drop_keyspace(out: &mut Vec<u8>, keyspace: KeyspaceId) {
    put_checked(out, &Command::DropKeyspace { keyspace });
}

/// Appends the command that reads up to `max` rows of deleted prefixes and removes the dead ones.
pub fn encode_sweep(out: &mut Vec<u8>, max: u32) {
    put_checked(out, &Command::Sweep { max });
}

/// Appends the command that creates a stream. An existing stream is left unchanged.
pub fn encode_create_stream(out: &mut Vec<u8>, name: &str, config: &StreamConfig) -> Result<(), CommandError> {
    check_name(name)?;
    put_checked(out, &Command::CreateStream { config: *config, name });
    Ok(())
}

/// Appends the command that replaces a stream's configuration.
pub fn encode_configure_stream(out: &mut Vec<u8>, stream: StreamId, config: &StreamConfig) {
    put_checked(out, &Command::ConfigureStream { stream, config: *config });
}

/// Appends the command that deletes a stream. Its id is never used again.
pub fn encode_delete_stream(out: &mut Vec<u8>, stream: StreamId) {
    put_checked(out, &Command::DeleteStream { stream });
}

/// Appends the command that raises a stream's log start offset to `before`.
pub fn encode_trim_stream(out: &mut Vec<u8>, stream: StreamId, before: Offset) {
    put_checked(out, &Command::TrimStream { stream, before });
}

/// Appends the command that removes at most `max` rows of the producers of a deleted stream.
pub fn encode_forget_producers(out: &mut Vec<u8>, stream: StreamId, max: u32) {
    put_checked(out, &Command::ForgetProducers { stream, max });
}

/// Appends the command that opens a producer. The producer gets a new epoch above all its earlier ones and begins
/// again at sequence 0; clients that use an earlier epoch are fenced.
pub fn encode_open_producer(out: &mut Vec<u8>, stream: StreamId, id: &str) -> Result<(), CommandError> {
    check_producer_id(id)?;
    put_checked(out, &Command::OpenProducer { stream, id });
    Ok(())
}

/// Appends the command that removes versions of keys past their keyspace's bounds. The command reads up to `max` rows:
/// those of the keyspace `from` first, then those of keyspaces with higher ids, then the others. A caller that varies
/// `from` makes sure that no keyspace waits forever.
pub fn encode_prune_versions(out: &mut Vec<u8>, from: KeyspaceId, max: u32) {
    put_checked(out, &Command::PruneVersions { max, from });
}

/// Appends the command that makes each node keep a view of the state at the end of the command's entry, under `id`.
pub fn encode_digest(out: &mut Vec<u8>, id: u64) {
    put_checked(out, &Command::Digest { id });
}

/// Appends the command that raises the version of the state machine in force.
pub fn encode_raise_version(out: &mut Vec<u8>, to: u16) {
    put_checked(out, &Command::RaiseVersion { to });
}
