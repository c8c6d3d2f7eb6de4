//! JSON of requests and replies about consumer groups, for the server and the command line.
//!
//! Owns: the JSON types with their schemas, the bound on the wait of a fetch, and the conversion between them and the
//! engine's types. Does not own: the handlers (`mod`, `fetch`, `push`), or the JSON of a record (`record_json`).

use std::{ops::ControlFlow, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_engine::{Delivery, Extended, FetchRequest, GroupInfo, GroupStart, SettlementResult};
use thalweg_serving::error::ApiError;
use thalweg_types::{
    Attempt, Offset, SpaceTime,
    command::groups::{GroupConfig, GroupOrder, Lapsed, OffsetRun, Redelivery, Settlement},
};
use utoipa::ToSchema;

use crate::{
    json::{present_field, push_number, push_text, span_of_seconds},
    long_json::LongJson,
    parse::rfc3339,
    record_json::push_json,
};

/// Maximum wait of a fetch request. A longer requested timeout is reduced to this time.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Returns a group's statistics and configuration as JSON.
pub(super) fn describe(info: &GroupInfo) -> Value {
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
        "stream": info.stream_name,
        "id": info.id.0,
        "cursor": info.cursor.0,
        "floor": info.floor.0,
        "lag": info.lag,
        "pending": info.pending,
        "in_flight": info.in_flight,
        "parked": info.parked,
        "dying": info.dying,
        "delivered": info.delivered,
        "redelivered": info.redelivered,
        "acked": info.acked,
        "dead": info.dead,
        "dropped": info.dropped,
        "members": members.collect::<Vec<_>>(),
        "config": describe_config(&info.config),
    })
}

/// Returns a group's configuration as JSON.
pub(super) fn describe_config(config: &GroupConfig) -> Value {
    json!({
        "order": match config.order { GroupOrder::Competing => "competing", GroupOrder::PerKey => "per_key" },
        "ack_deadline_seconds": config.ack_deadline.as_secs_f64(),
        "max_deliveries": config.max_deliveries,
        "max_pending": config.max_pending,
        "dead_letters": config.dead_letters,
    })
}

/// A group's configuration in JSON. A missing field keeps its value, or gets the default in a new group.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GroupConfig)]
pub(super) struct JsonConfig {
    /// Order of delivery. Only for a new group.
    order: Option<JsonOrder>,
    ack_deadline_seconds: Option<f64>,
    /// Number of deliveries after which a record is a dead letter; null: no limit.
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<u32>)]
    max_deliveries: Option<Option<u32>>,
    max_pending: Option<u32>,
    /// Stream to which records move after too many deliveries.
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<String>)]
    dead_letters: Option<Option<String>>,
    /// Start position of a new group. An error for an existing group.
    pub start: Option<JsonStart>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = GroupOrder)]
enum JsonOrder {
    Competing,
    PerKey,
}

/// Position in a stream: an offset, `start` or `end`, or a time in microseconds.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = GroupStart)]
pub(super) enum JsonStart {
    Start,
    End,
    Offset(u64),
    TimeMicros(u64),
}

impl JsonStart {
    /// Converts the start position to the engine's type.
    pub(super) fn place(&self) -> GroupStart {
        match *self {
            Self::Start => GroupStart::Beginning,
            Self::End => GroupStart::End,
            Self::Offset(offset) => GroupStart::Offset(Offset(offset)),
            Self::TimeMicros(time) => GroupStart::Time(SpaceTime(time)),
        }
    }
}

