//! Tests of the steps that a command may take: expensive commands are rejected and change nothing, wherever the cost
//! comes from; cheap ones and deletes are not rejected.

use std::sync::Arc;

use thalweg_disk::SimDisk;
use thalweg_state::machine::MachineOptions;
use thalweg_store::{
    BarrierFailed, LogBarrier, deleted_rows_passed,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    GroupId, KeyspaceId, Lsn, Offset, Revision, StreamId,
    command::{
        self, Command, CommitBuilder, Expect, KeyspaceConfig, KeyspaceHistory, Outcome, RedisBuilder, ScanOperation,
        StreamConfig, TransactionBuilder, UnchangedRange,
        groups::{GroupConfig, GroupOutcome, OffsetRun, Settlement, encode_create_group, encode_fetch},
    },
    limits::{
        MAX_BATCH_READ_STEPS, MAX_COMMAND_SEARCH_STEPS, MAX_COMMAND_STEPS, MAX_COMMIT_WRITES, MAX_TRANSACTION_SCANS,
        MAX_VALUE_BYTES,
    },
    record::RecordBatch,
    reply::Reply,
};

use crate::{
    random::node::{Node, on_a_map},
    stores::STORES,
    support::command,
};

pub const KS: KeyspaceId = KeyspaceId(1);
const REJECTED: Outcome = Outcome::TooExpensive { limit: MAX_COMMAND_STEPS };
const SEARCHED_TOO_MUCH: Outcome = Outcome::TooExpensive { limit: MAX_COMMAND_SEARCH_STEPS };

fn keyspace(config: &KeyspaceConfig) -> Vec<u8> {
    command(|out| command::encode_create_keyspace(out, "k", config).unwrap())
}

/// A node with one keyspace, which counts its keys exactly.
pub fn node() -> Node {
    let mut node = Node::new(on_a_map(), MachineOptions::default());
    node.apply(1, &[&keyspace(&KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() })]);
    node
}

pub fn key(number: usize) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// Puts keys without values, a few thousand in each command.
pub fn fill(node: &mut Node, count: usize) {
    for numbers in (0..count).collect::<Vec<_>>().chunks(5_000) {
        let mut commit = CommitBuilder::new();
        numbers.iter().for_each(|number| _ = commit.put(KS, &key(*number), b"").unwrap());
        let outcome = node.apply(2, &[&command(|out| commit.encode(out))]).remove(0);
        assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    }
}

/// Fetches all records of a stream of 70,000 records for a new group, and returns acks of all of them, each as a range
/// of its own.
fn acks_of_single_records(node: &mut Node, stream: StreamId, name: &str) -> Vec<(GroupId, Vec<Settlement>)> {
    let config = GroupConfig { max_pending: 100_000, ..GroupConfig::default() };
    let create = command(|out| encode_create_group(out, stream, name, Some(Offset(0)), &config).unwrap());
    let Outcome::Group(GroupOutcome::Created { id, .. }) = node.apply(2, &[&create]).remove(0) else {
        panic!("no group")
    };
    let fetch = command(|out| encode_fetch(out, id, 1_000, Offset(0), &[], "m").unwrap());
    let fetches: Vec<_> = (0..70).map(|_| &fetch[..]).collect();
    let settlements: Vec<_> = node
        .apply(3, &fetches)
        .into_iter()
        .map(|outcome| {
            let Outcome::Group(GroupOutcome::Fetched(fetched)) = outcome else { panic!("{outcome:?}") };
            let run = fetched.deliveries[0].run;
            assert_eq!(run.count, 1_000);
            let runs = (0..1_000).map(|number| OffsetRun::one(run.first.plus(number))).collect();
            Settlement { attempt: fetched.attempt, runs }
        })
        .collect();
    settlements.chunks(10).map(|settlements| (id, settlements.to_vec())).collect()
}

