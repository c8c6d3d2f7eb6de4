//! Detection in clusters that are too large for one machine: the nodes' own failure detectors over a virtual clock.
//!
//! Owns: the virtual clock, the messages, the failures, and the two measured distributions. Does not own: the detector
//! (`thalweg_cluster::detector`), or detection between real nodes (`detection`).
//!
//! Each node of the simulation has the detector of a real node with the default times. As often as a real node, it
//! sends a sign of life (a ping or heartbeat) to all others, and asks its detector which nodes have been silent for too
//! long. Two distributions are measured on this machine before the simulation: the lateness of timers, and the time of
//! a message over the loopback. The time of each simulated event is drawn from them at random. So the result shows the
//! effect of the intervals and of the detector, and not how fifty processes share the processors.
//!
//! A simulation is a function of its arguments, which include the measured distributions and the seed. Events at the
//! same time happen in the order in which they were scheduled.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use rand::RngExt as _;
use thalweg_cluster::{NodeOptions, Secret, detector::Detector};
use thalweg_types::{NodeId, info::MemberHealth};

use crate::{
    BenchError,
    latency::Latencies,
    probes::round_trips,
    random::{Generator, generator},
};

/// Time after which a node asks its detector again which other nodes are newly suspect or down.
const LOOK: Duration = Duration::from_millis(100);
/// Simulated time before the first failure and between two failures. In this time the detectors learn how often other
/// nodes send signs of life.
const SETTLE: Duration = Duration::from_secs(6);
/// Time after a failure in which all other nodes must have reported it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for which each of the two distributions, the lateness of timers and the times of messages, is measured.
const MEASURE: Duration = Duration::from_millis(300);
/// Size in bytes of the messages that are timed, about that of a sign of life (a ping or heartbeat) with its frame.
const MESSAGE_BYTES: usize = 64;
/// Length of the sleeps with which the lateness of timers is measured.
const SLEEP: Duration = Duration::from_micros(500);
/// Number of equally likely values by which a measured distribution is represented.
const QUANTILES: u32 = 1000;

/// Measured distributions: the times of messages over the loopback, and the lateness of timers.
#[derive(Clone, Debug)]
pub(crate) struct Delays {
    /// Times of a message to another node. Each is half of a measured round trip.
    messages: Vec<Duration>,
    /// Lateness of timers: times by which a sleeping thread woke up too late.
    timers: Vec<Duration>,
}

impl Delays {
    /// Measures the times of messages and the lateness of timers on this machine.
    pub(crate) fn measure() -> Result<Self, BenchError> {
        let trips = round_trips(MESSAGE_BYTES, MEASURE).map_err(BenchError::subject("the loopback", "a round trip"))?;
        let (begun, mut timers) = (Instant::now(), Latencies::default());
        while begun.elapsed() < MEASURE {
            let due = Instant::now() + SLEEP;
            std::thread::sleep(SLEEP);
            timers.record(due.elapsed());
        }
        let messages = quantiles(&trips).into_iter().map(|trip| trip / 2).collect();
        Ok(Self { messages, timers: quantiles(&timers) })
    }

    /// Returns the same percentile of two distributions: of the time of a message, and of the lateness of a timer.
    pub(crate) fn percentile(&self, percentile: f64) -> (Duration, Duration) {
        let at =
            |values: &[Duration]| values[((percentile / 100.0 * values.len() as f64) as usize).min(values.len() - 1)];
        (at(&self.messages), at(&self.timers))
    }
}

/// Returns [`QUANTILES`] equally likely values of a distribution, in ascending order.
fn quantiles(times: &Latencies) -> Vec<Duration> {
    (0..QUANTILES).map(|number| times.percentile(100.0 * (f64::from(number) + 0.5) / f64::from(QUANTILES))).collect()
}

/// Detection times of a simulated cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Detected {
    /// Times from a failure until another node suspected the failed node, one for each failure and other node.
    pub suspect: Vec<Duration>,
    /// Times from a failure until another node reported the failed node as down, one for each failure and other node.
    pub down: Vec<Duration>,
    /// Number of times that a node suspected a node that was alive.
    pub wrong_suspicions: u64,
    /// Number of times that a node reported a node as down that was alive.
    pub wrong_downs: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A node sends a sign of life (a ping or heartbeat) to all others.
    Sign(usize),
    /// A sign of life (a ping or heartbeat) of the node `from` arrives at the node `to`.
    Arrival { from: usize, to: usize },
    /// A node asks its detector which other nodes are newly suspect or down.
    Look(usize),
}

