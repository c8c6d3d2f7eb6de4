//! Subjects and caches against a real server: over lost connections, restarts, TLS and QUIC.

use std::time::Duration;

use thalweg_client::{
    Acks, CacheExpect, CacheTtl, Checksum, Client, Delivered, Endpoint, Error, Options, Policy, Position,
    PublisherOptions, SubscribeOptions, Subscriber, Trust, Window,
};
use thalweg_server::config::NativeAddress;

use crate::node::{Node, PATIENCE, Proxy, Random, connect, options};

/// Receives messages until there are `wanted`, dropped ones included. Returns their numbers and the number dropped.
async fn numbers(subscriber: &mut Subscriber, wanted: usize) -> (Vec<u32>, u64) {
    let (mut seen, mut dropped) = (Vec::new(), 0);
    while seen.len() + (dropped as usize) < wanted {
        match subscriber.next_batch().await.unwrap().expect("the subscription goes on") {
            Delivered::Messages(batch) => {
                seen.extend(batch.iter().map(|message| u32::from_le_bytes(message.payload.try_into().unwrap())));
            }
            Delivered::Dropped(messages) => dropped += messages,
            Delivered::Gap => panic!("the connection was not lost"),
        }
    }
    (seen, dropped)
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

async fn publish_and_receive(client: &Client, messages: u32) {
    let mut all = client.subscribe("n.>").await.unwrap();
    let queue = || SubscribeOptions { queue: b"q".to_vec(), ..SubscribeOptions::default() };
    let mut shared =
        [client.subscribe_with("n.*", queue()).await.unwrap(), client.subscribe_with("n.*", queue()).await.unwrap()];
    let options = PublisherOptions {
        checksum: Checksum::Crc32c,
        acks: Acks::PerBatch { max_in_flight: 8 },
        ..PublisherOptions::default()
    };
    let publisher = client.publisher("n.a", options).unwrap();
    let publishing = async {
        for message in 0..messages {
            publisher.publish(&message.to_le_bytes()).await.unwrap();
        }
        publisher.flush().await.unwrap()
    };
    let receiving = numbers(&mut all, messages as usize);
    let (published, (seen, dropped)) = in_time(async { tokio::join!(publishing, receiving) }).await;
    assert!(seen.into_iter().eq(0..messages), "all messages in order");
    assert_eq!((published.missed, dropped), (0, 0));
    // Each message goes to one of the two.
    let [first, second] = &mut shared;
    let mut seen = Vec::new();
    while seen.len() < messages as usize {
        let batch = in_time(async {
            tokio::select! {
                batch = first.next_batch() => batch,
                batch = second.next_batch() => batch,
            }
        });
        if let Some(Delivered::Messages(batch)) = batch.await.unwrap() {
            seen.extend(batch.iter().map(|message| u32::from_le_bytes(message.payload.try_into().unwrap())));
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..messages));
}

#[tokio::test]
async fn messages_come_once_in_order_and_queues_share() {
    let node = Node::start().await;
    let client = node.client().await;
    publish_and_receive(&client, 20_000).await;

    assert!(client.ask("nobody", b"?", Duration::from_secs(5)).await.unwrap_err().is("no_responders"));
    let mut asked = client.subscribe("silent").await.unwrap();
    let error = client.ask("silent", b"?", Duration::from_millis(30)).await.unwrap_err();
    assert!(error.is("request_timed_out") || matches!(error, Error::TimedOut { .. }), "{error}");
    let question = in_time(asked.next()).await.unwrap().unwrap();
    assert!(!question.reply.is_empty());
    assert!(client.subscribe("not..good").await.is_err());
    node.stop().await;
}

#[tokio::test]
async fn who_is_slow_is_told_what_is_missing() {
    let node = Node::start().await;
    let client = node.client().await;
    let options = SubscribeOptions {
        policy: Policy::DropNew,
        queue_messages: 100,
        window: Some(Window { messages: 50, bytes: 1 << 20 }),
        ..SubscribeOptions::default()
    };
    let mut slow = client.subscribe_with("s", options).await.unwrap();
    let publisher =
        client.publisher("s", PublisherOptions { max_messages: 10, ..PublisherOptions::default() }).unwrap();
    for message in 0..1000_u32 {
        publisher.publish(&message.to_le_bytes()).await.unwrap();
    }
    publisher.flush().await.unwrap();
    let (seen, dropped) = in_time(numbers(&mut slow, 1000)).await;
    assert!(dropped > 0 && seen.is_sorted() && seen.len() as u64 + dropped == 1000, "{dropped}");
    assert_eq!(slow.dropped(), dropped);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_are_made_again_and_nothing_comes_twice() {
    let mut random = Random::new();
    let node = Node::start().await;
    let proxy = Proxy::new(node.native, Random::seeded(random.next()), 10, 2_000, 10_000).await;
    let client = connect(proxy.address, options()).await;
    let mut subscriber = client.subscribe("s").await.unwrap();
    let publishing = node.client().await;
    let stop = tokio::spawn(async move {
        let mut message = 0_u32;
        loop {
            publishing.publish("s", &message.to_le_bytes()).await.unwrap();
            message += 1;
            tokio::task::yield_now().await;
        }
    });
    let mut last = None;
    let watching = async {
        while subscriber.gaps() < 10 {
            match subscriber.next_batch().await.unwrap().expect("the subscription goes on") {
                Delivered::Messages(batch) => {
                    for message in batch.iter() {
                        let number = u32::from_le_bytes(message.payload.try_into().unwrap());
                        assert!(last.is_none_or(|last| number > last), "{number} after {last:?}");
                        last = Some(number);
                    }
                }
                Delivered::Gap => {}
                Delivered::Dropped(messages) => panic!("{messages} were dropped"),
            }
        }
    };
    in_time(watching).await;
    stop.abort();
    assert!(last.is_some());
    node.stop().await;
}

#[tokio::test]
async fn a_cache_is_found_again_in_another_run_of_the_server() {
    let node = Node::start().await;
    let address = node.native;
    let client = node.client().await;
    let (first, second) = (client.cache("first"), client.cache("second"));
    first.put(b"k", b"of the first").await.unwrap();
    second.put(b"k", b"of the second").await.unwrap();
    assert_eq!(first.get(b"k").await.unwrap().unwrap().value, "of the first");
    node.stop().await;
    // The address is the same, but ids begin again: the second cache is opened first and would have the first one's
    // id.
    let node = Node::with(|config| config.native = NativeAddress::At(address)).await;
    assert_eq!(second.get(b"k").await.unwrap(), None, "the cache is empty again");
    second.put(b"k", b"anew").await.unwrap();
    assert_eq!(first.get(b"k").await.unwrap(), None, "never a value of another cache");
    node.stop().await;
}

#[tokio::test]
async fn caches() {
    let node = Node::start().await;
    let client = node.client().await;
    let cache = client.cache("c");
    assert!(cache.open().await.unwrap().0);
    let minute = CacheTtl::After { micros: 60_000_000 };
    cache.put_many(&[(b"a", b"1"), (b"b", b"2")], minute.clone()).await.unwrap();
    let many = cache.get_many(&[b"b", b"none", b"a"]).await.unwrap();
    let values: Vec<_> = many.iter().map(|value| value.as_ref().map(|value| &value.value[..])).collect();
    assert_eq!(values, [Some(&b"2"[..]), None, Some(b"1")]);
    assert!(cache.touch(b"a", CacheTtl::Never {}).await.unwrap());
    assert_eq!(cache.get(b"a").await.unwrap().unwrap().remaining, None);
    assert_eq!(cache.add(b"n", -3, minute).await.unwrap(), -3);
    assert!(cache.delete_if(b"a", CacheExpect::Value { value: b"2" }).await.unwrap_err().is("condition_failed"));
    assert!(cache.delete(b"a").await.unwrap());
    assert!(!cache.delete(b"a").await.unwrap());
    let (mut keys, mut cursor) = cache.keys(None, 1).await.unwrap();
    while cursor.is_some() {
        let (more, next) = cache.keys(cursor, 1).await.unwrap();
        keys.extend(more);
        cursor = next;
    }
    keys.sort();
    assert_eq!(keys, ["b", "n"]);
    let stats = cache.stats().await.unwrap().unwrap();
    assert_eq!((stats.name.as_str(), stats.entries), ("c", 2));
    assert!(client.caches().await.unwrap().contains(&cache.stats().await.unwrap().unwrap()));
    cache.clear().await.unwrap();
    assert_eq!(cache.get(b"b").await.unwrap(), None);
    assert!(cache.drop_cache().await.unwrap());
    cache.put(b"b", b"3").await.unwrap();
    assert!(client.cache_with("other", thalweg_client::CacheCreate::Never, 0).get(b"k").await.is_err());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_over_tls_and_quic() {
    let node = Node::with(|config| config.native_tls = true).await;
    let trust = || Trust::fingerprint(node.fingerprint.expect("the server has a certificate"));
    let address = node.native.to_string();
    for (name, endpoint) in [("tls", Endpoint::tls(&address, trust())), ("quic", Endpoint::quic(&address, trust()))] {
        let client = Client::connect(endpoint, Options { channels: 3, ..options() }).await.unwrap();
        publish_and_receive(&client, 5_000).await;
        let keyspace = client.keyspace(name);
        keyspace.create_if_missing(&Default::default()).await.unwrap();
        let large = vec![7; 200_000];
        let cache = client.cache("c");
        let (put, small) = tokio::join!(keyspace.put(b"large", &large), cache.put(b"k", b"v"));
        put.unwrap();
        small.unwrap();
        assert_eq!(keyspace.get(b"large").await.unwrap().unwrap().value, large);
        let stream = client.stream(name);
        stream.create_if_missing(&Default::default()).await.unwrap();
        let mut tail = stream.tail(Position::Start {}).await.unwrap();
        let publisher = stream.publisher("p", Default::default()).await.unwrap();
        for record in 0..500_u32 {
            publisher.publish_payload(&record.to_le_bytes()).await.unwrap();
        }
        publisher.flush().await.unwrap();
        for record in 0..500_u32 {
            let came = in_time(tail.next()).await.unwrap().unwrap();
            assert_eq!((came.offset.0, &came.payload[..]), (record.into(), &record.to_le_bytes()[..]));
        }
        drop((tail, publisher));
        client.close().await;
    }
    node.stop().await;
}
