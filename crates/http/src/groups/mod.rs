//! Handlers of `/v1/streams/{stream}/groups`: consumer groups.
//!
//! Owns: the handlers, and in its modules the JSON of requests and replies (`json`), waiting fetches (`fetch`), and
//! pushes with credit (`push`). Does not own: the choice of records to deliver, which the engine makes.

pub(crate) mod fetch;
mod json;
pub(crate) mod push;

use std::{borrow::Cow, sync::Arc};

use axum_core::body::Body;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use thalweg_engine::{Database, Group, GroupError, GroupStart, Stream};
use thalweg_serving::{
    app::App,
    error::ApiError,
    fetching,
    finishing::Finishing,
    limits::{DEFAULT_LISTED, MAX_LISTED},
};
use thalweg_types::{Durability, GroupId, StreamId, command::groups::GroupConfig};

pub(crate) use json::{JsonSettlement, again, settlements};

use self::json::{JsonAck, JsonConfig, JsonExtend, JsonNack, JsonSeek, JsonStart, describe, describe_config};
use crate::{
    call::{Answer, Call},
    describe::{Committed, GroupPath, Level, StreamPath},
    json_body,
    parse::{Cursor, ListQuery, name_segment},
    read_gate, reading, reply,
};

/// Returns the names of the stream and the group in a path.
fn names(call: &Call) -> Result<(Cow<'_, str>, Cow<'_, str>), ApiError> {
    let rest = call.path_after("/v1/streams/");
    let (stream, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let group = rest.strip_prefix("groups/").unwrap_or_default();
    let group = group.split_once('/').map_or(group, |(group, _)| group);
    Ok((name_segment(stream)?, name_segment(group)?))
}

/// Finds the consumer group in the path of a request that only reads.
fn find(app: &App, call: &Call) -> Result<Group, ApiError> {
    call.no_query()?;
    let (stream, group) = names(call)?;
    find_named(app.db.blocking(), &stream, &group)
}

/// Finds the consumer group in the path of a request that changes the group.
async fn find_to_change(app: &App, call: &Call) -> Result<Group, ApiError> {
    read_gate::look_up(app, call, || find(app, call)).await
}

/// Finds a consumer group by the name of its stream and its own name.
pub(crate) fn find_named(db: &Database, stream: &str, group: &str) -> Result<Group, ApiError> {
    let found =
        db.find_stream(stream).ok_or_else(|| thalweg_serving::error::no_such_stream(stream))?.find_group(group)?;
    found.ok_or_else(|| no_such_group(stream, group))
}

/// Returns error 404 for a missing group.
pub(crate) fn no_such_group(stream: &str, group: &str) -> ApiError {
    let message = format!("stream {stream:?} has no consumer group {group:?}: create it first");
    ApiError::not_found("no_such_group", message)
}

fn shown(status: StatusCode, value: &Value, level: Durability) -> Response<Body> {
    let mut response = reply::json(status, value);
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(level));
    response
}

/// Handles `GET /v1/streams/{stream}/groups`: lists a stream's consumer groups.
#[utoipa::path(
    get, path = "/v1/streams/{stream}/groups", params(StreamPath, ListQuery),
    responses((status = 200, description = "The consumer groups.", body = Object))
)]
pub(crate) async fn list(app: &Arc<App>, call: &Call) -> Answer {
    let stream = app.find_stream(&names(call)?.0)?.id();
    listed(app, call, Some(stream)).await
}

/// Handles `GET /v1/groups`: lists the consumer groups of all streams.
#[utoipa::path(
    get, path = "/v1/groups", params(ListQuery),
    responses((status = 200, description = "The consumer groups.", body = Object))
)]
pub(crate) async fn list_all(app: &Arc<App>, call: &Call) -> Answer {
    listed(app, call, None).await
}

