//! Publishing the messages of a channel's client to subscribers: whole batches, and single messages gathered into
//! batches, in order.
//!
//! Owns: checking batches, keeping their bytes, gathering messages ([`Coalescer`]), and waiting for subscribers whose
//! policy blocks publishers. Does not own the choice of receivers (the broker), nor the requests (`subjects`).
//!
//! ```text
//!  publish, one message, id 0 ──► coalescer ──► complete ──┐
//!  publish, ask, any other ───────────────────────────────►┴─► broker, or queued behind a batch that waits for room
//! ```
//! Order: each batch is queued after all earlier ones, so a channel's messages are published in the order in which the
//! client sent them, over all subjects. While a batch is blocked the channel handles no further frame.
//!
//! # Memory of kept batches
//!
//! A batch arrives in the receive buffer and may wait for the slowest subscriber; a slice would keep the whole buffer.
//! A batch is therefore copied out (a few hundred nanoseconds) unless it has at least [`SHARED_FROM_BYTES`]. A batch
//! of that size is most of the buffer that it keeps: buffers begin at twice that size and grow with the arriving frame
//! to at most twice the received bytes plus 64 KiB.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use thalweg_broker::{
    Batch, BatchEncoder, BatchError, Coalescer, Moment, Notify, Published, Subject, SubjectError, WouldBlock,
};
use thalweg_serving::{bulk::CausedWork, config::Config, error::ApiError, views::Views};
use thalweg_transport::Timer;
use thalweg_types::record::RecordError;
use thalweg_wire::{self as wire, BatchWriter, Checksum, READ_BYTES};
use tokio::sync::oneshot;

use super::{
    failure::Failure,
    request::Request,
    stages::{PublishStage, PublishTimes, SAMPLED_OF},
};

/// Size in bytes from which a batch is not copied but stays in its receive buffer.
const SHARED_FROM_BYTES: usize = READ_BYTES / 2;

/// A batch into which single messages are gathered.
#[derive(Debug)]
pub(crate) struct MessageEncoder(BatchWriter);

impl BatchEncoder for MessageEncoder {
    fn byte_len(&self) -> usize {
        self.0.byte_len()
    }

    fn finish(self) -> Bytes {
        self.0.into_shared(Checksum::Without).expect("begun with a message").bytes
    }
}

/// A batch that the client published, after its subject was parsed and its messages were checked.
pub(crate) struct CheckedBatch<'f> {
    /// The batch as the client sent it.
    pub batch: wire::Batch<'f>,
    /// Subject of the batch, in parsed form.
    pub subject: Subject,
}

/// Entry of the queue of publishes that wait because the queue of a subscriber is full.
enum BlockedItem {
    Batch(Batch),
    /// Beginning of a publish whose client wants a reply. Contains the result of the batches that were already
    /// published.
    Begin(Published),
    /// End of a publish whose client wants a reply. Contains the channel through which the total result is sent.
    Done(oneshot::Sender<Published>),
}

/// Publishing state of a channel: messages being gathered, and batches that wait because the queue of a subscriber is
/// full.
pub(crate) struct Publishing {
    coalescer: Coalescer<MessageEncoder>,
    /// Reused buffer for the batches that the coalescer has completed.
    complete: Vec<Batch>,
    /// Publishes that wait, in order of arrival; empty unless the queue of a subscriber whose policy blocks publishers
    /// is full.
    blocked: VecDeque<BlockedItem>,
    /// Result so far of the publish whose batches are at the head of `blocked`.
    total: Published,
    /// Number of batches published so far, which chooses those that are timed.
    batches: u32,
    /// Subject of the last batch, kept because publishers mostly publish to the same subject again.
    subject: Option<Subject>,
    /// Work that the client's requests have caused since its last turn.
    pub(crate) caused: CausedWork,
    /// Timer at which a gathered batch is published even if no more messages arrive; created when a batch first needs
    /// it.
    timer: Option<Timer>,
}

/// State of the channel's input in this turn, which decides if a gathered batch waits for more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputState {
    /// Frames arrived in this turn.
    Open,
    /// No frames arrived in this turn.
    Paused,
}

