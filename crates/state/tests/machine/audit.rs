//! Tests that the audit finds disagreements.

use thalweg_state::{
    audit::{Finding, FindingKind, Values, audit},
    machine::MachineOptions,
};
use thalweg_store::Backend;
use thalweg_types::{
    GroupId, KeyspaceId, LeaseId, Offset, StreamId,
    command::{
        self, AppendConditions, Deadline, KeyspaceConfig, KeyspaceHistory, ProducerStamp, RedisBuilder, StreamConfig,
        groups::{GroupConfig, encode_create_group, encode_fetch},
    },
    record::RecordBatch,
};

use crate::{
    random::{groupings::sound, node::Node, node::on_a_map},
    support::{Map, MapBackend, command},
};

/// Creates a node with redundant data of every kind.
fn node() -> Node {
    let exact = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    let history = KeyspaceHistory { revisions: Some(4), age: Some(std::time::Duration::from_secs(1)) };
    let with_history = KeyspaceConfig { history, ..KeyspaceConfig::default() };
    let keyspace = |name, config| command(|out| command::encode_create_keyspace(out, name, &config).unwrap());
    let put =
        |keyspace, byte| command(|out| command::encode_put(out, KeyspaceId(keyspace), b"key", &[byte; 300]).unwrap());
    let ends = command(|out| {
        let (deadline, lease) = (Deadline::After(std::time::Duration::from_secs(9)), Some(LeaseId(7)));
        command::encode_put_until(out, KeyspaceId(1), b"ends", b"value", deadline, lease).unwrap();
    });
    let mut redis = RedisBuilder::new(KeyspaceId(1));
    redis.push(&[b"HSET", b"hash", b"field", b"value"]).unwrap().push(&[b"HSET", b"gone", b"field", b"v"]).unwrap();
    redis.push(&[b"DEL", b"gone"]).unwrap();
    let append = |sequence| {
        let mut batch = RecordBatch::new();
        batch.push_payload(b"payload").unwrap();
        let producer = Some(ProducerStamp { id: "p", epoch: 1, sequence });
        let terms = AppendConditions { producer, ..AppendConditions::default() };
        command(|out| command::encode_append_with(out, StreamId(1), &terms, &batch).unwrap())
    };
    let mut node = Node::new(on_a_map(), MachineOptions { inline_value_bytes: 128 });
    for command in [
        keyspace("exact", exact),
        keyspace("history", with_history),
        command(|out| command::encode_grant_lease(out, Some(LeaseId(7)), std::time::Duration::from_secs(9)).unwrap()),
        ends,
        put(1, b'a'),
        put(2, b'a'),
        put(2, b'b'),
        put(2, b'c'),
        redis.finish(),
        command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap()),
        append(0),
        append(1),
        append(2),
        command(|out| {
            let config = GroupConfig::default();
            encode_create_group(out, StreamId(1), "g", Some(Offset(0)), &config).unwrap();
        }),
        command(|out| encode_fetch(out, GroupId(1), 2, Offset(0), &[], "member").unwrap()),
    ] {
        node.apply(1000, &[&command]);
    }
    node
}

/// Returns the findings of an audit after the rows are changed.
fn findings(node: &Node, change: impl FnOnce(&mut Map)) -> Vec<Finding> {
    let mut rows = node.rows();
    change(&mut rows);
    let backend = MapBackend::of(rows, node.backend().applied());
    audit(&*backend.view(), Values::Exactly).unwrap()
}

fn first_with(rows: &Map, prefix: &[u8]) -> Vec<u8> {
    rows.range(prefix.to_vec()..).next().map(|(key, _)| key.clone()).filter(|key| key.starts_with(prefix)).unwrap()
}

#[test]
fn a_sound_state_has_no_findings() {
    sound(&node(), Values::Exactly).unwrap();
}

/// A change of the rows.
type Change = Box<dyn Fn(&mut Map)>;

/// Returns a change that increments a byte of the first row with a prefix.
fn change(prefix: &'static [u8], at: usize) -> Change {
    Box::new(move |rows| {
        let key = first_with(rows, prefix);
        rows.get_mut(&key).unwrap()[at] += 1;
    })
}

