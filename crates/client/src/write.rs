//! Write commands, including commits and transactions: sending them and decoding their results.
//!
//! Owns: the encoding of a command into a request, and the decoding of its reply. Does not own the commands
//! (`thalweg_types::command`). Commands refer to keyspaces, streams and groups by id. The handles of these objects
//! return the ids ([`Keyspace::id`](crate::Keyspace::id) and so on).

use thalweg_types::{
    Durability, Offset, Revision,
    command::{
        AppendedAt, CommandError, CommitBuilder, FailedCondition, OperationResult, ReadValue, ScanPage, ScannedItem,
        TransactionBuilder,
    },
};
use thalweg_wire::{
    self as wire, Field, Fields, Kind, Level, List, RemainingBytes, SharedFrame, WriteAndPublish, put_frame,
};

use crate::{
    client::{Client, RequestOptions, RetrySafety},
    error::{Error, Invalid},
    request::reply_of,
};

/// Result of a commit, which carries out several operations together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Durability level that the commit reached.
    pub durability: Durability,
    /// True if the server had already carried out the commit, because its producer sent it before. The result is then
    /// that of the first execution.
    pub duplicate: bool,
    /// Revision of the commit; 0 at durability level `none`.
    pub revision: Revision,
    /// Positions of the commit's appends to streams, in order; empty at durability level `none`.
    pub appends: Vec<AppendedAt>,
}

/// Result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transacted {
    /// Durability level that the transaction reached.
    pub durability: Durability,
    /// True if the transaction wrote anything.
    pub wrote: bool,
    /// Revision of the transaction if it wrote; otherwise the last revision before the transaction.
    pub revision: Revision,
    /// First condition of the transaction that did not hold; `None` if all conditions held.
    pub failed: Option<FailedCondition>,
    /// Results of the operations that the server carried out. A transaction has two lists of operations: one for the
    /// case that all conditions hold, and one for the other case.
    pub results: Vec<OperationResult>,
}

/// Appends the frame of a write command; `encode` writes the command's bytes directly into the frame.
pub(crate) fn put_write(
    out: &mut Vec<u8>,
    id: u32,
    fields: &Fields<'_>,
    level: Level,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>,
) -> Result<(), Invalid> {
    let mut refused = None;
    let begin = out.len();
    put_frame(out, Kind::Write as u16, id, fields, |out| {
        level.put(out)?;
        refused = encode(out).err();
        Ok(())
    })?;
    refused.map_or(Ok(()), |error| {
        out.truncate(begin);
        Err(error.into())
    })
}

impl Client {
    /// Sends a write command that `encode` writes; `read` decodes the server's reply.
    pub(crate) async fn write<R>(
        &self,
        repeat: RetrySafety,
        encode: impl Fn(&mut Vec<u8>) -> Result<(), CommandError>,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.write_as(RequestOptions { retry_safety: repeat, ..RequestOptions::WRITE }, encode, read).await
    }

    /// Sends a write command with the request options `how`; `read` decodes its reply.
    pub(crate) async fn write_as<R>(
        &self,
        how: RequestOptions,
        encode: impl Fn(&mut Vec<u8>) -> Result<(), CommandError>,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let level = self.level();
        self.call(how, |out, id, fields| put_write(out, id, fields, level, &encode), read).await
    }

    /// Carries out all operations of a commit, or none of them. If a condition of the commit does not hold,
    /// returns the error `condition_failed`.
    pub async fn commit(&self, commit: &CommitBuilder) -> Result<Committed, Error> {
        let encode = |out: &mut Vec<u8>| {
            commit.encode(out);
            Ok(())
        };
        self.write(RetrySafety::IfNoEffect, encode, committed).await
    }

