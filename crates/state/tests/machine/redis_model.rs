//! Random Redis commands, in batches and entries of random size. The machine must reply like the model, on every
//! backend, whatever the point from which replay begins.

use std::sync::Arc;

use thalweg_disk::{Disk, SimDisk};
use thalweg_redis::{Reply, admit, execute, model, run_read};
use thalweg_state::machine::MachineOptions;
use thalweg_store::{
    Backend, BarrierFailed, BufferOptions, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::{
    Lsn,
    command::{Outcome, RedisBuilder},
};

use crate::{
    redis::{KS, bench, sweep, view},
    support::{Bench, MapBackend, apply},
    workload::{Rng, for_seeds},
};

type Args = Vec<Vec<u8>>;

const KEYS: u64 = 12;

fn key(rng: &mut Rng) -> String {
    format!("key{}", rng.below(KEYS))
}

/// Returns a value: a number, a few letters, or one that stays in the log.
fn value(rng: &mut Rng) -> String {
    match rng.below(4) {
        0 => rng.below(1000).to_string(),
        1 => "v".repeat(30 + rng.below(20) as usize),
        _ => format!("value{}", rng.below(50)),
    }
}

fn field(rng: &mut Rng) -> String {
    format!("f{}", rng.below(6))
}

fn random(rng: &mut Rng, now: u64) -> Args {
    let (k, l, v, f) = (key(rng), key(rng), value(rng), field(rng));
    let soon = now + rng.below(40);
    let words = match rng.below(40) {
        0..5 => format!("SET {k} {v}"),
        5 => format!("SET {k} {v} NX GET"),
        6 => format!("SET {k} {v} XX KEEPTTL"),
        7 => format!("SET {k} {v} PXAT {}", soon + 1),
        8 => format!("GET {k}"),
        9 => format!("GETDEL {k}"),
        10 => format!("GETEX {k} PXAT {}", soon + 1),
        11 => format!("APPEND {k} {v}"),
        12 => format!("INCRBY {k} {}", rng.below(10)),
        13 => format!("MSET {k} {v} {l} {f}"),
        14 => format!("MSETNX {k} {v} {l} {f}"),
        15 => format!("SETRANGE {k} {} {v}", rng.below(40)),
        16 => format!("MGET {k} {l}"),
        17 => format!("DEL {k} {l}"),
        18 => format!("PEXPIREAT {k} {soon}"),
        19 => format!("PEXPIREAT {k} {soon} GT"),
        20 => format!("PERSIST {k}"),
        21 => format!("PEXPIRETIME {k}"),
        22 => format!("RENAME {k} {l}"),
        23 => format!("RENAMENX {k} {l}"),
        24 => format!("COPY {k} {l}"),
        25 => format!("COPY {k} {l} REPLACE"),
        26 => format!("TYPE {k}"),
        27 => "KEYS *".into(),
        28 => format!("EXISTS {k} {l}"),
        29..34 => format!("HSET {k} {f} {v}"),
        34 => format!("HDEL {k} {f} {}", field(rng)),
        35 => format!("HGETALL {k}"),
        36 => format!("HINCRBY {k} {f} 5"),
        37 => format!("HGET {k} {f}"),
        38 => "DBSIZE".into(),
        _ if rng.below(12) == 0 => "FLUSHDB".into(),
        _ => format!("HSETNX {k} {f} {v}"),
    };
    words.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn expected(model: &mut model::Model, args: &Args) -> Reply {
    // The model borrows its arguments for its whole life.
    let args: Vec<&'static [u8]> = args.iter().map(|arg| &*arg.clone().leak()).collect();
    execute(model, &args).unwrap()
}

/// Compares the replies to a client that only reads.
fn check_reads(bench: &Bench, model: &mut model::Model, args: &Args) {
    let borrowed: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    let command = admit(&borrowed).unwrap();
    let got = view(&bench.machine, bench, |view| run_read(view, command, &borrowed).unwrap());
    assert_eq!(got, expected(model, args), "{borrowed:?}");
}

fn words(text: &str) -> Args {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn step(bench: &mut Bench, model: &mut model::Model, rng: &mut Rng, time: &mut u64) {
    *time += rng.below(4000);
    model.now = *time / 1000;
    let (mut commands, mut wanted) = (Vec::new(), Vec::new());
    for _ in 0..=rng.below(3) {
        let mut builder = RedisBuilder::new(KS);
        let batch: Vec<_> = (0..=rng.below(5)).map(|_| random(rng, model.now)).collect();
        for args in &batch {
            builder.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        }
        let replies: Vec<_> = batch.iter().map(|args| expected(model, args)).collect();
        commands.push(builder.finish());
        wanted.push((batch, replies));
    }
    let outcomes = bench.run(*time, &commands);
    for (outcome, (batch, replies)) in outcomes.into_iter().zip(wanted) {
        let Outcome::Redis(Some(got)) = outcome else { panic!("{outcome:?}") };
        for ((args, reply), got) in batch.iter().zip(replies).zip(got) {
            assert_eq!(got, reply, "{:?}", args.iter().map(|arg| String::from_utf8_lossy(arg)).collect::<Vec<_>>());
        }
    }
}

fn check_all(bench: &Bench, model: &mut model::Model) {
    for number in 0..KEYS {
        for command in ["TYPE", "PEXPIRETIME", "GET", "HGETALL"] {
            check_reads(bench, model, &words(&format!("{command} key{number}")));
        }
    }
    check_reads(bench, model, &words("KEYS *"));
    check_reads(bench, model, &words("DBSIZE"));
}

fn workload(seed: u64, steps: usize) -> (Bench, model::Model, Vec<Arc<MapBackend>>) {
    let (mut rng, mut time) = (Rng(seed), 10_000);
    let mut bench = bench(MachineOptions { inline_value_bytes: 24 });
    let (mut model, mut copies) = (model::Model::default(), vec![bench.backend.copy()]);
    for _ in 0..steps {
        step(&mut bench, &mut model, &mut rng, &mut time);
        match rng.below(20) {
            0 => check_all(&bench, &mut model),
            1 => drop(sweep(&mut bench)),
            2 => copies.push(bench.backend.copy()),
            3 => bench.reopen(),
            _ => {}
        }
    }
    check_all(&bench, &mut model);
    (bench, model, copies)
}

#[test]
fn the_machine_answers_what_the_model_answers_and_replay_gives_the_same_map() {
    for_seeds(12, |seed| {
        let (bench, _, copies) = workload(seed, 250);
        let whole = bench.backend.dump();
        for copy in copies {
            let machine = bench.log.machine(copy.clone(), bench.options);
            let applied = copy.applied().unwrap_or_default().lsn.0 as usize;
            bench.log.records[applied..].iter().for_each(|record| drop(apply(&machine, record)));
            assert_eq!(copy.dump(), whole);
        }
    });
}

#[test]
fn nothing_is_left_of_what_was_flushed() {
    for_seeds(4, |seed| {
        let (mut bench, ..) = workload(seed, 100);
        let mut builder = RedisBuilder::new(KS);
        builder.push(&[b"FLUSHDB"]).unwrap();
        bench.run(10_000_000, &[builder.finish()]);
        sweep(&mut bench);
        let counts = bench.machine.keyspace_counts(KS).unwrap();
        assert_eq!((counts.keys, counts.bytes, counts.collections), (0, 0, 0));
        assert!(bench.backend.dump().keys().all(|key| !matches!(key[0], 0x10 | 0x13 | 0x15)));
    });
}

struct Durable;

impl LogBarrier for Durable {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// Applies a workload to the backend that `open` returns, reopens it occasionally, and compares the maps.
fn same_on(seed: u64, open: &dyn Fn() -> Arc<dyn Backend>) {
    let (mut bench, mut model, _) = workload(seed, 120);
    let mut rng = Rng(seed);
    let mut backend = open();
    let mut machine = bench.log.machine(backend.clone(), bench.options);
    while let Some(record) = bench.log.records.get(machine.applied().lsn.0 as usize) {
        apply(&machine, record);
        match rng.below(40) {
            0 => drop(backend.flush().unwrap()),
            1 => {
                drop(machine);
                drop(backend);
                backend = open();
                machine = bench.log.machine(backend.clone(), bench.options);
            }
            _ => {}
        }
    }
    bench.machine = machine;
    check_all(&bench, &mut model);
}

#[test]
fn every_backend_answers_the_same() {
    let small = || BufferOptions { memtable_bytes: 1 << 20, ..BufferOptions::default() };
    for_seeds(2, |seed| {
        let disk = Arc::new(SimDisk::new(seed));
        same_on(seed, &|| {
            Arc::new(MemoryBackend::open(disk.clone(), MemoryOptions::default(), Arc::new(Durable)).unwrap())
        });
        let dir = tempfile::tempdir().unwrap();
        let lsm = || LsmOptions { memtable_bytes: 1 << 20, cache_bytes: 1 << 20, ..LsmOptions::new(dir.path()) };
        same_on(seed, &|| Arc::new(LsmBackend::open(lsm(), Arc::new(Durable)).unwrap()));
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(seed));
        let redb = || RedbOptions { cache_bytes: 1 << 20, buffer: small(), ..RedbOptions::default() };
        same_on(seed, &|| Arc::new(RedbBackend::open(&disk, redb(), Arc::new(Durable)).unwrap()));
        let dir = tempfile::tempdir().unwrap();
        let sqlite = || SqliteOptions { cache_bytes: 1 << 20, buffer: small(), ..SqliteOptions::new(dir.path()) };
        same_on(seed, &|| Arc::new(SqliteBackend::open(sqlite(), Arc::new(Durable)).unwrap()));
    });
}
