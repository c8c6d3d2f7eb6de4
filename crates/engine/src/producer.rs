//! Idempotent producers: appends with sequence numbers, so that an append can safely be sent again.
//!
//! Owns: the sequence numbers of one instance of a producer, and the batch whose outcome is unknown. Does not own: the
//! deduplication of appends, which the state machine does, also across restarts.
//!
//! Invariant: a sequence number is used for one batch only. The number advances when an append is acknowledged. If an
//! error shows that the append had no effect, its number is free for another batch. If an error leaves the outcome
//! open, the session keeps the batch and sends it again before any other batch. So the append happens exactly once.
//!
//! If the repeated batch is refused before it is in the log, for example because there is no leader, the outcome of the
//! first attempt stays open, and the session keeps the batch. Only an answer of the state machine, which knows the
//! producer's last sequence number, frees the number of the batch.
//!
//! At level `none` an append has no answer, so a session appends at a level of at least `os`.

use std::future::Future;

use thalweg_log::Purpose;
use thalweg_types::info::Producer as ProducerInfo;
use thalweg_types::{
    Durability, StreamId,
    command::{AppendConditions, CommitBuilder, ExpectedOffset, Outcome, ProducerStamp, encode_open_producer},
    record::RecordBatch,
};

use crate::{
    ack::{Ack, unexpected},
    async_database::AsyncDatabase,
    error::{ReadError, WriteError, refusal},
    stream::Stream,
};

/// Epoch and sequence numbers of one instance of a producer.
#[derive(Clone, Debug)]
struct Session {
    id: Box<str>,
    epoch: u32,
    next: u64,
    /// Expected offset and batch of the append with the sequence number `next`, if its outcome is unknown; `None`
    /// otherwise.
    unknown_outcome: Option<(ExpectedOffset, RecordBatch)>,
}

impl Session {
    fn conditions(&self, expected: ExpectedOffset) -> AppendConditions<'_> {
        let producer = Some(ProducerStamp { id: &self.id, epoch: self.epoch, sequence: self.next });
        AppendConditions { expected, producer }
    }

    /// Updates the session after the first attempt of the append with the sequence number `next`.
    fn record_first(&mut self, outcome: &Result<Ack, WriteError>) {
        match outcome {
            Ok(_) => (self.next, self.unknown_outcome) = (self.next + 1, None),
            Err(error) if error.is_outcome_unknown() => {}
            Err(_) => self.unknown_outcome = None,
        }
    }

    /// Updates the session after a repetition of the append with the sequence number `next`.
    fn record_repeated(&mut self, outcome: &Result<Ack, WriteError>) {
        match outcome {
            Err(error) if !error.is_refusal() => {}
            outcome => self.record_first(outcome),
        }
    }

    /// Checks that no append with an unknown outcome uses the sequence number `next`.
    fn check_settled(&self) -> Result<(), WriteError> {
        if self.unknown_outcome.is_none() {
            return Ok(());
        }
        let reason = "an earlier append of this producer has no outcome yet: settle it first".to_owned();
        Err(WriteError::OutcomeUnknown { reason })
    }
}

/// An idempotent producer of a stream, for use by one thread at a time. See [`Stream::producer`].
#[derive(Clone, Debug)]
pub struct Producer {
    stream: Stream,
    session: Session,
}

impl Stream {
    /// Opens a producer with this id. The producer gets a new epoch above all earlier epochs of the id. So other
    /// instances that still use the id are rejected (fenced) from now on. The new producer's appends are numbered from
    /// 0.
    ///
    /// An append of an earlier instance whose outcome is unknown is not repeated. A caller that must repeat such an
    /// append reads the end of the stream first, or stores the numbers itself (see [`producer_at`](Self::producer_at)).
    pub fn producer(&self, id: &str) -> Result<Producer, WriteError> {
        let db = self.database();
        let level = db.durability().max(Durability::Os);
        let committed = db.inner.propose(level, Purpose::Data, |out| encode_open_producer(out, self.id(), id))?;
        let epoch = opened(committed.outcome)?;
        Ok(self.producer_at(id, epoch, 0))
    }

    /// Creates a producer that continues with an epoch and a sequence number that the caller has stored. Its first
    /// batch may repeat one that was sent before.
    #[must_use]
    pub fn producer_at(&self, id: &str, epoch: u32, next_sequence: u64) -> Producer {
        let session = Session { id: id.into(), epoch, next: next_sequence, unknown_outcome: None };
        let level = self.database().durability().max(Durability::Os);
        Producer { stream: self.with_durability(level), session }
    }

    /// Returns the producers that the stream remembers, ordered by id.
    pub fn producers(&self) -> Result<Vec<ProducerInfo>, ReadError> {
        self.info()?;
        Ok(self.database().inner.open.machine.producers(self.id())?)
    }

    /// Returns the stream's information about a producer; `None` if the stream does not know the producer, or has
    /// forgotten it.
    pub fn producer_info(&self, id: &str) -> Result<Option<ProducerInfo>, ReadError> {
        self.info()?;
        Ok(self.database().inner.open.machine.producer(self.id(), id)?)
    }
}

fn opened(outcome: Option<Outcome>) -> Result<u32, WriteError> {
    match outcome.map(refusal).transpose()? {
        Some(Outcome::Producer { epoch }) => Ok(epoch),
        other => Err(unexpected(other.as_ref())),
    }
}

