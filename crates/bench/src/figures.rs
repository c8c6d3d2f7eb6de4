//! The figures of a run: measured values by which runs are compared, such as the rate or a percentile of the response
//! time.
//!
//! Owns: the figures of any load, and collecting their values over several runs. Does not own: the figures that only
//! one suite has, or the statistics of the values, which are in the crate `lab`.

use crate::{
    latency::micros,
    load::{LIMITED_REMEDY, Outcome, Pace, Timeline, Validity, Window},
    report::{Check, Verdict},
};
use thalweg_lab::samples::{Better, Role, Run, Samples};

/// A measured value of a run, such as its rate. It has a value for the whole run, and may also have one for each
/// window, a short section of the run.
#[derive(Clone, Debug)]
pub(crate) struct Figure<C> {
    /// Name of the measured value (figure) with its unit, such as `p99 µs`.
    pub name: String,
    /// Direction in which the measured value improves: up or down.
    pub better: Better,
    /// Use of the measured value in a comparison: it decides the result, is compared without deciding, or is only
    /// shown.
    pub role: Role,
    whole: fn(&Outcome<C>) -> f64,
    /// Function that computes the value in a window, a short section of the run. Its second argument is the length of
    /// the window in seconds. `None` if the value exists only for whole runs.
    window: Option<fn(&Window, f64) -> Option<f64>>,
}

/// Returns the figures by which runs of a load with this pace are compared. `unit` names what the load counts, such as
/// `request`. In a closed loop the rate decides a comparison. With a schedule the rate is given, so the 99th percentile
/// of the response time decides.
pub(crate) fn figures<C>(pace: Pace, unit: &str) -> Vec<Figure<C>> {
    let is_open = matches!(pace, Pace::Open { .. });
    let (of_rate, of_p99) = if is_open { (Role::Shown, Role::Deciding) } else { (Role::Deciding, Role::Compared) };
    let rate: fn(&Window, f64) -> Option<f64> = |window, seconds| Some(window.right as f64 / seconds);
    let lower = |name: String, role, whole: fn(&Outcome<C>) -> f64, window| {
        let better = Better::Lower;
        Figure { name, better, role, whole, window }
    };
    vec![
        Figure {
            name: format!("{}/s", plural(unit)),
            better: Better::Higher,
            role: of_rate,
            whole: |outcome| outcome.rate,
            window: Some(rate),
        },
        lower("p50 µs".to_owned(), Role::Compared, |run| run.time_us(50.0), Some(|window, _| percentile(window, 50.0))),
        lower("p90 µs".to_owned(), Role::Compared, |run| run.time_us(90.0), Some(|window, _| percentile(window, 90.0))),
        lower("p99 µs".to_owned(), of_p99, |run| run.time_us(99.0), Some(|window, _| percentile(window, 99.0))),
        lower(format!("server CPU µs/{unit}"), Role::Compared, |run| run.server_cpu(run.tally.all_right), None),
        lower(
            "server fsyncs/s".to_owned(),
            Role::Shown,
            |run| average(run, |window| window.fsyncs_per_second),
            Some(|window, _| window.fsyncs_per_second),
        ),
        lower(
            "server RSS MiB".to_owned(),
            Role::Shown,
            |run| average(run, resident_mib),
            Some(|window, _| resident_mib(window)),
        ),
    ]
}

/// Adjusts a check of the ratio of two rates to the reliability of the divisor. If the divisor's rate is not valid, the
/// check becomes void. If the load generator limited the divisor's rate (`is_lower_bound`), the true ratio is smaller
/// than the measured one. Then a check that is met becomes void, and a check that is missed remains. A void check
/// states the reason and, for a limited rate, the remedies.
pub(crate) fn check_of_ratio(check: Check, divisor: &Validity, is_lower_bound: bool) -> Check {
    let why = match divisor {
        Validity::Good if is_lower_bound && check.verdict == Verdict::Met => {
            format!("the load generator limited the rate that it is divided by: {LIMITED_REMEDY}")
        }
        Validity::Good => return check,
        invalid => format!("the rate that it is divided by is not valid: {}", invalid.clone().verdict().0),
    };
    Check { measured: format!("{}, but {why}", check.measured), verdict: Verdict::Void, ..check }
}

