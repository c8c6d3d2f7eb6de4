//! `export`: writes a stream or a keyspace to stdout or a file, in order, in bounded memory.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    ops::ControlFlow,
};

use super::{kv::pair_json, stream::record_json, with_target};
use crate::{
    cli::{Export, ExportFormat},
    failure::{Exit, Failure},
    render,
    target::{Access, ScanQuery, Target},
};

pub fn run(args: &Export) -> Result<(), Failure> {
    let count = with_target(&args.place, Access::Read, |target| match (&args.stream, &args.keyspace) {
        (Some(stream), _) => export_stream(target, stream, args),
        (None, Some(keyspace)) => export_keyspace(target, keyspace, args),
        (None, None) => Err(Failure::usage("say what: --stream NAME or --keyspace NAME")),
    });
    match count {
        Ok(count) => {
            render::note(&format!("{} exported", render::count(count)));
            Ok(())
        }
        Err(failure) if failure.code == "broken_pipe" => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Returns the output. Callers open it only after they found the data to export, so that a mistyped name does not
/// truncate a file.
fn output(args: &Export) -> Result<Box<dyn Write>, Failure> {
    let out: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(File::create(path).map_err(|error| Failure::file(path, &error))?),
        None => Box::new(io::stdout().lock()),
    };
    Ok(Box::new(BufWriter::with_capacity(256 * 1024, out)))
}

fn export_stream(target: &dyn Target, name: &str, args: &Export) -> Result<u64, Failure> {
    let (start, mut count) = (target.stream(name)?.start, 0);
    let mut out = output(args)?;
    target.read(name, start, u64::MAX, &mut |record| {
        match args.format {
            ExportFormat::Lines => write_line(&mut out, &[one_line_payload(&record.payload, record.offset)?])?,
            ExportFormat::Ndjson => write_line(&mut out, &[record_json(&record).as_bytes()])?,
        }
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    out.flush()?;
    Ok(count)
}

fn export_keyspace(target: &dyn Target, name: &str, args: &Export) -> Result<u64, Failure> {
    if !target.keyspaces()?.iter().any(|keyspace| keyspace == name) {
        return Err(Failure::new(Exit::NotFound, "no_such_keyspace", format!("there is no keyspace named {name:?}"))
            .then("`thalweg keyspaces` lists what is there"));
    }
    let (mut out, mut count) = (output(args)?, 0);
    target.scan(name, &ScanQuery::default(), &mut |pair| {
        let value = pair.value.unwrap_or_default();
        match args.format {
            ExportFormat::Lines if pair.key.contains(&b'\t') || pair.key.contains(&b'\n') || value.contains(&b'\n') => {
                return Err(unfit(&format!("key {:?}", render::one_line(pair.key))));
            }
            ExportFormat::Lines => write_line(&mut out, &[pair.key, b"\t", value])?,
            ExportFormat::Ndjson => write_line(&mut out, &[pair_json(pair).as_bytes()])?,
        }
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    out.flush()?;
    Ok(count)
}

fn one_line_payload(payload: &[u8], offset: u64) -> Result<&[u8], Failure> {
    if payload.contains(&b'\n') { Err(unfit(&format!("the record at offset {offset}"))) } else { Ok(payload) }
}

/// Returns the error for data that the format could not represent exactly.
fn unfit(what: &str) -> Failure {
    Failure::new(Exit::Usage, "unfit_format", format!("{what} does not fit on a line"))
        .then("export with --format ndjson")
}

fn write_line(out: &mut dyn Write, parts: &[&[u8]]) -> Result<(), Failure> {
    let written = parts.iter().try_for_each(|part| out.write_all(part)).and_then(|()| out.write_all(b"\n"));
    Ok(written?)
}
