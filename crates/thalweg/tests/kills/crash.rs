//! kill -9 and a simulated power cut under load: writes acknowledged at `disk` survive, and no write survives in part.

use std::{
    collections::HashMap,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use serde_json::Value;

use crate::{
    mount,
    node::{self, Node, PATIENCE, count::Count},
};

const WRITERS: u64 = 6;
const ROUNDS: u64 = 20;

/// Writes that the server has acknowledged at `disk`.
#[derive(Default)]
struct Acked {
    /// Acknowledged value by key.
    pairs: HashMap<String, String>,
    /// Payload by offset in the shared stream.
    records: HashMap<u64, String>,
}

/// Clients that write until the server is gone.
struct Load {
    writers: Vec<JoinHandle<Acked>>,
    count: Count,
    stop: Arc<AtomicBool>,
}

impl Load {
    /// Starts the writers. Each puts keys of its own, overwriting one every third time, and appends to a shared stream;
    /// three quarters of the appends carry several records.
    fn start(url: &str, round: u64) -> Self {
        let (count, stop) = (Count::default(), Arc::new(AtomicBool::new(false)));
        let writer = |id: u64| {
            let (url, count, stop) = (url.to_owned(), count.clone(), stop.clone());
            std::thread::spawn(move || write_until_gone(&url, round, id, &count, &stop))
        };
        Self { writers: (0..WRITERS).map(writer).collect(), count, stop }
    }

    fn collect(self, acked: &mut Acked) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers {
            let more = writer.join().expect("a writer");
            acked.pairs.extend(more.pairs);
            acked.records.extend(more.records);
        }
    }
}

fn write_until_gone(url: &str, round: u64, id: u64, count: &Count, stop: &AtomicBool) -> Acked {
    // A client stops when a request fails. A disk that stands still for seconds must not stop all of them.
    let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build();
    let agent: ureq::Agent = config.into();
    let mut acked = Acked::default();
    for n in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{round}-{id}-{}", if n % 3 == 2 { n - 1 } else { n });
        let value = format!("{n} {}", "v".repeat((n as usize * 37) % 6000));
        let put = agent.put(format!("{url}/v1/kv/acked/{key}")).header("thalweg-durability", "disk").send(&value);
        if put.is_err() {
            // The outcome of this put is unknown, and so is the key that it overwrites.
            acked.pairs.remove(&key);
            break;
        }
        acked.pairs.insert(key, value);
        count.add();
        let payloads: Vec<_> = (0..=(n % 4)).map(|at| format!("{round}-{id}-{n}-{at}")).collect();
        let append = agent
            .post(format!("{url}/v1/streams/acked/records"))
            .header("content-type", "application/x-ndjson")
            .header("thalweg-durability", "disk")
            .send(payloads.iter().map(|payload| format!("\"{payload}\"\n")).collect::<String>());
        let Ok(mut reply) = append else { break };
        let Ok(text) = reply.body_mut().read_to_string() else { break };
        let reply: Value = serde_json::from_str(&text).expect("JSON");
        let first = reply["first"].as_u64().expect("an offset");
        acked.records.extend(payloads.into_iter().enumerate().map(|(at, payload)| (first + at as u64, payload)));
        count.add();
    }
    acked
}

/// Checks that all acknowledged writes are present, offsets have no gaps, and every append is complete.
fn verify(node: &Node, acked: &Acked, context: &str) {
    let pairs: HashMap<String, String> = lines(&node.cli(&["scan", "acked", "--json"]).ok())
        .map(|line| (line["key"].as_str().unwrap().to_owned(), line["value"].as_str().unwrap().to_owned()))
        .collect();
    for (key, value) in &acked.pairs {
        assert_eq!(pairs.get(key), Some(value), "{context}: key {key}");
    }
    let records: Vec<_> = lines(&node.cli(&["read", "acked", "--json"]).ok()).collect();
    let payload = |record: &Value| record["payload"].as_str().unwrap().trim_matches('"').to_owned();
    for (at, record) in records.iter().enumerate() {
        assert_eq!(record["offset"].as_u64(), Some(at as u64), "{context}: a gap");
    }
    for (offset, wanted) in &acked.records {
        assert_eq!(records.get(*offset as usize).map(payload).as_ref(), Some(wanted), "{context}: offset {offset}");
    }
    whole_appends(&records.iter().map(payload).collect::<Vec<_>>(), context);
}

