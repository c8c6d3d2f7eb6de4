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

    /// Takes all queued events. Also returns the reason of the end, if the queue has ended.
    pub(crate) fn take(&self) -> (Vec<WatchEvent>, Option<QueueEnd>) {
        let mut inner = self.lock();
        self.total.fetch_sub(inner.bytes, Ordering::Relaxed);
        inner.bytes = 0;
        (std::mem::take(&mut inner.events).into(), inner.ended.clone())
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
        match queue.take().1 {
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
        assert_eq!((others[0].take().0.len(), after.push(Revision(3), &[large])), (1, PushResult::Queued));
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
        assert_eq!((queue.take().0.len(), lost(&queue)), (small.len(), Some(Revision(2))));
        let queue = Queue::new(total, MAX_TOTAL);
        assert_eq!(queue.push(Revision(1), &[event(MAX_WATCH_QUEUE_BYTES)]), PushResult::Lost);
    }
}
