//! Requests that a node forwards to the leader, questions for the ids of the client requests in log entries, and the
//! reply to a failed request.

use thalweg_types::{
    Action, Index, NodeId,
    codec::{List, RemainingBytes, choices, structure},
};

structure! {
    /// Commands that a follower forwards to the leader, for one log entry.
    Propose<'a> as "propose" {
        /// Longest time in milliseconds that the leader may take to answer.
        timeout_millis: u32,
        /// True if the commands free space. The leader then accepts them even on a full disk.
        reclaims: bool,
        /// Id of the client's request, for log lines; empty if there is none.
        request: &'a str,
        /// Framed commands: the payload of the log entry that the leader makes of them.
        payload: RemainingBytes<'a>,
    }
}

structure! {
    /// Reply to [`Propose`]: the log entry is committed.
    Proposed as "proposed" {
        /// Index of the log entry. The follower learns the outcomes of the commands when it applies this entry.
        index: Index,
    }
}

choices! {
    /// Kind of a membership change.
    ManageKind as "manage kind" {
        /// Adds the node to the cluster as a learner.
        Join = 0 "join",
        /// Makes a learner a voter.
        Promote = 1 "promote",
        /// Removes a node from the cluster.
        Remove = 2 "remove",
        /// Removes a node from the cluster even if the remaining voters that answer are no majority.
        ForceRemove = 3 "force remove",
        /// Transfers the leadership to the node. If the node is 0, to the voter that lacks the fewest entries.
        Transfer = 4 "transfer",
        /// Adds the node to the cluster as a learner. The leader makes it a voter only if an operator requests this.
        JoinAsLearner = 5 "join as learner",
    }
}

structure! {
    /// Membership change that a node forwards to the leader.
    Manage<'a> as "manage" {
        /// Kind of the membership change.
        kind: ManageKind,
        /// Node that is added, promoted or removed, or that gets the leadership.
        node: NodeId,
        /// Name of the joining node; empty for other membership changes.
        name: &'a str,
        /// Address of the joining node; empty for other membership changes.
        address: &'a str,
        /// Longest time in milliseconds that the leader may take to answer.
        timeout_millis: u32,
    }
}

structure! {
    /// Reply to [`Manage`]: the membership change is committed.
    Managed as "managed" {
        /// Node that was changed; after a transfer, the new leader.
        node: NodeId,
    }
}

structure! {
    /// Asks the leader for the ids of the client requests in recent log entries. A member asks this while it writes
    /// these ids to its log output.
    AskRequests as "ask requests" {
        /// Number of the last [`NamedEntry`] that the member has received, as the leader numbers them. 0 if it has
        /// received none from this leader in its present term.
        after: u64,
    }
}

structure! {
    /// A committed log entry and the ids of the client requests in it.
    NamedEntry<'a> as "named entry" {
        /// Index of the log entry.
        index: Index,
        /// Ids of the client requests in this entry, for log lines, joined by `, `.
        requests: &'a str,
    }
}

structure! {
    /// Reply to [`AskRequests`]: recent log entries with the ids of the client requests in them.
    EntryRequests<'a> as "entry requests" {
        /// Number that the leader has given to the first entry in `entries` when it recorded the entry's request ids.
        /// The further entries have the next numbers.
        first: u64,
        /// Log entries with the ids of their client requests, in the order in which the leader has recorded them.
        entries: List<'a, NamedEntry<'a>>,
    }
}

structure! {
    /// Reply to a failed request: it had no effect, or its effect is unknown.
    Failed<'a> as "failed" {
        /// Class of the error, which tells the sender of the failed request to retry it, to change it, or to stop.
        class: Action,
        /// Stable code of the error, for programs.
        code: &'a str,
        /// Description of the error for people.
        text: &'a str,
        /// Id of the leader, if the replying node knows it and does not lead itself; otherwise none.
        leader: Option<NodeId>,
        /// Address of the leader; empty if it is not known.
        address: &'a str,
    }
}
