//! Options of a subscription: its policy, queue limits, credit and queue group.

use thalweg_types::limits::{DEFAULT_SUBSCRIPTION_BYTES, DEFAULT_SUBSCRIPTION_MESSAGES};

/// Id that a client chooses for its subscription. Unique on its link while the subscription exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// Rule for a message whose subscription has a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Rejects the publish for all subscribers until there is room; the publisher must retry.
    Block,
    /// Does not queue the message for this subscription, and reports to it how many it missed.
    DropNew,
    /// Drops the oldest queued messages until there is room, and reports to the subscription how many.
    DropOld,
    /// Closes the link: empties its queues and tells its driver to disconnect.
    Disconnect,
}

/// Messages and bytes that a receiver permits to be sent to it. While both are above zero, a whole batch can
/// be sent. So the balance can become negative by one batch; the next grant pays for that first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Number of messages that may be sent.
    pub messages: u64,
    /// Bytes of encoded batches that may be sent.
    pub bytes: u64,
}

impl Credit {
    /// No credit: messages stay in the queue.
    pub const NONE: Self = Self { messages: 0, bytes: 0 };
    /// No limit: the connection's own flow control applies.
    pub const UNLIMITED: Self = Self { messages: u64::MAX, bytes: u64::MAX };
}

/// Options of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Rule for a full queue.
    pub policy: Policy,
    /// Maximum messages in the queue. An empty queue also accepts a larger batch.
    pub max_messages: u64,
    /// Maximum bytes in the queue. An empty queue also accepts a larger batch.
    pub max_bytes: u64,
    /// Credit before the first grant.
    pub credit: Credit,
    /// Queue group of the subscription. Each message goes to exactly one member among all matching
    /// subscriptions that name the same group, whatever their patterns.
    pub group: Option<Vec<u8>>,
}

impl SubscribeOptions {
    /// Default options of a subscription.
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
