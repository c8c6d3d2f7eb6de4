//! Behaviour that only QUIC has: several channels, windows, several sockets on a port.

use std::time::Duration;

use thalweg_transport::{Channel, Connection, Dialer, Kind, Listener, Outbox, UNTRUSTED_WINDOW_BYTES};
use tokio::time::timeout;

use crate::common::*;

/// Opens a channel and accepts it on the other side.
async fn another(client: &Connection, server: &Connection) -> (Channel, Channel) {
    soon(async {
        let mut opened = client.open().await.unwrap().unwrap();
        send(&mut opened, b"?").await.unwrap();
        let mut accepted = server.accept().await.unwrap().unwrap();
        assert_eq!(read_up_to(&mut accepted, 1).await.unwrap(), b"?");
        (opened, accepted)
    })
    .await
}

#[tokio::test]
async fn before_it_is_known_a_peer_has_one_channel() {
    let Pair { client: (client, _first), server: (server, _accepted), .. } = pair(Kind::Quic).await;
    let second = client.open();
    let mut second = std::pin::pin!(second);
    // A permitted channel would open within a round trip, which takes microseconds here.
    assert!(timeout(Duration::from_millis(200), &mut second).await.is_err(), "a second channel before it is permitted");
    server.permit(4);
    soon(second).await.unwrap().unwrap();
}

#[tokio::test]
async fn before_it_is_known_a_peer_has_little_in_flight() {
    let Pair { client: (_client, mut channel), server: (server, mut accepted), .. } = pair(Kind::Quic).await;
    let mut outbox = Outbox::new();
    outbox.buffer().resize(4 * 1024 * 1024, 1);
    let len = outbox.len();
    let mut writing = std::pin::pin!(write_all(&mut channel, &mut outbox));
    // The client's QUIC endpoint soon holds all bytes. Only as many as the window permits are in flight,
    // because the server does not read.
    let _ = timeout(Duration::from_millis(200), &mut writing).await;
    let mut read = bytes::BytesMut::with_capacity(len);
    let first = soon(read_some(&mut accepted, &mut read)).await.unwrap();
    assert!(first < UNTRUSTED_WINDOW_BYTES as usize, "{first} bytes came before the peer was known");
    server.permit(1);
    let rest = soon(async {
        tokio::join!(read_up_to(&mut accepted, len - first), async {
            let _ = writing.await;
        })
        .0
    })
    .await;
    assert_eq!(rest.unwrap().len(), len - first);
}

#[tokio::test]
async fn a_channel_that_is_not_read_holds_up_no_other() {
    let Pair { client: (client, mut stuck), server: (server, _not_read), .. } = pair(Kind::Quic).await;
    server.permit(8);
    let (mut channel, mut accepted) = another(&client, &server).await;
    let mut outbox = Outbox::new();
    outbox.buffer().resize(64 * 1024 * 1024, 1);
    // The window of a stream is half of the connection's.
    assert!(timeout(Duration::from_millis(300), write_all(&mut stuck, &mut outbox)).await.is_err());
    send(&mut channel, b"goes through").await.unwrap();
    assert_eq!(soon(read_up_to(&mut accepted, 12)).await.unwrap(), b"goes through");
}

#[tokio::test]
async fn an_end_is_told_to_who_waits_for_channels() {
    let Pair { client: (client, channel), server: (server, accepted), .. } = pair(Kind::Quic).await;
    client.close();
    assert!(soon(server.accept()).await.unwrap().is_none());
    soon(server.closed()).await;
    soon(client.closed()).await;
    assert!(soon(client.accept()).await.unwrap().is_none());
    drop((channel, accepted));
}

#[tokio::test]
async fn what_was_closed_before_the_connection_has_arrived() {
    let Pair { client: (client, mut channel), server: (server, mut accepted), .. } = pair(Kind::Quic).await;
    server.permit(1);
    let sending = async {
        send(&mut channel, &[9; 200_000]).await.unwrap();
        close(&mut channel).await.unwrap();
        client.close();
        drop((client, channel));
    };
    let ((), read) = soon(async { tokio::join!(sending, read_up_to(&mut accepted, 200_000)) }).await;
    assert_eq!(read.unwrap().len(), 200_000);
}

#[tokio::test]
async fn many_connections_over_several_sockets_all_reach_theirs() {
    let listener = Listener::bind(any_port(), options(Kind::Quic)).await.unwrap();
    let dialer = Dialer::new();
    let mut all = Vec::new();
    for _ in 0..60 {
        all.push(connect(&listener, &dialer, Kind::Quic).await);
    }
    for (at, (client, server)) in all.iter_mut().enumerate() {
        let text = format!("connection {at}");
        send(&mut client.1, text.as_bytes()).await.unwrap();
        assert_eq!(soon(read_up_to(&mut server.1, text.len())).await.unwrap(), text.as_bytes());
        send(&mut server.1, text.as_bytes()).await.unwrap();
        assert_eq!(soon(read_up_to(&mut client.1, text.len())).await.unwrap(), text.as_bytes());
    }
    let by_socket = listener.accepted_by_socket();
    assert!(by_socket.len() == 2 && by_socket.iter().all(|accepted| *accepted > 0), "{by_socket:?}");
    assert_eq!(by_socket.iter().sum::<u64>(), 60);
    let stopped = listener.stop();
    drop(all);
    soon(stopped.wait_idle()).await;
}

#[tokio::test]
async fn a_listener_that_is_gone_refuses_and_leaves_what_is_there() {
    let Pair { listener, client: (_client, mut channel), server: (_server, mut accepted) } = pair(Kind::Quic).await;
    let address = listener.local_addr();
    drop(listener);
    send(&mut channel, b"still here").await.unwrap();
    assert_eq!(soon(read_up_to(&mut accepted, 10)).await.unwrap(), b"still here");
    let dialer = Dialer::new().connect_timeout(Duration::from_millis(500));
    soon(dialer.dial(&endpoint(Kind::Quic, address))).await.unwrap_err();
}

#[tokio::test]
async fn a_client_that_must_prove_its_address_comes_again() {
    let listener = Listener::bind(any_port(), options(Kind::Quic)).await.unwrap();
    let dialer = Dialer::new();
    let endpoint = endpoint(Kind::Quic, listener.local_addr());
    let accepting = async {
        let mut sent_away = 0;
        loop {
            match listener.accept().await.unwrap().validate_address() {
                Some(incoming) => return (sent_away, incoming.establish().await.unwrap()),
                None => sent_away += 1,
            }
        }
    };
    let dialling = async {
        let (connection, mut channel) = dialer.dial(&endpoint).await.unwrap();
        send(&mut channel, b"!").await.unwrap();
        (connection, channel)
    };
    let (_client, (sent_away, _server)) = soon(async { tokio::join!(dialling, accepting) }).await;
    assert_eq!(sent_away, 1);
}

#[tokio::test]
async fn garbage_datagrams_do_no_harm() {
    let listener = Listener::bind(any_port(), options(Kind::Quic)).await.unwrap();
    let seed = 0x5eed_0003_u64;
    eprintln!("seed {seed:#x}");
    let socket = tokio::net::UdpSocket::bind(any_port()).await.unwrap();
    let mut state = seed;
    for len in 0..1400 {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        socket.send_to(&bytes, listener.local_addr()).await.unwrap();
    }
    connect(&listener, &Dialer::new(), Kind::Quic).await;
}
