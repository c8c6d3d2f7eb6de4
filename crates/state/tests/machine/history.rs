//! Tests of deriving changes from the log: over random entries, from every mark, and below the floor.

use thalweg_state::{
    changes::{EntryCommits, KeyChange},
    machine::{LocalOutcome, Machine, MachineOptions},
};
use thalweg_types::{
    Index, KeyspaceId, Lsn, Revision,
    command::{
        self, Command, CommitBuilder, Expect, HistoryFloor, KeyspaceConfig, MoveTarget, OperationResult, Outcome,
        Transacted, Write,
    },
};

use crate::{
    support::{Bench, Kind, command as encoded, frame},
    workload::{Model, Rng, for_seeds},
};

type Changes = Vec<(u64, String)>;

/// Returns the changes that a commit with these bytes makes if it succeeds.
fn changes_of(bytes: &[u8], revision: Revision) -> Changes {
    let Ok(Command::Commit(commit)) = Command::decode(bytes) else { panic!("not a commit") };
    let changes = commit.writes().unwrap().filter_map(|write| match write.unwrap() {
        Write::Put { keyspace, key, value, .. } => Some(KeyChange::Put { keyspace, key, value }),
        Write::Delete { keyspace, key } => Some(KeyChange::Delete { keyspace, key }),
        _ => None,
    });
    changes.map(|change| (revision.0, format!("{change:?}"))).collect()
}

/// Returns the changes that a transaction with these bytes made.
fn changes_of_transaction(bytes: &[u8], done: &Transacted) -> Changes {
    let Ok(Command::Transaction(transaction)) = Command::decode(bytes) else { panic!("no transaction") };
    let [then, otherwise] = transaction.branches().unwrap();
    let operations = if done.failed.is_none() { then } else { otherwise };
    let change = |(operation, result): (_, &OperationResult)| {
        Some(match (operation, result) {
            (Write::Put { keyspace, key, value, .. }, _) => format!("{:?}", KeyChange::Put { keyspace, key, value }),
            (Write::Delete { keyspace, key }, _) => format!("{:?}", KeyChange::Delete { keyspace, key }),
            (Write::DeletePrefix { keyspace, prefix }, _) => {
                format!("{:?}", KeyChange::DeletePrefix { keyspace, prefix })
            }
            (Write::Add { keyspace, key, .. }, OperationResult::Added { value }) => {
                format!("{:?}", KeyChange::Put { keyspace, key, value: value.to_string().as_bytes() })
            }
            _ => return None,
        })
    };
    let changes = operations.map(|operation| operation.unwrap()).zip(&done.results).filter_map(change);
    changes.map(|change| (done.revision.0, change)).collect()
}

/// Reads the log from the mark at which a reader of `from` begins.
fn read_from(bench: &Bench, machine: &Machine, from: Revision) -> Changes {
    let mark = machine.history_mark(Revision(from.0 - 1)).unwrap().expect("the log is whole");
    assert!(mark.revision < from);
    let verdicts = machine.verdicts(mark.index, usize::MAX, usize::MAX).unwrap();
    assert_eq!(verdicts.through, machine.applied().index);
    let mut changes = Changes::new();
    let mut revision = mark.revision;
    for record in &bench.log.records[mark.lsn.0 as usize..] {
        let Kind::Entry { index, .. } = record.kind else { continue };
        let verdict = verdicts.rows.iter().find(|(at, _)| *at == index).map(|(_, row)| &row[..]);
        let mut commits = EntryCommits::new(&record.payload, verdict, revision);
        while let Some(commit) = commits.next_commit().unwrap() {
            commit.visit(&mut |change| changes.push((commit.revision.0, format!("{change:?}")))).unwrap();
        }
        revision = commits.revision();
    }
    assert_eq!(revision, machine.applied().revision, "revisions are counted exactly");
    changes.retain(|(revision, _)| *revision >= from.0);
    changes
}

fn workload(seed: u64, entries: usize) -> (Bench, Changes) {
    let mut rng = Rng(seed);
    let mut bench = Bench::new(MachineOptions { inline_value_bytes: 16 });
    let mut model = Model::default();
    let mut expected = Changes::new();
    for _ in 0..entries {
        let (time, commands) = model.entry(&mut rng);
        let commands: Vec<_> = commands.into_iter().map(|(command, _)| command).collect();
        for (outcome, command) in bench.run(time.0, &commands).iter().zip(&commands) {
            match outcome {
                Outcome::Committed { revision, .. } => expected.extend(changes_of(command, *revision)),
                Outcome::Transacted(done) if done.wrote => expected.extend(changes_of_transaction(command, done)),
                Outcome::Dropped { revision } => {
                    let Ok(Command::DropKeyspace { keyspace }) = Command::decode(command) else { panic!("no drop") };
                    expected.push((revision.0, format!("{:?}", KeyChange::DeletePrefix { keyspace, prefix: b"" })));
                }
                _ => {}
            }
        }
    }
    (bench, expected)
}

#[test]
fn what_the_log_tells_is_what_happened_from_any_revision() {
    for_seeds(4, |seed| {
        let (bench, expected) = workload(seed, 1500);
        let last = bench.machine.applied().revision.0;
        assert!(last > 300 && expected.len() > 100, "the workload does something");
        let verdicts = bench.machine.verdicts(Index(0), usize::MAX, usize::MAX).unwrap();
        assert!(!verdicts.rows.is_empty(), "some commits are rejected");
        for from in [1, 2, last / 3, last / 2, last, last + 1] {
            let wanted: Changes = expected.iter().filter(|(revision, _)| *revision >= from).cloned().collect();
            assert_eq!(read_from(&bench, &bench.machine, Revision(from)), wanted, "from {from}");
        }
    });
}

