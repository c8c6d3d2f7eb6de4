//! The logs of all nodes as they are written, including entries that are not committed.
//!
//! Owns: the invariants of the logs, checked at each step of each node. Does not own: the observation of the steps
//! (`witness`), or the check of applied entries (`truth`).
//!
//! | step | invariant |
//! |---|---|
//! | append | the entry follows the last one; terms and times never decrease; the term is not beyond the node's vote |
//! | append | log matching: an entry with the same term and index has the same content, and follows an entry of the same term, in all logs |
//! | append of a leader | since its first entry in the term, the cluster clock (space time) has passed no faster than true time |
//! | vote | the vote never goes back, and within a term it moves to another node only once, from a candidate to the leader |
//! | vote of a quorum | a term has one leader, whose log has all entries that were committed in earlier terms |
//! | truncation | no entry that is known to be committed is removed |
//! | restart | the vote and the entries that the log had confirmed are there |
//! | apply | the entry is in the node's log; when the first node applies it, a majority of the voters has confirmed it |
//!
//! These are the properties of D. Ongaro and J. Ousterhout, "In Search of an Understandable Consensus Algorithm",
//! USENIX ATC 2014, figure 3, and the durability on which they rest.
//!
//! An entry counts as committed when a node has applied it. So the entry was committed in the term of this node's vote
//! at that time, or in an earlier term.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::EntryPayload;
use thalweg_raft::{RaftEntry, log_id, record_of};
use thalweg_replica::Vote;
use thalweg_state::membership::LogId;
use thalweg_types::{Index, NodeId, SpaceTime, Term};

use crate::{
    runtime::{ProcessId, now},
    truth::Truth,
};

/// Maximum time by which the cluster's clock (space time) may advance more than true time under one leader.
const PACE_SLACK: Duration = Duration::from_millis(100);

/// Contents of a node's log at the moment at which the node opens it.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Last vote that the log of the node contains.
    pub vote: Option<Vote>,
    /// Last entry that the node has purged from its log; `None` if it has purged none.
    pub purged: Option<LogId>,
    /// Last entry of each term, in order. The last element is the last entry of the log.
    pub term_ends: Vec<LogId>,
}

/// Result of a check of a log. The error is the description of a violation.
type Checked = Result<(), String>;

/// An entry of a node's log.
#[derive(Clone, Copy, Debug)]
struct Entry {
    term: Term,
    /// Time of the log entry by the members' common clock (space time). An entry without a time gets the time of the
    /// last entry before it that has one.
    time: SpaceTime,
}

/// Observed log of one node.
#[derive(Debug, Default)]
struct NodeLog {
    /// Last vote that the log has confirmed to be on disk.
    vote: Option<Vote>,
    purged: Option<LogId>,
    /// Entries of the log, by index. Entries up to the last purged one are missing.
    entries: BTreeMap<Index, Entry>,
    /// Last entry that the log has confirmed to be on disk, together with all entries before it; `None` if it has
    /// confirmed none.
    durable: Option<Index>,
}

impl NodeLog {
    fn id(&self, index: Index) -> Option<LogId> {
        Some(LogId { term: self.entries.get(&index)?.term, index })
    }

    fn last(&self) -> Option<LogId> {
        let last = self.entries.last_key_value().map(|(index, entry)| LogId { term: entry.term, index: *index });
        last.or(self.purged)
    }

    /// Returns true if the node's log has the entry `id`, or has purged all entries up to this index.
    fn contains(&self, id: LogId) -> bool {
        self.purged.is_some_and(|purged| purged.index >= id.index) || self.id(id.index) == Some(id)
    }

    /// Returns true if the log has confirmed that the entry `id` is on disk.
    fn has_confirmed(&self, id: LogId) -> bool {
        let purged = self.purged.map(|purged| purged.index);
        self.contains(id) && self.durable.max(purged) >= Some(id.index)
    }
}

/// Content of a log entry, as first written under its term and index.
#[derive(Clone, Copy, Debug)]
struct Content {
    hash: u64,
    /// Term of the entry before this one in the log; `None` if the log did not have that entry.
    previous: Option<Term>,
    time: SpaceTime,
}

