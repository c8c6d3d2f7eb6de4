//! Failed fsyncs, full disks, two openers, missing directories, closed handles.

use std::{io::Write as _, sync::Arc, thread, time::Duration};

use thalweg_disk::{
    Disk, SimDisk,
    sim::{Errno, Fault, Operation},
};
use thalweg_engine::{
    BackendKind, Create, Database, Health, OpenError, Options, Repair, WriteError,
    types::{
        Action, Classified, Durability, Offset,
        command::{CommitBuilder, Expect},
    },
};

use crate::common::{batch, block_on, clock, simulated, small};

#[test]
fn a_failed_fsync_stops_writes_and_keeps_reads() {
    let disk = SimDisk::new(1);
    let db = simulated(&disk, 1);
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"before", b"1").unwrap();
    disk.fail(Fault::new(Operation::Sync, 1, Errno::Io));
    let error = keyspace.put(b"during", b"2").unwrap_err();
    assert!(matches!(error, WriteError::LogFailed { .. }), "{error}");
    assert_eq!(error.action(), Action::Stop);
    assert!(matches!(
        keyspace.with_durability(Durability::Os).put(b"after", b"3").unwrap_err(),
        WriteError::LogFailed { .. }
    ));
    assert!(matches!(db.health(), Health::Failed { .. }));
    assert_eq!(keyspace.get(b"before").unwrap().unwrap().value, b"1"[..]);
    assert_eq!(keyspace.get(b"during").unwrap(), None, "never shown, because never durable");
    drop((keyspace, db));
    let db = simulated(&disk.power_loss(9), 1);
    assert_eq!(db.find_keyspace("k").unwrap().get(b"before").unwrap().unwrap().value, b"1"[..]);
}

#[test]
fn a_full_disk_refuses_new_data_but_not_deletes_and_trims() {
    let disk = SimDisk::new(1);
    let options = Options { reserve_bytes: 256 * 1024, ..small(BackendKind::Memory) };
    let db = Database::open_on(Arc::new(disk.clone()), clock(), 1, options).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let stream = db.stream("s").unwrap();
    keyspace.put(b"a", b"1").unwrap();
    stream.append(&batch(&[b"x".to_vec()])).unwrap();
    let used = u64::MAX - disk.free_bytes().unwrap();
    let _ = used;
    disk.set_capacity(1);
    let refused = (0..100_000).find_map(|_| keyspace.put(b"b", &[1; 200]).err()).expect("the disk is full");
    assert!(matches!(refused, WriteError::DiskFull { short_bytes: 1.., .. }), "{refused}");
    assert!(refused.to_string().contains("more are needed"), "{refused}");
    assert_eq!(refused.action(), Action::Retry);
    assert!(matches!(db.health(), Health::DiskFull { .. }));
    keyspace.delete(b"a").unwrap();
    stream.trim(Offset(1)).unwrap();
    assert_eq!(keyspace.get(b"a").unwrap(), None);
    disk.set_capacity(u64::MAX / 2);
    keyspace.put(b"c", b"3").unwrap();
    assert_eq!(db.health(), Health::Good);
}

/// A background thread of the state that has ended shows in the health, although the log still takes writes.
#[test]
fn a_state_whose_threads_have_ended_is_reported() {
    let disk = SimDisk::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), clock(), 1, small(BackendKind::Redb)).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"a", b"1").unwrap();
    assert_eq!(db.health(), Health::Good);
    disk.fail(Fault::new(Operation::Write, 1, Errno::Io).on_path("state.redb"));
    assert!(db.flush().is_err());
    let Health::Failed { reason } = db.health() else { panic!("{:?}", db.health()) };
    assert!(reason.contains("state"), "{reason}");
    assert_eq!(keyspace.get(b"a").unwrap().unwrap().value, b"1"[..]);
}

