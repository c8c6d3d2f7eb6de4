//! Frames of consensus: entries, votes, the transfer of the leadership, and the entry for which a read waits.

use thalweg_types::{
    Index, NodeId, SpaceTime, Term,
    codec::{List, Varint, choices, structure},
};

structure! {
    /// Term and index of an entry.
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
        /// Node that the vote is for.
        node: NodeId,
        /// True if a quorum has granted it, so the node leads in the term.
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
        /// Space time of commands, and of the first entry of the log; 0 for other entries, whose time is that of the
        /// entry before.
        time: SpaceTime,
        /// Payload of the entry's record.
        payload: &'a [u8],
    }
}

structure! {
    /// Entries of the log from the leader, or none as a heartbeat.
    Append<'a> as "append" {
        /// Vote of the leader.
        vote: PeerVote,
        /// Number of the last ping of the receiver that the sender has received; see [`Ping`](super::Ping).
        heard: u64,
        /// Entry before the first one.
        previous: Option<EntryId>,
        /// Last committed entry.
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
        /// The receiver has written the entries up to `last`.
        Partial = 1 "partial",
        /// The receiver has another entry, or none, in place of `previous`.
        Conflict = 2 "conflict",
        /// The receiver knows a higher vote.
        HigherVote = 3 "higher vote",
    }
}

structure! {
    /// Reply to [`Append`].
    Appended as "appended" {
        /// Result of the append.
        result: AppendResult,
        /// Last entry that was written; only after a partial success.
        last: Option<EntryId>,
        /// Higher vote; only with that result.
        vote: Option<PeerVote>,
    }
}

structure! {
    /// Append without entries of a leader whose entries are all committed. The vote is the committed one of the sender
    /// in `term`. Only for nodes of version 3 or later; the reply is [`Appended`].
    Heartbeat as "heartbeat" {
        /// Term in which the sender leads.
        term: Term as Varint,
        /// Number of the last sign of life of the receiver that the sender has received; see [`Ping`](super::Ping).
        heard: u64 as Varint,
        /// Term of the last entry that the receiver has, which is committed.
        last_term: Term as Varint,
        /// Index of that entry.
        last_index: Index as Varint,
    }
}

structure! {
    /// Request for a vote.
    AskVote as "ask vote" {
        /// Vote of the candidate for itself.
        vote: PeerVote,
        /// Last entry of the candidate.
        last: Option<EntryId>,
        /// True if the leader has asked the candidate to take over, so voters need not wait for the leader's lease.
        transfer: bool,
    }
}

structure! {
    /// Reply to [`AskVote`].
    Voted as "voted" {
        /// Vote that the node holds now.
        vote: PeerVote,
        /// True if the vote was granted.
        granted: bool,
        /// Last entry of the voter.
        last: Option<EntryId>,
    }
}

structure! {
    /// Question whether the node would grant a vote, without effect on the node.
    AskPreVote as "ask pre-vote" {
        /// Vote that the node would ask for.
        vote: PeerVote,
        /// Last entry of the node.
        last: Option<EntryId>,
    }
}

structure! {
    /// Reply to [`AskPreVote`].
    PreVoted as "pre-voted" {
        /// Vote that the node holds.
        vote: PeerVote,
        /// True if the vote would be granted.
        granted: bool,
        /// Last entry of the node.
        last: Option<EntryId>,
    }
}

structure! {
    /// Request of the leader that the receiver takes over.
    Transfer as "transfer" {
        /// Vote of the leader.
        vote: PeerVote,
        /// Node that takes over.
        to: NodeId,
        /// Last entry of the leader, which the receiver must have.
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
    /// Question of a follower: up to which entry it must have applied the log before the reads that wait there.
    ReadBarrier as "read barrier" {
        /// Time in milliseconds after which the leader gives up the change.
        timeout_millis: u32,
    }
}

structure! {
    /// Reply to [`ReadBarrier`].
    Barrier as "barrier" {
        /// Entry up to which the follower must have applied the log.
        index: Index,
    }
}
