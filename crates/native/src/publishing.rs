//! What a channel publishes: batches as they came, single messages gathered, in order.
//!
//! Owns: checking batches, what of their bytes is kept, gathering ([`Coalescer`]), and waiting for subscribers that ask
//! publishers to wait. Does not own who gets what (the broker), nor the requests (`subjects`).
//!
//! ```text
//!  publish, one message, id 0 ──► coalescer ──► complete ──┐
//!  publish, ask, any other ───────────────────────────────►┴─► broker, or blocked behind the one that waits for room
//! ```
//! Order: whatever comes goes behind what came before it, so a channel's messages are published in the order in which it
//! sent them, over all subjects. While anything is blocked the channel looks at no further frame.
//!
//! # What is kept
//! A batch lies in the receive buffer, and may wait for the slowest subscriber: a slice of the buffer would keep all of
//! it. So a batch is copied out (a few hundred nanoseconds), unless it is at least [`SHARED_FROM_BYTES`]: then it is
//! most of what it would keep, because buffers begin at twice that and grow with the frame that is arriving, to at
//! most twice what has come of it and 64 KiB.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use thalweg_broker::{
    Batch, BatchEncoder, BatchError, Broker, Coalescer, Moment, Notify, Published, Subject, SubjectError,
};
use thalweg_serving::{config::Config, error::ApiError, views::Views};
use thalweg_transport::Timer;
use thalweg_types::record::RecordError;
use thalweg_wire::{self as wire, BatchWriter, Checksum, READ_BYTES};
use tokio::sync::oneshot;

use super::{failure::Failure, request::Request};

/// Batches from this size on stay in the buffer that they came in.
const SHARED_FROM_BYTES: usize = READ_BYTES / 2;

/// Messages that came one by one, as one batch.
#[derive(Debug)]
pub(crate) struct Joined(BatchWriter);

impl BatchEncoder for Joined {
    fn byte_len(&self) -> usize {
        self.0.byte_len()
    }

    fn finish(self) -> Bytes {
        self.0.into_shared(Checksum::Without).expect("begun with a message").bytes
    }
}

/// A publisher's batch, its head read and its messages checked.
pub(crate) struct Checked<'f> {
    /// As it came.
    pub batch: wire::Batch<'f>,
    /// What it is about.
    pub subject: Subject,
}

/// What stands behind a batch that waits for room.
enum Waiting {
    Batch(Batch),
    /// A publish with a reply begins, of which so much is done.
    Begin(Published),
    /// It ends.
    Done(oneshot::Sender<Published>),
}

/// What a channel publishes.
pub(crate) struct Publishing {
    coalescer: Coalescer<Joined>,
    /// Scratch for what the coalescer completes.
    complete: Vec<Batch>,
    /// In order; empty unless a subscriber that asks publishers to wait has no room.
    blocked: VecDeque<Waiting>,
    /// What the publish that `blocked` is in the middle of has come to.
    total: Published,
    /// What the last batch was about: publishers mostly stay with one.
    subject: Option<Subject>,
    /// Ends the wait of the coalescer's batch for more, if it ever waits.
    timer: Option<Timer>,
}

/// Whether the channel has more to read at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Frames have come in this turn.
    GoesOn,
    /// It has run dry.
    Paused,
}

