//! Frames about the status of a node, and about the cluster to which it belongs.

pub use thalweg_types::info::{ClusterMember, MemberHealth, MemberRole};
use thalweg_types::{
    Durability, NodeId, SpaceTime,
    codec::{List, choices, structure},
};

use super::Permit;

structure! {
    /// Requests the status of the server's node.
    ReadStatus as "read status" {}
}

choices! {
    /// Ability of a node to accept writes, or the reason why it accepts none.
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
        /// Name of a number in the node's status: its path in the JSON of `/v1/status`, levels joined by dots.
        name: &'a str,
        /// The number in the node's status that `name` names.
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
        /// Id of the node whose status this is.
        node: NodeId,
        /// Microseconds since the node started.
        uptime: u64,
        /// Present time, in microseconds since 1970, by the clock that all nodes share, as far as this node knows it.
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
        /// Term of the answering node. If two answers of one cluster differ about the leader, the one with the higher
        /// term is newer.
        term: u64,
        /// All members, by their ids.
        members: List<'a, ClusterMember>,
    }
}

structure! {
    /// Begins a watch of the cluster: a subscription to the events of the cluster that the server's node notices. The
    /// sequence numbers of events apply only to one run of this node.
    WatchCluster as "watch cluster" {
        /// Sequence number of the last event that the client has. 0 begins with all events that the node still has;
        /// none begins with the next event.
        after: Option<u64>,
        /// Number of the run of the node (from its start to its stop) to which `after` belongs; none for the node's
        /// present run.
        run: Option<u64>,
        /// Initial credit of the subscription: the messages and bytes that the server may send at first.
        permit: Permit,
    }
}

structure! {
    /// Reply to [`WatchCluster`]: the watch has begun.
    WatchingCluster as "watching cluster" {
        /// Sequence number of the last event before the watch begins.
        after: u64,
        /// Number of the node's present run (since its last start), below 2^53.
        run: u64,
        /// False if the node does not know the position that the client requested, because it is another node or has
        /// restarted. The watch then begins with all events that the node still has.
        known: bool,
    }
}

structure! {
    /// A change in the cluster, as one node has noticed it.
    ClusterEvent<'a> as "cluster event" {
        /// Sequence number of the event, counted from 1 since the node's last start.
        sequence: u64,
        /// Wall-clock time at which the node noticed the event, in microseconds since 1970.
        unix_micros: u64,
        /// Id of the node that the event is about; 0 if the cluster has lost its leader.
        node: NodeId,
        /// Term of the leader; 0 in other events than `leader`.
        term: u64,
        /// Name of the event, such as `joined`. A newer node may send other names.
        event: &'a str,
        /// Name of the node that the event is about; empty if it is unknown.
        name: &'a str,
    }
}

structure! {
    /// Events that a watch of the cluster sends.
    ClusterEvents<'a> as "cluster events" {
        /// Number of earlier events that the watch has missed, because the node no longer has them.
        missed: u64,
        /// Events in the order of their sequence numbers, at least one.
        events: List<'a, ClusterEvent<'a>>,
    }
}
