//! Tests that the running hash follows from the entries alone, and that every difference between entries changes
//! it.

use std::sync::atomic::Ordering;

use thalweg_state::{
    keyspaces::StoredValue,
    machine::{LocalOutcome, MachineOptions},
    membership::LogId,
};
use thalweg_types::{
    Index, KeyspaceId, Offset, SpaceTime, StreamId, Term,
    command::{self, Deadline, KeyspaceConfig, MoveTarget, StreamConfig},
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

/// Returns the step of an entry of term 1, according to the description of the format.
fn entry(index: u64, time: u64) -> (u64, u64) {
    let index = index.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (1, time.wrapping_add(index).wrapping_add(0x1656_67b1_9e37_79f9))
}

/// Computes the steps according to the description of the format.
fn steps(hash: u64, words: &[(u64, u64)]) -> u64 {
    let step = |hash: u64, &(kind, word): &(u64, u64)| {
        (hash.rotate_left(29) ^ word.wrapping_add(kind)).wrapping_mul(0x9e37_79b1_85eb_ca87)
    };
    words.iter().fold(hash, step)
}

#[test]
fn the_hash_of_a_put_is_what_the_description_says() {
    let key = xxh3_64(b"\x10\0\0\0\x01key");
    let long = [b'v'; 129];
    for inline_value_bytes in [128, 200] {
        let mut bench = bench(inline_value_bytes);
        let before = hash(&bench);
        bench.run(7, &[put(&long)]);
        let (len, crc) = (129, u64::from(crc_fast::crc32_iscsi(&long)) << 32);
        let after = steps(before, &[entry(2, 7), (2, 1), (4, key), (5, 1), (5, len | crc)]);
        assert_eq!(hash(&bench), after);
        bench.run(8, &[command(|out| command::encode_delete(out, KEYSPACE, b"key").unwrap())]);
        assert_eq!(hash(&bench), steps(after, &[entry(3, 8), (2, 2), (7, key)]));
        let before = hash(&bench);
        bench.run(9, &[put(b"value")]);
        let whole = xxh3_64(b"\x10\0\0\0\x01key\0\x03\0\0\0\0\0\0\0value");
        let short = (8, whole.wrapping_add(8 << 32));
        assert_eq!(hash(&bench), steps(before, &[entry(4, 9), (2, 3), short]));
    }
}

#[test]
fn the_hash_of_other_outcomes_and_rows_is_what_the_description_says() {
    let mut bench = bench(100);
    let before = hash(&bench);
    bench.run(
        7,
        &[
            command(|out| command::encode_trim_stream(out, StreamId(9), Offset(1))),
            command(|out| {
                let deadline = Deadline::At(SpaceTime(99));
                command::encode_put_until(out, KEYSPACE, b"key", b"value", deadline, None).unwrap();
            }),
        ],
    );
    let refused = xxh3_64(b"\x13\x09\0\0\0");
    let ends_at = b"\x08\0\0\0\0\0\0\0\x63\0\0\0\x01key";
    let form = b"\x02\x01\0\0\0\0\0\0\0\x63\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\x63\x03\xe0\xe1";
    let value = [(4, xxh3_64(b"\x10\0\0\0\x01key")), (6, xxh3_64(form))];
    let row = [(4, xxh3_64(ends_at)), (6, xxh3_64(b""))];
    let head = [entry(2, 7), (3, refused), (2, 1)];
    let either = [[head.as_slice(), &value, &row].concat(), [head.as_slice(), &row, &value].concat()];
    assert!(either.map(|words| steps(before, &words)).contains(&hash(&bench)));
}

#[test]
fn records_of_the_node_leave_it_as_it_is() {
    let mut bench = bench(128);
    bench.run(2, &[put(&[b'v'; 129])]);
    let before = hash(&bench);
    let StoredValue::Blob(blob) = bench.machine.get(KEYSPACE, b"key").unwrap().unwrap().value else { panic!("inline") };
    let bytes = bench.log.read(&blob);
    let record = bench.log.moved(&blob, &MoveTarget::Value { keyspace: KEYSPACE, key: b"key" }, &bytes);
    assert_eq!(apply(&bench.machine, &record).1, Some(LocalOutcome::Applied));
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
        let long = |fill: u8| put(&[fill; 150]);
        for (time, commands) in
            [vec![long(1)], vec![put(b"2"), append.clone(), append], vec![long(3), put(b"4")]].into_iter().enumerate()
        {
            if restarts {
                bench.reopen();
            }
            bench.run(time as u64 + 2, &commands);
        }
        hash(&bench)
    };
    let expected = run(128, false);
    for (inline_value_bytes, restarts) in [(128, true), (200, false), (200, true)] {
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
    assert_ne!(run(2, b"other", &same), expected, "a value that was overwritten later");
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
