//! Members of a Raft group: their identity, their replication progress, and changes of the membership.
//!
//! Owns: the conditions under which the membership may change. Does not own: the protocol of the change (openraft, by
//! joint consensus).
//!
//! * A new member is a learner: it receives entries, but majorities are computed without it.
//! * A learner becomes a voter if it answers, lacks few entries, and the voters that answer would still be a majority.
//! * A voter is removed if it does not lead, and if the remaining voters that answer would be a majority.
//! * Node ids are never used again: an id is a random number that a directory gets when it is created, and the state
//!   remembers the ids of removed members.
//! * The leader makes a change only in the term in which it has checked the conditions.
//! * One change is made at a time. If a change was interrupted half-way, the next change first completes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use openraft::{
    ChangeMembers, Instant,
    async_runtime::{AsyncRuntime, WatchReceiver},
    errors::{ChangeMembershipError, ClientWriteError, RaftError},
    raft::Precondition,
    type_config::TypeConfigExt,
    vote::leader_id_std::CommittedLeaderId,
};
use thalweg_replica::{Leadership, Membership, NodeInfo, ProposeError};
use thalweg_state::{machine::MachineError, membership::LogId};
use thalweg_types::{Index, NodeId, Term, info::Removal};

use crate::{
    consensus::Consensus,
    convert::{log_id, membership},
    error::{BarrierError, ChangeError},
    proposals::leader_in,
    types::Types,
};

/// Maximum time that a change of the membership may take.
const MAX_CHANGE: Duration = Duration::from_secs(10);
/// Time after its last answer for which a member counts as alive, as a multiple of the lease.
const ALIVE_LEASES: u32 = 3;
/// Interval at which a change of the membership checks which voters have answered.
const ANSWER_POLL: Duration = Duration::from_millis(20);

/// State of a member of the Raft group, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Name and address of the member.
    pub info: NodeInfo,
    /// True if the member is a voter.
    pub votes: bool,
    /// Index of the last entry that the member has stored and that equals this leader's; `None` if this node does not
    /// lead, or if it does not know the index yet.
    pub matched: Option<Index>,
    /// Time since the member's last answer; `None` if this node does not lead, or if the member has not answered it
    /// yet.
    pub last_answer: Option<Duration>,
}

impl MemberStatus {
    /// Returns the description (name, address, options) that a member gets when it joins again with `info`. A member
    /// that once joined as a permanent learner remains one.
    fn rejoins_as(&self, info: &NodeInfo) -> NodeInfo {
        NodeInfo { stays_learner: self.info.stays_learner || info.stays_learner, ..info.clone() }
    }
}

/// State of a Raft group, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsensusStatus {
    /// Leader of the Raft group, and its term.
    pub leadership: Leadership,
    /// Last entry of this node's log.
    pub last: Option<LogId>,
    /// Last entry that this node knows to be committed.
    pub committed: Option<LogId>,
    /// Last entry that this node has applied.
    pub applied: Option<LogId>,
    /// Last entry that this node has purged.
    pub purged: Option<LogId>,
    /// Term and index of the entry that contains the present membership.
    pub membership: Option<LogId>,
    /// True while the membership changes from one set of voters to another.
    pub is_changing: bool,
    /// All members (voters and learners), by their ids.
    pub members: BTreeMap<NodeId, MemberStatus>,
    /// Time since a majority last answered this leader; `None` if this node does not lead or no majority has answered
    /// it yet.
    pub last_quorum: Option<Duration>,
    /// Size in bytes of this node's proposals whose outcome is not known.
    pub in_flight_bytes: u64,
    /// Time by which the members' common clock lags behind the wall clocks of a majority of the voters; `None` if this
    /// node does not lead or does not know it.
    pub time_behind: Option<Duration>,
}

