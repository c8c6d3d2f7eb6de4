//! Subjects: publishing, subscribing, request and reply. The batches themselves are in [`batch`](crate::batch).

use super::Permit;
use crate::{
    codec::{List, Rest, Short},
    layouts::{choices, structure},
};

structure! {
    /// Publishes batches, each of one subject.
    Publish<'a> as "publish" {
        /// [`Batch`](crate::Batch)es.
        batches: List<'a, &'a [u8]>,
    }
}

choices! {
    /// What happens to a subscription whose queue is full.
    Policy as "policy" {
        /// Its publishers wait.
        Block = 0 "block",
        /// What comes is dropped.
        DropNew = 1 "drop new",
        /// What has waited longest is dropped.
        DropOld = 2 "drop old",
        /// The channel ends.
        Disconnect = 3 "disconnect",
    }
}

structure! {
    /// Begins a subscription.
    Subscribe<'a> as "subscribe" {
        /// What happens when its queue is full.
        policy: Policy,
        /// Messages that may wait for credit; 0: as the server likes.
        queue_messages: u64,
        /// Bytes that may wait; 0: as the server likes.
        queue_bytes: u64,
        /// What it may send.
        permit: Permit,
        /// To which subjects: names separated by dots, `*` for any one, `>` at the end for any more.
        pattern: Short<'a>,
        /// Of those with the same queue group one gets each message; empty: this one gets all.
        queue: Short<'a>,
    }
}

structure! {
    /// Publishes one message and waits for one answer to it.
    Ask<'a> as "ask" {
        /// A [`Batch`](crate::Batch) of one message. Its reply subject is the server's to choose and empty here.
        batch: Rest<'a>,
    }
}

structure! {
    /// Batches were handed out.
    Published as "published" {
        /// Subscriptions that have them in their queue, counted for each batch; a queue group counts as one.
        delivered: u64,
        /// Subscriptions that had no room and are told that they missed them.
        missed: u64,
    }
}

structure! {
    /// A subscription has begun. The bounds are those that hold.
    Subscribed as "subscribed" {
        /// Messages that may wait.
        queue_messages: u64,
        /// Bytes that may wait.
        queue_bytes: u64,
    }
}

structure! {
    /// An answer to what was asked.
    Answer<'a> as "answer" {
        /// A [`Batch`](crate::Batch) of one message, as the one who answered published it.
        batch: Rest<'a>,
    }
}

structure! {
    /// A batch for some of the channel's subscriptions.
    Deliver<'a> as "deliver" {
        /// Their ids: at least one, at most 1,024.
        subscriptions: List<'a, u32>,
        /// A [`Batch`](crate::Batch), the same bytes for all who get it.
        batch: Rest<'a>,
    }
}

structure! {
    /// A subscription has missed messages because its queue was full: here, between what came before and what comes next.
    Dropped as "dropped" {
        /// How many since the last such frame.
        messages: u64,
    }
}
