//! `/v1/streams` over real sockets: appending, reading in both formats, tails.

use serde_json::{Value, json};
use thalweg_types::{Offset, record::Records};

use crate::support::{Client, Node, Reply, holds};

const NDJSON: (&str, &str) = ("content-type", "application/x-ndjson");

async fn append_lines(node: &Node, stream: &str, lines: &str) -> Value {
    node.call("POST", &format!("/v1/streams/{stream}/records"), &[NDJSON], lines.as_bytes()).await.is(200).json()
}

#[tokio::test]
async fn three_content_types_append_and_answer_where() {
    let node = Node::start().await;
    let target = "/v1/streams/s/records";
    let raw = node.call("POST", &format!("{target}?key=k%00"), &[], b"\xff raw").await.is(200).json();
    assert_eq!((&raw["first"], &raw["last"], &raw["count"]), (&json!(0), &json!(0), &json!(1)));
    assert_eq!(raw["durability"], json!("disk"));
    let lines = append_lines(&node, "s", "{\"a\":1}\r\n\n  \n[2]\n\"three\"").await;
    assert_eq!((&lines["first"], &lines["last"]), (&json!(1), &json!(3)));
    let records = json!({ "records": [
        { "key": "k", "payload": "text", "headers": [{ "name": "h", "value": "1" }, { "name": "h", "value_base64": "/w==" }] },
        { "key_base64": "/w==", "payload_base64": "AAE=" },
    ] });
    let appended = node.post_json(target, &records).await.is(200).json();
    assert_eq!((&appended["first"], &appended["last"]), (&json!(4), &json!(5)));
    node.post_json(target, &json!([{ "payload": "array" }])).await.is(200);

    let reply = node.get(target).await.is(200);
    assert_eq!(reply.header("content-type"), "application/x-ndjson");
    assert_eq!(reply.header("thalweg-durability"), "disk");
    let mut lines = reply.lines();
    let end = lines.pop().unwrap();
    assert_eq!(end, json!({ "count": 7, "next": 7, "high_watermark": 7, "durability": "disk" }));
    assert_eq!(lines[0]["key"], json!("k\0"));
    assert_eq!(lines[0]["payload_base64"], json!("/yByYXc="));
    assert_eq!(lines[1]["payload"], json!("{\"a\":1}"));
    assert_eq!(lines[4]["headers"], json!([{ "name": "h", "value": "1" }, { "name": "h", "value_base64": "/w==" }]));
    assert_eq!((&lines[5]["key_base64"], &lines[5]["payload"]), (&json!("/w=="), &json!("\0\u{1}")));
    assert!(lines.iter().enumerate().all(|(at, line)| line["offset"] == json!(at)));
    node.stop().await;
}

#[tokio::test]
async fn bad_bodies_are_refused_and_append_nothing() {
    let node = Node::start().await;
    let target = "/v1/streams/s/records";
    let call = |content: &'static str, body: &'static str| node_call(&node, target, content, body);
    call("application/x-ndjson", "{}\n{oops}\n").await.refused(400, "bad_json", "fix");
    call("application/x-ndjson", "\n\n").await.refused(400, "no_records", "fix");
    call("application/json", "{\"records\":[]}").await.refused(400, "no_records", "fix");
    call("application/json", "{\"records\":[{\"payload\":\"x\",\"kee\":\"y\"}]}").await.refused(400, "bad_json", "fix");
    call("application/json", "[{\"key\":\"no payload\"}]").await.refused(400, "bad_json", "fix");
    call("application/json", "[{\"payload_base64\":\"*\"}]").await.refused(400, "bad_base64", "fix");
    call("application/x-www-form-urlencoded", "x").await.refused(415, "unsupported_media_type", "fix");
    node.call("POST", "/v1/streams/s/records?key=k", &[NDJSON], b"1").await.refused(400, "bad_parameter", "fix");
    node.get(target).await.refused(404, "no_such_stream", "fix");
    node.stop().await;
}

