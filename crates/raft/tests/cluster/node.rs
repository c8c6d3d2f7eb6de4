//! Nodes on simulated disks, and clusters of them.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use openraft_rt_tokio::TokioRuntime;
use thalweg_disk::SimDisk;
use thalweg_log::{Log, LogOptions, Purpose};
use thalweg_raft::{ConsensusOptions, ConsensusParts, SyncDriver, SyncQueue};
use thalweg_replica::{Committed, Leadership, Member, MemberOptions, NodeInfo, ProposeError, Wake};
use thalweg_state::{
    keyspaces::StoredValue,
    machine::{Machine, MachineOptions},
};
use thalweg_store::{
    Backend, BarrierFailed, LogBarrier,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Clock, Durability, Index, NodeId, SpaceId, SpaceTime, SystemClock,
    command::{Framed, Outcome},
};

use crate::{
    behind::Slow,
    commands::{KEYSPACE, create},
    network::{Consensus, Network},
    snapshots::Copies,
};

/// Bound of every wait; no test needs a tenth of it.
pub const PATIENCE: Duration = Duration::from_secs(60);

struct Barrier(Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: thalweg_types::Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

/// Options of the tests: those of the product, with longer times, because many tests share a processor.
pub fn options() -> ConsensusOptions {
    ConsensusOptions {
        heartbeat: Duration::from_millis(100),
        min_election: Duration::from_millis(1_000),
        max_election: Duration::from_millis(1_500),
        ..ConsensusOptions::default()
    }
}

/// Performs the fsyncs of a node in a thread, unless the test holds them back.
pub struct Syncs {
    gate: Arc<Gate>,
    queue: Arc<SyncQueue<TokioRuntime>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_due: bool,
    is_held: bool,
    is_stopped: bool,
    /// True while an fsync runs.
    runs: bool,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Waits until an fsync is due and not held back. Returns false if the thread must stop.
    fn pass(&self) -> bool {
        let waits = |state: &mut GateState| !state.is_stopped && (state.is_held || !state.is_due);
        let mut state = self.changed.wait_while(self.state.lock().unwrap(), waits).unwrap();
        (state.is_due, state.runs) = (false, !state.is_stopped);
        state.runs
    }
}

impl Syncs {
    fn start(queue: Arc<SyncQueue<TokioRuntime>>) -> Self {
        let gate = Arc::new(Gate::default());
        let (passed, stepped) = (Arc::clone(&gate), Arc::clone(&queue));
        let thread = std::thread::spawn(move || {
            while passed.pass() {
                stepped.step();
                passed.change(|state| state.runs = false);
            }
            stepped.step();
            stepped.close();
        });
        Self { gate, queue, thread: Some(thread) }
    }

    /// Holds all later writes back from their fsync. Waits for the fsync that runs.
    pub fn hold(&self) {
        self.gate.change(|state| state.is_held = true);
        drop(self.gate.changed.wait_while(self.gate.state.lock().unwrap(), |state| state.runs).unwrap());
    }

    pub fn release(&self) {
        self.gate.change(|state| state.is_held = false);
    }

    /// Returns true if a write waits for its fsync.
    pub fn has_waiting(&self) -> bool {
        self.queue.unsynced().bytes > 0
    }
}

impl SyncDriver for Syncs {
    fn notify(&self) {
        self.gate.change(|state| state.is_due = true);
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        self.gate.change(|state| state.is_stopped = true);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Settings of the nodes of a test.
#[derive(Clone, Copy)]
pub struct Settings {
    pub max_wait: Duration,
    pub forwards: bool,
    pub consensus: ConsensusOptions,
    /// Pause that the state leaves to consensus after each entry.
    pub pause: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_wait: Duration::from_secs(10), forwards: true, consensus: options(), pause: Duration::ZERO }
    }
}

/// The clocks of all nodes: those of the operating system, whose wall time a test sets forward.
#[derive(Debug, Default)]
pub struct TestClock {
    system: SystemClock,
    ahead_micros: AtomicU64,
    suspended_micros: AtomicU64,
}

impl TestClock {
    /// Sets the wall time forward, and not the monotonic time.
    pub fn advance_wall(&self, by: Duration) {
        self.ahead_micros.fetch_add(by.as_micros() as u64, Relaxed);
    }

    /// Makes all nodes find that their machines were suspended.
    pub fn suspend(&self, span: Duration) {
        self.suspended_micros.fetch_add(span.as_micros() as u64, Relaxed);
    }
}

impl Clock for TestClock {
    fn wall(&self) -> SpaceTime {
        SpaceTime(self.system.wall().0 + self.ahead_micros.load(Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.system.monotonic()
    }

    fn suspended(&self) -> Duration {
        Duration::from_micros(self.suspended_micros.load(Relaxed))
    }
}

/// A node that runs.
#[derive(Clone)]
pub struct Node {
    pub id: u64,
    pub log: Log,
    pub machine: Arc<Machine>,
    pub member: Member,
    pub consensus: Consensus,
    pub syncs: Arc<Syncs>,
}

impl Node {
    pub async fn start(disk: &SimDisk, id: u64, network: &Network, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let log_options = LogOptions {
            segment_bytes: 2 * 1024 * 1024,
            reserve_bytes: 0,
            history_bytes: 0,
            history_age: Duration::ZERO,
            ..LogOptions::default()
        };
        let (log, _) = Log::open(Arc::new(disk.clone()), "log", log_options, Arc::clone(&clock), id).unwrap();
        let barrier = Arc::new(Barrier(log.clone()));
        let backend = MemoryBackend::open(Arc::new(disk.clone()), MemoryOptions::default(), barrier).unwrap();
        let backend: Arc<dyn Backend> =
            if settings.pause.is_zero() { Arc::new(backend) } else { Arc::new(Slow::new(backend, settings.pause)) };
        let machine = Arc::new(Machine::open(backend, MachineOptions::default()).unwrap());
        let options =
            MemberOptions { max_wait: settings.max_wait, ..MemberOptions::new(SpaceId::ZERO, NodeId(id), 1 << 20) };
        let member = Member::open(log.clone(), Arc::clone(&machine), clock, &options).unwrap();
        let queue: Arc<SyncQueue<TokioRuntime>> = Arc::new(SyncQueue::new(log.clone()));
        let syncs = Arc::new(Syncs::start(Arc::clone(&queue)));
        let links = network.links_of(id);
        let snapshots = Copies::of(&member);
        let parts = ConsensusParts {
            member: member.clone(),
            queue,
            driver: Arc::clone(&syncs) as _,
            network: links.clone(),
            snapshots: Some(Rc::clone(&snapshots)),
            forwarder: settings.forwards.then(|| Rc::new(links) as _),
        };
        let consensus = Consensus::start(parts, settings.consensus).await.unwrap();
        network.connect(id, consensus.clone(), snapshots);
        Self { id, log, machine, member, consensus, syncs }
    }

    /// Proposes a command on this node.
    pub async fn propose(&self, command: Framed) -> Result<Committed, ProposeError> {
        self.member.propose_async_for(None, command, Durability::Disk, Purpose::Data, Wake::Now)?.await
    }

    /// Returns true if this node follows that one.
    fn follows(&self, leader: u64) -> bool {
        matches!(self.member.leadership(), Leadership::Follower { leader: Some((id, _)), .. } if id.0 == leader)
    }

    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self.machine.get(KEYSPACE, key.as_bytes()).unwrap()?.value {
            StoredValue::Inline(bytes) => Some(bytes.to_vec()),
            StoredValue::Blob(blob) => Some(self.log.read_blob(&blob).unwrap().to_vec()),
            other => panic!("not a value: {other:?}"),
        }
    }
}

/// A cluster of nodes, each with a disk.
pub struct Cluster {
    pub network: Network,
    pub clock: Arc<TestClock>,
    pub disks: RefCell<BTreeMap<u64, SimDisk>>,
    nodes: RefCell<BTreeMap<u64, Node>>,
    settings: Settings,
}

impl Cluster {
    /// Starts and founds a cluster of nodes 1 to `size`, with a keyspace.
    pub async fn founded(size: u64) -> Self {
        Self::founded_with(size, Settings::default()).await
    }

    /// Founds a cluster whose proposers wait at most so long.
    pub async fn impatient(size: u64, max_wait: Duration) -> Self {
        Self::founded_with(size, Settings { max_wait, ..Settings::default() }).await
    }

    /// Starts nodes 1 to `size`, none of which has founded a cluster.
    pub async fn unfounded(size: u64, settings: Settings) -> Self {
        let disks = (1..=size).map(|id| (id, SimDisk::new(id))).collect();
        let cluster = Self {
            network: Network::default(),
            clock: Arc::default(),
            disks: RefCell::new(disks),
            nodes: RefCell::default(),
            settings,
        };
        for id in 1..=size {
            cluster.start(id).await;
        }
        cluster
    }

    pub async fn founded_with(size: u64, settings: Settings) -> Self {
        let cluster = Self::unfounded(size, settings).await;
        let members = (1..=size).map(|id| (NodeId(id), NodeInfo::at(format!("node{id}:1")))).collect();
        cluster.node(1).consensus.found(members).await.unwrap();
        let created = cluster.write(&create()).await;
        assert_eq!(created.durability, Durability::Quorum);
        assert_eq!(created.outcome, Some(Outcome::Keyspace { id: KEYSPACE, created: true }));
        cluster
    }

    /// Starts a node from its disk, which is new if there is none.
    pub async fn start(&self, id: u64) -> Node {
        let disk = self.disks.borrow_mut().entry(id).or_insert_with(|| SimDisk::new(id)).clone();
        let clock = Arc::clone(&self.clock) as _;
        let node = Node::start(&disk, id, &self.network, clock, self.settings).await;
        self.nodes.borrow_mut().insert(id, node.clone());
        node
    }

    /// Ends a node as a loss of power does: its disk keeps what was synced, and some of the rest.
    pub async fn lose_power(&self, id: u64, seed: u64) {
        self.network.disconnect(id);
        let node = self.nodes.borrow_mut().remove(&id).expect("the node runs");
        let disk = self.disks.borrow()[&id].power_loss(seed);
        node.consensus.stop().await;
        node.member.close();
        self.disks.borrow_mut().insert(id, disk);
    }

    pub fn node(&self, id: u64) -> Node {
        self.nodes.borrow()[&id].clone()
    }

    pub fn nodes(&self) -> Vec<Node> {
        self.nodes.borrow().values().cloned().collect()
    }

    /// Waits until `found` returns a value.
    pub async fn wait<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let begun = std::time::Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "waited for {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits for a leader that is not one of `except`, and returns it.
    pub async fn leader_except(&self, except: &[u64]) -> Node {
        self.wait("a leader", || {
            self.nodes().into_iter().find(|node| node.member.leads() && !except.contains(&node.id))
        })
        .await
    }

    pub async fn leader(&self) -> Node {
        self.leader_except(&[]).await
    }

    /// Writes a command on the leader. Tries again while the cluster has none; then nothing was written.
    pub async fn write(&self, command: &Framed) -> Committed {
        self.write_except(&[], command).await
    }

    /// Writes like [`write`](Self::write), on a leader that is not one of `except`.
    pub async fn write_except(&self, except: &[u64], command: &Framed) -> Committed {
        let begun = std::time::Instant::now();
        loop {
            match self.leader_except(except).await.propose(command.clone()).await {
                Err(ProposeError::NoLeader | ProposeError::NotLeader { .. }) if begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                written => return written.unwrap(),
            }
        }
    }

    /// Returns a node that follows a leader.
    pub async fn follower(&self) -> Node {
        self.wait("a follower", || {
            let leader = self.nodes().into_iter().find(|node| node.member.leads())?;
            self.nodes().into_iter().find(|node| node.follows(leader.id))
        })
        .await
    }

    /// Waits until one node leads and all others know that it does.
    pub async fn wait_all_follow(&self) {
        self.wait("all nodes to follow the leader", || {
            let leader = self.nodes().into_iter().find(|node| node.member.leads())?;
            self.nodes().iter().all(|node| node.id == leader.id || node.follows(leader.id)).then_some(())
        })
        .await;
    }

    /// Waits until all nodes have applied the same entry with the same effects, at least up to `index`.
    pub async fn wait_equal(&self, index: Index) {
        let position = |node: &Node| {
            let applied = node.machine.applied();
            (applied.term, applied.index, applied.revision, applied.time, applied.running_hash)
        };
        self.wait("equal states", || {
            let positions: Vec<_> = self.nodes().iter().map(position).collect();
            let is_equal = positions.windows(2).all(|pair| pair[0] == pair[1]);
            (is_equal && positions[0].1 >= index).then_some(())
        })
        .await;
    }
}
