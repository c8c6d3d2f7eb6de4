//! Findings of the HTTP suite in sentences and plots.

use std::time::Duration;

use super::scenario::Scenario;
use crate::{
    load::{
        Pace, Rounds, Validity,
        http::{Counts, Outcome},
    },
    report::{
        Plot, duration, number,
        plots::{self, Axis, Bar},
    },
};

/// Describes a durability level in words.
pub(super) fn in_words(level: &str) -> String {
    if level == "-" { "without writes".to_owned() } else { format!("durability {level}") }
}

/// Describes the figures of a scenario in a sentence.
pub(super) fn sentence(scenario: &Scenario, level: &str, rounds: &Rounds<Counts>) -> String {
    let time = |percentile| duration(Duration::from_nanos((rounds.time_us(percentile) * 1e3) as u64));
    let (name, connections) = (&scenario.name, scenario.load.connections);
    let how = format!("{connections} connection{}, {}", if connections == 1 { "" } else { "s" }, in_words(level));
    let at_least = if rounds.is_lower_bound() { "at least " } else { "" };
    let rate = format!("{at_least}{}", number(rounds.rate().median));
    if rounds.validity() != Validity::Good {
        return format!("{name} ({how}): not a valid run, {}.", rounds.validity().verdict().0);
    }
    match scenario.load.pace() {
        Pace::Open { .. } => format!(
            "{name} ({how}): at {rate} requests/s half of the requests were answered within {} of their scheduled moment, \
             99 % within {}, and the slowest within {}.",
            time(50.0),
            time(99.0),
            time(100.0)
        ),
        Pace::Closed | Pace::Each { .. } => format!(
            "{name} ({how}): {rate} requests/s, each connection sending its next request after a reply; the times of such a \
             run say little."
        ),
    }
}

/// Returns the percentiles of a run as a line of a plot. A point shows N and the time that one request in N exceeds.
pub(super) fn spectrum_line(name: String, outcome: &Outcome) -> plots::Line {
    let spectrum = outcome.times.spectrum();
    let points = spectrum.iter().filter(|line| line.percentile < 100.0 && line.count < outcome.times.count());
    (name, points.map(|line| (line.one_in(), line.time_us)).collect())
}

/// Maximum number of lines in a plot of percentiles.
const LINES: usize = 6;

/// Draws the percentiles of runs, with at most [`LINES`] lines in each plot.
pub(super) fn spectrum_plots(lines: &[plots::Line]) -> Vec<Plot> {
    let axes = [Axis::percentiles(), Axis::log("µs from due to answered")];
    let caption = "Response times of the last round, counted from the moment at which a request was due. A point at 99 % and 500 \
                   µs: one request in a hundred took longer than 500 µs.";
    let plot = |(number, lines): (usize, &[plots::Line])| {
        plots::lines(&format!("spectrum-{number}"), "response times by percentile", caption, &axes, lines)
    };
    lines.chunks(LINES).enumerate().map(plot).collect()
}

/// Returns the median of a figure over the rounds and its range, as a row of a plot.
pub(super) fn bar(scenario: &Scenario, level: &str, rounds: &Rounds<Counts>, figure: fn(&Outcome) -> f64) -> Bar {
    let values = rounds.over(figure);
    let (low, high) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    let label = format!("{} ({})", scenario.name, in_words(level));
    Bar { label, store: String::new(), is_pale: false, value: rounds.median(figure), interval: (low, high) }
}

/// Draws a figure of all scenarios, one row for each.
pub(super) fn rows_plot(name: &str, figure: &str, better: &str, rows: &[Bar]) -> Plot {
    let caption = format!("Dot: median of the rounds; line: from the lowest to the highest round; {better}.");
    plots::rows(name, &format!("{figure} of each scenario"), &caption, &Axis::log(figure), rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{load::Tally, options::parsed, usage::RunResources};

    fn scenario(flags: &[&str]) -> Scenario {
        Scenario::all(&parsed(flags.iter().copied()).unwrap()).remove(0)
    }

    fn rounds(validity: Validity) -> Rounds<Counts> {
        let mut tally: Tally<Counts> = Tally::new(2);
        (1..=1000).for_each(|micros| tally.times[0].record(Duration::from_micros(micros)));
        tally.right = 1000;
        let mut rounds = Rounds::default();
        rounds.push(Outcome { validity, ..Outcome::new(tally, 2.0, RunResources::default()) });
        rounds
    }

    #[test]
    fn a_scenario_is_a_sentence() {
        let open = sentence(&scenario(&["--connections", "1"]), "disk", &rounds(Validity::Good));
        for part in ["put (1 connection, durability disk)", "500 requests/s", "within 500 µs", "99 % within 990 µs"] {
            assert!(open.contains(part), "{part} in {open}");
        }
        let closed = sentence(&scenario(&["--closed", "--mix", "get"]), "-", &rounds(Validity::Good));
        assert!(closed.contains("64 connections, without writes") && closed.contains("say little"), "{closed}");
        let mut bound = rounds(Validity::Good);
        bound.outcomes[0].is_lower_bound = true;
        let bound = sentence(&scenario(&["--closed"]), "disk", &bound);
        assert!(bound.contains("at least 500 requests/s"), "{bound}");
        let void = sentence(&scenario(&[]), "disk", &rounds(Validity::Saturated("late".to_owned())));
        assert!(void.contains("not a valid run, late"), "{void}");
    }

    #[test]
    fn percentiles_are_drawn_up_to_the_last_that_differs() {
        let rounds = rounds(Validity::Good);
        let (_, points) = spectrum_line(String::new(), &rounds.outcomes[0]);
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{points:?}");
        assert!(points.last().is_some_and(|(one_in, _)| *one_in < 1001.0), "{points:?}");
    }
}
