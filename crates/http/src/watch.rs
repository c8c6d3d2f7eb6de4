//! The handler of `GET /v1/watch/{keyspace}`: past changes of keys from any revision on, and new changes as they
//! happen.
//!
//! Owns: the handler, the changes that it holds, and their encoding. Does not own: the search for changes (the engine's
//! `Watch`), or the keepalive and the end of such replies (`following`).
//!
//! As server-sent events, each change is an event whose `data` is a JSON object. The last event of a commit has the
//! commit's revision as its `id`. So a client that reconnects with `Last-Event-ID` gets no partial commit, and no
//! commit twice. As NDJSON, each change is a line, and the field `last` marks the last change of a commit. When no
//! change matches for a while, `progress` states the revision up to which the client missed no change. It is sent so
//! often that a client that reconnects finds the log's history floor below this revision. The watch ends when the
//! server stops or `limit` changes were sent. If an error ends the watch, a last event or line states the reason.
//!
//! Bounds: a watch holds the changes of one batch of at most [`HELD_BYTES`], and sends them in pages of
//! [`TAIL_PAGE_BYTES`]. A thread for long reads encodes larger batches immediately; their pages count in the limit on
//! reply bytes. If the limit has no room, the watch returns to its position before the batch, and holds no changes
//! while it waits. A commit can span several pages and batches; only the page with its last change has the commit's
//! `id` or `last`.

use std::{collections::VecDeque, io, sync::Arc};

use bytes::Bytes;
use thalweg_engine::{Watch, WatchBatch, WatchChange, WatchError, WatchEvent, WatchLimits};
use thalweg_serving::{
    admission::Reservation,
    app::App,
    limits::{NATIVE_PAGE_BYTES, TAIL_PAGE_BYTES},
    watching::ProgressTimer,
};
use thalweg_types::{
    Durability, Revision,
    limits::{MAX_VALUE_BYTES, MAX_WATCH_QUEUE_BYTES, MAX_WATCH_QUEUE_EVENTS},
};

use crate::{
    call::{Answer, Call},
    describe::{EVENTS, KeyspacePath, LastEvent, NDJSON},
    following::{Follower, Format, NoRoom, WakeReason, resumed},
    json::{push_bytes, push_digits, push_number, push_text},
    pages::Running,
    parse::{WatchQuery, name_segment},
    reading,
    shapes::Change,
};

/// Memory in bytes of the changes that a watch holds while its client does not read, in addition to the page that is
/// being sent.
const HELD_BYTES: usize = MAX_WATCH_QUEUE_BYTES;
const _: () = assert!(HELD_BYTES as u64 <= NATIVE_PAGE_BYTES);
/// Limits of the batches of changes that a watch takes from the engine. For a large commit the limit is higher, because
/// the engine reads the commit from the log again for each part of it.
const LIMITS: WatchLimits =
    WatchLimits { events: MAX_WATCH_QUEUE_EVENTS, bytes: HELD_BYTES, part_bytes: 4 * HELD_BYTES };
/// Factor by which JSON can be longer than the bytes that it represents: a control character takes six.
const MAX_JSON_FACTOR: usize = 6;

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
    // Finding the position in the log reads only one row. Reads of the log itself run on another thread.
    let watch = keyspace.watch(&query.keys, from)?;
    let following = WatchStream {
        follower,
        reported: Revision::ZERO,
        timer: ProgressTimer::new(&app.config, app.db.blocking()),
        watch,
        held: VecDeque::new(),
        held_until: Revision::ZERO,
        format,
        left: query.limit.unwrap_or(u64::MAX),
    };
    Ok(format.reply(following.follower.bulk(), following, step))
}

struct WatchStream {
    follower: Follower,
    watch: Watch,
    /// Changes that were taken from the watch and not sent yet, at most [`HELD_BYTES`].
    held: VecDeque<WatchEvent>,
    /// Revision below which all changes were sent, or are in `held`.
    held_until: Revision,
    format: Format,
    /// Revision below which the client knows that it has missed no change: the one after the last revision that the
    /// server sent to it.
    reported: Revision,
    /// Timer that determines when the server next tells the client up to which revision it has missed no change.
    timer: ProgressTimer,
    left: u64,
}

/// Result of one search for changes of the watched keys.
enum WatchStep {
    /// A page of changes.
    Page(Bytes),
    /// The next page is large, and the limit on unsent bytes of replies has no room for it.
    NoRoom(NoRoom),
    /// The watch has reached a later revision, without a change of its keys.
    Progress,
    /// There are no changes of the watched keys now.
    Nothing,
}

