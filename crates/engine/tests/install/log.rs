//! The node's own log, as an install finds it: votes, entries before and after the snapshot, and truncations.

use std::io::IoSlice;

use thalweg_log::{Draft, Purpose, RecordKind};
use thalweg_replica::Vote;
use thalweg_state::membership::LogId;
use thalweg_types::{Classified as _, Durability, Index, Lsn, NodeId, SpaceId, SpaceTime, Term};

use super::support::{Node, begin, chunks, digest, follow, furnish, go_on, install, verify, visible_state};
use crate::{
    BackendKind, Database,
    snapshot::{InstallError, SnapshotError, SnapshotOptions},
};

/// Appends a record that the state does not apply yet, as a member of a group does with an entry that is not committed.
fn append(db: &Database, kind: RecordKind, (term, index): (u64, u64), payload: &[u8]) {
    let time = SpaceTime(1_700_000_000_000_000);
    let payload = [IoSlice::new(payload)];
    let (term, index) = (Term(term), Index(index));
    let draft = Draft { space: SpaceId::ZERO, kind, term, index, time, payload: &payload };
    db.inner.open.log.append(&[draft], Durability::Os, Purpose::Data).unwrap();
}

pub(super) fn copy_entries(from: &Database, to: &Database, indexes: std::ops::RangeInclusive<u64>) {
    let log = &from.inner.open.log;
    for record in log.records_from(Lsn::ZERO).unwrap() {
        let record = record.unwrap();
        if record.kind == RecordKind::Entry && indexes.contains(&record.index.0) {
            append(to, record.kind, (record.term.0, record.index.0), &record.payload);
        }
    }
}

fn vote(term: u64) -> Vote {
    Vote { term: Term(term), node: NodeId(super::support::NODE), committed: true }
}

#[test]
fn the_last_vote_survives_wherever_it_is() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    for unapplied in [&[][..], &[7], &[7, 9]] {
        let mut other = Node::new(BackendKind::Memory);
        for term in unapplied {
            append(other.db(), RecordKind::Vote, (*term, 0), &vote(*term).encode());
        }
        install(other.db(), &chunks).unwrap();
        let expected = vote(unapplied.last().copied().unwrap_or(1));
        for _ in 0..2 {
            let found = other.db().inner.open.machine.vote().unwrap().unwrap();
            assert_eq!(Vote::decode(&found), Some(expected));
            other.reopen();
        }
    }
}

#[test]
fn entries_that_the_snapshot_covers_are_passed_and_later_ones_are_applied() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let last = node.db().inner.open.machine.applied().index.0;
    let before = digest(node.db());
    (1..4).for_each(|number| go_on(node.db(), number));
    let end = node.db().inner.open.machine.applied().index.0;
    for has in [last - 3, last, last + 1, end] {
        println!("the log has the entries up to {has}, the snapshot ends at {last}");
        let mut other = Node::new(BackendKind::Memory);
        // No entry is applied here, so the log can have those of the group from the first on.
        assert_eq!(other.db().inner.open.machine.applied().index, Index(0));
        copy_entries(node.db(), other.db(), 1..=has);
        append(other.db(), RecordKind::Vote, (8, 0), &vote(8).encode());
        let start = other.db().inner.open.log.end();
        install(other.db(), &chunks).unwrap();
        let open = &other.db().inner.open;
        assert_eq!(digest(other.db()), before);
        assert_eq!(open.machine.applied().lsn >= start, has <= last, "the log continues after the snapshot");
        assert_eq!(open.machine.purged().unwrap(), Some(LogId { term: Term(1), index: Index(last) }));
        if has <= last {
            let at = Lsn::ZERO;
            follow(node.db(), at, other.db());
        } else {
            // A restart of a single node applies what is there.
            other.reopen();
            assert_eq!(other.db().inner.open.machine.applied().index, Index(has));
            follow(node.db(), Lsn::ZERO, other.db());
        }
        assert_eq!((digest(other.db()), visible_state(other.db())), (digest(node.db()), visible_state(node.db())));
        let found = other.db().inner.open.machine.vote().unwrap().unwrap();
        assert_eq!(Vote::decode(&found).map(|vote| vote.term >= Term(8)), Some(true));
        other.reopen();
        assert_eq!((digest(other.db()), visible_state(other.db())), (digest(node.db()), visible_state(node.db())));
        verify(other.db());
    }
}

