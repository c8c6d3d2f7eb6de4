//! Parsing of files into keys and values.
//!
//! Owns: the formats, the rule by which a record gets its key and its value, and the failures of records that cannot be
//! imported. Does not own: batches and the order in which they are sent (`import`).
//!
//! Memory is bounded by one line or one row, of at most [`MAX_LINE_BYTES`].

use std::{
    cell::Cell,
    collections::HashSet,
    io::{self, BufRead, Read},
    path::Path,
    rc::Rc,
};

use clap::ValueEnum;
use serde_json::{Map, Value};
use thalweg_types::limits::MAX_RECORD_BYTES;

use crate::{
    failure::{Exit, Failure},
    render,
};

/// Maximum size of a line in bytes. It equals the maximum size of a record. Values are not longer either.
const MAX_LINE_BYTES: u64 = MAX_RECORD_BYTES as u64;

/// Number of digits of a generated key. With a fixed number, the keys sort in the order of the records.
const NUMBER_DIGITS: usize = 12;

/// Error code for a record of the imported file that cannot be imported. The command itself finds such records; the
/// server has no such code.
pub(super) const BAD_RECORD: &str = "bad_record";

/// Format of a file to import.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    /// One record per line
    Lines,
    /// One JSON value per line
    Ndjson,
    /// A header line, then one row per line; quoted rows may span lines
    Csv,
}

impl FileFormat {
    /// Returns the format that belongs to the extension of a file's name; `None` for an unknown extension.
    pub(crate) fn of_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "ndjson" | "jsonl" => Some(Self::Ndjson),
            "txt" | "log" => Some(Self::Lines),
            _ => None,
        }
    }
}

/// Rule by which records get their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyRule<'a> {
    /// Records have no keys.
    Without,
    /// The key is the text of a line before its first tab, and the value is the text after it.
    BeforeTab,
    /// The key is the number of the record in the file, from 1.
    Number,
    /// The key consists of columns or fields of the record, joined by a separator that occurs in none of them.
    Fields { names: &'a [String], separator: &'a str },
}

/// Choice of the parts of an imported record that become its key and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    pub key: KeyRule<'a>,
    /// Text that is put before each key.
    pub key_prefix: &'a str,
    /// Column or field that becomes the value; `None` if the whole record becomes the value.
    pub value: Option<&'a str>,
}

/// A record, or a pair of a key and a value, that was read from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub key: Option<Vec<u8>>,
    pub value: Vec<u8>,
}

/// Reads a file record by record.
pub(super) struct Source<'a> {
    rows: Rows<'a>,
    shape: Shape<'a>,
    /// Number of records read so far.
    count: u64,
}

enum Rows<'a> {
    Lines(Box<dyn BufRead + 'a>),
    Ndjson(Box<dyn BufRead + 'a>),
    Csv(Box<CsvRows<'a>>),
}

struct CsvRows<'a> {
    reader: csv::Reader<RowLimit<'a>>,
    header: csv::StringRecord,
    /// Number of bytes that the CSV reader may still read for the current row before the row is too long.
    left: Rc<Cell<u64>>,
}

/// Number of bytes that the CSV reader may read beyond the end of a row: several times its buffer.
const MAX_BYTES_AHEAD: u64 = 64 * 1024;

/// Input of a CSV reader with a limit on the bytes of a row. Without the limit, a row with an unclosed quote would be
/// read into memory up to the end of the file.
struct RowLimit<'a> {
    input: Box<dyn BufRead + 'a>,
    left: Rc<Cell<u64>>,
}

impl Read for RowLimit<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(io::Error::other("the row is too long"));
        }
        let read = self.input.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(read as u64));
        Ok(read)
    }
}

impl<'a> Source<'a> {
    /// Opens a file to import.
    pub(super) fn new(input: Box<dyn BufRead + 'a>, format: FileFormat, shape: Shape<'a>) -> Result<Self, Failure> {
        let rows = match format {
            FileFormat::Lines if shape.value.is_some() || matches!(shape.key, KeyRule::Fields { .. }) => {
                return Err(Failure::usage("--key and --value need --format csv or ndjson: lines have no columns"));
            }
            FileFormat::Lines => Rows::Lines(input),
            FileFormat::Ndjson => Rows::Ndjson(input),
            FileFormat::Csv => Rows::Csv(Box::new(CsvRows::open(input, &shape)?)),
        };
        Ok(Self { rows, shape, count: 0 })
    }

