//! The README's tour works as typed: its blocks run one after the other in one shell, in an empty directory.
//!
//! Only the port differs, so that the test does not conflict with other servers.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    guides::{blocks, run_script},
    node,
};

const README: &str = include_str!("../../../../README.md");

/// End of the command that measures a node.
const BENCH_ENDS: &str = "--max-lag 250ms";

#[test]
fn the_tour_works_as_typed() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        return node::skip("the_tour_works_as_typed", "curl is not installed");
    }
    let blocks = blocks(README, "sh tour");
    assert!(blocks.len() >= 8, "README has its tour");
    let address = node::free_address();
    let tour = blocks.join("\n").replace("127.0.0.1:7070", &address);
    assert!(tour.contains(BENCH_ENDS), "README measures a node");
    // The host of a virtual machine can take so much of the processors' time that no run is valid.
    let tour = tour.replace(BENCH_ENDS, &format!("{BENCH_ENDS} || echo \"the bench ended with $?\""));
    let toured = run_script(&tour, &address);
    let context = format!("{}\n--- stderr\n{}", toured.out, toured.err);
    assert_eq!(toured.code, Some(0), "{context}");
    if context.contains("the bench ended with") {
        assert!(context.contains("stolen time"), "the bench fails:\n{context}");
        node::skip("the README's bench", "the host takes the processors' time");
    }
    for part in [
        "revision 2",
        r#"{"born": 1815}"#,
        "exit code 4",
        "order 7 paid",
        "paid",
        "20,000 records",
        "S10002",
        "recovered",
        "good: ",
        "S20000",
        "thalweg bench http",
    ] {
        assert!(context.contains(part), "{part:?} is missing from what the tour prints:\n{context}");
    }
}

#[test]
fn the_readme_names_its_two_commands() {
    assert!(README.contains("cargo run --release -- serve"));
    assert!(README.contains("cargo test --workspace"));
}

#[test]
fn what_the_readme_points_at_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let links: Vec<_> =
        README.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link).collect();
    assert!(links.len() >= 5);
    for link in links.into_iter().filter(|link| !link.contains("://")) {
        assert!(root.join(link.split('#').next().unwrap()).exists(), "{link}");
    }
}
