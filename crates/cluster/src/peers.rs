//! Facts about the other nodes, taken from their signs of life and their replies.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use thalweg_types::{Index, NodeId, SpaceTime};

use crate::about::AboutNode;

/// Knowledge about one other node.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerFacts {
    pub about: AboutNode,
    /// Number that the node has announced for its current description; a new description has a new number. `None` if
    /// the node announces none.
    pub about_announced: Option<u32>,
    /// Number of the newest description that this node has received; it is stored in `about`.
    pub about_known: Option<u32>,
    /// Last index of the node's log and its last applied index, as it last reported them.
    pub last: Option<(Index, Index)>,
    /// True if the node's disk is too full for new data.
    pub lacks_room: bool,
    /// Time of the node's wall clock, and the local time at which this node received it.
    pub wall: Option<(SpaceTime, Instant)>,
    /// Milliseconds by which the node's wall clock was ahead of the local one when the node last reported it.
    pub clock_ahead_millis: Option<i64>,
    /// Time at which the node last had all entries.
    pub up_to_date: Option<Instant>,
    pub is_lagging: bool,
    pub is_stale: bool,
}

/// Knowledge about all other nodes. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(Rc<RefCell<BTreeMap<NodeId, PeerFacts>>>);

impl Peers {
    pub(crate) fn get(&self, node: NodeId) -> PeerFacts {
        self.0.borrow().get(&node).cloned().unwrap_or_default()
    }

    /// Changes what is known about a node.
    pub(crate) fn update<T>(&self, node: NodeId, change: impl FnOnce(&mut PeerFacts) -> T) -> T {
        change(self.0.borrow_mut().entry(node).or_default())
    }

    /// Forgets which nodes lag or are stale.
    pub(crate) fn forget_lags(&self) {
        self.0.borrow_mut().values_mut().for_each(|facts| (facts.is_lagging, facts.is_stale) = (false, false));
    }

    pub(crate) fn keep(&self, nodes: &[NodeId]) {
        self.0.borrow_mut().retain(|node, _| nodes.contains(node));
    }
}

impl PeerFacts {
    /// Returns the time since the node last had all entries; `None` if it never had them.
    pub(crate) fn behind(&self) -> Option<Duration> {
        self.up_to_date.map(|at| at.elapsed())
    }
}
