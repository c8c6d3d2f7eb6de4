//! Reads of the past: keyspaces with history as they were at a revision, and a key's versions.
//!
//! Owns the rule by which a key was there at a revision, and with `scan` the merging of the keys' own rows with their
//! versions.
//! Does not own what is kept (see `machine/versions.rs`).
//!
//! The rule: of a key's own row and its versions, one at most covers a revision. It is its own row if that is not
//! younger, and no deleted prefix had hidden it by then; else the version that was there from no later than the
//! revision, and until after it. What had ended is hidden by the time that the reader names: a page of a scan names
//! the time of the first one. Who names a revision only, names no time: then what ends is there up to the revision
//! of the entry that removed it.
//!
//! If none covers it, the key was not there, unless what it was has been forgotten: then the answer is
//! [`PastError::Compacted`]. Of keys that were deleted long ago nothing is left that could say so, so where the history
//! has no age, a key of which nothing is known that early, and a scan, reach back no further than to the last of them.

use std::ops::{Bound, ControlFlow};

use thalweg_store::{BackendError, Direction};
use thalweg_types::{Action, BlobRef, Classified, KeyspaceId, Revision, SpaceTime};

use crate::{
    error::MachineError,
    expiry::rows::Lease,
    history::rows::{Ending, HistoryRow, PastKey, Until, VersionRow, Work, forgotten_row, key_prefix, version_row},
    keys::{KeyRange, with_data_key},
    keyspaces::{
        read_view::ReadView,
        values::{Stored, StoredValue, decode_owned},
    },
};

/// Why the past could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PastError {
    /// The keyspace keeps no history, or does not exist.
    #[error("the keyspace keeps no history: only its newest state can be read")]
    NoHistory,
    /// What was there at the revision is not kept any more, or was before the history began.
    #[error("revision {requested} is not kept any more: the oldest that can be read is {oldest}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The oldest revision that can be read: of the keyspace, or of the key that was come across.
        oldest: Revision,
    },
    /// The revision has not been used yet.
    #[error("revision {requested} has not been used yet: the newest is {newest}")]
    NotYet {
        /// What was asked for.
        requested: Revision,
        /// The newest.
        newest: Revision,
    },
    /// The state could not be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl From<BackendError> for PastError {
    fn from(error: BackendError) -> Self {
        Self::Machine(error.into())
    }
}

impl Classified for PastError {
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

/// A keyspace as it was at a revision.
#[derive(Clone, Copy, Debug)]
pub struct Past<'s> {
    pub(crate) snapshot: &'s ReadView,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) revision: Revision,
    /// The oldest revision at which a key of which nothing is known was not there.
    pub(crate) gone: Revision,
    /// What had ended by then is hidden.
    pub(crate) time: SpaceTime,
}

/// How long a value was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// It is.
    Current,
    /// Its deadline or its lease's has passed; the entry that removes it is to come.
    Ended,
    /// Up to, and without, a revision.
    Until {
        /// The first revision at which it was not.
        revision: Revision,
        /// The space time of the entry that took it away, or in a delete of many keys somewhat later; `None` if
        /// that is not known yet.
        time: Option<SpaceTime>,
        /// What took it away.
        ending: Ending,
    },
}

/// What a key was for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The value, since when, and when it was to end.
    pub stored: Stored,
    /// How long.
    pub lasting: Lasting,
}

/// Versions of a key, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Those asked for.
    pub versions: Vec<Version>,
    /// Whether there are older ones that are kept.
    pub more: bool,
    /// From this revision on all versions of the key are kept.
    pub oldest: Revision,
}

impl ReadView {
    /// Whether there may be versions of a keyspace's keys.
    pub fn has_versions(&self, keyspace: KeyspaceId) -> Result<bool, MachineError> {
        Ok(HistoryRow::in_view(self.view(), keyspace)?.is_some())
    }

