//! Data of the cluster's answers: its members, their health and lag, and digests.
//!
//! Owns: the types of these answers, the conditions `lagging` and `stale` of a replica, and the comparison of digests.
//! Does not own: the gathering of the facts (`ClusterHandle` and its implementation), or their encoding in a protocol.

pub use thalweg_types::info::{MemberHealth, MemberRole, Removal};
use thalweg_types::{ClusterId, Index, NodeId, Revision, Term, printable::one_line};

/// Distance of a replica's log from that of the leader, in entries and in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Number of log entries that the replica lacks.
    pub entries: u64,
    /// Size in bytes of the entries that the replica lacks, as far as the reporting node's log still has them.
    pub bytes: u64,
}

/// Length of a time in milliseconds: the time since an event on the reporting node, or a limit on such a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ElapsedMillis(pub u64);

/// Thresholds of the conditions `lagging` and `stale`. A replica can meet one, both or none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggers {
    /// A replica with more missing log entries than this is `lagging`.
    pub lag_entries: u64,
    /// A replica with more missing bytes than this is `lagging`.
    pub lag_bytes: u64,
    /// A replica that was not up to date for longer than this is `stale`.
    pub stale_after: ElapsedMillis,
}

/// Addresses at which a node serves clients, as text `HOST:PORT`. An absent address is unknown, or its protocol is off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// Address at which the node serves HTTP.
    pub http: Option<String>,
    /// Address at which the node serves the native protocol.
    pub native: Option<String>,
    /// Address at which the node serves Redis clients.
    pub resp: Option<String>,
}

/// A member of the cluster, as the reporting node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// Id of the node, which is never used again after a removal.
    pub node: NodeId,
    /// Name of the member, for people to read.
    pub name: String,
    /// Address at which other nodes reach the member.
    pub address: String,
    /// Addresses at which clients reach the member.
    pub serves: NodeAddresses,
    /// Zone of the node, such as a rack or a data center; empty if none was given.
    pub zone: String,
    /// Version of the program that the node runs; empty if the reporting node never heard from it.
    pub version: String,
    /// Role of the member in the cluster, such as voter.
    pub role: MemberRole,
    /// Health of the member, such as alive or down, as the reporting node sees it.
    pub health: MemberHealth,
    /// Time since the reporting node last heard from the member; `None` if it never did.
    pub heard: Option<ElapsedMillis>,
    /// Last known index of the member's log; `None` if the reporting node never heard from the member.
    pub log_index: Option<Index>,
    /// Last known index that the member has applied; `None` if it is unknown.
    pub applied_index: Option<Index>,
    /// Distance of the member from the leader, in log entries and bytes; `None` if it is unknown.
    pub lag: Option<Lag>,
    /// Time since the member was last up to date. `None` if it is up to date now, or if this is unknown.
    pub behind: Option<ElapsedMillis>,
    /// True if the member's disk is too full for new data. Deletes are still accepted, and the member writes the log
    /// entries that the leader sends.
    pub is_full: bool,
    /// Milliseconds by which the member's wall clock is ahead of the reporting node's; `None` if the reporting node
    /// never heard from the member.
    pub clock_ahead_millis: Option<i64>,
}

impl MemberReport {
    /// Returns true if the member lacks more log entries or bytes than the thresholds in `triggers` permit.
    #[must_use]
    pub fn is_lagging(&self, triggers: &Triggers) -> bool {
        self.lag.is_some_and(|lag| lag.entries > triggers.lag_entries || lag.bytes > triggers.lag_bytes)
    }

    /// Returns true if the member has not been up to date for longer than the threshold in `triggers` permits.
    #[must_use]
    pub fn is_stale(&self, triggers: &Triggers) -> bool {
        self.behind.is_some_and(|behind| behind > triggers.stale_after)
    }

    /// Returns true if `text` is this member's id in hexadecimal, or its name.
    #[must_use]
    pub fn is_named(&self, text: &str) -> bool {
        self.name == text || u64::from_str_radix(text, 16).is_ok_and(|id| text.len() == 16 && id == self.node.0)
    }
}

