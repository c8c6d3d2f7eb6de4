//! Rows that commands read are fetched from the disk before the commands are proposed.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use thalweg_engine::{BackendKind, Database, Options};
use thalweg_server::config::Backend;

use crate::support::{
    Node, config,
    gated::{self, Gate},
    resp::{Resp, encode, serving},
    small_options,
};

const KEYS: u32 = 20_000;
/// Bytes of a value that stays in the log, because a row does not hold so many.
const LONG_BYTES: usize = 5_000;
const COLD_READS: &str = "reads_handed_over_total{kind=\"cold\"}";
const APPLY_READS: &str = "apply_file_reads_total";
const REQUESTS: &str = "http_in_use{bound=\"requests\"}";

/// Starts a node with one thread for Redis clients, whose keyspace is in tables of an LSM tree, and not in memory as far as
/// the file system permits.
async fn cold_node(cache_bytes: u64) -> (Node, TempDir) {
    let mut config = config();
    serving(&mut config);
    config.resp_threads = 1;
    config.backend = Backend(Some(BackendKind::Lsm));
    let dir = tempfile::tempdir().unwrap();
    let open = || Database::open(dir.path(), Options { cache_bytes, ..small_options(&config) }).unwrap();
    let db = open();
    let keyspace = db.redis_keyspace("redis").unwrap();
    let mut proposed = Vec::new();
    for number in 0..KEYS {
        proposed.push(db.to_async().put(keyspace.id(), key(number).as_bytes(), &[b'v'; 200], db.durability()));
    }
    for put in proposed {
        put.await.unwrap();
    }
    db.close().unwrap();
    drop((keyspace, db));
    let node = Node::over(config.clone(), open()).await;
    drop_pages(&dir.path().join("state"));
    (node, dir)
}

fn key(number: u32) -> String {
    format!("key-{number:06}")
}

/// Keys that are in different blocks.
fn apart(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(move |number| key(number * (KEYS / count)))
}

/// Drops the files below a directory from the memory of the kernel, unless the file system keeps them there.
fn drop_pages(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            drop_pages(&path);
        } else {
            fadvise(File::open(&path).unwrap(), 0, None, Advice::DontNeed).unwrap();
        }
    }
}

