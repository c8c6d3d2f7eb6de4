//! Frames of subjects: publishing, subscribing, and request and reply. The module [`batch`](crate::batch) owns the
//! batches themselves.

use thalweg_types::codec::{List, RemainingBytes, ShortBytes, choices, structure};

use super::Permit;

structure! {
    /// Publishes batches of messages. All messages of a batch have one subject.
    Publish<'a> as "publish" {
        /// Encoded batches of messages, see [`Batch`](crate::Batch).
        batches: List<'a, &'a [u8]>,
    }
}

choices! {
    /// Policy of the server for messages that arrive at a subscription's full queue.
    Policy as "policy" {
        /// Publishers wait until the queue has room.
        Block = 0 "block",
        /// The server drops new messages while the queue is full.
        DropNew = 1 "drop new",
        /// The server drops the messages that have waited longest in the queue.
        DropOld = 2 "drop old",
        /// The server closes the TCP connection or QUIC stream (the channel) of the subscription.
        Disconnect = 3 "disconnect",
    }
}

structure! {
    /// Begins a subscription to the subjects that match a pattern.
    Subscribe<'a> as "subscribe" {
        /// Policy of the server for messages that arrive at the subscription's full queue.
        policy: Policy,
        /// Maximum number of messages that wait in the subscription's queue for credit; 0 selects the server's default.
        queue_messages: u64,
        /// Maximum number of bytes that wait in the subscription's queue for credit; 0 selects the server's default.
        queue_bytes: u64,
        /// Initial credit of the subscription: the messages and bytes that the server may send at first.
        permit: Permit,
        /// Pattern of subjects: names joined by dots, `*` for any one name, `>` at the end for one or more names.
        pattern: ShortBytes<'a>,
        /// Name of the queue group. Each message goes to one subscription of the group. If the name is empty, this
        /// subscription gets all messages.
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
    /// Reply to [`Publish`]: the batches are in the queues of the subscriptions.
    Published as "published" {
        /// Number of subscriptions that queued a batch, summed over the batches. A queue group counts as one
        /// subscription.
        delivered: u64,
        /// Number of subscriptions with no room in their queues. The server notifies their subscribers of the loss.
        missed: u64,
    }
}

structure! {
    /// Reply to [`Subscribe`]: the subscription has begun. The fields are the queue limits that the server applies.
    Subscribed as "subscribed" {
        /// Maximum number of messages that wait in the subscription's queue for credit.
        queue_messages: u64,
        /// Maximum number of bytes that wait in the subscription's queue for credit.
        queue_bytes: u64,
    }
}

structure! {
    /// Reply to [`Ask`]: the first answer to the published message.
    Answer<'a> as "answer" {
        /// A [`Batch`](crate::Batch) of one message, as the responder published it.
        batch: RemainingBytes<'a>,
    }
}

structure! {
    /// A batch that the server delivers to one or more subscriptions of the same channel (a TCP connection or a QUIC
    /// stream).
    Deliver<'a> as "deliver" {
        /// Ids of the subscriptions that get the batch: 1 to 1,024 ids.
        subscriptions: List<'a, u32>,
        /// The delivered [`Batch`](crate::Batch), encoded; all its receivers get the same bytes.
        batch: RemainingBytes<'a>,
    }
}

structure! {
    /// Notice that a subscription has missed messages because its queue was full. The gap lies between the messages
    /// before this frame and those after it.
    Dropped as "dropped" {
        /// Number of messages that the subscription missed since the last frame of this kind.
        messages: u64,
    }
}
