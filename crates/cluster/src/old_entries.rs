//! The threads that read and encode old entries for followers that lack many.
//!
//! Owns: the two threads, their priorities, and the choice between them. Does not own: reading (`raft`) and frames
//! (`convert`).
//!
//! A follower that catches up must not delay the commands of clients. So normally a thread with idle priority does this
//! work: any other thread that becomes ready gets the processor at once. But if the other threads leave it no time, the
//! follower would never catch up.
//!
//! So if a piece of work, such as the encoding of one append, takes longer than [`PATIENCE`], later work goes to a
//! second thread with low priority for a while. That thread always gets about a tenth of the processor time of another
//! thread. It is used for [`HASTE_SHARE`] times as long as the slow piece took, and at least for [`HASTE`]. So on a
//! busy machine, the faster thread does most of a catch-up.
//!
//! The threads end when the last handle is dropped.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use thalweg_disk::Priority;
use tokio::{sync::oneshot, time::Instant};

/// Maximum time from handing over a piece of work (reading or encoding some log entries) to its end. If the work takes
/// longer, the thread with idle priority counts as too slow. A piece needs one or two milliseconds of processor time.
const PATIENCE: Duration = Duration::from_millis(100);
/// Minimum time for which the thread with low priority gets the work after the idle thread was too slow.
const HASTE: Duration = Duration::from_secs(5);
/// Factor for the time during which the thread with low priority gets the work: this many times the duration of the
/// piece of work that was too slow.
const HASTE_SHARE: u32 = 4;
/// Maximum time for which the thread with low priority gets the work. Afterwards the machine may be idle again.
const MAX_HASTE: Duration = Duration::from_secs(120);

type OldEntryWork = Box<dyn FnOnce() + Send>;

/// Choice of the thread that gets the next append of old entries to encode: the thread with low priority until `until`,
/// otherwise the thread with idle priority.
#[derive(Clone, Copy, Debug, Default)]
struct Haste {
    until: Option<Instant>,
}

impl Haste {
    fn is_on(self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns the choice of the thread after a piece of work has ended. The work was handed over at `begun` and has
    /// ended at `now`.
    fn ended(self, begun: Instant, now: Instant) -> Self {
        let was_idle = !self.is_on(begun);
        let took = now.saturating_duration_since(begun);
        if !was_idle || took < PATIENCE {
            return self;
        }
        Self { until: Some(now + took.saturating_mul(HASTE_SHARE).clamp(HASTE, MAX_HASTE)) }
    }
}

struct Inner {
    idle: mpsc::Sender<OldEntryWork>,
    low: mpsc::Sender<OldEntryWork>,
    haste: Mutex<Haste>,
}

/// The two threads that read and encode old log entries. Clones use the same threads.
#[derive(Clone)]
pub(crate) struct OldEntryThreads(Arc<Inner>);

impl fmt::Debug for OldEntryThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OldEntryThreads").finish_non_exhaustive()
    }
}

fn start(name: &str, priority: Priority) -> io::Result<mpsc::Sender<OldEntryWork>> {
    let (sender, receiver) = mpsc::channel::<OldEntryWork>();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        priority.take();
        for work in receiver {
            work();
        }
    })?;
    Ok(sender)
}

impl OldEntryThreads {
    /// Starts the threads. They sleep while there is no work.
    pub(crate) fn start() -> io::Result<Self> {
        let idle = start("thalweg-old", Priority::Idle)?;
        let low = start("thalweg-old-low", Priority::Low)?;
        Ok(Self(Arc::new(Inner { idle, low, haste: Mutex::default() })))
    }

    /// Runs `work` on the thread that is chosen at present, and returns its result.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let begun = Instant::now();
        let thread = if self.haste().is_on(begun) { &self.0.low } else { &self.0.idle };
        let (sender, done) = oneshot::channel();
        let work: OldEntryWork = Box::new(move || {
            // The caller is dropped if the node stops, or if openraft begins another stream. Its work is then skipped,
            // because it would only delay other work.
            if !sender.is_closed() {
                let _ = sender.send(work());
            }
        });
        thread.send(work).expect("the work before did not panic");
        let result = done.await.expect("the work does not panic");
        let haste = self.haste().ended(begun, Instant::now());
        *self.0.haste.lock().unwrap_or_else(PoisonError::into_inner) = haste;
        result
    }

    fn haste(&self) -> Haste {
        *self.0.haste.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::testing::run;

    #[test]
    fn slow_work_on_the_idle_thread_makes_haste_for_a_while() {
        let (begun, milli) = (Instant::now(), Duration::from_millis(1));
        let usual = Haste::default().ended(begun, begun + PATIENCE - milli);
        assert!(!usual.is_on(begun + PATIENCE));
        let slow_at = begun + PATIENCE;
        let hasty = usual.ended(begun, slow_at);
        assert!(hasty.is_on(slow_at) && hasty.is_on(slow_at + HASTE - milli) && !hasty.is_on(slow_at + HASTE));
        let busy = hasty.ended(slow_at, slow_at + 3 * PATIENCE);
        assert!(!busy.is_on(slow_at + HASTE), "slow work on the other thread makes no more haste");
    }

    #[test]
    fn haste_lasts_several_times_as_long_as_the_slow_work_within_a_bound() {
        let (begun, milli) = (Instant::now(), Duration::from_millis(1));
        let lasts = |took: Duration, haste: Duration| {
            let (ended, hasty) = (begun + took, Haste::default().ended(begun, begun + took));
            hasty.is_on(ended + haste - milli) && !hasty.is_on(ended + haste)
        };
        assert!(lasts(Duration::from_secs(1), HASTE));
        assert!(lasts(Duration::from_secs(20), Duration::from_secs(80)));
        assert!(lasts(Duration::from_secs(3600), MAX_HASTE));
    }

    #[test]
    fn work_runs_on_a_thread_of_its_own_and_slow_work_changes_the_thread() {
        run(async {
            let threads = OldEntryThreads::start().unwrap();
            let name = || thread::current().name().unwrap_or_default().to_owned();
            assert_eq!(threads.run(name).await, "thalweg-old");
            threads.run(|| thread::sleep(PATIENCE)).await;
            assert_eq!(threads.run(name).await, "thalweg-old-low");
        });
    }

    #[test]
    fn work_whose_caller_is_gone_is_not_begun() {
        run(async {
            let threads = OldEntryThreads::start().unwrap();
            let (go_on, waiting) = mpsc::channel::<()>();
            let mut first = Box::pin(threads.run(move || waiting.recv()));
            assert!((&mut first).now_or_never().is_none(), "the thread waits");
            let (ran, runs) = mpsc::channel::<()>();
            let dropped = threads.run(move || ran.send(())).now_or_never();
            assert!(dropped.is_none(), "it waits behind the first");
            let mut last = Box::pin(threads.run(|| ()));
            assert!((&mut last).now_or_never().is_none());
            go_on.send(()).unwrap();
            first.await.unwrap();
            last.await;
            assert!(runs.try_recv().is_err());
        });
    }
}
