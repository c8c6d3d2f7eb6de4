//! Handlers of `/v1/streams`: appends, and creating, configuring, trimming and deleting streams.
//!
//! Owns: these handlers, and the JSON of streams and their configuration. Does not own: reads (`records`), tails
//! (`tail`), producers (`producers`), or the parsing of appended records (`batch`).

use std::sync::Arc;

use axum_core::body::Body;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg_engine::{Ack, Database, Stream, StreamInfo, WriteError};
use thalweg_serving::{
    app::App,
    error::ApiError,
    limits::{DEFAULT_LISTED, INLINE_LISTED, MAX_LISTED},
};
use thalweg_types::{
    Offset, StreamId,
    command::{Compaction, StreamConfig},
    limits::DEFAULT_TOMBSTONE_GRACE,
};
use utoipa::ToSchema;

use crate::{
    batch, body,
    call::{Answer, Call},
    describe::{Accepted, Acked, AppendParameters, BINARY, Binary, Level, NDJSON, StreamPath},
    json::{present_field, span_of_seconds},
    json_body, named_writes,
    parse::{AppendQuery, Cursor, ListQuery, name_segment, rfc3339},
    read_gate, reading, reply,
    shapes::Appended,
};

const PREFIX: &str = "/v1/streams/";

/// Returns the stream's name in a path below `/v1/streams/` that ends with `suffix`.
pub(crate) fn name<'a>(call: &'a Call, suffix: &str) -> Result<std::borrow::Cow<'a, str>, ApiError> {
    let segment = call.path_after(PREFIX);
    Ok(name_segment(segment.strip_suffix(suffix).unwrap_or(segment))?)
}

/// Handles `POST /v1/streams/{stream}/records`: appends records.
#[utoipa::path(
    post, path = "/v1/streams/{stream}/records", params(StreamPath, Level, AppendParameters),
    request_body(content((Binary = BINARY), (String = NDJSON), (batch::Records = "application/json"))),
    responses((status = 200, description = "The records are appended.", body = Appended), Accepted)
)]
pub(crate) async fn append(app: &Arc<App>, call: &mut Call) -> Answer {
    let query = AppendQuery::parse(call.head.uri.query())?;
    let (level, media) = (call.level(app)?, batch::media(call)?);
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    let key = query.key.clone();
    let (batch, body) =
        batch::parse(app, call, media, body, move |body| batch::batch(media, body, key.as_deref())).await?;
    let name = name(call, "/records")?.into_owned();
    let (stream, db, count) = (call.stream(app, &name).await?, call.db(app)?, batch.count());
    let appended = db.append(stream.id(), query.terms(), &batch, level);
    let spare = named_writes::may_lag(app).then_some((batch, body));
    let ack = match (appended.await, spare) {
        (Err(WriteError::NoSuchStream(_)), Some((batch, body))) => {
            let stream = named_writes::stream_again(app, call, &name).await?;
            let appended = db.append(stream.id(), query.terms(), &batch, level);
            drop((batch, body));
            appended.await?
        }
        (appended, _) => appended?,
    };
    Ok(appended_reply(&ack, count))
}

fn appended_reply(ack: &Ack, count: u32) -> http::Response<axum_core::body::Body> {
    // A repeated append may have another number of records than the first attempt. The reply reports those of the
    // first.
    let mut object = json!({ "count": ack.appends.first().map_or(count, |at| at.count) });
    if let Some(at) = ack.appends.first() {
        object["first"] = json!(at.first.0);
        object["last"] = json!(reply::last(at.first, at.count));
    }
    if ack.duplicate {
        object["duplicate"] = json!(true);
    }
    reply::acked_json(ack, StatusCode::OK, object)
}

/// Handles `GET /v1/streams`: lists streams with their statistics.
#[utoipa::path(
    get, path = "/v1/streams", params(ListQuery),
    responses((status = 200, description = "The streams.", body = JsonList<'_>))
)]
pub(crate) async fn list(app: &Arc<App>, call: &Call) -> Answer {
    let query = ListQuery::parse(call.head.uri.query())?;
    let limit = query.limit.unwrap_or(DEFAULT_LISTED).clamp(1, MAX_LISTED);
    let (db, after) = (app.db.blocking().clone(), query.cursor.map(|Cursor(id)| StreamId(id)));
    if limit <= INLINE_LISTED {
        return Ok(listed(&db, after, limit));
    }
    reading::on_reader(app, &call.account, 0, move || listed(&db, after, limit)).await
}

