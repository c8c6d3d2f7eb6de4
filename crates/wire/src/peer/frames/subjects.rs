//! Frames of the channel for subjects: filters, and batches of messages.

use thalweg_types::codec::{List, RemainingBytes, ShortBytes, structure};

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
