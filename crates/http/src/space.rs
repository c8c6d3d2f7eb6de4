//! The handler of the report about disk space.

use std::sync::Arc;

use http::StatusCode;
use thalweg_engine::space::Count;
use thalweg_serving::{app::App, error::ApiError, status::space_json};
use thalweg_types::Action;
use tokio::sync::{Semaphore, oneshot};

use crate::{
    call::{Answer, Call},
    parse::SpaceQuery,
    reply,
};

/// Handles `GET /v1/space`: reports which purposes the bytes of the data directory serve. A new thread reads the state.
/// If the client disconnects, this thread still finishes.
#[utoipa::path(
    get, path = "/v1/space", params(SpaceQuery),
    responses((status = 200, description = "Bytes by kind, the payload, and other figures.", body = Object))
)]
pub(crate) async fn space(app: &Arc<App>, spaces: &Arc<Semaphore>, call: &Call) -> Answer {
    let SpaceQuery { count } = SpaceQuery::parse(call.head.uri.query())?;
    let Ok(turn) = Arc::clone(spaces).try_acquire_owned() else {
        let message = "the payload is being counted for another request: retry when that is done";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "space_busy", Action::Retry, message));
    };
    let count = if count { Count::Always } else { Count::IfQuick };
    let (send, reported) = oneshot::channel();
    app.db.blocking().space_in_background(count, move |report| {
        drop(turn);
        // Sending fails if the client has disconnected.
        let _ = send.send(report);
    })?;
    let report = reported.await.map_err(|_| {
        let message = "the thread that made the report panicked";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", Action::Stop, message)
    })??;
    Ok(reply::json(StatusCode::OK, &space_json(&report)))
}
