//! Layout of `top`: formats the figures of a node as lines of text, in tables under headings, for a terminal of any
//! size or for a pipe.
//!
//! Owns: the layout, and the cutting of lines to the width of a terminal. Does not own: the figures (`view`), or the
//! terminal (`terminal`).
//!
//! Invariant: no line contains characters that control a terminal. Names come from clients and other servers, so each
//! name is escaped when it is put into a line. Every line for a terminal also passes [`fitted`], which replaces any
//! remaining control characters.

use std::time::Duration;

use thalweg_types::printable::is_printable;

use super::view::{Latency, Queue, View};
use crate::{
    render::{self, name},
    span::show_span,
};

/// A line of text that `top` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub text: String,
    /// True for the headings, which a terminal shows in bold.
    pub is_heading: bool,
}

/// Formats the figures of a node as lines of text.
pub(super) fn lines(view: &View) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut plain = |text: String| lines.push(Line { text, is_heading: false });
    plain(title(view));
    plain(rates(view));
    let mut section = |heading: &str, body: String| {
        if !body.is_empty() {
            lines.push(Line { text: heading.to_owned(), is_heading: true });
            lines.extend(body.lines().map(|line| Line { text: format!("  {line}"), is_heading: false }));
        }
    };
    section("latency (upper bounds)", latencies(&view.latencies));
    section("queues and bounds", queues(&view.queues));
    section("log and state", storage(view));
    section("cluster", cluster(view));
    section("consumer groups", groups(view));
    section("subscribers", subscribers(view));
    section("caches", caches(view));
    lines
}

/// Cuts a line to the width of a terminal, in characters, and replaces control characters.
pub(super) fn fitted(text: &str, width: usize) -> String {
    text.chars().take(width).map(|c| if is_printable(c) { c } else { '·' }).collect()
}

fn number(value: f64) -> String {
    // The conversion with `as` saturates, and converts NaN to 0.
    let rounded = value.round() as i64;
    let sign = if rounded < 0 { "-" } else { "" };
    format!("{sign}{}", render::count(rounded.unsigned_abs()))
}

fn or_dash(value: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), shown)
}

fn amount(value: f64, unit: &str) -> String {
    if unit == "bytes" { render::bytes(value.max(0.0) as u64) } else { number(value) }
}

fn per_second(value: Option<f64>, unit: &str) -> String {
    or_dash(value, |value| {
        // Rates below 10 are shown with decimals. In whole numbers, a small rate would look like 0.
        let is_small = unit.is_empty() && value > 0.0 && value < 10.0;
        if is_small { format!("{value:.1}/s") } else { format!("{}/s", amount(value, unit)) }
    })
}

fn time(seconds: Option<f64>) -> String {
    or_dash(seconds, |seconds| Duration::try_from_secs_f64(seconds).map_or_else(|_| "-".to_owned(), show_span))
}

fn title(view: &View) -> String {
    let node = &view.node;
    let uptime = node.uptime_seconds.map_or("-".to_owned(), |seconds| show_span(Duration::from_secs(seconds)));
    let connections =
        [("http", node.http_connections), ("native", node.native_connections), ("redis", node.resp_connections)];
    let connections = connections.iter().filter_map(|(name, count)| Some(format!("{} {name}", number((*count)?))));
    format!(
        "node {} · {} · up {uptime} · durability {} · {} · connections: {} · version {}",
        name(&node.id),
        name(&node.health),
        name(&node.durability),
        name(&node.backend),
        connections.collect::<Vec<_>>().join(", "),
        name(&node.version),
    )
}

fn rates(view: &View) -> String {
    let shown = view.rates.iter().filter(|rate| rate.per_second.is_some_and(|rate| rate > 0.0));
    let shown: Vec<_> = shown.map(|rate| format!("{} {}", rate.name, per_second(rate.per_second, rate.unit))).collect();
    match (shown.is_empty(), view.interval_seconds) {
        (false, _) => shown.join(" · "),
        (true, Some(_)) => "no traffic".to_owned(),
        (true, None) => "rates follow with the next reading".to_owned(),
    }
}

