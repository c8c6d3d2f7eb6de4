//! Threads for reads that a serving thread must not perform itself: reads that take long, and reads that wait for the
//! disk.
//!
//! Owns: the threads, the queues in front of them, and the counts and times of reads. Does not own: the decision to
//! move a read here. A handler first tries the read on the serving thread with a small [budget](thalweg_types::budget),
//! or knows in advance that the read may be long.
//!
//! ```text
//!                       ┌─ long ──────────────────────────► long: one thread for each processor
//! budget is spent by ───┤                                     ▲
//!                       └─ a wait for the disk ─► cold: many threads, each read with a small budget of steps
//! ```
//! A cold read costs little processor time, but it waits for the disk. A disk answers 32 reads at once about five times
//! as fast as one after the other, so many cold reads are in progress at a time. If a cold read turns out to be long,
//! it starts again on the threads for long reads. If several clients read one block, the kernel reads its page once,
//! and a read that begins later finds the block in the cache.
//!
//! The same threads parse and convert long JSON bodies, and read the rows that a write will need when it is applied
//! ([`fetched`](crate::fetched)). Other long work is done in slices ([`bulk::Slice`](crate::bulk::Slice)), or on a
//! thread of its own ([`aside`](crate::aside)).
//!
//! Each queue serves client addresses in turn, and the connections of each address in turn. One address never occupies
//! all long-read threads or all cold-read threads: one of each is left to other addresses. So their reads never wait
//! until a long read has ended.
//!
//! The queues have no bound of their own: each read belongs to a request, a scan, a tail or a connection, which counts
//! in its own bound. A read leaves the queue when the future that waits for it is dropped.
//!
//! Invariant: each read has one of three ends: it is performed, its future was dropped, or its future gets an error.

mod pool;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    thread,
    time::Instant,
};

use thalweg_types::budget::{Budget, BudgetSpent};
use tokio::sync::oneshot;

use crate::{
    admission::Account,
    fair_queue::QueuePosition,
    limits::{MAX_COLD_READ_THREADS, MAX_READER_THREADS, MAX_READING_BYTES},
};
pub use pool::ReaderError;
use pool::{Job, Pool};

/// Threads that perform reads which take long or wait for the disk, so that the serving threads need not, and the
/// queues of the reads that wait for these threads. See the [module](self).
#[derive(Debug)]
pub struct Readers {
    pools: Arc<Pools>,
}

#[derive(Debug)]
struct Pools {
    long: Pool,
    cold: Pool,
    next_ticket: AtomicU64,
    figures: [Arc<Counts>; 2],
}

/// Number and total time of the finished reads on long-read threads, or on cold-read threads.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    /// Sum of the times of the finished reads, in microseconds. The time of a read begins when it is queued and ends
    /// with its result.
    micros: AtomicU64,
}

/// Numbers and times of the reads on one group of threads: the threads for long reads, or those for cold reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFigures {
    /// Number of reads that wait for a thread of this group of threads (for long or for cold reads).
    pub queued: usize,
    /// Number of reads that the threads of this group (for long or for cold reads) have finished.
    pub done: u64,
    /// Sum of the times of the finished reads, in microseconds. The time of a read begins when it is queued and ends
    /// with its result. A cold read that continued as a long one counts as a cold one.
    pub micros: u64,
}

/// Group of threads on which a read runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// Threads for reads that take long.
    Long,
    /// Threads for short reads that wait for the disk.
    Cold,
}

impl ReadKind {
    /// Both groups of threads for reads.
    pub const ALL: [Self; 2] = [Self::Long, Self::Cold];

    /// Returns the name of this group of threads in the metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Long => "long",
            Self::Cold => "cold",
        }
    }
}

impl Default for Readers {
    fn default() -> Self {
        Self::with_bytes(MAX_READING_BYTES.into())
    }
}

