//! Exact counts of the keyspaces that are configured for them.
//!
//! Owns: the counts rows, and what they include: rows of keys, and the bytes of their keys and values. A row of a
//! deleted prefix is counted until it is swept, and one after its deadline until it is removed. While such rows exist
//! the counts are an upper bound, and are reported as such. Deleting all keys of a keyspace sets its counts to zero.
//!
//! Counting requires reading the row that a write replaces. So this file also detects that a write removes the last
//! reference to a Redis hash or stream (`CountChange::trash`).
//!
//! ```text
//! counts := keys u64 | bytes u64 | collections u64               little-endian, at key 07 | keyspace u32 BE
//! ```

use std::collections::BTreeMap;

use thalweg_redis::CollectionId;
use thalweg_store::{View, WriteBatch};
use thalweg_types::KeyspaceId;

use crate::{
    error::MachineError,
    keys::{self, KeyRange},
    keyspaces::values::StoredRef,
};

/// Exact counts of a keyspace's keys and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of keys in the keyspace.
    pub keys: u64,
    /// Bytes of all keys and values. A Redis hash or stream counts with the bytes of its key and its meta data only,
    /// without its fields or entries.
    pub bytes: u64,
    /// Number of keys that refer to a Redis hash or stream.
    pub collections: u64,
}

/// Effect of one write on the exact counts of its keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountChange {
    pub(crate) keys: i64,
    pub(crate) bytes: i64,
    pub(crate) collections: i64,
    /// Redis collection (hash or stream) that no key refers to after the write; its parts must be removed.
    pub(crate) trash: Option<CollectionId>,
}

/// Properties of a value that the exact counts of a keyspace include.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountedValue {
    pub(crate) value_bytes: usize,
    pub(crate) collection: Option<CollectionId>,
}

impl CountedValue {
    /// Creates the counted properties of a plain value, which is not a Redis collection.
    pub(crate) fn bytes(value_bytes: usize) -> Self {
        Self { value_bytes, collection: None }
    }
}

impl From<StoredRef<'_>> for CountedValue {
    fn from(value: StoredRef<'_>) -> Self {
        Self { value_bytes: value.value_len(), collection: value.collection() }
    }
}

impl CountChange {
    /// Computes how the counts change if a key's value changes from `before` to `after`; `None` means that the key has
    /// no value.
    pub(crate) fn of(key: &[u8], before: Option<CountedValue>, after: Option<CountedValue>) -> Self {
        let bytes = |held: Option<CountedValue>| held.map_or(0, |held| (key.len() + held.value_bytes) as i64);
        let collection = |held: Option<CountedValue>| held.and_then(|held| held.collection);
        let count = |held| i64::from(collection(held).is_some());
        Self {
            keys: i64::from(after.is_some()) - i64::from(before.is_some()),
            bytes: bytes(after) - bytes(before),
            collections: count(after) - count(before),
            trash: collection(before).filter(|before| collection(after) != Some(*before)),
        }
    }

    /// Computes how the counts change if all keys of a keyspace with these `counts` are deleted.
    pub(crate) fn of_emptying(counts: Counts) -> Self {
        let minus = |count: u64| 0_i64.saturating_sub_unsigned(count);
        let Counts { keys, bytes, collections } = counts;
        Self { keys: minus(keys), bytes: minus(bytes), collections: minus(collections), trash: None }
    }
}

impl Counts {
    pub(crate) fn change(&mut self, change: CountChange) {
        self.keys = self.keys.saturating_add_signed(change.keys);
        self.bytes = self.bytes.saturating_add_signed(change.bytes);
        self.collections = self.collections.saturating_add_signed(change.collections);
    }

    pub(crate) fn write(&self, keyspace: KeyspaceId, batch: &mut WriteBatch) {
        let [keys, bytes, collections] = [self.keys, self.bytes, self.collections].map(u64::to_le_bytes);
        batch.put(&[&keys::counts_row(keyspace)], &[&keys, &bytes, &collections]);
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let (fields, rest) = row.as_chunks::<8>();
        let [keys, bytes, collections] = <[_; 3]>::try_from(fields).ok()?.map(u64::from_le_bytes);
        rest.is_empty().then_some(Self { keys, bytes, collections })
    }

    /// Loads the exact counts of a keyspace from a view; zero if no counts are stored for it.
    pub(crate) fn in_view(view: &dyn View, keyspace: KeyspaceId) -> Result<Self, MachineError> {
        let key = keys::counts_row(keyspace);
        let Some(row) = view.get(&key)? else { return Ok(Self::default()) };
        Self::decode(&row).ok_or_else(|| MachineError::corrupt("counts", &key, "row of a wrong length"))
    }
}

/// Loads the exact counts of all keyspaces that have a counts row.
pub(crate) fn load(view: &dyn View) -> Result<BTreeMap<KeyspaceId, Counts>, MachineError> {
    let mut all = BTreeMap::new();
    crate::rows::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_COUNTS]), |key, row| {
        let corrupt = |message| MachineError::corrupt("counts", key, message);
        let keyspace = keys::id_of(key).map(KeyspaceId).ok_or_else(|| corrupt("key of a wrong length"))?;
        all.insert(keyspace, Counts::decode(row).ok_or_else(|| corrupt("row of a wrong length"))?);
        Ok(())
    })?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_store::Change;

    #[test]
    fn layout_is_pinned() {
        let mut batch = WriteBatch::new();
        let counts = Counts { keys: 1, bytes: 0x0203, collections: 4 };
        counts.write(KeyspaceId(5), &mut batch);
        let row = b"\x01\0\0\0\0\0\0\0\x03\x02\0\0\0\0\0\0\x04\0\0\0\0\0\0\0";
        assert_eq!(batch.changes().next(), Some(Change::Put(b"\x07\0\0\0\x05", row)));
        assert_eq!(Counts::decode(row), Some(counts));
        assert_eq!((Counts::decode(&row[1..]), Counts::decode(&[0; 25])), (None, None));
    }

    #[test]
    fn a_write_changes_what_it_replaces() {
        let mut counts = Counts::default();
        for (before, after) in [(None, Some(10)), (Some(10), Some(3)), (None, None), (Some(3), None)] {
            counts.change(CountChange::of(b"key", before.map(CountedValue::bytes), after.map(CountedValue::bytes)));
        }
        assert_eq!(counts, Counts::default());
        counts.change(CountChange::of(b"key", None, Some(CountedValue::bytes(4))));
        assert_eq!(counts, Counts { keys: 1, bytes: 7, collections: 0 });
        counts.change(CountChange::of_emptying(counts));
        assert_eq!(counts, Counts::default());
    }

    #[test]
    fn a_collection_goes_with_the_last_key_that_holds_it() {
        let [one, other] = [1, 2].map(|id| CountedValue { value_bytes: 2, collection: Some(CollectionId(id)) });
        let change = |before, after| CountChange::of(b"key", before, after);
        let expected = CountChange { keys: 1, bytes: 5, collections: 1, trash: None };
        assert_eq!(change(None, Some(one)), expected);
        assert_eq!(change(Some(one), Some(one)), CountChange::default());
        let (gone, replaced, overwritten) =
            (change(Some(one), None), change(Some(one), Some(other)), change(Some(one), Some(CountedValue::bytes(2))));
        assert_eq!([gone, replaced, overwritten].map(|change| change.trash), [one.collection; 3]);
        assert_eq!([gone, replaced, overwritten].map(|change| change.collections), [-1, 0, -1]);
    }
}
