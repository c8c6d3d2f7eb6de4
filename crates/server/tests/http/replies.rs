//! Memory of replies that clients do not read.

use std::time::Duration;

use serde_json::{Value, json};
use thalweg_server::config::{ByteSize, Span};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::support::{HELD, HELD_BY_ONE_ADDRESS, Node, Reply, dial_from};

const MIB: usize = 1 << 20;
const LARGE: usize = 8 * MIB;

/// A node of whose bound on reply bytes one address may hold 64 MiB. Clients may read as slowly as they like.
async fn node(bound: ByteSize) -> Node {
    Node::with_segments(64 << 20, |config| {
        config.max_reply_bytes_in_flight = bound;
        config.write_timeout = Span(Duration::from_secs(300));
    })
    .await
}

/// Sends a request whose reply the client does not read, over a socket with a small buffer.
async fn unread(node: &Node, request: &str, body: &str) -> TcpStream {
    let mut stream = node.connect_small(1).await;
    let (kind, length) = ("content-type: application/json", body.len());
    let head = format!("{request} HTTP/1.1\r\nhost: t\r\n{kind}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await.unwrap();
    stream
}

async fn txn(node: &Node, body: &Value) -> Reply {
    node.post_json("/v1/txn", body).await
}

/// Values of control characters are six times as long in JSON as in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_that_are_not_read_count_until_their_clients_are_gone() {
    let node = node(HELD_BY_ONE_ADDRESS).await;
    let keyspace = node.db.keyspace("k").unwrap();
    keyspace.put(b"large", &vec![1; LARGE]).unwrap();
    keyspace.put(b"small", b"v").unwrap();
    let get = |key: &str| json!({"op": "get", "keyspace": "k", "key": key});
    let read = json!({"then": [get("large")]});
    let mut greedy = Vec::new();
    // The last one takes a part of the reserve, as a connection that holds nothing may.
    for taken in 1..=8 {
        greedy.push(unread(&node, "POST /v1/txn", &read.to_string()).await);
        let (least, most) = ((taken * LARGE) as f64, (taken * (LARGE + 256 * 1024)) as f64);
        node.until_at_least(HELD, least).await;
        assert!(node.metric(HELD).await <= most, "the values count as they are stored");
    }
    // There is no room for another one: reads are refused, and so are writes that would also read it.
    txn(&node, &read).await.refused(503, "overloaded", "retry");
    let put = |key: &str, value: &str| json!({"op": "put", "keyspace": "k", "key": key, "value": value});
    let both = json!({"then": [put("never", "v"), get("large")]});
    txn(&node, &both).await.refused(503, "overloaded", "retry");
    assert_eq!(keyspace.get(b"never").unwrap(), None);
    assert_eq!(txn(&node, &json!({"then": [get("small")]})).await.is(200).json()["results"][0]["value"], "v");
    // A value that the transaction itself makes large is not foreseen.
    let value = "x".repeat(LARGE);
    let unforeseen = json!({"then": [put("small", &value), get("small")]});
    let done = txn(&node, &unforeseen).await.is(200).json();
    assert_eq!((&done["succeeded"], &done["wrote"], &done["results"]), (&json!(true), &json!(true), &Value::Null));
    assert_eq!(keyspace.get(b"small").unwrap().unwrap().value, value.as_bytes());
    assert!(node.metric(HELD).await <= f64::from(68 << 20));
    drop(greedy);
    node.until(HELD, 0.0).await;
    let results = txn(&node, &both).await.is(200).json()["results"].clone();
    assert_eq!(
        (&results[0], results[1]["value"].as_str().unwrap()),
        (&json!({"op": "put"}), "\u{1}".repeat(LARGE).as_str())
    );
    node.until(HELD, 0.0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_do_not_read_leave_long_messages_in_their_queues() {
    let node = node(HELD_BY_ONE_ADDRESS).await;
    let mut greedy = Vec::new();
    for _ in 0..12 {
        greedy.push(unread(&node, "GET /v1/subjects/a", "").await);
    }
    let mut reader = node.connect().await;
    node.until("http_in_use{bound=\"subscriptions\"}", 12.0).await;
    let message = "\u{1}\u{e9}".repeat(LARGE / 3 - 1000);
    node.call("POST", "/v1/subjects/a", &[], message.as_bytes()).await.is(200);
    node.until_at_least(HELD, (7 * (message.len() + 1)) as f64).await;
    assert!(node.metric(HELD).await <= f64::from(68 << 20));
    // A subscriber that reads gets its message once there is room, and messages before and after it.
    let accept = [("accept", "application/x-ndjson")];
    reader.send("GET", "/v1/subjects/b?limit=4", &accept, b"").await;
    reader.head().await.is(200);
    reader.chunk().await.unwrap();
    // Its JSON must fit into a body.
    let message = "x".repeat(LARGE - 1000);
    let messages = [json!({"payload": "1"}), json!({"payload": message}), json!({"payload": "3"})];
    node.post_json("/v1/subjects/b", &json!(messages)).await.is(200);
    node.call("POST", "/v1/subjects/b", &[], b"4").await.is(200);
    drop(greedy);
    let mut seen = Vec::new();
    while let Some(chunk) = reader.chunk().await {
        seen.extend(chunk);
    }
    let lines = seen.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let payloads: Vec<_> = lines
        .map(|line| serde_json::from_slice::<Value>(line).unwrap()["payload"].as_str().map(str::to_owned))
        .filter(Option::is_some)
        .collect();
    assert_eq!(payloads.len(), 4);
    assert!(payloads[0].as_deref() == Some("1") && payloads[1].as_deref() == Some(&message));
    assert!(payloads[2].as_deref() == Some("3") && payloads[3].as_deref() == Some("4"));
    node.until(HELD, 0.0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_answer_counts_and_waits_for_room() {
    let node = node(HELD_BY_ONE_ADDRESS).await;
    let answer = "\u{1}".repeat(LARGE - 1000);
    for (accept, shown) in [("application/octet-stream", false), ("application/json", true)] {
        let mut service = node.open("/v1/subjects/service?limit=2", &[("accept", "application/x-ndjson")]).await;
        service.chunk().await.unwrap();
        let head = format!("POST /v1/ask/service?timeout=60 HTTP/1.1\r\nhost: t\r\naccept: {accept}\r\n");
        let mut unread = node.connect_small(1).await;
        unread.write_all((head + "content-length: 1\r\n\r\nq").as_bytes()).await.unwrap();
        let request: Value = serde_json::from_slice(&service.chunk().await.unwrap()).unwrap();
        let reply_to = format!("/v1/subjects/{}", request["reply"].as_str().unwrap());
        node.call("POST", &reply_to, &[], answer.as_bytes()).await.is(200);
        node.until_at_least(HELD, answer.len() as f64).await;
        assert!(node.metric(HELD).await < (LARGE + MIB) as f64);
        drop(unread);
        node.until(HELD, 0.0).await;
        let mut asking = node.connect().await;
        asking.send("POST", "/v1/ask/service?timeout=60", &[("accept", accept)], b"q").await;
        let request: Value = serde_json::from_slice(&service.chunk().await.unwrap()).unwrap();
        let reply_to = format!("/v1/subjects/{}", request["reply"].as_str().unwrap());
        node.call("POST", &reply_to, &[], answer.as_bytes()).await.is(200);
        let whole = asking.reply("POST").await.is(200);
        match shown {
            false => assert!(whole.body == answer.as_bytes()),
            true => assert!(whole.json()["payload"].as_str() == Some(&answer)),
        }
        node.until(HELD, 0.0).await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_cache_that_are_not_read_count() {
    let node = node(ByteSize(24 << 20)).await;
    let value = "\u{1}".repeat(3 * MIB);
    node.put_json("/v1/caches/c", &json!({"max_bytes": 64 << 20})).await.is(201);
    node.put("/v1/caches/c/keys/k", value.as_bytes()).await.is(204);
    let keys: Vec<_> = std::iter::once("k".to_owned()).chain((0..200).map(|key| format!("none{key}"))).collect();
    for count in [1, 201] {
        let read = json!({"keys": keys[..count]});
        let held = unread(&node, "POST /v1/caches/c/get", &read.to_string()).await;
        node.until_at_least(HELD, value.len() as f64).await;
        assert!(node.metric(HELD).await < (value.len() + MIB) as f64);
        drop(held);
        node.until(HELD, 0.0).await;
        let entries = node.post_json("/v1/caches/c/get", &read).await.is(200).json()["entries"].clone();
        assert_eq!(entries.as_array().unwrap().len(), count);
        assert!(entries[0]["value"].as_str() == Some(&value) && entries[0]["version"] == 1);
        node.until(HELD, 0.0).await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_replies_of_many_streams_count_together() {
    const VALUE: usize = 100_000;
    let node = node(ByteSize(24 << 20)).await;
    node.put("/v1/kv/a/k", &[b'x'; VALUE]).await.is(204);
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (mut sender, connection) =
        builder.handshake::<_, bytes::Bytes>(dial_from(2, node.address).await).await.unwrap();
    let driver = tokio::spawn(async move {
        let _ = connection.await;
    });
    let mut streams = Vec::new();
    let mut send = async |target: &str| {
        let request = http::Request::get(format!("http://t{target}")).body(()).unwrap();
        sender = sender.clone().ready().await.unwrap();
        let (reply, _) = sender.send_request(request, true).unwrap();
        reply.await.unwrap()
    };
    for _ in 0..20 {
        let reply = send("/v1/kv/a/k").await;
        assert_eq!(reply.status(), 200);
        streams.push(reply);
    }
    assert_eq!(node.metric(HELD).await, (20 * VALUE) as f64);
    // Operators get metrics even if there is no room for them.
    let mut all = Vec::new();
    for _ in 0..60 {
        all.push(send("/metrics").await);
        assert_eq!(all.last().unwrap().status(), 200);
    }
    assert!(node.metric(HELD).await > (20 * VALUE) as f64);
    drop((streams, all, driver));
    drop(sender);
    node.until(HELD, 0.0).await;
    node.stop().await;
}
