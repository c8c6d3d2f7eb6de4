//! `append`, `read`, `tail`: write and read records of a stream.
//!
//! Owns: the arguments and the output of these commands, and appending the lines of stdin in batches. Does not own: the
//! requests (`session/streams`), the management of streams and producers (`streams`), or the notation of a record
//! (`record`).

use std::{ops::ControlFlow, path::PathBuf};

use clap::Args;
use serde_json::json;
use thalweg_types::{
    Offset,
    command::{AppendConditions, ExpectedOffset, ProducerStamp},
};

use super::{
    input,
    record::{self, RecordArgs, RecordFormat},
};
use crate::{
    args::TargetArgs,
    failure::Failure,
    render::{self, Lines},
    session::{Access, Appended, Record, Session, StreamRecord},
    span::{StartTime, parse_since},
};

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg append events started stopped\n  journalctl -f | thalweg append logs\n  \
                        thalweg append events paid --key order-7 --header source=shop --expect 42\n  \
                        thalweg append events first --expect none\n  \
                        thalweg append events paid --producer till-3 --sequence 17    # safe to repeat")]
pub(crate) struct Append {
    /// Name of the stream, which is created if it does not exist
    pub stream: String,
    /// Payloads, one record each; without any, each line of stdin is a record
    pub records: Vec<String>,
    /// Append a whole file as one record
    #[arg(long, value_name = "FILE", conflicts_with = "records")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub record: RecordArgs,
    /// Append a tombstone, which marks the key as deleted; compaction removes the key's earlier records
    #[arg(long, requires = "key", conflicts_with_all = ["records", "file"])]
    pub tombstone: bool,
    /// Append only if this is the next offset of the stream; `none`: only if the stream never had a record
    #[arg(long, value_name = "OFFSET|none|any", default_value = "any", hide_default_value = true, value_parser = parse_expected)]
    pub expect: ExpectedOffset,
    /// Append as this producer; a repeated append with the same sequence number has no further effect
    #[arg(long, value_name = "ID", requires = "sequence")]
    pub producer: Option<String>,
    /// Sequence number of this append, from 0 without gaps
    #[arg(long, value_name = "N", requires = "producer")]
    pub sequence: Option<u64>,
    /// Epoch of the producer; `thalweg streams open-producer` begins a new one
    #[arg(long, value_name = "N", requires = "producer", default_value_t = 0)]
    pub epoch: u32,
    #[command(flatten)]
    pub place: TargetArgs,
}

fn parse_expected(text: &str) -> Result<ExpectedOffset, String> {
    ExpectedOffset::parse(text).ok_or_else(|| "use an offset, none or any".to_owned())
}

pub(crate) fn append(args: &Append) -> Result<(), Failure> {
    let template = Record { is_tombstone: args.tombstone, ..args.record.template()? };
    let record = |payload: Vec<u8>| Record { payload, ..template.clone() };
    let terms = AppendConditions { expected: args.expect, producer: producer(args)? };
    Session::with(&args.place, Access::Write, |session| {
        let records = match &args.file {
            Some(path) => vec![record(input::file(path)?)],
            None if args.tombstone => vec![template.clone()],
            None if args.records.is_empty() => return append_stdin(session, args, &record),
            None => args.records.iter().map(|text| record(text.as_bytes().to_vec())).collect(),
        };
        show_appended(&session.append(&args.stream, &records, &terms)?, records.len(), args.place.json)
    })
}

/// Returns the producer's id, epoch and sequence number for an append; `None` without `--producer`. Fails if the
/// records come from stdin. A producer that repeats an append must send the same records, but the batches of stdin
/// depend on timing.
fn producer(args: &Append) -> Result<Option<ProducerStamp<'_>>, Failure> {
    let (Some(id), Some(sequence)) = (&args.producer, args.sequence) else { return Ok(None) };
    if args.file.is_none() && args.records.is_empty() && !args.tombstone {
        return Err(Failure::usage("--producer cannot be used with stdin: give records as arguments, or use --file"));
    }
    Ok(Some(ProducerStamp { id, epoch: args.epoch, sequence }))
}

/// Appends the lines of stdin to the stream, batch by batch.
fn append_stdin(session: &Session, args: &Append, record: &dyn Fn(Vec<u8>) -> Record) -> Result<(), Failure> {
    let (mut input, mut expect) = (input::Lines::new(), args.expect);
    loop {
        let records: Vec<_> = input.next_batch()?.into_iter().map(record).collect();
        if records.is_empty() {
            return Ok(());
        }
        let appended = session.append(&args.stream, &records, &expect.into())?;
        // The condition applies only to the first append of this input. The other appends continue it without a gap.
        if let (Some(_), Some((_, next))) = (expect.offset(), appended.offsets) {
            expect = ExpectedOffset::Exact(Offset(next));
        }
        show_appended(&appended, records.len(), args.place.json)?;
    }
}

