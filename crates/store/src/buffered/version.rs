//! A consistent view of the memtables and the store at one point in time.
//!
//! Owns: [`Version`], which consists of the memtable that takes writes, the sealed memtables that wait to be
//! persisted, and a view of the store beneath; and the reads over it. Does not own: the replacement of one version
//! by the next.
//!
//! Invariant: sources are ordered newest first. The store's view contains exactly the batches before those in
//! `sealed`.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;

use super::{cursor::StoreCursor, store::StoreView};
use crate::{
    backend::{Applied, BackendError, Direction, View, Visit, bounds_are_empty},
    memtable::{BatchNumber, Entry, Memtable},
    merge::{Source, merge},
};

/// A memtable that takes no more writes, and the position applied when it was sealed.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    pub memtable: Arc<Memtable>,
    pub applied: Applied,
}

/// An immutable set of memtables and a store's view; see the [module](self).
#[derive(Clone)]
pub(super) struct Version {
    pub active: Arc<Memtable>,
    /// Sealed memtables, newest first.
    pub sealed: Vec<Sealed>,
    pub stored: Arc<dyn StoreView>,
}

impl Version {
    /// Returns the newest value of a key up to a batch of the active memtable.
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

/// A version, restricted to the batches up to one batch.
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