/// A log entry that is known to be committed, because a node has applied it.
#[derive(Clone, Copy, Debug)]
struct Committed {
    term: Term,
    /// Term of the vote that the first node to apply the log entry held at that time. The entry was committed in this
    /// term or an earlier one.
    seen_in: Term,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: BTreeMap<ProcessId, NodeLog>,
    written: BTreeMap<LogId, Content>,
    /// Node that leads each term.
    leaders: BTreeMap<Term, NodeId>,
    /// Virtual time at which each node voted for itself, by term and node. If the node becomes the leader of the term,
    /// all times that it puts into log entries are later.
    stood: BTreeMap<(Term, ProcessId), Duration>,
    /// Time of the first log entry of each term that has a time, by the members' common clock (space time).
    first_times: BTreeMap<Term, SpaceTime>,
    committed: BTreeMap<Index, Committed>,
    /// Sets of voters of each membership that a leader has written, by the index and term of its entry. Memberships
    /// before the last committed one are dropped.
    memberships: BTreeMap<(Index, Term), Vec<BTreeSet<u64>>>,
}

/// Observed contents of the logs of all nodes of a cluster. Clones refer to the same contents.
#[derive(Clone, Debug)]
pub struct Logs {
    inner: Arc<Mutex<Inner>>,
    truth: Truth,
}

/// Returns true if a node may have the vote `next` after `vote`. A node that has voted for one candidate may follow
/// another one of the same term after a majority has elected it: the new vote is marked as committed then.
fn follows(vote: Vote, next: Vote) -> bool {
    let stays = next.node == vote.node && next.committed >= vote.committed;
    let finds_leader = next.committed && !vote.committed;
    next.term > vote.term || next.term == vote.term && (stays || finds_leader)
}

impl Inner {
    fn node(&mut self, node: ProcessId) -> &mut NodeLog {
        self.nodes.entry(node).or_default()
    }

    fn opened(&mut self, node: ProcessId, found: &Opened, is_damaged: bool) -> Checked {
        let mut entries = BTreeMap::new();
        let mut next = found.purged.map_or(Index::ZERO, |purged| purged.index.next());
        for end in &found.term_ends {
            while next <= end.index {
                let id = LogId { term: end.term, index: next };
                let time = self.written.get(&id).map(|content| content.time).unwrap_or_default();
                entries.insert(next, Entry { term: end.term, time });
                next = next.next();
            }
        }
        let durable = entries.last_key_value().map(|(index, _)| *index);
        let now = NodeLog { vote: found.vote, purged: found.purged, entries, durable };
        let before = std::mem::replace(self.node(node), now);
        if is_damaged {
            return Ok(());
        }
        if let Some(vote) = before.vote
            && !found.vote.is_some_and(|found| follows(vote, found))
        {
            return Err(format!("the log had confirmed {vote:?}, and has {:?} after a restart", found.vote));
        }
        let confirmed = before.durable.and_then(|index| before.id(index));
        match confirmed.filter(|id| !self.node(node).contains(*id)) {
            Some(id) => Err(format!("the log had confirmed entry {} of term {}, which is gone", id.index, id.term)),
            None => Ok(()),
        }
    }

    fn voted(&mut self, node: ProcessId, vote: Vote) -> Checked {
        let before = self.node(node).vote.replace(vote);
        if let Some(before) = before.filter(|before| !follows(*before, vote)) {
            return Err(format!("a vote goes back from {before:?} to {vote:?}"));
        }
        if !vote.committed {
            return Ok(());
        }
        let leader = *self.leaders.entry(vote.term).or_insert(vote.node);
        if leader != vote.node {
            return Err(format!("nodes {leader} and {} lead in term {}", vote.node, vote.term));
        }
        let is_elected = vote.node == NodeId(node) && before != Some(vote);
        if is_elected { self.check_complete(node, vote.term) } else { Ok(()) }
    }

    /// Checks that a new leader has all entries that were committed in earlier terms. Checking the last of them
    /// suffices, because two logs with the same entry are equal before it.
    fn check_complete(&self, node: ProcessId, term: Term) -> Checked {
        let earlier = self.committed.iter().rev().find(|(_, committed)| committed.seen_in < term);
        let Some((index, committed)) = earlier else { return Ok(()) };
        let id = LogId { term: committed.term, index: *index };
        if self.nodes.get(&node).is_some_and(|log| log.contains(id)) {
            return Ok(());
        }
        Err(format!("the leader of term {term} lacks entry {index} of term {}, which is committed", committed.term))
    }

