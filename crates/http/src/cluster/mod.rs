//! Handlers of `/v1/cluster`: the members of the cluster, changes of them, and its events.
//!
//! Owns: the handlers, and in its modules the JSON of requests and replies (`json`) and the stream of events
//! (`events`). Does not own: the checks and waits before each request of a cluster's member (`clustered`), and the
//! cluster itself, which the handlers call through [`ClusterHandle`].
//!
//! Invariant: a handler that changes the cluster, or reveals its secret, runs only after `clustered` has checked the
//! token of its request. On a node without a cluster each handler answers with `not_clustered`.

pub(crate) mod events;
mod json;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::StatusCode;
use serde_json::json;
use thalweg_serving::{
    app::App,
    cluster::{Cluster, ClusterError, ClusterHandle, MemberReport},
    error::ApiError,
};

use self::json::{
    ClusterStatus, DigestsShown, JoinToken, Joined, JsonJoin, JsonMember, JsonRemove, JsonShutdown, JsonTransfer,
    Leading, MemberList, NodeList, Promoted, Removed, ReplicaList, Stopping, id_in, id_of,
};
use crate::{
    call::{Answer, Call},
    describe::Timeout,
    json as bytes_json, json_body, reply,
};

/// Default maximum time that a request to change the members waits, for example until a learner has received its first
/// entries.
const CHANGE_WAIT: Duration = Duration::from_secs(20);

/// Pause before a node that leaves the cluster repeats the request for its own removal. The node repeats it when the
/// leader has changed and the node does not know the new leader yet.
const LEADER_PAUSE: Duration = Duration::from_millis(20);

/// Returns the cluster of this node. Returns an error if the node runs alone.
fn cluster(app: &App) -> Result<&Cluster, ApiError> {
    app.cluster.as_ref().ok_or_else(|| ClusterError::NotClustered.into())
}

fn handle(app: &App) -> Result<&Arc<dyn ClusterHandle>, ApiError> {
    Ok(&cluster(app)?.handle)
}

/// Finds the member that a request names by id or name. A name that two members have is an error, because a removal is
/// permanent and must not affect the wrong member. Two members have the same name if a node has lost its directory and
/// has joined again.
fn member(handle: &Arc<dyn ClusterHandle>, named: &str) -> Result<MemberReport, ApiError> {
    let report = handle.report();
    let found: Vec<_> = report.members.iter().filter(|member| member.is_named(named)).collect();
    // Limits the length of the client's text in an error.
    let shown: String = named.chars().take(64).collect();
    match found[..] {
        [member] => Ok(member.clone()),
        [] => Err(ClusterError::NoSuchMember(shown).into()),
        _ => {
            let ids: Vec<_> = found.iter().map(|member| member.node.to_string()).collect();
            let message = format!("several members have the name {shown:?}: use an id, one of {}", ids.join(", "));
            Err(ApiError::bad_request("ambiguous_member", message))
        }
    }
}

/// Reads the JSON body of a request. An empty body is `{}`.
async fn sent<T: serde::de::DeserializeOwned + Send + 'static>(app: &Arc<App>, call: &mut Call) -> Result<T, ApiError> {
    call.no_query()?;
    json_body::optional(app, call).await?.map_or_else(|| bytes_json::parse(b"{}"), Ok)
}

fn deadline(call: &Call) -> Result<Instant, ApiError> {
    Ok(call.deadline(CHANGE_WAIT)?)
}

/// Handles `GET /v1/cluster/status`: returns this node's view of the cluster, such as its role and the leader.
#[utoipa::path(
    get, path = "/v1/cluster/status", responses((status = 200, description = "The cluster.", body = ClusterStatus))
)]
pub(crate) fn status(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    Ok(reply::json_of(StatusCode::OK, &ClusterStatus::of(&handle(app)?.report())))
}

/// Handles `GET /v1/cluster/members`: lists the members with their roles and health.
#[utoipa::path(
    get, path = "/v1/cluster/members", responses((status = 200, description = "The members.", body = MemberList))
)]
pub(crate) fn members(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    Ok(reply::json_of(StatusCode::OK, &MemberList::of(&handle(app)?.report())))
}

