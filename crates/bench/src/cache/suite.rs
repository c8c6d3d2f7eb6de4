//! `thalweg bench cache`: options in, report out.

use std::{sync::Arc, time::Duration};

use thalweg_wire::{CacheCreate, DropCache, OpenCache, ServerFrame};

use super::work::{CacheWork, Operation};
use crate::{
    BenchError, Progress, Report,
    data::Values,
    latency::micros,
    load::{
        pace::Pace,
        schedule::Arrivals,
        validity::{Validity, summary},
    },
    native::{
        options::LoadOptions,
        place::{Carrier, Place},
        requests::{self, CallOutcome, CallPlan},
        server::{Server, ServerOptions},
    },
    options::{only, rate_within, within},
    report::{Check, Table, cells, mebibytes},
    stats::{Summary, median},
};

/// Options of the cache suite.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheOptions {
    #[command(flatten)]
    server: ServerOptions,
    /// Operations under way at a time, over all connections.
    #[arg(long, default_value_t = 32)]
    pub concurrency: usize,
    /// Connections.
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Streams of each; over TCP each is a connection of its own.
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// Number of different keys.
    #[arg(long, default_value_t = 10_000)]
    pub keys: u64,
    /// Only operations whose name holds this, such as "get" or "256 B".
    #[arg(long)]
    pub only: Option<String>,
    /// Operations per second, whatever the server does; without it as fast as it answers.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Spread of the operations over time.
    #[arg(long, value_enum, default_value_t)]
    pub arrivals: Arrivals,
    /// Bytes that the cache may hold.
    #[arg(long, default_value_t = 128 << 20)]
    pub cache_bytes: u64,
    #[command(flatten)]
    load: LoadOptions,
}

/// A line of row F's table: its rate is that of 8 × 4 streams over QUIC at concurrency 32.
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

/// Factor of row F's rates that TCP should reach.
const TIMES_ROW_F: f64 = 2.0;

impl CacheOptions {
    fn check(&self) -> Result<(), BenchError> {
        self.load.check()?;
        within("--connections, --streams", self.connections.saturating_mul(self.streams), 20_000)?;
        within("--concurrency", self.concurrency, 1 << 20)?;
        within("--keys", self.keys, 100_000_000)?;
        rate_within(self.rate, 100_000_000)
    }
}

/// Runs the suite.
pub fn run(options: &CacheOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let rows = only(ROWS.iter().collect(), options.only.as_deref(), |row| row.name)?;
    let (mut report, scratch) = Report::begin_below("cache", options.server.dir.as_deref())?;
    let server = Server::reach(&options.server, &scratch, None, None, progress)?;
    report.condition("server", server.name());
    report.condition("durability", "none: caches are in memory only");
    report.condition("load", options.load.describe());
    report.condition("keys", format!("{} of 14 B, at random; each answer compared", options.keys));
    report.condition(
        "concurrency",
        format!("{} over {} connections × {} streams", options.concurrency, options.connections, options.streams),
    );
    report.condition(
        "pace",
        options.rate.map_or("closed loop".to_owned(), |rate| format!("{rate:.0}/s {:?}", options.arrivals)),
    );
    let mut figures = figures();
    for carrier in &options.server.transport {
        let place = server.place(*carrier)?;
        for row in &rows {
            let rounds = rounds(options, &server, &place, row, progress)?;
            add(&mut figures, &mut report, *carrier, row, &rounds, options.rate.is_none());
        }
    }
    report.tables.push(figures);
    Ok(report.finish())
}

fn rounds(
    options: &CacheOptions,
    server: &Server,
    place: &Place,
    row: &Row,
    progress: &mut dyn Progress,
) -> Result<Vec<CallOutcome>, BenchError> {
    let cache = open(place, options.cache_bytes, row.value_bytes)?;
    let values = Arc::new(Values::new(row.value_bytes, options.load.seed));
    let work = |operation, channel| {
        CacheWork::new(cache, operation, options.keys, Arc::clone(&values), options.load.seed, channel)
    };
    let plan = plan(options, place);
    if row.operation == Operation::Hit {
        fill(&plan, options.keys, |channel| work(Operation::Put, channel))?;
    }
    let mut rounds = Vec::new();
    for round in 1..=options.load.rounds {
        let (outcome, _) = requests::run(&plan, server.process, |channel| work(row.operation, channel))?;
        let figures = summary(outcome.rate, "/s", &outcome.counts.times, &outcome.validity);
        progress.step(&format!("{}, {} round {round}: {figures}", row.name, place.carrier.name()));
        rounds.push(outcome);
    }
    // All caches of a server share a bound: the next row's needs the room.
    drop_cache(place, cache)?;
    Ok(rounds)
}