    /// Where in the log the value of a key's own row lies, as long as somebody may read it: be it ended or not, and
    /// where there may be versions also if a deleted prefix hides it.
    pub fn value_blob(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<BlobRef>, MachineError> {
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        let Some(Stored { revision, value: StoredValue::Blob(blob), .. }) = own else { return Ok(None) };
        let shown = self.sight_at(keyspace, self.applied().revision).shows(key, revision);
        Ok((shown || self.has_versions(keyspace)?).then_some(blob))
    }

    /// Where in the log the values of a key's versions lie: for whoever looks after the bytes.
    pub fn version_blobs(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Vec<BlobRef>, MachineError> {
        let mut blobs = Vec::new();
        crate::rows::load_rows(self.view(), &KeyRange::with_prefix(&key_prefix(keyspace, key)), |full, row| {
            if PastKey::of_version(full)?.revision.is_some() {
                blobs.extend(VersionRow::decode(full, row)?.blob(full)?);
            }
            Ok(())
        })?;
        Ok(blobs)
    }

    /// A version of a key by its own revision, be it its newest value or an older one.
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

    /// The keyspace as it was at a revision that its history reaches back to. What had ended at `time` is
    /// hidden; [`SpaceTime`] 0 hides nothing.
    pub fn past(&self, keyspace: KeyspaceId, revision: Revision, time: SpaceTime) -> Result<Past<'_>, PastError> {
        let HistoryRow { floor: oldest, gone, .. } = self.history(keyspace)?;
        let newest = self.applied().revision;
        if revision > newest {
            return Err(PastError::NotYet { requested: revision, newest });
        }
        if revision < oldest {
            return Err(PastError::Compacted { requested: revision, oldest });
        }
        Ok(Past { snapshot: self, keyspace, revision, gone, time })
    }

    /// The oldest revision that a keyspace's history reaches back to.
    pub fn history_floor(&self, keyspace: KeyspaceId) -> Result<Revision, PastError> {
        Ok(self.history(keyspace)?.floor)
    }

    fn history(&self, keyspace: KeyspaceId) -> Result<HistoryRow, PastError> {
        let found = HistoryRow::in_view(self.view(), keyspace)?;
        found.filter(|found| found.work != Work::Remove).ok_or(PastError::NoHistory)
    }

    /// The versions of a key, newest first: at most `limit`, and only those from before a revision.
    pub fn versions(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        before: Option<Revision>,
        limit: usize,
    ) -> Result<Versions, PastError> {
        let HistoryRow { floor, gone, .. } = self.history(keyspace)?;
        let forgotten = forgotten_row(keyspace, key);
        let forgotten = self.view().get(&forgotten)?.map(|row| Until::of_forgotten(&forgotten, &row)).transpose()?;
        let oldest = floor.max(forgotten.unwrap_or_default().revision);
        let mut found = Versions { versions: Vec::new(), more: false, oldest };
        let before = before.unwrap_or(Revision::MAX);
        let is_asked_for = |own: &Version| {
            let is_old = matches!(own.lasting, Lasting::Until { revision, .. } if revision <= oldest);
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
                // What a lowered bound or an earlier history has left, and a sweep will remove.
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
        found.oldest = oldest.max(gone.min(self.first_known(keyspace, key)?));
        Ok(found)
    }

    /// The oldest revision of a key that there is something of: from then on all of it is there.
    fn first_known(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Revision, MachineError> {
        let (prefix, end) = (key_prefix(keyspace, key), forgotten_row(keyspace, key));
        let mut found = Ok(None);
        self.view().scan(Bound::Included(&prefix), Bound::Excluded(&end), Direction::Reverse, &mut |full, _| {
            found = PastKey::of_version(full).map(|of| of.revision);
            ControlFlow::Break(())
        })?;
        if let Some(first) = found? {
            return Ok(first);
        }
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        Ok(own.map_or(Revision::MAX, |own| own.revision))
    }

    /// What a key's own row says.
    fn own_version(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Version>, MachineError> {
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        let Some(stored) = own else { return Ok(None) };
        let hidden = self.sight_at(keyspace, self.applied().revision).hidden_since(key, stored.revision);
        let lasting = match hidden {
            Some(revision) => Lasting::Until { revision, time: None, ending: Ending::Deleted },
            None if stored.expiry.is_live(self.time(), |id| Lease::in_view(self.view(), id))? => Lasting::Current,
            None => Lasting::Ended,
        };
        Ok(Some(Version { stored, lasting }))
    }
}

fn version(full: &[u8], row: &[u8]) -> Result<(Version, Until), MachineError> {
    let row = VersionRow::decode(full, row)?;
    let value = row.decoded(full)?;
    let Until { revision, time } = row.until;
    let stored = Stored { revision: value.revision, value: value.value.to_owned(), expiry: value.expiry };
    let lasting = Lasting::Until { revision, time: Some(time), ending: row.ending };
    Ok((Version { stored, lasting }, row.until))
}

impl<'s> Past<'s> {
    /// The revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The value that a key had.
    pub fn get(&self, key: &[u8]) -> Result<Option<Stored>, PastError> {
        let view = self.snapshot.view();
        let own = with_data_key(self.keyspace, key, |full| decode_owned(full, view.get(full)?))?;
        if let Some(own) = own.filter(|own| own.revision <= self.revision) {
            let shown = self.snapshot.sight_at(self.keyspace, self.revision).shows(key, own.revision);
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
            // Between two versions, or before what was forgotten of the key.
            Some(None) => self.check_known(self.forgotten(&upper)?).map(|()| None),
            None => self.check_known(self.forgotten(&upper)?.max(self.gone)).map(|()| None),
        }
    }

    /// Up to when versions of a key have been forgotten, by that row of its.
    fn forgotten(&self, row: &[u8]) -> Result<Revision, MachineError> {
        let found = self.snapshot.view().get(row)?.map(|found| Until::of_forgotten(row, &found)).transpose()?;
        Ok(found.unwrap_or_default().revision)
    }

    /// Nothing is known of a key for below `oldest`.
    pub(crate) fn check_known(&self, oldest: Revision) -> Result<(), PastError> {
        if oldest > self.revision {
            return Err(PastError::Compacted { requested: self.revision, oldest });
        }
        Ok(())
    }
}

fn owned_row(full: &[u8], row: &VersionRow<'_>) -> Result<Stored, MachineError> {
    let value = row.decoded(full)?;
    Ok(Stored { revision: value.revision, value: value.value.to_owned(), expiry: value.expiry })
}