/// Handles `GET /v1/cluster/nodes`: lists the addresses at which the nodes serve clients.
#[utoipa::path(
    get, path = "/v1/cluster/nodes", responses((status = 200, description = "The nodes.", body = NodeList))
)]
pub(crate) fn nodes(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    Ok(reply::json_of(StatusCode::OK, &NodeList::of(&handle(app)?.report())))
}

/// Handles `GET /v1/cluster/replicas`: lists the progress of each replica: its position in the log, and its lag.
#[utoipa::path(
    get, path = "/v1/cluster/replicas", responses((status = 200, description = "The replicas.", body = ReplicaList))
)]
pub(crate) fn replicas(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    Ok(reply::json_of(StatusCode::OK, &ReplicaList::of(&handle(app)?.report())))
}

/// Handles `POST /v1/cluster/join`: adds a node as a learner.
#[utoipa::path(
    post, path = "/v1/cluster/join", params(Timeout), request_body = JsonJoin, security(("admin_token" = [])),
    responses((status = 200, description = "The node is a learner.", body = Joined))
)]
pub(crate) async fn join(app: &Arc<App>, call: &mut Call) -> Answer {
    let handle = handle(app)?;
    let request: JsonJoin = sent(app, call).await?;
    let node = handle.join(request.request()?, deadline(call)?).await?;
    Ok(reply::json_of(StatusCode::OK, &Joined { node: id_of(node) }))
}

/// Handles `POST /v1/cluster/leave`: removes this node from the cluster.
#[utoipa::path(
    post, path = "/v1/cluster/leave", params(Timeout), request_body = JsonRemove, security(("admin_token" = [])),
    responses((status = 204, description = "The node is no member any more."))
)]
pub(crate) async fn leave(app: &Arc<App>, call: &mut Call) -> Answer {
    let handle = handle(app)?;
    let request: JsonRemove = sent(app, call).await?;
    let report = handle.report();
    check_own(handle, request.node.as_deref(), "leave out `node`, or use /v1/cluster/remove")?;
    // A sole voter cannot transfer its leadership. Without this check, the error would be that no node took over in
    // time.
    if report.voters().all(|voter| voter.node == report.node) && report.voters().next().is_some() {
        return Err(ClusterError::LastVoter.into());
    }
    let until = deadline(call)?;
    if handle.leads() {
        handle.hand_over(until).await?;
    }
    loop {
        match handle.remove(report.node, request.removal(), until).await {
            // This node does not know the new leader yet.
            Err(ClusterError::NoLeader | ClusterError::NotLeader { .. }) if Instant::now() < until => {
                tokio::time::sleep(LEADER_PAUSE).await;
            }
            // An earlier request, whose answer was lost, has removed the node already.
            Ok(()) | Err(ClusterError::AlreadyRemoved(_)) => return Ok(reply::empty(StatusCode::NO_CONTENT)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Handles `POST /v1/cluster/shutdown`: stops this node's server.
#[utoipa::path(
    post, path = "/v1/cluster/shutdown", request_body = JsonShutdown, security(("admin_token" = [])),
    responses((status = 202, description = "The node stops.", body = Stopping))
)]
pub(crate) async fn shut_down(app: &Arc<App>, call: &mut Call) -> Answer {
    let cluster = cluster(app)?;
    let request: JsonShutdown = sent(app, call).await?;
    check_own(&cluster.handle, request.node.as_deref(), "send the request to that node")?;
    cluster.stop_requested.notify_one();
    Ok(reply::json_of(StatusCode::ACCEPTED, &Stopping { node: id_of(cluster.handle.report().node) }))
}

/// Returns an error if a request names another node than this one. A request may omit the name. The node accepts its
/// own id even after it was removed from the cluster.
fn check_own(handle: &Arc<dyn ClusterHandle>, named: Option<&str>, next: &str) -> Result<(), ApiError> {
    let (own, Some(named)) = (handle.report().node, named) else { return Ok(()) };
    match member(handle, named) {
        _ if id_in(named) == Some(own) => Ok(()),
        Ok(member) if member.node == own => Ok(()),
        Err(error) if error.code == "ambiguous_member" => Err(error),
        _ => {
            let shown: String = named.chars().take(64).collect();
            Err(ApiError::bad_request("other_node", format!("this node is not {shown:?}: {next}")))
        }
    }
}

/// Handles `POST /v1/cluster/promote`: makes a learner a voter. If the member is a voter already, changes nothing, so
/// that a client can repeat the request.
#[utoipa::path(
    post, path = "/v1/cluster/promote", params(Timeout), request_body = JsonMember, security(("admin_token" = [])),
    responses((status = 200, description = "The node is a voter.", body = Promoted))
)]
pub(crate) async fn promote(app: &Arc<App>, call: &mut Call) -> Answer {
    let handle = handle(app)?;
    let request: JsonMember = sent(app, call).await?;
    let member = member(handle, &request.node)?;
    let was_voter = match handle.promote(member.node, deadline(call)?).await {
        Ok(()) => false,
        Err(ClusterError::AlreadyMember(_)) => true,
        Err(error) => return Err(error.into()),
    };
    Ok(reply::json_of(StatusCode::OK, &Promoted { node: id_of(member.node), was_voter }))
}

