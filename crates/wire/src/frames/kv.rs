//! Keyspaces, keys and leases: what is read, and what answers to reads. Writes are commands, see [`write`](super::write).

use thalweg_types::{Durability, KeyspaceId, LeaseId, Revision, SpaceTime, command::KeyspaceConfig};

use crate::{
    codec::{List, Rest},
    layouts::{choices, structure},
};

choices! {
    /// Whether values are wanted.
    Values as "values" {
        /// They are.
        Include = 0 "include",
        /// They are not; cheaper where values stay in the log.
        Omit = 1 "omit",
    }
}

choices! {
    /// Which way a scan goes.
    Order as "order" {
        /// Lowest key first.
        Ascending = 0 "ascending",
        /// Highest key first.
        Descending = 1 "descending",
    }
}

choices! {
    /// Whether a keyspace's keys are to be counted.
    Count as "count" {
        /// They are not.
        Skip = 0 "skip",
        /// They are: of a keyspace without exact counts that reads up to 100,000 keys.
        Estimate = 1 "estimate",
    }
}

structure! {
    /// Reads a key.
    Get<'a> as "get" {
        /// Of which keyspace.
        keyspace: KeyspaceId,
        /// As of then; 0: now.
        revision: Revision,
        /// With or without the value.
        values: Values,
        /// The key.
        key: Rest<'a>,
    }
}

structure! {
    /// Reads keys, each as [`Get`] would.
    MultiGet<'a> as "multi get" {
        /// Of which keyspace.
        keyspace: KeyspaceId,
        /// As of then; 0: now.
        revision: Revision,
        /// With or without values.
        values: Values,
        /// The keys.
        keys: List<'a, &'a [u8]>,
    }
}

structure! {
    /// Reads a page of pairs.
    Scan<'a> as "scan" {
        /// Of which keyspace.
        keyspace: KeyspaceId,
        /// As of then; 0: now, or with a cursor what the first page showed.
        revision: Revision,
        /// At most so many pairs; 0: as many as fit.
        limit: u32,
        /// About so many bytes of keys and values; 0: as many as the server likes.
        max_bytes: u32,
        /// Which way.
        order: Order,
        /// With or without values.
        values: Values,
        /// Only keys that begin with this.
        prefix: &'a [u8],
        /// The lowest key wanted, whichever the order.
        start: Option<&'a [u8]>,
        /// The first key above those wanted, whichever the order.
        end: Option<&'a [u8]>,
        /// What the page before gave; empty for the first.
        cursor: &'a [u8],
    }
}

structure! {
    /// Lists what a key was, newest first.
    Versions<'a> as "versions" {
        /// Of which keyspace.
        keyspace: KeyspaceId,
        /// Only versions of before this revision; 0: all.
        before: Revision,
        /// At most so many.
        limit: u32,
        /// The key.
        key: Rest<'a>,
    }
}

structure! {
    /// Describes the keyspace of a name. Creating one is a command.
    FindKeyspace<'a> as "find keyspace" {
        /// Whether to count.
        count: Count,
        /// Its name.
        name: &'a str,
    }
}

structure! {
    /// Lists keyspaces by id.
    ListKeyspaces as "list keyspaces" {
        /// Those after this one; 0: from the first.
        after: KeyspaceId,
        /// At most so many.
        limit: u32,
    }
}

structure! {
    /// Describes a lease and its keys.
    FindLease as "find lease" {
        /// Which.
        lease: LeaseId,
        /// At most so many keys.
        limit: u32,
    }
}

structure! {
    /// Lists leases by id.
    ListLeases as "list leases" {
        /// Those after this one; 0: from the first.
        after: LeaseId,
        /// At most so many.
        limit: u32,
    }
}

structure! {
    /// A key as it was read.
    Value<'a> as "value" {
        /// The level of all that the answer shows.
        durability: Durability,
        /// When it was written; 0: the key has no value.
        revision: Revision,
        /// Microseconds that it has left to live; 2^64-1: it does not end by itself.
        remaining: u64,
        /// The lease that it hangs on; 0: none.
        lease: LeaseId,
        /// Length of the value, also if it was not asked for.
        value_bytes: u64,
        /// The value.
        value: Rest<'a>,
    }
}

structure! {
    /// One of several keys that were read.
    Entry<'a> as "entry" {
        /// When it was written; 0: the key has no value.
        revision: Revision,
        /// Microseconds that it has left to live; 2^64-1: it does not end by itself.
        remaining: u64,
        /// The lease that it hangs on; 0: none.
        lease: LeaseId,
        /// Length of the value, also if it was not asked for.
        value_bytes: u64,
        /// The value.
        value: &'a [u8],
    }
}

