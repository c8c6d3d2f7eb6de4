//! A cursor over the pairs of a range of a keyspace. Its owner moves it from pair to pair.
//!
//! Owns: [`RangeCursor`], which shows the pairs of [`ReadView::scan`] one at a time. Does not own: the order of the
//! rows (`thalweg_store`), or the limit of the range; the caller counts the pairs.

use std::collections::HashMap;

use thalweg_store::PairCursor;
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, budget,
    steps::{ROW, SCAN},
};

use super::{
    read_view::{Collections, Fetch, Item, ReadView, ScanRange, decode_item},
    values::is_collection,
};
use crate::{
    error::MachineError,
    expiry::rows::{Expiry, Lease},
    keys::KeyRange,
};

/// A cursor over the pairs of a range of a keyspace in one view.
#[derive(Clone)]
pub struct RangeCursor {
    rows: Box<dyn PairCursor>,
    view: ReadView,
    keyspace: KeyspaceId,
    /// Last revision that the view has applied.
    as_of: Revision,
    /// True if deleted prefixes may hide rows of the keyspace.
    has_clears: bool,
    fetch: Fetch,
    collections: Collections,
    /// Leases of the pairs that the cursor has passed; `None` for a lease that does not exist.
    leases: HashMap<LeaseId, Option<Lease>>,
}

impl std::fmt::Debug for RangeCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeCursor")
            .field("keyspace", &self.keyspace)
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}

impl ReadView {
    /// Opens a cursor over a range. It shows the same pairs as [`scan`](Self::scan), but ignores the limit of the
    /// range. Returns `None` if the backend has no cursors; the caller then scans.
    pub fn cursor(&self, keyspace: KeyspaceId, range: &ScanRange<'_>) -> Result<Option<RangeCursor>, MachineError> {
        RangeCursor::open(self, keyspace, range)
    }
}

impl RangeCursor {
    /// Opens a cursor before the first pair of a range, and ignores the limit of the range. Returns `None` if the
    /// backend has no cursors.
    fn open(view: &ReadView, keyspace: KeyspaceId, range: &ScanRange<'_>) -> Result<Option<Self>, MachineError> {
        let _ = budget::charge(SCAN);
        let full = KeyRange::of_keyspace(keyspace, range.prefix, range.start, range.end);
        let Some(rows) = view.view().cursor(full.lower(), full.upper(), range.direction)? else { return Ok(None) };
        let as_of = view.applied().revision;
        Ok(Some(Self {
            rows,
            view: view.clone(),
            keyspace,
            as_of,
            has_clears: view.visibility_at(keyspace, as_of).clears.is_some(),
            fetch: range.fetch,
            collections: range.collections,
            leases: HashMap::new(),
        }))
    }

    /// Returns the next pair, borrowed until the next call; `None` at the end of the range. Also returns `None` if the
    /// [budget] of the thread's read is spent; a later call then continues.
    #[inline]
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, MachineError> {
        loop {
            if budget::charge(ROW).is_break() || !self.rows.advance()? {
                return Ok(None);
            }
            if self.is_shown()? {
                break;
            }
        }
        self.item()
    }

    /// Returns the key of the pair that [`next_item`](Self::next_item) returned last; `None` before the first pair and
    /// after the last.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.item().ok()?.map(|item| item.key)
    }

    #[inline]
    fn item(&self) -> Result<Option<Item<'_>>, MachineError> {
        self.rows.pair().map(|(key, row)| decode_item(key, row, self.fetch)).transpose()
    }

    /// Returns true if the view shows the row at which the cursor is: no deleted prefix or deadline hides the row.
    #[inline]
    fn is_shown(&mut self) -> Result<bool, MachineError> {
        let Some((key, row)) = self.rows.pair() else { return Ok(false) };
        if self.collections == Collections::Skip && is_collection(row) {
            return Ok(false);
        }
        let Item { key, revision, expiry, .. } = decode_item(key, row, Fetch::KeysOnly)?;
        if self.has_clears && !self.view.visibility_at(self.keyspace, self.as_of).shows(key, revision) {
            return Ok(false);
        }
        if expiry == Expiry::NEVER {
            return Ok(true);
        }
        let (view, leases) = (self.view.view(), &mut self.leases);
        expiry.is_live(self.view.time(), |id| match leases.get(&id) {
            Some(known) => Ok(*known),
            None => {
                let found = Lease::in_view(view, id)?;
                leases.insert(id, found);
                Ok(found)
            }
        })
    }
}
