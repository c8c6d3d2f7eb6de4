//! Replication lag: records that the leader shows and a follower does not show yet, at a given rate and delay of the
//! network.
//!
//! The table has the same rates and delays as a published benchmark of another system's replication (row S of
//! docs/performance.md). Relays on the loopback between the nodes delay the network ([`crate::relay`]); clients are not
//! delayed. The bytes on the links are those of all nodes together, by their own counters. A sampler asks a follower
//! for the end of its copy of the stream, and then asks the leader. The stream grows between the two requests. So the
//! figure is too high by the number of records that are appended during one request.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::Value;

use crate::{
    BenchError,
    appends::{Appended, Appends, STREAM},
    counted::Counted,
    nodes::{Nodes, Setup},
    report::{Check, Table, Verdict, cells},
    scenario::{Figures, Scenario},
    server::{Client, NativePort},
    stats::median,
};

/// Published results of another system's replication (row S of docs/performance.md): the round trip between two nodes,
/// and for each rate in entries per second the largest lag in entries.
const ROW_S: [(Duration, [(u64, f64); 3]); 2] = [
    (Duration::from_millis(1), [(10_000, 50.0), (50_000, 200.0), (100_000, 1000.0)]),
    (Duration::from_millis(50), [(1000, 100.0), (5000, 500.0), (10_000, 2000.0)]),
];
/// Length of a record in bytes, as in the published benchmark of replication lag with which the report compares (row S
/// of docs/performance.md: 1 KB).
const RECORD_BYTES: usize = 1024;
/// Pause between two samples.
const PAUSE: Duration = Duration::from_millis(5);
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Smallest part of the scheduled rate that the load must reach. If it reaches less, the report marks the check of the
/// rate as failed.
const REACHED: f64 = 0.97;

/// Lag of all followers at each sample of one measurement, in records of the stream and in entries of the replicated
/// log.
#[derive(Debug, Default)]
struct Lags {
    records: Vec<f64>,
    entries: Vec<f64>,
}

/// Measures the lag for each network delay and each append rate of the published benchmark (row S of
/// docs/performance.md).
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    let title =
        format!("replication lag: records of {RECORD_BYTES} B that a follower lacks, durability quorum, 3 nodes");
    let mut table = Table::new(title);
    for (round_trip, rates) in ROW_S {
        let setup = Setup { count: 3, native: NativePort::Free, delay: round_trip / 2, ..scenario.setup("lag") };
        let nodes = Nodes::start(setup, scenario.progress)?;
        for (rate, bound) in rates {
            scenario.probe()?;
            let shared = &*scenario;
            let (measured, counted) = Counted::around(&nodes, || measure(&nodes, shared, rate));
            let (appended, warmed, lags) = measured?;
            let link_bytes = counted.sent_bytes() / (appended.records + warmed) as f64;
            let of = |at| percentile(&lags.records, at);
            let millis = round_trip.as_millis() as u64;
            let name = format!("lag at {millis} ms and {rate}/s: p99");
            scenario.step(&format!("{name} {:.0}, reached {:.0}/s", of(99.0), appended.rate()));
            table.row(cells! {
                "round trip ms" => millis, "asked records/s" => rate, "records/s" => appended.rate(),
                "batches/s" => appended.rate() / Appends::batch_at_rate(rate) as f64,
                "link MB/s" => link_bytes * appended.rate() / 1e6, "link B/record" => link_bytes,
                "lag p50" => of(50.0), "lag p99" => of(99.0), "lag max" => of(100.0),
                "published: below" => bound, "lag p50 log entries" => median(&lags.entries),
                "samples" => lags.records.len(), "ack p50 ms" => millis_of(&appended, 50.0),
                "ack p95 ms" => millis_of(&appended, 95.0), "ack p99 ms" => millis_of(&appended, 99.0),
            });
            let validity = appended.validity(scenario.options.max_lag);
            figures.checks.push(validity.check(format!("lag at {millis} ms and {rate}/s: the load"), "sent in time"));
            figures.checks.push(kept_up(rate, &appended, millis));
            figures.checks.push(Check::at_most(name, of(99.0), bound, " records"));
        }
    }
    figures.tables.push(table);
    Ok(figures)
}

