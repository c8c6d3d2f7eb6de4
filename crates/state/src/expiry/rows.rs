//! The rows of deadlines, of leases and of keys attached to leases.
//!
//! Owns: the encoding of a value's expiry, the rows that list deadlines in order of time (`08`), leases (`09`) and
//! the keys attached to them (`0a`), and the rule by which a key is hidden. Does not own: the removal of ended
//! keys, or time.
//!
//! ```text
//! expiry         := deadline u64 | lease u64          2^64-1: no deadline; 0: no lease
//! 08 | deadline u64 BE | keyspace u32 BE | user key   := nothing
//! 08 | deadline u64 BE | 0 u32 | lease u64 BE         := nothing
//! 09 | lease u64 BE                                   := ttl u64 | deadline u64 | keys u32
//! 0a | lease u64 BE | keyspace u32 BE | user key      := nothing
//! ```
//! Values are little-endian, times in microseconds of space time.
//!
//! Invariants: a value with a deadline has its `08` row, a value with a lease its `0a` row, and a lease its `08` row.
//! The reverse does not hold: a blind put or delete reads nothing, so it leaves the index rows of the value that it
//! replaces. Such a stale row is detected by reading its key, and is then removed. Ended keys that are not removed yet
//! are hidden: a key is visible at a time if its deadline and its lease's deadline are after that time.

use std::time::Duration;

use thalweg_store::View;
use thalweg_types::{
    KeyspaceId, LeaseId, SpaceTime,
    codec::{Malformed, Reader},
    info::LeaseInfo,
    limits::{MAX_KEY_BYTES, MAX_STALE_ROW_BYTES},
};

use crate::{
    error::MachineError,
    keys::{DATA_PREFIX_LEN, KeyRange, TAG_ATTACHED, TAG_DATA, TAG_DEADLINE, TAG_LEASE},
};

/// Deadline and lease of a value. The value ends at the earlier of its deadline and the end of its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Deadline of the value; `None` if it has none.
    pub deadline: Option<SpaceTime>,
    /// Lease of the value; `None` if it has none.
    pub lease: Option<LeaseId>,
}

/// Number that represents no deadline in a row; every deadline is below it.
const NO_DEADLINE: u64 = u64::MAX;

impl Expiry {
    pub(crate) const ENCODED_LEN: usize = 16;

    /// Expiry of a value that does not expire: it has no deadline and no lease.
    pub const NEVER: Self = Self { deadline: None, lease: None };

    pub(crate) fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        out[..8].copy_from_slice(&self.deadline.map_or(NO_DEADLINE, SpaceTime::micros).to_le_bytes());
        out[8..].copy_from_slice(&self.lease.map_or(0, LeaseId::get).to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: [u8; Self::ENCODED_LEN]) -> Self {
        let number = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        Self {
            deadline: Some(number(0)).filter(|&deadline| deadline != NO_DEADLINE).map(SpaceTime),
            lease: Some(number(8)).filter(|&lease| lease != 0).map(LeaseId),
        }
    }

    /// Returns true if a value with this expiry has not ended at `time`; `lease` looks up its lease. Conditions,
    /// transactions, reads and scans all use this rule.
    #[inline]
    pub(crate) fn is_live<E>(
        &self,
        time: SpaceTime,
        lease: impl FnOnce(LeaseId) -> Result<Option<Lease>, E>,
    ) -> Result<bool, E> {
        if self.deadline.is_some_and(|deadline| deadline <= time) {
            return Ok(false);
        }
        match self.lease {
            None => Ok(true),
            Some(id) => Ok(lease(id)?.is_some_and(|lease| lease.is_live(time))),
        }
    }
}

/// A lease: a deadline that a client keeps moving ahead. The keys attached to a lease end with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Time from a grant or keep-alive of the lease to its deadline.
    pub(crate) ttl: Duration,
    /// Time at which the lease ends unless a client keeps it alive before.
    pub(crate) deadline: SpaceTime,
    /// Number of index rows of keys attached to the lease. A stale row counts until it is removed.
    pub(crate) keys: u32,
}

impl Lease {
    const ENCODED_LEN: usize = 20;

    /// Returns true if the lease has not ended at `time`.
    pub(crate) fn is_live(&self, time: SpaceTime) -> bool {
        self.deadline > time
    }

    /// Describes the lease to a reader whose time is `now`.
    pub(crate) fn describe(&self, id: LeaseId, now: SpaceTime) -> LeaseInfo {
        let remaining = Duration::from_micros(self.deadline.0.saturating_sub(now.0));
        LeaseInfo { id, ttl: self.ttl, deadline: self.deadline, remaining, keys: self.keys }
    }

