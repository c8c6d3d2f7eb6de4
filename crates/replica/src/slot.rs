//! The slot for the answer to a proposed command. Either a thread parks until the answer arrives, or an async task
//! polls.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    thread::{self, Thread},
};

use thalweg_types::{Durability, command::Outcome};

use crate::error::ProposeError;

/// Result of a proposed command that was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Durability level that was reached: the requested one, or a stronger one if other commands of the same log entry
    /// required it.
    pub durability: Durability,
    /// Outcome of the command; `None` at durability level `none`, at which a command is acknowledged before its outcome
    /// is known.
    pub outcome: Option<Outcome>,
}

impl Committed {
    /// Creates the result of a command that has reached `durability`, and takes its outcome out of `outcome`.
    #[must_use]
    pub fn take(durability: Durability, outcome: Option<&mut Outcome>) -> Self {
        Self { durability, outcome: outcome.map(|outcome| std::mem::replace(outcome, Outcome::Done)) }
    }
}

pub(crate) type Answer = Result<Committed, ProposeError>;

#[derive(Debug)]
enum State {
    /// A thread waits for the answer and must be unparked.
    Thread(Thread),
    /// An async task waits for the answer. Contains the task's waker after the task's first poll.
    Task(Option<Waker>),
    /// The answer has arrived, and the waiting thread or task has not taken it yet.
    Done(Answer),
    /// The waiting thread or task has taken the answer.
    Taken,
}

/// A slot that is used once: the thread that commits a proposal puts the answer into it, and one thread or task waits
/// for the answer.
#[derive(Debug)]
pub(crate) struct Slot(Mutex<State>);

impl Slot {
    pub(crate) fn for_this_thread() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Thread(thread::current()))))
    }

    pub(crate) fn for_task() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Task(None))))
    }

    /// Stores the answer and wakes the thread or task that waits for it.
    pub(crate) fn complete(&self, answer: Answer) {
        let before = std::mem::replace(&mut *self.lock(), State::Done(answer));
        match before {
            State::Thread(thread) => thread.unpark(),
            State::Task(Some(waker)) => waker.wake(),
            State::Task(None) | State::Done(_) | State::Taken => {}
        }
    }

    /// Wakes a thread that waits on this slot, without an answer, so that the thread takes the writer role (the right
    /// to write log entries). Returns false if an async task waits on the slot instead.
    pub(crate) fn wake_thread(&self) -> bool {
        match &*self.lock() {
            State::Thread(thread) => {
                thread.unpark();
                true
            }
            State::Task(_) | State::Done(_) | State::Taken => false,
        }
    }

    /// Takes the answer out of the slot; returns `None` if it has not arrived yet.
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

/// A proposed command in progress, a future of its result. Dropping it does not cancel the proposal.
#[derive(Debug)]
#[must_use = "the proposal's outcome is known only when this resolves"]
pub struct Proposal(pub(crate) Arc<Slot>);

impl Future for Proposal {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        self.0.poll(context)
    }
}
