//! Fair shares of clients over HTTP: a greedy client, and a good one from another address and from the same address.

use std::time::Duration;

use serde_json::json;
use thalweg_engine::snapshot::SnapshotOptions;
use thalweg_server::config::{ByteSize, Span};
use thalweg_types::Durability;
use tokio::io::AsyncWriteExt as _;

use crate::support::{Client, Node, carried::within, dial_from, eventually, holds, pause};

/// Last byte of the loopback address of the greedy client.
const GREEDY: u8 = 2;

fn millis(millis: u64) -> Span {
    Span(Duration::from_millis(millis))
}

/// Puts pairs into the keyspace `big` that fill the buffers of sockets several times.
fn fill(node: &Node) {
    let keyspace = node.db.with_durability(Durability::Os).keyspace("big").unwrap();
    for at in 0..40_u32 {
        keyspace.put(&at.to_be_bytes(), &vec![b'x'; 1 << 19]).unwrap();
    }
}

fn in_use(bound: &str) -> String {
    format!("http_in_use{{bound=\"{bound}\"}}")
}

/// Opens a tail, which stays open as long as the returned connection.
async fn tail(node: &Node, last: u8, target: &str) -> Client {
    let mut client = node.connect_from(last).await;
    client.send("GET", target, &[("accept", "text/event-stream")], b"").await;
    client.head().await.is(200);
    client
}

async fn put_from(node: &Node, last: u8, bytes: usize) -> crate::support::Reply {
    node.connect_from(last).await.call("PUT", "/v1/kv/a/good", &[], &vec![b'g'; bytes]).await
}

#[tokio::test]
async fn an_announced_body_holds_nothing() {
    let node = Node::start().await;
    let mut heads = Vec::new();
    for _ in 0..8 {
        let mut client = node.connect_from(GREEDY).await;
        client.raw(b"PUT /v1/kv/a/k HTTP/1.1\r\nhost: t\r\ncontent-length: 16777216\r\n\r\nx").await;
        heads.push(client);
    }
    node.until(&in_use("requests"), 8.0).await;
    for last in [1, GREEDY] {
        for bytes in [10, 100_000, 900_000] {
            put_from(&node, last, bytes).await.is(204);
        }
    }
    assert!(node.metric(&in_use("body_bytes")).await < 1e5);
    node.stop().await;
}

