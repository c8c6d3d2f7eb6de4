//! Replies that do not end: server-sent events, and reading them across restarts of the server.

use std::{
    io::{BufRead, BufReader, Read},
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Map, Value};

use super::http::{Http, RequestBuilder, Step};
use crate::{
    failure::{Exit, Failure},
    render::note,
};

/// Time for which a command retries to reach a server after the connection is lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two attempts to reach a server after the connection is lost.
const PAUSE: Duration = Duration::from_millis(200);

/// A reply that does not end. It is requested again after the connection breaks.
pub(super) struct Endless<'a> {
    /// Function that returns the path to request on the next connection.
    pub(super) path: &'a dyn Fn() -> String,
    /// Function that returns the text after the note "the connection is lost", such as "retrying".
    pub(super) next: &'a dyn Fn() -> String,
    /// True if the next connection continues the reply where the previous one ended. An event that reports an
    /// unavailable server then counts as a lost connection, and not as a failure of the command.
    pub(super) resumes: bool,
}

/// Part of a reply that does not end: the beginning of a connection, or a server-sent event.
pub(super) enum Part {
    /// A connection begins: the first connection, or one after a lost connection.
    Opened,
    Event(Event),
}

impl Endless<'_> {
    /// Calls `visit` with each part of the endless reply (the beginning of a connection, or an event) until `visit`
    /// returns `Break`. Connects again after the connection is lost. Fails immediately if the server was never
    /// reachable.
    pub(super) fn follow(&self, http: &Http, visit: &mut dyn FnMut(Part) -> Step) -> Result<(), Failure> {
        let (mut lost_at, mut was_there) = (None, false);
        loop {
            let failure = match http.open(RequestBuilder::get((self.path)()).header("accept", "text/event-stream")) {
                Ok(reply) => {
                    (lost_at, was_there) = (None, true);
                    if visit(Part::Opened)?.is_break()
                        || self.visit(Events::new(BufReader::new(reply.body)), http, visit)?.is_break()
                    {
                        return Ok(());
                    }
                    None
                }
                Err(failure) if was_there && failure.exit == Exit::Unavailable => Some(failure),
                Err(failure) => return Err(failure),
            };
            let since = *lost_at.get_or_insert_with(|| {
                note(&format!("the connection to {} is lost: {}", http.base(), (self.next)()));
                Instant::now()
            });
            if let Some(failure) = failure
                && since.elapsed() > PATIENCE
            {
                return Err(failure);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Passes the events of one connection to `visit`, until the connection ends (`Continue`) or `visit` returns
    /// `Break`.
    pub(super) fn visit(
        &self,
        mut events: Events<impl BufRead>,
        http: &Http,
        visit: &mut dyn FnMut(Part) -> Step,
    ) -> Step {
        while let Some(event) = events.next_event() {
            let event = event.map_err(|_| http.unexpected_reply("an event of the reply is not a JSON object"))?;
            if event.name == "error" {
                let failure = http.failure_of(&Value::Object(event.object), 500);
                let is_lost = self.resumes && failure.exit == Exit::Unavailable;
                return if is_lost { Ok(ControlFlow::Continue(())) } else { Err(failure) };
            }
            if visit(Part::Event(event))?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// A server-sent event: its id if it has one, its name (`message` by default) and its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) object: Map<String, Value>,
}

/// Maximum size of a line of the reply in bytes. The largest record fits into it as base64 in JSON, with some room for
/// other fields.
const MAX_LINE_BYTES: u64 = 32 * 1024 * 1024;

/// Reader that parses server-sent events one by one.
pub(super) struct Events<R> {
    input: R,
}

impl<R: BufRead> Events<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input }
    }

    /// Returns the next event; `None` when the connection ends, with or without an error. Drops an incomplete event.
    /// Returns an error if the data of the event is not a JSON object.
    fn next_event(&mut self) -> Option<serde_json::Result<Event>> {
        let (id, name, data) = self.next_fields()?;
        Some(serde_json::from_str(&data).map(|object| Event { id, name, object }))
    }

    /// Returns the id, the name and the data of the next event. Lines of data are joined.
    fn next_fields(&mut self) -> Option<(Option<String>, String, String)> {
        let (mut id, mut name, mut data): (Option<String>, Option<String>, Option<String>) = (None, None, None);
        let mut line = Vec::new();
        loop {
            line.clear();
            self.take_line(&mut line)?;
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\r', '\n']);
            if text.is_empty() {
                match data.take() {
                    Some(data) => return Some((id, name.unwrap_or_else(|| "message".to_owned()), data)),
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

    /// Reads a line of the reply into `line`. Returns `None` at the end of the input, on an error, and for an
    /// incomplete or too long line.
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
        std::iter::from_fn(|| events.next_fields()).map(|(_, name, data)| (name, data)).collect()
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
        let ids: Vec<_> = std::iter::from_fn(|| events.next_fields()).map(|(id, ..)| id).collect();
        assert_eq!(ids, [Some("7".to_owned()), None, None]);
    }

    #[test]
    fn an_event_cut_short_is_none() {
        for text in ["", "data: x", "data: x\n", "data: x\nevent: y"] {
            assert_eq!(events(text), []);
        }
    }
}
