//! Subjects over the native protocol: the deliveries of subscribers, their frames and order; bounds, credit, policies,
//! ends.

use std::collections::BTreeMap;

use thalweg_types::{
    Durability,
    command::{CommitBuilder, Expect, ProducerStamp},
    limits::MAX_DELIVER_SUBSCRIPTIONS,
};
use thalweg_wire::{
    Ask, Batch, BatchWriter, Cancel, CancelMode, Checksum, Credit, Fields, Kind, Level, List, Permit, Policy, Publish,
    Reason, RemainingBytes, ServerFrame, ShortBytes, Subscribe, WriteAndPublish,
};

use crate::{
    expect,
    support::{
        Node, PATIENCE,
        native::{Raw, UNLIMITED},
        pause,
    },
};

fn batch_to(subject: &str, reply: &str, payloads: &[&[u8]], checksum: Checksum) -> Vec<u8> {
    let mut writer = BatchWriter::new(subject.as_bytes(), reply.as_bytes()).unwrap();
    payloads.iter().for_each(|payload| writer.push_payload(payload).unwrap());
    writer.into_shared(checksum).unwrap().bytes.to_vec()
}

fn batch(subject: &str, payloads: &[&str]) -> Vec<u8> {
    let payloads: Vec<_> = payloads.iter().map(|payload| payload.as_bytes()).collect();
    batch_to(subject, "", &payloads, Checksum::Without)
}

fn subscribe<'a>(pattern: &'a str, policy: Policy, permit: Permit) -> Subscribe<'a> {
    let (pattern, queue) = (ShortBytes(pattern.as_bytes()), ShortBytes(b""));
    Subscribe { policy, queue_messages: 0, queue_bytes: 0, permit, pattern, queue }
}

fn plain(pattern: &str) -> Subscribe<'_> {
    subscribe(pattern, Policy::DropNew, UNLIMITED)
}

/// Content of a delivery.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    ids: Vec<u32>,
    bytes: Vec<u8>,
    payloads: Vec<String>,
}

impl Raw {
    async fn begin(&mut self, id: u32, subscribe: &Subscribe<'_>) {
        self.ask(id, subscribe, Kind::Subscribed).await;
    }

    fn queue_publish(&mut self, id: u32, batches: &[&[u8]]) {
        self.put(id, &Publish { batches: List::Items(batches) });
    }

    async fn publish(&mut self, id: u32, batches: &[&[u8]]) -> (u64, u64) {
        self.queue_publish(id, batches);
        self.flush().await;
        expect!(self, id, ServerFrame::Published(published) => (published.delivered, published.missed))
    }

    async fn delivery(&mut self) -> Got {
        expect!(self, 0, ServerFrame::Deliver(deliver) => {
            let batch = Batch::decode(deliver.batch.0).unwrap();
            batch.check().unwrap();
            batch.check_crc().unwrap();
            let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
            let payloads = batch.messages().map(|message| text(message.unwrap().payload)).collect();
            Got { ids: deliver.subscriptions.iter().collect(), bytes: batch.bytes().to_vec(), payloads }
        })
    }
}

#[tokio::test]
async fn a_batch_comes_once_to_a_channel_as_it_was_published() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    for (id, pattern) in [(7, "a.*"), (8, "a.b"), (9, ">"), (10, "c")] {
        subscriber.begin(id, &plain(pattern)).await;
    }
    let large = "x".repeat(60_000);
    for (checksum, payloads) in [
        (Checksum::Crc32c, vec!["one", "two"]),
        (Checksum::Without, vec!["three", "four"]),
        (Checksum::Crc32c, vec![&large, "b"]),
    ] {
        let payloads: Vec<_> = payloads.iter().map(|payload| payload.as_bytes()).collect();
        let sent = batch_to("a.b", "answers", &payloads, checksum);
        assert_eq!(publisher.publish(1, &[&sent]).await, (3, 0));
        let got = subscriber.delivery().await;
        assert_eq!((got.ids, got.bytes == sent), (vec![7, 8, 9], true), "checksum and all");
    }
    let (first, second) = (batch("a.b", &["1", "2"]), batch("c", &["3"]));
    assert_eq!(publisher.publish(2, &[&first, &second, &first]).await, (8, 0));
    let orders = [subscriber.delivery().await, subscriber.delivery().await, subscriber.delivery().await];
    assert_eq!(orders.map(|got| got.payloads.concat()), ["12", "3", "12"]);
    assert_eq!(publisher.publish(3, &[]).await, (0, 0));
    assert_eq!(publisher.publish(3, &[&batch("nobody.b.c", &["x"])]).await, (1, 0), "only `>`");
    node.stop().await;
}

