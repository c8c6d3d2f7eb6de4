//! The commands that the simulation proposes.

use bytes::Bytes;
use thalweg_types::{
    KeyspaceId, StreamId,
    command::{CommandError, CommitBuilder, Expect, ExpectedOffset, Framed},
    record::RecordBatch,
};

use crate::history::Action;

/// Keyspace of the registers.
pub const KEYSPACE: KeyspaceId = KeyspaceId(1);
/// Stream of the appends.
pub const STREAM: StreamId = StreamId(1);

/// Encodes a command as the payload of an entry.
pub(crate) fn payload(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Bytes {
    let mut framed = Framed::new();
    framed.encode(encode).expect("the simulation's commands are valid");
    Bytes::copy_from_slice(framed.bytes())
}

/// Returns the bytes of a key.
pub(crate) fn key_bytes(key: u64) -> Vec<u8> {
    format!("key{key}").into_bytes()
}

fn encode_commit(build: impl FnOnce(&mut CommitBuilder) -> Result<(), CommandError>) -> Bytes {
    let mut commit = CommitBuilder::new();
    build(&mut commit).expect("the simulation's commits are valid");
    payload(|out| {
        commit.encode(out);
        Ok(())
    })
}

/// Returns the commands of a write; none for a read. `number` makes the payload of an append unique.
pub(crate) fn commands(key: u64, action: Action, number: u64) -> Bytes {
    match action {
        Action::Get => Bytes::new(),
        Action::Put(value) => {
            encode_commit(|commit| commit.put(KEYSPACE, &key_bytes(key), &value.to_le_bytes()).map(drop))
        }
        Action::Swap { expect, put } => encode_commit(|commit| {
            let expected = expect.map(u64::to_le_bytes);
            let condition = expected.as_ref().map_or(Expect::Absent, |value| Expect::Value(value));
            commit.expect(KEYSPACE, &key_bytes(key), condition)?.put(KEYSPACE, &key_bytes(key), &put.to_le_bytes())?;
            Ok(())
        }),
        Action::Append => encode_commit(|commit| {
            let mut batch = RecordBatch::new();
            batch.push_payload(&number.to_le_bytes()).expect("a short record");
            commit.append(STREAM, ExpectedOffset::Any, &batch)?;
            Ok(())
        }),
    }
}
