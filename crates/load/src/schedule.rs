//! Schedule of requests. It does not depend on replies, so a slow server cannot delay the requests that follow.
//!
//! Owns: the distributions of arrivals with their text forms, and the due times of one worker's requests. Does not own:
//! the choice between an open and a closed loop (`pace`), or the contents of a recording (`recorded`).
//!
//! Invariant: the due times of a schedule never decrease.

use std::{fmt, str::FromStr, time::Duration};

use rand::RngExt as _;
use rand_distr::Exp1;

use crate::{
    latency::nanos,
    options::parse_duration,
    random::{Generator, generator},
    recorded::Recorded,
};

/// Distribution of scheduled requests over time. Its text forms are `constant`, `poisson`, `ramp:FROM:TIME` (for
/// example `ramp:100:10s`), `step:FROM:TIME` and `replay:FILE`.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Arrivals {
    /// Requests are evenly spaced in time.
    #[default]
    Constant,
    /// Requests arrive as if from independent users: the gaps between them are exponentially distributed.
    Poisson,
    /// The rate changes evenly from the given rate to the rate of the load.
    Ramp(Change),
    /// The rate jumps from the given rate to the rate of the load.
    Step(Change),
    /// Requests arrive at the times of a recording. The recording is repeated endlessly, and stretched or compressed to
    /// the rate of the load. It stays in memory until the process ends.
    Replay(&'static Recorded),
}

/// Change of the rate of a schedule. Requests are evenly spaced before and after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Rate until the end of the warm-up, in requests per second over all workers. Above 0.
    pub from: f64,
    /// Time after the warm-up at which the rate of the load is reached. It is the end of a ramp, or the moment of a
    /// step.
    pub time: Duration,
}

impl Arrivals {
    /// Returns the change of the rate during the benchmark run; `None` if the rate does not change.
    pub fn change(self) -> Option<Change> {
        match self {
            Self::Constant | Self::Poisson | Self::Replay(_) => None,
            Self::Ramp(change) | Self::Step(change) => Some(change),
        }
    }

    /// Returns these arrivals for a load whose rate is divided by `by`. The rate before a change is divided, too.
    #[must_use]
    pub fn divided(self, by: f64) -> Self {
        let divided = |change: Change| Change { from: change.from / by, ..change };
        match self {
            Self::Constant | Self::Poisson | Self::Replay(_) => self,
            Self::Ramp(change) => Self::Ramp(divided(change)),
            Self::Step(change) => Self::Step(divided(change)),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, Change { from, time }) = match self {
            Self::Constant => return f.write_str("constant"),
            Self::Poisson => return f.write_str("poisson"),
            Self::Ramp(change) => ("ramp", change),
            Self::Step(change) => ("step", change),
            Self::Replay(recorded) => return write!(f, "replay:{}", recorded.file()),
        };
        write!(f, "{name}:{from}:{}s", time.as_secs_f64())
    }
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "{text:?} are no arrivals: write constant, poisson, or for example ramp:100:10s, step:100:10s or replay:FILE"
            )
        };
        let kind = match text.split_once(':') {
            None if text == "constant" => return Ok(Self::Constant),
            None if text == "poisson" => return Ok(Self::Poisson),
            Some(("replay", file)) => return Ok(Self::Replay(Box::leak(Box::new(Recorded::read(file)?)))),
            Some(("ramp", change)) => (Self::Ramp as fn(Change) -> Self, change),
            Some(("step", change)) => (Self::Step as fn(Change) -> Self, change),
            _ => return Err(wrong()),
        };
        let (arrivals, change) = kind;
        let (from, time) = change.split_once(':').ok_or_else(wrong)?;
        let from = from.parse::<f64>().ok().filter(|from| *from > 0.0 && *from <= MAX_FROM).ok_or_else(wrong)?;
        let time = parse_duration(time)?;
        if time.is_zero() || time > LONGEST_CHANGE {
            return Err(format!("{text:?}: the time must be above 0 and at most a day"));
        }
        Ok(arrivals(Change { from, time }))
    }
}

/// Highest rate that a user may give for the time before a change of the rate, in requests per second.
const MAX_FROM: f64 = 1e9;
/// Longest time that a user may give between the end of the warm-up and the end of a change of the rate.
const LONGEST_CHANGE: Duration = Duration::from_secs(86_400);

/// One worker's share of the scheduled requests: an endless sequence of due times, in nanoseconds since the start of
/// the run.
#[derive(Clone, Debug)]
pub struct Schedule {
    gaps: Gaps,
    next: f64,
}

