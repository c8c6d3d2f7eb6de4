//! The sync role, and the gates and wakers of the callers that wait for a sync.
//!
//! Owns: their state. Does not own: the rules by which the role is handed over (see `commit`).

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, PoisonError, atomic::AtomicUsize},
    task::Waker,
};

use thalweg_types::Lsn;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    #[default]
    Free,
    /// The sync with this number has a leader, which has not decided yet how far it will reach.
    HandedOver(u64),
    /// The sync with this number is in progress; it makes all records below the LSN durable.
    Running(u64, Lsn),
}

/// State of the sync role, under the core's lock. Syncs are numbered.
#[derive(Debug, Default)]
pub(crate) struct SyncRole {
    pub phase: Phase,
    pub last: u64,
    /// True if a caller waits to lead the next sync.
    pub has_successor: bool,
    /// Number of callers that wait for the sync with an even and with an odd number.
    pub followers: [u32; 2],
}

/// A gate at which callers sleep until a numbered sync has ended, or until they may lead it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    reached: Mutex<u64>,
    opened: Condvar,
}

impl Gate {
    pub fn wait(&self, number: u64) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        while *reached < number {
            reached = self.opened.wait(reached).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn open(&self, number: u64) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        *reached = number.max(*reached);
        drop(reached);
        self.opened.notify_all();
    }
}

/// All gates, and the registered wakers.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    pub leader: Gate,
    pub followers: [Gate; 2],
    /// Number of callers asleep at any gate.
    pub waiting: AtomicUsize,
    pub wakers: Mutex<Wakers>,
}

#[derive(Debug, Default)]
pub(crate) struct Wakers {
    pub last_id: u64,
    /// Wakers by LSN, so that a sync wakes a prefix. Bounded: one for each pending future or blocked
    /// `wait_durable`.
    pub waiting: BTreeMap<(Lsn, u64), Waker>,
}
