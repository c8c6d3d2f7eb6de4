//! Publishing to subjects in batches.
//!
//! Owns: [`Publisher`]: gathering messages, the time at which a batch is sent, and the bound on
//! unacknowledged batches.
//!
//! A batch is sent as soon as it is full (in messages or bytes). A batch that is not full is sent immediately
//! if the publisher sent no batch during the last [`delay`](PublisherOptions::delay), so a lone message does
//! not wait. Otherwise the batch is sent when `delay` has passed since the last one. At most one batch that
//! is not full is sent in each `delay`, and no message waits longer than `delay`.
//!
//! Order: a publisher sends all its messages on one channel, which keeps their order.
//!
//! Backpressure: if the channel has no room for a full batch (see
//! [`max_unsent_bytes`](crate::Options::max_unsent_bytes)), the batch stays in the publisher and callers wait. A
//! publisher therefore holds at most one batch. Further batches wait on the channel.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use thalweg_transport::Timer;
use thalweg_types::record::{Record, RecordError};
use thalweg_wire::{BatchWriter, Checksum, Effect, batch::put_publish_prefix};
use tokio::sync::Notify;

use crate::{
    client::{Client, Clock},
    error::{Error, Invalid, Lost},
    link::{Link, Reply, StageError, WritingThread, any_server},
    request::answer_of,
    subject::{Published, published},
};

/// Minimum size in bytes of a batch that is sent without a copy. Copying a smaller batch costs less than sending it
/// separately.
const SHARE_FROM_BYTES: usize = thalweg_transport::SHARED_FROM_BYTES;

/// Bounds of a publisher's batches, and the acknowledgement that it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherOptions {
    /// Number of messages at which a batch is full and is sent.
    pub max_messages: u32,
    /// Size in bytes at which a batch is full and is sent. A larger message is sent in a batch of its own.
    pub max_bytes: usize,
    /// Longest time that a message waits for others to share its batch. With 0 each message is sent
    /// immediately, which costs a system call for each.
    pub delay: Duration,
    /// Choice of a checksum in each batch, which receivers verify.
    pub checksum: Checksum,
    /// Choice of acknowledgements that the publisher requests from the server.
    pub acks: Acks,
}

/// Choice of acknowledgements that a publisher requests from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// No acknowledgements. The server reports only failures, which the client counts.
    None,
    /// One acknowledgement for each batch, which the server sends when the batch is in the queues of all
    /// subscribers.
    PerBatch {
        /// Maximum number of unacknowledged batches. While this number is reached, calls that publish wait.
        max_in_flight: usize,
    },
}

impl Default for PublisherOptions {
    fn default() -> Self {
        Self {
            max_messages: 64,
            max_bytes: 64 * 1024,
            delay: Duration::from_micros(250),
            checksum: Checksum::Without,
            acks: Acks::None,
        }
    }
}

/// Gathers the messages for a subject into batches and publishes them. Cheap to clone: clones share the batch. Dropping
/// the last clone sends the gathered messages, but cannot report their outcome. To learn the outcome, call
/// [`flush`](Self::flush) before the drop.
#[derive(Clone)]
pub struct Publisher {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    link: Arc<Link>,
    options: PublisherOptions,
    subject: Vec<u8>,
    gathered: Mutex<GatheredMessages>,
    /// Notifies the background task that a batch has begun. The task sends the batch when its delay has passed.
    begun: Arc<Notify>,
    /// Notifies tasks that wait for the server's answer to a batch. Only one task receives this answer; the others wait
    /// here.
    settled: Notify,
}

struct GatheredMessages {
    writer: BatchWriter,
    subject: Vec<u8>,
    last_sent: Option<Instant>,
    sender_waits: bool,
    /// Number of the connection on which the publisher has sent since the last flush. If the link has another
    /// connection by now, messages may have been lost.
    generation: Option<u64>,
    /// Number of batches that the publisher has sent.
    sent: u64,
    in_flight: VecDeque<Reply>,
    /// Number of batches for whose acknowledgement a task is waiting at present. These batches are not in `in_flight`.
    awaited: usize,
    acked: Published,
    /// First error that no call to the publisher has returned to its caller yet.
    failed: Option<Error>,
}

