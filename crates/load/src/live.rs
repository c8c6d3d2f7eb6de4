//! Live view of runs: the progress of a run, shown several times a second.
//!
//! Owns: the counts since the last update, which the load threads pass on ([`Recent`]), and the thread that shows them.
//! Does not own: the terminal ([`LiveView`]). If no view is installed, nothing is counted and no thread runs.
//!
//! The process has one view, as it has one standard error, so every suite with this load generator shows its runs
//! there. A view costs a load thread one more histogram entry for each reply, and a lock every quarter of a second.

use std::{
    cell::Cell,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::pace::Pace;
use crate::{
    latency::{Latencies, nanos},
    report,
};

/// Time between two updates of the line that shows a benchmark run's progress.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// Number of updates of the line between two readings of the server's fsyncs. Each reading costs the server a request.
const FSYNC_TICKS: u32 = 4;

/// Shows the progress of a benchmark run as one line that is updated in place.
pub trait LiveView: Send + Sync {
    /// Replaces the shown line. `part` is the part of the benchmark run that is done, from 0 to 1.
    fn show(&self, line: &str, part: f64);

    /// Removes the line, because the benchmark run has ended.
    fn clear(&self);
}

static VIEW: OnceLock<Box<dyn LiveView>> = OnceLock::new();

/// Shows all further runs of this process on this view. Only the first call has an effect.
pub fn show_runs_on(view: Box<dyn LiveView>) {
    let _ = VIEW.set(view);
}

thread_local! {
    /// True while runs that this thread starts must not be shown.
    static IS_HIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work` without showing the benchmark runs in it. Used for a run beside another run that is shown.
pub fn hidden<T>(work: impl FnOnce() -> T) -> T {
    let before = IS_HIDDEN.replace(true);
    let ended = work();
    IS_HIDDEN.set(before);
    ended
}

/// Returns true if a view is installed, so that runs are shown.
pub fn is_shown() -> bool {
    VIEW.get().is_some()
}

/// Source of the number of fsyncs that the server has made so far.
#[derive(Clone)]
pub struct FsyncCount(Arc<dyn Fn() -> Option<u64> + Send + Sync>);

impl FsyncCount {
    /// Creates a source from a function that reads the number of fsyncs. The function returns `None` if the server does
    /// not answer.
    pub fn new(read: impl Fn() -> Option<u64> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads the number of fsyncs; `None` if the server does not answer.
    pub(crate) fn read(&self) -> Option<u64> {
        (self.0)()
    }
}

impl fmt::Debug for FsyncCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FsyncCount")
    }
}

/// Counts of a load thread since it last passed them on to the live view.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    /// Response times of the right replies that are not passed on to the live view yet.
    pub(crate) times: Latencies,
    /// Number of wrong replies and lost connections that are not passed on to the live view yet.
    pub(crate) errors: u64,
}

impl Recent {
    fn merge(&mut self, other: &Self) {
        self.times.merge(&other.times);
        self.errors += other.errors;
    }
}

/// Counts of all load threads of a benchmark run since the last update of the live view.
#[derive(Debug, Default)]
pub(crate) struct Shared(Mutex<Recent>);

impl Shared {
    /// Adds the counts of one thread, and resets the thread's counts to zero.
    pub(crate) fn add(&self, recent: &mut Recent) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).merge(&std::mem::take(recent));
    }

    fn take(&self) -> Recent {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Performs a run. If a view is installed, shows the progress meanwhile. `run` gets the shared counts, or `None` if
/// runs are not shown.
pub(crate) fn shown<T>(
    pace: Pace,
    warmup: Duration,
    duration: Duration,
    fsyncs: Option<&FsyncCount>,
    run: impl FnOnce(Option<&Shared>) -> T,
) -> T {
    let Some(view) = VIEW.get().filter(|_| !IS_HIDDEN.get()) else { return run(None) };
    let (shared, (stop, stopped)) = (&Shared::default(), mpsc::channel::<()>());
    let mut line = Line::begin(pace, warmup, duration, fsyncs);
    let ended = thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout) {
                let (text, part) = line.next(&shared.take(), Instant::now());
                view.show(&text, part);
            }
        });
        // If `run` panics, the sender is dropped too. Dropping it ends the thread.
        let _stop = stop;
        run(Some(shared))
    });
    view.clear();
    ended
}

/// The line of the live view that shows a benchmark run, and the counts of the run so far.
struct Line<'a> {
    pace: Pace,
    warmup: Duration,
    duration: Duration,
    fsyncs: Option<&'a FsyncCount>,
    begun: Instant,
    last: Instant,
    replies: u64,
    errors: u64,
    ticks: u32,
    /// Number of fsyncs at the last reading, and the time of that reading.
    synced: Option<(u64, Instant)>,
    fsyncs_per_second: Option<f64>,
}

impl<'a> Line<'a> {
    fn begin(pace: Pace, warmup: Duration, duration: Duration, fsyncs: Option<&'a FsyncCount>) -> Self {
        let (begun, last) = [Instant::now(); 2].into();
        let (replies, errors, ticks, synced, fsyncs_per_second) = (0, 0, 0, None, None);
        Self { pace, warmup, duration, fsyncs, begun, last, replies, errors, ticks, synced, fsyncs_per_second }
    }

    /// Adds the counts since the last update to the totals of the run. Returns the line to show at the time `now`, and
    /// the part of the run that is done, from 0 to 1.
    fn next(&mut self, recent: &Recent, now: Instant) -> (String, f64) {
        let (elapsed, seconds) = (now - self.begun, (now - self.last).as_secs_f64());
        self.last = now;
        self.replies += recent.times.count();
        self.errors += recent.errors;
        if self.ticks.is_multiple_of(FSYNC_TICKS) {
            self.look_at_fsyncs(now);
        }
        self.ticks += 1;
        let (all, place) = match self.pace {
            Pace::Each { keys } => (keys.max(1) as f64, format!("{} of {keys}", self.replies)),
            _ => {
                let all = (self.warmup + self.duration).as_secs_f64();
                let warm = if elapsed < self.warmup { " (warm-up)" } else { "" };
                (all, format!("{:.1} of {all:.1} s{warm}", elapsed.as_secs_f64()))
            }
        };
        let done = if let Pace::Each { .. } = self.pace { self.replies as f64 } else { elapsed.as_secs_f64() };
        let mut line = format!("{place}, {}", self.pace.name("/s"));
        if recent.times.count() > 0 {
            let at = |percentile| report::duration(recent.times.percentile(percentile));
            let rate = report::number(recent.times.count() as f64 / seconds);
            line += &format!(
                ": {rate}/s, p50 {}, p99 {}, max {}",
                at(50.0),
                at(99.0),
                report::duration(recent.times.max())
            );
        }
        line += &format!(", {} errors", self.errors);
        if let Some(fsyncs) = self.fsyncs_per_second {
            line += &format!(", {} fsyncs/s", report::number(fsyncs));
        }
        (line, (done / all).min(1.0))
    }

    fn look_at_fsyncs(&mut self, now: Instant) {
        let Some(count) = self.fsyncs.and_then(FsyncCount::read) else { return };
        if let Some((before, at)) = self.synced {
            let seconds = nanos(now - at) as f64 / 1e9;
            self.fsyncs_per_second = Some(count.saturating_sub(before) as f64 / seconds.max(1e-3));
        }
        self.synced = Some((count, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arrivals;

    fn recent(replies: u64, micros: u64, errors: u64) -> Recent {
        let mut times = Latencies::default();
        times.record_nanos_times(micros * 1000, replies);
        Recent { times, errors }
    }

    #[test]
    fn a_line_has_the_rate_and_times_since_the_last_one_and_all_errors() {
        let pace = Pace::Open { rate: 500.0, arrivals: Arrivals::Constant };
        let reads = std::sync::atomic::AtomicU64::new(0);
        let fsyncs = FsyncCount::new(move || Some(50 * reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
        let [warmup, duration] = [1, 3].map(Duration::from_secs);
        let mut line = Line::begin(pace, warmup, duration, Some(&fsyncs));
        let begun = line.begun;
        let mut next = |seconds: f64, recent: Recent| line.next(&recent, begun + Duration::from_secs_f64(seconds));
        assert_eq!(next(0.5, recent(0, 0, 0)), ("0.5 of 4.0 s (warm-up), 500/s constant, 0 errors".to_owned(), 0.125));
        let (second, part) = next(2.0, recent(750, 200, 1));
        assert!(second.starts_with("2.0 of 4.0 s, 500/s constant: 500/s, p50 "), "{second}");
        assert!(second.ends_with(", 1 errors") && part == 0.5, "{second}");
        next(2.2, recent(1, 1, 1));
        next(2.3, recent(1, 1, 0));
        let (last, _) = next(2.5, recent(1, 1, 0));
        assert!(last.ends_with(", 2 errors, 25.0 fsyncs/s"), "50 in 2 seconds: {last}");
        let (keys, part) = Line::begin(Pace::Each { keys: 10 }, warmup, duration, None).next(&recent(5, 1, 0), begun);
        assert!(keys.starts_with("5 of 10, closed loop") && part == 0.5, "{keys}");
    }

    #[test]
    fn runs_are_shown_until_they_end() {
        #[derive(Clone, Default)]
        struct ShownLines(Arc<Mutex<Vec<String>>>);
        impl LiveView for ShownLines {
            fn show(&self, line: &str, _: f64) {
                self.0.lock().unwrap().push(line.to_owned());
            }
            fn clear(&self) {
                self.0.lock().unwrap().push("clear".to_owned());
            }
        }
        let seen = ShownLines::default();
        show_runs_on(Box::new(seen.clone()));
        let has_shown = || seen.0.lock().unwrap().iter().any(|line| line.contains(", p50 "));
        let ended = shown(Pace::Closed, Duration::ZERO, TICK * 3, None, |shared| {
            shared.unwrap().add(&mut recent(7, 100, 0));
            // On a busy machine the line may appear late, but it appears while the run goes on.
            let begun = Instant::now();
            while !has_shown() && begun.elapsed() < Duration::from_secs(60) {
                thread::sleep(TICK / 10);
            }
            5
        });
        assert_eq!(ended, 5);
        hidden(|| shown(Pace::Closed, Duration::ZERO, TICK, None, |shared| assert!(shared.is_none())));
        assert!(has_shown(), "{:?}", seen.0);
        let seen = seen.0.lock().unwrap();
        assert!(seen.iter().any(|line| line == "clear"), "{seen:?}");
    }
}
