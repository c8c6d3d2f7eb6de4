//! Three real nodes, each in a network namespace of its own, with faults, and clients of three protocols at once.
//!
//! Clients read, put, swap and delete the same keys over HTTP, RESP and the native protocol, on every node. Meanwhile
//! nodes are killed with SIGKILL (one, or all at once), stopped with SIGSTOP, cut off (both ways, one way, and from one
//! of two), leadership is handed over, and nodes are replaced: a new node joins and votes, and an old one is removed,
//! whose machine later joins as a new node. Each node has a file system of its own, which is frozen or full for a time,
//! or loses its power together with the others: what was not synced is gone. Each key's history must be linearizable,
//! with an operation whose outcome is unknown at any later time or never, and one that was answered with "no effect"
//! never. A stream and a consumer group have clients, too, whose histories are checked (`jobs`). At the end the states
//! of all nodes are equal.
//!
//! The nodes have different backends, one of which is always SQLite, and persist their states several times a second.
//!
//! The links between the nodes leave their machines as far as the nodes can tell, so they use TLS with the secret.
//!
//! The wall clock of one node at a time is stepped by hours, forwards or backwards, and stays wrong while other faults
//! follow. A library that the nodes load does that (`clocks`). The time of the data must not follow: at the end, a key
//! whose time to live is shorter than the steps is still there, and one that has expired is gone.
//!
//! Needs root and network namespaces; otherwise the test says that it is skipped. Without loop devices it skips the
//! faults of disks, without a C compiler those of clocks, and says so. With Go, the checker in `peers/porcupine` checks
//! the histories of the keys, too. Variables: `THALWEG_FAULT_SECONDS` is the duration of the faults (25 by default; 0
//! runs none). From 120 s on, each possible kind must have happened. `SEED` chooses the faults, `THALWEG_FAULT_KINDS`
//! names the kinds, such as `Freeze,Replace`, and `THALWEG_FAULT_HISTORY` names a file to which the history of the keys
//! is written.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "what happened, and why the test is skipped")]

#[path = "../kills/clock.rs"]
mod clock;
#[path = "../kills/group_oracle.rs"]
mod group_oracle;
#[path = "../mount/mod.rs"]
mod mount;
#[path = "../node/mod.rs"]
mod node;

mod clients;
mod clocks;
mod disks;
mod history;
mod jobs;
mod network;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clients::{Client, Protocol, Shared};
use clock::{Dice, Moments, seed};
use clocks::Clocks;
use disks::Disk;
use history::History;
use mount::done;
use network::{HUB, Network};
use node::{Node, THALWEG, clean, command, run};

const NODES: usize = 3;
/// Number of machines: one more than nodes, for a node that takes the place of another.
const MACHINES: usize = NODES + 1;
/// Backends of the nodes, in the order in which the nodes are made.
type Backends = [&'static str; 4];
/// Options with which a node persists its state several times a second, so that faults hit that.
const PERSISTING: [&str; 4] = ["--max-replay-bytes", "128KiB", "--maintenance-interval", "200ms"];
/// Longest time for the cluster to come together again.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time after which clients change to other keys, so that each key has few operations of unknown outcome.
const EPOCH: Duration = Duration::from_secs(3);
/// Duration of the faults in seconds from which each kind must happen.
const ALL_KINDS_FROM: u64 = 120;
/// Shortest step of a wall clock in seconds, and the range above it.
const CLOCK_STEP: (u64, u64) = (7200, 7200);
/// Time to live of a key that must still be there at the end: less than the shortest step of a clock, and more than the
/// duration of the longest run.
const LASTING_SECONDS: u64 = 6000;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGKILL of a node, and a new start.
    Kill,
    /// SIGKILL of all nodes at once.
    KillAll,
    /// SIGSTOP, and SIGCONT later.
    Pause,
    /// A node neither sends to the others nor receives.
    Isolate,
    /// A node receives messages, but the messages that it sends are lost.
    Mute,
    /// A node sends, but receives nothing.
    Deafen,
    /// Two of the nodes do not reach each other.
    CutPair,
    /// The leader hands over.
    Transfer,
    /// A new node joins on the free machine, and another one is removed.
    Replace,
    /// Nothing is written to the disk of a node.
    Freeze,
    /// The disk of a node is full.
    Fill,
    /// All nodes lose their power at once.
    LosePower,
    /// The wall clock of a node is set to another time. It stays wrong until that of another node is.
    StepClock,
}

