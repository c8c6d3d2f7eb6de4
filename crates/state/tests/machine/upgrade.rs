//! Tests of versions of the state machine: commands that need a version, and raising the version in force.

use thalweg_state::{
    digest::state_digest,
    machine::{Entry, KNOWN_VERSION, Machine, MachineError, MachineOptions},
};
use thalweg_store::Backend;
use thalweg_types::{
    Action, Classified, KeyspaceId, Revision, SpaceTime, Term,
    command::{self, KeyspaceConfig, Outcome},
};

use crate::support::{Bench, Kind, LogRecord, MapBackend, apply, command, frame};

/// Creates a machine like that of a binary that supports versions up to `known`.
fn knowing(known: u16) -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    reopen(&mut bench, known);
    bench
}

fn reopen(bench: &mut Bench, known: u16) {
    bench.backend = bench.backend.copy();
    bench.machine = Machine::open_with_version(bench.backend.clone(), bench.options, known).unwrap();
}

fn raise(to: u16) -> Vec<u8> {
    command(|out| command::encode_raise_version(out, to))
}

fn create(version: u16, name: &str) -> Vec<u8> {
    command(|out| {
        command::encode_versioned(out, version, |out| {
            command::encode_create_keyspace(out, name, &KeyspaceConfig::default()).unwrap();
        });
    })
}

fn put(version: u16) -> Vec<u8> {
    command(|out| {
        command::encode_versioned(out, version, |out| command::encode_put(out, KeyspaceId(1), b"k", b"v").unwrap());
    })
}

fn try_apply(machine: &Machine, record: &LogRecord) -> Result<Vec<Outcome>, MachineError> {
    let Kind::Entry { index, time } = record.kind else { panic!("no entry") };
    let mut outcomes = Vec::new();
    let (payload, at, next_lsn) = (&record.payload[..], record.at, record.next_lsn);
    machine.apply(&Entry { term: Term(1), index, time, payload, at, next_lsn }, &mut outcomes)?;
    Ok(outcomes)
}

