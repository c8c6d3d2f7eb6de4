//! The members of a cluster, as a server reports them.
//!
//! Owns: the description of the members and its decoding. Does not own: the choice of a node by this description
//! (`directory`).

pub use thalweg_types::info::{ClusterMember, MemberHealth, MemberRole};
use thalweg_types::{ClusterId, NodeId};
use thalweg_wire::{self as wire, Fields, SharedFrame};

use crate::{error::Error, request::reply_of};

/// A node's knowledge of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMembers {
    /// Id of the cluster; `None` if the node's version is too old to send it. A cluster that is restored from a backup,
    /// or created anew, gets another id.
    pub cluster: Option<ClusterId>,
    /// Id of the node that sent this knowledge.
    pub node: u64,
    /// Id of the leader; `None` if the answering node knows no leader.
    pub leader: Option<u64>,
    /// Consensus term of the answering node. If two answers of one cluster name different leaders, the answer with the
    /// higher term is newer.
    pub term: u64,
    /// All members of the cluster, each with its id.
    pub members: Vec<ClusterMember>,
}

impl ClusterMembers {
    /// Returns the member with this id.
    #[must_use]
    pub fn find(&self, node: u64) -> Option<&ClusterMember> {
        self.members.iter().find(|member| member.node.0 == node)
    }
}

/// Decodes the reply to a request for the members.
pub(crate) fn members_of(frame: &SharedFrame) -> Result<ClusterMembers, Error> {
    let wire::Members { node, leader, term, members } = reply_of(frame)?;
    let leader = (leader != NodeId(0)).then_some(leader.0);
    // The body was decoded before, so the header fields are known to be present and well-formed.
    let fields = frame.payload.get(..usize::from(frame.header.fields)).unwrap_or_default();
    let cluster = Fields::decode(fields).unwrap_or_default().cluster.map(|id| ClusterId(u128::from_le_bytes(*id)));
    Ok(ClusterMembers { cluster, node: node.0, leader, term, members: members.iter().collect() })
}
