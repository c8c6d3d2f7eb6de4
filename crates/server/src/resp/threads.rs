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
//! poll sockets ─► every connection that has something: parse, do, propose ─► poll sockets ─► nothing new: commit all, one fsync
//!      ▲                                                                                            │
//!      └───────────────── replies, each connection's with one write ◄───────────────────────────────┘
//! ```
//! Whose request comes while others' are done goes along with them, for `MAX_GATHERING` at most. Nobody on the thread is
//! served during that fsync: those who come meanwhile are the next round's, together.
//!
//! Invariant: what was proposed on one of these threads is committed though nobody else proposes anything, and however
//! busy others keep the thread: who commits is a task among theirs.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use thalweg_engine::AsyncDatabase;
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

use crate::limits::MAX_RESP_THREADS;

/// How long what is proposed waits for more of it.
const MAX_GATHERING: Duration = Duration::from_millis(1);

thread_local! {
    static GATHERED: Gathered = const { Gathered { commands: Cell::new(0), committer: RefCell::new(None) } };
}

/// What this thread has proposed and nobody has committed.
struct Gathered {
    commands: Cell<u64>,
    /// Who commits; none: this is not one of these threads.
    committer: RefCell<Option<Waker>>,
}

impl Gathered {
    fn poll_some(&self, cx: &Context<'_>) -> Poll<()> {
        if self.commands.get() > 0 {
            return Poll::Ready(());
        }
        *self.committer.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Something was proposed on this thread, to be committed with all that the thread proposes in this round.
pub fn commit_soon(db: &AsyncDatabase) {
    GATHERED.with(|gathered| match &*gathered.committer.borrow() {
        None => db.commit_queued(),
        Some(committer) => {
            gathered.commands.set(gathered.commands.get() + 1);
            if gathered.commands.get() == 1 {
                committer.wake_by_ref();
            }
        }
    });
}

/// However the committer ends, what comes after it is committed by the log's.
struct Committing;

impl Drop for Committing {
    fn drop(&mut self) {
        // The thread may be past its end.
        let _ = GATHERED.try_with(|gathered| *gathered.committer.borrow_mut() = None);
    }
}

/// Commits what the thread proposes, once nothing more of it is there.
async fn commit_gathered(db: AsyncDatabase) {
    let _committing = Committing;
    let commands = || GATHERED.with(|gathered| gathered.commands.get());
    loop {
        poll_fn(|cx| GATHERED.with(|gathered| gathered.poll_some(cx))).await;
        let begun = Instant::now();
        loop {
            let before = commands();
            // Comes back when the sockets were polled, behind those who have been woken by that.
            tokio::task::yield_now().await;
            if commands() == before || begun.elapsed() >= MAX_GATHERING {
                break;
            }
        }
        GATHERED.with(|gathered| gathered.commands.set(0));
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
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new().name("thalweg-resp".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::spawn(commit_gathered(db));
                // Whether it was told or left alone: it ends.
                let _ = stopped.await;
            });
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), _stop: stop, thread })
    }
}

#[cfg(test)]
mod tests {
    use thalweg_engine::{Database, Keyspace, Options, Purpose, Wake};
    use thalweg_types::{Durability, command::RedisBuilder};

    use super::*;

    async fn put(db: &AsyncDatabase, keyspace: &Keyspace, key: &[u8]) {
        let mut command = RedisBuilder::new(keyspace.id());
        command.push(&[&b"SET"[..], key, b"v"]).unwrap();
        let done = db.propose_command(&command.finish(), Purpose::Data, Durability::Disk, Wake::Later);
        commit_soon(db);
        done.await.unwrap();
    }

    fn database() -> (tempfile::TempDir, AsyncDatabase, Keyspace) {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path(), Options::default()).unwrap();
        let keyspace = db.redis_keyspace("redis").unwrap();
        (dir, db.to_async(), keyspace)
    }

    #[tokio::test]
    async fn what_is_proposed_in_one_round_is_one_entry() {
        let (_dir, db, keyspace) = database();
        let threads = Threads::start(1, &db).unwrap();
        let (runtime, _place) = threads.place();
        // The committer is there once a round is over.
        let (first, space) = ((db.clone(), keyspace.clone()), (db.clone(), keyspace.clone()));
        runtime.spawn(async move { put(&first.0, &first.1, b"first").await }).await.unwrap();
        let before = db.blocking().stats().entries;
        let round = runtime.spawn(async move {
            let puts = (0..10_u8).map(|key| {
                let (db, keyspace) = space.clone();
                tokio::spawn(async move { put(&db, &keyspace, &[key]).await })
            });
            for put in puts.collect::<Vec<_>>() {
                put.await.unwrap();
            }
        });
        round.await.unwrap();
        assert_eq!(db.blocking().stats().entries, before + 1);
        threads.stop().await;
        db.blocking().close().unwrap();
    }

    #[tokio::test]
    async fn a_thread_that_never_rests_commits() {
        let (_dir, db, keyspace) = database();
        let threads = Threads::start(1, &db).unwrap();
        let (runtime, _place) = threads.place();
        let busy = runtime.spawn(poll_fn(|cx| -> Poll<()> {
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let again = (db.clone(), keyspace.clone());
        let puts = async move {
            for key in 0..20_u8 {
                put(&again.0, &again.1, &[key]).await;
            }
        };
        runtime.spawn(puts).await.unwrap();
        assert!(keyspace.get(&[19]).unwrap().is_some());
        busy.abort();
        threads.stop().await;
        db.blocking().close().unwrap();
    }

    #[tokio::test]
    async fn connections_are_spread_and_dropped_threads_end() {
        let (_dir, db, _) = database();
        let threads = Threads::start(3, &db).unwrap();
        let places: Vec<_> = (0..6).map(|_| threads.place().1).collect();
        assert!(threads.0.iter().all(|worker| worker.connections.load(Ordering::Relaxed) == 2));
        drop(places);
        let (runtime, _place) = threads.place();
        let left = runtime.spawn(std::future::pending::<()>());
        drop(threads);
        assert!(left.await.unwrap_err().is_cancelled());
        db.blocking().close().unwrap();
    }
}
