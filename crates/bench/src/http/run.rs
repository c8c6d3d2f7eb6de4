//! One run of the load generator: spawns the workers, merges their counts, and judges.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    request::Requests,
    tally::Tally,
    worker::{self, Orders, Pace},
};
use crate::{
    load::{
        schedule::{Arrivals, Schedule},
        validity::{MAX_BUSY, Validity},
    },
    random::KeyChooser,
    report::duration,
    usage::{Cost, Usage, Whose},
};

/// How requests are paced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loop {
    /// By a schedule.
    Open {
        /// Arrivals per second, over all workers.
        rate: f64,
        /// Their shape.
        arrivals: Arrivals,
    },
    /// By replies, for the configured duration.
    Closed,
    /// By replies, each of so many keys once.
    Each {
        /// Keys `0..keys`.
        keys: u64,
    },
}

/// What one run does.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where.
    pub address: SocketAddr,
    /// What.
    pub requests: Arc<Requests>,
    /// Connections over all workers.
    pub connections: usize,
    /// Threads.
    pub workers: usize,
    /// Requests under way per connection; 1 is no pipelining.
    pub pipeline: usize,
    /// Pacing.
    pub pace: Loop,
    /// Share of gets in per cent.
    pub get_percent: u8,
    /// Which keys.
    pub keys: KeyChooser,
    /// Whether a get may find nothing (keys were not loaded before).
    pub missing: Missing,
    /// Sent but not counted.
    pub warmup: Duration,
    /// Counted.
    pub duration: Duration,
    /// Longest wait before the run is given up.
    pub give_up: Duration,
    /// 99th percentile of the generator's own lateness above which the run is void.
    pub max_lag: Duration,
    /// Feeds keys and operations.
    pub seed: u64,
    /// The server's process, for its CPU and memory.
    pub server: Option<u32>,
}

/// What a get of a key without a value means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The key was never stored, perhaps.
    Allowed,
    /// It was stored: data is lost.
    Lost,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Merged counts.
    pub tally: Tally,
    /// Right answers per second of the counted time.
    pub rate: f64,
    /// The counted time, until the last counted reply.
    pub seconds: f64,
    /// What the server used.
    pub server: Cost,
    /// Whether to believe it.
    pub validity: Validity,
}

/// Runs a load to its end.
#[must_use]
pub fn run(load: &Load) -> Outcome {
    let workers = load.workers.clamp(1, load.connections.max(1));
    let before = load.server.map(|id| Usage::read(Whose::Process(id)));
    let start = Instant::now();
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|number| scope.spawn(move || worker::work(orders(load, number, workers, start))))
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(counts) => tally.merge(counts),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    let server = match (load.server, before) {
        (Some(id), Some(before)) => Usage::read(Whose::Process(id)).since(&before),
        _ => Cost::default(),
    };
    outcome(load, tally, server)
}

fn orders(load: &Load, number: usize, workers: usize, start: Instant) -> Orders {
    let pace = match load.pace {
        Loop::Open { rate, arrivals } => Pace::Open(Schedule::new(arrivals, rate, number, workers, load.seed)),
        Loop::Closed => Pace::Closed,
        Loop::Each { keys } => Pace::Each { first: number as u64, step: workers as u64, end: keys },
    };
    Orders {
        address: load.address,
        connections: share(load.connections, number, workers),
        pipeline: load.pipeline.max(1),
        requests: Arc::clone(&load.requests),
        pace,
        get_percent: load.get_percent,
        keys: load.keys.clone(),
        seed: load.seed.wrapping_mul(31).wrapping_add(number as u64),
        warmup: if matches!(load.pace, Loop::Each { .. }) { Duration::ZERO } else { load.warmup },
        duration: load.duration,
        give_up: load.give_up,
        start,
    }
}

/// The part of `total` that worker `number` of `workers` takes.
fn share(total: usize, number: usize, workers: usize) -> usize {
    total / workers + usize::from(number < total % workers)
}

fn outcome(load: &Load, tally: Tally, server: Cost) -> Outcome {
    let from = if matches!(load.pace, Loop::Each { .. }) { 0.0 } else { load.warmup.as_secs_f64() };
    let replied = tally.last_reply as f64 / 1e9 - from;
    let seconds = match load.pace {
        Loop::Each { .. } => replied,
        _ => replied.max(load.duration.as_secs_f64()),
    };
    let rate = if seconds > 0.0 { (tally.right + tally.missing) as f64 / seconds } else { 0.0 };
    let validity = judge(load, &tally, rate);
    Outcome { tally, rate, seconds, server, validity }
}

fn judge(load: &Load, tally: &Tally, rate: f64) -> Validity {
    let why = |what: &str| {
        let first = tally.first_problem.as_deref().map_or_else(String::new, |first| format!("; first: {first}"));
        format!("{what}{first}")
    };
    let lost = if load.missing == Missing::Lost { tally.missing } else { 0 };
    let wrong = tally.bad_status + tally.wrong_bytes + tally.io_errors + lost;
    if wrong > 0 {
        return Validity::Errors(why(&format!(
            "{} bad statuses, {} wrong values, {} broken connections, {lost} stored keys not found",
            tally.bad_status, tally.wrong_bytes, tally.io_errors
        )));
    }
    if tally.replies() == 0 {
        return Validity::Errors(why("no reply was counted"));
    }
    if let Loop::Open { rate: wanted, .. } = load.pace {
        let lag = tally.lag.percentile(99.0);
        if lag > load.max_lag {
            return Validity::Saturated(format!(
                "the generator itself was late by {} at its 99th percentile: lower the rate, or add --workers or cores",
                duration(lag)
            ));
        }
        if tally.busiest > MAX_BUSY {
            return Validity::Saturated(format!(
                "a load thread was {:.0} % busy: add --workers or cores",
                100.0 * tally.busiest
            ));
        }
        if tally.unanswered > 0 || rate < 0.97 * wanted {
            return Validity::Overloaded(why(&format!(
                "{rate:.0} of {wanted:.0} requests/s answered, {} left unanswered",
                tally.unanswered
            )));
        }
    } else if tally.unanswered > 0 {
        return Validity::Overloaded(why(&format!("{} requests left unanswered", tally.unanswered)));
    }
    Validity::Good
}

#[cfg(test)]
#[path = "run_tests.rs"]
pub(super) mod tests;
