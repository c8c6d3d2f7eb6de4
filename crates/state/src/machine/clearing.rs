//! Deleting all keys with a prefix, dropping keyspaces, and sweeping what both leave behind.
//!
//! A prefix with few rows is emptied at once. One with more gets a clear (see [`crate::clears`]), which
//! hides its rows; sweeping removes them in steps of bounded size, whichever entries those come in.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
};

use thalweg_types::{
    BlobRef, KeyspaceId, Revision,
    command::Outcome,
    limits::{MAX_EAGER_PREFIX_ROWS, MAX_PENDING_CLEARS},
};

use crate::{
    backend::Direction,
    catalog::{KeyspaceLife, KeyspaceRow},
    clears::Clear,
    counts::{CountChange, Held},
    history::KeyChange,
    keys::{self, DATA_PREFIX_LEN, KeyRange},
    keyspaces::decode_value,
    liveness::BlobKind,
    machine::{
        MachineError,
        entry::{Applying, MAX_RECLAIM_ENTRIES, Refused},
        live::LiveKey,
        overlay::Overlay,
    },
    versions::Ending,
};

/// Bytes of keys after which one sweep ends.
const MAX_SWEPT_BYTES: usize = 4 * 1024 * 1024;

/// A row of the backend.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) key: Vec<u8>,
    pub(super) revision: Revision,
    held: Held,
    blob: Option<BlobRef>,
    /// Whether it becomes a version, which the bytes belong to then.
    pub(super) is_kept: bool,
}

impl Row {
    fn decode(full: &[u8], value: &[u8]) -> Result<Self, MachineError> {
        let decoded = decode_value(full, value)?;
        let key = full.get(DATA_PREFIX_LEN..).unwrap_or_default().to_vec();
        let (held, blob) = (decoded.value.into(), decoded.value.blob());
        Ok(Self { key, revision: decoded.revision, held, blob, is_kept: false })
    }

    /// What removing it makes of exact counts; `counts` says whether it still did.
    pub(super) fn count_change(&self, counts: bool) -> CountChange {
        let change = CountChange::of(&self.key, counts.then_some(self.held), None);
        CountChange { trash: self.held.collection, ..change }
    }
}

/// How a prefix will be emptied.
#[derive(Debug)]
pub(super) enum Emptying {
    /// These rows are all there are.
    Now(Vec<Row>),
    /// There are more than can be removed at once.
    Later,
}

