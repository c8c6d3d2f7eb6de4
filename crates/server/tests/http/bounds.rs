//! Behavior at every bound, and when the disk fails.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use thalweg_disk::{
    SimDisk,
    sim::{Errno, Fault, Operation},
};
use thalweg_engine::{BackendKind, Database, Options, snapshot::SnapshotOptions};
use thalweg_server::{
    Server, ServerError,
    config::{ByteSize, ConfigError, Span},
};
use thalweg_serving::limits::OWN_BODY_BYTES;
use thalweg_types::SystemClock;

use crate::{
    skip::skip,
    support::{HELD, HELD_BY_ONE_ADDRESS, Node, config, holds, small_options},
};

async fn simulated(disk: &SimDisk, reserve_bytes: u64) -> Node {
    let config = config();
    let options = Options { segment_bytes: 64 * 1024, reserve_bytes, ..small_options(&config) };
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(SystemClock::default()), 1, options).unwrap();
    Node::over(config, db).await
}

fn millis(millis: u64) -> Span {
    Span(Duration::from_millis(millis))
}

#[tokio::test]
async fn a_body_above_the_bound_is_413_whether_declared_or_not() {
    let node = Node::with(|config| config.max_body_bytes = ByteSize(1000)).await;
    node.put("/v1/kv/a/k", &[b'x'; 1000]).await.is(204);
    node.put("/v1/kv/a/k", &[b'x'; 1001]).await.refused(413, "body_too_large", "fix");
    let chunked = [("transfer-encoding", "chunked")];
    let mut body = b"3e8\r\n".to_vec();
    body.extend_from_slice(&[b'x'; 1000]);
    body.extend_from_slice(b"\r\n0\r\n\r\n");
    node.call("PUT", "/v1/kv/a/k", &chunked, &body).await.is(204);
    let mut longer = b"1\r\ny\r\n".to_vec();
    longer.extend_from_slice(&body);
    node.call("PUT", "/v1/kv/a/k", &chunked, &longer).await.refused(413, "body_too_large", "fix");
    assert_eq!(node.get("/v1/kv/a/k").await.body.len(), 1000);
    node.stop().await;
}

#[tokio::test]
async fn a_large_refused_body_still_gets_its_reply() {
    let node = Node::with(|config| config.max_body_bytes = ByteSize(1000)).await;
    let reply = node.put("/v1/kv/a/k", &vec![b'x'; 4 << 20]).await;
    reply.refused(413, "body_too_large", "fix");
    node.stop().await;
}

#[tokio::test]
async fn keys_values_and_records_above_their_limits_are_refused() {
    let node = Node::start().await;
    let items = json!([{ "key": "k".repeat(40_000), "value": "" }]);
    node.post_json("/keys/batch", &items).await.refused(400, "key_too_long", "fix");
    let value = vec![b'x'; (8 << 20) + 1];
    node.put("/v1/kv/a/k", &value).await.refused(413, "value_too_long", "fix");
    node.call("POST", "/v1/streams/s/records", &[], &value).await.refused(413, "record_too_large", "fix");
    node.stop().await;
}

