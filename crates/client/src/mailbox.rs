//! Queue of received items that wait for the application.
//!
//! Owns: the queue between a channel's task and a subscription. Its bound is the credit that the subscription has given
//! the server; the session checks that the server does not exceed it. Some items, such as reports of missing messages,
//! use no credit. The queue merges each of them with an item of the same kind that already waits, so their number stays
//! small.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use bytes::Bytes;
use thalweg_wire::{Permit, SharedFrame};

use crate::error::{Failure, Lost};

/// An item that a subscription received from the server.
#[derive(Debug)]
pub(crate) enum Item {
    /// The reply that begins the subscription.
    Begun(SharedFrame),
    /// A batch of messages, which shares the bytes of its frame.
    Batch(Bytes),
    /// A gap in the subscription: this number of messages is missing.
    Dropped(u64),
    /// A frame that the server pushed, and the messages and bytes that it counts against the credit.
    Frame(SharedFrame, Permit),
    /// The last frame from the server: the subscription has ended, or could not begin, for this reason.
    Ended(Box<Failure>),
    /// The connection was lost.
    Lost(Lost),
}

/// Queue of the items that one subscription has received and the application has not taken.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    items: VecDeque<Item>,
    reader: Option<Waker>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, item: Item) {
        let reader = {
            let mut inner = self.lock();
            match (inner.items.back_mut(), &item) {
                (Some(Item::Dropped(before)), Item::Dropped(more)) => *before = before.saturating_add(*more),
                (Some(last @ Item::Frame(_, Permit { messages: 0, .. })), Item::Frame(..)) => *last = item,
                _ => inner.items.push_back(item),
            }
            inner.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Waits for the next item of the subscription. Cancel safe.
    pub(crate) async fn next(&self) -> Item {
        poll_fn(|cx| {
            let mut inner = self.lock();
            match inner.items.pop_front() {
                Some(item) => Poll::Ready(item),
                None => {
                    inner.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    #[cfg(test)]
    fn try_next(&self) -> Option<Item> {
        self.lock().items.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::Header;

    fn progress(id: u32) -> Item {
        let header = Header { len: 0, kind: 0x0480, fields: 0, id };
        Item::Frame(SharedFrame { header, payload: Bytes::new() }, Permit { messages: 0, bytes: 0 })
    }

    #[test]
    fn what_counts_nothing_takes_no_room() {
        let mailbox = Mailbox::default();
        for id in 1..=1000 {
            mailbox.push(progress(id));
        }
        assert!(matches!(mailbox.try_next(), Some(Item::Frame(frame, _)) if frame.header.id == 1000));
        assert!(mailbox.try_next().is_none());
        (0..1000).for_each(|_| mailbox.push(Item::Dropped(2)));
        assert!(matches!(mailbox.try_next(), Some(Item::Dropped(2000))));
        mailbox.push(Item::Dropped(1));
        mailbox.push(Item::Batch(Bytes::new()));
        mailbox.push(Item::Dropped(1));
        let kinds: Vec<_> = std::iter::from_fn(|| mailbox.try_next()).collect();
        assert_eq!(kinds.len(), 3, "a gap keeps its position between the messages");
    }
}
