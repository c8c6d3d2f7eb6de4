//! Course of a simulation, from the first start of the cluster to the verdict.
//!
//! Owns: the order of the steps. Does not own: the cluster, the clients, the faults and the checks, which have modules
//! of their own.

use std::{cell::Cell, rc::Rc, time::Duration};

use thalweg_replica::plant::apply_void_entries;

use crate::{
    clients::Client,
    cluster::Cluster,
    faults::{FaultKind, Victim},
    followed, oracle,
    plant::Plant,
    report::Report,
    runtime::{OUTSIDE, ProcessId, now, record, resume, simulate, sleep, spawn},
    search,
    settings::Settings,
    subscribers::Subscribers,
};

/// Maximum time in which a cluster without faults must answer a write and all nodes must reach the same log entry.
const PROGRESS_WITHIN: Duration = Duration::from_secs(20);
/// Maximum time in which a node that has found damage must be replaced after the clients stopped. Each of the three
/// changes of the membership may take 15 s.
const REPLACED_WITHIN: Duration = Duration::from_secs(60);
/// Maximum time in which all records of the consumer group must be fetched and acked. It is long because the members'
/// common clock (space time) may stand still at first, if the clock of an earlier leader was ahead.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

/// Time from the founding of the cluster until the check begins that all voters apply log entries promptly. The check
/// ends with the first fault.
const SETTLED_AFTER: Duration = Duration::from_millis(300);
/// Maximum time for which the simulation waits for a new leader after the fault `LostPromises` has begun.
const PROBED_FOR: Duration = Duration::from_secs(3);

/// Runs the simulation that the settings describe, and returns its report.
#[must_use]
pub fn run(settings: &Settings) -> Report {
    let own = settings.clone();
    apply_void_entries(settings.plant == Some(Plant::VoidEntryRead));
    let finished = simulate(settings.seed, async move {
        let subscribed = own.subscribers;
        let cluster = Cluster::new(own);
        let subscribers = Subscribers::new(&cluster, subscribed);
        let drained = run_cluster(&cluster, &subscribers).await;
        let operations = cluster.history().take();
        let verdict = oracle::check(&operations, cluster.truth());
        let followed = subscribers.take();
        let shown = followed::check(&operations, &cluster.truth().commands(), &verdict.stream, &followed);
        check_streams(&cluster, &verdict.stream);
        cluster.end_all();
        let found = search::check(&operations);
        let mut violations = cluster.truth().violations();
        violations.extend(verdict.violations.iter().chain(&found.violations).chain(&shown).cloned());
        if drained && !verdict.unacked.is_empty() {
            violations.push(format!("the group was drained, and records {:?} are not acked", verdict.unacked));
        }
        let received = (followed.len(), followed.refused);
        let measured = (cluster.gaps(), cluster.truth().time_behind(), cluster.network().messages(), received);
        (verdict, found, violations, measured)
    });
    let (verdict, found, violations, measured) = finished.output.unwrap_or_else(|panicked| {
        let text = format!("a task panicked: {panicked}");
        (oracle::Verdict::default(), search::SearchResult::default(), vec![text], Default::default())
    });
    let (gaps, time_behind, messages, (followed, refused)) = measured;
    Report {
        settings: settings.clone(),
        violations,
        checked: verdict.checked,
        unknown: verdict.unknown,
        searched: found.checked,
        undecided: found.undecided,
        followed,
        refused,
        gaps,
        time_behind,
        messages,
        elapsed: finished.elapsed,
        polls: finished.polls,
        fingerprint: finished.fingerprint,
        events: finished.events,
    }
}

/// Runs the cluster. Returns true if the consumer group was drained at the end.
async fn run_cluster(cluster: &Cluster, subscribers: &Subscribers) -> bool {
    for id in cluster.ids() {
        cluster.start(id).await;
    }
    cluster.found().await;
    let numbers = cluster.numbers();
    start_clients(cluster, &numbers);
    subscribers.start();
    carry_out_script(cluster).await;
    recover(cluster).await;
    cluster.stop_clients();
    // Requests that are in progress may still be answered.
    sleep(Duration::from_secs(2)).await;
    let is_drained = Client::new(cluster.clone(), numbers, 0, Duration::ZERO).drain(DRAINED_WITHIN).await;
    if !is_drained {
        cluster.truth().violation(OUTSIDE, format!("the group was not drained within {DRAINED_WITHIN:?}"));
    }
    subscribers.catch_up().await;
    check_equal(cluster).await;
    is_drained
}

/// Checks that the stream of each node has the appended records in their order.
fn check_streams(cluster: &Cluster, expected: &[u64]) {
    for id in cluster.ids() {
        match cluster.running(id).map(|running| running.stream()) {
            Some(Ok(records)) if records == expected => {}
            Some(Ok(records)) => {
                let at = records.iter().zip(expected).position(|(one, other)| one != other);
                let at = at.unwrap_or(records.len().min(expected.len()));
                let found = (records.get(at), expected.get(at), records.len(), expected.len());
                cluster.truth().violation(id, format!("the stream differs at offset {at}: {found:?}"));
            }
            Some(Err(error)) => cluster.node_failed(id, &format!("the stream cannot be read: {error}")),
            None => {}
        }
    }
}

