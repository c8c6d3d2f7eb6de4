//! Cost of `Machine::apply` without a backend, in nanoseconds per command, for entries of several *shapes*: kinds and
//! numbers of commands.
//!
//! `cargo run --release -p thalweg-state --example machine_cost [WORDS]`. With the argument `WORDS`, it measures only
//! the shapes whose names contain this text or begin with `create`.

#![allow(clippy::print_stdout)]

use std::{ops::Bound, sync::Arc, time::Instant};

use bytes::Bytes;
use thalweg_state::machine::{Entry, Machine, MachineOptions};
use thalweg_store::{Applied, Backend, BackendError, BackendStats, Direction, View, Visit, WriteBatch};
use thalweg_types::{
    Generation, Index, KeyspaceId, LogPosition, Lsn, SpaceTime, StreamId, Term,
    command::{self, CommitBuilder, Expect, KeyspaceConfig, StreamConfig},
    record::RecordBatch,
};

/// A backend that accepts all batches and discards them.
#[derive(Debug)]
struct Nothing;

impl Backend for Nothing {
    fn apply(&self, batch: &WriteBatch, _: Applied) -> Result<(), BackendError> {
        std::hint::black_box(batch);
        Ok(())
    }
    fn applied(&self) -> Option<Applied> {
        None
    }
    fn persisted(&self) -> Option<Applied> {
        None
    }
    fn get(&self, _: &[u8]) -> Result<Option<Bytes>, BackendError> {
        Ok(None)
    }
    fn view(&self) -> Arc<dyn View> {
        Arc::new(Self)
    }
    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        Ok(None)
    }
    fn maintain(&self) -> Result<(), BackendError> {
        Ok(())
    }
    fn stats(&self) -> BackendStats {
        BackendStats::default()
    }
    fn name(&self) -> &'static str {
        "nothing"
    }
}

impl View for Nothing {
    fn get(&self, _: &[u8]) -> Result<Option<Bytes>, BackendError> {
        Ok(None)
    }
    fn scan(&self, _: Bound<&[u8]>, _: Bound<&[u8]>, _: Direction, _: &mut Visit<'_>) -> Result<(), BackendError> {
        Ok(())
    }
    fn applied(&self) -> Applied {
        Applied::default()
    }
}

fn entry_of(commands: usize, encode: impl Fn(usize, &mut Vec<u8>)) -> Vec<u8> {
    let mut payload = Vec::new();
    for number in 0..commands {
        let at = payload.len();
        payload.extend_from_slice(&[0; 4]);
        encode(number, &mut payload);
        let len = (payload.len() - at - 4) as u32;
        payload[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
    payload
}

fn measure(machine: &Machine, what: &str, commands: usize, encode: impl Fn(usize, &mut Vec<u8>)) {
    const COMMANDS: usize = 2_000_000;
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if !what.contains(&wanted) && !what.starts_with("create") {
        return;
    }
    let payload = entry_of(commands, encode);
    let entries = (COMMANDS / commands).min(200_000);
    let mut outcomes = Vec::new();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..entries {
            outcomes.clear();
            let next_lsn = Lsn(machine.applied().lsn.0 + 1);
            let at = LogPosition { generation: Generation(1), offset: 4096 };
            let index = Index(next_lsn.0);
            let entry = Entry { term: Term(1), index, time: SpaceTime(next_lsn.0), payload: &payload, at, next_lsn };
            machine.apply(&entry, &mut outcomes).expect("applies");
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (entries * commands) as f64);
    }
    println!("{what:44} {commands:5} commands an entry {best:8.1} ns a command");
}

fn main() {
    let machine = Machine::open(Arc::new(Nothing), MachineOptions::default()).expect("opens");
    measure(&machine, "create keyspace and stream", 2, |number, out| match number {
        0 => command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).expect("encodes"),
        _ => command::encode_create_stream(out, "s", &StreamConfig::default()).expect("encodes"),
    });
    let (keyspace, stream) = (KeyspaceId(1), StreamId(1));
    let key = |number: usize| format!("key{number:011}").into_bytes();
    for commands in [1, 10, 100, 1000] {
        let put = |number, out: &mut Vec<u8>| {
            command::encode_put(out, keyspace, &key(number), &[7; 100]).expect("encodes");
        };
        measure(&machine, "blind put, 14 B key, 100 B value", commands, put);
    }
    measure(&machine, "blind put, 14 B key, 8 KiB value in the log", 100, |number, out| {
        command::encode_put(out, keyspace, &key(number), &[7; 8192]).expect("encodes");
    });
    measure(&machine, "put if absent", 100, |number, out| {
        let mut commit = CommitBuilder::new();
        commit.expect(keyspace, &key(number), Expect::Absent).expect("fits");
        commit.put(keyspace, &key(number), &[7; 100]).expect("fits");
        commit.encode(out);
    });
    for (records, commands) in [(1, 1), (1, 100), (100, 1), (100, 10)] {
        let mut batch = RecordBatch::new();
        (0..records).for_each(|_| batch.push_payload(&[7; 1000]).expect("fits"));
        let append = |_: usize, out: &mut Vec<u8>| command::encode_append(out, stream, None, &batch);
        measure(&machine, &format!("append of {records} x 1 KB"), commands, append);
    }
}
