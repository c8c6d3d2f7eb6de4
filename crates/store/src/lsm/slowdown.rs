//! Slowdown of writes while compactions are behind.
//!
//! Owns: the rate at which compactions have lately removed data from level 0, and the pause of a write that follows from this
//! rate and from the number of runs on level 0. Does not own: making the pause, or the wait at the maximum number of runs.
//!
//! From [`SLOW_LEVEL_0_RUNS`] runs on, each write pauses. The pause grows linearly with the number of runs; just below
//! [`STOP_LEVEL_0_RUNS`] it is as long as compactions take for the bytes of the write. So the rate of writes falls to that of
//! the compactions before a write has to wait for a whole compaction, and no further.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Number of sorted runs on level 0 from which writes are slowed down, because compaction is behind.
pub(super) const SLOW_LEVEL_0_RUNS: usize = 12;
/// Number of sorted runs on level 0 from which writes wait for compaction.
pub(super) const STOP_LEVEL_0_RUNS: usize = 24;
/// Rate of compactions in bytes per second that is assumed until one was measured.
const ASSUMED_BYTES_PER_SECOND: u64 = 16 << 20;
/// Lowest rate that is used. Compactions on a disk that hangs for a moment must not hold up each write for long.
const MIN_BYTES_PER_SECOND: u64 = 4 << 20;
/// Time of compactions over which the rate is an average, at most. It covers several compactions, of which some remove nothing
/// from level 0, because they make room on the levels below.
const WINDOW: Duration = Duration::from_secs(20);

/// The measured rate of compactions; see the [module](self).
#[derive(Debug)]
pub(super) struct Slowdown {
    bytes_per_second: AtomicU64,
    recent: Mutex<RecentCompactions>,
}

/// Sums over the compactions of the last time; older ones count less.
#[derive(Debug, Default)]
struct RecentCompactions {
    level_0_bytes: u64,
    took: Duration,
}

impl Default for Slowdown {
    fn default() -> Self {
        Self { bytes_per_second: AtomicU64::new(ASSUMED_BYTES_PER_SECOND), recent: Mutex::default() }
    }
}

impl Slowdown {
    /// Adds a compaction that was not throttled: the bytes that it removed from level 0, and its duration.
    pub(super) fn add_compaction(&self, level_0_bytes: u64, took: Duration) {
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

    /// Returns the pause of a write of `bytes` bytes while level 0 has `runs` runs.
    #[inline]
    pub(super) fn pause(&self, runs: usize, bytes: usize) -> Duration {
        if runs < SLOW_LEVEL_0_RUNS { Duration::ZERO } else { self.pause_behind(runs, bytes) }
    }

    #[cold]
    fn pause_behind(&self, runs: usize, bytes: usize) -> Duration {
        let (steps, all) =
            (runs.min(STOP_LEVEL_0_RUNS - 1) + 1 - SLOW_LEVEL_0_RUNS, STOP_LEVEL_0_RUNS - SLOW_LEVEL_0_RUNS);
        let absorbed = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second.load(Relaxed));
        Duration::from_nanos(u64::try_from(absorbed * steps as u128 / all as u128).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_runs_up_to_the_time_of_compactions() {
        let slowdown = Slowdown::default();
        assert_eq!(slowdown.pause(11, 1 << 30), Duration::ZERO);
        assert_eq!(slowdown.pause(23, 16 << 20), Duration::from_secs(1), "nothing was measured");
        slowdown.add_compaction(96 << 20, Duration::from_secs(2));
        let pauses: Vec<_> = (12..24).map(|runs| slowdown.pause(runs, 48 << 20).as_millis()).collect();
        assert_eq!(pauses, [83, 166, 250, 333, 416, 500, 583, 666, 750, 833, 916, 1000]);
        assert_eq!(slowdown.pause(40, 48 << 20), Duration::from_secs(1));
    }

    #[test]
    fn the_rate_follows_compactions_and_includes_those_of_lower_levels() {
        let slowdown = Slowdown::default();
        let second_of = |bytes| slowdown.pause(23, bytes) == Duration::from_secs(1);
        slowdown.add_compaction(0, Duration::from_secs(1));
        assert!(second_of(16 << 20), "a compaction of a lower level says nothing alone");
        slowdown.add_compaction(64 << 20, Duration::from_secs(1));
        assert!(second_of(32 << 20));
        slowdown.add_compaction(0, Duration::from_secs(2));
        assert!(second_of(16 << 20));
        for _ in 0..100 {
            slowdown.add_compaction(256 << 20, Duration::from_secs(2));
        }
        assert!(slowdown.pause(23, 128 << 20) < Duration::from_millis(1010), "older ones are forgotten");
        slowdown.add_compaction(1, Duration::from_secs(3600));
        assert!(second_of(4 << 20));
    }
}
