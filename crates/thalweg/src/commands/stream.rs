//! `append`, `read`, `tail`: write and read records of a stream.

use std::{io::BufRead, ops::ControlFlow};

use serde_json::{Map, Value, json};
use thalweg_types::{
    Clock, Offset, SpaceTime, SystemClock,
    command::{AppendTerms, ExpectedOffset, ProducerStamp},
};

use super::with_target;
use crate::{
    cli::{Append, Read, RecordFormat, Tail},
    failure::Failure,
    render::{self, Lines},
    span::show_time,
    target::{Access, Appended, NewRecord, StreamRecord, Target},
};

/// Maximum number of records and of bytes from stdin in one append.
pub const STDIN_BATCH: (usize, usize) = (1000, 1024 * 1024);

pub fn append(args: &Append) -> Result<(), Failure> {
    let headers = args.headers.iter().map(|header| parse_header(header)).collect::<Result<Vec<_>, _>>()?;
    let record = |payload: Vec<u8>| NewRecord {
        key: args.key.as_ref().map(|key| key.as_bytes().to_vec()),
        headers: headers.clone(),
        payload,
        is_tombstone: args.tombstone,
    };
    let json = args.place.json;
    let producer = producer(args)?;
    let terms = AppendTerms { expected: args.expect, producer };
    with_target(&args.place, Access::Write, |target| {
        if let Some(path) = &args.file {
            let payload = std::fs::read(path).map_err(|error| Failure::file(path, &error))?;
            return show_appended(&target.append(&args.stream, &[record(payload)], &terms)?, 1, json);
        }
        if args.tombstone {
            return show_appended(&target.append(&args.stream, &[record(Vec::new())], &terms)?, 1, json);
        }
        if args.records.is_empty() {
            return append_stdin(target, args, &record);
        }
        let records: Vec<_> = args.records.iter().map(|text| record(text.as_bytes().to_vec())).collect();
        show_appended(&target.append(&args.stream, &records, &terms)?, records.len(), json)
    })
}

/// Returns the producer's stamp. Batches of lines from stdin depend on timing, while a repeated append of a producer
/// must have the same records; so a producer can't append stdin.
fn producer(args: &Append) -> Result<Option<ProducerStamp<'_>>, Failure> {
    let (Some(id), Some(sequence)) = (&args.producer, args.sequence) else { return Ok(None) };
    if args.file.is_none() && args.records.is_empty() && !args.tombstone {
        return Err(Failure::usage("--producer goes with records as arguments or with --file, not with stdin"));
    }
    Ok(Some(ProducerStamp { id, epoch: args.epoch, sequence }))
}

