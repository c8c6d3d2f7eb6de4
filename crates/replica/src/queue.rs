//! Queue of proposed commands that wait for a thread with the writer role, which commits them.
//!
//! Limit: `max_bytes` of commands. At the limit a blocking proposer waits, and an async proposer gets
//! `Overloaded`. An empty queue also accepts a proposal larger than the limit.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use thalweg_log::Purpose;
use thalweg_types::{
    Durability,
    command::{Framed, max_steps},
    limits::{MAX_ENTRY_BYTES, MAX_ENTRY_COMMANDS, MAX_ENTRY_STEPS, MAX_GROUP_STEPS},
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
    /// Cached result of [`max_steps`] for the command; `None` before the first use.
    steps: Option<u64>,
    /// Part of [`Inner::steps`] that this command has added.
    counted_steps: u64,
}

impl Pending {
    pub(crate) fn new(command: Framed, level: Durability, purpose: Purpose, slot: Option<Arc<Slot>>) -> Self {
        Self { command, level, purpose, slot, steps: None, counted_steps: 0 }
    }

    /// Returns the maximum number of steps that the command can take, estimated from its bytes. Computed at the first
    /// call.
    fn steps(&mut self, keeps_history: bool) -> u64 {
        *self.steps.get_or_insert_with(|| max_steps(self.command.bytes().get(4..).unwrap_or_default(), keeps_history))
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
    /// Sum of the estimated steps of the queued commands whose steps are known.
    steps: u64,
    /// Number of proposing threads that wait for room in the queue.
    waiting: usize,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    room: Condvar,
    max_bytes: usize,
    /// True if a keyspace keeps former values, which makes writes more expensive.
    keeps_history: AtomicBool,
    /// Measured steps of recent commands per [`COST_UNIT`] estimated steps.
    cost: AtomicU64,
    /// Copy of `inner.pending.len()`, which the holder of the writer role can read without the lock to detect an empty
    /// queue.
    len: AtomicUsize,
}

/// Estimated steps to which [`Queue::cost`] relates.
const COST_UNIT: u64 = 1024;
/// Estimated steps above which a command counts as expensive: about 0.4 ms of work.
const EXPENSIVE_STEPS: u64 = 4_000;
/// Maximum number of steps that queued commands will probably take while expensive ones are accepted: about 100 ms of
/// work. Beyond it, expensive commands are rejected, so that other commands do not wait behind them for long.
const MAX_QUEUED_STEPS: u64 = 1_000_000;

/// Behaviour of a push when the queue is full: wait, or return an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    Wait,
    Refuse,
}

