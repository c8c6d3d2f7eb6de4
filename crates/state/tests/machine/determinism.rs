//! Tests that storage options and local maintenance of a node affect no outcome, in cases that were once wrong.

use std::time::Duration;

use thalweg_state::machine::MachineOptions;
use thalweg_types::{
    Index, KeyspaceId, Offset, Revision, StreamId,
    command::{
        self, Compaction, HistoryFloor, KeyspaceConfig, KeyspaceHistory, MoveTarget, Outcome, RedisBuilder,
        StreamConfig, TransactionBuilder,
    },
    limits::MAX_VALUE_BYTES,
    record::{Record, RecordBatch},
};

use crate::{
    random::{
        groupings::same_rows,
        node::{Node, on_a_map},
        replicated, upkeep,
    },
    support::command,
};

const KS: KeyspaceId = KeyspaceId(1);
const STREAM: StreamId = StreamId(1);

/// Two nodes that apply the same entries of one command each.
struct Pair {
    one: Node,
    other: Node,
    time: u64,
}

impl Pair {
    fn new(one: MachineOptions, other: MachineOptions) -> Self {
        Self { one: Node::new(on_a_map(), one), other: Node::new(on_a_map(), other), time: 1000 }
    }

    /// Applies the command on both nodes and returns their common outcome.
    fn run(&mut self, command: &[u8]) -> Outcome {
        self.time += 1;
        let [one, other] = [&mut self.one, &mut self.other].map(|node| node.apply(self.time, &[command]));
        assert_eq!(one, other, "outcomes");
        one[0].clone()
    }

    /// Asserts that the replicated rows of both nodes are equal, and that they have charged the same steps.
    fn finish(&self) {
        let [one, other] = [&self.one, &self.other].map(|node| node.machine().steps().unwrap());
        assert_eq!(one, other, "steps");
        let [one, other] = [&self.one, &self.other].map(|node| replicated::of(&node.rows()));
        same_rows("replicated rows", &one, &other).unwrap();
    }
}

fn inline(inline_value_bytes: usize) -> MachineOptions {
    MachineOptions { inline_value_bytes }
}

fn keyspace(config: &KeyspaceConfig) -> Vec<u8> {
    command(|out| command::encode_create_keyspace(out, "name", config).unwrap())
}

fn put(key: &[u8], value: &[u8]) -> Vec<u8> {
    command(|out| command::encode_put(out, KS, key, value).unwrap())
}

#[test]
fn a_rename_is_charged_alike_wherever_the_value_is_stored() {
    let mut pair = Pair::new(inline(128), inline(MAX_VALUE_BYTES));
    pair.run(&keyspace(&KeyspaceConfig::default()));
    pair.run(&put(b"from", &vec![b'v'; MAX_VALUE_BYTES / 4]));
    // The commands before the last one take nearly all steps.
    let mut redis = RedisBuilder::new(KS);
    let last = (MAX_VALUE_BYTES - 1).to_string();
    redis.push(&[b"SETRANGE", b"large", last.as_bytes(), b"x"]).unwrap();
    redis.push(&[b"SETRANGE", b"small", b"100", b"x"]).unwrap();
    redis.push(&[b"RENAME", b"from", b"to"]).unwrap();
    redis.push(&[b"RENAME", b"to", b"from"]).unwrap();
    let Outcome::Redis(Some(replies)) = pair.run(&redis.finish()) else { panic!("replies") };
    assert_eq!(replies.len(), 3, "the last one is left to another batch");
    pair.finish();
}

#[test]
fn a_prune_ends_alike_wherever_versions_are_stored() {
    let history = KeyspaceHistory { revisions: Some(8), age: None };
    let mut pair = Pair::new(inline(128), inline(MAX_VALUE_BYTES));
    pair.run(&keyspace(&KeyspaceConfig { history, ..KeyspaceConfig::default() }));
    for byte in b'a'..=b'e' {
        pair.run(&put(b"key", &vec![byte; MAX_VALUE_BYTES / 2]));
    }
    let plain = KeyspaceConfig::default();
    pair.run(&command(|out| command::encode_configure_keyspace(out, KS, &plain).unwrap()));
    let mut rounds = 0;
    while let Outcome::Reclaimed { more: true, .. } =
        pair.run(&command(|out| command::encode_prune_versions(out, KS, 100)))
    {
        rounds += 1;
        assert!(rounds < 20, "it ends");
    }
    pair.finish();
}

#[test]
fn a_prune_ends_alike_if_options_are_below_their_minimum() {
    let history = KeyspaceHistory { revisions: Some(2), age: None };
    let mut pair = Pair::new(inline(0), inline(128));
    pair.run(&keyspace(&KeyspaceConfig { history, ..KeyspaceConfig::default() }));
    // Enough versions that bytes end the prune, with short values that only the first node stores in the log.
    for value in [b"1", b"2"] {
        for keys in (0..8_000).collect::<Vec<_>>().chunks(1_000) {
            let mut commit = command::CommitBuilder::new();
            keys.iter().for_each(|key| _ = commit.put(KS, format!("{key:01000}").as_bytes(), value).unwrap());
            assert!(matches!(pair.run(&command(|out| commit.encode(out))), Outcome::Committed { .. }));
        }
    }
    let plain = KeyspaceConfig::default();
    pair.run(&command(|out| command::encode_configure_keyspace(out, KS, &plain).unwrap()));
    let pruned = pair.run(&command(|out| command::encode_prune_versions(out, KS, 10_000)));
    assert!(matches!(pruned, Outcome::Reclaimed { entries: ..8_000, more: true }), "{pruned:?}");
    pair.finish();
}

