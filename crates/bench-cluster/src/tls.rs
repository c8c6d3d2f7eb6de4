//! The cost of TLS between the nodes: the same puts alternately on two clusters. One of the clusters has links with
//! TLS.
//!
//! Each node makes its own certificate for the links (`cluster_tls`). Certificates of an authority would change only
//! the handshake. Both clusters run all the time, so the heartbeats of each affect the other equally.

use crate::{
    BenchError,
    load::turns,
    nodes::{Nodes, Setup},
    report::{Table, cells},
    scenario::{Figures, Scenario},
    stats::{Summary, median_of, ratio},
    work::{self, Kind, RequestLoad, TargetNodes, Turn},
};

/// Measures the puts that the options describe, alternately on the cluster with TLS and on the one without.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let mut encrypted = options.server_arg.clone();
    encrypted.push("--cluster-tls".to_owned());
    let plain = Nodes::start(scenario.setup("plain"), scenario.progress)?;
    let secured = Setup { args: &encrypted, ..scenario.setup("tls") };
    let secured = Nodes::start(secured, scenario.progress)?;
    let clusters = [("plain", &plain), ("tls", &secured)];
    let mut figures = Figures::default();
    let mut table =
        Table::new("links with and without TLS: puts, medians of the rounds, closed loop, durability quorum");
    for clients in options.clients.clone() {
        let work = RequestLoad { kind: Kind::Put, place: TargetNodes::Leader, clients };
        let mut rounds: [Vec<Turn>; 2] = Default::default();
        for round in 0..options.rounds {
            scenario.probe()?;
            for turn in turns(u64::from(round), 2) {
                let (name, nodes) = clusters[turn];
                let figures = work::run(nodes, work, options)?;
                scenario.step(&format!("round {}, {name}, {}: {:.0}/s", round + 1, work.name(), figures.rate));
                rounds[turn].push(figures);
            }
        }
        let rates = |turns: &[Turn]| turns.iter().map(|turn| turn.rate).collect::<Vec<_>>();
        for ((name, _), turns) in clusters.iter().zip(&rounds) {
            let summary = Summary::of(&rates(turns));
            table.row(cells! {
                "links" => *name, "clients" => clients, "puts/s" => summary.median, "± MAD" => summary.mad,
                "of plain" => ratio(&rates(turns), &rates(&rounds[0])),
                "p50 µs" => median_of(turns, |turn| turn.p50_us), "p95 µs" => median_of(turns, |turn| turn.p95_us),
                "p99 µs" => median_of(turns, |turn| turn.p99_us),
                "nodes' CPU µs each" => median_of(turns, |turn| turn.node_cpu_us),
                "link B each" => median_of(turns, |turn| turn.link_bytes),
            });
            figures.checks.push(work::check(turns, &format!("{name}: {}", work.name())));
        }
    }
    figures.tables.push(table);
    Ok(figures)
}
