//! Group commit: one caller fsyncs the log for all callers that wait for durability. This caller has the sync role, and
//! is called the leader.
//!
//! Owns: the durable watermark, the callers that wait for it, and the rules by which one leader hands the role to the
//! next. Does not own: the written data.
//!
//! A caller that needs a sync takes the role if it is free. Callers that arrive while a sync runs have already written
//! their batches, and wait for the *next* sync; the first of them becomes its leader. When a sync ends, the next leader
//! is woken first, so that the disk is busy again while the other callers are notified. So a durable append waits for
//! the sync in progress and its own, never for a third. No sync runs without a waiting caller. In the diagram, `e` is
//! the number of a sync.
//!
//! ```text
//! Free ── first caller ──> Running(e) ── ends, a leader waits ──> HandedOver(e+1) ── it wakes ──> Running(e+1)
//!   ^                         │
//!   └───────── ends, none ────┘
//! ```

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering},
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use thalweg_types::Lsn;

use crate::{errors::AppendError, gates::RolePhase, log::Log, segment::Segment, shared::Shared, writer_role::Core};

/// Number of syncs between two checks of the disk's free space.
const SYNCS_PER_LOOK: u64 = 64;

fn gate_index(number: u64) -> usize {
    (number & 1) as usize
}

impl Shared {
    /// Blocks until all records below `lsn` are durable. The caller leads a sync itself, unless another caller is about
    /// to lead one.
    pub(crate) fn commit(&self, core: MutexGuard<'_, Core>, lsn: Lsn) -> Result<(), AppendError> {
        if self.durable() >= lsn {
            return Ok(());
        }
        self.sync_files(core, lsn)
    }

    /// Blocks until all records below `lsn` are durable, like [`commit`](Self::commit), but waits for a sync even if
    /// these records are durable already. Needed to make footers and batches without records durable, because these
    /// have no LSN.
    pub(crate) fn sync_files(&self, mut core: MutexGuard<'_, Core>, lsn: Lsn) -> Result<(), AppendError> {
        self.check_not_failed()?;
        let number = match core.role.phase {
            RolePhase::Free => return self.lead(core, lsn),
            RolePhase::HandedOver(number) => number,
            RolePhase::Running(number, reach) if lsn <= reach => number,
            RolePhase::Running(number, _) if core.role.has_successor => number + 1,
            RolePhase::Running(number, _) => {
                core.role.has_successor = true;
                drop(core);
                self.gates.waiting.fetch_add(1, Ordering::Relaxed);
                self.gates.leader.wait(number + 1);
                self.gates.waiting.fetch_sub(1, Ordering::Relaxed);
                self.check_not_failed()?;
                let core = self.core();
                return self.lead(core, lsn);
            }
        };
        core.role.followers[gate_index(number)] += 1;
        drop(core);
        self.gates.waiting.fetch_add(1, Ordering::Relaxed);
        self.gates.followers[gate_index(number)].wait(number);
        self.gates.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.durable() >= lsn { Ok(()) } else { self.check_not_failed() }
    }

    /// Runs one fsync for all waiting callers as their leader, then hands over the sync role to the next
    /// leader.
    fn lead<'a>(&'a self, mut core: MutexGuard<'a, Core>, lsn: Lsn) -> Result<(), AppendError> {
        let number = core.role.last + 1;
        if !self.options.commit_delay.is_zero() {
            core.role.phase = RolePhase::HandedOver(number);
            drop(core);
            std::thread::sleep(self.options.commit_delay);
            core = self.core();
        }
        let reach = core.next;
        core.role.last = number;
        core.role.phase = RolePhase::Running(number, reach);
        core.interval_since = None;
        let batches = std::mem::take(&mut core.batches);
        core.counters.batches_per_sync_max = core.counters.batches_per_sync_max.max(batches);
        let sealed = core.unsynced.clone();
        let active = Arc::clone(&core.active);
        drop(core);

        let began = self.clock.monotonic();
        let outcome = sealed.iter().chain([&active]).try_for_each(sync_segment);
        let took = self.clock.monotonic().saturating_sub(began);
        self.segment_pool.pacer.count_sync(took);

