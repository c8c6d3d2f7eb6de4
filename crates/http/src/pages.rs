//! Reply bodies that are made page by page, so that a reply of any length needs bounded memory.
//!
//! Owns: the requests to a [`PageSource`] for its pages, on a thread for long reads. A short first page that waits for
//! the disk is made on a thread for cold reads. The next page is made after the client has received the previous page,
//! so a slow client occupies no thread. A page with one large pair or record is larger than usual. It counts in the
//! limit `max_reply_bytes_in_flight` until it is sent; if the limit has no room, the reply ends there. Until its last
//! page is sent, the source is kept and counts in a limit such as `max_scans`. A body of one page has a known size, so
//! `reply_memory` counts it instead.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum_core::body::Body;
use bytes::Bytes;
use http_body::Frame;
use sync_wrapper::SyncWrapper;
use thalweg_serving::{
    admission::{Account, Resource, counted},
    app::App,
    bulk::BulkSeat,
    error::ApiError,
    limits::COUNTED_PAGE_BYTES,
};
use thalweg_types::{
    budget::{self, BudgetSpent},
    limits::MAX_VALUE_BYTES,
    steps::SHORT_READ,
};

use crate::{reading, reply};

/// A page: one part of a reply body.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Data frames of the page; each becomes one chunk in HTTP/1.
    pub frames: Vec<Bytes>,
    /// True for the last page of the body.
    pub last: bool,
}

/// Source of the pages of a reply body. It may block the thread while it makes a page.
pub(crate) trait PageSource: Send + Unpin + 'static {
    /// Makes the next page of the body.
    fn page(&mut self) -> Result<Page, ApiError>;
    /// Returns the server's state and the account of the connection that reads the body.
    fn reader(&self) -> (&Arc<App>, &Arc<Account>);
    /// Returns true if large pages count in `max_reply_bytes_in_flight`. False for a source that limits the size of its
    /// pages itself.
    fn is_counted(&self) -> bool {
        true
    }
    /// Resets the source to its first page. No page was sent before. May be called more than once.
    fn restart(&mut self);
    /// Returns the bytes to send if making a page fails after the head was sent. With `None` the connection is cut, so
    /// that the client does not mistake a partial body for a complete one.
    fn failure(&mut self, error: &ApiError) -> Option<Bytes>;
}

/// Thread that makes the first page of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstPageThread {
    /// The calling thread, because the page should be small. If making it takes too long, a thread for long reads takes
    /// over; if it needs the disk, a thread for reads from the disk does.
    Inline,
    /// A thread for long reads.
    Blocking,
}

/// Permission to send a short body with its length instead of in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A short body may be sent with its length.
    Any,
    /// The body must be sent in chunks, because the client depends on them.
    Chunks,
}

/// Creates the body with the pages of `source`. Returns an error if the first page fails.
pub(crate) async fn body<S: PageSource>(
    mut source: S,
    first: FirstPageThread,
    framing: Framing,
) -> Result<Body, ApiError> {
    let (page, source) = match first {
        FirstPageThread::Inline => match budget::within(SHORT_READ, || made(&mut source, framing)) {
            Ok(page) => (page, source),
            Err(spent) => again(spent, source, framing).await?,
        },
        FirstPageThread::Blocking => blocking(source, framing).await?,
    };
    let mut page = page?;
    if page.is_whole(framing) {
        return Ok(page.frames.pop().map_or_else(Body::empty, Body::from));
    }
    let (frames, state) = page.with_source(source);
    Ok(Body::new(Unfold { frames: frames.into(), state, running: None, step: next_page::<S>, bulk: None }))
}

impl Page {
    /// Returns true if the page is the whole body and is sent with its length.
    fn is_whole(&self, framing: Framing) -> bool {
        self.last && self.frames.len() <= 1 && framing == Framing::Any
    }

    /// Returns the frames of the page, and the source if more pages follow. The frames of the last page hold the source
    /// until they are sent, so that the source counts in its limit (such as `max_scans`) for as long as they are in
    /// memory.
    fn with_source<S: PageSource>(self, source: S) -> (Vec<Bytes>, Option<S>) {
        if !self.last || !source.is_counted() {
            return (self.frames, (!self.last).then_some(source));
        }
        let source = Arc::new(SyncWrapper::new(source));
        (self.frames.into_iter().map(|frame| counted(frame, Arc::clone(&source))).collect(), None)
    }
}

async fn blocking<S: PageSource>(mut source: S, framing: Framing) -> Result<(Result<Page, ApiError>, S), ApiError> {
    let (app, account, bytes) = owners(&source);
    reading::on_reader(&app, &account, bytes, move || (made(&mut source, framing), source)).await
}

