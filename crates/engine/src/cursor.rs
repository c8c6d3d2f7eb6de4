//! Cursor of a scan: an opaque position after one page of results, from which the next page continues.
//!
//! Owns: the bytes of a cursor and the rules for its use. In a keyspace with history, a cursor contains the revision of
//! the first page and the time of its read. So all pages show one consistent view, whatever is written in between. Once
//! the history no longer reaches back to this revision, reads return [`ReadError::Compacted`]. In a keyspace without
//! history, a cursor is only a position, and each page shows the contents at its own read. No key appears twice, and
//! each key that is present throughout appears once, with a value that it had at one of the pages; writes to keys that
//! the scan has passed may or may not appear. A cursor holds no state on the node: it costs nothing, survives restarts,
//! and does not time out.
//!
//! ```text
//! cursor := 1 | flags u8 | keyspace u32 | bounds u32 | (revision u64 | time u64) | last key | crc u32
//! ```
//! All integers are little-endian. Flags: bit 0 descending, bit 1 revision and time follow. `bounds` is the CRC-32C of
//! the range's prefix and bounds: a cursor continues only the scan that returned it. `crc` is the CRC-32C of everything
//! before it. A client may store cursors anywhere, so bytes that are not a cursor of this version are an error, never a
//! panic.

use std::ops::Bound;

use thalweg_types::{KeyspaceId, Revision, SpaceTime, codec::Reader, limits::MAX_CURSOR_BYTES};

use crate::{
    error::ReadError,
    scan_range::{Order, ScanRange},
};

const VERSION: u8 = 1;
const DESCENDING: u8 = 1;
const AT_REVISION: u8 = 2;

/// Revision that all pages of a scan show, and the `time` by which they hide expired keys; time 0 hides none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanPoint {
    pub(crate) revision: Revision,
    pub(crate) time: SpaceTime,
}

/// Position at which a scan continues; see [`Keyspace::resume`](crate::Keyspace::resume).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) order: Order,
    /// CRC-32C of the prefix and the bounds of the scanned range.
    bounds: u32,
    pub(crate) at: Option<ScanPoint>,
    /// Last key that the previous page returned.
    pub(crate) last: Vec<u8>,
}

impl ScanCursor {
    pub(crate) fn new(keyspace: KeyspaceId, range: &ScanRange, at: Option<ScanPoint>, last: &[u8]) -> Self {
        Self { keyspace, order: range.order, bounds: fingerprint(range), at, last: last.to_vec() }
    }

    /// Revision that all pages of the scan show; `None` in a keyspace without history.
    #[must_use]
    pub fn revision(&self) -> Option<Revision> {
        self.at.map(|at| at.revision)
    }

    /// Encodes the cursor as bytes that a client can store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, 0];
        out[1] |= if self.order == Order::Descending { DESCENDING } else { 0 };
        out.extend_from_slice(&self.keyspace.0.to_le_bytes());
        out.extend_from_slice(&self.bounds.to_le_bytes());
        if let Some(ScanPoint { revision, time }) = self.at {
            out[1] |= AT_REVISION;
            out.extend_from_slice(&revision.0.to_le_bytes());
            out.extend_from_slice(&time.0.to_le_bytes());
        }
        out.extend_from_slice(&self.last);
        let crc = crc_fast::crc32_iscsi(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a cursor. Returns an error if the bytes are not a cursor of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, ReadError> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(NOT_A_CURSOR)?;
        if bytes.len() > MAX_CURSOR_BYTES || crc_fast::crc32_iscsi(body) != u32::from_le_bytes(*crc) {
            return Err(NOT_A_CURSOR);
        }
        let mut reader = Reader::at(body, 0);
        let mut read = || {
            let version = reader.u8("version")?;
            let flags = reader.u8("flags")?;
            let (keyspace, bounds) = (KeyspaceId(reader.u32("keyspace")?), reader.u32("bounds")?);
            let at = match flags & AT_REVISION {
                0 => None,
                _ => Some(ScanPoint {
                    revision: Revision(reader.u64("revision")?),
                    time: SpaceTime(reader.u64("time")?),
                }),
            };
            let order = if flags & DESCENDING == 0 { Order::Ascending } else { Order::Descending };
            let known = version == VERSION && flags & !(DESCENDING | AT_REVISION) == 0;
            Ok::<_, thalweg_types::codec::Malformed>((known, keyspace, order, bounds, at))
        };
        let (known, keyspace, order, bounds, at) = read().map_err(|_| NOT_A_CURSOR)?;
        if !known {
            return Err(ReadError::BadCursor { what: "it is from another version: restart the scan" });
        }
        Ok(Self { keyspace, order, bounds, at, last: reader.rest().to_vec() })
    }

