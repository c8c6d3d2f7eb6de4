//! Text that came from a client, in a form that is safe on a terminal, in a log line and in a metric.
//!
//! A stored name or value may contain characters that act on the program that shows them: an escape sequence moves the
//! cursor or retitles the window, a line feed forges a log line, and a bidirectional control reorders the text around
//! it. Owns: the choice of these characters, and the text that replaces them.

use std::fmt;

/// Returns true if a terminal only displays the character. Returns false for control characters, line and paragraph
/// separators, and the controls of bidirectional text.
#[must_use]
pub fn is_printable(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    );
    !c.is_control() && !is_format
}

/// Formats bytes on one line: text unchanged, except that backslashes are doubled, and that control characters and
/// bytes that are not UTF-8 are escaped. Different bytes give different text.
#[must_use]
pub fn one_line(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => shown.push_str("\\\\"),
                c if is_printable(c) => shown.push(c),
                c => push_escape(&mut shown, c),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut shown, *byte));
    }
    shown
}

/// Formats bytes as text that keeps its lines and tabs. Other control characters and bytes that are not UTF-8 are
/// escaped.
#[must_use]
pub fn lines(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' | '\t' => shown.push(c),
                c if is_printable(c) => shown.push(c),
                c => push_escape(&mut shown, c),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut shown, *byte));
    }
    shown
}

/// Appends the escape of a character that is not printable, such as `\n` or `\u{1b}`.
fn push_escape(out: &mut String, c: char) {
    if c.is_ascii() { out.extend(c.escape_default()) } else { out.extend(c.escape_unicode()) }
}

fn push_byte(out: &mut String, byte: u8) {
    use fmt::Write as _;
    let _ = write!(out, "\\x{byte:02x}");
}

/// Writer that escapes the characters of its text that are not printable, line feeds included.
#[derive(Debug)]
pub struct Escaping<W>(pub W);

impl<W: fmt::Write> fmt::Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| !is_printable(*c)) {
            self.0.write_str(&rest[..at])?;
            let mut escape = String::new();
            push_escape(&mut escape, c);
            self.0.write_str(&escape)?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn text_stays_and_what_acts_on_a_terminal_does_not() {
        assert_eq!(one_line("grün 日本 e\u{301} 👍".as_bytes()), "grün 日本 e\u{301} 👍");
        assert_eq!(one_line("grün\n\t\\".as_bytes()), "grün\\n\\t\\\\");
        assert_eq!(one_line(b"a\xff\x00\x1b[2J\x7f\r"), "a\\xff\\u{0}\\u{1b}[2J\\u{7f}\\r");
        assert_eq!(one_line("\u{9b}2J \u{202e}txt.exe \u{2028}".as_bytes()), "\\u{9b}2J \\u{202e}txt.exe \\u{2028}");
        assert_eq!(lines(b"a\n\tb\\\x1b]0;x\x07\xc3"), "a\n\tb\\\\u{1b}]0;x\\u{7}\\xc3");
        for c in (0..=0x10_ffff).filter_map(char::from_u32).filter(|c| c.is_control()) {
            assert!(!is_printable(c), "{c:?}");
        }
    }

    #[test]
    fn different_bytes_look_different() {
        assert_ne!(one_line(b"\x1b"), one_line(b"\\u{1b}"));
        assert_ne!(one_line(b"\xff"), one_line(b"\\xff"));
    }

    #[test]
    fn a_writer_escapes_what_is_written_through_it() {
        let mut out = String::new();
        Escaping(&mut out).write_str("plain \x1b[31mred\nforged \u{202e}").unwrap();
        assert_eq!(out, "plain \\u{1b}[31mred\\nforged \\u{202e}");
    }
}
