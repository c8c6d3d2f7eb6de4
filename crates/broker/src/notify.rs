//! Notifications from the broker to its drivers: the code that reads from and writes to connections.

use std::{sync::Arc, task::Waker};

/// Wakes the driver of a link or a publisher. Implemented by the driver: a task's waker, a condition
/// variable, or a flag that an event loop polls.
///
/// The thread that made the change calls it, outside this crate's locks. An implementation must not block,
/// and may call back into the broker. A call only asks the driver to check the link or to retry the publish.
/// It can come late, once for several reasons, or for a reason that does not exist any more.
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

/// Publishers that wait for room in queues; each is in the list once. Before the list grows, it drops entries
/// whose owners no longer exist. So its length is at most twice the number of publishers.
#[derive(Default)]
pub(crate) struct Waiters(Vec<Arc<dyn Notify>>);

impl Waiters {
    pub(crate) fn add(&mut self, waiter: &Arc<dyn Notify>) {
        if self.0.iter().any(|known| Arc::ptr_eq(known, waiter)) {
            return;
        }
        if self.0.len() == self.0.capacity() {
            self.0.retain(|known| Arc::strong_count(known) > 1);
        }
        self.0.push(Arc::clone(waiter));
    }

    pub(crate) fn take(&mut self) -> Vec<Arc<dyn Notify>> {
        std::mem::take(&mut self.0)
    }

    /// Removes and returns all publishers but one, which stays in the list if it is there.
    pub(crate) fn take_others(&mut self, own: Option<&Arc<dyn Notify>>) -> Vec<Arc<dyn Notify>> {
        let mut others = self.take();
        if let Some(at) = others.iter().position(|known| own.is_some_and(|own| Arc::ptr_eq(known, own))) {
            self.0.push(others.swap_remove(at));
        }
        others
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
