//! The history of all operations, its check, and its file for other checkers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
};

use serde_json::json;
use thalweg_sim::linear::{
    ClientAnswer, Timed, check_within,
    register::{Action, Answer, Register},
};

use crate::clients::Protocol;

/// Most configurations that the check keeps at a moment.
const MAX_CONFIGURATIONS: usize = 200_000;

/// An operation of a client on a key.
#[derive(Clone, Debug)]
pub struct Event {
    pub client: u64,
    pub protocol: Protocol,
    pub node: usize,
    pub key: String,
    pub begin: u64,
    /// End of the operation; `None` if its outcome is unknown.
    pub end: Option<u64>,
    pub action: Action,
    pub answer: Answer,
}

/// All operations, by their keys.
#[derive(Default)]
pub struct History(BTreeMap<String, Vec<Event>>);

impl History {
    pub fn add(&mut self, events: Vec<Event>) {
        for event in events {
            self.0.entry(event.key.clone()).or_default().push(event);
        }
    }

    pub fn keys(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// Returns the numbers of operations, in one line.
    pub fn summary(&self) -> String {
        let count = |holds: &dyn Fn(&Event) -> bool| self.0.values().flatten().filter(|event| holds(event)).count();
        let protocols = [Protocol::Http, Protocol::Resp, Protocol::Native].map(|protocol| {
            format!("{} over {protocol:?}", count(&|event| event.protocol == protocol && event.end.is_some()))
        });
        format!(
            "{} keys, {} operations ({}), {} of unknown outcome",
            self.0.len(),
            count(&|_| true),
            protocols.join(", "),
            count(&|event| event.end.is_none()),
        )
    }

    /// Checks that each key's history is linearizable, and that it shows something.
    pub fn check(&self, context: &str) {
        let mut undecided = 0;
        for (key, events) in &self.0 {
            let timed = |event: &Event| Timed {
                begin: event.begin,
                end: event.end.unwrap_or(u64::MAX),
                client_answer: if event.end.is_some() { ClientAnswer::Answered } else { ClientAnswer::Nothing },
                operation: (event.action, event.answer),
            };
            let history: Vec<_> = events.iter().map(timed).collect();
            match check_within::<Register>(None, &history, MAX_CONFIGURATIONS) {
                None => undecided += 1,
                Some(Ok(())) => {}
                Some(Err(unexplained)) => {
                    let wrong = &events[unexplained.operation];
                    let end = wrong.end.unwrap_or(u64::MAX);
                    let around: Vec<_> = events
                        .iter()
                        .filter(|other| other.begin < end && other.end.unwrap_or(u64::MAX) + 50 > wrong.begin)
                        .collect();
                    let states = unexplained.states;
                    panic!("{context}: {key}: {wrong:?} can't be; before it was {states:?}; beside it: {around:#?}");
                }
            }
        }
        println!("{} histories are linearizable, {undecided} took too long to check", self.0.len() - undecided);
        assert!(undecided * 10 <= self.0.len(), "{context}: {undecided} of {} histories undecided", self.0.len());
        for protocol in [Protocol::Http, Protocol::Resp, Protocol::Native] {
            let answered = |event: &&Event| event.protocol == protocol && event.answer == Answer::Done;
            let done = self.0.values().flatten().filter(answered).count();
            assert!(done > 50, "{context}: only {done} writes over {protocol:?} were acknowledged");
        }
    }

    /// Writes the history as JSON lines.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for event in self.0.values().flatten() {
            let (operation, expect, value) = match event.action {
                Action::Get => ("get", None, None),
                Action::Put(value) => ("put", None, Some(value)),
                Action::Swap { expect, put } => ("swap", expect, Some(put)),
                Action::Delete => ("delete", None, None),
                Action::DeleteIf(value) => ("delete_if", Some(value), None),
            };
            let (answer, found) = match event.answer {
                Answer::Done => ("done", None),
                Answer::Refused | Answer::RefusedAt(_) => ("refused", None),
                Answer::Value(value) => ("value", value),
                Answer::Lost => ("unknown", None),
            };
            let line = json!({
                "client": event.client, "protocol": format!("{:?}", event.protocol).to_lowercase(), "node": event.node,
                "key": event.key, "begin": event.begin, "end": event.end, "operation": operation, "expect": expect,
                "value": value, "answer": answer, "found": found,
            });
            writeln!(file, "{line}")?;
        }
        file.flush()
    }
}
