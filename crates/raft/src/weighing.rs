//! Decisions of the leader that follow from the members' reports about their disks and wall clocks.
//!
//! Owns: the refusal of new data, the choice of a leader with free disk space, and the amount by which space time (the
//! members' common clock, from which entries get their times) catches up with the wall clocks. Does not own: the
//! reports and the rules over them (`facts`), and the clock of the space (`replica`).
//!
//! **Room.** A follower cannot refuse an entry; its disk keeps a reserve for entries. So the leader refuses new data
//! unless a majority of the voters has room, which means free disk space for new data. The leader's error names the
//! voters without room. A voter that has been silent for [`ConsensusOptions::silent_after`] counts as one without room
//! if another voter has reported a full disk. Silence alone does not mean a full disk. A leader that refuses data
//! because its own disk is full passes its leadership to a voter with room, if a majority has room.
//!
//! **Time.** A member continues the time of the last entry with its monotonic clock, so space time needs no wall clock
//! across a failover. Space time falls behind while no member runs, and members that were restarted lack the time since
//! the last entry. A new leader makes up for this lag from the wall clocks of a majority of the voters: space time
//! rises to the latest time that a majority's clocks have reached. A wrong clock of a minority, the leader's own
//! included, has no effect.
//!
//! Space time is raised once in a leadership, before the leader stamps its first entry. A later rise would end leases
//! and keys early that the same leader has granted. So the leader takes no commands before it has recent reports of all
//! voters; after two heartbeats, reports of a majority suffice. Members also report to each other while none of them
//! leads, so a failover usually needs no wait. If no majority has reported after [`ConsensusOptions::max_catch_up`],
//! the leader takes commands, and space time is raised once a majority has reported.
//!
//! A space with one voter has no other clock to ask, so the leader does not wait. The limit for single nodes applies
//! (`max_clock_jump`): if the wall clock is further ahead than the limit, space time stays behind until an operator
//! corrects the clock or raises the limit.
//!
//! Each entry still gets its time from the leader's clock of the space. No other part of the system decides about time.
//!
//! [`ConsensusOptions::silent_after`]: crate::ConsensusOptions::silent_after
//! [`ConsensusOptions::max_catch_up`]: crate::ConsensusOptions::max_catch_up

use std::{collections::BTreeMap, time::Duration};

use openraft::{
    Instant,
    async_runtime::{AsyncRuntime, WatchReceiver},
    type_config::{TypeConfigExt, alias::InstantOf},
};
use thalweg_replica::{Leadership, NodeInfo};
use thalweg_types::{NodeId, Term};

use crate::{
    consensus::Consensus,
    facts::{DiskRoom, MemberFacts, VoterSets, listed, reached_by_majority, without_room},
    types::Types,
};

/// Minimum time by which the members' common clock must lag behind the wall clocks before it is set forward. Smaller
/// differences between wall clocks are normal.
const CATCH_UP_FROM: Duration = Duration::from_secs(1);
/// Interval at which a new leader, before its first entry, checks if it has the members' reports about their wall
/// clocks.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time between two attempts of a leader with a full disk to transfer its leadership.
const PASS_ON_EVERY: Duration = Duration::from_secs(5);

impl<Rt: AsyncRuntime> Consensus<Rt> {
    /// Returns the facts (disk space and wall clock) that this node reports to the leader.
    #[must_use]
    pub fn own_facts(&self) -> MemberFacts {
        let member = &self.0.member;
        MemberFacts { lacks_room: member.log().short_bytes() > 0, wall: member.clock().wall() }
    }

    /// Notes the facts (disk space and wall clock) that another member has just reported about itself.
    pub fn report(&self, node: NodeId, facts: MemberFacts) {
        self.0.facts.reports.borrow_mut().insert(node, (facts, Types::<Rt>::now()));
    }

    /// Evaluates the members' reports if this node leads: refuses or permits new data, sets the common clock forward if
    /// it lags, and transfers the leadership if this node's disk is full.
    pub(crate) async fn weigh_facts(&self) {
        let Leadership::Leader { term } = self.0.member.leadership() else {
            self.0.member.refuse_data(None);
            self.0.facts.behind.set(None);
            return;
        };
        let sets = self.voter_sets();
        let infos: BTreeMap<NodeId, NodeInfo> = {
            let metrics = self.0.raft.server_metrics();
            let seen = metrics.borrow_watched();
            seen.membership_config.membership().nodes().map(|(node, info)| (NodeId(*node), info.clone())).collect()
        };
        self.0.facts.reports.borrow_mut().retain(|node, _| infos.contains_key(node));
        self.catch_up(term, &sets);
        let full = without_room(&sets, |voter| self.room_of(voter));
        self.0.member.refuse_data(full.as_ref().map(|full| {
            format!(
                "a majority of the voters has no room for new data, because the disks of {} are full: add space there, \
                 or delete or trim data",
                listed(full, &infos)
            )
        }));
        if full.is_none() && self.0.member.log().check_room().is_err() {
            self.pass_on().await;
        }
    }

