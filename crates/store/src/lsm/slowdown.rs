//! Slowdown of writes while compactions of the LSM tree are behind.
//!
//! Owns: the rates at which compactions have lately removed data from level 0 (one rate for merges of level 0, and one
//! for all compactions); the running merge of level 0; and the length of the pause after each write. Does not own:
//! sleeping for the pause, or the wait at the maximum number of runs.
//!
//! A flush adds one sorted run to level 0. A compaction of level 0 (a *merge*) takes all of its runs, and the runs
//! count until the merge ends. So the number of runs alone does not show how far compactions are behind: it rises
//! during a merge of many runs, and then falls at once.
//!
//! The slowdown begins at [`RunLimits::slow`] runs. The *room* is the number of runs that may still be added before
//! level 0 has a few less than [`RunLimits::stop`].
//!
//! * During a merge of level 0, writers use up the room evenly until the merge ends. Its end is estimated from the rate
//!   of merges alone.
//! * At other times, a compaction makes room on a level below. With [`RunLimits::even`] runs, writers get the rate of
//!   all compactions; with fewer runs a higher rate, and with more runs a lower one.
//!
//! If writers fill level 0 during a compaction of a lower level, the next merge takes longer and begins with less room.
//! An earlier version began to slow writers down at 24 of 48 runs outside merges, and estimated the end of a merge from
//! the rate of all compactions. In a model of that version, writers had 0.1 of the mean rate towards the end of a
//! merge: a burst of 4 MiB took 0.8 s instead of 0.15 s. The mean rate is the same in both versions, because
//! compactions limit it.
//!
//! The limits on the number of runs follow from the size of a memtable. A merge of level 0 also rewrites the level
//! below, however few bytes it adds there. So the more bytes level 0 takes, the less often each value is rewritten.
//! With memtables of 8 MiB, 24 runs are 192 MiB: a load of 2 GiB wrote 9.8 GB in compactions. With 48 runs it wrote 7.5
//! to 8.0 GB. In return, a read of uncached data checks twice as many filters during a load.
//!
//! The rates are measured only for compactions that ran at full speed. Before the first measurement a fixed rate is
//! assumed, which is too low for a fast disk and too high for a slow one. Some runs below [`RunLimits::stop`] are kept
//! free for this error. If writers use them up, they wait until the merge ends.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Number of bytes that level 0 should have when writes must wait. [`RunLimits::stop`] is computed from it, between
/// `MIN_STOP_RUNS` and `MAX_STOP_RUNS`.
const LEVEL_0_BYTES: u64 = 384 << 20;
/// Minimum of [`RunLimits::stop`], the number of sorted runs on level 0 at which writes wait. `MAX_STOP_RUNS` is the
/// maximum.
const MIN_STOP_RUNS: u64 = 24;
const MAX_STOP_RUNS: u64 = 48;
/// Divisor: the time that a merge still needs is estimated as at least its expected duration divided by this number.
const MIN_LEFT_SHARE: u64 = 10;
/// Rate in bytes per second that is assumed until a compaction has been measured.
const ASSUMED_BYTES_PER_SECOND: u64 = 16 << 20;
/// Minimum of a measured rate, in bytes per second. A disk that hangs for a moment makes the measured rate very low,
/// but writes must not pause for long because of it.
const MIN_BYTES_PER_SECOND: u64 = 4 << 20;
/// Maximum total duration of the compactions over which a rate is averaged. The average covers several compactions,
/// because some of them only make room on lower levels and remove nothing from level 0.
const WINDOW: Duration = Duration::from_secs(20);
/// Value of `merge_begun_nanos` for a merge that does not run at full speed yet.
const NOT_YET: u64 = u64::MAX;

/// Numbers of sorted runs on level 0 at which writes are slowed down or wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunLimits {
    /// Number of sorted runs on level 0 from which on writes are slowed down.
    pub(super) slow: usize,
    /// Number of sorted runs on level 0 at which writes are slowed down to exactly the rate of all compactions, while
    /// no merge of level 0 runs.
    even: usize,
    /// Number of sorted runs on level 0 from which on writes wait for compactions.
    pub(super) stop: usize,
    /// Number of sorted runs on level 0, just below `stop`, that the slowdown tries to keep free. Writers use them up
    /// if the rate of compactions was overestimated.
    spare: usize,
}

