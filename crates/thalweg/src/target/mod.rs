//! What client commands talk to: a server ([`remote::Remote`]) or a directory ([`local::Local`]).
//!
//! Owns: the one trait that keeps commands identical for both, and the types it speaks. The two
//! implementations translate; they decide nothing.

pub mod answer;
pub mod caches;
pub mod coordinate;
pub mod events;
pub mod groups;
pub mod http;
pub mod local;
pub mod past;
pub mod remote;
pub mod snapshot;
pub mod subjects;
pub mod time;
pub mod watch;

use std::{ops::ControlFlow, path::PathBuf, time::Duration};

use clap::Args;
use serde_json::{Map, Value, json};
use thalweg_server::GroupCall;
use thalweg_types::{
    Durability,
    command::{AppendTerms, Expect, KeyspaceHistory, StreamConfig},
};

use crate::{failure::Failure, render::take_bytes};

/// Where a server is looked for when nothing else is said.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

/// Options that every client command takes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Where")]
pub struct Place {
    /// Talk to this server [env: THALWEG_SERVER] [default: http://127.0.0.1:7070]
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    pub server: Option<String>,
    /// Open this directory instead; no server may have it open
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// What an acknowledged write promises: none, os, interval, disk or quorum [default: the server's; disk with --data]
    #[arg(long, value_name = "LEVEL")]
    pub durability: Option<Durability>,
    /// Give up on a server that does not answer for so long
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = crate::span::parse_span)]
    pub timeout: Duration,
    /// Print JSON: one object, or one a line where there are many; errors on stderr too
    #[arg(long)]
    pub json: bool,
}

/// What a command does to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads. A missing directory is not created.
    Read,
    /// Looks at the state as the log has it: no maintenance runs, and no entry is written at the end, so whoever looks
    /// again finds the same.
    Inspect,
    /// Writes. A missing directory is created.
    Write,
}

impl Place {
    /// Opens the directory or prepares to talk to the server.
    pub fn open(&self, access: Access) -> Result<Box<dyn Target>, Failure> {
        if let Some(data) = &self.data {
            return Ok(Box::new(local::Local::open(data, access, self.durability)?));
        }
        Ok(Box::new(remote::Remote::new(&self.url(), self.durability, self.timeout)?))
    }

    /// The server that is meant, unless it is a directory.
    pub(crate) fn url(&self) -> String {
        url(self.server.as_ref())
    }
}

fn url(server: Option<&String>) -> String {
    let url = server.cloned().or_else(|| std::env::var("THALWEG_SERVER").ok().filter(|url| !url.is_empty()));
    url.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}

/// Options of commands that need a server: what they are about is in no directory.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Where")]
pub struct ServerPlace {
    /// Talk to this server [env: THALWEG_SERVER] [default: http://127.0.0.1:7070]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Give up on a server that does not answer for so long
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = crate::span::parse_span)]
    pub timeout: Duration,
    /// Print JSON: one object, or one a line where there are many; errors on stderr too
    #[arg(long)]
    pub json: bool,
}

impl ServerPlace {
    /// Prepares to talk to it.
    pub fn http(&self) -> Result<http::Http, Failure> {
        http::Http::new(&url(self.server.as_ref()), self.timeout)
    }
}

/// An acknowledged write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The level that was reached.
    pub durability: Durability,
    /// `None` at level `none`.
    pub revision: Option<u64>,
}

/// A producer of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerRow {
    pub id: String,
    pub epoch: u64,
    pub next_sequence: u64,
    /// In microseconds since 1970.
    pub last_time: u64,
}

/// Acknowledged records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    pub durability: Durability,
    /// First and next offset; `None` at level `none`.
    pub offsets: Option<(u64, u64)>,
    /// Whether a producer had sent it before.
    pub duplicate: bool,
}

/// A value as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub value: Vec<u8>,
    pub revision: u64,
}

/// What a scan covers.
#[derive(Clone, Debug, Default)]
pub struct ScanQuery {
    pub prefix: Vec<u8>,
    /// First key wanted.
    pub start: Option<Vec<u8>>,
    /// First key no longer wanted.
    pub end: Option<Vec<u8>>,
    pub limit: Option<u64>,
    pub reverse: bool,
    pub keys_only: bool,
    /// What the keyspace held then.
    pub revision: Option<u64>,
    /// Goes on behind an earlier page.
    pub cursor: Option<String>,
}

/// A pair as scanned; `value` is `None` if only keys were asked for.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
    pub revision: u64,
}

