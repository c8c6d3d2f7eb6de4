//! What is published and delivered: messages of one subject, encoded once.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use thalweg_types::{
    Action, Classified,
    limits::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES},
};

use crate::Subject;

/// Why messages can't be a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// It says that it holds no message.
    #[error("a batch holds at least one message")]
    NoMessages,
    /// More than [`MAX_PUBLISH_MESSAGES`].
    #[error("a batch holds at most {MAX_PUBLISH_MESSAGES} messages, this one has {messages}: publish several")]
    TooManyMessages {
        /// How many.
        messages: u32,
    },
    /// More than [`MAX_PUBLISH_BYTES`].
    #[error("a batch has at most {MAX_PUBLISH_BYTES} bytes, this one has {bytes}: publish several")]
    TooLarge {
        /// How many.
        bytes: usize,
    },
}

impl Classified for BatchError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoMessages => "batch_empty",
            Self::TooManyMessages { .. } => "batch_too_many_messages",
            Self::TooLarge { .. } => "batch_too_large",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

/// One or more messages of one subject, as the caller's codec encoded them. Immutable, shared by every queue that
/// holds it: a clone is a reference. The broker does not look into the bytes; reply subjects and headers are in them.
///
/// Bounds count `encoded.len()`. So the bytes should own no more memory than that: a slice of a connection's read
/// buffer would keep all of the buffer for as long as the slowest subscriber takes.
#[derive(Clone)]
pub struct Batch(Arc<Inner>);

struct Inner {
    subject: Subject,
    encoded: Bytes,
    messages: u32,
    forms: [OnceLock<Bytes>; FORMS],
}

/// Other forms that a batch may be kept in: one for each version of a protocol that is not the codec's.
pub const FORMS: usize = 2;

impl Batch {
    /// A batch of so many messages.
    ///
    /// # Errors
    /// No message, or beyond [`MAX_PUBLISH_MESSAGES`] or [`MAX_PUBLISH_BYTES`].
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
        Ok(Self(Arc::new(Inner { subject, encoded, messages, forms: Default::default() })))
    }

    /// As [`new`](Self::new) of what a coalescer made, whose bounds are tighter.
    pub(crate) fn coalesced(subject: Subject, encoded: Bytes, messages: u32) -> Self {
        debug_assert!(messages > 0);
        Self(Arc::new(Inner { subject, encoded, messages, forms: Default::default() }))
    }

    /// Where it was published.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.0.subject
    }

    /// What the codec made of the messages.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.0.encoded
    }

    /// How many messages it holds, at least one.
    #[must_use]
    pub fn messages(&self) -> u32 {
        self.0.messages
    }

    /// The messages in another form, below [`FORMS`]: made by whoever asks first, and kept for all who hold the batch, so what many
    /// subscribers are sent is encoded once. Bounds don't count it: it is made when a batch is sent, and by then it has left
    /// its maker's queue; others that still have it queued keep at most this much more for each form.
    ///
    /// # Panics
    /// There is no such form.
    pub fn form(&self, form: usize, make: impl FnOnce() -> Bytes) -> &Bytes {
        self.0.forms[form].get_or_init(make)
    }

    /// Whether both are one batch, not only equal.
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

/// What a batch takes of bounds and credits.
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
        assert_eq!(other.form(0, || unreachable!("it is there")), "first");
        assert_eq!(other.form(1, || Bytes::from_static(b"second")), "second");
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