/// The files of LSM and SQLite are real. Those of the LSM are moved away, and SQLite's is overwritten.
#[test]
fn a_state_in_real_files_whose_threads_have_ended_is_reported() {
    for backend in [BackendKind::Lsm, BackendKind::Sqlite] {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path(), small(backend)).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        keyspace.put(b"a", b"1").unwrap();
        db.flush().unwrap();
        assert_eq!(db.health(), Health::Good, "{backend:?}");
        let state = dir.path().join("state").join("default").join(backend.name());
        match backend {
            BackendKind::Lsm => std::fs::rename(&state, dir.path().join("elsewhere")).unwrap(),
            _ => {
                for file in std::fs::read_dir(&state).unwrap().map(|file| file.unwrap().path()) {
                    let garbage = vec![0xa5; std::fs::metadata(&file).unwrap().len() as usize];
                    std::fs::File::options().write(true).open(&file).unwrap().write_all(&garbage).unwrap();
                }
            }
        }
        let failed = (0..1000_u32).find_map(|number| {
            keyspace.put(&number.to_be_bytes(), &[7; 200]).ok()?;
            db.flush().err()
        });
        assert!(failed.is_some(), "{backend:?}");
        let Health::Failed { reason } = db.health() else { panic!("{backend:?}: {:?}", db.health()) };
        assert!(reason.contains("state"), "{backend:?}: {reason}");
    }
}

#[test]
fn a_second_opener_is_told_what_holds_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path(), small(BackendKind::Memory)).unwrap();
    let error = Database::open(dir.path(), small(BackendKind::Memory)).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("a database or a snapshot of this one"), "{error}");
    drop(db);
    Database::open(dir.path(), small(BackendKind::Memory)).unwrap();
}

#[test]
fn a_directory_keeps_its_backend_and_is_only_created_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let never = Options { create: Create::Never, ..small(BackendKind::Memory) };
    let missing = dir.path().join("data");
    assert!(matches!(Database::open(&missing, never).unwrap_err(), OpenError::Missing { .. }));
    assert!(!missing.exists());
    drop(Database::open(&missing, small(BackendKind::Memory)).unwrap());
    let error = Database::open(&missing, small(BackendKind::Lsm)).unwrap_err();
    assert!(matches!(error, OpenError::OtherBackend { found: "memory", wanted: "lsm", .. }), "{error}");
    std::fs::remove_file(missing.join("IDENTITY")).unwrap();
    let error = Database::open(&missing, small(BackendKind::Memory)).unwrap_err();
    assert!(matches!(error, OpenError::Identity { .. }), "{error}");
}

/// A file that names another state directory must not lead to the removal of the present one.
#[test]
fn a_state_directory_that_is_not_the_one_named_stays() {
    let dir = tempfile::tempdir().unwrap();
    let options = small(BackendKind::Memory);
    let db = Database::open(dir.path(), options.clone()).unwrap();
    db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
    db.close().unwrap();
    drop(db);
    let (installed, states) = (dir.path().join("INSTALLED"), dir.path().join("state/default"));
    std::fs::rename(states.join("memory"), states.join("memory.3")).unwrap();
    let left = || {
        let names = std::fs::read_dir(&states).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    let refused = || Database::open(dir.path(), options.clone()).map(drop).expect_err("refused");
    // As an early build wrote the file, without a checksum.
    for other in [1, 2, 4] {
        std::fs::write(&installed, format!("thalweg state 1\ndirectory {other}\n")).unwrap();
        let error = refused();
        assert_eq!((error.code(), error.action()), ("state_missing", Action::Stop), "{error}");
        assert!(error.to_string().contains(&format!("state/default/memory.{other}")), "{error}");
        let verified = thalweg_engine::state_files::verify(dir.path(), &options, &mut |_| {});
        assert_eq!(verified.unwrap_err().code(), "state_missing");
        assert_eq!(left(), ["memory.3"]);
    }
    std::fs::write(&installed, "thalweg state 1\ndirectory 3\n").unwrap();
    let db = Database::open(dir.path(), options.clone()).unwrap();
    assert_eq!(db.find_keyspace("k").unwrap().get(b"a").unwrap().unwrap().value, &b"1"[..]);
    db.close().unwrap();
    drop(db);
    let text = std::fs::read_to_string(&installed).unwrap();
    assert_eq!(text, "thalweg state 1\ndirectory 3\ncrc 57d206f6\n", "the open has added a checksum");
    std::fs::write(&installed, text.replace('3', "2")).unwrap();
    assert_eq!(refused().code(), "bad_identity");
    assert_eq!(left(), ["memory.3"]);
}

#[test]
fn a_directory_with_files_of_others_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["passwd", "hosts", "log"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let error = Database::open(dir.path(), small(BackendKind::Memory)).unwrap_err();
    let OpenError::NotEmpty { found, .. } = &error else { panic!("{error}") };
    assert_eq!(found, &["hosts", "passwd"]);
    assert!(error.to_string().contains("\"hosts\", \"passwd\""), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "nothing was written");
    // The top of a file system, the certificate of a directory that was deleted, and credentials whose writer was
    // killed are no files of others.
    let own = tempfile::tempdir().unwrap();
    std::fs::create_dir(own.path().join("lost+found")).unwrap();
    for name in ["native-key.pem", "CLUSTER.new", "CLUSTER.0123456789abcdef.new"] {
        std::fs::write(own.path().join(name), "").unwrap();
    }
    Database::open(own.path(), small(BackendKind::Memory)).unwrap();
}

#[test]
fn a_state_ahead_of_its_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = small(BackendKind::Memory);
    let db = Database::open(dir.path(), options.clone()).unwrap();
    db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
    db.close().unwrap();
    drop(db);
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    let error = Database::open(dir.path(), options).unwrap_err();
    assert_eq!(error.code(), "state_ahead_of_log", "{error}");
}

