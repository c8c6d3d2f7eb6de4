//! Targets of client commands: a server ([`remote::Remote`]) or a directory ([`local::Local`]).
//!
//! Owns: the trait that keeps commands identical for both, and its types. The two implementations only translate; they
//! make no decisions.

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

/// Address of the server if neither an option nor the environment names one.
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

/// Access of a command to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The command reads. A missing directory is not created.
    Read,
    /// The command inspects the state as the log has it. No maintenance runs and closing writes no entry, so that a
    /// second inspection finds the same state.
    Inspect,
    /// The command writes. A missing directory is created.
    Write,
}

impl Place {
    /// Opens the directory or prepares the connection to the server.
    pub fn open(&self, access: Access) -> Result<Box<dyn Target>, Failure> {
        if let Some(data) = &self.data {
            return Ok(Box::new(local::Local::open(data, access, self.durability)?));
        }
        Ok(Box::new(remote::Remote::new(&self.url(), self.durability, self.timeout)?))
    }

    /// Returns the address of the server, which is unused if a directory is given.
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
    /// Prepares the connection to the server.
    pub fn http(&self) -> Result<http::Http, Failure> {
        http::Http::new(&url(self.server.as_ref()), self.timeout)
    }
}

/// Acknowledgement of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Durability level that the write reached.
    pub durability: Durability,
    /// Revision of the write; `None` at level `none`.
    pub revision: Option<u64>,
}

/// State of a producer of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerRow {
    pub id: String,
    pub epoch: u64,
    pub next_sequence: u64,
    /// Time of the last append in microseconds since 1970.
    pub last_time: u64,
}

/// Acknowledgement of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    pub durability: Durability,
    /// First and next offset; `None` at level `none`.
    pub offsets: Option<(u64, u64)>,
    /// True if the producer had sent the append before.
    pub duplicate: bool,
}

/// Value of a key with its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub value: Vec<u8>,
    pub revision: u64,
}

/// Range and options of a scan.
#[derive(Clone, Debug, Default)]
pub struct ScanQuery {
    pub prefix: Vec<u8>,
    /// First key of the range, inclusive.
    pub start: Option<Vec<u8>>,
    /// End of the range, exclusive.
    pub end: Option<Vec<u8>>,
    pub limit: Option<u64>,
    pub reverse: bool,
    pub keys_only: bool,
    /// Revision at which to read the keyspace.
    pub revision: Option<u64>,
    /// Cursor of an earlier page after which to resume.
    pub cursor: Option<String>,
}

/// Pair of a scan; `value` is `None` if only keys were requested.
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
    /// True for a tombstone, which marks its key as deleted.
    pub is_tombstone: bool,
}

/// Record of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamRecord {
    pub offset: u64,
    /// Time of the append in microseconds since 1970.
    pub time: u64,
    pub key: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub payload: Vec<u8>,
    /// True for a tombstone, which marks its key as deleted.
    pub is_tombstone: bool,
}

/// Description of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRow {
    pub name: String,
    /// Oldest retained offset of the stream.
    pub start: u64,
    /// Offset that the next record will get.
    pub next: u64,
    pub bytes: u64,
    /// Space time of the newest record in microseconds since 1970; 0 if there never was one.
    pub last_time: u64,
    pub config: StreamConfig,
}

/// Requested change of a keyspace's configuration; `None` keeps a setting.
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

