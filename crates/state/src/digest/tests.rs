use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use bytes::Bytes;
use thalweg_redis::{CollectionId, Kind};
use thalweg_store::{BackendError, Direction, View, Visit, WriteBatch};
use thalweg_types::{
    Attempt, BlobRef, Generation, GroupId, Index, KeyspaceId, LeaseId, Offset, Revision, SpaceTime, StreamId,
    command::StreamConfig,
};

use super::state_digest::LastingValue;
use super::state_digest::lasting_value;
use super::*;
use crate::{error::MachineError, history::rows::VersionRow, keyspaces::values::StoredRef};
use crate::{
    expiry::rows::Expiry,
    history::{
        rows as versions,
        rows::{VersionEnd, VersionUpperBound},
    },
    keys,
    keyspaces::values::{CollectionRef, encode_value},
    streams::heads::{Head, StreamState},
};
use thalweg_store::Applied;

/// Length and CRC-32C of the bytes `value`.
const LEN_AND_CRC: &[u8] = b"\x05\0\0\0\x63\x03\xe0\xe1";
const BLOB: BlobRef = BlobRef { generation: Generation(7), offset: 8192, len: 5, crc: 0xe1e0_0363 };
const ENDS: Expiry = Expiry { deadline: Some(SpaceTime(8)), lease: Some(LeaseId(9)) };
const PLACES: [StoredRef<'_>; 2] = [StoredRef::Inline(b"value"), StoredRef::Blob(BLOB)];

fn form(key: &[u8], row: &[u8]) -> Option<Vec<u8>> {
    let mut out = b"kept".to_vec();
    let standing = replicated_row(key, row, &mut out).unwrap();
    let form = out.strip_prefix(b"kept").unwrap().to_vec();
    match standing {
        RowScope::Replicated => Some(form),
        RowScope::NodeLocal => {
            assert!(form.is_empty());
            None
        }
    }
}

fn data_key() -> Vec<u8> {
    [&keys::data_prefix(KeyspaceId(3))[..], b"key"].concat()
}

#[test]
fn rows_about_a_node_have_no_form() {
    let keys: [&[u8]; 9] = [
        &keys::liveness_row(Generation(1)),
        &keys::MEMBERSHIP,
        &keys::VOTE,
        &keys::PURGED,
        &keys::REMOVED,
        &keys::HISTORY_FLOOR,
        &keys::verdict(Index(1)),
        &keys::history_mark(Revision(1)),
        &keys::index_entry(StreamId(1), Offset(2)),
    ];
    for key in keys {
        assert_eq!(form(key, b"anything"), None, "{key:?}");
    }
}

#[test]
fn rows_without_local_fields_count_as_they_are() {
    let version_time = versions::time_row(KeyspaceId(3), SpaceTime(4), &versions::forgotten_row(KeyspaceId(3), b"k"));
    let keys: [&[u8]; 17] = [
        &keys::META,
        &keys::keyspace_row(KeyspaceId(1)),
        &[&keys::clear_prefix(KeyspaceId(1))[..], b"prefix"].concat(),
        &keys::counts_row(KeyspaceId(1)),
        &[keys::TAG_DEADLINE, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 3, b'k'],
        &[keys::TAG_LEASE, 0, 0, 0, 0, 0, 0, 0, 9],
        &[keys::TAG_ATTACHED, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3, b'k'],
        &keys::producer_head(StreamId(1), "p"),
        &keys::producer_result(StreamId(1), "p", 5),
        &[keys::TAG_CONSUMERS],
        &keys::group_head(GroupId(1)),
        &keys::group_member(GroupId(1), 2),
        &versions::history_row(KeyspaceId(3)),
        &version_time,
        &keys::part_prefix(KeyspaceId(3), CollectionId(4)),
        &keys::group_parcel(GroupId(1), Attempt(2)),
        &keys::trash_row(KeyspaceId(3), CollectionId(4)),
    ];
    for key in keys {
        assert_eq!(form(key, b"row").as_deref(), Some(&b"row"[..]), "{key:?}");
        assert_eq!(form(key, b"").as_deref(), Some(&b""[..]), "{key:?}");
    }
}

#[test]
fn a_value_counts_as_its_length_and_checksum() {
    for place in PLACES {
        let lasting = encode_value(Revision(0x0102), &Expiry::NEVER, place);
        assert_eq!(form(&data_key(), &lasting).unwrap(), [b"\0\x02\x01\0\0\0\0\0\0", LEN_AND_CRC].concat());
        let value = LastingValue { revision: 0x0102, len: 5, crc: 0xe1e0_0363 };
        assert_eq!(lasting_value(&data_key(), &lasting), Some(value));
        assert_eq!(lasting_value(b"\x13other", &lasting), None);
        let ending = encode_value(Revision(0x0102), &ENDS, place);
        assert_eq!(lasting_value(&data_key(), &ending), None);
        let head = b"\x02\x02\x01\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0";
        assert_eq!(form(&data_key(), &ending).unwrap(), [head, LEN_AND_CRC].concat());
    }
}

#[test]
fn a_collection_counts_as_it_is() {
    let collection = StoredRef::Collection(CollectionRef { id: CollectionId(4), kind: Kind::Hash, meta: b"meta" });
    for expiry in [Expiry::NEVER, ENDS] {
        let row = encode_value(Revision(1), &expiry, collection);
        assert_eq!(form(&data_key(), &row).unwrap(), row);
    }
}

#[test]
fn a_version_counts_with_the_form_of_its_value() {
    let key = versions::version_row(KeyspaceId(3), b"key", Revision(9));
    let until = VersionUpperBound { revision: Revision(10), time: SpaceTime(11) };
    for place in PLACES {
        let value = encode_value(Revision(9), &Expiry::NEVER, place);
        let version = VersionRow { until, end: versions::NO_END, ending: VersionEnd::Deleted, value: &value };
        let row = [&version.head()[..], &value].concat();
        let head = b"\x0a\0\0\0\0\0\0\0\x0b\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\x09\0\0\0\0\0\0\0";
        assert_eq!(form(&key, &row).unwrap(), [head, LEN_AND_CRC].concat());
    }
    let forgotten = versions::forgotten_row(KeyspaceId(3), b"key");
    assert_eq!(form(&forgotten, &until.encode()).unwrap(), until.encode());
}

fn head() -> Head {
    Head {
        start: Offset(5),
        next: Offset(6),
        first_indexed: Offset(1),
        start_batch: Offset(4),
        start_bytes: 100,
        end_bytes: 258,
        start_time: SpaceTime(8),
        last_time: SpaceTime(9),
        producers: 10,
        cleaned: Offset(3),
        saved_bytes: -1,
        content: 11,
        ..Head::new("events".into(), StreamConfig::default())
    }
}

fn form_of_head(head: &Head) -> Option<Vec<u8>> {
    let mut batch = WriteBatch::new();
    head.write(StreamId(1), &mut batch, &mut Vec::new());
    let Some(thalweg_store::Change::Put(key, row)) = batch.changes().next() else { panic!("no row") };
    form(key, row)
}

#[test]
fn a_stream_head_counts_without_what_is_local() {
    let mut config = Vec::new();
    StreamConfig::default().encode(&mut config);
    let offsets = b"\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0";
    let others = b"\x02\x01\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x0a\0\0\0\x0b\0\0\0\0\0\0\0events";
    let expected = [b"\0", &config[..], offsets, others].concat();
    assert_eq!(form_of_head(&head()).unwrap(), expected);
    let compacted = Head {
        first_indexed: Offset(2),
        start_batch: Offset(2),
        start_bytes: 99,
        start_time: SpaceTime(7),
        cleaned: Offset(6),
        saved_bytes: 50,
        ..head()
    };
    assert_eq!(form_of_head(&compacted).unwrap(), expected);
    let deleted = form_of_head(&Head { life: StreamState::Deleted, ..head() }).unwrap();
    assert_eq!(deleted, [b"\x01", &expected[1..]].concat());
    assert_eq!(form_of_head(&Head { life: StreamState::Deleted, producers: 0, ..head() }), None);
}

#[test]
fn unknown_kinds_and_broken_rows_are_corruption() {
    let version = versions::version_row(KeyspaceId(3), b"key", Revision(9));
    let broken: [(&[u8], &[u8]); 9] = [
        (b"", b""),
        (b"\0", b""),
        (b"\x7f", b""),
        (b"\xf0", b""),
        (&[keys::TAG_MEMBERSHIP, 5], b""),
        (&[keys::TAG_VERSIONS, 3], b""),
        (&data_key(), b"\x01\0\0\0\0\0\0\0\0short"),
        (&version, b"short"),
        (&keys::stream_head(StreamId(1)), b"short"),
    ];
    for (key, row) in broken {
        let error = replicated_row(key, row, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, MachineError::Corrupt { .. }), "{key:?}: {error}");
    }
}

