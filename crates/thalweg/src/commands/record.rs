//! Records and messages on the command line: the options that describe them, and how they are shown.

use clap::Args;
use serde_json::Value;

use crate::{
    failure::Failure,
    render::{self, Lines},
    session::{Record, StreamRecord},
    span::show_time,
};

/// Format in which records are shown.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecordFormat {
    /// Print only payloads, with a newline after each; byte for byte unless stdout is a terminal
    #[arg(long, conflicts_with = "json")]
    pub payload_only: bool,
    #[command(flatten)]
    pub raw: render::RawArgs,
}

/// Key and headers of records to send.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecordArgs {
    /// The key of each record or message
    #[arg(long)]
    pub key: Option<String>,
    /// A header of each record or message; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    pub headers: Vec<String>,
}

impl RecordArgs {
    /// Returns a record with the key and the headers that the user has given, and with an empty payload.
    pub(crate) fn template(&self) -> Result<Record, Failure> {
        let headers = self.headers.iter().map(|header| parse_header(header)).collect::<Result<_, _>>()?;
        let key = self.key.as_ref().map(|key| key.as_bytes().to_vec());
        Ok(Record { key, headers, ..Record::default() })
    }
}

fn parse_header(text: &str) -> Result<(String, Vec<u8>), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.as_bytes().to_vec())),
        _ => Err(Failure::usage(format!("{text:?} is not a header: use NAME=VALUE"))),
    }
}

/// Prints a record or a message in the format that the options select: as JSON, only its payload, or as a line of text.
pub(super) fn show(
    lines: &mut Lines,
    format: &RecordFormat,
    json: Option<Value>,
    record: &Record,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if let Some(json) = json {
        return lines.line(&json.to_string());
    }
    if format.payload_only {
        lines.data(&record.payload, format.raw)?;
        return lines.line("");
    }
    lines.line(&text())
}

/// Formats a record of a stream on one line of text.
pub(super) fn stream_text(record: &StreamRecord) -> String {
    format!("{}\t{}\t{}", record.offset, show_time(record.time), text(&record.record))
}

/// Formats the key, the headers and the payload of a record on one line of text.
pub(super) fn text(record: &Record) -> String {
    let mut text = String::new();
    if let Some(key) = &record.key {
        text.push_str(&format!("[{}] ", render::one_line(key)));
    }
    for (name, value) in &record.headers {
        text.push_str(&format!("{}={} ", render::name(name), render::one_line(value)));
    }
    text.push_str(if record.is_tombstone { "(tombstone)" } else { "" });
    text.push_str(&render::one_line(&record.payload));
    text
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
