//! History as the machine keeps it: the seam through which commands tell what they change, the rows that go
//! with an entry, raising the floor, and what readers of the log ask.
//!
//! A command that changes keys calls [`Applying::changed`] for each change. That is all, and costs one
//! comparison, as long as the changes can be derived from the command's bytes (see
//! [`EntryCommits`](crate::changes::commits::EntryCommits)). A command of which they can't (expiries, results of
//! counters, branches) calls [`Applying::tell_changes`] before the first one: then they are kept in the
//! entry's verdict. A command that changes keys uses a revision; that it did, or did not, is seen from outside.

use std::{
    ops::{Bound, ControlFlow},
    sync::atomic::Ordering,
};

use bytes::Bytes;
use thalweg_store::{Applied, Direction, View};
use thalweg_types::{
    Index, LogPosition, Lsn, Revision,
    command::{HistoryFloor, uses_revision},
    record::Reader,
};

use crate::{
    changes::{
        commits::KeyChange,
        mark::{Mark, is_due},
    },
    entry::{Entry, Moved},
    error::MachineError,
    keys::{self, HISTORY_FLOOR},
    machine::{
        applying::{Applying, MAX_RECLAIM_ENTRIES},
        state_machine::Machine,
    },
};

impl Applying<'_> {
    /// The current command's changes cannot be derived from its bytes: keeps those that follow.
    pub(crate) fn tell_changes(&mut self) {
        self.applier.verdict.tell();
    }

    /// The current command changes a key. `value_at` is where in the log a put's value lies, if it does.
    #[inline]
    pub(crate) fn changed(&mut self, change: &KeyChange<'_>, value_at: Option<LogPosition>) {
        if self.applier.verdict.is_telling() {
            let payload_at = self.applier.payload_at;
            let within = |at: LogPosition| at.offset.checked_sub(payload_at);
            self.applier.verdict.push(change, value_at.and_then(within));
        }
    }

    /// Ends a command, before which `before` was the last revision used.
    #[inline]
    pub(crate) fn judge(&mut self, number: usize, bytes: &[u8], before: Revision) {
        let (used, expected) = (self.applied.revision != before, uses_revision(bytes));
        if used != expected || self.applier.verdict.is_telling() {
            let (verdict, number) = (&mut self.applier.verdict, number as u32);
            match (used, expected) {
                (true, _) => verdict.told(number),
                (false, true) => verdict.refused(number),
                (false, false) => verdict.forget_told(),
            }
        }
    }
}

/// Adds the rows that help to read the entry as history.
pub(crate) fn write_rows(applying: &mut Applying<'_>, entry: &Entry<'_>) {
    let applier = &mut *applying.applier;
    if is_due(entry, &applier.applied) {
        let mark = Mark::of(entry, &applier.applied);
        applier.staged.put(&[&keys::history_mark(mark.revision)], &[&mark.encode()]);
    }
    if !applier.verdict.row().is_empty() {
        applier.staged.put(&[&keys::verdict(entry.index)], &[applier.verdict.row()]);
        // Seen by whoever sees the entry applied.
        applying.machine.published.judged.store(entry.index.0, Ordering::Release);
    }
}

/// Raises the floor at once, and forgets at most `max` rows below it. How far back a node can read its log as history is
/// its own affair.
pub(crate) fn raise_floor(applying: &mut Applying<'_>, floor: HistoryFloor, max: u32) -> Result<Moved, MachineError> {
    let applier = &mut *applying.applier;
    // All that is applied may be forgotten, and nothing that is to come.
    let highest = HistoryFloor { revision: applier.applied.revision, index: applier.applied.index.next() };
    let floor = floor.min(highest).max(applier.history_floor);
    if floor > applier.history_floor {
        applier.history_floor = floor;
        applier.staged.put(&[&HISTORY_FLOOR], &[&floor.encode()]);
    }
    let max = max.min(MAX_RECLAIM_ENTRIES);
    let mut rows = forget_rows(applying, [keys::history_mark(Revision(0)), keys::history_mark(floor.revision)], max)?;
    rows += forget_rows(applying, [keys::verdict(Index(0)), keys::verdict(floor.index)], max - rows)?;
    Ok(Moved::Forgot { rows, more: rows == max && max > 0 })
}

