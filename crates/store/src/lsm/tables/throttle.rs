//! Throttling of flushes and compactions while clients write.
//!
//! Owns: [`Throttle`], which tracks writes and the backlog, and [`WorkThrottle`], with which one flush or compaction
//! decides if it slows itself down. Does not own: stalling writers, the written data, or the length of a pause, which
//! the [`Pacer`] decides.
//!
//! While clients write, a flush or compaction that is *calm* (not urgent) writes its data to disk in small pieces, with
//! pauses between them. With pieces of 1 MiB and no pauses, the fsyncs of a log had a 99.9th percentile of 4.0 to 4.5
//! ms. With pieces of 128 KiB and pauses, it was 0.7 to 0.8 ms.
//!
//! *Urgent* work runs at full speed. All flushes and compactions are urgent while a caller waits for them. A flush is
//! also urgent while a second memtable waits. Compactions are also urgent from [`URGENT_LEVEL_0_RUNS`] runs on level 0
//! until fewer than [`CALM_LEVEL_0_RUNS`] are left. All of these conditions become true before writers are slowed down.
//!
//! Work that would miss its deadline runs at full speed, too. The deadline is the time at which clients, at their
//! present rate, will have used up the [`WriteRoom`] that the work enlarges.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_disk::{PacedJob, PacedWork, Pacer, Permit, WriteMeter};

/// Maximum pause of a throttled flush or compaction after it has written a piece of its output, unless the pacer (the
/// scheduler of background disk work) extends the pause. Even if the disk takes longer for a piece, a longer pause
/// would gain nothing.
const MAX_REST: Duration = Duration::from_millis(5);
/// Time after a client's last write for which clients still count as writing.
const ACTIVE: Duration = Duration::from_millis(100);
/// Number of sorted runs on level 0 from which compactions are urgent and are not throttled.
pub(super) const URGENT_LEVEL_0_RUNS: usize = 7;
/// Number of sorted runs on level 0 below which compactions are no longer urgent. It is lower than
/// [`URGENT_LEVEL_0_RUNS`], so that compactions are not throttled again as soon as they begin to catch up during a long
/// load.
const CALM_LEVEL_0_RUNS: usize = 4;

/// Kind of work that a background thread of the LSM tree does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// A flush of a memtable to disk, which makes room for writers.
    Flush,
    /// A compaction of tables, which keeps reads fast and disk usage small.
    Compaction,
}

impl WorkKind {
    const fn paced(self) -> PacedWork {
        match self {
            Self::Flush => PacedWork::Flush,
            Self::Compaction => PacedWork::Compaction,
        }
    }
}

/// Number of bytes that clients can write until they must wait for background work. All fields are 0 if not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteRoom {
    /// Bytes of the memtables that wait for a flush, including the memtable that is being flushed.
    pub sealed_bytes: u64,
    /// Bytes that still fit into memtables. Beyond them, writers wait for a flush.
    pub memtable_bytes: u64,
    /// Bytes that clients can write before level 0 reaches the number of runs at which writers are slowed down.
    pub level_0_bytes: u64,
}

/// Numbers of memtables and runs from which the [`WriteRoom`] is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunCounts {
    /// Number of memtables that wait for a flush. `max_sealed` is the maximum.
    pub sealed: usize,
    pub max_sealed: usize,
    /// Number of sorted runs on level 0. `slow_runs` is the number at which writers are slowed down.
    pub level_0_runs: usize,
    pub slow_runs: usize,
}

impl WriteRoom {
    /// Computes how many bytes clients can write. Each memtable becomes a sorted run of `run_bytes` bytes; the active
    /// memtable has `active_bytes` bytes.
    pub(crate) fn of(counts: RunCounts, run_bytes: u64, active_bytes: u64) -> Self {
        let RunCounts { sealed, max_sealed, level_0_runs, slow_runs } = counts;
        let active_room = run_bytes.saturating_sub(active_bytes);
        let room = |more: usize| active_room + more as u64 * run_bytes;
        Self {
            sealed_bytes: sealed as u64 * run_bytes,
            memtable_bytes: room(max_sealed.saturating_sub(sealed)),
            // The active memtable becomes the last run below the limit.
            level_0_bytes: room(slow_runs.saturating_sub(level_0_runs + sealed + 1)),
        }
    }
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
    /// Bytes that clients can write before they must wait for background work.
    pub room: WriteRoom,
}

