//! Order in which a thread sends messages to its subscribers and reads from its clients.
//!
//! Owns: the queue of this thread's clients that wait for a turn to receive messages. Does not own the messages.
//!
//! A message to ten subscribers takes ten socket writes, which take much longer than publishing the message. If the
//! thread made all these writes first, the next messages of the publisher would wait for them. So the thread polls its
//! sockets after some of the writes. Messages that are published then join the waiting messages. The higher the rate of
//! messages, the more of them share one write. No message waits for time to pass.
//!
//! Bounds: the waiting clients are divided into [`SHARES`] parts. One part has its turn between two polls of the
//! sockets. So a client waits for at most this number of polls, at any rate of messages.
//!
//! Invariant: a waiting client is on a thread that has its own runtime ([`threads`](thalweg_serving::threads)), so the
//! queue needs no lock.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::client::Client;

/// Number of groups into which the clients that wait for messages are divided. Between two polls of the sockets, one
/// group receives messages.
const SHARES: usize = 8;

thread_local! {
    static TURNS: RefCell<Turns> = const { RefCell::new(Turns { waiting: VecDeque::new(), turn_task: TurnTask::Missing }) };
}

struct Turns {
    waiting: VecDeque<Arc<Client>>,
    turn_task: TurnTask,
}

/// State of the task that gives waiting clients their turns to receive messages. Each thread has one such task.
enum TurnTask {
    /// The task that gives clients their turns to receive messages is not running.
    Missing,
    /// The task gives clients their turns to receive messages, or was woken to do this.
    Busy,
    /// The task sleeps until a client waits for messages.
    Idle(Waker),
}

/// Queues a client for its turn to receive messages. When the turn comes, [`Client::has_turn`] returns true and the
/// client's task is woken.
pub(super) fn join(client: &Arc<Client>) {
    TURNS.with_borrow_mut(|turns| {
        turns.waiting.push_back(Arc::clone(client));
        match std::mem::replace(&mut turns.turn_task, TurnTask::Busy) {
            TurnTask::Missing => drop(tokio::spawn(give_turns())),
            TurnTask::Busy => {}
            TurnTask::Idle(waker) => waker.wake(),
        }
    });
}

async fn give_turns() {
    let _leaving = TurnTaskGuard;
    loop {
        let next: Vec<Arc<Client>> = poll_fn(poll_next).await;
        for client in next {
            client.give_turn();
        }
        // This returns after the clients have sent their messages, the sockets were polled, and the tasks that this
        // woke have run.
        tokio::task::yield_now().await;
    }
}

fn poll_next(cx: &mut Context<'_>) -> Poll<Vec<Arc<Client>>> {
    TURNS.with_borrow_mut(|turns| {
        if turns.waiting.is_empty() {
            turns.turn_task = TurnTask::Idle(cx.waker().clone());
            return Poll::Pending;
        }
        let share = turns.waiting.len().div_ceil(SHARES);
        Poll::Ready(turns.waiting.drain(..share).collect())
    })
}

/// Guard of the task that gives clients their turns. When the task ends, the guard records this, so that the next
/// waiting client starts a new task.
struct TurnTaskGuard;

impl Drop for TurnTaskGuard {
    fn drop(&mut self) {
        // The thread-local data may already be destroyed.
        let _ = TURNS.try_with(|turns| turns.borrow_mut().turn_task = TurnTask::Missing);
    }
}
