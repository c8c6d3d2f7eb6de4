//! The state in the form that another node can take over. Each row belongs to one of three classes: it is the same on
//! all nodes, belongs to this node only, or points into this node's log.
//!
//! Owns: [`sort`], which classifies rows, and the first rows of a state in a new directory ([`begin`],
//! [`RelocatedBytes`]). Does not own: reading or writing rows, or the log bytes that rows point to.
//!
//! A row that points into the log is sent together with the bytes. Its pointer is sent without a position, because the
//! position belongs to the node; length and checksum belong to the bytes. The table in `row_kinds` lists the kinds of
//! rows that are sent. Invariant: a row of an unknown kind is corruption, because nothing determines if it may be sent.

use std::borrow::Cow;

use thalweg_store::{Applied, WriteBatch};
use thalweg_types::{
    BlobRef, Generation, Index, KeyspaceId, LogPosition, Offset, StreamId,
    command::{HistoryFloor, MoveTarget},
};

use crate::{
    changes::mark::Mark,
    error::MachineError,
    history::{
        rows as versions,
        rows::{HistoryKey, VersionRow},
    },
    keys,
    keyspaces::values::{FORM_BLOB, FORM_BLOB_ENDING},
    membership::{AppliedMembership, LogId, encode_removed},
    row_kinds::{RowKind, SnapshotForm},
    segments::{
        inline_floor,
        liveness::{BlobKind, LivenessChanges, LivenessTable},
    },
    streams::index_entry::IndexEntry,
};

/// Class of a row, which decides if and how a snapshot sends the row to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row<'a> {
    /// The row is about this node or its log, so a snapshot does not contain it.
    Local,
    /// The row is the same on all nodes, so a snapshot contains it unchanged.
    Plain,
    /// The row contains a pointer into the log, so a snapshot contains the row and the bytes to which it points.
    Pointing(PointerRow<'a>),
}

/// A row that points into the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointerRow<'a> {
    /// Offset of the pointer within the row's value, in bytes.
    pub at: usize,
    /// The pointer into the log that the row contains.
    pub blob: BlobRef,
    /// Key or batch to which the bytes in the log belong.
    pub owner: BytesOwner<'a>,
}

/// Key or stream batch that owns the log bytes to which a row points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BytesOwner<'a> {
    /// The bytes are the current value of a key, or a former value.
    Value {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key as the user gave it, without the row's prefix.
        key: Cow<'a, [u8]>,
    },
    /// The bytes are a batch of a stream.
    Batch {
        /// Id of the stream to which the batch belongs.
        stream: StreamId,
        /// First offset of the batch.
        first: Offset,
    },
}

impl BytesOwner<'_> {
    /// Returns the owner as the target of a move record. A restored directory has its long values and batches in move
    /// records of its new log.
    #[must_use]
    pub fn target(&self) -> MoveTarget<'_> {
        match self {
            Self::Value { keyspace, key } => MoveTarget::Value { keyspace: *keyspace, key },
            Self::Batch { stream, first } => MoveTarget::Batch { stream: *stream, first: *first },
        }
    }
}

/// Classifies a row: decides if and how a snapshot sends it to another node.
pub fn sort<'a>(key: &'a [u8], value: &[u8]) -> Result<Row<'a>, MachineError> {
    match RowKind::of(key)?.sharing().snapshot {
        SnapshotForm::Nothing => Ok(Row::Local),
        SnapshotForm::Row => Ok(Row::Plain),
        SnapshotForm::Value => sort_value(key, value),
        SnapshotForm::Version => sort_version(key, value),
        SnapshotForm::IndexEntry => sort_index(key, value),
    }
}

fn sort_value<'a>(key: &'a [u8], value: &[u8]) -> Result<Row<'a>, MachineError> {
    let corrupt = |message| MachineError::corrupt("value", key, message);
    let at = match value.first() {
        Some(&FORM_BLOB) => 9,
        Some(&FORM_BLOB_ENDING) => 25,
        _ => return Ok(Row::Plain),
    };
    let blob = value.get(at..).and_then(BlobRef::decode).ok_or_else(|| corrupt("pointer of a wrong length"))?;
    let (head, user_key) = key.split_first_chunk::<{ keys::DATA_PREFIX_LEN }>().ok_or_else(|| corrupt("short key"))?;
    let keyspace = KeyspaceId(keys::id_of(head).ok_or_else(|| corrupt("short key"))?);
    Ok(Row::Pointing(PointerRow { at, blob, owner: BytesOwner::Value { keyspace, key: user_key.into() } }))
}