#[derive(Clone, Debug)]
enum Gaps {
    /// Equal gaps between requests. The field is the length of a gap in nanoseconds.
    Constant(f64),
    /// Exponentially distributed gaps between requests. The first field is the mean length of a gap in nanoseconds.
    Poisson(f64, Generator),
    /// A rate that changes during the run. `number` is the index of this worker's next request in the common schedule
    /// of all `workers` workers.
    Changing { rate: Changing, number: f64, workers: f64 },
    /// Arrivals of a recording, at `rate` arrivals per second on average. `number` is the index of this worker's next
    /// request in the common schedule of all `workers` workers.
    Replay { recorded: &'static Recorded, number: u64, workers: u64, rate: f64 },
}

impl Schedule {
    /// Creates the schedule of worker number `worker` of `workers`. All workers together send `rate` requests per
    /// second; after a change this is the final rate. `warmup` is the end of the warm-up in nanoseconds since the
    /// start; a change of the rate begins then.
    pub fn new(arrivals: Arrivals, rate: f64, warmup: u64, worker: usize, workers: usize, seed: u64) -> Self {
        let gap = 1e9 * workers as f64 / rate;
        let changing = |change, shape| {
            let (rate, number) = (Changing::new(change, shape, rate, warmup), worker as f64);
            (Gaps::Changing { rate, number, workers: workers as f64 }, rate.due(number))
        };
        let (gaps, next) = match arrivals {
            Arrivals::Constant => (Gaps::Constant(gap), gap * worker as f64 / workers as f64),
            Arrivals::Poisson => {
                let mut rng = generator(seed.wrapping_add(worker as u64));
                let first = gap * rng.sample::<f64, _>(Exp1);
                (Gaps::Poisson(gap, rng), first)
            }
            Arrivals::Ramp(change) => changing(change, Shape::Even),
            Arrivals::Step(change) => changing(change, Shape::Jump),
            Arrivals::Replay(recorded) => {
                let (number, workers) = (worker as u64, workers as u64);
                (Gaps::Replay { recorded, number, workers, rate }, recorded.due(number, rate))
            }
        };
        Self { gaps, next }
    }

    /// Returns the due time of the next request, in nanoseconds since the start of the benchmark run.
    #[inline]
    pub fn peek(&self) -> u64 {
        self.next as u64
    }

    /// Advances to the next request. Returns the due time of the current one.
    #[inline]
    pub fn take(&mut self) -> u64 {
        let due = self.peek();
        match &mut self.gaps {
            Gaps::Constant(gap) => self.next += *gap,
            Gaps::Poisson(gap, rng) => self.next += *gap * rng.sample::<f64, _>(Exp1),
            Gaps::Changing { rate, number, workers } => {
                *number += *workers;
                self.next = rate.due(*number);
            }
            Gaps::Replay { recorded, number, workers, rate } => {
                *number += *workers;
                self.next = recorded.due(*number, *rate);
            }
        }
        due
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Even,
    Jump,
}

/// Rate that is `from` until the time `begin`, changes during the time `length`, and then is `to`. Rates are in
/// requests per nanosecond, times in nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug)]
struct Changing {
    shape: Shape,
    from: f64,
    to: f64,
    begin: f64,
    length: f64,
}

impl Changing {
    fn new(change: Change, shape: Shape, rate: f64, warmup: u64) -> Self {
        let (from, to) = (change.from / 1e9, rate / 1e9);
        Self { shape, from, to, begin: warmup as f64, length: nanos(change.time) as f64 }
    }

