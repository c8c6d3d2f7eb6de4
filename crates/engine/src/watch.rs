//! Watches: deliver every change of some keys from a revision on, past or future.
//!
//! Owns: the watches, and their transitions between history and live changes. A watch that begins in the past, or
//! falls behind, reads the log itself (`reader`). A watch that has caught up gets live changes from the dispatcher
//! thread through a bounded queue (`hub`, `queue`, `interval`). Writers never wait for a watch.
//!
//! ```text
//!  log ──► reader of a watch that is behind ──┐
//!   └────► dispatcher ──► index ──► queue ────┴──► watch: batches of whole commits, in order, none missing
//! ```
//! A watch goes from the log to its queue without a gap: it registers first and learns the revision from which on its
//! queue gets changes. It then reads the log up to that revision, and takes later changes from the queue. If the queue
//! becomes full, it ends at some revision, and the watch reads the log from that revision on.
//!
//! Invariant: a watch delivers the changes of its keys in the order of their revisions, all changes of a commit
//! together. [`Watch::position`] is above the revision of every delivered change and not above that of any later one.

use std::{
    future::{self, Future},
    ops::{Bound, ControlFlow},
    sync::Arc,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use thalweg_state::changes::KeyChange;
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
        event::{WatchChange, WatchEvent},
        hub::WatchRegistration,
        interval::KeyInterval,
        queue::{Queue, QueueEnd},
        reader::{ReadEnd, Reader},
    },
};

/// Number of commits that a watch reads from the log at a time while it is behind, whether or not they change its
/// keys. This and the limit on bytes bound the time of one call.
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
    /// Events in order. All events of a commit are in one batch. Empty if none of the changes that were read is of an
    /// observed key.
    pub events: Vec<WatchEvent>,
    /// Revision below which all changes have been delivered: a new watch from this revision on continues without a
    /// gap.
    pub next: Revision,
}

/// A watch on keys of a keyspace; see [`Keyspace::watch`](crate::Keyspace::watch).
#[derive(Debug)]
pub struct Watch {
    db: Database,
    keyspace: KeyspaceId,
    interval: KeyInterval,
    next: Revision,
    live: Option<WatchRegistration>,
    /// Reader of the log, while the watch is behind live changes; `None` otherwise.
    reader: Option<Reader>,
    /// True if the last delivered event was the deletion of all keys, which also happens when the keyspace is dropped.
    cleared: bool,
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
        let mut watch = Self { db: db.clone(), keyspace, interval, next, live: None, reader: None, cleared: false };
        watch.check_keyspace()?;
        if next == now {
            let live = hub.register(keyspace, &watch.interval)?;
            if from.is_none() {
                watch.next = next.max(live.joined.next());
            }
            watch.live = Some(live);
        } else {
            // Fail immediately if the log does not reach back that far.
            watch.reader = Some(Reader::open(hub.source(), next)?);
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
        self.live.as_ref().is_none_or(|live| live.joined >= self.next)
    }

    /// Returns the available events; `None` if all have been delivered. May read from disk if the watch [is
    /// behind](Self::is_behind). In that case it returns a batch after some time even if none of the changes read is
    /// of an observed key.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] if the watch was so far behind that the log no longer has the changes. After an error
    /// the watch has ended; [`position`](Self::position) is the revision that it had reached.
    pub fn try_next(&mut self) -> Result<Option<WatchBatch>, WatchError> {
        loop {
            let hub = &self.db.inner.open.watches;
            if hub.is_closed() {
                return Err(WatchError::Closed);
            }
            match &self.live {
                Some(live) if live.joined < self.next => {
                    self.reader = None;
                    let dispatched = hub.dispatched();
                    let (mut events, ended) = live.queue.take();
                    events.retain(|event| event.revision >= self.next);
                    // A lost queue contains all earlier changes and none of the later ones.
                    let reached = match ended {
                        None => dispatched.next(),
                        Some(QueueEnd::Lost(revision)) => revision,
                        Some(QueueEnd::Failed(_)) => self.next,
                    };
                    let last = events.last().map_or(self.next, |event| event.revision.next());
                    self.next = self.next.max(reached).max(last);
                    match ended {
                        Some(QueueEnd::Failed(error)) if events.is_empty() => return Err(error),
                        Some(QueueEnd::Lost(_)) => self.live = None,
                        _ => {}
                    }
                    if let Some(last) = events.last() {
                        self.cleared = last.change == WatchChange::DeletePrefix && last.key.is_empty();
                        return Ok(Some(WatchBatch { events, next: self.next }));
                    }
                    if self.live.is_some() {
                        // A drop of the keyspace is reported as the deletion of all keys; the end of the watch
                        // follows.
                        if self.cleared || dispatched >= hub.source().machine.applied().revision {
                            self.check_keyspace()?;
                        }
                        return Ok(None);
                    }
                }
                _ => {
                    let batch = self.read_history()?;
                    if !batch.events.is_empty() || self.reader.is_some() {
                        return Ok(Some(batch));
                    }
                }
            }
        }
    }

    /// Reads further changes from the log. At the end of the log it registers the watch with the dispatcher, and drops
    /// the reader if that leaves no gap.
    fn read_history(&mut self) -> Result<WatchBatch, WatchError> {
        self.check_keyspace()?;
        let hub = &self.db.inner.open.watches;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(Reader::open(hub.source(), self.next)?),
        };
        let mut page = Page { keyspace: self.keyspace, interval: &self.interval, events: Vec::new(), bytes: 0 };
        let (mut commits, mut bytes) = (0, 0);
        let reached = reader.read(&mut |time, commit| {
            commits += 1;
            bytes += commit.bytes;
            let visited = commit.visit(&mut |change| page.add(&change, commit.revision, time));
            visited.map_err(|error| ReadError::Corrupt(error.to_string()))?;
            let full = commits >= PAGE_COMMITS || bytes >= PAGE_BYTES || page.is_full();
            Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let events = page.events;
        self.next = self.next.max(reader.done().next());
        if reached == ReadEnd::End {
            let live = match &mut self.live {
                Some(live) => live,
                none => none.insert(hub.register(self.keyspace, &self.interval)?),
            };
            if live.joined < self.next {
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

    fn check_keyspace(&self) -> Result<(), WatchError> {
        match self.db.inner.open.machine.keyspace_name(self.keyspace) {
            Some(_) => Ok(()),
            None => Err(WatchError::NoSuchKeyspace(self.keyspace)),
        }
    }
}

/// Events that a watch has read from the log in one step: at most as many as a queue would hold, or those of one
/// commit.
struct Page<'a> {
    keyspace: KeyspaceId,
    interval: &'a KeyInterval,
    events: Vec<WatchEvent>,
    bytes: usize,
}

impl Page<'_> {
    fn add(&mut self, change: &KeyChange<'_>, revision: Revision, time: SpaceTime) {
        let (keyspace, key) = change.target();
        let wanted = keyspace == self.keyspace
            && match change {
                KeyChange::DeletePrefix { .. } => self.interval.meets_prefix(key),
                _ => self.interval.contains(key),
            };
        if wanted {
            let event = WatchEvent::of(change, revision, time);
            self.bytes += event.memory();
            self.events.push(event);
        }
    }

    fn is_full(&self) -> bool {
        self.events.len() >= MAX_WATCH_QUEUE_EVENTS || self.bytes >= MAX_WATCH_QUEUE_BYTES
    }
}
