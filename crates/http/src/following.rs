//! Replies without a fixed end: tails of streams, watches of keys, pushes to group members, subscriptions to subjects.
//!
//! Owns: the choice between server-sent events and lines, the head of the reply, the format of an error at its end,
//! counting the reply in the limit `max_tails`, and waiting. A wait ends when an item is ready, after a time of
//! silence, or when the server stops. Does not own: the content of replies, or its encoding.

use std::{sync::Arc, time::Duration};

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::json;
use thalweg_serving::{
    admission::{Account, Reservation, Resource, counted},
    app::App,
    bulk::BulkSeat,
    error::ApiError,
    limits::{COUNTED_TAIL_BYTES, ROOM_PAUSE},
};
use thalweg_types::{Action, limits::MAX_VALUE_BYTES};
use tokio::sync::watch;

use crate::{
    call::Call,
    pages::{Running, Unfold, gathered},
    parse::{Media, ParseError, negotiate},
};

/// Header in which the client of an event stream states the last event that it saw.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Format of the items of a reply without a fixed end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Server-sent events.
    Events,
    /// NDJSON: one JSON value per line.
    Lines,
}

impl Format {
    /// Returns the format that the `Accept` header requests. Returns an error if the header requests no supported
    /// format; `what` names the items of the reply in its message.
    pub(crate) fn asked(call: &Call, what: &str) -> Result<Self, ApiError> {
        match negotiate(call.header(&header::ACCEPT), &[Media::Events, Media::Ndjson]) {
            Some(Media::Events) => Ok(Self::Events),
            Some(_) => Ok(Self::Lines),
            None => {
                let message = format!("Accept must allow text/event-stream or application/x-ndjson for {what}");
                Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", Action::Fix, message))
            }
        }
    }

    /// Encodes an error as the last item of the reply.
    pub(crate) fn error(self, error: &ApiError) -> Bytes {
        let error = error.to_json(None);
        match self {
            Self::Events => format!("event: error\ndata: {error}\n\n").into(),
            Self::Lines => format!("{}\n", json!({ "error": error })).into(),
        }
    }

    /// Creates a reply in this format. Repeated calls of `step` produce the reply's body: each call gets the state that
    /// the previous call has returned. A call happens only while the reply has a turn to send bulk output. `bulk` is
    /// the reply's entry in the queue for these turns.
    pub(crate) fn reply<S: Send + Unpin + 'static>(
        self,
        bulk: BulkSeat,
        state: S,
        step: fn(S) -> Running<S>,
    ) -> Response<Body> {
        let media = if self == Self::Events { Media::Events } else { Media::Ndjson };
        let body = Unfold { frames: Default::default(), state: Some(state), running: None, step, bulk: Some(bulk) };
        let mut response = Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// Returns the number at which the client resumes: the one after the number in the header `Last-Event-ID`. Returns
/// `None` if the header is missing. `expected` describes valid headers in the error.
pub(crate) fn resumed(call: &Call, expected: &'static str) -> Result<Option<u64>, ApiError> {
    let Some(id) = call.header(&LAST_EVENT_ID) else { return Ok(None) };
    let seen = std::str::from_utf8(id).ok().and_then(|id| id.trim().parse::<u64>().ok());
    match seen.and_then(|seen| seen.checked_add(1)) {
        Some(next) => Ok(Some(next)),
        None => Err(ParseError::BadHeader { name: "Last-Event-ID", expected }.into()),
    }
}

/// Reason why a wait for new items ended.
pub(crate) enum WakeReason<T> {
    /// The awaited value is ready.
    Ready(T),
    /// No item was sent for a while. The server must send a keepalive to the client.
    Silence,
    /// The server is stopping.
    Stopping,
}

/// Error that a page does not fit into the limit on unsent bytes of replies at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// Size of the page in bytes.
    bytes: u64,
}

impl NoRoom {
    /// Returns the number of bytes that must be free in the limit on unsent bytes of replies before the page is encoded
    /// again: its size, but at most two values of the maximum size. The JSON of a page can be longer than the whole
    /// limit, so a wait for its size could never end. The bytes above this number are counted even if they exceed the
    /// limit.
    fn awaited(self) -> u64 {
        self.bytes.min(2 * MAX_VALUE_BYTES as u64)
    }
}

