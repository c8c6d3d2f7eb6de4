//! Values whose bytes this node's log has lost.

use thalweg_state::machine::MachineOptions;
use thalweg_types::{
    KeyspaceId,
    command::{self, KeyspaceConfig, Outcome, RedisBuilder},
    reply::Reply,
};

use crate::support::{Bench, Log, command};

const KS: KeyspaceId = KeyspaceId(1);

/// A command on a hash or a stream does not need the bytes of a string to reject it.
#[test]
fn a_collection_command_rejects_a_string_without_its_value() {
    let mut bench = Bench::new(MachineOptions { inline_value_bytes: 128 });
    let create = command(|out| command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).unwrap());
    let long = command(|out| command::encode_put(out, KS, b"long", &[b'v'; 1000]).unwrap());
    bench.run(1, &[create, long]);
    bench.machine = Log::new(4096).machine(bench.backend.clone(), bench.options);
    let mut burst = RedisBuilder::new(KS);
    burst.push(&[b"HSET", b"long", b"f", b"v"]).unwrap();
    burst.push(&[b"XADD", b"long", b"*", b"f", b"v"]).unwrap();
    burst.push(&[b"HGET", b"long", b"f"]).unwrap();
    let outcomes = bench.run(2, &[burst.finish()]);
    let Outcome::Redis(Some(replies)) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(replies.len(), 3);
    for reply in replies {
        assert!(matches!(reply, Reply::Error(text) if text.starts_with("WRONGTYPE")), "{reply:?}");
    }
}

#[test]
fn a_read_behind_a_write_of_a_burst_fails_alone_if_its_value_is_lost() {
    let mut bench = Bench::new(MachineOptions { inline_value_bytes: 128 });
    let create = command(|out| command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).unwrap());
    let long = command(|out| command::encode_put(out, KS, b"long", &[b'v'; 1000]).unwrap());
    bench.run(1, &[create, long]);
    // From here on, the machine reads a log without the value.
    bench.machine = Log::new(4096).machine(bench.backend.clone(), bench.options);
    let mut burst = RedisBuilder::new(KS);
    burst.push(&[b"SET", b"k", b"v"]).unwrap();
    burst.push(&[b"GET", b"long"]).unwrap();
    burst.push(&[b"GET", b"k"]).unwrap();
    let outcomes = bench.run(2, &[burst.finish()]);
    let Outcome::Redis(Some(replies)) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(matches!(&replies[..], [Reply::Ok, Reply::Error(_), Reply::Bulk(_)]), "{replies:?}");
    assert_eq!(replies[2], Reply::bulk(b"v"));
    let Reply::Error(text) = &replies[1] else { unreachable!() };
    assert!(text.starts_with("MISCONF") && text.contains("BlobRef"), "an operator learns what is lost: {text}");
}