/// Guard that marks a change of the membership as running until it is dropped.
struct Changing<'a>(&'a std::cell::Cell<bool>);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<Rt: AsyncRuntime> Consensus<Rt> {
    /// Returns the state of the Raft group (leader, positions, members), as this node sees it.
    #[must_use]
    pub fn status(&self) -> ConsensusStatus {
        let metrics = self.0.raft.metrics().borrow_watched().clone();
        let now = Types::<Rt>::now();
        let stored = &metrics.membership_config;
        let voters: BTreeSet<u64> = stored.membership().voter_ids().collect();
        let id = |id: &Option<crate::types::RaftLogId>| id.as_ref().map(log_id);
        let last = self.0.reader.last();
        let member = |(node, info): (&u64, &NodeInfo)| {
            let is_here = *node == metrics.id;
            let matched = metrics.replication.as_ref().and_then(|all| all.get(node).copied().flatten());
            let answered = metrics.heartbeat.as_ref().and_then(|all| all.get(node).copied().flatten());
            let status = MemberStatus {
                info: info.clone(),
                votes: voters.contains(node),
                matched: if is_here { last.map(|last| last.index) } else { matched.map(|id| Index(id.index)) },
                last_answer: if is_here {
                    Some(Duration::ZERO)
                } else {
                    answered.map(|at| now.saturating_duration_since(*at))
                },
            };
            (NodeId(*node), status)
        };
        ConsensusStatus {
            leadership: self.0.member.leadership(),
            last,
            committed: id(&metrics.cluster_committed),
            applied: id(&metrics.last_applied),
            purged: id(&metrics.purged),
            membership: id(stored.log_id()),
            is_changing: stored.membership().get_joint_config().len() > 1,
            members: stored.membership().nodes().map(member).collect(),
            last_quorum: metrics.last_quorum_acked.map(|at| now.saturating_duration_since(*at)),
            in_flight_bytes: self.0.in_flight_bytes.get(),
            time_behind: self.0.facts.behind.get(),
        }
    }

    /// Returns the size in bytes of the entries after `index` in this node's log, see [`LogReader::bytes_after`].
    ///
    /// [`LogReader::bytes_after`]: crate::LogReader::bytes_after
    #[must_use]
    pub fn bytes_after(&self, index: Index) -> u64 {
        self.0.reader.bytes_after(index)
    }

    /// Returns the membership (voters and learners), as this node knows it.
    pub fn membership(&self) -> Result<Membership, ChangeError> {
        let stored = self.0.raft.server_metrics().borrow_watched().membership_config.clone();
        membership(stored.membership()).map_err(|error| match error {
            crate::StoreError::Membership(error) => error.into(),
            other => ChangeError::Stopped(other.to_string()),
        })
    }

    /// Adds a node as a learner, or succeeds if the node is a learner already. A node that first joined as a permanent
    /// learner remains one when it joins again.
    pub async fn add_learner(&self, node: NodeId, info: NodeInfo) -> Result<(), ChangeError> {
        self.apply_earlier_changes().await?;
        let status = self.led()?;
        match status.members.get(&node) {
            Some(known) if known.info == known.rejoins_as(&info) => return Ok(()),
            Some(_) => return Err(ChangeError::AlreadyMember(node)),
            None if self.is_removed(node).map_err(|error| ChangeError::Stopped(error.to_string()))? => {
                return Err(ChangeError::Removed(node));
            }
            None => {}
        }
        let nodes = status.members.iter().map(|(node, member)| (*node, member.info.clone()));
        let nodes = nodes.chain([(node, info.clone())]).collect();
        Membership::new(vec![voters(&status)], nodes)?;
        self.change(&status, ChangeMembers::AddNodes(BTreeMap::from([(node.0, info)]))).await
    }

