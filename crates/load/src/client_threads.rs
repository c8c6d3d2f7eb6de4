//! Threads for clients that need an async runtime. They run in addition to the load threads.
//!
//! A load thread waits for its sockets itself and never yields to its runtime. So a client that relies on the runtime
//! to read replies would get none there. The tasks of such clients run on the threads of this module. A load thread
//! talks to a task over a pair of sockets ([`crate::Connection`]), as it talks to a server.
//!
//! Owns: the threads with their runtime, and the measurement of their CPU time, which counts as the load generator's.
//! Does not own: the tasks.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    time::{Duration, Instant},
};

use rustix::thread::gettid;
use tokio::runtime::{Builder, Runtime};

use crate::usage::cpu_of_thread;

/// Longest wait for the result of a task that runs during setup.
const PATIENCE: Duration = Duration::from_secs(15);

/// Thread ids of the client threads of this process that are running.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Threads with an async runtime. They end when this value is dropped.
#[derive(Debug)]
pub struct ClientThreads {
    /// Runtime of the threads; `None` only while this value is dropped.
    runtime: Option<Runtime>,
}

impl ClientThreads {
    /// Starts this number of threads, at least one.
    pub fn start(threads: usize) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("bench-client")
            .enable_all()
            .on_thread_start(|| {
                running().insert(own_id());
            })
            .on_thread_stop(|| {
                running().remove(&own_id());
            })
            .build()?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// Runs a task on the threads during setup, and waits for its result. The task may start other tasks.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        let (done, result) = sync_channel(1);
        let runtime = self.runtime.as_ref().expect("it is present until the drop");
        runtime.spawn(async move {
            // The send fails if the caller has stopped waiting, which does no harm.
            let _ = done.send(task.await);
        });
        match result.recv_timeout(PATIENCE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(format!("no answer within {PATIENCE:?}")),
            Err(RecvTimeoutError::Disconnected) => Err("the task panicked".to_owned()),
        }
    }
}

impl Drop for ClientThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A load thread runs inside a runtime itself, so it must not wait for the end of another runtime.
            runtime.shutdown_background();
        }
    }
}

fn running() -> MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_id() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

/// CPU times of all client threads of this process at the start of a measurement.
#[derive(Debug)]
pub(crate) struct ClientEffort {
    before: BTreeMap<u32, Duration>,
    began: Instant,
}

impl ClientEffort {
    /// Begins measuring the CPU time of the client threads now.
    pub(crate) fn begin() -> Self {
        Self { before: cpu_times(), began: Instant::now() }
    }

    /// Returns the CPU time of all threads since [`begin`](Self::begin) in seconds. Also returns the share of the
    /// passed time, from 0 to 1, during which the busiest thread ran.
    pub(crate) fn end(&self) -> (f64, f64) {
        let (mut sum, mut most) = (0.0, 0.0_f64);
        for (id, now) in cpu_times() {
            let spent = now.saturating_sub(self.before.get(&id).copied().unwrap_or_default()).as_secs_f64();
            sum += spent;
            most = most.max(spent);
        }
        (sum, most / self.began.elapsed().as_secs_f64().max(1e-9))
    }
}

fn cpu_times() -> BTreeMap<u32, Duration> {
    running().iter().filter_map(|id| Some((*id, cpu_of_thread(*id)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_client_threads_is_counted() {
        let threads = ClientThreads::start(1).unwrap();
        let effort = ClientEffort::begin();
        let work = async {
            // The loop counts processor time, because another process may have the processor for most of the time.
            let (own, mut rounds) = (own_id(), 0_u64);
            let spent = || cpu_of_thread(own).unwrap();
            let enough = spent() + Duration::from_millis(50);
            while spent() < enough {
                rounds = std::hint::black_box(rounds + 1);
            }
            Ok(rounds)
        };
        assert!(threads.run(work).unwrap() > 0);
        let (sum, most) = effort.end();
        assert!(sum >= 0.01 && most > 0.0, "{sum} {most}");
        assert_eq!(threads.run(async { Err::<(), _>("no".to_owned()) }), Err("no".to_owned()));
        assert_eq!(threads.run(panics()), Err("the task panicked".to_owned()));
    }

    async fn panics() -> Result<(), String> {
        panic!("on purpose")
    }

    #[test]
    fn threads_may_be_dropped_on_a_load_thread() {
        let threads = ClientThreads::start(1).unwrap();
        crate::block_on_thread(async move { drop(threads) });
    }
}
