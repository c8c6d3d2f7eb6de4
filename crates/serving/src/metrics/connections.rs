//! Counts of the connections of one protocol.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of the connections of one protocol.
#[derive(Debug, Default)]
pub struct Connections {
    opened: AtomicU64,
    closed: AtomicU64,
}

/// An open connection. It counts as closed when this value is dropped, even if its task panics.
#[derive(Debug)]
#[must_use = "the connection counts as closed at once"]
pub struct OpenConnection<'c>(&'c Connections);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Relaxed);
    }
}

impl Connections {
    /// Counts a new connection, which the server has accepted. It counts as open until the returned value is dropped.
    pub fn open(&self) -> OpenConnection<'_> {
        self.opened.fetch_add(1, Relaxed);
        OpenConnection(self)
    }

    /// Number of connections that were accepted since the start.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// Number of connections that are open now.
    #[must_use]
    pub fn count(&self) -> u64 {
        // Read `closed` first, so that the difference is not negative.
        let closed = self.closed.load(Relaxed);
        self.opened.load(Relaxed).saturating_sub(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_whose_task_panics_counts_as_closed() {
        let connections = Connections::default();
        let ended = std::panic::catch_unwind(|| {
            let _open = connections.open();
            assert_eq!(connections.count(), 0, "this panic is expected");
        });
        assert!(ended.is_err());
        assert_eq!((connections.opened(), connections.count()), (1, 0));
    }
}
