//! Measures how fast the writer uses up segments. The preparer thread paces itself by this rate.
//!
//! Owns: the times at which the writer took segments, its position, and the time until it needs another segment. Does
//! not own: the pauses (see `thalweg_disk::Pacer`), or the segments.

use std::{
    collections::VecDeque,
    fmt::Debug,
    sync::{Mutex, PoisonError, Weak},
    time::Duration,
};

use thalweg_disk::WriteMeter;

/// Length of the recent past. The log keeps as many additional recycled segments as the writer used in this time.
/// Segments are freed many at a time, after each flush of the state. A log with a constant write rate uses all of them
/// before the next flush.
const RECENT: Duration = Duration::from_secs(60);

/// Monotonic times at which the writer took its latest segments.
#[derive(Debug, Default)]
pub(crate) struct TakeTimes {
    times: VecDeque<Duration>,
    /// Time between the last two takes; zero before the second take.
    last_interval: Duration,
}

impl TakeTimes {
    /// Records that the writer took a segment at `now`. Keeps the times of the latest `most` takes.
    pub(crate) fn add(&mut self, now: Duration, most: usize) {
        self.last_interval = self.times.back().map_or(Duration::ZERO, |before| now.saturating_sub(*before));
        self.times.push_back(now);
        if self.times.len() > most {
            self.times.pop_front();
        }
    }

    /// Returns the number of segments that the writer took within [`RECENT`].
    pub(crate) fn recent(&self, now: Duration) -> usize {
        self.times.len() - self.times.partition_point(|taken| now.saturating_sub(*taken) > RECENT)
    }

    /// Returns the time between the last two takes; zero before the second one.
    pub(crate) fn last_interval(&self) -> Duration {
        self.last_interval
    }
}

/// The segment to which the writer appends, as the preparer sees it.
pub(crate) trait ActiveSegment: Debug + Send + Sync {
    /// Returns the size of the segment in bytes, and the number of bytes written to it so far.
    fn size_and_written(&self) -> (u64, u64);
}

/// Number of bytes that the writer has passed in the log's segments, and its rate.
#[derive(Debug, Default)]
pub(crate) struct AppendProgress(Mutex<Position>);

#[derive(Debug, Default)]
struct Position {
    active: Option<Weak<dyn ActiveSegment>>,
    /// Total bytes of the segments that the writer has left since the log was opened.
    before_bytes: u64,
    active_bytes: u64,
    meter: WriteMeter,
}

impl AppendProgress {
    /// Records that the writer now appends to the segment `active` of `size_bytes` bytes.
    pub(crate) fn begin_segment(&self, active: Weak<dyn ActiveSegment>, size_bytes: u64) {
        let mut position = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        position.before_bytes += std::mem::replace(&mut position.active_bytes, size_bytes);
        position.active = Some(active);
    }

    /// Returns the time until the writer has filled the active segment and `ready_bytes` bytes of further ones; `None`
    /// if nothing was appended lately. `now` is the time of a monotonic clock. Callers must not hold the pool's lock:
    /// this call may drop the last reference to a segment, and the drop returns the segment's file to the pool.
    pub(crate) fn time_to_fill(&self, now: Duration, ready_bytes: u64) -> Option<Duration> {
        let mut position = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let active = position.active.as_ref()?.upgrade()?;
        let (size, written) = active.size_and_written();
        let written_bytes = position.before_bytes + written;
        let time = position.meter.time_to_fill(now, written_bytes, size.saturating_sub(written) + ready_bytes);
        drop(position);
        time
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;

    const SIZE: u64 = 1000;

    #[derive(Debug, Default)]
    struct Filling(AtomicU64);

    impl ActiveSegment for Filling {
        fn size_and_written(&self) -> (u64, u64) {
            (SIZE, self.0.load(Ordering::Relaxed))
        }
    }

    fn begin(progress: &AppendProgress) -> Arc<Filling> {
        let filling = Arc::new(Filling::default());
        let active: Arc<dyn ActiveSegment> = filling.clone();
        progress.begin_segment(Arc::downgrade(&active), SIZE);
        filling
    }

    #[test]
    fn a_segment_is_due_when_the_writer_has_filled_those_that_are_ready() {
        let progress = AppendProgress::default();
        let second = Duration::from_secs;
        assert_eq!(progress.time_to_fill(second(1), 0), None, "no segment");
        let one = begin(&progress);
        assert_eq!(progress.time_to_fill(second(1), 0), None, "no rate");
        one.0.store(100, Ordering::Relaxed);
        assert_eq!(progress.time_to_fill(second(2), 0), Some(second(9)));
        assert_eq!(progress.time_to_fill(second(2), SIZE), Some(second(19)));
        let other = begin(&progress);
        other.0.store(200, Ordering::Relaxed);
        // 1,100 bytes more in 11 s.
        assert_eq!(progress.time_to_fill(second(13), 0), Some(second(8)));
        assert_eq!(progress.time_to_fill(second(14), 0), None, "nothing was appended");
        drop(other);
        assert_eq!(progress.time_to_fill(second(15), 0), None);
    }

    #[test]
    fn takes_are_counted_for_a_minute() {
        let mut times = TakeTimes::default();
        let second = Duration::from_secs;
        for at in [0, 10, 40] {
            times.add(second(at), 8);
        }
        assert_eq!((times.last_interval(), times.recent(second(40))), (second(30), 3));
        assert_eq!(times.recent(second(71)), 1);
        for at in 100..200 {
            times.add(second(at), 8);
        }
        assert_eq!(times.recent(second(200)), 8);
    }
}
