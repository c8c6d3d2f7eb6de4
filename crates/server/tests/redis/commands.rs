//! Redis clients of a server: sessions, transactions, bursts, waiting.

use std::time::Duration;

use thalweg_server::config::{Password, Setting, Span};

use crate::support::{
    PATIENCE,
    resp::{Resp, encode, node, node_with},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_is_read_by_redis_clients_and_over_http_alike() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET a 1").await, "+OK");
    assert_eq!(client.call("get a").await, "$1 1");
    assert_eq!(client.call("GET nothing").await, "$-1");
    assert_eq!(node.get("/v1/kv/redis/a").await.body, b"1");
    assert!(node.put("/v1/kv/redis/b", b"from http").await.status < 300);
    assert_eq!(client.call("GET b").await, "$9 from http");
    assert_eq!(client.call("HSET h f v").await, ":1");
    assert_eq!(client.call("HGETALL h").await, "*2 $1 f $1 v");
    assert_eq!(client.call("GET h").await, "-WRONGTYPE Operation against a key holding the wrong kind of value");
    assert_eq!(client.call("DBSIZE").await, ":3");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_one_is_a_cache() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    let replies = client
        .pipeline(&[
            "SET a durable",
            "SELECT 1",
            "GET a",
            "SET a fast",
            "WATCH a",
            "MULTI",
            "APPEND a er",
            "HSET h f v",
            "EXEC",
        ])
        .await;
    assert_eq!(replies[..8], ["+OK", "+OK", "$-1", "+OK", "+OK", "+OK", "+QUEUED", "+QUEUED"]);
    assert!(replies[8].starts_with("*2 :6 -ERR this database is a cache"), "{}", replies[8]);
    assert_eq!(node.get("/v1/caches/redis/keys/a").await.body, b"faster");
    assert_eq!(client.call("WATCH a").await, "+OK");
    assert!(node.put("/v1/caches/redis/keys/a", b"other").await.status < 300);
    assert_eq!(client.pipeline(&["MULTI", "SET a mine", "EXEC"]).await[2], "*-1");
    assert_eq!(client.pipeline(&["GET a", "SELECT 0", "GET a"]).await, ["$5 other", "+OK", "$7 durable"]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipelined_burst_is_answered_in_order_and_is_one_entry() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET first 1").await, "+OK");
    let before = node.db.stats().entries;
    let replies = client
        .pipeline(&[
            "GET a", "PING", "SET a 1", "INCR a", "GET a", "ECHO x", "NOPE", "GET", "MULTI", "INCR a", "PING", "EXEC",
            "TYPE a",
        ])
        .await;
    let expected = [
        "$-1",
        "+PONG",
        "+OK",
        ":2",
        "$1 2",
        "$1 x",
        "-ERR unknown command 'NOPE', with args beginning with: ",
        "-ERR wrong number of arguments for 'get' command",
        "+OK",
        "+QUEUED",
        "+QUEUED",
        "*2 :3 +PONG",
        "+string",
    ];
    assert_eq!(replies, expected.map(|reply| reply.trim_end().to_owned()));
    assert_eq!(node.db.stats().entries - before, 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_that_takes_longer_than_a_slice_is_one_entry() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET first 1").await, "+OK");
    // The server logs each command at the level debug, and checks its arguments. A build for tests takes more than a
    // millisecond for these, which fit into one read.
    let burst: Vec<String> = (0..1_000).map(|at| format!("SET {at} v")).collect();
    let burst: Vec<u8> = burst.iter().flat_map(|command| encode(command)).collect();
    assert!(burst.len() < 60 * 1024);
    // A read can find a part of the bytes only. Most find all of them.
    let mut fewest = u64::MAX;
    for _ in 0..20 {
        let before = node.db.stats().entries;
        client.send(&burst).await;
        for _ in 0..1_000 {
            assert_eq!(client.reply().await, "+OK");
        }
        fewest = fewest.min(node.db.stats().entries - before);
    }
    assert_eq!(fewest, 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_beyond_the_bounds_are_split_and_keep_their_order() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    let mut bytes = Vec::new();
    let count = 40_000;
    (0..count).for_each(|_| bytes.extend_from_slice(&encode("INCR n")));
    let (mut reader, mut writer) = client.stream.split();
    let sent = async {
        tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes).await.unwrap();
    };
    let received = async {
        let expected: String = (1..=count).map(|number| format!(":{number}\r\n")).collect();
        let mut got = vec![0; expected.len()];
        tokio::io::AsyncReadExt::read_exact(&mut reader, &mut got).await.unwrap();
        assert!(got == expected.as_bytes());
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(sent, received) }).await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_are_all_or_nothing_and_watched_keys_guard_them() {
    let node = node().await;
    let (mut one, mut two) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(one.call("EXEC").await, "-ERR EXEC without MULTI");
    assert_eq!(one.call("DISCARD").await, "-ERR DISCARD without MULTI");
    assert_eq!(one.call("MULTI").await, "+OK");
    assert_eq!(one.call("MULTI").await, "-ERR MULTI calls can not be nested");
    assert_eq!(one.call("WATCH a").await, "-ERR WATCH inside MULTI is not allowed");
    assert_eq!(one.call("SET a 1").await, "+QUEUED");
    assert_eq!(one.call("HGET a f").await, "+QUEUED");
    assert_eq!(two.call("GET a").await, "$-1");
    assert_eq!(one.call("EXEC").await, "*2 +OK -WRONGTYPE Operation against a key holding the wrong kind of value");
    // An invalid command discards the transaction.
    assert_eq!(
        one.pipeline(&["MULTI", "GET", "SET a 2", "EXEC"]).await[3],
        "-EXECABORT Transaction discarded because of previous errors."
    );
    assert_eq!(one.pipeline(&["MULTI", "SET a 3", "DISCARD", "GET a"]).await, ["+OK", "+QUEUED", "+OK", "$1 1"]);
    // A watched key that stays unchanged; one that changes; one that is unwatched.
    assert_eq!(one.pipeline(&["WATCH a b", "MULTI", "INCR a", "EXEC"]).await[3], "*1 :2");
    assert_eq!(one.call("WATCH a b").await, "+OK");
    assert_eq!(two.call("SET b x").await, "+OK");
    assert_eq!(one.pipeline(&["MULTI", "INCR a", "EXEC"]).await[2], "*-1");
    assert_eq!(one.pipeline(&["MULTI", "GET a", "EXEC"]).await[2], "*1 $1 2");
    assert_eq!(one.call("WATCH a").await, "+OK");
    assert_eq!(two.call("SET a 9").await, "+OK");
    assert_eq!(one.pipeline(&["MULTI", "GET a", "EXEC"]).await[2], "*-1", "of one that only reads, too");
    assert_eq!(one.call("WATCH a").await, "+OK");
    assert_eq!(two.call("SET a 10").await, "+OK");
    assert_eq!(one.pipeline(&["UNWATCH", "MULTI", "EXEC"]).await, ["+OK", "+OK", "*0"]);
    assert_eq!(
        one.pipeline(&["SET a 1", "WATCH a", "MULTI", "INCR a", "EXEC"]).await[4],
        "*1 :2",
        "watched in a burst"
    );
    assert_eq!(one.pipeline(&["HELLO 3", "WATCH a", "SET a 5", "MULTI", "INCR a", "EXEC"]).await[5], "_");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_under_concurrent_transactions_lose_nothing() {
    let node = node().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let mut client = Resp::connect(&node).await;
        tasks.push(tokio::spawn(async move {
            let mut done = 0;
            while done < 25 {
                assert_eq!(client.call("WATCH n").await, "+OK");
                let reply = client.call("GET n").await;
                let now: i64 = reply
                    .strip_prefix("$")
                    .and_then(|text| text.split(' ').nth(1))
                    .map_or(0, |text| text.parse().unwrap());
                let set = format!("SET n {}", now + 1);
                match &client.pipeline(&["MULTI", &set, "EXEC"]).await[2][..] {
                    "*1 +OK" => done += 1,
                    "*-1" => {}
                    other => panic!("{other}"),
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(Resp::connect(&node).await.call("GET n").await, "$3 100");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_say_what_they_speak_and_who_they_are() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    assert!(client.call("HELLO 3").await.starts_with("%7 $6 server $5 redis $7 version $6 7.0.15 $5 proto :3 $2 id :"));
    assert_eq!(client.call("GET nothing").await, "_");
    assert_eq!(client.call("HELLO 4").await, "-NOPROTO unsupported protocol version");
    assert_eq!(client.call("HELLO x").await, "-ERR Protocol version is not an integer or out of range");
    assert_eq!(client.call("HELLO 3 FOO").await, "-ERR Syntax error in HELLO option 'FOO'");
    assert_eq!(client.call("CLIENT GETNAME").await, "_");
    assert_eq!(client.call("HELLO 2 SETNAME me").await.split(' ').next(), Some("*14"));
    assert_eq!(client.call("CLIENT GETNAME").await, "$2 me");
    assert_eq!(client.call("CLIENT FOO").await, "-ERR unknown subcommand 'FOO'. Try CLIENT HELP.");
    assert_eq!(client.call("CLIENT ID x").await, "-ERR wrong number of arguments for 'client|id' command");
    assert!(client.call("CLIENT INFO").await.contains(" name=me "));
    assert!(client.call("CLIENT LIST").await.contains("cmd=client"));
    assert_eq!(client.call("SELECT 2").await, "-ERR DB index is out of range");
    assert_eq!(client.call("SELECT x").await, "-ERR value is not an integer or out of range");
    assert_eq!(client.call("SELECT 0").await, "+OK");
    assert_eq!(client.call("CONFIG GET appendonly").await, "*2 $10 appendonly $3 yes");
    assert_eq!(client.call("CONFIG GET save").await, "*2 $4 save $0");
    assert_eq!(client.call("CONFIG GET Save SAVE sav?").await, "*2 $4 Save $0");
    assert_eq!(client.call("CONFIG GET SAV?").await, "*2 $4 save $0");
    assert!(client.call("INFO server").await.contains("redis_version:7.0.15"));
    assert!(client.call("COMMAND COUNT").await.starts_with(':'));
    assert!(client.call("COMMAND INFO get nope").await.starts_with("*2 *10 $3 get :2 *2 +readonly +fast :1 :1 :1"));
    assert_eq!(client.call("COMMAND GETKEYS mset a 1 b 2").await, "*2 $1 a $1 b");
    assert_eq!(client.pipeline(&["CLIENT REPLY SKIP", "PING"][..0]).await, Vec::<String>::new());
    client.send(b"CLIENT REPLY SKIP\r\nPING\r\nECHO a\r\nCLIENT REPLY OFF\r\nSET q 1\r\nPING\r\nCLIENT REPLY ON\r\nGET q\r\n").await;
    assert_eq!([client.reply().await, client.reply().await, client.reply().await], ["$1 a", "+OK", "$1 1"]);
    assert_eq!(client.call("RESET").await, "+RESET");
    assert_eq!(client.call("CLIENT GETNAME").await, "$-1");
    let mut other = Resp::connect(&node).await;
    let id = other.call("CLIENT ID").await;
    assert_eq!(client.call(&format!("CLIENT KILL ID {}", &id[1..])).await, ":1");
    assert_eq!(other.rest().await, "");
    assert_eq!(client.call("CLIENT KILL 1.2.3.4:5").await, "-ERR No such client");
    client.send(b"QUIT\r\nPING\r\n").await;
    assert_eq!(client.rest().await, "+OK");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_know_the_password_does_nothing_and_holds_little() {
    let node = node_with(|config| {
        config.resp_password = Password::parse("secret").unwrap();
        config.header_timeout = Span(Duration::from_millis(200));
    })
    .await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("GET a").await, "-NOAUTH Authentication required.");
    assert!(
        client.call("HELLO 3").await.starts_with("-NOAUTH HELLO must be called with the client already authenticated")
    );
    assert_eq!(client.call("AUTH wrong").await, "-WRONGPASS invalid username-password pair or user is disabled.");
    assert_eq!(client.call("AUTH default secret").await, "+OK");
    assert_eq!(client.call("SET a 1").await, "+OK");
    let mut client = Resp::connect(&node).await;
    assert!(client.call("HELLO 2 AUTH default secret").await.starts_with("*14"));
    // A request that announces a large size ends the connection immediately.
    for (sent, said) in [
        (&b"*1\r\n$536870912\r\n"[..], "-ERR Protocol error: unauthenticated bulk length"),
        (b"*1\r\n$536870913\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"*2\r\n$4\r\nAUTH\r\n$16777216\r\n", "-ERR Protocol error: unauthenticated bulk length"),
        (b"*11\r\n", "-ERR Protocol error: unauthenticated multibulk length"),
        (b"*2147483647\r\n", "-ERR Protocol error: unauthenticated multibulk length"),
        (b"*2147483648\r\n", "-ERR Protocol error: invalid multibulk length"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", ""),
    ] {
        let mut client = Resp::connect(&node).await;
        client.send(sent).await;
        assert_eq!(client.rest().await, said);
    }
    // A client that does not authenticate in time is also disconnected.
    assert!(Resp::connect(&node).await.rest().await.starts_with("-NOAUTH"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_waited_for() {
    let node = node().await;
    let (mut reader, mut writer) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(reader.call("XREAD BLOCK 20 STREAMS s $").await, "*-1");
    reader.send(&encode("XREAD BLOCK 0 STREAMS s $")).await;
    while !writer.call("INFO clients").await.contains("blocked_clients:1") {}
    assert_eq!(writer.call("XADD s 1-1 f v").await, "$3 1-1");
    assert_eq!(reader.reply().await, "*1 *2 $1 s *1 *2 $3 1-1 *2 $1 f $1 v");
    assert_eq!(reader.call("XGROUP CREATE s g $").await, "+OK");
    reader.send(&encode("XREADGROUP GROUP g me BLOCK 0 STREAMS s >")).await;
    while !writer.call("INFO clients").await.contains("blocked_clients:1") {}
    assert_eq!(writer.pipeline(&["MULTI", "XADD s 1-2 f w", "EXEC"]).await[2], "*1 $3 1-2");
    assert_eq!(reader.reply().await, "*1 *2 $1 s *1 *2 $3 1-2 *2 $1 f $1 w");
    // A read does not wait inside a transaction, and stops waiting when its client disconnects.
    assert_eq!(reader.pipeline(&["MULTI", "XREAD BLOCK 0 STREAMS s $", "EXEC"]).await[2], "*1 *-1");
    reader.send(&encode("XREAD BLOCK 0 STREAMS s $")).await;
    while !writer.call("INFO clients").await.contains("blocked_clients:1") {}
    drop(reader);
    while !writer.call("INFO clients").await.contains("blocked_clients:0") {}
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_among_arguments_are_found_and_their_lack_has_the_errors_of_redis() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    let (unknown, without_keys) = ("-ERR Invalid command specified", "-ERR The command has no key arguments");
    let (wrong_number, wrong_arguments) =
        ("-ERR Invalid number of arguments specified for command", "-ERR Invalid arguments specified for command");
    for (command, reply) in [
        ("XREAD COUNT 2 STREAMS a b 0 0", "*2 $1 a $1 b"),
        ("XGROUP CREATE s g 0", "*1 $1 s"),
        ("NOPE a", unknown),
        ("XGROUP NOPE s", unknown),
        ("PING x", without_keys),
        ("XGROUP HELP", without_keys),
        // The number of arguments is wrong as well.
        ("DBSIZE x", without_keys),
        // A channel is no key.
        ("SPUBLISH c m", without_keys),
        ("SSUBSCRIBE c", without_keys),
        ("SET k", wrong_number),
        ("XGROUP CREATE s", wrong_number),
        ("XREAD COUNT 2 0", wrong_arguments),
        ("XREAD COUNT 2 STREAMS", wrong_arguments),
    ] {
        assert_eq!(client.call(&format!("COMMAND GETKEYS {command}")).await, reply, "{command}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_described_with_sets_in_resp3() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    client.call("HELLO 3").await;
    let get = "*1 *10 $3 get :2 ~2 +readonly +fast :1 :1 :1 ~3 +@read +@string +@fast ~0 ~0 ~0";
    assert_eq!(client.call("COMMAND INFO get").await, get);
    let memory = client.call("COMMAND INFO memory").await;
    assert!(memory.starts_with("*1 *10 $6 memory :-2 ~0 :0 :0 :0 ~1 +@slow ~0 ~0 *2 *10 $11 memory|help "), "{memory}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_go_on_with_decimal_cursors() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    let sets: Vec<String> = (0..50).map(|at| format!("SET k{at:02} v")).collect();
    client.pipeline(&sets.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        let command = format!("SCAN {cursor} COUNT 7");
        // Every other call is inside a transaction.
        let reply = match seen.len() % 2 {
            0 => client.call(&command).await,
            _ => client.pipeline(&["MULTI", &command, "EXEC"]).await[2].strip_prefix("*1 ").unwrap().to_owned(),
        };
        let words: Vec<&str> = reply.split(' ').collect();
        cursor = words[2].to_owned();
        seen.extend(words[4..].iter().filter(|word| word.starts_with('k')).map(|word| (*word).to_owned()));
        if cursor == "0" {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, (0..50).map(|at| format!("k{at:02}")).collect::<Vec<_>>());
    // As in Redis, a cursor without digits is that of the beginning.
    client.call("HSET h f v").await;
    assert!(client.call("SCAN _ COUNT 1").await.ends_with(" *1 $1 h"));
    assert_eq!(client.call("HSCAN h _").await, "*2 $1 0 *2 $1 f $1 v");
    assert_eq!(client.call("SCAN 999999").await, "-ERR invalid cursor");
    assert_eq!(client.pipeline(&["MULTI", "SCAN x", "PING", "EXEC"]).await[3], "*2 -ERR invalid cursor +PONG");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_and_slowness_end_a_connection_and_nothing_else() {
    let node = node_with(|config| {
        config.body_timeout = Span(Duration::from_millis(200));
        (config.max_connections, config.share_reserve_percent) = (8, 0);
    })
    .await;
    for (sent, said) in [
        (&b"*1\r\n:1\r\n"[..], "-ERR Protocol error: expected '$', got ':'"),
        (b"PING\r\n*x\r\n", "+PONG -ERR Protocol error: invalid multibulk length"),
        (b"SET a 1\r\n\"x\r\n", "+OK -ERR Protocol error: unbalanced quotes in request"),
        (b"*1\r\n$4\r\nPI", "-ERR Protocol error: the request was incomplete for too long"),
    ] {
        let mut client = Resp::connect(&node).await;
        client.send(sent).await;
        assert_eq!(client.rest().await, said);
    }
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = Resp::connect(&node).await;
        assert_eq!(client.call("PING").await, "+PONG");
        clients.push(client);
    }
    assert_eq!(Resp::connect(&node).await.rest().await, "-ERR max number of clients reached");
    drop(clients);
    node.stop().await;
}
