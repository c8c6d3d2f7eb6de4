//! A simulated cluster: its nodes, and the faults that hit them.
//!
//! Owns: starts and crashes of nodes, the beginning and the end of each fault, and the measured times from a fault to
//! the next answered write. Does not own: the choice and the times of the faults (`simulation`), the parts of a node
//! (`node`), and the verdict on a node that stops by itself (`stops`).

mod failing_syncs;
mod replace;
mod stops;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use openraft::async_runtime::WatchReceiver;
use thalweg_replica::{Leadership, NodeInfo};
use thalweg_types::NodeId;

use crate::{
    backends::NodeOptions,
    commands::creations,
    faults::{Fault, FaultKind},
    history::{Action, History},
    logs::Logs,
    network::Network,
    node::NodeParts,
    plant::Plant,
    report::Gap,
    running::Running,
    runtime::{OUTSIDE, ProcessId, kill, now, random, record, resume, sleep, spawn, stop},
    settings::Settings,
    snapshots::INSTALL_CUT,
    truth::Truth,
};

/// Maximum time until a write is answered in a cluster in which a majority of the nodes works.
const ANSWER_WITHIN: Duration = Duration::from_millis(2_500);
/// Additional time of an fsync on a slow disk, in microseconds.
const SLOW_MICROS: u64 = 20_000;
/// Time for which disks are slow before all nodes lose power. It is shorter than the shortest fault.
const SLOW_BEFORE_LOSS: Duration = Duration::from_millis(150);
/// Shortest time that a fault lasts.
const SHORTEST: Duration = Duration::from_millis(200);
/// Time for which the clients send nothing after some followers have restarted. By their restart, these followers
/// forget that they promised their votes to the leader.
const QUIET_AFTER: Duration = Duration::from_millis(400);
/// Maximum time for which a node is cut off until the other nodes have freed log entries that it lacks.
const PURGED_WITHIN: Duration = Duration::from_secs(5);
/// Maximum time for which a reconnected node waits for a snapshot.
const INSTALL_WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of disk operations of a node between the first chunk of a snapshot and the cut of the node's power.
const INSTALL_OPERATIONS: u64 = 250;
/// Name of the file that a node replaces when it switches to the state of an installed snapshot. The error of a failed
/// switch contains this name.
const SWITCH_FILE: &str = "INSTALLED";
/// Maximum time for which the simulation waits for the first answered write after a fault.
const MAX_GAP: Duration = Duration::from_secs(8);

/// Returns the name and address of the node `id`, as the membership has them.
fn info_of(id: ProcessId) -> NodeInfo {
    NodeInfo::at(format!("node{id}"))
}

struct Inner {
    settings: Settings,
    network: Network,
    /// All nodes that ever were members, by their ids, which are never used again.
    nodes: RefCell<BTreeMap<ProcessId, Rc<NodeParts>>>,
    /// Ids of the nodes that have not been removed.
    present: RefCell<Vec<ProcessId>>,
    /// Member without a vote; `None` if all members vote, as in half of the seeds.
    learner: Cell<Option<ProcessId>>,
    /// True while a new node is joining in place of another one.
    is_replacing: Cell<bool>,
    /// Nodes that have found their files damaged and must be replaced.
    broken: RefCell<BTreeSet<ProcessId>>,
    truth: Truth,
    logs: Logs,
    history: History,
    /// Counter from which all clients take numbers, so that each request and each value has a number of its own.
    numbers: Rc<Cell<u64>>,
    /// True once the clients must send no further requests. Nodes that find damage in their files are still replaced
    /// after this.
    is_stopping: Cell<bool>,
    /// True while the clients send no requests.
    is_quiet: Cell<bool>,
    /// Virtual time of the last answered write.
    last_write: Cell<Duration>,
    gaps: RefCell<Vec<Gap>>,
    /// Number of faults in effect at present. `crowded_at` is the last time at which there were more than one.
    active: Cell<i32>,
    crowded_at: Cell<Duration>,
    /// Number of faults that affect each node at present. A node works normally again when this number falls to 0.
    down: RefCell<BTreeMap<ProcessId, u32>>,
}

/// A simulated cluster. A clone refers to the same cluster.
#[derive(Clone)]
pub struct Cluster(Rc<Inner>);

