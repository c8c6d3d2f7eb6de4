//! Guarantees of a channel over every transport.

use std::io::ErrorKind;

use bytes::{Bytes, BytesMut};
use thalweg_transport::{Kind, Outbox};

use crate::common::*;

macro_rules! for_each_kind {
    ($($name:ident)*) => {
        mod tcp { $(#[tokio::test] async fn $name() { super::$name(super::Kind::Tcp).await; })* }
        mod tls { $(#[tokio::test] async fn $name() { super::$name(super::Kind::Tls).await; })* }
        mod quic { $(#[tokio::test] async fn $name() { super::$name(super::Kind::Quic).await; })* }
    };
}

for_each_kind! {
    both_sides_say_what_carries_it_and_who_is_there
    bytes_arrive_in_order_each_way
    a_peer_that_does_not_read_holds_up_writing_and_nothing_is_lost
    one_side_ends_and_the_other_goes_on
    a_read_takes_no_more_than_there_is_room_for
    writing_to_one_who_is_gone_is_an_error
    nothing_to_write_is_written_at_once
}

async fn both_sides_say_what_carries_it_and_who_is_there(kind: Kind) {
    let pair = pair(kind).await;
    for (connection, channel) in [&pair.client, &pair.server] {
        assert_eq!((connection.kind(), channel.kind()), (kind, kind));
        assert_eq!(connection.is_multiplexed(), kind == Kind::Quic);
        assert_eq!(connection.peer(), channel.peer());
    }
    assert_eq!(pair.client.1.peer(), pair.listener.local_addr());
    if kind != Kind::Quic {
        assert!(pair.client.0.open().await.unwrap().is_none() && pair.server.0.accept().await.unwrap().is_none());
    }
}

async fn bytes_arrive_in_order_each_way(kind: Kind) {
    let Pair { client: (_client, mut client), server: (_server, mut server), .. } = pair(kind).await;
    let mut outbox = Outbox::new();
    let sent = mixed(&mut outbox, 500);
    let both = async { tokio::join!(write_all(&mut client, &mut outbox), read_up_to(&mut server, sent.len())) };
    assert!(soon(both).await.1.unwrap() == sent);
    send(&mut server, b"and back").await.unwrap();
    assert_eq!(soon(read_up_to(&mut client, 8)).await.unwrap(), b"and back");
}

async fn a_peer_that_does_not_read_holds_up_writing_and_nothing_is_lost(kind: Kind) {
    let Pair { client: (_client, mut client), server: (connection, mut server), .. } = pair(kind).await;
    connection.permit(1);
    let mut outbox = Outbox::new();
    let mut sent = mixed(&mut outbox, 10_000);
    fill(&mut client, &mut outbox).await.unwrap();
    let waiting = outbox.len();
    assert!(waiting > 0 && waiting < sent.len());
    // Bytes appended while the channel is blocked stay behind the queued ones.
    sent.extend(mixed(&mut outbox, 100));
    let both = async { tokio::join!(write_all(&mut client, &mut outbox), read_up_to(&mut server, sent.len())) };
    assert!(soon(both).await.1.unwrap() == sent);
}

async fn one_side_ends_and_the_other_goes_on(kind: Kind) {
    let Pair { client: (_client, mut client), server: (_server, mut server), .. } = pair(kind).await;
    send(&mut client, b"the last").await.unwrap();
    let (closed, read) = soon(async { tokio::join!(close(&mut client), read_all(&mut server)) }).await;
    assert_eq!((closed.unwrap(), read.unwrap()), ((), b"the last".to_vec()));
    send(&mut server, b"the answer").await.unwrap();
    let (closed, read) = soon(async { tokio::join!(close(&mut server), read_all(&mut client)) }).await;
    assert_eq!((closed.unwrap(), read.unwrap()), ((), b"the answer".to_vec()));
    let mut read = BytesMut::with_capacity(16);
    assert_eq!(read_some(&mut client, &mut read).await.unwrap(), 0, "the end stays the end");
    soon(close(&mut client)).await.expect("closed stays closed");
}

async fn a_read_takes_no_more_than_there_is_room_for(kind: Kind) {
    let Pair { client: (_client, mut client), server: (_server, mut server), .. } = pair(kind).await;
    send(&mut client, &[5; 1000]).await.unwrap();
    let mut read = BytesMut::with_capacity(100);
    let room = read.capacity();
    assert!(soon(read_some(&mut server, &mut read)).await.unwrap() <= room);
    assert!(!read.is_empty() && read.len() <= room && read.capacity() == room);
}

async fn writing_to_one_who_is_gone_is_an_error(kind: Kind) {
    let Pair { client: (_client, mut client), server, .. } = pair(kind).await;
    drop(server);
    let gone = soon(async {
        loop {
            if let Err(error) = send(&mut client, &[0; 4096]).await {
                return error;
            }
        }
    });
    let error = gone.await;
    let expected = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::NotConnected];
    assert!(expected.contains(&error.kind()), "{error:?}");
}

async fn nothing_to_write_is_written_at_once(kind: Kind) {
    let Pair { client: (_connection, mut client), .. } = pair(kind).await;
    let mut outbox = Outbox::new();
    let written = soon(std::future::poll_fn(|cx| client.poll_write(cx, &mut outbox))).await;
    assert_eq!(written.unwrap(), 0);
}

#[tokio::test]
async fn small_frames_and_shared_ones_leave_in_one_write() {
    let Pair { client: (_client, mut client), server: (_server, mut server), .. } = pair(Kind::Tcp).await;
    let mut outbox = Outbox::new();
    for _ in 0..8 {
        outbox.buffer().extend_from_slice(b"prefix");
        outbox.share(Bytes::from(vec![1; 2048]));
    }
    let len = outbox.len();
    assert_eq!(write_all(&mut client, &mut outbox).await.unwrap(), 1);
    assert_eq!(soon(read_up_to(&mut server, len)).await.unwrap().len(), len);
}
