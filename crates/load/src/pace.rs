//! Pace of requests: the time at which each request is due, and the part of a run in which requests are counted.
//!
//! Owns: open loops (requests are sent by a schedule) and closed loops (the next request is sent after a reply), the
//! warm-up and the counted part of a run. Does not own: the distribution of scheduled requests over time (`schedule`).
//!
//! A request's response time counts from the moment at which the request is due, even if no connection was free then. A
//! stall of the server therefore shows in every request that was due during the stall, not only in the one in progress.
//! Measuring only from the moment of sending would hide this (*coordinated omission*).

use std::{ops::Range, time::Duration};

use super::schedule::{Arrivals, Change, Schedule};
use crate::latency::nanos;

/// How the requests of a benchmark run are paced: by a schedule (open loop) or by the replies (closed loop).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Open loop: requests are due by a schedule that does not depend on the server's replies.
    Open {
        /// Requests per second, over all workers.
        rate: f64,
        /// Distribution of the requests over time.
        arrivals: Arrivals,
    },
    /// Closed loop for the configured duration: the next request is due when a reply has arrived.
    Closed,
    /// Closed loop that uses each of the keys `0..keys` once, and then ends.
    Each {
        /// Number of keys; each is used for one request.
        keys: u64,
    },
}

impl Pace {
    /// Returns an open loop with the given rate in requests per second, or a closed loop if there is no rate.
    pub fn of_rate(rate: Option<f64>, arrivals: Arrivals) -> Self {
        rate.map_or(Self::Closed, |rate| Self::Open { rate, arrivals })
    }

    /// Returns the pace in words for reports. `unit` is the unit of the rate, such as `/s` or ` msg/s`.
    pub fn name(self, unit: &str) -> String {
        match self {
            Self::Open { rate, arrivals: Arrivals::Constant } => format!("{}{unit} constant", shown(rate)),
            Self::Open { rate, arrivals: Arrivals::Poisson } => format!("{}{unit} Poisson", shown(rate)),
            Self::Open { rate, arrivals: Arrivals::Ramp(Change { from, time }) } => {
                format!("{}{unit} to {}{unit} within {} s", shown(from), shown(rate), time.as_secs_f64())
            }
            Self::Open { rate, arrivals: Arrivals::Step(Change { from, time }) } => {
                format!("{}{unit}, after {} s {}{unit}", shown(from), time.as_secs_f64(), shown(rate))
            }
            Self::Open { rate, arrivals: Arrivals::Replay(recorded) } => {
                let (rate, recorded_rate) = (shown(rate), shown(recorded.rate()));
                format!("{rate}{unit} as in {}, recorded at {recorded_rate}{unit}", recorded.file())
            }
            Self::Closed => "closed loop".to_owned(),
            Self::Each { keys } => format!("closed loop, {keys} keys once"),
        }
    }

    /// Returns the part of the run in which due requests are counted, in nanoseconds since the start of the run. It
    /// begins at the end of the warm-up.
    pub fn counted(self, warmup: Duration, duration: Duration) -> Range<u64> {
        match self {
            Self::Each { .. } => 0..u64::MAX,
            Self::Open { .. } | Self::Closed => nanos(warmup)..nanos(warmup + duration),
        }
    }
}

/// Formats a rate in requests per second with up to three decimal places, for names of scenarios. With fewer places,
/// two different rates below 10 could get the same name.
fn shown(rate: f64) -> String {
    if rate < 0.001 { format!("{rate}") } else { format!("{}", (rate * 1000.0).round() / 1000.0) }
}

/// One worker's share of the requests of a benchmark run. It computes the time at which the worker's next request is
/// due.
#[derive(Clone, Debug)]
pub struct Pacer {
    source: Source,
    /// Part of the benchmark run in which due requests are counted, in nanoseconds since the start of the run.
    counted: Range<u64>,
}

#[derive(Clone, Debug)]
enum Source {
    Open(Schedule),
    Closed,
    Each { next: u64, step: u64, end: u64 },
}

impl Pacer {
    /// Creates the pacer of worker number `worker` of `workers`. `counted` is the range that [`Pace::counted`] returns.
    pub fn new(pace: Pace, counted: Range<u64>, worker: usize, workers: usize, seed: u64) -> Self {
        let source = match pace {
            Pace::Open { rate, arrivals } => {
                Source::Open(Schedule::new(arrivals, rate, counted.start, worker, workers, seed))
            }
            Pace::Closed => Source::Closed,
            Pace::Each { keys } => Source::Each { next: worker as u64, step: workers as u64, end: keys },
        };
        Self { source, counted }
    }

    /// Returns the scheduled time of the next request, in nanoseconds since the start of the run; `None` in a closed
    /// loop, or if the run has no more requests. The time stays the same until [`take`](Self::take) is called.
    #[inline]
    pub fn scheduled(&self) -> Option<u64> {
        match &self.source {
            Source::Open(schedule) => Some(schedule.peek()).filter(|due| *due < self.counted.end),
            Source::Closed | Source::Each { .. } => None,
        }
    }

    /// Returns true in an open loop, where a schedule decides when requests are due.
    #[inline]
    pub fn is_open(&self) -> bool {
        matches!(self.source, Source::Open(_))
    }

    /// Returns the time at which the next request is due, in nanoseconds since the start of the run. In a closed loop
    /// this is `now`. Returns `None` if the run has no more requests.
    #[inline]
    pub fn next_due(&self, now: u64) -> Option<u64> {
        match &self.source {
            Source::Open(_) => self.scheduled(),
            Source::Closed => Some(now).filter(|now| *now < self.counted.end),
            Source::Each { next, end, .. } => Some(now).filter(|_| next < end),
        }
    }

    /// Advances to the next request. Returns the key index of the current request if the pace determines it, otherwise
    /// `None`.
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        match &mut self.source {
            Source::Open(schedule) => {
                schedule.take();
                None
            }
            Source::Closed => None,
            Source::Each { next, step, .. } => {
                *next += *step;
                Some(*next - *step)
            }
        }
    }

    /// Returns true if a request that was due at `due` is counted: this time is after the warm-up and before the end of
    /// the run.
    #[inline]
    pub fn counts(&self, due: u64) -> bool {
        self.counted.contains(&due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_low_rates_apart() {
        let name = |rate| Pace::Open { rate, arrivals: Arrivals::Constant }.name("/s");
        assert_eq!(
            [0.4, 10.25, 1000.0 / 3.0, 20_000.0].map(name),
            ["0.4/s constant", "10.25/s constant", "333.333/s constant", "20000/s constant"]
        );
        assert_eq!(name(0.0001), "0.0001/s constant");
        let ramp = Arrivals::Ramp(Change { from: 0.5, time: Duration::from_secs(3) });
        assert_eq!(Pace::Open { rate: 2.5, arrivals: ramp }.name("/s"), "0.5/s to 2.5/s within 3 s");
    }
}
