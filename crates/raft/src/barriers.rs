//! Linearizable reads that wait until a majority has answered a heartbeat of the leader.
//!
//! Owns: the list of these reads. Does not own: the heartbeats (`reads`). One round of heartbeats serves
//! all reads that wait for it.

use std::cell::{Cell, RefCell};

use openraft::{async_runtime::AsyncRuntime, type_config::alias::OneshotSenderOf};
use thalweg_types::Index;

use crate::{error::BarrierError, types::Types};

/// Channel to a waiting read. It delivers the index of the entry that must be applied before the read.
type Reader<Rt> = OneshotSenderOf<Types<Rt>, Result<Index, BarrierError>>;

/// Reads that wait for the next round of heartbeats, which shows that a majority still follows the leader.
pub(crate) struct Barriers<Rt: AsyncRuntime> {
    pub waiting: RefCell<Vec<Reader<Rt>>>,
    /// True while a task sends heartbeats for waiting reads and waits for the answers.
    pub is_running: Cell<bool>,
}

impl<Rt: AsyncRuntime> Default for Barriers<Rt> {
    fn default() -> Self {
        Self { waiting: RefCell::default(), is_running: Cell::new(false) }
    }
}