impl Publishing {
    /// With nothing to publish.
    #[must_use]
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            coalescer: Coalescer::new(config.batching()),
            complete: Vec::new(),
            blocked: VecDeque::new(),
            total: Published::default(),
            subject: None,
            timer: None,
        }
    }

    /// Whether something waits for room.
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Whether all that came has been published.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.blocked.is_empty() && self.coalescer.due().is_none()
    }

    /// Reads and checks a batch.
    ///
    /// # Errors
    /// It is no batch, or not what its publisher made, or for no subject.
    pub(crate) fn check<'f>(&mut self, bytes: &'f [u8]) -> Result<Checked<'f>, Failure> {
        let batch = wire::Batch::decode(bytes).map_err(|error| Failure::of(&error))?;
        // So that subscribers need not, and cheap beside what the batch's bytes have cost so far.
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
        Ok(Checked { batch, subject })
    }

    /// The batch as the broker takes it.
    pub(crate) fn keep(request: &Request<'_>, checked: &Checked<'_>) -> Result<Batch, Failure> {
        let part = checked.batch.bytes();
        let bytes = if part.len() >= SHARED_FROM_BYTES { request.share(part) } else { Bytes::copy_from_slice(part) };
        Ok(Batch::new(checked.subject.clone(), bytes, checked.batch.count())?)
    }

    /// Publishes one message that wants no reply, perhaps together with others.
    ///
    /// # Errors
    /// It can't be in a batch.
    pub(crate) fn join(&mut self, to: &To<'_>, now: Moment, checked: &Checked<'_>) -> Result<(), Failure> {
        let Self { coalescer, complete, .. } = self;
        let begin = |guess| {
            let writer = BatchWriter::with_capacity(checked.subject.as_bytes(), b"", guess);
            writer.map(Joined).map_err(|error| Failure::fix("malformed_batch", error.to_string()))
        };
        let add = |joined: &mut Joined| joined.0.append(&checked.batch).map_err(Failure::from);
        coalescer.push(now, &checked.subject, checked.batch.records().len(), begin, add, complete)?;
        self.publish_complete(to);
        Ok(())
    }

    /// Publishes what was gathered.
    pub(crate) fn flush(&mut self, to: &To<'_>) {
        self.coalescer.flush(&mut self.complete);
        self.publish_complete(to);
    }

    /// Publishes batches behind all that came before them.
    ///
    /// # Errors
    /// Somebody has no room and asks publishers to wait: what it comes to is told once all are published.
    pub(crate) fn publish(
        &mut self,
        to: &To<'_>,
        batches: impl IntoIterator<Item = Batch>,
    ) -> Result<Published, oneshot::Receiver<Published>> {
        self.flush(to);
        let (mut total, mut batches) = (Published::default(), batches.into_iter());
        while let Some(batch) = batches.next() {
            let Some(published) = self.try_publish(to, &batch) else {
                let (done, told) = oneshot::channel();
                self.blocked.extend([Waiting::Begin(total), Waiting::Batch(batch)]);
                self.blocked.extend(batches.map(Waiting::Batch));
                self.blocked.push_back(Waiting::Done(done));
                return Err(told);
            };
            add(&mut total, published);
        }
        Ok(total)
    }

    fn publish_complete(&mut self, to: &To<'_>) {
        let mut complete = std::mem::take(&mut self.complete);
        for batch in complete.drain(..) {
            if self.try_publish(to, &batch).is_none() {
                self.blocked.push_back(Waiting::Batch(batch));
            }
        }
        self.complete = complete;
    }

    fn try_publish(&self, to: &To<'_>, batch: &Batch) -> Option<Published> {
        if self.is_blocked() {
            return None;
        }
        to.broker.publish(batch, Some(to.waiter)).ok()
    }

    /// Publishes what has waited for room, and what is complete or due. Whether anything moved.
    pub(crate) fn go_on(&mut self, to: &To<'_>, views: &Views, input: Input, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(first) = self.blocked.front() {
            match first {
                Waiting::Batch(batch) => match to.broker.publish(batch, Some(to.waiter)) {
                    Ok(published) => add(&mut self.total, published),
                    Err(_) => break,
                },
                Waiting::Begin(total) => self.total = *total,
                Waiting::Done(_) => {}
            }
            if let Some(Waiting::Done(done)) = self.blocked.pop_front() {
                // Who has cancelled does not hear of it.
                let _ = done.send(self.total);
            }
            moved = true;
        }
        moved | self.gather(to, views, input, cx)
    }

    /// Completes what the coalescer has, if it is time.
    fn gather(&mut self, to: &To<'_>, views: &Views, input: Input, cx: &mut Context<'_>) -> bool {
        if self.coalescer.due().is_none() {
            return false;
        }
        if input == Input::Paused {
            self.coalescer.idle(&mut self.complete);
        }
        self.coalescer.flush_due(views.now(), &mut self.complete);
        let moved = !self.complete.is_empty();
        self.publish_complete(to);
        let Some(due) = self.coalescer.due().filter(|_| input == Input::Paused) else { return moved };
        // It waits for more: only a profile that says so comes here.
        match self.wait(cx, views.instant(due)) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => cx.waker().wake_by_ref(),
            Poll::Ready(Err(_)) => {
                // No more files can be opened: it does not wait.
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

/// Where a channel publishes, and who is told when there is room again.
pub(crate) struct To<'a> {
    /// The broker.
    pub broker: &'a Broker,
    /// The channel.
    pub waiter: &'a Arc<dyn Notify>,
}

fn add(total: &mut Published, published: Published) {
    total.delivered += published.delivered;
    total.missed += published.missed;
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
