//! Exact counts of keyspaces that ask for them.
//!
//! Owns the rows and what is counted: rows of keys, and the bytes of their keys and values. A row of a
//! deleted prefix counts until it is swept, and one past its deadline until it is removed: while such rows
//! are there the figures are an upper bound, and said to be no more.
//!
//! ```text
//! counts := keys u64 | bytes u64               little-endian, at key 07 | keyspace u32 BE
//! ```

use std::collections::BTreeMap;

use thalweg_types::KeyspaceId;

use crate::{
    backend::{View, WriteBatch},
    keys::{self, KeyRange},
    machine::MachineError,
};

/// What a keyspace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// What one write makes of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountChange {
    pub(crate) keys: i64,
    pub(crate) bytes: i64,
}

impl CountChange {
    /// Of a row of a key that had a value of `before` bytes and has one of `after`.
    pub(crate) fn of(key: &[u8], before: Option<usize>, after: Option<usize>) -> Self {
        let bytes = |value: Option<usize>| value.map_or(0, |value| (key.len() + value) as i64);
        Self { keys: i64::from(after.is_some()) - i64::from(before.is_some()), bytes: bytes(after) - bytes(before) }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.bytes += other.bytes;
    }
}

impl Counts {
    pub(crate) fn change(&mut self, change: CountChange) {
        self.keys = self.keys.saturating_add_signed(change.keys);
        self.bytes = self.bytes.saturating_add_signed(change.bytes);
    }

    pub(crate) fn write(&self, keyspace: KeyspaceId, batch: &mut WriteBatch) {
        batch.put(&[&keys::counts_row(keyspace)], &[&self.keys.to_le_bytes(), &self.bytes.to_le_bytes()]);
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let (keys, bytes) = row.split_first_chunk::<8>()?;
        Some(Self { keys: u64::from_le_bytes(*keys), bytes: u64::from_le_bytes(bytes.try_into().ok()?) })
    }
}

/// The counts of all keyspaces that have some.
pub(crate) fn load(view: &dyn View) -> Result<BTreeMap<KeyspaceId, Counts>, MachineError> {
    let mut all = BTreeMap::new();
    crate::machine::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_COUNTS]), |key, row| {
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
    use crate::backend::Change;

    #[test]
    fn layout_is_pinned() {
        let mut batch = WriteBatch::new();
        let counts = Counts { keys: 1, bytes: 0x0203 };
        counts.write(KeyspaceId(5), &mut batch);
        let row = b"\x01\0\0\0\0\0\0\0\x03\x02\0\0\0\0\0\0";
        assert_eq!(batch.changes().next(), Some(Change::Put(b"\x07\0\0\0\x05", row)));
        assert_eq!(Counts::decode(row), Some(counts));
        assert_eq!((Counts::decode(&row[1..]), Counts::decode(&[0; 17])), (None, None));
    }

    #[test]
    fn a_write_changes_what_it_replaces() {
        let mut counts = Counts::default();
        for (before, after) in [(None, Some(10)), (Some(10), Some(3)), (None, None), (Some(3), None)] {
            counts.change(CountChange::of(b"key", before, after));
        }
        assert_eq!(counts, Counts::default());
        counts.change(CountChange::of(b"key", None, Some(4)));
        assert_eq!(counts, Counts { keys: 1, bytes: 7 });
    }
}
