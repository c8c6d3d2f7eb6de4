//! Frames of watches, which report changes of keys as they happen.

use thalweg_types::{
    Durability, KeyspaceId, Revision, SpaceTime,
    codec::{List, choices, structure, variants},
};

use super::Permit;

variants! {
    /// Keys that a watch observes: one key, a prefix or a range.
    WatchKeys<'a> as "watch keys" {
        /// The watch observes only the key with this name.
        Key = 0 "key" {
            /// Key to watch.
            key: &'a [u8]
        },
        /// The watch observes all keys that begin with a prefix. The empty prefix selects all keys.
        Prefix = 1 "prefix" {
            /// Prefix of the keys.
            prefix: &'a [u8]
        },
        /// The watch observes all keys of a half-open range.
        Range = 2 "range" {
            /// Lowest key, inclusive; none for no lower bound.
            start: Option<&'a [u8]>,
            /// Upper bound, exclusive; none for no upper bound.
            end: Option<&'a [u8]>
        },
    }
}

structure! {
    /// Begins a watch of a keyspace: a subscription to every change of the selected keys from a revision on, past and
    /// future, without gaps. A revision is the number of a commit.
    Watch<'a> as "watch" {
        /// Id of the keyspace to watch.
        keyspace: KeyspaceId,
        /// First revision to report; 0 begins with the next revision.
        from: Revision,
        /// Initial credit of the subscription: the messages and bytes that the server may send at first.
        permit: Permit,
        /// Keys to watch.
        keys: WatchKeys<'a>,
    }
}

structure! {
    /// Reply to [`Watch`]: the watch has begun.
    Watching as "watching" {
        /// First revision that the watch reports.
        next: Revision,
    }
}

choices! {
    /// Kind of a change to a key.
    ChangeKind as "change kind" {
        /// A client set the key.
        Put = 0 "put",
        /// A client deleted the key. Deletes of keys without a value are reported too.
        Delete = 1 "delete",
        /// The key expired.
        Expire = 2 "expire",
        /// All keys with the given prefix were deleted.
        DeletePrefix = 3 "delete prefix",
    }
}

structure! {
    /// A change of one key, or of all keys with a prefix.
    Change<'a> as "change" {
        /// Kind of the change, such as a put or a delete.
        kind: ChangeKind,
        /// Revision of the commit that made the change.
        revision: Revision,
        /// Time of the commit, in microseconds since 1970 by the clock that all nodes share.
        time: SpaceTime,
        /// Key that changed, or the deleted prefix.
        key: &'a [u8],
        /// New value of the key; empty if there is none.
        value: &'a [u8],
    }
}

structure! {
    /// Changes that a watch sends. One frame contains all changes of a commit, if they fit. A frame without changes
    /// reports that nothing below `next` was missed.
    Changes<'a> as "changes" {
        /// Durability level that all data in this frame has reached.
        durability: Durability,
        /// Revision from which a new watch continues without a gap.
        next: Revision,
        /// Changes in the order of their revisions.
        changes: List<'a, Change<'a>>,
    }
}
