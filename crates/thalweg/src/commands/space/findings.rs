//! Advice about disk space. A directory is larger than its payload, the keys, values and records that clients have
//! stored. For each kind of further bytes, this module states the cause and a way to reduce them.
//!
//! Owns: the minimum share of a directory at which bytes become a finding, and the texts with the next step. Does not
//! own: the figures (`report`, as a node computes them), or the output (`space`).

use std::time::Duration;

use serde_json::{Value, json};

use super::report::Report;
use crate::{render, span::show_span};

/// State of the node to which the examined directory belongs: running or stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Running,
    Stopped,
}

/// A reason why the directory is larger than its payload (the keys, values and records that clients have stored).
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) code: &'static str,
    pub(super) bytes: u64,
    pub(super) message: String,
    pub(super) next: String,
}

impl Finding {
    pub(super) fn json(&self) -> Value {
        json!({ "code": self.code, "bytes": self.bytes, "message": self.message, "next": self.next })
    }
}

/// Share of the directory, in percent, below which a kind of bytes is not reported as a finding.
const LEAST_PERCENT: u64 = 5;
/// Size of the state's files, in percent of the size of its rows, above which there is a finding about overwritten rows
/// in the files. Up to this size, the difference is taken to be indexes, filters and checksums.
const STATE_PERCENT: u64 = 115;

/// Returns the reasons why the directory is larger than its payload (the keys, values and records that clients have
/// stored). Reasons with more bytes come first.
pub(super) fn findings(report: &Report, node: Node) -> Vec<Finding> {
    let all =
        [history(report), prepared(report), dead(report, node), replay(report, node), rows(report), versions(report)];
    let state = [reusable(report), journal(report), leftovers(report, node), foreign(report)];
    let is_large = |finding: &Finding| finding.bytes * 100 >= report.bytes * LEAST_PERCENT;
    let mut found: Vec<_> = all.into_iter().chain(state).flatten().filter(is_large).collect();
    found.sort_by_key(|finding| std::cmp::Reverse(finding.bytes));
    found
}

/// Creates a finding about the directory's files of one kind; `None` if they have no bytes.
fn of_kind(report: &Report, kind: &str, code: &'static str, message: String, next: String) -> Option<Finding> {
    let bytes = report.bytes_of(kind);
    (bytes > 0).then_some(Finding { code, bytes, message, next })
}

fn history(report: &Report) -> Option<Finding> {
    let log = &report.log;
    let age = Duration::try_from_secs_f64(log.history_age_seconds).map_or_else(|_| "any age".to_owned(), show_span);
    let message =
        "log kept for watches from a past revision, for incremental backups and for followers that are behind";
    let next = format!(
        "lower `history_bytes` ({}) or `history_age` ({age}): the log keeps what is within both, in whole segments of {}",
        render::bytes(log.history_bytes),
        render::bytes(log.segment_bytes),
    );
    of_kind(report, "log_history", "history", message.to_owned(), next)
}

fn prepared(report: &Report) -> Option<Finding> {
    let log = &report.log;
    let message = "segments that are written in advance, so that writes do not wait for the file system".to_owned();
    let next = format!(
        "lower `spare_segments` ({}) or `segment_bytes` ({}); after a burst of writes, the node keeps more for a minute, \
        and after 30 s without a write it keeps none",
        log.spare_segments,
        render::bytes(log.segment_bytes),
    );
    of_kind(report, "log_prepared", "prepared", message, next)
}

fn dead(report: &Report, node: Node) -> Option<Finding> {
    let message = "log records that were overwritten, deleted or trimmed, and that no history needs".to_owned();
    let next = match (node, report.log.open_snapshots) {
        (Node::Stopped, _) => {
            "start the node: it frees segments without live records, and copies the rest of others".to_owned()
        }
        (Node::Running, 0) => {
            "wait: the node frees a segment once at most half of it is in use; segments with more stay".to_owned()
        }
        (Node::Running, open) => {
            let snapshots = render::counted(open, "snapshot is", "snapshots are");
            format!("wait for the backups: {snapshots} in progress, and no segment is freed meanwhile")
        }
    };
    of_kind(report, "log_dead", "dead", message, next)
}

fn replay(report: &Report, node: Node) -> Option<Finding> {
    let message = "log records whose effects are not yet in the persisted state".to_owned();
    let next = match node {
        Node::Running => "wait: the node persists its state when a memtable (`memtable_bytes`) is full, and at a stop",
        Node::Stopped => "start the node and stop it: it was killed, or could not persist its state",
    };
    of_kind(report, "log_replay", "replay", message, next.to_owned())
}

/// Returns a finding about overwritten and deleted rows in the files of the state; `None` if there is none.
fn rows(report: &Report) -> Option<Finding> {
    let rows = report.payload?.row_bytes;
    let files = report.bytes_of("state");
    if report.backend != "lsm" || files * 100 <= rows * STATE_PERCENT {
        return None;
    }
    let deletions = match report.state.deletions {
        0 => String::new(),
        count => format!(", with {}", render::counted(count, "deletion", "deletions")),
    };
    let message = format!("rows of the state that were overwritten or deleted, and indexes{deletions}");
    let next = "wait: the node compacts the tables while it is written to, and when the disk is full; nothing else removes them";
    Some(Finding { code: "overwritten", bytes: files - rows, message, next: next.to_owned() })
}