#[test]
fn a_new_space_is_of_the_first_version_until_a_command_raises_it() {
    let mut bench = knowing(3);
    assert_eq!((bench.machine.version_in_force(), bench.machine.known_version()), (1, 3));
    let outcomes = bench.run(1, &[create(2, "early"), raise(2), create(2, "a"), create(3, "late"), raise(1), put(2)]);
    let refused = |needed, in_force| Outcome::VersionNotInForce { needed, in_force };
    let expected = [
        refused(2, 1),
        Outcome::Version { in_force: 2 },
        Outcome::Keyspace { id: KeyspaceId(1), created: true },
        refused(3, 2),
        Outcome::Version { in_force: 2 },
        Outcome::Committed { revision: Revision(1), appends: vec![] },
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(bench.machine.version_in_force(), 2);
    reopen(&mut bench, 2);
    assert_eq!((bench.machine.version_in_force(), bench.machine.known_version()), (2, 2));
    assert_eq!(bench.machine.applied().revision, Revision(1), "a rejected commit uses no revision");
}

#[test]
fn all_that_know_a_version_agree_on_what_is_refused() {
    let mut bench = knowing(2);
    let others = [3, 9].map(|known| {
        let backend = MapBackend::of(Default::default(), None);
        (backend.clone(), Machine::open_with_version(backend, MachineOptions::default(), known).unwrap())
    });
    for commands in [vec![create(1, "k"), create(2, "no"), put(1)], vec![raise(2), create(2, "yes")], vec![put(2)]] {
        let record = bench.log.entry(&frame(&commands), SpaceTime(1));
        let (outcomes, _) = apply(&bench.machine, &record);
        for (backend, machine) in &others {
            assert_eq!(apply(machine, &record).0, outcomes);
            assert_eq!(backend.dump(), bench.backend.dump());
            assert_eq!(machine.applied(), bench.machine.applied());
        }
    }
}

#[test]
fn a_node_that_does_not_know_the_version_stops_and_goes_on_after_its_upgrade() {
    for unknown in [vec![create(1, "k"), create(3, "a")], vec![create(1, "k"), raise(3)]] {
        let mut bench = knowing(2);
        bench.run(1, &[create(1, "first")]);
        let before = (bench.backend.dump(), bench.backend.applied());
        let record = bench.log.entry(&frame(&unknown), SpaceTime(2));
        let error = try_apply(&bench.machine, &record).unwrap_err();
        assert_eq!((error.action(), error.code()), (Action::Stop, "needs_upgrade"));
        let text = error.to_string();
        for part in ["entry 2 ", "version 3", "up to 2", "upgrade this node", "nothing of the entry was applied"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        assert_eq!((bench.backend.dump(), bench.backend.applied()), before);
        let again = try_apply(&bench.machine, &record).unwrap_err();
        assert!(matches!(again, MachineError::Stopped), "{again}");
        reopen(&mut bench, 2);
        assert!(matches!(try_apply(&bench.machine, &record), Err(MachineError::EntryNeedsUpgrade { .. })));
        reopen(&mut bench, 3);
        assert_eq!(try_apply(&bench.machine, &record).unwrap().len(), 2);
    }
}

#[test]
fn a_state_of_an_unknown_version_is_not_opened() {
    let mut bench = knowing(7);
    bench.run(1, &[raise(7)]);
    let error = Machine::open_with_version(bench.backend.copy(), bench.options, 6).unwrap_err();
    assert!(matches!(error, MachineError::StateNeedsUpgrade { in_force: 7, known: 6, .. }), "{error}");
    assert_eq!((error.action(), error.code()), (Action::Stop, "needs_upgrade"));
    let as_it_is = Machine::open(bench.backend.copy(), bench.options);
    assert_eq!(as_it_is.is_ok(), KNOWN_VERSION >= 7);
}

#[test]
fn an_unknown_kind_without_a_wrapper_is_malformed_for_every_version() {
    for known in [1, 2, 9] {
        let mut bench = knowing(known);
        let outcomes = bench.run(1, &[vec![0x7f, 1, 2], vec![0xfe, 1, 0, 11], vec![0xfe], create(1, "k")]);
        assert!(outcomes[..3].iter().all(|outcome| matches!(outcome, Outcome::Malformed(_))), "{outcomes:?}");
        assert!(matches!(outcomes[3], Outcome::Keyspace { .. }));
    }
}

fn digest_command(id: u64) -> Vec<u8> {
    command(|out| command::encode_digest(out, id))
}

#[test]
fn a_digest_command_keeps_the_state_as_of_the_end_of_its_entry() {
    let mut bench = knowing(1);
    bench.run(1, &[create(1, "k")]);
    assert!(bench.machine.take_digest_view(7).is_none());
    assert_eq!(
        bench.run(2, &[digest_command(7), put(1)]),
        [Outcome::Done, Outcome::Committed { revision: Revision(1), appends: vec![] }]
    );
    let at_the_end = bench.machine.applied();
    let expected = state_digest(&*bench.backend.view(), &mut |_| {}).unwrap();
    bench.run(3, &[put(1), put(1)]);
    assert!(bench.machine.take_digest_view(8).is_none(), "another id");
    let view = bench.machine.take_digest_view(7).unwrap();
    assert_eq!(view.applied(), at_the_end);
    assert_eq!(state_digest(&*view, &mut |_| {}).unwrap(), expected);
    assert!(bench.machine.take_digest_view(7).is_none(), "the view was already taken");
}

#[test]
fn at_most_one_view_is_kept() {
    let mut bench = knowing(1);
    bench.run(1, &[digest_command(1), digest_command(2)]);
    bench.run(2, &[digest_command(3)]);
    assert!(bench.machine.take_digest_view(1).is_none());
    assert!(bench.machine.take_digest_view(2).is_none());
    let view = bench.machine.take_digest_view(3).unwrap();
    drop(view);
    bench.run(3, &[digest_command(4)]);
    bench.machine.drop_digest_view();
    assert!(bench.machine.take_digest_view(4).is_none());
}
