//! Definition of the command line and its help texts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use thalweg_types::command::{Compaction, Deadline, ExpectedOffset, KeyspaceHistory, StreamConfig};

use crate::{
    span::{Since, parse_bytes, parse_since, parse_span},
    target::{KeyspaceChange, Place},
};

const AFTER_HELP: &str = "\
Client commands talk to a server (--server) or open a directory themselves (--data DIR).

Examples:
  thalweg serve --data ./data
  thalweg put users ada '{\"born\": 1815}'
  thalweg get users ada
  thalweg watch users --from 1
  thalweg append events 'started' 'stopped'
  thalweg tail events --from 0
  thalweg consume events --group audit --create
  thalweg subscribe 'orders.>'
  thalweg import flights.ndjson --stream flights --format ndjson
  thalweg log verify --data ./data

Exit codes:
  0  done
  1  failed: the node, its data or the machine needs a look
  2  wrong usage or a request that can never succeed
  3  not found: key, stream, offset, file or directory
  4  a condition did not hold (--if-revision, --expect, a lapsed attempt, ...)
  5  unavailable: not reachable, overloaded or in use; try again later";

/// One durable log per node, read as key-value and as streams; subjects and caches beside it.
#[derive(Parser, Debug)]
#[command(name = "thalweg", version, max_term_width = 110, after_help = AFTER_HELP, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a node until SIGTERM or Ctrl-C
    Serve(crate::commands::serve::Serve),
    /// Set a key
    Put(Put),
    /// Print a key's value, byte for byte
    Get(Get),
    /// Remove a key
    #[command(visible_alias = "delete")]
    Del(Del),
    /// List pairs in key order
    Scan(Scan),
    /// List what a key was
    History(crate::commands::past::History),
    /// Print changes of keys as they happen, or since a revision
    Watch(crate::commands::watch::Watch),
    /// Add to a counter, and print what it is then
    Incr(Incr),
    /// Print how long a key still lives
    Ttl(crate::commands::time::Ttl),
    /// Change until when a key lives, and nothing else
    Touch(crate::commands::time::Touch),
    /// Grant a lease, or look after one: keys put with it live as long as it is kept alive
    #[command(subcommand)]
    Lease(crate::commands::time::Lease),
    /// Run a command while holding a lock
    Lock(crate::commands::coordinate::Lock),
    /// Run a command while holding one of so many slots
    Semaphore(crate::commands::coordinate::Semaphore),
    /// Run a command while leading, and be seen to lead
    Elect(crate::commands::coordinate::Elect),
    /// Print who leads, once or whenever it changes
    Leader(crate::commands::coordinate::Leader),
    /// Carry out a commit: writes of keys, streams and groups, all or none
    Commit(Commit),
    /// Carry out a transaction: conditions that choose one of two lists of operations
    Txn(Txn),
    /// Append records to a stream: arguments, a file, or the lines of stdin
    Append(Append),
    /// Print a stream's records
    Read(Read),
    /// Print a stream's records as they come in
    Tail(Tail),
    /// List streams, or look after one
    Streams(Streams),
    /// List consumer groups, or look after one
    Groups(crate::commands::groups::Groups),
    /// Print what a consumer group delivers, or run a command for each record
    Consume(crate::commands::consume::Consume),
    /// Publish messages to a subject: for whoever listens now
    Publish(crate::commands::subjects::Publish),
    /// Print messages of subjects as they are published
    Subscribe(crate::commands::subjects::Subscribe),
    /// Publish a message, and print the answer to it
    Request(crate::commands::subjects::Request),
    /// Answer messages of subjects
    Reply(crate::commands::subjects::Reply),
    /// Use a server's caches: bounded, in memory, with times to live
    #[command(subcommand)]
    Cache(crate::commands::cache::Cache),
    /// List keyspaces, or look after one
    Keyspaces(Keyspaces),
    /// Show what a node holds and how it is
    Status(Plain),
    /// Load a file into a stream or a keyspace
    Import(Import),
    /// Write a stream or a keyspace to stdout or a file
    Export(Export),
    /// Compare the state with that of another node, or look after its version
    #[command(subcommand)]
    State(crate::commands::state::State),
    /// Look into the log of a stopped node
    #[command(subcommand)]
    Log(LogCommand),
    /// Move a stopped node's state to another backend
    Migrate(crate::commands::migrate::Migrate),
    /// Back up a node while it runs, or look after backups
    Backup(crate::commands::backup::Backup),
    /// Make a new directory of a backup, also as it was at an LSN or a time
    Restore(crate::commands::backup::Restore),
    /// Measure: the log, the engine, or a server
    #[command(subcommand)]
    Bench(crate::commands::bench::Bench),
    /// Print a completion script
    #[command(after_help = "Example:\n  thalweg completions bash > ~/.local/share/bash-completion/completions/thalweg")]
    Completions {
        /// For this shell
        shell: Shell,
    },
}

