//! `doctor`: checks the machine and a directory, and explains each finding.
//!
//! Owns: the arguments, the settings of the node that would run on this directory, and the output. Does not own: the
//! facts and the rules (`thalweg_doctor`), and the permissions of a data directory ([`crate::permissions`]).

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde_json::json;
use thalweg_doctor::{Examination, Facts, Findings, Needs, Severity, SpaceNeeds, examine};
use thalweg_engine::check_directory;
use thalweg_server::config::{AvailableMemory, Config};

use super::{interrupt::Interrupt, serve::Serve};
use crate::{
    failure::{Exit, Failure},
    permissions, render,
    span::{parse_span, show_span},
};

const AFTER_HELP: &str = "\
Checks the disk's speed and honesty, the file system and its mount options, free space, limits, clocks, kernel settings and
the owners of files. No node needs to run, and a running one may use the directory; its load is then part of the times. The
only file that is written is a probe of 16 MiB in the directory, which is removed. Findings have a severity:

  problem   acknowledged data may be lost, or a node cannot work here; the command ends with 1
  weakness  a node works, and is slower or survives less than it could
  note      a property to know, or one that cannot be known from here

Examples:
  thalweg doctor --data /var/lib/thalweg/db1
  thalweg doctor --config /etc/thalweg/db1.toml --json
  thalweg doctor --data . --probe 30s";

/// Number of files that a node has open in addition to its connections, such as segments, tables and listening sockets.
const OTHER_FILES: u64 = 1024;

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Doctor {
    /// Existing directory to check [default: that of the configuration, thalweg-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Read the settings of the node from this file; its limits on disk space and connections are checked
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Time for which syncs are measured; 0s writes nothing
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = parse_span)]
    probe: Duration,
    /// Print the facts and the findings as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Doctor) -> Result<(), Failure> {
    let resolved = Serve::on(args.data.as_deref(), args.config.as_deref()).resolve();
    let config = resolved.map_err(|error| Failure::of(&error))?.config;
    let dir = &config.data;
    if !dir.is_dir() {
        let message = format!("there is no directory {}", dir.display());
        return Err(Failure::new(Exit::NotFound, "missing_directory", message)
            .then("name the directory of the node with --data, or create one on the disk that you want to check"));
    }
    let interrupt = Interrupt::register()?;
    let bar = render::progress_bar(None, "{spinner} measuring syncs in {msg}", args.json);
    bar.set_message(render::one_line(dir.display().to_string().as_bytes()));
    let examined = examine(dir, &examination(&config, args.probe), &mut || {
        bar.tick();
        !interrupt.arrived()
    });
    bar.finish_and_clear();
    let (facts, mut found) = examined.map_err(|error| Failure::file(dir, &error))?;
    if interrupt.arrived() {
        return Err(Interrupt::failure());
    }
    judge_owners(dir, &mut found);
    found.sort();
    let problems = found.count(Severity::Problem);
    let object = json!({
        "directory": dir.display().to_string(),
        "problems": problems,
        "weaknesses": found.count(Severity::Weakness),
        "notes": found.count(Severity::Note),
        "findings": found,
        "facts": facts,
    });
    render::print_result(&object, args.json, || text(&facts, &found))?;
    if problems == 0 {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, "machine_problems", render::counted(problems as u64, "problem", "problems")))
}

/// Adds the findings about the permissions of the directory. If the directory belongs to another program, removes the
/// findings about the owners of its files instead, because following their advice would take the files away from that
/// program.
fn judge_owners(dir: &Path, found: &mut Findings) {
    if let Err(error) = check_directory(dir, None) {
        found.0.retain(|finding| !matches!(finding.code, "foreign_files" | "not_writable"));
        return found.note(
            "other_files",
            error.to_string(),
            "a node refuses to start in this directory; the figures of the disk hold for a directory below it, too",
            "check the directory in which the node keeps its data, or will keep it",
        );
    }
    for warning in permissions::of_data(dir) {
        found.weakness(
            "open_to_others",
            warning,
            "data can be read or replaced by other users of the machine",
            "run the command, or `chown` the directory, as the message says",
        );
    }
}

/// Returns the parameters with which the machine and the directory are examined. They follow from the settings of the
/// node.
fn examination(config: &Config, probe_time: Duration) -> Examination {
    let segments = u64::from(config.spare_segments) + 1;
    let group = AvailableMemory::of_this_process().filter(|memory| memory.limited_by.is_some());
    Examination {
        probe_time,
        wanted: SpaceNeeds {
            reserve_bytes: config.reserve_bytes.0,
            segments_bytes: config.segment_bytes.0.saturating_mul(segments),
            history_bytes: config.history_bytes.0,
        },
        needs: Needs { connections: u64::from(config.max_connections), other_files: OTHER_FILES },
        group_memory_bytes: group.map(|memory| memory.bytes),
    }
}

fn text(facts: &Facts, found: &Findings) -> String {
    let mut lines: Vec<String> =
        measured(facts).into_iter().map(|(name, value)| format!("{name:<12} {}", render::name(&value))).collect();
    for finding in &found.0 {
        // A message contains names of files and mounts, which any user may have chosen. So it is escaped.
        let message = render::name(&finding.message);
        lines.push(format!("\n{}: {message} [{}]", finding.severity.name(), finding.code));
        lines.push(format!("  {}", finding.meaning));
        lines.push(format!("  → {}", finding.next));
    }
    if found.0.is_empty() {
        lines.push("\ngood: no findings".to_owned());
    }
    lines.join("\n")
}

