//! Results of a run under load, and their medians over the rounds of a scenario.
//!
//! Owns: the results that all suites under load have in common. Does not own: the check of a run's validity, which the
//! protocol makes, or the results of a single suite, which the suite computes with [`Rounds::median`].

use super::{
    pace::Pace,
    tally::Tally,
    validity::{LIMITED_REMEDY, MAX_BUSY, Validity, summary},
};
use crate::{
    latency::{Latencies, micros},
    report::{Cell, Check, Table, Verdict, mebibytes, table},
    stats::{Summary, median_of},
    usage::RunResources,
};

/// Results of a run under load: counts, response times, rate, used resources, and the validity of the run.
#[derive(Clone, Debug)]
pub struct Outcome<C> {
    /// Counts of the benchmark run, summed over all threads.
    pub tally: Tally<C>,
    /// Response times of all counted requests.
    pub times: Latencies,
    /// Duration of the benchmark run without its warm-up, in seconds.
    pub seconds: f64,
    /// Rate of the benchmark run: correct replies, or the records or messages in them, per second.
    pub rate: f64,
    /// Resources that the server and the load generator used.
    pub spent: RunResources,
    /// Validity of the figures: do they measure the server?
    pub validity: Validity,
    /// Validity of the figures without regard to wrong replies and lost connections.
    pub without_errors: Validity,
    /// True if the load generator limited a closed loop. The server may then be able to do more.
    pub is_lower_bound: bool,
}

impl<C> Outcome<C> {
    /// Creates the figures of a benchmark run whose validity has not been judged yet.
    pub fn new(tally: Tally<C>, seconds: f64, spent: RunResources) -> Self {
        let rate = if seconds > 0.0 { tally.right as f64 / seconds } else { 0.0 };
        let (validity, without_errors) = (Validity::Good, Validity::Good);
        let times = tally.response();
        Self { times, tally, seconds, rate, spent, validity, without_errors, is_lower_bound: false }
    }

    /// Completes the results of a run at this pace: marks the rate of a closed loop as a lower bound if a thread of the
    /// load generator had no spare time. A run with a schedule is not marked. Its validity states the same problem.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        let is_busy = self.spent.busiest > MAX_BUSY && !self.tally.is_in_process;
        Self { is_lower_bound: pace == Pace::Closed && is_busy, ..self }
    }

    /// Returns true if the figures do not show what the server can do: the run is void, or the load generator limited
    /// its rate.
    pub fn is_of_generator(&self) -> bool {
        self.validity.is_void() || self.is_lower_bound
    }

    /// Returns true if the figures can be compared with those of another server: the load generator did not limit them,
    /// and all replies were right. A server that refuses half of its requests may answer the other half faster.
    pub fn is_comparable(&self) -> bool {
        !self.is_of_generator() && !matches!(self.validity, Validity::Errors(_))
    }

    /// Returns the validity as a short name for a table.
    pub fn verdict(&self) -> &'static str {
        verdict(&self.validity, self.is_lower_bound)
    }

    /// Returns the results without the counts that only one protocol has, so that runs over different protocols can be
    /// compared.
    pub fn without_own(self) -> Outcome<()> {
        let Self { tally, times, seconds, rate, spent, validity, without_errors, is_lower_bound } = self;
        Outcome { tally: tally.without_own(), times, seconds, rate, spent, validity, without_errors, is_lower_bound }
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

    /// Returns the number of replies per second, right or wrong; NaN if there was no reply.
    pub fn replies_rate(&self) -> f64 {
        if self.tally.replies == 0 { f64::NAN } else { self.tally.replies as f64 / self.seconds }
    }

    /// Returns the number of bytes received per second.
    pub fn received_rate(&self) -> f64 {
        self.tally.received_bytes as f64 / self.seconds
    }

    /// Returns the MiB received per second; NaN if the benchmark run does not count received bytes.
    pub fn received_mib(&self) -> f64 {
        self.mib_per_second(self.tally.received_bytes)
    }

    /// Returns the MiB sent per second; NaN if the benchmark run does not count sent bytes.
    pub fn sent_mib(&self) -> f64 {
        self.mib_per_second(self.tally.sent_bytes)
    }

    fn mib_per_second(&self, bytes: u64) -> f64 {
        if bytes == 0 { f64::NAN } else { bytes as f64 / f64::from(1 << 20) / self.seconds }
    }

    /// Returns the percentage of the processors' time that the host of a virtual machine took during the run; NaN if
    /// the kernel does not count it.
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

    /// Returns the server's CPU seconds per million of `count`, a number of replies, records or messages in the run;
    /// NaN if the server's process is not known.
    pub fn server_cpu(&self, count: u64) -> f64 {
        let server = self.spent.server.filter(|cost| cost.peak_rss_bytes.is_some());
        server.map_or(f64::NAN, |cost| cost.cpu_seconds * 1e6 / count as f64)
    }

    /// Returns the load generator's CPU seconds per million of `count`, a number of replies, records or messages in the
    /// run.
    pub fn generator_cpu(&self, count: u64) -> f64 {
        self.spent.generator_cpu * 1e6 / count as f64
    }

    /// Describes the benchmark run in one line for the progress output; `unit` is the unit of the rate, such as `/s`.
    pub fn summary(&self, unit: &str) -> String {
        summary(self.rate, unit, &self.times, &self.validity)
    }
}