    /// Changes the name and address of a member. A member that joined as a permanent learner remains one.
    pub async fn set_info(&self, node: NodeId, info: NodeInfo) -> Result<(), ChangeError> {
        let status = self.led()?;
        let known = status.members.get(&node).ok_or(ChangeError::NotAMember(node))?;
        let info = known.rejoins_as(&info);
        if known.info == info {
            return Ok(());
        }
        let mut nodes: BTreeMap<_, _> =
            status.members.iter().map(|(node, member)| (*node, member.info.clone())).collect();
        nodes.insert(node, info.clone());
        Membership::new(vec![voters(&status)], nodes)?;
        self.change(&status, ChangeMembers::SetNodes(BTreeMap::from([(node.0, info)]))).await
    }

    /// Makes a learner a voter if it lacks few entries. The error [`ChangeError::AlreadyVotes`] means that the member
    /// is a voter and that its promotion is committed.
    pub async fn promote(&self, node: NodeId) -> Result<(), ChangeError> {
        let status = self.led()?;
        let learner = status.members.get(&node).ok_or(ChangeError::NotAMember(node))?;
        if learner.votes {
            return self.confirm_vote(node, &status).await;
        }
        let end = status.last.map_or(0, |last| last.index.next().0);
        let entries = end.saturating_sub(learner.matched.map_or(0, |matched| matched.next().0));
        let max = self.0.options.max_promotion_lag;
        if learner.matched.is_none() || entries > max {
            return Err(ChangeError::Lags { node, entries, max });
        }
        let mut after = voters(&status);
        after.insert(node);
        self.check_majority(&after).await?;
        // A new voter that is down would enlarge the majority without contributing to it.
        self.check_alive(node).await?;
        self.change(&status, ChangeMembers::AddVoterIds(BTreeSet::from([node.0]))).await
    }

    /// Completes a change of the voters that was interrupted half-way because its leader failed or its time was over.
    /// Until it is completed, each decision needs a majority of the former voters and one of the new voters. Does
    /// nothing while a change runs.
    pub async fn complete_change(&self) -> Result<(), ChangeError> {
        let status = self.led()?;
        let index = |id: Option<LogId>| id.map(|id| id.index);
        let is_open = index(status.membership) > index(status.committed);
        if !status.is_changing || is_open || self.0.is_changing.get() {
            return Ok(());
        }
        // The call adds no voter, so only the second half of the interrupted change is left.
        self.change(&status, ChangeMembers::AddVoterIds(BTreeSet::new())).await
    }

    /// Answers a request to promote a member that already votes. An earlier promotion of the member may still run, or
    /// may have been interrupted half-way.
    async fn confirm_vote(&self, node: NodeId, status: &ConsensusStatus) -> Result<(), ChangeError> {
        let index = |id: Option<LogId>| id.map(|id| id.index);
        if !status.is_changing && index(status.membership) <= index(status.committed) {
            return Err(ChangeError::AlreadyVotes(node));
        }
        if !self.will_vote(node) {
            return Err(ChangeError::InProgress);
        }
        self.change(status, ChangeMembers::AddVoterIds(BTreeSet::from([node.0]))).await
    }

    /// Returns true if a member will be a voter when the current change is complete.
    fn will_vote(&self, node: NodeId) -> bool {
        let metrics = self.0.raft.server_metrics();
        let seen = metrics.borrow_watched();
        let configs = seen.membership_config.membership().get_joint_config();
        configs.last().is_some_and(|voters| voters.contains(&node.0))
    }

    /// Removes a member for good. A caller can repeat the request: the error [`ChangeError::Removed`] means that the
    /// node was a member and that its removal is complete. Every node that has applied the removal returns this error,
    /// even without a majority. The error [`ChangeError::NotAMember`] needs a majority, because another leader may have
    /// added the node.
    pub async fn remove(&self, node: NodeId, removal: Removal) -> Result<(), ChangeError> {
        if self.is_removed(node).map_err(|error| ChangeError::Stopped(error.to_string()))? {
            return Err(ChangeError::Removed(node));
        }
        let status = self.led()?;
        let Some(member) = status.members.get(&node) else { return Err(self.why_no_member(node).await) };
        if member.votes {
            let mut after = voters(&status);
            after.remove(&node);
            if after.is_empty() {
                return Err(ChangeError::LastVoter(node));
            }
            if node == self.0.member.node() {
                return Err(ChangeError::Leads(node));
            }
            if removal == Removal::Safe {
                self.check_majority(&after).await?;
            }
            self.change(&status, ChangeMembers::RemoveVoters(BTreeSet::from([node.0]))).await
        } else {
            self.change(&status, ChangeMembers::RemoveNodes(BTreeSet::from([node.0]))).await
        }
    }

