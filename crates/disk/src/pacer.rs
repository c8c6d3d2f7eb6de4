//! The pacer: one scheduler for all background work that shares a disk with the syncs of clients. Background work (a
//! flush, for example) writes its output in pieces, and pauses after each piece so that syncs do not wait for it. The
//! pacer computes these pauses.
//!
//! Owns: the measured rate of the disk, the time of the log's syncs, the kinds of work that will miss their deadline
//! (late work), and the counters of its decisions. Does not own: the rules (see `pacing`), or the usual pauses and the
//! deadlines, which callers determine.
//!
//! ```text
//! begin(job) -> Permit -> a piece goes to the disk -> Permit::finish -> the caller pauses
//!                                                     (measures)
//! ```
//!
//! The pacer has no queue and never blocks a caller: a caller writes its piece at once, and then pauses for a bounded
//! time. A piece counts for the disk's rate only if the disk has received all of its bytes. Writes to the page cache do
//! not count.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use thalweg_types::{Clock, SystemClock};

use crate::pacing::{DiskRate, DiskUse, MAX_PAUSE_FACTOR, PacedJob, PacedWork, SyncShare, pause_after};

/// Time for which a kind of background work still counts as late after its last late piece. A piece (one write of a
/// job) is late if the job will miss its deadline.
const LATE_FOR: Duration = Duration::from_millis(100);

/// Scheduler of background work on one disk, which computes pauses between writes. The log of a data directory creates
/// it, and the LSM state on the same disk uses it too.
#[derive(Debug)]
pub struct Pacer {
    /// Clock that measures the time of writes. `None` in stepped mode (a run without background threads): nothing is
    /// measured, and no work pauses. `AssertUnwindSafe` is sound because a panic cannot leave a clock in an invalid
    /// state.
    clock: Option<AssertUnwindSafe<Arc<dyn Clock>>>,
    measurements: Mutex<Measurements>,
    /// Total time that the log's syncs have taken, in nanoseconds.
    sync_nanos: AtomicU64,
    works: [WorkCounters; PacedWork::ALL.len()],
}

#[derive(Debug, Default)]
struct Measurements {
    rate: DiskRate,
    syncs: SyncShare,
}

/// Counters of one kind of background work, such as compaction.
#[derive(Debug, Default)]
struct WorkCounters {
    rest_nanos: AtomicU64,
    late: AtomicU64,
    /// Time, by the pacer's clock, until which this kind of work counts as late (its jobs miss their deadlines).
    late_until_nanos: AtomicU64,
}

/// Counters of a pacer's decisions since its creation, and the rate of its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacerStats {
    /// Rate at which the disk has recently written the output of background work, in bytes per second; 0 if it is not
    /// known.
    pub rate_bytes: u64,
    /// Total time in microseconds for which each kind of background work has paused, in the order of
    /// [`PacedWork::ALL`].
    pub rest_micros: [u64; PacedWork::ALL.len()],
    /// Number of writes of each kind of background work that were made without a pause because the job was about to
    /// miss its deadline. In the order of [`PacedWork::ALL`].
    pub late: [u64; PacedWork::ALL.len()],
}

impl PacerStats {
    /// Iterates over the kinds of background work. Each item has the name, the total pause in microseconds, and the
    /// number of writes made late (after which the job does not pause).
    pub fn works(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        PacedWork::ALL
            .iter()
            .zip(self.rest_micros.iter().zip(&self.late))
            .map(|(work, (rest, late))| (work.name(), *rest, *late))
    }
}

/// Two pacers are equal only if they are the same object.
impl PartialEq for Pacer {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Pacer {}

/// Creates a pacer that measures time with the system's clock.
impl Default for Pacer {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock::default()))
    }
}

