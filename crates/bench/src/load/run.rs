//! One run of the worker loop: spawns the workers, merges their counts, and judges.

use std::time::Duration;

use super::{
    crew::{self, Crew},
    pace::Pace,
    protocol::{OnLoss, Protocol},
    tally::Tally,
    validity::{Validity, saturated},
    worker::Worker,
};
use crate::{BenchError, latency::Latencies, random::KeyChooser, usage::Cost};

/// Everything that a run does.
#[derive(Clone, Debug)]
pub struct Plan<P> {
    /// Makes requests and judges replies.
    pub protocol: P,
    /// Connections over all workers.
    pub connections: usize,
    /// Number of threads.
    pub workers: usize,
    /// Requests that may be under way on each connection; 1 is no pipelining.
    pub pipeline: usize,
    /// How requests are paced.
    pub pace: Pace,
    /// How requests spread over the keys.
    pub keys: KeyChooser,
    /// Time in which requests are sent but not counted.
    pub warmup: Duration,
    /// Time in which requests are counted.
    pub duration: Duration,
    /// Longest wait for a reply before the run is given up.
    pub give_up: Duration,
    /// 99th percentile of the generator's own lateness above which a scheduled run is void.
    pub max_lag: Duration,
    /// Seed of keys, operations and arrivals.
    pub seed: u64,
    /// The server's process, for its CPU time and memory.
    pub server: Option<u32>,
}

/// Figures of a run.
#[derive(Clone, Debug)]
pub struct Outcome<C> {
    /// Merged counts.
    pub tally: Tally<C>,
    /// Response times of all requests.
    pub times: Latencies,
    /// Right replies per second of the counted time.
    pub rate: f64,
    /// Resources the server used; `None` if its process is not known.
    pub server: Option<Cost>,
    /// CPU seconds of the workers.
    pub generator_cpu: f64,
    /// Share of its time that the busiest worker was running.
    pub busiest: f64,
    /// Validity of the figures.
    pub validity: Validity,
}

/// Runs a plan to its end.
pub fn run<P: Protocol>(plan: &Plan<P>) -> Result<Outcome<P::Counts>, BenchError> {
    let workers = plan.workers.clamp(1, plan.connections.max(1));
    let open = async |number| Worker::open(plan, number, workers);
    let crew = crew::run(workers, plan.server, open, async |worker, clock| worker.run(clock));
    let mut tally = Tally::new(plan.protocol.kinds());
    let Crew { brought, generator_cpu, busiest, server } = match crew {
        Err(error) if P::ON_LOSS == OnLoss::Reconnect => {
            tally.lost += 1;
            tally.problem(|| format!("could not connect: {error}"));
            Crew { brought: Vec::new(), generator_cpu: 0.0, busiest: 0.0, server: None }
        }
        crew => crew?,
    };
    brought.into_iter().for_each(|counts| tally.merge(counts, P::merge));
    let counted = plan.pace.counted(plan.warmup, plan.duration);
    let replied = tally.last_reply.saturating_sub(counted.start) as f64 / 1e9;
    let seconds = match plan.pace {
        Pace::Each { .. } => replied,
        Pace::Open { .. } | Pace::Closed => replied.max(plan.duration.as_secs_f64()),
    };
    let rate = if seconds > 0.0 { tally.right as f64 / seconds } else { 0.0 };
    let validity = judge(plan, &tally, rate, busiest);
    let times = tally.response();
    Ok(Outcome { tally, times, rate, server, generator_cpu, busiest, validity })
}

fn judge<P: Protocol>(plan: &Plan<P>, tally: &Tally<P::Counts>, rate: f64, busiest: f64) -> Validity {
    let first = tally.first_problem.as_deref().map_or_else(String::new, |first| format!("; first: {first}"));
    if let Some(errors) = plan.protocol.errors(tally) {
        return Validity::Errors(errors + &first);
    }
    let left = tally.unanswered;
    if let Pace::Open { rate: wanted, .. } = plan.pace {
        if let Some(validity) = saturated(&tally.lag, plan.max_lag, busiest) {
            return validity;
        }
        if left > 0 || rate < 0.97 * wanted {
            let answered = format!("{rate:.0} of {wanted:.0} requests/s answered, {left} left unanswered{first}");
            return Validity::Overloaded(answered);
        }
    } else if left > 0 {
        return Validity::Overloaded(format!("{left} requests left unanswered{first}"));
    }
    if tally.right == 0 {
        return Validity::Errors(format!("no reply was counted{first}"));
    }
    Validity::Good
}
