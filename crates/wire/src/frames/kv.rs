//! Frames that read keyspaces, keys and leases, and the replies to them. Writes are commands, see
//! [`write`](super::write).
//!
//! Owns: the contents of these frames. Does not own: their numbers and senders (`mod`), or the descriptions that other
//! interfaces share (`thalweg_types::info`).

use std::time::Duration;

pub use thalweg_types::info::{Keyspace, KeyspaceCounts};
use thalweg_types::{
    Durability, KeyspaceId, LeaseId, Revision, SpaceTime,
    codec::{List, RemainingBytes, choices, structure},
    info::LeaseInfo,
};

choices! {
    /// Choice whether the reply to a read contains values.
    Values as "values" {
        /// The reply contains values.
        Include = 0 "include",
        /// The reply contains no values. This makes the read cheaper if the values are in the log.
        Omit = 1 "omit",
    }
}

choices! {
    /// Direction in which a scan returns keys.
    Order as "order" {
        /// Lowest key first.
        Ascending = 0 "ascending",
        /// Highest key first.
        Descending = 1 "descending",
    }
}

choices! {
    /// Choice whether the description of a keyspace includes the number of keys.
    Count as "count" {
        /// The reply contains no count of keys.
        Skip = 0 "skip",
        /// The reply contains the count of keys and bytes. If the keyspace keeps no exact counts, the server reads up
        /// to 100,000 keys to estimate them.
        Estimate = 1 "estimate",
    }
}

structure! {
    /// Reads a key of a keyspace.
    Get<'a> as "get" {
        /// Id of the keyspace to read.
        keyspace: KeyspaceId,
        /// Revision at which to read the key; 0 reads the present state. A revision is the number of a successful
        /// commit.
        revision: Revision,
        /// Choice whether the reply contains the value.
        values: Values,
        /// Key to read.
        key: RemainingBytes<'a>,
    }
}

structure! {
    /// Reads several keys of a keyspace, each like [`Get`].
    MultiGet<'a> as "multi get" {
        /// Id of the keyspace to read.
        keyspace: KeyspaceId,
        /// Revision at which to read the keys; 0 reads the present state.
        revision: Revision,
        /// Choice whether the reply contains values.
        values: Values,
        /// Keys to read.
        keys: List<'a, &'a [u8]>,
    }
}

structure! {
    /// Reads a page of a keyspace's pairs in key order.
    Scan<'a> as "scan" {
        /// Id of the keyspace to scan.
        keyspace: KeyspaceId,
        /// Revision at which to read. With 0 the first page reads the present state, and pages with a cursor read at
        /// the revision of the first page.
        revision: Revision,
        /// Maximum number of pairs in the page; 0 selects as many as fit.
        limit: u32,
        /// Approximate maximum of bytes of keys and values; 0 selects the server's default.
        max_bytes: u32,
        /// Direction of the scan.
        order: Order,
        /// Choice whether the reply contains values.
        values: Values,
        /// Prefix of all keys to return.
        prefix: &'a [u8],
        /// Lowest key to return, in either direction.
        start: Option<&'a [u8]>,
        /// Exclusive upper bound of the keys to return, in either direction.
        end: Option<&'a [u8]>,
        /// Cursor that the previous page returned; empty for the first page.
        cursor: &'a [u8],
    }
}

structure! {
    /// Requests the past and present versions of a key, newest first.
    Versions<'a> as "versions" {
        /// Id of the keyspace that has the key.
        keyspace: KeyspaceId,
        /// Exclusive upper bound of the revisions whose versions to list; 0 lists all versions.
        before: Revision,
        /// Maximum number of versions in the reply.
        limit: u32,
        /// Key whose versions to list.
        key: RemainingBytes<'a>,
    }
}

structure! {
    /// Requests the description of a keyspace by its name. Creating a keyspace is a command.
    FindKeyspace<'a> as "find keyspace" {
        /// Choice whether the reply includes the number of keys.
        count: Count,
        /// Name of the keyspace to find.
        name: &'a str,
    }
}

structure! {
    /// Requests a page of keyspaces, ordered by id.
    ListKeyspaces as "list keyspaces" {
        /// Id of the last keyspace of the previous page; 0 for the first page.
        after: KeyspaceId,
        /// Maximum number of keyspaces in the page.
        limit: u32,
    }
}

structure! {
    /// Requests the description of a lease and the keys attached to it.
    FindLease as "find lease" {
        /// Id of the lease to find.
        lease: LeaseId,
        /// Maximum number of the lease's keys in the reply.
        limit: u32,
    }
}

structure! {
    /// Requests a page of leases, ordered by id.
    ListLeases as "list leases" {
        /// Id of the last lease of the previous page; 0 for the first page.
        after: LeaseId,
        /// Maximum number of leases in the page.
        limit: u32,
    }
}

structure! {
    /// Reply to [`Get`]: a key with its value.
    Value<'a> as "value" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Revision of the commit that wrote the value; 0 means that the key has no value.
        revision: Revision,
        /// Remaining time to live in microseconds; 2^64-1 means that the key has no deadline.
        remaining: u64,
        /// Lease that the key is attached to; 0 for none.
        lease: LeaseId,
        /// Length of the value in bytes, even if the request excluded the value itself.
        value_bytes: u64,
        /// Value of the key; empty if the request excluded values.
        value: RemainingBytes<'a>,
    }
}

