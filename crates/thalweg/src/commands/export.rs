//! `export`: writes a stream or a keyspace to stdout or a file, in order, in bounded memory.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    ops::ControlFlow,
    path::PathBuf,
};

use clap::{Args, ValueEnum};
use serde_json::Value;
use thalweg_types::printable;

use super::kv::pair_json;
use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    render,
    session::{Access, ScanQuery, Session},
};

/// Format of an export.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// One payload per line, or key, tab, value; fails for data that contains newlines
    Lines,
    /// One JSON object per line with all fields, binary data as base64
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
    /// Format of the output
    #[arg(long, value_enum, default_value = "ndjson")]
    pub format: ExportFormat,
    /// Write to this file [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub raw: render::RawArgs,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub fn run(args: &Export) -> Result<(), Failure> {
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

/// Opens the destination of the export. Callers open it only after they found the data to export, so that a
/// mistyped name does not truncate a file.
fn output(args: &Export) -> Result<Output, Failure> {
    let (to, escapes): (Box<dyn Write>, _) = match &args.output {
        Some(path) => (Box::new(File::create(path).map_err(|error| Failure::file(path, &error))?), false),
        None => (Box::new(io::stdout().lock()), args.raw.escapes()),
    };
    Ok(Output { to: BufWriter::with_capacity(256 * 1024, to), escapes })
}

/// Destination of an export.
struct Output {
    to: BufWriter<Box<dyn Write>>,
    /// True if control characters must be escaped, because a terminal shows the export.
    escapes: bool,
}

impl Output {
    fn write(&mut self, part: &[u8]) -> io::Result<()> {
        if self.escapes {
            return self.to.write_all(printable::lines(part).as_bytes());
        }
        self.to.write_all(part)
    }
}

fn export_stream(session: &Session, name: &str, args: &Export) -> Result<u64, Failure> {
    let (start, mut count) = (session.stream(name)?.start, 0);
    let mut out = output(args)?;
    session.read(name, start, u64::MAX, &mut |record| {
        match args.format {
            ExportFormat::Lines if record.record.payload.contains(&b'\n') => {
                return Err(not_representable(&format!("the record at offset {}", record.offset)));
            }
            ExportFormat::Lines => write_line(&mut out, &[&record.record.payload])?,
            ExportFormat::Ndjson => write_line(&mut out, &[Value::Object(record.object()).to_string().as_bytes()])?,
        }
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    out.to.flush()?;
    Ok(count)
}

fn export_keyspace(session: &Session, name: &str, args: &Export) -> Result<u64, Failure> {
    if !session.keyspaces()?.iter().any(|keyspace| keyspace == name) {
        return Err(Failure::new(Exit::NotFound, "no_such_keyspace", format!("there is no keyspace named {name:?}"))
            .then("`thalweg keyspaces` lists the existing keyspaces"));
    }
    let (mut out, mut count) = (output(args)?, 0);
    session.scan(name, &ScanQuery::default(), &mut |pair| {
        let value = pair.value.unwrap_or_default();
        match args.format {
            ExportFormat::Lines if pair.key.contains(&b'\t') || pair.key.contains(&b'\n') || value.contains(&b'\n') => {
                return Err(not_representable(&format!("key {:?}", render::one_line(pair.key))));
            }
            ExportFormat::Lines => write_line(&mut out, &[pair.key, b"\t", value])?,
            ExportFormat::Ndjson => write_line(&mut out, &[pair_json(pair).as_bytes()])?,
        }
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    out.to.flush()?;
    Ok(count)
}

/// Returns the error for data that the format of the export can't represent exactly.
fn not_representable(what: &str) -> Failure {
    Failure::new(Exit::Usage, "unfit_format", format!("{what} does not fit on a line"))
        .then("export with --format ndjson")
}

fn write_line(out: &mut Output, parts: &[&[u8]]) -> Result<(), Failure> {
    let written = parts.iter().try_for_each(|part| out.write(part)).and_then(|()| out.write(b"\n"));
    Ok(written?)
}
