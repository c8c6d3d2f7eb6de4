//! Handlers of `/v1/streams/{stream}/producers`: producers and their epochs. A producer appends each record exactly
//! once.

use std::{borrow::Cow, sync::Arc};

use http::StatusCode;
use serde_json::{Value, json};
use thalweg_engine::{ProducerInfo, Stream};
use thalweg_serving::{app::App, error::ApiError};

use crate::{
    call::{Answer, Call},
    describe::{Level, ProducerPath, StreamPath},
    parse::{name_segment, rfc3339},
    reply,
};

/// Returns the stream's name, and the producer's id, which is empty if the path has none.
fn names(call: &Call) -> Result<(Cow<'_, str>, Cow<'_, str>), ApiError> {
    let rest = call.path_after("/v1/streams/");
    let (stream, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let producer = rest.strip_prefix("producers/").unwrap_or_default();
    Ok((name_segment(stream)?, name_segment(producer)?))
}

fn describe(info: &ProducerInfo) -> Value {
    json!({
        "id": info.id,
        "epoch": info.epoch,
        "next_sequence": info.next_sequence,
        "last_time_micros": info.last_time.0,
        "last_time": rfc3339(info.last_time),
    })
}

fn find(app: &App, call: &Call) -> Result<(Stream, String), ApiError> {
    call.no_query()?;
    let (stream, producer) = names(call)?;
    Ok((app.find_stream(&stream)?, producer.into_owned()))
}

/// Handles `GET /v1/streams/{stream}/producers`. Returns all producers that the stream remembers. Their number is
/// bounded, so the reply has no pages.
#[utoipa::path(
    get, path = "/v1/streams/{stream}/producers", params(StreamPath),
    responses((status = 200,
            description = "`producers`: id, epoch, next_sequence, last_time_micros and last_time of each.",
            body = Object))
)]
pub(crate) fn list(app: &Arc<App>, call: &Call) -> Answer {
    let (stream, _) = find(app, call)?;
    let producers: Vec<_> = stream.producers()?.iter().map(describe).collect();
    Ok(reply::json(StatusCode::OK, &json!({ "producers": producers })))
}

/// Handles `GET /v1/streams/{stream}/producers/{producer}`: returns the epoch and next sequence number of a producer.
#[utoipa::path(
    get, path = "/v1/streams/{stream}/producers/{producer}", params(ProducerPath),
    responses((status = 200, description = "The producer.", body = Object))
)]
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    let (stream, id) = find(app, call)?;
    match stream.producer_info(&id)? {
        Some(info) => Ok(reply::json(StatusCode::OK, &describe(&info))),
        None => Err(ApiError::not_found("not_found", format!("the stream has no producer {id:?}"))),
    }
}

/// Handles `POST /v1/streams/{stream}/producers/{producer}`: assigns a new epoch. Appends with earlier epochs of the id
/// are rejected from then on.
#[utoipa::path(
    post, path = "/v1/streams/{stream}/producers/{producer}", params(ProducerPath, Level),
    responses((status = 200, description = "The new epoch. The next sequence number is 0.", body = Object))
)]
pub(crate) async fn open(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let level = call.level(app)?;
    let (stream, id) = {
        let (stream, id) = names(call)?;
        (call.stream(app, &stream).await?, id.into_owned())
    };
    let producer = call.db(app)?.producer(stream.id(), &id, level).await?;
    let answer = json!({ "id": id, "epoch": producer.epoch(), "next_sequence": producer.next_sequence() });
    Ok(reply::json(StatusCode::OK, &answer))
}
