//! Watches of keys, of a directory or a server.

use std::{
    io::{BufRead, BufReader},
    ops::{Bound, ControlFlow},
    time::{Duration, Instant},
};

use serde_json::{Map, Value};
use thalweg_engine::{Database, WatchChange, WatchError, WatchEvent};
use thalweg_server::parse::encode;
use thalweg_types::Revision;

use super::{
    events::Events,
    http::{Ask, Http},
};
use crate::{
    failure::{Exit, Failure},
    render::{note, take_bytes},
};

/// Time for which a watch retries to reach a lost server.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause of a watch between two attempts to reach the server.
const PAUSE: Duration = Duration::from_millis(200);

/// Keys that a watch covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchKeys {
    Key(Vec<u8>),
    Prefix(Vec<u8>),
    /// First key, inclusive, and end of the range, exclusive.
    Range(Option<Vec<u8>>, Option<Vec<u8>>),
}

/// Range and start of a watch.
#[derive(Clone, Debug)]
pub struct WatchQuery {
    pub keys: WatchKeys,
    /// First revision; `None` for changes from now on.
    pub from: Option<u64>,
}

/// A change of a key, or the removal of all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub revision: u64,
    /// Time of the change in microseconds since 1970.
    pub time: u64,
    /// Kind as the API names it: `put`, `delete`, `expire`, `delete_prefix`.
    pub what: String,
    /// Key, or prefix for `delete_prefix`.
    pub key: Vec<u8>,
    /// New value; only a put has one.
    pub value: Option<Vec<u8>>,
}

impl Change {
    /// Returns true if `key` is a prefix.
    pub fn is_prefix(&self) -> bool {
        self.what == "delete_prefix"
    }
}

/// Called with each change; `Break` ends the watch.
pub type VisitChanges<'v> = &'v mut dyn FnMut(&Change) -> Result<ControlFlow<()>, Failure>;

/// Visits all changes up to now. There are no later ones, since no other process can write to an open directory.
pub fn local(database: &Database, keyspace: &str, query: &WatchQuery, visit: VisitChanges<'_>) -> Result<(), Failure> {
    let found = database.find_keyspace(keyspace).ok_or_else(|| {
        let message = format!("there is no keyspace named {keyspace:?}");
        Failure::new(Exit::NotFound, "no_such_keyspace", message).then("`thalweg keyspaces` lists what is there")
    })?;
    let keys = match query.keys.clone() {
        WatchKeys::Key(key) => thalweg_engine::WatchKeys::Key(key),
        WatchKeys::Prefix(prefix) => thalweg_engine::WatchKeys::Prefix(prefix),
        WatchKeys::Range(start, end) => thalweg_engine::WatchKeys::Range(
            start.map_or(Bound::Unbounded, Bound::Included),
            end.map_or(Bound::Unbounded, Bound::Excluded),
        ),
    };
    let mut watch = found.watch(&keys, query.from.map(Revision)).map_err(of_watch)?;
    while let Some(batch) = watch.try_next().map_err(of_watch)? {
        for event in batch.events {
            if visit(&change_of_event(event))?.is_break() {
                return Ok(());
            }
        }
    }
    note("that is all: while this command has the directory open, nobody else can write");
    Ok(())
}

fn change_of_event(event: WatchEvent) -> Change {
    let (what, value) = match event.change {
        WatchChange::Put(value) => ("put", Some(value.to_vec())),
        WatchChange::Delete => ("delete", None),
        WatchChange::Expire => ("expire", None),
        WatchChange::DeletePrefix => ("delete_prefix", None),
    };
    let (revision, time) = (event.revision.0, event.time.micros());
    Change { revision, time, what: what.to_owned(), key: event.key.to_vec(), value }
}

#[expect(clippy::needless_pass_by_value, reason = "what map_err gives")]
fn of_watch(error: WatchError) -> Failure {
    advised(
        Failure::of(&error),
        match error {
            WatchError::Compacted { oldest, .. } => Some(oldest.0),
            _ => None,
        },
    )
}

fn advised(failure: Failure, oldest: Option<u64>) -> Failure {
    match (oldest, &*failure.code) {
        (Some(oldest), _) => failure
            .then(format!("scan for what there is now, or watch what the log still tells with `--from {oldest}`")),
        (None, "beyond_end") => failure.then("without --from it watches what happens from now on"),
        (None, "no_such_keyspace") => {
            failure.then("`thalweg keyspaces` lists what is there; the first put creates one")
        }
        _ => failure,
    }
}

