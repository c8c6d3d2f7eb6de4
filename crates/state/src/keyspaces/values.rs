//! Encoding of the value of a key.
//!
//! Owns: the encoding. Does not own: the catalog of names (see `catalog`), or the bytes of a value that stayed in
//! the log; for those it returns their position.
//!
//! ```text
//! value      := 0 | revision u64 LE | bytes              inline
//!             | 1 | revision u64 LE | BlobRef            in the log; 29 bytes in all
//!             | 2 | revision u64 LE | expiry | bytes     inline, and it ends
//!             | 3 | revision u64 LE | expiry | BlobRef   in the log, and it ends; 45 bytes in all
//!             | 4 | revision u64 LE | collection       a hash or a stream of Redis clients
//!             | 5 | revision u64 LE | expiry | collection   it ends
//! collection := kind u8 | id u64 LE | meta           kind 1: hash, 2: stream; the collection's commands define meta
//! ```
//! The encoding of `expiry` is in `expiry/rows.rs`. Forms 2, 3 and 5 never contain an expiry without deadline and
//! lease.

use bytes::{Buf, Bytes};
use thalweg_redis::{Collection, CollectionId, Kind};
use thalweg_types::{BlobRef, Revision};

use crate::{error::MachineError, expiry::rows::Expiry};

pub(crate) const FORM_INLINE: u8 = 0;
pub(crate) const FORM_BLOB: u8 = 1;
pub(crate) const FORM_INLINE_ENDING: u8 = 2;
pub(crate) const FORM_BLOB_ENDING: u8 = 3;
pub(crate) const FORM_COLLECTION: u8 = 4;
pub(crate) const FORM_COLLECTION_ENDING: u8 = 5;
/// Number of bytes (form and revision) at the beginning of the row of a key's value.
pub(crate) const HEAD_LEN: usize = 9;

/// A key's value, with its revision and expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Revision of the command that wrote the value.
    pub revision: Revision,
    /// The value, or its position in the log.
    pub value: StoredValue,
    /// Deadline and lease of the value.
    pub expiry: Expiry,
}

/// A value, or its position in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredValue {
    /// The bytes of the value itself.
    Inline(Bytes),
    /// The position of the bytes in the node's log.
    Blob(BlobRef),
    /// A Redis hash or stream, whose fields or entries are in rows of their own.
    Collection(Collection),
}

impl StoredValue {
    /// Returns a reference to the value that borrows its bytes.
    #[must_use]
    pub fn as_ref(&self) -> StoredRef<'_> {
        match self {
            Self::Inline(bytes) => StoredRef::Inline(bytes),
            Self::Blob(blob) => StoredRef::Blob(*blob),
            Self::Collection(collection) => StoredRef::Collection(collection.into()),
        }
    }
}

/// A borrowed [`StoredValue`], as scans return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredRef<'a> {
    /// The bytes of the value itself.
    Inline(&'a [u8]),
    /// The position of the bytes in the node's log.
    Blob(BlobRef),
    /// A Redis hash or stream, whose fields or entries are in rows of their own.
    Collection(CollectionRef<'a>),
}

impl StoredRef<'_> {
    /// Returns the length in bytes with which exact counts include the value. A Redis collection counts with its meta
    /// data only, without its fields or entries.
    #[must_use]
    pub fn value_len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Blob(blob) => blob.len as usize,
            Self::Collection(collection) => collection.meta.len(),
        }
    }

    /// Returns the position of the value in the log; `None` if the row contains the value itself.
    #[must_use]
    pub fn blob(&self) -> Option<BlobRef> {
        match self {
            Self::Blob(blob) => Some(*blob),
            Self::Inline(_) | Self::Collection(_) => None,
        }
    }

    /// Returns the id of the Redis collection, if the value is a hash or a stream.
    #[must_use]
    pub fn collection(&self) -> Option<CollectionId> {
        match self {
            Self::Collection(collection) => Some(collection.id),
            Self::Inline(_) | Self::Blob(_) => None,
        }
    }

    /// Returns an owned copy of the value.
    #[must_use]
    pub fn to_owned(&self) -> StoredValue {
        match self {
            Self::Inline(bytes) => StoredValue::Inline(Bytes::copy_from_slice(bytes)),
            Self::Blob(blob) => StoredValue::Blob(*blob),
            Self::Collection(CollectionRef { id, kind, meta }) => {
                StoredValue::Collection(Collection { id: *id, kind: *kind, meta: Bytes::copy_from_slice(meta) })
            }
        }
    }
}

