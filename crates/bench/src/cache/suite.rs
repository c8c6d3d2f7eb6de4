//! `thalweg bench cache`: performs the runs that the command's options request, and makes the report.

use std::{sync::Arc, time::Duration};

use thalweg_wire::{CacheCreate, DropCache, OpenCache, ServerFrame};

use super::work::{CacheWork, Operation};
use crate::{
    BenchError, Progress, Report, Spectrum,
    data::Values,
    figures::SampledLoad,
    load::{Arrivals, Pace, Rounds, Validity},
    native::{
        CallPlan, LoadOptions, NativeEndpoint, Server, ServerOptions, TransportKind,
        requests::{self},
    },
    options::{only, rate_within, scheduled, within},
    report::{Check, Table, cells},
};

/// Options of `thalweg bench cache`.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheOptions {
    #[command(flatten)]
    server: ServerOptions,
    /// Number of operations in progress at a time, over all connections.
    #[arg(long, default_value_t = 32)]
    pub concurrency: usize,
    /// Number of connections to the server.
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Number of streams on each connection. Over TCP each stream is a connection of its own.
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// Number of different keys.
    #[arg(long, default_value_t = 10_000)]
    pub keys: u64,
    /// Run only operations whose name contains this text, such as "get" or "256 B".
    #[arg(long)]
    pub only: Option<String>,
    /// Operations per second by a schedule, independent of the server's replies. Without it the next operation follows
    /// a reply.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Distribution of the scheduled operations over time: constant, poisson, ramp:FROM:TIME (the rate changes evenly
    /// from FROM/s to --rate within TIME after the warm-up), step:FROM:TIME (FROM/s until TIME after the warm-up, then
    /// --rate), or replay:FILE (the times in seconds on the lines of FILE, stretched to --rate on average and
    /// repeated).
    #[arg(long, default_value_t)]
    pub arrivals: Arrivals,
    /// Capacity of the cache in bytes.
    #[arg(long, default_value_t = 128 << 20)]
    pub cache_bytes: u64,
    #[command(flatten)]
    load: LoadOptions,
}

/// An operation of the suite, with the rate in operations per second that another system's authors published for it.
/// The project's documents call that benchmark row F. Its authors used QUIC with 8 connections of 4 streams each, and
/// kept 32 operations in progress.
struct Row {
    name: &'static str,
    operation: Operation,
    value_bytes: usize,
    published: f64,
}

const ROWS: [Row; 5] = [
    Row { name: "put 0 B", operation: Operation::Put, value_bytes: 0, published: 184_000.0 },
    Row { name: "put 256 B", operation: Operation::Put, value_bytes: 256, published: 155_000.0 },
    Row { name: "put 4 KB", operation: Operation::Put, value_bytes: 4096, published: 78_000.0 },
    Row { name: "get hit 256 B", operation: Operation::Hit, value_bytes: 256, published: 166_000.0 },
    Row { name: "get miss", operation: Operation::Miss, value_bytes: 256, published: 179_000.0 },
];

/// Goal over TCP: rate of each operation, as a multiple of the rate that another system's authors published for it (row
/// F of docs/performance.md).
const TIMES_ROW_F: f64 = 2.0;

impl CacheOptions {
    fn check(&self) -> Result<(), BenchError> {
        self.load.check()?;
        within("--connections, --streams", self.connections.saturating_mul(self.streams), 20_000)?;
        within("--concurrency", self.concurrency, 1 << 20)?;
        within("--keys", self.keys, 100_000_000)?;
        rate_within(self.rate, 100_000_000)?;
        scheduled(self.arrivals, self.rate.is_some())
    }
}

/// Runs the cache suite and returns its report.
pub fn run(options: &CacheOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let rows = only(ROWS.iter().collect(), options.only.as_deref(), |row| row.name)?;
    let (mut report, scratch) = Report::begin_below("cache", options.server.start.dir.as_deref())?;
    let server = Server::connect_or_start(&options.server, &scratch, &[], progress)?;
    report.condition("server", server.name());
    report.condition("server build", server.build());
    report.condition("durability", "none: caches are in memory only");
    report.condition("load", options.load.describe());
    report.condition("windows", options.load.describe_windows());
    report.condition("keys", format!("{} of 14 B, at random; each answer compared", options.keys));
    report.condition(
        "concurrency",
        format!("{} over {} connections × {} streams", options.concurrency, options.connections, options.streams),
    );
    let pace = Pace::of_rate(options.rate, options.arrivals);
    report.condition("pace", pace.name("/s"));
    let mut figures =
        Table::new("figures: medians of the rounds; times from the moment an operation was due to its reply");
    for carrier in &options.server.transport {
        let plan = CallPlan {
            place: server.place(*carrier)?,
            connections: options.connections,
            streams: options.streams,
            in_flight: options.concurrency,
            pace,
            load: options.load.clone(),
            server: server.process,
            fsyncs: None,
        };
        for row in &rows {
            let measured = rounds(options, &plan, row, progress)?;
            report.samples.extend(sampled(options, &plan, row).samples(&measured.outcomes));
            add(&mut figures, &mut report, &plan, row, &measured);
        }
    }
    report.tables.push(figures);
    Ok(report.finish())
}

