//! Reads that take longer than a serving thread may spend on one client, and reads that need no entry of the log.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crate::support::{
    Node,
    resp::{Resp, encode, fill, node_with, node_with_one_thread, serving},
};

/// Number of keys, so that `KEYS` examines far more rows than a serving thread may for one client.
const KEYS: usize = 60_000;

/// Starts a node with one thread for Redis clients, and with many keys in the databases 0 and 1.
async fn node() -> Node {
    let node = node_with_one_thread().await;
    for database in ["0", "1"] {
        fill(&node, database, KEYS).await;
    }
    node
}

/// Several clients send many long reads at a time. Returns the number of answered reads once another client of the same
/// thread has got 60 answers, and the number of all reads.
async fn answered_meanwhile(node: &Node, database: &str, last: u8) -> (usize, usize) {
    const CLIENTS: usize = 8;
    const READS: usize = 8;
    let mut good = Resp::connect(node).await;
    assert_eq!(good.call(&format!("SELECT {database}")).await, "+OK");
    assert_eq!(good.call("SET mine v").await, "+OK");
    let answered = Arc::new(AtomicUsize::new(0));
    let mut greedy = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Resp::connect_from(node, last).await;
        assert_eq!(client.call(&format!("SELECT {database}")).await, "+OK");
        client.send(&encode("KEYS *no*such*key*").repeat(READS)).await;
        let answered = Arc::clone(&answered);
        greedy.push(tokio::spawn(async move {
            for _ in 0..READS {
                assert_eq!(client.reply().await, "*0");
                answered.fetch_add(1, SeqCst);
            }
        }));
    }
    for _ in 0..60 {
        assert_eq!(good.call("GET mine").await, "$1 v");
    }
    let meanwhile = answered.load(SeqCst);
    for client in greedy {
        client.await.unwrap();
    }
    (meanwhile, CLIENTS * READS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_reads_do_not_keep_other_clients_of_the_thread_waiting() {
    let node = node().await;
    for (database, last) in [("0", 1), ("1", 2)] {
        let (meanwhile, all) = answered_meanwhile(&node, database, last).await;
        assert!(meanwhile < all, "database {database}: all long reads came first");
    }
    node.stop().await;
}

/// Clients pipeline thousands of reads, each too short for the threads for long reads. Another client of their thread
/// gets an answer after each slice of them, not after all that they have sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_reads_are_handled_in_slices() {
    const CLIENTS: usize = 8;
    const READS: usize = 1000;
    let node = node().await;
    let mut good = Resp::connect(&node).await;
    let answered = Arc::new(AtomicUsize::new(0));
    let mut greedy = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Resp::connect_from(&node, 2).await;
        client.send(&encode("SCAN 0 MATCH none COUNT 500").repeat(READS)).await;
        let answered = Arc::clone(&answered);
        greedy.push(tokio::spawn(async move {
            for _ in 0..READS {
                assert!(client.reply().await.starts_with("*2 "));
                answered.fetch_add(1, SeqCst);
            }
        }));
    }
    let mut gets = 0_usize;
    while answered.load(SeqCst) < CLIENTS * READS {
        assert_eq!(good.call("GET mine").await, "$-1");
        gets += 1;
    }
    for client in greedy {
        client.await.unwrap();
    }
    assert!(gets >= 5 * CLIENTS, "{gets} requests while {} reads were handled", CLIENTS * READS);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_to_long_reads_keep_their_place() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    let sent = [
        "SET a 1",
        "KEYS no*such",
        "GET a",
        "SET a 2",
        "KEYS key:000007",
        "SCAN 0 COUNT 5000 MATCH key:000003",
        "GET a",
        "DBSIZE",
        "KEYS",
        "PING",
    ];
    let replies = client.pipeline(&sent).await;
    let (scan, others) = (&replies[5], [&replies[..5], &replies[6..]].concat());
    assert!(scan.ends_with("*1 $10 key:000003") && scan.starts_with("*2 $"), "{scan}");
    // Each KEYS would take more than half of the steps that are left for the reads behind a write.
    let rejected = "-ERR too expensive: the reads that follow a write in one pipeline would block others for too long; send \
                    them before the writes, or wait for the replies to the writes";
    let expected = [
        "+OK",
        rejected,
        "$1 1",
        "+OK",
        rejected,
        "$1 2",
        ":60001",
        "-ERR wrong number of arguments for 'keys' command",
        "+PONG",
    ];
    assert_eq!(others, expected);
    // The cursor of a long page continues the scan.
    let cursor = scan.split(' ').nth(2).unwrap();
    let next = client.call(&format!("SCAN {cursor} COUNT 15000 MATCH key:005002")).await;
    assert!(next.ends_with("*1 $10 key:005002"), "{next}");
    // In RESP3, and without replies.
    assert!(client.call("HELLO 3").await.starts_with('%'));
    client.send(&[encode("CLIENT REPLY SKIP"), encode("KEYS no*such"), encode("PING")].concat()).await;
    assert_eq!(client.reply().await, "+PONG");
    assert_eq!(client.call("INFO errorstats").await.matches("errorstat_ERR:count=3").count(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_transaction_that_only_reads_is_answered_from_one_view() {
    let node = node().await;
    let (mut client, mut other) = (Resp::connect(&node).await, Resp::connect(&node).await);
    let sent = ["SET a 1", "WATCH a", "MULTI", "KEYS a", "GET a", "PING", "EXEC", "GET a"];
    let replies = client.pipeline(&sent).await;
    assert_eq!(replies[5..], ["+QUEUED", "*3 *1 $1 a $1 1 +PONG", "$1 1"]);
    assert_eq!(client.pipeline(&["WATCH a", "MULTI", "KEYS a"]).await[2], "+QUEUED");
    assert_eq!(other.call("SET a 2").await, "+OK");
    assert_eq!(client.pipeline(&["EXEC", "GET a"]).await, ["*-1", "$1 2"]);
    // As many watched keys as take a long time.
    let keys: Vec<String> = (0..5000).map(|key| format!("key:{key:06}")).collect();
    assert_eq!(client.call(&format!("WATCH {}", keys.join(" "))).await, "+OK");
    assert_eq!(other.call("DEL key:004999").await, ":1");
    assert_eq!(client.pipeline(&["MULTI", "GET a", "EXEC"]).await[2], "*-1");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_blocking_read_returns_entries_or_waits() {
    let node = Node::with(serving).await;
    let (mut client, mut other) = (Resp::connect(&node).await, Resp::connect(&node).await);
    let adds: Vec<String> = (1..=6000).map(|id| format!("XADD s {id} f v")).collect();
    for adds in adds.chunks(1000) {
        client.pipeline(&adds.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let replies = client.pipeline(&["XREAD BLOCK 0 STREAMS s 0", "PING"]).await;
    assert_eq!(replies[0].matches("-0 *2 $1 f $1 v").count(), 6000);
    assert_eq!(replies[1], "+PONG");
    client.send(&encode("XREAD BLOCK 0 STREAMS s $")).await;
    other.until("CLIENT LIST", "flags=b").await;
    assert_eq!(other.call("XADD s 7000 f w").await, "$6 7000-0");
    assert_eq!(client.reply().await, "*1 *2 $1 s *1 *2 $6 7000-0 *2 $1 f $1 w");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_reads_beyond_the_share_are_rejected() {
    let node = node_with(|config| config.max_scans = 1).await;
    fill(&node, "0", KEYS).await;
    let mut client = Resp::connect(&node).await;
    // A scan over HTTP that its client does not read holds the only slot.
    let scan = node.open("/v1/kv/redis?keys_only=true", &[]).await;
    assert_eq!(client.call("KEYS no*such").await, "-BUSY too many long reads at a time: retry later");
    assert_eq!(client.call("GET key:000001").await, "$1 v");
    drop(scan);
    client.until("KEYS no*such", "*0").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_before_the_first_write_and_transactions_that_only_read_write_no_entry() {
    let node = Node::with(serving).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.pipeline(&["SET a 1", "HSET h f v"]).await, ["+OK", ":1"]);
    let entries = || node.db.stats().entries;
    let before = entries();
    let read = ["GET a", "HGETALL h", "MULTI", "GET a", "HGET h f", "EXEC", "WATCH a", "MULTI", "GET a", "EXEC"];
    let replies = client.pipeline(&read).await;
    assert_eq!([&replies[0], &replies[5], &replies[9]], ["$1 1", "*2 $1 1 $1 v", "*1 $1 1"]);
    assert_eq!(entries(), before, "nothing was written");
    // The first read sees the state before the write of the same burst, and the last one the state after it.
    let sent = ["GET a", "MULTI", "GET a", "EXEC", "SET a 2", "GET a", "MULTI", "GET a", "EXEC"];
    let replies = client.pipeline(&sent).await;
    assert_eq!(replies, ["$1 1", "+OK", "+QUEUED", "*1 $1 1", "+OK", "$1 2", "+OK", "+QUEUED", "*1 $1 2"]);
    assert_eq!(entries(), before + 1, "one entry for the write and the reads after it");
    node.stop().await;
}