#[tokio::test]
async fn single_messages_are_gathered_in_order_over_subjects() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    subscriber.begin(1, &plain(">")).await;
    for number in 0..300 {
        let subject = if number < 200 { "a" } else { "b" };
        publisher.queue_publish(0, &[&batch(subject, &[&number.to_string()])]);
        if number == 100 {
            // A message that requires a reply is published alone, in its order.
            publisher.queue_publish(5, &[&batch("a", &["between"])]);
        }
    }
    publisher.flush().await;
    expect!(publisher, 5, ServerFrame::Published(published) => assert_eq!(published.delivered, 1));
    let (mut seen, mut frames) = (Vec::new(), 0);
    while seen.len() < 301 {
        let got = subscriber.delivery().await;
        assert!(got.payloads.len() <= 64, "as many as are gathered");
        seen.extend(got.payloads);
        frames += 1;
    }
    let mut wanted: Vec<_> = (0..300).map(|number| number.to_string()).collect();
    wanted.insert(101, "between".to_owned());
    assert_eq!(seen, wanted);
    assert!(frames < 100, "{frames} frames");
    node.stop().await;
}

#[tokio::test]
async fn gathered_messages_wait_if_told_to_but_not_for_ever() {
    let node = Node::with(|config| {
        config.batch_when_idle = thalweg_server::config::WhenIdle(thalweg_broker::WhenIdle::Wait);
        config.batch_delay = thalweg_server::config::Span(std::time::Duration::from_millis(30));
    })
    .await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    subscriber.begin(1, &plain("a")).await;
    publisher.queue_publish(0, &[&batch("a", &["1"])]);
    publisher.flush().await;
    // A reply confirms that the server has read the first message. Then the second is sent, and joins it.
    publisher.publish(1, &[]).await;
    publisher.queue_publish(0, &[&batch("a", &["2"])]);
    publisher.flush().await;
    let mut payloads = subscriber.delivery().await.payloads;
    if payloads.len() == 1 {
        // The machine was too slow for both to arrive within the delay.
        payloads.extend(subscriber.delivery().await.payloads);
    }
    assert_eq!(payloads, ["1", "2"]);
    node.stop().await;
}

#[tokio::test]
async fn what_is_no_batch_for_a_subject_is_refused_and_publishes_nothing() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    client.begin(1, &plain(">")).await;
    let good = batch("a", &["x"]);
    let mut changed = batch_to("a", "", &[b"some payload"], Checksum::Crc32c);
    *changed.last_mut().unwrap() ^= 1;
    let mut miscounted = batch("a", &["x", "y"]);
    miscounted[4] = 3;
    let cases: [(&[u8], &str); 7] = [
        (&batch("a.*", &["x"]), "subject_wildcard"),
        (&batch("a..b", &["x"]), "subject_empty_token"),
        (&batch("", &["x"]), "subject_empty"),
        (&batch_to("a", "b.>", &[b"x"], Checksum::Without), "subject_wildcard"),
        (&changed, "batch_checksum"),
        (&miscounted, "malformed_batch"),
        (&good[..good.len() - 1], "malformed_batch"),
    ];
    for (bad, code) in cases {
        for id in [3, 0] {
            client.queue_publish(id, &[&good, bad]);
            client.flush().await;
            assert_eq!(client.fails(id).await, code);
        }
    }
    for (pattern, code) in [("a.>.b", "pattern_tail_not_last"), ("", "subject_empty")] {
        client.send(4, &plain(pattern)).await;
        assert_eq!(client.fails(4).await, code);
    }
    client.send(4, &Subscribe { queue: ShortBytes(&[b'q'; 200]), ..plain("a") }).await;
    assert_eq!(client.fails(4).await, "queue_group_name");
    assert_eq!(client.publish(4, &[&good]).await, (1, 0));
    assert_eq!(client.delivery().await.payloads, ["x"], "and nothing before it");
    node.stop().await;
}

