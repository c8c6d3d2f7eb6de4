//! All frames between nodes: their numbers and their contents.
//!
//! Owns: [`PeerKind`] and the bodies of the frames after the handshake. Does not own: the conversion to and from
//! openraft's types (crate `cluster`).
//!
//! Kinds below 16 belong to the handshake. Of the others, even numbers are requests and odd ones are replies. Each
//! request gets one reply: the kind after its own, or [`Failed`]. A [`Heartbeat`] gets [`Appended`], and
//! [`AskRequests`] gets [`EntryRequests`]. A [`Sign`], [`Facts`], and the frames of the channel for subjects get none.
//! Kinds are below 64, because a short head has 6 bits for them.

use thalweg_types::{
    Action, Index, NodeId, SpaceTime, Term,
    codec::{List, Malformed, RemainingBytes, ShortBytes, Structure, Varint, choices, structure},
};

use super::{
    handshake::{BeginTls, Challenge, Hello, Proof, Rejected, Welcome},
    header::{HEADER_BYTES, PeerFrame, encode},
};

macro_rules! kinds {
    ($($(#[$doc:meta])* $frame:ident $(<$lt:lifetime>)? = $code:literal,)*) => {
        /// Kind of a frame between nodes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum PeerKind {
            $($(#[$doc])* $frame = $code,)*
        }

        impl PeerKind {
            /// All kinds of frames, in ascending order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$frame,)*];

            /// Returns the kind with this number; `None` if this version does not know it.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| *kind as u8 == code)
            }

            /// Name of the kind in the format document.
            #[must_use]
            pub fn name(self) -> &'static str {
                #[expect(clippy::extra_unused_lifetimes, reason = "only frames that borrow have one")]
                fn name<'a>(kind: PeerKind) -> &'static str {
                    match kind {
                        $(PeerKind::$frame => <$frame $(<$lt>)? as Structure>::NAME,)*
                    }
                }
                name(self)
            }

            /// Layout of the kind in the notation of the format document.
            #[must_use]
            pub fn definition(self) -> String {
                #[expect(clippy::extra_unused_lifetimes, reason = "only frames that borrow have one")]
                fn definition<'a>(kind: PeerKind) -> String {
                    match kind {
                        $(PeerKind::$frame => <$frame $(<$lt>)? as Structure>::definition(),)*
                    }
                }
                definition(self)
            }

            /// Decodes a body of this kind, and encodes it again. For tests of the format.
            pub fn decode_and_encode(self, body: &[u8]) -> Result<Vec<u8>, Malformed> {
                let mut out = Vec::new();
                match self {
                    $(Self::$frame => encode(&$frame::decode_body(body)?, 0, &mut out),)*
                }
                .map_err(|_| Malformed { at: 0, expected: "a body within the limits" })?;
                Ok(out.split_off(HEADER_BYTES))
            }
        }

        $(
            impl<'a> PeerFrame<'a> for $frame $(<$lt>)? {
                const KIND: u8 = PeerKind::$frame as u8;
            }
        )*
    };
}

