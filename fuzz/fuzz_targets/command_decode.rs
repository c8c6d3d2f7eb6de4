//! Entry payloads, moves and record batches made of the input, through the state machine.
//!
//! The state is a memory backend with a keyspace, values in the log and a stream, so that decoded ids
//! mean something. Never a panic; what was applied can be read; the same entries give the same state.

#![no_main]

use std::{ops::ControlFlow, sync::Arc};

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::{Input, NoLog, disk_with};
use thalweg_state::{
    backend::Backend,
    keyspaces::ScanRange,
    machine::{Entry, Machine, MachineOptions, Moved},
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Generation, KeyspaceId, LogPosition, Lsn, Offset, SpaceTime, StreamId, Term,
    command::{
        Command, CommandError, Commands, Framed, KeyspaceConfig, Move, Outcome, StreamConfig, encode_append, encode_create_keyspace,
        encode_create_stream, encode_put,
    },
    record::{Record, RecordBatch, Records},
};

struct Bench {
    machine: Machine,
    backend: Arc<dyn Backend>,
}

const AT: LogPosition = LogPosition { generation: Generation(1), offset: 8192 };

impl Bench {
    fn new() -> Self {
        let backend = MemoryBackend::open(disk_with("", &[]), MemoryOptions::default(), Arc::new(NoLog));
        let backend: Arc<dyn Backend> = Arc::new(backend.expect("an empty disk"));
        let options = MachineOptions { inline_value_bytes: 16 };
        let machine = Machine::open(backend.clone(), options).expect("an empty state");
        let bench = Self { machine, backend };
        bench.command(|out| encode_create_keyspace(out, "k", &KeyspaceConfig::default()));
        bench.command(|out| encode_create_stream(out, "s", &StreamConfig::default()));
        bench.command(|out| encode_put(out, KeyspaceId(1), b"key", &[7; 64]));
        bench.command(|out| {
            let mut batch = RecordBatch::new();
            let record = Record { key: Some(b"k"), headers: Vec::new(), ..Record::default() };
            batch.push(&record).expect("a small record");
            encode_append(out, StreamId(1), None, &batch);
            Ok(())
        });
        bench
    }

    fn command(&self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) {
        let mut framed = Framed::new();
        framed.encode(encode).expect("a valid command");
        self.entry(framed.bytes());
    }

    fn entry(&self, payload: &[u8]) -> Vec<Outcome> {
        let applied = self.machine.applied();
        let entry = Entry {
            term: Term(1),
            index: applied.index.next(),
            time: SpaceTime(applied.time.0 + 1),
            payload,
            at: AT,
            next_lsn: applied.lsn.next(),
        };
        let mut outcomes = Vec::new();
        self.machine.apply(&entry, &mut outcomes).expect("no entry stops the machine");
        assert_eq!(outcomes.len(), Commands::new(payload).count(), "one outcome a command");
        outcomes
    }

    fn relocate(&self, payload: &[u8]) -> Moved {
        let lsn = self.machine.applied().lsn;
        self.machine.apply_move(payload, AT, Lsn(lsn.0 + 1)).expect("no move stops the machine")
    }

    fn read_all(&self) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        for (id, name) in self.machine.keyspaces() {
            seen.push(name.as_bytes().to_vec());
            let scanned = self.machine.snapshot().scan(id, &ScanRange::default(), &mut |pair| {
                seen.push(format!("{pair:?}").into_bytes());
                ControlFlow::Continue(())
            });
            scanned.expect("what was applied can be read");
        }
        for info in self.machine.streams() {
            let found = self.machine.batches_from(info.id, info.start, 1000, u64::MAX);
            seen.push(format!("{info:?} {found:?}").into_bytes());
            let _ = self.machine.offset_at_or_after(info.id, SpaceTime(2));
            let _ = self.machine.batches_from(info.id, Offset(u64::MAX), 1, 1);
        }
        self.machine.retention_due(SpaceTime(u64::MAX)).expect("figures can be read");
        let _ = self.machine.reclaim_due();
        let _ = self.machine.liveness();
        seen
    }
}

/// Frames the input's bytes as commands, so that what is behind the framing is reached.
fn framed(input: &mut Input<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..=input.byte() % 4 {
        let command = input.bytes();
        payload.extend_from_slice(&(command.len() as u32).to_le_bytes());
        payload.extend_from_slice(command);
    }
    payload
}

fuzz_target!(|data: &[u8]| {
    let _ = Command::decode(data);
    let _ = Command::has_conditions(data);
    let _ = Move::decode(data);
    let mut records = Records::new(data);
    while records.skip_one().is_some_and(|skipped| skipped.is_ok()) {}
    Records::new(data).take_while(Result::is_ok).for_each(drop);

    let mut input = Input(data);
    let (one, two) = (Bench::new(), Bench::new());
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => {
                let payload = input.bytes();
                assert_eq!(one.entry(payload), two.entry(payload));
            }
            1 | 2 => {
                let payload = framed(&mut input);
                assert_eq!(one.entry(&payload), two.entry(&payload));
            }
            _ => {
                let payload = input.bytes();
                assert_eq!(one.relocate(payload), two.relocate(payload));
            }
        }
    }
    assert_eq!(one.read_all(), two.read_all(), "the machine is deterministic");
    let again = Machine::open(one.backend.clone(), MachineOptions { inline_value_bytes: 16 });
    let again = Bench { machine: again.expect("what was applied opens"), backend: one.backend.clone() };
    assert_eq!(one.read_all(), again.read_all(), "the same state after reopening");
});
