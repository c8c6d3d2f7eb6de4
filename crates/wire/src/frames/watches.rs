//! Watches: changes of keys as they happen.

use thalweg_types::{Durability, KeyspaceId, Revision, SpaceTime};

use super::Permit;
use crate::{
    codec::List,
    layouts::{choices, structure, variants},
};

variants! {
    /// Which keys a watch is about.
    WatchKeys<'a> as "watch keys" {
        /// One key.
        Key = 0 "key" {
            /// Which.
            key: &'a [u8]
        },
        /// All that begin with a prefix; the empty one for all.
        Prefix = 1 "prefix" {
            /// Which.
            prefix: &'a [u8]
        },
        /// All from one key up to and without another.
        Range = 2 "range" {
            /// The lowest.
            start: Option<&'a [u8]>,
            /// The first above.
            end: Option<&'a [u8]>
        },
    }
}

structure! {
    /// Begins a watch: every change from a revision on, past or to come, without a gap.
    Watch<'a> as "watch" {
        /// Of which keyspace.
        keyspace: KeyspaceId,
        /// The first revision wanted; 0: from now on.
        from: Revision,
        /// What it may send.
        permit: Permit,
        /// Of which keys.
        keys: WatchKeys<'a>,
    }
}

structure! {
    /// A watch has begun.
    Watching as "watching" {
        /// With this revision.
        next: Revision,
    }
}

choices! {
    /// What happened to a key.
    ChangeKind as "change kind" {
        /// It was set.
        Put = 0 "put",
        /// It was deleted; told also if it had no value.
        Delete = 1 "delete",
        /// Its time was up.
        Expire = 2 "expire",
        /// All keys with this prefix were deleted.
        DeletePrefix = 3 "delete prefix",
    }
}

structure! {
    /// A change of one key.
    Change<'a> as "change" {
        /// What happened.
        kind: ChangeKind,
        /// Of the commit that made it.
        revision: Revision,
        /// When, in space time.
        time: SpaceTime,
        /// The key, or the prefix.
        key: &'a [u8],
        /// The value; empty if there is none.
        value: &'a [u8],
    }
}

structure! {
    /// What a watch sends. Changes of one commit are in one frame. Without changes: nothing was missed so far.
    Changes<'a> as "changes" {
        /// The level of all that it shows.
        durability: Durability,
        /// A watch from here on goes on without a gap.
        next: Revision,
        /// In order.
        changes: List<'a, Change<'a>>,
    }
}
