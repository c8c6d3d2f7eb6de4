//! `bench`: runs the suites of `thalweg_bench`, `thalweg_bench_cluster` and `thalweg_bench_pressure`, prints their
//! reports as text or JSON, and exits with their verdicts.
//!
//! Owns: the list of suites, the destinations of a report, and the line that shows the run in progress. Does not own:
//! the options of a suite, its measurements, or the formats of a report (`thalweg_lab`).

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use thalweg_bench::{
    BenchError, Report, Stderr,
    backends::{self, BackendsOptions},
    baseline::{self, CheckOptions, SaveOptions},
    cache::{self, CacheOptions},
    compare::{self, CompareOptions},
    engine::{self, EngineOptions},
    groups::{self, GroupsOptions},
    http::{self, HttpOptions},
    live::{self, LiveView},
    log::{self, LogOptions},
    pubsub::{self, PubsubOptions},
    regenerate::{self, RegenerateOptions},
    report::Verdict,
    resp::{self, RespOptions},
    scenario::{self, ScenarioOptions},
    snapshot::{self, SnapshotOptions},
    streams::{self, StreamsOptions},
};
use thalweg_bench_cluster::{self as cluster, ClusterOptions};
use thalweg_bench_pressure::{self as pressure, PressureOptions};

use crate::{
    failure::{Exit, Failure},
    heap, render,
};

