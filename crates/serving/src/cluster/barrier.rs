//! The barrier before the reads of a connection that pipelines requests.
//!
//! Owns: which of the received requests a barrier covers, and the wait for it. Does not own: the requests.
//!
//! A read may show the node's state once a barrier has ended that began after the read's request arrived. One barrier
//! covers all requests that had arrived when it began, so a pipelined burst waits once. The barrier counts their bytes:
//!
//! ```text
//! received, not handled:  | request | request | request | ── arrived after the barrier began ── |
//!                         └──────── covered bytes ──────┘
//! ```
//! Invariant: `took` is called with the bytes of each request that was handled, in order.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use thalweg_types::{ReadLevel, Revision};

use super::{ClusterError, ClusterFuture, ClusterHandle};

/// Answer to a read that wants to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The read may begin. It shows at least this revision.
    Open(Revision),
    /// The read fails with this error.
    Failed(ClusterError),
    /// The read must wait for the barrier that has begun.
    Wait,
}

struct Pending {
    barrier: ClusterFuture<Revision>,
    level: ReadLevel,
    bytes: usize,
}

#[derive(Debug)]
struct BarrierOutcome {
    level: ReadLevel,
    bytes: usize,
    outcome: Result<Revision, ClusterError>,
}

/// State of the read barrier of one connection.
#[derive(Default)]
pub struct ConnectionBarrier {
    pending: Option<Pending>,
    covered: Option<BarrierOutcome>,
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
    /// Returns true while a barrier is pending. The connection handles no request meanwhile.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns whether a read at `level` may begin now. The request of the read is at the start of the `arrived` bytes
    /// that were received and are not handled yet. Begins a barrier if the read needs one.
    pub fn check(
        &mut self,
        cluster: &Arc<dyn ClusterHandle>,
        level: ReadLevel,
        arrived: usize,
        deadline: impl FnOnce() -> Instant,
    ) -> Gate {
        if let Some(covered) = &self.covered
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
        self.pending = Some(Pending { barrier, level, bytes: arrived });
        Gate::Wait
    }

    /// Polls the pending barrier. Ready when it has ended; then the requests that it covers can be handled.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pending) = &mut self.pending else { return Poll::Ready(()) };
        let Poll::Ready(outcome) = pending.barrier.as_mut().poll(cx) else { return Poll::Pending };
        self.covered = Some(BarrierOutcome { level: pending.level, bytes: pending.bytes, outcome });
        self.pending = None;
        Poll::Ready(())
    }

    /// Notes that a request of this many bytes was handled.
    #[inline]
    pub fn took(&mut self, bytes: usize) {
        if let Some(covered) = &mut self.covered {
            covered.bytes = covered.bytes.saturating_sub(bytes);
            if covered.bytes == 0 {
                self.covered = None;
            }
        }
    }
}

impl BarrierOutcome {
    /// Returns true if the barrier decides about a read at this level. A failed linearizable barrier does not decide about
    /// weaker reads.
    fn covers(&self, level: ReadLevel) -> bool {
        let is_stronger = self.level == ReadLevel::Linearizable && matches!(level, ReadLevel::Lease | ReadLevel::Stale);
        self.level == level || (is_stronger && self.outcome.is_ok())
    }
}

#[cfg(test)]
mod tests;
