//! `log verify`, `log dump` and `log stats`: inspect the log of a stopped node on disk.
//!
//! Owns: the arguments, the lock of the directory, and the output. The output shows the commands of an entry in words.
//! Does not own: the checks and figures of a log (`thalweg_log::offline`), or the decoding of commands
//! (`thalweg_types`).
//!
//! The commands write nothing. They hold the directory's lock, so that no server changes the log at the same time.
//! While a server runs, a copy of its directory can be inspected.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use thalweg_disk::{Disk, LockGuard, RealDisk};
use thalweg_log::{
    LogRecord, RecordKind,
    offline::{self, Item, Verdict},
};
use thalweg_types::{
    Lsn,
    codec::Malformed,
    command::{Command, Commands, FIRST_VERSION, GroupCommand, TimeCommand, Write},
};

use crate::{
    failure::{Exit, Failure},
    render,
    span::show_time,
};

/// Name of the directory that contains the log, within a data directory.
const LOG_DIR: &str = "log";
const STATE_DIR: &str = "state";
const LOCK: &str = "LOCK";

#[derive(Subcommand, Debug)]
pub(crate) enum LogCommand {
    /// Read every byte and check every checksum; ends with 1 if the log is corrupt
    Verify(LogArgs),
    /// Print the log's records, one per line
    Dump(LogDump),
    /// Print figures about segments, records and the state
    Stats(LogArgs),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// The node's directory; no server may have it open
    #[arg(long, value_name = "DIR", default_value = "thalweg-data")]
    pub data: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LogDump {
    #[command(flatten)]
    pub log: LogArgs,
    /// First LSN to print [default: the oldest retained one]
    #[arg(long, value_name = "LSN")]
    pub from: Option<u64>,
    /// Maximum number of records to print
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

pub(crate) fn run(command: &LogCommand) -> Result<(), Failure> {
    match command {
        LogCommand::Verify(args) => verify(args),
        LogCommand::Dump(args) => dump(args),
        LogCommand::Stats(args) => stats(args),
    }
}

/// A data directory that this process has locked. No other process has it open.
pub(super) struct LockedDirectory {
    disk: RealDisk,
    _lock: Box<dyn LockGuard>,
}

/// Opens and locks the directory of a stopped node, without creating anything in it.
pub(super) fn open(path: &Path) -> Result<LockedDirectory, Failure> {
    if !path.join(LOCK).exists() {
        let message = format!("{} is not a Thalweg data directory", path.display());
        return Err(Failure::new(Exit::NotFound, "missing_directory", message)
            .then("pass the same directory to --data as to `thalweg serve`"));
    }
    let disk = RealDisk::open(path).map_err(|error| Failure::file(path, &error))?;
    let lock = disk.lock(LOCK).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            Failure::new(Exit::Unavailable, "locked", format!("{} is in use by another process", path.display()))
                .then("stop that process, or inspect a copy of the directory")
        }
        _ => Failure::file(path, &error),
    })?;
    Ok(LockedDirectory { disk, _lock: lock })
}

fn verify(args: &LogArgs) -> Result<(), Failure> {
    let stopped = open(&args.data)?;
    let report = offline::verify(&stopped.disk, LOG_DIR).map_err(|error| Failure::of(&error))?;
    if args.json {
        render::line(&to_json(&report)?.to_string())?;
    } else {
        render::line(&format!(
            "{}: {} in {}, {} in {}, LSN {} to {}, durable to {}, {}",
            match report.verdict {
                Verdict::Good => "good",
                Verdict::Degraded => "degraded",
                Verdict::Corrupt => "corrupt",
            },
            render::counted(report.records, "record", "records"),
            render::counted(report.batches, "batch", "batches"),
            render::bytes(report.bytes),
            render::counted(report.segments, "segment", "segments"),
            report.first_lsn,
            report.end_lsn,
            report.attested_lsn,
            if report.clean { "closed cleanly" } else { "not closed cleanly: the next start recovers it" },
        ))?;
        if let Some(torn) = &report.torn {
            render::line(&format!(
                "torn end: {} at byte {} of {}, never acknowledged; the next start removes them",
                render::bytes(torn.bytes),
                torn.offset,
                torn.file
            ))?;
        }
        let rows = report.findings.iter().map(|finding| {
            let severity = to_json(&finding.severity).ok().and_then(|name| name.as_str().map(str::to_owned));
            vec![
                severity.unwrap_or_default(),
                finding.file.clone(),
                finding.offset.to_string(),
                finding.what.to_owned(),
                format!("{:#x}", finding.expected),
                format!("{:#x}", finding.got),
            ]
        });
        if !report.findings.is_empty() {
            render::line(&render::table(&["damaged", "file", "offset", "what", "expected", "found"], rows))?;
        }
    }
    match report.verdict {
        Verdict::Good | Verdict::Degraded => Ok(()),
        Verdict::Corrupt => Err(Failure::new(Exit::Failed, "corrupt", "durable data is damaged")
            .then("restore a copy of the directory; `thalweg serve --repair` truncates the log at the damage and reports the loss")),
    }
}

