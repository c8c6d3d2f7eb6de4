//! Errors of taking and of reading snapshots.

use std::io;

use thalweg_state::machine::MachineError;
use thalweg_store::BackendError;
use thalweg_types::{Action, Classified, Lsn};

/// Error returned when a snapshot cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The log no longer has all entries that the requested increment (snapshot of the changes since an LSN) must
    /// contain.
    #[error("the log no longer has all records since LSN {since} (it begins at {oldest}): take a full snapshot")]
    Compacted {
        /// LSN at which the requested increment begins.
        since: Lsn,
        /// Oldest LSN whose entries the log still has.
        oldest: Lsn,
    },
    /// The requested increment (snapshot of changes) would begin after the last log entry that this node has applied.
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
    /// The member has stopped serving, because its state may differ from the states of the other members.
    #[error("this node has stopped serving: {reason}; take the snapshot of another member")]
    StoppedServing {
        /// Reason why the node has stopped serving.
        reason: String,
    },
    /// The maximum number of snapshots is in progress.
    #[error("{open} snapshots are already being taken: try again later")]
    TooMany {
        /// Number of snapshots in progress.
        open: usize,
    },
    /// The disk ran full, so log segments that the snapshot still needed were freed.
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
        /// Number of the chunk to which the snapshot was to be rewound.
        chunk: u64,
        /// Number of the oldest chunk to which the snapshot can be rewound.
        oldest: u64,
        /// Number of the chunk that the snapshot returns next.
        next: u64,
    },
    /// The database's state could not be read for the snapshot.
    #[error(transparent)]
    State(#[from] MachineError),
    /// The database's log could not be read or synced for the snapshot.
    #[error("the log could not be read: {0}")]
    Log(String),
    /// The log record with the bytes of a value is damaged.
    #[error("a value could not be read: {0}")]
    ValueDamaged(String),
    /// A chunk of the snapshot could not be built or written.
    #[error("the snapshot could not be written: {0}")]
    Io(#[from] io::Error),
}

impl SnapshotError {
    /// Returns true if the state, or a value in it, is damaged on disk. All further snapshots of this node will then
    /// fail in the same way. Returns false for an error of the operating system, because it may pass.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::ValueDamaged(_) => true,
            Self::State(error) => {
                matches!(error, MachineError::Corrupt { .. } | MachineError::Backend(BackendError::Corrupt { .. }))
            }
            _ => false,
        }
    }
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
            Self::StoppedServing { .. } => "stopped_serving",
            Self::TooMany { .. } => "too_many_snapshots",
            Self::Expired => "snapshot_expired",
            Self::ChunkGone { .. } => "chunk_gone",
            Self::State(error) => error.code(),
            Self::Log(_) => "log_unreadable",
            Self::ValueDamaged(_) => "log_corrupt",
            Self::Io(_) => "io",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Compacted { .. } | Self::PastEnd { .. } | Self::ChunkGone { .. } => Action::Fix,
            Self::TooMany { .. } | Self::Expired => Action::Retry,
            Self::StoppedServing { .. } | Self::State(_) | Self::Log(_) | Self::ValueDamaged(_) | Self::Io(_) => {
                Action::Stop
            }
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
    #[error("not a snapshot: the file begins with other bytes")]
    NotASnapshot,
    /// The snapshot has another format version.
    #[error("it has format {found}, and this version reads {supported}")]
    Version {
        /// Format version of the snapshot.
        found: u8,
        /// Format version that this program reads.
        supported: u8,
    },
    /// The bytes end before the end of the snapshot.
    #[error("it is truncated after {chunks} whole chunks ({bytes} bytes)")]
    Truncated {
        /// Number of complete chunks before the bytes end.
        chunks: u64,
        /// Total length in bytes of the complete chunks.
        bytes: u64,
    },
    /// The bytes of the snapshot are damaged.
    #[error("it is damaged in chunk {chunk}, at byte {at}: {what}")]
    Corrupt {
        /// Number of the chunk that is damaged.
        chunk: u64,
        /// Offset in bytes at which the damaged chunk begins.
        at: u64,
        /// Description of the damage in this chunk.
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