    /// Returns the present sets of voters. A decision needs a majority of each set; there are two while the membership
    /// changes.
    fn voter_sets(&self) -> VoterSets {
        let metrics = self.0.raft.server_metrics();
        let seen = metrics.borrow_watched();
        let sets = seen.membership_config.membership().get_joint_config().iter();
        sets.map(|set| set.iter().copied().map(NodeId).collect()).collect()
    }

    /// Returns the newest facts (disk space and wall clock) that a member has reported, and their age; `None` if it has
    /// never reported.
    pub(crate) fn facts_of(&self, node: NodeId) -> Option<(MemberFacts, Duration)> {
        if node == self.0.member.node() {
            return Some((self.own_facts(), Duration::ZERO));
        }
        let (facts, at) = *self.0.facts.reports.borrow().get(&node)?;
        Some((facts, Types::<Rt>::now().saturating_duration_since(at)))
    }

    fn room_of(&self, voter: NodeId) -> DiskRoom {
        if voter == self.0.member.node() {
            // Other voters announce a full disk before their last segment is full. For itself, the leader checks the
            // free space of its log.
            return if self.0.member.log().check_room().is_err() { DiskRoom::Lacks } else { DiskRoom::Has };
        }
        DiskRoom::of(self.facts_of(voter), self.0.options.silent_after())
    }

    /// If this node has just been elected, waits until it may give entries their times, see
    /// [`may_stamp`](Self::may_stamp). Returns as soon as it leads no more.
    pub(crate) async fn caught_up(&self) {
        while let Some(term) = self.0.member.leadership().led_term()
            && !self.may_stamp(term)
        {
            Types::<Rt>::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns true if this leader may give entries their times: the members' common clock has caught up with the wall
    /// clocks, there is only one voter, or no majority has reported its wall clock in time.
    pub(crate) fn may_stamp(&self, term: Term) -> bool {
        let is_caught_up = || self.0.facts.caught_up_in.get() == term;
        if is_caught_up() {
            return true;
        }
        let sets = self.voter_sets();
        self.catch_up(term, &sets);
        is_caught_up() || has_one_voter(&sets) || self.led_for(term) >= self.0.options.catch_up_within()
    }

    /// Returns the time for which this node has led in `term`; zero if it has not led in it.
    fn led_for(&self, term: Term) -> Duration {
        let (led_term, led_since) = self.0.led_since.get();
        if led_term == term { Types::<Rt>::now().saturating_duration_since(led_since) } else { Duration::ZERO }
    }

    /// Sets the members' common clock forward to the latest time that a majority's wall clocks have reached, once in
    /// each leadership.
    fn catch_up(&self, term: Term, sets: &VoterSets) {
        let options = &self.0.options;
        let wall = |voter: NodeId| {
            let (facts, age) = self.facts_of(voter)?;
            (age <= options.silent_after()).then(|| facts.wall.plus(age))
        };
        let Some(reached) = reached_by_majority(sets, wall) else { return };
        let (facts, clock) = (&self.0.facts, self.0.member.clock());
        let behind = clock.behind(reached);
        facts.behind.set(Some(behind));
        let knows_all = || sets.iter().flatten().all(|voter| wall(*voter).is_some());
        if facts.caught_up_in.get() == term || self.led_for(term) < options.hear_all_for() && !knows_all() {
            return;
        }
        let max = self.0.member.max_clock_jump();
        if has_one_voter(sets) && !max.is_zero() && behind > max {
            return;
        }
        facts.caught_up_in.set(term);
        if behind > CATCH_UP_FROM {
            clock.raise_to(reached);
            facts.behind.set(Some(Duration::ZERO));
        }
    }

    /// Begins to transfer the leadership to the voter that has most entries among those with free disk space.
    async fn pass_on(&self) {
        let now = Types::<Rt>::now();
        let is_early = |at: InstantOf<Types<Rt>>| now.saturating_duration_since(at) < PASS_ON_EVERY;
        if self.0.facts.passed_on_at.get().is_some_and(is_early) {
            return;
        }
        self.0.facts.passed_on_at.set(Some(now));
        let status = self.status();
        let silent_after = self.0.options.silent_after();
        let has_room =
            |node: NodeId| self.facts_of(node).is_some_and(|(facts, age)| !facts.lacks_room && age <= silent_after);
        let fit = status
            .members
            .iter()
            .filter(|(node, member)| **node != self.0.member.node() && member.votes && has_room(**node));
        if let Some((node, _)) = fit.max_by_key(|(_, member)| member.matched) {
            // A voter that does not answer cannot take over. The next attempt chooses another one.
            let _ = self.begin_transfer(Some(*node)).await;
        }
    }
}

/// Returns true if each set has a single voter. Such a voter needs no other member's wall clock.
fn has_one_voter(sets: &VoterSets) -> bool {
    sets.iter().all(|voters| voters.len() == 1)
}
