//! `plan`: computes the nodes, processors, memory, disk and network that a load needs, from measured runs on this
//! machine.
//!
//! Owns: the arguments, the profile's file, and the output. Does not own: the computation (`thalweg_planner`), and the
//! measuring ([`measure`]).

mod measure;
mod server;

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde_json::json;
use thalweg_planner::{
    Figure, Objective, PlanError, Profile, Quantile, Request, Settings, parse_rate, parse_size, plan,
};

use super::{interrupt::Interrupt, serve::Serve};
use crate::{
    failure::{Exit, Failure},
    render,
    span::parse_span,
    unfinished_file::UnfinishedFile,
};

const AFTER_HELP: &str = "\
--measure starts a cluster of --replicas nodes in a new directory below --data, which must be on the disk of a future node, lets
1, 16 and 64 clients append records of 100, 1,000 and 10,000 bytes over HTTP, twice each, and stores what it measured as a
profile. That takes about 25 times --run-time, and needs some GiB of free space at most. All nodes run on this machine, so
nodes on machines of their own can do more. The nodes and the directory, plan-probe-PID, are removed at the end and after a
signal, but not after SIGKILL. Without --measure, the plan is computed from the stored profile, which may be that of another
machine, but must be that of as many nodes.

Each figure has a formula and bounds: those within which one more run would lie in 95 of 100 cases. The plan uses the lower
bound of the capacity, and leaves --headroom of every resource free.

Examples:
  thalweg plan --measure --data /var/lib/thalweg
  thalweg plan --writes 20000/s --size 1KB --retention 7d --replicas 3 --round-trip 500us --objective 'p99<10ms'
  thalweg plan --measure --data /var/lib/thalweg --replicas 1 --profile alone.json
  thalweg plan --profile alone.json --writes 500/s --size 100 --retention 30d --replicas 1 --objective 'p999<50ms' --json";

/// Maximum size in bytes of the file with a machine's profile (the results of measured runs). The file of a profile
/// with 18 runs has about 6 KiB.
const MAX_PROFILE_BYTES: u64 = 1 << 20;

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Plan {
    /// Writes per second that clients send, such as 20000/s
    #[arg(long, value_name = "RATE", value_parser = parse_rate, required_unless_present = "measure",
          requires_all = ["size", "retention", "objective"])]
    writes: Option<f64>,
    /// Payload of each write, such as 1KB (1000 bytes) or 1KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "writes")]
    size: Option<u64>,
    /// Time for which the data is kept
    #[arg(long, value_name = "SPAN", value_parser = parse_span, requires = "writes")]
    retention: Option<Duration>,
    /// Objective for the time of a write: p50, p90, p99 or p999, and a span
    #[arg(long, value_name = "OBJECTIVE", value_parser = parse_objective, requires = "writes")]
    objective: Option<Objective>,
    /// Number of members of each cluster; 1 means a single node without a cluster
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=7))]
    replicas: u32,
    /// Time of a round trip between the nodes, which a replicated write waits for
    #[arg(long, value_name = "SPAN", default_value = "0s", value_parser = parse_span)]
    round_trip: Duration,
    /// Share of each resource that must stay free, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=95))]
    headroom: u32,
    /// File of the profile
    #[arg(long, value_name = "FILE", default_value = "thalweg-profile.json")]
    profile: PathBuf,
    /// Measure this machine, and store the profile
    #[arg(long, requires = "data")]
    measure: bool,
    /// Existing directory on the disk that is measured
    #[arg(long, value_name = "DIR", requires = "measure")]
    data: Option<PathBuf>,
    /// Time of each of the 18 runs, at least 200ms
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = parse_span, requires = "measure")]
    run_time: Duration,
    /// Read the settings of the nodes from this file: reserve, segments and block cache
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the profile's summary or the plan as JSON
    #[arg(long)]
    json: bool,
}

fn parse_objective(text: &str) -> Result<Objective, String> {
    let expected = || "use an objective such as p99<10ms".to_owned();
    let (quantile, below) = text.split_once('<').ok_or_else(expected)?;
    let below = parse_span(below.trim())?;
    let quantile: Quantile = quantile.trim().parse()?;
    if below.is_zero() { Err(expected()) } else { Ok(Objective { quantile, below }) }
}

pub(crate) fn run(args: &Plan) -> Result<(), Failure> {
    if let Some(data) = args.data.as_deref().filter(|_| args.measure) {
        let profile = measured(args, data)?;
        store(&args.profile, &profile)?;
        if args.writes.is_none() {
            let summary = json!({ "profile": args.profile.display().to_string(), "runs": profile.runs });
            return render::print_result(&summary, args.json, || runs_text(&args.profile, &profile));
        }
    }
    let (Some(writes_per_second), Some(payload_bytes), Some(retention), Some(objective)) =
        (args.writes, args.size, args.retention, args.objective)
    else {
        return Err(Failure::usage("a plan needs --writes, --size, --retention and --objective"));
    };
    let request = Request {
        writes_per_second,
        payload_bytes,
        retention,
        replicas: args.replicas,
        objective,
        round_trip: args.round_trip,
        headroom: f64::from(args.headroom) / 100.0,
    };
    let profile = load(&args.profile)?;
    let planned = plan(&profile, &request, &settings(args)?).map_err(|error| match error {
        PlanError::Profile(_) | PlanError::Request(_) => Failure::usage(error.to_string()),
        PlanError::Replicas { wanted, .. } => Failure::usage(error.to_string())
            .then(format!("measure one: `thalweg plan --measure --data DIR --replicas {wanted} --profile FILE`")),
        PlanError::NoTime { .. } => Failure::new(Exit::Conflict, "no_plan", error.to_string())
            .then("measure a profile again on an idle machine, with a longer --run-time"),
        _ => Failure::new(Exit::Conflict, "no_plan", error.to_string())
            .then("relax the objective, or measure a profile on a machine with a faster disk or more processors"),
    })?;
    let object = json!({ "request": request, "plan": planned, "machine": profile.machine, "build": profile.build });
    render::print_result(&object, args.json, || plan_text(&planned, args.replicas))
}

