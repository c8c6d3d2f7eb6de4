//! Histories of consumer group members across kills, checked against the guarantees of groups.
//!
//! Producers append; members of two groups (competing, and in order per key) fetch, ack in parts, nack, or abandon
//! deliveries; the node is killed and restarted under them. At the end a last member settles all remaining records. The
//! guarantees are those of [`group_oracle`](crate::group_oracle).

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    group_oracle::{AckAnswer, Acked, Delivered, Order, Seen, check, runs},
    node::{Node, PATIENCE, count::Count, pause},
};

const PRODUCERS: u64 = 2;
const MEMBERS: u64 = 3;
const ROUNDS: u64 = 5;
const GROUPS: [&str; 2] = ["competing", "ordered"];

/// Returns the seed and prints it. `SEED=N` repeats its choices, as far as thread scheduling allows.
fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |since| since.as_micros() as u64)
    });
    eprintln!("SEED={seed}");
    seed
}

/// Pseudo-random numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    /// Creates one of several generators from a seed.
    fn of(seed: u64, which: u64) -> Self {
        let mut random = Self(seed.wrapping_add(which.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        // Similar seeds begin with similar numbers, so the first ones are skipped.
        (0..8).for_each(|_| _ = random.below(2));
        random
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[derive(Clone)]
struct Client {
    agent: ureq::Agent,
    url: String,
    stamps: Arc<AtomicU64>,
}

impl Client {
    fn new(url: &str, stamps: &Arc<AtomicU64>) -> Self {
        // A client stops when a request fails. A disk that stands still for seconds must not stop all of them.
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).build();
        Self { agent: config.into(), url: url.to_owned(), stamps: stamps.clone() }
    }

    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns the status and the answer of a request; `None` if the answer was lost.
    fn post(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let sent = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .header("thalweg-durability", "disk")
            .send(body.to_string());
        let mut reply = sent.ok()?;
        let text = reply.body_mut().read_to_string().ok()?;
        Some((reply.status().as_u16(), serde_json::from_str(&text).ok()?))
    }
}

fn fetched(client: &Client, group: &str, member: &str, max: u64, wait: f64) -> Option<Delivered> {
    let asked = client.stamp();
    let body = json!({ "member": member, "max_records": max, "wait_seconds": wait });
    let (status, answer) = client.post(&format!("/v1/streams/jobs/groups/{group}/fetch"), &body)?;
    let answered = client.stamp();
    assert_eq!(status, 200, "{answer}");
    Some(Delivered::of(asked, answered, &answer))
}

/// Acks a range of one attempt. Returns false if the node is gone.
fn ack(client: &Client, group: &str, attempt: u64, offsets: Range<u64>, seen: &mut Seen) -> bool {
    let body = json!({ "attempts": [{ "attempt": attempt, "ranges": [[offsets.start, offsets.end - 1]] }] });
    let sent = client.stamp();
    let answer = match client.post(&format!("/v1/streams/jobs/groups/{group}/ack"), &body) {
        None => AckAnswer::Nothing,
        Some((status, answer)) => {
            assert_eq!(status, 200, "{answer}");
            let all = answer["settled"].as_u64() == Some(offsets.end - offsets.start);
            if all { AckAnswer::Settled(client.stamp()) } else { AckAnswer::Lapsed }
        }
    };
    let goes_on = !matches!(answer, AckAnswer::Nothing);
    seen.acked.push(Acked { sent, offsets, answer });
    goes_on
}

fn member(client: &Client, group: &str, name: &str, mut random: Random, stop: &AtomicBool, acks: &Count) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let Some(delivered) = fetched(client, group, name, 1 + random.below(8), 0.2) else { return seen };
        let (attempt, mut goes_on) = (delivered.attempt, true);
        let runs = runs(&delivered.messages);
        if !runs.is_empty() {
            seen.delivered.push(delivered);
        }
        for run in runs {
            match random.below(10) {
                // The member abandons the delivery, whose deadline then passes.
                0 => {}
                1 => {
                    let body = json!({ "attempts": [{ "attempt": attempt, "ranges": [[run.start, run.end - 1]] }] });
                    goes_on = client.post(&format!("/v1/streams/jobs/groups/{group}/nack"), &body).is_some();
                }
                _ => {
                    let middle = run.start + random.below(run.end - run.start) + 1;
                    goes_on = ack(client, group, attempt, run.start..middle, &mut seen)
                        && (middle == run.end || ack(client, group, attempt, middle..run.end, &mut seen));
                    acks.add();
                }
            }
            if !goes_on {
                return seen;
            }
        }
    }
    seen
}