#[tokio::test]
async fn credit_is_kept_and_what_waits_is_bounded() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    let permit = Permit { messages: 3, bytes: u64::MAX };
    let frame = Subscribe { queue_messages: 4, ..subscribe("a", Policy::DropOld, permit) };
    subscriber.send(1, &frame).await;
    let bounds = expect!(subscriber, 1, ServerFrame::Subscribed(begun) => (begun.queue_messages, begun.queue_bytes));
    assert_eq!(bounds, (4, 16 << 20));
    for number in 0..10 {
        publisher.publish(1, &[&batch("a", &[&number.to_string()])]).await;
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.extend(subscriber.delivery().await.payloads);
    }
    assert_eq!(seen, ["0", "1", "2"]);
    subscriber.send(1, &Credit { messages: 5, bytes: u64::MAX }).await;
    assert_eq!(expect!(subscriber, 1, ServerFrame::Dropped(dropped) => dropped.messages), 3, "3, 4 and 5");
    for wanted in ["6", "7"] {
        assert_eq!(subscriber.delivery().await.payloads, [wanted]);
    }
    // A total that was sent before permits nothing more. A higher one does.
    subscriber.put(1, &Credit { messages: 4, bytes: u64::MAX });
    subscriber.send(1, &Credit { messages: 6, bytes: u64::MAX }).await;
    assert_eq!(subscriber.delivery().await.payloads, ["8"]);
    assert_eq!(node.metric("subject_dropped_messages_total{policy=\"drop_old\"}").await, 3.0);
    assert_eq!(node.metric("subject_queue_messages").await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn limits_and_cancels_end_a_subscription_where_they_say() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    let limited = |limit| Fields { limit: Some(limit), ..Fields::default() };
    subscriber.put_with(1, &limited(3), &plain("a"));
    subscriber.send_with(2, &limited(0), &plain("a")).await;
    expect!(subscriber, 1, ServerFrame::Subscribed(_) => ());
    expect!(subscriber, 2, ServerFrame::Subscribed(_) => ());
    assert_eq!(expect!(subscriber, 2, ServerFrame::Ended(ended) => ended.code.to_owned()), "limit_reached");
    subscriber.begin(3, &plain("a")).await;
    publisher.publish(1, &[&batch("a", &["1", "2"]), &batch("a", &["3", "4"]), &batch("a", &["5"])]).await;
    let first = subscriber.delivery().await;
    assert_eq!((first.ids, first.payloads), (vec![1, 3], vec!["1".to_owned(), "2".to_owned()]));
    let cut = subscriber.delivery().await;
    assert_eq!((cut.ids, cut.payloads), (vec![1], vec!["3".to_owned()]), "no more than it wanted");
    let rest = subscriber.delivery().await;
    assert_eq!((rest.ids, rest.payloads), (vec![3], vec!["3".to_owned(), "4".to_owned()]));
    assert_eq!(subscriber.delivery().await.ids, [3]);
    assert_eq!(expect!(subscriber, 1, ServerFrame::Ended(ended) => ended.code.to_owned()), "limit_reached");
    // The id is free again.
    subscriber.begin(1, &plain("b")).await;
    subscriber.send(3, &Cancel { mode: CancelMode::Now }).await;
    assert_eq!(expect!(subscriber, 3, ServerFrame::Ended(ended) => ended.code.to_owned()), "cancelled");
    assert_eq!(publisher.publish(2, &[&batch("a", &["x"])]).await, (0, 0));

    // A drain sends queued messages within the credit, and no later messages.
    subscriber.begin(4, &subscribe("d", Policy::DropNew, Permit { messages: 0, bytes: u64::MAX })).await;
    publisher.publish(3, &[&batch("d", &["1"]), &batch("d", &["2"]), &batch("d", &["3"])]).await;
    subscriber.put(4, &Credit { messages: 2, bytes: u64::MAX });
    subscriber.send(4, &Cancel { mode: CancelMode::Drain }).await;
    assert_eq!(subscriber.delivery().await.payloads, ["1"]);
    assert_eq!(subscriber.delivery().await.payloads, ["2"]);
    assert_eq!(expect!(subscriber, 4, ServerFrame::Ended(ended) => ended.code.to_owned()), "cancelled");
    subscriber.send(4, &Cancel { mode: CancelMode::Drain }).await;
    subscriber.begin(4, &plain("d")).await;
    subscriber.send(4, &Cancel { mode: CancelMode::Drain }).await;
    assert_eq!(expect!(subscriber, 4, ServerFrame::Ended(ended) => ended.code.to_owned()), "cancelled");
    node.until("subject_subscriptions", 1.0).await;
    node.stop().await;
}

