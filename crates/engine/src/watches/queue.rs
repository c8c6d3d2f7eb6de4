//! Queue of events for one watch that follows live changes.
//!
//! Owns: `Queue`, the accounting of shared events' memory, and the wake-up of the watch. Does not own: the choice of
//! events for a watch (`hub`), or reading lost changes from the log (`reader`).
//!
//! Bounds: [`MAX_WATCH_QUEUE_EVENTS`] and [`MAX_WATCH_QUEUE_BYTES`] for each queue, `max_watch_queues_bytes` of the
//! options for all queues together. An event that several queues share counts once for all of them. If a commit would
//! exceed a bound, neither this commit nor any later one is queued: the queue reports the first lost revision, and the
//! watch continues from the log. Commits are queued completely or not at all.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use thalweg_types::{
    Revision,
    limits::{MAX_WATCH_QUEUE_BYTES, MAX_WATCH_QUEUE_EVENTS},
};

use crate::{
    tails::Waiter,
    watches::{error::WatchError, event::WatchEvent},
};

/// Memory in bytes of a shared event in one queue: its reference in a list, which may have spare capacity.
const ENTRY_BYTES: usize = 2 * size_of::<Arc<QueuedEvent>>();
/// Value of [`Queue::joined`] before the dispatcher has registered the watch.
const NOT_JOINED: u64 = u64::MAX;

/// An event in the queues of one or several watches. Its memory counts once in the sum of all queues, until the event
/// has left the last queue.
#[derive(Debug)]
pub(crate) struct QueuedEvent {
    event: WatchEvent,
    total: Arc<AtomicUsize>,
}

impl QueuedEvent {
    /// Creates an event, and adds its memory to `total`, the sum of the bytes in all queues.
    pub(crate) fn new(event: WatchEvent, total: &Arc<AtomicUsize>) -> Arc<Self> {
        total.fetch_add(event.memory(), Ordering::Relaxed);
        Arc::new(Self { event, total: Arc::clone(total) })
    }
}

impl Drop for QueuedEvent {
    fn drop(&mut self) {
        self.total.fetch_sub(self.event.memory(), Ordering::Relaxed);
    }
}

/// Reason why a watch's queue gets no more events.
#[derive(Clone, Debug)]
pub(crate) enum QueueEnd {
    /// The queue was full; contains the first revision that was not queued.
    Lost(Revision),
    /// The dispatcher has stopped, because of an error or because the database was closed.
    Failed(WatchError),
}

#[derive(Debug, Default)]
struct Inner {
    events: VecDeque<Arc<QueuedEvent>>,
    /// Memory of the events in bytes, including events that other queues share.
    bytes: usize,
    ended: Option<QueueEnd>,
    /// True if the watch had to wait for a dispatcher round to be registered, and has not taken events since.
    has_just_joined: bool,
    waiter: Option<Waiter>,
}

/// Events that a watch has taken from its queue.
#[derive(Debug)]
pub(crate) struct TakenEvents {
    pub(crate) events: Vec<WatchEvent>,
    /// True if the queue has no more events.
    pub(crate) is_emptied: bool,
    /// Reason why the queue has ended; `None` if it has not ended or has more events.
    pub(crate) ended: Option<QueueEnd>,
}

/// Queue of events that the dispatcher fills and one watch empties.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Revision after which the queue receives changes, or [`NOT_JOINED`].
    joined: AtomicU64,
    /// True while the watch is included in the number of watches, which is limited.
    has_place: AtomicBool,
    /// Sum of the bytes in the queues of all watches.
    total: Arc<AtomicUsize>,
    max_total: usize,
}

/// Result of queueing the events of a commit for one watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushResult {
    Queued,
    Lost,
}

impl Queue {
    pub(crate) fn new(total: Arc<AtomicUsize>, max_total: usize) -> Self {
        let (joined, has_place) = (AtomicU64::new(NOT_JOINED), AtomicBool::new(true));
        Self { inner: Mutex::default(), joined, has_place, total, max_total }
    }

    /// Returns the revision after which the queue receives changes; `None` before the watch is registered.
    pub(crate) fn joined(&self) -> Option<Revision> {
        Some(self.joined.load(Ordering::Acquire)).filter(|joined| *joined != NOT_JOINED).map(Revision)
    }

    /// Sets the revision after which the queue receives changes. The caller must [wake](Self::wake) a waiting watch
    /// afterwards.
    pub(crate) fn join(&self, after: Revision) {
        let mut inner = self.lock();
        inner.has_just_joined = true;
        self.joined.store(after.0, Ordering::Release);
    }

    /// Excludes the watch from the limited number of watches. Returns true for the first call.
    pub(crate) fn give_up_place(&self) -> bool {
        self.has_place.swap(false, Ordering::AcqRel)
    }

