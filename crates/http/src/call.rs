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

/// Header with the maximum time that a request may wait for its cluster.
const TIMEOUT: HeaderName = HeaderName::from_static("thalweg-timeout");
/// Longest time that a request may wait for its cluster, in seconds.
const MAX_TIMEOUT_SECONDS: f64 = 600.0;

/// Result of a handler: a response or an error.
pub(crate) type Answer = Result<Response<Body>, ApiError>;

/// A request that is being handled.
#[derive(Debug)]
pub(crate) struct Call {
    /// Account of the connection that sent the request. It counts the resources of the server that the connection uses.
    pub account: Arc<Account>,
    /// Head of the request: method, URI and headers.
    pub head: Parts,
    /// Id of the request for log lines. The reply states it too.
    pub id: HeaderValue,
    /// Body of the request, not read yet. The wrapper makes the request `Sync`, so that a handler can keep it across an
    /// await.
    pub body: SyncWrapper<Body>,
    /// Time at which the request began to wait for its cluster. `Thalweg-Timeout` limits all waits of the request
    /// together.
    pub waits_since: OnceLock<Instant>,
    /// Rule by which the reply counts in `max_reply_bytes_in_flight`, the server's limit on unsent bytes of replies.
    /// The rule applies only to a reply whose size is known before it is sent.
    pub reply_memory: ReplyMemory,
}

impl Call {
    /// Creates a request whose body has not been read and which has not waited for the cluster yet.
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

    /// Returns the part of the path after `prefix`. Returns an empty text if the path does not begin with `prefix`.
    #[must_use]
    pub(crate) fn path_after(&self, prefix: &str) -> &str {
        self.head.uri.path().strip_prefix(prefix).unwrap_or_default()
    }

    /// Returns the value of a request header as bytes; `None` if the request does not have the header.
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

    /// Returns error 415 if `Content-Type` is missing or is not JSON. The check protects from pages of other origins:
    /// such a page can make a browser send a form, plain text, or a body without a type. Before a browser sends JSON
    /// for such a page, it asks the server for permission.
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

    /// Returns the maximum time that the request may wait for the cluster; `None` if it states none. The header has
    /// seconds, with fractions.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, ParseError> {
        let Some(text) = self.header(&TIMEOUT) else { return Ok(None) };
        let seconds = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<f64>().ok());
        let seconds = seconds.filter(|seconds| (0.0..=MAX_TIMEOUT_SECONDS).contains(seconds));
        let expected = "a number of seconds from 0 to 600";
        let seconds = seconds.ok_or(ParseError::BadHeader { name: "Thalweg-Timeout", expected })?;
        Ok(Some(Duration::from_secs_f64(seconds)))
    }

    /// Returns the time until which the request may wait for the cluster. If the request states no time, this is
    /// `default` from now.
    pub(crate) fn deadline(&self, default: Duration) -> Result<Instant, ParseError> {
        match self.timeout()? {
            Some(timeout) => Ok(self.waits_since() + timeout),
            None => Ok(Instant::now() + default),
        }
    }

    fn waits_since(&self) -> Instant {
        *self.waits_since.get_or_init(Instant::now)
    }

    /// Returns facts about the request that the database needs with each of its commands: the client, the request's id,
    /// and on a node of a cluster the remaining time. After this time the node gives up the command.
    fn origin(&self, app: &App) -> Result<Origin, ParseError> {
        let origin = app.origin(&self.account, || self.id.to_str().unwrap_or_default());
        let timeout = if app.cluster.is_some() { self.timeout()? } else { None };
        Ok(Origin { max_wait: timeout.map(|timeout| timeout.saturating_sub(self.waits_since().elapsed())), ..origin })
    }

    /// Returns the database handle for the writes of this request. The handle carries the request's client, id and
    /// timeout: expensive writes then take turns with those of other clients, the leader of a cluster logs the id, and
    /// writes end in time. A handler calls this method directly before a write, because the remaining time is computed
    /// here.
    pub(crate) fn db(&self, app: &App) -> Result<AsyncDatabase, ParseError> {
        Ok(app.db.for_origin(&self.origin(app)?))
    }

    /// Returns a database handle like [`db`](Self::db) that uses the request's durability level.
    pub(crate) fn db_at_level(&self, app: &App) -> Result<AsyncDatabase, ApiError> {
        let db = app.db.blocking().with_durability(self.level(app)?).to_async();
        Ok(db.for_origin(&self.origin(app)?))
    }

    /// Finds the keyspace to which the request writes. Creates the keyspace for the client if it does not exist.
    pub(crate) async fn keyspace(&self, app: &App, name: &str) -> Result<Keyspace, ApiError> {
        match app.db.blocking().find_keyspace(name) {
            Some(keyspace) => Ok(keyspace),
            None => app.create_keyspace(&self.db(app)?, &self.account, name).await,
        }
    }

    /// Finds the stream to which the request appends. Creates the stream without limits if it does not exist.
    pub(crate) async fn stream(&self, app: &App, name: &str) -> Result<Stream, ApiError> {
        match app.db.blocking().find_stream(name) {
            Some(stream) => Ok(stream),
            None => Ok(app.create_stream(&self.db(app)?, &self.account, name, &StreamConfig::default()).await?.0),
        }
    }
}
