//! `status`: prints the figures of a node, for people with units and in groups.

use clap::Args;
use serde_json::Value;

use crate::{
    args::TargetArgs,
    failure::Failure,
    figures::{leaves, shown, without_unit, words},
    render,
    session::{Access, Session},
};

#[derive(Args, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    place: TargetArgs,
    /// Only check whether the server accepts requests and, in a cluster, has a leader; fails if not
    #[arg(long, conflicts_with = "data")]
    ready: bool,
}

pub(crate) fn run(args: &Status) -> Result<(), Failure> {
    let question = if args.ready { Session::ready } else { Session::status };
    let status = Session::with(&args.place, Access::Read, question)?;
    render::print_result(&status, args.place.json, || text(&status))
}

/// Formats the status: single figures first, then each group of figures under its name. Shows every figure of the JSON,
/// also those that this version of the command does not know.
fn text(status: &Value) -> String {
    let mut lines = Vec::new();
    let (mut plain, mut groups) = (Vec::new(), Vec::new());
    for (name, value) in status.as_object().into_iter().flatten() {
        match value {
            Value::Object(group) if name == "health" => plain.push((name, health(group))),
            Value::Object(_) => groups.push((name, value)),
            _ => plain.push((name, value.clone())),
        }
    }
    let rows = plain.iter().map(|(name, value)| row("", name, value));
    lines.extend(align(rows.collect()));
    for (name, group) in groups {
        lines.push(format!("\n{}:", words(name)));
        let flat = leaves("", group);
        lines.extend(align(flat.iter().map(|(name, value)| row("  ", name, value)).collect()));
    }
    lines.join("\n")
}

/// Formats the health of the node in one line: its status, and the reason if there is one.
fn health(group: &serde_json::Map<String, Value>) -> Value {
    let text = group.iter().map(|(name, value)| match &**name {
        "status" | "reason" => shown(name, value),
        _ => format!("{} {}", shown(name, value), words(without_unit(name))),
    });
    Value::String(text.collect::<Vec<_>>().join(", "))
}

fn row(indent: &str, name: &str, value: &Value) -> (String, String) {
    (format!("{indent}{}", words(without_unit(name))), shown(name, value))
}

fn align(rows: Vec<(String, String)>) -> impl Iterator<Item = String> {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.into_iter().map(move |(name, value)| format!("{name:width$}  {value}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_have_units_and_groups() {
        let status = json!({
            "node": "00ff", "health": { "status": "disk_full", "free_bytes": 1 << 20 }, "space_time_micros": 0,
            "applied_index": 12_345, "uptime_seconds": 90, "log": { "bytes": 2048, "mean_sync_micros": 85, "syncs": null },
            "state": { "tables_per_level": [1, 0], "inner": { "is_new": true } },
        });
        let wanted = "node           00ff\n\
                      health         disk_full, 1.00 MiB free\n\
                      space time     1970-01-01T00:00:00.000000Z\n\
                      applied index  12,345\n\
                      uptime         1 m 30 s\n\
                      \n\
                      log:\n\
                      \u{20} bytes      2.00 KiB\n\
                      \u{20} mean sync  85 µs\n\
                      \u{20} syncs      -\n\
                      \n\
                      state:\n\
                      \u{20} tables per level  1 0\n\
                      \u{20} inner is new      yes";
        assert_eq!(text(&status), wanted);
    }
}
