//! Requests against a scripted server.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use thalweg_client::{Client, ConnectError, Effect, Endpoint, Error, Lost, Options, ProtocolError};
use thalweg_types::{Action, Classified, Durability, KeyspaceId, Revision, SpaceTime, command::KeyspaceConfig};
use thalweg_wire::{
    ClientFrame, Committed, Detail, Failed, Keyspace, KeyspaceFound, Level, List, Reason, RemainingBytes, Tailing,
    Value, handshake::goodbye, session::SessionFull,
};
use tokio::io::AsyncWriteExt;

use crate::peer::{Server, connected, quick};

fn value(value: &[u8]) -> Value<'_> {
    Value {
        durability: Durability::Disk,
        revision: Revision(3),
        remaining: u64::MAX,
        lease: thalweg_types::LeaseId(0),
        value_bytes: value.len() as u64,
        value: RemainingBytes(value),
    }
}

fn found(id: u32) -> KeyspaceFound {
    let keyspace =
        Keyspace { id: KeyspaceId(id), created: SpaceTime(0), config: KeyspaceConfig::default(), name: "users".into() };
    KeyspaceFound { keyspace, counts: None }
}

fn committed(revision: u64) -> Committed<'static> {
    Committed { durability: Durability::Disk, duplicate: false, revision: Revision(revision), appends: List::default() }
}

#[tokio::test]
async fn replies_in_any_order_reach_their_requests() {
    let (_server, client, mut peer) = connected().await;
    let users = client.keyspace("users");
    let asked = tokio::spawn(async move {
        let (a, b) = tokio::join!(users.get(b"a"), users.get(b"b"));
        let (a, b) = (a.unwrap().unwrap(), b.unwrap().unwrap());
        assert_eq!((&a.value[..], a.revision, a.remaining, a.lease), (&b"value of a"[..], Revision(3), None, None));
        assert_eq!(&b.value[..], b"value of b");
    });
    // Both requests look the id up, since neither had it when they began.
    for _ in 0..2 {
        peer.answer(&found(5)).await;
    }
    let key = |envelope: &thalweg_wire::Envelope<'_, ClientFrame<'_>>| match &envelope.frame {
        ClientFrame::Get(get) => {
            assert_eq!(get.keyspace, KeyspaceId(5));
            assert!(envelope.fields.timeout_micros.is_some_and(|micros| micros <= 10_000_000));
            get.key.0.to_vec()
        }
        other => panic!("{other:?}"),
    };
    let (first, first_key) = peer.request(key).await;
    let (second, second_key) = peer.request(key).await;
    peer.send(second, &value(&[b"value of ", &second_key[..]].concat())).await;
    peer.send(first, &value(&[b"value of ", &first_key[..]].concat())).await;
    asked.await.unwrap();
}

#[tokio::test]
async fn an_id_that_is_out_of_date_is_asked_for_anew() {
    let (_server, client, mut peer) = connected().await;
    let users = client.keyspace("users");
    let asked = tokio::spawn(async move { users.get(b"a").await });
    peer.answer(&found(5)).await;
    let id = peer.any().await;
    let failed = Failed {
        class: Action::Fix,
        effect: Effect::Nothing,
        shown: Level(None),
        code: "no_such_keyspace",
        message: "there is no such keyspace",
        details: List::default(),
    };
    peer.send(id, &failed).await;
    peer.answer(&found(6)).await;
    let (id, keyspace) = peer
        .request(|envelope| match &envelope.frame {
            ClientFrame::Get(get) => get.keyspace,
            other => panic!("{other:?}"),
        })
        .await;
    assert_eq!(keyspace, KeyspaceId(6));
    // If the lookup does not help, the caller gets the error.
    peer.send(id, &failed).await;
    let error = asked.await.unwrap().unwrap_err();
    assert!(error.is("no_such_keyspace"), "{error}");
    assert_eq!((error.action(), error.effect()), (Action::Fix, Effect::Nothing));
}

