//! Results of a round by either load generator, this process or redis-benchmark, and their tables in the report.
//!
//! Owns: the results of one server over the rounds of a scenario (a line of the report), their validity, and the
//! tables. Does not own: the runs (`turn`, `fanout`, `external`), or their order (`suite`).

use super::{
    external,
    protocol::Outcome,
    requests::Operation,
    scenario::{LoadKind, Scenario},
};
use crate::{
    Spectrum,
    account::{Account, cost_row},
    latency::micros,
    load::{MAX_BUSY, Validity},
    report::{Row, Table, cells, mebibytes, table},
    server::Stages,
    stats::{Summary, median_of, ratio},
};

/// Results of one round on one server.
#[derive(Debug)]
pub(super) enum Round {
    /// Results that the load generator of this process measured.
    Own(Box<Outcome>),
    /// Results that redis-benchmark printed.
    External(external::Figures),
}

impl Round {
    /// Returns a figure that only this process's generator measures; NaN for redis-benchmark.
    fn own(&self, figure: impl Fn(&Outcome) -> f64) -> f64 {
        match self {
            Self::Own(outcome) => figure(outcome),
            Self::External(_) => f64::NAN,
        }
    }

    fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Own(outcome) => Some(outcome),
            Self::External(_) => None,
        }
    }

    pub(super) fn rate(&self) -> f64 {
        match self {
            Self::Own(outcome) => outcome.rate,
            Self::External(figures) => figures.rate,
        }
    }

    pub(super) fn time_us(&self, percentile: f64) -> f64 {
        match self {
            Self::Own(outcome) => outcome.time_us(percentile),
            Self::External(figures) => figures.time_us(percentile),
        }
    }

    pub(super) fn validity(&self) -> &Validity {
        match self {
            Self::Own(outcome) => &outcome.validity,
            Self::External(_) => &Validity::Good,
        }
    }

    fn peak_rss_bytes(&self) -> Option<u64> {
        match self {
            Self::Own(outcome) => outcome.spent.server?.peak_rss_bytes,
            Self::External(_) => None,
        }
    }
}

impl From<Outcome> for Round {
    fn from(outcome: Outcome) -> Self {
        Self::Own(Box::new(outcome))
    }
}

/// All rounds of one server in a scenario: a line of the report.
pub(super) struct Line<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) generator: &'static str,
    pub(super) server: String,
    pub(super) durability: String,
    pub(super) is_bare: bool,
    pub(super) rounds: Vec<Round>,
    /// Increase of the server's own metrics over the rounds.
    pub(super) account: Account,
}

