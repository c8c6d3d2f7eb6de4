//! Notifications of drivers and publishers that are sent after all locks are released.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{link::Shared, notify::Notify};

/// Collects notifications while locks are held. Sends them when this value is dropped, so that no notification is lost.
#[derive(Default)]
pub(crate) struct Wakes {
    links: SmallVec<[Arc<Shared>; 8]>,
    waiters: Vec<Arc<dyn Notify>>,
}

impl Wakes {
    pub(crate) fn link(&mut self, link: &Arc<Shared>) {
        self.links.push(Arc::clone(link));
    }

    pub(crate) fn waiters(&mut self, waiters: Vec<Arc<dyn Notify>>) {
        if self.waiters.is_empty() {
            self.waiters = waiters;
        } else if !waiters.is_empty() {
            self.waiters.extend(waiters);
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.links.iter().for_each(|link| link.notify());
        self.waiters.iter().for_each(|waiter| waiter.notify());
    }
}
