//! Waits before reads on a member of a cluster, so that a read does not return data that is older than its level
//! permits.
//!
//! Owns: the choice of the read level, the wait for the barrier, and the header that states a revision which the reply
//! contains. The *barrier* ([`ClusterHandle::read`](thalweg_serving::cluster::ClusterHandle::read)) ends when the
//! node's state is recent enough for the level. Does not own: the barrier itself, and the choice of operations that
//! need it (`dispatch`).
//!
//! A leader may have been replaced without knowing it. It learns this when it proposes a command, so a write needs no
//! barrier. But each answer without a command needs a barrier: a read; a transaction that only reads; the answer that a
//! name does not exist ([`look_up`]); and the answer that an object to create exists already ([`look_up_existing`]).
//!
//! Invariant: a node without a cluster waits for no barrier.

use axum_core::body::Body;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use thalweg_serving::{app::App, cluster::Cluster, error::ApiError, limits::DEFAULT_WAIT};
use thalweg_types::{ReadLevel, Revision};

use crate::{call::Call, parse::ParseError};

/// Request header with the read level.
const READ: HeaderName = HeaderName::from_static("thalweg-read");
/// Reply header with a revision: the reply shows the data at this revision or a later one.
const SHOWN: HeaderName = HeaderName::from_static("thalweg-shown");

/// Waits until a transaction may begin, if this node is a member of a cluster. If the transaction only reads, also
/// returns a revision: the transaction reads the data at this revision or a later one.
pub(crate) async fn before_transaction(app: &App, call: &Call, only_reads: bool) -> Result<Option<Revision>, ApiError> {
    match &app.cluster {
        None => Ok(None),
        Some(cluster) if only_reads => may_read(cluster, app, call).await.map(Some),
        Some(cluster) => may_look_up(cluster, call).await.map(|()| None),
    }
}

/// Adds the header with the revision `shown` to the reply of a read; `None` adds nothing.
pub(crate) fn showing(mut response: Response<Body>, shown: Option<Revision>) -> Response<Body> {
    if let Some(shown) = shown {
        response.headers_mut().insert(SHOWN, HeaderValue::from(shown.0));
    }
    response
}

/// Finds the object that a command names. If a member of a cluster does not find it, another leader may have created
/// the object. So the member waits for a linearizable read and looks again, before it reports that the name does not
/// exist.
pub(crate) async fn look_up<T>(app: &App, call: &Call, find: impl Fn() -> Result<T, ApiError>) -> Result<T, ApiError> {
    let found = find();
    let is_missing = matches!(&found, Err(error) if error.status == StatusCode::NOT_FOUND);
    let Some(cluster) = app.cluster.as_ref().filter(|_| is_missing) else { return found };
    drop(found);
    Box::pin(barrier(cluster, ReadLevel::Linearizable, call)).await?;
    find()
}

/// Finds an object that a request would create. If a member of a cluster finds it, another leader may have deleted it
/// or created it again. So the member waits for a linearizable read and looks again, before it returns the object.
pub(crate) async fn look_up_existing<T>(
    app: &App,
    call: &Call,
    find: impl Fn() -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let found = find();
    let Some(cluster) = app.cluster.as_ref().filter(|_| found.is_some()) else { return Ok(found) };
    drop(found);
    Box::pin(barrier(cluster, ReadLevel::Linearizable, call)).await?;
    Ok(find())
}

/// On a member of a cluster, waits until this node's state contains every change that was acknowledged before.
pub(crate) async fn catch_up(app: &App, call: &Call) -> Result<(), ApiError> {
    match &app.cluster {
        Some(cluster) => barrier(cluster, ReadLevel::Linearizable, call).await.map(drop),
        None => Ok(()),
    }
}

/// Waits until this node's state is recent enough to look up the names in a command. A leader need not wait: if another
/// node leads by now, the command itself is rejected.
pub(crate) async fn may_look_up(cluster: &Cluster, call: &Call) -> Result<(), ApiError> {
    if cluster.handle.leads() {
        return Ok(());
    }
    barrier(cluster, ReadLevel::Linearizable, call).await.map(drop)
}

/// Waits until a read may begin at the level that its request states. Returns a revision: the read sees the data at
/// this revision or a later one.
pub(crate) async fn may_read(cluster: &Cluster, app: &App, call: &Call) -> Result<Revision, ApiError> {
    barrier(cluster, level(app, call)?, call).await
}

async fn barrier(cluster: &Cluster, level: ReadLevel, call: &Call) -> Result<Revision, ApiError> {
    match cluster.handle.try_read(level) {
        Some(revision) => Ok(revision),
        None => Ok(cluster.handle.read(level, call.deadline(DEFAULT_WAIT)?).await?),
    }
}

/// Returns the read level that a request states, or the server's default.
fn level(app: &App, call: &Call) -> Result<ReadLevel, ApiError> {
    let Some(text) = call.header(&READ) else { return Ok(app.config.read_level) };
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    parsed.ok_or_else(|| {
        let expected = "linearizable, lease, stale or at-least=REVISION";
        ParseError::BadHeader { name: "Thalweg-Read", expected }.into()
    })
}