kinds! {
    /// Begins a connection.
    Hello<'a> = 1,
    /// Version and proof of the accepting node.
    Challenge = 2,
    /// Proof of the dialling node.
    Proof = 3,
    /// End of the handshake.
    Welcome<'a> = 4,
    /// End of the connection before the end of the handshake.
    Rejected<'a> = 5,
    /// The accepting node accepts the hello, and a TLS session begins.
    BeginTls = 6,
    /// Entries of the log.
    Append<'a> = 16,
    /// Reply to `Append`.
    Appended = 17,
    /// Request for a vote.
    AskVote = 18,
    /// Reply to `AskVote` and `AskPreVote`.
    Voted = 19,
    /// Question whether the node would grant a vote.
    AskPreVote = 20,
    /// Reply to `AskPreVote`.
    PreVoted = 21,
    /// Request to take over the leadership.
    Transfer = 22,
    /// Reply to `Transfer`.
    Transferred = 23,
    /// Sign of life.
    Ping = 24,
    /// Reply to `Ping`.
    Pong = 25,
    /// Question of a follower: up to which entry it must have applied the log before a read.
    ReadBarrier = 26,
    /// Reply to `ReadBarrier`.
    Barrier = 27,
    /// Question about a node.
    Describe = 28,
    /// Reply to `Describe`.
    Description<'a> = 29,
    /// Question for the digest of a state.
    AskDigest = 30,
    /// Reply to `AskDigest`.
    Digest<'a> = 31,
    /// Begins a snapshot.
    BeginSnapshot<'a> = 32,
    /// Reply to `BeginSnapshot`.
    SnapshotBegun = 33,
    /// One chunk of a snapshot.
    SnapshotChunk<'a> = 34,
    /// Reply to `SnapshotChunk`.
    ChunkStored = 35,
    /// Ends a snapshot, which the receiver installs.
    EndSnapshot = 36,
    /// Reply to `EndSnapshot`.
    SnapshotInstalled = 37,
    /// Request for a chunk of a snapshot.
    AskChunk = 38,
    /// Reply to `AskChunk`.
    Chunk<'a> = 39,
    /// Commands that a follower forwards.
    Propose<'a> = 40,
    /// Reply to `Propose`.
    Proposed = 41,
    /// Change of the members that a node forwards to the leader.
    Manage<'a> = 42,
    /// Reply to `Manage`.
    Managed = 43,
    /// Question for running hashes.
    AskMarks = 44,
    /// Reply to `AskMarks`.
    Marks<'a> = 45,
    /// Filters of a node's subscriptions; it gets no reply.
    Interest<'a> = 46,
    /// Reply to `AskRequests`.
    EntryRequests<'a> = 47,
    /// Batch of messages to a subject; it gets no reply.
    SubjectBatch<'a> = 48,
    /// Sign of life without facts; it gets no reply.
    Sign = 50,
    /// Sign of life with facts; it gets no reply.
    Facts = 52,
    /// Heartbeat of a leader whose entries are all committed.
    Heartbeat = 54,
    /// Question whether the node would give its state to a member that repairs its own.
    AskSource = 56,
    /// Reply to `AskSource`.
    Source = 57,
    /// Question whether the node has ever voted, and whether it has entries.
    AskHistory = 58,
    /// Reply to `AskHistory`.
    History = 59,
    /// Question for the versions of the state machine.
    AskVersions = 60,
    /// Reply to `AskVersions`.
    Versions = 61,
    /// Question for the names of the requests in recent entries.
    AskRequests = 62,
    /// Reply to any request: it had no effect, or its effect is unknown.
    Failed<'a> = 63,
}

/// Returns names and layouts of all structures inside frames, in the notation of the format document.
#[must_use]
pub fn structures() -> Vec<(&'static str, String)> {
    fn of<T: Structure>() -> (&'static str, String) {
        (T::NAME, T::definition())
    }
    vec![
        of::<EntryId>(),
        of::<PeerVote>(),
        of::<LogEntry<'_>>(),
        of::<EntryKind>(),
        of::<AppendResult>(),
        of::<ManageKind>(),
        of::<HashMark>(),
        of::<NamedEntry<'_>>(),
        of::<SubjectFilter<'_>>(),
        of::<super::handshake::Channel>(),
        of::<super::handshake::Protection>(),
    ]
}

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
        /// Number of the last ping of the receiver that the sender has received; see [`Ping`].
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
    /// Question whether the node would grant a vote, without effect on the node.
    AskPreVote as "ask pre-vote" {
        /// Vote that the node would ask for.
        vote: PeerVote,
        /// Last entry of the node.
        last: Option<EntryId>,
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
    /// Append without entries of a leader whose entries are all committed. The vote is the committed one of the sender
    /// in `term`. Only for nodes of version 3 or later; the reply is [`Appended`].
    Heartbeat as "heartbeat" {
        /// Term in which the sender leads.
        term: Term as Varint,
        /// Number of the last sign of life of the receiver that the sender has received; see [`Ping`].
        heard: u64 as Varint,
        /// Term of the last entry that the receiver has, which is committed.
        last_term: Term as Varint,
        /// Index of that entry.
        last_index: Index as Varint,
    }
}

structure! {
    /// A sign of life. Every node sends it to every other node, which replies.
    ///
    /// `heard` shows the receiver whether the sender hears it. A node ignores appends from a leader that has not heard
    /// it for one lease: such a leader keeps its followers quiet and commits nothing.
    Ping as "ping" {
        /// Number of the ping, which rises by one with each.
        number: u64,
        /// Number of the last ping of the receiver that the sender has received; 0 for none.
        heard: u64,
    }
}

