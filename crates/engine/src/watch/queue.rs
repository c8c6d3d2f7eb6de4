//! What waits for one watch.
//!
//! Bounds: [`MAX_WATCH_QUEUE_EVENTS`] and [`MAX_WATCH_QUEUE_BYTES`] for each, [`MAX_WATCH_QUEUES_BYTES`] for all.
//! At a bound the commit is not queued, nor anything after it: the queue says which revision was the first it
//! lost, and the watch goes on from the log. Commits are queued whole.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use thalweg_types::{
    Revision,
    limits::{MAX_WATCH_QUEUE_BYTES, MAX_WATCH_QUEUE_EVENTS, MAX_WATCH_QUEUES_BYTES},
};

use crate::{
    tails::Waiter,
    watch::{WatchEvent, error::WatchError},
};

/// How a queue has ended.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// The first revision that was not queued.
    Lost(Revision),
    /// Nothing can be read any more.
    Failed(WatchError),
}

#[derive(Debug, Default)]
struct Inner {
    events: VecDeque<WatchEvent>,
    bytes: usize,
    ended: Option<Ended>,
    waiter: Option<Waiter>,
}

/// Filled by the dispatcher, emptied by its watch.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Bytes in all queues.
    total: Arc<AtomicUsize>,
}

/// Whether a commit was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Queued,
    Lost,
}

impl Queue {
    pub(crate) fn new(total: Arc<AtomicUsize>) -> Self {
        Self { inner: Mutex::default(), total }
    }

    /// Queues a commit's events, or ends the queue before them.
    pub(crate) fn push(&self, revision: Revision, events: &[WatchEvent]) -> Pushed {
        let bytes = events.iter().map(WatchEvent::memory).sum::<usize>();
        let mut inner = self.lock();
        let total = self.total.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = inner.events.len() + events.len() <= MAX_WATCH_QUEUE_EVENTS
            && inner.bytes + bytes <= MAX_WATCH_QUEUE_BYTES
            && total <= MAX_WATCH_QUEUES_BYTES;
        if fits {
            inner.bytes += bytes;
            inner.events.extend(events.iter().cloned());
            return Pushed::Queued;
        }
        self.total.fetch_sub(bytes, Ordering::Relaxed);
        inner.ended.get_or_insert(Ended::Lost(revision));
        Pushed::Lost
    }

    /// Nothing more comes. Wakes nobody.
    pub(crate) fn end(&self, how: Ended) {
        self.lock().ended.get_or_insert(how);
    }

    /// Everything that waits, and whether nothing follows.
    pub(crate) fn take(&self) -> (Vec<WatchEvent>, Option<Ended>) {
        let mut inner = self.lock();
        self.total.fetch_sub(inner.bytes, Ordering::Relaxed);
        inner.bytes = 0;
        (std::mem::take(&mut inner.events).into(), inner.ended.clone())
    }

    pub(crate) fn is_quiet(&self) -> bool {
        let inner = self.lock();
        inner.events.is_empty() && inner.ended.is_none()
    }

    /// Who is woken by the next [`wake`](Self::wake); look at the queue again afterwards.
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