/// One node's view of its cluster and of all members, at the time of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterReport {
    /// Id of the cluster to which the reporting node belongs.
    pub cluster: ClusterId,
    /// Id of the reporting node.
    pub node: NodeId,
    /// Leader that the reporting node knows; `None` if it knows none.
    pub leader: Option<NodeId>,
    /// Consensus term that the reporting node is in.
    pub term: Term,
    /// Last index of the replicated log that a majority has, as far as the reporting node knows.
    pub commit_index: Index,
    /// Last index of the replicated log that the reporting node has applied to its state.
    pub applied_index: Index,
    /// Revision of the reporting node's state.
    pub applied_revision: Revision,
    /// True while a change of the cluster's members is not complete.
    pub is_changing: bool,
    /// Time by which the cluster's common clock lags behind the wall clocks of a majority of the voters. Each log entry
    /// carries the time of this clock, and the clock decides when keys expire. Only the leader knows the lag; `None` on
    /// other nodes.
    pub time_behind: Option<ElapsedMillis>,
    /// Index of the log entry after which a comparison of the members' states had no majority for any state, so that
    /// this node cannot know if its own state is correct. The node has then stopped serving. `None` if no comparison
    /// was undecided.
    pub undecided_after: Option<Index>,
    /// Thresholds of the conditions `lagging` and `stale`.
    pub triggers: Triggers,
    /// All members of the cluster, in the order of their ids.
    pub members: Vec<MemberReport>,
}

impl ClusterReport {
    /// Returns the member that has the id or the name `text`. An id is in hexadecimal.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<&MemberReport> {
        self.members.iter().find(|member| member.is_named(text))
    }

    /// Returns the name of a member; `None` if the node is not a member.
    #[must_use]
    pub fn name_of(&self, node: NodeId) -> Option<&str> {
        self.members.iter().find(|member| member.node == node).map(|member| member.name.as_str())
    }

    /// Returns the name of a node for people and metrics. If another member has the same name, the id follows the name.
    /// If the node has no name or is no member, returns the id alone. Escapes characters that are not printable,
    /// because other nodes and earlier versions may have given such names.
    #[must_use]
    pub fn shown_name(&self, node: NodeId) -> String {
        match self.name_of(node) {
            None | Some("") => node.to_string(),
            Some(name) if self.members.iter().any(|other| other.node != node && other.name == name) => {
                format!("{} ({node})", one_line(name.as_bytes()))
            }
            Some(name) => one_line(name.as_bytes()),
        }
    }

    /// Returns the members of the cluster that are voters.
    pub fn voters(&self) -> impl Iterator<Item = &MemberReport> {
        self.members.iter().filter(|member| member.role == MemberRole::Voter)
    }

    /// Returns true if this node knows a leader, and does not count it as down. A follower still knows its last leader
    /// while no majority can elect another one.
    #[must_use]
    pub fn has_leader(&self) -> bool {
        let is_down = |leader| self.members.iter().any(|it| it.node == leader && it.health == MemberHealth::Down);
        self.leader.is_some_and(|leader| !is_down(leader))
    }

    /// Returns true if a majority of the voters is not known to be down.
    #[must_use]
    pub fn has_majority(&self) -> bool {
        let (all, up) =
            (self.voters().count(), self.voters().filter(|voter| voter.health != MemberHealth::Down).count());
        2 * up > all
    }

    /// Returns true if a majority of the voters has disk space for new data. Voters that have not reported count as
    /// having space. While this is false, the leader rejects new data.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let has_room = |voter: &&MemberReport| voter.health != MemberHealth::Down && !voter.is_full;
        2 * self.voters().filter(has_room).count() > self.voters().count() || !self.voters().any(|voter| voter.is_full)
    }
}

/// Bytes that a node has exchanged with another node over one channel between them, since the node started. Counts
/// whole frames with their headers, after compression and before encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTraffic {
    /// The other node, with which the bytes were exchanged.
    pub node: NodeId,
    /// Name of the channel: `appends`, `control`, `snapshots` or `proposals`. Heartbeats and pings use `control`.
    pub channel: &'static str,
    /// Bytes that this node has sent to the other node over the channel.
    pub sent_bytes: u64,
    /// Bytes that this node has received from the other node over the channel.
    pub received_bytes: u64,
}

/// Request to add a node to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// Id of the new node.
    pub node: NodeId,
    /// Name of the new node, for people to read.
    pub name: String,
    /// Address at which the members reach the new node.
    pub address: String,
    /// True if the node stays a learner until an administrator promotes it.
    pub stays_learner: bool,
}

/// Versions of the state machine that one member supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberVersion {
    /// Id of the member whose supported versions of the state machine are reported.
    pub node: NodeId,
    /// Highest version that the member supports, or the reason why it is not known.
    pub known: Result<u16, String>,
}

/// Hash (digest) of one member's state, to be compared with those of the other members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberDigest {
    /// Id of the member whose state was hashed.
    pub node: NodeId,
    /// Hash of all replicated rows in hexadecimal, or the reason why there is none.
    pub digest: Result<String, String>,
}

