//! `streams`: lists and manages streams and their producers.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    args::{Plain, TargetArgs},
    failure::Failure,
    render,
    session::{Access, ProducerRow, Session, StreamRow},
    span::{parse_bytes, parse_span, show_span, show_time},
};

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Streams {
    #[command(subcommand)]
    pub action: Option<StreamAction>,
    #[command(flatten)]
    pub place: TargetArgs,
}

#[derive(Subcommand, Debug)]
pub enum StreamAction {
    /// List all streams
    List(Plain),
    /// Show one stream
    Show(Named),
    /// Create a stream; an existing one is not changed
    Create(Configured),
    /// Create a stream, or replace the whole configuration of an existing one
    #[command(visible_alias = "config")]
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
    /// Delete a stream and its records
    Delete(Named),
}

/// A stream.
#[derive(Args, Debug)]
pub struct Named {
    /// Name of the stream
    pub stream: String,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// A stream with its configuration. Without a limit it keeps everything.
#[derive(Args, Debug)]
pub struct Configured {
    /// Name of the stream
    pub stream: String,
    /// Remove records older than this span of time
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub max_age: Option<Duration>,
    /// Remove the oldest batches while the stream has more bytes than this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_bytes: Option<u64>,
    /// Remove the oldest records while the stream has more records than this
    #[arg(long, value_name = "N")]
    pub max_records: Option<u64>,
    /// Reject records of more bytes than this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_record_bytes: Option<u64>,
    /// Reject appends of more bytes than this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_batch_bytes: Option<u64>,
    /// Keep only the newest record of each key
    #[arg(long)]
    pub compact: bool,
    /// Time for which a tombstone is kept after its append
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "1d", requires = "compact")]
    pub tombstone_grace: Duration,
    #[command(flatten)]
    pub place: TargetArgs,
}

impl Configured {
    /// Returns the configuration that the user requests, as JSON for the HTTP API.
    fn config(&self) -> Value {
        json!({
            "max_age_seconds": self.max_age.map(|age| age.as_secs_f64()),
            "max_bytes": self.max_bytes,
            "max_records": self.max_records,
            "max_record_bytes": self.max_record_bytes,
            "max_batch_bytes": self.max_batch_bytes,
            "compaction": self.compact.then(|| json!({
                "tombstone_grace_seconds": self.tombstone_grace.as_secs_f64(),
            })),
        })
    }
}

pub fn run(args: &Streams) -> Result<(), Failure> {
    match &args.action {
        None => list(&args.place),
        Some(StreamAction::List(plain)) => list(&plain.place),
        Some(StreamAction::Show(Named { stream, place })) => {
            show(&[Session::with(place, Access::Read, |session| session.stream(stream))?], place.json)
        }
        Some(StreamAction::Create(wanted)) => {
            let (place, config) = (&wanted.place, wanted.config());
            let create = |session: &Session| session.create_stream(&wanted.stream, &config);
            let (row, created) = Session::with(place, Access::Write, create)?;
            if !created {
                render::note("the stream existed and was not changed; `thalweg streams configure` changes it");
            }
            show(&[row], place.json)
        }
        Some(StreamAction::Configure(wanted)) => {
            let (place, config) = (&wanted.place, wanted.config());
            let configure = |session: &Session| session.configure_stream(&wanted.stream, &config);
            show(&[Session::with(place, Access::Write, configure)?], place.json)
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
        Some(StreamAction::Delete(Named { stream, place })) => {
            Session::with(place, Access::Read, |session| session.delete_stream(stream))?;
            render::print_result(&json!({"deleted": stream}), place.json, || format!("ok, {stream} is gone"))
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

fn show(rows: &[StreamRow], json: bool) -> Result<(), Failure> {
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

fn show_producers(stream: &str, rows: &[ProducerRow], json: bool) -> Result<(), Failure> {
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

/// Formats the limits on what a stream keeps: age, bytes, number of records, compaction.
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
