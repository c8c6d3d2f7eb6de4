//! Findings of the engine suite in sentences and plots.

use super::{
    results::{Results, Row},
    subject::Level,
    workloads::{RANDOM_READ_DISK, SEQUENTIAL_WRITE},
};
use crate::{
    latency::Latencies,
    report::{
        Plot, duration, number,
        plots::{self, Axis, Bar},
    },
    stats::median,
};

/// Describes the first store's durable and buffered writes and its reads, each in a sentence.
pub(super) fn sentences(results: &Results, first: &str) -> Vec<String> {
    let shown = |row: &&Row| row.contender == first && [SEQUENTIAL_WRITE, RANDOM_READ_DISK].contains(&row.test);
    // Reads are the same at each durability level, so their sentences appear once.
    let is_new = |row: &&Row| row.test == SEQUENTIAL_WRITE || row.level == Level::Interval;
    results.rows.iter().filter(shown).filter(is_new).map(sentence).collect()
}

fn sentence(row: &Row) -> String {
    let times = Latencies::sum(row.rounds.iter().map(|round| &round.times));
    let [half, most] = [50.0, 99.0].map(|percentile| duration(times.percentile(percentile)));
    format!(
        "{}, {} ({}), durability {}: {} operations/s by one thread; half of them took at most {half}, 99 % at most {most}.",
        row.contender,
        row.test.name,
        row.parameters,
        row.level,
        number(median(&row.rates())),
    )
}

/// Draws the rates of all tests, with one plot for each durability level.
pub(super) fn rates(results: &Results) -> Vec<Plot> {
    let levels = [Level::Interval, Level::Disk].into_iter();
    levels.filter_map(|level| rates_at(results, level)).collect()
}

fn rates_at(results: &Results, level: Level) -> Option<Plot> {
    let mut rows: Vec<&Row> = results.rows.iter().filter(|row| row.level == level).collect();
    let order: Vec<&str> = rows.iter().map(|row| row.test.name).collect();
    // The stores of a test are adjacent in the plot, independent of the order in which they were measured.
    rows.sort_by_key(|row| order.iter().position(|name| *name == row.test.name));
    let bars: Vec<Bar> = rows.into_iter().map(bar).collect();
    let title = format!("operations per second of each test, durability {level}, 1 thread");
    let caption =
        "Dot: median of the rounds; line: from the slowest to the fastest round; a dot further right is better.";
    let name = format!("rates-{}", level.to_string().split(' ').next().unwrap_or_default());
    (!bars.is_empty()).then(|| plots::rows(&name, &title, caption, &Axis::log("operations/s"), &bars))
}

fn bar(row: &Row) -> Bar {
    let rates = row.rates();
    let (low, high) = rates.iter().fold((f64::MAX, f64::MIN), |(low, high), rate| (low.min(*rate), high.max(*rate)));
    Bar {
        label: format!("{} ({}), {}", row.test.name, row.parameters, row.contender),
        store: row.contender.clone(),
        is_pale: false,
        value: median(&rates),
        interval: (low, high),
    }
}
