//! Tests that the same log produces the same map, whatever the point from which replay begins.

use thalweg_state::machine::{LocalOutcome, MachineOptions};
use thalweg_store::Backend;

use crate::{
    support::{Bench, LogRecord, MapBackend, apply, frame},
    workload::{Model, Rng, for_seeds},
};

fn workload(seed: u64, options: MachineOptions) -> (Bench, Vec<std::sync::Arc<MapBackend>>) {
    let mut rng = Rng(seed);
    let mut bench = Bench::new(options);
    let mut model = Model::default();
    let mut copies = vec![bench.backend.copy()];
    for _ in 0..200 {
        let (time, commands) = model.entry(&mut rng);
        let commands: Vec<_> = commands.into_iter().map(|(command, _)| command).collect();
        let record = bench.log.entry(&frame(&commands), time);
        apply(&bench.machine, &record);
        if rng.below(4) == 0 {
            let (target, expected) = model.reclaim(&mut rng);
            assert_eq!(bench.local(&target), expected);
        }
        if rng.below(40) == 0 {
            copies.push(bench.backend.copy());
        }
    }
    (bench, copies)
}

fn rest<'a>(bench: &'a Bench, from: &MapBackend) -> &'a [LogRecord] {
    let applied = from.applied().unwrap_or_default().lsn.0 as usize;
    &bench.log.records[applied..]
}

#[test]
fn replay_from_any_older_state_gives_the_same_map() {
    for_seeds(8, |seed| {
        let (bench, copies) = workload(seed, MachineOptions { inline_value_bytes: 16 });
        let expected = bench.backend.dump();
        assert!(expected.len() > 20, "the workload does something");
        for copy in copies {
            let machine = bench.log.machine(copy.clone(), bench.options);
            for record in rest(&bench, &copy) {
                apply(&machine, record);
            }
            assert_eq!(copy.dump(), expected);
            assert_eq!(machine.applied(), bench.machine.applied());
            assert_eq!(machine.liveness(), bench.machine.liveness());
            assert_eq!(machine.streams(), bench.machine.streams());
        }
    });
}

#[test]
fn outcomes_do_not_depend_on_options_or_freed_segments() {
    for_seeds(8, |seed| {
        let (bench, _) = workload(seed, MachineOptions { inline_value_bytes: 16 });
        let [one, other] = [0, 1 << 20].map(|inline_value_bytes| {
            let backend = MapBackend::of(Default::default(), None);
            let machine = bench.log.machine(backend, MachineOptions { inline_value_bytes });
            let outcomes = |record| {
                if inline_value_bytes == 0 {
                    machine.liveness().iter().for_each(|(generation, _)| machine.forget_segment(*generation));
                }
                apply(&machine, record)
            };
            bench.log.records.iter().map(outcomes).collect::<Vec<_>>()
        });
        assert_eq!(one, other);
    });
}

#[test]
fn outcomes_do_not_depend_on_records_of_the_nodes_own_log() {
    for_seeds(8, |seed| {
        let (bench, _) = workload(seed, MachineOptions::default());
        let [with, without] = [(); 2].map(|()| {
            let backend = MapBackend::of(Default::default(), None);
            bench.log.machine(backend, bench.options)
        });
        let mut forgotten = 0;
        for record in &bench.log.records {
            let (outcomes, moved) = apply(&with, record);
            match moved {
                Some(LocalOutcome::SegmentForgotten { rows, .. }) => forgotten += rows,
                Some(_) => {}
                None => assert_eq!(apply(&without, record).0, outcomes),
            }
        }
        assert_eq!(with.streams(), without.streams());
        assert!(forgotten > 0, "one machine has deleted index entries that the other still has");
    });
}
