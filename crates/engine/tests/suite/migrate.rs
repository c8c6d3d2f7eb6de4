//! Moving the state between backends, with kills of the process or power losses in between.
#![cfg(all(feature = "redb", feature = "sqlite"))]

use std::{fs, path::Path, sync::Arc};

use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, OpenError, Options,
    migrate::{MigrateError, Migration, MigrationPhase, MigrationProgress, migrate, migrate_on},
    types::{Action, Classified},
};

use crate::common::{Model, Rng, batch, check, clock, seed, small};

/// Options for a directory with any backend.
fn any() -> Options {
    Options { backend: None, ..small(BackendKind::Memory) }
}

/// Fills a database with keys, long values and records. When it is closed without a flush, the last ones are only in
/// the log.
fn fill(db: &Database, keys: u64, seed: u64) -> Model {
    let mut rng = Rng(seed);
    let mut model = Model::default();
    let (keyspace, stream) = (db.keyspace("k").unwrap(), db.stream("s").unwrap());
    for number in 0..keys {
        let len = if number % 9 == 0 { 700 } else { rng.below(100) as usize };
        let (key, value) = (rng.below(keys).to_be_bytes().to_vec(), rng.bytes(len));
        keyspace.put(&key, &value).unwrap();
        model.keys.insert(("k".to_owned(), key), value.clone());
        if number % 5 == 0 {
            stream.append(&batch(std::slice::from_ref(&value))).unwrap();
            model.streams.entry("s".to_owned()).or_default().records.push(value);
        }
        if number == keys * 2 / 3 {
            db.flush().unwrap();
        }
    }
    model
}

fn copy_tree(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy_tree(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn quiet(_: MigrationProgress) {}

fn pairs() -> impl Iterator<Item = (BackendKind, BackendKind)> {
    BackendKind::ALL
        .into_iter()
        .flat_map(|from| BackendKind::ALL.into_iter().map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
}

#[test]
fn every_backend_takes_over_from_every_other() {
    for (number, (from, to)) in pairs().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path(), small(from)).unwrap();
        let model = fill(&db, 400, number as u64);
        // Every second database is left as a killed process leaves it.
        if number % 2 == 0 {
            db.close().unwrap();
        }
        drop(db);
        let mut last = None;
        let mut hear = |progress: MigrationProgress| last = Some(progress);
        let migration = Migration { from: Some(from), to };
        let done = migrate(dir.path(), migration, &any(), &mut hear).unwrap();
        assert_eq!((done.from, done.to), (from, to));
        assert!(done.pairs > 200 && done.bytes > done.pairs, "{done:?}");
        assert_eq!(
            last.map(|progress| (progress.phase, progress.pairs)),
            Some((MigrationPhase::CleaningUp, done.pairs))
        );
        let left: Vec<_> =
            fs::read_dir(dir.path().join("state/default")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [to.name()], "the old state is gone");
        let db = Database::open(dir.path(), any()).unwrap();
        assert_eq!(db.report().backend, to);
        assert!(number % 2 == 1 || db.report().replayed_records == 0, "{:?}", db.report());
        check(&db, &model);
        db.keyspace("k").unwrap().put(b"after", b"1").unwrap();
        db.close().unwrap();
    }
}

#[test]
fn an_empty_directory_moves_too() {
    let dir = tempfile::tempdir().unwrap();
    drop(Database::open(dir.path(), small(BackendKind::Lsm)).unwrap());
    let migration = Migration { from: None, to: BackendKind::Sqlite };
    assert_eq!(migrate(dir.path(), migration, &any(), &mut quiet).unwrap().pairs, 0);
    let db = Database::open(dir.path(), any()).unwrap();
    assert_eq!(db.report().backend, BackendKind::Sqlite);
    db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
}

#[test]
fn what_can_not_be_moved_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let to_redb = Migration { from: None, to: BackendKind::Redb };
    let error = migrate(dir.path(), to_redb, &any(), &mut quiet).unwrap_err();
    assert!(matches!(error, MigrateError::Open(OpenError::Missing { .. })), "{error}");
    let db = Database::open(dir.path(), small(BackendKind::Lsm)).unwrap();
    let error = migrate(dir.path(), to_redb, &any(), &mut quiet).unwrap_err();
    assert!(matches!(error, MigrateError::Open(OpenError::Locked { .. })), "{error}");
    drop(db);
    let error = migrate(dir.path(), Migration { from: Some(BackendKind::Sqlite), ..to_redb }, &any(), &mut quiet);
    assert!(matches!(error, Err(MigrateError::Open(OpenError::OtherBackend { .. }))), "{error:?}");
    let error = migrate(dir.path(), Migration { from: None, to: BackendKind::Lsm }, &any(), &mut quiet).unwrap_err();
    assert_eq!((error.code(), error.action()), ("same_backend", Action::Fix));
}

