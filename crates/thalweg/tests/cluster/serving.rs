//! Every node serves every protocol, and reads show their level on each of them.

use crate::{Cluster, read, until, write};

#[test]
fn a_write_on_any_node_is_read_on_every_node() {
    let cluster = Cluster::start(3);
    for writer in 0..3 {
        let (key, value) = (format!("/v1/kv/k/from{writer}"), format!("value {writer}"));
        let revision = write(&cluster.url(writer, &key), &value).expect("the revision of the write");
        for reader in 0..3 {
            let read = |level: &str| read(&cluster.url(reader, &key), &[("thalweg-read", level)]);
            for level in ["linearizable", "lease", &format!("at-least={revision}")] {
                assert_eq!(read(level), (200, value.clone().into_bytes()), "{level}: {writer} to {reader}");
            }
            until("a stale read follows", || read("stale").0 == 200);
        }
    }
}

#[test]
fn redis_clients_use_any_node() {
    let cluster = Cluster::start(3);
    let follower = cluster.follower();
    // Each line of commands may be sent again: a node that knows no leader for a moment refuses it.
    let answers = |node: usize, commands: &str, expected: &str| {
        until(&format!("node {node} answers {expected:?}"), || cluster.redis(node, commands).starts_with(expected));
    };
    answers(follower, "SET a 1\r\nINCR a\r\nHSET h f v\r\nHGET h f\r\n", "+OK\r\n:2\r\n:");
    for reader in 0..3 {
        answers(reader, "GET a\r\nHGET h f\r\n", "$1\r\n2\r\n$1\r\nv\r\n");
    }
    assert!(write(&cluster.url(follower, "/v1/kv/redis/b"), "7").is_some());
    answers(cluster.leader(), "GET b\r\n", "$1\r\n7\r\n");
}

#[test]
fn streams_and_groups_work_from_any_node() {
    let cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let cli = |number: usize, args: &[&str]| cluster.node(number).cli(args);
    cli(follower, &["append", "jobs", "one", "two", "three"]).ok();
    assert_eq!(cli(leader, &["read", "jobs"]).ok().lines().count(), 3);
    cli(leader, &["groups", "create", "jobs", "workers"]).ok();
    let taken = cli(follower, &["consume", "jobs", "--group", "workers", "--limit", "3", "--json"]).ok();
    assert_eq!(taken.lines().count(), 3, "{taken}");
    let group = cli(leader, &["groups", "show", "jobs", "workers", "--json"]).ok();
    let group: serde_json::Value = serde_json::from_str(&group).unwrap();
    assert_eq!(group["acked"], 3, "{group}");
}
