//! How a driver is told that there is something for it to do.

use std::{sync::Arc, task::Waker};

/// Wakes whoever drives a link or a publisher. Owned by the driver: a task's waker, a condition variable, a flag
/// that an event loop looks at.
///
/// Called by whichever thread changed something, outside this crate's locks; it must not block, and may call
/// back into the broker. A call says "look again", nothing more: it may come late, once for several reasons, or for a
/// reason that is gone.
pub trait Notify: Send + Sync {
    /// Look again.
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

/// Who waits for room, each once. Those whose owners have gone are forgotten before the list grows, so it is at most
/// twice as long as there are publishers.
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
