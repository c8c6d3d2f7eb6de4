//! The members of a cluster, as a server reports them.
//!
//! Owns: the data and its decoding. Does not own: the choice of a node from it (`directory`).

use thalweg_types::NodeId;
use thalweg_wire::{self as wire, SharedFrame};
pub use thalweg_wire::{MemberHealth, MemberRole};

use crate::{error::Error, request::reply_of};

/// A member of a cluster, as another member sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Id of the member.
    pub node: u64,
    /// Role of the member.
    pub role: MemberRole,
    /// Health of the member.
    pub health: MemberHealth,
    /// Name of the member, for people.
    pub name: String,
    /// Zone of the member, such as a rack or a data center; empty if it has none.
    pub zone: String,
    /// Address `HOST:PORT` at which the member serves the native protocol; `None` if it is unknown.
    pub address: Option<String>,
}

/// A node's knowledge of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMembers {
    /// Id of the node that answered.
    pub node: u64,
    /// Id of the leader that the node knows.
    pub leader: Option<u64>,
    /// Term of the node. Of two answers about the leader, the one with the higher term is newer.
    pub term: u64,
    /// All members, by their ids.
    pub members: Vec<ClusterMember>,
}

impl ClusterMembers {
    /// Returns the member with this id.
    #[must_use]
    pub fn find(&self, node: u64) -> Option<&ClusterMember> {
        self.members.iter().find(|member| member.node == node)
    }
}

/// Decodes the reply to a request for the members.
pub(crate) fn members_of(frame: &SharedFrame) -> Result<ClusterMembers, Error> {
    let wire::Members { node, leader, term, members } = reply_of(frame)?;
    let member = |member: wire::ClusterMember<'_>| ClusterMember {
        node: member.node.0,
        role: member.role,
        health: member.health,
        name: member.name.to_owned(),
        zone: member.zone.to_owned(),
        address: (!member.address.is_empty()).then(|| member.address.to_owned()),
    };
    let leader = (leader != NodeId(0)).then_some(leader.0);
    Ok(ClusterMembers { node: node.0, leader, term, members: members.iter().map(member).collect() })
}
