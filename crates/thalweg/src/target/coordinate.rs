//! Locks, elections and semaphores of a directory or a server: implements the traits of [`thalweg_recipes`] for both.

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
use serde_json::{Map, Value};
use thalweg_engine::{self as engine, CoordinationError, CoordinationWatch, Database};
use thalweg_recipes::{Contender, Coordinator, Entered, Noticed, RecipeError, Watched, Watching};
use thalweg_types::{
    LeaseId, Revision,
    command::{Deadline, Expect},
};

use super::{
    Access, KeyspaceChange, Place, ScanQuery, Target,
    http::Ask,
    local::{Local, of_write},
    remote::Remote,
    time::{PutTerms, TimeTarget},
    watch::{WatchKeys, path},
};
use crate::{
    failure::{Exit, Failure},
    render::take_bytes,
};

/// Maximum number of changes queued for the watching thread; more wait at the server.
const QUEUED: usize = 1024;
/// Maximum duration of a request. A slow request could keep a lease alive for which other clients wait.
const MAX_REQUEST: Duration = Duration::from_secs(10);

/// Keyspace of a directory or a server that stores locks.
#[derive(Clone)]
pub enum Coordination {
    Local { database: Database, inner: engine::Coordination },
    Remote { remote: Arc<Remote>, keyspace: String },
}

impl Coordination {
    /// Opens the directory or prepares the connection to the server; creates the keyspace if it is missing. A request
    /// may take a third of `ttl`, so that two more fit before a lease expires.
    pub fn open(place: &Place, keyspace: &str, ttl: Duration) -> Result<Self, Failure> {
        if let Some(data) = &place.data {
            let database = Local::open(data, Access::Write, place.durability)?.into_database();
            let inner = database.coordination(keyspace).map_err(of_write)?;
            return Ok(Self::Local { database, inner });
        }
        let timeout = place.timeout.min((ttl / 3).clamp(Duration::from_millis(500), MAX_REQUEST));
        let remote = Remote::new(&place.url(), place.durability, timeout)?;
        remote.create_keyspace(keyspace, &KeyspaceChange::default())?;
        Ok(Self::Remote { remote: Arc::new(remote), keyspace: keyspace.to_owned() })
    }

    /// Closes the directory cleanly.
    pub fn close(self) -> Result<(), Failure> {
        match self {
            Self::Local { database, .. } => database.close().map_err(of_write),
            Self::Remote { .. } => Ok(()),
        }
    }
}

/// Converts a recipe's error to a failure.
pub fn of_recipe(error: RecipeError<Failure>) -> Failure {
    let (message, code) = (error.to_string(), error.own_code().unwrap_or("store"));
    match error {
        RecipeError::Store(failure) => failure,
        RecipeError::TimedOut { .. } => Failure::new(Exit::Unavailable, code, message).then("--wait says how long"),
        RecipeError::TooMany => Failure::new(Exit::Unavailable, code, message),
        RecipeError::Lost { .. } => Failure::new(Exit::Conflict, code, message),
        RecipeError::BadName { .. } | RecipeError::NoSlots => Failure::new(Exit::Usage, code, message),
    }
}

/// Returns the time since boot, which continues while the machine is suspended, like the time of the lease. After a
/// suspend a holder therefore detects immediately that it may have lost its hold.
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[expect(clippy::needless_pass_by_value, reason = "what map_err gives")]
fn of_engine(error: CoordinationError) -> Failure {
    Failure::of(&error)
}

impl Coordinator for Coordination {
    type Error = Failure;
    type Watch = CoordinateWatch;

    fn is_transient(failure: &Failure) -> bool {
        failure.exit == Exit::Unavailable
    }

