//! Formatting the fields of a server's log lines as text.
//!
//! Messages and errors may contain text from a client. The formatter of `tracing_subscriber` escapes strings and the
//! message. But it does not escape values that are recorded with their `Display`, such as errors, and it keeps line
//! feeds. This formatter escapes everything that is not printable. So a client can neither forge a log line nor control
//! the terminal that shows the line. The JSON formatter escapes only line feeds and ASCII control characters;
//! [`JsonLines`] escapes the rest.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use thalweg_types::printable::{Escaping, is_printable};
use tracing_subscriber::{
    field::MakeExt as _,
    fmt::{FormatFields, format},
};

/// Creates the formatter of the fields in log lines of text: the message, then `name=value` for each other field.
pub(crate) fn escaped() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    format::debug_fn(|writer, field, value| {
        let mut writer = Escaping(writer);
        match field.name() {
            "message" => write!(writer, "{value:?}"),
            name => write!(writer, "{}={value:?}", name.strip_prefix("r#").unwrap_or(name)),
        }
    })
    .delimited(" ")
}

/// Output of log lines in JSON. It escapes all characters that are not printable. JSON permits some of them in strings,
/// but some terminals react to them (such as DEL, U+009B and the controls of writing direction).
pub(crate) struct JsonLines<W>(pub W);

impl<W: Write> Write for JsonLines<W> {
    /// Writes all of `line`. The formatter of `tracing_subscriber` passes one complete line in each call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let acts = |char: char| char != '\n' && !is_printable(char);
        match std::str::from_utf8(line) {
            Ok(text) if text.chars().any(acts) => {
                let mut escaped = String::with_capacity(text.len() + 16);
                for char in text.chars() {
                    if acts(char) {
                        for unit in char.encode_utf16(&mut [0; 2]) {
                            // Writing to a string cannot fail.
                            let _ = write!(escaped, "\\u{unit:04x}");
                        }
                    } else {
                        escaped.push(char);
                    }
                }
                self.0.write_all(escaped.as_bytes())?;
            }
            _ => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_line_stays_one_line_whatever_a_client_has_sent() {
        let out = Shared::default();
        let writer = out.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .fmt_fields(escaped())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let sent = "a\x1b[2J\n  INFO forged\r\u{9b}1m\u{202e}";
            tracing::warn!(error = %sent, text = sent, number = 7, "refused {sent}");
        });
        let line = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let sent = "a\\u{1b}[2J\\n  INFO forged\\r\\u{9b}1m\\u{202e}";
        assert_eq!(line.trim_end_matches('\n').lines().count(), 1, "{line:?}");
        assert!(line.contains(&format!("refused {sent} error={sent} text=\"a")), "{line}");
        assert!(line.ends_with(" number=7\n"), "{line}");
        assert!(line.trim_end_matches('\n').chars().all(thalweg_types::printable::is_printable), "{line:?}");
    }
    #[test]
    fn a_json_line_shows_what_a_client_has_sent_without_acting_on_a_terminal() {
        let out = Shared::default();
        let writer = out.clone();
        let subscriber =
            tracing_subscriber::fmt().json().with_writer(move || JsonLines(writer.clone())).without_time().finish();
        let sent = "a\x1b[2J\n\u{7f}\u{9b}1m\u{202e}\u{e0001}\u{e9}";
        tracing::subscriber::with_default(subscriber, || tracing::warn!(error = %sent, "refused"));
        let line = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let line = line.strip_suffix('\n').unwrap();
        assert!(line.chars().all(is_printable), "{line:?}");
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(read["fields"]["error"], sent);
    }
}
