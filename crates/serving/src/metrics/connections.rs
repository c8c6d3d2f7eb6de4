//! Counts of the connections of one protocol.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts connections as they begin and end.
#[derive(Debug, Default)]
pub struct Connections {
    opened: AtomicU64,
    closed: AtomicU64,
}

impl Connections {
    /// Counts a connection that was accepted.
    pub fn open(&self) {
        self.opened.fetch_add(1, Relaxed);
    }

    /// Counts the end of a connection.
    pub fn close(&self) {
        self.closed.fetch_add(1, Relaxed);
    }

    /// Number of connections that were ever accepted.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// Number of connections that are open.
    #[must_use]
    pub fn count(&self) -> u64 {
        // Read `closed` first, so that the difference is not negative.
        let closed = self.closed.load(Relaxed);
        self.opened.load(Relaxed).saturating_sub(closed)
    }
}
