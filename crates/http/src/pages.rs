//! Reply bodies made page by page, so that a reply of any length takes bounded memory.
//!
//! Owns: the pull from a [`PageSource`] on a blocking thread, one page ahead of nothing: the next page
//! is made when the client has taken the last one, so a slow client holds no thread. What is larger than pages are, because a
//! single pair or record is, counts against `max_reply_bytes_in_flight` until it is sent; without room the reply ends there.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use thalweg_serving::{admission::counted, app::App, error::ApiError, limits::COUNTED_PAGE_BYTES};
use thalweg_types::limits::MAX_VALUE_BYTES;

use crate::reply;

/// Part of a reply body.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Data frames; each becomes one chunk in HTTP/1.
    pub frames: Vec<Bytes>,
    /// Nothing follows.
    pub last: bool,
}

/// Makes pages, blocking while it does.
pub(crate) trait PageSource: Send + Unpin + 'static {
    /// The next page.
    fn page(&mut self) -> Result<Page, ApiError>;
    /// Whose bounds count pages that are larger than usual; `None`: they are bounded otherwise.
    fn app(&self) -> Option<&Arc<App>>;
    /// What to send when a page fails after the head has gone out; `None` cuts the connection, so that
    /// the client cannot take what it has for everything.
    fn failure(&mut self, error: &ApiError) -> Option<Bytes>;
}

/// Where the first page is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Here and now: it is small.
    Inline,
    /// On a blocking thread.
    Blocking,
}

/// Whether a short body may go out with its length instead of in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// It may.
    Any,
    /// Chunks matter to the client.
    Chunks,
}

/// The body over `source`. An error of the first page is an error of the request.
pub(crate) async fn body<S: PageSource>(mut source: S, first: First, framing: Framing) -> Result<Body, ApiError> {
    let (page, source) = match first {
        First::Inline => (made(&mut source), source),
        First::Blocking => blocking(source).await.map_err(|error| internal(&error))?,
    };
    let mut page = page?;
    if page.last && page.frames.len() <= 1 && framing == Framing::Any {
        return Ok(page.frames.pop().map_or_else(Body::empty, Body::from));
    }
    let state = (!page.last).then_some(source);
    Ok(Body::new(Unfold { frames: page.frames.into(), state, running: None, step: next_page::<S> }))
}

async fn blocking<S: PageSource>(mut source: S) -> io::Result<(Result<Page, ApiError>, S)> {
    let app = source.app().map(Arc::clone);
    let place = match app {
        // How large the next pair is nobody knows.
        Some(app) => app.place_to_read(MAX_VALUE_BYTES).await,
        None => None,
    };
    let task = tokio::task::spawn_blocking(move || {
        let page = made(&mut source);
        drop(place);
        (page, source)
    });
    task.await.map_err(io::Error::other)
}

/// The next page, counted if it is a large one.
fn made<S: PageSource>(source: &mut S) -> Result<Page, ApiError> {
    let page = source.page()?;
    let bytes: usize = page.frames.iter().map(Bytes::len).sum();
    let Some(app) = source.app().filter(|_| bytes > COUNTED_PAGE_BYTES) else { return Ok(page) };
    let held = app.admission.reply_bytes.take(bytes as u64).ok_or_else(reply::no_room)?;
    let held = Arc::new(held);
    let frames = page.frames.into_iter().map(|frame| counted(frame, Arc::clone(&held))).collect();
    Ok(Page { frames, last: page.last })
}

/// Bytes of a page; those of a large one take no more memory than they are.
pub(crate) fn gathered(mut bytes: Vec<u8>) -> Bytes {
    if bytes.len() > COUNTED_PAGE_BYTES {
        bytes.shrink_to_fit();
    }
    bytes.into()
}

fn internal(error: &io::Error) -> ApiError {
    ApiError::new(
        axum::http::StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        thalweg_types::Action::Stop,
        format!("reading failed: {error}"),
    )
}

fn next_page<S: PageSource>(source: S) -> Running<S> {
    Box::pin(async move {
        match blocking(source).await {
            Err(error) => Err(error),
            Ok((Ok(page), source)) => Ok((page.frames, (!page.last).then_some(source))),
            Ok((Err(error), mut source)) => match source.failure(&error) {
                Some(line) => Ok((vec![line], None)),
                None => Err(io::Error::other(error.message.into_owned())),
            },
        }
    })
}

/// One step: frames, and the state for the next step if there is one.
pub(crate) type Step<S> = io::Result<(Vec<Bytes>, Option<S>)>;
/// A step that is being taken.
pub(crate) type Running<S> = Pin<Box<dyn Future<Output = Step<S>> + Send>>;

/// A body that is unfolded from a state, step by step.
pub(crate) struct Unfold<S> {
    /// Ready to go out.
    pub frames: VecDeque<Bytes>,
    /// For the next step.
    pub state: Option<S>,
    /// The step under way.
    pub running: Option<Running<S>>,
    /// Takes a step.
    pub step: fn(S) -> Running<S>,
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
            let Some(running) = self.running.as_mut() else { continue };
            let step = std::task::ready!(running.as_mut().poll(context));
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