/// Subcommands of `bench`: one for each suite of measurements, and those that compare results.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Exit codes: 0 all checks are met; 4 a check is missed; 1 the figures are void (the report gives the\n\
                        reason). --goals adds checks against the goals of docs/performance.md, which are for another\n\
                        machine than yours.\n\n\
                        Examples:\n  thalweg bench log --only-checks --goals\n  thalweg bench engine --mode quick\n  \
                        thalweg bench backends --plots plots --sweep-size 1000000 --sweep-readers 16\n  \
                        thalweg bench http --rate 5000 --connections 64 --duration 10s\n  \
                        thalweg bench http --search 'p99<5ms' --profile cpu,offcpu --html report.html\n  \
                        thalweg bench snapshot --entries 1000000 --value-size 1024 --compress lz4\n  \
                        thalweg bench pubsub --payload 128 --batch 64 --fan-out 10\n  \
                        thalweg bench pubsub --preset row-f --transport tcp,quic\n  \
                        thalweg bench cache --concurrency 32 --transport tcp,quic\n  \
                        thalweg bench streams --only 'publish 1024'\n  \
                        thalweg bench resp --server thalweg@1,redis-none --mix get:9,set:1 -c 50 -P 16\n  \
                        thalweg bench resp --preset goals --goals\n  \
                        thalweg bench scenario ycsb-a"
)]
pub(crate) enum Bench {
    /// Appends to the log at each durability level, compared with a raw probe of the same disk
    Log(Suite<LogOptions>),
    /// The embedded engine: writes, reads, ranges, mixed load, compaction
    Engine(Suite<EngineOptions>),
    /// The state's backends, behind the log and alone: durable writes, reads, copies, transactions
    Backends(Suite<BackendsOptions>),
    /// Consumer groups: many members fetch and ack records of one stream, in batches and one by one
    Groups(Suite<GroupsOptions>),
    /// Snapshots of a filled database under writes: their speed, and their effect on the writers
    Snapshot(Suite<SnapshotOptions>),
    /// A server under scheduled HTTP load, with latencies measured from the scheduled time
    Http(Suite<HttpOptions>),
    /// Subjects over the native protocol: publish, fan out, receive; every delivery is checked and timed
    Pubsub(Suite<PubsubOptions>),
    /// Caches over the native protocol: puts, hits and misses
    Cache(Suite<CacheOptions>),
    /// Durable appends and reads over the native protocol, compared with the bare disk and network
    Streams(Suite<StreamsOptions>),
    /// A cluster of several nodes: puts and gets, Redis clients, appends, failover, rolling restarts, lag, catch-up,
    /// snapshots, heartbeats, detection, TLS, a slow follower
    #[command(
        after_help = "The benchmark starts the nodes itself, in processes on this machine, unless --nodes names a running cluster. The\n\
                      figures of one machine show what the program costs, not what a network adds.\n\n\
                      Examples:\n  thalweg bench cluster --parts puts --clients 1,100\n  \
                      thalweg bench cluster --parts puts --clients 100 --profile cpu,offcpu --html report.html\n  \
                      thalweg bench cluster --nodes 10.0.0.1:7070,10.0.0.2:7070,10.0.0.3:7070\n  \
                      thalweg bench cluster --parts resp,appends --goals\n  \
                      thalweg bench cluster --parts failover --kills 200\n  \
                      thalweg bench cluster --parts rolling --restarts 20\n  \
                      thalweg bench cluster --parts lag,heartbeats,detection --goals\n  \
                      thalweg bench cluster --parts catch-up --missed-bytes 1073741824 --server-arg=--history-bytes=4GiB\n  \
                      thalweg bench cluster --parts snapshot --snapshot-bytes 1073741824\n  \
                      thalweg bench cluster --parts tls --clients 1,100\n  \
                      thalweg bench cluster --parts slow-follower\n  \
                      peers/etcd/run.sh --rounds 5      # with etcd in turns"
    )]
    Cluster(Suite<ClusterOptions>),
    /// A server with more data than memory: loading, random gets beside the bare disk, misses, many keys; the tail of
    /// durable puts
    #[command(
        after_help = "The server alone is in a control group with the limit of memory, which needs root; --no-limit measures without.\n\
                      The page cache of its files counts as its memory. The parts need free disk space of several times the\n\
                      data, which is looked for first and removed at the end.\n\n\
                      Examples:\n  thalweg bench pressure --goals\n  \
                      thalweg bench pressure --parts load --memory 256MiB --rounds 5\n  \
                      thalweg bench pressure --parts gets,misses --protocols resp --clients 1,16,64\n  \
                      thalweg bench pressure --parts keys --keys 100000000 --dir /mnt/disk --goals\n  \
                      thalweg bench pressure --parts tails --rate 4000 --tail-sizes 100\n  \
                      thalweg bench pressure --memory 256MiB --data 512MiB --rounds 1 --duration 2s    # a short trial"
    )]
    Pressure(Suite<PressureOptions>),
    /// Servers that speak RESP, measured in turns in one run; every reply is compared
    Resp(Suite<RespOptions>),
    /// A mix of operations from a TOML file, or a built-in one such as YCSB A to F; every reply is checked
    #[command(after_help = "A file has these tables and fields; other names are errors:\n  \
                      [load]    connections, threads, rate, warmup, duration, arrivals (with a rate: constant, poisson,\n            \
                                ramp:FROM:TIME, step:FROM:TIME, replay:FILE)\n  \
                      [keys]    count, distribution (uniform, zipf, latest, sequential), theta (of zipf and latest)\n  \
                      [values]  bytes, or min_bytes and max_bytes\n  \
                      [mix]     weights of read, update, insert, scan, read_modify_write (of keys), append, read_records,\n            \
                                fetch (of the stream), publish (to the subject), cache_get, cache_put, cache_delete\n  \
                      [scans]   rows, or min_rows and max_rows\n  \
                      [streams] record_bytes, records (before the runs), batch, read_records, read_from (tail, start, random)\n  \
                      [groups]  records (the most of a fetch)\n  \
                      [subjects] message_bytes, batch, subscribers\n  \
                      [caches]  max_bytes (of a cache that the run creates)\n  \
                      [http]    read and write (method, path, body), reply, headers: requests to a server with another API, with\n            \
                                {key} and {value} in their places; without it Thalweg's key-value API\n  \
                      [jetstream] storage (file, memory) of the stream on a NATS server\n\n\
                      The protocol is that of the target's address, or --protocol. HTTP and the native protocol, over TCP, TLS or\n\
                      QUIC, support all operations, RESP all but scans (a cache is a database of the server, and has a mix of its\n\
                      own), and --protocol embedded, the engine in this process, those on keys, streams and groups. Core NATS\n\
                      (nats://) has subjects, and JetStream (jetstream://) streams, groups and subjects; both need a build with the\n\
                      feature nats. The keys are loaded before the runs. Without a rate the next operation follows a reply (closed loop).\n\
                      A value names its key and its version, and a read is wrong if it returns another key's value or one that an acknowledged write\n\
                      had replaced. Lost, duplicated and reordered records make a run fail; lost messages are shown. A cache may\n\
                      forget: a read that finds nothing is a miss, which the report counts apart.\n\n\
                      Examples:\n  thalweg bench scenario --list\n  thalweg bench scenario ycsb-a\n  \
                      thalweg bench scenario --show ycsb-a > mine.toml; thalweg bench scenario mine.toml\n  \
                      thalweg bench scenario ycsb-b --rate 5000 --durability interval --html report.html\n  \
                      thalweg bench scenario ycsb-f --target redis://127.0.0.1:6379\n  \
                      thalweg bench scenario events --protocol native-quic\n  \
                      thalweg bench scenario messages --target nats://127.0.0.1:4222\n  \
                      thalweg bench scenario jobs --protocol embedded --durability disk\n  \
                      thalweg bench scenario events --rate 2000 --durability interval")]
    Scenario(Suite<ScenarioOptions>),
    /// Two servers, programs or stored reports under one load: the change from A to B, its interval, and a verdict
    #[command(
        after_help = "The runs alternate, A B, B A, A B ..., so that a drift of the machine affects both equally. In a closed loop\n\
                      (--closed) the rate decides, else the 99th percentile of the response time. Each interval covers the true\n\
                      change with a probability of 95 %.\n\n\
                      The load is puts and gets over HTTP or RESP, or a scenario, over any protocol that has its operations. The\n\
                      protocol is that of the address, and --protocol for programs; A and B may have different ones. Only the level\n\
                      that a server names counts as its durability.\n\n\
                      Stored reports are compared by their runs; a verdict needs at least 6 on each side (--rounds 6). The\n\
                      interval does not cover what changed on the machine between them. Void runs give no verdict.\n\n\
                      Examples:\n  thalweg bench compare ./thalweg-old ./thalweg-new --durability disk\n  \
                      thalweg bench compare ./thalweg ./thalweg --arg-a=--backend=lsm --arg-b=--backend=redb --closed\n  \
                      thalweg bench compare http://10.0.0.1:7070 http://10.0.0.2:7070 --mix get --pairs 20\n  \
                      thalweg bench compare redis://10.0.0.1:7379@1 redis://10.0.0.2:6379 --mix mixed --closed --pipeline 16\n  \
                      thalweg bench compare ./thalweg-old ./thalweg-new --protocol native --scenario ycsb-a --durability disk\n  \
                      thalweg bench http --output before.json; thalweg bench http --output after.json\n  \
                      thalweg bench compare before.json after.json --fail-if-worse"
    )]
    Compare(Suite<CompareOptions>),
    /// Repeats the runs that give the figures of docs/performance.md and docs/tuning.md, into a directory with a page
    /// of links
    #[command(
        after_help = "Each run is a process of its own. DIR gets its report as JSON, as HTML and as text, its progress, and the page\n\
                      index.html. A run that fails does not stop the others. A complete run takes several hours and is worth\n\
                      something only on an idle machine. Comparisons with other systems, examples and tests are programs of the\n\
                      source tree; --source names it.\n\n\
                      Examples:\n  thalweg bench report --list --all\n  thalweg bench report --all --source . --into figures\n  \
                      thalweg bench report --all --quick\n  thalweg bench report --only http,resp"
    )]
    Report(Suite<RegenerateOptions>),
    /// Store a measurement, or check that a new one is not worse than a stored one
    #[command(subcommand)]
    Baseline(Baseline),
}

