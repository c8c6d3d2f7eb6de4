//! Frames that read keyspaces, keys and leases, and the replies to them. Writes are commands, see
//! [`write`](super::write).

pub use thalweg_types::info::Keyspace;
use thalweg_types::{
    Durability, KeyspaceId, LeaseId, Revision, SpaceTime,
    codec::{List, RemainingBytes, choices, structure},
};

choices! {
    /// Selection of values in a read.
    Values as "values" {
        /// The reply contains values.
        Include = 0 "include",
        /// The reply contains no values. This is cheaper where values stay in the log.
        Omit = 1 "omit",
    }
}

choices! {
    /// Direction of a scan.
    Order as "order" {
        /// Lowest key first.
        Ascending = 0 "ascending",
        /// Highest key first.
        Descending = 1 "descending",
    }
}

choices! {
    /// Counting of a keyspace's keys.
    Count as "count" {
        /// The reply contains no counts.
        Skip = 0 "skip",
        /// The reply contains counts. If the keyspace keeps no exact counts, the server reads up to 100,000 keys to
        /// estimate them.
        Estimate = 1 "estimate",
    }
}

structure! {
    /// Reads a key.
    Get<'a> as "get" {
        /// Id of the keyspace.
        keyspace: KeyspaceId,
        /// Revision to read at; 0 reads the present state.
        revision: Revision,
        /// Selection of the value.
        values: Values,
        /// Key to read.
        key: RemainingBytes<'a>,
    }
}

structure! {
    /// Reads several keys, each like [`Get`].
    MultiGet<'a> as "multi get" {
        /// Id of the keyspace.
        keyspace: KeyspaceId,
        /// Revision to read at; 0 reads the present state.
        revision: Revision,
        /// Selection of values.
        values: Values,
        /// Keys to read.
        keys: List<'a, &'a [u8]>,
    }
}

structure! {
    /// Reads a page of pairs.
    Scan<'a> as "scan" {
        /// Id of the keyspace.
        keyspace: KeyspaceId,
        /// Revision to read at. With 0 the first page reads the present state, and pages with a cursor read the first
        /// page's revision.
        revision: Revision,
        /// Maximum number of pairs; 0 selects as many as fit.
        limit: u32,
        /// Approximate maximum of bytes of keys and values; 0 selects the server's default.
        max_bytes: u32,
        /// Direction of the scan.
        order: Order,
        /// Selection of values.
        values: Values,
        /// Prefix of all keys to return.
        prefix: &'a [u8],
        /// Lowest key to return, in either direction.
        start: Option<&'a [u8]>,
        /// Exclusive upper bound of the keys to return, in either direction.
        end: Option<&'a [u8]>,
        /// Cursor of the previous page; empty for the first page.
        cursor: &'a [u8],
    }
}

structure! {
    /// Requests the versions of a key, newest first.
    Versions<'a> as "versions" {
        /// Id of the keyspace.
        keyspace: KeyspaceId,
        /// Exclusive upper bound of the revisions to list; 0 lists all versions.
        before: Revision,
        /// Maximum number of versions.
        limit: u32,
        /// Key whose versions to list.
        key: RemainingBytes<'a>,
    }
}

structure! {
    /// Requests the description of a keyspace by its name. Creating a keyspace is a command.
    FindKeyspace<'a> as "find keyspace" {
        /// Counting of the keys.
        count: Count,
        /// Name of the keyspace.
        name: &'a str,
    }
}

structure! {
    /// Requests a page of keyspaces, ordered by id.
    ListKeyspaces as "list keyspaces" {
        /// Last id of the previous page; 0 for the first page.
        after: KeyspaceId,
        /// Maximum number of keyspaces in the page.
        limit: u32,
    }
}

structure! {
    /// Requests the description of a lease and its keys.
    FindLease as "find lease" {
        /// Id of the lease.
        lease: LeaseId,
        /// Maximum number of keys.
        limit: u32,
    }
}

structure! {
    /// Requests a page of leases, ordered by id.
    ListLeases as "list leases" {
        /// Last id of the previous page; 0 for the first page.
        after: LeaseId,
        /// Maximum number of leases in the page.
        limit: u32,
    }
}

structure! {
    /// Reply to [`Get`]: a key as it was read.
    Value<'a> as "value" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Revision at which the value was written; 0 means that the key has no value.
        revision: Revision,
        /// Remaining time to live in microseconds; 2^64-1 means that the key has no deadline.
        remaining: u64,
        /// Lease that the key is attached to; 0 for none.
        lease: LeaseId,
        /// Length of the value in bytes, also if the value was not requested.
        value_bytes: u64,
        /// Value of the key; empty if it was not requested.
        value: RemainingBytes<'a>,
    }
}