#[tokio::test]
async fn one_that_is_too_slow_and_asked_for_it_is_given_up() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    let frame = Subscribe { queue_messages: 2, ..subscribe("a", Policy::Disconnect, Permit { messages: 0, bytes: 0 }) };
    subscriber.begin(1, &frame).await;
    subscriber.begin(2, &plain("b")).await;
    let sent = batch("a", &["x"]);
    assert_eq!(publisher.publish(1, &[&sent, &sent]).await, (2, 0));
    assert_eq!(publisher.publish(1, &[&sent]).await, (0, 1));
    assert_eq!(publisher.publish(1, &[&sent]).await, (0, 0), "it is gone for publishers");
    assert_eq!(expect!(subscriber, 1, ServerFrame::Ended(ended) => ended.code.to_owned()), "slow_consumer");
    let (reason, message) = subscriber.says_goodbye().await;
    assert_eq!(reason, Reason::Slow);
    assert!(message.contains("3 messages"), "{message}");
    assert_eq!(node.metric("subject_disconnected_links_total").await, 1.0);
    node.until("subject_subscriptions", 0.0).await;
    node.stop().await;
}

#[tokio::test]
async fn a_subscriber_that_blocks_stops_its_publishers_and_nothing_is_lost() {
    let node = Node::start().await;
    let (mut publisher, mut slow) = (node.raw().await, node.raw().await);
    let frame =
        Subscribe { queue_messages: 10, ..subscribe("a", Policy::Block, Permit { messages: 0, bytes: u64::MAX }) };
    slow.begin(1, &frame).await;
    for number in 0..200 {
        publisher.queue_publish(0, &[&batch("a", &[&number.to_string(), "."])]);
    }
    publisher.queue_publish(7, &[&batch("a", &["200", "."]), &batch("b", &["x"])]);
    publisher.flush().await;
    node.until("subject_queue_messages", 10.0).await;
    let mut seen = Vec::new();
    for permitted in 1..=201 {
        slow.send(1, &Credit { messages: 2 * permitted, bytes: u64::MAX }).await;
        seen.push(slow.delivery().await.payloads[0].clone());
    }
    assert!(seen.iter().map(|seen| seen.parse::<u32>().unwrap()).eq(0..=200));
    // The last publish is acknowledged after it is in the queue.
    expect!(publisher, 7, ServerFrame::Published(published) => assert_eq!(published.delivered, 1));
    // A subscriber that disconnects does not block others any more.
    for number in 0..20 {
        publisher.queue_publish(0, &[&batch("a", &[&number.to_string(), "."])]);
    }
    publisher.queue_publish(8, &[&batch("a", &["x", "y"])]);
    publisher.flush().await;
    node.until("subject_queue_messages", 10.0).await;
    drop(slow);
    expect!(publisher, 8, ServerFrame::Published(published) => assert_eq!(published.delivered, 0));
    node.stop().await;
}