    pub(crate) fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        let ttl = u64::try_from(self.ttl.as_micros()).unwrap_or(u64::MAX);
        out[..8].copy_from_slice(&ttl.to_le_bytes());
        out[8..16].copy_from_slice(&self.deadline.0.to_le_bytes());
        out[16..].copy_from_slice(&self.keys.to_le_bytes());
        out
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(row, 0);
        let lease = Self {
            ttl: Duration::from_micros(reader.u64("lease TTL")?),
            deadline: SpaceTime(reader.u64("lease deadline")?),
            keys: reader.u32("key count")?,
        };
        if reader.is_empty() { Ok(lease) } else { Err(Malformed { at: Self::ENCODED_LEN, expected: "end of the row" }) }
    }

    /// Loads a lease from a view, even if the lease has ended; `None` if it has no row.
    pub(crate) fn in_view(view: &dyn View, id: LeaseId) -> Result<Option<Self>, MachineError> {
        Self::from_row(id, view.get(&lease_row(id)).map_err(MachineError::from))
    }

    pub(crate) fn from_row(
        id: LeaseId,
        row: Result<Option<bytes::Bytes>, MachineError>,
    ) -> Result<Option<Self>, MachineError> {
        let Some(row) = row? else { return Ok(None) };
        let corrupt = |_| MachineError::corrupt("lease", &lease_row(id), "row of a wrong length");
        Self::decode(&row).map(Some).map_err(corrupt)
    }
}

