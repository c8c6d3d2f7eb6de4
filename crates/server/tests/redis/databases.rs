//! Databases of Redis clients in the default configuration, and databases that are configured as caches.

use thalweg_engine::Database;
use thalweg_server::config::{RespAddress, RespDatabases, Setting};

use crate::support::{
    Node, config,
    resp::{Resp, node},
    small_options,
};

/// Starts a node with the default databases over a directory.
async fn over(dir: &std::path::Path) -> Node {
    let mut config = config();
    config.resp = RespAddress::parse("127.0.0.1:0").unwrap();
    let db = Database::open(dir, small_options(&config)).unwrap();
    Node::over(config, db).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sixteen_databases_are_durable_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let node = over(dir.path()).await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("CONFIG GET databases").await, "*2 $9 databases $2 16");
    for number in 0..16 {
        assert_eq!(client.call(&format!("SELECT {number}")).await, "+OK");
        assert_eq!(
            client.call("CONFIG GET maxmemory*").await,
            "*4 $9 maxmemory $1 0 $16 maxmemory-policy $10 noeviction"
        );
        // An empty database answers before its keyspace exists.
        assert_eq!(client.pipeline(&["DBSIZE", "GET number", "WATCH number"]).await, [":0", "$-1", "+OK"]);
        let set = format!("SET number {number}");
        assert_eq!(client.pipeline(&["MULTI", &set, "EXEC"]).await[2], "*1 +OK");
        assert_eq!(client.call("HSET hash field value").await, ":1");
    }
    assert_eq!(client.call("SELECT 16").await, "-ERR DB index is out of range");
    node.stop().await;

    let node = over(dir.path()).await;
    let mut client = Resp::connect(&node).await;
    for number in 0..16 {
        let get = client.pipeline(&[&format!("SELECT {number}"), "GET number", "DBSIZE"]).await;
        assert_eq!(get[1..], [format!("${} {number}", number.to_string().len()), ":2".to_owned()]);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_no_cache_evicts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = over(dir.path()).await;
    let mut client = Resp::connect(&node).await;
    client.call("SELECT 1").await;
    let value = "v".repeat(400_000);
    for number in 0..100 {
        assert_eq!(client.call(&format!("SET key{number} {value}")).await, "+OK");
    }
    assert_eq!(client.call("DBSIZE").await, ":100");
    assert_eq!(client.call("STRLEN key0").await, ":400000");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_first_write_at_the_same_time_share_a_new_keyspace() {
    let dir = tempfile::tempdir().unwrap();
    let node = over(dir.path()).await;
    let mut clients = Vec::new();
    for number in 0..8 {
        let mut client = Resp::connect(&node).await;
        client.call("SELECT 3").await;
        clients.push(tokio::spawn(async move { client.call(&format!("SET key{number} v")).await }));
    }
    for client in clients {
        assert_eq!(client.await.unwrap(), "+OK");
    }
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.pipeline(&["SELECT 3", "DBSIZE"]).await[1], ":8");
    // The keyspace is also that of other protocols.
    assert_eq!(node.get("/v1/kv/redis-3/key0").await.is(200).body, b"v");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_tells_its_limit_and_that_it_evicts() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    let limit = "*4 $9 maxmemory $8 33554432 $16 maxmemory-policy $11 allkeys-lru";
    assert_eq!(client.pipeline(&["SELECT 1", "CONFIG GET maxmemory*"]).await[1], limit);
    assert_eq!(client.call("CONFIG GET appendonly").await, "*2 $10 appendonly $2 no");
    assert!(client.call("INFO persistence").await.contains("aof_enabled:0"));
    let info = client.call("INFO memory").await;
    assert!(info.contains("maxmemory:33554432") && info.contains("maxmemory_policy:allkeys-lru"), "{info}");
    client.call("SELECT 0").await;
    let info = client.call("INFO memory").await;
    assert!(info.contains("maxmemory:0") && info.contains("maxmemory_policy:noeviction"), "{info}");
    node.stop().await;
    let mixed = RespDatabases::parse("16,15=cache:sessions").unwrap();
    assert_eq!((mixed.0.len(), mixed.show().as_str()), (16, "16,15=cache:sessions"));
}