/// A blocked publish gives back the room that it has reserved in the other queues. This wakes no publisher that waited
/// before, or blocked publishers would wake each other without end.
#[tokio::test]
async fn blocked_publishers_do_not_wake_each_other() {
    let node = Node::start().await;
    let mut subscriber = node.raw().await;
    let blocking = |queue_messages| {
        let none = Permit { messages: 0, bytes: 0 };
        Subscribe { queue_messages, ..subscribe("a", Policy::Block, none) }
    };
    subscriber.begin(1, &blocking(100)).await;
    subscriber.begin(2, &blocking(1)).await;
    let mut publishers = Vec::new();
    for number in 0..4 {
        let mut publisher = node.raw().await;
        publisher.queue_publish(1, &[&batch("a", &[&number.to_string()])]);
        publisher.flush().await;
        publishers.push(publisher);
    }
    let blocked = async || node.metric("subject_blocked_total").await;
    let rests = async {
        let mut before = 0.0;
        loop {
            let now = blocked().await;
            if now >= 3.0 && now == before {
                break;
            }
            before = now;
            for _ in 0..20 {
                pause().await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, rests).await.expect("publishers that wait do nothing");
    for id in [1, 2] {
        subscriber.put(id, &Credit { messages: u64::MAX, bytes: u64::MAX });
    }
    subscriber.flush().await;
    for publisher in &mut publishers {
        expect!(publisher, 1, ServerFrame::Published(published) => assert_eq!(published.delivered, 2));
    }
    node.stop().await;
}

#[tokio::test]
async fn single_messages_are_held_back_too() {
    let node = Node::start().await;
    let (mut publisher, mut slow) = (node.raw().await, node.raw().await);
    let frame =
        Subscribe { queue_messages: 64, ..subscribe("a", Policy::Block, Permit { messages: 0, bytes: u64::MAX }) };
    slow.begin(1, &frame).await;
    for number in 0..1000 {
        publisher.queue_publish(0, &[&batch("a", &[&number.to_string()])]);
    }
    publisher.flush().await;
    node.until("subject_queue_messages", 64.0).await;
    slow.send(1, &Credit { messages: u64::MAX, bytes: u64::MAX }).await;
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        seen.extend(slow.delivery().await.payloads);
    }
    assert!(seen.iter().map(|seen| seen.parse::<u32>().unwrap()).eq(0..1000));
    node.stop().await;
}

#[tokio::test]
async fn what_a_client_sent_before_it_closed_is_published() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    subscriber.begin(1, &plain("a")).await;
    for number in 0..10 {
        publisher.queue_publish(0, &[&batch("a", &[&number.to_string()])]);
    }
    publisher.flush().await;
    tokio::io::AsyncWriteExt::shutdown(&mut publisher.stream).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 10 {
        seen.extend(subscriber.delivery().await.payloads);
    }
    publisher.ends().await;
    node.stop().await;
}

#[tokio::test]
async fn asking() {
    let node = Node::start().await;
    let (mut asking, mut answering) = (node.raw().await, node.raw().await);
    let question = batch("sums", &["1 + 1"]);
    asking.send(1, &Ask { batch: RemainingBytes(&question) }).await;
    assert_eq!(asking.fails(1).await, "no_responders");
    answering.begin(1, &plain("sums")).await;
    // The client sends several requests at once, and the answers arrive in another order. One of its own subscriptions
    // sees the answers, too.
    asking.begin(9, &plain("_reply.>")).await;
    for id in [2, 3] {
        asking.put(id, &Ask { batch: RemainingBytes(&batch("sums", &[&format!("question {id}")])) });
    }
    asking.flush().await;
    let mut replies = Vec::new();
    for id in [2, 3] {
        let got = answering.delivery().await;
        assert_eq!(got.payloads, [format!("question {id}")]);
        replies.push(String::from_utf8(Batch::decode(&got.bytes).unwrap().reply().to_vec()).unwrap());
    }
    assert_ne!(replies[0], replies[1]);
    for (at, id) in [(1, 3), (0, 2)] {
        let answer = batch(&replies[at], &[&format!("answer {id}")]);
        assert_eq!(answering.publish(5, &[&answer]).await, (2, 0));
        assert_eq!(asking.delivery().await.ids, [9]);
        let payload = expect!(asking, id, ServerFrame::Answer(answer) => {
            let batch = Batch::decode(answer.batch.0).unwrap();
            String::from_utf8(batch.messages().next().unwrap().unwrap().payload.to_vec()).unwrap()
        });
        assert_eq!(payload, format!("answer {id}"));
    }
    // A second answer reaches the inbox, where no request waits for it.
    answering.publish(5, &[&batch(&replies[0], &["late"])]).await;
    assert_eq!(asking.delivery().await.payloads, ["late"]);
    let brief = Fields { timeout_micros: Some(20_000), ..Fields::default() };
    asking.send_with(4, &brief, &Ask { batch: RemainingBytes(&question) }).await;
    assert_eq!(asking.fails(4).await, "request_timed_out");
    asking.send(5, &Ask { batch: RemainingBytes(&question) }).await;
    asking.send(5, &Cancel { mode: CancelMode::Now }).await;
    assert_eq!(asking.fails(5).await, "cancelled");
    for bad in [batch("sums", &["a", "b"]), batch_to("sums", "x", &[b"a"], Checksum::Without)] {
        asking.send(6, &Ask { batch: RemainingBytes(&bad) }).await;
        assert_eq!(asking.fails(6).await, "malformed_batch");
    }
    // The responder has no room.
    let full = Subscribe { queue_messages: 1, ..subscribe("full", Policy::DropNew, Permit { messages: 0, bytes: 0 }) };
    let mut other = node.raw().await;
    other.begin(2, &full).await;
    let (one, two) = (batch("full", &["1"]), batch("full", &["2"]));
    asking.put_with(7, &brief, &Ask { batch: RemainingBytes(&one) });
    asking.send(8, &Ask { batch: RemainingBytes(&two) }).await;
    assert_eq!(asking.fails(8).await, "responders_overloaded");
    assert_eq!(asking.fails(7).await, "request_timed_out");
    node.stop().await;
}