    /// Returns the time at which request number `number` is due: the integral of the rate up to this time is `number`.
    fn due(&self, number: f64) -> f64 {
        let Self { shape, from, to, begin, length } = *self;
        let left = number - from * begin;
        if left < 0.0 {
            return number / from;
        }
        let during = match shape {
            Shape::Even => (from + to) / 2.0 * length,
            Shape::Jump => from * length,
        };
        if left >= during {
            return begin + length + (left - during) / to;
        }
        match shape {
            // This is the positive root of from·t + (to - from)/(2·length)·t² = left, in a form that is exact for equal
            // rates.
            Shape::Even => {
                let root = (from * from + 2.0 * (to - from) / length * left).max(0.0).sqrt();
                begin + 2.0 * left / (from + root)
            }
            Shape::Jump => begin + left / from,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(arrivals: Arrivals, workers: usize, until: u64) -> Vec<u64> {
        let mut due: Vec<u64> = (0..workers)
            .flat_map(|worker| {
                let mut schedule = Schedule::new(arrivals, 10_000.0, 1_000_000_000, worker, workers, 1);
                std::iter::from_fn(move || Some(schedule.take())).take_while(move |due| *due < until)
            })
            .collect();
        due.sort_unstable();
        due
    }

    #[test]
    fn constant_arrivals_are_evenly_spaced_over_all_workers() {
        for workers in [1, 3] {
            let due = all(Arrivals::Constant, workers, 1_000_000_000);
            assert!((9_999..=10_001).contains(&due.len()), "{}", due.len());
            assert!(due.windows(2).all(|pair| (99_998..=100_002).contains(&(pair[1] - pair[0]))));
        }
    }

    #[test]
    fn poisson_arrivals_keep_the_rate_and_vary_as_they_should() {
        let due = all(Arrivals::Poisson, 2, 10_000_000_000);
        assert!((due.len() as f64 - 1e5).abs() < 6.0 * 1e5_f64.sqrt(), "{}", due.len());
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let variation = variance.sqrt() / mean;
        assert!((0.95..1.05).contains(&variation), "{variation}");
    }

    #[test]
    fn a_ramp_and_a_step_have_the_rate_of_each_moment() {
        // The rate is 2,000/s during the warm-up of 1 s. It changes to 10,000/s evenly within 2 s, or at once after 2
        // s.
        let change = Change { from: 2000.0, time: Duration::from_secs(2) };
        for workers in [1, 3] {
            for (arrivals, expected) in [
                (Arrivals::Ramp(change), [1000, 1000, 1500, 2500, 3500, 4500, 5000, 5000]),
                (Arrivals::Step(change), [1000, 1000, 1000, 1000, 1000, 1000, 5000, 5000]),
            ] {
                let due = all(arrivals, workers, 4_000_000_000);
                for (half, expected) in expected.into_iter().enumerate() {
                    let range = half as u64 * 500_000_000..(half as u64 + 1) * 500_000_000;
                    let count = due.iter().filter(|due| range.contains(due)).count();
                    assert!(count.abs_diff(expected) <= 2, "{arrivals}, half second {half}: {count} of {expected}");
                }
                assert!(due.windows(2).all(|pair| (99_998..=500_002).contains(&(pair[1] - pair[0]))), "{arrivals}");
            }
        }
        let falling = Arrivals::Ramp(Change { from: 20_000.0, time: Duration::from_secs(1) });
        let due = all(falling, 2, 2_000_000_000);
        assert!(due.len().abs_diff(20_000 + 15_000) <= 2, "{}", due.len());
    }

    #[test]
    fn a_recording_is_shared_by_the_workers_and_read_back_by_its_name() {
        let scratch = thalweg_lab::Scratch::below(None).unwrap();
        let file = scratch.path().join("arrivals");
        std::fs::write(&file, "0\n0.1\n0.5\n").unwrap();
        let text = format!("replay:{}", file.display());
        let arrivals: Arrivals = text.parse().unwrap();
        assert_eq!((arrivals.to_string(), arrivals.change()), (text.clone(), None));
        assert_eq!(text.parse(), Ok(arrivals));
        let (one, three) = (all(arrivals, 1, 1_000_000_000), all(arrivals, 3, 1_000_000_000));
        assert_eq!(one, three);
        assert!(one.len().abs_diff(10_000) <= 3, "{}", one.len());
        assert!((one[2] as f64 / one[1] as f64 - 5.0).abs() < 0.01, "the gaps keep their proportion: {:?}", &one[..4]);
        assert!("replay:/does/not/exist".parse::<Arrivals>().unwrap_err().contains("/does/not/exist"));
    }

    #[test]
    fn arrivals_have_a_text_form() {
        let change = Change { from: 100.0, time: Duration::from_millis(1500) };
        let all = [Arrivals::Constant, Arrivals::Poisson, Arrivals::Ramp(change), Arrivals::Step(change)];
        for arrivals in all {
            assert_eq!(arrivals.to_string().parse(), Ok(arrivals));
        }
        assert_eq!("ramp:100:1500ms".parse(), Ok(all[2]));
        assert_eq!(all[3].divided(4.0), Arrivals::Step(Change { from: 25.0, ..change }));
        for wrong in
            ["", "ramps", "ramp", "ramp:100", "ramp:0:1s", "step:-1:1s", "step:1:0", "step:x:1s", "step:1e30:1s"]
        {
            assert!(wrong.parse::<Arrivals>().is_err(), "{wrong}");
        }
    }
}