impl Backlog {
    /// Returns true if work of this kind is calm (not urgent). `is_behind` is true if level 0 has too many sorted runs.
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
    /// Number of bytes that clients have written so far. Each write counts at least one byte.
    writes: AtomicU64,
    /// True from the moment at which level 0 reaches [`URGENT_LEVEL_0_RUNS`] runs until it has fewer than
    /// [`CALM_LEVEL_0_RUNS`].
    is_behind: AtomicBool,
    flush_is_calm: AtomicBool,
    compaction_is_calm: AtomicBool,
    /// Free disk space in bytes that compactions must leave for flushes.
    flush_bytes: AtomicU64,
    /// Total microseconds for which flushes have paused after writing a piece of their table. `compaction_rest_micros`
    /// counts the pauses of compactions.
    flush_rest_micros: AtomicU64,
    compaction_rest_micros: AtomicU64,
    /// Bytes that the compaction in progress will probably write; 0 if not known.
    compaction_bytes: AtomicU64,
    deadlines: Mutex<Deadlines>,
    /// Scheduler of all background work on the disk.
    pacer: Arc<Pacer>,
}

/// Data from which the deadlines of flushes and compactions are computed: the number of bytes that clients can still
/// write, and the rate at which they write.
#[derive(Debug, Default)]
struct Deadlines {
    /// Number of bytes that clients could write when the backlog was last reported. `writes` is the value of
    /// [`Throttle::writes`] at that time.
    room: WriteRoom,
    writes: u64,
    meter: WriteMeter,
}

impl Throttle {
    /// Creates a throttle. `pacer` decides how long flushes and compactions pause.
    pub(crate) fn new(pacer: Arc<Pacer>) -> Self {
        Self { pacer, ..Self::default() }
    }

    /// Returns the pacer, which decides how long flushes and compactions pause.
    pub(crate) fn pacer(&self) -> &Arc<Pacer> {
        &self.pacer
    }

