//! `streams`: lists and manages streams and their producers.
//!
//! Owns: the arguments and the output of its subcommands, and the settings that they send. Does not own: the requests
//! (`session/streams`), or reading and writing records (`stream`).

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    args::{Plain, TargetArgs},
    failure::Failure,
    render,
    session::{Access, ProducerReply, Session, StreamReply},
    span::{Limit, limit_json, parse_bytes, parse_limit, parse_span, show_span, show_time},
};

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Streams {
    #[command(subcommand)]
    pub action: Option<StreamAction>,
    #[command(flatten)]
    pub place: TargetArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum StreamAction {
    /// List all streams
    List(Plain),
    /// Show a stream
    #[command(alias = "stats")]
    Show(Named),
    /// Create a stream; an existing one is not changed
    Create(Configured),
    /// Change the named settings of a stream, which is created if it does not exist; other settings keep their values
    #[command(alias = "config")]
    Configure(Configured),
    /// List the producers that a stream remembers
    Producers(Named),
    /// Give a producer a new epoch and print it; clients with an earlier epoch can no longer append
    OpenProducer {
        /// Name of the stream, which is created if it does not exist
        stream: String,
        /// Id of the producer
        producer: String,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Remove the records below an offset
    Trim {
        /// Name of the stream
        stream: String,
        /// The first offset to keep
        #[arg(long, value_name = "OFFSET")]
        before: u64,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// Drop a stream and its records
    #[command(alias = "delete")]
    Drop(Named),
}

/// Arguments of actions on an existing stream.
#[derive(Args, Debug)]
pub(crate) struct Named {
    /// Name of the stream
    pub stream: String,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Arguments of actions that set options of a stream. A new stream has no limit and keeps everything, unless settings
/// say otherwise.
#[derive(Args, Debug)]
pub(crate) struct Configured {
    /// Name of the stream
    pub stream: String,
    /// Remove records older than this span of time; none means no limit
    #[arg(long, value_name = "SPAN", value_parser = |text: &str| parse_limit(text, parse_span))]
    pub max_age: Option<Limit<Duration>>,
    /// Remove the oldest batches while the stream has more bytes than this; none means no limit
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| parse_limit(text, parse_bytes))]
    pub max_bytes: Option<Limit<u64>>,
    /// Remove the oldest records while the stream has more records than this; none means no limit
    #[arg(long, value_name = "N", value_parser = |text: &str| parse_limit(text, parse_count))]
    pub max_records: Option<Limit<u64>>,
    /// Reject records of more bytes than this; none means no limit
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| parse_limit(text, parse_bytes))]
    pub max_record_bytes: Option<Limit<u64>>,
    /// Reject appends of more bytes than this; none means no limit
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| parse_limit(text, parse_bytes))]
    pub max_batch_bytes: Option<Limit<u64>>,
    /// Keep only the newest record of each key; --compact=false keeps all of them from now on
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub compact: Option<bool>,
    /// Time for which a tombstone is kept after its append [default: 1d]
    #[arg(long, value_name = "SPAN", value_parser = parse_span, requires = "compact")]
    pub tombstone_grace: Option<Duration>,
    #[command(flatten)]
    pub place: TargetArgs,
}

fn parse_count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "use a whole number".to_owned())
}

impl Configured {
    /// Returns the settings that the user gives, as JSON for the HTTP API. `old` is the configuration of the stream, or
    /// null if the stream does not exist. A stream that is already compacted keeps its grace time (for which tombstones
    /// stay) unless the user gives another one.
    fn config(&self, old: &Value) -> Value {
        let mut object = Map::new();
        let mut add = |name: &str, limit: Option<Value>| object.extend(limit.map(|limit| (name.to_owned(), limit)));
        add("max_age_seconds", self.max_age.map(|limit| limit_json(limit, |age| json!(age.as_secs_f64()))));
        let counts = [
            ("max_bytes", self.max_bytes),
            ("max_records", self.max_records),
            ("max_record_bytes", self.max_record_bytes),
            ("max_batch_bytes", self.max_batch_bytes),
        ];
        for (name, limit) in counts {
            add(name, limit.map(|limit| limit_json(limit, |count| json!(count))));
        }
        add(
            "compaction",
            self.compact.map(|is_on| match (is_on, self.tombstone_grace) {
                (false, _) => Value::Null,
                (true, Some(grace)) => json!({ "tombstone_grace_seconds": grace.as_secs_f64() }),
                (true, None) if old["compaction"].is_object() => old["compaction"].clone(),
                (true, None) => json!({}),
            }),
        );
        Value::Object(object)
    }
}

