//! Items that a driver takes from its link.

use smallvec::SmallVec;

use crate::{Batch, SubscriptionId};

/// One item to send. Items must be sent in order.
#[derive(Clone, Debug)]
pub enum Outbound {
    /// A batch, once for all matching subscriptions of this link.
    Batch {
        /// Batch to send.
        batch: Batch,
        /// Matching subscriptions, at least one, without duplicates.
        subscriptions: SmallVec<[SubscriptionId; 2]>,
    },
    /// A subscription missed messages at this position in its order.
    Gap {
        /// Subscription that missed messages.
        subscription: SubscriptionId,
        /// Number of messages missed since the last notice, at least 1.
        messages: u64,
    },
    /// A subscription with [`Policy::Disconnect`](crate::Policy::Disconnect) overflowed. No further items
    /// follow. Report this to the client and drop the [`Link`](crate::Link).
    Disconnect {
        /// Subscription that overflowed.
        subscription: SubscriptionId,
        /// Number of messages that it missed in total.
        messages: u64,
    },
}

/// Limit of one take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of batches in one take.
    pub batches: usize,
    /// Maximum bytes of batches, each counted once. The first batch is always taken.
    pub bytes: u64,
}

impl Budget {
    /// Enough for a large write: several times a socket's buffer.
    pub const DEFAULT: Self = Self { batches: 256, bytes: 256 * 1024 };
    /// A budget without limit.
    pub const UNLIMITED: Self = Self { batches: usize::MAX, bytes: u64::MAX };

    pub(crate) fn admits(&self, bytes: u64, first: bool) -> bool {
        self.batches > 0 && (first || bytes <= self.bytes)
    }

    pub(crate) fn spend(&mut self, bytes: u64) {
        self.batches -= 1;
        self.bytes -= bytes.min(self.bytes);
    }
}

/// Result of a take: whether items are left beyond the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "after `More` there is no notification: take again"]
pub enum Taken {
    /// No sendable items are left. The link's [`Notify`](crate::Notify) is called for new ones.
    All,
    /// Sendable items are left. Take again after sending these.
    More,
}
