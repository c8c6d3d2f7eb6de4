//! Detection of a failed node: from SIGKILL of its process until the event `down` on each other node. Clusters that are
//! too large for one machine are simulated ([`simulated_detection`](crate::simulated_detection)).
//!
//! The benchmark reads the events of each other node, one node after the other, over a connection of its own. An event
//! has the time of the node's wall clock. All processes of the machine share this clock, so reading the events late
//! adds no delay.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::{
    BenchError,
    latency::{Latencies, micros},
    nodes::{Nodes, PATIENCE, Setup, name},
    report::{Check, Table, cells},
    scenario::{Figures, Scenario},
    server::Client,
    simulated_detection::{Delays, simulate},
};

/// Goals for the time in seconds until the other nodes report a killed node as down: median and 99th percentile.
const GOALS: (f64, f64) = (1.0, 2.0);

/// Times in which a killed node was detected, for clusters of one size.
#[derive(Debug, Default)]
struct Times {
    suspect: Latencies,
    down: Latencies,
}

/// Measures the detection of killed nodes in clusters of each size that the options list.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    let title = "detection: SIGKILL of a node until the events of each other node, default times, durability quorum";
    let mut table = Table::new(title);
    for count in scenario.options.sizes.clone() {
        let mut nodes = Nodes::start(Setup { count, ..scenario.setup("detection") }, scenario.progress)?;
        let mut times = Times::default();
        for round in 0..scenario.options.detections {
            scenario.probe()?;
            // All nodes take turns, so leaders and followers are among the killed ones.
            let victim = round as usize % count;
            let took = once(&mut nodes, victim, &mut times)?;
            let of = scenario.options.detections;
            scenario.step(&format!("detection {} of {of}, {count} nodes: down after at most {took:.2} s", round + 1));
        }
        let seconds = |times: &Latencies, at| times.percentile(at).as_secs_f64();
        let (p50, p99) = (seconds(&times.down, 50.0), seconds(&times.down, 99.0));
        table.row(cells! {
            "nodes" => count, "kills" => u64::from(scenario.options.detections), "events" => times.down.count(),
            "suspect p50 s" => seconds(&times.suspect, 50.0), "suspect p99 s" => seconds(&times.suspect, 99.0),
            "down p50 s" => p50, "down p99 s" => p99, "down max s" => seconds(&times.down, 100.0),
        });
        figures.checks.push(Check::below(format!("detection with {count} nodes: p50"), p50, GOALS.0, " s"));
        figures.checks.push(Check::below(format!("detection with {count} nodes: p99"), p99, GOALS.1, " s"));
    }
    figures.tables.push(table);
    simulated(scenario, &mut figures)?;
    Ok(figures)
}

/// Simulates the detection of failed nodes in clusters of each size that the options list.
fn simulated(scenario: &mut Scenario<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let options = scenario.options;
    let title = "detection, simulated: failure of a node until the others' detectors report it, over a virtual clock, \
                 default times, measured delays of messages and timers";
    let mut table = Table::new(title);
    let delays = Delays::measure()?;
    let ((message_p50, _), (message_p99, timer_p99)) = (delays.percentile(50.0), delays.percentile(99.0));
    for count in &options.simulated {
        scenario.step(&format!("detection, simulated: {count} nodes, {} failures", options.detections));
        let detected = simulate(*count, options.detections, &delays, options.seed)?;
        let [mut suspect, mut down] = [Latencies::default(), Latencies::default()];
        detected.suspect.iter().for_each(|time| suspect.record(*time));
        detected.down.iter().for_each(|time| down.record(*time));
        let seconds = |times: &Latencies, at| times.percentile(at).as_secs_f64();
        let (p50, p99) = (seconds(&down, 50.0), seconds(&down, 99.0));
        table.row(cells! {
            "nodes" => *count, "failures" => u64::from(options.detections), "events" => down.count(),
            "suspect p50 s" => seconds(&suspect, 50.0), "suspect p99 s" => seconds(&suspect, 99.0),
            "down p50 s" => p50, "down p99 s" => p99, "down max s" => seconds(&down, 100.0),
            "wrong suspicions" => detected.wrong_suspicions, "wrong downs" => detected.wrong_downs,
            "message p50 µs" => micros(message_p50),
            "message p99 µs" => micros(message_p99), "timer late p99 µs" => micros(timer_p99),
        });
        let name = format!("detection with {count} nodes, simulated");
        figures.checks.push(Check::below(format!("{name}: p50"), p50, GOALS.0, " s"));
        figures.checks.push(Check::below(format!("{name}: p99"), p99, GOALS.1, " s"));
    }
    figures.tables.push(table);
    Ok(())
}

/// Kills a node, waits until all others have reported it as down, and starts it again. Returns the longest time until
/// an event `down`, in seconds.
fn once(nodes: &mut Nodes, victim: usize, times: &mut Times) -> Result<f64, BenchError> {
    let others: Vec<_> = (0..nodes.addresses().len()).filter(|number| *number != victim).collect();
    let watched =
        others.iter().map(|number| Events::open(nodes.addresses()[*number])).collect::<Result<Vec<_>, _>>()?;
    let killed = unix_micros();
    nodes.kill(victim);
    let victim_name = name(victim);
    let mut longest = Duration::ZERO;
    for mut events in watched {
        loop {
            let event = events.next()?;
            let is_of_victim = event["name"] == victim_name.as_str();
            let Some(micros) = event["unix_micros"].as_u64().and_then(|at| at.checked_sub(killed)) else { continue };
            let after = Duration::from_micros(micros);
            match event["event"].as_str() {
                Some("suspect") if is_of_victim => times.suspect.record(after),
                Some("down") if is_of_victim => {
                    times.down.record(after);
                    longest = longest.max(after);
                    break;
                }
                _ => {}
            }
        }
    }
    nodes.restart(victim)?;
    nodes.wait("all nodes hear the restarted one", |nodes| {
        others.iter().all(|number| {
            let members = nodes.json(*number, "/v1/cluster/members").unwrap_or_default();
            let mut members = members["members"].as_array().into_iter().flatten();
            members.any(|member| member["name"] == victim_name.as_str() && member["health"] == "alive")
        })
    })?;
    Ok(longest.as_secs_f64())
}

fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

/// Connection that reads the events of one node. It first gets events that happened before the connection was opened,
/// because the node keeps its last events.
struct Events {
    client: Client,
    after: u64,
}

impl Events {
    fn open(address: SocketAddr) -> Result<Self, BenchError> {
        let client = Client::connect(address, PATIENCE).map_err(BenchError::target(address))?;
        Ok(Self { client, after: 0 })
    }

    /// Waits for the node's next event. Events from before the connection was opened come first.
    fn next(&mut self) -> Result<Value, BenchError> {
        let fail = BenchError::target("the cluster's events");
        let path = format!("/v1/cluster/events?after={}&limit=1", self.after);
        let reply = self.client.request("GET", &path, "Accept: application/x-ndjson\r\n", b"");
        let (status, body) = reply.map_err(|error| fail(error.to_string()))?;
        let text = String::from_utf8_lossy(&body);
        let event = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let event = event.into_iter().find(|line| line["sequence"].is_u64());
        let event = event.ok_or_else(|| fail(format!("no event in the reply: status {status}, {text:?}")))?;
        self.after = event["sequence"].as_u64().unwrap_or(self.after);
        Ok(event)
    }
}
