//! Expiry: commands that remove ended keys and leases from the state, a bounded number of rows at a time.
//!
//! Owns: the commands by which maintenance removes keys past their deadline, the keys of ended leases, and index rows
//! that blind writes have left stale; and the reads by which maintenance detects such work. Does not own: hiding.
//! Ended keys are hidden already (see `expiry/rows.rs`), so no command here changes what a reader sees.

use std::ops::Bound;

use thalweg_store::View;
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime,
    codec::List,
    command::Outcome,
    limits::{MAX_COMMAND_STEPS, MAX_EXPIRED_ROWS},
};

use crate::{
    changes::key_change::KeyChange,
    clears::apply::Row,
    error::MachineError,
    expiry::rows::{DeadlineSubject, Expiry, attached_rows, deadline_prefix},
    history::rows as versions,
    keys::{self, KeyRange, TAG_ATTACHED, TAG_DEADLINE},
    keyspaces::values::decode_value,
    machine::{applying::Applying, state_machine::Machine},
    refused::Refused,
    rows::keys_of,
};

/// Removes keys and leases that have ended at the log entry's time. Examines at most `max` rows.
pub(crate) fn expire(applying: &mut Applying<'_>, max: u32) -> Result<Outcome, Refused> {
    let max = max.min(MAX_EXPIRED_ROWS);
    let (rows, mut more) = ended_rows(&applying.view(), applying.applied.time, max)?;
    let mut removal = Removal { left: max, last_step: last_step(applying), keys: 0, revision: None };
    for row in &rows {
        if removal.is_done(applying) {
            more = true;
            break;
        }
        removal.left -= 1;
        match DeadlineSubject::of_row(row) {
            Some(DeadlineSubject::Key { deadline, keyspace, key }) => {
                removal.key_at(applying, keyspace, key, |expiry| expiry.deadline == Some(deadline), row)?;
            }
            Some(DeadlineSubject::Lease { deadline, id }) => match applying.lease(id)? {
                Some(lease) if lease.deadline == deadline => {
                    more |= !removal.lease(applying, id)?;
                }
                _ => applying.applier.staged.delete(&[row]),
            },
            _ => return Err(MachineError::corrupt("deadline", row, "key of a wrong length").into()),
        }
    }
    Ok(Outcome::Expired { keys: removal.keys, rows: max - removal.left, more })
}

/// Removes keys of a lease that the current command has just ended, at most as many as one command may remove.
/// `revision` is the command's revision.
pub(crate) fn end_lease(applying: &mut Applying<'_>, id: LeaseId, revision: Revision) -> Result<(), MachineError> {
    let last_step = last_step(applying);
    Removal { left: MAX_EXPIRED_ROWS, last_step, keys: 0, revision: Some(revision) }.lease(applying, id)?;
    Ok(())
}

/// Returns the number of steps at which a removal of keys that begins now must end: about as many steps of work from
/// now as a client's command may take.
fn last_step(applying: &Applying<'_>) -> u64 {
    applying.steps_used() + MAX_COMMAND_STEPS
}

/// Deletes those of the given index rows that are still stale: their key no longer has their deadline or lease.
pub(crate) fn forget(applying: &mut Applying<'_>, rows: &List<'_, &[u8]>) -> Result<Outcome, Refused> {
    let mut forgotten = 0;
    for row in rows.iter() {
        let Some(ending) = DeadlineSubject::of_row(row) else { continue };
        if matches!(ending, DeadlineSubject::Lease { .. }) || !is_stale(&applying.view(), &ending)? {
            continue;
        }
        forgotten += 1;
        match ending {
            DeadlineSubject::Attached { lease, keyspace, key } => applying.detach(lease, keyspace, key)?,
            _ => applying.applier.staged.delete(&[row]),
        }
    }
    Ok(Outcome::Expired { keys: 0, rows: forgotten, more: false })
}