/// Handles `POST /v1/cluster/remove`: removes a member. If the request has the id of a member that was removed before,
/// it changes nothing, so that a client can repeat it. A name in the request must be that of a present member, because
/// a new node may have the name of a removed one.
#[utoipa::path(
    post, path = "/v1/cluster/remove", params(Timeout), request_body = JsonRemove, security(("admin_token" = [])),
    responses(
        (status = 200, description = "The node was removed before.", body = Removed),
        (status = 204, description = "The node is no member any more."),
    )
)]
pub(crate) async fn remove(app: &Arc<App>, call: &mut Call) -> Answer {
    let handle = handle(app)?;
    let request: JsonRemove = sent(app, call).await?;
    let named = request.node.as_deref().ok_or_else(|| ApiError::bad_request("bad_json", "node is missing"))?;
    let node = match (member(handle, named), id_in(named)) {
        (Ok(member), _) => member.node,
        (Err(error), Some(node)) if error.code == "no_such_member" => node,
        (Err(error), _) => return Err(error),
    };
    match handle.remove(node, request.removal(), deadline(call)?).await {
        Ok(()) => Ok(reply::empty(StatusCode::NO_CONTENT)),
        Err(ClusterError::AlreadyRemoved(_)) => {
            Ok(reply::json_of(StatusCode::OK, &Removed { node: id_of(node), already_removed: true }))
        }
        Err(error) => Err(error.into()),
    }
}

/// Handles `POST /v1/cluster/transfer`: transfers leadership.
#[utoipa::path(
    post, path = "/v1/cluster/transfer", params(Timeout), request_body = JsonTransfer, security(("admin_token" = [])),
    responses((status = 200, description = "The new leader.", body = Leading))
)]
pub(crate) async fn transfer(app: &Arc<App>, call: &mut Call) -> Answer {
    let handle = handle(app)?;
    let request: JsonTransfer = sent(app, call).await?;
    let to = match &request.to {
        Some(named) => Some(member(handle, named)?.node),
        None => None,
    };
    let leader = handle.transfer(to, deadline(call)?).await?;
    let leader_name = handle.report().name_of(leader).map(str::to_owned);
    Ok(reply::json_of(StatusCode::OK, &Leading { leader: id_of(leader), leader_name }))
}

/// Handles `POST /v1/cluster/digest`: compares the states of the members.
#[utoipa::path(
    post, path = "/v1/cluster/digest", params(Timeout),
    responses((status = 200, description = "The digests.", body = DigestsShown))
)]
pub(crate) async fn digest(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let handle = handle(app)?;
    let comparison = handle.digest(deadline(call)?).await?;
    Ok(reply::json_of(StatusCode::OK, &DigestsShown::of(&comparison, &handle.report())))
}

/// Handles `POST /v1/cluster/join-token`: returns the token with which a node joins.
#[utoipa::path(
    post, path = "/v1/cluster/join-token", security(("admin_token" = [])),
    responses((status = 200, description = "The token, which is a secret.", body = JoinToken))
)]
pub(crate) fn join_token(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let cluster = cluster(app)?;
    let report = cluster.handle.report();
    let addresses: Vec<_> = report.members.iter().map(|member| member.address.clone()).collect();
    let token = JoinToken { token: cluster.credentials.join_token(), addresses };
    let mut response = reply::json(StatusCode::OK, &json!(token));
    let headers = response.headers_mut();
    headers.insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    Ok(response)
}
