//! Scans of an optimistic transaction: their results, and the range of keys that they have read.
//!
//! A scan returns the pairs of the transaction's view merged with the transaction's own writes. The range that counts
//! as read ends where the scan ended: with a limit, at the last returned pair. Only pairs of the view count as read,
//! because the transaction's own writes are invisible to other clients.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
};

use bytes::Bytes;
use thalweg_types::{KeyspaceId, Revision, command::UnchangedRange, key_order::after_prefix, limits::MAX_KEY_BYTES};

use crate::{
    error::ReadError,
    keyspace::{Keyspace, ScanItem},
    scan_range::{Order, ScanRange},
};

/// A key, with the id of its keyspace.
pub(super) type Key = (KeyspaceId, Vec<u8>);

/// Pairs of keys and values that a scan returns.
pub(super) type Pairs = Vec<(Bytes, Bytes)>;

/// A range of keys that a transaction has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadRange {
    pub(super) keyspace: KeyspaceId,
    /// Lowest key of the range.
    pub(super) start: Vec<u8>,
    /// Exclusive upper bound of the range; `None` for the end of the keyspace.
    pub(super) end: Option<Vec<u8>>,
    /// Number of key-value pairs that the transaction's view has in the range.
    pub(super) count: u32,
}

impl ReadRange {
    /// Returns the condition that the range has not changed since the revision `since`.
    pub(super) fn unchanged(&self, since: Revision) -> UnchangedRange<'_> {
        UnchangedRange { end: self.end.as_deref(), since, count: self.count }
    }

    /// Returns a scan of the range without values.
    pub(super) fn as_scan(&self) -> ScanRange {
        ScanRange {
            start: Bound::Included(self.start.clone()),
            end: self.end.clone().map_or(Bound::Unbounded, Bound::Excluded),
            values: crate::scan_range::Values::Omit,
            ..ScanRange::default()
        }
    }
}

/// Returns the pairs of `range` that a transaction sees, and the range that counts as read. `writes` are the
/// transaction's own writes; `stored` scans its view.
pub(super) fn scan(
    keyspace: &Keyspace,
    range: &ScanRange,
    writes: &BTreeMap<Key, Option<Bytes>>,
    stored: impl FnOnce(&mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>) -> Result<(), ReadError>,
) -> Result<(Pairs, Option<ReadRange>), ReadError> {
    let (start, end) = bounds(range);
    let limit = range.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if limit == 0 || end.as_ref().is_some_and(|end| *end <= start) {
        return Ok((Vec::new(), None));
    }
    let lower = (keyspace.id(), start.clone());
    let own = writes
        .range(lower..)
        .take_while(|((id, key), _)| *id == keyspace.id() && end.as_ref().is_none_or(|end| key < end));
    let mut own: Vec<(&[u8], &Option<Bytes>)> = own.map(|((_, key), write)| (&key[..], write)).collect();
    let before = match range.order {
        // The loop takes keys from the end of the list.
        Order::Ascending => {
            own.reverse();
            Ordering::Less
        }
        Order::Descending => Ordering::Greater,
    };
    let mut seen = ScannedSoFar { pairs: Vec::new(), limit, last: None, count: 0 };
    stored(&mut |item| {
        while let Some(&(key, write)) = own.last().filter(|(key, _)| (*key).cmp(item.key) == before) {
            own.pop();
            if seen.push(key, write.as_ref()).is_break() {
                return ControlFlow::Break(());
            }
        }
        seen.count = seen.count.saturating_add(1);
        match own.pop_if(|(key, _)| *key == item.key) {
            Some((key, write)) => seen.push(key, write.as_ref()),
            None => seen.push(item.key, Some(&Bytes::copy_from_slice(item.value))),
        }
    })?;
    while seen.last.is_none()
        && let Some((key, write)) = own.pop()
    {
        let _ = seen.push(key, write.as_ref());
    }
    let mut read = ReadRange { keyspace: keyspace.id(), start, end, count: seen.count };
    match (seen.last, range.order) {
        (None, _) => {}
        (Some(last), Order::Ascending) => read.end = successor(last),
        (Some(last), Order::Descending) => read.start = last,
    }
    Ok((seen.pairs, Some(read)))
}

/// Results that a transaction's scan has collected so far.
struct ScannedSoFar {
    pairs: Pairs,
    limit: usize,
    /// Key at which the scan reached its limit; `None` before.
    last: Option<Vec<u8>>,
    /// Number of key-value pairs of the transaction's view that the scan has passed.
    count: u32,
}

impl ScannedSoFar {
    fn push(&mut self, key: &[u8], value: Option<&Bytes>) -> ControlFlow<()> {
        let Some(value) = value else { return ControlFlow::Continue(()) };
        self.pairs.push((Bytes::copy_from_slice(key), value.clone()));
        if self.pairs.len() < self.limit {
            return ControlFlow::Continue(());
        }
        self.last = Some(key.to_vec());
        ControlFlow::Break(())
    }
}

/// Returns the lowest key and the exclusive upper bound of a range.
fn bounds(range: &ScanRange) -> (Vec<u8>, Option<Vec<u8>>) {
    let start = match &range.start {
        Bound::Unbounded => Some(Vec::new()),
        Bound::Included(key) => Some(key.clone()),
        Bound::Excluded(key) => successor(key.clone()),
    };
    let end = match &range.end {
        Bound::Unbounded => None,
        Bound::Included(key) => successor(key.clone()),
        Bound::Excluded(key) => Some(key.clone()),
    };
    let after = after_prefix(&range.prefix);
    let end = end.into_iter().chain(after).min();
    match start {
        Some(start) => (start.max(range.prefix.clone()), end),
        // The range begins above every key, so it is empty.
        None => (Vec::new(), Some(Vec::new())),
    }
}

/// Returns the lowest possible key above `key`; `None` if there is none.
fn successor(mut key: Vec<u8>) -> Option<Vec<u8>> {
    if key.len() >= MAX_KEY_BYTES {
        return after_prefix(&key);
    }
    key.push(0);
    Some(key)
}
