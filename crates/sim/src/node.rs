//! A simulated node: the product's database on a simulated disk, and its consensus. The database runs in stepped mode:
//! the simulation calls its background work in steps, in place of threads.
//!
//! Owns: starting a node from its disk, and the duration of its fsyncs. Does not own: the times at which nodes start
//! and crash (`cluster`).

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
use thalweg_disk::{
    Disk, SimDisk,
    sim::{Errno, Fault, FlippedFile, Operation},
};
use thalweg_engine::{
    BackendKind, Database, Health, MemberIdentity, MemberParts, SteppedOptions, plant::take_any_inline_bytes,
};
use thalweg_raft::{
    ConsensusOptions, ConsensusParts, LogReader, LogStore, RaftEntry, RaftLogId, RaftVote, SyncDriver, SyncQueue,
};
use thalweg_types::{Clock, ClusterId, Index, SpaceTime};

use crate::{
    backends::{NodeOptions, Tables, flip_in},
    failing_syncs::FailingSyncs,
    logs::Logs,
    network::Network,
    plant::Plant,
    planted_disk::PlantedDisk,
    running::{Reports, Running},
    runtime::{EPOCH_MICROS, ProcessId, SimRuntime, now, random, random_duration, record, sleep, spawn},
    snapshots::NodeSnapshots,
    truth::Truth,
    types::{SimConsensus, Types},
    witness::Witness,
};

/// Time between two steps of the background work of a node's log.
const STEP: Duration = Duration::from_millis(2);
/// Text of each error of a state that accepts no writes until it is opened again.
const STATE_STOPPED: &str = "after an earlier failure";
/// Free bytes on a disk below which a node with redb runs no maintenance.
const MIN_FREE_BYTES: u64 = 16 << 20;
/// Time without an answer from a follower. After this time, the leader keeps no log entries for it.
const DOWN_AFTER: Duration = Duration::from_secs(1);
/// Id of the cluster to which all nodes belong.
const CLUSTER: ClusterId = ClusterId(19);
/// Number of appends to the log that come before a vote is written, although the log has confirmed the vote earlier.
/// Used by the planted bug `LateVote`.
const LATE_APPENDS: u32 = 300;
/// Size of a node's disk in bytes while no fault makes it full.
const DISK_BYTES: u64 = 1 << 40;
/// Interval at which a stuck fsync checks if it may return.
const STUCK_STEP: Duration = Duration::from_millis(5);
/// Range of the usual duration of an fsync in microseconds.
const SYNC_MICROS: RangeInclusive<u64> = 80..=400;

/// Faults of a node's disk that are in effect at present.
#[derive(Debug, Default)]
pub struct DiskFaults {
    /// True while no fsync of the node returns.
    pub is_stuck: Cell<bool>,
    /// Additional time of each fsync in microseconds.
    pub slow_micros: Cell<u64>,
}

/// Wall clock of a simulated node, which may be wrong.
#[derive(Debug)]
pub struct NodeClock {
    /// Error of the node's wall clock in microseconds; negative if the clock is behind.
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

/// Performs the fsyncs of a node, each after its simulated duration.
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

/// The log of a node as its consensus sees it. If a bug of the log is planted, this type contains the bug.
struct PlantedStore {
    store: LogStore<SimRuntime>,
    plant: Option<Plant>,
    /// Vote that the log has confirmed but not written yet, and the number of appends after which it writes the vote.
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

/// Parts of a simulated node that survive its crashes.
pub struct NodeParts {
    /// Id of the node, which is also the number of its process.
    pub id: ProcessId,
    /// The node's disk. A power loss replaces it by a disk with the surviving writes.
    pub disk: RefCell<SimDisk>,
    /// Directory of the LSM tree's tables.
    pub tables: Tables,
    /// Options with which the node starts the next time.
    pub options: Cell<NodeOptions>,
    /// Number of chunks of snapshots that the node has received.
    pub received: Rc<Cell<u64>>,
    /// Faults of the node's disk that are in effect at present.
    pub faults: Rc<DiskFaults>,
    /// Description of the node's fsyncs that fail at present; `None` if none fail.
    failing_syncs: Cell<Option<FailingSyncs>>,
    /// Number of crashes of the node so far. It identifies a run of the node, which is the time from one start of its
    /// process to the next crash.
    pub crashes: Cell<u64>,
    is_full: Cell<bool>,
    /// True from the flip of a bit in the node's files until the node has started successfully without the flipped
    /// byte. Until then the node may lack data that it had confirmed, and may stop.
    pub is_flipped: Cell<bool>,
    /// True once the simulation has requested a repair of the node in place.
    pub was_repaired: Cell<bool>,
    /// True if the node's disk has been full since the node's database was last opened.
    was_full: Cell<bool>,
    /// True while the simulated disk fails each attempt of the node to switch to the state of a received snapshot.
    pub fails_switch: Cell<bool>,
    /// True from the request to cut the node's power until the node has crashed.
    pub is_power_cut: Cell<bool>,
    /// Error of the node's wall clock in microseconds.
    pub clock_error: Arc<AtomicI64>,
    /// True while the node starts, also if the simulation stops the process during its start.
    pub is_starting: Cell<bool>,
    /// Handle of the node's present run, from its start to its next crash; `None` while the node is down.
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
            received: Rc::default(),
            faults: Rc::default(),
            failing_syncs: Cell::default(),
            crashes: Cell::default(),
            is_full: Cell::default(),
            is_flipped: Cell::default(),
            was_repaired: Cell::default(),
            was_full: Cell::default(),
            fails_switch: Cell::default(),
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

