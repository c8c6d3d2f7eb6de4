//! Presents the result of a search for the highest rate to people: a plot of the response times over the rates, and a
//! sentence about the knee, which is the highest rate that meets the objective.
//!
//! Does not own: the search and its judgement of runs (`thalweg_load`), the table of its runs, which each suite has, or
//! the saturated resource (`saturation`).

use crate::{
    load::{Knee, Limit, Objective, Outcome},
    report::{
        Plot, number,
        plots::{self, Axis},
    },
};

/// Rates and response times of all runs of a search, for a plot.
#[derive(Debug)]
pub(crate) struct SearchCourse<'a> {
    objective: &'a Objective,
    /// Rate of each run, and its response time in microseconds at each of the [`percentiles`].
    runs: Vec<(f64, Vec<f64>)>,
}

impl<'a> SearchCourse<'a> {
    /// Creates the record of a search for this objective, before its first run.
    pub(crate) fn new(objective: &'a Objective) -> Self {
        Self { objective, runs: Vec::new() }
    }

    /// Adds the response times of a run at this rate.
    pub(crate) fn push<C>(&mut self, rate: f64, outcome: &Outcome<C>) {
        let times = percentiles(self.objective).map(|percentile| outcome.time_us(percentile));
        self.runs.push((rate, times.collect()));
    }

    /// Draws the response times over the rates, with the bounds of the objective. `name` is the name of the plot's
    /// file, and `unit` is the unit of the rates, such as `requests/s`.
    pub(crate) fn plot(mut self, name: &str, title: &str, unit: &str) -> Plot {
        self.runs.sort_by(|(left, _), (right, _)| left.total_cmp(right));
        let line = |name: String, of: usize| -> plots::Line {
            (name, self.runs.iter().map(|(rate, times)| (*rate, times[of])).collect())
        };
        let all = percentiles(self.objective).enumerate();
        let mut lines: Vec<_> = all.map(|(at, percentile)| line(format!("p{percentile}"), at)).collect();
        if let (Some((first, _)), Some((last, _))) = (self.runs.first(), self.runs.last()) {
            for limit in &self.objective.times {
                let bound = limit.bound.as_secs_f64() * 1e6;
                lines.push((format!("objective, {}", limit.name()), vec![(*first, bound), (*last, bound)]));
            }
        }
        let caption = "Each point is a run at one rate. The knee is where a percentile crosses its line of the objective, \
                       or where the errors or the rate miss it.";
        let axes = [Axis::log(&format!("{unit} offered")), Axis::log("µs from due to answered or received")];
        plots::lines(name, title, caption, &axes, &lines)
    }
}

/// Returns the percentiles that the plot of a search shows: the median, the 99th, and those that the objective bounds.
fn percentiles(objective: &Objective) -> impl Iterator<Item = f64> {
    let bounded = objective.times.iter().map(|limit| limit.percentile);
    [50.0, 99.0].into_iter().chain(bounded.filter(|percentile| ![50.0, 99.0].contains(percentile)))
}

/// Describes the result of a search in a sentence. `what` names the load and its durability. `unit` is the unit of the
/// rates, such as `requests/s`.
pub(crate) fn sentence(knee: &Knee, objective: &Objective, what: &str, unit: &str) -> String {
    match (knee.rate, knee.fails_at) {
        (rate, _) if knee.limited_by == Limit::Machine => {
            let rate = rate.map_or_else(String::new, |rate| format!(" {} {unit} meet {objective}.", number(rate)));
            format!("The search ended early ({what}), because the machine disturbed the runs.{rate}")
        }
        (None, _) if knee.limited_by == Limit::Generator => {
            format!("The load generator could not send the lowest rate that the search tried ({what}).")
        }
        (None, _) => format!("No rate meets {objective} ({what}){}.", knee.why()),
        (Some(rate), Some(above)) => format!(
            "The highest rate that meets {objective} ({what}) is between {} and {} {unit}: the lower one passed every repeat, \
             the higher one failed twice{}.",
            number(rate),
            number(above),
            knee.why()
        ),
        (Some(rate), None) if knee.limited_by == Limit::MaxRate => {
            format!("{} {unit}, the highest rate that the search may try, meets {objective} ({what}).", number(rate))
        }
        (Some(rate), None) => {
            format!("{} {unit} meet {objective} ({what}), and no higher rate is confirmed.", number(rate))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::{Bounds, Tally, Trial, find_knee},
        usage::RunResources,
    };

    #[test]
    fn a_knee_is_an_interval() {
        let bounds = Bounds { start: 100.0, max: 1e6, precision: 0.03, repeats: 2 };
        let objective: Objective = "p99<5ms".parse().unwrap();
        let said = |trial: fn(f64) -> Trial| {
            let knee = find_knee(&bounds, |rate| Ok::<_, ()>(trial(rate))).unwrap();
            sentence(&knee, &objective, "put, durability disk", "requests/s")
        };
        let knee = said(|rate| if rate < 5000.0 { Trial::Pass } else { Trial::Fail("p99 6 ms".to_owned()) });
        assert!(knee.contains("p99 < 5.00 ms") && knee.contains("is between 4,") && knee.contains("and 5,"), "{knee}");
        assert!(knee.ends_with("failed twice (p99 6 ms)."), "{knee}");
        let void = said(|_| Trial::Void("late".to_owned()));
        assert!(void.starts_with("The load generator could not send"), "{void}");
        let highest = said(|_| Trial::Pass);
        assert!(highest.contains("the highest rate that the search may try"), "{highest}");
    }

    #[test]
    fn the_course_has_a_line_for_each_percentile_and_each_bound() {
        let objective: Objective = "p99<5ms,p99.9<20ms".parse().unwrap();
        let mut course = SearchCourse::new(&objective);
        for rate in [100.0, 50.0] {
            let mut tally: Tally<()> = Tally::new(1);
            tally.times[0].record_nanos_times(1_000_000, 10);
            course.push(rate, &Outcome::new(tally, 1.0, RunResources::default()));
        }
        let svg = course.plot("search", "response times by rate", "requests/s").svg;
        // The plot has lines of three percentiles and two bounds, each with points at two rates.
        assert_eq!(svg.matches("<circle").count(), 10, "{svg}");
        assert!(svg.contains("objective, p99.9") && svg.contains("requests/s offered"), "{svg}");
    }
}
