//! `thalweg bench streams`: performs the runs that the command's options request, and makes the report.
//!
//! Owns: the options, the order of the runs, the setup and removal of streams, and reading back the appended records.
//! Does not own: appends and reads (`append`, `read`), the segments that the server reuses (`retention`), or the table
//! and checks (`report`).

use std::{sync::Arc, time::Duration};

use thalweg_types::{
    Durability, StreamId,
    command::{StreamConfig, encode_create_stream, encode_delete_stream},
};
use thalweg_wire::{Level, Permit, RemainingBytes, ServerFrame, Write};

use super::{
    append::AppendWork,
    read::{AtStreamEnd, Checker, ReadWork, tail},
    report::{self, RoundProbes, StreamFigures},
    retention::Retention,
    scenario::{Scenario, StreamWork},
};
use crate::{
    BenchError, Progress, Report,
    figures::SampledLoad,
    latency::{Latencies, micros},
    load::{Pace, Tally, Validity, run_threads, unusable_clocks},
    native::{
        CallPlan, DEFAULT_MAX_LAG, Depth, Faults, HEAD_BYTES, LoadOptions, NativeEndpoint, Payloads, Server,
        ServerOptions, Share, SubscriberAccount, bare,
        requests::{self, Outcome},
    },
    options::{only, parse_duration, require, within},
    probe::{Probe, Sync},
    usage::Clocks,
};

/// Options of `thalweg bench streams`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("max_lag", |arg| arg.hide(true)))]
pub struct StreamsOptions {
    #[command(flatten)]
    server: ServerOptions,
    /// Durability level of each append.
    #[arg(long, default_value_t = Durability::Disk)]
    pub durability: Durability,
    /// Run only scenarios whose name contains this text, such as "publish 1024" or "tail".
    #[arg(long)]
    pub only: Option<String>,
    /// Bytes of a record, at least 24: run one publish scenario with such records instead of the fixed scenarios.
    #[arg(long)]
    pub payload: Option<usize>,
    /// Number of records in each request of the scenario that --payload describes.
    #[arg(long, default_value_t = 1, requires = "payload")]
    pub batch: u32,
    /// Number of publishers in the scenario that --payload describes, each on a connection of its own.
    #[arg(long, default_value_t = 1, requires = "payload")]
    pub publishers: usize,
    /// Number of requests that each publisher has in progress in the scenario that --payload describes.
    #[arg(long, default_value_t = 1, requires = "payload")]
    pub in_flight: usize,
    /// Number of records in the stream that the scenarios with readers read.
    #[arg(long, default_value_t = 500_000)]
    pub records: u64,
    /// Retain this many MiB of each published stream, and publish before the first round until the log reuses segments,
    /// as a server's log does after a while; 0: retain everything.
    #[arg(long, default_value_t = 0)]
    pub retention_mib: u64,
    /// Duration of each measurement of the machine's raw speed before a run, without a server: loopback stream,
    /// loopback round trip, disk; 0: none.
    #[arg(long, default_value = "300ms", value_parser = parse_duration)]
    pub bare: Duration,
    #[command(flatten)]
    load: LoadOptions,
}

/// Number of records in a request while a stream is filled during setup.
const FILL_BATCH: u32 = 1000;
/// Size in bytes of the records that setup publishes until the log reuses segments.
const SEASON_RECORD_BYTES: usize = 1024;
/// Number of segments that the log must have reused before the measurements begin.
const REUSED: f64 = 16.0;
/// Interval at which setup reads the number of reused segments.
const SEASON_STEP: Duration = Duration::from_secs(1);
/// Maximum number of times that setup reads the number of reused segments before it gives up.
const SEASON_STEPS: u32 = 60;
const SETUP_TIME: Duration = Duration::from_secs(60);
/// Size in bytes of the file with which the disk's raw speed is measured.
const PROBE_BYTES: u64 = 64 << 20;
/// Credit window of a tail: messages and bytes that the server may send ahead of the reader.
const WINDOW: Permit = Permit { messages: 65_536, bytes: 16 << 20 };
/// Maximum size of a request in bytes.
const MAX_REQUEST_BYTES: usize = 15 << 20;

