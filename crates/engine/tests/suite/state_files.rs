//! Verifying and rebuilding the state of a directory, and the scrub of an open one.

use std::{
    collections::BTreeSet,
    fs,
    io::IoSlice,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use thalweg_engine::{
    BackendKind, Database, MemberIdentity, Options, TableCompression,
    space::{Count, space_at_rest},
    state_files::{self, StateFilesError},
    types::{Classified, ClusterId, Durability, Index, NodeId, SpaceId, Term, limits::MIN_MEMBER_SEGMENT_BYTES},
};
use thalweg_log::{Draft, Purpose, RecordKind};
use thalweg_replica::{Membership, NodeInfo};

use crate::common::{PATIENCE, batch, pause, small};

fn options(backend: BackendKind) -> Options {
    Options { durability: Durability::Os, ..small(backend) }
}

/// Fills a directory. Returns the digest of its state.
fn fill(dir: &Path, options: &Options) -> String {
    let db = Database::open(dir, options.clone()).unwrap();
    let (keyspace, stream) = (db.keyspace("k").unwrap(), db.stream("s").unwrap());
    for number in 0..400_u32 {
        keyspace.put(&number.to_be_bytes(), &[number as u8; 100]).unwrap();
        stream.append(&batch(&[number.to_le_bytes().to_vec()])).unwrap();
    }
    let digest = db.state_view().digest(&mut |_| {}).unwrap().state.digest.to_string();
    db.close().unwrap();
    digest
}

fn digest(dir: &Path, options: &Options) -> String {
    let db = Database::open(dir, options.clone()).unwrap();
    db.state_view().digest(&mut |_| {}).unwrap().state.digest.to_string()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

#[test]
fn compressed_tables_are_scrubbed_verified_and_measured_whatever_the_option_is() {
    let dir = tempfile::tempdir().unwrap();
    let plain = options(BackendKind::Lsm);
    let compressed = Options { table_compression: TableCompression::Lz4, ..plain.clone() };
    let before = fill(dir.path(), &plain);
    let (mut bytes, mut payloads) = (Vec::new(), Vec::new());
    for options in [&plain, &compressed, &plain] {
        let db = Database::open(dir.path(), options.clone()).unwrap();
        db.compact().unwrap();
        let scrubbed = db.scrub();
        assert!(scrubbed.rounds == 1 && scrubbed.damages == 0, "{scrubbed:?}");
        db.close().unwrap();
        drop(db);
        for other in [&plain, &compressed] {
            let verified = state_files::verify(dir.path(), other, &mut |_| {}).unwrap();
            assert!(verified.rows > 400, "{verified:?}");
            let space = space_at_rest(dir.path(), other, Count::Always, &mut |_| {}).unwrap();
            bytes.push(space.levels.iter().map(|level| level.bytes).sum::<u64>());
            payloads.push(space.payload.expect("it is counted"));
        }
        assert_eq!(digest(dir.path(), options), before);
    }
    assert!(payloads.iter().all(|payload| *payload == payloads[0]), "{payloads:?}");
    assert!(bytes[2] * 2 < bytes[0] && bytes[3] * 2 < bytes[0] && bytes[4] > bytes[2], "{bytes:?}");
}

#[test]
fn lost_tables_are_rebuilt_from_a_log_with_all_entries() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(BackendKind::Lsm);
    let before = fill(dir.path(), &options);
    let verified = state_files::verify(dir.path(), &options, &mut |_| {}).unwrap();
    assert!(verified.rows > 400 && verified.bytes > 40_000, "{verified:?}");
    for table in files(&dir.path().join("state/default/lsm/tables")) {
        fs::remove_file(table).unwrap();
    }
    let error = Database::open(dir.path(), options.clone()).unwrap_err();
    assert_eq!(error.code(), "state_corrupt", "{error}");
    assert!(error.to_string().contains("`thalweg state rebuild`"), "{error}");
    assert_eq!(state_files::verify(dir.path(), &options, &mut |_| {}).unwrap_err().code(), "state_corrupt");
    let rebuilt = state_files::rebuild(dir.path(), &options).unwrap();
    assert!(rebuilt.records > 800, "{rebuilt:?}");
    state_files::verify(dir.path(), &options, &mut |_| {}).unwrap();
    assert_eq!(digest(dir.path(), &options), before);
    assert_eq!(files(&dir.path().join("state/default")), [dir.path().join("state/default/lsm")]);
}

#[test]
fn every_backend_is_verified_and_rebuilt() {
    for backend in BackendKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let options = options(backend);
        let before = fill(dir.path(), &options);
        let state = dir.path().join("state/default").join(backend.name());
        let file = match backend {
            BackendKind::Memory => state.join("checkpoint"),
            BackendKind::Lsm => {
                let has_value = |file: &PathBuf| fs::read(file).unwrap().windows(60).any(|bytes| bytes == [77; 60]);
                files(&state.join("tables")).into_iter().find(has_value).expect("a table with the value")
            }
            BackendKind::Redb => state.join("state.redb"),
            BackendKind::Sqlite => state.join("state.sqlite"),
        };
        let bytes = fs::read(&file).unwrap();
        // The middle of the value of one row.
        let value = bytes.windows(60).position(|window| window == [77; 60]).expect("a value");
        flip(&file, value + 30);
        let error = state_files::verify(dir.path(), &options, &mut |_| {}).unwrap_err();
        assert_eq!(error.code(), "state_corrupt", "{backend:?}: {error}");
        // A rebuild that was interrupted leaves the old state and a part of the new one.
        fs::rename(&state, state.with_extension("old")).unwrap();
        fs::create_dir(&state).unwrap();
        state_files::rebuild(dir.path(), &options).unwrap();
        assert_eq!(digest(dir.path(), &options), before, "{backend:?}");
        assert!(!state.with_extension("old").exists());
    }
}

