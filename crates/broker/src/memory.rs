//! How many bytes wait in all queues together.
//!
//! Links take what they need in steps of [`STEP`], so the shared counter is touched rarely. Invariant: `used` is the
//! sum of what links hold; it passes `max` only by what [`Memory::force`] gave, at most a batch for each link.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{
    locked,
    losses::Counted,
    notify::{Notify, Waiters},
};

/// Bytes that a link takes at a time.
const STEP: u64 = 64 * 1024;

pub(crate) struct Memory {
    used: AtomicU64,
    max: u64,
    waiting: Mutex<Waiters>,
    any_waiting: AtomicBool,
    /// What was given up because there was none.
    pub(crate) losses: Counted,
}

impl Memory {
    pub(crate) fn new(max: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            max,
            waiting: Mutex::default(),
            any_waiting: AtomicBool::new(false),
            losses: Counted::default(),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Remembers who waits for others to give some back. Whoever calls this tries again afterwards: what is given back
    /// before that is seen by the try, what is given back later sees the flag (both orders are sequentially
    /// consistent).
    pub(crate) fn wait(&self, waiter: &Arc<dyn Notify>) {
        let mut waiting = locked(self.waiting.lock());
        waiting.add(waiter);
        self.any_waiting.store(true, Ordering::SeqCst);
    }

    /// Whom to tell, after something may have been given back.
    pub(crate) fn take_waiting(&self) -> Vec<Arc<dyn Notify>> {
        if !self.any_waiting.load(Ordering::SeqCst) || self.used.load(Ordering::SeqCst) >= self.max {
            return Vec::new();
        }
        let mut waiting = locked(self.waiting.lock());
        self.any_waiting.store(false, Ordering::SeqCst);
        waiting.take()
    }
}

/// What one link holds of it.
#[derive(Debug, Default)]
pub(crate) struct Held(u64);

impl Held {
    /// Makes it cover `bytes` if that is within the bound.
    pub(crate) fn try_cover(&mut self, bytes: u64, memory: &Memory) -> bool {
        if bytes <= self.0 {
            return true;
        }
        let more = (bytes - self.0).next_multiple_of(STEP);
        // Not added and taken back: somebody who waits might look in between, and nobody would tell it.
        let take = |used: u64| used.checked_add(more).filter(|used| *used <= memory.max);
        if memory.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return false;
        }
        self.0 += more;
        true
    }

    /// Makes it cover `bytes`, bound or no bound.
    pub(crate) fn force(&mut self, bytes: u64, memory: &Memory) {
        if bytes > self.0 {
            let more = (bytes - self.0).next_multiple_of(STEP);
            memory.used.fetch_add(more, Ordering::SeqCst);
            self.0 += more;
        }
    }

    /// Gives back what goes well beyond `bytes`; everything when that is zero.
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
        let (mut one, mut two) = (Held::default(), Held::default());
        assert!(one.try_cover(STEP + 1, &memory));
        assert_eq!(memory.used(), 2 * STEP);
        assert!(two.try_cover(1, &memory));
        assert!(!two.try_cover(STEP + 1, &memory), "at the bound");
        assert!(two.try_cover(STEP, &memory), "what it holds already");
        assert_eq!(memory.used(), 3 * STEP);
        two.force(STEP + 1, &memory);
        assert_eq!(memory.used(), 4 * STEP);
        one.shrink(0, &memory);
        two.shrink(0, &memory);
        assert_eq!(memory.used(), 0);
    }
}
