//! What idle connections cost a server. Their clients are in a process of their own, so that memory and file descriptors are
//! the server's alone.

mod support;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::Node;
use thalweg_transport::Kind;
use thalweg_wire::{Frame as _, handshake::hello};

const ADDRESS: &str = "THALWEG_IDLE_ADDRESS";
const COUNT: &str = "THALWEG_IDLE_COUNT";

fn raise_file_limit(needed: u64) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let permitted = limit.maximum.unwrap_or(u64::MAX);
    assert!(permitted >= needed, "the hard limit on open files is {permitted}: raise it to {needed}");
}

/// The process with the clients: they stay until its standard input ends.
struct Clients {
    process: Child,
    _stdin: ChildStdin,
}

impl Clients {
    fn start(node: &Node, count: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_clients", "--ignored", "--nocapture"])
            .env(ADDRESS, node.native.unwrap().to_string())
            .env(COUNT, count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line.contains("all welcome"));
        assert!(ready, "the clients ended: {:?}", process.wait());
        Self { _stdin: process.stdin.take().unwrap(), process }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "run by the tests below"]
#[allow(clippy::print_stdout, reason = "its parent waits for the line")]
fn the_clients() {
    let (Ok(address), Ok(count)) = (std::env::var(ADDRESS), std::env::var(COUNT)) else { return };
    let count: usize = count.parse().unwrap();
    raise_file_limit(count as u64 + 50);
    let mut frame = Vec::new();
    hello("idle", 1 << 20, Duration::ZERO, &[]).encode(&mut frame, 0).unwrap();
    let connect = |_| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(&frame).unwrap();
        let mut header = [0; 12];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header[4..6], (thalweg_wire::Kind::Welcome as u16).to_le_bytes(), "welcome");
        stream
    };
    let all: Vec<TcpStream> = (0..count).map(connect).collect();
    println!("all welcome");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(all);
}

async fn idle_connections(count: usize) {
    raise_file_limit(count as u64 + 200);
    let node = Node::with(|config| config.max_connections = count as u32 + 10).await;
    node.carried(Kind::Tcp).await.is_served().await;
    let before = resident_bytes();
    let clients = tokio::task::block_in_place(|| Clients::start(&node, count));
    let each = resident_bytes().saturating_sub(before) / count;
    eprintln!("{count} idle connections over TCP: {each} bytes of the server each");
    assert!(each < 32 * 1024, "{each} bytes for an idle connection");
    // Beside them one that comes is served.
    node.carried(Kind::Tcp).await.is_served().await;
    drop(clients);
    node.stop().await;
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_cost_little() {
    idle_connections(500).await;
}

/// `cargo test -p thalweg-server --test native_idle ten_thousand -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs 10,200 file descriptors in each of two processes"]
async fn ten_thousand_idle_connections() {
    idle_connections(10_000).await;
}
