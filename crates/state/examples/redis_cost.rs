//! What applying Redis commands costs, over the LSM backend in memory: nanoseconds a command.
//!
//! `cargo run --release -p thalweg-state --example redis_cost`
//!
//! Estimates, for entries of 50 batches of 16 commands on 100,000 keys with values of 64 bytes: SET 700 (decoding 30, the
//! table and the arguments 40, the row before 150, counts, the overlay and what it takes back 150, the verdict 30, the
//! batch 50, the memtable 250); INCR 900 (twice the key's row); GET 350; HSET 1500 (key and part, both read and written).

#![allow(clippy::print_stdout)]

use std::{sync::Arc, time::Instant};

use thalweg_state::{
    backend::{BarrierFailed, LogBarrier},
    lsm::{LsmBackend, LsmOptions},
    machine::{Entry, Machine, MachineOptions},
};
use thalweg_types::{
    Generation, Index, KeyspaceId, LogPosition, Lsn, SpaceTime, Term,
    command::{self, KeyspaceConfig, Outcome, RedisBuilder},
};

const KEYSPACE: KeyspaceId = KeyspaceId(1);
const KEYS: u64 = 100_000;
const BATCHES: u64 = 50;
const COMMANDS: u64 = 16;
const ENTRIES: u64 = 250;

#[derive(Debug)]
struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

fn frame(commands: &[Vec<u8>]) -> Vec<u8> {
    let mut payload = Vec::new();
    for command in commands {
        payload.extend_from_slice(&(command.len() as u32).to_le_bytes());
        payload.extend_from_slice(command);
    }
    payload
}

fn apply(machine: &Machine, payload: &[u8]) -> Vec<Outcome> {
    let next_lsn = Lsn(machine.applied().lsn.0 + 1);
    let at = LogPosition { generation: Generation(1), offset: 4096 };
    let index = Index(next_lsn.0);
    let mut outcomes = Vec::new();
    let entry = Entry { term: Term(1), index, time: SpaceTime(next_lsn.0), payload, at, next_lsn };
    machine.apply(&entry, &mut outcomes).expect("applies");
    outcomes
}

/// Entries of commands that `args` gives for each random key.
fn entries(seed: u64, args: &dyn Fn(&[u8]) -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut random = seed;
    let mut batch = || {
        let mut builder = RedisBuilder::new(KEYSPACE);
        for _ in 0..COMMANDS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let args = args(format!("key:{:012}", (random >> 33) % KEYS).as_bytes());
            builder.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).expect("within the bounds");
        }
        builder.finish()
    };
    (0..ENTRIES).map(|_| frame(&(0..BATCHES).map(|_| batch()).collect::<Vec<_>>())).collect()
}

fn measure(machine: &Machine, what: &str, args: &dyn Fn(&[u8]) -> Vec<Vec<u8>>) {
    let mut rounds: Vec<f64> = (0..5)
        .map(|round| {
            let entries = entries(round + 1, args);
            let start = Instant::now();
            for payload in &entries {
                let outcomes = apply(machine, payload);
                assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Redis(Some(_)))), "{outcomes:?}");
            }
            start.elapsed().as_nanos() as f64 / (ENTRIES * BATCHES * COMMANDS) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:<28} {:>7.0} ns a command (of {} to {})", rounds[2], rounds[0] as u64, rounds[4] as u64);
}

fn main() {
    let dir = std::env::temp_dir().join(format!("thalweg-redis-cost-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let backend = LsmBackend::open(LsmOptions::new(&dir), Arc::new(NoLog)).expect("opens");
    let machine = Machine::open(Arc::new(backend), MachineOptions::default()).expect("opens");
    let mut create = Vec::new();
    let config = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    command::encode_create_keyspace(&mut create, "redis", &config).expect("a good name");
    apply(&machine, &frame(&[create]));
    println!("{BATCHES} batches of {COMMANDS} commands an entry, {KEYS} keys, values of 64 bytes, LSM backend, no log");
    let bytes = |text: &[u8]| text.to_vec();
    let value = vec![b'v'; 64];
    measure(&machine, "SET", &|key| vec![bytes(b"SET"), bytes(key), value.clone()]);
    measure(&machine, "GET", &|key| vec![bytes(b"GET"), bytes(key)]);
    measure(&machine, "SET ... PX", &|key| {
        vec![bytes(b"SET"), bytes(key), value.clone(), bytes(b"PX"), bytes(b"100000000")]
    });
    measure(&machine, "INCR", &|key| vec![bytes(b"INCR"), [b"n", key].concat()]);
    measure(&machine, "HSET, one field", &|key| {
        vec![bytes(b"HSET"), [b"h", key].concat(), bytes(b"field"), value.clone()]
    });
    measure(&machine, "HGET", &|key| vec![bytes(b"HGET"), [b"h", key].concat(), bytes(b"field")]);
    measure(&machine, "DEL", &|key| vec![bytes(b"DEL"), bytes(key)]);
    drop(machine);
    let _ = std::fs::remove_dir_all(&dir);
}
