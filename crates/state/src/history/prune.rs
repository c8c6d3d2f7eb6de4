//! Forgetting versions (former values of keys): those past their keyspace's maximum age, those of keyspaces that no
//! longer keep history, and those that changed settings exclude. A command examines a bounded number of rows; age is
//! measured by the time of entries.
//!
//! Owns: the command by which maintenance forgets versions, the floor of each keyspace (its oldest readable revision),
//! and the check for pending work. Does not own: the bound on the number of versions, which the write that adds a
//! version enforces (see `keep_versions`).
//!
//! If a history has no maximum age, the versions of a key from before it was deleted or had ended are also forgotten
//! after [`DELETED_HISTORY_AGE`], oldest first, so that the key's remaining history has no gaps. Then the key may have
//! no row that could record this. Instead, the keyspace's `gone` rises: below that revision, the state of a key without
//! rows is unknown.
//!
//! Every revision within the maximum age stays readable, for this reason: a version is removed for its age only if the
//! entry that superseded it is at least `age` older than the current entry. The floor rises to that entry's revision,
//! and no revision that was current within `age` is below it.

use std::ops::{Bound, ControlFlow};

use thalweg_store::{Direction, View};
use thalweg_types::{
    BlobRef, KeyspaceId, Revision, SpaceTime,
    command::{KeyspaceConfig, KeyspaceHistory, Outcome},
    limits::{DELETED_HISTORY_AGE, MAX_PRUNED_VERSIONS},
};

use crate::{
    error::MachineError,
    history::{
        keep_versions::{FullRow, StoredVersion, rows_after},
        rows::{
            HistoryKey, HistoryRow, HistoryWork, PREFIX_LEN, VersionRow, VersionUpperBound, forgotten_row,
            history_rows, keyspace_of_history, time_row, times_prefix, versions_prefix,
        },
    },
    keys::{self, KeyRange},
    keyspaces::catalog::KeyspaceRow,
    machine::{applying::Applying, state_machine::Machine},
    refused::Refused,
    sync::read,
};

/// Bytes of examined rows after which one pruning command ends.
const MAX_PRUNED_BYTES: usize = 8 * 1024 * 1024;

impl Applying<'_> {
    /// Applies the history settings of a keyspace that is created or configured. `before` are the previous settings,
    /// `after` the new ones.
    pub(crate) fn configure_history(&mut self, id: KeyspaceId, before: KeyspaceHistory, after: KeyspaceHistory) {
        if before == after {
            return;
        }
        let known = self.applier.histories.get(&id);
        // Versions of an earlier period with history are below the new floor.
        let floor = match known {
            Some(known) if before.is_kept() => known.floor,
            _ => self.applied.revision,
        };
        let work = match (known, after.is_kept()) {
            (None, true) => HistoryWork::Settled,
            (Some(_), true) => HistoryWork::ApplyBounds { kept: 0, last: Vec::new() },
            (_, false) => HistoryWork::Remove,
        };
        let gone = known.map_or(floor, |known| known.gone);
        self.set_history(id, Some(HistoryRow { floor, gone, work }));
    }

    /// Schedules all versions (former values) of a dropped keyspace for removal.
    pub(crate) fn drop_history(&mut self, id: KeyspaceId) {
        if let Some(history) = self.applier.histories.get(&id) {
            let history = HistoryRow { work: HistoryWork::Remove, ..history.clone() };
            self.set_history(id, Some(history));
        }
    }
}

/// Examines up to `max` rows of versions, beginning with those of the keyspace `from`, and forgets versions that the
/// settings of their keyspace exclude.
pub(crate) fn prune(applying: &mut Applying<'_>, from: KeyspaceId, max: u32) -> Result<Outcome, Refused> {
    let max = max.min(MAX_PRUNED_VERSIONS);
    let mut round = Round { left: max, bytes: 0 };
    let mut more = false;
    let histories = &applying.applier.histories;
    for id in histories.range(from..).chain(histories.range(..from)).map(|(id, _)| *id).collect::<Vec<_>>() {
        if round.is_done() {
            more = true;
            break;
        }
        round.keyspace(applying, id)?;
    }
    Ok(Outcome::Reclaimed { entries: max - round.left, more: more || round.is_done() })
}

