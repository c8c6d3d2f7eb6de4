//! `/v1/streams/{stream}/groups`: consumer groups.
//!
//! A fetch may wait for records (`wait_seconds`); such waits are bounded as tails are. What it brings is at
//! most what the client asked for: a client that asks for as much as it can work on is never sent more.

use std::{borrow::Cow, ops::ControlFlow, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use thalweg_engine::{Delivery, FetchRequest, Group, GroupInfo, GroupStart, Ready, Settled, Stream};
use thalweg_types::{
    Attempt, Durability, Offset, SpaceTime,
    command::groups::{Again, GroupConfig, GroupOrder, Lapsed, OffsetRun, Settlement},
};
use tokio::time::Instant;

use crate::{
    app::{Answer, App, Call},
    body,
    error::ApiError,
    json::{self, push_number, push_text},
    parse::{Media, name_segment, rfc3339},
    records::push_json,
    reply,
};

/// Longest wait of a fetch; a longer wish is cut to it.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// The stream's and the group's name in a path.
fn names(call: &Call) -> Result<(Cow<'_, str>, Cow<'_, str>), ApiError> {
    let rest = call.path_after("/v1/streams/");
    let (stream, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let group = rest.strip_prefix("groups/").unwrap_or_default();
    let group = group.split_once('/').map_or(group, |(group, _)| group);
    Ok((name_segment(stream)?, name_segment(group)?))
}

fn find(app: &App, call: &Call) -> Result<Group, ApiError> {
    call.no_query()?;
    let (stream, group) = names(call)?;
    find_named(app, &stream, &group)
}

/// A group by the names of its stream and of itself.
pub fn find_named(app: &App, stream: &str, group: &str) -> Result<Group, ApiError> {
    let found = app.find_stream(stream)?.find_group(group)?;
    found.ok_or_else(|| {
        let message = format!("stream {stream:?} has no consumer group {group:?}: PUT creates one");
        ApiError::not_found("no_such_group", message)
    })
}

async fn sent<T: serde::de::DeserializeOwned + Default>(app: &Arc<App>, call: &mut Call) -> Result<T, ApiError> {
    let body = body::read(app, call.body.get_mut()).await?;
    if body.is_empty() { Ok(T::default()) } else { json::parse(&body) }
}

fn seconds(name: &str, seconds: f64) -> Result<Duration, ApiError> {
    Duration::try_from_secs_f64(seconds).map_err(|error| ApiError::bad_request("bad_json", format!("{name}: {error}")))
}

fn shown(status: StatusCode, value: &Value, level: Durability) -> Response<Body> {
    let mut response = reply::json(status, value);
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(level));
    response
}

/// `GET /v1/streams/{stream}/groups`
pub fn list(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let stream = app.find_stream(&names(call)?.0)?;
    let groups: Vec<_> = stream.groups()?.iter().map(describe).collect();
    Ok(shown(StatusCode::OK, &json!({ "groups": groups }), app.db.blocking().visible_durability()))
}

/// `GET /v1/streams/{stream}/groups/{group}`
pub fn get(app: &Arc<App>, call: &Call) -> Answer {
    let info = find(app, call)?.info()?;
    Ok(shown(StatusCode::OK, &describe(&info), app.db.blocking().visible_durability()))
}

fn describe(info: &GroupInfo) -> Value {
    let members = info.members.iter().map(|member| {
        json!({
            "name": member.name,
            "in_flight": member.in_flight,
            "attempts": member.attempts,
            "last_fetch": rfc3339(member.last_fetch),
        })
    });
    json!({
        "name": info.name,
        "id": info.id.0,
        "cursor": info.cursor.0,
        "floor": info.floor.0,
        "lag": info.lag,
        "pending": info.pending,
        "in_flight": info.in_flight,
        "parked": info.parked,
        "dying": info.dying,
        "delivered": info.delivered,
        "acked": info.acked,
        "dead": info.dead,
        "dropped": info.dropped,
        "members": members.collect::<Vec<_>>(),
        "config": describe_config(&info.config),
    })
}

fn describe_config(config: &GroupConfig) -> Value {
    json!({
        "order": match config.order { GroupOrder::Competing => "competing", GroupOrder::PerKey => "per_key" },
        "ack_deadline_seconds": config.ack_deadline.as_secs_f64(),
        "max_deliveries": config.max_deliveries,
        "max_pending": config.max_pending,
        "dead_letters": config.dead_letters,
    })
}

/// How a group delivers, as sent; what is left out stays, or is the default of a new group.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonConfig {
    order: Option<JsonOrder>,
    ack_deadline_seconds: Option<f64>,
    #[serde(default, deserialize_with = "given")]
    max_deliveries: Option<Option<u32>>,
    max_pending: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    dead_letters: Option<Option<String>>,
    /// Only when it is created.
    start: Option<JsonStart>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JsonOrder {
    Competing,
    PerKey,
}

/// Where a group begins or goes on: an offset, `start` or `end`, or a time in microseconds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JsonStart {
    Start,
    End,
    Offset(u64),
    TimeMicros(u64),
}

