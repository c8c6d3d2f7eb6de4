//! Queue of proposed commands that wait for a thread with the writer role, which commits them.
//!
//! Owns: the two lanes, their limits, and the choice of the commands of the next entries. Does not own: the order among
//! the clients of the expensive lane (`turns`), the length of pauses (`turn_pause`), the writer role (`solo`), or the
//! writing of entries.
//!
//! Invariants:
//! * An accepted proposal is in one lane until it is taken, removed, or rejected by [`close`](Queue::close). While it
//!   is in the queue, nothing of it is in the log.
//! * `bytes` is the sum over both lanes, and `len` equals the number of their proposals whenever the lock is free.
//!
//! # Two lanes
//!
//! Ready commands are taken in the order of their arrival. A command of a [`Client`] that will probably be expensive
//! waits for its [turn](Turns) instead, and so do all later commands of the same client. While both lanes hold
//! commands, they alternate: a command in the ready lane waits for at most one turn of expensive ones, which is bounded
//! by [`MAX_TURN_STEPS`] or a single command. If other clients have written since an address had its last turn, its
//! next turn is at most [`LONG_TURN_STEPS`] or a single command, and a pause of the address follows (`turn_pause`). So
//! a client with cheap commands is served, although another one keeps the node busy with expensive ones.
//!
//! A command is expensive if its [estimate](Pending::steps), times the measured cost of its client's recent commands,
//! exceeds [`EXPENSIVE_STEPS`]. A client counts as fully expensive if no command of its address has been measured.
//! Commands without a client, such as those of an embedding program, are always ready.
//!
//! # Limits
//!
//! * `max_bytes` of commands in both lanes. At the limit a blocking proposer waits, and an async proposer gets
//!   `Overloaded`. An empty queue also accepts a proposal larger than the limit.
//! * Waiting expensive commands of one address: [`MAX_ADDRESS_STEPS`], and no more bytes than remain free. So an
//!   address cannot fill the queue with them. The bound is lower while the address makes long pauses, because its
//!   commands then wait longer. A proposer beyond that gets `AddressOverloaded`.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use thalweg_types::limits::{MAX_BATCH_STEPS, MAX_ENTRY_BYTES, MAX_ENTRY_COMMANDS, MAX_ENTRY_STEPS};

use crate::{
    client::{Client, ClientAddress},
    error::ProposeError,
    pending::Pending,
    turn_pause::LONG_TURN_STEPS,
    turns::Turns,
};

#[derive(Debug, Default)]
struct Inner {
    ready: VecDeque<Pending>,
    turns: Turns,
    /// Total size in bytes of the commands in both lanes.
    bytes: usize,
    /// True if expensive commands are taken next although commands are ready.
    is_turn: bool,
    ready_turns: ReadyTurns,
    /// Number of proposing threads that wait for room in the queue.
    waiting: usize,
    closed: bool,
}

/// Turns of the ready lane, and the clients that had commands in the last ones.
#[derive(Debug, Default)]
struct ReadyTurns {
    /// Number of turns taken.
    count: u64,
    /// The two clients that had commands in the last turns, the last one first: their keys (0 for commands without a
    /// client), and the number of turns taken with the last one of theirs.
    last_clients: [(usize, u64); 2],
}

impl ReadyTurns {
    /// Records commands of a client in the current turn.
    fn note(&mut self, client: usize) {
        if self.last_clients[0].0 != client {
            self.last_clients[1] = self.last_clients[0];
        }
        self.last_clients[0] = (client, self.count);
    }

    /// Returns true if another client had ready commands after this number of turns.
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
    /// True if a keyspace keeps former values, which makes writes more expensive.
    keeps_history: AtomicBool,
    /// Copy of `inner.len()`, which the holder of the writer role can read without the lock to detect an empty queue.
    len: AtomicUsize,
}

