//! Queue of proposed commands that wait for their commit. On a single node, a thread that holds the writer role (the
//! right to write log entries) takes commands out and commits them; on a member of a cluster, consensus takes them.
//!
//! Owns: the two lanes of the queue, their limits, and the choice of the commands of the next entries. Does not own:
//! the costs of the commands that were taken (`dequeued`), the order among the clients of the expensive lane (`turns`),
//! the length of pauses (`turn_pause`), the writer role (`solo`), or the writing of entries.
//!
//! Invariants:
//! * An accepted proposal is in one lane until it is taken, removed, or rejected by [`close`](Queue::close). While it
//!   is in the queue, nothing of it is in the log.
//! * `bytes` is the sum over both lanes, and `len` equals the number of their proposals whenever the lock is free.
//!
//! # Two lanes
//!
//! One lane has the ready commands, which are taken in the order of their arrival. A command of a [`Client`] that will
//! probably be expensive waits in the other lane, and so do all later commands of the same client. A [turn](Turns) is
//! one batch taken from this expensive lane. While both lanes hold commands, they alternate, so a ready command waits
//! for at most one turn. A turn takes at most [`MAX_TURN_STEPS`] steps (units of work), or a single command. If other
//! clients have written since the previous turn with commands of an address, the next turn with its commands takes at
//! most [`LONG_TURN_STEPS`] or a single command, and then the address pauses (`turn_pause`). So clients with cheap
//! commands are served, although another client keeps the node busy with expensive ones.
//!
//! A command is expensive if its [estimate](Pending::steps), times the measured cost of its client's recent commands,
//! exceeds [`EXPENSIVE_STEPS`]. Until a command of the client's address was measured, commands are expected to take
//! their full estimate. Commands without a client, such as those of an embedding program, are always ready.
//!
//! # Limits
//!
//! * `max_bytes` of commands in both lanes. At the limit a blocking proposer waits, and an async proposer gets
//!   `Overloaded`. An empty queue also accepts a proposal larger than the limit.
//! * Waiting expensive commands of one address: [`MAX_ADDRESS_STEPS`], and no more bytes than remain free. So an
//!   address cannot fill the queue with expensive commands. The bound is lower while the address makes long pauses,
//!   because its commands then wait longer. A proposer beyond either limit gets `AddressOverloaded`.

mod dequeued;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use thalweg_types::limits::{MAX_BATCH_STEPS, MAX_ENTRY_BYTES, MAX_ENTRY_COMMANDS, MAX_ENTRY_STEPS};

use crate::{client::Client, error::ProposeError, pending::Pending, turn_pause::LONG_TURN_STEPS, turns::Turns};
use dequeued::EXPENSIVE_STEPS;
pub(crate) use dequeued::{DequeuedProposals, learn};

#[derive(Debug, Default)]
struct Inner {
    ready: VecDeque<Pending>,
    turns: Turns,
    /// Total size in bytes of the commands in both lanes of the queue (of ready and of expensive commands).
    bytes: usize,
    /// True if the lane of expensive commands is next, even if ready commands wait. The two lanes of the queue
    /// alternate.
    is_turn: bool,
    ready_turns: ReadyTurns,
    /// Number of proposing threads that wait for room in the queue.
    waiting: usize,
    closed: bool,
}

/// History of the lane of ready (cheap) commands: the number of batches that were taken from it, and the clients whose
/// commands were taken last.
#[derive(Debug, Default)]
struct ReadyTurns {
    /// Number of batches that were taken from the lane of ready (cheap) commands.
    count: u64,
    /// The two clients whose ready commands were taken last, the latest first. Each element has the client's key (0 for
    /// commands without a client), and the number of the last batch with commands of this client.
    last_clients: [(usize, u64); 2],
}

impl ReadyTurns {
    /// Records that the batch being taken contains a ready command of the client with this key.
    fn note(&mut self, client: usize) {
        if self.last_clients[0].0 != client {
            self.last_clients[1] = self.last_clients[0];
        }
        self.last_clients[0] = (client, self.count);
    }

    /// Returns true if a batch after the one with number `count` contained a ready command of a client other than
    /// `client`.
    fn has_others_since(&self, client: usize, count: u64) -> bool {
        self.last_clients.iter().any(|(other, last)| *other != client && *last > count)
    }
}

impl Inner {
    fn len(&self) -> usize {
        self.ready.len() + self.turns.len()
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    room: Condvar,
    max_bytes: usize,
    /// True if a keyspace of the space (Raft group) keeps a history of values, which makes writes more expensive.
    keeps_history: AtomicBool,
    /// Copy of `inner.len()`, which the thread that writes log entries can read without the lock to detect an empty
    /// queue.
    len: AtomicUsize,
}

/// Maximum number of steps (units of work) that the commands of one batch will probably take: about 14 ms of work. A
/// single command may take more.
const MAX_TURN_STEPS: u64 = MAX_ENTRY_STEPS / 2;
/// Maximum number of steps (units of work) that the expensive commands of one client address in the queue will probably
/// take: about 14 seconds of work.
const MAX_ADDRESS_STEPS: u64 = 500 * MAX_ENTRY_STEPS;

/// Behaviour of adding a proposal to the queue when it is full: wait, or return an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    Wait,
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// Take commands only from the lane of ready (cheap) commands. Threads that also serve clients take only these.
    Ready,
    /// Take commands from both lanes of the queue: ready (cheap) commands, and expensive commands that wait for their
    /// turn.
    All,
}