#[test]
fn an_open_completes_an_interrupted_rebuild_and_removes_the_old_state() {
    for backend in [BackendKind::Lsm, BackendKind::Sqlite] {
        let dir = tempfile::tempdir().unwrap();
        let options = options(backend);
        let before = fill(dir.path(), &options);
        let parent = dir.path().join("state/default");
        let state = parent.join(backend.name());
        fs::rename(&state, state.with_extension("old")).unwrap();
        let db = Database::open(dir.path(), options.clone()).unwrap();
        assert_eq!(files(&parent), std::slice::from_ref(&state), "{backend:?}");
        db.close().unwrap();
        drop(db);
        assert_eq!(digest(dir.path(), &options), before, "{backend:?}");
    }
}

#[test]
fn a_log_that_has_freed_entries_rebuilds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(BackendKind::Lsm);
    let db = Database::open(dir.path(), options.clone()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..2000_u32 {
        keyspace.put(&(number % 10).to_be_bytes(), &[7; 100]).unwrap();
    }
    db.flush().unwrap();
    let freed: u64 = (0..10).map(|_| db.maintain().unwrap().freed_segments).sum();
    assert!(freed > 0);
    db.close().unwrap();
    drop((keyspace, db));
    let before = digest(dir.path(), &options);
    let error = state_files::rebuild(dir.path(), &options).unwrap_err();
    assert!(matches!(error, StateFilesError::LogIncomplete { first } if first.0 > 0), "{error}");
    assert!(error.to_string().contains("Restore the newest backup"), "{error}");
    assert_eq!(digest(dir.path(), &options), before);
}