    /// Fails if the cursor belongs to another keyspace or range.
    pub(crate) fn check_range(&self, keyspace: KeyspaceId, range: &ScanRange) -> Result<(), ReadError> {
        if keyspace != self.keyspace {
            return Err(ReadError::BadCursor { what: "it belongs to another keyspace, or to one that was dropped" });
        }
        if range.order != self.order || fingerprint(range) != self.bounds {
            return Err(ReadError::BadCursor {
                what: "it belongs to a scan with another prefix, other bounds or another order",
            });
        }
        // A key outside of the range cannot be the last key of a page.
        if !range.may_hold(&self.last) {
            return Err(NOT_A_CURSOR);
        }
        Ok(())
    }
}

const NOT_A_CURSOR: ReadError = ReadError::BadCursor { what: "it is not a cursor, or was truncated or changed" };

fn fingerprint(range: &ScanRange) -> u32 {
    let mut bytes = Vec::new();
    let mut push = |kind: u8, key: &[u8]| {
        bytes.push(kind);
        bytes.extend_from_slice(&(key.len() as u64).to_le_bytes());
        bytes.extend_from_slice(key);
    };
    push(0, &range.prefix);
    for bound in [&range.start, &range.end] {
        match bound {
            Bound::Unbounded => push(1, b""),
            Bound::Included(key) => push(2, key),
            Bound::Excluded(key) => push(3, key),
        }
    }
    crc_fast::crc32_iscsi(&bytes)
}

#[cfg(test)]
mod tests {
    use thalweg_types::limits::MAX_KEY_BYTES;

    use super::*;

    fn cursor(at: Option<ScanPoint>, order: Order) -> ScanCursor {
        let range = ScanRange { order, ..ScanRange::with_prefix("p") };
        ScanCursor::new(KeyspaceId(7), &range, at, b"pk")
    }

    #[test]
    fn layout_is_pinned_and_anything_else_is_refused() {
        let at = ScanPoint { revision: Revision(258), time: SpaceTime(3) };
        let bytes = cursor(Some(at), Order::Descending).encode();
        assert_eq!(bytes[..6], *b"\x01\x03\x07\0\0\0");
        assert_eq!(bytes[10..bytes.len() - 4], *b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0pk");
        for cursor in [cursor(Some(at), Order::Descending), cursor(None, Order::Ascending)] {
            let bytes = cursor.encode();
            assert_eq!(ScanCursor::decode(&bytes), Ok(cursor));
            for at in 0..bytes.len() {
                assert!(ScanCursor::decode(&bytes[..at]).is_err());
                let mut changed = bytes.clone();
                changed[at] ^= 0x10;
                assert!(ScanCursor::decode(&changed).is_err(), "byte {at}");
            }
        }
        let longest = ScanCursor::new(KeyspaceId(7), &ScanRange::default(), Some(at), &[7; MAX_KEY_BYTES]);
        assert_eq!(ScanCursor::decode(&longest.encode()), Ok(longest));
        let sealed = |mut body: Vec<u8>| {
            body.extend_from_slice(&crc_fast::crc32_iscsi(&body).to_le_bytes());
            ScanCursor::decode(&body)
        };
        assert!(sealed(b"\x02\0\x07\0\0\0\0\0\0\0".to_vec()).is_err(), "another version");
        assert!(sealed(b"\x01\x04\x07\0\0\0\0\0\0\0".to_vec()).is_err(), "an unknown flag");
        assert!(sealed(b"\x01\x02\x07\0\0\0\0\0\0\0".to_vec()).is_err(), "too short");
        assert!(sealed(vec![1; MAX_CURSOR_BYTES]).is_err(), "too long");
    }

    #[test]
    fn a_cursor_goes_on_with_its_own_scan_only() {
        let cursor = cursor(None, Order::Ascending);
        let range = ScanRange::with_prefix("p");
        assert_eq!(cursor.check_range(KeyspaceId(7), &range), Ok(()));
        assert!(cursor.check_range(KeyspaceId(8), &range).is_err());
        let outside = ScanCursor { last: b"other".to_vec(), ..cursor.clone() };
        assert_eq!(outside.check_range(KeyspaceId(7), &range), Err(NOT_A_CURSOR), "no page can end there");
        for other in [
            ScanRange::with_prefix("q"),
            ScanRange { order: Order::Descending, ..range.clone() },
            ScanRange { end: Bound::Excluded(b"z".to_vec()), ..range.clone() },
        ] {
            assert!(cursor.check_range(KeyspaceId(7), &other).is_err());
        }
    }
}