/// Creates a stream with a few batches; the first node compacts them into one.
fn compacted_by_one() -> Pair {
    let mut pair = Pair::new(inline(128), inline(128));
    let compaction = Some(Compaction { tombstone_grace: Duration::from_micros(1) });
    let config = StreamConfig { compaction, ..StreamConfig::default() };
    pair.run(&command(|out| command::encode_create_stream(out, "s", &config).unwrap()));
    for _ in 0..4 {
        let mut batch = RecordBatch::new();
        batch.push(&Record { key: Some(b"k"), payload: b"payload", ..Record::default() }).unwrap();
        pair.run(&command(|out| command::encode_append(out, STREAM, None, &batch)));
    }
    let stretch = pair.one.machine().batch_range(STREAM, Offset(0), Offset(3), 3, u64::MAX).unwrap();
    assert_eq!(stretch.batches.len(), 3);
    upkeep::replace(&mut pair.one, STREAM, &stretch, 0);
    assert_eq!(pair.one.machine().batches_from(STREAM, Offset(0), 9, u64::MAX).unwrap().batches.len(), 2);
    pair
}

fn trim(before: u64) -> Vec<u8> {
    command(|out| command::encode_trim_stream(out, STREAM, Offset(before)))
}

/// Encodes the former command that deleted index entries.
fn reclaim(max: u32) -> Vec<u8> {
    [&[7][..], &STREAM.0.to_le_bytes(), &max.to_le_bytes()].concat()
}

#[test]
fn forgetting_index_entries_answers_alike_after_a_compaction() {
    let mut pair = compacted_by_one();
    for before in [2, 4] {
        pair.run(&trim(before));
        pair.run(&reclaim(1));
        pair.run(&reclaim(100));
    }
    pair.finish();
}

#[test]
fn a_deleted_stream_is_gone_alike_whatever_of_it_is_forgotten() {
    let mut pair = compacted_by_one();
    pair.run(&trim(4));
    pair.run(&reclaim(2));
    upkeep::record(&mut pair.one, &MoveTarget::Reclaimed { stream: STREAM, max: 100 });
    pair.run(&command(|out| command::encode_delete_stream(out, STREAM)));
    pair.run(&reclaim(1));
    let again = command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap());
    assert_eq!(pair.run(&again), Outcome::Stream { id: StreamId(2), created: true });
    pair.finish();
}

#[test]
fn a_trim_into_a_compacted_stretch_answers_alike() {
    let mut pair = compacted_by_one();
    pair.run(&trim(1));
    upkeep::record(&mut pair.one, &MoveTarget::Reclaimed { stream: STREAM, max: 100 });
    pair.run(&trim(2));
    upkeep::record(&mut pair.other, &MoveTarget::Reclaimed { stream: STREAM, max: 1 });
    pair.run(&trim(3));
    pair.finish();
}

/// Encodes the former command that raised the floor of the history.
fn raise_floor(max: u32) -> Vec<u8> {
    [&[24][..], &1000_u64.to_le_bytes(), &1000_u64.to_le_bytes(), &max.to_le_bytes()].concat()
}

/// Creates two nodes, of which the first has many more marks in its log.
fn with_marks_in_one() -> Pair {
    let mut pair = Pair::new(inline(128), inline(128));
    pair.run(&keyspace(&KeyspaceConfig::default()));
    for number in 0..4_u8 {
        // A record for a stream that does not exist is void. The entry after them crosses a multiple of 256
        // records.
        let none = MoveTarget::Cleaned { stream: StreamId(99), before: Offset(1) };
        while pair.one.log.records.len() % 256 != 255 {
            upkeep::record(&mut pair.one, &none);
        }
        pair.run(&put(&[number], b"value"));
    }
    pair
}

#[test]
fn forgetting_history_answers_alike_whatever_else_is_in_the_log() {
    let mut pair = with_marks_in_one();
    pair.run(&raise_floor(2));
    let floor = HistoryFloor { revision: Revision(5), index: Index(5) };
    upkeep::record(&mut pair.one, &MoveTarget::HistoryFloor { floor, max: 1 });
    pair.run(&raise_floor(1000));
    pair.finish();
}

#[test]
fn forgetting_history_takes_no_room_from_a_sweep_in_the_same_entry() {
    let mut pair = with_marks_in_one();
    let keys: Vec<_> = (0..10_000).map(|number| format!("p{number:05}")).collect();
    for keys in keys.chunks(2500) {
        let mut commit = command::CommitBuilder::new();
        keys.iter().for_each(|key| _ = commit.put(KS, key.as_bytes(), b"").unwrap());
        pair.run(&command(|out| commit.encode(out)));
    }
    let mut transaction = TransactionBuilder::new();
    transaction.then().delete_prefix(KS, b"p").unwrap();
    pair.run(&command(|out| transaction.encode(out).unwrap()));
    let sweep = command(|out| command::encode_sweep(out, u32::MAX));
    let [one, other] = [&mut pair.one, &mut pair.other].map(|node| node.apply(2000, &[&raise_floor(1000), &sweep]));
    assert_eq!(one, other);
    pair.finish();
}
