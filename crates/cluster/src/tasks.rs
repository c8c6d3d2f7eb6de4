//! Work that a node does in the background in addition to consensus.
//!
//! Owns: the times of signs of life, the facts about other nodes, the promotion of learners, joining and founding,
//! events about members, and the lowest log position that followers still need. Does not own: the decisions of
//! consensus, the comparison of states (`comparison`), or the forms of signs of life (`signs`).
//!
//! All tasks end with the runtime of the consensus thread.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use thalweg_engine::{Database, RepairNote};
use thalweg_raft::{ChangeError, Consensus, MemberStatus};
use thalweg_replica::{Leadership, NodeInfo};
use thalweg_serving::cluster::{
    ClusterReport, ElapsedMillis, Event, Lag, MemberHealth, MemberReport, MemberRole, REMOVED_REASON,
};
use thalweg_types::{ClusterId, Index, NodeId};
use thalweg_wire::peer::{Channel, Describe, ManageKind};
use tokio::{task::spawn_local, time::sleep};

use crate::{
    about::AboutNode,
    catch_up::{CatchUp, Line, entries_behind},
    data::Data,
    events::Events,
    forwarder::send_manage,
    founding::{Step, ask, decide},
    hearing::HearingRecord,
    link::{CallError, Link, UNKNOWN},
    network::Network,
    options::NodeOptions,
    peers::Peers,
    report::compose,
    sent_facts::OwnFacts,
    service::{RECEIVING_TICK, Requests},
    shared::Shared,
    signs::{Signs, number_of},
    types::Rt,
};

/// Interval at which a background task refreshes the report about the cluster, checks the list of members, and drops an
/// unfinished snapshot of a silent sender.
const LOOK: Duration = RECEIVING_TICK;
/// Maximum silence of a member for which the log keeps the entries that the member lacks. If the member restarts within
/// this time, it continues from the log and needs no snapshot.
const FLOOR_GRACE: Duration = Duration::from_secs(60);
/// Minimum time between two requests to one other node for its description (its name, zone and addresses).
const DESCRIBE_EVERY: Duration = Duration::from_secs(2);
/// Interval between attempts to join, to promote learners, or to correct this node's address.
const CHANGE_EVERY: Duration = Duration::from_millis(300);
/// Number of consecutive failed attempts to join or to found a cluster, after which the node logs a warning. The first
/// attempts often fail, because this node still creates the cluster, or because the other nodes still start.
const COMPLAIN_AFTER: u32 = 7;
/// Interval at which the warning about failed attempts to join or to found a cluster is repeated. The reason for the
/// failures can have changed, and the first warning may be far back in the log.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// Maximum time of a membership change that this node requests without an operator.
const CHANGE_LIMIT: Duration = Duration::from_secs(5);
/// Maximum time of a request for a description or for running hashes.
pub(crate) const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Returns true if the membership has this node's present name and address. The role is ignored, because the node does
/// not know it: its request to join, or later an operator, has decided if it stays a learner.
fn is_known_as(known: &NodeInfo, own: &NodeInfo) -> bool {
    (&known.name, &known.address) == (&own.name, &own.address)
}

/// Returns the events that lead from the list of members `known` to the list `now`. A node that was behind sees several
/// changes at once, so a new member can already be a voter.
fn changes_of_members(known: &BTreeMap<NodeId, MemberRole>, now: &BTreeMap<NodeId, MemberRole>) -> Vec<Event> {
    let mut changes = Vec::new();
    for (node, role) in now {
        let before = known.get(node);
        if before.is_none() {
            changes.push(Event::Joined(*node));
        }
        if *role == MemberRole::Voter && before != Some(&MemberRole::Voter) {
            changes.push(Event::Promoted(*node));
        }
    }
    changes.extend(known.keys().filter(|node| !now.contains_key(node)).copied().map(Event::Removed));
    changes
}

/// Counts consecutive failed attempts of this node to join or found a cluster.
#[derive(Debug, Default)]
struct FailedAttempts {
    count: u32,
    warned: Option<Instant>,
}

