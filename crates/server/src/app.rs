//! One request, from its head to its reply.
//!
//! Owns: what all requests share ([`App`]): the database, admission, metrics, request ids; and the
//! order of things: admit, dispatch, turn errors into JSON, count.
//! Invariant: every reply carries the request's id and is counted exactly once.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, request::Parts},
};
use bytes::Bytes;
use sync_wrapper::SyncWrapper;
use thalweg_engine::{AsyncDatabase, Database, Keyspace, Stream};
use thalweg_types::{Durability, command::StreamConfig};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::{
    admission::Admission,
    body, caches, commit,
    config::Config,
    entity,
    error::{self, ApiError},
    groups, keys, keyspaces, kv, leases,
    limits::{MAX_READING_BYTES, MAX_REQUEST_ID_BYTES},
    metrics::Metrics,
    native, pages,
    parse::ParseError,
    past, producers, records,
    reply::{DURABILITY, REQUEST_ID},
    resp,
    routes::Operation,
    scan,
    snapshot::{self, Snapshots},
    solitude::Solitude,
    state, status, streams, subjects, transaction, ttl,
    views::Views,
    watch as watch_keys,
};

/// All requests over HTTP, to [`Solitude`]: no channel has that number.
const HTTP: u64 = 0;

/// What handlers answer.
pub type Answer = Result<Response<Body>, ApiError>;

/// What all requests of a server share.
#[derive(Debug)]
pub struct App {
    /// The database.
    pub db: AsyncDatabase,
    /// The configuration.
    pub config: Config,
    /// Bounds.
    pub admission: Admission,
    /// Counters and histograms of requests.
    pub metrics: Metrics,
    /// Those of native connections.
    pub native_metrics: native::metrics::Metrics,
    /// Those of Redis clients.
    pub resp_metrics: resp::metrics::Metrics,
    /// Whether one connection has the server to itself.
    pub solitude: Solitude,
    /// What reads on blocking threads may still ask for, in bytes.
    reading: Arc<Semaphore>,
    /// Turns true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// Subjects and caches.
    pub views: Views,
    /// Those that may have to go on.
    pub snapshots: Snapshots,
    /// One digest of the state is computed at a time.
    pub digests: Arc<Semaphore>,
    /// When the server was bound.
    pub started: Instant,
    id_seed: u64,
    id_next: AtomicU64,
}

/// A request that is being handled.
#[derive(Debug)]
pub struct Call {
    /// Method, URI, headers.
    pub head: Parts,
    /// The body, not read yet; wrapped, so that a handler may keep the call across a wait.
    pub body: SyncWrapper<Body>,
}

impl Call {
    /// The path after `prefix`, which the route has matched.
    #[must_use]
    pub fn path_after(&self, prefix: &str) -> &str {
        self.head.uri.path().strip_prefix(prefix).unwrap_or_default()
    }

    /// A header's bytes.
    #[must_use]
    pub fn header(&self, name: &HeaderName) -> Option<&[u8]> {
        self.head.headers.get(name).map(HeaderValue::as_bytes)
    }

    /// For routes that take no query.
    pub fn no_query(&self) -> Result<(), ParseError> {
        match crate::parse::Params::new(self.head.uri.query()).next() {
            None => Ok(()),
            Some(Ok((name, _))) => Err(ParseError::UnknownParameter { name: name.chars().take(64).collect() }),
            Some(Err(error)) => Err(error),
        }
    }
}

