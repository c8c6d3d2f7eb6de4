//! The HTTP suite (`thalweg bench http`): runs the scenarios that the options select, and makes the report.
//!
//! Owns: the order of setup, runs, searches and profiles, and the tables and checks of the report. Does not own: the
//! plan of a run (`running`), the load generator (`thalweg_load`), or sentences and plots (`findings`).

use std::collections::HashSet;

use super::{
    findings::{self, in_words},
    options::{ApiChoice, HttpLoad, HttpOptions, Mix},
    running::{self, api, level, sampled, store_keys},
    scenario::Scenario,
};
use crate::{
    BenchError, Progress, Report, Spectrum,
    account::{Account, cost_row, cost_table, disk_table},
    figures::{SampledLoad, check_of_ratio},
    latency::micros,
    load::{
        self, Bounds, Faults, LEAST_PATIENCE, Objective, Pace, Plan, Timeline, Trial, find_knee,
        http::{Api, Counts, Http, Operation, Outcome},
    },
    profiling::{LONGEST_PROFILE, Profiler},
    report::{Check, Row, Table, cells, number, table},
    saturation::{Evidence, SearchEvidence},
    search_report::{self, SearchCourse},
    server::{Stages, Target, add_stages},
    stats::ratio,
};

/// Labels of the server's metrics that select puts.
const PUTS: &[(&str, &str)] = &[("operation", "kv_put"), ("operation", "entity_put")];

/// Runs the HTTP suite and returns its report.
pub fn run(options: &HttpOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("http", options.server.start.dir.as_deref())?;
    let target = running::target(&options.server, &scratch, progress)?;
    report.condition("target", target_name(options, &target));
    report.condition("server build", target.build());
    report.condition(
        "load",
        format!(
            "{} threads in this process, same machine as the server if that is local; seed {}",
            options.load.workers, options.load.seed
        ),
    );
    report.condition("windows", Timeline::describe(options.load.duration, options.load.window));
    let profiler = options.profile.profiler(target.process(), scratch.path())?;
    let mut suite = Suite { options, target: &target, profiler, loaded: HashSet::new(), progress };
    match &options.search {
        Some(objective) => suite.search(objective, &mut report)?,
        None => suite.scenarios(&mut report)?,
    }
    Ok(report.finish())
}

fn target_name(options: &HttpOptions, target: &Target) -> String {
    match (&options.server.target, target.process()) {
        (Some(url), _) => url.clone(),
        (None, id) => format!("own server at {}, process {}", target.address, id.unwrap_or(0)),
    }
}

/// Results of all rounds of a scenario. For comparison, the suite may also measure a route that stores nothing (the
/// echo): then a round of the echo precedes each round of the scenario.
#[derive(Default)]
struct Rounds {
    subject: load::Rounds<Counts>,
    echo: load::Rounds<Counts>,
}

struct Suite<'a> {
    options: &'a HttpOptions,
    target: &'a Target,
    profiler: Option<Profiler>,
    /// Key sets that the server already holds: API, number of keys and bytes of a value.
    loaded: HashSet<(ApiChoice, u64, usize)>,
    progress: &'a mut dyn Progress,
}

