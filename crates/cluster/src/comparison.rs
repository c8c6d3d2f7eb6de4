//! Comparison of a node's state with those of the other members, and the beginning of its repair.
//!
//! Owns: the rules by which a node stops serving, and by which it takes the state of other members. Does not own:
//! running hashes and digests (`engine`), and the repair, which another run of the node makes (`repair`).
//!
//! A running hash covers all entries before it, so a state that differs once differs at all later entries, until it is
//! replaced. It does not show damage of rows that were written long ago. A digest of all rows does: the leader requests
//! one from all members at intervals ([`NodeOptions::digest_every`](crate::NodeOptions::digest_every)). While a member
//! does not serve, the leader requests one for each member that answers again: it can make a majority, and may lack the
//! digest that has shown the difference.
//!
//! | members whose states differ from this node's | this node |
//! |---|---|
//! | fewer than half | serves, and logs a warning |
//! | half or more, without a majority of equal states | is *undecided*: stops serving, and goes on comparing |
//! | a majority with equal states | is wrong: stops serving, and is repaired |
//!
//! The log and the votes of a node that has stopped are not affected: the node continues with consensus until it is
//! repaired. It can be elected then, because its log is sound. But a leader that does not serve proposes no expiries,
//! retention or digests, and gives no snapshot to a follower, so the node passes on each leadership.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    rc::Rc,
};

use futures_util::future::join_all;
use thalweg_engine::{RepairDue, RepairNote};
use thalweg_raft::MemberStatus;
use thalweg_serving::cluster::Event;
use thalweg_types::{Index, NodeId};
use thalweg_wire::peer::{AskDigest, AskMarks, AskSource, Source};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use crate::{
    link::{CallError, DigestText, MarkList, Owned},
    tasks::{ASK_LIMIT, Tasks},
};

/// Facts about another member that decide whether it can give its state to this node.
#[derive(Clone, Debug)]
struct ComparedMember {
    node: NodeId,
    votes: bool,
    /// Running hashes; none if the member does not answer.
    marks: BTreeMap<Index, u64>,
}

/// Progress of the comparison of digests.
#[derive(Debug)]
struct ComparedDigests {
    /// Entry up to which the digests of a majority are equal to this node's.
    through: Index,
    /// Entry of this node's newest digest.
    newest: Index,
    /// Time of the newest digest, of the last request for one, or of the start of this node.
    since: Instant,
    /// Members that answered when this leader requested a digest, since not all of them serve.
    asked: BTreeSet<NodeId>,
}

impl ComparedDigests {
    fn new() -> Self {
        Self { through: Index::ZERO, newest: Index::ZERO, since: Instant::now(), asked: BTreeSet::new() }
    }

    /// Returns true if another digest can show which states are right: a member does not serve, and one that answers
    /// was not asked for a digest since. `answers` has the members of `others` that answer and do not lag, and says of
    /// each if it serves. Each member causes one request, also if it answers only now and then.
    fn can_decide(&mut self, answers: &BTreeMap<NodeId, bool>, others: usize) -> bool {
        let all_serve = answers.values().all(|serves| *serves);
        if all_serve && answers.len() == others {
            self.asked.clear();
        }
        !all_serve && answers.keys().any(|node| !self.asked.contains(node))
    }
}

/// Difference of a node's state after an entry from those of the other members; the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StateDifference {
    /// A majority of the members has an equal state, and this node another one: this node's state is wrong.
    FromMajority,
    /// Half of the members or more differ from this node, and no majority is known to have an equal state: any of them
    /// can be right.
    WithoutMajority,
    /// Fewer members differ, so the rest and this node can be a majority of equal states.
    FromMinority,
}

impl StateDifference {
    /// Judges the states that differ from this node's, each with the number of members that have it.
    fn of<S>(differing: &BTreeMap<S, usize>, members: usize) -> Self {
        if differing.values().any(|count| 2 * count > members) {
            return Self::FromMajority;
        }
        let is_minority = 2 * differing.values().sum::<usize>() < members;
        if is_minority { Self::FromMinority } else { Self::WithoutMajority }
    }
}

