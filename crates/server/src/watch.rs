//! `GET /v1/watch/{keyspace}`: changes of keys as they happen, and before, from any revision on.
//!
//! As server-sent events each change is an event whose `data` is a JSON object; the last one of a commit has
//! the commit's revision as `id`, so a client that reconnects with `Last-Event-ID` gets no half of a commit, and
//! none twice. As NDJSON each change is a line. When nothing matches for a while, `progress` says up to which
//! revision nothing was missed. The watch ends when the server stops or `limit` changes were sent; before an end
//! that is an error, it says why.

use std::{io, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;
use thalweg_engine::{Watch, WatchBatch, WatchChange, WatchError, WatchEvent};
use thalweg_types::{Action, Durability, Revision};
use tokio::sync::watch;

use crate::{
    admission::Held,
    app::{Answer, App, Call},
    error::ApiError,
    json::{push_bytes, push_number, push_text},
    pages::{Running, Unfold},
    parse::{Media, ParseError, WatchQuery, name_segment, negotiate},
};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// `GET /v1/watch/{keyspace}`
pub async fn keyspace(app: &Arc<App>, call: &Call) -> Answer {
    let query = WatchQuery::parse(call.head.uri.query())?;
    let media = negotiate(call.header(&header::ACCEPT), &[Media::Events, Media::Ndjson]).ok_or_else(|| {
        let message = "changes come as text/event-stream or application/x-ndjson";
        ApiError::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", Action::Fix, message)
    })?;
    let keyspace = app.find_keyspace(&name_segment(call.path_after("/v1/watch/"))?)?;
    let from = resume(call)?.or(query.from);
    let held =
        app.admission.tails.take(1).ok_or_else(|| ApiError::overloaded("too many tails at a time: retry later"))?;
    // Finding a place in the log reads a row; what is read of the log itself is read off this thread.
    let watch = keyspace.watch(&query.keys, from)?;
    let following = Following {
        app: Arc::clone(app),
        stopping: app.stopping.clone(),
        said: Revision::ZERO,
        watch,
        format: if media == Media::Events { Format::Events } else { Format::Lines },
        left: query.limit.unwrap_or(u64::MAX),
        greeted: false,
        _held: held,
    };
    let body = Body::new(Unfold { frames: Default::default(), state: Some(following), running: None, step });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Where `Last-Event-ID` wants to go on.
fn resume(call: &Call) -> Result<Option<Revision>, ApiError> {
    let Some(id) = call.header(&LAST_EVENT_ID) else { return Ok(None) };
    let revision = std::str::from_utf8(id).ok().and_then(|id| id.trim().parse::<u64>().ok());
    match revision.and_then(|revision| revision.checked_add(1)) {
        Some(next) => Ok(Some(Revision(next))),
        None => Err(ParseError::BadHeader { name: "Last-Event-ID", expected: "a revision" }.into()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Events,
    Lines,
}

struct Following {
    app: Arc<App>,
    stopping: watch::Receiver<bool>,
    watch: Watch,
    format: Format,
    /// The client knows that nothing below is missing.
    said: Revision,
    left: u64,
    greeted: bool,
    _held: Held,
}

fn step(following: Following) -> Running<Following> {
    Box::pin(async move {
        let mut following = following;
        if !following.greeted {
            // Lets the head go out at once, also when nothing comes for long.
            following.greeted = true;
            let greeting = following.progress();
            return Ok((vec![greeting], Some(following)));
        }
        loop {
            if *following.stopping.borrow() || following.left == 0 {
                return Ok((Vec::new(), None));
            }
            let (found, returned) = look(following).await?;
            following = returned;
            match found {
                Ok(Some(batch)) if batch.events.is_empty() => {
                    return Ok((vec![following.progress()], Some(following)));
                }
                Ok(Some(batch)) => return Ok((vec![following.show(&batch)], Some(following))),
                Ok(None) => match wait(&mut following).await {
                    Woken::Changes => {}
                    Woken::Silence => return Ok((vec![following.progress()], Some(following))),
                    Woken::Stopping => return Ok((Vec::new(), None)),
                },
                // The node is closing: an end like that of a server that stops.
                Err(WatchError::Closed) => return Ok((Vec::new(), None)),
                Err(error) => return Ok((vec![following.failure(&error.into())], None)),
            }
        }
    })
}

/// Takes what waits on the spot; reads the log on a blocking thread.
async fn look(mut following: Following) -> io::Result<(Result<Option<WatchBatch>, WatchError>, Following)> {
    if !following.watch.is_behind() {
        return Ok((following.watch.try_next(), following));
    }
    tokio::task::spawn_blocking(move || (following.watch.try_next(), following)).await.map_err(io::Error::other)
}

enum Woken {
    Changes,
    Silence,
    Stopping,
}

async fn wait(following: &mut Following) -> Woken {
    let ready = following.watch.ready();
    tokio::select! {
        () = ready => Woken::Changes,
        _ = following.stopping.wait_for(|stopping| *stopping) => Woken::Stopping,
        () = tokio::time::sleep(following.app.config.tail_keep_alive.0) => Woken::Silence,
    }
}

impl Following {
    fn show(&mut self, batch: &WatchBatch) -> Bytes {
        // Asked after the changes were taken, so that it covers all of them.
        let level = self.app.db.blocking().visible_durability();
        let mut out = Vec::new();
        let mut events = batch.events.iter().peekable();
        while let Some(event) = events.next() {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            let ends_commit = events.peek().is_none_or(|next| next.revision != event.revision);
            match self.format {
                Format::Events => {
                    if ends_commit {
                        out.extend_from_slice(format!("id: {}\n", event.revision).as_bytes());
                    }
                    out.extend_from_slice(b"data: ");
                    push_change(&mut out, event, level);
                    out.extend_from_slice(b"\n\n");
                }
                Format::Lines => {
                    push_change(&mut out, event, level);
                    out.push(b'\n');
                }
            }
            if ends_commit {
                self.said = event.revision.next();
            }
        }
        out.into()
    }

    /// Says how far nothing was missed. As an event it is a comment if that is known, and else carries the
    /// revision as its id.
    fn progress(&mut self) -> Bytes {
        let done = self.watch.position().0 - 1;
        let known = std::mem::replace(&mut self.said, self.watch.position()) >= self.watch.position();
        match self.format {
            Format::Lines => format!("{{\"progress\":{done}}}\n").into(),
            Format::Events if known => Bytes::from_static(b": still here\n\n"),
            Format::Events => format!("id: {done}\nevent: progress\ndata: {{\"progress\":{done}}}\n\n").into(),
        }
    }

    fn failure(&self, error: &ApiError) -> Bytes {
        match self.format {
            Format::Events => format!("event: error\ndata: {}\n\n", error.to_json(None)).into(),
            Format::Lines => format!("{}\n", serde_json::json!({ "error": error.to_json(None) })).into(),
        }
    }
}

/// Appends a change as a JSON object.
fn push_change(out: &mut Vec<u8>, event: &WatchEvent, level: Durability) {
    out.push(b'{');
    push_number(out, "revision", event.revision.0);
    out.push(b',');
    push_number(out, "time_micros", event.time.0);
    out.extend_from_slice(b",\"change\":\"");
    let (change, name) = match &event.change {
        WatchChange::Put(_) => ("put", "key"),
        WatchChange::Delete => ("delete", "key"),
        WatchChange::Expire => ("expire", "key"),
        WatchChange::DeletePrefix => ("delete_prefix", "prefix"),
    };
    out.extend_from_slice(change.as_bytes());
    out.extend_from_slice(b"\",");
    push_bytes(out, name, &event.key);
    if let WatchChange::Put(value) = &event.change {
        out.push(b',');
        push_bytes(out, "value", value);
    }
    out.extend_from_slice(b",\"durability\":");
    push_text(out, level.name());
    out.push(b'}');
}