/// A borrowed reference to a Redis collection (hash or stream), as the row of its key contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectionRef<'a> {
    /// Id of the collection. The row keys of its parts (fields or entries) contain this id.
    pub id: CollectionId,
    /// Kind of the collection; never [`Kind::String`].
    pub kind: Kind,
    /// Meta data that the collection's commands store in the row of its key.
    pub meta: &'a [u8],
}

impl<'a> From<&'a Collection> for CollectionRef<'a> {
    fn from(Collection { id, kind, meta }: &'a Collection) -> Self {
        Self { id: *id, kind: *kind, meta }
    }
}

/// Number of bytes (kind and id) before the meta data in the encoding of a collection.
const COLLECTION_HEAD_LEN: usize = 9;

impl<'a> CollectionRef<'a> {
    fn head(&self) -> [u8; COLLECTION_HEAD_LEN] {
        let mut head = [match self.kind {
            Kind::Hash => 1,
            Kind::Stream => 2,
            Kind::String => unreachable!("a string is no collection"),
        }; COLLECTION_HEAD_LEN];
        head[1..].copy_from_slice(&self.id.0.to_le_bytes());
        head
    }

    fn decode(row: &'a [u8]) -> Option<Self> {
        let (head, meta) = row.split_first_chunk::<COLLECTION_HEAD_LEN>()?;
        let kind = match head[0] {
            1 => Kind::Hash,
            2 => Kind::Stream,
            _ => return None,
        };
        let mut id = [0; 8];
        id.copy_from_slice(&head[1..]);
        Some(Self { id: CollectionId(u64::from_le_bytes(id)), kind, meta })
    }
}

/// Encodes the beginning of a row: the form and the revision, which precede the bytes of an inline value or the
/// pointer.
#[inline]
pub(crate) fn value_head(form: u8, revision: Revision) -> [u8; HEAD_LEN] {
    let mut head = [form; HEAD_LEN];
    head[1..].copy_from_slice(&revision.0.to_le_bytes());
    head
}

/// Encodes the new beginning (form, revision and expiry) of a row whose value stays. Returns `None` if the new expiry
/// needs another form of row.
pub(crate) fn encode_head(form: u8, revision: Revision, expiry: &Expiry) -> Option<Vec<u8>> {
    let mut head = value_head(form, revision).to_vec();
    match (form, *expiry == Expiry::NEVER) {
        (FORM_INLINE | FORM_BLOB | FORM_COLLECTION, true) => {}
        (FORM_INLINE_ENDING | FORM_BLOB_ENDING | FORM_COLLECTION_ENDING, false) => {
            head.extend_from_slice(&expiry.encode());
        }
        _ => return None,
    }
    Some(head)
}

/// Encodes the row of a value. The form depends on the kind of the value (inline, in the log, or a collection) and on
/// its having an expiry.
pub(crate) fn encode_value(revision: Revision, expiry: &Expiry, value: StoredRef<'_>) -> Vec<u8> {
    let ends = *expiry != Expiry::NEVER;
    let form = match (value, ends) {
        (StoredRef::Inline(_), false) => FORM_INLINE,
        (StoredRef::Blob(_), false) => FORM_BLOB,
        (StoredRef::Inline(_), true) => FORM_INLINE_ENDING,
        (StoredRef::Blob(_), true) => FORM_BLOB_ENDING,
        (StoredRef::Collection(_), false) => FORM_COLLECTION,
        (StoredRef::Collection(_), true) => FORM_COLLECTION_ENDING,
    };
    let place_len = match value {
        StoredRef::Inline(bytes) => bytes.len(),
        StoredRef::Blob(_) => BlobRef::ENCODED_LEN,
        StoredRef::Collection(collection) => COLLECTION_HEAD_LEN + collection.meta.len(),
    };
    let mut row = Vec::with_capacity(HEAD_LEN + Expiry::ENCODED_LEN + place_len);
    row.extend_from_slice(&value_head(form, revision));
    if ends {
        row.extend_from_slice(&expiry.encode());
    }
    match value {
        StoredRef::Inline(bytes) => row.extend_from_slice(bytes),
        StoredRef::Blob(blob) => row.extend_from_slice(&blob.encode()),
        StoredRef::Collection(collection) => {
            row.extend_from_slice(&collection.head());
            row.extend_from_slice(collection.meta);
        }
    }
    row
}

/// Returns the length in bytes of the value in a row. All nodes have the same length, wherever they store the value.
/// Returns a smaller number for a row that does not decode.
#[inline]
pub(crate) fn value_len_of_row(row: &[u8]) -> usize {
    /// Position, within an encoded pointer into the log, of the length of the value.
    const LEN_AT: usize = 12;
    let blob_len = |head: usize| {
        let len = row.get(head + LEN_AT..).and_then(|rest| rest.first_chunk());
        len.map_or(0, |len| u32::from_le_bytes(*len) as usize)
    };
    match row.first() {
        Some(&FORM_INLINE) => row.len().saturating_sub(HEAD_LEN),
        Some(&FORM_BLOB) => blob_len(HEAD_LEN),
        Some(&FORM_INLINE_ENDING) => row.len().saturating_sub(HEAD_LEN + Expiry::ENCODED_LEN),
        Some(&FORM_BLOB_ENDING) => blob_len(HEAD_LEN + Expiry::ENCODED_LEN),
        _ => row.len(),
    }
}