/// Makes the first page of a source again, on another thread. `spent` is the reason why the thread of the connection
/// could not make it.
async fn again<S: PageSource>(
    spent: BudgetSpent,
    source: S,
    framing: Framing,
) -> Result<(Result<Page, ApiError>, S), ApiError> {
    let (app, account, bytes) = owners(&source);
    let make = move |source: &mut S| {
        source.restart();
        made(source, framing)
    };
    reading::work_again(spent, (&*app, &account, bytes), source, make).await
}

/// Returns the server's state, the account of the connection, and the number of bytes of memory to request for a page.
fn owners<S: PageSource>(source: &S) -> (Arc<App>, Arc<Account>, usize) {
    let (app, account) = source.reader();
    // The size of the next pair is unknown, so the maximum is requested.
    let bytes = if source.is_counted() { MAX_VALUE_BYTES } else { 0 };
    (Arc::clone(app), Arc::clone(account), bytes)
}

/// Makes the next page of a source. If the page is large, counts it in the limit on unsent bytes of replies.
fn made<S: PageSource>(source: &mut S, framing: Framing) -> Result<Page, ApiError> {
    let page = source.page()?;
    let bytes: usize = page.frames.iter().map(Bytes::len).sum();
    if bytes <= COUNTED_PAGE_BYTES || !source.is_counted() || page.is_whole(framing) {
        return Ok(page);
    }
    let held = source.reader().1.take(Resource::ReplyBytes, bytes as u64).ok_or_else(reply::no_room)?;
    let held = Arc::new(held);
    let frames = page.frames.into_iter().map(|frame| counted(frame, Arc::clone(&held))).collect();
    Ok(Page { frames, last: page.last })
}

/// Converts the bytes of a page for sending. Releases the unused capacity of a large page.
pub(crate) fn gathered(mut bytes: Vec<u8>) -> Bytes {
    if bytes.len() > COUNTED_PAGE_BYTES {
        bytes.shrink_to_fit();
    }
    bytes.into()
}

fn next_page<S: PageSource>(source: S) -> Running<S> {
    Box::pin(async move {
        // Only a first page can be the whole body, so this one is never sent with its length.
        match blocking(source, Framing::Chunks).await {
            Err(error) => Err(io::Error::other(error.message.into_owned())),
            Ok((Ok(page), source)) => Ok(page.with_source(source)),
            Ok((Err(error), mut source)) => match source.failure(&error) {
                Some(line) => Ok((vec![line], None)),
                None => Err(io::Error::other(error.message.into_owned())),
            },
        }
    })
}

/// Result of one call of the function that produces a reply body bit by bit: frames to send, and the state for the next
/// call; `None` if the body ends.
pub(crate) type Step<S> = io::Result<(Vec<Bytes>, Option<S>)>;
/// Future of one call of the function that produces a reply body bit by bit.
pub(crate) type Running<S> = Pin<Box<dyn Future<Output = Step<S>> + Send>>;

/// A reply body that repeated calls of a function produce. Each call gets the state that the previous call has
/// returned.
pub(crate) struct Unfold<S> {
    /// Frames that are ready to be sent.
    pub frames: VecDeque<Bytes>,
    /// State for the next call of the function `step`; `None` while a call runs and after the last call.
    pub state: Option<S>,
    /// Call of the function `step` that is in progress; `None` if there is none.
    pub running: Option<Running<S>>,
    /// Function that makes the next frames of the body from the current state.
    pub step: fn(S) -> Running<S>,
    /// Entry of the body in a queue: the bodies in this queue take turns in sending bulk output. `None` if the body's
    /// pages are made on other threads than that of the connection; such a body takes no turns.
    pub bulk: Option<BulkSeat>,
}

impl<S: Send + Unpin + 'static> http_body::Body for Unfold<S> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            if self.running.is_none() {
                let Some(state) = self.state.take() else { return Poll::Ready(None) };
                self.running = Some((self.step)(state));
            }
            let Self { running: Some(running), bulk, .. } = &mut *self else { continue };
            if let Some(bulk) = bulk
                && !bulk.may_send(context)
            {
                return Poll::Pending;
            }
            let step = running.as_mut().poll(context);
            if let Some(bulk) = bulk {
                if let Poll::Ready(Ok((frames, _))) = &step {
                    bulk.sent(frames.iter().map(Bytes::len).sum());
                }
                bulk.rest();
            }
            let step = std::task::ready!(step);
            self.running = None;
            match step {
                Ok((frames, state)) => {
                    self.frames.extend(frames);
                    self.state = state;
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}