/// Results of all rounds of one scenario, in order.
#[derive(Clone, Debug)]
pub struct Rounds<C> {
    /// Results of the scenario in each round, in order.
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

    /// Returns the value that the function `figure` computes from each round, in order.
    pub fn over(&self, figure: impl Fn(&Outcome<C>) -> f64) -> Vec<f64> {
        self.outcomes.iter().map(figure).collect()
    }

    /// Returns the median over the rounds of the value that `figure` computes; NaN without rounds.
    pub fn median(&self, figure: impl Fn(&Outcome<C>) -> f64) -> f64 {
        median_of(&self.outcomes, figure)
    }

    /// Returns the rate of each round: correct replies, or the records or messages in them, per second.
    pub fn rates(&self) -> Vec<f64> {
        self.over(|outcome| outcome.rate)
    }

    /// Returns median and spread of the rounds' rates: correct replies, or the records or messages in them, per second.
    pub fn rate(&self) -> Summary {
        Summary::of(&self.rates())
    }

    /// Returns the median over the rounds of a percentile of the response times, in microseconds.
    pub fn time_us(&self, percentile: f64) -> f64 {
        self.median(|outcome| outcome.time_us(percentile))
    }

    /// Returns the percentage of the time during which the busiest thread of the load generator was running, as the
    /// median over the rounds.
    pub fn busy_percent(&self) -> f64 {
        self.median(|outcome| 100.0 * outcome.spent.busiest)
    }

    /// Returns the rates of all rounds as text.
    pub fn by_round(&self) -> String {
        self.rates().iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ")
    }

    /// Returns the server's largest resident memory of all rounds as a table cell in MiB. The cell is empty if the
    /// memory is not known.
    pub fn peak_rss(&self) -> Cell {
        mebibytes(self.outcomes.iter().filter_map(|outcome| outcome.spent.server?.peak_rss_bytes).max())
    }

    /// Returns the validity of the first round that is not valid; [`Validity::Good`] if all rounds are valid.
    pub fn validity(&self) -> Validity {
        Validity::worst(self.outcomes.iter().map(|outcome| &outcome.validity))
    }

    /// Returns true if the load generator limited the rate of a closed loop in any round.
    pub fn is_lower_bound(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.is_lower_bound)
    }

    /// Returns the validity of all rounds as a short name for a table.
    pub fn verdict(&self) -> &'static str {
        verdict(&self.validity(), self.is_lower_bound())
    }

    /// Creates the check that requires all rounds to be valid. If a rate is only a lower bound, the check says so and
    /// names remedies.
    pub fn check(&self, what: impl Into<String>, required: &str) -> Check {
        let check = self.validity().check(what, required);
        if check.verdict != Verdict::Met || !self.is_lower_bound() {
            return check;
        }
        let busy = self.busy_percent();
        let why = format!("a load thread was {busy:.0} % busy; {LIMITED_REMEDY}");
        let measured = format!("yes, but the rate is a lower bound: {why}");
        Check { measured, ..check }
    }
}

/// Returns a validity as a short name for a table.
fn verdict(validity: &Validity, is_lower_bound: bool) -> &'static str {
    match validity {
        Validity::Good if is_lower_bound => "lower bound: generator saturated",
        validity => validity.name(),
    }
}

/// Returns the order in which the compared stores or servers (`contenders`) are measured in a round, by their numbers.
/// Each round begins with another contender, so that a drift of the machine's speed affects all of them equally.
pub fn turns(round: u64, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |turn| (round as usize + turn) % contenders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_closed_loop_with_a_busy_generator_is_a_lower_bound() {
        let run = |busiest, is_in_process, pace| {
            let tally = Tally::<()> { right: 10, is_in_process, ..Tally::new(1) };
            Outcome::new(tally, 1.0, RunResources { busiest, ..RunResources::default() }).paced(pace)
        };
        let open = Pace::Open { rate: 5.0, arrivals: crate::Arrivals::Constant };
        for (busiest, is_in_process, pace, wanted) in [
            (0.99, false, Pace::Closed, "lower bound: generator saturated"),
            (0.5, false, Pace::Closed, "good"),
            // In these two cases busy threads limit nothing: they also do the engine's work, or the run is setup, whose
            // rate is not used.
            (0.99, true, Pace::Closed, "good"),
            (0.99, false, Pace::Each { keys: 10 }, "good"),
            // Such a run is void. The judgement of the run states that, and not the figures.
            (0.99, false, open, "good"),
        ] {
            let outcome = run(busiest, is_in_process, pace);
            assert_eq!((outcome.verdict(), outcome.is_of_generator()), (wanted, wanted != "good"), "{pace:?}");
            assert_eq!(outcome.is_comparable(), wanted == "good");
            let refused = Outcome { validity: Validity::Errors("refused".to_owned()), ..outcome };
            assert!(!refused.is_comparable());
        }
        let mut rounds = Rounds::default();
        rounds.push(run(0.5, false, Pace::Closed));
        assert_eq!(rounds.check("put", "all").measured, "yes");
        rounds.push(run(1.0, false, Pace::Closed));
        assert_eq!(rounds.verdict(), "lower bound: generator saturated");
        let check = rounds.check("put", "all");
        assert!(check.verdict == Verdict::Met && check.measured.contains("lower bound"), "{check:?}");
        assert!(check.measured.ends_with(LIMITED_REMEDY), "{check:?}");
    }
}
