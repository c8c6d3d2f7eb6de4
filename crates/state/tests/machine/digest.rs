//! Tests that the state digest depends on the entries, and on no node-local data.

use thalweg_state::{
    digest::{StateDigest, state_digest},
    keyspaces::StoredValue,
    machine::{LocalOutcome, Machine, MachineOptions},
};
use thalweg_store::Applied;
use thalweg_types::{KeyspaceId, command::MoveTarget};

use crate::{
    golden::fixed,
    support::{Bench, MapBackend, apply, frame},
    workload::{Model, Rng, for_seeds},
};

/// Computes the digest without the running hash, because some of these machines store shorter values in the log
/// than a real node does.
fn digest_of(machine: &Machine) -> StateDigest {
    let digest = state_digest(&*machine.backend().view(), &mut |_| {}).unwrap();
    StateDigest { applied: Applied { running_hash: 0, ..digest.applied }, ..digest }
}

#[test]
fn where_values_are_stored_does_not_show() {
    let in_log = digest_of(&fixed(MachineOptions { inline_value_bytes: 0 }).machine);
    let inline = digest_of(&fixed(MachineOptions { inline_value_bytes: 1 << 20 }).machine);
    assert_eq!(in_log, inline);
    assert!(in_log.rows > 20 && in_log.kinds.len() > 8, "{in_log:?}");
}

#[test]
fn random_entries_give_one_digest_whatever_stays_in_the_log() {
    for_seeds(8, |seed| {
        let (mut rng, mut model) = (Rng(seed), Model::default());
        let mut bench = Bench::new(MachineOptions { inline_value_bytes: 16 });
        let others = [0, 1 << 20].map(|inline_value_bytes| {
            bench.log.machine(MapBackend::of(Default::default(), None), MachineOptions { inline_value_bytes })
        });
        let mut last = None;
        for round in 0..200 {
            let (time, commands) = model.entry(&mut rng);
            let commands: Vec<_> = commands.into_iter().map(|(command, _)| command).collect();
            let record = bench.log.entry(&frame(&commands), time);
            apply(&bench.machine, &record);
            others.iter().for_each(|other| drop(apply(other, &record)));
            if round % 20 == 0 {
                let digest = digest_of(&bench.machine);
                others.iter().for_each(|other| assert_eq!(digest_of(other), digest));
                assert_ne!(Some(digest.digest), last, "entries change the digest");
                last = Some(digest.digest);
            }
        }
    });
}

#[test]
fn a_moved_value_does_not_show() {
    let mut bench = fixed(MachineOptions { inline_value_bytes: 0 });
    let before = digest_of(&bench.machine);
    let StoredValue::Blob(blob) = bench.machine.get(KeyspaceId(2), b"key").unwrap().unwrap().value else {
        panic!("inline")
    };
    let target = MoveTarget::Value { keyspace: KeyspaceId(2), key: b"key" };
    let bytes = bench.log.read(&blob);
    let record = bench.log.moved(&blob, &target, &bytes);
    assert_eq!(apply(&bench.machine, &record).1, Some(LocalOutcome::Applied));
    let after = digest_of(&bench.machine);
    assert_eq!((after.digest, after.rows, after.kinds), (before.digest, before.rows, before.kinds));
}
