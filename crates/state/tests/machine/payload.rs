//! The payload of a state, counted over rows of every kind.

use std::ops::ControlFlow;

use thalweg_state::{
    machine::MachineOptions,
    payload::{Payload, payload, segment_liveness},
};
use thalweg_store::Backend;
use thalweg_types::{
    KeyspaceId, Offset, StreamId,
    command::{self, KeyspaceConfig, KeyspaceHistory, RedisBuilder, StreamConfig},
    record::RecordBatch,
};

use crate::support::{Bench, command};

fn counted(bench: &Bench) -> Payload {
    payload(&*bench.backend.view(), &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
}

#[test]
fn what_users_can_read_counts_once_and_former_values_apart() {
    let mut bench = Bench::new(MachineOptions { inline_value_bytes: 128 });
    assert_eq!(counted(&bench).live_bytes(), 0);
    let keyspace = |name, config| command(|out| command::encode_create_keyspace(out, name, &config).unwrap());
    let history = KeyspaceHistory { revisions: Some(4), age: None };
    let put = |keyspace, key: &[u8], len: usize| {
        command(|out| command::encode_put(out, KeyspaceId(keyspace), key, &vec![b'x'; len]).unwrap())
    };
    let append = command(|out| {
        let mut batch = RecordBatch::new();
        (0..3).for_each(|_| batch.push_payload(b"payload").unwrap());
        command::encode_append(out, StreamId(1), None, &batch);
    });
    let commands = [
        keyspace("plain", KeyspaceConfig::default()),
        keyspace("history", KeyspaceConfig { history, ..KeyspaceConfig::default() }),
        keyspace("redis", KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() }),
        put(1, b"small", 10),
        put(1, b"large", 1000),
        put(1, b"large", 1001),
        put(2, b"k", 20),
        put(2, b"k", 30),
        command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap()),
        append.clone(),
        append,
    ];
    for (time, command) in commands.into_iter().enumerate() {
        bench.run(time as u64 + 1, &[command]);
    }
    let found = counted(&bench);
    assert_eq!((found.keys, found.key_bytes, found.value_bytes), (3, 11, 1041), "{found:?}");
    assert_eq!((found.versions, found.version_bytes), (1, 21), "the former value of k");
    assert_eq!(found.records, 6);
    assert!(found.record_bytes >= 6 * 7, "{found:?}");
    assert_eq!(found.live_bytes(), 11 + 1041 + found.record_bytes);
    assert!(found.row_bytes < found.live_bytes(), "large values and records are in the log");
    let live = segment_liveness(&*bench.backend.view()).unwrap();
    let values: u64 = live.iter().map(|(_, live)| live.value_bytes).sum();
    assert_eq!(values, 2001, "an overwritten value counts as live until the segment is walked");

    let mut redis = RedisBuilder::new(KeyspaceId(3));
    redis.push(&[b"HSET", b"hash", b"field", b"value"]).unwrap();
    bench.run(20, &[redis.finish()]);
    bench.run(21, &[command(|out| command::encode_trim_stream(out, StreamId(1), Offset(4)))]);
    let later = counted(&bench);
    assert_eq!((later.keys, later.parts, later.records), (4, 1, 2), "{later:?}");
    assert!(later.part_bytes >= 10 && later.rows > found.rows, "{later:?}");
    assert!(later.record_bytes < found.record_bytes, "a whole batch is trimmed");
}