fn remove(prefix: &'static [u8]) -> Change {
    Box::new(move |rows| drop(rows.remove(&first_with(rows, prefix))))
}

fn add(key: &'static [u8], row: &'static [u8]) -> Change {
    Box::new(move |rows| drop(rows.insert(key.to_vec(), row.to_vec())))
}

#[test]
fn each_disagreement_is_found() {
    let node = node();
    use FindingKind::*;
    let cases: Vec<(&str, Change, FindingKind)> = vec![
        ("more bytes of batches in a segment", change(b"\x04\0", 0), Liveness),
        ("more bytes of values in a segment", change(b"\x04\0", 16), Liveness),
        ("no row of a segment", remove(b"\x04\0"), Liveness),
        ("more keys in a keyspace", change(b"\x07", 0), Counts),
        ("more bytes in a keyspace", change(b"\x07", 8), Counts),
        ("no counts", remove(b"\x07"), Counts),
        ("no row of a key's deadline", remove(b"\x08\0\0\0\0\0\x89\x58\x28\0\0\0\x01"), Deadline),
        ("no row of a lease's deadline", remove(b"\x08\0\0\0\0\0\x89\x58\x28\0\0\0\0"), Deadline),
        ("no lease", remove(b"\x09"), Attachment),
        ("another deadline of a lease", change(b"\x09", 8), Deadline),
        ("more keys of a lease", change(b"\x09", 16), LeaseKeys),
        ("no attachment", remove(b"\x0a"), Attachment),
        ("another start of a stream's bytes", change(b"\x03", 81), StreamHead),
        ("another end of a stream's bytes", change(b"\x03", 89), StreamHead),
        ("another time of a stream's start", change(b"\x03", 97), StreamHead),
        ("another last time of a stream", change(b"\x03", 105), StreamHead),
        ("more producers", change(b"\x03", 113), Producers),
        ("more saved bytes", change(b"\x03", 125), StreamHead),
        ("no first index entry", remove(b"\x11"), Tiling),
        ("more records in a batch", change(b"\x11", 20), Tiling),
        ("an earlier batch that is later", change(b"\x11", 24), Tiling),
        ("more bytes before a batch", change(b"\x11", 32), Tiling),
        ("no head of a stream", remove(b"\x03"), Stray),
        ("no producer", remove(b"\x0d\0\0\0\x01\0"), Producers),
        ("a version that ends later", change(b"\x12\x01", 0), Version),
        ("no row of a version's time", remove(b"\x12\x02"), VersionTime),
        ("no history", remove(b"\x12\0"), History),
        ("a history that is not kept any more", change(b"\x12\0", 16), Undecodable),
        ("no key that holds a hash", remove(b"\x10\0\0\0\x01hash"), Collection),
        ("no trash row", remove(b"\x15"), Collection),
        ("a trash row of a hash that is held", add(b"\x15\0\0\0\x01\0\0\0\0\0\0\0\x01", b""), Collection),
        ("an attempt that was never made", add(b"\x14\0\0\0\x01\0\0\0\0\0\0\0\x09", b"\0"), Undecodable),
        ("a key of no keyspace", add(b"\x10\0\0\0\x09key", b"\0\0\0\0\0\0\0\0\0"), Stray),
        ("a value of the future", change(b"\x10\0\0\0\x01key", 2), FutureRevision),
        ("a deleted prefix of no keyspace", add(b"\x06\0\0\0\x09", b"\x01\0\0\0\0\0\0\0\0"), Stray),
        ("a row of no kind", add(b"\x20", b""), UnknownKind),
        ("a value that does not decode", add(b"\x10\0\0\0\x01bad", b"\x09"), Undecodable),
    ];
    let missed = cases.into_iter().filter_map(|(what, change, kind)| {
        let found = findings(&node, change);
        let is_found = found.iter().any(|finding| finding.kind == kind);
        (!is_found).then(|| format!("{what}: {kind:?} is not in {found:?}"))
    });
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
