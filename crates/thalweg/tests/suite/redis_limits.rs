//! Memory that Redis clients can make a server use, measured from outside: its peak while clients announce large
//! requests, queue commands, and do not read replies. `server/tests/redis/limits.rs` tests the limits themselves.

use std::{
    io::Write as _,
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::{
    node::{Node, PATIENCE},
    redis::{Redis, Reply, address, encode},
};

const MIB: u64 = 1 << 20;

/// A server whose memory peak can be measured.
struct Server {
    node: Node,
    address: String,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = [&["--resp", "127.0.0.1:0"], flags].concat();
        let node = Node::start_with(&dir.path().join("data"), &flags);
        Self { address: address(&node), node, _dir: dir }
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.node.pid())).expect("the process runs");
        let line = status.lines().find(|line| line.starts_with(name)).expect("Linux");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
    }

    /// Resets the peak to the current memory, and returns that in bytes.
    fn forget_peak(&self) -> u64 {
        std::fs::write(format!("/proc/{}/clear_refs", self.node.pid()), "5").expect("a process of ours");
        self.status("VmRSS:")
    }

    /// Returns the difference in bytes between the peak and `before`.
    fn peak_above(&self, before: u64) -> u64 {
        self.status("VmHWM:").saturating_sub(before)
    }

    /// Connects a client and sends these bytes.
    fn sends(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    /// Waits until this number of clients, including `redis`, has connected since the server started, open or not.
    fn until_come(&self, redis: &mut Redis, count: usize) {
        until(redis, "INFO stats", "total_connections_received", |come| come == count);
    }

    /// Waits until this number of clients, including `redis`, is connected.
    fn until_connected(&self, redis: &mut Redis, count: usize) {
        until(redis, "INFO clients", "connected_clients", |connected| connected == count);
    }
}

/// Waits until a figure of the reply to `command` meets a condition.
fn until(redis: &mut Redis, command: &str, name: &str, shall_be: impl Fn(usize) -> bool) {
    let begun = Instant::now();
    loop {
        let info = redis.call(command);
        let line = info.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        if shall_be(line.expect("a figure of INFO").parse().unwrap()) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{info:?}");
    }
}

fn rest(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut said);
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn half_a_gigabyte_announced_by_who_is_unknown_allocates_nothing() {
    let server = Server::start(&["--resp-password", "secret", "--header-timeout", "60s"]);
    let mut known = Redis::connect(&server.address);
    assert_eq!(known.call("AUTH secret"), Reply::ok());
    let warm: Vec<_> = (0..100).map(|_| server.sends(b"PING\r\n")).collect();
    server.until_connected(&mut known, 101);
    let before = server.forget_peak();
    drop(warm);
    // Announcements at and above the limits, a hundred clients each, are rejected immediately.
    for (announced, said) in [
        ("*2\r\n$4\r\nAUTH\r\n$536870912\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"),
        ("*2\r\n$4\r\nAUTH\r\n$536870913\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        ("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16777216\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"),
        ("*1048576\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n"),
    ] {
        let all: Vec<_> = (0..100).map(|_| server.sends(announced.as_bytes())).collect();
        for stream in all {
            assert_eq!(rest(stream), said);
        }
    }
    // The largest accepted announcement: ten arguments of 16 KiB, of which nothing more arrives.
    let all: Vec<_> = (0..300).map(|_| server.sends(b"*10\r\n$16384\r\n")).collect();
    server.until_connected(&mut known, 301);
    let peak = server.peak_above(before);
    eprintln!("600 clients without a password: {} KiB more at most", peak >> 10);
    // Each client has a read buffer and its own state.
    assert!(peak < 32 * MIB, "{peak} bytes for what was only announced");
    drop(all);
    server.until_connected(&mut known, 1);
}

#[test]
fn what_is_announced_by_who_is_known_is_bounded_too() {
    let server = Server::start(&["--body-timeout", "60s", "--max-body-bytes-in-flight", "32MiB"]);
    let mut known = Redis::connect(&server.address);
    let before = server.forget_peak();
    // A million arguments each, of which the first ones arrive.
    let arrays: Vec<_> =
        (0..100).map(|_| server.sends(format!("*1048576\r\n{}", "$1\r\na\r\n".repeat(100)).as_bytes())).collect();
    server.until_connected(&mut known, 101);
    // 16 MB each, of which nothing arrives: an announcement takes no room.
    let bulks: Vec<_> = (0..100).map(|_| server.sends(b"*2\r\n$4\r\nECHO\r\n$16000000\r\n")).collect();
    server.until_connected(&mut known, 201);
    let peak = server.peak_above(before);
    eprintln!("200 clients that announce much: {} KiB more at most", peak >> 10);
    assert!(peak < 32 * MIB, "{peak} bytes for what was only announced");
    // A large request has room beside them.
    assert_eq!(known.call(&format!("SET k {}", "v".repeat(3 << 20))), Reply::ok());
    drop(arrays);
    for bulk in bulks {
        let _ = bulk.shutdown(std::net::Shutdown::Write);
        assert_eq!(rest(bulk), "");
    }
}

#[test]
fn who_takes_no_replies_holds_little_and_is_cut_off() {
    const CLIENTS: usize = 8;
    const VALUE: usize = 1 << 20;
    let server = Server::start(&["--write-timeout", "1s"]);
    let mut other = Redis::connect(&server.address);
    assert_eq!(other.call(&format!("SET large {}", "x".repeat(VALUE))), Reply::ok());
    other.call("GET large");
    let before = server.forget_peak();
    // Each client requests a gigabyte.
    let get = encode("GET large").repeat(1000);
    let all: Vec<_> = (0..CLIENTS).map(|_| server.sends(&get)).collect();
    let begun = Instant::now();
    server.until_come(&mut other, 1 + CLIENTS);
    server.until_connected(&mut other, 1);
    let took = begun.elapsed();
    let reads = server.peak_above(before);
    drop(all);
    // The same reads after a write, which makes them one commit whose replies are complete at the same time.
    let before = server.forget_peak();
    let burst = [encode("SET small 1"), encode("GET large").repeat(1000)].concat();
    let one = server.sends(&burst);
    server.until_come(&mut other, 2 + CLIENTS);
    server.until_connected(&mut other, 1);
    let bursts = server.peak_above(before);
    drop(one);
    eprintln!(
        "{CLIENTS} clients that take nothing: {} MiB more at most, cut after {took:?}; one with a burst: {} MiB",
        reads / MIB,
        bursts / MIB
    );
    assert!(took < Duration::from_secs(10), "{took:?}");
    // Per client, one value above the limit, both as it was read and as it is sent.
    assert!(reads < CLIENTS as u64 * 3 * VALUE as u64, "{reads}");
    // The maximum that one commit may read, and the values as they were read.
    assert!(bursts < 2 * 128 * MIB, "{bursts}");
    assert_eq!(other.call("GET small"), Reply::Bulk("1".to_owned()));
}
