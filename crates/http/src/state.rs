//! Handlers for the state as a whole: digests by which replicas are compared, and the version of the state machine.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_engine::{Database, DigestReport};
use thalweg_serving::{app::App, error::ApiError};
use thalweg_types::Action;
use tokio::sync::{Semaphore, oneshot};

use crate::{
    body,
    call::{Answer, Call},
    json, reply,
};

/// Handles `POST /v1/state/digest`. Reads the whole state on a thread of its own. If the client leaves, the thread
/// still finishes, and stores the result as the last digest.
pub(crate) async fn digest(app: &Arc<App>, digests: &Arc<Semaphore>, call: &mut Call) -> Answer {
    call.no_query()?;
    let Ok(turn) = Arc::clone(digests).try_acquire_owned() else {
        let message = "a digest is being computed: ask for the last one when it is done";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "digest_busy", Action::Retry, message));
    };
    let view = app.db.state_view(call.level(app)?).await?;
    let (send, computed) = oneshot::channel();
    view.digest_in_background(move |report| {
        drop(turn);
        // Sending fails if the client has left.
        let _ = send.send(report);
    })?;
    let report = computed.await.map_err(|_| {
        let message = "the thread that computed the digest panicked";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", Action::Stop, message)
    })??;
    Ok(reply::json(StatusCode::OK, &digest_json(&report)))
}

/// Handles `GET /v1/state/digest`: returns the last computed digest.
pub(crate) fn last_digest(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    match app.db.blocking().last_state_digest() {
        Some(report) => Ok(reply::json(StatusCode::OK, &digest_json(&report))),
        None => {
            let message = "no digest has been computed since the node was started: POST asks for one";
            Err(ApiError::new(StatusCode::NOT_FOUND, "no_digest", Action::Fix, message))
        }
    }
}

/// Handles `GET /v1/state/version`: returns the version of the state machine.
pub(crate) fn version(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    Ok(reply::json(StatusCode::OK, &version_json(app.db.blocking())))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRaise {
    to: u16,
}

/// Handles `POST /v1/state/version`: raises the version of the state machine.
pub(crate) async fn raise_version(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let body = body::read(app, call.body.get_mut()).await?;
    let to = json::parse::<JsonRaise>(&body)?.to;
    drop(body);
    app.db.raise_version(to, call.level(app)?).await?;
    Ok(reply::json(StatusCode::OK, &version_json(app.db.blocking())))
}

/// Returns a digest in the JSON of the API and the command line.
#[must_use]
pub fn digest_json(report: &DigestReport) -> Value {
    let state = &report.state;
    let kinds = state.kinds.iter().map(|kind| {
        json!({
            "tag": format!("{:02x}", kind.tag), "name": kind.name, "rows": kind.rows, "digest": kind.digest.to_string(),
        })
    });
    json!({
        "index": state.applied.index.0,
        "term": state.applied.term.0,
        "revision": state.applied.revision.0,
        "space_time_micros": state.applied.time.0,
        "running_hash": format!("{:016x}", state.applied.running_hash),
        "digest": state.digest.to_string(),
        "rows": state.rows,
        "kinds": kinds.collect::<Vec<_>>(),
    })
}

/// Returns the version of the state machine that is in force, and the highest version that this node supports.
fn version_json(db: &Database) -> Value {
    json!({ "in_force": db.version_in_force(), "known": db.known_version() })
}
