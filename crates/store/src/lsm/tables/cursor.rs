//! Walking over a run of tables, in either direction.
//!
//! Owns: [`RunCursor`]: from bounds to the first pair, and from pair to pair, a block at a time. Keys
//! and values are borrowed from the block. Does not own: merging runs, or hiding deletes.
//!
//! Invariant: the tables of a run don't overlap and ascend, and a table holds each key once.

use std::{ops::Bound, sync::Arc};

use super::{block::DataBlock, table::Table};
use crate::backend::{BackendError, Direction, Visit};

/// The bounds and direction of a scan.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    /// Where it begins, in key order.
    pub lower: Bound<&'a [u8]>,
    /// Where it ends, in key order.
    pub upper: Bound<&'a [u8]>,
    /// Which end it starts from.
    pub direction: Direction,
    /// What becomes of the blocks that it reads from files.
    pub reads: Reads,
}

/// Whether blocks are likely to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// They are kept in memory.
    Again,
    /// They are not.
    Once,
}

impl Span<'_> {
    fn begins_after(&self, key: &[u8]) -> bool {
        match self.lower {
            Bound::Unbounded => false,
            Bound::Included(lower) => key < lower,
            Bound::Excluded(lower) => key <= lower,
        }
    }

    fn ends_before(&self, key: &[u8]) -> bool {
        match self.upper {
            Bound::Unbounded => false,
            Bound::Included(upper) => key > upper,
            Bound::Excluded(upper) => key >= upper,
        }
    }
}

/// A place in a run. It stands on a pair until [`advance`](Self::advance) says that there is none.
pub struct RunCursor<'a> {
    tables: &'a [Arc<Table>],
    span: Span<'a>,
    /// The current block: its table, its number within it.
    table: usize,
    number: usize,
    block: Arc<DataBlock>,
    /// Items of the current block that are within the span and not yet passed, the current one included.
    left: std::ops::Range<usize>,
    /// Whether the span ends within the current block.
    is_last: bool,
}

impl<'a> RunCursor<'a> {
    /// Stands on the first pair within the span, if there is one.
    pub fn open(tables: &'a [Arc<Table>], span: Span<'a>) -> Result<Option<Self>, BackendError> {
        let Some((table, number)) = first_block(tables, &span) else { return Ok(None) };
        let block = tables[table].block(number, span.reads)?;
        let mut cursor = Self { tables, span, table, number, block, left: 0..0, is_last: false };
        cursor.enter_block();
        Ok(cursor.settle()?.then_some(cursor))
    }

    /// The current key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.block.key(self.current())
    }

    /// The current value; `None` if the key was deleted.
    #[inline]
    pub fn value(&self) -> Option<&[u8]> {
        self.block.value(self.current())
    }

    #[inline]
    fn current(&self) -> usize {
        match self.span.direction {
            Direction::Forward => self.left.start,
            Direction::Reverse => self.left.end - 1,
        }
    }

    /// Goes to the next pair; false if that was the last.
    #[inline]
    pub fn advance(&mut self) -> Result<bool, BackendError> {
        match self.span.direction {
            Direction::Forward => self.left.start += 1,
            Direction::Reverse => self.left.end -= 1,
        }
        if self.left.is_empty() { self.settle() } else { Ok(true) }
    }

    /// Visits the pairs from the current one on, until there is none or `visit` breaks: a block at a time,
    /// which is cheaper than to ask for each.
    pub fn walk(&mut self, visit: &mut Visit<'_>) -> Result<(), BackendError> {
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

    /// Makes the current pair one within the span, going to further blocks if this one has none left.
    fn settle(&mut self) -> Result<bool, BackendError> {
        while self.left.is_empty() {
            if self.is_last || !self.next_block() {
                return Ok(false);
            }
            self.block = self.tables[self.table].block(self.number, self.span.reads)?;
            self.enter_block();
        }
        Ok(true)
    }

    /// Finds which of the block's items are within the span.
    fn enter_block(&mut self) {
        let table = &*self.tables[self.table];
        let index = table.index();
        // All keys of the block are above the last of the block before it, and at most its own last.
        let cut_below = match self.number.checked_sub(1) {
            Some(before) => self.span.begins_after(index.end_key(before)) && self.span.lower != Bound::Unbounded,
            None => self.span.begins_after(table.min_key()),
        };
        let cut_above = self.span.ends_before(index.end_key(self.number));
        let start = match self.span.lower {
            Bound::Included(key) if cut_below => self.block.rank(key, false),
            Bound::Excluded(key) if cut_below => self.block.rank(key, true),
            _ => 0,
        };
        let end = match self.span.upper {
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

    fn next_block(&mut self) -> bool {
        match self.span.direction {
            Direction::Forward if self.number + 1 < self.tables[self.table].index().len() => self.number += 1,
            Direction::Forward if self.table + 1 < self.tables.len() => (self.table, self.number) = (self.table + 1, 0),
            Direction::Reverse if self.number > 0 => self.number -= 1,
            Direction::Reverse if self.table > 0 => {
                self.table -= 1;
                self.number = self.tables[self.table].index().len() - 1;
            }
            _ => return false,
        }
        true
    }
}

/// The block that holds the first pair of the span in its direction, or from which on it is to be looked for.
fn first_block(tables: &[Arc<Table>], span: &Span<'_>) -> Option<(usize, usize)> {
    match span.direction {
        Direction::Forward => {
            let table = tables.partition_point(|table| span.begins_after(table.max_key()));
            let index = tables.get(table)?.index();
            let number = match span.lower {
                Bound::Unbounded => Some(0),
                Bound::Included(key) => index.first_ending_at_or_after(key),
                Bound::Excluded(key) => index.first_ending_after(key),
            };
            Some((table, number.unwrap_or(index.len() - 1)))
        }
        Direction::Reverse => {
            let table = tables.partition_point(|table| !span.ends_before(table.min_key())).checked_sub(1)?;
            let index = tables[table].index();
            let number = match span.upper {
                Bound::Unbounded => None,
                Bound::Included(key) | Bound::Excluded(key) => index.first_ending_at_or_after(key),
            };
            Some((table, number.unwrap_or(index.len() - 1)))
        }
    }
}
