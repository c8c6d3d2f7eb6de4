//! Cost of a scan over flushed tables and over memory, in microseconds per query and nanoseconds per pair.
//!
//! `cargo run --release -p thalweg-state --example scan_cost`

#![allow(clippy::print_stdout)]

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_state::{
    keyspaces::ScanRange,
    machine::{Entry, Machine, MachineOptions},
};
use thalweg_store::{
    Backend, BarrierFailed, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
};
use thalweg_types::{
    Generation, Index, KeyspaceId, LogPosition, Lsn, SpaceTime, Term,
    command::{self, KeyspaceConfig},
};

const KEYSPACE: KeyspaceId = KeyspaceId(1);
const KEYS: u64 = 200_000;

#[derive(Debug)]
struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

fn apply(machine: &Machine, encode: impl FnOnce(&mut Vec<u8>)) {
    let mut payload = vec![0; 4];
    encode(&mut payload);
    let len = (payload.len() - 4) as u32;
    payload[..4].copy_from_slice(&len.to_le_bytes());
    let next_lsn = Lsn(machine.applied().lsn.0 + 1);
    let at = LogPosition { generation: Generation(1), offset: 4096 };
    let index = Index(next_lsn.0);
    let entry = Entry { term: Term(1), index, time: SpaceTime(next_lsn.0), payload: &payload, at, next_lsn };
    machine.apply(&entry, &mut Vec::new()).expect("applies");
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:013}").into_bytes()
}

/// Prints the median time of several queries at random positions, each for `pairs` pairs.
fn measure(machine: &Machine, what: &str, pairs: u64) {
    let mut random = 7_u64;
    let mut rounds: Vec<Duration> = (0..41)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..500 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let first = (random >> 33) % (KEYS - pairs);
                let (low, high) = (key(first), key(first + pairs));
                let range =
                    ScanRange { start: Bound::Included(&low), end: Bound::Excluded(&high), ..Default::default() };
                let mut sum = (0, 0);
                let mut visit = |item: thalweg_state::keyspaces::Item<'_>| {
                    if let Some(thalweg_state::keyspaces::StoredRef::Inline(value)) = item.value {
                        sum = (sum.0 + u64::from(value[0]), sum.1 + 1);
                    }
                    ControlFlow::Continue(())
                };
                machine.read_view().scan(KEYSPACE, &range, &mut visit).expect("scans");
                assert_eq!(std::hint::black_box(sum).1, pairs);
            }
            start.elapsed() / 500
        })
        .collect();
    rounds.sort_unstable();
    let median = rounds[rounds.len() / 2];
    println!(
        "{what:10} {pairs:5} pairs {:8.2} µs a query {:6.1} ns a pair",
        median.as_nanos() as f64 / 1e3,
        median.as_nanos() as f64 / pairs as f64
    );
}

fn main() {
    let dir = std::env::temp_dir().join(format!("scan-cost-{}", std::process::id()));
    let backend = Arc::new(LsmBackend::open(LsmOptions::new(&dir), Arc::new(NoLog)).expect("opens"));
    let machine = Machine::open(Arc::clone(&backend) as Arc<dyn Backend>, MachineOptions::default()).expect("opens");
    apply(&machine, |out| command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).expect("encodes"));
    for number in 0..KEYS {
        apply(&machine, |out| command::encode_put(out, KEYSPACE, &key(number), &[7; 200]).expect("encodes"));
    }
    for pairs in [1, 100, 500] {
        measure(&machine, "in memory", pairs);
    }
    backend.flush().expect("flushes");
    for pairs in [1, 100, 500] {
        measure(&machine, "flushed", pairs);
    }
    drop((machine, backend));
    std::fs::remove_dir_all(dir).expect("is removed");
}
