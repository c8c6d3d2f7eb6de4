//! Steps before each request of a node that is a member of a cluster.
//!
//! Owns: the check of the administrators' token, and the read barrier. An operation's [`Consistency`] decides whether it
//! needs a barrier. Does not own: the barrier itself ([`ClusterHandle::read`]), and the operations.
//!
//! Invariant: a node without a cluster does not come here.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::{HeaderName, HeaderValue, header};
use thalweg_serving::{
    app::App,
    cluster::{Cluster, ClusterError, ClusterHandle},
    error::ApiError,
    limits::DEFAULT_WAIT,
};
use thalweg_types::{ReadLevel, Revision};

use crate::{
    call::{Answer, Call},
    dispatch::{Consistency, Operation, dispatch},
    parse::ParseError,
    shared::Http,
};

/// Header with the level of a read.
const READ: HeaderName = HeaderName::from_static("thalweg-read");
/// Header of a reply with the revision that it shows, or a later one.
const SHOWN: HeaderName = HeaderName::from_static("thalweg-shown");

/// Handles a request of a clustered node.
pub(crate) async fn answer(operation: Operation, cluster: &Cluster, http: &Arc<Http>, call: &mut Call) -> Answer {
    if operation.needs_admin() {
        check_token(cluster, call)?;
    }
    let level = match operation.consistency() {
        Consistency::Read => level(&http.app, call)?,
        // Names are looked up on this node, and then the command goes to the leader.
        Consistency::Names if !cluster.handle.leads() => ReadLevel::Linearizable,
        Consistency::Names | Consistency::Local => return dispatch(operation, http, call).await,
    };
    let shown = barrier(&cluster.handle, level, call.timeout()?.unwrap_or(DEFAULT_WAIT)).await?;
    let mut response = dispatch(operation, http, call).await?;
    if operation.consistency() == Consistency::Read {
        response.headers_mut().insert(SHOWN, HeaderValue::from(shown.0));
    }
    Ok(response)
}

async fn barrier(
    handle: &Arc<dyn ClusterHandle>,
    level: ReadLevel,
    timeout: Duration,
) -> Result<Revision, ClusterError> {
    match handle.try_read(level) {
        Some(revision) => Ok(revision),
        None => handle.read(level, Instant::now() + timeout).await,
    }
}

/// Returns the level that a read states, or else the server's default.
fn level(app: &App, call: &Call) -> Result<ReadLevel, ApiError> {
    let Some(text) = call.header(&READ) else { return Ok(app.config.read_level) };
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    parsed.ok_or_else(|| {
        let expected = "linearizable, lease, stale or at-least=REVISION";
        ParseError::BadHeader { name: "Thalweg-Read", expected }.into()
    })
}

/// Checks the administrators' token of a request.
fn check_token(cluster: &Cluster, call: &Call) -> Result<(), ClusterError> {
    let presented = call.header(&header::AUTHORIZATION).ok_or(ClusterError::TokenMissing)?;
    let (scheme, token) = presented.split_at_checked(7).ok_or(ClusterError::TokenMissing)?;
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return Err(ClusterError::TokenMissing);
    }
    if cluster.credentials.permits(token.trim_ascii()) { Ok(()) } else { Err(ClusterError::TokenWrong) }
}
