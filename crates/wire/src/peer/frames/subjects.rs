//! Frames that forward messages of subjects between the nodes of a cluster: the filters that a node announces, and
//! batches of messages.

use thalweg_types::codec::{List, RemainingBytes, ShortBytes, structure};

structure! {
    /// A filter, by which a node states which messages it wants: a pattern of subjects to which its clients subscribe,
    /// or a queue group with its pattern.
    SubjectFilter<'a> as "subject filter" {
        /// Pattern of subjects to which clients of the node subscribe.
        pattern: ShortBytes<'a>,
        /// Name of the queue group; empty if the subscriptions have none.
        group: ShortBytes<'a>,
        /// Number of members of the queue group on this node, at most 32; 1 without a group. 0 removes the filter.
        members: u32,
    }
}

structure! {
    /// Filters of the sender. The receiver sends it all messages that match one of them.
    Interest<'a> as "interest" {
        /// True if the frame contains all filters of the sender, which replace those that the receiver has. False if it
        /// contains only changes of the filters.
        whole: bool,
        /// Version number of the sender's filters before the changes in this frame. The receiver must have this
        /// version.
        from: u64,
        /// Version number of the sender's filters after the changes in this frame.
        version: u64,
        /// All filters of the sender, or only the changed ones; each at most once.
        filters: List<'a, SubjectFilter<'a>>,
    }
}

structure! {
    /// A batch of messages that a client of the sending node has published, for subscribers at the receiving node.
    SubjectBatch<'a> as "subject batch" {
        /// Queue groups for which the sending node has chosen a member on the receiving node.
        groups: List<'a, ShortBytes<'a>>,
        /// The encoded batch, as in `docs/formats/wire.md`.
        batch: RemainingBytes<'a>,
    }
}
