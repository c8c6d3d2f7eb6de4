//! `/v1/streams/{stream}/groups/{group}/push` over real sockets.

use std::time::Duration;

use serde_json::{Value, json};
use thalweg_server::{Config, cluster::Event, config::Span};
use thalweg_types::{NodeId, Term};

use crate::support::{
    Client, Node,
    cluster::FakeCluster,
    jobs::{GROUP, append, fetch, offsets},
};

/// Reads a push line by line, as NDJSON, including lines that state what the push waits for.
struct Lines {
    client: Client,
    buffer: Vec<u8>,
}

impl Lines {
    async fn open(node: &Node, query: &str) -> Self {
        let client = node.open(&format!("{GROUP}/push?{query}"), &[("accept", "application/x-ndjson")]).await;
        Self { client, buffer: Vec::new() }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.buffer.extend(self.client.chunk().await?);
        }
    }

    /// Returns the next record's offset and attempt.
    async fn record(&mut self) -> (u64, u64) {
        loop {
            let line = self.next().await.expect("goes on");
            if let Some(offset) = line["offset"].as_u64() {
                return (offset, line["attempt"].as_u64().unwrap());
            }
        }
    }

    async fn waits_for(&mut self, what: &str) {
        while self.next().await.expect("goes on")["waits_for"] != json!(what) {}
    }
}

async fn ack(node: &Node, attempt: u64, offsets: Value) -> Value {
    let body = json!({ "attempts": [{ "attempt": attempt, "ranges": offsets }] });
    node.post_json(&format!("{GROUP}/ack"), &body).await.is(200).json()
}

/// Makes pushes report every few milliseconds why they wait.
fn quick(config: &mut Config) {
    config.tail_keep_alive = Span(Duration::from_millis(10));
}

#[tokio::test]
async fn a_push_delivers_as_far_as_credit_goes_and_acks_bring_it_back() {
    let node = Node::with(quick).await;
    node.put_json(GROUP, &json!({})).await.is(201);
    append(&node, 5).await;
    let mut push = Lines::open(&node, "member=p&credit_records=3").await;
    let first = [push.record().await, push.record().await, push.record().await];
    assert_eq!(first.map(|(offset, _)| offset), [0, 1, 2]);
    push.waits_for("credit").await;
    assert_eq!(node.get(GROUP).await.is(200).json()["lag"], json!(2), "no more than it may hold");
    assert_eq!(ack(&node, first[0].1, json!([[0, 0]])).await["settled"], json!(1));
    assert_eq!(push.record().await.0, 3);
    push.waits_for("credit").await;
    let nack = json!({ "attempts": [{ "attempt": first[0].1, "ranges": [[1, 1]] }] });
    node.post_json(&format!("{GROUP}/nack"), &nack).await.is(200);
    assert_eq!(push.record().await.0, 1, "what was given back comes before what is new");
    node.delete(GROUP).await.is(204);
    let mut last = Value::Null;
    while let Some(line) = push.next().await {
        last = line;
    }
    assert_eq!(last["error"]["code"], json!("no_such_group"));
    node.stop().await;
}

#[tokio::test]
async fn a_push_counts_bytes_and_exceeds_them_by_one_record_at_most() {
    let node = Node::with(quick).await;
    node.put_json(GROUP, &json!({})).await.is(201);
    let records: Vec<_> = (0..6).map(|_| json!({ "payload": "x".repeat(1000) })).collect();
    node.post_json("/v1/streams/jobs/records", &json!(records)).await.is(200);
    let mut push = Lines::open(&node, "credit_bytes=2500").await;
    let mut seen = 0;
    loop {
        let line = push.next().await.unwrap();
        match line.get("offset") {
            Some(_) => seen += 1,
            None if line["waits_for"] == json!("credit") => break,
            None => {}
        }
    }
    assert_eq!(seen, 3);
    let info = node.get(GROUP).await.is(200).json();
    assert_eq!((&info["in_flight"], &info["redelivered"]), (&json!(3), &json!(0)));
    node.stop().await;
}

#[tokio::test]
async fn a_push_ends_at_its_limit_and_gives_back_if_asked_to() {
    let node = Node::with(quick).await;
    node.put_json(GROUP, &json!({ "max_deliveries": 5 })).await.is(201);
    append(&node, 4).await;
    let mut push = Lines::open(&node, "limit=2&release=true").await;
    assert_eq!([push.record().await.0, push.record().await.0], [0, 1]);
    while push.next().await.is_some() {}
    let again = fetch(&node, &json!({ "wait_seconds": 20 })).await;
    assert_eq!(offsets(&again), [0, 1, 2, 3]);
    assert_eq!((&again["messages"][0]["deliveries"], &again["messages"][2]["deliveries"]), (&json!(2), &json!(1)));
    // Without `release`, records stay with their receiver until the deadline.
    node.post_json(&format!("{GROUP}/seek"), &json!({ "to": "start" })).await.is(200);
    let mut push = Lines::open(&node, "limit=2").await;
    push.record().await;
    while push.next().await.is_some() {}
    assert_eq!(offsets(&fetch(&node, &json!({})).await), [2, 3]);
    node.stop().await;
}

