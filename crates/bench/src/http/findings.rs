//! Findings of the HTTP suite in sentences and plots.

use std::time::Duration;

use super::scenario::Scenario;
use crate::{
    load::{
        Knee, Limit, Objective, Pace, Rounds, Validity,
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
    let rate = number(rounds.rate().median);
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

/// Describes the result of a search in a sentence.
pub(super) fn knee_sentence(knee: &Knee, objective: &Objective, scenario: &Scenario, level: &str) -> String {
    let what = format!("{}, {} connections, {}", scenario.name, scenario.load.connections, in_words(level));
    match (knee.rate, knee.fails_at) {
        (rate, _) if knee.limited_by == Limit::Machine => {
            let rate = rate.map_or_else(String::new, |rate| format!(" {} requests/s meet {objective}.", number(rate)));
            format!("The search ended early ({what}), because the machine disturbed the runs.{rate}")
        }
        (None, _) if knee.limited_by == Limit::Generator => {
            format!("The load generator could not send the lowest rate that the search tried ({what}).")
        }
        (None, _) => format!("No rate meets {objective} ({what}){}.", knee.why()),
        (Some(rate), Some(above)) => format!(
            "The highest rate that meets {objective} ({what}) is between {} and {} requests/s: the lower one passed every \
             repeat, the higher one failed twice{}.",
            number(rate),
            number(above),
            knee.why()
        ),
        (Some(rate), None) if knee.limited_by == Limit::MaxRate => {
            format!(
                "{} requests/s, the highest rate that the search may try, meets {objective} ({what}).",
                number(rate)
            )
        }
        (Some(rate), None) => {
            format!("{} requests/s meet {objective} ({what}), and no higher rate is confirmed.", number(rate))
        }
    }
}

/// Returns the percentiles of a run as a line of a plot: each point is one request in N and its time.
pub(super) fn spectrum_line(name: String, outcome: &Outcome) -> plots::Line {
    let spectrum = outcome.times.spectrum();
    let points = spectrum.iter().filter(|line| line.percentile < 100.0 && line.count < outcome.times.count());
    (name, points.map(|line| (line.one_in(), line.time_us)).collect())
}

/// Largest number of lines in a plot of percentiles.
const LINES: usize = 6;

/// Draws percentiles of runs, a few in each plot.
pub(super) fn spectrum_plots(lines: &[plots::Line]) -> Vec<Plot> {
    let axes = [Axis::percentiles(), Axis::log("µs from due to answered")];
    let caption = "Response times of the last round, counted from the moment at which a request was due. A point at 99 % and 500 \
                   µs: one request in a hundred took longer than 500 µs.";
    let plot = |(number, lines): (usize, &[plots::Line])| {
        plots::lines(&format!("spectrum-{number}"), "response times by percentile", caption, &axes, lines)
    };
    lines.chunks(LINES).enumerate().map(plot).collect()
}

/// Returns the median and the range of a figure over the rounds, as a row of a plot.
pub(super) fn bar(scenario: &Scenario, level: &str, rounds: &Rounds<Counts>, figure: fn(&Outcome) -> f64) -> Bar {
    let values = rounds.over(figure);
    let (low, high) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    let label = format!("{} ({})", scenario.name, in_words(level));
    Bar { label, store: String::new(), is_pale: false, value: rounds.median(figure), interval: (low, high) }
}

/// Draws a figure of all scenarios.
pub(super) fn rows_plot(name: &str, figure: &str, better: &str, rows: &[Bar]) -> Plot {
    let caption = format!("Dot: median of the rounds; line: from the lowest to the highest round; {better}.");
    plots::rows(name, &format!("{figure} of each scenario"), &caption, &Axis::log(figure), rows)
}

/// Returns the percentiles in the plot of a search: the median, the 99th, and those that the objective bounds.
pub(super) fn percentiles(objective: &Objective) -> impl Iterator<Item = f64> {
    let bounded = objective.times.iter().map(|limit| limit.percentile);
    [50.0, 99.0].into_iter().chain(bounded.filter(|percentile| ![50.0, 99.0].contains(percentile)))
}

/// Draws the response times over the rates of a search. Each rate has a time for each of [`percentiles`].
pub(super) fn search_plot(mut course: Vec<(f64, Vec<f64>)>, objective: &Objective) -> Plot {
    course.sort_by(|(left, _), (right, _)| left.total_cmp(right));
    let line = |name: String, of: usize| -> plots::Line {
        (name, course.iter().map(|(rate, times)| (*rate, times[of])).collect())
    };
    let mut lines: Vec<_> =
        percentiles(objective).enumerate().map(|(at, percentile)| line(format!("p{percentile}"), at)).collect();
    if let (Some((first, _)), Some((last, _))) = (course.first(), course.last()) {
        for limit in &objective.times {
            let bound = limit.bound.as_secs_f64() * 1e6;
            lines.push((format!("objective, {}", limit.name()), vec![(*first, bound), (*last, bound)]));
        }
    }
    let caption = "Each point is a run at one rate. The knee is where a percentile crosses its line of the objective, or \
                   where the errors or the rate miss it.";
    let axes = [Axis::log("requests/s offered"), Axis::log("µs from due to answered")];
    plots::lines("search", "response times by rate", caption, &axes, &lines)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{
        http::HttpOptions,
        load::{Tally, Trial, find_knee},
        usage::RunResources,
    };

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: HttpOptions,
    }

    fn scenario(flags: &[&str]) -> Scenario {
        Scenario::all(&Cli::parse_from(["bench"].iter().chain(flags)).options).remove(0)
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
        let void = sentence(&scenario(&[]), "disk", &rounds(Validity::Saturated("late".to_owned())));
        assert!(void.contains("not a valid run, late"), "{void}");
    }

    #[test]
    fn a_knee_is_an_interval() {
        let bounds = crate::load::Bounds { start: 100.0, max: 1e6, precision: 0.03, repeats: 2 };
        let trial =
            |rate: f64| Ok::<_, ()>(if rate < 5000.0 { Trial::Pass } else { Trial::Fail("p99 6 ms".to_owned()) });
        let knee = find_knee(&bounds, trial).unwrap();
        let objective: Objective = "p99<5ms".parse().unwrap();
        let said = knee_sentence(&knee, &objective, &scenario(&[]), "disk");
        assert!(said.contains("p99 < 5.00 ms") && said.contains("is between 4,") && said.contains("and 5,"), "{said}");
        assert!(said.ends_with("failed twice (p99 6 ms)."), "{said}");
        let void = find_knee(&bounds, |_| Ok::<_, ()>(Trial::Void("late".to_owned()))).unwrap();
        let said = knee_sentence(&void, &objective, &scenario(&[]), "disk");
        assert!(said.starts_with("The load generator could not send"), "{said}");
        let plot = search_plot(vec![(100.0, vec![1.0, 2.0]), (50.0, vec![1.0, 3.0])], &objective);
        assert!(plot.svg.contains("objective") && plot.svg.matches("<circle").count() == 6, "{}", plot.svg);
    }

    #[test]
    fn percentiles_are_drawn_up_to_the_last_that_differs() {
        let rounds = rounds(Validity::Good);
        let (_, points) = spectrum_line(String::new(), &rounds.outcomes[0]);
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{points:?}");
        assert!(points.last().is_some_and(|(one_in, _)| *one_in < 1001.0), "{points:?}");
    }
}
