//! Detection of a change of the cluster's leader since the watch began.
//!
//! Owns: the leader at the beginning, and the position in the log of events. Does not own: elections. Invariant: a node
//! that leads again in a later term counts as the same leader, if no other node led in between.

use std::{fmt, sync::Arc};

use thalweg_types::NodeId;

use super::{ClusterHandle, Event};

/// Detects that another node has become leader of the cluster since the watch began.
pub struct LeaderWatch {
    handle: Arc<dyn ClusterHandle>,
    /// Leader when the watch began, or the first leader known after that; `None` until one is known.
    leader: Option<NodeId>,
    /// True if this node was the leader when the watch began.
    led: bool,
    /// Sequence number of the last event of the cluster that was examined for a change of the leader.
    seen: u64,
    changed: bool,
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderWatch")
            .field("leader", &self.leader)
            .field("changed", &self.changed)
            .finish_non_exhaustive()
    }
}

impl LeaderWatch {
    /// Starts to watch for a change of the leader in the cluster of `handle`.
    #[must_use]
    pub fn new(handle: Arc<dyn ClusterHandle>) -> Self {
        // The number of the last event is read before the report. A change between the two is then a later event, and
        // is noticed.
        let (seen, led) = (handle.events().last(), handle.leads());
        let leader = handle.report().leader;
        Self { handle, leader, led, seen, changed: false }
    }

    /// Returns true if another node has become leader since the watch began, or if this node led then and has lost its
    /// leadership. A loss of this node's leadership is detected immediately, other changes when their event arrives.
    pub fn has_changed(&mut self) -> bool {
        let (_, events) = self.handle.events().after(self.seen);
        for event in events {
            self.seen = event.sequence;
            if let Event::Leader { leader: Some(leader), .. } = event.event {
                self.changed |= *self.leader.get_or_insert(leader) != leader;
            }
        }
        self.changed |= self.led && !self.handle.leads();
        self.changed
    }

    /// Waits until the leader has changed; see [`has_changed`](Self::has_changed).
    pub async fn change(&mut self) {
        while !self.has_changed() {
            self.handle.events().wait_after(self.seen).await;
        }
    }
}