    /// Returns the error for a request to remove a node that is not a member: the node was removed before, its removal
    /// is not complete, or it was never a member.
    async fn why_no_member(&self, node: NodeId) -> ChangeError {
        if let Err(error) = self.apply_earlier_changes().await {
            return error;
        }
        let status = match self.led() {
            Ok(status) => status,
            Err(error) => return error,
        };
        let index = |id: Option<LogId>| id.map(|id| id.index);
        match self.is_removed(node) {
            Ok(true) => ChangeError::Removed(node),
            // The last entry of the node's removal, or of another change, is not committed or not applied yet.
            Ok(false) if index(status.membership) > index(status.applied) => ChangeError::InProgress,
            Ok(false) => ChangeError::NotAMember(node),
            Err(error) => ChangeError::Stopped(error.to_string()),
        }
    }

    /// Returns true if a node was removed, according to the entries that this node has applied. Its id is never used
    /// again.
    pub fn is_removed(&self, node: NodeId) -> Result<bool, MachineError> {
        self.0.member.machine().is_removed(node)
    }

    /// Transfers the leadership to voter `to`; with `None`, to the voter with most entries. Returns when another node
    /// leads, or four leases after the beginning of the transfer. A leader that was just elected first waits for an
    /// answer of a voter that may take over. Succeeds without a transfer if `to` leads already, so a caller can repeat
    /// the request.
    pub async fn transfer(&self, to: Option<NodeId>) -> Result<NodeId, ChangeError> {
        let here = self.0.member.node();
        if to == Some(here) {
            return self.led().map(|_| here);
        }
        let to = self.begin_transfer_with_answers(to).await?;
        let gives_up = Types::<Rt>::now() + 4 * self.0.options.lease();
        let mut metrics = self.0.raft.server_metrics();
        let waited = Types::<Rt>::timeout_at(gives_up, async {
            loop {
                let leader = metrics.borrow_watched().current_leader;
                if let Some(leader) = leader.filter(|leader| *leader != self.0.member.node().0) {
                    return Some(NodeId(leader));
                }
                if metrics.changed().await.is_err() {
                    return None;
                }
            }
        });
        match waited.await {
            Ok(Some(leader)) => Ok(leader),
            Ok(None) => Err(ChangeError::Stopped(self.stopped_reason())),
            Err(_) => Err(ChangeError::OutcomeUnknown { reason: format!("node {to} has not taken over in time") }),
        }
    }

    /// Begins to transfer the leadership like [`begin_transfer`](Self::begin_transfer). A leader that was just elected
    /// has not heard the other voters yet. If none of the voters that it has heard can take over, it waits for answers
    /// of the others, for the time in which a living member answers.
    async fn begin_transfer_with_answers(&self, to: Option<NodeId>) -> Result<NodeId, ChangeError> {
        let gives_up = Types::<Rt>::now() + ALIVE_LEASES * self.0.options.lease();
        loop {
            match self.begin_transfer(to).await {
                Err(ChangeError::Silent(_) | ChangeError::NoSuccessor)
                    if self.awaits_answer(to) && Types::<Rt>::now() < gives_up =>
                {
                    Types::<Rt>::sleep(ANSWER_POLL).await;
                }
                begun => return begun,
            }
        }
    }

