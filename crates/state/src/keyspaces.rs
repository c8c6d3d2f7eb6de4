//! Keyspaces as readers see them: values, and scans over a consistent view.
//!
//! Owns the encoding of a key's value. Does not own the catalog of names (see [`crate::catalog`]), nor
//! the bytes of a value that stayed in the log: for those it answers with where they are.
//!
//! ```text
//! value := 0 | revision u64 LE | bytes           inline
//!        | 1 | revision u64 LE | BlobRef         in the log; 29 bytes in all
//! ```

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use bytes::{Buf, Bytes};
use thalweg_types::{BlobRef, KeyspaceId, Revision};

use crate::{
    backend::{Applied, Direction, View},
    clears::{ClearTable, Prefixes},
    keys::{self, KeyRange},
    machine::MachineError,
};

pub(crate) const FORM_INLINE: u8 = 0;
pub(crate) const FORM_BLOB: u8 = 1;
/// Form and revision.
const HEAD_LEN: usize = 9;

/// A key's value and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The command that wrote it.
    pub revision: Revision,
    /// The value, or where it is.
    pub value: StoredValue,
}

/// A value, or where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredValue {
    /// The bytes.
    Inline(Bytes),
    /// Where the bytes lie in the node's log.
    Blob(BlobRef),
}

/// As [`StoredValue`], borrowed from a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredRef<'a> {
    /// The bytes.
    Inline(&'a [u8]),
    /// Where the bytes lie in the node's log.
    Blob(BlobRef),
}

/// One pair of a scan, borrowed for the call only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The user key.
    pub key: &'a [u8],
    /// The command that wrote it.
    pub revision: Revision,
    /// The value; `None` in a scan of keys only.
    pub value: Option<StoredRef<'a>>,
}

/// What a scan gives of each pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fetch {
    /// Keys, revisions and values.
    #[default]
    Values,
    /// Keys and revisions.
    KeysOnly,
}

/// Which pairs of a keyspace a scan visits; the default is all, ascending.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'a> {
    /// Only keys that begin with this.
    pub prefix: &'a [u8],
    /// Only keys from here on.
    pub start: Bound<&'a [u8]>,
    /// Only keys up to here.
    pub end: Bound<&'a [u8]>,
    /// Ascending or descending.
    pub direction: Direction,
    /// At most so many pairs.
    pub limit: usize,
    /// What of each pair.
    pub fetch: Fetch,
}

impl Default for ScanRange<'_> {
    fn default() -> Self {
        Self {
            prefix: b"",
            start: Bound::Unbounded,
            end: Bound::Unbounded,
            direction: Direction::Forward,
            limit: usize::MAX,
            fetch: Fetch::Values,
        }
    }
}

/// Says which rows of a keyspace count: the one rule, for readers and for entries being applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'t> {
    /// Deleted prefixes of the keyspace.
    pub(crate) clears: Option<&'t Prefixes>,
    /// The last revision that the reader's view has applied.
    pub(crate) as_of: Revision,
}

impl Sight<'_> {
    /// Whether a row of this key and revision counts.
    #[inline]
    pub(crate) fn shows(&self, key: &[u8], revision: Revision) -> bool {
        self.clears.is_none_or(|clears| !clears.hides(key, revision, self.as_of))
    }
}

/// A consistent, immutable view of all keyspaces. Holding one keeps old data alive.
#[derive(Clone)]
pub struct Snapshot {
    view: Arc<dyn View>,
    clears: Arc<ClearTable>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("applied", &self.view.applied()).finish()
    }
}

impl Snapshot {
    pub(crate) fn new(view: Arc<dyn View>, clears: Arc<ClearTable>) -> Self {
        Self { view, clears }
    }

