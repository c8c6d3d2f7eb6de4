//! The keys of the ordered map.
//!
//! Owns: the meaning of the first byte of a key, and the layout of ids, user keys and offsets after it, which makes
//! byte order equal to scan order. Does not own: the values; the code that reads a value defines its layout.
//!
//! ```text
//! 00                                       backends' own keys
//! 01                                       meta: format and next ids
//! 02 | keyspace u32 BE                     a keyspace's catalog row
//! 03 | stream u32 BE                       a stream's head
//! 04 | generation u64 BE                   a segment's liveness
//! 05 | 1 to 4                              the space's membership, vote, purged entry, removed nodes
//! 06 | keyspace u32 BE | prefix            a deleted prefix whose rows are still there
//! 07 | keyspace u32 BE                     exact counts of a keyspace
//! 0b                                       the history floor
//! 0b | index u64 BE                        an entry's verdict
//! 0c | revision u64 BE                     a mark: where a revision is in the log
//! 0d | stream u32 BE | 0 | producer id     a stream's state of a producer
//! 0d | stream u32 BE | 1 | id_len | id | slot   the result of one of its appends
//! 0e                                       the next consumer group
//! 0e | group u32 BE                        a consumer group's head
//! 0f | group u32 BE | member u32 BE        a member of a consumer group
//! 08 | deadline u64 BE | keyspace, user key a deadline of a key or (keyspace 0) of a lease
//! 09 | lease u64 BE                        a lease
//! 0a | lease u64 BE | keyspace, user key   a key attached to a lease
//! 10 | keyspace u32 BE | user key          a key's value
//! 11 | stream u32 BE | first offset u64 BE a batch's index entry
//! 14 | group u32 BE | attempt u64 BE       pending records of a consumer group
//! 13 | keyspace u32 BE | collection u64 BE | name   a part of a hash or a stream of Redis clients
//! 15 | keyspace u32 BE | collection u64 BE a collection without a key, whose parts are not removed yet
//! 12 | 0, 1 or 2 | keyspace u32 BE ...     former values of keys: see `history::rows`
//! f0 - ff                                  backends' own keys
//! ```
//! Invariant: no key is empty, and none exceeds the backends' maximum length.

use std::ops::Bound;

use thalweg_redis::CollectionId;
use thalweg_types::{
    Attempt, Generation, GroupId, Index, KeyspaceId, Offset, Revision, StreamId, key_order::after_prefix,
    limits::MAX_KEY_BYTES,
};

pub(crate) const TAG_META: u8 = 0x01;
pub(crate) const TAG_KEYSPACE: u8 = 0x02;
pub(crate) const TAG_STREAM: u8 = 0x03;
pub(crate) const TAG_LIVENESS: u8 = 0x04;
pub(crate) const TAG_MEMBERSHIP: u8 = 0x05;
pub(crate) const TAG_CLEAR: u8 = 0x06;
pub(crate) const TAG_COUNTS: u8 = 0x07;
pub(crate) const TAG_VERDICT: u8 = 0x0b;
pub(crate) const TAG_MARK: u8 = 0x0c;
pub(crate) const TAG_PRODUCER: u8 = 0x0d;
pub(crate) const TAG_CONSUMERS: u8 = 0x0e;
pub(crate) const TAG_MEMBER: u8 = 0x0f;
pub(crate) const TAG_DEADLINE: u8 = 0x08;
pub(crate) const TAG_LEASE: u8 = 0x09;
pub(crate) const TAG_ATTACHED: u8 = 0x0a;
pub(crate) const TAG_DATA: u8 = 0x10;
pub(crate) const TAG_INDEX: u8 = 0x11;
pub(crate) const TAG_VERSIONS: u8 = 0x12;
pub(crate) const TAG_PARCEL: u8 = 0x14;
pub(crate) const TAG_PART: u8 = 0x13;
pub(crate) const TAG_TRASH: u8 = 0x15;

/// Maximum bytes of a key in a backend.
const MAX_BACKEND_KEY_BYTES: usize = 65_535;
/// Number of bytes (tag and keyspace id) before the user key in the row key of a value.
pub(crate) const DATA_PREFIX_LEN: usize = 5;

const _: () = assert!(PART_PREFIX_LEN + MAX_KEY_BYTES <= MAX_BACKEND_KEY_BYTES);
const _: () = assert!(DATA_PREFIX_LEN <= PART_PREFIX_LEN);