#[tokio::test]
async fn body_bytes_in_flight_are_bounded_and_given_back() {
    const BOUND: usize = 1_000_000;
    let node = Node::with(|config| {
        config.max_body_bytes = ByteSize(BOUND as u64);
        config.max_body_bytes_in_flight = ByteSize(BOUND as u64);
    })
    .await;
    let own = OWN_BODY_BYTES;
    let mut slow = node.connect().await;
    slow.raw(b"PUT /v1/kv/a/k HTTP/1.1\r\nhost: t\r\ncontent-length: 1000000\r\n\r\n").await;
    slow.raw(&vec![b'x'; 900_000]).await;
    node.until("http_in_use{bound=\"body_bytes\"}", (900_000 - own) as f64).await;
    let shed = node.put("/v1/kv/a/other", &[0; 200_000]).await;
    assert_eq!(shed.header("retry-after"), "1");
    shed.refused(503, "overloaded", "retry");
    node.put("/v1/kv/a/other", &[0; 100_000]).await.is(204);
    slow.raw(&[b'x'; 100_000]).await;
    slow.reply("PUT").await.is(204);
    node.put("/v1/kv/a/other", &[0; 200_000]).await.is(204);
    assert_eq!(node.metric("http_in_use{bound=\"body_bytes\"}").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn requests_in_flight_are_bounded_but_operators_get_through() {
    let node = Node::with(|config| config.max_requests_in_flight = 1).await;
    let mut slow = node.connect().await;
    slow.raw(b"PUT /v1/kv/a/k HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n1").await;
    node.until("http_in_use{bound=\"requests\"}", 1.0).await;
    let shed = node.get("/v1/kv").await;
    assert_eq!(shed.header("retry-after"), "1");
    shed.refused(503, "overloaded", "retry");
    for target in ["/health", "/ready", "/metrics", "/v1/status", "/openapi.json"] {
        node.get(target).await.is(200);
    }
    slow.raw(b"2").await;
    slow.reply("PUT").await.is(204);
    node.get("/v1/kv").await.is(200);
    let text = String::from_utf8(node.get("/metrics").await.body).unwrap();
    holds(&text, "thalweg_http_shed_total{bound=\"requests\"} 1");
    node.stop().await;
}

#[tokio::test]
async fn tails_and_connections_are_bounded() {
    let node = Node::with(|config| {
        config.max_tails = 1;
        config.max_connections = 3;
    })
    .await;
    node.call("POST", "/v1/streams/s/records", &[], b"x").await.is(200);
    let mut first = node.connect().await;
    let events = [("accept", "text/event-stream")];
    first.send("GET", "/v1/streams/s/records", &events, b"").await;
    first.head().await.is(200);
    node.call("GET", "/v1/streams/s/records", &events, b"").await.refused(503, "overloaded", "retry");
    let mut second = node.connect().await;
    second.call("GET", "/health", &[], b"").await.is(200);
    let mut third = node.connect().await;
    while third.call("GET", "/health", &[], b"").await.status != 200 {}
    let turned_away = node.get("/v1/kv").await;
    assert_eq!(turned_away.header("connection"), "close");
    holds(turned_away.refused(503, "overloaded", "retry")["message"].as_str().unwrap(), "too many connections");
    node.stop().await;
}

#[tokio::test]
async fn a_full_disk_is_507_for_data_while_deletes_go_on() {
    let disk = SimDisk::new(1);
    let node = simulated(&disk, 256 * 1024).await;
    node.put("/v1/kv/a/k", b"v").await.is(204);
    disk.set_capacity(1);
    let mut tries = 0;
    let full = loop {
        let reply = node.put("/v1/kv/a/k", &[1; 200]).await;
        tries += 1;
        if reply.status != 204 || tries > 50_000 {
            break reply;
        }
    };
    let error = full.refused(507, "disk_full", "retry");
    assert!(error["free_bytes"].is_u64());
    holds(error["message"].as_str().unwrap(), "`thalweg status` shows what keeps the log");
    let snapshot = node.db.snapshot(&SnapshotOptions::default()).unwrap();
    let kept = node.get("/v1/status").await.is(200).json()["log"]["kept"].clone();
    let bytes = ["for_replay_bytes", "for_history_bytes", "for_data_bytes"].map(|name| kept[name].as_u64().unwrap());
    let segments = node.db.stats().log.segments * 64 * 1024;
    assert!(bytes[0] > 0 && bytes.iter().sum::<u64>() <= segments, "{kept}");
    assert_eq!((&kept["for_a_follower"], &kept["open_snapshots"]), (&json!(false), &json!(1)));
    drop(snapshot);
    node.delete("/v1/kv/a/k").await.is(204);
    node.get("/v1/kv/a/k").await.is(404);
    assert_eq!(node.get("/health").await.is(200).json()["status"], json!("disk_full"));
    disk.set_capacity(u64::MAX / 2);
    node.put("/v1/kv/a/k", b"v").await.is(204);
    node.stop().await;
}

#[tokio::test]
async fn a_failed_fsync_turns_health_red_and_reads_go_on() {
    let disk = SimDisk::new(1);
    let node = simulated(&disk, 0).await;
    node.put("/v1/kv/a/k", b"v").await.is(204);
    disk.fail(Fault::new(Operation::Sync, 1, Errno::Io));
    let failed = node.put("/v1/kv/a/k", b"w").await;
    assert!(!failed.headers.contains_key("retry-after"), "retrying is of no use");
    failed.refused(503, "log_failed", "stop");
    node.put("/v1/kv/a/k", b"w").await.refused(503, "log_failed", "stop");
    assert_eq!(node.get("/v1/kv/a/k").await.is(200).body, b"v");
    node.get("/health").await.refused(503, "log_failed", "stop");
    node.get("/ready").await.refused(503, "log_failed", "stop");
    assert_eq!(node.get("/v1/status").await.is(200).json()["health"]["status"], json!("failed"));
    let mut node = node;
    node.signal_stop();
    assert!(matches!(node.stopped().await, Err(ServerError::Close(_))));
}

/// The log still takes writes.
#[tokio::test]
async fn a_backend_whose_threads_have_ended_turns_health_red() {
    if !BackendKind::Redb.is_built() {
        return skip("a_backend_whose_threads_have_ended_turns_health_red", "redb is not built");
    }
    let disk = SimDisk::new(1);
    let config = config();
    let options = Options { backend: Some(BackendKind::Redb), segment_bytes: 64 * 1024, ..small_options(&config) };
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(SystemClock::default()), 1, options).unwrap();
    let node = Node::over(config, db).await;
    node.put("/v1/kv/a/k", b"v").await.is(204);
    node.get("/ready").await.is(200);
    disk.fail(Fault::new(Operation::Write, 1, Errno::Io).on_path("state.redb"));
    assert!(node.db.flush().is_err());
    for target in ["/health", "/ready"] {
        let error = node.get(target).await.refused(503, "log_failed", "stop");
        holds(error["message"].as_str().unwrap(), "state");
    }
    assert_eq!(node.get("/v1/status").await.is(200).json()["health"]["status"], json!("failed"));
    assert_eq!(node.get("/v1/kv/a/k").await.is(200).body, b"v");
    let mut node = node;
    node.signal_stop();
    let _ = node.stopped().await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_408() {
    let node = Node::with(|config| config.body_timeout = millis(100)).await;
    let mut slow = node.connect().await;
    slow.raw(b"PUT /v1/kv/a/k HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n1").await;
    slow.reply("PUT").await.refused(408, "body_timeout", "retry");
    node.stop().await;
}

#[tokio::test]
async fn slow_heads_and_idle_connections_are_closed() {
    let node = Node::with(|config| {
        config.header_timeout = millis(200);
        config.tail_keep_alive = millis(100);
        config.idle_timeout = millis(400);
    })
    .await;
    let mut silent = node.connect().await;
    assert_eq!(silent.closed().await, b"");
    let mut half = node.connect().await;
    half.raw(b"GET /health HTT").await;
    half.closed().await;
    let mut idle = node.connect().await;
    idle.call("GET", "/health", &[], b"").await.is(200);
    assert_eq!(idle.closed().await, b"");
    node.call("POST", "/v1/streams/s/records", &[], b"x").await.is(200);
    let mut tail = node.open("/v1/streams/s/records", &[("accept", "text/event-stream")]).await;
    for _ in 0..8 {
        assert!(tail.chunk().await.is_some(), "a tail with keep-alives is not idle");
    }
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_and_its_scan_given_back() {
    let node = Node::with(|config| {
        config.write_timeout = millis(200);
        config.max_scans = 1;
    })
    .await;
    let keyspace = node.db.with_durability(thalweg_types::Durability::Os).keyspace("big").unwrap();
    for at in 0..40_u32 {
        keyspace.put(&at.to_be_bytes(), &vec![b'x'; 1 << 19]).unwrap();
    }
    let _greedy = node.open("/v1/kv/big", &[]).await;
    node.get("/v1/kv/big").await.refused(503, "overloaded", "retry");
    node.until("http_in_use{bound=\"scans\"}", 0.0).await;
    node.get("/v1/kv/big?limit=1").await.is(200);
    node.stop().await;
}

#[tokio::test]
async fn pages_that_are_large_because_a_value_is_are_bounded_for_all_clients_together() {
    const LARGE: usize = 8 << 20;
    let node = Node::with_segments(64 << 20, |config| {
        config.max_reply_bytes_in_flight = ByteSize(64 << 20);
        // The clients that do not read stay connected for the whole test, on a busy machine too.
        config.write_timeout = Span(Duration::from_secs(300));
    })
    .await;
    let keyspace = node.db.with_durability(thalweg_types::Durability::Os).keyspace("big").unwrap();
    let records: Vec<_> = (0..600).map(|_| json!({ "payload": "x".repeat(1000) })).collect();
    for at in 0..600_u32 {
        keyspace.put(format!("a{at:03}").as_bytes(), &[b'x'; 1000]).unwrap();
    }
    keyspace.put(b"large", &vec![b'x'; LARGE]).unwrap();
    node.post_json("/v1/streams/s/records", &json!(records)).await.is(200);
    node.call("POST", "/v1/streams/s/records", &[], &vec![b'x'; LARGE - 64]).await.is(200);

    // Seven scans begin with the large value, and their clients do not read. There is no room for an eighth.
    let mut greedy = Vec::new();
    for taken in 1..=7 {
        greedy.push(node.unread(1, "/v1/kv/big?prefix=large").await);
        node.until_at_least(HELD, f64::from(taken * (8 << 20))).await;
    }
    assert!(node.metric(HELD).await <= f64::from(64 << 20));
    node.get("/v1/kv/big?prefix=large").await.refused(503, "overloaded", "retry");
    node.get("/v1/kv/big?prefix=a").await.is(200);

    // A scan that has begun ends where the large value comes, and reports where it can resume.
    let lines = |body: &[u8]| -> Vec<serde_json::Value> {
        let lines = body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    };
    let scanned = lines(&node.get("/v1/kv/big").await.is(200).body);
    let (last, pairs) = scanned.split_last().unwrap();
    assert_eq!((&last["error"]["code"], &last["count"]), (&json!("overloaded"), &json!(pairs.len())), "{last}");
    assert!(pairs.len() < 600 && pairs.last().unwrap()["key"] == json!(format!("a{:03}", pairs.len() - 1)));
    let cursor = last["cursor"].as_str().unwrap().to_owned();
    let all = "/v1/streams/s/records?limit=1000&max_bytes=20000000";
    let read = lines(&node.get(all).await.is(200).body);
    let (end, records) = read.split_last().unwrap();
    assert_eq!((&end["error"]["code"], &end["next"]), (&json!("overloaded"), &json!(records.len())), "{end}");
    assert!(!records.is_empty() && records.len() < 600);
    // A tail waits for room before it sends the large record.
    let mut tail = node.open("/v1/streams/s/records?from=599&limit=2", &[("accept", "text/event-stream")]).await;
    let mut seen = Vec::new();
    while !seen.windows(7).any(|part| part == b"id: 599") {
        seen.extend(tail.chunk().await.unwrap());
    }
    assert!(seen.len() < LARGE);

    drop(greedy);
    while let Some(chunk) = tail.chunk().await {
        seen.extend(chunk);
    }
    assert!(seen.len() > LARGE && seen.windows(7).filter(|part| part == b"id: 600").count() == 1);
    node.until(HELD, 0.0).await;
    let rest = lines(&node.get(&format!("/v1/kv/big?cursor={cursor}")).await.is(200).body);
    assert_eq!(rest.len() - 1 + pairs.len(), 601);
    assert_eq!(rest[rest.len() - 2]["value"].as_str().unwrap().len(), LARGE);
    assert_eq!(lines(&node.get(all).await.is(200).body).len(), 602);
    node.until(HELD, 0.0).await;
    node.stop().await;
}

#[tokio::test]
async fn a_large_delivery_without_room_goes_back_to_its_group() {
    const LARGE: usize = 8 << 20;
    let node = Node::with_segments(64 << 20, |config| config.max_reply_bytes_in_flight = HELD_BY_ONE_ADDRESS).await;
    node.call("PUT", "/v1/kv/files/large", &[], &vec![b'x'; LARGE]).await.is(204);
    node.post_json("/v1/streams/s/records", &json!([{"payload": "small"}])).await.is(200);
    node.call("POST", "/v1/streams/s/records", &[], &vec![b'x'; LARGE - 64]).await.is(200);
    let group = "/v1/streams/s/groups/g";
    node.put_json(group, &json!({})).await.is(201);
    let greedy = node.fill_reply_room("/v1/kv/files/large").await;
    // Without room a fetch delivers what is small. A large record alone is refused, and nothing is lost.
    let fetch = format!("{group}/fetch");
    let first = node.post_json(&fetch, &json!({})).await.is(200).json();
    assert_eq!(first["messages"].as_array().unwrap().len(), 1, "{first}");
    for _ in 0..2 {
        node.post_json(&fetch, &json!({})).await.refused(503, "overloaded", "retry");
    }
    assert!(node.metric(HELD).await <= f64::from(64 << 20));
    drop(greedy);
    node.until(HELD, 0.0).await;
    let second = node.post_json(&fetch, &json!({"wait_seconds": 10})).await.is(200).json();
    let records = second["messages"].as_array().unwrap();
    assert_eq!((records.len(), &records[0]["offset"], &records[0]["deliveries"]), (1, &json!(1), &json!(1)));
    node.until(HELD, 0.0).await;
    node.stop().await;
}

#[tokio::test]
async fn large_changes_and_pushed_records_wait_for_room() {
    const LARGE: usize = 8 << 20;
    let node = Node::with_segments(64 << 20, |config| {
        config.max_reply_bytes_in_flight = ByteSize(64 << 20);
        // The server must not cut the clients while the others read.
        config.write_timeout = Span(Duration::from_secs(300));
    })
    .await;
    let value = vec![b'x'; LARGE - 64];
    node.put("/v1/kv/files/large", &value).await.is(204);
    node.call("POST", "/v1/streams/s/records", &[], &value).await.is(200);
    // Each of these has one large item, and its client does not read.
    let mut greedy = Vec::new();
    for at in 0..24 {
        let group = format!("/v1/streams/s/groups/g{at}");
        let target = match at % 2 {
            0 => "/v1/watch/files?from=1".to_owned(),
            _ => format!("{group}/push?member=m"),
        };
        if at % 2 == 1 {
            node.put_json(&group, &json!({})).await.is(201);
        }
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // The last client reads fast in the end.
        if at < 23 {
            socket.set_recv_buffer_size(4096).unwrap();
        }
        let mut client = socket.connect(node.address).await.unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nhost: t\r\naccept: application/x-ndjson\r\n\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut client, request.as_bytes()).await.unwrap();
        greedy.push(client);
    }
    node.until("http_in_use{bound=\"tails\"}", 24.0).await;
    let seven = f64::from(7 * (8 << 20));
    node.until_at_least(HELD, seven * 0.99).await;
    assert!(node.metric(HELD).await <= f64::from(64 << 20));
    // The last one gets its item once the others are gone.
    let mut last = greedy.pop().unwrap();
    drop(greedy);
    let (mut seen, mut page) = (0, vec![0; 1 << 20]);
    while seen < LARGE - 64 {
        let read = tokio::io::AsyncReadExt::read(&mut last, &mut page).await.unwrap();
        assert!(read > 0, "it ends after {seen} bytes");
        seen += read;
        assert!(node.metric(HELD).await <= f64::from(64 << 20));
    }
    drop(last);
    node.until(HELD, 0.0).await;
    node.stop().await;
}

#[tokio::test]
async fn a_stop_ends_tails_and_cuts_what_does_not_finish() {
    let mut node = Node::with(|config| config.drain_timeout = millis(300)).await;
    node.call("POST", "/v1/streams/s/records", &[], b"x").await.is(200);
    let mut tail = node.open("/v1/streams/s/records", &[("accept", "text/event-stream")]).await;
    let mut slow = node.connect().await;
    slow.raw(b"PUT /v1/kv/a/k HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n1").await;
    node.until("http_in_use{bound=\"requests\"}", 1.0).await;
    node.signal_stop();
    while tail.chunk().await.is_some() {}
    let (address, db) = (node.address, node.db.clone());
    let began = std::time::Instant::now();
    node.stopped().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
    assert_eq!(db.health(), thalweg_engine::Health::Closed);
    slow.closed().await;
}

#[tokio::test]
async fn a_stop_lets_requests_in_progress_finish() {
    let mut node = Node::start().await;
    let mut slow = node.connect().await;
    slow.raw(b"PUT /v1/kv/a/k HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n1").await;
    node.until("http_in_use{bound=\"requests\"}", 1.0).await;
    node.signal_stop();
    let db = node.db.clone();
    slow.raw(b"2").await;
    slow.reply("PUT").await.is(204);
    node.stopped().await.unwrap();
    assert_eq!(db.find_keyspace("a").unwrap().get(b"k").unwrap().unwrap().value, b"12"[..]);
}

#[tokio::test]
async fn an_address_in_use_or_open_to_all_is_a_typed_error() {
    let node = Node::start().await;
    let mut taken = config();
    taken.http = node.address;
    let error = Server::bind(taken.clone(), &node.db).await.unwrap_err();
    assert!(matches!(error, ServerError::Bind { .. }), "{error}");
    let (address, cause) = error.unbound().unwrap();
    assert_eq!((address, cause.kind()), (node.address, std::io::ErrorKind::AddrInUse));
    taken.http = "0.0.0.0:0".parse().unwrap();
    let error = Server::bind(taken, &node.db).await.unwrap_err();
    assert!(matches!(error, ServerError::Config(ConfigError::Unprotected { .. })), "{error}");
    assert!(error.unbound().is_none());
    node.stop().await;
}
