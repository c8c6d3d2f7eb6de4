//! Fair shares of native clients: a greedy client, and a good one from another address and from the same address.

use std::time::Duration;

use thalweg_engine::GroupStart;
use thalweg_server::config::{Setting, Span, SubjectPatterns};
use thalweg_types::{
    Durability, LeaseId, Offset,
    command::{
        encode_create_keyspace, encode_grant_lease, encode_put, encode_revoke_lease,
        groups::{GroupConfig, encode_create_group},
    },
};
use thalweg_wire::{Header, Kind, Permit, Policy, Position, Reason, ServerFrame, ShortBytes, Subscribe, Tail};

use crate::{
    expect,
    support::{Node, native::UNLIMITED},
};

/// Last byte of the loopback address of the greedy client.
const GREEDY: u8 = 2;

#[tokio::test]
async fn an_announced_frame_holds_nothing() {
    let node = Node::start().await;
    let mut greedy = Vec::new();
    for _ in 0..4 {
        let mut raw = node.raw_from(GREEDY).await;
        raw.bytes(&Header { len: 32 << 20, kind: Kind::Write as u16, fields: 0, id: 9 }.encode()).await;
        greedy.push(raw);
    }
    for last in [1, GREEDY] {
        let mut good = node.raw_from(last).await;
        let keyspace = good.keyspace("k").await;
        good.put_command(1, Durability::Os, |out| encode_put(out, keyspace, b"k", &vec![1; 500_000]).unwrap());
        good.flush().await;
        expect!(good, 1, ServerFrame::Committed(_) => ());
    }
    node.stop().await;
}

#[tokio::test]
async fn tails_of_one_connection_leave_some_for_others() {
    let node = Node::with(|config| config.max_tails = 40).await;
    let mut greedy = node.raw_from(GREEDY).await;
    let stream = greedy.stream("s").await;
    let tail = Tail { stream, from: Position::End {}, permit: UNLIMITED };
    for id in 1..=36 {
        greedy.send(id, &tail).await;
        expect!(greedy, id, ServerFrame::Tailing(_) => ());
    }
    greedy.send(37, &tail).await;
    assert_eq!(greedy.fails(37).await, "overloaded");
    for last in [1, GREEDY] {
        let mut good = node.raw_from(last).await;
        good.send(1, &tail).await;
        expect!(good, 1, ServerFrame::Tailing(_) => ());
    }
    node.stop().await;
}

#[tokio::test]
async fn idle_connections_of_the_greedy_address_are_closed_when_connections_run_short() {
    let node = Node::with(|config| {
        config.max_connections = 20;
        config.body_timeout = Span(Duration::from_millis(400));
        config.idle_timeout_when_short = Span(Duration::from_millis(100));
    })
    .await;
    let mut good = node.raw().await;
    let keyspace = good.keyspace("k").await;
    let mut busy = node.raw_from(GREEDY).await;
    let stream = busy.stream("s").await;
    busy.send(1, &Tail { stream, from: Position::End {}, permit: UNLIMITED }).await;
    expect!(busy, 1, ServerFrame::Tailing(_) => ());
    let mut greedy = Vec::new();
    for _ in 0..16 {
        greedy.push(node.raw_from(GREEDY).await);
    }
    let (reason, message) = greedy[0].says_goodbye().await;
    assert_eq!(reason, Reason::Overloaded);
    assert!(message.contains("run short"), "{message}");
    // The good client was idle for as long. The other one has a tail.
    good.set(keyspace, b"k", b"v").await;
    busy.append(stream, &[b"x"]).await;
    expect!(busy, 1, ServerFrame::Tailed(_) => ());
    node.stop().await;
}

#[tokio::test]
async fn created_keyspaces_have_a_share_for_each_address() {
    const SHARE: u32 = 9000;
    let node = Node::start().await;
    let mut greedy = node.raw_from(GREEDY).await;
    let (mut created, mut refused) = (0, 0);
    for from in (0..SHARE + 500).step_by(250) {
        for number in from..from + 250 {
            greedy.put_command(number + 1, Durability::Os, |out| {
                encode_create_keyspace(out, &format!("g{number}"), &Default::default()).unwrap();
            });
        }
        greedy.flush().await;
        for _ in 0..250 {
            let frame = greedy.next().await;
            match ServerFrame::decode(frame.raw()).unwrap().frame {
                ServerFrame::Created(_) => created += 1,
                ServerFrame::Failed(failed) => {
                    assert_eq!(failed.code, "overloaded", "{}", failed.message);
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((created, refused), (SHARE, 500));
    node.connect_from(GREEDY).await.call("PUT", "/v1/kv/new/k", &[], b"v").await.refused(503, "overloaded", "retry");
    node.connect_from(GREEDY).await.call("PUT", "/v1/kv/g7/k", &[], b"v").await.is(204);
    node.put("/v1/kv/good/k", b"v").await.is(204);
    // A dropped keyspace gives its share back.
    node.delete("/v1/keyspaces/g7").await.is(204);
    node.delete("/v1/keyspaces/g8").await.is(204);
    node.connect_from(GREEDY).await.call("PUT", "/v1/kv/new/k", &[], b"v").await.is(204);
    node.stop().await;
}

#[tokio::test]
async fn subscribers_may_block_publishers_only_on_configured_subjects() {
    let node = Node::with(|config| config.blocking_subjects = SubjectPatterns::parse("jobs.>").unwrap()).await;
    let mut raw = node.raw().await;
    let subscribe = |pattern: &'static str| Subscribe {
        policy: Policy::Block,
        queue_messages: 0,
        queue_bytes: 0,
        permit: Permit { messages: 0, bytes: 0 },
        pattern: ShortBytes(pattern.as_bytes()),
        queue: ShortBytes(b""),
    };
    raw.send(1, &subscribe("jobs.a")).await;
    expect!(raw, 1, ServerFrame::Subscribed(_) => ());
    for (id, pattern) in [(2, "jobs"), (3, ">"), (4, "*.a")] {
        raw.send(id, &subscribe(pattern)).await;
        assert_eq!(raw.fails(id).await, "blocking_not_allowed");
    }
    node.stop().await;
}
