//! Search for the knee: the highest rate that meets a response-time objective, and meets it again when repeated.
//!
//! The search doubles the rate until a run fails, then bisects between the highest rate that passed and the lowest that
//! failed, and repeats the best rate. If a repeat fails, it lowers the rate by a step and repeats there. The search
//! only sees a function from rate to result, so tests use a formula instead of a server.

use std::{fmt, str::FromStr, time::Duration};

use super::validity::Validity;
use crate::{
    BenchError,
    latency::Latencies,
    options::parse_duration,
    report::{self, Check, Verdict},
};

/// Upper bound on a percentile of the response time, as in `p99<5ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Percentile from 0 to 100.
    pub percentile: f64,
    /// Response time that the percentile must stay below.
    pub bound: Duration,
}

impl Objective {
    /// Returns true if the percentile of `times` is below the bound. Returns false if `times` is empty.
    pub fn is_met(&self, times: &Latencies) -> bool {
        times.count() > 0 && times.percentile(self.percentile) < self.bound
    }

    /// Returns the longest wait for a reply before a run of the search is aborted: 20 times the bound, but at least 1
    /// s. The run then counts as failed, and the search continues at another rate.
    pub fn patience(&self) -> Duration {
        (self.bound * 20).max(Duration::from_secs(1))
    }

    /// Decides whether a run of the search passed, from the validity of the run and its response times. Returns an
    /// error if `subject` gave wrong replies, which ends the search.
    pub fn judge(&self, subject: &str, validity: &Validity, times: &Latencies) -> Result<Trial, BenchError> {
        match validity {
            Validity::Good if self.is_met(times) => Ok(Trial::Pass),
            Validity::Good | Validity::Overloaded(_) => Ok(Trial::Fail),
            Validity::Saturated(_) => Ok(Trial::Void),
            Validity::Errors(why) => Err(BenchError::wrong(subject, "answering the search", why.as_str())),
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{} < {}", self.percentile, report::duration(self.bound))
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not an objective: write for example p99<5ms, p99.9<800us or max<1s");
        let (left, right) = text.split_once('<').ok_or_else(wrong)?;
        let percentile = match left.trim() {
            "max" => 100.0,
            name => name.strip_prefix('p').and_then(|number| number.parse().ok()).ok_or_else(wrong)?,
        };
        if !(0.0..=100.0).contains(&percentile) {
            return Err(wrong());
        }
        Ok(Self { percentile, bound: parse_duration(right.trim())? })
    }
}

/// Result of one run of the search, at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The run met the objective.
    Pass,
    /// The run missed the objective.
    Fail,
    /// The run has no valid result: the load generator was saturated, so the run says nothing about the server.
    Void,
}

impl Trial {
    /// Returns the result of a run in words, for a table.
    pub fn name(self, validity: &Validity) -> String {
        match self {
            Self::Pass => "pass".to_owned(),
            Self::Fail | Self::Void => format!("{self:?}: {}", validity.name()).to_lowercase(),
        }
    }
}

/// Bounds and precision of a search for the knee.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Rate at which the search begins.
    pub start: f64,
    /// Highest rate that the search tries.
    pub max: f64,
    /// The bisection ends when the gap between the highest passed and the lowest failed rate is below this share of the
    /// rate.
    pub precision: f64,
    /// Number of runs that the best rate must pass at the end.
    pub repeats: u32,
}

/// Result of a search for the knee, the highest rate that meets the objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Knee {
    /// Highest rate that passed every repeat; `None` if no rate did.
    pub rate: Option<f64>,
    /// Reason why no higher rate was found.
    pub limited_by: Limit,
    /// All runs of the search in order, each with its rate and result.
    pub trials: Vec<(f64, Trial)>,
}

impl Knee {
    /// Creates the check that a knee was found and that the load generator did not limit it. `describe` formats a rate
    /// as text.
    pub fn check(&self, what: String, describe: impl Fn(f64) -> String) -> Check {
        let (measured, verdict) = match (self.rate, self.limited_by) {
            (None, _) => ("no rate meets it".to_owned(), Verdict::Missed),
            (Some(rate), limit) => {
                let verdict = if limit == Limit::Generator { Verdict::Void } else { Verdict::Met };
                (format!("{}, limited by the {}", describe(rate), limit.name()), verdict)
            }
        };
        let required = "found, and limited by the server".to_owned();
        Check { what, required, measured, verdict, is_goal: false }
    }
}

/// Reason why a search found no higher rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The server: at a higher rate it missed the objective.
    Server,
    /// The load generator could not send more requests; the server may be able to handle more.
    Generator,
    /// The search has reached its maximum rate.
    MaxRate,
}

impl Limit {
    /// Returns the reason why the rate is not higher, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Generator => "load generator",
            Self::MaxRate => "highest rate allowed (--max-rate)",
        }
    }
}