impl Pacer {
    /// Creates a pacer that measures the time of writes by this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(Some(clock))
    }

    /// Creates a pacer for a simulation or another run without background threads (stepped mode). It reads no clock,
    /// and all of its pauses are zero.
    #[must_use]
    pub fn stepped() -> Self {
        Self::with(None)
    }

    fn with(clock: Option<Arc<dyn Clock>>) -> Self {
        let clock = clock.map(AssertUnwindSafe);
        Self { clock, measurements: Mutex::default(), sync_nanos: AtomicU64::new(0), works: Default::default() }
    }

    /// Returns true if this pacer never pauses; see [`stepped`](Self::stepped).
    #[must_use]
    pub fn is_stepped(&self) -> bool {
        self.clock.is_none()
    }

    /// Returns the time of the pacer's clock. Callers compute the deadlines of their jobs relative to it.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.clock.as_ref().map_or(Duration::ZERO, |clock| clock.monotonic())
    }

    /// Begins the measurement of one write (a piece) of a background job. The caller writes after this call, and then
    /// calls [`Permit::finish`]. Never waits.
    pub fn begin(&self, job: PacedJob) -> Permit<'_> {
        Permit { pacer: self, job, begun: self.now() }
    }

    /// Returns true if the job misses its deadline even without pauses. In this case, also counts one late write, which
    /// the caller is about to make, and makes other kinds of work pause for longer during the next 100 ms.
    pub fn is_late(&self, job: &PacedJob) -> bool {
        if self.is_stepped() || !job.is_late(self.measurements().rate.get()) {
            return false;
        }
        let counters = self.counters(job.work);
        counters.late.fetch_add(1, Relaxed);
        counters.late_until_nanos.store(nanos(self.now() + LATE_FOR), Relaxed);
        true
    }

    /// Counts the duration of a sync of the log. The longer syncs take, the more time background work leaves for them.
    pub fn count_sync(&self, took: Duration) {
        self.sync_nanos.fetch_add(nanos(took), Relaxed);
    }

    /// Adds a pause that the caller has made to the counter of this kind of background work. Does not pause.
    pub fn count_rest(&self, work: PacedWork, rest: Duration) {
        self.counters(work).rest_nanos.fetch_add(nanos(rest), Relaxed);
    }

    /// Pauses the calling thread for `pause`, and adds the pause to the counter of this kind of background work.
    pub fn rest(&self, work: PacedWork, pause: Duration) {
        if !pause.is_zero() {
            thread::sleep(pause);
            self.count_rest(work, pause);
        }
    }

    /// Returns the pause for a kind of background work that limits its own rate: `pause`, or twice as long while
    /// another kind of work is about to miss its deadline.
    #[must_use]
    pub fn stretched(&self, work: PacedWork, pause: Duration) -> Duration {
        if self.is_other_late(work, self.now()) { pause.saturating_mul(MAX_PAUSE_FACTOR) } else { pause }
    }

    /// Returns the counters of the pacer's decisions, and the rate of the disk.
    #[must_use]
    pub fn stats(&self) -> PacerStats {
        let of_each = |count: fn(&WorkCounters) -> u64| PacedWork::ALL.map(|work| count(self.counters(work)));
        PacerStats {
            rate_bytes: self.measurements().rate.get().unwrap_or(0),
            rest_micros: of_each(|work| work.rest_nanos.load(Relaxed) / 1000),
            late: of_each(|work| work.late.load(Relaxed)),
        }
    }

    fn measurements(&self) -> MutexGuard<'_, Measurements> {
        // No code under this lock panics.
        self.measurements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters(&self, work: PacedWork) -> &WorkCounters {
        &self.works[work as usize]
    }

    fn is_other_late(&self, work: PacedWork, now: Duration) -> bool {
        let is_late = |other: PacedWork| self.counters(other).late_until_nanos.load(Relaxed) > nanos(now);
        PacedWork::ALL.into_iter().any(|other| other != work && is_late(other))
    }
}

/// A measurement of one write (piece) of background work in progress; see [`Pacer::begin`]. Dropping it without
/// [`finish`](Self::finish), for example after an error, leaves this write out of the measurements.
#[derive(Debug)]
#[must_use = "the pause after the piece follows from it"]
pub struct Permit<'a> {
    pacer: &'a Pacer,
    job: PacedJob,
    begun: Duration,
}