    fn appended(&mut self, node: ProcessId, entry: &RaftEntry) -> Checked {
        let id = log_id(&entry.log_id);
        let (kind, payload) = record_of(entry).map_err(|error| error.to_string())?;
        let time = match &entry.payload {
            EntryPayload::Normal(commands) => Some(commands.time),
            EntryPayload::Membership(membership) => {
                self.memberships.insert((id.index, id.term), membership.get_joint_config().clone());
                None
            }
            EntryPayload::Blank => None,
        };
        let mut hasher = DefaultHasher::new();
        (std::mem::discriminant(&kind), &payload, time.map(|time| time.0)).hash(&mut hasher);
        let log = self.node(node);
        let (last, vote) = (log.last(), log.vote.map_or(Term::ZERO, |vote| vote.term));
        let before = last.and_then(|last| log.entries.get(&last.index)).map(|entry| entry.time).unwrap_or_default();
        let reached = time.unwrap_or(before);
        log.entries.insert(id.index, Entry { term: id.term, time: reached });
        let previous = last.filter(|last| last.index.next() == id.index).map(|last| last.term);
        let content = Content { hash: hasher.finish(), previous, time: reached };
        let first = *self.written.entry(id).or_insert(content);
        let name = format!("entry {} of term {}", id.index, id.term);
        if last.is_some() && previous.is_none() {
            return Err(format!("{name} follows entry {last:?}"));
        }
        if previous > Some(id.term) || vote < id.term {
            return Err(format!("{name} follows one of term {previous:?}, and the vote is of term {vote}"));
        }
        if reached < before {
            return Err(format!("{name} has time {reached}, and the one before it {before}"));
        }
        let is_other_previous = first.previous.zip(previous).is_some_and(|(first, here)| first != here);
        if first.hash != content.hash || is_other_previous {
            return Err(format!("{name} differs from the one that another node has written"));
        }
        Ok(())
    }

    fn stands(&mut self, node: ProcessId, vote: Vote, now: Duration) {
        if vote.node == NodeId(node) {
            self.stood.entry((vote.term, node)).or_insert(now);
        }
    }

    /// Checks the time of a log entry (its space time, by the members' common clock) that a leader has written at the
    /// virtual time `now`. Since the leader's first entry, this clock must not advance faster than true time. A jump
    /// would end leases early that the leader has granted.
    fn check_pace(&mut self, node: ProcessId, entry: &RaftEntry, now: Duration) -> Checked {
        let (id, EntryPayload::Normal(commands)) = (log_id(&entry.log_id), &entry.payload) else { return Ok(()) };
        let Some(stood_at) = self.stood.get(&(id.term, node)) else { return Ok(()) };
        if self.leaders.get(&id.term) != Some(&NodeId(node)) {
            return Ok(());
        }
        let first = *self.first_times.entry(id.term).or_insert(commands.time);
        let passed = Duration::from_micros(commands.time.0.saturating_sub(first.0));
        let most = now.saturating_sub(*stood_at) + PACE_SLACK;
        if passed > most {
            return Err(format!("space time has passed by {passed:?} since the first entry of term {}", id.term));
        }
        Ok(())
    }

    fn truncated(&mut self, node: ProcessId, last: Option<LogId>) -> Checked {
        let from = last.map_or(Index::ZERO, |last| last.index.next());
        let log = self.node(node);
        let removed = log.entries.split_off(&from);
        log.durable = log.durable.zip(last).map(|(durable, last)| durable.min(last.index));
        let is_committed = |(index, entry): &(&Index, &Entry)| {
            self.committed.get(*index).is_some_and(|committed| committed.term == entry.term)
        };
        match removed.iter().find(is_committed) {
            Some((index, entry)) => Err(format!("committed entry {index} of term {} is truncated", entry.term)),
            None => Ok(()),
        }
    }

    fn purged(&mut self, node: ProcessId, upto: LogId) {
        let log = self.node(node);
        log.entries = log.entries.split_off(&upto.index.next());
        log.purged = log.purged.max(Some(upto));
    }

    fn confirmed(&mut self, node: ProcessId, id: LogId) {
        let log = self.node(node);
        // The confirmed entry may have been truncated since it was written.
        if log.id(id.index) == Some(id) {
            log.durable = log.durable.max(Some(id.index));
        }
    }