/// Steps above which a command counts as expensive: about 0.4 ms of work.
const EXPENSIVE_STEPS: u64 = 4_000;
/// Maximum number of steps that expensive commands which are committed together will probably take: about 14 ms of
/// work. A single command may take more.
const MAX_TURN_STEPS: u64 = MAX_ENTRY_STEPS / 2;
/// Maximum number of steps that the waiting expensive commands of one address will probably take: about 14 s of work.
const MAX_ADDRESS_STEPS: u64 = 500 * MAX_ENTRY_STEPS;

/// Behaviour of a push when the queue is full: wait, or return an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    Wait,
    Refuse,
}

/// Choice of the lanes of the queue (ready commands, and expensive ones that wait for a turn) from which commands are
/// taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// The lane of ready commands. Used by threads that also serve clients.
    Ready,
    /// Both lanes: ready commands and expensive ones.
    All,
}

/// Proposals that were taken out of the queue: the commands of the next log entries.
#[derive(Debug, Default)]
pub(crate) struct DequeuedProposals {
    /// Proposals, in the order in which they are committed.
    pub(crate) proposals: Vec<Pending>,
    /// The n-th element is the number of proposals in the first n entries.
    pub(crate) ends: Vec<usize>,
    /// Number of steps that each entry took; entries that were not applied are missing.
    pub(crate) steps: Vec<u64>,
    /// Addresses whose turn delays other clients, and the steps that their proposals will probably take.
    delaying: Vec<(Arc<ClientAddress>, u64)>,
}

impl DequeuedProposals {
    /// Updates the measured costs of the clients by the steps that each entry took.
    pub(crate) fn learn(&self) {
        if self.steps.len() != self.ends.len() {
            return;
        }
        let mut begin = 0;
        for (&end, &steps) in self.ends.iter().zip(&self.steps) {
            learn(&self.proposals[begin..end], steps);
            begin = end;
        }
    }

    /// Begins pauses of the addresses whose turn delays others. The arguments are the monotonic time at which the
    /// commit of the proposals began, and its duration.
    pub(crate) fn begin_pauses(&self, began: Duration, time: Duration) {
        let probable: u64 = self.delaying.iter().map(|(_, steps)| steps).sum();
        let taken: u64 = self.steps.iter().sum();
        for (address, steps) in &self.delaying {
            let share = *steps as f64 / probable.max(1) as f64;
            address.pause().begin(began, time.mul_f64(share), (taken as f64 * share) as u64);
        }
    }

    /// Begins pauses like [`begin_pauses`](Self::begin_pauses), but computes them from the steps that the proposals
    /// will probably take. Each pause is corrected when an entry of the address is applied ([`learn`]).
    pub(crate) fn begin_probable_pauses(&mut self, now: Duration) {
        for (address, steps) in &self.delaying {
            let turn = address.pause().begin_probable(now, *steps);
            let is_of = |client: &Arc<Client>| Arc::ptr_eq(client.address(), address);
            let pending = self.proposals.iter_mut().filter(|pending| pending.client.as_ref().is_some_and(is_of));
            pending.for_each(|pending| pending.turn = turn);
        }
    }

    /// Returns true if the queue contains an address whose expensive commands delay other clients.
    pub(crate) fn delays_others(&self) -> bool {
        !self.delaying.is_empty()
    }

    /// Empties the lists and keeps their memory.
    pub(crate) fn clear(&mut self) {
        self.proposals.clear();
        self.ends.clear();
        self.steps.clear();
        self.delaying.clear();
    }
}

