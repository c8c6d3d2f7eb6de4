//! Every node serves every protocol, and reads show their level on each of them.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::{Cluster, agent, read, until, write};

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

/// Sends commands to a node until its replies begin with `expected`: a node that knows no leader for a moment refuses
/// them.
fn until_answer(cluster: &Cluster, node: usize, commands: &str, expected: &str) {
    until(&format!("node {node} answers {expected:?}"), || cluster.redis(node, commands).starts_with(expected));
}

#[test]
fn redis_clients_use_any_node() {
    let cluster = Cluster::start(3);
    let follower = cluster.follower();
    until_answer(&cluster, follower, "SET a 1\r\nINCR a\r\nHSET h f v\r\nHGET h f\r\n", "+OK\r\n:2\r\n:");
    for reader in 0..3 {
        until_answer(&cluster, reader, "GET a\r\nHGET h f\r\n", "$1\r\n2\r\n$1\r\nv\r\n");
    }
    assert!(write(&cluster.url(follower, "/v1/kv/redis/b"), "7").is_some());
    until_answer(&cluster, cluster.leader(), "GET b\r\n", "$1\r\n7\r\n");
}

#[test]
fn redis_clients_of_all_nodes_find_a_keyspace_that_replaced_another_while_a_node_was_down() {
    let mut cluster = Cluster::start(3);
    let (leader, down) = (cluster.leader(), cluster.follower());
    for node in 0..3 {
        until_answer(&cluster, node, "SET a old\r\nGET a\r\n", "+OK\r\n$3\r\nold\r\n");
    }
    cluster.take(down).kill();
    let keyspace = cluster.url(leader, "/v1/keyspaces/redis");
    until("the keyspace is dropped", || {
        agent().delete(&keyspace).call().is_ok_and(|reply| matches!(reply.status().as_u16(), 204 | 404))
    });
    assert!(write(&cluster.url(leader, "/v1/kv/redis/a"), "new").is_some());
    // Its state still has the old keyspace when it starts.
    cluster.restart(down);
    for node in 0..3 {
        until_answer(&cluster, node, "GET a\r\n", "$3\r\nnew\r\n");
        let (set, get) = (format!("SET of{node} v\r\n"), format!("/v1/kv/redis/of{node}"));
        until_answer(&cluster, node, &set, "+OK\r\n");
        assert_eq!(read(&cluster.url(node, &get), &[]).1, b"v");
    }
}

/// Sends a command, and returns the stream. Its reply is read later.
fn send(cluster: &Cluster, node: usize, command: &str) -> TcpStream {
    let mut stream = cluster.redis_stream(node);
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    stream
}

/// Reads the reply to a command until it contains `part`.
fn until_reply(stream: &mut TcpStream, part: &str) {
    let (mut reply, mut bytes) = (String::new(), [0; 4096]);
    while !reply.contains(part) {
        let count = stream.read(&mut bytes).unwrap_or_else(|error| panic!("{error}, after {reply:?}"));
        assert!(count > 0, "the connection ended after {reply:?}");
        reply.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        assert!(!reply.starts_with('-'), "{reply}");
    }
}

/// A blocked reader would wait for ever if only clients of its own node woke it.
#[test]
fn an_entry_of_one_node_wakes_readers_that_block_at_another() {
    let cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    // The keyspace exists, and the follower has it, when the readers begin.
    until("the group exists", || cluster.redis(leader, "XGROUP CREATE jobs g $ MKSTREAM\r\n").starts_with('+'));
    until("the follower has the stream", || cluster.redis(follower, "XLEN jobs\r\n").starts_with(":0"));
    for (reading, writing) in [(follower, leader), (leader, follower)] {
        let mut reader = send(&cluster, reading, "XREAD BLOCK 0 STREAMS jobs other $ $");
        let mut consumer = send(&cluster, reading, "XREADGROUP GROUP g c BLOCK 0 STREAMS jobs >");
        let blocked = || cluster.redis(reading, "INFO clients\r\n").contains("blocked_clients:2");
        until("both readers block", blocked);
        until("the entry is added", || cluster.redis(writing, "XADD jobs * field here\r\n").starts_with('$'));
        until_reply(&mut reader, "here");
        until_reply(&mut consumer, "here");
        // The stream does not exist yet at the first reader.
        let mut renamed = send(&cluster, reading, "XREAD BLOCK 0 STREAMS renamed 0");
        until("the reader blocks", || cluster.redis(reading, "INFO clients\r\n").contains("blocked_clients:1"));
        let rename = |from: &str, to: &str| {
            let renamed = || cluster.redis(writing, &format!("RENAME {from} {to}\r\n")).starts_with("+OK");
            until("the stream is renamed", renamed);
        };
        rename("jobs", "renamed");
        until_reply(&mut renamed, "here");
        rename("renamed", "jobs");
    }
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
