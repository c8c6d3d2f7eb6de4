//! Short simulations: without a planted bug none finds a violation, and with one each bug is found.

use std::process::Command;

use clap::ValueEnum as _;
use thalweg_sim::{Plant, Settings, run, shrink::shrink};

/// Seeds within which each planted bug must be found.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=200;

#[test]
fn a_cluster_with_faults_breaks_no_promise() {
    for seed in 1..=12 {
        let report = run(&Settings { seed, ..Settings::default() });
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.story());
        assert!(report.checked > 1000 && report.unknown > 0, "{report}");
    }
}

#[test]
fn five_nodes_break_no_promise() {
    for seed in 1..=3 {
        let report = run(&Settings { seed, nodes: 5, ..Settings::default() });
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.story());
    }
}

#[test]
fn every_planted_bug_is_found() {
    for plant in Plant::value_variants() {
        let found = SEEDS.clone().find(|seed| {
            let settings = Settings { seed: *seed, plant: Some(*plant), ..Settings::default() };
            !run(&settings).violations.is_empty()
        });
        eprintln!("{plant:?}: seed {found:?}");
        assert!(found.is_some(), "{plant:?} is not found");
    }
}

#[test]
fn a_failing_seed_is_shrunk_to_a_few_faults() {
    let planted = |seed| Settings { seed, plant: Some(Plant::VoidEntryRead), ..Settings::default() };
    let settings = SEEDS.map(planted).find(|settings| !run(settings).violations.is_empty()).expect("it is found");
    let all = settings.script().len();
    let report = shrink(&settings, |_| {}).expect("the seed has a violation");
    let left = all - report.settings.without.len();
    assert!(left < all && !report.violations.is_empty(), "{left} of {all}");
    assert_eq!(run(&report.settings).fingerprint, report.fingerprint, "the shrunk seed can be repeated");
    assert!(shrink(&Settings { seed: 1, ..Settings::default() }, |_| {}).is_none());
}

#[test]
fn a_seed_gives_the_same_story_in_two_processes() {
    let story = |seed: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_thalweg-sim")).args(["replay", seed, "--seconds", "10"]).output();
        let output = output.expect("the command runs");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let (one, same, other) = (story("7"), story("7"), story("8"));
    assert!(one == same && one != other && one.lines().count() > 5, "{one}");
}

#[test]
fn the_command_reports_a_violation_and_keeps_its_story() {
    let dir = std::env::temp_dir().join(format!("thalweg-sim-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg-sim"));
    command.args(["run", "--seeds", "3", "--plant", "own-clock", "--json", "--artifacts"]).arg(&dir);
    let output = command.output().expect("the command runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("\"failed\": [\n"), "{text}");
    let artifacts: Vec<_> = std::fs::read_dir(&dir).expect("artifacts").flatten().collect();
    let story = std::fs::read_to_string(artifacts[0].path()).expect("text");
    assert!(story.contains("\"violations\"") && story.contains("VIOLATION"), "{story}");
    std::fs::remove_dir_all(&dir).expect("the directory can be removed");
}
