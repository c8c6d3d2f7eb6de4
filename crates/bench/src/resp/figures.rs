//! Figures of a round, whatever generator sent, and their tables in the report.

use super::{external, fanout::Delivered, protocol::Outcome, scenario::Scenario};
use crate::{
    latency::{Latencies, micros},
    load::validity::{MAX_BUSY, Validity},
    report::{Cell, Row, Table, cells, mebibytes},
    stats::{Summary, median, ratio},
    usage::Cost,
};

/// One round of one server. Figures that are not known are NaN.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) rate: f64,
    pub(super) p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    lag_p99_us: f64,
    server_us: f64,
    generator_us: f64,
    busy: f64,
    peak_rss_bytes: Option<u64>,
    pub(super) validity: Validity,
}

impl Round {
    fn new(rate: f64, times: &Latencies, validity: Validity) -> Self {
        let at = |percentile| if times.count() == 0 { f64::NAN } else { micros(times.percentile(percentile)) };
        Self {
            rate,
            p50_us: at(50.0),
            p99_us: at(99.0),
            p999_us: at(99.9),
            max_us: at(100.0),
            lag_p99_us: f64::NAN,
            server_us: f64::NAN,
            generator_us: f64::NAN,
            busy: f64::NAN,
            peak_rss_bytes: None,
            validity,
        }
    }

    fn with_cost(mut self, count: f64, server: Option<Cost>, generator_cpu: f64, busy: f64) -> Self {
        self.server_us = server.map_or(f64::NAN, |cost| cost.cpu_seconds * 1e6 / count);
        self.peak_rss_bytes = server.and_then(|cost| cost.peak_rss_bytes);
        self.generator_us = generator_cpu * 1e6 / count;
        self.busy = busy;
        self
    }
}

impl From<Outcome> for Round {
    fn from(outcome: Outcome) -> Self {
        let mut round = Self::new(outcome.rate, &outcome.times, outcome.validity);
        if outcome.tally.lag.count() > 0 {
            round.lag_p99_us = micros(outcome.tally.lag.percentile(99.0));
        }
        round.with_cost(outcome.tally.all_right as f64, outcome.server, outcome.generator_cpu, outcome.busiest)
    }
}

impl From<Delivered> for Round {
    fn from(delivered: Delivered) -> Self {
        Self::new(delivered.rate, &delivered.times, delivered.validity).with_cost(
            delivered.deliveries as f64,
            delivered.server,
            delivered.generator_cpu,
            delivered.busy,
        )
    }
}

impl From<external::Figures> for Round {
    fn from(figures: external::Figures) -> Self {
        let round = Self::new(figures.rate, &Latencies::default(), Validity::Good);
        Self { p50_us: figures.p50_us, p99_us: figures.p99_us, max_us: figures.max_us, ..round }
    }
}

/// The rounds of a server in a scenario.
pub(super) struct Line<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) generator: &'static str,
    pub(super) server: String,
    pub(super) durability: String,
    pub(super) is_bare: bool,
    pub(super) rounds: Vec<Round>,
}

impl Line<'_> {
    fn over(&self, figure: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.rounds.iter().map(figure).collect()
    }

    /// Returns the medians of the ratios to another line's rates and medians, round by round.
    pub(super) fn ratios(&self, other: &Self) -> (f64, f64) {
        let of = |figure: fn(&Round) -> f64| ratio(&self.over(figure), &other.over(figure));
        (of(|round| round.rate), of(|round| round.p50_us))
    }

    /// Returns true if the generator's thread had no time to spare: the server may be able to do more.
    pub(super) fn is_generators(&self) -> bool {
        median(&self.over(|round| round.busy)) > MAX_BUSY
    }

    /// The first validity of a round that is not good.
    pub(super) fn validity(&self) -> Validity {
        Validity::worst(self.rounds.iter().map(|round| &round.validity))
    }

    fn row(&self) -> Row {
        let scenario = self.scenario;
        let rates = Summary::of(&self.over(|round| round.rate));
        let middle = |figure: fn(&Round) -> f64| Cell::from(median(&self.over(figure)));
        cells! {
            "scenario" => scenario.name.as_str(), "generator" => self.generator, "server" => self.server.as_str(),
            "durability" => self.durability.as_str(), "per second" => rates.median, "± MAD" => rates.mad,
            "p50 µs" => middle(|round| round.p50_us), "p99 µs" => middle(|round| round.p99_us),
            "p99.9 µs" => middle(|round| round.p999_us), "max µs" => middle(|round| round.max_us),
            "lag p99 µs" => middle(|round| round.lag_p99_us), "server CPU µs/1" => middle(|round| round.server_us),
            "generator CPU µs/1" => middle(|round| round.generator_us),
            "generator busy %" => middle(|round| 100.0 * round.busy),
            "server peak RSS MiB" => mebibytes(self.rounds.iter().filter_map(|round| round.peak_rss_bytes).max()),
            "verdict" => self.validity().name(),
        }
    }
}

pub(super) fn conditions(scenarios: &[Scenario]) -> Table {
    let mut table = Table::new("conditions");
    for scenario in scenarios {
        table.row(cells! {
            "scenario" => scenario.name.as_str(), "pace" => scenario.pace_name(),
            "connections" => scenario.connections, "pipeline" => scenario.pipeline,
            "value B" => scenario.value_bytes, "keys" => scenario.keys,
            "spread" => format!("{:?}", scenario.distribution).to_lowercase(),
        });
    }
    table
}

pub(super) fn figures<'a>(lines: impl Iterator<Item = &'a Line<'a>>) -> Table {
    let title = "figures: medians of the rounds; replies or deliveries per second; times from when a request was due \
                 (closed loop: sent) to its reply or delivery";
    let mut table = Table::new(title);
    lines.for_each(|line| table.row(line.row()));
    table
}

pub(super) fn ratios<'a>(pairs: impl Iterator<Item = (&'a Line<'a>, &'a Line<'a>)>) -> Table {
    let mut table = Table::new("ratios: medians of the rounds' ratios");
    for (line, other) in pairs {
        let (rate, p50) = line.ratios(other);
        table.row(cells! {
            "scenario" => line.scenario.name.as_str(), "generator" => line.generator,
            "server" => line.server.as_str(), "against" => format!("{} ({})", other.server, other.durability),
            "rate ×" => rate, "median time ×" => p50,
        });
    }
    table
}