/// Updates the measured costs of the clients whose commands an entry contains, by the steps that the entry took. If it
/// has commands of several clients, the cost of each is unknown. If such an entry took many more steps than expected,
/// the clients with expensive estimates count as fully expensive again, so that their next commands are measured
/// separately.
pub(crate) fn learn(entry: &[Pending], steps: u64) {
    let estimated: u64 = entry.iter().map(|pending| pending.steps.unwrap_or(0)).sum();
    let Some(client) = entry.first().and_then(|pending| pending.client.as_ref()) else { return };
    if estimated <= EXPENSIVE_STEPS {
        return;
    }
    let pausing =
        entry.iter().find(|pending| pending.turn > 0).and_then(|pending| Some((pending, pending.client.as_ref()?)));
    if let Some((pending, client)) = pausing {
        client.address().pause().correct(pending.turn, steps);
    }
    let is_one = entry.iter().all(|other| other.client.as_ref().is_some_and(|c| Arc::ptr_eq(c, client)));
    if is_one {
        client.learn(estimated, steps);
        return;
    }
    let probable: u64 = entry.iter().map(Pending::probable_steps).sum();
    if steps > 2 * probable + 2 * EXPENSIVE_STEPS {
        let expensive = entry.iter().filter(|pending| pending.steps.unwrap_or(0) > EXPENSIVE_STEPS);
        expensive.filter_map(|pending| pending.client.as_ref()).for_each(|client| client.forget());
    }
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

    /// Returns true if the command will probably be expensive.
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

    /// Moves the queued proposals of the next log entries into `into`: those of one lane, up to the limits for one
    /// fsync. An entry ends before a command with which it could take too many steps. `keeps_history` is true if a
    /// keyspace of the space keeps former values; `now` is a monotonic time.
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

    /// Returns the time until a command may be taken: zero if one may be taken now, longer if all addresses with
    /// waiting commands make pauses, and `None` if nothing waits.
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

    /// Makes the queue reject new proposals. Ready proposals stay in the queue. Proposals that wait for their turn are
    /// rejected, because they could take many seconds; nothing of them is in the log.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let rejected = std::mem::take(&mut inner.turns);
        inner.bytes -= rejected.bytes();
        self.len.store(inner.len(), Ordering::SeqCst);
        drop(inner);
        // Each of them answers its proposer when it is dropped.
        drop(rejected);
        self.room.notify_all();
    }

    /// Takes all proposals for which `is_over` returns true out of both lanes.
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

    /// Wakes the thread that waits for the oldest ready proposal. Returns false if no thread waits for this proposal.
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
    /// Moves ready proposals into `into`, and returns their bytes.
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

    /// Moves expensive proposals into `into`, and returns their bytes. The proposals of each client become separate
    /// entries.
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

    /// Records the turn of the addresses of these proposals, and lists the addresses whose turn delays others.
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
mod tests {
    use thalweg_log::Purpose;
    use thalweg_types::{
        Durability, KeyspaceId,
        command::{CommandError, Framed, RedisBuilder, encode_put},
    };

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn pending(value_bytes: usize) -> Pending {
        let mut command = Framed::new();
        command.encode(|out| encode_put(out, KeyspaceId(1), b"k", &vec![0; value_bytes])).unwrap();
        Pending::new(command, Durability::Os, Purpose::Data, None, None)
    }

    /// Takes the next entries. Returns their ends.
    fn take(queue: &Queue) -> Vec<usize> {
        let mut taken = DequeuedProposals::default();
        queue.take_entries(&mut taken, false, Lanes::All, NOW);
        taken.ends
    }

    /// Takes all commands, and waits for the ends of pauses.
    fn drain(queue: &Queue) {
        let mut now = NOW;
        while let Some(pause) = queue.time_to_next(now) {
            now += pause;
            queue.take_entries(&mut DequeuedProposals::default(), false, Lanes::All, now);
        }
    }