impl FailedAttempts {
    /// Records a failed attempt. Returns true if the node must now log a warning about it.
    fn note(&mut self, now: Instant) -> bool {
        self.count = self.count.saturating_add(1);
        let is_recent = self.warned.is_some_and(|at| now.saturating_duration_since(at) < COMPLAIN_EVERY);
        let is_due = self.count >= COMPLAIN_AFTER && !is_recent;
        if is_due {
            self.warned = Some(now);
        }
        is_due
    }
}

fn note_room(report: &ClusterReport) {
    if report.has_room() {
        tracing::info!("enough voters have room again: the leader accepts new data");
    } else {
        let full: Vec<_> = report.voters().filter(|voter| voter.is_full).map(|voter| &voter.name).collect();
        tracing::warn!(
            ?full,
            "the disks of these voters are full, so the leader refuses new data; deletes are still accepted"
        );
    }
}

/// Parts of a node that its background tasks share with the code that answers calls from other threads.
pub(crate) struct Tasks {
    pub consensus: Consensus<Rt>,
    pub network: Network,
    pub hearing: HearingRecord,
    pub events: Events,
    pub peers: Peers,
    pub signs: Signs,
    pub data: Data,
    pub db: Database,
    pub requests: Rc<Requests>,
    pub shared: Arc<Shared>,
    pub options: NodeOptions,
    /// Contents of the file `REPAIR` in this node's directory, which says if the node's state must be repaired.
    pub note: RefCell<RepairNote>,
    pub cluster: ClusterId,
    /// Address at which the other nodes reach this one.
    pub advertise: String,
    /// True once this node was removed from the cluster.
    pub was_removed: Cell<bool>,
    /// Entry after which this node is undecided: its state differs from the states of half of the members or more, and
    /// no majority is known to agree. The node has then stopped serving. `None` if it is not undecided.
    pub undecided: Cell<Option<Index>>,
}

impl Tasks {
    /// Starts all background tasks of a node on the consensus thread.
    pub(crate) fn spawn(this: &Rc<Self>) {
        spawn_local(Rc::clone(this).look());
        spawn_local(Rc::clone(this).sign_to_all());
        spawn_local(Rc::clone(this).take_part());
        spawn_local(Rc::clone(this).promote_learners());
        spawn_local(Rc::clone(this).log_requests());
        if !this.options.compare_every.is_zero() {
            spawn_local(Rc::clone(this).compare_states());
        }
    }

    pub(crate) fn here(&self) -> NodeId {
        self.consensus.member().node()
    }

    pub(crate) fn own_info(&self) -> NodeInfo {
        NodeInfo { name: self.options.name.clone(), ..NodeInfo::at(self.advertise.clone()) }
    }

    /// Returns the other members with their descriptions.
    pub(crate) fn others(&self) -> BTreeMap<NodeId, NodeInfo> {
        let status = self.consensus.status();
        let others = status.members.into_iter().filter(|(node, _)| *node != self.here());
        others.map(|(node, member)| (node, member.info)).collect()
    }

