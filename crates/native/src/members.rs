//! The cluster of this node, as native clients see it: its members, its events, and the leader to which clients send
//! their writes.
//!
//! Owns: the replies to requests about the cluster, the beginning of clients' watches of the cluster, and the rejection
//! of a write if its client prefers to send writes to the leader directly. Does not own: the cluster
//! (`thalweg_serving::cluster`), the frames of events (`event_source`), nor the forwarding of writes, which consensus
//! does.

use thalweg_serving::{
    app::App,
    cluster::{Beginning, Cluster, ClusterError, ClusterReport, MemberReport},
    error::ApiError,
};
use thalweg_types::NodeId;
use thalweg_wire::{ClusterMember, Fields, Kind, List, Members, Route, WatchCluster, WatchingCluster};

use super::{
    event_source::EventSource,
    failure::Failure,
    request::Request,
    subscription::Source,
    turn::{Handled, Turn},
};

/// Handles a `read members` request: replies with this node's view of its cluster.
pub(crate) fn read(turn: &mut Turn<'_>, request: &Request<'_>) -> Result<Handled, Failure> {
    let cluster = cluster(turn.app)?;
    let report = cluster.handle.report();
    let members: Vec<_> = report.members.iter().map(member).collect();
    let leader = leader(cluster, &report).map_or(NodeId(0), |leader| leader.node);
    let reply = Members { node: report.node, leader, term: report.term.0, members: List::Items(&members) };
    let cluster = report.cluster.0.to_le_bytes();
    turn.out.reply_with(request.id, &Fields { cluster: Some(&cluster), ..Fields::default() }, &reply)?;
    Ok(Handled::Replied)
}

/// Handles a `watch cluster` request: begins a subscription to the events of the cluster.
pub(crate) fn watch(turn: &mut Turn<'_>, request: &Request<'_>, watch: &WatchCluster) -> Result<Handled, Failure> {
    let handle = &cluster(turn.app)?.handle;
    let Beginning { after, is_known } = handle.events().begin(watch.after, watch.run);
    let reply = WatchingCluster { after, run: handle.events().run(), known: is_known };
    turn.out.reply(request.id, &reply)?;
    Ok(Handled::Began(Source::Events(EventSource::new(handle, after))))
}

fn cluster(app: &App) -> Result<&Cluster, Failure> {
    app.cluster.as_ref().ok_or_else(|| ApiError::from(ClusterError::NotClustered).into())
}

fn member(member: &MemberReport) -> ClusterMember {
    ClusterMember {
        node: member.node,
        role: member.role,
        health: member.health,
        name: member.name.clone(),
        zone: member.zone.clone(),
        address: member.serves.native.clone().unwrap_or_default(),
    }
}

/// Returns the member that leads the cluster, as far as this node knows; `None` if it knows none. If this node has just
/// lost the leadership, its report may still name the node itself. Such a report counts as no leader.
fn leader<'r>(cluster: &Cluster, report: &'r ClusterReport) -> Option<&'r MemberReport> {
    let leads = cluster.handle.leads();
    let leader = if leads { Some(report.node) } else { report.leader.filter(|leader| *leader != report.node) };
    report.members.iter().find(|member| Some(member.node) == leader)
}

/// Rejects a request that proposes a command, if another node leads and the client prefers to send such requests to the
/// leader directly.
pub(crate) fn redirect(app: &App, request: &Request<'_>) -> Result<(), Failure> {
    let Some(cluster) = &app.cluster else { return Ok(()) };
    let proposes = matches!(request.kind, Kind::Write | Kind::WriteAndPublish | Kind::Fetch);
    if !proposes || cluster.handle.leads() {
        return Ok(());
    }
    let report = cluster.handle.report();
    let error = match leader(cluster, &report) {
        Some(leader) => {
            let MemberReport { name, address, .. } = leader;
            ClusterError::NotLeader { leader: Some(format!("{name} at {address}").trim_start().to_owned()) }
        }
        None => ClusterError::NoLeader,
    };
    Err(with_leader(cluster, ApiError::from(error).into()))
}

/// Adds the leader of the cluster to a failure `not_leader`: its id, the term, and its address for native clients.
pub(crate) fn with_leader(cluster: &Cluster, failure: Failure) -> Failure {
    let report = cluster.handle.report();
    let Some(leader) = leader(cluster, &report) else { return failure };
    let failure = failure.with("leader", leader.node.0).with("term", report.term.0);
    match &leader.serves.native {
        Some(address) => failure.with_leader_address(address),
        None => failure,
    }
}

/// Returns true if the client wants to be told the leader's address, instead of having its request forwarded to the
/// leader.
#[inline]
pub(crate) fn wants_redirect(request: &Request<'_>) -> bool {
    request.fields.route == Some(Route::Redirect)
}
