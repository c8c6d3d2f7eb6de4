//! What was given up for want of room: counted where it happens, which is never on the path of a publish that fits.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::link::Policy;

/// Counters of all links together, since the broker was made.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    new: AtomicU64,
    old: AtomicU64,
    disconnected: AtomicU64,
    slow: AtomicU64,
    links: AtomicU64,
}

/// Messages that subscriptions did not get for want of room, by their policy; and how many were slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Messages of subscriptions with [`Policy::DropNew`].
    pub drop_new: u64,
    /// Messages of subscriptions with [`Policy::DropOld`].
    pub drop_old: u64,
    /// Messages of links that were given up: what overflowed, and what waited for the subscription that did.
    pub disconnect: u64,
    /// Subscriptions that have missed something, each counted once.
    pub slow_subscriptions: u64,
    /// Links given up, by [`Policy::Disconnect`].
    pub disconnected_links: u64,
}

impl Counted {
    /// A subscription missed messages; `first` if it never had before.
    pub(crate) fn count(&self, policy: Policy, messages: u64, first: bool) {
        let counter = match policy {
            // One with the policy to block never misses anything.
            Policy::Block | Policy::DropNew => &self.new,
            Policy::DropOld => &self.old,
            Policy::Disconnect => &self.disconnected,
        };
        counter.fetch_add(messages, Ordering::Relaxed);
        self.slow.fetch_add(u64::from(first), Ordering::Relaxed);
    }

    /// A link was given up.
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
