//! JSON of requests and replies of `/v1/cluster`.
//!
//! Owns: the JSON types with their schemas, and the conversion between them and the types of the cluster. Does not own:
//! the handlers (`mod`), the facts (`ClusterReport`), or the stream of events (`events`).

use serde::{Deserialize, Serialize};
use thalweg_serving::{
    cluster::{ClusterReport, DigestComparison, ElapsedMillis, JoinRequest, MemberHealth, MemberReport, Removal},
    error::ApiError,
};
use thalweg_types::{NodeId, limits::MAX_NODE_NAME_BYTES, printable::is_printable};
use utoipa::ToSchema;

/// Maximum length in bytes of a node's address.
const MAX_ADDRESS_BYTES: usize = 255;

/// Returns the id of a node as clients see it: 16 hexadecimal digits.
pub(super) fn id_of(node: NodeId) -> String {
    format!("{:016x}", node.0)
}

/// Parses the id of a node: 16 hexadecimal digits. Returns `None` if `text` is not an id.
pub(super) fn id_in(text: &str) -> Option<NodeId> {
    let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| u64::from_str_radix(text, 16).ok().map(NodeId)).flatten()
}

/// The cluster, as the node that answers knows it.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClusterStatus {
    /// Id of the cluster: 32 hexadecimal digits.
    cluster: String,
    /// Id of the node that answers: 16 hexadecimal digits.
    node: String,
    name: String,
    /// Role of the node that answers: voter or learner. Missing if the node was removed.
    role: Option<&'static str>,
    /// True if the node that answers is the leader.
    leads: bool,
    /// Id of the leader, if the node knows one.
    leader: Option<String>,
    /// Name of the leader, if the node knows one.
    leader_name: Option<String>,
    term: u64,
    /// Index of the last log entry that a majority of the voters has stored, as far as the node knows.
    commit_index: u64,
    /// Index of the last log entry that the node has applied to its state.
    applied_index: u64,
    /// Revision of the node's state, for `Thalweg-Read: at-least`.
    applied_revision: u64,
    voters: usize,
    learners: usize,
    /// True if more than half of the voters are up: only voters that the node knows to be down count as missing.
    majority: bool,
    /// True while a change of the members is not complete.
    changing: bool,
    /// False if the disks of too many voters are full. The leader then rejects new data.
    room: bool,
    /// Time in milliseconds by which the clock of the data lags behind the wall clocks of a majority of the voters.
    /// This clock determines time to live, leases and retention. Missing if the node does not lead.
    time_behind_millis: Option<u64>,
    /// Index of the log entry after which the members compared their states without a decision: this node's state
    /// differs from those of at least half of the members, and no majority has equal states. The node has then stopped
    /// serving. Missing if there was no such comparison.
    undecided_after: Option<u64>,
}

impl ClusterStatus {
    pub(super) fn of(report: &ClusterReport) -> Self {
        let own = report.members.iter().find(|member| member.node == report.node);
        let voters = report.voters().count();
        Self {
            cluster: report.cluster.to_string(),
            node: id_of(report.node),
            name: own.map_or_else(String::new, |own| own.name.clone()),
            role: own.map(|own| own.role.name()),
            leads: report.leader == Some(report.node),
            leader: report.leader.map(id_of),
            leader_name: report.leader.and_then(|leader| report.name_of(leader)).map(str::to_owned),
            term: report.term.0,
            commit_index: report.commit_index.0,
            applied_index: report.applied_index.0,
            applied_revision: report.applied_revision.0,
            voters,
            learners: report.members.len() - voters,
            majority: report.has_majority(),
            changing: report.is_changing,
            room: report.has_room(),
            time_behind_millis: report.time_behind.map(|ElapsedMillis(millis)| millis),
            undecided_after: report.undecided_after.map(|index| index.0),
        }
    }
}