impl Permit<'_> {
    /// Ends the measurement of one write, and returns the pause that the caller must make now. `synced_bytes` is the
    /// number of written bytes that the disk has certainly received; 0 excludes the write from the measured rate of the
    /// disk. `usual` is called with the time that the write took, and returns the usual pause after it.
    #[must_use]
    pub fn finish(self, synced_bytes: u64, usual: impl FnOnce(Duration) -> Duration) -> Duration {
        let Self { pacer, job, begun } = self;
        if pacer.is_stepped() {
            return Duration::ZERO;
        }
        let now = pacer.now();
        let took = now.saturating_sub(begun);
        let usual = usual(took);
        let synced = Duration::from_nanos(pacer.sync_nanos.load(Relaxed));
        let mut measurements = pacer.measurements();
        if synced_bytes > 0 {
            measurements.rate.add(synced_bytes, took);
        }
        let (rate, sync_share) = (measurements.rate.get(), measurements.syncs.at(now, synced));
        drop(measurements);
        if pacer.is_late(&job) {
            return Duration::ZERO;
        }
        pause_after(&job, took, usual, &DiskUse { rate, sync_share, is_other_late: pacer.is_other_late(job.work, now) })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use thalweg_types::ManualClock;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const MIB: u64 = 1 << 20;
    const FLUSH: PacedJob = PacedJob { work: PacedWork::Flush, left_bytes: 64 * MIB, deadline: None };
    const LATE_SEGMENT: PacedJob = PacedJob { work: PacedWork::Segment, left_bytes: 1, deadline: Some(Duration::ZERO) };

    fn with_clock() -> (Pacer, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        (Pacer::new(clock.clone()), clock)
    }

    /// Measures one write of `bytes` bytes that takes 4 ms and has a usual pause of 1 ms. Returns the computed pause.
    fn write(pacer: &Pacer, clock: &ManualClock, job: PacedJob, bytes: u64) -> Duration {
        let permit = pacer.begin(job);
        clock.advance(4 * MILLI);
        permit.finish(bytes, |took| took / 4)
    }

    #[test]
    fn kinds_of_work_are_numbered_as_they_are_listed() {
        for (at, work) in PacedWork::ALL.into_iter().enumerate() {
            assert_eq!(work as usize, at);
        }
    }

    #[test]
    fn pieces_that_reached_the_disk_give_its_rate_and_others_do_not() {
        let (pacer, clock) = with_clock();
        assert_eq!(write(&pacer, &clock, FLUSH, 0), MILLI);
        drop(pacer.begin(FLUSH));
        assert_eq!(pacer.stats(), PacerStats::default());
        assert_eq!(write(&pacer, &clock, FLUSH, MIB), MILLI, "without a deadline, the pause is the usual one");
        assert_eq!(pacer.stats().rate_bytes, 250 * MIB);
    }

    #[test]
    fn a_job_that_is_late_does_not_pause_and_others_pause_for_longer_for_a_moment() {
        let (pacer, clock) = with_clock();
        assert_eq!(write(&pacer, &clock, LATE_SEGMENT, 0), Duration::ZERO);
        assert_eq!(write(&pacer, &clock, FLUSH, 0), 2 * MILLI);
        assert_eq!(pacer.stretched(PacedWork::Scrub, MILLI), 2 * MILLI);
        assert_eq!(pacer.stretched(PacedWork::Segment, MILLI), MILLI, "not by its own lateness");
        clock.advance(LATE_FOR);
        assert_eq!(write(&pacer, &clock, FLUSH, 0), MILLI);
        assert_eq!(pacer.stretched(PacedWork::Scrub, MILLI), MILLI);
        assert_eq!(pacer.stats().late, [1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_job_is_late_by_the_measured_rate() {
        let (pacer, clock) = with_clock();
        let job = PacedJob { deadline: Some(200 * MILLI), ..FLUSH };
        assert!(!pacer.is_late(&job), "the rate is not known");
        // 64 MiB at 250 MiB/s take 256 ms.
        assert_eq!(write(&pacer, &clock, job, MIB), Duration::ZERO);
        assert_eq!(pacer.stats().late, [0, 1, 0, 0, 0]);
    }

    #[test]
    fn syncs_of_the_log_lengthen_pauses_once_the_rate_is_known() {
        let (pacer, clock) = with_clock();
        clock.advance(MILLI * 96);
        pacer.count_sync(MILLI * 100);
        // The share of the disk is 0.8 with the usual pause, and 0.25 beside syncs that never end.
        assert_eq!(write(&pacer, &clock, FLUSH, MIB), 2 * MILLI);
    }

    #[test]
    fn a_stepped_pacer_never_pauses_and_counts_nothing() {
        let pacer = Pacer::stepped();
        for work in PacedWork::ALL {
            for deadline in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
                let job = PacedJob { work, left_bytes: u64::MAX, deadline };
                assert!(!pacer.is_late(&job));
                assert_eq!(pacer.begin(job).finish(MIB, |_| Duration::from_secs(3600)), Duration::ZERO);
            }
        }
        assert!(pacer.is_stepped() && pacer.now().is_zero());
        assert_eq!(pacer.stats(), PacerStats::default());
    }

    #[test]
    fn rests_are_counted_by_the_kind_of_work() {
        let pacer = Pacer::default();
        pacer.count_rest(PacedWork::Segment, MILLI);
        pacer.rest(PacedWork::Discard, Duration::from_micros(1));
        pacer.rest(PacedWork::Scrub, Duration::ZERO);
        let works: Vec<_> = pacer.stats().works().collect();
        let expected =
            [("segment", 1000, 0), ("flush", 0, 0), ("compaction", 0, 0), ("discard", 1, 0), ("scrub", 0, 0)];
        assert_eq!(works, expected);
    }
}
