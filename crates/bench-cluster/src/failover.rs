//! Failover: the leader is killed with SIGKILL while clients write. Measures the time until the next acknowledgement.
//!
//! Owns: the clients, the kills, and the comparison of acknowledged writes. Does not own: the nodes' processes
//! (`nodes`), or the probes of the machine (`probes`).
//!
//! Only writes that were sent after the kill count. A reply that the old leader had sent before is therefore not taken
//! for the new leader's. Each write has a key of its own, and a client continues with the next node after an error.
//! After each round, the keys of the last acknowledgements before the kill are read. If one is missing, an acknowledged
//! write is lost, and the suite ends with an error.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use crate::{
    BenchError,
    latency::Latencies,
    nodes::{Nodes, PATIENCE},
    report::{Check, Table, cells, duration},
    scenario::{Figures, Scenario},
    server::Client,
};

/// Longest time that a client waits for a reply before it asks the next node.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause of a client after an error. Without it, refused requests would take processor time from the election.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of writes, over all clients, that must be acknowledged before the leader is killed again.
const WRITES_BETWEEN: u64 = 100;
/// Number of writes that a client sends to another node, after an error at its first node, before it returns to the
/// first. Clients begin at different nodes. So when the leader is killed, some clients write directly to it and notice
/// the kill immediately.
const WRITES_AWAY: u64 = 50;
const PUT_HEADERS: &str = "Thalweg-Durability: quorum\r\nThalweg-Timeout: 5\r\n";

/// Number of kills of the leader between two probes of the machine (a round trip over the loopback, and an fsync).
const PROBE_EVERY: u32 = 10;
/// Maximum number of acknowledged writes of each client that are remembered, and read after the next kill.
const REMEMBERED: usize = 100;

/// State that the writing clients share with the thread that kills the leader.
struct Shared {
    is_over: AtomicBool,
    acknowledged: AtomicU64,
    /// Numbers of the last acknowledged writes of each client, at most [`REMEMBERED`].
    last: Vec<Mutex<VecDeque<u64>>>,
    /// Time of the last kill, and the channel for the time of the first acknowledgement of a write that was sent after
    /// it. `None` while no acknowledgement is awaited.
    waiting: Mutex<Option<(Instant, Sender<Instant>)>>,
}

/// Kills the leader as many times as the options state, and measures the time until the next acknowledgement after each
/// kill.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let nodes = &mut Nodes::start(scenario.setup("failover"), scenario.progress)?;
    let shared = Shared {
        is_over: AtomicBool::new(false),
        acknowledged: AtomicU64::new(0),
        last: (0..options.failover_clients).map(|_| Mutex::default()).collect(),
        waiting: Mutex::new(None),
    };
    let addresses = nodes.addresses();
    let mut times = Latencies::default();
    std::thread::scope(|scope| {
        for number in 0..options.failover_clients {
            let (shared, addresses) = (&shared, &addresses);
            scope.spawn(move || write_until_over(number, addresses, shared));
        }
        let mut rounds = || -> Result<(), BenchError> {
            for round in 1..=options.failovers {
                if round % PROBE_EVERY == 1 {
                    scenario.probe()?;
                }
                let took = once(nodes, &shared)?;
                times.record(took);
                let (all, median) = (options.failovers, times.percentile(50.0));
                let line = format!("failover {round} of {all}: {}, p50 {}", duration(took), duration(median));
                scenario.step(&line);
            }
            Ok(())
        };
        let result = rounds();
        shared.is_over.store(true, Ordering::Release);
        result
    })?;
    let seconds = |percentile: f64| times.percentile(percentile).as_secs_f64();
    let mut table = Table::new("failover: SIGKILL of the leader until the next acknowledgement, durability quorum");
    table.row(cells! {
        "nodes" => addresses.len(), "clients" => options.failover_clients, "kills" => times.count(),
        "p50 s" => seconds(50.0), "p90 s" => seconds(90.0), "p95 s" => seconds(95.0), "p99 s" => seconds(99.0),
        "max s" => seconds(100.0),
        "acknowledged writes" => shared.acknowledged.load(Ordering::Relaxed), "lost" => 0_u64,
    });
    let checks = vec![
        Check::below("failover p50", seconds(50.0), 1.0, " s"),
        Check::below("failover p99", seconds(99.0), 2.0, " s"),
    ];
    Ok(Figures { tables: vec![table], checks, notes: Vec::new() })
}

