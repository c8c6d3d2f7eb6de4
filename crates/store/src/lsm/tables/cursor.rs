//! A cursor over a sorted run of tables, in either direction.
//!
//! Owns: [`RunCursor`], which finds the first pair within bounds and moves from pair to pair, one block at a time.
//! Keys and values are borrowed from the block. Does not own: merging runs, or hiding deletes.
//!
//! After a scan has read [`BLOCKS_BEFORE_AHEAD`] consecutive blocks from files, it is expected to continue. If its
//! thread may wait for the disk, it then asks the kernel to read the next blocks in advance. The kernel does this by
//! itself only for a single forward reader of a file. Here several readers share the file of a table, which defeats its
//! detection.
//!
//! Invariant: the tables of a run ascend and don't overlap, and a table contains each key once.

use std::{ops::Bound, sync::Arc};

use thalweg_types::budget;

use super::{block::DataBlock, table::Table};
use crate::{
    backend::{BackendError, Direction, Visit},
    cursor::Cursor,
    span::SpanOf,
};

/// A position in a sorted run of tables. The cursor is positioned on a pair until [`advance`](Cursor::advance) returns
/// false. `T` is the list of tables and `K` the type of the scan's bounds; each is either borrowed or shared.
#[derive(Clone)]
pub struct RunCursor<T, K> {
    tables: T,
    span: SpanOf<K>,
    /// Index in the sorted run of the table with the current block. `number` is the number of the block within this
    /// table.
    table: usize,
    number: usize,
    block: Arc<DataBlock>,
    /// Items of the current block that are within the bounds of the scan and not visited yet, including the current
    /// item.
    left: std::ops::Range<usize>,
    /// True if the bounds of the scan end within the current block, so that no further block is needed.
    is_last: bool,
    /// Number of consecutive blocks, up to the current one, that were not in the cache.
    loaded: usize,
    /// Number of blocks of the table, including the current one, that the kernel was asked to read and the scan has not
    /// passed.
    ahead: usize,
}

/// Number of consecutive blocks that a scan reads from files before it reads ahead.
const BLOCKS_BEFORE_AHEAD: usize = 4;

/// A cursor that borrows the tables of the sorted run and the bounds of the scan.
pub(crate) type BorrowedRunCursor<'a> = RunCursor<&'a [Arc<Table>], &'a [u8]>;
/// A cursor that keeps the tables of the sorted run open.
pub(crate) type OwnedRunCursor = RunCursor<Arc<[Arc<Table>]>, Arc<[u8]>>;

impl<T: AsRef<[Arc<Table>]>, K: AsRef<[u8]>> RunCursor<T, K> {
    /// Opens a cursor on the first pair within the span; returns `None` if the span contains no pair.
    pub fn open(tables: T, span: SpanOf<K>) -> Result<Option<Self>, BackendError> {
        let Some((table, number)) = first_block(tables.as_ref(), &span) else { return Ok(None) };
        let block = tables.as_ref()[table].block(number, span.reads)?;
        let mut cursor = Self { tables, span, table, number, block, left: 0..0, is_last: false, loaded: 0, ahead: 0 };
        cursor.enter_block();
        Ok(cursor.settle()?.then_some(cursor))
    }

    #[inline]
    fn current(&self) -> usize {
        match self.span.direction {
            Direction::Forward => self.left.start,
            Direction::Reverse => self.left.end - 1,
        }
    }

    /// Loads further blocks until the current block has an item within the bounds of the scan. Returns false if no such
    /// item is left.
    fn settle(&mut self) -> Result<bool, BackendError> {
        while self.left.is_empty() {
            if self.is_last || !self.next_block() {
                return Ok(false);
            }
            self.read_ahead();
            self.block = self.tables.as_ref()[self.table].block(self.number, self.span.reads)?;
            self.enter_block();
        }
        Ok(true)
    }

    /// Returns the number of the current block in its table.
    #[cfg(test)]
    pub(super) fn block_number(&self) -> usize {
        self.number
    }

    /// Returns the number of blocks, including the current one, that the kernel was asked to read.
    #[cfg(test)]
    pub(super) fn blocks_ahead(&self) -> usize {
        self.ahead
    }

    /// If the current block is not in the cache and the scan has read enough consecutive blocks from files, asks the
    /// kernel to read this block and the next ones. Does not wait.
    fn read_ahead(&mut self) {
        let table = &*self.tables.as_ref()[self.table];
        self.ahead = self.ahead.saturating_sub(1);
        if table.holds(self.number) {
            self.loaded = 0;
            return;
        }
        self.loaded += 1;
        if self.loaded > BLOCKS_BEFORE_AHEAD && self.ahead == 0 && budget::may_wait() {
            self.ahead = table.read_ahead(self.number, self.span.direction);
        }
    }

