//! Notifications from the broker to its drivers.

use std::{sync::Arc, task::Waker};

/// Wakes the driver of a link or a publisher. Implemented by the driver: a task's waker, a condition
/// variable, or a flag that an event loop polls.
///
/// Called by the thread that made the change, outside this crate's locks. An implementation must not block,
/// and may call back into the broker. A call only asks the driver to look again: it can be late, once for
/// several reasons, or for a reason that has passed.
pub trait Notify: Send + Sync {
    /// Asks the driver to look again.
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

/// Publishers that wait for room, each once. Before the list grows, it drops entries whose owners are gone.
/// So its length is at most twice the number of publishers.
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
}
