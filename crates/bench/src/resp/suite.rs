//! `thalweg bench resp`: performs the runs that the command's options request, and makes the report.
//!
//! Owns: the order of servers, scenarios, generators, searches and profiles. Does not own: one round (`turn`), or the
//! tables (`figures`).

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use super::{
    client::Client,
    figures::{Line, conditions, figures, ratios},
    options::{Generator, RespOptions, ServerChoice},
    protocol::{OnWrong, Plan},
    requests::Operation,
    scenario::{Goal, LoadKind, Scenario},
    server::Server,
    turn::ServerTurn,
};
use crate::{
    BenchError, Progress, Report, Scratch,
    account::{Account, cost_table},
    figures::check_of_ratio,
    load::{self, Bounds, Faults, LEAST_PATIENCE, Objective, Pace, Timeline, Validity, find_knee, turns},
    native::{TransportKind, bare},
    options::only,
    profiling::LONGEST_PROFILE,
    report::{Table, cells, duration, number},
    saturation::{Evidence, SearchEvidence},
    search_report::{self, SearchCourse},
    server::add_stages,
};

/// Runs the RESP suite and returns its report.
pub fn run(options: &RespOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("resp", options.dir.as_deref())?;
    let scenarios = only(Scenario::all(options), options.only.as_deref(), |scenario| &scenario.name)?;
    let generators = generators(options, &mut report);
    let mut suite = Suite { options, scratch: &scratch, servers: Vec::new(), streams: 0, progress };
    for (choice, _) in scenarios.iter().flat_map(|scenario| &scenario.servers) {
        suite.reach(choice)?;
    }
    for server in suite.servers.iter().filter(|server| server.process.is_some()) {
        options.profile.profiler(server.process, scratch.path())?;
    }
    describe(&suite, &mut report)?;
    report.tables.push(conditions(&scenarios));
    match &options.search {
        Some(objective) => suite.search(&scenarios[0], objective, &mut report)?,
        None => suite.measure(&scenarios, &generators, &mut report)?,
    }
    Ok(report.finish())
}

/// Returns the load generators that the options name. If there is a preset and no named generator, returns both, or
/// only this program's own if redis-benchmark is not installed.
fn generators(options: &RespOptions, report: &mut Report) -> Vec<Generator> {
    if !options.generator.is_empty() {
        return options.generator.clone();
    }
    if options.preset.is_some() && is_installed(&options.redis_benchmark) {
        return vec![Generator::Own, Generator::RedisBenchmark];
    }
    if options.preset.is_some() {
        let name = options.redis_benchmark.display();
        report.notes.push(format!("{name} is not installed, so only this process's generator was used"));
    }
    vec![Generator::Own]
}

fn is_installed(binary: &Path) -> bool {
    let mut command = Command::new(binary);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn describe(suite: &Suite<'_>, report: &mut Report) -> Result<(), BenchError> {
    let options = suite.options;
    let servers: Vec<String> = suite
        .servers
        .iter()
        .map(|server| {
            let process = server.process.map_or_else(String::new, |id| format!(", process {id}"));
            format!("{} at {}{process}", server.version, server.greeting.address)
        })
        .collect();
    report.condition("servers", servers.join("; "));
    report.condition("protocol", if options.resp3 { "RESP3" } else { "RESP2" });
    report.condition(
        "load",
        format!(
            "{} s after {} s of warm-up, {} rounds, servers alternate, medians; one thread, on the servers' machine if that is local; seed {}",
            options.duration.as_secs_f64(),
            options.warmup.as_secs_f64(),
            options.rounds,
            options.seed
        ),
    );
    report.condition("windows", Timeline::describe(options.duration, options.window));
    let times = bare::round_trips(TransportKind::Tcp, 40, Duration::from_millis(200))?;
    report.condition(
        "bare round trip",
        format!(
            "{} at the median, {} at the 99th percentile: two threads over loopback, on a core each",
            duration(times.percentile(50.0)),
            duration(times.percentile(99.0))
        ),
    );
    Ok(())
}

/// Adds the durability levels in the lines of the results to the report's conditions, so that titles can name the
/// level.
fn name_levels<'a>(report: &mut Report, levels: impl Iterator<Item = &'a str>) {
    let levels: BTreeSet<&str> = levels.collect();
    match levels.first() {
        Some(level) if levels.len() == 1 => report.condition("durability", *level),
        Some(_) => report.condition("levels", "DIFFERENT DURABILITIES: each row names its own"),
        None => {}
    }
}