#[test]
fn commits_that_succeed_leave_no_rows() {
    let mut bench = Bench::new(MachineOptions::default());
    bench.run(1, &[encoded(|out| command::encode_create_keyspace(out, "ks", &KeyspaceConfig::default()).unwrap())]);
    let rows = |bench: &Bench| bench.backend.dump().keys().filter(|key| [0x0b, 0x0c].contains(&key[0])).count();
    let put = encoded(|out| command::encode_put(out, KeyspaceId(1), b"key", b"value").unwrap());
    let mut commit = CommitBuilder::new();
    commit.expect(KeyspaceId(1), b"key", Expect::Present).unwrap().delete(KeyspaceId(1), b"key").unwrap();
    bench.run(1, &[put, encoded(|out| commit.encode(out))]);
    assert_eq!(rows(&bench), 1, "the mark of revision 0");
    bench.run(1, &[encoded(|out| commit.encode(out))]);
    assert_eq!(rows(&bench), 2, "the refusal");
}

#[test]
fn verdicts_come_in_bounded_pieces() {
    let (bench, _) = workload(3, 400);
    let all = bench.machine.verdicts(Index(0), usize::MAX, usize::MAX).unwrap();
    let (mut pieces, mut from) = (Vec::new(), Index(0));
    loop {
        let piece = bench.machine.verdicts(from, 3, usize::MAX).unwrap();
        assert!(piece.rows.len() <= 3);
        pieces.extend(piece.rows);
        from = piece.through.next();
        if piece.through == bench.machine.applied().index {
            break;
        }
        assert_eq!(pieces.last().unwrap().0, piece.through);
    }
    assert_eq!(pieces, all.rows);
}

#[test]
fn raising_the_floor_forgets_rows_below_in_bounded_steps() {
    let (mut bench, expected) = workload(5, 1200);
    let begin = bench.machine.history_begin(Lsn(600)).unwrap().expect("marks are at most 256 records apart");
    assert!(begin.lsn >= Lsn(600) && begin.lsn < Lsn(600 + 257));
    let floor = HistoryFloor { revision: begin.revision, index: begin.index };
    let rows = |bench: &Bench| {
        let below = |key: &[u8]| match key[0] {
            0x0b => key.len() == 9 && key[1..] < floor.index.0.to_be_bytes()[..],
            0x0c => key[1..] < floor.revision.0.to_be_bytes()[..],
            _ => false,
        };
        bench.backend.dump().keys().filter(|key| below(key)).count() as u32
    };
    let before = rows(&bench);
    assert!(before > 10);
    let mut forgotten = 0;
    loop {
        let moved = bench.local(&MoveTarget::HistoryFloor { floor, max: 7 });
        let LocalOutcome::SegmentForgotten { rows, more } = moved else { panic!("{moved:?}") };
        forgotten += rows;
        assert!(rows <= 7);
        assert_eq!(bench.machine.history_floor().unwrap(), floor, "the first step raises the floor");
        assert_eq!(bench.machine.history_mark(Revision(floor.revision.0 - 1)).unwrap(), None);
        if !more {
            break;
        }
    }
    assert_eq!((forgotten, rows(&bench)), (before, 0));
    bench.reopen();
    assert_eq!(bench.machine.history_floor().unwrap(), floor);
    assert_eq!(bench.machine.history_begin(Lsn(0)).unwrap(), Some(begin));
    let from = Revision(floor.revision.0 + 1);
    let wanted: Changes = expected.into_iter().filter(|(revision, _)| *revision >= from.0).collect();
    assert_eq!(read_from(&bench, &bench.machine, from), wanted);
}

#[test]
fn a_floor_never_goes_back_nor_beyond_what_is_applied() {
    let (mut bench, _) = workload(7, 300);
    let applied = bench.machine.applied();
    let mut raise = |revision, index| {
        let floor = HistoryFloor { revision: Revision(revision), index: Index(index) };
        bench.local(&MoveTarget::HistoryFloor { floor, max: 1000 });
        bench.machine.history_floor().unwrap()
    };
    let high = HistoryFloor { revision: applied.revision, index: applied.index.next() };
    assert_eq!(raise(u64::MAX, u64::MAX), high);
    assert_eq!(raise(1, 1), high);
}

#[test]
fn an_entry_that_breaks_off_tells_what_came_before() {
    let mut bench = Bench::new(MachineOptions::default());
    bench.run(1, &[encoded(|out| command::encode_create_keyspace(out, "ks", &KeyspaceConfig::default()).unwrap())]);
    let put = |key: &[u8]| encoded(|out| command::encode_put(out, KeyspaceId(1), key, b"v").unwrap());
    let mut payload = frame(&[put(b"a"), vec![99], put(b"b")]);
    payload.extend_from_slice(b"\xff\xff\xff\xff");
    let record = bench.log.entry(&payload, thalweg_types::SpaceTime(2));
    crate::support::apply(&bench.machine, &record);
    let changes = read_from(&bench, &bench.machine, Revision(1));
    assert_eq!(changes.iter().map(|(revision, _)| *revision).collect::<Vec<_>>(), [1, 2]);
}
