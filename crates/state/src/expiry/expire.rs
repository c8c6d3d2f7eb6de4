//! Expiry: removing what has ended, a bounded number of rows at a time.
//!
//! Owns the commands by which maintenance removes keys past their deadline, the keys of ended leases, and
//! rows that blind writes have left stale; and the reads by which it finds out that there is something to do.
//! Does not own hiding: what has ended is hidden already (see [`crate::expiry`]), so nothing here changes what
//! anybody sees.

use std::ops::Bound;

use thalweg_store::View;
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime,
    command::{Outcome, StaleRows},
    limits::MAX_EXPIRED_ROWS,
};

use crate::{
    changes::commits::KeyChange,
    clears::apply::Row,
    error::MachineError,
    expiry::rows::{Ending, Expiry, attached_rows, deadline_prefix},
    history::rows as versions,
    keys::{self, KeyRange, TAG_ATTACHED, TAG_DEADLINE},
    keyspaces::values::{Decoded, decode_value},
    machine::{applying::Applying, state_machine::Machine},
    refused::Refused,
    rows::keys_of,
};

/// Removes at most `max` rows of what has ended at the entry's time.
pub(crate) fn expire(applying: &mut Applying<'_>, max: u32) -> Result<Outcome, Refused> {
    let max = max.min(MAX_EXPIRED_ROWS);
    let (rows, mut more) = ended_rows(&applying.view(), applying.applied.time, max)?;
    let mut removal = Removal { left: max, keys: 0, revision: None };
    for row in &rows {
        if removal.left == 0 {
            more = true;
            break;
        }
        removal.left -= 1;
        match Ending::of_row(row) {
            Some(Ending::Key { deadline, keyspace, key }) => {
                removal.key_at(applying, keyspace, key, |expiry| expiry.deadline == Some(deadline), row)?;
            }
            Some(Ending::Lease { deadline, id }) => match applying.lease(id)? {
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

/// Removes the keys of a lease that ended with this command's `revision`, as many as one command may.
pub(crate) fn end_lease(applying: &mut Applying<'_>, id: LeaseId, revision: Revision) -> Result<(), MachineError> {
    Removal { left: MAX_EXPIRED_ROWS, keys: 0, revision: Some(revision) }.lease(applying, id)?;
    Ok(())
}

/// Forgets those rows that say nothing true any more.
pub(crate) fn forget(applying: &mut Applying<'_>, rows: &StaleRows<'_>) -> Result<Outcome, Refused> {
    let mut forgotten = 0;
    for row in rows.iter() {
        let Some(ending) = Ending::of_row(row) else { continue };
        if matches!(ending, Ending::Lease { .. }) || !is_stale(&applying.view(), &ending)? {
            continue;
        }
        forgotten += 1;
        match ending {
            Ending::Attached { lease, keyspace, key } => applying.detach(lease, keyspace, key)?,
            _ => applying.applier.staged.delete(&[row]),
        }
    }
    Ok(Outcome::Expired { keys: 0, rows: forgotten, more: false })
}

/// The removal of keys by one command.
struct Removal {
    /// Rows that it may still look at.
    left: u32,
    keys: u32,
    /// The command's, once it has one: it takes none if it removes no key.
    revision: Option<Revision>,
}

impl Removal {
    /// Looks at the key that `row` names: removes it if it ends as `ends` says, and else only the row.
    fn key_at(
        &mut self,
        applying: &mut Applying<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
        ends: impl FnOnce(&Expiry) -> bool,
        row: &[u8],
    ) -> Result<(), MachineError> {
        let full = [&keys::data_prefix(keyspace), key].concat();
        let stored = applying.get(&full)?;
        let found = stored.as_ref().map(|bytes| decode_value(&full, bytes)).transpose()?;
        match found.filter(|found| ends(&found.expiry)) {
            Some(found) => self.remove(applying, keyspace, key, &found),
            None => match Ending::of_row(row) {
                Some(Ending::Attached { lease, .. }) => applying.detach(lease, keyspace, key),
                _ => {
                    applying.applier.staged.delete(&[row]);
                    Ok(())
                }
            },
        }
    }

    /// Removes a key that has ended. Of what a deleted prefix hides, which is gone already, it removes the row, as a
    /// sweep would: a value whose lease is gone could not tell any more when it had ended.
    fn remove(
        &mut self,
        applying: &mut Applying<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
        found: &Decoded<'_>,
    ) -> Result<(), MachineError> {
        let row = Row::of(key, found);
        if applying.sight(keyspace).shows(key, found.revision) {
            let revision = *self.revision.get_or_insert_with(|| {
                applying.tell_changes();
                applying.use_revision()
            });
            applying.changed(&KeyChange::Expire { keyspace, key }, None);
            applying.remove_row(keyspace, &row, revision, versions::Ending::Expired)?;
            self.keys += 1;
        } else {
            let revision = applying.applied.revision;
            applying.remove_row(keyspace, &row, revision, versions::Ending::Deleted)?;
        }
        if let Some(deadline) = found.expiry.deadline {
            applying.applier.staged.delete(&[&deadline_prefix(deadline, keyspace), key]);
        }
        match found.expiry.lease {
            Some(lease) => applying.detach(lease, keyspace, key),
            None => Ok(()),
        }
    }

    /// Removes the keys of an ended lease, and the lease when none is left. Says whether it is gone.
    fn lease(&mut self, applying: &mut Applying<'_>, id: LeaseId) -> Result<bool, MachineError> {
        let (rows, more) = keys_of(&applying.view(), &attached_rows(id), self.left)?;
        self.left -= rows.len() as u32;
        for row in &rows {
            let Some(Ending::Attached { keyspace, key, .. }) = Ending::of_row(row) else {
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

/// The first rows of what has ended at `time`, and whether there are more.
fn ended_rows(view: &dyn View, time: SpaceTime, max: u32) -> Result<(Vec<Vec<u8>>, bool), MachineError> {
    let mut range = KeyRange::with_prefix(&[TAG_DEADLINE]);
    range.set_upper(Bound::Excluded(deadline_prefix(SpaceTime(time.0.saturating_add(1)), KeyspaceId::ZERO).to_vec()));
    keys_of(view, &range, max)
}

/// Whether a row says nothing true any more: its key or lease ends otherwise now, or is gone.
fn is_stale(view: &dyn View, ending: &Ending<'_>) -> Result<bool, MachineError> {
    let stored = |keyspace: KeyspaceId, key: &[u8]| {
        let full = [&keys::data_prefix(keyspace), key].concat();
        let Some(value) = view.get(&full)? else { return Ok(Expiry::NEVER) };
        Ok::<_, MachineError>(decode_value(&full, &value)?.expiry)
    };
    match *ending {
        Ending::Key { deadline, keyspace, key } => Ok(stored(keyspace, key)?.deadline != Some(deadline)),
        Ending::Attached { lease, keyspace, key } => Ok(stored(keyspace, key)?.lease != Some(lease)),
        // Whoever changes a lease has read it, and leaves nothing stale.
        Ending::Lease { .. } => Ok(false),
    }
}

/// Where a search for stale rows goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleCursor(Option<Vec<u8>>);

impl Machine {
    /// Whether something has ended at `now` and waits to be removed.
    pub fn expiry_due(&self, now: SpaceTime) -> Result<bool, MachineError> {
        if !self.has_deadlines() {
            return Ok(false);
        }
        Ok(!ended_rows(&*self.backend.view(), now, 1)?.0.is_empty())
    }

    /// Looks at the next `max` rows of what ends: the keys of those that are stale, for a command that forgets
    /// them. The cursor begins anew after the last row.
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
                let ending = Ending::of_row(row);
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
