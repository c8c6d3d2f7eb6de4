//! Installs that are interrupted, continued, abandoned, or rejected.

use std::path::Path;

use bytes::Bytes;
use thalweg_disk::{
    Disk, SimDisk,
    sim::{Errno, Fault, Operation},
};
use thalweg_types::{Action, Classified, Index};

use super::support::{
    Node, begin, built, chunks, digest, furnish, go_on, install, open_at, open_sim, options, snapshot, visible_state,
};
use crate::{
    BackendKind,
    digests::HashMark,
    snapshot::{InstallError, SnapshotOptions, SnapshotReadError},
    state_files,
};

/// Capacity of a disk that is not full.
const LARGE: u64 = 1 << 40;

#[test]
fn an_install_goes_on_after_damaged_missing_and_repeated_chunks() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let mut sender = snapshot(node.db());
    let other = Node::new(BackendKind::Memory);
    let mut install = begin(other.db()).unwrap();
    let mut last = Bytes::new();
    let mut number = 0;
    while let Some(chunk) = sender.next_chunk().unwrap() {
        assert_eq!(install.next_number(), number);
        let mut flipped = chunk.to_vec();
        flipped[chunk.len() / 2] ^= 1;
        let wrong = [
            Bytes::from(flipped),
            chunk.slice(..chunk.len() - 1),
            Bytes::new(),
            last.clone(),
            [&chunk[..], b"more"].concat().into(),
            [&chunk[..], &chunk[..]].concat().into(),
        ];
        for wrong in wrong {
            let error = install.push(wrong).unwrap_err();
            assert!(matches!(error, InstallError::Chunk { next, .. } if next == number), "{number}: {error}");
            assert_eq!((error.code(), error.action()), ("install_chunk", Action::Retry));
        }
        // The receiver loses a chunk, and the sender rewinds.
        let again = match sender.next_chunk().unwrap() {
            Some(later) => {
                let error = install.push(later).unwrap_err();
                assert!(matches!(error, InstallError::Chunk { .. }), "{error}");
                sender.resume_at(install.next_number()).unwrap();
                sender.next_chunk().unwrap().unwrap()
            }
            None => chunk.clone(),
        };
        assert_eq!(again, chunk);
        let progress = install.push(again).unwrap();
        number += 1;
        assert_eq!((progress.next, progress.is_complete), (number, install.info().is_some() && is_last(&chunk)));
        last = chunk;
    }
    // Nothing follows the last chunk.
    assert!(matches!(install.push(last).unwrap_err(), InstallError::Chunk { .. }));
    install.finish().unwrap();
    assert_eq!(visible_state(other.db()), visible_state(node.db()));
}

fn is_last(chunk: &Bytes) -> bool {
    chunk[5] == 4
}

#[test]
fn an_unfinished_install_leaves_nothing_behind_and_another_one_can_begin() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    for backend in built() {
        let mut other = Node::new(backend);
        other.db().keyspace("k").unwrap().put(b"key", b"value").unwrap();
        let before = digest(other.db());
        for taken in 0..chunks.len() {
            let mut install = begin(other.db()).unwrap();
            assert!(matches!(begin(other.db()).unwrap_err(), InstallError::InProgress));
            for chunk in &chunks[..taken] {
                install.push(chunk.clone()).unwrap();
            }
            if taken % 2 == 0 {
                let error = install.finish().unwrap_err();
                assert!(matches!(error, InstallError::Incomplete { next } if next == taken as u64), "{error}");
            }
            drop(install);
            assert_eq!(other.state_dirs(), [backend.name()]);
        }
        assert_eq!(digest(other.db()), before);
        other.reopen();
        assert_eq!(digest(other.db()), before);
        install(other.db(), &chunks).unwrap();
        assert_eq!(digest(other.db()), digest(node.db()));
    }
}