impl Command {
    /// Returns true if the command prints JSON, which then applies to its errors as well.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Put(args) => args.place.json,
            Self::Get(args) => args.place.json,
            Self::Del(args) => args.place.json,
            Self::Scan(args) => args.place.json,
            Self::History(args) => args.place.json,
            Self::Watch(args) => args.place.json,
            Self::Ttl(args) => args.place.json,
            Self::Touch(args) => args.place.json,
            Self::Lease(args) => args.place().json,
            Self::Lock(args) => args.run.place.json,
            Self::Semaphore(args) => args.run.place.json,
            Self::Elect(args) => args.run.place.json,
            Self::Leader(args) => args.place.json,
            Self::Append(args) => args.place.json,
            Self::Read(args) => args.place.json,
            Self::Tail(args) => args.place.json,
            Self::Streams(args) => args.place().json,
            Self::Groups(args) => args.place().json,
            Self::Consume(args) => args.place.json,
            Self::Publish(args) => args.place.json,
            Self::Subscribe(args) => args.place.json,
            Self::Request(args) => args.place.json,
            Self::Reply(args) => args.place.json,
            Self::Cache(args) => args.place().json,
            Self::Incr(args) => args.place.json,
            Self::Commit(args) => args.place.json,
            Self::Txn(args) => args.place.json,
            Self::Keyspaces(args) => args.place().json,
            Self::Status(args) => args.place.json,
            Self::Import(args) => args.place.json,
            Self::Export(args) => args.place.json,
            Self::Log(LogCommand::Verify(args) | LogCommand::Stats(args)) => args.json,
            Self::Log(LogCommand::Dump(args)) => args.log.json,
            Self::State(args) => args.wants_json(),
            Self::Migrate(args) => args.json,
            Self::Backup(args) => args.wants_json(),
            Self::Restore(args) => args.json,
            Self::Bench(bench) => bench.wants_json(),
            Self::Serve(_) | Self::Completions { .. } => false,
        }
    }
}

/// How keys are typed and shown.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// UTF-8
    Text,
    /// Two digits a byte
    Hex,
}

/// A key on the command line.
#[derive(Args, Clone, Debug)]
pub struct KeyArgs {
    /// The keyspace
    pub keyspace: String,
    /// The key
    pub key: String,
    /// How the key is typed
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  thalweg put users ada '{\"born\": 1815}'\n  thalweg put files logo --file logo.png\n  \
                        date | thalweg put notes today -\n  thalweg put users ada '{}' --if-revision 17\n  \
                        thalweg put sessions ada token --ttl 30m"
)]
pub struct Put {
    #[command(flatten)]
    pub key: KeyArgs,
    /// The value; `-` or nothing reads stdin
    pub value: Option<String>,
    /// Take the value from this file
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub file: Option<PathBuf>,
    /// Only if the key has no value yet
    #[arg(long, group = "condition")]
    pub if_absent: bool,
    /// Only if the key has a value
    #[arg(long, group = "condition")]
    pub if_present: bool,
    /// Only if the key's value is of this revision
    #[arg(long, value_name = "N", group = "condition")]
    pub if_revision: Option<u64>,
    /// Only if the key has exactly this value
    #[arg(long, value_name = "VALUE", group = "condition")]
    pub if_value: Option<String>,
    /// How long it lives: a span such as 30s, never, or keep (as the value before) [default: as the keyspace says]
    #[arg(long, value_name = "TTL", value_parser = crate::commands::time::parse_ttl)]
    pub ttl: Option<Deadline>,
    /// It lives at most as long as this lease
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub lease: Option<u64>,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg get users ada\n  thalweg get users ada --json    # with its revision\n  \
                        thalweg get files logo > logo.png\n\nEnds with 3 if there is no such key.")]
pub struct Get {
    #[command(flatten)]
    pub key: KeyArgs,
    /// What it was at this revision; only in keyspaces with history
    #[arg(long, value_name = "N")]
    pub revision: Option<u64>,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg del users ada\n  thalweg del users ada --if-revision 17\n  \
                        thalweg del sessions --prefix 'ada/'\n  thalweg del sessions --prefix ''    # clears the keyspace")]
pub struct Del {
    /// The keyspace
    pub keyspace: String,
    /// The key
    #[arg(required_unless_present = "prefix")]
    pub key: Option<String>,
    /// Remove all keys that start with this, at once and whatever their number
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["key", "condition"])]
    pub prefix: Option<String>,
    /// How the key is typed
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
    /// Only if the key has a value
    #[arg(long, group = "condition")]
    pub if_present: bool,
    /// Only if the key's value is of this revision
    #[arg(long, value_name = "N", group = "condition")]
    pub if_revision: Option<u64>,
    /// Only if the key has exactly this value
    #[arg(long, value_name = "VALUE", group = "condition")]
    pub if_value: Option<String>,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "A counter is a value in decimal digits; a missing key counts as 0.\n\n\
                        Examples:\n  thalweg incr stats visits\n  thalweg incr stats stock --by -3")]
