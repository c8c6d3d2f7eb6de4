//! Tests with invalid bytes in the log and in the state.

use std::ops::ControlFlow;

use thalweg_state::{
    keyspaces::ScanRange,
    machine::{Entry, Machine, MachineError, MachineOptions, StreamReadError},
};
use thalweg_store::{Applied, Backend};
use thalweg_types::{
    Generation, Index, KeyspaceId, LogPosition, Lsn, Offset, Revision, SpaceTime, StreamId, Term,
    command::{self, HistoryFloor, MoveTarget},
};

use crate::{
    support::{Bench, Map, MapBackend, apply, command as encoded, frame},
    workload::{Model, Rng, for_seeds},
};

const AT: LogPosition = LogPosition { generation: Generation(1), offset: 4096 };

fn bench(seed: u64, entries: usize) -> (Bench, Model, Rng) {
    let mut rng = Rng(seed);
    let mut bench = Bench::new(MachineOptions { inline_value_bytes: 16 });
    let mut model = Model::default();
    for _ in 0..entries {
        let (time, commands) = model.entry(&mut rng);
        let commands: Vec<_> = commands.into_iter().map(|(command, _)| command).collect();
        let record = bench.log.entry(&frame(&commands), time);
        apply(&bench.machine, &record);
    }
    (bench, model, rng)
}

fn apply_garbage(machine: &Machine, payload: &[u8]) {
    let Applied { lsn, index, time, .. } = machine.applied();
    let next_lsn = Lsn(lsn.0 + 1);
    let entry = Entry { term: Term(1), index: Index(index.0 + 1), time, payload, at: AT, next_lsn };
    machine.apply(&entry, &mut Vec::new()).unwrap();
    machine.apply_move(payload, AT, Lsn(lsn.0 + 2)).unwrap();
}

/// Reads the whole state. Errors are permitted, panics are not.
fn read_all(machine: &Machine) -> Result<(), MachineError> {
    let mut result = Ok(());
    let mut note = |outcome: Result<(), MachineError>| {
        if outcome.is_err() {
            result = outcome;
        }
    };
    for (id, _) in machine.keyspaces() {
        note(machine.read_view().scan(id, &ScanRange::default(), |_| ControlFlow::Continue(())));
        note(machine.get(id, b"a").map(|_| ()));
    }
    for info in machine.streams() {
        let other = |error: StreamReadError| match error {
            StreamReadError::Machine(error) => Err(error),
            _ => Ok(()),
        };
        note(machine.batches_from(info.id, info.start, 100, u64::MAX).map(|_| ()).or_else(other));
        note(machine.offset_at_or_after(info.id, SpaceTime(50)).map(|_| ()).or_else(other));
    }
    note(machine.retention_due(SpaceTime(u64::MAX)).map(|_| ()));
    result
}

#[test]
fn random_bytes_as_entries_and_moves_are_harmless() {
    for_seeds(4, |seed| {
        let (bench, _, mut rng) = bench(seed, 50);
        for _ in 0..500 {
            let len = rng.below(80);
            let mut payload = rng.bytes(len);
            if rng.below(2) == 0 {
                let inner = payload.len().saturating_sub(4) as u32;
                payload.iter_mut().zip(inner.to_le_bytes()).for_each(|(byte, of)| *byte = of);
                // Restricts the bytes to likely kinds and small ids.
                payload.iter_mut().skip(4).for_each(|byte| *byte %= 8);
            }
            apply_garbage(&bench.machine, &payload);
        }
        read_all(&bench.machine).unwrap();
        Machine::open(bench.backend.copy(), bench.options).unwrap();
    });
}

#[test]
fn flipped_bits_and_cuts_of_entries_are_harmless() {
    for_seeds(2, |seed| {
        let (bench, mut model, mut rng) = bench(seed, 50);
        for _ in 0..10 {
            let (_, commands) = model.entry(&mut rng);
            let commands: Vec<_> = commands.into_iter().map(|(command, _)| command).collect();
            let stream = StreamId(1 + rng.below(4) as u32);
            let floor = HistoryFloor { revision: Revision(rng.next()), index: Index(rng.next()) };
            let payloads = [
                frame(&commands),
                MoveTarget::Reclaimed { stream, max: rng.next() as u32 }.encode_alone(),
                MoveTarget::HistoryFloor { floor, max: rng.next() as u32 }.encode_alone(),
            ];
            payloads.iter().for_each(|payload| flip_and_cut(&bench.machine, payload));
        }
        read_all(&bench.machine).unwrap();
        Machine::open(bench.backend.copy(), bench.options).unwrap();
    });
}

fn flip_and_cut(machine: &Machine, payload: &[u8]) {
    for cut in 0..payload.len() {
        apply_garbage(machine, &payload[..cut]);
    }
    for bit in 0..payload.len() * 8 {
        let mut flipped = payload.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        apply_garbage(machine, &flipped);
    }
}

/// Opens a damaged map and runs every kind of read and write on it.
fn use_damaged(map: Map, applied: Option<Applied>) -> Result<(), MachineError> {
    let machine = Machine::open(MapBackend::of(map, applied), MachineOptions::default())?;
    let result = read_all(&machine);
    for stream in 1..4 {
        let maintain = [
            encoded(|out| {
                command::encode_trim_stream(out, StreamId(stream), Offset(3));
            }),
            encoded(|out| command::encode_forget_producers(out, StreamId(stream), 100)),
            encoded(|out| {
                let mut commit = command::CommitBuilder::new();
                commit.expect(KeyspaceId(1), b"a", command::Expect::Absent).unwrap();
                commit.encode(out);
            }),
            encoded(|out| {
                let config = command::StreamConfig::default();
                command::encode_create_stream(out, "another", &config).unwrap();
            }),
        ];
        let Applied { lsn, index, time, .. } = machine.applied();
        let payload = &frame(&maintain)[..];
        let entry = Entry { term: Term(1), index: Index(index.0 + 1), time, payload, at: AT, next_lsn: Lsn(lsn.0 + 1) };
        machine.apply(&entry, &mut Vec::new())?;
        let reclaimed = MoveTarget::Reclaimed { stream: StreamId(stream), max: 100 };
        machine.apply_move(&reclaimed.encode_alone(), AT, Lsn(lsn.0 + 2))?;
    }
    result
}

#[test]
fn damaged_rows_of_the_state_are_typed_errors_or_other_data() {
    for_seeds(3, |seed| {
        let (bench, _, mut rng) = bench(seed, 60);
        let (map, applied) = (bench.backend.dump(), bench.backend.applied());
        use_damaged(map.clone(), applied).unwrap();
        let mut errors = 0;
        for (key, row) in &map {
            let mut damaged = map.clone();
            damaged.remove(key);
            errors += usize::from(use_damaged(damaged, applied).is_err());
            for at in 0..row.len() {
                let mut damaged = map.clone();
                let byte = &mut damaged.get_mut(key).unwrap()[at];
                *byte ^= 1 << rng.below(8);
                errors += usize::from(use_damaged(damaged, applied).is_err());
                let mut damaged = map.clone();
                damaged.get_mut(key).unwrap().truncate(at);
                errors += usize::from(use_damaged(damaged, applied).is_err());
            }
            let mut damaged = map.clone();
            let row = damaged.remove(key).unwrap();
            damaged.insert([key, b"x".as_slice()].concat(), row);
            errors += usize::from(use_damaged(damaged, applied).is_err());
        }
        assert!(errors > map.len(), "most damage is detected: {errors} of {} rows", map.len());
    });
}