async fn node_call(node: &Node, target: &str, content: &str, body: &str) -> Reply {
    node.call("POST", target, &[("content-type", content)], body.as_bytes()).await
}

#[tokio::test]
async fn an_expected_offset_fences_appends() {
    let node = Node::start().await;
    let at = |offset: u64| format!("/v1/streams/s/records?expected={offset}");
    node.call("POST", &at(0), &[], b"a").await.is(200);
    let error = node.call("POST", &at(0), &[], b"b").await.refused(409, "offset_conflict", "fix");
    assert_eq!(error["next"], json!(1));
    node.call("POST", &at(1), &[], b"c").await.is(200);
    let none = [("thalweg-durability", "none")];
    node.call("POST", &at(2), &none, b"d").await.refused(400, "level_too_low", "fix");
    let accepted = node.call("POST", "/v1/streams/s/records", &none, b"d").await.is(202).json();
    assert_eq!((&accepted["count"], &accepted["durability"]), (&json!(1), &json!("none")));
    assert!(accepted.get("first").is_none());
    node.stop().await;
}

#[tokio::test]
async fn reads_begin_and_end_where_asked() {
    let node = Node::start().await;
    let lines: String = (0..500).map(|at| format!("{{\"n\":{at}}}\n")).collect();
    append_lines(&node, "s", &lines).await;
    let middle = node.get("/v1/streams/s/records?limit=1&from=250").await.is(200).lines();
    let time = middle[0]["time_micros"].as_u64().unwrap();
    append_lines(&node, "s", &lines).await;
    let get = |query: &str| {
        let target = format!("/v1/streams/s/records?{query}");
        let node = &node;
        async move {
            let mut lines = node.get(&target).await.is(200).lines();
            let end = lines.pop().unwrap();
            assert_eq!(end["count"], json!(lines.len()), "{target}");
            (lines.first().map(|line| line["offset"].as_u64().unwrap()), lines.len(), end["next"].as_u64().unwrap())
        }
    };
    assert_eq!(get("from=10&limit=5").await, (Some(10), 5, 15));
    assert_eq!(get("from=990").await, (Some(990), 10, 1000));
    assert_eq!(get("from=start&limit=1000").await, (Some(0), 1000, 1000));
    assert_eq!(get("from=end").await, (None, 0, 1000));
    assert_eq!(get("from=1000").await, (None, 0, 1000));
    assert_eq!(get(&format!("since={}&limit=1", time + 1)).await, (Some(500), 1, 501));
    assert_eq!(get("since=2030-01-01T00:00:00Z").await, (None, 0, 1000));
    let (first, count, next) = get("from=0&max_bytes=1000").await;
    assert!(first == Some(0) && (1..100).contains(&count) && next == count as u64, "{count}");
    assert_eq!(get("from=0&max_bytes=0").await.1, 0);
    let error = node.get("/v1/streams/s/records?from=1001").await.refused(416, "beyond_end", "fix");
    assert_eq!(error["next"], json!(1000));
    node.get("/v1/streams/s/records?from=1&since=2").await.refused(400, "bad_parameter", "fix");
    let images = [("accept", "image/png")];
    node.call("GET", "/v1/streams/s/records", &images, b"").await.refused(406, "not_acceptable", "fix");
    node.stop().await;
}

#[tokio::test]
async fn the_binary_format_is_as_documented() {
    let node = Node::start().await;
    append_lines(&node, "s", "1\n22\n333\n").await;
    let accept = [("accept", "application/octet-stream")];
    let reply = node.call("GET", "/v1/streams/s/records?from=1", &accept, b"").await.is(200);
    let mut rest = reply.body.as_slice();
    let mut payloads = Vec::new();
    loop {
        let (len, after) = rest.split_at(4);
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        if len == 0 {
            let figure = |at: usize| u64::from_le_bytes(after[at..at + 8].try_into().unwrap());
            assert_eq!((figure(0), figure(8), after.len()), (3, 3, 16));
            break;
        }
        let (frame, after) = after.split_at(len);
        let offset = u64::from_le_bytes(frame[..8].try_into().unwrap());
        // The frame's length replaces the record's own. With its own length restored, the record is a batch of one.
        let mut batch = ((len - 16) as u32).to_le_bytes().to_vec();
        batch.extend_from_slice(&frame[16..]);
        let record = Records::new(&batch).next().unwrap().unwrap();
        payloads.push((offset, record.payload.to_vec()));
        rest = after;
    }
    assert_eq!(payloads, [(1, b"22".to_vec()), (2, b"333".to_vec())]);
    node.stop().await;
}