/// A record to append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRecord {
    pub key: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub payload: Vec<u8>,
    /// It says that its key is gone.
    pub is_tombstone: bool,
}

/// A record as read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamRecord {
    pub offset: u64,
    /// Microseconds since the epoch.
    pub time: u64,
    pub key: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub payload: Vec<u8>,
    /// It says that its key is gone.
    pub is_tombstone: bool,
}

/// A stream and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRow {
    pub name: String,
    /// Oldest kept.
    pub start: u64,
    /// Next to assign.
    pub next: u64,
    pub bytes: u64,
    /// Space time of the newest record, 0 if there never was one.
    pub last_time: u64,
    pub config: StreamConfig,
}

/// What of a keyspace's configuration is asked for; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyspaceChange {
    pub exact_counts: Option<bool>,
    pub default_ttl: Option<Duration>,
    pub history: Option<KeyspaceHistory>,
}

/// Called with each pair; `Break` ends the scan early.
pub type VisitPairs<'v> = &'v mut dyn FnMut(Pair<'_>) -> Result<ControlFlow<()>, Failure>;
/// Called with each record; `Break` ends the read early.
pub type VisitRecords<'v> = &'v mut dyn FnMut(StreamRecord) -> Result<ControlFlow<()>, Failure>;

/// A node as a client sees it.
pub trait Target: time::TimeTarget + past::PastTarget {
    fn put(&self, keyspace: &str, key: &[u8], value: &[u8], expect: Option<Expect<'_>>) -> Result<Written, Failure>;
    /// All or none, in one commit.
    fn put_many(&self, keyspace: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Written, Failure>;
    fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Found>, Failure>;
    /// Deleting what is not there succeeds, unless a condition says otherwise.
    fn delete(&self, keyspace: &str, key: &[u8], expect: Option<Expect<'_>>) -> Result<Written, Failure>;
    /// A keyspace that does not exist holds nothing. Answers with a cursor if the limit left something out.
    fn scan(&self, keyspace: &str, query: &ScanQuery, visit: VisitPairs<'_>) -> Result<Option<String>, Failure>;
    fn keyspaces(&self) -> Result<Vec<String>, Failure>;
    /// Changes from a revision on, and then as they happen, until told to stop.
    fn watch(&self, keyspace: &str, query: &watch::WatchQuery, visit: watch::VisitChanges<'_>) -> Result<(), Failure>;
    /// Adds to a counter: what it is then.
    fn add(&self, keyspace: &str, key: &[u8], delta: i64) -> Result<(i64, Written), Failure>;
    /// Removes all keys with a prefix: how many, unless they were too many to count.
    fn delete_prefix(&self, keyspace: &str, prefix: &[u8]) -> Result<(Option<u64>, Written), Failure>;
    /// Carries out a commit, written and answered as the API does.
    fn commit(&self, commit: &[u8]) -> Result<Value, Failure>;
    /// Carries out a transaction, written and answered as the API does.
    fn transact(&self, transaction: &[u8]) -> Result<Value, Failure>;
    /// A keyspace and its statistics, as the API shows it.
    fn keyspace(&self, name: &str) -> Result<Value, Failure>;
    /// Creates a keyspace; one that exists is left as it is.
    fn create_keyspace(&self, name: &str, change: &KeyspaceChange) -> Result<Value, Failure>;
    fn configure_keyspace(&self, name: &str, change: &KeyspaceChange) -> Result<Value, Failure>;
    fn drop_keyspace(&self, name: &str) -> Result<(), Failure>;

    /// Appends all or none; creates the stream if needed.
    fn append(&self, stream: &str, records: &[NewRecord], terms: &AppendTerms<'_>) -> Result<Appended, Failure>;
    /// Records from `from` to the end as of now, at most `limit`.
    fn read(&self, stream: &str, from: u64, limit: u64, visit: VisitRecords<'_>) -> Result<(), Failure>;
    /// As `read`, and then goes on as records come in, until told to stop.
    fn tail(&self, stream: &str, from: u64, visit: VisitRecords<'_>) -> Result<(), Failure>;
    /// What the stream remembers of its producers.
    fn producers(&self, stream: &str) -> Result<Vec<ProducerRow>, Failure>;
    /// Gives a producer a new epoch; creates the stream if needed. Answers with the epoch.
    fn open_producer(&self, stream: &str, id: &str) -> Result<u64, Failure>;
    /// The first offset whose record is not older than `micros`.
    fn offset_at(&self, stream: &str, micros: u64) -> Result<u64, Failure>;
    fn streams(&self) -> Result<Vec<StreamRow>, Failure>;
    fn stream(&self, name: &str) -> Result<StreamRow, Failure>;
    /// Creates a stream; one that exists is left as it is. Says whether it was created.
    fn create_stream(&self, name: &str, config: &StreamConfig) -> Result<(StreamRow, bool), Failure>;
    /// Creates a stream, or gives an existing one this configuration.
    fn configure_stream(&self, name: &str, config: &StreamConfig) -> Result<StreamRow, Failure>;
    /// Drops the records below `before`.
    fn trim_stream(&self, name: &str, before: u64) -> Result<StreamRow, Failure>;
    fn delete_stream(&self, name: &str) -> Result<(), Failure>;

    /// Asks something of a stream's groups, in the words of the API.
    fn group(&self, call: GroupCall, stream: &str, group: &str, body: &Value) -> Result<Value, Failure>;
    /// Takes what is pushed to a member of a group, until the server or `visit` ends it.
    fn push(
        &self,
        stream: &str,
        group: &str,
        ask: &groups::PushAsk<'_>,
        visit: groups::VisitPushed<'_>,
    ) -> Result<(), Failure>;
    /// Takes a snapshot into a file.
    fn snapshot(&self, ask: &mut snapshot::SnapshotAsk<'_>, out: &mut snapshot::PartialFile) -> Result<(), Failure>;

    /// The digest of the state; `progress` is told how many rows have been read, if that is known here.
    fn state_digest(&self, progress: &mut dyn FnMut(u64)) -> Result<Value, Failure>;

    /// The digest that was computed last.
    fn last_state_digest(&self) -> Result<Value, Failure>;

    /// The version of the state machine in force, and the highest one that the node knows.
    fn state_version(&self) -> Result<Value, Failure>;

    /// Raises the version of the state machine in force.
    fn raise_version(&self, to: u16) -> Result<Value, Failure>;

    fn status(&self) -> Result<Value, Failure>;
    /// Ends cleanly; a directory is flushed, so that the next open is fast.
    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// Whether a condition holds for a key that is not there.
pub fn holds_for_absent(expect: Expect<'_>) -> bool {
    match expect {
        Expect::Absent | Expect::Any => true,
        Expect::Before(revision) => revision.get() > 0,
        Expect::Unchanged(range) => range.count == 0,
        Expect::Present | Expect::Revision(_) | Expect::Value(_) | Expect::After(_) => false,
    }
}

/// A record as the API shows it.
pub fn record_of(object: &Map<String, Value>) -> Option<StreamRecord> {
    Some(StreamRecord {
        offset: object.get("offset")?.as_u64()?,
        time: object.get("time_micros").and_then(Value::as_u64).unwrap_or_default(),
        key: take_bytes(object, "key"),
        headers: headers_of(object),
        payload: take_bytes(object, "payload")?,
        is_tombstone: object.get("tombstone") == Some(&json!(true)),
    })
}

/// The headers of a record or message as the API shows it.
pub fn headers_of(object: &Map<String, Value>) -> Vec<(String, Vec<u8>)> {
    let header = |header: &Value| {
        let header = header.as_object()?;
        Some((header.get("name")?.as_str()?.to_owned(), take_bytes(header, "value")?))
    };
    let headers = object.get("headers").and_then(Value::as_array);
    headers.map(|headers| headers.iter().filter_map(header).collect()).unwrap_or_default()
}

/// What to do about a stream that is not there.
pub const STREAMS_HINT: &str = "`thalweg streams` lists what is there; `thalweg append` creates one";

/// The failure of a stream that is not there.
pub fn no_such_stream(name: &str) -> Failure {
    Failure::new(crate::failure::Exit::NotFound, "no_such_stream", format!("there is no stream named {name:?}"))
        .then(STREAMS_HINT)
}

/// What a stream keeps, as the API writes it.
pub fn config_json(config: &StreamConfig) -> Value {
    json!({
        "max_age_seconds": config.max_age.map(|age| age.as_secs_f64()),
        "max_bytes": config.max_bytes,
        "max_records": config.max_records,
        "max_record_bytes": config.max_record_bytes,
        "max_batch_bytes": config.max_batch_bytes,
        "compaction": config.compaction.map(|compaction| json!({
            "tombstone_grace_seconds": compaction.tombstone_grace.as_secs_f64(),
        })),
    })
}
