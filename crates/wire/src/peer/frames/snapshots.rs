//! Frames of snapshots. A leader sends a snapshot to a follower, or a member that repairs its state asks for one.

use thalweg_types::{
    Index,
    codec::{RemainingBytes, structure},
};

use super::consensus::{EntryId, PeerVote};

structure! {
    /// Begins to send a snapshot of the leader's state, or continues an interrupted snapshot.
    BeginSnapshot<'a> as "begin snapshot" {
        /// Vote by which the sender of the snapshot was elected leader.
        vote: PeerVote,
        /// Last log entry that the snapshot includes.
        last: EntryId,
        /// Log entry that made the membership in the snapshot (the cluster's voters and learners); if none, the
        /// receiver uses `last`.
        membership_at: Option<EntryId>,
        /// Membership in the snapshot (the cluster's voters and learners), as in `docs/formats/membership.md`.
        membership: &'a [u8],
        /// Number that the sender has given to this snapshot.
        snapshot: u64,
    }
}

structure! {
    /// Reply to [`BeginSnapshot`]: accepts the snapshot and names its first missing chunk, or rejects it.
    SnapshotBegun as "snapshot begun" {
        /// Number of the first chunk of the snapshot that the receiver does not have.
        next: u64,
        /// Vote that the receiver knows and that is higher than that of the snapshot's sender. If there is one, the
        /// receiver rejects the snapshot.
        higher: Option<PeerVote>,
    }
}

structure! {
    /// One chunk of a snapshot, in the format of `docs/formats/snapshot.md`.
    SnapshotChunk<'a> as "snapshot chunk" {
        /// Number that the sender has given to this snapshot.
        snapshot: u64,
        /// Number of the chunk within the snapshot, from 0.
        number: u64,
        /// Bytes of the chunk.
        bytes: RemainingBytes<'a>,
    }
}

structure! {
    /// Reply to [`SnapshotChunk`]: the receiver has stored the chunk and wants the next one.
    ChunkStored as "chunk stored" {
        /// Number of the first chunk of the snapshot that the receiver does not have.
        next: u64,
    }
}

structure! {
    /// Ends a snapshot. The receiver then installs it.
    EndSnapshot as "end snapshot" {
        /// Vote by which the sender of the snapshot was elected leader.
        vote: PeerVote,
        /// Number that the sender has given to this snapshot.
        snapshot: u64,
        /// Number of chunks in the snapshot.
        chunks: u64,
    }
}

structure! {
    /// Reply to [`EndSnapshot`]: the snapshot is now the receiver's state, and is on its disk.
    SnapshotInstalled as "snapshot installed" {
        /// Vote for a leader that the receiver of the snapshot holds.
        vote: PeerVote,
    }
}

structure! {
    /// Asks for a chunk of a snapshot of the receiver's state. A member that repairs its state uses this: its consensus
    /// does not run, so no leader sends it a snapshot.
    AskChunk as "ask chunk" {
        /// Number that the receiver has given to the snapshot; 0 lets the receiver choose a snapshot.
        snapshot: u64,
        /// Number of the chunk within the snapshot, from 0.
        number: u64,
        /// Index of the last entry that the snapshot should include. If the receiver has not applied this entry yet,
        /// the snapshot ends at an earlier entry.
        least: Index,
    }
}

structure! {
    /// Reply to [`AskChunk`]: a chunk of a snapshot of the replying node's state.
    Chunk<'a> as "chunk" {
        /// Number that the replying node has given to its snapshot. If it differs from the number in the request, the
        /// requested snapshot no longer exists.
        snapshot: u64,
        /// Bytes of the requested chunk; empty if the snapshot has no further chunk.
        bytes: RemainingBytes<'a>,
    }
}

structure! {
    /// Asks if the receiver can give its state, with `ask chunk`, to a member that repairs itself.
    AskSource as "ask source" {}
}

structure! {
    /// Reply to [`AskSource`]: states if the node can give its state to a member that repairs itself.
    Source as "source" {
        /// True if the replying node can give its state: it serves clients, and its scrubs have found no damage in its
        /// state.
        gives: bool,
    }
}
