//! Input of the state machine: replicated log entries, and records that concern only this node's copy of the state.

use thalweg_types::{Index, LogPosition, Lsn, SpaceTime, Term};

use crate::error::MachineError;

/// A log entry whose order is decided and which has reached its durability level, so that it can be applied.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Consensus term of the log entry.
    pub term: Term,
    /// Index of the entry in the replicated log.
    pub index: Index,
    /// Time of the log entry, by the clock of its proposer. If the previous entry has a later time, that one is used.
    pub time: SpaceTime,
    /// Encoded commands of the log entry, each preceded by its length.
    pub payload: &'a [u8],
    /// Position in the log at which the payload begins.
    pub at: LogPosition,
    /// LSN at which the log entry's record ends (exclusive). Once the entry is applied, all records below it are
    /// applied.
    pub next_lsn: Lsn,
}

/// Result of applying a node-local record: one that moves bytes within this node's log, or deletes rows of this node
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOutcome {
    /// The moved bytes are live: the state now points to their copy instead of the original.
    Applied,
    /// The move had no effect: the state no longer pointed to the original bytes, or the record's copy differs from
    /// them. The state is unchanged.
    Void,
    /// The record deleted rows about a freed log segment that only this node had.
    SegmentForgotten {
        /// Number of rows that this record deleted.
        rows: u32,
        /// True if the node may have more rows about freed log segments to delete.
        more: bool,
    },
}

/// Log position of a record. The state's applied position advances to it when the record is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) next_lsn: Lsn,
    /// Term, index and time of a log entry; `None` for a record that concerns only this node.
    pub(crate) entry: Option<(Term, Index, SpaceTime)>,
}

/// Checks that pointers can address every byte of a payload that begins at `at`. The offset of a pointer within a
/// segment has 32 bits.
pub(crate) fn check_addressable(payload: &[u8], at: LogPosition) -> Result<(), MachineError> {
    let end = u64::from(at.offset) + payload.len() as u64;
    if payload.len() > MAX_PAYLOAD_BYTES || end > u64::from(u32::MAX) {
        return Err(MachineError::Unaddressable { offset: at.offset, len: payload.len() });
    }
    Ok(())
}

/// Maximum bytes of a log entry's payload. Bounds the backend batch that applying the entry creates.
const MAX_PAYLOAD_BYTES: usize = 1 << 30;
