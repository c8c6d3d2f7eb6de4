//! The data that exists before the example `entry_cost` measures entries, and helpers that encode commands.

use std::time::Duration;

use thalweg_types::{
    GroupId, KeyspaceId, LeaseId, Offset, StreamId,
    command::{
        self, CommitBuilder, Deadline, KeyspaceConfig, KeyspaceHistory, RedisBuilder, StreamConfig, TransactionBuilder,
        groups::{GroupConfig, GroupOrder, encode_create_group},
    },
    limits::{MAX_COMMIT_WRITES, MAX_GROUP_PENDING, MAX_VALUE_BYTES},
    record::RecordBatch,
};

use crate::Node;

/// Keyspace without settings.
pub(crate) const PLAIN: KeyspaceId = KeyspaceId(1);
/// Keyspace of Redis clients, which counts its keys.
pub(crate) const REDIS: KeyspaceId = KeyspaceId(2);
/// Keyspace that keeps many versions (former values) of its keys.
pub(crate) const HISTORY: KeyspaceId = KeyspaceId(3);
/// Keyspace in which all keys were deleted.
pub(crate) const DELETED: KeyspaceId = KeyspaceId(4);
/// Keyspace with so few keys that one command can read all of them.
pub(crate) const FEW: KeyspaceId = KeyspaceId(5);
/// Number of keys in each keyspace except `FEW`.
pub(crate) const KEYS: usize = 200_000;
/// Number of keys of `HISTORY` that have the maximum number of versions (former values).
pub(crate) const VERSIONED: usize = 100;
/// Stream with many records, which the consumer groups read.
pub(crate) const STREAM: StreamId = StreamId(1);
/// Number of small streams that exist beside `STREAM`. Their ids begin directly after its id.
pub(crate) const STREAMS: usize = 20_000;
/// Number of groups of `STREAM` that deliver in any order, with the ids from 1 on.
pub(crate) const GROUPS: u32 = 16;
/// Group of `STREAM` that delivers in order per key.
pub(crate) const ORDERED: GroupId = GroupId(GROUPS + 1);
/// Number of records of `STREAM`.
pub(crate) const RECORDS: u64 = 1_000_000;
/// Lease to which keys are attached.
pub(crate) const LEASE: LeaseId = LeaseId(7);

pub(crate) fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

pub(crate) fn key(number: usize) -> Vec<u8> {
    // Spreads the keys, so that keys with consecutive numbers are not neighbours in the map.
    format!("key:{:010}", number * 7_919 % KEYS).into_bytes()
}

/// Returns one of eight keys, by `number` modulo 8. Each holds a value of the maximum size.
pub(crate) fn large(number: usize) -> Vec<u8> {
    format!("large{}", number % 8).into_bytes()
}

pub(crate) fn small_stream(number: usize) -> StreamId {
    StreamId(STREAM.0 + 1 + (number % STREAMS) as u32)
}

pub(crate) fn records(count: usize, payload: &[u8]) -> RecordBatch {
    let mut batch = RecordBatch::new();
    (0..count).for_each(|_| batch.push_payload(payload).expect("within the limits"));
    batch
}

/// Encodes a commit of `count` writes; `None` if they do not fit in one commit.
pub(crate) fn commit(count: usize, mut add: impl FnMut(&mut CommitBuilder, usize) -> Option<()>) -> Option<Vec<u8>> {
    if count > MAX_COMMIT_WRITES {
        return None;
    }
    let mut commit = CommitBuilder::new();
    (0..count).try_for_each(|number| add(&mut commit, number))?;
    Some(encoded(|out| commit.encode(out)))
}

/// Encodes a transaction of `count` operations; `None` if they do not fit in one transaction.
pub(crate) fn transaction(
    count: usize,
    mut add: impl FnMut(&mut TransactionBuilder, usize) -> Option<()>,
) -> Option<Vec<u8>> {
    if count > MAX_COMMIT_WRITES {
        return None;
    }
    let mut transaction = TransactionBuilder::new();
    (0..count).try_for_each(|number| add(&mut transaction, number))?;
    let mut out = Vec::new();
    transaction.encode(&mut out).ok()?;
    Some(out)
}

/// Encodes a Redis transaction of `count` commands; `None` if they do not fit in one batch.
pub(crate) fn multi(count: usize, args: impl Fn(usize) -> Vec<Vec<u8>>) -> Option<Vec<u8>> {
    burst(count, args, 0)
}

/// Encodes a burst: a Redis transaction of `count` commands, then `scans` times a `SCAN`. Returns `None` if they do not
/// fit in one batch.
pub(crate) fn burst(count: usize, args: impl Fn(usize) -> Vec<Vec<u8>>, scans: usize) -> Option<Vec<u8>> {
    let mut builder = RedisBuilder::new(REDIS);
    builder.push(&[b"MULTI"]).ok()?;
    for number in 0..count {
        let args = args(number);
        builder.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).ok()?;
    }
    builder.push(&[b"EXEC"]).ok()?;
    for _ in 0..scans {
        builder.push(&[b"SCAN", b"", b"COUNT", b"1000"]).ok()?;
    }
    Some(builder.finish())
}

pub(crate) fn words(text: &[&[u8]]) -> Vec<Vec<u8>> {
    text.iter().map(|word| word.to_vec()).collect()
}

