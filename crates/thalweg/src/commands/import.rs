//! `import`: loads a file into a stream or a keyspace. The server acknowledges each batch before the next is sent.
//!
//! Owns: the arguments, the batches, their destination, and the message that tells the user how to continue. Does not
//! own: the parsing of a file (`source`), or the requests (`session`).
//!
//! Invariant: batches are sent in the order of the file. If a batch fails, all earlier batches are stored and no later
//! one is. The failure tells the user how to continue (`--skip`).

mod source;

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::{ArgGroup, Args};
use indicatif::ProgressBar;
use serde_json::json;
use thalweg_types::{Durability, command::AppendConditions};

use self::source::{BAD_RECORD, FileFormat, Item, KeyRule, Shape, Source};
use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    render,
    session::{Access, Record, Session},
    span::show_span,
};

/// Maximum size in bytes of a batch of imported records, even if it has fewer records than its maximum number. A larger
/// record is sent in a batch of its own.
const MAX_BATCH_BYTES: usize = 1024 * 1024;

#[derive(Args, Debug)]
#[command(
    group(ArgGroup::new("destination").required(true).args(["stream", "keyspace"])),
    after_help = "Into a stream, each line (or each CSV row as a JSON object) becomes a record, with --key as its key.\n\
                        Into a keyspace, --key names the column (csv) or field (ndjson) with the key. With `lines`, the\n\
                        text before the first tab is the key, and the text after it is the value.\n\n\
                        Examples:\n  thalweg import flights.ndjson --stream flights\n  \
                        thalweg import zipcodes.csv --keyspace zips --key country --key zip_code    # US/10001\n  \
                        thalweg import notes.txt --keyspace notes --generate-keys\n  \
                        zcat log.gz | thalweg import - --stream log --format lines"
)]
pub(crate) struct Import {
    /// File to import; `-` is stdin
    pub file: PathBuf,
    /// Append to this stream
    #[arg(long, value_name = "NAME")]
    pub stream: Option<String>,
    /// Put into this keyspace
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Format of the file [default: by its name: .csv, .ndjson, .jsonl, .txt or .log]
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
    /// Column or field of the file that contains the key; several, in this order, make one key
    #[arg(long, value_name = "COLUMN")]
    pub key: Vec<String>,
    /// Text between the parts of a key; a record that contains it in a part is rejected
    #[arg(long, value_name = "TEXT", default_value = "/", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub key_separator: String,
    /// Text before each key
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub key_prefix: String,
    /// Use the number of each record in the file as its key, with 12 digits; another import of the file makes the same
    /// keys
    #[arg(long, requires = "keyspace", conflicts_with = "key")]
    pub generate_keys: bool,
    /// Column or field of the file that contains the value [default: the whole record]
    #[arg(long, value_name = "COLUMN")]
    pub value: Option<String>,
    /// Skip this number of records first, to continue an import
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub skip: u64,
    /// Maximum number of records in a commit
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub batch: u32,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Destination of the imported records.
enum Sink<'a> {
    Stream(&'a str),
    Keyspace(&'a str),
}

/// Totals of the batches that the server has acknowledged in this import.
#[derive(Default)]
struct ImportTotals {
    records: u64,
    bytes: u64,
    first_offset: Option<u64>,
    next_offset: Option<u64>,
    durability: Option<Durability>,
}

pub(crate) fn run(args: &Import) -> Result<(), Failure> {
    let sink = match (&args.stream, &args.keyspace) {
        (Some(stream), _) => Sink::Stream(stream),
        (None, Some(keyspace)) => Sink::Keyspace(keyspace),
        (None, None) => return Err(Failure::usage("name the destination: --stream NAME or --keyspace NAME")),
    };
    let format = format(args)?;
    let shape = Shape {
        key: key_rule(args, format, matches!(sink, Sink::Keyspace(_)))?,
        key_prefix: &args.key_prefix,
        value: args.value.as_deref(),
    };
    let (input, len) = open(&args.file)?;
    let bar = progress(len);
    let counted = BufReader::with_capacity(256 * 1024, bar.wrap_read(input));
    let mut source = Source::new(Box::new(counted), format, shape)?;
    source.skip(args.skip)?;
    Session::with(&args.place, Access::Write, |session| {
        let started = Instant::now();
        let mut done = ImportTotals::default();
        let result = pump(session, &sink, &mut source, args, &mut done, &bar);
        bar.finish_and_clear();
        result.map_err(|failure| explain(failure, args, &done))?;
        summary(args, &done, started.elapsed())
    })
}

fn format(args: &Import) -> Result<FileFormat, Failure> {
    args.format.or_else(|| FileFormat::of_name(&args.file)).ok_or_else(|| {
        let file = args.file.display();
        Failure::usage(format!(
            "the name {file:?} does not show the format: state it with --format csv, ndjson or lines"
        ))
    })
}

fn key_rule(args: &Import, format: FileFormat, needs_key: bool) -> Result<KeyRule<'_>, Failure> {
    match (format, &*args.key) {
        _ if args.generate_keys => Ok(KeyRule::Number),
        (FileFormat::Lines, []) if needs_key => Ok(KeyRule::BeforeTab),
        (_, []) if needs_key => Err(Failure::usage(
            "a keyspace needs keys: name the column or field that holds them with --key, or use --generate-keys",
        )),
        (_, []) => Ok(KeyRule::Without),
        (_, names) => Ok(KeyRule::Fields { names, separator: &args.key_separator }),
    }
}

/// Sends all records of the file. If a record cannot be read, sends the records before it first, so that the import can
/// be continued exactly at this record.
fn pump(
    session: &Session,
    sink: &Sink<'_>,
    source: &mut Source<'_>,
    args: &Import,
    done: &mut ImportTotals,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let max_records = args.batch as usize;
    let (mut batch, mut bytes) = (Vec::with_capacity(max_records), 0);
    loop {
        let (item, unread) = match source.next_item() {
            Ok(item) => (item, None),
            Err(failure) => (None, Some(failure)),
        };
        let more = item.as_ref().map_or(0, |item| item.key.as_ref().map_or(0, Vec::len) + item.value.len());
        let full = batch.len() == max_records || bytes + more > MAX_BATCH_BYTES;
        if !batch.is_empty() && (full || item.is_none()) {
            let count = batch.len() as u64;
            send(session, sink, std::mem::take(&mut batch), done)?;
            done.records += count;
            done.bytes += bytes as u64;
            bytes = 0;
            bar.set_message(render::counted(done.records, "record", "records"));
        }
        if let Some(failure) = unread {
            return Err(failure);
        }
        let Some(item) = item else { return Ok(()) };
        bytes += more;
        batch.push(item);
    }
}

fn send(session: &Session, sink: &Sink<'_>, batch: Vec<Item>, done: &mut ImportTotals) -> Result<(), Failure> {
    match sink {
        Sink::Stream(stream) => {
            let record = |item: Item| Record { key: item.key, payload: item.value, ..Record::default() };
            let records: Vec<_> = batch.into_iter().map(record).collect();
            let appended = session.append(stream, &records, &AppendConditions::default())?;
            if let Some((first, next)) = appended.offsets {
                done.first_offset.get_or_insert(first);
                done.next_offset = Some(next);
            }
            done.durability = Some(appended.durability);
        }
        Sink::Keyspace(keyspace) => {
            let pairs: Vec<_> = batch.into_iter().map(|item| (item.key.unwrap_or_default(), item.value)).collect();
            done.durability = Some(session.put_many(keyspace, &pairs)?.durability);
        }
    }
    Ok(())
}

/// Adds two facts to the failure of an import: the number of stored records, and how to continue. A rejected batch is
/// not stored. If the answer of the server was lost, the batch may or may not be stored.
fn explain(failure: Failure, args: &Import, done: &ImportTotals) -> Failure {
    let acknowledged = args.skip + done.records;
    let mut next = failure.next.clone().map_or(String::new(), |next| format!("{next}\n  "));
    let stored = render::counted(acknowledged, "record", "records");
    next.push_str(&if failure.code == BAD_RECORD {
        let bad = acknowledged + 1;
        format!(
            "{stored} of the file stored; correct record {bad} and continue with the same command and --skip \
             {acknowledged}, or leave it out with --skip {bad}"
        )
    } else {
        format!("{stored} of the file stored; continue with the same command and --skip {acknowledged}")
    });
    if failure.exit == Exit::Unavailable && args.stream.is_some() {
        next.push_str(
            "\n  if the connection broke during a batch, that batch may be stored already: compare the end of the \
             stream (`thalweg streams`) before you continue",
        );
    }
    failure.then(next)
}

fn summary(args: &Import, done: &ImportTotals, took: Duration) -> Result<(), Failure> {
    let seconds = took.as_secs_f64().max(1e-6);
    let rate = (done.records as f64 / seconds) as u64;
    let bytes_rate = (done.bytes as f64 / seconds) as u64;
    let level = done.durability.map(Durability::name);
    if args.place.json {
        return render::line(
            &json!({
                "records": done.records, "bytes": done.bytes, "seconds": seconds, "records_per_second": rate,
                "durability": level, "first": done.first_offset,
                "last": done.next_offset.map(|next| next.saturating_sub(1)), "skipped": args.skip,
            })
            .to_string(),
        );
    }
    let offsets = match (done.first_offset, done.next_offset) {
        (Some(first), Some(next)) => format!(", offsets {first} to {}", next.saturating_sub(1)),
        _ => String::new(),
    };
    let level = level.map_or(String::new(), |level| format!(", durability {level}"));
    render::line(&format!(
        "ok, {}, {} in {}: {} records/s, {}/s{level}{offsets}",
        render::counted(done.records, "record", "records"),
        render::bytes(done.bytes),
        show_span(took),
        render::count(rate),
        render::bytes(bytes_rate),
    ))
}

fn open(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin()), None));
    }
    let file = File::open(path).map_err(|error| Failure::file(path, &error))?;
    let metadata = file.metadata().map_err(|error| Failure::file(path, &error))?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("{} is a directory: give a file", path.display())));
    }
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

fn progress(len: Option<u64>) -> ProgressBar {
    let template = match len {
        Some(_) => "{elapsed_precise} [{bar:32}] {percent}% {binary_bytes_per_sec}, {msg}, {eta} left",
        None => "{elapsed_precise} {spinner} {binary_bytes_per_sec}, {msg}",
    };
    render::progress_bar(len, template, false)
}