impl Suite<'_> {
    fn scenarios(&mut self, report: &mut Report) -> Result<(), BenchError> {
        let scenarios = Scenario::all(self.options);
        let echo = self.has_echo();
        report.condition("rounds", self.options.rounds.to_string());
        report.tables.push(conditions_table(&scenarios));
        let is_alone = scenarios.len() == 1;
        let mut figures = Table::new("figures: medians of the rounds; response times from the scheduled moment");
        let (mut last, mut spectra, mut levels) = (None, Vec::new(), Vec::new());
        let (mut rates, mut tails) = (Vec::new(), Vec::new());
        let (mut costs, mut stages) = (cost_table(), Vec::new());
        for (number, scenario) in scenarios.iter().enumerate() {
            self.load_keys(&scenario.load)?;
            let level = level(self.target, &scenario.load)?;
            let (rounds, account) = self.rounds(scenario, echo)?;
            figures.row(figure_row(scenario, &rounds, account.fsyncs_per_run()));
            let runs: Vec<&Outcome> = rounds.subject.outcomes.iter().collect();
            costs.row(cost_row(&format!("{} ({})", scenario.name, in_words(&level)), &runs, &account));
            stages.extend(write_stages(scenario, &level, &rounds.subject, &account));
            report.checks.extend(checks(scenario, &rounds));
            let load = sampled(&scenario.load, level.clone());
            let load = if is_alone { load } else { SampledLoad { scenario: scenario.name.clone(), ..load } };
            report.samples.extend(load.samples(&rounds.subject.outcomes));
            report.summary.push(findings::sentence(scenario, &level, &rounds.subject));
            self.profile(scenario, &level, (number, is_alone), report)?;
            rates.push(findings::bar(scenario, &level, &rounds.subject, |outcome| outcome.rate));
            tails.push(findings::bar(scenario, &level, &rounds.subject, |outcome| outcome.time_us(99.0)));
            let line = |outcome| findings::spectrum_line(format!("{}, {}", scenario.name, in_words(&level)), outcome);
            spectra.extend(rounds.subject.outcomes.last().map(line));
            report.spectra.extend(whole_spectra(&format!("{} ({})", scenario.name, in_words(&level)), &rounds.subject));
            if scenario.load.mix == Mix::Mixed {
                report.tables.push(apart_table(scenario, &rounds.subject));
            }
            if level != "-" && !levels.contains(&level) {
                levels.push(level);
            }
            last = rounds.subject.outcomes.into_iter().next_back();
        }
        if !levels.is_empty() {
            report.condition("durability", levels.join(" and "));
        }
        if !is_alone {
            report.plots.push(findings::rows_plot("rates", "requests/s", "a dot further right is better", &rates));
            report.plots.push(findings::rows_plot("tails", "p99 µs", "a dot further left is better", &tails));
        }
        report.plots.extend(findings::spectrum_plots(&spectra));
        report.tables.push(figures);
        report.tables.push(costs);
        report.tables.extend(disk_table(&self.target.disk_use()));
        add_stages(report, "stages of a durable write", &stages);
        if let (Some(outcome), true) = (last, is_alone) {
            report.tables.push(spectrum_table("of the last run", &outcome));
            report.tables.push(status_table(&outcome));
        }
        Ok(())
    }

    fn rounds(&mut self, scenario: &Scenario, echo: bool) -> Result<(Rounds, Account), BenchError> {
        let (mut rounds, mut account, pace) = (Rounds::default(), Account::default(), scenario.load.pace());
        for round in 1..=self.options.rounds {
            if echo {
                let outcome = load::run(&self.plan(&scenario.load, Kind::Echo, pace))?;
                self.print_round(scenario, pace, "echo", round, &outcome);
                rounds.echo.push(outcome);
            }
            let plan = self.plan(&scenario.load, Kind::Subject, pace);
            let outcome = account.around(|| self.target.metrics(), || load::run(&plan))?;
            self.print_round(scenario, pace, "", round, &outcome);
            rounds.subject.push(outcome);
        }
        Ok((rounds, account))
    }

    /// Runs a scenario once more for each kind of profile that the options request.
    fn profile(
        &mut self,
        scenario: &Scenario,
        level: &str,
        (number, is_alone): (usize, bool),
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let Some(profiler) = &self.profiler else { return Ok(()) };
        let place = if is_alone { String::new() } else { format!("-{}", number + 1) };
        let label = format!("{} ({})", scenario.name, in_words(level));
        let plan = shortened(self.plan(&scenario.load, Kind::Subject, scenario.load.pace()));
        profiler.run((&label, &place), report, self.progress, || load::run(&plan).map(|outcome| outcome.rate))
    }

    /// Runs the load for each kind of profile, at the highest rate that the search found and at half of this rate.
    fn profile_knee(&mut self, rate: f64, report: &mut Report) -> Result<(), BenchError> {
        let Some(profiler) = &self.profiler else { return Ok(()) };
        for (words, place, rate) in [("at the knee", "", rate), ("below the knee", "-below", rate / 2.0)] {
            let pace = Pace::Open { rate, arrivals: self.options.load.arrivals };
            let plan = shortened(self.plan(&self.options.load, Kind::Subject, pace));
            let label = format!("{words}, {}/s", number(rate));
            profiler.run((&label, place), report, self.progress, || load::run(&plan).map(|outcome| outcome.rate))?;
        }
        Ok(())
    }

    fn print_round(&mut self, scenario: &Scenario, pace: Pace, what: &str, round: u32, outcome: &Outcome) {
        let (name, pace, durability) = (&scenario.name, pace.name("/s"), scenario.load.durability_name());
        let figures = outcome.summary("/s");
        self.progress.step(&format!("{name} {what} ({pace}, {durability}) round {round}: {figures}"));
    }

    fn search(&mut self, objective: &Objective, report: &mut Report) -> Result<(), BenchError> {
        let options = self.options;
        let scenarios = Scenario::all(options);
        self.load_keys(&scenarios[0].load)?;
        let bounds =
            Bounds { start: options.load.rate, max: options.max_rate, precision: 0.03, repeats: options.rounds };
        let level = level(self.target, &options.load)?;
        report.condition("objective", objective.to_string());
        if level != "-" {
            report.condition("durability", level.clone());
        }
        report.tables.push(conditions_table(&scenarios));
        let mut table = Table::new("search: climb, bisect, confirm both ends");
        let (mut good, mut course, mut resources) =
            (Vec::new(), SearchCourse::new(objective), SearchEvidence::default());
        let knee = find_knee(&bounds, |rate| {
            let pace = Pace::Open { rate, arrivals: options.load.arrivals };
            let plan = self.plan(&options.load, Kind::Subject, pace);
            let (plan, mut account) =
                (Plan { give_up: objective.patience(LEAST_PATIENCE), ..plan }, Account::default());
            let outcome = account.around(|| self.target.metrics(), || load::run(&plan))?;
            resources.push(rate, Evidence::of(&outcome, &account, Some(self.target.address)));
            let trial = trial_of(&outcome, objective)?;
            self.print_round(&scenarios[0], pace, "", 1, &outcome);
            table.row(trial_row(rate, &outcome, &trial));
            course.push(rate, &outcome);
            if trial == Trial::Pass {
                good.push((rate, outcome));
            }
            Ok::<_, BenchError>(trial)
        })?;
        report.tables.push(table);
        // The last good run may have had a lower rate than the knee.
        let at_knee = good.into_iter().rev().find(|(rate, _)| Some(*rate) == knee.rate);
        let title = |rate: f64| format!("at the knee, {}/s", number(rate));
        report.tables.extend(at_knee.iter().map(|(rate, run)| spectrum_table(&title(*rate), run)));
        report.spectra.extend(at_knee.iter().filter_map(|(rate, run)| Spectrum::of(title(*rate), &run.times)));
        report.plots.push(course.plot("search", "response times by rate", "requests/s"));
        report.plots.extend(findings::spectrum_plots(
            &at_knee.iter().map(|(rate, run)| findings::spectrum_line(title(*rate), run)).collect::<Vec<_>>(),
        ));
        let what = format!("{}, {} connections, {}", scenarios[0].name, options.load.connections, in_words(&level));
        report.summary.push(search_report::sentence(&knee, objective, &what, "requests/s"));
        resources.conclude(&knee, report);
        let what = format!("highest rate with {objective}, stable over {} repeats", bounds.repeats);
        report.checks.push(knee.check(what, |rate| format!("{rate:.0}/s")));
        knee.rate.map_or(Ok(()), |rate| self.profile_knee(rate, report))
    }

    /// Stores the keys that the gets of a load read, unless the server already holds them.
    fn load_keys(&mut self, load: &HttpLoad) -> Result<(), BenchError> {
        if !load.reads_stored_keys() || !self.loaded.insert((load.api, load.keys, load.value_size)) {
            return Ok(());
        }
        store_keys(self.target, load, self.progress)
    }

    fn plan(&self, load: &HttpLoad, kind: Kind, pace: Pace) -> Plan<Http> {
        let api = match kind {
            Kind::Echo => Api::Echo { path: self.options.echo_path.clone() },
            Kind::Subject => api(load),
        };
        running::plan(self.target, load, api, pace)
    }

    fn has_echo(&self) -> bool {
        let path = &self.options.echo_path;
        // The route takes POST. A GET only shows if the route exists.
        !path.is_empty() && self.target.get(path).is_some_and(|(status, _)| matches!(status, 200 | 405))
    }
}

