//! Counters of the messages that this node exchanges with one other node. The counts continue when the connection to
//! the other node is replaced, until this node forgets the other node.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the messages exchanged with one other node.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    sent: AtomicU64,
    lost: AtomicU64,
    received: AtomicU64,
}

impl Traffic {
    pub(crate) fn sent(&self, messages: u64) {
        self.sent.fetch_add(messages, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self, messages: u64) {
        self.lost.fetch_add(messages, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, messages: u64) {
        self.received.fetch_add(messages, Ordering::Relaxed);
    }

    /// Returns the numbers of messages sent, lost and received.
    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.sent, &self.lost, &self.received].map(|counter| counter.load(Ordering::Relaxed))
    }
}
