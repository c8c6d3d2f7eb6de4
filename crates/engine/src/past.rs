//! Keyspaces with history: reads at a revision, and the versions of a key.
//!
//! Owns the handles' methods, which add to the state's rules where the bytes of large values lie. Does not own
//! those rules (see [`thalweg_state::past`]), nor cursors (`cursor`).

use std::ops::ControlFlow;

use thalweg_state::{
    history::{self, Past},
    keyspaces::{Item, ReadView, ScanRange as StoredRange, Stored, StoredRef, StoredValue},
};
use thalweg_types::{
    Revision, SpaceTime,
    limits::{MAX_VERSIONS_PAGE, MAX_VERSIONS_PAGE_BYTES},
};

pub use thalweg_state::history::Lasting;

use crate::{
    cursor::At,
    error::ReadError,
    keyspace::{Entry, Keyspace, ScanItem, ScanRange, holds},
};

/// What a key was for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVersion {
    /// The value, since when, and when it was to end.
    pub entry: Entry,
    /// How long it was there.
    pub lasting: Lasting,
}

/// Versions of a key, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVersions {
    /// Those asked for.
    pub versions: Vec<KeyVersion>,
    /// Where a list of older ones goes on, if there are some that are kept.
    pub next: Option<Revision>,
    /// From this revision on all versions of the key are kept.
    pub oldest: Revision,
}

/// Explicit revisions hide nothing that was to end: what a deadline took away was there up to the revision of the
/// entry that removed it.
const AS_OF_THE_REVISION: SpaceTime = SpaceTime(0);

impl Keyspace {
    /// The value that a key had at a revision. Only in keyspaces with history, and as far back as that reaches.
    ///
    /// What has ended by itself is there up to the revision of the entry that removed it, about a second later.
    pub fn get_at(&self, key: &[u8], revision: Revision) -> Result<Option<Entry>, ReadError> {
        // What is pruned meanwhile may be freed, too: then there is a newer view that says so.
        loop {
            let snapshot = self.database().inner.open.machine.read_view();
            let Some(stored) = self.past(&snapshot, At { revision, time: AS_OF_THE_REVISION })?.get(key)? else {
                return Ok(None);
            };
            match self.entry_of(key, stored) {
                Err(ReadError::ViewExpired) => {}
                entry => return entry.map(Some),
            }
        }
    }

    /// Visits the pairs that the keyspace held at a revision, in order, until `visit` breaks. Only in keyspaces with
    /// history, and as far back as that reaches.
    pub fn scan_at(
        &self,
        range: &ScanRange,
        revision: Revision,
        visit: &mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let snapshot = self.database().inner.open.machine.read_view();
        self.scan_past(&snapshot, At { revision, time: AS_OF_THE_REVISION }, &range.stored(), visit)
    }

    /// The versions of a key that are kept, newest first: at most `limit`, of those with a revision below `before`.
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

    /// Versions with their values, up to so many bytes.
    fn page_of(&self, key: &[u8], found: history::Versions) -> Result<KeyVersions, ReadError> {
        let history::Versions { versions: found, mut more, oldest } = found;
        let (mut versions, mut bytes) = (Vec::new(), 0);
        for history::Version { stored, lasting } in found {
            if bytes >= MAX_VERSIONS_PAGE_BYTES {
                more = true;
                break;
            }
            let entry = self.entry_of(key, stored)?;
            bytes += entry.value.len();
            versions.push(KeyVersion { entry, lasting });
        }
        let next = versions.last().map(|version| version.entry.revision).filter(|_| more);
        Ok(KeyVersions { versions, next, oldest })
    }

    /// The oldest revision that the keyspace's history reaches back to. Single keys may reach back less far.
    pub fn oldest_revision(&self) -> Result<Revision, ReadError> {
        Ok(self.database().inner.open.machine.read_view().history_floor(self.id())?)
    }

    /// A view of the past.
    fn past<'s>(&self, snapshot: &'s ReadView, at: At) -> Result<Past<'s>, ReadError> {
        Ok(snapshot.past(self.id(), at.revision, at.time)?)
    }

    pub(crate) fn scan_past(
        &self,
        snapshot: &ReadView,
        at: At,
        range: &StoredRange<'_>,
        visit: &mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let mut failure = None;
        self.past(snapshot, at)?.scan(range, &mut |item| self.visit_item(&item, &mut failure, visit))?;
        failure.map_or(Ok(()), Err)
    }

    /// Shows an item with its bytes.
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
            // Scans pass over them.
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
