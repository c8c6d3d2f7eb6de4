//! Writing and reading the rows of history: the calls by which commands report their changes, the rows written with an
//! entry, raising the history floor, and the queries of log readers.
//!
//! A command that changes keys calls [`Applying::changed`] for each change. This costs one comparison if the
//! changes can be derived from the command's bytes (see [`EntryCommits`](crate::changes::commits::EntryCommits)). A
//! command whose changes cannot be derived (expiries, results of counters, branches) calls
//! [`Applying::record_changes`] before the first change; then the entry's verdict stores its changes. A command that
//! changes keys uses a revision. [`Applying::finish_command`] compares this with the command's bytes afterwards.
//!
//! Owns: marks, verdicts and the history floor. Does not own: deriving changes from an entry (`changes`), or how far
//! back the log is kept (the engine). Invariants: the rows of an entry are written in its batch; the floor never falls;
//! `judged` is at least the index of every visible verdict.

use std::{
    ops::{Bound, ControlFlow},
    sync::atomic::Ordering,
};

use bytes::Bytes;
use thalweg_store::{Applied, Direction, View};
use thalweg_types::{
    Index, LogPosition, Lsn, Revision,
    codec::Reader,
    command::{HistoryFloor, uses_revision},
};

use crate::{
    changes::{
        key_change::KeyChange,
        mark::{Mark, is_due},
    },
    entry::{Entry, LocalOutcome},
    error::MachineError,
    keys::{self, HISTORY_FLOOR},
    machine::{
        applying::{Applying, MAX_RECLAIM_ENTRIES},
        state_machine::Machine,
    },
};

impl Applying<'_> {
    /// Starts storing the current command's changes in a row of its log entry, as its bytes do not show them to watches.
    pub(crate) fn record_changes(&mut self) {
        self.applier.verdict.start_recording();
    }

    /// Reports that the current command changes a key. `value_at` is the position in the log of the value that a put
    /// writes; `None` if the log does not contain that value.
    #[inline]
    pub(crate) fn changed(&mut self, change: &KeyChange<'_>, value_at: Option<LogPosition>) {
        if self.applier.verdict.is_recording() {
            let payload_at = self.applier.payload_at;
            let within = |at: LogPosition| at.offset.checked_sub(payload_at);
            self.applier.verdict.push(change, value_at.and_then(within));
        }
    }

    /// Ends the command `number` of the log entry: stores facts about its effect in the entry's verdict row, if the
    /// command's bytes do not determine them. `before` is the last revision used before the command.
    #[inline]
    pub(crate) fn finish_command(&mut self, number: usize, bytes: &[u8], before: Revision) {
        let (used, expected) = (self.applied.revision != before, uses_revision(bytes));
        if used != expected || self.applier.verdict.is_recording() {
            let (verdict, number) = (&mut self.applier.verdict, number as u32);
            match (used, expected) {
                (true, _) => verdict.record_exception(number),
                (false, true) => verdict.record_rejection(number),
                (false, false) => verdict.discard_recording(),
            }
        }
    }
}

/// Stages the rows that an entry needs so that watches can later derive its changes: a mark (log position of a
/// revision) and a verdict (facts that the entry's bytes do not determine). Most entries need neither.
pub(crate) fn write_rows(applying: &mut Applying<'_>, entry: &Entry<'_>) {
    let applier = &mut *applying.applier;
    if is_due(entry, &applier.applied) {
        let mark = Mark::of(entry, &applier.applied);
        applier.staged.put(&[&keys::history_mark(mark.revision)], &[&mark.encode()]);
    }
    if !applier.verdict.row().is_empty() {
        applier.staged.put(&[&keys::verdict(entry.index)], &[applier.verdict.row()]);
        // Visible to every reader that sees the entry applied.
        applying.machine.published.judged.store(entry.index.0, Ordering::Release);
    }
}

