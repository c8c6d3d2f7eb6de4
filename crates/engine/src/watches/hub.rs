//! Registered watches, and the dispatcher thread that feeds them.
//!
//! Owns: the registry of watches, the dispatcher, and the bound on the number of watches. Does not own: the queue of a
//! watch and its bounds (`queue`), the index of intervals (`interval`), reading commits from the log (`reader`), or a
//! watch that reads the log itself because it is behind (`watch` of the crate).
//!
//! One dispatcher thread serves all watches: it reads applied log entries, and finds the interested watches in an
//! index. The applying thread only wakes the dispatcher, at most once per [`LINGER`], because the dispatcher checks for
//! more work before it sleeps. Without watches no thread does any work, and the applying thread pays one atomic load.
//!
//! The dispatcher works in rounds, and locks the registry during each. Other threads never wait for this lock: if the
//! registry is locked, they write a note, and the next round registers or removes their watch. Until the note is
//! carried out, the watch does not know the revision from which its queue gets changes; then it is woken.
//!
//! Invariant: all changes up to the revision [`Hub::dispatched`] are in the queues of the watches that have joined.

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
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
    queue::{PushResult, Queue, QueueEnd, QueuedEvent},
    reader::{ReadEnd, Reader, Source, Visited},
};

/// Time for which the dispatcher thread pauses after it has found changes, so that further changes gather.
const LINGER: Duration = Duration::from_millis(1);
/// Longest sleep of the dispatcher. It bounds the delay that a missed wake-up can cause.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// Number of commits after which a round of the dispatcher thread ends, so that watches can register, unregister and be
/// woken. A round also ends after [`ROUND_BYTES`] of commits, and after [`ROUND_DELIVERIES`].
const ROUND_COMMITS: usize = 4096;
const ROUND_BYTES: usize = 4 * 1024 * 1024;
/// Number of deliveries after which a dispatcher round ends. A commit counts once for each watch that gets it.
const ROUND_DELIVERIES: usize = 4096;

/// State that the applying thread, the dispatcher thread and the watches share.
pub(crate) struct Hub {
    source: Source,
    mode: Mode,
    /// Number of watches that follow live changes, or wait for their registration with the dispatcher.
    watching: AtomicUsize,
    next_id: AtomicU64,
    /// True while the dispatcher sleeps and must be woken to notice changes.
    idle: AtomicBool,
    closed: AtomicBool,
    dispatched: AtomicU64,
    queued_bytes: Arc<AtomicUsize>,
    max_queued_bytes: usize,
    registry: Mutex<Registry>,
    /// Registrations and ends of watches that found the registry locked; the dispatcher's next round carries them out.
    /// This lock is held only for moments, and never taken before that of the registry.
    notes: Mutex<PendingRegistrations>,
    spawn: fn(Arc<Self>) -> io::Result<JoinHandle<()>>,
    dispatcher: Mutex<Option<(Thread, JoinHandle<()>)>>,
    /// Handle of the dispatcher's thread, by which the applying thread wakes it.
    sleeper: std::sync::OnceLock<Thread>,
}

/// Registrations (joins) and ends (leaves) of watches for the dispatcher's next round, each list in its order.
#[derive(Debug, Default)]
struct PendingRegistrations {
    joins: Vec<(u64, Registered)>,
    leaves: Vec<u64>,
}

#[derive(Debug, Default)]
struct Registry {
    /// Number of the present round of the dispatcher; each round queues some changes for the watches.
    round: u64,
    watches: HashMap<u64, Registered>,
    indexes: HashMap<KeyspaceId, IntervalIndex>,
    /// Keyspaces whose index of watched intervals is out of date.
    changed: HashSet<KeyspaceId>,
    /// Reader of the log for the dispatcher; `None` while there are no watches.
    reader: Option<Reader>,
}

#[derive(Debug)]
struct Registered {
    keyspace: KeyspaceId,
    interval: KeyInterval,
    queue: Arc<Queue>,
    /// Number of the dispatcher's last round that queued changes for this watch.
    touched: u64,
}

/// Registration of a watch with the dispatcher. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct WatchRegistration {
    hub: Arc<Hub>,
    id: u64,
    pub(crate) queue: Arc<Queue>,
}

impl WatchRegistration {
    /// Returns the revision after which the queue receives changes; `None` before the dispatcher knows the watch.
    pub(crate) fn joined(&self) -> Option<Revision> {
        self.queue.joined()
    }
}

