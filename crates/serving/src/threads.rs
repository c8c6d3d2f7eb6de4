//! Threads that serve connections, each with a runtime of its own.
//!
//! Owns: the threads, and which connection is on which. Does not own what a connection's task does.
//!
//! A connection stays on its thread. Clients that send small requests and wait are mostly served by the kernel, which
//! wakes who waits; a runtime that hands tasks from thread to thread adds wakes of its own to every request, and parts what
//! comes together. One thread with one poll of all its sockets does what redis-server does, and what one connection is
//! sent while another is served goes along with the rest.
//!
//! So whoever keeps a thread busy holds up the others on it: what takes long is done elsewhere, or in turns.

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

use crate::limits::{MAX_BLOCKING_THREADS, MAX_CONNECTION_THREADS};

/// Threads that run until this is dropped; then they end after the step that each is in, without what is left on them.
#[derive(Debug)]
pub struct Threads {
    name: &'static str,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    /// Dropped, it ends the thread.
    _stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// A connection's place on a thread.
#[derive(Debug)]
pub struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// Starts so many, of that name; 0: half as many as there are processors. Beside its connections each runs a task of
    /// its own.
    ///
    /// # Errors
    /// The system gives no thread, or no way to wait for sockets.
    pub fn start<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        count: u32,
        task: impl Fn() -> F,
    ) -> io::Result<Self> {
        let count = match count {
            0 => (thread::available_parallelism().map_or(1, usize::from) / 2).clamp(1, MAX_CONNECTION_THREADS as usize),
            count => count as usize,
        };
        // What connections read where that holds up nobody is read by threads of the thread's runtime.
        let max_blocking = (MAX_BLOCKING_THREADS / count).max(1);
        let start = |_| Worker::start(name, max_blocking, task());
        let workers = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Self { name, workers })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.len()
    }

    /// The one with the fewest connections, and a place on it.
    #[must_use]
    pub fn place(&self) -> (&Handle, Place) {
        let least = self.workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed));
        let worker = least.unwrap_or(&self.workers[0]);
        worker.connections.fetch_add(1, Ordering::Relaxed);
        (&worker.runtime, Place(Arc::clone(&worker.connections)))
    }

    /// Ends them, and waits until they have.
    pub async fn stop(self) {
        let threads: Vec<_> = self.workers.into_iter().map(|worker| worker.thread).collect();
        let joined = tokio::task::spawn_blocking(|| threads.into_iter().all(|thread| thread.join().is_ok()));
        if !matches!(joined.await, Ok(true)) {
            tracing::error!(name = self.name, "a thread that serves connections panicked");
        }
    }
}

impl Worker {
    fn start(name: &str, max_blocking: usize, task: impl Future<Output = ()> + Send + 'static) -> io::Result<Self> {
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
                // Whether it was told or left alone: it ends.
                let _ = stopped.await;
            });
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), _stop: stop, thread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_spread_and_dropped_threads_end() {
        let threads = Threads::start("test", 3, || async {}).unwrap();
        let places: Vec<_> = (0..6).map(|_| threads.place().1).collect();
        assert!(threads.workers.iter().all(|worker| worker.connections.load(Ordering::Relaxed) == 2));
        drop(places);
        let (runtime, _place) = threads.place();
        let left = runtime.spawn(std::future::pending::<()>());
        drop(threads);
        assert!(left.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn a_task_stays_on_its_thread_and_stopped_threads_have_ended() {
        let threads = Threads::start("test", 2, || async {}).unwrap();
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