pub struct Incr {
    #[command(flatten)]
    pub key: KeyArgs,
    /// How much
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub by: i64,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The commit is JSON, as POST /v1/commit takes it: `writes` (put, touch, delete, append, ack, nack), of which\n\
                        all happen or none, and perhaps `conditions` (as of a transaction) and, at a server, `publish`.\n\
                        An append with a `producer` makes all of it safe to send again.\n\n\
                        Example:\n  thalweg commit '{\"writes\": [{\"op\": \"put\", \"keyspace\": \"orders\", \"key\": \"7\", \"value\": \"paid\"},\n    \
                        {\"op\": \"append\", \"stream\": \"events\", \"records\": [{\"payload\": \"order 7 paid\"}]}]}'\n\n\
                        Ends with 4 if a condition did not hold, or an attempt has lapsed."
)]
pub struct Commit {
    /// The commit; `-` or nothing reads stdin
    pub commit: Option<String>,
    /// Take it from this file
    #[arg(long, value_name = "FILE", conflicts_with = "commit")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The transaction is JSON, as POST /v1/txn takes it. Operations: put, touch, delete, append, add,\n\
                        delete_prefix, get, scan, ack, nack. Conditions expect absent, present, or a revision, before,\n\
                        after, value, unchanged. An append of a producer goes into a commit.\n\n\
                        Example:\n  thalweg txn '{\"conditions\": [{\"keyspace\": \"locks\", \"key\": \"job\", \"expect\": \"absent\"}],\n    \
                        \"then\": [{\"op\": \"put\", \"keyspace\": \"locks\", \"key\": \"job\", \"value\": \"me\"}],\n    \
                        \"else\": [{\"op\": \"get\", \"keyspace\": \"locks\", \"key\": \"job\"}]}'\n\n\
                        Ends with 4 if a condition did not hold and there is nothing in `else`."
)]
pub struct Txn {
    /// The transaction; `-` or nothing reads stdin
    pub transaction: Option<String>,
    /// Take it from this file
    #[arg(long, value_name = "FILE", conflicts_with = "transaction")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub place: Place,
}

/// What a keyspace does beyond storing.
#[derive(Args, Clone, Debug)]
pub struct KeyspaceSettings {
    /// Count keys and bytes with every write, which then reads what it replaces [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub exact_counts: Option<bool>,
    /// How long a value lives whose put says nothing of it [default: forever]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub default_ttl: Option<std::time::Duration>,
    /// What is kept of what is overwritten or deleted: so many revisions of each key, an age, or both, as in 10, 1h or
    /// 10,1h; off keeps nothing [default: off]
    #[arg(long, value_name = "BOUNDS", value_parser = parse_history)]
    pub history: Option<KeyspaceHistory>,
}

impl KeyspaceSettings {
    /// Returns the requested change of the configuration.
    pub fn change(&self) -> KeyspaceChange {
        KeyspaceChange { exact_counts: self.exact_counts, default_ttl: self.default_ttl, history: self.history }
    }
}

