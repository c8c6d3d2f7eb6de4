//! Reads of the past: keyspaces with history at a revision, and a key's versions.
//!
//! Owns: the rule that determines the value of a key at a revision and, together with `historical_scan`, the merge of
//! the keys' own rows with their versions. Does not own: the choice of versions to keep (`keep_versions`, `prune`).
//!
//! The rule: of a key's own row and its versions, at most one covers a revision. The own row covers the revision if its
//! value was written at or before the revision, and no deleted prefix had hidden the value by then. Otherwise, the
//! version that began at or before the revision and ended after it covers the revision. Values that had ended are
//! hidden by the time that the reader passes: each page of a scan passes the time of the first page. A reader that
//! passes only a revision passes no time; then a value exists up to the revision of the entry that removed it.
//!
//! If no row covers the revision, the key did not exist, unless its version at that revision was forgotten: then the
//! result is [`HistoryError::Compacted`]. Keys that were deleted long ago leave no row that records this. So if a
//! history has no maximum age, two kinds of reads reach back only to the last such deletion (`gone`): scans, and gets
//! of keys without a row that is so old.

use std::ops::{Bound, ControlFlow};

use thalweg_store::{BackendError, Direction};
use thalweg_types::{Action, BlobRef, Classified, KeyspaceId, Revision, SpaceTime};

use crate::{
    error::MachineError,
    expiry::rows::Lease,
    history::rows::{
        HistoryKey, HistoryRow, HistoryWork, VersionEnd, VersionRow, VersionUpperBound, forgotten_row, key_prefix,
        version_row,
    },
    keys::{KeyRange, with_data_key},
    keyspaces::{
        read_view::ReadView,
        values::{Stored, StoredValue, decode_owned},
    },
};

/// Error returned when a keyspace cannot be read as of a past revision.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HistoryError {
    /// The keyspace keeps no history, or does not exist.
    #[error("the keyspace keeps no history: only its newest state can be read")]
    NoHistory,
    /// The keyspace's state at the revision is no longer kept, or the revision is from before the history began.
    #[error("revision {requested} is not kept any more: the oldest that can be read is {oldest}")]
    Compacted {
        /// Revision that the caller requested.
        requested: Revision,
        /// Oldest readable revision of the keyspace, or of the first key whose state at the requested revision is not
        /// kept.
        oldest: Revision,
    },
    /// No command has used the requested revision yet.
    #[error("revision {requested} has not been used yet: the newest is {newest}")]
    NotYet {
        /// Revision that the caller requested.
        requested: Revision,
        /// Newest revision that the view contains.
        newest: Revision,
    },
    /// The state could not be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl From<BackendError> for HistoryError {
    fn from(error: BackendError) -> Self {
        Self::Machine(error.into())
    }
}

impl Classified for HistoryError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoHistory => "no_history",
            Self::Compacted { .. } => "compacted",
            Self::NotYet { .. } => "future_revision",
            Self::Machine(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Machine(error) => error.action(),
            _ => Action::Fix,
        }
    }
}

/// View of a keyspace that shows the values that its keys had at a past revision.
#[derive(Clone, Copy, Debug)]
pub struct HistoricalView<'s> {
    pub(crate) snapshot: &'s ReadView,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) revision: Revision,
    /// Lowest revision from which a key without rows is known not to have existed. Below it, such a key may have had a
    /// value whose row was removed.
    pub(crate) gone: Revision,
    /// Time of the reader. Values that had ended (expired) by then are hidden.
    pub(crate) time: SpaceTime,
}

/// End of the period in which a key had a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionLifetime {
    /// The value is still the current one of its key.
    Current,
    /// The deadline of the value, or of its lease, has passed; the log entry that removes the value is still to come.
    Ended,
    /// The value was current until a revision, exclusive.
    Until {
        /// First revision at which the value was not current.
        revision: Revision,
        /// Time of the log entry that removed the value; for a delete of many keys, a somewhat later time. `None` if
        /// the time is not known yet.
        time: Option<SpaceTime>,
        /// Kind of operation that removed the value.
        ending: VersionEnd,
    },
}

/// A current or former value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The value, with the revision that wrote it and its expiry.
    pub stored: Stored,
    /// End of the period in which the key had the value.
    pub lifetime: VersionLifetime,
}

/// A page of the versions (current and former values) of one key, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The values (current and former) of the key in this page, newest first.
    pub versions: Vec<Version>,
    /// True if the key has older values than those in the page.
    pub more: bool,
    /// Lowest revision from which all values (versions) of the key are kept.
    pub oldest: Revision,
}

impl ReadView {
    /// Returns true if keys of a keyspace may have versions (former values).
    pub fn has_versions(&self, keyspace: KeyspaceId) -> Result<bool, MachineError> {
        Ok(HistoryRow::in_view(self.view(), keyspace)?.is_some())
    }

