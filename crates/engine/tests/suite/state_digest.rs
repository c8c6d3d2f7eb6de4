//! Digests of the state, through the engine.

use std::sync::Arc;

use thalweg_disk::{RealDisk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, DigestReport, Options,
    snapshot::{Compression, Part, RestoreTo, SnapshotOptions, restore_on, survey},
    types::{Action, Classified, Durability},
};

use crate::common::{batch, block_on, clock, simulated, small};

/// Writes values inline and in the log, records, and a trim.
fn fill(db: &Database, from: u8) {
    let (keyspace, stream) = (db.keyspace("k").unwrap(), db.stream("s").unwrap());
    for number in from..from + 8 {
        let value = vec![number; if number % 3 == 0 { 400 } else { 20 }];
        keyspace.put(&[number % 5], &value).unwrap();
        stream.append(&batch(&[value])).unwrap();
    }
    stream.trim(stream.info().unwrap().start.next()).unwrap();
}

fn opened(options: Options) -> (SimDisk, Database) {
    let disk = SimDisk::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), clock(), 7, options).unwrap();
    (disk, db)
}

/// Parts of a report that replicas compare. The position in the own log and the id of the request are left out.
fn compared(report: &DigestReport) -> impl PartialEq + std::fmt::Debug {
    let state = &report.state;
    (state.applied.index, state.applied.revision, state.applied.running_hash, state.digest, state.kinds.clone())
}

#[test]
fn options_maintenance_and_restarts_do_not_show() {
    let base = small(BackendKind::Memory);
    let run = |inline_value_bytes, restarts: bool, maintained: bool| {
        let options = Options { inline_value_bytes, ..base.clone() };
        let (disk, mut db) = opened(options.clone());
        for from in [0, 8, 16] {
            fill(&db, from);
            if restarts {
                // Drop without closing, so that closing writes no entry.
                drop(db);
                db = Database::open_on(Arc::new(disk.clone()), clock(), 7, options.clone()).unwrap();
            }
            if maintained {
                db.flush().unwrap();
                assert!(db.maintain().unwrap().reclaimed_entries > 0, "rows that are local to the node are reclaimed");
            }
        }
        db.state_digest().unwrap()
    };
    let expected = run(256, false, false);
    assert!(expected.state.rows >= 8, "{expected:?}");
    assert_eq!(compared(&run(0, false, false)), compared(&expected));
    assert_eq!(compared(&run(1 << 20, false, false)), compared(&expected));
    assert_eq!(compared(&run(256, false, true)), compared(&expected));
    let restarted = [run(0, true, false), run(1 << 20, true, false), run(256, true, true)];
    assert_eq!(compared(&restarted[0]), compared(&restarted[1]));
    assert_eq!(compared(&restarted[0]), compared(&restarted[2]));
}

#[test]
fn a_digest_is_of_its_entry_and_the_last_one_is_kept() {
    let (_disk, db) = opened(small(BackendKind::Memory));
    assert_eq!(db.last_state_digest(), None);
    fill(&db, 0);
    let first = db.state_digest().unwrap();
    let before = db.stats();
    assert_eq!(first.state.applied.index, before.applied_index, "the command's entry is the last one");
    assert_eq!(first.state.applied.running_hash, before.running_hash);
    assert_eq!(db.last_state_digest(), Some(first.clone()));
    let again = db.state_view().digest(&mut |_| {}).unwrap();
    assert_eq!((again.state.digest, again.id), (first.state.digest, None));
    let under_way = block_on(db.to_async().state_view(Durability::Disk)).unwrap();
    let at = db.stats().applied_index;
    fill(&db, 8);
    let second = under_way.digest(&mut |_| {}).unwrap();
    assert_eq!((second.state.applied.index, second.state.digest), (at, first.state.digest), "writes go on");
    assert!(second.id > first.id);
    assert_eq!(db.last_state_digest(), Some(second));
    assert_ne!(db.state_digest().unwrap().state.digest, first.state.digest);
}

#[test]
fn every_backend_has_the_same_digest() {
    let digests = BackendKind::ALL.into_iter().filter(|kind| kind.is_built()).map(|kind| {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
            Database::open_on(disk, clock(), 7, small(kind)).unwrap()
        };
        let db = open();
        fill(&db, 0);
        let first = db.state_digest().unwrap();
        // Drop without closing: data that the backend has not stored is replayed.
        drop(db);
        let db = open();
        let again = db.state_view().digest(&mut |_| {}).unwrap();
        assert_eq!(compared(&again), compared(&first), "{kind:?}");
        (kind, first)
    });
    let digests: Vec<_> = digests.collect();
    for (kind, digest) in &digests[1..] {
        assert_eq!(compared(digest), compared(&digests[0].1), "{kind:?}");
    }
}

#[test]
fn of_two_digests_asked_for_at_once_the_older_is_given_up() {
    let (_disk, db) = opened(small(BackendKind::Memory));
    fill(&db, 0);
    let [older, newer] = [(); 2].map(|()| db.to_async().state_view(Durability::Disk));
    let newer = block_on(newer).unwrap().digest(&mut |_| {}).unwrap();
    let error = block_on(older).unwrap_err();
    assert_eq!((error.code(), error.action()), ("digest_superseded", Action::Retry), "{error}");
    assert_eq!(db.last_state_digest(), Some(newer));
}

#[test]
fn a_view_that_nobody_takes_is_dropped_after_some_rounds_of_maintenance() {
    let (_disk, db) = opened(small(BackendKind::Memory));
    fill(&db, 0);
    let asked = |rounds| {
        let view = db.to_async().state_view(Durability::Disk);
        let asked = db.stats().applied_index;
        // Write entries after that of the digest: once they are applied, the view exists.
        fill(&db, 0);
        assert!(db.stats().applied_index > asked);
        (0..rounds).for_each(|_| _ = db.maintain().unwrap());
        block_on(view)
    };
    asked(9).unwrap();
    assert_eq!(asked(11).unwrap_err().code(), "digest_superseded");
    asked(0).unwrap();
}

#[test]
fn a_restored_node_goes_on_with_the_running_hash() {
    let db = simulated(&SimDisk::new(1), 5);
    fill(&db, 0);
    let take = |since| {
        let options = SnapshotOptions { since, compression: Compression::None, ..SnapshotOptions::default() };
        db.snapshot(&options).unwrap().into_bytes().unwrap()
    };
    let full = take(None);
    let since = survey(&full[..]).unwrap().info.applied.lsn;
    fill(&db, 8);
    let increment = take(Some(since));
    let parts = [Part::bytes("full", full), Part::bytes("increment", increment)];
    let disk: Arc<dyn thalweg_disk::Disk> = Arc::new(SimDisk::new(2));
    let clock: Arc<dyn thalweg_engine::types::Clock> = clock();
    restore_on(&disk, &clock, 9, &parts, RestoreTo::End, &small(BackendKind::Memory), &mut |_| {}).unwrap();
    let restored = Database::open_on(disk, clock, 3, small(BackendKind::Memory)).unwrap();
    let [here, there] = [&restored, &db].map(|db| db.state_view().digest(&mut |_| {}).unwrap());
    assert_eq!((here.state.digest, here.state.rows), (there.state.digest, there.state.rows));
    let [goes_on, went_on] = [here, there].map(|report| report.state.applied.running_hash);
    assert_eq!(goes_on, went_on);
}
