//! Frames of consensus: entries, votes, the transfer of the leadership, and read barriers.

use thalweg_types::{
    Index, NodeId, SpaceTime, Term,
    codec::{List, Varint, choices, structure},
};

structure! {
    /// Term and index of an entry in the Raft log, which identify the entry.
    EntryId as "entry id" {
        /// Raft term of the log entry.
        term: Term,
        /// Index of the log entry.
        index: Index,
    }
}

structure! {
    /// Vote of a node for a leader of the Raft group.
    PeerVote as "vote" {
        /// Raft term in which the vote was given.
        term: Term,
        /// Node that gets the vote.
        node: NodeId,
        /// True if a quorum has granted the vote, so that the node leads in this term.
        committed: bool,
    }
}

choices! {
    /// Kind of an entry in the Raft log.
    EntryKind as "entry kind" {
        /// First entry of a leader's term, without contents.
        Blank = 0 "blank",
        /// The entry contains commands of clients.
        Commands = 1 "commands",
        /// The entry contains a membership: the voters and learners of the cluster, as in `docs/formats/membership.md`.
        Membership = 2 "membership",
    }
}

structure! {
    /// An entry of the Raft log.
    LogEntry<'a> as "log entry" {
        /// Term and index of the log entry.
        id: EntryId,
        /// Kind of the log entry.
        kind: EntryKind,
        /// Time of the entry by the clock that the cluster's nodes share, in microseconds since 1970. Stated for
        /// entries with commands and for the log's first entry. 0 for other entries; they have the time of the entry
        /// before them.
        time: SpaceTime,
        /// Contents of the log entry, as bytes of its record in the log.
        payload: &'a [u8],
    }
}

structure! {
    /// Log entries that the leader sends to a follower, or no entries for a heartbeat.
    Append<'a> as "append" {
        /// Vote by which the sender was elected leader.
        vote: PeerVote,
        /// Number of the receiver's last sign of life that the sender has received; see [`Ping`](super::Ping).
        heard: u64,
        /// Log entry directly before the entries of this frame; none at the beginning of the log.
        previous: Option<EntryId>,
        /// Last committed log entry; none if the leader knows none.
        committed: Option<EntryId>,
        /// Log entries to append, with consecutive indexes.
        entries: List<'a, LogEntry<'a>>,
    }
}

choices! {
    /// Result of an [`Append`], the leader's request to append log entries.
    AppendResult as "append result" {
        /// The receiver has written all log entries of the append to disk.
        Success = 0 "success",
        /// The receiver has written only the log entries up to the one named in `last` to disk.
        Partial = 1 "partial",
        /// The receiver's log has a different entry, or none, at the index of the append's field `previous`.
        Conflict = 2 "conflict",
        /// The receiver knows a vote that is higher than that of the append's sender.
        HigherVote = 3 "higher vote",
    }
}

structure! {
    /// Reply to [`Append`]: the result of appending the leader's log entries.
    Appended as "appended" {
        /// Result of the append.
        result: AppendResult,
        /// Last log entry that the receiver has written to disk; only with the result `Partial`.
        last: Option<EntryId>,
        /// The higher vote that the receiver knows; only with the result `HigherVote`.
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
    /// Asks the receiver to vote for the sender, a candidate for the leadership.
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
    /// Reply to [`AskVote`]: grants or refuses the vote.
    Voted as "voted" {
        /// Vote that the replying node holds now.
        vote: PeerVote,
        /// True if the replying node has granted its vote to the candidate.
        granted: bool,
        /// Last entry in the replying node's log; none if the log is empty.
        last: Option<EntryId>,
    }
}

structure! {
    /// Asks if the receiver would vote for the sender as leader. The receiver's state does not change.
    AskPreVote as "ask pre-vote" {
        /// Vote for which the sender would ask in an election.
        vote: PeerVote,
        /// Last entry in the sender's log; none if the log is empty.
        last: Option<EntryId>,
    }
}

structure! {
    /// Reply to [`AskPreVote`]: states if the replying node would vote for the sender of the question.
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
        /// Vote by which the sender was elected leader.
        vote: PeerVote,
        /// Node that must take over the leadership.
        to: NodeId,
        /// Last entry in the leader's log. The receiver must have this entry before it takes over.
        last: Option<EntryId>,
    }
}

structure! {
    /// Reply to [`Transfer`]: states if the receiver takes over the leadership.
    Transferred as "transferred" {
        /// True if the replying node begins an election to become the leader.
        accepted: bool,
    }
}

structure! {
    /// Asks the leader for the index up to which a follower must have applied the log before it serves a read. Sent by
    /// the follower.
    ReadBarrier as "read barrier" {
        /// Longest time in milliseconds that the leader may take to answer.
        timeout_millis: u32,
    }
}

structure! {
    /// Reply to [`ReadBarrier`]: the index that a follower must have applied before it serves a read.
    Barrier as "barrier" {
        /// Index of the entry up to which the follower must have applied the log before the read.
        index: Index,
    }
}
