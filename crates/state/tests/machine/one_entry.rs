//! Commands that share an entry, in cases that were once wrong.
//!
//! Each list is applied twice: with the commands of its last time in one entry, and with one command per entry.
//! Outcomes and rows must be equal, and the audit must find nothing.

use std::time::Duration;

use thalweg_state::{audit::Values, keyspaces::StoredValue, machine::MachineOptions};
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, StreamId,
    command::{
        self, AppendConditions, CommitBuilder, Deadline, KeyspaceConfig, KeyspaceHistory, OperationResult, Outcome,
        ProducerRefusal, ProducerStamp, RedisBuilder, StreamConfig, TransactionBuilder,
    },
    limits::{MAX_EAGER_PREFIX_ROWS, MAX_STREAM_PRODUCERS},
    record::{Record, RecordBatch},
};

use crate::{
    random::{
        List, Step,
        groupings::{same_outcomes, same_rows, sound},
        list::Grouping,
        node::{Node, on_a_map},
        replicated,
    },
    support::command,
};

const OPTIONS: MachineOptions = MachineOptions { inline_value_bytes: 128 };
const KS: KeyspaceId = KeyspaceId(1);
const OTHER: KeyspaceId = KeyspaceId(2);
const LEASE: LeaseId = LeaseId(7);
/// Length of values that stay in the log.
const LONG: usize = 300;

/// Applies the list with the last commands in one entry, and with one command per entry. Returns the node of the
/// former, and the outcomes of the last commands.
fn together(first: &[Vec<u8>], later: u64, last: &[Vec<u8>]) -> (Node, Vec<Outcome>) {
    let step = |time, joins| move |command: &Vec<u8>| Step { joins, ..Step::new(time, command.clone()) };
    let list = List(first.iter().map(step(1000, 0)).chain(last.iter().map(step(1000 + later, 1))).collect());
    let (mut alone, mut grouped) = (Node::new(on_a_map(), OPTIONS), Node::new(on_a_map(), OPTIONS));
    let expected = alone.apply_list(&list, Grouping::Alone);
    let outcomes = grouped.apply_list(&list, Grouping::Random(0));
    let rows = |node: &Node| replicated::of(&node.rows());
    let checks = [
        sound(&grouped, Values::AtLeast),
        same_outcomes(&list, Grouping::Random(0), &expected, &outcomes),
        same_rows("rows", &rows(&alone), &rows(&grouped)),
    ];
    let wrong: Vec<_> = checks.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    (grouped, outcomes[first.len()..].to_vec())
}

fn keyspace(name: &str, config: KeyspaceConfig) -> Vec<u8> {
    command(|out| command::encode_create_keyspace(out, name, &config).unwrap())
}

fn keyspaces() -> Vec<Vec<u8>> {
    vec![keyspace("one", KeyspaceConfig::default()), keyspace("other", KeyspaceConfig::default())]
}

fn with_history(revisions: u32) -> KeyspaceConfig {
    let history = KeyspaceHistory { revisions: Some(revisions), age: None };
    KeyspaceConfig { history, ..KeyspaceConfig::default() }
}

fn configure(keyspace: KeyspaceId, config: KeyspaceConfig) -> Vec<u8> {
    command(|out| command::encode_configure_keyspace(out, keyspace, &config).unwrap())
}

