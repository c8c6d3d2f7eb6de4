//! Messages that come one by one become batches, so that they are encoded, queued and sent once.
//!
//! A publisher's messages keep their order, over subjects too: a batch has one subject, so a message to another one
//! completes it. Batches complete by count, by bytes, by age, and, if so asked, when the publisher's input has run
//! dry; the coalescer says when it is due, to the nanosecond, and never waits itself.

use std::time::Duration;

use bytes::Bytes;
use thalweg_types::limits::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES};

use crate::{Batch, BatchError, Moment, Subject};

/// What happens to a batch that is not full when its publisher has nothing more to say for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenIdle {
    /// It goes out: a lone message waits for nothing. Age then only bounds input that never pauses.
    Flush,
    /// It waits for more until it is due: fewer, larger batches, and each lone message is late by the delay.
    Wait,
}

/// When a batch is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Messages; 1 turns batching off. At most [`MAX_PUBLISH_MESSAGES`].
    pub max_messages: u32,
    /// Bytes. A larger message is a batch of its own. This much memory for each publisher.
    pub max_bytes: usize,
    /// Age of its first message.
    pub max_delay: Duration,
    /// Before that.
    pub when_idle: WhenIdle,
}

impl Batching {
    /// 64 messages, 64 KiB, 250 µs; nothing waits when the publisher pauses.
    pub const BALANCED: Self = Self {
        max_messages: 64,
        max_bytes: 64 * 1024,
        max_delay: Duration::from_micros(250),
        when_idle: WhenIdle::Flush,
    };
    /// 16 messages, 16 KiB, 50 µs: a message never waits for many others to be read.
    pub const LATENCY: Self = Self {
        max_messages: 16,
        max_bytes: 16 * 1024,
        max_delay: Duration::from_micros(50),
        when_idle: WhenIdle::Flush,
    };
    /// 512 messages, 256 KiB, and up to 1 ms of waiting for them.
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

#[derive(Debug)]
struct Open {
    subject: Subject,
    encoded: Vec<u8>,
    messages: u32,
    due: Moment,
}

/// One publisher's open batch.
#[derive(Debug)]
pub struct Coalescer {
    batching: Batching,
    open: Option<Open>,
    /// How large the last batch became: what the next is given at first.
    last_bytes: usize,
}

impl Coalescer {
    /// With nothing in it.
    #[must_use]
    pub fn new(batching: Batching) -> Self {
        Self { batching, open: None, last_bytes: 0 }
    }

    /// Adds one message, which `encode` appends to what it is given. Batches that are complete by that go to the end
    /// of `complete`, in order: publish them in that order.
    ///
    /// # Errors
    /// The message alone is larger than a batch may be. It is not added; `complete` may have got what was before it.
    pub fn push(
        &mut self,
        now: Moment,
        subject: &Subject,
        encode: impl FnOnce(&mut Vec<u8>),
        complete: &mut Vec<Batch>,
    ) -> Result<(), BatchError> {
        if self.open.as_ref().is_some_and(|open| open.subject != *subject) {
            self.flush(complete);
        }
        let Batching { max_messages, max_bytes, max_delay, .. } = self.batching;
        let last_bytes = self.last_bytes;
        let open = self.open.get_or_insert_with(|| Open {
            subject: subject.clone(),
            encoded: Vec::with_capacity(last_bytes),
            messages: 0,
            due: now.plus(max_delay),
        });
        let before = open.encoded.len();
        encode(&mut open.encoded);
        let bytes = open.encoded.len() - before;
        if bytes > MAX_PUBLISH_BYTES {
            open.encoded.truncate(before);
            if open.messages == 0 {
                self.open = None;
            }
            return Err(BatchError::TooLarge { bytes });
        }
        if open.messages > 0 && open.encoded.len() > max_bytes {
            let encoded = open.encoded.split_off(before);
            self.flush(complete);
            self.open = Some(Open { subject: subject.clone(), encoded, messages: 0, due: now.plus(max_delay) });
        }
        let open = self.open.as_mut().expect("just opened");
        open.messages += 1;
        if open.messages >= max_messages.min(MAX_PUBLISH_MESSAGES) || open.encoded.len() >= max_bytes {
            self.flush(complete);
        }
        Ok(())
    }

    /// A batch that the publisher made itself goes after what is open, as it is.
    pub fn pass(&mut self, batch: Batch, complete: &mut Vec<Batch>) {
        self.flush(complete);
        complete.push(batch);
    }

    /// When what is open has waited long enough, if anything is.
    #[must_use]
    pub fn due(&self) -> Option<Moment> {
        self.open.as_ref().map(|open| open.due)
    }

    /// Completes what is due.
    pub fn flush_due(&mut self, now: Moment, complete: &mut Vec<Batch>) {
        if self.due().is_some_and(|due| due <= now) {
            self.flush(complete);
        }
    }

    /// The publisher has nothing more to say for now.
    pub fn idle(&mut self, complete: &mut Vec<Batch>) {
        if self.batching.when_idle == WhenIdle::Flush {
            self.flush(complete);
        }
    }

    /// Completes what is open.
    pub fn flush(&mut self, complete: &mut Vec<Batch>) {
        let Some(Open { subject, mut encoded, messages, .. }) = self.open.take() else { return };
        self.last_bytes = encoded.len();
        // A batch owns about what its bytes come to: its room in a queue is counted by them.
        if encoded.capacity() > 2 * encoded.len() {
            encoded.shrink_to_fit();
        }
        let batch = Batch::new(subject, Bytes::from(encoded), messages);
        complete.push(batch.expect("bounds of batching are within those of batches"));
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

    fn push(coalescer: &mut Coalescer, to: &str, bytes: usize) -> Vec<(String, u32, usize)> {
        let mut out = Vec::new();
        let encode = |into: &mut Vec<u8>| into.resize(into.len() + bytes, 7);
        coalescer.push(AT, &subject(to), encode, &mut out).unwrap();
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
        assert_eq!(push(&mut coalescer, "a", 60), one("a", 1, 60), "the second begins a new one");
        assert_eq!(push(&mut coalescer, "b", 5), one("a", 1, 60), "order over subjects");
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
        coalescer.pass(Batch::new(subject("a"), Bytes::from_static(b"xyz"), 9).unwrap(), &mut out);
        assert_eq!(shape(&out), [one("a", 1, 1), one("a", 1, 2), one("a", 9, 3)].concat());
    }

    #[test]
    fn a_message_that_is_too_large_leaves_no_trace() {
        let mut coalescer = Coalescer::new(Batching::BALANCED);
        let mut out = Vec::new();
        for already in [0, 1] {
            (0..already).for_each(|_| drop(push(&mut coalescer, "a", 1)));
            let bytes = MAX_PUBLISH_BYTES + 1;
            let refused = coalescer.push(AT, &subject("a"), |into| into.resize(into.len() + bytes, 0), &mut out);
            assert_eq!(refused, Err(BatchError::TooLarge { bytes }));
            assert_eq!(coalescer.due().is_some(), already == 1);
        }
        coalescer.flush(&mut out);
        assert_eq!(shape(&out), one("a", 1, 1));
    }
}