#[test]
fn settled_ranges_are_charged_in_commits_and_transactions() {
    let mut node = node();
    let create = command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap());
    let Outcome::Stream { id, .. } = node.apply(2, &[&create]).remove(0) else { panic!("no stream") };
    let mut records = RecordBatch::new();
    (0..10_000).for_each(|_| records.push_payload(b"").unwrap());
    for _ in 0..7 {
        node.apply(2, &[&command(|out| command::encode_append(out, id, None, &records))]);
    }
    let acks: Vec<_> = ["g", "h"].iter().flat_map(|name| acks_of_single_records(&mut node, id, name)).collect();
    let commit = |acks: &[(GroupId, Vec<Settlement>)]| {
        let mut commit = CommitBuilder::new();
        acks.iter().for_each(|(group, settlements)| _ = commit.ack(*group, settlements).unwrap());
        command(|out| commit.encode(out))
    };
    let transaction = |acks: &[(GroupId, Vec<Settlement>)]| {
        let mut transaction = TransactionBuilder::new();
        acks.iter().for_each(|(group, settlements)| _ = transaction.then().ack(*group, settlements).unwrap());
        command(|out| transaction.encode(out).unwrap())
    };
    // 140,000 ranges, of three steps each, and 840 for their attempts.
    assert_eq!(node.apply(4, &[&commit(&acks)]), [REJECTED]);
    let outcome = node.apply(4, &[&transaction(&acks)]).remove(0);
    assert!(!matches!(outcome, Outcome::Transacted(_)), "{outcome:?}");
    let (first, second) = acks.split_at(7);
    assert!(matches!(node.apply(4, &[&commit(first)])[..], [Outcome::Committed { .. }]));
    assert!(matches!(node.apply(4, &[&transaction(second)])[..], [Outcome::Transacted(_)]));
}

pub fn redis(commands: &[&[&[u8]]]) -> Vec<u8> {
    let mut builder = RedisBuilder::new(KS);
    commands.iter().for_each(|args| _ = builder.push(args).unwrap());
    builder.finish()
}

fn replies(outcome: &Outcome) -> &[Reply] {
    match outcome {
        Outcome::Redis(Some(replies)) => replies,
        other => panic!("{other:?}"),
    }
}

fn is_rejected(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("ERR too expensive"))
}

/// Turns a batch into one of the kind that earlier builds have proposed.
pub fn joint(mut batch: Vec<u8>) -> Vec<u8> {
    assert_eq!(batch[0], 65);
    batch[0] = 64;
    batch
}

/// Applies a batch of Redis commands, and the rest of it as often as the outcome has replies for a part of them.
fn run_all(node: &mut Node, batch: &[u8]) -> (Vec<Reply>, usize) {
    let (mut all, mut batch, mut batches) = (Vec::new(), batch.to_vec(), 0);
    loop {
        let outcome = node.apply(3, &[&batch]).remove(0);
        let got = replies(&outcome);
        batches += 1;
        let Ok(Command::Redis(decoded) | Command::RedisJoint(decoded)) = Command::decode(&batch) else {
            panic!("a batch")
        };
        let rest = decoded.rest(got.len());
        assert!(!got.is_empty(), "each batch runs a command");
        all.extend_from_slice(got);
        let Ok(Command::Redis(left) | Command::RedisJoint(left)) = Command::decode(&rest) else { panic!("a batch") };
        if left.is_empty() {
            return (all, batches);
        }
        batch = rest;
    }
}

#[test]
fn keys_with_a_hostile_pattern_are_rejected_behind_a_write() {
    let mut node = node();
    let long: Vec<Vec<u8>> = (0..200).map(|number| [key(number), vec![b'a'; 1_000]].concat()).collect();
    for keys in long.chunks(20) {
        let commands: Vec<[&[u8]; 3]> = keys.iter().map(|key| [&b"SET"[..], key, b"v"]).collect();
        let commands: Vec<&[&[u8]]> = commands.iter().map(|args| &args[..]).collect();
        assert!(replies(&node.apply(2, &[&redis(&commands)])[0]).iter().all(|reply| *reply == Reply::Ok));
    }
    let hostile = [&b"*"[..], &b"a".repeat(500), b"b"].concat();
    let before = node.rows();
    let in_transaction: &[&[&[u8]]] =
        &[&[b"MULTI"], &[b"SET", b"k", b"v"], &[b"KEYS", &hostile], &[b"SET", b"l", b"v"], &[b"EXEC"]];
    let steps_before = node.machine().steps().unwrap();
    let outcome = node.apply(3, &[&redis(in_transaction)]).remove(0);
    let taken = node.machine().steps().unwrap() - steps_before;
    assert!(taken < MAX_COMMAND_SEARCH_STEPS * 11 / 10, "a pattern may use half of a transaction's steps: {taken}");
    assert!(replies(&outcome).len() == 3 && replies(&outcome).iter().all(is_rejected), "{outcome:?}");
    let written = |rows: &crate::support::Map| rows.keys().filter(|row| row[0] == 0x10).count();
    assert_eq!(written(&node.rows()), written(&before), "nothing of the transaction happened");
    // In a burst only the command itself is rejected.
    let (got, _) = run_all(&mut node, &redis(&[&[b"SET", b"k", b"v"], &[b"KEYS", &hostile], &[b"GET", b"k"]]));
    assert!(got[0] == Reply::Ok && is_rejected(&got[1]) && got[2] == Reply::bulk(b"v"), "{got:?}");
    // Ordinary patterns work.
    let (got, _) = run_all(&mut node, &redis(&[&[b"SET", b"k", b"v"], &[b"KEYS", b"0000*"]]));
    assert!(matches!(&got[1], Reply::Array(found) if found.len() == 100), "{:?}", got[1]);
}

