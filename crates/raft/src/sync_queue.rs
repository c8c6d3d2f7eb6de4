//! Syncs of the node's log that all spaces (Raft groups) of the node share.
//!
//! Owns: the callbacks that wait for an fsync, and their completion. Does not own: the thread that performs the fsync
//! ([`SyncThread`](crate::SyncThread), or the scheduler of a simulation).
//!
//! Bound: at most [`MAX_PENDING`] callbacks wait for the next fsync, and as many for the running one. At the bound, an
//! append waits before it writes. After a failed fsync, all waiting and later callbacks get the error.
//!
//! No client waits for the fsyncs of a follower that is far behind. Without pauses, its fsyncs would keep the disk busy
//! all the time. So the driver of such a follower pauses after each fsync; see [`SyncQueue::takes_rest`].

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use openraft::{
    Instant,
    async_runtime::AsyncRuntime,
    storage::IOFlushed,
    type_config::{TypeConfigExt, alias::InstantOf},
};
use thalweg_log::Log;
use thalweg_replica::{Member, ReplicationStage};
use thalweg_types::Lsn;

use crate::{error::StoreError, types::Types};

/// Maximum number of callbacks that wait for the next fsync.
pub(crate) const MAX_PENDING: usize = 16 * 1024;
/// Number of pauses that the driver makes, one after each fsync, once an append from the leader shows that this node is
/// far behind. The number is limited because a node that becomes the leader gets no further append that could end the
/// pauses.
const RESTS: u32 = 16;

/// Driver that calls [`SyncQueue::step`] soon after a notification: a thread in a server, the scheduler in a
/// simulation.
pub trait SyncDriver {
    /// Notifies the driver that callbacks wait for an fsync.
    fn notify(&self);
}

/// Queue of callbacks that wait until an fsync of the node's log has made their writes durable.
pub struct SyncQueue<Rt: AsyncRuntime> {
    log: Log,
    state: Mutex<State<Rt>>,
    /// Number of pauses left for the driver, which makes one after each fsync while this is above 0.
    rests: AtomicU32,
}

/// A callback, with the LSN up to which the log must be durable.
struct Pending<Rt: AsyncRuntime> {
    lsn: Lsn,
    done: IOFlushed<Types<Rt>>,
    timing: Option<SyncTiming>,
}

/// Start time of an append's wait for its fsync, and the metrics that count the wait.
pub(crate) struct SyncTiming {
    /// Replica that wrote the append. Its metrics count the wait for the fsync.
    pub member: Member,
    pub stage: ReplicationStage,
    /// Monotonic time at which the append was written.
    pub since: Duration,
}

struct State<Rt: AsyncRuntime> {
    pending: Vec<Pending<Rt>>,
    /// Appends that wait before they write, until fewer callbacks are pending; at most one for each Raft group of the
    /// node.
    waiting: Vec<IOFlushed<Types<Rt>>>,
    failed: Option<StoreError>,
    /// Size in bytes of the entries whose callbacks are pending. `pending_since` is the time at which the oldest was
    /// queued.
    pending_bytes: u64,
    pending_since: Option<InstantOf<Types<Rt>>>,
    /// Size in bytes of the entries whose fsync is running. `running_since` is the time at which the oldest was queued.
    running_bytes: u64,
    running_since: Option<InstantOf<Types<Rt>>>,
}

/// Amount and age of the writes to a node's log that are not durable yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsynced {
    /// Size in bytes of the entries that are not durable yet.
    pub bytes: u64,
    /// Time since the oldest write that is not durable; zero if there is none.
    pub age: Duration,
}

impl<Rt: AsyncRuntime> fmt::Debug for SyncQueue<Rt> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncQueue").field("log", &self.log).finish_non_exhaustive()
    }
}

impl<Rt: AsyncRuntime> SyncQueue<Rt> {
    /// Creates the queue of callbacks that wait for fsyncs of `log`.
    #[must_use]
    pub fn new(log: Log) -> Self {
        let state = State {
            pending: Vec::new(),
            waiting: Vec::new(),
            failed: None,
            pending_bytes: 0,
            pending_since: None,
            running_bytes: 0,
            running_since: None,
        };
        Self { log, state: Mutex::new(state), rests: AtomicU32::new(0) }
    }