impl Queue {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            inner: Mutex::default(),
            room: Condvar::new(),
            max_bytes,
            keeps_history: AtomicBool::new(false),
            // Nothing is rejected before commands have shown that they are expensive.
            cost: AtomicU64::new(1),
            len: AtomicUsize::new(0),
        }
    }

    /// Returns the number of steps that commands with this estimate will probably take. The estimate assumes the largest
    /// values and collections; recent commands show how much of it is used.
    fn probable(&self, estimated_steps: u64) -> u64 {
        estimated_steps.saturating_mul(self.cost.load(Ordering::Relaxed)) / COST_UNIT
    }

    /// Records how many steps commands with this estimate took. The mean of recent groups decays by a quarter each time.
    pub(crate) fn learn(&self, estimated_steps: u64, steps: u64) {
        if let Some(sample) = steps.saturating_mul(COST_UNIT).checked_div(estimated_steps) {
            let before = self.cost.load(Ordering::Relaxed);
            self.cost.store(((3 * before + sample.min(COST_UNIT)) / 4).max(1), Ordering::Relaxed);
        }
    }

    pub(crate) fn push(&self, mut pending: Pending, when_full: WhenFull) -> Result<(), ProposeError> {
        // A command that becomes an entry alone need not be parsed. All other commands are parsed here,
        // before taking the lock.
        if !self.is_empty() {
            pending.steps(self.keeps_history.load(Ordering::Relaxed));
        }
        let (bytes, steps) = (pending.command.bytes().len(), pending.steps.unwrap_or(0));
        let mut inner = self.lock();
        let is_full = |inner: &Inner| {
            inner.bytes + bytes > self.max_bytes
                || steps > EXPENSIVE_STEPS && self.probable(inner.steps + steps) > MAX_QUEUED_STEPS
        };
        while !inner.closed && !inner.pending.is_empty() && is_full(&inner) {
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
        inner.steps += steps;
        pending.counted_steps = steps;
        inner.pending.push_back(pending);
        self.len.store(inner.pending.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Moves the queued proposals of the next log entries into `into`: all queued ones, up to the limits of what is
    /// written with one fsync. Adds to `ends` the number of proposals at which each of these entries ends: an entry ends
    /// before a command with which it could take too many steps. `keeps_history` is true if a keyspace of the space
    /// keeps former values. Returns the estimated steps of the taken commands; 0 for a command that was queued alone.
    pub(crate) fn take_entries(&self, into: &mut Vec<Pending>, ends: &mut Vec<usize>, keeps_history: bool) -> u64 {
        self.keeps_history.store(keeps_history, Ordering::Relaxed);
        let mut inner = self.lock();
        let (mut bytes, mut entry_steps, mut group_steps, mut counted) = (0, 0, 0, 0);
        let is_alone = inner.pending.len() == 1;
        while let Some(next) = inner.pending.front_mut() {
            let steps = if is_alone { 0 } else { next.steps(keeps_history) };
            let fits = into.len() < MAX_ENTRY_COMMANDS
                && bytes + next.command.bytes().len() <= MAX_ENTRY_BYTES
                && group_steps + steps <= MAX_GROUP_STEPS
                && self.probable(group_steps + steps) <= MAX_ENTRY_STEPS / 2;
            if !fits && !into.is_empty() {
                break;
            }
            if entry_steps + steps > MAX_ENTRY_STEPS && !into.is_empty() {
                ends.push(into.len());
                entry_steps = 0;
            }
            entry_steps += steps;
            group_steps += steps;
            counted += next.counted_steps;
            bytes += next.command.bytes().len();
            into.extend(inner.pending.pop_front());
        }
        if !into.is_empty() {
            ends.push(into.len());
        }
        inner.bytes -= bytes;
        inner.steps -= counted;
        self.len.store(inner.pending.len(), Ordering::SeqCst);
        if inner.waiting > 0 {
            self.room.notify_all();
        }
        group_steps
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
    };

    use super::*;

    fn pending(value_bytes: usize) -> Pending {
        let mut command = Framed::new();
        command.encode(|out| encode_put(out, KeyspaceId(1), b"k", &vec![0; value_bytes])).unwrap();
        Pending::new(command, Durability::Os, Purpose::Data, None)
    }

    /// Tests how the queue groups commands of the given sizes: returns the number of commands of each group.
    fn entries(commands: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let queue = Queue::new(usize::MAX);
        commands.into_iter().for_each(|bytes| queue.push(pending(bytes), WhenFull::Refuse).unwrap());
        let mut found = Vec::new();
        while !queue.is_empty() {
            let (mut entry, mut ends) = (Vec::new(), Vec::new());
            queue.take_entries(&mut entry, &mut ends, false);
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

    /// Creates a proposal of a batch of two Redis commands.
    fn burst(args: &[&[u8]]) -> Pending {
        let mut builder = RedisBuilder::new(KeyspaceId(1));
        builder.push(&[b"set", b"k", b"v"]).unwrap().push(args).unwrap();
        let (mut command, bytes) = (Framed::new(), builder.finish());
        let copied = command.encode(|out| {
            out.extend_from_slice(&bytes);
            Ok::<_, CommandError>(())
        });
        copied.unwrap();
        Pending::new(command, Durability::Os, Purpose::Data, None)
    }

    /// Returns the numbers of commands in the entries that are written together, out of a full queue.
    fn group(proposal: impl Fn() -> Pending) -> Vec<usize> {
        let queue = Queue::new(usize::MAX);
        (0..50).for_each(|_| queue.learn(1_000_000, 100));
        let _ = (0..2_000).try_for_each(|_| queue.push(proposal(), WhenFull::Refuse));
        let (mut taken, mut ends) = (Vec::new(), Vec::new());
        queue.take_entries(&mut taken, &mut ends, false);
        assert_eq!(ends.last(), Some(&taken.len()));
        let before = std::iter::once(0).chain(ends.iter().copied());
        ends.iter().zip(before).map(|(end, before)| end - before).collect()
    }

    #[test]
    fn entries_are_cut_by_the_steps_of_their_commands_and_written_together_up_to_a_bound() {
        assert_eq!(group(|| burst(&[b"keys", b"*"])), [1; (MAX_GROUP_STEPS / MAX_ENTRY_STEPS) as usize]);
        let steps = burst(&[b"get", b"k"]).steps(false);
        let each = (MAX_ENTRY_STEPS / steps) as usize;
        assert!(each > 2, "a few reads of large values fit into an entry");
        let gets = group(|| burst(&[b"get", b"k"]));
        assert!(gets.len() >= 4 && gets[..4] == [each; 4], "{gets:?}");
        let writes = group(|| burst(&[b"del", b"k"]));
        assert!(writes.iter().sum::<usize>() == 2_000 && writes[0] > 500, "{writes:?}");
    }

    #[test]
    fn expensive_commands_are_rejected_while_the_queued_ones_take_long() {
        let queue = Queue::new(usize::MAX);
        let fill = || (0..1_000).take_while(|_| queue.push(burst(&[b"keys", b"*"]), WhenFull::Refuse).is_ok()).count();
        let cheap = |count: usize| (0..count).for_each(|_| queue.push(pending(1), WhenFull::Refuse).unwrap());
        let drain = || {
            while !queue.is_empty() {
                queue.take_entries(&mut Vec::new(), &mut Vec::new(), false);
            }
        };
        cheap(1);
        assert_eq!(fill(), 1_000, "nothing is known about such commands");
        cheap(100);
        drain();
        // Such commands have taken all steps that were estimated.
        (0..20).for_each(|_| queue.learn(1_000_000, 2_000_000));
        cheap(1);
        assert!((1..=2).contains(&fill()));
        cheap(100);
        drain();
        // Such commands have taken few steps, as reads of short values do.
        (0..50).for_each(|_| queue.learn(1_000_000, 100));
        cheap(1);
        assert!(fill() > 100);
        drain();
        assert_eq!(queue.lock().steps, 0);
    }

    #[test]
    fn a_command_that_is_alone_is_one_entry() {
        let queue = Queue::new(usize::MAX);
        queue.push(burst(&[b"keys", b"*"]), WhenFull::Refuse).unwrap();
        let (mut taken, mut ends) = (Vec::new(), Vec::new());
        queue.take_entries(&mut taken, &mut ends, true);
        assert_eq!((taken.len(), &ends[..]), (1, &[1][..]));
        queue.take_entries(&mut taken, &mut ends, true);
        assert_eq!((taken.len(), ends.len()), (1, 2), "an empty queue");
    }

    #[test]
    fn a_full_queue_refuses_but_takes_what_is_larger_than_itself_when_empty() {
        let queue = Queue::new(100);
        queue.push(pending(1000), WhenFull::Refuse).unwrap();
        assert!(matches!(queue.push(pending(0), WhenFull::Refuse), Err(ProposeError::Overloaded { .. })));
        queue.take_entries(&mut Vec::new(), &mut Vec::new(), false);
        let each = pending(0).command.bytes().len();
        (0..100 / each).for_each(|_| queue.push(pending(0), WhenFull::Refuse).unwrap());
        let full = queue.push(pending(0), WhenFull::Refuse);
        assert!(matches!(full, Err(ProposeError::Overloaded { queued_bytes }) if queued_bytes == 100 / each * each));
    }
}
