//! Walking over a store's view, a page at a time.
//!
//! Each page is looked for anew from the last key, so that nothing of the store is held while the caller
//! does what it likes with a pair, which may be another read.

use std::{ops::Bound, sync::Arc};

use super::store::{Page, StoreView};
use crate::{
    backend::{BackendError, Direction},
    merge::Cursor,
};

/// A place in a view. It stands on a pair until [`advance`](Cursor::advance) says that there is none.
pub(super) struct StoreCursor<'a> {
    view: &'a Arc<dyn StoreView>,
    lower: Bound<&'a [u8]>,
    upper: Bound<&'a [u8]>,
    direction: Direction,
    page: Page,
    at: usize,
}

impl<'a> StoreCursor<'a> {
    /// Stands on the first pair within the bounds, if there is one.
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
