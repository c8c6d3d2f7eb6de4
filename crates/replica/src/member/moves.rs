//! Log records that concern only this node: moves, which say that bytes were copied within the log, and notes that
//! entries were purged (dropped from the start of the log).
//!
//! Owns: the wait until the cursor has applied such a record. Does not own: the effect of a move (`state`), or the
//! purge itself, which consensus writes.
//!
//! A move is applied after the entries before it, so its caller waits until they are committed, at most for
//! [`MemberOptions::max_move_wait`]. If the wait ends early, the record stays in the log and is applied later. The
//! caller may then repeat the move: a move changes nothing if the state no longer refers to the old position.
//!
//! [`MemberOptions::max_move_wait`]: super::MemberOptions::max_move_wait

use std::{
    io::IoSlice,
    sync::{MutexGuard, atomic::Ordering},
    time::Duration,
};

use thalweg_log::{Draft, Purpose, RecordKind};
use thalweg_state::machine::LocalOutcome;
use thalweg_types::{Durability, Index, Lsn, Term};

use super::{Member, Shared, cursor::Cursor};
use crate::error::ProposeError;

/// Time after which a caller that waits for a record to be applied checks again, if nothing has woken it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Member {
    /// Logs a move, which copies bytes of the log to the log's end so that an old segment can be freed, and waits until
    /// it is applied to the state. Returns `Void` if the state no longer refers to the old position of the bytes.
    ///
    /// # Errors
    /// [`ProposeError::Behind`] if entries before the move were not committed in time.
    pub fn relocate(&self, payload: &[u8]) -> Result<LocalOutcome, ProposeError> {
        let shared = &*self.shared;
        shared.check()?;
        if shared.options.max_move_wait.is_zero() {
            // A caller that must not block would not learn the outcome.
            shared.apply_local(&mut shared.cursor())?;
            if shared.machine.applied().lsn < shared.log.end() {
                return Err(ProposeError::Behind);
            }
        }
        // From here on the cursor keeps the outcomes of moves.
        shared.cursor().waiting += 1;
        let moved = shared.append_move(payload).and_then(|lsn| shared.wait_until(|cursor| Ok(cursor.take_moved(lsn))));
        shared.cursor().end_wait();
        moved
    }

    /// Makes consensus write a record to the log which states that entries up to `index` may be missing, and waits
    /// until this record is applied. A caller that frees segments with such entries calls this function first.
    ///
    /// # Errors
    /// [`ProposeError::Behind`] if the record was not applied in time.
    pub fn note_purged(&self, _term: Term, index: Index) -> Result<(), ProposeError> {
        let shared = &*self.shared;
        shared.check()?;
        let is_purged = || {
            let purged = shared.machine.purged().map_err(|error| shared.fail(&error.to_string()))?;
            Ok(purged.filter(|purged| purged.index >= index).map(|_| ()))
        };
        if is_purged()?.is_some() {
            return Ok(());
        }
        self.want_purge(index);
        shared.cursor().waiting += 1;
        let noted = shared.wait_until(|_| is_purged());
        shared.cursor().end_wait();
        noted
    }

    /// Asks consensus to purge entries up to `index` (drop them from the start of the log), and returns at once.
    pub fn want_purge(&self, index: Index) {
        self.shared.purge.fetch_max(index.0, Ordering::SeqCst);
        self.shared.notify();
    }

    /// Returns the index up to which this node's maintenance wants log entries to be purged (dropped from the start of
    /// the log); 0 if none.
    #[must_use]
    pub fn purge_wanted(&self) -> Index {
        Index(self.shared.purge.load(Ordering::SeqCst))
    }

    /// Applies records that concern only this node and need no commit, such as the note that log entries were purged.
    pub fn apply_local(&self) -> Result<(), ProposeError> {
        let applied = self.shared.apply_local(&mut self.shared.cursor());
        self.shared.moves.wake_all();
        applied
    }

    /// Keeps all threads of the member from applying records until the returned guard is dropped. A caller uses it, for
    /// example, while it replaces the state with that of a snapshot.
    #[must_use]
    pub fn pause_applying(&self) -> ApplyingPause<'_> {
        ApplyingPause(self.shared.cursor())
    }
}

/// Guard that keeps all threads of a member from applying records until it is dropped.
#[derive(Debug)]
pub struct ApplyingPause<'a>(#[expect(dead_code, reason = "the guard is held, and not used")] MutexGuard<'a, Cursor>);

impl Shared {
    fn append_move(&self, payload: &[u8]) -> Result<Lsn, ProposeError> {
        let payload = &[IoSlice::new(payload)];
        let draft = Draft {
            space: self.options.space,
            kind: RecordKind::Move,
            term: Term::ZERO,
            index: Index::ZERO,
            time: self.machine.applied().time,
            payload,
        };
        Ok(self.log.append(&[draft], Durability::Os, Purpose::Reclaim)?.first)
    }

    pub(super) fn apply_local(&self, cursor: &mut Cursor) -> Result<(), ProposeError> {
        let applied = cursor.apply_local(self.parts(), &mut |outcomes| self.count(outcomes));
        applied.map_err(|error| self.fail(&error.to_string()))
    }

    /// Waits until `found` returns a value, at most `max_move_wait`, and returns this value. While it waits, it applies
    /// all records of the log that can be applied.
    fn wait_until<T>(
        &self,
        mut found: impl FnMut(&mut Cursor) -> Result<Option<T>, ProposeError>,
    ) -> Result<T, ProposeError> {
        let gives_up = self.clock.monotonic() + self.options.max_move_wait;
        let mut cursor: MutexGuard<'_, Cursor> = self.cursor();
        loop {
            self.apply_local(&mut cursor)?;
            if let Some(found) = found(&mut cursor)? {
                return Ok(found);
            }
            self.check()?;
            let left = gives_up.saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                return Err(ProposeError::Behind);
            }
            cursor = self.moves.wait(cursor, left.min(LOOK_AGAIN));
        }
    }
}