/// Digests of the members that could give their states, after one entry.
#[derive(Debug, PartialEq, Eq)]
enum StatedDigests {
    /// These members have the same digest, and are a majority of all members.
    OfMajority(BTreeSet<NodeId>),
    /// Members have different digests, and no majority has the same one.
    Different,
    /// Too few members have stated a digest.
    TooFew,
}

impl StatedDigests {
    /// Judges the members that have stated each digest.
    fn of(stated: BTreeMap<String, BTreeSet<NodeId>>, members: usize) -> Self {
        let count = stated.len();
        match stated.into_values().find(|nodes| 2 * nodes.len() > members) {
            Some(nodes) => Self::OfMajority(nodes),
            None if count > 1 => Self::Different,
            None => Self::TooFew,
        }
    }
}

/// Returns the reason why a node does not serve if no majority of the members has equal states.
fn reason_without_majority(after: Index) -> String {
    format!(
        "undecided: its state after entry {after} differs from those of half of the members or more, no majority has \
         equal states as far as this node knows, and any of them can be the right one. Start the members that are \
         down: `thalweg cluster doctor` says if the wrong ones are known then. If they are not, stop all nodes, start \
         the one whose state shall remain, repair the others with `thalweg cluster repair`, and start them"
    )
}

/// Returns the reason why a node whose state is wrong after an entry does not serve. `done` is the last entry of an
/// earlier repair by the node itself.
pub(crate) fn reason(after: Index, done: Option<Index>, repairs_itself: bool) -> String {
    let differs = format!("its state after entry {after} differs from that of a majority of the members");
    let by_command = "stop it, repair it with `thalweg cluster repair`, and start it again";
    match done {
        _ if !repairs_itself => format!("{differs}: {by_command}"),
        None => format!("{differs}: it gets the state of another member once a majority can give it"),
        Some(index) => {
            format!("{differs} again after a repair up to entry {index}, so it has a fault of its own: {by_command}")
        }
    }
}

impl Tasks {
    /// Compares this node's running hashes with those of the others. A node that differs from a majority of the members
    /// stops serving, and leads no longer. If the members of that majority also differ from each other, or if exactly
    /// half of the members differ, the node is undecided: it stops as well, and none is marked as wrong, so that the
    /// others can still get the state of one that is right. It goes on comparing, because a member that answers later
    /// can make a majority. No node repairs itself before that: members that have not compared yet still give their
    /// states, and each of these can be wrong.
    ///
    /// Otherwise a node that repairs its state without an operator requests its own stop as soon as enough members can
    /// give it their states. It does the same after a scrub or a snapshot has found damage in its state. A leader with
    /// such damage passes on its leadership, because it cannot give its state to new members.
    pub(crate) async fn compare_states(self: Rc<Self>) {
        let mut equal_at = BTreeMap::new();
        let mut digests = ComparedDigests::new();
        let mut said = None;
        loop {
            sleep(self.options.compare_every).await;
            if self.was_removed.get() {
                return;
            }
            if self.is_compared() {
                self.compare(&mut equal_at).await;
            }
            if self.is_compared() {
                self.compare_digest(&mut digests).await;
            }
            let is_stopped = self.db.stopped_serving().is_some();
            let is_damaged = self.db.scrub_stats().is_state_damaged;
            if is_stopped || is_damaged {
                self.pass_on_leadership().await;
            }
            if !is_stopped {
                self.request_digest(&mut digests).await;
            }
            let is_sound = !is_stopped && !is_damaged;
            if self.undecided.get().is_some() || !self.options.repairs_itself || is_sound {
                continue;
            }
            match self.begin_repair().await {
                Ok(()) => return,
                Err(obstacle) if said.as_ref() == Some(&obstacle) => {}
                Err(obstacle) => {
                    tracing::error!(%obstacle, "this node does not repair its state without an operator yet");
                    said = Some(obstacle);
                }
            }
        }
    }