impl JsonStart {
    fn place(&self) -> GroupStart {
        match *self {
            Self::Start => GroupStart::Beginning,
            Self::End => GroupStart::End,
            Self::Offset(offset) => GroupStart::Offset(Offset(offset)),
            Self::TimeMicros(time) => GroupStart::Time(SpaceTime(time)),
        }
    }
}

/// Tells a field that is `null` from one that is left out.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl JsonConfig {
    fn over(self, mut config: GroupConfig) -> Result<GroupConfig, ApiError> {
        match self.order {
            Some(JsonOrder::Competing) => config.order = GroupOrder::Competing,
            Some(JsonOrder::PerKey) => config.order = GroupOrder::PerKey,
            None => {}
        }
        if let Some(deadline) = self.ack_deadline_seconds {
            config.ack_deadline = seconds("ack_deadline_seconds", deadline)?;
        }
        if let Some(max) = self.max_deliveries {
            config.max_deliveries = max;
        }
        if let Some(max) = self.max_pending {
            config.max_pending = max;
        }
        if let Some(stream) = self.dead_letters {
            config.dead_letters = stream;
        }
        Ok(config)
    }
}

/// `PUT /v1/streams/{stream}/groups/{group}`: creates it, and the stream; one that exists is left as it is.
pub async fn create(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let sent: JsonConfig = sent(app, call).await?;
    let start = sent.start.as_ref().map_or(GroupStart::Beginning, JsonStart::place);
    let config = sent.over(GroupConfig::default())?;
    let (stream, group) = names(call)?;
    let stream: Stream = app.stream(&stream).await?;
    let db = app.db_at_level(call)?;
    let (group, created) = db.create_group(&stream, &group, start, &config).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply::json(status, &describe(&group.info()?)))
}

/// `PATCH /v1/streams/{stream}/groups/{group}`
pub async fn patch(app: &Arc<App>, call: &mut Call) -> Answer {
    let sent: JsonConfig = sent(app, call).await?;
    let group = find(app, call)?;
    if sent.start.is_some() {
        return Err(ApiError::bad_request("bad_json", "start is for a new group: POST to seek moves this one"));
    }
    let config = sent.over(group.info()?.config)?;
    let ack = app.db.configure_group(&group, &config, app.level(call)?).await?;
    Ok(reply::acked_json(&ack, StatusCode::OK, json!({ "config": describe_config(&config) })))
}