/// Returns the plan of a run with its duration limited to the longest that a profile may record.
fn shortened(plan: Plan<Http>) -> Plan<Http> {
    Plan { duration: plan.duration.min(LONGEST_PROFILE), ..plan }
}

/// Divides the time of the scenario's durable puts into stages, such as the queue and the fsync; `None` if the scenario
/// has none.
fn write_stages(scenario: &Scenario, level: &str, rounds: &load::Rounds<Counts>, account: &Account) -> Option<Stages> {
    let response_us = rounds.median(|outcome| micros(outcome.tally.times[Operation::Put as usize].mean()));
    let label = format!("{} ({})", scenario.name, in_words(level));
    let puts = ("thalweg_http_request_duration_seconds", PUTS);
    account.durable_writes(&label, puts, Some(response_us).filter(|time| *time > 0.0))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Subject,
    Echo,
}

fn trial_of(outcome: &Outcome, objective: &Objective) -> Result<Trial, BenchError> {
    // A server that cannot keep up may reject requests with 503, but must not return wrong bytes or lose keys.
    let Counts { wrong_bytes, lost_keys, .. } = outcome.tally.own;
    let is_serious = wrong_bytes + lost_keys > 0 || (outcome.tally.lost > 0 && objective.errors.is_none());
    let faults = if is_serious { Faults::Serious } else { Faults::Refusals };
    objective.judge("the server", outcome, faults)
}

