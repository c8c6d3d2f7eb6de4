//! Errors of restoring snapshots.

use thalweg_snapshot::{LoadError, SnapshotReadError};
use thalweg_state::machine::MachineError;
use thalweg_store::BackendError;
use thalweg_types::{Action, Classified, Lsn, SpaceTime};

use crate::error::OpenError;

/// Error returned when a restore fails. If the restore had begun, its directory is marked as unfinished and cannot be
/// opened.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The destination directory of the restore is not empty.
    #[error("{path} exists and is not empty: restore into a new directory")]
    Exists {
        /// Path of the destination directory.
        path: String,
    },
    /// Every full snapshot among the given parts (snapshots of a backup) is newer than the requested position.
    #[error("no full snapshot reaches back to {wanted}: the oldest is at LSN {lsn}, {time} µs", time = time.0)]
    TooEarly {
        /// Position to which the caller wants to restore.
        wanted: String,
        /// LSN of the oldest full snapshot among the parts.
        lsn: Lsn,
        /// Time of the oldest full snapshot among the parts.
        time: SpaceTime,
    },
    /// The given parts (snapshots of a backup) contain no full snapshot.
    #[error("there is no full snapshot among {parts} parts: increments alone can't be restored")]
    NoFull {
        /// Number of snapshots that the caller gave.
        parts: usize,
    },
    /// The given parts (snapshots of a backup) end before the requested position.
    #[error("the backup ends at LSN {end}, before {wanted}: restore to the end, or take an increment first")]
    TooLate {
        /// LSN to which the caller wants to restore.
        wanted: Lsn,
        /// LSN at which the last of the given snapshots ends.
        end: Lsn,
    },
    /// The given parts (snapshots of a backup) have a gap between them.
    #[error("an increment is missing: nothing covers LSN {from} up to {to}, where the next one begins")]
    Missing {
        /// LSN at which the missing increment would begin.
        from: Lsn,
        /// LSN at which the next of the given snapshots begins.
        to: Lsn,
    },
    /// The given parts (snapshots of a backup) come from different nodes.
    #[error("{part} is from node {found:016x}, the others are from {expected:016x}: restore one node at a time")]
    OtherNode {
        /// Name of the snapshot that comes from another node.
        part: String,
        /// Id of the node that the snapshot named `part` comes from.
        found: u64,
        /// Id of the node that the other snapshots come from.
        expected: u64,
    },
    /// A part (snapshot of a backup) does not continue the parts before it.
    #[error("{part} does not continue the previous part: {what}")]
    DoesNotFollow {
        /// Name of the snapshot that does not fit.
        part: String,
        /// Description of the contradiction between the snapshot named `part` and those before it.
        what: String,
    },
    /// A part (snapshot of a backup) is damaged or cannot be read.
    #[error("{part}: {error}")]
    Part {
        /// Name of the damaged snapshot.
        part: String,
        /// Reason why the damaged snapshot cannot be used.
        error: SnapshotReadError,
    },
    /// The destination directory could not be created or opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The restored state could not be written.
    #[error(transparent)]
    State(#[from] MachineError),
    /// The log of the restored directory could not be written.
    #[error(transparent)]
    Log(#[from] thalweg_log::AppendError),
}

impl From<LoadError> for RestoreError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::State(error) => Self::State(error),
            LoadError::Log(error) => Self::Log(error),
        }
    }
}

impl From<BackendError> for RestoreError {
    fn from(error: BackendError) -> Self {
        Self::State(error.into())
    }
}

impl Classified for RestoreError {
    fn code(&self) -> &'static str {
        match self {
            Self::Exists { .. } => "directory_exists",
            Self::TooEarly { .. } => "before_backup",
            Self::NoFull { .. } => "no_full_snapshot",
            Self::TooLate { .. } => "after_backup",
            Self::Missing { .. } => "missing_increment",
            Self::OtherNode { .. } => "other_node",
            Self::DoesNotFollow { .. } => "does_not_follow",
            Self::Part { error, .. } => error.code(),
            Self::Open(error) => error.code(),
            Self::State(error) => error.code(),
            Self::Log(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Exists { .. }
            | Self::TooEarly { .. }
            | Self::NoFull { .. }
            | Self::TooLate { .. }
            | Self::Missing { .. }
            | Self::OtherNode { .. }
            | Self::DoesNotFollow { .. } => Action::Fix,
            Self::Part { error, .. } => error.action(),
            Self::Open(error) => error.action(),
            Self::State(error) => error.action(),
            Self::Log(error) => error.action(),
        }
    }
}
