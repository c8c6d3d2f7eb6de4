//! Queue of proposed commands that wait for a thread with the writer role, which commits them.
//!
//! Limit: `max_bytes` of commands. At the limit a blocking proposer waits, and an async proposer gets
//! `Overloaded`. An empty queue also accepts a proposal larger than the limit.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use thalweg_log::Purpose;
use thalweg_types::{
    Durability,
    command::{Framed, max_redis_bytes},
    limits::{MAX_ENTRY_BYTES, MAX_ENTRY_COMMANDS, MAX_REDIS_ENTRY_BYTES},
};

use crate::{
    error::ProposeError,
    slot::{Answer, Slot},
};

/// A proposed command in the queue.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) command: Framed,
    pub(crate) level: Durability,
    pub(crate) purpose: Purpose,
    /// Slot in which a thread or task waits for the answer; `None` for a command proposed at durability level `none`.
    pub(crate) slot: Option<Arc<Slot>>,
    /// Cached result of [`max_redis_bytes`] for the command; `None` before the first use.
    redis_bytes: Option<usize>,
}

impl Pending {
    pub(crate) fn new(command: Framed, level: Durability, purpose: Purpose, slot: Option<Arc<Slot>>) -> Self {
        Self { command, level, purpose, slot, redis_bytes: None }
    }

    /// Returns the maximum number of bytes that the command reads and writes if it is a batch of Redis commands; 0 for
    /// other commands. Computed at the first call.
    fn redis_bytes(&mut self) -> usize {
        *self.redis_bytes.get_or_insert_with(|| max_redis_bytes(self.command.bytes().get(4..).unwrap_or_default()))
    }

    /// Sends the answer to the waiting thread or task, if there is one.
    pub(crate) fn answer(&mut self, answer: Answer) {
        if let Some(slot) = self.slot.take() {
            slot.complete(answer);
        }
    }
}

/// Ensures that no thread or task waits forever for its proposal. A proposal can be dropped without an answer if the
/// committing thread panicked, or if the space was dropped without a close; then the waiting thread or task gets an
/// error.
impl Drop for Pending {
    fn drop(&mut self) {
        if self.slot.is_some() {
            let panicking = std::thread::panicking();
            let panicked = || ProposeError::State("the committing thread panicked".to_owned());
            self.answer(Err(if panicking { panicked() } else { ProposeError::Closed }));
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    pending: VecDeque<Pending>,
    bytes: usize,
    /// Number of proposing threads that wait for room in the queue.
    waiting: usize,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    room: Condvar,
    max_bytes: usize,
    /// Copy of `inner.pending.len()`, which the holder of the writer role can read without the lock to detect an empty
    /// queue.
    len: AtomicUsize,
}

/// Behaviour of a push when the queue is full: wait, or return an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    Wait,
    Refuse,
}

impl Queue {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { inner: Mutex::default(), room: Condvar::new(), max_bytes, len: AtomicUsize::new(0) }
    }

