//! New members of queue groups, and the publishers that wait for a new member.
//!
//! If all members of a queue group are full, a publisher waits in the links of these members. A member that joins later
//! has room, but the publisher does not wait in the new member's link. So the publisher also waits here, and each new
//! member of any group notifies it.
//!
//! Owns: the waiting publishers, and the number of members that have joined. Does not own: the groups and their members
//! (`interest`), or the choice of a member (`publish`).
//!
//! Invariant: a publisher is notified of every new member that it has not seen. A joining member is added to the index
//! first, then counted, and then the list of waiting publishers is taken. A publisher reads the count before it looks
//! at the index, and again after it has entered the list. All accesses are sequentially consistent.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    locked,
    notify::{Notify, WaitStamp, Waiters},
};

/// Counter of the members that have joined queue groups, and the publishers that wait for a new member because all
/// members of a group are full.
#[derive(Default)]
pub(crate) struct Joins {
    count: AtomicU64,
    waiting: Mutex<Waiters>,
}

impl Joins {
    /// Number of members that have joined any queue group so far. A publish reads this number before it looks for
    /// matching subscriptions.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Adds a publisher to the publishers that wait for a new member of a queue group. `count` is the result of
    /// [`count`](Self::count) before the publisher found all members of a group full. Returns false if a member has
    /// joined since then; the publisher must then try again instead of waiting.
    pub(crate) fn wait(&self, waiter: &Arc<dyn Notify>, stamp: WaitStamp, count: u64) -> bool {
        locked(self.waiting.lock()).add(waiter, stamp);
        self.count() == count
    }

    /// Counts a member that has joined a queue group and that publishers can already find. Returns the waiting
    /// publishers, which the caller must notify.
    pub(crate) fn joined(&self) -> Vec<Arc<dyn Notify>> {
        self.count.fetch_add(1, Ordering::SeqCst);
        locked(self.waiting.lock()).take()
    }
}