    /// Determines which items of the current block are within the bounds of the scan.
    fn enter_block(&mut self) {
        let table = &*self.tables.as_ref()[self.table];
        let index = table.index();
        // All keys of the block are greater than the end key of the previous block, and at most the block's own end
        // key.
        let cut_below = match self.number.checked_sub(1) {
            Some(before) => self.span.begins_after(index.end_key(before)) && self.span.lower() != Bound::Unbounded,
            None => self.span.begins_after(table.min_key()),
        };
        let cut_above = self.span.ends_before(index.end_key(self.number));
        let start = match self.span.lower() {
            Bound::Included(key) if cut_below => self.block.rank(key, false),
            Bound::Excluded(key) if cut_below => self.block.rank(key, true),
            _ => 0,
        };
        let end = match self.span.upper() {
            Bound::Included(key) if cut_above => self.block.rank(key, true),
            Bound::Excluded(key) if cut_above => self.block.rank(key, false),
            _ => self.block.len(),
        };
        self.left = start..end.max(start);
        self.is_last = match self.span.direction {
            Direction::Forward => cut_above,
            Direction::Reverse => cut_below,
        };
    }

    /// Moves to the next block in the direction of the scan. Returns false if the sorted run ends, or if the next table
    /// is outside the bounds of the scan.
    fn next_block(&mut self) -> bool {
        let tables = self.tables.as_ref();
        match self.span.direction {
            Direction::Forward if self.number + 1 < tables[self.table].index().len() => self.number += 1,
            Direction::Forward => match tables.get(self.table + 1) {
                Some(next) if !self.span.ends_before(next.min_key()) => (self.table, self.number) = (self.table + 1, 0),
                _ => return false,
            },
            Direction::Reverse if self.number > 0 => self.number -= 1,
            Direction::Reverse => {
                match self.table.checked_sub(1) {
                    Some(next) if !self.span.begins_after(tables[next].max_key()) => self.table = next,
                    _ => return false,
                }
                self.number = tables[self.table].index().len() - 1;
            }
        }
        true
    }
}

impl<T: AsRef<[Arc<Table>]>, K: AsRef<[u8]>> Cursor for RunCursor<T, K> {
    #[inline]
    fn key(&self) -> &[u8] {
        self.block.key(self.current())
    }

    #[inline]
    fn value(&self) -> Option<&[u8]> {
        self.block.value(self.current())
    }

    #[inline]
    fn advance(&mut self) -> Result<bool, BackendError> {
        match self.span.direction {
            Direction::Forward => self.left.start += 1,
            Direction::Reverse => self.left.end -= 1,
        }
        if self.left.is_empty() { self.settle() } else { Ok(true) }
    }

    /// Visits the remaining pairs one block at a time, which is cheaper than advancing to each pair.
    fn walk(&mut self, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        loop {
            if self.block.visit(self.left.clone(), self.span.direction, visit).is_break() {
                return Ok(());
            }
            self.left = 0..0;
            if !self.settle()? {
                return Ok(());
            }
        }
    }
}

/// Returns the table and the block at which a search for the span's first pair begins, in the span's direction. The
/// pair is in this block or in a later one. Returns `None` without reading a block if no table overlaps the span.
fn first_block<K: AsRef<[u8]>>(tables: &[Arc<Table>], span: &SpanOf<K>) -> Option<(usize, usize)> {
    match span.direction {
        Direction::Forward => {
            let table = tables.partition_point(|table| span.begins_after(table.max_key()));
            let first = tables.get(table).filter(|table| !span.ends_before(table.min_key()))?;
            let index = first.index();
            let number = match span.lower() {
                Bound::Unbounded => Some(0),
                Bound::Included(key) => index.first_ending_at_or_after(key),
                Bound::Excluded(key) => index.first_ending_after(key),
            };
            Some((table, number.unwrap_or(index.len() - 1)))
        }
        Direction::Reverse => {
            let table = tables.partition_point(|table| !span.ends_before(table.min_key())).checked_sub(1)?;
            let index = tables[table].index();
            if span.begins_after(tables[table].max_key()) {
                return None;
            }
            let number = match span.upper() {
                Bound::Unbounded => None,
                Bound::Included(key) | Bound::Excluded(key) => index.first_ending_at_or_after(key),
            };
            Some((table, number.unwrap_or(index.len() - 1)))
        }
    }
}
