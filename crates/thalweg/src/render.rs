//! Output of commands: bytes as text, tables, JSON, and colour only on a terminal.
//!
//! stdout contains only results; notes and progress go to stderr.

use std::io::{self, BufWriter, IsTerminal, Write};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// Returns true if stderr is a terminal and the user has not disabled colour.
pub fn stderr_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Prints a failure on stderr: as one line of JSON, or as text.
pub fn failure(failure: &Failure, json: bool) {
    if json {
        eprintln!("{}", failure.to_json());
    } else {
        let label = if stderr_colour() { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
        eprintln!("{label} {failure}");
    }
}

/// Prints a note on stderr.
pub fn note(text: &str) {
    if stderr_colour() {
        eprintln!("\x1b[2m{text}\x1b[0m");
    } else {
        eprintln!("{text}");
    }
}

/// Writes to stdout and flushes it.
pub fn out(bytes: &[u8]) -> Result<(), Failure> {
    exit_on_broken_pipe(io::stdout().lock().write_all(bytes).and_then(|()| io::stdout().flush()))
}

/// Buffered lines for stdout; flushed when dropped or on request.
pub struct Lines {
    out: BufWriter<io::Stdout>,
}

impl Lines {
    pub fn new() -> Self {
        Self { out: BufWriter::with_capacity(64 * 1024, io::stdout()) }
    }

    /// Adds bytes unchanged to the output.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        exit_on_broken_pipe(self.out.write_all(bytes))
    }

    /// Adds a line of text to the output.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        exit_on_broken_pipe(self.out.write_all(text.as_bytes()).and_then(|()| self.out.write_all(b"\n")))
    }

    /// Writes the lines added so far to stdout.
    pub fn flush(&mut self) -> Result<(), Failure> {
        exit_on_broken_pipe(self.out.flush())
    }
}

/// Ends the process quietly if the reader of stdout has closed it (`| head`).
fn exit_on_broken_pipe(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}

/// Prints one line.
pub fn line(text: &str) -> Result<(), Failure> {
    out(format!("{text}\n").as_bytes())
}

/// Formats bytes on one line: UTF-8 unchanged, control characters and invalid bytes escaped as `\xNN`.
pub fn one_line(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => shown.push_str("\\\\"),
                '\n' => shown.push_str("\\n"),
                '\t' => shown.push_str("\\t"),
                c if c.is_control() => shown.extend(c.escape_default()),
                c => shown.push(c),
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// Adds bytes to a JSON object: as `name` if they are UTF-8, else as `name_base64`.
pub fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), json!(text)),
        Err(_) => object.insert(format!("{name}_base64"), json!(BASE64.encode(bytes))),
    };
}

/// Inverse of [`insert_bytes`]: returns the bytes of the field `name` or `name_base64`; `None` if neither field
/// exists.
pub fn take_bytes(object: &Map<String, Value>, name: &str) -> Option<Vec<u8>> {
    if let Some(text) = object.get(name).and_then(Value::as_str) {
        return Some(text.as_bytes().to_vec());
    }
    let encoded = object.get(&format!("{name}_base64"))?.as_str()?;
    BASE64.decode(encoded).ok()
}

/// Formats a table without borders, which is also easy to process in a pipe.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    let lines = table.to_string();
    let unframed = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned();
    lines.lines().map(unframed).collect::<Vec<_>>().join("\n")
}

/// Formats `1234567` as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a number with its unit, such as `1 entry` and `2,000 entries`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// Prints an object as JSON if `json` is true, and otherwise the text that `text` returns.
pub fn print_result(object: &Value, json: bool, text: impl FnOnce() -> String) -> Result<(), Failure> {
    line(&if json { object.to_string() } else { text() })
}

/// Creates a progress bar on stderr; a spinner without a `length`. It is hidden if stderr is no terminal or the
/// command prints JSON.
pub fn progress_bar(length: Option<u64>, template: &str, json: bool) -> ProgressBar {
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.set_style(ProgressStyle::with_template(template).expect("a valid template"));
    if json || !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

/// Formats a number of bytes with a binary unit.
pub fn bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_stay_on_one_line() {
        assert_eq!(one_line("grün\n\t\\".as_bytes()), "grün\\n\\t\\\\");
        assert_eq!(one_line(b"a\xff\x00"), "a\\xff\\u{0}");
    }

    #[test]
    fn bytes_go_through_json_both_ways() {
        for bytes in [b"".as_slice(), b"text", b"\xff\x00", "ü".as_bytes()] {
            let mut object = Map::new();
            insert_bytes(&mut object, "value", bytes);
            assert_eq!(take_bytes(&object, "value").as_deref(), Some(bytes));
        }
        assert_eq!(take_bytes(&Map::new(), "value"), None);
    }

    #[test]
    fn counts_are_grouped() {
        let shown: Vec<_> = [0, 999, 1_000, 1_234_567].map(count).into();
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn units_have_plurals() {
        let shown: Vec<_> = [0, 1, 1_000].map(|n| counted(n, "entry", "entries")).into();
        assert_eq!(shown, ["0 entries", "1 entry", "1,000 entries"]);
    }
}
