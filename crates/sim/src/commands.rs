//! Encoding of the commands that the simulation proposes.
//!
//! Owns: the encoding of the clients' operations, and of the commands that create the objects that they use. Does not
//! own: the meaning of the operations (`model`).

use bytes::Bytes;
use thalweg_types::{
    Attempt, GroupId, KeyspaceId, LeaseId, Offset, Revision, StreamId,
    command::{
        AppendConditions, CommandError, CommitBuilder, Deadline, Expect, ExpectedOffset, Framed, KeyspaceConfig,
        ProducerStamp, StreamConfig, encode_create_keyspace, encode_create_stream, encode_grant_lease,
        encode_keep_lease, encode_revoke_lease,
        groups::{
            GroupConfig, OffsetRun, Redelivery, Settlement, encode_ack, encode_create_group, encode_fetch, encode_nack,
        },
    },
    record::RecordBatch,
};

use crate::history::{Action, Key};

/// Name of the keyspace that contains all keys of a simulation.
pub(crate) const KEYSPACE_NAME: &str = "k";
/// Name of the stream to which the simulated clients append.
pub(crate) const STREAM_NAME: &str = "s";
/// Id of the keyspace that contains all keys of a simulation.
pub(crate) const KEYSPACE: KeyspaceId = KeyspaceId(1);
/// Id of the stream to which the simulated clients append.
pub(crate) const STREAM: StreamId = StreamId(1);
/// Id of the consumer group that reads the simulation's stream.
const GROUP: GroupId = GroupId(1);
/// Time after which records that were delivered and not acked are delivered again.
pub(crate) const ACK_DEADLINE: std::time::Duration = std::time::Duration::from_millis(1500);

/// Returns a command preceded by its length, the form (frame) in which nodes propose commands to consensus.
pub(crate) fn framed(command: &[u8]) -> Framed {
    let mut framed = Framed::with_capacity(command.len());
    let encode = |out: &mut Vec<u8>| {
        out.extend_from_slice(command);
        Ok::<(), CommandError>(())
    };
    framed.encode(encode).expect("the simulation's commands are short");
    framed
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Bytes {
    let mut out = Vec::new();
    encode(&mut out).expect("the simulation's commands are valid");
    out.into()
}

/// Returns the commands that create the keyspace, the stream and the consumer group that the simulated clients use.
pub(crate) fn creations() -> [Bytes; 3] {
    let group = GroupConfig { ack_deadline: ACK_DEADLINE, ..GroupConfig::default() };
    [
        encoded(|out| encode_create_keyspace(out, KEYSPACE_NAME, &KeyspaceConfig::default())),
        encoded(|out| encode_create_stream(out, STREAM_NAME, &StreamConfig::default())),
        encoded(|out| encode_create_group(out, STREAM, "g", Some(Offset::ZERO), &group)),
    ]
}

/// Returns the bytes of the key with this number.
pub(crate) fn key_bytes(key: Key) -> Vec<u8> {
    format!("key{key}").into_bytes()
}

/// Returns the bytes of a value: its number, followed by padding. The length of the padding varies, so that nodes store
/// some values in their state and others only in the log.
pub(crate) fn value_bytes(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + [0, 30, 300, 1500][(number % 4) as usize], number as u8);
    bytes
}

/// Returns the number of a value; `None` if no value has these bytes.
pub(crate) fn number_of(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*bytes.first_chunk()?);
    (value_bytes(number) == bytes).then_some(number)
}

/// Returns the key of the resource that a lock guards.
pub(crate) fn guarded_by(lock: Key) -> Key {
    lock + 1000
}

fn commit(build: impl FnOnce(&mut CommitBuilder) -> Result<(), CommandError>) -> Bytes {
    encoded(|out| {
        let mut commit = CommitBuilder::new();
        build(&mut commit)?;
        commit.encode(out);
        Ok(())
    })
}

fn settlement(attempt: u64, offsets: &[u64]) -> [Settlement; 1] {
    let runs = offsets.iter().map(|offset| OffsetRun::one(Offset(*offset))).collect();
    [Settlement { attempt: Attempt(attempt), runs }]
}

fn append(commit: &mut CommitBuilder, record: u64, stamp: Option<(u64, u64)>) -> Result<(), CommandError> {
    let mut batch = RecordBatch::new();
    batch.push_payload(&record.to_le_bytes()).expect("a short record");
    let id = stamp.map(|(producer, _)| format!("producer{producer}"));
    let producer = stamp.zip(id.as_deref()).map(|((_, sequence), id)| ProducerStamp { id, epoch: 0, sequence });
    commit.append_with(STREAM, &AppendConditions { expected: ExpectedOffset::Any, producer }, &batch)?;
    Ok(())
}

/// Returns the encoded command of an operation; empty for a read, which needs no command.
pub(crate) fn command(action: &Action) -> Bytes {
    match action {
        Action::Read { .. } => Bytes::new(),
        Action::Write { expect, put, number } => commit(|commit| {
            if let Some((key, None)) = put.first() {
                // This condition always holds. It makes each delete of a key a different command.
                commit.expect(KEYSPACE, &key_bytes(*key), Expect::Before(Revision(u64::MAX - number)))?;
            }
            for (key, value) in expect {
                let value = value.map(value_bytes);
                let expected = value.as_ref().map_or(Expect::Absent, |value| Expect::Value(value));
                commit.expect(KEYSPACE, &key_bytes(*key), expected)?;
            }
            for (key, value) in put {
                match value {
                    Some(value) => commit.put(KEYSPACE, &key_bytes(*key), &value_bytes(*value))?,
                    None => commit.delete(KEYSPACE, &key_bytes(*key))?,
                };
            }
            Ok(())
        }),
        Action::Append { record, stamp } => commit(|commit| append(commit, *record, *stamp)),
        Action::Grant { lease, ttl } => encoded(|out| encode_grant_lease(out, Some(LeaseId(*lease)), *ttl)),
        Action::Keep { lease } => encoded(|out| {
            encode_keep_lease(out, LeaseId(*lease));
            Ok(())
        }),
        Action::Revoke { lease } => encoded(|out| {
            encode_revoke_lease(out, LeaseId(*lease));
            Ok(())
        }),
        Action::Acquire { lock, lease, owner } => commit(|commit| {
            let (key, value) = (key_bytes(*lock), value_bytes(*owner));
            commit.expect(KEYSPACE, &key, Expect::Absent)?;
            commit.put_until(KEYSPACE, &key, &value, Deadline::Never, Some(LeaseId(*lease)))?;
            Ok(())
        }),
        Action::Guarded { lock, token, value } => commit(|commit| {
            commit.expect(KEYSPACE, &key_bytes(*lock), Expect::Revision(Revision(*token)))?;
            commit.put(KEYSPACE, &key_bytes(guarded_by(*lock)), &value_bytes(*value))?;
            Ok(())
        }),
        Action::Release { lock, token } => commit(|commit| {
            commit.expect(KEYSPACE, &key_bytes(*lock), Expect::Revision(Revision(*token)))?;
            commit.delete(KEYSPACE, &key_bytes(*lock))?;
            Ok(())
        }),
        // In this group the window has no effect, so its value can make the command unique.
        Action::Fetch { max, number } => encoded(|out| encode_fetch(out, GROUP, *max, Offset(*number), &[], "member")),
        Action::Ack { attempt, offsets } => encoded(|out| encode_ack(out, GROUP, &settlement(*attempt, offsets))),
        Action::Nack { attempt, offsets, delay } => {
            encoded(|out| encode_nack(out, GROUP, Redelivery::After(*delay), "", &settlement(*attempt, offsets)))
        }
    }
}
