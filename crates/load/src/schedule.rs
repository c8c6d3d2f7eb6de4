//! Schedule of requests. It is computed before any reply arrives, so a slow server cannot delay the requests that
//! follow.

use rand::RngExt as _;
use rand_distr::Exp1;

use crate::random::{Generator, generator};

/// The shape of the arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Arrivals {
    /// Requests are evenly spaced in time.
    #[default]
    Constant,
    /// Requests arrive as from independent users: the gaps between them are exponentially distributed.
    Poisson,
}

/// One worker's share of the scheduled requests: an endless sequence of due times, in nanoseconds since the start.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    /// Mean time between two requests of this worker, in nanoseconds.
    gap: f64,
    next: f64,
    rng: Generator,
}

impl Schedule {
    /// Creates the share of worker number `worker` of `workers` in `rate` requests per second.
    pub fn new(arrivals: Arrivals, rate: f64, worker: usize, workers: usize, seed: u64) -> Self {
        let gap = 1e9 * workers as f64 / rate;
        let mut rng = generator(seed.wrapping_add(worker as u64));
        let next = match arrivals {
            Arrivals::Constant => gap * worker as f64 / workers as f64,
            Arrivals::Poisson => gap * rng.sample::<f64, _>(Exp1),
        };
        Self { arrivals, gap, next, rng }
    }

    /// Returns the due time of the next request, in nanoseconds since the start.
    #[inline]
    pub fn peek(&self) -> u64 {
        self.next as u64
    }

    /// Advances to the next request; returns the due time of the current one.
    #[inline]
    pub fn take(&mut self) -> u64 {
        let due = self.peek();
        self.next += match self.arrivals {
            Arrivals::Constant => self.gap,
            Arrivals::Poisson => self.gap * self.rng.sample::<f64, _>(Exp1),
        };
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(arrivals: Arrivals, workers: usize, until: u64) -> Vec<u64> {
        let mut due: Vec<u64> = (0..workers)
            .flat_map(|worker| {
                let mut schedule = Schedule::new(arrivals, 10_000.0, worker, workers, 1);
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
}
