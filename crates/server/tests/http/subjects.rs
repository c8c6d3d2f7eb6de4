//! Subjects over HTTP: publishing, subscribing, asking; subscribers that are slow, stuck or disconnected.

use std::time::Duration;

use serde_json::{Value, json};

use thalweg_server::config::{Setting, SubjectPatterns};

use crate::support::{Client, Node, gated, holds};

/// A subscriber over server-sent events, after its greeting.
struct Subscriber {
    client: Client,
    buffer: String,
}

impl Subscriber {
    async fn open(node: &Node, pattern: &str, query: &str) -> Self {
        let mut client = node.connect().await;
        client.send("GET", &format!("/v1/subjects/{pattern}{query}"), &[], b"").await;
        let head = client.head().await.is(200);
        assert_eq!(head.header("content-type"), "text/event-stream");
        let mut subscriber = Self { client, buffer: String::new() };
        assert_eq!(subscriber.block().await.as_deref(), Some(": subscribed"));
        subscriber
    }

    /// Returns the text before the next empty line, or `None` at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let mut block: String = self.buffer.drain(..end + 2).collect();
                block.truncate(end);
                return Some(block);
            }
            let chunk = self.client.chunk().await?;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Returns the next event's name and data.
    async fn event(&mut self) -> Option<(String, Value)> {
        loop {
            let block = self.block().await?;
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            let Some(data) = field("data: ") else { continue };
            assert!(field("id:").is_none(), "there is nothing to go on from: {block}");
            return Some((field("event: ").unwrap_or_default(), serde_json::from_str(&data).unwrap()));
        }
    }

    async fn message(&mut self) -> Value {
        let (name, data) = self.event().await.expect("a message");
        assert_eq!(name, "", "{data}");
        data
    }

    async fn payload(&mut self) -> String {
        self.message().await["payload"].as_str().unwrap().to_owned()
    }
}

async fn publish(node: &Node, subject: &str, payload: &str) -> Value {
    node.call("POST", &format!("/v1/subjects/{subject}"), &[], payload.as_bytes()).await.is(200).json()
}

/// Returns a large payload that begins with its number.
fn large(number: usize) -> String {
    format!("{number:08}{}", "x".repeat(60_000))
}

#[tokio::test]
async fn messages_go_to_whoever_matches_as_they_were_sent() {
    let node = Node::start().await;
    let mut one = Subscriber::open(&node, "orders.*", "").await;
    let mut all = Subscriber::open(&node, "%3E", "").await;
    let nobody = publish(&node, "orders", "1").await;
    assert_eq!(nobody, json!({"messages": 1, "delivered": 1, "missed": 0}), "only `>` takes a single token");
    assert_eq!(all.message().await, json!({"subject": "orders", "payload": "1"}));
    let body = json!({"messages": [
        {"key": "k", "headers": [{"name": "h", "value": "v"}], "payload": "a"},
        {"payload_base64": "/w=="},
    ]});
    let reply = node.post_json("/v1/subjects/orders.new?reply=answers.7", &body).await.is(200).json();
    assert_eq!(reply, json!({"messages": 2, "delivered": 2, "missed": 0}));
    for subscriber in [&mut one, &mut all] {
        let first = json!({"subject": "orders.new", "reply": "answers.7", "key": "k",
            "headers": [{"name": "h", "value": "v"}], "payload": "a"});
        assert_eq!(subscriber.message().await, first);
        let second = json!({"subject": "orders.new", "reply": "answers.7", "payload_base64": "/w=="});
        assert_eq!(subscriber.message().await, second);
    }
    let binary = node.call("POST", "/v1/subjects/%FF.x", &[], b"b").await.is(200).json();
    assert_eq!(binary["delivered"], 1);
    assert_eq!(all.message().await, json!({"subject_base64": "/y54", "payload": "b"}));
    node.stop().await;
}

