//! Parsing of files into keys and values.
//!
//! Memory is bounded by one line or one row, each of at most [`MAX_LINE_BYTES`].

use std::io::{BufRead, Read};

use clap::ValueEnum;
use serde_json::{Map, Value};
use thalweg_types::limits::MAX_RECORD_BYTES;

use crate::{failure::Failure, render};

/// Maximum size of a line in bytes. The limit equals that of a record, which no record or value may exceed.
const MAX_LINE_BYTES: u64 = MAX_RECORD_BYTES as u64;

/// Format of a file.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// One record per line
    Lines,
    /// One JSON value per line
    Ndjson,
    /// A header line, then one row per line; quoted rows may span lines
    Csv,
}

/// A record, or a pair of a key and a value, that was read from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub key: Option<Vec<u8>>,
    pub value: Vec<u8>,
}

/// Reads a file record by record.
pub struct Source<'a> {
    rows: Rows<'a>,
    key: Option<&'a str>,
    needs_key: bool,
    /// Number of records read so far.
    count: u64,
}

enum Rows<'a> {
    Lines(Box<dyn BufRead + 'a>),
    Ndjson(Box<dyn BufRead + 'a>),
    Csv { rows: Box<csv::Reader<Box<dyn BufRead + 'a>>>, header: csv::StringRecord, key_at: Option<usize> },
}

impl<'a> Source<'a> {
    /// Opens a file to import. `key` names the column or field that contains the key. If `needs_key` is true, every
    /// record must have a key.
    pub fn new(
        input: Box<dyn BufRead + 'a>,
        format: FileFormat,
        key: Option<&'a str>,
        needs_key: bool,
    ) -> Result<Self, Failure> {
        if needs_key && key.is_none() && format != FileFormat::Lines {
            return Err(Failure::usage("a keyspace needs keys: name the column or field that holds them with --key"));
        }
        let rows = match format {
            FileFormat::Lines if key.is_some() => {
                return Err(Failure::usage("--key needs --format csv or ndjson: lines have no columns"));
            }
            FileFormat::Lines => Rows::Lines(input),
            FileFormat::Ndjson => Rows::Ndjson(input),
            FileFormat::Csv => csv_rows(input, key)?,
        };
        Ok(Self { rows, key, needs_key, count: 0 })
    }

    /// Skips the next `count` records of the file.
    pub fn skip(&mut self, count: u64) -> Result<(), Failure> {
        for _ in 0..count {
            if self.next_item()?.is_none() {
                return Err(Failure::usage(format!(
                    "the file has only {}, so none are left after --skip {count}",
                    render::counted(self.count, "record", "records")
                )));
            }
        }
        Ok(())
    }

    /// Returns the next record of the file; `None` at the end. An empty line is a record in the format `lines`, and
    /// is ignored in `ndjson`.
    pub fn next_item(&mut self) -> Result<Option<Item>, Failure> {
        let number = self.count + 1;
        let item = match &mut self.rows {
            Rows::Lines(input) => match next_line(input.as_mut(), number)? {
                Some(line) if self.needs_key => Some(split_at_tab(&line, number)?),
                Some(line) => Some(Item { key: None, value: line }),
                None => None,
            },
            Rows::Ndjson(input) => loop {
                match next_line(input.as_mut(), number)? {
                    Some(line) if line.trim_ascii().is_empty() => {}
                    Some(line) => break Some(json_item(line, self.key, number)?),
                    None => break None,
                }
            },
            Rows::Csv { rows, header, key_at } => next_row(rows, header, *key_at, number)?,
        };
        self.count += u64::from(item.is_some());
        Ok(item)
    }
}

fn next_line(input: &mut dyn BufRead, number: u64) -> Result<Option<Vec<u8>>, Failure> {
    let mut line = Vec::new();
    if input.take(MAX_LINE_BYTES + 2).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    if line.len() as u64 > MAX_LINE_BYTES {
        return Err(Failure::usage(format!("record {number} is longer than {MAX_LINE_BYTES} bytes")));
    }
    Ok(Some(line))
}

fn split_at_tab(line: &[u8], number: u64) -> Result<Item, Failure> {
    let Some(at) = line.iter().position(|&byte| byte == b'\t') else {
        return Err(Failure::usage(format!("line {number} has no tab: write key, tab, value")));
    };
    Ok(Item { key: Some(line[..at].to_vec()), value: line[at + 1..].to_vec() })
}

fn json_item(line: Vec<u8>, key: Option<&str>, number: u64) -> Result<Item, Failure> {
    let parsed: Value = serde_json::from_slice(&line)
        .map_err(|error| Failure::usage(format!("line {number} of the records is not JSON: {error}")))?;
    let Some(name) = key else { return Ok(Item { key: None, value: line }) };
    let key = match parsed.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
        Some(_) => return Err(Failure::usage(format!("record {number}: field {name:?} is neither text nor a number"))),
        None => return Err(Failure::usage(format!("record {number} has no field {name:?}"))),
    };
    Ok(Item { key: Some(key.into_bytes()), value: line })
}

fn csv_rows<'a>(input: Box<dyn BufRead + 'a>, key: Option<&str>) -> Result<Rows<'a>, Failure> {
    let mut rows = Box::new(csv::Reader::from_reader(input));
    let header = rows
        .headers()
        .map_err(|error| Failure::usage(format!("the first line of the file is invalid: {error}")))?
        .clone();
    let key_at = match key {
        None => None,
        Some(key) => Some(header.iter().position(|name| name == key).ok_or_else(|| {
            let names: Vec<_> = header.iter().collect();
            Failure::usage(format!("there is no column {key:?}: the file has {}", names.join(", ")))
        })?),
    };
    Ok(Rows::Csv { rows, header, key_at })
}