/// State of a command that removes keys which have ended (expired).
struct Removal {
    /// Number of rows that the command may still examine.
    left: u32,
    /// Number of steps of work, counted since the machine was opened, at which the command stops examining rows.
    last_step: u64,
    keys: u32,
    /// Revision of the command; `None` until the command removes its first key. A command that removes no key uses no
    /// revision.
    revision: Option<Revision>,
}

impl Removal {
    fn is_done(&self, applying: &Applying<'_>) -> bool {
        self.left == 0 || applying.steps_used() >= self.last_step
    }

    /// Examines the key that the index row `row` names. Removes the key if `ends` returns true for its deadline and
    /// lease. Otherwise the index row is stale, and only this row is deleted.
    fn key_at(
        &mut self,
        applying: &mut Applying<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
        ends: impl FnOnce(&Expiry) -> bool,
        row: &[u8],
    ) -> Result<(), MachineError> {
        let full = [&keys::data_prefix(keyspace), key].concat();
        let mut found = Ok(None);
        // The value, which may be long, is not copied.
        applying.look(&full, &mut |row| found = decode_value(&full, row).map(|row| Some(Row::of(key, &row))))?;
        match found?.filter(|found| ends(&found.expiry)) {
            Some(found) => self.remove(applying, keyspace, &found),
            None => match DeadlineSubject::of_row(row) {
                Some(DeadlineSubject::Attached { lease, .. }) => applying.detach(lease, keyspace, key),
                _ => {
                    applying.applier.staged.delete(&[row]);
                    Ok(())
                }
            },
        }
    }

    /// Removes a key that has ended. If a deleted prefix hides the key, the key counts as deleted, not as expired, but
    /// its row is removed all the same: once its lease is gone, nothing would show that the key has ended.
    fn remove(&mut self, applying: &mut Applying<'_>, keyspace: KeyspaceId, row: &Row) -> Result<(), MachineError> {
        let key = &row.key[..];
        if applying.visibility(keyspace).shows(key, row.revision) {
            let revision = *self.revision.get_or_insert_with(|| {
                applying.record_changes();
                applying.use_revision()
            });
            applying.changed(&KeyChange::Expire { keyspace, key }, None);
            applying.remove_row(keyspace, row, revision, versions::VersionEnd::Expired)?;
            self.keys += 1;
        } else {
            let revision = applying.applied.revision;
            applying.remove_row(keyspace, row, revision, versions::VersionEnd::Deleted)?;
        }
        if let Some(deadline) = row.expiry.deadline {
            applying.applier.staged.delete(&[&deadline_prefix(deadline, keyspace), key]);
        }
        match row.expiry.lease {
            Some(lease) => applying.detach(lease, keyspace, key),
            None => Ok(()),
        }
    }

    /// Removes the keys of an ended lease, and the lease once no key is left. Returns true if the lease is removed.
    fn lease(&mut self, applying: &mut Applying<'_>, id: LeaseId) -> Result<bool, MachineError> {
        let (rows, more) = keys_of(&applying.view(), &attached_rows(id), self.left)?;
        self.left -= rows.len() as u32;
        for row in &rows {
            if applying.steps_used() >= self.last_step {
                return Ok(false);
            }
            let Some(DeadlineSubject::Attached { keyspace, key, .. }) = DeadlineSubject::of_row(row) else {
                return Err(MachineError::corrupt("attachment", row, "key of a wrong length"));
            };
            self.key_at(applying, keyspace, key, |expiry| expiry.lease == Some(id), row)?;
        }
        if more {
            return Ok(false);
        }
        if let Some(lease) = applying.lease(id)? {
            applying.remove_lease(id, &lease);
        }
        Ok(true)
    }
}

/// Returns the keys of the first `max` index rows whose key or lease has ended at `time`; true if there are more.
fn ended_rows(view: &dyn View, time: SpaceTime, max: u32) -> Result<(Vec<Vec<u8>>, bool), MachineError> {
    let mut range = KeyRange::with_prefix(&[TAG_DEADLINE]);
    range.set_upper(Bound::Excluded(deadline_prefix(SpaceTime(time.0.saturating_add(1)), KeyspaceId::ZERO).to_vec()));
    keys_of(view, &range, max)
}

