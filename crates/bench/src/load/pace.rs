//! How requests are paced: when each is due, and which arrivals are counted.
//!
//! Owns: open and closed loops, warm-up and counted time. Does not own the shape of arrivals ([`super::schedule`]).
//!
//! A request's response time counts from the moment it is due, whether or not a connection was free then. So a stall of
//! the server shows in every request that was due during it, not only in the one under way (*coordinated omission*).

use std::{ops::Range, time::Duration};

use super::schedule::{Arrivals, Schedule};
use crate::latency::nanos;

/// How requests are paced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// A schedule sets the pace, whatever the server does.
    Open {
        /// Arrivals per second, over all workers.
        rate: f64,
        /// Shape of the arrivals.
        arrivals: Arrivals,
    },
    /// Replies set the pace, for the configured duration.
    Closed,
    /// Replies set the pace, until each of the keys `0..keys` was used once.
    Each {
        /// Number of keys.
        keys: u64,
    },
}

impl Pace {
    /// Returns the open pace of a rate, or the closed one without a rate.
    pub fn of_rate(rate: Option<f64>, arrivals: Arrivals) -> Self {
        rate.map_or(Self::Closed, |rate| Self::Open { rate, arrivals })
    }

    /// Returns a name for reports; `unit` is what the rate counts, such as `/s` or ` msg/s`.
    pub fn name(self, unit: &str) -> String {
        match self {
            Self::Open { rate, arrivals: Arrivals::Constant } => format!("{rate:.0}{unit} constant"),
            Self::Open { rate, arrivals: Arrivals::Poisson } => format!("{rate:.0}{unit} Poisson"),
            Self::Closed => "closed loop".to_owned(),
            Self::Each { keys } => format!("closed loop, {keys} keys once"),
        }
    }

    /// Returns the times, in nanoseconds since the start, at which arrivals are counted.
    pub fn counted(self, warmup: Duration, duration: Duration) -> Range<u64> {
        match self {
            Self::Each { .. } => 0..u64::MAX,
            Self::Open { .. } | Self::Closed => nanos(warmup)..nanos(warmup + duration),
        }
    }
}

/// One worker's part of the arrivals.
#[derive(Clone, Debug)]
pub struct Pacer {
    source: Source,
    /// Counted time, in nanoseconds since the start.
    counted: Range<u64>,
}

#[derive(Clone, Debug)]
enum Source {
    Open(Schedule),
    Closed,
    Each { next: u64, step: u64, end: u64 },
}

impl Pacer {
    /// Creates the pacer of worker `worker` of `workers`; `counted` is what [`Pace::counted`] returns.
    pub fn new(pace: Pace, counted: Range<u64>, worker: usize, workers: usize, seed: u64) -> Self {
        let source = match pace {
            Pace::Open { rate, arrivals } => Source::Open(Schedule::new(arrivals, rate, worker, workers, seed)),
            Pace::Closed => Source::Closed,
            Pace::Each { keys } => Source::Each { next: worker as u64, step: workers as u64, end: keys },
        };
        Self { source, counted }
    }

    /// Returns the time of the next arrival if it is scheduled: it stays the same until it is taken.
    #[inline]
    pub fn scheduled(&self) -> Option<u64> {
        match &self.source {
            Source::Open(schedule) => Some(schedule.peek()).filter(|due| *due < self.counted.end),
            Source::Closed | Source::Each { .. } => None,
        }
    }

    /// Returns true if a schedule sets the pace.
    #[inline]
    pub fn is_open(&self) -> bool {
        matches!(self.source, Source::Open(_))
    }

    /// Returns when the next request is due, which is `now` in a closed loop; `None` when there are no more.
    #[inline]
    pub fn next_due(&self, now: u64) -> Option<u64> {
        match &self.source {
            Source::Open(_) => self.scheduled(),
            Source::Closed => Some(now).filter(|now| *now < self.counted.end),
            Source::Each { next, end, .. } => Some(now).filter(|_| next < end),
        }
    }

    /// Takes the next arrival; returns its key where the pace sets it.
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

    /// Returns true if a request that was due then is counted.
    #[inline]
    pub fn counts(&self, due: u64) -> bool {
        self.counted.contains(&due)
    }
}
