//! Conclusions of the leader from the reports of the members.
//!
//! Owns: the refusal of new data, the choice of a leader with room, and how far space time catches up with the wall
//! clocks. Does not own: the reports and the rules over them (`facts`), and the clock of the space (`replica`).
//!
//! **Room.** A follower writes every entry, for which its disk keeps a reserve. So the leader refuses new data while
//! fewer than a majority of the voters have room, and its error names the others. A voter that has been silent for
//! [`ConsensusOptions::silent_after`] counts as one without room, but only if another voter has reported a full disk:
//! silence alone does not mean a full disk. A leader that refuses data because its own disk is full passes its
//! leadership to a voter with room, if a majority has room.
//!
//! **Time.** A member continues the time of the last entry with its monotonic clock, so space time needs no wall clock
//! across a failover. Space time falls behind while no member runs, and members that were restarted lack the time since
//! the last entry. A new leader makes up for this lag from the wall clocks of a majority of the voters: space time
//! rises to the latest time that a majority's clocks have reached. A wrong clock of a minority, the leader's own
//! included, has no effect.
//!
//! This happens once in a leadership, and before the leader gives its time to the first entry: a rise after that would
//! end leases and keys early that were granted under the same leader. So the leader takes no commands before it has
//! recent reports of all voters, or of a majority after two heartbeats. Members also report to each other while none of
//! them leads, so after a failover nothing is awaited. If no majority has reported after
//! [`ConsensusOptions::max_catch_up`], the leader takes commands, and space time rises when one has.
//!
//! A space with one voter has no other clock to ask, so nothing is awaited, and the limit for single nodes applies
//! (`max_clock_jump`): if the clock is further ahead, space time stays behind until an operator corrects the clock or
//! raises the limit.
//!
//! Entries get their time from the leader's clock of the space as before, so they remain functions of the entries
//! before them: no other part decides about time.
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

/// Minimum distance between the wall clocks and space time at which space time is raised. Smaller distances are normal
/// between wall clocks.
const CATCH_UP_FROM: Duration = Duration::from_secs(1);
/// Time between two looks of a new leader at the reports, before its first entry.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time between two attempts of a leader with a full disk to pass on its leadership.
const PASS_ON_EVERY: Duration = Duration::from_secs(5);

impl<Rt: AsyncRuntime> Consensus<Rt> {
    /// Returns this node's facts, for the leader.
    #[must_use]
    pub fn own_facts(&self) -> MemberFacts {
        let member = &self.0.member;
        MemberFacts { lacks_room: member.log().short_bytes() > 0, wall: member.clock().wall() }
    }

    /// Notes the facts about another member, as it has just reported them.
    pub fn report(&self, node: NodeId, facts: MemberFacts) {
        self.0.facts.reports.borrow_mut().insert(node, (facts, Types::<Rt>::now()));
    }

    /// Evaluates the members' reports, if this node leads: refuses or permits new data, lets space time catch up, and
    /// passes on the leadership if this node's disk is full.
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

    /// Returns the sets of voters, each of which must have a majority.
    fn voter_sets(&self) -> VoterSets {
        let metrics = self.0.raft.server_metrics();
        let seen = metrics.borrow_watched();
        let sets = seen.membership_config.membership().get_joint_config().iter();
        sets.map(|set| set.iter().copied().map(NodeId).collect()).collect()
    }

    /// Returns the newest facts about a member and their age; `None` if it has never reported.
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
            // room of its log.
            return if self.0.member.log().check_room().is_err() { DiskRoom::Lacks } else { DiskRoom::Has };
        }
        DiskRoom::of(self.facts_of(voter), self.0.options.silent_after())
    }

    /// Waits until this node may give its time to entries, if it has just been elected. Returns as soon as it leads no
    /// more.
    pub(crate) async fn caught_up(&self) {
        while let Some(term) = self.0.member.leadership().led_term()
            && !self.may_stamp(term)
        {
            Types::<Rt>::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns true if this leader may give its time to entries: space time has caught up with the wall clocks, or a
    /// majority has not reported in time.
    pub(crate) fn may_stamp(&self, term: Term) -> bool {
        let is_caught_up = || self.0.facts.caught_up_in.get() == term;
        if is_caught_up() {
            return true;
        }
        let sets = self.voter_sets();
        self.catch_up(term, &sets);
        is_caught_up() || has_one_voter(&sets) || self.led_for(term) >= self.0.options.catch_up_within()
    }

    /// Returns the time for which this node has led in a term.
    fn led_for(&self, term: Term) -> Duration {
        let (led_term, led_since) = self.0.led_since.get();
        if led_term == term { Types::<Rt>::now().saturating_duration_since(led_since) } else { Duration::ZERO }
    }

    /// Raises space time to the latest time that a majority's wall clocks have reached, once in each leadership.
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

    /// Begins to transfer the leadership to a voter with room that has most entries.
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
            // A voter that does not answer cannot take over; the next attempt finds another.
            let _ = self.begin_transfer(Some(*node)).await;
        }
    }
}

/// Returns true if each set has a single voter, which has no other clock to ask.
fn has_one_voter(sets: &VoterSets) -> bool {
    sets.iter().all(|voters| voters.len() == 1)
}