#[test]
fn a_transaction_of_many_scans_is_rejected() {
    let mut node = node();
    fill(&mut node, 100);
    let scans = |count: usize, limit: u32| {
        let mut scans = TransactionBuilder::new();
        scans.then().put(KS, b"k", b"v").unwrap();
        for _ in 0..count {
            scans.then().scan(KS, &ScanOperation { limit, ..ScanOperation::default() }).unwrap();
        }
        command(|out| scans.encode(out).unwrap())
    };
    let applied = node.machine().applied().revision;
    let steps_before = node.machine().steps().unwrap();
    assert_eq!(node.apply(2, &[&scans(MAX_TRANSACTION_SCANS, 100)]), [SEARCHED_TOO_MUCH]);
    let taken = node.machine().steps().unwrap() - steps_before;
    assert!(taken < MAX_COMMAND_SEARCH_STEPS * 11 / 10, "scans may use half of a transaction's steps: {taken}");
    assert_eq!((node.machine().get(KS, b"k").unwrap(), node.machine().applied().revision), (None, applied));
    let few = node.apply(3, &[&scans(MAX_TRANSACTION_SCANS, 1)]);
    assert!(matches!(few[..], [Outcome::Transacted(_)]), "{few:?}");
    // Conditions on ranges are scans, too.
    let mut commit = CommitBuilder::new();
    let unchanged = Expect::Unchanged(UnchangedRange { end: Some(b"z"), since: Revision(9), count: 0 });
    (0..MAX_COMMIT_WRITES - 1).for_each(|_| _ = commit.expect(KS, b"y", unchanged).unwrap());
    commit.put(KS, b"l", b"v").unwrap();
    assert_eq!(node.apply(4, &[&command(|out| commit.encode(out))]), [SEARCHED_TOO_MUCH]);
    assert_eq!(node.machine().get(KS, b"l").unwrap(), None);
}

#[test]
fn scans_of_one_entry_pass_the_same_deleted_rows_only_once() {
    const KEYS: usize = 20_000;
    for (name, open) in STORES {
        let mut node = Node::new(open(), MachineOptions::default());
        node.apply(1, &[&keyspace(&KeyspaceConfig::default())]);
        fill(&mut node, KEYS);
        let mut deletes = CommitBuilder::new();
        (0..KEYS).for_each(|number| _ = deletes.delete(KS, &key(number)).unwrap());
        node.apply(3, &[&command(|out| deletes.encode(out))]);
        for reverse in [false, true] {
            let mut scans = TransactionBuilder::new();
            for number in 0..1_000 {
                // Scans that begin at different positions within the deleted rows.
                let start = key(number * 17 % KEYS);
                let scan = ScanOperation { start: Some(&start), reverse, limit: 1, ..ScanOperation::default() };
                scans.then().scan(KS, &scan).unwrap();
            }
            let before = deleted_rows_passed();
            let outcome = node.apply(4, &[&command(|out| scans.encode(out).unwrap())]).remove(0);
            assert!(matches!(outcome, Outcome::Transacted(_)), "{name}: {outcome:?}");
            let passed = deleted_rows_passed() - before;
            assert!(passed <= 2 * KEYS as u64, "{name}: {passed} deleted rows passed");
        }
    }
}

