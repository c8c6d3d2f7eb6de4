//! The whole map of a fixed log, byte for byte. A change of the golden file is a change of the on-disk format.
//!
//! `THALWEG_BLESS=1` rewrites the file.

use std::{collections::BTreeSet, fmt::Write as _, path::Path, time::Duration};

use thalweg_state::{
    keyspaces::StoredValue,
    machine::{Machine, MachineOptions},
    membership::LogId,
};
use thalweg_store::Backend;
use thalweg_types::{
    Index, KeyspaceId, LeaseId, Offset, Revision, SpaceTime, StreamId, Term,
    command::{
        self, AppendConditions, CommitBuilder, Compaction, Deadline, KeyspaceConfig, KeyspaceHistory, ProducerStamp,
        StreamConfig,
    },
    record::{Record, RecordBatch, Records},
};

use crate::support::{Bench, Map, MapBackend, command};

const MEMBERSHIP: LogId = LogId { term: Term(2), index: Index(4) };
const PURGED: LogId = LogId { term: Term(1), index: Index(3) };

const STORED_AS: MachineOptions = MachineOptions { inline_value_bytes: 8 };

pub fn fixed(options: MachineOptions) -> Bench {
    let mut bench = Bench::new(options);
    bench.log.segment_bytes = 300;
    let config = StreamConfig {
        max_age: Some(Duration::from_secs(60)),
        max_records: Some(1000),
        compaction: Some(Compaction { tombstone_grace: Duration::from_secs(1) }),
        ..StreamConfig::default()
    };
    let mut batch = RecordBatch::new();
    batch.push(&Record { key: Some(b"k"), headers: vec![("h", b"v")], payload: b"p", is_tombstone: false }).unwrap();
    batch.push_payload(b"").unwrap();
    let append = |stream: u32| command(|out| command::encode_append(out, StreamId(stream), None, &batch));
    let mut commit = CommitBuilder::new();
    commit.put(KeyspaceId(1), b"", b"empty key").unwrap().put(KeyspaceId(2), b"key", b"small").unwrap();
    let producer = Some(ProducerStamp { id: "p", epoch: 4, sequence: 0 });
    commit.append_with(StreamId(1), &AppendConditions { expected: Offset(2).into(), producer }, &batch).unwrap();
    // One batch more than the number of index entries that deleting a stream removes.
    let mut many = CommitBuilder::new();
    (0..65).for_each(|_| _ = many.append(StreamId(2), None, &batch).unwrap());
    bench.run(
        1_000_000,
        &[
            command(|out| command::encode_create_keyspace(out, "users", &KeyspaceConfig::default()).unwrap()),
            command(|out| command::encode_create_keyspace(out, "sessions", &KeyspaceConfig::default()).unwrap()),
            command(|out| command::encode_create_stream(out, "events", &config).unwrap()),
            command(|out| command::encode_create_stream(out, "gone", &StreamConfig::default()).unwrap()),
            append(1),
            command(|out| many.encode(out)),
            command(|out| command::encode_open_producer(out, StreamId(2), "q").unwrap()),
            command(|out| command::encode_delete_stream(out, StreamId(2))),
        ],
    );
    bench.run(2_000_000, &[command(|out| commit.encode(out))]);
    bench.run(3_000_000, &[append(1), command(|out| command::encode_trim_stream(out, StreamId(1), Offset(3)))]);
    let until = |key: &[u8], deadline, lease: Option<u64>| {
        let lease = lease.map(LeaseId);
        command(|out| command::encode_put_until(out, KeyspaceId(2), key, b"in the log", deadline, lease).unwrap())
    };
    let day = Duration::from_secs(86_400);
    bench.run(
        3_000_000,
        &[
            command(|out| command::encode_grant_lease(out, Some(LeaseId(7)), day).unwrap()),
            command(|out| command::encode_grant_lease(out, None, day).unwrap()),
            until(b"ends", Deadline::After(day), None),
            until(b"hangs", Deadline::Never, Some(7)),
            until(b"both", Deadline::At(SpaceTime(9_000_000)), Some(7)),
        ],
    );
    let history = KeyspaceHistory { revisions: Some(3), age: Some(day) };
    let kept = |value: &[u8]| command(|out| command::encode_put(out, KeyspaceId(3), b"kept key", value).unwrap());
    bench.run(
        3_000_000,
        &[
            command(|out| {
                let config = KeyspaceConfig { history, ..KeyspaceConfig::default() };
                command::encode_create_keyspace(out, "past", &config).unwrap();
            }),
            kept(b"forgotten"),
            kept(b"in the log"),
            kept(b"3"),
            command(|out| command::encode_delete(out, KeyspaceId(3), b"kept key").unwrap()),
            kept(b"4"),
        ],
    );
    let mut passed = || bench.log.skip(SpaceTime(3_000_000)).next_lsn;
    bench.machine.apply_membership(MEMBERSHIP, SpaceTime(3_000_000), b"members", &BTreeSet::new(), passed()).unwrap();
    bench.machine.apply_vote(b"vote", passed()).unwrap();
    bench.machine.apply_purged(PURGED, passed()).unwrap();
    bench
}