/// Returns true if the row of a key contains a Redis collection, without decoding the row.
#[inline]
pub(crate) fn is_collection(row: &[u8]) -> bool {
    matches!(row.first(), Some(&(FORM_COLLECTION | FORM_COLLECTION_ENDING)))
}

/// A decoded row of a key's value. The reader's [`Visibility`](crate::keyspaces::read_view::Visibility) decides if the
/// row is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded<'a> {
    pub(crate) revision: Revision,
    pub(crate) value: StoredRef<'a>,
    pub(crate) expiry: Expiry,
}

impl Decoded<'_> {
    /// Encodes the form and the revision that the row would have if its value were stored inline.
    #[inline]
    pub(crate) fn inline_head(&self) -> [u8; HEAD_LEN] {
        value_head(if self.expiry == Expiry::NEVER { FORM_INLINE } else { FORM_INLINE_ENDING }, self.revision)
    }

    /// Returns the expiry as encoded in the row; `None` if the value never ends.
    #[inline]
    pub(crate) fn stored_expiry(&self) -> Option<[u8; Expiry::ENCODED_LEN]> {
        (self.expiry != Expiry::NEVER).then(|| self.expiry.encode())
    }
}

/// Decodes the row of a key's value; `key` is used in errors.
#[inline]
pub(crate) fn decode_value<'a>(key: &[u8], value: &'a [u8]) -> Result<Decoded<'a>, MachineError> {
    // Nearly all rows have this form. After inlining, the caller also skips its checks for the other forms.
    if let Some(([FORM_INLINE, revision @ ..], bytes)) = value.split_first_chunk::<HEAD_LEN>() {
        let revision = Revision(u64::from_le_bytes(*revision));
        return Ok(Decoded { revision, value: StoredRef::Inline(bytes), expiry: Expiry::NEVER });
    }
    decode_any_value(key, value)
}

#[inline(never)]
fn decode_any_value<'a>(key: &[u8], value: &'a [u8]) -> Result<Decoded<'a>, MachineError> {
    let corrupt = |message| MachineError::corrupt("value", key, message);
    let Some((head, rest)) = value.split_first_chunk::<HEAD_LEN>() else {
        return Err(corrupt("shorter than form and revision"));
    };
    let mut revision = [0; 8];
    revision.copy_from_slice(&head[1..]);
    let revision = Revision(u64::from_le_bytes(revision));
    let blob = |bytes| BlobRef::decode(bytes).map(StoredRef::Blob).ok_or_else(|| corrupt("pointer of a wrong length"));
    let collection = |bytes: &'a [u8]| {
        CollectionRef::decode(bytes).map(StoredRef::Collection).ok_or_else(|| corrupt("collection does not decode"))
    };
    match head[0] {
        FORM_INLINE => Ok(Decoded { revision, value: StoredRef::Inline(rest), expiry: Expiry::NEVER }),
        FORM_BLOB => Ok(Decoded { revision, value: blob(rest)?, expiry: Expiry::NEVER }),
        form @ (FORM_INLINE_ENDING | FORM_BLOB_ENDING) => {
            let (expiry, rest) = rest.split_first_chunk().ok_or_else(|| corrupt("shorter than its expiry"))?;
            let value = if form == FORM_INLINE_ENDING { StoredRef::Inline(rest) } else { blob(rest)? };
            Ok(Decoded { revision, value, expiry: Expiry::decode(*expiry) })
        }
        FORM_COLLECTION => Ok(Decoded { revision, value: collection(rest)?, expiry: Expiry::NEVER }),
        FORM_COLLECTION_ENDING => {
            let (expiry, rest) = rest.split_first_chunk().ok_or_else(|| corrupt("shorter than its expiry"))?;
            Ok(Decoded { revision, value: collection(rest)?, expiry: Expiry::decode(*expiry) })
        }
        _ => Err(corrupt("unknown form")),
    }
}

