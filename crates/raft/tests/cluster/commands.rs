//! Commands of the tests, and how a test's future runs.

use std::future::Future;

use thalweg_types::{
    KeyspaceId,
    command::{CommandError, Framed, KeyspaceConfig, encode_create_keyspace, encode_put},
};

pub const KEYSPACE: KeyspaceId = KeyspaceId(1);

pub fn framed(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Framed {
    let mut command = Framed::new();
    command.encode(encode).unwrap();
    command
}

pub fn create() -> Framed {
    framed(|out| encode_create_keyspace(out, "keys", &KeyspaceConfig::default()))
}

pub fn put(key: &str, value: &[u8]) -> Framed {
    framed(|out| encode_put(out, KEYSPACE, key.as_bytes(), value))
}

/// Runs a test's future, and all tasks of its nodes, on this thread.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}
