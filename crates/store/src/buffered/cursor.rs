//! A cursor over the pairs of a view, merged from memtables and the store.
//!
//! Owns: [`MergedCursor`], which merges the same sources as a scan of the view, but returns one pair at a time and
//! borrows nothing. A source is a memtable or a sorted run of the store. Does not own: the order of the sources.
//!
//! Invariants: `sources` are ordered newest first. While the cursor is on a pair, `leader` is the newest source that
//! has the cursor's key, and all other sources are past this key. `second` is the other source whose key comes first in
//! the order of the scan.

use std::{cmp::Ordering, sync::Arc};

use super::{owned_source::OwnedSource, store::StoreView};
use crate::{
    backend::{BackendError, Direction, PairCursor, bounds_are_empty},
    cursor::Cursor,
    memtable::{BatchNumber, Memtable, MemtableCursor},
    merge::{order, settle_leader},
    passed::note_passed,
    span::{OwnedSpan, Span},
};

/// A cursor over the merged pairs of memtables and of the store behind them; see the [module](self).
#[derive(Clone)]
struct MergedCursor<C> {
    sources: Vec<OwnedSource<C>>,
    direction: Direction,
    /// Index of the source on whose pair the cursor is positioned; `None` before the first pair and after the last one.
    leader: Option<usize>,
    second: Option<usize>,
}

/// Opens a cursor over the pairs within the span, merged from memtables and from the view of a store. `memtables` are
/// ordered newest first, each with the number of its last visible batch. Returns `None` if the store cannot create
/// cursors that own their data.
pub(super) fn open<'a, V: StoreView>(
    memtables: impl Iterator<Item = (&'a Arc<Memtable>, BatchNumber)>,
    stored: &V,
    span: Span<'_>,
) -> Result<Option<Box<dyn PairCursor>>, BackendError> {
    let mut sources = Vec::new();
    if !bounds_are_empty(span.lower, span.upper) {
        let span: OwnedSpan = span.to_owned();
        let found = memtables.filter_map(|(memtable, upto)| MemtableCursor::open(memtable, &span, upto));
        sources.extend(found.map(OwnedSource::Memtable));
        sources.reserve(stored.run_count());
        if !stored.add_owned_sources(&span, &mut sources)? {
            return Ok(None);
        }
    }
    let direction = span.direction;
    Ok(Some(Box::new(MergedCursor { sources, direction, leader: None, second: None })))
}

impl<C: Cursor> MergedCursor<C> {
    /// Moves to the next key, including deleted keys. Returns false if there is no next key.
    #[inline]
    fn next_key(&mut self) -> Result<bool, BackendError> {
        if let Some(leader) = self.leader {
            if !self.sources[leader].advance()? {
                self.sources.remove(leader);
            } else if self.second.is_none_or(|second| self.order(leader, second).is_lt()) {
                return Ok(true);
            }
        }
        self.settle()
    }

    /// Determines the source whose key comes first (`leader`), and the other source whose key comes next (`second`).
    /// Called after sources have moved. Returns false if all sources are at their end.
    fn settle(&mut self) -> Result<bool, BackendError> {
        self.leader = settle_leader(&mut self.sources, self.direction)?;
        self.second = self.leader.and_then(|leader| {
            let others = (0..self.sources.len()).filter(|other| *other != leader);
            others.min_by(|left, right| self.order(*left, *right))
        });
        Ok(self.leader.is_some())
    }

    #[inline]
    fn order(&self, left: usize, right: usize) -> Ordering {
        order(&self.sources[left], &self.sources[right], self.direction)
    }
}

impl<C: Cursor + Clone + Send + Sync + 'static> PairCursor for MergedCursor<C> {
    #[inline]
    fn advance(&mut self) -> Result<bool, BackendError> {
        while self.next_key()? {
            if self.leader.is_some_and(|leader| self.sources[leader].value().is_some()) {
                return Ok(true);
            }
            if note_passed().is_break() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    #[inline]
    fn pair(&self) -> Option<(&[u8], &[u8])> {
        let source = &self.sources[self.leader?];
        Some((source.key(), source.value()?))
    }

    fn boxed_clone(&self) -> Box<dyn PairCursor> {
        Box::new(self.clone())
    }
}

/// Cursor type for stores that cannot create cursors that own their data. No value of this type exists.
#[derive(Clone, Copy, Debug)]
#[cfg(any(feature = "redb", feature = "sqlite"))]
pub enum NoCursor {}

#[cfg(any(feature = "redb", feature = "sqlite"))]
impl Cursor for NoCursor {
    fn key(&self) -> &[u8] {
        match *self {}
    }

    fn value(&self) -> Option<&[u8]> {
        match *self {}
    }

    fn advance(&mut self) -> Result<bool, BackendError> {
        match *self {}
    }
}
