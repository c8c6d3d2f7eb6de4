//! Founding: the time that three commands need to make a cluster of three nodes from three empty directories.
//!
//! Two ways are measured. In the first, one node creates the cluster and the others join it. In the second, all nodes
//! found it together. The time begins before the command that makes the tokens. It ends when each node has acknowledged
//! a put, and another node has shown this put in a linearizable read.

use std::time::Instant;

use crate::{
    BenchError,
    latency::Latencies,
    nodes::{Founding, Nodes, Setup},
    report::{Check, Table, cells},
    scenario::{Figures, Scenario},
    server::Client,
};

const NODES: usize = 3;
/// Goal: longest time in seconds until all nodes serve.
const MAX_SECONDS: f64 = 10.0;

const WAYS: [(&str, Founding); 2] =
    [("the first creates, the others join", Founding::ByFirst), ("together", Founding::Together)];

/// Founds a cluster in both ways, as many times as the option `rounds` states.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let title = "founding: from empty directories until each node has acknowledged a put and shows that of another one";
    let (mut table, mut checks) = (Table::new(title), Vec::new());
    for (name, founding) in WAYS {
        let mut times = Latencies::default();
        for round in 0..scenario.options.rounds {
            scenario.probe()?;
            let setup = Setup { count: NODES, founding, ..scenario.setup("founding") };
            let begun = Instant::now();
            let nodes = Nodes::start(setup, scenario.progress)?;
            nodes.wait("each node serves", |nodes| (0..NODES).all(|number| serves(nodes, number)))?;
            let took = begun.elapsed();
            times.record(took);
            scenario.step(&format!("founding, {name}, round {}: {:.2} s", round + 1, took.as_secs_f64()));
        }
        let seconds = |at| times.percentile(at).as_secs_f64();
        table.row(cells! {
            "way" => name, "nodes" => NODES, "commands" => NODES, "rounds" => times.count(), "p50 s" => seconds(50.0),
            "max s" => seconds(100.0),
        });
        let what = format!("founding, {name}: longest time until {NODES} nodes serve");
        checks.push(Check::at_most(what, seconds(100.0), MAX_SECONDS, " s"));
    }
    Ok(Figures { tables: vec![table], checks, notes: Vec::new() })
}

/// Returns true if the node acknowledges a put, and another node then returns the value.
fn serves(nodes: &Nodes, number: usize) -> bool {
    let (addresses, value) = (nodes.addresses(), number.to_string());
    let path = format!("/v1/kv/founded/{number}");
    let request = |number: usize, method: &str, body: &[u8]| {
        let mut client = Client::connect(addresses[number], crate::nodes::PATIENCE).ok()?;
        client.request(method, &path, "", body).ok()
    };
    let is_put = request(number, "PUT", value.as_bytes()).is_some_and(|(status, _)| status == 204);
    is_put && request((number + 1) % NODES, "GET", b"") == Some((200, value.into_bytes()))
}
