use std::{
    future::ready,
    sync::Mutex,
    task::Waker,
    time::{Duration, Instant},
};

use thalweg_types::{ClusterId, Index, NodeId, Revision, Term};
use tokio::sync::oneshot;

use super::*;
use crate::cluster::{
    ClusterReport, DigestComparison, ElapsedMillis, EventLog, JoinRequest, MemberVersion, NodeAddresses, Removal,
    Triggers,
};

/// A simulated cluster whose reads wait until the test lets them end.
#[derive(Debug, Default)]
struct Gated {
    events: Arc<EventLog>,
    waiting: Mutex<Vec<oneshot::Sender<Result<Revision, ClusterError>>>>,
}

impl Gated {
    fn end(&self, outcome: Result<Revision, ClusterError>) {
        let waiting = self.waiting.lock().unwrap().pop().expect("a barrier waits");
        waiting.send(outcome).unwrap();
    }

    fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }
}

fn refused<T: Send + 'static>() -> ClusterFuture<T> {
    Box::pin(ready(Err(ClusterError::NotClustered)))
}

impl ClusterHandle for Gated {
    fn leads(&self) -> bool {
        false
    }

    fn try_read(&self, level: ReadLevel) -> Option<Revision> {
        (level == ReadLevel::Stale).then_some(Revision(1))
    }

    fn read(&self, _: ReadLevel, _: Instant) -> ClusterFuture<Revision> {
        let (send, outcome) = oneshot::channel();
        self.waiting.lock().unwrap().push(send);
        Box::pin(async move { outcome.await.unwrap_or(Err(ClusterError::Stopping)) })
    }

    fn announce(&self, _: NodeAddresses) {}

    fn report(&self) -> ClusterReport {
        ClusterReport {
            cluster: ClusterId(1),
            node: NodeId(1),
            leader: None,
            term: Term(1),
            commit_index: Index(0),
            applied_index: Index(0),
            applied_revision: Revision(0),
            is_changing: false,
            time_behind: None,
            undecided_after: None,
            triggers: Triggers { lag_entries: 0, lag_bytes: 0, stale_after: ElapsedMillis(0) },
            members: Vec::new(),
        }
    }

    fn join(&self, _: JoinRequest, _: Instant) -> ClusterFuture<NodeId> {
        refused()
    }

    fn promote(&self, _: NodeId, _: Instant) -> ClusterFuture<()> {
        refused()
    }

    fn remove(&self, _: NodeId, _: Removal, _: Instant) -> ClusterFuture<()> {
        refused()
    }

    fn transfer(&self, _: Option<NodeId>, _: Instant) -> ClusterFuture<NodeId> {
        refused()
    }

    fn digest(&self, _: Instant) -> ClusterFuture<DigestComparison> {
        refused()
    }

    fn known_versions(&self, _: Instant) -> ClusterFuture<Vec<MemberVersion>> {
        refused()
    }

    fn events(&self) -> &Arc<EventLog> {
        &self.events
    }

    fn hand_over(&self, _: Instant) -> ClusterFuture<()> {
        refused()
    }

    fn stop(&self) -> ClusterFuture<()> {
        refused()
    }
}

struct Tested {
    gated: Arc<Gated>,
    handle: Arc<dyn ClusterHandle>,
    barrier: ConnectionBarrier,
}

impl Tested {
    fn new() -> Self {
        let gated = Arc::new(Gated::default());
        let handle: Arc<dyn ClusterHandle> = gated.clone();
        Self { gated, handle, barrier: ConnectionBarrier::default() }
    }

    fn received(mut self, bytes: usize) -> Self {
        self.barrier.received(bytes);
        self
    }

    fn check(&mut self, level: ReadLevel, unhandled: usize) -> Gate {
        self.barrier.check(&self.handle, level, unhandled, || Instant::now() + Duration::from_secs(60))
    }

    fn poll(&mut self) -> bool {
        self.barrier.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

#[test]
fn one_barrier_covers_the_requests_that_had_arrived_when_it_began() {
    let mut tested = Tested::new().received(130);
    assert_eq!(tested.check(ReadLevel::Linearizable, 30), Gate::Wait);
    assert!(tested.barrier.is_pending() && !tested.poll());
    tested.gated.end(Ok(Revision(7)));
    assert!(tested.poll() && !tested.barrier.is_pending());
    tested.barrier.received(20);
    for left in [50, 40, 21] {
        assert_eq!(tested.check(ReadLevel::Linearizable, left), Gate::Open(Revision(7)));
    }
    assert_eq!(tested.check(ReadLevel::Linearizable, 20), Gate::Wait, "the request arrived after the barrier began");
    assert_eq!(tested.gated.waiting(), 1);
}

#[test]
fn bytes_that_were_skipped_cover_no_later_request() {
    let mut tested = Tested::new().received(1000);
    assert_eq!(tested.check(ReadLevel::Linearizable, 1000), Gate::Wait);
    tested.gated.end(Ok(Revision(7)));
    assert!(tested.poll());
    assert_eq!(tested.check(ReadLevel::Linearizable, 1000), Gate::Open(Revision(7)));
    // The connection drops the rest of the received bytes, which contain no request.
    tested.barrier.received(10);
    assert_eq!(tested.check(ReadLevel::Linearizable, 10), Gate::Wait);
}

#[test]
fn a_failed_barrier_fails_the_reads_that_it_covers_and_no_weaker_ones() {
    let mut tested = Tested::new().received(20);
    assert_eq!(tested.check(ReadLevel::Linearizable, 20), Gate::Wait);
    tested.gated.end(Err(ClusterError::NoLeader));
    assert!(tested.poll());
    assert_eq!(tested.check(ReadLevel::Linearizable, 20), Gate::Failed(ClusterError::NoLeader));
    assert_eq!(tested.check(ReadLevel::Stale, 10), Gate::Open(Revision(1)));
    tested.barrier.received(10);
    assert_eq!(tested.check(ReadLevel::Linearizable, 10), Gate::Wait, "later reads try again");
}

#[test]
fn a_level_that_the_barrier_does_not_promise_begins_another_one() {
    let mut tested = Tested::new().received(20);
    assert_eq!(tested.check(ReadLevel::Lease, 20), Gate::Wait);
    tested.gated.end(Ok(Revision(3)));
    assert!(tested.poll());
    assert_eq!(tested.check(ReadLevel::Linearizable, 20), Gate::Wait);
    tested.gated.end(Ok(Revision(4)));
    assert!(tested.poll());
    assert_eq!(tested.check(ReadLevel::Lease, 20), Gate::Open(Revision(4)), "a stronger promise suffices");
    assert_eq!(tested.check(ReadLevel::AtLeast(Revision(9)), 20), Gate::Wait);
}
