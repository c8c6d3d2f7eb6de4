//! The native port over TCP, TLS and QUIC: how it treats unknown clients and invalid input.

use std::{net::SocketAddr, time::Duration};

use tempfile::TempDir;
use thalweg_server::{
    Server, ServerError,
    config::{ByteSize, Config, NativeAddress, PemFile, Span},
};
use thalweg_transport::{CERTIFICATE_FILE, DialError, Dialer, Identity, KEY_FILE, Kind, ListenError, looks_like_tls};
use thalweg_wire::{Reason, handshake::hello};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

use crate::support::{
    Node,
    carried::{Carried, within},
    config, small_options,
};

/// Starts a node with QUIC, and with TLS over TCP if `tls` is set.
async fn node(tls: bool, change: impl FnOnce(&mut Config)) -> (Node, TempDir) {
    let directory = TempDir::new().unwrap();
    let node = Node::with(|config| {
        config.data = directory.path().to_owned();
        config.native_quic_sockets = 2;
        config.native_tls = tls;
        change(config);
    })
    .await;
    (node, directory)
}

/// Returns random bytes that depend only on the seed.
fn garbage(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

#[tokio::test]
async fn the_protocol_is_served_over_every_carrier() {
    let (node, _directory) = node(true, |_| ()).await;
    for kind in [Kind::Tls, Kind::Quic] {
        node.carried(kind).await.is_served().await;
    }
    node.stop().await;
    let (plain, _directory) = self::node(false, |_| ()).await;
    for kind in [Kind::Tcp, Kind::Quic] {
        plain.carried(kind).await.is_served().await;
    }
    plain.stop().await;
}

#[tokio::test]
async fn the_development_certificate_outlives_the_server() {
    let directory = TempDir::new().unwrap();
    let configure = |config: &mut Config| {
        config.data = directory.path().to_owned();
        config.native_quic_sockets = 1;
    };
    let node = Node::with(configure).await;
    let first = node.fingerprint.unwrap();
    assert!(directory.path().join(CERTIFICATE_FILE).exists() && directory.path().join(KEY_FILE).exists());
    node.stop().await;
    assert_eq!(Node::with(configure).await.fingerprint, Some(first));
}

#[tokio::test]
async fn a_configured_certificate_is_served() {
    let files = TempDir::new().unwrap();
    let identity = Identity::development(files.path(), [127, 0, 0, 1].into()).unwrap();
    let (node, directory) = node(true, |config| {
        config.native_certificate = PemFile::At(files.path().join(CERTIFICATE_FILE));
        config.native_key = PemFile::At(files.path().join(KEY_FILE));
    })
    .await;
    assert_eq!(node.fingerprint, Some(identity.fingerprint()));
    assert!(!directory.path().join(KEY_FILE).exists(), "none was made");
    node.carried(Kind::Tls).await.is_served().await;
    node.stop().await;
}

#[tokio::test]
async fn a_certificate_is_read_anew_when_asked_and_kept_if_it_is_none() {
    let (files, others) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    Identity::development(files.path(), [127, 0, 0, 1].into()).unwrap();
    let next = Identity::development(others.path(), [127, 0, 0, 1].into()).unwrap().fingerprint();
    let (mut node, _directory) = node(true, |config| {
        config.native_certificate = PemFile::At(files.path().join(CERTIFICATE_FILE));
        config.native_key = PemFile::At(files.path().join(KEY_FILE));
    })
    .await;
    let certificate = node.certificate.clone().unwrap();
    let mut before = Vec::new();
    for kind in [Kind::Tls, Kind::Quic] {
        before.push(node.carried(kind).await);
    }
    let old = node.fingerprint;
    // A certificate without its key is not loaded.
    std::fs::copy(others.path().join(CERTIFICATE_FILE), files.path().join(CERTIFICATE_FILE)).unwrap();
    assert!(certificate.reload().is_err());
    node.carried(Kind::Tls).await.is_served().await;
    std::fs::copy(others.path().join(KEY_FILE), files.path().join(KEY_FILE)).unwrap();
    assert_eq!(certificate.reload().unwrap(), next);
    let expires = Identity::development(others.path(), [127, 0, 0, 1].into()).unwrap().validity().unwrap().not_after;
    assert_eq!(node.metric("native_certificate_expiry_seconds").await, expires as f64);
    for kind in [Kind::Tls, Kind::Quic] {
        node.fingerprint = old;
        assert!(node.dial_over(&Dialer::new(), kind).await.is_err(), "{kind}: the old one is gone");
        node.fingerprint = Some(next);
        node.carried(kind).await.is_served().await;
    }
    for mut connection in before {
        connection.is_served().await;
    }
    node.stop().await;
}

#[tokio::test]
async fn garbage_and_half_frames_end_their_connection_and_nothing_else() {
    let short = |config: &mut Config| config.header_timeout = Span(Duration::from_millis(300));
    for (tls, kinds) in [(false, [Kind::Tcp, Kind::Quic]), (true, [Kind::Tls, Kind::Quic])] {
        let (node, _directory) = node(tls, short).await;
        let mut hello_bytes = Vec::new();
        thalweg_wire::Frame::encode(&hello("test", 1 << 20, Duration::ZERO, &[]), &mut hello_bytes, 0).unwrap();
        for kind in kinds {
            let mut witness = node.carried(kind).await;
            for seed in 1..20 {
                eprintln!("{kind} seed {seed}");
                let mut bad = node.dial_over(&Dialer::new(), kind).await.unwrap();
                // The connection may be closed before all bytes are written.
                let _ = bad.bytes(&garbage(seed, 1 + 97 * seed as usize)).await;
                ends(&mut bad).await;
            }
            for cut in [1, 4, 11, 12, hello_bytes.len() - 1] {
                let mut half = node.dial_over(&Dialer::new(), kind).await.unwrap();
                half.bytes(&hello_bytes[..cut]).await.unwrap();
                ends(&mut half).await;
            }
            witness.is_served().await;
            // After the welcome, garbage ends the connection, too.
            let mut known = node.carried(kind).await;
            let _ = known.bytes(&garbage(77, 5000)).await;
            ends(&mut known).await;
            witness.is_served().await;
        }
        node.stop().await;
    }
}

/// Asserts that the server sends a goodbye or nothing, and closes.
async fn ends(channel: &mut Carried) {
    let mut read = bytes::BytesMut::new();
    within(async {
        loop {
            read.reserve(4096);
            match std::future::poll_fn(|cx| channel.channel.poll_read(cx, &mut read)).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    })
    .await;
}

#[test]
fn a_listener_without_a_certificate_needs_other_options_and_no_other_address() {
    let said = ServerError::NativeOptions(ListenError::NoCertificate).to_string();
    assert!(said.contains("native_certificate") && said.contains("native_tls"), "{said}");
    assert!(!said.contains("address"), "{said}");
}

#[tokio::test]
async fn a_port_after_https_that_is_taken_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let options = small_options(&config());
    let db = thalweg_engine::Database::open(dir.path(), options).unwrap();
    let error = loop {
        // Another listener has a port. If the port before it is not free, the loop tries another.
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let native = taken.local_addr().unwrap();
        let http = SocketAddr::new(native.ip(), native.port() - 1);
        let config = Config { http, native: NativeAddress::Next, ..config() };
        match Server::bind(config, &db).await {
            Err(ServerError::Bind { .. }) => {}
            Err(error) => {
                assert!(error.to_string().contains(&native.to_string()), "{error}");
                break error;
            }
            Ok(_) => panic!("{native} is taken"),
        }
    };
    assert!(matches!(error, ServerError::BindNext(_)), "{error:?}");
    let said = error.to_string();
    for part in ["port after HTTP's", "native = next", "`native`", "native = off"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[tokio::test]
async fn tls_on_a_plain_port_and_the_reverse_are_told_apart() {
    let (plain, _directory) = node(false, |_| ()).await;
    let error = plain.dial_over(&Dialer::new(), Kind::Tls).await.err().expect("no TLS there");
    assert!(matches!(error, DialError::Tls { .. }), "{error:?}");
    plain.carried(Kind::Tcp).await.is_served().await;
    plain.stop().await;

    let (tls, _directory) = node(true, |_| ()).await;
    let mut stream = TcpStream::connect(tls.native.unwrap()).await.unwrap();
    let mut frame = Vec::new();
    thalweg_wire::Frame::encode(&hello("test", 1 << 20, Duration::ZERO, &[]), &mut frame, 0).unwrap();
    stream.write_all(&frame).await.unwrap();
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await;
    assert!(looks_like_tls(&answer), "an alert, by which a client sees what is spoken here: {answer:?}");
    tls.carried(Kind::Tls).await.is_served().await;
    tls.stop().await;
}

#[tokio::test]
async fn datagrams_of_garbage_do_no_harm() {
    let (node, _directory) = node(false, |_| ()).await;
    let mut witness = node.carried(Kind::Quic).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for seed in 1..2000 {
        let mut bytes = garbage(seed, (seed as usize * 7) % 1400);
        if let Some(first) = bytes.first_mut().filter(|_| seed % 2 == 0) {
            // The first byte of an initial packet.
            *first |= 0xc0;
        }
        socket.send_to(&bytes, node.native.unwrap()).await.unwrap();
    }
    witness.is_served().await;
    node.carried(Kind::Quic).await.is_served().await;
    node.stop().await;
}

#[tokio::test]
async fn slow_handshakes_make_room_for_newer_ones_and_their_places_come_back() {
    const PLACES: u32 = 4;
    let (node, _directory) = node(false, |config| {
        config.max_handshakes = PLACES;
        config.header_timeout = Span(Duration::from_secs(2));
    })
    .await;
    let mut known = node.carried(Kind::Tcp).await;
    let dialer = Dialer::new();
    let mut silent = Vec::new();
    for _ in 0..PLACES {
        silent.push(node.dial_over(&dialer, Kind::Tcp).await.unwrap());
    }
    // Connections are accepted in order, so all slots are taken when these arrive. Each takes the oldest slot.
    let begun = std::time::Instant::now();
    let mut tcp = node.carried(Kind::Tcp).await;
    tcp.is_served().await;
    ends(&mut silent[0]).await;
    node.carried(Kind::Quic).await.is_served().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "the others were not cut for their silence");
    known.is_served().await;
    for silent in &mut silent {
        ends(silent).await;
    }
    node.carried(Kind::Tcp).await.is_served().await;
    node.carried(Kind::Quic).await.is_served().await;
    node.stop().await;
}

#[tokio::test]
async fn quic_connections_have_a_bound_of_their_own() {
    let (node, _directory) = node(false, |config| config.max_quic_connections = 2).await;
    let (mut one, mut two) = (node.carried(Kind::Quic).await, node.carried(Kind::Quic).await);
    let mut third = node.dial_over(&Dialer::new(), Kind::Quic).await.unwrap();
    third.send(0, &hello("test", 1 << 20, Duration::ZERO, &[])).await;
    assert_eq!(third.is_told_goodbye().await, Reason::Overloaded);
    node.carried(Kind::Tcp).await.is_served().await;
    one.is_served().await;
    two.is_served().await;
    drop(one);
    // The slot is free after the server has noticed the end.
    within(async {
        loop {
            let mut next = node.dial_over(&Dialer::new(), Kind::Quic).await.unwrap();
            next.send(0, &hello("test", 1 << 20, Duration::ZERO, &[])).await;
            let frame = next.next().await.expect("a welcome or a goodbye");
            if matches!(
                thalweg_wire::ServerFrame::decode(frame.raw()).unwrap().frame,
                thalweg_wire::ServerFrame::Welcome(_)
            ) {
                return;
            }
        }
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn a_connection_has_several_channels_and_each_counts() {
    let (node, _directory) = node(false, |config| config.max_connections = 3).await;
    let mut first = node.carried(Kind::Quic).await;
    let (mut second, mut third) = (first.another().await, first.another().await);
    second.is_served().await;
    third.is_served().await;
    let mut fourth = first.another().await;
    fourth.send(0, &thalweg_wire::Ping { token: 1 }).await;
    assert_eq!(fourth.is_told_goodbye().await, Reason::Overloaded);
    for channel in [&mut first, &mut second, &mut third] {
        channel.is_served().await;
    }
    node.stop().await;
}

#[tokio::test]
async fn many_quic_connections_with_several_channels_are_served() {
    let (node, _directory) = node(false, |_| ()).await;
    let dialer = Dialer::new();
    let mut all = Vec::new();
    for _ in 0..50 {
        let mut first = node.dial_over(&dialer, Kind::Quic).await.unwrap();
        first.greet().await;
        let second = first.another().await;
        all.extend([first, second]);
    }
    for channel in &mut all {
        channel.is_served().await;
    }
    node.stop().await;
}

#[tokio::test]
async fn a_stop_is_told_over_every_carrier() {
    for (tls, kind) in [(false, Kind::Tcp), (true, Kind::Tls), (false, Kind::Quic)] {
        let (mut node, _directory) = node(tls, |_| ()).await;
        let mut client = node.carried(kind).await;
        client.is_served().await;
        node.signal_stop();
        assert_eq!(client.is_told_goodbye().await, Reason::Stopping, "{kind}");
        ends(&mut client).await;
        drop(client);
        node.stopped().await.unwrap();
    }
}

#[tokio::test]
async fn small_windows_only_slow_down() {
    let (node, _directory) = node(false, |config| config.native_quic_window = ByteSize(128 << 10)).await;
    let mut client = node.carried(Kind::Quic).await;
    for _ in 0..3000 {
        client.is_served().await;
    }
    node.stop().await;
}
