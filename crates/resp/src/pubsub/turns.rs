//! In which order a thread sends messages to its subscribers, and reads what its clients send.
//!
//! Owns: who of this thread waits for a turn to be sent what is there for it. Does not own what that is.
//!
//! A message to ten subscribers is ten writes to sockets, which take much longer than to publish it. If they came at once,
//! whoever publishes would wait for them with its next messages. So after a few of them the thread looks at its sockets, and
//! what is published meanwhile goes along with what waits: the more is published, the more goes with one write. Nothing
//! waits for time to pass.
//!
//! Bounds: of all who wait one in [`SHARES`] has its turn before the sockets are looked at again, so nobody waits for
//! more than so many looks, however much is published.
//!
//! Invariant: who waits is on a thread whose runtime is its own ([`threads`](thalweg_serving::threads)), so those of a thread need
//! no lock.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::client::Client;

/// In so many parts those who wait have their turns.
const SHARES: usize = 8;

thread_local! {
    static TURNS: RefCell<Turns> = const { RefCell::new(Turns { waiting: VecDeque::new(), usher: Usher::Missing }) };
}

struct Turns {
    waiting: VecDeque<Arc<Client>>,
    usher: Usher,
}

/// The task that gives turns.
enum Usher {
    /// Nobody has waited yet.
    Missing,
    /// It gives turns, or is about to.
    Busy,
    /// Nobody waits.
    Idle(Waker),
}

/// Has the client's bell rung when it is its turn ([`Client::has_turn`]).
pub(super) fn join(client: &Arc<Client>) {
    TURNS.with_borrow_mut(|turns| {
        turns.waiting.push_back(Arc::clone(client));
        match std::mem::replace(&mut turns.usher, Usher::Busy) {
            Usher::Missing => drop(tokio::spawn(give_turns())),
            Usher::Busy => {}
            Usher::Idle(waker) => waker.wake(),
        }
    });
}

async fn give_turns() {
    let _leaving = Leaving;
    loop {
        let next: Vec<Arc<Client>> = poll_fn(poll_next).await;
        for client in next {
            client.give_turn();
        }
        // Comes back when they have been sent what is theirs and the sockets were polled, behind those who have been woken by
        // that.
        tokio::task::yield_now().await;
    }
}

fn poll_next(cx: &mut Context<'_>) -> Poll<Vec<Arc<Client>>> {
    TURNS.with_borrow_mut(|turns| {
        if turns.waiting.is_empty() {
            turns.usher = Usher::Idle(cx.waker().clone());
            return Poll::Pending;
        }
        let share = turns.waiting.len().div_ceil(SHARES);
        Poll::Ready(turns.waiting.drain(..share).collect())
    })
}

/// However the usher ends, who joins later has another one.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        // The thread may be past its end.
        let _ = TURNS.try_with(|turns| turns.borrow_mut().usher = Usher::Missing);
    }
}