    /// Skips the next `count` records of the file without parsing them. So a record that cannot be imported can be
    /// skipped too.
    pub(super) fn skip(&mut self, count: u64) -> Result<(), Failure> {
        for _ in 0..count {
            let is_found = match &mut self.rows {
                Rows::Lines(input) => skip_line(input.as_mut())?.is_some(),
                Rows::Ndjson(input) => loop {
                    match skip_line(input.as_mut())? {
                        Some(Line::Blank) => {}
                        other => break other.is_some(),
                    }
                },
                Rows::Csv(rows) => rows.skip()?,
            };
            if !is_found {
                return Err(Failure::usage(format!(
                    "the file has only {}, so none are left after --skip {count}",
                    render::counted(self.count, "record", "records")
                )));
            }
            self.count += 1;
        }
        Ok(())
    }

    /// Returns the next record of the file; `None` at the end of the file. An empty line is a record in the format
    /// `lines`, and is ignored in the format `ndjson`.
    pub(super) fn next_item(&mut self) -> Result<Option<Item>, Failure> {
        let number = self.count + 1;
        let shape = &self.shape;
        let item = match &mut self.rows {
            Rows::Lines(input) => next_line(input.as_mut(), number)?.map(|line| line_item(line, shape, number)),
            Rows::Ndjson(input) => loop {
                match next_line(input.as_mut(), number)? {
                    Some(line) if line.trim_ascii().is_empty() => {}
                    line => break line.map(|line| json_item(line, shape, number)),
                }
            },
            Rows::Csv(rows) => rows.next(number)?.map(|row| row_item(&rows.header, &row, shape, number)),
        };
        let Some(item) = item.transpose()? else { return Ok(None) };
        self.count = number;
        let prefixed = |key: Vec<u8>| [shape.key_prefix.as_bytes(), &key].concat();
        Ok(Some(Item { key: item.key.map(prefixed), value: item.value }))
    }
}

/// Creates the failure for a record that cannot be imported.
fn bad_record(message: String) -> Failure {
    Failure::new(Exit::Usage, BAD_RECORD, message)
}

fn too_long(number: u64) -> Failure {
    bad_record(format!("record {number} is longer than {MAX_LINE_BYTES} bytes"))
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
        return Err(too_long(number));
    }
    Ok(Some(line))
}

/// Kind of a line that [`skip_line`] has skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Blank,
    Text,
}