impl Queue {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            inner: Mutex::default(),
            room: Condvar::new(),
            max_bytes,
            keeps_history: AtomicBool::new(false),
            len: AtomicUsize::new(0),
        }
    }

    /// Returns true if a command of a client will probably take more than [`EXPENSIVE_STEPS`] steps (units of work). A
    /// command without a client never counts as expensive.
    pub(crate) fn is_expensive(&self, pending: &mut Pending) -> bool {
        if pending.client.is_none() {
            return false;
        }
        let steps = pending.steps(self.keeps_history.load(Ordering::Relaxed));
        steps > EXPENSIVE_STEPS && pending.probable_steps() > EXPENSIVE_STEPS
    }

    pub(crate) fn push(&self, mut pending: Pending, when_full: WhenFull) -> Result<(), ProposeError> {
        let is_expensive = self.is_expensive(&mut pending);
        // A command that becomes an entry alone need not be parsed. All other commands are parsed here,
        // before taking the lock.
        if !self.is_empty() {
            pending.steps(self.keeps_history.load(Ordering::Relaxed));
        }
        let bytes = pending.bytes();
        let mut inner = self.lock();
        while !inner.closed && inner.len() > 0 && inner.bytes + bytes > self.max_bytes {
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
        let client = pending.client.clone();
        match client {
            Some(client) if is_expensive || inner.turns.len() > 0 && inner.turns.has(&client) => {
                let (steps_before, bytes_before) = inner.turns.of_address(&client);
                pending.counted_steps = pending.probable_steps();
                // An address that has nothing waiting is never refused.
                let max_steps = MAX_ADDRESS_STEPS / u64::from(client.address().pause().slowdown());
                if bytes_before > 0
                    && (steps_before + pending.counted_steps > max_steps
                        || bytes_before + bytes > self.max_bytes.saturating_sub(inner.bytes))
                {
                    return Err(ProposeError::AddressOverloaded { waiting_bytes: bytes_before });
                }
                inner.turns.push(&client, pending);
            }
            _ => inner.ready.push_back(pending),
        }
        inner.bytes += bytes;
        self.len.store(inner.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Moves the proposals of the next log entries from the queue into `into`. All come from one lane, and together
    /// they stay below the limits of one fsync. A command that could make an entry take too many steps (units of work)
    /// begins the next entry. `keeps_history` is true if a keyspace of the space (Raft group) keeps a history of
    /// values; `now` is a monotonic time.
    pub(crate) fn take_entries(&self, into: &mut DequeuedProposals, keeps_history: bool, lanes: Lanes, now: Duration) {
        self.keeps_history.store(keeps_history, Ordering::Relaxed);
        let mut guard = self.lock();
        let inner = &mut *guard;
        let is_turn = lanes == Lanes::All
            && (inner.is_turn || inner.ready.is_empty())
            && inner.turns.time_to_next(now) == Some(Duration::ZERO);
        // After each turn, the ready commands are next.
        inner.is_turn = !is_turn;
        let bytes = if is_turn { inner.take_turns(into, now) } else { inner.take_ready(into, keeps_history) };
        if !into.proposals.is_empty() {
            into.ends.push(into.proposals.len());
        }
        inner.bytes -= bytes;
        self.len.store(inner.len(), Ordering::SeqCst);
        if inner.waiting > 0 {
            self.room.notify_all();
        }
    }

    /// Returns the time until a queued command may be taken: zero if one may be taken now, and `None` if the queue is
    /// empty. The time is longer than zero if only expensive commands wait and all of their client addresses pause.
    pub(crate) fn time_to_next(&self, now: Duration) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let inner = self.lock();
        if inner.ready.is_empty() { inner.turns.time_to_next(now) } else { Some(Duration::ZERO) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Makes the queue reject new proposals. Proposals in the lane of ready (cheap) commands stay in the queue.
    /// Expensive proposals that wait for their turn are rejected, because committing them could take many seconds; none
    /// of them is in the log.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let rejected = std::mem::take(&mut inner.turns);
        inner.bytes -= rejected.bytes();
        self.len.store(inner.len(), Ordering::SeqCst);
        drop(inner);
        // Each rejected proposal answers its proposer when it is dropped.
        drop(rejected);
        self.room.notify_all();
    }

    /// Takes all proposals for which `is_over` returns true out of both lanes of the queue (of ready and of expensive
    /// commands).
    pub(crate) fn remove(&self, is_over: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let mut inner = self.lock();
        let mut removed = Vec::new();
        for _ in 0..inner.ready.len() {
            let Some(pending) = inner.ready.pop_front() else { break };
            if is_over(&pending) { removed.push(pending) } else { inner.ready.push_back(pending) }
        }
        let mut turns = std::mem::take(&mut inner.turns);
        while let Some(pending) = turns.pop() {
            match pending.client.clone() {
                Some(client) if !is_over(&pending) => inner.turns.push(&client, pending),
                _ => removed.push(pending),
            }
        }
        inner.bytes -= removed.iter().map(Pending::bytes).sum::<usize>();
        self.len.store(inner.len(), Ordering::SeqCst);
        if inner.waiting > 0 {
            self.room.notify_all();
        }
        removed
    }

    /// Wakes the thread that waits for the oldest proposal in the lane of ready (cheap) commands. Returns false if no
    /// thread waits for this proposal.
    pub(crate) fn wake_front(&self) -> bool {
        self.lock().ready.front().and_then(|pending| pending.slot.as_ref()).is_some_and(|slot| slot.wake_thread())
    }

    pub(crate) fn bytes_and_len(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.bytes, inner.len())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Moves proposals from the lane of ready (cheap) commands into `into`, and returns their bytes.
    fn take_ready(&mut self, into: &mut DequeuedProposals, keeps_history: bool) -> usize {
        let (mut bytes, mut entry_steps, mut batch_steps, mut probable) = (0, 0, 0, 0);
        let is_alone = self.ready.len() == 1;
        self.ready_turns.count += 1;
        while let Some(next) = self.ready.front_mut() {
            let steps = if is_alone { 0 } else { next.steps(keeps_history) };
            let next_probable = next.probable_steps();
            let fits = into.proposals.len() < MAX_ENTRY_COMMANDS
                && bytes + next.bytes() <= MAX_ENTRY_BYTES
                && batch_steps + steps <= MAX_BATCH_STEPS
                && probable + next_probable <= MAX_TURN_STEPS;
            if !fits && !into.proposals.is_empty() {
                break;
            }
            if entry_steps + steps > MAX_ENTRY_STEPS && !into.proposals.is_empty() {
                into.ends.push(into.proposals.len());
                entry_steps = 0;
            }
            entry_steps += steps;
            batch_steps += steps;
            probable += next_probable;
            bytes += next.bytes();
            self.ready_turns.note(next.client.as_ref().map_or(0, Client::key));
            into.proposals.extend(self.ready.pop_front());
        }
        bytes
    }

    /// Moves the proposals of the next turn (batch of expensive commands) from the lane of expensive commands into
    /// `into`, and returns their bytes. The proposals of each client become separate log entries.
    fn take_turns(&mut self, into: &mut DequeuedProposals, now: Duration) -> usize {
        let (mut bytes, mut entry_steps, mut batch_steps, mut probable) = (0, 0, 0, 0);
        let mut delays = false;
        while let Some(next) = self.turns.front(now) {
            // Proposals with a client are estimated when they are queued.
            let (steps, next_probable) = (next.steps.unwrap_or(MAX_ENTRY_STEPS), next.probable_steps());
            let key = next.client.as_ref().map(Client::key);
            if let Some(client) = &next.client {
                let mark = client.address().pause().ready_turns;
                delays |= self.ready_turns.has_others_since(client.key(), mark);
            }
            if let Some(last) = into.proposals.last() {
                let fits = into.proposals.len() < MAX_ENTRY_COMMANDS
                    && bytes + next.bytes() <= MAX_ENTRY_BYTES
                    && batch_steps + steps <= MAX_BATCH_STEPS
                    && probable + next_probable <= if delays { LONG_TURN_STEPS } else { MAX_TURN_STEPS };
                if !fits {
                    break;
                }
                if last.client.as_ref().map(Client::key) != key || entry_steps + steps > MAX_ENTRY_STEPS {
                    into.ends.push(into.proposals.len());
                    entry_steps = 0;
                }
            }
            entry_steps += steps;
            batch_steps += steps;
            probable += next_probable;
            bytes += next.bytes();
            into.proposals.extend(self.turns.pop());
        }
        self.note_turn(into, delays);
        bytes
    }

    /// Records for each client address of these proposals that the queue has now taken expensive commands of it. If
    /// `delays` is true, also lists these addresses in `taken` as delaying other clients, so that they pause.
    fn note_turn(&self, taken: &mut DequeuedProposals, delays: bool) {
        for pending in &taken.proposals {
            let Some(client) = &pending.client else { continue };
            let (address, steps) = (client.address(), pending.probable_steps());
            match taken.delaying.iter_mut().find(|(other, _)| Arc::ptr_eq(other, address)) {
                Some((_, sum)) => *sum += steps,
                None => taken.delaying.push((Arc::clone(address), steps)),
            }
        }
        for (address, _) in &taken.delaying {
            address.pause().ready_turns = self.ready_turns.count;
        }
        if !delays {
            taken.delaying.clear();
        }
    }
}

#[cfg(test)]
mod tests;
