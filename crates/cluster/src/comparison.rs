//! Comparison of a node's state with the states of the other members, and the first step of its repair.
//!
//! Owns: the rules by which a node stops serving, and by which it gets its state from other members. Does not own:
//! running hashes and digests (`engine`), and the repair itself, which the node does after a restart (`repair`).
//!
//! A running hash is a hash over all entries that a node has applied and their outcomes, taken after one entry. So once
//! two states differ, their running hashes differ after all later entries, until one state is replaced. A running hash
//! does not show damage to keys and values (rows) that were written long ago. A digest, which covers all rows of the
//! state, does. The leader requests digests from all members at intervals
//! ([`NodeOptions::digest_every`](crate::NodeOptions::digest_every)). While a member does not serve, the leader also
//! requests a digest whenever another member begins to answer: the new member can complete a majority, and may lack the
//! digest that has revealed the difference.
//!
//! | members whose states differ from this node's | this node |
//! |---|---|
//! | fewer than half | serves, and logs a warning |
//! | half or more, without a majority of equal states | is *undecided*: stops serving, and continues to compare |
//! | a majority with equal states | is wrong: stops serving, and is repaired |
//!
//! A node that stops serving still takes part in consensus until it is repaired, because its log and its votes are not
//! affected. It can even be elected. But a leader that does not serve proposes no expiries, retention or digests, and
//! gives no snapshot to a follower. So such a node passes its leadership on.

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

/// Facts about another member. From them this node decides if the member may send its state for the repair of this
/// node.
#[derive(Clone, Debug)]
struct ComparedMember {
    node: NodeId,
    votes: bool,
    /// Running hashes that the member has reported, by the log entry after which each was taken; empty if it does not
    /// answer.
    marks: BTreeMap<Index, u64>,
}

/// State of this node's repeated comparison of its digest with the digests of the other members.
#[derive(Debug)]
struct ComparedDigests {
    /// Newest log entry after which this node has found its digest equal to those of a majority of the members.
    through: Index,
    /// Entry after which this node's newest digest was computed.
    newest: Index,
    /// Time of the latest of these events: this node started, its newest digest appeared, or it requested digests as
    /// the leader.
    since: Instant,
    /// Members that have answered a call when this node, as the leader, requested digests. The set is cleared whenever
    /// all other members answer and serve.
    asked: BTreeSet<NodeId>,
}

impl ComparedDigests {
    fn new() -> Self {
        Self { through: Index::ZERO, newest: Index::ZERO, since: Instant::now(), asked: BTreeSet::new() }
    }

    /// Returns true if another digest can show which members' states are right. This is so if some member does not
    /// serve, and a member that is not in `asked` answers now. `answers` contains the members that answer and do not
    /// lag, each with true if it serves. `others` is the number of other members. Each member causes at most one
    /// request for a digest until all members serve again, even if it answers only from time to time.
    fn can_decide(&mut self, answers: &BTreeMap<NodeId, bool>, others: usize) -> bool {
        let all_serve = answers.values().all(|serves| *serves);
        if all_serve && answers.len() == others {
            self.asked.clear();
        }
        !all_serve && answers.keys().any(|node| !self.asked.contains(node))
    }
}

/// Difference between this node's state after one log entry and the states of the other members after this entry. The
/// variants begin with the most serious one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StateDifference {
    /// A majority of the members has equal states, and this node's state differs from them. This node's state is wrong.
    FromMajority,
    /// Half of the members or more differ from this node, but no majority is known to agree. Any of the states can be
    /// right.
    WithoutMajority,
    /// Fewer than half of the members have another state than this node. So this node and the remaining members can be
    /// a majority with equal states.
    FromMinority,
}

impl StateDifference {
    /// Judges the states that differ from this node's state. The map contains each of them with the number of members
    /// that have it. `members` is the number of all members.
    fn of<S>(differing: &BTreeMap<S, usize>, members: usize) -> Self {
        if differing.values().any(|count| 2 * count > members) {
            return Self::FromMajority;
        }
        let is_minority = 2 * differing.values().sum::<usize>() < members;
        if is_minority { Self::FromMinority } else { Self::WithoutMajority }
    }
}