impl StreamsOptions {
    fn check(&self) -> Result<(), BenchError> {
        self.load.check()?;
        let is_usual = parse_duration(DEFAULT_MAX_LAG) == Ok(self.load.max_lag);
        require(is_usual, "--max-lag", "these runs have no schedule that the generator could be late for")?;
        let fits = self.payload.is_none_or(|bytes| bytes >= HEAD_BYTES);
        require(fits, "--payload", format!("must be at least {HEAD_BYTES}"))?;
        let bytes = self.payload.unwrap_or(0).saturating_add(5).saturating_mul(self.batch as usize);
        within("--payload, --batch: bytes of a request", bytes.max(1), MAX_REQUEST_BYTES)?;
        within("--publishers", self.publishers, 10_000)?;
        within("--in-flight", self.in_flight, 4096)?;
        within("--records", self.records, 1 << 30)?;
        let why = "at none the client does not learn where records lie, so they can't be read back: use at least os";
        require(self.durability >= Durability::Os, "--durability", why)
    }
}

/// Runs the streams suite and returns its report.
pub fn run(options: &StreamsOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("streams", options.server.start.dir.as_deref())?;
    let scenarios = match options.payload {
        Some(bytes) => vec![Scenario::of(bytes, options.batch, options.publishers, options.in_flight)],
        None => Scenario::goals(),
    };
    let scenarios = only(scenarios, options.only.as_deref(), |scenario| &scenario.name)?;
    let server = Server::connect_or_start(&options.server, &scratch, &[], progress)?;
    report.condition("server", server.name());
    report.condition("server build", server.build());
    report.condition("durability", options.durability.name());
    report.condition("load", options.load.describe());
    let tails = scenarios.iter().any(|scenario| scenario.what == StreamWork::Tail);
    let of_tails = if tails { "; a tail has none, because it ends when it has read the stream" } else { "" };
    report.condition("windows", format!("{}{of_tails}", options.load.describe_windows()));
    let retention = Retention(Some(options.retention_mib << 20).filter(|bytes| *bytes > 0));
    report.condition("retention", retention.describe());
    let probe = Probe::create(scratch.path(), PROBE_BYTES)?;
    let place = server.place(options.server.transport[0])?;
    let mut suite = Suite { options, server: &server, place, probe, progress, streams: 0, retention };
    if retention.0.is_some() {
        suite.prefill()?;
    }
    let mut figures = report::table();
    for carrier in &options.server.transport {
        suite.place = server.place(*carrier)?;
        for scenario in &scenarios {
            let measured = suite.scenario(scenario)?;
            report.samples.extend(suite.sampled(scenario).samples(&measured.rounds.outcomes));
            report::add(&mut figures, &mut report, scenario, *carrier, &measured);
        }
    }
    report::notes(&mut report);
    report.tables.push(figures);
    Ok(report.finish())
}

/// Decides if the results of a tail (a reader that subscribes to the stream) are valid: the records must have no
/// faults, and the machine's clocks must have been usable.
fn judge_tail(faults: &Faults, clocks: &Clocks) -> Validity {
    if faults.any() {
        return Validity::Errors(faults.to_string());
    }
    unusable_clocks(clocks).unwrap_or(Validity::Good)
}

struct Suite<'a> {
    options: &'a StreamsOptions,
    server: &'a Server,
    /// Address of the measured native port, and the transport to it.
    place: NativeEndpoint,
    probe: Probe,
    progress: &'a mut dyn Progress,
    streams: u64,
    retention: Retention,
}

