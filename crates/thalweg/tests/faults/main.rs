//! Three real nodes, each in a network namespace of its own, with faults, and clients of three protocols at once.
//!
//! Clients read, put, swap and delete the same keys over HTTP, RESP and the native protocol, on every node. Meanwhile nodes
//! are killed with SIGKILL (one, or all at once), stopped with SIGSTOP, cut off (both ways, one way, and from one of two),
//! and leadership is handed over. Each key's history must be linearizable, with an operation whose outcome is unknown at any
//! later time or never, and one that was answered with "no effect" never. At the end the states of all nodes are equal.
//!
//! The links between the nodes leave their machines as far as the nodes can tell, so they use TLS with the secret.
//!
//! Needs root and network namespaces; otherwise the test says that it is skipped. Variables:
//! `THALWEG_FAULT_SECONDS` is the duration of the faults (25 by default), `SEED` chooses them, and `THALWEG_FAULT_HISTORY`
//! names a file to which the history is written, for the checker in `peers/porcupine`.

#![allow(clippy::print_stdout, reason = "what happened, and why the test is skipped")]

#[path = "../kills/clock.rs"]
mod clock;
#[path = "../node/mod.rs"]
mod node;

mod clients;
mod history;
mod network;

use std::{
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clients::{Client, Protocol, Shared};
use clock::{Dice, Moments, seed};
use history::History;
use network::{HUB, Network};
use node::{Node, THALWEG, clean, command, run};

const NODES: usize = 3;
/// Longest time for the cluster to come together again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which clients go on to other keys, so that the operations of unknown outcome on one key are few.
const EPOCH: Duration = Duration::from_secs(3);

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
    /// A node receives, but what it sends is lost.
    Mute,
    /// A node sends, but receives nothing.
    Deafen,
    /// Two of the nodes do not reach each other.
    CutPair,
    /// The leader hands over.
    Transfer,
}

const FAULTS: [Fault; 8] = [
    Fault::Kill,
    Fault::Isolate,
    Fault::Transfer,
    Fault::Pause,
    Fault::Mute,
    Fault::KillAll,
    Fault::CutPair,
    Fault::Deafen,
];

struct Cluster {
    network: Network,
    _dir: tempfile::TempDir,
    root: PathBuf,
    join: String,
    admin: String,
    nodes: Vec<Option<Node>>,
}

impl Cluster {
    fn start(network: Network) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tokens = run(command().args(["cluster", "create-token", "--json"]), b"").ok();
        let tokens: serde_json::Value = serde_json::from_str(&tokens).unwrap();
        let text = |name: &str| tokens[name].as_str().unwrap().to_owned();
        let mut cluster = Self {
            network,
            root: dir.path().to_owned(),
            _dir: dir,
            join: text("join_token"),
            admin: text("admin_token"),
            nodes: (0..NODES).map(|_| None).collect(),
        };
        (0..NODES).for_each(|number| cluster.restart(number));
        cluster.until_whole();
        cluster
    }

    fn restart(&mut self, number: usize) {
        let address = |number: usize, port: u16| format!("{}:{port}", Network::host(number));
        let all: Vec<_> = (0..NODES).map(|number| address(number, 7072)).collect();
        let mut binary = clean("ip");
        binary.args(["netns", "exec", &self.network.name(number), THALWEG]);
        binary.env("THALWEG_JOIN_TOKEN", &self.join);
        let (http, native, resp) = (address(number, 7070), address(number, 7071), address(number, 7379));
        let mut flags = vec!["--http", &http, "--native", &native, "--resp", &resp, "--cluster", &all[number]];
        let (name, join, founders) = (format!("n{number}"), all.join(","), NODES.to_string());
        flags.extend(["--allow-unprotected", "--node-name", &name, "--join", &join, "--expect", &founders]);
        flags.extend(["--resp-databases", "0=keyspace:registers"]);
        self.nodes[number] = Some(Node::start_of(binary, &self.root.join(&name), &flags));
    }

    /// Runs the command against a node.
    fn cli(&self, number: usize, args: &[&str]) -> node::Run {
        let mut command = clean("ip");
        command.args(["netns", "exec", &self.network.name(HUB), THALWEG]).args(args);
        command.env("THALWEG_SERVER", format!("http://{}:7070", Network::host(number)));
        run(command.env("THALWEG_ADMIN_TOKEN", &self.admin), b"")
    }

    /// Waits until all nodes run, vote and answer reads.
    fn until_whole(&self) {
        let end = Instant::now() + PATIENCE;
        let is_whole = |number| {
            let members = self.cli(number, &["cluster", "members", "--json"]).out;
            let members: serde_json::Value = serde_json::from_str(&members).unwrap_or_default();
            let voters = members["members"].as_array().map_or(0, |members| {
                members.iter().filter(|member| member["role"] == "voter" && member["status"] == "alive").count()
            });
            voters == NODES && self.cli(number, &["cluster", "status", "--json"]).out.contains("\"leader\":\"")
        };
        while !(0..NODES).all(is_whole) {
            if Instant::now() >= end {
                let logs: Vec<_> = (0..NODES).map(|number| self.cli(number, &["cluster", "members"])).collect();
                panic!("the cluster is not whole after {PATIENCE:?}: {logs:#?}");
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn node(&self, number: usize) -> &Node {
        self.nodes[number].as_ref().expect("the node runs")
    }

    fn leader(&self) -> Option<usize> {
        (0..NODES).find(|number| self.cli(*number, &["cluster", "status", "--json"]).out.contains("\"leads\":true"))
    }

    /// Causes a fault for a time, and ends it.
    fn suffer(&mut self, fault: Fault, dice: &mut Dice) {
        // Half of the faults hit the leader; the others, any node.
        let any = dice.below(NODES as u64) as usize;
        let hit = if dice.below(2) == 0 { self.leader().unwrap_or(any) } else { any };
        let others: Vec<_> = (0..NODES).filter(|other| *other != hit).collect();
        let time = Duration::from_millis(500 + dice.below(2500));
        let began = Instant::now();
        let cut = |pairs: &[(usize, usize)]| {
            pairs.iter().for_each(|(from, to)| self.network.cut(*from, *to));
            thread::sleep(time);
            pairs.iter().for_each(|(from, to)| self.network.heal(*from, *to));
        };
        let out: Vec<_> = others.iter().map(|other| (hit, *other)).collect();
        let back: Vec<_> = others.iter().map(|other| (*other, hit)).collect();
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
                self.nodes[hit].take().expect("it runs").kill();
                thread::sleep(time / 2);
                self.restart(hit);
            }
            Fault::KillAll => {
                let all: Vec<_> = self.nodes.iter_mut().map(|node| node.take().expect("it runs")).collect();
                all.iter().for_each(|node| node.signal(libc::SIGKILL));
                all.into_iter().for_each(Node::kill);
                (0..NODES).for_each(|number| self.restart(number));
            }
            // It may fail because nobody leads at the moment.
            Fault::Transfer => drop(self.cli(any, &["cluster", "transfer"])),
        }
        println!("{fault:?} of n{hit} for {:?}", began.elapsed());
    }
}

