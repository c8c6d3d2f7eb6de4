//! Interface between the client protocols of a server and the cluster that the server belongs to.
//!
//! Owns: the trait [`ClusterHandle`] with the calls that the protocols need, the data of its answers, its errors, the
//! log of [events](EventLog), and the [credentials](Credentials) of the cluster and of its administrators. Does not
//! own: consensus, links between nodes and failure detection. A crate above this one implements the trait. The tests of
//! the protocols implement it in memory.
//!
//! Invariants: a server without a cluster has no handle ([`App::cluster`](crate::app::App::cluster) is `None`), and its
//! requests only check that option. No call of the trait blocks its thread. Each call that waits has a deadline, and
//! ends with a typed error when the deadline has passed.

mod barrier;
mod credentials;
mod error;
mod events;
mod leader_watch;
mod report;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Instant};

use thalweg_broker::{Broker, NodeStats};
use thalweg_types::{NodeId, ReadLevel, Revision};
use tokio::sync::Notify;

pub use barrier::{ConnectionBarrier, Gate};
pub use credentials::{AdminToken, CREDENTIALS_FILE, Credentials, CredentialsError};
pub use error::ClusterError;
pub use events::{Beginning, ClusterEvent, Event, EventLog, Missed};
pub use leader_watch::LeaderWatch;
pub use report::{
    ClusterReport, DigestComparison, ElapsedMillis, JoinRequest, Lag, LinkTraffic, MemberDigest, MemberHealth,
    MemberReport, MemberRole, MemberVersion, NodeAddresses, Removal, Triggers,
};

/// Reason that is shown for a node that has stopped serving because it was removed from the cluster.
pub const REMOVED_REASON: &str =
    "it was removed from the cluster; stop it, and give it a new directory if it shall join again";

/// Future that a call of [`ClusterHandle`] returns. It borrows nothing, so a protocol may store it with the request.
pub type ClusterFuture<T> = Pin<Box<dyn Future<Output = Result<T, ClusterError>> + Send>>;

/// This node's membership in a cluster, as the protocols use it.
pub trait ClusterHandle: fmt::Debug + Send + Sync {
    /// Returns true if this node leads the cluster, as far as it knows.
    fn leads(&self) -> bool;

    /// Returns true if this node is the leader and needs the names by which log lines identify its clients' requests,
    /// because a member of the cluster logs these names with the log entries.
    fn names_requests(&self) -> bool {
        false
    }

    /// Returns the revision of this node's state if a read at this level may begin immediately. `None` if the read must
    /// call [`read`](Self::read) first, which waits or fails.
    fn try_read(&self, level: ReadLevel) -> Option<Revision>;

    /// Waits until this node's state is recent enough for reads at `level`. Returns a revision: each such read shows
    /// this revision or a later one.
    ///
    /// # Errors
    /// Among others [`ClusterError::NoLeader`], and [`ClusterError::ReadTimeout`] when the deadline has passed.
    fn read(&self, level: ReadLevel, deadline: Instant) -> ClusterFuture<Revision>;

    /// Tells the other nodes the addresses at which this node serves clients.
    fn announce(&self, serves: NodeAddresses);

    /// Starts to carry messages between the subscribers of this node's broker and those of the other nodes. Only the
    /// first call has an effect.
    fn carry_subjects(&self, _broker: &Broker) {}

    /// Returns counters of the subject messages exchanged with each other node.
    fn subject_stats(&self) -> Vec<(NodeId, NodeStats)> {
        Vec::new()
    }

    /// Returns the bytes exchanged with each other node over their links.
    fn link_traffic(&self) -> Vec<LinkTraffic> {
        Vec::new()
    }

    /// Returns this node's knowledge of the cluster and of all members.
    fn report(&self) -> ClusterReport;

    /// Adds a node as a learner, and returns its id. It becomes a voter once it has caught up, unless the request is
    /// for a permanent learner.
    fn join(&self, request: JoinRequest, deadline: Instant) -> ClusterFuture<NodeId>;

    /// Makes a learner a voter. Fails if the learner lacks too many log entries. Fails with
    /// [`ClusterError::AlreadyMember`] if the member is a voter already and the change that made it a voter is
    /// complete.
    fn promote(&self, node: NodeId, deadline: Instant) -> ClusterFuture<()>;

    /// Removes a member permanently. Its id is never used again. Fails with [`ClusterError::AlreadyRemoved`] if the
    /// node was a member and its removal is complete.
    fn remove(&self, node: NodeId, removal: Removal, deadline: Instant) -> ClusterFuture<()>;

    /// Transfers leadership to the voter `to`, or to the voter with the least lag if `to` is `None`. Returns the new
    /// leader.
    fn transfer(&self, to: Option<NodeId>, deadline: Instant) -> ClusterFuture<NodeId>;

    /// Asks all reachable members for the hash (digest) of their state after one log index, to compare the hashes.
    fn digest(&self, deadline: Instant) -> ClusterFuture<DigestComparison>;

    /// Asks all members which versions of the state machine they support.
    fn known_versions(&self, deadline: Instant) -> ClusterFuture<Vec<MemberVersion>>;

    /// Returns the log of the cluster's events.
    fn events(&self) -> &Arc<EventLog>;

    /// Prepares the stop of this node. If it leads, transfers leadership to another voter. The node still serves
    /// requests afterwards.
    fn hand_over(&self, deadline: Instant) -> ClusterFuture<()>;

    /// Stops consensus and the links of this node, before its database is closed.
    fn stop(&self) -> ClusterFuture<()>;
}

/// The cluster of a server: the handle, and the credentials of administrators.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Handle by which the protocols of this node call the cluster.
    pub handle: Arc<dyn ClusterHandle>,
    /// Cluster id, secret between nodes, and hash of the administrators' token.
    pub credentials: Arc<Credentials>,
    /// Notified when an administrator requests over HTTP that this node stops. The program that runs the server then
    /// stops the server, as it does at SIGTERM.
    pub stop_requested: Arc<Notify>,
}
