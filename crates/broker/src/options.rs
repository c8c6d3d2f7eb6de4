//! Options of a subscription: its policy, queue limits, credit and queue group.

use thalweg_types::limits::{DEFAULT_SUBSCRIPTION_BYTES, DEFAULT_SUBSCRIPTION_MESSAGES};

/// Id that a client chooses for its subscription. The id is unique on its link while the subscription exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// Rule for a message when the queue of its subscription is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The publish is rejected for all subscribers until this subscription has room; the publisher must
    /// retry.
    Block,
    /// The message is not queued for this subscription, which gets a notice of the number of messages that it
    /// missed.
    DropNew,
    /// The oldest queued messages are dropped until the message has room. The subscriber gets a notice of the
    /// number of dropped messages.
    DropOld,
    /// The link is closed: its queues are emptied, and its driver is told to disconnect the client.
    Disconnect,
}

/// Messages and bytes that a receiver permits to be sent to it. While both are above zero, a whole batch can
/// be sent. So the balance can become negative by one batch; the next grant of credit first makes up for
/// that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Number of messages that may be sent.
    pub messages: u64,
    /// Bytes of encoded batches that may be sent.
    pub bytes: u64,
}

impl Credit {
    /// No credit: messages stay in the subscription's queue.
    pub const NONE: Self = Self { messages: 0, bytes: 0 };
    /// Unlimited credit: only the flow control of the connection limits sending.
    pub const UNLIMITED: Self = Self { messages: u64::MAX, bytes: u64::MAX };
}

/// Options of a subscription: its policy, its limits, and its queue group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Rule for a message when the subscription's queue is full.
    pub policy: Policy,
    /// Maximum number of messages in the subscription's queue. An empty queue also accepts a larger batch.
    pub max_messages: u64,
    /// Maximum bytes of messages in the subscription's queue. An empty queue also accepts a larger batch.
    pub max_bytes: u64,
    /// Credit that the subscription has before the client grants more.
    pub credit: Credit,
    /// Queue group of the subscription, or `None`. Each message is delivered to exactly one of the matching
    /// subscriptions that name the same group, whatever their patterns.
    pub group: Option<Vec<u8>>,
}

impl SubscribeOptions {
    /// Default options of a subscription: policy, limits, credit and group.
    pub const DEFAULTS: Self = Self {
        policy: Policy::DropNew,
        max_messages: DEFAULT_SUBSCRIPTION_MESSAGES,
        max_bytes: DEFAULT_SUBSCRIPTION_BYTES,
        credit: Credit::UNLIMITED,
        group: None,
    };
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self::DEFAULTS
    }
}