/// Returns the measured facts about the machine and the disk as pairs of a name and a text. The output has one line for
/// each.
fn measured(facts: &Facts) -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let bytes = |bytes: Option<u64>| bytes.map_or_else(unknown, render::bytes);
    let micros = |micros: f64| show_span(Duration::from_secs_f64(micros.max(0.0) / 1e6));
    let storage = &facts.storage;
    let mount = storage.mount.as_ref();
    let device = storage.device.as_ref().map_or_else(unknown, |device| {
        let model = device.model.as_ref().map_or(String::new(), |model| format!(", {model}"));
        let cache = device.write_cache.as_ref().map_or(String::new(), |cache| format!(", cache {cache}"));
        format!("{} ({}{model}{cache})", device.name, device.class.shown())
    });
    let syncs = facts.syncs.as_ref().map_or_else(
        || "not measured".to_owned(),
        |syncs| {
            let small = &syncs.small;
            format!(
                "{} of {} take {} (p50), {} (p99), {} (longest); {}/s in writes of {}",
                render::counted(small.count as u64, "fdatasync", "fdatasyncs"),
                render::bytes(syncs.small_bytes as u64),
                micros(small.p50_micros),
                micros(small.p99_micros),
                micros(small.max_micros),
                render::bytes(syncs.large_bytes_per_second as u64),
                render::bytes(syncs.large_bytes as u64),
            )
        },
    );
    let (limits, clocks, kernel) = (&facts.limits, &facts.clocks, &facts.kernel);
    let offered = [limits.memory_bytes, limits.group_memory_bytes].into_iter().flatten().min();
    let quota = limits.group_processors.map_or(String::new(), |quota| format!(", quota {quota:.2}"));
    let files = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), render::count);
    let locked = limits.locked_bytes.map_or_else(|| "unlimited".to_owned(), render::bytes);
    let ntp = clocks.ntp.as_ref().map_or_else(unknown, |ntp| {
        let state = if ntp.synchronised { "synchronised" } else { "not synchronised" };
        format!("{state}, error up to {}", show_span(ntp.max_error))
    });
    let word = |text: &Option<String>| text.clone().unwrap_or_else(unknown);
    let number = |number: Option<u64>| number.map_or_else(unknown, |number| number.to_string());
    vec![
        (
            "file system",
            mount.map_or_else(unknown, |mount| {
                format!("{} on {} at {} ({})", mount.kind, mount.source, mount.point.display(), mount.options.join(","))
            }),
        ),
        ("device", device),
        ("syncs", syncs),
        (
            "space",
            format!(
                "{} of {} free",
                render::bytes(facts.space.available_bytes),
                render::bytes(facts.space.total_bytes)
            ),
        ),
        ("memory", format!("{}, swap {}", bytes(offered), bytes(limits.swap_bytes))),
        ("processors", format!("{}{quota}", limits.processors)),
        (
            "open files",
            format!("{}, up to {}; locked memory {locked}", files(limits.open_files), files(limits.open_files_hard)),
        ),
        ("clock", format!("{}, {:.0} ns a reading; {ntp}", word(&clocks.source), clocks.reading_nanos)),
        (
            "kernel",
            format!(
                "{}; dirty {} (background {}), huge pages {}, swappiness {}, somaxconn {}, overcommit {}",
                word(&kernel.release),
                bytes(kernel.dirty_bytes),
                bytes(kernel.dirty_background_bytes),
                word(&kernel.huge_pages),
                number(kernel.swappiness),
                number(kernel.somaxconn),
                number(kernel.overcommit),
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_wanted_space_is_that_of_the_settings() {
        let given = examination(&Config::default(), Duration::ZERO);
        let mib = 1 << 20;
        assert_eq!(given.wanted.reserve_bytes, 256 * mib);
        assert_eq!(given.wanted.segments_bytes, 3 * 64 * mib);
        assert_eq!(given.needs.connections, 4096);
    }

    #[test]
    fn text_has_each_finding_with_its_meaning_and_next_step() {
        let dir = tempfile::tempdir().unwrap();
        let given = Examination {
            probe_time: Duration::ZERO,
            wanted: SpaceNeeds { reserve_bytes: 1 << 50, segments_bytes: 0, history_bytes: 0 },
            needs: Needs { connections: 1, other_files: 0 },
            group_memory_bytes: None,
        };
        let (facts, found) = examine(dir.path(), &given, &mut || true).unwrap();
        let shown = text(&facts, &found);
        assert!(shown.contains("syncs        not measured"), "{shown}");
        assert!(shown.contains("\nproblem: ") && shown.contains("[no_room]\n  below the reserve"), "{shown}");
        assert!(shown.contains("\n  → free some space"), "{shown}");
        let mut hostile = Findings::default();
        hostile.note("foreign_files", "such as a\nproblem: forged".to_owned(), "", "");
        assert!(!text(&facts, &hostile).contains("\nproblem"), "a name of a file makes no line");
        let object = serde_json::to_value(&facts).unwrap();
        assert_eq!(object["syncs"], Value::Null);
        assert!(object["clocks"]["reading_nanos"].as_f64().unwrap() > 0.0, "{object}");
    }
}