/// Interface of a node to client commands.
pub trait Target: time::TimeTarget + past::PastTarget {
    fn put(&self, keyspace: &str, key: &[u8], value: &[u8], expect: Option<Expect<'_>>) -> Result<Written, Failure>;
    /// Puts all pairs or none, in one commit.
    fn put_many(&self, keyspace: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Written, Failure>;
    fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Found>, Failure>;
    /// Deletes a key. A missing key is a success unless `expect` requires it.
    fn delete(&self, keyspace: &str, key: &[u8], expect: Option<Expect<'_>>) -> Result<Written, Failure>;
    /// Scans a keyspace; a missing one is empty. Returns a cursor if the limit left out pairs.
    fn scan(&self, keyspace: &str, query: &ScanQuery, visit: VisitPairs<'_>) -> Result<Option<String>, Failure>;
    fn keyspaces(&self) -> Result<Vec<String>, Failure>;
    /// Visits changes from a revision on and then as they happen, until `visit` ends it.
    fn watch(&self, keyspace: &str, query: &watch::WatchQuery, visit: watch::VisitChanges<'_>) -> Result<(), Failure>;
    /// Adds to a counter. Returns its new value.
    fn add(&self, keyspace: &str, key: &[u8], delta: i64) -> Result<(i64, Written), Failure>;
    /// Removes all keys with a prefix. Returns their number, unless there were too many to count.
    fn delete_prefix(&self, keyspace: &str, prefix: &[u8]) -> Result<(Option<u64>, Written), Failure>;
    /// Carries out a commit; request and answer are the API's.
    fn commit(&self, commit: &[u8]) -> Result<Value, Failure>;
    /// Carries out a transaction; request and answer are the API's.
    fn transact(&self, transaction: &[u8]) -> Result<Value, Failure>;
    /// Returns a keyspace with its statistics in the API's form.
    fn keyspace(&self, name: &str) -> Result<Value, Failure>;
    /// Creates a keyspace; an existing one is not changed.
    fn create_keyspace(&self, name: &str, change: &KeyspaceChange) -> Result<Value, Failure>;
    fn configure_keyspace(&self, name: &str, change: &KeyspaceChange) -> Result<Value, Failure>;
    fn drop_keyspace(&self, name: &str) -> Result<(), Failure>;

    /// Appends all records or none; creates the stream if it is missing.
    fn append(&self, stream: &str, records: &[NewRecord], terms: &AppendTerms<'_>) -> Result<Appended, Failure>;
    /// Visits records from `from` to the current end, at most `limit`.
    fn read(&self, stream: &str, from: u64, limit: u64, visit: VisitRecords<'_>) -> Result<(), Failure>;
    /// Like `read`, and then continues with new records until `visit` ends it.
    fn tail(&self, stream: &str, from: u64, visit: VisitRecords<'_>) -> Result<(), Failure>;
    /// Returns the stream's producers.
    fn producers(&self, stream: &str) -> Result<Vec<ProducerRow>, Failure>;
    /// Assigns a producer a new epoch and returns it; creates the stream if it is missing.
    fn open_producer(&self, stream: &str, id: &str) -> Result<u64, Failure>;
    /// Returns the first offset whose record is not older than `micros`, in microseconds since 1970.
    fn offset_at(&self, stream: &str, micros: u64) -> Result<u64, Failure>;
    fn streams(&self) -> Result<Vec<StreamRow>, Failure>;
    fn stream(&self, name: &str) -> Result<StreamRow, Failure>;
    /// Creates a stream; an existing one is not changed. Returns true if it was created.
    fn create_stream(&self, name: &str, config: &StreamConfig) -> Result<(StreamRow, bool), Failure>;
    /// Creates a stream, or sets an existing one's configuration.
    fn configure_stream(&self, name: &str, config: &StreamConfig) -> Result<StreamRow, Failure>;
    /// Removes the records below `before`.
    fn trim_stream(&self, name: &str, before: u64) -> Result<StreamRow, Failure>;
    fn delete_stream(&self, name: &str) -> Result<(), Failure>;

    /// Makes a request about consumer groups, with the API's bodies.
    fn group(&self, call: GroupCall, stream: &str, group: &str, body: &Value) -> Result<Value, Failure>;
    /// Receives the records pushed to a member of a group, until the server or `visit` ends it.
    fn push(
        &self,
        stream: &str,
        group: &str,
        ask: &groups::PushAsk<'_>,
        visit: groups::VisitPushed<'_>,
    ) -> Result<(), Failure>;
    /// Writes a snapshot to a file.
    fn snapshot(&self, ask: &mut snapshot::SnapshotAsk<'_>, out: &mut snapshot::PartialFile) -> Result<(), Failure>;

    /// Computes the digest of the state. Calls `progress` with the number of rows read, if this process computes it.
    fn state_digest(&self, progress: &mut dyn FnMut(u64)) -> Result<Value, Failure>;

    /// Returns the digest of the state that the server computed last.
    fn last_state_digest(&self) -> Result<Value, Failure>;

    /// Returns the version of the state machine in force, and the highest version that the node supports.
    fn state_version(&self) -> Result<Value, Failure>;

    /// Raises the version of the state machine in force.
    fn raise_version(&self, to: u16) -> Result<Value, Failure>;

    fn status(&self) -> Result<Value, Failure>;
    /// Closes the target cleanly; a directory is flushed, so that the next open is fast.
    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// Returns true if a condition is met by a missing key.
pub fn holds_for_absent(expect: Expect<'_>) -> bool {
    match expect {
        Expect::Absent | Expect::Any => true,
        Expect::Before(revision) => revision.get() > 0,
        Expect::Unchanged(range) => range.count == 0,
        Expect::Present | Expect::Revision(_) | Expect::Value(_) | Expect::After(_) => false,
    }
}

/// Parses a record in the API's form.
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

/// Parses the headers of a record or message in the API's form.
pub fn headers_of(object: &Map<String, Value>) -> Vec<(String, Vec<u8>)> {
    let header = |header: &Value| {
        let header = header.as_object()?;
        Some((header.get("name")?.as_str()?.to_owned(), take_bytes(header, "value")?))
    };
    let headers = object.get("headers").and_then(Value::as_array);
    headers.map(|headers| headers.iter().filter_map(header).collect()).unwrap_or_default()
}

/// Advice for a missing stream.
pub const STREAMS_HINT: &str = "`thalweg streams` lists what is there; `thalweg append` creates one";

/// Returns the failure for a missing stream.
pub fn no_such_stream(name: &str) -> Failure {
    Failure::new(crate::failure::Exit::NotFound, "no_such_stream", format!("there is no stream named {name:?}"))
        .then(STREAMS_HINT)
}

/// Formats a stream's configuration like the API.
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