#[test]
fn a_log_with_entries_after_the_snapshot_is_noticed() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let last = node.db().inner.open.machine.applied().index.0;
    for (has, truncated, is_ahead) in [(last, None, false), (last + 2, None, true), (last + 2, Some(last), false)] {
        let other = Node::new(BackendKind::Memory);
        for index in 1..=has {
            append(other.db(), RecordKind::Blank, (1, index), &[]);
        }
        if let Some(index) = truncated {
            append(other.db(), RecordKind::Truncate, (0, index), &[]);
        }
        let mut install = begin(other.db()).unwrap();
        chunks.iter().for_each(|chunk| _ = install.push(chunk.clone()).unwrap());
        install.prepare().unwrap();
        match install.check_log() {
            Ok(()) => assert!(!is_ahead),
            Err(InstallError::LogAhead { snapshot, entry }) => {
                assert!(is_ahead);
                assert_eq!((snapshot, entry), (Index(last), Index(last + 1)));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn entries_of_another_history_and_those_that_a_truncation_voids_are_not_applied() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let last = node.db().inner.open.machine.applied().index.0;
    let at = node.db().inner.open.machine.applied().lsn;
    for truncated in [false, true] {
        let mut other = Node::new(BackendKind::Memory);
        copy_entries(node.db(), other.db(), 1..=5);
        // Entries of a leader that lost its term.
        let to = if truncated { last + 4 } else { last };
        for index in 6..=to {
            append(other.db(), RecordKind::Blank, (1, index), &[]);
        }
        if truncated {
            append(other.db(), RecordKind::Truncate, (0, 6), &[]);
        }
        let end = other.db().inner.open.log.end();
        install(other.db(), &chunks).unwrap();
        assert!(other.db().inner.open.machine.applied().lsn >= end);
        go_on(node.db(), 1 + u8::from(truncated));
        follow(node.db(), at, other.db());
        assert_eq!((digest(other.db()), visible_state(other.db())), (digest(node.db()), visible_state(node.db())));
        other.reopen();
        assert_eq!((digest(other.db()), visible_state(other.db())), (digest(node.db()), visible_state(node.db())));
    }
}

#[test]
fn an_increment_does_not_reach_across_an_install() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let last = node.db().inner.open.machine.applied().index.0;
    let at = node.db().inner.open.machine.applied().lsn;
    // The log holds some entries after the last one that was applied, or none of them.
    for (number, logged) in [(1, last - 3), (2, 5)] {
        let mut other = Node::new(BackendKind::Memory);
        copy_entries(node.db(), other.db(), 1..=5);
        other.reopen();
        let before = other.db().inner.open.machine.applied();
        assert_eq!(before.index, Index(5));
        for index in 6..=logged {
            append(other.db(), RecordKind::Blank, (1, index), &[]);
        }
        install(other.db(), &chunks).unwrap();
        let installed = other.db().inner.open.machine.applied().lsn;
        // Without any entry in its range, an increment states the installed entry as the one before it.
        assert_eq!(increment(other.db(), installed).unwrap(), (last, 0, last));
        assert_eq!(increment(other.db(), before.lsn).unwrap_err().code(), "compacted");
        go_on(node.db(), number);
        follow(node.db(), at, other.db());
        let now = other.db().inner.open.machine.applied().index.0;
        let (known, entries, to) = increment(other.db(), installed).unwrap();
        assert!([0, last].contains(&known), "{known}");
        assert_eq!((entries, to), (now - last, now));
        assert_eq!(increment(other.db(), before.lsn).unwrap_err().code(), "compacted");
    }
}

/// Takes an increment. Returns the index of the entry before it (0 if unknown), the number of its entries, and its last
/// index.
fn increment(db: &Database, since: Lsn) -> Result<(u64, u64, u64), SnapshotError> {
    let mut snapshot = db.snapshot(&SnapshotOptions { since: Some(since), ..SnapshotOptions::default() })?;
    let mut file = Vec::new();
    while let Some(chunk) = snapshot.next_chunk()? {
        file.extend_from_slice(&chunk);
    }
    let verified = crate::snapshot::verify(&file[..]).unwrap();
    Ok((verified.info.before.index.0, verified.totals.entries, verified.info.applied.index.0))
}

/// All values of this state are inline, so the install has no bytes to append to the log.
#[test]
fn an_increment_from_the_end_of_the_log_does_not_reach_across_an_install() {
    let node = Node::new(BackendKind::Memory);
    let keyspace = node.db().keyspace("k").unwrap();
    for number in 0..200_u8 {
        keyspace.put(&[number], &[number; 100]).unwrap();
    }
    let (chunks, last) = (chunks(node.db()), node.db().inner.open.machine.applied().index.0);
    let mut other = Node::new(BackendKind::Memory);
    copy_entries(node.db(), other.db(), 1..=5);
    other.reopen();
    let before = other.db().inner.open.machine.applied();
    assert_eq!((before.index, before.lsn), (Index(5), other.db().inner.open.log.end()));
    install(other.db(), &chunks).unwrap();
    assert_eq!(increment(other.db(), before.lsn).unwrap_err().code(), "compacted");
    let installed = other.db().inner.open.machine.applied();
    assert_eq!(increment(other.db(), installed.lsn).unwrap(), (last, 0, last));
    append(other.db(), RecordKind::Blank, (1, last + 1), &[]);
    other.reopen();
    assert_eq!(increment(other.db(), before.lsn).unwrap_err().code(), "compacted");
    assert_eq!(increment(other.db(), installed.lsn).unwrap().1, 1);
}

#[test]
fn records_of_the_node_that_are_appended_during_an_install_are_kept() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let mut other = Node::new(BackendKind::Memory);
    let mut install = begin(other.db()).unwrap();
    for (number, chunk) in chunks.iter().enumerate() {
        install.push(chunk.clone()).unwrap();
        append(other.db(), RecordKind::Vote, (10 + number as u64, 0), &vote(10 + number as u64).encode());
    }
    let last = 9 + chunks.len() as u64;
    install.finish().unwrap();
    drop(install);
    for _ in 0..2 {
        let found = other.db().inner.open.machine.vote().unwrap().unwrap();
        assert_eq!(Vote::decode(&found), Some(vote(last)));
        assert_eq!(visible_state(other.db()), visible_state(node.db()));
        other.reopen();
    }
}

#[test]
fn a_purge_of_older_entries_does_not_lower_that_of_the_install() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let other = Node::new(BackendKind::Memory);
    install(other.db(), &chunks(node.db())).unwrap();
    let machine = &other.db().inner.open.machine;
    let purged = machine.purged().unwrap().unwrap();
    assert_eq!(purged.index, machine.applied().index);
    let next = machine.applied().lsn.next();
    machine.apply_purged(LogId { term: Term(1), index: Index(2) }, next).unwrap();
    assert_eq!(machine.purged().unwrap(), Some(purged));
    let later = LogId { term: Term(1), index: purged.index.next() };
    machine.apply_purged(later, next.next()).unwrap();
    assert_eq!(machine.purged().unwrap(), Some(later));
}
