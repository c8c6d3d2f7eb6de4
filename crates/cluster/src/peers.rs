//! Facts about the other nodes, taken from their signs of life and their replies.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    time::{Duration, Instant},
};

use thalweg_types::{Index, NodeId, SpaceTime};

use crate::about::AboutNode;

/// Minimum time between two moments at which the leader stores the present end of its log. From these stored ends and
/// the progress of another node, the leader computes for how long that node has been behind, with an error of up to
/// this time.
const AWAITED_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of past ends of its log that the leader stores for each other node, to measure for how long that node
/// is behind. The leader stores at most one a second, so these ends cover about a minute.
const MAX_AWAITED: usize = 64;

/// Facts that this node knows about one other node, from its signs of life and replies.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerFacts {
    pub about: AboutNode,
    /// Number of the node's current description, as the node has announced it; a changed description has a new number.
    /// `None` if the node announces none.
    pub about_announced: Option<u32>,
    /// Number of the description in `about`, the newest that this node has received; `None` if it has received none, or
    /// one without a number.
    pub about_known: Option<u32>,
    /// Index of the last entry in the other node's log, and index of the last entry that the other node has applied, as
    /// it last reported them; `None` before the first report.
    pub last: Option<(Index, Index)>,
    /// True if the other node's disk is too full for new data.
    pub lacks_room: bool,
    /// Time that the other node's wall clock showed when that node last reported it, and the local time at which this
    /// node received the report; `None` before the first report.
    pub wall: Option<(SpaceTime, Instant)>,
    /// Milliseconds by which the node's wall clock was ahead of the local one when the node last reported it.
    pub clock_ahead_millis: Option<i64>,
    /// Latest time at which the node is known to have had all of this leader's log entries. `None` while this node does
    /// not lead, because only the leader knows this.
    pub up_to_date: Option<Instant>,
    /// Ends of this leader's log that the node has not reached yet, each with the time at which it was the end; oldest
    /// first.
    pub awaited: VecDeque<(Index, Instant)>,
    pub is_lagging: bool,
    pub is_stale: bool,
}

/// Facts that this node knows about all other nodes. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(Rc<RefCell<BTreeMap<NodeId, PeerFacts>>>);

impl Peers {
    pub(crate) fn get(&self, node: NodeId) -> PeerFacts {
        self.0.borrow().get(&node).cloned().unwrap_or_default()
    }

    /// Calls `change` with the facts that this node knows about another node. Returns its result.
    pub(crate) fn update<T>(&self, node: NodeId, change: impl FnOnce(&mut PeerFacts) -> T) -> T {
        change(self.0.borrow_mut().entry(node).or_default())
    }

    /// Forgets which nodes were reported as lagging or stale, and the times since which they have been behind.
    pub(crate) fn forget_lags(&self) {
        for facts in self.0.borrow_mut().values_mut() {
            (facts.is_lagging, facts.is_stale) = (false, false);
            facts.up_to_date = None;
            facts.awaited.clear();
        }
    }

    pub(crate) fn keep(&self, nodes: &[NodeId]) {
        self.0.borrow_mut().retain(|node, _| nodes.contains(node));
    }
}

impl PeerFacts {
    /// Records the progress of the other node while this node leads. `last` is the last log entry of this node, the
    /// leader. `matched` is the last entry that the other node has; `None` if this is unknown. Under steady writes, the
    /// other node never has the newest entry. So it counts as up to date at an earlier time once it has the entry that
    /// was the leader's last one at that time.
    pub(crate) fn note_progress(&mut self, last: Index, matched: Option<Index>, now: Instant) {
        // A node that has not reported yet counts as behind from now on.
        let up_to_date = self.up_to_date.get_or_insert(now);
        if matched >= Some(last) {
            *up_to_date = now;
            self.awaited.clear();
            return;
        }
        while let Some((index, at)) = self.awaited.front().copied()
            && matched >= Some(index)
        {
            *up_to_date = at;
            self.awaited.pop_front();
        }
        let is_due = self.awaited.back().is_none_or(|(_, at)| now.saturating_duration_since(*at) >= AWAITED_EVERY);
        if is_due && self.awaited.len() < MAX_AWAITED {
            self.awaited.push_back((last, now));
        }
    }

    /// Returns the time since the node last had all log entries of this leader; `None` if this node does not lead.
    pub(crate) fn behind(&self) -> Option<Duration> {
        self.up_to_date.map(|at| at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Records the progress of a node that always lacks log entries. The leader writes 1,000 entries a second, and the
    /// node has those that are older than `behind`. Returns the longest time for which the node counted as behind.
    fn longest(behind: Duration, seconds: u32) -> Duration {
        let (mut facts, start) = (PeerFacts::default(), Instant::now());
        let step = Duration::from_millis(100);
        let times = (1..=seconds * 10).map(|number| step * number);
        let since = times.map(|time| {
            let last = Index(10_000_000 + time.as_millis() as u64);
            let matched = Index(last.0 - behind.as_millis() as u64);
            facts.note_progress(last, Some(matched), start + time);
            assert!(facts.awaited.len() <= MAX_AWAITED);
            (start + time).duration_since(facts.up_to_date.expect("it counts from the first time on"))
        });
        since.max().expect("there are times")
    }

    #[test]
    fn a_node_that_follows_steady_writes_closely_is_up_to_date() {
        assert!(longest(Duration::from_millis(1), 120) <= SECOND, "it never has the newest entry");
        let time = longest(20 * SECOND, 120);
        assert!((20 * SECOND..=22 * SECOND).contains(&time), "{time:?}");
    }

    #[test]
    fn a_node_that_stops_is_behind_from_then_on_until_it_has_all_entries() {
        let (mut facts, start) = (PeerFacts::default(), Instant::now());
        facts.note_progress(Index(10), Some(Index(10)), start);
        for second in 1..=300 {
            facts.note_progress(Index(10 + u64::from(second)), Some(Index(10)), start + SECOND * second);
        }
        assert_eq!((facts.up_to_date, facts.awaited.len()), (Some(start), MAX_AWAITED));
        facts.note_progress(Index(310), Some(Index(15)), start + SECOND * 301);
        assert_eq!(facts.up_to_date, Some(start + SECOND * 5), "it has what the leader had then");
        facts.note_progress(Index(310), Some(Index(310)), start + SECOND * 302);
        assert_eq!((facts.up_to_date, facts.awaited.len()), (Some(start + SECOND * 302), 0));
        facts.note_progress(Index(311), None, start + SECOND * 303);
        assert_eq!(facts.up_to_date, Some(start + SECOND * 302), "an unknown position is no progress");
    }

    #[test]
    fn a_node_that_does_not_lead_knows_of_no_delay() {
        let peers = Peers::default();
        peers.update(NodeId(1), |facts| facts.note_progress(Index(2), Some(Index(1)), Instant::now()));
        assert!(peers.get(NodeId(1)).behind().is_some());
        peers.forget_lags();
        assert_eq!(peers.get(NodeId(1)).behind(), None);
        assert!(peers.get(NodeId(1)).awaited.is_empty());
    }
}
