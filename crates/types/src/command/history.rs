//! How far back the log can be read as history, and how much of it keyspaces keep.

use crate::{
    command::PRUNE_VERSIONS,
    ids::{Index, KeyspaceId, Revision},
    record::{Malformed, Reader},
};

/// Where readable history begins: after `revision`, with the entry at `index`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HistoryFloor {
    /// The last revision that cannot be read any more.
    pub revision: Revision,
    /// The first entry that can: none before it has used a later revision.
    pub index: Index,
}

impl HistoryFloor {
    /// Bytes of the encoding.
    pub const ENCODED_LEN: usize = 16;

    /// The encoding: both numbers, little-endian.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        out[..8].copy_from_slice(&self.revision.0.to_le_bytes());
        out[8..].copy_from_slice(&self.index.0.to_le_bytes());
        out
    }

    /// Reads the encoding.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { revision: Revision(reader.u64("revision")?), index: Index(reader.u64("index")?) })
    }
}

/// Appends the command that forgets versions of keys past their keyspace's bounds, looking at up to `max` rows: those
/// of the keyspace `from` first, then of those with higher ids, then of the rest. Whoever begins with another each time
/// lets none wait for ever.
pub fn encode_prune_versions(out: &mut Vec<u8>, from: KeyspaceId, max: u32) {
    out.push(PRUNE_VERSIONS);
    out.extend_from_slice(&max.to_le_bytes());
    out.extend_from_slice(&from.0.to_le_bytes());
}