/// Number of bytes (tag, keyspace id and collection id) before the name in the row key of a part of a Redis collection.
pub(crate) const PART_PREFIX_LEN: usize = 13;

/// Row key of the meta row: the next ids and other counters of the state.
pub(crate) const META: [u8; 1] = [TAG_META];

/// Row key of the last applied membership: the list of the Raft group's members.
pub(crate) const MEMBERSHIP: [u8; 2] = [TAG_MEMBERSHIP, 1];
/// Row key of this node's vote in elections of the Raft group's leader.
pub(crate) const VOTE: [u8; 2] = [TAG_MEMBERSHIP, 2];
/// Row key of the id of the purged entry: the last entry that the log no longer has to retain.
pub(crate) const PURGED: [u8; 2] = [TAG_MEMBERSHIP, 3];
/// Row key of the ids of nodes that were members and were removed.
pub(crate) const REMOVED: [u8; 2] = [TAG_MEMBERSHIP, 4];

/// Row key of the history floor (the oldest position from which this node's log can be read as history). Verdicts
/// (facts about single entries) have the same first byte, followed by the index of their entry.
pub(crate) const HISTORY_FLOOR: [u8; 1] = [TAG_VERDICT];
pub(crate) const INLINE_FLOOR: [u8; 1] = [TAG_LIVENESS];

/// Returns the row-key prefix of all values in a keyspace.
#[inline]
pub(crate) fn data_prefix(keyspace: KeyspaceId) -> [u8; DATA_PREFIX_LEN] {
    tag_and_id(TAG_DATA, keyspace.0)
}

/// Returns the key of a keyspace's catalog row.
pub(crate) fn keyspace_row(keyspace: KeyspaceId) -> [u8; 5] {
    tag_and_id(TAG_KEYSPACE, keyspace.0)
}

/// Returns the row-key prefix of a keyspace's clears: deleted prefixes whose rows are not all removed yet.
pub(crate) fn clear_prefix(keyspace: KeyspaceId) -> [u8; 5] {
    tag_and_id(TAG_CLEAR, keyspace.0)
}

/// Decodes the keyspace and the deleted prefix from the row key of a clear.
pub(crate) fn clear_of(key: &[u8]) -> Option<(KeyspaceId, &[u8])> {
    let (head, prefix) = key.split_first_chunk::<5>()?;
    Some((KeyspaceId(id_of(head)?), prefix))
}

/// Returns the row key under which a keyspace's exact counts are stored.
pub(crate) fn counts_row(keyspace: KeyspaceId) -> [u8; 5] {
    tag_and_id(TAG_COUNTS, keyspace.0)
}

/// Returns the row key of a stream's head.
pub(crate) fn stream_head(stream: StreamId) -> [u8; 5] {
    tag_and_id(TAG_STREAM, stream.0)
}

/// Returns the row key under which the live bytes of a log segment are stored.
pub(crate) fn liveness_row(generation: Generation) -> [u8; 9] {
    tag_and_number(TAG_LIVENESS, generation.0)
}

/// Returns the row key of the index entry of the stream's batch that begins at offset `first`.
#[inline]
pub(crate) fn index_entry(stream: StreamId, first: Offset) -> [u8; 13] {
    let mut key = [TAG_INDEX; 13];
    key[1..5].copy_from_slice(&stream.0.to_be_bytes());
    key[5..].copy_from_slice(&first.0.to_be_bytes());
    key
}

/// Returns the row-key prefix of all parts (fields or entries) of a Redis collection.
#[inline]
pub(crate) fn part_prefix(keyspace: KeyspaceId, collection: CollectionId) -> [u8; PART_PREFIX_LEN] {
    of_collection(TAG_PART, keyspace, collection)
}

/// Returns the key of a trash row: it lists a Redis collection that no key refers to, whose parts are still to be
/// removed.
pub(crate) fn trash_row(keyspace: KeyspaceId, collection: CollectionId) -> [u8; PART_PREFIX_LEN] {
    of_collection(TAG_TRASH, keyspace, collection)
}

/// Decodes the keyspace and the collection from the key of a trash row (a Redis collection without a key).
pub(crate) fn collection_of_trash(key: &[u8]) -> Option<(KeyspaceId, CollectionId)> {
    let (keyspace, collection) = key.get(1..)?.split_first_chunk()?;
    let collection = u64::from_be_bytes(collection.try_into().ok()?);
    Some((KeyspaceId(u32::from_be_bytes(*keyspace)), CollectionId(collection)))
}

