//! Keeping versions: preserving the value that a write replaces in a keyspace with history.
//!
//! Owns: adding versions, and forgetting them beyond the permitted number. Does not own: forgetting by age or after a
//! change of the settings (`prune`), or the encoding (`rows`).
//!
//! Every operation that removes a value (a put, a delete, a deadline, a deleted prefix and its sweep) calls
//! [`Applying::supersede`] first. The value becomes a version, which was current from its own revision until that of
//! the operation. The bytes of a large value stay where they are in the log and now belong to the version.
//!
//! A key has at most as many values, versions and the current one together, as the settings of its keyspace permit. A
//! put forgets the oldest versions beyond that. The removal of a key does not need to: its current value becomes a
//! version, so the number stays the same. Deletes of many keys in one command are therefore cheap, whatever number is
//! kept.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::atomic::Ordering,
};

use thalweg_store::{Direction, View};
use thalweg_types::{
    BlobRef, KeyspaceId, Revision, SpaceTime,
    command::KeyspaceHistory,
    steps::{READ, ROW, SCAN, WRITE, written_bytes},
};

use crate::{
    error::MachineError,
    expiry::rows::Expiry,
    history::rows::{
        HistoryKey, HistoryRow, NO_END, VersionEnd, VersionRow, VersionUpperBound, forgotten_row, history_row,
        history_rows, key_prefix, keyspace_of_history, time_row, version_row,
    },
    keys::{self, KeyRange},
    keyspaces::{catalog::KeyspaceKind, values::decode_value},
    machine::applying::Applying,
    segments::liveness::BlobKind,
    sync::read,
};

/// Maximum number of surplus versions that one put forgets after the permitted number of versions was lowered. The put
/// removes one version more, in exchange for the version that it adds. Maintenance forgets all others.
const MAX_FORGOTTEN_PER_WRITE: usize = 16;

/// Fields of a version (former value of a key) that are needed to forget it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredVersion {
    pub(crate) revision: Revision,
    pub(crate) until: VersionUpperBound,
    /// True if this former value was followed by a time in which the key had no value, because it was deleted or had
    /// ended.
    pub(crate) key_was_removed: bool,
    pub(crate) blob: Option<BlobRef>,
}

/// A version (former value) with a changed ending: its row key, the new first bytes of its row (the ending), and the
/// key of its index row by time.
struct EndedVersion {
    row: Vec<u8>,
    head: Vec<u8>,
    time_row: Vec<u8>,
}

impl StoredVersion {
    pub(crate) fn decode(revision: Revision, key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        let row = VersionRow::decode(key, row)?;
        Ok(Self { revision, until: row.until, key_was_removed: is_gone(row.ending), blob: row.blob(key)? })
    }
}

/// Returns the steps of work of keeping a value of this length as a version (former value). A delete pays nothing more.
pub(crate) fn added_price(value_bytes: usize) -> u64 {
    READ + 2 * WRITE + written_bytes(value_bytes)
}

/// Returns the maximum steps of work that a put pays for removing versions beyond the number that its keyspace keeps.
pub(crate) fn removed_price(history: KeyspaceHistory) -> u64 {
    /// Steps of work for the rows that the removal of one version reads and writes. Most puts remove at most one.
    const REMOVED: u64 = READ + 5 * WRITE;
    history.revisions.map_or(0, |revisions| SCAN + u64::from(revisions) * ROW + 2 * REMOVED)
}

fn is_gone(ending: VersionEnd) -> bool {
    ending != VersionEnd::Overwritten
}

/// Loads the history rows of all keyspaces (how far back former values reach) from a view.
pub(crate) fn load(view: &dyn View) -> Result<BTreeMap<KeyspaceId, HistoryRow>, MachineError> {
    let mut histories = BTreeMap::new();
    crate::rows::load_rows(view, &history_rows(), |key, row| {
        let keyspace = keyspace_of_history(key);
        let keyspace = keyspace.ok_or_else(|| MachineError::corrupt("keyspace history", key, "bad key"))?;
        histories.insert(keyspace, HistoryRow::decode(key, row)?);
        Ok(())
    })?;
    Ok(histories)
}

