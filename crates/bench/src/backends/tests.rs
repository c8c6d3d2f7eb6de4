use super::*;
use crate::{Quiet, options::parsed, report::Verdict};

fn options(flags: &str) -> BackendsOptions {
    parsed(flags.split_whitespace()).unwrap()
}

#[test]
fn every_cell_is_filled_and_plotted() {
    let plots = tempfile::tempdir().unwrap();
    let flags = format!("--samples 1 --plots {} --sweep-size 1000 --sweep-readers 2", plots.path().display());
    let report = run(&options(&flags), &mut Quiet).unwrap();
    assert_eq!(
        report.tables[0].rows.len(),
        (GROUPS.len() - 2) * 4 * 2 + 2 * 4,
        "four backends, two modes; many writers in one"
    );
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    for row in json["tables"][0]["rows"].as_array().unwrap() {
        assert!(row["per s"].as_f64().unwrap() > 0.0, "{row}");
    }
    // Other tests use the same disk, so the check that the disk was steady may fail.
    let measured = report.checks.iter().filter(|check| check.is_goal);
    assert!(report.checks.len() >= 12 && measured.clone().all(|check| check.verdict != Verdict::Void));
    let text = report.to_text();
    for part in ["behind the log", "synced per batch", "of the raw disk probe's rate", "95 % intervals overlap"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let mut files: Vec<_> = std::fs::read_dir(plots.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files.len(), GROUPS.len() + 2, "{files:?}");
    for name in files {
        let svg = std::fs::read_to_string(plots.path().join(&name)).unwrap();
        assert!(!svg.contains("00000000"), "a label of {name} shows how floats are stored");
    }
    let sweeps: Vec<_> = report.tables[2..].iter().map(|table| table.rows.len()).collect();
    assert_eq!(sweeps, [2 * 4, 2 * 4], "100 and 1000 entries, 1 and 2 readers; each store once");
    for part in ["a random read takes", "one thread reads"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let svg = std::fs::read_to_string(plots.path().join("sweep-readers.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("sqlite"), "{svg}");
}

#[test]
fn only_some_groups_run_if_they_are_named() {
    let flags = "--samples 2 --warmup-samples 0 --backends lsm --modes behind-log --only write_throughput";
    let report = run(&options(flags), &mut Quiet).unwrap();
    assert_eq!(report.tables[0].rows.len(), 1);
    let details = &report.tables[1];
    let samples = details.columns.iter().position(|column| *column == "samples").unwrap();
    assert_eq!(details.rows[0][samples], crate::report::Cell::Count(2), "none warms up, so all are counted");
    assert!(parsed::<BackendsOptions>(["--only", "writes"]).is_err());
    assert!(parsed::<BackendsOptions>(["--only", "write_throughput", "--no-groups"]).is_err());
}

#[test]
fn the_clocks_of_a_store_are_those_of_its_own_samples() {
    const SETS: u64 = 5;
    let (_, scratch) = Report::begin_below("backends", None).unwrap();
    let stores = [BackendKind::Memory, BackendKind::Lsm].map(|kind| Subject::own(kind, Mode::BehindLog));
    let workload = Workload { values: Values::new(100, 1), seed: 1 };
    let effort = MeasuringEffort { samples: 2, warmups: 1, cache_bytes: 1 << 20 };
    let begun = std::time::Instant::now();
    let stores: Vec<_> = stores.iter().collect();
    let group = Group::Writes(SETS);
    let cells = measure(group, &stores, &workload, effort, &scratch, &mut || Ok(()), &mut Quiet).unwrap();
    let all = begun.elapsed().as_secs_f64();
    for cell in &cells {
        let timed = cell.micros.iter().sum::<f64>() * SETS as f64 / 1e6;
        assert!(cell.clocks.seconds >= timed && timed > 0.0, "{timed}: {:?}", cell.clocks);
    }
    let together: f64 = cells.iter().map(|cell| cell.clocks.seconds).sum();
    assert!(together < all, "{together} s of {all} s: the stores take turns");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for flags in
        ["--samples 0", "--warmup-samples 10001", "--no-groups", "--sweep-size 5", "--sweep-readers 0 --no-groups"]
    {
        let error = run(&options(flags), &mut Quiet).unwrap_err();
        assert!(matches!(error, BenchError::Option { .. }), "{flags}: {error}");
    }
    assert!(parsed::<BackendsOptions>(["--backends", "tape"]).is_err());
}

#[test]
fn the_command_lines_defaults_are_the_defaults() {
    assert_eq!(options(""), BackendsOptions::default());
}