const FAULTS: [Fault; 13] = [
    Fault::Kill,
    Fault::Freeze,
    Fault::StepClock,
    Fault::Isolate,
    Fault::Replace,
    Fault::Transfer,
    Fault::Fill,
    Fault::Pause,
    Fault::LosePower,
    Fault::Mute,
    Fault::KillAll,
    Fault::CutPair,
    Fault::Deafen,
];

impl Fault {
    fn needs_disks(self) -> bool {
        matches!(self, Self::Freeze | Self::Fill | Self::LosePower)
    }

    /// Returns the kinds for this run, in an order that depends on the seed, so that several short runs cover all of
    /// them.
    fn kinds((has_disks, has_clocks): (bool, bool), dice: &mut Dice) -> Vec<Self> {
        let named = std::env::var("THALWEG_FAULT_KINDS").ok();
        let is_named =
            |fault: &Self| named.as_ref().is_none_or(|named| named.split(',').any(|name| name == format!("{fault:?}")));
        let mut kinds: Vec<_> = FAULTS.into_iter().filter(|fault| has_disks || !fault.needs_disks()).collect();
        kinds.retain(|fault| has_clocks || *fault != Self::StepClock);
        kinds.retain(is_named);
        assert!(!kinds.is_empty(), "THALWEG_FAULT_KINDS names none of {FAULTS:?}");
        let first = dice.below(kinds.len() as u64) as usize;
        kinds.rotate_left(first);
        kinds
    }
}

/// Minimum duration and range, in milliseconds, of each fault and of the pause after it.
#[derive(Clone, Copy)]
struct Pace {
    fault: (u64, u64),
    pause: (u64, u64),
}

impl Pace {
    /// Returns the durations for a run of this many seconds. Short runs have short faults, so that many of them fit.
    fn of(seconds: u64) -> Self {
        if seconds < 60 {
            Self { fault: (400, 800), pause: (200, 400) }
        } else {
            Self { fault: (500, 2500), pause: (300, 1200) }
        }
    }

    fn choose((least, more): (u64, u64), dice: &mut Dice) -> Duration {
        Duration::from_millis(least + dice.below(more))
    }
}

/// Stands for a machine: a disk of its own, if possible, and the node that runs on it.
struct Machine {
    /// Dropped before the disk that it uses.
    node: Option<Node>,
    /// Disk of its own, if that is possible here.
    disk: Option<Disk>,
    /// Its node; `None` while it has none.
    placed: Option<Placed>,
}

/// A node of a machine, whether or not it runs.
#[derive(Clone)]
struct Placed {
    data: PathBuf,
    name: String,
    backend: &'static str,
}

/// Returns SQLite and then the other backends, in an order that depends on the seed.
fn backends(dice: &mut Dice) -> Backends {
    let mut others = ["lsm", "redb", "memory"];
    others.rotate_left(dice.below(3) as usize);
    let [second, third, fourth] = others;
    ["sqlite", second, third, fourth]
}

struct Cluster {
    network: Network,
    /// Wall clocks of the machines, if that is possible here.
    clocks: Option<Clocks>,
    /// Dropped before the directory, so that the disks are unmounted.
    machines: Vec<Machine>,
    dir: tempfile::TempDir,
    join: String,
    admin: String,
    backends: Backends,
    /// Number of nodes so far.
    made: usize,
    shared: Arc<Shared>,
}

