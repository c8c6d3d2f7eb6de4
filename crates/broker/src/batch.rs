//! Batches: messages of one subject, encoded once for publishing and delivery.
//!
//! Owns: `Batch`, its limits, its cost in queues, and its encodings for other protocols. All holders of a batch share
//! these encodings. Does not own: the codec, which belongs to the publisher, or the gathering of single messages
//! (`batching`).
//!
//! Invariant: a batch has at least one message, and its subject, bytes and number of messages never change.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use thalweg_types::{
    classified,
    limits::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES},
};

use crate::{Moment, Subject};

/// Error returned when messages cannot form a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The batch has no message.
    #[error("a batch needs at least one message")]
    NoMessages,
    /// The batch has more than [`MAX_PUBLISH_MESSAGES`] messages.
    #[error("a batch has at most {MAX_PUBLISH_MESSAGES} messages, this one has {messages}: publish several batches")]
    TooManyMessages {
        /// Number of messages in the rejected batch.
        messages: u32,
    },
    /// The batch has more than [`MAX_PUBLISH_BYTES`] bytes.
    #[error("a batch has at most {MAX_PUBLISH_BYTES} bytes, this one has {bytes}: publish several batches")]
    TooLarge {
        /// Size of the rejected batch in bytes.
        bytes: usize,
    },
}

classified!(BatchError {
    Self::NoMessages => "batch_empty", Fix;
    Self::TooManyMessages { .. } => "batch_too_many_messages", Fix;
    Self::TooLarge { .. } => "batch_too_large", Fix;
});

/// One or more messages of one subject, encoded by the caller's codec. Immutable. All queues that hold a batch share
/// its bytes, and a clone is only a reference. The broker does not parse the bytes, which also contain reply subjects
/// and headers.
///
/// Limits count only the length of `encoded`. So `encoded` should own no more memory than its length. For example, a
/// slice of a connection's read buffer would keep the whole buffer in memory until the slowest subscriber has received
/// the batch.
#[derive(Clone)]
pub struct Batch(Arc<Inner>);

struct Inner {
    subject: Subject,
    encoded: Bytes,
    messages: u32,
    forms: [OnceLock<Bytes>; FORMS],
    stamp: OnceLock<Moment>,
}

/// Number of further encodings that a batch can cache, in addition to the publisher's encoding. A connection needs
/// another encoding of the messages if it uses another protocol or protocol version.
pub const FORMS: usize = 2;

impl Batch {
    /// Creates a batch of `messages` messages.
    ///
    /// # Errors
    /// The batch has no message, or exceeds [`MAX_PUBLISH_MESSAGES`] or [`MAX_PUBLISH_BYTES`].
    pub fn new(subject: Subject, encoded: Bytes, messages: u32) -> Result<Self, BatchError> {
        if messages == 0 {
            return Err(BatchError::NoMessages);
        }
        if messages > MAX_PUBLISH_MESSAGES {
            return Err(BatchError::TooManyMessages { messages });
        }
        if encoded.len() > MAX_PUBLISH_BYTES {
            return Err(BatchError::TooLarge { bytes: encoded.len() });
        }
        Ok(Self::coalesced(subject, encoded, messages))
    }

    /// Creates a batch from messages that a [`Coalescer`](crate::Coalescer) gathered. Does not check the limits of
    /// [`new`](Self::new), because the limits of the coalescer are tighter.
    pub(crate) fn coalesced(subject: Subject, encoded: Bytes, messages: u32) -> Self {
        debug_assert!(messages > 0);
        Self(Arc::new(Inner { subject, encoded, messages, forms: Default::default(), stamp: OnceLock::new() }))
    }

    /// Subject to which the messages were published.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.0.subject
    }

    /// The messages in the encoding that the publisher's codec has made.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.0.encoded
    }

    /// Number of messages in the batch, at least 1.
    #[must_use]
    pub fn messages(&self) -> u32 {
        self.0.messages
    }

    /// Returns the messages in another encoding. `form` is the number of the encoding, below [`FORMS`]. The first
    /// caller creates the encoding with `make`, and all holders of the batch share it. So a message for many
    /// subscribers is encoded only once. Limits do not count the bytes of the encoding. A connection asks for the
    /// encoding when it sends the batch, after it has taken the batch out of its own queue. Other queues that still
    /// hold the batch then keep the bytes of the encoding in memory too.
    ///
    /// # Panics
    /// Panics if `form` is not below [`FORMS`].
    pub fn form(&self, form: usize, make: impl FnOnce() -> Bytes) -> &Bytes {
        self.0.forms[form].get_or_init(make)
    }

    /// Starts to measure the time until subscribers receive the batch; `moment` is the start of the measurement. If a
    /// publish of the batch was blocked and is tried again, the first start is kept.
    pub fn stamp(&self, moment: Moment) {
        let _ = self.0.stamp.set(moment);
    }

    /// Returns the moment at which the time measurement of the batch started; `None` if the time is not measured.
    #[must_use]
    pub fn stamped_at(&self) -> Option<Moment> {
        self.0.stamp.get().copied()
    }

    /// Returns true if both values refer to the same batch. Two batches with equal contents are not the same.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn cost(&self) -> Cost {
        Cost { messages: u64::from(self.0.messages), bytes: self.0.encoded.len() as u64 }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("subject", self.subject())
            .field("messages", &self.messages())
            .field("bytes", &self.encoded().len())
            .finish()
    }
}

/// Size of a batch in messages and bytes, as it counts towards the limits of queues and the credit of subscriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Cost {
    pub(crate) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    pub(crate) fn take(&mut self, other: Self) {
        debug_assert!(self.messages >= other.messages && self.bytes >= other.bytes);
        self.messages -= other.messages;
        self.bytes -= other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_made_once_for_all_who_hold_the_batch() {
        let batch = Batch::new(Subject::parse(b"a").unwrap(), Bytes::from_static(b"x"), 1).unwrap();
        let other = batch.clone();
        assert_eq!(batch.form(0, || Bytes::from_static(b"first")), "first");
        assert_eq!(other.form(0, || unreachable!("the form exists already")), "first");
        assert_eq!(other.form(1, || Bytes::from_static(b"second")), "second");
    }

    #[test]
    fn the_first_mark_of_a_batch_stays() {
        let batch = Batch::new(Subject::parse(b"a").unwrap(), Bytes::from_static(b"x"), 1).unwrap();
        let other = batch.clone();
        assert_eq!(other.stamped_at(), None);
        batch.stamp(Moment::from_nanos(5));
        batch.stamp(Moment::from_nanos(9));
        assert_eq!(other.stamped_at(), Some(Moment::from_nanos(5)), "all holders see it");
    }

    #[test]
    fn bounds() {
        let subject = Subject::parse(b"a").unwrap();
        let new = |bytes: usize, messages| Batch::new(subject.clone(), Bytes::from(vec![0; bytes]), messages);
        assert_eq!(new(1, 0).unwrap_err(), BatchError::NoMessages);
        assert!(new(0, MAX_PUBLISH_MESSAGES).is_ok());
        let messages = MAX_PUBLISH_MESSAGES + 1;
        assert_eq!(new(0, messages).unwrap_err(), BatchError::TooManyMessages { messages });
        assert!(new(MAX_PUBLISH_BYTES, 1).is_ok());
        let bytes = MAX_PUBLISH_BYTES + 1;
        assert_eq!(new(bytes, 1).unwrap_err(), BatchError::TooLarge { bytes });
    }
}
