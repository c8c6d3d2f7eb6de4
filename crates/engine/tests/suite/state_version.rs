//! Versions of the state machine, through the engine: raising the version, and entries that need a version unknown to
//! the node.

use std::sync::Arc;

use thalweg_disk::SimDisk;
use thalweg_engine::{
    BackendKind, Database, WriteError,
    types::{
        Action, Classified, Durability, KeyspaceId,
        command::{Framed, encode_put, encode_raise_version, encode_versioned},
    },
};
use thalweg_log::{Purpose, RecordKind};

use crate::{
    common::{block_on, clock, simulated, small},
    truncations::{founded, writer},
};

#[test]
fn a_version_that_the_node_does_not_know_is_refused_before_it_is_proposed() {
    let db = simulated(&SimDisk::new(1), 7);
    db.keyspace("k").unwrap();
    let (known, before) = (db.known_version(), db.stats().applied_index);
    assert_eq!(db.version_in_force(), 1);
    let unknown = known + 1;
    let error = db.raise_version(unknown).unwrap_err();
    assert_eq!(error, WriteError::VersionUnknown { to: unknown, known });
    assert_eq!(block_on(db.to_async().raise_version(unknown, Durability::Disk)).unwrap_err(), error);
    let mut wrapped = Vec::new();
    encode_versioned(&mut wrapped, unknown, |out| encode_put(out, KeyspaceId(1), b"k", b"v").unwrap());
    let mut raise = Vec::new();
    encode_raise_version(&mut raise, unknown);
    for command in [wrapped, raise] {
        let error = db.propose_command(&command, Purpose::Data, Durability::Os).unwrap_err();
        assert_eq!(error, WriteError::VersionNotInForce { needed: unknown, in_force: 1 });
        assert_eq!(error.code(), "version_not_in_force");
    }
    assert_eq!(db.stats().applied_index, before, "nothing was written");
    assert_eq!(db.raise_version(1).unwrap(), 1);
    assert_eq!(db.stats().applied_index.0, before.0 + 1);
}

#[test]
fn a_log_whose_entries_need_a_newer_binary_is_not_opened_and_is_left_as_it_is() {
    for raises in [false, true] {
        let disk = SimDisk::new(1);
        let options = small(BackendKind::Memory);
        let db = founded(&disk, &options);
        let unknown = db.known_version() + 1;
        let writer = writer(&disk, db);
        writer.puts(1, 2..=3);
        let mut command = Framed::new();
        let encoded = command.encode(|out| {
            if raises {
                encode_raise_version(out, unknown);
                return Ok(());
            }
            encode_versioned(out, unknown, |out| encode_put(out, writer.keyspace, b"k", b"new").unwrap());
            Ok::<_, thalweg_engine::types::command::CommandError>(())
        });
        encoded.unwrap();
        writer.append(RecordKind::Entry, 1, 4, command.bytes());
        writer.puts(1, 5..=6);
        drop(writer);
        // Open repeatedly: a failed start must not influence the next one.
        for _ in 0..2 {
            let error = Database::open_on(Arc::new(disk.clone()), clock(), 5, options.clone()).unwrap_err();
            assert_eq!((error.code(), error.action()), ("needs_upgrade", Action::Stop), "{error}");
            let text = error.to_string();
            assert!(text.contains("entry 4") && text.contains(&unknown.to_string()), "{text}");
        }
    }
}