fn forget_rows(applying: &mut Applying<'_>, [from, below]: [[u8; 9]; 2], max: u32) -> Result<u32, MachineError> {
    let mut rows = Vec::new();
    if max == 0 || from >= below {
        return Ok(0);
    }
    applying.view().scan(Bound::Included(&from), Bound::Excluded(&below), Direction::Forward, &mut |key, _| {
        rows.push(key.to_vec());
        if rows.len() == max as usize { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    rows.iter().for_each(|key| applying.applier.staged.delete(&[key]));
    Ok(rows.len() as u32)
}

/// The floor as stored.
pub(crate) fn load_floor(view: &dyn View) -> Result<HistoryFloor, MachineError> {
    let Some(row) = view.get(&HISTORY_FLOOR)? else { return Ok(HistoryFloor::default()) };
    let mut reader = Reader::at(&row, 0);
    let floor = HistoryFloor::decode(&mut reader).ok().filter(|_| reader.is_empty());
    floor.ok_or_else(|| MachineError::corrupt("history floor", &HISTORY_FLOOR, "row of a wrong length"))
}

/// Some verdicts, in order, as of one view.
#[derive(Clone, Debug)]
pub struct Verdicts {
    /// The entries that have one, and their rows.
    pub rows: Vec<(Index, Bytes)>,
    /// Entries from where was asked up to and including this one have those rows and no others.
    pub through: Index,
    /// Below it there may be no rows any more; zero where there have never been any from where was asked on.
    pub floor: HistoryFloor,
}

impl Machine {
    /// The last mark at or before a revision, unless it is below the floor.
    pub fn history_mark(&self, at_or_before: Revision) -> Result<Option<Mark>, MachineError> {
        let view = self.backend.view();
        let (low, high) = (keys::history_mark(load_floor(&*view)?.revision), keys::history_mark(at_or_before));
        if low > high {
            return Ok(None);
        }
        first_mark(&*view, (Bound::Included(&low), Bound::Included(&high)), Direction::Reverse, &mut |_| true)
    }

    /// The first mark at or after a position of the log, and not below the floor: where its history begins.
    pub fn history_begin(&self, log_start: Lsn) -> Result<Option<Mark>, MachineError> {
        let view = self.backend.view();
        let (low, high) = (keys::history_mark(load_floor(&*view)?.revision), [keys::TAG_MARK + 1]);
        let bounds = (Bound::Included(low.as_slice()), Bound::Excluded(high.as_slice()));
        first_mark(&*view, bounds, Direction::Forward, &mut |mark| mark.lsn >= log_start)
    }

    /// The floor below which rows have been forgotten.
    pub fn history_floor(&self) -> Result<HistoryFloor, MachineError> {
        load_floor(&*self.backend.view())
    }

    /// Whether there are rows that raising the floor to this would forget.
    pub fn has_history_below(&self, floor: HistoryFloor) -> Result<bool, MachineError> {
        let view = self.backend.view();
        let ranges = [
            [keys::history_mark(Revision(0)), keys::history_mark(floor.revision)],
            [keys::verdict(Index(0)), keys::verdict(floor.index)],
        ];
        let mut found = false;
        for [from, below] in ranges.iter().filter(|[from, below]| from < below) {
            view.scan(Bound::Included(from), Bound::Excluded(below), Direction::Forward, &mut |_, _| {
                found = true;
                ControlFlow::Break(())
            })?;
        }
        Ok(found)
    }

    /// Verdicts of entries from `from` on: at most `max_rows`, and not many more than `max_bytes` bytes.
    ///
    /// Where there are none, which is the rule, nothing is scanned: a scan puts the memtable in order, and whoever
    /// follows the writer closely would do that for it, at its expense, again and again.
    pub fn verdicts(&self, from: Index, max_rows: usize, max_bytes: usize) -> Result<Verdicts, MachineError> {
        let through = self.applied().index;
        if self.published.judged.load(Ordering::Acquire) < from.0 {
            return Ok(Verdicts { rows: Vec::new(), through, floor: HistoryFloor::default() });
        }
        let view = self.backend.view();
        let Applied { index: applied, .. } = view.applied();
        let mut found = Verdicts { rows: Vec::new(), through: applied, floor: load_floor(&*view)? };
        let (low, high) = (keys::verdict(from), keys::verdict(applied));
        if low > high {
            return Ok(found);
        }
        let (mut bytes, mut failure) = (0, None);
        view.scan(Bound::Included(&low), Bound::Included(&high), Direction::Forward, &mut |key, row| {
            let Some(index) = keys::index_of_verdict(key) else {
                failure = Some(MachineError::corrupt("verdict", key, "key of a wrong length"));
                return ControlFlow::Break(());
            };
            found.rows.push((index, Bytes::copy_from_slice(row)));
            bytes += row.len();
            if found.rows.len() < max_rows && bytes < max_bytes {
                return ControlFlow::Continue(());
            }
            found.through = index;
            ControlFlow::Break(())
        })?;
        failure.map_or(Ok(found), Err)
    }
}

fn first_mark(
    view: &dyn View,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
    wanted: &mut dyn FnMut(&Mark) -> bool,
) -> Result<Option<Mark>, MachineError> {
    let mut found = Ok(None);
    view.scan(lower, upper, direction, &mut |key, row| {
        match keys::revision_of_mark(key).and_then(|revision| Mark::decode(revision, row)) {
            None => found = Err(MachineError::corrupt("history mark", key, "row or key of a wrong length")),
            Some(mark) if wanted(&mark) => found = Ok(Some(mark)),
            Some(_) => return ControlFlow::Continue(()),
        }
        ControlFlow::Break(())
    })?;
    found
}
