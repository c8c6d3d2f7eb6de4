//! Forgetting versions: those past their keyspace's age, those of keyspaces that keep no history any more, and
//! what a change of bounds leaves over. A bounded number of rows at a time, by the time of entries.
//!
//! Owns the command by which maintenance does so, the keyspaces' floors that rise with it, and how maintenance
//! finds out that there is something to do. Does not own the bound on the number of versions: the write that adds
//! one keeps that (see `versions`).
//!
//! Why no promised revision becomes unreadable: a version is removed for its age only if the entry that superseded
//! it lies `age` or more before this one. The floor rises to that entry's revision, and each revision that was
//! current within `age` is not below it.

use std::ops::{Bound, ControlFlow};

use thalweg_types::{
    KeyspaceId, Revision, SpaceTime,
    command::{KeyspaceConfig, KeyspaceHistory, Outcome},
    limits::MAX_PRUNED_VERSIONS,
};

use crate::{
    backend::{Direction, View},
    catalog::KeyspaceRow,
    keys::KeyRange,
    machine::{
        Machine, MachineError,
        entry::{Applying, Refused},
        read,
        versions::{FullRow, Kept, rows_after},
    },
    versions::{
        HistoryRow, PREFIX_LEN, PastKey, Until, Work, history_rows, keyspace_of_history, time_row, times_prefix,
        versions_prefix,
    },
};

/// Bytes of rows after which one command ends.
const MAX_PRUNED_BYTES: usize = 8 * 1024 * 1024;

impl Applying<'_> {
    /// Takes over the bounds of a keyspace that is created or configured; `before` are the former ones.
    pub(crate) fn configure_history(&mut self, id: KeyspaceId, before: KeyspaceHistory, after: KeyspaceHistory) {
        if before == after {
            return;
        }
        let known = self.applier.histories.get(&id);
        // Versions of an earlier time are below the new floor.
        let floor = match known {
            Some(known) if before.is_kept() => known.floor,
            _ => self.applied.revision,
        };
        let work = match (known, after.is_kept()) {
            (None, true) => Work::Settled,
            (Some(_), true) => Work::Conform { kept: 0, last: Vec::new() },
            (_, false) => Work::Remove,
        };
        self.set_history(id, Some(HistoryRow { floor, work }));
        self.applier.pending.versions.reconfigured.insert(id);
    }

    /// All versions of a dropped keyspace are to go.
    pub(crate) fn drop_history(&mut self, id: KeyspaceId) {
        if let Some(history) = self.applier.histories.get(&id) {
            let history = HistoryRow { work: Work::Remove, ..history.clone() };
            self.set_history(id, Some(history));
            self.applier.pending.versions.reconfigured.insert(id);
        }
    }
}

/// Looks at up to `max` rows of versions, and forgets those past their bounds.
pub(crate) fn prune(applying: &mut Applying<'_>, max: u32) -> Result<Outcome, Refused> {
    let max = max.min(MAX_PRUNED_VERSIONS.saturating_sub(applying.applier.pending.versions.pruned_rows));
    let view = applying.machine.backend.view();
    let mut round = Round { view: &*view, left: max, bytes: 0 };
    let mut more = false;
    for id in applying.applier.histories.keys().copied().collect::<Vec<_>>() {
        // Rows of before the change were written by other bounds, and the backend does not show them all yet.
        if applying.applier.pending.versions.reconfigured.contains(&id) {
            more = true;
            continue;
        }
        if round.is_done() {
            more = true;
            break;
        }
        round.keyspace(applying, id)?;
    }
    let entries = max - round.left;
    applying.applier.pending.versions.pruned_rows += entries;
    Ok(Outcome::Reclaimed { entries, more: more || round.is_done() })
}

/// One command under way.
struct Round<'v> {
    view: &'v dyn View,
    /// Rows that may still be looked at.
    left: u32,
    bytes: usize,
}

