//! Transfer of a snapshot: a node with an empty directory joins a cluster. The leader has freed the beginning of its
//! log, so it sends the state to the new node.
//!
//! Owns: the values of the state, the progress of the transfer, and the goals and the table of this part. Does not own:
//! the puts of the clients (`work`), or the nodes' processes (`nodes`).
//!
//! Clients put small values at a fixed rate before and during the transfer, so the report shows how much the transfer
//! slows them down. The new node's own counters show how many bytes it has received on the channel of snapshots, and
//! when. After each round the benchmark compares values of the new node with the stored ones, and removes the node from
//! the cluster.
//!
//! Memory counts above that of an idle process. For the leader this is its memory right before the transfer. For the
//! new node this is the memory of a node that has just founded the cluster. Both figures include the caches of the
//! state, which are bounded.

use std::{
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use thalweg_types::{
    command::{CommitBuilder, KeyspaceConfig},
    limits::MIN_MEMBER_SEGMENT_BYTES,
};
use tokio::task::JoinSet;

use crate::{
    BenchError,
    appends::{connect, failed},
    data::{KEY_BYTES, Values, key},
    latency::Latencies,
    load::{self, Validity, block_on_thread},
    nodes::{Nodes, PATIENCE, Setup},
    options::ClusterOptions,
    probes::sequential_rate,
    report::{Check, Table, Verdict, cells, mebibytes},
    scenario::{Figures, Scenario},
    server::{Client, Metrics, NativePort},
    usage::{MeasuredProcess, Usage, reset_peak, resident_bytes},
    work,
};

/// Keyspace with the values that make the state large.
const KEYSPACE: &str = "snapshot";
/// Length of a value in bytes. The state stores values of this length itself, and not only their position in the log.
const VALUE_BYTES: usize = 1024;
/// Number of values that one commit stores.
const VALUES_PER_COMMIT: u64 = 256;
/// Number of commits in flight while the values are stored.
const IN_FLIGHT: usize = 16;
/// Interval at which the benchmark asks the new node for its progress.
const LOOK: Duration = Duration::from_millis(20);
/// Number of values of the new node that are compared with the stored ones.
const COMPARED: u64 = 200;
/// Goal: most memory in bytes that a transfer takes on either node, above that of an idle process.
const MAX_MEMORY_BYTES: u64 = 256 << 20;
/// Smallest size of a received snapshot, as a part of the stored bytes. With less, the new node did not get the state
/// as a snapshot. Random values cannot be compressed.
const LEAST_SHARE: f64 = 0.9;

/// Progress of the transfer of a snapshot, according to the new node. Times count from the start of its process.
#[derive(Clone, Copy, Debug, Default)]
struct Transfer {
    received_bytes: f64,
    /// Time of the last sample in which the new node had not received any byte of the snapshot.
    began: Duration,
    /// Time of the first sample in which the new node had received all bytes of the snapshot.
    ended: Duration,
    /// Time at which the new node had applied all log entries that were committed when its process started.
    usable: Duration,
}

impl Transfer {
    /// Records that the new node had received `received_bytes` of the snapshot at the time `at`.
    fn note(&mut self, received_bytes: f64, at: Duration) {
        if received_bytes == 0.0 {
            self.began = at;
        }
        if received_bytes > self.received_bytes {
            (self.received_bytes, self.ended) = (received_bytes, at);
        }
    }

    /// Returns the bytes of the snapshot that the new node received per second, from the first byte to the last.
    fn rate(&self) -> f64 {
        self.received_bytes / self.ended.saturating_sub(self.began).as_secs_f64()
    }
}

/// Results of one transfer of a snapshot: its progress and memory, the times of the clients' puts, and the speed of the
/// disk.
struct TransferFigures {
    transfer: Transfer,
    before: Latencies,
    meanwhile: Latencies,
    validity: Validity,
    /// Peak memory of the leader in bytes, above that of an idle process; `None` if it is not known.
    leader_bytes: Option<u64>,
    /// Peak memory of the new node in bytes, above that of an idle process; `None` if it is not known.
    new_bytes: Option<u64>,
    /// Speed of the disk before the measurement: bytes per second of large writes, each with an fsync.
    disk: f64,
}

/// Measures the transfer of a snapshot to a new node as many times as the option `rounds` states.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let mut args = options.server_arg.clone();
    args.extend(freeing_args());
    let setup = Setup { count: 3, native: NativePort::Free, args: &args, ..scenario.setup("snapshot") };
    let mut nodes = Nodes::start(setup, scenario.progress)?;
    let idle = (0..3).filter_map(|number| resident_bytes(MeasuredProcess::Process(nodes.process_id(number)?))).max();
    let count = options.snapshot_bytes.div_ceil(VALUE_BYTES as u64);
    scenario.step(&format!("storing {count} values of {VALUE_BYTES} B"));
    block_on_thread(store(&nodes.native_addresses(), count, options))?;
    nodes
        .wait("all nodes have freed the start of their logs", |nodes| (0..3).all(|number| has_freed(nodes, number)))?;
    let mut figures = Figures::default();
    let title = format!(
        "snapshot to a new node: values of {VALUE_BYTES} B in the state, {:.0} puts/s to the leader, 3 nodes, \
         durability quorum",
        work::PACED_RATE
    );
    let mut table = Table::new(title);
    for round in 1..=options.rounds {
        scenario.probe()?;
        let course = once(&mut nodes, count, idle, scenario)?;
        let transfer = course.transfer;
        let (state_bytes, seconds) = ((count * stored_bytes()) as f64, |time: Duration| time.as_secs_f64());
        let micros = |times: &Latencies, at| times.percentile(at).as_secs_f64() * 1e6;
        scenario.step(&format!("snapshot {round}: {:.0} MB/s", transfer.rate() / 1e6));
        table.row(cells! {
            "stored MB" => state_bytes / 1e6, "received MB" => transfer.received_bytes / 1e6,
            "first byte s" => seconds(transfer.began),
            "transfer s" => seconds(transfer.ended.saturating_sub(transfer.began)),
            "MB/s" => transfer.rate() / 1e6, "then usable s" => seconds(transfer.usable.saturating_sub(transfer.ended)),
            "disk MB/s" => course.disk / 1e6, "p50 µs before" => micros(&course.before, 50.0),
            "p95 µs before" => micros(&course.before, 95.0), "p99 µs before" => micros(&course.before, 99.0),
            "p50 µs meanwhile" => micros(&course.meanwhile, 50.0),
            "p95 µs meanwhile" => micros(&course.meanwhile, 95.0),
            "p99 µs meanwhile" => micros(&course.meanwhile, 99.0),
            "leader MiB above idle" => mebibytes(course.leader_bytes),
            "new node MiB above idle" => mebibytes(course.new_bytes),
        });
        figures.checks.push(came_as_snapshot(round, transfer.received_bytes / state_bytes));
        figures.checks.extend(took_little_memory(round, [course.leader_bytes, course.new_bytes]));
        figures.checks.push(course.validity.check(format!("snapshot {round}: puts"), "all answered, rightly"));
        if round < options.rounds {
            nodes.remove_last()?;
        }
    }
    figures.tables.push(table);
    Ok(figures)
}

