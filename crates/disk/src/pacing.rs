//! Rules for the pauses of background work. Such work writes its output in pieces and pauses after each piece, so that
//! clients' syncs do not wait for it. The rules are pure functions.
//!
//! Owns: the pause after a piece ([`pause_after`]), the check that a job will miss its deadline
//! ([`PacedJob::is_late`]), and the measured rates of the disk and of writers. Does not own: clocks, threads and
//! counters (see `pacer`).
//!
//! Each kind of work has a *usual* pause after a piece, which its caller determines. The usual pause leaves time on the
//! disk for the syncs of clients. It applies unless one of these rules does:
//!
//! * A job that would miss its deadline at the disk's present rate does not pause.
//! * A job that needs a larger share of the disk for its deadline than the usual pause permits pauses for less time.
//! * If syncs need more of the disk's time than the usual pause leaves free, the job pauses for longer.
//! * While another kind of work is late, a job that is not late makes the longest permitted pause.
//!
//! Invariant: a pause is at most [`MAX_PAUSE_FACTOR`] times the usual one. So a wrong rate or deadline can slow work
//! down, but never stop it.

use std::time::Duration;

/// Minimum fraction of the disk's time that a background job gets, however long syncs take.
const MIN_SHARE: f64 = 0.25;
/// Maximum fraction of the disk's time that a background job takes to meet its deadline. A job that would still miss
/// the deadline does not pause at all.
const MAX_SHARE: f64 = 0.9;
/// Safety factor, because the measured rates vary: a job takes this multiple of the disk time that its deadline needs.
const DEADLINE_MARGIN: f64 = 1.25;
/// Longest pause of a background job after a write, as a multiple of its usual pause.
pub const MAX_PAUSE_FACTOR: u32 = 2;
/// Minimum number of bytes for one measurement of the disk's rate. Smaller writes are added up to this number.
const SAMPLE_BYTES: u64 = 1 << 20;
/// Highest plausible rate of a disk, in bytes per second. A faster sample is ignored: its bytes were already on the
/// disk, or only went to memory.
const MAX_DISK_RATE: u64 = 16 << 30;
/// Divisor: a new measurement changes the average rate of the disk by its difference from the average divided by this
/// number.
const SAMPLE_WEIGHT: u64 = 8;
/// Minimum time between two measurements of the writers' rate, and of the fraction of time that syncs take.
const WINDOW: Duration = Duration::from_millis(100);

/// Kind of background work that shares the disk with the syncs of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacedWork {
    /// Preparation of a log segment: writing zeroes into its file.
    Segment,
    /// Flush of a memtable to tables.
    Flush,
    /// Compaction of tables.
    Compaction,
    /// Truncation of the files of deleted tables.
    Discard,
    /// Reading of all stored data to find damage.
    Scrub,
}

impl PacedWork {
    /// All kinds of background work, in the order that arrays of counters use.
    pub const ALL: [Self; 5] = [Self::Segment, Self::Flush, Self::Compaction, Self::Discard, Self::Scrub];

    /// Returns the name of this kind of background work in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::Discard => "discard",
            Self::Scrub => "scrub",
        }
    }
}

/// A running job of background work: its kind, its remaining bytes and its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedJob {
    /// Kind of background work that the job does.
    pub work: PacedWork,
    /// Number of bytes that the job still has to write.
    pub left_bytes: u64,
    /// Deadline of the job, as the time from now until clients' writes must wait for the job; zero if they wait
    /// already. `None` if no write will wait for the job, or if the time is not known.
    pub deadline: Option<Duration>,
}

impl PacedJob {
    /// Returns true if the job misses its deadline even without pauses. `rate` is the disk's rate in bytes per second;
    /// `None` if it is not known.
    #[must_use]
    pub fn is_late(&self, rate: Option<u64>) -> bool {
        self.deadline.is_some_and(|deadline| deadline.is_zero()) || self.needed_share(rate) > 1.0
    }

    /// Returns the fraction of the disk's time that the job needs to meet its deadline; 0 if it has no deadline, or if
    /// the rate is not known. `rate` is the disk's rate in bytes per second.
    fn needed_share(&self, rate: Option<u64>) -> f64 {
        let (Some(deadline), Some(rate)) = (self.deadline, rate) else { return 0.0 };
        self.left_bytes as f64 / (rate.max(1) as f64 * deadline.as_secs_f64().max(1e-9))
    }
}