#[tokio::test]
async fn what_may_be_repeated_is_and_what_may_not_is_told() {
    let (_server, client, mut peer) = connected().await;
    let users = client.keyspace("users");
    let overloaded = SessionFull::Requests { limit: 1 };
    let asked = tokio::spawn({
        let users = users.clone();
        async move { users.put(b"a", b"1").await }
    });
    peer.answer(&found(5)).await;
    for _ in 0..3 {
        let id = peer.any().await;
        peer.fail(id, &overloaded).await;
    }
    peer.answer(&committed(9)).await;
    assert_eq!(asked.await.unwrap().unwrap(), Revision(9));

    // The effect of a commit with conditions is unknown.
    let asked =
        tokio::spawn(async move { users.delete_if(b"a", thalweg_types::command::Expect::Revision(Revision(9))).await });
    let id = peer.any().await;
    let details = [Detail { name: "retry_after", value: 3 }];
    let unknown = Failed {
        effect: Effect::Unknown,
        details: List::Items(&details),
        ..Failed::of(&overloaded, "the log has failed")
    };
    peer.send(id, &unknown).await;
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!((error.effect(), error.action()), (Effect::Unknown, Action::Retry));
    assert_eq!(error.failure().unwrap().detail("retry_after"), Some(3));
}

/// Fails the first put without a known effect, and answers the second one if there is one.
async fn put_of_unknown_effect(repeat_puts: bool) -> Result<Revision, Error> {
    let server = Server::new().await;
    let (client, mut peer) = server.connected(Options { repeat_puts, ..quick() }).await;
    let users = client.keyspace("users");
    let mut asked = tokio::spawn(async move { users.put(b"a", b"1").await });
    peer.answer(&found(5)).await;
    let id = peer.any().await;
    let overloaded = SessionFull::Requests { limit: 1 };
    peer.send(id, &Failed { effect: Effect::Unknown, ..Failed::of(&overloaded, "the log has failed") }).await;
    tokio::select! {
        answer = &mut asked => answer.unwrap(),
        id = peer.any() => {
            peer.send(id, &committed(9)).await;
            asked.await.unwrap()
        }
    }
}

/// The first put may be carried out after the second one, and undo a write of another client in between.
#[tokio::test]
async fn a_put_of_unknown_effect_is_repeated_only_if_the_options_say_so() {
    assert_eq!(put_of_unknown_effect(true).await.unwrap(), Revision(9));
    let error = put_of_unknown_effect(false).await.unwrap_err();
    assert!(matches!(&error, Error::OutcomeUnknown { .. }), "{error}");
    assert_eq!(error.effect(), Effect::Unknown);
}

#[tokio::test]
async fn repetitions_have_a_bound() {
    let (_server, client, mut peer) = connected().await;
    let asked = tokio::spawn(async move { client.keyspace("users").describe(thalweg_client::Count::Skip).await });
    for _ in 0..6 {
        let id = peer.any().await;
        peer.fail(id, &SessionFull::Requests { limit: 1 }).await;
    }
    assert!(asked.await.unwrap().unwrap_err().is("overloaded"));
}

#[tokio::test]
async fn a_request_that_nobody_waits_for_is_cancelled() {
    let (_server, client, mut peer) = connected().await;
    let short = client.timeout(Some(Duration::from_millis(20)));
    let error = short.keyspace("users").get(b"a").await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { effect: Effect::Unknown, .. }), "{error}");
    let (asked, ()) = peer.request(|envelope| assert!(envelope.fields.timeout_micros.unwrap() <= 20_000)).await;
    let (cancelled, is_cancel) = peer.request(|envelope| matches!(envelope.frame, ClientFrame::Cancel(_))).await;
    assert_eq!((cancelled, is_cancel), (asked, true));
    // The id is free again only when its answer has arrived.
    let pinging = tokio::spawn({
        let users = client.keyspace("users");
        async move { users.get(b"b").await }
    });
    let next = peer.any().await;
    assert_ne!(next, asked);
    peer.send(asked, &found(1)).await;
    peer.send(next, &found(5)).await;
    peer.answer(&value(b"v")).await;
    assert_eq!(&pinging.await.unwrap().unwrap().unwrap().value[..], b"v");
}