impl App {
    /// Over a database.
    #[must_use]
    pub fn new(config: Config, db: &Database, stopping: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            db: db.with_durability(config.durability).to_async(),
            admission: Admission::new(&config),
            metrics: Metrics::new(),
            native_metrics: native::metrics::Metrics::new(),
            resp_metrics: resp::metrics::Metrics::default(),
            solitude: Solitude::new(Instant::now()),
            reading: Arc::new(Semaphore::new(MAX_READING_BYTES as usize)),
            stopping,
            views: Views::new(&config),
            snapshots: Snapshots::default(),
            digests: Arc::new(Semaphore::new(1)),
            started: Instant::now(),
            // Random per process, so that ids of two runs differ; nothing depends on it.
            id_seed: RandomState::new().build_hasher().finish(),
            id_next: AtomicU64::new(0),
            config,
        })
    }

    /// Handles one request.
    pub async fn handle(self: Arc<Self>, operation: Operation, request: Request) -> Response<Body> {
        let started = Instant::now();
        self.solitude.at_work(HTTP, started);
        let (head, body) = request.into_parts();
        let id = self.request_id(&head.headers);
        let mut call = Call { head, body: SyncWrapper::new(body) };
        let answer = match self.admit(operation) {
            Ok(_held) => self.dispatch(operation, &mut call).await,
            Err(error) => Err(error),
        };
        let mut response = answer.unwrap_or_else(|error| self.refuse(operation, &call.head, error, &id));
        let level = response.headers().get(&DURABILITY).and_then(level_of_value);
        response.headers_mut().insert(REQUEST_ID, id);
        let took = started.elapsed();
        self.metrics.record(operation, level, response.status(), took);
        tracing::debug!(
            operation = operation.name(),
            status = response.status().as_u16(),
            micros = took.as_micros() as u64,
            request_id = response.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok()),
            "request"
        );
        response
    }

    fn admit(&self, operation: Operation) -> Result<Option<crate::admission::Held>, ApiError> {
        if operation.is_exempt() {
            return Ok(None);
        }
        let held = self.admission.requests.take(1);
        held.map(Some).ok_or_else(|| ApiError::overloaded("too many requests in flight: retry later"))
    }

    /// A body of these bytes; refused if too many wait for clients already.
    pub(crate) fn reply_body(&self, bytes: Bytes) -> Result<Body, ApiError> {
        let admitted = self.admission.reply(bytes);
        admitted.map(Body::from).ok_or_else(pages::no_room)
    }

    /// The same of what tells of something that has happened: it is counted, and told whatever waits.
    pub(crate) fn told_body(&self, bytes: Bytes) -> Body {
        Body::from(self.admission.told(bytes))
    }

    /// Waits for a place among those that read about so many bytes on blocking threads.
    pub(crate) async fn place_to_read(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(MAX_READING_BYTES);
        // It is never closed.
        Arc::clone(&self.reading).acquire_many_owned(bytes).await.ok()
    }

    async fn dispatch(self: &Arc<Self>, operation: Operation, call: &mut Call) -> Answer {
        match operation {
            Operation::KvGet => kv::get(self, call),
            Operation::KvPut => kv::put(self, call).await,
            Operation::KvDelete => kv::delete(self, call).await,
            Operation::Echo => echo(self, call).await,
            Operation::EntityGet => entity::get(self, call),
            Operation::EntityPut => entity::put(self, call).await,
            // Boxed, so that the future of a point request stays small.
            other => Box::pin(self.dispatch_rest(other, call)).await,
        }
    }

    async fn dispatch_rest(self: &Arc<Self>, operation: Operation, call: &mut Call) -> Answer {
        match operation {
            Operation::StateDigest => state::digest(self, call).await,
            Operation::StateDigestLast => state::last_digest(self, call),
            Operation::StateVersion => state::version(self, call),
            Operation::StateVersionRaise => state::raise_version(self, call).await,
            Operation::Snapshot => snapshot::get(self, call).await,
            Operation::KvHead => kv::head(self, call),
            Operation::KvScan => scan::keyspace(self, call).await,
            Operation::KvWatch => watch_keys::keyspace(self, call).await,
            Operation::KvVersions => past::versions(self, call),
            Operation::KvList => kv::list(self, call),
            Operation::KvAdd => transaction::add_to(self, call).await,
            Operation::KvTouch => ttl::touch(self, call).await,
            Operation::LeaseGrant => leases::grant(self, call).await,
            Operation::LeaseList => leases::list(self, call),
            Operation::LeaseGet => leases::get(self, call),
            Operation::LeaseRevoke => leases::revoke(self, call).await,
            Operation::LeaseKeepAlive => leases::keep_alive(self, call).await,
            Operation::KvDeletePrefix => transaction::delete_prefix(self, call).await,
            Operation::KeyspaceList => keyspaces::list(self, call),
            Operation::KeyspaceGet => keyspaces::get(self, call).await,
            Operation::KeyspaceCreate => keyspaces::create(self, call).await,
            Operation::KeyspacePatch => keyspaces::patch(self, call).await,
            Operation::KeyspaceDelete => keyspaces::delete(self, call).await,
            Operation::Transaction => transaction::transaction(self, call).await,
            Operation::Commit => commit::commit(self, call).await,
            Operation::StreamAppend => streams::append(self, call).await,
            Operation::StreamRead => records::read(self, call).await,
            Operation::StreamList => streams::list(self, call).await,
            Operation::StreamGet => streams::get(self, call),
            Operation::StreamCreate => streams::create(self, call).await,
            Operation::StreamPatch => streams::patch(self, call).await,
            Operation::StreamDelete => streams::delete(self, call).await,
            Operation::StreamTrim => streams::trim(self, call).await,
            Operation::GroupListAll => groups::list_all(self, call).await,
            Operation::GroupList => groups::list(self, call).await,
            Operation::GroupGet => groups::get(self, call),
            Operation::GroupCreate => groups::create(self, call).await,
            Operation::GroupPatch => groups::patch(self, call).await,
            Operation::GroupDelete => groups::delete(self, call).await,
            Operation::GroupFetch => groups::fetch(self, call).await,
            Operation::GroupAck => groups::ack(self, call).await,
            Operation::GroupNack => groups::nack(self, call).await,
            Operation::GroupExtend => groups::extend(self, call).await,
            Operation::GroupPush => groups::push(self, call),
            Operation::GroupSeek => groups::seek(self, call).await,
            Operation::ProducerList => producers::list(self, call),
            Operation::ProducerGet => producers::get(self, call),
            Operation::ProducerOpen => producers::open(self, call).await,
            Operation::SubjectPublish => subjects::publish(self, call).await,
            Operation::SubjectSubscribe => subjects::subscribe(self, call),
            Operation::SubjectAsk => subjects::ask(self, call).await,
            Operation::CacheList => caches::list(self, call),
            Operation::CacheCreate => caches::create(self, call).await,
            Operation::CacheStat => caches::stat(self, call),
            Operation::CacheDrop => caches::drop_cache(self, call),
            Operation::CacheClear => caches::clear(self, call),
            Operation::CacheScan => caches::scan(self, call),
            Operation::CacheGet => caches::get(self, call),
            Operation::CacheHead => caches::head(self, call),
            Operation::CachePut => caches::put(self, call).await,
            Operation::CacheDelete => caches::delete(self, call),
            Operation::CacheTouch => caches::touch(self, call),
            Operation::CacheAdd => caches::add(self, call),
            Operation::CacheMultiGet => caches::multi_get(self, call).await,
            Operation::CacheMultiPut => caches::multi_put(self, call).await,
            Operation::EntityDelete => entity::delete(self, call).await,
            Operation::EntityRange => entity::range(self, call).await,
            Operation::KeysPut => keys::put(self, call).await,
            Operation::KeysGet => keys::get(self, call),
            Operation::KeysDelete => keys::delete(self, call).await,
            Operation::KeysRange => keys::range(self, call).await,
            Operation::KeysBatch => keys::batch(self, call).await,
            Operation::Health => status::health(self),
            Operation::Ready => status::ready(self),
            Operation::Metrics => Ok(status::metrics(self)),
            Operation::Status => Ok(status::status(self)),
            Operation::OpenApi => Ok(status::openapi()),
            Operation::WrongMethod => Err(wrong_method(&call.head.method)),
            _ => Err(unknown_route(call.head.uri.path())),
        }
    }

    fn refuse(&self, operation: Operation, head: &Parts, error: ApiError, id: &HeaderValue) -> Response<Body> {
        let id = id.to_str().unwrap_or_default();
        if error.status.is_server_error() && error.code != "overloaded" {
            let (name, path) = (operation.name(), head.uri.path());
            tracing::warn!(operation = name, path, code = error.code, request_id = id, "{}", error.message);
        }
        error.into_response(Some(id))
    }

    /// The client's id if it is short and visible, else a new one.
    fn request_id(&self, headers: &HeaderMap) -> HeaderValue {
        match headers.get(&REQUEST_ID) {
            Some(id) if !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES && id.to_str().is_ok() => id.clone(),
            _ => {
                let number = self.new_number();
                let digits: [u8; 16] =
                    std::array::from_fn(|at| b"0123456789abcdef"[(number >> (60 - 4 * at) & 15) as usize]);
                HeaderValue::from_maybe_shared(Bytes::copy_from_slice(&digits)).expect("hexadecimal digits")
            }
        }
    }

    /// A number that this process gives out once.
    pub fn new_number(&self) -> u64 {
        self.id_seed.wrapping_add(self.id_next.fetch_add(1, Ordering::Relaxed))
    }

    /// The level that a request asks for, or the server's.
    pub fn level(&self, call: &Call) -> Result<Durability, ApiError> {
        match call.header(&DURABILITY) {
            None => Ok(self.config.durability),
            Some(name) => std::str::from_utf8(name).ok().and_then(|name| name.trim().parse().ok()).ok_or_else(|| {
                let expected = "none, os, interval, disk or quorum";
                ParseError::BadHeader { name: "Thalweg-Durability", expected }.into()
            }),
        }
    }

    /// The database with the level that a request asks for, for requests whose level is the handle's.
    pub fn db_at_level(&self, call: &Call) -> Result<AsyncDatabase, ApiError> {
        Ok(self.db.blocking().with_durability(self.level(call)?).to_async())
    }

    /// A keyspace to read.
    pub fn find_keyspace(&self, name: &str) -> Result<Keyspace, ApiError> {
        self.db.blocking().find_keyspace(name).ok_or_else(|| error::no_such_keyspace(name))
    }

    /// A keyspace to write, created if missing.
    pub async fn keyspace(&self, name: &str) -> Result<Keyspace, ApiError> {
        match self.db.blocking().find_keyspace(name) {
            Some(keyspace) => Ok(keyspace),
            None => Ok(self.db.keyspace(name).await?),
        }
    }

    /// A stream to read or change.
    pub fn find_stream(&self, name: &str) -> Result<Stream, ApiError> {
        self.db.blocking().find_stream(name).ok_or_else(|| error::no_such_stream(name))
    }

    /// A stream to append to, created without limits if missing.
    pub async fn stream(&self, name: &str) -> Result<Stream, ApiError> {
        match self.db.blocking().find_stream(name) {
            Some(stream) => Ok(stream),
            None => Ok(self.db.create_stream(name, &StreamConfig::default()).await?.0),
        }
    }
}

fn level_of_value(value: &HeaderValue) -> Option<Durability> {
    Durability::ALL.into_iter().find(|level| level.name().as_bytes() == value.as_bytes())
}

async fn echo(app: &Arc<App>, call: &mut Call) -> Answer {
    let body = body::read(app, call.body.get_mut()).await?;
    drop(body);
    Ok(crate::reply::empty(StatusCode::OK))
}

fn unknown_route(path: &str) -> ApiError {
    let message = "no such route: /openapi.json lists all of them";
    if path == "/v0" || path.starts_with("/v0/") {
        // What clients of this API expect of unknown paths.
        return ApiError::bad_request("unknown_route", message);
    }
    ApiError::not_found("unknown_route", message)
}

fn wrong_method(method: &Method) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong_method",
        thalweg_types::Action::Fix,
        format!(
            "this route does not take {}: see the Allow header",
            method.as_str().chars().take(32).collect::<String>()
        ),
    )
}
