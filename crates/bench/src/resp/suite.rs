//! `thalweg bench resp`: options in, report out.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use super::{
    client::Client,
    external::{self, What},
    fanout::{self, CHANNEL, FanOut},
    figures::{Line, Round, conditions, figures, ratios},
    goals,
    options::{Generator, Preset, RespOptions},
    protocol::{OnWrong, Plan, Resp},
    requests::{Mix, Operation, Requests},
    scenario::{Scenario, Work},
    server::{Choice, Server},
};
use crate::{
    BenchError, Progress, Report, Scratch,
    data::Values,
    latency::micros,
    load::{
        pace::Pace,
        run,
        search::{self, Bounds, Objective},
        validity::Validity,
    },
    native::{bare, place::Carrier},
    options::only,
    random::KeyChooser,
    report::{Check, Table, cells, duration, number},
};

/// Runs the suite.
pub fn run(options: &RespOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("resp", options.dir.as_deref())?;
    let scenarios = match options.preset {
        Some(Preset::Goals) => goals::scenarios(options),
        None => vec![Scenario::from_options(options)],
    };
    let scenarios = only(scenarios, options.only.as_deref(), |scenario| &scenario.name)?;
    let generators = generators(options, &mut report);
    let mut suite = Suite { options, scratch: &scratch, servers: Vec::new(), streams: 0, progress };
    for (choice, _) in scenarios.iter().flat_map(|scenario| &scenario.servers) {
        suite.reach(choice)?;
    }
    describe(&suite, &mut report)?;
    report.tables.push(conditions(&scenarios));
    match options.search {
        Some(objective) => suite.search(&scenarios[0], objective, &mut report)?,
        None => suite.measure(&scenarios, &generators, &mut report)?,
    }
    Ok(report.finish())
}

/// Those that were asked for; with a preset both, where redis-benchmark is there.
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
            format!("{} at {}{process}", server.version, server.address)
        })
        .collect();
    report.condition("servers", servers.join("; "));
    report.condition("protocol", if options.resp3 { "RESP3" } else { "RESP2" });
    report.condition(
        "load",
        format!(
            "{} s after {} s, {} rounds, the servers in turns, medians; one thread, on the servers' machine if that is local; seed {}",
            options.duration.as_secs_f64(),
            options.warmup.as_secs_f64(),
            options.rounds,
            options.seed
        ),
    );
    let times = bare::round_trips(Carrier::Tcp, 40, Duration::from_millis(200))?;
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

struct Suite<'a> {
    options: &'a RespOptions,
    scratch: &'a Scratch,
    servers: Vec<Server>,
    /// Streams that have been written to.
    streams: u64,
    progress: &'a mut dyn Progress,
}