fn of_collection(tag: u8, keyspace: KeyspaceId, collection: CollectionId) -> [u8; PART_PREFIX_LEN] {
    let mut key = [tag; PART_PREFIX_LEN];
    key[1..5].copy_from_slice(&keyspace.0.to_be_bytes());
    key[5..].copy_from_slice(&collection.0.to_be_bytes());
    key
}

/// Returns the row key of the verdict of the log entry with this index: facts about the entry that its bytes do not
/// determine.
pub(crate) fn verdict(index: Index) -> [u8; 9] {
    tag_and_number(TAG_VERDICT, index.0)
}

/// Returns the row key of a mark, which stores the log position of an entry. `revision` is the last revision used
/// before that entry.
pub(crate) fn history_mark(revision: Revision) -> [u8; 9] {
    tag_and_number(TAG_MARK, revision.0)
}

fn tag_and_number(tag: u8, number: u64) -> [u8; 9] {
    let mut key = [tag; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Decodes the log entry's index from the row key of a verdict (facts about an entry).
pub(crate) fn index_of_verdict(key: &[u8]) -> Option<Index> {
    Some(Index(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

/// Decodes the revision from the row key of a mark (log position of a revision).
pub(crate) fn revision_of_mark(key: &[u8]) -> Option<Revision> {
    Some(Revision(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

/// Returns the row-key prefix of all rows of a stream's idempotent producers.
pub(crate) fn producers(stream: StreamId) -> [u8; 5] {
    tag_and_id(TAG_PRODUCER, stream.0)
}

/// Returns the row-key prefix of the head rows of a stream's producers; in each key a producer's id follows.
pub(crate) fn producer_heads(stream: StreamId) -> [u8; 6] {
    let [tag, a, b, c, d] = producers(stream);
    [tag, a, b, c, d, 0]
}

/// Returns the row key of a producer's head in a stream.
pub(crate) fn producer_head(stream: StreamId, id: &str) -> Vec<u8> {
    [&producer_heads(stream), id.as_bytes()].concat()
}

/// Returns the row key of the stored result of one append of a producer. The id's length precedes the id, so that the
/// rows of a producer `a` do not share a prefix with those of a producer `ab`.
pub(crate) fn producer_result(stream: StreamId, id: &str, slot: u8) -> Vec<u8> {
    [&producers(stream), [1, id.len() as u8].as_slice(), id.as_bytes(), &[slot]].concat()
}

/// Returns the row key of a consumer group's head (its configuration, cursor and counters).
pub(crate) fn group_head(group: GroupId) -> [u8; 5] {
    tag_and_id(TAG_CONSUMERS, group.0)
}

/// Returns the row key of a member of a consumer group.
pub(crate) fn group_member(group: GroupId, member: u32) -> [u8; 9] {
    let mut key = [TAG_MEMBER; 9];
    key[1..5].copy_from_slice(&group.0.to_be_bytes());
    key[5..].copy_from_slice(&member.to_be_bytes());
    key
}

/// Returns the row key of the pending records of one delivery attempt of a consumer group.
pub(crate) fn group_parcel(group: GroupId, attempt: Attempt) -> [u8; 13] {
    let mut key = [TAG_PARCEL; 13];
    key[1..5].copy_from_slice(&group.0.to_be_bytes());
    key[5..].copy_from_slice(&attempt.0.to_be_bytes());
    key
}

/// Decodes the consumer group from the row key of a member or an attempt. Returns it with the key's remaining bytes.
pub(crate) fn group_and_rest(key: &[u8]) -> Option<(GroupId, &[u8])> {
    let (group, rest) = key.get(1..)?.split_first_chunk()?;
    Some((GroupId(u32::from_be_bytes(*group)), rest))
}

#[inline]
fn tag_and_id(tag: u8, id: u32) -> [u8; 5] {
    let id = id.to_be_bytes();
    [tag, id[0], id[1], id[2], id[3]]
}

/// Decodes the 32-bit id that follows the one-byte tag of a row key; returns `None` if the key has another length.
pub(crate) fn id_of(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(1..)?.try_into().ok()?))
}

/// Decodes the segment's generation from the key of a liveness row.
pub(crate) fn generation_of(key: &[u8]) -> Option<Generation> {
    Some(Generation(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

/// Decodes the first offset of the batch from the key of an index entry.
pub(crate) fn first_offset_of(key: &[u8]) -> Option<Offset> {
    Some(Offset(u64::from_be_bytes(key.get(5..)?.try_into().ok()?)))
}

/// Calls `with` with the row key of a user's key: tag, keyspace and the user's key. Row keys of at most 128 bytes are
/// assembled on the stack.
///
/// Tag, keyspace and the first bytes of the key are stored as one word. If they were stored in parts, a processor would
/// delay the next load of these bytes until all parts are in its cache. An implementation that stored the prefix in
/// parts made a get 5 % slower, with only five more instructions.
#[inline]
pub(crate) fn with_data_key<T>(keyspace: KeyspaceId, key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    const STACK: usize = 128;
    /// Number of bytes of the user's key that share the first 8-byte word with the tag and the keyspace.
    const FIRST: usize = 8 - DATA_PREFIX_LEN;
    let len = DATA_PREFIX_LEN + key.len();
    if len > STACK {
        return with(&[&data_prefix(keyspace), key].concat());
    }
    let mut full = [0; STACK];
    let prefix = u64::from(TAG_DATA) << 32 | u64::from(keyspace.0);
    if let Some(first) = key.first_chunk::<4>() {
        let first = u64::from(u32::from_be_bytes(*first) >> 8);
        full[..8].copy_from_slice(&(prefix << 24 | first).to_be_bytes());
        full[8..len].copy_from_slice(&key[FIRST..]);
    } else {
        full[..8].copy_from_slice(&(prefix << 24).to_be_bytes());
        full[DATA_PREFIX_LEN..len].copy_from_slice(key);
    }
    with(&full[..len])
}

/// A range of row keys that owns its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Creates the range of all row keys with this prefix.
    pub(crate) fn with_prefix(prefix: &[u8]) -> Self {
        Self {
            lower: Bound::Included(prefix.to_vec()),
            upper: after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded),
        }
    }

    /// Creates the range of the row keys of a keyspace's values whose user keys have the prefix and are within both
    /// bounds.
    pub(crate) fn of_keyspace(keyspace: KeyspaceId, prefix: &[u8], start: Bound<&[u8]>, end: Bound<&[u8]>) -> Self {
        let base = data_prefix(keyspace);
        let mut range = Self::with_prefix(&[&base, prefix].concat());
        let full = |bound: Bound<&[u8]>| bound.map(|key| [&base, key].concat());
        if !matches!(start, Bound::Unbounded) && later_start(&full(start), &range.lower) {
            range.lower = full(start);
        }
        if !matches!(end, Bound::Unbounded) && earlier_end(&full(end), &range.upper) {
            range.upper = full(end);
        }
        range
    }

    /// Returns true if the range's bounds exclude every key. Backends may require bounds that do not cross.
    pub(crate) fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
            | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        }
    }

    pub(crate) fn set_lower(&mut self, lower: Bound<Vec<u8>>) {
        self.lower = lower;
    }

    pub(crate) fn set_upper(&mut self, upper: Bound<Vec<u8>>) {
        self.upper = upper;
    }

    pub(crate) fn lower(&self) -> Bound<&[u8]> {
        self.lower.as_ref().map(Vec::as_slice)
    }

    pub(crate) fn upper(&self) -> Bound<&[u8]> {
        self.upper.as_ref().map(Vec::as_slice)
    }
}

/// Returns true if the lower bound `a` excludes keys that the lower bound `b` includes.
fn later_start(a: &Bound<Vec<u8>>, b: &Bound<Vec<u8>>) -> bool {
    match (a, b) {
        (Bound::Unbounded, _) => false,
        (_, Bound::Unbounded) => true,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) if a != b => a > b,
        (a, b) => matches!((a, b), (Bound::Excluded(_), Bound::Included(_))),
    }
}

/// Returns true if the upper bound `a` excludes keys that the upper bound `b` includes.
fn earlier_end(a: &Bound<Vec<u8>>, b: &Bound<Vec<u8>>) -> bool {
    match (a, b) {
        (Bound::Unbounded, _) => false,
        (_, Bound::Unbounded) => true,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) if a != b => a < b,
        (a, b) => matches!((a, b), (Bound::Excluded(_), Bound::Included(_))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_pinned() {
        assert_eq!(META, [0x01]);
        assert_eq!([MEMBERSHIP, VOTE, PURGED, REMOVED], [[0x05, 1], [0x05, 2], [0x05, 3], [0x05, 4]]);
        assert_eq!(keyspace_row(KeyspaceId(0x0102_0304)), [0x02, 1, 2, 3, 4]);
        assert_eq!(stream_head(StreamId(7)), [0x03, 0, 0, 0, 7]);
        assert_eq!([TAG_DEADLINE, TAG_LEASE, TAG_ATTACHED], [0x08, 0x09, 0x0a]);
        assert_eq!(liveness_row(Generation(258)), [0x04, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(index_entry(StreamId(7), Offset(258)), [0x11, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(clear_prefix(KeyspaceId(7)), [0x06, 0, 0, 0, 7]);
        assert_eq!(clear_of(b"\x06\0\0\0\x07p"), Some((KeyspaceId(7), b"p".as_slice())));
        assert_eq!(counts_row(KeyspaceId(7)), [0x07, 0, 0, 0, 7]);
        assert_eq!((HISTORY_FLOOR, INLINE_FLOOR), ([0x0b], [0x04]));
        assert_eq!(verdict(Index(258)), [0x0b, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(history_mark(Revision(258)), [0x0c, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(producer_head(StreamId(7), "p1"), b"\x0d\0\0\0\x07\0p1");
        assert_eq!(producer_result(StreamId(7), "p1", 5), b"\x0d\0\0\0\x07\x01\x02p1\x05");
        assert_eq!(group_head(GroupId(7)), [0x0e, 0, 0, 0, 7]);
        assert_eq!(group_member(GroupId(7), 258), [0x0f, 0, 0, 0, 7, 0, 0, 1, 2]);
        assert_eq!(group_parcel(GroupId(7), Attempt(258)), [0x14, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 2]);
        let (keyspace, collection) = (KeyspaceId(7), CollectionId(258));
        assert_eq!(part_prefix(keyspace, collection), [0x13, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 2]);
        let trash = trash_row(keyspace, collection);
        assert_eq!(trash, [0x15, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(collection_of_trash(&trash), Some((keyspace, collection)));
        assert_eq!((collection_of_trash(&trash[..12]), collection_of_trash(b"")), (None, None));
        with_data_key(KeyspaceId(9), b"key", |key| assert_eq!(key, b"\x10\0\0\0\x09key"));
        with_data_key(KeyspaceId(9), b"", |key| assert_eq!(key, b"\x10\0\0\0\x09"));
        let long = vec![b'x'; 500];
        with_data_key(KeyspaceId(9), &long, |key| assert_eq!(key, [b"\x10\0\0\0\x09".as_slice(), &long].concat()));
    }

    #[test]
    fn keys_are_read_back() {
        assert_eq!(id_of(&stream_head(StreamId(77))), Some(77));
        assert_eq!(id_of(b"\x03\0\0"), None);
        assert_eq!(generation_of(&liveness_row(Generation(5))), Some(Generation(5)));
        assert_eq!(first_offset_of(&index_entry(StreamId(1), Offset(99))), Some(Offset(99)));
        assert_eq!(index_of_verdict(&verdict(Index(7))), Some(Index(7)));
        assert_eq!(revision_of_mark(&history_mark(Revision(7))), Some(Revision(7)));
        assert_eq!((index_of_verdict(b"\x0b"), revision_of_mark(b"\x0c\0")), (None, None));
        assert_eq!(first_offset_of(b""), None);
    }

    #[test]
    fn the_last_keyspace_ends_where_the_next_tag_begins() {
        let last = KeyRange::of_keyspace(KeyspaceId::MAX, b"", Bound::Unbounded, Bound::Unbounded);
        assert_eq!(last.upper(), Bound::Excluded([0x11].as_slice()));
    }

    #[test]
    fn bounds_and_prefix_are_intersected() {
        let range = |prefix: &[u8], start, end| KeyRange::of_keyspace(KeyspaceId(1), prefix, start, end);
        let inside = range(b"b", Bound::Included(b"a"), Bound::Excluded(b"z"));
        assert_eq!(inside, range(b"b", Bound::Unbounded, Bound::Unbounded));
        let narrowed = range(b"b", Bound::Excluded(b"b"), Bound::Included(b"bz"));
        assert_eq!(narrowed.lower(), Bound::Excluded(b"\x10\0\0\0\x01b".as_slice()));
        assert_eq!(narrowed.upper(), Bound::Included(b"\x10\0\0\0\x01bz".as_slice()));
        assert!(range(b"b", Bound::Included(b"c"), Bound::Unbounded).is_empty());
        assert!(range(b"", Bound::Included(b"c"), Bound::Excluded(b"c")).is_empty());
        assert!(!range(b"", Bound::Included(b"c"), Bound::Included(b"c")).is_empty());
    }
}