/// Skips a line of any length without keeping it in memory. Returns `None` at the end of the input.
fn skip_line(input: &mut dyn BufRead) -> io::Result<Option<Line>> {
    let mut line = None;
    loop {
        let chunk = input.fill_buf()?;
        if chunk.is_empty() {
            return Ok(line);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        let is_blank = part.trim_ascii().is_empty() && line != Some(Line::Text);
        line = Some(if is_blank { Line::Blank } else { Line::Text });
        let used = end.map_or(part.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(line);
        }
    }
}

fn line_item(line: Vec<u8>, shape: &Shape<'_>, number: u64) -> Result<Item, Failure> {
    match shape.key {
        KeyRule::BeforeTab => match line.iter().position(|&byte| byte == b'\t') {
            Some(at) => Ok(Item { key: Some(line[..at].to_vec()), value: line[at + 1..].to_vec() }),
            None => Err(bad_record(format!("record {number} has no tab: write key, tab, value"))),
        },
        // Lines have no fields. `Source::new` has rejected the rule `Fields` for them.
        KeyRule::Without | KeyRule::Fields { .. } => Ok(Item { key: None, value: line }),
        KeyRule::Number => Ok(Item { key: Some(number_key(number)), value: line }),
    }
}

fn number_key(number: u64) -> Vec<u8> {
    format!("{number:0NUMBER_DIGITS$}").into_bytes()
}

/// Returns the key of a record. `field` returns the bytes of a column or field of the record.
fn key_of(
    shape: &Shape<'_>,
    number: u64,
    mut field: impl FnMut(&str) -> Result<Vec<u8>, Failure>,
) -> Result<Option<Vec<u8>>, Failure> {
    match shape.key {
        KeyRule::Without | KeyRule::BeforeTab => Ok(None),
        KeyRule::Number => Ok(Some(number_key(number))),
        KeyRule::Fields { names: [name], .. } => field(name).map(Some),
        KeyRule::Fields { names, separator } => {
            let mut parts = Vec::with_capacity(names.len());
            for name in names {
                let part = field(name)?;
                // If a part could contain the separator, different records could get equal keys, and one would replace
                // the other.
                if !separator.is_empty() && memmem(&part, separator.as_bytes()) {
                    return Err(bad_record(format!(
                        "record {number}: {name:?} contains {separator:?}, which separates the parts of a key: choose \
                         another text with --key-separator"
                    )));
                }
                parts.push(part);
            }
            Ok(Some(parts.join(separator.as_bytes())))
        }
    }
}

fn memmem(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn json_item(line: Vec<u8>, shape: &Shape<'_>, number: u64) -> Result<Item, Failure> {
    let parsed: Value =
        serde_json::from_slice(&line).map_err(|error| bad_record(format!("record {number} is not JSON: {error}")))?;
    let key = key_of(shape, number, |name| match json_field(&parsed, name, number)? {
        JsonField::Scalar(bytes) => Ok(bytes),
        JsonField::Nested(_) => {
            Err(bad_record(format!("record {number}: field {name:?} is neither text nor a number")))
        }
    })?;
    let value = match shape.value {
        None => line,
        Some(name) => match json_field(&parsed, name, number)? {
            JsonField::Scalar(bytes) | JsonField::Nested(bytes) => bytes,
        },
    };
    Ok(Item { key, value })
}

/// Value of a field of a JSON object, as bytes.
enum JsonField {
    /// Text without its quotes, the bytes of a base64 field, a number, or a Boolean value.
    Scalar(Vec<u8>),
    /// JSON text of an object, an array or null.
    Nested(Vec<u8>),
}

/// Returns a field of a JSON object. If the field `name` is missing, the field `name_base64` may have the bytes, as an
/// export writes it.
fn json_field(record: &Value, name: &str, number: u64) -> Result<JsonField, Failure> {
    match record.get(name) {
        Some(Value::String(text)) => Ok(JsonField::Scalar(text.clone().into_bytes())),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(JsonField::Scalar(value.to_string().into_bytes())),
        Some(value) => Ok(JsonField::Nested(value.to_string().into_bytes())),
        None => match record.as_object().and_then(|object| render::take_bytes(object, name)) {
            Some(bytes) => Ok(JsonField::Scalar(bytes)),
            None => Err(bad_record(format!("record {number} has no field {name:?}"))),
        },
    }
}

impl<'a> CsvRows<'a> {
    /// Opens a CSV file: reads its header, and checks that it has the columns that the import needs.
    fn open(input: Box<dyn BufRead + 'a>, shape: &Shape<'_>) -> Result<Self, Failure> {
        let left = Rc::new(Cell::new(MAX_LINE_BYTES + MAX_BYTES_AHEAD));
        let mut reader = csv::Reader::from_reader(RowLimit { input, left: Rc::clone(&left) });
        let header = reader
            .headers()
            .map_err(|error| Failure::usage(format!("the first line of the file is invalid: {error}")))?
            .clone();
        check_header(&header, shape)?;
        Ok(Self { reader, header, left })
    }

    fn next(&mut self, number: u64) -> Result<Option<csv::StringRecord>, Failure> {
        let mut row = csv::StringRecord::new();
        self.left.set(MAX_LINE_BYTES + MAX_BYTES_AHEAD);
        match self.reader.read_record(&mut row) {
            Ok(more) => Ok(more.then_some(row)),
            Err(error) => match error.into_kind() {
                csv::ErrorKind::Io(_) if self.left.get() == 0 => Err(too_long(number)),
                csv::ErrorKind::Io(error) => Err(error.into()),
                other => Err(bad_record(format!("record {number}: {}", csv_error(&other)))),
            },
        }
    }

    /// Skips a row of a CSV file, even one that [`next`](Self::next) would reject, unless the row is too long. Returns
    /// false at the end of the file.
    fn skip(&mut self) -> Result<bool, Failure> {
        self.left.set(MAX_LINE_BYTES + MAX_BYTES_AHEAD);
        match self.reader.read_byte_record(&mut csv::ByteRecord::new()) {
            Ok(more) => Ok(more),
            Err(error) => match error.into_kind() {
                csv::ErrorKind::Io(error) => Err(error.into()),
                _ => Ok(true),
            },
        }
    }
}

/// Checks the header of a CSV file: it must have the columns that the import needs, and no column twice. One of two
/// equal columns would be lost.
fn check_header(header: &csv::StringRecord, shape: &Shape<'_>) -> Result<(), Failure> {
    let mut names = HashSet::new();
    if let Some(twice) = header.iter().find(|name| !names.insert(*name)) {
        return Err(Failure::usage(format!("the file has two columns {twice:?}: rename one of them")));
    }
    let keys = if let KeyRule::Fields { names, .. } = shape.key { names } else { &[] };
    for wanted in keys.iter().map(String::as_str).chain(shape.value) {
        if !names.contains(wanted) {
            let all: Vec<_> = header.iter().collect();
            return Err(Failure::usage(format!("there is no column {wanted:?}: the file has {}", all.join(", "))));
        }
    }
    Ok(())
}

fn csv_error(error: &csv::ErrorKind) -> String {
    match error {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("it has {}, and the header has {expected_len}", render::counted(*len, "column", "columns"))
        }
        csv::ErrorKind::Utf8 { err, .. } => format!("column {} is not UTF-8", err.field() + 1),
        other => format!("{other:?}"),
    }
}

/// Makes an imported record from a row of a CSV file. Its value is one column, or a JSON object with all columns as
/// strings, in the order of the columns.
fn row_item(
    header: &csv::StringRecord,
    row: &csv::StringRecord,
    shape: &Shape<'_>,
    number: u64,
) -> Result<Item, Failure> {
    let cell = |wanted: &str| {
        let found = header.iter().zip(row.iter()).find(|(name, _)| *name == wanted);
        found.map_or_else(Vec::new, |(_, text)| text.as_bytes().to_vec())
    };
    let key = key_of(shape, number, |name| Ok(cell(name)))?;
    let value = match shape.value {
        Some(name) => cell(name),
        None => {
            let columns = header.iter().zip(row.iter());
            let object: Map<String, Value> =
                columns.map(|(name, text)| (name.to_owned(), Value::String(text.to_owned()))).collect();
            Value::Object(object).to_string().into_bytes()
        }
    };
    Ok(Item { key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Shape<'static> = Shape { key: KeyRule::Without, key_prefix: "", value: None };

    fn with_key(key: KeyRule<'_>) -> Shape<'_> {
        Shape { key, ..PLAIN }
    }

    fn fields(names: &[String]) -> Shape<'_> {
        with_key(KeyRule::Fields { names, separator: "/" })
    }

    fn names<const N: usize>(names: [&str; N]) -> [String; N] {
        names.map(str::to_owned)
    }

    fn items(text: &str, format: FileFormat, shape: Shape<'_>) -> Result<Vec<Item>, Failure> {
        let mut source = Source::new(Box::new(text.as_bytes()), format, shape)?;
        std::iter::from_fn(|| source.next_item().transpose()).collect()
    }

    fn pair(key: &str, value: &str) -> Item {
        Item { key: Some(key.into()), value: value.into() }
    }

    #[test]
    fn lines_are_records_even_when_empty_or_without_an_end() {
        let values: Vec<_> = items("a\n\r\n\nb", FileFormat::Lines, PLAIN).unwrap();
        assert_eq!(
            values.iter().map(|item| item.value.as_slice()).collect::<Vec<_>>(),
            [b"a".as_slice(), b"", b"", b"b"]
        );
        let tab = with_key(KeyRule::BeforeTab);
        assert_eq!(items("k\tv\tw\n", FileFormat::Lines, tab).unwrap(), [pair("k", "v\tw")]);
        assert!(items("no tab\n", FileFormat::Lines, tab).is_err());
        assert!(items("a\n", FileFormat::Lines, fields(&names(["a"]))).is_err(), "lines have no fields");
    }

    #[test]
    fn json_lines_stay_byte_for_byte() {
        let text = "{\"id\": \"a\",  \"n\":1}\n\n{\"id\":2}\n";
        let id = names(["id"]);
        let found = items(text, FileFormat::Ndjson, fields(&id)).unwrap();
        assert_eq!(found, [pair("a", "{\"id\": \"a\",  \"n\":1}"), pair("2", "{\"id\":2}")]);
        for (wrong, why) in [("{", "not JSON"), ("{\"x\":1}", "no field"), ("{\"id\":[]}", "neither text")] {
            let failure = items(wrong, FileFormat::Ndjson, fields(&id)).unwrap_err();
            assert!(failure.message.contains(why) && failure.code == BAD_RECORD, "{failure}");
        }
    }

    #[test]
    fn csv_rows_become_objects_in_column_order() {
        let zip = names(["zip"]);
        let found = items("zip,city\n00501,\"Holts\nville\"\n", FileFormat::Csv, fields(&zip)).unwrap();
        assert_eq!(found, [pair("00501", "{\"zip\":\"00501\",\"city\":\"Holts\\nville\"}")]);
        let failure = items("a,b\n1,2\n", FileFormat::Csv, fields(&names(["c"]))).unwrap_err();
        assert!(failure.message.contains("a, b"), "{failure}");
        let failure = items("a,b\n1\n", FileFormat::Csv, PLAIN).unwrap_err();
        assert!(failure.message.contains("it has 1 column, and the header has 2"), "{failure}");
        let failure = items("a,a\n1,2\n", FileFormat::Csv, PLAIN).unwrap_err();
        assert!(failure.message.contains("two columns \"a\""), "a column would be lost: {failure}");
    }

    #[test]
    fn a_quote_that_is_never_closed_does_not_read_the_whole_file() {
        let endless = b"a\n1\n\"2".as_slice().chain(io::repeat(b'x'));
        let mut source = Source::new(Box::new(io::BufReader::new(endless)), FileFormat::Csv, PLAIN).unwrap();
        assert_eq!(source.next_item().unwrap().unwrap().value, b"{\"a\":\"1\"}");
        let failure = source.next_item().unwrap_err();
        assert!(failure.message.contains("record 2 is longer"), "{failure}");
    }

    #[test]
    fn keys_are_composed_numbered_and_prefixed() {
        let parts = names(["country", "zip"]);
        let text = "zip,country,city\n10001,US,New York\n75001,FR,Paris\n";
        let keys = |shape| -> Vec<String> {
            let items = items(text, FileFormat::Csv, shape).unwrap();
            items.into_iter().map(|item| String::from_utf8(item.key.unwrap()).unwrap()).collect()
        };
        assert_eq!(keys(fields(&parts)), ["US/10001", "FR/75001"]);
        assert_eq!(keys(with_key(KeyRule::Number)), ["000000000001", "000000000002"]);
        assert_eq!(keys(Shape { key_prefix: "z-", ..fields(&parts[..1]) }), ["z-US", "z-FR"]);
        let failure = items("zip,country\n1/2,US\n", FileFormat::Csv, fields(&parts)).unwrap_err();
        assert!(failure.message.contains("--key-separator"), "two records could share a key: {failure}");
    }

    #[test]
    fn a_value_may_be_one_column_and_exports_come_back() {
        let key = names(["key"]);
        let shape = Shape { value: Some("value"), ..fields(&key) };
        assert_eq!(items("key,value\na,\"1,2\"\n", FileFormat::Csv, shape).unwrap(), [pair("a", "1,2")]);
        let exported = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key_base64\":\"AP8v\",\"value_base64\":\"/w==\"}\n";
        let found = items(exported, FileFormat::Ndjson, shape).unwrap();
        assert_eq!(found[0], pair("a", "1"));
        assert_eq!(found[1], Item { key: Some(vec![0, 255, b'/']), value: vec![255] });
    }

    #[test]
    fn formats_follow_from_names() {
        for (name, format) in
            [("a.csv", "Csv"), ("b.CSV", "Csv"), ("a.ndjson", "Ndjson"), ("a.jsonl", "Ndjson"), ("x/a.log", "Lines")]
        {
            assert_eq!(format!("{:?}", FileFormat::of_name(Path::new(name)).unwrap()), format, "{name}");
        }
        assert_eq!(FileFormat::of_name(Path::new("-")), None);
        assert_eq!(FileFormat::of_name(Path::new("a.csv.gz")), None);
    }

    #[test]
    fn skipping_goes_on_where_it_ended_and_not_past_the_end() {
        let mut source = Source::new(Box::new(b"a\nb\nc\n".as_slice()), FileFormat::Lines, PLAIN).unwrap();
        source.skip(2).unwrap();
        assert_eq!(source.next_item().unwrap().unwrap().value, b"c");
        assert!(source.skip(1).is_err());
    }

    #[test]
    fn records_that_cannot_be_imported_can_be_skipped() {
        let id = names(["id"]);
        let (ndjson, csv) = ("oops\n\n{}\n{\"id\":7}\n", "id,b\n1\n2,3,4\n7,8\n");
        for (text, format, skipped) in [(ndjson, FileFormat::Ndjson, 2), (csv, FileFormat::Csv, 2)] {
            let mut source = Source::new(Box::new(text.as_bytes()), format, fields(&id)).unwrap();
            source.skip(skipped).unwrap();
            assert_eq!(source.next_item().unwrap().unwrap().key.as_deref(), Some(&b"7"[..]), "{format:?}");
            assert_eq!(source.next_item().unwrap(), None);
        }
    }
}
