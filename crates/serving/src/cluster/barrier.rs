//! Read barriers of connections. A barrier is one exchange with a quorum, which confirms that this node's state is
//! recent enough for reads. One barrier serves all requests of a connection that arrived before it began.
//!
//! Owns: the decision which of the received requests a barrier covers, and the wait for the barrier. Does not own: the
//! requests.
//!
//! A read may show the node's state once a barrier that began after the arrival of the read's request has ended. One
//! barrier covers all requests that had arrived when it began, so a pipelined burst waits once. A request is covered if
//! its position among all bytes that the connection has received lies before the end of the cover. So it does not
//! matter if bytes in between were handled, skipped or dropped:
//!
//! ```text
//! received:  | request | request | request | ── arrived after the barrier began ── |
//!                                          ^ end of the cover
//! ```
//!
//! Invariant: `received` is called with all bytes that the connection's buffer gets, before they are handled.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use thalweg_types::{ReadLevel, Revision};

use super::{ClusterError, ClusterFuture, ClusterHandle};

/// Decision on a read: it may begin, it fails, or it must wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The read may begin. It shows at least this revision.
    Open(Revision),
    /// The read fails with this error.
    Failed(ClusterError),
    /// The read must wait for the barrier that has begun: an exchange with a quorum, which confirms that this node's
    /// state is recent enough.
    Wait,
}

struct Pending {
    barrier: ClusterFuture<Revision>,
    level: ReadLevel,
    end: u64,
}

#[derive(Debug)]
struct BarrierOutcome {
    level: ReadLevel,
    /// Number of bytes that the connection had received when this barrier began. The barrier covers the requests in
    /// these bytes.
    end: u64,
    outcome: Result<Revision, ClusterError>,
}

/// State of the read barrier of one connection: the barrier that is pending, and the outcome of the last one. A barrier
/// confirms that this node's state is recent enough for reads.
#[derive(Default)]
pub struct ConnectionBarrier {
    pending: Option<Pending>,
    covered: Option<BarrierOutcome>,
    /// Number of bytes that the connection has received so far.
    received: u64,
}

impl fmt::Debug for ConnectionBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBarrier")
            .field("pending", &self.is_pending())
            .field("covered", &self.covered)
            .finish()
    }
}

impl ConnectionBarrier {
    /// Returns true while a barrier (the exchange with a quorum before reads) is pending. The connection handles no
    /// requests during this time.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Records that the connection has received this many bytes.
    #[inline]
    pub fn received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    /// Decides if a read at `level` may begin now, and begins a barrier if the read needs one. `unhandled` is the
    /// number of received bytes that are not handled yet, counted from the first byte of the read's request.
    pub fn check(
        &mut self,
        cluster: &Arc<dyn ClusterHandle>,
        level: ReadLevel,
        unhandled: usize,
        deadline: impl FnOnce() -> Instant,
    ) -> Gate {
        if let Some(covered) = &self.covered
            && self.received.saturating_sub(unhandled as u64) < covered.end
            && covered.covers(level)
        {
            return match &covered.outcome {
                Ok(revision) => Gate::Open(*revision),
                Err(error) => Gate::Failed(error.clone()),
            };
        }
        if let Some(revision) = cluster.try_read(level) {
            return Gate::Open(revision);
        }
        let barrier = cluster.read(level, deadline());
        self.pending = Some(Pending { barrier, level, end: self.received });
        Gate::Wait
    }

    /// Polls the pending barrier. Ready when the barrier has ended, or if none is pending. The connection can then
    /// handle the requests that arrived before the barrier began.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pending) = &mut self.pending else { return Poll::Ready(()) };
        let Poll::Ready(outcome) = pending.barrier.as_mut().poll(cx) else { return Poll::Pending };
        self.covered = Some(BarrierOutcome { level: pending.level, end: pending.end, outcome });
        self.pending = None;
        Poll::Ready(())
    }
}

impl BarrierOutcome {
    /// Returns true if the outcome of this barrier also decides a read at `level`. A successful linearizable barrier
    /// also permits reads at the weaker levels, but a failed one does not make them fail.
    fn covers(&self, level: ReadLevel) -> bool {
        let is_stronger = self.level == ReadLevel::Linearizable && matches!(level, ReadLevel::Lease | ReadLevel::Stale);
        self.level == level || (is_stronger && self.outcome.is_ok())
    }
}

#[cfg(test)]
mod tests;