#[test]
fn snapshots_that_do_not_fit_are_rejected() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let early = chunks(node.db());
    go_on(node.db(), 1);
    // The node itself is ahead of its earlier snapshot.
    let error = install(node.db(), &early).unwrap_err();
    assert!(matches!(error, InstallError::Outdated { snapshot, applied } if snapshot < applied), "{error}");
    let since = node.db().inner.open.machine.applied().lsn;
    go_on(node.db(), 2);
    let other = Node::new(BackendKind::Memory);
    let increment = SnapshotOptions { since: Some(since), ..SnapshotOptions::default() };
    let increment = node.db().snapshot(&increment).unwrap().next_chunk().unwrap().unwrap();
    let error = begin(other.db()).unwrap().push(increment).unwrap_err();
    assert!(matches!(error, InstallError::Unsuitable { .. }), "{error}");
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshot/tests/golden/snapshot-full-v2.tws");
    let old = std::fs::read(old).unwrap();
    let first = 32 + u32::from_le_bytes(old[16..20].try_into().unwrap()) as usize;
    let error = begin(other.db()).unwrap().push(Bytes::copy_from_slice(&old[..first])).unwrap_err();
    assert!(matches!(error, InstallError::Unsuitable { .. }), "{error}");
    let mut install = begin(other.db()).unwrap();
    let error = install.push(Bytes::from_static(b"not a snapshot, but longer than a header")).unwrap_err();
    assert!(matches!(error, InstallError::Chunk { next: 0, error: SnapshotReadError::NotASnapshot }), "{error}");
}

#[test]
fn entries_that_are_applied_during_an_install_make_it_outdated() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let mut install = begin(node.db()).unwrap();
    for chunk in &chunks {
        install.push(chunk.clone()).unwrap();
    }
    go_on(node.db(), 1);
    let now = visible_state(node.db());
    let error = install.finish().unwrap_err();
    assert!(matches!(error, InstallError::Outdated { .. }), "{error}");
    assert_eq!(visible_state(node.db()), now);
    assert_eq!(node.state_dirs(), ["memory"]);
    go_on(node.db(), 2);
}

/// The caller may keep the value of an install after it has ended. The database can be opened again nevertheless.
#[test]
fn an_install_that_has_ended_releases_the_database() {
    let (mut node, mut other) = (Node::new(BackendKind::Memory), Node::new(BackendKind::Memory));
    furnish(node.db());
    let chunks = chunks(node.db());
    let begun = |db: &crate::Database| {
        let mut install = begin(db).unwrap();
        chunks.iter().for_each(|chunk| _ = install.push(chunk.clone()).unwrap());
        install
    };
    let mut failed = begun(node.db());
    go_on(node.db(), 1);
    assert!(matches!(failed.finish(), Err(InstallError::Outdated { .. })));
    drop(begin(node.db()).unwrap());
    node.reopen();
    let mut finished = begun(other.db());
    finished.finish().unwrap();
    drop(begin(other.db()).unwrap());
    other.reopen();
    for mut ended in [failed, finished] {
        assert_eq!((ended.next_number(), ended.info()), (0, None));
        assert!(matches!(ended.push(chunks[0].clone()), Err(InstallError::Ended)));
    }
}

#[test]
fn a_closed_database_installs_nothing() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let other = Node::new(BackendKind::Memory);
    let mut install = begin(other.db()).unwrap();
    install.push(chunks[0].clone()).unwrap();
    other.db().close().unwrap();
    assert!(matches!(install.push(chunks[1].clone()).unwrap_err(), InstallError::Closed));
    assert!(matches!(begin(other.db()).unwrap_err(), InstallError::InProgress | InstallError::Closed));
}

#[test]
fn a_full_disk_ends_an_install_and_keeps_the_former_state() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let backends = [BackendKind::Memory, BackendKind::Redb].into_iter().filter(|kind| kind.is_built());
    for backend in backends {
        let mut failures = 0;
        // From no room at all to enough room.
        for room in (0..2_000_000).step_by(8_000) {
            let disk = SimDisk::new(1);
            let db = open_sim(&disk, backend).unwrap();
            db.keyspace("k").unwrap().put(b"key", b"value").unwrap();
            db.flush().unwrap();
            let before = digest(&db);
            disk.set_capacity(allocated(&disk) + room);
            match install(&db, &chunks) {
                Ok(_) => {
                    assert!(failures > 0, "{backend:?}: no room was enough");
                    assert_eq!(digest(&db), digest(node.db()));
                    break;
                }
                Err(error) => {
                    failures += 1;
                    assert!(is_full(&error), "{backend:?} with {room}: {error:?}");
                    assert_eq!(digest(&db), before, "{backend:?} with {room}");
                    disk.set_capacity(LARGE);
                    // The log prepares segments again after a moment.
                    let installed = (0..100).find_map(|_| install(&db, &chunks).ok());
                    assert!(installed.is_some(), "{backend:?} with {room}");
                    assert_eq!(digest(&db), digest(node.db()));
                }
            }
        }
        println!("{backend:?}: {failures} failures");
        assert!(failures > 0, "{backend:?}");
    }
}