fn produce(client: &Client, name: &str, stop: &AtomicBool) {
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let record = |part: u64| json!({ "key": format!("k{}", (number + part) % 4), "payload": format!("{name}-{number}-{part}") });
        let records = json!([record(0), record(1), record(1)]);
        if client.post("/v1/streams/jobs/records", &records).is_none() {
            return;
        }
    }
}

/// Runs one life of the node: producers and members work until it is killed.
fn round(node: Node, seed: u64, round: u64, wanted: u64, stamps: &Arc<AtomicU64>, seen: &mut [Vec<Seen>; 2]) {
    let (acks, stop) = (Count::default(), Arc::new(AtomicBool::new(false)));
    let client = Client::new(&node.url, stamps);
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (client, stop) = (client.clone(), stop.clone());
            thread::spawn(move || produce(&client, &format!("{round}-{producer}"), &stop))
        })
        .collect();
    let mut members = Vec::new();
    for (at, group) in GROUPS.into_iter().enumerate() {
        for number in 0..MEMBERS {
            let (client, stop, acks) = (client.clone(), stop.clone(), acks.clone());
            let random = Random::of(seed, round * 1000 + number * 10 + at as u64);
            let run = move || member(&client, group, &format!("m{number}"), random, &stop, &acks);
            members.push((at, thread::spawn(run)));
        }
    }
    acks.wait_for(wanted);
    node.kill();
    stop.store(true, Ordering::Relaxed);
    producers.into_iter().for_each(|producer| producer.join().expect("a producer"));
    for (group, member) in members {
        seen[group].push(member.join().expect("a member"));
    }
}

/// Settles all remaining records of a group.
fn drain(client: &Client, group: &str) -> Seen {
    let mut seen = Seen::default();
    // Producers that were faster than the members leave many records, which takes long on a busy machine. So only a
    // pause without a record is bounded.
    let mut until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "no record of {group} came for {PATIENCE:?}: {} came", seen.delivered.len());
        let mut reply = client.agent.get(format!("{}/v1/streams/jobs/groups/{group}", client.url)).call().unwrap();
        let info: Value = serde_json::from_str(&reply.body_mut().read_to_string().unwrap()).unwrap();
        if info["lag"] == json!(0) && info["pending"] == json!(0) {
            return seen;
        }
        let delivered = fetched(client, group, "drain", 1000, 1.0).expect("an answer");
        for run in runs(&delivered.messages) {
            assert!(ack(client, group, delivered.attempt, run, &mut seen));
            until = Instant::now() + PATIENCE;
        }
        seen.delivered.push(delivered);
    }
}

#[test]
fn every_record_is_settled_once_over_kills_and_in_order_where_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (seed, stamps) = (seed(), Arc::new(AtomicU64::new(1)));
    let node = Node::start(dir.path());
    for (group, order) in GROUPS.into_iter().zip(["competing", "per-key"]) {
        node.cli(&["groups", "create", "jobs", group, "--order", order, "--ack-deadline", "400ms"]).ok();
    }
    node.kill();
    let mut seen = [Vec::new(), Vec::new()];
    for number in 0..ROUNDS {
        round(Node::start(dir.path()), seed, number, 60 + number * 17, &stamps, &mut seen);
    }
    let node = Node::start(dir.path());
    let client = Client::new(&node.url, &stamps);
    let read = node.cli(&["read", "jobs", "--json"]).ok();
    let records: Vec<Value> = read.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (at, group) in GROUPS.into_iter().enumerate() {
        seen[at].push(drain(&client, group));
        check(group, &records, &seen[at], if group == "ordered" { Order::PerKey } else { Order::Competing });
        let shown: Value = serde_json::from_str(&node.cli(&["groups", "show", "jobs", group, "--json"]).ok()).unwrap();
        assert_eq!(shown["acked"].as_u64(), Some(records.len() as u64), "{group}: each once");
        assert_eq!(shown["floor"], shown["cursor"]);
    }
}