        let mut core = self.core();
        if let Err(reason) = outcome {
            return Err(self.fail(core, reason));
        }
        self.check_not_failed()?;
        core.synced_at = began + took;
        core.unsynced.drain(..sealed.len());
        core.counters.syncs += 1;
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        core.counters.sync_micros += micros;
        core.counters.sync_latency.record(micros);
        core.counters.batches_per_sync.record(batches);
        self.durable.store(reach.0, Ordering::Release);
        debug_assert!(reach >= lsn);
        let handed_over = self.hand_over_role(&mut core, number);
        let followers = std::mem::take(&mut core.role.followers[gate_index(number)]);
        let mut mark_at = None;
        if !handed_over && core.next == reach {
            let after = self.options.idle_mark_after;
            if after.is_zero() {
                let Some(marked) = self.mark_idle(core) else { return Ok(()) };
                core = marked;
            } else if !std::mem::replace(&mut core.mark_due, true) {
                mark_at = Some(core.synced_at + after);
            }
        }
        let look = core.counters.syncs.is_multiple_of(SYNCS_PER_LOOK);
        drop(core);
        if handed_over {
            self.gates.leader.open(number + 1);
        }
        if followers > 0 {
            self.gates.followers[gate_index(number)].open(number);
        }
        self.wake_durable(reach);
        if let Some(at) = mark_at {
            self.syncer.mark_at(at);
        }
        if look {
            self.segment_pool.check_free_space();
        }
        Ok(())
    }

    /// Writes an idle marker (a batch without records, which attests that all records are durable), unless a sync is in
    /// progress. If the write fails, returns `None` and fails the log: it accepts no more writes. The records for which
    /// the caller has waited are durable even then.
    pub(crate) fn mark_idle<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> Option<MutexGuard<'a, Core>> {
        if core.role.phase == RolePhase::Free && self.durable() == core.next {
            core.mark_idle();
        }
        if !core.torn {
            return Some(core);
        }
        let reason = format!("write of a marker to {}", core.active.path);
        self.fail(core, reason);
        None
    }

    fn hand_over_role(&self, core: &mut Core, number: u64) -> bool {
        let handed_over = std::mem::take(&mut core.role.has_successor);
        core.role.phase = if handed_over { RolePhase::HandedOver(number + 1) } else { RolePhase::Free };
        handed_over
    }

    /// Fails the log: it accepts no further writes, and all waiting callers are notified.
    #[cold]
    pub(crate) fn fail(&self, core: MutexGuard<'_, Core>, reason: String) -> AppendError {
        // The first reason is kept.
        let reason = self.failure.get_or_init(|| reason).clone();
        self.failed.store(true, Ordering::Release);
        drop(core);
        self.gates.leader.open(u64::MAX);
        for gate in &self.gates.followers {
            gate.open(u64::MAX);
        }
        self.wake_durable(Lsn::MAX);
        AppendError::Failed { reason }
    }

    /// Wakes the futures that wait for the durability of records, if all of these records are below `reach`.
    pub(crate) fn wake_durable(&self, reach: Lsn) {
        let mut wakers = self.gates.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if wakers.waiting.is_empty() {
            return;
        }
        let later = wakers.waiting.split_off(&(reach, u64::MAX));
        let due = std::mem::replace(&mut wakers.waiting, later);
        drop(wakers);
        due.into_values().for_each(Waker::wake);
    }
}

impl Log {
    /// Blocks until a sync by another caller has made all records below `lsn` durable. Does not start a sync.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), AppendError> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut wait = DurableWait::new(Arc::clone(self.shared()), lsn);
        loop {
            if let Poll::Ready(result) = Pin::new(&mut wait).poll(&mut context) {
                return result;
            }
            std::thread::park();
        }
    }

    /// Resolves when a sync by another caller has made all records below `lsn` durable.
    pub fn durable_at(&self, lsn: Lsn) -> impl Future<Output = Result<(), AppendError>> + Send + 'static {
        DurableWait::new(Arc::clone(self.shared()), lsn)
    }
}

fn sync_segment(segment: &Arc<Segment>) -> Result<(), String> {
    segment.file.sync_data().map_err(|error| format!("fsync of {}: {error}", segment.path))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A future that resolves when all records below an LSN are durable, or the log has failed.
#[derive(Debug)]
struct DurableWait {
    shared: Arc<Shared>,
    lsn: Lsn,
    /// Key under which the waker of this future is registered; `None` while no waker is registered.
    id: Option<u64>,
}

impl DurableWait {
    fn new(shared: Arc<Shared>, lsn: Lsn) -> Self {
        Self { shared, lsn, id: None }
    }

    fn outcome(&self) -> Option<Result<(), AppendError>> {
        if self.shared.durable() >= self.lsn {
            return Some(Ok(()));
        }
        self.shared.check_writable().err().map(Err)
    }

    fn register(&mut self, waker: &Waker) {
        let mut wakers = self.shared.gates.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = *self.id.get_or_insert_with(|| {
            wakers.last_id += 1;
            wakers.last_id
        });
        wakers.waiting.insert((self.lsn, id), waker.clone());
    }
}

impl Future for DurableWait {
    type Output = Result<(), AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        self.register(context.waker());
        // The watermark may have moved before the waker was registered.
        self.outcome().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for DurableWait {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut wakers = self.shared.gates.wakers.lock().unwrap_or_else(PoisonError::into_inner);
            wakers.waiting.remove(&(self.lsn, id));
        }
    }
}
