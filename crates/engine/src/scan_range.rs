//! Ranges of keys for scans.

use std::ops::{Bound, RangeBounds};

use thalweg_state::keyspaces::{Collections, Fetch, ScanRange as StoredRange};
use thalweg_store::Direction;

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Order {
    /// The scan begins with the lowest key.
    #[default]
    Ascending,
    /// The scan begins with the highest key.
    Descending,
}

/// Range and options of a scan. The default is all keys, ascending, with values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRange {
    /// Prefix that all returned keys have (empty for all keys). The bounds apply in addition.
    pub prefix: Vec<u8>,
    /// Lower bound of the returned keys, in both directions of the scan.
    pub start: Bound<Vec<u8>>,
    /// Upper bound of the returned keys, in both directions of the scan.
    pub end: Bound<Vec<u8>>,
    /// Direction of the scan.
    pub order: Order,
    /// Maximum number of pairs that the scan returns; `None` for no maximum.
    pub limit: Option<u64>,
    /// Decides if the scan reads values.
    pub values: Values,
}

impl Default for ScanRange {
    fn default() -> Self {
        Self {
            prefix: Vec::new(),
            start: Bound::Unbounded,
            end: Bound::Unbounded,
            order: Order::default(),
            limit: None,
            values: Values::default(),
        }
    }
}

impl ScanRange {
    /// Creates a range of all keys that start with `prefix`.
    #[must_use]
    pub fn with_prefix(prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), ..Self::default() }
    }

    /// Returns true if the range contains `key`.
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        let bounds = (as_slice(&self.start), as_slice(&self.end));
        key.starts_with(&self.prefix) && RangeBounds::<[u8]>::contains(&bounds, key)
    }

    pub(crate) fn stored(&self) -> StoredRange<'_> {
        StoredRange {
            prefix: &self.prefix,
            start: as_slice(&self.start),
            end: as_slice(&self.end),
            direction: match self.order {
                Order::Ascending => Direction::Forward,
                Order::Descending => Direction::Reverse,
            },
            limit: self.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            fetch: match self.values {
                Values::Include => Fetch::Values,
                Values::Omit => Fetch::KeysOnly,
            },
            collections: Collections::Skip,
        }
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Decides if a scan reads values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Values {
    /// The scan returns each key with its value.
    #[default]
    Include,
    /// The scan returns empty values. This is cheaper for values that are stored only in the log.
    Omit,
}
