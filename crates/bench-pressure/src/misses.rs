//! Measures gets of absent keys, alternately on a server under the limit of memory and on a server without a limit. The
//! absent keys lie between the loaded ones.
//!
//! A filter of each table tells the server that the table does not have the key. So a miss should read nothing from the
//! disk, and be as fast as with all data in memory.

use crate::{
    BenchError, filled,
    load::{Validity, turns},
    options::{PressureOptions, WireProtocol},
    over::{self, Job},
    report::{Check, Table, cells, number},
    scenario::{Figures, Scenario},
    server::{MemoryLimit, PerRequest, Server, VALUES},
    stats::{Summary, median_of, ratio},
    work::{Action, Keys},
};

/// Goal: largest share, in percent, of the gets of absent keys that read the disk.
const MAX_READS_PERCENT: f64 = 2.0;
/// Goal: smallest rate of gets under the limit of memory, as a share of the rate without a limit.
const MIN_SHARE: f64 = 0.9;

/// All runs of gets of absent keys over one protocol, with one limit of memory or without a limit.
#[derive(Debug)]
struct Rounds {
    protocol: WireProtocol,
    limit: MemoryLimit,
    runs: Vec<(over::Figures, PerRequest)>,
}

impl Rounds {
    fn rates(&self) -> Vec<f64> {
        self.runs.iter().map(|(figures, _)| figures.rate).collect()
    }

    fn reads_percent(&self) -> f64 {
        median_of(&self.runs, |(_, each)| 100.0 * each.reads())
    }

    fn name(&self) -> String {
        format!("misses over {}, {}", self.protocol.name(), self.limit.name())
    }
}

/// Loads the data into two servers, one under the limit of memory and one without a limit. Measures gets of absent keys
/// on both.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let keys = Keys::new(options.values(), options.value_size, options.order, options.seed);
    let mut servers = Vec::new();
    for (number, limit) in scenario.limits().into_iter().enumerate() {
        servers.push(filled::start(scenario, &format!("misses{number}"), limit, &keys)?.0);
    }
    let job = Job::reading(VALUES, &keys, Action::GetAbsent, options.most_clients(), options);
    let mut all = Vec::new();
    for &protocol in &options.protocols {
        all.extend(servers.iter().map(|server| Rounds { protocol, limit: server.limit, runs: Vec::new() }));
    }
    for round in 0..options.rounds {
        for turn in turns(u64::from(round), all.len()) {
            let count = servers.len();
            let measured = over::counted(all[turn].protocol, &mut servers[turn % count], &job, options)?;
            scenario.step(&format!(
                "round {}, {}: {}; {} % read the disk",
                round + 1,
                all[turn].name(),
                measured.0.summary("/s"),
                number(100.0 * measured.1.reads())
            ));
            all[turn].runs.push(measured);
        }
    }
    servers.into_iter().try_for_each(Server::discard)?;
    Ok(figures(&all, options))
}

fn figures(all: &[Rounds], options: &PressureOptions) -> Figures {
    let title = format!(
        "misses: gets of absent keys between the loaded ones, {} clients, medians of the rounds, closed loop",
        options.most_clients()
    );
    let (mut table, mut checks) = (Table::new(title), Vec::new());
    for rounds in all {
        let (runs, name, rates) = (&rounds.runs, rounds.name(), rounds.rates());
        let is_reference = |other: &&Rounds| other.protocol == rounds.protocol && other.limit == MemoryLimit::None;
        let unlimited = all.iter().find(is_reference).map(Rounds::rates).unwrap_or_default();
        let (summary, share) = (Summary::of(&rates), ratio(&rates, &unlimited));
        table.row(cells! {
            "protocol" => rounds.protocol.name(), "memory" => rounds.limit.name(), "gets/s" => summary.median,
            "± MAD" => summary.mad, "of no limit" => share,
            "p50 µs" => median_of(runs, |(figures, _)| figures.time_us(50.0)),
            "p95 µs" => median_of(runs, |(figures, _)| figures.time_us(95.0)),
            "p99 µs" => median_of(runs, |(figures, _)| figures.time_us(99.0)),
            "% that read the disk" => rounds.reads_percent(),
            "KiB read each" => median_of(runs, |(_, each)| each.read_kib),
            "cold reads each" => median_of(runs, |(_, each)| each.cold_reads),
            "server's CPU µs each" => median_of(runs, |(_, each)| each.cpu_us),
        });
        let validity = Validity::worst(runs.iter().map(|(figures, _)| &figures.validity));
        checks.push(validity.check(name.as_str(), "all answered: there is no such key"));
        if rounds.limit != MemoryLimit::None {
            let what = format!("{name}: gets that read the disk");
            checks.push(Check::at_most(what, rounds.reads_percent(), MAX_READS_PERCENT, " %"));
            checks.push(Check::at_least(format!("{name}: of the rate without a limit"), share, MIN_SHARE, " ×"));
        }
    }
    Figures { tables: vec![table], checks, notes: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::{Outcome, Tally, options::parsed},
        report::Verdict,
        usage::RunResources,
    };

    fn rounds(limit: MemoryLimit, rate: u64, disk_reads: f64) -> Rounds {
        let tally = Tally { right: rate, ..Tally::new(1) };
        let each = PerRequest { disk_reads, read_kib: 0.0, cold_reads: 0.5, cpu_us: 1.0 };
        let run = (Outcome::new(tally, 1.0, RunResources::default()), each);
        Rounds { protocol: WireProtocol::Resp, limit, runs: vec![run] }
    }

    #[test]
    fn misses_are_compared_with_those_of_a_server_without_a_limit() {
        let options = parsed([]).unwrap();
        let verdicts = |rate, reads| {
            let all = [rounds(MemoryLimit::None, 1000, 0.0), rounds(MemoryLimit::Bytes(64 << 20), rate, reads)];
            let Figures { checks, .. } = figures(&all, &options);
            checks.into_iter().filter(|check| check.is_goal).map(|check| check.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(950, 0.02), [Verdict::Met; 2]);
        assert_eq!(verdicts(890, 0.021), [Verdict::Missed; 2]);
        assert_eq!(verdicts(950, f64::NAN)[0], Verdict::Missed, "cold reads stand in for uncounted disk reads");
    }
}
