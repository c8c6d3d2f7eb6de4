//! Bounds of the readable history: the floor of the log, and the command that prunes old versions.

use crate::{
    command::PRUNE_VERSIONS,
    ids::{Index, KeyspaceId, Revision},
    record::{Malformed, Reader},
};

/// Start of the readable history: it begins after `revision`, with the entry at `index`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HistoryFloor {
    /// Last revision that is no longer readable.
    pub revision: Revision,
    /// First readable entry. No entry before it has used a later revision.
    pub index: Index,
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
        Ok(Self { revision: Revision(reader.u64("revision")?), index: Index(reader.u64("index")?) })
    }
}

/// Appends the command that removes versions of keys past their keyspace's bounds. The command reads up to `max` rows:
/// those of the keyspace `from` first, then those of keyspaces with higher ids, then the others. A caller that varies
/// `from` makes sure that no keyspace waits forever.
pub fn encode_prune_versions(out: &mut Vec<u8>, from: KeyspaceId, max: u32) {
    out.push(PRUNE_VERSIONS);
    out.extend_from_slice(&max.to_le_bytes());
    out.extend_from_slice(&from.0.to_le_bytes());
}
