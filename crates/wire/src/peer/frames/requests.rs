//! Requests that a node forwards to the leader, the names of requests, and the reply to a request that has failed.

use thalweg_types::{
    Action, Index, NodeId,
    codec::{List, RemainingBytes, choices, structure},
};

structure! {
    /// Commands that a follower forwards to the leader, as one entry.
    Propose<'a> as "propose" {
        /// Longest time that the leader may take, in milliseconds.
        timeout_millis: u32,
        /// True if the commands free space, so the leader accepts them on a full disk.
        reclaims: bool,
        /// Id of the client's request, for logs; empty if there is none.
        request: &'a str,
        /// Payload of the entry.
        payload: RemainingBytes<'a>,
    }
}

structure! {
    /// Reply to [`Propose`]: the entry is committed.
    Proposed as "proposed" {
        /// Index of the entry. The follower finds the outcomes of the commands when it applies the entry.
        index: Index,
    }
}

choices! {
    /// Kind of a change of the members.
    ManageKind as "manage kind" {
        /// Adds the node as a learner.
        Join = 0 "join",
        /// Makes a learner a voter.
        Promote = 1 "promote",
        /// Removes a node.
        Remove = 2 "remove",
        /// Removes a node, whether or not the others are a majority of the voters that answer.
        ForceRemove = 3 "force remove",
        /// Hands the leadership to the node, or to the voter that lacks the fewest entries if the node is 0.
        Transfer = 4 "transfer",
        /// Adds the node as a learner, which the leader makes a voter only on request.
        JoinAsLearner = 5 "join as learner",
    }
}

structure! {
    /// Change of the members that a node forwards to the leader.
    Manage<'a> as "manage" {
        /// Kind of the change.
        kind: ManageKind,
        /// Node that the change is about.
        node: NodeId,
        /// Name of a node that joins.
        name: &'a str,
        /// Address of a node that joins.
        address: &'a str,
        /// Longest time that the leader may take, in milliseconds.
        timeout_millis: u32,
    }
}

structure! {
    /// Reply to [`Manage`]: the change is committed.
    Managed as "managed" {
        /// Node that the change was about; for a transfer, the new leader.
        node: NodeId,
    }
}

structure! {
    /// Question of a member, which logs the names of requests, for those in recent entries of the leader.
    AskRequests as "ask requests" {
        /// Number of the last names that the member has; 0 if it has none of this leader in its term.
        after: u64,
    }
}

structure! {
    /// An entry and the names of its requests.
    NamedEntry<'a> as "named entry" {
        /// Index of the entry, which is committed.
        index: Index,
        /// Names of the requests, for log lines, joined by `, `.
        requests: &'a str,
    }
}

structure! {
    /// Reply to [`AskRequests`].
    EntryRequests<'a> as "entry requests" {
        /// Number of the names of the first entry. The others have the next numbers.
        first: u64,
        /// Entries with names, in the order in which the leader has noted them.
        entries: List<'a, NamedEntry<'a>>,
    }
}

structure! {
    /// Reply to a request that had no effect, or whose effect is unknown.
    Failed<'a> as "failed" {
        /// Class of the error: the sender of the request retries, changes it, or stops.
        class: Action,
        /// Code of the error.
        code: &'a str,
        /// Error, for people.
        text: &'a str,
        /// Node that leads, if the receiver does not and knows it.
        leader: Option<NodeId>,
        /// Address of that node; empty if it is not known.
        address: &'a str,
    }
}
