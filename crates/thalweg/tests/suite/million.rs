//! A server with a million small streams: start-up, memory, lists, metrics. It takes a minute, so it is not part of a
//! normal run: `cargo test --release -p thalweg --test suite million:: -- --ignored --nocapture --test-threads 1`.
//!
//! `engine/tests/scale.rs` tests the engine with as many streams.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg_engine::{
    Database, Options,
    types::{Durability, command::StreamConfig, record::RecordBatch},
};

use crate::node::Node;

const STREAMS: u64 = 1_000_000;

fn resident_mib(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("the process runs");
    let of = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).expect("Linux");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    };
    // The kernel can drop mapped pages of the log at any time, so they are not counted.
    of("RssAnon:") >> 10
}

/// Creates streams of one record each, half of them with a retention.
fn fill(path: &std::path::Path) {
    let db = Database::open(path, Options { durability: Durability::Os, ..Options::default() }).unwrap();
    let mut batch = RecordBatch::new();
    batch.push_payload(b"a small record").unwrap();
    let kept = StreamConfig { max_age: Some(Duration::from_secs(7 * 24 * 3600)), ..StreamConfig::default() };
    for number in 0..STREAMS {
        let config = if number % 2 == 0 { kept } else { StreamConfig::default() };
        let (stream, created) = db.create_stream(&format!("device-{number:07}"), &config).unwrap();
        assert!(created);
        stream.append(&batch).unwrap();
    }
    db.close().unwrap();
}

struct Client {
    agent: ureq::Agent,
    url: String,
}

impl Client {
    fn get(&self, target: &str) -> String {
        let mut reply = self.agent.get(format!("{}{target}", self.url)).call().unwrap();
        reply.body_mut().with_config().limit(1 << 30).read_to_string().unwrap()
    }

    fn timed(&self, what: &str, target: &str) -> String {
        let started = Instant::now();
        let body = self.get(target);
        println!("{what}: {:.2} ms, {} bytes", started.elapsed().as_secs_f64() * 1e3, body.len());
        body
    }
}

fn start(path: &std::path::Path, how: &str) -> (Node, Client, f64) {
    let started = Instant::now();
    let node = Node::start(path);
    let seconds = started.elapsed().as_secs_f64();
    println!("ready {seconds:.2} s after {how}; {} MiB of its own memory", resident_mib(&node));
    let client = Client { agent: ureq::Agent::new_with_defaults(), url: node.url.clone() };
    (node, client, seconds)
}

#[test]
#[ignore = "makes a million streams: \
            cargo test --release -p thalweg --test suite million:: -- --ignored --nocapture --test-threads 1"]
fn a_server_starts_over_a_million_streams_and_lists_them() {
    let dir = tempfile::tempdir().unwrap();
    let started = Instant::now();
    fill(dir.path());
    println!("{STREAMS} streams of one record made in {:.1} s", started.elapsed().as_secs_f64());
    let (node, client, seconds) = start(dir.path(), "a clean stop");
    assert!(seconds < 10.0);
    client.timed("first list of 1000", "/v1/streams");
    client.timed("another", "/v1/streams?cursor=500000");
    client.timed("a list of 10", "/v1/streams?cursor=999000&limit=10");
    let metrics = client.timed("metrics", "/metrics");
    assert!(metrics.contains("thalweg_streams 1000000") && metrics.len() < 100_000, "no line for each stream");
    let started = Instant::now();
    let (mut cursor, mut count, mut slowest) = (String::new(), 0, Duration::ZERO);
    loop {
        let asked = Instant::now();
        let page: Value = serde_json::from_str(&client.get(&format!("/v1/streams?limit=1000{cursor}"))).unwrap();
        slowest = slowest.max(asked.elapsed());
        let streams = page["streams"].as_array().unwrap();
        for stream in streams {
            assert_eq!(stream["name"], format!("device-{count:07}"));
            count += 1;
        }
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(count, STREAMS);
    println!("all in pages of 1000: {:.2} s, slowest {slowest:?}", started.elapsed().as_secs_f64());
    let started = Instant::now();
    for number in 0..2000 {
        let name = format!("device-{:07}", number * 7919 % STREAMS);
        let append = client.agent.post(format!("{}/v1/streams/{name}/records", client.url));
        append.header("thalweg-durability", "os").send("more").unwrap();
        client.get(&format!("/v1/streams/{name}/records?last=1"));
    }
    println!(
        "an append at `os` and a read, one after the other: {:.0} us",
        started.elapsed().as_secs_f64() * 1e6 / 2000.0
    );
    println!("{} MiB of its own memory", resident_mib(&node));
    let started = Instant::now();
    let listed = node.cli(&["streams", "--json"]).ok();
    println!("`thalweg streams`: {:.1} s, {} lines", started.elapsed().as_secs_f64(), listed.lines().count());
    node.kill();
    let (node, client, seconds) = start(dir.path(), "a kill");
    assert!(seconds < 10.0);
    client.timed("first list of 1000", "/v1/streams");
    node.stop();
}
