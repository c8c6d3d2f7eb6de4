//! Conversion of openraft's types to and from the records of the log.
//!
//! Owns: the choice of the record for an entry or a vote. Does not own: the layout of memberships and votes
//! (`replica::Membership`, `replica::Vote`; bytes: `docs/formats/membership.md`).
//!
//! | openraft | record |
//! |---|---|
//! | normal entry | entry: term, index, time of its proposal, its bytes |
//! | membership entry | membership: term, index, time of the entry before it |
//! | blank entry | blank: term, index, time of the entry before it |
//! | vote | vote: its term, index 0 |

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::{
    EntryPayload,
    vote::{RaftLeaderId, leader_id_std::CommittedLeaderId},
};
use thalweg_log::{LogRecord, RecordKind};
use thalweg_replica::{Membership, NodeInfo, Vote};
use thalweg_state::membership::LogId;
use thalweg_types::{Index, NodeId, SpaceTime, Term};

use crate::{
    error::StoreError,
    snapshots::SnapshotPosition,
    types::{Commands, RaftEntry, RaftLogId, RaftMembership, RaftVote, SnapshotMeta, StoredMembership},
};

/// Converts an entry's id from the log's type to openraft's.
#[must_use]
pub fn raft_log_id(id: LogId) -> RaftLogId {
    RaftLogId { leader_id: CommittedLeaderId::new(id.term.0), index: id.index.0 }
}

/// Converts an entry's id from openraft's type to the log's.
#[must_use]
pub fn log_id(id: &RaftLogId) -> LogId {
    LogId { term: Term(id.leader_id.term), index: Index(id.index) }
}

/// Converts a vote from the log's type to openraft's.
#[must_use]
pub fn raft_vote(vote: Vote) -> RaftVote {
    RaftVote { leader_id: RaftLeaderId::new(vote.term.0, vote.node.0), committed: vote.committed }
}

/// Converts a vote from openraft's type to the log's.
#[must_use]
pub fn vote(vote: &RaftVote) -> Vote {
    Vote { term: Term(vote.leader_id.term), node: NodeId(vote.leader_id.voted_for), committed: vote.committed }
}

pub(crate) fn raft_membership(membership: &Membership) -> Option<RaftMembership> {
    let configs = membership.configs().iter().map(|config| config.iter().map(|voter| voter.0).collect()).collect();
    let nodes: BTreeMap<u64, NodeInfo> =
        membership.members().iter().map(|(node, info)| (node.0, info.clone())).collect();
    RaftMembership::new(configs, nodes).ok()
}

pub(crate) fn membership(membership: &RaftMembership) -> Result<Membership, StoreError> {
    let config = |config: &BTreeSet<u64>| config.iter().copied().map(NodeId).collect();
    let configs = membership.get_joint_config().iter().map(config).collect();
    let members = membership.nodes().map(|(node, info)| (NodeId(*node), info.clone())).collect();
    Ok(Membership::new(configs, members)?)
}

/// Returns the kind and the payload of the log record for an entry.
pub fn record_of(entry: &RaftEntry) -> Result<(RecordKind, Bytes), StoreError> {
    Ok(match &entry.payload {
        EntryPayload::Blank => (RecordKind::Blank, Bytes::new()),
        EntryPayload::Normal(commands) => (RecordKind::Entry, commands.bytes.clone()),
        EntryPayload::Membership(raft) => (RecordKind::Membership, membership(raft)?.encode().into()),
    })
}

/// Returns the openraft entry of a record. The record must have an index.
pub(crate) fn entry_of(record: &LogRecord) -> Result<RaftEntry, StoreError> {
    let id = LogId { term: record.term, index: record.index };
    let entry = entry_of_parts(record.kind, id, record.time, record.payload.clone());
    entry.ok_or(StoreError::Malformed { lsn: record.lsn, what: "membership" })
}

/// Builds an entry from the parts of a record that another node has sent. Returns `None` if `kind` says that the
/// payload is a membership but the payload is not. `time` is only used for an entry with commands.
#[must_use]
pub fn entry_of_parts(kind: RecordKind, id: LogId, time: SpaceTime, payload: Bytes) -> Option<RaftEntry> {
    let payload = match kind {
        RecordKind::Blank => EntryPayload::Blank,
        RecordKind::Membership => EntryPayload::Membership(raft_membership(&Membership::decode(&payload)?)?),
        _ => EntryPayload::Normal(Commands { time, bytes: payload }),
    };
    Some(RaftEntry { log_id: raft_log_id(id), payload })
}

/// Returns openraft's description of a snapshot at this position.
pub(crate) fn snapshot_meta(position: &SnapshotPosition) -> Option<SnapshotMeta> {
    let (id, membership) = &position.membership;
    let last_membership = StoredMembership::new(Some(raft_log_id(*id)), raft_membership(membership)?);
    Some(SnapshotMeta { last_log_id: Some(raft_log_id(position.last)), last_membership })
}