pub(crate) fn run(args: &Streams) -> Result<(), Failure> {
    match &args.action {
        None => list(&args.place),
        Some(StreamAction::List(plain)) => list(&plain.place),
        Some(StreamAction::Show(Named { stream, place })) => {
            show(&[Session::with(place, Access::Read, |session| session.stream(stream))?], place.json)
        }
        Some(StreamAction::Create(wanted)) => {
            let (place, config) = (&wanted.place, wanted.config(&Value::Null));
            let create = |session: &Session| session.create_stream(&wanted.stream, &config);
            let (row, created) = Session::with(place, Access::Write, create)?;
            if !created {
                render::note("the stream existed and was not changed; `thalweg streams configure` changes it");
            }
            show(&[row], place.json)
        }
        Some(StreamAction::Configure(wanted)) => {
            let configure = |session: &Session| session.configure_stream(&wanted.stream, |old| wanted.config(old));
            show(&[Session::with(&wanted.place, Access::Write, configure)?], wanted.place.json)
        }
        Some(StreamAction::Producers(Named { stream, place })) => {
            let rows = Session::with(place, Access::Read, |session| session.producers(stream))?;
            show_producers(stream, &rows, place.json)
        }
        Some(StreamAction::OpenProducer { stream, producer, place }) => {
            let epoch = Session::with(place, Access::Write, |session| session.open_producer(stream, producer))?;
            let object = json!({"id": producer, "epoch": epoch, "next_sequence": 0});
            render::print_result(&object, place.json, || epoch.to_string())
        }
        Some(StreamAction::Trim { stream, before, place }) => {
            show(&[Session::with(place, Access::Read, |session| session.trim_stream(stream, *before))?], place.json)
        }
        Some(StreamAction::Drop(Named { stream, place })) => {
            Session::with(place, Access::Read, |session| session.delete_stream(stream))?;
            render::print_result(&json!({"dropped": stream}), place.json, || format!("ok, {stream} is gone"))
        }
    }
}

fn list(place: &TargetArgs) -> Result<(), Failure> {
    let rows = Session::with(place, Access::Read, Session::streams)?;
    if rows.is_empty() && !place.json {
        render::note("no streams yet: `thalweg append STREAM RECORD` creates one");
        return Ok(());
    }
    show(&rows, place.json)
}

/// Prints each row as one line of JSON.
fn json_lines(rows: &[impl Serialize]) -> Result<(), Failure> {
    rows.iter().try_for_each(|row| render::line(&json!(row).to_string()))
}

fn show(rows: &[StreamReply], json: bool) -> Result<(), Failure> {
    if json {
        return json_lines(rows);
    }
    let shown = rows.iter().map(|row| {
        vec![
            row.name.clone(),
            row.start.to_string(),
            row.next.to_string(),
            render::count(row.next - row.start),
            render::bytes(row.bytes),
            if row.last_time_micros == 0 { "-".to_owned() } else { show_time(row.last_time_micros) },
            keeps(&row.config),
        ]
    });
    render::line(&render::table(&["stream", "start", "next", "records", "bytes", "newest", "keeps"], shown))
}

fn show_producers(stream: &str, rows: &[ProducerReply], json: bool) -> Result<(), Failure> {
    if json {
        return json_lines(rows);
    }
    if rows.is_empty() {
        render::note(&format!(
            "no producers yet: `thalweg append {stream} RECORD --producer ID --sequence 0` creates one"
        ));
        return Ok(());
    }
    let shown = rows.iter().map(|row| {
        vec![row.id.clone(), row.epoch.to_string(), row.next_sequence.to_string(), show_time(row.last_time_micros)]
    });
    render::line(&render::table(&["producer", "epoch", "next sequence", "last append"], shown))
}

/// Formats the retention of a stream: its limits on age, bytes and records, and compaction.
fn keeps(config: &Value) -> String {
    let age = config["max_age_seconds"].as_f64().and_then(|age| Duration::try_from_secs_f64(age).ok());
    let limits = [
        age.map(show_span),
        config["max_bytes"].as_u64().map(render::bytes),
        config["max_records"].as_u64().map(|records| render::counted(records, "record", "records")),
        config["compaction"].is_object().then(|| "newest of each key".to_owned()),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    if limits.is_empty() { "everything".to_owned() } else { limits.join(", ") }
}
