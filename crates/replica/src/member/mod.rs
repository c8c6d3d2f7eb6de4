//! A space (Raft group) whose log entries several nodes agree on, as one of these nodes sees it.
//!
//! Owns: the queue of proposals, cutting the queued commands into batches, applying committed entries, and moves
//! (records of this node alone, which say that bytes were copied within its log). Does not own: consensus. Crate `raft`
//! takes the batches, replicates them as entries, and reports commits and leadership.
//!
//! ```text
//! propose ──> queue ── take_batch ──> consensus ──> entry in this node's log, and on a majority
//!    ^                                                          │ committed
//!    └──── Batch::complete <── outcomes <── apply ── cursor <───┘
//! relocate ──> move in this node's log ──> waits until the cursor has passed it
//! ```
//!
//! Proposals of a follower wait in the same queue; consensus forwards their batches to the leader.
//!
//! A leader that checks the proposals of a batch notes its present term in the batch. Consensus writes the entry only
//! in this term. A proposal may require a term itself ([`Origin::term`]).
//!
//! Invariants: every proposal that was queued is answered, at the latest when its deadline passes; a node that knows no
//! leader queues no proposals; a proposal that requires a term is only in a batch of this term.

mod batch;
mod clock;
mod cursor;
mod moves;
mod open;
mod options;

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use thalweg_log::{Log, LogRecord, Purpose};
use thalweg_state::machine::Machine;
use thalweg_types::{
    Durability, Index, NodeId, SpaceId, SpaceTime, Term,
    command::{Framed, Outcome},
};

pub use self::{batch::Batch, clock::MemberClock, cursor::AppliedEntry, moves::ApplyingPause, options::MemberOptions};
use self::{
    batch::{fail_all, refuse},
    cursor::{Cursor, Moves, Parts},
};
use crate::{
    client::{Client, Origin},
    counts::{Counts, ReplicaStats},
    error::{OpenError, ProposeError},
    membership::NodeInfo,
    pending::Pending,
    queue::{DequeuedProposals, Lanes, Queue, WhenFull},
    replication::{EntryTimes, ReplicationStage},
    slot::{Committed, Proposal, Slot},
    solo::{Observer, Wake},
};

/// Time after a proposal's deadline at which the thread that is blocked on the proposal stops waiting, if consensus has
/// not answered by then.
const LATE: Duration = Duration::from_secs(2);

/// Leadership of a space (Raft group), as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// This node leads.
    Leader {
        /// Term in which this node leads.
        term: Term,
    },
    /// Another node leads, or none does.
    Follower {
        /// The leader; `None` if there is none, or this node does not know it.
        leader: Option<(NodeId, NodeInfo)>,
        /// Term that this node has reached.
        term: Term,
    },
}

impl Leadership {
    /// Returns true if this node leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        matches!(self, Self::Leader { .. })
    }

    /// Term that this node has reached.
    #[must_use]
    pub fn term(&self) -> Term {
        match self {
            Self::Leader { term } | Self::Follower { term, .. } => *term,
        }
    }

    /// Returns the term in which this node leads; `None` if it does not lead.
    #[must_use]
    pub fn led_term(&self) -> Option<Term> {
        match self {
            Self::Leader { term } => Some(*term),
            Self::Follower { .. } => None,
        }
    }

    /// Returns the error for a proposal that this node can neither accept nor forward.
    #[must_use]
    pub fn refusal(&self) -> ProposeError {
        match self {
            Self::Follower { leader: Some((node, info)), .. } => {
                ProposeError::NotLeader { leader: Some((*node, info.address.clone())) }
            }
            _ => ProposeError::NoLeader,
        }
    }
}

/// Wakes the consensus of a space (Raft group) when the member has work for it: batches of commands to take, or log
/// entries to purge (drop from the start of the log).
pub trait ProposalDriver: Send + Sync + fmt::Debug {
    /// Notifies consensus. Called from any thread, often; must be fast.
    fn notify(&self);
}