fn conditions_table(scenarios: &[Scenario]) -> Table {
    table! {
        "conditions"; scenario in scenarios;
        let load = &scenario.load;
        "scenario" => scenario.name.as_str(), "requests" => format!("{:?}", load.mix).to_lowercase(),
        "API" => format!("{:?}", load.api).to_lowercase(), "pace" => load.pace().name("/s"),
        "warm-up s" => load.warmup.as_secs_f64(), "run s" => load.duration.as_secs_f64(),
        "connections" => load.connections, "pipeline" => load.pipeline,
        "durability" => load.durability_name(), "value B" => load.value_size, "keys" => load.keys,
        "spread" => format!("{:?}", load.distribution).to_lowercase(),
    }
}

fn figure_row(scenario: &Scenario, Rounds { subject, echo }: &Rounds, fsyncs_per_run: f64) -> Row {
    let rate = subject.rate();
    let written = |outcome: &Outcome| {
        let bytes = outcome.spent.server.and_then(|cost| cost.written_bytes).map_or(f64::NAN, |bytes| bytes as f64);
        bytes / (all_puts(outcome) * scenario.load.value_size as f64)
    };
    cells! {
        "scenario" => scenario.name.as_str(), "requests/s" => rate.median, "± MAD" => rate.mad,
        "p50 µs" => subject.time_us(50.0), "p90 µs" => subject.time_us(90.0), "p95 µs" => subject.time_us(95.0),
        "p99 µs" => subject.time_us(99.0),
        "p99.9 µs" => subject.time_us(99.9), "max µs" => subject.time_us(100.0),
        "service p99 µs" => subject.median(|outcome| micros(outcome.tally.own.service.percentile(99.0))),
        "lag p99 µs" => subject.median(|outcome| outcome.lag_us()),
        "stolen %" => subject.median(|outcome| outcome.stolen_percent()),
        "received MiB/s" => subject.median(|outcome| outcome.received_mib()),
        "sent MiB/s" => subject.median(|outcome| outcome.sent_mib()),
        "server CPU µs/request" => subject.median(|outcome| outcome.server_cpu(outcome.tally.all_right)),
        "generator CPU µs/request" => subject.median(|outcome| outcome.generator_cpu(outcome.tally.all_right)),
        "generator busy %" => subject.busy_percent(),
        "server peak RSS MiB" => subject.peak_rss(), "written B/payload B" => subject.median(written),
        "fsyncs/run" => fsyncs_per_run, "fsyncs/put" => fsyncs_per_run / subject.median(all_puts),
        "echo requests/s" => echo.rate().median,
        "of echo" => ratio(&subject.rates(), &echo.rates()), "verdict" => subject.verdict(),
    }
}

