//! Tests of large values in the state: an entry that writes one repeatedly keeps one copy of it.

use std::sync::atomic::Ordering;

use thalweg_state::machine::MachineOptions;
use thalweg_types::{
    KeyspaceId, SpaceTime,
    command::{self, CommitBuilder, Deadline, KeyspaceConfig, Outcome, RedisBuilder, TransactionBuilder},
    limits::MAX_VALUE_BYTES,
};

use crate::support::{Bench, command};

const KS: KeyspaceId = KeyspaceId(1);
/// Size in bytes of a value that a transaction may touch once.
const LARGE: usize = MAX_VALUE_BYTES - 7;
/// Size in bytes of a value that a transaction may touch a few times.
const SMALLER: usize = MAX_VALUE_BYTES / 4;

/// Creates a machine with a value of `bytes` bytes in its state.
fn with_a_value(bytes: usize) -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let config = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    let mut large = RedisBuilder::new(KS);
    large.push(&[b"setrange", b"k", (bytes - 1).to_string().as_bytes(), b"x"]).unwrap();
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "k", &config).unwrap()), large.finish()]);
    bench
}

fn touch(at: u64) -> Vec<u8> {
    let mut commit = CommitBuilder::new();
    commit.touch(KS, b"k", Deadline::At(SpaceTime(1_000_000 + at))).unwrap();
    command(|out| commit.encode(out))
}

/// Returns the deadline of the key `k`, after checking that its value is `bytes` bytes long.
fn deadline(bench: &Bench, bytes: usize) -> Option<SpaceTime> {
    let stored = bench.machine.get(KS, b"k").unwrap().unwrap();
    assert_eq!(stored.value.as_ref().value_len(), bytes);
    stored.expiry.deadline
}

/// Returns the peak memory of this process in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_large_value_that_an_entry_touches_again_and_again_is_in_its_batch_once() {
    let mut bench = with_a_value(LARGE);
    let touches: Vec<_> = (0..40).map(touch).collect();
    let before = bench.backend.changes.load(Ordering::Relaxed);
    let outcomes = bench.run(2, &touches);
    let changes = bench.backend.changes.load(Ordering::Relaxed) - before;
    // Each touch moves the deadline's row. The value's row is in the batch once, with the rows that every entry
    // writes.
    assert!(changes < 2 * 40 + 10, "{changes}");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })), "{:?}", outcomes.first());
    assert_eq!(deadline(&bench, LARGE), Some(SpaceTime(1_000_039)));
}

#[test]
fn a_transaction_that_touches_a_large_value_again_and_again_is_rejected_and_keeps_no_copies() {
    let mut bench = with_a_value(LARGE);
    let mut transaction = TransactionBuilder::new();
    for at in 0..400 {
        transaction.then().touch(KS, b"k", Deadline::At(SpaceTime(2_000_000 + at))).unwrap();
    }
    // The earlier touch is in the batch when the transaction begins.
    let before = peak_memory();
    let outcomes = bench.run(2, &[touch(0), command(|out| transaction.encode(out).unwrap())]);
    assert!(matches!(outcomes[1], Outcome::TooExpensive { .. }), "{:?}", outcomes[1]);
    assert_eq!(deadline(&bench, LARGE), Some(SpaceTime(1_000_000)));
    // The kernel aggregates its per-processor counts occasionally, so a later reading can be slightly lower.
    let grown = peak_memory().saturating_sub(before);
    assert!(grown < 1 << 30, "{grown} bytes more for 400 touches");
}

#[test]
fn touches_in_place_are_taken_back_with_their_transaction() {
    let mut bench = with_a_value(SMALLER);
    let mut transaction = TransactionBuilder::new();
    for at in 0..3 {
        transaction.then().touch(KS, b"k", Deadline::At(SpaceTime(2_000_000 + at))).unwrap();
    }
    // The value is not a number. All this takes fewer steps than a transaction may.
    transaction.then().add(KS, b"k", 1).unwrap();
    let outcomes = bench.run(2, &[touch(5), command(|out| transaction.encode(out).unwrap())]);
    assert!(matches!(outcomes[1], Outcome::OperationFailed { .. }), "{:?}", outcomes[1]);
    assert_eq!(deadline(&bench, SMALLER), Some(SpaceTime(1_000_005)));
}
