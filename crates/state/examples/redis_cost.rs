//! Cost of applying Redis commands without a log, in nanoseconds of CPU per command, on the LSM backend and in memory.
//! Entries contain bursts of 16 commands from 50 clients, or one command.
//!
//! `cargo run --release -p thalweg-state --example redis_cost`
//!
//! Estimates, for bursts on the LSM backend, 100,000 keys with values of 64 bytes: SET 450 (decoding and arguments 40,
//! reading the previous row 120, looking up earlier changes of the entry 30, recording the change for watches 20,
//! adding to the batch 40, the memtable 150); GET 250; INCR 700 (the work on the key's row twice, and 150 for the undo
//! list); HSET 1000 (the rows of the key and of the field are both read and written); XADD 900, all to one stream (the
//! rows of the entry and of the key are written). A command that is alone in its log entry takes 1 µs more.
//!
//! Measured while other builds ran (load 8 to 12, alternating runs), so the ratios are more reliable than the figures:
//! SET 1,750 before its fast path, 900 to 1,100 with it, 920 (640 at best) with keys prefetched together; XADD 1,900
//! before optimisations and 1,030 after; INCR 2,180 and 1,640. Most of the remaining cost of a SET is waiting for the
//! memtable's memory.

#![allow(clippy::print_stdout)]

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use thalweg_disk::RealDisk;
use thalweg_state::machine::{Entry, Machine, MachineOptions};
use thalweg_store::{
    Backend, BarrierFailed, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Generation, Index, KeyspaceId, LogPosition, Lsn, SpaceTime, Term,
    command::{self, KeyspaceConfig, Outcome, RedisBuilder},
};

const KEYSPACE: KeyspaceId = KeyspaceId(1);
const KEYS: u64 = 100_000;
const COMMANDS: u64 = 200_000;

/// Distribution of commands over batches and entries.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    /// Number of batches in an entry.
    batches: u64,
    /// Number of commands in a batch.
    commands: u64,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "entries of 50 x 16", batches: 50, commands: 16 },
    Shape { name: "entries of 1 x 1", batches: 1, commands: 1 },
];

fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

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

type Args<'a> = &'a dyn Fn(&[u8]) -> Vec<Vec<u8>>;

/// Creates entries of the commands that `args` returns for random keys.
fn entries(seed: u64, shape: Shape, args: Args<'_>) -> Vec<Vec<u8>> {
    let mut random = seed;
    let mut batch = || {
        let mut builder = RedisBuilder::new(KEYSPACE);
        for _ in 0..shape.commands {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let args = args(format!("key:{:012}", (random >> 33) % KEYS).as_bytes());
            builder.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).expect("within the bounds");
        }
        builder.finish()
    };
    let count = COMMANDS / (shape.batches * shape.commands);
    (0..count).map(|_| frame(&(0..shape.batches).map(|_| batch()).collect::<Vec<_>>())).collect()
}

fn measure(machine: &Machine, what: &str, args: Args<'_>) {
    let figures = SHAPES.map(|shape| {
        let mut rounds: Vec<f64> = (0..5)
            .map(|round| {
                let entries = entries(round + 1, shape, args);
                let start = cpu_nanos();
                for payload in &entries {
                    let outcomes = apply(machine, payload);
                    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Redis(Some(_)))), "{outcomes:?}");
                }
                let nanos = (cpu_nanos() - start) as f64;
                nanos / (entries.len() as u64 * shape.batches * shape.commands) as f64
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        format!("{:>6.0} ({:.0} to {:.0})", rounds[2], rounds[0], rounds[4])
    });
    println!("{what:<20} {:<24} {}", figures[0], figures[1]);
}

fn measure_all(name: &str, backend: Arc<dyn Backend>) {
    let machine = Machine::open(backend, MachineOptions::default()).expect("opens");
    let mut create = Vec::new();
    let config = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    command::encode_create_keyspace(&mut create, "redis", &config).expect("a good name");
    apply(&machine, &frame(&[create]));
    println!("{name}, ns of CPU a command: {:<15} {}", SHAPES[0].name, SHAPES[1].name);
    let only = std::env::args().nth(1);
    let measure = |what: &str, args: Args<'_>| {
        if only.as_ref().is_none_or(|only| what.starts_with(only.as_str())) {
            measure(&machine, what, args);
        }
    };
    let words = |text: &[&[u8]]| text.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    let value = [b'v'; 64];
    measure("SET", &|key| words(&[b"SET", key, &value]));
    measure("GET", &|key| words(&[b"GET", key]));
    measure("SET ... PX", &|key| words(&[b"SET", key, &value, b"PX", b"100000000"]));
    measure("INCR", &|key| words(&[b"INCR", &[b"n", key].concat()]));
    measure("HSET, one field", &|key| words(&[b"HSET", &[b"h", key].concat(), b"field", &value]));
    measure("HGET", &|key| words(&[b"HGET", &[b"h", key].concat(), b"field"]));
    measure("XADD, one stream", &|_| words(&[b"XADD", b"stream", b"*", b"field", &value]));
    measure("DEL", &|key| words(&[b"DEL", key]));
}

fn main() {
    let dir = std::env::temp_dir().join(format!("thalweg-redis-cost-{}", std::process::id()));
    let place = |name: &str| {
        let place = dir.join(name);
        std::fs::create_dir_all(&place).expect("a directory");
        place
    };
    println!("{KEYS} keys, values of 64 bytes, {COMMANDS} commands a round, median of 5 (least to most); no log");
    let lsm = LsmBackend::open(LsmOptions::new(place("lsm")), Arc::new(NoLog)).expect("opens");
    measure_all("LSM", Arc::new(lsm));
    let disk = Arc::new(RealDisk::open(place("memory")).expect("a disk"));
    let memory = MemoryBackend::open(disk, MemoryOptions::default(), Arc::new(NoLog)).expect("opens");
    measure_all("memory", Arc::new(memory));
    let _ = std::fs::remove_dir_all(&dir);
}
