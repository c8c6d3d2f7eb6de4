//! Frames of consensus: entries, votes, the transfer of the leadership, and read barriers.

use thalweg_types::{
    Index, NodeId, SpaceTime, Term,
    codec::{List, Varint, choices, structure},
};

structure! {
    /// Term and index of a log entry.
    EntryId as "entry id" {
        /// Term of the entry.
        term: Term,
        /// Index of the entry.
        index: Index,
    }
}

structure! {
    /// Vote of a node in a space.
    PeerVote as "vote" {
        /// Term of the vote.
        term: Term,
        /// Node that gets the vote.
        node: NodeId,
        /// True if a quorum has granted the vote, so that the node leads in this term.
        committed: bool,
    }
}

choices! {
    /// Kind of a log entry.
    EntryKind as "entry kind" {
        /// First entry of a leader's term, without contents.
        Blank = 0 "blank",
        /// Commands of clients.
        Commands = 1 "commands",
        /// Membership, as in `docs/formats/membership.md`.
        Membership = 2 "membership",
    }
}

structure! {
    /// An entry of the log.
    LogEntry<'a> as "log entry" {
        /// Term and index of the entry.
        id: EntryId,
        /// Kind of the entry.
        kind: EntryKind,
        /// Space time of commands and of the log's first entry. 0 for other entries; they have the time of the entry
        /// before them.
        time: SpaceTime,
        /// Payload of the entry's record.
        payload: &'a [u8],
    }
}

structure! {
    /// Log entries from the leader, or none for a heartbeat.
    Append<'a> as "append" {
        /// Vote of the leader.
        vote: PeerVote,
        /// Number of the receiver's last ping that the sender has received; see [`Ping`](super::Ping).
        heard: u64,
        /// Entry directly before the entries of this frame; none at the beginning of the log.
        previous: Option<EntryId>,
        /// Last committed entry; none if the leader knows none.
        committed: Option<EntryId>,
        /// Entries, with consecutive indexes.
        entries: List<'a, LogEntry<'a>>,
    }
}

choices! {
    /// Result of an append.
    AppendResult as "append result" {
        /// The receiver has written all entries to disk.
        Success = 0 "success",
        /// The receiver has written only the entries up to `last` to disk.
        Partial = 1 "partial",
        /// At the index of `previous`, the receiver has a different entry or none.
        Conflict = 2 "conflict",
        /// The receiver knows a higher vote than the leader's.
        HigherVote = 3 "higher vote",
    }
}

structure! {
    /// Reply to [`Append`].
    Appended as "appended" {
        /// Result of the append.
        result: AppendResult,
        /// Last entry that was written to disk; only in a partial success.
        last: Option<EntryId>,
        /// The higher vote that the receiver knows; only in the result `HigherVote`.
        vote: Option<PeerVote>,
    }
}

structure! {
    /// Short form of a heartbeat, for a leader whose entries are all committed. It means the same as an [`Append`]
    /// without entries in which `vote` is the sender's committed vote in `term`, and `previous` and `committed` are both
    /// the entry of `last_term` and `last_index`. Only for nodes of version 3 or later. The reply is [`Appended`].
    Heartbeat as "heartbeat" {
        /// Term in which the sender leads.
        term: Term as Varint,
        /// Number of the receiver's last sign of life that the sender has received; see [`Ping`](super::Ping).
        heard: u64 as Varint,
        /// Term of the last committed entry, which is also the last entry of the leader's log and of the receiver's.
        last_term: Term as Varint,
        /// Index of the last committed entry, which is also the last entry of the leader's log and of the receiver's.
        last_index: Index as Varint,
    }
}

structure! {
    /// Asks the receiver for its vote.
    AskVote as "ask vote" {
        /// Vote of the candidate for itself in the new term.
        vote: PeerVote,
        /// Last entry in the candidate's log; none if the log is empty.
        last: Option<EntryId>,
        /// True if the leader has asked the candidate to take over. Voters then need not wait for the end of the
        /// leader's lease.
        transfer: bool,
    }
}

structure! {
    /// Reply to [`AskVote`].
    Voted as "voted" {
        /// Vote that the replying node holds now.
        vote: PeerVote,
        /// True if the vote was granted.
        granted: bool,
        /// Last entry in the replying node's log; none if the log is empty.
        last: Option<EntryId>,
    }
}

structure! {
    /// Asks if the receiver would grant a vote. The receiver's state does not change.
    AskPreVote as "ask pre-vote" {
        /// Vote that the sender would ask for.
        vote: PeerVote,
        /// Last entry in the sender's log; none if the log is empty.
        last: Option<EntryId>,
    }
}

structure! {
    /// Reply to [`AskPreVote`].
    PreVoted as "pre-voted" {
        /// Vote that the replying node holds.
        vote: PeerVote,
        /// True if the replying node would grant the vote.
        granted: bool,
        /// Last entry in the replying node's log; none if the log is empty.
        last: Option<EntryId>,
    }
}

structure! {
    /// The leader asks the receiver to take over the leadership.
    Transfer as "transfer" {
        /// Vote of the leader.
        vote: PeerVote,
        /// Node that must take over.
        to: NodeId,
        /// Last entry in the leader's log. The receiver must have it.
        last: Option<EntryId>,
    }
}

structure! {
    /// Reply to [`Transfer`].
    Transferred as "transferred" {
        /// True if the receiver begins an election.
        accepted: bool,
    }
}

structure! {
    /// Asks the leader for the index up to which a follower must have applied the log before it serves a read. Sent by
    /// the follower.
    ReadBarrier as "read barrier" {
        /// Longest time that the leader may take, in milliseconds.
        timeout_millis: u32,
    }
}

structure! {
    /// Reply to [`ReadBarrier`].
    Barrier as "barrier" {
        /// Index of the entry up to which the follower must have applied the log before the read.
        index: Index,
    }
}