impl Publishing {
    /// Creates the publishing state of a channel, without pending messages.
    #[must_use]
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            coalescer: Coalescer::new(config.batching()),
            complete: Vec::new(),
            blocked: VecDeque::new(),
            total: Published::default(),
            batches: 0,
            subject: None,
            caused: CausedWork::default(),
            timer: None,
        }
    }

    /// Returns true if a batch waits because the queue of a subscriber is full.
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Returns true if all messages received from the client have been published.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.blocked.is_empty() && self.coalescer.due().is_none()
    }

    /// Decodes a batch that the client published, and checks its messages and its subject.
    ///
    /// # Errors
    /// Fails if the bytes are not a valid batch, the checksum does not match, or the subject is invalid.
    pub(crate) fn check<'f>(&mut self, bytes: &'f [u8]) -> Result<CheckedBatch<'f>, Failure> {
        let batch = wire::Batch::decode(bytes).map_err(|error| Failure::of(&error))?;
        // Subscribers rely on this check. It is cheap compared with receiving the batch.
        batch.check().and_then(|()| batch.check_crc()).map_err(|error| Failure::of(&error))?;
        if !batch.reply().is_empty() {
            Subject::parse(batch.reply())?;
        }
        let subject = match &self.subject {
            Some(subject) if subject.as_bytes() == batch.subject() => subject.clone(),
            _ => {
                let subject = Subject::parse(batch.subject())?;
                self.subject = Some(subject.clone());
                subject
            }
        };
        Ok(CheckedBatch { batch, subject })
    }

    /// Returns the batch in the form that the broker takes, with bytes that outlive the receive buffer's frame.
    pub(crate) fn broker_batch(request: &Request<'_>, checked: &CheckedBatch<'_>) -> Result<Batch, Failure> {
        let part = checked.batch.bytes();
        let bytes = if part.len() >= SHARED_FROM_BYTES { request.share(part) } else { Bytes::copy_from_slice(part) };
        Ok(Batch::new(checked.subject.clone(), bytes, checked.batch.count())?)
    }

    /// Publishes one message that needs no reply. The message may first be gathered with others into one batch.
    ///
    /// # Errors
    /// Fails if the message can't be in a batch.
    pub(crate) fn join(
        &mut self,
        to: &PublishTarget<'_>,
        now: Moment,
        checked: &CheckedBatch<'_>,
    ) -> Result<(), Failure> {
        let Self { coalescer, complete, .. } = self;
        let begin = |guess| {
            let writer = BatchWriter::with_capacity(checked.subject.as_bytes(), b"", guess);
            writer.map(MessageEncoder).map_err(|error| Failure::invalid("malformed_batch", error.to_string()))
        };
        let add = |joined: &mut MessageEncoder| joined.0.append(&checked.batch).map_err(Failure::from);
        coalescer.push(now, &checked.subject, checked.batch.records().len(), begin, add, complete)?;
        self.publish_complete(to);
        Ok(())
    }

    /// Publishes the gathered messages immediately, without waiting for more.
    pub(crate) fn flush(&mut self, to: &PublishTarget<'_>) {
        self.coalescer.flush(&mut self.complete);
        self.publish_complete(to);
    }

    /// Publishes batches after all earlier ones of the channel. Returns the result.
    ///
    /// # Errors
    /// A subscriber whose policy blocks publishers has a full queue. The returned receiver gets the result once all
    /// batches are published.
    pub(crate) fn publish(
        &mut self,
        to: &PublishTarget<'_>,
        batches: impl IntoIterator<Item = Batch>,
    ) -> Result<Published, oneshot::Receiver<Published>> {
        self.flush(to);
        let (mut total, mut batches) = (Published::default(), batches.into_iter());
        while let Some(batch) = batches.next() {
            let Some(published) = self.try_publish(to, &batch) else {
                let (done, outcome) = oneshot::channel();
                self.blocked.extend([BlockedItem::Begin(total), BlockedItem::Batch(batch)]);
                self.blocked.extend(batches.map(BlockedItem::Batch));
                self.blocked.push_back(BlockedItem::Done(done));
                return Err(outcome);
            };
            total.add(published);
        }
        Ok(total)
    }

    fn publish_complete(&mut self, to: &PublishTarget<'_>) {
        let mut complete = std::mem::take(&mut self.complete);
        for batch in complete.drain(..) {
            if self.try_publish(to, &batch).is_none() {
                self.blocked.push_back(BlockedItem::Batch(batch));
            }
        }
        self.complete = complete;
    }

    fn try_publish(&mut self, to: &PublishTarget<'_>, batch: &Batch) -> Option<Published> {
        if self.is_blocked() {
            return None;
        }
        let published = to.publish(batch, &mut self.batches).ok()?;
        self.caused.add(batch.encoded().len(), published.delivered);
        Some(published)
    }

    /// Publishes batches that waited for a subscriber's queue, if it has room now, and then the gathered batch if it
    /// is complete or due. Returns true if there was progress.
    pub(crate) fn publish_blocked(&mut self, to: &PublishTarget<'_>, input: InputState, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(first) = self.blocked.front() {
            match first {
                BlockedItem::Batch(batch) => match to.publish(batch, &mut self.batches) {
                    Ok(published) => {
                        self.caused.add(batch.encoded().len(), published.delivered);
                        self.total.add(published);
                    }
                    Err(_) => break,
                },
                BlockedItem::Begin(total) => self.total = *total,
                BlockedItem::Done(_) => {}
            }
            if let Some(BlockedItem::Done(done)) = self.blocked.pop_front() {
                // The receiver is gone if the client cancelled.
                let _ = done.send(self.total);
            }
            moved = true;
        }
        moved | self.gather(to, input, cx)
    }

    /// Publishes the batch of gathered messages, if it is complete or due. Returns true if there was progress.
    fn gather(&mut self, to: &PublishTarget<'_>, input: InputState, cx: &mut Context<'_>) -> bool {
        if self.coalescer.due().is_none() {
            return false;
        }
        if input == InputState::Paused {
            self.coalescer.idle(&mut self.complete);
        }
        self.coalescer.flush_due(to.views.now(), &mut self.complete);
        let moved = !self.complete.is_empty();
        self.publish_complete(to);
        let Some(due) = self.coalescer.due().filter(|_| input == InputState::Paused) else { return moved };
        // The batch waits for more messages, which only some batching profiles allow.
        match self.wait(cx, to.views.instant(due)) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => cx.waker().wake_by_ref(),
            Poll::Ready(Err(_)) => {
                // Without a timer (the process has no file descriptors left) the batch does not wait.
                self.coalescer.flush_due(due, &mut self.complete);
                self.publish_complete(to);
                return true;
            }
        }
        moved
    }

    fn wait(&mut self, cx: &mut Context<'_>, until: Instant) -> Poll<io::Result<()>> {
        let timer = match &mut self.timer {
            Some(timer) => timer,
            none => none.insert(Timer::new()?),
        };
        timer.poll_until(cx, until)
    }
}