/// Reads a row of a CSV file into a JSON object of strings, in the order of the columns.
fn next_row(
    rows: &mut csv::Reader<Box<dyn BufRead + '_>>,
    header: &csv::StringRecord,
    key_at: Option<usize>,
    number: u64,
) -> Result<Option<Item>, Failure> {
    let mut row = csv::StringRecord::new();
    let more = rows.read_record(&mut row).map_err(|error| Failure::usage(format!("row {number}: {error}")))?;
    if !more {
        return Ok(None);
    }
    let columns = header.iter().zip(row.iter());
    let object: Map<String, Value> =
        columns.map(|(name, text)| (name.to_owned(), Value::String(text.to_owned()))).collect();
    let key = key_at.and_then(|at| row.get(at)).map(|key| key.as_bytes().to_vec());
    Ok(Some(Item { key, value: Value::Object(object).to_string().into_bytes() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(text: &str, format: FileFormat, key: Option<&str>, needs_key: bool) -> Result<Vec<Item>, Failure> {
        let mut source = Source::new(Box::new(text.as_bytes()), format, key, needs_key)?;
        std::iter::from_fn(|| source.next_item().transpose()).collect()
    }

    fn pair(key: &str, value: &str) -> Item {
        Item { key: Some(key.into()), value: value.into() }
    }

    #[test]
    fn lines_are_records_even_when_empty_or_without_an_end() {
        let values: Vec<_> = items("a\n\r\n\nb", FileFormat::Lines, None, false).unwrap();
        assert_eq!(
            values.iter().map(|item| item.value.as_slice()).collect::<Vec<_>>(),
            [b"a".as_slice(), b"", b"", b"b"]
        );
        assert_eq!(items("k\tv\tw\n", FileFormat::Lines, None, true).unwrap(), [pair("k", "v\tw")]);
        assert!(items("no tab\n", FileFormat::Lines, None, true).is_err());
    }

    #[test]
    fn json_lines_stay_byte_for_byte() {
        let text = "{\"id\": \"a\",  \"n\":1}\n\n{\"id\":2}\n";
        let found = items(text, FileFormat::Ndjson, Some("id"), true).unwrap();
        assert_eq!(found, [pair("a", "{\"id\": \"a\",  \"n\":1}"), pair("2", "{\"id\":2}")]);
        for (wrong, why) in [("{", "not JSON"), ("{\"x\":1}", "no field"), ("{\"id\":[]}", "neither text")] {
            let failure = items(wrong, FileFormat::Ndjson, Some("id"), true).unwrap_err();
            assert!(failure.message.contains(why), "{failure}");
        }
        assert!(items("{}", FileFormat::Ndjson, None, true).is_err(), "a keyspace needs keys");
    }

    #[test]
    fn csv_rows_become_objects_in_column_order() {
        let found = items("zip,city\n00501,\"Holts\nville\"\n", FileFormat::Csv, Some("zip"), true).unwrap();
        assert_eq!(found, [pair("00501", "{\"zip\":\"00501\",\"city\":\"Holts\\nville\"}")]);
        let failure = items("a,b\n1,2\n", FileFormat::Csv, Some("c"), true).unwrap_err();
        assert!(failure.message.contains("a, b"), "{failure}");
        assert!(items("a,b\n1\n", FileFormat::Csv, Some("a"), true).is_err(), "a row with a column missing");
    }

    #[test]
    fn skipping_goes_on_where_it_ended_and_not_past_the_end() {
        let mut source = Source::new(Box::new(b"a\nb\nc\n".as_slice()), FileFormat::Lines, None, false).unwrap();
        source.skip(2).unwrap();
        assert_eq!(source.next_item().unwrap().unwrap().value, b"c");
        assert!(source.skip(1).is_err());
    }
}
