//! `space`: explains where the bytes of a data directory are, and how to make the directory smaller.
//!
//! Owns: the arguments, the table, and the comparison with an earlier report. Does not own: the figures
//! (`thalweg_engine::space`), and the advice ([`mod@findings`]).

mod findings;
mod report;

use std::{fs, path::PathBuf};

use clap::Args;
use serde_json::{Value, json};
use thalweg_engine::space::{Count, space_at_rest};
use thalweg_server::space_json;

use self::{
    findings::{Finding, Node, findings},
    report::{LEAST_PAYLOAD_BYTES, Report, label},
};
use super::serve::Serve;
use crate::{
    args::ServerArgs,
    failure::{Exit, Failure},
    render,
    session::Session,
};

const AFTER_HELP: &str = "\
Asks a running node, or examines the directory of a stopped one (--data), without changing it. Bytes \
are those of the blocks on the disk, as `du` counts them. The payload is what users can read: keys, \
values and records of streams. To count it, the command reads the whole \
state; by default it does so only if the state has at most 1 GiB. The ratio of the directory to the \
payload is shown if the payload has at least 1 MiB.

A directory is larger than its payload for reasons that have bounds: history of the log \
(history_bytes, history_age), segments prepared for the writer (spare_segments), overwritten data \
until it is compacted. Each finding says what would make the directory smaller.

Examples:
  thalweg space
  thalweg space --data /var/lib/thalweg/db1 --count
  thalweg space --json > before.json; sleep 60; thalweg space --compare before.json";

/// Options of `space`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Space {
    /// Examine this directory instead of asking a server; no server may have it open
    #[arg(long, value_name = "DIR", conflicts_with = "server", help_heading = "Where")]
    data: Option<PathBuf>,
    /// Read the settings of the stopped node from this file; they bound the history of its log
    #[arg(long, value_name = "FILE", requires = "data", help_heading = "Where")]
    config: Option<PathBuf>,
    /// Count the payload even if the state is large; a server may then need a longer --timeout
    #[arg(long)]
    count: bool,
    /// Show the changes since an earlier report of this command, printed with --json
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    #[command(flatten)]
    place: ServerArgs,
}

pub(crate) fn run(args: &Space) -> Result<(), Failure> {
    let before = args.compare.as_deref().map(|file| {
        let text = fs::read_to_string(file).map_err(|error| Failure::file(file, &error))?;
        let wrong = |_| Failure::usage(format!("{} is no report of `thalweg space --json`", file.display()));
        serde_json::from_str::<Report>(&text).map_err(wrong)
    });
    let before = before.transpose()?;
    let (mut object, node) = match &args.data {
        Some(_) => (at_rest(args)?, Node::Stopped),
        None => (Session::of_server(&args.place)?.space(args.count)?, Node::Running),
    };
    let unexpected = |error: serde_json::Error| {
        Failure::new(Exit::Failed, "bad_reply", format!("the report of the node is not understood: {error}"))
    };
    let report: Report = serde_json::from_value(object.clone()).map_err(unexpected)?;
    let found = findings(&report, node);
    object["ratio"] = json!(report.ratio(report.bytes));
    object["ratio_without_history"] = json!(report.ratio(report.bytes_without_history()));
    object["findings"] = found.iter().map(Finding::json).collect();
    if let Some(before) = &before {
        object["changed_bytes"] = json!(signed(report.bytes, before.bytes));
    }
    render::print_result(&object, args.place.json, || text(&report, before.as_ref(), &found))
}

fn at_rest(args: &Space) -> Result<Value, Failure> {
    let resolved = Serve::on(args.data.as_deref(), args.config.as_deref()).resolve();
    let config = resolved.map_err(|error| Failure::of(&error))?.config;
    let bar = render::progress_bar(None, "{elapsed_precise} counting {human_pos} rows", args.place.json);
    let count = if args.count { Count::Always } else { Count::IfQuick };
    let report = space_at_rest(&config.data, &config.engine_options(), count, &mut |rows| bar.set_position(rows));
    bar.finish_and_clear();
    let report = report.map_err(|error| {
        let failure = Failure::of(&error);
        match &*failure.code {
            "locked" => failure.then("a running node answers itself: `thalweg space`, with its address in --server"),
            _ => failure,
        }
    })?;
    let mut object = space_json(&report);
    object["directory"] = json!(config.data.display().to_string());
    Ok(object)
}

/// Returns the bytes that were gained from `before` to `after`, two numbers of bytes; negative if bytes were saved.
fn signed(after: u64, before: u64) -> i64 {
    i64::try_from(i128::from(after) - i128::from(before)).unwrap_or(i64::MAX)
}