#[test]
fn a_chain_of_changes_of_a_large_value_is_bounded() {
    let mut node = node();
    let last = (MAX_VALUE_BYTES - 1).to_string();
    let patch: &[&[u8]] = &[b"SETRANGE", b"large", last.as_bytes(), b"x"];
    let chain: Vec<&[&[u8]]> = std::iter::repeat_n(patch, 20).collect();
    let steps = node.machine().steps().unwrap();
    let outcome = node.apply(2, &[&redis(&chain)]).remove(0);
    let got = replies(&outcome).len();
    assert!((1..20).contains(&got), "{got} of 20 commands ran in one batch");
    let taken = node.machine().steps().unwrap() - steps;
    // The command that is refused reads the value, but does not compute a new one.
    let read = (MAX_VALUE_BYTES / 128) as u64;
    assert!(taken < MAX_COMMAND_STEPS + read, "{taken}");
    // The client of a burst gets all replies in the end.
    let (all, batches) = run_all(&mut node, &redis(&chain));
    assert!(all.iter().all(|reply| *reply == Reply::Integer(MAX_VALUE_BYTES as i64)) && all.len() == 20);
    assert!(batches > 5, "{batches}");
    // A transaction is all or nothing.
    let mut whole: Vec<&[&[u8]]> = vec![&[b"MULTI"]];
    whole.extend(chain);
    whole.push(&[b"EXEC"]);
    let before = (node.rows(), node.machine().applied().revision);
    let outcome = node.apply(4, &[&redis(&whole)]).remove(0);
    assert!(replies(&outcome).len() == 20 && replies(&outcome).iter().all(is_rejected));
    let value = |rows: &crate::support::Map| rows.iter().find(|(row, _)| row.ends_with(b"large")).unwrap().1.clone();
    assert!(value(&node.rows()) == value(&before.0) && node.machine().applied().revision == before.1);
}

#[test]
fn commands_behind_an_expensive_one_are_left_to_the_next_batch_and_none_is_lost() {
    let mut node = node();
    fill(&mut node, 60_000);
    let burst: &[&[&[u8]]] = &[
        &[b"SET", b"a", b"1"],
        &[b"KEYS", b"nothing"],
        &[b"MULTI"],
        &[b"INCR", b"a"],
        &[b"KEYS", b"nothing"],
        &[b"EXEC"],
        &[b"KEYS", b"nothing"],
        &[b"KEYS", b"nothing"],
        &[b"INCR", b"a"],
        &[b"MULTI"],
        &[b"INCR", b"a"],
        &[b"INCR", b"a"],
        &[b"EXEC"],
    ];
    let (all, batches) = run_all(&mut node, &joint(redis(burst)));
    let none = Reply::Array(Vec::new());
    let number = Reply::Integer;
    let expected =
        [Reply::Ok, none.clone(), number(2), none.clone(), none.clone(), none.clone(), number(3), number(4), number(5)];
    assert_eq!(all, expected);
    assert!(batches > 1, "{batches}");
    // Reads outside of transactions have a bound of their own, and do not end the batch.
    let (mut all, batches) = run_all(&mut node, &redis(burst));
    let rejected = [5, 4, 1].map(|at| all.remove(at));
    assert!(rejected.iter().all(is_rejected), "{rejected:?}");
    assert_eq!(all, [Reply::Ok, number(2), none, number(3), number(4), number(5)]);
    assert_eq!(batches, 1);
}

#[test]
fn reads_behind_a_write_take_half_the_steps_of_a_command_together() {
    let mut node = node();
    fill(&mut node, 30_000);
    let keys: &[&[u8]] = &[b"KEYS", b"nothing"];
    let set: &[&[u8]] = &[b"SET", b"a", b"1"];
    let burst: Vec<&[&[u8]]> = std::iter::once(set).chain([keys; 200]).collect();
    let work = |node: &Node| node.machine().work().unwrap() - node.machine().steps().unwrap();
    let before = work(&node);
    let outcome = node.apply(3, &[&redis(&burst)]).remove(0);
    let replies = replies(&outcome);
    assert_eq!(replies[..2], [Reply::Ok, Reply::Array(Vec::new())]);
    assert!(replies.len() == 201 && replies[2..].iter().all(is_rejected), "the first one leaves too little");
    // A read exceeds its budget by the row or the scan that it has begun; without a budget it begins nothing.
    let taken = work(&node) - before;
    assert!((MAX_BATCH_READ_STEPS * 9 / 10..MAX_BATCH_READ_STEPS + 1_000).contains(&taken), "{taken} steps");
}

