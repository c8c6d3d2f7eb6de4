//! Frames of snapshots, which a leader sends or a member that repairs its state asks for.

use thalweg_types::{
    Index,
    codec::{RemainingBytes, structure},
};

use super::consensus::{EntryId, PeerVote};

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
