//! Threads of the load generator. Each thread has a runtime of its own, so that no task moves to another thread.
//!
//! Owns: starting the threads of a run together, with one clock, and the resources that the threads and the server
//! used. Event loops that never yield to a runtime (`worker`) run on these threads too.

use std::{
    future::Future,
    num::NonZeroU64,
    sync::{
        Barrier, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use rustix::thread::set_current_timer_slack;
use tokio::runtime::{Builder, LocalOptions};

use crate::{
    BenchError,
    client_threads::ClientEffort,
    latency::nanos,
    usage::{Meter, RunResources, ThreadCpuMeter},
};

/// Clock of a benchmark run, in nanoseconds since the run started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Starts a clock. Its time is 0 now.
    pub fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// Returns the nanoseconds since the clock was started.
    #[inline]
    pub fn now(&self) -> u64 {
        nanos(self.epoch.elapsed())
    }
}

/// Runs `setup` on each thread. If all setups succeed, starts `load` on all threads at the same moment. `server` is the
/// id of the server's process, if it is known. Returns the results of the threads in order, and the resources that the
/// run used.
pub fn run<S, T: Send>(
    threads: usize,
    server: Option<u32>,
    setup: impl AsyncFn(usize) -> Result<S, BenchError> + Sync,
    load: impl AsyncFn(S, Clock) -> T + Sync,
) -> Result<(Vec<T>, RunResources), BenchError> {
    let (barrier, has_failed, begun) = (Barrier::new(threads), AtomicBool::new(false), OnceLock::new());
    let work = async |number| {
        let ready = setup(number).await;
        has_failed.fetch_or(ready.is_err(), Ordering::AcqRel);
        // Blocking here is harmless: the load has not begun, and the setup needs no more replies.
        if barrier.wait().is_leader() {
            let _ = begun.set((Meter::begin(server), ClientEffort::begin(), Clock::start()));
        }
        barrier.wait();
        let ready = ready?;
        let Some((_, _, clock)) = begun.get().filter(|_| !has_failed.load(Ordering::Acquire)) else { return Ok(None) };
        let effort = ThreadCpuMeter::begin();
        let brought = load(ready, *clock).await;
        Ok(Some((brought, effort.end())))
    };
    let all: Vec<Result<_, BenchError>> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move || block_on_thread(work(number)))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let server = begun.get().and_then(|(meter, _, _)| meter.server());
    let server_thread = begun.get().and_then(|(meter, _, _)| meter.server_thread());
    let clocks = begun.get().map(|(meter, _, _)| meter.clocks()).unwrap_or_default();
    let (mut brought, mut spent) =
        (Vec::new(), RunResources { server, server_thread, clocks, ..RunResources::default() });
    // If a thread did not run its load, the error of another thread ends this loop.
    for (result, (cpu, busy)) in all.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        brought.push(result);
        spent.generator_cpu += cpu.as_secs_f64();
        spent.busiest = spent.busiest.max(busy);
    }
    if let Some((_, clients, _)) = begun.get() {
        let (cpu, busy) = clients.end();
        spent.generator_cpu += cpu;
        spent.busiest = spent.busiest.max(busy);
    }
    Ok((brought, spent))
}

/// Runs a future to its end on the calling thread, in a new single-threaded runtime.
pub fn block_on_thread<F: Future>(work: F) -> F::Output {
    // With the usual timer slack the kernel may wake the thread 50 µs late. If the kernel refuses the change, the
    // recorded lag shows the lateness.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    runtime.expect("epoll and an eventfd can be had").block_on(work)
}
