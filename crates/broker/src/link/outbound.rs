//! Items that the driver of a connection takes from its link in order to send them to the client.

use smallvec::SmallVec;

use crate::{Batch, SubscriptionId};

/// One item to send to the client. Items must be sent in order.
#[derive(Clone, Debug)]
pub enum Outbound {
    /// A batch of messages, sent once for all matching subscriptions of this link.
    Batch {
        /// Batch to send to the client.
        batch: Batch,
        /// Ids of the matching subscriptions, at least one, without duplicates.
        subscriptions: SmallVec<[SubscriptionId; 2]>,
    },
    /// A notice that a subscription missed messages at this position in the order of its messages.
    Gap {
        /// Subscription that missed messages.
        subscription: SubscriptionId,
        /// Number of messages that the subscription missed since the previous notice, at least 1.
        messages: u64,
    },
    /// The queue of a subscription with [`Policy::Disconnect`](crate::Policy::Disconnect) overflowed. No
    /// further items follow. The driver should report this to the client and drop the [`Link`](crate::Link).
    Disconnect {
        /// Subscription whose queue overflowed.
        subscription: SubscriptionId,
        /// Number of messages that the subscription missed in total.
        messages: u64,
    },
}

/// Limit on the batches that one call of [`Link::take`](crate::Link::take) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of batches that one call takes.
    pub batches: usize,
    /// Maximum bytes of the batches that one call takes. A batch for several subscriptions counts once. The first batch
    /// is always taken, even if it is larger.
    pub bytes: u64,
}

impl Budget {
    /// Default limit of one take: batches for one large write, several times as large as a socket's send buffer.
    pub const DEFAULT: Self = Self { batches: 256, bytes: 256 * 1024 };
    /// No limit: one call takes all batches that may be sent.
    pub const UNLIMITED: Self = Self { batches: usize::MAX, bytes: u64::MAX };

    pub(crate) fn admits(&self, bytes: u64, first: bool) -> bool {
        self.batches > 0 && (first || bytes <= self.bytes)
    }

    pub(crate) fn spend(&mut self, bytes: u64) {
        self.batches -= 1;
        self.bytes -= bytes.min(self.bytes);
    }
}

/// Result of taking items from a link. It tells if the link has more items than the caller's limits permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "after `More` there is no notification: take again"]
pub enum TakeResult {
    /// The link has no more items that may be sent now. The broker calls the link's [`Notify`](crate::Notify) when it
    /// has new ones.
    All,
    /// The link has more items that may be sent. The driver should take again after it has sent the items of this take.
    More,
}