#[tokio::test]
async fn a_large_read_comes_in_pages_of_bounded_size() {
    let node = Node::start().await;
    let stream = node.db.with_durability(thalweg_types::Durability::Os).stream("big").unwrap();
    for _ in 0..50 {
        let mut batch = thalweg_types::record::RecordBatch::new();
        (0..100).for_each(|_| batch.push_payload(&[b'x'; 1000]).unwrap());
        stream.append(&batch).unwrap();
    }
    let reply = node.get("/v1/streams/big/records?limit=5000&max_bytes=100000000").await.is(200);
    assert_eq!(reply.lines().len(), 5001);
    assert!(reply.chunks.len() > 5 && reply.chunks.iter().all(|chunk| chunk.len() < 1 << 20));
    node.stop().await;
}

#[tokio::test]
async fn a_stream_is_created_changed_trimmed_and_deleted() {
    let node = Node::start().await;
    let limits = json!({ "max_records": 10, "max_age_seconds": 3600.5 });
    let put = |body: Value| {
        let node = &node;
        async move { node.put_json("/v1/streams/s", &body).await }
    };
    let made = put(limits).await.is(201).json();
    let config = |max_bytes: Value, max_records: Value| {
        json!({
            "max_age_seconds": 3600.5, "max_bytes": max_bytes, "max_records": max_records,
            "max_record_bytes": null, "max_batch_bytes": null, "compaction": null,
        })
    };
    assert_eq!(made["config"], config(Value::Null, json!(10)));
    put(json!({})).await.is(200);
    let patch = |body: Value| {
        let node = &node;
        let json = [("content-type", "application/json")];
        async move { node.call("PATCH", "/v1/streams/s", &json, body.to_string().as_bytes()).await }
    };
    let changed = patch(json!({ "max_records": null, "max_bytes": 1000 })).await.is(200).json();
    assert_eq!(changed["config"], config(json!(1000), Value::Null));
    patch(json!({ "max_age_seconds": -1.0 })).await.refused(400, "bad_json", "fix");
    patch(json!({ "max_recs": 1 })).await.refused(400, "bad_json", "fix");

    append_lines(&node, "s", "1\n2\n3\n4\n").await;
    let trim = json!({ "before": 2 });
    assert_eq!(node.post_json("/v1/streams/s/trim", &trim).await.is(200).json()["start"], json!(2));
    let error = node.get("/v1/streams/s/records?from=1").await.refused(410, "trimmed", "fix");
    assert_eq!(error["start"], json!(2));
    let info = node.get("/v1/streams/s").await.is(200).json();
    assert_eq!((&info["start"], &info["next"]), (&json!(2), &json!(4)));
    assert!(thalweg_server::parse::parse_time(info["last_time"].as_str().unwrap()).is_some());
    let listed = node.get("/v1/streams").await.is(200).json();
    assert_eq!(listed["streams"][0]["name"], json!("s"));

    node.delete("/v1/streams/s").await.is(204);
    node.get("/v1/streams/s").await.refused(404, "no_such_stream", "fix");
    node.delete("/v1/streams/s").await.refused(404, "no_such_stream", "fix");
    node.stop().await;
}

/// Returns the fields of the next event that is not a comment.
async fn event(client: &mut Client, buffer: &mut String) -> Option<Vec<(String, String)>> {
    loop {
        if let Some(end) = buffer.find("\n\n") {
            let event: String = buffer.drain(..end + 2).collect();
            if event.starts_with(':') {
                continue;
            }
            let field = |line: &str| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()));
            return Some(event.lines().filter_map(field).collect());
        }
        buffer.push_str(&String::from_utf8(client.chunk().await?).unwrap());
    }
}

