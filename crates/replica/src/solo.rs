//! A space (Raft group) with one voter, this node. Such a space gives the guarantees of Raft without the messages and
//! elections between nodes.
//!
//! Owns: the writer role, the indexes of entries, the order in which they are written and applied (`commit`), and the
//! committer thread. Does not own: the queue and its limits (`queue`), the time (`clock`), the bytes of the log, or the
//! effect of commands.
//!
//! There is one writer *role*, but no writer thread. A blocking proposer (the thread that proposes a command) that
//! finds the role free encodes, writes, syncs and applies its own command. Proposers that arrive in the meantime queue
//! their commands; the next holder of the role turns all queued commands into entries. Async proposers must not block
//! their executor. So they take the role only if the commit needs no fsync, the log has a segment with room, and the
//! state need not wait for its background work. Otherwise a committer thread takes the role for them. An executor
//! without other work can take the role too ([`Solo::commit_queued_here`]).
//!
//! ```text
//! propose ─┬─ role free, queue empty ──► commit own command ─► hand over
//!          └─ else queue ─► (role free? lead) ─► park ─► woken: done, or lead
//! propose_async ─┬─ no fsync wanted, role free, queue empty ─► commit own command ─► hand over
//!                └─ else queue ─► committer thread leads
//! ```
//! Invariants:
//! * Whenever the role is free and the queue is not empty, a thread has been woken to lead, or the proposer that has
//!   just queued its command will wake one ([`Wake::Later`]).
//! * Whenever the role is free, the next index follows that of the last applied entry.
//! * Once the state machine has failed, every proposal is rejected.
//!
//! Queued commands are divided among entries so that applying an entry takes no more steps than one command may take.
//! All entries that a holder of the role makes at a time share one fsync. Expensive commands of clients wait for their
//! turn in a lane of their own (`queue`), which only the committer thread takes commands from. While other clients
//! write, an address pauses between its turns (`turn_pause`).

mod commit;

use std::{
    fmt,
    io::IoSlice,
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use thalweg_log::{Appended, Draft, Log, Purpose, RecordKind};
use thalweg_state::{
    machine::{LocalOutcome, Machine},
    membership::LogId,
};
use thalweg_types::{
    Clock, Durability, Index, NodeId, SpaceId, SpaceTime, Term,
    command::{Framed, Outcome},
};

use crate::{
    client::{Client, Origin},
    clock::{FrozenTime, SpaceClock},
    counts::{Counts, ReplicaStats},
    error::{OpenError, ProposeError},
    lead::take_lead,
    pending::Pending,
    queue::{DequeuedProposals, Lanes, Queue, WhenFull},
    slot::{Committed, Proposal, Slot},
    stages::TimedBatch,
};

/// Longest time for which the committer thread sleeps.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// Time at which the committer thread is woken for a queued command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The committer thread is woken when the command is queued.
    Now,
    /// The proposer wakes the committer thread later with [`Solo::commit_queued`], which the proposer must call before
    /// it waits. So commands that are proposed together become one log entry. Another thread may commit the commands
    /// earlier.
    Later,
}

/// Observer of a space (Raft group) that is called for every applied log entry, on the thread that applies the entry.
/// Implementations must be fast.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Reports the outcomes of commands that have become visible to readers.
    fn applied(&self, outcomes: &[Outcome]);
}

/// Options of a space (Raft group) on a single node.
#[derive(Clone, Debug)]
pub struct SoloOptions {
    /// Id of the space (Raft group) that is opened.
    pub space: SpaceId,
    /// Id of this node, which is the only voter.
    pub node: NodeId,
    /// Maximum total size of queued commands in bytes. At the limit, blocking proposers wait and async proposers get an
    /// error.
    pub max_queue_bytes: usize,
}

