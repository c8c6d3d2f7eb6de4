//! Parser of server-sent events from a byte stream.

use std::io::{BufRead, Read};

/// An event: its id if it has one, its name (`message` by default) and its data with lines joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    pub name: String,
    pub data: String,
}

/// Maximum size of a line in bytes: the largest record as base64 in JSON, plus some room.
const MAX_LINE_BYTES: u64 = 32 * 1024 * 1024;

/// Reads events one by one.
pub struct Events<R> {
    input: R,
}

impl<R: BufRead> Events<R> {
    pub fn new(input: R) -> Self {
        Self { input }
    }

    /// Returns the next event; `None` when the connection ends, cleanly or not. An incomplete event is dropped.
    pub fn next_event(&mut self) -> Option<Event> {
        let (mut id, mut name, mut data): (Option<String>, Option<String>, Option<String>) = (None, None, None);
        let mut line = Vec::new();
        loop {
            line.clear();
            self.take_line(&mut line)?;
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\r', '\n']);
            if text.is_empty() {
                match data.take() {
                    Some(data) => return Some(Event { id, name: name.unwrap_or_else(|| "message".to_owned()), data }),
                    None => (id, name) = (None, None),
                }
                continue;
            }
            let (field, value) = text.split_once(':').unwrap_or((text, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => id = Some(value.to_owned()),
                "event" => name = Some(value.to_owned()),
                "data" => data = Some(data.map_or_else(|| value.to_owned(), |data| format!("{data}\n{value}"))),
                _ => {}
            }
        }
    }

    /// Reads a line; `None` at the end of the input, on an error, and for an incomplete or too long line.
    fn take_line(&mut self, line: &mut Vec<u8>) -> Option<()> {
        Read::take(&mut self.input, MAX_LINE_BYTES).read_until(b'\n', line).ok()?;
        (line.last() == Some(&b'\n')).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Vec<(String, String)> {
        let mut events = Events::new(text.as_bytes());
        std::iter::from_fn(|| events.next_event()).map(|event| (event.name, event.data)).collect()
    }

    #[test]
    fn events_have_names_and_data_and_comments_are_passed_over() {
        let text = ": hello\n\nid: 7\nevent: record\ndata: {\"a\":1}\n\ndata:x\ndata: y\r\n\r\n: still here\n\n";
        let wanted = [("record", "{\"a\":1}"), ("message", "x\ny")];
        assert_eq!(events(text), wanted.map(|(name, data)| (name.to_owned(), data.to_owned())));
    }

    #[test]
    fn an_id_is_of_its_event_alone() {
        let mut events = Events::new("id: 7\ndata: a\n\ndata: b\n\nid: 8\n\ndata: c\n\n".as_bytes());
        let ids: Vec<_> = std::iter::from_fn(|| events.next_event()).map(|event| event.id).collect();
        assert_eq!(ids, [Some("7".to_owned()), None, None]);
    }

    #[test]
    fn an_event_cut_short_is_none() {
        for text in ["", "data: x", "data: x\n", "data: x\nevent: y"] {
            assert_eq!(events(text), []);
        }
    }
}