    /// Returns true unless this node has stopped serving for a reason that another comparison does not change.
    fn is_compared(&self) -> bool {
        self.db.stopped_serving().is_none() || self.undecided.get().is_some()
    }

    /// Compares once. A node whose last hash was equal is not asked again until this node has a new one.
    async fn compare(&self, equal_at: &mut BTreeMap<NodeId, Index>) {
        let own: BTreeMap<Index, u64> = self.data.marks().collect();
        let Some((&newest, &newest_hash)) = own.last_key_value() else { return };
        let others = self.others();
        let members = others.len() + 1;
        equal_at.retain(|node, _| others.contains_key(node));
        let mut differing: BTreeMap<Index, BTreeMap<u64, usize>> = BTreeMap::new();
        for (node, info) in others {
            if equal_at.get(&node) == Some(&newest) {
                continue;
            }
            let Ok(marks) = self.marks_of(node, &info.address).await else { continue };
            if marks.contains(&(newest, newest_hash)) {
                equal_at.insert(node, newest);
            }
            for (index, hash) in marks {
                if own.get(&index).is_some_and(|own| *own != hash) {
                    *differing.entry(index).or_default().entry(hash).or_default() += 1;
                }
            }
        }
        match worst(&differing, members) {
            Some((after, StateDifference::FromMajority)) => self.stop_differing(after).await,
            Some((after, StateDifference::WithoutMajority)) => self.stop_without_majority(after).await,
            Some((index, StateDifference::FromMinority)) => {
                tracing::warn!(index = index.0, "the running hashes of some members differ from this node's");
            }
            None => {}
        }
    }

    /// Compares this node's last digest with those that the other members have after the same entry. A digest that a
    /// majority has computed equally is not compared again.
    async fn compare_digest(&self, digests: &mut ComparedDigests) {
        // A digest without an id was computed on this node alone.
        let Some(own) = self.db.last_state_digest().filter(|report| report.id.is_some()) else { return };
        let index = own.state.applied.index;
        if index > digests.newest {
            (digests.newest, digests.since) = (index, Instant::now());
        }
        if index <= digests.through {
            return;
        }
        let others = self.others();
        let members = others.len() + 1;
        let own = own.state.digest.to_string();
        let (mut equal, mut differing) = (1, BTreeMap::new());
        for (node, info) in others {
            if let Ok(digest) = self.digest_of(node, &info.address, index).await {
                if digest == own {
                    equal += 1;
                } else {
                    *differing.entry(digest).or_default() += 1;
                }
            }
        }
        match StateDifference::of(&differing, members) {
            StateDifference::FromMajority => self.stop_differing(index).await,
            StateDifference::WithoutMajority => self.stop_without_majority(index).await,
            StateDifference::FromMinority if 2 * equal > members => {
                digests.through = index;
                if !differing.is_empty() {
                    tracing::warn!(index = index.0, "a member's state digest differs from that of a majority");
                }
            }
            // Some members have not computed it yet, or do not answer.
            StateDifference::FromMinority => {}
        }
    }

    /// Requests a digest from all members if this node leads, and if the last one is older than the interval or another
    /// one can show which states are right.
    async fn request_digest(&self, digests: &mut ComparedDigests) {
        let every = self.options.digest_every;
        if every.is_zero() || !self.consensus.member().leads() {
            return;
        }
        let answers = self.answers().await;
        if !digests.can_decide(&answers, self.others().len()) && digests.since.elapsed() < every {
            return;
        }
        digests.since = Instant::now();
        match self.db.to_async().request_digest().await {
            Ok(()) => digests.asked.extend(answers.into_keys()),
            Err(error) => tracing::debug!(%error, "no digest was requested from the members"),
        }
    }