/// Returns arguments of `serve` with which nodes soon free all log that live followers do not need.
fn freeing_args() -> [String; 4] {
    [
        format!("--segment-bytes={MIN_MEMBER_SEGMENT_BYTES}"),
        "--max-replay-bytes=16MiB".to_owned(),
        "--history-bytes=64MiB".to_owned(),
        "--history-age=0s".to_owned(),
    ]
}

/// Returns the bytes of a key and its value together.
const fn stored_bytes() -> u64 {
    (KEY_BYTES + VALUE_BYTES) as u64
}

/// Creates the check that the new node received a snapshot of the state, and not the entries of the log.
fn came_as_snapshot(round: u32, share: f64) -> Check {
    Check {
        what: format!("snapshot {round}: received as a snapshot"),
        required: format!("at least {:.0} % of the stored bytes", 100.0 * LEAST_SHARE),
        measured: format!("{:.0} %", 100.0 * share),
        verdict: if share >= LEAST_SHARE { Verdict::Met } else { Verdict::Missed },
        is_goal: false,
    }
}

/// Creates the checks of the memory that the transfer took on the leader and on the new node. `None` (the memory is not
/// known) makes a check void.
fn took_little_memory(round: u32, [leader, new]: [Option<u64>; 2]) -> [Check; 2] {
    [("the leader", leader), ("the new node", new)].map(|(node, bytes)| {
        let mebibytes = bytes.map_or(f64::NAN, |bytes| bytes as f64 / f64::from(1 << 20));
        let most = MAX_MEMORY_BYTES as f64 / f64::from(1 << 20);
        Check::at_most(format!("snapshot {round}: peak memory of {node} above idle"), mebibytes, most, " MiB")
    })
}