#[tokio::test]
async fn a_queue_group_shares_over_both_protocols() {
    let node = Node::start().await;
    let (mut publisher, mut member) = (node.raw().await, node.raw().await);
    member.begin(1, &Subscribe { queue: ShortBytes(b"w"), ..plain("jobs") }).await;
    let mut other = node.open("/v1/subjects/jobs?group=w&limit=1", &[("accept", "application/x-ndjson")]).await;
    other.chunk().await.unwrap();
    let mut over_http = None;
    let mut published = 0;
    while over_http.is_none() {
        assert_eq!(publisher.publish(1, &[&batch("jobs", &[&published.to_string()])]).await, (1, 0));
        published += 1;
        if node.metric("subject_subscriptions").await == 1.0 {
            over_http = other.chunk().await;
        }
    }
    let http: serde_json::Value = serde_json::from_slice(&over_http.unwrap()).unwrap();
    let mut seen = vec![http["payload"].as_str().unwrap().parse::<u32>().unwrap()];
    while seen.len() < published {
        seen.extend(member.delivery().await.payloads.iter().map(|payload| payload.parse::<u32>().unwrap()));
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..published as u32), "each went to one of them");
    // Messages published over HTTP arrive over the native protocol.
    node.call("POST", "/v1/subjects/jobs", &[], b"from http").await.is(200);
    assert_eq!(member.delivery().await.payloads, ["from http"]);
    node.stop().await;
}

#[tokio::test]
async fn many_subscriptions_of_a_channel_get_several_frames() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    let count = MAX_DELIVER_SUBSCRIPTIONS as u32 + 5;
    for id in 1..=count {
        subscriber.put(id, &plain("a"));
    }
    subscriber.flush().await;
    for id in 1..=count {
        expect!(subscriber, id, ServerFrame::Subscribed(_) => ());
    }
    assert_eq!(publisher.publish(1, &[&batch("a", &["x"])]).await, (u64::from(count), 0));
    let (first, second) = (subscriber.delivery().await, subscriber.delivery().await);
    assert_eq!((first.ids.len(), second.ids.len()), (MAX_DELIVER_SUBSCRIPTIONS, 5));
    assert_eq!(first.bytes, second.bytes);
    let mut ids = [first.ids, second.ids].concat();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(1..=count));
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_small_frames_gets_a_batch_in_parts() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw_taking(64 * 1024).await);
    subscriber.begin(1, &plain("a")).await;
    let payloads: Vec<_> = (0..40).map(|number| format!("{number:05}{}", "x".repeat(9_000))).collect();
    let payloads: Vec<_> = payloads.iter().map(String::as_str).collect();
    publisher.publish(1, &[&batch("a", &payloads)]).await;
    let (mut seen, mut frames) = (Vec::new(), 0);
    while seen.len() < 40 {
        seen.extend(subscriber.delivery().await.payloads);
        frames += 1;
    }
    assert_eq!(seen, payloads);
    assert!(frames > 4 && frames < 10, "{frames}");
    publisher.publish(1, &[&batch("a", &[&"x".repeat(70_000)])]).await;
    assert_eq!(expect!(subscriber, 1, ServerFrame::Ended(ended) => ended.code.to_owned()), "result_too_large");
    subscriber.begin(1, &plain("a")).await;
    node.stop().await;
}

