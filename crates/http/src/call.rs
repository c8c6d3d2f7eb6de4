//! A request as handlers see it: its head, its unread body, and the headers that several handlers read.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use axum_core::body::Body;
use http::{HeaderName, HeaderValue, Response, StatusCode, header, request::Parts};
use sync_wrapper::SyncWrapper;
use thalweg_engine::{AsyncDatabase, Keyspace, Origin, Stream};
use thalweg_serving::{admission::Account, app::App, error::ApiError};
use thalweg_types::{Action, Durability, command::StreamConfig};

use crate::{
    parse::{Media, Params, ParseError, is_form, request_media},
    reply::DURABILITY,
    reply_memory::ReplyMemory,
};

/// Header with the time that a request may wait for its cluster.
const TIMEOUT: HeaderName = HeaderName::from_static("thalweg-timeout");
/// Longest time that a request may wait for its cluster, in seconds.
const MAX_TIMEOUT_SECONDS: f64 = 600.0;

/// Result of a handler: a response or an error.
pub(crate) type Answer = Result<Response<Body>, ApiError>;

/// A request that is being handled.
#[derive(Debug)]
pub(crate) struct Call {
    /// Account of the connection that sent the request.
    pub account: Arc<Account>,
    /// Head of the request: method, URI and headers.
    pub head: Parts,
    /// Id of the request in log lines, which the reply states.
    pub id: HeaderValue,
    /// Body of the request, not read yet. The wrapper lets a handler keep the request across an await.
    pub body: SyncWrapper<Body>,
    /// Time at which the request began to wait for its cluster. All its waits together last as long as
    /// `Thalweg-Timeout` states.
    pub waits_since: OnceLock<Instant>,
    /// Way in which the reply is counted if its size is known.
    pub reply_memory: ReplyMemory,
}

impl Call {
    /// Creates a request that no handler has seen yet.
    #[must_use]
    pub(crate) fn new(
        account: Arc<Account>,
        head: Parts,
        id: HeaderValue,
        body: Body,
        reply_memory: ReplyMemory,
    ) -> Self {
        Self { account, head, id, body: SyncWrapper::new(body), waits_since: OnceLock::new(), reply_memory }
    }

    /// Returns the rest of the path after `prefix`, which the route has matched.
    #[must_use]
    pub(crate) fn path_after(&self, prefix: &str) -> &str {
        self.head.uri.path().strip_prefix(prefix).unwrap_or_default()
    }

    /// Returns the value of a header in bytes.
    #[must_use]
    pub(crate) fn header(&self, name: &HeaderName) -> Option<&[u8]> {
        self.head.headers.get(name).map(HeaderValue::as_bytes)
    }

    /// Returns an error if the request has query parameters. Handlers call this for routes that accept none.
    pub(crate) fn no_query(&self) -> Result<(), ParseError> {
        match Params::new(self.head.uri.query()).next() {
            None => Ok(()),
            Some(Ok((name, _))) => Err(ParseError::UnknownParameter { name: name.chars().take(64).collect() }),
            Some(Err(error)) => Err(error),
        }
    }

    /// Returns error 415 if `Content-Type` is not JSON. A missing header is an error as well. A page of another origin
    /// can make a browser send a body as a form, as plain text, or without a type; to send JSON, the browser first asks
    /// the server for permission.
    pub(crate) fn require_json(&self) -> Result<(), ApiError> {
        let given = self.header(&header::CONTENT_TYPE);
        match given.map(request_media) {
            Some(Some(Media::Json)) => Ok(()),
            _ => {
                let what = match given {
                    None => "the request states no Content-Type",
                    Some(given) if is_form(given) => "the Content-Type is that of a form, as curl's --data sends it",
                    Some(_) => "the Content-Type is another one",
                };
                Err(ApiError::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "unsupported_media_type",
                    Action::Fix,
                    format!("this route takes JSON, and {what}: send Content-Type: application/json"),
                ))
            }
        }
    }

    /// Returns the durability level that the request states, or else the server's default.
    pub(crate) fn level(&self, app: &App) -> Result<Durability, ApiError> {
        match self.header(&DURABILITY) {
            None => Ok(app.config.durability),
            Some(name) => std::str::from_utf8(name).ok().and_then(|name| name.trim().parse().ok()).ok_or_else(|| {
                let expected = "none, os, interval, disk or quorum";
                ParseError::BadHeader { name: "Thalweg-Durability", expected }.into()
            }),
        }
    }

    /// Returns the time that the request may wait for the cluster, if it states one: seconds, fractions allowed.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, ParseError> {
        let Some(text) = self.header(&TIMEOUT) else { return Ok(None) };
        let seconds = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<f64>().ok());
        let seconds = seconds.filter(|seconds| (0.0..=MAX_TIMEOUT_SECONDS).contains(seconds));
        let expected = "a number of seconds from 0 to 600";
        let seconds = seconds.ok_or(ParseError::BadHeader { name: "Thalweg-Timeout", expected })?;
        Ok(Some(Duration::from_secs_f64(seconds)))
    }

    /// Returns the time until which the request may wait for the cluster: `default` from now if it states no time.
    pub(crate) fn deadline(&self, default: Duration) -> Result<Instant, ParseError> {
        match self.timeout()? {
            Some(timeout) => Ok(self.waits_since() + timeout),
            None => Ok(Instant::now() + default),
        }
    }

    fn waits_since(&self) -> Instant {
        *self.waits_since.get_or_init(Instant::now)
    }

    /// Returns the origin of the request's commands. On a node of a cluster, they are given up when the time is over
    /// that the request may wait.
    fn origin(&self, app: &App) -> Result<Origin, ParseError> {
        let origin = app.origin(&self.account, || self.id.to_str().unwrap_or_default());
        let timeout = if app.cluster.is_some() { self.timeout()? } else { None };
        Ok(Origin { max_wait: timeout.map(|timeout| timeout.saturating_sub(self.waits_since().elapsed())), ..origin })
    }

    /// Returns the database handle of the connection that sent the request. Writes use it, so that expensive ones wait
    /// for the connection's turn, so that the leader of a cluster logs the request's id, and so that they end in time.
    /// A handler calls this when it is about to write.
    pub(crate) fn db(&self, app: &App) -> Result<AsyncDatabase, ParseError> {
        Ok(app.db.for_origin(&self.origin(app)?))
    }

    /// Returns a database handle like [`db`](Self::db) that uses the request's durability level.
    pub(crate) fn db_at_level(&self, app: &App) -> Result<AsyncDatabase, ApiError> {
        let db = app.db.blocking().with_durability(self.level(app)?).to_async();
        Ok(db.for_origin(&self.origin(app)?))
    }

    /// Finds a keyspace to write to, and creates it for the client if it does not exist.
    pub(crate) async fn keyspace(&self, app: &App, name: &str) -> Result<Keyspace, ApiError> {
        match app.db.blocking().find_keyspace(name) {
            Some(keyspace) => Ok(keyspace),
            None => app.create_keyspace(&self.db(app)?, &self.account, name).await,
        }
    }

    /// Finds a stream to append to, and creates it without limits if it does not exist.
    pub(crate) async fn stream(&self, app: &App, name: &str) -> Result<Stream, ApiError> {
        match app.db.blocking().find_stream(name) {
            Some(stream) => Ok(stream),
            None => Ok(app.create_stream(&self.db(app)?, &self.account, name, &StreamConfig::default()).await?.0),
        }
    }
}