/// A space (Raft group) on a single node, which is the space's only voter. A clone is cheap and refers to the same
/// space.
#[derive(Clone, Debug)]
pub struct Solo {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    log: Log,
    machine: Arc<Machine>,
    clock: Arc<SpaceClock>,
    space: SpaceId,
    /// Raft term in which this node leads.
    term: Term,
    role: Mutex<Role>,
    queue: Queue,
    observer: OnceLock<Arc<dyn Observer>>,
    committer: OnceLock<Committer>,
    /// True once the queue is closed. The committer thread ends when the flag is true and the queue is empty.
    stopping: AtomicBool,
    /// True while the committer thread sleeps and must be unparked.
    idle: AtomicBool,
    failure: OnceLock<String>,
    counts: Counts,
}

#[derive(Debug)]
struct Committer {
    thread: thread::Thread,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// State of a space (Raft group) that only the holder of the writer role may access. The writer role is the right of
/// one thread at a time to write entries to the log.
#[derive(Debug)]
struct Role {
    /// Index of the next log entry. Whenever no thread holds the role, `next == machine.applied().index + 1`.
    next: Index,
    taken: DequeuedProposals,
    /// Buffer in which a log entry of several commands is assembled.
    entry: Vec<u8>,
    outcomes: Vec<Outcome>,
    /// Number of commands of the batch that wait for an fsync, and the time at which their present stage began, for the
    /// statistics of stages. `None` once the write of the batch's first entry has begun, and for a command that was not
    /// queued.
    timed: Option<TimedBatch>,
}

/// Maximum size in bytes of an async caller's command that is committed on the caller's own thread. Longer commands go
/// to the committer thread, because copying them would take time from the caller's executor.
const MAX_INLINE_COMMAND_BYTES: usize = 64 * 1024;

impl Solo {
    /// Opens a space (Raft group) whose state has been [replayed](crate::replay), and makes this node its leader. In a
    /// new directory the function first writes the space's membership and vote to the log.
    pub fn open(
        log: Log,
        machine: Arc<Machine>,
        clock: Arc<dyn Clock>,
        options: &SoloOptions,
    ) -> Result<Self, OpenError> {
        let space_clock = SpaceClock::anchor(clock, machine.applied().time);
        Self::open_with(log, machine, space_clock, options)
    }