fn sort_version<'a>(key: &'a [u8], value: &[u8]) -> Result<Row<'a>, MachineError> {
    let Some(keyspace) = versions::keyspace_of_version(key) else { return Ok(Row::Plain) };
    let of = HistoryKey::of_version(key)?;
    if of.revision.is_none() {
        return Ok(Row::Plain);
    }
    let Some(blob) = VersionRow::decode(key, value)?.blob(key)? else { return Ok(Row::Plain) };
    // The pointer is at the end of the row.
    let at = value.len() - BlobRef::ENCODED_LEN;
    Ok(Row::Pointing(PointerRow { at, blob, owner: BytesOwner::Value { keyspace, key: of.key.into() } }))
}

fn sort_index<'a>(key: &'a [u8], value: &[u8]) -> Result<Row<'a>, MachineError> {
    let (first, entry) = IndexEntry::decode(key, value)?;
    // Compaction has removed all records of the batch.
    if entry.blob.len == 0 {
        return Ok(Row::Plain);
    }
    let stream = key.get(..5).and_then(keys::id_of).map(StreamId);
    let stream = stream.ok_or_else(|| MachineError::corrupt("stream index entry", key, "key of a wrong length"))?;
    Ok(Row::Pointing(PointerRow { at: 0, blob: entry.blob, owner: BytesOwner::Batch { stream, first } }))
}

/// Returns the pointer with its position set to zero: a position is valid in one node's log only.
#[must_use]
pub fn without_position(blob: &BlobRef) -> BlobRef {
    BlobRef { generation: Generation::ZERO, offset: 0, ..*blob }
}

/// Number of live bytes in each segment of a new log, counted while the bytes of a snapshot are written to that log.
#[derive(Debug, Default)]
pub struct RelocatedBytes {
    changes: LivenessChanges,
    base: LivenessTable,
}

impl RelocatedBytes {
    /// Counts the log bytes of the row `pointing`, which were written at position `at` of the new log, as live. Returns
    /// the pointer to them.
    pub fn relocate(&mut self, pointing: &PointerRow<'_>, at: LogPosition) -> BlobRef {
        let blob = BlobRef { generation: at.generation, offset: at.offset, ..pointing.blob };
        let kind = match pointing.owner {
            BytesOwner::Value { .. } => BlobKind::Value,
            BytesOwner::Batch { .. } => BlobKind::Batch,
        };
        self.changes.raise(kind, &blob, &self.base);
        blob
    }

    /// Adds to `batch` the rows with the number of live bytes of each segment, as [`relocate`](Self::relocate) has
    /// counted them.
    pub fn write(&self, batch: &mut WriteBatch) {
        self.changes.write(batch);
    }
}

/// Adds the first rows of a new node that continues alone after the position of another node. `applied` is that
/// position, with an LSN of the new node's own log. `membership` is the payload of the membership's record.
///
/// The rows are the membership (list of nodes), a history floor that makes all earlier entries unreadable as history, a
/// mark from which later changes can be read, and an inline floor. The inline floor states that no row points to a
/// value in an entry of the new log.
pub fn begin(batch: &mut WriteBatch, applied: &Applied, membership: &[u8]) {
    let last = LogId { term: applied.term, index: applied.index };
    batch.put(&[&keys::MEMBERSHIP], &[&last.encode(), membership]);
    begin_log(batch, applied);
}

/// Adds the rows which state that the log has no readable changes and no values up to the `applied` position.
fn begin_log(batch: &mut WriteBatch, applied: &Applied) {
    let floor = HistoryFloor { revision: applied.revision, index: Index(applied.index.0.saturating_add(1)) };
    batch.put(&[&keys::HISTORY_FLOOR], &[&floor.encode()]);
    let mark = Mark { revision: floor.revision, lsn: applied.lsn, index: floor.index };
    batch.put(&[&keys::history_mark(mark.revision)], &[&mark.encode()]);
    inline_floor::write_none_left(batch);
}

/// Adds the first rows of a node that takes over the state of another member of its Raft group, after the `applied`
/// position. The rows are the membership as of this position, the node's own last `vote`, the purged entry (entries up
/// to it may be missing from the node's log), a history floor after it, and an inline floor as in [`begin`].
pub fn follow(batch: &mut WriteBatch, applied: &Applied, membership: &AppliedMembership, vote: Option<&[u8]>) {
    let last = LogId { term: applied.term, index: applied.index };
    batch.put(&[&keys::MEMBERSHIP], &[&membership.id.encode(), &membership.payload]);
    if !membership.removed.is_empty() {
        batch.put(&[&keys::REMOVED], &[&encode_removed(&membership.removed)]);
    }
    begin_log(batch, applied);
    batch.put(&[&keys::PURGED], &[&last.encode()]);
    if let Some(vote) = vote {
        batch.put(&[&keys::VOTE], &[vote]);
    }
}

#[cfg(test)]
mod tests {
    use thalweg_redis::{CollectionId, Kind};
    use thalweg_types::{Lsn, Revision, SpaceTime, Term};

