//! Replies that go on for as long as something comes: tails, watches, pushes, subscribers.
//!
//! Owns: whether a client wants events or lines, the head, how an error before the end is said, the place among
//! `max_tails`, waiting until something comes, it has been silent for too long, or the server stops. Does not own what
//! comes, nor how it is shown.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;
use serde_json::json;
use thalweg_serving::{
    admission::{Held, counted},
    app::App,
    error::ApiError,
    limits::COUNTED_TAIL_BYTES,
};
use thalweg_types::Action;
use tokio::sync::watch;

use crate::{
    call::Call,
    pages::{Running, Unfold, gathered},
    parse::{Media, ParseError, negotiate},
};

/// What an event stream that is opened again says it has seen.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// How what comes is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// As server-sent events.
    Events,
    /// As NDJSON: a line each.
    Lines,
}

impl Format {
    /// What `Accept` asks for; a refusal says that `what` comes as one of the two.
    pub(crate) fn asked(call: &Call, what: &str) -> Result<Self, ApiError> {
        match negotiate(call.header(&header::ACCEPT), &[Media::Events, Media::Ndjson]) {
            Some(Media::Events) => Ok(Self::Events),
            Some(_) => Ok(Self::Lines),
            None => {
                let message = format!("{what} come as text/event-stream or application/x-ndjson");
                Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", Action::Fix, message))
            }
        }
    }

    /// The last that is sent, if it is an error.
    pub(crate) fn error(self, error: &ApiError) -> Bytes {
        let error = error.to_json(None);
        match self {
            Self::Events => format!("event: error\ndata: {error}\n\n").into(),
            Self::Lines => format!("{}\n", json!({ "error": error })).into(),
        }
    }

    /// The reply that `step` unfolds.
    pub(crate) fn reply<S: Send + Unpin + 'static>(self, state: S, step: fn(S) -> Running<S>) -> Response<Body> {
        let media = if self == Self::Events { Media::Events } else { Media::Ndjson };
        let body = Unfold { frames: Default::default(), state: Some(state), running: None, step };
        let mut response = Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// The number after the one in `Last-Event-ID`, which has to be `expected`: where the client goes on.
pub(crate) fn resumed(call: &Call, expected: &'static str) -> Result<Option<u64>, ApiError> {
    let Some(id) = call.header(&LAST_EVENT_ID) else { return Ok(None) };
    let seen = std::str::from_utf8(id).ok().and_then(|id| id.trim().parse::<u64>().ok());
    match seen.and_then(|seen| seen.checked_add(1)) {
        Some(next) => Ok(Some(next)),
        None => Err(ParseError::BadHeader { name: "Last-Event-ID", expected }.into()),
    }
}

/// What ended a wait.
pub(crate) enum Woken<T> {
    /// What was waited for.
    Ready(T),
    /// It is time to say that the connection lives.
    Silence,
    /// The server stops.
    Stopping,
}

/// A client that follows something.
pub(crate) struct Follower {
    /// The server.
    pub app: Arc<App>,
    stopping: watch::Receiver<bool>,
    greeted: bool,
    _held: Held,
}

impl Follower {
    /// One more, if there may be.
    pub(crate) fn admit(app: &Arc<App>) -> Result<Self, ApiError> {
        let held = app.admission.tails.take(1).ok_or_else(|| {
            ApiError::overloaded("too many tails, watches, pushes and subscribers at a time: retry later")
        })?;
        Ok(Self { app: Arc::clone(app), stopping: app.stopping.clone(), greeted: false, _held: held })
    }

    /// Whether this is the first step: then a greeting is due, which lets the head go out at once, also when nothing
    /// comes for long.
    pub(crate) fn is_new(&mut self) -> bool {
        !std::mem::replace(&mut self.greeted, true)
    }

    /// Whether the server stops.
    pub(crate) fn is_over(&self) -> bool {
        *self.stopping.borrow()
    }

    /// A page as it is sent, counted if it is larger than pages are; `None`: there is no room for it.
    pub(crate) fn counted(&self, page: Vec<u8>) -> Option<Bytes> {
        if page.len() <= COUNTED_TAIL_BYTES {
            return Some(page.into());
        }
        let held = self.app.admission.reply_bytes.take_quietly(page.len() as u64)?;
        Some(counted(gathered(page), held))
    }

    /// Waits for that.
    pub(crate) async fn wait<T>(&mut self, ready: impl Future<Output = T>) -> Woken<T> {
        tokio::select! {
            ready = ready => Woken::Ready(ready),
            _ = self.stopping.wait_for(|stopping| *stopping) => Woken::Stopping,
            () = tokio::time::sleep(self.app.config.tail_keep_alive.0) => Woken::Silence,
        }
    }
}