fn step(following: WatchStream) -> Running<WatchStream> {
    Box::pin(async move {
        let mut following = following;
        if following.follower.is_new() {
            let greeting = following.progress();
            return Ok((vec![greeting], Some(following)));
        }
        let (mut is_silent, mut room) = (false, None);
        loop {
            if following.follower.is_over() || following.left == 0 {
                return Ok((Vec::new(), None));
            }
            let (found, returned) = look(following, room.take()).await?;
            following = returned;
            match found {
                Ok(WatchStep::Page(page)) => return Ok((vec![page], Some(following))),
                // The server stops. A client that reconnects resumes after the last change that it received.
                Ok(WatchStep::NoRoom(no_room)) => room = following.follower.room(no_room).await,
                Ok(WatchStep::Progress) => return Ok((vec![following.progress()], Some(following))),
                // The watch has searched for changes after the silence, so its position is up to date.
                Ok(WatchStep::Nothing) if is_silent && following.owes_progress() => {
                    return Ok((vec![following.progress()], Some(following)));
                }
                Ok(WatchStep::Nothing) => {
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

/// Searches for changes: in memory on the current thread, or in the log on a thread for long reads. `room` holds the
/// bytes that are reserved in the limit on unsent bytes of replies, if the watch has waited for them.
async fn look(
    mut following: WatchStream,
    room: Option<Reservation>,
) -> io::Result<(Result<WatchStep, WatchError>, WatchStream)> {
    if !following.held.is_empty() || !following.watch.is_behind() {
        return Ok((following.look(room), following));
    }
    let (app, account) = (Arc::clone(&following.follower.app), Arc::clone(following.follower.account()));
    // The size of the next change is unknown, so the maximum is requested.
    let read = reading::on_reader(&app, &account, MAX_VALUE_BYTES, move || (following.look(room), following));
    read.await.map_err(|error| io::Error::other(error.message.into_owned()))
}

impl WatchStream {
    /// Returns true if the server should tell the client up to which revision it has missed no change. This is so if
    /// the revision has risen and the timer is due, or if nothing was sent for so long that the connection needs a
    /// keepalive.
    fn owes_progress(&self) -> bool {
        let app = &self.follower.app;
        self.watch.position() > self.reported && self.timer.is_due(app.db.blocking())
            || self.timer.silence() >= app.config.tail_keep_alive.0
    }

    /// Returns the next page of the changes in memory, or takes changes from the watch.
    fn look(&mut self, room: Option<Reservation>) -> Result<WatchStep, WatchError> {
        if self.held.is_empty() {
            let Some(WatchBatch { mut events, next }) = self.watch.try_next_within(&LIMITS)? else {
                return Ok(WatchStep::Nothing);
            };
            if events.is_empty() {
                return Ok(WatchStep::Progress);
            }
            self.held_until = next;
            if events.iter().map(WatchEvent::memory).sum::<usize>() > HELD_BYTES {
                return Ok(self.show_all(&events, room));
            }
            // Spare capacity would not be counted in the bytes that are held.
            events.shrink_to_fit();
            self.held = events.into();
        }
        Ok(self.show_held(room))
    }

    /// Returns a page with all events of a large batch, and does not hold the events. If there is no room for the page,
    /// the watch returns to its position before the batch.
    fn show_all(&mut self, events: &[WatchEvent], room: Option<Reservation>) -> WatchStep {
        let shown = usize::try_from(self.left).unwrap_or(usize::MAX).min(events.len());
        let (mut out, level) = (Vec::new(), self.level());
        for (at, event) in events[..shown].iter().enumerate() {
            self.push(&mut out, event, level, self.ends_commit(event, events.get(at + 1)));
        }
        match self.follower.counted(out, room) {
            Ok(page) => {
                self.timer.reported(self.follower.app.db.blocking());
                for (at, event) in events[..shown].iter().enumerate() {
                    self.sent(event, self.ends_commit(event, events.get(at + 1)));
                }
                WatchStep::Page(page)
            }
            Err(no_room) => {
                self.watch.unread();
                WatchStep::NoRoom(no_room)
            }
        }
    }

    /// Returns a page of the changes that the watch holds. A change whose JSON may be large gets a page of its own. If
    /// there is no room for this page, the watch still holds the change.
    fn show_held(&mut self, room: Option<Reservation>) -> WatchStep {
        let (mut out, mut shown, level) = (Vec::new(), 0, self.level());
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        while let Some(event) = self.held.get(shown).filter(|_| shown < most) {
            let is_large = event.memory() * MAX_JSON_FACTOR > TAIL_PAGE_BYTES;
            if shown > 0 && (is_large || out.len() >= TAIL_PAGE_BYTES) {
                break;
            }
            self.push(&mut out, event, level, self.ends_commit(event, self.held.get(shown + 1)));
            shown += 1;
            if is_large {
                break;
            }
        }
        match self.follower.counted(out, room) {
            Ok(page) => {
                self.timer.reported(self.follower.app.db.blocking());
                for _ in 0..shown {
                    let Some(event) = self.held.pop_front() else { break };
                    self.sent(&event, self.ends_commit(&event, self.held.front()));
                }
                if self.held.is_empty() {
                    self.held = VecDeque::new();
                }
                WatchStep::Page(page)
            }
            Err(no_room) => WatchStep::NoRoom(no_room),
        }
    }

    /// Returns the durability level of the changes that were taken from the watch. It is determined after they were
    /// taken, so it is valid for all of them.
    fn level(&self) -> Durability {
        self.follower.app.db.blocking().visible_durability()
    }

    /// Returns true if an event is the last one of its commit. `next` is the event after it; `None` if it was not read
    /// yet.
    fn ends_commit(&self, event: &WatchEvent, next: Option<&WatchEvent>) -> bool {
        next.map_or(self.held_until, |next| next.revision) > event.revision
    }

    /// Appends a change as a server-sent event or as a line.
    fn push(&self, out: &mut Vec<u8>, event: &WatchEvent, level: Durability, ends_commit: bool) {
        match self.format {
            Format::Events => {
                if ends_commit {
                    out.extend_from_slice(b"id: ");
                    push_digits(out, event.revision.0);
                    out.push(b'\n');
                }
                out.extend_from_slice(b"data: ");
                push_change(out, event, level, false);
                out.extend_from_slice(b"\n\n");
            }
            Format::Lines => {
                push_change(out, event, level, ends_commit);
                out.push(b'\n');
            }
        }
    }

    /// Records that a change is in a page for the client.
    fn sent(&mut self, event: &WatchEvent, ends_commit: bool) {
        self.left -= 1;
        if ends_commit {
            self.reported = event.revision.next();
        }
    }

    /// Returns a message with the revision up to which the client missed no change. As a server-sent event, it has this
    /// revision as its id. If the client has the revision already, it is only a comment.
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

/// Appends a change of a key as a JSON object. If `is_last` is true, marks it as the last change of its commit.
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
