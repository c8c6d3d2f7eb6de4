//! Callers that wait for a stream to grow, or for one of its consumer groups to have records to deliver.
//!
//! Owns: a table of waiting callers for each stream. If no caller waits, the applying thread pays one atomic load.
//! Bound: the tables have one entry for each waiting caller; the server limits their number.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    thread::Thread,
};

use thalweg_replica::Observer;
use thalweg_state::machine::Machine;
use thalweg_types::{
    StreamId,
    command::{OperationResult, Outcome},
};

#[derive(Debug)]
pub(crate) enum Waiter {
    Thread(Thread),
    Task(Waker),
}

impl Waiter {
    pub(crate) fn wake(self) {
        match self {
            Self::Thread(thread) => thread.unpark(),
            Self::Task(waker) => waker.wake(),
        }
    }
}

/// Table of callers that wait for a change of a stream. A waiting caller is woken at least once after any change that
/// follows its registration. It then looks at the stream, and registers again if it still has to wait.
#[derive(Debug)]
pub(crate) struct Tails {
    /// State machine, which reports the streams whose consumer groups may have become able to deliver records.
    machine: Arc<Machine>,
    waiting: AtomicUsize,
    tickets: AtomicU64,
    closed: AtomicBool,
    /// Waiting callers by ticket (registration number). They are woken in this order, so that simulations repeat.
    by_stream: Mutex<HashMap<StreamId, BTreeMap<u64, Waiter>>>,
}

impl Tails {
    pub(crate) fn new(machine: Arc<Machine>) -> Self {
        Self {
            machine,
            waiting: AtomicUsize::new(0),
            tickets: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            by_stream: Mutex::default(),
        }
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers a waiting caller. Replaces an earlier registration with the same ticket. Afterwards the caller must
    /// check the stream again, because the stream may have changed before the registration.
    pub(crate) fn register(&self, stream: StreamId, ticket: u64, waiter: Waiter) {
        let mut by_stream = self.lock();
        if by_stream.entry(stream).or_default().insert(ticket, waiter).is_none() {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn unregister(&self, stream: StreamId, ticket: u64) {
        let mut by_stream = self.lock();
        let Some(waiters) = by_stream.get_mut(&stream) else { return };
        if waiters.remove(&ticket).is_some() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        if waiters.is_empty() {
            by_stream.remove(&stream);
        }
    }

    /// Wakes all waiting callers, and makes [`is_closed`](Self::is_closed) return true.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let all = self.take_all();
        self.waiting.store(0, Ordering::SeqCst);
        all.into_iter().for_each(Waiter::wake);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn wake(&self, stream: StreamId) {
        let waiters = self.lock().remove(&stream);
        if let Some(waiters) = waiters {
            self.waiting.fetch_sub(waiters.len(), Ordering::SeqCst);
            waiters.into_values().for_each(Waiter::wake);
        }
    }

    /// Wakes all waiting callers, so that they look at their streams again.
    pub(crate) fn wake_all(&self) {
        let all = self.take_all();
        self.waiting.fetch_sub(all.len(), Ordering::SeqCst);
        all.into_iter().for_each(Waiter::wake);
    }

    /// Removes the waiting callers of all streams, and returns them in the order of their tickets.
    fn take_all(&self) -> Vec<Waiter> {
        let by_stream = std::mem::take(&mut *self.lock());
        let mut all: Vec<(u64, Waiter)> = by_stream.into_values().flatten().collect();
        all.sort_unstable_by_key(|(ticket, _)| *ticket);
        all.into_iter().map(|(_, waiter)| waiter).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamId, BTreeMap<u64, Waiter>>> {
        self.by_stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Tails {
    fn applied(&self, outcomes: &[Outcome]) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        for outcome in outcomes {
            match outcome {
                Outcome::Committed { appends, .. } => appends.iter().for_each(|append| self.wake(append.stream)),
                Outcome::Transacted(done) => {
                    for result in &done.results {
                        if let OperationResult::Appended(append) = result {
                            self.wake(append.stream);
                        }
                    }
                }
                // The outcome of a delete or a trim has no stream id. Both are rare, so all waiting callers look at
                // their streams.
                Outcome::Done => self.wake_all(),
                _ => {}
            }
        }
        self.machine.take_woken_groups().into_iter().for_each(|stream| self.wake(stream));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;
    use crate::{
        Database,
        options::{BackendKind, Options},
    };

    /// A task that notes its number when it is woken.
    struct NumberedTask(u32, Arc<Mutex<Vec<u32>>>);

    impl Wake for NumberedTask {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn callers_of_all_streams_are_woken_in_the_order_of_their_tickets() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { backend: Some(BackendKind::Memory), ..Options::default() };
        let db = Database::open(dir.path(), options).unwrap();
        let tails = &db.inner.open.tails;
        let woken = Arc::<Mutex<Vec<u32>>>::default();
        let register = || {
            for number in 0..10 {
                let waker = Waker::from(Arc::new(NumberedTask(number, Arc::clone(&woken))));
                tails.register(StreamId(100 - number), tails.ticket(), Waiter::Task(waker));
            }
        };
        register();
        tails.wake_all();
        register();
        tails.close();
        let expected: Vec<u32> = (0..10).chain(0..10).collect();
        assert_eq!(*woken.lock().unwrap(), expected);
    }
}