fn latencies(all: &[Latency]) -> String {
    let rows: Vec<_> = all
        .iter()
        .filter(|latency| latency.per_second.is_some_and(|rate| rate > 0.0))
        .map(|latency| {
            let level = if latency.durability.is_empty() { "-".to_owned() } else { name(&latency.durability) };
            let times = [latency.p50_seconds, latency.p99_seconds, latency.p999_seconds].map(time);
            [vec![latency.name.to_owned(), level, per_second(latency.per_second, "")], times.to_vec()].concat()
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    render::table(&["protocol", "durability", "rate", "p50", "p99", "p99.9"], rows)
}

fn queues(all: &[Queue]) -> String {
    let is_shown = |queue: &&Queue| queue.used > 0.0 || queue.shed_per_second.is_some_and(|rate| rate > 0.0);
    let rows: Vec<_> = all
        .iter()
        .filter(is_shown)
        .map(|queue| {
            let limit = or_dash(queue.limit, |limit| amount(limit, queue.unit));
            let share = queue.limit.filter(|limit| *limit > 0.0).map(|limit| 100.0 * queue.used / limit);
            vec![
                queue.name.clone(),
                amount(queue.used, queue.unit),
                limit,
                or_dash(share, |share| format!("{share:.0} %")),
                per_second(queue.shed_per_second.filter(|rate| *rate > 0.0), ""),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "all empty".to_owned();
    }
    render::table(&["queue or bound", "in use", "of", "share", "rejected"], rows)
}

fn storage(view: &View) -> String {
    let storage = &view.storage;
    let bytes = |value: Option<f64>| or_dash(value, |value| amount(value, "bytes"));
    let count = |value: Option<f64>| or_dash(value, number);
    let mut lines = vec![
        format!(
            "disk {} free · segments: {} ({} spare) · replay {} · {} batches a sync",
            bytes(storage.disk_free_bytes),
            count(storage.log_segments),
            count(storage.log_spare_segments),
            bytes(storage.replay_bytes),
            or_dash(storage.batches_per_sync, |batches| format!("{batches:.1}")),
        ),
        format!(
            "state {} on disk in {} tables, {} in memory ({} sealed) · stalls {} · compaction {}",
            bytes(storage.state_disk_bytes),
            count(storage.state_tables),
            bytes(storage.state_memory_bytes),
            count(storage.sealed_memtables),
            per_second(storage.stalls_per_second, ""),
            per_second(storage.compacted_bytes_per_second, "bytes"),
        ),
    ];
    if storage.scrub_damages.is_some_and(|damages| damages > 0.0) {
        lines.push(format!(
            "DAMAGED: {} damaged segments or states, see `thalweg status`",
            count(storage.scrub_damages)
        ));
    }
    lines.join("\n")
}

fn groups(view: &View) -> String {
    if view.groups.is_empty() {
        return String::new();
    }
    let rows = view.groups.iter().map(|group| {
        vec![
            group.stream.clone(),
            group.group.clone(),
            number(group.lag),
            or_dash(group.lag_change_per_second, |change| {
                format!("{}{}/s", if change > 0.0 { "+" } else { "" }, number(change))
            }),
            number(group.pending),
            number(group.members),
            per_second(group.deliveries_per_second, ""),
            per_second(group.redeliveries_per_second, ""),
            number(group.dead_letters),
        ]
    });
    let header = ["stream", "group", "lag", "change", "pending", "members", "delivered", "again", "dead"];
    render::table(&header, rows)
}

fn subscribers(view: &View) -> String {
    let all = &view.subscribers;
    if all.subscriptions.unwrap_or(0.0) == 0.0 && all.slow.unwrap_or(0.0) == 0.0 {
        return String::new();
    }
    let count = |value: Option<f64>| or_dash(value, number);
    format!(
        "{} subscriptions · queued {} messages, {} · slow {} ({}) · dropped {} · disconnected {} · blocked {}",
        count(all.subscriptions),
        count(all.queued_messages),
        or_dash(all.queued_bytes, |bytes| amount(bytes, "bytes")),
        count(all.slow),
        per_second(all.slow_per_second, ""),
        per_second(all.dropped_per_second, ""),
        count(all.disconnected),
        per_second(all.blocked_per_second, ""),
    )
}

fn caches(view: &View) -> String {
    if view.caches.is_empty() {
        return String::new();
    }
    let rows = view.caches.iter().map(|cache| {
        vec![
            // The server has already escaped the name.
            cache.cache.clone(),
            amount(cache.bytes, "bytes"),
            amount(cache.max_bytes, "bytes"),
            or_dash(cache.hit_ratio, |ratio| format!("{:.0} %", 100.0 * ratio)),
            per_second(cache.evictions_per_second, ""),
        ]
    });
    render::table(&["cache", "bytes", "of", "hits", "evicted"], rows)
}

fn cluster(view: &View) -> String {
    let Some(cluster) = &view.cluster else { return String::new() };
    let count = |value: Option<f64>| or_dash(value, number);
    let faults = [
        (!cluster.has_majority, "NO MAJORITY"),
        (!cluster.has_leader, "NO LEADER"),
        (!cluster.has_room, "NO ROOM ON A MAJORITY OF DISKS"),
    ];
    let faults = faults
        .iter()
        .filter(|(is_there, _)| *is_there)
        .fold(String::new(), |all, (_, fault)| format!("{all} · {fault}"));
    let role = if cluster.leads { "leads" } else { "follows" };
    let head = format!(
        "this node {role} · term {} · committed {} · applied {}{faults}",
        count(cluster.term),
        count(cluster.commit_index),
        count(cluster.applied_index)
    );
    let rows = cluster.members.iter().map(|member| {
        vec![
            member.name.clone(),
            if member.leads { "leader".to_owned() } else { member.role.clone() },
            member.health.clone(),
            count(member.lag_entries),
            or_dash(member.lag_bytes, |bytes| amount(bytes, "bytes")),
            or_dash(member.behind_millis, |millis| time(Some(millis / 1000.0))),
        ]
    });
    format!("{head}\n{}", render::table(&["member", "role", "health", "lag", "bytes", "behind"], rows))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;
    use crate::commands::top::{metrics::Metrics, view::Reading};

    const HOSTILE: &str = "a\\nforged\u{1b}[2J\u{202e}";

    fn shown(text: &str) -> Vec<Line> {
        let reading = |at, text: &str| Reading {
            at,
            metrics: Metrics::parse(text),
            status: json!({ "node": HOSTILE, "health": { "status": "good" }, "uptime_seconds": 90 }),
            members: Some(vec![json!({ "name": HOSTILE, "role": "voter", "health": "alive", "leads": true })]),
        };
        let at = Instant::now();
        lines(&View::of(Some(&reading(at, "")), &reading(at + Duration::from_secs(1), text)))
    }

    #[test]
    fn all_sections_are_there_and_no_name_acts_on_the_terminal() {
        let text = format!(
            "thalweg_commands_total 1500\nthalweg_queue_commands 3\nthalweg_http_in_use{{bound=\"requests\"}} 7\n\
             thalweg_http_limit{{bound=\"requests\"}} 14\nthalweg_group_lag{{stream=\"{HOSTILE}\",group=\"g\"}} 12345\n\
             thalweg_subject_subscriptions 2\nthalweg_cache_bytes{{cache=\"{HOSTILE}\"}} 2048\n\
             thalweg_scrub_damages_total 1\n"
        );
        let lines = shown(&text);
        let all: String = lines.iter().map(|line| format!("{}\n", line.text)).collect();
        for wanted in [
            "up 1 m 30 s",
            "commands 1,500/s",
            "commands for the writer",
            "50 %",
            "12,345",
            "2 subscriptions",
            "2.00 KiB",
            "NO LEADER",
            "leader",
            "DAMAGED: 1 ",
        ] {
            assert!(all.contains(wanted), "{wanted}: {all}");
        }
        assert!(lines.iter().all(|line| line.text.chars().all(is_printable)), "{all}");
        assert!(!lines.iter().any(|line| line.text.trim_start().starts_with("forged")), "{all}");
        assert!(lines.iter().any(|line| line.is_heading));
    }

    #[test]
    fn an_idle_node_is_a_few_lines() {
        let lines = shown("thalweg_queue_commands 0\n");
        assert_eq!(lines[1].text, "no traffic");
        assert!(lines.iter().any(|line| line.text == "  all empty"), "{lines:?}");
    }

    #[test]
    fn lines_fit_and_odd_numbers_are_shown() {
        assert_eq!(fitted("grün\u{1b}[2J", 6), "grün·[");
        assert_eq!([1234.5, -2000.4, f64::NAN, 0.2].map(number), ["1,235", "-2,000", "0", "0"]);
        assert_eq!(per_second(Some(0.25), ""), "0.2/s");
        assert_eq!(
            (time(Some(-1.0)), time(None), time(Some(0.0005))),
            ("-".to_owned(), "-".to_owned(), "500 µs".to_owned())
        );
    }
}
