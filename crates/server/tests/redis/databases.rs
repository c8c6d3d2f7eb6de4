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
async fn a_dropped_keyspace_is_an_empty_database_and_the_next_one_of_its_name_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let node = over(dir.path()).await;
    let mut client = Resp::connect(&node).await;
    for (number, name) in [(0, "redis"), (3, "redis-3")] {
        let (keyspace, key) = (format!("/v1/keyspaces/{name}"), format!("/v1/kv/{name}/a"));
        assert_eq!(client.call(&format!("SELECT {number}")).await, "+OK");
        assert_eq!(client.pipeline(&["SET a 1", "HSET h f v"]).await, ["+OK", ":1"]);
        node.delete(&keyspace).await.is(204);
        assert_eq!(client.pipeline(&["GET a", "EXISTS a h", "DBSIZE"]).await, ["$-1", ":0", ":0"]);
        // The next write creates a keyspace for hashes, too.
        assert_eq!(client.pipeline(&["SET a 2", "HSET h f v", "GET a"]).await, ["+OK", ":1", "$1 2"]);
        assert_eq!(node.get(&key).await.is(200).body, b"2");
        // Also without a read in between.
        node.delete(&keyspace).await.is(204);
        assert_eq!(client.pipeline(&["MULTI", "SET a 3", "EXEC"]).await[2], "*1 +OK");
        assert_eq!(node.get(&key).await.is(200).body, b"3");
        // A client of another protocol creates the keyspace.
        node.delete(&keyspace).await.is(204);
        node.put(&key, b"other").await.is(204);
        assert_eq!(client.call("GET a").await, "$5 other");
        node.delete(&keyspace).await.is(204);
        node.put(&key, b"other").await.is(204);
        assert_eq!(client.pipeline(&["APPEND a +", "GET a"]).await, [":6", "$6 other+"]);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_key_has_changed_if_its_keyspace_was_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let node = over(dir.path()).await;
    let mut client = Resp::connect(&node).await;
    for is_created_again in [false, true] {
        assert_eq!(client.pipeline(&["SET a 1", "WATCH a"]).await, ["+OK", "+OK"]);
        node.delete("/v1/keyspaces/redis").await.is(204);
        if is_created_again {
            node.put("/v1/kv/redis/a", b"1").await.is(204);
        }
        assert_eq!(client.pipeline(&["MULTI", "SET a 9", "EXEC"]).await[2], "*-1", "{is_created_again}");
    }
    assert_eq!(client.pipeline(&["DEL a", "WATCH a"]).await, [":1", "+OK"]);
    node.delete("/v1/keyspaces/redis").await.is(204);
    assert_eq!(client.pipeline(&["MULTI", "SET a 9", "EXEC"]).await[2], "*1 +OK", "the key is missing as before");
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
