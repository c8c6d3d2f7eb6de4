//! Appending to a stream in the background, in batches. Several batches may be unanswered at a time. Each batch is
//! appended exactly once.
//!
//! Owns: [`StreamPublisher`]. Each of its batches carries the id of a producer, the producer's epoch and a sequence
//! number. When the publisher resends a batch because the answer was lost, the server detects the repetition and
//! returns the first result. So a lost connection neither loses nor repeats records.
//!
//! A batch is sent immediately while fewer than [`max_in_flight`](StreamPublisherOptions::max_in_flight) batches are in
//! flight. A lone record therefore does not wait. Otherwise records are gathered until a batch is answered. Under load
//! batches therefore grow up to their maximum size; then callers wait.
//!
//! ```text
//!  publish --> gathered --> in flight: [s, s+1, .. s+n) --> answered in order
//!             one batch      max_in_flight, kept for resending
//! ```
//! Invariants: sequence numbers have no gaps; batches are sent in order on one channel; when a batch is
//! resent, all later batches are resent too. Memory in bytes: `(max_in_flight + 1) * max_bytes`, and one
//! record.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use thalweg_types::{
    Action, Classified, Offset, StreamId,
    command::{AppendConditions, ProducerStamp, encode_append_with},
    limits::PRODUCER_RESULTS,
    record::{Record, RecordBatch, RecordError},
};
use thalweg_wire::{Fields, SharedFrame};
use tokio::sync::Notify;

use crate::{
    backoff::Backoff,
    client::Client,
    error::{Error, Lost},
    link::{Link, Reply, SessionParameters, StageError},
    request::answer_of,
    staging::until_staged,
    stream::Stream,
    write::{Appended, appended, put_write},
};

/// Maximum number of times that the server may reject a batch because an earlier batch is missing. The publisher then
/// gives up.
const MAX_GAPS: u32 = 8;

/// Bounds on the batches of a stream publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPublisherOptions {
    /// Number of records at which a batch of the publisher is full.
    pub max_records: u32,
    /// Size in bytes at which a batch is full. A larger record is sent in a batch of its own.
    pub max_bytes: usize,
    /// Maximum number of batches that were sent and have no answer yet. At most 64, because the server remembers only
    /// that many results of a producer.
    pub max_in_flight: usize,
}

impl Default for StreamPublisherOptions {
    fn default() -> Self {
        Self { max_records: 1000, max_bytes: 1024 * 1024, max_in_flight: 8 }
    }
}

/// Appends records to a stream in the background. Cheap to clone: clones share the batch. After the last clone is
/// dropped, the background task still sends the published records, but no caller learns their outcome. To learn of
/// errors, call [`flush`](Self::flush) before the drop.
#[derive(Clone)]
pub struct StreamPublisher {
    inner: Arc<Handle>,
}

/// Handle that the clones of a publisher share. When the last clone is dropped, the handle's drop notifies the
/// background task.
struct Handle(Arc<Inner>);

struct Inner {
    options: StreamPublisherOptions,
    gathered: Mutex<GatheredRecords>,
    /// Notifies the background task that there are records to send, or that the last clone of the publisher
    /// was dropped.
    begun: Notify,
    /// Notifies waiting callers that the background task has taken the gathered batch, so that they can add records
    /// again.
    taken: Notify,
}

struct GatheredRecords {
    batch: RecordBatch,
    outcome: Arc<Outcome>,
    /// Outcome of the most recent batch to which a caller has added records; it may not be known yet.
    last: Option<Arc<Outcome>>,
    abandoned: bool,
    failed: Option<Error>,
}

/// Outcome of a batch (appended, or an error), shared by all callers that published a record in this batch.
#[derive(Default)]
struct Outcome {
    done: OnceLock<Result<Appended, Error>>,
    completed: Notify,
}

impl Outcome {
    fn complete(&self, outcome: Result<Appended, Error>) {
        let _ = self.done.set(outcome);
        self.completed.notify_waiters();
    }

    async fn wait(&self) -> Result<Appended, Error> {
        loop {
            let mut completed = std::pin::pin!(self.completed.notified());
            completed.as_mut().enable();
            if let Some(done) = self.done.get() {
                return done.clone();
            }
            completed.await;
        }
    }
}

/// Future acknowledgement of a published record. The caller may wait for the acknowledgement, or drop this
/// value.
#[derive(Clone)]
pub struct Ack {
    outcome: Arc<Outcome>,
    index: u32,
}

impl Ack {
    /// Waits until the record is appended at the client's durability level, and returns its offset.
    pub async fn wait(&self) -> Result<Appended, Error> {
        let batch = self.outcome.wait().await?;
        Ok(Appended { first: Offset(batch.first.0 + u64::from(self.index)), count: 1, ..batch })
    }