    /// Returns true if a voter that may take over the leadership has not yet told this leader which entries it has.
    /// This is voter `to`, or any other voter if `to` is `None`. A voter that has answered before and then fell silent
    /// does not count.
    fn awaits_answer(&self, to: Option<NodeId>) -> bool {
        let here = self.0.member.node();
        let is_candidate = |node: NodeId| node != here && to.is_none_or(|to| to == node);
        let is_unheard =
            |member: &MemberStatus| member.votes && (member.matched.is_none() || member.last_answer.is_none());
        self.status().members.iter().any(|(node, member)| is_candidate(*node) && is_unheard(member))
    }

    /// Begins to transfer the leadership. From now on, this node serves no more lease reads in this term.
    pub(crate) async fn begin_transfer(&self, to: Option<NodeId>) -> Result<NodeId, ChangeError> {
        let status = self.led()?;
        let here = self.0.member.node();
        let is_fit = |node: &NodeId, member: &MemberStatus| {
            *node != here && member.votes && member.matched.is_some() && self.is_alive(member)
        };
        let to = match to {
            Some(node) => {
                let member = status.members.get(&node).ok_or(ChangeError::NotAMember(node))?;
                if !member.votes {
                    return Err(ChangeError::NotVoter(node));
                }
                if !is_fit(&node, member) {
                    return Err(ChangeError::Silent(node));
                }
                node
            }
            None => {
                let fit = status.members.iter().filter(|(node, member)| is_fit(node, member));
                let best = fit.max_by_key(|(_, member)| member.matched);
                *best.ok_or(ChangeError::NoSuccessor)?.0
            }
        };
        self.transfer_to(to, status.leadership.term()).await
    }

    /// Begins to transfer the leadership of a node that sends no heartbeats because its fsyncs hang. The other nodes do
    /// not answer such a node. So it counts a voter as alive if the voter has recently reported its disk space and wall
    /// clock.
    pub(crate) async fn begin_silent_transfer(&self) -> Result<NodeId, ChangeError> {
        let status = self.status();
        let here = self.0.member.node();
        let fit = status.members.iter().filter(|(node, member)| {
            **node != here && member.votes && member.matched.is_some() && self.has_reported(**node)
        });
        let (best, _) = fit.max_by_key(|(_, member)| member.matched).ok_or(ChangeError::NoSuccessor)?;
        self.transfer_to(*best, status.leadership.term()).await
    }

    async fn transfer_to(&self, to: NodeId, term: Term) -> Result<NodeId, ChangeError> {
        self.0.transferred.set(Some(term));
        let begun = self.0.raft.trigger().transfer_leader(to.0).await;
        begun.map_err(|error| ChangeError::Stopped(error.to_string()))?;
        Ok(to)
    }

    /// Returns true if a member's last report about its disk space and wall clock is recent enough for the member to
    /// count as alive.
    fn has_reported(&self, node: NodeId) -> bool {
        self.facts_of(node).is_some_and(|(_, age)| age <= ALIVE_LEASES * self.0.options.lease())
    }

    /// Returns the status of the Raft group if this node leads it, and otherwise an error.
    fn led(&self) -> Result<ConsensusStatus, ChangeError> {
        match self.0.member.leadership() {
            Leadership::Leader { .. } => Ok(self.status()),
            other => Err(not_leader(&other)),
        }
    }

    fn is_alive(&self, member: &MemberStatus) -> bool {
        member.last_answer.is_some_and(|age| age <= ALIVE_LEASES * self.0.options.lease())
    }

    /// Checks that the voters that have answered recently are a majority of `after`. A leader that was just elected has
    /// not heard the other voters yet. So it waits for their answers, for the time in which a living member answers.
    async fn check_majority(&self, after: &BTreeSet<NodeId>) -> Result<(), ChangeError> {
        let gives_up = Types::<Rt>::now() + ALIVE_LEASES * self.0.options.lease();
        loop {
            let status = self.led()?;
            let is_alive = |node: &&NodeId| status.members.get(node).is_some_and(|member| self.is_alive(member));
            let (alive, voters) = (after.iter().filter(is_alive).count(), after.len());
            if 2 * alive > voters {
                return Ok(());
            }
            if Types::<Rt>::now() >= gives_up {
                return Err(ChangeError::NoMajority { alive, voters });
            }
            Types::<Rt>::sleep(ANSWER_POLL).await;
        }
    }

