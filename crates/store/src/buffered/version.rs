//! A consistent view of the memtables and the store at one point in time.
//!
//! Owns: [`Version`], which consists of the memtable that takes writes, the sealed memtables that wait to be persisted,
//! and a view of the store behind them; and reads over a version. A version is immutable, except that its active
//! memtable grows. Does not own: the replacement of one version by the next.
//!
//! Invariants: sources are ordered newest first: `active`, then `sealed`, then the runs of the store's view. The
//! store's view contains exactly the batches before those in `sealed`. A version keeps its memtables in memory and
//! its pairs in the store while it exists.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use bytes::Bytes;
use thalweg_types::{budget, steps::read_bytes};

use super::{cursor, store::StoreView};
use crate::{
    backend::{Applied, BackendError, Direction, PairCursor, View, Visit, bounds_are_empty},
    memtable::{BatchNumber, Entry, Memtable, Range},
    merge::{Source, merge},
    passed::note_passed,
    span::{Reads, Span},
};

/// Minimum size in bytes of a large value. Each copy of a large value is charged to the [budget], which limits the work
/// of the thread's read.
const LARGE_BYTES: usize = 64 * 1024;

fn charge_copy(bytes: usize) -> ControlFlow<()> {
    budget::charge(read_bytes(bytes))
}

/// A sealed memtable (it takes no more writes), with the log position of the last batch applied to it.
#[derive(Clone, Debug)]
pub struct Sealed {
    pub memtable: Arc<Memtable>,
    pub applied: Applied,
}

/// An immutable set of memtables and a view of the store behind them; see the [module](self).
pub struct Version<V> {
    pub active: Arc<Memtable>,
    /// Sealed memtables that are not persisted yet, newest first.
    pub sealed: Vec<Sealed>,
    pub stored: Arc<V>,
}

impl<V> Clone for Version<V> {
    fn clone(&self) -> Self {
        Self { active: Arc::clone(&self.active), sealed: self.sealed.clone(), stored: Arc::clone(&self.stored) }
    }
}

impl<V: StoreView> Version<V> {
    /// Returns the newest value of a key. Ignores batches of the active memtable that are newer than batch `upto`.
    #[inline]
    pub fn get(&self, key: &[u8], upto: BatchNumber) -> Result<Option<Bytes>, BackendError> {
        match self.in_memory(key, upto) {
            // The budget is checked before the copy, so that a thread that serves many clients does not copy megabytes
            // for one of them. If the budget is spent, the caller drops this result.
            Some(Entry::Value(value)) if value.len() >= LARGE_BYTES && charge_copy(value.len()).is_break() => Ok(None),
            Some(Entry::Value(value)) => Ok(Some(Bytes::copy_from_slice(value))),
            Some(Entry::Deleted) => Ok(None),
            None => self.stored.get(key),
        }
    }

    /// Calls `show` with the newest value of a key, without copying a value that is in a memtable. Ignores the batches
    /// of the active memtable after batch `upto`.
    #[inline]
    pub fn look(&self, key: &[u8], upto: BatchNumber, show: &mut dyn FnMut(&[u8])) -> Result<(), BackendError> {
        match self.in_memory(key, upto) {
            Some(Entry::Value(value)) => show(value),
            Some(Entry::Deleted) => {}
            None => {
                if let Some(value) = self.stored.get(key)? {
                    show(&value);
                }
            }
        }
        Ok(())
    }

    /// Returns the newest entry of a key in the memtables; `None` if no memtable contains the key.
    #[inline]
    fn in_memory(&self, key: &[u8], upto: BatchNumber) -> Option<Entry<'_>> {
        let sealed = || self.sealed.iter().find_map(|sealed| sealed.memtable.get(key, BatchNumber::MAX));
        self.active.get(key, upto).or_else(sealed)
    }

    fn scan<'a>(&'a self, upto: BatchNumber, span: Span<'a>, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        if bounds_are_empty(span.lower, span.upper) {
            return Ok(());
        }
        let range = |memtable: &'a Memtable, upto| memtable.range(span.lower, span.upper, span.direction, upto);
        if self.sealed.is_empty() && self.stored.run_count() == 0 {
            scan_memtable(range(&self.active, upto), visit);
            return Ok(());
        }
        let mut sources = Vec::with_capacity(1 + self.sealed.len() + self.stored.run_count());
        sources.extend(Source::of_range(range(&self.active, upto)));
        for sealed in &self.sealed {
            sources.extend(Source::of_range(range(&sealed.memtable, BatchNumber::MAX)));
        }
        self.stored.add_sources(span, &mut sources)?;
        merge(sources, span.direction, visit)
    }
}

fn scan_memtable(range: Range<'_>, visit: &mut Visit<'_>) {
    for (key, entry) in range {
        match entry {
            Entry::Value(value) if visit(key, value).is_break() => return,
            Entry::Value(_) => {}
            Entry::Deleted if note_passed().is_break() => return,
            Entry::Deleted => {}
        }
    }
}

/// A view of a version (memtables and a view of the store). It shows the batches up to `upto` and no later ones.
pub(super) struct BufferedView<V> {
    pub version: Arc<Version<V>>,
    pub upto: BatchNumber,
    pub applied: Applied,
}

impl<V: StoreView> View for BufferedView<V> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.version.get(key, self.upto)
    }

    fn look(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<(), BackendError> {
        self.version.look(key, self.upto, show)
    }

    fn read_ahead(&self, key: &[u8]) {
        if self.version.in_memory(key, self.upto).is_none() {
            self.version.stored.read_ahead(key);
        }
    }

    fn scan(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        self.version.scan(self.upto, Span { lower, upper, direction, reads: Reads::Again }, visit)
    }

    fn scan_once(&self, lower: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        let (upper, direction) = (Bound::Unbounded, Direction::Forward);
        self.version.scan(self.upto, Span { lower, upper, direction, reads: Reads::Once }, visit)
    }

    fn cursor(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Option<Box<dyn PairCursor>>, BackendError> {
        let sealed = self.version.sealed.iter().map(|sealed| (&sealed.memtable, BatchNumber::MAX));
        let memtables = std::iter::once((&self.version.active, self.upto)).chain(sealed);
        let span = Span { lower, upper, direction, reads: Reads::Again };
        cursor::open(memtables, &*self.version.stored, span)
    }

    fn applied(&self) -> Applied {
        self.applied
    }
}
