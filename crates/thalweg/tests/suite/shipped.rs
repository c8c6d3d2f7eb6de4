//! Behaviour that depends on how the binary was optimised. With `THALWEG_SHIPPED=path`, the tests run that binary,
//! which CI builds with the profile of releases; without it they run the one of this build.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::node::{Node, PATIENCE, THALWEG, clean};

fn start(data: &std::path::Path) -> Node {
    let binary = std::env::var("THALWEG_SHIPPED").unwrap_or_else(|_| THALWEG.to_owned());
    Node::start_of(clean(&binary), data, &["--resp", "127.0.0.1:0"])
}

/// Sends inline commands of Redis, the last of which is `QUIT`, and returns all replies.
fn redis(node: &Node, commands: &str) -> String {
    let address = node.line.split_whitespace().find_map(|word| word.strip_prefix("redis://"));
    let address = address.expect("it says where Redis clients are served").trim_end_matches(',');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(commands.as_bytes()).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    replies
}

#[test]
fn commands_of_redis_clients_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(&dir.path().join("data"));
    redis(&node, "SET a 1\r\nGET a\r\nGET a\r\nHSET h f v\r\nXADD s * f v\r\nCLIENT ID\r\nQUIT\r\n");
    let info = redis(&node, "INFO everything\r\nQUIT\r\n");
    for line in
        ["total_commands_processed:7\r", "cmdstat_set:calls=1,", "cmdstat_get:calls=2,", "cmdstat_client|id:calls=1,"]
    {
        assert!(info.contains(line), "{line}: {info}");
    }
    let mut metrics = ureq::get(format!("{}/metrics", node.url)).call().unwrap();
    let metrics = metrics.body_mut().read_to_string().unwrap();
    for line in ["command=\"get\"} 2", "command=\"hset\"} 1", "command=\"xadd\"} 1"] {
        let line = format!("thalweg_resp_commands_total{{{line}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    node.stop();
}
