//! Several connections: the pool spreads requests over them and avoids lost ones.

use std::time::Duration;

use thalweg_client::{Action, Classified, Client, Count, Error, Options};
use thalweg_types::{
    KeyspaceId, Offset, SpaceTime, StreamId,
    command::{KeyspaceConfig, StreamConfig, groups::GroupConfig},
};
use thalweg_wire::{ClientFrame, Keyspace, KeyspaceFound, Stream, StreamFound};

use crate::peer::{Server, connected, quick};

fn found() -> KeyspaceFound {
    let (created, config) = (SpaceTime(0), KeyspaceConfig::default());
    KeyspaceFound { keyspace: Keyspace { id: KeyspaceId(5), created, config, name: "users".into() }, counts: None }
}

fn stream_found() -> StreamFound {
    let (start, next, config) = (Offset(0), Offset(0), StreamConfig::default());
    let (id, last_time) = (StreamId(3), SpaceTime(0));
    StreamFound { stream: Stream { id, start, next, bytes: 0, last_time, config, name: "s".into() } }
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
            peer.answer(&found()).await;
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
            last.answer(&found()).await;
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

#[tokio::test]
async fn requests_that_wait_use_the_first_connection_that_comes_back() {
    let server = Server::new().await;
    let options = Options { connections: 2, ..quick() };
    let (client, peers) = tokio::join!(Client::connect(server.endpoint(), options), async {
        (server.accept().await, server.accept().await)
    });
    let client = client.unwrap();
    drop(peers);
    let short = client.timeout(Some(Duration::from_millis(30)));
    // A request that was sent before the client noticed the loss fails with another error.
    while !matches!(short.keyspace("users").describe(Count::Skip).await, Err(Error::NotConnected { .. })) {}
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = client.clone();
        asked.spawn(async move { client.keyspace("users").describe(Count::Skip).await });
    }
    tokio::task::yield_now().await;
    // The requests wait, some on either link. Only one connection is accepted.
    let mut peer = server.accept().await;
    let answering = tokio::spawn(async move {
        for _ in 0..4 {
            peer.answer(&found()).await;
        }
        peer
    });
    while let Some(answer) = asked.join_next().await {
        answer.unwrap().unwrap();
    }
    drop(answering.await.unwrap());
}

#[tokio::test]
async fn a_client_that_waits_for_a_welcome_can_be_closed() {
    let server = Server::new().await;
    let options = Options { connect_timeout: Duration::from_secs(600), ..quick() };
    let (client, peer) = server.connected(options).await;
    drop(peer);
    let (_silent, _) = server.listener.accept().await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(60), client.close()).await;
    closed.expect("the client does not wait for the welcome");
}

/// Another keyspace may get the id of one that is newer than the backup.
#[tokio::test]
async fn an_id_is_looked_up_again_at_a_server_with_other_data() {
    let (mut server, client, mut peer) = connected().await;
    let keyspace = client.keyspace("users");
    let reply = found();
    let (looked_up, ()) = tokio::join!(keyspace.id(), peer.answer(&reply));
    assert_eq!(looked_up.unwrap(), KeyspaceId(5));
    drop(peer);
    client.ping().await.unwrap_err();
    // The node was restored from a backup, and has another id.
    server.node = 2;
    let putting = tokio::spawn(async move { keyspace.put(b"a", b"b").await });
    let mut peer = server.accept().await;
    let (_, is_lookup) = peer.request(|envelope| matches!(envelope.frame, ClientFrame::FindKeyspace(_))).await;
    assert!(is_lookup, "a put with the id of the former server");
    putting.abort();
}

/// A handle of a keyspace must not remove another one, which has its id in a backup.
#[tokio::test]
async fn nothing_is_removed_at_a_server_with_other_data() {
    let (mut server, client, mut peer) = connected().await;
    let keyspace = client.keyspace("users");
    let reply = found();
    let (looked_up, ()) = tokio::join!(keyspace.id(), peer.answer(&reply));
    looked_up.unwrap();
    drop(peer);
    client.ping().await.unwrap_err();
    server.node = 2;
    let dropping = tokio::spawn(async move { keyspace.drop_keyspace().await });
    let _peer = server.accept().await;
    let error = dropping.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::OtherData), "{error}");
    assert_eq!((error.action(), error.effect()), (Action::Fix, thalweg_client::Effect::Nothing));
}

/// Another stream may have the name of a stream that was looked up before.
#[tokio::test]
async fn no_stream_is_deleted_at_a_server_with_other_data() {
    let (mut server, client, mut peer) = connected().await;
    let stream = client.stream("s");
    let reply = stream_found();
    let (looked_up, ()) = tokio::join!(stream.id(), peer.answer(&reply));
    assert_eq!(looked_up.unwrap(), StreamId(3));
    drop(peer);
    client.ping().await.unwrap_err();
    server.node = 2;
    let deleting = tokio::spawn(async move { stream.delete().await });
    let _peer = server.accept().await;
    let error = deleting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::OtherData), "{error}");
}

/// The id of the stream is a part of the group's name, and may be that of another stream, which has a group of the same
/// name.
#[tokio::test]
async fn a_handle_of_a_group_asks_for_nothing_at_a_server_with_other_data() {
    let (mut server, client, mut peer) = connected().await;
    let stream = client.stream("s");
    let reply = stream_found();
    let (group, ()) = tokio::join!(stream.group("g"), peer.answer(&reply));
    let group = group.unwrap();
    drop(peer);
    client.ping().await.unwrap_err();
    server.node = 2;
    let describing = tokio::spawn({
        let group = group.clone();
        async move { group.describe().await.map(drop) }
    });
    let mut peer = server.accept().await;
    for refused in [
        describing.await.unwrap(),
        group.id().await.map(drop),
        group.fetch("m", 1, 1000, Duration::ZERO).await.map(drop),
        group.create_if_missing(None, &GroupConfig::default()).await.map(drop),
        group.delete().await,
    ] {
        assert!(matches!(refused, Err(Error::OtherData)), "{refused:?}");
    }
    let looking = tokio::spawn(async move { stream.group("g").await.map(drop) });
    let (id, is_first) = peer.request(|envelope| matches!(envelope.frame, ClientFrame::FindStream(_))).await;
    assert!(is_first, "the first request of the client here looks up the stream for a new handle");
    peer.send(id, &stream_found()).await;
    looking.await.unwrap().unwrap();
}