/// Digests that the other members have reported after one log entry.
#[derive(Debug, PartialEq, Eq)]
enum StatedDigests {
    /// These members report the same digest, and are a majority of all members.
    OfMajority(BTreeSet<NodeId>),
    /// The members report different digests, and no majority reports the same one.
    Different,
    /// Too few members have reported a digest to decide.
    TooFew,
}

impl StatedDigests {
    /// Judges the reported digests. The map contains each digest with the members that have reported it. `members` is
    /// the number of all members.
    fn of(stated: BTreeMap<String, BTreeSet<NodeId>>, members: usize) -> Self {
        let count = stated.len();
        match stated.into_values().find(|nodes| 2 * nodes.len() > members) {
            Some(nodes) => Self::OfMajority(nodes),
            None if count > 1 => Self::Different,
            None => Self::TooFew,
        }
    }
}

/// Returns the message that explains why an undecided node does not serve.
fn reason_without_majority(after: Index) -> String {
    format!(
        "undecided: its state after entry {after} differs from those of half of the members or more, no majority has \
         equal states as far as this node knows, and any of them can be the right one. Start the members that are \
         down: `thalweg cluster doctor` says if the wrong ones are known then. If they are not, stop all nodes, start \
         the one whose state shall remain, repair the others with `thalweg cluster repair`, and start them"
    )
}