    fn sight(&self, keyspace: KeyspaceId) -> Sight<'_> {
        Sight { clears: self.clears.of(keyspace), as_of: self.view.applied().revision }
    }

    /// What the view has applied.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.view.applied()
    }

    /// The value of a key.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        let found = keys::with_data_key(keyspace, key, |full| decode_owned(full, self.view.get(full)?))?;
        Ok(found.filter(|found| self.sight(keyspace).shows(key, found.revision)))
    }

    /// Visits pairs in order until the range or the limit ends or `visit` breaks.
    pub fn scan(
        &self,
        keyspace: KeyspaceId,
        range: &ScanRange<'_>,
        visit: &mut dyn FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<(), MachineError> {
        let full = KeyRange::of_keyspace(keyspace, range.prefix, range.start, range.end);
        if full.is_empty() || range.limit == 0 {
            return Ok(());
        }
        let mut left = range.limit;
        let mut failure = None;
        let sight = self.sight(keyspace);
        self.view.scan(full.lower(), full.upper(), range.direction, &mut |key, value| {
            let item = match decode_item(key, value, range.fetch) {
                Ok(item) => item,
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            };
            if !sight.shows(item.key, item.revision) {
                return ControlFlow::Continue(());
            }
            visit(item)?;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failure.map_or(Ok(()), Err)
    }
}

/// What comes before an inline value's bytes or a pointer.
#[inline]
pub(crate) fn value_head(form: u8, revision: Revision) -> [u8; HEAD_LEN] {
    let mut head = [form; HEAD_LEN];
    head[1..].copy_from_slice(&revision.0.to_le_bytes());
    head
}

fn decode_item<'a>(key: &'a [u8], value: &'a [u8], fetch: Fetch) -> Result<Item<'a>, MachineError> {
    let user_key = key.get(keys::DATA_PREFIX_LEN..).unwrap_or_default();
    let Decoded { revision, value } = decode_value(key, value)?;
    Ok(Item { key: user_key, revision, value: (fetch == Fetch::Values).then_some(value) })
}

/// A row of a key, as stored; whether it counts is for the reader's sight to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded<'a> {
    pub(crate) revision: Revision,
    pub(crate) value: StoredRef<'a>,
}

/// Decodes a stored value; `key` is for the error.
#[inline]
pub(crate) fn decode_value<'a>(key: &[u8], value: &'a [u8]) -> Result<Decoded<'a>, MachineError> {
    let corrupt = |message| MachineError::corrupt("value", key, message);
    let Some((head, rest)) = value.split_first_chunk::<HEAD_LEN>() else {
        return Err(corrupt("shorter than form and revision"));
    };
    let mut revision = [0; 8];
    revision.copy_from_slice(&head[1..]);
    let value = match head[0] {
        FORM_INLINE => StoredRef::Inline(rest),
        FORM_BLOB => StoredRef::Blob(BlobRef::decode(rest).ok_or_else(|| corrupt("pointer of a wrong length"))?),
        _ => return Err(corrupt("unknown form")),
    };
    Ok(Decoded { revision: Revision(u64::from_le_bytes(revision)), value })
}

#[inline]
pub(crate) fn decode_owned(key: &[u8], value: Option<Bytes>) -> Result<Option<Stored>, MachineError> {
    let Some(mut bytes) = value else { return Ok(None) };
    let Decoded { revision, value } = decode_value(key, &bytes)?;
    let value = match value {
        StoredRef::Blob(blob) => StoredValue::Blob(blob),
        StoredRef::Inline(_) => {
            bytes.advance(HEAD_LEN);
            StoredValue::Inline(bytes)
        }
    };
    Ok(Some(Stored { revision, value }))
}

#[cfg(test)]
mod tests {
    use thalweg_types::Generation;

    use super::*;

    #[test]
    fn value_layouts_are_pinned() {
        let decoded = |revision, value| Decoded { revision: Revision(revision), value };
        let inline = b"\x00\x02\x01\0\0\0\0\0\0value";
        assert_eq!([&value_head(FORM_INLINE, Revision(0x0102)), b"value".as_slice()].concat(), inline);
        assert_eq!(decode_value(b"k", inline).unwrap(), decoded(0x0102, StoredRef::Inline(b"value")));
        let blob = BlobRef { generation: Generation(3), offset: 4, len: 5, crc: 6 };
        let stored = b"\x01\x07\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\x05\0\0\0\x06\0\0\0";
        assert_eq!([&value_head(FORM_BLOB, Revision(7)), blob.encode().as_slice()].concat(), stored);
        assert_eq!(decode_value(b"k", stored).unwrap(), decoded(7, StoredRef::Blob(blob)));
    }

    #[test]
    fn bad_values_are_errors() {
        for bad in [b"".as_slice(), b"\0\0\0\0\0\0\0\0", b"\x02\0\0\0\0\0\0\0\0", b"\x01\0\0\0\0\0\0\0\0short"] {
            assert!(matches!(decode_value(b"k", bad), Err(MachineError::Corrupt { .. })), "{bad:?}");
        }
    }
}