/// Work that is left to one pruning command, which removes versions (former values).
struct Round {
    /// Number of rows of former values that the pruning command may still examine.
    left: u32,
    /// Bytes of the rows examined so far. Every value counts with its full length, so the sum is the same whether a
    /// node stores the value inline or in the log.
    bytes: usize,
}

/// Returns the length in bytes of a former value's row plus the value, whether the value is in the row or in the log.
fn full_len(key: &[u8], row: &[u8]) -> usize {
    let blob = VersionRow::decode(key, row).ok().and_then(|version| version.blob(key).ok()?);
    let row_len = blob.map_or(row.len(), |blob| row.len() - BlobRef::ENCODED_LEN + blob.len as usize);
    key.len() + row_len
}

impl Round {
    fn is_done(&self) -> bool {
        self.left == 0 || self.bytes >= MAX_PRUNED_BYTES
    }

    fn keyspace(&mut self, applying: &mut Applying<'_>, id: KeyspaceId) -> Result<(), MachineError> {
        let history = applying.applier.histories[&id].clone();
        match history.work {
            HistoryWork::Remove => return self.remove(applying, id),
            HistoryWork::ApplyBounds { kept, ref last } => self.apply_new_bounds(applying, id, &history, kept, last)?,
            HistoryWork::Settled => {}
        }
        if self.is_done() {
            return Ok(());
        }
        let bounds = applying.history_of(id);
        let Some(time) = forgotten_by(bounds, applying.applied.time) else { return Ok(()) };
        match bounds.age {
            Some(_) => self.forget_old(applying, id, time),
            None => self.forget_gone(applying, id, time),
        }
    }

    /// Reads the next rows of a range, until the command has done the work that it may do. The flag is true if the rows
    /// reach the range's end.
    fn rows(&mut self, applying: &Applying<'_>, range: &KeyRange) -> Result<(Vec<FullRow>, bool), MachineError> {
        self.rows_towards(applying, range, Direction::Forward)
    }

