//! Typed ids and positions. A bare integer never crosses a module border.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The lowest value.
            pub const ZERO: Self = Self(0);
            /// The highest value.
            pub const MAX: Self = Self(<$int>::MAX);

            /// The bare number, for encodings and arithmetic inside one module.
            #[inline]
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }

            /// The next value. Panics on overflow: 2^32 keyspaces or 2^64 records never happen.
            #[inline]
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }
    };
}

id!(
    /// Position of a record in the node's log. Dense, never goes back, never reused.
    Lsn(u64)
);
id!(
    /// Raft term. `Solo` writes term 1.
    Term(u64)
);
id!(
    /// Raft index within a space, without gaps. Index 0 is the initial membership.
    Index(u64)
);
id!(
    /// Dense record number in a stream, from 0.
    Offset(u64)
);
id!(
    /// Counter of a space that rises by one with every commit that succeeds. 0 means "never written".
    Revision(u64)
);
id!(
    /// A space: the unit of order and of atomic commit. 0 is `default`.
    SpaceId(u32)
);
id!(
    /// A keyspace. Never reused within a directory.
    KeyspaceId(u32)
);
id!(
    /// A stream. Never reused within a directory.
    StreamId(u32)
);
id!(
    /// A consumer group. Never reused within a directory.
    GroupId(u32)
);
id!(
    /// A delivery of records to a member of a consumer group. Rises within the group, never reused. As
    /// large as the delivery's time in microseconds, so that no restore brings back a number.
    Attempt(u64)
);
id!(
    /// A lease. 0 is none. One that the machine chose is never chosen again.
    LeaseId(u64)
);
id!(
    /// A node, drawn when its directory is created.
    NodeId(u64)
);
id!(
    /// Strictly rising number of a segment; gives the order of segments. 0 is "never used".
    Generation(u64)
);

impl Lsn {
    /// The LSN `count` records further on.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl Offset {
    /// The offset `count` records further on.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

/// Where bytes lie in the node's log, and their checksum: what the state keeps instead of the bytes
/// of a stream batch or of a large value.
///
/// Valid until the segment is freed; a reader that finds it gone looks the pointer up again, because
/// bytes that are still wanted are moved before their segment is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobRef {
    /// The segment that holds the bytes.
    pub generation: Generation,
    /// Byte offset of the first byte within the segment file.
    pub offset: u32,
    /// How many bytes.
    pub len: u32,
    /// CRC32C of the bytes.
    pub crc: u32,
}

impl BlobRef {
    /// Points to no bytes.
    pub const NOWHERE: Self = Self { generation: Generation(0), offset: 0, len: 0, crc: 0 };

    /// Bytes of the encoding.
    pub const ENCODED_LEN: usize = 20;

    /// Little-endian: generation u64, offset u32, len u32, crc u32.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        out[0..8].copy_from_slice(&self.generation.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.offset.to_le_bytes());
        out[12..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..20].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    /// The inverse of [`encode`](Self::encode); `None` if `bytes` is not exactly of that length.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::ENCODED_LEN] = bytes.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let low = u64::from(u32_at(0));
        let high = u64::from(u32_at(4));
        Some(Self { generation: Generation(high << 32 | low), offset: u32_at(8), len: u32_at(12), crc: u32_at(16) })
    }
}

/// Where a record's payload begins in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogPosition {
    /// The segment.
    pub generation: Generation,
    /// Byte offset of the payload's first byte within the segment file.
    pub offset: u32,
}
