//! Native streams as a database of Redis clients: records appended on one side are read on the other.

use thalweg_server::config::{RespDatabases, Setting};

use crate::support::{
    Node,
    resp::{Resp, encode, node_with},
};

async fn node() -> Node {
    node_with(|config| config.resp_databases = RespDatabases::parse("0=keyspace:redis,2=streams").unwrap()).await
}

async fn client(node: &Node) -> Resp {
    let mut client = Resp::connect(node).await;
    assert_eq!(client.call("SELECT 2").await, "+OK");
    client
}

/// Parses a reply that consists of one id.
fn id(reply: &str) -> (u64, u64) {
    let (_, id) = reply.split_once(' ').unwrap_or_else(|| panic!("{reply}"));
    let (ms, seq) = id.split_once('-').unwrap_or_else(|| panic!("{reply}"));
    (ms.parse().unwrap(), seq.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_added_is_read_over_http_and_what_is_appended_there_is_read_by_redis_clients() {
    let node = node().await;
    let mut client = client(&node).await;
    let first = client.call("XADD orders * payload hello kind new").await;
    assert_eq!(id(&first).1, 0);
    let records = node.get("/v1/streams/orders/records").await;
    let text = String::from_utf8_lossy(&records.body).into_owned();
    assert!(records.status == 200 && text.contains("hello") && text.contains("kind"), "{} {text}", records.status);
    assert!(node.call("POST", "/v1/streams/orders/records", &[], b"from http").await.status < 300);
    assert_eq!(client.call("XLEN orders").await, ":2");
    let entries = client.call("XRANGE orders - +").await;
    assert!(entries.contains("$4 kind $3 new $7 payload $5 hello"), "{entries}");
    assert!(entries.contains("$7 payload $9 from http"), "{entries}");
    let after = client.call(&format!("XREAD STREAMS orders {}", &first[first.find(' ').unwrap() + 1..])).await;
    assert!(after.contains("from http") && !after.contains("hello"), "{after}");
    assert_eq!(client.call("XTRIM orders MAXLEN 1").await, ":1");
    assert_eq!(node.db.find_stream("orders").unwrap().info().unwrap().start.0, 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_one_commit_and_ids_rise() {
    let node = node().await;
    let mut client = client(&node).await;
    client.call("XADD s * f v").await;
    let before = node.db.stats().entries;
    let adds: Vec<_> = (0..50).map(|at| format!("XADD s * f {at}")).collect();
    let replies = client.pipeline(&adds.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let ids: Vec<_> = replies.iter().map(|reply| id(reply)).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    assert_eq!(ids.iter().map(|id| id.1).collect::<Vec<_>>(), (1..=50).collect::<Vec<_>>());
    assert_eq!(node.db.stats().entries - before, 1);
    let replies =
        client.pipeline(&["XADD s MAXLEN 3 * f v", "XLEN s", "XADD t NOMKSTREAM * f v", "XADD s 1-1 f v"]).await;
    assert_eq!(replies[1..3], [":3", "$-1"]);
    assert!(replies[3].starts_with("-ERR entries of native streams get their ids"), "{}", replies[3]);
    for command in ["XDEL s 1-1", "XGROUP CREATE s g 0", "SET k v", "DEL s", "EXPIRE s 10"] {
        assert!(client.call(command).await.starts_with("-ERR native streams have no such command"), "{command}");
    }
    assert_eq!(client.call("XADD a/b * f v").await.split(' ').next(), Some("-ERR"));
    let mut watching = Resp::connect(&node).await;
    let replies = watching.pipeline(&["SELECT 2", "WATCH s", "MULTI", "XADD s * f v", "EXEC"]).await;
    assert!(replies[4].starts_with("-ERR a transaction on native streams"), "{replies:?}");
    let replies = watching.pipeline(&["MULTI", "XADD s * f v", "XLEN s", "EXEC"]).await;
    assert!(replies[3].starts_with("*2 $") && replies[3].ends_with(":4"), "{replies:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_waits_is_told_of_appends_from_everywhere() {
    let node = node().await;
    let (mut reader, mut writer) = (client(&node).await, client(&node).await);
    writer.call("XADD s * f v").await;
    for from_http in [true, false] {
        reader.send(&encode("XREAD BLOCK 20000 STREAMS s $")).await;
        writer.until("CLIENT LIST", "flags=b").await;
        if from_http {
            assert!(node.call("POST", "/v1/streams/s/records", &[], b"from http").await.status < 300);
            assert!(reader.reply().await.contains("from http"));
        } else {
            writer.call("XADD s * f there").await;
            assert!(reader.reply().await.contains("there"));
        }
    }
    assert_eq!(reader.call("XREAD BLOCK 1 STREAMS s $").await, "*-1");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_waits_for_a_stream_that_does_not_exist_gets_its_first_entry() {
    let node = node().await;
    let (mut reader, mut watcher) = (client(&node).await, client(&node).await);
    for is_deleted in [false, true] {
        reader.send(&encode("XREAD BLOCK 50000 STREAMS s $")).await;
        watcher.until("CLIENT LIST", "flags=b").await;
        if is_deleted {
            node.delete("/v1/streams/s").await.is(204);
            // The ids of the new stream begin with a later millisecond than that of the last entry.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert!(node.call("POST", "/v1/streams/s/records", &[], b"first").await.status < 300);
        assert!(reader.reply().await.contains("first"), "{is_deleted}");
    }
    node.stop().await;
}
