//! Objective of a search: the conditions that a run must meet, and the result of a run.
//!
//! Owns: the text form of an objective, and the judgement of one run. Does not own: the search over rates
//! ([`super::find_knee`]), or the validity of a run's figures ([`Validity`]).

use std::{fmt, str::FromStr, time::Duration};

use super::{rounds::Outcome, validity::Validity};
use crate::{BenchError, latency::Latencies, options::parse_duration, report};

/// Upper bounds on percentiles of the response time and on the share of errors, as in `p99<5ms,max<1s,errors<0.1%`. A
/// run meets the objective only if it meets all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// Bounds on percentiles of the response time, at least one.
    pub times: Vec<TimeBound>,
    /// Share from 0 to 1 that the errors must stay below; `None` allows no error.
    pub errors: Option<f64>,
}

/// Upper bound on a percentile of the response time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeBound {
    /// Percentile from 0 to 100.
    pub percentile: f64,
    /// Response time that the percentile must stay below.
    pub bound: Duration,
}

/// Shortest time that a run of a search waits for a reply before it is aborted.
pub const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// Kind of the errors of a benchmark run. It determines how a search continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// The server refused requests, as an overloaded server may. Without a bound on errors in the objective the run
    /// fails; otherwise the bound decides.
    Refusals,
    /// A reply was wrong, or a connection was lost although the load permits no losses. The search ends with an error.
    Serious,
}

impl Objective {
    /// Parses an objective that only bounds response times. For loads in which any error ends the benchmark run.
    pub fn of_times(text: &str) -> Result<Self, String> {
        let objective: Self = text.parse()?;
        match objective.errors {
            None => Ok(objective),
            Some(_) => Err("any error ends this benchmark: leave the bound on the errors out".to_owned()),
        }
    }

    /// Returns the first condition that is not met, in words; `None` if all are met. `errors` is a share from 0 to 1.
    pub fn missed(&self, times: &Latencies, errors: f64) -> Option<String> {
        if times.count() == 0 {
            return Some("no reply was counted".to_owned());
        }
        let missed = self.times.iter().map(|limit| (limit, times.percentile(limit.percentile)));
        let missed = missed.filter(|(limit, time)| *time >= limit.bound).map(|(limit, time)| {
            format!("{} {}, not below {}", limit.name(), report::duration(time), report::duration(limit.bound))
        });
        let share = self.errors.filter(|bound| errors >= *bound && errors > 0.0);
        let share = share.map(|bound| format!("errors {}, not below {}", percent(errors), percent(bound)));
        missed.chain(share).next()
    }

    /// Returns the time after which a run of the search is aborted if a reply is missing: 20 times the longest of the
    /// objective's time bounds, but at least `least`. An aborted run counts as failed, and the search continues at
    /// another rate.
    pub fn patience(&self, least: Duration) -> Duration {
        let longest = self.times.iter().map(|limit| limit.bound).max().unwrap_or_default();
        longest.saturating_mul(20).max(least)
    }

    /// Decides if a run of the search passed. `faults` is the kind of the run's errors, if it has any. If `subject`
    /// gave wrong replies, returns an error, which ends the search.
    pub fn judge<C>(&self, subject: &str, outcome: &Outcome<C>, faults: Faults) -> Result<Trial, BenchError> {
        let validity = match (&outcome.validity, faults, self.errors) {
            (Validity::Errors(why), Faults::Serious, _) => {
                return Err(BenchError::wrong(subject, "answering the search", why.as_str()));
            }
            (Validity::Errors(_), Faults::Refusals, Some(_)) => &outcome.without_errors,
            (validity, _, _) => validity,
        };
        Ok(match validity {
            Validity::Good => self.missed(&outcome.times, outcome.tally.error_share()).map_or(Trial::Pass, Trial::Fail),
            Validity::Overloaded(why) => Trial::Fail(format!("overloaded: {why}")),
            Validity::Errors(why) => Trial::Fail(format!("errors: {why}")),
            Validity::Saturated(why) => Trial::Void(why.clone()),
            Validity::Clocks(why) => Trial::Disturbed(why.clone()),
        })
    }
}

impl TimeBound {
    /// Returns the name of the percentile, such as `p99.9` or `max`.
    pub fn name(&self) -> String {
        if self.percentile == 100.0 { "max".to_owned() } else { format!("p{}", self.percentile) }
    }
}

/// Formats a share from 0 to 1 as a percentage, with up to three decimal places.
fn percent(share: f64) -> String {
    format!("{} %", (share * 100_000.0).round() / 1000.0)
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = self.times.iter().map(|limit| format!("{} < {}", limit.name(), report::duration(limit.bound)));
        let errors = self.errors.map(|share| format!("errors < {}", percent(share)));
        f.write_str(&times.chain(errors).collect::<Vec<_>>().join(", "))
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |part: &str| {
            format!(
                "{part:?} is no condition of an objective: write for example p99<5ms, p99.9<800us, max<1s or errors<0.1%, \
                 and commas between several"
            )
        };
        let mut objective = Self { times: Vec::new(), errors: None };
        for part in text.split(',') {
            let (left, right) = part.split_once('<').ok_or_else(|| wrong(part))?;
            let (left, right) = (left.trim(), right.trim());
            if left == "errors" {
                let share = right.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
                let share = share.filter(|share| *share > 0.0 && *share <= 100.0).ok_or_else(|| wrong(part))?;
                if objective.errors.replace(share / 100.0).is_some() {
                    return Err("an objective has at most one bound on the errors".to_owned());
                }
                continue;
            }
            let percentile = match left {
                "max" => Some(100.0),
                name => name.strip_prefix('p').and_then(|number| number.parse().ok()),
            };
            let percentile = percentile.filter(|percentile| (0.0..=100.0).contains(percentile));
            let percentile = percentile.ok_or_else(|| wrong(part))?;
            objective.times.push(TimeBound { percentile, bound: parse_duration(right)? });
        }
        if objective.times.is_empty() {
            return Err(format!("{text:?} bounds no response time: add one, for example p99<5ms"));
        }
        Ok(objective)
    }
}