/// Watches, and continues after restarts of the server from the commit after the last one seen. Fails immediately if
/// the server was never reachable.
pub fn remote(http: &Http, keyspace: &str, query: &WatchQuery, visit: VisitChanges<'_>) -> Result<(), Failure> {
    let (mut from, mut lost_at, mut was_there) = (query.from, None, false);
    loop {
        let path = path(keyspace, &query.keys, from);
        let failure = match http.stream(Ask::get(path).header("accept", "text/event-stream")) {
            Ok(body) => {
                (lost_at, was_there) = (None, true);
                match follow(Events::new(BufReader::new(body)), &mut from, visit, http)? {
                    ControlFlow::Break(()) => return Ok(()),
                    ControlFlow::Continue(()) => None,
                }
            }
            Err(failure) if was_there && failure.exit == Exit::Unavailable => Some(failure),
            Err(failure) => return Err(advised(failure, None)),
        };
        let since = *lost_at.get_or_insert_with(|| {
            let place = from.map_or_else(String::new, |from| format!(" from revision {from}"));
            note(&format!("the connection to {} is gone; trying again{place}", http.base()));
            Instant::now()
        });
        if let Some(failure) = failure
            && since.elapsed() > PATIENCE
        {
            return Err(failure);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Visits the changes of a connection until it ends (`Continue`) or `visit` ends the watch (`Break`). A commit is
/// visited once it is complete, so that none is visited twice.
fn follow(
    mut events: Events<impl BufRead>,
    from: &mut Option<u64>,
    visit: VisitChanges<'_>,
    http: &Http,
) -> Result<ControlFlow<()>, Failure> {
    let mut commit = Vec::new();
    while let Some(event) = events.next_event() {
        let Ok(Value::Object(object)) = serde_json::from_str(&event.data) else {
            return Err(http.not_ours("an event that is no JSON object"));
        };
        if event.name == "error" {
            let oldest = object.get("oldest").and_then(Value::as_u64);
            let failure = http.failure_of(&Value::Object(object), 500);
            let gone = failure.exit == Exit::Unavailable;
            return if gone { Ok(ControlFlow::Continue(())) } else { Err(advised(failure, oldest)) };
        }
        commit.extend(change_of(&object));
        let Some(revision) = event.id.as_deref().and_then(|id| id.parse::<u64>().ok()) else { continue };
        for change in commit.drain(..) {
            if visit(&change)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        *from = Some(revision + 1);
    }
    Ok(ControlFlow::Continue(()))
}

/// Parses a change in the API's form; `None` if fields are missing.
fn change_of(object: &Map<String, Value>) -> Option<Change> {
    let what = object.get("change")?.as_str()?.to_owned();
    Some(Change {
        revision: object.get("revision")?.as_u64()?,
        time: object.get("time_micros").and_then(Value::as_u64).unwrap_or_default(),
        key: take_bytes(object, "key").or_else(|| take_bytes(object, "prefix"))?,
        value: take_bytes(object, "value"),
        what,
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
    use super::*;

    #[test]
    fn paths_say_which_keys_and_from_where() {
        assert_eq!(path("a b", &WatchKeys::Prefix(Vec::new()), None), "/v1/watch/a%20b?prefix=");
        assert_eq!(path("k", &WatchKeys::Key(b"\xff".to_vec()), Some(7)), "/v1/watch/k?key=%FF&from=7");
        let range = WatchKeys::Range(Some(b"a".to_vec()), Some(b"b".to_vec()));
        assert_eq!(path("k", &range, None), "/v1/watch/k?start=a&end=b");
    }

    #[test]
    fn a_commit_is_shown_when_it_is_whole() {
        let http = Http::new("http://127.0.0.1:1", Duration::from_secs(1)).unwrap();
        let change = |key: &str| format!(r#"{{"revision":7,"change":"delete","key":"{key}"}}"#);
        let text = format!(
            "id: 6\nevent: progress\ndata: {{\"progress\":6}}\n\ndata: {}\n\nid: 7\ndata: {}\n\ndata: {}\n\n",
            change("a"),
            change("b"),
            change("c")
        );
        let (mut from, mut seen) = (None, Vec::new());
        let flow = follow(
            Events::new(text.as_bytes()),
            &mut from,
            &mut |change| {
                seen.push(change.key.clone());
                Ok(ControlFlow::Continue(()))
            },
            &http,
        );
        assert!(flow.unwrap().is_continue());
        assert_eq!((from, seen), (Some(8), vec![b"a".to_vec(), b"b".to_vec()]));
    }
}