#[test]
fn all_chunks_are_taken_from_the_bytes_of_a_snapshot() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let bytes = chunks(node.db()).concat();
    let other = Node::new(BackendKind::Memory);
    let mut install = begin(other.db()).unwrap();
    let mut last = None;
    install.push_all(&mut &bytes[..], &mut |progress| last = Some(*progress)).unwrap();
    assert!(last.is_some_and(|last| last.is_complete));
    install.finish().unwrap();
    assert_eq!(digest(other.db()), digest(node.db()));
    // Damaged, cut and hostile bytes end in an error.
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    let mut claims_too_much = bytes.clone();
    claims_too_much[16..20].fill(0xff);
    for wrong in [&flipped[..], &bytes[..40], &bytes[..7], &claims_too_much] {
        let mut install = begin(other.db()).unwrap();
        let error = install.push_all(&mut &wrong[..], &mut |_| {}).unwrap_err();
        assert!(matches!(error, InstallError::Chunk { .. }), "{error}");
    }
    let mut install = begin(other.db()).unwrap();
    install.push_all(&mut &[][..], &mut |_| {}).unwrap();
    assert!(matches!(install.finish(), Err(InstallError::Incomplete { next: 0 })));
}

/// Consensus relies on a snapshot once it is prepared, so the remaining steps must not need disk space.
#[test]
fn a_prepared_install_needs_no_room_and_an_abandoned_one_leaves_nothing() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let backends = [BackendKind::Memory, BackendKind::Redb].into_iter().filter(|kind| kind.is_built());
    for backend in backends {
        let disk = SimDisk::new(1);
        let db = open_sim(&disk, backend).unwrap();
        db.keyspace("k").unwrap().put(b"key", b"value").unwrap();
        let before = digest(&db);
        let prepared = || {
            let mut install = begin(&db).unwrap();
            for chunk in &chunks {
                assert!(matches!(install.prepare(), Err(InstallError::Incomplete { .. })));
                install.push(chunk.clone()).unwrap();
            }
            // The second call has nothing to do.
            (0..2).for_each(|_| install.prepare().unwrap());
            assert_eq!((install.next_number(), install.info().is_some()), (chunks.len() as u64, true));
            install
        };
        let new_state =
            |path: &String| path == "INSTALLED.tmp" || path.starts_with("state/default/") && path.contains(".1/");
        let install = prepared();
        assert!(disk.paths().iter().any(new_state));
        drop(install);
        assert!(!disk.paths().iter().any(new_state), "{backend:?}: {:?}", disk.paths());
        assert_eq!(digest(&db), before);
        let mut install = prepared();
        disk.set_capacity(0);
        install.finish().unwrap();
        disk.set_capacity(LARGE);
        assert_eq!(digest(&db), digest(node.db()), "{backend:?}");
        assert!(!disk.paths().iter().any(|path| path == "INSTALLED.tmp"));
    }
}

