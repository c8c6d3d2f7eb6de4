//! `thalweg bench pubsub`: performs the runs that the command's options request, and makes the report.
//!
//! Owns: the order of servers, scenarios, searches and profiles. Does not own: one run (`stage`), or the tables and
//! checks (`report`).

use super::{
    options::PubsubOptions,
    recorder::Outcome,
    report::{self, Figures, Rounds},
    scenario::Scenario,
    stage,
};
use crate::{
    BenchError, Progress, Report, Scratch, Spectrum,
    account::Account,
    load::{Bounds, Faults, Knee, LEAST_PATIENCE, Objective, Trial, find_knee},
    native::{Server, bare, relay},
    options::require,
    profiling::LONGEST_PROFILE,
    report::plots::{self, Axis},
    saturation::{Evidence, SearchEvidence},
    search_report::{self, SearchCourse},
};

/// Share of the highest rate that meets the objective. Response times are measured at this share.
const OF_KNEE: f64 = 0.8;

/// Runs the subjects suite and returns its report.
pub fn run(options: &PubsubOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("pubsub", options.server.start.dir.as_deref())?;
    let mut suite = Suite {
        options,
        scratch: &scratch,
        server: None,
        report: &mut report,
        figures: Figures::new(),
        progress,
        lines: Vec::new(),
        last: None,
    };
    suite.all()?;
    let (lines, axes) = (suite.lines, [Axis::percentiles(), Axis::log("µs from due to received")]);
    let caption = "Times of every delivery of the last round, from the moment at which its message was due.";
    for (number, (label, points)) in lines.into_iter().enumerate() {
        let line = (String::new(), points);
        report.plots.push(plots::lines(&format!("pubsub-{number}"), &label, caption, &axes, &[line]));
    }
    if let Some(dir) = &options.plots {
        report.save_plots(dir)?;
        let notes =
            report.plots.iter().map(|plot| format!("plot of {}: {}/{}.svg", plot.title, dir.display(), plot.name));
        report.notes.extend(notes.collect::<Vec<_>>());
    }
    Ok(report.finish())
}

/// Decides if a run of the search for the highest rate passed. If the server dropped messages, the run fails: dropped
/// messages have no times, and a server that drops more may deliver the rest faster.
fn trial_of(outcome: &Outcome, objective: &Objective) -> Result<Trial, BenchError> {
    let trial = objective.judge("the server", outcome, Faults::Serious)?;
    Ok(match outcome.tally.own.dropped() {
        dropped @ 1.. if trial == Trial::Pass => Trial::Fail(format!("{dropped} messages were dropped")),
        _ => trial,
    })
}

struct Suite<'a> {
    options: &'a PubsubOptions,
    scratch: &'a Scratch,
    /// The running server, with the arguments with which it was started; `None` before the first server has been
    /// started.
    server: Option<(Vec<String>, Server)>,
    report: &'a mut Report,
    figures: Figures,
    progress: &'a mut dyn Progress,
    lines: Vec<plots::Line>,
    /// Options and figures of the last measured run.
    last: Option<(PubsubOptions, Outcome)>,
}

