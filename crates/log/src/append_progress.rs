//! Measures how fast the writer of the log uses up segment files. The thread that prepares new files (the preparer)
//! adapts its speed to this rate.
//!
//! Owns: the times at which the writer took segments, the number of bytes that it has written, and the time until it
//! needs another segment. Does not own: the pauses of the preparer (see `thalweg_disk::Pacer`), or the segments.

use std::{
    collections::VecDeque,
    fmt::Debug,
    sync::{Mutex, PoisonError, Weak},
    time::Duration,
};

use thalweg_disk::WriteMeter;

/// Period over which the log counts the segments that the writer took. The log keeps as many additional recycled
/// segments as the writer took in this period. Segments are freed many at a time, after each flush of the state. A log
/// with a constant write rate uses all of them before the next flush.
const RECENT: Duration = Duration::from_secs(60);

/// Monotonic times at which the writer took its latest segments.
#[derive(Debug, Default)]
pub(crate) struct TakeTimes {
    times: VecDeque<Duration>,
    /// Time between the last two times at which the writer took a segment; zero before the second.
    last_interval: Duration,
}

impl TakeTimes {
    /// Records that the writer took a segment at `now`. Keeps the times of the latest `most` segments.
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

    /// Returns the time between the last two times at which the writer took a segment; zero before the second.
    pub(crate) fn last_interval(&self) -> Duration {
        self.last_interval
    }
}

/// The segment to which the writer appends, as the thread that prepares segments sees it.
pub(crate) trait ActiveSegment: Debug + Send + Sync {
    /// Returns the size of the segment in bytes, and the number of bytes written to it so far.
    fn size_and_written(&self) -> (u64, u64);
}

/// Measures how many bytes the writer has written to the log's segments since the log was opened, and at what rate.
#[derive(Debug, Default)]
pub(crate) struct AppendProgress(Mutex<Position>);

#[derive(Debug, Default)]
struct Position {
    active: Option<Weak<dyn ActiveSegment>>,
    /// Total size of the segments that the writer has used since the log was opened, without the active segment.
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

    /// Returns the time until the writer has filled the active segment and `ready_bytes` bytes of prepared ones; `None`
    /// if nothing was appended lately. `now` is the time of a monotonic clock. The caller must not hold the lock of the
    /// segment pool, because this call may drop the last reference to a segment, and the drop takes that lock to return
    /// the file.
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
