//! Commands that read everything that commands can read, so that different states return different outcomes.

use std::time::Duration;

use thalweg_types::{
    GroupId, KeyspaceId, LeaseId, Offset, StreamId,
    command::{
        AppendConditions, Deadline, KeyspaceConfig, RedisBuilder, ScanOperation, StreamConfig, TransactionBuilder,
        encode_append_with, encode_create_keyspace, encode_create_stream, encode_expire, encode_grant_lease,
        encode_keep_lease, encode_prune_versions, encode_put_until, encode_sweep, encode_trim_stream,
        groups::{encode_fetch, encode_reclaim_group},
    },
    record::RecordBatch,
};

use super::{List, Step, generator::encoded};

const SECOND: u64 = 1_000_000;

/// Returns the commands to apply after a list.
pub fn probes(list: &List) -> List {
    let time = list.0.last().map_or(SECOND, |step| step.time);
    let now = looks().into_iter().chain(writes());
    let later = maintenance().into_iter().chain(looks());
    let step = |time| move |command| Step::new(time, command);
    List(now.map(step(time + 1)).chain(later.map(step(time + SECOND / 10))).collect())
}

/// Returns reads of every keyspace, and of every lease and group as far as commands can read them.
fn looks() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for keyspace in (1..=6).map(KeyspaceId) {
        let mut transaction = TransactionBuilder::new();
        let everything =
            ScanOperation { prefix: b"", start: None, end: None, reverse: false, keys_only: false, limit: 1000 };
        transaction.then().scan(keyspace, &everything).expect("within limits");
        all.push(encoded(|out| transaction.encode(out)));
        let mut redis = RedisBuilder::new(keyspace);
        for words in [&[b"DBSIZE".as_slice()][..], &[b"KEYS", b"*"], &[b"HGETALL", b"a"], &[b"XINFO", b"STREAM", b"a"]]
        {
            redis.push(words).expect("within limits");
        }
        all.push(redis.finish());
    }
    for lease in (1..=4).map(LeaseId) {
        all.push(encoded(|out| {
            encode_keep_lease(out, lease);
            Ok(())
        }));
    }
    for group in (1..=4).map(GroupId) {
        all.push(encoded(|out| encode_fetch(out, group, 3, Offset(0), &[1, 2, 1, 3], "ann")));
    }
    all
}

/// Returns a write of each kind.
fn writes() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut batch = RecordBatch::new();
    batch.push_payload(b"probe").expect("a small record");
    for stream in (1..=4).map(StreamId) {
        all.push(encoded(|out| encode_append_with(out, stream, &AppendConditions::default(), &batch)));
        all.push(encoded(|out| {
            encode_trim_stream(out, stream, Offset(2));
            Ok(())
        }));
    }
    for (number, name) in ["a", "b", "c", "d", "dead", "e"].into_iter().enumerate() {
        all.push(encoded(|out| encode_create_keyspace(out, name, &KeyspaceConfig::default())));
        all.push(encoded(|out| encode_create_stream(out, name, &StreamConfig::default())));
        let (keyspace, lease) = (KeyspaceId(number as u32 + 1), LeaseId(number as u64 + 1));
        let value = [b'w'; 150];
        all.push(encoded(|out| encode_put_until(out, keyspace, b"a", &value, Deadline::Never, Some(lease))));
        all.push(encoded(|out| encode_put_until(out, keyspace, b"p", &value, Deadline::Keep, None)));
    }
    all.push(encoded(|out| encode_grant_lease(out, None, Duration::from_secs(1))));
    all
}

/// Returns all maintenance commands, in steps.
fn maintenance() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for max in [1, 20, 10_000, 10_000] {
        let mut add = |encode: &dyn Fn(&mut Vec<u8>)| {
            all.push(encoded(|out| {
                encode(out);
                Ok(())
            }));
        };
        add(&|out| encode_expire(out, max));
        add(&|out| encode_sweep(out, max));
        add(&|out| encode_prune_versions(out, KeyspaceId(0), max));
        (1..=4).for_each(|group| add(&|out| encode_reclaim_group(out, GroupId(group), max)));
    }
    all
}