struct Suite<'a> {
    options: &'a RespOptions,
    scratch: &'a Scratch,
    servers: Vec<Server>,
    /// Number of stream keys that were used so far. Each round appends to a new stream.
    streams: u64,
    progress: &'a mut dyn Progress,
}

impl Suite<'_> {
    fn reach(&mut self, choice: &ServerChoice) -> Result<(), BenchError> {
        if self.servers.iter().all(|server| server.choice != *choice) {
            let server = Server::connect_or_start(choice, self.options, self.scratch, self.progress)?;
            self.servers.push(server);
        }
        Ok(())
    }

    fn server(&self, choice: &ServerChoice) -> &Server {
        let found = self.servers.iter().find(|server| server.choice == *choice);
        found.expect("all servers of the scenarios have been reached before")
    }

    fn measure(
        &mut self,
        scenarios: &[Scenario],
        generators: &[Generator],
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let mut all = Vec::new();
        for scenario in scenarios {
            for generator in generators {
                all.push(self.lines(scenario, *generator)?);
            }
            self.profile_scenario(scenario, report)?;
        }
        name_levels(report, all.iter().flatten().map(|line| &*line.durability));
        report.tables.push(figures(all.iter().flatten()));
        let mut costs = cost_table();
        all.iter().flatten().filter_map(Line::cost).for_each(|row| costs.row(row));
        report.tables.push(costs);
        let stages: Vec<_> = all.iter().flatten().filter_map(Line::stages).collect();
        add_stages(report, "stages of a durable write", &stages);
        if scenarios.len() == 1 {
            report.tables.extend(all.iter().flatten().filter_map(Line::spectrum));
        }
        report.spectra.extend(all.iter().flatten().filter_map(Line::whole_spectrum));
        let pairs = || all.iter().flat_map(|lines| lines[1..].iter().map(|other| (&lines[0], other)));
        if pairs().next().is_some() {
            report.tables.push(ratios(pairs()));
        }
        for line in all.iter().flatten() {
            let what = format!("{}, {}, {}", line.scenario.name, line.generator, line.server);
            report.checks.push(line.validity().check(what, "all answered, rightly"));
        }
        for (line, other) in pairs() {
            // The bare server is a yardstick, so there is no goal against it.
            if let Some(goal) = line.scenario.goal
                && !other.is_bare
            {
                let what = format!("{}, {}, of {}", line.scenario.name, line.generator, other.server);
                let (rate, median) = line.ratios(other);
                let check = goal.check(what, rate, median);
                let is_bound = other.is_lower_bound() && matches!(goal, Goal::Rate(_));
                report.checks.push(check_of_ratio(check, &other.validity(), is_bound));
            }
        }
        let busy: Vec<String> = all
            .iter()
            .flatten()
            .filter(|line| line.is_generator_saturated())
            .map(|line| format!("{} of {}", line.scenario.name, line.server))
            .collect();
        if !busy.is_empty() {
            let which = busy.join("; ");
            report
                .notes
                .push(format!("the generator's thread was never idle, so the server may be able to do more: {which}"));
        }
        Ok(())
    }

    /// Prepares one round of a scenario on one server and database, with a new stream key.
    fn turn<'s>(&'s self, scenario: &'s Scenario, (choice, database): &(ServerChoice, u32)) -> ServerTurn<'s> {
        let stream = format!("bench_stream_{}_{}", std::process::id(), self.streams);
        ServerTurn { scenario, server: self.server(choice), database: *database, stream }
    }

    /// Runs all rounds of a scenario. The servers take turns, and each round begins with another server.
    fn lines<'s>(&mut self, scenario: &'s Scenario, generator: Generator) -> Result<Vec<Line<'s>>, BenchError> {
        let mut lines = Vec::new();
        for server in &scenario.servers {
            let turn = self.turn(scenario, server);
            turn.fill(generator)?;
            lines.push(Line {
                scenario,
                generator: generator.name(),
                server: turn.server.name(turn.database),
                durability: turn.server.durability(turn.database)?,
                is_bare: server.0 == ServerChoice::Bare,
                rounds: Vec::new(),
                account: Account::default(),
            });
        }
        let mut streams = Vec::new();
        for round in 0..self.options.rounds {
            for at in turns(round.into(), lines.len()) {
                self.streams += 1;
                let turn = self.turn(scenario, &scenario.servers[at]);
                let outcome = lines[at].account.around(|| turn.server.metrics(), || turn.round(generator))?;
                streams.push(turn.stream);
                self.progress.step(&format!(
                    "{}, {}, {} round {}: {}/s, p50 {} µs, {}",
                    scenario.name,
                    generator.name(),
                    lines[at].server,
                    round + 1,
                    number(outcome.rate()),
                    number(outcome.time_us(50.0)),
                    outcome.validity().name()
                ));
                if let Validity::Errors(why) = outcome.validity()
                    && !self.options.keep_going
                {
                    return Err(BenchError::wrong(&lines[at].server, "answering", why.as_str()));
                }
                lines[at].rounds.push(outcome);
            }
        }
        if matches!(&scenario.work, LoadKind::Requests(mix) if mix.operations().any(|it| it == Operation::Xadd)) {
            for server in &scenario.servers {
                let mut client = Client::open(&self.turn(scenario, server).greeting())?;
                for stream in &streams {
                    client.done(&[b"DEL", stream.as_bytes()])?;
                }
                client.leave();
            }
        }
        Ok(lines)
    }

    /// Runs a scenario once more on each server for each kind of profile that the options request.
    fn profile_scenario(&mut self, scenario: &Scenario, report: &mut Report) -> Result<(), BenchError> {
        for contender in &scenario.servers {
            let label = scenario.name.clone();
            self.profile(scenario, contender, (&label, ""), scenario.options.pace(), report)?;
        }
        Ok(())
    }

    /// Runs a scenario at a pace on one server, once for each kind of profile that the options request. Servers that
    /// are threads of this process, and loads of subscribers, get no profiles.
    fn profile(
        &mut self,
        scenario: &Scenario,
        contender: &(ServerChoice, u32),
        (label, place): (&str, &str),
        pace: Pace,
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let LoadKind::Requests(mix) = &scenario.work else { return Ok(()) };
        self.streams += 1;
        let turn = self.turn(scenario, contender);
        let Some(process) = turn.server.process else { return Ok(()) };
        let Some(profiler) = self.options.profile.profiler(Some(process), self.scratch.path())? else { return Ok(()) };
        let plan = turn.plan(mix.clone(), pace);
        let label = format!("{label}, {}", turn.server.name(turn.database));
        let plan = Plan { duration: plan.duration.min(LONGEST_PROFILE), ..plan };
        let place = format!("-{}{place}", report.plots.len() + 1);
        profiler.run((&label, &place), report, self.progress, || load::run(&plan).map(|outcome| outcome.rate))
    }

    /// Searches for the highest rate that meets the objective, for one server after the other.
    fn search(&mut self, scenario: &Scenario, objective: &Objective, report: &mut Report) -> Result<(), BenchError> {
        let options = self.options;
        report.condition("objective", objective.to_string());
        let bounds = Bounds {
            start: options.rate.unwrap_or(1000.0),
            max: options.max_rate,
            precision: 0.03,
            repeats: options.rounds,
        };
        let mut table = Table::new("search: climb, bisect, confirm both ends");
        let mut levels = Vec::new();
        for contender in &scenario.servers {
            let LoadKind::Requests(mix) = &scenario.work else { continue };
            let turn = self.turn(scenario, contender);
            turn.fill(Generator::Own)?;
            let durability = turn.server.durability(turn.database)?;
            let server = format!("{} ({durability})", turn.server.name(turn.database));
            levels.push(durability);
            let (mut resources, mut course) = (SearchEvidence::default(), SearchCourse::new(objective));
            let knee = find_knee(&bounds, |rate| {
                self.streams += 1;
                let pace = Pace::Open { rate, arrivals: options.arrivals };
                let mut plan = self.turn(scenario, contender).plan(mix.clone(), pace);
                plan.give_up = objective.patience(LEAST_PATIENCE);
                if objective.errors.is_some() {
                    plan.protocol.on_wrong = OnWrong::CountRefusals;
                }
                let mut account = Account::default();
                let outcome = account.around(|| self.server(&contender.0).metrics(), || load::run(&plan))?;
                resources.push(rate, Evidence::of(&outcome, &account, self.server(&contender.0).address()));
                let faults = if outcome.tally.lost > 0 { Faults::Serious } else { Faults::Refusals };
                let trial = objective.judge(&server, &outcome, faults)?;
                course.push(rate, &outcome);
                let p99 = number(outcome.time_us(99.0));
                self.progress.step(&format!("{server} at {rate:.0}/s: p99 {p99} µs, {trial}"));
                table.row(cells! {
                    "server" => server.as_str(), "offered/s" => rate, "answered/s" => outcome.rate,
                    "p50 µs" => outcome.time_us(50.0), "p95 µs" => outcome.time_us(95.0),
                    "p99 µs" => outcome.time_us(99.0), "p99.9 µs" => outcome.time_us(99.9),
                    "lag p99 µs" => outcome.lag_us(),
                    "outcome" => trial.to_string(),
                });
                Ok::<_, BenchError>(trial)
            })?;
            let (name, title) = (format!("search-{}", levels.len()), format!("response times by rate: {server}"));
            report.plots.push(course.plot(&name, &title, "requests/s"));
            report.summary.push(search_report::sentence(&knee, objective, &server, "requests/s"));
            resources.conclude(&knee, report);
            let what = format!("{server}: highest rate with {objective}, stable over {} repeats", bounds.repeats);
            report.checks.push(knee.check(what, |rate| format!("{rate:.0}/s")));
            let Some(knee) = knee.rate else { continue };
            for (words, place, rate) in [("at the knee", "", knee), ("below the knee", "-below", knee / 2.0)] {
                let label = format!("{} {words}, {}/s", scenario.name, number(rate));
                let pace = Pace::Open { rate, arrivals: options.arrivals };
                self.profile(scenario, contender, (&label, place), pace, report)?;
            }
        }
        report.tables.push(table);
        name_levels(report, levels.iter().map(|level| &**level));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_titles_name_the_durability_or_say_that_rows_differ() {
        let title = |levels: &[&str]| {
            let mut report = Report::begin("resp", Path::new("."));
            name_levels(&mut report, levels.iter().copied());
            report.to_html().split_once("<title>").unwrap().1.split_once("</title>").unwrap().0.to_owned()
        };
        assert_eq!(title(&["none: a cache in memory"; 2]), "thalweg bench resp, durability none");
        let different = title(&["none: a cache in memory", "appendonly yes, appendfsync always"]);
        assert_eq!(different, "thalweg bench resp, DIFFERENT DURABILITIES: each row names its own");
    }
}
