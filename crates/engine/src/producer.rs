//! Producer sessions: appends that number themselves, so that sending one again is safe.
//!
//! Owns the numbers of one instance of a producer, and the batch whose outcome is unknown. Does not own
//! the deduplication: that is the state machine's, and survives restarts.
//!
//! Invariant: a sequence is used for one batch only. It moves on when an append is acknowledged. After an
//! error that says that nothing happened, it is free for another batch; after one that does not say so,
//! the batch is kept, and sent again before anything else: then it happened exactly once.
//!
//! A level of `none` has no answers, so a session appends at `os` at least.

use std::future::Future;

use thalweg_log::Purpose;
use thalweg_state::streams::ProducerInfo;
use thalweg_types::{
    Durability, StreamId,
    command::{AppendTerms, CommitBuilder, ExpectedOffset, Outcome, ProducerStamp, encode_open_producer},
    record::RecordBatch,
};

use crate::{
    async_database::AsyncDatabase,
    database::{Ack, unexpected},
    error::{ReadError, WriteError, refusal},
    stream::Stream,
};

/// The numbers of one instance of a producer.
#[derive(Clone, Debug)]
struct Session {
    id: Box<str>,
    epoch: u32,
    next: u64,
    /// The append with the sequence `next` whose outcome is unknown.
    doubt: Option<(ExpectedOffset, RecordBatch)>,
}

impl Session {
    fn terms(&self, expected: ExpectedOffset) -> AppendTerms<'_> {
        let producer = Some(ProducerStamp { id: &self.id, epoch: self.epoch, sequence: self.next });
        AppendTerms { expected, producer }
    }

    /// Takes note of how the append with the next sequence ended.
    fn note(&mut self, outcome: &Result<Ack, WriteError>) {
        match outcome {
            Ok(_) => (self.next, self.doubt) = (self.next + 1, None),
            Err(error) if error.is_outcome_unknown() => {}
            Err(_) => self.doubt = None,
        }
    }
}

/// A producer of a stream, for one thread at a time. See [`Stream::producer`].
#[derive(Clone, Debug)]
pub struct Producer {
    stream: Stream,
    session: Session,
}

impl Stream {
    /// Opens a producer: it gets an epoch above all it had, so another instance that still uses the id is
    /// fenced from now on, and numbers its appends from 0.
    ///
    /// What an earlier instance left in doubt is not known to this one. Who must know reads the stream's
    /// end first, or keeps the numbers itself (see [`producer_at`](Self::producer_at)).
    pub fn producer(&self, id: &str) -> Result<Producer, WriteError> {
        let db = self.database();
        let level = db.durability().max(Durability::Os);
        let committed = db.inner.propose(level, Purpose::Data, |out| encode_open_producer(out, self.id(), id))?;
        let epoch = opened(committed.outcome)?;
        Ok(self.producer_at(id, epoch, 0))
    }

    /// A producer that goes on under an epoch and with a sequence that the caller has kept: the batch
    /// that it sends first may be one that was sent before.
    #[must_use]
    pub fn producer_at(&self, id: &str, epoch: u32, next_sequence: u64) -> Producer {
        let session = Session { id: id.into(), epoch, next: next_sequence, doubt: None };
        let level = self.database().durability().max(Durability::Os);
        Producer { stream: self.with_durability(level), session }
    }

    /// The producers that the stream remembers, by id.
    pub fn producers(&self) -> Result<Vec<ProducerInfo>, ReadError> {
        self.info()?;
        Ok(self.database().inner.open.machine.producers(self.id())?)
    }

    /// What the stream knows of a producer; `None` if nothing (any more).
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
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.session.id
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.session.epoch
    }

    /// The sequence of the next append, or of the one in doubt.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.session.next
    }

    /// Appends, exactly once. What an earlier call left in doubt is sent again first.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<Ack, WriteError> {
        self.append_expecting(batch, ExpectedOffset::Any)
    }

    /// Appends if the next offset is as `expected`, or if this very append happened before.
    pub fn append_expecting(
        &mut self,
        batch: &RecordBatch,
        expected: impl Into<ExpectedOffset>,
    ) -> Result<Ack, WriteError> {
        self.settle()?;
        let expected = expected.into();
        let outcome = self.stream.append_with(batch, &self.session.terms(expected));
        if outcome.as_ref().is_err_and(WriteError::is_outcome_unknown) {
            self.session.doubt = Some((expected, batch.clone()));
        }
        self.session.note(&outcome);
        outcome
    }

    /// Sends again what an earlier append left in doubt, and says what came of it; `None` if nothing was.
    pub fn settle(&mut self) -> Result<Option<Ack>, WriteError> {
        let Some((expected, batch)) = &self.session.doubt else { return Ok(None) };
        let outcome = self.stream.append_with(batch, &self.session.terms(*expected));
        self.session.note(&outcome);
        outcome.map(Some)
    }

    /// Goes on over another handle, as after the database failed and was opened again. The numbers, and
    /// what is in doubt, stay.
    #[must_use]
    pub fn over(self, stream: &Stream) -> Self {
        let level = stream.database().durability().max(Durability::Os);
        Self { stream: stream.with_durability(level), session: self.session }
    }

    /// Adds an append to a commit, under the next sequence. Tell [`committed`](Self::committed) when the
    /// commit is acknowledged; until then the same sequence is given again.
    pub fn append_to<'c>(
        &self,
        commit: &'c mut CommitBuilder,
        batch: &RecordBatch,
        expected: impl Into<ExpectedOffset>,
    ) -> Result<&'c mut CommitBuilder, WriteError> {
        Ok(commit.append_with(self.stream.id(), &self.session.terms(expected.into()), batch)?)
    }

    /// A commit with an append of [`append_to`](Self::append_to) was acknowledged.
    pub fn committed(&mut self) {
        self.session.next += 1;
    }
}

/// As [`Producer`], for callers that must not block.
#[derive(Clone, Debug)]
pub struct AsyncProducer {
    db: AsyncDatabase,
    stream: StreamId,
    level: Durability,
    session: Session,
}

impl AsyncDatabase {
    /// Opens a producer of a stream, see [`Stream::producer`]. Its appends are at `level`, or `os` if that
    /// is higher.
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
            Ok(AsyncProducer { db, stream, level, session: Session { id, epoch, next: 0, doubt: None } })
        }
    }
}

impl AsyncProducer {
    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.session.epoch
    }

    /// The sequence of the next append, or of the one in doubt.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.session.next
    }

    /// Appends, exactly once. What an earlier call left in doubt, because its future was dropped or its
    /// error said so, is sent again first.
    pub async fn append(
        &mut self,
        batch: &RecordBatch,
        expected: impl Into<ExpectedOffset>,
    ) -> Result<Ack, WriteError> {
        self.settle().await?;
        // Noted before it is sent: this future may be dropped at the wait below.
        self.session.doubt = Some((expected.into(), batch.clone()));
        self.settle().await.map(|ack| ack.expect("the batch above is in doubt"))
    }

    /// Sends again what is in doubt; `None` if nothing is.
    pub async fn settle(&mut self) -> Result<Option<Ack>, WriteError> {
        let Some((expected, batch)) = &self.session.doubt else { return Ok(None) };
        let sent = self.db.append(self.stream, self.session.terms(*expected), batch, self.level);
        let outcome = sent.await;
        self.session.note(&outcome);
        outcome.map(Some)
    }
}
