//! Dead letters: the background thread moves each dead letter to the dead-letter stream of its group, exactly once.
//!
//! Owns: the copies with their headers, and the commits that move them, at most `MAX_COMMITS_PER_ROUND` for each group
//! in a round. Does not own: the decision that a record is a dead letter (the state machine), or the time of a round
//! (`maintenance`).
//!
//! If a record was delivered too often, the state machine removes it from the pending records and keeps it as a dead
//! letter. The state machine cannot copy the record, because the record's bytes are in the log. So the node reads the
//! record, and proposes one commit that appends it to the dead-letter stream and acks the dead letter. The ack names
//! the dead letter, so a retry after a crash, or on another node, is rejected: a dead letter is appended exactly once.
//! The record is copied because headers cannot be added to the bytes in the log.
//!
//! A move that fails, for example because the dead-letter stream rejects the records, is tried again in each round of
//! maintenance. Until then its dead letters stay in their group and count towards `max_pending`. The moves of other
//! groups go on.
//!
//! Headers added before the record's own headers: `thalweg-stream`, `thalweg-group`, `thalweg-offset`,
//! `thalweg-deliveries`, `thalweg-reason`, `thalweg-time-micros`. The header `thalweg-payload` marks a dead letter
//! without its payload.

use std::ops::ControlFlow;

use thalweg_log::Purpose;
use thalweg_state::groups::DeadParcel;
use thalweg_types::{
    Durability, GroupId, Offset, SpaceTime, StreamId, Term,
    command::{
        CommandError, CommitBuilder, Outcome, StreamConfig, encode_create_stream,
        groups::{DeliveredRun, OffsetRun, Settlement},
    },
    limits::MAX_HEADERS,
    record::{Record, RecordBatch, RecordError},
};

use crate::{
    ack::unexpected,
    error::{ReadError, WriteError, refusal},
    group::GroupError,
    inner::Inner,
};

/// Maximum number of bytes of dead letters moved in one commit (also limited to a quarter of a segment). A single
/// record may exceed it.
const MAX_BATCH_BYTES: u64 = 1 << 20;
/// Maximum number of commits in one maintenance round that move dead letters of the same group. The next round moves
/// the others.
const MAX_COMMITS_PER_ROUND: u32 = 1000;

/// Part of a dead letter (a record that was delivered too often) that is copied to the dead-letter stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopiedPart {
    Whole,
    /// Everything but the payload is copied, because a record of the maximum size has no room for further headers.
    WithoutPayload,
}

/// A move of dead letters from one consumer group to its dead-letter stream.
struct DeadLetterMove<'a> {
    inner: &'a Inner,
    term: Term,
    stream: StreamId,
    stream_name: String,
    group: GroupId,
    group_name: String,
    target: StreamId,
}

impl Inner {
    /// Moves the dead letters of all groups to their dead-letter streams, as long as this node leads in `term`. Adds
    /// the number of records moved to `moved`.
    ///
    /// # Errors
    /// The first error of a group, after the dead letters of the other groups were moved.
    pub(crate) async fn move_dead_letters(&self, term: Term, moved: &mut u64) -> Result<(), WriteError> {
        let mut result = Ok(());
        for id in self.open.machine.groups_with_dead()? {
            let of_group = self.move_letters_of(term, id, moved).await;
            result = result.and(of_group);
        }
        result
    }

    async fn move_letters_of(&self, term: Term, id: GroupId, moved: &mut u64) -> Result<(), WriteError> {
        let machine = &self.open.machine;
        let Some(info) = machine.group(id, self.open.replica.now())? else { return Ok(()) };
        let burial = DeadLetterMove {
            inner: self,
            term,
            stream: info.stream,
            stream_name: machine.stream(info.stream).map(|stream| stream.name.to_string()).unwrap_or_default(),
            group: id,
            group_name: info.name.to_string(),
            target: match &info.config.dead_letters {
                Some(name) => self.dead_letter_stream(term, name).await?,
                // The group is configured without a dead-letter stream now, so its dead letters are dropped, as later
                // ones are.
                None => StreamId::ZERO,
            },
        };
        for _ in 0..MAX_COMMITS_PER_ROUND {
            let Some(letters) = machine.dead_letters(id, None)? else { break };
            *moved += self.move_records(&burial, &letters).await?;
        }
        Ok(())
    }

