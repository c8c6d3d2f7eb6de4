//! What can go wrong in the state machine. Outcomes of commands are not errors and not in here.

use thalweg_store::BackendError;
use thalweg_types::{Action, Classified, Index, Lsn, Offset, StreamId};

use crate::blobs::BlobUnreadable;

/// Why the state could not be read, or an entry not be applied. All of these mean *stop*: the log
/// and the state no longer go together, or the backend has failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MachineError {
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Stored bytes are not what this version writes.
    #[error("state is corrupt: {what} at key {key}: {message}; rebuild the state from the log or a backup")]
    Corrupt {
        /// Which kind of row.
        what: &'static str,
        /// Its key in hexadecimal, shortened.
        key: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// The state was written by a version with another format.
    #[error("state has format {found}, this version reads {supported}: use the version that wrote it")]
    Format {
        /// As stored.
        found: u32,
        /// What this version reads.
        supported: u32,
    },
    /// An entry needs a version of the state machine that this binary does not know.
    #[error(
        "entry {entry} needs version {needed} of the state machine, and this binary knows versions up to {known}: upgrade \
         this node; nothing of the entry was applied"
    )]
    EntryNeedsUpgrade {
        /// The entry.
        entry: Index,
        /// The version that it needs.
        needed: u16,
        /// The highest version that this binary knows.
        known: u16,
    },
    /// The state is of a version of the state machine that this binary does not know.
    #[error(
        "version {in_force} of the state machine is in force since entry {entry} or before, and this binary knows versions \
         up to {known}: upgrade this node"
    )]
    StateNeedsUpgrade {
        /// The last entry that is applied.
        entry: Index,
        /// The version in force.
        in_force: u32,
        /// The highest version that this binary knows.
        known: u16,
    },
    /// A record was given that the state has applied already.
    #[error("record below LSN {next_lsn} was applied before: the state is at LSN {applied}")]
    AlreadyApplied {
        /// Exclusive bound of the record.
        next_lsn: Lsn,
        /// Exclusive bound of what is applied.
        applied: Lsn,
    },
    /// A payload that reaches past what a pointer into a segment can say.
    #[error("payload of {len} bytes at offset {offset} cannot be pointed into")]
    Unaddressable {
        /// Where it begins in its segment.
        offset: u32,
        /// Its length.
        len: usize,
    },
    /// A value that an entry asks about could not be read from the log.
    #[error(
        "an entry needs a value that can't be read from the log: {0}; nothing of the entry is applied, and every start ends \
         there again: restore a backup into a new directory (docs/guides/damage.md)"
    )]
    Blob(#[from] BlobUnreadable),
    /// An earlier call failed half-way; only opening again tells what is applied.
    #[error("the state machine stopped after an earlier failure: open the directory again")]
    Stopped,
}

impl MachineError {
    pub(crate) fn corrupt(what: &'static str, key: &[u8], message: &'static str) -> Self {
        let key = key.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
        Self::Corrupt { what, key, message }
    }
}

impl Classified for MachineError {
    fn code(&self) -> &'static str {
        match self {
            Self::Backend(error) => error.code(),
            Self::Corrupt { .. } => "state_corrupt",
            Self::Format { .. } => "state_format",
            Self::EntryNeedsUpgrade { .. } | Self::StateNeedsUpgrade { .. } => "needs_upgrade",
            Self::AlreadyApplied { .. } => "already_applied",
            Self::Unaddressable { .. } => "unaddressable",
            Self::Blob(_) => "log_read",
            Self::Stopped => "state_failed",
        }
    }

    fn action(&self) -> Action {
        Action::Stop
    }
}

/// Why a stream could not be read from where the caller wanted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StreamReadError {
    /// No stream has this id; it may have been deleted.
    #[error("no stream with id {0}")]
    NoSuchStream(StreamId),
    /// The offset lies below the log start offset.
    #[error("offset is trimmed: the stream begins at {start}")]
    Trimmed {
        /// The oldest offset that can be read.
        start: Offset,
    },
    /// The offset lies above the log end offset.
    #[error("offset is beyond the end: the next offset is {next}")]
    BeyondEnd {
        /// The offset that the next record will get.
        next: Offset,
    },
    /// The state could not be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl From<BackendError> for StreamReadError {
    fn from(error: BackendError) -> Self {
        Self::Machine(error.into())
    }
}

impl Classified for StreamReadError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoSuchStream(_) => "no_such_stream",
            Self::Trimmed { .. } => "trimmed",
            Self::BeyondEnd { .. } => "beyond_end",
            Self::Machine(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::NoSuchStream(_) | Self::Trimmed { .. } | Self::BeyondEnd { .. } => Action::Fix,
            Self::Machine(error) => error.action(),
        }
    }
}
