//! Several connections: the pool spreads requests over them and avoids lost ones.

use std::time::Duration;

use thalweg_client::{Action, Classified, Client, Count, Error, Options};
use thalweg_types::{KeyspaceId, SpaceTime, command::KeyspaceConfig};
use thalweg_wire::{Keyspace, KeyspaceFound};

use crate::peer::{Server, quick};

fn found() -> KeyspaceFound {
    let (created, config) = (SpaceTime(0), KeyspaceConfig::default());
    KeyspaceFound { keyspace: Keyspace { id: KeyspaceId(5), created, config, name: "users".into() }, counts: None }
}

#[tokio::test]
async fn requests_are_spread_and_go_where_there_is_a_connection() {
    let server = Server::new().await;
    let options = Options { connections: 3, ..quick() };
    let (client, peers) = tokio::join!(Client::connect(server.endpoint(), options), async {
        (server.accept().await, server.accept().await, server.accept().await)
    });
    let (client, peers) = (client.unwrap(), [peers.0, peers.1, peers.2]);
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..9 {
        let client = client.clone();
        asked.spawn(async move { client.keyspace("users").describe(Count::Skip).await.unwrap() });
    }
    let mut left = Vec::new();
    for mut peer in peers {
        for _ in 0..3 {
            let id = peer.any().await;
            peer.send(id, &found()).await;
        }
        left.push(peer);
    }
    while let Some(done) = asked.join_next().await {
        done.unwrap();
    }

    // Two connections are lost and not accepted again: all requests go over the third.
    let mut last = left.pop().unwrap();
    drop(left);
    let answering = tokio::spawn(async move {
        for _ in 0..10 {
            let id = last.any().await;
            last.send(id, &found()).await;
        }
        last
    });
    for _ in 0..10 {
        client.keyspace("users").describe(Count::Skip).await.unwrap();
    }
    drop(answering.await.unwrap());
    // Without any connection, requests wait for one until their timeout.
    let short = client.timeout(Some(Duration::from_millis(30)));
    let error = short.keyspace("users").describe(Count::Skip).await.unwrap_err();
    assert!(matches!(error, Error::NotConnected { .. }), "{error}");
    assert_eq!(error.action(), Action::Retry);
    let waiting = tokio::spawn(async move { client.keyspace("users").describe(Count::Skip).await });
    let mut answered = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let mut peer = server.accept().await;
        answered.spawn(async move {
            while let Some(frame) = peer.next().await {
                if frame.header.id != 0 {
                    peer.send(frame.header.id, &found()).await;
                }
            }
        });
    }
    assert_eq!(waiting.await.unwrap().unwrap().0.id, KeyspaceId(5));
}
