//! Read views: keyspaces at one point in time.
//!
//! Owns gets and scans over a [`View`] of the map, and hiding in them what deleted prefixes and passed deadlines hide. Does
//! not own the time or the table of deleted prefixes: both come with the view.

use std::{
    collections::HashMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use thalweg_store::{Applied, Direction, View};
use thalweg_types::{KeyspaceId, LeaseId, Revision, SpaceTime};

use crate::{
    clears::table::{ClearTable, Prefixes},
    error::MachineError,
    expiry::rows::{Expiry, Lease},
    keys::{self, KeyRange},
    keyspaces::values::{Decoded, Stored, StoredRef, decode_owned, decode_value, is_collection},
};

/// One pair of a scan, borrowed for the call only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The user key.
    pub key: &'a [u8],
    /// The command that wrote it.
    pub revision: Revision,
    /// The value; `None` in a scan of keys only.
    pub value: Option<StoredRef<'a>>,
    /// When it ends.
    pub expiry: Expiry,
}

/// What a scan gives of each pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fetch {
    /// Keys, revisions and values.
    #[default]
    Values,
    /// Keys and revisions.
    KeysOnly,
}

/// What a scan does about keys that hold a hash or a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collections {
    /// It passes over them: they have no bytes to be shown.
    #[default]
    Skip,
    /// It visits them like others.
    Visit,
}

/// Which pairs of a keyspace a scan visits; the default is all, ascending.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'a> {
    /// Only keys that begin with this.
    pub prefix: &'a [u8],
    /// Only keys from here on.
    pub start: Bound<&'a [u8]>,
    /// Only keys up to here.
    pub end: Bound<&'a [u8]>,
    /// Ascending or descending.
    pub direction: Direction,
    /// At most so many pairs.
    pub limit: usize,
    /// What of each pair.
    pub fetch: Fetch,
    /// Whether keys that hold no bytes are visited, too.
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

/// Says which rows of a keyspace count: the one rule, for readers and for entries being applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'t> {
    /// Deleted prefixes of the keyspace.
    pub(crate) clears: Option<&'t Prefixes>,
    /// The last revision that the reader's view has applied.
    pub(crate) as_of: Revision,
}

impl Sight<'_> {
    /// Whether a row of this key and revision counts.
    #[inline]
    pub(crate) fn shows(&self, key: &[u8], revision: Revision) -> bool {
        self.clears.is_none_or(|clears| !clears.hides(key, revision, self.as_of))
    }

    /// Since when a row of this key and revision has been hidden by a deleted prefix.
    pub(crate) fn hidden_since(&self, key: &[u8], revision: Revision) -> Option<Revision> {
        self.clears?.hidden_since(key, revision).filter(|&since| since <= self.as_of)
    }
}

/// A consistent, immutable view of all keyspaces. Holding one keeps old data alive.
///
/// It is of one moment of space time, too: what had ended by then is hidden, and what ends later is not, for
/// as long as the view is held.
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
    fn sight(&self, keyspace: KeyspaceId) -> Sight<'_> {
        self.sight_at(keyspace, self.view.applied().revision)
    }

    /// Which rows counted when `as_of` was the last revision.
    pub(crate) fn sight_at(&self, keyspace: KeyspaceId, as_of: Revision) -> Sight<'_> {
        Sight { clears: self.clears.of(keyspace), as_of }
    }

    /// `time` is at least that of the last entry that the view has applied, and at most that of the next.
    pub(crate) fn new(view: Arc<dyn View>, clears: Arc<ClearTable>, time: SpaceTime) -> Self {
        Self { view, clears, time }
    }

    /// The moment of space time that the view is of.
    #[must_use]
    pub fn time(&self) -> SpaceTime {
        self.time
    }

    pub(crate) fn view(&self) -> &dyn View {
        &*self.view
    }

    /// What the view has applied.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.view.applied()
    }

    /// The value of a key.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        let Some(stored) = self.stored(keyspace, key)? else { return Ok(None) };
        let is_live = stored.expiry.is_live(self.time, |id| Lease::in_view(&*self.view, id))?;
        Ok(is_live.then_some(stored))
    }

    /// The value of a key, whether it has ended or not.
    pub(crate) fn stored(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        let found = keys::with_data_key(keyspace, key, |full| decode_owned(full, self.view.get(full)?))?;
        Ok(found.filter(|found| self.sight(keyspace).shows(key, found.revision)))
    }

    /// Visits pairs in order until the range or the limit ends or `visit` breaks.
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
        let sight = self.sight(keyspace);
        let mut leases = HashMap::new();
        loop {
            let mut stopped_by = None;
            self.view.scan(full.lower(), full.upper(), range.direction, &mut |key, value| {
                if range.collections == Collections::Skip && is_collection(value) {
                    return ControlFlow::Continue(());
                }
                let item = match decode_item(key, value, range.fetch) {
                    Ok(item) => item,
                    Err(error) => {
                        stopped_by = Some(Stop::Failed(error));
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
                            stopped_by = Some(Stop::UnknownLease { id, key: key.to_vec() });
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
                Some(Stop::Failed(error)) => return Err(error),
                // A backend need not be able to answer while it scans.
                Some(Stop::UnknownLease { id, key }) => {
                    leases.insert(id, Lease::in_view(&*self.view, id)?);
                    match range.direction {
                        Direction::Forward => full.set_lower(Bound::Included(key)),
                        Direction::Reverse => full.set_upper(Bound::Included(key)),
                    }
                }
            }
        }
    }
}

/// Why a scan ended before its range did.
enum Stop {
    Failed(MachineError),
    /// Whether the pair at `key` is there depends on a lease that has not been looked up yet.
    UnknownLease {
        id: LeaseId,
        key: Vec<u8>,
    },
}

#[inline]
fn decode_item<'a>(key: &'a [u8], value: &'a [u8], fetch: Fetch) -> Result<Item<'a>, MachineError> {
    let user_key = key.get(keys::DATA_PREFIX_LEN..).unwrap_or_default();
    let Decoded { revision, value, expiry } = decode_value(key, value)?;
    Ok(Item { key: user_key, revision, value: (fetch == Fetch::Values).then_some(value), expiry })
}