    /// Carries out a commit, and then publishes batches of messages. The messages are published at most once. If the
    /// server stops between the commit and the publish, they are not published. A message that must not be lost should
    /// be appended to a stream in the same commit.
    pub async fn commit_and_publish(
        &self,
        commit: &CommitBuilder,
        batches: &[wire::SharedBatch],
    ) -> Result<Committed, Error> {
        let batches: Vec<&[u8]> = batches.iter().map(|batch| &batch.bytes[..]).collect();
        let (level, mut command) = (self.level(), Vec::new());
        commit.encode(&mut command);
        let frame = WriteAndPublish { level, batches: List::Items(&batches), command: RemainingBytes(&command) };
        self.request(RequestOptions::WRITE, frame, committed).await
    }

    /// Carries out one of a transaction's two lists of operations: the first list if all conditions hold, otherwise the
    /// second.
    pub async fn transact(&self, transaction: &TransactionBuilder) -> Result<Transacted, Error> {
        self.write(RetrySafety::IfNoEffect, |out| transaction.encode(out), transacted).await
    }
}

pub(crate) fn committed(frame: &SharedFrame) -> Result<Committed, Error> {
    let wire::Committed { durability, duplicate, revision, appends } = reply_of(frame)?;
    let appends = appends.iter().map(appended_at).collect();
    Ok(Committed { durability, duplicate, revision, appends })
}

pub(crate) fn created(frame: &SharedFrame) -> Result<(u32, bool), Error> {
    let wire::Created { created, id, .. } = reply_of(frame)?;
    Ok((id, created))
}

pub(crate) fn done(frame: &SharedFrame) -> Result<Revision, Error> {
    Ok(reply_of::<wire::Done>(frame)?.revision)
}

fn appended_at(at: wire::Appended) -> AppendedAt {
    let wire::Appended { stream, first, count } = at;
    AppendedAt { stream, first, count }
}

pub(crate) fn transacted(frame: &SharedFrame) -> Result<Transacted, Error> {
    let wire::Transacted { durability, wrote, revision, failed, results } = reply_of(frame)?;
    let failed = failed.map(|failed| FailedCondition {
        condition: failed.condition,
        actual: Some(failed.revision).filter(|at| *at > Revision(0)),
    });
    let results = results.iter().map(|result| owned(frame, &result)).collect();
    Ok(Transacted { durability, wrote, revision, failed, results })
}

fn owned(frame: &SharedFrame, result: &wire::OperationResult<'_>) -> OperationResult {
    use wire::OperationResult as Of;
    let share = |part: &[u8]| frame.share(part);
    match result {
        Of::Put {} => OperationResult::Put,
        Of::Deleted { existed } => OperationResult::Deleted { existed: *existed },
        Of::Appended { at } => OperationResult::Appended(appended_at(at.clone())),
        Of::Added { value } => OperationResult::Added { value: *value },
        Of::Touched { existed } => OperationResult::Touched { existed: *existed },
        Of::PrefixDeleted { keys } => OperationResult::PrefixDeleted { keys: *keys },
        Of::Settled { records } => OperationResult::Settled { records: *records },
        Of::Got { revision, .. } if *revision == Revision(0) => OperationResult::Got(None),
        Of::Got { revision, value } => {
            OperationResult::Got(Some(ReadValue { revision: *revision, value: share(value) }))
        }
        Of::Scanned { after, pairs } => {
            let item = |pair: wire::ScannedPair<'_>| ScannedItem {
                key: share(pair.key),
                revision: pair.revision,
                value: pair.value.map(share),
            };
            OperationResult::Scanned(ScanPage { items: pairs.iter().map(item).collect(), after: after.map(share) })
        }
    }
}

/// Result of an append: the position of the records in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first appended record; 0 at durability level `none`, at which the server does not return the
    /// offset.
    pub first: Offset,
    /// Number of appended records.
    pub count: u32,
    /// Durability level that the append reached.
    pub durability: Durability,
    /// True if the server had already appended the records, because their producer sent them before.
    pub duplicate: bool,
}

/// Decodes the reply to a command with one append to a stream.
pub(crate) fn appended(frame: &SharedFrame) -> Result<Appended, Error> {
    let done = committed(frame)?;
    let (first, count) = done.appends.first().map_or((Offset(0), 0), |at| (at.first, at.count));
    Ok(Appended { first, count, durability: done.durability, duplicate: done.duplicate })
}
