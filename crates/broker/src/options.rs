//! Options of a subscription: its policy, queue limits, credit and queue group.

use thalweg_types::limits::{DEFAULT_SUBSCRIPTION_BYTES, DEFAULT_SUBSCRIPTION_MESSAGES};

/// Id that a client chooses for its subscription. The id is unique on its link while the subscription exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// Rule for a message that does not fit into the queue of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The broker rejects the publish for all subscribers until this subscription has room. The publisher must retry.
    Block,
    /// The message is not queued for this subscription. The subscriber gets a notice of the number of messages that it
    /// missed.
    DropNew,
    /// The broker drops the oldest queued messages until the message has room. The subscriber gets a notice of the
    /// number of dropped messages.
    DropOld,
    /// The broker closes the link: it empties the queues of the link, and tells the driver to disconnect the client.
    Disconnect,
}

/// Numbers of messages and bytes that a receiver permits the broker to send. While both are above zero, a whole batch
/// can be sent. So one batch can make the balance negative. The next grant of credit first makes up for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Number of messages that the broker may send to the receiver.
    pub messages: u64,
    /// Bytes of encoded batches that the broker may send to the receiver.
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
    /// Rule for a message that does not fit into the subscription's queue.
    pub policy: Policy,
    /// Maximum number of messages in the subscription's queue. An empty queue also accepts a larger batch.
    pub max_messages: u64,
    /// Maximum bytes of messages in the subscription's queue. An empty queue also accepts a larger batch.
    pub max_bytes: u64,
    /// Credit of the subscription before the client grants more.
    pub credit: Credit,
    /// Name of the queue group, or `None`. Each message is delivered to at most one of the matching subscriptions that
    /// name the same group, even if their patterns differ.
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
