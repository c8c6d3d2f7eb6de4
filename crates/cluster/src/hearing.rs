//! Pings between this node and all others, and the detection of silent nodes.
//!
//! Owns: the numbers of the pings that each other node has received, and the failure detector. Does not own: the rules
//! (`raft::Hearing`, `detector`), sockets.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use thalweg_raft::Hearing;
use thalweg_types::NodeId;

use crate::detector::{Detector, DetectorOptions, NodeState, StateChange};

struct Inner {
    deaf_after: Duration,
    started: Instant,
    hearings: RefCell<BTreeMap<NodeId, Hearing>>,
    detector: RefCell<Detector>,
}

/// State of the pings to and from all other nodes. Clones share the state.
#[derive(Clone)]
pub(crate) struct Ears(Rc<Inner>);

impl Ears {
    pub fn new(deaf_after: Duration, options: DetectorOptions) -> Self {
        let (hearings, detector) = (RefCell::default(), RefCell::new(Detector::new(options)));
        Self(Rc::new(Inner { deaf_after, started: Instant::now(), hearings, detector }))
    }

    fn now(&self) -> Duration {
        self.0.started.elapsed()
    }

    fn with<T>(&self, node: NodeId, act: impl FnOnce(&mut Hearing, Duration) -> T) -> T {
        let mut hearings = self.0.hearings.borrow_mut();
        let hearing = hearings.entry(node).or_insert_with(|| Hearing::new(self.0.deaf_after));
        act(hearing, self.now())
    }

    /// Returns the number of the next ping to a node, which is sent now.
    pub fn ping(&self, node: NodeId) -> u64 {
        self.with(node, |hearing, now| hearing.ping(now))
    }

    /// Number of the last ping received from a node, which every frame to it carries.
    pub fn echo(&self, node: NodeId) -> u64 {
        self.with(node, |hearing, _| hearing.echo())
    }

    /// Notes a ping from a node. Returns the change if the node was not alive.
    pub fn received(&self, node: NodeId, number: u64, heard: u64) -> Option<StateChange> {
        self.with(node, |hearing, _| {
            hearing.received(number);
            hearing.heard(heard);
        });
        self.alive(node)
    }

    /// Records the number of the last ping that a node has received, which each of its frames states.
    pub fn heard(&self, node: NodeId, heard: u64) {
        self.with(node, |hearing, _| hearing.heard(heard));
    }

    /// Notes a sign of life. Returns the change if the node was not alive.
    pub fn alive(&self, node: NodeId) -> Option<StateChange> {
        self.0.detector.borrow_mut().heard(node, self.now())
    }

    /// Returns true if this node must ignore the appends of a leader because the leader does not receive this node's
    /// pings.
    pub fn is_deaf(&self, node: NodeId) -> bool {
        self.with(node, |hearing, now| hearing.is_deaf(now))
    }

    /// Records a new connection from a node. The node may have restarted, and then numbers its pings from the
    /// beginning.
    pub fn reconnected(&self, node: NodeId) {
        self.with(node, |hearing, _| hearing.reconnected());
    }

    /// Sets the nodes that are watched.
    pub fn watch(&self, nodes: &[NodeId]) {
        self.0.hearings.borrow_mut().retain(|node, _| nodes.contains(node));
        self.0.detector.borrow_mut().watch(nodes.iter().copied(), self.now());
    }

    /// Recomputes the states of the nodes, and returns those that have changed since the last call.
    pub fn tick(&self) -> Vec<StateChange> {
        self.0.detector.borrow_mut().tick(self.now())
    }

    /// Returns the state of a node, and the time since its last sign of life.
    pub fn state(&self, node: NodeId) -> Option<(NodeState, Duration)> {
        let detector = self.0.detector.borrow();
        Some((detector.state(node)?, detector.silent_for(node, self.now())?))
    }
}
