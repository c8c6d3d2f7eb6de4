//! Bounds of the readable history: how much history a keyspace keeps, and from which revision on past changes can be
//! read (the history floor).

use std::time::Duration;

use crate::{
    codec::{Field, Malformed, Reader, structure},
    ids::{Index, Revision},
};

/// Amount of history (overwritten and deleted values) that a keyspace keeps. The default keeps none. If both bounds are
/// set, a version of a key is removed as soon as it exceeds one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceHistory {
    /// Number of revisions kept of each key, including the newest. Without `age`, the versions of a deleted key are
    /// kept for [`DELETED_HISTORY_AGE`](crate::limits::DELETED_HISTORY_AGE).
    pub revisions: Option<u32>,
    /// Time for which overwritten or deleted values are kept, by the clock that all replicas share (space time).
    pub age: Option<Duration>,
}

structure! {
    /// History floor: the start of the readable history. Changes after `revision` can be read, beginning with the log
    /// entry at `index`.
    #[derive(Copy, Default, PartialOrd, Ord)]
    HistoryFloor as "history floor" {
        /// Last revision whose changes can no longer be read.
        revision: Revision,
        /// Index of the first log entry that can be read. No entry before it wrote a revision above `revision`.
        index: Index,
    }
}

impl HistoryFloor {
    /// Size in bytes of an encoded history floor (start of the readable history).
    pub const ENCODED_LEN: usize = 16;

    /// Encodes the revision and the index as little-endian numbers.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        out[..8].copy_from_slice(&self.revision.0.to_le_bytes());
        out[8..].copy_from_slice(&self.index.0.to_le_bytes());
        out
    }

    /// Decodes a history floor (start of the readable history).
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::take(reader, "history floor")
    }
}