    /// Tests how the queue cuts commands of the given sizes into entries: returns the number of commands of each entry.
    fn entries(commands: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let queue = Queue::new(usize::MAX);
        commands.into_iter().for_each(|bytes| queue.push(pending(bytes), WhenFull::Refuse).unwrap());
        let mut found = Vec::new();
        while !queue.is_empty() {
            found.push(take(&queue).last().copied().unwrap());
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
        burst_of(None, args)
    }

    fn burst_of(client: Option<&Arc<Client>>, args: &[&[u8]]) -> Pending {
        let mut builder = RedisBuilder::new(KeyspaceId(1));
        builder.push(&[b"set", b"k", b"v"]).unwrap().push(args).unwrap();
        let (mut command, bytes) = (Framed::new(), builder.finish());
        let copied = command.encode(|out| {
            out.extend_from_slice(&bytes);
            Ok::<_, CommandError>(())
        });
        copied.unwrap();
        Pending::new(command, Durability::Os, Purpose::Data, None, client.cloned())
    }

    #[test]
    fn pipelines_of_sixteen_sets_of_fifty_clients_are_committed_together() {
        let queue = Queue::new(usize::MAX);
        for _ in 0..50 {
            let mut builder = RedisBuilder::new(KeyspaceId(1));
            (0..16).for_each(|_| _ = builder.push(&[b"SET", b"key:000000000001", &[b'v'; 100]]).unwrap());
            let mut command = Framed::new();
            let encode = |out: &mut Vec<u8>| {
                out.extend_from_slice(&builder.finish());
                Ok::<_, CommandError>(())
            };
            command.encode(encode).unwrap();
            let pending = Pending::new(command, Durability::Os, Purpose::Data, None, Some(client()));
            queue.push(pending, WhenFull::Refuse).unwrap();
        }
        assert_eq!(take(&queue), [50]);
        assert!(queue.is_empty());
    }

    /// Fills a queue with 2,000 equal proposals, takes one batch, and returns the number of commands in each of its
    /// entries.
    fn batch(proposal: impl Fn() -> Pending) -> Vec<usize> {
        let queue = Queue::new(usize::MAX);
        (0..2_000).for_each(|_| queue.push(proposal(), WhenFull::Refuse).unwrap());
        let ends = take(&queue);
        let before = std::iter::once(0).chain(ends.iter().copied());
        ends.iter().zip(before).map(|(end, before)| end - before).collect()
    }

    #[test]
    fn entries_are_cut_by_the_steps_of_their_commands_and_written_together_up_to_a_bound() {
        assert_eq!(batch(|| burst(&[b"keys", b"*"])), [1; (MAX_BATCH_STEPS / MAX_ENTRY_STEPS) as usize]);
        let steps = burst(&[b"get", b"k"]).steps(false);
        let each = (MAX_ENTRY_STEPS / steps) as usize;
        assert!(each > 2, "a few reads of large values fit into an entry");
        let gets = batch(|| burst(&[b"get", b"k"]));
        assert!(gets.len() >= 4 && gets[..4] == [each; 4], "{gets:?}");
        let small = batch(|| {
            let mut proposal = burst(&[b"get", b"k"]);
            proposal.value_reads = Some(20);
            proposal
        });
        assert!(small.iter().sum::<usize>() == 2_000 && small[0] > 500, "reads of values known to be small: {small:?}");
        let writes = batch(|| burst(&[b"del", b"k"]));
        assert!(writes.iter().sum::<usize>() == 2_000 && writes[0] > 500, "{writes:?}");
    }

    fn client() -> Arc<Client> {
        Client::new(&Arc::default())
    }

    fn push(queue: &Queue, client: &Arc<Client>, args: &[&[u8]]) {
        queue.push(burst_of(Some(client), args), WhenFull::Refuse).unwrap();
    }

    /// Takes the next entries. Returns the clients of their commands in order; `steps` is the number of steps that each
    /// entry took.
    fn take_clients(queue: &Queue, steps: &[u64]) -> Vec<Option<Arc<Client>>> {
        let mut taken = DequeuedProposals::default();
        queue.take_entries(&mut taken, false, Lanes::All, NOW);
        taken.steps = steps.to_vec();
        taken.learn();
        taken.proposals.iter().map(|pending| pending.client.clone()).collect()
    }

    /// Returns true if the lists contain the same clients in the same order.
    fn are(found: &[Option<Arc<Client>>], expected: &[&Arc<Client>]) -> bool {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(one, other)| one.as_ref().is_some_and(|one| Arc::ptr_eq(one, other)))
    }

