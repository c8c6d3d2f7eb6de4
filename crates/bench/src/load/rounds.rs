//! Figures of a run, and the medians over the rounds of a scenario.
//!
//! Owns: the figures that all suites under load have in common. Does not own how a run is judged, which is its
//! protocol's, and figures of one suite alone, which it computes with [`Rounds::median`].

use super::{
    tally::Tally,
    validity::{Validity, summary},
};
use crate::{
    latency::{Latencies, micros},
    report::{Cell, mebibytes},
    stats::{Summary, median_of},
    usage::Spent,
};

/// Figures of a run.
#[derive(Clone, Debug)]
pub struct Outcome<C> {
    /// Merged counts.
    pub tally: Tally<C>,
    /// Response times of all requests.
    pub times: Latencies,
    /// Seconds of the counted time.
    pub seconds: f64,
    /// Right items per second of it.
    pub rate: f64,
    /// Resources that server and generator used.
    pub spent: Spent,
    /// Validity of the figures.
    pub validity: Validity,
}

impl<C> Outcome<C> {
    /// Creates the figures of a run that is not judged yet.
    pub fn new(tally: Tally<C>, seconds: f64, spent: Spent) -> Self {
        let rate = if seconds > 0.0 { tally.right as f64 / seconds } else { 0.0 };
        Self { times: tally.response(), tally, seconds, rate, spent, validity: Validity::Good }
    }

    /// Returns a percentile of the response times, in microseconds; NaN without a reply.
    pub fn time_us(&self, percentile: f64) -> f64 {
        if self.times.count() == 0 { f64::NAN } else { micros(self.times.percentile(percentile)) }
    }

    /// Returns the 99th percentile of the generator's own lateness, in microseconds; NaN without a schedule.
    pub fn lag_us(&self) -> f64 {
        if self.tally.lag.count() == 0 { f64::NAN } else { micros(self.tally.lag.percentile(99.0)) }
    }

    /// Returns the replies per second; NaN without a reply.
    pub fn replies_rate(&self) -> f64 {
        if self.tally.replies == 0 { f64::NAN } else { self.tally.replies as f64 / self.seconds }
    }

    /// Returns the bytes received per second.
    pub fn received_rate(&self) -> f64 {
        self.tally.received_bytes as f64 / self.seconds
    }

    /// Returns the server's CPU seconds for a million of what `count` counts; NaN if its process is not known.
    pub fn server_cpu(&self, count: u64) -> f64 {
        let server = self.spent.server.filter(|cost| cost.peak_rss_bytes.is_some());
        server.map_or(f64::NAN, |cost| cost.cpu_seconds * 1e6 / count as f64)
    }

    /// Returns the generator's CPU seconds for a million of what `count` counts.
    pub fn generator_cpu(&self, count: u64) -> f64 {
        self.spent.generator_cpu * 1e6 / count as f64
    }

    /// Describes the run in a line, for the progress; `unit` is what the rate counts, such as `/s`.
    pub fn summary(&self, unit: &str) -> String {
        summary(self.rate, unit, &self.times, &self.validity)
    }
}

/// Outcomes of one scenario's rounds, in their order.
#[derive(Clone, Debug)]
pub struct Rounds<C> {
    /// The outcomes.
    pub outcomes: Vec<Outcome<C>>,
}

impl<C> Default for Rounds<C> {
    fn default() -> Self {
        Self { outcomes: Vec::new() }
    }
}

impl<C> Rounds<C> {
    /// Adds a round.
    pub fn push(&mut self, outcome: Outcome<C>) {
        self.outcomes.push(outcome);
    }

    /// Returns a figure of each round.
    pub fn over(&self, figure: impl Fn(&Outcome<C>) -> f64) -> Vec<f64> {
        self.outcomes.iter().map(figure).collect()
    }

    /// Returns the median of a figure; NaN without rounds.
    pub fn median(&self, figure: impl Fn(&Outcome<C>) -> f64) -> f64 {
        median_of(&self.outcomes, figure)
    }

    /// Returns the rate of each round.
    pub fn rates(&self) -> Vec<f64> {
        self.over(|outcome| outcome.rate)
    }

    /// Returns median and spread of the rates.
    pub fn rate(&self) -> Summary {
        Summary::of(&self.rates())
    }

    /// Returns the median of a percentile of the response times, in microseconds.
    pub fn time_us(&self, percentile: f64) -> f64 {
        self.median(|outcome| outcome.time_us(percentile))
    }

    /// Returns the share of its time that the busiest thread of the generator was running, in percent.
    pub fn busy_percent(&self) -> f64 {
        self.median(|outcome| 100.0 * outcome.spent.busiest)
    }

    /// Returns the rate of each round, in words.
    pub fn by_round(&self) -> String {
        self.rates().iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ")
    }

    /// Returns the server's largest resident memory in MiB, if it is known.
    pub fn peak_rss(&self) -> Cell {
        mebibytes(self.outcomes.iter().filter_map(|outcome| outcome.spent.server?.peak_rss_bytes).max())
    }

    /// Returns the first validity that is not good.
    pub fn validity(&self) -> Validity {
        Validity::worst(self.outcomes.iter().map(|outcome| &outcome.validity))
    }
}

/// Returns the order in which contenders take their turns in a round: each round begins with another one, so that a
/// drift of the machine falls on all of them alike.
pub fn turns(round: u64, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |turn| (round as usize + turn) % contenders)
}