#[inline]
pub(crate) fn decode_owned(key: &[u8], value: Option<Bytes>) -> Result<Option<Stored>, MachineError> {
    let Some(mut bytes) = value else { return Ok(None) };
    let Decoded { revision, value, expiry } = decode_value(key, &bytes)?;
    let value = match value {
        StoredRef::Blob(blob) => StoredValue::Blob(blob),
        StoredRef::Inline(value) => {
            bytes.advance(bytes.len() - value.len());
            StoredValue::Inline(bytes)
        }
        StoredRef::Collection(CollectionRef { id, kind, meta }) => {
            bytes.advance(bytes.len() - meta.len());
            StoredValue::Collection(Collection { id, kind, meta: bytes })
        }
    };
    Ok(Some(Stored { revision, value, expiry }))
}

#[cfg(test)]
mod tests {
    use thalweg_types::{LeaseId, SpaceTime};

    use thalweg_types::Generation;

    use super::*;

    #[test]
    fn value_layouts_are_pinned() {
        let decoded = |revision, value| Decoded { revision: Revision(revision), value, expiry: Expiry::NEVER };
        let inline = b"\x00\x02\x01\0\0\0\0\0\0value";
        assert_eq!([&value_head(FORM_INLINE, Revision(0x0102)), b"value".as_slice()].concat(), inline);
        assert_eq!(decode_value(b"k", inline).unwrap(), decoded(0x0102, StoredRef::Inline(b"value")));
        let blob = BlobRef { generation: Generation(3), offset: 4, len: 5, crc: 6 };
        let stored = b"\x01\x07\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\x05\0\0\0\x06\0\0\0";
        assert_eq!([&value_head(FORM_BLOB, Revision(7)), blob.encode().as_slice()].concat(), stored);
        assert_eq!(decode_value(b"k", stored).unwrap(), decoded(7, StoredRef::Blob(blob)));
        let expiry = Expiry { deadline: Some(SpaceTime(8)), lease: Some(LeaseId(9)) };
        let ending = [&value_head(FORM_INLINE_ENDING, Revision(7)), expiry.encode().as_slice(), b"value"].concat();
        assert_eq!(ending, b"\x02\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0value");
        let found = decode_value(b"k", &ending).unwrap();
        assert_eq!(found, Decoded { expiry, ..decoded(7, StoredRef::Inline(b"value")) });
        let owned = decode_owned(b"k", Some(Bytes::copy_from_slice(&ending))).unwrap().unwrap();
        assert_eq!((owned.value, owned.expiry), (StoredValue::Inline(Bytes::from_static(b"value")), expiry));
        let ending = [&[3], &stored[1..9], &expiry.encode(), &blob.encode()].concat();
        let found = decode_value(b"k", &ending).unwrap();
        assert_eq!(found, Decoded { expiry, ..decoded(7, StoredRef::Blob(blob)) });
    }

    #[test]
    fn rows_of_collections_are_pinned() {
        let collection = CollectionRef { id: CollectionId(0x0102), kind: Kind::Stream, meta: b"meta" };
        for (expiry, row) in [
            (Expiry::NEVER, b"\x04\x07\0\0\0\0\0\0\0\x02\x02\x01\0\0\0\0\0\0meta".as_slice()),
            (
                Expiry { deadline: Some(SpaceTime(8)), lease: Some(LeaseId(9)) },
                b"\x05\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x02\x02\x01\0\0\0\0\0\0meta",
            ),
        ] {
            assert_eq!(encode_value(Revision(7), &expiry, StoredRef::Collection(collection)), row);
            let found = decode_value(b"k", row).unwrap();
            assert_eq!(found, Decoded { revision: Revision(7), value: StoredRef::Collection(collection), expiry });
            let owned = decode_owned(b"k", Some(Bytes::copy_from_slice(row))).unwrap().unwrap();
            assert_eq!((owned.value.as_ref(), owned.expiry), (found.value, expiry));
            assert_eq!(found.value.to_owned(), owned.value);
            assert!(is_collection(row));
            let last_but_meta = row.len() - b"meta".len() - 1;
            assert!(decode_value(b"k", &row[..last_but_meta]).is_err());
        }
        assert!(decode_value(b"k", b"\x04\x07\0\0\0\0\0\0\0\x03\x02\x01\0\0\0\0\0\0meta").is_err());
        assert!(!is_collection(b"") && !is_collection(b"\x03"));
    }

    #[test]
    fn bad_values_are_errors() {
        for bad in [b"".as_slice(), b"\0\0\0\0\0\0\0\0", b"\x02\0\0\0\0\0\0\0\0", b"\x06\0\0\0\0\0\0\0\0"] {
            assert!(matches!(decode_value(b"k", bad), Err(MachineError::Corrupt { .. })), "{bad:?}");
        }
        for form in [FORM_BLOB, FORM_BLOB_ENDING] {
            let bad = [form, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, b's'];
            assert!(matches!(decode_value(b"k", &bad), Err(MachineError::Corrupt { .. })), "{bad:?}");
        }
    }
}
