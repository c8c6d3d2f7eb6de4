//! `INFO commandstats`, `errorstats` and `latencystats`, `CONFIG RESETSTAT`, and the metrics of commands.

use std::collections::BTreeMap;

use crate::{
    oracle::{
        connection::{Connection, Target},
        redis_server::RedisServer,
    },
    support::resp::{Resp, node},
};

/// Commands of one client, with successes, failures, rejections and transactions.
const SCRIPT: &[&str] = &[
    "SET a 1",
    "GET a",
    "GET a",
    "GET nothing",
    "HSET a f v",
    "HSET h f v",
    "HGET h",
    "nope a",
    "CLIENT ID",
    "CLIENT SETNAME me",
    "CLIENT KILL ID x",
    "CLIENT nope",
    "CLIENT",
    "CONFIG GET maxmemory",
    "XADD s 1-1 f v",
    "XGROUP CREATE s g 0",
    "XGROUP CREATE missing g 0",
    "XREAD COUNT 1 STREAMS s 0",
    "MULTI",
    "SET b 1",
    "INCR b",
    "HGET b f",
    "PING",
    "EXEC",
    "MULTI",
    "GET",
    "EXEC",
    "EXEC",
    "WATCH b",
    "SET b 2",
    "MULTI",
    "INCR b",
    "EXEC",
    "PUBLISH channel message",
    "SELECT 99999999999",
    "PING",
];

/// Calls, rejected calls and failed calls of each command, from the lines of `INFO commandstats`.
fn counts(info: &str) -> BTreeMap<String, [u64; 3]> {
    let lines = info.split_whitespace().filter_map(|line| line.strip_prefix("cmdstat_"));
    let count = |line: &str, name: &str| -> u64 {
        let found = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {name} in {line}")).parse().unwrap()
    };
    let of = |line: &str| {
        let (name, fields) = line.split_once(':').unwrap();
        (name.to_owned(), ["calls", "rejected_calls", "failed_calls"].map(|name| count(fields, name)))
    };
    lines.map(of).collect()
}

/// Returns the value of a field of `INFO`.
fn field(info: &str, name: &str) -> u64 {
    let line = info.split_whitespace().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).trim().parse().unwrap()
}

fn ask(connection: &mut Connection, command: &str) -> String {
    let args: Vec<Vec<u8>> = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    connection.ask(&args).bulk().map_or(String::new(), |text| String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_and_errors_are_counted_as_redis_counts_them() {
    let Some(redis) = RedisServer::start() else { return };
    let node = node().await;
    tokio::task::block_in_place(|| {
        let (mut theirs, mut ours) = (redis.connect(2), Connection::tcp(node.resp.unwrap(), 2));
        for connection in [&mut theirs, &mut ours] {
            ask(connection, "CONFIG RESETSTAT");
            for command in SCRIPT {
                ask(connection, command);
            }
        }
        for section in ["commandstats", "errorstats"] {
            let [expected, got] = [&mut theirs, &mut ours].map(|of| ask(of, &format!("INFO {section}")));
            assert_eq!(counts(&expected), counts(&got), "{expected}\n{got}");
            let errors = |info: &str| {
                info.split_whitespace().filter(|line| line.starts_with("errorstat")).map(str::to_owned).collect()
            };
            let [expected, got]: [Vec<String>; 2] = [errors(&expected), errors(&got)];
            assert_eq!(expected, got);
        }
        let [expected, got] = [&mut theirs, &mut ours].map(|of| {
            let info = ask(of, "INFO stats");
            ["total_commands_processed", "total_error_replies"].map(|name| field(&info, name))
        });
        assert_eq!(expected, got);
        let names = |info: &str| -> Vec<String> {
            let lines = info.split_whitespace().filter_map(|line| line.strip_prefix("latency_percentiles_usec_"));
            let mut names: Vec<_> = lines.map(|line| line.split_once(':').unwrap().0.to_owned()).collect();
            names.sort();
            names
        };
        let [expected, got] = [&mut theirs, &mut ours].map(|of| names(&ask(of, "INFO latencystats")));
        assert_eq!(expected, got);
    });
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_begin_anew_after_a_reset_and_metrics_go_on() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    client.pipeline(&["SET a 1", "GET a", "GET a", "HSET a f v"]).await;
    let info = client.call("INFO everything").await;
    let all = counts(&info);
    assert_eq!((all["get"], all["set"], all["hset"]), ([2, 0, 0], [1, 0, 0], [1, 0, 1]));
    assert_eq!(field(&info, "total_commands_processed"), 4);
    assert!(info.contains("errorstat_WRONGTYPE:count=1"), "{info}");
    let line = info.split_whitespace().find(|line| line.starts_with("latency_percentiles_usec_get:p50=")).unwrap();
    assert!(line.contains(",p99=") && line.contains(",p99.9="), "{line}");
    assert!(field(&info, "total_net_input_bytes") > 100 && field(&info, "total_connections_received") == 1);
    // The usual sections do not include those of single commands.
    let usual = client.call("INFO").await;
    assert!(!usual.contains("cmdstat_") && !usual.contains("latency_percentiles") && usual.contains("errorstat_"));
    assert_eq!(node.metric("resp_commands_total{command=\"get\"}").await, 2.0);

    assert_eq!(client.call("CONFIG RESETSTAT").await, "+OK");
    let info = client.call("INFO everything").await;
    assert_eq!(counts(&info).into_keys().collect::<Vec<_>>(), ["config|resetstat"]);
    assert_eq!(field(&info, "total_commands_processed"), 1);
    assert_eq!(field(&info, "total_error_replies"), 0);
    assert_eq!(field(&info, "total_connections_received"), 0);
    assert!(!info.contains("errorstat_"), "{info}");
    client.call("GET a").await;
    assert_eq!(counts(&client.call("INFO commandstats").await)["get"], [1, 0, 0]);
    assert_eq!(node.metric("resp_commands_total{command=\"get\"}").await, 3.0);
    assert_eq!(node.metric("resp_commands_total{command=\"config|resetstat\"}").await, 1.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_in_a_blocking_read_is_no_time_of_the_command() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    assert_eq!(client.call("XREAD BLOCK 300 STREAMS s $").await, "*-1");
    let info = client.call("INFO commandstats").await;
    let line = info.split_whitespace().find(|line| line.starts_with("cmdstat_xread:")).unwrap();
    let micros: u64 = line.split("usec=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(micros < 250_000, "{line}");
    node.stop().await;
}
