//! What a driver takes from its link.

use smallvec::SmallVec;

use super::options::SubscriptionId;
use crate::Batch;

/// One thing to send, in order.
#[derive(Clone, Debug)]
pub enum Outbound {
    /// A batch, once, for all the subscriptions of this link that want it.
    Batch {
        /// What to send.
        batch: Batch,
        /// For which: at least one, each once.
        subscriptions: SmallVec<[SubscriptionId; 2]>,
    },
    /// A subscription missed messages, here in its order.
    Gap {
        /// Which one.
        subscription: SubscriptionId,
        /// How many since the last notice, at least one.
        messages: u64,
    },
    /// A subscription with [`Policy::Disconnect`](super::Policy::Disconnect) overflowed: nothing else comes any
    /// more. Say so to the client and drop the [`Link`](super::Link).
    Disconnect {
        /// Which one.
        subscription: SubscriptionId,
        /// How many messages it has missed by that.
        messages: u64,
    },
}

/// How much a driver takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Batches.
    pub batches: usize,
    /// Bytes of batches, each counted once. The first is always taken.
    pub bytes: u64,
}

impl Budget {
    /// Enough for a large write; what a socket's buffer holds a few times over.
    pub const DEFAULT: Self = Self { batches: 256, bytes: 256 * 1024 };
    /// All there is.
    pub const UNLIMITED: Self = Self { batches: usize::MAX, bytes: u64::MAX };

    pub(crate) fn admits(&self, bytes: u64, first: bool) -> bool {
        self.batches > 0 && (first || bytes <= self.bytes)
    }

    pub(crate) fn spend(&mut self, bytes: u64) {
        self.batches -= 1;
        self.bytes -= bytes.min(self.bytes);
    }
}

/// Whether there was more than the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "if there is more, nobody will call before it is taken"]
pub enum Taken {
    /// Nothing is left that may be sent: the link's [`Notify`](crate::Notify) will call.
    All,
    /// There is more: take it when what you have is sent.
    More,
}
