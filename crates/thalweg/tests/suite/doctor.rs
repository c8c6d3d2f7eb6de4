//! `thalweg doctor` as users run it: on a directory, beside a running node, and interrupted.

use std::{fs, path::Path, process::Stdio, time::Instant};

use serde_json::Value;

use crate::node::{self, Node, Run, command, run, wait_for};

fn doctor(data: &Path, more: &[&str]) -> Run {
    run(command().args(["doctor", "--data"]).arg(data).args(more), b"")
}

/// Parses the JSON of a run, whose exit code must say whether there are problems. Which ones there are depends on the
/// machine.
fn examined(run: &Run) -> Value {
    let object: Value = serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    let expected = i32::from(object["problems"].as_u64().unwrap() > 0);
    assert_eq!(run.code, Some(expected), "{run:?}");
    object
}

fn codes(object: &Value) -> Vec<String> {
    let findings = object["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_directory_is_examined_and_stays_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let object = examined(&doctor(root.path(), &["--probe", "50ms", "--json"]));
    assert_eq!(names(root.path()), Vec::<String>::new());
    let facts = &object["facts"];
    let syncs = &facts["syncs"]["small"];
    assert!(syncs["count"].as_u64().unwrap() >= 2, "{object}");
    assert!(syncs["p50_micros"].as_f64().unwrap() <= syncs["max_micros"].as_f64().unwrap(), "{object}");
    assert!(facts["space"]["total_bytes"].as_u64().unwrap() > 0 && facts["limits"]["processors"].as_u64().unwrap() > 0);
    for finding in object["findings"].as_array().unwrap() {
        assert!(
            ["message", "meaning", "next", "severity"].iter().all(|name| !finding[name].as_str().unwrap().is_empty())
        );
    }
    let counts = ["problems", "weaknesses", "notes"].map(|name| object[name].as_u64().unwrap());
    assert_eq!(counts.iter().sum::<u64>(), codes(&object).len() as u64);
}

/// Advice about the owners and permissions of `/etc` would break the machine of a user who follows it.
#[test]
fn a_directory_of_another_program_gets_no_advice_about_its_permissions() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let object = examined(&doctor(root.path(), &["--probe", "0s", "--json"]));
    assert!(codes(&object).contains(&"open_to_others".to_owned()), "{object}");
    fs::write(root.path().join("passwd"), "").unwrap();
    let other = doctor(root.path(), &["--probe", "0s", "--json"]);
    assert!(!other.out.contains("chmod") && !other.out.contains("chown"), "{other:?}");
    assert!(codes(&examined(&other)).contains(&"other_files".to_owned()), "{other:?}");
}

/// The guide to clusters exports the token, and uses the same shell for other commands.
#[test]
fn a_join_token_in_the_environment_is_no_fault() {
    let root = tempfile::tempdir().unwrap();
    for line in ["doctor --json --probe 0s --data", "space --json --data"] {
        let mut command = command();
        command.args(line.split(' ')).arg(root.path()).env("THALWEG_JOIN_TOKEN", "thalweg-join-x");
        let run = run(&mut command, b"");
        assert!(!run.err.contains("join_token") && run.code != Some(2), "{line}: {run:?}");
    }
}

#[test]
fn settings_of_the_node_are_checked_and_nothing_is_written_without_a_probe() {
    let root = tempfile::tempdir().unwrap();
    let (data, config) = (root.path().join("data"), root.path().join("node.toml"));
    fs::create_dir(&data).unwrap();
    fs::write(&config, "reserve_bytes = \"4000000GiB\"\nmax_connections = 4000000000\n").unwrap();
    let before = fs::metadata(&data).unwrap().modified().unwrap();
    let given = ["--config", config.to_str().unwrap(), "--probe", "0s"];
    let text = doctor(&data, &given);
    assert!(text.err.contains("problem") && text.code == Some(1), "{text:?}");
    assert!(text.out.contains("[no_room]") && text.out.contains("→") && text.out.contains("not measured"), "{text:?}");
    let object = examined(&doctor(&data, &[&given[..], &["--json"]].concat()));
    assert!(codes(&object).contains(&"no_room".to_owned()) && object["facts"]["syncs"].is_null(), "{object}");
    assert_eq!((names(&data), fs::metadata(&data).unwrap().modified().unwrap()), (Vec::new(), before));
    assert!(doctor(&root.path().join("none"), &[]).fails(3).contains("--data"));
    assert!(!root.path().join("none").exists());
}

#[test]
fn a_running_node_is_not_disturbed() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    let node = Node::start(&data);
    let before = names(&data).len();
    let object = examined(&doctor(&data, &["--probe", "20ms", "--json"]));
    // Some sandboxes have an empty list of locks.
    if fs::read_to_string("/proc/locks").is_ok_and(|text| !text.is_empty()) {
        assert!(codes(&object).contains(&"in_use".to_owned()), "{object}");
    }
    assert_eq!(names(&data).len(), before);
    node.cli(&["put", "users", "ada", "1815"]).ok();
    node.stop();
}

#[test]
fn a_signal_ends_the_probe_and_its_file_goes() {
    let root = tempfile::tempdir().unwrap();
    let mut child = command()
        .args(["doctor", "--probe", "10m", "--data"])
        .arg(root.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while names(root.path()).is_empty() {
        assert!(began.elapsed() < node::PATIENCE, "no probe file");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // SAFETY: kill takes no pointers, and the pid is of a child that has not been waited for.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGTERM) };
    let status = wait_for(&mut child, node::PATIENCE).expect("ends in time");
    assert_eq!((status.code(), names(root.path())), (Some(1), Vec::new()));
}
