//! Search for the knee: the highest rate that meets a response-time objective, also when the run is repeated.
//!
//! Owns: the choice of the next rate, the counts of passed and failed runs at each rate, and the conclusion. Does not
//! own: the runs, or the judgement of a single run (`objective`).
//!
//! The search doubles the rate until a run fails. Then it bisects between the highest rate that passed and the lowest
//! that failed, each time at their geometric mean. When the two are within the precision, it confirms both: the lower
//! rate must pass the number of repeats, and the higher one must fail twice. So a single run that was disturbed or
//! lucky decides nothing: its rate is run again, and the search continues above or below it. The two confirmed rates
//! are the interval of the knee.
//!
//! A run that the machine is known to have disturbed, for example because the host took its processors, says nothing.
//! It is repeated and does not count. If its repeats are disturbed too, the search ends.
//!
//! The search only sees a function from rate to result, so tests use a formula or a simulated queue instead of a
//! server.

use super::objective::Trial;
use crate::report::{Check, Verdict};

/// First and highest rate, and precision, of a search for the knee (the highest rate that meets the objective).
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Rate at which the search begins, in requests per second.
    pub start: f64,
    /// Highest rate that the search tries, in requests per second.
    pub max: f64,
    /// Relative precision. The bisection ends when the gap between the highest passed and the lowest failed rate is
    /// below this share of the passed rate.
    pub precision: f64,
    /// Number of benchmark runs that a rate must pass before the search reports it as the highest one, at least 1.
    pub repeats: u32,
}

/// Result of a search for the knee, the highest rate that meets the objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Knee {
    /// Highest rate that passed the required number of runs ([`Bounds::repeats`]) and failed at most once; `None` if no
    /// rate did.
    pub rate: Option<f64>,
    /// Lowest rate above [`rate`](Self::rate) that failed twice. The knee is below it. `None` if no rate failed.
    pub fails_at: Option<f64>,
    /// Reason why no higher rate was found.
    pub limited_by: Limit,
    /// Condition that the lowest failed rate missed, in words; `None` if no rate failed.
    pub missed: Option<String>,
    /// All runs of the search in order, each with its rate and result.
    pub trials: Vec<(f64, Trial)>,
}

impl Knee {
    /// Creates the check that a knee was found and that the load generator did not limit it. `describe` formats a rate
    /// as text.
    pub fn check(&self, what: String, describe: impl Fn(f64) -> String) -> Check {
        let (measured, verdict) = match (self.rate, self.limited_by) {
            (None, Limit::Machine) => ("the machine disturbed the runs".to_owned(), Verdict::Void),
            (None, Limit::Generator) => ("the load generator limited the runs".to_owned(), Verdict::Void),
            (None, _) => (format!("no rate meets it{}", self.why()), Verdict::Missed),
            (Some(rate), limit) => {
                let is_void = matches!(limit, Limit::Generator | Limit::Machine);
                let verdict = if is_void { Verdict::Void } else { Verdict::Met };
                let above = |rate| format!(", missed at {}{}", describe(rate), self.why());
                let above = self.fails_at.map_or_else(String::new, above);
                (format!("{}{above}, limited by the {}", describe(rate), limit.name()), verdict)
            }
        };
        let required = "found, and limited by the server".to_owned();
        Check { what, required, measured, verdict, is_goal: false }
    }

    /// Returns the condition that the lowest failed rate missed, in parentheses; empty if no rate failed.
    pub fn why(&self) -> String {
        self.missed.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
    }
}

/// Reason why a search found no higher rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The server. At a higher rate it missed the objective.
    Server,
    /// The load generator. It could not send more requests, so the server may be able to handle more.
    Generator,
    /// The maximum rate of the search. The server may be able to handle more.
    MaxRate,
    /// The machine. It disturbed a benchmark run and all its repeats, so the search ended early.
    Machine,
}

