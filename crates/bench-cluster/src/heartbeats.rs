//! Heartbeats: bytes that each node of an idle cluster sends, according to the counters of its own links.
//!
//! Measured at the default intervals, and at those of a published benchmark of another system's cluster (row S of
//! docs/performance.md): a heartbeat every 5 s, suspect after 10 s, down after 15 s. Counting begins after [`SETTLING`]
//! heartbeats, because nodes that have just met also send each other facts about themselves. The counters include all
//! frames with their headers: pings, heartbeats of the leader, votes, descriptions of nodes, comparisons of states. TCP
//! and IP add 52 to 66 bytes to each packet; row S does not count these either.

use std::time::{Duration, Instant};

use crate::{
    BenchError,
    nodes::{Nodes, Setup},
    options::Timing,
    report::{Check, Table, cells},
    scenario::{Figures, Scenario},
};

/// Arguments of `serve` that set the heartbeat intervals with which another system's cluster was measured, in a
/// published benchmark (row S of docs/performance.md).
const ROW_S: [&str; 6] = ["--cluster-heartbeat", "5s", "--cluster-suspect-after", "10s", "--cluster-down-after", "15s"];
/// Number of heartbeat intervals that pass before the bytes are counted.
const SETTLING: u32 = 12;
/// Intervals between heartbeats that are measured: the default one, and that of a published benchmark of another
/// system's cluster (row S of docs/performance.md).
const INTERVALS: [Duration; 2] = [Duration::from_millis(80), Duration::from_secs(5)];
/// Published results of another system's cluster (row S of docs/performance.md): number of nodes, and heartbeat bytes
/// of the whole cluster in a minute.
const ROW_S_BYTES: [(usize, f64); 2] = [(3, 2e3), (10, 12e3)];

/// Bytes that all nodes have sent to each other since they started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TrafficCounts {
    /// Bytes sent on the channel that carries pings and heartbeats.
    control: f64,
    /// Bytes sent on all channels between the nodes.
    all: f64,
}

/// Measures the bytes of an idle cluster, for each number of nodes and each heartbeat interval that the options list.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    let mut table = Table::new("heartbeats: bytes that an idle node sends a minute, durability quorum");
    for timing in scenario.options.timings.clone() {
        let (name, times, interval) = match timing {
            Timing::Default => ("default", &[][..], INTERVALS[0]),
            Timing::RowS => ("published benchmark's", &ROW_S[..], INTERVALS[1]),
        };
        let mut args: Vec<_> = scenario.options.server_arg.clone();
        args.extend(times.iter().map(|text| (*text).to_owned()));
        for count in scenario.options.sizes.clone() {
            let nodes = Nodes::start(Setup { count, args: &args, ..scenario.setup("heartbeats") }, scenario.progress)?;
            scenario.probe()?;
            std::thread::sleep(SETTLING * interval);
            scenario.step(&format!("counting for {:?}: {count} nodes, {name} times", scenario.options.idle));
            let (before, begun) = (sent(&nodes)?, Instant::now());
            std::thread::sleep(scenario.options.idle);
            let (after, minutes) = (sent(&nodes)?, begun.elapsed().as_secs_f64() / 60.0);
            let control = (after.control - before.control) / minutes;
            let all = (after.all - before.all) / minutes;
            let bound = ROW_S_BYTES.iter().find(|(nodes, _)| *nodes == count).map(|(_, bytes)| *bytes);
            table.row(cells! {
                "nodes" => count, "times" => name, "control B/min a node" => control / count as f64,
                "all B/min a node" => all / count as f64, "control B/min of the cluster" => control,
                "published B/min of the cluster" => bound.map(|bytes| bytes as u64),
            });
            if let Some(bound) = bound.filter(|_| timing == Timing::RowS) {
                let what = format!("heartbeats of {count} nodes, one every 5 s, as the published benchmark has them");
                figures.checks.push(Check::below(what, control, bound, " B/min"));
            }
        }
    }
    figures.tables.push(table);
    Ok(figures)
}

fn sent(nodes: &Nodes) -> Result<TrafficCounts, BenchError> {
    let mut sum = TrafficCounts::default();
    for number in 0..nodes.addresses().len() {
        let metrics =
            nodes.metrics(number).ok_or_else(|| BenchError::target("the cluster")("a node has no metrics"))?;
        let TrafficCounts { control, all } = sent_by(&metrics);
        sum = TrafficCounts { control: sum.control + control, all: sum.all + all };
    }
    Ok(sum)
}

/// Extracts the bytes that one node has sent from the text of its metrics.
fn sent_by(metrics: &str) -> TrafficCounts {
    let mut sent = TrafficCounts::default();
    for line in metrics.lines().filter(|line| line.starts_with("thalweg_cluster_link_sent_bytes_total{")) {
        let bytes: f64 = line.rsplit(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
        sent.all += bytes;
        if line.contains("channel=\"control\"") {
            sent.control += bytes;
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_summed_over_nodes_and_channels() {
        let metrics = "# TYPE thalweg_cluster_link_sent_bytes counter\n\
                       thalweg_cluster_link_sent_bytes_total{node=\"n2\",channel=\"control\"} 60\n\
                       thalweg_cluster_link_sent_bytes_total{node=\"n3\",channel=\"control\"} 5\n\
                       thalweg_cluster_link_sent_bytes_total{node=\"n3\",channel=\"appends\"} 100\n\
                       thalweg_cluster_link_received_bytes_total{node=\"n3\",channel=\"control\"} 7\n";
        assert_eq!(sent_by(metrics), TrafficCounts { control: 65.0, all: 165.0 });
    }
}