impl Line<'_> {
    fn over(&self, figure: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.rounds.iter().map(figure).collect()
    }

    /// Compares the rate and the median response time of this server with those of another server. Returns both as
    /// multiples; each is the median of the rounds' ratios.
    pub(super) fn ratios(&self, other: &Self) -> (f64, f64) {
        let of = |figure: fn(&Round) -> f64| ratio(&self.over(figure), &other.over(figure));
        (of(Round::rate), of(|round| round.time_us(50.0)))
    }

    /// Returns true if the load generator's thread had no spare time. The server may then be able to do more.
    pub(super) fn is_generator_saturated(&self) -> bool {
        median_of(&self.rounds, |round| round.own(|outcome| outcome.spent.busiest)) > MAX_BUSY
    }

    pub(super) fn validity(&self) -> Validity {
        Validity::worst(self.rounds.iter().map(Round::validity))
    }

    /// Returns true if the load generator limited the rate of a closed loop in any round of this server and scenario.
    pub(super) fn is_lower_bound(&self) -> bool {
        self.outcomes().iter().any(|outcome| outcome.is_lower_bound)
    }

    /// Returns the validity of this server's rounds as a short name for a table.
    fn verdict(&self) -> &'static str {
        match self.validity() {
            Validity::Good if self.is_lower_bound() => "lower bound: generator saturated",
            validity => validity.name(),
        }
    }

    /// Returns the percentiles of the last round's response times as a table; `None` for redis-benchmark, which prints
    /// no counts.
    pub(super) fn spectrum(&self) -> Option<Table> {
        match self.rounds.last()? {
            Round::Own(outcome) => {
                Some(outcome.spectrum(format!("percentile spectrum of the last run: {}", self.label())))
            }
            Round::External(_) => None,
        }
    }

    /// Returns the whole distribution of the last round's response times; `None` for redis-benchmark.
    pub(super) fn whole_spectrum(&self) -> Option<Spectrum> {
        Spectrum::of(self.label(), &self.rounds.last()?.outcome()?.times)
    }

    /// Returns the results of the rounds that this process's load generator measured.
    fn outcomes(&self) -> Vec<&Outcome> {
        self.rounds.iter().filter_map(Round::outcome).collect()
    }

    fn label(&self) -> String {
        format!("{}, {} ({})", self.scenario.name, self.server, self.durability)
    }

    /// Returns the row of this server and scenario in the table of costs; `None` for rounds of redis-benchmark.
    pub(super) fn cost(&self) -> Option<Row> {
        let outcomes = self.outcomes();
        (!outcomes.is_empty()).then(|| cost_row(&self.label(), &outcomes, &self.account))
    }

    /// Divides the average time of the scenario's durable writes on this server into stages, such as the queue and the
    /// fsync; `None` if there were none or the server does not count them.
    pub(super) fn stages(&self) -> Option<Stages> {
        let LoadKind::Requests(mix) = &self.scenario.work else { return None };
        let is_write = |operation: Operation| operation.needs().is_none() && operation != Operation::Ping;
        let response_us = median_of(&self.outcomes(), |outcome| micros(outcome.times.mean()));
        let response_us = Some(response_us).filter(|time| *time > 0.0 && mix.operations().all(is_write));
        self.account.durable_writes(&self.label(), ("", &[]), response_us)
    }

    fn row(&self) -> Row {
        let rate = Summary::of(&self.over(Round::rate));
        let time_us = |percentile| median_of(&self.rounds, |round| round.time_us(percentile));
        let own = |figure: fn(&Outcome) -> f64| median_of(&self.rounds, |round| round.own(figure));
        cells! {
            "scenario" => self.scenario.name.as_str(), "generator" => self.generator, "server" => self.server.as_str(),
            "durability" => self.durability.as_str(), "per second" => rate.median, "± MAD" => rate.mad,
            "p50 µs" => time_us(50.0), "p95 µs" => time_us(95.0), "p99 µs" => time_us(99.0),
            "p99.9 µs" => time_us(99.9), "max µs" => time_us(100.0), "lag p99 µs" => own(Outcome::lag_us),
            "stolen %" => own(Outcome::stolen_percent), "received MiB/s" => own(Outcome::received_mib),
            "sent MiB/s" => own(Outcome::sent_mib),
            "server CPU µs/1" => own(|outcome| outcome.server_cpu(outcome.tally.all_right)),
            "generator CPU µs/1" => own(|outcome| outcome.generator_cpu(outcome.tally.all_right)),
            "generator busy %" => own(|outcome| 100.0 * outcome.spent.busiest),
            "server peak RSS MiB" => mebibytes(self.rounds.iter().filter_map(Round::peak_rss_bytes).max()),
            "verdict" => self.verdict(),
        }
    }
}

pub(super) fn conditions(scenarios: &[Scenario]) -> Table {
    table! {
        "conditions"; scenario in scenarios;
        let options = &scenario.options;
        "scenario" => scenario.name.as_str(), "pace" => options.pace().name("/s"),
        "connections" => options.connections, "pipeline" => options.pipeline,
        "value B" => options.value_bytes(), "keys" => options.keys,
        "spread" => format!("{:?}", options.distribution).to_lowercase(),
    }
}

pub(super) fn figures<'a>(lines: impl Iterator<Item = &'a Line<'a>>) -> Table {
    let title = "figures: medians of the rounds; replies or deliveries per second; times from when a request was due \
                 (closed loop: sent) to its reply or delivery";
    let mut table = Table::new(title);
    lines.for_each(|line| table.row(line.row()));
    table
}

pub(super) fn ratios<'a>(pairs: impl Iterator<Item = (&'a Line<'a>, &'a Line<'a>)>) -> Table {
    table! {
        "ratios: medians of the rounds' ratios"; (line, other) in pairs;
        let (rate, p50) = line.ratios(other);
        "scenario" => line.scenario.name.as_str(), "generator" => line.generator,
        "server" => line.server.as_str(), "against" => format!("{} ({})", other.server, other.durability),
        "rate ×" => rate, "median time ×" => p50,
    }
}
