//! Bounds of the readable history: what a keyspace keeps, and the floor of the log.

use std::time::Duration;

use crate::{
    codec::{Field, Malformed, Reader, structure},
    ids::{Index, Revision},
};

/// Amount of history that a keyspace keeps. The default keeps none. With both bounds a version is removed as soon as
/// it exceeds either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceHistory {
    /// Number of revisions of each key, the newest included. Without `age`, the versions of a deleted key are kept for
    /// [`DELETED_HISTORY_AGE`](crate::limits::DELETED_HISTORY_AGE).
    pub revisions: Option<u32>,
    /// Time for which overwritten or deleted values are kept.
    pub age: Option<Duration>,
}

structure! {
    /// Start of the readable history: it begins after `revision`, with the entry at `index`.
    #[derive(Copy, Default, PartialOrd, Ord)]
    HistoryFloor as "history floor" {
        /// Last revision that is no longer readable.
        revision: Revision,
        /// First readable entry. No entry before it has used a later revision.
        index: Index,
    }
}

impl HistoryFloor {
    /// Size of the encoding in bytes.
    pub const ENCODED_LEN: usize = 16;

    /// Encodes both numbers, little-endian.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        out[..8].copy_from_slice(&self.revision.0.to_le_bytes());
        out[8..].copy_from_slice(&self.index.0.to_le_bytes());
        out
    }

    /// Decodes a floor.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::take(reader, "history floor")
    }
}
