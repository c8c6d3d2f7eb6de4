//! The batching publisher of subjects: the times at which batches go out, acks, and errors.

use std::time::{Duration, Instant};

use thalweg_client::{Acks, Checksum, Effect, Error, Options, Publisher, PublisherOptions};
use thalweg_types::{Action, Classified, record::Record};
use thalweg_wire::{Batch, ClientFrame, Ping, Pong, Published, session::SessionFull};

use crate::peer::{Peer, Server, connected, quick};

const LONG: Duration = Duration::from_secs(3600);

/// Returns the id, the subject and the payloads of the next publish.
async fn batch(peer: &mut Peer) -> (u32, Vec<u8>, Vec<Vec<u8>>) {
    let (id, (subject, payloads)) = peer
        .request(|envelope| match &envelope.frame {
            ClientFrame::Publish(publish) => {
                let bytes = publish.batches.iter().next().unwrap();
                let batch = Batch::decode(bytes).unwrap();
                batch.check().unwrap();
                batch.check_crc().unwrap();
                let payloads = batch.messages().map(|message| message.unwrap().payload.to_vec());
                (batch.subject().to_vec(), payloads.collect::<Vec<_>>())
            }
            other => panic!("{other:?}"),
        })
        .await;
    (id, subject, payloads)
}

/// Answers the next ping.
async fn pong(peer: &mut Peer) {
    let (_, token) = peer
        .request(|envelope| match &envelope.frame {
            ClientFrame::Ping(Ping { token }) => *token,
            other => panic!("{other:?}"),
        })
        .await;
    peer.send(0, &Pong { token }).await;
}

async fn publish_numbers(publisher: &Publisher, numbers: std::ops::Range<u32>) {
    for number in numbers {
        publisher.publish(number.to_string().as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn the_first_goes_at_once_and_the_rest_when_the_batch_is_full() {
    let (_server, client, mut peer) = connected().await;
    let options = PublisherOptions { max_messages: 4, delay: LONG, ..PublisherOptions::default() };
    let publisher = client.publisher("a.b", options).unwrap();
    publish_numbers(&publisher, 0..10).await;
    let (id, subject, first) = batch(&mut peer).await;
    assert_eq!((id, &subject[..], first.len()), (0, &b"a.b"[..], 1), "nothing to wait for");
    for full in [1..5_u32, 5..9] {
        let (_, _, payloads) = batch(&mut peer).await;
        let wanted: Vec<_> = full.map(|number| number.to_string().into_bytes()).collect();
        assert_eq!(payloads, wanted);
    }
    // The last message waits for others, or for a flush.
    let nothing = tokio::time::timeout(Duration::from_millis(20), peer.next()).await;
    assert!(nothing.is_err());
    let flushing = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.flush().await }
    });
    assert_eq!(batch(&mut peer).await.2, [b"9"]);
    pong(&mut peer).await;
    flushing.await.unwrap().unwrap();
}

#[tokio::test]
async fn no_message_waits_longer_than_the_delay() {
    let (_server, client, mut peer) = connected().await;
    let delay = Duration::from_millis(3);
    let options = PublisherOptions { max_messages: 1000, delay, ..PublisherOptions::default() };
    let publisher = client.publisher("s", options).unwrap();
    // A machine that stands still between two messages finds the delay over, so there are several attempts.
    for attempt in 0.. {
        assert!(attempt < 100, "the messages of the meantime do not go together");
        let began = Instant::now();
        publish_numbers(&publisher, 0..3).await;
        let mut came = Vec::<usize>::new();
        while came.iter().sum::<usize>() < 3 {
            came.push(batch(&mut peer).await.2.len());
        }
        let took = began.elapsed();
        if came == [1, 2] {
            assert!(took >= delay, "after the delay, because a batch had just gone out: {took:?}");
            break;
        }
        tokio::time::sleep(delay * 2).await;
    }
}

