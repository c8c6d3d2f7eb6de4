//! Expiry: removing what has ended, a bounded number of rows at a time.
//!
//! Owns the commands by which maintenance removes keys past their deadline, the keys of ended leases, and
//! rows that blind writes have left stale; and the reads by which it finds out that there is something to do.
//! Does not own hiding: what has ended is hidden already (see [`crate::expiry`]), so nothing here changes what
//! anybody sees.
//!
//! A row that an earlier command of the same entry may have made stale or true again is left alone: the backend
//! shows keys as they were before the entry, and a later round comes by.

use std::{
    collections::BTreeSet,
    ops::{Bound, ControlFlow},
};

use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime,
    command::{Outcome, StaleRows},
    limits::MAX_EXPIRED_ROWS,
};

use crate::{
    backend::{Direction, View},
    counts::CountChange,
    expiry::{Ending, Expiry, attached_rows, deadline_prefix},
    history::KeyChange,
    keys::{self, KeyRange, TAG_ATTACHED, TAG_DEADLINE},
    keyspaces::{Decoded, StoredRef, decode_value},
    liveness::BlobKind,
    machine::{
        Machine, MachineError,
        entry::{Applying, Refused},
        overlay::Overlay,
    },
    versions,
};

/// Removes at most `max` rows of what has ended at the entry's time.
pub(crate) fn expire(applying: &mut Applying<'_>, max: u32, overlay: &mut Overlay<'_>) -> Result<Outcome, Refused> {
    let max = max.min(MAX_EXPIRED_ROWS - applying.applier.pending.expired_rows);
    // What an earlier command of the record has removed, the backend still shows.
    if applying.applier.pending.expired_rows > 0 || max == 0 {
        return Ok(Outcome::Expired { keys: 0, rows: 0, more: true });
    }
    let view = applying.machine.backend.view();
    let (rows, mut more) = ended_rows(&*view, applying.applied.time, max)?;
    let mut removal = Removal { view: &*view, overlay, max, keys: 0, revision: None, named_twice: BTreeSet::new() };
    for row in &rows {
        applying.applier.pending.expired_rows += 1;
        match Ending::of_row(row) {
            Some(Ending::Key { deadline, keyspace, key }) => {
                removal.key_at(applying, keyspace, key, |expiry| expiry.deadline == Some(deadline), row)?;
            }
            Some(Ending::Lease { deadline, id }) => match applying.lease(id)? {
                Some(lease) if lease.deadline == deadline => {
                    more |= !removal.lease(applying, id)?;
                }
                _ => applying.applier.batch.delete(&[row]),
            },
            _ => return Err(MachineError::corrupt("deadline", row, "key of a wrong length").into()),
        }
        if applying.applier.pending.expired_rows >= max {
            more |= row != rows.last().expect("the loop has one");
            break;
        }
    }
    Ok(Outcome::Expired { keys: removal.keys, rows: applying.applier.pending.expired_rows, more })
}

/// Removes the keys of a lease that ended with this record's `revision`, as many as the record still may.
pub(crate) fn end_lease(
    applying: &mut Applying<'_>,
    id: LeaseId,
    overlay: &mut Overlay<'_>,
    revision: Revision,
) -> Result<(), MachineError> {
    let view = applying.machine.backend.view();
    let mut removal = Removal {
        view: &*view,
        overlay,
        max: MAX_EXPIRED_ROWS,
        keys: 0,
        revision: Some(revision),
        named_twice: BTreeSet::new(),
    };
    removal.lease(applying, id)?;
    Ok(())
}

/// Forgets those rows that say nothing true any more.
pub(crate) fn forget(
    applying: &mut Applying<'_>,
    rows: &StaleRows<'_>,
    overlay: &mut Overlay<'_>,
) -> Result<Outcome, Refused> {
    let view = applying.machine.backend.view();
    let mut forgotten = 0;
    for row in rows.iter() {
        let Some(ending) = Ending::of_row(row) else { continue };
        let is_pending = match ending {
            Ending::Key { keyspace, key, .. } | Ending::Attached { keyspace, key, .. } => {
                overlay.get(keyspace, key).is_some()
            }
            Ending::Lease { .. } => true,
        };
        if is_pending || !is_stale(&*view, &ending)? {
            continue;
        }
        forgotten += 1;
        match ending {
            Ending::Attached { lease, keyspace, key } => applying.detach(lease, keyspace, key)?,
            _ => applying.applier.batch.delete(&[row]),
        }
    }
    Ok(Outcome::Expired { keys: 0, rows: forgotten, more: false })
}

/// The removal of keys by one command.
struct Removal<'a, 'e> {
    view: &'a dyn View,
    overlay: &'a mut Overlay<'e>,
    /// Rows that the record may have looked at when the command is done.
    max: u32,
    keys: u32,
    /// The command's, once it has one: it takes none if it removes no key.
    revision: Option<Revision>,
    /// Removed keys that two rows name, by time and by lease: the second one finds them still in the view.
    named_twice: BTreeSet<Vec<u8>>,
}