/// The state of a young directory was never persisted, so only the file `CLOCK` shows that there was a log.
#[test]
fn a_node_alone_that_has_lost_its_log_is_refused_unless_the_open_repairs() {
    let disk = SimDisk::new(1);
    let db = simulated(&disk, 1);
    db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
    let killed = disk.kill_process();
    for file in killed.list("log").unwrap() {
        killed.remove(&format!("log/{file}")).unwrap();
    }
    let open = |repair| {
        let options = Options { repair, ..small(BackendKind::Memory) };
        Database::open_on(Arc::new(killed.clone()), clock(), 2, options)
    };
    for _ in 0..2 {
        let error = open(Repair::Refuse).unwrap_err();
        assert_eq!((error.code(), error.action()), ("log_lost", Action::Stop), "{error}");
    }
    assert!(open(Repair::CutAtCorruption).unwrap().find_keyspace("k").is_none());
    open(Repair::Refuse).unwrap();
}

#[test]
fn a_conditional_write_needs_a_level_that_knows_its_outcome() {
    let db = simulated(&SimDisk::new(1), 1).with_durability(Durability::None);
    let keyspace = db.keyspace("k").unwrap();
    assert_eq!(keyspace.put_if(b"a", b"1", Expect::Absent).unwrap_err(), WriteError::LevelTooLow);
    let stream = db.stream("s").unwrap();
    assert_eq!(stream.append_expecting(&batch(&[vec![1]]), Offset(0)).unwrap_err(), WriteError::LevelTooLow);
    let ack = keyspace.put(b"a", b"1").unwrap();
    assert_eq!((ack.durability, ack.revision), (Durability::None, None));
    assert_eq!(stream.append(&batch(&[])).unwrap_err(), WriteError::EmptyBatch);
    db.close().unwrap();
    assert_eq!(keyspace.get(b"a").unwrap().unwrap().value, b"1"[..], "a close commits queued writes");
}

#[test]
fn limits_are_typed_errors_and_write_nothing() {
    let db = simulated(&SimDisk::new(1), 1);
    let keyspace = db.keyspace("k").unwrap();
    let revision = keyspace.put(b"a", b"1").unwrap().revision;
    assert_eq!(keyspace.put(&vec![0; 40_000], b"").unwrap_err().code(), "key_too_long");
    assert_eq!(keyspace.put(b"a", &vec![0; 9 << 20]).unwrap_err().code(), "value_too_long");
    assert_eq!(
        keyspace.put(b"a", &vec![0; 1 << 20]).unwrap_err().code(),
        "commit_too_large",
        "segments are 64 KiB here"
    );
    assert_eq!(db.keyspace("no/slashes").unwrap_err().code(), "bad_name");
    let mut commit = CommitBuilder::new();
    commit.put(keyspace.id(), b"b", b"2").unwrap().put(thalweg_engine::types::KeyspaceId(99), b"c", b"3").unwrap();
    assert_eq!(db.commit(&commit).unwrap_err().code(), "no_such_keyspace");
    assert_eq!(keyspace.get(b"b").unwrap(), None, "a commit happens whole or not at all");
    assert_eq!(keyspace.get(b"a").unwrap().map(|entry| entry.revision), revision);
}