/// Returns the message that explains why a node with a wrong state does not serve. `after` is the entry after which the
/// state was found to differ. `done` is the last entry of an earlier automatic repair; `None` if there was none.
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
    /// Compares this node's state with the states of the others at intervals, until the node stops.
    ///
    /// If this node's running hashes or digest differ from those of a majority with equal states, this node stops
    /// serving and passes on its leadership. If half of the members or more differ but no majority agrees, this node is
    /// undecided: it also stops serving, but does not count as wrong, so that the others can still get the state of the
    /// right one. An undecided node continues to compare, because a member that answers later can complete a majority.
    /// No node repairs itself before that: members that have not compared yet still offer their states, and each of
    /// these states can be wrong.
    ///
    /// A wrong node that repairs itself without an operator requests its own stop as soon as enough members can give
    /// their states. A node also does this after a scrub or a snapshot has found damage in its state. A leader with
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

    /// Returns true if this node still has to compare its state with others: it serves, or it is undecided which state
    /// is right.
    fn is_compared(&self) -> bool {
        self.db.stopped_serving().is_none() || self.undecided.get().is_some()
    }

    /// Compares this node's running hashes once with those of the other members. `equal_at` has, for each member, the
    /// log entry at which its hash last equalled this node's. Such a member is asked again only after this node has a
    /// newer hash.
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

    /// Compares this node's newest digest with the digests that the other members have after the same log entry. Once a
    /// majority has this digest, later calls skip it.
    async fn compare_digest(&self, digests: &mut ComparedDigests) {
        // A digest without an id was computed only on this node.
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
            // Too few members have computed this digest yet, or answer.
            StateDifference::FromMinority => {}
        }
    }

    /// Requests digests from all members if this node leads. It does so if the last digest is older than
    /// [`NodeOptions::digest_every`](crate::NodeOptions::digest_every), or if another digest can show which members'
    /// states are right.
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

    /// Requests the digest that another member has computed after the log entry `index`. Each member keeps only its
    /// last few digests.
    async fn digest_of(&self, node: NodeId, address: &str, index: Index) -> Result<String, CallError> {
        let link = self.network.peer(node, address).control;
        let ask = AskDigest { index, timeout_millis: 0 };
        link.call::<_, DigestText, String>(&ask, Instant::now() + ASK_LIMIT).await
    }

    async fn marks_of(&self, node: NodeId, address: &str) -> Result<Vec<(Index, u64)>, CallError> {
        let link = self.network.peer(node, address).control;
        link.call::<_, MarkList, _>(&AskMarks {}, Instant::now() + ASK_LIMIT).await
    }

    /// Stops serving because this node's state is wrong, and records this in the directory for later runs. Clients get
    /// this reason even if the node had stopped as undecided before. Does nothing if the node was removed from the
    /// cluster.
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

    /// Stops serving for the rest of this run, because states differ and no majority agrees. Does nothing if this node
    /// has stopped for this reason before.
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

    /// Transfers the leadership if this node leads although its state is wrong or damaged. Prefers a voter that serves.
    /// Without such a voter, an undecided or damaged node keeps the leadership: otherwise several such nodes would pass
    /// it on forever.
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

    /// Returns the voter to which this node should pass its leadership: among the other members that serve and do not
    /// lag, the one with most log entries. Returns `None` if there is none. A voter that does not serve would pass the
    /// leadership on, and a voter that lags could not take it over.
    async fn serving_voter(&self) -> Option<NodeId> {
        let answers = self.answers().await;
        let members = self.consensus.status().members;
        let serving = members.iter().filter(|(node, member)| member.votes && answers.get(*node) == Some(&true));
        serving.map(|(node, member)| (member.matched, *node)).max().map(|(_, node)| node)
    }

    /// Asks each of the other members if it would send its state to a member that repairs itself. Leaves out members
    /// that lag, as far as this node knows. The result contains the members that have answered, each with its answer.
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

    /// Returns true if the member `node` would send its state to a member that repairs itself. A member that does not
    /// serve clients would not.
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

    /// Writes to this node's directory which members can send it their states, and requests this node's own stop, after
    /// which it is repaired. If the repair is not possible now, returns the reason.
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
                // The membership in a wrong state may lack the address, so the address of the link is used.
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

    /// Asks the members in `asked` for their digests (hashes of all rows of the state) after the log entries for which
    /// this node has a digest, and after the entry `after`. Begins with the newest of these entries, and ignores
    /// entries before `after`. Returns the result for the first entry at which enough members report a digest to judge
    /// the states.
    async fn stated_digests(
        &self,
        asked: &BTreeSet<NodeId>,
        members: &BTreeMap<NodeId, MemberStatus>,
        after: Index,
    ) -> StatedDigests {
        // The digest that has shown this node to be wrong can be from an earlier run.
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

/// Returns the most serious difference, with the first log entry after which it exists. The map contains, for each
/// entry, the running hashes that differ from this node's, each with the number of members that have it. `members` is
/// the number of all members.
fn worst(differing: &BTreeMap<Index, BTreeMap<u64, usize>>, members: usize) -> Option<(Index, StateDifference)> {
    let judged = differing.iter().map(|(index, hashes)| (*index, StateDifference::of(hashes, members)));
    judged.min_by_key(|(_, difference)| *difference)
}

/// Returns the members whose states are right, and the evidence for this as words for the log line. `digests` is the
/// result of comparing the members' digests of all rows. `agreeing` are the members with equal running hashes; it is
/// empty if no majority has reported hashes. If a majority has equal digests and `agreeing` is not empty, only members
/// in both groups are returned. If too few members have reported a digest, the running hashes decide alone. Returns the
/// reason as an error if the digests show that no majority agrees.
fn choose(digests: StatedDigests, agreeing: BTreeSet<NodeId>) -> Result<(BTreeSet<NodeId>, &'static str), String> {
    match digests {
        StatedDigests::OfMajority(nodes) if agreeing.is_empty() => Ok((nodes, "digests")),
        StatedDigests::OfMajority(nodes) => Ok((&nodes & &agreeing, "digests and running hashes")),
        StatedDigests::Different => Err("no majority of the members has equal digests of its rows".to_owned()),
        StatedDigests::TooFew => Ok((agreeing, "running hashes")),
    }
}

/// Returns the members that agree with each other: the largest group with equal running hashes after one log entry.
/// This is the newest entry for which a majority of the members has reported a hash. Entries before `after` are
/// ignored, because states that differ after an entry can have equal hashes before it.
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

/// Returns true if the cluster can continue while this node repairs its state: the members in `giving` are a majority
/// of all members, and their voters are a majority of all voters. `giving` never contains a node that knows of a fault
/// in its state. So if several nodes repair their states at the same time, the last one still finds a majority without
/// them.
fn can_spare(giving: &BTreeSet<NodeId>, others: &[ComparedMember], this_node_votes: bool) -> bool {
    let voters = others.iter().filter(|other| other.votes);
    let giving_voters = voters.clone().filter(|voter| giving.contains(&voter.node)).count();
    2 * giving.len() > others.len() + 1 && 2 * giving_voters > voters.count() + usize::from(this_node_votes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates voters with the ids 2, 3 and so on. Each element has the running hashes that one voter reports.
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
        // In these cases, no majority can have this node's state.
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
        // Equal running hashes do not reveal that a row of node 4 is damaged.
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
        // This node's state differed earlier than the others did.
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
