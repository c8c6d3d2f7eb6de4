//! Redis clients of a node of a cluster: barriers of their reads, and the error words that they know.

use std::sync::Arc;

use thalweg_server::{
    Config,
    cluster::ClusterError,
    config::{RespDatabases, Setting},
};
use thalweg_types::{
    ReadLevel,
    command::{
        KeyspaceConfig, StreamConfig, encode_create_keyspace, encode_create_stream, encode_delete_stream,
        encode_drop_keyspace,
    },
};

use crate::support::{
    Node,
    cluster::{Barriers, FakeCluster, taken},
    lagging::Lagging,
    resp::{Resp, encode, serving},
};

async fn member(level: ReadLevel) -> (Node, Arc<FakeCluster>) {
    let (fake, cluster, _) = FakeCluster::new();
    let node = Node::in_cluster(cluster, |config| {
        serving(config);
        config.resp_read_level = level;
    });
    (node.await, fake)
}

#[tokio::test]
async fn a_burst_of_reads_waits_for_one_barrier() {
    let (node, cluster) = member(ReadLevel::Linearizable).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.pipeline(&["SET a 1", "SET b 2"]).await, ["+OK", "+OK"]);
    let before = cluster.begun();
    cluster.set(Barriers::Closed);
    let burst: Vec<u8> = ["GET a", "GET b", "PING", "EXISTS a"].iter().flat_map(|command| encode(command)).collect();
    client.send(&burst).await;
    cluster.until_begun(before + 1).await;
    // These arrive after the barrier began, so they need another one.
    client.send(&encode("GET b")).await;
    cluster.set(Barriers::Open);
    for wanted in ["$1 1", "$1 2", "+PONG", ":1", "$1 2"] {
        assert_eq!(client.reply().await, wanted);
    }
    let begun = cluster.begun() - before;
    assert!((1..=2).contains(&begun), "{begun} barriers");
    node.stop().await;
}

#[tokio::test]
async fn empty_requests_cover_no_later_read() {
    let (node, cluster) = member(ReadLevel::Linearizable).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET a 1").await, "+OK");
    let before = cluster.begun();
    for round in 1..=3 {
        cluster.set(Barriers::Closed);
        client.send(&[&b"GET a\r\n"[..], &b"\r\n".repeat(1000), &b"*0\r\n".repeat(1000)].concat()).await;
        cluster.until_begun(before + round).await;
        cluster.set(Barriers::Open);
        assert_eq!(client.reply().await, "$1 1");
    }
    node.stop().await;
}

#[tokio::test]
async fn reads_behind_a_write_and_reads_of_a_cache_need_no_barrier() {
    let (node, cluster) = member(ReadLevel::Linearizable).await;
    let mut client = Resp::connect(&node).await;
    cluster.set(Barriers::Failing(ClusterError::NoLeader));
    assert_eq!(client.pipeline(&["SET a 1", "GET a"]).await, ["+OK", "$1 1"]);
    let replies = client.pipeline(&["MULTI", "SET a 2", "GET a", "EXEC"]).await;
    assert_eq!(replies[3], "*2 +OK $1 2");
    assert_eq!(client.pipeline(&["SELECT 1", "SET c 3", "GET c"]).await, ["+OK", "+OK", "$1 3"]);
    assert_eq!(cluster.begun(), 0);
    node.stop().await;
}

#[tokio::test]
async fn stale_reads_need_no_barrier() {
    let (node, cluster) = member(ReadLevel::Stale).await;
    let mut client = Resp::connect(&node).await;
    cluster.set(Barriers::Failing(ClusterError::NoLeader));
    assert_eq!(client.call("SET a 1").await, "+OK");
    assert_eq!(client.call("GET a").await, "$1 1");
    assert_eq!(cluster.begun(), 0);
    node.stop().await;
}

