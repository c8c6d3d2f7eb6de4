//! `thalweg bench scenario`: performs the runs that the command's options request, and makes the report.
//!
//! Owns: the order of setup, rounds, searches, profiles and the final comparison, for any protocol. Does not own:
//! reaching or starting a server (`targets`), the choice and judgement of operations (`work`), the tables (`tables`),
//! or the words (`words`).

use std::sync::Arc;

use super::{
    embedded::Embedded,
    feed_runs::{Arrivals, FeedRun},
    file::{Distribution, Scenario},
    mix::Kind,
    options::{GIVE_UP, ScenarioOptions},
    protocols::WireProtocol,
    tables::{operations, run_table},
    work::{CacheKeys, Counts, Draws, ScenarioPhase, Workload},
};
use crate::{
    BenchError, Progress, Report, Spectrum,
    account::{Account, SYNC_METRIC, cost_row, cost_table, disk_table},
    latency::{Latencies, micros, nanos},
    load::{
        self, Bounds, Faults, LEAST_PATIENCE, Merge as _, Objective, Outcome, Pace, Plan, Rounds, Trial, Validity,
        feeds::FeedFaults,
        find_knee,
        live::FsyncCount,
        pairs::{Codec, Ledger, Records},
    },
    profiling::{LONGEST_PROFILE, Profiler},
    random::KeyChooser,
    report::{Table, cells, number},
    saturation::{Evidence, SearchEvidence},
    search_report::{self, SearchCourse},
    server::{Metrics, Stages, Target, TimedRequests, add_stages},
};

/// Rate in operations per second at which a search begins if neither the options nor the file state a rate.
const SEARCH_START: f64 = 1000.0;

/// Runs a scenario and returns its report.
pub fn run(options: &ScenarioOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    let suite = Suite::new(options)?;
    let (mut report, scratch) = Report::begin_below("scenario", options.server.start.dir.as_deref())?;
    match options.protocol() {
        WireProtocol::Http if suite.scenario.http.is_some() => {
            suite.measure(&suite.by_templates(&scratch, progress)?, &mut report, progress)?;
        }
        WireProtocol::Http => suite.measure(&suite.over_http(&scratch, progress)?, &mut report, progress)?,
        WireProtocol::Resp => suite.measure(&suite.over_resp(&scratch, progress)?, &mut report, progress)?,
        WireProtocol::Native | WireProtocol::NativeTls | WireProtocol::NativeQuic => {
            suite.measure(&suite.over_native(&scratch, progress)?, &mut report, progress)?;
        }
        WireProtocol::Embedded => suite.measure(&suite.in_process(&scratch)?, &mut report, progress)?,
        WireProtocol::Nats | WireProtocol::Jetstream => {
            suite.measure(&suite.over_nats(&scratch)?, &mut report, progress)?;
        }
    }
    Ok(report.finish())
}

/// Values of the keys, and the ledgers of all writes. All runs of the suite share them.
pub(super) struct Data {
    pub records: Arc<Records>,
    /// Ledger of the writes to the keyspace's keys.
    pub ledger: Arc<Ledger>,
    /// Ledger of the puts and deletes of the cache's keys.
    pub cache_ledger: Arc<Ledger>,
}

/// A server that a scenario is run on, over one protocol.
pub(super) struct Subject<C> {
    /// Encodes the requests of the runs, and decodes the replies.
    pub codec: C,
    /// Encodes the requests that load the keys before the runs.
    pub loader: C,
    /// Encodes the requests to the cache; `None` if the mix uses no cache.
    pub cache: Option<C>,
    /// Durability in words of the writes that load the keys before the runs.
    pub loaded: &'static str,
    /// Durability of the writes in the runs.
    pub durability: String,
    /// Name and address of the server.
    pub name: String,
    /// Stream, group and subject; `None` if the mix uses none of them. They are removed before the server is stopped.
    pub feed: Option<FeedRun>,
    /// The server, if it has Thalweg's HTTP port; otherwise `None`.
    pub target: Option<Target>,
    /// The embedded engine, if the scenario runs on an engine in this process; otherwise `None`.
    pub embedded: Option<Embedded>,
    /// Id of the server's process; `None` if it is not known.
    pub process: Option<u32>,
    pub profiler: Option<Profiler>,
}

