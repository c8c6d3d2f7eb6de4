//! Watches of keys: requests that report changes of keys as they happen.

use std::{cell::Cell, ops::ControlFlow};

use serde_json::{Map, Value};
use thalweg_server::parse::encode;

use super::{
    Session,
    directory::Directory,
    events::{Endless, Event, Part},
    http::Step,
};
use crate::{
    failure::Failure,
    render::{note, take_bytes},
};

/// Keys that a watch covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchKeys {
    Key(Vec<u8>),
    Prefix(Vec<u8>),
    /// The keys from the first value, inclusive, to the second value, exclusive. `None` means no bound on this side.
    Range(Option<Vec<u8>>, Option<Vec<u8>>),
}

/// Keys that a watch covers, and the revision at which it starts.
#[derive(Clone, Debug)]
pub(crate) struct WatchQuery {
    pub keys: WatchKeys,
    /// Revision of the first change to report; `None` reports only changes from now on.
    pub from: Option<u64>,
}

/// A change of a key, or the removal of all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub revision: u64,
    /// Time of the change in microseconds since 1970.
    pub time: u64,
    /// Kind of the change, as the HTTP API names it: `put`, `delete`, `expire` or `delete_prefix`.
    pub what: String,
    /// Key that changed; for `delete_prefix`, the prefix of the removed keys.
    pub key: Vec<u8>,
    /// New value of the key; `None` unless the change is a put.
    pub value: Option<Vec<u8>>,
    /// True for the last watched change of a commit.
    pub is_last: bool,
}

impl Change {
    /// Returns true if the change removed all keys with a prefix, so that `key` is the prefix.
    pub(crate) fn is_prefix(&self) -> bool {
        self.what == "delete_prefix"
    }
}

/// Function that is called with each change; `Break` ends the watch.
type VisitChanges<'v> = &'v mut dyn FnMut(&Change) -> Step;

impl Session {
    /// Passes the changes from a revision on to `visit`, and then new changes as they happen, until `visit` ends the
    /// watch. After a restart of the server, the watch continues with the commit after the last one that was passed to
    /// `visit`. A watch of a directory ends after the newest change.
    pub(crate) fn watch(&self, keyspace: &str, query: &WatchQuery, visit: VisitChanges<'_>) -> Result<(), Failure> {
        let newest = self.http.opened_directory().map(Directory::revision);
        let from = Cell::new(query.from);
        let mut commits = Commits { from: &from, changes: Vec::new() };
        let endless = Endless {
            path: &|| path(keyspace, &query.keys, from.get()),
            next: &|| from.get().map_or("retrying".to_owned(), |from| format!("retrying from revision {from}")),
            resumes: true,
        };
        let watched = endless.follow(&self.http, &mut |part| {
            if commits.part(part, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if from.get().zip(newest).is_none_or(|(from, newest)| from <= newest) {
                return Ok(ControlFlow::Continue(()));
            }
            note("end of the changes: while this command has the directory open, no other process can write");
            Ok(ControlFlow::Break(()))
        });
        watched.map_err(|failure| match &*failure.code {
            "beyond_end" => failure.then("without --from, the watch begins with the next change"),
            _ => failure,
        })
    }
}

/// Changes of the commit that is being received. They are passed on only when the commit is complete. So no change is
/// passed on twice after a lost connection.
struct Commits<'a> {
    /// Revision from which the watch continues after a lost connection. This is the revision after the last complete
    /// commit. Before the first commit it is the revision that the user gave.
    from: &'a Cell<Option<u64>>,
    changes: Vec<Change>,
}

impl Commits<'_> {
    fn part(&mut self, part: Part, visit: VisitChanges<'_>) -> Step {
        let Part::Event(Event { id, object, .. }) = part else {
            self.changes.clear();
            return Ok(ControlFlow::Continue(()));
        };
        self.changes.extend(change_of(&object));
        if let Some(revision) = id.and_then(|id| id.parse::<u64>().ok()) {
            if let Some(last) = self.changes.last_mut() {
                last.is_last = true;
            }
            for change in self.changes.drain(..) {
                if visit(&change)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            self.from.set(Some(revision + 1));
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Parses a change from the JSON of the HTTP API; `None` if fields are missing.
fn change_of(object: &Map<String, Value>) -> Option<Change> {
    let what = object.get("change")?.as_str()?.to_owned();
    Some(Change {
        revision: object.get("revision")?.as_u64()?,
        time: object.get("time_micros").and_then(Value::as_u64).unwrap_or_default(),
        key: take_bytes(object, "key").or_else(|| take_bytes(object, "prefix"))?,
        value: take_bytes(object, "value"),
        what,
        is_last: false,
    })
}

pub(super) fn path(keyspace: &str, keys: &WatchKeys, from: Option<u64>) -> String {
    let mut path = format!("/v1/watch/{}?", encode(keyspace.as_bytes()));
    let mut add = |name: &str, value: &[u8]| path.push_str(&format!("{name}={}&", encode(value)));
    match keys {
        WatchKeys::Key(key) => add("key", key),
        WatchKeys::Prefix(prefix) => add("prefix", prefix),
        WatchKeys::Range(start, end) => {
            start.iter().for_each(|start| add("start", start));
            end.iter().for_each(|end| add("end", end));
        }
    }
    from.iter().for_each(|from| add("from", from.to_string().as_bytes()));
    path.pop();
    path
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::{events::Events, http::Http};

    #[test]
    fn paths_say_which_keys_and_from_where() {
        assert_eq!(path("a b", &WatchKeys::Prefix(Vec::new()), None), "/v1/watch/a%20b?prefix=");
        assert_eq!(path("k", &WatchKeys::Key(b"\xff".to_vec()), Some(7)), "/v1/watch/k?key=%FF&from=7");
        let range = WatchKeys::Range(Some(b"a".to_vec()), Some(b"b".to_vec()));
        assert_eq!(path("k", &range, None), "/v1/watch/k?start=a&end=b");
    }

    #[test]
    fn a_commit_is_shown_when_it_is_whole() {
        let http = Http::server("http://127.0.0.1:1", Duration::from_secs(1)).unwrap();
        let change = |key: &str| format!(r#"{{"revision":7,"change":"delete","key":"{key}"}}"#);
        let text = format!(
            "id: 6\nevent: progress\ndata: {{\"progress\":6}}\n\ndata: {}\n\nid: 7\ndata: {}\n\ndata: {}\n\n",
            change("a"),
            change("b"),
            change("c")
        );
        let (from, mut seen) = (Cell::new(None), Vec::new());
        let mut commits = Commits { from: &from, changes: Vec::new() };
        let endless = Endless { path: &String::new, next: &String::new, resumes: true };
        let flow = endless.visit(Events::new(text.as_bytes()), &http, &mut |part| {
            commits.part(part, &mut |change| {
                seen.push(change.key.clone());
                Ok(ControlFlow::Continue(()))
            })
        });
        assert!(flow.unwrap().is_continue());
        assert_eq!((from.get(), seen), (Some(8), vec![b"a".to_vec(), b"b".to_vec()]));
    }
}
