//! Application of the records of a member's log, in log order, up to the last committed entry.
//!
//! Owns: the position up to which the log is applied, and the outcomes of moves for the callers that wait for them. A
//! move is a record which says that bytes were copied within the log. Does not own: which entries are committed
//! (consensus).
//!
//! The cursor's position is the state's applied LSN. Before the cursor applies an entry, it applies all valid records
//! of the space (Raft group) between this position and the entry, as replay does. So the state is the same as after a
//! restart with the same log.
//!
//! ```text
//! LSN    10   11    12        13    14        15
//!        e5   move  e6 void   vote  truncate  e6    apply(e6): applies 11, 13, 14 and 15
//! ```
//! Usually an entry follows the applied position directly and is still in memory, so the cursor applies it without
//! reading the log. Otherwise the cursor reads the log from the applied position on. It keeps the reader until an entry
//! is applied from memory again.
//!
//! Invariant: before a record is applied, each entry with a lower LSN was applied or is void.

use std::{
    collections::BTreeMap,
    sync::{Condvar, MutexGuard, PoisonError},
    time::Duration,
};

use thalweg_log::{Log, LogRecord, Records};
use thalweg_state::machine::{LocalOutcome, Machine};
use thalweg_types::{Index, Lsn, SpaceId, command::Outcome};

use crate::{apply::apply_record, error::OpenError, valid::Valid};

/// Result of applying one log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// Work of applying the log entry on this node in steps, including the reads that the entry's commands made for
    /// clients.
    pub steps: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// Index up to which log entries may be applied.
    committed: Index,
    /// True once a log entry is known to be committed. `committed` alone cannot show this, because 0 is a valid index.
    has_committed: bool,
    /// Number of callers that wait until this cursor, which applies the log's records in order, has applied a record: a
    /// move (which says that bytes were copied within the log), or a note that entries were purged.
    pub(crate) waiting: usize,
    /// Outcomes of the moves that were applied while callers waited, by the LSN of the move.
    moved: BTreeMap<Lsn, LocalOutcome>,
    ahead: LookAhead,
}

/// Condition variable that wakes callers when the cursor, which applies the log's records in order, has applied further
/// records. The callers wait for a move (a record which says that bytes were copied within the log), or for a note that
/// entries were purged.
#[derive(Debug, Default)]
pub(crate) struct Moves(Condvar);

impl Moves {
    pub(crate) fn wake_all(&self) {
        self.0.notify_all();
    }

    /// Waits until the cursor, which applies the log's records in order, has applied further records, at most for
    /// `limit`.
    pub(crate) fn wait<'a>(&self, cursor: MutexGuard<'a, Cursor>, limit: Duration) -> MutexGuard<'a, Cursor> {
        self.0.wait_timeout(cursor, limit).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The log that the cursor reads, the state to which it applies records, and the space (Raft group) whose records it
/// applies.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) log: &'a Log,
    pub(crate) machine: &'a Machine,
    pub(crate) space: SpaceId,
}

impl Cursor {
    /// Applies the committed entry with this index, after all records before it. `cached` is the entry's log record;
    /// `None` if the record is not in memory. Appends the outcomes of the entry's commands to `outcomes`. `is_awaited`
    /// is true if a client of this node waits for these outcomes. Calls `each` with the outcomes of every applied entry
    /// that has commands.
    pub(crate) fn apply(
        &mut self,
        parts: Parts<'_>,
        index: Index,
        cached: Option<&LogRecord>,
        is_awaited: bool,
        outcomes: &mut Vec<Outcome>,
        each: &mut dyn FnMut(&[Outcome]),
    ) -> Result<AppliedEntry, OpenError> {
        self.committed = self.committed.max(index);
        self.has_committed = true;
        let machine = parts.machine;
        let (from, mut steps) = (outcomes.len(), 0);
        while !has_applied(machine, index)? {
            outcomes.truncate(from);
            let before = machine.work()?;
            match cached.filter(|record| record.lsn == machine.applied().lsn) {
                Some(record) => {
                    self.ahead = LookAhead::default();
                    apply_record(machine, record, is_awaited && record.index == index, outcomes)?;
                }
                None if self.advance(parts, is_awaited.then_some(index), outcomes)? => {}
                None => return Err(OpenError::Gap { last: machine.applied().index, found: index }),
            }
            steps = machine.work()? - before;
            if outcomes.len() > from {
                each(&outcomes[from..]);
            }
        }
        Ok(AppliedEntry { steps })
    }

