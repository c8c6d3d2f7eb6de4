//! The cost of Redis clients that were served and are idle now.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::{
    ALONE,
    clients::{Clients, be_the_clients, raise_file_limit, resident_bytes},
    support::resp::{Resp, node_with},
};

/// A client as a connection pool keeps it: it has set its name, written, and read.
#[test]
#[ignore = "the tests below start it as a process: \
            cargo test -p thalweg-server --test alone redis_idle"]
fn clients() {
    let said = b"CLIENT SETNAME idle\r\nSET idle 1\r\nGET idle\r\n";
    let answer = b"+OK\r\n+OK\r\n$1\r\n1\r\n";
    be_the_clients(|address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(said).unwrap();
        let mut got = vec![0; answer.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, answer);
        stream
    });
}

async fn idle_connections(count: usize) {
    let _alone = ALONE.lock().await;
    raise_file_limit(count as u64 + 200);
    let node =
        node_with(|config| (config.max_connections, config.share_reserve_percent) = (count as u32 + 10, 0)).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET idle 0").await, "+OK");
    let before = resident_bytes();
    let clients = tokio::task::block_in_place(|| Clients::start("redis_idle::clients", node.resp.unwrap(), count));
    let each = resident_bytes().saturating_sub(before) / count;
    eprintln!("{count} idle Redis clients: {each} bytes of the server each");
    assert!(each < 32 * 1024, "{each} bytes for an idle Redis client");
    // An active client is still served, a new client, too, and the server counts all clients.
    assert_eq!(client.call("GET idle").await, "$1 1");
    assert_eq!(Resp::connect(&node).await.call("PING").await, "+PONG");
    client.until("INFO clients", &format!("connected_clients:{} ", count + 1)).await;
    drop(clients);
    client.until("INFO clients", "connected_clients:1 ").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_cost_little() {
    idle_connections(500).await;
}

/// Run with `cargo test -p thalweg-server --test alone redis_idle::ten_thousand -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs 10,200 file descriptors in each of two processes: \
            cargo test -p thalweg-server --test alone redis_idle::ten_thousand -- --ignored --nocapture"]
async fn ten_thousand_idle_clients() {
    idle_connections(10_000).await;
}