    /// Refreshes the cluster report at intervals, and reacts to changes of the members and of the leadership.
    async fn look(self: Rc<Self>) {
        let mut known: BTreeMap<NodeId, MemberRole> = BTreeMap::new();
        let mut names: BTreeMap<NodeId, String> = BTreeMap::new();
        let mut leaving = BTreeSet::new();
        let mut leader = None;
        let (mut is_first, mut has_room, mut catch_up) = (true, true, CatchUp::default());
        loop {
            self.refresh();
            let report = self.shared.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if std::mem::replace(&mut has_room, report.has_room()) != has_room {
                note_room(&report);
            }
            if let Some(line) = catch_up.note(entries_behind(&report), Instant::now()) {
                self.log_catch_up(line, report.applied_index);
            }
            let others: Vec<_> =
                report.members.iter().map(|member| member.node).filter(|n| *n != self.here()).collect();
            self.shared.mesh.update(&report);
            if !report.members.is_empty() {
                self.hearing.watch(&others);
                self.peers.keep(&others);
                self.network.keep(&others);
            }
            if leader != Some((report.leader, report.term)) {
                if !is_first || report.leader.is_some() {
                    let name = report.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string());
                    tracing::info!(leader = %name, term = report.term.0, "the leader of the cluster has changed");
                    self.events.push(Event::Leader { leader: report.leader, term: report.term });
                }
                leader = Some((report.leader, report.term));
            }
            let now: BTreeMap<_, _> = report.members.iter().map(|member| (member.node, member.role)).collect();
            if !is_first && !known.is_empty() {
                self.note_members(&known, &now, &names);
            }
            self.dismiss_removed(&known, &now, &mut leaving);
            self.check_own_removal(&now);
            known = now;
            names = report.members.iter().map(|member| (member.node, member.name.clone())).collect();
            is_first = false;
            self.note_lags(&report.members);
            self.hearing.tick().into_iter().for_each(|change| self.events.changed(change));
            self.keep_for_followers(&report.members);
            self.keep_names();
            if let Some(from) = self.requests.receiving.tick() {
                tracing::warn!(%from, "dropped an unfinished snapshot, because its sender is silent");
            }
            sleep(LOOK).await;
        }
    }

    /// Logs the progress of this node's catch-up after its start. The number of bytes covers only entries that it has
    /// already received.
    fn log_catch_up(&self, line: Line, applied: Index) {
        match line {
            Line::Behind(entries) => {
                let received = self.consensus.reader().last().map_or(Index::ZERO, |last| last.index);
                let not_received = entries.saturating_sub(received.0.saturating_sub(applied.0));
                let unapplied_bytes = self.consensus.bytes_after(applied);
                tracing::info!(entries, not_received, unapplied_bytes, "this member catches up with the cluster");
            }
            Line::CaughtUp => tracing::info!(index = applied.0, "this member has caught up with the cluster"),
        }
    }

    /// Composes the report about the cluster again from the present facts, and publishes it to the handles of this
    /// node.
    pub(crate) fn refresh(&self) {
        let own = self.requests.about.borrow().clone();
        let mut report =
            compose(self.cluster, &self.consensus, (&self.hearing, &self.peers), &own, self.options.triggers);
        report.undecided_after = self.undecided.get();
        *self.shared.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// Logs the difference between the members in `known` and the present members, and records it as events. `names`
    /// are the names of the members in `known`.
    fn note_members(
        &self,
        known: &BTreeMap<NodeId, MemberRole>,
        now: &BTreeMap<NodeId, MemberRole>,
        names: &BTreeMap<NodeId, String>,
    ) {
        for event in changes_of_members(known, now) {
            match &event {
                Event::Joined(node) => {
                    tracing::info!(%node, name = self.name_of(*node), "a node has joined the cluster as a learner");
                }
                Event::Promoted(node) => {
                    tracing::info!(%node, name = self.name_of(*node), "a learner has caught up and votes now");
                }
                Event::Removed(node) => {
                    let name = names.get(node).map(String::as_str).unwrap_or_default();
                    tracing::info!(%node, name, "a node was removed from the cluster");
                    self.events.removed(*node, name);
                    continue;
                }
                _ => {}
            }
            self.events.push(event);
        }
    }

    /// Ends the connections of removed members. `leaving` contains the members whose removal this node has not applied
    /// yet; this function updates it.
    fn dismiss_removed(
        &self,
        known: &BTreeMap<NodeId, MemberRole>,
        now: &BTreeMap<NodeId, MemberRole>,
        leaving: &mut BTreeSet<NodeId>,
    ) {
        leaving.extend(known.keys().filter(|node| !now.contains_key(node)));
        leaving.retain(|node| {
            // If the state cannot be read, consensus also ends.
            let is_removed = self.consensus.is_removed(*node).unwrap_or(false);
            if is_removed {
                self.requests.dismiss(*node);
            }
            !is_removed && !now.contains_key(node)
        });
    }

    /// Stops serving once this node was removed. It learns this from an applied log entry or from another member.
    /// Usually another member reports it, because the leader sends no entries to a node that it has removed.
    fn check_own_removal(&self, members: &BTreeMap<NodeId, MemberRole>) {
        if self.was_removed.get() || !(self.network.removal().is_set() || self.has_applied_own_removal()) {
            return;
        }
        self.was_removed.set(true);
        self.network.removal().set();
        tracing::error!(
            "this node was removed from the cluster: it stops serving, and can only join with a new directory"
        );
        self.db.stop_serving_for_graver(REMOVED_REASON);
        // Without the entry of the removal, the membership on this node still contains the node itself.
        if members.contains_key(&self.here()) {
            self.events.removed(self.here(), &self.options.name);
        }
    }

    fn has_applied_own_removal(&self) -> bool {
        self.consensus.is_removed(self.here()).unwrap_or(false)
    }

    /// Logs and records as events which replicas have fallen behind or caught up. Does this only while this node leads,
    /// because only the leader knows the progress of the others.
    fn note_lags(&self, members: &[MemberReport]) {
        if !self.consensus.member().leads() {
            // Otherwise a lag from before would never end here, and would not be reported when this node leads again.
            self.peers.forget_lags();
            return;
        }
        let triggers = &self.options.triggers;
        let stale_after = Duration::from_millis(triggers.stale_after.0);
        let last = members.iter().find(|member| member.node == self.here()).and_then(|member| member.log_index);
        let last = last.unwrap_or(Index::ZERO);
        for member in members.iter().filter(|member| member.node != self.here()) {
            let matched = member.lag.map(|lag| Index(last.0.saturating_sub(lag.entries)));
            let (was, is) = self.peers.update(member.node, |facts| {
                facts.note_progress(last, matched, Instant::now());
                let was = (facts.is_lagging, facts.is_stale);
                // The report is older than the progress that was just recorded.
                let is_stale = facts.behind().is_some_and(|behind| behind > stale_after);
                (facts.is_lagging, facts.is_stale) = (member.is_lagging(triggers), is_stale);
                (was, (facts.is_lagging, facts.is_stale))
            });
            let (node, name) = (member.node, member.name.as_str());
            let Lag { entries, bytes } = member.lag.unwrap_or_default();
            if is.0 && !was.0 {
                tracing::warn!(%node, name, entries, bytes, "a replica lacks many entries");
                self.events.push(Event::Lagging(node));
            }
            if is.1 && !was.1 {
                let behind_ms = member.behind.map(|ElapsedMillis(millis)| millis);
                tracing::warn!(%node, name, behind_ms, entries, "a replica has been behind for a long time");
                self.events.push(Event::Stale(node));
            }
            if (was.0 || was.1) && !is.0 && !is.1 {
                tracing::info!(%node, name, entries, "a replica keeps up again");
                self.events.push(Event::CaughtUp(node));
            }
        }
    }

    /// Makes the log keep the entries that followers still lack, within the configured limits. Counts only followers
    /// from which a sign of life arrived within [`FLOOR_GRACE`].
    fn keep_for_followers(&self, members: &[MemberReport]) {
        let is_recent = |node| self.hearing.state(node).is_some_and(|(_, silent_for)| silent_for <= FLOOR_GRACE);
        let needed = members.iter().filter(|member| member.node != self.here() && is_recent(member.node));
        let floor = needed.filter_map(|member| member.log_index).min();
        self.db.set_follower_floor(floor.map(Index::next));
    }

    fn is_heard(&self, node: NodeId) -> bool {
        self.hearing.state(node).is_some_and(|(state, _)| state != MemberHealth::Down)
    }

    /// Sends a sign of life to every other member at each interval. Asks a member for its description if it may have
    /// changed.
    async fn sign_to_all(self: Rc<Self>) {
        let mut described: BTreeMap<NodeId, Instant> = BTreeMap::new();
        let interval = self.options.detector.interval.min(self.options.consensus.heartbeat);
        while !self.was_removed.get() {
            let own = self.signs.own_facts(number_of(&self.requests.about.borrow()));
            for (node, info) in self.others() {
                let link = self.network.peer(node, &info.address).control;
                spawn_local(Rc::clone(&self).sign(node, link.clone(), own));
                let since = described.get(&node).map_or(Duration::MAX, Instant::elapsed);
                if self.needs_description(node, since, interval) && self.is_heard(node) {
                    described.insert(node, Instant::now());
                    spawn_local(Rc::clone(&self).describe(node, link));
                }
            }
            sleep(interval).await;
        }
    }

    async fn sign(self: Rc<Self>, node: NodeId, link: Link, own: OwnFacts) {
        self.signs.send(node, &link, own, self.options.detector.suspect_after).await;
    }

    /// Returns true if this node must ask another node for its description: the description has changed, or the other
    /// node does not announce changes. `since` is the time since the last such question.
    fn needs_description(&self, node: NodeId, since: Duration, interval: Duration) -> bool {
        self.peers.update(node, |facts| match facts.about_announced {
            Some(number) => facts.about_known != Some(number) && since >= DESCRIBE_EVERY,
            None => since >= DESCRIBE_EVERY.max(4 * interval),
        })
    }

    async fn describe(self: Rc<Self>, node: NodeId, link: Link) {
        let deadline = tokio::time::Instant::now() + ASK_LIMIT;
        // If the description changes while it is in transit, it is requested again.
        let announced = self.peers.update(node, |facts| facts.about_announced);
        if let Ok(about) = link.call::<_, AboutNode, AboutNode>(&Describe {}, deadline).await {
            self.peers.update(node, |facts| (facts.about, facts.about_known) = (about, announced));
        }
    }

    /// Founds the cluster, joins it, or corrects this node's name and address in the membership. Repeats this until the
    /// membership contains both.
    async fn take_part(self: Rc<Self>) {
        let info = self.own_info();
        let (mut failures, mut was_member) = (FailedAttempts::default(), false);
        while !self.was_removed.get() {
            let status = self.consensus.status();
            let own = status.members.get(&self.here());
            if own.is_some_and(|member| is_known_as(&member.info, &info)) {
                if !std::mem::replace(&mut was_member, true) {
                    self.note_former(&status.members);
                }
                failures = FailedAttempts::default();
                sleep(DESCRIBE_EVERY).await;
                continue;
            }
            let is_empty = status.members.is_empty() && self.consensus.history().is_empty();
            let done = if self.options.expect > 0 && is_empty {
                self.found_or_join(&info).await
            } else {
                self.ask_to_join(&info).await
            };
            if let Err(reason) = done
                && failures.note(Instant::now())
            {
                tracing::warn!(%reason, "this node is not a member of the cluster yet, and tries again");
            }
            sleep(CHANGE_EVERY).await;
        }
    }

    /// Asks the leader to add this node, or to change its name and address.
    async fn ask_to_join(&self, info: &NodeInfo) -> Result<(), String> {
        let here = self.here();
        if self.consensus.member().leads() {
            let changed = self.requests.change_members(ManageKind::Join, here, info.clone(), CHANGE_LIMIT).await;
            return changed.map(drop).map_err(|error| error.to_string());
        }
        let mut asked = BTreeSet::new();
        // The first node of a cluster has no option `join`. If it loses the leadership before the other nodes know its
        // address, the new leader cannot reach it. So it must ask the other members itself.
        let mut wanted: Vec<(NodeId, String)> =
            self.others().into_iter().map(|(node, info)| (node, info.address)).collect();
        if let Leadership::Follower { leader: Some((node, leader)), .. } = self.consensus.member().leadership() {
            wanted.push((node, leader.address));
        }
        wanted.extend(self.options.join.iter().map(|address| (UNKNOWN, address.clone())));
        let mut reason = "no address of a member is known (option `join`)".to_owned();
        while let Some((node, address)) = wanted.pop() {
            if address.is_empty() || !asked.insert(address.clone()) || address == self.advertise {
                continue;
            }
            let link = self.network.link_to(node, &address, Channel::Control);
            match send_manage(&link, ManageKind::Join, here, info, CHANGE_LIMIT).await {
                Ok(_) => return Ok(()),
                Err(CallError::Failed { code, leader: Some(leader), .. }) if code == "not_leader" => {
                    wanted.push(leader);
                }
                Err(error) => reason = format!("{address}: {error}"),
            }
        }
        Err(reason)
    }

    /// Founds a cluster together with the other nodes of the option `expect` if all of them are empty. If one of them
    /// has data, joins its cluster. The module `founding` has the rule.
    async fn found_or_join(&self, info: &NodeInfo) -> Result<(), String> {
        let deadline = tokio::time::Instant::now() + ASK_LIMIT;
        let asked = self.options.join.iter().filter(|address| **address != self.advertise).map(|address| async move {
            let link = self.network.link_to(UNKNOWN, address, Channel::Control);
            (address.clone(), ask(&link, deadline).await)
        });
        let answers = join_all(asked).await;
        match decide((self.here(), info.clone()), self.options.expect, answers) {
            Step::Found(members) => self.consensus.found(members).await.map_err(|error| error.to_string()),
            Step::Wait(reason) => Err(reason),
            Step::Join(why) => {
                let joined = self.ask_to_join(info).await;
                joined.map_err(|reason| format!("{why}, so this node founds no cluster; it cannot join now: {reason}"))
            }
        }
    }

    /// Warns if another member in the membership has this node's address: that member's directory was probably lost,
    /// and this node has replaced it. The lost member counts as a voter that is down until an operator removes it.
    fn note_former(&self, members: &BTreeMap<NodeId, MemberStatus>) {
        let has_address =
            |(node, member): &(&NodeId, &MemberStatus)| **node != self.here() && member.info.address == self.advertise;
        for (node, _) in members.iter().filter(has_address) {
            tracing::warn!(
                former = %node,
                address = self.advertise,
                "a former node with the address of this one is still a member, and counts as a voter that is down: remove \
                 it with `thalweg cluster remove {node}`"
            );
        }
    }

    /// Makes learners voters once they have caught up, while this node leads. Also completes a change of the voters
    /// that a failed leader has left half done.
    async fn promote_learners(self: Rc<Self>) {
        loop {
            sleep(CHANGE_EVERY).await;
            if !self.consensus.member().leads() {
                continue;
            }
            if let Err(error) = self.consensus.complete_change().await {
                tracing::debug!(%error, "a change of the voters is not completed yet");
            }
            let status = self.consensus.status();
            let learners = status
                .members
                .iter()
                .filter(|(_, member)| !member.votes && !member.info.stays_learner && member.matched.is_some());
            for (node, _) in learners {
                match self.consensus.promote(*node).await {
                    Ok(()) | Err(ChangeError::Lags { .. } | ChangeError::InProgress) => {}
                    Err(error) => tracing::debug!(%node, %error, "a learner is not promoted yet"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_missed_changes_reports_each_of_them() {
        use MemberRole::{Learner, Voter};
        let members = |of: &[(u64, MemberRole)]| -> BTreeMap<NodeId, MemberRole> {
            of.iter().map(|(node, role)| (NodeId(*node), *role)).collect()
        };
        let known = members(&[(1, Voter), (2, Learner), (3, Voter)]);
        let now = members(&[(1, Voter), (2, Voter), (4, Voter), (5, Learner)]);
        let [two, three, four, five] = [2, 3, 4, 5].map(NodeId);
        let expected = [
            Event::Promoted(two),
            Event::Joined(four),
            Event::Promoted(four),
            Event::Joined(five),
            Event::Removed(three),
        ];
        assert_eq!(changes_of_members(&known, &now), expected);
        assert!(changes_of_members(&now, &now).is_empty());
    }

    /// The first attempts may fail because the other nodes still start, later ones because the token is wrong.
    #[test]
    fn a_node_that_cannot_join_says_why_again_and_again() {
        let (mut failures, start) = (FailedAttempts::default(), Instant::now());
        // One attempt every 300 ms, for three minutes.
        let warned = (1..=600).filter(|number| failures.note(start + CHANGE_EVERY * *number)).collect::<Vec<u32>>();
        assert_eq!(warned, [COMPLAIN_AFTER, COMPLAIN_AFTER + 200, COMPLAIN_AFTER + 400]);
    }

    /// A node that joined as a learner does not know this role. If the role counted, the node would ask to join
    /// forever.
    #[test]
    fn a_member_is_known_by_its_name_and_address_whether_or_not_it_stays_a_learner() {
        let own = NodeInfo { name: "n4".to_owned(), ..NodeInfo::at("n4:1") };
        assert!(is_known_as(&own, &own));
        assert!(is_known_as(&NodeInfo { stays_learner: true, ..own.clone() }, &own));
        assert!(!is_known_as(&NodeInfo { name: "n5".to_owned(), ..own.clone() }, &own));
        assert!(!is_known_as(&NodeInfo { address: "n4:2".to_owned(), ..own.clone() }, &own));
    }
}