    /// Applies the records after the applied position, up to the first log entry that is not known to be committed.
    /// Calls `each` with the outcomes of every applied entry that has commands.
    pub(crate) fn apply_local(&mut self, parts: Parts<'_>, each: &mut dyn FnMut(&[Outcome])) -> Result<(), OpenError> {
        let mut outcomes = Vec::new();
        while self.advance(parts, None, &mut outcomes)? {
            if !outcomes.is_empty() {
                each(&outcomes);
                outcomes.clear();
            }
        }
        self.ahead = LookAhead::default();
        Ok(())
    }

    /// Removes and returns the outcome of the move with this LSN; `None` if the move was not applied since the caller
    /// was counted in `waiting`.
    pub(crate) fn take_moved(&mut self, lsn: Lsn) -> Option<LocalOutcome> {
        self.moved.remove(&lsn)
    }

    /// Ends the wait of one caller. If no caller waits any more, drops the outcomes that were not taken.
    pub(crate) fn end_wait(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.moved.clear();
        }
    }

    /// Applies the next record of the log. Returns false if there is none, or if it is an entry that is not known to be
    /// committed. `awaited` is the entry for whose outcomes a client of this node waits.
    fn advance(
        &mut self,
        parts: Parts<'_>,
        awaited: Option<Index>,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<bool, OpenError> {
        let Some(next) = self.ahead.peek(parts)? else { return Ok(false) };
        let is_committed = self.has_committed && next.index <= self.committed;
        if next.kind.has_index() && !is_committed {
            return Ok(false);
        }
        let moved = apply_record(parts.machine, next, awaited == Some(next.index), outcomes)?;
        if let Some(moved) = moved
            && self.waiting > 0
        {
            self.moved.insert(next.lsn, moved);
        }
        Ok(true)
    }
}

/// Returns true if the state has applied the log entry with this index.
fn has_applied(machine: &Machine, index: Index) -> Result<bool, OpenError> {
    let applied = machine.applied().index;
    // A state without entries counts as if it had applied index 0, which is that of the first membership.
    Ok(if index == Index::ZERO && applied == index { machine.membership()?.is_some() } else { applied >= index })
}

/// Reader of the log's records after the applied position. While this reader exists, the log does not recycle the
/// segments that are still to be read.
#[derive(Debug, Default)]
struct LookAhead {
    records: Option<Records>,
    next: Option<LogRecord>,
}

impl LookAhead {
    /// Returns the next valid record of the space (Raft group) that is not applied; `None` at the end of the log.
    fn peek(&mut self, parts: Parts<'_>) -> Result<Option<&LogRecord>, OpenError> {
        let Parts { log, machine, space } = parts;
        let (applied, valid) = (machine.applied().lsn, Valid::of(log, space));
        #[cfg(feature = "plant")]
        let is_void = |record: &LogRecord| valid.is_void(record) && !crate::plant::applies_void_entries();
        #[cfg(not(feature = "plant"))]
        let is_void = |record: &LogRecord| valid.is_void(record);
        let is_next = |record: &LogRecord| record.lsn >= applied && record.space == space && !is_void(record);
        if self.next.as_ref().is_some_and(is_next) {
            return Ok(self.next.as_ref());
        }
        self.next = None;
        let records = match &mut self.records {
            Some(records) => records,
            none => none.insert(log.records_from(applied)?),
        };
        // The reader may not know the newest records of the log yet. The second attempt extends its range.
        for extends in [false, true] {
            if extends {
                log.extend_records(records)?;
            }
            for record in records.by_ref() {
                let record = record?;
                if is_next(&record) {
                    return Ok(Some(self.next.insert(record)));
                }
            }
        }
        self.records = None;
        Ok(None)
    }
}
