//! What can go wrong, one enum per operation, and what the caller should do about it.

use std::{io, time::Duration};

use thalweg_types::{Action, Classified, Generation, Lsn};

use crate::format::Damage;

/// Bytes of the log that were attested as durable and are not what they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} is corrupt at byte {offset}: {what}: expected {expected:#x}, found {got:#x}")]
pub struct Corruption {
    /// The segment file, relative to the disk's root.
    pub file: String,
    /// Byte offset of the batch, record or header that is bad.
    pub offset: u64,
    /// What was checked.
    pub what: &'static str,
    /// The value that was expected.
    pub expected: u64,
    /// The value that was there.
    pub got: u64,
}

impl Corruption {
    pub(crate) fn at(file: &str, offset: u32, damage: Damage) -> Self {
        Self {
            file: file.to_owned(),
            offset: offset.into(),
            what: damage.what,
            expected: damage.expected,
            got: damage.got,
        }
    }
}

/// A failed operation on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {operation} {file}: {message}")]
pub struct DiskFault {
    /// What was tried.
    pub operation: &'static str,
    /// On which file or directory.
    pub file: String,
    /// The kind of error.
    pub kind: io::ErrorKind,
    /// The system's words.
    pub message: String,
}

impl DiskFault {
    pub(crate) fn new(operation: &'static str, file: &str, error: &io::Error) -> Self {
        Self { operation, file: file.to_owned(), kind: error.kind(), message: error.to_string() }
    }

    /// Whether the disk had no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// Adds what was tried and where to an I/O error.
pub(crate) trait Explain<T> {
    fn explain(self, operation: &'static str, file: &str) -> Result<T, DiskFault>;
}

impl<T> Explain<T> for io::Result<T> {
    fn explain(self, operation: &'static str, file: &str) -> Result<T, DiskFault> {
        self.map_err(|error| DiskFault::new(operation, file, &error))
    }
}

/// Why a log was not opened. Nothing was changed, except by a repair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another handle of this one, has the log open.
    #[error("{dir} is in use by another process: stop it first")]
    Locked {
        /// The log's directory.
        dir: String,
    },
    /// Data that was attested as durable is damaged.
    #[error("{0}; restore it from a copy, or open with --repair to cut the log there and lose what follows")]
    Corrupt(#[from] Corruption),
    /// A segment was written by another version.
    #[error(
        "{file} has format version {version}, this program reads {}: use the program that wrote it",
        crate::format::FORMAT_VERSION
    )]
    Version {
        /// The segment file.
        file: String,
        /// Its version.
        version: u64,
    },
    /// An option is out of its range.
    #[error("option {option} is {got}, must be {expected}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Its value.
        got: u64,
        /// What it must be.
        expected: String,
    },
    /// The disk refused.
    #[error("{0}")]
    Disk(#[from] DiskFault),
    /// A background thread could not be started.
    #[error("cannot start a thread: {reason}")]
    Thread {
        /// The system's words.
        reason: String,
    },
}

impl Classified for OpenError {
    fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "log_locked",
            Self::Corrupt(_) => "log_corrupt",
            Self::Version { .. } => "log_version",
            Self::Option { .. } => "log_option",
            Self::Disk(fault) if fault.is_full() => "disk_full",
            Self::Disk(_) => "log_io",
            Self::Thread { .. } => "log_thread",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Locked { .. } | Self::Thread { .. } => Action::Retry,
            Self::Option { .. } => Action::Fix,
            Self::Disk(fault) if fault.is_full() => Action::Retry,
            Self::Corrupt(_) | Self::Version { .. } | Self::Disk(_) => Action::Stop,
        }
    }
}

/// Why an append, a sync or a free did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// A write or fsync failed earlier or now; what is on disk is unknown, so the log takes nothing more.
    #[error("the log has failed and takes no writes: {reason}; check the disk, then restart")]
    Failed {
        /// What failed.
        reason: String,
    },
    /// The log has been closed.
    #[error("the log is closed")]
    Closed,
    /// Less room on the disk than is kept in reserve; nothing was written. Deletes and trims still work.
    #[error("disk full: {free_bytes} bytes free, {reserve_bytes} are kept in reserve; free space or delete data")]
    DiskFull {
        /// Free bytes.
        free_bytes: u64,
        /// Bytes kept in reserve.
        reserve_bytes: u64,
    },
    /// The batch does not fit in a segment; nothing was written.
    #[error("batch of {got} bytes does not fit in a segment, which takes {max}: split it")]
    TooLarge {
        /// Its bytes with framing.
        got: u64,
        /// Most bytes that a batch may have.
        max: u64,
    },
    /// No records were given.
    #[error("a batch needs at least one record")]
    Empty,
    /// No prepared segment became ready in time; nothing was written.
    #[error("no prepared segment after {waited:?}{}", reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    NoSegment {
        /// How long was waited.
        waited: Duration,
        /// The last failure to prepare one, if any.
        reason: Option<String>,
    },
    /// The segment is the active one, or is not wholly released.
    #[error("segment {generation} is still needed: only sealed and released segments can be freed")]
    StillNeeded {
        /// The segment.
        generation: Generation,
    },
    /// There is no such segment.
    #[error("there is no segment {generation}")]
    NoSuchSegment {
        /// The segment.
        generation: Generation,
    },
}

impl Classified for AppendError {
    fn code(&self) -> &'static str {
        match self {
            Self::Failed { .. } => "log_failed",
            Self::Closed => "log_closed",
            Self::DiskFull { .. } => "disk_full",
            Self::TooLarge { .. } => "batch_too_large",
            Self::Empty => "batch_empty",
            Self::NoSegment { .. } => "no_segment",
            Self::StillNeeded { .. } => "segment_needed",
            Self::NoSuchSegment { .. } => "no_such_segment",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::DiskFull { .. } | Self::NoSegment { .. } => Action::Retry,
            Self::TooLarge { .. } | Self::Empty | Self::StillNeeded { .. } | Self::NoSuchSegment { .. } => Action::Fix,
            Self::Failed { .. } | Self::Closed => Action::Stop,
        }
    }
}

/// Why a read did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The segment has been freed: look the pointer up again.
    #[error("segment {generation} is gone: look the pointer up again")]
    Gone {
        /// The segment.
        generation: Generation,
    },
    /// Records below `oldest` have been freed.
    #[error("records below LSN {oldest} have been freed")]
    Compacted {
        /// The first LSN that can be read in order.
        oldest: Lsn,
    },
    /// The LSN has not been written.
    #[error("LSN {lsn} is past the end of the log, {end}")]
    PastEnd {
        /// As asked for.
        lsn: Lsn,
        /// The end of the log.
        end: Lsn,
    },
    /// The bytes are not what was written.
    #[error("{0}; run `thalweg log verify`")]
    Corrupt(#[from] Corruption),
    /// The disk refused.
    #[error("{0}")]
    Disk(#[from] DiskFault),
}

impl Classified for ReadError {
    fn code(&self) -> &'static str {
        match self {
            Self::Gone { .. } => "segment_gone",
            Self::Compacted { .. } => "compacted",
            Self::PastEnd { .. } => "past_end",
            Self::Corrupt(_) => "log_corrupt",
            Self::Disk(_) => "log_io",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Gone { .. } => Action::Retry,
            Self::Compacted { .. } | Self::PastEnd { .. } => Action::Fix,
            Self::Corrupt(_) | Self::Disk(_) => Action::Stop,
        }
    }
}
