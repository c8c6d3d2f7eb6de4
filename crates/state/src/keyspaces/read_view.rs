//! A consistent view of all keyspaces at one point in time.
//!
//! Owns: gets and scans over a [`View`] of the map, which skip rows that deleted prefixes and passed deadlines
//! hide. Does not own: the time or the table of deleted prefixes; the caller supplies both with the view.

use std::{
    collections::HashMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use thalweg_store::{Applied, Direction, View};
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime, budget,
    steps::{ROW, SCAN},
};

use crate::{
    clears::table::{ClearTable, Prefixes},
    error::MachineError,
    expiry::rows::{Expiry, Lease},
    keys::{self, KeyRange},
    keyspaces::{
        row_head::RowHead,
        values::{Decoded, Stored, StoredRef, decode_owned, decode_value, is_collection},
    },
};

/// One pair of a scan, borrowed for the duration of the callback only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// User key of the pair.
    pub key: &'a [u8],
    /// Revision of the command that wrote the pair.
    pub revision: Revision,
    /// Value of the pair; `None` in a scan of keys only.
    pub value: Option<StoredRef<'a>>,
    /// Deadline and lease of the pair.
    pub expiry: Expiry,
}

/// Function that receives the key of each visited row, and its revision and value unless the row is hidden. `Break`
/// ends the visit.
pub(crate) type VisitRow<'v> =
    dyn FnMut(&[u8], Option<(Revision, StoredRef<'_>)>) -> Result<ControlFlow<()>, MachineError> + 'v;

/// Choice of the data that a scan returns for each pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fetch {
    /// The scan returns keys, revisions and values.
    #[default]
    Values,
    /// The scan returns keys and revisions, without values.
    KeysOnly,
}

/// Treatment of keys that refer to a Redis hash or stream by a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collections {
    /// The scan skips keys with a Redis hash or stream, because these have no bytes to return.
    #[default]
    Skip,
    /// The scan visits keys with a Redis hash or stream like all others.
    Visit,
}

/// Range and options of a scan of a keyspace. The default visits all pairs in ascending order.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'a> {
    /// Prefix that the visited keys have in common; empty for all keys.
    pub prefix: &'a [u8],
    /// Lower bound of the visited keys.
    pub start: Bound<&'a [u8]>,
    /// Upper bound of the visited keys.
    pub end: Bound<&'a [u8]>,
    /// Direction of the scan: ascending or descending.
    pub direction: Direction,
    /// Maximum number of pairs that the scan visits.
    pub limit: usize,
    /// Data that the scan returns for each pair.
    pub fetch: Fetch,
    /// Treatment of keys that refer to a Redis hash or stream.
    pub collections: Collections,
}

impl Default for ScanRange<'_> {
    fn default() -> Self {
        Self {
            prefix: b"",
            start: Bound::Unbounded,
            end: Bound::Unbounded,
            direction: Direction::Forward,
            limit: usize::MAX,
            fetch: Fetch::Values,
            collections: Collections::Skip,
        }
    }
}

/// The rule that decides which rows of a keyspace are visible. Readers and log entries being applied both use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visibility<'t> {
    /// Deleted prefixes of the keyspace, which hide rows; `None` if there are none.
    pub(crate) clears: Option<&'t Prefixes>,
    /// Last revision that the reader's view has applied.
    pub(crate) as_of: Revision,
}

impl Visibility<'_> {
    /// Returns true if the reader sees a row with this key and revision, because no deleted prefix hides it.
    #[inline]
    pub(crate) fn shows(&self, key: &[u8], revision: Revision) -> bool {
        self.clears.is_none_or(|clears| !clears.hides(key, revision, self.as_of))
    }

    /// Returns the revision of the delete of a prefix that has hidden a row with this key and revision; `None` if no
    /// delete hides the row.
    pub(crate) fn hidden_since(&self, key: &[u8], revision: Revision) -> Option<Revision> {
        self.clears?.hidden_since(key, revision).filter(|&since| since <= self.as_of)
    }
}