/// Content of an index row for expiry: the deadline of a key or lease, or a key that is attached to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadlineSubject<'a> {
    /// The index row of a key's deadline.
    Key { deadline: SpaceTime, keyspace: KeyspaceId, key: &'a [u8] },
    /// The index row of a lease's deadline.
    Lease { deadline: SpaceTime, id: LeaseId },
    /// The row of a key that is attached to a lease. The key is deleted when the lease ends.
    Attached { lease: LeaseId, keyspace: KeyspaceId, key: &'a [u8] },
}

impl<'a> DeadlineSubject<'a> {
    /// Decodes the key of an index row. Returns `None` unless it is the row of a deadline or of a key attached to a
    /// lease.
    pub(crate) fn of_row(row: &'a [u8]) -> Option<Self> {
        let (&tag, rest) = row.split_first()?;
        let (first, rest) = rest.split_first_chunk().map(|(first, rest)| (u64::from_be_bytes(*first), rest))?;
        let (keyspace, key) = rest.split_first_chunk().map(|(id, key)| (KeyspaceId(u32::from_be_bytes(*id)), key))?;
        match (tag, keyspace.0) {
            (TAG_DEADLINE, 0) => {
                let id = LeaseId(u64::from_be_bytes(key.try_into().ok()?));
                Some(Self::Lease { deadline: SpaceTime(first), id })
            }
            (TAG_DEADLINE, _) => Some(Self::Key { deadline: SpaceTime(first), keyspace, key }),
            (TAG_ATTACHED, 1..) => Some(Self::Attached { lease: LeaseId(first), keyspace, key }),
            _ => None,
        }
    }
}

/// Number of bytes before the user key in an index row: the tag, the deadline or lease id, and the keyspace id.
const PREFIX_LEN: usize = 13;

/// Returns the beginning of the index row of a key's deadline; the user key follows.
pub(crate) fn deadline_prefix(deadline: SpaceTime, keyspace: KeyspaceId) -> [u8; PREFIX_LEN] {
    prefix(TAG_DEADLINE, deadline.0, keyspace)
}

/// Returns the key of the index row of a lease's deadline.
pub(crate) fn lease_deadline_row(deadline: SpaceTime, id: LeaseId) -> [u8; 21] {
    let mut row = [0; 21];
    row[..PREFIX_LEN].copy_from_slice(&deadline_prefix(deadline, KeyspaceId::ZERO));
    row[PREFIX_LEN..].copy_from_slice(&id.0.to_be_bytes());
    row
}

/// Returns the row key under which a lease is stored.
pub(crate) fn lease_row(id: LeaseId) -> [u8; 9] {
    let mut row = [TAG_LEASE; 9];
    row[1..].copy_from_slice(&id.0.to_be_bytes());
    row
}

/// Returns the beginning of the index row of a key attached to a lease; the user key follows.
pub(crate) fn attached_prefix(lease: LeaseId, keyspace: KeyspaceId) -> [u8; PREFIX_LEN] {
    prefix(TAG_ATTACHED, lease.0, keyspace)
}

fn prefix(tag: u8, first: u64, keyspace: KeyspaceId) -> [u8; PREFIX_LEN] {
    let mut prefix = [tag; PREFIX_LEN];
    prefix[1..9].copy_from_slice(&first.to_be_bytes());
    prefix[9..].copy_from_slice(&keyspace.0.to_be_bytes());
    prefix
}

/// Returns the range of the index rows of all keys attached to a lease.
pub(crate) fn attached_rows(lease: LeaseId) -> KeyRange {
    let mut prefix = [TAG_ATTACHED; 9];
    prefix[1..].copy_from_slice(&lease.0.to_be_bytes());
    KeyRange::with_prefix(&prefix)
}

/// Decodes the lease id from the key of a lease's row.
pub(crate) fn lease_of_row(row: &[u8]) -> Option<LeaseId> {
    Some(LeaseId(u64::from_be_bytes(row.get(1..)?.try_into().ok()?)))
}

const _: () = assert!(TAG_DATA != TAG_DEADLINE && DATA_PREFIX_LEN < PREFIX_LEN);
const _: () = assert!(PREFIX_LEN + MAX_KEY_BYTES == MAX_STALE_ROW_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_pinned() {
        let expiry = Expiry { deadline: Some(SpaceTime(0x0102)), lease: Some(LeaseId(3)) };
        assert_eq!(&expiry.encode(), b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
        assert_eq!(&Expiry::NEVER.encode(), b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0");
        for expiry in [expiry, Expiry::NEVER, Expiry { lease: None, ..expiry }, Expiry { deadline: None, ..expiry }] {
            assert_eq!(Expiry::decode(expiry.encode()), expiry);
        }
        let lease = Lease { ttl: Duration::from_micros(0x0102), deadline: SpaceTime(3), keys: 4 };
        let row = b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0";
        assert_eq!((&lease.encode(), Lease::decode(row)), (row, Ok(lease)));
        assert_eq!(lease_row(LeaseId(258)), *b"\x09\0\0\0\0\0\0\x01\x02");
        assert_eq!(lease_of_row(&lease_row(LeaseId(258))), Some(LeaseId(258)));
        assert_eq!(deadline_prefix(SpaceTime(258), KeyspaceId(7)), *b"\x08\0\0\0\0\0\0\x01\x02\0\0\0\x07");
        assert_eq!(attached_prefix(LeaseId(258), KeyspaceId(7)), *b"\x0a\0\0\0\0\0\0\x01\x02\0\0\0\x07");
        let of_lease = lease_deadline_row(SpaceTime(258), LeaseId(9));
        assert_eq!(of_lease, *b"\x08\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\0\0\0\0\0\x09");
    }

    #[test]
    fn rows_are_read_back_and_others_are_told() {
        let row = [&deadline_prefix(SpaceTime(5), KeyspaceId(7)), b"key".as_slice()].concat();
        let (deadline, keyspace) = (SpaceTime(5), KeyspaceId(7));
        assert_eq!(DeadlineSubject::of_row(&row), Some(DeadlineSubject::Key { deadline, keyspace, key: b"key" }));
        let row = lease_deadline_row(deadline, LeaseId(9));
        assert_eq!(DeadlineSubject::of_row(&row), Some(DeadlineSubject::Lease { deadline, id: LeaseId(9) }));
        let row = [&attached_prefix(LeaseId(9), keyspace), b"".as_slice()].concat();
        assert_eq!(
            DeadlineSubject::of_row(&row),
            Some(DeadlineSubject::Attached { lease: LeaseId(9), keyspace, key: b"" })
        );
        let attached_to_none = attached_prefix(LeaseId(9), KeyspaceId(0));
        let short_lease = deadline_prefix(deadline, KeyspaceId(0));
        for bad in [b"".as_slice(), b"\x08", b"\x09\0\0\0\0\0\0\0\x01", &attached_to_none, &short_lease, &[0x10; 30]] {
            assert_eq!(DeadlineSubject::of_row(bad), None, "{bad:?}");
        }
        for bad in [b"".as_slice(), &[0; 19], &[0; 21]] {
            assert!(Lease::decode(bad).is_err());
        }
    }

    #[test]
    fn a_key_ends_at_its_deadline_or_with_its_lease() {
        let lease = |deadline| Lease { ttl: Duration::ZERO, deadline: SpaceTime(deadline), keys: 0 };
        let live = |deadline: Option<u64>, of_lease: Option<Option<u64>>, at| {
            let expiry = Expiry { deadline: deadline.map(SpaceTime), lease: of_lease.is_some().then_some(LeaseId(1)) };
            let looked_up = of_lease.flatten().map(lease);
            expiry.is_live(SpaceTime(at), |_| Ok::<_, ()>(looked_up)).unwrap()
        };
        assert!(live(None, None, u64::MAX));
        assert!(live(Some(10), None, 9) && !live(Some(10), None, 10));
        assert!(live(None, Some(Some(10)), 9) && !live(None, Some(Some(10)), 10));
        assert!(!live(None, Some(None), 0), "a lease that is gone has ended");
        assert!(!live(Some(5), Some(Some(10)), 7) && !live(Some(10), Some(Some(5)), 7));
    }
}