fn millis_of(appended: &Appended, percentile: f64) -> f64 {
    appended.times.percentile(percentile).as_secs_f64() * 1e3
}

/// Creates the check that the load appended at its scheduled rate. If it did not, the measured lag is not the lag at
/// this rate.
fn kept_up(rate: u64, appended: &Appended, millis: u64) -> Check {
    let is_good = appended.rate() >= REACHED * rate as f64;
    Check {
        what: format!("lag at {millis} ms and {rate}/s: the cluster took the load"),
        required: format!("{:.0} % of the rate", 100.0 * REACHED),
        measured: format!("{:.0}/s", appended.rate()),
        verdict: if is_good { Verdict::Met } else { Verdict::Missed },
        is_goal: false,
    }
}

/// Appends at a rate, with a warm-up first. Returns the appends after the warm-up, the number of records of the
/// warm-up, and the lags.
fn measure(nodes: &Nodes, scenario: &Scenario<'_>, rate: u64) -> Result<(Appended, u64, Lags), BenchError> {
    let options = scenario.options;
    let load = |time| Appends::at_rate(rate, RECORD_BYTES, time, options.seed);
    let warmed = load(options.warmup).run(&nodes.native_addresses())?.records;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampling = scope.spawn(|| sample(nodes, &is_over));
        let appended = load(options.duration).run(&nodes.native_addresses());
        is_over.store(true, Ordering::Release);
        let lags = sampling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((appended?, warmed, lags?))
    })
}

/// Samples the lag of all followers until the caller sets `is_over`.
fn sample(nodes: &Nodes, is_over: &AtomicBool) -> Result<Lags, BenchError> {
    let leader = nodes.leader()?;
    let connect = |address| Client::connect(address, REPLY_TIMEOUT).map_err(BenchError::target(address));
    let addresses = nodes.addresses();
    let mut of_leader = connect(addresses[leader])?;
    let others = addresses.iter().enumerate().filter(|(number, _)| *number != leader);
    let mut followers = others.map(|(_, address)| connect(*address)).collect::<Result<Vec<_>, _>>()?;
    let mut lags = Lags::default();
    while !is_over.load(Ordering::Acquire) {
        for follower in &mut followers {
            let behind = end(follower)?;
            let ahead = end(&mut of_leader)?;
            lags.records.push(ahead.saturating_sub(behind) as f64);
        }
        let replicas = json(&mut of_leader, "/v1/cluster/replicas")?;
        let entries = replicas["replicas"].as_array().into_iter().flatten().filter(|one| one["leads"] == false);
        lags.entries.extend(entries.filter_map(|one| one["lag_entries"].as_f64()));
        std::thread::sleep(PAUSE);
    }
    Ok(lags)
}

/// Returns the offset at the end of a node's copy of the stream, where its next record will be.
fn end(client: &mut Client) -> Result<u64, BenchError> {
    let info = json(client, &format!("/v1/streams/{STREAM}"))?;
    info["next"].as_u64().ok_or_else(|| BenchError::target("the cluster")("the stream has no end"))
}

fn json(client: &mut Client, path: &str) -> Result<Value, BenchError> {
    let fail = BenchError::target(format!("the cluster's {path}"));
    let reply = client.request("GET", path, "Thalweg-Read: stale\r\n", b"");
    let (status, body) = reply.map_err(|error| fail(error.to_string()))?;
    if status != 200 {
        return Err(fail(format!("status {status}")));
    }
    serde_json::from_slice(&body).map_err(|error| fail(error.to_string()))
}

/// Returns the smallest of the values that at least `percentile` percent of the values do not exceed; NaN without
/// values.
pub(crate) fn percentile(values: &[f64], percentile: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (percentile / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(at.max(1) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!([0.0, 50.0, 99.0, 100.0].map(|at| percentile(&values, at)), [1.0, 100.0, 198.0, 200.0]);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
        assert!(percentile(&[], 50.0).is_nan());
    }
}
