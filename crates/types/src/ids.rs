//! Typed ids and positions. Modules pass these types to each other instead of bare integers.
//!
//! Owns: the types of ids and positions, their text forms, and the references to bytes in the log (`BlobRef`,
//! `LogPosition`). Does not own: the choice of an id, which is up to the state machine, the log or the engine.

use std::{fmt, str::FromStr};

/// Defines an id or position type, without the trait `Display`.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// Lowest value of this id or position.
            pub const ZERO: Self = Self(0);
            /// Highest value of this id or position.
            pub const MAX: Self = Self(<$int>::MAX);

            /// Returns the bare number of an id or position, for encodings and for arithmetic within one module.
            #[inline]
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }

            /// Returns the id or position that is greater by one. Panics on overflow, which cannot happen in practice:
            /// a database never has 2^32 keyspaces or 2^64 records.
            #[inline]
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }
    };
}

/// Defines an id or position that is shown as a decimal number.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        number!($(#[$doc])* $name($int));

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// Log sequence number (LSN): position of a record in the node's log. LSNs are dense, never go back, and are never
    /// reused.
    Lsn(u64)
);
id!(
    /// Term of Raft consensus, which rises with each election. A node that runs alone (`Solo`) starts in term 1.
    Term(u64)
);
id!(
    /// Raft index: number of an entry within the replicated log, without gaps. Index 0 is the initial membership.
    Index(u64)
);
id!(
    /// Dense record number in a stream, from 0.
    Offset(u64)
);
id!(
    /// Revision of the state: a counter that rises by one with every successful commit. Revision 0 means "never
    /// written".
    Revision(u64)
);
id!(
    /// Id of a space. A space is a log with the keyspaces and streams computed from it, and the unit of ordering and of
    /// atomic commits. Id 0 is the space `default`.
    SpaceId(u32)
);
id!(
    /// Id of a keyspace. An id is never reused within a node's data directory.
    KeyspaceId(u32)
);
id!(
    /// Id of a stream. An id is never reused within a node's data directory.
    StreamId(u32)
);
id!(
    /// Id of a consumer group. An id is never reused within a node's data directory.
    GroupId(u32)
);
id!(
    /// Number of an attempt: one delivery of records to one member of a consumer group. Attempt numbers rise within the
    /// group and are never reused. A number is at least the delivery's time in microseconds, so a group restored from a
    /// backup does not repeat a number.
    Attempt(u64)
);
id!(
    /// Id of a lease. Id 0 means "no lease". An id that the state machine chose is never chosen again.
    LeaseId(u64)
);
number!(
    /// Id of a node, drawn at random when the node's data directory is created.
    NodeId(u64)
);

/// Writes 16 hexadecimal digits, as the file `IDENTITY` and the HTTP API have them.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

id!(
    /// Generation of a log segment: a strictly rising number, which orders the segments. Generation 0 means "never
    /// used".
    Generation(u64)
);

/// Id of a cluster, drawn at random when the first member founds it. Nodes of different clusters reject each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ClusterId(pub u128);

/// Error returned when a text is not a cluster id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cluster id: it has 32 hexadecimal digits")]
pub struct BadClusterId(pub String);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ClusterId {
    type Err = BadClusterId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadClusterId(text.chars().take(64).collect());
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        id.map(Self).ok_or_else(bad)
    }
}

impl Lsn {
    /// Returns the LSN that is `count` records after this one.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl Offset {
    /// Returns the offset that is `count` records after this one.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

/// Position and checksum of bytes in the node's log. The state machine stores this reference instead of the bytes of a
/// stream batch or of a large value.
///
/// The reference is valid until its log segment is freed. The node copies all bytes that are still needed to a newer
/// segment before it frees a segment, so a reader that finds the segment gone looks up the current reference in the
/// state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobRef {
    /// Generation of the log segment that contains the bytes.
    pub generation: Generation,
    /// Byte offset of the first byte within the segment file.
    pub offset: u32,
    /// Number of bytes that the reference stands for.
    pub len: u32,
    /// CRC-32C checksum of the bytes that the reference stands for.
    pub crc: u32,
}

impl BlobRef {
    /// A reference to no bytes, with all fields 0.
    pub const NOWHERE: Self = Self { generation: Generation(0), offset: 0, len: 0, crc: 0 };

    /// Size of an encoded reference in bytes.
    pub const ENCODED_LEN: usize = 20;

    /// Encodes the reference, little-endian: generation u64, offset u32, len u32, crc u32.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        out[0..8].copy_from_slice(&self.generation.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.offset.to_le_bytes());
        out[12..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..20].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    /// Decodes a reference; `None` if `bytes` does not have exactly [`ENCODED_LEN`](Self::ENCODED_LEN) bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::ENCODED_LEN] = bytes.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let low = u64::from(u32_at(0));
        let high = u64::from(u32_at(4));
        Some(Self { generation: Generation(high << 32 | low), offset: u32_at(8), len: u32_at(12), crc: u32_at(16) })
    }
}

/// Position of a record's payload in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogPosition {
    /// Generation of the log segment that contains the record.
    pub generation: Generation,
    /// Byte offset of the payload's first byte within the segment file.
    pub offset: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_spelling_and_a_position_is_a_number() {
        assert_eq!(NodeId(0x2a).to_string(), "000000000000002a");
        assert_eq!((Offset(42).to_string(), format!("{:4}", Term(7))), ("42".to_owned(), "   7".to_owned()));
    }
}
