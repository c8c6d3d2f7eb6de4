//! A directory keeps its backend.

use thalweg_engine::{
    BackendKind, OpenError,
    types::{Action, Classified},
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

on_every_backend!(a_directory_keeps_its_backend);
