//! Taking back what a command has done, if it is refused in the middle.
//!
//! Transactions and Redis commands do their work as they go: each step reads what the steps before it left. A command
//! that may be refused half-way begins with [`Applying::savepoint`] and ends with [`Applying::keep`] or
//! [`Applying::roll_back`].
//!
//! Owns the list of what to put back in the tables in memory that such commands change: exact counts, liveness, deleted
//! prefixes. Rows go back with the batch (`staged`). Heads of streams and consumer groups are not in it: commands check
//! their appends and settlements first, and do them once nothing can be refused any more.
//!
//! Invariant: between a savepoint and its end, whatever changes one of those tables notes here what was there before.

use thalweg_types::Generation;

use crate::machine::{
    applier::Applier,
    applying::Applying,
    staged::Overwritten,
    undo::{Savepoint, Undo},
};

impl Applying<'_> {
    /// From here on changes can be taken back.
    pub(crate) fn savepoint(&mut self) -> Savepoint {
        let Applier { staged, undo, verdict, meta, clears, .. } = &mut *self.applier;
        debug_assert!(!undo.is_kept, "savepoints do not nest");
        (undo.is_kept, undo.staged) = (true, staged.len());
        Savepoint { changes: staged.len(), told: verdict.savepoint(), meta: *meta, clears: clears.clone() }
    }

    /// The changes since the savepoint stay.
    pub(crate) fn keep(&mut self, _savepoint: Savepoint) {
        self.applier.undo.end();
    }

    /// Takes back the changes since the savepoint.
    pub(crate) fn roll_back(&mut self, to: Savepoint) {
        let Applier { staged, undo, verdict, meta, clears, counts, liveness, pending, .. } = &mut *self.applier;
        for change in undo.changes.drain(..).rev() {
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
        verdict.roll_back(to.told);
        *meta = to.meta;
        *clears = to.clears;
        undo.end();
    }

    /// Before a change that a refused command takes back.
    #[inline]
    pub(crate) fn note_undo(&mut self, before: impl FnOnce(&Applier) -> Undo) {
        if self.applier.undo.is_kept {
            let before = before(self.applier);
            self.applier.undo.changes.push(before);
        }
    }

    /// Notes an overwritten change, unless it was made after the savepoint: a rollback drops that one whole.
    #[inline]
    pub(crate) fn note_overwritten(&mut self, overwritten: Overwritten) {
        let undo = &mut self.applier.undo;
        if undo.is_kept && (overwritten.number as usize) < undo.staged {
            undo.changes.push(Undo::InPlace(overwritten));
        }
    }

    /// Before a segment's liveness changes.
    #[inline]
    pub(crate) fn note_liveness(&mut self, generation: Generation) {
        self.note_undo(|applier| Undo::Liveness(generation, applier.liveness.changed(generation)));
    }
}
