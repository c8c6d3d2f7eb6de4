//! The log of the cluster's events: a bounded queue with sequence numbers, which followers read at their own pace.
//!
//! Owns: the last 1024 events of this node's view of the cluster. Does not own: their detection. Invariants: sequence
//! numbers rise by one. An event is never changed. A follower (a client that reads the events) that falls behind by
//! more than the queue holds learns how many events it missed. Sequence numbers are valid for one run of one node, from
//! its start to its stop. A random number identifies the run.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use thalweg_types::{NodeId, Term};
use tokio::sync::watch;

use super::ClusterReport;

/// Number of past events that are kept for clients that connect again.
const MAX_EVENTS: usize = 1024;
/// Largest random number that identifies a run of the node (from its start to its stop). JSON readers that use floating
/// point represent numbers up to it exactly.
const MAX_RUN: u64 = (1 << 53) - 1;

/// A change in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This node sees a new leader, or has lost the leader that it knew.
    Leader {
        /// The new leader; `None` if no leader is known.
        leader: Option<NodeId>,
        /// Term of the leader, or the present term if no leader is known.
        term: Term,
    },
    /// A node became a member, as a learner.
    Joined(NodeId),
    /// A learner became a voter.
    Promoted(NodeId),
    /// A member was removed.
    Removed(NodeId),
    /// A member that was suspect or down is alive: this node has heard from it again.
    Alive(NodeId),
    /// This node has not heard from a member for longer than usual.
    Suspect(NodeId),
    /// This node has not heard from a member for so long that the member counts as failed.
    Down(NodeId),
    /// A replica lacks more log entries, or more bytes of them, than the configured thresholds permit.
    Lagging(NodeId),
    /// A replica has not been up to date for longer than the configured threshold permits.
    Stale(NodeId),
    /// A replica keeps up again: it is neither lagging nor stale.
    CaughtUp(NodeId),
    /// The reporting node has stopped serving, because no majority of the members has equal states.
    Undecided(NodeId),
}

impl Event {
    /// Returns the event's name in replies.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Leader { .. } => "leader",
            Self::Joined(_) => "joined",
            Self::Promoted(_) => "promoted",
            Self::Removed(_) => "removed",
            Self::Alive(_) => "alive",
            Self::Suspect(_) => "suspect",
            Self::Down(_) => "down",
            Self::Lagging(_) => "lagging",
            Self::Stale(_) => "stale",
            Self::CaughtUp(_) => "caught_up",
            Self::Undecided(_) => "undecided",
        }
    }

    /// Returns the node that the event is about; `None` if the cluster has lost its leader.
    #[must_use]
    pub const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Leader { leader, .. } => *leader,
            Self::Joined(node)
            | Self::Promoted(node)
            | Self::Removed(node)
            | Self::Alive(node)
            | Self::Suspect(node)
            | Self::Down(node)
            | Self::Lagging(node)
            | Self::Stale(node)
            | Self::CaughtUp(node)
            | Self::Undecided(node) => Some(*node),
        }
    }

    /// Returns the term of an event about the leader; `None` for all other events.
    #[must_use]
    pub const fn term(&self) -> Option<Term> {
        match self {
            Self::Leader { term, .. } => Some(*term),
            _ => None,
        }
    }
}

/// An event of the cluster, with its sequence number and its time on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEvent {
    /// Sequence number of the event on this node. The first event has the number 1.
    pub sequence: u64,
    /// Time of the event on the wall clock of this node, in microseconds since 1970.
    pub unix_micros: u64,
    /// The change in the cluster that this event reports.
    pub event: Event,
    /// Last name of the node that the event is about, if the node has been removed; `None` if it is still a member.
    pub former_name: Option<String>,
}

impl ClusterEvent {
    /// Returns the name of the node that the event is about: its present name, or its last one if the node is no longer
    /// a member.
    #[must_use]
    pub fn name<'a>(&'a self, report: &'a ClusterReport) -> Option<&'a str> {
        self.former_name.as_deref().or_else(|| report.name_of(self.event.node()?))
    }
}

/// Number of cluster events that a client missed because this node's log of events had dropped them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed(pub u64);

/// Position at which a client starts to read events. Also states if the log knows the last event that the client has
/// seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// Number of the event before the first one that the client gets; 0 begins with the oldest event that is kept.
    pub after: u64,
    /// False if the log never had the event that the client named as its last. Then the client may have missed events.
    pub is_known: bool,
}

#[derive(Debug, Default)]
struct EventQueue {
    events: VecDeque<ClusterEvent>,
    last: u64,
}

/// The log of the cluster's events on this node.
#[derive(Debug)]
pub struct EventLog {
    run: u64,
    kept: Mutex<EventQueue>,
    last: watch::Sender<u64>,
}

