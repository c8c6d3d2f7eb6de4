//! Deletes of all keys with a prefix, drops of keyspaces, and the sweep that later removes the rows that they hide.
//!
//! Owns: these commands, and the removal of a key's row with all that belongs to it. Does not own: the rule by which a
//! clear hides rows (`table`), or the time of a sweep.
//!
//! If few rows have the prefix, they are deleted immediately. Otherwise the prefix gets a clear (see `table`), which
//! hides the rows. Later sweeps remove the hidden rows in steps of bounded size, as part of any entry.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use thalweg_types::{
    BlobRef, KeyspaceId, Revision,
    command::Outcome,
    limits::{MAX_COMMAND_STEPS, MAX_EAGER_PREFIX_ROWS},
    steps::{ROW, copied_clears, written_bytes},
};

use crate::{
    changes::key_change::KeyChange,
    clears::table::Clear,
    error::MachineError,
    expiry::rows::Expiry,
    history::rows::VersionEnd,
    keys::{self, DATA_PREFIX_LEN, KeyRange},
    keyspaces::{
        catalog::{KeyspaceLife, KeyspaceRow},
        counts::{CountChange, CountedValue},
        live::is_live,
        values::{Decoded, decode_value},
    },
    machine::{
        applying::{Applying, MAX_RECLAIM_ENTRIES},
        undo::Undo,
    },
    refused::Refused,
    rows::visit_rows,
    segments::liveness::BlobKind,
    sync::read,
};

/// Bytes of examined row keys after which one sweep (removal of rows under deleted prefixes) ends.
const MAX_SWEPT_BYTES: usize = 4 * 1024 * 1024;

/// Fields of the row of a user's key that are needed to remove the row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) key: Vec<u8>,
    pub(crate) revision: Revision,
    held: CountedValue,
    blob: Option<BlobRef>,
    pub(crate) expiry: Expiry,
}

impl Row {
    pub(crate) fn of(key: &[u8], found: &Decoded<'_>) -> Self {
        let (held, blob) = (found.value.into(), found.value.blob());
        Self { key: key.to_vec(), revision: found.revision, held, blob, expiry: found.expiry }
    }

    fn decode(full: &[u8], value: &[u8]) -> Result<Self, MachineError> {
        let found = decode_value(full, value)?;
        Ok(Self::of(full.get(DATA_PREFIX_LEN..).unwrap_or_default(), &found))
    }
}

