//! Lost connections under load, against a real server: what is durable loses nothing and repeats nothing.

mod node;

use std::time::Duration;

use node::{Node, PATIENCE, Proxy, Random, connect, options};
use thalweg_client::{Position, StreamPublisherOptions, Window};
use thalweg_types::{Durability, Offset};

/// Until the proxy has cut as often as it was to, and a little longer.
const RECORDS: u64 = 6_000;

fn number(payload: &[u8]) -> u64 {
    std::str::from_utf8(payload).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotent_publisher_and_a_tail_lose_and_repeat_nothing() {
    let mut random = Random::new();
    let node = Node::start().await;
    let publishing = Proxy::new(node.native, Random::seeded(random.next()), 30, 1_000, 6_000).await;
    let tailing = Proxy::new(node.native, Random::seeded(random.next()), 30, 1_000, 6_000).await;
    let publisher_client = connect(publishing.address, options()).await.durability(Durability::Os);
    let tail_client = connect(tailing.address, options()).await;

    let stream = publisher_client.stream("orders");
    stream.create_if_missing(&Default::default()).await.unwrap();
    let stream_id = stream.id().await.unwrap();
    // Small batches and windows: many are on the way whenever a connection goes.
    let small = StreamPublisherOptions { max_records: 20, max_bytes: 4096, max_in_flight: 7 };
    let publisher = stream.publisher("p", small).await.unwrap();

    let tailed = tail_client.stream("orders");
    tailed.create_if_missing(&Default::default()).await.unwrap();
    assert_eq!(tailed.id().await.unwrap(), stream_id);
    let window = Window { messages: 100, bytes: 8192 };
    let mut tail = tailed.tail_with(Position::Start {}, window).await.unwrap();
    let reading = tokio::spawn(async move {
        for expected in 0..RECORDS {
            let record = tail.next().await.unwrap().expect("goes on");
            assert_eq!((record.offset, number(&record.payload)), (Offset(expected), expected));
        }
        tail
    });

    let mut acks = Vec::new();
    for record in 0..RECORDS {
        acks.push(publisher.publish_payload(record.to_string().as_bytes()).await.unwrap());
    }
    tokio::time::timeout(PATIENCE, publisher.flush()).await.expect("in time").unwrap();
    for (expected, ack) in acks.iter().enumerate() {
        let appended = ack.try_wait().expect("flushed").unwrap();
        assert_eq!((appended.first.0, appended.count), (expected as u64, 1));
    }
    let mut tail = tokio::time::timeout(PATIENCE, reading).await.expect("in time").unwrap();
    assert_eq!(tail.next_within(Duration::from_millis(20)).await.unwrap(), None, "and nothing more");
    assert!(publishing.cuts() >= 5 && tailing.cuts() >= 5, "{} and {} cuts", publishing.cuts(), tailing.cuts());
    drop((tail, publisher));
    node.stop().await;
}

#[tokio::test]
async fn a_second_publisher_fences_the_first() {
    let node = Node::start().await;
    let client = node.client().await;
    let stream = client.stream("s");
    stream.create_if_missing(&Default::default()).await.unwrap();
    let first = stream.publisher("p", StreamPublisherOptions::default()).await.unwrap();
    first.publish_payload(b"one").await.unwrap().wait().await.unwrap();
    let second = stream.publisher("p", StreamPublisherOptions::default()).await.unwrap();
    second.publish_payload(b"two").await.unwrap().wait().await.unwrap();
    let error = first.publish_payload(b"three").await.unwrap().wait().await.unwrap_err();
    assert!(error.is("producer_fenced"), "{error}");
    assert!(first.publish_payload(b"four").await.unwrap_err().is("producer_fenced"), "and so for ever");
    let records = stream.read(Position::Start {}, 10, 0).await.unwrap();
    let payloads: Vec<_> = records.iter().map(|at| at.record.payload.to_vec()).collect();
    assert_eq!(payloads, [&b"one"[..], b"two"]);
    drop((first, second));
    node.stop().await;
}
