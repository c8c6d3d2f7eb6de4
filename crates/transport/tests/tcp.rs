//! Channels over TCP.

mod common;

use bytes::{Bytes, BytesMut};
use common::*;
use thalweg_transport::{Channel, DialError, Dialer, Endpoint, Kind, ListenError, ListenOptions, Listener, Outbox};
use thalweg_types::Classified as _;

async fn pair() -> (Channel, Channel) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
    let dialer = Dialer::new();
    let endpoint = Endpoint::tcp(listener.local_addr().to_string());
    let (dialled, accepted) =
        tokio::join!(dialer.dial(&endpoint), async { listener.accept().await.unwrap().establish().await.unwrap() });
    let (connection, client) = dialled.unwrap();
    assert!(!connection.is_multiplexed() && connection.kind() == Kind::Tcp);
    assert!(connection.open().await.unwrap().is_none() && connection.accept().await.unwrap().is_none());
    assert_eq!(client.peer(), listener.local_addr());
    assert_eq!(accepted.1.kind(), Kind::Tcp);
    (client, accepted.1)
}

#[tokio::test]
async fn bytes_arrive_in_order_each_way() {
    let (mut client, mut server) = pair().await;
    let mut outbox = Outbox::new();
    let sent = mixed(&mut outbox, 500);
    let (_, received) =
        soon(async { tokio::join!(write_all(&mut client, &mut outbox), read_up_to(&mut server, sent.len())) }).await;
    assert!(received.unwrap() == sent);
    send(&mut server, b"and back").await.unwrap();
    assert_eq!(soon(read_up_to(&mut client, 8)).await.unwrap(), b"and back");
}

#[tokio::test]
async fn small_frames_and_shared_ones_leave_in_one_write() {
    let (mut client, mut server) = pair().await;
    let mut outbox = Outbox::new();
    for _ in 0..8 {
        outbox.buffer().extend_from_slice(b"prefix");
        outbox.share(Bytes::from(vec![1; 2048]));
    }
    let len = outbox.len();
    assert_eq!(write_all(&mut client, &mut outbox).await.unwrap(), 1);
    assert_eq!(soon(read_up_to(&mut server, len)).await.unwrap().len(), len);
}

#[tokio::test]
async fn a_peer_that_does_not_read_holds_up_writing_and_nothing_is_lost() {
    let (mut client, mut server) = pair().await;
    let mut outbox = Outbox::new();
    let sent = mixed(&mut outbox, 10_000);
    fill(&mut client, &mut outbox).await.unwrap();
    let waiting = outbox.len();
    assert!(waiting > 0 && waiting < sent.len());
    let (_, received) =
        soon(async { tokio::join!(write_all(&mut client, &mut outbox), read_up_to(&mut server, sent.len())) }).await;
    assert!(received.unwrap() == sent);
}

#[tokio::test]
async fn one_side_ends_and_the_other_goes_on() {
    let (mut client, mut server) = pair().await;
    send(&mut client, b"the last").await.unwrap();
    close(&mut client).await.unwrap();
    assert_eq!(soon(read_all(&mut server)).await.unwrap(), b"the last");
    send(&mut server, b"the answer").await.unwrap();
    close(&mut server).await.unwrap();
    assert_eq!(soon(read_all(&mut client)).await.unwrap(), b"the answer");
    let mut read = BytesMut::with_capacity(16);
    assert_eq!(read_some(&mut client, &mut read).await.unwrap(), 0, "the end stays the end");
}

#[tokio::test]
async fn a_read_takes_no_more_than_there_is_room_for() {
    let (mut client, mut server) = pair().await;
    send(&mut client, &[5; 1000]).await.unwrap();
    let mut read = BytesMut::with_capacity(100);
    let room = read.capacity();
    assert!(soon(read_some(&mut server, &mut read)).await.unwrap() <= room);
    assert!(read.len() <= room && read.capacity() == room);
}

#[tokio::test]
async fn writing_to_one_who_is_gone_is_an_error() {
    let (mut client, server) = pair().await;
    drop(server);
    let gone = soon(async {
        loop {
            if let Err(error) = send(&mut client, &[0; 4096]).await {
                return error;
            }
        }
    });
    let kind = gone.await.kind();
    assert!(matches!(kind, std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset), "{kind}");
}

#[tokio::test]
async fn an_address_in_use_and_one_without_a_server_are_told_apart() {
    let first = Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
    let address = first.local_addr();
    let error = Listener::bind(address, ListenOptions::default()).await.unwrap_err();
    assert!(matches!(error, ListenError::Bind { .. }) && error.code() == "bind");
    drop(first);
    let dialer = Dialer::new();
    let error = dialer.dial(&Endpoint::tcp(address.to_string())).await.unwrap_err();
    assert!(matches!(error, DialError::Connect { .. }), "{error}");
    let error = dialer.dial(&Endpoint::tcp("without-a-port")).await.unwrap_err();
    assert_eq!(error.code(), "unknown_address");
}
