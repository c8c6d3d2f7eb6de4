//! The handle through which the server's protocols use this process's member of the cluster: membership changes,
//! reports and digests.
//!
//! Owns: sending calls from other threads to the consensus thread. Does not own: the answers (`calls`).

use std::{
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use thalweg_broker::{Broker, NodeStats};
use thalweg_replica::NodeInfo;
use thalweg_serving::cluster::{
    ClusterError, ClusterFuture, ClusterHandle, ClusterReport, DigestComparison, EventLog, JoinRequest, LinkTraffic,
    MemberVersion, NodeAddresses, Removal,
};
use thalweg_types::{NodeId, ReadLevel, Revision};
use thalweg_wire::peer::ManageKind;
use tokio::sync::oneshot;

use crate::{
    link::UNKNOWN,
    node::Node,
    shared::{Call, Change},
};

/// Interval at which a waiting call checks if a requested digest is computed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn answer<T: Send + 'static>(receiver: oneshot::Receiver<Result<T, ClusterError>>) -> ClusterFuture<T> {
    Box::pin(async move { receiver.await.unwrap_or(Err(ClusterError::Stopping)) })
}

impl Node {
    fn change(&self, kind: ManageKind, node: NodeId, info: NodeInfo, deadline: Instant) -> ClusterFuture<NodeId> {
        let change = Change { kind, node, info };
        answer(self.shared.calls.send(|reply| Call::Change(change, left(deadline), reply)))
    }
}

fn nothing(changed: ClusterFuture<NodeId>) -> ClusterFuture<()> {
    Box::pin(async move { changed.await.map(drop) })
}

impl ClusterHandle for Node {
    fn leads(&self) -> bool {
        self.shared.member.leads()
    }

    fn names_requests(&self) -> bool {
        self.shared.names_requests.load(Relaxed)
    }

    fn try_read(&self, level: ReadLevel) -> Option<Revision> {
        if self.shared.db.stopped_serving().is_some() {
            return None;
        }
        let revision = self.shared.member.machine().applied().revision;
        match level {
            ReadLevel::Stale => Some(revision),
            ReadLevel::AtLeast(wanted) => (revision >= wanted).then_some(revision),
            ReadLevel::Linearizable | ReadLevel::Lease => None,
        }
    }

    fn read(&self, level: ReadLevel, deadline: Instant) -> ClusterFuture<Revision> {
        answer(self.shared.calls.send(|reply| Call::Read(level, left(deadline), reply)))
    }

    fn announce(&self, serves: NodeAddresses) {
        self.shared.serves.send_replace(serves);
    }

    fn carry_subjects(&self, broker: &Broker) {
        if let Err(error) = self.shared.mesh.start(broker) {
            tracing::error!(%error, "messages do not reach other nodes: cannot start their thread");
        }
    }

    fn subject_stats(&self) -> Vec<(NodeId, NodeStats)> {
        self.shared.mesh.stats()
    }

    fn link_traffic(&self) -> Vec<LinkTraffic> {
        self.shared.counters.read()
    }

    fn report(&self) -> ClusterReport {
        self.shared.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn join(&self, request: JoinRequest, deadline: Instant) -> ClusterFuture<NodeId> {
        let kind = if request.stays_learner { ManageKind::JoinAsLearner } else { ManageKind::Join };
        self.change(kind, request.node, NodeInfo { name: request.name, ..NodeInfo::at(request.address) }, deadline)
    }

    fn promote(&self, node: NodeId, deadline: Instant) -> ClusterFuture<()> {
        nothing(self.change(ManageKind::Promote, node, NodeInfo::default(), deadline))
    }

    fn remove(&self, node: NodeId, removal: Removal, deadline: Instant) -> ClusterFuture<()> {
        let kind = match removal {
            Removal::Safe => ManageKind::Remove,
            Removal::Forced => ManageKind::ForceRemove,
        };
        nothing(self.change(kind, node, NodeInfo::default(), deadline))
    }

    fn transfer(&self, to: Option<NodeId>, deadline: Instant) -> ClusterFuture<NodeId> {
        self.change(ManageKind::Transfer, to.unwrap_or(UNKNOWN), NodeInfo::default(), deadline)
    }

    fn digest(&self, deadline: Instant) -> ClusterFuture<DigestComparison> {
        let (node, db) = (self.clone(), self.shared.db.clone());
        Box::pin(async move {
            let before = node.shared.member.machine().applied().index;
            let requested = db.to_async().request_digest().await;
            requested.map_err(|error| ClusterError::Failed { reason: error.to_string() })?;
            loop {
                let newest = db.state_digests().last().map(|report| report.state.applied.index);
                if let Some(index) = newest.filter(|index| *index > before) {
                    return answer(node.shared.calls.send(|reply| Call::Digest(index, left(deadline), reply))).await;
                }
                if left(deadline).is_zero() {
                    return Err(ClusterError::DigestTimeout { index: before, missing: 1 });
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        })
    }

    fn known_versions(&self, deadline: Instant) -> ClusterFuture<Vec<MemberVersion>> {
        answer(self.shared.calls.send(|reply| Call::Versions(left(deadline), reply)))
    }

    fn events(&self) -> &Arc<EventLog> {
        &self.shared.events
    }

    fn hand_over(&self, deadline: Instant) -> ClusterFuture<()> {
        answer(self.shared.calls.send(|reply| Call::HandOver(left(deadline), reply)))
    }

    fn stop(&self) -> ClusterFuture<()> {
        let node = self.clone();
        Box::pin(async move {
            let stopped = tokio::task::spawn_blocking(move || node.shut_down()).await;
            stopped.map_err(|error| ClusterError::Failed { reason: error.to_string() })
        })
    }
}
