//! Damaged snapshots, interrupted restores, and the bytes of the format.

use std::{
    fs,
    io::{self, Read},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, OpenError, Options,
    snapshot::{
        Compression, Part, RestoreError, RestoreTo, Restored, SnapshotOptions, SnapshotReadError, restore, restore_on,
        survey, verify,
    },
    types::{Action, Classified, Clock, Lsn},
};

use crate::common::{Model, batch, check, clock, seed, simulated, small};

fn options(compression: Compression, since: Option<Lsn>) -> SnapshotOptions {
    SnapshotOptions { since, compression, chunk_bytes: 300, ..SnapshotOptions::default() }
}

fn take(db: &Database, compression: Compression, since: Option<Lsn>) -> Vec<u8> {
    db.snapshot(&options(compression, since)).unwrap().into_bytes().unwrap()
}

/// Writes some data of each kind: inline values, one value in the log, records.
fn fill(db: &Database, from: u8) -> Model {
    let mut model = Model::default();
    let (keyspace, stream) = (db.keyspace("k").unwrap(), db.stream("s").unwrap());
    for number in 0..from + 4 {
        let value = vec![number; if number % 3 == 0 { 400 } else { 20 }];
        if number >= from {
            keyspace.put(&[number], &value).unwrap();
            stream.append(&batch(std::slice::from_ref(&value))).unwrap();
        }
        model.keys.insert(("k".to_owned(), vec![number]), value.clone());
        model.streams.entry("s".to_owned()).or_default().records.push(value);
    }
    model
}

fn small_backup() -> (Vec<Part>, Vec<Vec<u8>>, Model) {
    let db = simulated(&SimDisk::new(1), 5);
    fill(&db, 0);
    let full = take(&db, Compression::Zstd, None);
    let since = survey(&full[..]).unwrap().info.applied.lsn;
    let model = fill(&db, 4);
    let increment = take(&db, Compression::None, Some(since));
    let parts = vec![Part::bytes("full", full.clone()), Part::bytes("increment", increment.clone())];
    (parts, vec![full, increment], model)
}

fn tiny() -> Options {
    Options { segment_bytes: 16 * 1024, ..small(BackendKind::Memory) }
}

fn restore_sim(disk: &SimDisk, parts: &[Part]) -> Result<Restored, RestoreError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = clock();
    restore_on(&disk, &clock, 9, parts, RestoreTo::End, &tiny(), &mut |_| {})
}

fn open(disk: &SimDisk) -> Result<Database, OpenError> {
    Database::open_on(Arc::new(disk.clone()), clock(), 3, tiny())
}

