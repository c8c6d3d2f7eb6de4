//! Output of commands: bytes as text, tables, and JSON. Uses colour only on a terminal.
//!
//! Owns: writing to stdout and stderr, and escaping text for terminals. Does not own: the screen of `top`
//! (`commands/top/terminal`), the lines that a server prints at its start (`commands/serve`), exit codes (`failure`),
//! or the words for figures (`figures`).
//!
//! stdout gets only results; notes and progress go to stderr.
//!
//! Invariant: no text that comes from data can control a terminal. Every line passes [`line()`], [`Lines::line`],
//! [`note`] or [`failure`], which escape its control characters. Values pass [`data`], which prints them byte for byte
//! only if stdout is not a terminal or the user has requested it.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, BufWriter, IsTerminal, Write},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use clap::Args;
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
pub(crate) use thalweg_types::printable::one_line;
use thalweg_types::printable::{self, Escaping};

use crate::failure::Failure;

/// Returns true if stderr is a terminal and the user has not disabled colour.
pub(crate) fn stderr_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Prints a failure on stderr: as one line of JSON, or as text.
pub(crate) fn failure(failure: &Failure, json: bool) {
    if json {
        eprintln!("{}", safe(&failure.to_json()));
    } else {
        let label = if stderr_colour() { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
        eprintln!("{label} {}", safe(&failure.to_string()));
    }
}

/// Prints a note on stderr.
pub(crate) fn note(text: &str) {
    let text = safe(text);
    if stderr_colour() {
        eprintln!("\x1b[2m{text}\x1b[0m");
    } else {
        eprintln!("{text}");
    }
}

/// Returns the text with its control characters escaped, except for line feeds and tabs. The escapes are those of JSON.
/// So JSON text that passes this function keeps its meaning.
fn safe(text: &str) -> Cow<'_, str> {
    let is_safe = |c: char| printable::is_printable(c) || matches!(c, '\n' | '\t');
    if text.chars().all(is_safe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_safe(c) {
            escaped.push(c);
        } else {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        }
    }
    Cow::Owned(escaped)
}

/// Option of commands that print data: print the bytes unchanged.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct RawArgs {
    /// Print control characters and bytes that are not text unchanged, even on a terminal
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
}

impl RawArgs {
    /// Returns true if data on stdout must be escaped, because stdout is a terminal and the user has not requested raw
    /// output.
    pub(crate) fn escapes(self) -> bool {
        !self.raw && io::stdout().is_terminal()
    }
}

/// Writer that escapes control characters for a terminal. It keeps line feeds and tabs.
pub(crate) struct TerminalWriter<W: Write> {
    to: W,
    /// First bytes of a UTF-8 character whose other bytes have not been written yet.
    rest: Vec<u8>,
}

impl<W: Write> TerminalWriter<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, rest: Vec::new() }
    }
}

impl<W: Write> Write for TerminalWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        let end = match std::str::from_utf8(&self.rest) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.rest.len(),
        };
        let shown = printable::lines(&self.rest[..end]);
        self.rest.drain(..end);
        self.to.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W: Write> Drop for TerminalWriter<W> {
    fn drop(&mut self) {
        // The remaining bytes are an incomplete character at the end of the output. An error is ignored, because the
        // destination may be closed.
        let _ = self.to.write_all(printable::lines(&self.rest).as_bytes());
    }
}

/// Prints a value: byte for byte, or escaped if stdout is a terminal.
pub(crate) fn data(bytes: &[u8], raw: RawArgs) -> Result<(), Failure> {
    if !raw.escapes() {
        return out(bytes);
    }
    let shown = printable::lines(bytes);
    // A newline is added, because the shell's prompt directly after the value would look like a part of it.
    let end = if shown.ends_with('\n') { "" } else { "\n" };
    out(format!("{shown}{end}").as_bytes())?;
    if shown.as_bytes() != bytes {
        note("the value has control characters or bytes that are not text; --raw prints them unchanged");
    }
    Ok(())
}

/// Writes bytes to stdout and flushes it.
pub(crate) fn out(bytes: &[u8]) -> Result<(), Failure> {
    written(io::stdout().lock().write_all(bytes).and_then(|()| io::stdout().flush()))
}

