//! Questions about the state of a node: digests, running hashes, its history, and versions of the state machine.

use thalweg_types::{
    Index,
    codec::{List, structure},
};

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
