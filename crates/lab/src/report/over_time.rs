//! Plots that show how a figure, such as the rate, changes during a run. Each point is the figure in a short window of
//! the run.

use std::collections::BTreeSet;

use super::{
    Plot,
    plots::{self, Axis, Line},
};
use crate::samples::{Role, Samples};

/// Maximum number of benchmark runs that one plot shows. If there are more, it shows the first ones.
const MAX_RUNS: usize = 8;
/// Maximum number of scenarios in a report with plots of several figures for each scenario. With more scenarios, each
/// gets only one plot: of the figure that decides comparisons of the scenario.
const FEW_SCENARIOS: usize = 4;

/// Returns plots of figures over the time of their runs. For each scenario these are its rate, its 99th percentile, and
/// the server's fsyncs and memory. If there are more than [`FEW_SCENARIOS`] scenarios, each has only the plot of the
/// figure that decides comparisons of the scenario.
pub(super) fn over_time(samples: &[Samples]) -> Vec<Plot> {
    let scenarios: BTreeSet<_> = samples.iter().map(|samples| (&samples.scenario, &samples.durability)).collect();
    let is_few = scenarios.len() <= FEW_SCENARIOS;
    let is_shown = |samples: &&Samples| {
        let is_main = ["p99 ", "server RSS "].iter().any(|name| samples.figure.starts_with(name));
        let is_main = is_main || samples.figure.ends_with("/s");
        samples.role == Role::Deciding || (is_few && is_main)
    };
    samples.iter().filter(is_shown).enumerate().filter_map(|(number, samples)| plot(number, samples)).collect()
}

fn plot(number: usize, samples: &Samples) -> Option<Plot> {
    let line = |(run, windows): (usize, &Vec<Option<f64>>)| -> Line {
        let middle = |window: usize| (window as f64 + 0.5) * samples.window_seconds;
        let points = windows.iter().enumerate().map(|(at, value)| (middle(at), value.unwrap_or(f64::NAN)));
        (format!("run {}", run + 1), points.collect())
    };
    let windows: Vec<_> = samples.runs.iter().map(|run| &run.windows).filter(|windows| windows.len() > 1).collect();
    if windows.is_empty() {
        return None;
    }
    let lines: Vec<Line> = windows.iter().take(MAX_RUNS).copied().enumerate().map(line).collect();
    let left_out = windows.len().saturating_sub(MAX_RUNS);
    let mut caption = format!(
        "Each point is a window of {:.2} s. A stall of the server is a window with few replies, and with long times for the \
         requests that were due before its end.",
        samples.window_seconds
    );
    if left_out > 0 {
        caption.push_str(&format!(" {left_out} further runs are in the data."));
    }
    let durability = if samples.durability == "-" {
        "without writes".to_owned()
    } else {
        format!("durability {}", samples.durability)
    };
    let title = format!("{} over time, {durability}: {}", samples.figure, samples.scenario);
    let axes = [Axis::linear("seconds since the end of the warm-up"), Axis::linear(&samples.figure)];
    Some(plots::lines(&format!("over-time-{number}"), &title, &caption, &axes, &lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Better, Run};

    fn samples(scenario: &str, figure: &str, role: Role, windows: usize) -> Samples {
        Samples {
            scenario: scenario.to_owned(),
            durability: "disk".to_owned(),
            figure: figure.to_owned(),
            better: Better::Lower,
            role,
            window_seconds: 0.25,
            runs: vec![Run { whole: Some(1.0), windows: vec![Some(2.0); windows], is_void: false }; 10],
        }
    }

    #[test]
    fn rates_and_tails_have_a_line_for_each_run() {
        let all = [
            samples("put", "requests/s", Role::Shown, 4),
            samples("put", "p50 µs", Role::Compared, 4),
            samples("put", "p99 µs", Role::Deciding, 4),
            samples("get", "p99 µs", Role::Deciding, 1),
            samples("put", "server fsyncs/s", Role::Shown, 4),
            samples("put", "server RSS MiB", Role::Shown, 4),
            samples("put", "server CPU µs/request", Role::Compared, 4),
        ];
        let plots = over_time(&all);
        assert_eq!(plots.len(), 4, "a single window is no course of time");
        assert!(plots[1].title.starts_with("p99 µs over time, durability disk: put"));
        assert!(
            plots[1].svg.contains("run 8") && !plots[1].svg.contains("run 9") && plots[1].caption.contains("2 further")
        );
        let many: Vec<_> = (0..6).map(|number| samples(&number.to_string(), "requests/s", Role::Shown, 4)).collect();
        assert!(over_time(&many).is_empty());
    }
}