#[tokio::test]
async fn more_requests_than_there_may_be_wait_for_their_turn() {
    let server = Server { max_requests: 2, ..Server::new().await };
    let (client, mut peer) = server.connected(quick()).await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        asked.spawn(async move { client.keyspace("users").describe(thalweg_client::Count::Skip).await.unwrap() });
    }
    let mut open = vec![peer.any().await, peer.any().await];
    for _ in 0..6 {
        let nothing = tokio::time::timeout(Duration::from_millis(5), peer.next()).await;
        assert!(nothing.is_err(), "two are in progress");
        peer.send(open.remove(0), &found(5)).await;
        open.push(peer.any().await);
    }
    for id in open {
        peer.send(id, &found(5)).await;
    }
    while let Some(done) = asked.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_reply_wakes_one_of_the_callers_that_wait_for_their_turn() {
    const CALLERS: usize = 200;
    let server = Server { max_requests: 2, ..Server::new().await };
    let (client, mut peer) = server.connected(quick()).await;
    let polls = Arc::new(AtomicUsize::new(0));
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let (client, polls) = (client.clone(), Arc::clone(&polls));
        asked.spawn(async move {
            let users = client.keyspace("users");
            let mut request = pin!(users.describe(thalweg_client::Count::Skip));
            let counted = poll_fn(|cx| {
                polls.fetch_add(1, Ordering::Relaxed);
                request.as_mut().poll(cx)
            });
            counted.await.unwrap()
        });
    }
    for _ in 0..CALLERS {
        peer.answer(&found(5)).await;
    }
    while let Some(done) = asked.join_next().await {
        done.unwrap();
    }
    // Each caller begins, gets its turn, and gets its reply.
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls <= 6 * CALLERS, "{polls} polls of {CALLERS} requests");
}

#[tokio::test]
async fn bytes_that_the_socket_does_not_take_make_callers_wait() {
    let server = Server::new().await;
    let options = Options { max_unsent_bytes: 64 * 1024, timeout: Some(Duration::from_millis(300)), ..quick() };
    let (client, mut peer) = server.connected(options).await;
    // The peer reads nothing: the buffers of the sockets fill, then the client's, and then callers wait.
    let batch = {
        let mut writer = thalweg_wire::BatchWriter::new(b"s", b"").unwrap();
        writer.push_payload(&vec![7; 32 * 1024]).unwrap();
        writer.into_shared(thalweg_wire::Checksum::Without).unwrap()
    };
    let mut sent = 0;
    let error = loop {
        match client.send_batch(&batch).await {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 10_000, "backpressure must stop the sender");
    };
    assert!(matches!(error, Error::TimedOut { effect: Effect::Nothing, .. }), "{error}");
    // Once the peer reads, everything arrives exactly once.
    for _ in 0..sent {
        let (id, ()) = peer
            .request(|envelope| match &envelope.frame {
                ClientFrame::Publish(publish) => assert_eq!(publish.batches.iter().next().unwrap(), &batch.bytes[..]),
                other => panic!("{other:?}"),
            })
            .await;
        assert_eq!(id, 0);
    }
    client.send_batch(&batch).await.unwrap();
    peer.any().await;
}

#[tokio::test]
async fn what_is_not_the_protocol_is_a_typed_error() {
    // A frame with an id that is not in use.
    let (server, client, mut peer) = connected().await;
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.timeout(Some(Duration::from_secs(5))).stream("s").append_batch(&one(), None.into()).await }
    });
    let id = peer.any().await;
    peer.send(id + 40, &found(5)).await;
    // The client reports the violation and reconnects.
    let (_, reason) = peer
        .request(|envelope| match &envelope.frame {
            ClientFrame::Goodbye(goodbye) => goodbye.reason,
            other => panic!("{other:?}"),
        })
        .await;
    assert_eq!(reason, Reason::Protocol);
    assert!(peer.next().await.is_none());
    let error = asked.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost { why: Lost::Protocol(ProtocolError::Route(_)), .. }), "{error}");
    assert_eq!(error.action(), Action::Stop);

    // Bytes that are not a frame: the announced length is beyond all bounds.
    let mut peer = server.accept().await;
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.keyspace("users").describe(thalweg_client::Count::Skip).await }
    });
    peer.any().await;
    peer.stream.write_all(&[0xff; 64]).await.unwrap();
    let error = asked.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost { why: Lost::Protocol(ProtocolError::Frame(_)), .. }), "{error}");

    // A reply of a kind that belongs to another request.
    let mut peer = server.accept().await;
    let asked = tokio::spawn(async move { client.keyspace("users").describe(thalweg_client::Count::Skip).await });
    peer.answer(&value(b"v")).await;
    let error = asked.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Protocol(ProtocolError::WrongReply { kind: 0x0150 })), "{error}");
}