/// Function that adds a message to the publisher's present batch.
type Push<'a> = dyn FnMut(&mut BatchWriter) -> Result<(), RecordError> + Send + 'a;

/// Event that a message has to wait for before the publisher can take it.
enum WaitReason {
    /// A connection, or room for the frame on the link.
    Link,
    /// The completion of a request, because as many requests are in progress on the link as it permits.
    Request,
    /// The server's answer to the oldest unacknowledged batch.
    Ack,
}

impl Client {
    /// Creates a publisher of a subject.
    pub fn publisher(&self, subject: impl AsRef<[u8]>, options: PublisherOptions) -> Result<Publisher, Error> {
        let subject = subject.as_ref().to_vec();
        let begun = Arc::new(Notify::new());
        let inner = Arc::new(Inner {
            client: self.clone(),
            link: self.pin(),
            options,
            gathered: Mutex::new(GatheredMessages::empty(&subject)?),
            subject,
            begun: begun.clone(),
            settled: Notify::new(),
        });
        tokio::spawn(send_due_batches(Arc::downgrade(&inner), begun));
        Ok(Publisher { inner })
    }
}

impl Publisher {
    /// Publishes a message. The call waits only for backpressure. If an earlier message failed and no call has returned
    /// its error yet, this call returns that error.
    pub async fn publish(&self, payload: &[u8]) -> Result<(), Error> {
        self.put(&self.inner.subject, &mut |writer| writer.push_payload(payload)).await
    }

    /// Publishes a message with a key and headers, otherwise like [`publish`](Self::publish).
    pub async fn publish_record(&self, record: &Record<'_>) -> Result<(), Error> {
        self.put(&self.inner.subject, &mut |writer| writer.push(record)).await
    }

    /// Publishes a message to another subject than the publisher's. The order of messages is kept: the messages
    /// gathered so far are sent first.
    pub async fn publish_to(&self, subject: &[u8], payload: &[u8]) -> Result<(), Error> {
        self.put(subject, &mut |writer| writer.push_payload(payload)).await
    }

    async fn put(&self, subject: &[u8], push: &mut Push<'_>) -> Result<(), Error> {
        loop {
            let wait = match self.inner.put(subject, push)? {
                None => return Ok(()),
                Some(wait) => wait,
            };
            self.inner.wait(wait).await?;
        }
    }