structure! {
    /// One key of an [`Entries`] reply.
    Entry<'a> as "entry" {
        /// Revision at which the value was written; 0 means that the key has no value.
        revision: Revision,
        /// Remaining time to live in microseconds; 2^64-1 means that the key has no deadline.
        remaining: u64,
        /// Lease that the key is attached to; 0 for none.
        lease: LeaseId,
        /// Length of the value in bytes, also if the value was not requested.
        value_bytes: u64,
        /// Value of the key; empty if it was not requested.
        value: &'a [u8],
    }
}

structure! {
    /// Reply to [`MultiGet`]: keys as they were read, in the requested order.
    Entries<'a> as "entries" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// One entry for each key.
        entries: List<'a, Entry<'a>>,
    }
}

structure! {
    /// A key and its value.
    Pair<'a> as "pair" {
        /// Revision at which the value was written.
        revision: Revision,
        /// Key of the pair.
        key: &'a [u8],
        /// Value of the pair; empty if it was not requested.
        value: &'a [u8],
    }
}

structure! {
    /// Reply to [`Scan`]: a page of pairs.
    Pairs<'a> as "pairs" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Revision that the page shows.
        revision: Revision,
        /// Cursor of the next page; empty after the last page.
        cursor: &'a [u8],
        /// Pairs in the requested direction.
        pairs: List<'a, Pair<'a>>,
    }
}

choices! {
    /// State of a version of a key.
    VersionState as "version state" {
        /// The version is the key's present value.
        Current = 0 "current",
        /// The version's deadline has passed, and the server is about to remove it.
        Ended = 1 "ended",
        /// A newer put replaced the version.
        Overwritten = 2 "overwritten",
        /// A delete removed the version.
        Deleted = 3 "deleted",
        /// The server removed the version because its deadline had passed.
        Expired = 4 "expired",
    }
}

structure! {
    /// A version of a key: the value that the key had for some time.
    Version<'a> as "version" {
        /// State of the version.
        state: VersionState,
        /// Revision at which the version was written.
        revision: Revision,
        /// Revision that ended the version, exclusive; 0 if the version is current.
        until: Revision,
        /// Space time of that revision; 0 if the version is current.
        until_time: SpaceTime,
        /// Value of the version.
        value: &'a [u8],
    }
}

structure! {
    /// Reply to [`Versions`]: versions of a key, newest first.
    VersionList<'a> as "version list" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Oldest revision from which on all versions of the key are kept.
        oldest: Revision,
        /// Value of `before` that requests the next, older page; 0 means that there are no older versions.
        next: Revision,
        /// Versions of the page.
        versions: List<'a, Version<'a>>,
    }
}

structure! {
    /// Size of a keyspace.
    KeyspaceCounts as "keyspace counts" {
        /// Number of keys.
        keys: u64,
        /// Bytes of keys and values.
        bytes: u64,
        /// True if both figures are exact.
        exact: bool,
        /// True if rows of deleted keys still have to be removed.
        sweeping: bool,
    }
}

structure! {
    /// Reply to [`FindKeyspace`].
    KeyspaceFound as "keyspace found" {
        /// Description of the keyspace.
        keyspace: Keyspace,
        /// Size of the keyspace, if it was requested.
        counts: Option<KeyspaceCounts>,
    }
}

structure! {
    /// Reply to [`ListKeyspaces`].
    KeyspaceList<'a> as "keyspace list" {
        /// True if more keyspaces follow the last one.
        more: bool,
        /// Keyspaces of the page, ordered by id.
        keyspaces: List<'a, Keyspace>,
    }
}

structure! {
    /// Description of a lease.
    Lease as "lease" {
        /// Id of the lease.
        id: LeaseId,
        /// Time to live after each keep-alive, in microseconds.
        ttl: u64,
        /// Deadline unless a keep-alive arrives, in space time.
        deadline: SpaceTime,
        /// Microseconds until the deadline.
        remaining: u64,
        /// Approximate number of keys attached to the lease.
        keys: u32,
    }
}

structure! {
    /// A key that is attached to a lease.
    LeaseKey<'a> as "lease key" {
        /// Name of the keyspace.
        keyspace: &'a str,
        /// Key in the keyspace.
        key: &'a [u8],
    }
}

structure! {
    /// Reply to [`FindLease`]: a lease and its keys.
    LeaseFound<'a> as "lease found" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Description of the lease.
        lease: Lease,
        /// True if more keys are attached to the lease.
        more: bool,
        /// Keys attached to the lease, ordered by keyspace and key.
        keys: List<'a, LeaseKey<'a>>,
    }
}

structure! {
    /// Reply to [`ListLeases`].
    LeaseList<'a> as "lease list" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// True if more leases may follow the last one.
        more: bool,
        /// Leases of the page, ordered by id.
        leases: List<'a, Lease>,
    }
}
