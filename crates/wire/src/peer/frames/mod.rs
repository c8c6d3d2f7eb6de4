//! All frames between nodes: their numbers and their contents.
//!
//! Owns: [`PeerKind`] and the bodies of the frames after the handshake, which the modules below declare by subject.
//! Does not own: the conversion to and from openraft's types (crate `cluster`).
//!
//! Kinds below 16 belong to the handshake. Of the other kinds, even numbers are requests and odd numbers are replies.
//! Each request gets one reply: of the next kind after its own, or [`Failed`]. There are these exceptions: the reply to
//! a [`Heartbeat`] is [`Appended`], and the reply to [`AskRequests`] is [`EntryRequests`]. [`Sign`], [`Facts`], and the
//! frames of the channel for subjects get no reply. Kinds are below 64, because a short header has 6 bits for them.

mod consensus;
mod requests;
mod signs;
mod snapshots;
mod states;
mod subjects;

use thalweg_types::codec::{Malformed, Structure};

pub use consensus::*;
pub use requests::*;
pub use signs::*;
pub use snapshots::*;
pub use states::*;
pub use subjects::*;

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
            /// All kinds of frames between nodes, in ascending order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$frame,)*];

            /// Returns the kind of frame with this number; `None` if this version does not know the number.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| *kind as u8 == code)
            }

            /// Name of this kind of frame in `docs/formats/peer.md`.
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

            /// Layout of the body of this kind of frame, in the notation of `docs/formats/peer.md`.
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

            /// Decodes the body of a frame of this kind and encodes it again. For tests of the format.
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
    /// Begins the handshake of a connection; sent by the dialling node.
    Hello<'a> = 1,
    /// Answer to a hello: version and proof of the accepting node. The proof shows that the node knows the cluster's
    /// secret.
    Challenge = 2,
    /// Proof of the dialling node that it knows the cluster's secret.
    Proof = 3,
    /// Ends the handshake: the accepting node accepts the connection.
    Welcome<'a> = 4,
    /// Rejects the connection during the handshake.
    Rejected<'a> = 5,
    /// Accepts the hello of the dialling node; a TLS session begins.
    BeginTls = 6,
    /// Log entries that the leader sends to a follower.
    Append<'a> = 16,
    /// Reply to `Append`: the result of appending the leader's log entries.
    Appended = 17,
    /// Asks the receiver to vote for the sender as leader.
    AskVote = 18,
    /// Reply to `AskVote`: grants or refuses the vote.
    Voted = 19,
    /// Asks if the receiver would vote for the sender as leader.
    AskPreVote = 20,
    /// Reply to `AskPreVote`: states if the node would vote for the sender of the question.
    PreVoted = 21,
    /// Asks the receiver to take over the leadership.
    Transfer = 22,
    /// Reply to `Transfer`: states if the node takes over the leadership.
    Transferred = 23,
    /// Shows the receiver that the sender is alive, and asks for a reply.
    Ping = 24,
    /// Reply to `Ping`, with facts about the replying node such as its last log entry.
    Pong = 25,
    /// Asks the leader for the index up to which a follower must have applied the log before it serves a read.
    ReadBarrier = 26,
    /// Reply to `ReadBarrier`: the index that the follower must have applied.
    Barrier = 27,
    /// Asks the receiving node for its description: its name, zone, version and addresses.
    Describe = 28,
    /// Reply to `Describe`: name, zone, version and addresses of the replying node.
    Description<'a> = 29,
    /// Asks for a digest of the receiver's state.
    AskDigest = 30,
    /// Reply to `AskDigest`: a digest of the replying node's state.
    Digest<'a> = 31,
    /// Begins to send a snapshot of the sender's state.
    BeginSnapshot<'a> = 32,
    /// Reply to `BeginSnapshot`: the chunk at which the sender continues.
    SnapshotBegun = 33,
    /// One chunk of a snapshot of the sender's state.
    SnapshotChunk<'a> = 34,
    /// Reply to `SnapshotChunk`: the chunk that the receiver wants next.
    ChunkStored = 35,
    /// Ends a snapshot; the receiver installs it.
    EndSnapshot = 36,
    /// Reply to `EndSnapshot`: the snapshot is now the replying node's state.
    SnapshotInstalled = 37,
    /// Asks for a chunk of a snapshot of the receiver's state.
    AskChunk = 38,
    /// Reply to `AskChunk`: a chunk of a snapshot of the replying node's state.
    Chunk<'a> = 39,
    /// Commands that a follower forwards to the leader.
    Propose<'a> = 40,
    /// Reply to `Propose`: the commands are committed in a log entry.
    Proposed = 41,
    /// Membership change that a node forwards to the leader.
    Manage<'a> = 42,
    /// Reply to `Manage`: the membership change is committed.
    Managed = 43,
    /// Asks for the receiver's running hashes, which are hashes of its state after certain entries.
    AskMarks = 44,
    /// Reply to `AskMarks`: the running hashes that the replying node still has.
    Marks<'a> = 45,
    /// Patterns of subjects to which the clients of the sending node subscribe. This frame gets no reply.
    Interest<'a> = 46,
    /// Reply to `AskRequests`: recent log entries with the ids of the client requests in them.
    EntryRequests<'a> = 47,
    /// Batch of messages of one subject; it gets no reply.
    SubjectBatch<'a> = 48,
    /// Sign of life without a reply: shows the receiver that the sender is alive. It contains no facts about the
    /// sender.
    Sign = 50,
    /// Sign of life without a reply: shows the receiver that the sender is alive, with facts such as the sender's last
    /// log entry.
    Facts = 52,
    /// Heartbeat of a leader whose log entries are all committed.
    Heartbeat = 54,
    /// Asks if the receiver would give its state to a member that repairs its own.
    AskSource = 56,
    /// Reply to `AskSource`: states if the replying node would give its state to a member that repairs its own.
    Source = 57,
    /// Asks if the receiver has ever voted for a leader, and if its log has entries.
    AskHistory = 58,
    /// Reply to `AskHistory`: states if the node has ever voted, and if its log has entries.
    History = 59,
    /// Asks which versions of the state machine the receiver supports.
    AskVersions = 60,
    /// Reply to `AskVersions`: the versions of the state machine that the node supports and uses.
    Versions = 61,
    /// Asks the leader for the ids of the client requests in recent log entries.
    AskRequests = 62,
    /// Reply to a failed request: it had no effect, or its effect is unknown.
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