#[tokio::test]
async fn bytes_fill_a_batch_too_and_other_subjects_end_it() {
    let (_server, client, mut peer) = connected().await;
    let options =
        PublisherOptions { max_bytes: 3000, delay: LONG, checksum: Checksum::Crc32c, ..PublisherOptions::default() };
    let publisher = client.publisher("s", options).unwrap();
    publisher.publish(b"first").await.unwrap();
    assert_eq!(batch(&mut peer).await.2.len(), 1);
    for _ in 0..3 {
        publisher.publish(&[1; 1000]).await.unwrap();
    }
    assert_eq!(batch(&mut peer).await.2.len(), 3);
    // A message that is larger than a batch goes alone.
    publisher.publish(&[2; 100_000]).await.unwrap();
    assert_eq!(batch(&mut peer).await.2, [[2; 100_000]]);
    publisher.publish(b"of s").await.unwrap();
    publisher.publish_to(b"t", b"of t").await.unwrap();
    assert_eq!(batch(&mut peer).await, (0, b"s".to_vec(), vec![b"of s".to_vec()]));
    publisher.publish_record(&Record { key: Some(b"k"), payload: b"of s", ..Record::default() }).await.unwrap();
    assert_eq!(batch(&mut peer).await, (0, b"t".to_vec(), vec![b"of t".to_vec()]));
    drop(publisher);
    assert_eq!(batch(&mut peer).await, (0, b"s".to_vec(), vec![b"of s".to_vec()]), "gathered messages are not lost");
    // The publisher rejects a message above all limits, and accepts the next one.
    let publisher = client.publisher("s", options).unwrap();
    let error = publisher.publish(&vec![0; 9 << 20]).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    publisher.publish(b"fine").await.unwrap();
    assert_eq!(batch(&mut peer).await.2, [b"fine"]);
}

#[tokio::test]
async fn acks_bound_what_is_on_the_way_and_errors_are_told_once() {
    let (_server, client, mut peer) = connected().await;
    let acks = Acks::PerBatch { max_in_flight: 2 };
    let options = PublisherOptions { max_messages: 1, delay: LONG, acks, ..PublisherOptions::default() };
    let publisher = client.publisher("s", options).unwrap();
    let publishing = tokio::spawn({
        let publisher = publisher.clone();
        async move { publish_numbers(&publisher, 0..5).await }
    });
    let (first, ..) = batch(&mut peer).await;
    let (second, ..) = batch(&mut peer).await;
    assert!(first != 0 && second != 0);
    let nothing = tokio::time::timeout(Duration::from_millis(20), peer.next()).await;
    assert!(nothing.is_err(), "two are in flight");
    for id in [first, second] {
        peer.send(id, &Published { delivered: 3, missed: 1 }).await;
        let (next, ..) = batch(&mut peer).await;
        peer.send(next, &Published { delivered: 3, missed: 0 }).await;
    }
    publishing.await.unwrap();
    let flushing = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.flush().await }
    });
    let (last, ..) = batch(&mut peer).await;
    peer.fail(last, &SessionFull::Requests { limit: 9 }).await;
    let error = flushing.await.unwrap().unwrap_err();
    assert!(error.is("overloaded") && error.action() == Action::Retry);
    let done = publisher.flush().await.unwrap();
    assert_eq!((done.delivered, done.missed), (12, 2));
}

/// The server takes frames of at most 1 MiB, and the batch would hold more than one message.
#[tokio::test]
async fn a_first_message_that_cannot_be_sent_is_an_error_and_the_next_one_is_sent() {
    let (_server, client, mut peer) = connected().await;
    for acks in [Acks::None, Acks::PerBatch { max_in_flight: 2 }] {
        let options = PublisherOptions { max_bytes: 4 << 20, delay: LONG, acks, ..PublisherOptions::default() };
        let publisher = client.publisher("s", options).unwrap();
        let error = publisher.publish(&vec![0; 2 << 20]).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        publisher.publish(b"fine").await.unwrap();
        assert_eq!(batch(&mut peer).await.2, [b"fine"]);
    }
}

#[tokio::test]
async fn a_publisher_waits_while_the_channel_has_no_request_left() {
    let server = Server { max_requests: 2, ..Server::new().await };
    let (client, mut peer) = server.connected(quick()).await;
    let acks = Acks::PerBatch { max_in_flight: 10 };
    let options = PublisherOptions { max_messages: 1, delay: LONG, acks, ..PublisherOptions::default() };
    let publisher = client.publisher("s", options).unwrap();
    let publishing = tokio::spawn({
        let publisher = publisher.clone();
        async move { publish_numbers(&publisher, 0..6).await }
    });
    let answer = Published { delivered: 1, missed: 0 };
    let mut open = vec![batch(&mut peer).await.0, batch(&mut peer).await.0];
    for _ in 0..3 {
        let nothing = tokio::time::timeout(Duration::from_millis(5), peer.next()).await;
        assert!(nothing.is_err(), "two are in progress");
        peer.send(open.remove(0), &answer).await;
        open.push(batch(&mut peer).await.0);
    }
    publishing.await.unwrap();
    // The last message waits in the publisher.
    let flushing = tokio::spawn(async move { publisher.flush().await });
    peer.send(open.remove(0), &answer).await;
    open.push(batch(&mut peer).await.0);
    for id in open {
        peer.send(id, &answer).await;
    }
    assert_eq!(flushing.await.unwrap().unwrap().delivered, 6);
}