    /// Returns the log position of a key's newest value, if the value is in the log and a reader may still need it. A
    /// value that has ended counts; one that a deleted prefix hides counts only in a keyspace that keeps former values.
    pub fn value_blob(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<BlobRef>, MachineError> {
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        let Some(Stored { revision, value: StoredValue::Blob(blob), .. }) = own else { return Ok(None) };
        let shown = self.visibility_at(keyspace, self.applied().revision).shows(key, revision);
        Ok((shown || self.has_versions(keyspace)?).then_some(blob))
    }

    /// Returns the log positions of a key's former values, for maintenance of the log.
    pub fn version_blobs(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Vec<BlobRef>, MachineError> {
        let mut blobs = Vec::new();
        crate::rows::load_rows(self.view(), &KeyRange::with_prefix(&key_prefix(keyspace, key)), |full, row| {
            if HistoryKey::of_version(full)?.revision.is_some() {
                blobs.extend(VersionRow::decode(full, row)?.blob(full)?);
            }
            Ok(())
        })?;
        Ok(blobs)
    }

    /// Returns the value, current or former, that a key got at exactly this revision.
    pub fn version(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
    ) -> Result<Option<StoredValue>, MachineError> {
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        if let Some(own) = own.filter(|own| own.revision == revision) {
            return Ok(Some(own.value));
        }
        let full = version_row(keyspace, key, revision);
        let Some(row) = self.view().get(&full)? else { return Ok(None) };
        Ok(Some(VersionRow::decode(&full, &row)?.decoded(&full)?.value.to_owned()))
    }

    /// Returns a view of the keyspace as of a revision within its history. Values that had ended at `time` are hidden;
    /// the time 0 hides none.
    pub fn past(
        &self,
        keyspace: KeyspaceId,
        revision: Revision,
        time: SpaceTime,
    ) -> Result<HistoricalView<'_>, HistoryError> {
        let HistoryRow { floor: oldest, gone, .. } = self.history(keyspace)?;
        let newest = self.applied().revision;
        if revision > newest {
            return Err(HistoryError::NotYet { requested: revision, newest });
        }
        if revision < oldest {
            return Err(HistoryError::Compacted { requested: revision, oldest });
        }
        Ok(HistoricalView { snapshot: self, keyspace, revision, gone, time })
    }

    /// Returns the oldest revision at which the keyspace can be read.
    pub fn history_floor(&self, keyspace: KeyspaceId) -> Result<Revision, HistoryError> {
        Ok(self.history(keyspace)?.floor)
    }

    fn history(&self, keyspace: KeyspaceId) -> Result<HistoryRow, HistoryError> {
        let found = HistoryRow::in_view(self.view(), keyspace)?;
        found.filter(|found| found.work != HistoryWork::Remove).ok_or(HistoryError::NoHistory)
    }

    /// Returns at most `limit` versions (values) of a key, newest first, that began before the revision `before`.
    pub fn versions(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        before: Option<Revision>,
        limit: usize,
    ) -> Result<Versions, HistoryError> {
        let HistoryRow { floor, gone, .. } = self.history(keyspace)?;
        let forgotten = forgotten_row(keyspace, key);
        let forgotten =
            self.view().get(&forgotten)?.map(|row| VersionUpperBound::of_forgotten(&forgotten, &row)).transpose()?;
        let oldest = floor.max(forgotten.unwrap_or_default().revision);
        let mut found = Versions { versions: Vec::new(), more: false, oldest };
        let before = before.unwrap_or(Revision::MAX);
        let is_asked_for = |own: &Version| {
            let is_old = matches!(own.lifetime, VersionLifetime::Until { revision, .. } if revision <= oldest);
            own.stored.revision < before && !is_old
        };
        found.versions.extend(self.own_version(keyspace, key)?.filter(is_asked_for));
        let prefix = key_prefix(keyspace, key);
        let lower = version_row(keyspace, key, Revision(before.0.saturating_sub(1)));
        let (mut failure, mut more) = (None, false);
        let upper = forgotten_row(keyspace, key);
        let bounds = (Bound::Included(lower.as_slice()), Bound::Excluded(upper.as_slice()));
        debug_assert!(lower.starts_with(&prefix));
        self.view().scan(bounds.0, bounds.1, Direction::Forward, &mut |full, row| {
            match version(full, row) {
                Err(error) => failure = Some(error),
                // Left by a former bound or an earlier history. Maintenance will remove this version.
                Ok((_, until)) if until.revision <= oldest => {}
                Ok(_) if found.versions.len() >= limit => more = true,
                Ok((version, _)) => {
                    found.versions.push(version);
                    return ControlFlow::Continue(());
                }
            }
            ControlFlow::Break(())
        })?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        found.more = more || found.versions.len() > limit;
        found.versions.truncate(limit);
        found.oldest = oldest.max(gone.min(self.oldest_known_revision(keyspace, key)?));
        Ok(found)
    }

    /// Returns the revision of a key's oldest row. All its former values from then on are kept.
    fn oldest_known_revision(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Revision, MachineError> {
        let (prefix, end) = (key_prefix(keyspace, key), forgotten_row(keyspace, key));
        let mut found = Ok(None);
        self.view().scan(Bound::Included(&prefix), Bound::Excluded(&end), Direction::Reverse, &mut |full, _| {
            found = HistoryKey::of_version(full).map(|of| of.revision);
            ControlFlow::Break(())
        })?;
        if let Some(first) = found? {
            return Ok(first);
        }
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        Ok(own.map_or(Revision::MAX, |own| own.revision))
    }

    /// Returns the newest value of a key as a version, even if the value has ended or a deleted prefix hides it.
    fn own_version(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Version>, MachineError> {
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        let Some(stored) = own else { return Ok(None) };
        let hidden = self.visibility_at(keyspace, self.applied().revision).hidden_since(key, stored.revision);
        let lifetime = match hidden {
            Some(revision) => VersionLifetime::Until { revision, time: None, ending: VersionEnd::Deleted },
            None if stored.expiry.is_live(self.time(), |id| Lease::in_view(self.view(), id))? => {
                VersionLifetime::Current
            }
            None => VersionLifetime::Ended,
        };
        Ok(Some(Version { stored, lifetime }))
    }
}

fn version(full: &[u8], row: &[u8]) -> Result<(Version, VersionUpperBound), MachineError> {
    let row = VersionRow::decode(full, row)?;
    let value = row.decoded(full)?;
    let VersionUpperBound { revision, time } = row.until;
    let stored = Stored { revision: value.revision, value: value.value.to_owned(), expiry: value.expiry };
    let lifetime = VersionLifetime::Until { revision, time: Some(time), ending: row.ending };
    Ok((Version { stored, lifetime }, row.until))
}

impl<'s> HistoricalView<'s> {
    /// Returns the past revision at which this view shows the keyspace.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the value that a key had at the view's revision.
    pub fn get(&self, key: &[u8]) -> Result<Option<Stored>, HistoryError> {
        let view = self.snapshot.view();
        let own = with_data_key(self.keyspace, key, |full| decode_owned(full, view.get(full)?))?;
        if let Some(own) = own.filter(|own| own.revision <= self.revision) {
            let shown = self.snapshot.visibility_at(self.keyspace, self.revision).shows(key, own.revision);
            let is_there = shown && own.expiry.is_live(self.time, |id| Lease::in_view(view, id))?;
            return Ok(is_there.then_some(own));
        }
        let lower = version_row(self.keyspace, key, self.revision);
        let upper = forgotten_row(self.keyspace, key);
        let mut found = Ok(None);
        view.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Forward, &mut |full, row| {
            found = VersionRow::decode(full, row).and_then(|row| match row.until.revision > self.revision {
                true => Ok(Some(Some((owned_row(full, &row)?, row.end)))),
                false => Ok(Some(None)),
            });
            ControlFlow::Break(())
        })?;
        match found? {
            Some(Some((stored, end))) => Ok((end > self.time).then_some(stored)),
            // The revision is between two versions, or before the forgotten versions of the key.
            Some(None) => self.check_known(self.forgotten(&upper)?).map(|()| None),
            None => self.check_known(self.forgotten(&upper)?.max(self.gone)).map(|()| None),
        }
    }

    /// Returns the revision up to which former values of a key were removed; zero if none were. `row` is the key of the
    /// row that records this.
    fn forgotten(&self, row: &[u8]) -> Result<Revision, MachineError> {
        let found =
            self.snapshot.view().get(row)?.map(|found| VersionUpperBound::of_forgotten(row, &found)).transpose()?;
        Ok(found.unwrap_or_default().revision)
    }

    /// Returns [`HistoryError::Compacted`] if the view's revision is below `oldest`, the first revision at which the
    /// state of a key is known.
    pub(crate) fn check_known(&self, oldest: Revision) -> Result<(), HistoryError> {
        if oldest > self.revision {
            return Err(HistoryError::Compacted { requested: self.revision, oldest });
        }
        Ok(())
    }
}

fn owned_row(full: &[u8], row: &VersionRow<'_>) -> Result<Stored, MachineError> {
    let value = row.decoded(full)?;
    Ok(Stored { revision: value.revision, value: value.value.to_owned(), expiry: value.expiry })
}