    /// Opens a space (Raft group) like [`open`](Self::open), with a clock that the caller has anchored. The clock's
    /// time must be at least the time of the last applied entry.
    pub fn open_with(
        log: Log,
        machine: Arc<Machine>,
        space_clock: SpaceClock,
        options: &SoloOptions,
    ) -> Result<Self, OpenError> {
        let space_clock = Arc::new(space_clock);
        let term = take_lead(&log, &machine, (options.space, options.node), space_clock.stamp())?;
        machine.set_read_clock(space_clock.clone());
        let next = machine.applied().index.next();
        let shared = Shared {
            log,
            machine,
            clock: space_clock,
            space: options.space,
            term,
            role: Mutex::new(Role {
                next,
                taken: DequeuedProposals::default(),
                entry: Vec::new(),
                outcomes: Vec::new(),
                timed: None,
            }),
            queue: Queue::new(options.max_queue_bytes),
            observer: OnceLock::new(),
            committer: OnceLock::new(),
            stopping: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            failure: OnceLock::new(),
            counts: Counts::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Sets the observer that is called for applied log entries. Only the first call has an effect.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.shared.observer.set(observer);
    }

    /// Proposes an encoded command and blocks until the command has reached durability `level`.
    pub fn propose(&self, command: &Framed, level: Durability, purpose: Purpose) -> Result<Committed, ProposeError> {
        self.propose_then(command, level, purpose, || None, Committed::take)
    }

    /// Proposes a command like [`propose`](Self::propose), but calls `then` with the reached level and the outcome
    /// instead of returning them. Passing these values up through the callers would cost a tenth of a command's few
    /// hundred nanoseconds. If the command has to wait in the queue, `value_reads` is called first. It returns the cost
    /// in steps (units of work) of the stored values that the command reads or replaces; see
    /// [`Origin::value_reads`](crate::Origin::value_reads).
    #[inline]
    pub fn propose_then<T>(
        &self,
        command: &Framed,
        level: Durability,
        purpose: Purpose,
        value_reads: impl FnOnce() -> Option<u64>,
        then: impl FnOnce(Durability, Option<&mut Outcome>) -> T,
    ) -> Result<T, ProposeError> {
        let shared = &*self.shared;
        if level != Durability::None
            && shared.queue.is_empty()
            && let Some(mut role) = shared.try_role()
        {
            shared.check()?;
            let durability = shared.commit_entry(&mut role, command.bytes(), level, purpose)?;
            debug_assert_eq!(role.outcomes.len(), 1);
            return Ok(then(durability, role.outcomes.first_mut()));
        }
        let mut pending = Pending::new(command.clone(), level, purpose, None, None);
        pending.value_reads = value_reads();
        let mut committed = self.propose_queued(pending)?;
        Ok(then(committed.durability, committed.outcome.as_mut()))
    }

    fn propose_queued(&self, mut pending: Pending) -> Result<Committed, ProposeError> {
        if pending.level == Durability::None {
            return self.propose_unseen(pending, WhenFull::Wait, Wake::Now);
        }
        let shared = &*self.shared;
        let slot = Slot::for_this_thread();
        pending.slot = Some(slot.clone());
        shared.counts.stages.begin_queueing(&mut pending, &shared.clock);
        shared.queue.push(pending, WhenFull::Wait)?;
        loop {
            if let Some(answer) = slot.take() {
                return answer;
            }
            match shared.try_role() {
                // A command without a client is always ready.
                Some(role) => shared.commit_queued(role, Lanes::Ready),
                None => thread::park(),
            }
        }
    }

    /// Proposes an encoded command without blocking. The returned future resolves when the command has reached
    /// durability `level`; for level `none` the future resolves immediately.
    ///
    /// A small command that needs no fsync is committed within the call if the writer role is free and the queue is
    /// empty: a copy and a change in memory cost less than waking the committer thread. If the commit would have to
    /// wait for a log segment or for background work of the state, the committer thread commits the command instead.
    pub fn propose_async(
        &self,
        command: Framed,
        level: Durability,
        purpose: Purpose,
    ) -> Result<Proposal, ProposeError> {
        self.propose_async_for(None, command, level, purpose, Wake::Now)
    }

    /// Proposes a command of a client like [`propose_async`](Self::propose_async). A command that will probably be
    /// expensive waits until the queue takes the next expensive commands of the client. If the command must wait for
    /// the committer thread, `wake` determines when this thread is woken.
    pub fn propose_async_for(
        &self,
        client: Option<Arc<Client>>,
        command: Framed,
        level: Durability,
        purpose: Purpose,
        wake: Wake,
    ) -> Result<Proposal, ProposeError> {
        self.propose_async_from(Origin { client, ..Origin::default() }, command, level, purpose, wake)
    }

    /// Proposes a command like [`propose_async_for`](Self::propose_async_for), with the client, the limits and the
    /// requirements in `origin`.
    pub fn propose_async_from(
        &self,
        origin: Origin,
        command: Framed,
        level: Durability,
        purpose: Purpose,
        wake: Wake,
    ) -> Result<Proposal, ProposeError> {
        let Origin { client, value_reads, .. } = origin;
        let slot = Slot::for_task();
        if level == Durability::None {
            let pending = Pending::new(command, level, purpose, None, client);
            slot.complete(self.propose_unseen(pending, WhenFull::Refuse, wake));
            return Ok(Proposal(slot));
        }
        let shared = &*self.shared;
        let mut pending = Pending::new(command, level, purpose, None, client);
        pending.value_reads = value_reads;
        if !level.waits_for_sync()
            && pending.bytes() <= MAX_INLINE_COMMAND_BYTES
            && shared.queue.is_empty()
            && !shared.queue.is_expensive(&mut pending)
            && !shared.may_wait(|| pending.bytes())
            && let Some(mut role) = shared.try_role()
        {
            shared.check()?;
            slot.complete(shared.commit_one(&mut role, pending.command.bytes(), level, purpose));
            return Ok(Proposal(slot));
        }
        pending.slot = Some(slot.clone());
        shared.counts.stages.begin_queueing(&mut pending, &shared.clock);
        shared.queue.push(pending, WhenFull::Refuse)?;
        if wake == Wake::Now {
            self.wake_committer();
        }
        Ok(Proposal(slot))
    }

    /// Wakes the committer thread for commands that were proposed with [`Wake::Later`], unless another thread has
    /// already committed them.
    pub fn commit_queued(&self) {
        if !self.shared.queue.is_empty() {
            self.wake_committer();
        }
    }

    /// Commits the ready commands of the queue on the calling thread if no other thread holds the writer role, and
    /// blocks for the fsync. This saves two thread wake-ups, which together cost half as much as an fsync. Commits
    /// nothing if it might have to wait for a log segment or for background work of the state. Then wakes the committer
    /// thread if commands remain in the queue; expensive commands always remain.
    pub fn commit_queued_here(&self) {
        if !self.shared.queue.is_empty()
            && !self.shared.may_wait(|| self.shared.queue.bytes_and_len().0)
            && let Some(role) = self.shared.try_role()
        {
            self.shared.commit_queued(role, Lanes::Ready);
        }
        self.commit_queued();
    }

    fn propose_unseen(&self, pending: Pending, when_full: WhenFull, wake: Wake) -> Result<Committed, ProposeError> {
        self.shared.check()?;
        self.shared.queue.push(pending, when_full)?;
        if wake == Wake::Now {
            self.wake_committer();
        }
        Ok(Committed { durability: Durability::None, outcome: None })
    }

    /// Writes a move to the log and applies it to the state. A move copies bytes of the log to the log's end, so that
    /// an old segment can be freed. Returns `Void` if the state no longer refers to the old position of the bytes.
    pub fn relocate(&self, payload: &[u8]) -> Result<LocalOutcome, ProposeError> {
        let shared = &*self.shared;
        let _role = shared.role();
        shared.check()?;
        let (time, _) = shared.stamp();
        let appended = shared.append(
            RecordKind::Move,
            Term::ZERO,
            Index::ZERO,
            time,
            payload,
            Durability::Os,
            Purpose::Reclaim,
        )?;
        let moved = shared.machine.apply_move(payload, appended.payload_at, appended.next);
        moved.map_err(|error| shared.fail(&error.to_string()))
    }

    /// Writes a record to the log which states that entries up to `index` may be missing. `term` is the Raft term of
    /// the entry at `index`. Before a caller frees segments with such entries, it calls this function and syncs the
    /// log: Raft must know the bound of the missing entries and the term of the last one.
    pub fn note_purged(&self, term: Term, index: Index) -> Result<(), ProposeError> {
        let shared = &*self.shared;
        let _role = shared.role();
        shared.check()?;
        let (time, _) = shared.stamp();
        let appended = shared.append(RecordKind::Purged, term, index, time, &[], Durability::Os, Purpose::Reclaim)?;
        let passed = shared.machine.apply_purged(LogId { term, index }, appended.next);
        passed.map_err(|error| shared.fail(&error.to_string()))
    }

    /// Returns the Raft term in which this node leads.
    #[must_use]
    pub fn term(&self) -> Term {
        self.shared.term
    }

    /// Returns the current time of the space (Raft group).
    #[must_use]
    pub fn now(&self) -> SpaceTime {
        self.shared.clock.now()
    }

    /// Returns the reason why the space (Raft group) rejects proposals; `None` if its state machine has not failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.failure.get().cloned()
    }

