//! Failure detection by the arrival of signs of life: messages from which a node learns that another node runs (phi
//! accrual).
//!
//! Owns: the state of each other node (alive, suspect, down), and its changes as events. Does not own: sending signs of
//! life, or clocks. Membership does not depend on these states; consensus owns it.
//!
//! The detector learns the usual time between two signs of a node, and computes how improbable the present silence is:
//! phi = -log10(probability of a silence at least this long). It assumes that intervals are normally distributed, with
//! the mean and deviation of the last ones, and uses the logistic approximation of Akka's detector. Source:
//! Hayashibara, Défago, Yared, Katayama: "The φ Accrual Failure Detector", SRDS 2004.
//!
//! Fixed times apply in addition to phi. A node is suspected after `min_silence` at the earliest, and after
//! `suspect_after` at the latest. It is down after `down_after` if such a silence is improbable, and after 5/3 of that
//! time in any case. So a node on a busy machine, whose signs often come late, gets more time than a node with regular
//! signs. An interval that ended a wrong suspicion counts too, so the detector learns from its mistakes. The silence of
//! a node that was down does not count, because the node had failed.
//!
//! Signs in quick succession, such as those of appends under load, count as one sign. If the detector itself was not
//! called for a while, this time does not count as silence of the nodes.
//!
//! Invariants: a node from which no sign ever arrived is suspected after the same time as a node that fell silent. A
//! sign of life makes a node alive immediately. A node's state changes only `alive -> suspect -> down`, or from any
//! state to `alive`.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use thalweg_types::{NodeId, info::MemberHealth};

/// Number of intervals between signs of life that are remembered for each node.
const INTERVALS: usize = 64;
/// Number of intervals without a call of [`Detector::tick`], after which the detector assumes that this process was
/// paused.
const PAUSED_INTERVALS: u32 = 3;
/// Silence after which a node is down in any case, as a multiple (numerator, denominator) of `down_after`.
const MAX_DOWN: (u32, u32) = (5, 3);
/// Minimum standard deviation of the intervals, relative to their mean. In a local network, intervals are so regular
/// that even a small delay would look improbable.
const MIN_DEVIATION: f64 = 0.25;

/// Times after which the failure detector suspects a node or declares it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectorOptions {
    /// Usual time between two signs of life. A shorter time detects failures sooner and costs more messages.
    pub interval: Duration,
    /// Minimum silence after which a node can be suspected.
    pub min_silence: Duration,
    /// Silence after which a node is suspected even if phi is low.
    pub suspect_after: Duration,
    /// Silence after which a node is down, if such a silence is improbable for this node. Otherwise the node is down
    /// after 5/3 of this time.
    pub down_after: Duration,
    /// Value of phi, in tenths, from which a node is suspected: 80 means one wrong suspicion in 10^8 intervals, if the
    /// intervals are normally distributed.
    pub phi_tenths: u32,
}

impl DetectorOptions {
    /// Default timing: a failure is suspected within half a second and a node is down after 0.85 seconds. The time from
    /// the failure to the event can be shorter by up to one interval between two signs, because the last sign is older
    /// than the failure. It can be longer by up to one interval of the detector.
    pub const DEFAULTS: Self = Self {
        interval: Duration::from_millis(100),
        min_silence: Duration::from_millis(300),
        suspect_after: Duration::from_millis(700),
        down_after: Duration::from_millis(850),
        phi_tenths: 80,
    };
}

impl Default for DetectorOptions {
    fn default() -> Self {
        Self::DEFAULTS
    }
}

/// Change of a node's state, such as from alive to suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// Node whose state (alive, suspect or down) has changed.
    pub node: NodeId,
    /// New state of the node: alive, suspect or down.
    pub state: MemberHealth,
    /// Time since the last sign of life, or since the node became known.
    pub silent_for: Duration,
}

#[derive(Debug)]
struct Watched {
    state: MemberHealth,
    /// Time of the last sign of life; before the first one, the time at which the node became known.
    last: Duration,
    /// Time of the sign of life with which the interval to the next sign begins. `None` from the moment at which the
    /// node is down until its next sign.
    measured: Option<Duration>,
    intervals: VecDeque<f64>,
}

/// Detector of failures of other nodes, from the times of their signs of life. All times come from one monotonic clock,
/// which the caller reads.
#[derive(Debug)]
pub struct Detector {
    options: DetectorOptions,
    nodes: BTreeMap<NodeId, Watched>,
    /// Time of the last call of [`tick`](Self::tick); `None` before the first one.
    ticked: Option<Duration>,
}

impl Detector {
    /// Creates a detector that watches no nodes.
    #[must_use]
    pub fn new(options: DetectorOptions) -> Self {
        Self { options, nodes: BTreeMap::new(), ticked: None }
    }

    /// Sets the nodes to watch. New nodes begin as alive; nodes that were watched before keep their state.
    pub fn watch(&mut self, nodes: impl IntoIterator<Item = NodeId>, now: Duration) {
        let mut before = std::mem::take(&mut self.nodes);
        let watched = |node| {
            let new = || Watched { state: MemberHealth::Alive, last: now, measured: None, intervals: VecDeque::new() };
            (node, before.remove(&node).unwrap_or_else(new))
        };
        self.nodes = nodes.into_iter().map(watched).collect();
    }

