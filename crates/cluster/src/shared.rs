//! State that a node's thread and its handles share, and the calls from handles to the thread.

use std::{
    sync::{Arc, Mutex, atomic::AtomicBool},
    thread::JoinHandle,
    time::Duration,
};

use thalweg_engine::Database;
use thalweg_replica::{Member, NodeInfo};
use thalweg_serving::cluster::{ClusterError, ClusterReport, DigestComparison, EventLog, MemberVersion, NodeAddresses};
use thalweg_types::{Index, NodeId, ReadLevel, Revision};
use thalweg_wire::peer::ManageKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::{link_counters::LinkCounters, subjects::Mesh};

/// A call of another thread to the consensus thread.
pub(crate) enum Call {
    Read(ReadLevel, Duration, oneshot::Sender<Result<Revision, ClusterError>>),
    Change(Change, Duration, oneshot::Sender<Result<NodeId, ClusterError>>),
    Digest(Index, Duration, oneshot::Sender<Result<DigestComparison, ClusterError>>),
    Versions(Duration, oneshot::Sender<Result<Vec<MemberVersion>, ClusterError>>),
    HandOver(Duration, oneshot::Sender<Result<(), ClusterError>>),
}

/// A requested change of the cluster's members, with the id and the description of the node that it concerns.
pub(crate) struct Change {
    pub kind: ManageKind,
    pub node: NodeId,
    pub info: NodeInfo,
}

/// A call in the queue to the consensus thread. Its permit limits the number of calls without an answer.
pub(crate) struct Admitted {
    pub call: Call,
    pub room: OwnedSemaphorePermit,
}

/// Sending half of the queue of calls to the consensus thread.
pub(crate) struct Calls {
    queue: mpsc::Sender<Admitted>,
    room: Arc<Semaphore>,
}

impl Calls {
    /// Creates a queue for calls. At most `max_calls` calls wait for their answers at a time.
    pub(crate) fn new(max_calls: usize) -> (Self, mpsc::Receiver<Admitted>) {
        let (queue, receiver) = mpsc::channel(max_calls);
        (Self { queue, room: Arc::new(Semaphore::new(max_calls)) }, receiver)
    }

    /// Sends a call. The answer arrives at the returned receiver. If the receiver closes without an answer, the node
    /// has stopped.
    pub(crate) fn send<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<Result<T, ClusterError>>) -> Call,
    ) -> oneshot::Receiver<Result<T, ClusterError>> {
        let (sender, receiver) = oneshot::channel();
        match Arc::clone(&self.room).try_acquire_owned() {
            // Each call with a permit has a place in the queue, so an error means that the node has stopped.
            Ok(room) => drop(self.queue.try_send(Admitted { call: make(sender), room })),
            // The receiver is returned below, so this cannot fail.
            Err(_) => drop(sender.send(Err(ClusterError::Overloaded))),
        }
        receiver
    }
}

/// State of a node that its thread and the handles share.
pub(crate) struct Shared {
    pub member: Member,
    pub db: Database,
    pub report: Mutex<ClusterReport>,
    pub events: Arc<EventLog>,
    pub mesh: Mesh,
    pub counters: LinkCounters,
    pub calls: Calls,
    /// True while this node leads and collects the ids of its clients' requests, which members write to their logs.
    pub names_requests: AtomicBool,
    /// Addresses at which this node serves clients.
    pub serves: watch::Sender<NodeAddresses>,
    pub stop: watch::Sender<bool>,
    /// True once the node must stop so that its state can be repaired.
    pub repair_is_due: watch::Sender<bool>,
    pub thread: Mutex<Option<JoinHandle<()>>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_beyond_the_bound_are_refused_until_others_are_answered() {
        let (calls, mut queue) = Calls::new(2);
        let read = || calls.send(|reply| Call::Read(ReadLevel::Linearizable, Duration::from_secs(60), reply));
        let [mut first, mut second] = [read(), read()];
        let running = [queue.try_recv().unwrap(), queue.try_recv().unwrap()];
        assert_eq!(read().try_recv().unwrap(), Err(ClusterError::Overloaded), "both have begun, and none is answered");
        let pending = oneshot::error::TryRecvError::Empty;
        assert_eq!([first.try_recv(), second.try_recv()], [Err(pending.clone()), Err(pending.clone())]);
        drop(running);
        assert_eq!(read().try_recv(), Err(pending));
        assert!(queue.try_recv().is_ok());
    }
}
