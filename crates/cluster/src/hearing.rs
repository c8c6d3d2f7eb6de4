//! Pings between this node and all others, and the detection of silent nodes.
//!
//! Owns: the numbers of this node's last pings that have arrived at each other node, and the failure detector. Does not
//! own: the rules (`raft::Hearing`, `detector`), or sockets.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use thalweg_raft::Hearing;
use thalweg_types::{NodeId, info::MemberHealth};

use crate::detector::{Detector, DetectorOptions, StateChange};

/// Number of unconfirmed signs of life to another node after which this node pings the other node. A few are allowed,
/// because the two nodes do not send their signs at the same moments, and a sign may arrive late.
const MAX_UNCONFIRMED: u32 = 3;

/// Numbers of the signs of life that this node has sent to one other node, and that the other node has confirmed.
#[derive(Debug, Default)]
struct Confirmed {
    /// Number of the last sign of life that this node has sent to the other node.
    sent: u64,
    /// Number of the last sign that the other node has confirmed; `heard <= sent`.
    heard: u64,
    /// Number of signs of life sent to the other node since it last confirmed one.
    since: u32,
}

struct Inner {
    deaf_after: Duration,
    down_after: Duration,
    sign_interval: Duration,
    started: Instant,
    hearings: RefCell<BTreeMap<NodeId, Hearing>>,
    confirmed: RefCell<BTreeMap<NodeId, Confirmed>>,
    detector: RefCell<Detector>,
}

/// State of the signs of life to and from all other nodes. Clones share the state.
#[derive(Clone)]
pub(crate) struct HearingRecord(Rc<Inner>);

impl HearingRecord {
    pub(crate) fn new(deaf_after: Duration, options: DetectorOptions) -> Self {
        let (hearings, confirmed) = (RefCell::default(), RefCell::default());
        let DetectorOptions { interval: sign_interval, down_after, .. } = options;
        let (started, detector) = (Instant::now(), RefCell::new(Detector::new(options)));
        Self(Rc::new(Inner { deaf_after, down_after, sign_interval, started, hearings, confirmed, detector }))
    }

    /// Returns the silence after which a node is usually down.
    pub(crate) fn down_after(&self) -> Duration {
        self.0.down_after
    }

    /// Returns the usual time between two signs of life.
    pub(crate) fn sign_interval(&self) -> Duration {
        self.0.sign_interval
    }

    fn now(&self) -> Duration {
        self.0.started.elapsed()
    }

    fn with<T>(&self, node: NodeId, act: impl FnOnce(&mut Hearing, Duration) -> T) -> T {
        let mut hearings = self.0.hearings.borrow_mut();
        let hearing = hearings.entry(node).or_insert_with(|| Hearing::new(self.0.deaf_after));
        act(hearing, self.now())
    }

    /// Counts a sign of life that this node now sends to the node `node`, and returns the number of the sign.
    pub(crate) fn ping(&self, node: NodeId) -> u64 {
        let number = self.with(node, |hearing, now| hearing.ping(now));
        let mut confirmed = self.0.confirmed.borrow_mut();
        let confirmed = confirmed.entry(node).or_default();
        confirmed.sent = number;
        confirmed.since = confirmed.since.saturating_add(1);
        number
    }

    /// Returns true if the signs of life of node `node` show that it still receives the signs of this node.
    pub(crate) fn is_confirmed(&self, node: NodeId) -> bool {
        let confirmed = self.0.confirmed.borrow();
        confirmed.get(&node).is_some_and(|confirmed| confirmed.heard > 0 && confirmed.since <= MAX_UNCONFIRMED)
    }

    /// Number of the last sign of life received from a node. This node repeats the number in every sign and append to
    /// the node, as a confirmation.
    pub(crate) fn echo(&self, node: NodeId) -> u64 {
        self.with(node, |hearing, _| hearing.echo())
    }

    /// Records a sign of life from a node. `heard` is the number of this node's last sign that the node has received.
    /// Returns the state change if the node was not alive.
    pub(crate) fn received(&self, node: NodeId, number: u64, heard: u64) -> Option<StateChange> {
        self.with(node, |hearing, _| hearing.received(number));
        self.heard(node, heard);
        self.alive(node)
    }

    /// Records that a node has received this node's sign of life with the number `heard`.
    pub(crate) fn heard(&self, node: NodeId, heard: u64) {
        self.with(node, |hearing, _| hearing.heard(heard));
        let mut confirmed = self.0.confirmed.borrow_mut();
        let confirmed = confirmed.entry(node).or_default();
        // A number above `sent` belongs to an earlier run of this node.
        if heard > confirmed.heard && heard <= confirmed.sent {
            (confirmed.heard, confirmed.since) = (heard, 0);
        }
    }

    /// Records that a node is alive. Returns the state change if it was not alive before.
    pub(crate) fn alive(&self, node: NodeId) -> Option<StateChange> {
        self.0.detector.borrow_mut().heard(node, self.now())
    }

    /// Returns true if this node must ignore the appends of leader `node`, because that leader does not receive this
    /// node's signs of life.
    pub(crate) fn is_deaf(&self, node: NodeId) -> bool {
        self.with(node, |hearing, now| hearing.is_deaf(now))
    }

    /// Records a new connection from a node. The node may have restarted, so it may number its pings from the beginning
    /// again.
    pub(crate) fn reconnected(&self, node: NodeId) {
        self.with(node, |hearing, _| hearing.reconnected());
    }

    /// Sets the nodes whose signs of life the failure detector expects.
    pub(crate) fn watch(&self, nodes: &[NodeId]) {
        self.0.hearings.borrow_mut().retain(|node, _| nodes.contains(node));
        self.0.confirmed.borrow_mut().retain(|node, _| nodes.contains(node));
        self.0.detector.borrow_mut().watch(nodes.iter().copied(), self.now());
    }

    /// Recomputes the states of the nodes, and returns those that have changed since the last call.
    pub(crate) fn tick(&self) -> Vec<StateChange> {
        self.0.detector.borrow_mut().tick(self.now())
    }

    /// Returns the state of a node, and the time since its last sign of life.
    pub(crate) fn state(&self, node: NodeId) -> Option<(MemberHealth, Duration)> {
        let detector = self.0.detector.borrow();
        Some((detector.state(node)?, detector.silent_for(node, self.now())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);

    #[test]
    fn signs_are_confirmed_by_the_signs_of_the_other_node() {
        let record = HearingRecord::new(Duration::from_secs(1), DetectorOptions::DEFAULTS);
        assert!(!record.is_confirmed(NODE), "nothing was sent");
        let first = record.ping(NODE);
        assert!(!record.is_confirmed(NODE), "nothing was heard");
        record.heard(NODE, 1_000);
        assert!(!record.is_confirmed(NODE), "a number of an earlier run");
        record.received(NODE, 1, first);
        let mut last = first;
        for _ in 0..MAX_UNCONFIRMED {
            assert!(record.is_confirmed(NODE));
            last = record.ping(NODE);
        }
        assert!(record.is_confirmed(NODE));
        record.ping(NODE);
        assert!(!record.is_confirmed(NODE), "too many signs without an answer");
        record.heard(NODE, first);
        assert!(!record.is_confirmed(NODE), "an old number says nothing new");
        record.heard(NODE, last);
        assert!(record.is_confirmed(NODE));
    }
}
