//! Chooses the writers' rate. It is the given one, or half of the rate at the knee (the highest rate that meets the
//! objective).

use std::time::Duration;

use super::{
    options::SnapshotOptions,
    writers::{Writers, Written},
};
use crate::{
    BenchError, Progress,
    load::{Bounds, Objective, Trial, find_knee},
    options::require,
    report::{Table, number, table},
};

/// Smallest share of the scheduled rate that the writers must reach. Below it they are overloaded, and their response
/// times mean nothing.
pub(super) const LEAST_OF_RATE: f64 = 0.95;
/// Relative precision of the search for the knee.
const PRECISION: f64 = 0.05;
/// Number of runs that the knee must pass. A rate that failed once is run again: the disks of virtual machines stop for
/// 20 to 30 ms now and then, under any load, and one such stop determines the 99th percentile of a run.
pub(super) const REPEATS: u32 = 2;
/// Shortest time after which a put without a reply aborts a run of the search. If 20 times the objective's longest
/// bound is longer, that time applies.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);

/// Rate at which the writers put, and the search that determined it.
pub(super) struct Load {
    /// Rate of the writers in puts per second. It is the same while a snapshot is taken and while none is.
    pub(super) rate: f64,
    /// Highest rate that met the objective, in puts per second. `None` if the user gave the rate.
    pub(super) knee: Option<f64>,
    pub(super) trials: Vec<(f64, Written, Trial)>,
}

impl Load {
    pub(super) fn text(&self, options: &SnapshotOptions) -> String {
        let rate = number(self.rate);
        match self.knee {
            None => format!("{rate} puts/s, as given"),
            Some(knee) => format!("{rate} puts/s, half of the knee ({} with {})", number(knee), options.objective),
        }
    }

    pub(super) fn table(&self) -> Table {
        table! {
            "the knee: climb, bisect, confirm both ends with two runs"; (rate, written, trial) in &self.trials;
            let quantiles = written.times.quantiles();
            "offered/s" => *rate, "answered/s" => written.rate(), "p50 µs" => quantiles.p50_us,
            "p95 µs" => quantiles.p95_us, "p99 µs" => quantiles.p99_us, "p99.9 µs" => quantiles.p999_us,
            "max µs" => quantiles.max_us,
            "outcome" => trial.to_string(),
        }
    }
}

/// Searches for the knee, the highest rate that meets the objective. The search starts at a quarter of the rate that
/// the writers reach in a closed loop.
pub(super) fn search<'a>(
    options: &SnapshotOptions,
    writers: &mut impl FnMut() -> Writers<'a>,
    progress: &mut dyn Progress,
) -> Result<Load, BenchError> {
    let most = writers().closed(options.duration)?.rate();
    require(most > 0.0, "--duration", "no put was answered in that time: make it longer")?;
    progress.step(&format!("closed loop: {} puts/s", number(most)));
    let bounds = Bounds { start: most / 4.0, max: most * 4.0, precision: PRECISION, repeats: REPEATS };
    let mut trials = Vec::new();
    let knee = find_knee(&bounds, |rate| {
        let written = writers().open(rate, options.duration, Some(options.objective.patience(LEAST_PATIENCE)))?;
        let trial = trial_of(&written, rate, &options.objective);
        let p99 = written.times.quantiles().p99_us;
        progress.step(&format!("{} puts/s: p99 {} µs, {trial}", number(rate), number(p99)));
        trials.push((rate, written, trial.clone()));
        Ok::<_, BenchError>(trial)
    })?;
    require(knee.rate.is_some(), "--objective", format!("no rate meets {}{}", options.objective, knee.why()))?;
    Ok(Load { rate: knee.rate.unwrap_or(f64::NAN) / 2.0, knee: knee.rate, trials })
}

fn trial_of(written: &Written, rate: f64, objective: &Objective) -> Trial {
    if written.gave_up {
        return Trial::Fail("a put took too long".to_owned());
    }
    if written.rate() < LEAST_OF_RATE * rate {
        return Trial::Fail(format!("only {} puts/s", number(written.rate())));
    }
    objective.missed(&written.times, 0.0).map_or(Trial::Pass, Trial::Fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_passes_if_the_writers_keep_up_and_meet_the_objective() {
        let objective = &"p99<5ms".parse().unwrap();
        let fails = |written: &Written, rate, why: &str| {
            let trial = trial_of(written, rate, objective);
            assert!(trial.why().is_some_and(|missed| missed.starts_with(why)), "{trial}");
        };
        let mut written = Written { seconds: 1.0, ..Written::default() };
        (0..1000).for_each(|_| written.times.record_nanos(4_000_000));
        assert_eq!(trial_of(&written, 1000.0, objective), Trial::Pass);
        fails(&written, 1100.0, "only 1,000 puts/s");
        fails(&Written { gave_up: true, ..written.clone() }, 1000.0, "a put took");
        (0..20).for_each(|_| written.times.record_nanos(6_000_000));
        fails(&written, 1000.0, "p99 6.00 ms");
    }
}