/// Looks at the backend's rows with a prefix, up to a bound. Those that the entry has touched are left out:
/// whatever it made of them is in the overlay, and their bytes must not be given up twice.
pub(super) fn plan_emptying(
    applying: &Applying<'_>,
    overlay: &Overlay<'_>,
    keyspace: KeyspaceId,
    prefix: &[u8],
) -> Result<Emptying, MachineError> {
    let range = KeyRange::of_keyspace(keyspace, prefix, Bound::Unbounded, Bound::Unbounded);
    let mut rows = Vec::new();
    let mut failure = None;
    let mut more = false;
    let view = applying.machine.backend.view();
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |full, value| {
        if rows.len() == MAX_EAGER_PREFIX_ROWS {
            more = true;
            return ControlFlow::Break(());
        }
        match Row::decode(full, value) {
            Ok(row) => rows.push(row),
            Err(error) => {
                failure = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    rows.retain(|row: &Row| overlay.get(keyspace, &row.key).is_none());
    Ok(if more { Emptying::Later } else { Emptying::Now(rows) })
}

impl Applying<'_> {
    /// Whether one more prefix, beside so many others, may wait to be swept. One that takes the place of longer ones
    /// always finds room: else a full table would keep anybody from emptying the whole.
    pub(super) fn has_room_for_clear(&self, keyspace: KeyspaceId, prefix: &[u8], others: usize) -> bool {
        let pending = &self.applier.pending.clears;
        let added = pending.values().filter(|change| change.is_some()).count();
        let count = self.applier.clears.len() + added + others;
        let is_replaced = |(id, longer): (KeyspaceId, &[u8])| id == keyspace && longer.starts_with(prefix);
        let stays = |(id, longer): &(KeyspaceId, &[u8])| !matches!(pending.get(&(*id, longer.to_vec())), Some(None));
        count < MAX_PENDING_CLEARS
            || (count == MAX_PENDING_CLEARS
                && self.applier.clears.iter().map(|(id, longer, _)| (id, longer)).filter(stays).any(is_replaced))
    }

    /// Empties a prefix as planned. `written` are the keys with it that this entry wrote before.
    pub(super) fn empty(
        &mut self,
        keyspace: KeyspaceId,
        prefix: &[u8],
        emptying: &Emptying,
        written: &[Vec<u8>],
        revision: Revision,
    ) {
        self.changed(&KeyChange::DeletePrefix { keyspace, prefix }, None);
        let data = keys::data_prefix(keyspace);
        for key in written {
            self.applier.batch.delete(&[&data, key]);
        }
        match emptying {
            Emptying::Now(rows) => {
                for row in rows {
                    self.applier.batch.delete(&[&data, &row.key]);
                    self.forget_blob(row);
                    if let Some(collection) = row.held.collection {
                        self.discard(keyspace, collection);
                    }
                }
            }
            Emptying::Later => self.add_clear(keyspace, prefix, revision),
        }
    }

    fn forget_blob(&mut self, row: &Row) {
        if let Some(blob) = row.blob.as_ref().filter(|_| !row.is_kept) {
            self.lower(BlobKind::Value, blob);
        }
    }

    /// The clears with this prefix or a longer one are replaced by this one: it hides what they hide. But where a
    /// history tells since when, they stay, or are kept with this one.
    fn add_clear(&mut self, keyspace: KeyspaceId, prefix: &[u8], revision: Revision) {
        let before = self.applier.clears.get(keyspace, prefix);
        let earlier = before.map(|clear| clear.revision);
        let mut kept = Vec::new();
        if self.keeps_history(keyspace) {
            let pending = self.applier.pending.clears.get(&(keyspace, prefix.to_vec()));
            if let Some(before) = pending.map_or(before, Option::as_ref).filter(|before| before.revision < revision) {
                kept.clone_from(&before.kept);
                kept.push(before.revision);
            }
        } else {
            self.remove_clears(keyspace, prefix);
        }
        let clear = Clear { revision, earlier, kept, swept: None };
        clear.write(keyspace, prefix, &mut self.applier.batch);
        self.applier.pending.clears.insert((keyspace, prefix.to_vec()), Some(clear));
    }

    /// Removes the clears with this prefix or a longer one.
    fn remove_clears(&mut self, keyspace: KeyspaceId, prefix: &[u8]) {
        let known = self.applier.clears.iter().map(|(of, longer, _)| (of, longer.to_vec()));
        let pending = self.applier.pending.clears.iter().filter(|(_, change)| change.is_some());
        let pending = pending.map(|((of, longer), _)| (*of, longer.clone()));
        let covered = known.chain(pending).filter(|(of, longer)| *of == keyspace && longer.starts_with(prefix));
        for (keyspace, longer) in covered.collect::<Vec<_>>() {
            self.remove_clear(keyspace, longer);
        }
    }

    fn remove_clear(&mut self, keyspace: KeyspaceId, prefix: Vec<u8>) {
        self.applier.batch.delete(&[&keys::clear_prefix(keyspace), &prefix]);
        self.applier.pending.clears.insert((keyspace, prefix), None);
    }
}

/// Drops a keyspace: its name is free at once. Uses a revision, since keys change.
pub(crate) fn drop_keyspace(
    applying: &mut Applying<'_>,
    id: KeyspaceId,
    overlay: &mut Overlay<'_>,
) -> Result<Outcome, Refused> {
    let Some(row) = applying.keyspace_row(id).filter(KeyspaceRow::is_live) else {
        return Ok(Outcome::NoSuchKeyspace(id));
    };
    let emptying = plan_emptying(applying, overlay, id, b"")?;
    if matches!(emptying, Emptying::Later) && !applying.has_room_for_clear(id, b"", 0) {
        return Ok(Outcome::TooMany { what: "deleted prefixes wait to be swept", limit: MAX_PENDING_CLEARS });
    }
    let written = overlay.written_under(id, b"");
    let revision = applying.use_revision();
    applying.tell_changes();
    for key in &written {
        if let Some(Some(collection)) = overlay.get(id, key).map(|live| live.as_ref().and_then(LiveKey::collection)) {
            applying.discard(id, collection);
        }
    }
    // From here on it keeps no versions.
    applying.set_keyspace(id, KeyspaceRow { life: KeyspaceLife::Dropped, ..row });
    applying.drop_history(id);
    applying.empty(id, b"", &emptying, &written, revision);
    match emptying {
        Emptying::Later => {}
        Emptying::Now(_) => {
            applying.remove_clears(id, b"");
            applying.forget_keyspace(id);
        }
    }
    Ok(Outcome::Dropped { revision })
}

/// Looks at up to `max` rows under deleted prefixes and removes those that are hidden, in the order of
/// keyspaces and prefixes, going on where the sweep before ended. Rows that this entry wrote, and prefixes
/// that it deleted, are left to a later one.
pub(crate) fn sweep(applying: &mut Applying<'_>, max: u32, overlay: &mut Overlay<'_>) -> Result<Outcome, Refused> {
    let max = max.min(MAX_RECLAIM_ENTRIES - applying.applier.pending.reclaimed);
    let clears = applying.applier.clears.clone();
    let mut sweep = Sweep { left: max, bytes: 0, counted: BTreeMap::new() };
    for (keyspace, prefix, clear) in clears.iter() {
        if sweep.left == 0 || sweep.bytes >= MAX_SWEPT_BYTES {
            break;
        }
        if applying.applier.pending.clears.contains_key(&(keyspace, prefix.to_vec())) {
            continue;
        }
        match sweep.prefix(applying, keyspace, prefix, clear, overlay)? {
            None => {
                applying.remove_clear(keyspace, prefix.to_vec());
                let dropped = applying.keyspace_row(keyspace).is_some_and(|row| !row.is_live());
                if dropped && prefix.is_empty() {
                    sweep.counted.remove(&keyspace);
                    applying.forget_keyspace(keyspace);
                }
            }
            swept @ Some(_) => {
                let clear = Clear { swept, ..clear.clone() };
                clear.write(keyspace, prefix, &mut applying.applier.batch);
                applying.applier.pending.clears.insert((keyspace, prefix.to_vec()), Some(clear));
            }
        }
    }
    let parts_left = applying.remove_parts(&mut sweep.left)?;
    let entries = max - sweep.left;
    for (keyspace, change) in sweep.counted {
        applying.count(keyspace, change);
    }
    applying.applier.pending.reclaimed += entries;
    let pending = &applying.applier.pending.clears;
    let is_left = |(keyspace, prefix, _): (_, &[u8], _)| pending.get(&(keyspace, prefix.to_vec())) != Some(&None);
    let more = clears.iter().any(is_left) || pending.values().any(Option::is_some);
    Ok(Outcome::Reclaimed { entries, more: more || parts_left })
}

/// One sweep under way.
struct Sweep {
    /// Rows that may still be looked at.
    left: u32,
    /// Of the keys looked at.
    bytes: usize,
    /// Per keyspace that counts exactly, what has been removed.
    counted: BTreeMap<KeyspaceId, CountChange>,
}

impl Sweep {
    /// Sweeps under one prefix. The last key looked at; `None` if there are none behind it.
    fn prefix(
        &mut self,
        applying: &mut Applying<'_>,
        keyspace: KeyspaceId,
        prefix: &[u8],
        clear: &Clear,
        overlay: &mut Overlay<'_>,
    ) -> Result<Option<Vec<u8>>, MachineError> {
        let start = clear.swept.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range = KeyRange::of_keyspace(keyspace, prefix, start, Bound::Unbounded);
        if range.is_empty() {
            return Ok(None);
        }
        let (mut rows, mut failure, mut last) = (Vec::new(), None, None);
        let view = applying.machine.backend.view();
        view.scan(range.lower(), range.upper(), Direction::Forward, &mut |full, value| {
            let row = match Row::decode(full, value) {
                Ok(row) => row,
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            };
            self.left -= 1;
            self.bytes += full.len();
            let ends = self.left == 0 || self.bytes >= MAX_SWEPT_BYTES;
            last = ends.then(|| row.key.clone());
            rows.push(row);
            if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let counts = applying.counts_exactly(keyspace);
        for mut row in rows {
            let hidden = !applying.sight(keyspace).shows(&row.key, row.revision);
            if hidden && overlay.get(keyspace, &row.key).is_none() {
                let now = applying.applied.revision;
                row.is_kept = applying.supersede(overlay, keyspace, &row.key, now, Ending::Deleted)?;
                applying.applier.batch.delete(&[&keys::data_prefix(keyspace), &row.key]);
                applying.forget_blob(&row);
                if counts {
                    let is_counted = applying.counts_row(overlay, keyspace, row.revision);
                    self.counted.entry(keyspace).or_default().add(row.count_change(is_counted));
                }
                if let Some(collection) = row.held.collection {
                    applying.discard(keyspace, collection);
                }
                overlay.set(keyspace, row.key, None);
            }
        }
        Ok(last)
    }
}