impl Producer {
    /// Id of the producer.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.session.id
    }

    /// Epoch of this instance of the producer.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.session.epoch
    }

    /// Sequence number of the next append, or of the append whose outcome is unknown.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.session.next
    }

    /// Appends a batch exactly once. If the outcome of an earlier append is unknown, that append is sent again first.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<Ack, WriteError> {
        self.append_expecting(batch, ExpectedOffset::Any)
    }

    /// Appends a batch if the stream's next offset is as `expected`. Also succeeds if this append has already happened.
    pub fn append_expecting(
        &mut self,
        batch: &RecordBatch,
        expected: impl Into<ExpectedOffset>,
    ) -> Result<Ack, WriteError> {
        self.settle()?;
        let expected = expected.into();
        let outcome = self.stream.append_with(batch, &self.session.conditions(expected));
        if outcome.as_ref().is_err_and(WriteError::is_outcome_unknown) {
            self.session.unknown_outcome = Some((expected, batch.clone()));
        }
        self.session.record_first(&outcome);
        outcome
    }

    /// Sends the append whose outcome is unknown again, and returns its result; `None` if there is no such append.
    /// After an error that does not come from the state machine, such as [`WriteError::NoLeader`], the outcome is still
    /// unknown.
    pub fn settle(&mut self) -> Result<Option<Ack>, WriteError> {
        let Some((expected, batch)) = &self.session.unknown_outcome else { return Ok(None) };
        let outcome = self.stream.append_with(batch, &self.session.conditions(*expected));
        self.session.record_repeated(&outcome);
        outcome.map(Some)
    }

    /// Continues the producer with another handle of the stream, for example after the database failed and was opened
    /// again. The sequence numbers, and an append whose outcome is unknown, are kept.
    #[must_use]
    pub fn over(self, stream: &Stream) -> Self {
        let level = stream.database().durability().max(Durability::Os);
        Self { stream: stream.with_durability(level), session: self.session }
    }

    /// Adds an append with the next sequence number to a commit. Call [`committed`](Self::committed) when the commit is
    /// acknowledged; until then, further appends get the same number.
    ///
    /// # Errors
    /// [`WriteError::OutcomeUnknown`] while the outcome of an earlier append is unknown: call [`settle`](Self::settle)
    /// first.
    pub fn append_to<'c>(
        &self,
        commit: &'c mut CommitBuilder,
        batch: &RecordBatch,
        expected: impl Into<ExpectedOffset>,
    ) -> Result<&'c mut CommitBuilder, WriteError> {
        self.session.check_settled()?;
        Ok(commit.append_with(self.stream.id(), &self.session.conditions(expected.into()), batch)?)
    }

    /// Advances the sequence number. Call this after a commit that contains an append from
    /// [`append_to`](Self::append_to) was acknowledged.
    pub fn committed(&mut self) {
        self.session.next += 1;
    }
}

/// An idempotent [`Producer`] for callers that must not block.
#[derive(Clone, Debug)]
pub struct AsyncProducer {
    db: AsyncDatabase,
    stream: StreamId,
    level: Durability,
    session: Session,
}

impl AsyncDatabase {
    /// Opens a producer of a stream, see [`Stream::producer`]. Its appends use the durability `level`, or `os` if
    /// `level` is lower.
    pub fn producer(
        &self,
        stream: StreamId,
        id: &str,
        level: Durability,
    ) -> impl Future<Output = Result<AsyncProducer, WriteError>> + Send + use<> {
        let level = level.max(Durability::Os);
        let proposed = self.propose(level, Purpose::Data, |out| encode_open_producer(out, stream, id));
        let (db, id) = (self.clone(), id.into());
        async move {
            let epoch = opened(proposed?.await?.outcome)?;
            Ok(AsyncProducer { db, stream, level, session: Session { id, epoch, next: 0, unknown_outcome: None } })
        }
    }
}

impl AsyncProducer {
    /// Epoch of this instance of the producer.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.session.epoch
    }

    /// Sequence number of the next append, or of the append whose outcome is unknown.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.session.next
    }

    /// Appends a batch exactly once. If the outcome of an earlier append is unknown, because its future was dropped or
    /// its error left the outcome open, that append is sent again first.
    pub async fn append(
        &mut self,
        batch: &RecordBatch,
        expected: impl Into<ExpectedOffset>,
    ) -> Result<Ack, WriteError> {
        self.settle().await?;
        // The append is stored before it is sent, because this future may be dropped at the wait below.
        let expected = expected.into();
        self.session.unknown_outcome = Some((expected, batch.clone()));
        let outcome = self.send(expected, batch).await;
        self.session.record_first(&outcome);
        outcome
    }

    /// Sends the append whose outcome is unknown again, and returns its result; `None` if there is no such append.
    /// After an error that does not come from the state machine, such as [`WriteError::NoLeader`], the outcome is still
    /// unknown.
    pub async fn settle(&mut self) -> Result<Option<Ack>, WriteError> {
        let Some((expected, batch)) = &self.session.unknown_outcome else { return Ok(None) };
        let outcome = self.send(*expected, batch).await;
        self.session.record_repeated(&outcome);
        outcome.map(Some)
    }

    async fn send(&self, expected: ExpectedOffset, batch: &RecordBatch) -> Result<Ack, WriteError> {
        self.db.append(self.stream, self.session.conditions(expected), batch, self.level).await
    }
}
