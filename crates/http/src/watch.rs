//! The handler of `GET /v1/watch/{keyspace}`: past changes of keys from any revision on, and new changes as they
//! happen.
//!
//! As server-sent events, each change is an event whose `data` is a JSON object. The last event of a commit has the
//! commit's revision as its `id`. So a client that reconnects with `Last-Event-ID` gets no partial commit, and no
//! commit twice. As NDJSON, each change is a line, and the last one of a commit is marked with `last`. When no change
//! matches for a while, `progress` states the revision up to which the client missed nothing, often enough that a client
//! that reconnects finds the log's history floor below it. The watch ends when the server stops or `limit` changes were sent. If an
//! error ends the watch, a last event or line states the reason.

use std::{io, sync::Arc};

use bytes::Bytes;
use thalweg_engine::{Watch, WatchBatch, WatchChange, WatchError, WatchEvent};
use thalweg_serving::{app::App, watching::ProgressTimer};
use thalweg_types::{Durability, Revision};

use crate::{
    call::{Answer, Call},
    describe::{EVENTS, KeyspacePath, LastEvent, NDJSON},
    following::{Follower, Format, WakeReason, resumed},
    json::{push_bytes, push_number, push_text},
    pages::Running,
    parse::{WatchQuery, name_segment},
    reading,
    shapes::Change,
};

/// Handles `GET /v1/watch/{keyspace}`: streams changes of keys.
#[utoipa::path(
    get, path = "/v1/watch/{keyspace}", params(KeyspacePath, WatchQuery, LastEvent),
    responses((status = 200,
            description = "One Change per event or line. `progress` is the revision up to which none is missing.",
            content((String = EVENTS), (Change = NDJSON))))
)]
pub(crate) async fn keyspace(app: &Arc<App>, call: &Call) -> Answer {
    let query = WatchQuery::parse(call.head.uri.query())?;
    let format = Format::asked(call, "changes")?;
    let keyspace = app.find_keyspace(&name_segment(call.path_after("/v1/watch/"))?)?;
    let from = resumed(call, "a revision")?.map(Revision).or(query.from);
    let follower = Follower::admit(app, call)?;
    // Finding a position in the log reads one row. Reads of the log itself run on another thread.
    let watch = keyspace.watch(&query.keys, from)?;
    let following = WatchStream {
        follower,
        reported: Revision::ZERO,
        timer: ProgressTimer::new(&app.config, app.db.blocking()),
        watch,
        format,
        left: query.limit.unwrap_or(u64::MAX),
    };
    Ok(format.reply(following.follower.bulk(), following, step))
}

struct WatchStream {
    follower: Follower,
    watch: Watch,
    format: Format,
    /// Last revision that the server reported to the client: the client has missed no change below this revision.
    reported: Revision,
    /// When a new position must be reported.
    timer: ProgressTimer,
    left: u64,
}

fn step(following: WatchStream) -> Running<WatchStream> {
    Box::pin(async move {
        let mut following = following;
        if following.follower.is_new() {
            let greeting = following.progress();
            return Ok((vec![greeting], Some(following)));
        }
        let mut is_silent = false;
        loop {
            if following.follower.is_over() || following.left == 0 {
                return Ok((Vec::new(), None));
            }
            let (found, returned) = take_changes(following).await?;
            following = returned;
            match found {
                Ok(Some(batch)) if batch.events.is_empty() => {
                    return Ok((vec![following.progress()], Some(following)));
                }
                Ok(Some(batch)) => {
                    let shown = following.show(&batch);
                    drop(batch);
                    // A client that the server's stop cuts off resumes after the last change that it got.
                    let Some(shown) = following.follower.counted_when_room(shown).await else {
                        return Ok((Vec::new(), None));
                    };
                    return Ok((vec![shown], Some(following)));
                }
                // The watch has looked for changes after the silence, so its position is the present one.
                Ok(None) if is_silent && following.owes_progress() => {
                    return Ok((vec![following.progress()], Some(following)));
                }
                Ok(None) => {
                    let (silence, ready) = (following.timer.pause(), following.watch.ready());
                    match following.follower.wait_at_most(silence, ready).await {
                        WakeReason::Ready(()) => {}
                        WakeReason::Silence => is_silent = true,
                        WakeReason::Stopping => return Ok((Vec::new(), None)),
                    }
                }
                // The node is closing. The watch ends as it does when a server stops.
                Err(WatchError::Closed) => return Ok((Vec::new(), None)),
                Err(error) => return Ok((vec![following.format.error(&error.into())], None)),
            }
        }
    })
}

/// Takes the changes that are queued in memory on the current thread, or reads changes from the log on a thread for
/// long reads.
async fn take_changes(mut following: WatchStream) -> io::Result<(Result<Option<WatchBatch>, WatchError>, WatchStream)> {
    if !following.watch.is_behind() {
        return Ok((following.watch.try_next(), following));
    }
    let (app, account) = (Arc::clone(&following.follower.app), Arc::clone(following.follower.account()));
    let read = reading::on_reader(&app, &account, 0, move || (following.watch.try_next(), following));
    read.await.map_err(|error| io::Error::other(error.message.into_owned()))
}

impl WatchStream {
    /// Returns true if the server should report the watch's position to the client: the position is new and a report is
    /// due, or nothing was sent for so long that the connection needs a keepalive.
    fn owes_progress(&self) -> bool {
        let app = &self.follower.app;
        self.watch.position() > self.reported && self.timer.is_due(app.db.blocking())
            || self.timer.silence() >= app.config.tail_keep_alive.0
    }

    fn show(&mut self, batch: &WatchBatch) -> Vec<u8> {
        self.timer.reported(self.follower.app.db.blocking());
        // The level is read after the changes were taken, so that it covers all of them.
        let level = self.follower.app.db.blocking().visible_durability();
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
                    push_change(&mut out, event, level, false);
                    out.extend_from_slice(b"\n\n");
                }
                Format::Lines => {
                    push_change(&mut out, event, level, ends_commit);
                    out.push(b'\n');
                }
            }
            if ends_commit {
                self.reported = event.revision.next();
            }
        }
        out
    }

    /// Returns a message with the revision up to which the client missed no change. As a server-sent event it carries
    /// the revision as its id, or is only a comment if the client has that revision already.
    fn progress(&mut self) -> Bytes {
        self.timer.reported(self.follower.app.db.blocking());
        let done = self.watch.position().0 - 1;
        let known = std::mem::replace(&mut self.reported, self.watch.position()) >= self.watch.position();
        match self.format {
            Format::Lines => format!("{{\"progress\":{done}}}\n").into(),
            Format::Events if known => Bytes::from_static(b": still here\n\n"),
            Format::Events => format!("id: {done}\nevent: progress\ndata: {{\"progress\":{done}}}\n\n").into(),
        }
    }
}

/// Appends a change of a key as a JSON object. `is_last` adds the mark of a commit's last change.
fn push_change(out: &mut Vec<u8>, event: &WatchEvent, level: Durability, is_last: bool) {
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
    if is_last {
        out.extend_from_slice(b",\"last\":true");
    }
    out.push(b'}');
}
