//! Locks, elections and semaphores. Implements the traits of [`thalweg_recipes`] over the HTTP API.

use std::{
    io::{BufRead, BufReader, Read},
    ops::ControlFlow,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use thalweg_recipes::{Contender, Coordinator, EnterResult, KeyWatch, RecipeError, WatchResult, Watched};
use thalweg_types::{LeaseId, Revision};

use super::{
    Session,
    directory::Access,
    http::RequestBuilder,
    kv::{Expected, PutTerms, ScanQuery},
    watch::{WatchKeys, path},
};
use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    render::take_bytes,
};

/// Maximum number of changes that the reading thread of a watch queues for the user of the watch. Further changes wait
/// at the server.
const QUEUED: usize = 1024;
/// Maximum duration of a request. Without it, a slow request could keep a lease alive while other clients wait for its
/// end.
const MAX_REQUEST: Duration = Duration::from_secs(10);

/// Access to the locks, semaphores and elections that a node stores in a keyspace.
#[derive(Clone)]
pub(crate) struct Coordination {
    session: Arc<Session>,
    keyspace: Arc<str>,
}

impl Coordination {
    /// Opens the directory, or prepares the connection to the server. Creates the keyspace for locks if it is missing.
    /// Each request may take at most a third of `ttl`, so that two more attempts fit before a lease ends.
    pub(crate) fn open(place: &TargetArgs, keyspace: &str, ttl: Duration) -> Result<Self, Failure> {
        let timeout = place.timeout.min((ttl / 3).clamp(Duration::from_millis(500), MAX_REQUEST));
        let session = Session::open(&TargetArgs { timeout, ..place.clone() }, Access::Write)?;
        session.create_keyspace(keyspace, &json!({}))?;
        Ok(Self { session: Arc::new(session), keyspace: keyspace.into() })
    }

    /// Closes the data directory cleanly, if this process has opened one.
    pub(crate) fn close(self) -> Result<(), Failure> {
        self.session.close()
    }
}

/// Converts an error of a lock, a semaphore or an election to a failure of the command that uses it.
pub(crate) fn of_recipe(error: RecipeError<Failure>) -> Failure {
    let (message, code) = (error.to_string(), error.own_code().unwrap_or("store"));
    match error {
        RecipeError::Store(failure) => failure,
        RecipeError::TimedOut { .. } => {
            Failure::new(Exit::Unavailable, code, message).then("retry, or wait longer with --wait")
        }
        RecipeError::TooMany => Failure::new(Exit::Unavailable, code, message),
        RecipeError::Lost { .. } => Failure::new(Exit::Conflict, code, message),
        RecipeError::BadName { .. } | RecipeError::NoSlots => Failure::new(Exit::Usage, code, message),
    }
}

impl Coordinator for Coordination {
    type Error = Failure;
    type Watch = CoordinateWatch;

    fn is_transient(failure: &Failure) -> bool {
        failure.exit == Exit::Unavailable
    }

    /// Returns the time since boot, including the time in which the machine was suspended. The time that ends a lease
    /// also continues during a suspend. So the holder of a lock notices immediately after a suspend that it may have
    /// lost the lock.
    fn now(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, Failure> {
        let granted = self.session.grant_lease(None, ttl)?;
        self.session.http.required(granted["id"].as_u64(), "id of the lease").map(LeaseId)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, Failure> {
        match self.session.keep_lease(lease) {
            Err(failure) if failure.code == "no_such_lease" => Ok(false),
            kept => kept.map(|_| true),
        }
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), Failure> {
        match self.session.revoke_lease(lease) {
            Err(failure) if failure.code == "no_such_lease" => Ok(()),
            revoked => revoked.map(drop),
        }
    }

    fn enter(&self, key: &[u8], value: &[u8], lease: LeaseId) -> Result<EnterResult, Failure> {
        let terms = PutTerms { expected: Expected::Absent, lease: Some(lease), ..PutTerms::default() };
        match self.session.put(&self.keyspace, key, value, &terms) {
            Ok(written) => {
                let revision = self.session.http.required(written.revision, "revision of a conditional write");
                Ok(EnterResult::At(Revision(revision?)))
            }
            Err(failure) if failure.code == "no_such_lease" => Ok(EnterResult::LeaseEnded),
            Err(failure) if failure.code == "condition_failed" => Ok(EnterResult::Exists),
            Err(failure) => Err(failure),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<(Revision, Vec<u8>)>, Failure> {
        Ok(self.session.get(&self.keyspace, key)?.map(|found| (Revision(found.revision), found.value)))
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Result<Vec<Contender>, Failure> {
        let limit = Some(limit as u64);
        let query = ScanQuery { prefix: prefix.to_vec(), limit, keys_only: true, ..ScanQuery::default() };
        let mut listed = Vec::new();
        self.session.scan(&self.keyspace, &query, &mut |pair| {
            listed.push(Contender { key: pair.key.to_vec(), revision: Revision(pair.revision) });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(listed)
    }

    fn watch(&self, watched: Watched<'_>) -> Result<CoordinateWatch, Failure> {
        let keys = match watched {
            Watched::Key(key) => WatchKeys::Key(key.to_vec()),
            Watched::Prefix(prefix) => WatchKeys::Prefix(prefix.to_vec()),
        };
        let ask = RequestBuilder::get(path(&self.keyspace, &keys, None)).header("accept", "application/x-ndjson");
        // The watch is active as soon as the reply has begun.
        let reply = self.session.http.open(ask)?;
        let (send, receive) = sync_channel(QUEUED);
        thread::spawn(move || follow(BufReader::new(reply.body), &send));
        Ok(CoordinateWatch(receive))
    }
}

/// A watch of keys. A thread reads the changes from the node and queues them.
pub(crate) struct CoordinateWatch(Receiver<WatchResult>);

impl KeyWatch for CoordinateWatch {
    fn wait(&mut self, timeout: Duration) -> WatchResult {
        match self.0.recv_timeout(timeout) {
            Ok(noticed) => noticed,
            Err(RecvTimeoutError::Timeout) => WatchResult::Nothing,
            Err(RecvTimeoutError::Disconnected) => WatchResult::Unknown,
        }
    }
}

/// Reads the changes of a watch and queues them, until the connection or the watch ends. If the user of the watch has
/// dropped it, the thread ends at the next line. The server sends a line every few seconds.
fn follow(mut lines: BufReader<impl Read>, send: &SyncSender<WatchResult>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = lines.read_until(b'\n', &mut line).unwrap_or(0);
        let noticed = match serde_json::from_slice::<Value>(&line) {
            Ok(Value::Object(object)) if read > 0 => noticed(&object),
            _ => WatchResult::Unknown,
        };
        let ends = noticed == WatchResult::Unknown;
        if send.send(noticed).is_err() || ends {
            return;
        }
    }
}

/// Converts a line of a watch to its result. A line that only reports progress is also passed on, so that the thread
/// notices a dropped watch.
fn noticed(object: &Map<String, Value>) -> WatchResult {
    if object.contains_key("progress") {
        return WatchResult::Nothing;
    }
    take_bytes(object, "key").map_or(WatchResult::Unknown, |key| WatchResult::Keys(vec![key]))
}
