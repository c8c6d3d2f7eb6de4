//! Installs of snapshots from each backend into each backend, and what becomes of the log.

use std::sync::Arc;

use thalweg_disk::RealDisk;
use thalweg_types::{Classified, ClusterId, Lsn, Offset, Revision, limits::MIN_MEMBER_SEGMENT_BYTES};

use super::support::{
    self, Node, begin, built, chunks, digest, follow, furnish, go_on, install, long, verify, visible_state,
};
use crate::{BackendKind, Database, MemberIdentity, Options, Watch, WatchError, WatchKeys, snapshot::InstallError};

#[test]
fn each_backend_installs_the_snapshots_of_each_and_goes_on() {
    for source in built() {
        let node = Node::new(source);
        furnish(node.db());
        node.db().maintain().unwrap();
        let chunks = chunks(node.db());
        let (expected, seen) = (digest(node.db()), visible_state(node.db()));
        let at = node.db().inner.open.machine.applied().lsn;
        (1..20).for_each(|number| go_on(node.db(), number));
        let (later, seen_later) = (digest(node.db()), visible_state(node.db()));
        for target in built() {
            println!("{source:?} to {target:?}");
            install_and_follow(&node, &chunks, at, target, [&expected, &later], [&seen, &seen_later]);
        }
    }
}

fn install_and_follow(
    node: &Node,
    chunks: &[bytes::Bytes],
    at: Lsn,
    target: BackendKind,
    digests: [&String; 2],
    seen: [&String; 2],
) {
    let mut other = Node::new(target);
    // The former state has other data.
    let keyspace = other.db().keyspace("other").unwrap();
    keyspace.put(b"long", &long(9)).unwrap();
    other.db().stream("old").unwrap();
    let view = other.db().inner.open.machine.read_view();
    let former = view.get(keyspace.id(), b"long").unwrap();
    assert!(former.is_some());
    let installed = install(other.db(), chunks).unwrap();
    assert_eq!(installed.leftover, None);
    assert_eq!(other.state_dirs(), [format!("{}.1", target.name())]);
    assert_eq!(&digest(other.db()), digests[0]);
    assert_eq!(&visible_state(other.db()), seen[0]);
    assert_eq!(view.get(keyspace.id(), b"long").unwrap(), former, "the former view stays valid");
    assert_eq!(installed.applied, other.db().inner.open.machine.applied());
    drop((view, keyspace));
    let membership = node.db().inner.open.machine.membership().unwrap();
    assert_eq!(other.db().inner.open.machine.membership().unwrap(), membership);
    assert_eq!(Some(installed.membership), membership);
    // Opened again before and after later entries, with and without a flush.
    other.reopen();
    assert_eq!(&digest(other.db()), digests[0]);
    follow(node.db(), at, other.db());
    assert_eq!(&digest(other.db()), digests[1]);
    assert_eq!(&visible_state(other.db()), seen[1]);
    other.reopen();
    assert_eq!(&visible_state(other.db()), seen[1]);
    verify(other.db());
    // A second install, into the next directory.
    let chunks = support::chunks(node.db());
    install(other.db(), &chunks).unwrap();
    assert_eq!(other.state_dirs(), [format!("{}.2", target.name())]);
    assert_eq!(&digest(other.db()), digests[1]);
    other.db().flush().unwrap();
    other.reopen();
    assert_eq!(&visible_state(other.db()), seen[1]);
    verify(other.db());
}

#[test]
fn the_log_of_the_former_state_is_freed_and_that_of_the_install_stays() {
    for backend in [BackendKind::Memory, BackendKind::Lsm] {
        let node = Node::new(backend);
        furnish(node.db());
        let stream = node.db().stream("big").unwrap();
        for number in 0..40_u8 {
            let mut batch = thalweg_types::record::RecordBatch::new();
            batch.push_payload(&vec![number; 9000]).unwrap();
            stream.append(&batch).unwrap();
        }
        let chunks = chunks(node.db());
        let mut other = Node::new(backend);
        let keyspace = other.db().keyspace("k").unwrap();
        for number in 0..60_u8 {
            keyspace.put(&[number], &vec![number; 5000]).unwrap();
        }
        let before = other.db().inner.open.log.segments();
        assert!(before.len() > 3);
        let mut install = begin(other.db()).unwrap();
        for (number, chunk) in chunks.iter().enumerate() {
            install.push(chunk.clone()).unwrap();
            // The former state passes the records of the install and releases their segments, in which nothing of it
            // is.
            if number % 20 == 0 {
                keyspace.put(b"more", b"value").unwrap();
            }
            other.db().flush().unwrap();
            other.db().maintain().unwrap();
        }
        drop(keyspace);
        install.finish().unwrap();
        drop(install);
        assert_eq!(visible_state(other.db()), visible_state(node.db()));
        for _ in 0..10 {
            other.db().flush().unwrap();
            other.db().maintain().unwrap();
        }
        let after = other.db().inner.open.log.segments();
        let kept: Vec<_> =
            before.iter().filter(|old| after.iter().any(|new| new.generation == old.generation)).collect();
        assert!(kept.len() <= 1, "the former segments are free: {kept:?}");
        assert_eq!(visible_state(other.db()), visible_state(node.db()));
        other.reopen();
        assert_eq!(visible_state(other.db()), visible_state(node.db()));
        verify(other.db());
    }
}

