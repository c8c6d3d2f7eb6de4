//! Tests of large values in the state: an entry that writes one repeatedly keeps one copy of it.

use std::sync::atomic::Ordering;

use thalweg_state::machine::MachineOptions;
use thalweg_types::{
    KeyspaceId, SpaceTime,
    command::{
        self, CommitBuilder, Deadline, Expect, KeyspaceConfig, OperationError, Outcome, RedisBuilder,
        TransactionBuilder,
    },
    limits::MAX_VALUE_BYTES,
    reply::Reply,
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

#[test]
fn adds_to_a_value_that_is_too_long_for_a_number_read_it_once_in_an_entry() {
    let mut bench = with_a_value(SMALLER);
    let mut add = TransactionBuilder::new();
    add.then().add(KS, b"k", 1).unwrap();
    let adds = vec![command(|out| add.encode(out).unwrap()); 20];
    let before = bench.backend.read_bytes.load(Ordering::Relaxed);
    let outcomes = bench.run(2, &adds);
    let read_bytes = bench.backend.read_bytes.load(Ordering::Relaxed) - before;
    let failed = Outcome::OperationFailed { operation: 0, error: OperationError::NotANumber };
    assert!(outcomes.iter().all(|outcome| *outcome == failed), "{:?}", outcomes.first());
    assert!(read_bytes < 2 * SMALLER as u64, "{read_bytes} bytes");
}

/// Runs commands in one `MULTI`, and returns their replies, the bytes that they have read from the backend, and their
/// steps.
fn transact(bench: &mut Bench, commands: &[&[&[u8]]]) -> (Vec<Reply>, u64, u64) {
    let mut builder = RedisBuilder::new(KS);
    builder.push(&[b"MULTI"]).unwrap();
    commands.iter().for_each(|command| _ = builder.push(command).unwrap());
    builder.push(&[b"EXEC"]).unwrap();
    let before = (bench.backend.read_bytes.load(Ordering::Relaxed), bench.machine.steps().unwrap());
    let mut outcomes = bench.run(2, &[builder.finish()]);
    let Outcome::Redis(Some(replies)) = outcomes.remove(0) else { panic!("no replies") };
    let read_bytes = bench.backend.read_bytes.load(Ordering::Relaxed) - before.0;
    (replies, read_bytes, bench.machine.steps().unwrap() - before.1)
}

/// Commands that look at the key `k` or at the field `f` of the hash `h`, and read no value of more than a few bytes.
const LOOKS: &[&[&[u8]]] = &[
    &[b"strlen", b"k"],
    &[b"exists", b"k"],
    &[b"type", b"k"],
    &[b"ttl", b"k"],
    &[b"persist", b"k"],
    &[b"hexists", b"h", b"f"],
    &[b"hsetnx", b"h", b"f", b"v"],
];

#[test]
fn a_transaction_that_looks_at_a_large_row_again_and_again_reads_it_once_and_pays_the_same() {
    let looks: Vec<_> = LOOKS.iter().copied().cycle().take(100 * LOOKS.len()).collect();
    let run = |bytes: usize| {
        let mut bench = with_a_value(bytes);
        let mut hash = RedisBuilder::new(KS);
        hash.push(&[b"hset", b"h", b"f", &vec![b'v'; bytes]]).unwrap();
        bench.run(1, &[hash.finish()]);
        let (replies, read_bytes, steps) = transact(&mut bench, &looks);
        let wanted = [
            Reply::Integer(bytes as i64),
            Reply::Integer(1),
            Reply::Simple("string"),
            Reply::Integer(-1),
            Reply::Integer(0),
            Reply::Integer(1),
            Reply::Integer(0),
        ];
        assert_eq!(replies.len(), looks.len());
        replies.iter().zip(wanted.iter().cycle()).for_each(|(reply, wanted)| assert_eq!(reply, wanted));
        (read_bytes, steps)
    };
    let (small, large) = (run(100), run(1 << 20));
    assert!((2 << 20..(2 << 20) + small.0).contains(&large.0), "{} bytes were read", large.0);
    assert_eq!(large.1, small.1, "the price depends on the length of a value that no command reads");
}

#[test]
fn looks_at_a_large_row_see_the_changes_of_the_commands_before_and_not_those_that_were_taken_back() {
    let mut bench = with_a_value(SMALLER);
    let looks: &[&[&[u8]]] = &[
        &[b"strlen", b"k"],
        &[b"append", b"k", b"x"],
        &[b"strlen", b"k"],
        &[b"del", b"k"],
        &[b"exists", b"k"],
        &[b"set", b"k", b"v"],
        &[b"strlen", b"k"],
    ];
    let lens = [SMALLER, SMALLER + 1, SMALLER + 1, 1, 0];
    let mut wanted: Vec<_> = lens.iter().map(|len| Reply::Integer(*len as i64)).collect();
    wanted.extend([Reply::Ok, Reply::Integer(1)]);
    // A transaction that looks at the value, changes it, and is rejected afterwards, in the same entry.
    let mut rejected = TransactionBuilder::new();
    rejected.then().delete(KS, b"k").unwrap().put(KS, b"n", b"no number").unwrap().add(KS, b"n", 1).unwrap();
    let mut commands = RedisBuilder::new(KS);
    commands.push(&[b"MULTI"]).unwrap();
    looks.iter().for_each(|command| _ = commands.push(command).unwrap());
    commands.push(&[b"EXEC"]).unwrap();
    let outcomes = bench.run(2, &[command(|out| rejected.encode(out).unwrap()), commands.finish()]);
    assert!(matches!(outcomes[0], Outcome::OperationFailed { .. }), "{:?}", outcomes[0]);
    let Outcome::Redis(Some(replies)) = &outcomes[1] else { panic!("{:?}", outcomes[1]) };
    assert_eq!(*replies, wanted);
    // The next entry sees what this one has left.
    assert_eq!(transact(&mut bench, &[&[b"strlen", b"k"]]).0, [Reply::Integer(1)]);
}

#[test]
fn conditions_on_the_value_of_a_large_row_read_it_once_if_their_values_have_another_length() {
    let mut bench = with_a_value(SMALLER);
    let conditions: Vec<_> = (0..100_u32)
        .map(|number| {
            let mut commit = CommitBuilder::new();
            let value = number.to_string();
            commit.expect(KS, b"k", Expect::Value(value.as_bytes())).unwrap().put(KS, b"x", b"").unwrap();
            command(|out| commit.encode(out))
        })
        .collect();
    let before = bench.backend.read_bytes.load(Ordering::Relaxed);
    let outcomes = bench.run(2, &conditions);
    let read_bytes = bench.backend.read_bytes.load(Ordering::Relaxed) - before;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::ConditionFailed { actual: Some(_), .. })));
    assert!(read_bytes < 2 * SMALLER as u64, "{read_bytes} bytes were read");
}
