//! Rolling restart: each node in turn is stopped with SIGTERM and started again, while clients put and read.
//!
//! The clients are those of the Rust library with all nodes as seeds. Each client has one request in flight, and reads
//! its own puts linearizably. Puts and reads are idempotent, so the library repeats them after errors, and none may
//! fail. A pause is the time of the longest request during one restart. The restart counts from the signal until the
//! node has caught up and the clients have made [`REQUESTS_BETWEEN`] more requests.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_client::Keyspace;

use crate::{
    BenchError,
    appends::connect,
    latency::Latencies,
    load::block_on_thread,
    nodes::{Nodes, Setup},
    report::{Check, Table, Verdict, cells, duration},
    scenario::{Figures, Scenario},
    server::NativePort,
};

/// Goal: longest time in milliseconds that a client's request takes while a node restarts.
const MAX_PAUSE_MS: f64 = 300.0;
/// Number of requests that all clients together make before a node is stopped, and again after it is back.
const REQUESTS_BETWEEN: u64 = 200;
/// Maximum number of failed requests that the report shows.
const SHOWN: usize = 5;

/// Names of the roles that a node can have when it is stopped.
const ROLES: [&str; 2] = ["leader", "follower"];

/// State that the clients share with the thread that restarts the nodes.
#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    requests: AtomicU64,
    failed: AtomicU64,
    failures: Mutex<Vec<String>>,
    longest: Mutex<Longest>,
}

/// The client request that took longest since the last restart of a node began.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    took: Duration,
    what: &'static str,
}

/// Restarts all nodes, one after the other, as many times as the option `restarts` states.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let setup = Setup { count: options.count.max(3), native: NativePort::Free, ..scenario.setup("rolling") };
    let mut nodes = Nodes::start(setup, scenario.progress)?;
    let (addresses, shared) = (nodes.native_addresses(), Shared::default());
    let mut pauses: [Latencies; 2] = Default::default();
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| use_until_over(options.failover_clients, &addresses, &shared));
        let mut rounds = || -> Result<(), BenchError> {
            for round in 1..=options.restarts {
                scenario.probe()?;
                for number in 0..addresses.len() {
                    let (role, pause) = once(&mut nodes, number, &shared)?;
                    pauses[role].record(pause.took);
                    let (role, what, took) = (ROLES[role], pause.what, duration(pause.took));
                    scenario.step(&format!("round {round} of {}, {role}: longest {what} {took}", options.restarts));
                }
            }
            Ok(())
        };
        let result = rounds();
        shared.is_over.store(true, Ordering::Release);
        let used = clients.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.and(used)
    })?;
    Ok(figures(&shared, &pauses, options.failover_clients, addresses.len()))
}

fn figures(shared: &Shared, pauses: &[Latencies; 2], clients: usize, nodes: usize) -> Figures {
    let mut table = Table::new("rolling restart: SIGTERM of each node in turn, durability quorum, reads linearizable");
    for (role, times) in ROLES.iter().zip(pauses) {
        let millis = |at: f64| times.percentile(at).as_secs_f64() * 1e3;
        table.row(cells! {
            "stopped" => *role, "nodes" => nodes, "clients" => clients, "restarts" => times.count(),
            "pause p50 ms" => millis(50.0), "pause p99 ms" => millis(99.0), "pause max ms" => millis(100.0),
        });
    }
    let (requests, failed) = (shared.requests.load(Ordering::Relaxed), shared.failed.load(Ordering::Relaxed));
    // A request may end after the restart that delayed it. The pauses do not include such a request of the last
    // restart.
    let last = shared.longest.lock().unwrap_or_else(PoisonError::into_inner).took;
    let longest = Latencies::sum(pauses).max().max(last).as_secs_f64() * 1e3;
    let failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
    let no_failures = Check {
        what: "rolling restart: failed idempotent requests".to_owned(),
        required: "none".to_owned(),
        measured: format!("{failed} of {}", requests + failed),
        verdict: if failed == 0 { Verdict::Met } else { Verdict::Missed },
        is_goal: false,
    };
    Figures {
        tables: vec![table],
        checks: vec![no_failures, Check::below("rolling restart: longest pause", longest, MAX_PAUSE_MS, " ms")],
        notes: failures.iter().map(|failure| format!("a request failed: {failure}")).collect(),
    }
}

