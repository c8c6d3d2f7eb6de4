//! The bounds of a Redis client's connection, at each bound: bytes that arrive slowly, in parts or not at all; replies
//! that the client does not read; transactions, watches and scans of the maximum size, and one more.
//!
//! `thalweg/tests/suite/redis_limits.rs` measures their cost in memory from outside.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_disk::SimDisk;
use thalweg_engine::{Database, Options};
use thalweg_server::{
    Config,
    config::{ByteSize, Setting, Span},
};
use thalweg_types::{KeyspaceId, Revision, SystemClock};
use thalweg_wire::{Get, List, MultiGet, Order, RemainingBytes, Scan, Values};
use tokio::io::AsyncWriteExt as _;

use crate::support::{
    HELD, HELD_BY_ONE_ADDRESS, Node, PATIENCE, config,
    native::Raw,
    resp::{Resp, encode, node, serving},
    small_options,
};

/// Makes a server cut slow clients soon.
fn impatient(config: &mut Config) {
    config.body_timeout = Span(Duration::from_millis(200));
    config.write_timeout = Span(Duration::from_millis(200));
}

/// Starts a node with room for entries of the maximum size.
pub(crate) async fn roomy(change: impl FnOnce(&mut Config)) -> Node {
    Node::with_segments(64 << 20, |config| {
        serving(config);
        change(config);
    })
    .await
}