/// A space (Raft group) on a node that is one of its members. A clone is cheap and refers to the same space.
#[derive(Clone, Debug)]
pub struct Member {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    log: Log,
    machine: Arc<Machine>,
    clock: Arc<MemberClock>,
    options: MemberOptions,
    queue: Queue,
    /// Commands taken from the queue. Each element holds the commands of one future entry.
    cut: Mutex<VecDeque<Vec<Pending>>>,
    leadership: RwLock<Leadership>,
    /// True while this node leads: a copy of the leadership for fast checks.
    leads: AtomicBool,
    /// True while a leader is known, which may be this node.
    is_led: AtomicBool,
    driver: OnceLock<Arc<dyn ProposalDriver>>,
    observer: OnceLock<Arc<dyn Observer>>,
    cursor: Mutex<Cursor>,
    moves: Moves,
    /// Highest index up to which consensus may purge entries (drop them from the start of the log); 0 if there is none.
    purge: AtomicU64,
    failure: OnceLock<String>,
    /// Reason why this node, while it leads, refuses new data although its own disk has room: too many other members
    /// have none. `None` if it does not refuse data for this reason.
    no_room: Mutex<Option<String>>,
    is_closed: AtomicBool,
    /// Monotonic time in microseconds until which this node, while it leads, takes no commands.
    pause_ends_micros: AtomicU64,
    counts: Counts,
}

impl Member {
    /// Sets the driver that is notified when consensus has work. Only the first call has an effect.
    pub fn set_driver(&self, driver: Arc<dyn ProposalDriver>) {
        let _ = self.shared.driver.set(driver);
        self.shared.notify();
    }

