//! Versions as the machine keeps them: what a write to a keyspace with history makes of the value it replaces.
//!
//! Whatever takes a value away (a put, a delete, a deadline, a deleted prefix and its sweep) calls
//! [`Applying::supersede`] before it does, or, where that is planned and performed, [`Applying::superseded`] and
//! [`Applying::keep_version`]. The value becomes a version that was there from its revision on until the one that
//! takes it away; a large value's bytes stay where they are in the log, and belong to the version now.
//!
//! A key has at most as many versions as its keyspace keeps: a write that adds one forgets the oldest.
//! Does not own what goes with age, nor with a change of bounds (see `prune`).
//!
//! Invariant: in a keyspace with history the overlay knows every key that the entry wrote, so a value that one
//! command of an entry writes and another replaces is kept, too.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, ControlFlow},
};

use thalweg_types::{BlobRef, KeyspaceId, Revision, SpaceTime, command::KeyspaceHistory};

use crate::{
    backend::{Direction, View},
    catalog::KeyspaceKind,
    expiry::Expiry,
    keys::{self, KeyRange},
    keyspaces::{StoredRef, decode_value, encode_value},
    liveness::BlobKind,
    machine::{
        MachineError,
        commit::blob_at,
        entry::Applying,
        live::{LiveKey, LiveValue},
        overlay::Overlay,
        read,
    },
    versions::{
        Ending, HistoryRow, NO_END, PastKey, Until, VersionRow, forgotten_row, history_row, history_rows, key_prefix,
        keyspace_of_history, time_row, version_row,
    },
};

/// Versions that one write forgets beyond the one that it adds, after the bound was lowered. The rest is for
/// the sweep.
const MAX_FORGOTTEN_PER_WRITE: usize = 16;

/// What the current record changes about versions.
#[derive(Debug, Default)]
pub(crate) struct PendingVersions {
    /// By key.
    pub(super) touched: BTreeMap<(KeyspaceId, Vec<u8>), Touched>,
    /// Keyspaces whose history the record has changed the bounds of.
    pub(super) reconfigured: BTreeSet<KeyspaceId>,
    /// Rows that it has looked at to forget them.
    pub(super) pruned_rows: u32,
}

impl PendingVersions {
    pub(crate) fn clear(&mut self) {
        self.touched.clear();
        self.reconfigured.clear();
        self.pruned_rows = 0;
    }
}

/// What the current record made of a key's versions: the backend does not show it yet.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Added and still there, oldest first.
    pub(super) added: Vec<Kept>,
    /// Of those that the backend shows.
    pub(super) pruned: BTreeSet<Revision>,
    /// The row of what has been forgotten.
    pub(super) forgotten: Option<Until>,
}

/// What must be known of a version to forget it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) revision: Revision,
    pub(super) until: Until,
    /// Whether the key was not there from then on.
    pub(super) is_gone: bool,
    pub(super) blob: Option<BlobRef>,
}

impl Kept {
    pub(super) fn decode(revision: Revision, key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        let row = VersionRow::decode(key, row)?;
        Ok(Self { revision, until: row.until, is_gone: is_gone(row.ending), blob: row.blob(key)? })
    }
}

fn is_gone(ending: Ending) -> bool {
    ending != Ending::Overwritten
}

/// A value that is about to become a version.
#[derive(Debug)]
pub(crate) struct Superseded {
    keyspace: KeyspaceId,
    key: Vec<u8>,
    kept: Kept,
    end: SpaceTime,
    ending: Ending,
    /// As its row was.
    value: Vec<u8>,
}

/// The histories as stored.
pub(crate) fn load(view: &dyn View) -> Result<BTreeMap<KeyspaceId, HistoryRow>, MachineError> {
    let mut histories = BTreeMap::new();
    crate::machine::load_rows(view, &history_rows(), |key, row| {
        let keyspace = keyspace_of_history(key);
        let keyspace = keyspace.ok_or_else(|| MachineError::corrupt("keyspace history", key, "bad key"))?;
        histories.insert(keyspace, HistoryRow::decode(key, row)?);
        Ok(())
    })?;
    Ok(histories)
}