#[test]
fn histories_are_linearizable_under_faults_in_a_real_network() {
    let network = match Network::create(NODES) {
        Ok(network) => network,
        Err(reason) => {
            node::skip("faults in network namespaces", &reason);
            return;
        }
    };
    let seconds = std::env::var("THALWEG_FAULT_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    let (seed, moments) = (seed("faults"), Moments::default());
    let mut dice = Dice::new(seed);
    let mut cluster = Cluster::start(network);
    cluster.cli(0, &["put", "registers", "other", "makes the keyspace"]).ok();
    let shared = Arc::new(Shared { epoch: AtomicU64::new(0), stop: AtomicBool::new(false) });
    let clients: Vec<_> = (0..NODES)
        .flat_map(|number| [Protocol::Http, Protocol::Resp, Protocol::Native].map(|protocol| (number, protocol)))
        .enumerate()
        .map(|(client, (number, protocol))| {
            let (shared, moments) = (Arc::clone(&shared), moments.clone());
            let namespace = cluster.network.name(HUB);
            thread::spawn(move || {
                network::enter(&namespace);
                Client::new(client as u64, protocol, number, moments, seed).run(&shared)
            })
        })
        .collect();
    let began = Instant::now();
    let mut faults = 0;
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
    while began.elapsed() < Duration::from_secs(seconds) {
        // Each kind once, then any.
        let next = FAULTS.get(faults).copied().unwrap_or_else(|| FAULTS[dice.below(FAULTS.len() as u64) as usize]);
        cluster.suffer(next, &mut dice);
        faults += 1;
        thread::sleep(Duration::from_millis(300 + dice.below(1200)));
    }
    cluster.until_whole();
    shared.stop.store(true, Ordering::SeqCst);
    counting.join().unwrap();
    let mut history = History::default();
    clients.into_iter().for_each(|client| history.add(client.join().expect("a client")));
    // Every node shows the end of each history: nothing that was acknowledged is gone.
    let keys = history.keys();
    let namespace = cluster.network.name(HUB);
    let last = thread::spawn(move || {
        network::enter(&namespace);
        let read = |number| Client::new(100 + number as u64, Protocol::Http, number, moments.clone(), seed).read(&keys);
        (0..NODES).map(read).collect::<Vec<_>>()
    });
    last.join().expect("all keys are read").into_iter().for_each(|events| history.add(events));
    if let Some(path) = std::env::var_os("THALWEG_FAULT_HISTORY") {
        history.write(std::path::Path::new(&path)).unwrap();
    }
    let digest = cluster.cli(0, &["cluster", "digest"]);
    println!("{}, {faults} faults in {:?}", history.summary(), began.elapsed());
    history.check(&format!("SEED={seed}"));
    assert!(digest.ok().contains("equal"));
    for number in 0..NODES {
        let stopped = cluster.nodes[number].take().expect("it runs");
        stopped.stop();
    }
}

/// Returns the reason why a command of the system failed.
fn done(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}
