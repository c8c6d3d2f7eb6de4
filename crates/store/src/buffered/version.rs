//! What a buffered state consists of at one moment.
//!
//! Owns: [`Version`]: the memtable that takes writes, the sealed ones that wait to be persisted, and a view
//! of the store beneath; and reads over them. Does not own: how versions follow one another.
//!
//! Invariant: newest first; the store's view holds exactly what the memtables before `sealed` held.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;

use super::{cursor::StoreCursor, store::StoreView};
use crate::{
    backend::{Applied, BackendError, Direction, View, Visit, bounds_are_empty},
    memtable::{BatchNumber, Entry, Memtable},
    merge::{Source, merge},
};

/// A memtable that takes no more writes, and what had been applied when it was sealed.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    pub memtable: Arc<Memtable>,
    pub applied: Applied,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Version {
    pub active: Arc<Memtable>,
    /// Newest first.
    pub sealed: Vec<Sealed>,
    pub stored: Arc<dyn StoreView>,
}

impl Version {
    /// The newest value of a key as of a batch of the active memtable.
    pub(super) fn get(&self, key: &[u8], upto: BatchNumber) -> Result<Option<Bytes>, BackendError> {
        let entry = self.active.get(key, upto);
        let sealed = || self.sealed.iter().find_map(|sealed| sealed.memtable.get(key, BatchNumber::MAX));
        match entry.or_else(sealed) {
            Some(Entry::Value(value)) => Ok(Some(Bytes::copy_from_slice(value))),
            Some(Entry::Deleted) => Ok(None),
            None => self.stored.get(key),
        }
    }

    fn scan(
        &self,
        upto: BatchNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        if bounds_are_empty(lower, upper) {
            return Ok(());
        }
        let mut sources = Vec::with_capacity(2 + self.sealed.len());
        sources.extend(Source::of_range(self.active.range(lower, upper, direction, upto)));
        for sealed in &self.sealed {
            sources.extend(Source::of_range(sealed.memtable.range(lower, upper, direction, BatchNumber::MAX)));
        }
        let stored = StoreCursor::open(&self.stored, lower, upper, direction)?;
        sources.extend(stored.map(|cursor| Source::Run(Box::new(cursor))));
        merge(sources, direction, visit)
    }
}

/// A version as of one batch.
pub(super) struct BufferedView {
    pub version: Arc<Version>,
    pub upto: BatchNumber,
    pub applied: Applied,
}

impl View for BufferedView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.version.get(key, self.upto)
    }

    fn scan(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        self.version.scan(self.upto, lower, upper, direction, visit)
    }

    fn applied(&self) -> Applied {
        self.applied
    }
}