fn text(report: &Report, before: Option<&Report>, found: &[Finding]) -> String {
    let mut lines = vec![summary(report), String::new()];
    let mut header = vec!["what", "files", "bytes", "share"];
    if before.is_some() {
        header.extend(["before", "change"]);
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (name, files, bytes) in report.rows() {
        rows.push(row(report, before, &name, files, bytes));
        if name == "state" {
            rows.extend(levels(report));
        }
    }
    let gone = before.into_iter().flat_map(Report::rows).filter(|(name, ..)| report.kind(name).is_none());
    rows.extend(gone.map(|(name, ..)| row(report, before, &name, 0, 0)));
    rows.push(row(report, before, "total", report.files, report.bytes));
    lines.push(render::table(&header, rows));
    if !found.is_empty() {
        lines.push(String::new());
    }
    for finding in found {
        lines.push(format!("{}: {} [{}]", render::bytes(finding.bytes), finding.message, finding.code));
        lines.push(format!("  → {}", finding.next));
    }
    lines.join("\n")
}

fn row(report: &Report, before: Option<&Report>, name: &str, files: u64, bytes: u64) -> Vec<String> {
    let percent = if report.bytes == 0 { 0.0 } else { bytes as f64 * 100.0 / report.bytes as f64 };
    let mut row = vec![label(name).to_owned(), render::count(files), render::bytes(bytes), format!("{percent:.1} %")];
    if let Some(before) = before {
        let earlier = if name == "total" { before.bytes } else { before.kind(name).map_or(0, |kind| kind.bytes) };
        row.extend([render::bytes(earlier), change(signed(bytes, earlier))]);
    }
    row
}

/// Formats a growth or reduction in bytes with its sign; `0` if there is none.
fn change(bytes: i64) -> String {
    let size = render::bytes(bytes.unsigned_abs());
    match bytes {
        0 => "0".to_owned(),
        1.. => format!("+{size}"),
        _ => format!("-{size}"),
    }
}

/// Returns a table row for each level of the LSM backend that has tables. The column for the share of the directory is
/// empty, because these bytes are also part of the row for the whole state.
fn levels(report: &Report) -> impl Iterator<Item = Vec<String>> {
    let levels = report.state.levels.iter().enumerate().filter(|(_, level)| level.tables > 0);
    levels.map(|(number, level)| {
        vec![format!("  level {number}"), render::count(level.tables), render::bytes(level.bytes), String::new()]
    })
}

/// Returns the first line of the report: the size of the directory, and its ratio to the payload (the keys, values and
/// records that clients have stored).
fn summary(report: &Report) -> String {
    let place = report.directory.as_ref().map_or_else(|| "the node".to_owned(), |dir| render::name(dir));
    let size = format!("{place} takes {}", render::bytes(report.bytes));
    let Some(payload) = &report.payload else {
        let state = render::bytes(report.count_bytes);
        return format!("{size}; the payload is not counted: --count reads the state ({state}) for that");
    };
    let mut contents = vec![render::counted(payload.keys, "key", "keys")];
    if payload.parts > 0 {
        contents.push(render::counted(payload.parts, "field or entry", "fields and entries"));
    }
    if payload.records > 0 {
        contents.push(render::counted(payload.records, "record", "records"));
    }
    let contents = format!("{} of payload ({})", render::bytes(payload.bytes), contents.join(", "));
    match (report.ratio(report.bytes), report.ratio(report.bytes_without_history())) {
        (Some(all), Some(without)) => {
            format!("{size} for {contents}: {all:.2} times as much, {without:.2} without history and prepared segments")
        }
        _ => {
            let least = render::bytes(LEAST_PAYLOAD_BYTES);
            format!("{size} for {contents}: ratio –, because the fixed size of a directory outweighs less than {least}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(state_bytes: u64, history_bytes: u64) -> Report {
        let object = json!({
            "backend": "lsm", "files": 4, "bytes": state_bytes + history_bytes, "count_bytes": 7,
            "kinds": [
                { "kind": "log_history", "files": 1, "bytes": history_bytes },
                { "kind": "state", "files": 3, "bytes": state_bytes },
            ],
            "payload": {
                "bytes": 100 << 20, "keys": 1_000, "parts": 0, "records": 2, "version_bytes": 0, "row_bytes": 100 << 20,
            },
            "log": {
                "segments": 1, "segment_bytes": 64 << 20, "spare_segments": 2, "history_bytes": 1 << 30,
                "history_age_seconds": 3600.0, "open_snapshots": 0,
            },
            "state": {
                "levels": [{ "tables": 1, "bytes": 5 }, { "tables": 0, "bytes": 0 }], "entries": 1_000, "deletions": 0,
                "reusable_bytes": 0,
            },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_table_has_a_row_for_each_kind_and_level_and_the_changes() {
        let (before, after) = (report(200 << 20, 64 << 20), report(120 << 20, 0));
        let shown = text(&after, Some(&before), &[]);
        assert!(shown.starts_with("the node takes 120.00 MiB for 100.00 MiB of payload (1,000 keys, 2 records): 1.20"));
        let line = |start: &str| shown.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(line("state").contains("100.0 %") && line("state").ends_with("-80.00 MiB"), "{shown}");
        assert!(line("  level 0").contains("5 B") && !shown.contains("level 1"), "{shown}");
        assert!(line("total").ends_with("-144.00 MiB"), "{shown}");
        assert!(line("log: history").ends_with("-64.00 MiB"), "{shown}");
    }

    #[test]
    fn a_small_payload_has_no_ratio_and_the_reason() {
        let mut small = report(1 << 20, 64 << 20);
        let mut with = |bytes| {
            small.payload.as_mut().unwrap().bytes = bytes;
            (small.ratio(small.bytes), small.ratio(small.bytes_without_history()), summary(&small))
        };
        for bytes in [0, 12, LEAST_PAYLOAD_BYTES - 1] {
            let (all, without, shown) = with(bytes);
            assert_eq!((all, without), (None, None), "{bytes}");
            assert!(shown.contains("ratio –, because") && shown.contains("1.00 MiB"), "{shown}");
        }
        let (all, without, shown) = with(LEAST_PAYLOAD_BYTES);
        assert_eq!((all, without), (Some(65.0), Some(1.0)));
        assert!(shown.contains("65.00 times as much, 1.00 without"), "{shown}");
    }

    #[test]
    fn a_report_without_payload_says_how_to_count_it() {
        let mut uncounted = report(1 << 20, 0);
        uncounted.payload = None;
        assert!(summary(&uncounted).contains("--count"), "{}", summary(&uncounted));
        assert_eq!(uncounted.ratio(uncounted.bytes), None);
    }
}
