//! Keys of the rows with the parts of hashes and streams.

use std::ops::Bound;

use thalweg_redis::CollectionId;
use thalweg_types::KeyspaceId;

use crate::keys::{KeyRange, PART_PREFIX_LEN, part_prefix};

/// Returns the range of the rows of the parts between two names.
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

/// Returns the name of a part from its row's key.
pub(crate) fn name_of(row: &[u8]) -> &[u8] {
    row.get(PART_PREFIX_LEN..).unwrap_or_default()
}
