//! Lost connections under load against a real server: durable data is neither lost nor repeated.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use thalweg_client::{Position, PushOptions, StreamPublisherOptions, Watched, Window};
use thalweg_types::{
    Durability, Offset,
    command::{CommitBuilder, groups::GroupConfig},
};

use crate::node::{Node, PATIENCE, Proxy, Random, connect, options};

/// Number of records, chosen so that sending them takes slightly longer than the proxy makes cuts.
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
    // Small batches and windows make sure that many batches are in flight whenever a connection is lost.
    let small = StreamPublisherOptions { max_records: 20, max_bytes: 4096, max_in_flight: 7 };
    let publisher = stream.publisher("p", small).await.unwrap();

    let tailed = tail_client.stream("orders");
    tailed.create_if_missing(&Default::default()).await.unwrap();
    assert_eq!(tailed.id().await.unwrap(), stream_id);
    let window = Window { messages: 100, bytes: 8192 };
    let mut tail = tailed.tail_with(Position::Start {}, window).await.unwrap();
    let reading = tokio::spawn(async move {
        for expected in 0..RECORDS {
            let record = tail.next().await.unwrap().expect("the tail goes on");
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
    assert_eq!(tail.next_within(Duration::from_millis(20)).await.unwrap(), None, "no further records");
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
    assert!(first.publish_payload(b"four").await.unwrap_err().is("producer_fenced"), "all later calls fail too");
    let records = stream.read(Position::Start {}, 10, 0).await.unwrap();
    let payloads: Vec<_> = records.iter().map(|at| at.record.payload.to_vec()).collect();
    assert_eq!(payloads, [&b"one"[..], b"two"]);
    drop((first, second));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_tells_every_change_once() {
    const PUTS: u64 = 1_500;
    let mut random = Random::new();
    let node = Node::start().await;
    let proxy = Proxy::new(node.native, Random::seeded(random.next()), 30, 1_000, 5_000).await;
    let watching = connect(proxy.address, options()).await;
    let writing = node.client().await.durability(Durability::Os);
    let users = writing.keyspace("users");
    users.create_if_missing(&Default::default()).await.unwrap();
    let first = users.put(b"begin", b"").await.unwrap();
    let mut watch = watching.keyspace("users").watch(Watched::Prefix(b"k".to_vec()), first).await.unwrap();
    let told = tokio::spawn(async move {
        let mut told = Vec::new();
        while told.len() < PUTS as usize * 2 {
            for change in watch.next().await.unwrap().expect("the watch goes on").changes {
                told.push((change.revision, change.key, change.value));
            }
        }
        told
    });
    let id = users.id().await.unwrap();
    let mut wanted = Vec::new();
    for put in 0..PUTS {
        // A commit has two changes, which must arrive together.
        let mut commit = CommitBuilder::new();
        let (a, b) = (format!("k{put}"), format!("k-other-{}", random.below(50)));
        commit.put(id, a.as_bytes(), &put.to_le_bytes()).unwrap();
        commit.put(id, b.as_bytes(), b"other").unwrap();
        let revision = writing.commit(&commit).await.unwrap().revision;
        wanted.push((revision, a, put.to_le_bytes().to_vec()));
        wanted.push((revision, b, b"other".to_vec()));
    }
    let mut told = tokio::time::timeout(PATIENCE, told).await.expect("in time").unwrap();
    assert!(told.is_sorted_by_key(|(revision, ..)| *revision));
    // The server chooses the order within a commit.
    told.sort();
    wanted.sort();
    let seen: Vec<_> = told.iter().map(|(at, key, value)| (*at, str(key), value.to_vec())).collect();
    assert!(seen == wanted, "{} changes", seen.len());
    assert!(proxy.cuts() >= 5, "{} cuts", proxy.cuts());
    node.stop().await;
}

fn str(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_delivers_everything_and_settles_it() {
    const RECORDS: u64 = 2_000;
    let mut random = Random::new();
    let node = Node::start().await;
    let proxy = Proxy::new(node.native, Random::seeded(random.next()), 25, 500, 4_000).await;
    let client = connect(proxy.address, options()).await.durability(Durability::Os);
    let writing = node.client().await.durability(Durability::Os);
    let stream = writing.stream("jobs");
    stream.create_if_missing(&Default::default()).await.unwrap();
    let config = GroupConfig { ack_deadline: Duration::from_millis(300), ..GroupConfig::default() };
    stream.group("workers").await.unwrap().create_if_missing(Some(Offset(0)), &config).await.unwrap();

    let group = client.stream("jobs").group("workers").await.unwrap();
    let options = PushOptions { held_records: 200, ..PushOptions::member("m") };
    let mut pushes = group.push(options).await.unwrap();
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let working = tokio::spawn({
        let seen = seen.clone();
        async move {
            loop {
                let delivery = pushes.next().await.unwrap().expect("the push goes on");
                let records = delivery.records.iter().map(|at| (at.offset.0, number(at.record.payload)));
                seen.lock().unwrap().extend(records);
                // Records that were returned with a lost connection have lapsed, and the group redelivers them.
                delivery.ack().await.unwrap();
            }
        }
    });
    let publisher = stream.publisher("p", StreamPublisherOptions::default()).await.unwrap();
    for record in 0..RECORDS {
        publisher.publish_payload(record.to_string().as_bytes()).await.unwrap();
        if record % 50 == 0 {
            publisher.flush().await.unwrap(); // many batches instead of one
        }
    }
    publisher.flush().await.unwrap();
    let group = stream.group("workers").await.unwrap();
    let settled = async {
        // Most of the time passes until attempts lapse, and each request takes a processor from the others.
        while group.describe().await.unwrap().floor != Offset(RECORDS) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("everything is settled");
    working.abort();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.into_iter().eq((0..RECORDS).map(|record| (record, record))), "each record with its content");
    assert!(proxy.cuts() >= 5, "{} cuts", proxy.cuts());
    drop(publisher);
    node.stop().await;
}
