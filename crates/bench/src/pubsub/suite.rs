//! `thalweg bench pubsub`: options in, report out.

use std::time::Duration;

use super::{
    options::PubsubOptions,
    plan::Plan,
    report::{self, Figures},
    scenario::{Scenario, pace_name},
    stage::{self, Outcome},
};
use crate::{
    BenchError, Progress, Report, Scratch,
    backends::plots,
    load::{
        pace::Pace,
        search::{self, Bounds, Knee, Objective},
        validity::{Validity, summary},
    },
    native::{
        bare, relay,
        server::{Profile, Server},
    },
    options::require,
    stats::Summary,
};

/// Share of the knee at which latency is measured.
const OF_KNEE: f64 = 0.8;

/// Runs the suite.
pub fn run(options: &PubsubOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("pubsub", options.server.dir.as_deref())?;
    let mut suite = Suite { options, scratch: &scratch, server: None, progress, lines: Vec::new(), last: None };
    suite.all(&mut report)?;
    let axes = ("requests above the percentile, 1 in N", "µs end to end");
    for (number, line) in suite.lines.iter().enumerate() {
        report.plots.push(plots::lines(&format!("pubsub-{number}"), &line.0, axes, std::slice::from_ref(line))?);
    }
    if let Some(dir) = &options.plots {
        report.save_plots(dir)?;
        let told =
            report.plots.iter().map(|plot| format!("plot of {}: {}/{}.svg", plot.title, dir.display(), plot.name));
        report.notes.extend(told.collect::<Vec<_>>());
    }
    Ok(report.finish())
}

/// Profile and knob of a running server.
type Tuning = (Option<Profile>, Option<&'static str>);

struct Suite<'a> {
    options: &'a PubsubOptions,
    scratch: &'a Scratch,
    server: Option<(Tuning, Server)>,
    progress: &'a mut dyn Progress,
    lines: Vec<plots::Line>,
    /// Pace and figures of the last measured run.
    last: Option<(Pace, Outcome)>,
}