    /// Returns the statistics of the space (Raft group).
    #[must_use]
    pub fn stats(&self) -> ReplicaStats {
        self.shared.counts.stats(&self.shared.queue)
    }

    /// Closes the space (Raft group): rejects new proposals, and expensive ones that wait for their client's turn.
    /// Commits the other queued proposals, and stops the committer thread.
    pub fn close(&self) {
        let shared = &*self.shared;
        shared.queue.close();
        shared.stopping.store(true, Ordering::SeqCst);
        if let Some(committer) = shared.committer.get() {
            committer.thread.unpark();
            let handle = committer.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
            // A waker that the committer thread calls may drop the last handle. Then this code runs on the committer
            // thread.
            if let Some(handle) = handle
                && handle.thread().id() != thread::current().id()
            {
                // A committer that panicked has already failed its waiters by dropping their proposals.
                let _ = handle.join();
            }
        }
        while !shared.queue.is_empty() {
            shared.commit_queued(shared.role(), Lanes::All);
        }
        // Waits until an earlier holder of the role has finished with the log and the state.
        drop(shared.role());
    }

    fn wake_committer(&self) {
        let committer = self.shared.committer.get_or_init(|| spawn_committer(&self.shared));
        if self.shared.idle.swap(false, Ordering::SeqCst) {
            committer.thread.unpark();
        }
    }
}

fn spawn_committer(shared: &Arc<Shared>) -> Committer {
    let weak = Arc::downgrade(shared);
    let handle = thread::Builder::new()
        .name("thalweg-commit".to_owned())
        .spawn(move || {
            while let Some(shared) = weak.upgrade() {
                if !shared.committer_step() {
                    return;
                }
            }
        })
        .expect("the system can start a thread");
    Committer { thread: handle.thread().clone(), handle: Mutex::new(Some(handle)) }
}

/// Guard that a thread has while it holds the writer role, the right to write entries to the log. Dropping the guard
/// releases the role, also after an error or a panic, and wakes a thread to take the role if the queue is not empty.
struct RoleGuard<'a> {
    shared: &'a Shared,
    /// Lock guard that represents the held writer role; `None` only while this guard is being dropped.
    role: Option<MutexGuard<'a, Role>>,
}