/// Describes the load of one operation, for storing its measured values in the report. Only values of equal loads can
/// be compared.
fn sampled(options: &CacheOptions, plan: &CallPlan, row: &Row) -> SampledLoad {
    let (CacheOptions { concurrency, connections, streams, keys, .. }, pace) = (options, plan.pace);
    let scenario = format!(
        "{}, {}, {}, {concurrency} at a time over {connections} connections × {streams} streams, {keys} keys, {}",
        row.name,
        plan.place.carrier.name(),
        pace.name("/s"),
        plan.load.describe_run()
    );
    let durability = if row.operation == Operation::Put { "none" } else { "-" };
    SampledLoad { scenario, durability: durability.to_owned(), pace, unit: "operation" }
}

fn rounds(
    options: &CacheOptions,
    plan: &CallPlan,
    row: &Row,
    progress: &mut dyn Progress,
) -> Result<Rounds<()>, BenchError> {
    let cache = open(&plan.place, options.cache_bytes, row.value_bytes)?;
    let values = Arc::new(Values::new(row.value_bytes, options.load.seed));
    let work = |operation, channel| {
        CacheWork::new(cache, operation, options.keys, Arc::clone(&values), options.load.seed, channel)
    };
    if row.operation == Operation::Hit {
        fill(plan, options.keys, |channel| work(Operation::Put, channel))?;
    }
    let mut rounds = Rounds::default();
    for round in 1..=options.load.rounds {
        let (outcome, _) = requests::run(plan, |channel| work(row.operation, channel))?;
        let carrier = plan.place.carrier.name();
        progress.step(&format!("{}, {carrier} round {round}: {}", row.name, outcome.summary("/s")));
        rounds.push(outcome);
    }
    // All caches of a server share one bound. Dropping this cache leaves space for the cache of the next row.
    drop_cache(&plan.place, cache)?;
    Ok(rounds)
}

/// Creates a cache on the server for values of a given size, and returns its id.
fn open(place: &NativeEndpoint, max_bytes: u64, value_bytes: usize) -> Result<u32, BenchError> {
    let name = format!("bench-{}-{value_bytes}", std::process::id());
    let request = OpenCache { create: CacheCreate::IfMissing, max_bytes, name: &name };
    place.ask("opening a cache", &request, |frame| match frame {
        ServerFrame::CacheOpened(opened) => Some(opened.cache),
        _ => None,
    })
}

fn drop_cache(place: &NativeEndpoint, cache: u32) -> Result<(), BenchError> {
    place.ask("dropping a cache", &DropCache { cache }, |frame| match frame {
        ServerFrame::CacheDone(_) => Some(()),
        _ => None,
    })
}

/// Puts each of the keys `0..keys` into the cache once, before the measurement.
fn fill(plan: &CallPlan, keys: u64, work: impl Fn(usize) -> CacheWork + Sync) -> Result<(), BenchError> {
    let setup = CallPlan::setup(&plan.place, 64, Duration::from_secs(60), &plan.load);
    let (outcome, _) = requests::run(&setup, |channel| work(channel).each(0..keys))?;
    match (outcome.validity, outcome.tally.all_right) {
        (Validity::Good, put) if put == keys => Ok(()),
        (how, put) => {
            let message = format!("{put} of {keys} keys put, {}", how.verdict().0);
            Err(BenchError::subject(plan.place.endpoint.address(), "filling the cache")(message))
        }
    }
}

fn add(figures: &mut Table, report: &mut Report, plan: &CallPlan, row: &Row, rounds: &Rounds<()>) {
    let (carrier, rate) = (plan.place.carrier, rounds.rate());
    let of_published = rate.median / row.published;
    figures.row(cells! {
        "operation" => row.name, "transport" => carrier.name(), "value B" => row.value_bytes,
        "operations/s" => rate.median, "± MAD" => rate.mad, "p50 µs" => rounds.time_us(50.0),
        "p90 µs" => rounds.time_us(90.0), "p95 µs" => rounds.time_us(95.0), "p99 µs" => rounds.time_us(99.0),
        "p99.9 µs" => rounds.time_us(99.9),
        "max µs" => rounds.time_us(100.0),
        "server CPU s/M" => rounds.median(|outcome| outcome.server_cpu(outcome.tally.all_right)),
        "generator CPU s/M" => rounds.median(|outcome| outcome.generator_cpu(outcome.tally.all_right)),
        "generator busy %" => rounds.busy_percent(), "server peak RSS MiB" => rounds.peak_rss(),
        "published/s" => row.published, "÷ published" => of_published, "verdict" => rounds.verdict(),
    });
    let what = format!("{}, {}", row.name, carrier.name());
    report.spectra.extend(rounds.outcomes.last().and_then(|last| Spectrum::of(what.as_str(), &last.times)));
    report.checks.push(rounds.check(&what, "all answered, rightly"));
    if carrier == TransportKind::Tcp && plan.pace == Pace::Closed {
        report.checks.push(Check::at_least(what, of_published, TIMES_ROW_F, " × the published rate"));
    }
}