/// Restarts one node after the clients have made some requests. Returns the role of the node, as an index of [`ROLES`],
/// and the longest request while it restarted.
fn once(nodes: &mut Nodes, number: usize, shared: &Shared) -> Result<(usize, Longest), BenchError> {
    let wanted = shared.requests.load(Ordering::Acquire) + REQUESTS_BETWEEN;
    nodes.wait("the clients use the cluster", |_| shared.requests.load(Ordering::Acquire) >= wanted)?;
    let role = usize::from(nodes.leader()? != number);
    let lock = || shared.longest.lock().unwrap_or_else(PoisonError::into_inner);
    *lock() = Longest::default();
    nodes.stop(number);
    nodes.restart(number)?;
    let wanted = shared.requests.load(Ordering::Acquire) + REQUESTS_BETWEEN;
    nodes.wait("the clients use the cluster", |_| shared.requests.load(Ordering::Acquire) >= wanted)?;
    Ok((role, *lock()))
}

fn use_until_over(clients: usize, nodes: &[SocketAddr], shared: &Shared) -> Result<(), BenchError> {
    block_on_thread(async {
        let first = connect(nodes).await?;
        let created = first.keyspace("rolling").create_if_missing(&Default::default()).await;
        created.map_err(BenchError::subject("the cluster", "creating a keyspace"))?;
        let mut running = Vec::new();
        for number in 0..clients {
            running.push((number, connect(nodes).await?.keyspace("rolling")));
        }
        let all = running.into_iter().map(|(number, keyspace)| use_one(number, keyspace, shared));
        join_all(all).await;
        first.close().await;
        Ok(())
    })
}

/// Runs all futures to their ends on this thread.
async fn join_all(futures: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = futures.map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|cx| {
        for slot in &mut all {
            if let Some(future) = slot
                && future.as_mut().poll(cx).is_ready()
            {
                *slot = None;
            }
        }
        if all.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Puts and reads with one client until all restarts are done.
async fn use_one(number: usize, keyspace: Keyspace, shared: &Shared) {
    for round in 0_u64.. {
        if shared.is_over.load(Ordering::Acquire) {
            return;
        }
        let key = format!("client-{number}-{}", round % 100);
        let value = round.to_le_bytes();
        let begun = Instant::now();
        let put = keyspace.put(key.as_bytes(), &value).await;
        note("put", begun.elapsed(), put.map(drop).map_err(|error| error.to_string()), shared);
        let begun = Instant::now();
        let read = keyspace.get(key.as_bytes()).await.map_err(|error| error.to_string());
        let read = read.and_then(|found| match found {
            Some(found) if found.value[..] == value => Ok(()),
            found => Err(format!("round {round} read {:?}", found.map(|found| found.revision))),
        });
        note("read", begun.elapsed(), read, shared);
    }
}

fn note(what: &'static str, took: Duration, result: Result<(), String>, shared: &Shared) {
    match result {
        Ok(()) => shared.requests.fetch_add(1, Ordering::AcqRel),
        Err(error) => {
            let mut failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
            if failures.len() < SHOWN {
                failures.push(format!("{what} after {}: {error}", duration(took)));
            }
            shared.failed.fetch_add(1, Ordering::AcqRel)
        }
    };
    let mut longest = shared.longest.lock().unwrap_or_else(PoisonError::into_inner);
    if took > longest.took {
        *longest = Longest { took, what };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_ends_after_the_last_restart_counts() {
        let mut pauses: [Latencies; 2] = Default::default();
        pauses.iter_mut().for_each(|times| times.record(Duration::from_millis(20)));
        let verdict = |took| {
            let shared = Shared { longest: Mutex::new(Longest { took, what: "put" }), ..Shared::default() };
            figures(&shared, &pauses, 1, 3).checks[1].verdict
        };
        assert_eq!(verdict(Duration::from_millis(20)), Verdict::Met);
        assert_eq!(verdict(Duration::from_secs(5)), Verdict::Missed);
    }
}
