//! openraft's types, and how they map to the log's records.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    io,
};

use openraft::{
    BasicNode, EntryPayload,
    impls::leader_id_std,
    vote::{RaftLeaderId, leader_id_std::CommittedLeaderId},
};
use thalweg_log::RecordKind;
use thalweg_replica::{Membership, Vote};
use thalweg_state::membership::LogId;
use thalweg_types::{Index, NodeId, SpaceTime, Term, command::Outcome};

/// What a client proposes: the payload of an entry's record, and its space time, which the leader reads
/// from its clock once for all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commands {
    pub time: SpaceTime,
    pub framed: Vec<u8>,
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of commands at {}", self.framed.len(), self.time)
    }
}

openraft::declare_raft_types!(
    pub Types:
        D = Commands,
        R = Vec<Outcome>,
        NodeId = u64,
        Node = BasicNode,
        // In our log an entry has a term and no node: one leader a term.
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = openraft_rt_tokio::TokioRuntime,
);

pub type RaftLogId = openraft::LogId<CommittedLeaderId<u64>>;
pub type RaftVote = openraft::impls::Vote<leader_id_std::LeaderId<u64, u64>>;
pub type RaftMembership = openraft::Membership<u64, BasicNode>;
pub type RaftEntry = openraft::Entry<CommittedLeaderId<u64>, EntryPayload<Commands, u64, BasicNode>>;
pub type StoredMembership = openraft::StoredMembership<CommittedLeaderId<u64>, u64, BasicNode>;
pub type Raft = openraft::Raft<Types, crate::applier::Applier>;

pub fn raft_log_id(id: LogId) -> RaftLogId {
    RaftLogId { leader_id: CommittedLeaderId::new(id.term.0), index: id.index.0 }
}

pub fn log_id(id: &RaftLogId) -> LogId {
    LogId { term: Term(id.leader_id.term), index: Index(id.index) }
}

pub fn raft_vote(vote: Vote) -> RaftVote {
    RaftVote { leader_id: RaftLeaderId::new(vote.term.0, vote.node.0), committed: vote.committed }
}

pub fn vote(vote: &RaftVote) -> Vote {
    Vote { term: Term(vote.leader_id.term), node: NodeId(vote.leader_id.voted_for), committed: vote.committed }
}

pub fn raft_membership(membership: &Membership) -> RaftMembership {
    let configs = membership.configs().iter().map(|config| config.iter().map(|voter| voter.0).collect()).collect();
    let nodes: BTreeMap<u64, BasicNode> =
        membership.members().iter().map(|(node, address)| (node.0, BasicNode::new(address))).collect();
    RaftMembership::new(configs, nodes).expect("ours keeps stricter rules")
}

pub fn membership(membership: &RaftMembership) -> io::Result<Membership> {
    let config = |config: &BTreeSet<u64>| config.iter().copied().map(NodeId).collect();
    let configs = membership.get_joint_config().iter().map(config).collect();
    let members = membership.nodes().map(|(node, info)| (NodeId(*node), info.addr.clone())).collect();
    Membership::new(configs, members).map_err(io::Error::other)
}

/// Kind and payload of an entry's record.
pub fn record_of(entry: &RaftEntry) -> io::Result<(RecordKind, Vec<u8>)> {
    Ok(match &entry.payload {
        EntryPayload::Blank => (RecordKind::Blank, Vec::new()),
        EntryPayload::Normal(commands) => (RecordKind::Entry, commands.framed.clone()),
        EntryPayload::Membership(raft) => (RecordKind::Membership, membership(raft)?.encode()),
    })
}

/// The entry of a record; `InvalidData` if the record is not one.
pub fn entry_of(record: &thalweg_log::LogRecord) -> io::Result<RaftEntry> {
    let payload = match record.kind {
        RecordKind::Blank => EntryPayload::Blank,
        RecordKind::Entry => EntryPayload::Normal(Commands { time: record.time, framed: record.payload.to_vec() }),
        RecordKind::Membership => {
            let membership = Membership::decode(&record.payload);
            EntryPayload::Membership(raft_membership(&membership.ok_or(io::ErrorKind::InvalidData)?))
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    Ok(RaftEntry { log_id: raft_log_id(LogId { term: record.term, index: record.index }), payload })
}

/// Runs a test's future on a runtime of its own.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(test);
}