/// Returns the plural of a unit's name.
fn plural(unit: &str) -> String {
    unit.strip_suffix('y').map_or_else(|| format!("{unit}s"), |stem| format!("{stem}ies"))
}

fn resident_mib(window: &Window) -> Option<f64> {
    window.resident_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20))
}

/// Returns the average over a run of a value that its windows (short sections of the run) may have; NaN if no window
/// has it.
fn average<C>(run: &Outcome<C>, value: fn(&Window) -> Option<f64>) -> f64 {
    let windows = run.tally.timeline.as_ref().map_or(&[][..], Timeline::windows);
    let values: Vec<f64> = windows.iter().filter_map(value).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

fn percentile(window: &Window, percentile: f64) -> Option<f64> {
    window.times.as_ref().map(|times| micros(times.percentile(percentile)))
}

impl<C> Figure<C> {
    /// Returns this figure's value over the whole run; `None` if the run has no value for it.
    pub(crate) fn whole(&self, outcome: &Outcome<C>) -> Option<f64> {
        Some((self.whole)(outcome)).filter(|value| value.is_finite())
    }

    fn run(&self, outcome: &Outcome<C>) -> Run {
        let windows = self.window.zip(outcome.tally.timeline.as_ref()).map_or_else(Vec::new, |(value, timeline)| {
            timeline.windows().iter().map(|window| value(window, timeline.window_seconds())).collect()
        });
        Run { whole: self.whole(outcome), windows, is_void: !outcome.is_comparable() }
    }
}

/// Description of a load at one durability level, which is stored with the measured values of its runs.
#[derive(Clone, Debug)]
pub(crate) struct SampledLoad {
    /// Description of the load. Only samples of loads with equal descriptions can be compared.
    pub scenario: String,
    /// Durability level of the writes; `-` without writes.
    pub durability: String,
    /// Pace of the load's requests.
    pub pace: Pace,
    /// Name of what the load counts, such as `request` or `delivery`.
    pub unit: &'static str,
}

impl SampledLoad {
    /// Returns the values of each figure in the runs of the load.
    pub(crate) fn samples<C>(&self, outcomes: &[Outcome<C>]) -> Vec<Samples> {
        let window_seconds = outcomes.iter().find_map(|outcome| outcome.tally.timeline.as_ref());
        let window_seconds = window_seconds.map_or(0.0, Timeline::window_seconds);
        let of_figure = |figure: &Figure<C>| Samples {
            scenario: self.scenario.clone(),
            durability: self.durability.clone(),
            figure: figure.name.clone(),
            better: figure.better,
            role: figure.role,
            window_seconds,
            runs: outcomes.iter().map(|outcome| figure.run(outcome)).collect(),
        };
        let all = figures(self.pace, self.unit).iter().map(of_figure).collect::<Vec<_>>();
        all.into_iter().filter(|samples| samples.runs.iter().any(|run| run.whole.is_some())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_to_a_rate_of_the_generator_meets_no_bound() {
        let overloaded = Validity::Overloaded("late".to_owned());
        for (ratio, divisor, is_lower_bound, wanted, said) in [
            (0.9, &Validity::Good, false, Verdict::Met, "0.900 ×"),
            (0.9, &Validity::Good, true, Verdict::Void, LIMITED_REMEDY),
            (0.7, &Validity::Good, true, Verdict::Missed, "0.700 ×"),
            (0.9, &overloaded, false, Verdict::Void, "is not valid: late"),
        ] {
            let check = check_of_ratio(Check::at_least("of echo", ratio, 0.8, " ×"), divisor, is_lower_bound);
            assert_eq!(check.verdict, wanted, "{}", check.measured);
            assert!(check.measured.ends_with(said), "{}", check.measured);
        }
    }

    #[test]
    fn rates_are_named_by_their_items() {
        let rate = |unit: &str| figures::<()>(Pace::Closed, unit).remove(0).name;
        assert_eq!(["request", "delivery"].map(rate), ["requests/s", "deliveries/s"]);
    }
}