fn put(keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> Vec<u8> {
    command(|out| command::encode_put(out, keyspace, key, value).unwrap())
}

fn put_until(key: &[u8], deadline: Deadline, lease: Option<LeaseId>) -> Vec<u8> {
    command(|out| command::encode_put_until(out, KS, key, &[b'v'; LONG], deadline, lease).unwrap())
}

fn grant() -> Vec<u8> {
    command(|out| command::encode_grant_lease(out, Some(LEASE), Duration::from_secs(1)).unwrap())
}

fn revoke() -> Vec<u8> {
    command(|out| command::encode_revoke_lease(out, LEASE))
}

fn transaction(build: impl FnOnce(&mut command::Operations)) -> Vec<u8> {
    let mut transaction = TransactionBuilder::new();
    build(transaction.then());
    command(|out| transaction.encode(out).unwrap())
}

fn delete_prefix(prefix: &[u8]) -> Vec<u8> {
    transaction(|then| _ = then.delete_prefix(KS, prefix).unwrap())
}

fn sweep() -> Vec<u8> {
    command(|out| command::encode_sweep(out, 10_000))
}

fn prune(max: u32) -> Vec<u8> {
    command(|out| command::encode_prune_versions(out, KS, max))
}

/// Encodes a commit of more keys with a prefix than are deleted immediately.
fn fill(prefix: &str) -> Vec<u8> {
    let mut commit = CommitBuilder::new();
    for number in 0..MAX_EAGER_PREFIX_ROWS + 1 {
        commit.put(KS, format!("{prefix}{number:02}").as_bytes(), b"value").unwrap();
    }
    command(|out| commit.encode(out))
}

/// Returns commands that put a key with a lease and, in the same segment, a key that stays.
fn a_leased_key_and_another() -> Vec<Vec<u8>> {
    let mut first = keyspaces();
    first.extend([grant(), put_until(b"p/a", Deadline::Never, Some(LEASE)), put(OTHER, b"b", &[b'w'; LONG])]);
    first
}

#[test]
fn a_key_that_goes_with_its_lease_and_then_with_its_prefix_gives_up_its_bytes_once() {
    let (node, _) = together(&a_leased_key_and_another(), 1, &[revoke(), delete_prefix(b"p/")]);
    let live: u64 = node.machine().liveness().iter().map(|(_, row)| row.value_bytes).sum();
    assert_eq!(live, LONG as u64, "the bytes of the other key");
}

#[test]
fn a_key_that_ends_and_then_goes_with_its_prefix_gives_up_its_bytes_once() {
    let mut first = keyspaces();
    let deadline = Deadline::After(Duration::from_micros(10));
    first.extend([put_until(b"p/a", deadline, None), put(OTHER, b"b", &[b'w'; LONG])]);
    let expire = command(|out| command::encode_expire(out, 100));
    together(&first, 20, &[expire, delete_prefix(b"p/")]);
}

#[test]
fn a_key_that_goes_with_its_lease_and_then_with_its_keyspace_gives_up_its_bytes_once() {
    let drop = command(|out| command::encode_drop_keyspace(out, KS));
    together(&a_leased_key_and_another(), 1, &[revoke(), drop.clone()]);
    let mut many = a_leased_key_and_another();
    many.push(fill("p/"));
    together(&many, 1, &[revoke(), drop, sweep()]);
}

#[test]
fn a_key_that_is_swept_and_then_deleted_gives_up_its_bytes_once() {
    let mut first = keyspaces();
    first.extend([fill("p/"), put(KS, b"p/long", &[b'v'; LONG]), put(OTHER, b"b", &[b'w'; LONG])]);
    first.push(delete_prefix(b"p/"));
    together(&first, 1, &[sweep(), delete_prefix(b"p/"), sweep()]);
}

#[test]
fn a_lease_that_is_granted_again_does_not_bring_back_the_keys_of_the_former() {
    let get = transaction(|then| _ = then.get(KS, b"p/a").unwrap());
    let (_, outcomes) = together(&a_leased_key_and_another(), 1, &[revoke(), grant(), get]);
    let Outcome::Transacted(transacted) = &outcomes[2] else { panic!("{outcomes:?}") };
    assert_eq!(transacted.results, [OperationResult::Got(None)]);
}

/// Returns the number of rows of a kind.
fn rows(node: &Node, tag: u8) -> usize {
    node.rows().keys().filter(|key| key[0] == tag).count()
}

#[test]
fn a_key_of_a_deleted_prefix_goes_with_its_lease() {
    for deadline in [Deadline::Never, Deadline::After(Duration::from_secs(9))] {
        let mut first = keyspaces();
        first.extend([grant(), fill("p/"), put_until(b"p/a", deadline, Some(LEASE)), delete_prefix(b"p/")]);
        let (node, _) = together(&first, 1, &[revoke()]);
        let live: u64 = node.machine().liveness().iter().map(|(_, row)| row.value_bytes).sum();
        let left = [0x08, 0x09, 0x0a].map(|tag| rows(&node, tag));
        assert_eq!((live, left, rows(&node, 0x10)), (0, [0; 3], MAX_EAGER_PREFIX_ROWS + 1));
    }
}

#[test]
fn a_hash_of_a_deleted_prefix_goes_at_its_deadline_and_leaves_its_fields_to_a_sweep() {
    let exact = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    let mut hash = RedisBuilder::new(KS);
    hash.push(&[b"hset", b"p/hash", b"field", b"value"]).unwrap();
    hash.push(&[b"pexpire", b"p/hash", b"1"]).unwrap();
    let first = [keyspace("one", exact), fill("p/"), hash.finish(), delete_prefix(b"")];
    let expire = command(|out| command::encode_expire(out, 100));
    let (node, outcomes) = together(&first, 2_000, std::slice::from_ref(&expire));
    assert_eq!(outcomes, [Outcome::Expired { keys: 0, rows: 1, more: false }]);
    assert_eq!([0x08, 0x13, 0x15].map(|tag| rows(&node, tag)), [0, 1, 1], "its field, and its trash row");
    let (node, _) = together(&first, 2_000, &[expire, sweep()]);
    assert_eq!([0x10, 0x13, 0x15].map(|tag| rows(&node, tag)), [0; 3]);
}

#[test]
fn two_deletes_of_a_prefix_in_a_transaction_keep_what_an_earlier_one_deleted() {
    let first = [keyspace("one", with_history(4)), fill("p"), delete_prefix(b"p"), put(KS, b"x", b"1")];
    let twice = transaction(|then| {
        then.delete_prefix(KS, b"p").unwrap().delete_prefix(KS, b"p").unwrap();
    });
    let (node, _) = together(&first, 1, &[twice]);
    let before = past(&node, b"p00", 3);
    let opened = node.copy();
    assert_eq!(past(&opened, b"p00", 1).as_deref(), Some(b"value".as_slice()));
    assert_eq!((before, past(&opened, b"p00", 3)), (None, None), "deleted at revision 2");
}

/// Returns the value of a key at a revision.
fn past(node: &Node, key: &[u8], revision: u64) -> Option<Vec<u8>> {
    let snapshot = node.machine().read_view();
    let past = snapshot.past(KS, Revision(revision), snapshot.time()).unwrap();
    past.get(key).unwrap().map(|stored| match stored.value {
        StoredValue::Inline(value) => value.to_vec(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_history_that_begins_within_an_entry_keeps_what_the_entry_wrote_before() {
    let first = [keyspace("one", KeyspaceConfig::default()), put(KS, b"k", b"v0")];
    let begins = [put(KS, b"k", b"v1"), configure(KS, with_history(4)), put(KS, b"k", b"v2")];
    let (node, outcomes) = together(&first, 1, &begins);
    assert_eq!(outcomes[0], Outcome::Committed { revision: Revision(2), appends: vec![] });
    assert_eq!(past(&node, b"k", 2).as_deref(), Some(b"v1".as_slice()));
    assert_eq!(past(&node, b"k", 3).as_deref(), Some(b"v2".as_slice()));
}

#[test]
fn two_prunes_in_an_entry_give_up_a_versions_bytes_once() {
    let mut first = vec![keyspace("one", with_history(4)), keyspace("other", KeyspaceConfig::default())];
    first.extend([b'a', b'b', b'c'].map(|byte| put(KS, b"k", &[byte; LONG])));
    first.extend([put(OTHER, b"b", &[b'w'; LONG]), configure(KS, KeyspaceConfig::default())]);
    together(&first, 1, &[prune(1), prune(1)]);
    together(&first, 1, &[prune(10), prune(10)]);
}

#[test]
fn a_value_put_without_history_and_superseded_with_it_is_its_version() {
    let first = [keyspace("one", KeyspaceConfig::default())];
    let long = put(KS, b"k", &[b'a'; LONG]);
    together(&first, 1, &[long, configure(KS, with_history(2)), delete_prefix(b""), prune(10)]);
}

#[test]
fn how_a_prefix_is_deleted_does_not_depend_on_which_entry_wrote_its_rows() {
    together(&keyspaces(), 1, &[fill("p"), delete_prefix(b"p")]);
    together(&keyspaces(), 1, &[fill("p"), command(|out| command::encode_drop_keyspace(out, KS))]);
}

#[test]
fn a_blind_put_over_one_of_the_same_entry_removes_the_same_rows() {
    let soon = Deadline::After(Duration::from_micros(10));
    let again = Deadline::After(Duration::from_micros(20));
    together(&keyspaces(), 1, &[put_until(b"a", soon, None), put_until(b"a", again, None)]);
}

#[test]
fn ids_of_leases_are_chosen_alike_in_every_grouping() {
    let chosen = command(|out| command::encode_grant_lease(out, None, Duration::from_secs(1)).unwrap());
    together(&[], 1, &[chosen.clone(), chosen.clone(), chosen]);
}

const STREAM: StreamId = StreamId(1);

fn a_record() -> RecordBatch {
    let mut batch = RecordBatch::new();
    batch.push(&Record { payload: b"r", ..Record::default() }).unwrap();
    batch
}

fn produced(id: &str, sequence: u64) -> AppendConditions<'_> {
    AppendConditions { producer: Some(ProducerStamp { id, epoch: 0, sequence }), ..AppendConditions::default() }
}

fn append(id: &str, sequence: u64) -> Vec<u8> {
    command(|out| command::encode_append_with(out, STREAM, &produced(id, sequence), &a_record()).unwrap())
}

/// A stream that remembers as many producers as it may evicts those that were silent longest, also if the commands
/// before and after are in the same entry.
#[test]
fn producers_are_evicted_alike_in_every_grouping() {
    let mut many = CommitBuilder::new();
    for number in 1..MAX_STREAM_PRODUCERS {
        many.append_with(STREAM, &produced(&format!("p{number:04}"), 0), &a_record()).unwrap();
    }
    let first = [
        command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap()),
        command(|out| many.encode(out)),
    ];
    let last = [
        append("p0900", 1),
        append("new-1", 0),
        append("new-2", 0),
        append("p0001", 1),
        append("p0900", 2),
        append("new-1", 1),
        command(|out| command::encode_open_producer(out, STREAM, "p0002").unwrap()),
        append("new-2", 1),
    ];
    let (_, outcomes) = together(&first, 1, &last);
    let unknown = Outcome::ProducerRefused { stream: STREAM, refusal: ProducerRefusal::Unknown };
    assert_eq!((&outcomes[3], &outcomes[6]), (&unknown, &Outcome::Producer { epoch: 1 }));
    let is_committed = |number: &usize| matches!(outcomes[*number], Outcome::Committed { .. });
    assert!([0, 1, 2, 4, 5, 7].iter().all(is_committed), "{outcomes:?}");
}