    /// Checks that a member has answered recently. Waits for an answer like [`check_majority`](Self::check_majority).
    async fn check_alive(&self, node: NodeId) -> Result<(), ChangeError> {
        let gives_up = Types::<Rt>::now() + ALIVE_LEASES * self.0.options.lease();
        while !self.led()?.members.get(&node).is_some_and(|member| self.is_alive(member)) {
            if Types::<Rt>::now() >= gives_up {
                return Err(ChangeError::Silent(node));
            }
            Types::<Rt>::sleep(ANSWER_POLL).await;
        }
        Ok(())
    }

    /// Waits until this leader has applied all earlier changes of the membership. Afterwards its state knows all
    /// removed nodes.
    async fn apply_earlier_changes(&self) -> Result<(), ChangeError> {
        let status = self.led()?;
        match self.read_linearizable(MAX_CHANGE).await {
            Ok(_) => Ok(()),
            Err(BarrierError::Stopped(reason)) => Err(ChangeError::Stopped(reason)),
            Err(BarrierError::NoQuorum | BarrierError::Behind) => {
                self.check_majority(&voters(&status)).await?;
                Err(ChangeError::InProgress)
            }
            Err(_) => Err(not_leader(&self.0.member.leadership())),
        }
    }

    /// Changes the membership if this node still leads in the term of `status`. The caller has checked with `status`
    /// that the change is safe.
    async fn change(&self, status: &ConsensusStatus, change: ChangeMembers<u64, NodeInfo>) -> Result<(), ChangeError> {
        let Some(term) = status.leadership.led_term() else { return Err(not_leader(&status.leadership)) };
        if self.0.is_changing.replace(true) {
            return Err(ChangeError::InProgress);
        }
        let _changing = Changing(&self.0.is_changing);
        let still_leads =
            Precondition::<Types<Rt>>::CommittedLeaderId { committed_leader_id: CommittedLeaderId::new(term.0) };
        let changed = self.0.raft.change_membership_if(change, false, [still_leads]);
        let changed = match Types::<Rt>::timeout(MAX_CHANGE, changed).await {
            Ok(changed) => changed,
            Err(_) => {
                return Err(ChangeError::OutcomeUnknown { reason: "no majority had the change in time".to_owned() });
            }
        };
        match changed {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(error)) => Err(ChangeError::Stopped(error.to_string())),
            Err(RaftError::APIError(error)) => Err(match error {
                ClientWriteError::ForwardToLeader(forward) => {
                    ChangeError::NotLeader { leader: leader_in(&forward).map(|(node, info)| (node, info.address)) }
                }
                ClientWriteError::PreconditionFailed(_) => not_leader(&self.0.member.leadership()),
                ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_)) => {
                    ChangeError::InProgress
                }
                ClientWriteError::ChangeMembershipError(ChangeMembershipError::LearnerNotFound(missing)) => {
                    ChangeError::NotAMember(NodeId(missing.node_id))
                }
                other => ChangeError::OutcomeUnknown { reason: other.to_string() },
            }),
        }
    }
}

fn voters(status: &ConsensusStatus) -> BTreeSet<NodeId> {
    status.members.iter().filter(|(_, member)| member.votes).map(|(node, _)| *node).collect()
}

fn not_leader(leadership: &Leadership) -> ChangeError {
    match leadership.refusal() {
        ProposeError::NotLeader { leader } => ChangeError::NotLeader { leader },
        _ => ChangeError::NotLeader { leader: None },
    }
}