    /// Requests the digest that another member has after an entry. The member keeps its last few digests.
    async fn digest_of(&self, node: NodeId, address: &str, index: Index) -> Result<String, CallError> {
        let link = self.network.peer(node, address).control;
        let ask = AskDigest { index, timeout_millis: 0 };
        link.call::<_, DigestText, String>(&ask, Instant::now() + ASK_LIMIT).await
    }

    async fn marks_of(&self, node: NodeId, address: &str) -> Result<Vec<(Index, u64)>, CallError> {
        let link = self.network.peer(node, address).control;
        link.call::<_, MarkList, _>(&AskMarks {}, Instant::now() + ASK_LIMIT).await
    }

    /// Stops serving, and notes this in the directory for later runs. The reason replaces the one of an undecided node,
    /// but not the one of a node that was removed meanwhile.
    async fn stop_differing(&self, after: Index) {
        if self.was_removed.get() {
            return;
        }
        let reason = reason(after, self.note.borrow().done, self.options.repairs_itself);
        tracing::error!(%reason, "this node stops serving");
        self.undecided.set(None);
        self.db.stop_serving_for_graver(reason);
        self.pass_on_leadership().await;
        if let Err(error) = self.note_due(RepairDue { after, sources: Vec::new() }).await {
            tracing::error!(
                %error,
                "cannot write the file REPAIR: after a restart this node serves its wrong state until the next comparison"
            );
        }
    }

    /// Stops serving for the rest of this run. Does nothing if this node has stopped for this reason before.
    async fn stop_without_majority(&self, after: Index) {
        if self.undecided.replace(Some(after)).is_some() {
            return;
        }
        let reason = reason_without_majority(after);
        tracing::error!(%reason, "this node stops serving");
        self.events.push(Event::Undecided(self.here()));
        self.db.stop_serving(reason);
        self.pass_on_leadership().await;
    }

    /// Transfers the leadership if this node leads. It has been elected, or has stopped serving as the leader, or has
    /// found damage in its state. A voter that serves is preferred. Members that are all undecided or damaged would pass
    /// the leadership on for ever, so such a node keeps it if no other voter serves.
    async fn pass_on_leadership(&self) {
        if !self.consensus.member().leads() {
            return;
        }
        let may_stay = self.undecided.get().is_some() || self.db.stopped_serving().is_none();
        let to = self.serving_voter().await;
        if to.is_none() && may_stay {
            return;
        }
        if self.db.stopped_serving().is_none() {
            tracing::error!(
                "the state of this node is damaged (`thalweg status` shows how): it passes on its leadership"
            );
        }
        if let Err(error) = self.consensus.transfer(to).await {
            tracing::warn!(%error, "leadership could not be transferred: this node leads on although it should not");
        }
    }

    /// Returns the voter with most entries among the others that serve and do not lag; `None` if there is none. A voter
    /// that does not serve would pass the leadership on, and two of them could pass it to each other for ever. One that
    /// lags could not take it.
    async fn serving_voter(&self) -> Option<NodeId> {
        let answers = self.answers().await;
        let members = self.consensus.status().members;
        let serving = members.iter().filter(|(node, member)| member.votes && answers.get(*node) == Some(&true));
        serving.map(|(node, member)| (member.matched, *node)).max().map(|(_, node)| node)
    }

    /// Asks the other members that do not lag, as far as this node knows, if they give their states. Those that do not
    /// answer are missing in the result.
    async fn answers(&self) -> BTreeMap<NodeId, bool> {
        let status = self.consensus.status();
        let last = status.last.map_or(0, |last| last.index.0);
        let max_lag = self.options.triggers.lag_entries;
        let lags = |matched: Option<Index>| matched.is_some_and(|matched| last.saturating_sub(matched.0) > max_lag);
        let asked = status.members.iter().filter(|(node, member)| **node != self.here() && !lags(member.matched));
        let answers = asked.map(|(node, member)| async move {
            let source = self.source(*node, &member.info.address).await.ok()?;
            Some((*node, source.gives))
        });
        join_all(answers).await.into_iter().flatten().collect()
    }

