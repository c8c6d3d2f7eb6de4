//! Tests of the space's group state: membership, vote, purged entries.

use std::collections::BTreeSet;

use bytes::Bytes;
use thalweg_state::{
    machine::{Machine, MachineError, MachineOptions},
    membership::{AppliedMembership, LogId},
};
use thalweg_store::{Applied, Backend};
use thalweg_types::{Index, Lsn, NodeId, SpaceTime, Term};

use crate::support::{Bench, Map, MapBackend};

const ID: LogId = LogId { term: Term(0x0102), index: Index(0x0304) };

fn applied(machine: &Machine) -> (u64, u64, u64, u64) {
    let Applied { lsn, term, index, time, .. } = machine.applied();
    (lsn.0, term.0, index.0, time.0)
}

#[test]
fn a_new_state_has_none() {
    let bench = Bench::new(MachineOptions::default());
    assert_eq!(bench.machine.membership().unwrap(), None);
    assert_eq!(bench.machine.vote().unwrap(), None);
    assert_eq!(bench.machine.purged().unwrap(), None);
}

#[test]
fn they_come_back_after_reopening() {
    let mut bench = Bench::new(MachineOptions::default());
    bench.machine.apply_membership(ID, SpaceTime(9), b"members", &BTreeSet::new(), Lsn(1)).unwrap();
    bench.machine.apply_vote(b"vote", Lsn(2)).unwrap();
    bench.machine.apply_purged(LogId { index: Index(7), ..ID }, Lsn(3)).unwrap();
    bench.reopen();
    let payload = Bytes::from_static(b"members");
    assert_eq!(
        bench.machine.membership().unwrap(),
        Some(AppliedMembership { id: ID, payload, removed: BTreeSet::new() })
    );
    assert_eq!(bench.machine.vote().unwrap().as_deref(), Some(b"vote".as_slice()));
    assert_eq!(bench.machine.purged().unwrap(), Some(LogId { index: Index(7), ..ID }));
}

#[test]
fn a_membership_is_an_entry_and_the_others_are_not() {
    let bench = Bench::new(MachineOptions::default());
    bench.machine.apply_membership(ID, SpaceTime(9), b"members", &BTreeSet::new(), Lsn(5)).unwrap();
    assert_eq!(applied(&bench.machine), (5, 0x0102, 0x0304, 9));
    bench.machine.apply_vote(b"vote", Lsn(6)).unwrap();
    bench.machine.apply_purged(LogId { term: Term(1), index: Index(1) }, Lsn(8)).unwrap();
    assert_eq!(applied(&bench.machine), (8, 0x0102, 0x0304, 9));
    let again = bench.machine.apply_vote(b"older", Lsn(8));
    assert!(matches!(again, Err(MachineError::AlreadyApplied { .. })), "{again:?}");
    assert_eq!(bench.machine.vote().unwrap().as_deref(), Some(b"vote".as_slice()));
}

#[test]
fn layouts_are_pinned() {
    let bench = Bench::new(MachineOptions::default());
    bench.machine.apply_membership(ID, SpaceTime(9), b"m", &BTreeSet::new(), Lsn(1)).unwrap();
    bench.machine.apply_vote(b"v", Lsn(2)).unwrap();
    bench.machine.apply_purged(ID, Lsn(3)).unwrap();
    let rows = bench.backend.dump();
    assert_eq!(rows[b"\x05\x01".as_slice()], b"\x02\x01\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0m");
    assert_eq!(rows[b"\x05\x02".as_slice()], b"v");
    assert_eq!(rows[b"\x05\x03".as_slice()], b"\x02\x01\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0");
}

#[test]
fn removed_nodes_are_remembered() {
    let mut bench = Bench::new(MachineOptions::default());
    let apply = |bench: &Bench, removed: &[u64], lsn| {
        let removed = removed.iter().map(|id| NodeId(*id)).collect();
        let id = LogId { term: Term(1), index: Index(lsn) };
        bench.machine.apply_membership(id, SpaceTime(9), b"m", &removed, Lsn(lsn)).unwrap();
    };
    apply(&bench, &[], 1);
    assert!(!bench.backend.dump().contains_key(b"\x05\x04".as_slice()));
    apply(&bench, &[0x0102], 2);
    apply(&bench, &[], 3);
    apply(&bench, &[7, 8], 4);
    bench.reopen();
    let row = bench.backend.dump()[b"\x05\x04".as_slice()].clone();
    assert_eq!(row, b"\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0");
    let removed = [7, 8, 0x0102].map(NodeId);
    assert_eq!(bench.machine.membership().unwrap().unwrap().removed, BTreeSet::from(removed));
    assert!(removed.into_iter().all(|node| bench.machine.is_removed(node).unwrap()));
    assert!(!bench.machine.is_removed(NodeId(9)).unwrap());
}

#[test]
fn rows_cut_short_are_corrupt() {
    let bench = Bench::new(MachineOptions::default());
    bench.machine.apply_membership(ID, SpaceTime(9), b"", &BTreeSet::from([NodeId(1)]), Lsn(1)).unwrap();
    bench.machine.apply_purged(ID, Lsn(2)).unwrap();
    let cut: Map = bench
        .backend
        .dump()
        .into_iter()
        .map(|(key, mut row)| {
            if key[0] == 5 {
                row.pop();
            }
            (key, row)
        })
        .collect();
    let machine = Machine::open(MapBackend::of(cut, bench.backend.applied()), bench.options).unwrap();
    assert!(matches!(machine.membership(), Err(MachineError::Corrupt { .. })));
    assert!(matches!(machine.purged(), Err(MachineError::Corrupt { .. })));
    assert!(matches!(machine.is_removed(NodeId(1)), Err(MachineError::Corrupt { .. })));
}