/// Lists a page of groups by id. Runs on a thread for long reads, because listing loads each group and its pending
/// records.
async fn listed(app: &Arc<App>, call: &Call, stream: Option<StreamId>) -> Answer {
    let query = ListQuery::parse(call.head.uri.query())?;
    let limit = query.limit.unwrap_or(DEFAULT_LISTED).clamp(1, MAX_LISTED) as usize;
    let (db, after) = (app.db.blocking().clone(), GroupId(query.cursor.map_or(0, |Cursor(id)| id)));
    let made = move || {
        let (groups, more) = db.groups_after(stream, after, limit)?;
        let mut page = json!({ "groups": groups.iter().map(describe).collect::<Vec<_>>() });
        if let Some(last) = groups.last().filter(|_| more) {
            page["cursor"] = last.id.0.to_string().into();
        }
        Ok(shown(StatusCode::OK, &page, db.visible_durability()))
    };
    reading::on_reader(app, &call.account, 0, made).await?
}

/// Handles `GET /v1/streams/{stream}/groups/{group}`: returns the statistics and configuration of a consumer group.
#[utoipa::path(
    get, path = "/v1/streams/{stream}/groups/{group}", params(GroupPath),
    responses((status = 200, description = "The consumer group.", body = Object))
)]
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    let info = find(app, call)?.info()?;
    Ok(shown(StatusCode::OK, &describe(&info), app.db.blocking().visible_durability()))
}

/// Handles `PUT /v1/streams/{stream}/groups/{group}`. Creates the group, and the stream if needed. An existing group
/// stays unchanged.
#[utoipa::path(
    put, path = "/v1/streams/{stream}/groups/{group}", params(GroupPath, Level), request_body = Option<JsonConfig>,
    responses((status = 201, description = "The group is created.", body = Object),
        (status = 200, description = "The group exists and is unchanged.", body = Object))
)]
pub(crate) async fn create(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let sent: JsonConfig = json_body::or_default(app, call).await?;
    let start = sent.start.as_ref().map_or(GroupStart::Beginning, JsonStart::place);
    let config = sent.apply_to(GroupConfig::default())?;
    let (stream, group) = names(call)?;
    let stream: Stream = call.stream(app, &stream).await?;
    let held = match stream.find_group(&group)? {
        Some(_) => None,
        None => Some(app.may_create_group(&call.account)?),
    };
    let start = fetching::resolve_start(app, &call.account, &stream, start).await?;
    let creating = call.db_at_level(app)?.create_group(&stream, &group, start, &config);
    let app = Arc::clone(app);
    let settled = Finishing::new(async move {
        let (group, created) = creating.await?;
        if let Some(held) = held.filter(|_| created) {
            app.created_group(group.id(), held);
        }
        Ok::<_, GroupError>((group, created))
    });
    let (group, created) = settled.await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply::json(status, &created_json(&group, created)?))
}

/// Returns a group as JSON, with the field `created`.
fn created_json(group: &Group, created: bool) -> Result<Value, ApiError> {
    let mut object = describe(&group.info()?);
    object["created"] = created.into();
    Ok(object)
}

/// Handles `PATCH /v1/streams/{stream}/groups/{group}`: changes a consumer group's configuration.
#[utoipa::path(
    patch, path = "/v1/streams/{stream}/groups/{group}", params(GroupPath, Level), request_body = JsonConfig,
    responses((status = 200, description = "The configuration is changed.", body = Object))
)]
pub(crate) async fn patch(app: &Arc<App>, call: &mut Call) -> Answer {
    let sent: JsonConfig = json_body::or_default(app, call).await?;
    let group = find_to_change(app, call).await?;
    let config = changed(&group, sent)?;
    let ack = call.db(app)?.configure_group(&group, &config, call.level(app)?).await?;
    Ok(reply::acked_json(&ack, StatusCode::OK, json!({ "config": describe_config(&config) })))
}

/// Returns a group's configuration with the sent fields applied.
fn changed(group: &Group, sent: JsonConfig) -> Result<GroupConfig, ApiError> {
    if sent.start.is_some() {
        return Err(ApiError::bad_request(
            "bad_json",
            "start is only for a new group: POST to seek to move the cursor",
        ));
    }
    sent.apply_to(group.info()?.config)
}

