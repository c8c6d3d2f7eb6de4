//! Frames of subjects: publishing, subscribing, and request and reply. The module [`batch`](crate::batch) owns the
//! batches themselves.

use thalweg_types::codec::{List, RemainingBytes, ShortBytes, choices, structure};

use super::Permit;

structure! {
    /// Publishes batches. Each batch has one subject.
    Publish<'a> as "publish" {
        /// Encoded [`Batch`](crate::Batch)es.
        batches: List<'a, &'a [u8]>,
    }
}

choices! {
    /// Behaviour of a subscription whose queue is full.
    Policy as "policy" {
        /// Publishers wait until there is room.
        Block = 0 "block",
        /// The server drops new messages.
        DropNew = 1 "drop new",
        /// The server drops the messages that have waited longest.
        DropOld = 2 "drop old",
        /// The server ends the channel.
        Disconnect = 3 "disconnect",
    }
}

structure! {
    /// Begins a subscription to subjects.
    Subscribe<'a> as "subscribe" {
        /// Behaviour when the queue is full.
        policy: Policy,
        /// Maximum number of messages that wait for credit; 0 selects the server's default.
        queue_messages: u64,
        /// Maximum number of bytes that wait for credit; 0 selects the server's default.
        queue_bytes: u64,
        /// Initial credit of the subscription.
        permit: Permit,
        /// Pattern of subjects: names joined by dots, `*` for any one name, `>` at the end for one or more names.
        pattern: ShortBytes<'a>,
        /// Name of the queue group. One subscription of the group gets each message. If empty, this subscription gets
        /// all.
        queue: ShortBytes<'a>,
    }
}

structure! {
    /// Publishes one message and waits for one answer to it.
    Ask<'a> as "ask" {
        /// A [`Batch`](crate::Batch) of one message. Its reply subject must be empty: the server chooses one.
        batch: RemainingBytes<'a>,
    }
}

structure! {
    /// Reply to [`Publish`]: the batches are in the queues.
    Published as "published" {
        /// Number of subscriptions that queued a batch, summed over the batches. A queue group counts as one
        /// subscription.
        delivered: u64,
        /// Number of subscriptions that had no room. The server reports the loss to them.
        missed: u64,
    }
}

structure! {
    /// Reply to [`Subscribe`]: the subscription has begun with these bounds.
    Subscribed as "subscribed" {
        /// Maximum number of messages that wait for credit.
        queue_messages: u64,
        /// Maximum number of bytes that wait for credit.
        queue_bytes: u64,
    }
}

structure! {
    /// Reply to [`Ask`].
    Answer<'a> as "answer" {
        /// A [`Batch`](crate::Batch) of one message, as the responder published it.
        batch: RemainingBytes<'a>,
    }
}

structure! {
    /// A batch for one or more subscriptions of the channel.
    Deliver<'a> as "deliver" {
        /// Ids of the subscriptions: 1 to 1,024.
        subscriptions: List<'a, u32>,
        /// A [`Batch`](crate::Batch); all its receivers get the same bytes.
        batch: RemainingBytes<'a>,
    }
}

structure! {
    /// Notice that a subscription has missed messages because its queue was full. The gap lies between the messages
    /// before this frame and those after it.
    Dropped as "dropped" {
        /// Number of messages missed since the last such frame.
        messages: u64,
    }
}
