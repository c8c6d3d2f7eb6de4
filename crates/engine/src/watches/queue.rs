//! Queue of events for one watch that follows live changes.
//!
//! Bounds: [`MAX_WATCH_QUEUE_EVENTS`] and [`MAX_WATCH_QUEUE_BYTES`] for each queue, `max_watch_queues_bytes` of the options for all
//! queues together. If a commit would exceed a bound, neither this commit nor any later one is queued: the queue
//! reports the first lost revision, and the watch continues from the log. Commits are queued completely or not at all.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
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
    events: VecDeque<WatchEvent>,
    bytes: usize,
    ended: Option<QueueEnd>,
    waiter: Option<Waiter>,
}

/// Events that a watch has taken from its queue.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) events: Vec<WatchEvent>,
    /// True if the queue has no more events.
    pub(crate) is_emptied: bool,
    /// Reason of the queue's end, if the queue has ended and has no more events.
    pub(crate) ended: Option<QueueEnd>,
}

/// Queue of events that the dispatcher fills and one watch empties.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Sum of the bytes in the queues of all watches.
    total: Arc<AtomicUsize>,
    /// Maximum of `total`.
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
        Self { inner: Mutex::default(), total, max_total }
    }

    /// Queues the events of a commit. If they do not fit, ends the queue before this commit.
    pub(crate) fn push(&self, revision: Revision, events: &[WatchEvent]) -> PushResult {
        let bytes = events.iter().map(WatchEvent::memory).sum::<usize>();
        let mut inner = self.lock();
        let total = self.total.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = inner.events.len() + events.len() <= MAX_WATCH_QUEUE_EVENTS
            && inner.bytes + bytes <= MAX_WATCH_QUEUE_BYTES
            && total <= self.max_total;
        if fits {
            inner.bytes += bytes;
            inner.events.extend(events.iter().cloned());
            return PushResult::Queued;
        }
        self.total.fetch_sub(bytes, Ordering::Relaxed);
        inner.ended.get_or_insert(QueueEnd::Lost(revision));
        PushResult::Lost
    }

    /// Ends the queue, unless it has ended already. Does not wake the watch.
    pub(crate) fn end(&self, how: QueueEnd) {
        self.lock().ended.get_or_insert(how);
    }

    /// Takes queued events: whole commits, as many as fit into `max_events` and `max_bytes`, and at least one.
    pub(crate) fn take(&self, max_events: usize, max_bytes: usize) -> Taken {
        let mut inner = self.lock();
        if inner.events.len() <= max_events && inner.bytes <= max_bytes {
            self.total.fetch_sub(std::mem::take(&mut inner.bytes), Ordering::Relaxed);
            let events = std::mem::take(&mut inner.events).into();
            return Taken { events, is_emptied: true, ended: inner.ended.clone() };
        }
        let (mut count, mut bytes) = (0, 0);
        while let Some(first) = inner.events.get(count) {
            let commit = inner.events.range(count..).take_while(|event| event.revision == first.revision);
            let (more, more_bytes) = commit.fold((0, 0), |(more, bytes), event| (more + 1, bytes + event.memory()));
            if count > 0 && (count + more > max_events || bytes + more_bytes > max_bytes) {
                break;
            }
            (count, bytes) = (count + more, bytes + more_bytes);
        }
        let events = inner.events.drain(..count).collect();
        inner.bytes -= bytes;
        self.total.fetch_sub(bytes, Ordering::Relaxed);
        let is_emptied = inner.events.is_empty();
        Taken { events, is_emptied, ended: inner.ended.clone().filter(|_| is_emptied) }
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
        inner.events.is_empty() && inner.ended.is_none()
    }

    /// Sets the thread or task that the next [`wake`](Self::wake) wakes. The caller must look at the queue again
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
        self.total.fetch_sub(self.lock().bytes, Ordering::Relaxed);
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

    /// Returns the first revision that a queue lost, if it has ended.
    fn lost(queue: &Queue) -> Option<Revision> {
        match queue.take(usize::MAX, usize::MAX).ended {
            Some(QueueEnd::Lost(revision)) => Some(revision),
            Some(QueueEnd::Failed(error)) => panic!("{error}"),
            None => None,
        }
    }

    #[test]
    fn all_queues_together_are_bounded_and_what_is_taken_makes_room() {
        let total = Arc::new(AtomicUsize::new(0));
        let large = event(MAX_WATCH_QUEUE_BYTES / 2);
        let fitting = MAX_TOTAL / large.memory();
        let queues: Vec<_> = (0..=fitting).map(|_| Queue::new(total.clone(), MAX_TOTAL)).collect();
        let (last, others) = queues.split_last().unwrap();
        for queue in others {
            assert_eq!(queue.push(Revision(1), std::slice::from_ref(&large)), PushResult::Queued);
        }
        assert_eq!(last.push(Revision(2), std::slice::from_ref(&large)), PushResult::Lost);
        assert_eq!(lost(last), Some(Revision(2)), "it reports the first lost revision");
        assert_eq!(total.load(Ordering::Relaxed), fitting * large.memory(), "lost events use no memory");
        let after = Queue::new(total.clone(), MAX_TOTAL);
        assert_eq!(
            (others[0].take(usize::MAX, usize::MAX).events.len(), after.push(Revision(3), &[large])),
            (1, PushResult::Queued)
        );
        drop((queues, after));
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_queue_is_bounded_by_events_and_by_bytes_and_takes_commits_whole() {
        let total = Arc::new(AtomicUsize::new(0));
        let small = vec![event(0); MAX_WATCH_QUEUE_EVENTS - 1];
        let queue = Queue::new(total.clone(), MAX_TOTAL);
        assert_eq!(queue.push(Revision(1), &small), PushResult::Queued);
        assert_eq!(queue.push(Revision(2), &small[..2]), PushResult::Lost, "only one of the two fits");
        assert_eq!((queue.take(usize::MAX, usize::MAX).events.len(), lost(&queue)), (small.len(), Some(Revision(2))));
        let queue = Queue::new(total, MAX_TOTAL);
        assert_eq!(queue.push(Revision(1), &[event(MAX_WATCH_QUEUE_BYTES)]), PushResult::Lost);
    }

    #[test]
    fn a_watch_takes_whole_commits_within_its_limits() {
        let total = Arc::new(AtomicUsize::new(0));
        let queue = Queue::new(total.clone(), MAX_TOTAL);
        let at = |revision| WatchEvent { revision: Revision(revision), ..event(100) };
        for (revision, count) in [(1, 1), (2, 3), (3, 1), (4, 1)] {
            assert_eq!(queue.push(Revision(revision), &vec![at(revision); count]), PushResult::Queued);
        }
        queue.end(QueueEnd::Lost(Revision(5)));
        let revisions = |taken: &Taken| taken.events.iter().map(|event| event.revision.0).collect::<Vec<_>>();
        for (max_events, max_bytes, wanted) in
            [(3, usize::MAX, vec![1]), (1, usize::MAX, vec![2, 2, 2]), (9, 1, vec![3])]
        {
            let taken = queue.take(max_events, max_bytes);
            assert_eq!((revisions(&taken), taken.is_emptied), (wanted, false));
            assert!(taken.ended.is_none(), "the rest comes first");
        }
        assert_eq!(total.load(Ordering::Relaxed), at(4).memory());
        let taken = queue.take(1, 1);
        assert_eq!((revisions(&taken), taken.is_emptied), (vec![4], true));
        assert!(matches!(taken.ended, Some(QueueEnd::Lost(Revision(5)))));
    }
}
