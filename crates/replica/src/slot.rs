//! The result slot of a proposal, for a thread that parks or a task that polls.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    thread::{self, Thread},
};

use thalweg_types::{Durability, command::Outcome};

use crate::error::ProposeError;

/// Result of a committed proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Level that was reached: at least the requested one, or a stronger one if other commands of the entry
    /// required it.
    pub durability: Durability,
    /// Outcome of the command; `None` at level `none`, which is acknowledged before the outcome is known.
    pub outcome: Option<Outcome>,
}

pub(crate) type Answer = Result<Committed, ProposeError>;

#[derive(Debug)]
enum State {
    /// A thread waits, to be unparked.
    Thread(Thread),
    /// A task will poll; contains its waker after the first poll.
    Task(Option<Waker>),
    /// The answer has arrived.
    Done(Answer),
    /// The waiter has taken the answer.
    Taken,
}

/// A single-use handover of the answer from the holder of the writer role to one waiter.
#[derive(Debug)]
pub(crate) struct Slot(Mutex<State>);

impl Slot {
    pub(crate) fn for_this_thread() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Thread(thread::current()))))
    }

    pub(crate) fn for_task() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Task(None))))
    }

    /// Stores the answer and wakes the waiter.
    pub(crate) fn complete(&self, answer: Answer) {
        let before = std::mem::replace(&mut *self.lock(), State::Done(answer));
        match before {
            State::Thread(thread) => thread.unpark(),
            State::Task(Some(waker)) => waker.wake(),
            State::Task(None) | State::Done(_) | State::Taken => {}
        }
    }

    /// Wakes a waiting thread without an answer, so that it takes the writer role. Returns false if a task
    /// waits.
    pub(crate) fn wake_thread(&self) -> bool {
        match &*self.lock() {
            State::Thread(thread) => {
                thread.unpark();
                true
            }
            State::Task(_) | State::Done(_) | State::Taken => false,
        }
    }

    /// Takes the answer, if it has arrived.
    pub(crate) fn take(&self) -> Option<Answer> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(answer) => Some(answer),
            other => {
                *state = other;
                None
            }
        }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Answer> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(answer) => Poll::Ready(answer),
            _ => {
                *state = State::Task(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proposal in progress. Dropping it does not cancel the proposal.
#[derive(Debug)]
#[must_use = "the proposal's outcome is known only when this resolves"]
pub struct Proposal(pub(crate) Arc<Slot>);

impl Future for Proposal {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        self.0.poll(context)
    }
}