impl Suite<'_> {
    fn scenario(&mut self, scenario: &Scenario) -> Result<StreamFigures, BenchError> {
        let payloads = Arc::new(Payloads::new(scenario.payload_bytes, self.options.load.seed, Depth::Spot));
        let mut measured = StreamFigures::default();
        let consumed = match scenario.what {
            StreamWork::Publish { .. } => None,
            StreamWork::Poll | StreamWork::Tail => Some(self.fill(&payloads)?),
        };
        for number in 1..=self.options.load.rounds {
            let (stream, round_trip_us, fdatasync_us) = self.bare(scenario)?;
            let (fsyncs, zeroed) = (self.fsyncs(), self.zeroed_bytes());
            let outcome = match (scenario.what, consumed) {
                (StreamWork::Publish { publishers, in_flight }, _) => {
                    self.publish(&payloads, scenario.batch, publishers, in_flight)?
                }
                (StreamWork::Tail, Some(filled)) => self.tail(&payloads, filled)?,
                (_, Some(filled)) => self.poll(&payloads, scenario.batch, filled)?,
                (_, None) => unreachable!("what is consumed was filled"),
            };
            let (fsyncs, zeroed) = (self.fsyncs() - fsyncs, self.zeroed_bytes() - zeroed);
            let (carrier, figures) = (self.place.carrier.name(), outcome.summary(" records/s"));
            self.progress.step(&format!("{}, {carrier} round {number}: {figures}", scenario.name));
            measured.rounds.push(outcome);
            measured.beside.push(RoundProbes { fsyncs, zeroed, stream, round_trip_us, fdatasync_us });
        }
        if let Some((stream, _)) = consumed {
            self.delete(stream)?;
        }
        Ok(measured)
    }

    /// Publishes records until the log reuses segments, before the measurements.
    fn prefill(&mut self) -> Result<(), BenchError> {
        let before = self.reused();
        let why = "needs a server that the benchmark starts, for its metrics of reused segments: leave --target out";
        require(!before.is_nan(), "--retention-mib", why)?;
        self.progress.step("publishing until the log reuses its segments");
        let payloads = Arc::new(Payloads::new(SEASON_RECORD_BYTES, self.options.load.seed, Depth::Spot));
        let stream = self.create(&self.retention.config())?;
        let setup = CallPlan::setup(&self.place, 4, SEASON_STEP, &self.options.load);
        let mut published = 0;
        for _ in 0..SEASON_STEPS {
            let work = |_| AppendWork::new(stream, Durability::Os, 0, FILL_BATCH, Arc::clone(&payloads));
            let (_, works) = requests::run(&setup, work)?;
            published += works.iter().map(AppendWork::acked).sum::<u64>();
            if self.reused() - before >= REUSED {
                return self.delete(stream);
            }
        }
        let remedy = "use a smaller --retention-mib, or --server-arg=--history-bytes=64MiB";
        let message = format!("few are after {published} records: {remedy}");
        Err(BenchError::subject(&self.server.name(), "publishing until segments are reused")(message))
    }

    /// Returns the number of segments that the log has reused; NaN if the benchmark did not start the server.
    fn reused(&self) -> f64 {
        self.server.metric("thalweg_log_segments_recycled_total")
    }

    /// Returns the number of zero bytes that the log has written into new segments; NaN if the benchmark did not start
    /// the server.
    fn zeroed_bytes(&self) -> f64 {
        self.server.metric("thalweg_log_zeroed_bytes_total")
    }

    fn fsyncs(&self) -> f64 {
        self.server.metric("thalweg_log_syncs_total")
    }

    /// Measures the machine's raw speed without a server. Returns the bytes per second of a loopback stream, the median
    /// time of a loopback round trip, and the median time of a disk write with `fdatasync`, both in microseconds. The
    /// round trip and the write have the bytes of a request. NaN means that a value was not measured.
    fn bare(&mut self, scenario: &Scenario) -> Result<(f64, f64, f64), BenchError> {
        let (time, carrier) = (self.options.bare, self.place.carrier);
        if time.is_zero() {
            return Ok((f64::NAN, f64::NAN, f64::NAN));
        }
        let stream = bare::stream(carrier, time)?;
        if !matches!(scenario.what, StreamWork::Publish { .. }) {
            return Ok((stream, f64::NAN, f64::NAN));
        }
        let p50 = |times: Latencies| micros(times.percentile(50.0));
        let bytes = scenario.batch as usize * (5 + scenario.payload_bytes) + 43;
        let round_trip = bare::round_trips(carrier, bytes, time)?;
        Ok((stream, p50(round_trip), p50(self.probe.run(&vec![7; bytes], Sync::Each, time)?.times)))
    }

    fn plan(&self, connections: usize, in_flight: usize) -> CallPlan {
        let (place, load) = (self.place.clone(), self.options.load.clone());
        let (server, fsyncs) = (self.server.process, self.server.fsyncs());
        CallPlan { place, connections, streams: 1, in_flight, pace: Pace::Closed, load, server, fsyncs }
    }

    /// Describes a scenario's load, for storing the measured values of its runs.
    fn sampled(&self, scenario: &Scenario) -> SampledLoad {
        let (records, durability) = match scenario.what {
            StreamWork::Publish { .. } => (String::new(), self.options.durability.name()),
            StreamWork::Poll | StreamWork::Tail => (format!(", a stream of {} records", self.options.records), "-"),
        };
        let retained = match self.retention {
            Retention(Some(bytes)) if scenario.writes() => format!(", {} MiB retained", bytes >> 20),
            Retention(_) => String::new(),
        };
        let (name, carrier, runs) = (&scenario.name, self.place.carrier.name(), self.options.load.describe_run());
        let words = format!("{name}, {carrier}{records}{retained}, {runs}");
        SampledLoad { scenario: words, durability: durability.to_owned(), pace: Pace::Closed, unit: "record" }
    }

    fn publish(
        &mut self,
        payloads: &Arc<Payloads>,
        batch: u32,
        publishers: usize,
        in_flight: usize,
    ) -> Result<Outcome, BenchError> {
        let stream = self.create(&self.retention.config())?;
        let (plan, level) = (self.plan(publishers, publishers * in_flight), self.options.durability);
        let work = |publisher| AppendWork::new(stream, level, publisher, batch, Arc::clone(payloads));
        let (mut outcome, works) = requests::run(&plan, work)?;
        if outcome.validity == Validity::Good {
            let acked: Vec<u64> = works.iter().map(AppendWork::acked).collect();
            outcome.validity = self.read_back(stream, payloads, &acked)?;
        }
        self.delete(stream)?;
        Ok(outcome)
    }

    /// Reads all acknowledged records of a stream, and checks them. With retention, reads only those that are certainly
    /// retained. `acked` has the number of acknowledged records of each publisher.
    fn read_back(&self, stream: StreamId, payloads: &Arc<Payloads>, acked: &[u64]) -> Result<Validity, BenchError> {
        let end = acked.iter().sum();
        let start = self.retention.safe_start(end, payloads.payload_bytes());
        let fresh = match start {
            0 => SubscriberAccount::new(Share::All, acked.len()),
            _ => SubscriberAccount::for_late_subscriber(acked.len()),
        };
        let setup = CallPlan::setup(&self.place, 1, SETUP_TIME, &self.options.load);
        let work = |_| {
            ReadWork::new(stream, FILL_BATCH, end, Arc::clone(payloads), fresh.clone(), AtStreamEnd::No).from(start)
        };
        let (read, works) = requests::run(&setup, work)?;
        let Some(work) = works.first() else { return Ok(Validity::Good) };
        let faults = work.account().faults(acked);
        let problem = match (read.validity, work.next() == end, faults.any()) {
            (Validity::Good, true, false) => return Ok(Validity::Good),
            (Validity::Good, true, true) => faults.to_string(),
            (how, _, _) => format!("{} of {end} acked records were read back: {}", work.next(), how.verdict().0),
        };
        Ok(Validity::Errors(format!("reading back what was acked: {problem}")))
    }

    /// Fills a stream with records for the scenarios with readers, before the measurements. Returns the stream and the
    /// number of its records.
    fn fill(&mut self, payloads: &Arc<Payloads>) -> Result<(StreamId, u64), BenchError> {
        let stream = self.create(&StreamConfig::default())?;
        let wanted = self.options.records;
        self.progress.step(&format!("filling a stream with {wanted} records of {} B", payloads.payload_bytes()));
        let setup = CallPlan::setup(&self.place, 4, SETUP_TIME, &self.options.load);
        let work = |_| AppendWork::new(stream, Durability::Os, 0, FILL_BATCH, Arc::clone(payloads)).until(wanted);
        let (outcome, works) = requests::run(&setup, work)?;
        match (outcome.validity, works.iter().map(AppendWork::acked).sum()) {
            (Validity::Good, filled) if filled >= wanted => Ok((stream, filled)),
            (how, filled) => {
                let message = format!("{filled} of {wanted} records: {}", how.verdict().0);
                Err(BenchError::subject(self.place.endpoint.address(), "filling a stream")(message))
            }
        }
    }

    fn poll(&self, payloads: &Arc<Payloads>, batch: u32, filled: (StreamId, u64)) -> Result<Outcome, BenchError> {
        let (stream, end) = filled;
        let fresh = SubscriberAccount::new(Share::All, 1);
        let work = |_| ReadWork::new(stream, batch, end, Arc::clone(payloads), fresh.clone(), AtStreamEnd::Yes);
        requests::run(&self.plan(1, 1), work).map(|(outcome, _)| outcome)
    }

    /// Tails a stream (reads it by a subscription) once, from its first record to its last.
    fn tail(&self, payloads: &Arc<Payloads>, (stream, end): (StreamId, u64)) -> Result<Outcome, BenchError> {
        let fail = |message: String| BenchError::subject(&self.server.name(), "tailing")(message);
        let place = &self.place;
        let line = async |_| place.line().await;
        let (mut brought, spent) = run_threads::run(1, self.server.process, line, async |line, clock| {
            let checker = Checker::new(Arc::clone(payloads), SubscriberAccount::new(Share::All, 1));
            tokio::time::timeout(SETUP_TIME, tail(line, clock, stream, end, checker, &WINDOW)).await
        })?;
        let passed = brought.remove(0).map_err(|_| fail(format!("not done after {SETUP_TIME:?}")))?;
        let (time, received_bytes, account) = passed.map_err(|error| fail(error.to_string()))?;
        let validity = judge_tail(&account.faults(&[end]), &spent.clocks);
        let tally = Tally { right: end, all_right: end, received_bytes, ..Tally::default() };
        // A reader that is always busy limits the rate, like a load generator in a closed loop.
        let outcome = Outcome::new(tally, time.as_secs_f64(), spent).paced(Pace::Closed);
        Ok(Outcome { validity, ..outcome })
    }

    fn create(&mut self, config: &StreamConfig) -> Result<StreamId, BenchError> {
        self.streams += 1;
        let name = format!("bench-{}-{}", std::process::id(), self.streams);
        let mut command = Vec::new();
        encode_create_stream(&mut command, &name, config)
            .map_err(BenchError::subject("the generator", "naming a stream"))?;
        self.command(&command, "creating a stream", |frame| match frame {
            ServerFrame::Created(created) => Some(StreamId(created.id)),
            _ => None,
        })
    }

    fn delete(&mut self, stream: StreamId) -> Result<(), BenchError> {
        let mut command = Vec::new();
        encode_delete_stream(&mut command, stream);
        self.command(&command, "deleting a stream", |frame| match frame {
            ServerFrame::Done(_) => Some(()),
            _ => None,
        })
    }

    fn command<T>(
        &self,
        command: &[u8],
        doing: &'static str,
        read: impl FnOnce(ServerFrame<'_>) -> Option<T>,
    ) -> Result<T, BenchError> {
        self.place.ask(doing, &Write { level: Level(None), command: RemainingBytes(command) }, read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_while_the_host_took_the_processors_is_void() {
        let clocks = |stolen| Clocks { seconds: 10.0, drift_seconds: 0.0, stolen };
        let none = SubscriberAccount::new(Share::All, 1).faults(&[0]);
        assert_eq!(judge_tail(&none, &clocks(Some(0.1))), Validity::Good);
        assert!(matches!(judge_tail(&none, &clocks(Some(0.5))), Validity::Clocks(_)));
        let lost = SubscriberAccount::new(Share::All, 1).faults(&[3]);
        assert!(matches!(judge_tail(&lost, &clocks(Some(0.5))), Validity::Errors(_)));
    }
}