impl Drop for WatchRegistration {
    fn drop(&mut self) {
        self.hub.free_place(&self.queue);
        // If a queue has ended, the dispatcher has already removed its watch.
        if !self.queue.has_ended() {
            self.hub.unregister(self.id);
        }
    }
}

impl Hub {
    /// Creates the hub of a database, whose watches together queue at most `max_queued_bytes` bytes. In stepped mode
    /// there is no dispatcher thread, and the caller does its work with [`step`](Self::step).
    pub(crate) fn new(source: Source, mode: Mode, max_queued_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            source,
            mode,
            max_queued_bytes,
            watching: AtomicUsize::new(0),
            next_id: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            dispatched: AtomicU64::new(0),
            queued_bytes: Arc::default(),
            registry: Mutex::default(),
            notes: Mutex::default(),
            spawn: |hub| thread::Builder::new().name("thalweg-watch".to_owned()).spawn(move || hub.run()),
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

    /// Notifies the hub that a log entry was applied. The applying thread calls this for every entry.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.watching.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        // The applying thread publishes the applied position before it checks if the dispatcher sleeps. The dispatcher
        // announces its sleep before its last check for work. So one of the two notices the other.
        fence(Ordering::SeqCst);
        if self.idle.load(Ordering::Relaxed)
            && self.idle.swap(false, Ordering::SeqCst)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Registers a watch. The dispatcher queues the changes of keys in `interval` for it, after the revision that
    /// [`WatchRegistration::joined`] returns. Does not wait for a round of the dispatcher.
    pub(crate) fn register(
        self: &Arc<Self>,
        keyspace: KeyspaceId,
        interval: &KeyInterval,
    ) -> Result<WatchRegistration, WatchError> {
        if self.is_closed() {
            return Err(WatchError::Closed);
        }
        self.start()?;
        let place = |watching| (watching < MAX_WATCHES).then_some(watching + 1);
        if self.watching.fetch_update(Ordering::SeqCst, Ordering::SeqCst, place).is_err() {
            return Err(WatchError::TooMany);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::new(Queue::new(Arc::clone(&self.queued_bytes), self.max_queued_bytes));
        let registered = Registered { keyspace, interval: interval.clone(), queue: Arc::clone(&queue), touched: 0 };
        // If this function fails, dropping the registration frees the watch's place.
        let registration = WatchRegistration { hub: Arc::clone(self), id, queue };
        match self.free_registry() {
            Some(mut registry) => {
                let touched = self.carry_out_notes(&mut registry);
                let joined = self.join(&mut registry, id, registered);
                drop(registry);
                touched.iter().for_each(|queue| queue.wake());
                joined?;
            }
            None => self.notes().joins.push((id, registered)),
        }
        // If the hub was closed before the note was written, the close has not ended this queue.
        if self.is_closed() {
            return Err(WatchError::Closed);
        }
        self.wake();
        Ok(registration)
    }

    fn unregister(&self, id: u64) {
        match self.free_registry() {
            Some(mut registry) => {
                let touched = self.carry_out_notes(&mut registry);
                registry.leave(id);
                drop(registry);
                touched.iter().for_each(|queue| queue.wake());
            }
            None => self.notes().leaves.push(id),
        }
    }

    /// Registers a watch, so that it gets the changes after the revision that the dispatcher has reached.
    fn join(&self, registry: &mut Registry, id: u64, watch: Registered) -> Result<(), WatchError> {
        let joined = match &registry.reader {
            Some(reader) => reader.done(),
            None => {
                let reader = Reader::at_end(&self.source)?;
                self.dispatched.store(reader.done().0, Ordering::Release);
                registry.reader.insert(reader).done()
            }
        };
        watch.queue.join(joined);
        registry.join(id, watch);
        Ok(())
    }

    /// Carries out the registrations and ends of watches that found the registry locked. Returns the queues whose
    /// watches must be woken when the registry is free.
    fn carry_out_notes(&self, registry: &mut Registry) -> Vec<Arc<Queue>> {
        let PendingRegistrations { joins, leaves } = std::mem::take(&mut *self.notes());
        let mut touched = Vec::with_capacity(joins.len());
        for (id, watch) in joins {
            let queue = Arc::clone(&watch.queue);
            if let Err(error) = self.join(registry, id, watch) {
                queue.end(QueueEnd::Failed(error));
            }
            touched.push(queue);
        }
        leaves.iter().for_each(|id| registry.leave(*id));
        touched
    }

    /// Subtracts an ended watch from the limited number of watches, unless an earlier call has done so.
    fn free_place(&self, queue: &Queue) {
        if queue.give_up_place() {
            self.watching.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Ends all watches and the dispatcher thread.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut registry = self.registry();
        let mut ended = self.carry_out_notes(&mut registry);
        registry.end_all(&QueueEnd::Failed(WatchError::Closed), &mut ended);
        drop(registry);
        self.wake_all(&ended);
        let dispatcher = self.dispatcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((thread, handle)) = dispatcher {
            thread.unpark();
            // A waker that the dispatcher calls may drop the last handle. Then this code runs on the dispatcher's
            // thread.
            if thread.id() != thread::current().id() {
                // A panic of the dispatcher was already printed.
                let _ = handle.join();
            }
        }
    }

    fn start(self: &Arc<Self>) -> Result<(), WatchError> {
        if self.mode == Mode::Stepped {
            return Ok(());
        }
        let mut dispatcher = self.dispatcher.lock().unwrap_or_else(PoisonError::into_inner);
        if dispatcher.is_some() || self.is_closed() {
            return Ok(());
        }
        let handle = (self.spawn)(Arc::clone(self)).map_err(|_| WatchError::NoThread)?;
        let thread = handle.thread().clone();
        let _ = self.sleeper.set(thread.clone());
        *dispatcher = Some((thread, handle));
        Ok(())
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
            if !self.is_behind() && !self.has_joins() && !self.is_closed() {
                thread::park_timeout(LONGEST_SLEEP);
            }
            self.idle.store(false, Ordering::SeqCst);
        }
    }

    fn is_behind(&self) -> bool {
        self.watching() > 0 && self.source.machine.applied().revision > self.dispatched()
    }

    fn has_joins(&self) -> bool {
        !self.notes().joins.is_empty()
    }

    /// Runs one round of the dispatcher: queues the changes applied since the last round, up to the limits of a round.
    fn round(&self) -> DispatchWork {
        let mut registry = self.registry();
        let mut touched = self.carry_out_notes(&mut registry);
        let before = self.dispatched();
        let reached = registry.dispatch(&self.queued_bytes, &mut touched);
        match (&reached, &registry.reader) {
            (Ok(_), Some(reader)) => self.dispatched.store(reader.done().0, Ordering::Release),
            (Ok(_), None) => {}
            (Err(WatchError::Compacted { .. }), _) => registry.end_all(&QueueEnd::Lost(before.next()), &mut touched),
            (Err(error), _) => registry.end_all(&QueueEnd::Failed(error.clone()), &mut touched),
        }
        if registry.watches.is_empty() {
            registry.stop();
        }
        let done = self.dispatched();
        drop(registry);
        self.wake_all(&touched);
        if done > before || matches!(reached, Ok(ReadEnd::Stop)) { DispatchWork::Some } else { DispatchWork::None }
    }

    /// Wakes the watches of these queues. Subtracts watches whose queues have ended from the number of watches.
    fn wake_all(&self, queues: &[Arc<Queue>]) {
        for queue in queues {
            if queue.has_ended() {
                self.free_place(queue);
            }
            queue.wake();
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the registry without waiting. Returns `None` if another thread holds the lock, such as a dispatch round.
    fn free_registry(&self) -> Option<MutexGuard<'_, Registry>> {
        match self.registry.try_lock() {
            Ok(registry) => Some(registry),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn notes(&self) -> MutexGuard<'_, PendingRegistrations> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn stop(&mut self) {
        self.reader = None;
        self.indexes.clear();
        self.changed.clear();
    }

    fn join(&mut self, id: u64, watch: Registered) {
        let (indexes, changed) = (&mut self.indexes, &self.changed);
        let index = indexes.get_mut(&watch.keyspace).filter(|_| !changed.contains(&watch.keyspace));
        if !index.is_some_and(|index| index.join(&watch.interval, id)) {
            self.changed.insert(watch.keyspace);
        }
        self.watches.insert(id, watch);
    }

    fn leave(&mut self, id: u64) {
        let Some(watch) = self.watches.remove(&id) else { return };
        let index = self.indexes.get_mut(&watch.keyspace);
        if !index.is_some_and(|index| index.leave(&watch.interval, id)) {
            self.changed.insert(watch.keyspace);
        }
        if self.watches.is_empty() {
            self.stop();
        }
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

    /// Queues changes for the watches. Adds each queue that got changes to `touched`, once. Adds the memory of the
    /// events to `queued_bytes`.
    fn dispatch(
        &mut self,
        queued_bytes: &Arc<AtomicUsize>,
        touched: &mut Vec<Arc<Queue>>,
    ) -> Result<ReadEnd, WatchError> {
        self.renew_indexes();
        self.round += 1;
        let Self { round, watches, indexes, reader, changed } = self;
        let Some(reader) = reader else { return Ok(ReadEnd::End) };
        let (mut commits, mut bytes, mut deliveries, mut matches) = (0, 0, 0, Matches::default());
        reader.read(&mut |time, commit| {
            matches.gather(indexes, queued_bytes, time, commit)?;
            matches.deliver(|id, events| {
                let Some(watch) = watches.get_mut(&id) else { return };
                deliveries += 1;
                if std::mem::replace(&mut watch.touched, *round) != *round {
                    touched.push(Arc::clone(&watch.queue));
                }
                if watch.queue.push(commit.revision, events) == PushResult::Lost {
                    changed.insert(watch.keyspace);
                    watches.remove(&id);
                }
            });
            commits += 1;
            bytes += commit.bytes;
            let full = commits >= ROUND_COMMITS || bytes >= ROUND_BYTES || deliveries >= ROUND_DELIVERIES;
            Ok(if full { Visited::Last } else { Visited::Continue })
        })
    }

    fn end_all(&mut self, how: &QueueEnd, ended: &mut Vec<Arc<Queue>>) {
        let mut watches: Vec<_> = self.watches.drain().collect();
        // The watches are woken in this order, so that a simulation is repeatable.
        watches.sort_unstable_by_key(|(id, _)| *id);
        for (_, watch) in watches {
            watch.queue.end(how.clone());
            ended.push(watch.queue);
        }
        self.stop();
    }
}

/// Events of one commit, and the watches that want them.
#[derive(Default)]
struct Matches {
    /// Events that at least one watch observes, in the order of the changes. All interested watches share one copy.
    events: Vec<Arc<QueuedEvent>>,
    /// Pairs of the number of a watch and the position of an event in `events`, first in the order of the changes,
    /// later sorted by watch.
    found: Vec<(u64, usize)>,
}

impl Matches {
    /// Collects the events of a commit, and removes those of the previous commit.
    fn gather(
        &mut self,
        indexes: &HashMap<KeyspaceId, IntervalIndex>,
        queued_bytes: &Arc<AtomicUsize>,
        time: SpaceTime,
        commit: &EntryCommit<'_>,
    ) -> Result<(), WatchError> {
        let Self { events, found } = self;
        events.clear();
        found.clear();
        let visited = commit.visit(&mut |change| {
            let (keyspace, key) = change.target();
            let Some(index) = indexes.get(&keyspace) else { return };
            let (at, before) = (events.len(), found.len());
            let mut add = |id| found.push((id, at));
            match change {
                KeyChange::DeletePrefix { .. } => index.meeting_prefix(key, &mut add),
                _ => index.containing(key, &mut add),
            }
            if found.len() > before {
                events.push(QueuedEvent::new(WatchEvent::of(&change, commit.revision, time), queued_bytes));
            }
        });
        // The sort is stable, so the changes of one watch stay in order.
        found.sort_by_key(|(id, _)| *id);
        visited.map_err(|error| WatchError::Read(crate::error::ReadError::Corrupt(error.to_string())))
    }

    /// Calls `each` once for each watch with the watch's events.
    fn deliver<'m>(&'m self, mut each: impl FnMut(u64, MatchedEvents<'m>)) {
        for of_watch in self.found.chunk_by(|(id, _), (next, _)| id == next) {
            each(of_watch[0].0, MatchedEvents { events: &self.events, found: of_watch.iter() });
        }
    }
}

#[derive(Clone)]
struct MatchedEvents<'m> {
    events: &'m [Arc<QueuedEvent>],
    found: std::slice::Iter<'m, (u64, usize)>,
}

impl<'m> Iterator for MatchedEvents<'m> {
    type Item = &'m Arc<QueuedEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.found.next().map(|(_, at)| &self.events[*at])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.found.size_hint()
    }
}

impl ExactSizeIterator for MatchedEvents<'_> {}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