/// Destination of a channel's messages, and the handle that is notified when a subscriber's full queue has room again.
pub(crate) struct PublishTarget<'a> {
    /// Broker that distributes the batches to subscribers, and its clock.
    pub views: &'a Views,
    /// Times of the stages of publishes.
    pub times: &'a PublishTimes,
    /// Handle that wakes the channel's task.
    pub waiter: &'a Arc<dyn Notify>,
    /// Time at which the request arrived; `None` for messages of several requests.
    pub received: Option<Instant>,
}

impl PublishTarget<'_> {
    /// Publishes a batch. `count` is the number of batches of the channel so far, of which some are timed.
    fn publish(&self, batch: &Batch, count: &mut u32) -> Result<Published, WouldBlock> {
        *count = count.wrapping_add(1);
        if *count % SAMPLED_OF == 1 {
            self.publish_timed(batch)
        } else {
            self.views.broker.publish(batch, Some(self.waiter))
        }
    }

    #[cold]
    fn publish_timed(&self, batch: &Batch) -> Result<Published, WouldBlock> {
        let began = self.views.now();
        batch.stamp(began);
        let published = self.views.broker.publish(batch, Some(self.waiter))?;
        if let Some(received) = self.received {
            self.times.record(PublishStage::Receive, began.after(self.views.moment(received)));
        }
        self.times.record(PublishStage::FanOut, self.views.now().after(began));
        Ok(published)
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        Self::of(&error)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<SubjectError> for Failure {
    fn from(error: SubjectError) -> Self {
        Self::of(&error)
    }
}
