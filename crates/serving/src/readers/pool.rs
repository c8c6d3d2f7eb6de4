//! A bounded number of threads, and the fair queue of the reads that wait for them.
//!
//! Owns: starting and ending the threads, the order of the reads, and the bytes that running reads may request. Does
//! not own: what a read does, or the future that waits for it.
//!
//! Invariant: a queued job runs on one of the threads, or is dropped by [`Pool::remove`] or [`Pool::end`].

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use thalweg_types::{Action, classified};

use crate::{
    admission::Account,
    fair_queue::{FairQueue, QueuePosition},
};

/// Error of a read that was given to the readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReaderError {
    /// The function that performs the read panicked.
    #[error("the read failed inside the server: see the server's log")]
    Panicked,
    /// The server stopped before the read began.
    #[error("the server is stopping: connect again and repeat the read")]
    Stopping,
    /// The system could not start a thread for reads.
    #[error("the server can start no thread for the read: retry later")]
    NoThread,
}

classified!(ReaderError {
    Self::Panicked => "internal", Action::Stop;
    Self::Stopping => "stopping", Action::Retry;
    Self::NoThread => "overloaded", Action::Retry;
});

/// A bounded number of threads that perform reads, with the queue of waiting reads.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// Name that the threads of the pool have in the operating system.
    name: &'static str,
    max_threads: usize,
    /// Maximum total of the bytes that running reads may request.
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
    is_stopped: bool,
}

/// A read that waits for a thread.
pub(super) struct Job {
    /// Function that performs the read. It catches its panics.
    pub read: Box<dyn FnOnce() + Send>,
    /// Bytes of memory that the read will need.
    pub bytes: u64,
    /// Account of the connection that sent the read. The queue identifies the connection by the account's memory
    /// address. Holding the account ensures that the address is not reused.
    pub account: Arc<Account>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool of up to `max_threads` threads. Its running reads request at most `max_bytes` bytes in total. A
    /// thread starts when a read needs it.
    pub(super) fn new(name: &'static str, max_threads: usize, max_bytes: u64) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { name, max_threads, max_bytes, state, changed }), threads: Mutex::default() }
    }

    /// Adds a read to the queue at `place`. If no thread can perform it, returns the error with which the read must
    /// end.
    pub(super) fn push(&self, place: QueuePosition, mut job: Job) -> Result<(), ReaderError> {
        job.bytes = job.bytes.min(self.shared.max_bytes);
        let mut state = self.shared.lock();
        if state.is_stopped {
            return Err(ReaderError::Stopping);
        }
        if state.queue.len() >= state.waiting
            && state.started < self.shared.max_threads
            && !self.start_thread(&mut state)
            && state.started == 0
        {
            return Err(ReaderError::NoThread);
        }
        state.queue.push(place, job);
        // Each signal is a system call, even if no thread waits.
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// Removes a read from the queue that has not begun.
    pub(super) fn remove(&self, place: QueuePosition) {
        let removed = self.shared.lock().queue.remove(place);
        // Dropped after the lock is released, because the read may hold other reads.
        drop(removed);
    }

    fn start_thread(&self, state: &mut State) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(self.shared.name.to_owned()).spawn(move || work(&shared));
        let started = thread.map(|thread| lock(&self.threads).push(thread));
        state.started += usize::from(started.is_ok());
        started.is_ok()
    }

    /// Number of reads that wait for a thread.
    pub(super) fn queued(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Ends the threads, and drops all reads that have not begun. Does not wait for running reads.
    pub(super) fn end(&self) {
        let mut state = self.shared.lock();
        state.is_stopped = true;
        let dropped = state.queue.clear();
        drop(state);
        self.shared.changed.notify_all();
        // Dropping these reads may drop other reads, which takes the lock.
        drop(dropped);
    }

    /// Waits until the threads have ended, after [`end`](Self::end).
    pub(super) fn join(&self) {
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // Panics of reads are caught. If a thread panicked, this module has a fault.
            if thread.join().is_err() {
                tracing::error!("a thread for reads panicked");
            }
        }
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
    /// Takes the next read that may begin now. A read that requests more bytes than are free waits. The reads behind it
    /// wait too, because otherwise small reads could overtake it forever.
    fn take(&mut self, max_of_address: usize, max_bytes: u64) -> Option<(QueuePosition, Job)> {
        let free = max_bytes.saturating_sub(self.running_bytes);
        let (place, job) = self.queue.pop(max_of_address, |job| job.bytes <= free)?;
        self.running_bytes += job.bytes;
        Some((place, job))
    }

    fn finished(&mut self, place: QueuePosition, bytes: u64) {
        self.running_bytes -= bytes;
        self.queue.finished(place.address);
    }
}

/// Performs queued reads on the current thread until the pool ends.
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
        // Dropped after the lock is released, because it may be the last reference to the connection's account.
        drop(account);
        state = shared.lock();
        state.finished(place, bytes);
        // The end of a read may let several reads begin, and this thread takes only one of them.
        if state.queue.len() > 0 && state.waiting > 0 {
            shared.changed.notify_one();
        }
    }
}