#[tokio::test]
async fn what_lapses_is_pushed_again() {
    let node = Node::with(quick).await;
    node.put_json(GROUP, &json!({ "ack_deadline_seconds": 0.05 })).await.is(201);
    let mut push = Lines::open(&node, "credit_records=1").await;
    append(&node, 1).await;
    let first = push.record().await;
    let second = push.record().await;
    assert_eq!((first.0, second.0), (0, 0));
    assert!(second.1 > first.1);
    assert_eq!(ack(&node, first.1, json!([])).await["settled"], json!(0));
    node.stop().await;
}

#[tokio::test]
async fn a_push_that_makes_no_sense_is_refused_and_pushes_are_bounded() {
    let node = Node::with(|config| {
        quick(config);
        config.max_tails = 1;
    })
    .await;
    node.put_json(GROUP, &json!({})).await.is(201);
    let target = format!("{GROUP}/push");
    node.get(&format!("{target}?credit_records=0")).await.refused(400, "bad_parameter", "fix");
    node.get(&format!("{target}?member={}", "m".repeat(256))).await.refused(400, "bad_group", "fix");
    node.call("GET", &target, &[("accept", "text/html")], b"").await.refused(406, "not_acceptable", "fix");
    let none = [("thalweg-durability", "none")];
    node.call("GET", &target, &none, b"").await.refused(400, "level_too_low", "fix");
    let mut open = Lines::open(&node, "").await;
    open.waits_for("records").await;
    node.get(&target).await.refused(503, "overloaded", "retry");
    node.stop().await;
}

#[tokio::test]
async fn events_carry_what_settles_them() {
    let node = Node::start().await;
    node.put_json(GROUP, &json!({})).await.is(201);
    append(&node, 1).await;
    let events = [("accept", "text/event-stream")];
    let reply = node.call("GET", &format!("{GROUP}/push?limit=1&member=sse"), &events, b"").await.is(200);
    assert_eq!(reply.header("content-type"), "text/event-stream");
    let text = String::from_utf8(reply.body).unwrap();
    let event = text.split("\n\n").find(|event| event.starts_with("id: 0\n")).expect("an event");
    let data: Value = serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap();
    assert_eq!((&data["payload"], &data["deliveries"], &data["durability"]), (&json!("0"), &json!(1), &json!("disk")));
    assert!(data["deadline_micros"].as_u64().unwrap() > data["time_micros"].as_u64().unwrap());
    assert_eq!(ack(&node, data["attempt"].as_u64().unwrap(), json!([])).await["settled"], json!(1));
    assert_eq!(node.get(GROUP).await.is(200).json()["members"][0]["name"], json!("sse"));
    node.stop().await;
}

#[tokio::test]
async fn a_push_ends_with_moved_when_another_node_leads_and_its_records_stay() {
    let (cluster, handle, _) = FakeCluster::new();
    let node = Node::in_cluster(handle, quick).await;
    node.put_json(GROUP, &json!({})).await.is(201);
    append(&node, 2).await;
    let query = "member=m&credit_records=1&release=true";
    let mut push = Lines::open(&node, query).await;
    let first = push.record().await;
    // The same leader in a later term, and a time without a leader, end nothing.
    let leads = |leader: Option<u64>| Event::Leader { leader: leader.map(NodeId), term: Term(6) };
    cluster.push(1, leads(None));
    cluster.push(1, leads(Some(1)));
    push.waits_for("credit").await;
    cluster.change(|report| (report.leader, report.term) = (Some(NodeId(2)), Term(6)));
    cluster.push(1, leads(Some(2)));
    let mut last = Value::Null;
    while let Some(line) = push.next().await {
        last = line;
    }
    assert_eq!((&last["error"]["code"], &last["error"]["retry"]), (&json!("moved"), &json!("retry")), "{last}");
    // The member pushes again under the new leader. Its record is not delivered again, and its ack counts.
    let mut push = Lines::open(&node, query).await;
    let second = push.record().await;
    assert_eq!((first.0, second.0), (0, 1));
    for (offset, attempt) in [first, second] {
        assert_eq!(ack(&node, attempt, json!([[offset, offset]])).await["settled"], json!(1));
    }
    let info = node.get(GROUP).await.is(200).json();
    assert_eq!((&info["redelivered"], &info["acked"]), (&json!(0), &json!(2)), "{info}");
    drop(push);
    node.stop().await;
}