    /// Returns true if the queue has ended. The dispatcher then no longer knows the watch.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// Returns true if the queue has lost changes and has no events left, so that its watch continues from the log.
    pub(crate) fn is_lost(&self) -> bool {
        let inner = self.lock();
        inner.events.is_empty() && matches!(inner.ended, Some(QueueEnd::Lost(_)))
    }

    /// Queues the events of a commit. If they do not fit, ends the queue before this commit.
    pub(crate) fn push<'e>(
        &self,
        revision: Revision,
        events: impl ExactSizeIterator<Item = &'e Arc<QueuedEvent>> + Clone,
    ) -> PushResult {
        let bytes = events.clone().map(|queued| queued.event.memory()).sum::<usize>();
        let entries = events.len() * ENTRY_BYTES;
        let mut inner = self.lock();
        let total = self.total.fetch_add(entries, Ordering::Relaxed) + entries;
        let fits = inner.events.len() + events.len() <= MAX_WATCH_QUEUE_EVENTS
            && inner.bytes + bytes <= MAX_WATCH_QUEUE_BYTES
            && total <= self.max_total;
        if fits {
            inner.bytes += bytes;
            inner.events.extend(events.cloned());
            return PushResult::Queued;
        }
        self.total.fetch_sub(entries, Ordering::Relaxed);
        inner.ended.get_or_insert(QueueEnd::Lost(revision));
        PushResult::Lost
    }

    /// Ends the queue for the given reason, unless it has ended already. Does not wake the watch.
    pub(crate) fn end(&self, how: QueueEnd) {
        self.lock().ended.get_or_insert(how);
    }

    /// Takes whole commits from the queue: as many as fit into `max_events` and `max_bytes`, but at least one.
    pub(crate) fn take(&self, max_events: usize, max_bytes: usize) -> TakenEvents {
        let mut inner = self.lock();
        inner.has_just_joined = false;
        let (mut count, mut bytes) = (0, 0);
        if inner.events.len() <= max_events && inner.bytes <= max_bytes {
            (count, bytes) = (inner.events.len(), inner.bytes);
        }
        while let Some(first) = inner.events.get(count) {
            let is_of_first = |queued: &&Arc<QueuedEvent>| queued.event.revision == first.event.revision;
            let commit = inner.events.range(count..).take_while(is_of_first);
            let (more, more_bytes) =
                commit.fold((0, 0), |(more, bytes), queued| (more + 1, bytes + queued.event.memory()));
            if count > 0 && (count + more > max_events || bytes + more_bytes > max_bytes) {
                break;
            }
            (count, bytes) = (count + more, bytes + more_bytes);
        }
        let taken: Vec<_> = inner.events.drain(..count).collect();
        let is_emptied = inner.events.is_empty();
        if is_emptied {
            inner.events = VecDeque::new();
        }
        inner.bytes -= bytes;
        let ended = inner.ended.clone().filter(|_| is_emptied);
        drop(inner);
        self.total.fetch_sub(count * ENTRY_BYTES, Ordering::Relaxed);
        TakenEvents { events: taken.iter().map(|queued| queued.event.clone()).collect(), is_emptied, ended }
    }

    /// Returns the error with which the dispatcher ended the queue, if it did.
    pub(crate) fn failure(&self) -> Option<WatchError> {
        match &self.lock().ended {
            Some(QueueEnd::Failed(error)) => Some(error.clone()),
            _ => None,
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        let inner = self.lock();
        inner.events.is_empty() && inner.ended.is_none() && !inner.has_just_joined
    }

    /// Sets the thread or task that the next [`wake`](Self::wake) wakes. The caller must check the queue again
    /// afterwards.
    pub(crate) fn set_waiter(&self, waiter: Waiter) {
        self.lock().waiter = Some(waiter);
    }

    pub(crate) fn wake(&self) {
        let waiter = self.lock().waiter.take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.total.fetch_sub(self.lock().events.len() * ENTRY_BYTES, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use thalweg_types::SpaceTime;

    use super::*;
    use crate::watches::event::WatchChange;

    const MAX_TOTAL: usize = 4 * MAX_WATCH_QUEUE_BYTES;

    fn event(bytes: usize) -> WatchEvent {
        let change = WatchChange::Put(Bytes::from(vec![0; bytes]));
        WatchEvent { revision: Revision(1), time: SpaceTime(1), key: Bytes::new(), change }
    }

    fn take_all(queue: &Queue) -> TakenEvents {
        queue.take(usize::MAX, usize::MAX)
    }

    fn lost(queue: &Queue) -> Option<Revision> {
        match take_all(queue).ended {
            Some(QueueEnd::Lost(revision)) => Some(revision),
            Some(QueueEnd::Failed(error)) => panic!("{error}"),
            None => None,
        }
    }

    /// Queues events that are in no queue of another watch.
    fn push(queue: &Queue, revision: u64, events: &[WatchEvent]) -> PushResult {
        let events: Vec<_> = events.iter().map(|event| QueuedEvent::new(event.clone(), &queue.total)).collect();
        queue.push(Revision(revision), events.iter())
    }

    #[test]
    fn all_queues_together_are_bounded_and_what_is_taken_makes_room() {
        let total = Arc::new(AtomicUsize::new(0));
        let large = event(MAX_WATCH_QUEUE_BYTES / 2);
        let each = large.memory() + ENTRY_BYTES;
        let fitting = MAX_TOTAL / each;
        let queues: Vec<_> = (0..=fitting).map(|_| Queue::new(total.clone(), MAX_TOTAL)).collect();
        let (last, others) = queues.split_last().unwrap();
        for queue in others {
            assert_eq!(push(queue, 1, std::slice::from_ref(&large)), PushResult::Queued);
        }
        assert_eq!(push(last, 2, std::slice::from_ref(&large)), PushResult::Lost);
        assert_eq!(lost(last), Some(Revision(2)), "it reports the first lost revision");
        assert_eq!(total.load(Ordering::Relaxed), fitting * each, "lost events use no memory");
        let after = Queue::new(total.clone(), MAX_TOTAL);
        assert_eq!((take_all(&others[0]).events.len(), push(&after, 3, &[large])), (1, PushResult::Queued));
        drop((queues, after));
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_event_that_queues_share_counts_once() {
        const QUEUES: usize = 1000;
        let total = Arc::new(AtomicUsize::new(0));
        let queues: Vec<_> = (0..QUEUES).map(|_| Queue::new(total.clone(), MAX_TOTAL)).collect();
        // If they counted for each queue, the queues together would hold only four of these events.
        let shared = event(MAX_WATCH_QUEUE_BYTES / 20);
        for revision in 1..=10 {
            let queued = QueuedEvent::new(shared.clone(), &total);
            for queue in &queues {
                assert_eq!(queue.push(Revision(revision), [&queued].into_iter()), PushResult::Queued);
            }
        }
        assert_eq!(total.load(Ordering::Relaxed), 10 * (shared.memory() + QUEUES * ENTRY_BYTES));
        let (first, others) = queues.split_first().unwrap();
        for queue in others {
            assert_eq!(take_all(queue).events.len(), 10);
        }
        assert_eq!(total.load(Ordering::Relaxed), 10 * (shared.memory() + ENTRY_BYTES), "one queue still holds them");
        assert_eq!(take_all(first).events.len(), 10);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_queue_is_bounded_by_events_and_by_bytes_and_takes_commits_whole() {
        let total = Arc::new(AtomicUsize::new(0));
        let small = vec![event(0); MAX_WATCH_QUEUE_EVENTS - 1];
        let queue = Queue::new(total.clone(), MAX_TOTAL);
        assert_eq!(push(&queue, 1, &small), PushResult::Queued);
        assert_eq!(push(&queue, 2, &small[..2]), PushResult::Lost, "only one of the two fits");
        assert_eq!((take_all(&queue).events.len(), lost(&queue)), (small.len(), Some(Revision(2))));
        let queue = Queue::new(total, MAX_TOTAL);
        assert_eq!(push(&queue, 1, &[event(MAX_WATCH_QUEUE_BYTES)]), PushResult::Lost);
    }

    #[test]
    fn a_watch_takes_whole_commits_within_its_limits() {
        let total = Arc::new(AtomicUsize::new(0));
        let queue = Queue::new(total.clone(), MAX_TOTAL);
        let at = |revision| WatchEvent { revision: Revision(revision), ..event(100) };
        for (revision, count) in [(1, 1), (2, 3), (3, 1), (4, 1)] {
            assert_eq!(push(&queue, revision, &vec![at(revision); count]), PushResult::Queued);
        }
        queue.end(QueueEnd::Lost(Revision(5)));
        let revisions = |taken: &TakenEvents| taken.events.iter().map(|event| event.revision.0).collect::<Vec<_>>();
        for (max_events, max_bytes, wanted) in
            [(3, usize::MAX, vec![1]), (1, usize::MAX, vec![2, 2, 2]), (9, 1, vec![3])]
        {
            let taken = queue.take(max_events, max_bytes);
            assert_eq!((revisions(&taken), taken.is_emptied), (wanted, false));
            assert!(taken.ended.is_none(), "the rest comes first");
        }
        assert_eq!(total.load(Ordering::Relaxed), at(4).memory() + ENTRY_BYTES);
        let taken = queue.take(1, 1);
        assert_eq!((revisions(&taken), taken.is_emptied), (vec![4], true));
        assert!(matches!(taken.ended, Some(QueueEnd::Lost(Revision(5)))));
    }

    #[test]
    fn a_watch_that_joins_late_is_woken_once() {
        let queue = Queue::new(Arc::default(), MAX_TOTAL);
        assert_eq!((queue.joined(), queue.is_quiet()), (None, true));
        queue.join(Revision(7));
        assert_eq!((queue.joined(), queue.is_quiet()), (Some(Revision(7)), false));
        assert!(take_all(&queue).events.is_empty() && queue.is_quiet());
    }
}
