//! The cost of idle native connections.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use thalweg_transport::Kind;
use thalweg_wire::{Frame as _, handshake::hello};

use crate::{
    ALONE,
    clients::{Clients, be_the_clients, raise_file_limit, resident_bytes},
    support::Node,
};

#[test]
#[ignore = "the tests below start it as a process: \
            cargo test -p thalweg-server --test alone native_idle"]
fn clients() {
    let mut frame = Vec::new();
    hello("idle", 1 << 20, Duration::ZERO, &[]).encode(&mut frame, 0).unwrap();
    be_the_clients(|address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&frame).unwrap();
        let mut header = [0; 12];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header[4..6], (thalweg_wire::Kind::Welcome as u16).to_le_bytes(), "welcome");
        stream
    });
}

async fn idle_connections(count: usize) {
    let _alone = ALONE.lock().await;
    raise_file_limit(count as u64 + 200);
    let node =
        Node::with(|config| (config.max_connections, config.share_reserve_percent) = (count as u32 + 10, 0)).await;
    node.carried(Kind::Tcp).await.is_served().await;
    let before = resident_bytes();
    let clients = tokio::task::block_in_place(|| Clients::start("native_idle::clients", node.native.unwrap(), count));
    let each = resident_bytes().saturating_sub(before) / count;
    eprintln!("{count} idle connections over TCP: {each} bytes of the server each");
    assert!(each < 32 * 1024, "{each} bytes for an idle connection");
    // A new client is served in addition to the idle ones.
    node.carried(Kind::Tcp).await.is_served().await;
    drop(clients);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_cost_little() {
    idle_connections(500).await;
}

/// Run with `cargo test -p thalweg-server --test alone native_idle::ten_thousand -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs 10,200 file descriptors in each of two processes: \
            cargo test -p thalweg-server --test alone native_idle::ten_thousand -- --ignored --nocapture"]
async fn ten_thousand_idle_connections() {
    idle_connections(10_000).await;
}
