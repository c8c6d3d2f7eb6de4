//! One node's directory on a simulated disk, opened by `Solo` or by openraft.

use std::{sync::Arc, time::Duration};

use openraft::{Config, ServerState, SnapshotPolicy, async_runtime::WatchReceiver};
use thalweg_disk::SimDisk;
use thalweg_log::{Log, LogOptions, Purpose};
use thalweg_raft::{Base, StoreOptions, SyncQueue, SyncThread};
use thalweg_replica::{OpenError, Solo, SoloOptions, SpaceClock, replay};
use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::{
    Backend, BarrierFailed, LogBarrier,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Durability, ManualClock, NodeId, SpaceId, SpaceTime,
    command::{Framed, Outcome},
};

use crate::{
    applier::Applier,
    contents::Contents,
    network::Router,
    types::{Commands, Raft, RaftLogId, Store},
};

/// Bound of every wait; no test needs a tenth of it.
pub const PATIENCE: Duration = Duration::from_secs(60);

struct Barrier(Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: thalweg_types::Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

/// Log and state of a node. The state has applied only what its checkpoint contains.
pub struct Parts {
    pub log: Log,
    pub machine: Arc<Machine>,
    pub clock: Arc<ManualClock>,
}

impl Parts {
    pub fn open(disk: &SimDisk) -> Self {
        let clock = Arc::new(ManualClock::at(SpaceTime(1_000_000)));
        let options = LogOptions {
            segment_bytes: 256 * 1024,
            reserve_bytes: 0,
            history_bytes: 0,
            history_age: Duration::ZERO,
            ..LogOptions::default()
        };
        let (log, _) = Log::open(Arc::new(disk.clone()), "log", options, clock.clone(), 3).unwrap();
        let barrier = Arc::new(Barrier(log.clone()));
        let backend = MemoryBackend::open(Arc::new(disk.clone()), MemoryOptions::default(), barrier).unwrap();
        let machine = Arc::new(Machine::open(Arc::new(backend), MachineOptions::default()).unwrap());
        Self { log, machine, clock }
    }

    pub fn contents(&self) -> Contents {
        Contents::read(&self.machine, &self.log)
    }

    pub fn backend(&self) -> &Arc<dyn Backend> {
        self.machine.backend()
    }
}

/// A single node without peers.
pub struct SoloNode {
    pub parts: Parts,
    pub solo: Solo,
}

impl SoloNode {
    pub fn try_open(disk: &SimDisk, node: u64) -> Result<Self, OpenError> {
        let parts = Parts::open(disk);
        replay(&parts.log, &parts.machine, SpaceId::ZERO, &mut |_| {})?;
        let options = SoloOptions { space: SpaceId::ZERO, node: NodeId(node), max_queue_bytes: 1 << 20 };
        let solo = Solo::open(parts.log.clone(), parts.machine.clone(), parts.clock.clone(), &options)?;
        Ok(Self { parts, solo })
    }

    pub fn open(disk: &SimDisk, node: u64) -> Self {
        Self::try_open(disk, node).unwrap()
    }

    pub fn commit(&self, command: &Framed) -> Outcome {
        self.parts.clock.advance(Duration::from_millis(1));
        self.solo.propose(command, Durability::Disk, Purpose::Data).unwrap().outcome.expect("known at this level")
    }

    pub fn close(self) {
        self.solo.close();
        self.parts.log.close().unwrap();
    }
}

/// A member of a space.
pub struct RaftNode {
    pub parts: Parts,
    pub raft: Raft,
    clock: SpaceClock,
}

impl RaftNode {
    /// Starts the node, which determines its own role.
    pub async fn open(disk: &SimDisk, node: u64, router: &Router) -> Self {
        let parts = Parts::open(disk);
        let clock = SpaceClock::anchor(parts.clock.clone(), parts.machine.applied().time);
        let queue = Arc::new(SyncQueue::new(parts.log.clone()));
        let driver = Arc::new(SyncThread::start(Arc::clone(&queue)).unwrap());
        let base = Base::of(&parts.machine).unwrap();
        let options = StoreOptions::default();
        let store = Store::open(parts.log.clone(), SpaceId::ZERO, &base, options, queue, driver).unwrap();
        let applier = Applier::new(parts.machine.clone(), parts.log.clone(), store.reader());
        let config = Config {
            heartbeat_interval: 50,
            election_timeout_min: 200,
            election_timeout_max: 400,
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            ..Config::default()
        };
        let config = Arc::new(config.validate().unwrap());
        let raft = Raft::new(node, config, router.clone(), store, applier).await.unwrap();
        router.connect(node, raft.clone());
        Self { parts, raft, clock }
    }

    /// Starts the node, which must become leader without help and apply its whole log.
    pub async fn open_as_leader(disk: &SimDisk, node: u64, router: &Router) -> Self {
        let opened = Self::open(disk, node, router).await;
        let wait = opened.raft.wait(Some(PATIENCE));
        wait.state(ServerState::Leader, "leads without an initialisation").await.unwrap();
        let last = opened.raft.metrics().borrow_watched().last_log_index;
        wait.applied_index_at_least(last, "the whole log").await.unwrap();
        opened
    }

    pub async fn commit(&self, command: &Framed) -> (RaftLogId, Outcome) {
        self.parts.clock.advance(Duration::from_millis(1));
        let commands = Commands { time: self.clock.now(), bytes: command.bytes().to_vec().into() };
        let mut response = self.raft.client_write(commands).await.unwrap();
        assert_eq!(response.data.outcomes.len(), 1);
        (response.log_id, response.data.outcomes.remove(0))
    }

    pub async fn wait_applied(&self, index: u64) {
        self.raft.wait(Some(PATIENCE)).applied_index(Some(index), "caught up").await.unwrap();
    }

    /// Stops the node. Returns its disk as the next process sees it, because openraft's tasks can hold the
    /// old one a little longer.
    pub async fn close(self, disk: &SimDisk) -> SimDisk {
        self.raft.shutdown().await.unwrap();
        self.parts.log.close().unwrap();
        disk.kill_process()
    }
}