/// State of the simulation of one cluster: its virtual clock, detectors and scheduled events.
struct Simulation<'a> {
    delays: &'a Delays,
    random: Generator,
    now: Duration,
    /// Time between two signs of life (pings or heartbeats) that a node sends.
    sign: Duration,
    detectors: Vec<Detector>,
    /// Scheduled events, ordered by time, and by a sequence number for equal times.
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    scheduled: u64,
    /// Node that has failed and the time of its failure; `None` while all nodes run.
    failed: Option<(usize, Duration)>,
    detected: Detected,
}

/// Returns the default options of a node.
fn defaults() -> NodeOptions {
    NodeOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Secret::new(&[0; 32]))
}

/// Returns the time between two signs of life (pings or heartbeats) of a node with the default options.
fn sign_interval() -> Duration {
    let options = defaults();
    options.detector.interval.min(options.consensus.heartbeat)
}

/// Returns the detector of the node `number`, which starts now and watches all other nodes.
fn new_detector(number: usize, nodes: usize, now: Duration) -> Detector {
    let mut detector = Detector::new(defaults().detector);
    detector.watch((0..nodes).filter(|other| *other != number).map(id), now);
    detector
}

fn id(number: usize) -> NodeId {
    NodeId(number as u64 + 1)
}

/// Simulates a cluster of `nodes` nodes in which `failures` nodes fail, one after the other.
pub(crate) fn simulate(nodes: usize, failures: u32, delays: &Delays, seed: u64) -> Result<Detected, BenchError> {
    let mut simulation = Simulation::new(nodes, delays, seed);
    for failure in 0..failures {
        // The random part makes the time of a failure independent of the intervals of the nodes.
        let settled = SETTLE + simulation.within(LOOK.max(simulation.sign));
        simulation.run_until(simulation.now + settled, |_| false);
        simulation.fail(failure as usize % nodes);
        let wanted = simulation.detected.down.len() + nodes - 1;
        let all = |simulation: &Simulation<'_>| simulation.detected.down.len() >= wanted;
        simulation.run_until(simulation.now + PATIENCE, all);
        if !all(&simulation) {
            let message = format!("a node failed, and not all of {nodes} have noticed it after {PATIENCE:?}");
            return Err(BenchError::subject("the simulation", "detecting a failure")(message));
        }
        simulation.restart();
    }
    Ok(simulation.detected)
}

impl<'a> Simulation<'a> {
    fn new(nodes: usize, delays: &'a Delays, seed: u64) -> Self {
        let mut simulation = Self {
            delays,
            random: generator(seed),
            now: Duration::ZERO,
            sign: sign_interval(),
            detectors: (0..nodes).map(|number| new_detector(number, nodes, Duration::ZERO)).collect(),
            events: BinaryHeap::new(),
            scheduled: 0,
            failed: None,
            detected: Detected::default(),
        };
        for number in 0..nodes {
            // Nodes start at different moments.
            let (sign, look) = (simulation.within(simulation.sign), simulation.within(LOOK));
            simulation.schedule(sign, Event::Sign(number));
            simulation.schedule(look, Event::Look(number));
        }
        simulation
    }

    /// Returns a random time below `span`.
    fn within(&mut self, span: Duration) -> Duration {
        Duration::from_nanos(self.random.random_range(0..span.as_nanos() as u64))
    }