impl Deref for RoleGuard<'_> {
    type Target = Role;

    fn deref(&self) -> &Role {
        self.role.as_deref().expect("held until dropped")
    }
}

impl DerefMut for RoleGuard<'_> {
    fn deref_mut(&mut self) -> &mut Role {
        self.role.as_deref_mut().expect("held until dropped")
    }
}

impl Drop for RoleGuard<'_> {
    fn drop(&mut self) {
        drop(self.role.take());
        self.shared.wake_next_leader();
    }
}

impl Shared {
    /// One step of the committer thread: commits queued commands, or sleeps until commands are queued. Returns false
    /// when the thread must end.
    fn committer_step(&self) -> bool {
        let is_stopping = self.stopping.load(Ordering::SeqCst);
        let time_to_next = || self.queue.time_to_next(self.clock.monotonic());
        if time_to_next() == Some(Duration::ZERO) {
            self.commit_queued(self.role(), Lanes::All);
            return true;
        }
        if is_stopping {
            return false;
        }
        self.idle.store(true, Ordering::SeqCst);
        let time = time_to_next();
        if time != Some(Duration::ZERO) && !self.stopping.load(Ordering::SeqCst) {
            // The limit on the sleep lets the thread end after the last handle is dropped without a close.
            thread::park_timeout(time.unwrap_or(MAX_SLEEP).min(MAX_SLEEP));
        }
        self.idle.store(false, Ordering::SeqCst);
        true
    }