impl Default for EventLog {
    fn default() -> Self {
        let run = RandomState::new().build_hasher().finish() & MAX_RUN;
        Self { run, kept: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl EventLog {
    /// Appends an event that happened at the time `unix_micros`, and wakes all clients that wait for events.
    pub fn push(&self, unix_micros: u64, event: Event) {
        self.append(unix_micros, event, None);
    }

    /// Appends the removal of a member whose name was `name`, like [`push`](Self::push).
    pub fn push_removed(&self, unix_micros: u64, node: NodeId, name: &str) {
        self.append(unix_micros, Event::Removed(node), Some(name.to_owned()));
    }

    fn append(&self, unix_micros: u64, event: Event, former_name: Option<String>) {
        let sequence = {
            let mut kept = self.kept();
            kept.last += 1;
            let sequence = kept.last;
            if kept.events.len() == MAX_EVENTS {
                kept.events.pop_front();
            }
            kept.events.push_back(ClusterEvent { sequence, unix_micros, event, former_name });
            sequence
        };
        self.last.send_replace(sequence);
    }

    /// Returns the random number, below 2^53, that identifies this run of the node (from its start to its stop).
    #[must_use]
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns the position at which a client starts to read events. `after` is the number of the last event that the
    /// client has seen, and `run` identifies the run of the node that gave this number. Without `after`, the client
    /// begins with the next event. If the log never had the event `after`, or if `run` is another run, the client
    /// begins with the oldest event that is kept. Without `run`, the log cannot detect that `after` comes from another
    /// run.
    #[must_use]
    pub fn begin(&self, after: Option<u64>, run: Option<u64>) -> Beginning {
        let last = self.last();
        let after = after.unwrap_or(last);
        let is_known = run.is_none_or(|run| run == self.run) && after <= last;
        Beginning { after: if is_known { after } else { 0 }, is_known }
    }

    /// Returns the sequence number of the last event; 0 if there was none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.kept().last
    }

    /// Returns all kept events with a higher number than `sequence`. Also returns the number of such events that the
    /// log has dropped.
    #[must_use]
    pub fn after(&self, sequence: u64) -> (Missed, Vec<ClusterEvent>) {
        let kept = self.kept();
        let first = kept.events.front().map_or(kept.last + 1, |event| event.sequence);
        let missed = first.saturating_sub(1).saturating_sub(sequence);
        let skipped = (sequence + 1).saturating_sub(first) as usize;
        (Missed(missed), kept.events.iter().skip(skipped).cloned().collect())
    }

    /// Waits until there is an event after a sequence number.
    pub async fn wait_after(&self, sequence: u64) {
        let mut last = self.last.subscribe();
        // The sender lives as long as the log, so waiting cannot fail.
        let _ = last.wait_for(|last| *last > sequence).await;
    }

    fn kept(&self) -> MutexGuard<'_, EventQueue> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_resumes_and_learns_of_events_that_it_missed() {
        let log = EventLog::default();
        assert_eq!((log.last(), log.after(0)), (0, (Missed(0), Vec::new())));
        for node in 1..=MAX_EVENTS as u64 + 3 {
            log.push(node, Event::Joined(NodeId(node)));
        }
        let (missed, events) = log.after(0);
        assert_eq!((missed, events.len(), events[0].sequence), (Missed(3), MAX_EVENTS, 4));
        let (missed, events) = log.after(5);
        assert_eq!((missed, events[0].sequence, events[0].event.node()), (Missed(0), 6, Some(NodeId(6))));
        let last = log.last();
        assert_eq!(log.after(last), (Missed(0), Vec::new()));
        assert_eq!(log.after(last + 7), (Missed(0), Vec::new()), "of a node that has restarted since");
    }

    #[test]
    fn positions_of_another_run_are_not_known() {
        let (log, other) = (EventLog::default(), EventLog::default());
        [&log, &other].into_iter().for_each(|log| log.push(1, Event::Joined(NodeId(1))));
        assert_ne!(log.run(), other.run());
        let known = |after| Beginning { after, is_known: true };
        let unknown = Beginning { after: 0, is_known: false };
        assert_eq!((log.begin(Some(1), Some(log.run())), log.begin(Some(0), None)), (known(1), known(0)));
        assert_eq!((log.begin(None, Some(log.run())), log.begin(None, None)), (known(1), known(1)), "the next event");
        assert_eq!([Some(1), Some(0), None].map(|after| log.begin(after, Some(other.run()))), [unknown; 3]);
        assert_eq!([Some(log.run()), None].map(|run| log.begin(Some(2), run)), [unknown; 2]);
    }
}
