//! The table and checks of the streams suite.

use super::scenario::Scenario;
use crate::{
    Report, Spectrum,
    load::Rounds,
    native::TransportKind,
    probe::steadiness,
    report::{Check, Table, cells},
    stats::{median_of, ratio},
};

/// Figures of the rounds of a scenario, with the server's counters and the machine's raw speed for each round.
#[derive(Debug, Default)]
pub(super) struct StreamFigures {
    /// Results of the scenario's rounds.
    pub rounds: Rounds<()>,
    /// Counters of the server during each round of the scenario, and the raw speed of disk and loopback before each
    /// round.
    pub beside: Vec<RoundProbes>,
}

/// Server counters during a round, and the raw speed of disk and loopback, measured without a server before the round.
/// NaN means that a value is not known.
#[derive(Debug)]
pub(super) struct RoundProbes {
    /// Number of fsyncs of the server during the round; NaN if the benchmark did not start the server.
    pub fsyncs: f64,
    /// Bytes of zeroes that the server wrote into new log segments during the round; NaN if the benchmark did not start
    /// the server.
    pub zeroed: f64,
    /// Bytes per second of a raw loopback stream without a server.
    pub stream: f64,
    /// Median time of a raw loopback round trip without a server, in microseconds. It sends the bytes of a request.
    pub round_trip_us: f64,
    /// Median time of a raw write to the disk with its `fdatasync`, in microseconds. It writes the bytes of a request.
    pub fdatasync_us: f64,
}

impl RoundProbes {
    /// Returns the most requests per second that are possible if each request takes a raw round trip and a raw write
    /// with `fdatasync`.
    fn probed_rate(&self) -> f64 {
        1e6 / (self.round_trip_us + self.fdatasync_us)
    }
}

/// Creates the table of the suite's results, without rows.
pub(super) fn table() -> Table {
    Table::new("figures: medians of the rounds; times from asking to the reply")
}

/// Adds a scenario's rounds to the table, and its checks to the report.
pub(super) fn add(
    table: &mut Table,
    report: &mut Report,
    scenario: &Scenario,
    carrier: TransportKind,
    measured: &StreamFigures,
) {
    let StreamFigures { rounds, beside } = measured;
    let each = |figure: fn(&RoundProbes) -> f64| beside.iter().map(figure).collect::<Vec<_>>();
    let middle = |figure: fn(&RoundProbes) -> f64| median_of(beside, figure);
    let rate = rounds.rate();
    let payload_rate = |rate: f64| rate * scenario.payload_bytes as f64;
    let of_probe = ratio(&rounds.over(|outcome| outcome.replies_rate()), &each(RoundProbes::probed_rate));
    let of_bare = ratio(&rounds.over(|outcome| payload_rate(outcome.rate)), &each(|beside| beside.stream));
    table.row(cells! {
        "scenario" => scenario.name.as_str(), "transport" => carrier.name(), "records/s" => rate.median,
        "± MAD" => rate.mad, "payload MB/s" => payload_rate(rate.median) / 1e6,
        "requests/s" => rounds.median(|outcome| outcome.replies_rate()),
        "batches/s" => scenario.writes().then(|| rounds.median(|outcome| outcome.replies_rate())),
        "p50 µs" => rounds.time_us(50.0),
        "p90 µs" => rounds.time_us(90.0), "p95 µs" => rounds.time_us(95.0), "p99 µs" => rounds.time_us(99.0),
        "p99.9 µs" => rounds.time_us(99.9), "max µs" => rounds.time_us(100.0),
        "bare round trip p50 µs" => middle(|beside| beside.round_trip_us),
        "bare fdatasync p50 µs" => middle(|beside| beside.fdatasync_us),
        "1/(round trip + fdatasync)" => middle(RoundProbes::probed_rate), "of that" => of_probe,
        "bare stream MB/s" => middle(|beside| beside.stream) / 1e6, "of bare, payload" => of_bare,
        "server CPU s/M records" => rounds.median(|outcome| outcome.server_cpu(outcome.tally.all_right)),
        "generator CPU s/M records" => rounds.median(|outcome| outcome.generator_cpu(outcome.tally.all_right)),
        "generator busy %" => rounds.busy_percent(), "fsyncs" => middle(|beside| beside.fsyncs),
        "zeroes written MB" => middle(|beside| beside.zeroed) / 1e6,
        "server peak RSS MiB" => rounds.peak_rss(), "records/s by round" => rounds.by_round(),
        "verdict" => rounds.verdict(),
    });
    let what = format!("{}, {}", scenario.name, carrier.name());
    report.spectra.extend(rounds.outcomes.last().and_then(|last| Spectrum::of(what.as_str(), &last.times)));
    report.checks.push(rounds.check(&what, "all acked or read, in order, with the right content"));
    if let (Some(share), TransportKind::Tcp) = (scenario.of_probe, carrier) {
        let times = each(|beside| beside.fdatasync_us);
        report.checks.extend(steadiness(format!("{what}: bare fdatasync"), &times, " µs"));
        report.checks.push(Check::at_least(format!("{what}: of 1/(round trip + fdatasync)"), of_probe, share, " ×"));
    }
    let Some(floor) = scenario.floor(carrier) else { return };
    report.checks.push(match scenario.bare_share.filter(|_| carrier == TransportKind::Quic) {
        Some(share) if rate.median < floor => {
            Check::at_least(format!("{what}: of a bare stream"), of_bare, share, " ×")
        }
        _ => Check::at_least(format!("{what}: records"), rate.median, floor, "/s"),
    });
}

/// Adds remarks to the report that prevent readers from misunderstanding the figures.
pub(super) fn notes(report: &mut Report) {
    report.notes.push(
        "pipelined rows and rows of several publishers may pass 1/(round trip + fdatasync): requests share fsyncs then"
            .to_owned(),
    );
}