/// Handles `DELETE /v1/streams/{stream}/groups/{group}`: deletes a consumer group.
#[utoipa::path(delete, path = "/v1/streams/{stream}/groups/{group}", params(GroupPath, Level), responses(Committed))]
pub(crate) async fn delete(app: &Arc<App>, call: &mut Call) -> Answer {
    let group = find_to_change(app, call).await?;
    let ack = call.db(app)?.delete_group(&group, call.level(app)?).await?;
    app.deleted_group(group.id());
    Ok(reply::acked(&ack, StatusCode::NO_CONTENT))
}

/// Handles `POST /v1/streams/{stream}/groups/{group}/ack`: acks records.
#[utoipa::path(
    post, path = "/v1/streams/{stream}/groups/{group}/ack", params(GroupPath, Level), request_body = JsonAck,
    responses((status = 200,
            description = "`settled`: the number of records; `lapsed`: the attempts that did not hold them any more.",
            body = Object))
)]
pub(crate) async fn ack(app: &Arc<App>, call: &mut Call) -> Answer {
    let settlements = settlements(&json_body::required::<JsonAck>(app, call).await?.attempts)?;
    let group = find_to_change(app, call).await?;
    let settled = call.db(app)?.ack_group(&group, &settlements, call.level(app)?).await?;
    Ok(shown(StatusCode::OK, &json::settled_json(&settled), settled.durability))
}

/// Handles `POST /v1/streams/{stream}/groups/{group}/nack`: nacks records.
#[utoipa::path(
    post, path = "/v1/streams/{stream}/groups/{group}/nack", params(GroupPath, Level), request_body = JsonNack,
    responses((status = 200,
            description = "`settled`: the number of records; `lapsed`: the attempts that did not hold them any more.",
            body = Object))
)]
pub(crate) async fn nack(app: &Arc<App>, call: &mut Call) -> Answer {
    let sent: JsonNack = json_body::required(app, call).await?;
    let (settlements, again) = (settlements(&sent.attempts)?, sent.again()?);
    let group = find_to_change(app, call).await?;
    let settled = call.db(app)?.nack_group(&group, &settlements, again, &sent.reason, call.level(app)?).await?;
    Ok(shown(StatusCode::OK, &json::settled_json(&settled), settled.durability))
}

/// Handles `POST /v1/streams/{stream}/groups/{group}/extend`: extends the deadlines of deliveries. The request names
/// deliveries by their attempt numbers.
#[utoipa::path(
    post, path = "/v1/streams/{stream}/groups/{group}/extend", params(GroupPath, Level), request_body = JsonExtend,
    responses((status = 200, description = "The new deadline, and the attempts that lapsed before.", body = Object))
)]
pub(crate) async fn extend(app: &Arc<App>, call: &mut Call) -> Answer {
    let (attempts, by) = json_body::required::<JsonExtend>(app, call).await?.parts()?;
    let group = find_to_change(app, call).await?;
    let extended = call.db(app)?.extend_group(&group, &attempts, by, call.level(app)?).await?;
    Ok(shown(StatusCode::OK, &json::extended_json(&extended), extended.durability))
}

/// Handles `POST /v1/streams/{stream}/groups/{group}/seek`: moves a consumer group's cursor.
#[utoipa::path(
    post, path = "/v1/streams/{stream}/groups/{group}/seek", params(GroupPath, Level), request_body = JsonSeek,
    responses((status = 200, description = "The new cursor.", body = Object))
)]
pub(crate) async fn seek(app: &Arc<App>, call: &mut Call) -> Answer {
    let to = json_body::required::<JsonSeek>(app, call).await?.to.place();
    let group = find_to_change(app, call).await?;
    let level = call.level(app)?;
    let to = fetching::resolve_start(app, &call.account, &group.stream(), to).await?;
    let cursor = call.db(app)?.seek_group(&group, to, level).await?;
    Ok(shown(StatusCode::OK, &json!({ "cursor": cursor.0 }), level))
}