/// Consumes `in` and writes to `out`, the counter and the group in one commit or, every other time, transaction.
fn transform_until_gone(client: &Client, name: &str, mut random: Random, stop: &AtomicBool, done: &AtomicU64) {
    let of = json!({ "stream": "in", "group": "g" });
    while !stop.load(Ordering::Relaxed) {
        let body = json!({ "member": name, "max_records": 1 + random.below(5), "wait_seconds": 0.1 });
        let Some((_, answer)) = client.post("/v1/streams/in/groups/g/fetch", &body) else { return };
        for message in answer["messages"].as_array().unwrap() {
            let offset = &message["offset"];
            let input = message["payload"].as_str().unwrap();
            let output = json!([{ "key": input, "payload": format!("{input} done by {name}") }]);
            let append = json!({ "op": "append", "stream": "out", "records": output });
            let mut ack =
                json!({ "op": "ack", "attempts": [{ "attempt": answer["attempt"], "ranges": [[offset, offset]] }] });
            (ack["stream"], ack["group"]) = (of["stream"].clone(), of["group"].clone());
            let answer = if random.below(2) == 0 {
                let put = json!({ "op": "put", "keyspace": "results", "key": input, "value": name });
                client.post("/v1/commit", &json!({ "writes": [append, put, ack] }))
            } else {
                let add = json!({ "op": "add", "keyspace": "results", "key": format!("n-{input}"), "delta": 1 });
                client.post("/v1/txn", &json!({ "then": [append, add, ack] }))
            };
            match answer {
                None => return,
                Some((200, _)) => _ = done.fetch_add(1, Ordering::Relaxed),
                Some((409, error)) => assert_eq!(error["code"], json!("attempt_lapsed")),
                Some((status, answer)) => panic!("{status}: {answer}"),
            }
        }
    }
}

#[test]
fn what_is_consumed_transformed_and_produced_in_one_commit_happens_once_over_kills() {
    const INPUTS: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let (seed, stamps) = (seed(), Arc::new(AtomicU64::new(1)));
    let node = Node::start(dir.path());
    let inputs: Vec<String> = (0..INPUTS).map(|number| format!("i{number:03}")).collect();
    node.cli(&[&["append", "in"][..], &inputs.iter().map(String::as_str).collect::<Vec<_>>()].concat()).ok();
    node.cli(&["groups", "create", "in", "g", "--ack-deadline", "300ms"]).ok();
    node.kill();
    let done = Arc::new(AtomicU64::new(0));
    for life in 0..u64::MAX {
        let node = Node::start(dir.path());
        let client = Client::new(&node.url, &stamps);
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (client, stop, done) = (client.clone(), stop.clone(), done.clone());
                let random = Random::of(seed, life * 100 + worker);
                let name = format!("w{life}-{worker}");
                thread::spawn(move || transform_until_gone(&client, &name, random, &stop, &done))
            })
            .collect();
        let (wanted, until) = (done.load(Ordering::Relaxed) + 60, Instant::now() + PATIENCE);
        let settled = || {
            let shown = node.cli(&["groups", "show", "in", "g", "--json"]).ok();
            serde_json::from_str::<Value>(&shown).unwrap()["acked"].as_u64() == Some(INPUTS as u64)
        };
        let mut finished = false;
        while done.load(Ordering::Relaxed) < wanted && !finished {
            assert!(Instant::now() < until, "only {} of {wanted}", done.load(Ordering::Relaxed));
            finished = wanted as usize > INPUTS && settled();
            pause();
        }
        if life == 0 {
            assert!(!finished, "it is killed at least once");
        }
        node.kill();
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
        let node = Node::start(dir.path());
        let acked = serde_json::from_str::<Value>(&node.cli(&["groups", "show", "in", "g", "--json"]).ok()).unwrap();
        if acked["acked"].as_u64() == Some(INPUTS as u64) {
            return check_once(&node, &inputs);
        }
        node.kill();
    }
}

fn check_once(node: &Node, inputs: &[String]) {
    let read = node.cli(&["read", "out", "--json"]).ok();
    let mut outputs: Vec<String> = Vec::new();
    for line in read.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let (key, payload) = (record["key"].as_str().unwrap(), record["payload"].as_str().unwrap());
        assert!(payload.starts_with(&format!("{key} done by w")));
        outputs.push(key.to_owned());
    }
    outputs.sort_unstable();
    assert_eq!(outputs, inputs, "each input has one output");
    let results = node.cli(&["scan", "results"]).ok();
    let counters: Vec<_> = results.lines().filter(|line| line.starts_with("n-")).collect();
    assert!(counters.iter().all(|line| line.ends_with("\t1")), "a counter was added to twice: {counters:?}");
    assert_eq!(results.lines().count(), inputs.len(), "each input has one result");
    assert!(counters.len() > inputs.len() / 10 && counters.len() < inputs.len() * 9 / 10, "both ways were taken");
}
