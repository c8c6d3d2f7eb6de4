//! The idempotent publisher of streams against a scripted server: bounds, order, repetitions.

use std::time::Duration;

use thalweg_client::{Error, StreamPublisher, StreamPublisherOptions};
use thalweg_types::{
    Durability, Offset, Revision, StreamId,
    command::{Command, Write},
    record::Records,
};
use thalweg_wire::{Appended, ClientFrame, Committed, Created, List, ProducerOpened, session::SessionFull};

use crate::peer::{Peer, Server, quick};

const OPTIONS: StreamPublisherOptions = StreamPublisherOptions { max_records: 3, max_bytes: 1 << 20, max_in_flight: 2 };

/// Returns the id of the next append, the producer's epoch and sequence, and the payloads.
async fn append(peer: &mut Peer) -> (u32, u32, u64, Vec<String>) {
    let (id, (epoch, sequence, payloads)) = peer
        .request(|envelope| {
            let ClientFrame::Write(write) = &envelope.frame else { panic!("{:?}", envelope.frame) };
            let Command::Commit(commit) = Command::decode(write.command.0).unwrap() else { panic!("a commit") };
            let Some(Ok(Write::Append { producer, batch, .. })) = commit.writes().unwrap().next() else {
                panic!("an append")
            };
            let stamp = producer.unwrap().get();
            let payloads =
                Records::new(batch).map(|record| String::from_utf8(record.unwrap().payload.to_vec()).unwrap());
            (stamp.epoch, stamp.sequence, payloads.collect::<Vec<_>>())
        })
        .await;
    (id, epoch, sequence, payloads)
}

async fn ack(peer: &mut Peer, id: u32, first: u64, count: u32, duplicate: bool) {
    let appended = Appended { stream: StreamId(3), first: Offset(first), count };
    let (durability, revision) = (Durability::Disk, Revision(1));
    peer.send(id, &Committed { durability, duplicate, revision, appends: List::Items(&[appended]) }).await;
}

async fn publisher(server: &Server) -> (StreamPublisher, Peer) {
    let (client, mut peer) = server.connected(quick()).await;
    let begun = tokio::spawn(async move {
        let stream = client.stream("s");
        stream.create_if_missing(&Default::default()).await.unwrap();
        stream.publisher("p", OPTIONS).await.unwrap()
    });
    peer.answer(&Created { durability: Durability::Disk, created: true, id: 3 }).await;
    peer.answer(&ProducerOpened { durability: Durability::Disk, epoch: 9 }).await;
    (begun.await.unwrap(), peer)
}

async fn publish(publisher: &StreamPublisher, payload: &str) -> thalweg_client::Ack {
    publisher.publish_payload(payload.as_bytes()).await.unwrap()
}

#[tokio::test]
async fn batches_grow_while_others_are_on_the_way_and_then_who_publishes_waits() {
    let server = Server::new().await;
    let (publisher, mut peer) = publisher(&server).await;
    let a = publish(&publisher, "a").await;
    let (first, epoch, sequence, payloads) = append(&mut peer).await;
    assert_eq!((epoch, sequence, &payloads[..]), (9, 0, &["a".to_owned()][..]), "a lone record goes out immediately");
    publish(&publisher, "b").await;
    let (second, _, sequence, payloads) = append(&mut peer).await;
    assert_eq!((sequence, &payloads[..]), (1, &["b".to_owned()][..]));
    // Two batches are in flight: three records are gathered, and the next one waits.
    for payload in ["c", "d", "e"] {
        publish(&publisher, payload).await;
    }
    let waiting = tokio::time::timeout(Duration::from_millis(20), publish(&publisher, "f")).await;
    assert!(waiting.is_err(), "there is no room");
    ack(&mut peer, first, 40, 1, false).await;
    assert_eq!(a.wait().await.unwrap().first, Offset(40));
    let (third, _, sequence, payloads) = append(&mut peer).await;
    assert_eq!((sequence, payloads.concat()), (2, "cde".to_owned()));
    let f = publish(&publisher, "f").await;
    assert!(f.try_wait().is_none());
    ack(&mut peer, second, 41, 1, false).await;
    ack(&mut peer, third, 42, 3, false).await;
    let (fourth, ..) = append(&mut peer).await;
    ack(&mut peer, fourth, 45, 1, false).await;
    publisher.flush().await.unwrap();
    assert_eq!(f.try_wait().unwrap().unwrap().first, Offset(45));
}

/// The runtime of the client stops, and a caller on another one waits for an ack.
#[test]
fn callers_do_not_wait_for_a_publisher_whose_task_has_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (publisher, peer, ack) = runtime.block_on(async {
        let server = Server::new().await;
        let (publisher, mut peer) = publisher(&server).await;
        let ack = publish(&publisher, "a").await;
        append(&mut peer).await;
        (publisher, peer, ack)
    });
    assert!(ack.try_wait().is_none());
    drop(runtime);
    let outcome = ack.try_wait();
    assert!(matches!(outcome, Some(Err(Error::Closed))), "{outcome:?}");
    drop((publisher, peer));
}

#[tokio::test]
async fn what_has_to_be_sent_again_is_with_all_behind_it_in_order() {
    let server = Server::new().await;
    let (publisher, mut peer) = publisher(&server).await;
    let a = publish(&publisher, "a").await;
    let (first, ..) = append(&mut peer).await;
    let b = publish(&publisher, "b").await;
    append(&mut peer).await;
    peer.fail(first, &SessionFull::Requests { limit: 1 }).await;
    let (first, _, sequence, payloads) = append(&mut peer).await;
    assert_eq!((sequence, payloads.concat()), (0, "a".to_owned()));
    let (_, _, sequence, payloads) = append(&mut peer).await;
    assert_eq!((sequence, payloads.concat()), (1, "b".to_owned()));
    ack(&mut peer, first, 7, 1, false).await;
    assert_eq!(a.wait().await.unwrap().first, Offset(7));
    // The answer to the second batch is lost with its connection: the server detects the repetition and returns the
    // result.
    drop(peer);
    let mut peer = server.accept().await;
    let (again, epoch, sequence, payloads) = append(&mut peer).await;
    assert_eq!((epoch, sequence, payloads.concat()), (9, 1, "b".to_owned()));
    ack(&mut peer, again, 8, 1, true).await;
    let b = b.wait().await.unwrap();
    assert_eq!((b.first, b.duplicate), (Offset(8), true));
    // Records gathered when the publisher is dropped are still sent.
    publish(&publisher, "c").await;
    drop(publisher);
    let (_, _, sequence, payloads) = append(&mut peer).await;
    assert_eq!((sequence, payloads.concat()), (2, "c".to_owned()));
}