/// Estimates the number of puts of a run including its warm-up, because the server's bytes and fsyncs include the
/// warm-up too. Puts are taken to have the same share in the warm-up as among the counted requests. NaN if there are no
/// puts.
fn all_puts(outcome: &Outcome) -> f64 {
    let puts = outcome.tally.times[Operation::Put as usize].count() as f64;
    let all = outcome.tally.all_right as f64 * puts / outcome.times.count() as f64;
    if all > 0.0 { all } else { f64::NAN }
}

fn checks(scenario: &Scenario, Rounds { subject, echo }: &Rounds) -> Vec<Check> {
    let pace = scenario.load.pace().name("/s");
    let what = format!("{} ({pace}, {})", scenario.name, scenario.load.durability_name());
    let mut checks = vec![subject.check(&what, "all answered, rightly, in step")];
    checks.extend(scenario.echo_share.map(|share| {
        let measured = ratio(&subject.rates(), &echo.rates());
        let what = format!("{what}: rate against the route that stores nothing");
        let check = Check::at_least(what, measured, share, " ×");
        check_of_ratio(check, &echo.validity(), echo.is_lower_bound())
    }));
    checks
}

/// Returns the distributions of times in the last round: of all response times, of the service times, and, if there are
/// both gets and puts, of the response times of each.
fn whole_spectra(name: &str, rounds: &load::Rounds<Counts>) -> Vec<Spectrum> {
    let Some(last) = rounds.outcomes.last() else { return Vec::new() };
    let of_kind = |kind: Operation| &last.tally.times[kind as usize];
    let is_mixed = of_kind(Operation::Get).count() > 0 && of_kind(Operation::Put).count() > 0;
    let all = [
        (String::new(), &last.times, true),
        (", gets".to_owned(), of_kind(Operation::Get), is_mixed),
        (", puts".to_owned(), of_kind(Operation::Put), is_mixed),
        (", service times".to_owned(), &last.tally.own.service, true),
    ];
    let shown = all.into_iter().filter(|(_, _, is_shown)| *is_shown);
    shown.filter_map(|(part, times, _)| Spectrum::of(format!("{name}{part}"), times)).collect()
}

/// Returns a table with the figures of the gets and of the puts of a mix separately.
fn apart_table(scenario: &Scenario, rounds: &load::Rounds<Counts>) -> Table {
    table! {
        format!("{}: gets and puts apart", scenario.name); (name, kind) in [("get", Operation::Get), ("put", Operation::Put)];
        let of = |outcome: &Outcome| outcome.tally.times[kind as usize].clone();
        let at = |percentile| rounds.median(|outcome| micros(of(outcome).percentile(percentile)));
        "requests" => name, "requests/s" => rounds.median(|outcome| of(outcome).count() as f64 / outcome.seconds),
        "p50 µs" => at(50.0), "p90 µs" => at(90.0), "p95 µs" => at(95.0), "p99 µs" => at(99.0), "p99.9 µs" => at(99.9),
        "max µs" => at(100.0),
    }
}

fn spectrum_table(which: &str, outcome: &Outcome) -> Table {
    let service = outcome.tally.own.service.spectrum();
    table! {
        format!("percentile spectrum {which}"); (line, service) in outcome.times.spectrum().iter().zip(service);
        "percentile" => format!("{}", line.percentile), "response µs" => line.time_us,
        "requests at or below" => line.count, "1/(1-percentile)" => line.one_in(), "service µs" => service.time_us,
    }
}

