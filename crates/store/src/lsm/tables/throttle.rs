//! Throttling of flushes and compactions while clients write.
//!
//! Owns: [`Throttle`], which tracks writes and the backlog, and [`WorkThrottle`], with which one flush or compaction
//! decides whether to slow itself down. Does not own: stalling writers, or the written data.
//!
//! While clients write, a flush or compaction that is *calm* (not urgent) writes its data to disk in small pieces, with
//! pauses between them. With consecutive pieces of 1 MiB, the fsyncs of a log alone had a 99.9th percentile of 4.0 to
//! 4.5 ms; with pieces of 128 KiB and pauses, 0.7 to 0.8 ms. *Urgent* work runs at full speed: a flush or compaction is
//! urgent while a caller waits for it; a flush also while a second memtable waits; a compaction also from
//! [`URGENT_LEVEL_0_RUNS`] runs on level 0 until fewer than [`CALM_LEVEL_0_RUNS`] are left. All of these conditions
//! become true before writers are slowed down.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Maximum pause of a throttled flush or compaction after writing a piece. If the disk takes longer for a piece, a
/// longer pause would gain nothing.
const MAX_REST: Duration = Duration::from_millis(5);
/// Time after the last write of a client during which clients count as still writing.
const ACTIVE: Duration = Duration::from_millis(100);
/// Number of runs on level 0 from which compactions are urgent and are not throttled.
pub(super) const URGENT_LEVEL_0_RUNS: usize = 7;
/// Number of runs on level 0 below which urgent compactions have caught up. Without the gap to the number above,
/// compactions of a long load would be throttled each time that they have just begun to catch up.
const CALM_LEVEL_0_RUNS: usize = 4;

/// Kind of work that a background thread of the LSM tree does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// A flush of a memtable to disk, which makes room for writers.
    Flush,
    /// A compaction of tables, which keeps reads fast and disk usage small.
    Compaction,
}

/// Amount of pending background work: waiting callers, memtables and tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backlog {
    /// True if a caller waits for the background work.
    pub is_awaited: bool,
    /// Number of memtables that wait for a flush, including the memtable that is being flushed.
    pub sealed: usize,
    /// Number of sorted runs of tables on level 0.
    pub level_0_runs: usize,
    /// Maximum number of bytes that the flushes of all memtables in memory will write.
    pub flush_bytes: u64,
}

impl Backlog {
    /// Returns true if the work is calm. `is_behind` is true if level 0 has too many runs.
    fn is_calm(self, chore: WorkKind, is_behind: bool) -> bool {
        let is_behind = match chore {
            WorkKind::Flush => self.sealed > 1,
            WorkKind::Compaction => is_behind,
        };
        !self.is_awaited && !is_behind
    }
}

/// State of the throttling that clients and background threads share; see the [module](self). Background work counts as
/// urgent until a backlog is reported.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Number of writes of clients so far.
    writes: AtomicU64,
    /// True from the time at which level 0 had [`URGENT_LEVEL_0_RUNS`] runs until it has fewer than
    /// [`CALM_LEVEL_0_RUNS`].
    is_behind: AtomicBool,
    flush_is_calm: AtomicBool,
    compaction_is_calm: AtomicBool,
    /// Free disk space in bytes that compactions must leave for flushes.
    flush_bytes: AtomicU64,
    /// Total microseconds for which flushes have paused between pieces, and the same for compactions.
    flush_rest_micros: AtomicU64,
    compaction_rest_micros: AtomicU64,
}