#[tokio::test]
async fn lines_and_limits() {
    let node = Node::start().await;
    let mut client = node.open("/v1/subjects/a?limit=3", &[("accept", "application/x-ndjson")]).await;
    assert_eq!(client.chunk().await.as_deref(), Some(&b"{\"subscribed\":true}\n"[..]));
    let lines = b"1\n{\"b\":2}\n\n\"3\"\n4\n";
    let headers = [("content-type", "application/x-ndjson")];
    let sent = node.call("POST", "/v1/subjects/a", &headers, lines).await.is(200).json();
    assert_eq!(sent["messages"], 4);
    let mut text = Vec::new();
    while let Some(chunk) = client.chunk().await {
        text.extend(chunk);
    }
    let payloads: Vec<Value> = String::from_utf8(text)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["payload"].clone())
        .collect();
    assert_eq!(payloads, ["1", "{\"b\":2}", "\"3\""], "the connection ends after three");
    node.stop().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let node = Node::start().await;
    for (target, code) in [
        ("/v1/subjects/a.*", "subject_wildcard"),
        ("/v1/subjects/a..b", "subject_empty_token"),
        ("/v1/subjects/a?reply=*", "subject_wildcard"),
        ("/v1/subjects/a?timeout=-1", "bad_parameter"),
        ("/v1/ask/a?reply=b", "bad_parameter"),
    ] {
        node.call("POST", target, &[], b"x").await.refused(400, code, "fix");
    }
    for (target, code) in [
        ("/v1/subjects/%3E.a", "pattern_tail_not_last"),
        ("/v1/subjects/a?policy=drop", "bad_parameter"),
        ("/v1/subjects/a?from=1", "unknown_parameter"),
    ] {
        node.get(target).await.refused(400, code, "fix");
    }
    let long = "g".repeat(129);
    node.get(&format!("/v1/subjects/a?group={long}")).await.refused(400, "queue_group_name", "fix");
    let error = node.call("GET", "/v1/subjects/a", &[("last-event-id", "7")], b"").await;
    let error = error.refused(400, "bad_header", "fix");
    holds(error["message"].as_str().unwrap(), "stores nothing");
    let two = json!({"messages": [{"payload": "a"}, {"payload": "b"}]});
    node.post_json("/v1/ask/a", &two).await.refused(400, "too_many_messages", "fix");
    node.post_json("/v1/subjects/a", &json!([])).await.refused(400, "no_records", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_queue_group_shares() {
    let node = Node::start().await;
    let mut members = Vec::new();
    for _ in 0..3 {
        members.push(Subscriber::open(&node, "jobs.>".replace('>', "%3E").as_str(), "?group=w").await);
    }
    let mut alone = Subscriber::open(&node, "jobs.a", "").await;
    for number in 0..30 {
        let published = publish(&node, "jobs.a", &number.to_string()).await;
        assert_eq!(published["delivered"], 2, "a group counts as one");
    }
    for number in 0..30 {
        assert_eq!(alone.payload().await, number.to_string());
    }
    // Stop the node, which ends the subscriptions, so that the messages of each can be counted.
    let mut node = node;
    node.signal_stop();
    let mut got = Vec::new();
    for mut member in members {
        let mut last = None;
        while let Some((_, data)) = member.event().await {
            let number: u32 = data["payload"].as_str().unwrap().parse().unwrap();
            assert!(last < Some(number), "in order");
            last = Some(number);
            got.push(number);
        }
    }
    got.sort_unstable();
    // A stop ends subscriptions and discards their queued messages, because nothing is stored. No message arrives
    // twice.
    got.windows(2).for_each(|pair| assert!(pair[0] < pair[1], "{got:?}"));
    node.stopped().await.unwrap();
}

#[tokio::test]
async fn asking_is_answered_by_the_first() {
    let node = Node::start().await;
    node.call("POST", "/v1/ask/sums", &[], b"1").await.refused(503, "no_responders", "retry");
    let mut responder = Subscriber::open(&node, "sums", "").await;
    let mut asking = node.connect().await;
    asking.send("POST", "/v1/ask/sums", &[], b"1 + 1").await;
    let asked = responder.message().await;
    assert_eq!(asked["payload"], "1 + 1");
    let reply_to = asked["reply"].as_str().unwrap();
    assert_eq!(publish(&node, reply_to, "2").await["delivered"], 1);
    let answer = asking.reply("POST").await.is(200);
    assert_eq!((&*answer.body, answer.header("content-type")), (&b"2"[..], "application/octet-stream"));
    assert_eq!(publish(&node, reply_to, "3").await["delivered"], 0, "a later answer reaches nobody");

    asking.send("POST", "/v1/ask/sums?key=k", &[("accept", "application/json")], b"x").await;
    let asked = responder.message().await;
    assert_eq!(asked["key"], "k");
    let second = asked["reply"].as_str().unwrap().to_owned();
    assert_ne!(second, reply_to);
    let body = json!({"messages": [{"payload": "y", "headers": [{"name": "n", "value": "1"}]}]});
    node.post_json(&format!("/v1/subjects/{second}"), &body).await.is(200);
    let answer = asking.reply("POST").await.is(200).json();
    let wanted = json!({"subject": second, "payload": "y", "headers": [{"name": "n", "value": "1"}]});
    assert_eq!(answer, wanted);

    node.call("POST", "/v1/ask/sums?timeout=0.05", &[], b"?").await.refused(504, "request_timed_out", "retry");
    node.stop().await;
}

/// Opens a subscriber that does not read: its socket and then its queue fill up.
async fn stuck(node: &Node, subject: &str, policy: &str) -> Subscriber {
    Subscriber::open(node, subject, &format!("?policy={policy}&max_messages=4")).await
}

#[tokio::test]
async fn a_slow_subscriber_that_drops_is_told_where_and_holds_up_nobody() {
    for policy in ["drop_new", "drop_old"] {
        let node = Node::start().await;
        let mut slow = stuck(&node, "a", policy).await;
        let mut quick = Subscriber::open(&node, "a", "").await;
        let (mut missed, mut sent) = (0, 0);
        while missed < 10 {
            let published = publish(&node, "a", &large(sent)).await;
            assert!(quick.payload().await.starts_with(&format!("{sent:08}")));
            missed += if policy == "drop_new" { published["missed"].as_u64().unwrap() } else { 0 };
            if policy == "drop_old" && sent >= 200 {
                missed = node.metric("subject_dropped_messages_total{policy=\"drop_old\"}").await as u64;
            }
            sent += 1;
        }
        let dropped = node.metric(&format!("subject_dropped_messages_total{{policy=\"{policy}\"}}")).await;
        assert!(dropped >= 10.0);
        assert_eq!(node.metric("subject_slow_subscriptions_total").await, 1.0);
        // Now it reads. The number of missing messages is reported exactly, between the messages before and after the
        // gap.
        let (mut next, mut gaps) = (0, 0);
        publish(&node, "a", &large(sent)).await;
        while next <= sent {
            match slow.event().await.unwrap() {
                (name, data) if name == "gap" => {
                    let gap = data["gap"].as_u64().unwrap() as usize;
                    next += gap;
                    gaps += gap;
                }
                (_, data) => {
                    let number: usize = data["payload"].as_str().unwrap()[..8].parse().unwrap();
                    assert_eq!(number, next, "{policy}");
                    next += 1;
                }
            }
        }
        assert!(gaps >= 10, "{policy}: {gaps}");
        node.stop().await;
    }
}

#[tokio::test]
async fn a_subscriber_that_blocks_makes_publishers_wait_until_it_reads_or_goes() {
    let node = Node::with(|config| config.http_blocking_subjects = SubjectPatterns::parse("a").unwrap()).await;
    let mut slow = stuck(&node, "a", "block").await;
    let mut quick = Subscriber::open(&node, "a", "").await;
    let mut sent = 0;
    loop {
        let reply = node.call("POST", "/v1/subjects/a?timeout=0.2", &[], large(sent).as_bytes()).await;
        if reply.status == 503 {
            reply.refused(503, "would_block", "retry");
            break;
        }
        reply.is(200);
        assert!(quick.payload().await.starts_with(&format!("{sent:08}")));
        sent += 1;
    }
    // A waiting publish continues when the subscriber reads.
    let mut waiting = node.connect().await;
    waiting.send("POST", "/v1/subjects/a?timeout=20", &[], large(sent).as_bytes()).await;
    for number in 0..=sent {
        assert!(slow.payload().await.starts_with(&format!("{number:08}")), "nothing is missing");
    }
    waiting.reply("POST").await.is(200);
    assert!(quick.payload().await.starts_with(&format!("{sent:08}")), "the one refused came to nobody");
    // It also continues when the subscriber disconnects.
    let full = loop {
        let reply = node.call("POST", "/v1/subjects/a?timeout=0.2", &[], large(0).as_bytes()).await;
        if reply.status == 503 {
            break true;
        }
        quick.payload().await;
    };
    assert!(full);
    waiting.send("POST", "/v1/subjects/a?timeout=20", &[], b"last").await;
    drop(slow);
    waiting.reply("POST").await.is(200);
    assert_eq!(quick.payload().await, "last");
    assert!(node.metric("subject_blocked_total").await >= 2.0);
    node.stop().await;
}

#[tokio::test]
async fn a_subscriber_that_asked_for_it_is_disconnected() {
    let node = Node::start().await;
    let mut slow = stuck(&node, "a", "disconnect").await;
    let mut sent = 0;
    while publish(&node, "a", &large(sent)).await["missed"] == 0 {
        sent += 1;
    }
    assert_eq!(publish(&node, "a", "x").await["delivered"], 0, "it is gone for publishers");
    let mut last = None;
    while let Some((name, data)) = slow.event().await {
        if name == "error" {
            assert_eq!((data["code"].as_str(), data["retry"].as_str()), (Some("slow_consumer"), Some("retry")));
        }
        last = Some(name);
    }
    assert_eq!(last.as_deref(), Some("error"), "that is the last it is told");
    assert_eq!(node.metric("subject_disconnected_links_total").await, 1.0);
    node.until("subject_subscriptions", 0.0).await;
    node.stop().await;
}

#[tokio::test]
async fn subscribers_that_vanish_and_storms_of_them_leave_nothing() {
    let node = Node::start().await;
    let mut steady = Subscriber::open(&node, "a.%3E", "").await;
    for round in 0..5 {
        let mut some = Vec::new();
        for number in 0..40 {
            some.push(Subscriber::open(&node, &format!("a.{}", number % 7), "?group=g").await);
        }
        for number in 0..7 {
            publish(&node, &format!("a.{number}"), &round.to_string()).await;
            assert_eq!(steady.payload().await, round.to_string());
        }
        drop(some);
    }
    node.until("subject_subscriptions", 1.0).await;
    node.until("subject_links", 1.0).await;
    assert_eq!(node.metric("subject_queue_messages").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn racing_publishers_are_seen_in_one_order_by_all() {
    let node = Node::start().await;
    let mut subscribers = Vec::new();
    for pattern in ["r.a", "r.*", "%3E"] {
        subscribers.push(Subscriber::open(&node, pattern, "").await);
    }
    let publishers = (0..4).map(|who| async move { (who, 0..50) });
    let mut racing = Vec::new();
    for publisher in publishers {
        let (who, numbers) = publisher.await;
        let mut client = node.connect().await;
        racing.push(tokio::spawn(async move {
            for number in numbers {
                let payload = format!("{who}:{number}");
                client.call("POST", "/v1/subjects/r.a", &[], payload.as_bytes()).await.is(200);
            }
        }));
    }
    for task in racing {
        task.await.unwrap();
    }
    let mut orders = Vec::new();
    for subscriber in &mut subscribers {
        let mut order = Vec::new();
        for _ in 0..200 {
            order.push(subscriber.payload().await);
        }
        orders.push(order);
    }
    assert_eq!(orders[0], orders[1]);
    assert_eq!(orders[0], orders[2]);
    for who in 0..4 {
        let own: Vec<_> = orders[0].iter().filter(|seen| seen.starts_with(&format!("{who}:"))).collect();
        let wanted: Vec<_> = (0..50).map(|number| format!("{who}:{number}")).collect();
        assert!(own.into_iter().eq(&wanted), "each publisher's own order");
    }
    node.stop().await;
}

#[tokio::test]
async fn a_publish_rides_on_a_commit() {
    let node = Node::start().await;
    let mut subscriber = Subscriber::open(&node, "orders.new", "").await;
    let commit = |durability: &str| {
        json!({
            "writes": [{"op": "append", "stream": "s", "records": [{"payload": "1"}],
                "producer": {"id": "p", "sequence": 0}}],
            "publish": [{"subject": "orders.new", "messages": [{"payload": "a"}, {"payload": "b"}]},
                {"subject": "nobody", "messages": [{"payload": "c"}]}],
            "durability": durability,
        })
    };
    let done = node.post_json("/v1/commit", &commit("disk")).await.is(200).json();
    assert_eq!(done["published"], json!([{"delivered": 1, "missed": 0}, {"delivered": 0, "missed": 0}]));
    let again = node.post_json("/v1/commit", &commit("disk")).await.is(200).json();
    assert_eq!((&again["duplicate"], &again["published"]), (&json!(true), &Value::Null), "never by a repetition");
    node.post_json("/v1/commit", &commit("none")).await.refused(400, "level_too_low", "fix");
    let failing = json!({
        "conditions": [{"keyspace": "k", "key": "a", "expect": "present"}],
        "writes": [{"op": "put", "keyspace": "k", "key": "a", "value": "1"}],
        "publish": [{"subject": "orders.new", "messages": [{"payload": "no"}]}],
    });
    node.post_json("/v1/commit", &failing).await.refused(412, "condition_failed", "fix");
    publish(&node, "orders.new", "end").await;
    for wanted in ["a", "b", "end"] {
        assert_eq!(subscriber.payload().await, wanted);
    }
    node.stop().await;
}

#[tokio::test]
async fn what_rides_on_a_commit_goes_out_though_the_client_has_left() {
    let (node, gate) = gated::node().await;
    let mut subscriber = Subscriber::open(&node, "orders.new", "").await;
    node.put("/v1/kv/k/a", b"0").await.is(204);
    let commit = json!({
        "writes": [{"op": "put", "keyspace": "k", "key": "a", "value": "1"}],
        "publish": [{"subject": "orders.new", "messages": [{"payload": "a"}]}],
        "durability": "disk",
    });
    let mut client = node.connect().await;
    gate.set(true);
    client.send("POST", "/v1/commit", &[("content-type", "application/json")], commit.to_string().as_bytes()).await;
    node.until("http_in_use{bound=\"requests\"}", 1.0).await;
    drop(client);
    // The handler is gone, and with it all data that it had not handed over.
    node.until("http_in_use{bound=\"requests\"}", 0.0).await;
    gate.set(false);
    assert_eq!(subscriber.payload().await, "a");
    assert_eq!(node.get("/v1/kv/k/a").await.is(200).body, b"1");
    node.stop().await;
}

#[tokio::test]
async fn a_commit_publishes_to_others_although_one_subscriber_blocks() {
    let node = Node::with(|config| config.http_blocking_subjects = SubjectPatterns::parse(">").unwrap()).await;
    let _slow = stuck(&node, "a", "block").await;
    let mut other = Subscriber::open(&node, "a", "").await;
    while node.call("POST", "/v1/subjects/a?timeout=0.1", &[], large(0).as_bytes()).await.status == 200 {
        other.payload().await;
    }
    let commit = json!({
        "writes": [{"op": "put", "keyspace": "k", "key": "a", "value": "1"}],
        "publish": [{"subject": "a", "messages": [{"payload": "1"}]}],
    });
    let done = node.post_json("/v1/commit", &commit).await.is(200).json();
    assert_eq!(done["published"], json!([{"delivered": 1, "missed": 1}]));
    assert_eq!(other.payload().await, "1");
    assert_eq!(node.get("/v1/kv/k/a").await.is(200).body, b"1");
    node.stop().await;
}

#[tokio::test]
async fn bounds_shed_and_recover() {
    let node = Node::with(|config| {
        config.max_subscriptions = 2;
        config.max_tails = 3;
    })
    .await;
    let first = Subscriber::open(&node, "a", "").await;
    let _second = Subscriber::open(&node, "a", "").await;
    node.get("/v1/subjects/a").await.refused(503, "too_many_subscriptions", "retry");
    drop(first);
    node.until("subject_subscriptions", 1.0).await;
    let _third = Subscriber::open(&node, "a", "").await;
    node.stop().await;
}

#[tokio::test]
async fn a_flood_beyond_what_may_wait_is_shed_and_memory_comes_back() {
    const MIB: u64 = 1 << 20;
    let node = Node::with(|config| {
        config.subscription_bytes = thalweg_server::config::ByteSize(MIB);
        config.max_link_bytes = thalweg_server::config::ByteSize(MIB);
        config.max_queued_bytes = thalweg_server::config::ByteSize(2 * MIB);
    })
    .await;
    let mut subscribers = Vec::new();
    for _ in 0..6 {
        subscribers.push(Subscriber::open(&node, "a", "").await);
    }
    let mut missed = 0;
    let mut sent = 0;
    while missed < 60 {
        missed += publish(&node, "a", &large(sent)).await["missed"].as_u64().unwrap();
        sent += 1;
    }
    let held = node.metric("subject_queue_bytes").await as u64;
    assert!(held <= 2 * MIB + 6 * 128 * 1024, "{held}");
    for subscriber in &mut subscribers {
        let mut seen = 0;
        while seen < sent {
            match subscriber.event().await.unwrap() {
                (name, data) if name == "gap" => seen += data["gap"].as_u64().unwrap() as usize,
                _ => seen += 1,
            }
        }
    }
    assert_eq!(node.metric("subject_queue_messages").await, 0.0);
    assert_eq!(node.metric("subject_queue_bytes").await, 0.0);
    assert_eq!(publish(&node, "a", "again").await, json!({"messages": 1, "delivered": 6, "missed": 0}));
    node.stop().await;
}

#[tokio::test]
async fn silence_is_broken() {
    let node = Node::with(|config| {
        config.tail_keep_alive = thalweg_server::config::Span(Duration::from_millis(50));
    })
    .await;
    let mut quiet = Subscriber::open(&node, "a", "").await;
    for _ in 0..3 {
        assert_eq!(quiet.block().await.as_deref(), Some(": subscribed"));
    }
    node.stop().await;
}
