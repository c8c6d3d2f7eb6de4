//! Facts that the members of a Raft group report about their disks and wall clocks.
//!
//! Owns: the newest report of each member, the rule that decides when too few voters have disk space for new data, and
//! the computation of the time that a majority of the wall clocks has reached. Does not own: the leader's reaction
//! (`weighing`), or the transport of reports (with the replies to pings).

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use openraft::{async_runtime::AsyncRuntime, type_config::alias::InstantOf};
use thalweg_replica::NodeInfo;
use thalweg_types::{NodeId, SpaceTime, Term};

use crate::types::Types;

/// Facts about a member that only the member itself knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberFacts {
    /// True if the member's disk is too full for new data.
    pub lacks_room: bool,
    /// Time of the member's wall clock when it made the report.
    pub wall: SpaceTime,
}

/// Newest report that each member has sent about its disk and wall clock, and the time at which the report arrived.
type Reports<Rt> = BTreeMap<NodeId, (MemberFacts, InstantOf<Types<Rt>>)>;

/// The members' newest reports about their disks and wall clocks, and the leader's conclusions from them.
pub(crate) struct Facts<Rt: AsyncRuntime> {
    pub reports: RefCell<Reports<Rt>>,
    /// Last term in which the leader set the members' common clock forward to the wall clocks of a majority.
    pub caught_up_in: Cell<Term>,
    /// Time by which the members' common clock lags behind the wall clocks of a majority; `None` unless this node leads
    /// and knows it.
    pub behind: Cell<Option<Duration>>,
    pub passed_on_at: Cell<Option<InstantOf<Types<Rt>>>>,
}

impl<Rt: AsyncRuntime> Default for Facts<Rt> {
    fn default() -> Self {
        Self {
            reports: RefCell::default(),
            caught_up_in: Cell::new(Term::ZERO),
            behind: Cell::default(),
            passed_on_at: Cell::default(),
        }
    }
}

/// Disk space of a voter for new data, as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskRoom {
    /// The voter has disk space, or has never reported.
    Has,
    /// The voter's disk is too full for new data.
    Lacks,
    /// The voter has reported before, but not recently.
    Silent,
}

impl DiskRoom {
    /// Returns what the leader knows about a voter's disk space. `newest` is the voter's last report and the report's
    /// age; `None` if it has never reported. A report older than `silent_after` makes the voter silent.
    pub(crate) fn of(newest: Option<(MemberFacts, Duration)>, silent_after: Duration) -> Self {
        match newest {
            Some((_, age)) if age > silent_after => Self::Silent,
            Some((facts, _)) if facts.lacks_room => Self::Lacks,
            _ => Self::Has,
        }
    }
}

/// Sets of voters. A decision needs a majority of each set. There are two sets while the membership changes.
pub(crate) type VoterSets = Vec<BTreeSet<NodeId>>;

/// Returns the voters without disk space for new data, if the voters with space are no majority; `None` if they are.
pub(crate) fn without_room(sets: &VoterSets, room: impl Fn(NodeId) -> DiskRoom) -> Option<BTreeSet<NodeId>> {
    let full: BTreeSet<NodeId> =
        sets.iter().flatten().copied().filter(|voter| room(*voter) == DiskRoom::Lacks).collect();
    let has_majority = |voters: &BTreeSet<NodeId>| {
        let with_room = voters.iter().filter(|voter| room(**voter) == DiskRoom::Has).count();
        2 * with_room > voters.len()
    };
    let is_refused = !full.is_empty() && !sets.iter().all(has_majority);
    is_refused.then_some(full)
}

/// Returns the latest time that the wall clocks of a majority have reached; `None` if the clocks of fewer voters are
/// known.
pub(crate) fn reached_by_majority(sets: &VoterSets, wall: impl Fn(NodeId) -> Option<SpaceTime>) -> Option<SpaceTime> {
    let of_set = |voters: &BTreeSet<NodeId>| {
        let mut walls: Vec<SpaceTime> = voters.iter().filter_map(|voter| wall(*voter)).collect();
        walls.sort_unstable();
        walls.reverse();
        walls.get(voters.len() / 2).copied()
    };
    sets.iter().map(of_set).collect::<Option<Vec<_>>>()?.into_iter().min()
}