/// A member of the cluster.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterMember)]
pub(crate) struct MemberShown {
    /// Id of the node: 16 hexadecimal digits.
    node: String,
    name: String,
    /// Address at which other nodes reach the member.
    address: String,
    zone: String,
    version: String,
    /// Role of the member: voter or learner.
    role: &'static str,
    leads: bool,
    /// Health as the answering node sees it: alive, suspect or down.
    health: &'static str,
    /// Milliseconds since the answering node last heard from the member; missing if it never did.
    heard_millis: Option<u64>,
    /// True if the member's replica lacks many log entries, or entries with many bytes.
    lagging: bool,
    /// True if the member's replica has been behind the leader for a long time.
    stale: bool,
    /// True if the member's disk is too full for new data.
    full: bool,
    /// Milliseconds by which the member's wall clock is ahead of that of the answering node; missing if the answering
    /// node never heard from the member.
    clock_ahead_millis: Option<i64>,
}

impl MemberShown {
    fn of(report: &ClusterReport, member: &MemberReport) -> Self {
        Self {
            node: id_of(member.node),
            name: member.name.clone(),
            address: member.address.clone(),
            zone: member.zone.clone(),
            version: member.version.clone(),
            role: member.role.name(),
            leads: report.leader == Some(member.node),
            health: member.health.name(),
            heard_millis: member.heard.map(|ElapsedMillis(millis)| millis),
            lagging: member.is_lagging(&report.triggers),
            stale: member.is_stale(&report.triggers),
            full: member.is_full,
            clock_ahead_millis: member.clock_ahead_millis,
        }
    }
}

/// The members of the cluster.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterMembers)]
pub(crate) struct MemberList {
    members: Vec<MemberShown>,
}

impl MemberList {
    pub(super) fn of(report: &ClusterReport) -> Self {
        Self { members: report.members.iter().map(|member| MemberShown::of(report, member)).collect() }
    }
}

/// A node that serves clients.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterNode)]
pub(crate) struct NodeShown {
    node: String,
    name: String,
    zone: String,
    leads: bool,
    health: &'static str,
    /// Address at which the node serves HTTP; missing if it is unknown.
    http: Option<String>,
    /// Address at which the node serves the native protocol; missing if it is unknown or not served.
    native: Option<String>,
    /// Address at which the node serves Redis clients; missing if it is unknown or not served.
    resp: Option<String>,
}

/// The nodes of the cluster, for clients that choose among them.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterNodes)]
pub(crate) struct NodeList {
    nodes: Vec<NodeShown>,
}

impl NodeList {
    pub(super) fn of(report: &ClusterReport) -> Self {
        let shown = |member: &MemberReport| NodeShown {
            node: id_of(member.node),
            name: member.name.clone(),
            zone: member.zone.clone(),
            leads: report.leader == Some(member.node),
            health: member.health.name(),
            http: member.serves.http.clone(),
            native: member.serves.native.clone(),
            resp: member.serves.resp.clone(),
        };
        Self { nodes: report.members.iter().map(shown).collect() }
    }
}

/// A replica of the data on one node, with its progress.
#[derive(Serialize, ToSchema)]
#[schema(as = Replica)]
pub(crate) struct ReplicaShown {
    node: String,
    name: String,
    role: &'static str,
    leads: bool,
    /// Status of the replica: `alive`, `suspect`, `down`, `lagging`, `stale`, or `lagging and stale`. The last three
    /// are shown only for a node that is alive.
    status: &'static str,
    /// Index of the last entry in the log of the replica; missing if it is unknown.
    offset: Option<u64>,
    /// Index of the last log entry that the replica has applied; missing if it is unknown.
    applied_index: Option<u64>,
    /// Number of log entries that the replica has not received yet; missing if it is unknown.
    lag_entries: Option<u64>,
    /// Size in bytes of the log entries that the replica has not received yet; missing if it is unknown.
    lag_bytes: Option<u64>,
    /// Time in milliseconds since the replica was last up to date; missing if it is up to date.
    behind_millis: Option<u64>,
}

