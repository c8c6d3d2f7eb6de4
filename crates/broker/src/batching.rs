//! Coalesces single messages of a publisher into batches, so that the broker queues and sends many messages at about
//! the cost of one.
//!
//! Owns: `Coalescer`, the open batch, and the limits at which a batch is complete. Does not own: the encoding of
//! messages (the caller's `BatchEncoder`), publishing, or a timer.
//!
//! Messages of a publisher keep their order, also across subjects: a batch has one subject, so a message to another
//! subject completes the open batch. A batch is also complete when it has enough messages or bytes, when its first
//! message is old enough, and optionally when the publisher's input pauses. The coalescer reports the time at which the
//! open batch must be completed, and never waits itself.

use std::time::Duration;

use bytes::Bytes;
use thalweg_types::limits::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES};

use crate::{Batch, BatchError, Moment, Subject};

/// Rule for an incomplete batch when its publisher has no further input for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenIdle {
    /// The batch is published as soon as the publisher has no further input, so a single message never waits. The
    /// maximum delay of a batch then matters only while input arrives without a pause.
    Flush,
    /// The incomplete batch waits for further messages until its maximum delay is over. This makes fewer and larger
    /// batches, but delays every single message.
    Wait,
}

/// Limits on a batch of coalesced messages. The batch is complete, and is published, when it reaches any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Maximum number of messages in a batch, at most [`MAX_PUBLISH_MESSAGES`]. 1 turns batching off.
    pub max_messages: u32,
    /// Maximum bytes of a batch. A larger message becomes a batch of its own. Each publisher needs this much memory.
    pub max_bytes: usize,
    /// Maximum time from a batch's first message until the batch is published.
    pub max_delay: Duration,
    /// Rule for an incomplete batch when its publisher has no further input for now.
    pub when_idle: WhenIdle,
}

impl Batching {
    /// Default limits: batches of 64 messages, 64 KiB or 250 µs, whichever comes first. A pause of the publisher's
    /// input also completes a batch.
    pub const BALANCED: Self = Self {
        max_messages: 64,
        max_bytes: 64 * 1024,
        max_delay: Duration::from_micros(250),
        when_idle: WhenIdle::Flush,
    };
    /// Limits for low latency: batches of 16 messages, 16 KiB or 50 µs, whichever comes first. So a message never waits
    /// long for others.
    pub const LATENCY: Self = Self {
        max_messages: 16,
        max_bytes: 16 * 1024,
        max_delay: Duration::from_micros(50),
        when_idle: WhenIdle::Flush,
    };
    /// Limits for high throughput: batches of 512 messages, 256 KiB or 1 ms, whichever comes first. A message can wait
    /// up to 1 ms for others to share its batch.
    pub const THROUGHPUT: Self = Self {
        max_messages: 512,
        max_bytes: 256 * 1024,
        max_delay: Duration::from_millis(1),
        when_idle: WhenIdle::Wait,
    };
}

impl Default for Batching {
    fn default() -> Self {
        Self::BALANCED
    }
}

/// Codec of the caller that encodes the messages of one batch, which a [`Coalescer`] is gathering.
pub trait BatchEncoder {
    /// Number of bytes encoded into the batch so far.
    fn byte_len(&self) -> usize;
    /// Returns the encoded batch. The result should own little more memory than its length, because queues count only
    /// its length.
    fn finish(self) -> Bytes;
}

/// Encoder that concatenates messages without any framing.
impl BatchEncoder for Vec<u8> {
    fn byte_len(&self) -> usize {
        self.len()
    }

    fn finish(mut self) -> Bytes {
        if self.capacity() > 2 * self.len() {
            self.shrink_to_fit();
        }
        Bytes::from(self)
    }
}

#[derive(Debug)]
struct Open<E> {
    subject: Subject,
    encoder: E,
    messages: u32,
    due: Moment,
}

/// Gathers the single messages of one publisher into a batch, which stays open until a limit completes it.
#[derive(Debug)]
pub struct Coalescer<E> {
    batching: Batching,
    open: Option<Open<E>>,
    /// Number of bytes of the last completed batch, from which the size of the next batch is estimated.
    last_bytes: usize,
}

