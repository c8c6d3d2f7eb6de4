//! Watches: deliver every change of some keys from a revision on, past or future.
//!
//! Owns: the watches, and their transitions between history and live changes. A watch that begins in the past, or falls
//! behind, reads the log itself (`reader`). A watch that has caught up gets live changes from the dispatcher thread
//! through a bounded queue (`hub`, `queue`, `interval`). Writers never wait for a watch.
//!
//! ```text
//!  log ──► reader of a watch that is behind ──┐
//!   └────► dispatcher ──► index ──► queue ────┴──► watch: batches of whole commits, in order, none missing
//! ```
//! A watch goes from the log to its queue without a gap: it first registers, and learns the revision from which its
//! queue gets changes. It then reads the log up to that revision, and takes later changes from the queue. If the queue
//! becomes full, the queue ends at some revision, and the watch reads the log from that revision on.
//!
//! Between two calls, a watch that is behind holds only a position. It keeps no bytes and no segment of the log.
//!
//! Invariant: a watch delivers the changes of its keys in the order of their revisions, all changes of a commit
//! together, unless its caller permits parts of large commits ([`WatchLimits::part_bytes`]). [`Watch::position`] is
//! above the revision of every commit that was delivered completely, and not above that of any later change.

use std::{
    future::{self, Future},
    ops::Bound,
    sync::Arc,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use thalweg_state::changes::{EntryCommit, KeyChange};
use thalweg_types::{
    KeyspaceId, Revision, SpaceTime,
    limits::{MAX_WATCH_QUEUE_BYTES, MAX_WATCH_QUEUE_EVENTS},
};

use crate::{
    database::Database,
    error::ReadError,
    tails::Waiter,
    watches::{
        error::WatchError,
        event::WatchEvent,
        hub::WatchRegistration,
        interval::KeyInterval,
        queue::{Queue, QueueEnd, TakenEvents},
        reader::{ReadEnd, Reader, ReaderPosition, Visited},
    },
};

/// Number of commits that a watch reads from the log at a time while it is behind, including commits without its keys.
/// This and the limit on bytes bound the time of one call.
const PAGE_COMMITS: usize = 16 * 1024;
const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Selection of the keys of one keyspace that a watch observes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchKeys {
    /// The watch observes a single key.
    Key(Vec<u8>),
    /// The watch observes all keys that begin with a prefix; the empty prefix selects all keys.
    Prefix(Vec<u8>),
    /// The watch observes all keys between two bounds.
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl WatchKeys {
    fn interval(&self) -> KeyInterval {
        match self {
            Self::Key(key) => KeyInterval::of_key(key),
            Self::Prefix(prefix) => KeyInterval::of_prefix(prefix),
            Self::Range(start, end) => {
                KeyInterval::of_bounds(start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice))
            }
        }
    }
}

/// A batch of events from a watch, and the revision that the watch has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchBatch {
    /// Events in order. All events of a commit are in one batch, unless the caller permits
    /// [parts](WatchLimits::part_bytes). Empty if the changes that were read concern no observed key.
    pub events: Vec<WatchEvent>,
    /// Revision below which all changes have been delivered: a new watch from this revision on continues without a gap.
    /// If the batch ends within a commit, this is the commit's revision, and the new watch delivers the whole commit.
    pub next: Revision,
}

/// Limits of one batch of a watch. A batch holds at least one commit, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchLimits {
    /// Maximum number of events of a batch with several commits.
    pub events: usize,
    /// Maximum [memory](WatchEvent::memory) in bytes of the events of a batch with several commits.
    pub bytes: usize,
    /// Memory in bytes of the events above which a single commit is delivered in several batches. Each of these batches
    /// has at least one event. `usize::MAX` keeps all commits whole.
    pub part_bytes: usize,
}

impl Default for WatchLimits {
    /// Returns the limits of a watch's queue, with whole commits.
    fn default() -> Self {
        Self { events: MAX_WATCH_QUEUE_EVENTS, bytes: MAX_WATCH_QUEUE_BYTES, part_bytes: usize::MAX }
    }
}