/// The replicas of the data, and the thresholds above which a replica is called `lagging` or `stale`.
#[derive(Serialize, ToSchema)]
#[schema(as = Replicas)]
pub(crate) struct ReplicaList {
    commit_index: u64,
    lagging_above_entries: u64,
    lagging_above_bytes: u64,
    stale_after_millis: u64,
    replicas: Vec<ReplicaShown>,
}

impl ReplicaList {
    pub(super) fn of(report: &ClusterReport) -> Self {
        let shown = |member: &MemberReport| ReplicaShown {
            node: id_of(member.node),
            name: member.name.clone(),
            role: member.role.name(),
            leads: report.leader == Some(member.node),
            status: status_of(report, member),
            offset: member.log_index.map(|index| index.0),
            applied_index: member.applied_index.map(|index| index.0),
            lag_entries: member.lag.map(|lag| lag.entries),
            lag_bytes: member.lag.map(|lag| lag.bytes),
            behind_millis: member.behind.map(|ElapsedMillis(millis)| millis),
        };
        Self {
            commit_index: report.commit_index.0,
            lagging_above_entries: report.triggers.lag_entries,
            lagging_above_bytes: report.triggers.lag_bytes,
            stale_after_millis: report.triggers.stale_after.0,
            replicas: report.members.iter().map(shown).collect(),
        }
    }
}

fn status_of(report: &ClusterReport, member: &MemberReport) -> &'static str {
    match (member.health, member.is_lagging(&report.triggers), member.is_stale(&report.triggers)) {
        (MemberHealth::Alive, true, true) => "lagging and stale",
        (MemberHealth::Alive, true, false) => "lagging",
        (MemberHealth::Alive, false, true) => "stale",
        (health, ..) => health.name(),
    }
}

/// Request to add a node.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ClusterJoin)]
pub(crate) struct JsonJoin {
    /// Id of the new node: 16 hexadecimal digits.
    node: String,
    /// Address at which the members reach the new node.
    address: String,
    /// Name of the new node; its id if missing.
    name: Option<String>,
    /// True if the node stays a learner until a request promotes it.
    learner: Option<bool>,
}

impl JsonJoin {
    /// Checks the fields of the request to add a node, and converts them to the cluster's type.
    pub(super) fn request(self) -> Result<JoinRequest, ApiError> {
        let bad = |message: &'static str| ApiError::bad_request("bad_json", message);
        let Self { node, address, name, learner } = self;
        // Id 0 would match any node that answers at the address, even another member.
        let id = id_in(&node).filter(|id| id.0 != 0);
        let id = id.ok_or_else(|| bad("node must be 16 hexadecimal digits, and not 0"))?;
        let name = name.unwrap_or(node);
        if address.len() > MAX_ADDRESS_BYTES {
            return Err(bad("address has 255 bytes at most"));
        }
        if name.len() > MAX_NODE_NAME_BYTES {
            return Err(bad("name has 64 bytes at most"));
        }
        if !name.chars().all(is_printable) {
            return Err(bad("name has no control characters"));
        }
        if !address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
            return Err(bad("address must be HOST:PORT"));
        }
        Ok(JoinRequest { node: id, name, address, stays_learner: learner.unwrap_or(false) })
    }
}

/// Result of a request to join the cluster.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterJoined)]
pub(crate) struct Joined {
    /// Id of the new member.
    pub(super) node: String,
}

/// Result of a request to stop a node.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterStopping)]
pub(crate) struct Stopping {
    /// Id of the node that stops: 16 hexadecimal digits.
    pub(super) node: String,
}

/// Result of a request to make a learner a voter.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterPromoted)]
pub(crate) struct Promoted {
    /// Id of the promoted member: 16 hexadecimal digits.
    pub(super) node: String,
    /// True if the member was a voter before, so that nothing changed.
    pub(super) was_voter: bool,
}

