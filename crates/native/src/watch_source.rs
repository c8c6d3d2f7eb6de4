//! Watches: subscriptions to the changes of keys. Each step sends one batch of changes.
//!
//! Owns: the position of a watch, and the frames of its changes. Does not own: credit and limits (`subscription`).
//!
//! Bounds: a step takes one batch, of at most [`NATIVE_PAGE_BYTES`] and of about as many changes as the client's credit
//! permits. A larger batch contains a single commit, or a part of one, and counts in the limit on reply bytes. If the
//! limit has no room, the watch returns to its position before the batch, and holds no changes while it waits.

use std::sync::Arc;

use thalweg_engine::{WatchBatch, WatchChange, WatchError, WatchEvent, WatchLimits};
use thalweg_serving::{app::App, limits::NATIVE_PAGE_BYTES, watching::ProgressTimer};
use thalweg_types::{
    Durability, Revision,
    limits::{MAX_VALUE_BYTES, MAX_WATCH_QUEUE_BYTES, MAX_WATCH_QUEUE_EVENTS},
};
use thalweg_wire::{Change, ChangeKind, Changes, HEADER_BYTES, List};

use super::{
    blocking::run_blocking,
    failure::{self, Failure},
    replies::{FrameMemory, Replies},
    step::{StepLimits, StepResult, WhenEmpty},
};

/// Number of bytes of a change in addition to its key and value: kind, revision, time, two lengths.
const CHANGE_HEAD_BYTES: usize = 1 + 8 + 8 + 4 + 4;
/// Number of bytes of a `changes` frame in addition to the changes: durability, next revision, number of changes.
const CHANGES_HEAD_BYTES: usize = 1 + 8 + 4;

/// Size in bytes of a commit's changes above which the commit is sent in several parts. A part is larger than a batch
/// with several commits, because each part reads the commit from the log again.
const PART_BYTES: usize = 4 * MAX_WATCH_QUEUE_BYTES;
const _: () = assert!(MAX_WATCH_QUEUE_BYTES as u64 <= NATIVE_PAGE_BYTES);

/// A watch of keys. It produces the frames of a subscription.
#[derive(Debug)]
pub(crate) struct WatchSource {
    app: Arc<App>,
    /// The engine's watch, which reads the changes. `None` only while another thread reads from it.
    watch: Option<thalweg_engine::Watch>,
    /// Revision below which the server has sent all changes of the watched keys to the client.
    reported: Revision,
    /// Revision below which the watch has read all changes of the watched keys.
    position: Revision,
    /// Timer that determines when the server next tells the client how far the watch has come.
    timer: ProgressTimer,
}

impl WatchSource {
    /// Creates a watch that delivers changes from the revision `next` on.
    #[must_use]
    pub(crate) fn new(app: &Arc<App>, watch: thalweg_engine::Watch, next: Revision) -> Self {
        let timer = ProgressTimer::new(&app.config, app.db.blocking());
        Self { app: Arc::clone(app), watch: Some(watch), reported: next, position: next, timer }
    }

    /// Returns the revision at which a later watch of the client can resume. The server has sent all changes below this
    /// revision.
    #[must_use]
    pub(crate) fn next(&self) -> Revision {
        self.reported
    }

    /// Waits for changes of the watched keys, and returns them as the subscription's next frame. If there are no
    /// changes for a while, returns a frame that states only the revision reached.
    pub(crate) async fn step(&mut self, wanted: StepLimits) -> StepResult {
        let (mut has_waited, mut room) = (false, None);
        loop {
            match self.look(&wanted).await {
                Err(failure) => return StepResult::Ended(failure),
                Ok(Some(batch)) if batch.events.is_empty() => return self.progress(),
                Ok(Some(batch)) => {
                    let bytes = frame_bytes(&batch.events);
                    match room.take().or_else(|| wanted.room_for(bytes)) {
                        Some(room) => return self.show(batch, &wanted, room),
                        None => {
                            // The batch is dropped, and read again when there is memory for it.
                            drop(batch);
                            self.unread();
                            // A step that is stopped still sends the changes that it has found.
                            room = Some(wanted.wait_for_room(bytes).await.unwrap_or(FrameMemory::Exceed));
                            continue;
                        }
                    }
                }
                Ok(None) if wanted.when_empty == WhenEmpty::Return => return StepResult::Nothing,
                // The watch has searched for changes after the wait, so its position is up to date.
                Ok(None) if has_waited && self.owes_progress() => return self.progress(),
                // The reservation is released while the watch waits for changes.
                Ok(None) => room = None,
            }
            let Some(watch) = &self.watch else { return StepResult::Ended(failure::stopping()) };
            tokio::select! {
                biased;
                () = wanted.stop.notified() => return StepResult::Nothing,
                () = watch.ready() => {}
                () = tokio::time::sleep(self.timer.pause()) => has_waited = true,
            }
        }
    }

