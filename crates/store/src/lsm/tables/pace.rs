//! How flushes and compactions go to the disk beside writers.
//!
//! Owns: [`Pace`], which knows whether somebody writes and how much there is to do, and [`Stint`], which tells one flush
//! or compaction whether to be considerate. Does not own: making writers wait, or what is written.
//!
//! While work is *calm* and somebody writes, it goes to the disk in small pieces with rests between: beside pieces of 1 MiB
//! one after the other, a bare log's fsyncs had a 99.9th percentile of 4.0 to 4.5 ms; beside pieces of 128 KiB with rests, of
//! 0.7 to 0.8 ms. *Urgent* work is done as fast as it goes: while somebody waits for it, while a second memtable waits
//! for a flush, or from [`URGENT_LEVEL_0_RUNS`] on. All of that comes before writers are slowed down.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The longest rest: where the disk takes longer, resting as long again would gain nothing.
const MAX_REST: Duration = Duration::from_millis(5);
/// Writers who wrote within this time write still.
const ACTIVE: Duration = Duration::from_millis(100);
/// Runs on level 0 from which on compactions are urgent.
pub const URGENT_LEVEL_0_RUNS: usize = 7;

/// What is done in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// Gives writers room.
    Flush,
    /// Keeps reads fast and space small.
    Compaction,
}

/// How much there is to do.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    /// Whether somebody waits for it to be done.
    pub is_awaited: bool,
    /// Memtables that wait for a flush, the one being flushed among them.
    pub sealed: usize,
    /// Runs on level 0.
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

/// See the module. Urgent until told otherwise.
#[derive(Debug, Default)]
pub struct Pace {
    /// How often somebody wrote.
    writes: AtomicU64,
    flush_is_calm: AtomicBool,
    compaction_is_calm: AtomicBool,
}

impl Pace {
    /// Somebody wrote.
    #[inline]
    pub fn wrote(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// From now on there is so much to do.
    pub fn tell(&self, backlog: Backlog) {
        for chore in [Chore::Flush, Chore::Compaction] {
            self.is_calm(chore).store(backlog.is_calm(chore), Ordering::Relaxed);
        }
    }

    /// Begins to do it.
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

/// One flush or compaction.
#[derive(Debug)]
pub struct Stint {
    pace: Arc<Pace>,
    chore: Chore,
    /// How often somebody had written when last looked at, and when that was last seen to be more than before.
    writes: u64,
    written: Option<Instant>,
}

impl Stint {
    /// Whether somebody writes whom it should not hold up, and there is time for that.
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
        assert!(!stint.is_considerate(now), "what was written before says nothing");
        pace.wrote();
        assert!(stint.is_considerate(now));
        assert!(stint.is_considerate(now + ACTIVE), "perhaps somebody writes still");
        pace.tell(Backlog { sealed: 2, ..CALM });
        assert!(!stint.is_considerate(now + ACTIVE));
        pace.tell(CALM);
        assert!(!stint.is_considerate(now + ACTIVE * 2));
    }
}