#[tokio::test]
async fn errors_have_the_words_that_redis_clients_retry_after() {
    let (node, cluster) = member(ReadLevel::Linearizable).await;
    let mut client = Resp::connect(&node).await;
    for (error, word) in [
        (ClusterError::NoLeader, "-CLUSTERDOWN "),
        (ClusterError::NotLeader { leader: None }, "-TRYAGAIN "),
        (ClusterError::ReadTimeout, "-TRYAGAIN "),
        (ClusterError::Recovering, "-LOADING "),
        (ClusterError::Stopping, "-BUSY "),
        (ClusterError::Failed { reason: "x".to_owned() }, "-MISCONF "),
        (ClusterError::StoppedServing { reason: "x".to_owned() }, "-MISCONF "),
    ] {
        cluster.set(Barriers::Failing(error.clone()));
        for command in ["GET a", "KEYS *", "DBSIZE", "WATCH a", "SCAN 0", "XREAD STREAMS s 0"] {
            let reply = client.call(command).await;
            assert!(reply.starts_with(word), "{error:?}, {command}: {reply}");
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn a_transaction_that_only_reads_ends_with_the_error_of_its_barrier() {
    let (node, cluster) = member(ReadLevel::Linearizable).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET a 1").await, "+OK");
    cluster.set(Barriers::Failing(ClusterError::NoLeader));
    let replies = client.pipeline(&["MULTI", "GET a", "EXEC", "EXEC"]).await;
    assert!(replies[2].starts_with("-CLUSTERDOWN "), "{replies:?}");
    assert_eq!(replies[3], "-ERR EXEC without MULTI", "the transaction is over");
    cluster.set(Barriers::Open);
    assert_eq!(client.pipeline(&["MULTI", "GET a", "EXEC"]).await[2], "*1 $1 1");
    node.stop().await;
}

#[tokio::test]
async fn watched_keys_of_other_databases_are_compared_behind_a_barrier() {
    let (fake, cluster, _) = FakeCluster::new();
    let node = Node::in_cluster(cluster, |config| {
        serving(config);
        config.resp_databases = RespDatabases::parse("0=keyspace:redis,1=cache:c,2=keyspace:two").unwrap();
    });
    let node = node.await;
    let mut client = Resp::connect(&node).await;
    for own in ["2", "1"] {
        assert_eq!(client.pipeline(&["SELECT 0", "WATCH a"]).await, ["+OK", "+OK"]);
        let select = format!("SELECT {own}");
        assert_eq!(client.pipeline(&[&select, "MULTI", "SET b 1"]).await, ["+OK", "+OK", "+QUEUED"]);
        fake.set(Barriers::Failing(ClusterError::NoLeader));
        let reply = client.call("EXEC").await;
        assert!(reply.starts_with("-CLUSTERDOWN "), "{own}: {reply}");
        fake.set(Barriers::Open);
        assert_eq!(client.call("EXISTS b").await, ":0", "nothing was executed");
        assert_eq!(client.pipeline(&["SELECT 0", "WATCH a", &select, "MULTI", "SET b 1", "EXEC"]).await[5], "*1 +OK");
        assert_eq!(client.call("DEL b").await, ":1");
    }
    node.stop().await;
}

#[tokio::test]
async fn native_streams_are_read_behind_a_barrier_also_in_a_burst() {
    let (fake, cluster, _) = FakeCluster::new();
    let node = Node::in_cluster(cluster, |config| {
        serving(config);
        config.resp_databases = RespDatabases::parse("0=streams").unwrap();
    });
    let node = node.await;
    let mut client = Resp::connect(&node).await;
    fake.set(Barriers::Failing(ClusterError::NoLeader));
    // Only the first of these bursts commits something before its read.
    let replies = client.pipeline(&["XADD s * f v", "XLEN s"]).await;
    assert_eq!(replies[1], ":1", "{replies:?}");
    for burst in [
        &["XADD none NOMKSTREAM * f v", "XLEN none"][..],
        &["XTRIM none MAXLEN 0", "XLEN none"],
        &["XTRIM s MAXLEN 5", "XLEN s"],
        &["XTRIM s", "XLEN s"],
    ] {
        let replies = client.pipeline(burst).await;
        assert!(replies[1].starts_with("-CLUSTERDOWN "), "{burst:?}: {replies:?}");
        assert!(burst[0] == "XTRIM s" || replies[0] == replies[1], "{burst:?}: {replies:?}");
    }
    fake.set(Barriers::Open);
    assert_eq!(
        client.pipeline(&["XADD none NOMKSTREAM * f v", "XLEN none", "XTRIM s MAXLEN 0"]).await,
        ["$-1", ":0", ":1"]
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_a_member_that_lags_go_to_the_present_keyspace() {
    let member = Lagging::start(serving).await;
    let mut client = Resp::connect(&member.node).await;
    for is_created in [true, false] {
        assert_eq!(client.call("SET a old").await, "+OK");
        let old = member.node.db.find_keyspace("redis").unwrap().id();
        member.elsewhere(|out| {
            encode_drop_keyspace(out, old);
            Ok(())
        });
        if is_created {
            member.elsewhere(|out| encode_create_keyspace(out, "redis", &KeyspaceConfig::default()));
        }
        assert_eq!(client.pipeline(&["APPEND a new", "GET a"]).await, [":3", "$3 new"]);
    }
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_member_that_lags_go_to_the_present_native_stream() {
    let change = |config: &mut Config| {
        serving(config);
        config.resp_databases = RespDatabases::parse("0=streams").unwrap();
    };
    let member = Lagging::start(change).await;
    let mut client = Resp::connect(&member.node).await;
    for is_created in [true, false] {
        client.pipeline(&["XADD s * f v", "XADD other * f v"]).await;
        let (old, others) = (member.node.db.find_stream("s").unwrap().id(), client.call("XLEN other").await);
        member.elsewhere(|out| {
            encode_delete_stream(out, old);
            Ok(())
        });
        if is_created {
            member.elsewhere(|out| encode_create_stream(out, "s", &StreamConfig::default()));
        }
        let replies = client.pipeline(&["XADD s * f v", "XADD other * f v", "XLEN s"]).await;
        assert!(replies[0].starts_with('$') && replies[1].starts_with('$'), "{replies:?}");
        assert_eq!(replies[2], ":1", "{replies:?}");
        assert_ne!(client.call("XLEN other").await, others);
    }
    let old = member.node.db.find_stream("s").unwrap().id();
    member.elsewhere(|out| {
        encode_delete_stream(out, old);
        Ok(())
    });
    assert_eq!(client.call("XADD s NOMKSTREAM * f v").await, "$-1");
    assert!(member.node.db.find_stream("s").is_none());
    member.stop().await;
}

#[tokio::test]
async fn a_client_that_sends_no_more_gets_the_replies_that_wait_for_a_barrier() {
    let (node, cluster) = member(ReadLevel::Linearizable).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("SET a 1").await, "+OK");
    cluster.set(Barriers::Closed);
    let before = cluster.begun();
    client.send(&encode("GET a")).await;
    cluster.until_begun(before + 1).await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
    cluster.set(Barriers::Open);
    assert_eq!(client.rest().await, "$1 1");
    node.stop().await;
}

#[tokio::test]
async fn publish_counts_the_receivers_of_this_node_and_reaches_the_others() {
    let (node, cluster) = member(ReadLevel::Stale).await;
    let other = cluster.other_node(&["news", "sport.>"]);
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.pipeline(&["PUBLISH news a", "PUBLISH none b"]).await, [":0", ":0"]);
    let mut subscriber = Resp::connect(&node).await;
    assert_eq!(subscriber.call("SUBSCRIBE news").await, "*3 $9 subscribe $4 news :1");
    assert_eq!(client.call("PUBLISH news c").await, ":1");
    assert_eq!(subscriber.reply().await, "*3 $7 message $4 news $1 c");
    assert_eq!(taken(&other).iter().map(|item| item.batch.messages()).sum::<u32>(), 2);
    node.stop().await;
}