#[tokio::test]
async fn bodies_that_arrive_are_bounded_and_the_greedy_address_is_refused_first() {
    let node = Node::with(|config| {
        config.max_body_bytes = ByteSize(1 << 20);
        config.max_body_bytes_in_flight = ByteSize(10 << 20);
    })
    .await;
    let mut greedy = Vec::new();
    for _ in 0..14 {
        let mut client = node.connect_from(GREEDY).await;
        client.raw(b"PUT /v1/kv/a/k HTTP/1.1\r\nhost: t\r\ncontent-length: 1048576\r\n\r\n").await;
        // The server may refuse it and close the connection before it has read everything.
        let _ = client.stream.write_all(&vec![b'x'; (1 << 20) - 1]).await;
        greedy.push(client);
    }
    node.until_at_least("http_shed_total{bound=\"body_bytes\"}", 1.0).await;
    let held = node.metric(&in_use("body_bytes")).await;
    assert!((8e6..=10.5e6).contains(&held), "{held}");
    // Another address gets a part of the reserve, and small bodies need none.
    put_from(&node, 1, 300_000).await.is(204);
    put_from(&node, 1, 10_000).await.is(204);
    put_from(&node, GREEDY, 10_000).await.is(204);
    drop(greedy);
    node.until(&in_use("body_bytes"), 0.0).await;
    put_from(&node, GREEDY, 900_000).await.is(204);
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_all_scans_leaves_some_for_others() {
    let node = Node::with(|config| config.max_scans = 40).await;
    fill(&node);
    let mut greedy = Vec::new();
    for _ in 0..50 {
        greedy.push(node.unread(GREEDY, "/v1/kv/big").await);
    }
    node.until_at_least("http_shed_total{bound=\"scans\"}", 10.0).await;
    let held = node.metric(&in_use("scans")).await;
    assert!((36.0..40.0).contains(&held), "{held}");
    for _ in 0..20 {
        node.get("/v1/kv/big?limit=1").await.is(200);
    }
    let refused = node.connect_from(GREEDY).await.call("GET", "/v1/kv/big?limit=1", &[], b"").await;
    refused.refused(503, "overloaded", "retry");
    assert!(node.metric("client_largest_share{bound=\"scans\"}").await >= 36.0);
    drop(greedy);
    node.until(&in_use("scans"), 0.0).await;
    node.stop().await;
}

#[tokio::test]
async fn the_metrics_name_the_largest_holder_of_a_bound_that_runs_short() {
    let node = Node::with(|config| (config.max_tails, config.share_reserve_percent) = (10, 10)).await;
    node.call("POST", "/v1/streams/s/records", &[], b"x").await.is(200);
    let holders = async || {
        let text = String::from_utf8(node.get("/metrics").await.is(200).body).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("thalweg_client_largest_holder{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let target = "/v1/streams/s/records?from=1";
    let mut held = vec![tail(&node, 1, target).await];
    for _ in 0..7 {
        held.push(tail(&node, GREEDY, target).await);
    }
    node.until(&in_use("tails"), 8.0).await;
    assert_eq!(holders().await, Vec::<String>::new(), "a tail is free besides the reserve");
    assert_eq!(node.metric("client_largest_share{bound=\"tails\"}").await, 7.0);
    held.push(tail(&node, GREEDY, target).await);
    node.until(&in_use("tails"), 9.0).await;
    let expected = "thalweg_client_largest_holder{bound=\"tails\",address=\"127.0.0.2\"} 8";
    assert_eq!(holders().await, [expected]);
    // The line goes away with what it reports, and other bounds have none.
    held.pop();
    node.until(&in_use("tails"), 8.0).await;
    assert_eq!(holders().await, Vec::<String>::new());
    drop(held);
    node.stop().await;
}

#[tokio::test]
async fn a_connection_is_served_although_another_of_its_address_takes_all_tails() {
    // One HTTP/2 connection holds all tails that it can get.
    let node = Node::with(|config| config.max_tails = 40).await;
    node.call("POST", "/v1/streams/s/records", &[], b"x").await.is(200);
    let (mut sender, driver) = http2(&node, GREEDY, 65_535).await;
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..40 {
        let request = get("/v1/streams/s/records", "text/event-stream");
        let (reply, _) = sender.send_request(request, true).unwrap();
        sender = sender.ready().await.unwrap();
        let reply = within(reply).await.unwrap();
        refused += usize::from(reply.status() == 503);
        held.push(reply);
    }
    assert_eq!(refused, 4);
    let mut good = node.connect_from(GREEDY).await;
    good.send("GET", "/v1/streams/s/records", &[("accept", "text/event-stream")], b"").await;
    good.head().await.is(200);
    drop((held, sender, driver));
    node.stop().await;
}

#[tokio::test]
async fn connections_have_a_reserve_and_health_answers_when_all_are_taken() {
    let node = Node::with(|config| {
        config.max_connections = 20;
        config.idle_timeout_when_short = Span(Duration::from_secs(60));
    })
    .await;
    let mut greedy = Vec::new();
    for _ in 0..18 {
        let mut client = node.connect_from(GREEDY).await;
        client.call("GET", "/v1/kv", &[], b"").await.is(200);
        greedy.push(client);
    }
    let refused = node.connect_from(GREEDY).await.call("GET", "/v1/kv", &[], b"").await;
    assert_eq!(refused.header("connection"), "close");
    refused.refused(503, "overloaded", "retry");
    // Another address is served from the reserve.
    node.get("/v1/kv").await.is(200);
    // Silent connections above the limit do not keep the operators out, even from their own address.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(dial_from(GREEDY, node.address).await);
    }
    for last in [1, GREEDY] {
        for target in ["/health", "/ready", "/metrics", "/v1/status"] {
            node.connect_from(last).await.call("GET", target, &[], b"").await.is(200);
        }
    }
    for client in &mut greedy {
        client.call("GET", "/v1/kv", &[], b"").await.is(200);
    }
    node.stop().await;
}

#[tokio::test]
async fn silent_connections_keep_nobody_out_even_from_their_own_address() {
    let node = Node::with(|config| {
        config.max_connections = 20;
        config.header_timeout = Span(Duration::from_secs(18));
        crate::support::resp::serving(config);
    })
    .await;
    let mut silent = Vec::new();
    for number in 0..90 {
        let ports = [node.address, node.resp.unwrap(), node.native.unwrap()];
        silent.push(dial_from(GREEDY, ports[number % 3]).await);
    }
    let begun = std::time::Instant::now();
    for last in [GREEDY, 1] {
        node.connect_from(last).await.call("GET", "/v1/kv", &[], b"").await.is(200);
        let mut redis = crate::support::resp::Resp::connect_from(&node, last).await;
        assert_eq!(redis.call("SET a 1").await, "+OK");
        node.raw_from(last).await;
        assert_eq!(redis.call("GET a").await, "$1 1");
    }
    assert!(begun.elapsed() < Duration::from_secs(17), "{:?}", begun.elapsed());
    assert!(node.metric(&in_use("connections")).await <= 20.0);
    drop(silent);
    node.stop().await;
}

#[tokio::test]
async fn idle_connections_of_the_greedy_address_are_closed_when_connections_run_short() {
    let node = Node::with(|config| {
        config.max_connections = 20;
        config.header_timeout = millis(400);
        config.idle_timeout_when_short = millis(100);
    })
    .await;
    let mut good = node.connect().await;
    good.call("GET", "/v1/kv", &[], b"").await.is(200);
    let mut greedy = Vec::new();
    for _ in 0..17 {
        let mut client = node.connect_from(GREEDY).await;
        client.call("GET", "/v1/kv", &[], b"").await.is(200);
        greedy.push(client);
    }
    for client in &mut greedy {
        assert_eq!(client.closed().await, b"");
    }
    // The good client was idle for as long, and its address holds little.
    good.call("GET", "/v1/kv", &[], b"").await.is(200);
    // Closed connections are counted for half a second, while the server reads on.
    let served_again =
        async { while node.connect_from(GREEDY).await.call("GET", "/v1/kv", &[], b"").await.status != 200 {} };
    within(served_again).await;
    node.stop().await;
}

#[tokio::test]
async fn streams_count_in_the_bound_on_stored_objects_and_have_a_reserve() {
    // Room for 1,600 streams.
    let node = Node::with(|config| {
        config.max_object_bytes = ByteSize(1 << 20);
        config.durability = Durability::Os;
    })
    .await;
    let mut greedy = node.connect_from(GREEDY).await;
    let mut created = 0;
    while greedy.call("PUT", &format!("/v1/streams/g{created}"), &[], b"").await.status == 201 {
        created += 1;
    }
    assert!((1_400..=1_450).contains(&created), "{created}: all but the reserve");
    for (method, target) in [("PUT", "/v1/streams/more"), ("POST", "/v1/streams/more/records")] {
        greedy.call(method, target, &[], b"").await.refused(503, "overloaded", "retry");
    }
    greedy.call("POST", "/v1/streams/g0/records", &[], b"x").await.is(200);
    node.call("PUT", "/v1/streams/good", &[], b"").await.is(201);
    assert!(node.metric("client_largest_share{bound=\"object_bytes\"}").await > 900_000.0);
    // What is deleted makes room, as soon as the server counts again.
    for number in 0..20 {
        greedy.call("DELETE", &format!("/v1/streams/g{number}"), &[], b"").await.is(204);
    }
    let is_created = async || greedy.call("PUT", "/v1/streams/more", &[], b"").await.status == 201;
    eventually("there is room", is_created).await;
    node.stop().await;
}

#[tokio::test]
async fn caches_and_subscriptions_have_a_share_for_each_address() {
    let node = Node::with(|config| {
        config.max_caches_bytes = ByteSize(10 << 20);
        config.new_cache_bytes = ByteSize(1 << 20);
        config.max_subscriptions = 10;
    })
    .await;
    let create = |last: u8, name: String| {
        let node = &node;
        async move { node.connect_from(last).await.call("PUT", &format!("/v1/caches/{name}"), &[], b"").await.status }
    };
    for number in 0..9 {
        assert_eq!(create(GREEDY, format!("g{number}")).await, 201);
    }
    assert_eq!(create(GREEDY, "one-more".to_owned()).await, 409);
    assert_eq!(create(1, "good".to_owned()).await, 201);
    node.delete("/v1/caches/g0").await.is(204);
    node.delete("/v1/caches/g1").await.is(204);
    assert_eq!(create(GREEDY, "one-more".to_owned()).await, 201, "a removed cache gives its share back");

    let mut greedy = Vec::new();
    let status = loop {
        let mut client = node.connect_from(GREEDY).await;
        client.send("GET", "/v1/subjects/a", &[], b"").await;
        let head = client.head().await;
        if head.status != 200 {
            break head.status;
        }
        greedy.push(client);
    };
    assert_eq!((greedy.len(), status), (9, 503));
    let _good = node.open("/v1/subjects/a", &[]).await;
    node.stop().await;
}

#[tokio::test]
async fn the_number_of_caches_has_a_share_for_each_address() {
    let node = Node::with(|config| {
        config.max_caches_bytes = ByteSize(128 << 20);
        config.new_cache_bytes = ByteSize(64 << 10);
    })
    .await;
    let mut greedy = node.connect_from(GREEDY).await;
    let mut created = 0;
    let refused = loop {
        let reply = greedy.call("PUT", &format!("/v1/caches/g{created}"), &[], b"").await;
        if reply.status != 201 {
            break reply;
        }
        created += 1;
    };
    let error = refused.refused(409, "too_many_caches", "fix");
    holds(error["message"].as_str().unwrap(), "their share of the 1024 caches");
    assert_eq!(created, 1024 - 103);
    node.put("/v1/caches/good", b"").await.is(201);
    node.delete("/v1/caches/g0").await.is(204);
    node.delete("/v1/caches/g1").await.is(204);
    greedy.call("PUT", "/v1/caches/again", &[], b"").await.is(201);
    node.stop().await;
}

#[tokio::test]
async fn a_subscriber_over_http_may_not_block_publishers_unless_its_subjects_permit_it() {
    let node = Node::start().await;
    node.get("/v1/subjects/a?policy=block").await.refused(403, "blocking_not_allowed", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_body_that_trickles_is_cut_before_its_time_is_over() {
    let node = Node::with(|config| config.body_timeout = Span(Duration::from_secs(18))).await;
    let mut slow = node.connect().await;
    slow.raw(b"PUT /v1/kv/a/k HTTP/1.1\r\nhost: t\r\ncontent-length: 1000000\r\n\r\n").await;
    // Most of the body arrives at once, and gives no credit for later.
    slow.raw(&vec![b'x'; 900_000]).await;
    let begun = std::time::Instant::now();
    slow.reply("PUT").await.refused(408, "body_timeout", "retry");
    assert!(begun.elapsed() < Duration::from_secs(17), "{:?}", begun.elapsed());
    node.stop().await;
}

#[tokio::test]
async fn a_snapshot_whose_client_does_not_read_is_given_back_and_not_kept() {
    let node = Node::with(|config| config.write_timeout = millis(200)).await;
    fill(&node);
    let greedy = node.unread(1, "/v1/snapshot?compress=none").await;
    node.until("snapshots_open", 1.0).await;
    node.until("snapshots_open", 0.0).await;
    drop(greedy);
    // A client that reads and loses its connection can still resume.
    let mut client = node.open("/v1/snapshot?compress=none", &[]).await;
    client.chunk().await.expect("there is more");
    drop(client);
    node.until(&in_use("connections"), 1.0).await;
    assert_eq!(node.metric("snapshots_open").await, 1.0);
    assert_eq!(node.metric(&in_use("snapshots")).await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn the_log_that_overlapping_snapshots_hold_is_a_metric() {
    const HELD: &str = "snapshot_held_log_bytes";
    let node = Node::with(|config| config.maintenance_interval = millis(10)).await;
    let keyspace = node.db.with_durability(Durability::Os).keyspace("k").unwrap();
    let take = || node.db.snapshot(&SnapshotOptions::default()).unwrap();
    // Each of the snapshots is short, and there is always one.
    let mut open = take();
    while node.metric(HELD).await < 1_000_000.0 {
        keyspace.put(b"k", &vec![b'x'; 100_000]).unwrap();
        let next = take();
        node.db.maintain().unwrap();
        open = next;
        pause().await;
    }
    drop(open);
    node.until(HELD, 0.0).await;
    // With a pause between them, in which the node could free segments, the log is not held.
    let begun = node.db.stats().log.bytes;
    while node.db.stats().log.bytes < begun + 3_000_000 {
        let open = take();
        keyspace.put(b"k", &vec![b'x'; 100_000]).unwrap();
        assert!(node.metric(HELD).await < 1_000_000.0);
        drop(open);
        node.db.maintain().unwrap();
    }
    node.stop().await;
}

#[tokio::test]
async fn snapshots_of_one_address_leave_one_for_others() {
    let node = Node::start().await;
    fill(&node);
    let mut greedy = Vec::new();
    for taken in 1..=7 {
        greedy.push(node.unread(GREEDY, "/v1/snapshot?compress=none").await);
        node.until("snapshots_open", f64::from(taken)).await;
    }
    let refused = node.connect_from(GREEDY).await.call("GET", "/v1/snapshot", &[], b"").await;
    refused.refused(503, "overloaded", "retry");
    node.get("/v1/snapshot").await.is(200);
    node.stop().await;
}

#[tokio::test]
async fn one_of_two_snapshots_is_left_for_others_on_a_small_machine() {
    let node = Node::with(|config| config.max_reply_bytes_in_flight = ByteSize(24 << 20)).await;
    fill(&node);
    let _greedy = node.unread(GREEDY, "/v1/snapshot?compress=none").await;
    node.until("snapshots_open", 1.0).await;
    let refused = node.connect_from(GREEDY).await.call("GET", "/v1/snapshot", &[], b"").await;
    refused.refused(503, "overloaded", "retry");
    node.get("/v1/snapshot").await.is(200);
    node.stop().await;
}

// ----- HTTP/2

type Sender = h2::client::SendRequest<bytes::Bytes>;

/// Opens an HTTP/2 connection whose streams have windows of this size.
async fn http2(node: &Node, last: u8, window: u32) -> (Sender, tokio::task::JoinHandle<()>) {
    let stream = dial_from(last, node.address).await;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(1 << 24);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    let driver = tokio::spawn(async move {
        let _ = connection.await;
    });
    (sender.ready().await.unwrap(), driver)
}

fn get(target: &str, accept: &str) -> http::Request<()> {
    let uri = format!("http://t{target}");
    http::Request::builder().uri(uri).header("accept", accept).body(()).unwrap()
}

#[tokio::test]
async fn a_stream_that_is_not_read_gives_its_scan_back_although_others_of_its_connection_are() {
    let node = Node::with(|config| config.write_timeout = millis(500)).await;
    fill(&node);
    let (mut sender, driver) = http2(&node, 1, 16_384).await;
    let (reply, _) = sender.send_request(get("/v1/kv/big", "*/*"), true).unwrap();
    let unread = within(reply).await.unwrap();
    assert_eq!((unread.status(), node.metric(&in_use("scans")).await), (http::StatusCode::OK, 1.0));
    // The connection is not idle, and its socket always moves.
    let served = async {
        loop {
            let Ok(ready) = sender.ready().await else { return };
            sender = ready;
            let Ok((reply, _)) = sender.send_request(get("/v1/kv", "*/*"), true) else { return };
            if reply.await.is_err() {
                return;
            }
        }
    };
    within(served).await;
    node.until(&in_use("scans"), 0.0).await;
    drop((unread, driver));
    node.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_read_slowly_but_steadily_is_sent_to_its_end() {
    const LEN: usize = 900_000;
    let node = Node::with(|config| config.write_timeout = Span(Duration::from_secs(3))).await;
    let keyspace = node.db.with_durability(Durability::Os).keyspace("k").unwrap();
    keyspace.put(b"v", &vec![b'x'; LEN]).unwrap();
    let (mut sender, driver) = http2(&node, 1, 65_535).await;
    let (reply, _) = sender.send_request(get("/v1/kv/k/v", "*/*"), true).unwrap();
    let mut body = within(reply).await.unwrap().into_body();
    let mut seen = 0;
    while let Some(part) = within(body.data()).await {
        let part = part.unwrap();
        seen += part.len();
        body.flow_control().release_capacity(part.len()).unwrap();
        // The slow reader is the thing under test: 16 KiB in 50 ms.
        tokio::time::sleep(Duration::from_micros(3 * part.len() as u64)).await;
    }
    assert_eq!(seen, LEN);
    node.until("http_in_use{bound=\"reply_bytes\"}", 0.0).await;
    drop(driver);
    node.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_read_below_the_minimum_rate_is_cut_although_each_part_is_read_in_time() {
    const LEN: usize = 900_000;
    let node = Node::with(|config| {
        config.write_timeout = Span(Duration::from_secs(1));
        config.min_transfer_rate = ByteSize(64 << 10);
    })
    .await;
    let keyspace = node.db.with_durability(Durability::Os).keyspace("k").unwrap();
    keyspace.put(b"v", &vec![b'x'; LEN]).unwrap();
    let (mut sender, driver) = http2(&node, 1, 16_384).await;
    let (reply, _) = sender.send_request(get("/v1/kv/k/v", "*/*"), true).unwrap();
    let mut body = within(reply).await.unwrap().into_body();
    let mut seen = 0;
    while let Some(Ok(part)) = within(body.data()).await {
        seen += part.len();
        // The connection may be cut already.
        let _ = body.flow_control().release_capacity(part.len());
        // The slow reader is the thing under test: 40 KiB a second.
        tokio::time::sleep(Duration::from_micros(25 * part.len() as u64)).await;
    }
    assert!(seen < LEN / 2, "{seen}");
    node.until("http_in_use{bound=\"reply_bytes\"}", 0.0).await;
    drop(driver);
    node.stop().await;
}

#[tokio::test]
async fn a_good_client_is_not_refused_under_attack_from_its_own_address() {
    let node = Node::with(|config| {
        config.max_requests_in_flight = 40;
        config.max_scans = 40;
    })
    .await;
    fill(&node);
    // One connection of the address holds all requests and scans that it can get.
    let (mut sender, driver) = http2(&node, 1, 16_384).await;
    let mut held = Vec::new();
    for number in 0..80 {
        let request = if number % 2 == 0 {
            get("/v1/kv/big", "*/*")
        } else {
            http::Request::put("http://t/v1/kv/a/k").header("content-length", 10).body(()).unwrap()
        };
        held.push(sender.send_request(request, number % 2 == 0).unwrap());
        sender = sender.ready().await.unwrap();
    }
    node.until_at_least("http_shed_total{bound=\"requests\"}", 1.0).await;
    let mut good: Client = node.connect().await;
    for number in 0..100 {
        good.call("PUT", "/v1/kv/a/good", &[], format!("{number}").as_bytes()).await.is(204);
        assert_eq!(good.call("GET", "/v1/kv/a/good", &[], b"").await.is(200).body, format!("{number}").as_bytes());
    }
    assert_eq!(node.get("/v1/status").await.is(200).json()["health"]["status"], json!("good"));
    drop((held, sender, driver));
    node.stop().await;
}