    /// Sends the gathered messages. Waits until the server has put all messages published so far into the
    /// subscribers' queues.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost), with unknown effect, if a connection was lost since the last flush. Messages that were
    /// being sent at that time may be lost. If the publisher requests acks, also the errors that the server returned
    /// for batches, and [`TimedOut`](Error::TimedOut) if an ack does not arrive within the client's timeout. The next
    /// flush then waits for this ack again.
    pub async fn flush(&self) -> Result<Published, Error> {
        let inner = &self.inner;
        loop {
            let wait = {
                let mut gathered = inner.lock();
                match inner.send(&mut gathered, WritingThread::Caller) {
                    Ok(()) => break,
                    Err(wait) => wait?,
                }
            };
            inner.wait(wait).await?;
        }
        let acks = async {
            while inner.await_ack().await {}
            Ok(())
        };
        Clock::new(inner.client.call_timeout()).within(Effect::Unknown, acks).await?;
        let (generation, sent) = {
            let gathered = inner.lock();
            (gathered.generation, gathered.sent)
        };
        if inner.options.acks == Acks::None {
            inner.client.barrier(&inner.link).await?;
        }
        let now = inner.link.generation();
        let mut gathered = inner.lock();
        if let Some(error) = gathered.failed.take() {
            return Err(error);
        }
        // Batches sent in the meantime belong to the next flush.
        gathered.generation = (gathered.sent != sent).then_some(now);
        if generation.is_some_and(|begun| begun != now) {
            return Err(Error::Lost { why: Lost::Closed, effect: Effect::Unknown });
        }
        Ok(std::mem::take(&mut gathered.acked))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, GatheredMessages> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message to the batch, or returns the event to wait for before the message can be added.
    #[inline]
    fn put(&self, subject: &[u8], push: &mut Push<'_>) -> Result<Option<WaitReason>, Error> {
        let mut gathered = self.lock();
        if let Some(error) = gathered.failed.take() {
            return Err(error);
        }
        if self.is_full(&gathered) || gathered.subject != subject {
            if let Err(wait) = self.send(&mut gathered, WritingThread::Task) {
                return wait.map(Some);
            }
            if gathered.subject != subject {
                gathered.writer = BatchWriter::new(subject, b"")?;
                gathered.subject.clear();
                gathered.subject.extend_from_slice(subject);
            }
        }
        push(&mut gathered.writer)?;
        if self.is_full(&gathered) {
            match self.send(&mut gathered, WritingThread::Task) {
                Ok(()) => {}
                // A full batch stays here if the link has no room. The background task sends it, because there may be
                // no later call that could.
                Err(Ok(_)) => self.leave_to_sender(&mut gathered),
                Err(Err(error)) => return Err(error),
            }
        } else if gathered.writer.count() == 1 {
            self.begin(&mut gathered)?;
        }
        Ok(None)
    }

    fn is_full(&self, gathered: &GatheredMessages) -> bool {
        gathered.writer.count() >= self.options.max_messages.max(1)
            || (gathered.writer.byte_len() >= self.options.max_bytes && gathered.writer.count() > 0)
    }

    /// Handles the first message of a batch: sends the batch immediately, or leaves the batch to the background task
    /// until its delay has passed.
    fn begin(&self, gathered: &mut GatheredMessages) -> Result<(), Error> {
        let due = gathered.last_sent.map(|sent| sent + self.options.delay);
        if due.is_none_or(|due| due <= Instant::now()) {
            match self.send(gathered, WritingThread::Caller) {
                Ok(()) => return Ok(()),
                Err(Err(error)) => return Err(error),
                Err(Ok(_)) => {}
            }
        }
        self.leave_to_sender(gathered);
        Ok(())
    }

    /// Leaves the gathered batch to the background task, which sends it when its delay has passed.
    fn leave_to_sender(&self, gathered: &mut GatheredMessages) {
        if !std::mem::replace(&mut gathered.sender_waits, true) {
            self.begun.notify_one();
        }
    }

    /// Sends the gathered messages. `Err(Ok(wait))` means that the caller has to wait for an event first. After
    /// `Err(Err(error))` the messages are dropped: they can never be sent, and would block later ones.
    fn send(&self, gathered: &mut GatheredMessages, writer: WritingThread) -> Result<(), Result<WaitReason, Error>> {
        if gathered.writer.count() == 0 {
            return Ok(());
        }
        if let Acks::PerBatch { max_in_flight } = self.options.acks {
            while gathered.in_flight.len() + gathered.awaited >= max_in_flight.max(1) {
                let Some(came) = gathered.in_flight.front_mut().and_then(Reply::try_take) else {
                    return Err(Ok(WaitReason::Ack));
                };
                gathered.in_flight.pop_front();
                gathered.settle(came);
            }
        }
        let sent = match self.options.acks {
            Acks::None => self.send_unacked(gathered, writer),
            Acks::PerBatch { .. } => self.send_acked(gathered, writer),
        };
        match sent {
            Ok(generation) => {
                gathered.last_sent = Some(Instant::now());
                // Keep the oldest generation since the last flush, so that the flush can report a loss on any
                // connection since then.
                gathered.generation.get_or_insert(generation);
                gathered.sent += 1;
                Ok(())
            }
            Err(StageError::Room | StageError::Connection(_)) => Err(Ok(WaitReason::Link)),
            Err(StageError::Requests) => Err(Ok(WaitReason::Request)),
            Err(blocked) => {
                gathered.writer.clear();
                Err(Err(blocked.into()))
            }
        }
    }

    fn send_unacked(&self, gathered: &mut GatheredMessages, writer: WritingThread) -> Result<u64, StageError> {
        if gathered.writer.byte_len() < SHARE_FROM_BYTES {
            let encoded = gathered.writer.encoded(self.options.checksum).unwrap_or_default();
            let mut frame = |out: &mut Vec<u8>| {
                put_publish_prefix(out, 0, encoded.len())?;
                out.extend_from_slice(encoded);
                Ok(None)
            };
            let generation = self.link.send(&mut frame, writer)?;
            gathered.writer.clear();
            return Ok(generation);
        }
        let mut frame = |out: &mut Vec<u8>| {
            let batch = gathered.take(self.options.checksum)?;
            put_publish_prefix(out, 0, batch.len())?;
            Ok(Some(batch))
        };
        self.link.send(&mut frame, writer)
    }

    fn send_acked(&self, gathered: &mut GatheredMessages, writer: WritingThread) -> Result<u64, StageError> {
        let encoded = gathered.writer.encoded(self.options.checksum).unwrap_or_default();
        let mut frame = |out: &mut Vec<u8>, id: u32| {
            put_publish_prefix(out, id, encoded.len())?;
            out.extend_from_slice(encoded);
            Ok(())
        };
        let reply = self.link.request(&any_server, &mut frame, Some(writer))?;
        let generation = reply.ticket.generation;
        gathered.in_flight.push_back(reply);
        gathered.writer.clear();
        Ok(generation)
    }

    /// Waits for the server's answer to the oldest unacknowledged batch. If other tasks already wait for all answers,
    /// waits until one of them has its answer. Returns false if no batch is unacknowledged.
    async fn await_ack(&self) -> bool {
        let mut settled = pin!(self.settled.notified());
        settled.as_mut().enable();
        let (oldest, others) = {
            let mut gathered = self.lock();
            let others = gathered.awaited > 0;
            gathered.awaited += usize::from(!gathered.in_flight.is_empty());
            (gathered.in_flight.pop_front(), others)
        };
        let Some(oldest) = oldest else {
            if others {
                settled.await;
            }
            return others;
        };
        let mut awaited = PendingAck { inner: self, reply: Some(oldest) };
        if let Some(reply) = &mut awaited.reply {
            let came = reply.await;
            awaited.reply = None;
            self.lock().settle(came);
        }
        true
    }

    /// Waits for the given event, at most for the client's timeout of requests.
    async fn wait(&self, wait: WaitReason) -> Result<(), Error> {
        let clock = Clock::new(self.client.call_timeout());
        match wait {
            WaitReason::Ack => clock.within(Effect::Unknown, async { Ok(self.await_ack().await) }).await.map(|_| ()),
            WaitReason::Link => {
                let room = async {
                    let mut changed = pin!(self.link.changed.notified());
                    changed.as_mut().enable();
                    if !self.link.has_room() {
                        changed.await;
                    }
                    Ok(())
                };
                clock.within(Effect::Nothing, room).await
            }
            WaitReason::Request => {
                let finished = async {
                    let mut changed = pin!(self.link.changed.notified());
                    changed.as_mut().enable();
                    if self.link.is_out_of_requests() {
                        tokio::select! {
                            () = changed => {}
                            () = self.link.finished.notified() => {}
                        }
                        // Another caller may have sent the messages, or this wait may have failed. Pass the wake-up on.
                        self.link.pass_turn();
                    }
                    Ok(())
                };
                clock.within(Effect::Nothing, finished).await
            }
        }
    }

    /// Returns the time at which the gathered batch must be sent; `None` if there is no batch to send.
    fn due(&self) -> Option<Instant> {
        let mut gathered = self.lock();
        let due = gathered.last_sent.map_or_else(Instant::now, |sent| sent + self.options.delay);
        gathered.sender_waits = gathered.writer.count() > 0;
        gathered.sender_waits.then_some(due)
    }

    /// Sends the batch when its delay has passed. Returns the event to wait for if the batch cannot be sent now; `None`
    /// otherwise.
    fn send_due(&self) -> Option<WaitReason> {
        let mut gathered = self.lock();
        let due = gathered.last_sent.is_none_or(|sent| sent + self.options.delay <= Instant::now());
        if !due {
            return None;
        }
        match self.send(&mut gathered, WritingThread::Caller) {
            Ok(()) => None,
            Err(Ok(wait)) => Some(wait),
            Err(Err(error)) => {
                gathered.failed.get_or_insert(error);
                None
            }
        }
    }
}

impl GatheredMessages {
    fn settle(&mut self, came: Result<thalweg_wire::SharedFrame, Lost>) {
        match answer_of(came).and_then(|frame| published(&frame)) {
            Ok(Published { delivered, missed }) => {
                self.acked.delivered += delivered;
                self.acked.missed += missed;
            }
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Returns the encoded batch, and replaces the batch's buffer with an empty one of similar capacity.
    fn take(&mut self, checksum: Checksum) -> Result<bytes::Bytes, Invalid> {
        let next = BatchWriter::with_capacity(&self.subject, b"", self.writer.byte_len())?;
        let full = std::mem::replace(&mut self.writer, next);
        Ok(full.into_shared(checksum).map(|batch| batch.bytes).unwrap_or_default())
    }
}

/// The server's expected answer to a batch, while a task waits for the answer. If the task stops waiting, this value
/// puts the answer back into the queue of expected answers.
struct PendingAck<'p> {
    inner: &'p Inner,
    reply: Option<Reply>,
}

impl Drop for PendingAck<'_> {
    fn drop(&mut self) {
        let mut gathered = self.inner.lock();
        gathered.awaited -= 1;
        if let Some(reply) = self.reply.take() {
            gathered.in_flight.push_front(reply);
        }
        drop(gathered);
        self.inner.settled.notify_waiters();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let empty = GatheredMessages::empty(b"").expect("the subject is empty");
        let mut gathered = std::mem::replace(&mut *self.lock(), empty);
        // No caller is left to report an error to.
        let _ = self.send(&mut gathered, WritingThread::Caller);
        self.begun.notify_one();
    }
}

impl GatheredMessages {
    fn empty(subject: &[u8]) -> Result<Self, Error> {
        Ok(Self {
            writer: BatchWriter::new(subject, b"")?,
            subject: subject.to_vec(),
            last_sent: None,
            sender_waits: false,
            generation: None,
            sent: 0,
            in_flight: VecDeque::new(),
            awaited: 0,
            acked: Published::default(),
            failed: None,
        })
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// Sends batches when their delay has passed, as long as the publisher exists. Runs as a background task.
async fn send_due_batches(publisher: Weak<Inner>, begun: Arc<Notify>) {
    let mut timer = Timer::new();
    loop {
        let Some(due) = publisher.upgrade().map(|publisher| publisher.due()) else { return };
        let Some(due) = due else {
            begun.notified().await;
            continue;
        };
        let waited = match &mut timer {
            Ok(timer) => timer.sleep_until(due).await,
            Err(_) => Err(std::io::ErrorKind::Unsupported.into()),
        };
        if waited.is_err() {
            // Without the precise timer, because the process cannot open more files, wait with the runtime's coarser
            // timer.
            tokio::time::sleep_until(due.into()).await;
        }
        let Some(publisher) = publisher.upgrade() else { return };
        if let Some(wait) = publisher.send_due() {
            // The next call that sends reports the error.
            let _ = publisher.wait(wait).await;
        }
    }
}
