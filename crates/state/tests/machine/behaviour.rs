//! One behaviour a test.

use std::{ops::ControlFlow, sync::atomic::Ordering, time::Duration};

use thalweg_state::{
    backend::{Backend, Direction},
    keyspaces::{Fetch, ScanRange, StoredRef, StoredValue},
    machine::{Entry, Machine, MachineError, MachineOptions, Moved, StreamReadError},
};
use thalweg_types::{
    Generation, Index, KeyspaceId, LogPosition, Lsn, Offset, Revision, SpaceTime, StreamId, Term,
    command::{self, AppendedAt, CommitBuilder, Expect, MoveTarget, Outcome, StreamConfig},
    limits,
    record::RecordBatch,
};

use crate::support::{Bench, MapBackend, apply, command, frame};

const KS: KeyspaceId = KeyspaceId(1);
const STREAM: StreamId = StreamId(1);

fn bench() -> Bench {
    let mut bench = Bench::new(MachineOptions { inline_value_bytes: 16 });
    let outcomes = bench.run(
        1,
        &[
            command(|out| command::encode_create_keyspace(out, "users").unwrap()),
            command(|out| command::encode_create_stream(out, "events", &StreamConfig::default()).unwrap()),
        ],
    );
    let created = [Outcome::Keyspace { id: KS, created: true }, Outcome::Stream { id: STREAM, created: true }];
    assert_eq!(outcomes, created);
    bench
}

fn put(key: &[u8], value: &[u8]) -> Vec<u8> {
    command(|out| command::encode_put(out, KS, key, value).unwrap())
}

fn commit(build: impl FnOnce(&mut CommitBuilder)) -> Vec<u8> {
    let mut builder = CommitBuilder::new();
    build(&mut builder);
    command(|out| builder.encode(out))
}

fn batch(payloads: &[&[u8]]) -> RecordBatch {
    let mut batch = RecordBatch::new();
    payloads.iter().for_each(|payload| batch.push_payload(payload).unwrap());
    batch
}

fn append(records: usize) -> Vec<u8> {
    command(|out| command::encode_append(out, STREAM, None, &batch(&vec![b"0123456789".as_slice(); records])))
}

fn trim(before: u64) -> Vec<u8> {
    command(|out| command::encode_trim_stream(out, STREAM, Offset(before)))
}

fn reclaim(max: u32) -> Vec<u8> {
    command(|out| command::encode_reclaim_stream(out, STREAM, max))
}

fn committed(revision: u64) -> Outcome {
    Outcome::Committed { revision: Revision(revision), appends: vec![] }
}

fn keys(machine: &Machine, range: &ScanRange<'_>) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visit = &mut |item: thalweg_state::keyspaces::Item<'_>| {
        assert_eq!(item.value.is_none(), range.fetch == Fetch::KeysOnly);
        keys.push(item.key.to_vec());
        ControlFlow::Continue(())
    };
    machine.snapshot().scan(KS, range, visit).unwrap();
    keys
}

#[test]
fn each_commit_has_its_own_revision() {
    let mut bench = bench();
    let outcomes = bench.run(2, &[put(b"a", b"1"), put(b"b", b""), put(b"", b"empty key")]);
    assert_eq!(outcomes, [committed(1), committed(2), committed(3)]);
    let stored = bench.machine.get(KS, b"").unwrap().unwrap();
    assert_eq!((stored.revision, stored.value), (Revision(3), StoredValue::Inline("empty key".into())));
    let empty = bench.machine.get(KS, b"b").unwrap().unwrap();
    assert_eq!(empty.value, StoredValue::Inline("".into()));
    assert_eq!(bench.machine.applied().revision, Revision(3));
}
