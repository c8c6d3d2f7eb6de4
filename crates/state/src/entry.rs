//! Entries of the log as the machine takes them.

use thalweg_types::{Index, LogPosition, Lsn, SpaceTime, Term};

use crate::error::MachineError;

/// One log entry, decided and durable as its level asks.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its term.
    pub term: Term,
    /// Its index.
    pub index: Index,
    /// Its space time. Should one ever be below the one before, the one before counts.
    pub time: SpaceTime,
    /// Framed commands.
    pub payload: &'a [u8],
    /// Where the payload begins in the log.
    pub at: LogPosition,
    /// Exclusive bound of what is applied afterwards.
    pub next_lsn: Lsn,
}

/// What came of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The state points to the copy now.
    Applied,
    /// The state did not point to the original any more, or the record does not hold its bytes:
    /// nothing changed.
    Void,
    /// Rows of what the node need not know any more are gone.
    Forgot {
        /// So many.
        rows: u32,
        /// Whether there may be more.
        more: bool,
    },
}

/// Where a record stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) next_lsn: Lsn,
    /// Of an entry; `None` for a node-local record.
    pub(crate) entry: Option<(Term, Index, SpaceTime)>,
}

/// Pointers are offsets of 32 bits within a segment.
pub(crate) fn check_addressable(payload: &[u8], at: LogPosition) -> Result<(), MachineError> {
    let end = u64::from(at.offset) + payload.len() as u64;
    if payload.len() > MAX_PAYLOAD_BYTES || end > u64::from(u32::MAX) {
        return Err(MachineError::Unaddressable { offset: at.offset, len: payload.len() });
    }
    Ok(())
}

/// Largest payload: bounds the batch that is made of it.
const MAX_PAYLOAD_BYTES: usize = 1 << 30;
