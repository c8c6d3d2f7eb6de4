//! Helpers: a space's log on a disk, entries with verifiable content, a seeded random generator.

use std::{
    cell::Cell,
    future::Future,
    io,
    sync::{Arc, OnceLock},
};

use futures_util::FutureExt;
use openraft::{
    EntryPayload, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
    vote::{RaftLeaderId, leader_id_std::CommittedLeaderId},
};
use openraft_rt_tokio::TokioRuntime;
use thalweg_disk::{Disk, SimDisk};
use thalweg_log::{Log, LogOptions};
use thalweg_raft::{
    Base, Commands, LogStore, RaftEntry, RaftLogId, RaftVote, StoreError, StoreOptions, SyncDriver, SyncQueue,
};
use thalweg_types::{ManualClock, SpaceId, SpaceTime};

pub type Types = thalweg_raft::Types<TokioRuntime>;
pub type Store = LogStore<TokioRuntime>;
pub type Queue = SyncQueue<TokioRuntime>;
pub type Done =
    <<TokioRuntime as openraft::async_runtime::AsyncRuntime>::Oneshot as openraft::async_runtime::Oneshot>::Receiver<
        io::Result<()>,
    >;

pub const SPACE: SpaceId = SpaceId(3);

pub fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 64 * 1024,
        reserve_bytes: 0,
        history_bytes: 0,
        idle_mark_after: std::time::Duration::ZERO,
        ..LogOptions::default()
    }
}

pub fn open_log(disk: Arc<dyn Disk>) -> Result<Log, thalweg_log::OpenError> {
    Ok(Log::open(disk, "log", options(), Arc::new(ManualClock::default()), 7)?.0)
}

/// Driver that syncs when it is notified, or when the test requests it.
#[derive(Default)]
pub struct Stepper {
    queue: OnceLock<Arc<Queue>>,
    is_manual: Cell<bool>,
}

impl Stepper {
    pub fn step(&self) -> usize {
        self.queue.get().unwrap().step()
    }
}

impl SyncDriver for Stepper {
    fn notify(&self) {
        if !self.is_manual.get() {
            self.step();
        }
    }
}

/// A space's log whose syncs the test performs.
pub struct SpaceLog {
    pub log: Log,
    pub store: Store,
    pub stepper: Arc<Stepper>,
}

impl SpaceLog {
    pub fn try_open(disk: &SimDisk, base: &Base, options: StoreOptions) -> Option<Self> {
        Self::on(open_log(Arc::new(disk.clone())).ok()?, base, options).ok()
    }

    pub fn open(disk: &SimDisk) -> Self {
        Self::try_open(disk, &Base::default(), StoreOptions::default()).unwrap()
    }

    #[allow(clippy::arc_with_non_send_sync, reason = "the store takes any driver")]
    pub fn on(log: Log, base: &Base, options: StoreOptions) -> Result<Self, StoreError> {
        let queue = Arc::new(Queue::new(log.clone()));
        let stepper = Arc::new(Stepper::default());
        let _ = stepper.queue.set(Arc::clone(&queue));
        let driver: Arc<dyn SyncDriver> = stepper.clone();
        let store = Store::open(log.clone(), SPACE, base, options, queue, driver)?;
        Ok(Self { log, store, stepper })
    }

    /// Leaves callbacks waiting until [`Stepper::step`].
    pub fn hold_syncs(&self, hold: bool) {
        self.stepper.is_manual.set(hold);
    }

    pub async fn append(&mut self, entries: Vec<RaftEntry>) -> io::Result<Done> {
        let (sender, receiver) = Types::oneshot();
        self.store.append(entries, IOFlushed::signal(sender)).await?;
        Ok(receiver)
    }

    pub async fn vote(&mut self) -> Option<RaftVote> {
        RaftLogReader::<Types>::read_vote(&mut self.store.reader()).await.unwrap()
    }

    pub async fn entries(&mut self, range: std::ops::Range<u64>) -> Vec<RaftEntry> {
        RaftLogReader::<Types>::try_get_log_entries(&mut self.store.reader(), range).await.unwrap()
    }
}

/// Returns the result that a callback has reported; `None` if it has not been called.
pub fn outcome(done: &mut Done) -> Option<io::Result<()>> {
    done.now_or_never().map(|sent| sent.expect("no callback is dropped"))
}

pub fn log_id(term: u64, index: u64) -> RaftLogId {
    RaftLogId { leader_id: CommittedLeaderId::new(term), index }
}

pub fn vote(term: u64, node: u64, committed: bool) -> RaftVote {
    RaftVote { leader_id: RaftLeaderId::new(term, node), committed }
}

/// An entry whose bytes are derived from its term and index.
pub fn entry(term: u64, index: u64, len: usize) -> RaftEntry {
    let mut rng = Rng((term * 1_000_003 + index) * 2 + 1);
    let bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
    let commands = Commands { time: SpaceTime(1000 * term + index), bytes: bytes.into() };
    RaftEntry { log_id: log_id(term, index), payload: EntryPayload::Normal(commands) }
}

pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

/// Seeded random numbers (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// A write of openraft to a space's log.
#[derive(Clone, Debug)]
pub enum Op {
    Append(Vec<RaftEntry>),
    Truncate(u64),
    Purge(RaftLogId),
    Vote(RaftVote),
}

/// Content of a space's log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    pub entries: Vec<RaftEntry>,
    pub purged: Option<RaftLogId>,
    pub vote: Option<RaftVote>,
}

impl Content {
    pub fn after(ops: &[Op]) -> Self {
        let mut content = Self::default();
        ops.iter().for_each(|op| content.apply(op));
        content
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Append(entries) => self.entries.extend(entries.iter().cloned()),
            Op::Truncate(from) => self.entries.retain(|entry| entry.log_id.index < *from),
            Op::Purge(id) => {
                self.entries.retain(|entry| entry.log_id.index > id.index);
                self.purged = Some(*id);
            }
            Op::Vote(vote) => self.vote = Some(*vote),
        }
    }

    pub fn last(&self) -> Option<RaftLogId> {
        self.entries.last().map(|entry| entry.log_id).or(self.purged)
    }

    pub async fn of(space_log: &mut SpaceLog) -> Self {
        let state = space_log.store.get_log_state().await.unwrap();
        let content = Self {
            entries: space_log.entries(0..u64::MAX).await,
            purged: state.last_purged_log_id,
            vote: space_log.vote().await,
        };
        assert_eq!(state.last_log_id, content.last());
        content
    }
}

impl SpaceLog {
    /// Performs a write. Returns the callback of an append. When this function returns from another kind of write, the
    /// write is durable, or need not be durable.
    pub async fn perform(&mut self, op: &Op) -> io::Result<Option<Done>> {
        match op {
            Op::Append(entries) => return self.append(entries.clone()).await.map(Some),
            Op::Truncate(from) => {
                let last = from.checked_sub(1);
                let last = match last {
                    Some(index) => self.entries(index..index + 1).await.first().map(|entry| entry.log_id),
                    None => None,
                };
                let state = self.store.get_log_state().await?;
                self.store.truncate_after(last.or(state.last_purged_log_id)).await?;
            }
            Op::Purge(id) => self.store.purge(*id).await?,
            Op::Vote(vote) => self.store.save_vote(vote).await?,
        }
        Ok(None)
    }
}