/// A watch on keys of a keyspace; see [`Keyspace::watch`](crate::Keyspace::watch).
#[derive(Debug)]
pub struct Watch {
    db: Database,
    keyspace: KeyspaceId,
    interval: KeyInterval,
    next: Revision,
    /// Number of events already delivered of the commit with the revision `next`; 0 unless it is partly delivered.
    delivered: usize,
    live: Option<WatchRegistration>,
    /// Reader of the log while the watch is behind live changes, else `None`. It holds no buffers between two calls.
    reader: Option<Reader>,
    /// Position before the last batch if that batch was read from the log; `None` otherwise.
    before: Option<PreviousPosition>,
    /// True if the last delivered event was the deletion of all keys, which also happens when the keyspace is dropped.
    cleared: bool,
}

/// Position of a watch before it read a batch from the log.
#[derive(Clone, Copy, Debug)]
struct PreviousPosition {
    next: Revision,
    delivered: usize,
    reader: ReaderPosition,
}

impl Watch {
    /// Creates a watch. `from` is the first revision whose changes it delivers; `None` means the next revision.
    pub(crate) fn new(
        db: &Database,
        keyspace: KeyspaceId,
        keys: &WatchKeys,
        from: Option<Revision>,
    ) -> Result<Self, WatchError> {
        let hub = &db.inner.open.watches;
        let now = hub.source().machine.applied().revision.next();
        let next = from.unwrap_or(now).max(Revision(1));
        if next > now {
            return Err(WatchError::BeyondEnd { requested: next, next: now });
        }
        let interval = keys.interval();
        let db = db.clone();
        let (delivered, live, reader, before, cleared) = (0, None, None, None, false);
        let mut watch = Self { db, keyspace, interval, next, delivered, live, reader, before, cleared };
        watch.check_keyspace()?;
        let hub = &watch.db.inner.open.watches;
        if next == now {
            let live = hub.register(keyspace, &watch.interval)?;
            if let (None, Some(joined)) = (from, live.joined()) {
                watch.next = next.max(joined.next());
            }
            watch.live = Some(live);
        } else {
            // A revision that the log no longer has is an error at once.
            let mut reader = Reader::open(hub.source(), next)?;
            reader.rest();
            watch.reader = Some(reader);
        }
        Ok(watch)
    }