/// Measured use of the disk, from which pauses are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DiskUse {
    /// Rate at which the disk writes, in bytes per second; `None` if it is not known.
    pub(crate) rate: Option<u64>,
    /// Fraction of the recent time in which syncs were in progress, from 0 to 1.
    pub(crate) sync_share: f64,
    /// True if another kind of background work is about to miss its deadline.
    pub(crate) is_other_late: bool,
}

/// Returns the pause that a background job must make after a write (one piece of its output) that took the disk the
/// time `took`. `usual` is the job's usual pause.
pub(crate) fn pause_after(job: &PacedJob, took: Duration, usual: Duration, disk: &DiskUse) -> Duration {
    if job.is_late(disk.rate) {
        return Duration::ZERO;
    }
    let longest = usual.saturating_mul(MAX_PAUSE_FACTOR);
    if disk.is_other_late {
        return longest;
    }
    if disk.rate.is_none() || took.is_zero() || usual.is_zero() {
        return usual;
    }
    let used = took.as_secs_f64();
    let usual_share = used / (used + usual.as_secs_f64());
    let left_by_syncs = (1.0 - disk.sync_share).max(MIN_SHARE);
    let needed = (job.needed_share(disk.rate) * DEADLINE_MARGIN).min(MAX_SHARE);
    if (needed..=left_by_syncs).contains(&usual_share) {
        return usual;
    }
    let share = usual_share.min(left_by_syncs).max(needed);
    let pause = used * (1.0 - share) / share;
    Duration::try_from_secs_f64(pause).map_or(longest, |pause| pause.min(longest))
}

/// Average rate at which the disk writes. Recent writes count more.
#[derive(Debug, Default)]
pub(crate) struct DiskRate {
    bytes_per_second: Option<u64>,
    /// Number of written bytes that the average does not include yet. The field `took` is the time in which they were
    /// written.
    bytes: u64,
    took: Duration,
}

impl DiskRate {
    pub(crate) fn get(&self) -> Option<u64> {
        self.bytes_per_second
    }

    /// Adds a write to the average. The disk has received all of its bytes, within the time `took`.
    pub(crate) fn add(&mut self, bytes: u64, took: Duration) {
        self.bytes += bytes;
        self.took += took;
        if self.bytes < SAMPLE_BYTES {
            return;
        }
        let (bytes, took) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.took));
        let sample = per_second(bytes, took);
        if sample > MAX_DISK_RATE {
            return;
        }
        let rate = self.bytes_per_second.map_or(sample, |rate| (rate * (SAMPLE_WEIGHT - 1) + sample) / SAMPLE_WEIGHT);
        self.bytes_per_second = Some(rate.max(1));
    }
}

/// Measures the fraction of time in which syncs are in progress.
#[derive(Debug, Default)]
pub(crate) struct SyncShare {
    share: f64,
    /// Time at which the measurement in progress began. The field `synced` is the total time of syncs at that moment.
    since: Duration,
    synced: Duration,
}

impl SyncShare {
    /// Returns the fraction of time, from 0 to 1, in which syncs were in progress during the last complete window of
    /// time. `synced` is the total time of syncs until `now`.
    pub(crate) fn at(&mut self, now: Duration, synced: Duration) -> f64 {
        let passed = now.saturating_sub(self.since);
        if passed >= WINDOW {
            let busy = synced.saturating_sub(self.synced);
            self.share = (busy.as_secs_f64() / passed.as_secs_f64()).min(1.0);
            (self.since, self.synced) = (now, synced);
        }
        self.share
    }
}

/// Measures the rate at which writers write. The caller passes in the total of written bytes from time to time.
#[derive(Debug, Default)]
pub struct WriteMeter {
    bytes_per_second: Option<u64>,
    /// Time of the last measurement, and the total of written bytes at that time.
    last: Option<(Duration, u64)>,
}