#[test]
fn reads_behind_a_write_are_performed_only_where_a_client_waits() {
    let burst: &[&[&[u8]]] = &[
        &[b"SET", b"a", b"1"],
        &[b"GET", b"a"],
        &[b"INCR", b"a"],
        &[b"GET", b"a"],
        &[b"RANDOMKEY"],
        &[b"MULTI"],
        &[b"GET", b"a"],
        &[b"EXEC"],
        &[b"GET"],
        &[b"KEYS", b"*"],
    ];
    let (mut leader, mut follower) = (node(), node());
    follower.is_awaited = false;
    let read = leader.apply(3, &[&redis(burst)]).remove(0);
    let skipped = follower.apply(3, &[&redis(burst)]).remove(0);
    let value = |text: &[u8]| Reply::bulk(text);
    let [.., wrong, keys] = replies(&read) else { panic!("{read:?}") };
    assert!(matches!((wrong, keys), (Reply::Error(_), Reply::Array(keys)) if keys.len() == 1), "{read:?}");
    let done = [Reply::Ok, value(b"1"), Reply::Integer(2), value(b"2"), value(b"a"), value(b"2")];
    assert_eq!(replies(&read)[..6], done);
    let [set, get, incr, second, random, in_transaction, wrong, keys] = replies(&skipped) else {
        panic!("{skipped:?}")
    };
    assert_eq!([get, second, random, keys], [&Reply::Null; 4]);
    assert_eq!([set, incr, in_transaction, wrong], [0, 2, 5, 6].map(|at| &replies(&read)[at]));
    let figures = |node: &Node| (node.machine().applied(), node.machine().steps().unwrap(), node.rows());
    assert!(figures(&leader) == figures(&follower));
}