impl Cluster {
    fn start(network: Network, shared: Arc<Shared>, backends: Backends) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tokens = run(command().args(["cluster", "create-token", "--json"]), b"").ok();
        let tokens: serde_json::Value = serde_json::from_str(&tokens).unwrap();
        let text = |name: &str| tokens[name].as_str().unwrap().to_owned();
        let create = |number| Disk::create(dir.path(), &format!("disk{number}"));
        let disks = disks::check().and_then(|()| (0..MACHINES).map(create).collect::<Result<Vec<_>, _>>());
        let disks = disks.map_or_else(
            |reason| {
                node::skip("frozen and full disks and the loss of power, among other faults", &reason);
                (0..MACHINES).map(|_| None).collect::<Vec<_>>()
            },
            |disks| disks.into_iter().map(Some).collect(),
        );
        let clocks = Clocks::create(dir.path(), MACHINES);
        let clocks = clocks.map_err(|reason| node::skip("steps of wall clocks, among other faults", &reason)).ok();
        let machines = disks.into_iter().map(|disk| Machine { node: None, disk, placed: None }).collect();
        let (join, admin) = (text("join_token"), text("admin_token"));
        let mut cluster = Self { network, clocks, machines, dir, join, admin, backends, made: 0, shared };
        (0..NODES).for_each(|number| cluster.place(number));
        (0..NODES).for_each(|number| cluster.restart(number));
        cluster.until_whole();
        cluster
    }

    /// Gives a machine a new node, which does not run yet.
    fn place(&mut self, number: usize) {
        let name = format!("n{}", self.made);
        let backend = self.backends[self.made % self.backends.len()];
        self.made += 1;
        let machine = &mut self.machines[number];
        let root = machine.disk.as_ref().map_or(self.dir.path(), Disk::path);
        machine.placed = Some(Placed { data: root.join(&name), name, backend });
    }

    fn restart(&mut self, number: usize) {
        let address = |number: usize, port: u16| format!("{}:{port}", Network::host(number));
        let Placed { data, name, backend } = self.machines[number].placed.clone().expect("the machine has a node");
        let is_founder = self.made == NODES;
        // A founder lists all founders, itself included; a node that joins lists the others.
        let others = self.used().into_iter().filter(|other| is_founder || *other != number);
        let join: Vec<_> = others.map(|other| address(other, 7072)).collect();
        let mut binary = clean("ip");
        binary.args(["netns", "exec", &self.network.name(number), THALWEG]);
        binary.env("THALWEG_JOIN_TOKEN", &self.join);
        if let Some(clocks) = &self.clocks {
            clocks.set_for(number, &mut binary);
        }
        let (http, native, resp) = (address(number, 7070), address(number, 7071), address(number, 7379));
        let (own, join, founders) = (address(number, 7072), join.join(","), NODES.to_string());
        let mut flags = vec!["--http", &http, "--native", &native, "--resp", &resp, "--cluster", &own];
        flags.extend(["--allow-unprotected", "--node-name", &name, "--join", &join]);
        flags.extend(["--resp-databases", "0=keyspace:registers", "--backend", backend]);
        flags.extend(PERSISTING);
        if is_founder {
            flags.extend(["--expect", &founders]);
        }
        self.machines[number].node = Some(Node::start_of(binary, &data, &flags));
    }

    /// Numbers of the machines that have a node.
    fn used(&self) -> Vec<usize> {
        (0..MACHINES).filter(|number| self.machines[*number].placed.is_some()).collect()
    }

    fn take(&mut self, number: usize) -> Node {
        self.machines[number].node.take().expect("the node runs")
    }

    /// Runs the command against a node.
    fn cli(&self, number: usize, args: &[&str]) -> node::Run {
        let mut command = clean("ip");
        command.args(["netns", "exec", &self.network.name(HUB), THALWEG]).args(args);
        command.env("THALWEG_SERVER", format!("http://{}:7070", Network::host(number)));
        run(command.env("THALWEG_ADMIN_TOKEN", &self.admin), b"")
    }

    /// Returns the members as a node shows them; none if it does not answer.
    fn members(&self, number: usize) -> Vec<serde_json::Value> {
        let members = self.cli(number, &["cluster", "members", "--json"]).out;
        let members: serde_json::Value = serde_json::from_str(&members).unwrap_or_default();
        members["members"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until all nodes run, vote and answer reads.
    fn until_whole(&self) {
        let used = self.used();
        let is_whole = |number: &usize| {
            let members = self.members(*number);
            members.len() == used.len()
                && members.iter().all(|member| member["role"] == "voter" && member["status"] == "alive")
                && self.cli(*number, &["cluster", "status", "--json"]).out.contains("\"leader\":\"")
        };
        let shown = || used.iter().map(|number| self.cli(*number, &["cluster", "members"]).out).collect::<String>();
        until_or("the cluster is whole", || used.iter().all(is_whole), shown);
    }

    fn node(&self, number: usize) -> &Node {
        self.machines[number].node.as_ref().expect("the node runs")
    }

    fn leader(&self) -> Option<usize> {
        let leads = |number: &usize| self.cli(*number, &["cluster", "status", "--json"]).out.contains("\"leads\":true");
        self.used().into_iter().find(leads)
    }

    /// Lets a new node join on the free machine, and removes another, whose machine is free then. The others continue.
    fn replace(&mut self, old: usize) {
        let new = (0..MACHINES).find(|number| self.machines[*number].placed.is_none()).expect("a free machine");
        let stay = self.used().into_iter().find(|number| *number != old).expect("another node");
        let Placed { data: old_data, name: old_name, .. } = self.machines[old].placed.clone().expect("it has a node");
        self.place(new);
        self.restart(new);
        let name = self.machines[new].placed.clone().expect("it has a node").name;
        let votes = |member: &serde_json::Value| member["name"] == *name && member["role"] == "voter";
        until("the new node votes", || self.members(stay).iter().any(votes));
        let is_removed = || {
            // It may fail because the leader changes, or because the node leads.
            let is_gone = |members: Vec<serde_json::Value>| {
                !members.is_empty() && members.iter().all(|member| member["name"] != *old_name)
            };
            let is_removed =
                self.cli(stay, &["cluster", "remove", &old_name]).code == Some(0) || is_gone(self.members(stay));
            if !is_removed && self.leader() == Some(old) {
                self.cli(stay, &["cluster", "transfer", &name]);
            }
            is_removed
        };
        until("the old node is removed", is_removed);
        self.shared.nodes.lock().unwrap().iter_mut().filter(|node| **node == old).for_each(|node| *node = new);
        self.take(old).kill();
        fs::remove_dir_all(old_data).expect("its directory is there");
        self.machines[old].placed = None;
    }

    /// Writes more than the prepared segments of a node take, so that a full disk matters.
    fn write_much(&self, number: usize) {
        let value = "x".repeat(1 << 20);
        let namespace = self.network.name(HUB);
        let url = format!("http://{}:7070/v1/kv/much/key", Network::host(number));
        let writing = thread::spawn(move || {
            network::enter(&namespace);
            let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(1))).build();
            // They fail if the leader's disk is the full one.
            (0..16).take_while(|_| ureq::Agent::from(config.clone()).put(&url).send(value.as_str()).is_ok()).count()
        });
        writing.join().expect("a client");
    }

    /// Stores a key that expires long after the end of the faults, and one that expires at once.
    fn put_expiring(&self) {
        for (key, ttl) in [("lasting", LASTING_SECONDS), ("short", 1)] {
            let url = format!("http://{}:7070/v1/kv/expiring/{key}?ttl={ttl}", Network::host(0));
            until("a key is stored", || self.http(&url, true) == Some(204));
        }
    }

    /// Checks on a node that only the key has expired whose time is over.
    fn check_expired(&self, number: usize) {
        for (key, expected) in [("lasting", 200), ("short", 404)] {
            let url = format!("http://{}:7070/v1/kv/expiring/{key}", Network::host(number));
            let mut status = None;
            until("a key is read", || {
                status = self.http(&url, false).filter(|status| *status != 503);
                status.is_some()
            });
            assert_eq!(status, Some(expected), "{key} on m{number}");
        }
    }

    /// Sends a PUT or a GET, and returns the status.
    fn http(&self, url: &str, is_put: bool) -> Option<u16> {
        let (namespace, url) = (self.network.name(HUB), url.to_owned());
        let sending = thread::spawn(move || {
            network::enter(&namespace);
            let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(5)));
            let agent = ureq::Agent::from(config.http_status_as_error(false).build());
            let sent = if is_put { agent.put(&url).send("v") } else { agent.get(&url).call() };
            sent.ok().map(|reply| reply.status().as_u16())
        });
        sending.join().expect("a client")
    }

    /// Steps the wall clock of a node, and waits until another node notices. All other clocks are right, as all nodes
    /// know before: the time of the data follows the clocks of a majority.
    fn step_clock(&self, number: usize, other: usize, dice: &mut Dice) {
        let (least, more) = CLOCK_STEP;
        let seconds = i64::try_from(least + dice.below(more)).expect("some hours");
        let seconds = if dice.below(2) == 0 { seconds } else { -seconds };
        let clocks = self.clocks.as_ref().expect("clocks");
        clocks.set_right();
        let is_right = |member: &serde_json::Value| {
            member["clock_ahead_millis"].as_i64().is_some_and(|ahead| ahead.abs() < 60_000)
        };
        let sees_all_right = |node: &usize| {
            let members = self.members(*node);
            !members.is_empty() && members.iter().all(is_right)
        };
        until("all clocks are right", || self.used().iter().all(sees_all_right));
        clocks.step(number, seconds);
        let name = self.machines[number].placed.clone().expect("it has a node").name;
        let has_stepped = |member: &serde_json::Value| {
            let ahead = member["clock_ahead_millis"].as_i64().unwrap_or_default();
            member["name"] == *name && (ahead - seconds * 1000).abs() < 60_000
        };
        until("another node sees the step of a clock", || self.members(other).iter().any(has_stepped));
        println!("the clock of m{number} is {seconds} s ahead");
    }

    /// Causes a fault for a time, and ends it. Returns false if it did not happen.
    fn suffer(&mut self, fault: Fault, time: Duration, dice: &mut Dice) -> bool {
        // Half of the faults hit the leader; the others, any node.
        let used = self.used();
        let any = used[dice.below(used.len() as u64) as usize];
        let hit = if dice.below(2) == 0 { self.leader().unwrap_or(any) } else { any };
        let others: Vec<_> = used.iter().copied().filter(|other| *other != hit).collect();
        let began = Instant::now();
        let cut = |pairs: &[(usize, usize)]| {
            pairs.iter().for_each(|(from, to)| self.network.cut(*from, *to));
            thread::sleep(time);
            pairs.iter().for_each(|(from, to)| self.network.heal(*from, *to));
        };
        let out: Vec<_> = others.iter().map(|other| (hit, *other)).collect();
        let back: Vec<_> = others.iter().map(|other| (*other, hit)).collect();
        let disk = self.machines[hit].disk.as_ref();
        let mut has_happened = true;
        match fault {
            Fault::Isolate => cut(&[&out[..], &back[..]].concat()),
            Fault::Mute => cut(&out),
            Fault::Deafen => cut(&back),
            Fault::CutPair => cut(&[(hit, others[0]), (others[0], hit)]),
            Fault::Pause => {
                self.node(hit).signal(libc::SIGSTOP);
                thread::sleep(time);
                self.node(hit).signal(libc::SIGCONT);
            }
            Fault::Kill => {
                self.take(hit).kill();
                thread::sleep(time / 2);
                self.restart(hit);
            }
            Fault::KillAll => {
                self.end_all(&used);
                used.iter().for_each(|number| self.restart(*number));
            }
            // It may fail because nobody leads at the moment.
            Fault::Transfer => has_happened = self.cli(any, &["cluster", "transfer"]).code == Some(0),
            Fault::StepClock => {
                self.step_clock(hit, others[0], dice);
                thread::sleep(time);
            }
            Fault::Replace => self.replace(hit),
            Fault::Freeze => disk.expect("a disk").freeze(time).wait(),
            Fault::Fill => {
                let disk = disk.expect("a disk");
                disk.fill();
                self.write_much(others[0]);
                thread::sleep(time);
                disk.empty();
            }
            Fault::LosePower => {
                used.iter().for_each(|number| self.machines[*number].disk.as_ref().expect("a disk").lose_power());
                self.end_all(&used);
                for number in &used {
                    self.machines[*number].disk.as_mut().expect("a disk").mount_again();
                }
                used.iter().for_each(|number| self.restart(*number));
            }
        }
        println!("{fault:?} of m{hit} for {:?}{}", began.elapsed(), if has_happened { "" } else { ", in vain" });
        has_happened
    }

    /// Kills all nodes at once.
    fn end_all(&mut self, used: &[usize]) {
        let all: Vec<_> = used.iter().map(|number| self.take(*number)).collect();
        all.iter().for_each(|node| node.signal(libc::SIGKILL));
        all.into_iter().for_each(Node::kill);
    }
}