/// Stores `count` values in the cluster, several in each commit.
async fn store(nodes: &[SocketAddr], count: u64, options: &ClusterOptions) -> Result<(), BenchError> {
    let values = Rc::new(Values::new(VALUE_BYTES, options.seed));
    let client = connect(nodes).await?;
    let keyspace = client.keyspace(KEYSPACE);
    keyspace.create_if_missing(&KeyspaceConfig::default()).await.map_err(failed("creating a keyspace"))?;
    let id = keyspace.id().await.map_err(failed("creating a keyspace"))?;
    let mut running: JoinSet<Result<(), BenchError>> = JoinSet::new();
    for first in (0..count).step_by(VALUES_PER_COMMIT as usize) {
        while running.len() >= IN_FLIGHT {
            if let Some(done) = running.join_next().await {
                done.map_err(failed("storing"))??;
            }
        }
        let (client, values) = (client.clone(), Rc::clone(&values));
        running.spawn_local(async move {
            let mut commit = CommitBuilder::new();
            for index in first..(first + VALUES_PER_COMMIT).min(count) {
                commit.put(id, &key(index), values.of(index)).map_err(failed("encoding"))?;
            }
            client.commit(&commit).await.map(drop).map_err(failed("storing"))
        });
    }
    while let Some(done) = running.join_next().await {
        done.map_err(failed("storing"))??;
    }
    client.close().await;
    Ok(())
}

/// Returns true if a node has freed segments of its log. The log is then smaller than all bytes written to it.
fn has_freed(nodes: &Nodes, number: usize) -> bool {
    let Some(metrics) = nodes.metrics(number).map(|text| Metrics::parse(&text)) else { return false };
    let value = |name: &str| metrics.sum(name, &[]);
    let (Some(segments), Some(written)) = (value("thalweg_log_segments"), value("thalweg_log_bytes_total")) else {
        return false;
    };
    segments * f64::from(MIN_MEMBER_SEGMENT_BYTES) <= written
}

fn once(
    nodes: &mut Nodes,
    count: u64,
    idle: Option<u64>,
    scenario: &mut Scenario<'_>,
) -> Result<TransferFigures, BenchError> {
    let options = scenario.options;
    let disk = sequential_rate(scenario.dir, options.duration / 10)?;
    let leader = nodes.leader()?;
    let address = nodes.addresses()[leader];
    let before = load::run(&work::paced_puts(address, options))?;
    let leader_process = nodes.process_id(leader).map(MeasuredProcess::Process);
    let leader_idle = leader_process.and_then(resident_bytes);
    if let Some(process) = leader_process {
        reset_peak(process);
    }
    let committed = nodes.status(leader).and_then(|status| status["commit_index"].as_u64());
    let committed = committed.ok_or_else(|| BenchError::target("the leader")("no status"))?;
    let begun = Instant::now();
    let new = nodes.add()?;
    let transferring = || until_usable(nodes, new, committed, begun);
    let (transfer, meanwhile, validity) = work::put_beside(address, options, transferring)?;
    let above = |process: Option<MeasuredProcess>, idle: Option<u64>| {
        Some(Usage::read(process?).peak_rss_bytes?.saturating_sub(idle?))
    };
    let new_process = nodes.process_id(new).map(MeasuredProcess::Process);
    let (leader_bytes, new_bytes) = (above(leader_process, leader_idle), above(new_process, idle));
    compare(nodes.addresses()[new], count, options)?;
    let validity = Validity::worst([&before.validity, &validity]);
    Ok(TransferFigures { transfer, before: before.times, meanwhile, validity, leader_bytes, new_bytes, disk })
}