pub(crate) fn single(args: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut builder = RedisBuilder::new(REDIS);
    builder.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).ok()?;
    Some(builder.finish())
}

pub(crate) fn one(command: Option<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    command.map(|command| vec![command])
}

/// Puts a value of 64 bytes at each of the keys.
pub(crate) fn put_all(node: &Node, keyspace: KeyspaceId, keys: &[Vec<u8>]) {
    for keys in keys.chunks(250) {
        let puts = commit(keys.len(), |commit, at| commit.put(keyspace, &keys[at], &[b'v'; 64]).ok().map(drop));
        node.must(puts.expect("few"));
    }
}

fn fill_keyspaces(node: &Node) {
    let history = KeyspaceHistory { revisions: Some(256), age: None };
    let plain = KeyspaceConfig::default();
    let counted = KeyspaceConfig { exact_counts: true, ..plain };
    let configs = [plain, counted, KeyspaceConfig { history, ..plain }, plain, counted];
    for (number, config) in configs.iter().enumerate() {
        node.must(encoded(|out| command::encode_create_keyspace(out, &format!("k{number}"), config).expect("valid")));
    }
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    [PLAIN, DELETED, HISTORY].into_iter().for_each(|keyspace| put_all(node, keyspace, &keys));
    put_all(node, FEW, &keys[..5_000]);
    for _ in 0..300 {
        put_all(node, HISTORY, &keys[..VERSIONED]);
    }
    for number in 0..8 {
        let put = commit(1, |commit, _| commit.put(PLAIN, &large(number), &vec![b'v'; MAX_VALUE_BYTES]).ok().map(drop));
        node.must(put.expect("one"));
    }
    for keys in keys.chunks(5_000) {
        let deletes = commit(keys.len(), |commit, at| commit.delete(DELETED, &keys[at]).ok().map(drop));
        node.must(deletes.expect("few"));
        node.must(multi(keys.len(), |at| words(&[b"SET", &keys[at], &[b'v'; 64]])).expect("few"));
    }
}

fn fill_redis(node: &Node) {
    let must = |args: Vec<Vec<u8>>| node.must(single(&args).expect("within the limits"));
    for numbers in (0..100_000_usize).collect::<Vec<_>>().chunks(2_000) {
        let mut fields = words(&[b"HSET", b"hash"]);
        for number in numbers {
            fields.extend([key(*number), vec![b'v'; 32]]);
        }
        must(fields);
        node.must(multi(numbers.len(), |_| words(&[b"XADD", b"stream", b"*", b"f", &[b'v'; 32]])).expect("few"));
    }
    let last = (MAX_VALUE_BYTES - 1).to_string();
    for number in 0..8 {
        must(words(&[b"SETRANGE", &large(number), last.as_bytes(), b"x"]));
    }
    must(words(&[b"SET", b"copied", &vec![b'v'; 4 << 20]]));
    let mut fields = words(&[b"HSET", b"copied hash"]);
    (0..5_000).for_each(|number| fields.extend([key(number), vec![b'v'; 32]]));
    must(fields);
    for group in [b"g", b"p"] {
        must(words(&[b"XGROUP", b"CREATE", b"stream", group, b"0"]));
    }
    for _ in 0..10 {
        must(words(&[b"XREADGROUP", b"GROUP", b"p", b"c", b"COUNT", b"5000", b"STREAMS", b"stream", b">"]));
    }
}

fn fill_streams(node: &Node) {
    let create =
        |name: &str| encoded(|out| command::encode_create_stream(out, name, &StreamConfig::default()).expect("valid"));
    node.must(create("stream"));
    for numbers in (0..STREAMS).collect::<Vec<_>>().chunks(4_000) {
        node.all(&numbers.iter().map(|number| create(&format!("s{number}"))).collect::<Vec<_>>());
    }
    let batch = records(10_000, b"v");
    for _ in 0..RECORDS / 10_000 {
        node.must(encoded(|out| command::encode_append(out, STREAM, None, &batch)));
    }
    let most = GroupConfig {
        max_pending: MAX_GROUP_PENDING,
        ack_deadline: Duration::from_secs(12 * 3600),
        dead_letters: Some("dead".to_owned()),
        ..GroupConfig::default()
    };
    let create = |name: &str, config: &GroupConfig| {
        encoded(|out| encode_create_group(out, STREAM, name, Some(Offset(0)), config).expect("valid"))
    };
    for number in 0..GROUPS {
        node.must(create(&format!("g{number}"), &most));
    }
    node.must(create("ordered", &GroupConfig { order: GroupOrder::PerKey, ..most }));
}

/// Puts `keys` keys into `PLAIN` and attaches them to a new lease.
pub(crate) fn attach(node: &Node, lease: LeaseId, keys: usize) {
    node.must(encoded(|out| {
        command::encode_grant_lease(out, Some(lease), Duration::from_secs(90 * 24 * 3600)).expect("valid");
    }));
    for numbers in (0..keys).collect::<Vec<_>>().chunks(1_000) {
        let puts = commit(numbers.len(), |commit, at| {
            let name = format!("attached{:07}", numbers[at]);
            commit.put_until(PLAIN, name.as_bytes(), &[b'v'; 64], Deadline::Never, Some(lease)).ok().map(drop)
        });
        node.must(puts.expect("few"));
    }
}

pub(crate) fn fill(node: &Node) {
    fill_keyspaces(node);
    fill_redis(node);
    fill_streams(node);
}