impl Applying<'_> {
    /// Deletes all keys with a prefix, for the command that uses `revision`.
    ///
    /// Returns the number of removed rows that were visible to readers: no other delete had hidden them, and they had
    /// not ended at the entry's time. Returns `None` if there are too many rows to remove them immediately. Then a
    /// clear (an entry in the table of deleted prefixes) hides them until sweeps remove them. Rejects the command,
    /// without a change, if the table is full and the clear cannot replace others. In a keyspace with history, a clear
    /// never replaces that of another command.
    pub(crate) fn empty_prefix(
        &mut self,
        keyspace: KeyspaceId,
        prefix: &[u8],
        revision: Revision,
    ) -> Result<Option<u64>, Refused> {
        let few = self.few_rows(keyspace, prefix)?;
        let is_again = |before: &Clear| before.revision == revision;
        if few.is_none()
            && !self.applier.clears.get(keyspace, prefix).is_some_and(is_again)
            && (self.keeps_history(keyspace) || self.clears_within(keyspace, prefix).is_empty())
            && let Some(full) = self.applier.clears.refusal(keyspace, prefix)
        {
            return Err(Refused::Outcome(full));
        }
        Ok(self.empty(keyspace, prefix, few, revision)?)
    }

    /// Deletes all keys with a prefix like [`empty_prefix`](Self::empty_prefix). `few` is the result of
    /// [`few_rows`](Self::few_rows). If `few` is `None`, the caller has checked that a deleted prefix can be added.
    fn empty(
        &mut self,
        keyspace: KeyspaceId,
        prefix: &[u8],
        few: Option<Vec<Row>>,
        revision: Revision,
    ) -> Result<Option<u64>, MachineError> {
        self.changed(&KeyChange::DeletePrefix { keyspace, prefix }, None);
        if let Some(rows) = few {
            let mut shown = 0;
            for row in &rows {
                let is_hidden = !self.visibility(keyspace).shows(&row.key, row.revision);
                shown += u64::from(!is_hidden && is_live(self, &row.expiry)?);
                self.remove_row(keyspace, row, revision, VersionEnd::Deleted)?;
            }
            return Ok(Some(shown));
        }
        // The clear hides rows of earlier commands, but not those that this command has written itself.
        for row in self.own_rows(keyspace, prefix, revision)? {
            self.remove_row(keyspace, &row, revision, VersionEnd::Deleted)?;
        }
        if prefix.is_empty() && self.counts_exactly(keyspace) {
            let change = CountChange::of_emptying(self.counts_of(keyspace));
            self.count(keyspace, change);
        }
        self.add_clear(keyspace, prefix, revision);
        Ok(None)
    }

    /// Returns the rows of all keys with a prefix, including hidden rows; `None` if there are too many to remove
    /// immediately.
    fn few_rows(&self, keyspace: KeyspaceId, prefix: &[u8]) -> Result<Option<Vec<Row>>, MachineError> {
        let range = KeyRange::of_keyspace(keyspace, prefix, Bound::Unbounded, Bound::Unbounded);
        let mut rows = Vec::new();
        visit_rows(&self.view(), &range, |full, value| {
            rows.push(Row::decode(full, value)?);
            Ok(if rows.len() > MAX_EAGER_PREFIX_ROWS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok((rows.len() <= MAX_EAGER_PREFIX_ROWS).then_some(rows))
    }

    /// Returns those rows of keys with this prefix that the current command has written itself, at its `revision`.
    fn own_rows(&self, keyspace: KeyspaceId, prefix: &[u8], revision: Revision) -> Result<Vec<Row>, MachineError> {
        let range = KeyRange::of_keyspace(keyspace, prefix, Bound::Unbounded, Bound::Unbounded);
        let staged = self.applier.staged.changes_within(range.lower(), range.upper());
        let rows = staged.filter_map(|(full, value, is_own)| {
            self.charge(if is_own { ROW } else { 0 });
            Some(Row::decode(full, value?))
        });
        rows.filter(|row| row.as_ref().map_or(true, |row| row.revision == revision)).collect()
    }

    /// Removes a key's row, hidden or not, and updates exact counts, history and the row's Redis collection.
    pub(crate) fn remove_row(
        &mut self,
        keyspace: KeyspaceId,
        row: &Row,
        revision: Revision,
        ending: VersionEnd,
    ) -> Result<(), MachineError> {
        let kept_bytes = self.supersede(keyspace, &row.key, revision, ending)?;
        self.charge(kept_bytes.map_or(0, written_bytes));
        if self.counts_exactly(keyspace) && self.counts_row(keyspace, row.revision) {
            let change = CountChange::of(&row.key, Some(row.held), None);
            self.count(keyspace, CountChange { trash: None, ..change });
        }
        self.applier.staged.delete(&[&keys::data_prefix(keyspace), &row.key]);
        if let Some(blob) = row.blob.as_ref().filter(|_| kept_bytes.is_none()) {
            self.lower(BlobKind::Value, blob);
        }
        if let Some(collection) = row.held.collection {
            self.discard(keyspace, collection);
        }
        Ok(())
    }

    /// Returns the prefixes of all clears (deleted prefixes with hidden rows) that begin with `prefix`. A new clear of
    /// `prefix` can replace them without more entries in the table of clears. So clients can empty a keyspace even if
    /// that table is full.
    fn clears_within(&self, keyspace: KeyspaceId, prefix: &[u8]) -> Vec<Vec<u8>> {
        let within = |(id, longer, _): &(KeyspaceId, &[u8], &Clear)| *id == keyspace && longer.starts_with(prefix);
        self.applier.clears.iter().filter(within).map(|(_, longer, _)| longer.to_vec()).collect()
    }

    /// Adds a clear (a deleted prefix with hidden rows). In a keyspace without history, the new clear replaces those
    /// with the same or a longer prefix, because it hides their rows, too. In a keyspace with history, readers need the
    /// time at which a row became hidden. So clears with a longer prefix stay, and the new clear stores the revision of
    /// one with the same prefix.
    fn add_clear(&mut self, keyspace: KeyspaceId, prefix: &[u8], revision: Revision) {
        self.charge(copied_clears(self.applier.clears.units()));
        let earlier = read(&self.machine.published.clears).get(keyspace, prefix).map(|clear| clear.revision);
        let mut kept = Vec::new();
        if self.keeps_history(keyspace) {
            if let Some(before) = self.applier.clears.get(keyspace, prefix) {
                kept.clone_from(&before.kept);
                // A second delete within one transaction replaces the first.
                kept.extend(Some(before.revision).filter(|before| *before < revision));
            }
        } else {
            let within = self.clears_within(keyspace, prefix);
            within.iter().for_each(|longer| self.set_clear(keyspace, longer, None));
        }
        self.set_clear(keyspace, prefix, Some(Clear { revision, earlier, kept, swept: None }));
    }

    /// Sets the clear (a deleted prefix with hidden rows) in the table and in its row; `None` removes the clear.
    fn set_clear(&mut self, keyspace: KeyspaceId, prefix: &[u8], clear: Option<Clear>) {
        let key = (keyspace, prefix.to_vec());
        self.note_undo(|applier| Undo::Clear(key.clone(), applier.pending.clears.get(&key).cloned()));
        let applier = &mut *self.applier;
        match &clear {
            Some(clear) => clear.write(keyspace, prefix, &mut applier.staged),
            None => applier.staged.delete(&[&keys::clear_prefix(keyspace), prefix]),
        }
        Arc::make_mut(&mut applier.clears).set(keyspace, prefix, clear.clone());
        applier.pending.clears.insert(key, clear);
    }
}

/// Drops a keyspace. Its name is free immediately. The drop uses a revision, because it deletes keys.
pub(crate) fn drop_keyspace(applying: &mut Applying<'_>, id: KeyspaceId) -> Result<Outcome, Refused> {
    let Some(row) = applying.keyspace_row(id).filter(KeyspaceRow::is_live) else {
        return Ok(Outcome::NoSuchKeyspace(id));
    };
    let few = applying.few_rows(id, b"")?;
    if few.is_none()
        && applying.clears_within(id, b"").is_empty()
        && let Some(full) = applying.applier.clears.refusal(id, b"")
    {
        return Ok(full);
    }
    let revision = applying.use_revision();
    applying.record_changes();
    // The keyspace keeps no versions and counts nothing from here on.
    applying.set_keyspace(id, KeyspaceRow { life: KeyspaceLife::Dropped, ..row });
    applying.drop_history(id);
    if applying.empty(id, b"", few, revision)?.is_some() {
        applying.clears_within(id, b"").iter().for_each(|prefix| applying.set_clear(id, prefix, None));
        applying.forget_keyspace(id);
    }
    Ok(Outcome::Dropped { revision })
}

/// Examines up to `max` rows under deleted prefixes and removes the hidden ones, in the order of keyspaces and
/// prefixes. Continues where the previous sweep ended. Also removes the parts of Redis collections that have lost their
/// key.
pub(crate) fn sweep(applying: &mut Applying<'_>, max: u32) -> Result<Outcome, Refused> {
    let max = max.min(MAX_RECLAIM_ENTRIES);
    let mut sweep = Sweep { left: max, bytes: 0, last_step: applying.steps_used() + MAX_COMMAND_STEPS, spent: false };
    let clears = applying.applier.clears.clone();
    let (begun, others): (Vec<_>, Vec<_>) = clears.iter().partition(|(.., clear)| clear.swept.is_some());
    for (keyspace, prefix, clear) in begun.into_iter().chain(others) {
        sweep.spent |= applying.steps_used() >= sweep.last_step;
        if sweep.is_done() {
            break;
        }
        match sweep.prefix(applying, keyspace, prefix, clear)? {
            None => {
                applying.set_clear(keyspace, prefix, None);
                let dropped = applying.keyspace_row(keyspace).is_some_and(|row| !row.is_live());
                if dropped && prefix.is_empty() {
                    applying.forget_keyspace(keyspace);
                }
            }
            swept @ Some(_) => applying.set_clear(keyspace, prefix, Some(Clear { swept, ..clear.clone() })),
        }
    }
    let mut nothing = 0;
    let parts_left = applying.remove_parts(if sweep.spent { &mut nothing } else { &mut sweep.left })?;
    let more = !applying.applier.clears.is_empty() || parts_left;
    Ok(Outcome::Reclaimed { entries: max - sweep.left, more })
}

/// Work that is left to one sweep, which removes rows under deleted prefixes.
struct Sweep {
    /// Number of rows that the sweep may still examine.
    left: u32,
    /// Bytes of the row keys that the sweep has examined so far.
    bytes: usize,
    /// Value of `steps_used` at which the sweep ends. A sweep may take about as many steps as a client's command.
    last_step: u64,
    /// True once the sweep has used up its steps of work.
    spent: bool,
}

impl Sweep {
    fn is_done(&self) -> bool {
        self.left == 0 || self.bytes >= MAX_SWEPT_BYTES || self.spent
    }

    /// Removes hidden rows with one prefix. Returns the last key examined; `None` if no rows with the prefix follow.
    fn prefix(
        &mut self,
        applying: &mut Applying<'_>,
        keyspace: KeyspaceId,
        prefix: &[u8],
        clear: &Clear,
    ) -> Result<Option<Vec<u8>>, MachineError> {
        let start = clear.swept.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range = KeyRange::of_keyspace(keyspace, prefix, start, Bound::Unbounded);
        if range.is_empty() {
            return Ok(None);
        }
        let (mut rows, mut last) = (Vec::new(), None);
        visit_rows(&applying.view(), &range, |full, value| {
            let row = Row::decode(full, value)?;
            self.left -= 1;
            self.bytes += DATA_PREFIX_LEN + row.key.len();
            last = self.is_done().then(|| row.key.clone());
            rows.push(row);
            Ok(if self.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let now = applying.applied.revision;
        for row in &rows {
            if !applying.visibility(keyspace).shows(&row.key, row.revision) {
                applying.remove_row(keyspace, row, now, VersionEnd::Deleted)?;
            }
            // The rows after this one are left to the next sweep.
            if applying.steps_used() >= self.last_step {
                self.spent = true;
                return Ok(Some(row.key.clone()));
            }
        }
        Ok(last)
    }
}
