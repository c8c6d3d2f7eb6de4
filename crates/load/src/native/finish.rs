//! Detects the end of a run: receivers wait until they have received everything that was sent, but no longer than the
//! run's timeout.
//!
//! Owns: the number of messages that each sender has sent. Wakes sleeping tasks when the total becomes known or the run
//! is aborted. To check for the end, a receiver only reads atomic variables, so it can check often.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

const UNKNOWN: u64 = u64::MAX;

/// Shared state by which the threads of a benchmark run detect its end.
#[derive(Debug)]
pub struct Finish {
    sent: Vec<AtomicU64>,
    running: AtomicUsize,
    total: AtomicU64,
    receiving: AtomicUsize,
    groups: Vec<AtomicU64>,
    given_up: AtomicBool,
    sleepers: Mutex<Vec<Waker>>,
}

impl Finish {
    /// Creates the state of a run with this number of senders and receivers. `groups` is the number of queue groups,
    /// whose members share messages.
    pub fn new(senders: usize, receivers: usize, groups: usize) -> Self {
        Self {
            sent: (0..senders).map(|_| AtomicU64::new(0)).collect(),
            running: AtomicUsize::new(senders),
            total: AtomicU64::new(UNKNOWN),
            receiving: AtomicUsize::new(receivers),
            groups: (0..groups).map(|_| AtomicU64::new(0)).collect(),
            given_up: AtomicBool::new(false),
            sleepers: Mutex::default(),
        }
    }

    /// Registers the current task. It is woken when the total becomes known and when the run ends. One call for each
    /// task is enough, because a task's waker stays the same.
    pub async fn register_task(&self) {
        std::future::poll_fn(|cx| {
            self.register(cx.waker());
            Poll::Ready(())
        })
        .await;
    }

    /// Registers a waker. It is called when the total number of sent messages becomes known and when the benchmark run
    /// ends.
    pub fn register(&self, waker: &Waker) {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).push(waker.clone());
    }

    /// Reports that a sender has finished after `messages` messages.
    pub fn sent(&self, sender: usize, messages: u64) {
        self.sent[sender].store(messages, Ordering::Release);
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.total.store(self.all_sent().iter().sum(), Ordering::Release);
            self.wake();
        }
    }

    /// Returns the total number of messages that all senders have sent; `None` until all senders have finished.
    #[inline]
    pub fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Acquire)).filter(|total| *total != UNKNOWN)
    }

    /// Returns the number of messages that each sender has sent.
    pub fn all_sent(&self) -> Vec<u64> {
        self.sent.iter().map(|sent| sent.load(Ordering::Acquire)).collect()
    }

    /// Counts messages that a member of a queue group received. Each member gets only some messages of the group, so
    /// only all members together can tell when the group has received everything.
    pub fn group_received(&self, group: usize, messages: u64) {
        let have = self.groups[group].fetch_add(messages, Ordering::AcqRel) + messages;
        if self.total().is_some_and(|total| have >= total) {
            self.wake();
        }
    }

    /// Returns the number of messages that the members of a queue group have received together.
    pub fn group_message_count(&self, group: usize) -> u64 {
        self.groups[group].load(Ordering::Acquire)
    }

    /// Reports that a receiver has received all its messages.
    pub fn received(&self) {
        if self.receiving.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake();
        }
    }

    /// Returns true if all receivers have finished, or the benchmark run was aborted.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.is_given_up() || self.receiving.load(Ordering::Acquire) == 0
    }

    /// Aborts the benchmark run for all threads.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns true if the benchmark run was aborted.
    #[inline]
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // The wakers stay registered. A task that was woken because the total became known may have to be woken again
        // when the run is aborted.
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Waker::wake_by_ref);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, task::Wake};

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn sleepers_are_woken_when_the_total_is_known_when_all_is_received_and_when_it_is_given_up() {
        let finish = Finish::new(2, 2, 1);
        let woken = Arc::new(Counted::default());
        finish.register(&Waker::from(Arc::clone(&woken)));
        let times = || woken.0.load(Ordering::Relaxed);
        finish.sent(1, 30);
        assert_eq!((finish.total(), times()), (None, 0));
        finish.sent(0, 12);
        assert_eq!((finish.total(), finish.all_sent(), times()), (Some(42), vec![12, 30], 1));
        finish.group_received(0, 41);
        assert_eq!((finish.group_message_count(0), times()), (41, 1));
        finish.group_received(0, 1);
        assert_eq!(times(), 2, "the others of the group");
        finish.received();
        assert!(!finish.is_over());
        finish.received();
        assert!(finish.is_over() && !finish.is_given_up() && times() == 3);
        finish.give_up();
        assert!(finish.is_given_up() && times() == 4);
    }
}