impl Applying<'_> {
    /// Whether what writes to a keyspace replace is kept.
    #[inline]
    pub(crate) fn keeps_history(&self, keyspace: KeyspaceId) -> bool {
        self.applier.kinds.of(keyspace) == KeyspaceKind::Configured && self.history_of(keyspace).is_kept()
    }

    /// The bounds of a keyspace's history.
    pub(super) fn history_of(&self, keyspace: KeyspaceId) -> KeyspaceHistory {
        let of =
            |row: &crate::catalog::KeyspaceRow| if row.is_live() { row.config.history } else { Default::default() };
        match self.applier.pending.keyspaces.get(&keyspace) {
            Some(row) => row.as_ref().map(of).unwrap_or_default(),
            None => read(&self.machine.published.keyspaces).row(keyspace).map(of).unwrap_or_default(),
        }
    }

    /// Replaces the row of a keyspace's history.
    pub(super) fn set_history(&mut self, keyspace: KeyspaceId, row: Option<HistoryRow>) {
        match row {
            Some(row) => {
                self.applier.batch.put(&[&history_row(keyspace)], &[&row.encode()]);
                self.applier.histories.insert(keyspace, row);
            }
            None => {
                self.applier.batch.delete(&[&history_row(keyspace)]);
                self.applier.histories.remove(&keyspace);
            }
        }
    }

    fn floor_of(&self, keyspace: KeyspaceId) -> Revision {
        self.applier.histories.get(&keyspace).map_or(Revision::MAX, |history| history.floor)
    }

    /// Keeps the value that a key has, if its keyspace has a history, before the command of `revision` takes it
    /// away. Says whether it did: then the bytes of a large value are still wanted.
    pub(crate) fn supersede(
        &mut self,
        overlay: &Overlay<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        ending: Ending,
    ) -> Result<bool, MachineError> {
        match self.superseded(overlay, keyspace, key, revision, ending)? {
            Some(superseded) => self.keep_version(superseded).map(|()| true),
            None => Ok(false),
        }
    }

    /// What [`supersede`](Self::supersede) would keep. Nothing of a value that has the same revision, or that
    /// nobody could read at any that the history reaches back to.
    pub(crate) fn superseded(
        &self,
        overlay: &Overlay<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        ending: Ending,
    ) -> Result<Option<Superseded>, MachineError> {
        if !self.keeps_history(keyspace) {
            return Ok(None);
        }
        match overlay.get(keyspace, key) {
            Some(None) => Ok(None),
            Some(Some(live)) => {
                let value = self.encoded(live);
                self.as_version(keyspace, key, value.into(), revision, ending)
            }
            None => {
                let full = [&keys::data_prefix(keyspace), key].concat();
                let Some(row) = self.machine.backend.get(&full)? else { return Ok(None) };
                let found = decode_value(&full, &row)?;
                match self.hidden_since(overlay, keyspace, key, found.revision, revision) {
                    Some(since) => self.as_version(keyspace, key, row[..].into(), since, Ending::Deleted),
                    None => self.as_version(keyspace, key, row[..].into(), revision, ending),
                }
            }
        }
    }

    /// The first delete of a prefix that hides a row; `now` if it is one of the command being run.
    fn hidden_since(
        &self,
        overlay: &Overlay<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        now: Revision,
    ) -> Option<Revision> {
        let known = self.sight(keyspace).hidden_since(key, revision);
        let pending = self.applier.pending.clears.iter().filter_map(|((of, prefix), clear)| {
            let clear = clear.as_ref().filter(|clear| *of == keyspace && clear.revision > revision)?;
            key.starts_with(prefix).then_some(clear.revision)
        });
        known.into_iter().chain(pending).min().or_else(|| overlay.is_cleared(keyspace, key).then_some(now))
    }

    fn as_version(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        value: Cow<'_, [u8]>,
        until: Revision,
        ending: Ending,
    ) -> Result<Option<Superseded>, MachineError> {
        let found = decode_value(key, &value)?;
        if found.revision >= until || until <= self.floor_of(keyspace) {
            return Ok(None);
        }
        let blob = found.value.blob();
        let end = self.end_of(&found.expiry)?;
        let time = self.applied.time;
        let ending = if ending == Ending::Overwritten && end <= time { Ending::Expired } else { ending };
        let until = Until { revision: until, time };
        let kept = Kept { revision: found.revision, until, is_gone: is_gone(ending), blob };
        Ok(Some(Superseded { keyspace, key: key.to_vec(), kept, end, ending, value: value.into_owned() }))
    }

    /// When what ends so has ended; far off if it has not at the entry's time.
    fn end_of(&self, expiry: &Expiry) -> Result<SpaceTime, MachineError> {
        let of_lease = match expiry.lease {
            Some(id) => Some(self.lease(id)?.map_or(SpaceTime(0), |lease| lease.deadline)),
            None => None,
        };
        let end = expiry.deadline.into_iter().chain(of_lease).min();
        Ok(end.filter(|&end| end <= self.applied.time).unwrap_or(NO_END))
    }

    /// The row that the backend will have for what the entry made of a key.
    fn encoded(&self, live: &LiveKey<'_>) -> Vec<u8> {
        let number;
        let value = match &live.value {
            LiveValue::Number(value) => {
                number = value.to_string();
                StoredRef::Inline(number.as_bytes())
            }
            LiveValue::Stored(value) => value.as_ref(),
            LiveValue::Written(bytes, _) if bytes.len() <= self.machine.options.inline_value_bytes => {
                StoredRef::Inline(bytes)
            }
            LiveValue::Written(bytes, at) => StoredRef::Blob(blob_at(*at, bytes)),
        };
        encode_value(live.revision, &live.expiry, value)
    }

    /// Adds a version, and forgets the oldest ones above the keyspace's bound.
    pub(crate) fn keep_version(&mut self, superseded: Superseded) -> Result<(), MachineError> {
        let Superseded { keyspace, key, kept, end, ending, value } = superseded;
        let history = self.history_of(keyspace);
        let row = version_row(keyspace, &key, kept.revision);
        let head = VersionRow { until: kept.until, end, ending, value: &value }.head();
        self.applier.batch.put(&[&row], &[&head, &value]);
        if history.age.is_some() || kept.is_gone {
            self.applier.batch.put(&[&time_row(keyspace, kept.until.time, &row)], &[]);
        }
        let touched = self.applier.pending.versions.touched.entry((keyspace, key.clone())).or_default();
        touched.added.push(kept);
        match history.revisions {
            // The newest revision is the key's own row.
            Some(revisions) => self.forget_above(keyspace, &key, revisions.saturating_sub(1) as usize),
            None => Ok(()),
        }
    }

    /// Forgets the oldest versions of a key that the entry has touched, so that `max` are left.
    fn forget_above(&mut self, keyspace: KeyspaceId, key: &[u8], max: usize) -> Result<(), MachineError> {
        let touched = &self.applier.pending.versions.touched[&(keyspace, key.to_vec())];
        let mut excess: Vec<Kept> = touched.added[..touched.added.len().saturating_sub(max)].to_vec();
        let mut room = max.saturating_sub(touched.added.len());
        let range = KeyRange::with_prefix(&key_prefix(keyspace, key));
        let mut failure = None;
        let view = self.machine.backend.view();
        view.scan(range.lower(), range.upper(), Direction::Forward, &mut |full, row| {
            let kept = PastKey::of_version(full).and_then(|of| match of.revision {
                Some(revision) if !touched.pruned.contains(&revision) => Kept::decode(revision, full, row).map(Some),
                _ => Ok(None),
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

    /// Forgets a version, and says so in the row of what has been forgotten of its key.
    pub(super) fn forget_version(&mut self, keyspace: KeyspaceId, key: &[u8], kept: &Kept) -> Result<(), MachineError> {
        self.remove_version(keyspace, key, kept);
        let row = forgotten_row(keyspace, key);
        let before = match self.touched(keyspace, key).forgotten {
            Some(before) => Some(before),
            None => self.machine.backend.get(&row)?.map(|found| Until::of_forgotten(&row, &found)).transpose()?,
        };
        if before.is_some_and(|before| before.revision >= kept.until.revision) {
            return Ok(());
        }
        if let Some(before) = before {
            self.applier.batch.delete(&[&time_row(keyspace, before.time, &row)]);
        }
        self.applier.batch.put(&[&row], &[&kept.until.encode()]);
        if self.history_of(keyspace).age.is_some() {
            self.applier.batch.put(&[&time_row(keyspace, kept.until.time, &row)], &[]);
        }
        self.touched(keyspace, key).forgotten = Some(kept.until);
        Ok(())
    }

    /// Removes a version's rows, and gives up its bytes in the log.
    pub(super) fn remove_version(&mut self, keyspace: KeyspaceId, key: &[u8], kept: &Kept) {
        let row = version_row(keyspace, key, kept.revision);
        self.applier.batch.delete(&[&row]);
        self.applier.batch.delete(&[&time_row(keyspace, kept.until.time, &row)]);
        if let Some(blob) = &kept.blob {
            self.lower(BlobKind::Value, blob);
        }
        let touched = self.touched(keyspace, key);
        touched.added.retain(|added| added.revision != kept.revision);
        touched.pruned.insert(kept.revision);
    }

    fn touched(&mut self, keyspace: KeyspaceId, key: &[u8]) -> &mut Touched {
        self.applier.pending.versions.touched.entry((keyspace, key.to_vec())).or_default()
    }
}

/// A row's key in the map, and its value.
pub(super) type FullRow = (Vec<u8>, Vec<u8>);

/// The version of a key whose value lies at a place in the log.
pub(super) fn version_at(
    view: &dyn View,
    keyspace: KeyspaceId,
    key: &[u8],
    blob: &BlobRef,
) -> Result<Option<FullRow>, MachineError> {
    let range = KeyRange::with_prefix(&key_prefix(keyspace, key));
    let (mut found, mut failure) = (None, None);
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |full, row| {
        let at = PastKey::of_version(full).and_then(|of| match of.revision {
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

/// All rows behind this one of the same kind and keyspace.
pub(super) fn rows_after(prefix: &[u8], last: &[u8]) -> KeyRange {
    let mut range = KeyRange::with_prefix(prefix);
    if !last.is_empty() {
        range.set_lower(Bound::Excluded([prefix, last].concat()));
    }
    range
}
