//! Questions about the state of a node: digests, running hashes, its history, and versions of the state machine.

use thalweg_types::{
    Index,
    codec::{List, structure},
};

structure! {
    /// Asks for the digest of the receiver's state after an entry that requests a digest.
    AskDigest as "ask digest" {
        /// Index of the entry.
        index: Index,
        /// Longest time in milliseconds for which the receiver may wait until it has computed the digest.
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
    /// Running hash of the state: a hash that each entry continues, noted after one entry.
    HashMark as "hash mark" {
        /// Index of the entry.
        index: Index,
        /// Running hash: covers the outcomes and writes of all entries up to this entry.
        hash: u64,
    }
}

structure! {
    /// Asks for the running hashes that the receiver still has.
    AskMarks as "ask marks" {}
}

structure! {
    /// Reply to [`AskMarks`].
    Marks<'a> as "marks" {
        /// Running hashes in ascending order of their indexes.
        marks: List<'a, HashMark>,
    }
}

structure! {
    /// Asks if the receiver has ever voted or written entries in its space. An empty node asks this before it founds a
    /// cluster.
    AskHistory as "ask history" {}
}

structure! {
    /// Reply to [`AskHistory`]. A node takes part in founding a cluster only if both fields are false.
    History as "history" {
        /// True if the node has ever voted, or acknowledged a leader.
        has_voted: bool,
        /// True if the node has entries, or has purged some.
        has_entries: bool,
    }
}

structure! {
    /// Asks which versions of the state machine the receiver supports. Asked before a new version is activated.
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