/// A full disk is noticed while a new state is prepared, before anything has been switched.
#[test]
fn a_disk_that_fills_up_before_the_switch_only_ends_the_install() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    for operation in [Operation::Create, Operation::Write, Operation::Sync] {
        let disk = SimDisk::new(1);
        let db = open_sim(&disk, BackendKind::Memory).unwrap();
        db.keyspace("k").unwrap().put(b"key", b"value").unwrap();
        let before = digest(&db);
        disk.fail(Fault::new(operation, 1, Errno::NoSpace).on_path("INSTALLED.tmp"));
        let mut install = begin(&db).unwrap();
        chunks.iter().for_each(|chunk| _ = install.push(chunk.clone()).unwrap());
        let error = install.prepare().unwrap_err();
        assert!(is_full(&error), "{operation:?}: {error}");
        assert!(matches!(install.prepare(), Err(InstallError::Ended)));
        assert!(matches!(install.finish(), Err(InstallError::Ended)));
        drop(install);
        assert_eq!(digest(&db), before);
        super::support::install(&db, &chunks).unwrap();
        assert_eq!(digest(&db), digest(node.db()));
    }
}

fn is_full(error: &InstallError) -> bool {
    error.code() == "disk_full" || error.to_string().contains("full") || error.to_string().contains("space")
}

/// Returns the bytes that the files on the disk take.
fn allocated(disk: &SimDisk) -> u64 {
    disk.set_capacity(LARGE);
    LARGE - disk.free_bytes().unwrap()
}

/// Each call on the disk that an install makes can fail.
#[test]
fn a_failed_call_keeps_the_former_state_and_an_unknown_outcome_keeps_both() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let new = digest(node.db());
    let operations = [
        Operation::Create,
        Operation::Write,
        Operation::Sync,
        Operation::SyncDir,
        Operation::Rename,
        Operation::Remove,
        Operation::CreateDir,
        Operation::SetLen,
    ];
    let (mut unknown, mut failed) = (0, 0);
    for operation in operations {
        for nth in 1..30 {
            let disk = SimDisk::new(nth);
            let db = open_sim(&disk, BackendKind::Memory).unwrap();
            db.keyspace("k").unwrap().put(b"key", b"value").unwrap();
            db.flush().unwrap();
            let before = digest(&db);
            disk.fail(Fault::new(operation, nth, Errno::Io));
            let finished = install(&db, &chunks);
            disk.clear_faults();
            let context = format!("{operation:?} {nth}: {finished:?}");
            match finished {
                Err(InstallError::SwitchFailed { .. }) => {
                    unknown += 1;
                    assert_eq!(digest(&db), before, "{context}");
                    assert!(matches!(begin(&db).unwrap_err(), InstallError::SwitchFailed { .. }));
                    db.maintain().unwrap();
                    for draw in 0..10 {
                        let reopened = open_sim(&disk.power_loss(draw), BackendKind::Memory).unwrap();
                        let found = digest(&reopened);
                        assert!(found == before || found == new, "{context}: {found}");
                        let long = reopened.find_keyspace("k").unwrap().get(b"long").unwrap();
                        assert!(long.is_none() || long.unwrap().value == super::support::long(2), "{context}");
                    }
                }
                Err(_) => {
                    failed += 1;
                    assert_eq!(digest(&db), before, "{context}");
                }
                Ok(_) => assert_eq!(digest(&db), new, "{context}"),
            }
            let finished = digest(&db);
            drop(db);
            let reopened = open_sim(&disk, BackendKind::Memory).unwrap_or_else(|error| panic!("{context}: {error}"));
            let found = digest(&reopened);
            assert!(found == finished || found == new, "{context}");
        }
    }
    assert!(unknown > 0 && failed > 5, "{unknown} {failed}");
}

/// The rename is the last call that can fail before the new state is the current one.
#[test]
fn a_failed_rename_changes_nothing_and_the_install_can_be_finished_again() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let backends = [BackendKind::Memory, BackendKind::Redb].into_iter().filter(|kind| kind.is_built());
    for backend in backends {
        let disk = SimDisk::new(1);
        let db = open_sim(&disk, backend).unwrap();
        db.keyspace("k").unwrap().put(b"key", b"value").unwrap();
        let mut install = begin(&db).unwrap();
        chunks.iter().for_each(|chunk| _ = install.push(chunk.clone()).unwrap());
        disk.fail(Fault::new(Operation::Rename, 1, Errno::Io).on_path("INSTALLED").for_good());
        for _ in 0..3 {
            let error = install.finish().unwrap_err();
            assert!(matches!(error, InstallError::NotSwitched { .. }), "{backend:?}: {error}");
            assert_eq!((error.code(), error.action()), ("install_not_switched", Action::Retry));
            assert_eq!(db.find_keyspace("k").unwrap().get(b"key").unwrap().unwrap().value, &b"value"[..]);
            db.flush().unwrap();
        }
        disk.clear_faults();
        install.finish().unwrap();
        assert_eq!(digest(&db), digest(node.db()), "{backend:?}");
        drop((install, db));
        assert_eq!(digest(&open_sim(&disk.power_loss(1), backend).unwrap()), digest(node.db()), "{backend:?}");
    }
}

