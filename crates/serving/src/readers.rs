//! Threads for long reads, with a fair queue in front of them.
//!
//! Owns: a fixed number of threads, the queue of the reads that wait for them, and the bytes that running reads may
//! request. Does not own: the decision that a read is long. A handler first tries a read on its serving thread with a
//! small [budget](thalweg_types::budget), or knows beforehand that the read may be long or wait for the disk.
//!
//! ```text
//! address A: connection 1: read read read      next: A1, B4, A2, B4, A1, ...
//!            connection 2: read
//! address B: connection 4: read read
//! ```
//! The queue serves client addresses in turn, and for each address its connections in turn. All threads but one may work
//! for the same address, so the reads of another address never wait until a long read has ended.
//!
//! The queue has no bound of its own: each read belongs to a request, a scan, a tail or a connection, which counts in its
//! own bound, and a read leaves the queue when the future that waits for it is dropped.
//!
//! Invariant: each read is performed, or dropped because its future was dropped, or its future gets an error.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    thread::{self, JoinHandle},
};

use thalweg_types::{Action, classified};
use tokio::sync::oneshot;

use crate::{
    admission::Account,
    fair_queue::{FairQueue, Place},
    limits::{MAX_READER_THREADS, MAX_READING_BYTES},
};

/// Error of a read that was given to the readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReaderError {
    /// The read panicked.
    #[error("the read failed inside the server: see the server's log")]
    Panicked,
    /// The server stopped before the read began.
    #[error("the server is stopping: connect again and repeat the read")]
    Stopping,
    /// The system provides no thread for reads.
    #[error("the server can start no thread for the read: retry later")]
    NoThread,
}

classified!(ReaderError {
    Self::Panicked => "internal", Action::Stop;
    Self::Stopping => "stopping", Action::Retry;
    Self::NoThread => "overloaded", Action::Retry;
});

/// The threads that perform long reads, and the queue of reads that wait for them. See the [module](self).
#[derive(Debug)]
pub struct Readers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    max_threads: usize,
    /// Maximum number of bytes that running reads may request together.
    max_bytes: u64,
    state: Mutex<State>,
    /// Signalled when a read may begin, and when the threads must end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: FairQueue<Job>,
    started: usize,
    /// Number of threads that wait for a read, or were woken for one and have not taken it yet.
    waiting: usize,
    running_bytes: u64,
    next_ticket: u64,
    is_stopped: bool,
}

/// A read that waits for a thread.
struct Job {
    read: Box<dyn FnOnce() + Send>,
    bytes: u64,
    /// Keeps the address of the account, which identifies the connection, from being used again.
    account: Arc<Account>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Default for Readers {
    fn default() -> Self {
        Self::with_bytes(MAX_READING_BYTES.into())
    }
}

impl Readers {
    /// Creates readers with up to `max_threads` threads. A thread starts when a read needs it.
    #[must_use]
    pub fn new(max_threads: usize) -> Self {
        Self::bounded(max_threads, MAX_READING_BYTES.into())
    }

    /// Creates readers whose running reads request at most `max_bytes` bytes together, with a thread for each processor.
    #[must_use]
    pub fn with_bytes(max_bytes: u64) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self::bounded(cores.clamp(2, MAX_READER_THREADS), max_bytes)
    }