/// `DELETE /v1/streams/{stream}/groups/{group}`
pub async fn delete(app: &Arc<App>, call: &mut Call) -> Answer {
    let group = find(app, call)?;
    let ack = app.db.delete_group(&group, app.level(call)?).await?;
    Ok(reply::acked(&ack, StatusCode::NO_CONTENT))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonFetch {
    member: Option<String>,
    max_records: Option<u32>,
    max_bytes: Option<u64>,
    wait_seconds: Option<f64>,
}

/// `POST /v1/streams/{stream}/groups/{group}/fetch`
pub async fn fetch(app: &Arc<App>, call: &mut Call) -> Answer {
    let sent: JsonFetch = sent(app, call).await?;
    let group = find(app, call)?;
    let level = app.level(call)?;
    let mut request = FetchRequest::default();
    if let Some(member) = sent.member {
        request.member = member;
    }
    request.max_records = sent.max_records.unwrap_or(request.max_records);
    if request.max_records == 0 {
        return Err(ApiError::bad_request("bad_json", "max_records is at least 1"));
    }
    // What is read is held in memory until it is sent.
    request.max_bytes = sent.max_bytes.unwrap_or(request.max_bytes).min(app.config.max_body_bytes.0);
    request.wait = seconds("wait_seconds", sent.wait_seconds.unwrap_or(0.0))?.min(MAX_WAIT);
    delivered(&wait_and_fetch(app, &group, &request, level).await?)
}

async fn wait_and_fetch(
    app: &Arc<App>,
    group: &Group,
    request: &FetchRequest,
    level: Durability,
) -> Result<Delivery, ApiError> {
    let until = Instant::now() + request.wait;
    let mut stopping = app.stopping.clone();
    let mut held = None;
    loop {
        let due = match group.ready()? {
            Ready::Now => {
                let delivery = app.db.fetch(group, request, level).await?;
                if !delivery.is_empty() {
                    return Ok(delivery);
                }
                continue;
            }
            Ready::In(due) => due,
        };
        if Instant::now() >= until || *stopping.borrow() {
            return Ok(Delivery::none(level));
        }
        if held.is_none() {
            let taken = app.admission.tails.take(1);
            held = Some(taken.ok_or_else(|| ApiError::overloaded("too many fetches and tails wait: retry later"))?);
        }
        let wake = due.map_or(until, |due| until.min(Instant::now() + due));
        tokio::select! {
            ready = app.db.group_ready(group) => ready?,
            () = tokio::time::sleep_until(wake) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    }
}

fn delivered(delivery: &Delivery) -> Answer {
    let mut out = b"{".to_vec();
    if !delivery.is_empty() {
        push_number(&mut out, "attempt", delivery.attempt.0);
        out.push(b',');
        push_number(&mut out, "deadline_micros", delivery.deadline.0);
        out.push(b',');
    }
    out.extend_from_slice(b"\"messages\":[");
    let mut first = true;
    delivery.for_each(&mut |message| {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        push_json(&mut out, message.offset, message.time, message.record);
        out.pop();
        out.push(b',');
        push_number(&mut out, "deliveries", message.deliveries.into());
        out.push(b'}');
        ControlFlow::Continue(())
    })?;
    out.extend_from_slice(b"],\"durability\":");
    push_text(&mut out, delivery.durability.name());
    out.extend_from_slice(b"}\n");
    Ok(reply::shown(Media::Json, Body::from(out), delivery.durability))
}

/// Records of an attempt: ranges of first and last offset, or all that it still holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonSettlement {
    attempt: u64,
    #[serde(default)]
    ranges: Vec<(u64, u64)>,
}

impl JsonSettlement {
    /// As the engine takes it.
    pub fn settlement(&self) -> Result<Settlement, ApiError> {
        let run = |&(first, last): &(u64, u64)| {
            let count =
                last.checked_sub(first).and_then(|more| u32::try_from(more).ok()).and_then(|more| more.checked_add(1));
            let bad =
                || ApiError::bad_request("bad_json", "a range is [first, last], and holds less than 2^32 offsets");
            Ok(OffsetRun { first: Offset(first), count: count.ok_or_else(bad)? })
        };
        let runs = self.ranges.iter().map(run).collect::<Result<_, ApiError>>()?;
        Ok(Settlement { attempt: Attempt(self.attempt), runs })
    }
}

/// All settlements of a request, which are at least one.
pub fn settlements(sent: &[JsonSettlement]) -> Result<Vec<Settlement>, ApiError> {
    if sent.is_empty() {
        return Err(ApiError::bad_request("bad_json", "name at least one attempt"));
    }
    sent.iter().map(JsonSettlement::settlement).collect()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonAck {
    attempts: Vec<JsonSettlement>,
}

/// `POST /v1/streams/{stream}/groups/{group}/ack`
pub async fn ack(app: &Arc<App>, call: &mut Call) -> Answer {
    let body = body::read(app, call.body.get_mut()).await?;
    let settlements = settlements(&json::parse::<JsonAck>(&body)?.attempts)?;
    drop(body);
    let group = find(app, call)?;
    settled(&app.db.ack_group(&group, &settlements, app.level(call)?).await?)
}

/// How records are given back, as sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonNack {
    attempts: Vec<JsonSettlement>,
    delay_seconds: Option<f64>,
    #[serde(default)]
    reject: bool,
    #[serde(default)]
    uncounted: bool,
    #[serde(default)]
    reason: String,
}

/// When what is nacked is delivered again.
pub fn again(delay_seconds: Option<f64>, reject: bool, uncounted: bool) -> Result<Again, ApiError> {
    match (delay_seconds, reject, uncounted) {
        (None, true, false) => Ok(Again::Never),
        (None, false, true) => Ok(Again::Uncounted),
        (delay, false, false) => Ok(Again::After(seconds("delay_seconds", delay.unwrap_or(0.0))?)),
        _ => Err(ApiError::bad_request("bad_json", "give one of delay_seconds, reject and uncounted")),
    }
}

/// `POST /v1/streams/{stream}/groups/{group}/nack`
pub async fn nack(app: &Arc<App>, call: &mut Call) -> Answer {
    let body = body::read(app, call.body.get_mut()).await?;
    let sent: JsonNack = json::parse(&body)?;
    drop(body);
    let settlements = settlements(&sent.attempts)?;
    let again = again(sent.delay_seconds, sent.reject, sent.uncounted)?;
    let group = find(app, call)?;
    settled(&app.db.nack_group(&group, &settlements, again, &sent.reason, app.level(call)?).await?)
}

fn settled(settled: &Settled) -> Answer {
    let lapsed = |lapsed: &Lapsed| match lapsed.run {
        None => json!({ "attempt": lapsed.attempt.0 }),
        Some(run) => json!({ "attempt": lapsed.attempt.0, "range": [run.first.0, run.end().0.saturating_sub(1)] }),
    };
    let object = json!({
        "settled": settled.settled,
        "lapsed": settled.lapsed.iter().map(lapsed).collect::<Vec<_>>(),
        "durability": settled.durability.name(),
    });
    Ok(shown(StatusCode::OK, &object, settled.durability))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonExtend {
    attempts: Vec<u64>,
    by_seconds: f64,
}

/// `POST /v1/streams/{stream}/groups/{group}/extend`
pub async fn extend(app: &Arc<App>, call: &mut Call) -> Answer {
    let body = body::read(app, call.body.get_mut()).await?;
    let sent: JsonExtend = json::parse(&body)?;
    drop(body);
    let by = seconds("by_seconds", sent.by_seconds)?;
    let attempts: Vec<_> = sent.attempts.into_iter().map(Attempt).collect();
    let group = find(app, call)?;
    let extended = app.db.extend_group(&group, &attempts, by, app.level(call)?).await?;
    let object = json!({
        "deadline_micros": extended.deadline.0,
        "lapsed": extended.lapsed.iter().map(|attempt| attempt.0).collect::<Vec<_>>(),
        "durability": extended.durability.name(),
    });
    Ok(shown(StatusCode::OK, &object, extended.durability))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSeek {
    to: JsonStart,
}

/// `POST /v1/streams/{stream}/groups/{group}/seek`
pub async fn seek(app: &Arc<App>, call: &mut Call) -> Answer {
    let body = body::read(app, call.body.get_mut()).await?;
    let to = json::parse::<JsonSeek>(&body)?.to.place();
    drop(body);
    let group = find(app, call)?;
    let level = app.level(call)?;
    let cursor = app.db.seek_group(&group, to, level).await?;
    Ok(shown(StatusCode::OK, &json!({ "cursor": cursor.0 }), level))
}