fn show_appended(appended: &Appended, count: usize, json: bool) -> Result<(), Failure> {
    let Appended { durability, offsets, duplicate } = *appended;
    let last = |next: u64| next.saturating_sub(1);
    let object = json!({
        "first": offsets.map(|(first, _)| first), "last": offsets.map(|(_, next)| last(next)),
        "count": count, "durability": durability.name(), "duplicate": duplicate,
    });
    render::print_result(&object, json, || {
        let before = if duplicate { " (it happened before)" } else { "" };
        let what = match offsets {
            Some((first, next)) if next == first + 1 => format!("offset {first}"),
            Some((first, next)) => format!("offsets {first} to {}", last(next)),
            None => format!("{count} accepted"),
        };
        format!("ok, {what}, durability {durability}{before}")
    })
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg read events\n  thalweg read events --from 1000 --limit 10 --json\n  \
                        thalweg read events --since 10m --payload-only")]
pub(crate) struct Read {
    /// Name of the stream
    pub stream: String,
    /// First offset to print [default: the oldest retained one]
    #[arg(long, value_name = "OFFSET", conflicts_with = "since")]
    pub from: Option<u64>,
    /// Print only the last N records
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "since"])]
    pub last: Option<u64>,
    /// Print records since this time: a span before now (10m), 2026-11-20, 2026-11-20T08:30:00Z, or microseconds since
    /// 1970
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<StartTime>,
    /// Maximum number of records to print
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub format: RecordFormat,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn read(args: &Read) -> Result<(), Failure> {
    Session::with(&args.place, Access::Read, |session| {
        let from = match (args.from, args.since) {
            (Some(from), _) => from,
            (None, Some(since)) => session.offset_at(&args.stream, since.time().micros())?,
            (None, None) => {
                let stream = session.stream(&args.stream)?;
                args.last.map_or(stream.start, |last| stream.next.saturating_sub(last).max(stream.start))
            }
        };
        let mut lines = Lines::new();
        session.read(&args.stream, from, args.limit.unwrap_or(u64::MAX), &mut |record| {
            show_record(&mut lines, &record, &args.format, args.place.json)?;
            Ok(ControlFlow::Continue(()))
        })?;
        lines.flush()
    })
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg tail events\n  thalweg tail events --last 20\n  \
                        thalweg tail events --from 0 --limit 5 --json")]
pub(crate) struct Tail {
    /// Name of the stream
    pub stream: String,
    /// First offset to print [default: the next record]
    #[arg(long, value_name = "OFFSET", conflicts_with = "last")]
    pub from: Option<u64>,
    /// Begin with the last N records
    #[arg(long, value_name = "N")]
    pub last: Option<u64>,
    /// Print records since this time: a span before now (10m), 2026-11-20, 2026-11-20T08:30:00Z, or microseconds since
    /// 1970
    #[arg(long, value_name = "TIME", value_parser = parse_since, conflicts_with_all = ["from", "last"])]
    pub since: Option<StartTime>,
    /// End after this number of records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub format: RecordFormat,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn tail(args: &Tail) -> Result<(), Failure> {
    if args.limit == Some(0) {
        return Ok(());
    }
    Session::with(&args.place, Access::Read, |session| {
        let from = match (args.from, args.since, args.last) {
            (Some(from), ..) => from,
            (None, Some(since), _) => session.offset_at(&args.stream, since.time().micros())?,
            (None, None, last) => {
                let stream = session.stream(&args.stream)?;
                stream.next.saturating_sub(last.unwrap_or(0)).max(stream.start)
            }
        };
        let (mut lines, mut left) = (Lines::new(), args.limit);
        session.tail(&args.stream, from, &mut |record| {
            show_record(&mut lines, &record, &args.format, args.place.json)?;
            lines.flush()?;
            left = left.map(|left| left - 1);
            Ok(if left == Some(0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    })
}

fn show_record(lines: &mut Lines, record: &StreamRecord, format: &RecordFormat, json: bool) -> Result<(), Failure> {
    let object = json.then(|| record.object().into());
    record::show(lines, format, object, &record.record, || record::stream_text(record))
}