/// A consistent, immutable view of all keyspaces. A view keeps old data alive while it exists.
///
/// The view also has one fixed time: a value whose deadline is at or before that time is hidden, and a later deadline
/// has no effect on this view.
#[derive(Clone)]
pub struct ReadView {
    view: Arc<dyn View>,
    clears: Arc<ClearTable>,
    time: SpaceTime,
}

impl std::fmt::Debug for ReadView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadView").field("applied", &self.view.applied()).field("time", &self.time).finish()
    }
}

impl ReadView {
    fn visibility(&self, keyspace: KeyspaceId) -> Visibility<'_> {
        self.visibility_at(keyspace, self.view.applied().revision)
    }

    /// Returns the rule that decides which rows of a keyspace were visible when `as_of` was the last revision.
    pub(crate) fn visibility_at(&self, keyspace: KeyspaceId, as_of: Revision) -> Visibility<'_> {
        Visibility { clears: self.clears.of(keyspace), as_of }
    }

    /// Creates a view. `time` decides which values have ended; it is at least the time of the last log entry in `view`,
    /// and at most that of the next entry.
    pub(crate) fn new(view: Arc<dyn View>, clears: Arc<ClearTable>, time: SpaceTime) -> Self {
        Self { view, clears, time }
    }

    /// Returns the time at which this view shows the state: values that had ended by then are hidden.
    #[must_use]
    pub fn time(&self) -> SpaceTime {
        self.time
    }

    pub(crate) fn view(&self) -> &dyn View {
        &*self.view
    }

    /// Returns the position in the log up to which the view's state is applied.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.view.applied()
    }

    /// Returns the value of a key; `None` if the key does not exist or has ended at the view's time.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        let Some(stored) = self.stored(keyspace, key)? else { return Ok(None) };
        let is_live = stored.expiry.is_live(self.time, |id| Lease::in_view(&*self.view, id))?;
        Ok(is_live.then_some(stored))
    }

    /// Requests the row of a key from the disk, if it is not in memory, and does not wait for it.
    pub fn read_ahead(&self, keyspace: KeyspaceId, key: &[u8]) {
        keys::with_data_key(keyspace, key, |full| self.view.read_ahead(full));
    }

    /// Returns the length of a key's value in bytes, without copying the value; `None` if the key does not exist.
    pub fn value_len(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<usize>, MachineError> {
        Ok(self.head(keyspace, key)?.map(|head| head.held.value_bytes))
    }

    /// Returns the row of a key like [`get`](Self::get), without copying the value.
    pub(crate) fn head(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<RowHead>, MachineError> {
        let found = keys::with_data_key(keyspace, key, |full| {
            let mut found = Ok(None);
            self.view.look(full, &mut |row| found = RowHead::decode(full, row).map(Some))?;
            found
        })?;
        let Some(head) = found.filter(|head| self.visibility(keyspace).shows(key, head.revision)) else {
            return Ok(None);
        };
        let is_live = head.expiry.is_live(self.time, |id| Lease::in_view(&*self.view, id))?;
        Ok(is_live.then_some(head))
    }

    /// Returns the value of a key, even if its deadline has passed at the view's time.
    pub(crate) fn stored(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        let found = keys::with_data_key(keyspace, key, |full| decode_owned(full, self.view.get(full)?))?;
        Ok(found.filter(|found| self.visibility(keyspace).shows(key, found.revision)))
    }

    /// Visits the pairs of a range in order until the range ends, the limit is reached, or `visit` breaks.
    pub fn scan(
        &self,
        keyspace: KeyspaceId,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<(), MachineError> {
        let mut full = KeyRange::of_keyspace(keyspace, range.prefix, range.start, range.end);
        if full.is_empty() || range.limit == 0 {
            return Ok(());
        }
        let mut left = range.limit;
        let _ = budget::charge(SCAN);
        let is_bounded = budget::is_bounded();
        let sight = self.visibility(keyspace);
        let mut leases = HashMap::new();
        loop {
            let mut stopped_by = None;
            self.view.scan(full.lower(), full.upper(), range.direction, &mut |key, value| {
                if is_bounded {
                    budget::charge(ROW)?;
                }
                if range.collections == Collections::Skip && is_collection(value) {
                    return ControlFlow::Continue(());
                }
                let item = match decode_item(key, value, range.fetch) {
                    Ok(item) => item,
                    Err(error) => {
                        stopped_by = Some(ScanStop::Failed(error));
                        return ControlFlow::Break(());
                    }
                };
                if !sight.shows(item.key, item.revision) {
                    return ControlFlow::Continue(());
                }
                if item.expiry != Expiry::NEVER {
                    match item.expiry.is_live(self.time, |id| leases.get(&id).copied().ok_or(id)) {
                        Ok(true) => {}
                        Ok(false) => return ControlFlow::Continue(()),
                        Err(id) => {
                            stopped_by = Some(ScanStop::UnknownLease { id, key: key.to_vec() });
                            return ControlFlow::Break(());
                        }
                    }
                }
                visit(item)?;
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            match stopped_by {
                None => return Ok(()),
                Some(ScanStop::Failed(error)) => return Err(error),
                // A backend may not support a get during a scan, so the scan is restarted at this key.
                Some(ScanStop::UnknownLease { id, key }) => {
                    leases.insert(id, Lease::in_view(&*self.view, id)?);
                    match range.direction {
                        Direction::Forward => full.set_lower(Bound::Included(key)),
                        Direction::Reverse => full.set_upper(Bound::Included(key)),
                    }
                }
            }
        }
    }

    /// Visits all rows of a range of a keyspace in order until `visit` breaks. Hidden rows are passed to `visit`
    /// without a value.
    pub(crate) fn scan_rows(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
        direction: Direction,
        visit: &mut VisitRow<'_>,
    ) -> Result<(), MachineError> {
        let mut range = range.clone();
        let sight = self.visibility(keyspace);
        let mut leases = HashMap::new();
        loop {
            let mut stopped_by = None;
            self.view.scan(range.lower(), range.upper(), direction, &mut |full, row| {
                budget::charge(ROW)?;
                let mut show = || {
                    let Decoded { revision, value, expiry } = decode_value(full, row).map_err(ScanStop::Failed)?;
                    let key = full.get(keys::DATA_PREFIX_LEN..).unwrap_or_default();
                    let mut is_shown = sight.shows(key, revision);
                    if is_shown && expiry != Expiry::NEVER {
                        let live = expiry.is_live(self.time, |id| leases.get(&id).copied().ok_or(id));
                        is_shown = live.map_err(|id| ScanStop::UnknownLease { id, key: full.to_vec() })?;
                    }
                    visit(key, is_shown.then_some((revision, value))).map_err(ScanStop::Failed)
                };
                show().unwrap_or_else(|stop| {
                    stopped_by = Some(stop);
                    ControlFlow::Break(())
                })
            })?;
            match stopped_by {
                None => return Ok(()),
                Some(ScanStop::Failed(error)) => return Err(error),
                // A backend may not support a get during a scan, so the scan is restarted at this key.
                Some(ScanStop::UnknownLease { id, key }) => {
                    leases.insert(id, Lease::in_view(&*self.view, id)?);
                    match direction {
                        Direction::Forward => range.set_lower(Bound::Included(key)),
                        Direction::Reverse => range.set_upper(Bound::Included(key)),
                    }
                }
            }
        }
    }
}

/// Reason why a scan was interrupted before its range ended.
enum ScanStop {
    Failed(MachineError),
    /// The pair at `key` is attached to a lease that is not loaded yet, so the scan cannot decide if the pair is
    /// visible.
    UnknownLease {
        id: LeaseId,
        key: Vec<u8>,
    },
}

#[inline]
pub(super) fn decode_item<'a>(key: &'a [u8], value: &'a [u8], fetch: Fetch) -> Result<Item<'a>, MachineError> {
    let user_key = key.get(keys::DATA_PREFIX_LEN..).unwrap_or_default();
    let Decoded { revision, value, expiry } = decode_value(key, value)?;
    Ok(Item { key: user_key, revision, value: (fetch == Fetch::Values).then_some(value), expiry })
}