pub fn text_of(map: &Map) -> String {
    let mut text = String::new();
    for (key, value) in map {
        for (part, end) in [(key, " "), (value, "\n")] {
            part.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text.push_str(end);
        }
    }
    text
}

pub fn map_of(text: &str) -> Map {
    let bytes = |hex: &str| {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect::<Vec<_>>()
    };
    text.lines().map(|line| line.split_once(' ').unwrap()).map(|(key, value)| (bytes(key), bytes(value))).collect()
}

fn golden() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/golden/state-v2.txt");
    if std::env::var_os("THALWEG_BLESS").is_some() {
        std::fs::write(&path, text_of(&fixed(STORED_AS).backend.dump())).unwrap();
    }
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_map_of_a_fixed_log_is_pinned() {
    assert_eq!(text_of(&fixed(STORED_AS).backend.dump()), golden());
}

#[test]
fn a_state_of_format_2_can_be_read() {
    let bench = fixed(STORED_AS);
    let backend = MapBackend::of(map_of(&golden()), bench.backend.applied());
    let machine = Machine::open(backend, MachineOptions::default()).unwrap();
    let stored = machine.get(KeyspaceId(2), b"key").unwrap().unwrap();
    assert_eq!((stored.revision, stored.value), (Revision(3), StoredValue::Inline("small".into())));
    let StoredValue::Blob(blob) = machine.get(KeyspaceId(1), b"").unwrap().unwrap().value else { panic!("inline") };
    assert_eq!(bench.log.read(&blob), b"empty key".as_slice());
    let events = machine.stream(machine.stream_id("events").unwrap()).unwrap();
    assert_eq!((events.start, events.next, events.last_time), (Offset(3), Offset(6), SpaceTime(3_000_000)));
    let producer = machine.producer(events.id, "p").unwrap().unwrap();
    assert_eq!((producer.epoch, producer.next_sequence, producer.last_time), (4, 1, SpaceTime(2_000_000)));
    assert_eq!(machine.stream_id("gone"), None);
    assert_eq!(machine.reclaim_due(), [StreamId(1), StreamId(2)]);
    for batch in machine.batches_from(events.id, Offset(3), 9, 999).unwrap().batches {
        let bytes = bench.log.read(&batch.blob);
        let records: Vec<_> = Records::new(&bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(
            records,
            [
                Record { key: Some(b"k"), headers: vec![("h", b"v")], payload: b"p", is_tombstone: false },
                Record::default()
            ]
        );
    }
    assert_eq!(machine.liveness().len(), 4);
    let kept = machine.read_view().versions(KeyspaceId(3), b"kept key", None, 9).unwrap();
    let revisions: Vec<_> = kept.versions.iter().map(|version| version.stored.revision.0).collect();
    assert_eq!((revisions, kept.oldest), (vec![12, 10, 9], Revision(9)));
    let membership = machine.membership().unwrap().unwrap();
    assert_eq!((membership.id, membership.payload.as_ref()), (MEMBERSHIP, b"members".as_slice()));
    assert_eq!(machine.vote().unwrap().as_deref(), Some(b"vote".as_slice()));
    assert_eq!(machine.purged().unwrap(), Some(PURGED));
}