impl<C> Subject<C> {
    /// Returns the source of the number of the log's fsyncs so far; `None` if the server does not offer it.
    fn fsyncs(&self) -> Option<FsyncCount> {
        match &self.embedded {
            Some(embedded) => Some(embedded.fsync_count()),
            None => self.target.as_ref().map(Target::fsyncs),
        }
    }

    /// Reads the server's metrics. For an engine in this process, these have only the number of fsyncs.
    pub(super) fn metrics(&self) -> Option<Metrics> {
        match &self.embedded {
            Some(embedded) => Some(Metrics::parse(&format!("{SYNC_METRIC} {}", embedded.fsyncs()))),
            None => self.target.as_ref()?.metrics(),
        }
    }
}

/// A scenario for one server, with the values and the ledgers of all runs on it.
pub(super) struct Suite {
    pub options: ScenarioOptions,
    pub scenario: Scenario,
    pub data: Data,
}

impl Suite {
    /// Creates the scenario that the options name, before any run.
    pub(super) fn new(options: &ScenarioOptions) -> Result<Self, BenchError> {
        let scenario = options.scenario()?;
        let data = Data {
            records: Arc::new(Records::new(scenario.value_bytes.clone(), options.seed)),
            ledger: Arc::new(Ledger::new(scenario.keys.count)),
            cache_ledger: Arc::new(Ledger::new(scenario.keys.count)),
        };
        Ok(Self { options: options.clone(), scenario, data })
    }

    fn measure<C: Codec>(
        &self,
        subject: &Subject<C>,
        report: &mut Report,
        progress: &mut dyn Progress,
    ) -> Result<(), BenchError> {
        self.describe(subject, report);
        self.prepare(subject, progress)?;
        if let Some(objective) = &self.options.search {
            return self.search(subject, objective, report, progress);
        }
        let (mut account, mut rounds, mut arrivals) = (Account::default(), Rounds::default(), Arrivals::default());
        for round in 1..=self.options.rounds {
            let plan = self.plan(subject, ScenarioPhase::Run, self.scenario.pace());
            let outcome = account.around(|| subject.metrics(), || run_once(subject, &plan, &mut arrivals))?;
            progress.step(&format!("{} round {round}: {}", self.options.name(), outcome.summary("/s")));
            rounds.push(outcome);
        }
        report.samples.extend(self.sampled(subject).samples(&rounds.outcomes));
        report.summary.push(self.sentence(subject, &rounds));
        report.tables.push(operations(&self.scenario.mix, &rounds));
        report.tables.extend(subject.feed.as_ref().map(|feed| feed.table(&rounds, &arrivals)));
        report.tables.push(run_table(&rounds, account.fsyncs_per_run()));
        let mut costs = cost_table();
        costs.row(cost_row(self.options.name(), &rounds.outcomes.iter().collect::<Vec<_>>(), &account));
        report.tables.push(costs);
        let disk_use = subject.target.as_ref().map_or_else(Vec::new, Target::disk_use);
        report.tables.extend(disk_table(&disk_use));
        let stages = self.write_stages(subject, &rounds, &account);
        add_stages(report, "stages of a durable write", stages.as_slice());
        let spectrum = |last: &Outcome<Counts>| last.spectrum("percentile spectrum of the last run, all operations");
        report.tables.extend(rounds.outcomes.last().map(spectrum));
        if let Some(last) = rounds.outcomes.last() {
            let name = self.options.name();
            report.spectra.extend(Spectrum::of(format!("{name}, all operations"), &last.times));
            for kind in self.scenario.mix.kinds() {
                report
                    .spectra
                    .extend(Spectrum::of(format!("{name}, {}", kind.name()), &last.tally.times[kind as usize]));
            }
        }
        let what =
            format!("{} ({}, {})", self.options.name(), self.scenario.pace().name("/s"), self.durability(subject));
        report.checks.push(rounds.check(&what, "all answered, rightly, in step"));
        self.verify(subject, &what, &arrivals, report, progress)?;
        self.profile(subject, (&what, ""), self.scenario.pace(), report, progress)
    }