    /// Returns the outcome of the append if the server has answered; otherwise `None`, without waiting.
    #[must_use]
    pub fn try_wait(&self) -> Option<Result<Appended, Error>> {
        let batch = self.outcome.done.get()?.clone();
        Some(batch.map(|batch| Appended { first: Offset(batch.first.0 + u64::from(self.index)), count: 1, ..batch }))
    }
}

impl std::fmt::Debug for Ack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ack").field("index", &self.index).field("done", &self.outcome.done.get().is_some()).finish()
    }
}

impl std::fmt::Debug for StreamPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamPublisher").field("options", &self.inner.0.options).finish_non_exhaustive()
    }
}

impl Stream {
    /// Opens a producer with this id and creates a publisher that appends as that producer. The server
    /// rejects further appends of an earlier publisher with the same id. Requires a durability level of at
    /// least `os`.
    pub async fn publisher(&self, producer: &str, options: StreamPublisherOptions) -> Result<StreamPublisher, Error> {
        let data = self.client().directory().data();
        let epoch = self.open_producer(producer).await?;
        let stream = self.id().await?;
        let gathered = GatheredRecords {
            batch: RecordBatch::new(),
            outcome: Arc::default(),
            last: None,
            abandoned: false,
            failed: None,
        };
        let inner =
            Arc::new(Inner { options, gathered: Mutex::new(gathered), begun: Notify::new(), taken: Notify::new() });
        let worker = Worker {
            inner: inner.clone(),
            client: self.client().clone(),
            link: self.client().pin(),
            stream,
            producer: producer.to_owned(),
            epoch,
            next_sequence: 0,
            in_flight: VecDeque::new(),
            backoff: Backoff::new(self.client().options().retries),
            gaps: 0,
            data,
        };
        tokio::spawn(worker.run());
        Ok(StreamPublisher { inner: Arc::new(Handle(inner)) })
    }
}

impl StreamPublisher {
    /// Publishes a record. The call waits only for backpressure. After an error for which a retry does not help, all
    /// further calls return this error, and the application must create a new publisher.
    pub async fn publish(&self, record: &Record<'_>) -> Result<Ack, Error> {
        self.put(&mut |batch| batch.push(record)).await
    }

    /// Publishes a record that has only a payload, like [`publish`](Self::publish).
    pub async fn publish_payload(&self, payload: &[u8]) -> Result<Ack, Error> {
        self.put(&mut |batch| batch.push_payload(payload)).await
    }

    async fn put(&self, push: &mut Push<'_>) -> Result<Ack, Error> {
        let inner = &self.inner.0;
        loop {
            if let Some(ack) = inner.put(push)? {
                return Ok(ack);
            }
            let mut taken = std::pin::pin!(inner.taken.notified());
            taken.as_mut().enable();
            if inner.is_full() {
                taken.await;
            }
        }
    }

    /// Waits until all records published before the call are appended.
    pub async fn flush(&self) -> Result<(), Error> {
        let last = self.inner.0.lock().last.clone();
        match last {
            Some(last) => last.wait().await.map(|_| ()),
            None => Ok(()),
        }
    }
}

/// Function that adds a record to the publisher's gathered batch.
type Push<'a> = dyn FnMut(&mut RecordBatch) -> Result<(), RecordError> + Send + 'a;

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().abandoned = true;
        self.0.begun.notify_one();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, GatheredRecords> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_no_room(&self, gathered: &GatheredRecords) -> bool {
        gathered.batch.count() >= self.options.max_records.max(1)
            || (gathered.batch.bytes().len() >= self.options.max_bytes && !gathered.batch.is_empty())
    }

    fn is_full(&self) -> bool {
        let gathered = self.lock();
        gathered.failed.is_none() && self.has_no_room(&gathered)
    }

    /// Adds a record to the gathered batch; returns `None` if the batch is full and cannot be sent now.
    fn put(&self, push: &mut Push<'_>) -> Result<Option<Ack>, Error> {
        let mut gathered = self.lock();
        if let Some(error) = &gathered.failed {
            return Err(error.clone());
        }
        if self.has_no_room(&gathered) {
            return Ok(None);
        }
        let index = gathered.batch.count();
        push(&mut gathered.batch)?;
        let outcome = gathered.outcome.clone();
        if index == 0 {
            gathered.last = Some(outcome.clone());
            self.begun.notify_one();
        }
        Ok(Some(Ack { outcome, index }))
    }
}

struct Batch {
    sequence: u64,
    records: RecordBatch,
    outcome: Arc<Outcome>,
    reply: Option<Reply>,
}