    /// Returns the first revision whose changes have not been delivered. A later watch can continue at this revision.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.next
    }

    /// Returns true if the next call of [`try_next`](Self::try_next) may read the log from disk.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        match self.source() {
            ChangeSource::Log => true,
            ChangeSource::Queue => self.live.as_ref().is_some_and(|live| live.queue.is_lost()),
            ChangeSource::Joining => false,
        }
    }

    fn source(&self) -> ChangeSource {
        match self.live.as_ref().map(WatchRegistration::joined) {
            Some(None) => ChangeSource::Joining,
            // The queue holds whole commits, so the rest of a partly delivered commit is read from the log.
            Some(Some(joined)) if joined < self.next && self.delivered == 0 => ChangeSource::Queue,
            _ => ChangeSource::Log,
        }
    }

    /// Returns the available events; `None` if all have been delivered. May read from disk only if the watch [is
    /// behind](Self::is_behind). In that case it returns an empty batch after some time if the changes read concern no
    /// observed key. The batch is also empty if the watch has fallen behind since the last call of `is_behind`.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] if the watch was so far behind that the log no longer has the changes. After an error
    /// the watch has ended; [`position`](Self::position) is the revision that it had reached.
    pub fn try_next(&mut self) -> Result<Option<WatchBatch>, WatchError> {
        self.try_next_within(&WatchLimits::default())
    }

    /// Returns the available events like [`try_next`](Self::try_next), within the given limits.
    ///
    /// # Errors
    /// The errors of [`try_next`](Self::try_next).
    pub fn try_next_within(&mut self, limits: &WatchLimits) -> Result<Option<WatchBatch>, WatchError> {
        self.before = None;
        let may_read = self.is_behind();
        loop {
            let hub = &self.db.inner.open.watches;
            if hub.is_closed() {
                return Err(WatchError::Closed);
            }
            match (&self.live, self.source()) {
                (Some(live), ChangeSource::Queue) => {
                    self.reader = None;
                    let dispatched = hub.dispatched();
                    let TakenEvents { mut events, is_emptied, ended } = live.queue.take(limits.events, limits.bytes);
                    events.retain(|event| event.revision >= self.next);
                    // A lost queue contained all changes before the end of the queue and none after it.
                    let reached = match ended {
                        None if is_emptied => dispatched.next(),
                        None | Some(QueueEnd::Failed(_)) => self.next,
                        Some(QueueEnd::Lost(revision)) => revision,
                    };
                    let last = events.last().map_or(self.next, |event| event.revision.next());
                    self.next = self.next.max(reached).max(last);
                    match ended {
                        Some(QueueEnd::Failed(error)) if events.is_empty() => return Err(error),
                        Some(QueueEnd::Lost(_)) => {
                            self.live = None;
                            // The queue was lost after the caller had chosen its thread. This thread must not read the
                            // log.
                            if events.is_empty() && !may_read {
                                return Ok(Some(WatchBatch { events, next: self.next }));
                            }
                        }
                        _ => {}
                    }
                    if let Some(last) = events.last() {
                        self.cleared = last.deletes_all_keys();
                        return Ok(Some(WatchBatch { events, next: self.next }));
                    }
                    if self.live.is_some() && is_emptied {
                        // A drop of the keyspace first appears as the deletion of all keys. Then the watch ends.
                        if self.cleared || dispatched >= hub.source().machine.applied().revision {
                            self.check_keyspace()?;
                        }
                        return Ok(None);
                    }
                }
                (Some(live), ChangeSource::Joining) => {
                    // The dispatcher wakes the watch once it has registered the watch.
                    return match live.queue.failure() {
                        Some(error) => Err(error),
                        None => Ok(None),
                    };
                }
                _ => {
                    let batch = self.read_history(limits).map_err(|error| self.explain(error))?;
                    if !batch.events.is_empty() || self.is_behind() {
                        return Ok(Some(batch));
                    }
                }
            }
        }
    }

    /// Returns to the position before the last batch, if that batch was read from the log, so that the next call reads
    /// it again. Meant for a caller without memory for the batch. Has no effect on a batch of live changes.
    pub fn unread(&mut self) {
        if let Some(PreviousPosition { next, delivered, reader }) = self.before.take() {
            (self.next, self.delivered) = (next, delivered);
            self.reader = Some(Reader::resting(self.db.inner.open.watches.source(), reader));
        }
    }

    /// Reads further changes from the log. At the end of the log, registers the watch with the dispatcher, and drops
    /// the reader if that leaves no gap. If the keyspace was dropped in the meantime, the watch still delivers its
    /// changes up to the drop, and then ends.
    fn read_history(&mut self, limits: &WatchLimits) -> Result<WatchBatch, WatchError> {
        let hub = &self.db.inner.open.watches;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(Reader::open(hub.source(), self.next)?),
        };
        self.before = Some(PreviousPosition { next: self.next, delivered: self.delivered, reader: reader.position() });
        let mut page = Page::new(self.keyspace, &self.interval, limits, (self.next, self.delivered));
        let (mut commits, mut bytes) = (0, 0);
        let reached = reader.read(&mut |time, commit| {
            if page.add(commit, time)? == Visited::NotYet {
                return Ok(Visited::NotYet);
            }
            commits += 1;
            bytes += commit.bytes;
            let full = commits >= PAGE_COMMITS || bytes >= PAGE_BYTES || page.is_full();
            Ok(if full { Visited::Last } else { Visited::Continue })
        })?;
        let Page { events, cut_at, .. } = page;
        self.next = self.next.max(reader.done().next());
        self.delivered = cut_at.unwrap_or(0);
        self.cleared = events.last().map_or(self.cleared, WatchEvent::deletes_all_keys);
        reader.rest();
        if reached == ReadEnd::End {
            let live = match &mut self.live {
                Some(live) => live,
                none => none.insert(hub.register(self.keyspace, &self.interval)?),
            };
            if live.joined().is_some_and(|joined| joined < self.next) {
                self.reader = None;
            }
        }
        Ok(WatchBatch { events, next: self.next })
    }

    /// Blocks until events are available or the timeout passes. After the timeout the batch is empty and only reports
    /// the revision reached.
    ///
    /// # Errors
    /// The errors of [`try_next`](Self::try_next).
    pub fn next_batch(&mut self, timeout: Duration) -> Result<WatchBatch, WatchError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(batch) = self.try_next()? {
                return Ok(batch);
            }
            if let Some(live) = &self.live {
                live.queue.set_waiter(Waiter::Thread(thread::current()));
                if !live.queue.is_quiet() {
                    continue;
                }
            }
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => {
                    return Ok(self.try_next()?.unwrap_or(WatchBatch { events: Vec::new(), next: self.next }));
                }
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }

    /// Resolves when [`try_next`](Self::try_next) has a result. The future has no timeout: race it against a timer of
    /// the caller. It may be dropped at any time.
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let queue: Option<Arc<Queue>> = self.live.as_ref().map(|live| Arc::clone(&live.queue));
        future::poll_fn(move |context| {
            let Some(queue) = &queue else { return Poll::Ready(()) };
            queue.set_waiter(Waiter::Task(context.waker().clone()));
            if queue.is_quiet() { Poll::Pending } else { Poll::Ready(()) }
        })
    }

    /// Returns the error that ends the watch after a failed read of the log. If the keyspace is gone too, the error
    /// says so, because the client cannot watch the keyspace from a later revision.
    fn explain(&self, error: WatchError) -> WatchError {
        match self.check_keyspace() {
            Err(dropped) if matches!(error, WatchError::Compacted { .. }) => dropped,
            _ => error,
        }
    }

    fn check_keyspace(&self) -> Result<(), WatchError> {
        match self.db.inner.open.machine.keyspace_name(self.keyspace) {
            Some(_) => Ok(()),
            None => Err(WatchError::NoSuchKeyspace(self.keyspace)),
        }
    }
}