    fn applied(&mut self, node: ProcessId, id: LogId) -> Checked {
        let log = self.node(node);
        let (is_here, vote) = (log.contains(id), log.vote);
        if !is_here {
            return Err(format!("entry {} of term {} is applied, and is not in the log", id.index, id.term));
        }
        if self.committed.contains_key(&id.index) {
            return Ok(());
        }
        let seen_in = vote.map_or(id.term, |vote| vote.term);
        self.committed.insert(id.index, Committed { term: id.term, seen_in });
        // A membership that was truncated in all logs has no effect on majorities.
        let is_in_a_log = |of: LogId| self.nodes.values().any(|log| log.contains(of));
        let memberships =
            self.memberships.iter().filter(|((index, term), _)| is_in_a_log(LogId { term: *term, index: *index }));
        let decided = memberships.map(|(_, sets)| sets.iter().all(|voters| self.has_majority(voters, id)));
        let is_refuted = decided.reduce(|one, other| one || other) == Some(false);
        self.forget_memberships(node, id.index);
        if is_refuted {
            let confirmed = self.nodes.iter().filter(|(_, log)| log.has_confirmed(id)).map(|(node, _)| node);
            let confirmed: Vec<_> = confirmed.collect();
            return Err(format!("entry {} is committed, and only nodes {confirmed:?} have confirmed it", id.index));
        }
        Ok(())
    }

    fn has_majority(&self, voters: &BTreeSet<u64>, id: LogId) -> bool {
        let confirmed = voters.iter().filter(|voter| self.nodes.get(*voter).is_some_and(|log| log.has_confirmed(id)));
        2 * confirmed.count() > voters.len()
    }

    /// Drops the memberships that a node's log has before its last membership up to the committed entry `committed`.
    /// All later leaders have that last membership.
    fn forget_memberships(&mut self, node: ProcessId, committed: Index) {
        let log = &self.nodes[&node];
        let is_here = |(index, term): &&(Index, Term)| log.id(*index) == Some(LogId { term: *term, index: *index });
        let last = self.memberships.range(..=(committed, Term(u64::MAX))).map(|(id, _)| id).rev().find(is_here);
        if let Some(last) = last.copied() {
            self.memberships = self.memberships.split_off(&(last.0, Term::ZERO));
        }
    }
}

impl Logs {
    /// Creates the record of the logs of a cluster, still without any log. Violations are reported to `truth`.
    #[must_use]
    pub fn new(truth: Truth) -> Self {
        Self { inner: Arc::default(), truth }
    }

    fn check(&self, node: ProcessId, step: impl FnOnce(&mut Inner) -> Checked) {
        let checked = step(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner));
        if let Err(text) = checked {
            self.truth.violation(node, text);
        }
    }

    /// Reports that a node has opened its log and has found the contents `found`. A log that may be damaged, or was
    /// repaired, is not compared with earlier reports.
    pub fn opened(&self, node: ProcessId, found: &Opened, is_damaged: bool) {
        self.check(node, |inner| inner.opened(node, found, is_damaged));
    }

    /// Reports that the log of a node has confirmed a vote.
    pub fn voted(&self, node: ProcessId, vote: Vote) {
        self.check(node, |inner| {
            inner.stands(node, vote, now());
            inner.voted(node, vote)
        });
    }

    /// Reports that a node begins to write entries to its log.
    pub fn appended(&self, node: ProcessId, entries: &[RaftEntry]) {
        for entry in entries {
            self.check(node, |inner| inner.appended(node, entry));
            self.check(node, |inner| inner.check_pace(node, entry, now()));
        }
    }

    /// Reports that the log of a node has confirmed an entry, and so all entries before it.
    pub fn confirmed(&self, node: ProcessId, id: LogId) {
        self.check(node, |inner| {
            inner.confirmed(node, id);
            Ok(())
        });
    }

    /// Reports that a node removes the log entries after the entry `last`.
    pub fn truncated(&self, node: ProcessId, last: Option<LogId>) {
        self.check(node, |inner| inner.truncated(node, last));
    }

    /// Reports that a node has purged its log entries up to the entry `upto`, inclusive.
    pub fn purged(&self, node: ProcessId, upto: LogId) {
        self.check(node, |inner| {
            inner.purged(node, upto);
            Ok(())
        });
    }

    /// Reports that a node has applied a log entry.
    pub fn applied(&self, node: ProcessId, id: LogId) {
        self.check(node, |inner| inner.applied(node, id));
    }
}

#[cfg(test)]
mod tests {
    use thalweg_raft::{Commands, RaftMembership, raft_log_id};
    use thalweg_replica::NodeInfo;

    use super::*;

