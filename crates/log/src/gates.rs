//! Waiting for a sync: one of the callers that wait has the sync role, which means that it runs fsync for all of them.
//!
//! Owns: the state of the role, the gates that block waiting threads, and the wakers of waiting tasks. Does not own:
//! the rules by which one caller hands the role over to the next (see `commit`).

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, PoisonError, atomic::AtomicUsize},
    task::Waker,
};

use thalweg_types::Lsn;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum RolePhase {
    #[default]
    Free,
    /// The sync with this number has a leader, which has not yet fixed the LSN up to which it makes records
    /// durable.
    HandedOver(u64),
    /// The sync with this number is in progress; it makes all records below this LSN durable.
    Running(u64, Lsn),
}

/// State of the sync role: one caller at a time runs fsync for all waiting callers. Protected by the mutex
/// `Shared::core`. Syncs are numbered.
#[derive(Debug, Default)]
pub(crate) struct SyncRole {
    pub phase: RolePhase,
    pub last: u64,
    /// True if a caller already waits to lead the next sync.
    pub has_successor: bool,
    /// Number of callers that wait for a sync, in two counters: one for syncs with even numbers, one for
    /// syncs with odd numbers.
    pub followers: [u32; 2],
}

/// A gate blocks callers until a sync with a given number has ended, or until they may lead that sync.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    reached: Mutex<u64>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn wait(&self, number: u64) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        while *reached < number {
            reached = self.opened.wait(reached).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn open(&self, number: u64) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        *reached = number.max(*reached);
        drop(reached);
        self.opened.notify_all();
    }
}

/// The gates at which callers block while they wait for a sync, and the wakers of tasks that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    pub leader: Gate,
    pub followers: [Gate; 2],
    /// Number of callers that are blocked while they wait for a sync.
    pub waiting: AtomicUsize,
    pub wakers: Mutex<Wakers>,
}

#[derive(Debug, Default)]
pub(crate) struct Wakers {
    pub last_id: u64,
    /// Wakers of tasks that wait until an LSN is durable, ordered by that LSN, so that a sync wakes a prefix.
    /// Bounded: one waker for each pending future or blocked `wait_durable`.
    pub waiting: BTreeMap<(Lsn, u64), Waker>,
}