    /// Returns the amount and the age of written data that is not durable yet.
    #[must_use]
    pub fn unsynced(&self) -> Unsynced {
        let state = self.state();
        let since = state.running_since.or(state.pending_since);
        let age = since.map_or(Duration::ZERO, |since| since.elapsed());
        Unsynced { bytes: state.pending_bytes + state.running_bytes, age }
    }

    fn state(&self) -> MutexGuard<'_, State<Rt>> {
        // The code under this lock does not panic while it changes the state. So a poisoned lock can be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes, after a leader's append, if this node is far behind its leader.
    pub fn note_far_behind(&self, is_far_behind: bool) {
        self.rests.store(if is_far_behind { RESTS } else { 0 }, Relaxed);
    }

    /// Returns true if the driver should pause before its next fsync, because this node is far behind its leader. The
    /// driver calls this after each fsync.
    #[must_use]
    pub fn takes_rest(&self) -> bool {
        self.rests.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Queues the callback of a write with `bytes` bytes of entries. The callback is completed once all records below
    /// `lsn` are durable, or with the error of the fsync. If `timing` is given and the fsync succeeds, the length of
    /// the wait is counted.
    pub(crate) fn push(&self, lsn: Lsn, bytes: u64, done: IOFlushed<Types<Rt>>, timing: Option<SyncTiming>) {
        let mut state = self.state();
        if let Some(error) = state.failed.clone() {
            drop(state);
            return done.io_completed(Err(error.into()));
        }
        state.pending.push(Pending { lsn, done, timing });
        state.pending_bytes += bytes;
        state.pending_since.get_or_insert_with(Types::<Rt>::now);
    }

    /// Waits until fewer than [`MAX_PENDING`] callbacks wait for the next fsync.
    pub(crate) async fn room(&self) -> std::io::Result<()> {
        let (sender, receiver) = Types::<Rt>::oneshot();
        {
            let mut state = self.state();
            if let Some(error) = state.failed.clone() {
                return Err(error.into());
            }
            if state.pending.len() < MAX_PENDING {
                return Ok(());
            }
            state.waiting.push(IOFlushed::signal(sender));
        }
        receiver.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// Performs one fsync for all callbacks that wait, and completes them. Returns their number. Blocks for the fsync.
    /// Does nothing if no callback waits.
    pub fn step(&self) -> usize {
        let mut state = self.state();
        let pending = std::mem::take(&mut state.pending);
        let waiting = std::mem::take(&mut state.waiting);
        state.running_bytes = std::mem::take(&mut state.pending_bytes);
        state.running_since = state.pending_since.take();
        drop(state);
        waiting.into_iter().for_each(|waiter| waiter.io_completed(Ok(())));
        let Some(through) = pending.iter().map(|one| one.lsn).max() else { return 0 };
        let synced = self.log.sync_through(through).map_err(StoreError::from);
        match &synced {
            Ok(()) => note_times(&pending),
            Err(error) => self.fail(error),
        }
        {
            let mut state = self.state();
            (state.running_bytes, state.running_since) = (0, None);
        }
        let completed = pending.len();
        for Pending { done, .. } in pending {
            done.io_completed(synced.clone().map_err(Into::into));
        }
        completed
    }

    /// Completes all waiting and all later callbacks with an error. Called after the last fsync.
    pub fn close(&self) {
        self.fail(&StoreError::Closed);
    }

    fn fail(&self, error: &StoreError) {
        let mut state = self.state();
        state.failed.get_or_insert_with(|| error.clone());
        let pending = std::mem::take(&mut state.pending);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        let callbacks = pending.into_iter().map(|one| one.done).chain(waiting);
        callbacks.for_each(|done| done.io_completed(Err(error.clone().into())));
    }
}

/// Counts the waits of the appends that an fsync has just made durable. The clock is read once for all of them.
fn note_times<Rt: AsyncRuntime>(pending: &[Pending<Rt>]) {
    let mut timings = pending.iter().filter_map(|one| one.timing.as_ref()).peekable();
    let Some(now) = timings.peek().map(|timing| timing.member.monotonic()) else { return };
    for SyncTiming { member, stage, since } in timings {
        member.note_stage(*stage, now.saturating_sub(*since));
    }
}
