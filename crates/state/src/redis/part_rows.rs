//! Row keys of the parts of Redis collections: the fields of hashes and the entries of streams.

use std::ops::Bound;

use thalweg_redis::CollectionId;
use thalweg_types::KeyspaceId;

use crate::keys::{KeyRange, PART_PREFIX_LEN, part_prefix};

/// Returns the range of the row keys of a Redis collection's parts (fields or entries) whose names are within the
/// bounds.
pub(crate) fn parts_range(
    keyspace: KeyspaceId,
    id: CollectionId,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
) -> KeyRange {
    let prefix = part_prefix(keyspace, id);
    let full = |name: &[u8]| [&prefix, name].concat();
    let mut range = KeyRange::with_prefix(&prefix);
    if !matches!(lower, Bound::Unbounded) {
        range.set_lower(lower.map(full));
    }
    if !matches!(upper, Bound::Unbounded) {
        range.set_upper(upper.map(full));
    }
    range
}

/// Returns the name of a part (field or entry of a Redis collection) from the part's row key.
pub(crate) fn name_of(row: &[u8]) -> &[u8] {
    row.get(PART_PREFIX_LEN..).unwrap_or_default()
}