impl Readers {
    /// Creates readers with up to `max_threads` threads for long reads, and as many for cold reads. A thread starts
    /// when a read needs it.
    #[must_use]
    pub fn new(max_threads: usize) -> Self {
        Self::bounded(max_threads, max_threads, MAX_READING_BYTES.into())
    }

    /// Creates readers with one thread for long reads for each processor. The long reads that run at one time request
    /// at most `max_bytes` in total.
    #[must_use]
    pub fn with_bytes(max_bytes: u64) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self::bounded(cores.clamp(2, MAX_READER_THREADS), MAX_COLD_READ_THREADS, max_bytes)
    }

    fn bounded(max_long: usize, max_cold: usize, max_bytes: u64) -> Self {
        let long = Pool::new("thalweg-read", max_long, max_bytes);
        // The budget of steps of a cold read also bounds its bytes, so these threads need no bound on bytes.
        let cold = Pool::new("thalweg-cold", max_cold, u64::MAX);
        Self { pools: Arc::new(Pools { long, cold, next_ticket: AtomicU64::new(0), figures: Default::default() }) }
    }

    /// Queues a long read for the client of `account`. `bytes` is about the number of bytes of memory that the read
    /// needs. The returned future completes with the result. Dropping the future cancels a read that has not begun.
    pub fn run<T: Send + 'static>(
        &self,
        account: &Arc<Account>,
        bytes: usize,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> PendingRead<T> {
        let (answer, result) = self.begin(ReadKind::Long);
        let place = self.pools.place(account);
        let queued = self.pools.long.push(place, long_job(answer, account, bytes, read));
        self.pending(place, result, queued)
    }

    /// Queues a read whose first attempt, on a serving thread, reached the limit on its work; `spent` says which one. A
    /// read that needs the disk runs on one of the threads for cold reads. If it takes more work than [`Budget::COLD`]
    /// there, it continues as a long read, which calls `read` a second time. Only a long read requests its `bytes` of
    /// memory.
    pub fn run_again<T: Send + 'static>(
        &self,
        spent: BudgetSpent,
        account: &Arc<Account>,
        bytes: usize,
        mut read: impl FnMut() -> T + Send + 'static,
    ) -> PendingRead<T> {
        if spent == BudgetSpent::Steps {
            return self.run(account, bytes, read);
        }
        let (answer, result) = self.begin(ReadKind::Cold);
        let place = self.pools.place(account);
        let (pools, owner) = (Arc::downgrade(&self.pools), Arc::clone(account));
        let cold = Box::new(move || {
            if answer.is_unwanted() {
                return;
            }
            match caught(|| Budget::COLD.perform(&mut read)) {
                Ok(Ok(result)) => answer.send(Ok(result)),
                Err(error) => answer.send(Err(error)),
                Ok(Err(_)) => {
                    // The readers are gone only if the server has ended.
                    let Some(pools) = pools.upgrade() else { return };
                    // A rejected job is dropped with its sender, so its future ends with the error `Stopping`.
                    let _ = pools.long.push(place, long_job(answer, &owner, bytes, read));
                }
            }
        });
        let queued = self.pools.cold.push(place, Job { read: cold, bytes: 0, account: Arc::clone(account) });
        self.pending(place, result, queued)
    }

    fn begin<T>(&self, kind: ReadKind) -> (Answer<T>, oneshot::Receiver<Result<T, ReaderError>>) {
        let (sender, result) = oneshot::channel();
        (Answer { sender, counts: Arc::clone(&self.pools.figures[kind as usize]), begun: Instant::now() }, result)
    }

    fn pending<T>(
        &self,
        place: QueuePosition,
        result: oneshot::Receiver<Result<T, ReaderError>>,
        queued: Result<(), ReaderError>,
    ) -> PendingRead<T> {
        match queued {
            Ok(()) => {
                let queued = Some((Arc::clone(&self.pools), place));
                PendingRead { result: Some(result), queued, error: ReaderError::Stopping }
            }
            Err(error) => PendingRead { result: None, queued: None, error },
        }
    }

    /// Returns the numbers and times of the reads on long-read threads, or on cold-read threads.
    #[must_use]
    pub fn figures(&self, kind: ReadKind) -> ReadFigures {
        let pool = match kind {
            ReadKind::Long => &self.pools.long,
            ReadKind::Cold => &self.pools.cold,
        };
        let counts = &self.pools.figures[kind as usize];
        let (done, micros) = (counts.done.load(Relaxed), counts.micros.load(Relaxed));
        ReadFigures { queued: pool.queued(), done, micros }
    }

    /// Ends the threads: cancels all reads that have not begun, and waits for those that are running.
    pub fn stop(&self) {
        self.pools.end();
        self.pools.cold.join();
        self.pools.long.join();
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        // The last reference may be dropped by a read on one of the threads, so they are not joined.
        self.pools.end();
    }
}

