//! Every guide works as typed. The blocks of a file in `docs/guides/` that are marked `sh tour` run one after the other
//! in one shell, in an empty directory. Their output must match the blocks marked `text shown`: each line of those is
//! part of a line of the output, in this order.
//!
//! Only the ports differ, so that the test does not conflict with other servers.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::node;

/// Returns the fenced blocks with this mark.
pub fn blocks<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    let fence = format!("```{mark}\n");
    let rest = text.split(fence.as_str()).skip(1);
    rest.map(|rest| rest.split_once("\n```").expect("a block has an end").0).collect()
}

fn guides() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let mut guides: Vec<_> = files.filter(|path| path.extension().is_some_and(|name| name == "md")).collect();
    guides.sort();
    guides
}

/// Runs a guide's commands. Returns their output, including stderr, as one text in order.
fn type_in(text: &str) -> (Option<i32>, String) {
    let address = node::free_address();
    let mut typed = blocks(text, "sh tour").join("\n").replace("127.0.0.1:7070", &address);
    for other in ["7080", "7090", "7099", "7171", "7172", "7173", "7174"] {
        typed = typed.replace(&format!("127.0.0.1:{other}"), &node::free_address());
    }
    let ran = run_script(&format!("exec 2>&1\n{typed}"), &address);
    (ran.code, ran.out)
}

/// Runs a script in an empty directory, with the binary under test in the search path and a server's HTTP at `address`.
/// A failing command ends the shell, and the server with it.
pub fn run_script(script: &str, address: &str) -> node::Run {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}\n");
    let bin = Path::new(node::THALWEG).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    node::run(
        node::clean("bash")
            .args(["-c", &script])
            .current_dir(dir.path())
            .env("PATH", path)
            .env("THALWEG_HTTP", address)
            .env("THALWEG_NATIVE", "127.0.0.1:0")
            .env("THALWEG_SERVER", format!("http://{address}"))
            .env("THALWEG_RESERVE_BYTES", "1MiB"),
        b"",
    )
}

#[test]
fn every_guide_works_as_typed_and_shows_what_it_prints() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        return node::skip("every_guide_works_as_typed_and_shows_what_it_prints", "curl is not installed");
    }
    let guides = guides();
    assert!(!guides.is_empty());
    for guide in guides {
        let name = guide.display();
        let text = std::fs::read_to_string(&guide).unwrap();
        assert!(!blocks(&text, "sh tour").is_empty(), "{name} has something to type");
        let (code, printed) = type_in(&text);
        assert_eq!(code, Some(0), "{name}:\n{printed}");
        let mut rest = printed.lines();
        for line in blocks(&text, "text shown").iter().flat_map(|block| block.lines()) {
            assert!(
                rest.any(|printed| printed.contains(line)),
                "{name}: {line:?} is not printed, or too early:\n{printed}"
            );
        }
    }
}

#[test]
fn what_guides_point_at_is_there() {
    for guide in guides() {
        let text = std::fs::read_to_string(&guide).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in links.filter(|link| !link.contains("://")) {
            let file = link.split('#').next().unwrap();
            assert!(guide.parent().unwrap().join(file).exists(), "{}: {link}", guide.display());
        }
    }
}
