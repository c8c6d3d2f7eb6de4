//! Dependencies point in one direction, from the binary down to `types`. The core has no clock, socket, async runtime
//! or randomness of its own.
//!
//! The test reads the workspace as text: manifests for the dependencies, sources for the calls of the core. The tables
//! below are the rule. A crate that is missing from them fails the test, so each new crate is placed deliberately.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Allowed dependencies of each crate within this workspace, ordered from the bottom up.
const MAY_USE: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("disk", &["types"]),
    ("doctor", &["disk"]),
    ("planner", &[]),
    ("log", &["types", "disk"]),
    ("redis", &["types"]),
    ("store", &["types", "disk"]),
    ("state", &["types", "store", "redis"]),
    ("replica", &["types", "disk", "log", "store", "state", "redis"]),
    ("raft", &["types", "disk", "log", "state", "replica"]),
    ("snapshot", &["types", "disk", "log", "store", "state", "replica"]),
    ("recipes", &["types"]),
    ("wire", &["types"]),
    ("broker", &["types"]),
    ("transport", &["types"]),
    ("client", &["types", "wire", "transport"]),
    ("engine", &["types", "disk", "log", "store", "state", "replica", "snapshot", "recipes", "redis"]),
    ("sim", &["types", "disk", "log", "store", "state", "replica", "raft", "engine"]),
    ("serving", &["types", "broker", "engine", "transport"]),
    (
        "cluster",
        &["types", "disk", "log", "state", "replica", "raft", "engine", "wire", "broker", "transport", "serving"],
    ),
    ("http", &["types", "wire", "broker", "engine", "serving"]),
    ("native", &["types", "wire", "broker", "engine", "transport", "serving"]),
    ("resp", &["types", "wire", "broker", "engine", "transport", "redis", "serving"]),
    ("server", &["types", "engine", "transport", "serving", "http", "native", "resp"]),
    ("lab", &["types", "doctor"]),
    ("load", &["types", "disk", "doctor", "wire", "transport", "redis", "lab"]),
    ("bench", &["types", "disk", "log", "store", "wire", "transport", "engine", "redis", "lab", "load"]),
    ("bench-cluster", &["types", "client", "cluster", "lab", "load"]),
    ("bench-pressure", &["types", "lab", "load"]),
    (
        "thalweg",
        &[
            "types",
            "disk",
            "doctor",
            "planner",
            "log",
            "state",
            "replica",
            "recipes",
            "engine",
            "cluster",
            "server",
            "bench",
            "bench-cluster",
            "bench-pressure",
        ],
    ),
];

/// Additional crates allowed for a crate's tests.
const TESTS_MAY_ALSO_USE: &[(&str, &[&str])] = &[
    ("state", &["disk", "log"]),
    ("raft", &["store"]),
    ("engine", &["raft"]),
    ("client", &["engine", "server"]),
    ("bench", &["server"]),
    ("serving", &["wire", "redis"]),
    ("thalweg", &["sim", "client", "wire", "lab"]),
    ("cluster", &["store"]),
    // The log and the replica make an engine a member that lags behind its cluster.
    ("server", &["disk", "log", "replica", "wire", "broker", "redis"]),
];

/// Crates without time, randomness, sockets or tasks of their own.
const CORE: &[&str] = &[
    "types", "disk", "log", "store", "state", "replica", "raft", "snapshot", "recipes", "wire", "broker", "redis",
    "engine",
];

/// External crates that a core crate may use only in its tests.
const NOT_IN_CORE: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "hyper",
    "axum-core",
    "quinn",
    "rustls",
    "ureq",
    "reqwest",
    "rand",
    "chrono",
    "time",
];

/// Text forbidden in a core crate's sources, with the reason.
const FORBIDDEN: &[(&str, &str)] = &[
    ("tokio::", "the core runs under any runtime, and under none"),
    ("std::net", "sockets belong to the server and the load generator"),
    ("SystemTime::now", "wall time is an argument: take a Clock"),
    ("Instant::now", "time is an argument: take a Clock"),
    ("clock_gettime(", "time is an argument: take a Clock"),
    ("thread_rng", "seeds are arguments"),
    ("rand::rng()", "seeds are arguments"),
    ("from_os_rng", "seeds are arguments"),
    ("from_entropy", "seeds are arguments"),
    ("RandomState::new", "seeds are arguments"),
];

