//! Dead letters: the background thread moves each of them to the dead-letter stream of its group, exactly once.
//!
//! Owns: the copies with their headers, and the commits that move them, at most `MAX_COMMITS_PER_ROUND` for each group
//! in a round. Does not own: the decision that a record is a dead letter (the state machine), or the time of a round
//! (`maintenance`).
//!
//! If a record was delivered too often, the state machine removes it from the pending records and keeps it as a dead
//! letter. It cannot copy the record, whose bytes are in the log. So the node reads the record, and proposes one
//! commit that appends it to the dead-letter stream and acks the dead letter. The ack names the dead letter, so a
//! retry after a crash, or on another node, is rejected: a dead letter is appended exactly once. The record is copied
//! because headers cannot be added to the bytes in the log.
//!
//! Headers added before the record's own headers: `thalweg-stream`, `thalweg-group`, `thalweg-offset`,
//! `thalweg-deliveries`, `thalweg-reason`, `thalweg-time-micros`. The header `thalweg-payload` marks a dead letter
//! without its payload.

use std::ops::ControlFlow;

use thalweg_log::Purpose;
use thalweg_types::{
    Attempt, Durability, GroupId, Offset, SpaceTime, StreamId, Term,
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

/// Part of a record that is copied to the dead-letter stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopiedPart {
    Whole,
    /// Everything but the payload is copied, because a record of the maximum size has no room for further headers.
    WithoutPayload,
}

/// Dead letters of one group, and the stream to which they are moved.
struct DeadLetterMove<'a> {
    inner: &'a Inner,
    /// Term in which this node leads.
    term: Term,
    stream: StreamId,
    stream_name: String,
    group: GroupId,
    group_name: String,
    target: StreamId,
}

impl Inner {
    /// Moves the dead letters of all groups to their dead-letter streams, as long as this node leads in `term`. Returns
    /// the number of records moved.
    pub(crate) async fn move_dead_letters(&self, term: Term) -> Result<u64, WriteError> {
        let machine = &self.open.machine;
        let mut moved = 0;
        for id in machine.groups_with_dead()? {
            let Some(info) = machine.group(id, self.open.replica.now())? else { continue };
            let burial = DeadLetterMove {
                inner: self,
                term,
                stream: info.stream,
                stream_name: machine.stream(info.stream).map(|stream| stream.name.to_string()).unwrap_or_default(),
                group: id,
                group_name: info.name.to_string(),
                target: match &info.config.dead_letters {
                    Some(name) => self.dead_letter_stream(term, name).await?,
                    // The configuration no longer has a stream for dead letters: these are dropped, like later ones.
                    None => StreamId::ZERO,
                },
            };
            for _ in 0..MAX_COMMITS_PER_ROUND {
                let Some(letter) = machine.dead_letters(id, None)? else { break };
                let Some(of) = letter.records.first() else { break };
                moved += self.move_records(&burial, letter.attempt, &letter.reason, of).await?;
            }
        }
        Ok(moved)
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

    /// Moves as many of these dead letters as fit into one batch, from the first on. Records that no longer exist are
    /// only acked. Returns the number of dead letters that are done.
    async fn move_records(
        &self,
        burial: &DeadLetterMove<'_>,
        attempt: Attempt,
        reason: &str,
        of: &DeliveredRun,
    ) -> Result<u64, WriteError> {
        match self.bury_part(burial, attempt, reason, of, CopiedPart::Whole).await {
            Err(WriteError::Command(CommandError::CommitTooLarge) | WriteError::LargerThanSegment { .. }) => {
                let first = DeliveredRun { run: OffsetRun { count: 1, ..of.run }, ..*of };
                self.bury_part(burial, attempt, reason, &first, CopiedPart::WithoutPayload).await
            }
            buried => buried,
        }
    }

    async fn bury_part(
        &self,
        burial: &DeadLetterMove<'_>,
        attempt: Attempt,
        reason: &str,
        of: &DeliveredRun,
        part: CopiedPart,
    ) -> Result<u64, WriteError> {
        let mut batch = RecordBatch::new();
        let reached = if burial.target == StreamId::ZERO {
            of.run.end()
        } else {
            burial.copy(reason, of, part, &mut batch).map_err(|error| match error {
                GroupError::Write(error) => error,
                other => WriteError::StateFailed { reason: other.to_string() },
            })?
        };
        let count = (reached.0 - of.run.first.0) as u32;
        let run = OffsetRun { first: of.run.first, count };
        let mut commit = CommitBuilder::new();
        if !batch.is_empty() {
            commit.append(burial.target, None, &batch)?;
        }
        commit.ack(burial.group, &[Settlement { attempt, runs: vec![run] }])?;
        let encode = |out: &mut Vec<u8>| {
            commit.encode(out);
            Ok::<_, CommandError>(())
        };
        let committed = self.propose_work(burial.term, Durability::Os, Purpose::Data, encode).await?;
        match committed.outcome.map(refusal).transpose() {
            Ok(_) => Ok(u64::from(count)),
            // The records were trimmed or another node moved them, or the group or the stream for dead letters was
            // deleted. The caller must look up the records again.
            Err(WriteError::AttemptLapsed { .. } | WriteError::NoSuchGroup(_) | WriteError::NoSuchStream(_)) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl DeadLetterMove<'_> {
    /// Copies the records of a run into `batch`, from the first on, until the batch is full. Returns the offset at
    /// which it stopped.
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
                // The record fits into a batch of its own.
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
        // A record with the maximum number of headers loses its last ones.
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
