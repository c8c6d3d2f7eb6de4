//! Rollback of a command that is rejected after it has made changes.
//!
//! Transactions and Redis commands make changes step by step, and each step reads the results of the steps before it. A
//! command that can be rejected half-way begins with [`Applying::savepoint`] and ends with [`Applying::keep`] or
//! [`Applying::roll_back`].
//!
//! Owns: recording and restoring the previous content of the tables in memory that such commands change: exact counts,
//! liveness, deleted prefixes. Rows are rolled back with the batch (`staged`). Stream heads and consumer groups are not
//! included: commands check their appends, acks and nacks first, and apply them when nothing can be rejected any more.
//!
//! Savepoints nest once: the commands of a Redis transaction have a savepoint each, within one of the whole
//! transaction.
//!
//! Invariant: between a savepoint and its end, every change of the exact counts, the liveness or the deleted prefixes
//! records the previous content here.

use thalweg_types::Generation;

use crate::machine::{
    applier::Applier,
    applying::Applying,
    staged::Overwritten,
    undo::{Savepoint, Undo},
};

impl Applying<'_> {
    /// Begins a savepoint: from now on, changes are recorded so that they can be rolled back.
    pub(crate) fn savepoint(&mut self) -> Savepoint {
        let Applier { staged, undo, verdict, meta, clears, .. } = &mut *self.applier;
        let outer = undo.begin(staged.len());
        Savepoint { changes: staged.len(), verdict: verdict.savepoint(), meta: *meta, clears: clears.clone(), outer }
    }

    /// Ends the savepoint and keeps the changes made since it began.
    pub(crate) fn keep(&mut self, savepoint: Savepoint) {
        self.applier.undo.keep(savepoint.outer);
    }

    /// Ends the savepoint and rolls back the changes made since it began.
    pub(crate) fn roll_back(&mut self, to: Savepoint) {
        let Applier { staged, undo, verdict, meta, clears, counts, liveness, pending, .. } = &mut *self.applier;
        for change in undo.changes.drain(to.outer.changes..).rev() {
            match change {
                Undo::Counts(id, Some(before)) => drop(counts.insert(id, before)),
                Undo::Counts(id, None) => drop(counts.remove(&id)),
                Undo::Liveness(generation, before) => liveness.restore(generation, before),
                Undo::Clear(key, Some(before)) => drop(pending.clears.insert(key, before)),
                Undo::Clear(key, None) => drop(pending.clears.remove(&key)),
                Undo::InPlace(overwritten) => staged.restore(&overwritten),
            }
        }
        staged.truncate(to.changes);
        verdict.roll_back(to.verdict);
        *meta = to.meta;
        *clears = to.clears;
        undo.keep(to.outer);
    }

    /// If a savepoint is active, records the content of a table in memory before a change. `before` returns it.
    #[inline]
    pub(crate) fn note_undo(&mut self, before: impl FnOnce(&Applier) -> Undo) {
        if self.applier.undo.is_kept {
            let before = before(self.applier);
            self.applier.undo.changes.push(before);
        }
    }

    /// Records the previous bytes of a change that was overwritten in place. Changes made after the savepoint are not
    /// recorded, because a rollback removes them entirely.
    #[inline]
    pub(crate) fn note_overwritten(&mut self, overwritten: Overwritten) {
        let undo = &mut self.applier.undo;
        if undo.is_kept && (overwritten.number as usize) < undo.staged {
            undo.changes.push(Undo::InPlace(overwritten));
        }
    }

    /// Records the live bytes of a segment before they change.
    #[inline]
    pub(crate) fn note_liveness(&mut self, generation: Generation) {
        self.note_undo(|applier| Undo::Liveness(generation, applier.liveness.changed(generation)));
    }
}