impl Limit {
    /// Returns the reason why the rate is not higher, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Generator => "load generator",
            Self::MaxRate => "highest rate allowed (--max-rate)",
            Self::Machine => "machine, which disturbed the runs",
        }
    }
}

/// Lowest rate that the search tries, in requests per second. With fewer requests percentiles mean nothing.
const LOWEST_RATE: f64 = 10.0;
/// Number of failed runs after which the search concludes that the server cannot serve a rate.
const FAILURES: u32 = 2;
/// Maximum number of runs of a search, which usually takes about 15. If a search reaches this number, its runs
/// contradict each other. It then ends with the best rate that passed the required number of runs.
const MAX_RUNS: usize = 100;

/// Maximum number of repeats of a benchmark run that the machine disturbed. If all are disturbed, the search ends.
const REPEATS_OF_DISTURBED: u32 = 3;

/// Searches for the knee, the highest rate that meets an objective. `trial` runs the load at one rate and returns the
/// result.
pub fn find_knee<E>(bounds: &Bounds, mut trial: impl FnMut(f64) -> Result<Trial, E>) -> Result<Knee, E> {
    let mut search = Search { bounds, tried: Vec::new() };
    let mut trials = Vec::new();
    let mut disturbed = 0;
    while let Some(rate) = search.next_rate().filter(|_| trials.len() < MAX_RUNS && disturbed <= REPEATS_OF_DISTURBED) {
        let how = trial(rate)?;
        disturbed = if matches!(how, Trial::Disturbed(_)) { disturbed + 1 } else { 0 };
        search.record(rate, &how);
        trials.push((rate, how));
    }
    let knee = search.conclude(trials);
    Ok(if disturbed > REPEATS_OF_DISTURBED { Knee { limited_by: Limit::Machine, ..knee } } else { knee })
}

/// A rate that the search has tried, with the results of the runs at it.
#[derive(Clone, Copy, Debug)]
struct TestedRate {
    rate: f64,
    passes: u32,
    fails: u32,
    voids: u32,
}

impl TestedRate {
    fn failures(&self) -> u32 {
        self.fails + self.voids
    }

    /// Returns true if more runs at this rate passed than failed, so that it may be the knee.
    fn is_good(&self) -> bool {
        self.passes > self.failures()
    }

    fn is_stable(&self, repeats: u32) -> bool {
        self.is_good() && self.passes >= repeats
    }

    fn has_failed(&self) -> bool {
        !self.is_good() && self.failures() >= FAILURES
    }
}

/// State of a search: the rates tried so far.
struct Search<'a> {
    bounds: &'a Bounds,
    /// Tried rates with the results of their runs, in ascending order of the rates.
    tried: Vec<TestedRate>,
}