    fn bounded(max_threads: usize, max_bytes: u64) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { max_threads, max_bytes, state, changed }), threads: Mutex::default() }
    }

    /// Queues a read of the client of `account`, which requests about `bytes` bytes of memory. The returned future
    /// completes with the result; dropping it removes a read that has not begun.
    pub fn run<T: Send + 'static>(
        &self,
        account: &Arc<Account>,
        bytes: usize,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> PendingRead<T> {
        let (sender, result) = oneshot::channel();
        let read = Box::new(move || {
            if sender.is_closed() {
                return;
            }
            let done = catch_unwind(AssertUnwindSafe(read)).map_err(|_| {
                tracing::error!("a read panicked on a thread for long reads");
                ReaderError::Panicked
            });
            // The receiver is gone if the client is.
            let _ = sender.send(done);
        });
        let bytes = (bytes as u64).min(self.shared.max_bytes);
        let mut place = Place { address: account.address(), connection: Arc::as_ptr(account) as usize, ticket: 0 };
        let mut state = self.shared.lock();
        if state.is_stopped {
            return PendingRead::failed(ReaderError::Stopping);
        }
        if state.queue.len() >= state.waiting
            && state.started < self.shared.max_threads
            && !self.start_thread(&mut state)
            && state.started == 0
        {
            return PendingRead::failed(ReaderError::NoThread);
        }
        state.next_ticket += 1;
        place.ticket = state.next_ticket;
        state.queue.push(place, Job { read, bytes, account: Arc::clone(account) });
        drop(state);
        self.shared.changed.notify_one();
        let queued = QueuedRead { shared: Arc::clone(&self.shared), place };
        PendingRead { result: Some(result), queued: Some(queued), error: ReaderError::Stopping }
    }

    fn start_thread(&self, state: &mut State) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("thalweg-read".to_owned()).spawn(move || work(&shared));
        let started = thread.map(|thread| lock(&self.threads).push(thread));
        state.started += usize::from(started.is_ok());
        started.is_ok()
    }

    /// Number of reads that wait for a thread.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Ends the threads: drops all reads that have not begun, and waits for those that have.
    pub fn stop(&self) {
        self.end();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // Panics of reads are caught, so a thread that panicked was stopped by a fault of this module.
            if thread.join().is_err() {
                tracing::error!("a thread for long reads panicked");
            }
        }
    }

    fn end(&self) {
        let mut state = self.shared.lock();
        state.is_stopped = true;
        let dropped = state.queue.clear();
        drop(state);
        self.shared.changed.notify_all();
        // Futures that wait for these reads may drop other reads, which takes the lock.
        drop(dropped);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        // The last reference may be dropped by a read on one of the threads, so they are not joined.
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of a client runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Takes the next read that may begin now. A read that requests more bytes than are free waits, and the reads after
    /// it wait, too, so that small reads do not overtake it for ever.
    fn take(&mut self, max_of_address: usize, max_bytes: u64) -> Option<(Place, Job)> {
        let free = max_bytes.saturating_sub(self.running_bytes);
        let (place, job) = self.queue.pop(max_of_address, |job| job.bytes <= free)?;
        self.running_bytes += job.bytes;
        Some((place, job))
    }

    fn finished(&mut self, place: Place, bytes: u64) {
        self.running_bytes -= bytes;
        self.queue.finished(place.address);
    }
}

/// Performs reads until the readers stop.
fn work(shared: &Shared) {
    let max_of_address = (shared.max_threads - 1).max(1);
    let mut state = shared.lock();
    loop {
        if state.is_stopped {
            return;
        }
        let Some((place, Job { read, bytes, account })) = state.take(max_of_address, shared.max_bytes) else {
            state.waiting += 1;
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            continue;
        };
        drop(state);
        read();
        // Dropped without the lock, because it may be the last reference to the connection's account.
        drop(account);
        state = shared.lock();
        state.finished(place, bytes);
        // The end of a read may permit more reads than the one that this thread takes next.
        if state.queue.len() > 0 {
            shared.changed.notify_one();
        }
    }
}

/// Future of a read that was given to the readers. See [`Readers::run`].
#[derive(Debug)]
pub struct PendingRead<T> {
    /// `None` if the read was rejected with `error`.
    result: Option<oneshot::Receiver<Result<T, ReaderError>>>,
    queued: Option<QueuedRead>,
    /// Error if the read is dropped without a result.
    error: ReaderError,
}

impl<T> PendingRead<T> {
    fn failed(error: ReaderError) -> Self {
        Self { result: None, queued: None, error }
    }
}

impl<T> Future for PendingRead<T> {
    type Output = Result<T, ReaderError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let error = self.error;
        let Some(result) = &mut self.result else { return Poll::Ready(Err(error)) };
        let result = std::task::ready!(Pin::new(result).poll(cx));
        self.queued = None;
        Poll::Ready(result.unwrap_or(Err(error)))
    }
}

/// Removes a read from the queue when the future that waits for it is dropped, if the read has not begun.
#[derive(Debug)]
struct QueuedRead {
    shared: Arc<Shared>,
    place: Place,
}

impl Drop for QueuedRead {
    fn drop(&mut self) {
        let removed = self.shared.lock().queue.remove(self.place);
        // Dropped without the lock, because the read may hold other reads.
        drop(removed);
    }
}

#[cfg(test)]
mod tests;
