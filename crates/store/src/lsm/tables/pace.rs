//! Throttling of flushes and compactions while clients write.
//!
//! Owns: [`Pace`], which tracks writes and the backlog, and [`Stint`], with which one flush or compaction decides
//! if it should throttle itself. Does not own: stalling writers, or the written data.
//!
//! While clients write and the work is *calm*, it is written to disk in small pieces with pauses between them. With
//! consecutive pieces of 1 MiB, the fsyncs of a log alone had a 99.9th percentile of 4.0 to 4.5 ms; with pieces of
//! 128 KiB and pauses, 0.7 to 0.8 ms. *Urgent* work runs at full speed: while a caller waits for it, while a second
//! memtable waits for a flush, or from [`URGENT_LEVEL_0_RUNS`] runs on level 0. All of these come before writers
//! are slowed down.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Maximum pause. If the disk takes longer for a piece, a longer pause would gain nothing.
const MAX_REST: Duration = Duration::from_millis(5);
/// Time after a write during which clients count as still writing.
const ACTIVE: Duration = Duration::from_millis(100);
/// Runs on level 0 from which compactions are urgent.
pub const URGENT_LEVEL_0_RUNS: usize = 7;

/// Kind of work of a background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// A flush, which makes room for writers.
    Flush,
    /// A compaction, which keeps reads fast and disk usage small.
    Compaction,
}

/// Amount of pending background work.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    /// True if a caller waits for the work.
    pub is_awaited: bool,
    /// Number of memtables that wait for a flush, including the one being flushed.
    pub sealed: usize,
    /// Number of runs on level 0.
    pub level_0_runs: usize,
}

impl Backlog {
    fn is_calm(self, chore: Chore) -> bool {
        let is_behind = match chore {
            Chore::Flush => self.sealed > 1,
            Chore::Compaction => self.level_0_runs >= URGENT_LEVEL_0_RUNS,
        };
        !self.is_awaited && !is_behind
    }
}

/// Shared state of the throttling; see the [module](self). Work is urgent until a backlog is reported.
#[derive(Debug, Default)]
pub struct Pace {
    /// Number of writes so far.
    writes: AtomicU64,
    flush_is_calm: AtomicBool,
    compaction_is_calm: AtomicBool,
}

impl Pace {
    /// Counts a write of a client.
    #[inline]
    pub fn wrote(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports the current backlog.
    pub fn tell(&self, backlog: Backlog) {
        for chore in [Chore::Flush, Chore::Compaction] {
            self.is_calm(chore).store(backlog.is_calm(chore), Ordering::Relaxed);
        }
    }

    /// Begins a flush or compaction.
    pub fn stint(self: &Arc<Self>, chore: Chore) -> Stint {
        Stint { pace: Arc::clone(self), chore, writes: self.writes.load(Ordering::Relaxed), written: None }
    }

    fn is_calm(&self, chore: Chore) -> &AtomicBool {
        match chore {
            Chore::Flush => &self.flush_is_calm,
            Chore::Compaction => &self.compaction_is_calm,
        }
    }
}

/// State of the throttling in one flush or compaction.
#[derive(Debug)]
pub struct Stint {
    pace: Arc<Pace>,
    chore: Chore,
    /// Number of writes at the last check, and the time at which a check last saw an increase.
    writes: u64,
    written: Option<Instant>,
}

impl Stint {
    /// Returns true if the work is calm and clients have written recently, so that it should be throttled.
    pub fn is_considerate(&mut self, now: Instant) -> bool {
        let writes = self.pace.writes.load(Ordering::Relaxed);
        if writes != self.writes {
            (self.writes, self.written) = (writes, Some(now));
        }
        self.pace.is_calm(self.chore).load(Ordering::Relaxed)
            && self.written.is_some_and(|at| now.saturating_duration_since(at) <= ACTIVE)
    }
}

/// Leaves the disk to others for as long as it was used.
pub fn rest_after(took: Duration) {
    thread::sleep(took.min(MAX_REST));
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Backlog = Backlog { is_awaited: false, sealed: 1, level_0_runs: 6 };

    #[test]
    fn work_is_urgent_if_it_is_awaited_or_writers_would_soon_be() {
        let calm = |backlog: Backlog| [Chore::Flush, Chore::Compaction].map(|chore| backlog.is_calm(chore));
        assert_eq!(calm(CALM), [true, true]);
        assert_eq!(calm(Backlog { is_awaited: true, ..CALM }), [false, false]);
        assert_eq!(calm(Backlog { sealed: 2, ..CALM }), [false, true]);
        assert_eq!(calm(Backlog { level_0_runs: 7, ..CALM }), [true, false]);
    }

    #[test]
    fn it_is_considerate_while_somebody_writes_and_it_is_calm() {
        let pace = Arc::new(Pace::default());
        let now = Instant::now();
        pace.wrote();
        pace.tell(CALM);
        let mut stint = pace.stint(Chore::Flush);
        assert!(!stint.is_considerate(now), "earlier writes do not count");
        pace.wrote();
        assert!(stint.is_considerate(now));
        assert!(stint.is_considerate(now + ACTIVE), "clients may still be writing");
        pace.tell(Backlog { sealed: 2, ..CALM });
        assert!(!stint.is_considerate(now + ACTIVE));
        pace.tell(CALM);
        assert!(!stint.is_considerate(now + ACTIVE * 2));
    }
}
