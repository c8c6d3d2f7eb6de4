//! The running hash follows from the entries alone, and every difference between entries shows in it.

use std::sync::atomic::Ordering;

use thalweg_state::{
    keyspaces::StoredValue,
    machine::{LogId, MachineOptions, Moved},
};
use thalweg_types::{
    Index, KeyspaceId, SpaceTime, StreamId, Term,
    command::{self, KeyspaceConfig, MoveTarget, StreamConfig},
    record::RecordBatch,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{Bench, apply, command};

const KEYSPACE: KeyspaceId = KeyspaceId(1);

fn bench(inline_value_bytes: usize) -> Bench {
    let mut bench = Bench::new(MachineOptions { inline_value_bytes });
    bench.run(
        1,
        &[
            command(|out| command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).unwrap()),
            command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap()),
        ],
    );
    bench
}

fn put(value: &[u8]) -> Vec<u8> {
    command(|out| command::encode_put(out, KEYSPACE, b"key", value).unwrap())
}

fn hash(bench: &Bench) -> u64 {
    bench.machine.applied().running_hash
}

/// One step, as the description of the format has it.
fn step(hash: u64, kind: u64, piece: &[u8]) -> u64 {
    (hash.rotate_left(29) ^ xxh3_64(piece).wrapping_add(kind)).wrapping_mul(0x9e37_79b1_85eb_ca87)
}

#[test]
fn the_hash_of_a_put_is_what_the_description_says() {
    for inline_value_bytes in [0, 100] {
        let mut bench = bench(inline_value_bytes);
        let before = hash(&bench);
        bench.run(7, &[put(b"value")]);
        let entry = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0";
        let outcome = b"\0\x01\0\0\0\0\0\0\0\0\0\0\0";
        let form = b"\0\x01\0\0\0\0\0\0\0\x05\0\0\0\x63\x03\xe0\xe1";
        let pieces: [(u64, &[u8]); 4] = [(1, entry), (2, outcome), (3, b"\x10\0\0\0\x01key"), (4, form)];
        let expected = pieces.iter().fold(before, |hash, (kind, piece)| step(hash, *kind, piece));
        assert_eq!(hash(&bench), expected);
        bench.run(8, &[command(|out| command::encode_delete(out, KEYSPACE, b"key").unwrap())]);
        let entry = b"\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0";
        let outcome = b"\0\x02\0\0\0\0\0\0\0\0\0\0\0";
        let pieces: [(u64, &[u8]); 3] = [(1, entry), (2, outcome), (5, b"\x10\0\0\0\x01key")];
        assert_eq!(hash(&bench), pieces.iter().fold(expected, |hash, (kind, piece)| step(hash, *kind, piece)));
    }
}

#[test]
fn records_of_the_node_leave_it_as_it_is() {
    let mut bench = bench(0);
    bench.run(2, &[put(b"value")]);
    let before = hash(&bench);
    let StoredValue::Blob(blob) = bench.machine.get(KEYSPACE, b"key").unwrap().unwrap().value else { panic!("inline") };
    let bytes = bench.log.read(&blob);
    let record = bench.log.moved(&blob, &MoveTarget::Value { keyspace: KEYSPACE, key: b"key" }, &bytes);
    assert_eq!(apply(&bench.machine, &record).1, Some(Moved::Applied));
    let mut next = || bench.log.skip(SpaceTime(2)).next_lsn;
    bench.machine.apply_vote(b"vote", next()).unwrap();
    bench.machine.apply_purged(LogId { term: Term(1), index: Index(1) }, next()).unwrap();
    bench.machine.skip(next(), None).unwrap();
    assert_eq!(hash(&bench), before);
}

#[test]
fn where_values_are_stored_and_restarts_do_not_show() {
    let run = |inline_value_bytes, restarts: bool| {
        let mut bench = bench(inline_value_bytes);
        let mut records = RecordBatch::new();
        records.push_payload(b"record").unwrap();
        let append = command(|out| command::encode_append(out, StreamId(1), None, &records));
        for (time, commands) in [vec![put(b"1")], vec![put(b"2"), append.clone(), append], vec![put(b"3"), put(b"4")]]
            .into_iter()
            .enumerate()
        {
            if restarts {
                bench.reopen();
            }
            bench.run(time as u64 + 2, &commands);
        }
        hash(&bench)
    };
    let expected = run(0, false);
    for (inline_value_bytes, restarts) in [(0, true), (100, false), (100, true)] {
        assert_eq!(run(inline_value_bytes, restarts), expected);
    }
}

#[test]
fn every_difference_shows_and_stays() {
    let run = |time, value: &[u8], last: &[Vec<u8>]| {
        let mut bench = bench(100);
        bench.run(time, &[put(value)]);
        bench.run(100, last);
        hash(&bench)
    };
    let same = [put(b"the same")];
    let expected = run(2, b"value", &same);
    assert_eq!(run(2, b"value", &same), expected);
    assert_ne!(run(2, b"other", &same), expected, "a value that was overwritten since");
    assert_ne!(run(3, b"value", &same), expected, "the time of an entry");
    assert_ne!(run(2, b"value", &[]), expected, "an entry without commands");
    let refused = command(|out| command::encode_delete(out, KeyspaceId(9), b"key").unwrap());
    assert_ne!(run(2, b"value", &[same[0].clone(), refused]), expected, "a refusal");
}

#[test]
fn a_blind_put_still_reads_nothing() {
    let mut bench = bench(100);
    let before = bench.backend.reads.load(Ordering::Relaxed);
    bench.run(2, &[put(b"value")]);
    assert_eq!(bench.backend.reads.load(Ordering::Relaxed), before);
}