impl Pools {
    /// Returns the position in the queues for a new read of the client of `account`.
    fn place(&self, account: &Arc<Account>) -> QueuePosition {
        let ticket = self.next_ticket.fetch_add(1, Relaxed);
        QueuePosition { address: account.address(), connection: Arc::as_ptr(account) as usize, ticket }
    }

    fn end(&self) {
        // The order matters to a caller that sees the end of a cold read: no long read may begin after that.
        self.long.end();
        self.cold.end();
    }
}

/// Sender of the result of a read to the future that waits for it.
struct Answer<T> {
    sender: oneshot::Sender<Result<T, ReaderError>>,
    counts: Arc<Counts>,
    begun: Instant,
}

impl<T> Answer<T> {
    /// Returns true if the future that waits for the read was dropped.
    fn is_unwanted(&self) -> bool {
        self.sender.is_closed()
    }

    fn send(self, result: Result<T, ReaderError>) {
        self.counts.done.fetch_add(1, Relaxed);
        self.counts.micros.fetch_add(self.begun.elapsed().as_micros() as u64, Relaxed);
        // The receiver is gone if the client has disconnected. Then the result is dropped.
        let _ = self.sender.send(result);
    }
}

fn long_job<T: Send + 'static>(
    answer: Answer<T>,
    account: &Arc<Account>,
    bytes: usize,
    read: impl FnOnce() -> T + Send + 'static,
) -> Job {
    let read = Box::new(move || {
        if !answer.is_unwanted() {
            answer.send(caught(read));
        }
    });
    Job { read, bytes: bytes as u64, account: Arc::clone(account) }
}

fn caught<T>(read: impl FnOnce() -> T) -> Result<T, ReaderError> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|_| {
        tracing::error!("a read panicked on a thread for reads");
        ReaderError::Panicked
    })
}

/// Future of a read that was given to the readers. See [`Readers::run`].
#[derive(Debug)]
pub struct PendingRead<T> {
    /// Receiver of the read's result. `None` if the read was rejected; the future then returns `error`.
    result: Option<oneshot::Receiver<Result<T, ReaderError>>>,
    /// Position of the read in the queues, with the queues; `None` once the read has left them.
    queued: Option<(Arc<Pools>, QueuePosition)>,
    /// Error that the future returns if the read is dropped without a result.
    error: ReaderError,
}

impl<T> Future for PendingRead<T> {
    type Output = Result<T, ReaderError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let error = self.error;
        let Some(result) = &mut self.result else { return Poll::Ready(Err(error)) };
        let result = std::task::ready!(Pin::new(result).poll(cx));
        // The read has left the queues.
        self.queued = None;
        Poll::Ready(result.unwrap_or(Err(error)))
    }
}

impl<T> Drop for PendingRead<T> {
    fn drop(&mut self) {
        if let Some((pools, place)) = self.queued.take() {
            pools.cold.remove(place);
            pools.long.remove(place);
        }
    }
}

#[cfg(test)]
mod tests;