/// The state would count as that of an unfinished install without the file: the open would remove it, or begin an
/// empty one beside it.
#[test]
fn a_lost_file_that_names_the_installed_state_is_noticed_and_nothing_is_removed() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    for backend in built() {
        let mut other = Node::new(backend);
        let file = other.dir.path().join("INSTALLED");
        for number in 1..=2 {
            install(other.db(), &chunks).unwrap();
            let expected = digest(other.db());
            other.kill();
            let text = std::fs::read(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            let dir = format!("{}.{number}", backend.name());
            for _ in 0..2 {
                let error = open_at(other.dir.path(), backend).unwrap_err();
                assert_eq!((error.code(), error.action()), ("installed_missing", Action::Stop), "{error}");
                assert!(error.to_string().contains(&format!("state/default/{dir} ")), "{error}");
                let verified = state_files::verify(other.dir.path(), &options(backend), &mut |_| {});
                assert_eq!(verified.unwrap_err().code(), "installed_missing");
                let rebuilt = state_files::rebuild(other.dir.path(), &options(backend));
                assert_eq!(rebuilt.unwrap_err().code(), "installed_missing");
                assert_eq!(other.state_dirs(), [&*dir], "{backend:?}");
            }
            std::fs::write(&file, text).unwrap();
            other.reopen();
            assert_eq!(digest(other.db()), expected, "{backend:?}");
        }
    }
}

/// An install that has not switched leaves directory 1 beside directory 0 and no file, also after a kill.
#[test]
fn an_unfinished_first_install_is_no_lost_file() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    for backend in built() {
        let mut other = Node::new(backend);
        other.db().keyspace("k").unwrap().put(b"key", b"value").unwrap();
        other.db().flush().unwrap();
        let mut install = begin(other.db()).unwrap();
        chunks.iter().for_each(|chunk| _ = install.push(chunk.clone()).unwrap());
        install.prepare().unwrap();
        let copy = tempfile::tempdir().unwrap();
        super::crashes::copy_all(other.dir.path(), copy.path());
        assert_eq!(other.state_dirs(), [backend.name().to_owned(), format!("{}.1", backend.name())]);
        let killed = open_at(copy.path(), backend).unwrap();
        assert_eq!(digest(&killed), digest(other.db()), "{backend:?}");
        // A rebuild has set directory 0 aside.
        drop((killed, install));
        other.kill();
        let states = other.dir.path().join("state/default");
        std::fs::rename(states.join(backend.name()), states.join(format!("{}.old", backend.name()))).unwrap();
        std::fs::create_dir(states.join(format!("{}.1", backend.name()))).unwrap();
        drop(open_at(other.dir.path(), backend).unwrap());
    }
}

/// Members compare these results. Those of a former state that was wrong say nothing about the present one.
#[test]
fn an_install_forgets_the_hashes_and_digests_of_the_former_state() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let other = Node::new(BackendKind::Memory);
    other.db().keyspace("other").unwrap().put(b"key", b"value").unwrap();
    other.db().state_digest().unwrap();
    other.db().inner.open.hashes.add(HashMark { index: Index(1024), running_hash: 7 });
    let view = other.db().state_view();
    assert_eq!((other.db().state_digests().len(), other.db().hash_marks().len()), (1, 1));
    install(other.db(), &chunks(node.db())).unwrap();
    assert_eq!((other.db().state_digests().len(), other.db().hash_marks().len()), (0, 0));
    view.digest(&mut |_| {}).unwrap();
    assert_eq!(other.db().state_digests().len(), 0, "a digest that was being computed");
}
