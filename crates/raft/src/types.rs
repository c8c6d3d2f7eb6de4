//! openraft's types, as this crate configures them for a Raft group.
//!
//! Owns: [`Types`] and the names of its parts. Does not own: their bytes in the log (see `convert`).

use std::{cmp::Ordering, fmt, future::Future, marker::PhantomData};

use bytes::Bytes;
use openraft::{
    EntryPayload, OptionalSend, RaftTypeConfig,
    async_runtime::AsyncRuntime,
    impls::{BoxedErrorSource, InlineBatch, ProgressResponder, leader_id_std},
    type_config::TypeConfigExt,
    vote::leader_id_std::CommittedLeaderId,
};
use thalweg_replica::{EntryTimes, NodeInfo};
use thalweg_types::{SpaceTime, command::Outcome};

use crate::snapshots::SnapshotHandle;

/// The content of a proposal: the commands of one entry, encoded as in the log, and the entry's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commands {
    /// Time of the entry. The leader reads it from the members' common clock, and all nodes use it.
    pub time: SpaceTime,
    /// Commands of the entry, encoded as the payload of its log record.
    pub bytes: Bytes,
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of commands at {}", self.bytes.len(), self.time)
    }
}

/// Response to a proposal after its entry was applied on the node of the proposer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// Outcomes of the entry's commands; empty for an entry without commands.
    pub outcomes: Vec<Outcome>,
    /// Work of applying the entry on this node, in steps (units of about 100 ns), including the reads that the commands
    /// made for clients of this node.
    pub steps: u64,
    /// Times at which the entry was written and applied; `None` unless this node wrote it as the leader, for a proposer
    /// on this node.
    pub times: Option<EntryTimes>,
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} outcomes", self.outcomes.len())
    }
}

/// openraft's type configuration of a space (a Raft group), over any async runtime. Node ids are never reused.
///
/// A term has at most one leader, so an entry is identified by its term and index, as in the log.
pub struct Types<Rt>(PhantomData<fn() -> Rt>);

/// Id of an entry: its term and index.
pub type RaftLogId = openraft::LogId<CommittedLeaderId<u64>>;
/// A vote: its term, the node that asks for votes or leads in it, and a flag that is true if a quorum has granted it.
pub type RaftVote = openraft::impls::Vote<leader_id_std::LeaderId<u64, u64>>;
/// Voters and learners of a Raft group.
pub type RaftMembership = openraft::Membership<u64, NodeInfo>;
/// Membership of a Raft group, and the id of the entry that contains it.
pub type StoredMembership = openraft::StoredMembership<CommittedLeaderId<u64>, u64, NodeInfo>;
/// Position of a snapshot in the replicated log, and the membership at this position.
pub type SnapshotMeta = openraft::storage::SnapshotMeta<CommittedLeaderId<u64>, u64, NodeInfo>;
/// A snapshot as openraft passes it on: its position and membership, and a handle of its content.
pub type RaftSnapshot = openraft::storage::Snapshot<CommittedLeaderId<u64>, u64, NodeInfo, SnapshotHandle>;
/// An entry of the replicated log.
pub type RaftEntry = openraft::Entry<CommittedLeaderId<u64>, EntryPayload<Commands, u64, NodeInfo>>;

impl<Rt: AsyncRuntime> RaftTypeConfig for Types<Rt> {
    type D = Commands;
    type R = Response;
    type NodeId = u64;
    type Node = NodeInfo;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = RaftVote;
    type Payload = EntryPayload<Commands, u64, NodeInfo>;
    type Entry = RaftEntry;
    type AsyncRuntime = Rt;
    type Responder<T>
        = ProgressResponder<Self, T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = BoxedErrorSource;
}

/// Starts a task that nobody waits for.
pub(crate) fn detach<Rt: AsyncRuntime>(task: impl Future<Output = ()> + 'static) {
    drop(Types::<Rt>::spawn(task));
}

// Derived traits would require the same traits of the runtime.

impl<Rt> fmt::Debug for Types<Rt> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Types")
    }
}

impl<Rt> Clone for Types<Rt> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Rt> Copy for Types<Rt> {}

impl<Rt> Default for Types<Rt> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Rt> PartialEq for Types<Rt> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<Rt> Eq for Types<Rt> {}

impl<Rt> PartialOrd for Types<Rt> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<Rt> Ord for Types<Rt> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}
