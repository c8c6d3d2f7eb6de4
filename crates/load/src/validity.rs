//! Validity of a run's figures: do they measure the server, or something else?

use std::time::Duration;

use crate::{
    latency::Latencies,
    report::{Check, Verdict, duration},
    usage::Clocks,
};

/// Largest share of a core, from 0 to 1, that a worker may use in a valid run. A busier worker may itself limit the
/// rate.
pub const MAX_BUSY: f64 = 0.97;

/// Time after the end of a run with a schedule in which late replies and deliveries are accepted. If 3 % of the run is
/// longer, that time applies. Later replies mean that the server did not keep up. A backlog that is shorter than this
/// time shows in the response times.
pub const BACKLOG: Duration = Duration::from_millis(250);

/// Largest difference between the times that the wall clock and the monotonic clock measured in a valid run, in seconds
/// per second of the run. For a run shorter than a second, the bound is that of a run of one second.
pub const MAX_DRIFT: f64 = 1e-3;

/// Largest share of the processors' time, from 0 to 1, that the host of a virtual machine may take during a valid run.
/// Smaller shares are common on shared hosts, and show in the response times. The kernel counts this time in steps of
/// 10 ms. Therefore a run shorter than a second may lose as much time as a run of one second.
pub const MAX_STOLEN: f64 = 0.2;

/// Remedies for a closed loop whose rate the load generator limits.
pub const LIMITED_REMEDY: &str = "repeat it with more threads or cores for the generator, on another machine than the \
     server's, or with fewer clients";

/// Validity of a benchmark run's figures. The text of a variant is the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validity {
    /// All requests were sent in time, and their replies arrived and were right.
    Good,
    /// The server did not keep up with the requests. This is a valid result, but a bad one.
    Overloaded(String),
    /// A reply was wrong or did not arrive.
    Errors(String),
    /// The load generator was the bottleneck, so the figures do not measure the server.
    Saturated(String),
    /// The clocks of the machine were unusable, so the times mean nothing.
    Clocks(String),
}

impl Validity {
    /// Returns a short name of the validity, for a table.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Overloaded(_) => "overloaded",
            Self::Errors(_) => "ERRORS",
            Self::Saturated(_) => "VOID: generator saturated",
            Self::Clocks(_) => "VOID: clocks unusable",
        }
    }

    /// Returns true if the figures say nothing about the server, because the load generator was the bottleneck or the
    /// machine's clocks were unusable.
    pub fn is_void(&self) -> bool {
        matches!(self, Self::Saturated(_) | Self::Clocks(_))
    }

    /// Returns the reason in words, and the verdict of a check that requires a valid run.
    pub fn verdict(self) -> (String, Verdict) {
        match self {
            Self::Good => ("yes".to_owned(), Verdict::Met),
            Self::Overloaded(why) | Self::Errors(why) => (why, Verdict::Missed),
            Self::Saturated(why) | Self::Clocks(why) => (why, Verdict::Void),
        }
    }

    /// Creates the check that requires the benchmark run to be valid.
    pub fn check(self, what: impl Into<String>, required: &str) -> Check {
        let (measured, verdict) = self.verdict();
        Check { what: what.into(), required: required.to_owned(), measured, verdict, is_goal: false }
    }

    /// Returns the worst of several validities. Errors are worst, because an overload must not hide them. Void figures
    /// come next, then an overload. Returns the first of several that are equally bad, and [`Self::Good`] if `all` is
    /// empty.
    pub fn worst<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let worst = all.into_iter().reduce(|worst, other| if other.rank() > worst.rank() { other } else { worst });
        worst.cloned().unwrap_or(Self::Good)
    }

    /// Returns a rank of the validity, for comparisons: a worse one has a higher number.
    fn rank(&self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Overloaded(_) => 1,
            Self::Saturated(_) | Self::Clocks(_) => 2,
            Self::Errors(_) => 3,
        }
    }
}

/// Returns the reason why the times of a run mean nothing; `None` if the clocks were usable. The reason is that the
/// wall clock was set or ran at another speed than the monotonic clock, or that the host of the virtual machine took
/// too much of the processors' time.
pub fn unusable_clocks(clocks: &Clocks) -> Option<Validity> {
    let (drift, seconds) = (clocks.drift_seconds.abs(), clocks.seconds);
    if drift > MAX_DRIFT * seconds.max(1.0) {
        let why = format!(
            "wall-clock time and monotonic time differ by {} after {seconds:.1} s, and at most 1 ms per second is usable: \
             the clock was set during the run, or is wrong",
            duration(Duration::try_from_secs_f64(drift).unwrap_or(Duration::MAX))
        );
        return Some(Validity::Clocks(why));
    }
    let stolen = clocks.stolen.filter(|share| share * seconds > MAX_STOLEN * seconds.max(1.0))?;
    Some(Validity::Clocks(format!(
        "the host took {:.0} % of the processors' time (stolen time), and at most {:.0} % is usable: repeat the run when the \
         host is less busy",
        100.0 * stolen,
        100.0 * MAX_STOLEN
    )))
}

/// Returns the reason why a run with a schedule does not measure the server; `None` if it does. The reason is that the
/// 99th percentile of the generator's lateness is above `max_lag`, or that the generator's busiest thread had no spare
/// time. `busiest` is the share of its time, from 0 to 1, that this thread was running.
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

/// Describes a benchmark run in one line for the progress output; `unit` is the unit of the rate, such as `/s`.
pub(crate) fn summary(rate: f64, unit: &str, times: &Latencies, validity: &Validity) -> String {
    let at = |percentile| duration(times.percentile(percentile));
    format!("{rate:.0}{unit}, p50 {}, p99 {}, {}", at(50.0), at(99.0), validity.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overloaded_run_hides_neither_a_void_one_nor_errors() {
        let why = || "why".to_owned();
        let (overloaded, errors) = (Validity::Overloaded(why()), Validity::Errors(why()));
        let (saturated, clocks) = (Validity::Saturated(why()), Validity::Clocks(why()));
        let good = Validity::Good;
        assert_eq!(Validity::worst([&good, &overloaded, &clocks]), clocks);
        assert_eq!(Validity::worst([&overloaded, &saturated, &errors, &good]), errors);
        assert_eq!(Validity::worst([&clocks, &saturated]), clocks, "the first of two that are equally bad");
        assert_eq!((Validity::worst([&good, &overloaded]), Validity::worst([])), (overloaded, Validity::Good));
    }

    #[test]
    fn a_run_with_unusable_clocks_is_void_and_says_which() {
        let judge = |seconds, drift_seconds, stolen| unusable_clocks(&Clocks { seconds, drift_seconds, stolen });
        let why = |validity: Option<Validity>| {
            let validity = validity.expect("the clocks are unusable");
            assert_eq!(validity.name(), "VOID: clocks unusable");
            let (why, verdict) = validity.verdict();
            assert_eq!(verdict, Verdict::Void);
            why
        };
        assert_eq!(judge(10.0, 0.0099, Some(0.19)), None);
        assert_eq!(judge(10.0, -0.0099, None), None);
        assert_eq!(judge(0.1, 0.0009, Some(0.9)), None, "a short run has the tolerances of a second");
        assert!(why(judge(10.0, 0.0101, None)).contains("differ by 10.1 ms after 10.0 s"));
        assert!(why(judge(10.0, -3600.0, Some(0.5))).contains("wall-clock time"));
        assert!(why(judge(10.0, 0.0, Some(0.35))).contains("took 35 %"));
    }
}