fn versions(report: &Report) -> Option<Finding> {
    let bytes = report.payload?.version_bytes;
    let message = "former values, in keyspaces that keep a history".to_owned();
    let next = "keep fewer: `thalweg keyspaces configure NAME --history BOUNDS`, such as `--history 3`";
    (bytes > 0).then_some(Finding { code: "versions", bytes, message, next: next.to_owned() })
}

fn reusable(report: &Report) -> Option<Finding> {
    let bytes = report.state.reusable_bytes;
    let message =
        format!("free pages within the file of {}, which are used again before the file grows", report.backend);
    let next = "nothing, if the data grows again; `thalweg migrate` to another backend and back gives them to the disk";
    (bytes > 0).then_some(Finding { code: "reusable", bytes, message, next: next.to_owned() })
}

fn journal(report: &Report) -> Option<Finding> {
    let message = "the write-ahead log of SQLite, which grows while a scan, a backup or a scrub reads".to_owned();
    let next = "wait for long reads to end: SQLite then uses the file again from its start; a restart makes it small";
    of_kind(report, "state_journal", "journal", message, next.to_owned())
}

fn leftovers(report: &Report, node: Node) -> Option<Finding> {
    let message = "a state that is not in use, of a migration, an install of a snapshot or a rebuild".to_owned();
    let next = match node {
        Node::Running => "wait for the install to end, or restart the node: a start removes them",
        Node::Stopped => {
            "start the node, which removes them, except for a directory `.old`: that is removed by `thalweg state rebuild`"
        }
    };
    of_kind(report, "leftovers", "leftovers", message, next.to_owned())
}

fn foreign(report: &Report) -> Option<Finding> {
    let message = "files in the directory that the node did not create".to_owned();
    of_kind(report, "foreign", "foreign", message, "move them elsewhere, or remove them".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a report of a directory. `kinds` are the numbers of bytes by kind.
    fn report(kinds: &[(&str, u64)], row_bytes: u64, open_snapshots: u64) -> Report {
        let all = kinds.iter().map(|(kind, bytes)| json!({ "kind": kind, "files": 1, "bytes": bytes }));
        let object = json!({
            "backend": "lsm", "files": kinds.len(), "bytes": kinds.iter().map(|(_, bytes)| bytes).sum::<u64>(),
            "kinds": all.collect::<Vec<_>>(), "count_bytes": 0,
            "payload": { "bytes": row_bytes, "keys": 1, "parts": 0, "records": 0, "version_bytes": 0, "row_bytes": row_bytes },
            "log": {
                "segment_bytes": 64 << 20, "spare_segments": 2, "history_bytes": 1 << 30, "history_age_seconds": 3600.0,
                "open_snapshots": open_snapshots,
            },
            "state": { "levels": [], "deletions": 3, "reusable_bytes": 0 },
        });
        serde_json::from_value(object).unwrap()
    }

    fn codes(found: &[Finding]) -> Vec<&'static str> {
        found.iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn large_parts_are_found_and_small_ones_are_not() {
        let kinds = [("log_history", 500), ("log_prepared", 300), ("log_dead", 20), ("state", 200), ("node", 10)];
        let found = findings(&report(&kinds, 200, 0), Node::Running);
        assert_eq!(codes(&found), ["history", "prepared"], "the largest first; dead is below five percent");
        assert!(
            found[0].next.contains("`history_bytes` (1.00 GiB)") && found[0].next.contains("(1 h 0 m)"),
            "{found:?}"
        );
        assert!(findings(&report(&[("state", 200)], 190, 0), Node::Running).is_empty(), "five percent of indexes");
    }

    #[test]
    fn overwritten_rows_and_their_next_step_are_named() {
        let found = findings(&report(&[("state", 300)], 100, 0), Node::Running);
        assert_eq!((codes(&found), found[0].bytes), (vec!["overwritten"], 200));
        assert!(found[0].message.contains("3 deletions"), "{found:?}");
    }

    #[test]
    fn advice_depends_on_the_node() {
        let kinds = [("log_dead", 100), ("leftovers", 50), ("log_replay", 70)];
        let next = |node, snapshots: u64| {
            let found = findings(&report(&kinds, 1, snapshots), node);
            assert_eq!(codes(&found), ["dead", "replay", "leftovers"]);
            found.into_iter().map(|finding| finding.next).collect::<Vec<_>>()
        };
        assert!(next(Node::Stopped, 0)[0].contains("start the node"));
        assert!(next(Node::Running, 0)[0].contains("at most half"));
        assert!(next(Node::Running, 2)[0].contains("2 snapshots are in progress"));
    }
}
