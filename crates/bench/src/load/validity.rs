//! Validity of a run's figures.

use std::time::Duration;

use crate::{
    latency::Latencies,
    report::{Check, Verdict, duration},
};

/// A worker that uses more than this share of a core may be what limits the rate.
pub const MAX_BUSY: f64 = 0.97;

/// Validity of a run's figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validity {
    /// All requests were sent in time, and their right replies arrived.
    Good,
    /// The server did not keep up: a result, and a bad one.
    Overloaded(String),
    /// A reply was wrong, or did not come.
    Errors(String),
    /// The generator was the bottleneck: the figures say nothing about the server.
    Saturated(String),
}

impl Validity {
    /// Returns a short name, for a table.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Overloaded(_) => "overloaded",
            Self::Errors(_) => "ERRORS",
            Self::Saturated(_) => "VOID: generator saturated",
        }
    }

    /// Returns the reason in words, and the verdict of a check.
    pub fn verdict(self) -> (String, Verdict) {
        match self {
            Self::Good => ("yes".to_owned(), Verdict::Met),
            Self::Overloaded(why) | Self::Errors(why) => (why, Verdict::Missed),
            Self::Saturated(why) => (why, Verdict::Void),
        }
    }

    /// Returns the check of a run that requires it to be good.
    pub fn check(self, what: impl Into<String>, required: &str) -> Check {
        let (measured, verdict) = self.verdict();
        Check { what: what.into(), required: required.to_owned(), measured, verdict }
    }

    /// Returns the first validity of several runs that is not good.
    pub fn worst<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().find(|validity| **validity != Self::Good).cloned().unwrap_or(Self::Good)
    }
}

/// Returns why a scheduled run says nothing about the server: the generator sent later than `max_lag` at the 99th
/// percentile of its lateness, or its busiest thread had no time to spare. `busiest` is the share of its time that this
/// thread was running.
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

/// Describes a run in a line, for the progress; `unit` is what the rate counts, such as `/s`.
pub fn summary(rate: f64, unit: &str, times: &Latencies, validity: &Validity) -> String {
    let at = |percentile| duration(times.percentile(percentile));
    format!("{rate:.0}{unit}, p50 {}, p99 {}, {}", at(50.0), at(99.0), validity.name())
}
