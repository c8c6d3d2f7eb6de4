//! Reads that take longer than a connection's thread may spend on one client.

use std::time::{Duration, Instant};

use serde_json::json;
use thalweg_types::{
    command::CommitBuilder,
    limits::MAX_VALUE_BYTES,
    record::{Record, RecordBatch},
};

use crate::support::{Node, eventually, gated, pause};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// Last byte of the loopback address of a client with many long reads.
const GREEDY: u8 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_reads_return_what_short_ones_do() {
    let node = Node::with_large_segments(|_| ()).await;
    let keyspace = node.db.keyspace("default").unwrap();
    // Keys that a scan examines before it finds the first pair.
    for from in (0..20_000).step_by(1000) {
        let mut commit = CommitBuilder::new();
        for key in from..from + 1000 {
            commit.put(keyspace.id(), format!("hidden:{key:06}").as_bytes(), b"v").unwrap();
        }
        node.db.commit(&commit).unwrap();
    }
    keyspace.delete_prefix(b"hidden:").unwrap();
    for key in ["seen:1", "seen:2", "seen:3"] {
        keyspace.put(key.as_bytes(), key.as_bytes()).unwrap();
    }
    let page = node.get("/v1/kv/default?limit=2").await.is(200).lines();
    assert_eq!(page.iter().filter_map(|line| line["key"].as_str()).collect::<Vec<_>>(), ["seen:1", "seen:2"]);
    assert_eq!(page[2]["count"], 2);
    let cursor = page[2]["cursor"].as_str().unwrap();
    let rest = node.get(&format!("/v1/kv/default?limit=2&cursor={cursor}")).await.is(200).lines();
    assert_eq!((rest.len(), &rest[0]["key"], &rest[1]["count"]), (2, &"seen:3".into(), &1.into()));
    let range = node.get("/keys/range?limit=1").await.is(200).json();
    assert_eq!((&range["items"][0]["key"], &range["count"]), (&"seen:1".into(), &1.into()));
    // Values that take long to copy, and that stay in the log.
    keyspace.put(b"large", &vec![b'x'; MAX_VALUE_BYTES]).unwrap();
    for target in ["/v1/kv/default/large", "/v0/entity?id=large"] {
        let reply = node.get(target).await.is(200);
        assert_eq!((reply.body.len(), reply.header("thalweg-durability")), (MAX_VALUE_BYTES, "disk"));
    }
    assert_eq!(node.get("/keys/large").await.is(200).json()["value"].as_str().unwrap().len(), MAX_VALUE_BYTES);
    // A record of an append that takes long to read.
    let record = vec![b'y'; MAX_VALUE_BYTES - 16];
    node.call("POST", "/v1/streams/s/records", &[], &record).await.is(200);
    let records = node.get("/v1/streams/s/records?limit=1&max_bytes=100").await.is(200).lines();
    assert_eq!(records[0]["payload"].as_str().unwrap().len(), record.len());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies_of_json_are_parsed_on_threads_for_long_reads() {
    let node = Node::start().await;
    let value = "v".repeat(1000);
    let (handed_over, node_ref) = ("thalweg_reads_handed_over_total{kind=\"long\"} ", &node);
    let parsed = || async move {
        let metrics = node_ref.get("/metrics").await.is(200).body;
        let metrics = String::from_utf8(metrics).unwrap();
        metrics.lines().find_map(|line| line.strip_prefix(handed_over)?.parse::<u64>().ok()).unwrap()
    };
    for (count, long) in [(10, 0), (100, 1)] {
        let before = parsed().await;
        let keys = 0..count;
        let put = |key| json!({"op": "put", "keyspace": "a", "key": format!("k{key}"), "value": value});
        let operations: Vec<_> = keys.clone().map(put).collect();
        let pairs: Vec<_> = keys.clone().map(|key| json!({"key": format!("k{key}"), "value": value})).collect();
        let mut requests = vec![
            ("/v1/txn", json!({"then": operations})),
            ("/v1/commit", json!({"writes": operations})),
            ("/keys/batch", json!({"items": pairs})),
            ("/keys/batch", json!(pairs)),
            ("/v1/caches/c/put", json!({"items": pairs})),
            ("/v1/streams/s/records", json!({"records": keys.map(|_| json!({"payload": value})).collect::<Vec<_>>()})),
        ];
        for (target, body) in &mut requests {
            node.call("POST", target, JSON, body.to_string().as_bytes()).await.is(200);
            // A syntax error at the end.
            let broken = body.to_string() + "]";
            node.call("POST", target, JSON, broken.as_bytes()).await.refused(400, "bad_json", "fix");
        }
        // All bodies are parsed there twice, and all but that of the append are then converted.
        assert_eq!(parsed().await - before, long * (3 * requests.len() as u64 - 1), "{count} operations");
    }
    let scans = vec![json!({"op": "scan", "keyspace": "a", "limit": 1}); 1001];
    let both = json!({"then": [{"op": "put", "keyspace": "a", "key": "k", "value": "v"}], "else": scans});
    node.call("POST", "/v1/txn", JSON, both.to_string().as_bytes()).await.refused(413, "too_many_scans", "fix");
    node.stop().await;
}

/// The JSON of these records is 96 MiB long, and takes seconds to encode in a test build. Here all tasks have one
/// thread.
#[tokio::test]
async fn a_get_beside_a_fetch_of_control_characters_is_not_delayed() {
    const RECORDS: usize = 64;
    const BYTES: usize = (16 << 20) / RECORDS - 1000;
    let node = Node::with_large_segments(|_| ()).await;
    node.put("/v1/kv/a/small", b"v").await.is(204);
    let stream = node.db.stream("s").unwrap();
    let mut batch = RecordBatch::new();
    for _ in 0..RECORDS / 2 {
        batch.push_payload(&[1; BYTES]).unwrap();
    }
    stream.append(&batch).unwrap();
    stream.append(&batch).unwrap();
    node.put_json("/v1/streams/s/groups/g", &json!({})).await.is(201);
    let before = node.metric("reads_handed_over_total{kind=\"long\"}").await;
    let mut fetching = node.connect().await;
    let fetch = json!({"max_records": RECORDS, "max_bytes": 16 << 20}).to_string();
    fetching.send("POST", "/v1/streams/s/groups/g/fetch", JSON, fetch.as_bytes()).await;
    let fetched = tokio::spawn(async move {
        fetching.head().await.is(200);
        let mut body = Vec::new();
        while let Some(chunk) = fetching.chunk().await {
            body.extend(chunk);
        }
        body
    });
    let (mut client, mut gets, mut longest) = (node.connect().await, 0, Duration::ZERO);
    while !fetched.is_finished() {
        let begun = Instant::now();
        assert_eq!(client.call("GET", "/v1/kv/a/small", &[], b"").await.is(200).body, b"v");
        longest = longest.max(begun.elapsed());
        gets += 1;
        pause().await;
    }
    let delivery: serde_json::Value = serde_json::from_slice(&fetched.await.unwrap()).unwrap();
    let messages = delivery["messages"].as_array().unwrap();
    assert_eq!(messages.len(), RECORDS);
    assert!(messages.iter().all(|message| message["payload"].as_str().unwrap() == "\u{1}".repeat(BYTES)));
    assert!(gets >= 20 && longest < Duration::from_secs(1), "{gets} requests, and one took {longest:?}");
    assert!(node.metric("reads_handed_over_total{kind=\"long\"}").await > before);
    node.until("http_in_use{bound=\"reply_bytes\"}", 0.0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_made_on_threads_for_long_reads() {
    let node = Node::start().await;
    node.put("/v1/kv/one/k", b"v").await.is(204);
    node.call("POST", "/v1/streams/s/records", &[], b"x").await.is(200);
    let names = node.get("/v1/keyspaces").await.is(200).json();
    assert!(names["keyspaces"].as_array().unwrap().iter().any(|keyspace| keyspace["name"] == "one"));
    assert_eq!(node.get("/v1/keyspaces/one").await.is(200).json()["stats"]["keys"], 1);
    node.get("/v1/streams/s/producers").await.is(200);
    node.get("/v1/keyspaces?none=1").await.refused(400, "unknown_parameter", "fix");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_reads_wait_for_a_thread_while_short_ones_are_answered() {
    // More reads than the node has threads for them.
    const READS: usize = 24;
    const LARGE: usize = 2 << 20;
    let (node, gate) = gated::node_with_segments(8 << 20).await;
    let keyspace = node.db.keyspace("default").unwrap();
    // Its bytes stay in the log, so a read of it waits at the gate.
    keyspace.put(b"large", &vec![b'x'; LARGE]).unwrap();
    keyspace.put(b"small", b"v").unwrap();
    gate.hold_reads(true);
    let mut greedy = Vec::new();
    for _ in 0..READS {
        let mut client = node.connect_from(GREEDY).await;
        client.send("GET", "/v1/kv/default/large", &[], b"").await;
        greedy.push(client);
    }
    node.until("http_in_use{bound=\"requests\"}", READS as f64).await;
    eventually("a read begins", async || gate.waiting_reads() > 0).await;
    let of_greedy = gate.waiting_reads();
    assert!(of_greedy < READS, "each read has a thread of its own");
    // One thread is left for a read from another address. After it, no thread is free.
    let mut other = node.connect_from(1).await;
    other.send("GET", "/v1/kv/default/large", &[], b"").await;
    eventually("one more read begins", async || gate.waiting_reads() > of_greedy).await;
    let mut last = node.connect_from(3).await;
    last.send("GET", "/v1/kv/default/large", &[], b"").await;
    node.until("http_in_use{bound=\"requests\"}", (READS + 2) as f64).await;
    // Requests that need no thread are answered, for each of the addresses.
    for from in [1, GREEDY, 3] {
        let small = node.connect_from(from).await.call("GET", "/v1/kv/default/small", &[], b"").await.is(200);
        assert_eq!(small.body, b"v");
        node.connect_from(from).await.call("PUT", "/v1/kv/default/new", &[], b"v").await.is(204);
    }
    // A client that goes away takes its read with it.
    greedy.truncate(READS / 2);
    node.until("http_in_use{bound=\"requests\"}", (READS / 2 + 2) as f64).await;
    gate.hold_reads(false);
    greedy.extend([other, last]);
    for mut client in greedy {
        assert_eq!(client.reply("GET").await.is(200).body, vec![b'x'; LARGE]);
    }
    node.until("http_in_use{bound=\"requests\"}", 0.0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_from_disk_hold_up_no_thread_of_the_server() {
    const READS: usize = 8;
    const BYTES: usize = 5_000;
    let (node, gate) = gated::node().await;
    let keyspace = node.db.keyspace("default").unwrap();
    // Its bytes stay in the log.
    keyspace.put(b"cold", &[b'x'; BYTES]).unwrap();
    keyspace.put(b"small", b"v").unwrap();
    gate.hold_reads(true);
    let mut waiting = Vec::new();
    for _ in 0..READS {
        let mut client = node.connect().await;
        client.send("GET", "/v1/kv/default/cold", &[], b"").await;
        waiting.push(client);
    }
    gate.until_reads_wait(READS).await;
    assert_eq!(node.get("/v1/kv/default/small").await.is(200).body, b"v");
    gate.hold_reads(false);
    for mut client in waiting {
        assert_eq!(client.reply("GET").await.is(200).body, [b'x'; BYTES]);
    }
    assert_eq!(node.metric("reads_handed_over_total{kind=\"cold\"}").await, READS as f64);
    node.stop().await;
}

/// The pairs of a scan with small values are in memory. More such scans wait than there are threads for long reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_scans_wait_for_the_disk_on_threads_for_cold_reads() {
    const SCANS: usize = 6;
    let (node, gate) = gated::node().await;
    let keyspace = node.db.keyspace("default").unwrap();
    // These bytes stay in the log. They are more than a thread for cold reads reads at a time.
    for number in 0..30 {
        keyspace.put(format!("cold:{number:02}").as_bytes(), &[b'x'; 5_000]).unwrap();
    }
    keyspace.put(b"small", b"v").unwrap();
    gate.hold_reads(true);
    let mut waiting = Vec::new();
    for _ in 0..SCANS {
        let mut client = node.connect().await;
        client.send("GET", "/v1/kv/default?limit=2", &[], b"").await;
        waiting.push(client);
    }
    gate.until_reads_wait(SCANS).await;
    assert_eq!(node.get("/v1/kv/default?prefix=small&limit=2").await.is(200).lines()[0]["value"], "v");
    gate.hold_reads(false);
    for mut client in waiting {
        let lines = client.reply("GET").await.is(200).lines();
        assert_eq!((lines.len(), &lines[0]["key"], &lines[1]["key"]), (3, &json!("cold:00"), &json!("cold:01")));
    }
    assert_eq!(node.metric("reads_handed_over_total{kind=\"cold\"}").await, SCANS as f64);

    // A scan that needs the disk and then turns out to be long begins again from its first pair.
    gate.hold_reads(true);
    let mut client = node.connect().await;
    client.send("GET", "/v1/kv/default?limit=31", &[], b"").await;
    gate.until_reads_wait(1).await;
    gate.hold_reads(false);
    let lines = client.reply("GET").await.is(200).lines();
    let keys: Vec<_> = lines.iter().filter_map(|line| line["key"].as_str()).collect();
    let expected: Vec<_> = (0..30).map(|number| format!("cold:{number:02}")).chain(["small".to_owned()]).collect();
    assert_eq!((keys, &lines[31]["count"]), (expected.iter().map(String::as_str).collect(), &json!(31)));
    node.stop().await;
}

/// A delivery takes effect before its records are read, and none of them is lost by reading them elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_of_records_on_disk_holds_up_no_thread_of_the_server() {
    const MEMBERS: usize = 6;
    let (node, gate) = gated::node().await;
    node.db.keyspace("default").unwrap().put(b"small", b"v").unwrap();
    let stream = node.db.stream("jobs").unwrap();
    let mut batch = RecordBatch::new();
    for number in 0..MEMBERS {
        batch.push_payload(format!("job {number}").as_bytes()).unwrap();
    }
    stream.append(&batch).unwrap();
    let group = "/v1/streams/jobs/groups/workers";
    node.put_json(group, &json!({})).await.is(201);
    gate.hold_reads(true);
    let mut waiting = Vec::new();
    for member in 0..MEMBERS {
        let mut client = node.connect().await;
        let fetch = json!({ "member": format!("m{member}"), "max_records": 1 }).to_string();
        client.send("POST", &format!("{group}/fetch"), &[("content-type", "application/json")], fetch.as_bytes()).await;
        waiting.push(client);
    }
    gate.until_reads_wait(MEMBERS).await;
    assert_eq!(node.get("/v1/kv/default/small").await.is(200).body, b"v");
    gate.hold_reads(false);
    let mut offsets = Vec::new();
    for mut client in waiting {
        let delivered = client.reply("POST").await.is(200).json();
        let records = delivered["messages"].as_array().unwrap();
        offsets.extend(records.iter().map(|record| record["offset"].as_u64().unwrap()));
    }
    offsets.sort_unstable();
    assert_eq!(offsets, (0..MEMBERS as u64).collect::<Vec<_>>(), "each record is delivered once");
    assert_eq!(node.metric("reads_handed_over_total{kind=\"cold\"}").await, MEMBERS as f64);
    node.stop().await;
}

/// A read and a tail that start at a time search the log for it, on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_by_time_on_disk_hold_up_no_thread_of_the_server() {
    const CLIENTS: usize = 6;
    let (node, gate) = gated::node().await;
    node.db.keyspace("default").unwrap().put(b"small", b"v").unwrap();
    let (time, start) = gated::compacted_stream(&node.db);
    let target = format!("/v1/streams/s/records?since={}", time.0);
    gate.hold_reads(true);
    let mut waiting = Vec::new();
    for client in 0..CLIENTS {
        let accept = if client % 2 == 0 { "application/x-ndjson" } else { "text/event-stream" };
        let mut client = node.connect().await;
        client.send("GET", &target, &[("accept", accept)], b"").await;
        waiting.push(client);
    }
    gate.until_reads_wait(CLIENTS).await;
    assert_eq!(node.get("/v1/kv/default/small").await.is(200).body, b"v");
    gate.hold_reads(false);
    for (number, client) in waiting.iter_mut().enumerate() {
        if number % 2 == 0 {
            assert_eq!(client.reply("GET").await.is(200).lines()[0]["offset"], start.0);
            continue;
        }
        client.head().await.is(200);
        let mut text = String::new();
        while !text.contains("id: ") {
            text.push_str(&String::from_utf8(client.chunk().await.unwrap()).unwrap());
        }
        assert!(text.contains(&format!("id: {}\n", start.0)), "{text}");
    }
    drop(waiting);
    node.stop().await;
}

/// A group that begins at a time, and a seek to a time, search the log for it, on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_begin_at_a_time_on_disk_hold_up_no_thread_of_the_server() {
    const GROUPS: usize = 6;
    let (node, gate) = gated::node().await;
    node.db.keyspace("default").unwrap().put(b"small", b"v").unwrap();
    let (time, start) = gated::compacted_stream(&node.db);
    let group = |number: usize| format!("/v1/streams/s/groups/g{number}");
    node.put_json(&group(0), &json!({})).await.is(201);
    let place = json!({ "time_micros": time.0 });
    gate.hold_reads(true);
    let mut waiting = Vec::new();
    for number in 0..GROUPS {
        let mut client = node.connect().await;
        match number {
            0 => {
                let body = json!({ "to": place }).to_string();
                client.send("POST", &format!("{}/seek", group(0)), JSON, body.as_bytes()).await;
            }
            _ => client.send("PUT", &group(number), JSON, json!({ "start": place }).to_string().as_bytes()).await,
        }
        waiting.push(client);
    }
    gate.until_reads_wait(GROUPS).await;
    assert_eq!(node.get("/v1/kv/default/small").await.is(200).body, b"v");
    gate.hold_reads(false);
    for (number, client) in waiting.iter_mut().enumerate() {
        client.reply(if number == 0 { "POST" } else { "PUT" }).await.is(if number == 0 { 200 } else { 201 });
        assert_eq!(node.get(&group(number)).await.is(200).json()["cursor"], start.0);
    }
    node.stop().await;
}

/// A group with order per key reads the records ahead before it proposes a fetch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_ahead_of_a_fetch_are_read_from_disk_before_it_is_proposed() {
    let (node, gate) = gated::node().await;
    node.db.keyspace("default").unwrap().put(b"small", b"v").unwrap();
    let (stream, mut batch) = (node.db.stream("jobs").unwrap(), RecordBatch::new());
    for key in [b"a", b"a", b"b"] {
        batch.push(&Record { key: Some(key), payload: b"job", ..Record::default() }).unwrap();
    }
    stream.append(&batch).unwrap();
    let group = "/v1/streams/jobs/groups/workers";
    node.put_json(group, &json!({ "order": "per_key" })).await.is(201);
    gate.hold_reads(true);
    let before = node.db.stats().commands;
    let mut waiting = node.connect().await;
    let fetch = json!({ "member": "m", "max_records": 3 }).to_string();
    waiting.send("POST", &format!("{group}/fetch"), JSON, fetch.as_bytes()).await;
    gate.until_reads_wait(1).await;
    assert_eq!(node.get("/v1/kv/default/small").await.is(200).body, b"v");
    assert_eq!(node.db.stats().commands, before, "nothing is delivered yet");
    gate.hold_reads(false);
    let delivered = waiting.reply("POST").await.is(200).json();
    let offsets: Vec<_> = delivered["messages"].as_array().unwrap().iter().map(|record| &record["offset"]).collect();
    assert_eq!(offsets, [0, 2], "the second record of a key waits for the first: {delivered}");
    node.stop().await;
}

/// A push delivers as a fetch does. Here its group has order per key, so it also reads the records ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_of_records_on_disk_hold_up_no_thread_of_the_server() {
    const GROUPS: usize = 6;
    let (node, gate) = gated::node().await;
    node.db.keyspace("default").unwrap().put(b"small", b"v").unwrap();
    let (stream, mut batch) = (node.db.stream("jobs").unwrap(), RecordBatch::new());
    batch.push(&Record { key: Some(b"a"), payload: b"job", ..Record::default() }).unwrap();
    stream.append(&batch).unwrap();
    let group = |number: usize| format!("/v1/streams/jobs/groups/g{number}");
    for number in 0..GROUPS {
        let order = if number % 2 == 0 { "per_key" } else { "competing" };
        node.put_json(&group(number), &json!({ "order": order })).await.is(201);
    }
    gate.hold_reads(true);
    let mut pushes = Vec::new();
    for number in 0..GROUPS {
        let mut client = node.connect().await;
        let target = format!("{}/push?limit=1", group(number));
        client.send("GET", &target, &[("accept", "application/x-ndjson")], b"").await;
        client.head().await.is(200);
        pushes.push(client);
    }
    gate.until_reads_wait(GROUPS).await;
    assert_eq!(node.get("/v1/kv/default/small").await.is(200).body, b"v");
    gate.hold_reads(false);
    for client in &mut pushes {
        let mut lines = Vec::new();
        while let Some(chunk) = client.chunk().await {
            lines.extend(chunk);
        }
        let lines = String::from_utf8(lines).unwrap();
        assert_eq!(lines.matches("\"offset\":0,").count(), 1, "{lines}");
        assert!(lines.contains("\"deliveries\":1,"), "{lines}");
    }
    node.stop().await;
}

/// The client of a fetch goes away while its record is read. The record is not delivered to anyone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_read_for_a_client_that_goes_away_return_to_their_group() {
    let (node, gate) = gated::node().await;
    let (stream, mut batch) = (node.db.stream("jobs").unwrap(), RecordBatch::new());
    batch.push_payload(b"job").unwrap();
    stream.append(&batch).unwrap();
    let group = "/v1/streams/jobs/groups/workers";
    node.put_json(group, &json!({ "ack_deadline_seconds": 3600 })).await.is(201);
    gate.hold_reads(true);
    let mut gone = node.connect().await;
    gone.send("POST", &format!("{group}/fetch"), JSON, b"{}").await;
    gate.until_reads_wait(1).await;
    drop(gone);
    node.until("http_in_use{bound=\"requests\"}", 0.0).await;
    gate.hold_reads(false);
    let fetch = json!({ "wait_seconds": 60 });
    let delivered = node.post_json(&format!("{group}/fetch"), &fetch).await.is(200).json();
    assert_eq!((&delivered["messages"][0]["offset"], &delivered["messages"][0]["deliveries"]), (&json!(0), &json!(1)));
    node.stop().await;
}