structure! {
    /// Reply to [`Ping`]: how far the node is.
    Pong as "pong" {
        /// Number of the ping.
        number: u64,
        /// Index of the last entry in the node's log.
        last: Index,
        /// Index of the last entry that the node has applied.
        applied: Index,
        /// Free bytes on the disk that the node may use for data.
        free_bytes: u64,
        /// Wall clock of the node.
        wall: SpaceTime,
    }
}

structure! {
    /// Sign of life, to which [`Ping`] and its rules apply, but without a reply: the receiver's own signs show that it
    /// hears the sender. The facts about the sender are those that it has last stated on this connection. Only for
    /// nodes of version 3 or later.
    Sign as "sign of life" {
        /// Number of the sign among the pings, signs and facts that the sender has sent to the receiver, which rises by
        /// one.
        number: u64 as Varint,
        /// Number of the last one of the receiver that the sender has received; 0 for none.
        heard: u64 as Varint,
    }
}

structure! {
    /// Sign of life with facts about the sender: the first one of a connection, and again when the facts have changed.
    Facts as "facts" {
        /// Number, as in [`Sign`].
        number: u64 as Varint,
        /// Number of the last sign heard, as in [`Sign`].
        heard: u64 as Varint,
        /// Index of the last entry in the sender's log.
        last: Index as Varint,
        /// Index of the last entry that the sender has applied.
        applied: Index as Varint,
        /// True if the sender's disk is too full for new data.
        lacks_room: bool,
        /// Wall clock of the sender. The receiver continues it until the next facts.
        wall: SpaceTime as Varint,
        /// Number that changes with the sender's [`Description`]: the receiver asks for it only after a change.
        about: u32,
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

structure! {
    /// Begins a snapshot, or continues one.
    BeginSnapshot<'a> as "begin snapshot" {
        /// Vote of the leader.
        vote: PeerVote,
        /// Last entry in the snapshot.
        last: EntryId,
        /// Entry of the membership in the snapshot.
        membership_at: Option<EntryId>,
        /// Membership in the snapshot, as in `docs/formats/membership.md`.
        membership: &'a [u8],
        /// Number that identifies the snapshot at its sender.
        snapshot: u64,
    }
}

structure! {
    /// Reply to [`BeginSnapshot`].
    SnapshotBegun as "snapshot begun" {
        /// Number of the first chunk that the receiver does not have.
        next: u64,
        /// Higher vote; if there is one, the receiver takes no snapshot from the sender.
        higher: Option<PeerVote>,
    }
}

structure! {
    /// One chunk of a snapshot, in the format of `docs/formats/snapshot.md`.
    SnapshotChunk<'a> as "snapshot chunk" {
        /// Number that identifies the snapshot at its sender.
        snapshot: u64,
        /// Number of the chunk.
        number: u64,
        /// Bytes of the chunk.
        bytes: RemainingBytes<'a>,
    }
}

structure! {
    /// Reply to [`SnapshotChunk`]: the receiver has stored the chunk and wants the next one.
    ChunkStored as "chunk stored" {
        /// Number of the first chunk that the receiver does not have.
        next: u64,
    }
}

structure! {
    /// Ends a snapshot.
    EndSnapshot as "end snapshot" {
        /// Vote of the leader.
        vote: PeerVote,
        /// Number that identifies the snapshot at its sender.
        snapshot: u64,
        /// Number of chunks.
        chunks: u64,
    }
}

structure! {
    /// Reply to [`EndSnapshot`]: the snapshot is the receiver's state now, on disk.
    SnapshotInstalled as "snapshot installed" {
        /// Vote that the receiver holds.
        vote: PeerVote,
    }
}

structure! {
    /// Request for a chunk of a snapshot of the receiver's state. A member that repairs its state does not run
    /// consensus, so no leader sends it a snapshot.
    AskChunk as "ask chunk" {
        /// Number that identifies the snapshot at the receiver; 0 for a snapshot that the receiver chooses.
        snapshot: u64,
        /// Number of the chunk.
        number: u64,
        /// Last entry whose effects the snapshot must contain, unless the receiver has not applied that entry.
        least: Index,
    }
}

