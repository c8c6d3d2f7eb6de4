//! A simulated node: the product's log on a simulated disk, state, member and consensus.
//!
//! Owns: starting a node from its disk, and the time that its fsyncs take. Does not own: when nodes start and crash
//! (`cluster`).

use std::{
    cell::{Cell, OnceCell, RefCell},
    io,
    ops::RangeInclusive,
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use openraft::{
    EntryPayload, LogState, OptionalSend,
    storage::{IOFlushed, RaftLogStorage},
};
use thalweg_disk::{Disk, SimDisk};
use thalweg_log::Log;
use thalweg_raft::{
    ConsensusOptions, ConsensusParts, LogReader, LogStore, RaftEntry, RaftLogId, RaftVote, SyncDriver, SyncQueue,
};
use thalweg_replica::{Member, MemberOptions};
use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::Backend;
use thalweg_types::{Clock, NodeId, SpaceTime};

use crate::{
    backends::{BackendKind, LogBlobs, NodeOptions, Tables, discard, flip_in, open, persist},
    network::Network,
    plant::Plant,
    running::{Reports, Running},
    runtime::{ProcessId, SimRuntime, now, random, random_duration, sleep, spawn},
    truth::Truth,
    types::{SPACE, SimConsensus, Types},
};

/// Wall clock at the start of a simulation, in microseconds since the Unix epoch.
const EPOCH_MICROS: u64 = 1_800_000_000_000_000;
/// Time between two background steps of a log.
const STEP: Duration = Duration::from_millis(2);
/// Number of appends that overtake a vote, if that bug is planted.
const LATE_APPENDS: u32 = 300;
/// Maximum bytes of the queue of proposals.
const MAX_QUEUE_BYTES: usize = 1 << 20;
/// Usual size of a disk.
const DISK_BYTES: u64 = 1 << 40;
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
    /// Vote that is confirmed and not written, and the number of appends before it is.
    late_vote: Option<(RaftVote, u32)>,
    clock_error: Arc<AtomicI64>,
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
        if self.plant == Some(Plant::LateVote) {
            self.late_vote = Some((*vote, LATE_APPENDS));
            return Ok(());
        }
        self.store.save_vote(vote).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let shift = if self.plant == Some(Plant::OwnClock) { self.clock_error.load(Relaxed) } else { 0 };
        let shifted = move |mut entry: RaftEntry| {
            if let EntryPayload::Normal(commands) = &mut entry.payload {
                commands.time = SpaceTime(commands.time.0.saturating_add_signed(shift));
            }
            entry
        };
        let entries: Vec<RaftEntry> = entries.into_iter().map(shifted).collect();
        if self.plant == Some(Plant::AckBeforeFsync) {
            self.store.append(entries, IOFlushed::noop()).await?;
            callback.io_completed(Ok(()));
            return Ok(());
        }
        self.store.append(entries, callback).await?;
        match self.late_vote.take() {
            Some((vote, 0)) => self.store.save_vote(&vote).await,
            Some((vote, left)) => {
                self.late_vote = Some((vote, left - 1));
                Ok(())
            }
            None => Ok(()),
        }
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
    /// Directory of the LSM tree's tables.
    pub tables: Tables,
    /// Options for the next start.
    pub options: Cell<NodeOptions>,
    /// Backend of the last start.
    started_with: Cell<Option<BackendKind>>,
    /// Faults of the disk.
    pub faults: Rc<DiskFaults>,
    is_full: Cell<bool>,
    /// True once a bit of the node's files was flipped.
    pub is_flipped: Cell<bool>,
    /// True from the moment at which the power is to be cut until the node has crashed.
    pub is_power_cut: Cell<bool>,
    /// Error of the node's wall clock in microseconds.
    pub clock_error: Arc<AtomicI64>,
    /// True while the node starts. A stopped process can be starting for long.
    pub is_starting: Cell<bool>,
    /// Present run; `None` while the node is down.
    pub running: RefCell<Option<Running>>,
}

impl NodeParts {
    /// Creates a node with an empty disk.
    #[must_use]
    pub fn new(id: ProcessId, seed: u64) -> Self {
        Self {
            id,
            disk: RefCell::new(SimDisk::new(seed)),
            tables: Tables::default(),
            options: Cell::new(NodeOptions::random()),
            started_with: Cell::default(),
            faults: Rc::default(),
            is_full: Cell::default(),
            is_flipped: Cell::default(),
            is_power_cut: Cell::default(),
            clock_error: Arc::default(),
            is_starting: Cell::default(),
            running: RefCell::default(),
        }
    }

    /// Returns the node's wall clock.
    #[must_use]
    pub fn clock(&self) -> NodeClock {
        NodeClock { error: Arc::clone(&self.clock_error) }
    }

    /// Leaves this many bytes of the disk free, in whole blocks. Returns the number of free bytes.
    pub fn fill_disk(&self, free: u64) -> u64 {
        let disk = self.disk.borrow();
        disk.set_capacity(u64::MAX);
        let used = u64::MAX - disk.free_bytes().unwrap_or(u64::MAX);
        disk.set_capacity(used + free);
        self.is_full.set(true);
        free
    }

