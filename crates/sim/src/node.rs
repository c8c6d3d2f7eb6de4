//! A simulated node: the product's log on a simulated disk, openraft, and the state.
//!
//! Owns: starting a node from its disk, and the time that its fsyncs take. Does not own: when nodes start and crash
//! (`cluster`).

use std::{
    cell::{Cell, OnceCell, RefCell},
    io,
    ops::RangeInclusive,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use openraft::{
    Config, LogState, OptionalSend, SnapshotPolicy,
    storage::{IOFlushed, RaftLogStorage},
};
use thalweg_disk::SimDisk;
use thalweg_log::{Log, LogOptions};
use thalweg_raft::{Base, LogReader, LogStore, RaftEntry, RaftLogId, RaftVote, StoreOptions, SyncDriver, SyncQueue};
use thalweg_types::{Clock, SpaceTime};

use crate::{
    network::Network,
    plant::Plant,
    runtime::{ProcessId, SimRuntime, now, random, sleep, spawn},
    state::{ReplicaState, SimRaft},
    truth::Truth,
    types::{SPACE, Types},
};

/// Wall clock at the start of a simulation, in microseconds since the Unix epoch.
const EPOCH_MICROS: u64 = 1_800_000_000_000_000;
/// Time between two background steps of a log.
const STEP: Duration = Duration::from_millis(2);
/// Time after which a stuck fsync looks again.
const STUCK_STEP: Duration = Duration::from_millis(5);
/// Usual time of an fsync in microseconds.
const SYNC_MICROS: RangeInclusive<u64> = 80..=400;

/// Faults of a node's disk.
#[derive(Debug, Default)]
pub struct DiskFaults {
    /// True while no fsync returns.
    pub is_stuck: Cell<bool>,
    /// Additional time of each fsync in microseconds.
    pub slow_micros: Cell<u64>,
}

/// Clock of a node.
#[derive(Debug)]
pub struct NodeClock {
    /// Error of the wall clock in microseconds.
    pub error: Arc<AtomicI64>,
}

impl Clock for NodeClock {
    fn wall(&self) -> SpaceTime {
        SpaceTime((EPOCH_MICROS + now().as_micros() as u64).saturating_add_signed(self.error.load(Relaxed)))
    }

    fn monotonic(&self) -> Duration {
        now()
    }
}

/// Performs the fsyncs of a node, each after the time that it takes.
struct Syncs {
    node: ProcessId,
    queue: OnceCell<Arc<SyncQueue<SimRuntime>>>,
    is_running: Rc<Cell<bool>>,
    faults: Rc<DiskFaults>,
}

impl SyncDriver for Syncs {
    fn notify(&self) {
        if self.is_running.replace(true) {
            return;
        }
        let queue = Arc::clone(self.queue.get().expect("set before the first write"));
        let (is_running, faults) = (Rc::clone(&self.is_running), Rc::clone(&self.faults));
        spawn(self.node, async move {
            loop {
                let micros = random(*SYNC_MICROS.start()..SYNC_MICROS.end() + 1) + faults.slow_micros.get();
                sleep(Duration::from_micros(micros)).await;
                while faults.is_stuck.get() {
                    sleep(STUCK_STEP).await;
                }
                if queue.step() == 0 {
                    is_running.set(false);
                    return;
                }
            }
        });
    }
}

/// The log of a node, with a planted bug if there is one.
struct PlantedStore {
    store: LogStore<SimRuntime>,
    plant: Option<Plant>,
}

impl RaftLogStorage<Types> for PlantedStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        self.store.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.store.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> io::Result<()> {
        if self.plant == Some(Plant::ForgottenVote) {
            return Ok(());
        }
        self.store.save_vote(vote).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        if self.plant == Some(Plant::AckBeforeFsync) {
            self.store.append(entries, IOFlushed::noop()).await?;
            callback.io_completed(Ok(()));
            return Ok(());
        }
        self.store.append(entries, callback).await
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        self.store.truncate_after(last).await
    }

    async fn purge(&mut self, upto: RaftLogId) -> io::Result<()> {
        self.store.purge(upto).await
    }
}

/// Parts of a node that survive its crashes.
pub struct NodeParts {
    /// Id of the node, and number of its process.
    pub id: ProcessId,
    /// The node's disk; a power loss replaces it.
    pub disk: RefCell<SimDisk>,
    /// Faults of the disk.
    pub faults: Rc<DiskFaults>,
    /// Error of the node's wall clock in microseconds.
    pub clock_error: Arc<AtomicI64>,
    /// True while the node starts. A stopped process can be starting for long.
    pub is_starting: Cell<bool>,
    /// State of the present run; `None` while the node is down.
    pub state: RefCell<Option<ReplicaState>>,
}

impl NodeParts {
    /// Creates a node with an empty disk.
    #[must_use]
    pub fn new(id: ProcessId, seed: u64) -> Self {
        Self {
            id,
            disk: RefCell::new(SimDisk::new(seed)),
            faults: Rc::default(),
            clock_error: Arc::default(),
            is_starting: Cell::default(),
            state: RefCell::default(),
        }
    }

    /// Returns the node's wall clock.
    #[must_use]
    pub fn clock(&self) -> NodeClock {
        NodeClock { error: Arc::clone(&self.clock_error) }
    }

    /// Starts the node from its disk. Runs in the node's process.
    #[allow(clippy::arc_with_non_send_sync, reason = "the store takes any driver, and the simulation has one thread")]
    pub async fn start(&self, network: &Network, truth: &Truth, plant: Option<Plant>) -> io::Result<()> {
        let options = LogOptions {
            segment_bytes: 256 * 1024,
            reserve_bytes: 0,
            idle_mark_after: Duration::ZERO,
            ..LogOptions::default()
        };
        let disk = Arc::new(self.disk.borrow().clone());
        let (log, _) =
            Log::open_stepped(disk, "log", options, Arc::new(self.clock()), self.id).map_err(io::Error::other)?;
        let queue = Arc::new(SyncQueue::new(log.clone()));
        let syncs = Arc::new(Syncs {
            node: self.id,
            queue: OnceCell::new(),
            is_running: Rc::default(),
            faults: Rc::clone(&self.faults),
        });
        let _ = syncs.queue.set(Arc::clone(&queue));
        let store = LogStore::open(log.clone(), SPACE, &Base::default(), StoreOptions::default(), queue, syncs)?;
        let reader = store.reader();
        let stepped = log.clone();
        spawn(self.id, async move {
            loop {
                stepped.step();
                sleep(STEP).await;
            }
        });
        let state = ReplicaState::new(self.id, (log, reader), truth.clone(), plant, Arc::clone(&self.clock_error))?;
        let store = PlantedStore { store, plant };
        let raft = SimRaft::new(self.id, config(), network.links_of(self.id), store, state.clone()).await;
        network.connect(self.id, raft.map_err(|error| io::Error::other(error.to_string()))?);
        *self.state.borrow_mut() = Some(state);
        Ok(())
    }
}

/// Timing of the consensus: the defaults of the product's design.
fn config() -> Arc<Config> {
    let config = Config {
        heartbeat_interval: 80,
        election_timeout_min: 250,
        election_timeout_max: 400,
        enable_pre_vote: Some(true),
        broadcast_submitted_on_append: Some(true),
        backoff: "50ms 100ms ..200ms".to_owned(),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_leader_restore: Some(false),
        ..Config::default()
    };
    Arc::new(config.validate().expect("the settings are valid"))
}