impl JsonConfig {
    /// Applies the fields that the client sent to a group's configuration.
    pub(super) fn apply_to(self, mut config: GroupConfig) -> Result<GroupConfig, ApiError> {
        match self.order {
            Some(JsonOrder::Competing) => config.order = GroupOrder::Competing,
            Some(JsonOrder::PerKey) => config.order = GroupOrder::PerKey,
            None => {}
        }
        if let Some(deadline) = self.ack_deadline_seconds {
            config.ack_deadline = span_of_seconds("ack_deadline_seconds", deadline)?;
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

/// A fetch request in JSON.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Fetch)]
pub(super) struct JsonFetch {
    member: Option<String>,
    max_records: Option<u32>,
    max_bytes: Option<u64>,
    wait_seconds: Option<f64>,
}

impl JsonFetch {
    /// Converts the fetch request to the engine's type. Fetched records stay in memory until they are sent, so the
    /// request is limited to `most_bytes` bytes of records.
    pub(super) fn request(self, most_bytes: u64) -> Result<FetchRequest, ApiError> {
        let mut request = FetchRequest::default();
        if let Some(member) = self.member {
            request.member = member;
        }
        request.max_records = self.max_records.unwrap_or(request.max_records);
        if request.max_records == 0 {
            return Err(ApiError::bad_request("bad_json", "max_records is at least 1"));
        }
        request.max_bytes = self.max_bytes.unwrap_or(request.max_bytes).min(most_bytes);
        request.wait = span_of_seconds("wait_seconds", self.wait_seconds.unwrap_or(0.0))?.min(MAX_WAIT);
        Ok(request)
    }
}

/// Returns a delivery as a JSON object followed by a newline.
pub(super) fn delivered(delivery: &Delivery) -> Result<LongJson, ApiError> {
    let mut document = LongJson::new(b"{");
    let out = document.json();
    if !delivery.is_empty() {
        push_number(out, "attempt", delivery.attempt.0);
        out.push(b',');
        push_number(out, "deadline_micros", delivery.deadline.0);
        out.push(b',');
    }
    out.extend_from_slice(b"\"messages\":[");
    let mut first = true;
    delivery.for_each(&mut |message| {
        if !std::mem::take(&mut first) {
            document.json().push(b',');
        }
        push_json(&mut document, message.offset, message.time, message.record);
        let out = document.json();
        out.pop();
        out.push(b',');
        push_number(out, "deliveries", message.deliveries.into());
        out.push(b'}');
        ControlFlow::Continue(())
    })?;
    let out = document.json();
    out.extend_from_slice(b"],\"durability\":");
    push_text(out, delivery.durability.name());
    out.extend_from_slice(b"}\n");
    Ok(document)
}

/// Records of a delivery (attempt) to ack or nack: ranges that each have a first and an inclusive last offset, or all
/// records of the delivery that are still pending.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settlement)]
pub(crate) struct JsonSettlement {
    attempt: u64,
    /// First and last offset of each range, inclusive; if empty, all records of the delivery that are still pending.
    // Some generators of clients do not understand the schema of a pair.
    #[serde(default)]
    #[schema(value_type = Vec<Vec<u64>>)]
    ranges: Vec<(u64, u64)>,
}

impl JsonSettlement {
    /// Converts the delivery and its ranges to the engine's type.
    fn settlement(&self) -> Result<Settlement, ApiError> {
        let run = |&(first, last): &(u64, u64)| {
            let count =
                last.checked_sub(first).and_then(|more| u32::try_from(more).ok()).and_then(|more| more.checked_add(1));
            let bad = || ApiError::bad_request("bad_json", "a range is [first, last] with fewer than 2^32 offsets");
            Ok(OffsetRun { first: Offset(first), count: count.ok_or_else(bad)? })
        };
        let runs = self.ranges.iter().map(run).collect::<Result<_, ApiError>>()?;
        Ok(Settlement { attempt: Attempt(self.attempt), runs })
    }
}

/// Converts all deliveries in an ack or nack request to the engine's type. A request without a delivery is an error.
pub(crate) fn settlements(sent: &[JsonSettlement]) -> Result<Vec<Settlement>, ApiError> {
    if sent.is_empty() {
        return Err(ApiError::bad_request("bad_json", "attempts is empty: name at least one attempt"));
    }
    sent.iter().map(JsonSettlement::settlement).collect()
}

/// An ack request in JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Ack)]
pub(super) struct JsonAck {
    /// Deliveries (attempts), each with the records to ack.
    pub attempts: Vec<JsonSettlement>,
}

/// A nack request in JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Nack)]
pub(super) struct JsonNack {
    /// Deliveries (attempts), each with the records to nack.
    pub attempts: Vec<JsonSettlement>,
    /// Time in seconds until the records are delivered again.
    delay_seconds: Option<f64>,
    /// True if the records must not be delivered again and become dead letters.
    #[serde(default)]
    reject: bool,
    /// True if the nacked delivery does not count towards `max_deliveries`.
    #[serde(default)]
    uncounted: bool,
    /// Reason that is stored with dead letters.
    #[serde(default)]
    pub reason: String,
}

impl JsonNack {
    /// Returns the time of redelivery that the nack requests: after a delay, never, or immediately without being
    /// counted.
    pub(super) fn again(&self) -> Result<Redelivery, ApiError> {
        again(self.delay_seconds, self.reject, self.uncounted)
    }
}

/// Converts the fields of a nack to the time of redelivery: after a delay, never, or immediately without being counted.
/// Two of the fields together are an error.
pub(crate) fn again(delay_seconds: Option<f64>, reject: bool, uncounted: bool) -> Result<Redelivery, ApiError> {
    match (delay_seconds, reject, uncounted) {
        (None, true, false) => Ok(Redelivery::Never),
        (None, false, true) => Ok(Redelivery::Uncounted),
        (delay, false, false) => Ok(Redelivery::After(span_of_seconds("delay_seconds", delay.unwrap_or(0.0))?)),
        _ => Err(ApiError::bad_request("bad_json", "give one of delay_seconds, reject and uncounted")),
    }
}

/// Returns the result of an ack or nack as JSON.
pub(super) fn settled_json(settled: &SettlementResult) -> Value {
    let lapsed = |lapsed: &Lapsed| match lapsed.run {
        None => json!({ "attempt": lapsed.attempt.0 }),
        Some(run) => json!({ "attempt": lapsed.attempt.0, "range": [run.first.0, run.end().0.saturating_sub(1)] }),
    };
    json!({
        "settled": settled.settled,
        "lapsed": settled.lapsed.iter().map(lapsed).collect::<Vec<_>>(),
        "durability": settled.durability.name(),
    })
}

/// A request to extend the deadlines of deliveries, in JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Extend)]
pub(super) struct JsonExtend {
    attempts: Vec<u64>,
    by_seconds: f64,
}

impl JsonExtend {
    /// Returns the numbers of the deliveries (attempts), and the duration from now to their new deadlines.
    pub(super) fn parts(&self) -> Result<(Vec<Attempt>, Duration), ApiError> {
        Ok((self.attempts.iter().copied().map(Attempt).collect(), span_of_seconds("by_seconds", self.by_seconds)?))
    }
}

/// Returns the result of an extension of deadlines as JSON.
pub(super) fn extended_json(extended: &Extended) -> Value {
    json!({
        "deadline_micros": extended.deadline.0,
        "lapsed": extended.lapsed.iter().map(|attempt| attempt.0).collect::<Vec<_>>(),
        "durability": extended.durability.name(),
    })
}

/// A seek request in JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Seek)]
pub(super) struct JsonSeek {
    /// Position to which the group's cursor moves.
    pub to: JsonStart,
}
