//! Deliveries to many slow readers over TLS and QUIC, and the requests of others on the same thread in the meantime.
//! The server and the test share one thread, so between two steps of the test only the turns of the server's tasks run.

use thalweg_server::config::ByteSize;
use thalweg_transport::Kind;
use thalweg_wire::{Policy, ServerFrame, ShortBytes, Subscribe};

use crate::support::{Node, native::UNLIMITED};

/// Number of readers, each with [`MESSAGES`] messages of [`MESSAGE`] bytes to come.
const READERS: usize = 100;
const MESSAGES: usize = 2;
const MESSAGE: usize = 256 * 1024;
/// Largest number of bytes of bulk output while a request is answered: a few rounds of 512 KiB. All readers together
/// get fifty times as many.
const ROUNDS: f64 = 3e6;

async fn between_deliveries(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::with(|config| {
        config.native_quic_sockets = u32::from(kind == Kind::Quic);
        config.native_tls = kind == Kind::Tls;
        config.data = dir.path().to_owned();
        config.max_queued_bytes = ByteSize(1 << 30);
    })
    .await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut reader = node.carried(kind).await;
        let (pattern, queue) = (ShortBytes(b"a"), ShortBytes(b""));
        let permit = UNLIMITED;
        let policy = Policy::DropNew;
        reader.send(1, &Subscribe { policy, queue_messages: 0, queue_bytes: 0, permit, pattern, queue }).await;
        let frame = reader.next().await.expect("a reply");
        let frame = ServerFrame::decode(frame.raw()).unwrap();
        assert!(matches!(frame.frame, ServerFrame::Subscribed(_)), "{:?}", frame.frame);
        readers.push(reader);
    }
    let before = node.metric("bulk_bytes_total").await;
    for _ in 0..MESSAGES {
        node.call("POST", "/v1/subjects/a", &[], &vec![b'm'; MESSAGE]).await.is(200);
    }
    let after = node.metric("bulk_bytes_total").await;
    let most = ROUNDS * MESSAGES as f64;
    assert!(after - before < most, "{} bytes before a request was answered", after - before);
    for reader in &mut readers {
        for _ in 0..MESSAGES {
            let frame = reader.next().await.expect("a message");
            assert!(frame.header.len as usize > MESSAGE, "{:?}", frame.header);
        }
    }
    assert!(node.metric("bulk_bytes_total").await - before > (READERS * MESSAGES * MESSAGE) as f64);
    node.stop().await;
}

#[tokio::test]
async fn requests_are_answered_between_slices_of_deliveries_over_tls() {
    between_deliveries(Kind::Tls).await;
}

#[tokio::test]
async fn requests_are_answered_between_slices_of_deliveries_over_quic() {
    between_deliveries(Kind::Quic).await;
}