    #[test]
    fn cheap_commands_pass_expensive_ones_and_both_lanes_alternate() {
        let (queue, expensive, cheap) = (Queue::new(usize::MAX), client(), client());
        (0..10).for_each(|_| push(&queue, &expensive, &[b"keys", b"*"]));
        (0..3).for_each(|_| push(&queue, &cheap, &[b"set", b"k", b"v"]));
        assert!(are(&take_clients(&queue, &[]), &[&cheap; 3]), "cheap commands do not wait for the queued ones");
        push(&queue, &cheap, &[b"set", b"k", b"v"]);
        let mut taken = DequeuedProposals::default();
        queue.take_entries(&mut taken, false, Lanes::All, NOW);
        assert_eq!(taken.proposals.len(), 1, "one at a time");
        taken.begin_probable_pauses(NOW);
        push(&queue, &cheap, &[b"set", b"k", b"v"]);
        assert!(are(&take_clients(&queue, &[]), &[&cheap; 2]));
        assert!(take_clients(&queue, &[]).is_empty(), "a pause follows the turn");
        assert_eq!(queue.bytes_and_len().1, 9);
        drain(&queue);
    }

    #[test]
    fn commands_of_a_client_keep_their_order() {
        let (queue, client) = (Queue::new(usize::MAX), client());
        push(&queue, &client, &[b"set", b"k", b"1"]);
        push(&queue, &client, &[b"keys", b"*"]);
        push(&queue, &client, &[b"set", b"k", b"2"]);
        let (mut lengths, mut taken) = (Vec::new(), DequeuedProposals::default());
        while !queue.is_empty() {
            queue.take_entries(&mut taken, false, Lanes::All, NOW);
            lengths.extend(taken.proposals.iter().map(|pending| pending.steps.unwrap_or(0) > EXPENSIVE_STEPS));
            taken.clear();
        }
        assert_eq!(lengths, [false, true, false], "what follows an expensive command waits with it");
    }

    #[test]
    fn an_address_pauses_after_a_turn_if_other_clients_had_commands_since_its_last_one() {
        let (queue, expensive, cheap) = (Queue::new(usize::MAX), client(), client());
        let mut now = NOW;
        let mut pause_after_turn = || {
            push(&queue, &expensive, &[b"keys", b"*"]);
            let mut taken = DequeuedProposals::default();
            queue.take_entries(&mut taken, false, Lanes::All, now);
            assert_eq!(taken.proposals.len(), 1);
            taken.steps.push(10_000);
            taken.begin_pauses(now, Duration::from_millis(1));
            push(&queue, &expensive, &[b"keys", b"*"]);
            let pause = queue.time_to_next(now).unwrap();
            now += pause;
            drain(&queue);
            assert_eq!(pause.is_zero(), !taken.delays_others());
            pause
        };
        let commit_of = |client: &Arc<Client>| {
            push(&queue, client, &[b"set", b"k", b"1"]);
            assert_eq!(queue.time_to_next(NOW), Some(Duration::ZERO));
            queue.take_entries(&mut DequeuedProposals::default(), false, Lanes::Ready, NOW);
        };
        assert_eq!(pause_after_turn(), Duration::ZERO);
        commit_of(&expensive);
        assert_eq!(pause_after_turn(), Duration::ZERO, "its own cheap commands");
        commit_of(&cheap);
        commit_of(&expensive);
        assert!(pause_after_turn() > Duration::ZERO);
        assert_eq!(pause_after_turn(), Duration::ZERO, "nobody else wrote since");
    }