#[test]
fn no_flipped_byte_is_restored() {
    let (_, files, model) = small_backup();
    let whole: Vec<_> = files.iter().map(|file| Part::bytes("part", file.clone())).collect();
    let disk = SimDisk::new(2);
    restore_sim(&disk, &whole).unwrap();
    check(&open(&disk).unwrap(), &model);
    for (which, file) in files.iter().enumerate() {
        println!("{} bytes", file.len());
        for at in 0..file.len() {
            let mut flipped = file.clone();
            flipped[at] ^= 1 << (at % 8);
            verify(&flipped[..]).unwrap_err();
            let mut parts = files.clone();
            parts[which] = flipped;
            let parts: Vec<_> = parts.into_iter().map(|bytes| Part::bytes("part", bytes)).collect();
            let disk = SimDisk::new(3);
            let error = restore_sim(&disk, &parts).unwrap_err();
            assert!(!error.to_string().is_empty() && !error.code().is_empty());
            match open(&disk) {
                Err(OpenError::Unfinished { .. }) => {}
                Ok(db) => assert!(db.report().created, "the restore had not begun"),
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
    }
}

#[test]
fn a_cut_snapshot_says_where_it_can_go_on() {
    let (_, files, _) = small_backup();
    for file in &files {
        let mut borders = 0;
        for cut in 0..file.len() {
            verify(&file[..cut]).unwrap_err();
            match survey(&file[..cut]) {
                Ok(partial) => {
                    assert!(!partial.is_complete && partial.bytes <= cut as u64 && partial.chunks > 0);
                    borders += u64::from(partial.bytes == cut as u64);
                    assert!(partial.chunks >= borders);
                }
                Err(SnapshotReadError::Truncated { chunks: 0, .. } | SnapshotReadError::NotASnapshot) => {}
                Err(other) => panic!("cut to {cut}: {other}"),
            }
        }
        assert!(survey(&file[..]).unwrap().is_complete);
        assert!(borders >= 3, "{borders}");
    }
}

#[test]
fn parts_in_any_order_and_what_does_not_belong() {
    let (mut parts, files, model) = small_backup();
    parts.reverse();
    let disk = SimDisk::new(4);
    let restored = restore_sim(&disk, &parts).unwrap();
    assert_eq!((restored.parts, restored.removed_unfinished), (2, false));
    check(&open(&disk).unwrap(), &model);
    let again = restore_sim(&disk, &parts).unwrap_err();
    assert!(matches!(again, RestoreError::Exists { .. }), "{again}");
    assert_eq!(again.action(), Action::Fix);
    check(&open(&disk).unwrap(), &model);

    let alone = restore_sim(&SimDisk::new(5), &parts[..1]).unwrap_err();
    assert!(matches!(alone, RestoreError::NoFull { parts: 1 }), "{alone}");
    // A part of another node.
    let other = simulated(&SimDisk::new(6), 6);
    fill(&other, 0);
    let stranger = Part::bytes("stranger", take(&other, Compression::None, Some(Lsn(0))));
    let mixed = [Part::bytes("full", files[0].clone()), stranger];
    let error = restore_sim(&SimDisk::new(7), &mixed).unwrap_err();
    assert!(matches!(error, RestoreError::OtherNode { .. }), "{error}");
    // A part of the same node with a different history, as after its log was cut and written on.
    let disk = SimDisk::new(8);
    let db = simulated(&disk, 5);
    fill(&db, 0);
    db.sync().unwrap();
    let fork = disk.kill_process();
    let since = survey(&take(&db, Compression::None, None)[..]).unwrap().info.applied.lsn;
    db.keyspace("k").unwrap().put(b"x", b"here").unwrap();
    let full = take(&db, Compression::None, None);
    let here = survey(&full[..]).unwrap().info.applied.lsn;
    let forked = simulated(&fork, 5);
    let later = clock();
    later.advance(std::time::Duration::from_secs(5));
    drop(forked);
    let forked = Database::open_on(Arc::new(fork.clone()), later, 5, small(BackendKind::Memory)).unwrap();
    let keyspace = forked.keyspace("k").unwrap();
    (0..3).for_each(|_| drop(keyspace.put(b"x", b"there").unwrap()));
    let diverged = take(&forked, Compression::None, Some(here));
    let parts = [Part::bytes("full", full), Part::bytes("diverged", diverged)];
    let error = restore_sim(&SimDisk::new(9), &parts).unwrap_err();
    assert!(matches!(error, RestoreError::DoesNotFollow { .. }), "{error}");
    assert!(since < here);
}

/// Reader that fails, or kills the process, after a number of bytes.
struct Trap {
    bytes: io::Cursor<Vec<u8>>,
    at: u64,
    kill: bool,
}

impl Read for Trap {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes.position() >= self.at {
            assert!(!self.kill, "killed here");
            return Err(io::Error::other("the connection was cut"));
        }
        let most = buffer.len().min(16);
        self.bytes.read(&mut buffer[..most])
    }
}

#[test]
fn a_restore_that_ends_half_way_is_clearly_unfinished_and_starts_again() {
    let (parts, files, model) = small_backup();
    for kill in [false, true] {
        for share in [1, 3, 7, 9] {
            let disk = SimDisk::new(10);
            let (bytes, at) = (files[0].clone(), files[0].len() as u64 * share / 10);
            let trap = Part::new("trap", move || {
                let trap = Trap { bytes: io::Cursor::new(bytes.clone()), at: at.max(130), kill };
                Ok(Box::new(trap))
            });
            let cut = catch_unwind(AssertUnwindSafe(|| restore_sim(&disk, &[trap])));
            match cut {
                Ok(error) => assert!(matches!(error.unwrap_err(), RestoreError::Part { .. })),
                Err(_) => assert!(kill),
            }
            let left = disk.kill_process();
            let error = open(&left).unwrap_err();
            assert!(matches!(error, OpenError::Unfinished { .. }), "{error}");
            assert_eq!((error.code(), error.action()), ("unfinished_restore", Action::Fix));
            assert!(restore_sim(&left, &parts).unwrap().removed_unfinished);
            check(&open(&left).unwrap(), &model);
        }
    }
}

#[test]
fn power_lost_at_any_moment_of_a_restore_leaves_all_or_something_unfinished() {
    let seed = seed(31);
    let (parts, _, model) = small_backup();
    let whole = SimDisk::new(seed);
    restore_sim(&whole, &parts).unwrap();
    let operations = whole.operations();
    let (mut finished, mut unfinished) = (0, 0);
    for after in (1..operations + 3).step_by(3) {
        let disk = SimDisk::new(seed + after);
        disk.power_off_after(after);
        let done = restore_sim(&disk, &parts);
        let disk = disk.power_loss(seed ^ after);
        match open(&disk) {
            Ok(db) if !db.report().created => {
                check(&db, &model);
                finished += 1;
            }
            Ok(_) => assert!(done.is_err(), "the restore had not begun"),
            Err(OpenError::Unfinished { .. }) => {
                assert!(done.is_err());
                restore_sim(&disk, &parts).unwrap();
                check(&open(&disk).unwrap(), &model);
                unfinished += 1;
            }
            Err(other) => panic!("after {after} operations: {other}"),
        }
    }
    println!("{operations} operations: {finished} finished, {unfinished} unfinished");
    assert!(unfinished > 5);
}

/// If the identity were lost later, the marker would make another restore clear the directory.
#[test]
fn an_open_removes_the_marker_of_a_restore_that_was_killed_just_before_it_ended() {
    let (parts, _, model) = small_backup();
    let disk = SimDisk::new(51);
    restore_sim(&disk, &parts).unwrap();
    disk.create("RESTORING").unwrap().sync_all().unwrap();
    disk.sync_dir("").unwrap();
    check(&open(&disk).unwrap(), &model);
    assert!(!disk.paths().contains(&"RESTORING".to_owned()));
    // Without the identity, the directory is a damaged one.
    disk.remove("IDENTITY").unwrap();
    let error = open(&disk).unwrap_err();
    assert!(matches!(error, OpenError::Identity { .. }), "{error}");
    assert!(matches!(restore_sim(&disk, &parts), Err(RestoreError::Exists { .. })));
}

#[test]
fn a_full_disk_is_told_and_leaves_something_unfinished() {
    let (parts, _, model) = small_backup();
    let disk = SimDisk::new(41);
    disk.set_capacity(40 * 1024);
    let error = restore_sim(&disk, &parts).unwrap_err();
    assert!(error.to_string().contains("space") || error.code() == "disk_full", "{error}");
    disk.set_capacity(u64::MAX);
    assert!(matches!(open(&disk), Err(OpenError::Unfinished { .. })));
    restore_sim(&disk, &parts).unwrap();
    check(&open(&disk).unwrap(), &model);
    // A snapshot that cannot be written.
    struct Full(usize);
    impl io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let db = open(&disk).unwrap();
    let mut snapshot = db.snapshot(&options(Compression::None, None)).unwrap();
    let error = snapshot.write_to(&mut Full(500), &mut |_| {}).unwrap_err();
    assert_eq!(error.code(), "io");
    let open_again = db.snapshot(&options(Compression::None, None)).unwrap().into_bytes().unwrap();
    verify(&open_again[..]).unwrap();
}

#[test]
fn nothing_is_restored_over_what_is_there() {
    let (parts, _, model) = small_backup();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"mine").unwrap();
    for taken in [dir.path(), &file] {
        let error = restore(taken, &parts, RestoreTo::End, &tiny(), &mut |_| {}).unwrap_err();
        assert!(matches!(error, RestoreError::Exists { .. }), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    let new = dir.path().join("deep/new");
    let bad = restore(&new, &parts[1..], RestoreTo::End, &tiny(), &mut |_| {}).unwrap_err();
    assert!(matches!(bad, RestoreError::NoFull { .. }));
    assert!(!new.exists(), "a failed restore must leave nothing behind");
    let mut seen = Vec::new();
    restore(&new, &parts, RestoreTo::End, &tiny(), &mut |progress| seen.push(progress)).unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].totals.bytes() <= pair[1].totals.bytes()));
    assert_eq!(seen.last().unwrap().parts, 2);
    check(&Database::open(&new, tiny()).unwrap(), &model);
}

