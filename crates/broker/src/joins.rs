//! New members of queue groups, and the publishers that wait for one.
//!
//! A publisher for which all members of a queue group are full waits in the links of these members. A member that joins
//! later has room, but is in none of these links. So the publisher also waits here, and each new member of any group
//! notifies it.
//!
//! Owns: the waiting publishers, and the number of members that have joined. Does not own: the groups and their members
//! (`interest`), or the choice of a member (`publish`).
//!
//! Invariant: a publisher that has not seen a new member is notified of it. The member is in the index before it is
//! counted, and is counted before it takes the list. The publisher reads the number before it looks at the index, and
//! once more after it has entered the list (all accesses are sequentially consistent).

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    locked,
    notify::{Notify, WaitStamp, Waiters},
};

/// New members of queue groups; see the [module](self).
#[derive(Default)]
pub(crate) struct Joins {
    count: AtomicU64,
    waiting: Mutex<Waiters>,
}

impl Joins {
    /// Number of members that have joined a group. A publish reads it before it looks at the index.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Adds a publisher that found all members of a group full, and had read the number `count` before. Returns false
    /// if a member has joined since: the publisher then tries once more.
    pub(crate) fn wait(&self, waiter: &Arc<dyn Notify>, stamp: WaitStamp, count: u64) -> bool {
        locked(self.waiting.lock()).add(waiter, stamp);
        self.count() == count
    }

    /// Counts a member that has joined a group and is in the index. Returns the publishers to notify.
    pub(crate) fn joined(&self) -> Vec<Arc<dyn Notify>> {
        self.count.fetch_add(1, Ordering::SeqCst);
        locked(self.waiting.lock()).take()
    }
}
