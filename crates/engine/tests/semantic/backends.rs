//! A directory keeps its backend, and a backend keeps no more than it needs.

use std::time::Duration;

use thalweg_engine::{
    BackendKind, Database, OpenError,
    types::{Action, Classified, Durability},
};

use crate::support::{Node, Restart};

fn a_directory_keeps_its_backend(node: &mut Node) {
    let own = node.backend();
    node.db().keyspace("k").unwrap().put(b"a", b"1").unwrap();
    for other in BackendKind::ALL.into_iter().filter(|other| *other != own) {
        let error = node.refused(|options| options.backend = Some(other));
        assert!(matches!(error, OpenError::OtherBackend { .. }), "{error}");
        assert_eq!((error.code(), error.action()), ("other_backend", Action::Fix));
        let message = error.to_string();
        let cure = format!("--from {} --to {}", own.name(), other.name());
        assert!(message.contains("thalweg migrate --data") && message.contains(&cure), "{message}");
    }
    node.restart_with(Restart::Kill, |options| options.backend = None);
    assert_eq!(node.backend(), own, "without a requested backend the directory decides");
    assert_eq!(node.db().keyspace("k").unwrap().get(b"a").unwrap().unwrap().value, b"1"[..]);
}

/// Runs rounds of maintenance until they write nothing more.
fn settle(db: &Database) {
    let end = || db.stats().applied_lsn;
    let mut before = None;
    while before != Some(end()) {
        before = Some(end());
        db.maintain().unwrap();
    }
}

fn a_quiet_node_gives_back_what_only_writes_need(node: &mut Node) {
    let fill = |db: &Database, keys: u32| {
        let keyspace = db.keyspace("k").unwrap().with_durability(Durability::Os);
        (0..keys).for_each(|number| drop(keyspace.put(&number.to_be_bytes(), &[7; 100]).unwrap()));
        settle(db);
    };
    let flushes = |node: &Node| node.db().stats().state.flushes;
    let is_buffered = node.backend() != BackendKind::Memory;
    fill(node.db(), 100);
    let before = flushes(node);
    node.pass(Duration::from_secs(9));
    node.db().maintain().unwrap();
    assert_eq!(flushes(node), before, "there may be further writes");
    node.pass(Duration::from_secs(1));
    node.db().maintain().unwrap();
    assert_eq!(flushes(node), before + u64::from(is_buffered));
    node.pass(Duration::from_secs(20));
    let until_spares = |node: &Node, wanted| {
        while node.db().stats().log.spare_segments != wanted {
            std::thread::sleep(Duration::from_millis(1));
            // A round may write to the log, for example that it has freed a segment.
            node.pass(Duration::from_secs(1));
            node.db().maintain().unwrap();
        }
    };
    until_spares(node, 0);
    assert_eq!(flushes(node), before + u64::from(is_buffered), "nothing has changed since");
    // Little is written again, soon after: it stays in memory. Much is written: it does not.
    for (keys, flushed) in [(20, 0), (200, u64::from(is_buffered))] {
        fill(node.db(), keys);
        let before = flushes(node);
        node.pass(Duration::from_secs(10));
        node.db().maintain().unwrap();
        assert_eq!(flushes(node), before + flushed, "{keys} keys");
    }
    until_spares(node, 2);
    node.through_restarts(|db| assert!(db.keyspace("k").unwrap().get(&[0, 0, 0, 99]).unwrap().is_some()));
}

on_every_backend!(a_directory_keeps_its_backend, a_quiet_node_gives_back_what_only_writes_need);