#[test]
fn watches_end_with_compacted_and_new_ones_see_later_changes() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let at = node.db().inner.open.machine.applied();
    let other = Node::new(BackendKind::Memory);
    let keyspace = other.db().keyspace("k").unwrap();
    for number in 0..10 {
        keyspace.put(&[number], b"v").unwrap();
    }
    let all = WatchKeys::Prefix(Vec::new());
    let mut live = keyspace.watch(&all, None).unwrap();
    let mut behind = keyspace.watch(&all, Some(Revision(2))).unwrap();
    install(other.db(), &chunks).unwrap();
    for watch in [&mut live, &mut behind] {
        let error = ended(watch);
        assert!(matches!(error, WatchError::Compacted { .. }), "{error}");
        assert_eq!(error.code(), "compacted");
    }
    let error = keyspace.watch(&all, Some(at.revision)).unwrap_err();
    assert!(matches!(error, WatchError::Compacted { oldest, .. } if oldest == at.revision.next()), "{error}");
    let mut next = keyspace.watch(&all, Some(at.revision.next())).unwrap();
    go_on(node.db(), 3);
    follow(node.db(), at.lsn, other.db());
    let mut events = 0;
    while events < 3 {
        events += next.next_batch(std::time::Duration::from_secs(10)).unwrap().events.len();
    }
    assert_eq!(events, 3);
}

fn ended(watch: &mut Watch) -> WatchError {
    loop {
        if let Err(error) = watch.next_batch(std::time::Duration::from_secs(10)) {
            return error;
        }
    }
}

#[test]
fn a_node_installs_a_snapshot_of_its_own_position_and_watches_go_on() {
    // As the repair of a state that differs from the others.
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let (expected, seen) = (digest(node.db()), visible_state(node.db()));
    let keyspace = node.db().keyspace("k").unwrap();
    let mut watch = keyspace.watch(&WatchKeys::Prefix(Vec::new()), None).unwrap();
    install(node.db(), &chunks(node.db())).unwrap();
    assert_eq!((digest(node.db()), visible_state(node.db())), (expected, seen));
    keyspace.put(b"new", b"value").unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        events = watch.next_batch(std::time::Duration::from_secs(10)).unwrap().events;
    }
    assert_eq!(events.len(), 1);
    let long = keyspace.get(b"long").unwrap().unwrap();
    assert_eq!(long.value, support::long(2));
}

#[test]
fn a_member_that_joins_installs_and_opens_again_as_a_member() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    assert!(matches!(node.db().install().unwrap_err(), InstallError::Alone));
    let chunks = chunks(node.db());
    for backend in built() {
        let dir = tempfile::tempdir().unwrap();
        let open = |identity| {
            let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
            let options = Options { segment_bytes: MIN_MEMBER_SEGMENT_BYTES, ..support::options(backend) };
            Database::open_member_on(disk, support::clock(), 8, options, identity).unwrap()
        };
        let db = open(MemberIdentity::Join { cluster: ClusterId(7) });
        let mut install = db.install().unwrap();
        for chunk in &chunks {
            install.push(chunk.clone()).unwrap();
        }
        let installed = install.finish().unwrap();
        drop(install);
        assert!(db.member_parts().unwrap().member.now() >= installed.applied.time);
        assert_eq!((digest(&db), visible_state(&db)), (digest(node.db()), visible_state(node.db())));
        db.maintain().unwrap();
        drop(db);
        let db = open(MemberIdentity::Existing);
        assert_eq!((digest(&db), visible_state(&db)), (digest(node.db()), visible_state(node.db())));
        verify(&db);
    }
}

#[test]
fn a_waiting_reader_of_a_stream_and_a_waiting_fetch_see_the_new_state() {
    let node = Node::new(BackendKind::Memory);
    furnish(node.db());
    let chunks = chunks(node.db());
    let other = Node::new(BackendKind::Memory);
    // The same first steps as in the other node, so that the ids are the same.
    for name in ["k", "dropped", "cleared"] {
        other.db().keyspace(name).unwrap();
    }
    let stream = other.db().stream("s").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| stream.wait_for(Offset(5), std::time::Duration::from_secs(30)));
        install(other.db(), &chunks).unwrap();
        assert!(waiting.join().unwrap());
    });
    assert!(stream.info().unwrap().next > Offset(5));
}