/// Digests of the members' states at one index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestComparison {
    /// Index of the log entry after which the members computed their digests.
    pub index: Index,
    /// Digests of the members' states, one for each member.
    pub members: Vec<MemberDigest>,
}

impl DigestComparison {
    /// Returns true if all members with a digest have the same one. Members without a digest are ignored.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        let mut digests = self.members.iter().filter_map(|member| member.digest.as_ref().ok());
        let first = digests.next();
        digests.all(|digest| Some(digest) == first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u64, health: MemberHealth) -> MemberReport {
        MemberReport {
            node: NodeId(node),
            name: format!("n{node}"),
            address: String::new(),
            serves: NodeAddresses::default(),
            zone: String::new(),
            version: String::new(),
            role: MemberRole::Voter,
            health,
            heard: None,
            log_index: None,
            applied_index: None,
            lag: None,
            behind: None,
            is_full: false,
            clock_ahead_millis: None,
        }
    }

    const TRIGGERS: Triggers = Triggers { lag_entries: 10, lag_bytes: 100, stale_after: ElapsedMillis(1000) };

    #[test]
    fn lagging_and_stale_are_two_conditions() {
        let with = |lag, behind| MemberReport { lag, behind, ..member(1, MemberHealth::Alive) };
        let conditions = |member: MemberReport| (member.is_lagging(&TRIGGERS), member.is_stale(&TRIGGERS));
        assert_eq!(conditions(with(None, None)), (false, false));
        assert_eq!(conditions(with(Some(Lag { entries: 11, bytes: 1 }), Some(ElapsedMillis(10)))), (true, false));
        assert_eq!(conditions(with(Some(Lag { entries: 1, bytes: 101 }), None)), (true, false));
        // A replica that stopped while few entries were written.
        assert_eq!(conditions(with(Some(Lag { entries: 1, bytes: 1 }), Some(ElapsedMillis(1001)))), (false, true));
    }

    #[test]
    fn members_are_named_by_id_or_name() {
        let member = member(0x2a, MemberHealth::Alive);
        assert!(member.is_named("n42") && member.is_named("000000000000002a"));
        assert!(!member.is_named("2a") && !member.is_named("") && !member.is_named("n4"));
    }

    fn report(healths: &[MemberHealth]) -> ClusterReport {
        ClusterReport {
            cluster: ClusterId(1),
            node: NodeId(1),
            leader: None,
            term: Term(1),
            commit_index: Index(0),
            applied_index: Index(0),
            applied_revision: Revision(0),
            is_changing: false,
            time_behind: None,
            undecided_after: None,
            triggers: TRIGGERS,
            members: healths.iter().zip(1..).map(|(health, node)| member(node, *health)).collect(),
        }
    }

    #[test]
    fn shown_names_do_not_act_on_a_terminal() {
        let mut report = report(&[MemberHealth::Alive; 4]);
        for (member, name) in report.members.iter_mut().zip(["1n\u{202e}", "a\nb", "a\nb", ""]) {
            member.name = name.to_owned();
        }
        let shown = |node| report.shown_name(NodeId(node));
        assert_eq!(shown(1), "1n\\u{202e}");
        assert_eq!(shown(2), format!("a\\nb ({})", NodeId(2)));
        assert_eq!(shown(3), format!("a\\nb ({})", NodeId(3)));
        assert_eq!(shown(4), NodeId(4).to_string());
    }

    #[test]
    fn a_majority_counts_voters_that_are_not_down() {
        use MemberHealth::{Alive, Down, Suspect};
        assert!(report(&[Alive, Suspect, Down]).has_majority());
        assert!(!report(&[Alive, Down, Down]).has_majority());
        assert!(!report(&[Alive, Down]).has_majority(), "half is no majority");
        let led = |leader| ClusterReport { leader: Some(NodeId(leader)), ..report(&[Alive, Suspect, Down]) };
        assert!(led(1).has_leader() && led(2).has_leader() && !led(3).has_leader());
        assert!(!report(&[Alive]).has_leader());
        let full = |healths: &[MemberHealth], full: &[usize]| {
            let mut report = report(healths);
            full.iter().for_each(|at| report.members[*at].is_full = true);
            report
        };
        assert!(full(&[Alive, Alive, Alive], &[1]).has_room());
        assert!(!full(&[Alive, Alive, Alive], &[1, 2]).has_room());
        assert!(!full(&[Alive, Alive, Down], &[1]).has_room(), "one is full, one is down");
        assert!(full(&[Alive, Down, Down], &[]).has_room(), "no disk is known to be full");
    }
}