/// Repeats a check until it holds.
fn until(what: &str, holds: impl FnMut() -> bool) {
    until_or(what, holds, String::new);
}

fn until_or(what: &str, mut holds: impl FnMut() -> bool, shown: impl Fn() -> String) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}\n{}", shown());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn histories_are_linearizable_under_faults_in_a_real_network() {
    let seconds = std::env::var("THALWEG_FAULT_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    if seconds == 0 {
        println!("no faults, because THALWEG_FAULT_SECONDS is 0");
        return;
    }
    let network = match Network::create(MACHINES) {
        Ok(network) => network,
        Err(reason) => {
            node::skip("faults in network namespaces", &reason);
            return;
        }
    };
    let pace = Pace::of(seconds);
    let (seed, moments) = (seed("faults"), Moments::default());
    let mut dice = Dice::new(seed);
    let groups = Mutex::new((0..NODES).collect());
    let shared = Arc::new(Shared { epoch: AtomicU64::new(0), stop: AtomicBool::new(false), nodes: groups });
    let backends = backends(&mut dice);
    println!("backends {backends:?}");
    let mut cluster = Cluster::start(network, Arc::clone(&shared), backends);
    let has_disks = cluster.machines.iter().all(|machine| machine.disk.is_some());
    let kinds = Fault::kinds((has_disks, cluster.clocks.is_some()), &mut dice);
    cluster.cli(0, &["put", "registers", "other", "makes the keyspace"]).ok();
    cluster.cli(0, &["groups", "create", jobs::STREAM, jobs::GROUP, "--ack-deadline", "1s"]).ok();
    cluster.put_expiring();
    let clients: Vec<_> = (0..NODES)
        .flat_map(|number| [Protocol::Http, Protocol::Resp, Protocol::Native].map(|protocol| (number, protocol)))
        .enumerate()
        .map(|(client, (number, protocol))| {
            let (shared, moments) = (Arc::clone(&shared), moments.clone());
            let namespace = cluster.network.name(HUB);
            thread::spawn(move || {
                network::enter(&namespace);
                Client::new(client as u64, protocol, number, moments, seed).run(number, &shared)
            })
        })
        .collect();
    let of_stream: Vec<_> = (0..2 * NODES)
        .map(|client| {
            let (shared, moments, group) = (Arc::clone(&shared), moments.clone(), client % NODES);
            let namespace = cluster.network.name(HUB);
            thread::spawn(move || {
                network::enter(&namespace);
                let it = jobs::Client::new(client as u64, group, moments, seed);
                if client < NODES { it.produce(group, &shared) } else { it.work(group, &shared) }
            })
        })
        .collect();
    let began = Instant::now();
    let (mut faults, mut happened) = (0, Vec::new());
    let counting = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let mut last = Instant::now();
            while !shared.stop.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(50));
                if last.elapsed() >= EPOCH {
                    shared.epoch.fetch_add(1, Ordering::SeqCst);
                    last = Instant::now();
                }
            }
        })
    };
    let wants_all = seconds >= ALL_KINDS_FROM;
    let is_over = |happened: &Vec<Fault>| {
        let (elapsed, all) = (began.elapsed(), happened.len() == kinds.len());
        elapsed >= Duration::from_secs(seconds) && (all || !wants_all || elapsed >= Duration::from_secs(2 * seconds))
    };
    while !is_over(&happened) {
        // Each kind once, then any.
        let any = kinds[dice.below(kinds.len() as u64) as usize];
        let next = kinds.iter().copied().find(|kind| !happened.contains(kind)).unwrap_or(any);
        let time = Pace::choose(pace.fault, &mut dice);
        if cluster.suffer(next, time, &mut dice) && !happened.contains(&next) {
            happened.push(next);
        }
        faults += 1;
        thread::sleep(Pace::choose(pace.pause, &mut dice));
    }
    if wants_all {
        assert_eq!(happened.len(), kinds.len(), "SEED={seed}: only {happened:?} happened, of {kinds:?}");
    }
    cluster.until_whole();
    shared.stop.store(true, Ordering::SeqCst);
    counting.join().unwrap();
    let mut history = History::default();
    clients.into_iter().for_each(|client| history.add(client.join().expect("a client")));
    let mut observed = jobs::Observed::default();
    of_stream.into_iter().for_each(|client| observed.add(client.join().expect("a client of the stream")));
    // Every node shows the end of each history: nothing that was acknowledged is gone.
    let keys = history.keys();
    let (namespace, used) = (cluster.network.name(HUB), cluster.used());
    let last = thread::spawn(move || {
        network::enter(&namespace);
        let read = |number: &usize| {
            Client::new(100 + *number as u64, Protocol::Http, *number, moments.clone(), seed).read(&keys)
        };
        let drained = jobs::Client::new(100, used[0], moments.clone(), seed).drain();
        (used.iter().map(read).collect::<Vec<_>>(), drained)
    });
    let (read, (drained, group)) = last.join().expect("all keys are read");
    read.into_iter().for_each(|events| history.add(events));
    observed.add(drained);
    if let Some(path) = std::env::var_os("THALWEG_FAULT_HISTORY") {
        history.write(std::path::Path::new(&path)).unwrap();
    }
    let (used, context) = (cluster.used(), format!("SEED={seed}"));
    let digest = cluster.cli(used[0], &["cluster", "digest"]);
    let streams: Vec<_> =
        used.iter().map(|number| cluster.cli(*number, &["read", jobs::STREAM, "--json"]).ok()).collect();
    used.iter().for_each(|number| cluster.check_expired(*number));
    println!("{}, {faults} faults in {:?}", history.summary(), began.elapsed());
    history.check(&context);
    check_with_porcupine(&context, &history, cluster.dir.path());
    assert!(streams.iter().all(|stream| *stream == streams[0]), "{context}: the nodes show different streams");
    let records: Vec<serde_json::Value> = streams[0].lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    observed.check(&context, &records, &group);
    assert!(digest.out.contains(": equal"), "{context}: {digest:?}");
    used.into_iter().for_each(|number| cluster.take(number).stop());
}

/// Checks the history with the checker of other authors in `peers/porcupine`, if Go and the checker's module are there.
fn check_with_porcupine(context: &str, history: &History, dir: &Path) {
    let (checker, file) = (dir.join("porcupine"), dir.join("history.jsonl"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../peers/porcupine");
    let mut build = Command::new("go");
    build.args(["build", "-trimpath", "-o"]).arg(&checker).arg(".").current_dir(source);
    if let Err(reason) = done(&mut build) {
        node::skip("the check of histories with porcupine", &reason);
        return;
    }
    history.write(&file).expect("a file");
    let output = Command::new(&checker).args(["-timeout", "10s"]).arg(&file).output().expect("the checker starts");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("porcupine: {}", said.trim_end());
    // The code is 2 if it did not decide about a key in time.
    let is_good = matches!(output.status.code(), Some(0 | 2)) && said.contains(" 0 not, ");
    assert!(is_good, "{context}: {said}{}", String::from_utf8_lossy(&output.stderr));
}