    fn id(term: u64, index: u64) -> LogId {
        LogId { term: Term(term), index: Index(index) }
    }

    fn vote_of(term: u64, node: u64, committed: bool) -> Vote {
        Vote { term: Term(term), node: NodeId(node), committed }
    }

    fn entry(id: LogId, byte: u8, time: u64) -> RaftEntry {
        let payload = EntryPayload::Normal(Commands { time: SpaceTime(time), bytes: vec![byte].into() });
        RaftEntry { log_id: raft_log_id(id), payload }
    }

    impl Inner {
        /// Writes a log entry whose content is derived from its id.
        fn write(&mut self, node: ProcessId, id: LogId) -> Checked {
            self.appended(node, &entry(id, id.term.0 as u8, id.index.0))
        }
    }

    /// Three voters that have voted for node 1 in term 1, each with log entries 0 to 3, of which 1 to 3 are confirmed.
    fn three_voters() -> Inner {
        let mut inner = Inner::default();
        let voters = BTreeSet::from([1, 2, 3]);
        let members: BTreeMap<u64, NodeInfo> = voters.iter().map(|node| (*node, NodeInfo::default())).collect();
        let membership = RaftMembership::new(vec![voters], members).expect("a membership");
        for node in 1..=3 {
            inner.voted(node, vote_of(1, 1, true)).expect("a vote");
            let payload = EntryPayload::Membership(membership.clone());
            inner.appended(node, &RaftEntry { log_id: raft_log_id(id(0, 0)), payload }).expect("a membership");
            for index in 1..=3 {
                inner.write(node, id(1, index)).expect("an entry");
            }
            inner.confirmed(node, id(1, 3));
        }
        inner
    }

    fn opened(vote: Vote, last: LogId) -> Opened {
        Opened { vote: Some(vote), purged: None, term_ends: vec![id(0, 0), last] }
    }

    #[test]
    fn entries_follow_each_other_and_are_the_same_in_all_logs() {
        let mut inner = three_voters();
        assert!(inner.write(1, id(1, 5)).is_err(), "a gap");
        let mut inner = three_voters();
        assert!(inner.write(1, id(2, 4)).is_err(), "beyond the vote");
        inner.voted(1, vote_of(2, 1, true)).unwrap();
        inner.voted(2, vote_of(2, 1, true)).unwrap();
        inner.write(1, id(2, 5)).unwrap();
        assert!(inner.write(1, id(1, 6)).is_err(), "an earlier term");
        let mut inner = three_voters();
        inner.write(1, id(1, 4)).unwrap();
        assert!(inner.appended(2, &entry(id(1, 4), 9, 4)).is_err(), "another content");
        assert!(inner.appended(1, &entry(id(1, 5), 1, 3)).is_err(), "an earlier time");
        let mut inner = three_voters();
        inner.voted(1, vote_of(3, 1, true)).unwrap();
        inner.voted(2, vote_of(3, 1, true)).unwrap();
        inner.write(1, id(1, 4)).unwrap();
        inner.write(2, id(3, 4)).unwrap();
        inner.write(1, id(3, 5)).unwrap();
        assert!(inner.write(2, id(3, 5)).is_err(), "it follows another entry");
    }

    #[test]
    fn space_time_passes_no_faster_than_true_time_after_the_first_entry_of_a_leader() {
        let seconds = Duration::from_secs;
        let at = |index: u64, time: u64| entry(id(2, index), 1, time * 1_000_000);
        let mut inner = three_voters();
        inner.stands(1, vote_of(2, 1, false), seconds(10));
        inner.stands(2, vote_of(2, 1, false), seconds(10));
        inner.voted(1, vote_of(2, 1, true)).expect("a vote");
        inner.check_pace(1, &at(4, 500), seconds(11)).expect("the first entry");
        inner.check_pace(1, &at(5, 501), seconds(12)).expect("a second later");
        // Only leaders are checked, because followers receive entries later.
        inner.check_pace(2, &at(5, 501), seconds(10)).expect("no leader");
        assert!(inner.check_pace(1, &at(6, 505), seconds(13)).is_err(), "five seconds in one");
        inner.stands(1, vote_of(3, 1, false), seconds(14));
        inner.voted(1, vote_of(3, 1, true)).expect("a vote");
        inner.check_pace(1, &entry(id(3, 6), 1, 900_000_000), seconds(15)).expect("another leadership");
    }