struct Worker {
    inner: Arc<Inner>,
    client: Client,
    link: Arc<Link>,
    stream: StreamId,
    producer: String,
    epoch: u32,
    next_sequence: u64,
    in_flight: VecDeque<Batch>,
    backoff: Backoff,
    gaps: u32,
    /// Number of the server's data set in which the stream's id and the producer are valid. A data set is all data of a
    /// server; a restored server has another one. The client numbers the data sets that it meets (`Directory::data`).
    data: u32,
}

impl Drop for Worker {
    /// Ends the waits of the callers if the task ends early, because its runtime stops or the task has panicked.
    fn drop(&mut self) {
        self.fail(&Error::Closed);
    }
}

impl Worker {
    async fn run(mut self) {
        let inner = self.inner.clone();
        let most = inner.options.max_in_flight.clamp(1, PRODUCER_RESULTS as usize);
        loop {
            while self.in_flight.len() < most && self.take() {
                let last = self.in_flight.len() - 1;
                if let Err(error) = self.send(last).await {
                    return self.fail(&error);
                }
            }
            let may_send = self.in_flight.len() < most;
            let Some(Batch { reply: Some(reply), .. }) = self.in_flight.front_mut() else {
                if inner.lock().abandoned && inner.lock().batch.is_empty() {
                    return;
                }
                inner.begun.notified().await;
                continue;
            };
            let came = tokio::select! {
                biased;
                came = reply => came,
                () = inner.begun.notified(), if may_send => continue,
            };
            if let Err(error) = self.settle(came).await {
                return self.fail(&error);
            }
        }
    }

    /// Takes the batch that callers have gathered, to send it. Returns false if no records were gathered.
    fn take(&mut self) -> bool {
        let mut gathered = self.inner.lock();
        if gathered.batch.is_empty() {
            return false;
        }
        let next = RecordBatch::with_capacity(gathered.batch.bytes().len());
        let records = std::mem::replace(&mut gathered.batch, next);
        let outcome = std::mem::take(&mut gathered.outcome);
        drop(gathered);
        self.inner.taken.notify_waiters();
        self.in_flight.push_back(Batch { sequence: self.next_sequence, records, outcome, reply: None });
        self.next_sequence += 1;
        true
    }

    async fn send(&mut self, at: usize) -> Result<(), Error> {
        let (stream, level) = (self.stream, self.client.level());
        let Batch { sequence, records, reply, .. } = &mut self.in_flight[at];
        let stamp = ProducerStamp { id: &self.producer, epoch: self.epoch, sequence: *sequence };
        let conditions = AppendConditions { producer: Some(stamp), ..AppendConditions::default() };
        let mut encode = |out: &mut Vec<u8>, id: u32| {
            put_write(out, id, &Fields::default(), level, |out| encode_append_with(out, stream, &conditions, records))
        };
        let (directory, data) = (self.client.directory(), Some(self.data));
        let check = |_: &SessionParameters| match directory.has_other_data(data) {
            true => Err(StageError::OtherData),
            false => Ok(()),
        };
        let stage = || self.link.request(&check, &mut encode, None);
        *reply = Some(until_staged(&self.link, stage).await?);
        Ok(())
    }

    /// Processes the server's answer to the oldest unanswered batch.
    async fn settle(&mut self, came: Result<SharedFrame, Lost>) -> Result<(), Error> {
        let error = match answer_of(came).and_then(|frame| appended(&frame)) {
            Ok(appended) => {
                if let Some(batch) = self.in_flight.pop_front() {
                    batch.outcome.complete(Ok(Appended { count: batch.records.count(), ..appended }));
                }
                self.backoff.reset();
                self.gaps = 0;
                return Ok(());
            }
            Err(error) => error,
        };
        let is_gap = error.is("sequence_gap");
        self.gaps += u32::from(is_gap);
        let again = if is_gap { self.gaps <= MAX_GAPS } else { error.action() == Action::Retry };
        if !again {
            return Err(error);
        }
        tokio::time::sleep(self.backoff.next()).await;
        for at in 0..self.in_flight.len() {
            self.send(at).await?;
        }
        Ok(())
    }

    /// Reports an error of the publisher to all callers that wait for an outcome, and to all later calls. Only the
    /// first error is kept.
    fn fail(&self, error: &Error) {
        let mut gathered = self.inner.lock();
        gathered.failed.get_or_insert_with(|| error.clone());
        let waiting = std::mem::take(&mut gathered.outcome);
        gathered.batch.clear();
        drop(gathered);
        for batch in &self.in_flight {
            batch.outcome.complete(Err(error.clone()));
        }
        waiting.complete(Err(error.clone()));
        self.inner.taken.notify_waiters();
    }
}