#[test]
fn async_writes_and_tails() {
    let db = simulated(&SimDisk::new(1), 1);
    let asynchronous = db.to_async();
    let keyspace = block_on(asynchronous.keyspace("k")).unwrap();
    let puts: Vec<_> = (0..100_u32)
        .map(|number| asynchronous.put(keyspace.id(), &number.to_be_bytes(), b"v", Durability::Disk))
        .collect();
    for put in puts {
        assert_eq!(block_on(put).unwrap().durability, Durability::Disk);
    }
    assert_eq!(keyspace.iter(thalweg_engine::ScanRange::default()).count(), 100);
    let (stream, created) = block_on(asynchronous.create_stream("s", &Default::default())).unwrap();
    assert!(created);
    let waiting = asynchronous.wait_for(stream.id(), Offset(0));
    let waiter = thread::spawn(move || block_on(waiting));
    block_on(asynchronous.append(stream.id(), None, &batch(&[vec![1]]), Durability::Os)).unwrap();
    assert!(waiter.join().unwrap());
    assert!(stream.wait_for(Offset(0), Duration::ZERO));
    assert!(!stream.wait_for(Offset(1), Duration::ZERO));
    let waiting = asynchronous.wait_for(stream.id(), Offset(1));
    let waiter = thread::spawn(move || block_on(waiting));
    db.close().unwrap();
    assert!(!waiter.join().unwrap(), "a close ends tails");
}

#[test]
fn many_threads_write_at_all_levels() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path(), small(BackendKind::Memory)).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let stream = db.stream("s").unwrap();
    thread::scope(|scope| {
        for writer in 0..8_u32 {
            let (keyspace, stream) = (keyspace.clone(), stream.clone());
            scope.spawn(move || {
                for number in 0..100_u32 {
                    let level = Durability::ALL[((writer + number) % 5) as usize];
                    let key = [writer.to_be_bytes(), number.to_be_bytes()].concat();
                    keyspace.with_durability(level).put(&key, &key).unwrap();
                    stream.with_durability(level).append(&batch(&[key])).unwrap();
                }
            });
        }
    });
    db.close().unwrap();
    assert_eq!(keyspace.iter(thalweg_engine::ScanRange::default()).count(), 800);
    assert_eq!(stream.info().unwrap().next, Offset(800));
}

#[test]
fn a_write_larger_than_a_segment_is_refused_and_entries_of_larger_segments_stay_readable() {
    let disk = SimDisk::new(1);
    let with = |segment_bytes| {
        let options = Options { segment_bytes, inline_value_bytes: 1 << 20, ..small(BackendKind::Memory) };
        Database::open_on(Arc::new(disk.clone()), clock(), 1, options).unwrap()
    };
    let db = with(1 << 20);
    db.keyspace("k").unwrap().put(b"large", &[1; 500_000]).unwrap();
    let digest = db.state_view().digest(&mut |_| {}).unwrap().state.digest;
    // Drop without closing, so that the entry is replayed.
    drop(db);
    let db = with(64 * 1024);
    let keyspace = db.find_keyspace("k").unwrap();
    assert_eq!(db.state_view().digest(&mut |_| {}).unwrap().state.digest, digest);
    let applied = db.stats().applied_index;
    let error = keyspace.put(b"large", &[2; 100_000]).unwrap_err();
    assert!(matches!(error, WriteError::LargerThanSegment { got: 100_000.., max: ..65_536 }), "{error}");
    assert_eq!((error.code(), error.action()), ("commit_too_large", Action::Fix));
    assert!(error.to_string().contains("raise `segment_bytes`"), "{error}");
    assert_eq!((db.stats().applied_index, db.health()), (applied, Health::Good));
    assert_eq!(keyspace.get(b"large").unwrap().unwrap().value, [1; 500_000][..]);
    keyspace.put(b"small", b"2").unwrap();
}