/// Permitted uses of forbidden text: file, text, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("crates/types/src/clock.rs", "SystemTime::now", "SystemClock is the wall clock"),
    (
        "crates/types/src/clock.rs",
        "clock_gettime(",
        "SystemClock is the clock that goes on while a machine is suspended",
    ),
    ("crates/log/src/prepare.rs", "Instant::now", "bounds a wait; nothing stored depends on it"),
    ("crates/log/src/prepare/files.rs", "Instant::now", "paces the zeroing; nothing stored depends on it"),
    (
        "crates/store/src/buffered/shared.rs",
        "Instant::now",
        "counts how long a stall took; nothing stored depends on it",
    ),
    ("crates/snapshot/src/file.rs", "Instant::now", "paces the writing of a file; nothing stored depends on it"),
    ("crates/snapshot/src/pipeline.rs", "Instant::now", "paces the reading of a view; nothing stored depends on it"),
    ("crates/store/src/buffered/ahead.rs", "Instant::now", "measures how fast the kernel provides memory"),
    (
        "crates/store/src/lsm/store.rs",
        "Instant::now",
        "measures compactions, to whose rate writes slow down; nothing stored depends on it",
    ),
    (
        "crates/store/src/lsm/tables/writeback.rs",
        "Instant::now",
        "paces how tables go to the disk beside writers; nothing stored depends on it",
    ),
    ("crates/snapshot/src/stats.rs", "Instant::now", "measures how long a snapshot took, for metrics"),
    ("crates/engine/src/maintenance.rs", "Instant::now", "paces the rounds of the maintenance thread"),
    ("crates/engine/src/stream.rs", "Instant::now", "bounds a blocking wait; nothing stored depends on it"),
    ("crates/engine/src/watch.rs", "Instant::now", "bounds a blocking wait; nothing stored depends on it"),
    ("crates/engine/src/group/fetch.rs", "Instant::now", "bounds a blocking wait; nothing stored depends on it"),
    ("crates/engine/src/open.rs", "RandomState::new", "a directory opened by path takes its seed from the system"),
];

#[test]
fn crates_depend_downwards_only() {
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for dir in crate_dirs() {
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let manifest: toml::Table = fs::read_to_string(dir.join("Cargo.toml")).unwrap().parse().unwrap();
        let Some(allowed) = lookup(MAY_USE, &name) else {
            wrong.push(format!("crates/{name} is not in this test's table: say there what it may use"));
            continue;
        };
        let also = lookup(TESTS_MAY_ALSO_USE, &name).unwrap_or(&[]);
        for used in dependencies(&manifest, &["dependencies", "build-dependencies"]) {
            if let Some(used) = used.strip_prefix("thalweg-")
                && !allowed.contains(&used)
            {
                wrong.push(format!("crates/{name} may not depend on {used}"));
            }
            if CORE.contains(&name.as_str()) && NOT_IN_CORE.contains(&used.as_str()) {
                wrong.push(format!("crates/{name} is core and may not depend on {used}"));
            }
        }
        for used in dependencies(&manifest, &["dev-dependencies"]) {
            if let Some(used) = used.strip_prefix("thalweg-")
                && used != name
                && !allowed.contains(&used)
                && !also.contains(&used)
            {
                wrong.push(format!("the tests of crates/{name} may not depend on {used}"));
            }
        }
        seen.push(name);
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    for (name, _) in MAY_USE {
        assert!(seen.iter().any(|seen| seen == name), "crates/{name} is in this test's table and is gone");
    }
}

#[test]
fn the_table_itself_goes_one_way() {
    for (at, (name, allowed)) in MAY_USE.iter().enumerate() {
        for used in *allowed {
            let below = MAY_USE[..at].iter().any(|(name, _)| name == used);
            assert!(below, "{name} may use {used}, which is not below it");
        }
    }
}

#[test]
fn core_crates_are_given_time_and_seeds() {
    let mut wrong = Vec::new();
    let mut used_exceptions = vec![false; EXCEPTIONS.len()];
    for name in CORE {
        for file in rust_files(&root().join("crates").join(name).join("src")) {
            let path = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(&file).unwrap();
            for (line, code) in production_code(&text) {
                for (forbidden, why) in FORBIDDEN.iter().filter(|(forbidden, _)| code.contains(forbidden)) {
                    match EXCEPTIONS.iter().position(|(file, text, _)| *file == path && text == forbidden) {
                        Some(at) => used_exceptions[at] = true,
                        None => wrong.push(format!("{path}:{line}: {forbidden}: {why}")),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    for (used, (file, text, _)) in used_exceptions.iter().zip(EXCEPTIONS) {
        assert!(used, "the exception for {text} in {file} is no longer needed");
    }
}

#[test]
fn the_scan_sees_what_it_should() {
    let text = "//! Instant::now in words\nfn f() {\n    Instant::now(); // why\n}\n\n#[cfg(test)]\nmod tests {\n    \
                SystemTime::now();\n}\n";
    let code: Vec<_> = production_code(text).collect();
    assert!(code.contains(&(3, "    Instant::now(); ")));
    assert!(!code.iter().any(|(_, code)| code.contains("in words") || code.contains("SystemTime")));
}

/// Returns the numbered lines without comments and without a test module at the end.
fn production_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let tests_at = lines
        .windows(2)
        .position(|pair| pair[0].starts_with("#[cfg(test)]") && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
    let end = tests_at.unwrap_or(lines.len());
    lines.into_iter().take(end).enumerate().map(|(at, line)| (at + 1, line.split("//").next().unwrap_or("")))
}

fn dependencies(manifest: &toml::Table, sections: &[&str]) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    let mut names = Vec::new();
    for table in std::iter::once(manifest).chain(tables) {
        for section in sections {
            let section = table.get(*section).and_then(toml::Value::as_table);
            names.extend(section.into_iter().flat_map(|section| section.keys().cloned()));
        }
    }
    names
}

fn lookup<'a>(table: &[(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|(of, _)| *of == name).map(|(_, allowed)| *allowed)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn crate_dirs() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.join("Cargo.toml").exists()).collect()
}

/// Returns all `.rs` files below `dir`, except files that contain only tests.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("").to_owned();
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
