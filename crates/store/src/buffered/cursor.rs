//! A cursor over a store's view that reads one page at a time.
//!
//! Each page is a new search from the last key. So no lock or cursor of the store is held while the caller
//! processes a pair, and the caller may read the store again.

use std::{ops::Bound, sync::Arc};

use super::store::{Page, StoreView};
use crate::{
    backend::{BackendError, Direction},
    merge::Cursor,
};

/// A position in a view. It is on a pair until [`advance`](Cursor::advance) returns false.
pub(super) struct StoreCursor<'a> {
    view: &'a Arc<dyn StoreView>,
    lower: Bound<&'a [u8]>,
    upper: Bound<&'a [u8]>,
    direction: Direction,
    page: Page,
    at: usize,
}

impl<'a> StoreCursor<'a> {
    /// Opens a cursor on the first pair within the bounds; returns `None` if there is none.
    pub(super) fn open(
        view: &'a Arc<dyn StoreView>,
        lower: Bound<&'a [u8]>,
        upper: Bound<&'a [u8]>,
        direction: Direction,
    ) -> Result<Option<Self>, BackendError> {
        let mut page = Page::new();
        view.page(lower, upper, direction, &mut page)?;
        Ok((page.len() > 0).then_some(Self { view, lower, upper, direction, page, at: 0 }))
    }

    fn turn_page(&mut self) -> Result<bool, BackendError> {
        if !self.page.is_full() {
            return Ok(false);
        }
        let last = self.page.key(self.page.len() - 1).to_vec();
        let past = Bound::Excluded(last.as_slice());
        let (lower, upper) = match self.direction {
            Direction::Forward => (past, self.upper),
            Direction::Reverse => (self.lower, past),
        };
        self.page.turn();
        self.at = 0;
        self.view.page(lower, upper, self.direction, &mut self.page)?;
        Ok(self.page.len() > 0)
    }
}

impl Cursor for StoreCursor<'_> {
    fn key(&self) -> &[u8] {
        self.page.key(self.at)
    }

    fn value(&self) -> Option<&[u8]> {
        Some(self.page.value(self.at))
    }

    fn advance(&mut self) -> Result<bool, BackendError> {
        self.at += 1;
        Ok(self.at < self.page.len() || self.turn_page()?)
    }
}