fn stats(args: &LogArgs) -> Result<(), Failure> {
    let stopped = open(&args.data)?;
    let stats = offline::stats(&stopped.disk, LOG_DIR).map_err(|error| Failure::of(&error))?;
    let (files, bytes) = tree_size(&args.data.join(STATE_DIR));
    if args.json {
        let value = json!({ "log": to_json(&stats)?, "state": { "files": files, "bytes": bytes } });
        return render::line(&value.to_string());
    }
    let rows = stats.segments.iter().map(|segment| {
        vec![
            segment.file.clone(),
            segment.generation.to_string(),
            segment.first_lsn.to_string(),
            segment.next_lsn.to_string(),
            render::bytes(segment.bytes),
            show_time(segment.first_time),
            show_time(segment.last_time),
        ]
    });
    render::line(&render::table(&["segment", "generation", "first", "next", "used", "oldest", "newest"], rows))?;
    render::line(&format!(
        "log: {} used of {} in {} live and {}, LSN {} to {}, durable to {}, {}",
        render::bytes(stats.bytes),
        render::bytes(stats.file_bytes),
        stats.segments.len(),
        render::counted(stats.spare_segments, "spare segment", "spare segments"),
        stats.first_lsn,
        stats.end_lsn,
        stats.attested_lsn,
        if stats.clean { "closed cleanly" } else { "not closed cleanly" },
    ))?;
    render::line(&format!("state: {} in {}", render::bytes(bytes), render::counted(files, "file", "files")))
}

fn dump(args: &LogDump) -> Result<(), Failure> {
    let stopped = open(&args.log.data)?;
    let (mut lines, mut outcome) = (render::Lines::new(), Ok(()));
    let from = Lsn(args.from.unwrap_or(0));
    let limit = args.limit.unwrap_or(u64::MAX);
    offline::dump(&stopped.disk, LOG_DIR, from, limit, |item| {
        let text = if args.log.json { item_json(&item).to_string() } else { item_text(&item) };
        match lines.line(&text) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                outcome = Err(failure);
                ControlFlow::Break(())
            }
        }
    })
    .map_err(|error| Failure::of(&error))?;
    outcome?;
    lines.flush()
}

fn item_text(item: &Item) -> String {
    match item {
        Item::Segment { file, generation, base } => format!("segment {file}, generation {generation}, from LSN {base}"),
        Item::Batch { offset, header } => format!(
            "  batch at byte {offset}: {} from LSN {}, {} bytes, durable to {} when written",
            render::counted(header.count.into(), "record", "records"),
            header.first,
            header.body_len,
            header.attested
        ),
        Item::Record(record) => format!(
            "    {} {} space {} term {} index {} {} {} bytes{}",
            record.lsn,
            kind(record.kind),
            record.space,
            record.term,
            record.index,
            show_time(record.time.micros()),
            record.payload.len(),
            contents(record).map_or(String::new(), |contents| format!(": {contents}")),
        ),
        Item::Damage(corruption) => format!("  DAMAGE {corruption}"),
    }
}

fn item_json(item: &Item) -> Value {
    match item {
        Item::Segment { file, generation, base } => {
            json!({ "segment": { "file": file, "generation": generation.get(), "first_lsn": base.get() } })
        }
        Item::Batch { offset, header } => json!({ "batch": {
            "offset": offset, "records": header.count, "first_lsn": header.first.get(), "bytes": header.body_len,
            "attested_lsn": header.attested.get(),
        }}),
        Item::Record(record) => json!({ "record": {
            "lsn": record.lsn.get(), "kind": kind(record.kind), "space": record.space.get(), "term": record.term.get(),
            "index": record.index.get(), "time_micros": record.time.micros(), "bytes": record.payload.len(),
            "contents": contents(record),
        }}),
        Item::Damage(corruption) => json!({ "damage": {
            "file": corruption.file, "offset": corruption.offset, "what": corruption.what,
            "expected": corruption.expected, "got": corruption.got,
        }}),
    }
}

fn kind(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Entry => "entry",
        RecordKind::Membership => "membership",
        RecordKind::Vote => "vote",
        RecordKind::Move => "move",
        RecordKind::Truncate => "truncate",
        RecordKind::Purged => "purged",
        RecordKind::Blank => "blank",
    }
}

/// Returns a few words about the commands of a log entry; `None` for log records of other kinds.
fn contents(record: &LogRecord) -> Option<String> {
    if record.kind != RecordKind::Entry {
        return None;
    }
    Some(summary(&record.payload).unwrap_or_else(|malformed| malformed.to_string()))
}

