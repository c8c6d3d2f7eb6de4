//! `groups`: manages consumer groups; acks, nacks and extends by hand.
//!
//! Owns: the arguments and the output of its subcommands, and the notation of delivery attempts with offsets. Does not
//! own: the requests (`session/groups`), or a member that consumes (`consume`).

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use std::time::Duration;

use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    render::{self, print_result},
    session::{Access, GroupCall, Session},
    span::{StartTime, parse_since, parse_span, show_span},
};

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "A group stores which records of a stream its members have acked. `thalweg consume` is a member.\n\n\
                  Examples:\n  thalweg groups create orders billing --max-deliveries 5 --dead-letters orders.dead\n  \
                  thalweg groups show orders billing\n  thalweg groups seek orders billing --to start"
)]
pub(crate) struct Groups {
    #[command(subcommand)]
    pub action: Option<GroupAction>,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Arguments that name a consumer group of a stream.
#[derive(Args, Clone, Debug)]
pub(crate) struct GroupArgs {
    /// Name of the stream
    pub stream: String,
    /// Name of the consumer group
    pub group: String,
}

/// Order in which a group delivers records with the same key.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupOrder {
    /// Any member gets any record at any time
    Competing,
    /// Records with the same key are delivered in order, one at a time
    PerKey,
}

/// Settings of a group. A setting that the user does not give keeps its value; in a new group it has its default.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeliveryArgs {
    /// Time within which a member must ack a record; after it the record is delivered again [default: 30s]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub ack_deadline: Option<Duration>,
    /// Number of deliveries without an ack after which a record becomes a dead letter
    #[arg(long, value_name = "N", conflicts_with = "any_deliveries")]
    pub max_deliveries: Option<u32>,
    /// Deliver a record without a limit on the number of deliveries
    #[arg(long)]
    pub any_deliveries: bool,
    /// Maximum number of unacked records, including dead letters that are not yet appended to their stream; at the
    /// limit, no new records are delivered [default: 20000]
    #[arg(long, value_name = "N")]
    pub max_pending: Option<u32>,
    /// Stream to which dead letters are appended; without one they are dropped and counted
    #[arg(long, value_name = "STREAM", conflicts_with = "no_dead_letters")]
    pub dead_letters: Option<String>,
    /// Drop dead letters instead of appending them to a stream
    #[arg(long)]
    pub no_dead_letters: bool,
}