/// Buffered lines for stdout. They are written when the buffer is dropped, or on request.
pub(crate) struct Lines {
    out: BufWriter<io::Stdout>,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self { out: BufWriter::with_capacity(64 * 1024, io::stdout()) }
    }

    /// Adds a value to the output: byte for byte, or escaped if stdout is a terminal.
    pub(crate) fn data(&mut self, bytes: &[u8], raw: RawArgs) -> Result<(), Failure> {
        if raw.escapes() {
            return written(self.out.write_all(printable::lines(bytes).as_bytes()));
        }
        written(self.out.write_all(bytes))
    }

    /// Adds a line of text to the output.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        written(self.out.write_all(safe(text).as_bytes()).and_then(|()| self.out.write_all(b"\n")))
    }

    /// Writes the lines added so far to stdout.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        written(self.out.flush())
    }
}

/// Handles the result of a write to stdout. If the reader has closed stdout (as `head` does), ends the process quietly.
pub(crate) fn written(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}

/// Prints one line.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    out(format!("{}\n", safe(text)).as_bytes())
}

/// Formats a name that came from data on one line, with control characters escaped.
pub(crate) fn name(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let written = Escaping(&mut shown).write_str(text);
    written.expect("writing to memory");
    shown
}

/// Adds bytes to a JSON object: as the field `name` if they are UTF-8, and otherwise as the base64 field `name_base64`.
pub(crate) fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), json!(text)),
        Err(_) => object.insert(format!("{name}_base64"), json!(BASE64.encode(bytes))),
    };
}

/// Inverse of [`insert_bytes`]: returns the bytes of the field `name` or `name_base64`; `None` if neither field
/// exists.
pub(crate) fn take_bytes(object: &Map<String, Value>, name: &str) -> Option<Vec<u8>> {
    if let Some(text) = object.get(name).and_then(Value::as_str) {
        return Some(text.as_bytes().to_vec());
    }
    let encoded = object.get(&format!("{name}_base64"))?.as_str()?;
    BASE64.decode(encoded).ok()
}

/// Formats a table without borders, so that other programs can easily process it.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for row in rows {
        // Cells are escaped, because a line feed in a cell would look like another row.
        table.add_row(row.iter().map(|cell| name(cell)));
    }
    let lines = table.to_string();
    let unframed = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned();
    lines.lines().map(unframed).collect::<Vec<_>>().join("\n")
}

/// Formats a number with commas: `1234567` becomes `1,234,567`.
pub(crate) fn count(n: u64) -> String {
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

/// Formats a number with its unit, such as `1 entry` or `2,000 entries`.
pub(crate) fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// Prints `object` as JSON if `json` is true. Otherwise prints the text that `text` returns.
pub(crate) fn print_result(object: &Value, json: bool, text: impl FnOnce() -> String) -> Result<(), Failure> {
    line(&if json { object.to_string() } else { text() })
}

/// Creates a progress bar on stderr, or a spinner if `length` is `None`. The bar is hidden if stderr is not a terminal
/// or the command prints JSON.
pub(crate) fn progress_bar(length: Option<u64>, template: &str, json: bool) -> ProgressBar {
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.set_style(ProgressStyle::with_template(template).expect("a valid template"));
    if json || !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

/// Formats a number of bytes with a binary unit.
pub(crate) fn bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_acts_on_a_terminal_and_json_stays_the_same() {
        assert_eq!(safe("grün\tund\nrot"), "grün\tund\nrot");
        assert_eq!(safe("a\u{1b}[2J\u{9b}\u{7f}\u{202e}"), "a\\u001b[2J\\u009b\\u007f\\u202e");
        let object = json!({"a\u{7f}": "\u{9b}2J\n\u{202e}"});
        let shown = safe(&object.to_string()).into_owned();
        assert!(shown.is_ascii(), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), object);
    }

    #[test]
    fn a_character_that_is_written_in_parts_stays_whole() {
        let mut shown = Vec::new();
        let mut writer = TerminalWriter::new(&mut shown);
        for byte in "grün\x1b\n".as_bytes() {
            writer.write_all(&[*byte]).unwrap();
        }
        writer.write_all(b"\xc3").unwrap();
        drop(writer);
        assert_eq!(shown, "grün\\u{1b}\n\\xc3".as_bytes());
    }

    #[test]
    fn a_name_cannot_forge_a_row() {
        let shown = table(&["name", "n"], [vec!["a\nforged\u{1b}[1A".to_owned(), "1".to_owned()]]);
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(shown.contains("a\\nforged\\u{1b}[1A"), "{shown}");
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
