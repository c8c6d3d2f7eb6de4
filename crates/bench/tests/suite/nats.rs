//! Scenarios over core NATS and JetStream, against the NATS server of `peers/nats`, whose program `THALWEG_NATS_PEER`
//! names. They are skipped without it.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdin, Command, Stdio},
};

use tempfile::TempDir;
use thalweg_bench::{BenchError, Report};

use crate::{
    common::{self, assert_positive, assert_right, feed_row},
    skip::skip,
};

/// A NATS server with JetStream in a process of its own, which ends with its standard input.
struct NatsServer {
    process: Child,
    stdin: Option<ChildStdin>,
    /// Address as `host:port`.
    address: String,
    _store: TempDir,
}

impl NatsServer {
    /// Starts the server. Returns `None` and prints why the test is skipped if no program is named.
    fn start(test: &str) -> Option<Self> {
        let Some(program) = std::env::var_os("THALWEG_NATS_PEER") else {
            skip(test, "THALWEG_NATS_PEER names no program built from peers/nats");
            return None;
        };
        let store = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.args(["serve", "-store"]).arg(store.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the program of THALWEG_NATS_PEER starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("nats://").expect("the program prints its address").to_owned();
        let stdin = process.stdin.take();
        Some(Self { process, stdin, address, _store: store })
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.process.wait();
    }
}

/// Runs a scenario with these tables for a short time.
fn run(tables: &str, flags: &str) -> Result<Report, BenchError> {
    let load = "[load]\nconnections = 4\nthreads = 2\nwarmup = \"50ms\"\nduration = \"400ms\"\n";
    common::run_scenario(&format!("{load}{tables}"), &format!("--rounds 2 --max-lag 10s {flags}"))
}

#[test]
fn messages_over_core_nats_reach_all_subscribers() {
    let Some(server) = NatsServer::start("messages_over_core_nats_reach_all_subscribers") else { return };
    let tables = "[subjects]\nmessage_bytes = 60\nbatch = 3\nsubscribers = 5\n[mix]\npublish = 1\n";
    for load in ["", "--rate 200 --arrivals poisson"] {
        let report = run(tables, &format!("--target nats://{} {load}", server.address)).unwrap();
        assert_right(&report);
        let text = report.to_text();
        for part in [
            "core NATS",
            "durability: none: core NATS stores no messages",
            "the order of each publisher",
            "to each of 5 subscribers",
            "received, 0 lost, 0 of them",
            "0 duplicated, 0 reordered",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_positive(&feed_row(&report, "publish"), &["records/s", "end to end p50 µs", "p99 µs", "times"]);
    }
}

#[test]
fn records_of_jetstream_are_found_in_their_places() {
    let Some(server) = NatsServer::start("records_of_jetstream_are_found_in_their_places") else { return };
    for (read_from, storage, durability) in [
        ("tail", "file", "durability: JetStream in files, synced as"),
        ("start", "memory", "durability: none: JetStream in memory"),
        ("random", "memory", "durability: none: JetStream in memory"),
    ] {
        // More records than a direct get returns at a time.
        let tables = format!(
            "[streams]\nrecord_bytes = 100\nrecords = 1400\nbatch = 7\nread_records = 1000\nread_from = \"{read_from}\"\n\
             [jetstream]\nstorage = \"{storage}\"\n[mix]\nappend = 1\nread_records = 1\n"
        );
        let report = run(&tables, &format!("--target jetstream://{}", server.address)).unwrap();
        assert_right(&report);
        let text = report.to_text();
        assert!(text.contains(durability) && text.contains(": 0 lost, 0 duplicated, 0 reordered"), "{text}");
        assert_eq!(feed_row(&report, "append")["records/operation"], 7.0, "{text}");
        assert_positive(&feed_row(&report, "read_records"), &["records/s", "records/operation"]);
        if read_from == "tail" {
            assert_positive(&feed_row(&report, "read_records"), &["end to end p50 µs", "p99 µs", "max µs", "times"]);
        }
    }
}

#[test]
fn consumers_and_subjects_of_jetstream_deliver_everything() {
    let Some(server) = NatsServer::start("consumers_and_subjects_of_jetstream_deliver_everything") else { return };
    let tables = "[streams]\nrecord_bytes = 100\nbatch = 2\n[groups]\nrecords = 5\n[jetstream]\nstorage = \"memory\"\n\
                  [subjects]\nmessage_bytes = 60\nsubscribers = 2\n[mix]\nappend = 4\nfetch = 2\npublish = 1\n";
    let report = run(tables, &format!("--target jetstream://{} --rate 400", server.address)).unwrap();
    assert_right(&report);
    let text = report.to_text();
    assert!(text.contains(" records delivered, 0 lost, 0 redelivered"), "{text}");
    assert!(text.contains("to each of 2 subscribers") && text.contains("received, 0 lost, 0 of them"), "{text}");
    assert_positive(&feed_row(&report, "fetch"), &["records/s", "end to end p50 µs"]);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    // No program listens at this port, and the system gives it to no other test.
    let closed = "127.0.0.1:1";
    let tables = "[subjects]\nmessage_bytes = 60\n[mix]\npublish = 1\n";
    let error = run(tables, &format!("--target nats://user:secret@{closed}")).unwrap_err().to_string();
    assert!(error.contains(&format!("nats://{closed}")) && !error.contains("secret"), "{error}");
}
