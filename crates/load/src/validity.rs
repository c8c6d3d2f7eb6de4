//! Validity of a run's figures: whether they measure the server or something else.

use std::time::Duration;

use crate::{
    latency::Latencies,
    report::{Check, Verdict, duration},
};

/// Largest share of a core that a worker may use in a valid run. A busier worker may be what limits the rate.
pub const MAX_BUSY: f64 = 0.97;

/// Longest time after the end of a scheduled run, unless 3 % of the run are longer, in which late replies and deliveries
/// are accepted. Later ones mean that the server did not keep up. A shorter backlog shows in the response times.
pub const BACKLOG: Duration = Duration::from_millis(250);

/// Validity of a run's figures. The text in a variant is the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validity {
    /// All requests were sent in time, and their right replies arrived.
    Good,
    /// The server did not keep up with the requests. This is a valid result, but a bad one.
    Overloaded(String),
    /// A reply was wrong or did not arrive.
    Errors(String),
    /// The load generator was the bottleneck: the figures do not measure the server.
    Saturated(String),
}

impl Validity {
    /// Returns a short name of the validity, for a table.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Overloaded(_) => "overloaded",
            Self::Errors(_) => "ERRORS",
            Self::Saturated(_) => "VOID: generator saturated",
        }
    }

    /// Returns the reason in words, and the verdict of a check that requires a valid run.
    pub fn verdict(self) -> (String, Verdict) {
        match self {
            Self::Good => ("yes".to_owned(), Verdict::Met),
            Self::Overloaded(why) | Self::Errors(why) => (why, Verdict::Missed),
            Self::Saturated(why) => (why, Verdict::Void),
        }
    }

    /// Creates the check that requires the run to be valid.
    pub fn check(self, what: impl Into<String>, required: &str) -> Check {
        let (measured, verdict) = self.verdict();
        Check { what: what.into(), required: required.to_owned(), measured, verdict, is_goal: false }
    }

    /// Returns the first value in `all` that is not [`Self::Good`]; `Good` if there is none.
    pub fn worst<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().find(|validity| **validity != Self::Good).cloned().unwrap_or(Self::Good)
    }
}

/// Returns why a scheduled run does not measure the server: the 99th percentile of the generator's lateness is above
/// `max_lag`, or the generator's busiest thread had no spare time. `busiest` is the share of its time that this thread
/// was running. Returns `None` for a valid run.
pub fn saturated(lag: &Latencies, max_lag: Duration, busiest: f64) -> Option<Validity> {
    const REMEDY: &str = "lower the rate, or give the generator more threads or cores";
    let lag = lag.percentile(99.0);
    if lag > max_lag {
        let late = duration(lag);
        let why = format!("the generator itself was late by {late} at its 99th percentile: {REMEDY}");
        return Some(Validity::Saturated(why));
    }
    let is_busy = busiest > MAX_BUSY;
    is_busy.then(|| Validity::Saturated(format!("a load thread was {:.0} % busy: {REMEDY}", 100.0 * busiest)))
}

/// Describes a run in one line for the progress output; `unit` is the unit of the rate, such as `/s`.
pub fn summary(rate: f64, unit: &str, times: &Latencies, validity: &Validity) -> String {
    let at = |percentile| duration(times.percentile(percentile));
    format!("{rate:.0}{unit}, p50 {}, p99 {}, {}", at(50.0), at(99.0), validity.name())
}