/// The process is killed at every progress report. A copy of the directory opens with one backend or the other, has
/// all data, and can be migrated again.
#[test]
fn a_kill_anywhere_leaves_a_whole_state() {
    for (from, to) in [(BackendKind::Redb, BackendKind::Lsm), (BackendKind::Lsm, BackendKind::Sqlite)] {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path(), small(from)).unwrap();
        // Enough keys for more than one batch.
        let model = fill(&db, 12_000, 7);
        db.close().unwrap();
        drop(db);
        let mut kills: Vec<(MigrationProgress, tempfile::TempDir)> = Vec::new();
        let mut hear = |progress: MigrationProgress| {
            let killed = tempfile::tempdir().unwrap();
            copy_tree(dir.path(), killed.path());
            kills.push((progress, killed));
        };
        migrate(dir.path(), Migration { from: None, to }, &any(), &mut hear).unwrap();
        assert!(kills.len() >= 5, "{} kills", kills.len());
        for (at, killed) in kills {
            let db = Database::open(killed.path(), any()).unwrap();
            let expected = if at.phase == MigrationPhase::CleaningUp { to } else { from };
            assert_eq!(db.report().backend, expected, "{at:?}");
            check(&db, &model);
            drop(db);
            let left = fs::read_dir(killed.path().join("state/default")).unwrap().count();
            assert_eq!(left, 1, "{at:?}: opening removes the remains");
            if expected == from {
                migrate(killed.path(), Migration { from: Some(from), to }, &any(), &mut quiet).unwrap();
                let db = Database::open(killed.path(), any()).unwrap();
                assert_eq!(db.report().backend, to);
                check(&db, &model);
            }
        }
    }
}

/// Memory and redb run on the simulated disk. The power is lost at random operations of the migration.
#[test]
fn a_power_loss_anywhere_leaves_a_whole_state() {
    let mut rng = Rng(seed(21));
    for (from, to) in [(BackendKind::Memory, BackendKind::Redb), (BackendKind::Redb, BackendKind::Memory)] {
        let disk = SimDisk::new(5);
        let db = Database::open_on(Arc::new(disk.clone()), clock(), 5, small(from)).unwrap();
        let model = fill(&db, 300, 5);
        db.close().unwrap();
        drop(db);
        let run = |disk: &SimDisk| {
            let disk: Arc<dyn Disk> = Arc::new(disk.clone());
            migrate_on(&disk, Migration { from: Some(from), to }, &any(), &mut quiet).is_ok()
        };
        let whole = disk.kill_process();
        let before = whole.operations();
        assert!(run(&whole));
        let operations = whole.operations() - before;
        assert!(operations > 15, "{operations}");
        for after in 0..=operations {
            let crashed = disk.kill_process();
            crashed.power_off_after(after);
            let done = run(&crashed);
            let crashed = crashed.power_loss(rng.next());
            let what = format!("{} to {}, after {after} of {operations}", from.name(), to.name());
            let db = Database::open_on(Arc::new(crashed.clone()), clock(), 6, any())
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(!done || db.report().backend == to, "{what}");
            check(&db, &model);
        }
    }
}
