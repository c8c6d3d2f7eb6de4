//! Counters of messages that subscriptions missed because their queues were full. Only publishes that find a
//! full queue change them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::options::Policy;

/// Counters of missed messages over all links, since the broker was created.
#[derive(Debug, Default)]
pub(crate) struct LossCounters {
    new: AtomicU64,
    old: AtomicU64,
    disconnected: AtomicU64,
    slow: AtomicU64,
    links: AtomicU64,
}

/// Numbers of messages that subscriptions missed because their queues were full, by the subscription's policy. Also the
/// numbers of slow subscriptions and of closed links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of messages missed by subscriptions with [`Policy::DropNew`].
    pub drop_new: u64,
    /// Number of messages missed by subscriptions with [`Policy::DropOld`].
    pub drop_old: u64,
    /// Number of messages lost when [`Policy::Disconnect`] closed a link: the messages that did not fit into the queue
    /// of the overflowed subscription, and the messages that were queued for this subscription.
    pub disconnect: u64,
    /// Number of subscriptions that missed at least one message. Each subscription counts once.
    pub slow_subscriptions: u64,
    /// Number of links closed by [`Policy::Disconnect`].
    pub disconnected_links: u64,
}

impl LossCounters {
    /// Counts messages that a subscription with this policy missed. `first` is true if it is the subscription's first
    /// loss.
    pub(crate) fn count(&self, policy: Policy, messages: u64, first: bool) {
        let counter = match policy {
            // A subscription with `Policy::Block` misses messages only from publishers that it cannot block.
            Policy::Block | Policy::DropNew => &self.new,
            Policy::DropOld => &self.old,
            Policy::Disconnect => &self.disconnected,
        };
        counter.fetch_add(messages, Ordering::Relaxed);
        self.slow.fetch_add(u64::from(first), Ordering::Relaxed);
    }

    /// Counts a link that [`Policy::Disconnect`] closed.
    pub(crate) fn count_link(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Losses {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Losses {
            drop_new: of(&self.new),
            drop_old: of(&self.old),
            disconnect: of(&self.disconnected),
            slow_subscriptions: of(&self.slow),
            disconnected_links: of(&self.links),
        }
    }
}
