//! Fair shares of native clients: a greedy client, and a good one from another address and from the same address.

use std::time::Duration;

use thalweg_engine::GroupStart;
use thalweg_server::config::{ByteSize, Setting, Span, SubjectPatterns};
use thalweg_types::{
    Durability, LeaseId, Offset,
    command::{
        CommitBuilder, TransactionBuilder, encode_create_keyspace, encode_grant_lease, encode_revoke_lease,
        groups::{GroupConfig, encode_create_group},
    },
    limits::MAX_EAGER_PREFIX_ROWS,
};
use thalweg_wire::{
    Header, Kind, Level, Permit, Policy, Position, Reason, RemainingBytes, ServerFrame, ShortBytes, Subscribe, Tail,
    Write,
};

use crate::{
    expect,
    support::{HELD, Node, eventually, native::UNLIMITED},
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
        good.set(keyspace, b"k", &vec![1; 500_000]).await;
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
        greedy.ask(id, &tail, Kind::Tailing).await;
    }
    greedy.send(37, &tail).await;
    assert_eq!(greedy.fails(37).await, "overloaded");
    for last in [1, GREEDY] {
        let mut good = node.raw_from(last).await;
        good.ask(1, &tail, Kind::Tailing).await;
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
    busy.ask(1, &Tail { stream, from: Position::End {}, permit: UNLIMITED }, Kind::Tailing).await;
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

/// Creates them as a restart leaves them: no address counts as their creator.
#[tokio::test]
async fn keyspaces_that_exist_already_are_nobodys_and_a_share_is_left() {
    let node = Node::start().await;
    let db = node.db.with_durability(Durability::Os);
    for number in 0..9900 {
        db.keyspace(&format!("old{number}")).unwrap();
    }
    let mut greedy = node.connect_from(GREEDY).await;
    let mut created = 0;
    while greedy.call("PUT", &format!("/v1/keyspaces/g{created}"), &[], b"").await.status == 201 {
        created += 1;
    }
    assert_eq!(created, 50, "half of what was left");
    node.put("/v1/keyspaces/good", b"").await.is(201);
    node.stop().await;
}

#[tokio::test]
async fn leases_have_a_share_for_each_address() {
    const SHARE: u32 = 90_000;
    let node = Node::start().await;
    let mut greedy = node.raw_from(GREEDY).await;
    let (mut granted, mut refused, mut last) = (0, 0, LeaseId::ZERO);
    for from in (0..SHARE + 1000).step_by(500) {
        for number in from..from + 500 {
            greedy.put_command(number + 1, Durability::Os, |out| {
                encode_grant_lease(out, None, Duration::from_secs(3600)).unwrap();
            });
        }
        greedy.flush().await;
        for _ in 0..500 {
            let frame = greedy.next().await;
            match ServerFrame::decode(frame.raw()).unwrap().frame {
                ServerFrame::Granted(grant) => (granted, last) = (granted + 1, grant.lease),
                ServerFrame::Failed(failed) => {
                    assert_eq!(failed.code, "overloaded", "{}", failed.message);
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // Leases that are being granted may count twice for a moment.
    assert!((SHARE - 1000..=SHARE).contains(&granted) && refused >= 1000, "{granted} {refused}");
    let grant = serde_json::json!({ "ttl_seconds": 30 }).to_string();
    let json = [("content-type", "application/json")];
    let over_http =
        async |from| node.connect_from(from).await.call("POST", "/v1/leases", &json, grant.as_bytes()).await;
    while over_http(GREEDY).await.status == 201 {}
    let error = over_http(GREEDY).await.refused(503, "overloaded", "retry");
    assert!(error["message"].as_str().unwrap().contains("share of leases"), "{error}");
    // Others still get locks, and a revoked lease gives its share back.
    over_http(1).await.is(201);
    greedy.put_command(1, Durability::Os, |out| encode_revoke_lease(out, last));
    greedy.send_command(2, Durability::Os, |out| encode_revoke_lease(out, LeaseId(last.0 - 1))).await;
    for id in 1..=2 {
        expect!(greedy, id, ServerFrame::Committed(_) => ());
    }
    over_http(GREEDY).await.is(201);
    node.stop().await;
}

#[tokio::test]
async fn groups_have_a_share_for_each_address() {
    let node = Node::start().await;
    let stream = node.db.stream("s").unwrap();
    for number in 0..9900 {
        let config = GroupConfig::default();
        stream
            .with_durability(Durability::Os)
            .create_group(&format!("old{number}"), GroupStart::Beginning, &config)
            .unwrap();
    }
    let mut greedy = node.connect_from(GREEDY).await;
    let mut created = 0;
    while greedy.call("PUT", &format!("/v1/streams/s/groups/g{created}"), &[], b"").await.status == 201 {
        created += 1;
    }
    assert_eq!(created, 50);
    let mut raw = node.raw_from(GREEDY).await;
    raw.send_command(1, Durability::Os, |out| {
        encode_create_group(out, stream.id(), "more", Some(Offset::ZERO), &GroupConfig::default()).unwrap();
    })
    .await;
    assert_eq!(raw.fails(1).await, "overloaded");
    node.put("/v1/streams/s/groups/good", b"").await.is(201);
    node.delete("/v1/streams/s/groups/g0").await.is(204);
    node.delete("/v1/streams/s/groups/g1").await.is(204);
    greedy.call("PUT", "/v1/streams/s/groups/more", &[], b"").await.is(201);
    node.stop().await;
}

/// The prefixes are so long that nine of them use up the share of an address.
#[tokio::test]
async fn deletes_that_wait_have_a_share_for_each_address() {
    let node = Node::with_large_segments(|_| ()).await;
    let db = node.db.with_durability(Durability::Os);
    let id = db.keyspace("k").unwrap().id();
    let prefix = |number: u32| format!("{number:0>25344}");
    let fill = |prefix: &str| {
        let mut commit = CommitBuilder::new();
        for at in 0..=MAX_EAGER_PREFIX_ROWS {
            commit.put(id, format!("{prefix}/{at}").as_bytes(), b"").unwrap();
        }
        db.commit(&commit).unwrap();
    };
    let delete = |prefix: String| {
        move |out: &mut Vec<u8>| {
            let mut transaction = TransactionBuilder::new();
            transaction.then().delete_prefix(id, prefix.as_bytes()).unwrap();
            transaction.encode(out).unwrap();
        }
    };
    let mut greedy = node.raw_from(GREEDY).await;
    for number in 1..=10 {
        fill(&prefix(number));
        greedy.send_command(number, Durability::Os, delete(prefix(number))).await;
        if number < 10 {
            expect!(greedy, number, ServerFrame::Transacted(_) => ());
        } else {
            assert_eq!(greedy.fails(number).await, "overloaded");
        }
    }
    let over_http = async |from, prefix: &str| {
        node.connect_from(from).await.call("DELETE", &format!("/v1/kv/k?prefix={prefix}"), &[], b"").await
    };
    let error = over_http(GREEDY, &prefix(10)).await.refused(503, "overloaded", "retry");
    assert!(error["message"].as_str().unwrap().contains("share of deletes"), "{error}");
    // Few keys are deleted at once, but nobody knows that before.
    over_http(GREEDY, &format!("{}/0", prefix(10))).await.refused(503, "overloaded", "retry");
    assert!(over_http(1, &prefix(10)).await.is(200).json()["keys"].is_null());
    assert_eq!(db.waiting_delete_units(), 1000);
    // The delete of all keys replaces the others, whose shares are returned.
    assert!(over_http(3, "").await.is(200).json()["keys"].is_null());
    assert_eq!(db.waiting_delete_units(), 1);
    fill(&prefix(1));
    greedy.send_command(11, Durability::Os, delete(prefix(1))).await;
    expect!(greedy, 11, ServerFrame::Transacted(_) => ());
    node.connect_from(GREEDY).await.call("DELETE", "/v1/keyspaces/k", &[], b"").await.is(204);
    while db.waiting_delete_units() > 0 {
        db.maintain().unwrap();
    }
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_disconnects_after_a_delete_keeps_its_share() {
    let node = Node::with_large_segments(|_| ()).await;
    let db = node.db.with_durability(Durability::Os);
    let id = db.keyspace("k").unwrap().id();
    let prefix = |number: u32| format!("{number:0>25344}");
    for number in 0..9 {
        let mut commit = CommitBuilder::new();
        for at in 0..=MAX_EAGER_PREFIX_ROWS {
            commit.put(id, format!("{}/{at}", prefix(number)).as_bytes(), b"").unwrap();
        }
        db.commit(&commit).unwrap();
    }
    for number in 0..9 {
        let mut greedy = node.raw_from(GREEDY).await;
        greedy
            .send_command(1, Durability::Os, |out| {
                let mut transaction = TransactionBuilder::new();
                transaction.then().delete_prefix(id, prefix(number).as_bytes()).unwrap();
                transaction.encode(out).unwrap();
            })
            .await;
        drop(greedy);
        let is_applied = async || db.waiting_delete_units() >= 100 * (number as usize + 1);
        eventually("the command was proposed", is_applied).await;
    }
    let mut greedy = node.connect_from(GREEDY).await;
    let refused = greedy.call("DELETE", &format!("/v1/kv/k?prefix={}", prefix(9)), &[], b"").await;
    refused.refused(503, "overloaded", "retry");
    // The last command counts as executing and as waiting until its task has ended.
    let permitted = async {
        loop {
            let reply = node.delete(&format!("/v1/kv/k?prefix={}", prefix(9))).await;
            if reply.status == 200 {
                break;
            }
            reply.refused(503, "overloaded", "retry");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), permitted).await.expect("another address has the reserve");
    node.stop().await;
}

#[tokio::test]
async fn subscriptions_of_one_address_that_match_everything_are_bounded() {
    let node = Node::with(|config| config.max_subscriptions = 20_000).await;
    let subscribe = |pattern: &'static str| Subscribe {
        policy: Policy::DropNew,
        queue_messages: 0,
        queue_bytes: 0,
        permit: Permit { messages: 0, bytes: 0 },
        pattern: ShortBytes(pattern.as_bytes()),
        queue: ShortBytes(b""),
    };
    let mut greedy = [node.raw_from(GREEDY).await, node.raw_from(GREEDY).await];
    for id in 1..=312_u32 {
        let raw = &mut greedy[id as usize % 2];
        raw.ask(id, &subscribe(if id % 3 == 0 { "*.>" } else { ">" }), Kind::Subscribed).await;
    }
    for raw in &mut greedy {
        raw.send(1000, &subscribe("*.a")).await;
        assert_eq!(raw.fails(1000).await, "too_many_subscriptions");
        raw.ask(1001, &subscribe("orders.>"), Kind::Subscribed).await;
    }
    let mut good = node.raw().await;
    good.ask(1, &subscribe(">"), Kind::Subscribed).await;
    // A subscription that ends, here with its connection, makes room.
    let [gone, mut stays] = greedy;
    drop(gone);
    loop {
        stays.send(1002, &subscribe("*.b")).await;
        let frame = stays.next().await;
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Subscribed(_) => break,
            ServerFrame::Failed(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            other => panic!("{other:?}"),
        }
    }
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
    raw.ask(1, &subscribe("jobs.a"), Kind::Subscribed).await;
    for (id, pattern) in [(2, "jobs"), (3, ">"), (4, "*.a")] {
        raw.send(id, &subscribe(pattern)).await;
        assert_eq!(raw.fails(id).await, "blocking_not_allowed");
    }
    node.stop().await;
}

/// Transactions that only read have no effect, so they are refused like other reads when there is no room for their
/// replies.
#[tokio::test]
async fn unread_transactions_that_only_read_stay_within_the_bound_on_replies() {
    const VALUE: usize = 900 << 10;
    const LIMIT: u64 = 24 << 20;
    let node = Node::with(|config| config.max_reply_bytes_in_flight = ByteSize(LIMIT)).await;
    let keyspace = node.db.keyspace("k").unwrap();
    keyspace.put(b"large", &vec![b'x'; VALUE]).unwrap();
    let mut transaction = TransactionBuilder::new();
    transaction.then().get(keyspace.id(), b"large").unwrap();
    let mut command = Vec::new();
    transaction.encode(&mut command).unwrap();
    let write = Write { level: Level(None), command: RemainingBytes(&command) };
    // Each connection requests more than a socket takes, and reads nothing.
    let mut greedy = Vec::new();
    while node.metric("http_shed_total{bound=\"reply_bytes\"}").await < 10.0 {
        let mut raw = node.raw_from(GREEDY).await;
        for id in 1..=8 {
            raw.put(id, &write);
        }
        raw.flush().await;
        greedy.push(raw);
        assert!(node.metric(HELD).await <= LIMIT as f64);
        assert!(greedy.len() < 1000, "the bound is never reached");
    }
    for id in 1..=8 {
        let mut refused = node.raw_from(GREEDY).await;
        refused.send(id, &write).await;
        assert_eq!(refused.fails(id).await, "overloaded");
    }
    assert!(node.metric(HELD).await <= LIMIT as f64);
    drop(greedy);
    node.until(HELD, 0.0).await;
    let mut good = node.raw().await;
    good.send(1, &write).await;
    let transacted = expect!(good, 1, ServerFrame::Transacted(transacted) => transacted.results.len());
    assert_eq!(transacted, 1);
    node.stop().await;
}