/// Subcommands of `bench baseline`.
#[derive(Subcommand, Debug)]
pub(crate) enum Baseline {
    /// Measure a load and store the measurement with the load
    #[command(
        after_help = "Example:\n  thalweg bench baseline save puts.json --durability disk --rate 2000 --duration 2s"
    )]
    Save(Suite<SaveOptions>),
    /// Repeat the load of a stored measurement, and exit with code 4 if the figure that decides is worse
    #[command(
        after_help = "The figure that decides is the rate in a closed loop, else the 99th percentile of the response time. The check\n\
                      fails if the whole interval of the change lies beyond the tolerance. Differences below the tolerance need\n\
                      thalweg bench compare with both programs.\n\n\
                      Example:\n  thalweg bench baseline check puts.json --tolerance 15"
    )]
    Check(Suite<CheckOptions>),
}

/// Options of a suite, and the destinations of its report.
#[derive(Args, Debug)]
pub(crate) struct Suite<O: Args> {
    #[command(flatten)]
    options: O,
    /// Compare the figures with Thalweg's own goals, which are for the machine of docs/performance.md
    #[arg(long)]
    goals: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Also write the report as JSON to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write the report with its plots as one HTML page to this file, and flame graphs beside it
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Number of steps of the progress bar of a run.
const RUN_STEPS: u64 = 1000;

/// Progress bar of the benchmark run that is in progress, on one line of standard error that is redrawn; `None` without
/// one.
#[derive(Default)]
struct RunBar(Mutex<Option<ProgressBar>>);

impl RunBar {
    fn bar(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveView for RunBar {
    fn show(&self, line: &str, part: f64) {
        let mut bar = self.bar();
        let bar = bar.get_or_insert_with(|| render::progress_bar(Some(RUN_STEPS), "{bar:16} {wide_msg}", false));
        bar.set_position((part * RUN_STEPS as f64) as u64);
        bar.set_message(line.to_owned());
    }

    fn clear(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }
}

pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    // The suites that run a database in this process have the memory of a server.
    heap::permit_huge_pages();
    let mut progress = Stderr::default();
    if io::stderr().is_terminal() {
        live::show_runs_on(Box::<RunBar>::default());
    }
    match bench {
        Bench::Log(suite) => suite.finish(log::run(&suite.options, &mut progress)),
        Bench::Engine(suite) => suite.finish(engine::run(&suite.options, &mut progress)),
        Bench::Backends(suite) => suite.finish(backends::run(&suite.options, &mut progress)),
        Bench::Groups(suite) => suite.finish(groups::run(&suite.options, &mut progress)),
        Bench::Snapshot(suite) => suite.finish(snapshot::run(&suite.options, &mut progress)),
        Bench::Http(suite) => suite.finish(http::run(&suite.options, &mut progress)),
        Bench::Pubsub(suite) => suite.finish(pubsub::run(&suite.options, &mut progress)),
        Bench::Cache(suite) => suite.finish(cache::run(&suite.options, &mut progress)),
        Bench::Streams(suite) => suite.finish(streams::run(&suite.options, &mut progress)),
        Bench::Cluster(suite) => suite.finish(cluster::run(&suite.options, &mut progress)),
        Bench::Pressure(suite) => suite.finish(pressure::run(&suite.options, &mut progress)),
        Bench::Resp(suite) => suite.finish(resp::run(&suite.options, &mut progress)),
        Bench::Scenario(suite) => match suite.options.printed().map_err(|error| Failure::of(&error))? {
            Some(text) => render::line(text.trim_end()),
            None => suite.finish(scenario::run(&suite.options, &mut progress)),
        },
        Bench::Compare(suite) => suite.finish(compare::run(&suite.options, &mut progress)),
        Bench::Report(suite) => match suite.options.printed().map_err(|error| Failure::of(&error))? {
            Some(text) => render::line(text.trim_end()),
            None => suite.finish(regenerate::run(&suite.options, &mut progress)),
        },
        Bench::Baseline(Baseline::Save(suite)) => suite.finish(baseline::save(&suite.options, &mut progress)),
        Bench::Baseline(Baseline::Check(suite)) => suite.finish(baseline::check(&suite.options, &mut progress)),
    }
}

impl<O: Args> Suite<O> {
    fn finish(&self, report: Result<Report, BenchError>) -> Result<(), Failure> {
        let report = report.map_err(|error| Failure::of(&error))?;
        let report = if self.goals { report } else { report.without_goals() };
        let json = report.to_json();
        if let Some(path) = &self.output {
            std::fs::write(path, &json).map_err(|error| Failure::file(path, &error))?;
        }
        if let Some(path) = &self.html {
            report.save_html(path).map_err(|error| Failure::of(&error))?;
        }
        let shown = if self.json { json } else { report.to_text() };
        render::line(shown.trim_end())?;
        match report.verdict() {
            Verdict::Met => Ok(()),
            Verdict::Missed => Err(Failure::new(Exit::Conflict, "missed", "a check of the measurement is missed")),
            Verdict::Void => {
                Err(Failure::new(Exit::Failed, "void", "the figures are void; the report gives the reason"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(subcommand)]
        bench: Bench,
    }

    #[test]
    fn the_commands_of_the_figures_can_be_run() {
        for flags in [&["--all"][..], &["--all", "--quick"]] {
            let parsed = Cli::try_parse_from([&["bench", "report", "--list"], flags].concat()).unwrap();
            let Bench::Report(suite) = parsed.bench else { panic!("it is the list") };
            let list = suite.options.printed().unwrap().unwrap();
            assert!(list.lines().count() > 20, "{list}");
            for line in list.lines() {
                let Some((_, command)) = line.split_once("thalweg bench ") else {
                    assert!(line.ends_with("(--source)"), "{line}");
                    continue;
                };
                let command = command.replace('\'', "");
                let words = ["bench"].into_iter().chain(command.split(' '));
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{command}: {error}");
                }
            }
        }
    }
}