    #[test]
    fn a_turn_that_delays_others_is_short_and_other_addresses_do_not_pause_with_it() {
        let (queue, cheap) = (Queue::new(usize::MAX), client());
        let clients: [_; 2] = std::array::from_fn(|_| client());
        for client in &clients {
            // Two commands take a long turn.
            (0..40).for_each(|_| client.learn(MAX_ENTRY_STEPS, LONG_TURN_STEPS / 2));
        }
        let take = |lanes, now| {
            let mut taken = DequeuedProposals::default();
            queue.take_entries(&mut taken, false, lanes, now);
            taken.begin_probable_pauses(now);
            assert!(taken.delaying.is_empty() || taken.proposals.iter().all(|pending| pending.turn > 0));
            taken.proposals.iter().map(|pending| pending.client.clone().unwrap()).collect::<Vec<_>>()
        };
        (0..20).for_each(|_| push(&queue, &clients[0], &[b"keys", b"*"]));
        let alone = take(Lanes::All, NOW).len();
        push(&queue, &cheap, &[b"set", b"k", b"1"]);
        assert_eq!(take(Lanes::Ready, NOW).len(), 1);
        let contended = take(Lanes::All, NOW).len();
        assert!(contended < alone && contended >= 1, "{alone} {contended}");
        let pause = queue.time_to_next(NOW).unwrap();
        assert!(pause > Duration::ZERO && take(Lanes::All, NOW).is_empty());
        push(&queue, &clients[1], &[b"keys", b"*"]);
        assert!(Arc::ptr_eq(&take(Lanes::All, NOW)[0], &clients[1]));
        assert!(Arc::ptr_eq(&take(Lanes::All, NOW + pause)[0], &clients[0]));
        // While it makes long pauses, fewer of its commands may wait.
        (0..5).for_each(|_| _ = clients[0].address().pause().begin_probable(NOW, MAX_ENTRY_STEPS));
        let accepted = (0..1_000)
            .take_while(|_| queue.push(burst_of(Some(&clients[0]), &[b"keys", b"*"]), WhenFull::Refuse).is_ok())
            .count();
        assert!(accepted < 1_000, "{accepted}");
    }

    #[test]
    fn a_serving_thread_takes_ready_commands_only() {
        let (queue, client) = (Queue::new(usize::MAX), client());
        push(&queue, &client, &[b"keys", b"*"]);
        let mut taken = DequeuedProposals::default();
        queue.take_entries(&mut taken, false, Lanes::Ready, NOW);
        assert!(taken.proposals.is_empty() && taken.ends.is_empty() && !queue.is_empty());
        queue.take_entries(&mut taken, false, Lanes::All, NOW);
        assert!(taken.proposals.len() == 1 && queue.is_empty());
    }

    #[test]
    fn commands_that_turn_out_cheap_no_longer_wait_for_their_turn() {
        let (queue, client, other) = (Queue::new(usize::MAX), client(), client());
        let mut rounds = 0;
        while queue.is_expensive(&mut burst_of(Some(&client), &[b"get", b"k"])) {
            push(&queue, &client, &[b"get", b"k"]);
            assert!(are(&take_clients(&queue, &[100]), &[&client]));
            rounds += 1;
        }
        assert!((3..20).contains(&rounds), "{rounds}");
        // Once they take long, nobody knows whose they were: both clients are measured again.
        for client in [&client, &other] {
            (0..30).for_each(|_| client.learn(1_000_000, 0));
            push(&queue, client, &[b"get", b"k"]);
        }
        assert!(are(&take_clients(&queue, &[300_000]), &[&client, &other]));
        for client in [&client, &other] {
            assert!(queue.is_expensive(&mut burst_of(Some(client), &[b"get", b"k"])));
        }
    }

