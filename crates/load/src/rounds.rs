//! Figures of a run, and the medians over the rounds of a scenario.
//!
//! Owns: the figures that all suites under load have in common. Does not own how a run is judged, which the protocol
//! does, and the figures of a single suite, which the suite computes with [`Rounds::median`].

use super::{
    tally::Tally,
    validity::{Validity, summary},
};
use crate::{
    latency::{Latencies, micros},
    report::{Cell, Table, mebibytes, table},
    stats::{Summary, median_of},
    usage::Spent,
};

/// Figures of a run under load.
#[derive(Clone, Debug)]
pub struct Outcome<C> {
    /// Counts of the run, summed over all threads.
    pub tally: Tally<C>,
    /// Response times of all counted requests.
    pub times: Latencies,
    /// Duration of the run without its warm-up, in seconds.
    pub seconds: f64,
    /// Right items per second, for example replies or delivered messages.
    pub rate: f64,
    /// Resources that the server and the load generator used.
    pub spent: Spent,
    /// Validity of the figures: whether they measure the server.
    pub validity: Validity,
    /// Validity of the figures if wrong replies and lost connections are disregarded.
    pub without_errors: Validity,
}

impl<C> Outcome<C> {
    /// Creates the figures of a run whose validity has not been judged yet.
    pub fn new(tally: Tally<C>, seconds: f64, spent: Spent) -> Self {
        let rate = if seconds > 0.0 { tally.right as f64 / seconds } else { 0.0 };
        let (validity, without_errors) = (Validity::Good, Validity::Good);
        Self { times: tally.response(), tally, seconds, rate, spent, validity, without_errors }
    }

    /// Returns the figures without those of a single protocol, so that runs over different protocols can be compared.
    pub fn without_own(self) -> Outcome<()> {
        let Self { tally, times, seconds, rate, spent, validity, without_errors } = self;
        Outcome { tally: tally.without_own(), times, seconds, rate, spent, validity, without_errors }
    }

    /// Returns a percentile of the response times, in microseconds; NaN if there was no reply.
    pub fn time_us(&self, percentile: f64) -> f64 {
        if self.times.count() == 0 { f64::NAN } else { micros(self.times.percentile(percentile)) }
    }

    /// Returns the 99th percentile of the generator's own lateness in sending requests, in microseconds; NaN in a run
    /// without a schedule.
    pub fn lag_us(&self) -> f64 {
        if self.tally.lag.count() == 0 { f64::NAN } else { micros(self.tally.lag.percentile(99.0)) }
    }

    /// Returns the number of replies per second; NaN if there was no reply.
    pub fn replies_rate(&self) -> f64 {
        if self.tally.replies == 0 { f64::NAN } else { self.tally.replies as f64 / self.seconds }
    }

    /// Returns the number of bytes received per second.
    pub fn received_rate(&self) -> f64 {
        self.tally.received_bytes as f64 / self.seconds
    }

    /// Returns the MiB received per second; NaN if the run does not count received bytes.
    pub fn received_mib(&self) -> f64 {
        self.mib_per_second(self.tally.received_bytes)
    }

    /// Returns the MiB sent per second; NaN if the run does not count sent bytes.
    pub fn sent_mib(&self) -> f64 {
        self.mib_per_second(self.tally.sent_bytes)
    }

    fn mib_per_second(&self, bytes: u64) -> f64 {
        if bytes == 0 { f64::NAN } else { bytes as f64 / f64::from(1 << 20) / self.seconds }
    }

    /// Returns the percentage of the processors' time that the host of a virtual machine took during the run; NaN if the
    /// kernel does not count it.
    pub fn stolen_percent(&self) -> f64 {
        self.spent.clocks.stolen.map_or(f64::NAN, |share| 100.0 * share)
    }

    /// Returns the percentile spectrum of the response times as a table with the columns of HdrHistogram.
    pub fn spectrum(&self, title: impl Into<String>) -> Table {
        table! {
            title; line in self.times.spectrum();
            "percentile" => format!("{}", line.percentile), "response µs" => line.time_us,
            "requests at or below" => line.count, "1/(1-percentile)" => line.one_in(),
        }
    }

    /// Returns the server's CPU seconds per million items, where `count` is the number of items in the run; NaN if the
    /// server's process is not known.
    pub fn server_cpu(&self, count: u64) -> f64 {
        let server = self.spent.server.filter(|cost| cost.peak_rss_bytes.is_some());
        server.map_or(f64::NAN, |cost| cost.cpu_seconds * 1e6 / count as f64)
    }

    /// Returns the generator's CPU seconds per million items, where `count` is the number of items in the run.
    pub fn generator_cpu(&self, count: u64) -> f64 {
        self.spent.generator_cpu * 1e6 / count as f64
    }

    /// Describes the run in one line for the progress output; `unit` is the unit of the rate, such as `/s`.
    pub fn summary(&self, unit: &str) -> String {
        summary(self.rate, unit, &self.times, &self.validity)
    }
}

/// Figures of the rounds of one scenario, in order.
#[derive(Clone, Debug)]
pub struct Rounds<C> {
    /// Figures of each round, in order.
    pub outcomes: Vec<Outcome<C>>,
}

impl<C> Default for Rounds<C> {
    fn default() -> Self {
        Self { outcomes: Vec::new() }
    }
}

impl<C> Rounds<C> {
    /// Adds the figures of one more round of the scenario.
    pub fn push(&mut self, outcome: Outcome<C>) {
        self.outcomes.push(outcome);
    }

    /// Returns the value that `figure` has in each round.
    pub fn over(&self, figure: impl Fn(&Outcome<C>) -> f64) -> Vec<f64> {
        self.outcomes.iter().map(figure).collect()
    }

    /// Returns the median over the rounds of the value that `figure` computes; NaN without rounds.
    pub fn median(&self, figure: impl Fn(&Outcome<C>) -> f64) -> f64 {
        median_of(&self.outcomes, figure)
    }

    /// Returns the rate of each round, in right items per second.
    pub fn rates(&self) -> Vec<f64> {
        self.over(|outcome| outcome.rate)
    }

    /// Returns median and spread of the rounds' rates, in right items per second.
    pub fn rate(&self) -> Summary {
        Summary::of(&self.rates())
    }

    /// Returns the median over the rounds of a percentile of the response times, in microseconds.
    pub fn time_us(&self, percentile: f64) -> f64 {
        self.median(|outcome| outcome.time_us(percentile))
    }

    /// Returns the percentage of its time that the busiest thread of the load generator was running.
    pub fn busy_percent(&self) -> f64 {
        self.median(|outcome| 100.0 * outcome.spent.busiest)
    }

    /// Returns the rates of the rounds as text.
    pub fn by_round(&self) -> String {
        self.rates().iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ")
    }

    /// Returns the server's largest resident memory in MiB over the rounds, if it is known, as a table cell.
    pub fn peak_rss(&self) -> Cell {
        mebibytes(self.outcomes.iter().filter_map(|outcome| outcome.spent.server?.peak_rss_bytes).max())
    }

    /// Returns the validity of the first round that is not valid; [`Validity::Good`] if all rounds are valid.
    pub fn validity(&self) -> Validity {
        Validity::worst(self.outcomes.iter().map(|outcome| &outcome.validity))
    }
}

/// Returns the order in which the compared stores or servers take their turns in a round. Each round begins with
/// another one, so that a drift of the machine's speed affects all of them equally.
pub fn turns(round: u64, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |turn| (round as usize + turn) % contenders)
}