    /// Fills the disk so that about `free` bytes are free, in whole blocks. Returns the number of free bytes.
    pub fn fill_disk(&self, free: u64) -> u64 {
        let disk = self.disk.borrow();
        disk.set_capacity(u64::MAX);
        let used = u64::MAX - disk.free_bytes().unwrap_or(u64::MAX);
        disk.set_capacity(used + free);
        self.is_full.set(true);
        self.was_full.set(true);
        free
    }

    /// Gives the node's disk its usual size, so that it is no longer full.
    pub fn empty_disk(&self) {
        self.disk.borrow().set_capacity(DISK_BYTES);
        self.is_full.set(false);
    }

    /// Returns true while the disk is full or nearly so.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        self.is_full.get()
    }

    /// Returns true if the node may stop because redb has found the disk full. redb then fails until it is opened again.
    /// In the product, the thread that persists the state waits for room instead; a stepped backend has no threads.
    pub(crate) fn has_met_full_disk(&self, reason: &str) -> bool {
        let is_redb = self.options.get().backend == BackendKind::Redb;
        is_redb && self.was_full.get() && reason.contains(STATE_STOPPED)
    }

    /// Makes the node's next `attempts` to switch to the state of a snapshot fail.
    pub fn fail_switch(&self, attempts: u64) {
        let disk = self.disk.borrow();
        for attempt in 1..=attempts {
            disk.fail(Fault::new(Operation::Rename, attempt, Errno::Io).on_path("INSTALLED"));
        }
        self.fails_switch.set(true);
    }

    /// Ends the effect of [`fail_switch`](Self::fail_switch). Returns false if no failures were left.
    pub fn mend_switch(&self) -> bool {
        self.disk.borrow().clear_faults_of(Operation::Rename);
        self.fails_switch.replace(false)
    }

    /// Makes fsyncs of the node fail until [`mend_syncs`](Self::mend_syncs).
    pub fn fail_syncs(&self, failing: FailingSyncs) {
        failing.plan(&self.disk.borrow());
        self.failing_syncs.set(Some(failing));
    }

    /// Ends the failures of the node's fsyncs.
    pub fn mend_syncs(&self) {
        self.disk.borrow().clear_faults_of(Operation::Sync);
        self.failing_syncs.set(None);
    }

    /// Returns true if an fsync has failed since the node's last crash.
    #[must_use]
    pub fn has_failed_sync(&self) -> bool {
        self.disk.borrow().failed_calls().syncs > 0
    }

    /// Replaces the disk after a crash by the disk that the next process uses. If fsyncs fail until the fault ends,
    /// they also fail on the new disk.
    pub fn replace_disk(&self, next: SimDisk) {
        self.crashes.set(self.crashes.get() + 1);
        let failing = self.failing_syncs.get().and_then(|failing| failing.for_next_process());
        if let Some(failing) = failing {
            failing.plan(&next);
        }
        self.failing_syncs.set(failing);
        *self.disk.borrow_mut() = next;
    }

    /// Flips a bit in a random file of the node. Returns a description of the bit's position; `None` if there are no
    /// files.
    #[must_use]
    pub fn flip_bit(&self) -> Option<String> {
        if self.options.get().backend == BackendKind::Lsm
            && random(0..2) == 0
            && let Some(place) = flip_in(&self.tables)
        {
            return Some(place);
        }
        self.disk.borrow().flip_random_bit(random(0..u64::MAX)).map(|flip| format!("{} at {}", flip.path, flip.offset))
    }

