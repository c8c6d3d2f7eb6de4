//! The threads that serve Redis clients, and when what their clients write is committed.
//!
//! Owns: the threads, a runtime each, which connection is on which, and [`commit_soon`]. Does not own what a
//! connection's task does.
//!
//! A connection stays on its thread. Redis's clients send small requests and wait, so what serves them is mostly the
//! kernel's work of waking who waits; a runtime that hands tasks from thread to thread adds wakes of its own to every
//! request, and parts what comes together. One thread with one poll of all its sockets does what redis-server does.
//!
//! ```text
//! poll sockets ─► every connection that has something: parse, do, propose ─► nothing left to do: commit all, one fsync
//!      ▲                                                                         │
//!      └──────────── replies, each connection's with one write ◄─────────────────┘
//! ```
//! Nobody on the thread is served during that fsync: those who come meanwhile are the next round's, together. If
//! there is no pause within [`MAX_DELAY`], because others keep the thread busy, the log's committer is woken instead.
//!
//! Invariant: what was proposed on one of these threads is committed though nobody else proposes anything.

use std::{
    cell::Cell,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use thalweg_engine::AsyncDatabase;
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

use crate::limits::MAX_RESP_THREADS;

/// How long what is proposed waits for its thread to have nothing else to do.
const MAX_DELAY: Duration = Duration::from_millis(1);

thread_local! {
    /// Since when something waits that this thread proposed.
    static PROPOSED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether this is one of these threads.
    static COMMITS: Cell<bool> = const { Cell::new(false) };
}

/// Something was proposed on this thread, to be committed with all that the thread proposes in this round.
pub fn commit_soon(db: &AsyncDatabase) {
    if !COMMITS.get() {
        db.commit_queued();
    } else if PROPOSED.get().is_none() {
        PROPOSED.set(Some(Instant::now()));
    }
}

/// To be called now and then by whoever keeps the thread busy.
pub fn commit_overdue(db: &AsyncDatabase, now: Instant) {
    if let Some(since) = PROPOSED.get()
        && now.saturating_duration_since(since) >= MAX_DELAY
    {
        PROPOSED.set(None);
        db.commit_queued();
    }
}

/// The thread has nothing else to do.
fn commit_now(db: &AsyncDatabase) {
    if PROPOSED.take().is_some() {
        db.commit_queued_here();
    }
}

/// Threads that run until this is dropped; then they end after the step that each is in, without what is left on them.
#[derive(Debug)]
pub struct Threads(Vec<Worker>);

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
    /// Starts so many; 0: half as many as there are processors.
    ///
    /// # Errors
    /// The system gives no thread, or no way to wait for sockets.
    pub fn start(count: usize, db: &AsyncDatabase) -> io::Result<Self> {
        let count = match count {
            0 => (thread::available_parallelism().map_or(1, usize::from) / 2).clamp(1, MAX_RESP_THREADS as usize),
            count => count,
        };
        (0..count).map(|_| Worker::start(db.clone())).collect::<io::Result<_>>().map(Self)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The one with the fewest connections, and a place on it.
    #[must_use]
    pub fn place(&self) -> (&Handle, Place) {
        let least = self.0.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed));
        let worker = least.unwrap_or(&self.0[0]);
        worker.connections.fetch_add(1, Ordering::Relaxed);
        (&worker.runtime, Place(Arc::clone(&worker.connections)))
    }

    /// Ends them, and waits until they have.
    pub async fn stop(self) {
        let threads: Vec<_> = self.0.into_iter().map(|worker| worker.thread).collect();
        let joined = tokio::task::spawn_blocking(|| threads.into_iter().all(|thread| thread.join().is_ok()));
        if !matches!(joined.await, Ok(true)) {
            tracing::error!("a thread of Redis clients panicked");
        }
    }
}

impl Worker {
    fn start(db: AsyncDatabase) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().on_thread_park(move || commit_now(&db)).build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new().name("thalweg-resp".to_owned()).spawn(move || {
            COMMITS.set(true);
            // Whether it was told or left alone: it ends.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), _stop: stop, thread })
    }
}
