//! Frames about the status of a node, and about the cluster to which it belongs.

pub use thalweg_types::info::{ClusterMember, MemberHealth, MemberRole};
use thalweg_types::{
    Durability, NodeId, SpaceTime,
    codec::{List, choices, structure},
};

structure! {
    /// Requests the status of the server's node.
    ReadStatus as "read status" {}
}

choices! {
    /// Ability of a node to accept writes, and the reason if it does not.
    Health as "health" {
        /// The node accepts writes.
        Good = 0 "good",
        /// The disk is full: the node accepts only deletes and trims.
        DiskFull = 1 "disk full",
        /// The node accepts no writes until it is restarted or repaired.
        Failed = 2 "failed",
        /// The node is stopping.
        Stopping = 3 "stopping",
    }
}

structure! {
    /// A named number in the status of a node.
    Figure<'a> as "figure" {
        /// Name of the number: its path in the JSON of `/v1/status`, levels joined by dots.
        name: &'a str,
        /// Value of the number.
        value: u64,
    }
}

structure! {
    /// Reply to [`ReadStatus`]: the status of a node.
    Status<'a> as "status" {
        /// Ability of the node to accept writes.
        health: Health,
        /// Durability level of acknowledgements for requests that state no level.
        durability: Durability,
        /// Id of the node.
        node: NodeId,
        /// Microseconds since the node started.
        uptime: u64,
        /// Present time of the node's log in space time (microseconds since 1970, never going back).
        space_time: SpaceTime,
        /// Version of the node's software.
        version: &'a str,
        /// Name of the node's state backend.
        backend: &'a str,
        /// Cause of a failure; empty if the node has not failed.
        reason: &'a str,
        /// Further numbers of the node's status.
        figures: List<'a, Figure<'a>>,
    }
}

structure! {
    /// Requests the members of the cluster to which the server's node belongs.
    ReadMembers as "read members" {}
}

structure! {
    /// Reply to [`ReadMembers`]: the answering node's knowledge of its cluster.
    Members<'a> as "members" {
        /// Id of the answering node.
        node: NodeId,
        /// Id of the leader that the answering node knows; 0 for none.
        leader: NodeId,
        /// Term of the answering node. Of two answers about the leader, the one with the higher term is newer.
        term: u64,
        /// All members, by their ids.
        members: List<'a, ClusterMember>,
    }
}
