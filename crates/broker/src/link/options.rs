//! What a subscription may ask for.

use thalweg_types::limits::{DEFAULT_SUBSCRIPTION_BYTES, DEFAULT_SUBSCRIPTION_MESSAGES};

/// A subscription, as its link's client calls it. Unique on its link while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// What happens when a message comes for a subscription whose queue has no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The publish does not happen, for anybody, until there is room: the publisher is told to come back.
    Block,
    /// The message is not queued for this subscription, which is told how many it missed.
    DropNew,
    /// The oldest in the queue go until there is room; the subscription is told how many.
    DropOld,
    /// The link is given up: its queues are emptied and its driver is told to disconnect.
    Disconnect,
}

/// What a receiver permits to be sent to it. A batch is sent whole when both are above zero, so the account may be
/// overdrawn by one batch; what is granted next pays for that first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Messages.
    pub messages: u64,
    /// Bytes of encoded batches.
    pub bytes: u64,
}

impl Credit {
    /// Nothing: what comes is queued.
    pub const NONE: Self = Self { messages: 0, bytes: 0 };
    /// Without end: the connection's own flow control decides.
    pub const UNLIMITED: Self = Self { messages: u64::MAX, bytes: u64::MAX };
}

/// How a subscription is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// What happens when its queue is full.
    pub policy: Policy,
    /// Messages that its queue holds. A batch of more is let in when the queue is empty.
    pub max_messages: u64,
    /// Bytes that its queue holds. A batch of more is let in when the queue is empty.
    pub max_bytes: u64,
    /// What may be sent before the first grant.
    pub credit: Credit,
    /// The queue group it is a member of: each message goes to exactly one member of all the subscriptions that
    /// match it and name the same group, whatever their patterns.
    pub group: Option<Vec<u8>>,
}

impl SubscribeOptions {
    /// What `Default` gives.
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
