//! Rows of an export to CSV. A row contains all parts of a record or pair. If the user names columns, it contains only
//! these fields of the JSON object in the value instead.

use std::io::Write;

use serde_json::{Map, Value};

use crate::failure::{Exit, Failure};

/// Writer of the CSV rows of an export.
pub(super) struct CsvRows<'a> {
    out: csv::Writer<Box<dyn Write + 'a>>,
    /// Fields that become columns; empty if the rows contain all parts of a record.
    fields: &'a [String],
}

impl<'a> CsvRows<'a> {
    /// Creates a writer, and writes the header. The header has the names of the fields, or of the parts of a record
    /// (`whole`).
    pub(super) fn new(out: Box<dyn Write + 'a>, fields: &'a [String], whole: &[&str]) -> Result<Self, Failure> {
        let mut rows = Self { out: csv::Writer::from_writer(out), fields };
        if fields.is_empty() {
            rows.out.write_record(whole).map_err(failure)?;
        } else {
            rows.out.write_record(fields).map_err(failure)?;
        }
        Ok(rows)
    }

    /// Writes a row. If the user has named columns, the cells are these fields of the JSON object in `value`. Otherwise
    /// they are the cells that `whole` returns. `name` describes the record in a failure.
    pub(super) fn write(
        &mut self,
        value: &[u8],
        name: &dyn Fn() -> String,
        whole: impl FnOnce() -> Vec<Vec<u8>>,
    ) -> Result<(), Failure> {
        let cells = if self.fields.is_empty() {
            whole()
        } else {
            let object: Map<String, Value> = serde_json::from_slice(value)
                .map_err(|_| unfit(&name(), "is not a JSON object, which --columns needs"))?;
            self.fields.iter().map(|field| cell(object.get(field))).collect()
        };
        if cells.iter().any(|cell| std::str::from_utf8(cell).is_err()) {
            return Err(unfit(&name(), "is not UTF-8, as CSV is"));
        }
        self.out.write_record(cells).map_err(failure)
    }

    /// Writes the rows that are still in the buffer to the destination.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }
}

/// Converts an error of the CSV writer to a failure. Keeps the kind of an I/O error, so that a closed pipe ends the
/// export quietly.
fn failure(error: csv::Error) -> Failure {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        other => Failure::new(Exit::Failed, "io", format!("{other:?}")),
    }
}

/// Returns the error for data that the format of an export can't represent exactly.
pub(super) fn unfit(name: &str, why: &str) -> Failure {
    Failure::new(Exit::Usage, "unfit_format", format!("{name} {why}")).then("export with --format ndjson")
}

/// Formats a field of a JSON object as a cell of a CSV row: text without quotes, an empty cell for a missing field or
/// null, and JSON for other values.
fn cell(field: Option<&Value>) -> Vec<u8> {
    match field {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.clone().into_bytes(),
        Some(other) => other.to_string().into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fields: &[&str], values: &[&str]) -> Result<String, Failure> {
        let fields: Vec<_> = fields.iter().map(|&field| field.to_owned()).collect();
        let mut out = Vec::new();
        let mut rows = CsvRows::new(Box::new(&mut out), &fields, &["key", "value"])?;
        for value in values {
            rows.write(value.as_bytes(), &|| "it".to_owned(), || vec![b"k".to_vec(), value.as_bytes().to_vec()])?;
        }
        rows.finish()?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn rows_are_quoted_where_they_must_be() {
        assert_eq!(written(&[], &["a,b", "c\"d", "e"]).unwrap(), "key,value\nk,\"a,b\"\nk,\"c\"\"d\"\nk,e\n");
    }

    #[test]
    fn fields_become_columns() {
        let values = [r#"{"b": 1, "a": "x,y"}"#, r#"{"a": null, "b": [1, 2], "c": 3}"#, "{}"];
        assert_eq!(written(&["a", "b"], &values).unwrap(), "a,b\n\"x,y\",1\n,\"[1,2]\"\n,\n");
        let failure = written(&["a"], &["[1]"]).unwrap_err();
        assert!(failure.message.contains("not a JSON object"), "{failure}");
    }
}