/// Parses `off`, a number of revisions, an age, or both of them separated by a comma.
fn parse_history(text: &str) -> Result<KeyspaceHistory, String> {
    let mut history = KeyspaceHistory::default();
    if text == "off" {
        return Ok(history);
    }
    for part in text.split(',') {
        match part.parse() {
            Ok(revisions) if history.revisions.is_none() => history.revisions = Some(revisions),
            Err(_) if history.age.is_none() => {
                let age = parse_span(part);
                history.age = Some(age.map_err(|_| format!("{part:?} is neither a number nor a span such as 1h"))?);
            }
            _ => return Err("at most one number of revisions and one age".to_owned()),
        }
    }
    history.check().map(|()| history).map_err(|error| error.to_string())
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Keyspaces {
    #[command(subcommand)]
    pub action: Option<KeyspaceAction>,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Subcommand, Debug)]
pub enum KeyspaceAction {
    /// List all
    List(Plain),
    /// Create a keyspace; one that exists is left as it is
    Create {
        /// The keyspace
        keyspace: String,
        #[command(flatten)]
        settings: KeyspaceSettings,
        #[command(flatten)]
        place: Place,
    },
    /// Change what a keyspace does; what is not named stays
    Config {
        /// The keyspace
        keyspace: String,
        #[command(flatten)]
        settings: KeyspaceSettings,
        #[command(flatten)]
        place: Place,
    },
    /// Drop a keyspace and everything in it
    Drop {
        /// The keyspace
        keyspace: String,
        #[command(flatten)]
        place: Place,
    },
    /// Show how much a keyspace holds
    Stats {
        /// The keyspace
        keyspace: String,
        #[command(flatten)]
        place: Place,
    },
}