/// Formats a list of nodes, by name, for an error message.
pub(crate) fn listed(nodes: &BTreeSet<NodeId>, infos: &BTreeMap<NodeId, NodeInfo>) -> String {
    let name = |node: &NodeId| match infos.get(node) {
        Some(info) if !info.name.is_empty() => info.name.clone(),
        _ => format!("{:016x}", node.0),
    };
    nodes.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(of: &[&[u64]]) -> VoterSets {
        of.iter().map(|voters| voters.iter().copied().map(NodeId).collect()).collect()
    }

    fn full(of: &[&[u64]], lacking: &[u64], silent: &[u64]) -> Option<Vec<u64>> {
        let room = |node: NodeId| match node.0 {
            node if lacking.contains(&node) => DiskRoom::Lacks,
            node if silent.contains(&node) => DiskRoom::Silent,
            _ => DiskRoom::Has,
        };
        without_room(&sets(of), room).map(|full| full.into_iter().map(|node| node.0).collect())
    }

    #[test]
    fn data_is_refused_when_those_with_room_are_no_majority() {
        let three: &[&[u64]] = &[&[1, 2, 3]];
        assert_eq!(full(three, &[], &[]), None);
        assert_eq!(full(three, &[3], &[]), None, "one full voter stops nothing");
        assert_eq!(full(three, &[2, 3], &[]), Some(vec![2, 3]));
        assert_eq!(full(three, &[3], &[2]), Some(vec![3]), "one is full, one is silent");
        assert_eq!(full(three, &[], &[2, 3]), None, "silence is no full disk");
        assert_eq!(full(&[&[1, 2]], &[2], &[]), Some(vec![2]));
        assert_eq!(full(&[&[1, 2, 3, 4, 5]], &[4, 5], &[]), None);
        assert_eq!(full(&[&[1, 2, 3], &[3, 4, 5]], &[4, 5], &[]), Some(vec![4, 5]), "each set needs a majority");
        assert_eq!(full(three, &[9], &[]), None, "a learner counts for nothing");
    }

    #[test]
    fn a_voter_between_two_reports_of_a_slow_heartbeat_is_not_silent() {
        let options = crate::ConsensusOptions { heartbeat: Duration::from_secs(5), ..Default::default() };
        let facts = MemberFacts { lacks_room: true, wall: SpaceTime(1) };
        let room = |age: Duration| DiskRoom::of(Some((facts, age)), options.silent_after());
        assert_eq!(room(Duration::from_millis(5_100)), DiskRoom::Lacks);
        assert_eq!(room(Duration::from_secs(60)), DiskRoom::Silent);
        let usual = crate::ConsensusOptions::default().silent_after();
        assert_eq!(DiskRoom::of(Some((facts, Duration::from_millis(5_100))), usual), DiskRoom::Silent);
        assert_eq!(DiskRoom::of(None, usual), DiskRoom::Has, "it has never reported");
    }

    fn reached(of: &[&[u64]], walls: &[(u64, u64)]) -> Option<u64> {
        let walls: BTreeMap<u64, u64> = walls.iter().copied().collect();
        reached_by_majority(&sets(of), |node| walls.get(&node.0).copied().map(SpaceTime)).map(|time| time.0)
    }

    #[test]
    fn a_minority_of_wrong_clocks_moves_nothing() {
        let three: &[&[u64]] = &[&[1, 2, 3]];
        assert_eq!(reached(three, &[(1, 900_000), (2, 101), (3, 100)]), Some(101), "one is far ahead");
        assert_eq!(reached(three, &[(1, 1), (2, 101), (3, 100)]), Some(100), "one is far behind");
        assert_eq!(reached(three, &[(1, 900_000), (3, 100)]), Some(100), "one has not reported");
        assert_eq!(reached(three, &[(1, 900_000)]), None, "the leader alone decides nothing");
        assert_eq!(reached(&[&[1, 2]], &[(1, 900_000), (2, 100)]), Some(100));
        assert_eq!(reached(&[&[1]], &[(1, 7)]), Some(7));
        assert_eq!(reached(&[&[1, 2, 3], &[3, 4, 5]], &[(1, 9), (2, 8), (3, 7), (4, 5), (5, 4)]), Some(5));
    }

    #[test]
    fn nodes_without_a_name_are_named_by_their_ids() {
        let infos = BTreeMap::from([
            (NodeId(1), NodeInfo { name: "db1".to_owned(), ..NodeInfo::default() }),
            (NodeId(2), NodeInfo::default()),
        ]);
        assert_eq!(listed(&[NodeId(1), NodeId(2)].into(), &infos), "db1, 0000000000000002");
    }
}