impl Round<'_> {
    fn is_done(&self) -> bool {
        self.left == 0 || self.bytes >= MAX_PRUNED_BYTES
    }

    fn keyspace(&mut self, applying: &mut Applying<'_>, id: KeyspaceId) -> Result<(), MachineError> {
        let history = applying.applier.histories[&id].clone();
        match history.work {
            Work::Remove => return self.remove(applying, id),
            Work::Conform { kept, ref last } => self.conform(applying, id, &history, kept, last)?,
            Work::Settled => {}
        }
        match applying.history_of(id).age {
            Some(age) if !self.is_done() => self.forget_old(applying, id, SpaceTime(sub(applying.applied.time, age))),
            _ => Ok(()),
        }
    }

    /// The next rows of a range, as many as may still be looked at, and whether they are all.
    fn rows(&mut self, range: &KeyRange) -> Result<(Vec<FullRow>, bool), MachineError> {
        let (mut rows, mut all) = (Vec::new(), true);
        self.view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, row| {
            if self.is_done() {
                all = false;
                return ControlFlow::Break(());
            }
            self.left -= 1;
            self.bytes += key.len() + row.len();
            rows.push((key.to_vec(), row.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok((rows, all))
    }

    /// Removes the rows of a keyspace that keeps no history, and then its own.
    fn remove(&mut self, applying: &mut Applying<'_>, id: KeyspaceId) -> Result<(), MachineError> {
        let (versions, mut all) = self.rows(&KeyRange::with_prefix(&versions_prefix(id)))?;
        for (key, row) in &versions {
            let of = PastKey::of_version(key)?;
            match of.revision {
                Some(revision) => applying.remove_version(id, &of.key, &Kept::decode(revision, key, row)?),
                None => applying.applier.batch.delete(&[key]),
            }
        }
        if all {
            let (times, no_more) = self.rows(&KeyRange::with_prefix(&times_prefix(id)))?;
            times.iter().for_each(|(key, _)| applying.applier.batch.delete(&[key]));
            all = no_more;
        }
        if all {
            applying.set_history(id, None);
        }
        Ok(())
    }

    /// Goes on through the rows of a keyspace whose bounds have changed.
    fn conform(
        &mut self,
        applying: &mut Applying<'_>,
        id: KeyspaceId,
        history: &HistoryRow,
        kept: u32,
        last: &[u8],
    ) -> Result<(), MachineError> {
        let bounds = applying.history_of(id);
        let (rows, all) = self.rows(&rows_after(&versions_prefix(id), last))?;
        let mut kept = kept;
        let mut current = match last {
            [] => None,
            last => Some(PastKey::of_version(&[&versions_prefix(id), last].concat())?.key),
        };
        for (key, row) in &rows {
            let of = PastKey::of_version(key)?;
            if current.as_ref() != Some(&of.key) {
                let touched = applying.applier.pending.versions.touched.get(&(id, of.key.clone()));
                kept = touched.map_or(0, |touched| touched.added.len() as u32);
                current = Some(of.key.clone());
            }
            let until = match of.revision {
                None => Until::of_forgotten(key, row)?,
                Some(revision) => {
                    let touched = applying.applier.pending.versions.touched.get(&(id, of.key.clone()));
                    if touched.is_some_and(|touched| touched.pruned.contains(&revision)) {
                        continue;
                    }
                    let version = Kept::decode(revision, key, row)?;
                    if version.until.revision <= history.floor {
                        applying.remove_version(id, &of.key, &version);
                        continue;
                    }
                    if bounds.revisions.is_some_and(|revisions| kept + 1 >= revisions) {
                        applying.forget_version(id, &of.key, &version)?;
                        continue;
                    }
                    kept += 1;
                    version.until
                }
            };
            self.set_time(applying, id, key, &of, until, history.floor, bounds);
        }
        let work = match rows.last() {
            Some((key, _)) if !all => Work::Conform { kept, last: key[PREFIX_LEN..].to_vec() },
            _ if all => Work::Settled,
            _ => Work::Conform { kept, last: last.to_vec() },
        };
        applying.set_history(id, Some(HistoryRow { floor: history.floor, work }));
        Ok(())
    }

    /// Gives a row that stays its row by time, or takes that away.
    #[expect(clippy::too_many_arguments, reason = "one row, as it was read and decoded")]
    fn set_time(
        &self,
        applying: &mut Applying<'_>,
        id: KeyspaceId,
        key: &[u8],
        of: &PastKey,
        until: Until,
        floor: Revision,
        bounds: KeyspaceHistory,
    ) {
        let batch = &mut applying.applier.batch;
        let time = time_row(id, until.time, key);
        if of.revision.is_none() {
            let touched = applying.applier.pending.versions.touched.get(&(id, of.key.clone()));
            if touched.is_some_and(|touched| touched.forgotten.is_some()) {
                return;
            }
            if until.revision <= floor {
                batch.delete(&[key]);
                batch.delete(&[&time]);
                return;
            }
        }
        match bounds.age {
            Some(_) => batch.put(&[&time], &[]),
            None => batch.delete(&[&time]),
        }
    }

    /// Forgets what was superseded at `time` or before, and raises the floor to it.
    fn forget_old(&mut self, applying: &mut Applying<'_>, id: KeyspaceId, time: SpaceTime) -> Result<(), MachineError> {
        let (rows, _) = self.rows(&superseded_by(id, time))?;
        let before = applying.applier.histories[&id].floor;
        let mut floor = before;
        for (key, _) in &rows {
            let (at, of) = PastKey::of_time(key)?;
            let row = of.row(id);
            let touched = applying.applier.pending.versions.touched.get(&(id, of.key.clone()));
            match of.revision {
                Some(revision) => {
                    if touched.is_some_and(|touched| touched.pruned.contains(&revision)) {
                        continue;
                    }
                    match self.view.get(&row)? {
                        Some(found) => {
                            let version = Kept::decode(revision, &row, &found)?;
                            floor = floor.max(version.until.revision);
                            applying.remove_version(id, &of.key, &version);
                        }
                        None => applying.applier.batch.delete(&[key]),
                    }
                }
                None => {
                    if touched.is_some_and(|touched| touched.forgotten.is_some()) {
                        continue;
                    }
                    if let Some(found) = self.view.get(&row)? {
                        let until = Until::of_forgotten(&row, &found)?;
                        if until.time == at {
                            floor = floor.max(until.revision);
                            applying.applier.batch.delete(&[&row]);
                        }
                    }
                    applying.applier.batch.delete(&[key]);
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

fn sub(time: SpaceTime, age: std::time::Duration) -> u64 {
    time.0.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
}

/// The rows by time of what was superseded at `time` or before.
fn superseded_by(id: KeyspaceId, time: SpaceTime) -> KeyRange {
    let mut range = KeyRange::with_prefix(&times_prefix(id));
    let after = time.0.saturating_add(1).to_be_bytes();
    range.set_upper(Bound::Excluded([&times_prefix(id), after.as_slice()].concat()));
    range
}

impl Machine {
    /// Whether there are versions to be forgotten at `now`.
    pub fn prune_due(&self, now: SpaceTime) -> Result<bool, MachineError> {
        let view = self.backend.view();
        let mut histories = Vec::new();
        crate::machine::load_rows(&*view, &history_rows(), |key, row| {
            histories.push((keyspace_of_history(key), HistoryRow::decode(key, row)?.work));
            Ok(())
        })?;
        for (id, work) in histories {
            let Some(id) = id else { continue };
            if work != Work::Settled || has_old(&*view, id, self.keyspace_config(id), now)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn keyspace_config(&self, id: KeyspaceId) -> KeyspaceConfig {
        let keyspaces = read(&self.published.keyspaces);
        keyspaces.row(id).filter(|row| KeyspaceRow::is_live(row)).map(|row| row.config).unwrap_or_default()
    }
}

fn has_old(view: &dyn View, id: KeyspaceId, config: KeyspaceConfig, now: SpaceTime) -> Result<bool, MachineError> {
    let Some(age) = config.history.age else { return Ok(false) };
    let range = superseded_by(id, SpaceTime(sub(now, age)));
    let mut found = false;
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |_, _| {
        found = true;
        ControlFlow::Break(())
    })?;
    Ok(found)
}
