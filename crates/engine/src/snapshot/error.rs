//! Errors of taking, reading and restoring snapshots.

use std::io;

use thalweg_state::machine::MachineError;
use thalweg_store::BackendError;
use thalweg_types::{Action, Classified, Lsn, SpaceTime};

use super::loader::LoadError;
use crate::error::OpenError;

/// Error returned when a snapshot cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The log no longer reaches back to the LSN at which the requested increment begins.
    #[error("the log no longer has all records since LSN {since} (it begins at {oldest}): take a full snapshot")]
    Compacted {
        /// LSN at which the requested increment begins.
        since: Lsn,
        /// Oldest LSN that the log still has.
        oldest: Lsn,
    },
    /// The requested increment would begin after the last entry that this node has applied.
    #[error(
        "LSN {since} is past the last LSN that this node has applied ({applied}): the backup is from another node, or \
        the log was repaired; take a full snapshot"
    )]
    PastEnd {
        /// LSN at which the requested increment begins.
        since: Lsn,
        /// LSN up to which this node has applied the log.
        applied: Lsn,
    },
    /// The maximum number of snapshots is in progress.
    #[error("{open} snapshots are already being taken: try again later")]
    TooMany {
        /// Number of snapshots in progress.
        open: usize,
    },
    /// The disk ran full, and log segments that the snapshot needed were freed.
    #[error(
        "the disk is full, and log that the snapshot needed was freed for new writes: make room, then take the snapshot again"
    )]
    Expired,
    /// The snapshot cannot be rewound to the requested chunk.
    #[error(
        "the snapshot can't continue at chunk {chunk}: it is at chunk {next} and can be rewound to {oldest}; take \
        a new snapshot"
    )]
    ChunkGone {
        /// Number of the requested chunk.
        chunk: u64,
        /// Number of the oldest chunk to which the snapshot can be rewound.
        oldest: u64,
        /// Number of the chunk that the snapshot returns next.
        next: u64,
    },
    /// The state could not be read.
    #[error(transparent)]
    State(#[from] MachineError),
    /// The log could not be read or synced.
    #[error("the log could not be read: {0}")]
    Log(String),
    /// A chunk could not be built or written.
    #[error("the snapshot could not be written: {0}")]
    Io(#[from] io::Error),
}

impl From<BackendError> for SnapshotError {
    fn from(error: BackendError) -> Self {
        Self::State(error.into())
    }
}

impl Classified for SnapshotError {
    fn code(&self) -> &'static str {
        match self {
            Self::Compacted { .. } => "compacted",
            Self::PastEnd { .. } => "past_end",
            Self::TooMany { .. } => "too_many_snapshots",
            Self::Expired => "snapshot_expired",
            Self::ChunkGone { .. } => "chunk_gone",
            Self::State(error) => error.code(),
            Self::Log(_) => "log_unreadable",
            Self::Io(_) => "io",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Compacted { .. } | Self::PastEnd { .. } | Self::ChunkGone { .. } => Action::Fix,
            Self::TooMany { .. } | Self::Expired => Action::Retry,
            Self::State(_) | Self::Log(_) | Self::Io(_) => Action::Stop,
        }
    }
}

/// Error returned when bytes are not a valid snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotReadError {
    /// The bytes of the snapshot could not be read.
    #[error("it could not be read: {0}")]
    Io(#[from] io::Error),
    /// The bytes are not a snapshot.
    #[error("it is not a snapshot")]
    NotASnapshot,
    /// The snapshot has another format version.
    #[error("it has format {found}, and this version reads {supported}")]
    Version {
        /// Format version of the snapshot.
        found: u8,
        /// Format version that this program reads.
        supported: u8,
    },
    /// The bytes end before the snapshot does.
    #[error("it is truncated after {chunks} whole chunks ({bytes} bytes)")]
    Truncated {
        /// Number of chunks that are complete.
        chunks: u64,
        /// Bytes of the chunks that are complete.
        bytes: u64,
    },
    /// The bytes of the snapshot are damaged.
    #[error("it is damaged in chunk {chunk}, at byte {at}: {what}")]
    Corrupt {
        /// Number of the chunk that is damaged.
        chunk: u64,
        /// Offset in bytes at which the damaged chunk begins.
        at: u64,
        /// Description of the damage.
        what: String,
    },
}

impl Classified for SnapshotReadError {
    fn code(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::NotASnapshot => "not_a_snapshot",
            Self::Version { .. } => "snapshot_version",
            Self::Truncated { .. } => "snapshot_truncated",
            Self::Corrupt { .. } => "snapshot_corrupt",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::NotASnapshot => Action::Fix,
            _ => Action::Stop,
        }
    }
}

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
    /// All full snapshots among the given parts (snapshots of a backup) are newer than the requested position.
    #[error("no full snapshot reaches back to {wanted}: the oldest is at LSN {lsn}, {time} µs", time = time.0)]
    TooEarly {
        /// Position to which the caller wants to restore.
        wanted: String,
        /// LSN of the oldest full snapshot among the parts.
        lsn: Lsn,
        /// Space time of the oldest full snapshot among the parts.
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
        /// Id of the node that this snapshot comes from.
        found: u64,
        /// Id of the node that the other snapshots come from.
        expected: u64,
    },
    /// A part (snapshot of a backup) does not continue the parts before it.
    #[error("{part} does not continue the previous part: {what}")]
    DoesNotFollow {
        /// Name of the snapshot that does not fit.
        part: String,
        /// Description of the contradiction between this snapshot and those before it.
        what: String,
    },
    /// A part (snapshot of a backup) is damaged or cannot be read.
    #[error("{part}: {error}")]
    Part {
        /// Name of the damaged snapshot.
        part: String,
        /// Reason why the snapshot cannot be used.
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
