//! The common start of a run's threads: one clock, and the server's usage as it was then.

use std::{
    sync::{
        Barrier, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use crate::{
    latency::nanos,
    usage::{Cost, Usage, Whose},
};

/// Nanoseconds since the start of a run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Starts a clock now.
    #[must_use]
    pub fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        nanos(self.epoch.elapsed())
    }
}

/// Where the threads of a run wait for each other after setup.
#[derive(Debug)]
pub struct Start {
    barrier: Barrier,
    has_failed: AtomicBool,
    begun: OnceLock<(Clock, Option<Usage>)>,
    server: Option<u32>,
}

impl Start {
    /// Creates the start of so many threads. `server` is the server's process, if it is known.
    #[must_use]
    pub fn new(threads: usize, server: Option<u32>) -> Self {
        Self { barrier: Barrier::new(threads), has_failed: AtomicBool::new(false), begun: OnceLock::new(), server }
    }

    /// Waits for all threads, of which each says whether its setup succeeded. Returns the run's clock, or `None` if the setup of
    /// any thread failed.
    pub fn wait(&self, is_ready: bool) -> Option<Clock> {
        self.has_failed.fetch_or(!is_ready, Ordering::AcqRel);
        if self.barrier.wait().is_leader() {
            let before = self.server.map(|id| Usage::read(Whose::Process(id)));
            let _ = self.begun.set((Clock::start(), before));
        }
        self.barrier.wait();
        let has_failed = self.has_failed.load(Ordering::Acquire);
        self.begun.get().map(|(clock, _)| *clock).filter(|_| !has_failed)
    }

    /// Returns what the server has used since the start, if its process is known.
    #[must_use]
    pub fn cost(&self) -> Option<Cost> {
        let before = self.begun.get()?.1?;
        Some(Usage::read(Whose::Process(self.server?)).since(&before))
    }
}