structure! {
    /// Reply to [`AskChunk`].
    Chunk<'a> as "chunk" {
        /// Number that identifies the snapshot. If it is another one than that in the request, that snapshot has ended.
        snapshot: u64,
        /// Bytes of the chunk; empty after the last one.
        bytes: RemainingBytes<'a>,
    }
}

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
    /// Requests the description of the receiving node, which the sender shows to users.
    Describe as "describe" {}
}

structure! {
    /// Reply to [`Describe`].
    Description<'a> as "description" {
        /// Name of the node.
        name: &'a str,
        /// Zone of the node; empty if it has none.
        zone: &'a str,
        /// Version of the node's software.
        software: &'a str,
        /// Address of HTTP; empty if it is not known.
        http: &'a str,
        /// Address of the native protocol; empty if it is not served.
        native: &'a str,
        /// Address for Redis clients; empty if they are not served.
        resp: &'a str,
    }
}

structure! {
    /// Question for the digest of the state after an entry that requests one.
    AskDigest as "ask digest" {
        /// Index of the entry.
        index: Index,
        /// Longest time for which the node may wait until the digest is computed, in milliseconds.
        timeout_millis: u32,
    }
}

structure! {
    /// Reply to [`AskDigest`].
    Digest<'a> as "digest" {
        /// Digest in hexadecimal.
        hex: &'a str,
    }
}

structure! {
    /// Running hash of the state after an entry.
    HashMark as "hash mark" {
        /// Index of the entry.
        index: Index,
        /// Hash over the outcomes and writes of all entries up to it.
        hash: u64,
    }
}

structure! {
    /// Question for the running hashes that the node keeps.
    AskMarks as "ask marks" {}
}

structure! {
    /// Reply to [`AskMarks`].
    Marks<'a> as "marks" {
        /// Hashes, with rising indexes.
        marks: List<'a, HashMark>,
    }
}

structure! {
    /// Asks if the receiver can serve its state to a member that is repairing itself, over `ask chunk`.
    AskSource as "ask source" {}
}

structure! {
    /// Reply to [`AskSource`].
    Source as "source" {
        /// True if the node serves, and its scrubs have found no damage in its state.
        gives: bool,
    }
}

structure! {
    /// Asked by an empty node before it founds a cluster: has the receiver voted or written entries in its space?
    AskHistory as "ask history" {}
}

structure! {
    /// Reply to [`AskHistory`]. Only a node with neither takes part in founding a cluster.
    History as "history" {
        /// True if the node has ever voted, or acknowledged a leader.
        has_voted: bool,
        /// True if the node has entries, or had some that it has purged.
        has_entries: bool,
    }
}

structure! {
    /// Asks which versions of the state machine the receiver supports, before one is activated.
    AskVersions as "ask versions" {}
}

structure! {
    /// Reply to [`AskVersions`].
    Versions as "versions" {
        /// Highest version that the node supports.
        known: u16,
        /// Version that is in force after the last entry that the node has applied.
        in_force: u16,
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
    /// A filter of a node: a pattern of its clients' subscriptions, or a queue group with a pattern.
    SubjectFilter<'a> as "subject filter" {
        /// Pattern of the subscriptions.
        pattern: ShortBytes<'a>,
        /// Name of the queue group; empty if the subscriptions have none.
        group: ShortBytes<'a>,
        /// Number of members of the group, at most 32, or 1 without a group; 0 for a filter that has ended.
        members: u32,
    }
}

structure! {
    /// Filters of the sender, which wants the messages that match them.
    Interest<'a> as "interest" {
        /// True if these are all filters of the sender, which replace those that the receiver has.
        whole: bool,
        /// Version of the filters to which these changes apply; the receiver has it from the frame before.
        from: u64,
        /// Version of the filters afterwards.
        version: u64,
        /// Filters, each at most once.
        filters: List<'a, SubjectFilter<'a>>,
    }
}

structure! {
    /// A batch that a client of the sender has published, for the clients of the receiver.
    SubjectBatch<'a> as "subject batch" {
        /// Queue groups for which the sender has chosen a member of the receiver.
        groups: List<'a, ShortBytes<'a>>,
        /// The batch, as in `docs/formats/wire.md`.
        batch: RemainingBytes<'a>,
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