fn group_summary(command: &GroupCommand<'_>) -> String {
    match command {
        GroupCommand::Create { stream, name, .. } => format!("create group {name} of stream {stream}"),
        GroupCommand::Configure { group, .. } => format!("configure group {group}"),
        GroupCommand::Delete { group } => format!("delete group {group}"),
        GroupCommand::Fetch(fetch) => format!("fetch {} of group {} for {:?}", fetch.max, fetch.group, fetch.member),
        GroupCommand::Settle(settle) => format!("settle for group {}", settle.group),
        GroupCommand::Extend { group, .. } => format!("extend for group {group}"),
        GroupCommand::Seek { group, .. } => format!("seek group {group}"),
        GroupCommand::Reclaim { group, max } => format!("reclaim {max} rows of group {group}"),
    }
}

fn summary(entry: &[u8]) -> Result<String, Malformed> {
    let (mut puts, mut deletes, mut appends, mut records, mut others) = (0_u64, 0_u64, 0_u64, 0_u64, Vec::new());
    let mut commands = Commands::new(entry);
    while let Some(framed) = commands.next() {
        let (_, bytes) = framed?;
        let decoded = Command::decode(bytes);
        if commands.version() > FIRST_VERSION && decoded.is_err() {
            others.push(format!("a command of version {} of the state machine", commands.version()));
            continue;
        }
        match decoded? {
            Command::Commit(commit) => {
                for write in commit.writes()? {
                    match write? {
                        Write::Put { .. } | Write::PutUntil { .. } => puts += 1,
                        Write::Delete { .. } => deletes += 1,
                        Write::Append { count, .. } => (appends, records) = (appends + 1, records + u64::from(count)),
                        Write::Settle(settle) => others.push(format!("settle for group {}", settle.group)),
                        _ => {}
                    }
                }
            }
            Command::Transaction(transaction) => {
                let [then, otherwise] = transaction.branches()?;
                let conditions = transaction.conditions().count();
                let (then, otherwise) = (then.count(), otherwise.count());
                others.push(format!("transaction ({conditions} conditions, then {then}, else {otherwise})"));
            }
            Command::Time(command) => others.push(about_time(&command)),
            Command::DropKeyspace { keyspace } => others.push(format!("drop keyspace {keyspace}")),
            Command::Digest { id } => others.push(format!("digest {id}")),
            Command::RaiseVersion { to } => others.push(format!("raise the version in force to {to}")),
            Command::Sweep { max } => others.push(format!("sweep {max} rows")),
            Command::CreateKeyspace { name, .. } => others.push(format!("create keyspace {name}")),
            Command::ConfigureKeyspace { keyspace, .. } => others.push(format!("configure keyspace {keyspace}")),
            Command::CreateStream { name, .. } => others.push(format!("create stream {name}")),
            Command::ConfigureStream { stream, .. } => others.push(format!("configure stream {stream}")),
            Command::DeleteStream { stream } => others.push(format!("delete stream {stream}")),
            Command::TrimStream { stream, before } => others.push(format!("trim stream {stream} before {before}")),
            Command::EnforceRetention { stream, before, .. } => {
                others.push(format!("trim stream {stream} before {before} for its retention"));
            }
            Command::ForgetProducers { stream, max } => {
                others.push(format!("forget {max} rows of producers of stream {stream}"));
            }
            Command::OpenProducer { stream, id } => others.push(format!("open producer {id} of stream {stream}")),
            Command::Group(command) => others.push(group_summary(&command)),
            Command::Redis(batch) | Command::RedisJoint(batch) => {
                others.push(format!("{} Redis commands in keyspace {}", batch.len(), batch.keyspace));
            }
            Command::PruneVersions { max, from } => {
                others.push(format!("prune {max} rows of versions, from keyspace {from} on"));
            }
        }
    }
    let counted = [(puts, "puts"), (deletes, "deletes"), (appends, "appends"), (records, "records")];
    let counted = counted.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    Ok(counted.chain(others).collect::<Vec<_>>().join(", "))
}

fn about_time(command: &TimeCommand<'_>) -> String {
    match command {
        TimeCommand::Grant { id, ttl } if id.get() == 0 => format!("grant a lease of {ttl:?}"),
        TimeCommand::Grant { id, ttl } => format!("grant lease {id} of {ttl:?}"),
        TimeCommand::Keep { id } => format!("keep lease {id} alive"),
        TimeCommand::Revoke { id } => format!("revoke lease {id}"),
        TimeCommand::Expire { max } => format!("expire {max} rows"),
        TimeCommand::Forget { rows } => format!("forget {} stale rows", rows.iter().count()),
    }
}

/// Returns the number of files below a directory and their total bytes. Entries that can't be read are not counted.
fn tree_size(dir: &Path) -> (u64, u64) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.fold((0, 0), |(files, bytes), entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            let (more_files, more_bytes) = tree_size(&entry.path());
            (files + more_files, bytes + more_bytes)
        }
        Ok(metadata) => (files + 1, bytes + metadata.len()),
        Err(_) => (files, bytes),
    })
}

fn to_json(value: &impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure::new(Exit::Failed, "json", error.to_string()))
}