    /// Sets the observer that is called for applied log entries, on the thread that applies them. Only the first call
    /// has an effect.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.shared.observer.set(observer);
    }

    /// Proposes an encoded command and blocks until a majority has it on disk and this node has applied it. For level
    /// `none` the call returns when the command is queued.
    ///
    /// Must not be called on the thread that runs consensus.
    pub fn propose(&self, command: &Framed, level: Durability, purpose: Purpose) -> Result<Committed, ProposeError> {
        self.propose_then(command, level, purpose, || None, Committed::take)
    }

    fn propose_queued(&self, mut pending: Pending) -> Result<Committed, ProposeError> {
        let shared = &*self.shared;
        if pending.level == Durability::None {
            return self.propose_unseen(pending, WhenFull::Wait, Wake::Now);
        }
        let slot = Slot::for_this_thread();
        pending.slot = Some(slot.clone());
        let gives_up = shared.clock.monotonic() + shared.options.max_wait + LATE;
        shared.push(pending, WhenFull::Wait, shared.options.max_wait)?;
        shared.notify();
        loop {
            if let Some(answer) = slot.take() {
                return answer;
            }
            let left = gives_up.saturating_sub(shared.clock.monotonic());
            if left.is_zero() {
                return Err(ProposeError::OutcomeUnknown { reason: "consensus does not answer".to_owned() });
            }
            thread::park_timeout(left);
        }
    }

    /// Proposes a command like [`propose`](Self::propose), and calls `then` with the reached level and the outcome.
    /// First calls `value_reads`, which returns the cost in steps (units of work) of the stored values that the command
    /// reads or replaces; see [`Origin::value_reads`].
    pub fn propose_then<T>(
        &self,
        command: &Framed,
        level: Durability,
        purpose: Purpose,
        value_reads: impl FnOnce() -> Option<u64>,
        then: impl FnOnce(Durability, Option<&mut Outcome>) -> T,
    ) -> Result<T, ProposeError> {
        let mut pending = Pending::new(command.clone(), level, purpose, None, None);
        pending.value_reads = value_reads();
        let mut committed = self.propose_queued(pending)?;
        Ok(then(committed.durability, committed.outcome.as_mut()))
    }

    /// Proposes an encoded command without blocking. See [`propose_async_for`](Self::propose_async_for).
    pub fn propose_async(
        &self,
        command: Framed,
        level: Durability,
        purpose: Purpose,
    ) -> Result<Proposal, ProposeError> {
        self.propose_async_for(None, command, level, purpose, Wake::Now)
    }

    /// Proposes a command of a client without blocking. The returned future resolves when a majority has the command on
    /// disk and this node has applied it; for level `none` it resolves immediately.
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
        let slot = Slot::for_task();
        let mut pending = Pending::new(command, level, purpose, None, origin.client);
        (pending.request, pending.value_reads, pending.term) = (origin.request, origin.value_reads, origin.term);
        if level == Durability::None {
            slot.complete(self.propose_unseen(pending, WhenFull::Refuse, wake));
            return Ok(Proposal(slot));
        }
        pending.slot = Some(slot.clone());
        let longest = self.shared.options.max_wait;
        self.shared.push(pending, WhenFull::Refuse, origin.max_wait.map_or(longest, |asked| asked.min(longest)))?;
        if wake == Wake::Now {
            self.shared.notify();
        }
        Ok(Proposal(slot))
    }

    fn propose_unseen(&self, pending: Pending, when_full: WhenFull, wake: Wake) -> Result<Committed, ProposeError> {
        // No proposer waits, so the request's deadline does not matter.
        self.shared.push(pending, when_full, self.shared.options.max_wait)?;
        if wake == Wake::Now {
            self.shared.notify();
        }
        Ok(Committed { durability: Durability::None, outcome: None })
    }

    /// Notifies consensus of commands that were proposed with [`Wake::Later`].
    pub fn commit_queued(&self) {
        if !self.shared.queue.is_empty() {
            self.shared.notify();
        }
    }

    /// Returns the current time of the space (Raft group).
    #[must_use]
    pub fn now(&self) -> SpaceTime {
        self.shared.clock.now()
    }

    /// Returns the clock of the space (Raft group). When the node's log receives entries, consensus sets the clock to
    /// their times.
    #[must_use]
    pub fn clock(&self) -> &Arc<MemberClock> {
        &self.shared.clock
    }

    /// Returns the node's log.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.shared.log
    }

    /// Returns the state of the space (Raft group) on this node.
    #[must_use]
    pub fn machine(&self) -> &Arc<Machine> {
        &self.shared.machine
    }

    /// Returns the id of this node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.options.node
    }

    /// Returns the id of the space (Raft group).
    #[must_use]
    pub fn space(&self) -> SpaceId {
        self.shared.options.space
    }

    /// Rejects all proposals from now on, because consensus has ended on this node. Later calls have no effect.
    pub fn end(&self, reason: &str) {
        self.shared.fail(reason);
    }

    /// Returns the reason why the space (Raft group) rejects proposals; `None` if both the state machine and consensus
    /// work.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.failure.get().cloned()
    }

    /// Returns the statistics of the space (Raft group).
    #[must_use]
    pub fn stats(&self) -> ReplicaStats {
        self.shared.counts.stats(&self.shared.queue)
    }

    /// Closes the space (Raft group): rejects new proposals and the queued ones. Consensus answers the batches that it
    /// has already taken.
    pub fn close(&self) {
        let shared = &*self.shared;
        shared.is_closed.store(true, Ordering::SeqCst);
        shared.queue.close();
        shared.fail_queued(&ProposeError::Closed);
        shared.moves.wake_all();
        shared.notify();
    }

    /// Returns true if this node leads.
    #[must_use]
    #[inline]
    pub fn leads(&self) -> bool {
        self.shared.leads.load(Ordering::Acquire)
    }

    /// Returns the leadership of the space (Raft group) as far as this node knows it.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.shared.leadership().clone()
    }

    /// Sets the leadership that consensus has reported. If no leader is known, queued proposals fail.
    pub fn set_leadership(&self, leadership: Leadership) {
        let shared = &*self.shared;
        let leads = leadership.leads();
        let is_led = leads || matches!(leadership, Leadership::Follower { leader: Some(_), .. });
        *shared.leadership.write().unwrap_or_else(PoisonError::into_inner) = leadership;
        shared.leads.store(leads, Ordering::SeqCst);
        shared.is_led.store(is_led, Ordering::SeqCst);
        // The backend may still have pauses from an earlier leadership, or from the time as a follower. They do not
        // count.
        let _ = shared.machine.backend().take_pause();
        shared.pause_ends_micros.store(0, Ordering::Relaxed);
        if !is_led {
            shared.fail_queued(&ProposeError::NoLeader);
        }
        shared.notify();
    }

    /// Returns the time for which this node, as the leader, must still take no commands, so that the background work of
    /// its state can catch up; zero if it may take commands. The state requires such pauses when entries are applied.
    /// But the thread of consensus must not sleep, so this function adds up the required pauses. Consensus, its only
    /// caller, takes no commands for this time. On a follower the result is zero: a follower waits only when its state
    /// has no room.
    #[must_use]
    pub fn pause_left(&self) -> Duration {
        let shared = &*self.shared;
        let owed = shared.machine.backend().take_pause();
        let mut ends = shared.pause_ends_micros.load(Ordering::Relaxed);
        if ends == 0 && owed.is_zero() || !self.leads() {
            return Duration::ZERO;
        }
        let now = micros(shared.clock.monotonic());
        if !owed.is_zero() {
            ends = ends.max(now) + micros(owed);
            shared.pause_ends_micros.store(ends, Ordering::Relaxed);
        }
        Duration::from_micros(ends.saturating_sub(now))
    }

    /// Makes this node refuse new data while it leads, because other members have no disk space left. `reason` becomes
    /// the text of the error for proposers; `None` ends the refusal.
    pub fn refuse_data(&self, reason: Option<String>) {
        *self.shared.no_room.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Checks that this node, as the leader, accepts new data. Returns an error if its own disk is nearly full, or if
    /// too many members have no disk space left.
    pub fn check_room(&self) -> Result<(), ProposeError> {
        self.shared.log.check_room()?;
        let reason = self.shared.no_room.lock().unwrap_or_else(PoisonError::into_inner).clone();
        reason.map_or(Ok(()), |reason| Err(ProposeError::NoRoom { reason }))
    }

    /// Returns the maximum span by which the clock of a space (Raft group) with one voter jumps forward to catch up
    /// with the wall clock; zero means no limit.
    #[must_use]
    pub fn max_clock_jump(&self) -> Duration {
        self.shared.options.max_clock_jump
    }

    /// Takes the commands of the next entry out of the queue. Refuses new data while this node leads and
    /// [`check_room`](Self::check_room) fails, and refuses commands that require another term. `None` if no command may
    /// be taken now.
    pub fn take_batch(&self) -> Option<Batch> {
        loop {
            let proposals = self.shared.next_cut()?;
            if let Some(batch) = self.admit(proposals) {
                return Some(batch);
            }
        }
    }

    /// Checks the proposals of a batch again, after consensus has refused it unwritten. Refuses proposals that the
    /// present leadership does not permit. Returns `None` if no proposal is left.
    #[must_use]
    pub fn readmit(&self, batch: Batch) -> Option<Batch> {
        self.admit(batch.into_proposals())
    }

    /// Makes a batch of the proposals that this node may write or forward under the present leadership. Refuses the
    /// others.
    fn admit(&self, proposals: Vec<Pending>) -> Option<Batch> {
        let leadership = self.leadership();
        let term = leadership.led_term();
        let taken_at = self.shared.clock.monotonic();
        let now = micros(taken_at);
        let proposals = refuse(proposals, |pending| pending.expires_micros <= now, || ProposeError::NoLeader);
        let is_of_other_term = |pending: &Pending| pending.term.is_some_and(|required| Some(required) != term);
        let mut proposals = refuse(proposals, is_of_other_term, || leadership.refusal());
        if term.is_some()
            && let Err(error) = self.check_room()
        {
            proposals = refuse(proposals, |pending| pending.purpose == Purpose::Data, || error);
        }
        (!proposals.is_empty()).then(|| Batch::new(proposals, term).taken(taken_at))
    }

    /// Answers all proposals of a batch like [`Batch::complete`]. `times` are the times of the batch's log entry if
    /// this node has written it as the leader; they are counted once for each command.
    pub fn complete(&self, batch: Batch, outcomes: Vec<Outcome>, steps: u64, times: Option<EntryTimes>) {
        let replication = &self.shared.counts.replication;
        let timed = times.zip(batch.taken_at());
        let timed = timed.map(|(times, taken)| (replication.applied(batch.queued_at(), taken, &times), times.applied));
        batch.complete(outcomes, Some(steps));
        if let Some((count, applied)) = timed {
            replication.record(ReplicationStage::Answer, self.monotonic().saturating_sub(applied), count);
        }
    }

    /// Counts the time of a stage of a replicated append, which consensus has measured with
    /// [`monotonic`](Self::monotonic).
    pub fn note_stage(&self, stage: ReplicationStage, time: Duration) {
        self.shared.counts.replication.record(stage, time, 1);
    }

    /// Returns the monotonic time of the node, with which the stages of a replicated write are timed.
    #[must_use]
    pub fn monotonic(&self) -> Duration {
        self.shared.clock.monotonic()
    }

    /// Returns the time until the last proposer of a batch stops waiting; zero afterwards.
    #[must_use]
    pub fn time_left(&self, batch: &Batch) -> Duration {
        batch.last_expiry().saturating_sub(self.shared.clock.monotonic())
    }

    /// Returns the time until the next waiting proposer of a batch gives up; `None` if [`expire`](Self::expire) has
    /// answered all proposers.
    #[must_use]
    pub fn time_to_expiry(&self, batch: &Batch) -> Option<Duration> {
        Some(batch.next_expiry()?.saturating_sub(self.shared.clock.monotonic()))
    }

    /// Answers the proposers of a batch whose deadlines have passed with an error. The others keep waiting.
    pub fn expire(&self, batch: &mut Batch, error: &ProposeError) {
        batch.expire(micros(self.shared.clock.monotonic()), error);
    }

    /// Returns the maximum time that a proposer waits for its answer.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        self.shared.options.max_wait
    }

    /// Returns true if commands wait to be taken.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        !self.shared.queue.is_empty() || !self.shared.cut().is_empty()
    }

    /// Returns the time until [`take_batch`](Self::take_batch) finds a command: zero if one may be taken now, and
    /// `None` if no command waits. The time is longer than zero if only expensive commands wait and the queue pauses
    /// for their addresses, so that other clients are served.
    #[must_use]
    pub fn time_to_next(&self) -> Option<Duration> {
        if self.shared.cut().is_empty() {
            self.shared.queue.time_to_next(self.shared.clock.monotonic())
        } else {
            Some(Duration::ZERO)
        }
    }

    /// Fails proposals that have waited in the queue until their deadline. Consensus calls this several times a second.
    pub fn expire_queued(&self) {
        let shared = &*self.shared;
        if !self.has_queued() {
            return;
        }
        let now = micros(shared.clock.monotonic());
        let mut late = shared.queue.remove(|pending| pending.expires_micros <= now);
        for entry in &mut *shared.cut() {
            let (expired, kept) = std::mem::take(entry).into_iter().partition(|pending| pending.expires_micros <= now);
            *entry = kept;
            let expired: Vec<Pending> = expired;
            late.extend(expired);
        }
        // None of these commands was written, so their clients can repeat them.
        fail_all(late, &ProposeError::Overloaded { queued_bytes: shared.queue.bytes_and_len().0 });
    }

    /// Applies a committed entry, which must be in this node's log, and all earlier records. `cached` is the entry's
    /// record if it is in memory. Appends the outcomes of the entry's commands to `outcomes`. Does nothing if the entry
    /// is already applied. If `is_awaited` is false, no client of this node waits for the outcomes, and the reads in
    /// Redis batches are skipped.
    ///
    /// An error is final: the space (Raft group) accepts no further proposals.
    pub fn apply(
        &self,
        index: Index,
        cached: Option<&LogRecord>,
        is_awaited: bool,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<AppliedEntry, OpenError> {
        let shared = &*self.shared;
        let mut cursor = shared.cursor();
        let mut each = |outcomes: &[Outcome]| shared.count(outcomes);
        let applied = cursor.apply(shared.parts(), index, cached, is_awaited, outcomes, &mut each);
        let wakes = cursor.waiting > 0;
        drop(cursor);
        if let Err(error) = &applied {
            shared.fail(&error.to_string());
        }
        if wakes {
            shared.moves.wake_all();
        }
        applied
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Shared {
    /// Queues a proposal if a leader is known. If no answer arrives within `max_wait`, the proposer gets an error.
    fn push(&self, mut pending: Pending, when_full: WhenFull, max_wait: Duration) -> Result<(), ProposeError> {
        self.check()?;
        if !self.is_led.load(Ordering::SeqCst) {
            return Err(ProposeError::NoLeader);
        }
        if let Some(required) = pending.term {
            let leadership = self.leadership();
            if leadership.led_term() != Some(required) {
                return Err(leadership.refusal());
            }
        }
        pending.queued_at = self.clock.monotonic();
        pending.expires_micros = micros(pending.queued_at + max_wait);
        self.queue.push(pending, when_full)?;
        // The leader may have been lost between the check and the push.
        if !self.is_led.load(Ordering::SeqCst) {
            self.fail_queued(&ProposeError::NoLeader);
        }
        Ok(())
    }

    fn notify(&self) {
        if let Some(driver) = self.driver.get() {
            driver.notify();
        }
    }

    fn check(&self) -> Result<(), ProposeError> {
        if let Some(reason) = self.failure.get() {
            return Err(ProposeError::State(reason.clone()));
        }
        if self.is_closed.load(Ordering::Relaxed) { Err(ProposeError::Closed) } else { Ok(()) }
    }

    fn fail(&self, reason: &str) -> ProposeError {
        let _ = self.failure.set(reason.to_owned());
        let error = ProposeError::State(reason.to_owned());
        self.fail_queued(&error);
        error
    }

    fn fail_queued(&self, error: &ProposeError) {
        let cut = std::mem::take(&mut *self.cut());
        fail_all(cut.into_iter().flatten(), error);
        fail_all(self.queue.remove(|_| true), error);
    }

    /// Returns the proposals that form the next log entry; `None` if the queue may give none now.
    fn next_cut(&self) -> Option<Vec<Pending>> {
        let mut cut = self.cut();
        if cut.is_empty() {
            if self.queue.is_empty() {
                return None;
            }
            let mut taken = DequeuedProposals::default();
            let now = self.clock.monotonic();
            self.queue.take_entries(&mut taken, self.machine.keeps_history(), Lanes::All, now);
            taken.begin_probable_pauses(now);
            let mut proposals = taken.proposals.into_iter();
            let mut begin = 0;
            for end in taken.ends {
                cut.push_back(proposals.by_ref().take(end - begin).collect());
                begin = end;
            }
        }
        cut.pop_front()
    }

    fn count(&self, outcomes: &[Outcome]) {
        self.counts.count(outcomes.len() as u64);
        if let Some(observer) = self.observer.get() {
            observer.applied(outcomes);
        }
    }

    fn parts(&self) -> Parts<'_> {
        Parts { log: &self.log, machine: &self.machine, space: self.options.space }
    }

    fn cut(&self) -> MutexGuard<'_, VecDeque<Vec<Pending>>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leadership(&self) -> std::sync::RwLockReadGuard<'_, Leadership> {
        self.leadership.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn cursor(&self) -> MutexGuard<'_, Cursor> {
        // A panic while the lock was held has also stopped the machine, so a poisoned lock can be used.
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