/// Result of one run of the search, at one rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The benchmark run met the objective.
    Pass,
    /// The benchmark run missed the objective. The text names the condition and the measured value.
    Fail(String),
    /// The load generator limited the run, for the given reason. So the run does not show that the server meets the
    /// objective.
    Void(String),
    /// The machine disturbed the benchmark run, for the given reason. The run says nothing about the rate and must be
    /// repeated.
    Disturbed(String),
}

impl Trial {
    /// Returns the condition that a failed run missed; `None` if the benchmark run passed, or if its result does not
    /// count.
    pub fn why(&self) -> Option<&str> {
        if let Self::Fail(why) = self { Some(why) } else { None }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("pass"),
            Self::Fail(why) => write!(f, "fail: {why}"),
            Self::Void(why) | Self::Disturbed(why) => write!(f, "void: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tally, usage::RunResources};

    fn objective(text: &str) -> Objective {
        text.parse().unwrap()
    }

    /// Returns the figures of a run with 1,000 right replies of 1 ms and `wrong` wrong replies.
    fn outcome(wrong: u64, validity: Validity) -> Outcome<()> {
        let mut tally: Tally<()> = Tally::new(1);
        tally.times[0].record_nanos_times(1_000_000, 1000);
        (tally.right, tally.all_right, tally.replies) = (1000, 1000, 1000 + wrong);
        (tally.wrong, tally.counted_wrong) = (wrong, wrong);
        Outcome { validity, ..Outcome::new(tally, 1.0, RunResources::default()) }
    }

    #[test]
    fn objectives_and_durations_are_read() {
        let tail = TimeBound { percentile: 99.9, bound: Duration::from_micros(800) };
        assert_eq!(objective("p99.9<800us"), Objective { times: vec![tail], errors: None });
        let all = objective("p50<1ms, p99.9 < 800us,max<1s,errors<0.1%");
        assert_eq!((all.times.len(), all.times[1], all.times[2].percentile), (3, tail, 100.0));
        assert!((all.errors.unwrap() - 0.001).abs() < 1e-12);
        assert_eq!(all.to_string(), "p50 < 1.00 ms, p99.9 < 800 µs, max < 1.00 s, errors < 0.1 %");
        assert_eq!(all.patience(Duration::ZERO), Duration::from_secs(20));
        for wrong in [
            "p99",
            "p101<1s",
            "q<1s",
            "p99<1h",
            "p99<",
            "p99<-1s",
            "p99<1e999s",
            "",
            "p99<1s,",
            "errors<1%",
            "p99<1s,errors<1",
            "p99<1s,errors<0%",
            "p99<1s,errors<101%",
            "p99<1s,errors<1%,errors<2%",
        ] {
            assert!(wrong.parse::<Objective>().is_err(), "{wrong}");
        }
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
    }

    #[test]
    fn a_load_without_errors_takes_no_bound_on_them() {
        assert_eq!(Objective::of_times("p99<5ms"), Ok(objective("p99<5ms")));
        assert!(Objective::of_times("p99<5ms,errors<1%").unwrap_err().contains("leave"));
    }

    #[test]
    fn all_conditions_must_hold_and_the_missed_one_is_named() {
        let judge = |text: &str| {
            objective(text).judge("it", &outcome(0, Validity::Good), Faults::Refusals).unwrap().to_string()
        };
        assert_eq!(judge("p50<2ms,p99<5ms,max<1s,errors<1%"), "pass");
        assert!(
            judge("p50<2ms,p99<500us,max<1s").starts_with("fail: p99 1.00 ms, not below 500 µs"),
            "{}",
            judge("p99<500us")
        );
        assert!(judge("p50<2ms,max<900us").starts_with("fail: max 1.00 ms"));
        let late = outcome(0, Validity::Saturated("late".to_owned()));
        assert_eq!(objective("p99<1s").judge("it", &late, Faults::Serious).unwrap(), Trial::Void("late".to_owned()));
        let stolen = outcome(0, Validity::Clocks("stolen".to_owned()));
        let judged = objective("p99<1s").judge("it", &stolen, Faults::Serious).unwrap();
        assert_eq!(judged, Trial::Disturbed("stolen".to_owned()));
    }

    #[test]
    fn refusals_are_within_their_share_or_fail_the_run() {
        let judge = |text: &str, wrong, faults| {
            objective(text).judge("it", &outcome(wrong, Validity::Errors("refused".to_owned())), faults)
        };
        assert_eq!(judge("p99<1s", 1, Faults::Refusals).unwrap().to_string(), "fail: errors: refused");
        assert_eq!(judge("p99<1s,errors<0.2%", 1, Faults::Refusals).unwrap(), Trial::Pass);
        let missed = judge("p99<1s,errors<1%", 250, Faults::Refusals).unwrap();
        assert_eq!(missed.why(), Some("errors 20 %, not below 1 %"));
        assert!(judge("p99<1s,errors<1%", 1, Faults::Serious).is_err(), "wrong replies are never within an objective");
        let mut behind = outcome(1, Validity::Errors("refused".to_owned()));
        behind.without_errors = Validity::Overloaded("behind".to_owned());
        let judged = objective("p99<1s,errors<1%").judge("it", &behind, Faults::Refusals).unwrap();
        assert_eq!(judged.why(), Some("overloaded: behind"));
    }
}
