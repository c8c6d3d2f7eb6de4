//! Handlers for the database state as a whole: digests, by which the states of replicas are compared, and the version
//! of the state machine.

use std::{sync::Arc, time::Instant};

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thalweg_engine::{Database, DigestReport};
use thalweg_serving::{
    app::App,
    cluster::{Cluster, ClusterError, MemberVersion},
    error::ApiError,
    limits::DEFAULT_WAIT,
};
use thalweg_types::Action;
use tokio::sync::{Semaphore, oneshot};
use utoipa::ToSchema;

use crate::{
    call::{Answer, Call},
    describe::Level,
    json_body, reply,
};

/// Handles `POST /v1/state/digest`. A new thread reads the whole state. If the client disconnects, this thread still
/// finishes, and stores the result as the last digest.
#[utoipa::path(
    post, path = "/v1/state/digest", params(Level),
    responses((status = 200, description = "The digest.", body = DigestShown))
)]
pub(crate) async fn digest(app: &Arc<App>, digests: &Arc<Semaphore>, call: &mut Call) -> Answer {
    call.no_query()?;
    let Ok(turn) = Arc::clone(digests).try_acquire_owned() else {
        let message = "a digest is being computed: GET it when it is done";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "digest_busy", Action::Retry, message));
    };
    let view = app.db.state_view(call.level(app)?).await?;
    let (send, computed) = oneshot::channel();
    view.digest_in_background(move |report| {
        drop(turn);
        // Sending fails if the client has disconnected.
        let _ = send.send(report);
    })?;
    let report = computed.await.map_err(|_| {
        let message = "the thread that computed the digest panicked";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", Action::Stop, message)
    })??;
    Ok(reply::json(StatusCode::OK, &digest_json(&report)))
}

/// Handles `GET /v1/state/digest`: returns the last computed digest.
#[utoipa::path(
    get, path = "/v1/state/digest", responses((status = 200, description = "The digest.", body = DigestShown))
)]
pub(crate) fn last_digest(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    match app.db.blocking().last_state_digest() {
        Some(report) => Ok(reply::json(StatusCode::OK, &digest_json(&report))),
        None => {
            let message = "no digest has been computed since the node started: POST to compute one";
            Err(ApiError::new(StatusCode::NOT_FOUND, "no_digest", Action::Fix, message))
        }
    }
}

/// Handles `GET /v1/state/version`: returns the version of the state machine.
#[utoipa::path(
    get, path = "/v1/state/version", responses((status = 200, description = "The versions.", body = VersionShown))
)]
pub(crate) fn version(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    Ok(reply::json(StatusCode::OK, &version_json(app.db.blocking())))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = VersionRequest)]
struct JsonRaise {
    /// Version of the state machine to put in force.
    to: u16,
    /// True to raise the version even if a member of the cluster does not answer. If this member does not support the
    /// version, it stops when it gets the log entry.
    #[serde(default)]
    force: bool,
}

/// Returns an error if a member of the cluster does not support a version of the state machine, because it would stop.
/// With `force`, ignores members that do not answer.
async fn check_members(cluster: &Cluster, to: u16, force: bool, deadline: Instant) -> Result<(), ClusterError> {
    let versions = cluster.handle.known_versions(deadline).await?;
    let report = cluster.handle.report();
    let named = |lacks: &dyn Fn(&MemberVersion) -> bool| {
        let lacking = versions.iter().filter(|version| lacks(version));
        lacking.map(|version| report.shown_name(version.node)).collect::<Vec<_>>().join(", ")
    };
    let unknown = named(&|version| version.known.as_ref().is_ok_and(|known| *known < to));
    if !unknown.is_empty() {
        return Err(ClusterError::VersionUnknown { to, members: unknown });
    }
    let silent = named(&|version| version.known.is_err());
    if silent.is_empty() || force { Ok(()) } else { Err(ClusterError::VersionUnconfirmed { to, members: silent }) }
}

/// Handles `POST /v1/state/version`: raises the version of the state machine. In a cluster it needs the admin token.
#[utoipa::path(
    post, path = "/v1/state/version", params(Level), request_body = JsonRaise,
    security((), ("admin_token" = [])),
    responses((status = 200, description = "The versions.", body = VersionShown))
)]
pub(crate) async fn raise_version(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let JsonRaise { to, force } = json_body::required(app, call).await?;
    if let Some(cluster) = &app.cluster
        && to > app.db.blocking().version_in_force()
    {
        check_members(cluster, to, force, call.deadline(DEFAULT_WAIT)?).await?;
    }
    call.db(app)?.raise_version(to, call.level(app)?).await?;
    Ok(reply::json(StatusCode::OK, &version_json(app.db.blocking())))
}

/// A digest of the state in JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = Digest)]
struct DigestShown {
    /// Index of the log entry after which the digest was computed.
    index: u64,
    term: u64,
    revision: u64,
    space_time_micros: u64,
    /// Hash of the outcomes and replicated writes of all log entries, in hexadecimal.
    running_hash: String,
    /// XXH3-128 hash of all replicated rows, in hexadecimal.
    digest: String,
    /// Number of replicated rows.
    rows: u64,
    /// Number of rows and digest for each first byte of a row's key.
    kinds: Vec<KindShown>,
}

/// Digest of all rows whose keys begin with the same byte. This byte identifies the kind of row.
#[derive(Serialize, ToSchema)]
#[schema(as = DigestKind)]
struct KindShown {
    tag: String,
    name: &'static str,
    rows: u64,
    digest: String,
}

/// Versions of the state machine in JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = StateVersion)]
struct VersionShown {
    /// Version of the state machine in force.
    in_force: u16,
    /// Highest version of the state machine that this node supports.
    known: u16,
}

/// Returns a digest as JSON, in the form that the API and the command line share.
#[must_use]
pub fn digest_json(report: &DigestReport) -> Value {
    let state = &report.state;
    let kinds = state.kinds.iter().map(|kind| KindShown {
        tag: format!("{:02x}", kind.tag),
        name: kind.name,
        rows: kind.rows,
        digest: kind.digest.to_string(),
    });
    json!(DigestShown {
        index: state.applied.index.0,
        term: state.applied.term.0,
        revision: state.applied.revision.0,
        space_time_micros: state.applied.time.0,
        running_hash: format!("{:016x}", state.applied.running_hash),
        digest: state.digest.to_string(),
        rows: state.rows,
        kinds: kinds.collect(),
    })
}

/// Returns the version of the state machine that is in force, and the highest version that this node supports.
fn version_json(db: &Database) -> Value {
    json!(VersionShown { in_force: db.version_in_force(), known: db.known_version() })
}