#[tokio::test]
async fn a_subscription_that_a_large_message_ends_gets_none_of_those_behind_it() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw_taking(64 * 1024).await);
    // Without credit all batches wait, and leave the queue together.
    subscriber.begin(1, &subscribe("a", Policy::DropNew, Permit { messages: 0, bytes: u64::MAX })).await;
    subscriber.begin(2, &subscribe("b", Policy::DropNew, Permit { messages: 0, bytes: u64::MAX })).await;
    let large = "x".repeat(70_000);
    let sent = [batch("a", &["1"]), batch("a", &[&large]), batch("a", &["2"]), batch("b", &["3"])];
    let sent: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
    assert_eq!(publisher.publish(1, &sent).await, (4, 0));
    subscriber.put(2, &Credit { messages: 10, bytes: u64::MAX });
    subscriber.send(1, &Credit { messages: 10, bytes: u64::MAX }).await;
    let mut got = Vec::new();
    let mut ended = false;
    while got.len() < 2 || !ended {
        let frame = subscriber.next().await;
        let envelope = ServerFrame::decode(frame.raw()).unwrap();
        match envelope.frame {
            ServerFrame::Ended(end) => {
                assert_eq!((envelope.id, end.code), (1, "result_too_large"));
                ended = true;
            }
            ServerFrame::Deliver(deliver) => {
                assert!(!ended || !deliver.subscriptions.iter().any(|id| id == 1), "its subscription has ended");
                got.extend(deliver.subscriptions.iter());
            }
            other => panic!("{other:?}"),
        }
    }
    got.sort_unstable();
    assert_eq!(got, [1, 2]);
    // Nothing else is on its way.
    subscriber.begin(1, &plain("a")).await;
    node.stop().await;
}

fn encoded(commit: &CommitBuilder) -> Vec<u8> {
    let mut out = Vec::new();
    commit.encode(&mut out);
    out
}