/// Checks that each append is complete: append number n of a writer has n % 4 + 1 consecutive records.
fn whole_appends(payloads: &[String], context: &str) {
    let mut at = 0;
    while at < payloads.len() {
        let (append, part) = payloads[at].rsplit_once('-').unwrap();
        let n: u64 = append.rsplit_once('-').unwrap().1.parse().unwrap();
        assert_eq!(part, "0", "{context}: {append} begins in its middle");
        for part in 0..=(n % 4) {
            let wanted = format!("{append}-{part}");
            assert_eq!(payloads.get(at), Some(&wanted), "{context}: {append} is half there");
            at += 1;
        }
    }
}

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
}

fn dice(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn kill_9_under_load_loses_nothing_acknowledged() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64
    });
    let (mut state, dir) = (seed | 1, tempfile::tempdir().unwrap());
    let mut acked = Acked::default();
    for round in 0..ROUNDS {
        let context = format!("SEED={seed} round {round}");
        let node = Node::start(dir.path());
        if round > 0 {
            verify(&node, &acked, &context);
        }
        let load = Load::start(&node.url, round);
        load.count.wait_for(20 + dice(&mut state) % 200);
        node.kill();
        load.collect(&mut acked);
    }
    let node = Node::start(dir.path());
    verify(&node, &acked, &format!("SEED={seed} at the end"));
    assert!(acked.pairs.len() as u64 > ROUNDS * 10, "the load did write");
}

#[test]
fn a_power_cut_loses_nothing_acknowledged_on_lsm_and_memory() {
    ["lsm", "memory"].into_iter().for_each(cut_power);
}

#[test]
fn a_power_cut_loses_nothing_acknowledged_on_redb_and_sqlite() {
    ["redb", "sqlite"].into_iter().for_each(cut_power);
}

/// Run with `cargo test --release -p thalweg --test kills crash:: -- --ignored`, and optionally `THALWEG_TEST_ROUNDS`.
#[test]
#[ignore = "a soak of minutes: cargo test --release -p thalweg --test kills crash:: -- --ignored"]
fn power_cuts_for_long() {
    let rounds = std::env::var("THALWEG_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20);
    for _ in 0..rounds {
        ["lsm", "memory", "redb", "sqlite"].into_iter().for_each(cut_power);
    }
}

/// Options with which the state is persisted repeatedly, so that the power can be cut amid that.
fn persisting(backend: &str) -> [&str; 6] {
    ["--backend", backend, "--max-replay-bytes", "128KiB", "--maintenance-interval", "20ms"]
}

fn cut_power(backend: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("disk.img"), dir.path().join("copy.img"));
    let disk = match mount::Mounted::create(&image, &dir.path().join("disk")) {
        Ok(disk) => disk,
        Err(why) => {
            node::skip("a power cut, which needs root and a loop device", &why);
            return;
        }
    };
    let mut acked = Acked::default();
    let node = Node::start_with(&disk.path().join("data"), &persisting(backend));
    let load = Load::start(&node.url, 0);
    load.count.wait_for(500);
    node.signal(libc::SIGSTOP);
    wait_until_stopped(node.pid());
    // The image now has the state after a power cut: exactly the data that reached the device. The server is stopped
    // and the journal commits only on request (`commit=`), so the copy is of one point in time.
    let copied = Command::new("cp").arg("--sparse=always").args([&image, &copy]).status().unwrap();
    assert!(copied.success());
    node.kill();
    load.collect(&mut acked);
    assert!(acked.pairs.len() > 100, "{backend}: the load did write");
    let after = mount::Mounted::existing(&copy, &dir.path().join("copy")).expect("the copy mounts");
    let data = after.path().join("data");
    let verified = Node::start_with(&data, &persisting(backend));
    verify(&verified, &acked, &format!("{backend}, after the power cut"));
    verified.cli(&["append", "acked", "\"9-9-0-0\""]).ok();
    verified.stop();
    check_log(&data);
}

/// Waits until every thread of the process has stopped, so that none is inside a system call.
fn wait_until_stopped(pid: i32) {
    let until = Instant::now() + PATIENCE;
    let running = |pid: i32| {
        std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().any(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            !stat.rsplit(") ").next().unwrap_or_default().starts_with('T')
        })
    };
    while running(pid) {
        assert!(Instant::now() < until, "the server does not stop");
        node::pause();
    }
}

fn check_log(data: &Path) {
    let verified = node::run(node::command().args(["log", "verify", "--data", data.to_str().unwrap()]), b"");
    verified.ok();
}
