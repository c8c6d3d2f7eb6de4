//! Figures of a run over HTTP that are compared between runs, and their samples.

use crate::{
    latency::micros,
    load::{Pace, Window, http::Outcome},
};
use thalweg_lab::samples::{Better, Role, Run, Samples};

/// A figure of a run: its value in the whole run, and in a window of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// Name of the figure with its unit.
    pub name: &'static str,
    /// Direction in which the figure improves.
    pub better: Better,
    /// Importance of the figure in a comparison.
    pub role: Role,
    whole: fn(&Outcome) -> f64,
    /// Value in a window whose length in seconds is given; `None` for a figure that windows do not have.
    window: Option<fn(&Window, f64) -> Option<f64>>,
}

/// Returns the figures of a load with this pace. In a closed loop the rate decides a comparison. With a schedule it is
/// given, and the 99th percentile of the response time decides.
pub(crate) fn figures(pace: Pace) -> Vec<Figure> {
    let is_open = matches!(pace, Pace::Open { .. });
    let (of_rate, of_p99) = if is_open { (Role::Shown, Role::Deciding) } else { (Role::Deciding, Role::Compared) };
    let rate: fn(&Window, f64) -> Option<f64> = |window, seconds| Some(window.right as f64 / seconds);
    let time = |name, role, whole, window| Figure { name, better: Better::Lower, role, whole, window };
    vec![
        Figure {
            name: "requests/s",
            better: Better::Higher,
            role: of_rate,
            whole: |outcome| outcome.rate,
            window: Some(rate),
        },
        time("p50 µs", Role::Compared, |run| run.time_us(50.0), Some(|window, _| percentile(window, 50.0))),
        time("p90 µs", Role::Compared, |run| run.time_us(90.0), Some(|window, _| percentile(window, 90.0))),
        time("p99 µs", of_p99, |run| run.time_us(99.0), Some(|window, _| percentile(window, 99.0))),
        time("server CPU µs/request", Role::Compared, |run| run.server_cpu(run.tally.all_right), None),
    ]
}

fn percentile(window: &Window, percentile: f64) -> Option<f64> {
    window.times.as_ref().map(|times| micros(times.percentile(percentile)))
}

impl Figure {
    /// Returns the figure's value in the whole run; `None` if the run has none.
    pub(crate) fn whole(&self, outcome: &Outcome) -> Option<f64> {
        Some((self.whole)(outcome)).filter(|value| value.is_finite())
    }

    fn run(&self, outcome: &Outcome) -> Run {
        let windows = self.window.zip(outcome.tally.timeline.as_ref()).map_or_else(Vec::new, |(value, timeline)| {
            timeline.windows().iter().map(|window| value(window, timeline.window_seconds())).collect()
        });
        Run { whole: self.whole(outcome), windows }
    }
}

/// Returns the samples of all figures over the runs of one scenario at one durability level.
pub(crate) fn samples<'a>(
    scenario: &str,
    durability: &str,
    pace: Pace,
    outcomes: impl IntoIterator<Item = &'a Outcome> + Clone,
) -> Vec<Samples> {
    let timelines = outcomes.clone().into_iter().filter_map(|outcome| outcome.tally.timeline.as_ref());
    let window_seconds = timelines.map(crate::load::Timeline::window_seconds).next().unwrap_or(0.0);
    let of_figure = |figure: &Figure| Samples {
        scenario: scenario.to_owned(),
        durability: durability.to_owned(),
        figure: figure.name.to_owned(),
        better: figure.better,
        role: figure.role,
        window_seconds,
        runs: outcomes.clone().into_iter().map(|outcome| figure.run(outcome)).collect(),
    };
    figures(pace).iter().map(of_figure).filter(|samples| samples.runs.iter().any(|run| run.whole.is_some())).collect()
}
