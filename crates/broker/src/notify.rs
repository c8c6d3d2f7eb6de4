//! Notifications from the broker to its drivers: the code that reads from and writes to connections.

use std::{sync::Arc, task::Waker};

/// Wakes the driver of a link or a publisher. A driver implements this trait, for example with a task's waker, a
/// condition variable, or a flag that an event loop polls.
///
/// The thread that made the change calls `notify`, outside this crate's locks. An implementation must not block, and
/// may call back into the broker. A notification only asks the driver to check the link or to retry the publish. It can
/// come late, come once for several reasons, or come for a reason that no longer exists.
pub trait Notify: Send + Sync {
    /// Asks the driver to check its link, or to retry its publish.
    fn notify(&self);
}

impl Notify for Waker {
    fn notify(&self) {
        self.wake_by_ref();
    }
}

impl<F: Fn() + Send + Sync> Notify for F {
    fn notify(&self) {
        self();
    }
}

/// Stamp of a publisher that waits: stamps increase in the order in which publishers begin to wait. See
/// [`Memory::now`](crate::memory::Memory::now).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitStamp(pub(crate) u64);

/// Publishers that wait for room in queues. Each publisher is in the list once, with the stamp of its last attempt.
/// Before the list grows, it drops the publishers that no longer exist. So its length is at most twice the number of
/// existing publishers.
#[derive(Default)]
pub(crate) struct Waiters(Vec<(WaitStamp, Arc<dyn Notify>)>);

impl Waiters {
    pub(crate) fn add(&mut self, waiter: &Arc<dyn Notify>, stamp: WaitStamp) {
        if let Some((known, _)) = self.0.iter_mut().find(|(_, known)| Arc::ptr_eq(known, waiter)) {
            *known = stamp;
            return;
        }
        if self.0.len() == self.0.capacity() {
            self.0.retain(|(_, known)| Arc::strong_count(known) > 1);
        }
        self.0.push((stamp, Arc::clone(waiter)));
    }

    pub(crate) fn take(&mut self) -> Vec<Arc<dyn Notify>> {
        std::mem::take(&mut self.0).into_iter().map(|(_, waiter)| waiter).collect()
    }

    /// Removes and returns the publishers that last tried to publish when the stamp was `since` or higher. A stamp is a
    /// number that rises with each publisher that begins to wait. Leaves out `own`, the publisher whose publish has
    /// failed.
    pub(crate) fn take_since(&mut self, since: WaitStamp, own: Option<&Arc<dyn Notify>>) -> Vec<Arc<dyn Notify>> {
        let is_own = |waiter: &Arc<dyn Notify>| own.is_some_and(|own| Arc::ptr_eq(own, waiter));
        let taken = self.0.extract_if(.., |(stamp, waiter)| *stamp >= since && !is_own(waiter));
        taken.map(|(_, waiter)| waiter).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