/// Argument that names a position in a stream.
#[derive(Args, Clone, Debug)]
#[group(required = false, multiple = false)]
pub(crate) struct StreamPosition {
    /// Position in the stream: `start`, `end`, or an offset
    #[arg(long, value_name = "PLACE", value_parser = parse_place)]
    pub to: Option<Value>,
    /// Position at the first record since this time: a span before now (10m), 2026-11-20, 2026-11-20T08:30:00Z, or
    /// microseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<StartTime>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum GroupAction {
    /// List the groups of a stream, or of all streams
    List {
        /// List only groups of this stream
        stream: Option<String>,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Show a group: lag, pending records, members
    #[command(alias = "stats")]
    Show {
        #[command(flatten)]
        of: GroupArgs,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Create a group, and its stream if it does not exist; an existing group is not changed
    Create {
        #[command(flatten)]
        of: GroupArgs,
        /// Order of delivery, which cannot be changed later
        #[arg(long, value_enum, default_value = "competing")]
        order: GroupOrder,
        #[command(flatten)]
        delivering: DeliveryArgs,
        /// First position to deliver: `start`, `end`, or an offset [default: start]
        #[arg(long, value_name = "PLACE", value_parser = parse_place, conflicts_with = "since")]
        from: Option<Value>,
        /// Deliver records since this time: a span before now (10m), 2026-11-20, 2026-11-20T08:30:00Z, or
        /// microseconds since 1970
        #[arg(long, value_name = "TIME", value_parser = parse_since)]
        since: Option<StartTime>,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Change the named settings of a group; the others keep their values
    #[command(alias = "config")]
    Configure {
        #[command(flatten)]
        of: GroupArgs,
        #[command(flatten)]
        delivering: DeliveryArgs,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Move a group to another position; its deliveries and acks are forgotten
    Seek {
        #[command(flatten)]
        of: GroupArgs,
        #[command(flatten)]
        at: StreamPosition,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Drop a group; its stream stays
    #[command(alias = "delete")]
    Drop {
        #[command(flatten)]
        of: GroupArgs,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Ack records that `thalweg consume --ack none` printed
    #[command(after_help = "Examples:\n  thalweg groups ack orders billing 1763700000000001\n  \
                            thalweg groups ack orders billing 1763700000000001:0-4,9    # only these offsets\n\n\
                            Ends with 4 if an attempt had lapsed, or was settled before.")]
    Ack {
        #[command(flatten)]
        of: GroupArgs,
        /// Numbers of the delivery attempts whose records to ack; offsets after a colon select some of their records
        #[arg(required = true, value_name = "ATTEMPT[:OFFSETS]", value_parser = parse_attempt)]
        attempts: Vec<Value>,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Return records, so that they are delivered again or become dead letters
    Nack {
        #[command(flatten)]
        of: GroupArgs,
        /// Numbers of the delivery attempts whose records to return; offsets after a colon select some of their records
        #[arg(required = true, value_name = "ATTEMPT[:OFFSETS]", value_parser = parse_attempt)]
        attempts: Vec<Value>,
        /// Time until the next delivery [default: immediately]
        #[arg(long, value_name = "SPAN", value_parser = parse_span, group = "again")]
        delay: Option<Duration>,
        /// Make the records dead letters immediately
        #[arg(long, group = "again")]
        reject: bool,
        /// Deliver again immediately, and do not count this delivery
        #[arg(long, group = "again")]
        uncounted: bool,
        /// Reason to store in a dead letter
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Extend the ack deadlines of delivery attempts
    Extend {
        #[command(flatten)]
        of: GroupArgs,
        /// Numbers of the delivery attempts whose ack deadlines to extend
        #[arg(required = true)]
        attempts: Vec<u64>,
        /// Time from now until the new deadline
        #[arg(long, value_name = "SPAN", value_parser = parse_span)]
        by: Duration,
        #[command(flatten)]
        place: TargetArgs,
    },
}

impl Groups {
    /// Returns the options that name the server or the directory. The user can pass them to the command or to its
    /// subcommand.
    pub(crate) fn place(&self) -> &TargetArgs {
        match &self.action {
            None => &self.place,
            Some(
                GroupAction::List { place, .. }
                | GroupAction::Show { place, .. }
                | GroupAction::Create { place, .. }
                | GroupAction::Configure { place, .. }
                | GroupAction::Seek { place, .. }
                | GroupAction::Drop { place, .. }
                | GroupAction::Ack { place, .. }
                | GroupAction::Nack { place, .. }
                | GroupAction::Extend { place, .. },
            ) => place,
        }
    }
}

/// Parses `start`, `end` or an offset into the JSON that the HTTP API expects.
fn parse_place(text: &str) -> Result<Value, String> {
    match text {
        "start" | "end" => Ok(json!(text)),
        offset => offset
            .parse::<u64>()
            .map(|offset| json!({ "offset": offset }))
            .map_err(|_| "use start, end or an offset".to_owned()),
    }
}

/// Parses the number of a delivery attempt such as `7`, or a number with offsets of records such as `7:0-4,9`, into the
/// JSON that the HTTP API expects.
fn parse_attempt(text: &str) -> Result<Value, String> {
    let expected = || "use an attempt, or an attempt with offsets: 7 or 7:0-4,9".to_owned();
    let number = |text: &str| text.parse::<u64>().map_err(|_| expected());
    let Some((attempt, offsets)) = text.split_once(':') else { return Ok(json!({ "attempt": number(text)? })) };
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Ok([number(first)?, number(last)?])
    };
    let ranges = offsets.split(',').map(range).collect::<Result<Vec<_>, String>>()?;
    Ok(json!({ "attempt": number(attempt)?, "ranges": ranges }))
}

fn time(since: StartTime) -> Value {
    json!({ "time_micros": since.time().micros() })
}

impl DeliveryArgs {
    fn object(&self) -> Map<String, Value> {
        let mut object = Map::new();
        if let Some(deadline) = self.ack_deadline {
            object.insert("ack_deadline_seconds".into(), json!(deadline.as_secs_f64()));
        }
        if self.max_deliveries.is_some() || self.any_deliveries {
            object.insert("max_deliveries".into(), json!(self.max_deliveries));
        }
        if let Some(max) = self.max_pending {
            object.insert("max_pending".into(), json!(max));
        }
        if self.dead_letters.is_some() || self.no_dead_letters {
            object.insert("dead_letters".into(), json!(self.dead_letters));
        }
        object
    }
}

pub(crate) fn run(args: &Groups) -> Result<(), Failure> {
    let place = args.place();
    match &args.action {
        None => list(place, None),
        Some(GroupAction::List { stream, .. }) => list(place, stream.as_deref()),
        Some(GroupAction::Show { of, .. }) => show(&call(place, GroupCall::Get, of, &Value::Null)?, place.json),
        Some(GroupAction::Create { of, order, delivering, from, since, .. }) => {
            let mut object = delivering.object();
            object.insert(
                "order".into(),
                json!(match order {
                    GroupOrder::Competing => "competing",
                    GroupOrder::PerKey => "per_key",
                }),
            );
            if let Some(start) = from.clone().or(since.map(time)) {
                object.insert("start".into(), start);
            }
            let group = call(place, GroupCall::Create, of, &Value::Object(object))?;
            if group["created"] == json!(false) {
                render::note("the group existed and was not changed; `thalweg groups configure` changes it");
            }
            show(&group, place.json)
        }
        Some(GroupAction::Configure { of, delivering, .. }) => {
            call(place, GroupCall::Configure, of, &Value::Object(delivering.object()))?;
            show(&call(place, GroupCall::Get, of, &Value::Null)?, place.json)
        }
        Some(GroupAction::Seek { of, at, .. }) => {
            let to = at.to.clone().or(at.since.map(time));
            let to =
                to.ok_or_else(|| Failure::usage("name the position: --to start, end or an offset, or --since TIME"))?;
            let sought = call(place, GroupCall::Seek, of, &json!({ "to": to }))?;
            print_result(&sought, place.json, || format!("ok, continues at offset {}", sought["cursor"]))
        }
        Some(GroupAction::Drop { of, .. }) => {
            call(place, GroupCall::Delete, of, &Value::Null)?;
            print_result(&json!({ "dropped": of.group, "stream": of.stream }), place.json, || {
                format!("ok, {} is gone; {} stays", of.group, of.stream)
            })
        }
        Some(GroupAction::Ack { of, attempts, .. }) => {
            settled(&call(place, GroupCall::Ack, of, &json!({ "attempts": attempts }))?, place.json)
        }
        Some(GroupAction::Nack { of, attempts, delay, reject, uncounted, reason, .. }) => {
            let mut body = json!({ "attempts": attempts, "reject": reject, "uncounted": uncounted, "reason": reason });
            if let Some(delay) = delay {
                body["delay_seconds"] = json!(delay.as_secs_f64());
            }
            settled(&call(place, GroupCall::Nack, of, &body)?, place.json)
        }
        Some(GroupAction::Extend { of, attempts, by, .. }) => {
            let body = json!({ "attempts": attempts, "by_seconds": by.as_secs_f64() });
            let extended = call(place, GroupCall::Extend, of, &body)?;
            finish(
                &extended,
                place.json,
                format!("{} extended to {} from now", extended_count(attempts, &extended), show_span(*by)),
            )
        }
    }
}

fn call(place: &TargetArgs, call: GroupCall, of: &GroupArgs, body: &Value) -> Result<Value, Failure> {
    let access = if call == GroupCall::Create { Access::Write } else { Access::Read };
    Session::with(place, access, |session| session.group(call, &of.stream, &of.group, body))
}

fn settled(settled: &Value, json: bool) -> Result<(), Failure> {
    let records = render::counted(settled["settled"].as_u64().unwrap_or_default(), "record", "records");
    let level = settled["durability"].as_str().unwrap_or_default();
    finish(settled, json, format!("{records}, durability {level}"))
}

/// Prints the outcome of an ack, a nack or an extension. `done` describes it. If the server acked, nacked or extended
/// everything that the user named, prints `ok` and `done`. Otherwise returns a failure that names the remaining records
/// and includes `done`: these records were acked or nacked before, or their deadline has passed.
fn finish(outcome: &Value, json: bool, done: String) -> Result<(), Failure> {
    let lapsed = outcome["lapsed"].as_array().map_or(&[][..], Vec::as_slice);
    if json {
        render::line(&outcome.to_string())?;
    }
    if lapsed.is_empty() {
        return if json { Ok(()) } else { render::line(&format!("ok, {done}")) };
    }
    let attempts: Vec<_> = lapsed.iter().map(attempt_text).collect();
    let message = format!("attempts have lapsed: {}; done: {done}", attempts.join(", "));
    Err(Failure::new(Exit::Conflict, "attempt_lapsed", message)
        .then("they were settled before, or their deadline has passed and they are delivered again"))
}

/// Returns a text with the number of delivery attempts whose ack deadlines were extended.
fn extended_count(attempts: &[u64], extended: &Value) -> String {
    let lapsed = extended["lapsed"].as_array().map_or(0, Vec::len);
    render::counted(attempts.len().saturating_sub(lapsed) as u64, "attempt", "attempts")
}

/// Formats an attempt that the user typed: its number, and after a colon the offsets of records that could not be
/// acked, nacked or extended. Leaves out the offsets if this concerns all records of the attempt.
fn attempt_text(lapsed: &Value) -> String {
    let attempt = lapsed.get("attempt").unwrap_or(lapsed);
    match (&lapsed["range"][0], &lapsed["range"][1]) {
        (Value::Null, _) => attempt.to_string(),
        (first, last) if first == last => format!("{attempt}:{first}"),
        (first, last) => format!("{attempt}:{first}-{last}"),
    }
}

fn list(place: &TargetArgs, stream: Option<&str>) -> Result<(), Failure> {
    let groups = Session::with(place, Access::Read, |session| session.groups(stream))?;
    if place.json {
        return groups.iter().try_for_each(|group| render::line(&group.to_string()));
    }
    if groups.is_empty() {
        render::note("no consumer groups yet: `thalweg groups create STREAM GROUP` creates one");
        return Ok(());
    }
    show_table(&groups)
}

fn show(group: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return render::line(&group.to_string());
    }
    show_table(std::slice::from_ref(group))?;
    let members = group["members"].as_array().map_or(&[][..], Vec::as_slice);
    if members.is_empty() {
        return Ok(());
    }
    let rows = members.iter().map(|member| {
        let text = |name: &str| member[name].as_str().unwrap_or_default().to_owned();
        vec![text("name"), count(&member["in_flight"]), count(&member["attempts"]), text("last_fetch")]
    });
    render::line(&format!("\n{}", render::table(&["member", "in flight", "attempts", "last fetch"], rows)))
}

fn count(value: &Value) -> String {
    render::count(value.as_u64().unwrap_or_default())
}

fn show_table(groups: &[Value]) -> Result<(), Failure> {
    let header =
        ["stream", "group", "order", "lag", "pending", "dying", "acked", "redelivered", "dead", "dropped", "members"];
    let rows = groups.iter().map(|group| {
        let mut row = vec![
            group["stream"].as_str().unwrap_or_default().to_owned(),
            group["name"].as_str().unwrap_or_default().to_owned(),
            group["config"]["order"].as_str().unwrap_or_default().to_owned(),
        ];
        row.extend(
            ["lag", "pending", "dying", "acked", "redelivered", "dead", "dropped"].map(|name| count(&group[name])),
        );
        row.push(group["members"].as_array().map_or(0, Vec::len).to_string());
        row
    });
    render::line(&render::table(&header, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_may_have_offsets() {
        assert_eq!(parse_attempt("7"), Ok(json!({ "attempt": 7 })));
        assert_eq!(parse_attempt("7:0-4,9"), Ok(json!({ "attempt": 7, "ranges": [[0, 4], [9, 9]] })));
        for bad in ["", "x", "7:", "7:a", "7:1-", "7:1-2-3", "7,8"] {
            assert!(parse_attempt(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lapsed_attempts_are_shown_as_they_are_typed() {
        for (json, text) in [
            (json!(7), "7"),
            (json!({ "attempt": 7 }), "7"),
            (json!({ "attempt": 7, "range": [1, 1] }), "7:1"),
            (json!({ "attempt": 7, "range": [1, 4] }), "7:1-4"),
        ] {
            assert_eq!(attempt_text(&json), text);
            assert!(parse_attempt(text).is_ok());
        }
    }

    #[test]
    fn places_are_words_or_offsets() {
        assert_eq!(parse_place("end"), Ok(json!("end")));
        assert_eq!(parse_place("42"), Ok(json!({ "offset": 42 })));
        assert!(parse_place("middle").is_err());
    }
}
