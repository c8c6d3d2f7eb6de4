//! Keyspaces with history: reads at a revision, and the versions of a key.
//!
//! Owns: the methods of the handles. They read large values from the log, where the state has only their positions.
//! Does not own: the rules for reading the past (see [`thalweg_state::history`]), or cursors (`cursor`).

use std::ops::ControlFlow;

use thalweg_state::{
    history::{self, HistoricalView},
    keyspaces::{Item, ReadView, ScanRange as StoredRange, Stored, StoredRef, StoredValue},
};
use thalweg_types::{
    Revision, SpaceTime,
    limits::{MAX_VERSIONS_PAGE, MAX_VERSIONS_PAGE_BYTES},
};

use crate::{
    cursor::ScanPoint,
    error::{ReadError, holds},
    keyspace::{Entry, Keyspace, ScanItem},
    scan_range::ScanRange,
};

pub use thalweg_state::history::VersionLifetime;

/// A version of a key: a value that the key has or had for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVersion {
    /// Value of the version, with its revision and expiry.
    pub entry: Entry,
    /// End of the period in which the key had this value.
    pub lifetime: VersionLifetime,
}

/// A page of versions of a key, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVersions {
    /// The versions in the page, newest first.
    pub versions: Vec<KeyVersion>,
    /// Value of the argument `before` for the call that returns the next page; `None` if there are no older versions.
    pub next: Option<Revision>,
    /// Oldest revision from which on all versions of the key are kept.
    pub oldest: Revision,
}

/// Time by which reads at an explicit revision hide expired values. It hides none: an expired key is present up to the
/// revision of the log entry that removed it.
const AS_OF_THE_REVISION: SpaceTime = SpaceTime(0);

impl Keyspace {
    /// Returns the value that a key had at a revision; `None` if it had none. Works only in keyspaces with history, as
    /// far back as the history reaches.
    ///
    /// An expired key counts as present up to the revision of the entry that removed it, about a second after the
    /// deadline.
    pub fn get_at(&self, key: &[u8], revision: Revision) -> Result<Option<Entry>, ReadError> {
        // A version that is pruned concurrently may be freed too. A newer view then shows that the version is gone.
        loop {
            let snapshot = self.database().inner.open.machine.read_view();
            let Some(stored) = self.past(&snapshot, ScanPoint { revision, time: AS_OF_THE_REVISION })?.get(key)? else {
                return Ok(None);
            };
            match self.entry_of(key, stored) {
                Err(ReadError::ViewExpired) => {}
                entry => return entry.map(Some),
            }
        }
    }

    /// Visits the pairs that the keyspace had at a revision, in order, until `visit` breaks. Works only in keyspaces
    /// with history, as far back as the history reaches.
    pub fn scan_at(
        &self,
        range: &ScanRange,
        revision: Revision,
        visit: &mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let snapshot = self.database().inner.open.machine.read_view();
        self.scan_past(&snapshot, ScanPoint { revision, time: AS_OF_THE_REVISION }, &range.stored(), visit)
    }

    /// Returns at most `limit` versions of a key with revisions below `before`, newest first.
    pub fn versions(&self, key: &[u8], before: Option<Revision>, limit: usize) -> Result<KeyVersions, ReadError> {
        loop {
            let snapshot = self.database().inner.open.machine.read_view();
            let found = snapshot.versions(self.id(), key, before, limit.clamp(1, MAX_VERSIONS_PAGE))?;
            match self.page_of(key, found) {
                Err(ReadError::ViewExpired) => {}
                page => return page,
            }
        }
    }

    /// Reads the values of the given versions from the log where necessary, up to [`MAX_VERSIONS_PAGE_BYTES`] bytes of
    /// values.
    fn page_of(&self, key: &[u8], found: history::Versions) -> Result<KeyVersions, ReadError> {
        let history::Versions { versions: found, mut more, oldest } = found;
        let (mut versions, mut bytes) = (Vec::new(), 0);
        for history::Version { stored, lifetime } in found {
            if bytes >= MAX_VERSIONS_PAGE_BYTES {
                more = true;
                break;
            }
            let entry = self.entry_of(key, stored)?;
            bytes += entry.value.len();
            versions.push(KeyVersion { entry, lifetime });
        }
        let next = versions.last().map(|version| version.entry.revision).filter(|_| more);
        Ok(KeyVersions { versions, next, oldest })
    }

    /// Returns the oldest revision at which the keyspace can be read. Single keys may have a shorter history.
    pub fn oldest_revision(&self) -> Result<Revision, ReadError> {
        Ok(self.database().inner.open.machine.read_view().history_floor(self.id())?)
    }

    /// Returns a view of the keyspace as of a past revision.
    fn past<'s>(&self, snapshot: &'s ReadView, at: ScanPoint) -> Result<HistoricalView<'s>, ReadError> {
        Ok(snapshot.past(self.id(), at.revision, at.time)?)
    }

    pub(crate) fn scan_past(
        &self,
        snapshot: &ReadView,
        at: ScanPoint,
        range: &StoredRange<'_>,
        visit: &mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let mut failure = None;
        self.past(snapshot, at)?.scan(range, &mut |item| self.visit_item(&item, &mut failure, visit))?;
        failure.map_or(Ok(()), Err)
    }

    /// Passes a key-value pair of a scan to `visit`, after reading its value from the log if necessary.
    pub(crate) fn visit_item(
        &self,
        item: &Item<'_>,
        failure: &mut Option<ReadError>,
        visit: &mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Item { key, revision, value, expiry } = *item;
        match value {
            None => visit(ScanItem { key, value: b"", revision, expiry }),
            Some(StoredRef::Inline(value)) => visit(ScanItem { key, value, revision, expiry }),
            // Scans skip keys that refer to Redis collections.
            Some(StoredRef::Collection(_)) => ControlFlow::Continue(()),
            Some(StoredRef::Blob(blob)) => match self.database().inner.resolve(self.id(), key, revision, blob) {
                Ok(value) => visit(ScanItem { key, value: &value, revision, expiry }),
                Err(error) => {
                    *failure = Some(error);
                    ControlFlow::Break(())
                }
            },
        }
    }

    fn entry_of(&self, key: &[u8], stored: Stored) -> Result<Entry, ReadError> {
        let Stored { revision, value, expiry } = stored;
        let value = match value {
            StoredValue::Inline(value) => value,
            StoredValue::Collection(collection) => return Err(holds(&collection)),
            StoredValue::Blob(blob) => self.database().inner.resolve(self.id(), key, revision, blob)?,
        };
        Ok(Entry { value, revision, expiry })
    }
}
