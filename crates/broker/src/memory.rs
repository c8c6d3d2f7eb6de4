//! How many bytes wait in all queues together.
//!
//! Links take what they need in steps of [`STEP`], so the shared counter is touched rarely. Invariant: `used` is the
//! sum of what links hold; it passes `max` only by what [`Memory::force`] gave, at most a batch for each link.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a link takes at a time.
const STEP: u64 = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Memory {
    used: AtomicU64,
    max: u64,
}

impl Memory {
    pub(crate) fn new(max: u64) -> Self {
        Self { used: AtomicU64::new(0), max }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
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
        if memory.used.fetch_add(more, Ordering::Relaxed).saturating_add(more) > memory.max {
            memory.used.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.0 += more;
        true
    }

    /// Makes it cover `bytes`, bound or no bound.
    pub(crate) fn force(&mut self, bytes: u64, memory: &Memory) {
        if bytes > self.0 {
            let more = (bytes - self.0).next_multiple_of(STEP);
            memory.used.fetch_add(more, Ordering::Relaxed);
            self.0 += more;
        }
    }

    /// Gives back what goes well beyond `bytes`; everything when that is zero.
    pub(crate) fn shrink(&mut self, bytes: u64, memory: &Memory) {
        let keep = if bytes == 0 { 0 } else { bytes.next_multiple_of(STEP) + STEP };
        if self.0 > keep {
            memory.used.fetch_sub(self.0 - keep, Ordering::Relaxed);
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
