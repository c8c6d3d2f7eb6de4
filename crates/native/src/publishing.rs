//! Publishing of the messages of a channel's client to subscribers: whole batches, and single messages that are
//! gathered into batches, in order.
//!
//! Owns: checking batches, keeping their bytes, gathering messages ([`Coalescer`]), and waiting for subscribers whose
//! policy blocks publishers. Does not own: the choice of receivers (the broker), nor the requests (`subjects`).
//!
//! ```text
//!  publish, one message, id 0 ──► coalescer ──► complete ──┐
//!  publish, ask, any other ───────────────────────────────►┴─► broker, or queued behind a batch that waits for room
//! ```
//! Order: each batch is published after all earlier ones. So a channel's messages are published in the order in which
//! the client sent them, over all subjects. While a batch is blocked, the channel handles no further frame.
//!
//! # Memory of kept batches
//!
//! A batch arrives in the receive buffer and may wait for the slowest subscriber. A slice of the buffer would keep the
//! whole buffer in memory. So a batch is copied (which takes a few hundred nanoseconds), unless it has at least
//! [`SHARED_FROM_BYTES`]. Such a batch fills most of its buffer: buffers begin at twice that size, and grow with the
//! arriving frame to at most twice the received bytes plus 64 KiB.

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

/// Size in bytes from which a batch stays in its receive buffer and is not copied.
const SHARED_FROM_BYTES: usize = READ_BYTES / 2;

/// Encoder that collects single messages in one batch.
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

/// A batch that the client published, with its parsed subject. Its messages were checked.
pub(crate) struct CheckedBatch<'f> {
    /// The batch as the client sent it.
    pub batch: wire::Batch<'f>,
    /// Subject of the batch, in parsed form.
    pub subject: Subject,
}

/// Entry in the queue of publishes of a channel (a TCP connection or a QUIC stream) that wait because the queue of a
/// subscriber is full.
enum BlockedItem {
    Batch(Batch),
    /// Beginning of a publish that gets a reply. Contains the result for those of its batches that were already
    /// published. The batches that still wait follow in the queue.
    Begin(Published),
    /// End of a publish that gets a reply. Contains the sender for the total result of the publish.
    Done(oneshot::Sender<Published>),
}

/// Publishing state of a channel (a TCP connection or a QUIC stream): messages that are being gathered, and batches
/// that wait because a subscriber's queue is full.
pub(crate) struct Publishing {
    coalescer: Coalescer<MessageEncoder>,
    /// Buffer for the complete batches into which single messages were gathered. The memory of the buffer is reused.
    complete: Vec<Batch>,
    /// Waiting publishes, in order of arrival. Empty unless the queue of a subscriber whose policy blocks publishers is
    /// full.
    blocked: VecDeque<BlockedItem>,
    /// Result so far of the publish that is first in `blocked`: it covers the batches of this publish that were already
    /// published. The other batches of this publish still wait.
    total: Published,
    /// Number of batches that the channel (a TCP connection or a QUIC stream) has published. One in [`SAMPLED_OF`] is
    /// timed.
    batches: u32,
    /// Subject of the last batch, kept because publishers mostly publish to the same subject again.
    subject: Option<Subject>,
    /// Deliveries that the client's publishes have caused, and time of its requests, since the client last waited for
    /// other clients of its thread.
    pub(crate) caused: CausedWork,
    /// Timer at which the gathered batch is published even if no more messages arrive. It is created when a batch first
    /// needs a timer.
    timer: Option<Timer>,
}

/// Tells if the channel (a TCP connection or a QUIC stream) has just received frames. If it has not, the configuration
/// decides if the batch of gathered messages is published at once, or waits for more messages until it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputState {
    /// The channel (a TCP connection or a QUIC stream) has received frames in this poll of its task.
    Open,
    /// The channel (a TCP connection or a QUIC stream) has received no frames in this poll of its task.
    Paused,
}

impl Publishing {
    /// Creates the publishing state of a channel (a TCP connection or a QUIC stream), without pending messages.
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

    /// Returns true if a batch waits because a subscriber's queue is full.
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
        // Subscribers rely on this check, which is cheap compared with receiving the batch.
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

    /// Returns the batch in the form that the broker takes. Its bytes stay valid after the frame has left the receive
    /// buffer.
    pub(crate) fn broker_batch(request: &Request<'_>, checked: &CheckedBatch<'_>) -> Result<Batch, Failure> {
        let part = checked.batch.bytes();
        let bytes = if part.len() >= SHARED_FROM_BYTES { request.share(part) } else { Bytes::copy_from_slice(part) };
        Ok(Batch::new(checked.subject.clone(), bytes, checked.batch.count())?)
    }

    /// Publishes one message that gets no reply. The channel (a TCP connection or a QUIC stream) may first gather the
    /// message with others into one batch.
    ///
    /// # Errors
    /// Returns an error if the message cannot be in a batch.
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
    /// Returns a receiver if the queue of a subscriber whose policy blocks publishers is full. The batches then wait,
    /// and the receiver gets the result once all are published.
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

    /// Publishes the batches that wait for a subscriber's full queue, if the queue has room now. Then publishes the
    /// gathered batch if it is complete or due. Returns true if there was progress.
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
                // If the client has cancelled, the receiver is gone.
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
        // The batch waits for more messages. Only some batching profiles permit this.
        match self.wait(cx, to.views.instant(due)) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => cx.waker().wake_by_ref(),
            Poll::Ready(Err(_)) => {
                // No timer is available, because the process has no file descriptors left. So the batch is published
                // immediately.
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

/// Destination of a channel's messages, and the handle that wakes the channel (a TCP connection or a QUIC stream) when
/// a subscriber's full queue has room again.
pub(crate) struct PublishTarget<'a> {
    /// Broker that distributes the batches to subscribers, and its clock.
    pub views: &'a Views,
    /// Histograms for the times of the stages of publishes.
    pub times: &'a PublishTimes,
    /// Handle that wakes the channel's task.
    pub waiter: &'a Arc<dyn Notify>,
    /// Time at which the request arrived; `None` if the messages come from several requests.
    pub received: Option<Instant>,
}

impl PublishTarget<'_> {
    /// Publishes a batch, and increases `count`, the number of batches that the channel (a TCP connection or a QUIC
    /// stream) has published. One in [`SAMPLED_OF`] batches is timed.
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
