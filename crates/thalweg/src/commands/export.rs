//! `export`: writes a stream or a keyspace to stdout or a file, in order, in bounded memory.

mod csv_rows;
mod output_file;

use std::{
    io::{self, BufWriter, Write},
    ops::ControlFlow,
    path::PathBuf,
};

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::Value;

use self::{
    csv_rows::{CsvRows, unfit},
    output_file::OutputFile,
};
use super::kv::pair_json;
use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    render,
    session::{Access, Pair, Record, ScanQuery, Session, StreamRecord},
    span::show_time,
};

/// Columns of a stream in a CSV file.
const STREAM_COLUMNS: [&str; 6] = ["offset", "time", "key", "headers", "tombstone", "payload"];

/// Format of an export.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportFormat {
    /// One payload per line, or key, tab, value; fails for data that contains newlines
    Lines,
    /// One JSON object per line with all fields, binary data as base64
    Ndjson,
    /// A header line, then one row per record or pair; fails for data that is not UTF-8
    Csv,
}

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("source").required(true).args(["stream", "keyspace"])), after_help = "Examples:\n  \
                        thalweg export --stream flights --format lines > flights.ndjson\n  \
                        thalweg export --keyspace zips --output zips.ndjson\n  \
                        thalweg export --keyspace zips --format csv --columns zip_code,city > zips.csv")]
pub(crate) struct Export {
    /// Export this stream
    #[arg(long, value_name = "NAME")]
    pub stream: Option<String>,
    /// Export this keyspace
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Format of the output
    #[arg(long, value_enum, default_value = "ndjson")]
    pub format: ExportFormat,
    /// Fields of the JSON object in each value or payload that become columns of a CSV file, instead of the whole
    /// record
    #[arg(long, value_name = "FIELDS", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Write to this file, which appears when the export is complete [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub raw: render::RawArgs,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn run(args: &Export) -> Result<(), Failure> {
    if !args.columns.is_empty() && args.format != ExportFormat::Csv {
        return Err(Failure::usage("--columns needs --format csv"));
    }
    let count = Session::with(&args.place, Access::Read, |session| match (&args.stream, &args.keyspace) {
        (Some(stream), _) => export_stream(session, stream, args),
        (None, Some(keyspace)) => export_keyspace(session, keyspace, args),
        (None, None) => Err(Failure::usage("name the data: --stream NAME or --keyspace NAME")),
    });
    match count {
        Ok(count) => {
            let unit = if args.stream.is_some() { ["record", "records"] } else { ["pair", "pairs"] };
            render::note(&format!("{} exported", render::counted(count, unit[0], unit[1])));
            Ok(())
        }
        Err(failure) if failure.code == "broken_pipe" => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Destination of an export. It writes the rows in one format.
struct Sink<'a> {
    rows: Rows<'a>,
    file: Option<OutputFile>,
}

/// Writer of the rows of an export, in one format.
enum Rows<'a> {
    Lines(Box<dyn Write>),
    Ndjson(Box<dyn Write>),
    Csv(Box<CsvRows<'a>>),
}

impl<'a> Sink<'a> {
    /// Opens the destination. Callers open it only after they have found the data to export, so that a mistyped name
    /// does not replace an existing file. `columns` are the columns of a CSV file if the user names none.
    fn open(args: &'a Export, columns: &[&str]) -> Result<Self, Failure> {
        let file = args.output.as_deref().map(OutputFile::create).transpose()?;
        let out: Box<dyn Write> = match &file {
            Some(file) => Box::new(file.writer()?),
            None if args.raw.escapes() => Box::new(render::TerminalWriter::new(io::stdout().lock())),
            None => Box::new(io::stdout().lock()),
        };
        let out = Box::new(BufWriter::with_capacity(256 * 1024, out));
        let rows = match args.format {
            ExportFormat::Lines => Rows::Lines(out),
            ExportFormat::Ndjson => Rows::Ndjson(out),
            ExportFormat::Csv => Rows::Csv(Box::new(CsvRows::new(out, &args.columns, columns)?)),
        };
        Ok(Self { rows, file })
    }

    /// Writes the buffered bytes, and gives the file its final name. Dropping the destination instead would lose an
    /// error of these writes.
    fn finish(self) -> Result<(), Failure> {
        match self.rows {
            Rows::Lines(mut out) | Rows::Ndjson(mut out) => out.flush()?,
            Rows::Csv(rows) => rows.finish()?,
        }
        self.file.map_or(Ok(()), OutputFile::finish)
    }
}

fn export_stream(session: &Session, name: &str, args: &Export) -> Result<u64, Failure> {
    let (start, mut count) = (session.stream(name)?.start, 0);
    let mut sink = Sink::open(args, &STREAM_COLUMNS)?;
    session.read(name, start, u64::MAX, &mut |record| {
        write_record(&mut sink, &record)?;
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    sink.finish()?;
    Ok(count)
}

fn write_record(sink: &mut Sink<'_>, record: &StreamRecord) -> Result<(), Failure> {
    let name = || format!("the record at offset {}", record.offset);
    let Record { key, payload, is_tombstone, .. } = &record.record;
    match &mut sink.rows {
        Rows::Lines(_) if payload.contains(&b'\n') => Err(unfit(&name(), "does not fit on a line")),
        Rows::Lines(out) => write_line(out, &[payload]),
        Rows::Ndjson(out) => write_line(out, &[Value::Object(record.object()).to_string().as_bytes()]),
        Rows::Csv(rows) => rows.write(payload, &name, || {
            let headers = record.object().get("headers").map(Value::to_string).unwrap_or_default();
            vec![
                record.offset.to_string().into(),
                show_time(record.time).into(),
                key.clone().unwrap_or_default(),
                headers.into(),
                is_tombstone.to_string().into(),
                payload.clone(),
            ]
        }),
    }
}

fn export_keyspace(session: &Session, name: &str, args: &Export) -> Result<u64, Failure> {
    if !session.keyspaces()?.iter().any(|keyspace| keyspace["name"] == name) {
        return Err(Failure::new(Exit::NotFound, "no_such_keyspace", format!("there is no keyspace named {name:?}"))
            .then("`thalweg keyspaces` lists the existing keyspaces"));
    }
    let (mut sink, mut count) = (Sink::open(args, &["key", "value"])?, 0);
    session.scan(name, &ScanQuery::default(), &mut |pair| {
        write_pair(&mut sink, pair)?;
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    sink.finish()?;
    Ok(count)
}

fn write_pair(sink: &mut Sink<'_>, pair: Pair<'_>) -> Result<(), Failure> {
    let name = || format!("key {:?}", render::one_line(pair.key));
    let value = pair.value.unwrap_or_default();
    match &mut sink.rows {
        Rows::Lines(_) if pair.key.contains(&b'\t') || pair.key.contains(&b'\n') || value.contains(&b'\n') => {
            Err(unfit(&name(), "does not fit on a line"))
        }
        Rows::Lines(out) => write_line(out, &[pair.key, b"\t", value]),
        Rows::Ndjson(out) => write_line(out, &[pair_json(pair).as_bytes()]),
        Rows::Csv(rows) => rows.write(value, &name, || vec![pair.key.to_vec(), value.to_vec()]),
    }
}

fn write_line(out: &mut dyn Write, parts: &[&[u8]]) -> Result<(), Failure> {
    let written = parts.iter().try_for_each(|part| out.write_all(part)).and_then(|()| out.write_all(b"\n"));
    Ok(written?)
}
