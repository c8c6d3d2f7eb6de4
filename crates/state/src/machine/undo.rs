//! The list of changes that a rollback of a command undoes. [`savepoint`](crate::machine::savepoint) fills and uses it.

use std::sync::Arc;

use thalweg_types::{Generation, KeyspaceId};

use crate::{
    changes::verdict::Savepoint as VerdictSavepoint,
    clears::table::{Clear, ClearTable},
    keyspaces::{catalog::Meta, counts::Counts},
    machine::staged::Overwritten,
    segments::liveness::Liveness,
};

/// One change to undo: the content that a table had before the change.
#[derive(Debug)]
pub(crate) enum Undo {
    /// The exact counts of a keyspace before the change.
    Counts(KeyspaceId, Option<Counts>),
    /// The live bytes of a segment before the change; `None` if the log record had not changed them yet.
    Liveness(Generation, Option<Liveness>),
    /// The clear (row of a deleted prefix) before the change; the outer `None` if the log record had not changed it
    /// yet.
    Clear((KeyspaceId, Vec<u8>), Option<Option<Clear>>),
    /// The bytes of a row change in the batch before they were overwritten in place.
    InPlace(Overwritten),
}

/// Changes to undo when a command is rolled back, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct UndoList {
    /// True while a savepoint is active, so that changes are recorded in this undo list.
    pub(crate) is_kept: bool,
    /// Number of row changes in the batch when the innermost savepoint began.
    pub(crate) staged: usize,
    pub(crate) changes: Vec<Undo>,
}

/// State of the undo list before a savepoint began: that of the outer savepoint, if there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    is_kept: bool,
    staged: usize,
    /// Number of changes that were recorded before the inner savepoint began.
    pub(crate) changes: usize,
}

impl UndoList {
    /// Begins a savepoint when the batch has `staged` row changes. Returns the state of the savepoint around it.
    pub(crate) fn begin(&mut self, staged: usize) -> Outer {
        let outer = Outer { is_kept: self.is_kept, staged: self.staged, changes: self.changes.len() };
        (self.is_kept, self.staged) = (true, staged);
        outer
    }

    /// Ends the inner savepoint. Its changes stay recorded if there is an outer one.
    pub(crate) fn keep(&mut self, outer: Outer) {
        (self.is_kept, self.staged) = (outer.is_kept, outer.staged);
        if !self.is_kept {
            self.changes.clear();
        }
    }
}

/// State at the beginning of a command, to which a rollback returns.
#[derive(Debug)]
#[must_use = "keep it or roll back to it"]
pub(crate) struct Savepoint {
    pub(crate) changes: usize,
    pub(crate) verdict: VerdictSavepoint,
    pub(crate) meta: Meta,
    pub(crate) clears: Arc<ClearTable>,
    /// State of the undo list before this savepoint.
    pub(crate) outer: Outer,
}
