//! State of a node that its thread and its handles share, and the calls between them.

use std::{
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use thalweg_engine::Database;
use thalweg_replica::{Member, NodeInfo};
use thalweg_serving::cluster::{ClusterError, ClusterReport, DigestComparison, EventLog, NodeAddresses};
use thalweg_types::{Index, NodeId, ReadLevel, Revision};
use thalweg_wire::peer::ManageKind;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{carried::LinkCounters, subjects::Mesh};

/// A call to the consensus thread.
pub(crate) enum Call {
    Read(ReadLevel, Duration, oneshot::Sender<Result<Revision, ClusterError>>),
    Change(Change, Duration, oneshot::Sender<Result<NodeId, ClusterError>>),
    Digest(Index, Duration, oneshot::Sender<Result<DigestComparison, ClusterError>>),
    HandOver(Duration, oneshot::Sender<Result<(), ClusterError>>),
    Announce(NodeAddresses),
}

/// A change of the members.
pub(crate) struct Change {
    pub kind: ManageKind,
    pub node: NodeId,
    pub info: NodeInfo,
}

/// State of a node that its thread and the handles share.
pub(crate) struct Shared {
    pub member: Member,
    pub db: Database,
    pub report: Mutex<ClusterReport>,
    pub events: Arc<EventLog>,
    pub mesh: Mesh,
    pub counters: LinkCounters,
    pub calls: mpsc::UnboundedSender<Call>,
    pub stop: watch::Sender<bool>,
    /// True once the node must stop to repair its state.
    pub repair_is_due: watch::Sender<bool>,
    pub thread: Mutex<Option<JoinHandle<()>>>,
}
