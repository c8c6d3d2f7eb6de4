//! Plots of a comparison of two servers, A and B: the relative change of each figure from A to B, and the deciding
//! figure of both over time.

use thalweg_lab::samples::Samples;

use super::verdict::Row;
use crate::{
    report::{
        Plot,
        plots::{self, Axis, Bar, Line},
    },
    stats::median,
};

/// Draws the relative change of each figure from server A to server B, with its confidence interval. An interval that
/// contains zero shows no difference. `levels` names the durability levels.
pub(super) fn changes(levels: &str, rows: &[Row]) -> Plot {
    let has_scenarios = rows.iter().any(|row| row.scenario != rows[0].scenario);
    let percent = |change: f64| 100.0 * change;
    let bar = |row: &Row| {
        let decides = if row.decides { " (decides)" } else { "" };
        let scenario = if has_scenarios { format!(", {}", row.scenario) } else { String::new() };
        let (low, high) = row.effect.interval.unwrap_or((row.effect.change, row.effect.change));
        Bar {
            label: format!("{}{decides}{scenario}: {}", row.figure, row.effect.difference.name()),
            store: String::new(),
            is_pale: !row.decides,
            value: percent(row.effect.change),
            interval: (percent(low), percent(high)),
        }
    };
    let caption = "Bar: change from A to B; line: 95 % interval. If the line reaches over zero, no difference was seen. Without a \
         verdict there is no line.";
    let bars: Vec<Bar> = rows.iter().map(bar).collect();
    plots::rows("changes", &format!("change from A to B, {levels}"), caption, &Axis::linear("change in %"), &bars)
}

/// Draws a figure of servers A and B over time. Each point is the median over a server's runs of one window, a short
/// section of the run. `None` if a server has fewer than two windows.
pub(super) fn course(levels: &str, a: &Samples, b: &Samples) -> Option<Plot> {
    let line = |name: &str, samples: &Samples| -> Option<Line> {
        let windows = samples.runs.iter().map(|run| run.windows.len()).max().filter(|count| *count > 1)?;
        let at = |window: usize| {
            let values = samples.runs.iter().filter_map(|run| run.windows.get(window).copied().flatten());
            let values: Vec<f64> = values.collect();
            let value = if values.is_empty() { f64::NAN } else { median(&values) };
            ((window as f64 + 0.5) * samples.window_seconds, value)
        };
        Some((name.to_owned(), (0..windows).map(at).collect()))
    };
    let lines = [line("A", a)?, line("B", b)?];
    let title = format!("{} over time, {levels}: A and B", a.figure);
    let caption =
        format!("Each point is the median over the runs of a side, of a window of {:.2} s.", a.window_seconds);
    let axes = [Axis::linear("seconds since the end of the warm-up"), Axis::linear(&a.figure)];
    Some(plots::lines("a-and-b", &title, &caption, &axes, &lines))
}
