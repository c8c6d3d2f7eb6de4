//! The client over TLS and QUIC against a real server. Tests over TCP cover the behaviour of a single channel.

use std::time::Duration;

use thalweg_client::{Client, ConnectError, Endpoint, Fingerprint, Options, Position, Trust};
use thalweg_types::{Action, Classified as _, record::Record};

use crate::node::{Node, options};

/// Endpoints that reach the server of `node` with TLS.
fn endpoints(node: &Node) -> [Endpoint; 2] {
    let trust = || Trust::fingerprint(node.fingerprint.expect("the server has a certificate"));
    [Endpoint::tls(node.native.to_string(), trust()), Endpoint::quic(node.native.to_string(), trust())]
}

async fn node() -> Node {
    Node::with(|config| config.native_tls = true).await
}

#[tokio::test]
async fn everything_goes_over_tls_and_quic() {
    let node = node().await;
    for (at, endpoint) in endpoints(&node).into_iter().enumerate() {
        let options = Options { connections: 2, channels: 3, ..options() };
        let client = Client::connect(endpoint, options).await.unwrap();
        let keyspace = client.keyspace(format!("keys-{at}"));
        keyspace.create_if_missing(&Default::default()).await.unwrap();
        // The reply is larger than a QUIC connection's window.
        let large = vec![9; 400 << 10];
        keyspace.put(b"large", &large).await.unwrap();
        let found = keyspace.get_many(&[&b"large"[..]; 12]).await.unwrap();
        assert!(found.len() == 12 && found.iter().all(|found| found.as_ref().unwrap().value == large));

        let stream = client.stream(format!("stream-{at}"));
        stream.create_if_missing(&Default::default()).await.unwrap();
        let mut tail = stream.tail(Position::Start {}).await.unwrap();
        let mut subscriber = client.subscribe(format!("subject.{at}.*")).await.unwrap();
        for number in 0..200_u32 {
            let payload = &number.to_le_bytes()[..];
            stream.append(&Record { payload, ..Default::default() }).await.unwrap();
            client.publish(format!("subject.{at}.x"), payload).await.unwrap();
        }
        for number in 0..200_u32 {
            let record = tail.next().await.unwrap().unwrap();
            assert_eq!((record.offset.0, &record.payload[..]), (u64::from(number), &number.to_le_bytes()[..]));
            assert_eq!(subscriber.next().await.unwrap().unwrap().payload, number.to_le_bytes()[..]);
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn more_channels_than_a_server_permits_are_not_waited_for() {
    let node = node().await;
    let [_, quic] = endpoints(&node);
    let client = Client::connect(quic, Options { channels: 1000, ..options() }).await.unwrap();
    client.ping().await.unwrap();
    node.stop().await;
}

#[tokio::test]
async fn a_server_that_is_not_trusted_is_not_tried_again() {
    let node = node().await;
    let nobody = || Trust::fingerprint("00".repeat(32).parse::<Fingerprint>().unwrap());
    for endpoint in
        [Endpoint::tls(node.native.to_string(), nobody()), Endpoint::quic(node.native.to_string(), nobody())]
    {
        let connecting = tokio::time::timeout(Duration::from_secs(10), Client::connect(endpoint, options()));
        let error = connecting.await.expect("without a retry").expect_err("not trusted");
        assert!(matches!(error, ConnectError::Dial(_)), "{error:?}");
        assert_eq!((error.code(), error.action()), ("untrusted_server", Action::Fix));
    }
    node.stop().await;
}