/// Source from which a watch gets its next changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeSource {
    /// The watch reads the log.
    Log,
    /// The watch waits until the dispatcher has registered it.
    Joining,
    /// The watch takes the changes that the dispatcher has queued.
    Queue,
}

/// Events that a watch has read from the log in one step.
struct Page<'a> {
    keyspace: KeyspaceId,
    interval: &'a KeyInterval,
    limits: &'a WatchLimits,
    /// Revision of a commit that is partly delivered, and the number of its events that were already delivered.
    delivered: (Revision, usize),
    events: Vec<WatchEvent>,
    bytes: usize,
    /// Number of events of the page's last commit that were delivered; `None` if the page has that commit completely.
    cut_at: Option<usize>,
}

impl<'a> Page<'a> {
    fn new(
        keyspace: KeyspaceId,
        interval: &'a KeyInterval,
        limits: &'a WatchLimits,
        delivered: (Revision, usize),
    ) -> Self {
        Self { keyspace, interval, limits, delivered, events: Vec::new(), bytes: 0, cut_at: None }
    }

    /// Adds the events of a commit. Returns [`Visited::NotYet`] if the page ends before this commit or within it.
    fn add(&mut self, commit: &EntryCommit<'_>, time: SpaceTime) -> Result<Visited, WatchError> {
        let (events_before, bytes_before) = (self.events.len(), self.bytes);
        let delivered = if self.delivered.0 == commit.revision { self.delivered.1 } else { 0 };
        let (mut number, mut is_over) = (0, false);
        let visited = commit.visit(&mut |change| {
            if is_over || !self.wants(&change) {
                return;
            }
            number += 1;
            if number <= delivered {
                return;
            }
            let bytes = self.bytes + WatchEvent::memory_of(&change);
            if events_before > 0 && (bytes > self.limits.bytes || self.events.len() >= self.limits.events) {
                is_over = true;
            } else if !self.events.is_empty() && bytes > self.limits.part_bytes {
                (is_over, self.cut_at) = (true, Some(number - 1));
            } else {
                self.bytes = bytes;
                self.events.push(WatchEvent::of(&change, commit.revision, time));
            }
        });
        visited.map_err(|error| ReadError::Corrupt(error.to_string()))?;
        if is_over && self.cut_at.is_none() {
            self.events.truncate(events_before);
            self.bytes = bytes_before;
        }
        Ok(if is_over { Visited::NotYet } else { Visited::Continue })
    }

    fn wants(&self, change: &KeyChange<'_>) -> bool {
        let (keyspace, key) = change.target();
        keyspace == self.keyspace
            && match change {
                KeyChange::DeletePrefix { .. } => self.interval.meets_prefix(key),
                _ => self.interval.contains(key),
            }
    }

    fn is_full(&self) -> bool {
        self.events.len() >= self.limits.events || self.bytes >= self.limits.bytes
    }
}
