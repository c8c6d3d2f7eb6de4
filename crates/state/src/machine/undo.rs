//! The changes that a refused command takes back. [`savepoint`](crate::machine::savepoint) fills and uses the list.

use std::sync::Arc;

use thalweg_types::{Generation, KeyspaceId};

use crate::{
    changes::verdict::Savepoint as VerdictSavepoint,
    clears::table::{Clear, ClearTable},
    keyspaces::{catalog::Meta, counts::Counts},
    machine::staged::Overwritten,
    segments::liveness::Liveness,
};

/// What was there before a change.
#[derive(Debug)]
pub(crate) enum Undo {
    /// A keyspace's exact counts.
    Counts(KeyspaceId, Option<Counts>),
    /// What the record made of a segment's liveness.
    Liveness(Generation, Option<Liveness>),
    /// What the record made of a deleted prefix.
    Clear((KeyspaceId, Vec<u8>), Option<Option<Clear>>),
    /// A change of the batch that was overwritten in place.
    InPlace(Overwritten),
}

/// What to put back, the newest change last.
#[derive(Debug, Default)]
pub(crate) struct UndoList {
    /// Whether there is a savepoint to go back to.
    pub(crate) is_kept: bool,
    /// Changes of the batch at the savepoint.
    pub(crate) staged: usize,
    pub(crate) changes: Vec<Undo>,
}

impl UndoList {
    pub(crate) fn end(&mut self) {
        self.is_kept = false;
        self.changes.clear();
    }
}

/// Where a command began.
#[derive(Debug)]
#[must_use = "keep it or roll back to it"]
pub(crate) struct Savepoint {
    pub(crate) changes: usize,
    pub(crate) told: VerdictSavepoint,
    pub(crate) meta: Meta,
    pub(crate) clears: Arc<ClearTable>,
}
