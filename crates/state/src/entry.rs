//! Input of the state machine: log entries and node-local records.

use thalweg_types::{Index, LogPosition, Lsn, SpaceTime, Term};

use crate::error::MachineError;

/// A log entry that is decided, and durable at its level.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry.
    pub index: Index,
    /// Space time of the entry. If it is below that of the previous entry, the machine uses the previous one.
    pub time: SpaceTime,
    /// Framed commands of the entry.
    pub payload: &'a [u8],
    /// Position in the log at which the payload begins.
    pub at: LogPosition,
    /// Exclusive end of the applied records after this entry.
    pub next_lsn: Lsn,
}

/// Result of applying a node-local record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The state now points to the copy.
    Applied,
    /// The state no longer pointed to the original, or the record does not contain its bytes. The state is
    /// unchanged.
    Void,
    /// Rows that this node no longer needs were deleted.
    Forgot {
        /// Number of rows deleted.
        rows: u32,
        /// True if there may be more.
        more: bool,
    },
}

/// Position of a record, to which the state advances when the record is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) next_lsn: Lsn,
    /// Term, index and time of an entry; `None` for a node-local record.
    pub(crate) entry: Option<(Term, Index, SpaceTime)>,
}

/// Checks that pointers into the payload fit in an offset of 32 bits within a segment.
pub(crate) fn check_addressable(payload: &[u8], at: LogPosition) -> Result<(), MachineError> {
    let end = u64::from(at.offset) + payload.len() as u64;
    if payload.len() > MAX_PAYLOAD_BYTES || end > u64::from(u32::MAX) {
        return Err(MachineError::Unaddressable { offset: at.offset, len: payload.len() });
    }
    Ok(())
}

/// Maximum bytes of a payload, which bounds the backend batch created from it.
const MAX_PAYLOAD_BYTES: usize = 1 << 30;