    async fn dead_letter_stream(&self, term: Term, name: &str) -> Result<StreamId, WriteError> {
        if let Some(id) = self.open.machine.stream_id(name) {
            return Ok(id);
        }
        let create = |out: &mut Vec<u8>| encode_create_stream(out, name, &StreamConfig::default());
        let committed = self.propose_work(term, Durability::Os, Purpose::Data, create).await?;
        match committed.outcome.map(refusal).transpose()? {
            Some(Outcome::Stream { id, .. }) => Ok(id),
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Moves the first of the given dead letters, as many as fit into one batch. Records that no longer exist are acked
    /// without a copy. Returns the number of dead letters that were moved or acked.
    async fn move_records(&self, burial: &DeadLetterMove<'_>, letters: &DeadParcel) -> Result<u64, WriteError> {
        match self.bury_part(burial, letters, &letters.records, CopiedPart::Whole).await {
            Err(
                WriteError::Command(CommandError::CommitTooLarge)
                | WriteError::LargerThanSegment { .. }
                | WriteError::OverStreamLimit { .. },
            ) => {}
            buried => return buried,
        }
        let Some(of) = letters.records.first() else { return Ok(0) };
        let first = [DeliveredRun { run: OffsetRun { count: 1, ..of.run }, ..*of }];
        match self.bury_part(burial, letters, &first, CopiedPart::Whole).await {
            Err(WriteError::Command(CommandError::CommitTooLarge) | WriteError::LargerThanSegment { .. }) => {
                self.bury_part(burial, letters, &first, CopiedPart::WithoutPayload).await
            }
            buried => buried,
        }
    }

    /// Moves the first dead letters of `records`, as many as fit into one batch. Returns the number moved.
    async fn bury_part(
        &self,
        burial: &DeadLetterMove<'_>,
        letters: &DeadParcel,
        records: &[DeliveredRun],
        part: CopiedPart,
    ) -> Result<u64, WriteError> {
        let (mut batch, mut runs) = (RecordBatch::new(), Vec::new());
        for of in records {
            let reached = if burial.target == StreamId::ZERO {
                of.run.end()
            } else {
                burial.copy(&letters.reason, of, part, &mut batch).map_err(|error| match error {
                    GroupError::Write(error) => error,
                    other => WriteError::StateFailed { reason: other.to_string() },
                })?
            };
            let count = (reached.0 - of.run.first.0) as u32;
            if count > 0 {
                runs.push(OffsetRun { first: of.run.first, count });
            }
            if count < of.run.count {
                break;
            }
        }
        // A settlement without ranges would ack all dead letters of the attempt.
        if runs.is_empty() {
            return Ok(0);
        }
        let count: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        let mut commit = CommitBuilder::new();
        if !batch.is_empty() {
            commit.append(burial.target, None, &batch)?;
        }
        commit.ack(burial.group, &[Settlement { attempt: letters.attempt, runs }])?;
        let encode = |out: &mut Vec<u8>| {
            commit.encode(out);
            Ok::<_, CommandError>(())
        };
        let committed = self.propose_work(burial.term, Durability::Os, Purpose::Data, encode).await?;
        match committed.outcome.map(refusal).transpose() {
            Ok(_) => Ok(count),
            // The records were trimmed, another node has moved them, or the group or its dead-letter stream was
            // deleted. The caller must look up the dead letters again.
            Err(WriteError::AttemptLapsed { .. } | WriteError::NoSuchGroup(_) | WriteError::NoSuchStream(_)) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl DeadLetterMove<'_> {
    /// Copies dead letters to `batch` until it is full. `of` lists consecutive dead letters; the copies begin with the
    /// first of them. Returns the offset after the last copied record.
    fn copy(
        &self,
        reason: &str,
        of: &DeliveredRun,
        part: CopiedPart,
        batch: &mut RecordBatch,
    ) -> Result<Offset, GroupError> {
        let (first, end) = (of.run.first, of.run.end());
        let max_bytes = MAX_BATCH_BYTES.min(u64::from(self.inner.options.segment_bytes) / 4);
        let page = match self.inner.read_stream(self.stream, first, end.0 - first.0, max_bytes) {
            Err(ReadError::Trimmed { start, .. }) => return Ok(start.min(end)),
            page => page?,
        };
        let mut reached = page.next.max(first.next()).min(end);
        let mut failure = None;
        page.for_each(&mut |offset, time, record| {
            if offset >= end {
                return ControlFlow::Break(());
            }
            if !batch.is_empty() && batch.bytes().len() as u64 >= max_bytes {
                reached = offset;
                return ControlFlow::Break(());
            }
            match self.push(batch, reason, of.deliveries, part, offset, time, record) {
                Ok(()) => ControlFlow::Continue(()),
                // A full batch ends here. The record fits into a batch of its own.
                Err(RecordError::BatchTooLarge) if !batch.is_empty() => {
                    reached = offset;
                    ControlFlow::Break(())
                }
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failure.map_or(Ok(reached), |error| Err(GroupError::Write(error.into())))
    }

    #[expect(clippy::too_many_arguments, reason = "what a header each is made of")]
    fn push(
        &self,
        batch: &mut RecordBatch,
        reason: &str,
        deliveries: u32,
        part: CopiedPart,
        offset: Offset,
        time: SpaceTime,
        record: &Record<'_>,
    ) -> Result<(), RecordError> {
        let (at, times, micros) = (offset.to_string(), deliveries.to_string(), time.to_string());
        let own = [
            ("thalweg-stream", self.stream_name.as_bytes()),
            ("thalweg-group", self.group_name.as_bytes()),
            ("thalweg-offset", at.as_bytes()),
            ("thalweg-deliveries", times.as_bytes()),
            ("thalweg-reason", reason.as_bytes()),
            ("thalweg-time-micros", micros.as_bytes()),
        ];
        // If a record already has the maximum number of headers, its last headers are dropped.
        let without = || {
            let headers = own.into_iter().chain([("thalweg-payload", b"too large".as_slice())]).collect();
            Record { key: record.key, headers, payload: b"", is_tombstone: record.is_tombstone }
        };
        if part == CopiedPart::WithoutPayload {
            return batch.push(&without());
        }
        let headers: Vec<_> = own.into_iter().chain(record.headers.iter().copied()).take(MAX_HEADERS).collect();
        let whole = Record { key: record.key, headers, payload: record.payload, is_tombstone: record.is_tombstone };
        match batch.push(&whole) {
            Err(RecordError::TooLarge { .. }) => batch.push(&without()),
            pushed => pushed,
        }
    }
}
