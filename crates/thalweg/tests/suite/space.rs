//! `thalweg space` as users run it: on a directory at rest and on a running node, with each backend, against `du`.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    client::json,
    node::{Node, PATIENCE, Run, clean, command, run},
};

fn at_rest(data: &Path, more: &[&str]) -> Run {
    run(command().args(["space", "--data"]).arg(data).args(more), b"")
}

/// Returns the bytes that `du` counts for a directory.
fn du(data: &Path) -> u64 {
    let output = Command::new("du").args(["-s", "--block-size=1"]).arg(data).output().expect("du");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

fn bytes_of(report: &Value, kind: &str) -> u64 {
    let kinds = report["kinds"].as_array().unwrap();
    kinds.iter().find(|part| part["kind"] == kind).map_or(0, |part| part["bytes"].as_u64().unwrap())
}

fn codes(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|finding| finding["code"].as_str().unwrap()).collect()
}

/// Checks that the kinds add up to the report's sum, and returns this sum.
fn sum(report: &Value) -> u64 {
    let kinds = report["kinds"].as_array().unwrap().iter();
    let sum: u64 = kinds.map(|part| part["bytes"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), report["bytes"].as_u64(), "{report}");
    sum
}

/// Asks a running node until no file changes during the answer. Returns the report and the bytes that `du` counts.
fn served(node: &Node, data: &Path) -> (Value, u64) {
    let begun = Instant::now();
    loop {
        let before = du(data);
        let report = json(&node.cli(&["space", "--json"]).ok());
        let after = du(data);
        if before == after || begun.elapsed() > PATIENCE {
            return (report, after);
        }
        // Segments are being prepared.
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_parts_add_up_to_what_du_counts_with_each_backend_running_and_at_rest() {
    for backend in ["lsm", "memory", "redb", "sqlite"] {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        let node = Node::start_with(&data, &["--backend", backend]);
        let value = "v".repeat(100);
        for number in 0..20 {
            node.cli(&["put", "users", &format!("key {number:02}"), &value]).ok();
        }
        node.cli(&["append", "events", "a", "b", "c"]).ok();
        let (report, counted) = served(&node, &data);
        assert_eq!(sum(&report), counted, "{backend}, running: {report}");
        assert_eq!((&report["backend"], &report["payload"]["keys"]), (&Value::from(backend), &Value::from(20)));
        node.stop();

        let counted = du(&data);
        let report = json(&at_rest(&data, &["--json"]).ok());
        assert_eq!(sum(&report), counted, "{backend}, at rest: {report}");
        let payload = &report["payload"];
        assert_eq!((payload["key_bytes"].as_u64(), payload["value_bytes"].as_u64()), (Some(120), Some(2000)));
        assert_eq!(payload["records"].as_u64(), Some(3));
        assert!(payload["bytes"].as_u64() > Some(2120), "{report}");
        assert!(report["ratio"].is_null() && report["ratio_without_history"].is_null(), "{report}");
        assert!(bytes_of(&report, "state") > 0 && bytes_of(&report, "node") > 0, "{report}");
        assert_eq!(bytes_of(&report, "log_replay"), 0, "the node was stopped cleanly: {report}");
        assert!(bytes_of(&report, "log_prepared") >= 4 << 20, "{report}");
        assert_eq!(codes(&report)[0], "prepared");
        let again = json(&at_rest(&data, &["--json"]).ok());
        assert_eq!(again["payload"], report["payload"], "{backend}: the command changes nothing");
        assert_eq!(again["kinds"][0], report["kinds"][0], "{backend}");
        let text = at_rest(&data, &[]).ok();
        let parts = [
            "of payload (20 keys, 3 records): ratio –",
            "log: prepared",
            "total",
            "`spare_segments` (2)",
            "[prepared]",
        ];
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn live_dead_and_kept_log_are_told_apart_and_reports_are_compared() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    let (large, file) = (root.path().join("large"), root.path().join("before.json"));
    fs::write(&large, vec![b'x'; 1 << 20]).unwrap();
    let large = fs::read(&large).unwrap();
    let node = Node::start_with(&data, &["--history-bytes", "1GiB"]);
    let put = |key: &str| {
        let done = run(command().args(["put", "files", key, "-"]).env("THALWEG_SERVER", &node.url), &large);
        done.ok();
    };
    (0..12).for_each(|number| put(&format!("file {number:02}")));
    let (report, _) = served(&node, &data);
    assert_eq!(report["payload"]["value_bytes"].as_u64(), Some(12 << 20), "{report}");
    assert!(report["ratio"].as_f64() > report["ratio_without_history"].as_f64(), "{report}");
    assert!(report["ratio_without_history"].as_f64() >= Some(1.0), "{report}");
    assert!(bytes_of(&report, "log_live") >= 12 << 20, "{report}");
    fs::write(&file, report.to_string()).unwrap();
    node.cli(&["del", "files", "--prefix", "file"]).ok();
    let begun = Instant::now();
    let emptied = loop {
        let report = json(&node.cli(&["space", "--json"]).ok());
        // The removal of the rows of a prefix takes maintenance a moment.
        if bytes_of(&report, "log_live") == 0 || begun.elapsed() > PATIENCE {
            break report;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(bytes_of(&emptied, "log_live"), 0, "{emptied}");
    assert_eq!(emptied["payload"]["keys"].as_u64(), Some(0));
    let compared = node.cli(&["space", "--compare", file.to_str().unwrap()]).ok();
    let live = compared.lines().find(|line| line.starts_with("log: records and large values")).unwrap_or_default();
    assert!(live.contains("-12."), "{compared}");
    node.stop();

    let kept = json(&at_rest(&data, &["--json"]).ok());
    assert!(bytes_of(&kept, "log_history") >= 12 << 20 && codes(&kept).contains(&"history"), "{kept}");
    // The settings decide what is kept for history.
    let config = root.path().join("node.toml");
    fs::write(&config, "history_bytes = \"0\"\n").unwrap();
    let not_kept = json(&at_rest(&data, &["--json", "--config", config.to_str().unwrap()]).ok());
    assert_eq!(bytes_of(&not_kept, "log_history"), 0, "{not_kept}");
    assert!(bytes_of(&not_kept, "log_dead") >= 12 << 20 && codes(&not_kept).contains(&"dead"), "{not_kept}");
    assert_eq!(sum(&not_kept), sum(&kept));
}

#[test]
fn what_cannot_be_examined_is_said() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    assert!(at_rest(&data, &[]).fails(3).contains("directory"));
    assert!(!data.exists());
    let node = Node::start(&data);
    assert!(at_rest(&data, &[]).fails(5).contains("--server"));
    let wrong = root.path().join("wrong.json");
    fs::write(&wrong, "{}").unwrap();
    assert!(node.cli(&["space", "--compare", wrong.to_str().unwrap()]).fails(2).contains("no report"));
    assert!(node.cli(&["space", "--config", "x.toml"]).fails(2).contains("--data"));
    fs::write(data.join("notes.txt"), vec![b'n'; 1 << 20]).unwrap();
    let (report, counted) = served(&node, &data);
    assert_eq!(sum(&report), counted);
    assert!(bytes_of(&report, "foreign") >= 1 << 20, "{report}");
    node.kill();
    let counted = du(&data);
    let killed = json(&at_rest(&data, &["--json"]).ok());
    assert_eq!(sum(&killed), counted, "{killed}");
    // A killed node has persisted no state yet.
    assert!(bytes_of(&killed, "log_replay") > 0, "{killed}");
    let unreachable = run(clean(crate::node::THALWEG).args(["space", "--server", "http://127.0.0.1:1"]), b"");
    unreachable.fails(5);
}
