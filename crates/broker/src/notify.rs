//! How a driver is told that there is something for it to do.

use std::task::Waker;

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