const TOO_SLOW: &str = "-ERR Protocol error: the request was incomplete for too long";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_come_one_by_one_are_the_same_requests() {
    let node = node().await;
    let mut script = Vec::new();
    script.extend(encode("SET a one"));
    script.extend_from_slice(b"SET b \"t\\x77o\\r\\n\"\r\n\r\n*0\r\nGET b\n*-1\r\n");
    script.extend(
        ["APPEND a two", "MULTI", "INCR n", "GET a", "EXEC", "NOPE"].iter().flat_map(|command| encode(command)),
    );
    script.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$4\r\n\r\n\r\n\r\n*1\r\n:1\r\n");
    let said = "+OK +OK $5 two\r\n :6 +OK +QUEUED +QUEUED *2 :1 $6 onetwo \
                -ERR unknown command 'NOPE', with args beginning with:  $-1 -ERR Protocol error: expected '$', got ':'";
    let mut whole = Resp::connect(&node).await;
    whole.send(&script).await;
    let at_once = whole.rest().await;
    assert_eq!(at_once, said.replace("\r\n", " "));
    assert_eq!(Resp::connect(&node).await.call("FLUSHDB").await, "+OK");
    let mut slow = Resp::connect(&node).await;
    for byte in &script {
        // Each byte is sent alone. The server may read it alone, or together with others.
        slow.send(std::slice::from_ref(byte)).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(slow.rest().await, at_once);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_request_is_not_waited_for_wherever_it_ends() {
    let node = roomy(impatient).await;
    let whole = encode("SET key value");
    let mut halves: Vec<Vec<u8>> = (1..whole.len()).map(|len| whole[..len].to_vec()).collect();
    halves.push(b"SET key val".to_vec());
    halves.push(b"\"".to_vec());
    // A large request, of which many bytes have arrived, and an incomplete one after a complete one.
    halves.push([&b"*2\r\n$4\r\nECHO\r\n$1000000\r\n"[..], &vec![b'x'; 300_000]].concat());
    let mut clients = Vec::new();
    for half in &halves {
        let mut client = Resp::connect(&node).await;
        client.send(half).await;
        clients.push(client);
    }
    let mut behind = Resp::connect(&node).await;
    behind.send(&[&encode("PING")[..], &whole[..20]].concat()).await;
    // A client that keeps sending single bytes gets no more time.
    let mut trickle = Resp::connect(&node).await;
    trickle.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n").await;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE && trickle.stream.write_all(b"x").await.is_ok() {
        // The slow sender is the thing under test.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() < PATIENCE, "a request may come bit by bit for ever");
    for (mut client, half) in clients.into_iter().zip(&halves) {
        let shown = String::from_utf8_lossy(&half[..half.len().min(40)]).into_owned();
        assert_eq!(client.rest().await, TOO_SLOW, "{shown:?}");
    }
    assert_eq!(behind.rest().await, format!("+PONG {TOO_SLOW}"));
    // Nothing was executed, and a client that is silent between requests stays connected.
    let mut other = Resp::connect(&node).await;
    assert_eq!(other.call("DBSIZE").await, ":0");
    // The silence is the thing under test: it is longer than `body_timeout`.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(other.call("PING").await, "+PONG");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_ends_its_own_connection_only() {
    let node = node().await;
    let mut bystander = Resp::connect(&node).await;
    assert_eq!(bystander.call("SET a 1").await, "+OK");
    let long = |first: &[u8]| [first, &vec![b'7'; 70_000]].concat();
    for (sent, said) in [
        (long(b"*"), "-ERR Protocol error: too big mbulk count string"),
        (long(b"*1\r\n$"), "-ERR Protocol error: too big bulk count string"),
        (long(b"GET "), "-ERR Protocol error: too big inline request"),
        (b"*1048577\r\n".to_vec(), "-ERR Protocol error: invalid multibulk length"),
        (b"*9223372036854775808\r\n".to_vec(), "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$536870913\r\n".to_vec(), "-ERR Protocol error: invalid bulk length"),
        (b"*1\r\n$-1\r\n".to_vec(), "-ERR Protocol error: invalid bulk length"),
        (b"GET 'a\r\n".to_vec(), "-ERR Protocol error: unbalanced quotes in request"),
        (b"*2\r\n$16777000\r\n".to_vec(), ""),
    ] {
        let shown = String::from_utf8_lossy(&sent[..sent.len().min(30)]).into_owned();
        let mut client = Resp::connect(&node).await;
        let _ = client.stream.write_all(&sent).await;
        if said.is_empty() {
            // The size was announced and is permitted: nothing has happened yet.
            let _ = client.stream.shutdown().await;
        }
        assert_eq!(client.rest().await, said, "{shown:?}");
    }
    // Random bytes, some of which are lines. The server answers anything, and continues.
    let mut state = 88_172_645_463_325_252_u64;
    for _ in 0..200 {
        let mut client = Resp::connect(&node).await;
        let garbage: Vec<u8> = (0..512)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                match state % 7 {
                    0 => b'\n',
                    1 => b'\r',
                    2 => b'*',
                    3 => b'$',
                    _ => (state >> 32) as u8,
                }
            })
            .collect();
        let _ = client.stream.write_all(&garbage).await;
        let _ = client.stream.shutdown().await;
        client.rest().await;
    }
    assert_eq!(bystander.call("GET a").await, "$1 1");
    bystander.until("INFO clients", "connected_clients:1 ").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_no_replies_is_cut_off_and_others_are_not_kept_waiting() {
    let node = roomy(impatient).await;
    let mut other = Resp::connect(&node).await;
    assert_eq!(other.call(&format!("SET large {}", "x".repeat(1_000_000))).await, "+OK");
    // Reads alone, a burst that begins with a write, and a transaction.
    let get = encode("GET large");
    let gets = get.repeat(90);
    let scripts = [
        gets.clone(),
        [encode("SET a 1"), gets.clone()].concat(),
        // As much as a transaction that writes may read.
        [encode("MULTI"), encode("SET a 1"), get.repeat(33), encode("EXEC")].concat(),
    ];
    for script in scripts {
        let mut client = Resp::connect(&node).await;
        // The server counts the client after this reply.
        assert_eq!(client.call("PING").await, "+PONG");
        client.send(&script).await;
        let begun = Instant::now();
        other.until("INFO clients", "connected_clients:1 ").await;
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert_eq!(other.call("PING").await, "+PONG");
        // The client finds the end of the connection after the bytes that were sent before, inside a reply.
        let got = client.rest().await.len();
        assert!(got < 90_000_000, "{got}");
    }
    // A client that reads slowly gets all replies.
    let mut slow = Resp::connect(&node).await;
    slow.send(&get.repeat(20)).await;
    let (mut got, mut page) = (0, vec![0; 1 << 18]);
    while got < 20 * (1_000_000 + "$1000000\r\n\r\n".len()) {
        // The slow reader is the thing under test.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let read = tokio::io::AsyncReadExt::read(&mut slow.stream, &mut page).await.unwrap();
        assert!(read > 0, "it was cut off after {got} bytes");
        got += read;
    }
    node.stop().await;
}

/// Sends commands and reads their replies concurrently. Returns the replies that are not `usual`.
async fn unusual(client: &mut Resp, commands: impl Iterator<Item = Vec<u8>>, usual: &str) -> Vec<String> {
    let all: Vec<Vec<u8>> = commands.collect();
    let mut odd = Vec::new();
    for some in all.chunks(1000) {
        client.send(&some.concat()).await;
        for _ in some {
            let reply = client.reply().await;
            if reply != usual {
                odd.push(reply);
            }
        }
    }
    odd
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_have_a_bound_of_commands() {
    const MOST: usize = 16_382;
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("MULTI").await, "+OK");
    let sets = |count| (1..=count).map(|number| encode(&format!("SET n {number}")));
    assert_eq!(unusual(&mut client, sets(MOST), "+QUEUED").await, Vec::<String>::new());
    let before = node.db.stats().entries;
    let reply = client.call("EXEC").await;
    assert_eq!(reply, format!("*{MOST}{}", " +OK".repeat(MOST)));
    assert_eq!(node.db.stats().entries - before, 1, "it is one commit");
    assert_eq!(client.call("MULTI").await, "+OK");
    assert_eq!(
        unusual(&mut client, sets(MOST + 2), "+QUEUED").await,
        ["-ERR a transaction has at most 16382 commands and 15 MiB: split it"; 2]
    );
    assert_eq!(client.call("EXEC").await, "-EXECABORT Transaction discarded because of previous errors.");
    assert_eq!(client.call("GET n").await, format!("$5 {MOST}"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_have_a_bound_of_work_and_change_nothing_above_it() {
    const FITS: usize = 13_000;
    let node = roomy(|_| ()).await;
    let mut client = Resp::connect(&node).await;
    let increments = |count| (0..count).map(|_| encode("INCR n"));
    assert_eq!(client.call("MULTI").await, "+OK");
    assert_eq!(unusual(&mut client, increments(FITS), "+QUEUED").await, Vec::<String>::new());
    let reply = client.call("EXEC").await;
    assert!(reply.starts_with(&format!("*{FITS} :1 :2 ")) && reply.ends_with(&format!(" :{FITS}")), "{}", reply.len());
    let (most, refused) = (16_382, "-ERR too expensive: ");
    assert_eq!(client.call("MULTI").await, "+OK");
    assert_eq!(unusual(&mut client, increments(most), "+QUEUED").await, Vec::<String>::new());
    let reply = client.call("EXEC").await;
    assert!(reply.starts_with(&format!("*{most} {refused}")) && reply.matches(refused).count() == most);
    assert_eq!(client.call("GET n").await, format!("$5 {FITS}"));
    // 32 MiB of values can be read, 40 MiB cannot.
    assert_eq!(client.call(&format!("SET large {}", "x".repeat(8 << 20))).await, "+OK");
    let script = |values| ["MULTI".into(), "INCR n".into(), format!("MGET{}", " large".repeat(values)), "EXEC".into()];
    let [fits, exceeds] = [script(4), script(5)];
    let reply = &client.pipeline(&fits.each_ref().map(String::as_str)).await[3];
    assert!(reply.starts_with(&format!("*2 :{} *4 $8388608 ", FITS + 1)) && reply.len() > 32 << 20);
    let reply = &client.pipeline(&exceeds.each_ref().map(String::as_str)).await[3];
    assert!(reply.starts_with(&format!("*2 {refused}")) && reply.matches(refused).count() == 2, "{}", reply.len());
    assert_eq!(client.call("GET n").await, format!("$5 {}", FITS + 1));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_would_block_others_for_long_are_rejected_and_bursts_of_them_are_split() {
    let node = roomy(|_| ()).await;
    let mut client = Resp::connect(&node).await;
    // Each of these changes takes more than half of the steps of a commit. Their burst becomes several commits.
    let change = format!("SETRANGE large {} x", (8 << 20) - 1);
    let burst: Vec<&str> = std::iter::repeat_n(&*change, 6).chain(["STRLEN large", "SET k v"]).collect();
    let before = node.db.stats().entries;
    let replies = client.pipeline(&burst).await;
    assert_eq!(replies, [":8388608", ":8388608", ":8388608", ":8388608", ":8388608", ":8388608", ":8388608", "+OK"]);
    assert!(node.db.stats().entries - before >= 3);
    // A transaction changes nothing if it is too expensive, whatever else is in its burst.
    let transaction: Vec<&str> =
        ["SET before 1", "MULTI", "SET k w"].into_iter().chain([&*change; 6]).chain(["EXEC", "GET k"]).collect();
    let replies = client.pipeline(&transaction).await;
    assert_eq!((&replies[0][..], &replies[replies.len() - 1][..]), ("+OK", "$1 v"));
    let executed = &replies[replies.len() - 2];
    assert!(executed.starts_with("*7 -ERR too expensive: ") && executed.matches("-ERR").count() == 7, "{executed}");
    // Deletes are never rejected: long ones are made in parts.
    let keys = |name: &str| (0..12_000).map(|key| format!(" {name}{key}")).collect::<String>();
    let pairs: String = (0..12_000).map(|key| format!(" k{key} v")).collect();
    let fields: String = (0..12_000).map(|field| format!(" f{field} v")).collect();
    assert_eq!(client.call(&format!("MSET{pairs}")).await, "+OK");
    assert_eq!(client.call(&format!("HSET hash{fields}")).await, ":12000");
    let (del, hdel) = (format!("DEL{} none", keys("k")), format!("HDEL hash{}", keys("f")));
    let replies = client.pipeline(&["SET a 1", &del, &hdel, "EXISTS k7 k11999 hash a"]).await;
    assert_eq!(replies, ["+OK", ":12000", ":12000", ":1"]);
    // Long names take many steps, too.
    let long = |number: usize| format!(" {number:032000}");
    for numbers in (0..450).collect::<Vec<_>>().chunks(90) {
        let fields: String = numbers.iter().map(|number| long(*number) + " v").collect();
        assert_eq!(client.call(&format!("HSET hash{fields}")).await, ":90");
    }
    let hdel = format!("HDEL hash{}", (0..450).map(long).collect::<String>());
    assert_eq!(client.pipeline(&["INCR a", &hdel, "EXISTS hash", "INCR a"]).await, [":2", ":450", ":0", ":3"]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_have_a_bound_of_bytes() {
    let node = roomy(|_| ()).await;
    let mut client = Resp::connect(&node).await;
    let set = |key: usize, bytes: usize| encode(&format!("SET {key} {}", "v".repeat(bytes)));
    for (last, fits) in [(1_000_000, true), (1_100_000, false)] {
        assert_eq!(client.call("MULTI").await, "+OK");
        let sets = (0..14).map(|key| set(key, 1 << 20));
        assert_eq!(unusual(&mut client, sets, "+QUEUED").await, Vec::<String>::new());
        client.send(&set(14, last)).await;
        let reply = client.reply().await;
        let executed = client.call("EXEC").await;
        if fits {
            assert_eq!((&reply[..], &executed[..]), ("+QUEUED", &*format!("*15{}", " +OK".repeat(15))));
        } else {
            assert_eq!(reply, "-ERR a transaction has at most 16382 commands and 15 MiB: split it");
            assert_eq!(executed, "-EXECABORT Transaction discarded because of previous errors.");
        }
    }
    assert_eq!(client.call("STRLEN 14").await, ":1000000");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_transactions_queue_has_a_bound_and_comes_back() {
    let four = ByteSize::parse("4MiB").unwrap();
    let node = roomy(|config| (config.max_body_bytes, config.max_body_bytes_in_flight) = (four, four)).await;
    let (mut one, mut other) = (Resp::connect(&node).await, Resp::connect(&node).await);
    let half = format!("SET k {}", "v".repeat(1 << 19));
    for client in [&mut one, &mut other] {
        assert_eq!(client.call("MULTI").await, "+OK");
    }
    for _ in 0..5 {
        assert_eq!(one.call(&half).await, "+QUEUED");
    }
    let busy = "-BUSY requests use too much memory: DISCARD, and retry later";
    assert_eq!(other.call(&half).await, "+QUEUED");
    assert_eq!(other.call(&half).await, busy);
    assert_eq!(other.call("EXEC").await, "-EXECABORT Transaction discarded because of previous errors.");
    // Small ones need no room, even now.
    assert_eq!(other.pipeline(&["MULTI", "SET a 1", "EXEC"]).await[2], "*1 +OK");
    assert_eq!(one.call("EXEC").await, format!("*5{}", " +OK".repeat(5)));
    // The bytes of a client that disconnects, or discards its transaction, are released.
    for _ in 0..3 {
        let mut client = Resp::connect(&node).await;
        assert_eq!(client.call("MULTI").await, "+OK");
        for _ in 0..6 {
            assert_eq!(client.call(&half).await, "+QUEUED");
        }
        client.reset();
        one.until("INFO clients", "connected_clients:2 ").await;
        assert_eq!(other.call("MULTI").await, "+OK");
        for _ in 0..6 {
            assert_eq!(other.call(&half).await, "+QUEUED");
        }
        assert_eq!(other.call("DISCARD").await, "+OK");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_have_a_bound() {
    const MOST: usize = 16_384;
    let node = roomy(|_| ()).await;
    let (mut client, mut other) = (Resp::connect(&node).await, Resp::connect(&node).await);
    let watch = |from: usize, to: usize| {
        let keys: Vec<_> = (from..to).map(|key| key.to_string()).collect();
        format!("WATCH {}", keys.join(" "))
    };
    assert_eq!(client.call(&watch(0, MOST - 1)).await, "+OK");
    assert_eq!(client.call("WATCH last one").await, "-ERR at most 16384 keys can be watched: UNWATCH some");
    assert_eq!(client.call("WATCH last").await, "+OK");
    assert_eq!(client.pipeline(&["MULTI", "SET a 1", "EXEC"]).await[2], "*1 +OK", "unchanged as they are");
    assert_eq!(client.pipeline(&[&watch(0, MOST - 1), "WATCH last"]).await, ["+OK", "+OK"]);
    assert_eq!(other.call("SET last 1").await, "+OK");
    assert_eq!(client.pipeline(&["MULTI", "SET a 2", "EXEC", "GET a"]).await[2..], ["*-1", "$1 1"]);
    // The bound in bytes: 32 keys of the maximum length together.
    let long = |number: usize| format!("WATCH {number:0>32768}");
    let watches: Vec<_> = (0..32).map(long).collect();
    assert_eq!(client.pipeline(&watches.iter().map(String::as_str).collect::<Vec<_>>()).await, ["+OK"; 32]);
    let refused = "-ERR all watched keys together have at most 1 MiB: UNWATCH some";
    assert_eq!(
        client.pipeline(&["WATCH x", "MULTI", "SET a 3", "EXEC", "UNWATCH", "WATCH x"]).await[..4],
        [refused, "+OK", "+QUEUED", "*1 +OK"]
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_under_way_have_a_bound() {
    const MOST: usize = 16_384;
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.pipeline(&["SET a 1", "SET b 1", "SET c 1"]).await, ["+OK"; 3]);
    let cursor = |reply: &str| reply.split(' ').nth(2).unwrap().to_owned();
    let first = cursor(&client.call("SCAN 0 COUNT 1").await);
    let second = cursor(&client.call("SCAN 0 COUNT 1").await);
    let scans = (0..MOST - 2).map(|_| encode("SCAN 0 COUNT 1"));
    assert_eq!(unusual(&mut client, scans, "").await.len(), MOST - 2);
    assert!(client.call(&format!("SCAN {first} COUNT 9")).await.starts_with("*2 $1 0 "), "it can go on at the bound");
    client.call("SCAN 0 COUNT 1").await;
    assert_eq!(client.call(&format!("SCAN {first} COUNT 9")).await, "-ERR invalid cursor");
    assert!(
        client.call(&format!("SCAN {second} COUNT 9")).await.starts_with("*2 $1 0 "),
        "only the oldest is forgotten"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_large_requests_have_a_bound_and_come_back() {
    let four = ByteSize::parse("4MiB").unwrap();
    let node = roomy(|config| (config.max_body_bytes, config.max_body_bytes_in_flight) = (four, four)).await;
    let announce = |bytes: usize| format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${bytes}\r\n").into_bytes();
    const SENT: usize = (1 << 20) - 1000;
    let mut held = Vec::new();
    for number in 1..=3 {
        let mut client = Resp::connect(&node).await;
        client.send(&[announce(1 << 20), vec![b'x'; SENT]].concat()).await;
        held.push(client);
        node.until_at_least(BODIES, (number * (1 << 20) - number * 20_000) as f64).await;
    }
    // A length that is only announced holds nothing, and the bytes that arrive do.
    let mut announced = Resp::connect(&node).await;
    announced.send(&announce(3 << 20)).await;
    let mut refused = Resp::connect(&node).await;
    let _ = refused.stream.write_all(&[announce(2 << 20), vec![b'x'; (3 << 20) / 2]].concat()).await;
    assert_eq!(refused.rest().await, "-BUSY requests use too much memory: connect again and retry later");
    drop(announced);
    // Small requests need no room. When the large ones have finished, there is room again.
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET k small").await, "+OK");
    for mut holder in held {
        holder.send(&[vec![b'x'; (1 << 20) - SENT], b"\r\n".to_vec()].concat()).await;
        assert_eq!(holder.reply().await, "+OK");
    }
    assert_eq!(client.call(&format!("SET k {}", "x".repeat(3 << 20))).await, "+OK");
    assert_eq!(client.call("STRLEN k").await, format!(":{}", 3 << 20));
    node.stop().await;
}

#[tokio::test]
async fn a_full_disk_keeps_no_server_from_starting() {
    let disk = SimDisk::new(1);
    let mut config = config();
    serving(&mut config);
    let options = Options { reserve_bytes: 256 * 1024, segment_bytes: 64 * 1024, ..small_options(&config) };
    let open =
        || Database::open_on(Arc::new(disk.clone()), Arc::new(SystemClock::default()), 1, options.clone()).unwrap();
    let node = Node::over(config.clone(), open()).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET a 1").await, "+OK");
    node.stop().await;
    drop(client);
    disk.set_capacity(1);
    let node = Node::over(config, open()).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("GET a").await, "$1 1");
    assert!(client.call("SET a 2").await.starts_with("-BUSY disk full"));
    assert_eq!(client.call("DEL a").await, ":1");
    disk.set_capacity(u64::MAX / 2);
    node.stop().await;
}

/// Name of the metric of bytes held for requests.
const BODIES: &str = "http_in_use{bound=\"body_bytes\"}";

/// Reply to a command whose own reply has no room among those that wait for clients.
const BUSY: &str = "-BUSY too many bytes of replies wait for clients: retry later";

#[tokio::test]
async fn large_replies_that_wait_are_bounded_for_all_clients_together() {
    let node = roomy(|config| config.max_reply_bytes_in_flight = ByteSize(64 << 20)).await;
    let mut client = Resp::connect(&node).await;
    let value = "x".repeat(8 << 20);
    for (key, part) in [("large", 1), ("half", 2), ("quarter", 4)] {
        assert_eq!(client.call(&format!("SET {key} {}", &value[..value.len() / part])).await, "+OK");
    }
    let most = "MGET large large large large large large large";
    // The client does not read its reply: a part of it goes into the sockets' buffers, and the remainder waits.
    let mut greedy = Resp::connect_small(&node).await;
    greedy.send(&encode(most)).await;
    greedy.stream.readable().await.unwrap();
    assert_eq!(client.call(most).await, BUSY);
    assert_eq!(client.pipeline(&["SET small 1", "GET small"]).await, ["+OK", "$1 1"], "what is small is not shed");
    assert!(node.metric(HELD).await > (16 << 20) as f64);
    assert!(greedy.reply().await.len() > 56 << 20);
    node.until(HELD, 0.0).await;
    assert!(client.call(most).await.len() > 56 << 20);
    // Reads after a write in the same burst are rejected as well. The error replaces the reply to a read only, so it
    // hides no change.
    greedy.send(&encode(most)).await;
    greedy.stream.readable().await.unwrap();
    let replies = client.pipeline(&["SET small 2", "GET large", "GET half", "GET quarter", "GET small"]).await;
    assert_eq!((&*replies[0], &*replies[4]), ("+OK", "$1 2"));
    assert!(replies[1..4].iter().any(|reply| reply == BUSY), "they have no room together");
    // A transaction that writes can read fewer of these values.
    let transaction = ["MULTI", "SET small 3", "MGET large large large large", "EXEC"];
    assert_eq!(client.pipeline(&transaction).await[3], format!("*2 +OK {BUSY}"));
    let reads = ["MULTI", "GET small", most, "EXEC"];
    assert_eq!(client.pipeline(&reads).await[3], format!("*2 $1 3 {BUSY}"));
    assert!(node.metric(HELD).await <= (64 << 20) as f64);
    drop(greedy);
    node.until(HELD, 0.0).await;
    node.stop().await;
}

/// Reads the key `large` in three ways over the native protocol. Returns the codes of the failures.
async fn natively(raw: &mut Raw, keyspace: KeyspaceId) -> [String; 3] {
    let (revision, values, keys) = (Revision(0), Values::Include, [&b"missing"[..], b"large"]);
    let (limit, max_bytes, order, end) = (1, 0, Order::Ascending, None);
    raw.put(1, &Get { keyspace, revision, values, key: RemainingBytes(b"large") });
    raw.put(2, &MultiGet { keyspace, revision, values, keys: List::Items(&keys) });
    raw.put(
        3,
        &Scan { keyspace, revision, limit, max_bytes, order, values, prefix: b"", start: None, end, cursor: b"" },
    );
    raw.flush().await;
    [raw.fails(1).await, raw.fails(2).await, raw.fails(3).await]
}

#[tokio::test]
async fn values_over_http_count_among_the_replies_that_wait() {
    let node = roomy(|config| config.max_reply_bytes_in_flight = HELD_BY_ONE_ADDRESS).await;
    for target in ["/v1/kv/files/large", "/v1/kv/default/large"] {
        node.put(target, &vec![7; 8 << 20]).await.is(204);
    }
    let mut native = node.raw().await;
    let files = native.keyspace("files").await;
    let mut client = Resp::connect(&node).await;
    let large = "x".repeat(8 << 20);
    assert_eq!(client.call(&format!("SET large {large}")).await, "+OK");
    assert_eq!(client.call(&format!("HSET hash field {large}")).await, ":1");
    assert_eq!(client.call(&format!("XADD stream 1-1 field {}", &large[1 << 10..])).await, "$3 1-1");
    let mut greedy = node.fill_reply_room("/v1/kv/files/large").await;
    // A value for which there is no room is not read.
    let read = async || node.metric("reads_handed_over_total{kind=\"long\"}").await;
    let (before, mut last) = (read().await, Resp::connect(&node).await);
    for _ in 0..5 {
        for target in [
            "/v1/kv/files/large",
            "/v1/kv/files?limit=1",
            "/v0/entity?id=large",
            "/keys/large",
            "/keys/range?start=a&end=z&limit=1",
        ] {
            node.get(target).await.refused(503, "overloaded", "retry");
        }
        assert_eq!(last.call("GET large").await, BUSY);
        assert_eq!(last.call("MGET missing large").await, BUSY);
        assert_eq!(natively(&mut native, files).await, ["overloaded"; 3]);
    }
    assert_eq!(read().await, before);
    // The bytes of collections are known only when they are read. Their reads stop before they copy values.
    let reads_of_collections = [
        "HGET hash field",
        "HMGET hash none field",
        "HGETALL hash",
        "HVALS hash",
        "HRANDFIELD hash 1 WITHVALUES",
        "HSCAN hash 0",
        "XRANGE stream - +",
        "XREVRANGE stream + -",
        "XREAD STREAMS stream 0",
        "GETRANGE large 1 -1",
    ];
    for read in reads_of_collections {
        assert_eq!(last.call(read).await, BUSY, "{read}");
    }
    assert_eq!(last.pipeline(&["MULTI", "HGET hash field", "EXEC"]).await[2], format!("*1 {BUSY}"));
    assert_eq!(last.call("HKEYS hash").await, "*1 $5 field");
    assert_eq!(last.call("HSTRLEN hash field").await, format!(":{}", large.len()));
    assert_eq!(last.call("GETRANGE large 1 3").await, "$3 xxx");
    let keys = node.get("/v1/kv/files?limit=1&keys_only=true").await.is(200).body;
    assert_eq!(keys.iter().filter(|byte| **byte == b'\n').count(), 2, "the key and the end");
    // A command that would change data and return a value does not begin.
    for taken in ["GETDEL large", "GETSET large x", "SET large x GET"] {
        assert_eq!(client.call(taken).await, BUSY, "{taken}");
        assert_eq!(client.pipeline(&["MULTI", taken, "EXEC"]).await[2], BUSY, "{taken}");
    }
    assert_eq!(client.call("SET other x").await, "+OK");
    node.put("/v1/kv/files/small", b"v").await.is(204);
    assert_eq!(node.get("/v1/kv/files/small").await.is(200).body, b"v");
    // A reply with a field and its value has a few bytes more than the value.
    greedy.truncate(6);
    node.until(HELD, (48 << 20) as f64).await;
    assert_eq!(node.get("/v1/kv/files/large").await.is(200).body.len(), 8 << 20);
    for read in reads_of_collections {
        assert!(last.call(read).await.len() > large.len() - 2048, "{read}");
    }
    drop(greedy);
    node.until(HELD, 0.0).await;
    assert!(client.call("GETDEL large").await.len() > 8 << 20);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_with_too_many_bytes_of_replies_is_not_continued() {
    let node = roomy(|_| ()).await;
    let mut client = Resp::connect(&node).await;
    client.send(&[&b"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$1048576\r\n"[..], &vec![b'v'; 1 << 20], b"\r\n"].concat()).await;
    assert_eq!(client.reply().await, "+OK");
    // These commands may write, so they are executed in the log. Their replies have 200 MiB together.
    let burst = ["SET first 1"].into_iter().chain(["GETEX big PERSIST"; 200]).chain(["SET last 1"]);
    client.send(&burst.flat_map(encode).collect::<Vec<u8>>()).await;
    assert_eq!(client.reply().await, "+OK");
    let (mut whole, mut refused) = (0_usize, 0);
    for _ in 0..201 {
        let reply = client.reply().await;
        match reply.starts_with("$1048576 ") {
            true => whole += 1,
            false => {
                assert!(reply.starts_with("-ERR the replies of these commands would be too large together"), "{reply}");
                refused += 1;
            }
        }
        assert!(refused == 0 || !reply.starts_with('$'), "a command was executed after one that was not");
    }
    assert!(whole >= 32 && refused > 0, "{whole} replies, {refused} refused");
    // Nothing of the later commands was executed, and the client can go on.
    assert_eq!(client.call("EXISTS first last").await, ":1");
    // Reads behind a write have a bound of their own, and stop no later command.
    let burst = ["SET first 2"].into_iter().chain(["GET big"; 60]).chain(["SET last 1"]);
    client.send(&burst.flat_map(encode).collect::<Vec<u8>>()).await;
    assert_eq!(client.reply().await, "+OK");
    let (mut whole, mut refused) = (0, 0);
    for _ in 0..60 {
        let reply = client.reply().await;
        match reply.starts_with("$1048576 ") {
            true => whole += 1,
            false => {
                assert!(reply.starts_with("-ERR too expensive: the reads that follow a write"), "{reply}");
                refused += 1;
            }
        }
    }
    assert!(whole >= 15 && refused > 0, "{whole} replies, {refused} refused");
    assert_eq!(client.reply().await, "+OK");
    assert_eq!(client.call("EXISTS first last").await, ":2");
    node.stop().await;
}