    /// Runs the scenario once more for each kind of profile that the options request.
    fn profile<C: Codec>(
        &self,
        subject: &Subject<C>,
        label: (&str, &str),
        pace: Pace,
        report: &mut Report,
        progress: &mut dyn Progress,
    ) -> Result<(), BenchError> {
        let Some(profiler) = &subject.profiler else { return Ok(()) };
        let plan = self.plan(subject, ScenarioPhase::Run, pace);
        let plan = Plan { duration: plan.duration.min(LONGEST_PROFILE), ..plan };
        let run = || run_once(subject, &plan, &mut Arrivals::default()).map(|outcome| outcome.rate);
        profiler.run(label, report, progress, run)
    }

    /// Divides the average time of the scenario's durable writes into stages, such as the queue and the fsync; `None`
    /// if it has no durable writes.
    fn write_stages<C>(&self, subject: &Subject<C>, rounds: &Rounds<Counts>, account: &Account) -> Option<Stages> {
        // A read-modify-write consists of two requests, so its time is not the time of a write.
        let is_write = |kind: &Kind| matches!(kind, Kind::Update | Kind::Insert);
        let kinds = || self.scenario.mix.kinds().filter(is_write);
        let response_us = rounds.median(|outcome| {
            let times = Latencies::sum(kinds().map(|kind| &outcome.tally.times[kind as usize]));
            if times.count() == 0 { f64::NAN } else { micros(times.mean()) }
        });
        let puts: TimedRequests<'_> = match self.options.protocol() {
            WireProtocol::Http => ("thalweg_http_request_duration_seconds", &[("operation", "kv_put")]),
            _ => ("", &[]),
        };
        let label = format!("{} ({})", self.options.name(), self.durability(subject));
        account.durable_writes(&label, puts, Some(response_us).filter(|time| *time > 0.0))
    }

    /// Searches for the highest rate of the scenario that meets the objective, and adds the result to the report.
    fn search<C: Codec>(
        &self,
        subject: &Subject<C>,
        objective: &Objective,
        report: &mut Report,
        progress: &mut dyn Progress,
    ) -> Result<(), BenchError> {
        let (options, load) = (&self.options, &self.scenario.load);
        report.condition("objective", objective.to_string());
        let start = load.rate.unwrap_or(SEARCH_START);
        let bounds = Bounds { start, max: options.max_rate, precision: 0.03, repeats: options.rounds };
        let mut table = Table::new("search: climb, bisect, confirm both ends");
        let (mut arrivals, mut good, mut resources) = (Arrivals::default(), Vec::new(), SearchEvidence::default());
        let mut course = SearchCourse::new(objective);
        let address = subject.target.as_ref().map(|target| target.address);
        let knee = find_knee(&bounds, |rate| {
            let plan = self.plan(subject, ScenarioPhase::Run, Pace::Open { rate, arrivals: load.arrivals });
            let plan = Plan { give_up: objective.patience(LEAST_PATIENCE), ..plan };
            let mut account = Account::default();
            let outcome = account.around(|| subject.metrics(), || run_once(subject, &plan, &mut arrivals))?;
            resources.push(rate, Evidence::of(&outcome, &account, address));
            let is_serious =
                outcome.tally.own.wrong_values > 0 || outcome.tally.own.faults.any() || outcome.tally.lost > 0;
            let faults = if is_serious { Faults::Serious } else { Faults::Refusals };
            let trial = objective.judge(&subject.name, &outcome, faults)?;
            progress.step(&format!("{} at {rate:.0}/s: {}, {trial}", options.name(), outcome.summary("/s")));
            table.row(cells! {
                "offered/s" => rate, "answered/s" => outcome.rate, "p50 µs" => outcome.time_us(50.0),
                "p95 µs" => outcome.time_us(95.0), "p99 µs" => outcome.time_us(99.0),
                "p99.9 µs" => outcome.time_us(99.9), "max µs" => outcome.time_us(100.0),
                "lag p99 µs" => outcome.lag_us(), "outcome" => trial.to_string(),
            });
            course.push(rate, &outcome);
            if trial == Trial::Pass {
                good.push((rate, outcome.times));
            }
            Ok::<_, BenchError>(trial)
        })?;
        report.tables.push(table);
        report.plots.push(course.plot("search", "response times by rate", "operations/s"));
        let what = format!("{}, durability: {}", options.name(), self.durability(subject));
        report.summary.push(search_report::sentence(&knee, objective, &what, "operations/s"));
        resources.conclude(&knee, report);
        let at_knee = good.iter().rev().find(|(rate, _)| Some(*rate) == knee.rate);
        report.spectra.extend(at_knee.and_then(|(rate, times)| {
            Spectrum::of(format!("{} at the knee, {}/s", options.name(), number(*rate)), times)
        }));
        let what = format!(
            "{} ({}): highest rate with {objective}, stable over {} repeats",
            options.name(),
            self.durability(subject),
            bounds.repeats
        );
        report.checks.push(knee.check(what, |rate| format!("{rate:.0}/s")));
        self.verify(subject, options.name(), &arrivals, report, progress)?;
        let Some(knee) = knee.rate else { return Ok(()) };
        for (words, place, rate) in [("at the knee", "", knee), ("below the knee", "-below", knee / 2.0)] {
            let label = format!("{} {words}, {}/s", options.name(), number(rate));
            let pace = Pace::Open { rate, arrivals: load.arrivals };
            self.profile(subject, (&label, place), pace, report, progress)?;
        }
        Ok(())
    }

    /// Writes the keys and the records that the runs need, before the first run.
    pub(super) fn prepare<C: Codec>(
        &self,
        subject: &Subject<C>,
        progress: &mut dyn Progress,
    ) -> Result<(), BenchError> {
        let mix = &self.scenario.mix;
        for (is_used, phase) in
            [(mix.has(Kind::uses_keyspace), ScenarioPhase::Load), (mix.has(Kind::uses_cache), ScenarioPhase::Warm)]
        {
            if is_used {
                self.load_keys(subject, phase, progress)?;
            }
        }
        self.fill_stream(subject, progress)
    }

    /// Writes each key once into the keyspace or the cache, before the runs.
    fn load_keys<C: Codec>(
        &self,
        subject: &Subject<C>,
        phase: ScenarioPhase,
        progress: &mut dyn Progress,
    ) -> Result<(), BenchError> {
        let keys = self.scenario.keys.count;
        progress.step(&format!("loading {keys} keys"));
        let plan = self.plan(subject, phase, Pace::Each { keys });
        let outcome = load::run(&Plan { pipeline: C::PIPELINE, ..plan })?;
        if outcome.validity == Validity::Good && outcome.tally.right == keys {
            return Ok(());
        }
        let message = format!("{} of {keys} keys: {}", outcome.tally.right, outcome.validity.verdict().0);
        Err(BenchError::subject(&subject.name, "loading the keys")(message))
    }

    /// Appends the records that the stream has before the runs.
    fn fill_stream<C: Codec>(&self, subject: &Subject<C>, progress: &mut dyn Progress) -> Result<(), BenchError> {
        let (records, batch) = (self.scenario.feeds.records, self.scenario.feeds.sizes.batch);
        if records == 0 {
            return Ok(());
        }
        progress.step(&format!("appending {records} records"));
        let appends = records.div_ceil(u64::from(batch));
        let plan = self.plan(subject, ScenarioPhase::Fill, Pace::Each { keys: appends });
        let outcome = load::run(&Plan { pipeline: C::PIPELINE, ..plan })?;
        if outcome.validity == Validity::Good && outcome.tally.right == appends {
            return Ok(());
        }
        let message = format!("{} of {appends} appends: {}", outcome.tally.right, outcome.validity.verdict().0);
        Err(BenchError::subject(&subject.name, "appending records")(message))
    }

    /// Checks the stream and the consumer group on the server after the runs: reads the whole stream, and fetches all
    /// records that the group has not delivered. Adds the result to the report.
    pub(super) fn verify<C: Codec>(
        &self,
        subject: &Subject<C>,
        what: &str,
        arrivals: &Arrivals,
        report: &mut Report,
        progress: &mut dyn Progress,
    ) -> Result<(), BenchError> {
        let Some(feed) = &subject.feed else { return Ok(()) };
        let mut faults = FeedFaults::default();
        let mut pass = |phase, requests| {
            let outcome = load::run(&self.plan(subject, phase, Pace::Each { keys: requests }))?;
            faults.merge(outcome.tally.own.faults);
            Ok::<_, BenchError>(())
        };
        if self.scenario.mix.has(Kind::uses_stream) {
            progress.step(&format!("reading {} records again", feed.feed.appends.acked_records()));
            pass(ScenarioPhase::Verify, feed.feed.pages())?;
        }
        let fetch_records = u64::from(self.scenario.feeds.sizes.fetch_records);
        while self.scenario.mix.share(Kind::Fetch) > 0.0 {
            let (left, delivered) = (feed.feed.undelivered(), feed.feed.group.delivered());
            if left == 0 {
                break;
            }
            progress.step(&format!("fetching {left} records that are left"));
            pass(ScenarioPhase::Drain, left.div_ceil(fetch_records))?;
            if feed.feed.group.delivered() == delivered {
                break;
            }
        }
        report.checks.extend(feed.checks(what, arrivals, faults));
        Ok(())
    }

    pub(super) fn plan<C: Codec>(&self, subject: &Subject<C>, phase: ScenarioPhase, pace: Pace) -> Plan<Workload<C>> {
        let Scenario { load, keys, scan_rows, mix, .. } = &self.scenario;
        let codec = if phase == ScenarioPhase::Load { &subject.loader } else { &subject.codec };
        let chooser = match keys.distribution {
            Distribution::Uniform => KeyChooser::Uniform { keys: keys.count.max(1) },
            Distribution::Zipf => KeyChooser::zipf(keys.count, keys.theta),
            Distribution::Latest => KeyChooser::ranks(keys.count, keys.theta),
            Distribution::Sequential => KeyChooser::sequential(keys.count),
        };
        Plan {
            protocol: Workload {
                codec: codec.clone(),
                records: Arc::clone(&self.data.records),
                ledger: Arc::clone(&self.data.ledger),
                feed: subject.feed.as_ref().map(|feed| Arc::clone(&feed.feed)),
                cache: subject
                    .cache
                    .clone()
                    .map(|codec| CacheKeys { codec, ledger: Arc::clone(&self.data.cache_ledger) }),
                mix: mix.clone(),
                scan_rows: scan_rows.clone(),
                draws: if keys.distribution == Distribution::Latest { Draws::Age } else { Draws::Index },
                phase,
            },
            connections: load.connections,
            workers: load.threads,
            pipeline: 1,
            pace,
            keys: chooser,
            warmup: load.warmup,
            duration: load.duration,
            window: self.options.window,
            give_up: GIVE_UP,
            max_lag: self.options.max_lag,
            seed: self.options.seed,
            server: subject.process,
            fsyncs: subject.fsyncs(),
        }
    }
}

/// Performs one run. If the mix publishes, the subscribers run beside it.
pub(super) fn run_once<C: Codec>(
    subject: &Subject<C>,
    plan: &Plan<Workload<C>>,
    arrivals: &mut Arrivals,
) -> Result<Outcome<Counts>, BenchError> {
    match &subject.feed {
        Some(feed) => feed.run(nanos(plan.warmup), arrivals, || load::run(plan)),
        None => load::run(plan),
    }
}