    /// Asks another member whether it gives its state. A member that does not serve does not.
    async fn gives_state(&self, node: NodeId, address: &str) -> bool {
        self.source(node, address).await.is_ok_and(|source| source.gives)
    }

    async fn source(&self, node: NodeId, address: &str) -> Result<Source, CallError> {
        let link = self.network.peer(node, address).control;
        link.call::<_, Owned, Source>(&AskSource {}, Instant::now() + ASK_LIMIT).await
    }

    async fn note_due(&self, due: RepairDue) -> io::Result<()> {
        let note = RepairNote { done: self.note.borrow().done, due: Some(due) };
        self.note.replace(note.clone());
        let db = self.db.clone();
        spawn_blocking(move || db.note_repair(&note)).await.map_err(io::Error::other)?
    }

    /// Notes in the directory which members can give their states, and requests the end of this run of the node.
    /// Returns the obstacle if there is one.
    async fn begin_repair(&self) -> Result<(), String> {
        let RepairNote { done, due } = self.note.borrow().clone();
        if let Some(index) = done {
            return Err(format!("it was repaired before, up to entry {index}, so it has a fault of its own"));
        }
        let members = self.consensus.status().members;
        let votes = members.get(&self.here()).is_some_and(|member| member.votes);
        let (mut others, mut answering) = (Vec::new(), BTreeSet::new());
        for (node, member) in members.iter().filter(|(node, _)| **node != self.here()) {
            let marks = self.marks_of(*node, &member.info.address).await;
            answering.extend(marks.is_ok().then_some(*node));
            let marks = marks.unwrap_or_default().into_iter().collect();
            others.push(ComparedMember { node: *node, votes: member.votes, marks });
        }
        let after = due.as_ref().map_or(Index::ZERO, |due| due.after);
        let (digests, agreeing) = (self.stated_digests(&answering, &members, after).await, agreeing(&others, after));
        let (agreeing, chosen_by) = choose(digests, agreeing)?;
        let mut sources = Vec::new();
        for (node, member) in members.iter().filter(|(node, _)| agreeing.contains(*node)) {
            let address = &member.info.address;
            if self.gives_state(*node, address).await {
                // The membership of a node with a wrong state may lack the address.
                sources.push((*node, self.network.peer(*node, address).control.address()));
            }
        }
        let giving = sources.iter().map(|(node, _)| *node).collect();
        if !can_spare(&giving, &others, votes) {
            return Err("no majority of the members has equal states and offers a snapshot".to_owned());
        }
        tracing::warn!(members = sources.len(), chosen_by, "this node stops to get the state of another member");
        let after = due.map_or_else(|| self.consensus.applied().unwrap_or(Index::ZERO), |due| due.after);
        let noted = self.note_due(RepairDue { after, sources }).await;
        noted.map_err(|error| format!("cannot write the file REPAIR: {error}"))?;
        self.db.stop_serving("its state is damaged: it gets the state of another member");
        self.shared.repair_is_due.send_replace(true);
        Ok(())
    }

    /// Requests the digests of all rows that other members have after an entry from `after` on, the newest that a
    /// majority has first.
    async fn stated_digests(
        &self,
        asked: &BTreeSet<NodeId>,
        members: &BTreeMap<NodeId, MemberStatus>,
        after: Index,
    ) -> StatedDigests {
        // The digest by which this node was found to be wrong can be one of an earlier run.
        let own = self.db.state_digests().into_iter().filter(|report| report.id.is_some());
        let indexes: BTreeSet<Index> = own.map(|report| report.state.applied.index).chain([after]).collect();
        for index in indexes.into_iter().rev().filter(|index| *index >= after && *index > Index::ZERO) {
            let mut stated: BTreeMap<String, BTreeSet<NodeId>> = BTreeMap::new();
            for (node, member) in members.iter().filter(|(node, _)| asked.contains(*node)) {
                if let Ok(digest) = self.digest_of(*node, &member.info.address, index).await {
                    stated.entry(digest).or_default().insert(*node);
                }
            }
            match StatedDigests::of(stated, members.len()) {
                StatedDigests::TooFew => {}
                judged => return judged,
            }
        }
        StatedDigests::TooFew
    }
}