impl RunLimits {
    /// Returns the limits on the number of sorted runs on level 0, if each run comes from a memtable of
    /// `memtable_bytes` bytes.
    pub(super) fn of(memtable_bytes: u64) -> Self {
        let stop = (LEVEL_0_BYTES / memtable_bytes.max(1)).clamp(MIN_STOP_RUNS, MAX_STOP_RUNS) as usize;
        Self { slow: stop / 3, even: stop / 2, stop, spare: stop / 6 }
    }

    /// Returns the number of runs that may be added to level 0, which has `runs` runs, until `spare` runs below `stop`
    /// remain free; at least 1.
    fn room(self, runs: usize) -> u64 {
        (self.stop - self.spare).saturating_sub(runs).max(1) as u64
    }
}

/// The measured rates of compactions, and the running merge of level 0, from which the pause after each write is
/// computed; see the [module](self).
#[derive(Debug)]
pub(super) struct Slowdown {
    limits: RunLimits,
    /// Rate in bytes per second at which all compactions, including those of lower levels, remove data from level 0. In
    /// the long run, writers get this rate.
    all: MeasuredRate,
    /// Rate in bytes per second at which merges of level 0 alone remove data from level 0.
    merges: MeasuredRate,
    /// Bytes that the running compaction will remove from level 0; 0 if it removes none or if none is running.
    merged_bytes: AtomicU64,
    /// Time at which the running compaction began to run at full speed, in nanoseconds since the store was opened;
    /// `NOT_YET` before that.
    merge_begun_nanos: AtomicU64,
}

/// Measured rate in bytes per second at which recent compactions removed data from level 0.
#[derive(Debug)]
struct MeasuredRate {
    bytes_per_second: AtomicU64,
    recent: Mutex<RecentCompactions>,
}

impl MeasuredRate {
    fn new() -> Self {
        Self { bytes_per_second: AtomicU64::new(ASSUMED_BYTES_PER_SECOND), recent: Mutex::default() }
    }

    fn get(&self) -> u64 {
        self.bytes_per_second.load(Relaxed)
    }

    /// Includes a finished compaction, which took `took` and removed `level_0_bytes` bytes from level 0, in the
    /// measured rate.
    fn add(&self, level_0_bytes: u64, took: Duration) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.level_0_bytes += level_0_bytes;
        recent.took += took;
        if recent.level_0_bytes > 0 {
            let rate = u128::from(recent.level_0_bytes) * 1_000_000_000 / recent.took.as_nanos().max(1);
            self.bytes_per_second.store(u64::try_from(rate).unwrap_or(u64::MAX).max(MIN_BYTES_PER_SECOND), Relaxed);
        }
        while recent.took > WINDOW {
            recent.level_0_bytes /= 2;
            recent.took /= 2;
        }
    }
}

/// Sums of the bytes and durations of recent compactions. Older compactions count less.
#[derive(Debug, Default)]
struct RecentCompactions {
    level_0_bytes: u64,
    took: Duration,
}

/// Guard of a running merge of level 0. Dropping the guard records the end of the merge.
#[derive(Debug)]
pub(super) struct Merge<'a>(&'a Slowdown);

impl Drop for Merge<'_> {
    fn drop(&mut self) {
        self.0.merged_bytes.store(0, Relaxed);
    }
}

impl Slowdown {
    /// Creates the slowdown of writes for memtables of `memtable_bytes` bytes.
    pub(super) fn new(memtable_bytes: u64) -> Self {
        Self {
            limits: RunLimits::of(memtable_bytes),
            all: MeasuredRate::new(),
            merges: MeasuredRate::new(),
            merged_bytes: AtomicU64::new(0),
            merge_begun_nanos: AtomicU64::new(NOT_YET),
        }
    }

    /// Returns the numbers of runs at which writes are slowed down or wait.
    pub(super) fn limits(&self) -> RunLimits {
        self.limits
    }