#[test]
fn as_many_deletes_as_a_commit_can_have_are_never_rejected() {
    let mut node = node();
    fill(&mut node, MAX_COMMIT_WRITES);
    let mut deletes = CommitBuilder::new();
    (0..MAX_COMMIT_WRITES).for_each(|number| _ = deletes.delete(KS, &key(number)).unwrap());
    let outcome = node.apply(3, &[&command(|out| deletes.encode(out))]).remove(0);
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    assert_eq!(node.machine().get(KS, &key(7)).unwrap(), None);
    // Clears hide any number of rows, and the sweep ends in steps.
    fill(&mut node, 30_000);
    let mut clear = TransactionBuilder::new();
    clear.then().delete_prefix(KS, b"").unwrap();
    assert!(matches!(node.apply(4, &[&command(|out| clear.encode(out).unwrap())])[..], [Outcome::Transacted(_)]));
    let mut sweeps = 0;
    loop {
        let steps = node.machine().steps().unwrap();
        let outcome = node.apply(5, &[&command(|out| command::encode_sweep(out, u32::MAX))]).remove(0);
        assert!(node.machine().steps().unwrap() - steps < MAX_COMMAND_STEPS + 10_000);
        sweeps += 1;
        match outcome {
            Outcome::Reclaimed { more: true, .. } => assert!(sweeps < 20, "it ends"),
            Outcome::Reclaimed { more: false, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(!node.rows().keys().any(|row| row[0] == 0x10), "all rows are swept");
}

#[test]
fn a_commit_in_a_keyspace_with_history_pays_for_the_versions_that_it_reads() {
    let mut node = Node::new(on_a_map(), MachineOptions::default());
    let history = KeyspaceHistory { revisions: Some(256), age: None };
    node.apply(1, &[&keyspace(&KeyspaceConfig { history, ..KeyspaceConfig::default() })]);
    let puts = |count: usize| {
        let mut commit = CommitBuilder::new();
        (0..count).for_each(|number| _ = commit.put(KS, &key(number), b"").unwrap());
        command(|out| commit.encode(out))
    };
    assert!(matches!(node.apply(2, &[&puts(250)])[..], [Outcome::Committed { .. }]));
    let applied = node.machine().applied().revision;
    assert_eq!(node.apply(3, &[&puts(10_000)]), [REJECTED]);
    assert_eq!(node.machine().applied().revision, applied);
}

#[test]
fn deletes_in_a_keyspace_with_history_do_not_pay_for_the_number_of_versions_that_it_keeps() {
    const DELETES: usize = 7_000;
    let mut node = Node::new(on_a_map(), MachineOptions::default());
    let history = KeyspaceHistory { revisions: Some(256), age: None };
    node.apply(1, &[&keyspace(&KeyspaceConfig { history, ..KeyspaceConfig::default() })]);
    for first in (0..DELETES).step_by(250) {
        let mut puts = CommitBuilder::new();
        (first..first + 250).for_each(|number| _ = puts.put(KS, &key(number), &[7; 100]).unwrap());
        let outcome = node.apply(2, &[&command(|out| puts.encode(out))]).remove(0);
        assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    }
    let mut deletes = CommitBuilder::new();
    (0..DELETES).for_each(|number| _ = deletes.delete(KS, &key(number)).unwrap());
    let outcome = node.apply(3, &[&command(|out| deletes.encode(out))]).remove(0);
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    assert_eq!(node.machine().get(KS, &key(7)).unwrap(), None);
}

/// A commit is charged in the same way.
#[test]
fn a_transaction_pays_for_the_replaced_values_that_a_history_keeps() {
    let mut node = Node::new(on_a_map(), MachineOptions::default());
    let history = KeyspaceHistory { revisions: Some(4), age: None };
    node.apply(1, &[&keyspace(&KeyspaceConfig { history, ..KeyspaceConfig::default() })]);
    let large = vec![b'v'; MAX_VALUE_BYTES - 64];
    for number in 0..4 {
        let put = command(|out| command::encode_put(out, KS, &key(number), &large).unwrap());
        assert!(matches!(node.apply(2, &[&put])[..], [Outcome::Committed { .. }]));
    }
    let transaction = |add: &dyn Fn(&mut TransactionBuilder)| {
        let mut builder = TransactionBuilder::new();
        add(&mut builder);
        command(|out| builder.encode(out).unwrap())
    };
    let put = |all: &mut TransactionBuilder, number| _ = all.then().put(KS, &key(number), b"small").unwrap();
    let delete = |all: &mut TransactionBuilder, number| _ = all.then().delete(KS, &key(number)).unwrap();
    // Two of these values take more bytes than a command may write.
    let expensive = [
        transaction(&|all| (0..2).for_each(|number| put(all, number))),
        transaction(&|all| (0..2).for_each(|number| delete(all, number))),
        transaction(&|all| _ = all.then().delete_prefix(KS, b"00000").unwrap()),
    ];
    for rejected in &expensive {
        assert_eq!(node.apply(3, &[rejected]), [REJECTED]);
    }
    for cheap in [transaction(&|all| put(all, 0)), transaction(&|all| delete(all, 1))] {
        let outcome = node.apply(3, &[&cheap]).remove(0);
        assert!(matches!(outcome, Outcome::Transacted(_)), "{outcome:?}");
    }
}

#[test]
fn a_rejected_command_leaves_nothing_behind_in_its_entry() {
    let mut node = node();
    let last = (MAX_VALUE_BYTES - 1).to_string();
    let patch: &[&[u8]] = &[b"SETRANGE", b"large", last.as_bytes(), b"x"];
    let mut whole: Vec<&[&[u8]]> = vec![&[b"MULTI"], &[b"HSET", b"hash", b"f", b"v"], &[b"RANDOMKEY"]];
    whole.extend(std::iter::repeat_n(patch, 5));
    whole.push(&[b"EXEC"]);
    let (rejected, set) = (redis(&whole), redis(&[&[b"SET", b"k", b"v"], &[b"HSET", b"hash", b"g", b"w"]]));
    node.apply(2, &[&set, &rejected, &set]);
    let mut other = self::node();
    other.apply(2, &[&set, &set]);
    // All but positions in the log and the histories of the entries.
    let rows = |node: &Node| {
        let rows = node.rows();
        rows.into_iter().filter(|(row, _)| !matches!(row[0], 0x04 | 0x0b | 0x0c)).collect::<Vec<_>>()
    };
    assert_eq!(rows(&node), rows(&other));
}

#[test]
fn numbers_of_thousands_of_digits_are_charged() {
    let mut node = node();
    let add: &[&[u8]] = &[b"INCRBYFLOAT", b"k", b"2e4900"];
    let (sum, steps) = run_one(&mut node, add);
    assert!(matches!(&sum, Reply::Bulk(digits) if digits.len() == 4_901), "{sum:?}");
    assert!(steps > 5_000, "{steps}");
    let (_, tiny) = run_one(&mut node, &[b"HINCRBYFLOAT", b"h", b"f", b"1e-4900"]);
    assert!(tiny > 1_000, "{tiny}");
    assert!(run_one(&mut node, &[b"INCRBYFLOAT", b"short", b"-1234567890.0123456789e10"]).1 < 100);
    let outcome = node.apply(6, &[&redis(&[add; 100])]).remove(0);
    assert!((10..30).contains(&replies(&outcome).len()), "the batch ends early");
}

/// A barrier of a log that is always durable.
struct Durable;

impl LogBarrier for Durable {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

#[test]
fn reads_of_a_large_value_without_its_bytes_do_not_copy_it() {
    let disk = Arc::new(SimDisk::new(1));
    let open = move || MemoryBackend::open(disk.clone(), MemoryOptions::default(), Arc::new(Durable)).unwrap();
    let mut node = Node::new(Box::new(move || Arc::new(open())), MachineOptions::default());
    node.apply(1, &[&keyspace(&KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() })]);
    let last = (MAX_VALUE_BYTES - 1).to_string();
    node.apply(2, &[&redis(&[&[b"SETRANGE", b"large", last.as_bytes(), b"x"]])]);
    // They cost no more than those of a short value: all of them fit into one batch.
    let kinds: [&[&[u8]]; 4] =
        [&[b"EXISTS", b"large"], &[b"STRLEN", b"large"], &[b"TTL", b"large"], &[b"INCR", b"large"]];
    let commands: Vec<&[&[u8]]> = kinds.into_iter().cycle().take(4_000).collect();
    let outcome = node.apply(3, &[&redis(&commands)]).remove(0);
    assert_eq!(replies(&outcome).len(), 4_000);
}

/// Applies one Redis command, given as words. Returns its reply, which must not be a rejection for its steps, and the
/// steps that it took.
fn run_one(node: &mut Node, words: &[&[u8]]) -> (Reply, u64) {
    let before = node.machine().steps().unwrap();
    let outcome = node.apply(5, &[&redis(&[words])]).remove(0);
    (replies(&outcome)[0].clone(), node.machine().steps().unwrap() - before)
}

fn run_words(node: &mut Node, text: &str) -> Reply {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    let (reply, steps) = run_one(node, &words);
    assert!(!is_rejected(&reply), "{text}: {reply:?} after {steps} steps");
    reply
}

/// Creates a stream `s` with entries of `bytes` bytes in one field, or in as many small fields as have this many bytes.
pub fn stream(node: &mut Node, entries: usize, bytes: usize, is_of_small_fields: bool) {
    let value = vec![b'v'; bytes];
    let each = ((1 << 20) / bytes).clamp(1, 500);
    for numbers in (1..=entries).collect::<Vec<_>>().chunks(each) {
        let ids: Vec<String> = numbers.iter().map(|number| format!("{number}-1")).collect();
        let added: Vec<Vec<&[u8]>> = ids
            .iter()
            .map(|id| match is_of_small_fields {
                true => [b"XADD", &b"s"[..], id.as_bytes()].into_iter().chain(vec![&b"f"[..]; bytes / 8 * 2]).collect(),
                false => vec![&b"XADD"[..], b"s", id.as_bytes(), b"f", &value],
            })
            .collect();
        let added: Vec<&[&[u8]]> = added.iter().map(|words| &words[..]).collect();
        let (all, _) = run_all(node, &redis(&added));
        assert!(all.iter().all(|reply| matches!(reply, Reply::Bulk(_))), "entries of {bytes} bytes: {:?}", all[0]);
    }
}

fn entries_of(reply: &Reply) -> usize {
    match reply {
        Reply::NullArray => 0,
        Reply::Pairs(streams) => match &streams[0].1 {
            Reply::Array(entries) => entries.len(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn last_id(reply: &Reply) -> String {
    let Reply::Pairs(streams) = reply else { panic!("{reply:?}") };
    let Reply::Array(entries) = &streams[0].1 else { panic!("{reply:?}") };
    let Some(Reply::Array(entry)) = entries.last() else { panic!("{reply:?}") };
    let Reply::Bulk(id) = &entry[0] else { panic!("{reply:?}") };
    String::from_utf8(id.to_vec()).unwrap()
}

#[test]
fn deliveries_and_claims_without_a_count_leave_the_rest_to_the_next_command() {
    let cases = [
        (12_000, 1, false),
        (6_000, 2_400, false),
        (1_000, 16_384, false),
        (6, (8 << 20) - 64, false),
        (20, 1 << 20, true),
    ];
    for (entries, bytes, is_of_small_fields) in cases {
        let mut node = node();
        stream(&mut node, entries, bytes, is_of_small_fields);
        let case = format!("{entries} entries of {bytes} bytes");
        run_words(&mut node, "XGROUP CREATE s g 0");
        // The entries are new, then pending with another consumer, then pending with the same one.
        for consumer in ["a", "b"] {
            run_words(&mut node, "XGROUP SETID s g 0");
            let mut delivered = 0;
            loop {
                match entries_of(&run_words(&mut node, &format!("XREADGROUP GROUP g {consumer} STREAMS s >"))) {
                    0 => break,
                    more => delivered += more,
                }
            }
            assert_eq!(delivered, entries, "{case}");
        }
        let (mut again, mut after) = (0, "0".to_owned());
        loop {
            let reply = run_words(&mut node, &format!("XREADGROUP GROUP g b STREAMS s {after}"));
            match entries_of(&reply) {
                0 => break,
                more => again += more,
            }
            after = last_id(&reply);
        }
        assert_eq!(again, entries, "{case}");
        for (consumer, option) in [("c", ""), ("d", " JUSTID")] {
            let (mut claimed, mut cursor) = (0, "0".to_owned());
            loop {
                let reply = run_words(&mut node, &format!("XAUTOCLAIM s g {consumer} 0 {cursor} COUNT 100000{option}"));
                let Reply::Array(parts) = reply else { panic!("{reply:?}") };
                let (Reply::Bulk(next), Reply::Array(found)) = (&parts[0], &parts[1]) else { panic!("{parts:?}") };
                claimed += found.len();
                cursor = String::from_utf8(next.to_vec()).unwrap();
                if cursor == "0-0" {
                    break;
                }
            }
            assert_eq!(claimed, entries, "{case}{option}");
        }
        // What documents promise: many short entries with one command, and the largest trim.
        if bytes == 1 {
            run_words(&mut node, "XGROUP CREATE s h 0");
            assert_eq!(entries_of(&run_words(&mut node, "XREADGROUP GROUP h a STREAMS s >")), 10_000);
            assert_eq!(run_words(&mut node, "XTRIM s MAXLEN 0"), Reply::Integer(10_000));
        }
        let mut left = 100;
        while run_words(&mut node, "XTRIM s MAXLEN 0") != Reply::Integer(0) {
            left -= 1;
            assert!(left > 0, "{case}");
        }
    }
}

#[test]
fn copies_of_the_largest_documented_hashes_are_not_too_expensive() {
    let copied = |fields: usize, bytes: usize| {
        let mut node = node();
        let value = vec![b'v'; bytes];
        let each = (1 << 20) / (bytes + 100) + 1;
        for from in (0..fields).step_by(each) {
            let names: Vec<Vec<u8>> = (from..(from + each).min(fields)).map(key).collect();
            let mut words: Vec<&[u8]> = vec![b"HSET", b"h"];
            names.iter().for_each(|name| words.extend([&name[..], &value]));
            let (reply, steps) = run_one(&mut node, &words);
            assert!(matches!(reply, Reply::Integer(_)), "fields of {bytes} bytes: {reply:?} after {steps} steps");
        }
        run_one(&mut node, &[b"COPY", b"h", b"i"]).0
    };
    // As many fields as the limit permits, with 5 MiB; and 9 MiB in few of them.
    assert_eq!(copied(20_000, 255), Reply::Integer(1));
    assert_eq!(copied(1_100, 8_500), Reply::Integer(1));
    let is_too_large = |reply: &Reply| matches!(reply, Reply::Error(text) if text.contains("too large for one copy"));
    for (fields, bytes) in [(20_001, 1), (1_200, 8_192), (2, 8 << 20)] {
        let reply = copied(fields, bytes);
        assert!(is_too_large(&reply), "{fields} fields of {bytes} bytes: {reply:?}");
    }
}