/// Lowest rate that the search tries. With fewer requests percentiles mean nothing.
const LOWEST_RATE: f64 = 10.0;
const STEP_DOWN: f64 = 0.95;

/// Searches for the knee, the highest rate that meets an objective; `trial` runs the load at one rate and returns the
/// result.
pub fn find_knee<E>(bounds: &Bounds, mut trial: impl FnMut(f64) -> Result<Trial, E>) -> Result<Knee, E> {
    let mut knee = Knee { rate: None, limited_by: Limit::MaxRate, trials: Vec::new() };
    let mut passes = |rate: f64, knee: &mut Knee| {
        let how = trial(rate)?;
        knee.trials.push((rate, how));
        match how {
            Trial::Pass => {}
            Trial::Fail => knee.limited_by = Limit::Server,
            Trial::Void => knee.limited_by = Limit::Generator,
        }
        Ok(how == Trial::Pass)
    };
    let (mut low, mut high) = (0.0, None);
    let mut rate = bounds.start.min(bounds.max);
    while high.is_none() && low < bounds.max {
        if passes(rate, &mut knee)? {
            low = rate;
            rate = (rate * 2.0).min(bounds.max);
        } else {
            high = Some(rate);
        }
    }
    if let Some(mut high) = high {
        while high - low > bounds.precision * high && high > LOWEST_RATE {
            let middle = f64::midpoint(low, high);
            if passes(middle, &mut knee)? {
                low = middle;
            } else {
                high = middle;
            }
        }
    }
    while low > LOWEST_RATE {
        let mut passed = 0;
        while passed < bounds.repeats && passes(low, &mut knee)? {
            passed += 1;
        }
        if passed == bounds.repeats {
            knee.rate = Some(low);
            return Ok(knee);
        }
        low *= STEP_DOWN;
    }
    Ok(knee)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const BOUNDS: Bounds = Bounds { start: 1000.0, max: 1e6, precision: 0.02, repeats: 3 };

    fn knee(bounds: &Bounds, mut trial: impl FnMut(f64) -> Trial) -> Knee {
        let Ok(knee) = find_knee(bounds, |rate| Ok::<_, Infallible>(trial(rate)));
        knee
    }

    #[test]
    fn the_knee_of_a_queue_is_found_to_the_asked_precision() {
        // M/M/1 with 40 µs of service: p99 = ln(100) × service / (1 − load) passes 1 ms at 20,395/s.
        let knee = knee(&BOUNDS, |rate| {
            let load: f64 = rate * 40e-6;
            if load < 1.0 && 4.605 * 40e-6 / (1.0 - load) < 1e-3 { Trial::Pass } else { Trial::Fail }
        });
        let rate = knee.rate.unwrap();
        assert!((19_900.0..=20_396.0).contains(&rate), "{rate}");
        assert_eq!(knee.limited_by, Limit::Server);
        assert!(knee.trials.len() < 20, "{:?}", knee.trials);
        assert!(knee.trials.iter().rev().take(3).all(|trial| *trial == (rate, Trial::Pass)));
    }

    #[test]
    fn an_unstable_knee_is_walked_down_from() {
        let mut runs_above = 0;
        let knee = knee(&BOUNDS, |rate| {
            if rate > 10_000.0 {
                return Trial::Fail;
            }
            // Above 9000 only the first run of each rate goes well.
            runs_above += u32::from(rate > 9000.0);
            if rate > 9000.0 && runs_above > 3 { Trial::Fail } else { Trial::Pass }
        });
        assert!(knee.rate.unwrap() <= 9000.0, "{knee:?}");
    }

    #[test]
    fn a_saturated_generator_is_named_as_the_limit() {
        let knee = knee(&BOUNDS, |rate| if rate > 50_000.0 { Trial::Void } else { Trial::Pass });
        assert_eq!(knee.limited_by, Limit::Generator);
        assert!(knee.rate.unwrap() <= 50_000.0);
    }

    #[test]
    fn the_ends_of_the_range() {
        let bounds = Bounds { max: 5000.0, ..BOUNDS };
        let all = knee(&bounds, |_| Trial::Pass);
        assert_eq!((all.rate, all.limited_by), (Some(5000.0), Limit::MaxRate));
        assert_eq!(knee(&bounds, |_| Trial::Fail).rate, None);
    }

    #[test]
    fn objectives_and_durations_are_read() {
        let objective: Objective = "p99.9<800us".parse().unwrap();
        assert_eq!(objective, Objective { percentile: 99.9, bound: Duration::from_micros(800) });
        assert_eq!("max < 1s".parse::<Objective>().unwrap().percentile, 100.0);
        for wrong in ["p99", "p101<1s", "q<1s", "p99<1h", "p99<", "p99<-1s", "p99<1e999s"] {
            assert!(wrong.parse::<Objective>().is_err(), "{wrong}");
        }
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
    }
}
