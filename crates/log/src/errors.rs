//! Errors of the log, one enum for each operation. Each error implies what the caller should do.
//!
//! Owns: `OpenError`, `AppendError` and `ReadError`, each with a stable code and the caller's next step, and the
//! descriptions of damage (`Corruption`) and of failed disk operations (`DiskFault`). Does not own: the errors of the
//! offline tools (`offline`).

use std::{io, time::Duration};

use thalweg_types::{Action, Classified, Generation, Lsn};

use crate::format::Damage;

/// Damage in bytes of the log that were attested as durable: a later batch header reports that they were
/// synced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} is corrupt at byte {offset}: {what}: expected {expected:#x}, found {got:#x}")]
pub struct Corruption {
    /// Path of the damaged segment file, relative to the disk's root.
    pub file: String,
    /// Byte offset of the damaged batch, record or header.
    pub offset: u64,
    /// Name of the check that the bytes in the file failed.
    pub what: &'static str,
    /// Value that the failed check expected.
    pub expected: u64,
    /// Value that the failed check found in the file.
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

/// Error returned when a disk operation fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {operation} {file}: {message}")]
pub struct DiskFault {
    /// Name of the disk operation that failed.
    pub operation: &'static str,
    /// File or directory on which the operation failed.
    pub file: String,
    /// Kind of the I/O error with which the operation failed.
    pub kind: io::ErrorKind,
    /// Message of the operating system.
    pub message: String,
}

impl DiskFault {
    pub(crate) fn new(operation: &'static str, file: &str, error: &io::Error) -> Self {
        Self { operation, file: file.to_owned(), kind: error.kind(), message: error.to_string() }
    }

    /// Returns true if the operation failed because the disk had no space left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        thalweg_disk::is_out_of_space(self.kind)
    }
}

/// Extension trait that adds the operation and the file to an I/O error.
pub(crate) trait Explain<T> {
    fn explain(self, operation: &'static str, file: &str) -> Result<T, DiskFault>;
}

impl<T> Explain<T> for io::Result<T> {
    fn explain(self, operation: &'static str, file: &str) -> Result<T, DiskFault> {
        self.map_err(|error| DiskFault::new(operation, file, &error))
    }
}

/// Error returned when a log cannot be opened. The directory is unchanged, except after a repair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another handle of this process, has the log open.
    #[error(
        "{dir} is in use by another process, or by another handle of this one: stop that process, or drop all handles of \
        the database and its snapshots"
    )]
    Locked {
        /// Directory of the log.
        dir: String,
    },
    /// Data that a later batch header reports as durable is damaged.
    #[error("{0}; restore it from a copy, or open with --repair to cut the log there and lose everything after it")]
    Corrupt(#[from] Corruption),
    /// A segment was written by another version of the program.
    #[error(
        "{file} has format version {version}, this program reads {}: use the program that wrote it",
        crate::format::FORMAT_VERSION
    )]
    Version {
        /// Path of the segment file that another version of the program wrote.
        file: String,
        /// Format version of the segment file.
        version: u64,
    },
    /// An option of the log has a value outside its range.
    #[error("option {option} is {got}, must be {expected}")]
    Option {
        /// Name of the option with the wrong value.
        option: &'static str,
        /// Value of the option, which is outside its range.
        got: u64,
        /// Description of the permitted values of the option.
        expected: String,
    },
    /// A disk operation failed while the log was opened.
    #[error("{0}")]
    Disk(#[from] DiskFault),
    /// A background thread could not be started.
    #[error("cannot start a thread: {reason}")]
    Thread {
        /// Message of the operating system.
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

/// Error returned when an append, a sync or a free fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// A write or fsync has failed, now or earlier. The state on disk is unknown, so the log accepts no
    /// further writes.
    #[error("the log has failed and accepts no writes: {reason}; check the disk, then restart")]
    Failed {
        /// Description of the first write or fsync that failed.
        reason: String,
    },
    /// The log has been closed.
    #[error("the log is closed")]
    Closed,
    /// The disk has less free space than the log's reserve; no bytes were written. Deletes and trims are
    /// still accepted.
    #[error(
        "disk full: {free_bytes} bytes are free, {reserve_bytes} are kept in reserve, and {short_bytes} more are needed; \
         free space or delete data"
    )]
    DiskFull {
        /// Free bytes on the disk.
        free_bytes: u64,
        /// Number of bytes that must stay free on the disk.
        reserve_bytes: u64,
        /// Number of bytes that must become free before the log accepts data again.
        short_bytes: u64,
    },
    /// The batch does not fit in a segment; no bytes were written.
    #[error("batch of {got} bytes does not fit in a segment, which has room for {max}: split it")]
    TooLarge {
        /// Bytes of the rejected batch, including headers and padding.
        got: u64,
        /// Maximum bytes of a batch that fits in a segment.
        max: u64,
    },
    /// The batch has no records.
    #[error("a batch needs at least one record")]
    Empty,
    /// The records would get LSNs at or beyond the maximum of 2^62; no bytes were written.
    #[error("the log ends at LSN {end}, and no record may reach LSN 2^62: no LSN is left")]
    NoLsnLeft {
        /// LSN after the last record of the log.
        end: Lsn,
    },
    /// No prepared segment file became ready in time; no bytes were written.
    #[error("no prepared segment after {waited:?}{}", reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    NoSegment {
        /// Time that the append waited for a segment file.
        waited: Duration,
        /// Last failure of the preparer thread, which creates segment files, if there was one.
        reason: Option<String>,
    },
    /// The segment cannot be freed: it is the active one, or the log's user has not yet declared all its records as no
    /// longer needed.
    #[error("segment {generation} is still needed: only sealed and released segments can be freed")]
    StillNeeded {
        /// Generation (segment number) of the segment that was to be freed.
        generation: Generation,
    },
    /// The segment that was to be freed does not exist.
    #[error("there is no segment {generation}")]
    NoSuchSegment {
        /// Generation (segment number) that the caller requested.
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
            Self::NoLsnLeft { .. } => "no_lsn_left",
            Self::NoSegment { .. } => "no_segment",
            Self::StillNeeded { .. } => "segment_needed",
            Self::NoSuchSegment { .. } => "no_such_segment",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::DiskFull { .. } | Self::NoSegment { .. } => Action::Retry,
            Self::TooLarge { .. } | Self::Empty | Self::StillNeeded { .. } | Self::NoSuchSegment { .. } => Action::Fix,
            Self::Failed { .. } | Self::Closed | Self::NoLsnLeft { .. } => Action::Stop,
        }
    }
}

/// Error returned when a read fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The segment has been freed. The reader must look up the pointer to the value again.
    #[error("segment {generation} was freed: look up the pointer again")]
    Gone {
        /// Generation (segment number) of the segment that was freed.
        generation: Generation,
    },
    /// The requested records were freed: the log starts at `oldest`.
    #[error("records below LSN {oldest} have been freed")]
    Compacted {
        /// First LSN from which records can be read in order.
        oldest: Lsn,
    },
    /// The LSN that a read requested is beyond the end of the log.
    #[error("LSN {lsn} is past the end of the log, {end}")]
    PastEnd {
        /// LSN that the read requested.
        lsn: Lsn,
        /// LSN after the last record of the log.
        end: Lsn,
    },
    /// The bytes in the log do not match their checksum.
    #[error("{0}; run `thalweg log verify`")]
    Corrupt(#[from] Corruption),
    /// A disk operation failed while the log was read.
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