impl Suite<'_> {
    fn all(&mut self, report: &mut Report) -> Result<(), BenchError> {
        let options = self.options;
        let mut scenarios = Vec::new();
        for carrier in &options.server.transport {
            match options.preset {
                Some(preset) => scenarios.extend(Scenario::of_preset(preset, options, *carrier)),
                None => scenarios.push(Scenario::from_options(options, *carrier)),
            }
        }
        let is_tuned = scenarios.iter().any(|scenario| scenario.profile.is_some() || scenario.knob.is_some());
        let can_run = options.server.target.is_none() || !is_tuned;
        require(can_run, "--preset", "needs servers started with different profiles: leave --target out")?;
        report::conditions(report, options, &scenarios);
        let mut figures = Figures::new();
        for scenario in &scenarios {
            match options.search {
                Some(objective) => self.search(scenario, objective, report, &mut figures)?,
                None => self.scenario(scenario, report, &mut figures)?,
            }
        }
        if let Some((_, server)) = &self.server {
            report.condition("server", server.name());
        }
        figures.finish(report);
        if let ([_], Some((pace, outcome))) = (&scenarios[..], &self.last) {
            report.tables.push(report::spectrum(outcome, *pace));
        }
        Ok(())
    }

    /// The server as a scenario wants it: kept from one to the next while that does not change.
    fn server(&mut self, scenario: &Scenario) -> Result<&Server, BenchError> {
        let tuning = (scenario.profile, scenario.knob);
        if self.server.as_ref().is_none_or(|(running, _)| *running != tuning) {
            self.server = None; // stops it before another begins
            let (profile, knob) = tuning;
            let server = Server::reach(&self.options.server, self.scratch, profile, knob, self.progress)?;
            self.server = Some((tuning, server));
        }
        Ok(&self.server.as_ref().expect("just started").1)
    }

    fn scenario(&mut self, scenario: &Scenario, report: &mut Report, figures: &mut Figures) -> Result<(), BenchError> {
        let rounds = self.rounds(scenario, scenario.pace)?;
        let closed = Summary::of(&rounds.rates()).median;
        figures.add(report, scenario, scenario.pace, &rounds, scenario.knee.is_none());
        self.keep(scenario, scenario.pace, rounds);
        let Some(objective) = scenario.knee else { return Ok(()) };
        let start = (closed / scenario.fan_out as f64 / 2.0).max(1000.0);
        let knee = self.knee(scenario, objective, start, 1, report)?;
        if let Some(rate) = knee.rate {
            let pace = Pace::Open { rate: OF_KNEE * rate, arrivals: self.options.arrivals };
            let rounds = self.rounds(scenario, pace)?;
            figures.add(report, scenario, pace, &rounds, true);
            figures.objective(report, scenario, pace, &rounds, objective);
            self.keep(scenario, pace, rounds);
        }
        Ok(())
    }

    fn search(
        &mut self,
        scenario: &Scenario,
        objective: Objective,
        report: &mut Report,
        figures: &mut Figures,
    ) -> Result<(), BenchError> {
        let start = self.options.rate.unwrap_or(10_000.0);
        let knee = self.knee(scenario, objective, start, self.options.load.rounds, report)?;
        if let Some(rate) = knee.rate {
            let pace = Pace::Open { rate: OF_KNEE * rate, arrivals: self.options.arrivals };
            let rounds = self.rounds(scenario, pace)?;
            figures.add(report, scenario, pace, &rounds, true);
            self.keep(scenario, pace, rounds);
        }
        Ok(())
    }

    fn rounds(&mut self, scenario: &Scenario, pace: Pace) -> Result<Rounds, BenchError> {
        let mut rounds = Rounds { outcomes: Vec::new(), bare: Vec::new(), relayed: Vec::new() };
        for round in 1..=self.options.load.rounds {
            let (bare, relayed) = self.bare(scenario)?;
            rounds.bare.push(bare);
            rounds.relayed.push(relayed);
            let outcome = self.one(scenario, pace, self.options.load.give_up)?;
            self.say(scenario, pace, &format!("round {round}"), &outcome);
            rounds.outcomes.push(outcome);
        }
        Ok(rounds)
    }

    /// Returns the bytes per second of a bare stream, and of a bare relay to as many connections; NaN if the options
    /// turn these measurements off.
    fn bare(&mut self, scenario: &Scenario) -> Result<(f64, f64), BenchError> {
        let time = self.options.bare;
        if time.is_zero() {
            return Ok((f64::NAN, f64::NAN));
        }
        let relayed = relay::stream(scenario.carrier, scenario.subscribe.connections, time)?;
        Ok((bare::stream(scenario.carrier, time)?, relayed))
    }

    fn one(&mut self, scenario: &Scenario, pace: Pace, give_up: Duration) -> Result<Outcome, BenchError> {
        let options = self.options;
        let server = self.server(scenario)?;
        let mut plan = Plan::new(scenario, options, server.place(scenario.carrier)?, pace);
        plan.load.give_up = give_up;
        stage::run(&plan, server.process)
    }

    fn knee(
        &mut self,
        scenario: &Scenario,
        objective: Objective,
        start: f64,
        repeats: u32,
        report: &mut Report,
    ) -> Result<Knee, BenchError> {
        let bounds = Bounds { start, max: self.options.max_rate, precision: 0.05, repeats };
        let mut table = report::trials(scenario, objective);
        let knee = search::find_knee(&bounds, |rate| {
            let pace = Pace::Open { rate, arrivals: self.options.arrivals };
            let outcome = self.one(scenario, pace, objective.patience())?;
            let trial = objective.judge("the server", &outcome.validity, &outcome.counts.times)?;
            self.say(scenario, pace, "trial", &outcome);
            report::trial_row(&mut table, rate, &outcome, trial);
            Ok::<_, BenchError>(trial)
        })?;
        report.tables.push(table);
        let what = format!("{}, {}: highest rate with {objective}", scenario.name, scenario.carrier.name());
        let all = |rate: f64| format!("{rate:.0} msg/s, {:.0} deliveries/s", rate * scenario.fan_out as f64);
        report.checks.push(knee.check(what, all));
        Ok(knee)
    }

    fn say(&mut self, scenario: &Scenario, pace: Pace, what: &str, outcome: &Outcome) {
        let figures = summary(outcome.deliveries_rate, " deliveries/s", &outcome.counts.times, &outcome.validity);
        let (name, carrier, pace) = (&scenario.name, scenario.carrier.name(), pace_name(pace));
        self.progress.step(&format!("{name}, {carrier} ({pace}) {what}: {figures}"));
    }

    /// Keeps the last run, and its percentiles for a plot.
    fn keep(&mut self, scenario: &Scenario, pace: Pace, mut rounds: Rounds) {
        let Some(last) = rounds.outcomes.pop() else { return };
        let name = format!("{}, {}, {}", scenario.name, scenario.carrier.name(), pace_name(pace));
        let below = |percentile: &f64| *percentile < 100.0;
        let spectrum = last.counts.times.spectrum();
        let points = spectrum.iter().filter(|line| below(&line.percentile));
        self.lines.push((name, points.map(|line| (100.0 / (100.0 - line.percentile), line.time_us)).collect()));
        self.last = Some((pace, last));
    }
}

/// The rounds of one scenario, and of the bare stream before each.
#[derive(Debug)]
pub struct Rounds {
    /// Figures of the scenario.
    pub outcomes: Vec<Outcome>,
    /// Bytes per second of a bare stream.
    pub bare: Vec<f64>,
    /// Bytes per second of a bare relay to as many connections, all together.
    pub relayed: Vec<f64>,
}

impl Rounds {
    /// Returns the deliveries per second of each round.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        self.over(|outcome| outcome.deliveries_rate)
    }

    /// Returns a figure of each round.
    #[must_use]
    pub fn over(&self, figure: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        self.outcomes.iter().map(figure).collect()
    }

    /// Returns the first validity that is not good.
    #[must_use]
    pub fn validity(&self) -> Validity {
        Validity::worst(self.outcomes.iter().map(|outcome| &outcome.validity))
    }
}