    pub(crate) fn push(&self, mut pending: Pending, when_full: WhenFull) -> Result<(), ProposeError> {
        // A command that becomes an entry alone need not be parsed. All other commands are parsed here,
        // before taking the lock.
        if !self.is_empty() {
            pending.redis_bytes();
        }
        let bytes = pending.command.bytes().len();
        let mut inner = self.lock();
        while !inner.closed && !inner.pending.is_empty() && inner.bytes + bytes > self.max_bytes {
            match when_full {
                WhenFull::Refuse => return Err(ProposeError::Overloaded { queued_bytes: inner.bytes }),
                WhenFull::Wait => {
                    inner.waiting += 1;
                    inner = self.room.wait(inner).unwrap_or_else(PoisonError::into_inner);
                    inner.waiting -= 1;
                }
            }
        }
        if inner.closed {
            return Err(ProposeError::Closed);
        }
        inner.bytes += bytes;
        inner.pending.push_back(pending);
        self.len.store(inner.pending.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Moves the queued proposals of the next log entry into `into`: all queued ones, up to the limits of an entry.
    pub(crate) fn take_entry(&self, into: &mut Vec<Pending>) {
        let mut inner = self.lock();
        let (mut bytes, mut redis_bytes) = (0, 0);
        let is_alone = inner.pending.len() == 1;
        while let Some(next) = inner.pending.front_mut() {
            if !is_alone {
                redis_bytes += next.redis_bytes();
            }
            let fits = into.len() < MAX_ENTRY_COMMANDS
                && bytes + next.command.bytes().len() <= MAX_ENTRY_BYTES
                && redis_bytes <= MAX_REDIS_ENTRY_BYTES;
            if !fits && !into.is_empty() {
                break;
            }
            bytes += next.command.bytes().len();
            into.extend(inner.pending.pop_front());
        }
        inner.bytes -= bytes;
        self.len.store(inner.pending.len(), Ordering::SeqCst);
        if inner.waiting > 0 {
            self.room.notify_all();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Makes the queue reject new proposals. Proposals that are already queued stay in the queue.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.room.notify_all();
    }

    /// Wakes the thread that waits for the oldest queued proposal. Returns false if no thread waits for this proposal.
    pub(crate) fn wake_front(&self) -> bool {
        self.lock().pending.front().and_then(|pending| pending.slot.as_ref()).is_some_and(|slot| slot.wake_thread())
    }

    pub(crate) fn bytes_and_len(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.bytes, inner.pending.len())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::{
        KeyspaceId,
        command::{CommandError, RedisBuilder, encode_put},
        limits::{MAX_REDIS_READ_BYTES, MAX_VALUE_BYTES},
    };

    use super::*;

    fn pending(value_bytes: usize) -> Pending {
        let mut command = Framed::new();
        command.encode(|out| encode_put(out, KeyspaceId(1), b"k", &vec![0; value_bytes])).unwrap();
        Pending::new(command, Durability::Os, Purpose::Data, None)
    }

    /// Returns the number of commands in each log entry that the queue forms from commands of these sizes.
    fn entries(commands: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let queue = Queue::new(usize::MAX);
        commands.into_iter().for_each(|bytes| queue.push(pending(bytes), WhenFull::Refuse).unwrap());
        let mut found = Vec::new();
        while !queue.is_empty() {
            let mut entry = Vec::new();
            queue.take_entry(&mut entry);
            found.push(entry.len());
        }
        assert_eq!(queue.bytes_and_len(), (0, 0));
        found
    }

    #[test]
    fn an_entry_takes_so_many_commands_and_bytes() {
        assert_eq!(entries(vec![0; MAX_ENTRY_COMMANDS + 1]), [MAX_ENTRY_COMMANDS, 1]);
        let head = pending(0).command.bytes().len();
        assert_eq!(entries([MAX_ENTRY_BYTES / 2 - head; 3]), [2, 1], "exactly the maximum bytes");
        assert_eq!(entries([MAX_ENTRY_BYTES / 2 - head, MAX_ENTRY_BYTES / 2 - head + 1]), [1, 1]);
        assert_eq!(entries([0, MAX_ENTRY_BYTES * 2, 0]), [1, 1, 1], "a larger command is alone");
    }

    #[test]
    fn an_entry_takes_redis_commands_as_far_as_what_they_can_read_and_write() {
        let burst = |name: &[u8]| {
            let mut builder = RedisBuilder::new(KeyspaceId(1));
            builder.push(&[b"set", b"k", b"v"]).unwrap().push(&[name, b"k"]).unwrap();
            let (mut command, bytes) = (Framed::new(), builder.finish());
            let copied = command.encode(|out| {
                out.extend_from_slice(&bytes);
                Ok::<_, CommandError>(())
            });
            copied.unwrap();
            Pending::new(command, Durability::Os, Purpose::Data, None)
        };
        let first_entry = |name: &[u8]| {
            let queue = Queue::new(usize::MAX);
            (0..100).for_each(|_| queue.push(burst(name), WhenFull::Refuse).unwrap());
            let mut entry = Vec::new();
            queue.take_entry(&mut entry);
            entry.len()
        };
        assert_eq!(first_entry(b"del"), 100);
        assert_eq!(first_entry(b"get"), MAX_REDIS_ENTRY_BYTES / MAX_VALUE_BYTES);
        assert_eq!(first_entry(b"keys"), MAX_REDIS_ENTRY_BYTES / MAX_REDIS_READ_BYTES);
    }

    #[test]
    fn a_full_queue_refuses_but_takes_what_is_larger_than_itself_when_empty() {
        let queue = Queue::new(100);
        queue.push(pending(1000), WhenFull::Refuse).unwrap();
        assert!(matches!(queue.push(pending(0), WhenFull::Refuse), Err(ProposeError::Overloaded { .. })));
        queue.take_entry(&mut Vec::new());
        let each = pending(0).command.bytes().len();
        (0..100 / each).for_each(|_| queue.push(pending(0), WhenFull::Refuse).unwrap());
        let full = queue.push(pending(0), WhenFull::Refuse);
        assert!(matches!(full, Err(ProposeError::Overloaded { queued_bytes }) if queued_bytes == 100 / each * each));
    }
}
