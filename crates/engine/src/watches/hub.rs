//! Registered watches, and the dispatcher thread that feeds them.
//!
//! One dispatcher thread reads the log behind the applying thread, whatever the number of watches, and finds the
//! interested watches in an index. The applying thread only wakes the dispatcher, and at most once per [`LINGER`]:
//! after some work the dispatcher looks again before it sleeps. Without watches no thread does any work, and the
//! applying thread pays one atomic load.
//!
//! Invariant: all changes up to the revision [`Hub::dispatched`] are in the queues of the watches that were
//! registered.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::{self, JoinHandle, Thread},
    time::Duration,
};

use thalweg_state::changes::{EntryCommit, KeyChange};
use thalweg_types::{KeyspaceId, Revision, SpaceTime, limits::MAX_WATCHES};

use crate::open_parts::Mode;
use crate::watches::{
    error::WatchError,
    event::WatchEvent,
    interval::{IntervalIndex, KeyInterval},
    queue::{PushResult, Queue, QueueEnd},
    reader::{ReadEnd, Reader, Source, Visited},
};

/// Time for which the dispatcher pauses after a round that found changes, so that further changes gather.
const LINGER: Duration = Duration::from_millis(1);
/// Longest sleep of the dispatcher. It bounds the delay that a missed wake-up can cause.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// Number of commits after which a round of the dispatcher pauses, so that watches can register. It also pauses after
/// [`ROUND_BYTES`] of commits.
const ROUND_COMMITS: usize = 4096;
const ROUND_BYTES: usize = 4 * 1024 * 1024;

/// State that the applying thread, the dispatcher and the watches share.
pub(crate) struct Hub {
    source: Source,
    mode: Mode,
    watching: AtomicUsize,
    /// True while the dispatcher sleeps and must be woken to notice changes.
    idle: AtomicBool,
    closed: AtomicBool,
    dispatched: AtomicU64,
    queued_bytes: Arc<AtomicUsize>,
    max_queued_bytes: usize,
    registry: Mutex<Registry>,
    dispatcher: Mutex<Option<(Thread, JoinHandle<()>)>>,
    /// Handle of the dispatcher's thread, by which the applying thread wakes it.
    sleeper: std::sync::OnceLock<Thread>,
}

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    watches: HashMap<u64, Registered>,
    indexes: HashMap<KeyspaceId, IntervalIndex>,
    /// Keyspaces whose index of watched intervals is out of date.
    changed: HashSet<KeyspaceId>,
    /// The dispatcher's position in the log; `None` while there are no watches.
    reader: Option<Reader>,
}

#[derive(Debug)]
struct Registered {
    keyspace: KeyspaceId,
    interval: KeyInterval,
    queue: Arc<Queue>,
}

/// Registration of a watch with the dispatcher. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct WatchRegistration {
    hub: Arc<Hub>,
    id: u64,
    pub(crate) queue: Arc<Queue>,
    /// Revision after which the queue receives changes.
    joined: Revision,
}

impl WatchRegistration {
    /// Returns the revision after which the queue receives changes; `None` before the dispatcher knows the watch.
    pub(crate) fn joined(&self) -> Option<Revision> {
        Some(self.joined)
    }
}

impl Drop for WatchRegistration {
    fn drop(&mut self) {
        self.hub.unregister(self.id);
    }
}