/// Reply to the removal of a node that an earlier request has already removed.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterRemoved)]
pub(crate) struct Removed {
    /// Id of the removed node: 16 hexadecimal digits.
    pub(super) node: String,
    /// Always true: an earlier request has removed the node, so this one changed nothing.
    pub(super) already_removed: bool,
}

/// Request that names a member.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ClusterPromote)]
pub(crate) struct JsonMember {
    /// Id or name of the member.
    pub(super) node: String,
}

/// Request to remove a member.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ClusterRemove)]
pub(crate) struct JsonRemove {
    /// Id or name of the member to remove. A request by which a node leaves the cluster needs none.
    pub(super) node: Option<String>,
    /// True to remove the member even if the remaining voters that are alive are no majority.
    force: Option<bool>,
}

impl JsonRemove {
    pub(super) fn removal(&self) -> Removal {
        if self.force.unwrap_or(false) { Removal::Forced } else { Removal::Safe }
    }
}

/// Request to stop a node.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ClusterShutdown)]
pub(crate) struct JsonShutdown {
    /// Id or name of the node to stop; if missing, the node that answers.
    pub(super) node: Option<String>,
}

/// Request to transfer leadership.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ClusterTransfer)]
pub(crate) struct JsonTransfer {
    /// Id or name of the new leader; if missing, the voter with the least lag.
    pub(super) to: Option<String>,
}

/// Result of a transfer of leadership.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterLeader)]
pub(crate) struct Leading {
    /// Id of the new leader: 16 hexadecimal digits.
    pub(super) leader: String,
    /// Name of the new leader; missing if the node that answers does not know it.
    pub(super) leader_name: Option<String>,
}

/// The token with which nodes join, and the addresses through which they join.
#[derive(Serialize, ToSchema)]
pub(crate) struct JoinToken {
    /// Token with which a node joins. It contains the secret that the nodes share.
    pub(super) token: String,
    /// Addresses of the members, for `--join`.
    pub(super) addresses: Vec<String>,
}

/// Digest of one member's state.
#[derive(Serialize, ToSchema)]
#[schema(as = MemberDigest)]
pub(crate) struct DigestShown {
    node: String,
    name: String,
    /// XXH3-128 hash of all replicated rows, in hexadecimal.
    digest: Option<String>,
    /// Reason why there is no digest of this member's state; missing if there is one.
    missing: Option<String>,
}

/// Digests of the members' states after the same log entry.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterDigest)]
pub(crate) struct DigestsShown {
    index: u64,
    /// True if all members' digests are equal. Members without a digest do not count.
    equal: bool,
    members: Vec<DigestShown>,
}

impl DigestsShown {
    pub(super) fn of(comparison: &DigestComparison, report: &ClusterReport) -> Self {
        let name = |node| report.members.iter().find(|member| member.node == node).map(|member| member.name.clone());
        let members = comparison.members.iter().map(|member| DigestShown {
            node: id_of(member.node),
            name: name(member.node).unwrap_or_default(),
            digest: member.digest.as_ref().ok().cloned(),
            missing: member.digest.as_ref().err().cloned(),
        });
        Self { index: comparison.index.0, equal: comparison.is_equal(), members: members.collect() }
    }
}

/// An event of the cluster.
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterEvent)]
pub(crate) struct EventShown {
    /// Sequence number of the event among the events of the node that answers.
    pub(super) sequence: u64,
    pub(super) unix_micros: u64,
    /// Kind of the event: leader, joined, promoted, removed, alive, suspect, down, lagging, stale, caught_up or
    /// undecided.
    pub(super) event: &'static str,
    /// Node that the event is about; missing if the cluster has lost its leader.
    pub(super) node: Option<String>,
    /// Name of the node, or its former name if it is no longer a member.
    pub(super) name: Option<String>,
    /// Term of a new leader.
    pub(super) term: Option<u64>,
}
