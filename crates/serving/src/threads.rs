//! Threads that serve connections, each with its own runtime.
//!
//! Owns: the threads, and the assignment of connections to them. Does not own: the task of a connection.
//!
//! A connection stays on its thread. If clients send small requests and wait for each reply, the kernel does most of
//! the work, mainly by waking the side that waits. A runtime that moves tasks between threads adds its own wakes to
//! every request, and separates requests that arrive together. One thread with one poll for all its sockets works like
//! redis-server: it handles requests that arrive while it serves another connection in the same turn.
//!
//! A task that keeps its thread busy delays the other connections on this thread. So long work runs on other threads,
//! or in turns: each thread has [rounds](crate::bulk) of bulk output.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

use crate::{
    bulk::{BulkCounters, BulkTurns, ROUND_BYTES},
    limits::{MAX_BLOCKING_THREADS, MAX_CONNECTION_THREADS},
};

/// Threads that serve connections. When this value is dropped, each thread ends after the poll of a task that is
/// running, and drops its remaining tasks.
#[derive(Debug)]
pub struct Threads {
    name: &'static str,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    bulk: Arc<BulkTurns>,
    /// Sender that is only held: dropping it tells the thread to end.
    _stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// A connection's entry on one of the serving threads. The entries of a thread are counted, so that new connections go
/// to the thread with the fewest. Dropping the entry frees it.
#[derive(Debug)]
pub struct ThreadSlot {
    connections: Arc<AtomicUsize>,
    bulk: Arc<BulkTurns>,
}

/// Shared counter of the connections of one serving thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadLoad(Arc<AtomicUsize>);

impl ThreadLoad {
    /// Returns true if the thread serves only one connection. A short wait on the thread then delays no other
    /// connection.
    #[inline]
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

impl ThreadSlot {
    /// Returns the counter of connections of the thread to which this connection belongs.
    #[must_use]
    pub fn load(&self) -> ThreadLoad {
        ThreadLoad(Arc::clone(&self.connections))
    }

    /// Returns the turns to send bulk output of the thread to which this connection belongs.
    #[must_use]
    pub fn bulk(&self) -> &Arc<BulkTurns> {
        &self.bulk
    }
}

impl Drop for ThreadSlot {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// Starts `count` threads with this name; 0 means half the number of processors. Each thread also runs one task
    /// that `task` creates, in addition to its connections. Bulk output of all threads is added to `counters`.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread, or cannot wait for sockets.
    pub fn start<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        count: u32,
        counters: &Arc<BulkCounters>,
        task: impl Fn() -> F,
    ) -> io::Result<Self> {
        let count = match count {
            0 => (thread::available_parallelism().map_or(1, usize::from) / 2).clamp(1, MAX_CONNECTION_THREADS as usize),
            count => count as usize,
        };
        // Blocking reads of a connection run on the blocking threads of its serving thread's runtime.
        let max_blocking = (MAX_BLOCKING_THREADS / count).max(1);
        let start = |_| Worker::start(name, max_blocking, counters, task());
        let workers = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Self { name, workers })
    }

    /// Returns the number of threads that serve connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.len()
    }

    /// Returns the runtime of the thread with the fewest connections, and a slot for one more connection on
    /// that thread.
    #[must_use]
    pub fn place(&self) -> (&Handle, ThreadSlot) {
        let least = self.workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed));
        let worker = least.unwrap_or(&self.workers[0]);
        worker.connections.fetch_add(1, Ordering::Relaxed);
        let slot = ThreadSlot { connections: Arc::clone(&worker.connections), bulk: Arc::clone(&worker.bulk) };
        (&worker.runtime, slot)
    }

    /// Stops the serving threads, and waits until all have ended.
    pub async fn stop(self) {
        let threads: Vec<_> = self.workers.into_iter().map(|worker| worker.thread).collect();
        let joined = tokio::task::spawn_blocking(|| threads.into_iter().all(|thread| thread.join().is_ok()));
        if !matches!(joined.await, Ok(true)) {
            tracing::error!(name = self.name, "a thread that serves connections panicked");
        }
    }
}

impl Worker {
    fn start(
        name: &str,
        max_blocking: usize,
        counters: &Arc<BulkCounters>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(max_blocking)
            .thread_name(format!("{name}-block"))
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::spawn(task);
                // The thread ends after a message, and also if the sender was dropped.
                let _ = stopped.await;
            });
        })?;
        let bulk = BulkTurns::new(ROUND_BYTES, counters);
        Ok(Self { runtime: handle, connections: Arc::default(), bulk, _stop: stop, thread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_spread_and_dropped_threads_end() {
        let threads = Threads::start("test", 3, &Arc::default(), || async {}).unwrap();
        let places: Vec<_> = (0..6).map(|_| threads.place().1).collect();
        assert!(threads.workers.iter().all(|worker| worker.connections.load(Ordering::Relaxed) == 2));
        let load = places[0].load();
        assert!(!load.is_single());
        drop(places);
        assert!(!load.is_single(), "the thread has no connection");
        let (runtime, place) = threads.place();
        assert!(place.load().is_single());
        let left = runtime.spawn(std::future::pending::<()>());
        drop(threads);
        assert!(left.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn a_task_stays_on_its_thread_and_stopped_threads_have_ended() {
        let threads = Threads::start("test", 2, &Arc::default(), || async {}).unwrap();
        let (runtime, _place) = threads.place();
        let task = runtime.spawn(async {
            let first = thread::current().id();
            for _ in 0..100 {
                tokio::task::yield_now().await;
                assert_eq!(thread::current().id(), first);
            }
            thread::current().name().map(str::to_owned)
        });
        assert_eq!(task.await.unwrap().as_deref(), Some("test"));
        let (runtime, _) = threads.place();
        let runtime = runtime.clone();
        threads.stop().await;
        assert!(runtime.spawn(async {}).await.unwrap_err().is_cancelled());
    }
}