structure! {
    /// One key of an [`Entries`] reply.
    Entry<'a> as "entry" {
        /// Revision of the commit that wrote the value; 0 means that the key has no value.
        revision: Revision,
        /// Remaining time to live in microseconds; 2^64-1 means that the key has no deadline.
        remaining: u64,
        /// Lease that the key is attached to; 0 for none.
        lease: LeaseId,
        /// Length of the value in bytes, even if the request excluded the value itself.
        value_bytes: u64,
        /// Value of the key; empty if the request excluded values.
        value: &'a [u8],
    }
}

structure! {
    /// Reply to [`MultiGet`]: keys with their values, in the requested order.
    Entries<'a> as "entries" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// One entry for each requested key.
        entries: List<'a, Entry<'a>>,
    }
}

structure! {
    /// A key and its value, as an item of a [`Pairs`] reply.
    Pair<'a> as "pair" {
        /// Revision of the commit that wrote the value.
        revision: Revision,
        /// Key of the pair.
        key: &'a [u8],
        /// Value of the pair; empty if the request excluded values.
        value: &'a [u8],
    }
}

structure! {
    /// Reply to [`Scan`]: a page of pairs.
    Pairs<'a> as "pairs" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Revision whose state the page shows.
        revision: Revision,
        /// Cursor with which to request the next page; empty after the last page.
        cursor: &'a [u8],
        /// Pairs of the page, in the requested key order.
        pairs: List<'a, Pair<'a>>,
    }
}

choices! {
    /// State of a version of a key.
    VersionState as "version state" {
        /// The version is the present value of its key.
        Current = 0 "current",
        /// The version's deadline has passed, and the server will soon remove the version.
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
        /// Revision of the commit that wrote the version.
        revision: Revision,
        /// First revision at which the version no longer was the key's value; 0 if the version is current.
        until: Revision,
        /// Time of the commit that ended the version, in microseconds since 1970 by the clock that all nodes share; 0
        /// if the version is current.
        until_time: SpaceTime,
        /// Value that the key had in this version.
        value: &'a [u8],
    }
}

structure! {
    /// Reply to [`Versions`]: versions of a key, newest first.
    VersionList<'a> as "version list" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Lowest revision since which the server keeps all versions of the key.
        oldest: Revision,
        /// Value for the field `before` of the request for the next, older page; 0 means that there are no older
        /// versions.
        next: Revision,
        /// Versions in the page.
        versions: List<'a, Version<'a>>,
    }
}

structure! {
    /// Reply to [`FindKeyspace`]: the description of a keyspace.
    KeyspaceFound as "keyspace found" {
        /// Description of the keyspace.
        keyspace: Keyspace,
        /// Number and size of the keyspace's keys, if the request asked for counts.
        counts: Option<KeyspaceCounts>,
    }
}

structure! {
    /// Reply to [`ListKeyspaces`]: a page of keyspaces.
    KeyspaceList<'a> as "keyspace list" {
        /// True if more keyspaces follow after this page.
        more: bool,
        /// Keyspaces in the page, ordered by id.
        keyspaces: List<'a, Keyspace>,
    }
}

structure! {
    /// Description of a lease, with time spans as numbers: the encoded form of [`LeaseInfo`].
    Lease as "lease" {
        /// Id of the described lease.
        id: LeaseId,
        /// Time for which a keep-alive extends the lease, in microseconds.
        ttl: u64,
        /// Time at which the lease ends unless a keep-alive arrives, in microseconds since 1970 by the clock that all
        /// nodes share.
        deadline: SpaceTime,
        /// Time until the lease ends unless a keep-alive arrives, in microseconds.
        remaining: u64,
        /// Approximate number of keys attached to the lease.
        keys: u32,
    }
}

impl From<&LeaseInfo> for Lease {
    fn from(info: &LeaseInfo) -> Self {
        let LeaseInfo { id, ttl, deadline, remaining, keys } = *info;
        Self { id, ttl: micros(ttl), deadline, remaining: micros(remaining), keys }
    }
}

impl From<Lease> for LeaseInfo {
    fn from(Lease { id, ttl, deadline, remaining, keys }: Lease) -> Self {
        Self { id, ttl: Duration::from_micros(ttl), deadline, remaining: Duration::from_micros(remaining), keys }
    }
}

/// Returns a time span in microseconds, at most `u64::MAX`.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

structure! {
    /// A key that is attached to a lease.
    LeaseKey<'a> as "lease key" {
        /// Name of the keyspace that has the key.
        keyspace: &'a str,
        /// Key within the keyspace.
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
        /// True if more keys are attached to the lease than the reply lists.
        more: bool,
        /// Keys attached to the lease, ordered by keyspace and key.
        keys: List<'a, LeaseKey<'a>>,
    }
}

structure! {
    /// Reply to [`ListLeases`]: a page of leases.
    LeaseList<'a> as "lease list" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// True if more leases may follow after this page.
        more: bool,
        /// Leases in the page, ordered by id.
        leases: List<'a, Lease>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_comes_back_from_its_encoded_form() {
        let info = LeaseInfo {
            id: LeaseId(9),
            ttl: Duration::from_micros(30_000_001),
            deadline: SpaceTime(7),
            remaining: Duration::ZERO,
            keys: 3,
        };
        assert_eq!(LeaseInfo::from(Lease::from(&info)), info);
        assert_eq!(Lease::from(&LeaseInfo { ttl: Duration::MAX, ..info }).ttl, u64::MAX);
    }
}
