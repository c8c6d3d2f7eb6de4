//! A consistent view of the memtables and tables at one point in time.
//!
//! Owns: [`Version`], which consists of the memtable that takes writes, the sealed memtables that wait for a flush,
//! and the tables; and the reads over it. Immutable, except that its active memtable grows.
//! Does not own: the replacement of one version by the next.
//!
//! Invariant: sources are ordered newest first: `active`, then `sealed`, then the runs of tables. A version keeps
//! its memtables in memory and its tables on disk while it exists.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;

use super::tables::{Found, RESERVED, Reads, RunCursor, Span, TableSet};
use crate::{
    backend::{Applied, BackendError, Direction, View, Visit, bounds_are_empty},
    memtable::{BatchNumber, Entry, Memtable, Range},
    merge::{Cursor, Source, merge},
};

impl Cursor for RunCursor<'_> {
    #[inline]
    fn key(&self) -> &[u8] {
        self.key()
    }

    #[inline]
    fn value(&self) -> Option<&[u8]> {
        self.value()
    }

    #[inline]
    fn advance(&mut self) -> Result<bool, BackendError> {
        self.advance()
    }

    fn walk(&mut self, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        self.walk(visit)
    }
}

/// A memtable that takes no more writes, and the position applied when it was sealed.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    pub memtable: Arc<Memtable>,
    pub applied: Applied,
}

/// An immutable set of memtables and tables; see the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub active: Arc<Memtable>,
    /// Sealed memtables, newest first.
    pub sealed: Vec<Sealed>,
    pub tables: Arc<TableSet>,
}

impl Version {
    /// Returns the newest value of a key up to a batch of the active memtable.
    #[inline]
    pub(super) fn get(&self, key: &[u8], upto: BatchNumber) -> Result<Option<Bytes>, BackendError> {
        match self.in_memory(key, upto) {
            Some(Entry::Value(value)) => Ok(Some(Bytes::copy_from_slice(value))),
            Some(Entry::Deleted) => Ok(None),
            None => self.in_tables(key),
        }
    }

    /// Passes the newest value of a key to `show` without copying it from a memtable.
    #[inline]
    pub(super) fn look(&self, key: &[u8], upto: BatchNumber, show: &mut dyn FnMut(&[u8])) -> Result<(), BackendError> {
        match self.in_memory(key, upto) {
            Some(Entry::Value(value)) => show(value),
            Some(Entry::Deleted) => {}
            None => {
                if let Some(value) = self.in_tables(key)? {
                    show(&value);
                }
            }
        }
        Ok(())
    }

    /// Returns the newest entry of a key in the memtables.
    #[inline]
    fn in_memory(&self, key: &[u8], upto: BatchNumber) -> Option<Entry<'_>> {
        let sealed = || self.sealed.iter().find_map(|sealed| sealed.memtable.get(key, BatchNumber::MAX));
        self.active.get(key, upto).or_else(sealed)
    }

    fn in_tables(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        if key.starts_with(RESERVED) {
            return Ok(None);
        }
        match self.tables.get(key)? {
            Some(Found::Value(value)) => Ok(Some(value)),
            Some(Found::Deleted) | None => Ok(None),
        }
    }

    pub(super) fn scan<'a>(
        &'a self,
        upto: BatchNumber,
        span: Span<'a>,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        if bounds_are_empty(span.lower, span.upper) {
            return Ok(());
        }
        if self.sealed.is_empty() && self.tables.is_empty() {
            scan_memtable(range(&self.active, &span, upto), visit);
            return Ok(());
        }
        let span = Span { upper: without_reserved(span.upper), ..span };
        let mut sources = Vec::with_capacity(1 + self.sealed.len() + self.tables.runs().len());
        sources.extend(Source::of_range(range(&self.active, &span, upto)));
        for sealed in &self.sealed {
            sources.extend(Source::of_range(range(&sealed.memtable, &span, BatchNumber::MAX)));
        }
        for run in self.tables.runs() {
            sources.extend(RunCursor::open(run.tables(), span)?.map(|cursor| Source::Run(Box::new(cursor))));
        }
        merge(sources, span.direction, visit)
    }
}

fn range<'a>(memtable: &'a Memtable, span: &Span<'a>, upto: BatchNumber) -> Range<'a> {
    memtable.range(span.lower, span.upper, span.direction, upto)
}

fn scan_memtable(range: Range<'_>, visit: &mut Visit<'_>) {
    for (key, entry) in range {
        if let Entry::Value(value) = entry
            && visit(key, value).is_break()
        {
            return;
        }
    }
}

/// Returns the bound, lowered if necessary to exclude the backend's reserved keys.
fn without_reserved(upper: Bound<&[u8]>) -> Bound<&[u8]> {
    match upper {
        Bound::Included(key) | Bound::Excluded(key) if key < RESERVED => upper,
        _ => Bound::Excluded(RESERVED),
    }
}

/// A version, restricted to the batches up to one batch.
pub(super) struct LsmView {
    pub version: Arc<Version>,
    pub upto: BatchNumber,
    pub applied: Applied,
}

impl View for LsmView {
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
        self.version.scan(self.upto, Span { lower, upper, direction, reads: Reads::Again }, visit)
    }

    fn scan_once(&self, lower: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        let (upper, direction) = (Bound::Unbounded, Direction::Forward);
        self.version.scan(self.upto, Span { lower, upper, direction, reads: Reads::Once }, visit)
    }

    fn applied(&self) -> Applied {
        self.applied
    }
}