    /// Records a sign of life of a node at `now`. Returns the state change if the node was not alive.
    pub fn heard(&mut self, node: NodeId, now: Duration) -> Option<StateChange> {
        let watched = self.nodes.get_mut(&node)?;
        let silent_for = now.saturating_sub(watched.last);
        let (was_alive, was_down) = (watched.state == MemberHealth::Alive, watched.state == MemberHealth::Down);
        let since = watched.measured.filter(|_| !was_down).map(|measured| now.saturating_sub(measured));
        if let Some(since) = since
            && since >= self.options.interval / 2
        {
            watched.intervals.push_back(since.as_secs_f64());
            if watched.intervals.len() > INTERVALS {
                watched.intervals.pop_front();
            }
        }
        if since.is_none_or(|since| since >= self.options.interval / 2) {
            watched.measured = Some(now);
        }
        watched.last = now;
        watched.state = MemberHealth::Alive;
        (!was_alive).then_some(StateChange { node, state: MemberHealth::Alive, silent_for })
    }

    /// Computes the states of all nodes at `now`, and returns the changes. Must be called at least once in each
    /// interval.
    pub fn tick(&mut self, now: Duration) -> Vec<StateChange> {
        let options = self.options;
        let paused = self.ticked.replace(now).map_or(Duration::ZERO, |ticked| now.saturating_sub(ticked));
        if paused >= options.interval * PAUSED_INTERVALS {
            self.nodes.values_mut().for_each(|watched| {
                watched.last = now.min(watched.last + paused);
                watched.measured = None;
            });
        }
        let mut changes = Vec::new();
        for (node, watched) in &mut self.nodes {
            let silent_for = now.saturating_sub(watched.last);
            let is_improbable = silent_for >= options.min_silence
                && phi(silent_for, &watched.intervals, options.interval) * 10.0 >= f64::from(options.phi_tenths);
            let (times, of) = MAX_DOWN;
            let is_down =
                silent_for >= options.down_after && is_improbable || silent_for >= options.down_after * times / of;
            let state = if is_down {
                MemberHealth::Down
            } else if is_improbable || silent_for >= options.suspect_after {
                MemberHealth::Suspect
            } else {
                watched.state
            };
            if state != watched.state {
                watched.state = state;
                changes.push(StateChange { node: *node, state, silent_for });
            }
        }
        changes
    }

    /// Returns the state of a node; `None` if it is not watched.
    #[must_use]
    pub fn state(&self, node: NodeId) -> Option<MemberHealth> {
        self.nodes.get(&node).map(|watched| watched.state)
    }

    /// Returns the time since the last sign of life of a node.
    #[must_use]
    pub fn silent_for(&self, node: NodeId, now: Duration) -> Option<Duration> {
        self.nodes.get(&node).map(|watched| now.saturating_sub(watched.last))
    }
}