    fn now(&self) -> Duration {
        match self {
            Self::Local { inner, .. } => inner.now(),
            Self::Remote { .. } => since_boot(),
        }
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, Failure> {
        match self {
            Self::Local { inner, .. } => inner.grant(ttl).map_err(of_engine),
            Self::Remote { remote, .. } => {
                let granted = remote.grant_lease(None, ttl)?;
                granted["id"].as_u64().map(LeaseId).ok_or_else(|| remote.http().not_ours("a lease without an id"))
            }
        }
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, Failure> {
        match self {
            Self::Local { inner, .. } => inner.keep_alive(lease).map_err(of_engine),
            Self::Remote { remote, .. } => match remote.keep_lease(lease) {
                Err(failure) if failure.code == "no_such_lease" => Ok(false),
                kept => kept.map(|_| true),
            },
        }
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), Failure> {
        match self {
            Self::Local { inner, .. } => inner.revoke(lease).map_err(of_engine),
            Self::Remote { remote, .. } => match remote.revoke_lease(lease) {
                Err(failure) if failure.code == "no_such_lease" => Ok(()),
                revoked => revoked.map(|_| ()),
            },
        }
    }

    fn enter(&self, key: &[u8], value: &[u8], lease: LeaseId) -> Result<Entered, Failure> {
        let (remote, keyspace) = match self {
            Self::Local { inner, .. } => return inner.enter(key, value, lease).map_err(of_engine),
            Self::Remote { remote, keyspace, .. } => (remote, keyspace),
        };
        let terms = PutTerms { expect: Some(Expect::Absent), deadline: Deadline::Default, lease: Some(lease) };
        match remote.put_until(keyspace, key, value, &terms) {
            Ok(written) => match written.revision {
                Some(revision) => Ok(Entered::At(Revision(revision))),
                None => Err(remote.http().not_ours("a conditional write without a revision")),
            },
            Err(failure) if failure.code == "no_such_lease" => Ok(Entered::LeaseEnded),
            Err(failure) if failure.code == "condition_failed" => Ok(Entered::Taken),
            Err(failure) => Err(failure),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<(Revision, Vec<u8>)>, Failure> {
        match self {
            Self::Local { inner, .. } => inner.get(key).map_err(of_engine),
            Self::Remote { remote, keyspace, .. } => {
                Ok(remote.get(keyspace, key)?.map(|found| (Revision(found.revision), found.value)))
            }
        }
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Result<Vec<Contender>, Failure> {
        let (remote, keyspace) = match self {
            Self::Local { inner, .. } => return inner.list(prefix, limit).map_err(of_engine),
            Self::Remote { remote, keyspace, .. } => (remote, keyspace),
        };
        let limit = Some(limit as u64);
        let query = ScanQuery { prefix: prefix.to_vec(), limit, keys_only: true, ..ScanQuery::default() };
        let mut listed = Vec::new();
        remote.scan(keyspace, &query, &mut |pair| {
            listed.push(Contender { key: pair.key.to_vec(), revision: Revision(pair.revision) });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(listed)
    }

    fn watch(&self, watched: Watched<'_>) -> Result<Self::Watch, Failure> {
        let (remote, keyspace) = match self {
            Self::Local { inner, .. } => {
                return inner.watch(watched).map(|watch| CoordinateWatch::Local(Box::new(watch))).map_err(of_engine);
            }
            Self::Remote { remote, keyspace, .. } => (remote, keyspace),
        };
        let keys = match watched {
            Watched::Key(key) => WatchKeys::Key(key.to_vec()),
            Watched::Prefix(prefix) => WatchKeys::Prefix(prefix.to_vec()),
        };
        let ask = Ask::get(path(keyspace, &keys, None)).header("accept", "application/x-ndjson");
        // The watch is active once the reply has begun.
        let body = remote.http().stream(ask)?;
        let (send, receive) = sync_channel(QUEUED);
        thread::spawn(move || follow(BufReader::new(body), &send));
        Ok(CoordinateWatch::Remote(receive))
    }
}

/// A watch of a directory, or of a server, which a thread reads.
pub enum CoordinateWatch {
    Local(Box<CoordinationWatch>),
    Remote(Receiver<Noticed>),
}

impl Watching for CoordinateWatch {
    fn wait(&mut self, timeout: Duration) -> Noticed {
        let receive = match self {
            Self::Local(watch) => return watch.wait(timeout),
            Self::Remote(receive) => receive,
        };
        match receive.recv_timeout(timeout) {
            Ok(noticed) => noticed,
            Err(RecvTimeoutError::Timeout) => Noticed::Nothing,
            Err(RecvTimeoutError::Disconnected) => Noticed::Unknown,
        }
    }
}

/// Reads changes until the connection or the watch ends. An abandoned watch ends with its next line; the server sends
/// one every few seconds.
fn follow(mut lines: BufReader<impl Read>, send: &SyncSender<Noticed>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = lines.read_until(b'\n', &mut line).unwrap_or(0);
        let noticed = match serde_json::from_slice::<Value>(&line) {
            Ok(Value::Object(object)) if read > 0 => noticed(&object),
            _ => Noticed::Unknown,
        };
        let ends = noticed == Noticed::Unknown;
        if send.send(noticed).is_err() || ends {
            return;
        }
    }
}

/// Converts a line of a watch. Progress is reported as well, so that an abandoned watch is detected.
fn noticed(object: &Map<String, Value>) -> Noticed {
    if object.contains_key("progress") {
        return Noticed::Nothing;
    }
    take_bytes(object, "key").map_or(Noticed::Unknown, |key| Noticed::Keys(vec![key]))
}
