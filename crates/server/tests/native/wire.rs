//! Bytes on the wire: garbage, pipelines, HTTP/2.

use std::time::{Duration, SystemTime};

use thalweg_server::config::Span;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::support::{Node, PATIENCE, holds};

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
    fn bytes(&mut self, max: usize) -> Vec<u8> {
        (0..self.below(max)).map(|_| self.next() as u8).collect()
    }
}

/// Returns bytes that resemble requests more or less.
fn junk(dice: &mut Dice) -> Vec<u8> {
    let methods = ["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "BREW", "", "PRI"];
    let targets = [
        "/v1/kv/a/%",
        "/v1/kv/a/k",
        "/v1/kv/%00/%ff",
        "/v1/kv/a?limit=x&%",
        "/v1/streams/s/records?from=%31",
        "*",
        "//",
        "/v0/entity?id=%zz",
        "/keys/%25",
        "http://x/health",
        "/v1/commit",
        "/metrics",
        "/\u{e9}",
    ];
    let headers = [
        "content-length: 5\r\n",
        "content-length: -1\r\n",
        "content-length: 99999999999999999999\r\n",
        "x: \0\r\n",
        "transfer-encoding: chunked\r\n",
        "thalweg-durability: \u{1}\r\n",
        "if-match: \"\r\n",
        "accept: ;q=\r\n",
        "last-event-id: \u{ff}\r\n",
        "content-type: application/json\r\n",
        ": \r\n",
        "x-request-id: \u{80}\r\n",
    ];
    match dice.below(4) {
        0 => dice.bytes(300),
        _ => {
            let mut out =
                format!("{} {} HTTP/1.1\r\n", methods[dice.below(methods.len())], targets[dice.below(targets.len())]);
            for _ in 0..dice.below(5) {
                out.push_str(headers[dice.below(headers.len())]);
            }
            let mut out = out.into_bytes();
            if dice.below(4) > 0 {
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(&dice.bytes(40));
            }
            if dice.below(6) == 0 && !out.is_empty() {
                let at = dice.below(out.len());
                out[at] = dice.next() as u8;
            }
            out
        }
    }
}

#[tokio::test]
async fn garbage_is_answered_or_dropped_and_the_server_lives() {
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    let node = Node::with(|config| config.body_timeout = Span(Duration::from_millis(20))).await;
    let mut dice = Dice(seed);
    for round in 0..300 {
        let mut client = node.connect().await;
        for _ in 0..=dice.below(3) {
            let _ = client.stream.write_all(&junk(&mut dice)).await;
        }
        let _ = client.stream.shutdown().await;
        let answer = client.closed().await;
        let sound = answer.is_empty() || answer.starts_with(b"HTTP/1.1 ") || answer.starts_with(&[0, 0]);
        assert!(sound, "seed {seed} round {round}: {:?}", String::from_utf8_lossy(&answer));
        assert!(!answer.windows(12).any(|part| part == b"HTTP/1.1 500"), "seed {seed} round {round}");
    }
    node.put("/v1/kv/a/k", b"still here").await.is(204);
    node.stop().await;
}

#[tokio::test]
async fn heads_and_targets_are_bounded() {
    let node = Node::start().await;
    let long = "x".repeat(200_000);
    for (request, statuses) in [
        (format!("GET /health HTTP/1.1\r\nhost: t\r\nx: {long}\r\n\r\n"), ["431", "400"]),
        (format!("GET /v1/kv/a/{long} HTTP/1.1\r\nhost: t\r\n\r\n"), ["414", "431"]),
        (format!("GET /health HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(1000)), ["431", "400"]),
    ] {
        let mut client = node.connect().await;
        let _ = client.stream.write_all(request.as_bytes()).await;
        let answer = String::from_utf8(client.closed().await).unwrap();
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(statuses.contains(&status), "{:?}: {answer:?}", &request[..40]);
    }
    let key = "k".repeat(20_000);
    node.put(&format!("/v1/kv/a/{key}"), b"v").await.is(204);
    assert_eq!(node.get(&format!("/v1/kv/a/{key}")).await.is(200).body, b"v");
    node.stop().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    let mut requests = Vec::new();
    for at in 0..100 {
        let body = at.to_string();
        let put = format!("PUT /v1/kv/p/k HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        requests.extend_from_slice(put.as_bytes());
        requests.extend_from_slice(b"GET /v1/kv/p/k HTTP/1.1\r\nhost: t\r\n\r\n");
    }
    client.raw(&requests).await;
    for at in 0..100 {
        client.reply("PUT").await.is(204);
        assert_eq!(client.reply("GET").await.is(200).body, at.to_string().as_bytes());
    }
    node.stop().await;
}

#[tokio::test]
async fn the_reply_before_garbage_is_not_lost() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    client.raw(b"PUT /v1/kv/p/k HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\n1garbage\r\n\r\n").await;
    client.reply("PUT").await.is(204);
    client.reply("GET").await.is(400);
    node.stop().await;
}

#[tokio::test]
async fn http2_is_spoken_on_the_same_port() {
    let node = Node::start().await;
    let stream = TcpStream::connect(node.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let request = |method: &str, path: &str| {
        http::Request::builder().method(method).uri(format!("http://t{path}")).body(()).unwrap()
    };
    let (put, mut body) = client.send_request(request("PUT", "/v1/kv/a/k%2F"), false).unwrap();
    body.send_data("over h2".into(), true).unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, put).await.unwrap().unwrap().status(), 204);
    let (got, _) = client.send_request(request("GET", "/v1/kv/a/k%2F"), true).unwrap();
    let mut got = got.await.unwrap();
    assert_eq!(got.status(), 200);
    holds(got.headers()["thalweg-durability"].to_str().unwrap(), "disk");
    assert_eq!(got.body_mut().data().await.unwrap().unwrap(), "over h2");
    drop(client);
    node.stop().await;
    let _ = driver.await;
}
