//! The maximum number of watches.

use std::time::Duration;

use thalweg_engine::{BackendKind, Database, WatchError, WatchKeys, types::limits::MAX_WATCHES};

#[test]
fn one_watch_too_many_is_a_typed_error_and_one_that_ends_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path(), crate::common::small(BackendKind::Memory)).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let watch = |number: usize| keyspace.watch(&WatchKeys::Key(number.to_be_bytes().to_vec()), None);
    let mut watches: Vec<_> = (0..MAX_WATCHES).map(|number| watch(number).unwrap()).collect();
    let refused = watch(MAX_WATCHES).unwrap_err();
    assert!(matches!(refused, WatchError::TooMany), "{refused}");
    drop(watches.pop());
    let _in_its_place = watch(MAX_WATCHES).unwrap();
    assert!(matches!(watch(0), Err(WatchError::TooMany)));
    keyspace.put(&7_usize.to_be_bytes(), b"seven").unwrap();
    let told = watches[7].next_batch(Duration::from_secs(20)).unwrap();
    assert_eq!(told.events.len(), 1);
    db.close().unwrap();
}