/// Returns true if the largest file below a directory is not in memory. False on file systems that keep it there, or that
/// cannot tell.
fn is_cold(dir: &Path) -> bool {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            match entry.metadata().unwrap() {
                data if data.is_dir() => dirs.push(entry.path()),
                data => files.push((data.len(), entry.path())),
            }
        }
    }
    let (bytes, path) = files.into_iter().max().unwrap();
    thalweg_disk::read_resident(&File::open(path).unwrap(), 4096, bytes / 2).unwrap().is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_reads_no_file_for_a_pipeline_that_sets_cold_keys() {
    let (node, dir) = cold_node(64 << 20).await;
    let (mut good, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(good.call("GET none").await, "$-1");
    let was_cold = is_cold(&dir.path().join("state"));
    let before = node.metric(APPLY_READS).await;
    let sets: Vec<String> = apart(100).map(|key| format!("SET {key} new")).collect();
    client.send(&sets.iter().flat_map(|set| encode(set)).collect::<Vec<_>>()).await;
    for number in 0..sets.len() {
        let begun = Instant::now();
        assert_eq!(good.call("GET none").await, "$-1");
        assert!(begun.elapsed() < Duration::from_secs(5), "a client of the thread waits");
        assert_eq!(client.reply().await, "+OK", "{number}");
    }
    assert_eq!(node.metric(APPLY_READS).await, before, "the writer has read a file");
    if was_cold {
        assert!(node.metric(COLD_READS).await >= 1.0);
    }
    assert_eq!(client.call("DBSIZE").await, format!(":{KEYS}"), "the counts are exact");
    for key in apart(100) {
        assert_eq!(client.call(&format!("GET {key}")).await, "$3 new");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_takes_effect_in_order_whether_its_rows_are_cold_or_leave_memory_again() {
    for cache_bytes in [0, 64 << 20] {
        let (node, _dir) = cold_node(cache_bytes).await;
        let (mut other, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
        assert_eq!(other.call("PING").await, "+PONG");
        let [a, b, c, d] = [1, 5_001, 10_001, 15_001].map(key);
        let value = format!("$200 {}", "v".repeat(200));
        let steps = [
            (format!("SET {a} 1"), "+OK"),
            (format!("GET {a}"), "$1 1"),
            (format!("INCR {a}"), ":2"),
            (format!("SET {b} x NX"), "$-1"),
            (format!("GET {b}"), &*value),
            (format!("INCR {b}"), "-ERR value is not an integer or out of range"),
            (format!("HSET {c} f v"), "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            (format!("DEL {c} none"), ":1"),
            (format!("HSET {c} f v g w"), ":2"),
            (format!("HGET {c} g"), "$1 w"),
            (format!("APPEND {d} w"), ":201"),
        ];
        let sent: Vec<&str> = steps.iter().map(|(command, _)| &**command).collect();
        let expected: Vec<&str> = steps.iter().map(|(_, reply)| *reply).collect();
        assert_eq!(client.pipeline(&sent).await, expected, "cache of {cache_bytes} bytes");
        assert_eq!(client.call("DBSIZE").await, format!(":{KEYS}"));
        // A watched key that another client changes ends the transaction.
        let [watched, free] = [key(7_000), key(7_500)];
        for (is_changed, reply) in [(true, "*-1"), (false, "*1 +OK")] {
            assert_eq!(client.call(&format!("WATCH {watched}")).await, "+OK");
            if is_changed {
                assert_eq!(other.call(&format!("SET {watched} other")).await, "+OK");
            }
            let replies = client.pipeline(&["MULTI", &format!("SET {free} mine"), "EXEC"]).await;
            assert_eq!(replies, ["+OK", "+QUEUED", reply]);
        }
        assert_eq!(client.call(&format!("GET {free}")).await, "$4 mine");
        node.stop().await;
    }
}

/// Starts a node with one thread for Redis clients, on a disk that holds reads up. Rows are looked up before commands are
/// proposed, because the writer has read a value from the log.
async fn gated_node() -> (Node, Arc<Gate>) {
    let (node, gate) = gated::node_with(1 << 20, |config| {
        serving(config);
        config.resp_threads = 1;
    })
    .await;
    let keyspace = node.db.redis_keyspace("redis").unwrap();
    for key in [&b"cold"[..], b"opens"] {
        keyspace.put(key, &[b'x'; LONG_BYTES]).unwrap();
    }
    keyspace.put(b"small", b"v").unwrap();
    let mut client = Resp::connect(&node).await;
    let before = node.metric(APPLY_READS).await;
    assert_eq!(client.call("APPEND opens y").await, format!(":{}", LONG_BYTES + 1));
    assert!(node.metric(APPLY_READS).await > before, "the writer has read the value");
    gate.hold_reads(true);
    (node, gate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_read_and_write_while_the_value_that_a_command_changes_is_read() {
    let (node, gate) = gated_node().await;
    let (mut good, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(good.call("GET small").await, "$1 v");
    client.send(&["APPEND cold y", "GET small", "SET new 1", "GET new"].map(encode).concat()).await;
    gate.until_reads_wait(1).await;
    for number in 0..100 {
        assert_eq!(good.call("GET small").await, "$1 v");
        assert_eq!(good.call(&format!("SET small-{number} w")).await, "+OK", "nobody holds the writer up");
    }
    assert_eq!(good.call("EXISTS new").await, ":0", "a part of the burst has run before the rest");
    assert_eq!(good.call("SET small 2").await, "+OK");
    gate.hold_reads(false);
    let appended = format!(":{}", LONG_BYTES + 1);
    for reply in [&*appended, "$1 2", "+OK", "$1 1"] {
        assert_eq!(client.reply().await, reply);
    }
    assert_eq!(node.metric(COLD_READS).await, 1.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_while_its_rows_are_read_changes_nothing_and_holds_nothing() {
    let (node, gate) = gated_node().await;
    let (mut good, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(good.call("GET small").await, "$1 v");
    client.send(&["APPEND cold y", "SET new 1"].map(encode).concat()).await;
    gate.until_reads_wait(1).await;
    assert_eq!(node.metric(REQUESTS).await, 1.0);
    client.reset();
    node.until(REQUESTS, 0.0).await;
    gate.hold_reads(false);
    gate.until_reads_wait(0).await;
    assert_eq!(good.call("EXISTS new").await, ":0");
    assert_eq!(good.call("STRLEN cold").await, format!(":{LONG_BYTES}"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_executes_the_commands_whose_rows_are_read() {
    let (mut node, gate) = gated_node().await;
    let (mut idle, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(idle.call("PING").await, "+PONG");
    client.send(&encode("APPEND cold y")).await;
    gate.until_reads_wait(1).await;
    node.signal_stop();
    assert_eq!(idle.rest().await, "", "the server is stopping");
    gate.hold_reads(false);
    assert_eq!(client.rest().await, format!(":{}", LONG_BYTES + 1));
    node.stopped().await.unwrap();
}