/// A rebuild of a member would end before its state is complete, so the old state must stay in its place.
#[test]
fn the_state_of_a_member_beside_others_is_not_rebuilt() {
    let options = Options { segment_bytes: MIN_MEMBER_SEGMENT_BYTES, ..options(BackendKind::Memory) };
    let joined = MemberIdentity::Join { cluster: ClusterId(7) };
    for (identity, voters) in [(MemberIdentity::Found, 1), (MemberIdentity::Found, 2), (joined, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open_member(dir.path(), options.clone(), identity).unwrap();
        let voters: BTreeSet<_> = [db.report().node, NodeId(2)].into_iter().take(voters).collect();
        if identity == MemberIdentity::Found {
            let members = voters.iter().map(|node| (*node, NodeInfo::default())).collect();
            let payload = Membership::new(vec![voters.clone()], members).unwrap().encode();
            let parts = db.member_parts().unwrap();
            let draft = Draft {
                space: SpaceId::ZERO,
                kind: RecordKind::Membership,
                term: Term(1),
                index: Index(1),
                time: parts.member.clock().stamp(),
                payload: &[IoSlice::new(&payload)],
            };
            parts.log.append(&[draft], Durability::Disk, Purpose::Data).unwrap();
        }
        db.flush().unwrap();
        db.close().unwrap();
        drop(db);
        let states = dir.path().join("state/default");
        fs::create_dir_all(states.join("memory")).unwrap();
        fs::write(states.join("memory/mark"), "").unwrap();
        let rebuilt = state_files::rebuild(dir.path(), &options);
        if voters.len() == 1 {
            assert!(rebuilt.is_ok(), "{rebuilt:?}");
            continue;
        }
        assert_eq!(rebuilt.unwrap_err().code(), "not_alone", "{identity:?}");
        assert_eq!(files(&states), [states.join("memory")], "{identity:?}");
        assert!(states.join("memory/mark").exists(), "{identity:?}");
    }
}

#[test]
fn a_scrub_finds_damage_in_the_log_and_in_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(BackendKind::Redb);
    fill(dir.path(), &options);
    let db = Database::open(dir.path(), options.clone()).unwrap();
    let stats = db.scrub();
    assert_eq!((stats.rounds, stats.damages, stats.is_running), (1, 0, false), "{stats:?}");
    assert!(stats.done_bytes > 40_000 && stats.bytes == stats.done_bytes, "{stats:?}");
    drop(db);
    let sealed = dir.path().join("log/00000001.seg");
    let at = fs::read(&sealed).unwrap().windows(60).position(|window| window == [77; 60]).expect("a value");
    flip(&sealed, at);
    let db = Database::open(dir.path(), options.clone()).unwrap();
    let stats = db.scrub();
    assert_eq!((stats.rounds, stats.damages), (1, 1), "{stats:?}");
    assert!(stats.damage.as_ref().unwrap().contains("00000001.seg"), "{stats:?}");
    assert_eq!(db.stats().scrub, stats);
    drop(db);
    let state = dir.path().join("state/default/redb/state.redb");
    let at = fs::read(&state).unwrap().windows(60).position(|window| window == [78; 60]).expect("a value");
    flip(&state, at);
    let db = Database::open(dir.path(), options).unwrap();
    let stats = db.scrub();
    assert_eq!((stats.rounds, stats.damages), (1, 2), "{stats:?}");
    assert!(stats.damage.as_ref().unwrap().contains("state is corrupt"), "{stats:?}");
}

#[test]
fn the_scrub_runs_in_the_background_and_ends_with_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let plain = options(BackendKind::Lsm);
    fill(dir.path(), &plain);
    let eager = Options { scrub_interval: Duration::from_millis(1), ..plain.clone() };
    let db = Database::open(dir.path(), eager).unwrap();
    let until = Instant::now() + PATIENCE;
    while db.stats().scrub.rounds < 2 {
        assert!(Instant::now() < until, "{:?}", db.stats().scrub);
        pause();
    }
    drop(db);
    // A scrub at a byte a second would take days. Closing does not wait for it.
    let slow = Options { scrub_interval: Duration::from_millis(1), scrub_bytes_per_second: 1, ..plain.clone() };
    let db = Database::open(dir.path(), slow).unwrap();
    while !db.stats().scrub.is_running {
        assert!(Instant::now() < until);
        pause();
    }
    db.close().unwrap();
    drop(db);
    digest(dir.path(), &plain);
}