impl<E: BatchEncoder> Coalescer<E> {
    /// Creates a coalescer that has gathered no messages.
    #[must_use]
    pub fn new(batching: Batching) -> Self {
        Self { batching, open: None, last_bytes: 0 }
    }

    /// Adds one message of about `bytes` encoded bytes. `begin` creates the encoder of a new batch from an estimate of
    /// the batch's size in bytes. `add` appends the message to an encoder. Batches that become complete are appended to
    /// `complete`; the caller must publish them in this order.
    ///
    /// # Errors
    /// Returns the errors of `begin` and `add`, which must leave the encoder unchanged when they fail. Returns
    /// [`BatchError::TooLarge`] for a message that is larger than a batch may be. After an error the message is not
    /// added, but `complete` may have received the batch of earlier messages.
    pub fn push<X: From<BatchError>>(
        &mut self,
        now: Moment,
        subject: &Subject,
        bytes: usize,
        begin: impl FnOnce(usize) -> Result<E, X>,
        add: impl FnOnce(&mut E) -> Result<(), X>,
        complete: &mut Vec<Batch>,
    ) -> Result<(), X> {
        if bytes > MAX_PUBLISH_BYTES {
            return Err(BatchError::TooLarge { bytes }.into());
        }
        let Batching { max_messages, max_bytes, max_delay, .. } = self.batching;
        let fits = |open: &Open<E>| open.subject == *subject && open.encoder.byte_len() + bytes <= max_bytes;
        if !self.open.as_ref().is_some_and(fits) {
            self.flush(complete);
        }
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let encoder = begin(self.last_bytes.max(bytes))?;
                Open { subject: subject.clone(), encoder, messages: 0, due: now.plus(max_delay) }
            }
        };
        let added = add(&mut open.encoder);
        open.messages += u32::from(added.is_ok());
        let full = open.messages >= max_messages.min(MAX_PUBLISH_MESSAGES) || open.encoder.byte_len() >= max_bytes;
        self.open = (open.messages > 0).then_some(open);
        if full {
            self.flush(complete);
        }
        added
    }

    /// Completes the open batch, and then appends `batch` unchanged to `complete`. Used for batches that the publisher
    /// created itself, and for messages that cannot share a batch, such as a message with its own reply subject.
    pub fn push_complete(&mut self, batch: Batch, complete: &mut Vec<Batch>) {
        self.flush(complete);
        complete.push(batch);
    }

    /// Time at which the open batch must be completed; `None` if there is no open batch.
    #[must_use]
    pub fn due(&self) -> Option<Moment> {
        self.open.as_ref().map(|open| open.due)
    }

    /// Completes the open batch if its first message has waited for the maximum delay at the time `now`. Appends the
    /// batch to `complete`.
    pub fn flush_due(&mut self, now: Moment, complete: &mut Vec<Batch>) {
        if self.due().is_some_and(|due| due <= now) {
            self.flush(complete);
        }
    }

    /// Reports that the publisher has no further input for now. With [`WhenIdle::Flush`], completes the open batch and
    /// appends it to `complete`.
    pub fn idle(&mut self, complete: &mut Vec<Batch>) {
        if self.batching.when_idle == WhenIdle::Flush {
            self.flush(complete);
        }
    }

    /// Completes the open batch, if there is one, and appends it to `complete`.
    pub fn flush(&mut self, complete: &mut Vec<Batch>) {
        let Some(Open { subject, encoder, messages, .. }) = self.open.take() else { return };
        let encoded = encoder.finish();
        self.last_bytes = encoded.len();
        complete.push(Batch::coalesced(subject, encoded, messages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Moment = Moment::from_nanos(1000);

    fn subject(text: &str) -> Subject {
        Subject::parse(text.as_bytes()).unwrap()
    }

    fn shape(batches: &[Batch]) -> Vec<(String, u32, usize)> {
        batches.iter().map(|batch| (batch.subject().to_string(), batch.messages(), batch.encoded().len())).collect()
    }

    fn push_into(
        coalescer: &mut Coalescer<Vec<u8>>,
        to: &str,
        bytes: usize,
        out: &mut Vec<Batch>,
    ) -> Result<(), BatchError> {
        let add = |into: &mut Vec<u8>| {
            into.resize(into.len() + bytes, 7);
            Ok(())
        };
        coalescer.push(AT, &subject(to), bytes, |guess| Ok(Vec::with_capacity(guess)), add, out)
    }

    fn push(coalescer: &mut Coalescer<Vec<u8>>, to: &str, bytes: usize) -> Vec<(String, u32, usize)> {
        let mut out = Vec::new();
        push_into(coalescer, to, bytes, &mut out).unwrap();
        shape(&out)
    }

    fn one(to: &str, messages: u32, bytes: usize) -> Vec<(String, u32, usize)> {
        vec![(to.to_owned(), messages, bytes)]
    }

    #[test]
    fn completes_by_count_bytes_and_subject() {
        let mut coalescer = Coalescer::new(Batching { max_messages: 3, max_bytes: 100, ..Batching::BALANCED });
        assert_eq!(push(&mut coalescer, "a", 1), []);
        assert_eq!(push(&mut coalescer, "a", 1), []);
        assert_eq!(push(&mut coalescer, "a", 1), one("a", 3, 3));
        assert_eq!(push(&mut coalescer, "a", 60), []);
        assert_eq!(push(&mut coalescer, "a", 60), one("a", 1, 60), "the second begins a new batch");
        assert_eq!(push(&mut coalescer, "b", 5), one("a", 1, 60), "order across subjects");
        assert_eq!(push(&mut coalescer, "b", 500), [one("b", 1, 5), one("b", 1, 500)].concat());
        assert_eq!(coalescer.due(), None);
    }

    #[test]
    fn is_due_when_its_first_message_is_old_enough() {
        let mut coalescer = Coalescer::new(Batching { when_idle: WhenIdle::Wait, ..Batching::BALANCED });
        push(&mut coalescer, "a", 1);
        let due = AT.plus(Duration::from_micros(250));
        assert_eq!(coalescer.due(), Some(due));
        let mut out = Vec::new();
        coalescer.idle(&mut out);
        coalescer.flush_due(Moment::from_nanos(due.nanos() - 1), &mut out);
        assert!(out.is_empty());
        coalescer.flush_due(due, &mut out);
        assert_eq!(shape(&out), one("a", 1, 1));
    }

    #[test]
    fn a_pause_or_a_ready_batch_flushes() {
        let mut coalescer = Coalescer::new(Batching::BALANCED);
        let mut out = Vec::new();
        push(&mut coalescer, "a", 1);
        coalescer.idle(&mut out);
        push(&mut coalescer, "a", 2);
        coalescer.push_complete(Batch::new(subject("a"), Bytes::from_static(b"xyz"), 9).unwrap(), &mut out);
        assert_eq!(shape(&out), [one("a", 1, 1), one("a", 1, 2), one("a", 9, 3)].concat());
    }

    #[test]
    fn a_message_that_is_too_large_leaves_no_trace() {
        let mut coalescer = Coalescer::<Vec<u8>>::new(Batching::BALANCED);
        let mut out = Vec::new();
        for already in [0, 1] {
            (0..already).for_each(|_| drop(push(&mut coalescer, "a", 1)));
            let bytes = MAX_PUBLISH_BYTES + 1;
            assert_eq!(push_into(&mut coalescer, "a", bytes, &mut out), Err(BatchError::TooLarge { bytes }));
            let begin = |_| Ok(Vec::new());
            let failed = |_: &mut Vec<u8>| Err(BatchError::NoMessages);
            let refused = coalescer.push(AT, &subject("a"), 5, begin, failed, &mut out);
            assert_eq!(refused, Err(BatchError::NoMessages), "the error of the codec");
            assert_eq!(coalescer.due().is_some(), already == 1);
        }
        coalescer.flush(&mut out);
        assert_eq!(shape(&out), one("a", 1, 1));
    }
}
