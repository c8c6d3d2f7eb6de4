//! One run of the worker loop: starts the worker threads, adds up their counts, and judges the validity of the figures.

use std::time::Duration;

use super::{
    live,
    pace::Pace,
    protocol::{OnLoss, Plan, Protocol},
    rounds::Outcome,
    run_threads,
    server_samples::{self, ServerSource},
    tally::{Merge as _, Tally},
    timeline::Timeline,
    validity::{BACKLOG, Validity, saturated, unusable_clocks},
    worker::Worker,
};
use crate::{BenchError, report::duration, usage::RunResources};

/// Runs the workers of a plan until the plan ends. Returns the figures of the benchmark run.
pub fn run<P: Protocol>(plan: &Plan<P>) -> Result<Outcome<P::Counts>, BenchError> {
    let workers = plan.workers.clamp(1, plan.connections.max(1));
    let mut tally = Tally::new(plan.protocol.kinds());
    let windows = Timeline::over(&plan.pace.counted(plan.warmup, plan.duration), plan.window);
    let source = plan.server.map(|process| ServerSource { process, fsyncs: plan.fsyncs.as_ref() });
    let (ended, readings) = server_samples::beside(source, windows.as_ref(), |started| {
        live::shown(plan.pace, plan.warmup, plan.duration, plan.fsyncs.as_ref(), |shared| {
            let open = async |number| Worker::open(plan, number, workers, shared);
            run_threads::run(workers, plan.server, open, async |worker, clock| {
                let _ = started.set(clock);
                worker.run(clock)
            })
        })
    });
    let spent = match ended {
        Ok((brought, spent)) => {
            brought.into_iter().for_each(|counts| tally.merge(counts));
            spent
        }
        Err(error) if P::ON_LOSS == OnLoss::Reconnect => {
            tally.lost += 1;
            tally.problem(|| format!("could not connect: {error}"));
            RunResources::default()
        }
        Err(error) => return Err(error),
    };
    if let Some(timeline) = &mut tally.timeline {
        timeline.set_server(&readings);
    }
    let counted = plan.pace.counted(plan.warmup, plan.duration);
    let replied = tally.last_reply.saturating_sub(counted.start) as f64 / 1e9;
    let seconds = match plan.pace {
        Pace::Each { .. } => replied,
        Pace::Open { .. } | Pace::Closed => replied.max(plan.duration.as_secs_f64()),
    };
    let mut outcome = Outcome::new(tally, seconds, spent).paced(plan.pace);
    let first = outcome.tally.first_problem.as_deref().map_or_else(String::new, |first| format!("; first: {first}"));
    outcome.without_errors = judge(plan, &outcome, &first);
    let errors = plan.protocol.errors(&outcome.tally).map(|errors| Validity::Errors(errors + &first));
    outcome.validity = errors.unwrap_or_else(|| outcome.without_errors.clone());
    Ok(outcome)
}

/// Decides if the results of a run are valid, apart from its wrong replies and lost connections. `first` describes the
/// first problem of the run.
fn judge<P: Protocol>(plan: &Plan<P>, outcome: &Outcome<P::Counts>, first: &str) -> Validity {
    let (tally, rate) = (&outcome.tally, outcome.rate);
    // A loop that uses each key once is setup, so its times are not used.
    let is_timed = !matches!(plan.pace, Pace::Each { .. });
    if let Some(validity) = unusable_clocks(&outcome.spent.clocks).filter(|_| is_timed) {
        return validity;
    }
    let left = tally.unanswered;
    if let Pace::Open { rate: wanted, .. } = plan.pace {
        if let Some(validity) = saturated(&tally.lag, plan.max_lag, outcome.spent.busiest) {
            return validity;
        }
        // The schedule determines the number of due requests, so a rate below the wanted one does not prove an
        // overload. A server that keeps up answers the last request soon after the end of the run.
        let end = plan.pace.counted(plan.warmup, plan.duration).end;
        let late = Duration::from_nanos(tally.last_reply.saturating_sub(end));
        if left > 0 || late > BACKLOG.max(plan.duration * 3 / 100) {
            return Validity::Overloaded(format!(
                "{rate:.0} of {wanted:.0} requests/s answered, the last one {} after the end, {left} left \
                 unanswered{first}",
                duration(late)
            ));
        }
    } else if left > 0 {
        return Validity::Overloaded(format!("{left} requests left unanswered{first}"));
    }
    if tally.right == 0 {
        return Validity::Errors(format!("no reply was counted{first}"));
    }
    Validity::Good
}