    /// Records the start of a compaction that will remove `level_0_bytes` bytes from level 0.
    #[must_use]
    pub(super) fn begin_merge(&self, level_0_bytes: u64) -> Merge<'_> {
        self.merge_begun_nanos.store(NOT_YET, Relaxed);
        self.merged_bytes.store(level_0_bytes, Relaxed);
        Merge(self)
    }

    /// Records that the running merge, if there is one, runs at full speed from `now` on. Before this call, the merge
    /// counts as not begun.
    pub(super) fn hurry_merge(&self, now: Duration) {
        if self.merge_begun_nanos.load(Relaxed) == NOT_YET {
            self.merge_begun_nanos.store(now.as_nanos() as u64, Relaxed);
        }
    }

    /// Adds a finished compaction that was never throttled: the bytes that it removed from level 0, and its duration.
    pub(super) fn add_compaction(&self, level_0_bytes: u64, took: Duration) {
        self.all.add(level_0_bytes, took);
        if level_0_bytes > 0 {
            self.merges.add(level_0_bytes, took);
        }
    }

    /// Returns the rate at which compactions remove data from level 0, in bytes per second.
    pub(super) fn bytes_per_second(&self) -> u64 {
        self.all.get()
    }

    /// Returns the pause after a write of `bytes` bytes at `now`, while level 0 has `runs` runs. Each sorted run comes
    /// from about `run_bytes` bytes of writes.
    pub(super) fn pause(&self, runs: usize, run_bytes: u64, bytes: usize, now: Duration) -> Duration {
        if runs < self.limits.slow {
            return Duration::ZERO;
        }
        let bytes = u128::from(bytes as u64);
        let room = u128::from(self.limits.room(runs));
        let nanos = match self.merge_nanos_left(now) {
            Some(left) => bytes * u128::from(left) / (room * u128::from(run_bytes.max(1))),
            None => {
                let even_room = u128::from(self.limits.room(self.limits.even));
                bytes * 1_000_000_000 * even_room / (u128::from(self.all.get()) * room)
            }
        };
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the estimated nanoseconds that the running merge of level 0 still needs; `None` if no merge is running.
    fn merge_nanos_left(&self, now: Duration) -> Option<u64> {
        let merged_bytes = self.merged_bytes.load(Relaxed);
        if merged_bytes == 0 {
            return None;
        }
        let all = u128::from(merged_bytes) * 1_000_000_000 / u128::from(self.merges.get());
        let all = u64::try_from(all).unwrap_or(u64::MAX);
        let elapsed = (now.as_nanos() as u64).saturating_sub(self.merge_begun_nanos.load(Relaxed));
        Some(all.saturating_sub(elapsed).max(all / MIN_LEFT_SHARE))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::buffered::OwedPause;

    const RUN_BYTES: u64 = 64 << 20;
    const SECOND: Duration = Duration::from_secs(1);

    fn pause(slowdown: &Slowdown, runs: usize, bytes: u64, now: Duration) -> Duration {
        slowdown.pause(runs, RUN_BYTES, bytes as usize, now)
    }

    #[test]
    fn without_a_merge_writes_get_the_rate_of_compactions_and_less_when_room_is_scarce() {
        let slowdown = Slowdown::new(RUN_BYTES);
        assert_eq!(pause(&slowdown, 7, 1 << 30, SECOND), Duration::ZERO);
        assert_eq!(pause(&slowdown, 12, 16 << 20, SECOND), SECOND, "nothing was measured");
        slowdown.add_compaction(96 << 20, SECOND * 2);
        assert_eq!(pause(&slowdown, 8, 72 << 20, SECOND), SECOND, "room for 12 runs instead of 8");
        assert_eq!(pause(&slowdown, 12, 48 << 20, SECOND), SECOND);
        assert_eq!(pause(&slowdown, 16, 24 << 20, SECOND), SECOND, "room for 4 runs");
        assert_eq!(pause(&slowdown, 23, 6 << 20, SECOND), SECOND, "a run is always left");
    }

    #[test]
    fn the_time_of_a_merge_does_not_depend_on_compactions_of_lower_levels() {
        let slowdown = Slowdown::new(RUN_BYTES);
        slowdown.add_compaction(RUN_BYTES, SECOND);
        slowdown.add_compaction(0, SECOND * 3);
        assert_eq!(slowdown.bytes_per_second(), RUN_BYTES / 4);
        let _merge = slowdown.begin_merge(10 * RUN_BYTES);
        slowdown.hurry_merge(SECOND);
        assert_eq!(pause(&slowdown, 10, RUN_BYTES, SECOND), SECOND, "10 s for 10 runs");
    }

    #[test]
    fn during_a_merge_writes_get_the_room_over_the_time_that_is_left() {
        let slowdown = Slowdown::new(RUN_BYTES);
        slowdown.add_compaction(RUN_BYTES, SECOND);
        let merge = slowdown.begin_merge(10 * RUN_BYTES);
        assert_eq!(pause(&slowdown, 7, RUN_BYTES, SECOND), Duration::ZERO);
        // The merge is throttled at first, so its age says nothing about its progress.
        assert_eq!(pause(&slowdown, 10, RUN_BYTES, SECOND * 5), SECOND, "10 s for 10 runs");
        slowdown.hurry_merge(SECOND * 5);
        slowdown.hurry_merge(SECOND * 6);
        assert_eq!(pause(&slowdown, 10, RUN_BYTES, SECOND * 7), SECOND * 8 / 10, "8 s for 10 runs");
        assert_eq!(pause(&slowdown, 18, RUN_BYTES, SECOND * 7), SECOND * 4, "8 s for 2 runs");
        assert_eq!(pause(&slowdown, 22, RUN_BYTES, SECOND * 7), SECOND * 8, "a run is always left");
        assert_eq!(pause(&slowdown, 18, RUN_BYTES, SECOND * 60), SECOND / 2, "it takes longer than it should");
        drop(merge);
        assert_eq!(pause(&slowdown, 18, RUN_BYTES, SECOND * 60), SECOND * 4);
        let _of_a_lower_level = slowdown.begin_merge(0);
        assert_eq!(pause(&slowdown, 7, RUN_BYTES, SECOND * 60), Duration::ZERO);
    }

    #[test]
    fn the_rate_follows_compactions_and_includes_those_of_lower_levels() {
        let slowdown = Slowdown::new(RUN_BYTES);
        let second_of = |bytes| pause(&slowdown, 12, bytes, SECOND) == SECOND;
        slowdown.add_compaction(0, SECOND);
        assert!(second_of(16 << 20), "a compaction of a lower level says nothing alone");
        slowdown.add_compaction(64 << 20, SECOND);
        assert!(second_of(32 << 20));
        slowdown.add_compaction(0, SECOND * 2);
        assert!(second_of(16 << 20));
        for _ in 0..100 {
            slowdown.add_compaction(256 << 20, SECOND * 2);
        }
        assert!(pause(&slowdown, 12, 128 << 20, SECOND) < Duration::from_millis(1010), "older ones are forgotten");
        slowdown.add_compaction(1, SECOND * 3600);
        assert!(second_of(4 << 20));
    }

    /// A simulation of level 0. One compaction runs at a time; writers have a fixed rate while they are not slowed
    /// down.
    struct Model {
        slowdown: Slowdown,
        /// Number of bytes in one sorted run on level 0.
        run_bytes: u64,
        /// Rate of compactions in bytes per second. `wanted` is the rate of the writers without a slowdown.
        rate: u64,
        wanted: u64,
        /// `(every, runs)`: after each `every` compactions of level 0, one compaction of a lower level follows. It
        /// takes as long as a merge of `runs` runs.
        lower: Option<(usize, u32)>,
    }

    struct SimulatedRun {
        most_runs: usize,
        longest_pause: Duration,
        /// Mean rate at which the simulated writers wrote, as a multiple of the rate of compactions.
        rate: f64,
        /// Longest time in which the simulated writers wrote half as many bytes as a sorted run has, as a multiple of
        /// the mean time for this. The first third of the simulated time is left out.
        slowest_half_run: f64,
    }

    impl Model {
        fn run(&self, duration: Duration) -> SimulatedRun {
            const WRITE: u64 = 64 << 10;
            let time_of = |bytes: u64, rate| Duration::from_secs_f64(bytes as f64 / rate as f64);
            let (mut now, mut runs, mut filled, mut written) = (Duration::ZERO, 0_usize, 0, 0);
            let mut owed = OwedPause::default();
            // The running merge: the number of its runs, its beginning, its end, and its guard.
            let mut running: Option<(usize, Duration, Duration, Merge<'_>)> = None;
            let mut merges = 0;
            let mut seen =
                SimulatedRun { most_runs: 0, longest_pause: Duration::ZERO, rate: 0.0, slowest_half_run: 0.0 };
            // The times of the last writes that together make half a run.
            let mut half_run = VecDeque::from([now]);
            let mut slowest = Duration::ZERO;
            while now < duration {
                if let Some((taken, begun, end, merge)) = running.take_if(|(_, _, end, _)| *end <= now) {
                    self.slowdown.add_compaction(taken as u64 * self.run_bytes, end - begun);
                    drop(merge);
                    runs -= taken;
                    merges += usize::from(taken > 0);
                    let lower = self.lower.filter(|(every, _)| taken > 0 && merges % every == 0);
                    if let Some((_, length)) = lower {
                        let takes = time_of(self.run_bytes, self.rate) * length;
                        running = Some((0, now, now + takes, self.slowdown.begin_merge(0)));
                    }
                }
                if running.is_none() && runs >= 4 {
                    let bytes = runs as u64 * self.run_bytes;
                    let merge = self.slowdown.begin_merge(bytes);
                    self.slowdown.hurry_merge(now);
                    running = Some((runs, now, now + time_of(bytes, self.rate), merge));
                }
                now += time_of(WRITE, self.wanted);
                (filled, written) = (filled + WRITE, written + WRITE);
                if filled >= self.run_bytes {
                    (filled, runs) = (0, runs + 1);
                }
                seen.most_runs = seen.most_runs.max(runs);
                owed.add(self.slowdown.pause(runs, self.run_bytes, WRITE as usize, now));
                let slept = owed.take().unwrap_or_default();
                seen.longest_pause = seen.longest_pause.max(slept);
                now += slept;
                half_run.push_back(now);
                if half_run.len() as u64 > self.run_bytes / 2 / WRITE {
                    let begun = half_run.pop_front().unwrap_or_default();
                    slowest = slowest.max(if begun > duration / 3 { now - begun } else { Duration::ZERO });
                }
            }
            let bytes_per_second = written as f64 / now.as_secs_f64();
            seen.rate = bytes_per_second / self.rate as f64;
            seen.slowest_half_run = slowest.as_secs_f64() * bytes_per_second / (self.run_bytes / 2) as f64;
            seen
        }
    }

    #[test]
    fn writers_of_any_speed_are_slowed_down_and_never_stopped() {
        for (run_bytes, rate) in
            [(64 << 20, 16 << 20), (64 << 20, 64 << 20), (64 << 20, 200 << 20), (8 << 20, 64 << 20)]
        {
            for factor in [1.2, 2.0, 10.0] {
                for lower in [None, Some((3, 5))] {
                    let wanted = (rate as f64 * factor) as u64;
                    let model = Model { slowdown: Slowdown::new(run_bytes), run_bytes, rate, wanted, lower };
                    let seen = model.run(Duration::from_secs(200));
                    let case = format!("{factor} times {rate} with {lower:?}: {} runs", seen.most_runs);
                    assert!(seen.most_runs < model.slowdown.limits().stop, "{case}");
                    assert!(seen.longest_pause <= Duration::from_millis(50), "{case}: {:?}", seen.longest_pause);
                    let least = if lower.is_some() { 0.7 } else { 0.95 };
                    assert!(seen.rate > least, "{case}: {} of the rate of compactions", seen.rate);
                }
            }
        }
    }

    /// Tests that no burst of writes takes many times as long as another of the same size.
    #[test]
    fn writers_are_slowed_down_evenly_while_lower_levels_are_compacted_too() {
        for (run_bytes, runs) in [(8 << 20, 24), (64 << 20, 12)] {
            for factor in [2, 10] {
                let (rate, lower) = (64 << 20, Some((1, runs)));
                let model = Model { slowdown: Slowdown::new(run_bytes), run_bytes, rate, wanted: rate * factor, lower };
                let seen = model.run(Duration::from_secs(200));
                let case = format!("{factor} times the rate, runs of {run_bytes}");
                assert!(seen.slowest_half_run < 3.0, "{case}: {} times the mean", seen.slowest_half_run);
                assert!(seen.most_runs < model.slowdown.limits().stop, "{case}: {} runs", seen.most_runs);
            }
        }
    }

    #[test]
    fn small_memtables_allow_more_runs() {
        let limits = |mebibytes: u64| RunLimits::of(mebibytes << 20);
        assert_eq!(limits(64), RunLimits { slow: 8, even: 12, stop: 24, spare: 4 });
        assert_eq!(limits(16), limits(64));
        assert_eq!(limits(12).stop, 32);
        assert_eq!(limits(8), RunLimits { slow: 16, even: 24, stop: 48, spare: 8 });
        assert_eq!(limits(0), limits(8));
    }
}
