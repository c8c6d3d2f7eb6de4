//! `thalweg plan`: from a stored profile, and from one that it measures.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::node::{Run, command, run};

fn plan(dir: &Path, args: &[&str]) -> Run {
    run(command().arg("plan").args(args).current_dir(dir), b"")
}

const LOAD: [&str; 8] = ["--writes", "20000/s", "--size", "1KB", "--retention", "7d", "--objective", "p99<10ms"];

/// Writes a profile of a cluster of `replicas` nodes whose writes take 20 µs + 10 ns a byte, and 15 µs of CPU.
fn profile(path: &Path, replicas: u32) {
    let run = |payload_bytes: u64| {
        let writes = 10_000;
        json!({
            "payload_bytes": payload_bytes, "writers": 64, "writes": writes, "cpu_seconds": 0.15,
            "seconds": writes as f64 * (20e-6 + 1e-8 * payload_bytes as f64), "log_bytes": writes * (payload_bytes + 100),
            "syncs": 1000, "state_bytes": 0, "peak_memory_bytes": 100_000_000, "p50_micros": 900.0, "p90_micros": 2000.0,
            "p99_micros": 5000.0, "p999_micros": 9000.0,
        })
    };
    let profile = json!({
        "format": 1, "version": "0", "build": "release", "workload": "appends", "durability": "disk", "replicas": replicas,
        "machine": { "processors": 2, "memory_bytes": null, "storage": "ext4 on vda", "kernel": null },
        "disk": { "sync_p50_micros": 80.0, "sync_p99_micros": 200.0, "bytes_per_second": 1e9 },
        "runs": [run(100), run(1000), run(10_000)],
    });
    fs::write(path, profile.to_string()).unwrap();
}

#[test]
fn a_profile_gives_a_plan_with_formulas() {
    let dir = tempfile::tempdir().unwrap();
    profile(&dir.path().join("thalweg-profile.json"), 3);
    let text = plan(dir.path(), &LOAD).ok();
    for wanted in ["3 nodes: 1 cluster of 3", "capacity: 33,333 writes/s", "processors per node: 0.4", "  = ", "note: "]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    // 64 clients that also wait for a round trip write less often.
    let text = plan(dir.path(), &[&LOAD[..], &["--round-trip", "1ms"]].concat()).ok();
    for wanted in ["6 nodes: 2 clusters of 3", "capacity: 21,91", "1000 µs"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    profile(&dir.path().join("thalweg-profile.json"), 1);
    let json = plan(dir.path(), &[&LOAD[..], &["--replicas", "1", "--headroom", "0", "--json"]].concat()).ok();
    let planned: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((planned["plan"]["nodes"].as_u64(), planned["plan"]["clusters"].as_u64()), (Some(1), Some(1)));
    let figures = planned["plan"]["figures"].as_array().unwrap();
    let disk = figures.iter().find(|figure| figure["name"] == "disk_per_node").unwrap();
    assert!(disk["interval"]["value"].as_f64().unwrap() > 20_000.0 * 604_800.0 * 1100.0, "{disk}");
}

#[test]
fn what_cannot_be_planned_fails_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    assert!(plan(dir.path(), &LOAD).fails(3).contains("--measure"));
    fs::write(dir.path().join("thalweg-profile.json"), "{}").unwrap();
    assert!(plan(dir.path(), &LOAD).fails(2).contains("is no profile"));
    profile(&dir.path().join("thalweg-profile.json"), 3);
    let other = plan(dir.path(), &[&LOAD[..], &["--replicas", "1"]].concat()).fails(2);
    assert!(other.contains("that of 3 node") && other.contains("--measure --data DIR --replicas 1"), "{other}");
    let strict = ["--writes", "1/s", "--size", "1", "--retention", "1d", "--objective", "p99<1ms"];
    assert!(plan(dir.path(), &strict).fails(4).contains("meets the objective"));
    assert!(plan(dir.path(), &["--writes", "20000/m"]).fails(2).contains("20000/s"));
    assert!(plan(dir.path(), &[]).fails(2).contains("--writes"));
    assert!(plan(dir.path(), &["--measure", "--data", "none"]).fails(3).contains("no directory none"));
}

/// Measures for about twenty seconds. Run with `cargo test -p thalweg --test suite -- --ignored plan::`.
#[test]
#[ignore = "takes twenty seconds: cargo test -p thalweg --test suite -- --ignored plan::"]
fn a_measured_profile_is_stored_and_leaves_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    for (replicas, wanted) in [("1", "1 nodes: 1 cluster of 1"), ("3", "3 nodes: 1 cluster of 3")] {
        let measure =
            ["--measure", "--data", "data", "--run-time", "300ms", "--profile", "p.json", "--replicas", replicas];
        let shown = plan(dir.path(), &measure).ok();
        assert!(shown.contains("stored in p.json") && shown.lines().count() > 18, "{shown}");
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
        let load =
            ["--writes", "100/s", "--size", "1KB", "--retention", "7d", "--objective", "p50<1m", "--profile", "p.json"];
        let text = plan(dir.path(), &[&load[..], &["--replicas", replicas]].concat()).ok();
        assert!(text.contains(wanted), "{text}");
    }
}