    /// Counts a client's write of this number of bytes. The caller holds the lock of the memtables' writer, so no other
    /// thread counts at the same time. That is why a load and a store suffice.
    #[inline]
    pub(crate) fn count_write(&self, bytes: usize) {
        let bytes = bytes.max(1) as u64;
        self.writes.store(self.writes.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }

    /// Records how many bytes the compaction that begins now will probably write; 0 if this is not known.
    pub(crate) fn expect_compaction(&self, bytes: u64) {
        self.compaction_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Stores the amount of pending work, and decides from it if flushes and compactions are urgent.
    pub(crate) fn report(&self, backlog: Backlog) {
        let was_behind = self.is_behind.load(Ordering::Relaxed);
        let is_behind = backlog.level_0_runs >= if was_behind { CALM_LEVEL_0_RUNS } else { URGENT_LEVEL_0_RUNS };
        self.is_behind.store(is_behind, Ordering::Relaxed);
        for chore in [WorkKind::Flush, WorkKind::Compaction] {
            self.is_calm(chore).store(backlog.is_calm(chore, is_behind), Ordering::Relaxed);
        }
        self.flush_bytes.store(backlog.flush_bytes, Ordering::Relaxed);
        let mut deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        (deadlines.room, deadlines.writes) = (backlog.room, self.writes.load(Ordering::Relaxed));
    }

    /// Returns the description of a flush or compaction for the pacer: the bytes that it has yet to write, and its
    /// deadline. It has already written `done_bytes` bytes.
    fn job(&self, chore: WorkKind, done_bytes: u64) -> PacedJob {
        let mut deadlines = self.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        let (all_bytes, room_bytes) = match chore {
            WorkKind::Flush => (deadlines.room.sealed_bytes, deadlines.room.memtable_bytes),
            WorkKind::Compaction => (self.compaction_bytes.load(Ordering::Relaxed), deadlines.room.level_0_bytes),
        };
        let writes = self.writes.load(Ordering::Relaxed);
        let room_bytes = room_bytes.saturating_sub(writes.wrapping_sub(deadlines.writes));
        let deadline = deadlines.meter.time_to_fill(self.pacer.now(), writes, room_bytes).filter(|_| all_bytes > 0);
        PacedJob { work: chore.paced(), left_bytes: all_bytes.saturating_sub(done_bytes), deadline }
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
        let writes = self.writes.load(Ordering::Relaxed);
        WorkThrottle { pace: Arc::clone(self), chore, writes, written: None, done_bytes: 0 }
    }

    /// Returns the total time in microseconds for which work of this kind has paused after writing a piece of a table.
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

/// State of one flush or compaction that slows itself down while clients write.
#[derive(Debug)]
pub(crate) struct WorkThrottle {
    pace: Arc<Throttle>,
    chore: WorkKind,
    /// Value of [`Throttle::writes`] at the last check. `written` is the time of the last check that found new writes.
    writes: u64,
    written: Option<Instant>,
    /// Bytes that this flush or compaction has written.
    done_bytes: u64,
}

impl WorkThrottle {
    /// Adds to the number of bytes that this flush or compaction has written.
    pub(super) fn add_done(&mut self, bytes: u64) {
        self.done_bytes += bytes;
    }

    /// Returns true if this flush or compaction should be throttled: it is neither urgent nor late, and clients have
    /// written recently.
    pub(crate) fn should_throttle(&mut self, now: Instant) -> bool {
        let writes = self.pace.writes.load(Ordering::Relaxed);
        if writes != self.writes {
            (self.writes, self.written) = (writes, Some(now));
        }
        self.pace.is_calm(self.chore).load(Ordering::Relaxed)
            && self.written.is_some_and(|at| now.saturating_duration_since(at) <= ACTIVE)
            && !self.pace.pacer.is_late(&self.job())
    }

    fn job(&self) -> PacedJob {
        self.pace.job(self.chore, self.done_bytes)
    }

    /// Reports to the pacer that this flush or compaction begins to write a piece of its output to the disk.
    pub(super) fn begin_piece(&self) -> Permit<'_> {
        self.pace.pacer.begin(self.job())
    }

    /// Ends a piece: the disk has received `bytes` bytes. Then pauses, usually for as long as the piece took, so that
    /// other threads can use the disk.
    pub(super) fn pause_after(&self, piece: Permit<'_>, bytes: u64) {
        let rest = piece.finish(bytes, |took| took.min(MAX_REST));
        self.pace.pacer.rest(self.chore.paced(), rest);
        self.pace.rest_counter(self.chore).fetch_add(rest.as_micros() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::ManualClock;

    use super::*;

    const CALM: Backlog = Backlog { is_awaited: false, sealed: 1, level_0_runs: 6, flush_bytes: 0, room: NO_ROOM };
    const NO_ROOM: WriteRoom = WriteRoom { sealed_bytes: 0, memtable_bytes: 0, level_0_bytes: 0 };
    const MIB: u64 = 1 << 20;
    const MILLI: Duration = Duration::from_millis(1);

    fn with_clock() -> (Arc<Throttle>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        (Arc::new(Throttle::new(Arc::new(Pacer::new(clock.clone())))), clock)
    }

    /// Writes a piece of this size in `took`. Returns the microseconds of pauses so far.
    fn write(stint: &WorkThrottle, clock: &ManualClock, bytes: u64, took: Duration) -> u64 {
        let piece = stint.begin_piece();
        clock.advance(took);
        stint.pause_after(piece, bytes);
        stint.pace.rest_micros(stint.chore)
    }

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
        pace.count_write(1);
        pace.report(CALM);
        let mut stint = pace.begin_work(WorkKind::Flush);
        assert!(!stint.should_throttle(now), "earlier writes do not count");
        pace.count_write(1);
        assert!(stint.should_throttle(now));
        assert!(stint.should_throttle(now + ACTIVE), "clients may still be writing");
        pace.report(Backlog { sealed: 2, ..CALM });
        assert!(!stint.should_throttle(now + ACTIVE));
        pace.report(CALM);
        assert!(!stint.should_throttle(now + ACTIVE * 2));
    }

    #[test]
    fn pauses_are_bounded_and_counted_by_the_kind_of_work() {
        let (pace, clock) = with_clock();
        write(&pace.begin_work(WorkKind::Compaction), &clock, 0, Duration::from_secs(3600));
        write(&pace.begin_work(WorkKind::Compaction), &clock, 0, Duration::from_micros(7));
        let rests = [WorkKind::Flush, WorkKind::Compaction].map(|chore| pace.rest_micros(chore));
        assert_eq!(rests, [0, MAX_REST.as_micros() as u64 + 7]);
        assert_eq!(pace.pacer.stats().rest_micros, [0, 0, MAX_REST.as_micros() as u64 + 7, 0, 0]);
    }

    #[test]
    fn writers_have_the_room_of_memtables_and_of_runs_that_are_free() {
        let counts = RunCounts { sealed: 1, max_sealed: 3, level_0_runs: 4, slow_runs: 8 };
        let room = WriteRoom { sealed_bytes: 10, memtable_bytes: 24, level_0_bytes: 24 };
        assert_eq!(WriteRoom::of(counts, 10, 6), room);
        let full = RunCounts { sealed: 3, max_sealed: 3, level_0_runs: 9, slow_runs: 8 };
        let room = WriteRoom { sealed_bytes: 30, memtable_bytes: 0, level_0_bytes: 0 };
        assert_eq!(WriteRoom::of(full, 10, 12), room);
    }

    #[test]
    fn a_flush_that_would_miss_its_deadline_is_not_throttled() {
        let (pace, clock) = with_clock();
        let room = WriteRoom { sealed_bytes: 64 * MIB, memtable_bytes: 100 * MIB, level_0_bytes: 0 };
        pace.report(Backlog { room, ..CALM });
        let mut stint = pace.begin_work(WorkKind::Flush);
        let now = Instant::now();
        pace.count_write(1);
        assert!(stint.should_throttle(now), "no rate is known");
        // The disk writes 64 MiB/s; clients write 4 MiB/s and have filled 1 MiB of their room.
        assert_eq!(write(&stint, &clock, 8 * MIB, 125 * MILLI), 5000, "no rate of the clients is known");
        pace.count_write(MIB as usize);
        clock.advance(100 * MILLI);
        let job = stint.job();
        assert_eq!((job.work, job.left_bytes), (PacedWork::Flush, 64 * MIB));
        assert!(job.deadline.is_some_and(|at| at > Duration::from_secs(15)), "{job:?}");
        assert!(stint.should_throttle(now));
        // 49 MiB are left at 500 MiB/s: 0.1 s for a flush of 1 s.
        pace.count_write(50 * MIB as usize);
        clock.advance(100 * MILLI);
        assert!(!stint.should_throttle(now));
        // Most of the flush is done.
        stint.add_done(62 * MIB);
        assert!(stint.should_throttle(now));
        assert_eq!(pace.pacer.stats().late, [0, 1, 0, 0, 0]);
    }

    #[test]
    fn compactions_have_a_deadline_only_if_their_size_is_known() {
        let (pace, clock) = with_clock();
        let room = WriteRoom { sealed_bytes: 0, memtable_bytes: 0, level_0_bytes: 20 * MIB };
        pace.report(Backlog { room, ..CALM });
        let stint = pace.begin_work(WorkKind::Compaction);
        assert_eq!(stint.job().deadline, None);
        pace.count_write(10 * MIB as usize);
        clock.advance(100 * MILLI);
        assert_eq!(stint.job().deadline, None);
        pace.expect_compaction(5 * MIB);
        let job = PacedJob { work: PacedWork::Compaction, left_bytes: 5 * MIB, deadline: Some(100 * MILLI) };
        assert_eq!(stint.job(), job);
    }

    #[test]
    fn a_flush_pauses_for_longer_while_a_segment_of_the_log_is_late_on_the_same_pacer() {
        let (pace, clock) = with_clock();
        let stint = pace.begin_work(WorkKind::Flush);
        assert_eq!(write(&stint, &clock, 0, 3 * MILLI), 3000);
        let segment = PacedJob { work: PacedWork::Segment, left_bytes: 1, deadline: Some(Duration::ZERO) };
        assert!(pace.pacer.is_late(&segment));
        assert_eq!(write(&stint, &clock, 0, 3 * MILLI), 3000 + 6000);
    }

    #[test]
    fn stepped_work_never_pauses() {
        let pace = Arc::new(Throttle::new(Arc::new(Pacer::stepped())));
        pace.report(CALM);
        let stint = pace.begin_work(WorkKind::Flush);
        stint.pause_after(stint.begin_piece(), MIB);
        assert_eq!(pace.rest_micros(WorkKind::Flush), 0);
    }
}