    fn drawn(&mut self, of: fn(&Delays) -> &[Duration]) -> Duration {
        let values = of(self.delays);
        values[self.random.random_range(0..values.len())]
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((self.now + after, self.scheduled, event)));
    }

    /// Schedules the next event of a node that sleeps for `interval`. The node wakes late, by a time that is drawn at
    /// random from the measured lateness of timers.
    fn repeat(&mut self, interval: Duration, event: Event) {
        let late = self.drawn(|delays| &delays.timers);
        self.schedule(interval + late, event);
    }

    fn is_failed(&self, number: usize) -> bool {
        self.failed.is_some_and(|(failed, _)| failed == number)
    }

    /// Makes a node fail: it neither sends nor receives any more. Signs of life that it has already sent still arrive.
    fn fail(&mut self, number: usize) {
        self.failed = Some((number, self.now));
    }

    /// Starts the failed node again, with a new detector.
    fn restart(&mut self) {
        if let Some((number, _)) = self.failed.take() {
            self.detectors[number] = new_detector(number, self.detectors.len(), self.now);
        }
    }

    /// Processes events until the time `end`, or until `holds` returns true.
    fn run_until(&mut self, end: Duration, holds: impl Fn(&Self) -> bool) {
        while !holds(self)
            && let Some(Reverse((at, order, event))) = self.events.pop()
        {
            if at > end {
                self.events.push(Reverse((at, order, event)));
                self.now = end;
                return;
            }
            self.now = at;
            self.perform(event);
        }
    }

    fn perform(&mut self, event: Event) {
        match event {
            Event::Sign(from) => {
                self.repeat(self.sign, event);
                if self.is_failed(from) {
                    return;
                }
                for to in (0..self.detectors.len()).filter(|to| *to != from) {
                    let takes = self.drawn(|delays| &delays.messages);
                    self.schedule(takes, Event::Arrival { from, to });
                }
            }
            Event::Arrival { from, to } => {
                if !self.is_failed(to) {
                    self.detectors[to].heard(id(from), self.now);
                }
            }
            Event::Look(number) => {
                self.repeat(LOOK, event);
                if !self.is_failed(number) {
                    self.look(number);
                }
            }
        }
    }

    /// Lets a node ask its detector, and records which other nodes are newly suspect or down.
    fn look(&mut self, number: usize) {
        for change in self.detectors[number].tick(self.now) {
            let failed = self.failed.filter(|(failed, _)| id(*failed) == change.node);
            match (change.state, failed) {
                (MemberHealth::Suspect, Some((_, at))) => self.detected.suspect.push(self.now - at),
                (MemberHealth::Down, Some((_, at))) => self.detected.down.push(self.now - at),
                // The failed node starts again only after all others have noticed its failure. So a suspicion here is
                // of a node that was alive.
                (MemberHealth::Suspect, None) => self.detected.wrong_suspicions += 1,
                (MemberHealth::Down, None) => self.detected.wrong_downs += 1,
                (MemberHealth::Alive, _) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(message: Duration, late: Duration) -> Delays {
        Delays { messages: vec![message, message * 2], timers: vec![Duration::ZERO, late] }
    }

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn each_other_node_notices_each_failure_in_time() {
        let detected = simulate(5, 6, &delays(MILLI, MILLI), 1).unwrap();
        assert_eq!((detected.suspect.len(), detected.down.len()), (6 * 4, 6 * 4), "the first node fails twice");
        assert_eq!((detected.wrong_suspicions, detected.wrong_downs), (0, 0));
        let options = defaults().detector;
        // The last sign may be one interval old when the node fails, and the next look at the detector may come one
        // interval late.
        let (early, late) = (sign_interval() + 10 * MILLI, LOOK + 10 * MILLI);
        let suspected = options.min_silence - early..options.suspect_after;
        assert!(detected.suspect.iter().all(|time| suspected.contains(time)), "{:?}", detected.suspect);
        let down = options.down_after - early..options.down_after + late;
        assert!(detected.down.iter().all(|time| down.contains(time)), "{:?}", detected.down);
    }

    #[test]
    fn a_seed_repeats_a_run() {
        let run = |seed| simulate(4, 2, &delays(MILLI, 3 * MILLI), seed).unwrap();
        assert_eq!(run(7), run(7));
        assert_ne!(run(7).down, run(8).down);
    }

    #[test]
    fn a_sender_that_stands_still_is_suspected_wrongly() {
        let mut slow = delays(MILLI, MILLI);
        // One sleep in 200 is so late that the silence exceeds the detector's threshold.
        slow.timers = vec![MILLI; 199];
        slow.timers.push(600 * MILLI);
        let detected = simulate(3, 5, &slow, 1).unwrap();
        assert!(detected.wrong_suspicions > 0 && detected.wrong_downs == 0, "{detected:?}");
    }

    #[test]
    fn a_busy_machine_has_no_wrong_downs_and_its_failures_are_noticed_in_time() {
        // On each node one sleep in twenty is up to 0.8 s late, as if other programs used the processors.
        let mut busy = delays(5 * MILLI, MILLI);
        busy.timers = (0..400_u32).map(|number| if number % 20 == 0 { number * 2 * MILLI } else { MILLI }).collect();
        let detected = simulate(5, 20, &busy, 1).unwrap();
        assert_eq!(detected.wrong_downs, 0, "{} wrong suspicions", detected.wrong_suspicions);
        let mut took = detected.down;
        took.sort_unstable();
        // Nodes that look at their detectors late also notice a failure late.
        assert!(took[took.len() / 2] < 1200 * MILLI && took[took.len() - 1] < 5000 * MILLI, "{took:?}");
    }

    #[test]
    fn both_distributions_are_measured() {
        let measured = Delays::measure().unwrap();
        let ((low, early), (high, late)) = (measured.percentile(0.0), measured.percentile(99.0));
        assert!(low > Duration::ZERO && low <= high && early <= late, "{measured:?}");
        assert_eq!((measured.messages.len(), measured.timers.len()), (1000, 1000));
    }
}
