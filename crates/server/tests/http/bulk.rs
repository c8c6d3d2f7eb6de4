//! Deliveries to many slow readers, and the requests of others on the same thread in the meantime. The server and the
//! test share one thread, so between two steps of the test only the turns of the server's tasks run.

use crate::support::{Client, Node};

/// Number of readers, each with [`MESSAGE`] bytes to come.
const READERS: usize = 100;
const MESSAGE: usize = 1 << 20;
/// Size of a long reply, which a socket takes as a whole.
const LONG: usize = 256 * 1024;
/// Largest number of bytes of bulk output while a request is answered: a few rounds of 512 KiB. All readers together
/// get ten to a hundred times as many, and their sockets take ten times as many before they are full.
const ROUNDS: f64 = 3e6;

async fn bulk_bytes(client: &mut Client) -> f64 {
    let text = String::from_utf8(client.call("GET", "/metrics", &[], b"").await.is(200).body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("thalweg_bulk_bytes_total "));
    line.expect("the counter").parse().unwrap()
}

#[tokio::test]
async fn requests_are_answered_between_slices_of_deliveries() {
    let node = Node::start().await;
    let mut other = node.connect().await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut reader = node.open("/v1/subjects/a", &[("accept", "application/x-ndjson")]).await;
        reader.chunk().await.expect("a greeting");
        readers.push(reader);
    }
    let before = bulk_bytes(&mut other).await;
    node.call("POST", "/v1/subjects/a", &[], &vec![b'm'; MESSAGE]).await.is(200);
    let after = bulk_bytes(&mut other).await;
    assert!(after - before < ROUNDS, "{} bytes before a request was answered", after - before);
    for reader in &mut readers {
        let mut lines = Vec::new();
        // A busy machine may have sent lines that only say that the connection lasts.
        while !lines.ends_with(b"\n") || lines.len() <= MESSAGE {
            lines.extend_from_slice(&reader.chunk().await.expect("the message"));
        }
    }
    assert!(bulk_bytes(&mut other).await - before > (READERS * MESSAGE) as f64);
    node.stop().await;
}

#[tokio::test]
async fn requests_are_answered_between_slices_of_long_replies() {
    let node = Node::start().await;
    let mut other = node.connect().await;
    other.call("PUT", "/v1/kv/a/long", &[], &vec![b'v'; LONG]).await.is(204);
    let before = bulk_bytes(&mut other).await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(node.connect().await);
    }
    for reader in &mut readers {
        reader.send("GET", "/v1/kv/a/long", &[], b"").await;
    }
    let after = bulk_bytes(&mut other).await;
    assert!(after - before < ROUNDS, "{} bytes before a request was answered", after - before);
    for reader in &mut readers {
        assert_eq!(reader.reply("GET").await.is(200).body.len(), LONG);
    }
    // The last 16 KiB of a reply need no turn and are not counted.
    assert!(bulk_bytes(&mut other).await - before > (READERS * LONG * 9 / 10) as f64);
    node.stop().await;
}