impl Suite<'_> {
    fn reach(&mut self, choice: &Choice) -> Result<(), BenchError> {
        if self.servers.iter().all(|server| server.choice != *choice) {
            let server = Server::reach(choice, self.options, self.scratch, self.progress)?;
            self.servers.push(server);
        }
        Ok(())
    }

    fn server(&self, choice: &Choice) -> &Server {
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
        }
        report.tables.push(figures(all.iter().flatten()));
        let pairs = || all.iter().flat_map(|lines| lines[1..].iter().map(|other| (&lines[0], other)));
        if pairs().next().is_some() {
            report.tables.push(ratios(pairs()));
        }
        for line in all.iter().flatten() {
            let what = format!("{}, {}, {}", line.scenario.name, line.generator, line.server);
            report.checks.push(Check::of_run(what, "all answered, rightly", line.validity()));
        }
        for (line, other) in pairs() {
            // The bare server is a ruler and not a peer.
            if let Some(goal) = line.scenario.goal
                && !other.is_bare
            {
                let what = format!("{}, {}, of {}", line.scenario.name, line.generator, other.server);
                let (rate, median) = line.ratios(other);
                report.checks.push(goal.check(what, rate, median));
            }
        }
        let busy: Vec<String> = all
            .iter()
            .flatten()
            .filter(|line| line.is_generators())
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

    /// All rounds of a scenario, the servers in turns: the one that begins is another in each round.
    fn lines<'s>(&mut self, scenario: &'s Scenario, generator: Generator) -> Result<Vec<Line<'s>>, BenchError> {
        let mut lines = Vec::new();
        for (choice, database) in &scenario.servers {
            self.fill(scenario, choice, *database, generator)?;
            let server = self.server(choice);
            lines.push(Line {
                scenario,
                generator: generator.name(),
                server: format!("{} db {database}", name(choice, server)),
                durability: self.server(choice).durability(*database, self.options)?,
                is_bare: *choice == Choice::Bare,
                rounds: Vec::new(),
            });
        }
        let mut streams = Vec::new();
        for round in 0..self.options.rounds as usize {
            for turn in 0..lines.len() {
                let at = (round + turn) % lines.len();
                let (choice, database) = &scenario.servers[at];
                self.streams += 1;
                streams.push(stream_key(self.streams));
                let outcome = self.round(scenario, choice, *database, generator, scenario.pace)?;
                self.progress.step(&format!(
                    "{}, {}, {} round {}: {}/s, p50 {} µs, {}",
                    scenario.name,
                    generator.name(),
                    lines[at].server,
                    round + 1,
                    number(outcome.rate),
                    number(outcome.p50_us),
                    outcome.validity.name()
                ));
                if let Validity::Errors(why) = &outcome.validity
                    && !self.options.keep_going
                {
                    let subject = lines[at].server.clone();
                    return Err(BenchError::WrongData { subject, doing: "answering", message: why.clone() });
                }
                lines[at].rounds.push(outcome);
            }
        }
        let has_streams =
            matches!(&scenario.work, Work::Requests(mix) if mix.operations().any(|it| it == Operation::Xadd));
        if has_streams {
            for (choice, database) in &scenario.servers {
                let mut client = Client::open(&self.server(choice).greeting(*database, self.options))?;
                for stream in &streams {
                    client.done(&[b"DEL", stream.as_bytes()])?;
                }
                client.leave();
            }
        }
        Ok(lines)
    }

    fn round(
        &self,
        scenario: &Scenario,
        choice: &Choice,
        database: u32,
        generator: Generator,
        pace: Pace,
    ) -> Result<Round, BenchError> {
        match (&scenario.work, generator) {
            (Work::Requests(mix), Generator::Own) => {
                run::run(&self.plan(scenario, mix.clone(), choice, database, pace)).map(Round::from)
            }
            (Work::Requests(mix), Generator::RedisBenchmark) => {
                let operation = mix.operation(0);
                let request = self.external(scenario, choice, database, self.what(scenario, operation));
                request.run(&self.options.redis_benchmark, self.options.duration).map(Round::from)
            }
            (Work::FanOut(subscribers), Generator::Own) => {
                fanout::run(&self.fan_out(scenario, *subscribers, choice, database)).map(Round::from)
            }
            (Work::FanOut(subscribers), Generator::RedisBenchmark) => {
                self.beside(scenario, *subscribers, choice, database)
            }
        }
    }

    fn plan(&self, scenario: &Scenario, mix: Mix, choice: &Choice, database: u32, pace: Pace) -> Plan {
        let options = self.options;
        let server = self.server(choice);
        let values = Values::new(scenario.value_bytes, options.seed);
        let on_wrong = if options.keep_going { OnWrong::Count } else { OnWrong::Stop };
        Plan {
            protocol: Resp {
                greeting: server.greeting(database, options),
                requests: Requests::new(values, scenario.keys, &stream_key(self.streams)),
                mix,
                on_wrong,
            },
            connections: scenario.connections,
            workers: 1,
            pipeline: scenario.pipeline,
            pace,
            keys: KeyChooser::new(scenario.distribution, scenario.keys),
            warmup: options.warmup,
            duration: options.duration,
            give_up: options.give_up,
            max_lag: options.max_lag,
            seed: options.seed,
            server: server.process,
        }
    }

    fn fan_out(&self, scenario: &Scenario, subscribers: usize, choice: &Choice, database: u32) -> FanOut {
        let (options, server) = (self.options, self.server(choice));
        FanOut {
            greeting: server.greeting(database, options),
            subscribers,
            pipeline: scenario.pipeline,
            payload_bytes: scenario.value_bytes,
            warmup: options.warmup,
            duration: options.duration,
            give_up: options.give_up,
            seed: options.seed,
            process: server.process,
        }
    }

    fn external(&self, scenario: &Scenario, choice: &Choice, database: u32, what: What) -> external::Request {
        external::Request {
            greeting: self.server(choice).greeting(database, self.options),
            connections: scenario.connections,
            pipeline: scenario.pipeline,
            value_bytes: scenario.value_bytes,
            keys: scenario.keys,
            what,
        }
    }

    fn what(&self, scenario: &Scenario, operation: Operation) -> What {
        let words = |words: &[&str]| What::Command(words.iter().map(|word| (*word).to_owned()).collect());
        match operation {
            Operation::Ping => What::Test("ping_mbulk"),
            Operation::Get => What::Test("get"),
            Operation::Set => What::Test("set"),
            Operation::Incr => What::Test("incr"),
            Operation::Hset => What::Test("hset"),
            Operation::Mset => What::Test("mset"),
            Operation::Hget => words(&["HGET", "myhash", "element:__rand_int__"]),
            Operation::Mget => {
                let keys = ["key:__rand_int__"; 10];
                words(&[&["MGET"], &keys[..]].concat())
            }
            Operation::Xadd => {
                let value = "x".repeat(scenario.value_bytes);
                words(&["XADD", &stream_key(self.streams), "*", "field", &value])
            }
        }
    }

    /// redis-benchmark publishes, our subscribers read. The pilots' messages are delivered and checked, too, but the rate is that
    /// of all deliveries from the first to the last, so a pilot is but a tenth of the run.
    fn beside(
        &self,
        scenario: &Scenario,
        subscribers: usize,
        choice: &Choice,
        database: u32,
    ) -> Result<Round, BenchError> {
        let plan = self.fan_out(scenario, subscribers, choice, database);
        let request = |payload: String| {
            self.external(scenario, choice, database, What::Command(vec!["PUBLISH".into(), CHANNEL.into(), payload]))
        };
        // How fast it is, is found out with the subscribers there, in a run that is not counted.
        const PILOT: u64 = 20_000;
        // redis-benchmark sends whole pipelines.
        let unit = (scenario.connections * scenario.pipeline) as u64;
        let pilots = PILOT.next_multiple_of(unit);
        let (pilot, binary) = (std::sync::Arc::new(std::sync::Mutex::new(0.0)), self.options.redis_benchmark.clone());
        let found = std::sync::Arc::clone(&pilot);
        let pilot_binary = binary.clone();
        let with = request("x".repeat(scenario.value_bytes));
        let of_pilot = with.clone();
        let checked = fanout::run_beside(&plan, move |_| {
            let figures = of_pilot.count(&pilot_binary, pilots)?;
            *found.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = figures.rate;
            Ok((figures, pilots))
        })?;
        if checked.validity != Validity::Good {
            return Ok(checked.into());
        }
        let rate = *pilot.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = ((rate * self.options.duration.as_secs_f64()) as u64).max(PILOT).next_multiple_of(unit);
        fanout::run_beside(&plan, move |_| Ok((with.count(&binary, count)?, count))).map(Round::from)
    }

    /// Sets what will be read, each key once: setup.
    fn fill(
        &self,
        scenario: &Scenario,
        choice: &Choice,
        database: u32,
        generator: Generator,
    ) -> Result<(), BenchError> {
        let Work::Requests(mix) = &scenario.work else { return Ok(()) };
        if generator == Generator::RedisBenchmark {
            return match mix.operation(0).needs() {
                Some(needed) => self.fill_external(scenario, choice, database, needed),
                None => Ok(()),
            };
        }
        let mut needed: Vec<Operation> = mix.operations().filter_map(Operation::needs).collect();
        needed.dedup();
        for operation in needed {
            let setup = Scenario { connections: 4, pipeline: 64, ..scenario.clone() };
            let each = Pace::Each { keys: scenario.keys };
            let mut plan = self.plan(&setup, Mix::only(operation), choice, database, each);
            plan.protocol.on_wrong = OnWrong::Stop;
            let outcome = run::run(&plan)?;
            let replies = outcome.tally.all_right;
            if outcome.validity != Validity::Good || replies != scenario.keys {
                let (subject, doing) = (self.server(choice).address.to_string(), "setting the keys that will be read");
                let message = format!("{replies} of {} keys: {}", scenario.keys, outcome.validity.verdict().0);
                return Err(BenchError::Subject { subject, doing, message });
            }
        }
        Ok(())
    }

    /// The same under the names that redis-benchmark reads.
    fn fill_external(
        &self,
        scenario: &Scenario,
        choice: &Choice,
        database: u32,
        needed: Operation,
    ) -> Result<(), BenchError> {
        const AT_ONCE: u64 = 500;
        let mut client = Client::open(&self.server(choice).greeting(database, self.options))?;
        let value = vec![b'x'; scenario.value_bytes];
        let (head, prefix): (&[&[u8]], _) = match needed {
            Operation::Hset => (&[b"HSET", b"myhash"], "element"),
            _ => (&[b"MSET"], "key"),
        };
        for first in (0..scenario.keys).step_by(AT_ONCE as usize) {
            let keys = first..(first + AT_ONCE).min(scenario.keys);
            let names: Vec<String> = keys.map(|index| format!("{prefix}:{index:012}")).collect();
            let mut arguments = head.to_vec();
            arguments.extend(names.iter().flat_map(|name| [name.as_bytes(), &value[..]]));
            client.done(&arguments)?;
        }
        client.leave();
        Ok(())
    }

    /// The knee of each server in turn.
    fn search(&mut self, scenario: &Scenario, objective: Objective, report: &mut Report) -> Result<(), BenchError> {
        let options = self.options;
        report.condition("objective", objective.to_string());
        let bounds = Bounds {
            start: options.rate.unwrap_or(1000.0),
            max: options.max_rate,
            precision: 0.03,
            repeats: options.rounds,
        };
        let mut table = Table::new("search: climb, bisect, repeat");
        for (choice, database) in &scenario.servers {
            self.fill(scenario, choice, *database, Generator::Own)?;
            let Work::Requests(mix) = &scenario.work else { continue };
            let durability = self.server(choice).durability(*database, options)?;
            let server = format!("{} db {database} ({durability})", name(choice, self.server(choice)));
            let knee = search::find_knee(&bounds, |rate| {
                self.streams += 1;
                let pace = Pace::Open { rate, arrivals: options.arrivals };
                let plan = self.plan(scenario, mix.clone(), choice, *database, pace);
                let outcome = run::run(&Plan { give_up: objective.patience(), ..plan })?;
                let trial = objective.judge(&server, &outcome.validity, &outcome.times)?;
                let at = |percentile| micros(outcome.times.percentile(percentile));
                self.progress.step(&format!("{server} at {rate:.0}/s: p99 {} µs, {trial:?}", number(at(99.0))));
                table.row(cells! {
                    "server" => server.as_str(), "offered/s" => rate, "answered/s" => outcome.rate,
                    "p50 µs" => at(50.0), "p99 µs" => at(99.0), "p99.9 µs" => at(99.9),
                    "lag p99 µs" => micros(outcome.tally.lag.percentile(99.0)),
                    "outcome" => format!("{trial:?}").to_lowercase(),
                });
                Ok::<_, BenchError>(trial)
            })?;
            let what = format!("{server}: highest rate with {objective}, stable over {} repeats", bounds.repeats);
            report.checks.push(knee.check(what, |rate| format!("{rate:.0}/s")));
        }
        report.tables.push(table);
        Ok(())
    }
}

/// The key that a round's entries are appended to: each has one of its own, so none begins with another's entries.
fn stream_key(number: u64) -> String {
    format!("bench_stream_{}_{number}", std::process::id())
}

fn name(choice: &Choice, server: &Server) -> String {
    match choice {
        Choice::Thalweg => "thalweg".to_owned(),
        Choice::RedisNone => "redis-none".to_owned(),
        Choice::RedisAlways => "redis-always".to_owned(),
        Choice::Bare => "bare".to_owned(),
        Choice::At(_) => server.address.to_string(),
    }
}