fn one() -> thalweg_types::record::RecordBatch {
    let mut batch = thalweg_types::record::RecordBatch::new();
    batch.push_payload(b"one").unwrap();
    batch
}

#[tokio::test]
async fn begins_of_subscriptions_don_t_answer_requests() {
    let (_server, client, mut peer) = connected().await;
    let asked = tokio::spawn(async move { client.keyspace("users").describe(thalweg_client::Count::Skip).await });
    let id = peer.any().await;
    let tailing = Tailing { next: thalweg_types::Offset(0), high_watermark: thalweg_types::Offset(0) };
    peer.send(id, &tailing).await;
    let error = asked.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost { why: Lost::Protocol(_), .. }), "{error}");
}

#[tokio::test]
async fn goodbye_is_obeyed() {
    let (server, client, mut peer) = connected().await;
    let asked = tokio::spawn({
        let client = client.clone();
        async move { client.keyspace("users").describe(thalweg_client::Count::Skip).await }
    });
    peer.any().await;
    peer.send(0, &goodbye(Reason::Stopping, Action::Retry, "restarting")).await;
    // The client repeats a read on the next connection.
    let mut peer = server.accept().await;
    let id = peer.any().await;
    peer.send(id, &found(5)).await;
    assert_eq!(asked.await.unwrap().unwrap().0.id, KeyspaceId(5));

    peer.send(0, &goodbye(Reason::Refused, Action::Fix, "not you")).await;
    let error = loop {
        match client.keyspace("users").describe(thalweg_client::Count::Skip).await {
            Err(error @ Error::NotConnected { .. }) => break error,
            Err(Error::Lost { why: Lost::Goodbye { reason: Reason::Refused, .. }, .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error.action(), Action::Fix);
    let again = tokio::time::timeout(Duration::from_millis(50), server.listener.accept()).await;
    assert!(again.is_err(), "the client must not reconnect where that does not help");
}

#[tokio::test]
async fn connecting_fails_with_what_to_do() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::tcp(listener.local_addr().unwrap().to_string());
    let options = Options { connect_timeout: Duration::from_millis(50), ..quick() };
    let error = Client::connect(endpoint, options).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");

    // The answer of another protocol.
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other_endpoint = Endpoint::tcp(other.local_addr().unwrap().to_string());
    let (error, _stream) = tokio::join!(Client::connect(other_endpoint, quick()), async {
        let (mut stream, _) = other.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream
    });
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Lost(Lost::Protocol(_)) | ConnectError::Handshake(_)), "{error}");

    // No program listens at this port, and the system gives it to no other test.
    let error = Client::connect(Endpoint::tcp("127.0.0.1:1".to_owned()), quick()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Dial(_)), "{error}");
    assert_eq!(error.action(), Action::Retry);
}

#[tokio::test]
async fn closing_says_goodbye_after_what_was_staged() {
    let (_server, client, mut peer) = connected().await;
    let users = client.keyspace("users");
    let batch = {
        let mut writer = thalweg_wire::BatchWriter::new(b"s", b"").unwrap();
        writer.push_payload(b"last").unwrap();
        writer.into_shared(thalweg_wire::Checksum::Without).unwrap()
    };
    client.send_batch(&batch).await.unwrap();
    client.close().await;
    let (_, first) = peer.request(|envelope| envelope.frame.kind()).await;
    let (_, last) = peer.request(|envelope| envelope.frame.kind()).await;
    assert_eq!((first, last), (thalweg_wire::Kind::Publish, thalweg_wire::Kind::Goodbye));
    assert!(peer.next().await.is_none());
    assert!(matches!(users.get(b"a").await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_client_that_is_dropped_goes() {
    let (_server, client, mut peer) = connected().await;
    drop(client);
    let (_, last) = peer.request(|envelope| envelope.frame.kind()).await;
    assert_eq!(last, thalweg_wire::Kind::Goodbye);
    assert!(peer.next().await.is_none());
}