    use super::*;
    use crate::{
        expiry::rows::Expiry,
        keyspaces::values::{CollectionRef, StoredRef, encode_value},
    };

    const BLOB: BlobRef = BlobRef { generation: Generation(7), offset: 8192, len: 5, crc: 9 };

    #[test]
    fn rows_are_told_apart_by_their_tag() {
        for local in [&keys::VOTE[..], &keys::liveness_row(Generation(1)), &keys::HISTORY_FLOOR] {
            assert_eq!(sort(local, b"").unwrap(), Row::Local, "{local:?}");
        }
        for plain in [&keys::META[..], &keys::stream_head(StreamId(1)), &keys::producer_head(StreamId(1), "p")] {
            assert_eq!(sort(plain, b"").unwrap(), Row::Plain, "{plain:?}");
        }
        for plain in [versions::history_row(KeyspaceId(3)).to_vec(), versions::forgotten_row(KeyspaceId(3), b"key")] {
            assert_eq!(sort(&plain, b"").unwrap(), Row::Plain, "{plain:?}");
        }
        for plain in
            [keys::part_prefix(KeyspaceId(3), CollectionId(4)), keys::trash_row(KeyspaceId(3), CollectionId(4))]
        {
            assert_eq!(sort(&plain, b"").unwrap(), Row::Plain, "{plain:?}");
        }
        let row = encode_value(
            Revision(1),
            &Expiry::NEVER,
            StoredRef::Collection(CollectionRef { id: CollectionId(4), kind: Kind::Hash, meta: b"" }),
        );
        assert_eq!(sort(&[&keys::data_prefix(KeyspaceId(3))[..], b"key"].concat(), &row).unwrap(), Row::Plain);
        for unknown in [&b"\x7f"[..], b"\0", b"\xf0", b""] {
            assert!(sort(unknown, b"").is_err(), "{unknown:?}");
        }
    }

    #[test]
    fn pointers_are_found_in_every_form() {
        let key = [&keys::data_prefix(KeyspaceId(3))[..], b"key"].concat();
        let owner = BytesOwner::Value { keyspace: KeyspaceId(3), key: b"key".into() };
        assert_eq!(owner.target(), MoveTarget::Value { keyspace: KeyspaceId(3), key: b"key" });
        for (form, at) in [(FORM_BLOB, 9), (FORM_BLOB_ENDING, 25)] {
            let mut value = vec![0; at];
            value[0] = form;
            value.extend_from_slice(&BLOB.encode());
            let pointing = PointerRow { at, blob: BLOB, owner: owner.clone() };
            assert_eq!(sort(&key, &value).unwrap(), Row::Pointing(pointing.clone()));
            assert!(sort(&key, &value[..value.len() - 1]).is_err());
            let key = versions::version_row(KeyspaceId(3), b"key", Revision(9));
            let version = [&[0; 25], &value[..]].concat();
            assert_eq!(sort(&key, &version).unwrap(), Row::Pointing(PointerRow { at: at + 25, ..pointing }));
            assert!(sort(&key, &version[..version.len() - 1]).is_err());
        }
        assert_eq!(sort(&key, &[0, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap(), Row::Plain);
        let entry = IndexEntry { blob: BLOB, count: 2, time: SpaceTime(1), bytes_before: 0, sparse: None };
        let key = keys::index_entry(StreamId(4), Offset(6));
        let owner = BytesOwner::Batch { stream: StreamId(4), first: Offset(6) };
        let row = entry.encode();
        assert_eq!(sort(&key, row.bytes()).unwrap(), Row::Pointing(PointerRow { at: 0, blob: BLOB, owner }));
        assert!(sort(&key, &row.bytes()[1..]).is_err());
    }

    #[test]
    fn a_node_begins_with_its_membership_and_the_floor_after_what_was_applied() {
        let mut batch = WriteBatch::new();
        let applied =
            Applied { term: Term(2), index: Index(5), revision: Revision(4), lsn: Lsn(9), ..Applied::default() };
        begin(&mut batch, &applied, b"m");
        let mut rows = batch.changes();
        let row = b"\x02\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0m";
        assert_eq!(rows.next(), Some(thalweg_store::Change::Put(&[5, 1], row)));
        let floor = b"\x04\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0";
        assert_eq!(rows.next(), Some(thalweg_store::Change::Put(&[0x0b], floor)));
        let mark = b"\x09\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0";
        assert_eq!(rows.next(), Some(thalweg_store::Change::Put(b"\x0c\0\0\0\0\0\0\0\x04", mark)));
        assert_eq!(rows.next(), Some(thalweg_store::Change::Put(&[0x04], b"\xff\xff\xff\xff")));
        assert_eq!(rows.next(), None);
    }
}