/// Returns the first entry after which this node differs from a majority, or otherwise from most members, or otherwise
/// from any, by the members' running hashes that differ from its own.
fn worst(differing: &BTreeMap<Index, BTreeMap<u64, usize>>, members: usize) -> Option<(Index, StateDifference)> {
    let judged = differing.iter().map(|(index, hashes)| (*index, StateDifference::of(hashes, members)));
    judged.min_by_key(|(_, difference)| *difference)
}

/// Returns the members whose states are right, and what shows it. A digest covers all rows, which equal running hashes
/// do not. Running hashes cover the entries since the digest, if a majority has stated any of them. They decide alone
/// if too few members have stated a digest: none was computed lately, or the members run an earlier version. Returns
/// the obstacle if the digests show that no majority has equal states.
fn choose(digests: StatedDigests, agreeing: BTreeSet<NodeId>) -> Result<(BTreeSet<NodeId>, &'static str), String> {
    match digests {
        StatedDigests::OfMajority(nodes) if agreeing.is_empty() => Ok((nodes, "digests")),
        StatedDigests::OfMajority(nodes) => Ok((&nodes & &agreeing, "digests and running hashes")),
        StatedDigests::Different => Err("no majority of the members has equal digests of its rows".to_owned()),
        StatedDigests::TooFew => Ok((agreeing, "running hashes")),
    }
}

/// Returns the members that agree with each other: the largest group with equal running hashes, at the newest entry for
/// which a majority of the members has reported a hash. Entries before `after` are ignored, because states that differ
/// after an entry can have equal hashes before it.
fn agreeing(others: &[ComparedMember], after: Index) -> BTreeSet<NodeId> {
    let mut found: BTreeMap<Index, BTreeMap<u64, BTreeSet<NodeId>>> = BTreeMap::new();
    for other in others {
        for (index, hash) in other.marks.range(after..) {
            found.entry(*index).or_default().entry(*hash).or_default().insert(other.node);
        }
    }
    let is_known = |by_hash: &BTreeMap<u64, BTreeSet<NodeId>>| {
        2 * by_hash.values().map(BTreeSet::len).sum::<usize>() > others.len() + 1
    };
    let newest = found.into_values().rev().find(is_known);
    newest.and_then(|by_hash| by_hash.into_values().max_by_key(BTreeSet::len)).unwrap_or_default()
}

