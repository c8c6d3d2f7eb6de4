//! A link: the broker's side of one connection, with all its subscriptions and their queues.
//!
//! Owns: queues, limits, policies, credit, the order of deliveries. Does not own: sockets, the matching of subjects, or
//! the interface for a connection's driver ([`Link`](crate::Link)). [`state`] describes the layout of the data.

mod outbound;
mod queue;
mod slot;
mod state;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

pub use self::outbound::{Budget, Outbound, TakeResult};
use self::state::LinkState;
pub(crate) use self::{
    queue::Subscription,
    slot::{Receiver, SlotId},
    state::{OfferResult, ReserveResult},
};
use crate::{locked, memory::LinkOwner, notify::Notify, traffic::Traffic};

/// Number that identifies a link in its broker. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// The part of a link that publishers access from other threads.
pub(crate) struct Shared {
    pub(crate) id: LinkId,
    state: Mutex<LinkState>,
    notify: Arc<dyn Notify>,
    /// Number of messages queued on the link, updated with each change of a queue. A publisher reads it without the
    /// link's lock, to compare members of a queue group by the load of their links.
    load: AtomicU64,
    /// Counters of the messages exchanged with another node; `None` if this is not a link to another node.
    pub(crate) node: Option<Arc<Traffic>>,
}

impl Shared {
    pub(crate) fn new(
        id: LinkId,
        max_bytes: u64,
        seed: u64,
        owner: Arc<LinkOwner>,
        notify: Arc<dyn Notify>,
        node: Option<Arc<Traffic>>,
    ) -> Self {
        let receiver = if node.is_some() { Receiver::Node } else { Receiver::Client };
        let state = Mutex::new(LinkState::new(receiver, max_bytes, seed, owner));
        Self { id, state, notify, load: AtomicU64::new(0), node }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LinkState> {
        locked(self.state.lock())
    }

    pub(crate) fn notify(&self) {
        self.notify.notify();
    }

    pub(crate) fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    pub(crate) fn note_load(&self, state: &LinkState) {
        self.load.store(state.held().messages, Ordering::Relaxed);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.id.0).finish()
    }
}
