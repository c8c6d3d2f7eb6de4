//! Fair shares of Redis clients: a greedy client, and a good one from another address and from the same address.

use std::time::{Duration, Instant};

use thalweg_server::config::{Password, Setting, Span, SubjectPatterns};
use thalweg_types::{Durability, command::CommitBuilder, limits::MAX_EAGER_PREFIX_ROWS};
use thalweg_wire::{Permit, Policy, ServerFrame, ShortBytes, Subscribe};

use crate::{
    expect,
    support::{
        Node,
        resp::{Resp, encode, node_with, serving},
    },
};

/// Last byte of the loopback address of the greedy client.
const GREEDY: u8 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_request_holds_nothing() {
    let node = Node::with(serving).await;
    let mut greedy = Vec::new();
    for _ in 0..8 {
        let mut client = Resp::connect_from(&node, GREEDY).await;
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16000000\r\nx").await;
        greedy.push(client);
    }
    for last in [1, GREEDY] {
        let mut good = Resp::connect_from(&node, last).await;
        assert_eq!(good.call(&format!("SET k {}", "v".repeat(500_000))).await, "+OK");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_of_all_keys_have_a_share_for_each_address() {
    const IN_USE: &str = "http_in_use{bound=\"deletes\"}";
    let node = Node::with_large_segments(serving).await;
    let db = node.db.with_durability(Durability::Os);
    let id = db.keyspace("long").unwrap().id();
    // Nine deletes of 100 units and one of 21 use up the share of an address.
    let mut over_http = node.connect_from(GREEDY).await;
    for (number, bytes) in [25_344; 9].into_iter().chain([5_120]).enumerate() {
        let prefix = format!("{number:0>bytes$}");
        let mut commit = CommitBuilder::new();
        for at in 0..=MAX_EAGER_PREFIX_ROWS {
            commit.put(id, format!("{prefix}/{at}").as_bytes(), b"").unwrap();
        }
        db.commit(&commit).unwrap();
        let deleted = over_http.call("DELETE", &format!("/v1/kv/long?prefix={prefix}"), &[], b"").await;
        assert!(deleted.is(200).json()["keys"].is_null());
    }
    assert_eq!(node.metric(IN_USE).await, 921.0);
    let (mut greedy, mut good) = (Resp::connect_from(&node, GREEDY).await, Resp::connect(&node).await);
    assert!(greedy.call("FLUSHDB").await.starts_with("-BUSY the clients of this address"));
    let replies = greedy.pipeline(&["MULTI", "SET k v", "FLUSHALL", "EXEC", "GET k"]).await;
    assert!(replies[3].starts_with("-BUSY the clients of this address") && replies[4] == "$-1", "{replies:?}");
    assert_eq!(greedy.pipeline(&["SELECT 1", "FLUSHDB", "SELECT 0"]).await, ["+OK"; 3], "a cache has no deletes");
    let many: Vec<String> = (0..=MAX_EAGER_PREFIX_ROWS).map(|at| format!("k{at} v")).collect();
    assert_eq!(good.call(&format!("MSET {}", many.join(" "))).await, "+OK");
    assert_eq!(good.call("FLUSHDB").await, "+OK");
    assert_eq!(node.metric(IN_USE).await, 922.0);
    while db.waiting_delete_units() > 0 {
        db.maintain().unwrap();
    }
    assert_eq!(greedy.call("FLUSHDB").await, "+OK");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_subscriber_of_another_protocol_never_stops_a_publish() {
    let node = node_with(|config| config.http_blocking_subjects = SubjectPatterns::parse(">").unwrap()).await;
    let mut slow = node.raw().await;
    let frame = Subscribe {
        policy: Policy::Block,
        queue_messages: 2,
        queue_bytes: 0,
        permit: Permit { messages: 0, bytes: 0 },
        pattern: ShortBytes(b"a"),
        queue: ShortBytes(b""),
    };
    slow.send(1, &frame).await;
    expect!(slow, 1, ServerFrame::Subscribed(_) => ());
    let (mut publisher, mut reader) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(reader.call("SUBSCRIBE a").await, "*3 $9 subscribe $1 a :1");
    for number in 0..20 {
        let receivers = publisher.call(&format!("PUBLISH a {number}")).await;
        assert_eq!(receivers, if number < 2 { ":2" } else { ":1" });
        assert_eq!(reader.reply().await, format!("*3 $7 message $1 a ${} {number}", number.to_string().len()));
    }
    assert_eq!(publisher.pipeline(&["MULTI", "PUBLISH a x", "EXEC"]).await[2], "*1 :1");
    assert_eq!(reader.reply().await, "*3 $7 message $1 a $1 x");
    // The slow subscriber is told how much it missed.
    slow.send(1, &thalweg_wire::Credit { messages: 100, bytes: u64::MAX }).await;
    let mut missed = 0;
    while missed == 0 {
        let frame = slow.next().await;
        if let ServerFrame::Dropped(dropped) = ServerFrame::decode(frame.raw()).unwrap().frame {
            missed = dropped.messages;
        }
    }
    assert_eq!(missed, 19);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_of_the_greedy_address_are_closed_when_connections_run_short() {
    let node = node_with(|config| {
        config.max_connections = 20;
        config.body_timeout = Span(Duration::from_millis(400));
        config.idle_timeout_when_short = Span(Duration::from_millis(100));
    })
    .await;
    let mut good = Resp::connect(&node).await;
    assert_eq!(good.call("PING").await, "+PONG");
    let mut subscriber = Resp::connect_from(&node, GREEDY).await;
    assert_eq!(subscriber.call("SUBSCRIBE a").await, "*3 $9 subscribe $1 a :1");
    let mut greedy = Vec::new();
    for _ in 0..16 {
        let mut client = Resp::connect_from(&node, GREEDY).await;
        assert_eq!(client.call("PING").await, "+PONG");
        greedy.push(client);
    }
    assert_eq!(greedy[0].rest().await, "");
    assert_eq!(good.call("PUBLISH a x").await, ":1");
    assert_eq!(subscriber.reply().await, "*3 $7 message $1 a $1 x");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_clients_without_authentication_keep_nobody_out() {
    let node = node_with(|config| {
        config.resp_password = Password::parse("secret").unwrap();
        config.max_handshakes = 8;
        config.header_timeout = Span(Duration::from_secs(15));
    })
    .await;
    let mut known = Resp::connect_from(&node, GREEDY).await;
    assert_eq!(known.call("AUTH secret").await, "+OK");
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(Resp::connect_from(&node, GREEDY).await);
    }
    let begun = Instant::now();
    for last in [1, GREEDY] {
        let mut good = Resp::connect_from(&node, last).await;
        assert_eq!(good.call("AUTH secret").await, "+OK");
        assert_eq!(good.call("SET a 1").await, "+OK");
    }
    // The oldest ones were closed for newer ones, long before their time was over.
    assert_eq!(silent[0].rest().await, "");
    assert!(begun.elapsed() < Duration::from_secs(14), "{:?}", begun.elapsed());
    assert_eq!(known.call("GET a").await, "$1 1");
    assert!(node.metric("half_open_replaced_total").await >= 32.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_passwords_delay_the_next_attempts_of_their_address() {
    let node = node_with(|config| config.resp_password = Password::parse("secret").unwrap()).await;
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    let begun = Instant::now();
    for _ in 0..5 {
        let mut guesser = Resp::connect_from(&node, GREEDY).await;
        assert_eq!(guesser.call("AUTH guess").await, wrong);
    }
    // 100, 200, 400 and 800 ms before the second to the fifth attempt.
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    // HELLO authenticates too, and commands behind it wait for their turn.
    let mut guesser = Resp::connect_from(&node, GREEDY).await;
    guesser.send(&[encode("HELLO 2 AUTH default guess"), encode("PING")].concat()).await;
    assert_eq!(guesser.reply().await, wrong);
    assert_eq!(guesser.reply().await, "-NOAUTH Authentication required.");
    // And 1,600 ms after the fifth, which the server counts from its own answer.
    assert!(begun.elapsed() >= Duration::from_millis(3100), "{:?}", begun.elapsed());
    assert_eq!(node.metric("resp_auth_failures_total").await, 6.0);
    // Another address is not delayed by these failures: its own first one costs nothing.
    let mut good = Resp::connect(&node).await;
    assert_eq!(good.call("AUTH secret").await, "+OK");
    assert_eq!(good.call("PING").await, "+PONG");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_right_password_of_one_client_does_not_help_a_guesser_at_its_address() {
    let node = node_with(|config| config.resp_password = Password::parse("secret").unwrap()).await;
    let begun = Instant::now();
    for _ in 0..5 {
        assert!(Resp::connect_from(&node, GREEDY).await.call("AUTH guess").await.starts_with("-WRONGPASS"));
        for _ in 0..2 {
            assert_eq!(Resp::connect_from(&node, GREEDY).await.call("AUTH secret").await, "+OK");
        }
    }
    // Each guess delays the next attempt: 100, 200, 400, 800 and 1600 ms.
    assert!(begun.elapsed() >= Duration::from_millis(3100), "{:?}", begun.elapsed());
    // The delay is over, and the right password causes none.
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(Resp::connect_from(&node, GREEDY).await.call("AUTH secret").await, "+OK");
    }
    assert!(begun.elapsed() < Duration::from_millis(1600), "{:?}", begun.elapsed());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_of_one_address_at_the_same_time_share_no_delay() {
    let node = node_with(|config| config.resp_password = Password::parse("secret").unwrap()).await;
    let failures = async || node.metric("resp_auth_failures_total").await;
    let mut known = Resp::connect_from(&node, GREEDY).await;
    assert_eq!(known.call("AUTH secret").await, "+OK");
    assert!(Resp::connect_from(&node, GREEDY).await.call("AUTH guess").await.starts_with("-WRONGPASS"));
    let begun = Instant::now();
    let mut guessers = Vec::new();
    for _ in 0..40 {
        let mut guesser = Resp::connect_from(&node, GREEDY).await;
        guesser.send(&encode("AUTH guess")).await;
        guessers.push(guesser);
    }
    while failures().await < 5.0 {
        // A client that has authenticated waits for nobody.
        assert_eq!(known.call("PING").await, "+PONG");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // 100, 200, 400 and 800 ms before the second to the fifth guess.
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    // Guessers that have gone take no check from the others of their address.
    drop(guessers);
    let held = async || node.metric("half_open").await;
    while held().await > 0.0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The text of the metrics can be 100 ms old for a client that reads it all the time.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let left = failures().await;
    let mut good = Resp::connect_from(&node, GREEDY).await;
    assert_eq!(good.call("AUTH secret").await, "+OK");
    assert_eq!(failures().await, left);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_have_a_share_for_each_client() {
    let node = node_with(|config| config.max_subscriptions = 40).await;
    let mut greedy = Resp::connect_from(&node, GREEDY).await;
    for number in 1..=36 {
        let confirmed = greedy.call(&format!("SUBSCRIBE c{number}")).await;
        assert!(confirmed.ends_with(&format!(":{number}")), "{confirmed}");
    }
    assert!(greedy.call("SUBSCRIBE c37").await.starts_with("-ERR the limit of 40 subscriptions is reached"));
    for last in [1, GREEDY] {
        let mut good = Resp::connect_from(&node, last).await;
        assert_eq!(good.call("SUBSCRIBE c1").await, "*3 $9 subscribe $2 c1 :1");
    }
    assert!(greedy.call("UNSUBSCRIBE c1").await.ends_with(":35"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_of_one_address_that_match_everything_are_bounded() {
    let node = node_with(|config| config.max_subscriptions = 20_000).await;
    let mut greedy = [Resp::connect_from(&node, GREEDY).await, Resp::connect_from(&node, GREEDY).await];
    for number in 0..312 {
        let confirmed = greedy[number % 2].call(&format!("PSUBSCRIBE *a{number}")).await;
        assert!(confirmed.starts_with("*3 $10 psubscribe"), "{number}: {confirmed}");
    }
    let refused = "-ERR the clients of this address have 312 subscriptions with wildcards";
    for client in &mut greedy {
        assert!(client.call("PSUBSCRIBE *b").await.starts_with(refused));
        let other = client.call("PSUBSCRIBE orders.*").await;
        assert!(other.starts_with("*3 $10 psubscribe"), "{other}");
        let literal = client.call("SUBSCRIBE news").await;
        assert!(literal.starts_with("*3 $9 subscribe"), "{literal}");
    }
    let mut good = Resp::connect(&node).await;
    assert!(good.call("PSUBSCRIBE *").await.starts_with("*3 $10 psubscribe"));
    assert!(greedy[0].call("PUNSUBSCRIBE *a0").await.starts_with("*3 $12 punsubscribe"));
    assert!(greedy[1].call("PSUBSCRIBE *b").await.starts_with("*3 $10 psubscribe"));
    node.stop().await;
}