fn plan(options: &CacheOptions, place: &Place) -> CallPlan {
    CallPlan {
        place: place.clone(),
        connections: options.connections,
        streams: options.streams,
        in_flight: options.concurrency,
        pace: Pace::of_rate(options.rate, options.arrivals),
        load: options.load.clone(),
    }
}

/// Opens a cache for values of a size.
fn open(place: &Place, max_bytes: u64, value_bytes: usize) -> Result<u32, BenchError> {
    let name = format!("bench-{}-{value_bytes}", std::process::id());
    let request = OpenCache { create: CacheCreate::IfMissing, max_bytes, name: &name };
    place.ask("opening a cache", &request, |frame| match frame {
        ServerFrame::CacheOpened(opened) => Some(opened.cache),
        _ => None,
    })
}

fn drop_cache(place: &Place, cache: u32) -> Result<(), BenchError> {
    place.ask("dropping a cache", &DropCache { cache }, |frame| match frame {
        ServerFrame::CacheDone(_) => Some(()),
        _ => None,
    })
}

/// Puts each key once: setup.
fn fill(plan: &CallPlan, keys: u64, work: impl Fn(usize) -> CacheWork + Sync) -> Result<(), BenchError> {
    let setup = CallPlan::setup(&plan.place, 64, Duration::from_secs(60), &plan.load);
    let (outcome, _) = requests::run(&setup, None, |channel| work(channel).each(0..keys))?;
    match outcome.validity {
        Validity::Good if outcome.counts.all_replies == keys => Ok(()),
        how => Err(BenchError::Subject {
            subject: plan.place.endpoint.address().to_owned(),
            doing: "filling the cache",
            message: format!("{} of {keys} keys put, {}", outcome.counts.all_replies, how.verdict().0),
        }),
    }
}

fn figures() -> Table {
    Table::new("figures: medians of the rounds; times from the moment an operation was due to its reply")
}

fn add(figures: &mut Table, report: &mut Report, carrier: Carrier, row: &Row, rounds: &[CallOutcome], is_closed: bool) {
    let over = |figure: &dyn Fn(&CallOutcome) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    let quantile = |percentile: f64| over(&|outcome| micros(outcome.counts.times.percentile(percentile)));
    let rates = Summary::of(&rounds.iter().map(|outcome| outcome.rate).collect::<Vec<_>>());
    let validity = Validity::worst(rounds.iter().map(|outcome| &outcome.validity));
    let per_million = |seconds: f64, outcome: &CallOutcome| seconds * 1e6 / outcome.counts.all_replies as f64;
    let peak = rounds.iter().filter_map(|outcome| outcome.server.peak_rss_bytes).max();
    let server = over(&|outcome| per_million(outcome.server.cpu_seconds, outcome));
    figures.row(cells! {
        "operation" => row.name, "transport" => carrier.name(), "value B" => row.value_bytes,
        "operations/s" => rates.median, "± MAD" => rates.mad, "p50 µs" => quantile(50.0),
        "p90 µs" => quantile(90.0), "p99 µs" => quantile(99.0), "p99.9 µs" => quantile(99.9),
        "max µs" => quantile(100.0), "server CPU s/M" => Some(server).filter(|_| peak.is_some()),
        "generator CPU s/M" => over(&|outcome| per_million(outcome.generator_cpu, outcome)),
        "generator busy %" => over(&|outcome| 100.0 * outcome.busiest), "server peak RSS MiB" => mebibytes(peak),
        "row F" => row.published, "of row F" => rates.median / row.published, "verdict" => validity.name(),
    });
    let what = format!("{}, {}", row.name, carrier.name());
    report.checks.push(Check::of_run(&what, "all answered, rightly", validity));
    if carrier == Carrier::Tcp && is_closed {
        report.checks.push(Check::at_least(what, rates.median / row.published, TIMES_ROW_F, " × row F"));
    }
}