impl Throttle {
    /// Counts a write of a client. The caller holds the lock of the memtables' writer, so no two threads count at a
    /// time, and a plain store does.
    #[inline]
    pub(crate) fn count_write(&self) {
        self.writes.store(self.writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Stores the current backlog, which decides whether work is urgent.
    pub(crate) fn report(&self, backlog: Backlog) {
        let was_behind = self.is_behind.load(Ordering::Relaxed);
        let is_behind = backlog.level_0_runs >= if was_behind { CALM_LEVEL_0_RUNS } else { URGENT_LEVEL_0_RUNS };
        self.is_behind.store(is_behind, Ordering::Relaxed);
        for chore in [WorkKind::Flush, WorkKind::Compaction] {
            self.is_calm(chore).store(backlog.is_calm(chore, is_behind), Ordering::Relaxed);
        }
        self.flush_bytes.store(backlog.flush_bytes, Ordering::Relaxed);
    }

    /// Returns true if compactions are throttled while clients write.
    pub(crate) fn throttles_compactions(&self) -> bool {
        self.compaction_is_calm.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of disk space that a compaction must leave free for flushes.
    pub(crate) fn kept_free_bytes(&self) -> u64 {
        self.flush_bytes.load(Ordering::Relaxed)
    }

    /// Creates the throttling state for a flush or compaction that begins now.
    pub(crate) fn begin_work(self: &Arc<Self>, chore: WorkKind) -> WorkThrottle {
        WorkThrottle { pace: Arc::clone(self), chore, writes: self.writes.load(Ordering::Relaxed), written: None }
    }

    /// Returns the total time in microseconds for which work of this kind has paused between pieces.
    pub(crate) fn rest_micros(&self, chore: WorkKind) -> u64 {
        self.rest_counter(chore).load(Ordering::Relaxed)
    }

    fn rest_counter(&self, chore: WorkKind) -> &AtomicU64 {
        match chore {
            WorkKind::Flush => &self.flush_rest_micros,
            WorkKind::Compaction => &self.compaction_rest_micros,
        }
    }

    fn is_calm(&self, chore: WorkKind) -> &AtomicBool {
        match chore {
            WorkKind::Flush => &self.flush_is_calm,
            WorkKind::Compaction => &self.compaction_is_calm,
        }
    }
}

/// State of the throttling of one flush or compaction.
#[derive(Debug)]
pub(crate) struct WorkThrottle {
    pace: Arc<Throttle>,
    chore: WorkKind,
    /// Number of client writes at the last check. The next field is the time of the last check that found new writes.
    writes: u64,
    written: Option<Instant>,
}

impl WorkThrottle {
    /// Returns true if this flush or compaction should be throttled: it is not urgent, and clients have written
    /// recently.
    pub(crate) fn should_throttle(&mut self, now: Instant) -> bool {
        let writes = self.pace.writes.load(Ordering::Relaxed);
        if writes != self.writes {
            (self.writes, self.written) = (writes, Some(now));
        }
        self.pace.is_calm(self.chore).load(Ordering::Relaxed)
            && self.written.is_some_and(|at| now.saturating_duration_since(at) <= ACTIVE)
    }

    /// Pauses for as long as the disk was used for the last piece, so that other threads can use the disk.
    pub(super) fn pause_after(&self, took: Duration) {
        let rest = took.min(MAX_REST);
        thread::sleep(rest);
        self.pace.rest_counter(self.chore).fetch_add(rest.as_micros() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Backlog = Backlog { is_awaited: false, sealed: 1, level_0_runs: 6, flush_bytes: 0 };

    #[test]
    fn work_is_urgent_if_it_is_awaited_or_writers_would_soon_be() {
        let calm = |backlog: Backlog| {
            let pace = Throttle::default();
            pace.report(backlog);
            [WorkKind::Flush, WorkKind::Compaction].map(|chore| pace.is_calm(chore).load(Ordering::Relaxed))
        };
        assert_eq!(calm(CALM), [true, true]);
        assert_eq!(calm(Backlog { is_awaited: true, ..CALM }), [false, false]);
        assert_eq!(calm(Backlog { sealed: 2, ..CALM }), [false, true]);
        assert_eq!(calm(Backlog { level_0_runs: 7, ..CALM }), [true, false]);
    }

    #[test]
    fn compactions_that_are_behind_are_urgent_until_they_have_caught_up() {
        let pace = Throttle::default();
        let throttled = [6, 7, 9, 5, 4, 3, 5, 6, 7, 4].map(|level_0_runs| {
            pace.report(Backlog { level_0_runs, ..CALM });
            pace.throttles_compactions()
        });
        assert_eq!(throttled, [true, false, false, false, false, true, true, true, false, false]);
    }

    #[test]
    fn it_is_considerate_while_somebody_writes_and_it_is_calm() {
        let pace = Arc::new(Throttle::default());
        let now = Instant::now();
        pace.count_write();
        pace.report(CALM);
        let mut stint = pace.begin_work(WorkKind::Flush);
        assert!(!stint.should_throttle(now), "earlier writes do not count");
        pace.count_write();
        assert!(stint.should_throttle(now));
        assert!(stint.should_throttle(now + ACTIVE), "clients may still be writing");
        pace.report(Backlog { sealed: 2, ..CALM });
        assert!(!stint.should_throttle(now + ACTIVE));
        pace.report(CALM);
        assert!(!stint.should_throttle(now + ACTIVE * 2));
    }

    #[test]
    fn pauses_are_bounded_and_counted_by_the_kind_of_work() {
        let pace = Arc::new(Throttle::default());
        pace.begin_work(WorkKind::Compaction).pause_after(Duration::from_secs(3600));
        pace.begin_work(WorkKind::Compaction).pause_after(Duration::from_micros(7));
        let rests = [WorkKind::Flush, WorkKind::Compaction].map(|chore| pace.rest_micros(chore));
        assert_eq!(rests, [0, MAX_REST.as_micros() as u64 + 7]);
    }
}