    fn rows_towards(
        &mut self,
        applying: &Applying<'_>,
        range: &KeyRange,
        to: Direction,
    ) -> Result<(Vec<FullRow>, bool), MachineError> {
        let (mut rows, mut all) = (Vec::new(), true);
        applying.view().scan(range.lower(), range.upper(), to, &mut |key, row| {
            if self.is_done() {
                all = false;
                return ControlFlow::Break(());
            }
            self.left -= 1;
            self.bytes += full_len(key, row);
            rows.push((key.to_vec(), row.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok((rows, all))
    }

    /// Removes the rows of former values of a keyspace without history, and finally its history row.
    fn remove(&mut self, applying: &mut Applying<'_>, id: KeyspaceId) -> Result<(), MachineError> {
        let (versions, mut all) = self.rows(applying, &KeyRange::with_prefix(&versions_prefix(id)))?;
        for (key, row) in &versions {
            let of = HistoryKey::of_version(key)?;
            match of.revision {
                Some(revision) => applying.remove_version(id, &of.key, &StoredVersion::decode(revision, key, row)?),
                None => applying.applier.staged.delete(&[key]),
            }
        }
        if all {
            let (times, no_more) = self.rows(applying, &KeyRange::with_prefix(&times_prefix(id)))?;
            times.iter().for_each(|(key, _)| applying.applier.staged.delete(&[key]));
            all = no_more;
        }
        if all {
            applying.set_history(id, None);
        }
        Ok(())
    }

    /// Continues to adapt the rows of former values of a keyspace to its changed settings, after the row `last`.
    fn apply_new_bounds(
        &mut self,
        applying: &mut Applying<'_>,
        id: KeyspaceId,
        history: &HistoryRow,
        kept: u32,
        last: &[u8],
    ) -> Result<(), MachineError> {
        let bounds = applying.history_of(id);
        let (rows, all) = self.rows(applying, &rows_after(&versions_prefix(id), last))?;
        let mut kept = kept;
        let mut current = match last {
            [] => None,
            last => Some(HistoryKey::of_version(&[&versions_prefix(id), last].concat())?.key),
        };
        for (key, row) in &rows {
            let of = HistoryKey::of_version(key)?;
            if current.as_ref() != Some(&of.key) {
                kept = 0;
                current = Some(of.key.clone());
            }
            let mut is_gone = false;
            let until = match of.revision {
                // The removal of the key's versions, whose rows are before this one, may have changed this row.
                None => match applying.get(key)? {
                    Some(row) => VersionUpperBound::of_forgotten(key, &row)?,
                    None => continue,
                },
                Some(revision) => {
                    let version = StoredVersion::decode(revision, key, row)?;
                    if version.until.revision <= history.floor {
                        applying.remove_version(id, &of.key, &version);
                        continue;
                    }
                    if let Some(revisions) = bounds.revisions
                        && kept + 1 >= revisions
                        && (kept >= revisions || has_row(applying, id, &of.key)?)
                    {
                        applying.forget_version(id, &of.key, &version)?;
                        continue;
                    }
                    kept += 1;
                    is_gone = version.key_was_removed;
                    version.until
                }
            };
            self.set_time(applying, id, key, &of, until, history.floor, bounds.age.is_some() || is_gone);
        }
        let work = match rows.last() {
            Some((key, _)) if !all => HistoryWork::ApplyBounds { kept, last: key[PREFIX_LEN..].to_vec() },
            _ if all => HistoryWork::Settled,
            _ => HistoryWork::ApplyBounds { kept, last: last.to_vec() },
        };
        applying.set_history(id, Some(HistoryRow { work, ..history.clone() }));
        Ok(())
    }

    /// Updates the index row by time of a version that stays. Writes the index row if the keyspace forgets versions by
    /// age, or if a deletion ended the version; deletes it otherwise. Also removes an outdated row of forgotten
    /// versions.
    #[expect(clippy::too_many_arguments, reason = "one row, as it was read and decoded")]
    fn set_time(
        &self,
        applying: &mut Applying<'_>,
        id: KeyspaceId,
        key: &[u8],
        of: &HistoryKey,
        until: VersionUpperBound,
        floor: Revision,
        is_bounded: bool,
    ) {
        let batch = &mut applying.applier.staged;
        let time = time_row(id, until.time, key);
        if of.revision.is_none() && until.revision <= floor {
            batch.delete(&[key]);
            batch.delete(&[&time]);
            return;
        }
        if is_bounded {
            batch.put(&[&time], &[]);
        } else {
            batch.delete(&[&time]);
        }
    }

    /// Forgets the former versions of all keys that were deleted or expired at `time` or before, from before that
    /// happened.
    fn forget_gone(
        &mut self,
        applying: &mut Applying<'_>,
        id: KeyspaceId,
        time: SpaceTime,
    ) -> Result<(), MachineError> {
        // This scan does not count towards the budget, but the removals do. They need at least as many rows and bytes
        // as the scan. So if the scan is cut short, the removals use up the budget.
        let (left, bytes) = (self.left, self.bytes);
        let (rows, _) = self.rows(applying, &superseded_by(id, time))?;
        (self.left, self.bytes) = (left, bytes);
        for (key, _) in &rows {
            if self.is_done() {
                break;
            }
            let (_, of) = HistoryKey::of_time(key)?;
            let row = of.row(id);
            let found = applying.get(&row)?;
            let (Some(revision), Some(found)) = (of.revision, found) else {
                self.left -= 1;
                self.bytes += key.len();
                applying.applier.staged.delete(&[key]);
                continue;
            };
            let gone = StoredVersion::decode(revision, &row, &found)?.until.revision;
            self.forget_before(applying, id, &of, gone)?;
        }
        Ok(())
    }

    /// Forgets the version `of` and all older versions of its key, the oldest first. Raises the keyspace's revision
    /// `gone`, below which the state of a key without rows is unknown.
    fn forget_before(
        &mut self,
        applying: &mut Applying<'_>,
        id: KeyspaceId,
        of: &HistoryKey,
        gone: Revision,
    ) -> Result<(), MachineError> {
        let forgotten = forgotten_row(id, &of.key);
        let mut range = KeyRange::with_prefix(&versions_prefix(id));
        range.set_lower(Bound::Included(of.row(id)));
        range.set_upper(Bound::Excluded(forgotten.clone()));
        let (rows, all) = self.rows_towards(applying, &range, Direction::Reverse)?;
        for (key, row) in &rows {
            let Some(revision) = HistoryKey::of_version(key)?.revision else { continue };
            applying.remove_version(id, &of.key, &StoredVersion::decode(revision, key, row)?);
        }
        if all {
            applying.applier.staged.delete(&[&forgotten]);
        }
        let history = applying.applier.histories[&id].clone();
        applying.set_history(id, Some(HistoryRow { gone: history.gone.max(gone), ..history }));
        Ok(())
    }

    /// Forgets versions that were superseded at `time` or before, and raises the oldest readable revision of the
    /// keyspace to the highest revision at which such a version ended.
    fn forget_old(&mut self, applying: &mut Applying<'_>, id: KeyspaceId, time: SpaceTime) -> Result<(), MachineError> {
        let (rows, _) = self.rows(applying, &superseded_by(id, time))?;
        let before = applying.applier.histories[&id].floor;
        let mut floor = before;
        for (key, _) in &rows {
            let (at, of) = HistoryKey::of_time(key)?;
            let row = of.row(id);
            match of.revision {
                Some(revision) => match applying.get(&row)? {
                    Some(found) => {
                        let version = StoredVersion::decode(revision, &row, &found)?;
                        floor = floor.max(version.until.revision);
                        applying.remove_version(id, &of.key, &version);
                    }
                    None => applying.applier.staged.delete(&[key]),
                },
                None => {
                    if let Some(found) = applying.get(&row)? {
                        let until = VersionUpperBound::of_forgotten(&row, &found)?;
                        if until.time == at {
                            floor = floor.max(until.revision);
                            applying.applier.staged.delete(&[&row]);
                        }
                    }
                    applying.applier.staged.delete(&[key]);
                }
            }
        }
        if floor > before {
            let history = HistoryRow { floor, ..applying.applier.histories[&id].clone() };
            applying.set_history(id, Some(history));
        }
        Ok(())
    }
}

/// Returns true if a key has a current value, which counts towards the number of values that its keyspace keeps.
fn has_row(applying: &Applying<'_>, keyspace: KeyspaceId, key: &[u8]) -> Result<bool, MachineError> {
    Ok(applying.get(&[&keys::data_prefix(keyspace), key].concat())?.is_some())
}

/// Returns the time up to which versions that have an index row by time are forgotten: `now` minus the maximum age.
/// Returns `None` if the settings limit neither the age nor the number of versions.
fn forgotten_by(bounds: KeyspaceHistory, now: SpaceTime) -> Option<SpaceTime> {
    let age = bounds.age.or(bounds.revisions.map(|_| DELETED_HISTORY_AGE))?;
    Some(SpaceTime(now.0.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX))))
}

/// Returns the range of the index rows by time of former values that were superseded at `time` or before.
fn superseded_by(id: KeyspaceId, time: SpaceTime) -> KeyRange {
    let mut range = KeyRange::with_prefix(&times_prefix(id));
    let after = time.0.saturating_add(1).to_be_bytes();
    range.set_upper(Bound::Excluded([&times_prefix(id), after.as_slice()].concat()));
    range
}

impl Machine {
    /// Returns the next keyspace, in the order of ids after `after` and then from the first, that has versions to be
    /// forgotten at time `now`; `None` if there is none.
    pub fn prune_due(&self, after: Option<KeyspaceId>, now: SpaceTime) -> Result<Option<KeyspaceId>, MachineError> {
        let view = self.backend.view();
        let mut histories = Vec::new();
        crate::rows::load_rows(&*view, &history_rows(), |key, row| {
            histories.push((keyspace_of_history(key), HistoryRow::decode(key, row)?.work));
            Ok(())
        })?;
        let (before, behind): (Vec<_>, Vec<_>) = histories.into_iter().partition(|(id, _)| *id <= after);
        for (id, work) in behind.into_iter().chain(before) {
            let Some(id) = id else { continue };
            if work != HistoryWork::Settled || has_old(&*view, id, self.keyspace_config(id), now)? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    fn keyspace_config(&self, id: KeyspaceId) -> KeyspaceConfig {
        let keyspaces = read(&self.published.keyspaces);
        keyspaces.row(id).filter(|row| KeyspaceRow::is_live(row)).map(|row| row.config).unwrap_or_default()
    }
}

fn has_old(view: &dyn View, id: KeyspaceId, config: KeyspaceConfig, now: SpaceTime) -> Result<bool, MachineError> {
    let Some(time) = forgotten_by(config.history, now) else { return Ok(false) };
    let range = superseded_by(id, time);
    let mut found = false;
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |_, _| {
        found = true;
        ControlFlow::Break(())
    })?;
    Ok(found)
}