fn start_clients(cluster: &Cluster, numbers: &Rc<Cell<u64>>) {
    let Settings { clients, rate, .. } = *cluster.settings();
    let pause = Duration::from_micros(1_000_000 * clients / rate.max(1));
    for id in 1..=clients {
        spawn(OUTSIDE, Client::new(cluster.clone(), Rc::clone(numbers), id, pause).run());
    }
}

/// Writes to the next leader as soon as there is one. Then reads from the old leader, which may believe that its lease
/// still holds.
fn probe_lease(cluster: &Cluster, old: ProcessId) {
    let cluster = cluster.clone();
    spawn(OUTSIDE, async move {
        let begun = now();
        while now() < begun + PROBED_FOR {
            sleep(Duration::from_millis(1)).await;
            let leads = |id: &ProcessId| *id != old && cluster.running(*id).is_some_and(|running| running.leads());
            if let Some(leader) = cluster.ids().into_iter().find(leads) {
                let client = || Client::new(cluster.clone(), cluster.numbers(), 0, Duration::ZERO);
                client().write_to(leader).await;
                return client().read_by_lease(old).await;
            }
        }
    });
}

async fn carry_out_script(cluster: &Cluster) {
    let Settings { lasts, without, .. } = cluster.settings();
    sleep(SETTLED_AFTER).await;
    cluster.truth().expect_prompt(true);
    for fault in cluster.settings().script() {
        if without.contains(&fault.number) {
            continue;
        }
        sleep(fault.at.saturating_sub(now())).await;
        cluster.truth().expect_prompt(false);
        let victim = match fault.victim {
            Victim::Leader => cluster.leader().unwrap_or_else(|| cluster.ids()[0]),
            Victim::Node(number) => cluster.ids()[number as usize % cluster.ids().len()],
        };
        record(victim, fault.to_string());
        cluster.note_faults(1);
        cluster.begin(&fault, victim);
        if fault.kind == FaultKind::LostPromises {
            probe_lease(cluster, victim);
        }
        cluster.measure_gap(fault, victim);
        let cluster = cluster.clone();
        spawn(OUTSIDE, async move {
            sleep(fault.lasts).await;
            record(victim, format!("fault {} ends", fault.number));
            cluster.end(&fault, victim).await;
            cluster.note_faults(-1);
        });
    }
    sleep(lasts.saturating_sub(now())).await;
    cluster.truth().expect_prompt(false);
}

/// Ends all faults and waits until the cluster answers writes again.
async fn recover(cluster: &Cluster) {
    record(OUTSIDE, "all faults end");
    cluster.network().heal();
    for id in cluster.ids() {
        let parts = cluster.parts(id);
        parts.faults.is_stuck.set(false);
        parts.faults.slow_micros.set(0);
        parts.mend_syncs();
        parts.empty_disk();
        resume(id);
        if parts.running.borrow().is_none() {
            cluster.revive(id).await;
        }
    }
    let begun = now();
    while cluster.last_write() <= begun || cluster.has_broken() {
        if now() > begun + PROGRESS_WITHIN {
            let text = match cluster.has_broken() {
                true => format!("a damaged node was not replaced within {PROGRESS_WITHIN:?} after the faults ended"),
                false => format!("no write was answered within {PROGRESS_WITHIN:?} after the faults ended"),
            };
            return cluster.truth().violation(OUTSIDE, text);
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Reports the digests of all nodes' states. Nodes that have applied the same last log entry must have the same digest.
fn check_digests(cluster: &Cluster) {
    for id in cluster.ids() {
        match cluster.running(id).map(|running| running.digest()) {
            Some(Ok((index, digest))) => cluster.truth().digest(id, index, digest),
            Some(Err(error)) => cluster.node_failed(id, &format!("the state cannot be read: {error}")),
            None => {}
        }
    }
}

/// Waits until all nodes have applied the last committed log entry and no node is being replaced, and compares the
/// digests of their states. A node may find damage in its files after the faults ended, in a compaction for example.
async fn check_equal(cluster: &Cluster) {
    let (started, mut begun) = (now(), now());
    loop {
        let last = cluster.truth().last();
        let is_behind = |id: &ProcessId| cluster.running(*id).map(|running| running.applied()) < last;
        let behind: Vec<ProcessId> = cluster.ids().into_iter().filter(is_behind).collect();
        let is_replacing = cluster.is_replacing();
        if behind.is_empty() && !is_replacing {
            return check_digests(cluster);
        }
        // After a replacement, the nodes have the usual time again.
        begun = if is_replacing { now() } else { begun };
        let end = if is_replacing { started + REPLACED_WITHIN } else { begun + PROGRESS_WITHIN };
        if now() > end {
            let text = match is_replacing {
                true => format!("a node was not replaced within {REPLACED_WITHIN:?} after the clients stopped"),
                false => format!("nodes {behind:?} do not reach entry {last:?}"),
            };
            return cluster.truth().violation(behind.first().copied().unwrap_or(OUTSIDE), text);
        }
        sleep(Duration::from_millis(10)).await;
    }
}