/// Returns the suspicion value phi (see the head of this file) of a node that has been silent for `silent_for`.
fn phi(silent_for: Duration, intervals: &VecDeque<f64>, usual: Duration) -> f64 {
    let usual = usual.as_secs_f64();
    let count = intervals.len() as f64;
    let mean = if intervals.is_empty() { usual } else { (intervals.iter().sum::<f64>() / count).max(usual) };
    let variance = intervals.iter().map(|interval| (interval - mean).powi(2)).sum::<f64>() / count.max(1.0);
    let deviation = variance.sqrt().max(mean * MIN_DEVIATION);
    let y = (silent_for.as_secs_f64() - mean) / deviation;
    let e = (-y * 1.5976 * 0.070_566_f64.mul_add(y * y / 1.5976, 1.0)).exp();
    if y > 0.0 { -(e / (1.0 + e)).log10() } else { -(1.0 - 1.0 / (1.0 + e)).log10() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn watching() -> Detector {
        let mut detector = Detector::new(DetectorOptions::DEFAULTS);
        detector.watch([A, B], millis(0));
        detector
    }

    /// Returns the time at which the detector reports the state `state` for a node that sends its last sign of life at
    /// `stop`.
    fn time_until(detector: &mut Detector, state: MemberHealth, stop: u64) -> u64 {
        (stop..stop + 10_000)
            .find(|now| detector.tick(millis(*now)).iter().any(|change| change.state == state && change.node == A))
            .expect("the state is reached")
    }

    #[test]
    fn a_regular_node_that_stops_is_suspected_soon_and_then_down() {
        let mut detector = watching();
        for at in (100..=5_000).step_by(100) {
            assert_eq!(detector.heard(A, millis(at)), None);
            assert_eq!(detector.heard(B, millis(at)), None);
            assert!(detector.tick(millis(at)).is_empty());
        }
        let suspected = time_until(&mut detector, MemberHealth::Suspect, 5_000) - 5_000;
        assert!((300..500).contains(&suspected), "{suspected} ms");
        let down = time_until(&mut detector, MemberHealth::Down, 5_000) - 5_000;
        assert_eq!(down, 850);
        let back = detector.heard(A, millis(9_000)).unwrap();
        assert_eq!((back.state, back.silent_for), (MemberHealth::Alive, millis(4_000)));
        assert_eq!(detector.state(A), Some(MemberHealth::Alive));
    }

    #[test]
    fn an_irregular_node_gets_more_time() {
        let mut detector = watching();
        let mut at = 0;
        for number in 0..60_u64 {
            at += 60 + number * 7919 % 400;
            detector.heard(A, millis(at));
        }
        assert!(detector.tick(millis(at + 450)).iter().all(|change| change.node != A), "such silences are usual");
        let suspected = time_until(&mut detector, MemberHealth::Suspect, at) - at;
        assert!((500..=700).contains(&suspected), "{suspected} ms");
    }

    #[test]
    fn a_node_whose_signs_often_come_late_is_down_later_but_not_much() {
        let mut detector = watching();
        let mut at = 0;
        for number in 0..60_u64 {
            at += if number % 2 == 0 { 100 } else { 650 };
            detector.heard(A, millis(at));
        }
        let down = time_until(&mut detector, MemberHealth::Down, at) - at;
        assert_eq!(down, 850 * 5 / 3 + 1);
    }

    #[test]
    fn wrong_suspicions_become_rare() {
        let mut detector = watching();
        let (mut at, mut suspicions) = (0, Vec::new());
        for round in 0..20 {
            for _ in 0..10 {
                at += 100;
                detector.tick(millis(at));
                detector.heard(A, millis(at));
            }
            // A pause of 400 ms, such as that of a process without a processor.
            for later in (100..400).step_by(100) {
                let changes = detector.tick(millis(at + later));
                suspicions.extend(changes.iter().filter(|change| change.node == A).map(|_| round));
            }
            at += 400;
            detector.heard(A, millis(at));
        }
        assert_eq!(suspicions.first(), Some(&0), "the first one is unusual");
        assert!(suspicions.len() < 6 && suspicions.iter().all(|round| *round < 8), "{suspicions:?}");
    }

    #[test]
    fn the_silence_of_a_node_that_was_down_is_not_usual() {
        let mut detector = watching();
        let mut at = 0;
        for _ in 0..5 {
            for _ in 0..20 {
                at += 100;
                detector.tick(millis(at));
                detector.heard(A, millis(at));
            }
            assert_eq!(time_until(&mut detector, MemberHealth::Down, at) - at, 850);
            at += 3_000;
            detector.heard(A, millis(at));
        }
    }

    #[test]
    fn a_node_that_was_never_heard_is_suspected_too() {
        let mut detector = watching();
        let suspected = time_until(&mut detector, MemberHealth::Suspect, 0);
        assert!((300..=700).contains(&suspected), "{suspected} ms");
        assert_eq!(time_until(&mut detector, MemberHealth::Down, 0), 850);
    }

    #[test]
    fn states_of_nodes_that_stay_are_kept_and_others_forgotten() {
        let mut detector = watching();
        detector.tick(millis(2_000));
        detector.watch([A, NodeId(3)], millis(2_000));
        assert_eq!(detector.state(A), Some(MemberHealth::Down));
        assert_eq!(detector.state(B), None);
        assert_eq!(detector.state(NodeId(3)), Some(MemberHealth::Alive));
        assert_eq!(detector.heard(B, millis(2_100)), None, "an unknown node changes nothing");
        assert_eq!(detector.silent_for(NodeId(3), millis(2_100)), Some(millis(100)));
    }

    #[test]
    fn a_pause_of_the_detector_itself_is_no_silence_of_the_nodes() {
        let mut detector = watching();
        for at in (100..=2_000).step_by(100) {
            detector.heard(A, millis(at));
            detector.tick(millis(at));
        }
        // This process was paused for a minute. A has sent a sign meanwhile, which is read only after the tick.
        assert!(detector.tick(millis(62_000)).iter().all(|change| change.node != A));
        assert_eq!(detector.heard(A, millis(62_001)), None);
        for at in (62_100..64_000).step_by(100) {
            let changes = detector.tick(millis(at));
            assert!(changes.iter().all(|change| change.state != MemberHealth::Alive), "{changes:?}");
        }
        assert_eq!((detector.state(A), detector.state(B)), (Some(MemberHealth::Down), Some(MemberHealth::Down)));
    }

    #[test]
    fn signs_of_load_do_not_make_pings_look_late() {
        let mut detector = watching();
        for at in 0..5_000 {
            detector.heard(A, millis(at));
            if at % 100 == 0 {
                detector.tick(millis(at));
            }
        }
        // The load ends, and only pings remain, one of which is late.
        let mut at = 5_000;
        for late in [0, 0, 150, 0, 180] {
            at += 100 + late;
            assert!(detector.tick(millis(at)).iter().all(|change| change.node != A), "at {at}");
            detector.heard(A, millis(at));
        }
        let suspected = time_until(&mut detector, MemberHealth::Suspect, at) - at;
        assert!((300..700).contains(&suspected), "{suspected} ms");
    }
}
