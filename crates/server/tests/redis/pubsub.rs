//! Channels of Redis clients: compared with redis-server byte for byte, and together with subscribers and publishers
//! over HTTP.

use thalweg_server::config::ByteSize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use crate::{
    oracle::redis_server::RedisServer,
    support::{
        PATIENCE, eventually,
        resp::{Resp, encode, node, node_with},
    },
};

/// Sends commands in one write, and returns everything received up to the answer to a PING after them.
async fn step(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), commands: &[&str], number: usize) -> String {
    let mark = format!("mark-{number:06}");
    let mut bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
    bytes.extend_from_slice(&encode(&format!("PING {mark}")));
    stream.write_all(&bytes).await.unwrap();
    let (mut got, end) = (Vec::new(), format!("{mark}\r\n"));
    while !got.ends_with(end.as_bytes()) {
        let read = timeout(PATIENCE, stream.read_buf(&mut got)).await.expect("an answer in time").unwrap();
        assert!(read > 0, "{commands:?} ended the connection after {:?}", String::from_utf8_lossy(&got));
    }
    String::from_utf8_lossy(&got).into_owned()
}

/// Steps of a client. Each is one write.
const SCRIPT: &[&[&str]] = &[
    &["SUBSCRIBE a a"],
    &["GET x"],
    &["PING", "PING hi", "PING a b"],
    &["PUBSUB CHANNELS", "CLIENT ID", "SELECT 1", "HELLO 3", "PUBLISH a 1", "MULTI", "INFO", "CONFIG GET x"],
    &["SET x", "FOO", "PSUBSCRIBE"],
    &[
        "UNSUBSCRIBE",
        "UNSUBSCRIBE",
        "PUNSUBSCRIBE",
        "UNSUBSCRIBE q",
        "PUNSUBSCRIBE q r",
        "SUNSUBSCRIBE",
        "SUNSUBSCRIBE s",
    ],
    &["SUBSCRIBE b1 b2", "PSUBSCRIBE x* y*", "SSUBSCRIBE sh", "UNSUBSCRIBE nope b1", "UNSUBSCRIBE", "SUNSUBSCRIBE"],
    &["PUNSUBSCRIBE x* y* z*", "PING"],
    &["SUBSCRIBE one", "RESET", "PING", "PUBSUB NUMSUB one"],
    &["MULTI", "SUBSCRIBE z", "PING", "EXEC"],
    &["UNSUBSCRIBE z"],
    &["MULTI", "PUBLISH nobody q", "PUBSUB NUMSUB a b", "EXEC"],
    &["PUBLISH nobody 1", "PUBLISH nobody 2", "GET x", "PUBLISH nobody 3", "SET k v", "PUBLISH nobody 4", "GET k"],
    &["PUBLISH a", "SUBSCRIBE", "SPUBLISH nobody 1", "PUBSUB", "PUBSUB NOPE", "PUBSUB CHANNELS a b", "PUBSUB NUMPAT x"],
    &[
        "PUBSUB HELP",
        "PUBSUB NUMPAT",
        "PUBSUB SHARDCHANNELS",
        "PUBSUB SHARDNUMSUB",
        "PUBSUB NUMSUB",
        "pubsub channels h*",
    ],
    &["SUBSCRIBE _ . a..b * > $redis.x %", "UNSUBSCRIBE _ . a..b * > $redis.x %"],
    &["HELLO 3"],
    &["SUBSCRIBE b1", "PUBLISH b1 hi", "PUBLISH other x", "GET k", "CLIENT GETNAME"],
    &["PSUBSCRIBE b[0-9]", "PUBLISH b2 pattern", "PUBLISH bx none", "PUBSUB NUMPAT", "PUBSUB CHANNELS"],
    &["MULTI", "PUBLISH b1 x", "SUBSCRIBE c", "EXEC"],
    &["SUBSCRIBE _ a..b * $redis.x", "PUBLISH _ empty", "PUBLISH a..b dots", "PUBLISH * star", "PUBLISH $redis.x mark"],
    &["PUBLISH b1 _"],
    &["RESET", "PING"],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_are_told_what_redis_tells_them() {
    let Some(redis) = RedisServer::start() else { return };
    let node = node().await;
    let mut theirs = UnixStream::connect(redis.socket()).await.unwrap();
    let mut ours = TcpStream::connect(node.resp.unwrap()).await.unwrap();
    for (number, commands) in SCRIPT.iter().enumerate() {
        let (expected, got) = (step(&mut theirs, commands, number).await, step(&mut ours, commands, number).await);
        // The reply to HELLO contains the client's id, which differs.
        let is_same = expected == got || commands[0].starts_with("HELLO");
        assert!(is_same, "{commands:?}\nRedis: {expected:?}\nours:  {got:?}");
    }
    node.stop().await;
}

/// Publishes from one client. Compares the messages that subscribers with the same globs got on both servers, and the
/// counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn globs_get_what_they_match_and_counts_are_of_those_who_get_it() {
    let Some(redis) = RedisServer::start() else { return };
    let node = node().await;
    let globs = ["*", "h?llo", "news.*", "news.[ae]*", "a\\*b", "*.eu", "_", "..*", "$redis.*", "hello"];
    let channels = [
        "hello",
        "hallo",
        "h.llo",
        "news.eu",
        "news.",
        "news.us.x",
        "a*b",
        "axb",
        "_",
        "..x",
        "*",
        ">",
        "$redis.a",
        "$redis",
        ".",
    ];
    for (number, glob) in globs.iter().enumerate() {
        let (mut theirs, mut ours) =
            (UnixStream::connect(redis.socket()).await.unwrap(), TcpStream::connect(node.resp.unwrap()).await.unwrap());
        let subscribe = format!("PSUBSCRIBE {glob}");
        let hello = ["HELLO 3", &subscribe];
        step(&mut theirs, &hello, number).await;
        step(&mut ours, &hello, number).await;
        for channel in channels {
            let publish = format!("PUBLISH {channel} payload");
            let (expected, got) =
                (step(&mut theirs, &[&publish], number).await, step(&mut ours, &[&publish], number).await);
            assert_eq!(expected, got, "{glob} and {channel}");
        }
        let end = [&*format!("PUNSUBSCRIBE {glob}"), "PUBSUB NUMPAT"];
        assert_eq!(step(&mut theirs, &end, number).await, step(&mut ours, &end, number).await);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_between_redis_clients_and_http() {
    let node = node().await;
    let mut subscriber = Resp::connect(&node).await;
    assert_eq!(subscriber.call("SUBSCRIBE orders.eu").await, "*3 $9 subscribe $9 orders.eu :1");
    assert_eq!(subscriber.call("PSUBSCRIBE orders.*").await, "*3 $10 psubscribe $8 orders.* :2");
    let published = node.call("POST", "/v1/subjects/orders.eu", &[], b"from http").await.is(200).json();
    assert_eq!(published["delivered"], 2);
    assert_eq!(subscriber.reply().await, "*3 $7 message $9 orders.eu $9 from http");
    assert_eq!(subscriber.reply().await, "*4 $8 pmessage $8 orders.* $9 orders.eu $9 from http");

    let mut http = node.open("/v1/subjects/orders.us?limit=2", &[("accept", "application/x-ndjson")]).await;
    let greeting = http.chunk().await.unwrap();
    let mut publisher = Resp::connect(&node).await;
    let counts = publisher.pipeline(&["PUBLISH orders.us one", "PUBLISH orders.us two"]).await;
    assert_eq!(counts, [":2", ":2"], "the one over HTTP, and the pattern");
    let mut lines = String::from_utf8(greeting).unwrap();
    while let Some(chunk) = http.chunk().await {
        lines.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(lines.contains("\"one\"") && lines.contains("\"two\""), "{lines}");
    assert_eq!(subscriber.reply().await, "*4 $8 pmessage $8 orders.* $9 orders.us $3 one");
    assert_eq!(subscriber.reply().await, "*4 $8 pmessage $8 orders.* $9 orders.us $3 two");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sharded_channels_are_the_same_channels() {
    let node = node().await;
    let (mut shard, mut plain, mut publisher) =
        (Resp::connect(&node).await, Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(shard.call("SSUBSCRIBE c").await, "*3 $10 ssubscribe $1 c :1");
    assert_eq!(plain.call("SUBSCRIBE c").await, "*3 $9 subscribe $1 c :1");
    assert_eq!(publisher.pipeline(&["SPUBLISH c 1", "PUBLISH c 2"]).await, [":2", ":2"]);
    for number in 1..=2 {
        assert_eq!(shard.reply().await, format!("*3 $8 smessage $1 c $1 {number}"));
        assert_eq!(plain.reply().await, format!("*3 $7 message $1 c $1 {number}"));
    }
    assert_eq!(publisher.call("PUBSUB SHARDNUMSUB c d").await, "*4 $1 c :1 $1 d :0");
    assert_eq!(publisher.call("PUBSUB SHARDCHANNELS").await, "*1 $1 c");
    node.stop().await;
}

/// Waits until a command has this reply: the state of a closed connection goes away with its task.
async fn until(client: &mut Resp, command: &str, wanted: &str) {
    eventually(&format!("{command}: {wanted}"), async || client.call(command).await == wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_end_with_their_connection() {
    let node = node().await;
    let mut other = Resp::connect(&node).await;
    let mut gone = Resp::connect(&node).await;
    gone.call("SUBSCRIBE c").await;
    gone.call("PSUBSCRIBE c*").await;
    assert_eq!(other.call("PUBLISH c 1").await, ":2");
    drop(gone);
    until(&mut other, "PUBSUB NUMSUB c", "*2 $1 c :0").await;
    until(&mut other, "PUBSUB NUMPAT", ":0").await;
    until(&mut other, "PUBLISH c 2", ":0").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_messages_of_many_publishers_come_once_and_in_each_ones_order() {
    const PUBLISHERS: usize = 4;
    const EACH: usize = 2000;
    let node = node().await;
    let mut subscribers = Vec::new();
    for protocol in ["2", "3", "2"] {
        let mut subscriber = Resp::connect(&node).await;
        subscriber.call(&format!("HELLO {protocol}")).await;
        subscriber.call("SUBSCRIBE c").await;
        subscribers.push(tokio::spawn(async move {
            let mut next = [0; PUBLISHERS];
            for _ in 0..PUBLISHERS * EACH {
                let message = subscriber.reply().await;
                let (publisher, number) = message.rsplit(' ').next().unwrap().split_once('-').unwrap();
                let publisher: usize = publisher.parse().unwrap();
                assert_eq!(number.parse(), Ok(next[publisher]), "{message}");
                next[publisher] += 1;
            }
        }));
    }
    let mut publishers = Vec::new();
    for publisher in 0..PUBLISHERS {
        let mut client = Resp::connect(&node).await;
        publishers.push(tokio::spawn(async move {
            for first in (0..EACH).step_by(50) {
                let burst: Vec<String> =
                    (first..first + 50).map(|number| format!("PUBLISH c {publisher}-{number}")).collect();
                let burst: Vec<&str> = burst.iter().map(String::as_str).collect();
                assert!(client.pipeline(&burst).await.iter().all(|count| count == ":3"));
            }
        }));
    }
    for task in publishers.into_iter().chain(subscribers) {
        task.await.unwrap();
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_takes_nothing_is_cut_and_others_get_all() {
    let node =
        node_with(|config| (config.max_link_bytes, config.subscription_bytes) = (ByteSize(1 << 20), ByteSize(1 << 20)))
            .await;
    let (mut stuck, mut quick, mut publisher) =
        (Resp::connect(&node).await, Resp::connect(&node).await, Resp::connect(&node).await);
    stuck.call("SUBSCRIBE c").await;
    quick.call("SUBSCRIBE c").await;
    let publish = format!("PUBLISH c {}", "x".repeat(100_000));
    let mut sent = 0;
    // The buffers of its socket fill up first, then its queue.
    let cut = async {
        loop {
            let count = publisher.call(&publish).await;
            sent += 1;
            assert!(quick.reply().await.ends_with("xxx"));
            if count == ":1" {
                break;
            }
        }
    };
    timeout(PATIENCE, cut).await.expect("it is cut");
    assert!(sent > 10, "it had room for {sent} messages");
    until(&mut publisher, "PUBSUB NUMSUB c", "*2 $1 c :1").await;
    let rest = stuck.rest().await;
    assert!(rest.len() < sent * 100_000, "it was not sent all, and its connection is closed");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_globs_at_their_bounds() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    let long = "x".repeat(512);
    assert_eq!(client.call(&format!("PUBLISH {long} 1")).await, ":0");
    let too_long = "-ERR a channel's name is at most 512 bytes long after escaping";
    assert_eq!(client.call(&format!("PUBLISH {long}x 1")).await, too_long);
    assert_eq!(client.call(&format!("SUBSCRIBE {long}x")).await, too_long);
    assert_eq!(
        client.call(&format!("PSUBSCRIBE {}", "*".repeat(4097))).await,
        "-ERR patterns are at most 4096 bytes long"
    );
    assert_eq!(client.call("PUBSUB NUMPAT").await, ":0", "nothing was subscribed to");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_published_before_a_command_comes_before_its_reply() {
    let node = node().await;
    let mut publisher = Resp::connect(&node).await;
    let mut subscribers = Vec::new();
    for _ in 0..40 {
        let mut subscriber = Resp::connect(&node).await;
        subscriber.call("SUBSCRIBE c").await;
        subscribers.push(subscriber);
    }
    for round in 0..20 {
        assert_eq!(publisher.call(&format!("PUBLISH c {round}")).await, ":40");
        // The last subscriber is served last.
        for subscriber in subscribers.iter_mut().rev() {
            subscriber.send(&encode("PING")).await;
        }
        for subscriber in &mut subscribers {
            assert!(subscriber.reply().await.ends_with(&format!(" {round}")));
            assert_eq!(subscriber.reply().await, "*2 $4 pong $0");
        }
    }
    node.stop().await;
}