impl Hub {
    /// Creates the hub of a database, whose watches together queue at most `max_queued_bytes` bytes. In stepped mode there
    /// is no dispatcher thread, and the caller does its work with [`step`](Self::step).
    pub(crate) fn new(source: Source, mode: Mode, max_queued_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            source,
            mode,
            max_queued_bytes,
            watching: AtomicUsize::new(0),
            idle: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            dispatched: AtomicU64::new(0),
            queued_bytes: Arc::default(),
            registry: Mutex::default(),
            dispatcher: Mutex::default(),
            sleeper: std::sync::OnceLock::new(),
        })
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Number of watches that follow live changes.
    pub(crate) fn watching(&self) -> usize {
        self.watching.load(Ordering::Relaxed)
    }

    /// Returns the last revision whose changes are in the queues of the watches. Call it before looking at a queue.
    pub(crate) fn dispatched(&self) -> Revision {
        Revision(self.dispatched.load(Ordering::Acquire))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Notifies the hub that an entry was applied. The applying thread calls this for every entry.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.watching.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        // The applier publishes the applied position before it checks whether the dispatcher sleeps. The dispatcher
        // announces its sleep before it looks for the last time.
        fence(Ordering::SeqCst);
        if self.idle.load(Ordering::Relaxed)
            && self.idle.swap(false, Ordering::SeqCst)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Registers a watch: from now on the dispatcher queues the changes of the keys in `interval` for it.
    pub(crate) fn register(
        self: &Arc<Self>,
        keyspace: KeyspaceId,
        interval: &KeyInterval,
    ) -> Result<WatchRegistration, WatchError> {
        let mut registry = self.registry();
        if self.is_closed() {
            return Err(WatchError::Closed);
        }
        if registry.watches.len() >= MAX_WATCHES {
            return Err(WatchError::TooMany);
        }
        let joined = match &registry.reader {
            Some(reader) => reader.done(),
            None => {
                let reader = Reader::at_end(&self.source)?;
                self.dispatched.store(reader.done().0, Ordering::Release);
                registry.reader.insert(reader).done()
            }
        };
        let id = registry.next;
        registry.next += 1;
        let queue = Arc::new(Queue::new(Arc::clone(&self.queued_bytes), self.max_queued_bytes));
        let registered = Registered { keyspace, interval: interval.clone(), queue: Arc::clone(&queue) };
        registry.watches.insert(id, registered);
        registry.changed.insert(keyspace);
        self.watching.store(registry.watches.len(), Ordering::SeqCst);
        drop(registry);
        self.start();
        self.wake();
        Ok(WatchRegistration { hub: Arc::clone(self), id, queue, joined })
    }

    fn unregister(&self, id: u64) {
        let mut registry = self.registry();
        if let Some(gone) = registry.watches.remove(&id) {
            registry.changed.insert(gone.keyspace);
            self.watching.store(registry.watches.len(), Ordering::SeqCst);
            if registry.watches.is_empty() {
                registry.stop();
            }
        }
    }

    /// Ends all watches and the dispatcher thread.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut ended = Vec::new();
        let mut registry = self.registry();
        registry.end_all(&QueueEnd::Failed(WatchError::Closed), &mut ended);
        self.watching.store(0, Ordering::SeqCst);
        drop(registry);
        ended.iter().for_each(|queue| queue.wake());
        let dispatcher = self.dispatcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((thread, handle)) = dispatcher {
            thread.unpark();
            // A waker called by the dispatcher may have dropped the last handle, in which case this code runs on the
            // dispatcher.
            if thread.id() != thread::current().id() {
                // A panicking dispatcher has already reported its panic.
                let _ = handle.join();
            }
        }
    }

    fn start(self: &Arc<Self>) {
        if self.mode == Mode::Stepped {
            return;
        }
        let mut dispatcher = self.dispatcher.lock().unwrap_or_else(PoisonError::into_inner);
        if dispatcher.is_some() || self.is_closed() {
            return;
        }
        let hub = Arc::clone(self);
        let handle = thread::Builder::new()
            .name("thalweg-watch".to_owned())
            .spawn(move || hub.run())
            .expect("the system can start a thread");
        let thread = handle.thread().clone();
        let _ = self.sleeper.set(thread.clone());
        *dispatcher = Some((thread, handle));
    }

    /// Runs one round of the dispatcher on the caller's thread. Returns true if it found changes.
    pub(crate) fn step(&self) -> bool {
        !self.is_closed() && self.watching() > 0 && self.round() == DispatchWork::Some
    }

    fn run(&self) {
        while !self.is_closed() {
            if self.round() == DispatchWork::Some {
                thread::park_timeout(LINGER);
                continue;
            }
            self.idle.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !self.is_behind() && !self.is_closed() {
                thread::park_timeout(LONGEST_SLEEP);
            }
            self.idle.store(false, Ordering::SeqCst);
        }
    }

    fn is_behind(&self) -> bool {
        self.watching() > 0 && self.source.machine.applied().revision > self.dispatched()
    }

    /// Runs one round of the dispatcher: queues the changes applied since the last round, up to the bounds of a round.
    fn round(&self) -> DispatchWork {
        let mut touched = Vec::new();
        let mut registry = self.registry();
        let before = self.dispatched();
        let reached = registry.dispatch(&mut touched);
        match (&reached, &registry.reader) {
            (Ok(_), Some(reader)) => self.dispatched.store(reader.done().0, Ordering::Release),
            (Ok(_), None) => {}
            (Err(WatchError::Compacted { .. }), _) => registry.end_all(&QueueEnd::Lost(before.next()), &mut touched),
            (Err(error), _) => registry.end_all(&QueueEnd::Failed(error.clone()), &mut touched),
        }
        if registry.watches.is_empty() {
            registry.stop();
        }
        self.watching.store(registry.watches.len(), Ordering::SeqCst);
        let done = self.dispatched();
        drop(registry);
        touched.sort_unstable_by_key(Arc::as_ptr);
        touched.dedup_by_key(|queue| Arc::as_ptr(queue));
        touched.iter().for_each(|queue| queue.wake());
        if done > before || matches!(reached, Ok(ReadEnd::Stop)) { DispatchWork::Some } else { DispatchWork::None }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Hub");
        debug.field("watching", &self.watching()).field("dispatched", &self.dispatched()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DispatchWork {
    Some,
    None,
}

impl Registry {
    /// Stops following the log. Called when no watch is left.
    fn stop(&mut self) {
        self.reader = None;
        self.indexes.clear();
        self.changed.clear();
    }

    fn renew_indexes(&mut self) {
        for keyspace in std::mem::take(&mut self.changed) {
            let here = self.watches.iter().filter(|(_, watch)| watch.keyspace == keyspace);
            let mut here = here.map(|(&id, watch)| (watch.interval.clone(), id)).peekable();
            if here.peek().is_none() {
                self.indexes.remove(&keyspace);
            } else {
                self.indexes.insert(keyspace, IntervalIndex::new(here));
            }
        }
    }

    fn dispatch(&mut self, touched: &mut Vec<Arc<Queue>>) -> Result<ReadEnd, WatchError> {
        self.renew_indexes();
        let Self { watches, indexes, reader, changed, .. } = self;
        let Some(reader) = reader else { return Ok(ReadEnd::End) };
        let (mut commits, mut bytes, mut matches) = (0, 0, Matches::default());
        reader.read(&mut |time, commit| {
            matches.gather(indexes, time, commit)?;
            matches.deliver(commit.revision, |id, revision, events| {
                let Some(watch) = watches.get(&id) else { return };
                touched.push(Arc::clone(&watch.queue));
                if watch.queue.push(revision, events) == PushResult::Lost {
                    changed.insert(watch.keyspace);
                    watches.remove(&id);
                }
            });
            commits += 1;
            bytes += commit.bytes;
            let full = commits >= ROUND_COMMITS || bytes >= ROUND_BYTES;
            Ok(if full { Visited::Last } else { Visited::Continue })
        })
    }

    fn end_all(&mut self, how: &QueueEnd, ended: &mut Vec<Arc<Queue>>) {
        for (_, watch) in self.watches.drain() {
            watch.queue.end(how.clone());
            ended.push(watch.queue);
        }
        self.stop();
    }
}

/// Events of one commit, each with the number of a watch that wants it.
#[derive(Default)]
struct Matches {
    /// Number of the watch and event. The events are in the order of the changes until they are sorted by watch.
    found: Vec<(u64, WatchEvent)>,
    events: Vec<WatchEvent>,
}

impl Matches {
    fn gather(
        &mut self,
        indexes: &HashMap<KeyspaceId, IntervalIndex>,
        time: SpaceTime,
        commit: &EntryCommit<'_>,
    ) -> Result<(), WatchError> {
        let revision = commit.revision;
        let visited = commit.visit(&mut |change| {
            let (keyspace, key) = change.target();
            let Some(index) = indexes.get(&keyspace) else { return };
            // All interested watches share one copy.
            let mut event = None;
            let mut add = |id| {
                let event = event.get_or_insert_with(|| WatchEvent::of(&change, revision, time));
                self.found.push((id, event.clone()));
            };
            match change {
                KeyChange::DeletePrefix { .. } => index.meeting_prefix(key, &mut add),
                _ => index.containing(key, &mut add),
            }
        });
        visited.map_err(|error| WatchError::Read(crate::error::ReadError::Corrupt(error.to_string())))
    }

    /// Calls `each` once for each watch with the watch's events, and clears all events.
    fn deliver(&mut self, revision: Revision, mut each: impl FnMut(u64, Revision, &[WatchEvent])) {
        // The sort is stable, so the changes of one watch stay in order.
        self.found.sort_by_key(|(id, _)| *id);
        let mut found = self.found.drain(..).peekable();
        while let Some((id, event)) = found.next() {
            self.events.push(event);
            if found.peek().is_none_or(|(next, _)| *next != id) {
                each(id, revision, &self.events);
                self.events.clear();
            }
        }
    }
}