impl Removal<'_, '_> {
    /// Looks at the key that `row` names: removes it if it ends as `ends` says, and else only the row.
    fn key_at(
        &mut self,
        applying: &mut Applying<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
        ends: impl FnOnce(&Expiry) -> bool,
        row: &[u8],
    ) -> Result<(), MachineError> {
        if self.overlay.get(keyspace, key).is_some() {
            return Ok(());
        }
        let full = [&keys::data_prefix(keyspace), key].concat();
        let stored = self.view.get(&full)?;
        let found = stored.as_ref().map(|bytes| decode_value(&full, bytes)).transpose()?;
        let has_both = |expiry: &Expiry| expiry.deadline.is_some() && expiry.lease.is_some();
        // What a deleted prefix hides is gone already, and swept by and by.
        let is_shown =
            |revision| !self.overlay.is_cleared(keyspace, key) && applying.sight(keyspace).shows(key, revision);
        let ended = found.filter(|found| ends(&found.expiry));
        let is_shown = ended.is_some_and(|found| is_shown(found.revision));
        if let Some(found) = ended.filter(|_| !is_shown) {
            self.hidden_key(applying, keyspace, key, &found, &full)?;
        }
        let ended = ended.filter(|_| is_shown);
        if let Some(found) = ended
            && (!has_both(&found.expiry) || self.named_twice.insert(full.clone()))
        {
            if self.revision.is_none() {
                self.revision = Some(applying.use_revision());
                applying.tell_changes();
            }
            applying.changed(&KeyChange::Expire { keyspace, key }, None);
            let revision = self.revision.expect("set above");
            let kept = applying.supersede(self.overlay, keyspace, key, revision, versions::Ending::Expired)?;
            if applying.counts_exactly(keyspace) {
                applying.count(keyspace, CountChange::of(key, Some(found.value.into()), None));
                self.overlay.set(keyspace, key.to_vec(), None);
            } else if applying.keeps_history(keyspace) {
                self.overlay.set(keyspace, key.to_vec(), None);
            }
            self.keys += 1;
            applying.applier.batch.delete(&[&full]);
            if let StoredRef::Blob(blob) = found.value
                && !kept
            {
                applying.lower(BlobKind::Value, &blob);
            }
            if let Some(deadline) = found.expiry.deadline {
                applying.applier.batch.delete(&[&deadline_prefix(deadline, keyspace), key]);
            }
            if let Some(lease) = found.expiry.lease {
                applying.detach(lease, keyspace, key)?;
            }
        }
        match Ending::of_row(row) {
            Some(Ending::Attached { lease, .. }) => applying.detach(lease, keyspace, key),
            _ => {
                applying.applier.batch.delete(&[row]);
                Ok(())
            }
        }
    }

    /// Where versions are kept, does what a sweep would do: when the lease is gone, nothing tells when the value
    /// ended.
    fn hidden_key(
        &mut self,
        applying: &mut Applying<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
        found: &Decoded<'_>,
        full: &[u8],
    ) -> Result<(), MachineError> {
        if !applying.keeps_history(keyspace) {
            return Ok(());
        }
        let now = applying.applied.revision;
        let kept = applying.supersede(self.overlay, keyspace, key, now, versions::Ending::Deleted)?;
        if let Some(blob) = found.value.blob().filter(|_| !kept) {
            applying.lower(BlobKind::Value, &blob);
        }
        if applying.counts_exactly(keyspace) && applying.counts_row(self.overlay, keyspace, found.revision) {
            applying.count(keyspace, CountChange::of(key, Some(found.value.into()), None));
        }
        applying.applier.batch.delete(&[full]);
        self.overlay.set(keyspace, key.to_vec(), None);
        Ok(())
    }

    /// Removes the keys of an ended lease, and the lease when none is left. Says whether it is gone.
    fn lease(&mut self, applying: &mut Applying<'_>, id: LeaseId) -> Result<bool, MachineError> {
        let max = self.max.saturating_sub(applying.applier.pending.expired_rows);
        let (rows, more) = collect(self.view, &attached_rows(id), max)?;
        let mut is_complete = !more;
        for row in &rows {
            applying.applier.pending.expired_rows += 1;
            let Some(Ending::Attached { keyspace, key, .. }) = Ending::of_row(row) else {
                return Err(MachineError::corrupt("attachment", row, "key of a wrong length"));
            };
            // Written by this entry: its row may have been left or made by that.
            is_complete &= self.overlay.get(keyspace, key).is_none();
            self.key_at(applying, keyspace, key, |expiry| expiry.lease == Some(id), row)?;
        }
        if !is_complete || applying.applier.pending.leases.has_attached(id) {
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
    collect(view, &range, max)
}

/// At most `max` keys of a range, and whether there are more.
fn collect(view: &dyn View, range: &KeyRange, max: u32) -> Result<(Vec<Vec<u8>>, bool), MachineError> {
    let mut rows = Vec::new();
    let mut more = false;
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, _| {
        if rows.len() == max as usize {
            more = true;
            return ControlFlow::Break(());
        }
        rows.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok((rows, more))
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
            let (rows, more) = collect(&*view, &range, left)?;
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