/// Server side of a tail of a stream, a watch of keys, a push of group records, or a subscription to a subject. It
/// counts in the limit `max_tails` until it is dropped.
pub(crate) struct Follower {
    /// State that all protocols of the server share.
    pub app: Arc<App>,
    stopping: watch::Receiver<bool>,
    greeted: bool,
    held: Reservation,
}

impl Follower {
    /// Returns the account of the client's connection.
    pub(crate) fn account(&self) -> &Arc<Account> {
        self.held.account()
    }

    /// Creates the reply's entry in the queue of connections that take turns in sending bulk output.
    pub(crate) fn bulk(&self) -> BulkSeat {
        BulkSeat::new(&self.app.bulk, self.account())
    }

    /// Admits one more reply without a fixed end (a follower). Returns an error if the limit `max_tails` is reached.
    pub(crate) fn admit(app: &Arc<App>, call: &Call) -> Result<Self, ApiError> {
        let held = call
            .account
            .take(Resource::Tails, 1)
            .ok_or_else(|| ApiError::overloaded("too many tails, watches, pushes and subscribers: retry later"))?;
        Ok(Self { app: Arc::clone(app), stopping: app.stopping.clone(), greeted: false, held })
    }

    /// Returns true at the first call, and false afterwards. When it returns true, the caller must send a greeting, so
    /// that the reply's head is sent immediately, even if the first item follows much later.
    pub(crate) fn is_new(&mut self) -> bool {
        !std::mem::replace(&mut self.greeted, true)
    }

    /// Returns true if the server is stopping.
    pub(crate) fn is_over(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Converts an encoded page to bytes for sending. A large page counts in the limit on unsent bytes of replies.
    /// `room` holds the bytes that [`room`](Self::room) has reserved in this limit, if the follower has waited for this
    /// page before. If the limit has no room, drops the page and returns an error.
    pub(crate) fn counted(&self, page: Vec<u8>, room: Option<Reservation>) -> Result<Bytes, NoRoom> {
        if page.len() <= COUNTED_TAIL_BYTES {
            return Ok(page.into());
        }
        let no_room = NoRoom { bytes: page.len() as u64 };
        let Some(mut held) = room else {
            let held = self.held.account().take_quietly(Resource::ReplyBytes, no_room.bytes).ok_or(no_room)?;
            return Ok(counted(gathered(page), held));
        };
        if !held.grow_to(no_room.awaited()) {
            return Err(no_room);
        }
        held.set(no_room.bytes);
        Ok(counted(gathered(page), held))
    }

    /// Waits until the limit on unsent bytes of replies has room for the page that [`counted`](Self::counted) has
    /// dropped. Reserves the page's bytes in the limit, and returns a value that holds them reserved; `None` if the
    /// server stops. During the wait, the caller must hold neither the page nor its data.
    pub(crate) async fn room(&mut self, page: NoRoom) -> Option<Reservation> {
        while !self.is_over() {
            if let Some(held) = self.held.account().take_quietly(Resource::ReplyBytes, page.awaited()) {
                return Some(held);
            }
            if let WakeReason::Stopping = self.wait(tokio::time::sleep(ROOM_PAUSE)).await {
                break;
            }
        }
        None
    }

    /// Waits until `ready` resolves, the server stops, or a keepalive is due.
    pub(crate) async fn wait<T>(&mut self, ready: impl Future<Output = T>) -> WakeReason<T> {
        self.wait_at_most(self.app.config.tail_keep_alive.0, ready).await
    }

    /// Waits until `ready` resolves, the server stops, or `silence` has passed.
    pub(crate) async fn wait_at_most<T>(&mut self, silence: Duration, ready: impl Future<Output = T>) -> WakeReason<T> {
        tokio::select! {
            ready = ready => WakeReason::Ready(ready),
            _ = self.stopping.wait_for(|stopping| *stopping) => WakeReason::Stopping,
            () = tokio::time::sleep(silence) => WakeReason::Silence,
        }
    }
}
