//! Scrub: reading all stored data in the background, so that damage is found before the data is needed.
//!
//! Owns: the thread, its pace, and the statistics. Does not own: the verification itself, which is part of the log and
//! of each backend.
//!
//! One scrub (a round) reads the sealed segments of the log, oldest first, and then the persisted state. It verifies
//! all checksums, and checks that no row of the state is missing. Damage is counted and described, but nothing is
//! repaired: the reader of the damaged data gets an error, and `docs/guides/damage.md` explains what to do.
//!
//! While a round reads the state of a redb or SQLite backend, the database file cannot reuse the pages of overwritten
//! rows, so the file can grow by the data written meanwhile. A round does not begin on a full disk.

use std::{
    ops::ControlFlow,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use thalweg_disk::{PacedWork, Priority};
use thalweg_log::{Log, ReadError};
use thalweg_store::{Backend, BackendHealth};

/// Longest time after an open at which the first scrub begins. Without this limit, a node that is restarted often would
/// never finish a scrub.
const FIRST_AFTER: Duration = Duration::from_secs(600);
/// Number of bytes of log records that are verified in one step.
const STEP_BYTES: u64 = 256 * 1024;

/// Progress and results of the scrub, which reads all stored data in the background to find damage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// True while a scrub is in progress.
    pub is_running: bool,
    /// Number of complete scrubs since the database was opened.
    pub rounds: u64,
    /// Bytes that the scrub in progress has verified so far, or the last scrub if none is in progress.
    pub done_bytes: u64,
    /// Approximate number of bytes that the scrub in progress, or the last one, verifies in total.
    pub total_bytes: u64,
    /// Bytes verified by all scrubs since the database was opened.
    pub bytes: u64,
    /// Number of damaged log segments and states that all scrubs have found. Each scrub counts the same damage again.
    /// Damage that a snapshot has met counts once.
    pub damages: u64,
    /// Description of the damage that was found last; `None` if none was found.
    pub damage: Option<String>,
    /// True if a scrub or a snapshot has found damage in the persisted state, and not only in the log.
    pub is_state_damaged: bool,
}

/// Thread that verifies all stored data of one open database in the background, and its statistics.
#[derive(Debug)]
pub(crate) struct Scrub {
    shared: Arc<Shared>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    log: Log,
    backend: Arc<dyn Backend>,
    /// Maximum number of bytes per second that a scrub in the background reads.
    bytes_per_second: u64,
    stats: Mutex<ScrubStats>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

/// Speed of a scrub.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// The scrub reads at the rate in the options, to leave the disk to other work.
    Considerate,
    /// The scrub reads at full speed, because a caller waits for it.
    Awaited,
}

impl Scrub {
    /// Starts the thread that scrubs once in each interval. With an interval of zero, only [`run`](Self::run) scrubs.
    pub(crate) fn start(log: Log, backend: Arc<dyn Backend>, interval: Duration, bytes_per_second: u64) -> Self {
        let bytes_per_second = bytes_per_second.max(1);
        let (stats, stop, stopped) = (Mutex::default(), Mutex::new(false), Condvar::new());
        let shared = Arc::new(Shared { log, backend, bytes_per_second, stats, stop, stopped });
        let handle = (!interval.is_zero()).then(|| {
            let shared = Arc::clone(&shared);
            let run = move || {
                Priority::Idle.take();
                let mut wait = interval.min(FIRST_AFTER);
                while shared.pause(wait).is_continue() {
                    if shared.backend.health() == BackendHealth::Good {
                        shared.round(Pace::Considerate);
                    }
                    wait = interval;
                }
            };
            let thread = thread::Builder::new().name("thalweg-scrub".to_owned());
            thread.spawn(run).expect("the system can start a thread")
        });
        Self { shared, handle: Mutex::new(handle) }
    }

    /// Runs a scrub on the caller's thread, at full speed.
    pub(crate) fn run(&self) {
        self.shared.round(Pace::Awaited);
    }

    pub(crate) fn stats(&self) -> ScrubStats {
        self.shared.stats().clone()
    }

    /// Ends the scrub's thread, and any scrub in progress, and waits for the thread.
    pub(crate) fn stop(&self) {
        *lock(&self.shared.stop) = true;
        self.shared.stopped.notify_all();
        if let Some(handle) = lock(&self.handle).take() {
            // A panic of the thread was already printed, and nothing has to be undone.
            let _ = handle.join();
        }
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn stats(&self) -> MutexGuard<'_, ScrubStats> {
        lock(&self.stats)
    }

    /// Waits for `time`. Returns `Break` if the scrub has to stop.
    fn pause(&self, time: Duration) -> ControlFlow<()> {
        let waited = self.stopped.wait_timeout_while(lock(&self.stop), time, |stop| !*stop);
        match *waited.unwrap_or_else(PoisonError::into_inner).0 {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn round(&self, pace: Pace) {
        let segments = self.log.segments().into_iter().filter(|segment| !segment.active);
        let segments: Vec<_> = segments.map(|segment| (segment.generation, segment.bytes)).collect();
        let log_bytes: u64 = segments.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        {
            let mut stats = self.stats();
            stats.is_running = true;
            stats.done_bytes = 0;
            stats.total_bytes = log_bytes + self.backend.stats().disk_bytes;
        }
        let mut step = |bytes: u64| {
            {
                let mut stats = self.stats();
                stats.done_bytes += bytes;
                stats.bytes += bytes;
            }
            let pause = match pace {
                Pace::Considerate => Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64),
                Pace::Awaited => return self.pause(Duration::ZERO),
            };
            let pause = self.log.pacer().stretched(PacedWork::Scrub, pause);
            self.log.pacer().count_rest(PacedWork::Scrub, pause);
            self.pause(pause)
        };
        let read_all = segments.iter().all(|(generation, _)| self.segment(*generation, &mut step).is_continue())
            && match self.backend.verify(&mut step) {
                Ok(verified) => verified.is_complete,
                Err(error) => {
                    self.note(error.to_string());
                    self.stats().is_state_damaged = true;
                    true
                }
            };
        let mut stats = self.stats();
        stats.is_running = false;
        stats.rounds += u64::from(read_all);
    }

    fn segment(
        &self,
        generation: thalweg_types::Generation,
        step: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let records = match self.log.segment_records(generation) {
            Ok(records) => records,
            // The segment was freed in the meantime.
            Err(_) => return ControlFlow::Continue(()),
        };
        let mut bytes = 0;
        for record in records {
            match record {
                Ok(record) => bytes += record.payload.len() as u64,
                Err(ReadError::Gone { .. }) => break,
                Err(error) => {
                    self.note(error.to_string());
                    break;
                }
            }
            if bytes >= STEP_BYTES {
                step(std::mem::take(&mut bytes))?;
            }
        }
        step(bytes)
    }

    fn note(&self, damage: String) {
        let mut stats = self.stats();
        stats.damages += 1;
        stats.damage = Some(damage);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
