//! Readings of the server's fsyncs and memory during a run, for the windows of its [`Timeline`].
//!
//! Owns: the thread that reads beside the threads of the load, and the sum of the load threads' counts
//! ([`run_counted`]). Does not own: the windows, or the ways to read.
//!
//! The memory is read from the kernel at each border between two windows. Reading the number of fsyncs costs the server
//! a request, so it happens at most once in [`FSYNC_INTERVAL`].

use std::{
    sync::{
        OnceLock,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use super::{
    live::FsyncCount,
    run_threads::{self, Clock},
    tally::{Merge, Tally},
    timeline::{Reading, Timeline},
};
use crate::{
    BenchError,
    usage::{MeasuredProcess, RunResources, resident_bytes},
};

/// Shortest time between two readings of the server's fsyncs, in nanoseconds.
const FSYNC_INTERVAL: u64 = 1_000_000_000;
/// Interval at which the reading thread checks if the load has started.
const LOOK: Duration = Duration::from_millis(5);

/// Source of the figures of one server that are read during a benchmark run: its memory and its fsyncs.
#[derive(Clone, Copy, Debug)]
pub struct ServerSource<'a> {
    /// Id of the server's process, whose memory is read.
    pub process: u32,
    /// Source of the number of the server's fsyncs; `None` if it is not known.
    pub fsyncs: Option<&'a FsyncCount>,
}

/// Performs a run. If there is a server, reads its fsyncs and its memory meanwhile. `run` gets a cell, and puts the
/// clock of the run into it when the load starts. Returns the result of the run, and the readings at the borders of the
/// run's windows.
pub(crate) fn beside<T>(
    source: Option<ServerSource<'_>>,
    windows: Option<&Timeline>,
    run: impl FnOnce(&OnceLock<Clock>) -> T,
) -> (T, Vec<Reading>) {
    let started = OnceLock::new();
    let (Some(source), Some(windows)) = (source, windows) else { return (run(&started), Vec::new()) };
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let started = &started;
        let reader = scope.spawn(move || source.read_at(&windows.borders(), started, &stopped));
        let result = run(started);
        drop(stop);
        (result, reader.join().unwrap_or_default())
    })
}

/// Runs threads of the load generator as [`run_threads::run`] does. Each thread returns its counts and a further result
/// of its own. `empty` contains the windows of the run and no counts yet. If there is a server, its figures are read at
/// the borders of the windows. Returns the sum of the counts, the further results of the threads in order, and the
/// resources that the run used.
pub fn run_counted<S, C: Merge + Send, T: Send>(
    threads: usize,
    server: Option<ServerSource<'_>>,
    empty: Tally<C>,
    setup: impl AsyncFn(usize) -> Result<S, BenchError> + Sync,
    load: impl AsyncFn(S, Clock) -> (Tally<C>, T) + Sync,
) -> Result<(Tally<C>, Vec<T>, RunResources), BenchError> {
    let process = server.map(|server| server.process);
    let mut sum = empty;
    let (ended, readings) = beside(server, sum.timeline.as_ref(), |started| {
        run_threads::run(threads, process, setup, async |ready, clock| {
            let _ = started.set(clock);
            load(ready, clock).await
        })
    });
    let (brought, spent) = ended?;
    let mut results = Vec::with_capacity(brought.len());
    for (tally, result) in brought {
        sum.merge(tally);
        results.push(result);
    }
    if let Some(timeline) = &mut sum.timeline {
        timeline.set_server(&readings);
    }
    Ok((sum, results, spent))
}

