//! The table and checks of the streams suite.

use super::{
    scenario::{Scenario, What},
    suite::Round,
};
use crate::{
    Report,
    latency::{Latencies, micros},
    load::validity::Validity,
    native::{place::Carrier, requests::CallOutcome},
    report::{Check, Table, cells, mebibytes},
    stats::{Summary, median},
};

/// The table of figures, which grows by a row at a time.
#[derive(Debug)]
pub struct Figures {
    table: Table,
}

impl Figures {
    /// Creates a table without rows.
    #[must_use]
    pub fn new() -> Self {
        Self { table: Table::new("figures: medians of the rounds; times from asking to the reply") }
    }

    /// Adds a scenario's rounds.
    pub fn add(&mut self, report: &mut Report, scenario: &Scenario, carrier: Carrier, rounds: &[Round]) {
        let over = |figure: &dyn Fn(&Round) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let of_outcome = |figure: fn(&CallOutcome) -> f64| over(&|round| figure(&round.outcome));
        let rates: Vec<f64> = rounds.iter().map(|round| round.outcome.items_rate).collect();
        let summary = Summary::of(&rates);
        let is_publish = matches!(scenario.what, What::Publish { .. });
        let quantile = |percentile: f64| {
            let time = over(&|round| micros(round.outcome.counts.times.percentile(percentile)));
            Some(time).filter(|_| scenario.what != What::Tail)
        };
        let per_million = |seconds: f64, outcome: &CallOutcome| seconds * 1e6 / outcome.counts.all_items as f64;
        let server = over(&|round| per_million(round.outcome.server.cpu_seconds, &round.outcome));
        let peak = rounds.iter().filter_map(|round| round.outcome.server.peak_rss_bytes).max();
        let of_probe = over(&of_probe);
        let of_bare = over(&|round| round.outcome.items_rate * scenario.payload_bytes as f64 / round.stream);
        let validity = Validity::worst(rounds.iter().map(|round| &round.outcome.validity));
        self.table.row(cells! {
            "scenario" => scenario.name.as_str(), "transport" => carrier.name(), "records/s" => summary.median,
            "± MAD" => summary.mad, "payload MB/s" => summary.median * scenario.payload_bytes as f64 / 1e6,
            "requests/s" => of_outcome(|outcome| outcome.rate), "p50 µs" => quantile(50.0),
            "p99 µs" => quantile(99.0), "max µs" => quantile(100.0),
            "bare round trip p50 µs" => Some(over(&|round| p50(&round.round_trips))).filter(|_| is_publish),
            "bare fdatasync p50 µs" => Some(over(&|round| p50(&round.fdatasyncs))).filter(|_| is_publish),
            "1/(round trip + fdatasync)" => Some(over(&probed_rate)).filter(|_| is_publish),
            "of that" => Some(of_probe).filter(|_| is_publish),
            "bare stream MB/s" => over(&|round| round.stream) / 1e6, "of bare, payload" => of_bare,
            "server CPU s/M records" => Some(server).filter(|_| peak.is_some()),
            "generator CPU s/M records" => over(&|round| per_million(round.outcome.generator_cpu, &round.outcome)),
            "generator busy %" => of_outcome(|outcome| 100.0 * outcome.busiest),
            "fsyncs" => over(&|round| round.fsyncs.unwrap_or(f64::NAN)),
            "zeroes written MB" => over(&|round| round.zeroed.unwrap_or(f64::NAN) / 1e6),
            "server peak RSS MiB" => mebibytes(peak),
            "records/s by round" => rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" "),
            "verdict" => validity.name(),
        });
        let what = format!("{}, {}", scenario.name, carrier.name());
        report.checks.push(Check::of_run(&what, "all acked or read, in order, with the right content", validity));
        checks(report, scenario, carrier, &what, summary.median, of_probe, of_bare);
    }

    /// Puts the table into the report.
    pub fn finish(self, report: &mut Report) {
        report.tables.push(self.table);
    }
}

impl Default for Figures {
    fn default() -> Self {
        Self::new()
    }
}

fn checks(
    report: &mut Report,
    scenario: &Scenario,
    carrier: Carrier,
    what: &str,
    rate: f64,
    of_probe: f64,
    of_bare: f64,
) {
    if let (Some(share), Carrier::Tcp) = (scenario.of_probe, carrier) {
        report.checks.push(Check::at_least(format!("{what}: of 1/(round trip + fdatasync)"), of_probe, share, " ×"));
    }
    let Some(floor) = scenario.floor(carrier) else { return };
    match scenario.bare_share.filter(|_| carrier == Carrier::Quic) {
        Some(share) if rate < floor => {
            report.checks.push(Check::at_least(format!("{what}: of a bare stream"), of_bare, share, " ×"));
        }
        _ => report.checks.push(Check::at_least(format!("{what}: records"), rate, floor, "/s")),
    }
}

/// Returns a median in microseconds, or NaN if nothing was measured.
fn p50(times: &Latencies) -> f64 {
    if times.count() == 0 { f64::NAN } else { micros(times.percentile(50.0)) }
}

/// Requests per second that round trip and disk allow one after the other.
fn probed_rate(round: &Round) -> f64 {
    1e6 / (p50(&round.round_trips) + p50(&round.fdatasyncs))
}

fn of_probe(round: &Round) -> f64 {
    round.outcome.rate / probed_rate(round)
}

/// Adds the remarks without which the figures can be misread.
pub fn notes(report: &mut Report) {
    report.notes.push(
        "pipelined rows and rows of several publishers may pass 1/(round trip + fdatasync): requests share fsyncs then"
            .to_owned(),
    );
}