structure! {
    /// Keys as they were read, in the order asked for.
    Entries<'a> as "entries" {
        /// The level of all that the answer shows.
        durability: Durability,
        /// One for each key.
        entries: List<'a, Entry<'a>>,
    }
}

structure! {
    /// A key and its value.
    Pair<'a> as "pair" {
        /// When it was written.
        revision: Revision,
        /// The key.
        key: &'a [u8],
        /// The value; empty if it was not asked for.
        value: &'a [u8],
    }
}

structure! {
    /// A page of a scan.
    Pairs<'a> as "pairs" {
        /// The level of all that the answer shows.
        durability: Durability,
        /// Which revision is shown.
        revision: Revision,
        /// Where the next page begins; empty at the end.
        cursor: &'a [u8],
        /// In the order asked for.
        pairs: List<'a, Pair<'a>>,
    }
}

choices! {
    /// What became of a version.
    VersionState as "version state" {
        /// It is there.
        Current = 0 "current",
        /// Its deadline has passed, and it is about to be removed.
        Ended = 1 "ended",
        /// It was replaced.
        Overwritten = 2 "overwritten",
        /// It was deleted.
        Deleted = 3 "deleted",
        /// It was removed because its deadline had passed.
        Expired = 4 "expired",
    }
}

structure! {
    /// What a key was for a time.
    Version<'a> as "version" {
        /// What became of it.
        state: VersionState,
        /// Since then.
        revision: Revision,
        /// Until then, and without; 0 if it is there.
        until: Revision,
        /// When that was, in space time; 0 if it is there.
        until_time: SpaceTime,
        /// The value.
        value: &'a [u8],
    }
}

structure! {
    /// Versions of a key, newest first.
    VersionList<'a> as "version list" {
        /// The level of all that the answer shows.
        durability: Durability,
        /// From here on all versions of the key are kept.
        oldest: Revision,
        /// Older ones are found before this; 0: there are none.
        next: Revision,
        /// Those asked for.
        versions: List<'a, Version<'a>>,
    }
}

structure! {
    /// A keyspace.
    Keyspace<'a> as "keyspace" {
        /// Its id, by which commands name it. Never used for another one.
        id: KeyspaceId,
        /// When it was created, in space time.
        created: SpaceTime,
        /// What it does beyond storing.
        config: KeyspaceConfig,
        /// Its name.
        name: &'a str,
    }
}

structure! {
    /// What a keyspace holds.
    KeyspaceCounts as "keyspace counts" {
        /// Keys.
        keys: u64,
        /// Bytes of keys and values.
        bytes: u64,
        /// Whether both are exact.
        exact: bool,
        /// Whether rows of deleted keys wait to be removed.
        sweeping: bool,
    }
}

structure! {
    /// A keyspace, and what it holds if that was asked for.
    KeyspaceFound<'a> as "keyspace found" {
        /// The keyspace.
        keyspace: Keyspace<'a>,
        /// What it holds.
        counts: Option<KeyspaceCounts>,
    }
}

structure! {
    /// Keyspaces by id.
    KeyspaceList<'a> as "keyspace list" {
        /// Whether there are more behind the last.
        more: bool,
        /// Those asked for.
        keyspaces: List<'a, Keyspace<'a>>,
    }
}

structure! {
    /// A lease.
    Lease as "lease" {
        /// Its id.
        id: LeaseId,
        /// Microseconds that it lives without being kept alive.
        ttl: u64,
        /// When it ends unless it is kept alive, in space time.
        deadline: SpaceTime,
        /// Microseconds until then.
        remaining: u64,
        /// About how many keys hang on it.
        keys: u32,
    }
}

structure! {
    /// A key that hangs on a lease.
    LeaseKey<'a> as "lease key" {
        /// The keyspace's name.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
    }
}

structure! {
    /// A lease and its keys.
    LeaseFound<'a> as "lease found" {
        /// The level of all that the answer shows.
        durability: Durability,
        /// The lease.
        lease: Lease,
        /// Whether more keys hang on it.
        more: bool,
        /// By keyspace and key.
        keys: List<'a, LeaseKey<'a>>,
    }
}

structure! {
    /// Leases by id.
    LeaseList<'a> as "lease list" {
        /// The level of all that the answer shows.
        durability: Durability,
        /// Whether there may be more behind the last.
        more: bool,
        /// Those asked for.
        leases: List<'a, Lease>,
    }
}