struct Rows(BTreeMap<Vec<u8>, Vec<u8>>);

impl View for Rows {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        Ok(self.0.get(key).cloned().map(Bytes::from))
    }

    fn scan(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        _: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        for (key, row) in self.0.range::<[u8], _>((lower, upper)) {
            if visit(key, row).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn applied(&self) -> Applied {
        Applied { index: Index(5), ..Applied::default() }
    }
}

fn rows() -> Rows {
    let value = |place| encode_value(Revision(1), &Expiry::NEVER, place);
    Rows(BTreeMap::from([
        (keys::META.to_vec(), b"meta".to_vec()),
        (keys::liveness_row(Generation(1)).to_vec(), b"local".to_vec()),
        (keys::counts_row(KeyspaceId(3)).to_vec(), b"counts".to_vec()),
        (keys::counts_row(KeyspaceId(4)).to_vec(), b"counts".to_vec()),
        (data_key(), value(StoredRef::Inline(b"value"))),
    ]))
}

fn digest_of(rows: &Rows) -> StateDigest {
    let view: Arc<dyn View> = Arc::new(Rows(rows.0.clone()));
    let mut last = 0;
    let digest = state_digest(&*view, &mut |visited| last = visited).unwrap();
    assert_eq!(last, rows.0.len() as u64);
    digest
}

#[test]
fn the_digest_of_fixed_rows_is_pinned() {
    let digest = digest_of(&rows());
    let kinds: Vec<_> = digest.kinds.iter().map(|kind| (kind.tag, kind.name, kind.rows)).collect();
    assert_eq!(kinds, [(0x01, "meta", 1), (0x07, "exact counts", 2), (0x10, "values", 1)]);
    assert_eq!((digest.rows, digest.applied.index), (4, Index(5)));
    // The bytes that the format description defines, hashed in one call.
    let mut bytes = Vec::new();
    for (key, row) in &rows().0 {
        let Some(form) = form(key, row) else { continue };
        for part in [key, &form] {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
        }
    }
    assert_eq!(digest.digest, Digest(xxhash_rust::xxh3::xxh3_128(&bytes)));
    assert_eq!(digest.digest.to_string(), "7fa9c05502a08f5f74ba2834b862d59f");
}

#[test]
fn a_difference_shows_in_its_kind_and_in_no_other() {
    let (before, mut rows) = (digest_of(&rows()), rows());
    rows.0.insert(keys::liveness_row(Generation(2)).to_vec(), b"another".to_vec());
    rows.0.insert(data_key(), encode_value(Revision(1), &Expiry::NEVER, StoredRef::Blob(BLOB)));
    assert_eq!(digest_of(&rows), before);
    rows.0.insert(data_key(), encode_value(Revision(1), &Expiry::NEVER, StoredRef::Inline(b"valuf")));
    let after = digest_of(&rows);
    assert_ne!(after.digest, before.digest);
    let differing: Vec<_> =
        before.kinds.iter().zip(&after.kinds).filter(|(a, b)| a != b).map(|(a, _)| a.name).collect();
    assert_eq!(differing, ["values"]);
}