impl Cluster {
    pub(crate) fn new(settings: Settings) -> Self {
        let parts = |id| (id, Rc::new(NodeParts::new(id, settings.seed * 100 + id)));
        let learner = settings.seed.is_multiple_of(2).then_some(settings.nodes + 1);
        let nodes: BTreeMap<_, _> = (1..=settings.nodes).chain(learner).map(parts).collect();
        let network = Network::new(settings.plant);
        let truth = Truth::of_voters(settings.nodes as usize);
        network.set_learner(learner);
        Self(Rc::new(Inner {
            network,
            learner: Cell::new(learner),
            broken: RefCell::default(),
            present: RefCell::new(nodes.keys().copied().collect()),
            nodes: RefCell::new(nodes),
            is_replacing: Cell::default(),
            logs: Logs::new(truth.clone()),
            truth,
            history: History::default(),
            numbers: Rc::new(Cell::new(1)),
            is_stopping: Cell::new(false),
            is_quiet: Cell::new(false),
            last_write: Cell::default(),
            gaps: RefCell::default(),
            active: Cell::default(),
            crowded_at: Cell::default(),
            down: RefCell::default(),
            settings,
        }))
    }

    pub(crate) fn network(&self) -> &Network {
        &self.0.network
    }

    /// Returns the counter from which all clients take the numbers of their requests and values.
    pub(crate) fn numbers(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.0.numbers)
    }

    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    pub(crate) fn truth(&self) -> &Truth {
        &self.0.truth
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Returns the measured gaps: the times from each fault to the next answered write.
    pub(crate) fn gaps(&self) -> Vec<Gap> {
        self.0.gaps.borrow().clone()
    }

    /// Returns the virtual time of the last answered write.
    pub(crate) fn last_write(&self) -> Duration {
        self.0.last_write.get()
    }

    /// Ends all nodes. The nodes refer to each other through the network, so they would not be dropped otherwise.
    pub(crate) fn end_all(&self) {
        for (id, parts) in &*self.0.nodes.borrow() {
            self.0.network.disconnect(*id);
            kill(*id);
            drop(parts.running.take());
        }
    }

    /// Makes the clients stop after their present request.
    pub(crate) fn stop_clients(&self) {
        self.0.is_stopping.set(true);
    }

    /// Starts a node that is down, even if faults affect it. Does nothing if the node must be replaced.
    pub(crate) async fn revive(&self, id: ProcessId) {
        self.0.down.borrow_mut().remove(&id);
        if !self.is_broken(id) {
            self.start(id).await;
        }
    }

    fn is_broken(&self, id: ProcessId) -> bool {
        self.0.broken.borrow().contains(&id)
    }

    /// Returns true if any node must be replaced, or is being replaced.
    pub(crate) fn has_broken(&self) -> bool {
        !self.0.broken.borrow().is_empty()
    }

    /// Returns true if any node must be replaced, or a new node is joining in place of another.
    pub(crate) fn is_replacing(&self) -> bool {
        self.has_broken() || self.0.is_replacing.get()
    }

    pub(crate) fn plant(&self) -> Option<Plant> {
        self.0.settings.plant
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.is_stopping.get()
    }

    /// Returns true while the clients send no requests.
    pub(crate) fn is_quiet(&self) -> bool {
        self.0.is_quiet.get()
    }

    pub(crate) fn running(&self, node: ProcessId) -> Option<Running> {
        self.0.nodes.borrow().get(&node)?.running.borrow().clone()
    }

    pub(crate) fn any_node(&self) -> ProcessId {
        let present = self.0.present.borrow();
        present[random(0..present.len() as u64) as usize]
    }

    /// If `action` is a write, stores the present time as the time of the last answered write.
    pub(crate) fn answered(&self, action: &Action) {
        if !action.is_read() {
            self.0.last_write.set(now());
        }
    }

    /// Returns the ids of the nodes that have not been removed.
    pub(crate) fn ids(&self) -> Vec<ProcessId> {
        self.0.present.borrow().clone()
    }

    /// Returns the ids of the members with a vote.
    pub(crate) fn voters(&self) -> BTreeSet<ProcessId> {
        self.ids().into_iter().filter(|id| Some(*id) != self.0.learner.get()).collect()
    }

    pub(crate) fn parts(&self, id: ProcessId) -> Rc<NodeParts> {
        Rc::clone(&self.0.nodes.borrow()[&id])
    }

    /// Starts the node `id` in its simulated process, and waits until the node runs. Does nothing if it is already
    /// starting.
    pub(crate) async fn start(&self, id: ProcessId) {
        let parts = self.parts(id);
        if parts.is_starting.replace(true) {
            while parts.is_starting.get() {
                sleep(Duration::from_millis(1)).await;
            }
            return;
        }
        let (cluster, (sender, receiver)) = (self.clone(), tokio::sync::oneshot::channel());
        spawn(id, async move {
            cluster.start_in_process(id, &parts).await;
            parts.is_starting.set(false);
            let _ = sender.send(());
        });
        // The node may be killed while it starts.
        let is_running = receiver.await.is_ok() && self.running(id).is_some();
        if is_running {
            self.watch(id);
        }
        record(id, if is_running { "runs" } else { "has not started" });
    }

    async fn start_in_process(&self, id: ProcessId, parts: &NodeParts) {
        loop {
            let (cluster, crashes) = (self.clone(), parts.crashes.get());
            let failed = move |reason: String| cluster.run_failed(id, crashes, &reason);
            let reports = (&self.0.truth, &self.0.logs);
            match parts.start(&self.0.network, reports, self.plant(), failed).await {
                Ok(()) => return,
                Err(error) if parts.is_disk_full() => {
                    record(id, format!("waits for room: {error}"));
                    sleep(Duration::from_millis(100)).await;
                }
                // Reporting the failure kills the node's process, so a task of another process does it.
                Err(error) => {
                    let cluster = self.clone();
                    return spawn(OUTSIDE, async move { cluster.run_failed(id, crashes, &error.to_string()) });
                }
            }
        }
    }

    /// Adds a line to the event log for each term in which the node leads. If the node's consensus ends by itself,
    /// reports that the node cannot continue.
    fn watch(&self, id: ProcessId) {
        let Some(consensus) = self.0.network.node(id) else { return };
        let (cluster, crashes) = (self.clone(), self.parts(id).crashes.get());
        let mut metrics = consensus.raft().metrics();
        // A crash of the node drops this task.
        spawn(id, async move {
            let mut led = 0;
            while metrics.changed().await.is_ok() {
                let (ended, term) = {
                    let seen = metrics.borrow_watched();
                    (seen.running_state.clone(), seen.state.is_leader().then_some(seen.current_term))
                };
                if let Some(term) = term.filter(|term| *term != led) {
                    led = term;
                    record(id, format!("leads in term {term}"));
                }
                if let Err(fatal) = ended {
                    return spawn(OUTSIDE, async move { cluster.run_failed(id, crashes, &fatal.to_string()) });
                }
            }
        });
    }

    /// Founds the cluster, and creates the objects that the clients use.
    pub(crate) async fn found(&self) {
        let members = self.voters().into_iter().map(|id| (NodeId(id), info_of(id))).collect();
        let first = self.0.network.node(1).expect("node 1 runs");
        first.found(members).await.expect("a new cluster can be founded");
        for command in creations() {
            while !self.propose(command.clone()).await {
                sleep(Duration::from_millis(50)).await;
            }
        }
        if let Some(learner) = self.0.learner.get() {
            self.add_learner(learner).await;
        }
    }

    /// Proposes a command on the node that leads. Returns false if no node leads or the command fails.
    async fn propose(&self, command: bytes::Bytes) -> bool {
        let Some((leader, running)) = self.leader().and_then(|id| Some((id, self.running(id)?))) else { return false };
        let (sender, receiver) = tokio::sync::oneshot::channel();
        spawn(leader, async move {
            let _ = sender.send(running.propose(&command, None).await.is_ok());
        });
        receiver.await == Ok(true)
    }

    /// Returns the node that leads in the highest term, according to the running nodes; `None` if no node leads.
    pub(crate) fn leader(&self) -> Option<ProcessId> {
        let leads = |id: ProcessId| match self.0.network.node(id)?.member().leadership() {
            Leadership::Leader { term } => Some((term, id)),
            Leadership::Follower { .. } => None,
        };
        self.ids().into_iter().filter_map(leads).max().map(|(_, id)| id)
    }

    /// Adds `change` to the number of faults in effect: 1 when a fault begins, -1 when it ends.
    pub(crate) fn note_faults(&self, change: i32) {
        let before = self.0.active.get();
        self.0.active.set(before + change);
        if before > 1 || before + change > 1 {
            self.0.crowded_at.set(now());
        }
    }

    /// Measures the time from now until the next answered write. If a majority of the nodes works during the fault, the
    /// cluster must answer within [`ANSWER_WITHIN`].
    pub(crate) fn measure_gap(&self, fault: Fault, victim: ProcessId) {
        let (cluster, begun) = (self.clone(), now());
        let leaves_majority = fault.kind.leaves_majority() && self.0.settings.nodes > 2;
        spawn(OUTSIDE, async move {
            while cluster.0.last_write.get() <= begun && now() < begun + MAX_GAP && !cluster.is_stopping() {
                sleep(Duration::from_millis(1)).await;
            }
            if cluster.is_stopping() {
                return;
            }
            let lasted = now() - begun;
            let was_crowded = cluster.0.crowded_at.get() >= begun || cluster.0.active.get() > 1;
            if lasted > ANSWER_WITHIN && leaves_majority && !was_crowded {
                let text = format!("no write was answered for {} ms during one fault: {fault}", lasted.as_millis());
                cluster.0.truth.violation(victim, text);
            }
            record(OUTSIDE, format!("a write is answered {} ms after fault {}", lasted.as_millis(), fault.number));
            cluster.0.gaps.borrow_mut().push(Gap { kind: fault.kind, lasted });
        });
    }

    pub(crate) fn begin(&self, fault: &Fault, victim: ProcessId) {
        let parts = self.parts(victim);
        let others = || self.ids().into_iter().filter(move |id| *id != victim);
        let network = &self.0.network;
        match fault.kind {
            FaultKind::PowerLoss | FaultKind::Kill => self.crash(victim, fault.kind),
            FaultKind::PowerCut => self.cut_power(victim, random(0..60)),
            FaultKind::Restarted => self.restart_soon(victim),
            FaultKind::LostPromises => self.lose_promises(victim),
            FaultKind::Transfer => self.transfer(),
            FaultKind::Reconfigured => {
                self.crash(victim, fault.kind);
                parts.options.set(NodeOptions::with_backend(parts.options.get().backend));
                record(victim, format!("next: {:?}", parts.options.get()));
            }
            FaultKind::Flipped => {
                self.crash(victim, fault.kind);
                self.flip(victim);
            }
            FaultKind::FullDisk => {
                let free = parts.fill_disk(random(0..600_000));
                record(victim, format!("has {free} bytes of free disk"));
            }
            FaultKind::AllPowerLoss => self.crash_all(fault),
            FaultKind::SlowThenPowerLoss => {
                self.slow_down(SLOW_MICROS);
                let (cluster, fault) = (self.clone(), *fault);
                spawn(OUTSIDE, async move {
                    sleep(SLOW_BEFORE_LOSS).await;
                    cluster.crash_all(&fault);
                });
            }
            FaultKind::Isolated | FaultKind::CutInstall => others().for_each(|other| {
                network.cut(victim, other);
                network.cut(other, victim);
            }),
            FaultKind::Deaf => others().for_each(|other| network.cut(other, victim)),
            FaultKind::Mute => others().for_each(|other| network.cut(victim, other)),
            FaultKind::Partition => {
                if let Some(other) = others().find(|other| *other > victim).or_else(|| others().next()) {
                    network.cut(victim, other);
                    network.cut(other, victim);
                }
            }
            FaultKind::StuckSync => parts.faults.is_stuck.set(true),
            FaultKind::SlowSync => parts.faults.slow_micros.set(SLOW_MICROS),
            FaultKind::FailingSync => self.fail_syncs(victim),
            FaultKind::Stopped => stop(victim),
            FaultKind::ClockStep => {
                let step = random(0..20_000_000) as i64 - 10_000_000;
                let before = parts.clock_error.fetch_add(step, Relaxed);
                self.0.truth.clock_error(victim, before + step);
            }
            FaultKind::Replaced => self.replace(victim),
            FaultKind::Loss => network.set_loss(200),
            FaultKind::Delay => network.set_delay(Duration::from_micros(50)..Duration::from_millis(50)),
        }
    }

    pub(crate) async fn end(&self, fault: &Fault, victim: ProcessId) {
        let parts = self.parts(victim);
        let network = &self.0.network;
        match fault.kind {
            FaultKind::PowerLoss
            | FaultKind::PowerCut
            | FaultKind::Kill
            | FaultKind::Reconfigured
            | FaultKind::Flipped => self.restart(victim).await,
            FaultKind::FullDisk => parts.empty_disk(),
            FaultKind::AllPowerLoss | FaultKind::SlowThenPowerLoss => {
                self.slow_down(0);
                for id in self.ids() {
                    self.restart(id).await;
                }
            }
            FaultKind::CutInstall => {
                self.until_purged(victim).await;
                self.mend(victim);
                self.cut_install(victim);
            }
            FaultKind::Isolated
            | FaultKind::Deaf
            | FaultKind::Mute
            | FaultKind::Partition
            | FaultKind::LostPromises => self.mend(victim),
            FaultKind::StuckSync => parts.faults.is_stuck.set(false),
            FaultKind::SlowSync => parts.faults.slow_micros.set(0),
            FaultKind::FailingSync => self.mend_syncs(victim).await,
            FaultKind::Stopped => resume(victim),
            FaultKind::ClockStep | FaultKind::Replaced | FaultKind::Restarted | FaultKind::Transfer => {}
            FaultKind::Loss => network.set_loss(0),
            FaultKind::Delay => network.set_delay(crate::network::USUAL_DELAY),
        }
    }

    fn crash_all(&self, fault: &Fault) {
        self.ids().into_iter().for_each(|id| self.crash(id, fault.kind));
    }

    /// Makes each fsync of all nodes take `micros` microseconds longer than usual.
    fn slow_down(&self, micros: u64) {
        self.0.nodes.borrow().values().for_each(|parts| parts.faults.slow_micros.set(micros));
    }

    /// Ends a node's process immediately, as the fault `kind` requires. After a power loss, the node's disk keeps all
    /// synced writes and a random part of the other writes.
    fn crash(&self, id: ProcessId, kind: FaultKind) {
        *self.0.down.borrow_mut().entry(id).or_default() += 1;
        let parts = self.parts(id);
        // The dropped parts of the node may still write. Those writes only reach the old disk.
        let disk = parts.disk.borrow().clone();
        let is_reused = self.plant() == Some(Plant::ReusedId);
        let next = match kind {
            _ if kind.keeps_writes() => disk.kill_process(),
            _ if is_reused => thalweg_disk::SimDisk::new(random(0..u64::MAX)),
            _ => disk.power_loss(random(0..u64::MAX)),
        };
        disk.power_off_after(0);
        self.0.network.disconnect(id);
        kill(id);
        parts.is_starting.set(false);
        parts.is_power_cut.set(false);
        drop(parts.running.take());
        if is_reused && !kind.keeps_writes() {
            parts.tables.clear();
        }
        parts.replace_disk(next);
    }

    /// Makes half of the voters forget that they promised their votes to the leader, which is node `id`. First cuts the
    /// leader off from the other half of the voters. These soon try to elect another leader; they have all log entries,
    /// because the clients send nothing. Then restarts the first half, which forgets its promises, and cuts the leader
    /// off from it too.
    fn lose_promises(&self, id: ProcessId) {
        let mut others: Vec<ProcessId> = self.voters().into_iter().filter(|other| *other != id).collect();
        let restarted = others.split_off(others.len() / 2);
        let cut = move |cluster: &Self, other| {
            cluster.0.network.cut(id, other);
            cluster.0.network.cut(other, id);
        };
        self.0.is_quiet.set(true);
        let cluster = self.clone();
        spawn(OUTSIDE, async move {
            sleep(SHORTEST / 2).await;
            others.iter().for_each(|other| cut(&cluster, *other));
            sleep(Duration::from_millis(random(700..1_100))).await;
            // The fault may have ended in the meantime.
            let still_cut = others.first().is_some_and(|other| cluster.0.network.is_cut(id, *other));
            for other in restarted.into_iter().filter(|_| still_cut) {
                cut(&cluster, other);
                cluster.restart_soon(other);
            }
            sleep(QUIET_AFTER).await;
            cluster.0.is_quiet.set(false);
        });
    }

    /// Kills a node's process, and starts it again within 60 ms.
    fn restart_soon(&self, id: ProcessId) {
        self.crash(id, FaultKind::Restarted);
        let cluster = self.clone();
        spawn(OUTSIDE, async move {
            sleep(Duration::from_millis(random(1..60))).await;
            cluster.restart(id).await;
        });
    }

    /// Asks the leader to transfer its leadership. The leader may refuse.
    fn transfer(&self) {
        let Some((leader, consensus)) = self.leader().and_then(|id| Some((id, self.0.network.node(id)?))) else {
            return;
        };
        spawn(leader, async move {
            let text = match consensus.transfer(None).await {
                Ok(to) => format!("has transferred its leadership to node {}", to.get()),
                Err(error) => format!("does not transfer its leadership: {error}"),
            };
            record(leader, text);
        });
    }

    /// Repairs all network links of a node, in both directions.
    fn mend(&self, id: ProcessId) {
        self.0.nodes.borrow().keys().for_each(|&other| {
            self.0.network.mend(id, other);
            self.0.network.mend(other, id);
        });
    }

    /// Waits until the leader has freed log entries that the node lacks, so that the node needs a snapshot. Waits at
    /// most for [`PURGED_WITHIN`].
    async fn until_purged(&self, id: ProcessId) {
        let begun = now();
        let lacks = |cluster: &Self| {
            let leader = cluster.leader().filter(|leader| *leader != id)?;
            let purged = cluster.0.network.node(leader)?.reader().purged()?;
            Some(purged.index.0 > cluster.running(id)?.applied())
        };
        while now() < begun + PURGED_WITHIN && lacks(self) != Some(true) {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Disturbs the node's install of its next snapshot, in one of two ways chosen at random: cuts the power of the
    /// node during the install or soon afterwards, and starts the node again; or makes the first attempts of the node
    /// to switch to the snapshot's state fail.
    fn cut_install(&self, id: ProcessId) {
        let (cluster, parts, begun) = (self.clone(), self.parts(id), now());
        let before = parts.received.get();
        let is_cut = random(0..3) > 0;
        if !is_cut {
            let attempts = random(1..9);
            parts.fail_switch(attempts);
            record(id, format!("will fail {attempts} times to switch to a snapshot"));
        }
        spawn(OUTSIDE, async move {
            if !is_cut {
                sleep(INSTALL_WITHIN).await;
                parts.mend_switch();
                return;
            }
            while parts.received.get() == before {
                if now() > begun + INSTALL_WITHIN || parts.running.borrow().is_none() {
                    return;
                }
                sleep(Duration::from_micros(200)).await;
            }
            record(id, INSTALL_CUT);
            cluster.cut_power(id, random(0..INSTALL_OPERATIONS));
            sleep(SLOW_BEFORE_LOSS + Duration::from_millis(random(1..300))).await;
            cluster.restart(id).await;
        });
    }

    /// Cuts the power of a node after `operations` more disk operations, or after [`SLOW_BEFORE_LOSS`] at the latest.
    fn cut_power(&self, id: ProcessId, operations: u64) {
        let parts = self.parts(id);
        let disk = parts.disk.borrow().clone();
        let last = disk.operations() + operations;
        disk.power_off_after(operations);
        parts.is_power_cut.set(true);
        let (cluster, begun) = (self.clone(), now());
        spawn(OUTSIDE, async move {
            while disk.operations() < last && now() < begun + SLOW_BEFORE_LOSS && parts.is_power_cut.get() {
                sleep(Duration::from_micros(200)).await;
            }
            cluster.crash(id, FaultKind::PowerCut);
        });
    }

    /// Flips a bit in a file of the node. Does nothing if a member already has a flipped bit, because damage on several
    /// members can lose data.
    fn flip(&self, id: ProcessId) {
        let is_damaged = |id: &ProcessId| self.parts(*id).is_flipped.get();
        if self.ids().iter().any(is_damaged) {
            return;
        }
        let parts = self.parts(id);
        if let Some(place) = parts.flip_bit() {
            parts.is_flipped.set(true);
            record(id, format!("a bit flips in {place}"));
        }
    }

    async fn restart(&self, id: ProcessId) {
        let is_whole = {
            let mut down = self.0.down.borrow_mut();
            let faults = down.entry(id).or_default();
            *faults = faults.saturating_sub(1);
            *faults == 0
        };
        if is_whole && self.ids().contains(&id) && self.running(id).is_none() && !self.is_broken(id) {
            self.start(id).await;
        }
    }
}