/// Appends the lines read so far whenever stdin has no more ready, so that records of a slow pipe are not delayed.
fn append_stdin(target: &dyn Target, args: &Append, record: &dyn Fn(Vec<u8>) -> NewRecord) -> Result<(), Failure> {
    let mut input = std::io::BufReader::with_capacity(STDIN_BATCH.1, std::io::stdin());
    let mut expect = args.expect;
    loop {
        let (mut records, mut bytes) = (Vec::new(), 0);
        loop {
            let mut line = Vec::new();
            if input.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let line = strip_newline(line);
            bytes += line.len();
            records.push(record(line));
            let more_at_hand = input.buffer().contains(&b'\n');
            if !more_at_hand || records.len() >= STDIN_BATCH.0 || bytes >= STDIN_BATCH.1 {
                break;
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        let appended = target.append(&args.stream, &records, &expect.into())?;
        // The condition applies to the first append of this input; the other appends follow it without a gap.
        if let (Some(_), Some((_, next))) = (expect.offset(), appended.offsets) {
            expect = ExpectedOffset::Exact(Offset(next));
        }
        show_appended(&appended, records.len(), args.place.json)?;
    }
}

pub fn read(args: &Read) -> Result<(), Failure> {
    with_target(&args.place, Access::Read, |target| {
        let from = match (args.from, args.since) {
            (Some(from), _) => from,
            (None, Some(since)) => target.offset_at(&args.stream, since.time(now()).micros())?,
            (None, None) => {
                let stream = target.stream(&args.stream)?;
                args.last.map_or(stream.start, |last| stream.next.saturating_sub(last).max(stream.start))
            }
        };
        let mut lines = Lines::new();
        target.read(&args.stream, from, args.limit.unwrap_or(u64::MAX), &mut |record| {
            show_record(&mut lines, &record, &args.format, args.place.json)?;
            Ok(ControlFlow::Continue(()))
        })?;
        lines.flush()
    })
}

pub fn tail(args: &Tail) -> Result<(), Failure> {
    if args.limit == Some(0) {
        return Ok(());
    }
    with_target(&args.place, Access::Read, |target| {
        let from = match (args.from, args.since, args.last) {
            (Some(from), ..) => from,
            (None, Some(since), _) => target.offset_at(&args.stream, since.time(now()).micros())?,
            (None, None, last) => {
                let stream = target.stream(&args.stream)?;
                stream.next.saturating_sub(last.unwrap_or(0)).max(stream.start)
            }
        };
        let (mut lines, mut left) = (Lines::new(), args.limit);
        target.tail(&args.stream, from, &mut |record| {
            show_record(&mut lines, &record, &args.format, args.place.json)?;
            lines.flush()?;
            left = left.map(|left| left - 1);
            Ok(if left == Some(0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    })
}

/// Formats a record as one JSON object.
pub fn record_json(record: &StreamRecord) -> String {
    let mut object = Map::new();
    object.insert("offset".into(), json!(record.offset));
    object.insert("time_micros".into(), json!(record.time));
    if let Some(key) = &record.key {
        render::insert_bytes(&mut object, "key", key);
    }
    if !record.headers.is_empty() {
        let headers = record.headers.iter().map(|(name, value)| {
            let mut header = Map::new();
            header.insert("name".into(), json!(name));
            render::insert_bytes(&mut header, "value", value);
            Value::Object(header)
        });
        object.insert("headers".into(), headers.collect());
    }
    render::insert_bytes(&mut object, "payload", &record.payload);
    if record.is_tombstone {
        object.insert("tombstone".into(), json!(true));
    }
    Value::Object(object).to_string()
}

fn show_record(lines: &mut Lines, record: &StreamRecord, format: &RecordFormat, json: bool) -> Result<(), Failure> {
    if json {
        return lines.line(&record_json(record));
    }
    if format.payload_only {
        lines.bytes(&record.payload)?;
        return lines.line("");
    }
    lines.line(&record_text(record))
}

/// Formats a record on one line of text.
pub fn record_text(record: &StreamRecord) -> String {
    let mut text = format!("{}\t{}\t", record.offset, show_time(record.time));
    if let Some(key) = &record.key {
        text.push_str(&format!("[{}] ", render::one_line(key)));
    }
    for (name, value) in &record.headers {
        text.push_str(&format!("{name}={} ", render::one_line(value)));
    }
    text.push_str(if record.is_tombstone { "(tombstone)" } else { "" });
    text.push_str(&render::one_line(&record.payload));
    text
}

fn show_appended(appended: &Appended, count: usize, json: bool) -> Result<(), Failure> {
    let level = appended.durability;
    let before = if appended.duplicate { " (it happened before)" } else { "" };
    let text = match (json, appended.offsets) {
        (true, offsets) => json!({
            "first": offsets.map(|(first, _)| first), "last": offsets.map(|(_, next)| next.saturating_sub(1)),
            "count": count, "durability": level.name(), "duplicate": appended.duplicate,
        })
        .to_string(),
        (false, Some((first, next))) if next == first + 1 => {
            format!("ok, offset {first}, durability {level}{before}")
        }
        (false, Some((first, next))) => {
            format!("ok, offsets {first} to {}, durability {level}{before}", next.saturating_sub(1))
        }
        (false, None) => format!("ok, {count} accepted, durability {level}"),
    };
    render::line(&text)
}

pub fn parse_header(text: &str) -> Result<(String, Vec<u8>), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.as_bytes().to_vec())),
        _ => Err(Failure::usage(format!("{text:?} is no header: use NAME=VALUE"))),
    }
}

pub fn strip_newline(mut line: Vec<u8>) -> Vec<u8> {
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    line
}

/// Returns the wall-clock time, from which spans before now are counted.
pub fn now() -> SpaceTime {
    SystemClock::default().wall()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_split_at_the_first_sign() {
        assert_eq!(parse_header("a=b=c").unwrap(), ("a".to_owned(), b"b=c".to_vec()));
        assert!(parse_header("a").is_err());
        assert!(parse_header("=b").is_err());
    }
}
