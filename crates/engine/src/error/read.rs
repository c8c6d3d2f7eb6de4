//! `ReadError`: the errors of reads.

use thalweg_redis::Collection;
use thalweg_state::{
    history::HistoryError,
    machine::{MachineError, StreamReadError},
};
use thalweg_store::BackendError;
use thalweg_types::{Action, Classified, KeyspaceId, Offset, Revision, StreamId};

/// Error returned when a read cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The requested offset is below the log start offset of the stream, because its record was trimmed.
    #[error("offset {requested} has been trimmed: the stream starts at {start}")]
    Trimmed {
        /// Offset that the reader requested.
        requested: Offset,
        /// Oldest offset that can be read from the stream.
        start: Offset,
    },
    /// The requested offset is above the log end offset of the stream.
    #[error("offset {requested} is beyond the end: the next offset is {next}")]
    BeyondEnd {
        /// Offset that the reader requested.
        requested: Offset,
        /// Offset that the next record of the stream will get.
        next: Offset,
    },
    /// The stream does not exist. It may have been deleted.
    #[error("there is no stream with id {0}: it was deleted; look up the id of its name again")]
    NoSuchStream(StreamId),
    /// The keyspace does not exist. It may have been dropped.
    #[error("there is no keyspace with id {0}: it was dropped; look up the id of its name again")]
    NoSuchKeyspace(KeyspaceId),
    /// The keyspace keeps no history, so it cannot be read at a past revision.
    #[error("the keyspace keeps no history: configure one to read at a revision from then on")]
    NoHistory,
    /// The requested revision is older than the history that the keyspace, or one of the keys, has kept.
    #[error("revision {requested} is not kept any more: the oldest that can be read is {oldest}")]
    Compacted {
        /// Revision that the reader requested.
        requested: Revision,
        /// Oldest revision that can still be read, of the keyspace or of the key.
        oldest: Revision,
    },
    /// No command has used the requested revision yet.
    #[error("revision {requested} has not been used yet: the newest is {newest}")]
    FutureRevision {
        /// Revision that the reader requested.
        requested: Revision,
        /// Newest revision that a command has used.
        newest: Revision,
    },
    /// The cursor does not belong to this scan: it is damaged, or of another keyspace or range.
    #[error("bad cursor: {what}")]
    BadCursor {
        /// Description of what is wrong with the cursor.
        what: &'static str,
    },
    /// The key refers to a Redis hash or stream, so it has no bytes to return.
    #[error("the key holds a {kind}: read it with a Redis client")]
    HoldsCollection {
        /// Name of the collection's kind: `hash` or `stream`.
        kind: &'static str,
    },
    /// The reader's view shows a value that was overwritten since, and the log no longer has the bytes of this value.
    #[error(
        "the view is too old: a value it shows has been overwritten and its bytes freed; scan again from the last key"
    )]
    ViewExpired,
    /// This member has stopped serving requests, because its data may differ from that of the cluster's other members.
    #[error("this node has stopped serving: {reason}")]
    StoppedServing {
        /// Reason why the node has stopped serving.
        reason: String,
    },
    /// Bytes of the log on disk differ from those that were written.
    #[error("corrupt data: {0}; run `thalweg log verify`")]
    Corrupt(String),
    /// The state is damaged. The message names the command that may repair it.
    #[error("corrupt data: {0}")]
    CorruptState(String),
    /// A file of the log or of the state could not be read from the disk.
    #[error("read failed: {0}")]
    Io(String),
}

impl Classified for ReadError {
    fn code(&self) -> &'static str {
        match self {
            Self::Trimmed { .. } => "trimmed",
            Self::BeyondEnd { .. } => "beyond_end",
            Self::NoSuchStream(_) => "no_such_stream",
            Self::NoSuchKeyspace(_) => "no_such_keyspace",
            Self::NoHistory => "no_history",
            Self::Compacted { .. } => "compacted",
            Self::FutureRevision { .. } => "future_revision",
            Self::BadCursor { .. } => "bad_cursor",
            Self::HoldsCollection { .. } => "wrong_kind",
            Self::ViewExpired => "view_expired",
            Self::StoppedServing { .. } => "stopped_serving",
            Self::Corrupt(_) | Self::CorruptState(_) => "corrupt",
            Self::Io(_) => "io",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Trimmed { .. } | Self::BeyondEnd { .. } | Self::NoSuchStream(_) => Action::Fix,
            Self::NoSuchKeyspace(_)
            | Self::NoHistory
            | Self::Compacted { .. }
            | Self::FutureRevision { .. }
            | Self::BadCursor { .. }
            | Self::HoldsCollection { .. } => Action::Fix,
            Self::ViewExpired => Action::Retry,
            Self::StoppedServing { .. } | Self::Corrupt(_) | Self::CorruptState(_) | Self::Io(_) => Action::Stop,
        }
    }
}

impl From<HistoryError> for ReadError {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::NoHistory => Self::NoHistory,
            HistoryError::Compacted { requested, oldest } => Self::Compacted { requested, oldest },
            HistoryError::NotYet { requested, newest } => Self::FutureRevision { requested, newest },
            HistoryError::Machine(error) => error.into(),
        }
    }
}

impl From<MachineError> for ReadError {
    fn from(error: MachineError) -> Self {
        match error {
            MachineError::Backend(BackendError::Io { .. }) => Self::Io(error.to_string()),
            other => Self::CorruptState(other.to_string()),
        }
    }
}

impl ReadError {
    /// Converts an error of reading a stream, and adds the requested offset to it.
    pub(crate) fn of_stream(error: StreamReadError, requested: Offset) -> Self {
        match error {
            StreamReadError::NoSuchStream(id) => Self::NoSuchStream(id),
            StreamReadError::Trimmed { start } => Self::Trimmed { requested, start },
            StreamReadError::BeyondEnd { next } => Self::BeyondEnd { requested, next },
            StreamReadError::Machine(error) => error.into(),
        }
    }
}

impl From<thalweg_log::ReadError> for ReadError {
    fn from(error: thalweg_log::ReadError) -> Self {
        match error {
            thalweg_log::ReadError::Gone { .. } => Self::ViewExpired,
            thalweg_log::ReadError::Disk(_) => Self::Io(error.to_string()),
            // Both messages already name the command to run.
            thalweg_log::ReadError::Corrupt(corruption) => Self::Corrupt(corruption.to_string()),
            other => Self::Corrupt(other.to_string()),
        }
    }
}

/// Creates the error for a key that refers to a Redis collection instead of bytes.
pub(crate) fn holds(collection: &Collection) -> ReadError {
    ReadError::HoldsCollection { kind: collection.kind.name() }
}

#[cfg(test)]
mod tests {
    use thalweg_types::Lsn;

    use super::*;

    #[test]
    fn damage_names_the_command_for_the_part_that_is_damaged() {
        let table = BackendError::Corrupt { what: "table 1".to_owned(), message: "wrong checksum".to_owned() };
        let row = MachineError::Corrupt { what: "value", key: "00".to_owned(), message: "too short" };
        for state in [MachineError::Backend(table), row].map(ReadError::from) {
            let shown = state.to_string();
            assert!(shown.contains("`thalweg state rebuild`") && !shown.contains("log verify"), "{shown}");
            assert_eq!((state.code(), state.action()), ("corrupt", Action::Stop));
        }
        let log = ReadError::from(thalweg_log::ReadError::PastEnd { lsn: Lsn(2), end: Lsn(1) });
        assert!(log.to_string().ends_with("run `thalweg log verify`"), "{log}");
    }
}