async fn tail(node: &Node, query: &str, headers: &[(&str, &str)]) -> (Client, String) {
    let mut client = node.connect().await;
    let mut all = vec![("accept", "text/event-stream")];
    all.extend_from_slice(headers);
    client.send("GET", &format!("/v1/streams/s/records{query}"), &all, b"").await;
    let head = client.head().await.is(200);
    assert_eq!(head.header("content-type"), "text/event-stream");
    let first = client.chunk().await.unwrap();
    (client, String::from_utf8(first).unwrap())
}

#[tokio::test]
async fn a_tail_follows_from_where_asked_and_resumes() {
    let node = Node::start().await;
    append_lines(&node, "s", "1\n2\n").await;
    let (mut from_start, mut buffer) = tail(&node, "?from=start", &[]).await;
    let (mut from_end, mut end_buffer) = tail(&node, "", &[]).await;
    for expected in 0..2_u64 {
        let fields = event(&mut from_start, &mut buffer).await.unwrap();
        assert_eq!(fields[0], ("id".to_owned(), expected.to_string()));
    }
    append_lines(&node, "s", "{\"a\":\"x\\ny\"}\n").await;
    for (client, buffer) in [(&mut from_start, &mut buffer), (&mut from_end, &mut end_buffer)] {
        let fields = event(client, buffer).await.unwrap();
        assert_eq!(fields[0].1, "2");
        let record: Value = serde_json::from_str(&fields[1].1).unwrap();
        assert_eq!((&record["offset"], &record["payload"]), (&json!(2), &json!("{\"a\":\"x\\ny\"}")));
        assert_eq!(record["durability"], json!("disk"));
    }
    let (mut resumed, mut buffer) = tail(&node, "?from=start&limit=1", &[("last-event-id", "1")]).await;
    assert_eq!(event(&mut resumed, &mut buffer).await.unwrap()[0].1, "2");
    assert_eq!(event(&mut resumed, &mut buffer).await, None, "the limit ends a tail");
    node.post_json("/v1/streams/s/trim", &json!({ "before": 3 })).await.is(200);
    let late = [("accept", "text/event-stream"), ("last-event-id", "0")];
    node.call("GET", "/v1/streams/s/records", &late, b"").await.refused(410, "trimmed", "fix");
    let bad = [("accept", "text/event-stream"), ("last-event-id", "x")];
    node.call("GET", "/v1/streams/s/records", &bad, b"").await.refused(400, "bad_header", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_silent_tail_sends_comments_and_ends_with_its_stream() {
    let node = Node::with(|config| {
        config.tail_keep_alive = thalweg_server::config::Span(std::time::Duration::from_millis(50));
    })
    .await;
    append_lines(&node, "s", "1\n").await;
    let (mut client, greeting) = tail(&node, "", &[]).await;
    assert!(greeting.starts_with(':'));
    let comment = String::from_utf8(client.chunk().await.unwrap()).unwrap();
    assert_eq!(comment, ": still here\n\n");
    node.delete("/v1/streams/s").await.is(204);
    let mut rest = String::new();
    while let Some(chunk) = client.chunk().await {
        rest.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(rest.lines().all(|line| line.is_empty() || line.starts_with(':')), "{rest}");
    node.stop().await;
}

#[tokio::test]
async fn a_tail_that_retention_overtakes_says_so() {
    let node = Node::start().await;
    append_lines(&node, "s", "1\n").await;
    let stream = node.db.find_stream("s").unwrap();
    let (mut client, mut buffer) = tail(&node, "", &[]).await;
    // The append and the trim happen almost at the same time, so the tail wakes to find its position trimmed.
    let mut batch = thalweg_types::record::RecordBatch::new();
    (0..5).for_each(|_| batch.push_payload(b"x").unwrap());
    stream.append(&batch).unwrap();
    stream.trim(Offset(6)).unwrap();
    let mut last = Vec::new();
    for _ in 0..6 {
        last = event(&mut client, &mut buffer).await.unwrap();
        if last[0].0 == "event" || last[0].1 == "5" {
            break;
        }
    }
    // The tail was either fast enough to see all five records, or gets an error about the trimmed ones.
    if last[0].0 == "event" {
        assert_eq!(last[0].1, "error");
        holds(&last[1].1, "\"trimmed\"");
        assert_eq!(event(&mut client, &mut buffer).await, None);
    }
    node.stop().await;
}

#[tokio::test]
async fn expectations_by_word_and_reads_of_the_last() {
    let node = Node::start().await;
    let target = "/v1/streams/s/records";
    node.call("POST", &format!("{target}?expected=none"), &[], b"a").await.is(200);
    let conflict = node.call("POST", &format!("{target}?expected=none"), &[], b"x").await;
    assert_eq!(conflict.refused(409, "offset_conflict", "fix")["next"], json!(1));
    node.call("POST", &format!("{target}?expected=any"), &[], b"b").await.is(200);
    node.call("POST", &format!("{target}?expected=some"), &[], b"b").await.refused(400, "bad_parameter", "fix");
    for (last, offsets) in [(0, vec![]), (1, vec![1]), (9, vec![0, 1])] {
        let mut lines = node.get(&format!("{target}?last={last}")).await.is(200).lines();
        lines.pop();
        let found: Vec<_> = lines.iter().map(|line| line["offset"].as_u64().unwrap()).collect();
        assert_eq!(found, offsets);
    }
    node.get(&format!("{target}?last=1&from=0")).await.refused(400, "bad_parameter", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_producers_append_is_safe_to_send_again() {
    let node = Node::start().await;
    let target = "/v1/streams/s/records";
    let send =
        |query: &'static str| node.call("POST", Box::leak(format!("{target}?{query}").into_boxed_str()), &[], b"p");
    let first = send("producer=p&sequence=0").await.is(200).json();
    assert_eq!((&first["first"], &first["duplicate"]), (&json!(0), &Value::Null));
    let again = send("producer=p&sequence=0&epoch=0").await.is(200).json();
    assert_eq!(
        (&again["first"], &again["revision"], &again["duplicate"]),
        (&json!(0), &first["revision"], &json!(true))
    );
    assert_eq!(send("producer=p&sequence=2").await.refused(409, "sequence_gap", "fix")["next_sequence"], json!(1));
    send("producer=q&sequence=2").await.refused(409, "unknown_producer", "fix");
    let opened = node.call("POST", "/v1/streams/s/producers/p", &[], b"").await.is(200).json();
    assert_eq!((&opened["epoch"], &opened["next_sequence"]), (&json!(1), &json!(0)));
    assert_eq!(send("producer=p&sequence=1").await.refused(409, "producer_fenced", "fix")["epoch"], json!(1));
    send("producer=p&sequence=0&epoch=1").await.is(200);
    for bad in ["producer=p", "sequence=1", "producer=p&sequence=0&epoch=4294967296"] {
        assert_eq!(send(bad).await.status, 400, "{bad}");
    }
    send("producer=a%20b&sequence=0").await.refused(400, "bad_producer_id", "fix");
    let list = node.get("/v1/streams/s/producers").await.is(200).json();
    assert_eq!(list["producers"].as_array().unwrap().len(), 1);
    let one = node.get("/v1/streams/s/producers/p").await.is(200).json();
    assert_eq!((&one, &one["next_sequence"]), (&list["producers"][0], &json!(1)));
    node.get("/v1/streams/s/producers/q").await.refused(404, "not_found", "fix");
    node.get("/v1/streams/t/producers").await.refused(404, "no_such_stream", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_commit_of_a_producer_is_one_however_often_it_is_sent() {
    let node = Node::start().await;
    let commit = |sequence: u64, expected: Value| {
        json!({
            "conditions": [{ "keyspace": "k", "key": "done", "expect": "absent" }],
            "writes": [
                { "op": "put", "keyspace": "k", "key": "done", "value": "1" },
                { "op": "append", "stream": "plain", "expected": expected, "records": [{ "payload": "x" }] },
                { "op": "append", "stream": "s", "producer": { "id": "p", "sequence": sequence },
                  "records": [{ "payload": "y" }, { "payload": "z" }] },
            ],
        })
    };
    let first = node.post_json("/v1/commit", &commit(0, json!("none"))).await.is(200).json();
    assert_eq!(first["appends"].as_array().unwrap().len(), 2);
    let again = node.post_json("/v1/commit", &commit(0, json!("none"))).await.is(200).json();
    assert_eq!((&again["duplicate"], &again["revision"]), (&json!(true), &first["revision"]));
    assert_eq!(again["appends"], json!([{ "stream": "s", "first": 0, "last": 1, "count": 2 }]));
    node.post_json("/v1/commit", &commit(1, json!("any"))).await.refused(412, "condition_failed", "fix");
    node.post_json("/v1/commit", &commit(1, json!("some"))).await.refused(400, "bad_json", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_stream_is_configured_whole_or_in_parts() {
    let node = Node::start().await;
    let target = "/v1/streams/s";
    let sent = json!({ "max_record_bytes": 20, "compaction": {} });
    let created = node.put_json(target, &sent).await.is(201).json();
    assert_eq!(created["config"]["compaction"], json!({ "tombstone_grace_seconds": 86_400.0 }));
    let patch = json!({ "max_batch_bytes": 60, "compaction": { "tombstone_grace_seconds": 1.5 } });
    let json = [("content-type", "application/json")];
    node.call("PATCH", target, &json, patch.to_string().as_bytes()).await.is(200);
    let config = node.get(target).await.is(200).json()["config"].clone();
    let expected = json!({
        "max_age_seconds": null, "max_bytes": null, "max_records": null, "max_record_bytes": 20, "max_batch_bytes": 60,
        "compaction": { "tombstone_grace_seconds": 1.5 },
    });
    assert_eq!(config, expected);
    let records = "/v1/streams/s/records";
    let error = node.call("POST", records, &[], &[7; 20]).await.refused(413, "over_stream_limit", "fix");
    assert_eq!(error["limit"], json!(20));
    node.post_json(records, &json!([{ "key": "k", "payload": "v" }, { "key": "k", "tombstone": true }])).await.is(200);
    node.post_json(records, &json!([{ "payload": "v", "tombstone": true }])).await.refused(400, "bad_tombstone", "fix");
    let lines = node.get(records).await.is(200).lines();
    assert_eq!((&lines[0]["tombstone"], &lines[1]["tombstone"]), (&Value::Null, &json!(true)));
    node.call("PATCH", target, &json, b"{\"compaction\": null}").await.is(200);
    assert_eq!(node.get(target).await.json()["config"]["compaction"], Value::Null);
    let bad = json!({ "compaction": { "tombstone_grace_seconds": -1 } }).to_string();
    node.call("PATCH", target, &json, bad.as_bytes()).await.refused(400, "bad_json", "fix");
    node.stop().await;
}

#[tokio::test]
async fn streams_are_listed_in_pages() {
    let node = Node::start().await;
    for name in ["c", "a", "b"] {
        node.call("PUT", &format!("/v1/streams/{name}"), &[], b"").await.is(201);
    }
    let names = |page: &Value| -> Vec<String> {
        page["streams"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = node.get("/v1/streams").await.is(200).json();
    assert_eq!((names(&all), &all["cursor"]), (vec!["c".into(), "a".into(), "b".into()], &Value::Null));
    let first = node.get("/v1/streams?limit=2").await.is(200).json();
    assert_eq!(names(&first), ["c", "a"]);
    let cursor = first["cursor"].as_str().unwrap();
    let second = node.get(&format!("/v1/streams?limit=2&cursor={cursor}")).await.is(200).json();
    assert_eq!((names(&second), &second["cursor"]), (vec!["b".into()], &Value::Null));
    node.get("/v1/streams?cursor=x").await.refused(400, "bad_parameter", "fix");
    node.stop().await;
}