    #[test]
    fn entries_of_a_turn_have_one_client_each() {
        let queue = Queue::new(usize::MAX);
        let clients: Vec<_> = (0..3).map(|_| client()).collect();
        for client in &clients {
            // Cheap enough to share a turn, and too expensive to be ready.
            (0..5).for_each(|_| client.learn(1_000_000, 0));
            (0..2).for_each(|_| push(&queue, client, &[b"keys", b"*"]));
        }
        let mut taken = DequeuedProposals::default();
        queue.take_entries(&mut taken, false, Lanes::All, NOW);
        assert_eq!(taken.ends, [1, 2, 3, 4], "as many as may be written together");
        drain(&queue);
    }

    #[test]
    fn an_address_has_a_bound_of_waiting_commands_of_its_own() {
        let (queue, address) = (Queue::new(usize::MAX), Arc::default());
        let mut accepted = 0_u64;
        loop {
            match queue.push(burst_of(Some(&Client::new(&address)), &[b"keys", b"*"]), WhenFull::Wait) {
                Ok(()) => accepted += 1,
                Err(error) => break assert!(error.to_string().contains("from this client's address"), "{error}"),
            }
        }
        assert_eq!(accepted, MAX_ADDRESS_STEPS / MAX_ENTRY_STEPS);
        push(&queue, &client(), &[b"keys", b"*"]);
        queue.push(pending(1), WhenFull::Refuse).unwrap();
        drain(&queue);
        assert_eq!(queue.bytes_and_len(), (0, 0));
        // It may hold no more bytes than remain free.
        let each = burst(&[b"keys", b"*"]).bytes();
        let queue = Queue::new(10 * each);
        let one = Client::new(&address);
        let fill = |client| {
            (0..20)
                .take_while(|_| queue.push(burst_of(Some(client), &[b"keys", b"*"]), WhenFull::Refuse).is_ok())
                .count()
        };
        assert_eq!((fill(&one), fill(&client())), (5, 3));
    }

    #[test]
    fn a_queue_that_closes_rejects_what_waits_for_its_turn() {
        let (queue, client) = (Queue::new(usize::MAX), client());
        push(&queue, &client, &[b"set", b"k", b"v"]);
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let mut pending = burst_of(Some(&client), &[b"keys", b"*"]);
                let slot = crate::slot::Slot::for_this_thread();
                pending.slot = Some(Arc::clone(&slot));
                queue.push(pending, WhenFull::Refuse).unwrap();
                slot
            })
            .collect();
        queue.close();
        assert!(waiting.iter().all(|slot| matches!(slot.take(), Some(Err(ProposeError::Closed)))));
        assert_eq!(queue.bytes_and_len().1, 1);
        assert!(are(&take_clients(&queue, &[]), &[&client]) && queue.bytes_and_len() == (0, 0));
    }

    #[test]
    fn a_command_that_is_alone_is_one_entry() {
        let queue = Queue::new(usize::MAX);
        queue.push(burst(&[b"keys", b"*"]), WhenFull::Refuse).unwrap();
        let mut taken = DequeuedProposals::default();
        queue.take_entries(&mut taken, true, Lanes::All, NOW);
        assert_eq!((taken.proposals.len(), &taken.ends[..]), (1, &[1][..]));
        taken.clear();
        queue.take_entries(&mut taken, true, Lanes::All, NOW);
        assert_eq!((taken.proposals.len(), taken.ends.len()), (0, 0), "an empty queue");
    }

    #[test]
    fn a_full_queue_refuses_but_takes_what_is_larger_than_itself_when_empty() {
        let queue = Queue::new(100);
        queue.push(pending(1000), WhenFull::Refuse).unwrap();
        assert!(matches!(queue.push(pending(0), WhenFull::Refuse), Err(ProposeError::Overloaded { .. })));
        take(&queue);
        let each = pending(0).command.bytes().len();
        (0..100 / each).for_each(|_| queue.push(pending(0), WhenFull::Refuse).unwrap());
        let full = queue.push(pending(0), WhenFull::Refuse);
        assert!(matches!(full, Err(ProposeError::Overloaded { queued_bytes }) if queued_bytes == 100 / each * each));
    }
}