impl ServerSource<'_> {
    fn read_at(self, borders: &[u64], started: &OnceLock<Clock>, stopped: &Receiver<()>) -> Vec<Reading> {
        let ends_within = |time| stopped.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
        let clock = loop {
            match started.get() {
                Some(clock) => break clock,
                None if ends_within(LOOK) => return Vec::new(),
                None => {}
            }
        };
        let (mut readings, mut next_fsyncs) = (Vec::with_capacity(borders.len()), 0);
        for (number, &border) in borders.iter().enumerate() {
            let is_over = ends_within(Duration::from_nanos(border.saturating_sub(clock.now())));
            let is_last = is_over || number + 1 == borders.len();
            let reads_fsyncs = border >= next_fsyncs || is_last;
            next_fsyncs = if reads_fsyncs { border + FSYNC_INTERVAL } else { next_fsyncs };
            let fsyncs = self.fsyncs.filter(|_| reads_fsyncs).and_then(FsyncCount::read);
            let resident_bytes = resident_bytes(MeasuredProcess::Process(self.process));
            readings.push(Reading { at: clock.now(), fsyncs, resident_bytes });
            if is_over {
                break;
            }
        }
        readings
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::Instant,
    };

    use super::*;

    /// Longest wait for the reading thread. Only failures take this long.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Returns a source whose number of fsyncs rises by 100 with each reading, and the number of readings so far.
    fn counted() -> (FsyncCount, Arc<AtomicU64>) {
        let readings = Arc::<AtomicU64>::default();
        let count = Arc::clone(&readings);
        (FsyncCount::new(move || Some(100 * count.fetch_add(1, Ordering::Relaxed))), readings)
    }

    /// Returns true until the fsyncs were read at the first and at the last border. The reading thread may be late on a
    /// busy machine, and the load must not end before.
    fn must_wait(readings: &AtomicU64, begun: Instant) -> bool {
        readings.load(Ordering::Relaxed) < 2 && begun.elapsed() < PATIENCE
    }

    #[test]
    fn the_server_is_read_while_the_load_runs() {
        let (fsyncs, count) = counted();
        let source = Some(ServerSource { process: std::process::id(), fsyncs: Some(&fsyncs) });
        let mut windows = Timeline::over(&(0..600_000_000), None).unwrap();
        let (result, readings) = beside(source, Some(&windows), |started| {
            let _ = started.set(Clock::start());
            let begun = Instant::now();
            while must_wait(&count, begun) {
                thread::sleep(LOOK);
            }
            7
        });
        let figures: Vec<_> = readings.iter().map(|reading| reading.fsyncs).collect();
        assert_eq!((result, figures), (7, vec![Some(0), None, Some(100)]), "the first and the last border");
        assert!(readings.iter().all(|reading| reading.resident_bytes.unwrap() > 1 << 20));
        assert!(readings[2].at >= 600_000_000, "{readings:?}");
        let expected = 100.0 / ((readings[2].at - readings[0].at) as f64 / 1e9);
        windows.set_server(&readings);
        for window in windows.windows() {
            let rate = window.fsyncs_per_second.unwrap();
            assert!((rate - expected).abs() < 1e-6 && window.resident_bytes.is_some(), "{rate} of {expected}");
        }
        let (_, none) = beside(None, Some(&windows), |_| ());
        assert!(none.is_empty());
        let (_, none) = beside(source, Some(&windows), |_| ());
        assert!(none.is_empty(), "the load never starts");
    }

    #[test]
    fn counts_of_all_threads_are_joined_with_the_readings() {
        let empty = || Tally::<()>::with_windows(1, &(0..200_000_000), Some(Duration::from_millis(100)));
        let (fsyncs, count) = counted();
        let server = Some(ServerSource { process: std::process::id(), fsyncs: Some(&fsyncs) });
        let load = async |number: usize, _: Clock| {
            let mut tally = empty();
            tally.arrived(3, 0);
            tally.responded(0, 150_000_000, 150_001_000, 2);
            let begun = Instant::now();
            while must_wait(&count, begun) {
                tokio::time::sleep(LOOK).await;
            }
            (tally, number)
        };
        let (sum, numbers, _) = run_counted(2, server, empty(), async |number| Ok(number), load).unwrap();
        assert_eq!((sum.right, sum.times[0].count(), numbers), (6, 4, vec![0, 1]));
        let timeline = sum.timeline.unwrap();
        let right: Vec<_> = timeline.windows().iter().map(|window| window.right).collect();
        assert_eq!(right, [6, 0]);
        assert_eq!(timeline.windows()[1].times.as_ref().map_or(0, |times| times.count()), 4);
        assert!(timeline.windows().iter().all(|window| window.resident_bytes.is_some()));
    }
}
