//! A request as handlers see it: head, unread body, and the headers that several handlers read.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header, request::Parts},
};
use sync_wrapper::SyncWrapper;
use thalweg_engine::AsyncDatabase;
use thalweg_serving::{app::App, error::ApiError};
use thalweg_types::{Action, Durability};

use crate::{
    parse::{Media, Params, ParseError, request_media},
    reply::DURABILITY,
};

/// What handlers answer.
pub(crate) type Answer = Result<Response<Body>, ApiError>;

/// A request that is being handled.
#[derive(Debug)]
pub(crate) struct Call {
    /// Method, URI, headers.
    pub head: Parts,
    /// The body, not read yet; wrapped, so that a handler may keep the call across a wait.
    pub body: SyncWrapper<Body>,
}

impl Call {
    /// The path after `prefix`, which the route has matched.
    #[must_use]
    pub(crate) fn path_after(&self, prefix: &str) -> &str {
        self.head.uri.path().strip_prefix(prefix).unwrap_or_default()
    }

    /// A header's bytes.
    #[must_use]
    pub(crate) fn header(&self, name: &HeaderName) -> Option<&[u8]> {
        self.head.headers.get(name).map(HeaderValue::as_bytes)
    }

    /// For routes that take no query.
    pub(crate) fn no_query(&self) -> Result<(), ParseError> {
        match Params::new(self.head.uri.query()).next() {
            None => Ok(()),
            Some(Ok((name, _))) => Err(ParseError::UnknownParameter { name: name.chars().take(64).collect() }),
            Some(Err(error)) => Err(error),
        }
    }

    /// 415 unless the body says that it is JSON, or says nothing.
    pub(crate) fn require_json(&self) -> Result<(), ApiError> {
        match self.header(&header::CONTENT_TYPE) {
            Some(given) if request_media(given) != Some(Media::Json) => Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                Action::Fix,
                "Content-Type must be application/json",
            )),
            _ => Ok(()),
        }
    }

    /// The level that a request asks for, or the server's.
    pub(crate) fn level(&self, app: &App) -> Result<Durability, ApiError> {
        match self.header(&DURABILITY) {
            None => Ok(app.config.durability),
            Some(name) => std::str::from_utf8(name).ok().and_then(|name| name.trim().parse().ok()).ok_or_else(|| {
                let expected = "none, os, interval, disk or quorum";
                ParseError::BadHeader { name: "Thalweg-Durability", expected }.into()
            }),
        }
    }

    /// The database with the level that a request asks for, for requests whose level is the handle's.
    pub(crate) fn db_at_level(&self, app: &App) -> Result<AsyncDatabase, ApiError> {
        Ok(app.db.blocking().with_durability(self.level(app)?).to_async())
    }
}