impl Applying<'_> {
    /// Returns true if the keyspace keeps former values of its keys.
    #[inline]
    pub(crate) fn keeps_history(&self, keyspace: KeyspaceId) -> bool {
        self.applier.kinds.of(keyspace) == KeyspaceKind::Configured && self.history_of(keyspace).is_kept()
    }

    /// Returns the settings of a keyspace's history: how many former values of a key it keeps, and for how long.
    pub(crate) fn history_of(&self, keyspace: KeyspaceId) -> KeyspaceHistory {
        let of = |row: &crate::keyspaces::catalog::KeyspaceRow| {
            if row.is_live() { row.config.history } else { Default::default() }
        };
        match self.applier.pending.keyspaces.get(&keyspace) {
            Some(row) => row.as_ref().map(of).unwrap_or_default(),
            None => read(&self.machine.published.keyspaces).row(keyspace).map(of).unwrap_or_default(),
        }
    }

    /// Sets the row of a keyspace's history; `None` deletes the row.
    pub(crate) fn set_history(&mut self, keyspace: KeyspaceId, row: Option<HistoryRow>) {
        match row {
            Some(row) => {
                self.applier.staged.put(&[&history_row(keyspace)], &[&row.encode()]);
                self.applier.histories.insert(keyspace, row);
                self.machine.published.has_histories.store(true, Ordering::Relaxed);
            }
            None => {
                self.applier.staged.delete(&[&history_row(keyspace)]);
                self.applier.histories.remove(&keyspace);
            }
        }
    }

    fn floor_of(&self, keyspace: KeyspaceId) -> Revision {
        self.applier.histories.get(&keyspace).map_or(Revision::MAX, |history| history.floor)
    }

    /// Keeps the current value of a key as a version, if its keyspace has a history. Commands call this before they
    /// remove or replace the value, and before a put to a key without a value. `revision` is the command's revision. A
    /// value is not kept if it was written with the same revision, or if no readable revision of the history includes
    /// it. Returns the length of the kept value; its bytes in the log stay live, and the caller charges them.
    pub(crate) fn supersede(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        ending: VersionEnd,
    ) -> Result<Option<usize>, MachineError> {
        if !self.keeps_history(keyspace) {
            return Ok(None);
        }
        let kept_bytes = self.keep_current(keyspace, key, revision, ending)?;
        if ending == VersionEnd::Overwritten
            && let Some(revisions) = self.history_of(keyspace).revisions
        {
            // The newest value will be in the key's own row.
            self.forget_above(keyspace, key, revisions.saturating_sub(1) as usize)?;
        }
        Ok(kept_bytes)
    }

    /// Stores the current value of a key as a version (former value). Returns its length; `None` if none is stored.
    fn keep_current(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        ending: VersionEnd,
    ) -> Result<Option<usize>, MachineError> {
        let full = [&keys::data_prefix(keyspace), key].concat();
        let Some(row) = self.get(&full)? else { return Ok(None) };
        let found = decode_value(&full, &row)?;
        let (until, ending) = match self.visibility(keyspace).hidden_since(key, found.revision) {
            Some(since) => (since, VersionEnd::Deleted),
            None => (revision, ending),
        };
        if found.revision >= until && is_gone(ending) {
            self.end_newest(keyspace, key, found.revision, ending)?;
        }
        if found.revision >= until || until <= self.floor_of(keyspace) {
            return Ok(None);
        }
        let (end, time) = (self.end_of(&found.expiry)?, self.applied.time);
        let ending = if ending == VersionEnd::Overwritten && end <= time { VersionEnd::Expired } else { ending };
        let until = VersionUpperBound { revision: until, time };
        self.add_version(keyspace, key, found.revision, &VersionRow { until, end, ending, value: &row });
        Ok(Some(found.value.value_len()))
    }

    /// Changes the ending of the version (former value) that the current command has added by a put at the revision
    /// `at`. The command has removed the new value since, so the key has no value after that version.
    fn end_newest(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        at: Revision,
        ending: VersionEnd,
    ) -> Result<(), MachineError> {
        let Some(ended) = self.overwritten_at(keyspace, key, at, ending)? else { return Ok(()) };
        if let Some(overwritten) = self.applier.staged.put_beginning(&ended.row, |_| Some(ended.head)) {
            self.note_overwritten(overwritten);
        }
        self.applier.staged.put(&[&ended.time_row], &[]);
        Ok(())
    }

    /// Returns the former value that the current log entry has overwritten at the revision `at`, encoded with the new
    /// `ending`.
    fn overwritten_at(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        at: Revision,
        ending: VersionEnd,
    ) -> Result<Option<EndedVersion>, MachineError> {
        let range = KeyRange::with_prefix(&key_prefix(keyspace, key));
        let mut own = self.applier.staged.changes_within(range.lower(), range.upper());
        let Some((row, version)) = own.find_map(|(row, version, _)| Some((row, version?))) else { return Ok(None) };
        if HistoryKey::of_version(row)?.revision.is_none() {
            return Ok(None);
        }
        let version = VersionRow::decode(row, version)?;
        if version.until.revision != at || is_gone(version.ending) {
            return Ok(None);
        }
        let head = VersionRow { ending, ..version }.head().to_vec();
        let time_row = time_row(keyspace, version.until.time, row);
        Ok(Some(EndedVersion { row: row.to_vec(), head, time_row }))
    }

    /// Returns the time at which a value with this expiry has ended; `NO_END` if it has not ended at the entry's time.
    fn end_of(&self, expiry: &Expiry) -> Result<SpaceTime, MachineError> {
        let of_lease = match expiry.lease {
            Some(id) => Some(self.lease(id)?.map_or(SpaceTime(0), |lease| lease.deadline)),
            None => None,
        };
        let end = expiry.deadline.into_iter().chain(of_lease).min();
        Ok(end.filter(|&end| end <= self.applied.time).unwrap_or(NO_END))
    }

    fn add_version(&mut self, keyspace: KeyspaceId, key: &[u8], revision: Revision, version: &VersionRow<'_>) {
        let row = version_row(keyspace, key, revision);
        self.applier.staged.put(&[&row], &[&version.head(), version.value]);
        if self.history_of(keyspace).age.is_some() || is_gone(version.ending) {
            self.applier.staged.put(&[&time_row(keyspace, version.until.time, &row)], &[]);
        }
    }

    /// Removes the oldest versions (former values) of a key until `max` are left.
    fn forget_above(&mut self, keyspace: KeyspaceId, key: &[u8], max: usize) -> Result<(), MachineError> {
        let (mut excess, mut room) = (Vec::new(), max);
        let range = KeyRange::with_prefix(&key_prefix(keyspace, key));
        let mut failure = None;
        self.view().scan(range.lower(), range.upper(), Direction::Forward, &mut |full, row| {
            let kept = HistoryKey::of_version(full).and_then(|of| match of.revision {
                Some(revision) => StoredVersion::decode(revision, full, row).map(Some),
                None => Ok(None),
            });
            match kept {
                Ok(None) => {}
                Ok(Some(_)) if room > 0 => room -= 1,
                Ok(Some(kept)) => excess.push(kept),
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            }
            if excess.len() > MAX_FORGOTTEN_PER_WRITE { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failure.map_or(Ok(()), Err)?;
        excess.iter().try_for_each(|kept| self.forget_version(keyspace, key, kept))
    }

    /// Forgets (removes) a version (former value) of a key, and notes in the key's row of forgotten versions that the
    /// values of the key are unknown up to the end of this version.
    pub(crate) fn forget_version(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        kept: &StoredVersion,
    ) -> Result<(), MachineError> {
        self.remove_version(keyspace, key, kept);
        let row = forgotten_row(keyspace, key);
        let before = self.get(&row)?.map(|found| VersionUpperBound::of_forgotten(&row, &found)).transpose()?;
        if before.is_some_and(|before| before.revision >= kept.until.revision) {
            return Ok(());
        }
        if let Some(before) = before {
            self.applier.staged.delete(&[&time_row(keyspace, before.time, &row)]);
        }
        self.applier.staged.put(&[&row], &[&kept.until.encode()]);
        if self.history_of(keyspace).age.is_some() {
            self.applier.staged.put(&[&time_row(keyspace, kept.until.time, &row)], &[]);
        }
        Ok(())
    }

    /// Removes the rows of a version (former value). If the value is in the log, also lowers the live bytes of the
    /// value's segment.
    pub(crate) fn remove_version(&mut self, keyspace: KeyspaceId, key: &[u8], kept: &StoredVersion) {
        let row = version_row(keyspace, key, kept.revision);
        self.applier.staged.delete(&[&row]);
        self.applier.staged.delete(&[&time_row(keyspace, kept.until.time, &row)]);
        if let Some(blob) = &kept.blob {
            self.lower(BlobKind::Value, blob);
        }
    }
}

/// Key and content of one row of the store.
pub(crate) type FullRow = (Vec<u8>, Vec<u8>);

/// Returns the row of the former value of a key that has `blob` as the pointer to its value; `None` if no version has
/// it.
pub(crate) fn version_at(
    view: &dyn View,
    keyspace: KeyspaceId,
    key: &[u8],
    blob: &BlobRef,
) -> Result<Option<FullRow>, MachineError> {
    let range = KeyRange::with_prefix(&key_prefix(keyspace, key));
    let (mut found, mut failure) = (None, None);
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |full, row| {
        let at = HistoryKey::of_version(full).and_then(|of| match of.revision {
            Some(_) => VersionRow::decode(full, row)?.blob(full),
            None => Ok(None),
        });
        match at {
            Ok(at) if at.as_ref() == Some(blob) => found = Some((full.to_vec(), row.to_vec())),
            Ok(_) => return ControlFlow::Continue(()),
            Err(error) => failure = Some(error),
        }
        ControlFlow::Break(())
    })?;
    failure.map_or(Ok(found), Err)
}

/// Returns the range of all rows with the prefix that follow the row `last`, which is given without the prefix. If
/// `last` is empty, the range has all rows with the prefix.
pub(crate) fn rows_after(prefix: &[u8], last: &[u8]) -> KeyRange {
    let mut range = KeyRange::with_prefix(prefix);
    if !last.is_empty() {
        range.set_lower(Bound::Excluded([prefix, last].concat()));
    }
    range
}