fn once(nodes: &mut Nodes, shared: &Shared) -> Result<Duration, BenchError> {
    let wanted = shared.acknowledged.load(Ordering::Acquire) + WRITES_BETWEEN;
    let begun = Instant::now();
    while shared.acknowledged.load(Ordering::Acquire) < wanted {
        if begun.elapsed() > PATIENCE {
            return Err(BenchError::target("cluster")(format!("it acknowledged too little in {PATIENCE:?}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let leader = nodes.leader()?;
    let killed = nodes.kill(leader);
    let (send, receive) = channel();
    // The process has ended, so only other nodes can answer requests that clients send from now on.
    *shared.waiting.lock().expect("no client panics") = Some((Instant::now(), send));
    let acknowledged: Vec<_> = shared.last.iter().map(|last| last.lock().expect("no client panics").clone()).collect();
    let next = receive.recv_timeout(PATIENCE);
    let next = next.map_err(|_| BenchError::target("cluster")(format!("no acknowledgement in {PATIENCE:?}")))?;
    nodes.restart(leader)?;
    read_all(nodes, &acknowledged)?;
    Ok(next.saturating_duration_since(killed))
}

/// Puts values at new keys with one client until all kills are done.
fn write_until_over(number: usize, addresses: &[SocketAddr], shared: &Shared) {
    let home = number % addresses.len();
    let (mut at, mut away, mut client) = (home, 0, None);
    for write in 0.. {
        if shared.is_over.load(Ordering::Acquire) {
            return;
        }
        if away == WRITES_AWAY {
            (at, away, client) = (home, 0, None);
        }
        let sent = Instant::now();
        if !put(&mut client, addresses[at], number, write) {
            (at, away, client) = ((at + 1) % addresses.len(), 0, None);
            std::thread::sleep(PAUSE);
            continue;
        }
        away += u64::from(at != home);
        shared.acknowledged.fetch_add(1, Ordering::AcqRel);
        remember(&shared.last[number], write);
        let mut waiting = shared.waiting.lock().expect("no client panics");
        if waiting.as_ref().is_some_and(|(killed, _)| sent > *killed)
            && let Some((_, reply)) = waiting.take()
        {
            let _ = reply.send(Instant::now());
        }
    }
}

fn remember(last: &Mutex<VecDeque<u64>>, write: u64) {
    let mut last = last.lock().expect("no client panics");
    if last.len() == REMEMBERED {
        last.pop_front();
    }
    last.push_back(write);
}

/// Puts one value; returns true if it was acknowledged.
fn put(client: &mut Option<Client>, address: SocketAddr, number: usize, write: u64) -> bool {
    if client.is_none() {
        *client = Client::connect(address, REPLY_TIMEOUT).ok();
    }
    let Some(client) = client else { return false };
    let reply = client.request("PUT", &path(number, write), PUT_HEADERS, write.to_string().as_bytes());
    reply.is_ok_and(|(status, _)| (200..300).contains(&status))
}

fn path(number: usize, write: u64) -> String {
    format!("/v1/kv/failover/client_{number}_{write}")
}

/// Reads the given acknowledged writes of each client, linearizably. Returns an error if one is lost.
fn read_all(nodes: &Nodes, acknowledged: &[VecDeque<u64>]) -> Result<(), BenchError> {
    let (begun, mut client) = (Instant::now(), None);
    for (number, writes) in acknowledged.iter().enumerate() {
        for write in writes {
            while !read(&mut client, nodes, number, *write)? {
                if begun.elapsed() > PATIENCE {
                    return Err(BenchError::target("cluster")(format!("reads had no answer in {PATIENCE:?}")));
                }
                client = None;
                std::thread::sleep(PAUSE);
            }
        }
    }
    Ok(())
}

/// Reads one acknowledged write. Returns false if no node answers now, and an error if the write is lost.
fn read(client: &mut Option<Client>, nodes: &Nodes, number: usize, write: u64) -> Result<bool, BenchError> {
    if client.is_none() {
        *client = Client::connect(nodes.addresses()[nodes.leader()?], REPLY_TIMEOUT).ok();
    }
    let Some(client) = client else { return Ok(false) };
    match client.request("GET", &path(number, write), "Thalweg-Read: linearizable\r\n", b"") {
        Ok((200, body)) if body == write.to_string().as_bytes() => Ok(true),
        Ok((status @ (200 | 404), _)) => {
            let message = format!("acknowledged write {write} of client {number} is lost: status {status}");
            Err(BenchError::wrong("the cluster", "failing over", message))
        }
        Ok(_) | Err(_) => Ok(false),
    }
}
