//! Redis clients: `SET` with many connections and pipelines, either all to the leader or spread over all nodes.
//!
//! The load is that of `redis-benchmark -t set -c 50 -P 16`: values of 3 bytes, and a connection sends its next 16
//! requests once it has the replies to the last 16. A node that does not lead forwards the writes to the leader. All
//! nodes run with the durability `quorum`, so each reply means that a majority has the write on disk.

use std::net::SocketAddr;

use crate::{
    BenchError,
    data::Values,
    load::{
        Address, Plan,
        resp::{
            client::Greeting,
            protocol::{OnWrong, Resp},
            requests::{Mix, Operation, Requests},
        },
        turns,
    },
    nodes::{Nodes, RespPort, Setup},
    options::ClusterOptions,
    report::{Check, Table, cells},
    scenario::{Figures, Scenario},
    stats::{Summary, median_of, ratio},
    work::{self, TargetNodes, Turn},
};

/// Number of connections of Redis clients in each measurement.
const CONNECTIONS: usize = 50;
/// Number of requests that each connection has in flight.
const PIPELINE: usize = 16;
/// Size of a value in bytes, the default of redis-benchmark.
const VALUE_BYTES: usize = 3;
/// Goal for the rate of `SET` requests, in requests per second.
const GOAL: f64 = 150_000.0;
const PLACES: [TargetNodes; 2] = [TargetNodes::Leader, TargetNodes::All];

/// Measures `SET` requests: runs with all connections to the leader alternate with runs whose connections are spread
/// over all nodes.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let mut args = options.server_arg.clone();
    args.push("--durability=quorum".to_owned());
    let setup = Setup { resp: RespPort::Free, args: &args, ..scenario.setup("resp") };
    let nodes = Nodes::start(setup, scenario.progress)?;
    let mut rounds: [Vec<Turn>; PLACES.len()] = Default::default();
    for round in 0..options.rounds {
        for turn in turns(u64::from(round), PLACES.len()) {
            scenario.probe()?;
            let place = PLACES[turn];
            let figures = once(&nodes, place, options)?;
            scenario.step(&format!("round {}, SET, {}: {:.0}/s", round + 1, place.name(), figures.rate));
            rounds[turn].push(figures);
        }
    }
    Ok(figures(options.count, &rounds))
}

fn figures(nodes: usize, rounds: &[Vec<Turn>]) -> Figures {
    let title = format!(
        "Redis clients: SET of {VALUE_BYTES} B, -c {CONNECTIONS} -P {PIPELINE}, durability quorum, {nodes} nodes; \
         medians of the rounds, closed loop"
    );
    let (mut table, mut checks) = (Table::new(title), Vec::new());
    let rates = |turns: &[Turn]| turns.iter().map(|turn| turn.rate).collect::<Vec<_>>();
    for (place, turns) in PLACES.iter().zip(rounds) {
        let summary = Summary::of(&rates(turns));
        table.row(cells! {
            "node" => place.name(), "SETs/s" => summary.median, "± MAD" => summary.mad,
            "of the leader alone" => ratio(&rates(turns), &rates(&rounds[0])),
            "p50 µs" => median_of(turns, |turn| turn.p50_us), "p95 µs" => median_of(turns, |turn| turn.p95_us),
            "p99 µs" => median_of(turns, |turn| turn.p99_us),
            "nodes' CPU µs each" => median_of(turns, |turn| turn.node_cpu_us),
            "clients' CPU µs each" => median_of(turns, |turn| turn.client_cpu_us),
            "clients busy %" => median_of(turns, |turn| 100.0 * turn.busiest),
            "link B each" => median_of(turns, |turn| turn.link_bytes),
        });
        let name = format!("SET, -c {CONNECTIONS} -P {PIPELINE}, quorum, {}", place.name());
        checks.push(work::check(turns, &name));
        checks.push(Check::at_least(format!("{name}: rate"), summary.median, GOAL, "/s"));
    }
    Figures { tables: vec![table], checks, notes: Vec::new() }
}

fn once(nodes: &Nodes, place: TargetNodes, options: &ClusterOptions) -> Result<Turn, BenchError> {
    let mut addresses = nodes.resp_addresses();
    if place == TargetNodes::Leader {
        addresses = vec![addresses[nodes.leader()?]];
    }
    let spread = |number: usize| work::share(CONNECTIONS, addresses.len(), number);
    let plans = addresses.iter().enumerate().map(|(number, address)| plan(*address, spread(number), options));
    work::run_together(nodes, &plans.collect::<Vec<_>>())
}

fn plan(address: SocketAddr, connections: usize, options: &ClusterOptions) -> Plan<Resp> {
    let greeting = Greeting { address: Address::Tcp(address), password: None, database: 0, is_resp3: false };
    let protocol = Resp {
        greeting,
        requests: Requests::new(Values::new(VALUE_BYTES, options.seed), options.keys, "stream"),
        mix: Mix::only(Operation::Set),
        // If the leader changes, requests fail. These count as errors of the run and do not end the suite.
        on_wrong: OnWrong::CountRefusals,
    };
    work::closed_plan(protocol, connections, PIPELINE, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    #[test]
    fn both_places_are_judged_by_the_goal() {
        let Figures { tables, checks, .. } =
            figures(3, &[vec![Turn::of_rate(160_000.0)], vec![Turn::of_rate(80_000.0)]]);
        assert!(tables[0].title.contains("durability quorum, 3 nodes"), "{}", tables[0].title);
        let goals: Vec<_> = checks.iter().filter(|check| check.is_goal).map(|check| check.verdict).collect();
        assert_eq!(goals, [Verdict::Met, Verdict::Missed]);
        assert_eq!(checks.len(), 4);
    }
}