    #[test]
    fn a_vote_stays_and_a_term_has_one_leader() {
        let mut inner = three_voters();
        assert!(inner.voted(2, vote_of(1, 2, false)).is_err(), "two votes in a term");
        let mut inner = three_voters();
        inner.voted(2, vote_of(2, 3, false)).unwrap();
        assert!(inner.voted(2, vote_of(1, 1, true)).is_err(), "it goes back");
        let mut inner = three_voters();
        inner.voted(2, vote_of(2, 2, true)).unwrap();
        assert!(inner.voted(3, vote_of(2, 3, true)).is_err(), "two leaders");
        let mut inner = three_voters();
        inner.voted(2, vote_of(2, 2, false)).unwrap();
        inner.voted(2, vote_of(2, 3, true)).unwrap();
        assert!(inner.voted(2, vote_of(2, 2, false)).is_err(), "it has found the leader");
    }

    #[test]
    fn what_a_log_has_confirmed_survives_a_restart() {
        let mut inner = three_voters();
        let vote = vote_of(1, 1, true);
        inner.write(1, id(1, 4)).unwrap();
        inner.opened(1, &opened(vote, id(1, 3)), false).unwrap();
        assert!(inner.opened(1, &opened(vote, id(1, 2)), false).is_err(), "an entry is gone");
        let mut inner = three_voters();
        assert!(inner.opened(1, &opened(vote_of(1, 1, false), id(1, 3)), false).is_err(), "the vote is older");
        let mut inner = three_voters();
        inner.opened(1, &opened(vote_of(0, 1, false), id(1, 1)), true).unwrap();
        // Entries that were truncated may be missing after a restart.
        let mut inner = three_voters();
        inner.truncated(1, Some(id(1, 1))).unwrap();
        inner.opened(1, &opened(vote, id(1, 1)), false).unwrap();
    }

    #[test]
    fn a_committed_entry_is_on_a_majority_and_is_never_truncated() {
        let mut inner = three_voters();
        for node in 1..=3 {
            inner.write(node, id(1, 4)).unwrap();
        }
        inner.confirmed(1, id(1, 4));
        assert!(inner.applied(1, id(1, 4)).is_err(), "one of three");
        let mut inner = three_voters();
        inner.applied(1, id(1, 3)).unwrap();
        assert!(inner.applied(1, id(1, 5)).is_err(), "it is not in the log");
        inner.truncated(2, Some(id(1, 3))).unwrap();
        assert!(inner.truncated(2, Some(id(1, 2))).is_err());
        // The truncated membership would make one node a majority, so it must not count.
        let mut inner = three_voters();
        let alone = RaftMembership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, NodeInfo::default())]));
        let payload = EntryPayload::Membership(alone.expect("a membership"));
        inner.appended(1, &RaftEntry { log_id: raft_log_id(id(1, 4)), payload }).unwrap();
        inner.truncated(1, Some(id(1, 3))).unwrap();
        inner.voted(1, vote_of(2, 1, true)).unwrap();
        inner.write(1, id(2, 4)).unwrap();
        inner.confirmed(1, id(2, 4));
        assert!(inner.applied(1, id(2, 4)).is_err());
        // A learner does not count towards a majority.
        let mut inner = three_voters();
        for node in [1, 4] {
            inner.voted(node, vote_of(1, 1, true)).unwrap();
            inner.nodes.entry(node).or_default().purged = Some(id(1, 3));
            inner.write(node, id(1, 4)).unwrap();
            inner.confirmed(node, id(1, 4));
        }
        assert!(inner.applied(1, id(1, 4)).is_err());
    }

    #[test]
    fn a_leader_has_all_entries_that_were_committed_in_earlier_terms() {
        let mut inner = three_voters();
        inner.applied(1, id(1, 3)).unwrap();
        inner.truncated(3, Some(id(1, 2))).unwrap_err();
        assert!(inner.voted(3, vote_of(2, 3, true)).is_err(), "it lacks entry 3");
        inner.voted(2, vote_of(3, 2, true)).unwrap();
        // The leader of an earlier term may lack the entry, because another leader can commit it in the meantime.
        let mut inner = three_voters();
        inner.voted(1, vote_of(5, 1, true)).unwrap();
        inner.applied(1, id(1, 3)).unwrap();
        inner.purged(3, id(1, 0));
        inner.nodes.get_mut(&3).expect("a node").entries.clear();
        inner.voted(3, vote_of(4, 3, true)).unwrap();
    }
}
