//! The list of changes that a rollback undoes. [`savepoint`](crate::machine::savepoint) fills and uses it.

use std::sync::Arc;

use thalweg_types::{Generation, KeyspaceId};

use crate::{
    changes::verdict::Savepoint as VerdictSavepoint,
    clears::table::{Clear, ClearTable},
    keyspaces::{catalog::Meta, counts::Counts},
    machine::staged::Overwritten,
    segments::liveness::Liveness,
};

/// Content of a table before a change.
#[derive(Debug)]
pub(crate) enum Undo {
    /// A keyspace's exact counts.
    Counts(KeyspaceId, Option<Counts>),
    /// A segment's liveness as changed by the record before.
    Liveness(Generation, Option<Liveness>),
    /// A deleted prefix as changed by the record before.
    Clear((KeyspaceId, Vec<u8>), Option<Option<Clear>>),
    /// A change of the batch that was overwritten in place.
    InPlace(Overwritten),
}

/// Changes to undo, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct UndoList {
    /// True while a savepoint is active.
    pub(crate) is_kept: bool,
    /// Number of changes in the batch at the savepoint.
    pub(crate) staged: usize,
    pub(crate) changes: Vec<Undo>,
}

impl UndoList {
    pub(crate) fn end(&mut self) {
        self.is_kept = false;
        self.changes.clear();
    }
}

/// State at the beginning of a command, to which a rollback returns.
#[derive(Debug)]
#[must_use = "keep it or roll back to it"]
pub(crate) struct Savepoint {
    pub(crate) changes: usize,
    pub(crate) told: VerdictSavepoint,
    pub(crate) meta: Meta,
    pub(crate) clears: Arc<ClearTable>,
}