impl Suite<'_> {
    fn all(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let mut scenarios = Vec::new();
        for carrier in &options.server.transport {
            match options.preset {
                Some(preset) => scenarios.extend(Scenario::of_preset(preset, options, *carrier)),
                None => scenarios.push(Scenario::from_options(options, *carrier)),
            }
        }
        let is_tuned = scenarios.iter().any(|scenario| !scenario.tuning().is_empty());
        let can_run = options.server.target.is_none() || !is_tuned;
        require(can_run, "--preset", "needs servers started with different profiles: leave --target out")?;
        report::conditions(self.report, options, &scenarios);
        for scenario in &scenarios {
            self.scenario(scenario)?;
        }
        if let Some((_, server)) = &self.server {
            self.report.condition("server", server.name());
            self.report.condition("server build", server.build());
        }
        std::mem::take(&mut self.figures).finish(self.report);
        if let ([_], Some((options, outcome))) = (&scenarios[..], &self.last) {
            self.report.tables.push(report::spectrum(outcome, options));
        }
        Ok(())
    }

    /// Returns a server with the arguments that a scenario needs. Consecutive scenarios with the same arguments share a
    /// server.
    fn server(&mut self, scenario: &Scenario) -> Result<&Server, BenchError> {
        let tuning = scenario.tuning();
        if self.server.as_ref().is_none_or(|(running, _)| *running != tuning) {
            self.server = None; // stops it before another begins
            let server = Server::connect_or_start(&self.options.server, self.scratch, &tuning, self.progress)?;
            // The profiler is created before the measurements, so that its errors come early.
            self.options.profile.profiler(server.process, self.scratch.path())?;
            self.server = Some((tuning, server));
        }
        Ok(&self.server.as_ref().expect("just started").1)
    }

    /// Measures a scenario at its own pace, unless the options request a search. If the options or the scenario have an
    /// objective, searches for the highest rate that meets it, and then measures the scenario at a share of this rate.
    fn scenario(&mut self, scenario: &Scenario) -> Result<(), BenchError> {
        let options = self.options;
        let (objective, start, repeats) = match (&options.search, &scenario.knee) {
            (Some(objective), _) => (objective, options.rate.unwrap_or(10_000.0), options.load.rounds),
            (None, objective) => {
                let rate = self.measure(scenario, None)?;
                let Some(objective) = objective else { return Ok(()) };
                (objective, (rate / scenario.options.fan_out as f64 / 2.0).max(1000.0), 1)
            }
        };
        if let Some(rate) = self.knee(scenario, objective, start, repeats)?.rate {
            self.measure(&scenario.at(OF_KNEE * rate, options.arrivals), scenario.knee.as_ref())?;
            if options.search.is_some() {
                self.profile(&scenario.at(rate, options.arrivals), " at the knee", "")?;
                self.profile(&scenario.at(rate / 2.0, options.arrivals), " below the knee", "-below")?;
            }
        }
        Ok(())
    }

    /// Measures all rounds of a scenario. If there is an objective, checks them against it. Returns the rate in
    /// deliveries per second.
    fn measure(&mut self, scenario: &Scenario, objective: Option<&Objective>) -> Result<f64, BenchError> {
        let rounds = self.rounds(scenario)?;
        self.figures.add(self.report, scenario, &rounds);
        if let Some(objective) = objective {
            self.figures.objective(self.report, scenario, &rounds, objective);
        }
        let rate = rounds.own.rate().median;
        self.keep(scenario, rounds);
        if self.options.search.is_none() {
            self.profile(scenario, "", "")?;
        }
        Ok(rate)
    }

    fn rounds(&mut self, scenario: &Scenario) -> Result<Rounds, BenchError> {
        let mut rounds = Rounds::default();
        for round in 1..=self.options.load.rounds {
            let (bare, relayed) = self.bare(scenario)?;
            rounds.bare.push(bare);
            rounds.relayed.push(relayed);
            let mut account = std::mem::take(&mut rounds.account);
            let outcome = self.one(scenario, Some(&mut account))?;
            rounds.account = account;
            self.print_run(scenario, &format!("round {round}"), &outcome);
            rounds.own.push(outcome);
        }
        Ok(rounds)
    }

    /// Measures the machine's loopback speed without a server. Returns the bytes per second of a raw stream and of a
    /// raw relay. The relay has as many receivers as the scenario has subscribing connections. NaN if the options turn
    /// these measurements off.
    fn bare(&mut self, scenario: &Scenario) -> Result<(f64, f64), BenchError> {
        let time = self.options.bare;
        if time.is_zero() {
            return Ok((f64::NAN, f64::NAN));
        }
        let relayed = relay::stream(scenario.carrier, scenario.options.subscribe().connections, time)?;
        Ok((bare::stream(scenario.carrier, time)?, relayed))
    }

    /// Runs a scenario once. If `account` is given, adds the increase of the server's metrics during the run to it.
    fn one(&mut self, scenario: &Scenario, account: Option<&mut Account>) -> Result<Outcome, BenchError> {
        let server = self.server(scenario)?;
        let place = server.place(scenario.carrier)?;
        let run = || stage::run(&place, &scenario.options, server.process);
        match account {
            Some(account) => account.around(|| server.metrics(), run),
            None => run(),
        }
    }

    /// Runs a scenario once more for each kind of profile that the options request.
    fn profile(&mut self, scenario: &Scenario, label: &str, place: &str) -> Result<(), BenchError> {
        let (process, dir) = (self.server(scenario)?.process, self.scratch.path());
        let Some(profiler) = self.options.profile.profiler(process, dir)? else { return Ok(()) };
        let endpoint = self.server(scenario)?.place(scenario.carrier)?;
        let mut options = scenario.options.clone();
        options.load.duration = options.load.duration.min(LONGEST_PROFILE);
        let place = format!("-{}{place}", self.lines.len());
        let label = format!("{}{label}", scenario.label());
        let run = || stage::run(&endpoint, &options, process).map(|outcome| outcome.rate);
        profiler.run((&label, &place), self.report, self.progress, run)
    }

    fn knee(
        &mut self,
        scenario: &Scenario,
        objective: &Objective,
        start: f64,
        repeats: u32,
    ) -> Result<Knee, BenchError> {
        let bounds = Bounds { start, max: self.options.max_rate, precision: 0.05, repeats };
        let (mut table, mut resources) = (report::trials(scenario, objective), SearchEvidence::default());
        let mut course = SearchCourse::new(objective);
        let knee = find_knee(&bounds, |rate| {
            let mut scenario = scenario.at(rate, self.options.arrivals);
            scenario.options.load.give_up = objective.patience(LEAST_PATIENCE);
            let mut account = Account::default();
            let outcome = self.one(&scenario, Some(&mut account))?;
            let address = self.server.as_ref().map(|(_, server)| server.address);
            resources.push(rate, Evidence::of(&outcome, &account, address));
            let trial = trial_of(&outcome, objective)?;
            self.print_run(&scenario, "trial", &outcome);
            report::trial_row(&mut table, rate, &outcome, &trial);
            course.push(rate, &outcome);
            Ok::<_, BenchError>(trial)
        })?;
        self.report.tables.push(table);
        let load = format!("{}, {}", scenario.name, scenario.carrier.name());
        let title = format!("times by rate: {load}");
        let name = format!("search-{}", self.report.plots.len());
        self.report.plots.push(course.plot(&name, &title, "messages/s"));
        self.report.summary.push(search_report::sentence(&knee, objective, &load, "messages/s"));
        resources.conclude(&knee, self.report);
        let what = format!("{}, {}: highest rate with {objective}", scenario.name, scenario.carrier.name());
        let fan_out = scenario.options.fan_out as f64;
        let all = |rate: f64| format!("{rate:.0} msg/s, {:.0} deliveries/s", rate * fan_out);
        self.report.checks.push(knee.check(what, all));
        Ok(knee)
    }

    fn print_run(&mut self, scenario: &Scenario, what: &str, outcome: &Outcome) {
        self.progress.step(&format!("{} {what}: {}", scenario.label(), outcome.summary(" deliveries/s")));
    }

    /// Keeps the options and figures of a scenario's last round, and its percentiles for a plot.
    fn keep(&mut self, scenario: &Scenario, mut rounds: Rounds) {
        let Some(last) = rounds.own.outcomes.pop() else { return };
        self.report.spectra.extend(Spectrum::of(scenario.label(), &last.times));
        let spectrum = last.times.spectrum();
        let points = spectrum.iter().filter(|line| line.percentile < 100.0);
        let points = points.map(|line| (line.one_in(), line.time_us)).collect();
        self.lines.push((scenario.label(), points));
        self.last = Some((scenario.options.clone(), last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::Tally,
        native::{Share, SubscriberAccount},
        pubsub::recorder::Deliveries,
        usage::RunResources,
    };

    #[test]
    fn a_rate_at_which_messages_are_dropped_does_not_meet_the_objective() {
        let objective = Objective::of_times("p99<5ms").unwrap();
        let trial = |dropped| {
            let mut tally: Tally<Deliveries> = Tally::new(1);
            tally.times[0].record_nanos_times(1000, 1000);
            let mut account = SubscriberAccount::new(Share::All, 1);
            account.dropped = dropped;
            tally.own.accounts.push((0, account));
            trial_of(&Outcome::new(tally, 1.0, RunResources::default()), &objective).unwrap()
        };
        assert_eq!(trial(0), Trial::Pass);
        assert_eq!(trial(7).why(), Some("7 messages were dropped"));
    }
}