impl Search<'_> {
    /// Returns the rate of the next run; `None` if the search is over, because the knee is found or because no rate
    /// meets the objective.
    fn next_rate(&self) -> Option<f64> {
        let Bounds { start, max, precision, repeats } = *self.bounds;
        match self.bracket() {
            (None, None) => Some(start.min(max)),
            (None, Some(high)) => (high.rate > LOWEST_RATE).then(|| (high.rate / 2.0).max(LOWEST_RATE)),
            (Some(low), None) if low.rate < max => Some((low.rate * 2.0).min(max)),
            (Some(low), Some(high)) if high.rate > low.rate * (1.0 + precision) => Some((low.rate * high.rate).sqrt()),
            (Some(low), _) if !low.is_stable(repeats) => Some(low.rate),
            (Some(_), Some(high)) if !high.has_failed() => Some(high.rate),
            (Some(_), _) => None,
        }
    }

    /// Returns the two rates between which the search continues: the highest rate at which more runs passed than
    /// failed, and the lowest rate above it at which they did not. Failures below a rate that passed the required
    /// number of runs are ignored, because they come from disturbances.
    fn bracket(&self) -> (Option<TestedRate>, Option<TestedRate>) {
        let stable = self.tried.iter().rposition(|tried| tried.is_stable(self.bounds.repeats)).unwrap_or(0);
        let above = &self.tried[stable..];
        let bad = above.iter().position(|tried| !tried.is_good());
        let low = above[..bad.unwrap_or(above.len())].last();
        (low.copied(), bad.map(|bad| above[bad]))
    }

    fn record(&mut self, rate: f64, how: &Trial) {
        if matches!(how, Trial::Disturbed(_)) {
            return;
        }
        let at = self.tried.partition_point(|tried| tried.rate < rate);
        if self.tried.get(at).is_none_or(|tried| tried.rate > rate) {
            self.tried.insert(at, TestedRate { rate, passes: 0, fails: 0, voids: 0 });
        }
        let tried = &mut self.tried[at];
        match how {
            Trial::Pass => tried.passes += 1,
            Trial::Fail(_) => tried.fails += 1,
            Trial::Void(_) => tried.voids += 1,
            Trial::Disturbed(_) => {}
        }
    }

    fn conclude(&self, trials: Vec<(f64, Trial)>) -> Knee {
        let (_, high) = self.bracket();
        // If the search ended early, a higher rate may be good so far without having passed all its repeats.
        let stable = self.tried.iter().rfind(|tried| tried.is_stable(self.bounds.repeats));
        let rate = stable.map(|tried| tried.rate);
        let limited_by = match high {
            None => Limit::MaxRate,
            Some(high) if high.fails > 0 => Limit::Server,
            Some(_) => Limit::Generator,
        };
        let mut missed = trials.iter().rev().filter(|(rate, _)| high.is_some_and(|high| high.rate == *rate));
        let missed = missed.find_map(|(_, how)| how.why().map(str::to_owned));
        let fails_at = high.filter(TestedRate::has_failed).map(|high| high.rate);
        Knee { rate, fails_at, limited_by, missed, trials }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use rand::RngExt as _;
    use rand_distr::Exp1;

    use super::*;
    use crate::{Arrivals, Schedule, latency::Latencies, random::generator};

    const BOUNDS: Bounds = Bounds { start: 1000.0, max: 1e6, precision: 0.02, repeats: 3 };
    /// Service time of the queues in these tests, in seconds.
    const SERVICE: f64 = 40e-6;
    /// Rate at which the 99th percentile of an M/M/1 queue with this service time is 1 ms. The percentile is ln(100) ×
    /// service / (1 − load).
    const KNEE: f64 = 20_395.0;

    fn knee(bounds: &Bounds, mut trial: impl FnMut(f64) -> Trial) -> Knee {
        let Ok(knee) = find_knee(bounds, |rate| Ok::<_, Infallible>(trial(rate)));
        knee
    }

    fn failed() -> Trial {
        Trial::Fail("p99 6 ms, not below 5 ms".to_owned())
    }

    fn passes_below(limit: f64) -> impl Fn(f64) -> Trial {
        move |rate| if rate < limit { Trial::Pass } else { failed() }
    }

    #[test]
    fn the_knee_of_a_queue_is_found_to_the_asked_precision() {
        let knee = knee(&BOUNDS, |rate| {
            let load: f64 = rate * SERVICE;
            if load < 1.0 && 100_f64.ln() * SERVICE / (1.0 - load) < 1e-3 { Trial::Pass } else { failed() }
        });
        let (rate, fails_at) = (knee.rate.unwrap(), knee.fails_at.unwrap());
        assert!(rate < KNEE && KNEE < fails_at && fails_at <= rate * 1.02, "{rate} to {fails_at}");
        assert_eq!(knee.limited_by, Limit::Server);
        assert!(knee.trials.len() < 20, "{:?}", knee.trials);
        let at = |wanted| knee.trials.iter().filter(move |(rate, _)| *rate == wanted).count();
        assert_eq!((at(rate), at(fails_at)), (3, 2), "both ends are confirmed");
    }

    /// Simulates an M/M/1 queue for four seconds of virtual time, measured as an open loop would.
    fn queue(rate: f64, seed: u64) -> Trial {
        let (mut schedule, mut rng) = (Schedule::new(Arrivals::Poisson, rate, 0, 0, 1, seed), generator(!seed));
        let (mut times, mut free) = (Latencies::default(), 0);
        loop {
            let due = schedule.take();
            if due > 4_000_000_000 {
                break;
            }
            free = free.max(due) + (rng.sample::<f64, _>(Exp1) * SERVICE * 1e9) as u64;
            times.record_nanos(free - due);
        }
        if times.percentile(99.0) < Duration::from_millis(1) { Trial::Pass } else { failed() }
    }

    #[test]
    fn the_knee_of_a_random_queue_is_found_within_five_percent_and_repeats_within_five() {
        let bounds = Bounds { precision: 0.03, ..BOUNDS };
        let (mut found, mut runs) = (Vec::new(), 0);
        for search in 0..6 {
            let mut run = 0;
            let knee = knee(&bounds, |rate| {
                run += 1;
                queue(rate, search * 1000 + run)
            });
            runs += knee.trials.len();
            found.push(knee.rate.unwrap());
        }
        assert!(runs <= 6 * 20, "20 runs of 6 s are two minutes; {runs} in 6 searches");
        let off = found.iter().map(|rate| (rate / KNEE - 1.0).abs()).fold(0.0, f64::max);
        assert!(off < 0.05, "{found:?} of {KNEE}");
        let (low, high) = found.iter().fold((f64::MAX, 0.0_f64), |(low, high), rate| (low.min(*rate), high.max(*rate)));
        assert!(high / low < 1.05, "{found:?}");
    }

    #[test]
    fn one_disturbed_run_decides_nothing() {
        let undisturbed = knee(&BOUNDS, passes_below(KNEE));
        for disturbed in 0..undisturbed.trials.len() {
            let mut run = 0;
            let knee = knee(&BOUNDS, |rate| {
                run += 1;
                if run == disturbed + 1 { failed() } else { passes_below(KNEE)(rate) }
            });
            let (rate, fails_at) = (knee.rate.unwrap(), knee.fails_at.unwrap());
            assert!(rate < KNEE && KNEE <= fails_at && fails_at <= rate * 1.02, "run {disturbed}: {knee:?}");
        }
    }

    #[test]
    fn one_lucky_run_decides_nothing() {
        let undisturbed = knee(&BOUNDS, passes_below(KNEE));
        for lucky in 0..undisturbed.trials.len() {
            let mut run = 0;
            let knee = knee(&BOUNDS, |rate| {
                run += 1;
                if run == lucky + 1 { Trial::Pass } else { passes_below(KNEE)(rate) }
            });
            let rate = knee.rate.unwrap();
            assert!(rate < KNEE && rate > KNEE * 0.95, "run {lucky}: {knee:?}");
        }
    }

    #[test]
    fn a_rate_that_passes_only_once_is_not_the_knee() {
        let mut runs_above = 0;
        let knee = knee(&BOUNDS, |rate| {
            if rate > 10_000.0 {
                return failed();
            }
            // Above 9000/s the first runs pass and later ones fail.
            runs_above += u32::from(rate > 9000.0);
            if rate > 9000.0 && runs_above > 3 { failed() } else { Trial::Pass }
        });
        assert!(knee.rate.unwrap() <= 9000.0, "{knee:?}");
    }

    #[test]
    fn results_without_an_order_end() {
        for seed in 0..50 {
            let mut rng = generator(seed);
            let knee = knee(&BOUNDS, |_| if rng.random::<bool>() { Trial::Pass } else { failed() });
            assert!(knee.trials.len() <= MAX_RUNS);
        }
    }

    #[test]
    fn a_search_that_ends_early_keeps_the_rate_that_was_confirmed() {
        // When the machine begins to disturb the runs, 2,000/s is confirmed, and 4,000/s is good so far.
        let mut above = 0;
        let ended = knee(&Bounds { precision: 10.0, ..BOUNDS }, |rate| {
            if rate <= 2000.0 {
                return Trial::Pass;
            }
            above += 1;
            match above {
                1 => failed(),
                2 | 3 => Trial::Pass,
                _ => Trial::Disturbed("stolen".to_owned()),
            }
        });
        assert_eq!((ended.rate, ended.limited_by), (Some(2000.0), Limit::Machine), "{ended:?}");
    }

    #[test]
    fn a_generator_that_limits_every_run_is_no_fault_of_the_server() {
        let void = knee(&BOUNDS, |_| Trial::Void("late".to_owned()));
        assert_eq!((void.rate, void.limited_by), (None, Limit::Generator));
        assert_eq!(void.check(String::new(), |rate| rate.to_string()).verdict, Verdict::Void);
    }

    #[test]
    fn a_saturated_generator_is_named_as_the_limit() {
        let knee = knee(&BOUNDS, |rate| if rate > 50_000.0 { Trial::Void("late".to_owned()) } else { Trial::Pass });
        assert_eq!(knee.limited_by, Limit::Generator);
        assert!(knee.rate.unwrap() <= 50_000.0);
    }

    #[test]
    fn runs_that_the_machine_disturbed_are_repeated_and_do_not_count() {
        let stolen = || Trial::Disturbed("stolen".to_owned());
        let undisturbed = knee(&BOUNDS, passes_below(KNEE));
        // Every second run is disturbed. The search takes twice as many runs, and finds the same knee.
        let mut run = 0;
        let found = knee(&BOUNDS, |rate| {
            run += 1;
            if run % 2 == 0 { stolen() } else { passes_below(KNEE)(rate) }
        });
        assert_eq!((found.rate, found.fails_at), (undisturbed.rate, undisturbed.fails_at));
        assert!(found.trials.len() + 1 >= 2 * undisturbed.trials.len(), "{:?}", found.trials);
        // At the fifth rate all runs are disturbed. The search ends, and says nothing about the server.
        let mut run = 0;
        let found = knee(&BOUNDS, |_| {
            run += 1;
            if run > 4 { stolen() } else { Trial::Pass }
        });
        assert_eq!((found.limited_by, found.trials.len()), (Limit::Machine, 8));
        assert_eq!(found.check(String::new(), |rate| rate.to_string()).verdict, Verdict::Void);
        assert_eq!(knee(&BOUNDS, |_| stolen()).check(String::new(), |rate| rate.to_string()).verdict, Verdict::Void);
    }

    #[test]
    fn the_ends_of_the_range() {
        let bounds = Bounds { max: 5000.0, ..BOUNDS };
        let all = knee(&bounds, |_| Trial::Pass);
        assert_eq!((all.rate, all.fails_at, all.limited_by), (Some(5000.0), None, Limit::MaxRate));
        assert_eq!(knee(&bounds, |_| failed()).rate, None);
        let low = knee(&BOUNDS, passes_below(37.0));
        assert!((35.0..37.0).contains(&low.rate.unwrap()), "{low:?}");
    }

    #[test]
    fn the_check_names_both_ends() {
        let check = knee(&BOUNDS, passes_below(KNEE)).check("p99".to_owned(), |rate| format!("{rate:.0}/s"));
        assert_eq!(check.verdict, Verdict::Met);
        assert!(check.measured.contains("/s, missed at 20") && check.measured.contains("server"), "{}", check.measured);
        assert!(check.measured.contains("/s (p99 6 ms, not below 5 ms), limited"), "{}", check.measured);
        let none = knee(&BOUNDS, |_| failed()).check(String::new(), |rate| format!("{rate:.0}/s"));
        assert_eq!(none.measured, "no rate meets it (p99 6 ms, not below 5 ms)");
    }
}