impl Keyspaces {
    /// Returns the server or directory, which the subcommand or the command itself may name.
    pub fn place(&self) -> &Place {
        match &self.action {
            None => &self.place,
            Some(KeyspaceAction::List(plain)) => &plain.place,
            Some(
                KeyspaceAction::Create { place, .. }
                | KeyspaceAction::Config { place, .. }
                | KeyspaceAction::Drop { place, .. }
                | KeyspaceAction::Stats { place, .. },
            ) => place,
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Prints key, tab, value; bytes that are no text are escaped (--json keeps them exactly).\n\
                        If --limit leaves something out, a cursor is printed: on stderr, with --json as the last \
                        line. In a keyspace with history all pages show what was there at the first.\n\n\
                        Examples:\n  thalweg scan users --prefix a --limit 10\n  \
                        thalweg scan zips --start 10001 --end 10100 --keys-only\n  thalweg scan users --reverse --json")]
pub struct Scan {
    /// The keyspace
    pub keyspace: String,
    /// Only keys that start with this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// From this key on
    #[arg(long, value_name = "KEY")]
    pub start: Option<String>,
    /// Up to, and without, this key
    #[arg(long, value_name = "KEY")]
    pub end: Option<String>,
    /// At most so many pairs
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Without values
    #[arg(long)]
    pub keys_only: bool,
    /// What the keyspace held at this revision; only with history
    #[arg(long, value_name = "N")]
    pub revision: Option<u64>,
    /// Go on behind an earlier scan, which had a --limit and otherwise the same options
    #[arg(long)]
    pub cursor: Option<String>,
    /// How keys are typed and shown
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg append events started stopped\n  journalctl -f | thalweg append logs\n  \
                        thalweg append events paid --key order-7 --header source=shop --expect 42\n  \
                        thalweg append events first --expect none\n  \
                        thalweg append events paid --producer till-3 --sequence 17    # safe to repeat")]
pub struct Append {
    /// The stream; created if it is not there
    pub stream: String,
    /// One record each; none reads stdin, one record a line
    pub records: Vec<String>,
    /// Append a whole file as one record
    #[arg(long, value_name = "FILE", conflicts_with = "records")]
    pub file: Option<PathBuf>,
    /// The records' key
    #[arg(long)]
    pub key: Option<String>,
    /// Append a tombstone: the key is gone; a compacted stream drops what it had
    #[arg(long, requires = "key", conflicts_with_all = ["records", "file"])]
    pub tombstone: bool,
    /// A header of the records; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    pub headers: Vec<String>,
    /// Only if the next offset is this one; `none`: only if the stream never held a record
    #[arg(long, value_name = "OFFSET|none|any", default_value = "any", hide_default_value = true, value_parser = parse_expected)]
    pub expect: ExpectedOffset,
    /// Append in the name of this producer: repeated with the same numbers, it happens once
    #[arg(long, value_name = "ID", requires = "sequence")]
    pub producer: Option<String>,
    /// The number of this append, from 0 without gaps
    #[arg(long, value_name = "N", requires = "producer")]
    pub sequence: Option<u64>,
    /// The producer's epoch
    #[arg(long, value_name = "N", requires = "producer", default_value_t = 0)]
    pub epoch: u32,
    #[command(flatten)]
    pub place: Place,
}

fn parse_expected(text: &str) -> Result<ExpectedOffset, String> {
    ExpectedOffset::parse(text).ok_or_else(|| "an offset, none or any".to_owned())
}

/// How records are shown.
#[derive(Args, Clone, Debug)]
pub struct RecordFormat {
    /// Print only payloads, byte for byte, a newline after each
    #[arg(long, conflicts_with = "json")]
    pub payload_only: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg read events\n  thalweg read events --from 1000 --limit 10 --json\n  \
                        thalweg read events --since 10m --payload-only")]
pub struct Read {
    /// The stream
    pub stream: String,
    /// From this offset on [default: the oldest kept]
    #[arg(long, value_name = "OFFSET", conflicts_with = "since")]
    pub from: Option<u64>,
    /// From so many offsets before the end on
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "since"])]
    pub last: Option<u64>,
    /// From this time on: a span before now (10m), 2026-11-20T08:30:00Z, or microseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<Since>,
    /// At most so many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub format: RecordFormat,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg tail events\n  thalweg tail events --last 20\n  \
                        thalweg tail events --from 0 --limit 5 --json")]
pub struct Tail {
    /// The stream
    pub stream: String,
    /// From this offset on [default: what comes in from now on]
    #[arg(long, value_name = "OFFSET", conflicts_with = "last")]
    pub from: Option<u64>,
    /// Begin with the last N records
    #[arg(long, value_name = "N")]
    pub last: Option<u64>,
    /// From this time on: a span before now (10m), 2026-11-20T08:30:00Z, or microseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = parse_since, conflicts_with_all = ["from", "last"])]
    pub since: Option<Since>,
    /// End after so many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub format: RecordFormat,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Streams {
    #[command(subcommand)]
    pub action: Option<StreamAction>,
    #[command(flatten)]
    pub place: Place,
}

/// What a stream keeps; without a limit it keeps everything.
#[derive(Args, Clone, Debug)]
pub struct Retention {
    /// Drop records older than this
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub max_age: Option<std::time::Duration>,
    /// Drop the oldest batches while it holds more bytes than this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_bytes: Option<u64>,
    /// Drop the oldest records while it holds more than this
    #[arg(long, value_name = "N")]
    pub max_records: Option<u64>,
    /// Refuse records larger than this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_record_bytes: Option<u64>,
    /// Refuse appends of more bytes than this
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_batch_bytes: Option<u64>,
    /// Keep only the newest record of each key
    #[arg(long)]
    pub compact: bool,
    /// Keep tombstones for so long after they were appended
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "1d", requires = "compact")]
    pub tombstone_grace: std::time::Duration,
}

impl Retention {
    /// Converts the options to the engine's configuration.
    pub fn config(&self) -> StreamConfig {
        StreamConfig {
            max_age: self.max_age,
            max_bytes: self.max_bytes,
            max_records: self.max_records,
            max_record_bytes: self.max_record_bytes,
            max_batch_bytes: self.max_batch_bytes,
            compaction: self.compact.then_some(Compaction { tombstone_grace: self.tombstone_grace }),
        }
    }
}

#[derive(Subcommand, Debug)]
pub enum StreamAction {
    /// List all
    List(Plain),
    /// Show one
    Show {
        /// The stream
        stream: String,
        #[command(flatten)]
        place: Place,
    },
    /// Create a stream; one that exists is left as it is
    Create {
        /// The stream
        stream: String,
        #[command(flatten)]
        retention: Retention,
        #[command(flatten)]
        place: Place,
    },
    /// Create a stream, or give one this configuration, and no other limits
    #[command(visible_alias = "config")]
    Configure {
        /// The stream
        stream: String,
        #[command(flatten)]
        retention: Retention,
        #[command(flatten)]
        place: Place,
    },
    /// List the producers that a stream remembers
    Producers {
        /// The stream
        stream: String,
        #[command(flatten)]
        place: Place,
    },
    /// Give a producer a new epoch, and print it: whoever still uses an earlier one is fenced off
    OpenProducer {
        /// The stream; created if it is not there
        stream: String,
        /// The producer
        producer: String,
        #[command(flatten)]
        place: Place,
    },
    /// Drop the records below an offset
    Trim {
        /// The stream
        stream: String,
        /// The first offset to keep
        #[arg(long, value_name = "OFFSET")]
        before: u64,
        #[command(flatten)]
        place: Place,
    },
    /// Delete a stream and its records
    Delete {
        /// The stream
        stream: String,
        #[command(flatten)]
        place: Place,
    },
}

impl Streams {
    /// Returns the server or directory, which the subcommand or the command itself may name.
    pub fn place(&self) -> &Place {
        match &self.action {
            None => &self.place,
            Some(StreamAction::List(plain)) => &plain.place,
            Some(
                StreamAction::Show { place, .. }
                | StreamAction::Create { place, .. }
                | StreamAction::Configure { place, .. }
                | StreamAction::Producers { place, .. }
                | StreamAction::OpenProducer { place, .. }
                | StreamAction::Trim { place, .. }
                | StreamAction::Delete { place, .. },
            ) => place,
        }
    }
}

#[derive(Args, Debug)]
pub struct Plain {
    #[command(flatten)]
    pub place: Place,
}

/// What a file holds.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// One record a line
    Lines,
    /// One JSON value a line
    Ndjson,
    /// A header line, then one row a line (quoted rows may span lines)
    Csv,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Into a stream, a line (or a CSV row as a JSON object) becomes a record, with --key as its key.\n\
                        Into a keyspace, --key names the column (csv) or field (ndjson) whose value is the key; with\n\
                        `lines`, what stands before the first tab is the key and the rest the value.\n\n\
                        Examples:\n  thalweg import flights.ndjson --stream flights --format ndjson\n  \
                        thalweg import zipcodes.csv --keyspace zips --format csv --key zip_code\n  \
                        zcat log.gz | thalweg import - --stream log --format lines"
)]
pub struct Import {
    /// The file; `-` is stdin
    pub file: PathBuf,
    /// Append to this stream
    #[arg(long, value_name = "NAME", required_unless_present = "keyspace", conflicts_with = "keyspace")]
    pub stream: Option<String>,
    /// Put into this keyspace
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// How the file is written
    #[arg(long, value_enum)]
    pub format: FileFormat,
    /// Column or field that holds the key
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// Pass over so many records first: go on where an import ended
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub skip: u64,
    /// Records in one commit
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub batch: u32,
    #[command(flatten)]
    pub place: Place,
}