fn measured(args: &Plan, data: &Path) -> Result<Profile, Failure> {
    if args.run_time < Duration::from_millis(200) {
        return Err(Failure::usage("--run-time is too short").then("use 200ms or more"));
    }
    if !data.is_dir() {
        let message = format!("there is no directory {}", data.display());
        return Err(
            Failure::new(Exit::NotFound, "missing_directory", message).then("name a directory on the disk of the node")
        );
    }
    let interrupt = Interrupt::register()?;
    let bar = render::progress_bar(None, "{spinner} {msg}", args.json);
    let profile = measure::measure(data, args.replicas, args.run_time, &interrupt, &|step| {
        bar.set_message(step.to_owned());
        bar.tick();
    });
    bar.finish_and_clear();
    profile
}

fn settings(args: &Plan) -> Result<Settings, Failure> {
    let config = Serve::on(None, args.config.as_deref()).resolve().map_err(|error| Failure::of(&error))?.config;
    Ok(Settings {
        reserve_bytes: config.reserve_bytes.0,
        segments_bytes: config.segment_bytes.0.saturating_mul(u64::from(config.spare_segments) + 1),
        cache_bytes: config.cache_bytes.0,
    })
}

fn load(path: &Path) -> Result<Profile, Failure> {
    let failed =
        |error: std::io::Error| Failure::file(path, &error).then("measure one: `thalweg plan --measure --data DIR`");
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MAX_PROFILE_BYTES).read_to_string(&mut text)).map_err(failed)?;
    serde_json::from_str(&text).map_err(|error| Failure::usage(format!("{} is no profile: {error}", path.display())))
}

fn store(path: &Path, profile: &Profile) -> Result<(), Failure> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let text = serde_json::to_string_pretty(profile).map_err(|error| Failure::usage(error.to_string()))?;
    let write = || {
        let unfinished = UnfinishedFile::create(dir, "thalweg-profile")?;
        let mut file = unfinished.handle()?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        unfinished.finish(path)
    };
    write().map_err(|error| Failure::file(path, &error))
}

fn runs_text(path: &Path, profile: &Profile) -> String {
    let rows = profile.runs.iter().map(|run| {
        let per_write = |amount: f64| run.each(amount);
        vec![
            run.payload_bytes.to_string(),
            run.writers.to_string(),
            render::count(run.rate() as u64),
            format!("{:.0}", run.p50_micros),
            format!("{:.0}", run.p99_micros),
            format!("{:.1}", per_write(run.cpu_seconds) * 1e6),
            format!("{:.0}", per_write(run.log_bytes as f64)),
            format!("{:.2}", per_write(run.syncs as f64)),
        ]
    });
    let header = ["payload", "clients", "writes/s", "p50 µs", "p99 µs", "CPU µs", "log B", "fsyncs"];
    format!(
        "{}\nstored in {}: {}, durability {}, {} build",
        render::table(&header, rows),
        path.display(),
        profile.workload,
        profile.durability,
        profile.build
    )
}

fn plan_text(planned: &thalweg_planner::Plan, replicas: u32) -> String {
    let clusters = render::counted(planned.clusters, "cluster", "clusters");
    let mut lines = vec![format!("{} nodes: {clusters} of {replicas}", planned.nodes)];
    for figure in &planned.figures {
        lines.push(format!("\n{}: {}", figure.name.replace('_', " "), interval_text(figure)));
        lines.push(format!("  = {}", figure.formula));
    }
    lines.push(String::new());
    lines.extend(planned.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}

fn interval_text(figure: &Figure) -> String {
    let interval = figure.interval;
    let shown = |value: f64| match figure.unit {
        "bytes" => render::bytes(value as u64),
        "bytes/s" => format!("{}/s", render::bytes(value as u64)),
        "processors" => format!("{value:.2} processors"),
        unit => format!("{} {unit}", render::count(value as u64)),
    };
    if interval.high.is_infinite() {
        format!("{} ({} or more, not bounded above)", shown(interval.value), shown(interval.low))
    } else if interval.low < interval.high {
        format!("{} ({} to {})", shown(interval.value), shown(interval.low), shown(interval.high))
    } else {
        shown(interval.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_without_an_upper_bound_says_so() {
        let text = |high| {
            let interval = thalweg_planner::Interval { value: 2000.0, low: 500.0, high };
            interval_text(&Figure { name: "capacity", interval, unit: "writes/s", formula: String::new() })
        };
        assert_eq!(text(f64::INFINITY), "2,000 writes/s (500 writes/s or more, not bounded above)");
        assert_eq!(text(9000.0), "2,000 writes/s (500 writes/s to 9,000 writes/s)");
    }

    #[test]
    fn objectives_are_a_percentile_and_a_span() {
        let objective = parse_objective("p99 < 10ms").unwrap();
        assert_eq!((objective.quantile, objective.below), (Quantile::P99, Duration::from_millis(10)));
        for wrong in ["", "p99", "p99<", "p99<0s", "p98<1s", "p99>1s"] {
            assert!(parse_objective(wrong).is_err(), "{wrong}");
        }
    }
}