fn listed(db: &Database, after: Option<StreamId>, limit: u64) -> Response<Body> {
    let found = db.streams_after(after, limit as usize);
    let last = found.last().filter(|_| found.len() as u64 == limit);
    let cursor = last.map(|last| last.id.0.to_string());
    reply::json_of(StatusCode::OK, &JsonList { streams: found.iter().map(JsonStream::of).collect(), cursor })
}

#[derive(Serialize, ToSchema)]
#[schema(as = StreamList)]
struct JsonList<'a> {
    streams: Vec<JsonStream<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// A stream in JSON. It is serialized without a tree of JSON values, which would be costly for lists of thousands of
/// streams.
#[derive(Serialize, ToSchema)]
#[schema(as = Stream)]
struct JsonStream<'a> {
    name: &'a str,
    id: u32,
    start: u64,
    next: u64,
    bytes: u64,
    last_time_micros: u64,
    last_time: String,
    config: ShownConfig,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StreamConfigShown)]
struct ShownConfig {
    max_age_seconds: Option<f64>,
    max_bytes: Option<u64>,
    max_records: Option<u64>,
    max_record_bytes: Option<u64>,
    max_batch_bytes: Option<u64>,
    compaction: Option<ShownCompaction>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CompactionShown)]
struct ShownCompaction {
    tombstone_grace_seconds: f64,
}

impl<'a> JsonStream<'a> {
    fn of(info: &'a StreamInfo) -> Self {
        Self {
            name: &info.name,
            id: info.id.0,
            start: info.start.0,
            next: info.next.0,
            bytes: info.bytes,
            last_time_micros: info.last_time.0,
            last_time: rfc3339(info.last_time),
            config: ShownConfig::of(&info.config),
        }
    }
}

impl ShownConfig {
    fn of(config: &StreamConfig) -> Self {
        let shown = |compaction: Compaction| ShownCompaction {
            tombstone_grace_seconds: compaction.tombstone_grace.as_secs_f64(),
        };
        Self {
            max_age_seconds: config.max_age.map(|age| age.as_secs_f64()),
            max_bytes: config.max_bytes,
            max_records: config.max_records,
            max_record_bytes: config.max_record_bytes,
            max_batch_bytes: config.max_batch_bytes,
            compaction: config.compaction.map(shown),
        }
    }
}

/// Handles `GET /v1/streams/{stream}`: returns the statistics and configuration of a stream.
#[utoipa::path(
    get, path = "/v1/streams/{stream}", params(StreamPath),
    responses((status = 200, description = "The stream.", body = JsonStream<'_>))
)]
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let info = app.find_stream(&name(call, "")?)?.info()?;
    let level = app.db.blocking().visible_durability();
    let mut response = reply::json_of(StatusCode::OK, &JsonStream::of(&info));
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(level));
    Ok(response)
}

/// Retention of a stream, as the client sent it. A field that is `null` removes the limit. A missing field keeps its
/// value (`PATCH`), or means no limit (`PUT`).
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StreamConfig)]
struct JsonConfig {
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<f64>)]
    max_age_seconds: Option<Option<f64>>,
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<u64>)]
    max_bytes: Option<Option<u64>>,
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<u64>)]
    max_records: Option<Option<u64>>,
    /// Maximum size of a record in bytes. An append with a larger record is rejected.
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<u64>)]
    max_record_bytes: Option<Option<u64>>,
    /// Maximum size of an append in encoded bytes. A larger append is rejected.
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<u64>)]
    max_batch_bytes: Option<Option<u64>>,
    /// Settings of compaction, which keeps only the newest record of each key; null: no compaction.
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<JsonCompaction>)]
    compaction: Option<Option<JsonCompaction>>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Compaction)]
struct JsonCompaction {
    /// Time in seconds for which a tombstone is kept, so that readers see it; a day if missing.
    #[serde(default = "default_grace_seconds")]
    tombstone_grace_seconds: f64,
}

/// Returns the default of `tombstone_grace_seconds`: a day, so that slow readers can still see tombstones.
fn default_grace_seconds() -> f64 {
    DEFAULT_TOMBSTONE_GRACE.as_secs_f64()
}