    fn role(&self) -> RoleGuard<'_> {
        let role = self.role.lock().unwrap_or_else(|poisoned| self.after_panic(poisoned.into_inner()));
        RoleGuard { shared: self, role: Some(role) }
    }

    fn try_role(&self) -> Option<RoleGuard<'_>> {
        let role = match self.role.try_lock() {
            Ok(role) => role,
            Err(TryLockError::Poisoned(poisoned)) => self.after_panic(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(RoleGuard { shared: self, role: Some(role) })
    }

    /// Marks the space (Raft group) as failed after a panic of a thread that held the writer role (the right to write
    /// log entries). The log may contain an entry that the state has not applied, so no other entry may get the same
    /// index.
    #[cold]
    fn after_panic<'a>(&self, role: MutexGuard<'a, Role>) -> MutexGuard<'a, Role> {
        self.fail("a thread panicked during a commit");
        role
    }

    /// Commits the next log entries from the queue with one fsync, releases the writer role, then wakes the proposers.
    /// So the next holder of the role can write while the proposers' threads wake up.
    fn commit_queued(&self, mut role: RoleGuard<'_>, lanes: Lanes) {
        let mut taken = std::mem::take(&mut role.taken);
        let began = self.clock.monotonic();
        self.queue.take_entries(&mut taken, self.machine.keeps_history(), lanes, began);
        role.timed = self.counts.stages.end_queueing(&taken.proposals, began);
        let is_timed = role.timed.is_some();
        let before = self.machine.work();
        let answers = match &taken.ends[..] {
            [] => Vec::new(),
            [_] => self.commit_many(&mut role, &taken.proposals),
            ends => self.commit_entries(&mut role, &taken.proposals, ends, &mut taken.steps),
        };
        let applied = is_timed.then(|| self.clock.monotonic());
        if let ([_], Ok(before), Ok(after)) = (&taken.ends[..], before, self.machine.work()) {
            taken.steps.push(after - before);
        }
        taken.learn();
        if taken.delays_others() {
            taken.begin_pauses(began, self.clock.monotonic().saturating_sub(began));
        }
        drop(role);
        for (pending, answer) in taken.proposals.iter_mut().zip(answers) {
            pending.answer(answer);
            if let Some(applied) = applied {
                self.counts.stages.answered(pending, applied, &self.clock);
            }
        }
        taken.clear();
        if let Some(mut role) = self.try_role() {
            role.taken = taken;
        }
    }

    /// Wakes a thread to take the writer role (the right to write log entries) if the queue is not empty. Called after
    /// a thread has released the role.
    fn wake_next_leader(&self) {
        if self.queue.is_empty() || self.queue.wake_front() {
            return;
        }
        // Only the committer thread takes expensive commands. A timer wakes it at the end of a pause.
        if self.queue.time_to_next(self.clock.monotonic()) != Some(Duration::ZERO) {
            return;
        }
        if let Some(committer) = self.committer.get() {
            self.idle.store(false, Ordering::SeqCst);
            committer.thread.unpark();
        }
    }

    /// Returns true if a commit of `bytes` bytes may have to wait: for the background work of the state, or for a
    /// segment of the log.
    #[inline]
    fn may_wait(&self, bytes: impl FnOnce() -> usize) -> bool {
        self.machine.backend().may_wait() || self.log.may_wait(|| bytes() as u64)
    }

    fn check(&self) -> Result<(), ProposeError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(ProposeError::Closed);
        }
        self.check_not_failed()
    }

    fn check_not_failed(&self) -> Result<(), ProposeError> {
        match self.failure.get() {
            Some(reason) => Err(ProposeError::State(reason.clone())),
            None => Ok(()),
        }
    }

    fn fail(&self, reason: &str) -> ProposeError {
        let _ = self.failure.set(reason.to_owned());
        ProposeError::State(reason.to_owned())
    }

    /// Returns the timestamp for the next log record. If the space (Raft group) has keys with deadlines, reads use this
    /// timestamp as their time until the returned guard is dropped. Without such keys no read uses the time, so there
    /// is no guard.
    fn stamp(&self) -> (SpaceTime, Option<FrozenTime<'_>>) {
        if !self.machine.has_deadlines() {
            return (self.clock.stamp(), None);
        }
        let (time, frozen) = self.clock.stamp_frozen();
        (time, Some(frozen))
    }

    // The arguments are the fields of one record, and how durably to write it.
    #[expect(clippy::too_many_arguments)]
    fn append(
        &self,
        kind: RecordKind,
        term: Term,
        index: Index,
        time: SpaceTime,
        payload: &[u8],
        level: Durability,
        purpose: Purpose,
    ) -> Result<Appended, ProposeError> {
        let payload = &[IoSlice::new(payload)];
        let draft = Draft { space: self.space, kind, term, index, time, payload };
        Ok(self.log.append(&[draft], level, purpose)?)
    }
}
