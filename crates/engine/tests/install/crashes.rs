//! Kills and power losses at every step of an install: the next open finds the former state or the new one.

use std::{fs, path::Path};

use bytes::Bytes;
use thalweg_disk::{SimDisk, sim::PowerLoss};
use thalweg_replica::Vote;
use thalweg_types::{NodeId, Term};

use super::{
    log::copy_entries,
    support::{
        NODE, Node, begin, built, chunks, digest, furnish, go_on, install, open_at, open_sim, verify, visible_state,
    },
};
use crate::{
    BackendKind, Database,
    snapshot::{Install, InstallError},
};

/// The two states that a node may show after a crash: the former one, and that of the snapshot.
struct States {
    former: (String, String),
    new: (String, String),
    chunks: Vec<Bytes>,
}

fn shown(db: &Database) -> (String, String) {
    (digest(db), visible_state(db))
}

fn fill_former(db: &Database) {
    let keyspace = db.keyspace("former").unwrap();
    for number in 0..20_u8 {
        keyspace.put(&[number], &vec![number; 400 * usize::from(number % 3)]).unwrap();
    }
    let stream = db.stream("records").unwrap();
    let mut batch = thalweg_types::record::RecordBatch::new();
    batch.push_payload(b"record").unwrap();
    stream.append(&batch).unwrap();
}

impl States {
    fn new() -> Self {
        let node = Node::new(BackendKind::Memory);
        furnish(node.db());
        let other = Node::new(BackendKind::Memory);
        fill_former(other.db());
        Self { former: shown(other.db()), new: shown(node.db()), chunks: chunks(node.db()) }
    }

    /// Checks a directory after a crash. `done` tells if the install had returned.
    fn check(&self, db: &Database, done: bool, context: &str) {
        let found = shown(db);
        assert!(found == self.new || (!done && found == self.former), "{context}: {}, or done: {done}", found.0);
        verify(db);
        let vote = db.inner.open.machine.vote().unwrap().unwrap();
        let expected = Vote { term: Term(1), node: NodeId(NODE), committed: true };
        assert_eq!(Vote::decode(&vote), Some(expected), "{context}: the node's own vote");
        let stats = db.stats();
        assert!(stats.applied_lsn <= stats.durable_lsn, "{context}: the state is ahead of the log");
    }

    fn install(&self, db: &Database) -> Result<(), InstallError> {
        let mut install = begin(db)?;
        for chunk in &self.chunks {
            install.push(chunk.clone())?;
        }
        install.finish().map(drop)
    }
}

/// Opens the former state on a new disk, and installs the snapshot until the power is lost after `after` operations
/// from the beginning of the install. Returns true if the install has finished.
fn install_on(states: &States, backend: BackendKind, disk: &SimDisk, after: Option<u64>) -> bool {
    let db = open_sim(disk, backend).unwrap();
    fill_former(&db);
    db.flush().unwrap();
    db.sync().unwrap();
    if let Some(after) = after {
        disk.power_off_after(after);
    }
    states.install(&db).is_ok()
}

fn crash_at(states: &States, backend: BackendKind, after: u64, total: u64) {
    let disk = SimDisk::new(after);
    let done = install_on(states, backend, &disk, Some(after));
    for draw in [after, !after] {
        let loss = PowerLoss::random(draw, disk.unsynced_changes());
        let context = format!("{backend:?}: power off after {after} of {total}, {loss:?}");
        let crashed = disk.after_power_loss_with(loss);
        // A kill during the recovery, then another power loss.
        drop(open_sim(&crashed.kill_process(), backend));
        let again = crashed.kill_process();
        again.power_off_after(draw % 40);
        drop(open_sim(&again, backend));
        let twice = again.power_loss(draw);
        let db = open_sim(&twice, backend).unwrap_or_else(|error| panic!("{context}, twice: {error}"));
        states.check(&db, done, &context);
        drop(db);
        let db = open_sim(&crashed, backend).unwrap_or_else(|error| panic!("{context}: {error}"));
        states.check(&db, done, &context);
        // The install succeeds when it is made again.
        if draw == after {
            let installed = states.install(&db);
            let is_new = shown(&db) == states.new;
            assert!(is_new, "{context}: {installed:?}");
        }
        drop(db);
        let db = open_sim(&crashed.power_loss(draw), backend).unwrap_or_else(|error| panic!("{context}: {error}"));
        states.check(&db, done || draw == after, &context);
    }
    let killed = disk.kill_process();
    let context = format!("{backend:?}: killed after {after}");
    let db = open_sim(&killed, backend).unwrap_or_else(|error| panic!("{context}: {error}"));
    states.check(&db, done, &context);
}

fn operations(states: &States, backend: BackendKind) -> u64 {
    let disk = SimDisk::new(1);
    let db = open_sim(&disk, backend).unwrap();
    fill_former(&db);
    db.flush().unwrap();
    db.sync().unwrap();
    let before = disk.operations();
    states.install(&db).unwrap();
    disk.operations() - before
}