#[tokio::test]
async fn a_publish_rides_on_a_write() {
    let node = Node::start().await;
    let (mut writer, mut subscriber) = (node.raw().await, node.raw().await);
    let (keyspace, stream) = (writer.keyspace("k").await, writer.stream("s").await);
    subscriber.begin(1, &plain("new")).await;
    let sent = batch("new", &["a"]);
    let appended = |sequence| {
        let mut commit = CommitBuilder::new();
        let mut records = thalweg_types::record::RecordBatch::new();
        records.push_payload(b"r").unwrap();
        let producer = Some(ProducerStamp { id: "p", epoch: 0, sequence });
        let terms = thalweg_types::command::AppendConditions { producer, ..Default::default() };
        commit.append_with(stream, &terms, &records).unwrap();
        encoded(&commit)
    };
    let mut write = async |id: u32, level: Durability, command: &[u8]| {
        let batches = [&*sent];
        let frame = WriteAndPublish {
            level: Level(Some(level)),
            batches: List::Items(&batches),
            command: RemainingBytes(command),
        };
        writer.send(id, &frame).await;
        match ServerFrame::decode(writer.next().await.raw()).unwrap().frame {
            ServerFrame::Committed(committed) => format!("committed, duplicate {}", committed.duplicate),
            ServerFrame::Failed(failed) => failed.code.to_owned(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(write(1, Durability::Disk, &appended(0)).await, "committed, duplicate false");
    assert_eq!(write(2, Durability::Disk, &appended(0)).await, "committed, duplicate true");
    assert_eq!(write(3, Durability::None, &appended(1)).await, "level_too_low");
    let mut failing = CommitBuilder::new();
    failing.expect(keyspace, b"a", Expect::Present).unwrap().put(keyspace, b"a", b"1").unwrap();
    assert_eq!(write(4, Durability::Disk, &encoded(&failing)).await, "condition_failed");
    assert_eq!(write(5, Durability::Disk, b"\xff\xff").await, "malformed");
    assert_eq!(write(6, Durability::Disk, &appended(1)).await, "committed, duplicate false");
    let marker = batch("new", &["end"]);
    node.raw().await.publish(2, &[&marker]).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "end") {
        seen.extend(subscriber.delivery().await.payloads);
    }
    assert_eq!(seen, ["a", "a", "end"], "once for each that happened");
    node.stop().await;
}

#[tokio::test]
async fn racing_publishers_are_seen_in_one_order_by_all() {
    let node = Node::start().await;
    let mut subscribers = Vec::new();
    for pattern in ["r.a", "r.*", ">", "r.a"] {
        let mut subscriber = node.raw().await;
        subscriber.begin(1, &plain(pattern)).await;
        subscribers.push(subscriber);
    }
    let mut racing = Vec::new();
    for who in 0..4 {
        let mut publisher = node.raw().await;
        racing.push(tokio::spawn(async move {
            for number in 0..500 {
                let id = if number % 7 == 0 { 1 } else { 0 };
                publisher.queue_publish(id, &[&batch("r.a", &[&format!("{who}:{number}")])]);
                publisher.flush().await;
                if id == 1 {
                    expect!(publisher, 1, ServerFrame::Published(_) => ());
                }
            }
            publisher
        }));
    }
    for task in racing {
        task.await.unwrap();
    }
    let mut orders = Vec::new();
    for subscriber in &mut subscribers {
        let mut order = Vec::new();
        while order.len() < 2000 {
            order.extend(subscriber.delivery().await.payloads);
        }
        orders.push(order);
    }
    for other in &orders[1..] {
        assert!(orders[0] == *other);
    }
    let mut next = BTreeMap::new();
    for seen in &orders[0] {
        let (who, number) = seen.split_once(':').unwrap();
        let next = next.entry(who).or_insert(0);
        assert_eq!(number.parse::<u32>().unwrap(), *next, "each publisher's own order");
        *next += 1;
    }
    node.stop().await;
}

#[tokio::test]
async fn storms_of_subscriptions_and_channels_that_vanish_leave_nothing() {
    let node = Node::start().await;
    let mut publisher = node.raw().await;
    for round in 0..5 {
        let mut channels = Vec::new();
        for _ in 0..10 {
            let mut channel = node.raw().await;
            for id in 1..=100 {
                channel.put(id, &plain(&format!("s.{}", id % 9)));
            }
            for id in (1..=100).step_by(2) {
                channel.put(id, &Cancel { mode: CancelMode::Now });
            }
            channel.flush().await;
            channels.push(channel);
        }
        let payload = "x".repeat(20_000);
        for number in 0..9 {
            publisher.publish(1, &[&batch(&format!("s.{number}"), &[&payload, &round.to_string()])]).await;
        }
    }
    node.until("subject_subscriptions", 0.0).await;
    node.until("subject_links", 0.0).await;
    assert_eq!(node.metric("subject_queue_bytes").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_stop_ends_subscriptions() {
    let mut node = Node::start().await;
    let mut subscriber = node.raw().await;
    subscriber.begin(1, &plain("a")).await;
    node.signal_stop();
    assert_eq!(expect!(subscriber, 1, ServerFrame::Ended(ended) => ended.code.to_owned()), "stopping");
    assert_eq!(subscriber.says_goodbye().await.0, Reason::Stopping);
    node.stopped().await.unwrap();
}

#[tokio::test]
async fn what_a_client_published_before_its_goodbye_goes_out() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    subscriber.begin(1, &plain("a")).await;
    publisher.queue_publish(0, &[&batch("a", &["last"])]);
    publisher.send(0, &thalweg_wire::handshake::goodbye(Reason::Done, thalweg_types::Action::Fix, "done")).await;
    assert_eq!(subscriber.delivery().await.payloads, ["last"]);
    node.stop().await;
}

#[tokio::test]
async fn the_stages_of_a_sample_of_publishes_are_counted() {
    let node = Node::start().await;
    let (mut publisher, mut subscriber) = (node.raw().await, node.raw().await);
    subscriber.begin(1, &plain("a")).await;
    for number in 0..65 {
        assert_eq!(publisher.publish(number + 1, &[&batch("a", &["x"])]).await, (1, 0));
        subscriber.delivery().await;
    }
    let count = |stage: &str| format!("native_publish_stage_duration_seconds_count{{stage=\"{stage}\"}}");
    for stage in ["receive", "fan_out", "queue"] {
        assert_eq!(node.metric(&count(stage)).await, 2.0, "{stage}: the first batch, and the 65th");
    }
    // The server counts the end of a write after the client may have read the bytes.
    node.until(&count("send"), 2.0).await;
    node.stop().await;
}