    /// Returns true if a flipped byte, or a copy of it, may still be in the node's files. redb does not verify
    /// checksums when it copies a page, so its file counts as damaged until it is removed.
    fn may_be_damaged(&self) -> bool {
        let is_redb = self.options.get().backend == BackendKind::Redb;
        let may_be = |file: &FlippedFile| !file.is_overwritten || is_redb && !file.path.starts_with("log/");
        self.disk.borrow().flipped_files().iter().any(may_be) || self.tables.are_flipped()
    }

    /// Marks the node as undamaged if the flipped byte is gone. Later errors of the node then count as violations. The
    /// caller first compares the node's log with earlier reports, because the open may have cut off damaged records.
    fn end_excuse(&self) {
        if self.is_flipped.get() && !self.may_be_damaged() {
            record(self.id, "has no damage any more");
            self.is_flipped.set(false);
        }
    }

    /// Opens the node's database as a member of the cluster. A new directory joins the cluster.
    fn open(&self, plant: Option<Plant>) -> io::Result<Database> {
        let (disk, options) = (self.disk.borrow().clone(), self.options.get());
        let disk: Arc<dyn Disk> = match plant {
            Some(Plant::UnsyncedInstall) => Arc::new(PlantedDisk::with_unsynced_installs(disk)),
            Some(Plant::FailedSyncConfirmed) => Arc::new(PlantedDisk::with_confirmed_failures(disk)),
            _ => Arc::new(disk),
        };
        let os_dir = (options.backend == BackendKind::Lsm).then(|| self.tables.path());
        let stepped = SteppedOptions { disk, clock: Arc::new(self.clock()), seed: self.id, os_dir };
        let mut database = options.database();
        // With this planted bug, an option below its minimum changes the running hash of the node.
        let is_planted = plant == Some(Plant::OptionInApply) && self.id == 2;
        take_any_inline_bytes(is_planted);
        if is_planted {
            database.inline_value_bytes = 16;
        }
        let opened = Database::open_stepped(&stepped, database, Some(MemberIdentity::Join { cluster: CLUSTER }));
        take_any_inline_bytes(false);
        opened.map_err(io::Error::other)
    }

    /// Installs a snapshot while the node does not run. Returns the index of the last log entry that the new state
    /// contains.
    pub fn install(&self, snapshot: &[u8], plant: Option<Plant>) -> io::Result<Index> {
        let installed = self.open(plant)?.reinstall(&mut &snapshot[..], &mut |_| {});
        Ok(installed.map_err(io::Error::other)?.applied.index)
    }