#[tokio::test]
async fn a_publisher_waits_while_the_socket_takes_nothing() {
    let server = Server::new().await;
    let options = Options { max_unsent_bytes: 128 * 1024, timeout: Some(Duration::from_millis(300)), ..quick() };
    let (client, mut peer) = server.connected(options).await;
    let publisher = client.publisher("s", PublisherOptions::default()).unwrap();
    let mut published = 0_u64;
    let error = loop {
        match publisher.publish(&[3; 10_000]).await {
            Ok(()) => published += 1,
            Err(error) => break error,
        }
        assert!(published < 100_000, "backpressure must stop the publisher");
    };
    assert!(matches!(error, Error::TimedOut { effect: Effect::Nothing, .. }), "{error}");
    let (counted, arrived) = tokio::sync::oneshot::channel();
    let reading = tokio::spawn(async move {
        let mut came = 0_u64;
        while came < published {
            came += batch(&mut peer).await.2.len() as u64;
        }
        counted.send(came).unwrap();
        while let Some(frame) = peer.next().await {
            let envelope = ClientFrame::decode(frame.raw()).unwrap();
            if let ClientFrame::Ping(Ping { token }) = &envelope.frame {
                peer.send(0, &Pong { token: *token }).await;
            }
        }
    });
    // On a machine that stands still, a flush takes longer than the client's short timeout.
    let mut attempts = 0;
    while let Err(error) = publisher.flush().await {
        attempts += 1;
        assert!(matches!(error, Error::TimedOut { .. }) && attempts < 200, "{error}");
    }
    assert_eq!(arrived.await.unwrap(), published, "everything accepted arrived exactly once");
    reading.abort();
}

/// One message fills the batch, and no later call finds it waiting.
#[tokio::test]
async fn a_full_batch_without_a_connection_is_sent_without_another_call() {
    let (server, client, peer) = connected().await;
    let options = PublisherOptions { max_messages: 1, ..PublisherOptions::default() };
    let publisher = client.publisher("s", options).unwrap();
    drop(peer);
    client.ping().await.unwrap_err();
    publisher.publish(b"lone").await.unwrap();
    let mut peer = server.accept().await;
    let sent = tokio::time::timeout(Duration::from_secs(60), batch(&mut peer)).await;
    assert_eq!(sent.expect("the publisher sends it by itself").2, [b"lone"]);
}

/// The server is alive, and a subscriber that blocks the publisher keeps it from answering.
#[tokio::test]
async fn a_flush_waits_for_acks_no_longer_than_the_timeout() {
    let (_server, client, mut peer) = connected().await;
    let acks = Acks::PerBatch { max_in_flight: 2 };
    let options = PublisherOptions { acks, ..PublisherOptions::default() };
    let publisher = client.timeout(Some(Duration::from_millis(20))).publisher("s", options).unwrap();
    publisher.publish(b"one").await.unwrap();
    let (id, ..) = batch(&mut peer).await;
    let error = publisher.flush().await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { effect: Effect::Unknown, .. }), "{error}");
    peer.send(id, &Published { delivered: 1, missed: 0 }).await;
    let done = loop {
        match publisher.flush().await {
            Ok(done) => break done,
            Err(error) => assert!(matches!(error, Error::TimedOut { .. }), "{error}"),
        }
    };
    assert_eq!(done.delivered, 1, "the ack was not lost");
}

#[tokio::test]
async fn a_flush_tells_that_a_connection_went() {
    let (server, client, mut peer) = connected().await;
    let publisher = client.publisher("s", PublisherOptions::default()).unwrap();
    publisher.publish(b"one").await.unwrap();
    batch(&mut peer).await;
    drop(peer);
    let mut peer = server.accept().await;
    let flushing = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.flush().await }
    });
    pong(&mut peer).await;
    let error = flushing.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost { effect: Effect::Unknown, .. }), "{error}");
    publisher.publish(b"two").await.unwrap();
    assert_eq!(batch(&mut peer).await.2, [b"two"]);
    let flushing = tokio::spawn(async move { publisher.flush().await });
    pong(&mut peer).await;
    flushing.await.unwrap().unwrap();
}