    /// Gives the disk its usual size.
    pub fn empty_disk(&self) {
        self.disk.borrow().set_capacity(DISK_BYTES);
        self.is_full.set(false);
    }

    /// Returns true while the disk is full or nearly so.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        self.is_full.get()
    }

    /// Flips a bit of the node's files. Returns its place; `None` without files.
    #[must_use]
    pub fn flip_bit(&self) -> Option<String> {
        if self.started_with.get() == Some(BackendKind::Lsm)
            && random(0..2) == 0
            && let Some(place) = flip_in(&self.tables)
        {
            return Some(place);
        }
        self.disk.borrow().flip_random_bit(random(0..u64::MAX)).map(|flip| format!("{} at {}", flip.path, flip.offset))
    }

    /// Opens the node's state. A backend that the node did not use last begins with an empty state.
    fn open_state(
        &self,
        disk: &Arc<dyn Disk>,
        log: &Log,
        plant: Option<Plant>,
    ) -> io::Result<(Arc<dyn Backend>, Machine)> {
        let options = self.options.get();
        if self.started_with.replace(Some(options.backend)).is_some_and(|before| before != options.backend) {
            discard(options.backend, &**disk, &self.tables)?;
        }
        let backend = open(&options, disk, &self.tables, log).map_err(io::Error::other)?;
        // The running hash depends on options below the minimum, which the engine refuses.
        let is_planted = plant == Some(Plant::OptionInApply) && self.id == 2;
        let inline_value_bytes = if is_planted { 16 } else { options.inline_value_bytes };
        let machine_options = MachineOptions { inline_value_bytes };
        let machine = Machine::open(Arc::clone(&backend), machine_options).map_err(io::Error::other)?;
        Ok((backend, machine.with_blobs(Arc::new(LogBlobs(log.clone())))))
    }

    /// Starts the node from its disk. Runs in the node's process. Calls `failed` if the node can no longer persist its
    /// state.
    #[allow(clippy::arc_with_non_send_sync, reason = "the store takes any driver, and the simulation has one thread")]
    pub async fn start(
        &self,
        network: &Network,
        truth: &Truth,
        plant: Option<Plant>,
        failed: impl Fn(String) + 'static,
    ) -> io::Result<()> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.borrow().clone());
        let options = self.options.get();
        let clock = Arc::new(self.clock());
        let opened = Log::open_stepped(Arc::clone(&disk), "log", options.log(), clock, self.id);
        let (log, _) = opened.map_err(io::Error::other)?;
        let queue = Arc::new(SyncQueue::new(log.clone()));
        let syncs = Arc::new(Syncs {
            node: self.id,
            queue: OnceCell::new(),
            is_running: Rc::default(),
            faults: Rc::clone(&self.faults),
        });
        let _ = syncs.queue.set(Arc::clone(&queue));
        let (backend, machine) = self.open_state(&disk, &log, plant)?;
        let machine = Arc::new(machine);
        let options_of_member = MemberOptions {
            max_move_wait: Duration::ZERO,
            ..MemberOptions::new(SPACE, NodeId(self.id), MAX_QUEUE_BYTES)
        };
        let clock = Arc::new(self.clock());
        let member = Member::open(log.clone(), Arc::clone(&machine), clock, &options_of_member);
        let member = member.map_err(io::Error::other)?;
        if machine.membership().map_err(io::Error::other)?.is_some() {
            truth.opened(self.id, machine.applied());
        }
        let reports = Arc::new(Reports {
            node: self.id,
            log: log.clone(),
            machine,
            reader: OnceLock::new(),
            truth: truth.clone(),
        });
        member.observe(Arc::clone(&reports) as _);
        spawn(self.id, async move {
            loop {
                log.step();
                sleep(STEP).await;
            }
        });
        spawn(self.id, async move {
            loop {
                sleep(random_duration(Duration::from_micros(1)..2 * options.flush_pause)).await;
                if let Err(error) = persist(&*backend, &*disk) {
                    return failed(format!("it cannot persist its state: {error}"));
                }
            }
        });
        let links = network.links_of(self.id);
        let parts = ConsensusParts {
            member: member.clone(),
            queue,
            driver: syncs,
            network: links.clone(),
            snapshots: None,
            forwarder: Some(Rc::new(links)),
        };
        let clock_error = Arc::clone(&self.clock_error);
        let view = |store| PlantedStore { store, plant, late_vote: None, clock_error };
        let consensus = SimConsensus::start_with(parts, ConsensusOptions::DEFAULTS, view).await;
        let consensus = consensus.map_err(|error| io::Error::other(error.to_string()))?;
        let _ = reports.reader.set(consensus.reader().clone());
        network.connect(self.id, consensus.clone());
        *self.running.borrow_mut() = Some(Running::new(member, consensus, plant));
        Ok(())
    }
}