#[test]
fn power_loss_at_every_operation_of_an_install() {
    let states = States::new();
    let total = operations(&states, BackendKind::Memory);
    println!("{total} operations");
    assert!(total > 50, "{total}");
    (0..=total).for_each(|after| crash_at(&states, BackendKind::Memory, after, total));
}

/// The log has entries after the snapshot that precede the bytes of the install. The new state contains rows that point
/// beyond its applied position.
#[test]
fn power_loss_at_every_operation_of_an_install_behind_later_entries() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    go_on(node.db(), 1);
    let expected = shown(node.db());
    let run = |disk: &SimDisk, after: Option<u64>| {
        let db = open_sim(disk, BackendKind::Memory).unwrap();
        copy_entries(node.db(), &db, 1..=u64::MAX);
        db.sync().unwrap();
        let before = disk.operations();
        if let Some(after) = after {
            disk.power_off_after(after);
        }
        let done = install(&db, &chunks).is_ok();
        (done, disk.operations() - before)
    };
    let (done, total) = run(&SimDisk::new(1), None);
    assert!(done && total > 50, "{total}");
    for after in 0..=total {
        let disk = SimDisk::new(after);
        let (done, _) = run(&disk, Some(after));
        for draw in 0..4 {
            let context = format!("power off after {after} of {total}, done: {done}, {draw}");
            let lost = disk.power_loss(draw);
            // Replay of the log leads from each of both states to the same one.
            let db = open_sim(&lost, BackendKind::Memory).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(shown(&db), expected, "{context}");
            verify(&db);
        }
    }
}

/// A separate thread makes redb's transactions, so the number of operations varies a little.
#[test]
#[cfg(feature = "redb")]
fn power_loss_at_every_operation_of_an_install_with_redb() {
    let states = States::new();
    let total = operations(&states, BackendKind::Redb);
    println!("{total} operations");
    assert!(total > 100, "{total}");
    (0..=total + 5).for_each(|after| crash_at(&states, BackendKind::Redb, after, total));
}

/// Copies the files of a real directory after each step, as a kill of the process would leave them, and opens each
/// copy.
#[test]
fn a_kill_between_any_two_steps_leaves_the_former_state_or_the_new_one() {
    let states = States::new();
    for backend in built() {
        let node = Node::new(backend);
        fill_former(node.db());
        node.db().flush().unwrap();
        let mut install = begin(node.db()).unwrap();
        let check = |step: &str, is_new: bool| {
            let copy = tempfile::tempdir().unwrap();
            copy_all(node.dir.path(), copy.path());
            let context = format!("{backend:?}: {step}");
            let db = open_at(copy.path(), backend).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(shown(&db), if is_new { states.new.clone() } else { states.former.clone() }, "{context}");
            states.check(&db, is_new, &context);
            drop(db);
            let left = fs::read_dir(copy.path().join("state/default")).unwrap().count();
            assert_eq!(left, 1, "{context}: the other state directories are removed");
        };
        for (number, chunk) in states.chunks.iter().enumerate() {
            install.push(chunk.clone()).unwrap();
            if number % 5 == 0 {
                check(&format!("after chunk {number}"), false);
            }
        }
        check("before the end", false);
        finish_in_steps(install, &check);
        assert_eq!(shown(node.db()), states.new);
        check("after the end", true);
    }
}

/// Finishes an install like [`Install::finish`], and calls `check` after each step.
fn finish_in_steps(install: Install, check: &dyn Fn(&str, bool)) {
    let mut install = install.0.expect("it has not ended");
    let super::super::InstallPhase::Loading(loading) =
        std::mem::replace(&mut install.phase, super::super::InstallPhase::Ended)
    else {
        panic!("no chunks")
    };
    let (info, membership) = (*loading.contents.info(), loading.membership.clone());
    let (totals, next) = (loading.contents.totals(), loading.contents.next_number());
    let machine = install.complete(*loading).unwrap();
    check("complete", false);
    let (_, new) = install.dirs().unwrap();
    let disk = std::sync::Arc::clone(&install.inner.open.disk);
    new.prepare(&disk).unwrap();
    check("prepared", false);
    // The switch does this first; doing it twice changes nothing.
    new.make_current(&disk).unwrap();
    check("current on disk", true);
    new.prepare(&disk).unwrap();
    let prepared = super::super::Prepared { machine, info, membership, totals, next };
    assert_eq!(install.switch(Box::new(prepared)).unwrap(), None);
    check("switched", true);
}

pub(super) fn copy_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else if entry.file_name() != "LOCK" {
            // A file that disappears in the meantime is one that a background thread has removed.
            let _ = fs::copy(entry.path(), &target);
        }
    }
}
