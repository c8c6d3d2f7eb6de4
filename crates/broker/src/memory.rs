//! The bound on the bytes queued in all links together.
//!
//! Links reserve memory in steps of [`STEP`] bytes, so they rarely touch the shared counter. Invariant:
//! `used` is the sum of the links' reservations in bytes. It exceeds the limit `max` only through
//! [`Reservation::grow_to`], by at most one batch for each link.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{
    locked,
    losses::LossCounters,
    notify::{Notify, WaitStamp, Waiters},
};

/// Number of bytes that a link reserves at a time.
const STEP: u64 = 64 * 1024;

pub(crate) struct Memory {
    used: AtomicU64,
    max: u64,
    waiting: Mutex<Waiters>,
    any_waiting: AtomicBool,
    /// True if a publisher that waits may have missed memory that was released, because publishes in progress held it.
    missed: AtomicBool,
    /// Stamp of the next publisher that begins to wait, for memory or for a queue.
    stamps: AtomicU64,
    /// Counters of messages lost because memory or queues were full.
    pub(crate) losses: LossCounters,
}

impl Memory {
    pub(crate) fn new(max: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            max,
            waiting: Mutex::default(),
            any_waiting: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            stamps: AtomicU64::new(0),
            losses: LossCounters::default(),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Adds a publisher that waits for other links to release memory. The caller must then try to publish
    /// once more. This retry sees the memory released before this call; a link that releases memory later
    /// sees the flag and notifies the publisher (all accesses are sequentially consistent).
    pub(crate) fn wait(&self, waiter: &Arc<dyn Notify>) {
        let mut waiting = locked(self.waiting.lock());
        waiting.add(waiter, self.stamp());
        self.any_waiting.store(true, Ordering::SeqCst);
    }

    /// Returns a stamp for a publisher that begins to wait.
    pub(crate) fn stamp(&self) -> WaitStamp {
        WaitStamp(self.stamps.fetch_add(1, Ordering::SeqCst))
    }

    /// Returns the stamp of the next publisher that begins to wait.
    pub(crate) fn now(&self) -> WaitStamp {
        WaitStamp(self.stamps.load(Ordering::SeqCst))
    }

    /// Removes and returns the publishers to notify after memory may have been released.
    pub(crate) fn take_waiting(&self) -> Vec<Arc<dyn Notify>> {
        if !self.may_notify() {
            return Vec::new();
        }
        let mut waiting = locked(self.waiting.lock());
        self.missed.store(false, Ordering::SeqCst);
        self.any_waiting.store(false, Ordering::SeqCst);
        waiting.take()
    }

    /// Removes and returns the publishers to notify after the publisher `own` has failed and has released its
    /// reservations, made since the stamp `since`. These are the publishers that began to wait since then. The others
    /// began to wait earlier, without the reservations, so the release gives them no new room.
    pub(crate) fn take_since(&self, since: WaitStamp, own: Option<&Arc<dyn Notify>>) -> Vec<Arc<dyn Notify>> {
        if self.missed.load(Ordering::SeqCst) {
            return self.take_waiting();
        }
        if !self.may_notify() {
            return Vec::new();
        }
        let mut waiting = locked(self.waiting.lock());
        let taken = waiting.take_since(since, own);
        self.any_waiting.store(!waiting.is_empty(), Ordering::SeqCst);
        taken
    }

    /// Returns true if publishers wait and memory is free. If no memory is free, the caller notifies them later, when
    /// publishes in progress release their reservations.
    fn may_notify(&self) -> bool {
        if !self.any_waiting.load(Ordering::SeqCst) {
            return false;
        }
        if self.used.load(Ordering::SeqCst) >= self.max {
            self.missed.store(true, Ordering::SeqCst);
            // A release after the first look did not see the flag.
            return self.used.load(Ordering::SeqCst) < self.max;
        }
        true
    }
}

/// Number of bytes that one link has reserved.
#[derive(Debug, Default)]
pub(crate) struct Reservation(u64);

impl Reservation {
    /// Grows the reservation to at least `bytes` if the limit permits. Returns true on success.
    pub(crate) fn try_grow_to(&mut self, bytes: u64, memory: &Memory) -> bool {
        if bytes <= self.0 {
            return true;
        }
        let more = (bytes - self.0).next_multiple_of(STEP);
        // An add followed by an undo would be wrong: a waiter could look in between, and no notification
        // would follow.
        let take = |used: u64| used.checked_add(more).filter(|used| *used <= memory.max);
        if memory.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return false;
        }
        self.0 += more;
        true
    }

    /// Grows the reservation to at least `bytes`, even if all links together then exceed the limit.
    pub(crate) fn grow_to(&mut self, bytes: u64, memory: &Memory) {
        if bytes > self.0 {
            let more = (bytes - self.0).next_multiple_of(STEP);
            memory.used.fetch_add(more, Ordering::SeqCst);
            self.0 += more;
        }
    }

    /// Releases the reserved bytes that exceed `bytes` by far; releases all of them if `bytes` is 0.
    pub(crate) fn shrink(&mut self, bytes: u64, memory: &Memory) {
        let keep = if bytes == 0 { 0 } else { bytes.next_multiple_of(STEP) + STEP };
        if self.0 > keep {
            memory.used.fetch_sub(self.0 - keep, Ordering::SeqCst);
            self.0 = keep;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let memory = Memory::new(3 * STEP);
        let (mut one, mut two) = (Reservation::default(), Reservation::default());
        assert!(one.try_grow_to(STEP + 1, &memory));
        assert_eq!(memory.used(), 2 * STEP);
        assert!(two.try_grow_to(1, &memory));
        assert!(!two.try_grow_to(STEP + 1, &memory), "at the bound");
        assert!(two.try_grow_to(STEP, &memory), "it holds that much already");
        assert_eq!(memory.used(), 3 * STEP);
        two.grow_to(STEP + 1, &memory);
        assert_eq!(memory.used(), 4 * STEP);
        one.shrink(0, &memory);
        two.shrink(0, &memory);
        assert_eq!(memory.used(), 0);
    }
}
