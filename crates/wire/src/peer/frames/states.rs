//! Questions about the state of a node: digests, running hashes, its history, and versions of the state machine.

use thalweg_types::{
    Index,
    codec::{List, structure},
};

structure! {
    /// Asks for the digest (a hash of all data) of the receiver's state after a log entry that requests a digest.
    AskDigest as "ask digest" {
        /// Index of the log entry that requests the digest.
        index: Index,
        /// Longest time in milliseconds for which the receiver may wait until it has computed the digest.
        timeout_millis: u32,
    }
}

structure! {
    /// Reply to [`AskDigest`]: the digest of the replying node's state.
    Digest<'a> as "digest" {
        /// Digest of the replying node's state in hexadecimal.
        hex: &'a str,
    }
}

structure! {
    /// Running hash of a node's state after one log entry. Each applied entry continues the hash.
    HashMark as "hash mark" {
        /// Index of the log entry after which the running hash was noted.
        index: Index,
        /// Value of the running hash. It covers the outcomes and writes of all log entries up to `index`.
        hash: u64,
    }
}

structure! {
    /// Asks for the running hashes of its state that the receiver still has, each taken after one log entry.
    AskMarks as "ask marks" {}
}

structure! {
    /// Reply to [`AskMarks`]: the running hashes that the replying node still has.
    Marks<'a> as "marks" {
        /// Running hashes in ascending order of the indexes of their log entries.
        marks: List<'a, HashMark>,
    }
}

structure! {
    /// Asks if the receiver has ever voted for a leader, and if its log has had entries. An empty node asks this before
    /// it founds a cluster.
    AskHistory as "ask history" {}
}

structure! {
    /// Reply to [`AskHistory`]: the replying node's past votes and entries. A node takes part in founding a cluster
    /// only if both fields are false.
    History as "history" {
        /// True if the replying node has ever voted in an election, or acknowledged a leader.
        has_voted: bool,
        /// True if the replying node's log has entries, or had entries that were purged.
        has_entries: bool,
    }
}

structure! {
    /// Asks which versions of the state machine the receiver supports. Asked before a new version is activated.
    AskVersions as "ask versions" {}
}

structure! {
    /// Reply to [`AskVersions`]: versions of the state machine that the replying node supports and uses.
    Versions as "versions" {
        /// Highest version of the state machine that the replying node supports.
        known: u16,
        /// Version of the state machine that is in force after the last log entry that the replying node has applied.
        in_force: u16,
    }
}
