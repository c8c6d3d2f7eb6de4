//! Bodies of requests that are answered before their body has arrived.

use std::time::{Duration, Instant};

use thalweg_server::config::{ByteSize, Span};

use crate::support::{Client, Node};

/// Sends a head, waits until the server has answered a request of another connection, and then sends the body.
async fn send_apart(node: &Node, client: &mut Client, head: &str, body: &[u8]) {
    client.raw(head.as_bytes()).await;
    // The server is on the same thread, so it has seen the head when it answers this.
    node.get("/health").await.is(200);
    client.raw(body).await;
}

fn head(method: &str, target: &str, length: usize) -> String {
    format!("{method} {target} HTTP/1.1\r\nhost: t\r\ncontent-length: {length}\r\n\r\n")
}

#[tokio::test]
async fn a_connection_outlives_a_request_that_was_refused_by_its_head() {
    let node = Node::start().await;
    for (method, target, status) in [
        ("PUT", "/v0/entity?id=", 400),
        ("PUT", "/v1/kv/a/k?ttl=x", 400),
        ("POST", "/v1/commit", 415),
        ("POST", "/nowhere", 404),
        ("POST", "/health", 405),
        ("POST", "/v1/caches/none/clear", 404),
    ] {
        for length in [1, 1000, 64 * 1024] {
            let mut client = node.connect().await;
            for _ in 0..3 {
                send_apart(&node, &mut client, &head(method, target, length), &vec![b'x'; length]).await;
                let refused = client.reply(method).await.is(status);
                assert_eq!(refused.headers.get("connection"), None, "{target}");
                client.call("PUT", "/v1/kv/a/k", &[], b"next").await.is(204);
            }
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn a_body_in_chunks_is_read_to_its_end_as_well() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    let chunked = "PUT /v0/entity?id= HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n";
    send_apart(&node, &mut client, chunked, b"4\r\nbody\r\n0\r\n\r\n").await;
    client.reply("PUT").await.is(400);
    client.call("GET", "/health", &[], b"").await.is(200);
    let mut endless = node.connect().await;
    let chunk = format!("{:x}\r\n{}\r\n", 8192, "x".repeat(8192));
    send_apart(&node, &mut endless, chunked, chunk.repeat(9).as_bytes()).await;
    assert_eq!(endless.reply("PUT").await.is(400).header("connection"), "close");
    assert_eq!(endless.closed().await, b"");
    node.stop().await;
}

#[tokio::test]
async fn a_connection_that_ends_after_a_refusal_says_so() {
    let node = Node::with(|config| config.max_body_bytes = ByteSize(1000)).await;
    for (target, length, status) in
        [("/v0/entity?id=", 64 * 1024 + 1, 400), ("/v0/entity?id=", 1001, 400), ("/v1/kv/a/k", 1001, 413)]
    {
        let mut client = node.connect().await;
        client.raw(head("PUT", target, length).as_bytes()).await;
        let refused = client.reply("PUT").await.is(status);
        assert_eq!(refused.header("connection"), "close", "{target} {length}");
        assert_eq!(client.closed().await, b"");
    }
    let mut client = node.connect().await;
    send_apart(&node, &mut client, &head("PUT", "/v0/entity?id=", 1000), &[b'x'; 1000]).await;
    assert_eq!(client.reply("PUT").await.is(400).headers.get("connection"), None);
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_asks_first_is_refused_without_sending_its_body() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    let expect = "PUT /v0/entity?id= HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n";
    client.raw(expect.as_bytes()).await;
    assert_eq!(client.reply("PUT").await.is(400).header("connection"), "close");
    node.stop().await;
}

#[tokio::test]
async fn a_discarded_body_that_trickles_is_not_awaited_to_the_end_of_its_time() {
    let node = Node::with(|config| config.body_timeout = Span(Duration::from_secs(18))).await;
    let mut slow = node.connect().await;
    slow.raw(head("PUT", "/v0/entity?id=", 60_000).as_bytes()).await;
    // Most of the body arrives at once, and gives no credit for later.
    slow.raw(&[b'x'; 50_000]).await;
    let begun = Instant::now();
    assert_eq!(slow.reply("PUT").await.is(400).header("connection"), "close");
    assert!(begun.elapsed() < Duration::from_secs(17), "{:?}", begun.elapsed());
    node.stop().await;
}