#[test]
fn the_format_is_pinned() {
    let db = simulated(&SimDisk::new(1), 0x1234);
    fill(&db, 0);
    let full = take(&db, Compression::None, None);
    let since = survey(&full[..]).unwrap().info.applied.lsn;
    fill(&db, 4);
    golden("snapshot-full-v3.tws", &full);
    golden("snapshot-increment-v3.tws", &take(&db, Compression::None, Some(since)));
    // Compressed bytes may differ between versions of a library, but must stay readable.
    for compression in [Compression::Lz4, Compression::Zstd] {
        let path = golden_dir().join(format!("snapshot-{}-v3.tws", compression.name()));
        if std::env::var_os("THALWEG_BLESS").is_some() {
            fs::write(&path, take(&db, compression, None)).unwrap();
        }
        let stored = fs::read(&path).unwrap();
        let verified = verify(&stored[..]).unwrap();
        assert_eq!(verified.totals, verify(&take(&db, Compression::None, None)[..]).unwrap().totals);
    }
}

/// Format 2 had no membership.
#[test]
fn snapshots_of_format_2_are_restored() {
    let digests = [2, 3].map(|version| {
        let parts =
            ["full", "increment"].map(|kind| Part::file(golden_dir().join(format!("snapshot-{kind}-v{version}.tws"))));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("restored");
        restore(&path, &parts, RestoreTo::End, &tiny(), &mut |_| {}).unwrap();
        Database::open(&path, tiny()).unwrap().state_view().digest(&mut |_| {}).unwrap().state.digest
    });
    assert_eq!(digests[0], digests[1]);
}

/// Directory of the files that pin the format. Tests of `thalweg-snapshot` read them too.
fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshot/tests/golden")
}

fn golden(name: &str, bytes: &[u8]) {
    let path = golden_dir().join(name);
    if std::env::var_os("THALWEG_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), bytes, "{name}");
}
