//! What can go wrong with snapshots: taking one, reading one, restoring.

use std::io;

use thalweg_state::machine::MachineError;
use thalweg_store::BackendError;
use thalweg_types::{Action, Classified, Lsn, SpaceTime};

use crate::error::OpenError;

/// A snapshot could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The log does not reach back to where the increment should begin.
    #[error("the log no longer has what was written since LSN {since} (it begins at {oldest}): take a full snapshot")]
    Compacted {
        /// Where it should begin.
        since: Lsn,
        /// Where the log begins.
        oldest: Lsn,
    },
    /// The increment should begin where this node has not been.
    #[error(
        "LSN {since} lies past what is applied here ({applied}): that backup is of another node, or the log was \
             repaired; take a full snapshot"
    )]
    PastEnd {
        /// Where it should begin.
        since: Lsn,
        /// What is applied.
        applied: Lsn,
    },
    /// As many are being taken as may be.
    #[error("{open} snapshots are being taken already: try again later")]
    TooMany {
        /// How many.
        open: usize,
    },
    /// The disk ran full, so log that the snapshot needed was freed.
    #[error(
        "the disk is full, and log that the snapshot needed was freed for new writes: make room, then take it anew"
    )]
    Expired,
    /// It can't be rewound so far.
    #[error("the snapshot can't go on at chunk {chunk}: it is at {next}, and can be rewound to {oldest}; take it anew")]
    ChunkGone {
        /// Where it should go on.
        chunk: u64,
        /// The oldest chunk that can be had again.
        oldest: u64,
        /// The chunk that comes next.
        next: u64,
    },
    /// The state could not be read.
    #[error(transparent)]
    State(#[from] MachineError),
    /// The log could not be read or synced.
    #[error("the log could not be read: {0}")]
    Log(String),
    /// A chunk could not be made or written.
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

/// A snapshot's bytes are not what a snapshot is.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotReadError {
    /// They could not be read.
    #[error("it could not be read: {0}")]
    Io(#[from] io::Error),
    /// They are something else.
    #[error("it is no snapshot")]
    NotASnapshot,
    /// They are of another version.
    #[error("it is of format {found}, this version reads {supported}")]
    Version {
        /// What it is of.
        found: u8,
        /// What can be read.
        supported: u8,
    },
    /// They end early.
    #[error("it ends after {chunks} whole chunks, {bytes} bytes: what should follow is missing")]
    Truncated {
        /// Whole chunks.
        chunks: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// They are damaged.
    #[error("it is damaged in chunk {chunk}, at byte {at}: {what}")]
    Corrupt {
        /// Which chunk.
        chunk: u64,
        /// Where it begins.
        at: u64,
        /// What is wrong.
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

/// Nothing was restored, or not all: the directory is then marked as unfinished and can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is something in the directory.
    #[error("{path} exists and is not empty: restore into a new directory")]
    Exists {
        /// The directory.
        path: String,
    },
    /// There is no full snapshot among the parts that lies low enough.
    #[error("no full snapshot reaches back to {wanted}: the oldest is at LSN {lsn}, {time} µs", time = time.0)]
    TooEarly {
        /// What was asked for.
        wanted: String,
        /// LSN of the oldest full one.
        lsn: Lsn,
        /// Its time.
        time: SpaceTime,
    },
    /// No full snapshot at all.
    #[error("there is no full snapshot among {parts} parts: increments alone can't be restored")]
    NoFull {
        /// How many parts were given.
        parts: usize,
    },
    /// The parts don't reach so far.
    #[error("the backup ends at LSN {end}, before {wanted}: restore to the end, or take an increment first")]
    TooLate {
        /// What was asked for.
        wanted: Lsn,
        /// Where the parts end.
        end: Lsn,
    },
    /// Parts are missing in between.
    #[error("an increment is missing: nothing covers LSN {from} up to {to}, where the next one begins")]
    Missing {
        /// Where it should begin.
        from: Lsn,
        /// Where what comes next begins.
        to: Lsn,
    },
    /// Parts of different nodes.
    #[error("{part} is of node {found:016x}, the others of {expected:016x}: restore one node at a time")]
    OtherNode {
        /// Which part.
        part: String,
        /// Its node.
        found: u64,
        /// The other node.
        expected: u64,
    },
    /// A part that does not continue the ones before it.
    #[error("{part} does not continue what was restored before it: {what}")]
    DoesNotFollow {
        /// Which part.
        part: String,
        /// How that shows.
        what: String,
    },
    /// A part is damaged.
    #[error("{part}: {error}")]
    Part {
        /// Which part.
        part: String,
        /// What is wrong with it.
        error: SnapshotReadError,
    },
    /// The new directory could not be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The state could not be written.
    #[error(transparent)]
    State(#[from] MachineError),
    /// The log could not be written.
    #[error(transparent)]
    Log(#[from] thalweg_log::AppendError),
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