/// Raises the history floor (the oldest position from which this node's log can be read as history), and deletes at
/// most `max` rows below it that only served watches of past changes. Each node does this on its own.
pub(crate) fn raise_floor(
    applying: &mut Applying<'_>,
    floor: HistoryFloor,
    max: u32,
) -> Result<LocalOutcome, MachineError> {
    let applier = &mut *applying.applier;
    // The floor may pass all applied entries, but no later ones.
    let highest = HistoryFloor { revision: applier.applied.revision, index: applier.applied.index.next() };
    let floor = floor.min(highest).max(applier.history_floor);
    if floor > applier.history_floor {
        applier.history_floor = floor;
        applier.staged.put(&[&HISTORY_FLOOR], &[&floor.encode()]);
    }
    let max = max.min(MAX_RECLAIM_ENTRIES);
    let mut rows = forget_rows(applying, [keys::history_mark(Revision(0)), keys::history_mark(floor.revision)], max)?;
    rows += forget_rows(applying, [keys::verdict(Index(0)), keys::verdict(floor.index)], max - rows)?;
    Ok(LocalOutcome::SegmentForgotten { rows, more: rows == max && max > 0 })
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

/// Loads the history floor (revision and index from which the log can be read as history) from a view.
pub(crate) fn load_floor(view: &dyn View) -> Result<HistoryFloor, MachineError> {
    let Some(row) = view.get(&HISTORY_FLOOR)? else { return Ok(HistoryFloor::default()) };
    let mut reader = Reader::at(&row, 0);
    let floor = HistoryFloor::decode(&mut reader).ok().filter(|_| reader.is_empty());
    floor.ok_or_else(|| MachineError::corrupt("history floor", &HISTORY_FLOOR, "row of a wrong length"))
}

/// The verdicts (rows with facts that a log entry's bytes do not determine) of a range of entries, in order, from one
/// view.
#[derive(Clone, Debug)]
pub struct Verdicts {
    /// Verdict rows of the range: the log entry's index and the content of its row.
    pub rows: Vec<(Index, Bytes)>,
    /// Inclusive end of the range of log entries. Entries of the range that are not in `rows` have no verdict.
    pub through: Index,
    /// History floor (oldest readable position), below which verdicts may be deleted; zero if there never were any.
    pub floor: HistoryFloor,
}

impl Machine {
    /// Returns the last mark (log position of a revision) at or before a revision; `None` if no such mark lies in the
    /// history that can still be read.
    pub fn history_mark(&self, at_or_before: Revision) -> Result<Option<Mark>, MachineError> {
        let view = self.backend.view();
        let (low, high) = (keys::history_mark(load_floor(&*view)?.revision), keys::history_mark(at_or_before));
        if low > high {
            return Ok(None);
        }
        first_mark(&*view, (Bound::Included(&low), Bound::Included(&high)), Direction::Reverse, &mut |_| true)
    }

    /// Returns the last mark (log position of a revision) at or before the entry with this index; `None` if there is no
    /// such mark any more. Reads all later marks.
    pub fn history_mark_before(&self, index: Index) -> Result<Option<Mark>, MachineError> {
        let view = self.backend.view();
        let (low, high) = (keys::history_mark(load_floor(&*view)?.revision), [keys::TAG_MARK + 1]);
        let bounds = (Bound::Included(low.as_slice()), Bound::Excluded(high.as_slice()));
        first_mark(&*view, bounds, Direction::Reverse, &mut |mark| mark.index <= index)
    }

    /// Returns the first mark (log position of a revision) at or after the log position `log_start` and not below the
    /// history floor (the oldest readable position). Changes can be read from this position on.
    pub fn history_begin(&self, log_start: Lsn) -> Result<Option<Mark>, MachineError> {
        let view = self.backend.view();
        let (low, high) = (keys::history_mark(load_floor(&*view)?.revision), [keys::TAG_MARK + 1]);
        let bounds = (Bound::Included(low.as_slice()), Bound::Excluded(high.as_slice()));
        first_mark(&*view, bounds, Direction::Forward, &mut |mark| mark.lsn >= log_start)
    }

    /// Returns the history floor: the revision and the entry index below which this node can no longer read changes
    /// from its log.
    pub fn history_floor(&self) -> Result<HistoryFloor, MachineError> {
        load_floor(&*self.backend.view())
    }

    /// Returns true if raising the history floor (the oldest position from which changes can be read) to `floor` would
    /// delete rows.
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

    /// Returns the verdicts (facts that an entry's bytes do not determine) of entries from index `from` on: at most
    /// `max_rows` of them, and little more than `max_bytes` bytes.
    ///
    /// Usually no entry has a verdict, and then the map is not scanned. A scan first links nodes that the memtable has
    /// queued, so a reader that closely follows the writer would repeatedly slow the writer down.
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