    /// Returns the engine's next batch of changes; `None` if there are none now. Changes in the queue are taken
    /// immediately. Reads of the log run on a thread that may block.
    async fn look(&mut self, wanted: &StepLimits) -> Result<Option<WatchBatch>, Failure> {
        let Some(mut watch) = self.watch.take() else { return Err(failure::stopping()) };
        let limits = limits_of(wanted);
        let (found, watch) = if watch.is_behind() {
            // The size of the next change is unknown, so the maximum is requested.
            let read = move || Ok((watch.try_next_within(&limits), watch));
            run_blocking(&self.app, &wanted.account, MAX_VALUE_BYTES, read).await?
        } else {
            (watch.try_next_within(&limits), watch)
        };
        self.position = watch.position();
        self.watch = Some(watch);
        match found {
            Ok(batch) => Ok(batch),
            // The client gets the same failure as from a stopping server.
            Err(WatchError::Closed) => Err(failure::stopping()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves the watch back to its position before the last batch of changes, so that it reads the batch again.
    fn unread(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.unread();
            self.position = watch.position();
        }
    }

    fn owes_progress(&self) -> bool {
        self.position > self.reported && self.timer.is_due(self.app.db.blocking())
    }

    /// Returns a frame without changes. It tells the client that no change was missed up to the watch's position.
    fn progress(&mut self) -> StepResult {
        self.reported = self.position;
        self.timer.reported(self.app.db.blocking());
        let (next, durability) = (self.position, self.app.db.blocking().visible_durability());
        StepResult::frame(0, 0, move |out, id| out.push(id, &Changes { durability, next, changes: List::default() }))
    }

    fn show(&mut self, batch: WatchBatch, wanted: &StepLimits, room: FrameMemory) -> StepResult {
        let WatchBatch { mut events, mut next } = batch;
        let limit = usize::try_from(wanted.max_messages).unwrap_or(usize::MAX);
        if events.len() > limit {
            // If the client resumes at `next`, it gets the removed changes again, with the whole of their commit.
            next = events[limit].revision;
            events.truncate(limit);
        }
        self.reported = next;
        self.timer.reported(self.app.db.blocking());
        // The durability is determined after the changes were taken, so it is valid for all of them.
        let durability = self.app.db.blocking().visible_durability();
        let bytes = events.iter().map(|event| (event.key.len() + value(event).len()) as u64).sum();
        let max = wanted.max_frame_bytes;
        StepResult::frame(events.len() as u64, bytes, move |out, id| put(out, id, durability, next, &events, max, room))
    }
}

/// Returns the limits of the next batch of changes. A single commit may exceed the client's credit.
fn limits_of(wanted: &StepLimits) -> WatchLimits {
    let at_most = |credit: u64, most: usize| usize::try_from(credit).unwrap_or(most).clamp(1, most);
    let (credit_messages, credit_bytes) = wanted.credit;
    WatchLimits {
        events: at_most(credit_messages.min(wanted.max_messages), MAX_WATCH_QUEUE_EVENTS),
        bytes: at_most(credit_bytes, MAX_WATCH_QUEUE_BYTES),
        part_bytes: PART_BYTES,
    }
}

/// Returns the size of the frames with these changes, including the heads of the maximum number of frames.
fn frame_bytes(events: &[WatchEvent]) -> u64 {
    let changes: usize = events.iter().map(|event| event.key.len() + value(event).len()).sum();
    (changes + events.len() * (CHANGE_HEAD_BYTES + HEADER_BYTES + CHANGES_HEAD_BYTES)) as u64
}

/// Puts changes into the outbox, in as few frames as the client's maximum frame size permits. If a commit spans several
/// frames, `next` in all but the last is the commit's own revision. So a client that reconnects in between gets the
/// whole commit again. The frames share the reservation `room`.
fn put(
    out: &mut Replies,
    id: u32,
    durability: Durability,
    next: Revision,
    events: &[WatchEvent],
    max_frame_bytes: usize,
    mut room: FrameMemory,
) -> Result<(), Failure> {
    let mut rest = events;
    while !rest.is_empty() {
        let fits = changes_that_fit(rest, max_frame_bytes);
        let (now, later) = rest.split_at(fits);
        let changes: Vec<_> = now.iter().map(change).collect();
        let next = later.first().map_or(next, |event| event.revision);
        let bytes = HEADER_BYTES + CHANGES_HEAD_BYTES + now.iter().map(change_bytes).sum::<usize>();
        let frame = Changes { durability, next, changes: List::Items(&changes) };
        out.push_reserved(id, &frame, room.split_off(bytes))?;
        rest = later;
    }
    Ok(())
}

/// Returns the number of changes for one frame: whole commits, if at least one fits. Otherwise as many changes of the
/// first commit as fit, at least one.
fn changes_that_fit(events: &[WatchEvent], max_frame_bytes: usize) -> usize {
    let (mut bytes, mut whole) = (CHANGES_HEAD_BYTES, 0);
    for (at, event) in events.iter().enumerate() {
        bytes += change_bytes(event);
        if bytes > max_frame_bytes {
            return if whole > 0 { whole } else { at.max(1) };
        }
        if events.get(at + 1).is_none_or(|next| next.revision != event.revision) {
            whole = at + 1;
        }
    }
    events.len()
}

fn change_bytes(event: &WatchEvent) -> usize {
    CHANGE_HEAD_BYTES + event.key.len() + value(event).len()
}

fn value(event: &WatchEvent) -> &[u8] {
    match &event.change {
        WatchChange::Put(value) => value,
        _ => &[],
    }
}

fn change(event: &WatchEvent) -> Change<'_> {
    let kind = match event.change {
        WatchChange::Put(_) => ChangeKind::Put,
        WatchChange::Delete => ChangeKind::Delete,
        WatchChange::Expire => ChangeKind::Expire,
        WatchChange::DeletePrefix => ChangeKind::DeletePrefix,
    };
    Change { kind, revision: event.revision, time: event.time, key: &event.key, value: value(event) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use thalweg_serving::admission::{AddressKey, Admission, Resource};
    use thalweg_types::SpaceTime;

    fn event(revision: u64, value_bytes: usize) -> WatchEvent {
        let change = WatchChange::Put(Bytes::from(vec![0; value_bytes]));
        WatchEvent { revision: Revision(revision), time: SpaceTime(1), key: Bytes::from_static(b"key"), change }
    }

    #[test]
    fn frames_of_changes_are_counted_once() {
        const VALUE: usize = 300 << 10;
        let mut config = thalweg_serving::config::Config::default();
        (config.max_reply_bytes_in_flight.0, config.share_reserve_percent) = (1 << 20, 0);
        let admission = Admission::new(&config);
        let account = admission.account(AddressKey::LOCAL);
        // This memory is sufficient for the changes once, but not twice.
        let room = FrameMemory::Reserved(account.take(Resource::ReplyBytes, 700 << 10).unwrap());
        let mut out = Replies::new(512 << 10, Arc::clone(&account));
        let events = [event(5, VALUE), event(6, VALUE)];
        put(&mut out, 1, Durability::Disk, Revision(7), &events, 512 << 10, room).unwrap();
        assert_eq!(admission.bound(Resource::ReplyBytes).used(), out.len() as u64);
        assert!(out.len() > 2 * VALUE);
        drop(out);
        assert_eq!(admission.bound(Resource::ReplyBytes).used(), 0);
    }

    #[test]
    fn commits_stay_together_where_they_fit() {
        let each = CHANGE_HEAD_BYTES + 3 + 100;
        let head = CHANGES_HEAD_BYTES;
        let events = [event(5, 100), event(6, 100), event(6, 100), event(7, 100)];
        assert_eq!(changes_that_fit(&events, head + 4 * each), 4);
        assert_eq!(changes_that_fit(&events, head + 3 * each), 3);
        assert_eq!(changes_that_fit(&events, head + 2 * each), 1, "6 is not split for half a frame");
        assert_eq!(changes_that_fit(&events[1..], head + each), 1, "but it is if it must");
        assert_eq!(changes_that_fit(&events, 10), 1, "at least one");
    }
}