/// What an export writes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Payloads, one a line; pairs as key, tab, value. Not for payloads that hold newlines
    Lines,
    /// JSON objects with everything, binary as base64
    Ndjson,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg export --stream flights --format lines > flights.ndjson\n  \
                        thalweg export --keyspace zips --format ndjson --output zips.ndjson")]
pub struct Export {
    /// Export this stream
    #[arg(long, value_name = "NAME", required_unless_present = "keyspace", conflicts_with = "keyspace")]
    pub stream: Option<String>,
    /// Export this keyspace
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// How to write it
    #[arg(long, value_enum, default_value = "ndjson")]
    pub format: ExportFormat,
    /// Write to this file [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// The node's directory; no server may have it open
    #[arg(long, value_name = "DIR", default_value = "thalweg-data")]
    pub data: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct LogDump {
    #[command(flatten)]
    pub log: LogArgs,
    /// From this LSN on [default: the oldest kept]
    #[arg(long, value_name = "LSN")]
    pub from: Option<u64>,
    /// At most so many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

#[derive(Subcommand, Debug)]
pub enum LogCommand {
    /// Read every byte and check every checksum; ends with 1 if something is corrupt
    Verify(LogArgs),
    /// Print the log's records, one a line
    Dump(LogDump),
    /// Figures about segments, records and the state beside them
    Stats(LogArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