/// Returns true if these members are a majority of all, and their voters are a majority of all voters. The cluster then
/// continues while this node and others repair their states at the same time. A node that knows of a fault in its state
/// does not give the state to others. So of two such nodes, the later one does not count the first. The last node to
/// ask therefore finds a majority that excludes all nodes under repair.
fn can_spare(giving: &BTreeSet<NodeId>, others: &[ComparedMember], this_node_votes: bool) -> bool {
    let voters = others.iter().filter(|other| other.votes);
    let giving_voters = voters.clone().filter(|voter| giving.contains(&voter.node)).count();
    2 * giving.len() > others.len() + 1 && 2 * giving_voters > voters.count() + usize::from(this_node_votes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members with the ids 2 and higher, all voters, with the running hashes that each reports.
    fn others(of: &[&[(u64, u64)]]) -> Vec<ComparedMember> {
        let marks = |of: &[(u64, u64)]| of.iter().map(|(index, hash)| (Index(*index), *hash)).collect();
        (2..).zip(of).map(|(node, of)| ComparedMember { node: NodeId(node), votes: true, marks: marks(of) }).collect()
    }

    fn nodes(of: &[u64]) -> BTreeSet<NodeId> {
        of.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn members_agree_at_the_newest_entry_that_a_majority_states() {
        let agree = |of: &[&[(u64, u64)]], after| agreeing(&others(of), Index(after));
        assert_eq!(agree(&[&[(10, 1), (20, 2)], &[(10, 1)]], 0), nodes(&[2, 3]), "one of three is ahead");
        assert_eq!(
            agree(&[&[(10, 1), (20, 2)], &[(10, 1)]], 11),
            nodes(&[]),
            "what they agreed on before says nothing"
        );
        assert_eq!(agree(&[&[], &[]], 0), nodes(&[]), "nothing is known yet");
        let later: &[(u64, u64)] = &[(10, 1), (20, 2)];
        let odd: &[(u64, u64)] = &[(10, 1), (20, 9)];
        assert_eq!(agree(&[later, odd, later, later], 0), nodes(&[2, 4, 5]));
        let two = agree(&[later, odd, later, odd], 0);
        assert!(!can_spare(&two, &others(&[later, odd, later, odd]), true), "that they agreed before says nothing");
    }

    #[test]
    fn a_node_is_wrong_only_if_a_majority_has_one_other_state() {
        use StateDifference::{FromMajority, FromMinority, WithoutMajority};
        let judge = |counts: &[usize], members| {
            let differing: BTreeMap<u64, usize> = (0..).zip(counts.iter().copied()).collect();
            StateDifference::of(&differing, members)
        };
        assert_eq!(judge(&[2], 3), FromMajority);
        assert_eq!(
            judge(&[1, 1], 3),
            WithoutMajority,
            "two of three are wrong in different ways, and one may be right"
        );
        assert_eq!(judge(&[1], 3), FromMinority);
        assert_eq!(judge(&[2, 1], 5), WithoutMajority);
        assert_eq!(judge(&[1, 3], 5), FromMajority);
        assert_eq!(judge(&[1, 1], 5), FromMinority, "three can have the state of this node");
        // No majority can have this node's state.
        for (counts, members) in [(&[1][..], 2), (&[2][..], 4), (&[1, 1][..], 4), (&[3][..], 6)] {
            assert_eq!(judge(counts, members), WithoutMajority, "{counts:?} of {members}");
        }
        assert_eq!(judge(&[1], 4), FromMinority, "the other two can have the state of this node");
        assert_eq!(judge(&[3], 4), FromMajority);
    }

    #[test]
    fn each_member_that_answers_beside_one_that_does_not_serve_causes_one_request() {
        let mut digests = ComparedDigests::new();
        let mut requests = |answers: &[(u64, bool)]| {
            let answers: BTreeMap<_, _> = answers.iter().map(|(node, serves)| (NodeId(*node), *serves)).collect();
            let can_decide = digests.can_decide(&answers, 3);
            if can_decide {
                digests.asked.extend(answers.into_keys());
            }
            can_decide
        };
        assert!(!requests(&[(2, true), (3, true)]), "all that answer serve");
        assert!(requests(&[(2, true), (3, false)]));
        assert!(!requests(&[(2, true), (3, false)]), "its digest was requested");
        assert!(requests(&[(2, true), (3, false), (4, true)]), "this one was down");
        assert!(!requests(&[(2, true), (4, true)]) && !requests(&[(2, true), (3, false)]), "it was only silent");
        assert!(!requests(&[(2, true), (3, true), (4, true)]), "it was repaired");
        assert!(requests(&[(2, true), (3, true), (4, false)]));
    }

    #[test]
    fn the_digest_of_a_majority_shows_which_members_can_give_their_states() {
        let stated = |of: &[(&str, &[u64])]| {
            of.iter().map(|(digest, of)| ((*digest).to_owned(), nodes(of))).collect::<BTreeMap<_, _>>()
        };
        let judge = |of: &[(&str, &[u64])], members| StatedDigests::of(stated(of), members);
        assert_eq!(judge(&[("a", &[2, 3])], 3), StatedDigests::OfMajority(nodes(&[2, 3])));
        assert_eq!(judge(&[("a", &[2]), ("b", &[3, 4, 5])], 5), StatedDigests::OfMajority(nodes(&[3, 4, 5])));
        assert_eq!(judge(&[("a", &[2]), ("b", &[3])], 3), StatedDigests::Different);
        assert_eq!(judge(&[("a", &[2, 3]), ("b", &[4])], 5), StatedDigests::Different, "the fifth may have either");
        assert_eq!(judge(&[("a", &[2])], 3), StatedDigests::TooFew);
        assert_eq!(judge(&[], 3), StatedDigests::TooFew);
        // Equal running hashes do not show that a row of node 4 is damaged.
        let chosen = |of: &[(&str, &[u64])], agreeing: &[u64]| choose(judge(of, 5), nodes(agreeing));
        let damaged: &[(&str, &[u64])] = &[("a", &[2, 3, 5]), ("b", &[4])];
        assert_eq!(chosen(damaged, &[2, 3, 4, 5]), Ok((nodes(&[2, 3, 5]), "digests and running hashes")));
        assert_eq!(chosen(damaged, &[]), Ok((nodes(&[2, 3, 5]), "digests")), "no majority has stated running hashes");
        assert_eq!(chosen(&[("a", &[2, 3])], &[2, 3, 4]), Ok((nodes(&[2, 3, 4]), "running hashes")));
        assert!(chosen(&[("a", &[2, 3]), ("b", &[4])], &[2, 3, 4]).is_err());
    }

    #[test]
    fn an_earlier_entry_shows_which_of_several_states_is_wrong() {
        use StateDifference::{FromMajority, FromMinority, WithoutMajority};
        let worst = |of: &[(u64, &[(u64, usize)])]| {
            let hashes = |of: &[(u64, usize)]| of.iter().copied().collect::<BTreeMap<u64, usize>>();
            let differing: BTreeMap<_, _> = of.iter().map(|(index, of)| (Index(*index), hashes(of))).collect();
            worst(&differing, 3)
        };
        assert_eq!(worst(&[]), None);
        assert_eq!(worst(&[(10, &[(7, 1)])]), Some((Index(10), FromMinority)));
        assert_eq!(worst(&[(10, &[(7, 1)]), (20, &[(8, 1), (9, 1)])]), Some((Index(20), WithoutMajority)));
        // This node differed before the others did.
        assert_eq!(worst(&[(10, &[(7, 2)]), (20, &[(8, 1), (9, 1)])]), Some((Index(10), FromMajority)));
        assert_eq!(worst(&[(10, &[(8, 1), (9, 1)]), (20, &[(7, 2)])]), Some((Index(20), FromMajority)));
    }

    #[test]
    fn the_cluster_can_spare_a_node_beside_a_majority() {
        let two = others(&[&[], &[]]);
        assert!(can_spare(&nodes(&[2, 3]), &two, true));
        assert!(!can_spare(&nodes(&[2]), &two, true), "one of three is no majority");
        let four = others(&[&[], &[], &[], &[]]);
        assert!(can_spare(&nodes(&[2, 4, 5]), &four, true) && !can_spare(&nodes(&[2, 4]), &four, true));
        let mut with_learners = four;
        with_learners.iter_mut().skip(2).for_each(|other| other.votes = false);
        assert!(!can_spare(&nodes(&[2, 4, 5]), &with_learners, true), "one of three voters");
        assert!(can_spare(&nodes(&[2, 3, 4]), &with_learners, true));
        assert!(can_spare(&nodes(&[2, 3, 5]), &with_learners, false));
    }

    #[test]
    fn the_reason_says_who_repairs_the_node() {
        let said = |done, repairs_itself| reason(Index(1024), done, repairs_itself);
        assert!(said(None, false).contains("thalweg cluster repair"));
        assert!(said(None, true).contains("it gets the state of another member"));
        let undecided = reason_without_majority(Index(1024));
        assert!(undecided.contains("no majority") && undecided.contains("thalweg cluster repair"), "{undecided}");
        let again = said(Some(Index(9)), true);
        assert!(again.contains("a fault of its own") && again.contains("thalweg cluster repair"), "{again}");
    }
}
