//! Snapshots of this node's state for consensus.

use std::rc::Rc;

use thalweg_engine::Database;
use thalweg_raft::Snapshots;

/// Returns the snapshots of a database.
pub(crate) fn of(_: &Database) -> Option<Rc<dyn Snapshots>> {
    None
}