    /// Starts the node from its disk. Runs in the node's process. Reports its log entries to `truth` and `logs`. Calls
    /// `failed` if the node can no longer persist its state.
    #[allow(clippy::arc_with_non_send_sync, reason = "the store takes any driver, and the simulation has one thread")]
    pub async fn start(
        &self,
        network: &Network,
        (truth, logs): (&Truth, &Logs),
        plant: Option<Plant>,
        failed: impl Fn(String) + 'static,
    ) -> io::Result<()> {
        let db = self.open(plant)?;
        self.was_full.set(self.is_full.get());
        let MemberParts { log, machine, member } = db.member_parts().expect("it is opened as a member");
        let queue = Arc::new(SyncQueue::new(log.clone()));
        let syncs = Arc::new(Syncs {
            node: self.id,
            queue: OnceCell::new(),
            is_running: Rc::default(),
            faults: Rc::clone(&self.faults),
        });
        let _ = syncs.queue.set(Arc::clone(&queue));
        if machine.membership().map_err(io::Error::other)?.is_some() {
            truth.opened(self.id, machine.applied());
        }
        let reports = Arc::new(Reports {
            node: self.id,
            disk: self.disk.borrow().clone(),
            is_damaged: self.is_flipped.get(),
            log: log.clone(),
            machine,
            reader: OnceLock::new(),
            truth: truth.clone(),
            logs: logs.clone(),
        });
        db.observe_applied(Arc::clone(&reports) as _);
        spawn(self.id, async move {
            loop {
                log.step();
                sleep(STEP).await;
            }
        });
        let chunk_bytes = self.options.get().chunk_bytes;
        let snapshots = NodeSnapshots::new(self.id, db.clone(), truth.clone(), chunk_bytes, Rc::clone(&self.received));
        let links = network.links_of(self.id);
        let parts = ConsensusParts {
            member: member.clone(),
            queue,
            driver: syncs,
            network: links.clone(),
            snapshots: Some(Rc::new(snapshots.clone())),
            forwarder: Some(Rc::new(links)),
        };
        let clock_error = Arc::clone(&self.clock_error);
        let view = |store| Witness {
            store: PlantedStore { store, plant, late_vote: None, clock_error },
            node: self.id,
            logs: logs.clone(),
            is_damaged: self.is_flipped.get(),
            has_opened: false,
        };
        let consensus = SimConsensus::start_with(parts, ConsensusOptions::DEFAULTS, view).await;
        let consensus = consensus.map_err(|error| io::Error::other(error.to_string()))?;
        let _ = reports.reader.set(consensus.reader().clone());
        network.connect(self.id, consensus.clone(), Rc::new(snapshots.clone()));
        spawn(
            self.id,
            maintain(db.clone(), consensus.clone(), snapshots, self.disk.borrow().clone(), self.options.get(), failed),
        );
        *self.running.borrow_mut() = Some(Running::new(db, member, consensus, plant));
        self.end_excuse();
        Ok(())
    }
}

/// Maintains a node's database for as long as its process lives. Calls `failed` if the node can no longer persist its
/// state.
async fn maintain(
    db: Database,
    consensus: SimConsensus,
    snapshots: NodeSnapshots,
    disk: SimDisk,
    options: NodeOptions,
    failed: impl Fn(String),
) {
    loop {
        sleep(random_duration(Duration::from_micros(1)..2 * options.maintenance_pause)).await;
        snapshots.drop_old();
        // redb fails permanently if the disk is full, so its node is not maintained then. The other backends must also
        // flush, move and free on a full disk.
        let needed = MIN_FREE_BYTES + 2 * consensus.member().machine().backend().bytes_to_persist();
        if options.backend == BackendKind::Redb && disk.free_bytes().is_ok_and(|free| free < needed) {
            continue;
        }
        db.set_follower_floor(follower_floor(&consensus));
        while db.step() {}
        // A round ends at entries that are not committed yet. A later round continues.
        let _ = db.maintain_async().await;
        if let Health::Failed { reason } = db.health() {
            return failed(format!("it cannot persist its state: {reason}"));
        }
        // A node of the product would pass on its leadership and get the state of another member.
        let damage = db.scrub_stats();
        if damage.is_state_damaged {
            return failed(damage.damage.unwrap_or_default());
        }
    }
}

/// Returns the index of the first entry that a live follower still needs from the leader's log; `None` if none does.
fn follower_floor(consensus: &SimConsensus) -> Option<Index> {
    let status = consensus.status();
    let lives = |answer: Option<Duration>| answer.is_some_and(|ago| ago < DOWN_AFTER);
    let live = status.members.values().filter(|member| lives(member.last_answer));
    live.filter_map(|member| member.matched).min().map(Index::next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::simulate;

    /// Returns the result of `may_be_damaged` after each of three steps: a bit of a synced file flips, the byte is
    /// written again, and the file is removed.
    fn steps_of_damage(backend: BackendKind, path: &'static str) -> [bool; 3] {
        let finished = simulate(1, async move {
            let parts = NodeParts::new(1, 1);
            parts.options.set(NodeOptions::with_backend(backend));
            let disk = parts.disk.borrow().clone();
            let file = disk.create(path).expect("a file");
            file.write_all_at(&[0; 100], 0).expect("room");
            file.sync_all().and_then(|()| disk.sync_dir("")).expect("a sync");
            disk.flip_bit(path, 70, 3).expect("the byte exists");
            let flipped = parts.may_be_damaged();
            file.write_all_at(&[1], 70).expect("room");
            file.sync_data().expect("a sync");
            let overwritten = parts.may_be_damaged();
            drop(file);
            disk.remove(path).and_then(|()| disk.sync_dir("")).expect("a removal");
            [flipped, overwritten, parts.may_be_damaged()]
        });
        finished.output.expect("the simulation ends")
    }

    #[test]
    fn damage_that_was_overwritten_is_no_excuse() {
        assert_eq!(steps_of_damage(BackendKind::Memory, "state"), [true, false, false]);
        assert_eq!(steps_of_damage(BackendKind::Redb, "state"), [true, true, false], "a page may have been copied");
    }
}