/// Returns true if an index row of a deadline or an attachment is stale: its key or lease has another deadline or lease
/// now, or does not exist.
fn is_stale(view: &dyn View, ending: &DeadlineSubject<'_>) -> Result<bool, MachineError> {
    let stored = |keyspace: KeyspaceId, key: &[u8]| {
        let full = [&keys::data_prefix(keyspace), key].concat();
        let Some(value) = view.get(&full)? else { return Ok(Expiry::NEVER) };
        Ok::<_, MachineError>(decode_value(&full, &value)?.expiry)
    };
    match *ending {
        DeadlineSubject::Key { deadline, keyspace, key } => Ok(stored(keyspace, key)?.deadline != Some(deadline)),
        DeadlineSubject::Attached { lease, keyspace, key } => Ok(stored(keyspace, key)?.lease != Some(lease)),
        // A command that changes a lease reads it, and leaves no stale row.
        DeadlineSubject::Lease { .. } => Ok(false),
    }
}

/// Position after which a search for stale index rows continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleCursor(Option<Vec<u8>>);

impl Machine {
    /// Returns true if a key or lease has ended at `now` and is not removed from the state yet.
    pub fn expiry_due(&self, now: SpaceTime) -> Result<bool, MachineError> {
        if !self.has_deadlines() {
            return Ok(false);
        }
        Ok(!ended_rows(&*self.backend.view(), now, 1)?.0.is_empty())
    }

    /// Returns the earliest deadline of the keys and leases that are not removed from the state yet; `None` if there is
    /// no deadline. A deadline that a later write has replaced may count.
    pub fn next_deadline(&self) -> Result<Option<SpaceTime>, MachineError> {
        if !self.has_deadlines() {
            return Ok(None);
        }
        let (rows, _) = keys_of(&*self.backend.view(), &KeyRange::with_prefix(&[TAG_DEADLINE]), 1)?;
        let deadline = |row: &Vec<u8>| {
            let bytes = row.get(1..9).and_then(|bytes| bytes.try_into().ok());
            let bytes = bytes.ok_or_else(|| MachineError::corrupt("deadline", row, "key of a wrong length"))?;
            Ok(SpaceTime(u64::from_be_bytes(bytes)))
        };
        rows.first().map(deadline).transpose()
    }

    /// Examines the next `max` index rows of deadlines and of keys attached to leases, and returns the stale ones. The
    /// caller proposes a command that deletes them. After the last row, the search starts from the beginning again.
    pub fn stale_rows(&self, cursor: &mut StaleCursor, max: u32) -> Result<Vec<Vec<u8>>, MachineError> {
        if !self.has_deadlines() {
            return Ok(Vec::new());
        }
        let view = self.backend.view();
        let mut stale = Vec::new();
        let mut left = max;
        for tag in [TAG_DEADLINE, TAG_ATTACHED] {
            let mut range = KeyRange::with_prefix(&[tag]);
            match &cursor.0 {
                Some(last) if last[0] > tag => continue,
                Some(last) if last[0] == tag => range.set_lower(Bound::Excluded(last.clone())),
                _ => {}
            }
            let (rows, more) = keys_of(&*view, &range, left)?;
            left -= rows.len() as u32;
            for row in &rows {
                let ending = DeadlineSubject::of_row(row);
                let ending = ending.ok_or_else(|| MachineError::corrupt("deadline", row, "key of a wrong length"))?;
                if is_stale(&*view, &ending)? {
                    stale.push(row.clone());
                }
            }
            cursor.0 = rows.into_iter().last().or(cursor.0.take());
            if more {
                return Ok(stale);
            }
        }
        cursor.0 = None;
        Ok(stale)
    }
}