fn status_table(outcome: &Outcome) -> Table {
    let mut table = Table::new("replies of the last run");
    let tally = &outcome.tally;
    let statuses = tally.own.statuses.iter().map(|(status, count)| (status.to_string(), *count));
    let others = [
        ("key without a value", tally.own.missing),
        ("wrong bytes", tally.own.wrong_bytes),
        ("broken connections", tally.lost),
        ("never answered", tally.unanswered),
    ];
    for (name, count) in statuses.chain(others.map(|(name, count)| (name.to_owned(), count))) {
        table.row(cells! { "status" => name, "count" => count });
    }
    table
}

fn trial_row(rate: f64, outcome: &Outcome, trial: &Trial) -> Row {
    let times = outcome.times.quantiles();
    cells! {
        "offered/s" => rate, "answered/s" => outcome.rate, "p50 µs" => times.p50_us, "p90 µs" => times.p90_us,
        "p95 µs" => outcome.time_us(95.0),
        "p99 µs" => times.p99_us, "p99.9 µs" => times.p999_us, "max µs" => times.max_us,
        "lag p99 µs" => outcome.lag_us(), "stolen %" => outcome.stolen_percent(),
        "server CPU µs/request" => outcome.server_cpu(outcome.tally.all_right),
        "outcome" => trial.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Quiet,
        options::parsed,
        report::Cell,
        usage::{Cost, RunResources},
    };

    fn options(more: &[&str]) -> HttpOptions {
        parsed(more.iter().copied()).unwrap()
    }

    #[test]
    fn bytes_and_fsyncs_are_of_the_same_span_as_the_puts() {
        let mut tally = load::Tally::<Counts>::new(2);
        tally.times[Operation::Put as usize].record_nanos_times(1000, 40);
        tally.times[Operation::Get as usize].record_nanos_times(1000, 60);
        // The warm-up has 20 of the run's 120 requests. It is taken to have the same share of puts, so 48 of all
        // requests are puts.
        (tally.right, tally.all_right) = (100, 120);
        let server = Some(Cost { written_bytes: Some(48 * 300), ..Cost::default() });
        let outcome = Outcome::new(tally, 1.0, RunResources { server, ..RunResources::default() });
        let mut rounds = Rounds::default();
        (0..3).for_each(|_| rounds.subject.push(outcome.clone()));
        let scenario = &Scenario::all(&options(&["--mix", "mixed", "--value-size", "100"]))[0];
        let row = figure_row(scenario, &rounds, 24.0);
        let value = |name| row.iter().find(|(column, _)| *column == name).unwrap().1.clone();
        assert_eq!((value("written B/payload B"), value("fsyncs/run")), (Cell::Number(3.0), Cell::Number(24.0)));
        assert_eq!(value("fsyncs/put"), Cell::Number(0.5));
    }

    #[test]
    fn a_search_ends_where_stored_keys_are_lost() {
        let run = |own: Counts| {
            let mut tally = load::Tally::<Counts>::new(2);
            tally.times[Operation::Get as usize].record_nanos_times(1000, 1000);
            (tally.right, tally.all_right, tally.wrong, tally.own) = (1000, 1000, 1, own);
            let validity = load::Validity::Errors("one is wrong".to_owned());
            Outcome { validity, ..Outcome::new(tally, 1.0, RunResources::default()) }
        };
        let objective: Objective = "p99<5ms,errors<1%".parse().unwrap();
        let refused = run(Counts { bad_status: 1, ..Counts::default() });
        assert_eq!(trial_of(&refused, &objective).unwrap(), Trial::Pass);
        let lost = run(Counts { missing: 1, lost_keys: 1, ..Counts::default() });
        assert!(trial_of(&lost, &objective).is_err());
    }

    #[test]
    fn bad_options_are_named() {
        for (flags, part) in [
            (vec!["--rate", "0"], "--rate"),
            (vec!["--connections", "0"], "--connections"),
            (vec!["--keys", "0"], "--keys"),
            (vec!["--search", "p99<5ms", "--max-rate", "0"], "--max-rate"),
            (vec!["--value-size", "999999999"], "--value-size"),
        ] {
            let error = run(&options(&flags), &mut Quiet).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