impl JsonConfig {
    fn apply_to(&self, mut config: StreamConfig) -> Result<StreamConfig, ApiError> {
        if let Some(age) = self.max_age_seconds {
            config.max_age = age.map(|seconds| span_of_seconds("max_age_seconds", seconds)).transpose()?;
        }
        if let Some(bytes) = self.max_bytes {
            config.max_bytes = bytes;
        }
        if let Some(records) = self.max_records {
            config.max_records = records;
        }
        if let Some(bytes) = self.max_record_bytes {
            config.max_record_bytes = bytes;
        }
        if let Some(bytes) = self.max_batch_bytes {
            config.max_batch_bytes = bytes;
        }
        if let Some(compaction) = self.compaction {
            let of = |sent: JsonCompaction| span_of_seconds("tombstone_grace_seconds", sent.tombstone_grace_seconds);
            config.compaction = compaction.map(of).transpose()?.map(|tombstone_grace| Compaction { tombstone_grace });
        }
        Ok(config)
    }
}

async fn sent_config(app: &Arc<App>, call: &mut Call) -> Result<JsonConfig, ApiError> {
    call.no_query()?;
    json_body::or_default(app, call).await
}

/// Handles `PUT /v1/streams/{stream}`. Creates the stream. An existing stream stays unchanged.
#[utoipa::path(
    put, path = "/v1/streams/{stream}", params(StreamPath, Level), request_body = Option<JsonConfig>,
    responses((status = 201, description = "The stream is created.", body = JsonStream<'_>),
        (status = 200, description = "The stream exists and is unchanged.", body = JsonStream<'_>))
)]
pub(crate) async fn create(app: &Arc<App>, call: &mut Call) -> Answer {
    let config = sent_config(app, call).await?.apply_to(StreamConfig::default())?;
    let name = name(call, "")?;
    call.level(app)?;
    // If the stream exists, the reply describes it, and no command is needed.
    let existing = read_gate::look_up_existing(app, call, || app.db.blocking().find_stream(&name)).await?;
    let (stream, created) = match existing {
        Some(stream) => (stream, false),
        None => app.create_stream(&call.db_at_level(app)?, &call.account, &name, &config).await?,
    };
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let info = stream.info()?;
    Ok(reply::json_of(status, &JsonStream::of(&info)))
}

/// Finds the stream that a request changes, by its name in the path. The path has `end` after the name.
async fn find_to_change(app: &App, call: &Call, end: &str) -> Result<Stream, ApiError> {
    let name = name(call, end)?;
    read_gate::look_up(app, call, || app.find_stream(&name)).await
}

/// Handles `PATCH /v1/streams/{stream}`: changes a stream's configuration.
#[utoipa::path(
    patch, path = "/v1/streams/{stream}", params(StreamPath, Level), request_body = JsonConfig,
    responses((status = 200, description = "The configuration is changed.", body = Object), Accepted)
)]
pub(crate) async fn patch(app: &Arc<App>, call: &mut Call) -> Answer {
    let sent = sent_config(app, call).await?;
    let stream = find_to_change(app, call, "").await?;
    let config = sent.apply_to(stream.info()?.config)?;
    let ack = call.db_at_level(app)?.configure_stream(stream.id(), &config).await?;
    Ok(reply::acked_json(&ack, StatusCode::OK, json!({ "config": ShownConfig::of(&config) })))
}

/// Handles `DELETE /v1/streams/{stream}`: deletes a stream.
#[utoipa::path(delete, path = "/v1/streams/{stream}", params(StreamPath, Level), responses(Acked))]
pub(crate) async fn delete(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let stream = find_to_change(app, call, "").await?;
    let ack = call.db_at_level(app)?.delete_stream(stream.id()).await?;
    app.deleted_stream(stream.id());
    Ok(reply::acked(&ack, StatusCode::NO_CONTENT))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Trim)]
struct JsonTrim {
    /// New log start offset: all records before it are removed.
    before: u64,
}

/// Handles `POST /v1/streams/{stream}/trim`: removes a stream's oldest records.
#[utoipa::path(
    post, path = "/v1/streams/{stream}/trim", params(StreamPath, Level), request_body = JsonTrim,
    responses((status = 200, description = "The records are removed.", body = Object), Accepted)
)]
pub(crate) async fn trim(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let before = json_body::required::<JsonTrim>(app, call).await?.before;
    let stream = find_to_change(app, call, "/trim").await?;
    let ack = call.db_at_level(app)?.trim_stream(stream.id(), Offset(before)).await?;
    let start = stream.info()?.start;
    Ok(reply::acked_json(&ack, StatusCode::OK, json!({ "start": start.0 })))
}
