//! Errors of installing a snapshot, which replaces the state of a running database by that of another node.

use thalweg_log::{AppendError, ReadError};
use thalweg_snapshot::{LoadError, SnapshotReadError};
use thalweg_state::machine::MachineError;
use thalweg_store::BackendError;
use thalweg_types::{Index, classified};

use crate::error::OpenError;

/// Error returned when a snapshot cannot be installed. The database continues with its former state.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The node is not a member of a cluster.
    #[error("only a member of a cluster can install a snapshot: restore it into a new directory instead")]
    Alone,
    /// Another install of a snapshot is in progress in this database.
    #[error("another snapshot is being installed")]
    InProgress,
    /// The file that names the current state could not be replaced. Nothing has changed, and the install can be
    /// finished again.
    #[error("the file INSTALLED could not be replaced: {reason}; make sure that the node can write its directory")]
    NotSwitched {
        /// Message of the operating system about the file that could not be replaced.
        reason: String,
    },
    /// An earlier install failed while it made its state the current one. The next open shows which state is current.
    #[error("an earlier install failed while it switched the state: {reason}; restart the node")]
    SwitchFailed {
        /// Message of the operating system about the failed change of the current state.
        reason: String,
    },
    /// The given bytes are not the chunk that the install needs next. The install can continue with the right chunk.
    #[error("chunk {next} was expected: {error}; send the snapshot again from chunk {next} on")]
    Chunk {
        /// Number of the chunk that the install needs next.
        next: u64,
        /// Reason why the bytes are not the needed chunk.
        error: SnapshotReadError,
    },
    /// The contents of the snapshot are damaged, although the checksums of its chunks are right.
    #[error("the snapshot is damaged: {0}; take a new one")]
    Damaged(SnapshotReadError),
    /// The snapshot is an increment (changes since an LSN), or has an old format without the cluster's members.
    #[error("the snapshot can't be installed: it is {what}; take a full snapshot with the present version")]
    Unsuitable {
        /// Description of the reason why the snapshot cannot be installed.
        what: &'static str,
    },
    /// The database has applied later log entries than the snapshot contains.
    #[error("the snapshot ends at entry {snapshot}, and entry {applied} is applied already: take a new snapshot")]
    Outdated {
        /// Index of the last log entry that the snapshot contains.
        snapshot: Index,
        /// Index of the last log entry that the database has applied.
        applied: Index,
    },
    /// The node's log has an entry after the snapshot. Only consensus can decide if this entry continues the snapshot.
    #[error(
        "the snapshot ends at entry {snapshot}, and the log has entry {entry}: take a new snapshot after a few writes"
    )]
    LogAhead {
        /// Index of the last log entry that the snapshot contains.
        snapshot: Index,
        /// Index of the first entry after the snapshot in the log.
        entry: Index,
    },
    /// The caller has not passed the last chunk of the snapshot yet.
    #[error("the snapshot is incomplete: chunk {next} is missing")]
    Incomplete {
        /// Number of the chunk that the install needs next.
        next: u64,
    },
    /// The install of the snapshot has already ended with an error.
    #[error("the install has ended with an earlier error: begin a new one")]
    Ended,
    /// The database is closed.
    #[error("the database is closed")]
    Closed,
    /// The files of the new state could not be created, opened or removed.
    #[error(transparent)]
    Files(#[from] OpenError),
    /// The new state could not be written or read.
    #[error(transparent)]
    State(#[from] MachineError),
    /// The node's log could not be written during the install.
    #[error(transparent)]
    Log(#[from] AppendError),
    /// The node's log could not be read during the install.
    #[error("the log could not be read: {0}")]
    LogRead(#[from] ReadError),
}

impl From<LoadError> for InstallError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::State(error) => Self::State(error),
            LoadError::Log(AppendError::Closed) => Self::Closed,
            LoadError::Log(error) => Self::Log(error),
        }
    }
}

impl From<BackendError> for InstallError {
    fn from(error: BackendError) -> Self {
        Self::State(error.into())
    }
}

classified!(InstallError {
    Self::Alone => "not_a_member", Fix;
    Self::InProgress => "install_in_progress", Retry;
    Self::NotSwitched { .. } => "install_not_switched", Retry;
    Self::SwitchFailed { .. } => "install_switch_failed", Stop;
    Self::Chunk { .. } => "install_chunk", Retry;
    Self::Damaged(error) => error.code(), Stop;
    Self::Unsuitable { .. } => "snapshot_unsuitable", Fix;
    Self::Outdated { .. } => "snapshot_outdated", Retry;
    Self::LogAhead { .. } => "snapshot_behind_log", Retry;
    Self::Incomplete { .. } => "snapshot_incomplete", Fix;
    Self::Ended => "install_ended", Fix;
    Self::Closed => "closed", Stop;
    Self::Files(error) => error.code(), error.action();
    Self::State(MachineError::Backend(error)) => error.code(), error.action();
    Self::State(error) => error.code(), error.action();
    Self::Log(error) => error.code(), error.action();
    Self::LogRead(error) => error.code(), error.action();
});