/// Waits until the new node has applied the log entry with the index `wanted`. Returns the progress of the snapshot's
/// transfer.
fn until_usable(nodes: &Nodes, new: usize, wanted: u64, begun: Instant) -> Result<Transfer, BenchError> {
    let mut transfer = Transfer::default();
    loop {
        let metrics = nodes.metrics(new).map(|text| Metrics::parse(&text));
        let received = metrics
            .and_then(|metrics| metrics.sum("thalweg_cluster_link_received_bytes_total", &[("channel", "snapshots")]));
        transfer.note(received.unwrap_or(0.0), begun.elapsed());
        let applied = nodes.status(new).and_then(|status| status["applied_index"].as_u64());
        if applied >= Some(wanted) {
            transfer.usable = begun.elapsed();
            return Ok(transfer);
        }
        if begun.elapsed() > 10 * PATIENCE {
            return Err(BenchError::target("the new node")("it does not get the state"));
        }
        std::thread::sleep(LOOK);
    }
}

/// Reads some values from the new node's own state, and compares them with the stored ones.
fn compare(address: SocketAddr, count: u64, options: &ClusterOptions) -> Result<(), BenchError> {
    let fail = BenchError::target(address);
    let mut client = Client::connect(address, PATIENCE).map_err(BenchError::target(address))?;
    let values = Values::new(VALUE_BYTES, options.seed);
    for index in (0..count).step_by((count / COMPARED).max(1) as usize) {
        let name = key(index);
        let path = format!("/v1/kv/{KEYSPACE}/{}", String::from_utf8_lossy(&name));
        let reply = client.request("GET", &path, "Thalweg-Read: stale\r\n", b"");
        let (status, body) = reply.map_err(|error| fail(error.to_string()))?;
        if status != 200 || body != values.of(index) {
            let message = format!("the new node has {} bytes at {path}, status {status}", body.len());
            return Err(BenchError::wrong("the cluster", "sending a snapshot", message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_from_the_first_to_the_last_byte() {
        let millis = Duration::from_millis;
        let mut transfer = Transfer::default();
        for (bytes, at) in [(0.0, 100), (0.0, 500), (1e6, 600), (4e6, 1500), (4e6, 9000)] {
            transfer.note(bytes, millis(at));
        }
        assert_eq!((transfer.began, transfer.ended), (millis(500), millis(1500)));
        assert!((transfer.rate() - 4e6).abs() < 1.0);
    }

    #[test]
    fn both_nodes_have_a_goal_for_their_memory() {
        let judged = |leader, new| {
            let checks = took_little_memory(1, [leader, new]);
            assert!(checks.iter().all(|check| check.is_goal && check.required == "at most 256 MiB"), "{checks:?}");
            checks.map(|check| check.verdict)
        };
        assert_eq!(judged(Some(256 << 20), Some((256 << 20) + 1)), [Verdict::Met, Verdict::Missed]);
        assert_eq!(judged(Some(0), None), [Verdict::Met, Verdict::Void]);
    }

    #[test]
    fn a_node_that_got_the_entries_is_noticed() {
        assert_eq!(came_as_snapshot(1, 1.01).verdict, Verdict::Met);
        assert_eq!(came_as_snapshot(1, 0.1).verdict, Verdict::Missed);
    }
}
