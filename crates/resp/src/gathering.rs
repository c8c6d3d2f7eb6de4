//! Group commit: one commit for the writes of all Redis clients of a thread.
//!
//! Owns: `commit_soon`, and the task that commits. Does not own the threads ([`threads`](thalweg_serving::threads)).
//!
//! ```text
//! poll sockets ─► all ready connections: parse, do, propose ─► poll sockets ─► nothing new: commit all, one fsync
//!      ▲                                                                                      │
//!      └────────────── replies, each connection's with one write ◄────────────────────────────┘
//! ```
//! A request that arrives while others are being handled joins their commit, for at most `MAX_GATHERING`. After a
//! series of rounds with a single command each, the second poll is mostly omitted: it would find nothing, and a lone
//! client would wait for it. The thread serves no client during the fsync; requests that arrive then form the next
//! round. redis-server makes the same trade-off. For native clients the log's committer commits instead, while their
//! thread serves others.
//!
//! Invariant: a command that is proposed on one of these threads is committed, even if no other command is proposed,
//! and even if the thread is always busy. The committer is a task like those of the clients, so it gets its turn.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use thalweg_engine::AsyncDatabase;

/// Maximum time for which a proposed command waits for further commands to join its commit.
const MAX_GATHERING: Duration = Duration::from_millis(1);
/// Number of consecutive commits with a single command after which the thread mostly commits without waiting for more
/// commands. It then waits only once in this many commits, to notice that clients have become busier.
const LONE_ROUNDS: u32 = 64;

thread_local! {
    static GATHERED: ProposedCommands = const { ProposedCommands { commands: Cell::new(0), committer: RefCell::new(None) } };
}

/// Number of commands that this thread has proposed since its last commit, and the waker of the task that commits them.
struct ProposedCommands {
    commands: Cell<u64>,
    /// Waker of the task that commits this thread's commands; `None` on threads that have no such task.
    committer: RefCell<Option<Waker>>,
}

impl ProposedCommands {
    fn poll_some(&self, cx: &Context<'_>) -> Poll<()> {
        if self.commands.get() > 0 {
            return Poll::Ready(());
        }
        *self.committer.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Schedules the commit of a command that this thread has proposed. The commit also contains all commands that the
/// thread proposes until it has nothing else to do.
pub(crate) fn commit_soon(db: &AsyncDatabase) {
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

/// Guard of the task that commits a thread's commands. If the task ends, the guard unregisters it. From then on the
/// log's own committer commits the thread's commands.
struct Committing;

impl Drop for Committing {
    fn drop(&mut self) {
        // The thread-local data may already be destroyed.
        let _ = GATHERED.try_with(|gathered| *gathered.committer.borrow_mut() = None);
    }
}

/// Commits the commands that Redis clients of the current thread have proposed, when no more commands arrive. Each
/// serving thread runs this task.
pub async fn commit_gathered(db: AsyncDatabase) {
    let _committing = Committing;
    let commands = || GATHERED.with(|gathered| gathered.commands.get());
    let mut lone_rounds = 0_u32;
    loop {
        poll_fn(|cx| GATHERED.with(|gathered| gathered.poll_some(cx))).await;
        if lone_rounds < LONE_ROUNDS || lone_rounds.is_multiple_of(LONE_ROUNDS) {
            gather(commands).await;
        }
        lone_rounds = if commands() == 1 { lone_rounds.wrapping_add(1) } else { 0 };
        GATHERED.with(|gathered| gathered.commands.set(0));
        db.commit_queued_here();
    }
}

/// Waits while each poll of the sockets brings more commands, for at most [`MAX_GATHERING`].
async fn gather(commands: impl Fn() -> u64) {
    let begun = Instant::now();
    loop {
        let before = commands();
        // This returns after the sockets were polled, and after the tasks that this woke have run.
        tokio::task::yield_now().await;
        if commands() == before || begun.elapsed() >= MAX_GATHERING {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_engine::{Database, Keyspace, Options, Purpose, Wake};
    use thalweg_types::{Durability, command::RedisBuilder};

    use super::*;
    use thalweg_serving::threads::Threads;

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

    fn start(db: &AsyncDatabase) -> Threads {
        Threads::start("test", 1, &std::sync::Arc::default(), || commit_gathered(db.clone())).unwrap()
    }

    #[tokio::test]
    async fn what_is_proposed_in_one_round_is_one_entry() {
        let (_dir, db, keyspace) = database();
        let threads = start(&db);
        let (runtime, _place) = threads.place();
        // After one finished round, the committer of the thread is running.
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
    async fn who_was_alone_does_not_keep_others_from_sharing_a_round() {
        let (_dir, db, keyspace) = database();
        let threads = start(&db);
        let (runtime, _place) = threads.place();
        let space = (db.clone(), keyspace.clone());
        let alone = async move {
            for key in 0..3 * LONE_ROUNDS {
                put(&space.0, &space.1, &key.to_le_bytes()).await;
            }
        };
        runtime.spawn(alone).await.unwrap();
        let before = db.blocking().stats().entries;
        let database = db.clone();
        // Both tasks are ready when the thread next polls, like two sockets with requests.
        let rounds = async move {
            for _ in 0..2 {
                let puts = [b"one", b"two"].map(|key| {
                    let (db, keyspace) = (db.clone(), keyspace.clone());
                    tokio::spawn(async move { put(&db, &keyspace, key).await })
                });
                for put in puts {
                    put.await.unwrap();
                }
            }
            db.blocking().stats().entries
        };
        assert_eq!(runtime.spawn(rounds).await.unwrap(), before + 2);
        threads.stop().await;
        database.blocking().close().unwrap();
    }

    #[tokio::test]
    async fn a_thread_that_never_rests_commits() {
        let (_dir, db, keyspace) = database();
        let threads = start(&db);
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
}