impl WriteMeter {
    /// Returns the rate of the writers in bytes per second; `None` if it is not known yet, or if they write nothing.
    /// `written_bytes` is the total number of bytes that they have written, and `now` the time of a monotonic clock.
    pub fn rate(&mut self, now: Duration, written_bytes: u64) -> Option<u64> {
        let (since, before) = *self.last.get_or_insert((now, written_bytes));
        let passed = now.saturating_sub(since);
        if passed >= WINDOW {
            self.bytes_per_second = Some(per_second(written_bytes.saturating_sub(before), passed));
            self.last = Some((now, written_bytes));
        }
        self.bytes_per_second.filter(|rate| *rate > 0)
    }

    /// Returns the time in which the writers will write `room_bytes` more bytes; `None` if their rate is not known.
    /// `now` and `written_bytes` are those of [`rate`](Self::rate).
    pub fn time_to_fill(&mut self, now: Duration, written_bytes: u64, room_bytes: u64) -> Option<Duration> {
        let rate = self.rate(now, written_bytes)?;
        let nanos = u128::from(room_bytes) * 1_000_000_000 / u128::from(rate);
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

/// Returns the rate in bytes per second, given that `bytes` bytes took the time `took`.
fn per_second(bytes: u64, took: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / took.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    /// A disk that writes 100 MB/s and has no syncs.
    const IDLE: DiskUse = DiskUse { rate: Some(100_000_000), sync_share: 0.0, is_other_late: false };
    const ENDLESS: PacedJob = PacedJob { work: PacedWork::Flush, left_bytes: 50_000_000, deadline: None };

    fn due_in(deadline: Duration) -> PacedJob {
        PacedJob { deadline: Some(deadline), ..ENDLESS }
    }

    /// Checks the pause of a job after a write that took 1 ms, if the usual pause is 1 ms.
    #[track_caller]
    fn assert_pause(job: PacedJob, disk: DiskUse, expected_micros: u64) {
        let pause = pause_after(&job, MILLI, MILLI, &disk);
        assert!(pause.abs_diff(Duration::from_micros(expected_micros)) < Duration::from_micros(1), "{pause:?}");
    }

    #[test]
    fn the_pause_is_the_usual_one_while_nothing_else_is_known() {
        let unknown = DiskUse { rate: None, sync_share: 0.99, is_other_late: false };
        assert_pause(ENDLESS, unknown, 1000);
        assert_pause(due_in(MILLI), unknown, 1000);
        assert_pause(ENDLESS, IDLE, 1000);
        // With an hour left, the deadline needs a smaller share of the disk than the job already gets with the usual
        // pause.
        assert_pause(due_in(3600 * SECOND), IDLE, 1000);
        assert_eq!(pause_after(&ENDLESS, Duration::ZERO, MILLI, &IDLE), MILLI);
        assert_eq!(pause_after(&ENDLESS, MILLI, Duration::ZERO, &IDLE), Duration::ZERO);
    }

    #[test]
    fn a_closer_deadline_shortens_the_pause_and_a_missed_one_ends_it() {
        // 50 MB at 100 MB/s take 0.5 s: half of the disk, 0.625 with the margin.
        assert_pause(due_in(SECOND), IDLE, 600);
        // The share is at most 0.9.
        assert_pause(due_in(Duration::from_millis(510)), IDLE, 111);
        assert_pause(due_in(Duration::from_millis(499)), IDLE, 0);
        assert!(due_in(Duration::from_millis(499)).is_late(IDLE.rate));
        assert!(!due_in(Duration::from_millis(501)).is_late(IDLE.rate));
    }

    #[test]
    fn a_deadline_in_the_past_never_pauses() {
        for rate in [None, Some(1), Some(u64::MAX)] {
            for is_other_late in [false, true] {
                assert_pause(due_in(Duration::ZERO), DiskUse { rate, sync_share: 1.0, is_other_late }, 0);
            }
        }
    }

    #[test]
    fn syncs_that_take_most_of_the_time_lengthen_the_pause() {
        assert_pause(ENDLESS, DiskUse { sync_share: 0.5, ..IDLE }, 1000);
        assert_pause(ENDLESS, DiskUse { sync_share: 0.6, ..IDLE }, 1500);
        assert_pause(ENDLESS, DiskUse { sync_share: 1.0, ..IDLE }, 2000);
        // A deadline has priority over syncs.
        assert_pause(due_in(SECOND), DiskUse { sync_share: 1.0, ..IDLE }, 600);
        // Work always gets a quarter of the disk. A pause of three times the piece leaves it exactly this share.
        let pause = pause_after(&ENDLESS, MILLI, 3 * MILLI, &DiskUse { sync_share: 1.0, ..IDLE });
        assert!(pause.abs_diff(3 * MILLI) < Duration::from_micros(1), "{pause:?}");
        // After a long piece, the usual pause is short in comparison. It is not lengthened for this reason alone.
        assert_eq!(pause_after(&ENDLESS, SECOND, MILLI, &IDLE), MILLI);
    }

    #[test]
    fn work_with_time_left_gives_way_to_work_that_is_late() {
        let disk = DiskUse { is_other_late: true, ..IDLE };
        assert_pause(ENDLESS, disk, 2000);
        assert_pause(due_in(SECOND), disk, 2000);
        assert_pause(due_in(MILLI), disk, 0);
    }

    #[test]
    fn each_pause_is_bounded() {
        let times = [Duration::ZERO, Duration::from_nanos(1), MILLI, SECOND, 3600 * SECOND];
        let deadlines = [None, Some(Duration::ZERO), Some(Duration::from_nanos(1)), Some(SECOND), Some(Duration::MAX)];
        for (took, usual) in times.iter().flat_map(|took| times.map(|usual| (*took, usual))) {
            for (deadline, left_bytes) in deadlines.iter().flat_map(|at| [0, 1, u64::MAX].map(|left| (*at, left))) {
                for (rate, sync_share) in
                    [None, Some(1), Some(u64::MAX)].map(|rate| [(rate, 0.0), (rate, 7.0)]).concat()
                {
                    for is_other_late in [false, true] {
                        let job = PacedJob { work: PacedWork::Segment, left_bytes, deadline };
                        let disk = DiskUse { rate, sync_share, is_other_late };
                        let pause = pause_after(&job, took, usual, &disk);
                        assert!(
                            pause <= usual * MAX_PAUSE_FACTOR,
                            "{pause:?} after {took:?}, {usual:?}: {job:?} {disk:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_rate_of_the_disk_is_that_of_whole_samples() {
        let mut rate = DiskRate::default();
        for _ in 0..7 {
            rate.add(SAMPLE_BYTES / 8, MILLI);
            assert_eq!(rate.get(), None);
        }
        rate.add(SAMPLE_BYTES / 8, MILLI);
        assert_eq!(rate.get(), Some(SAMPLE_BYTES * 125), "1 MiB in 8 ms");
        rate.add(SAMPLE_BYTES, MILLI);
        assert_eq!(rate.get(), Some(SAMPLE_BYTES * (7 * 125 + 1000) / 8));
        let before = rate.get();
        rate.add(SAMPLE_BYTES, Duration::ZERO);
        rate.add(SAMPLE_BYTES, Duration::from_micros(10));
        assert_eq!(rate.get(), before, "no disk is that fast");
    }

    #[test]
    fn the_share_of_syncs_is_measured_over_windows() {
        let mut share = SyncShare::default();
        let mut at = |now: u64, synced: u64| share.at(Duration::from_millis(now), Duration::from_millis(synced));
        assert_eq!([at(50, 50), at(125, 62), at(224, 90), at(250, 93), at(500, 700)], [0.0, 0.496, 0.496, 0.248, 1.0]);
    }

    #[test]
    fn the_rate_of_writers_follows_their_position() {
        let mut meter = WriteMeter::default();
        assert_eq!(meter.rate(SECOND, 1000), None);
        assert_eq!(meter.rate(SECOND + 99 * MILLI, 5000), None, "too early");
        assert_eq!(meter.rate(SECOND + 100 * MILLI, 6000), Some(50_000));
        assert_eq!(meter.time_to_fill(SECOND + 100 * MILLI, 6000, 25_000), Some(SECOND / 2));
        assert_eq!(meter.rate(2 * SECOND + 100 * MILLI, 6000), None, "nothing was written");
        assert_eq!(meter.time_to_fill(2 * SECOND + 100 * MILLI, 6000, 0), None);
    }
}
