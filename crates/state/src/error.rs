//! Errors of the state machine. A command that is rejected or finds nothing is an outcome, not one of these errors.

use thalweg_store::BackendError;
use thalweg_types::{Action, Classified, Index, Lsn, Offset, StreamId};

use crate::blobs::BlobUnreadable;

/// Error returned when the state cannot be read or an entry cannot be applied. All variants mean *stop*: the log
/// and the state no longer match, or the backend has failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MachineError {
    /// The backend that stores the state failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Stored bytes are not in the format that this version of the program writes.
    #[error("state is corrupt: {what} at key {key}: {message}; run `thalweg state rebuild`, or restore a backup")]
    Corrupt {
        /// Kind of the row (a key and a value of the state) that does not decode.
        what: &'static str,
        /// Key of the row in hexadecimal, truncated to 32 bytes.
        key: String,
        /// Description of the damage.
        message: &'static str,
    },
    /// A program version with another state format wrote the state.
    #[error("state has format {found}, this version reads {supported}: use the version that wrote it")]
    Format {
        /// Format version of the stored state.
        found: u32,
        /// Format version that this program reads.
        supported: u32,
    },
    /// A log entry needs a version of the state machine that this binary does not support.
    #[error(
        "entry {entry} needs version {needed} of the state machine, and this binary supports versions up to {known}: \
         upgrade this node; nothing of the entry was applied"
    )]
    EntryNeedsUpgrade {
        /// Index of the log entry that needs the version.
        entry: Index,
        /// Version of the state machine that the log entry needs.
        needed: u16,
        /// Highest version of the state machine that this binary supports.
        known: u16,
    },
    /// The state uses a version of the state machine that this binary does not support.
    #[error(
        "version {in_force} of the state machine is in force since entry {entry} or before, and this binary supports \
         versions up to {known}: upgrade this node"
    )]
    StateNeedsUpgrade {
        /// Index of the last applied log entry.
        entry: Index,
        /// Version of the state machine that the stored state uses.
        in_force: u32,
        /// Highest version of the state machine that this binary supports.
        known: u16,
    },
    /// The state has already applied this record, so it must not be applied again.
    #[error("the record that ends at LSN {next_lsn} was already applied: the state is at LSN {applied}")]
    AlreadyApplied {
        /// LSN at which the given record ends (exclusive).
        next_lsn: Lsn,
        /// LSN below which all records are applied already.
        applied: Lsn,
    },
    /// A log entry's payload extends beyond the maximum offset of a pointer into a segment.
    #[error("payload of {len} bytes at offset {offset} exceeds the maximum offset of a pointer into a segment")]
    Unaddressable {
        /// Offset of the payload in its segment.
        offset: u32,
        /// Length of the payload in bytes.
        len: usize,
    },
    /// The bytes of a value that an entry needs could not be read from the log.
    #[error(
        "an entry needs a value that can't be read from the log: {0}; the entry was not applied, and every start will \
        stop at it: restore a backup into a new directory (docs/guides/damage.md)"
    )]
    Blob(#[from] BlobUnreadable),
    /// An earlier call failed half-way, so this machine applies no more records. The applied position is known only
    /// after the directory is opened again.
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

/// Error returned when a stream cannot be read from the requested offset.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StreamReadError {
    /// No live stream has this id; the stream may have been deleted.
    #[error("there is no stream with id {0}: it was deleted; look up the id of its name again")]
    NoSuchStream(StreamId),
    /// The requested offset is below the log start offset of the stream: its record was trimmed.
    #[error("offset is trimmed: the stream begins at {start}")]
    Trimmed {
        /// Oldest offset that can be read from the stream.
        start: Offset,
    },
    /// The requested offset is above the log end offset of the stream.
    #[error("offset is beyond the end: the next offset is {next}")]
    BeyondEnd {
        /// Offset that the next record of the stream will get.
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
