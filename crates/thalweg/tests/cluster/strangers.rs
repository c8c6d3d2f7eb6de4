//! Ten thousand strangers at the port for nodes of a real process: nothing enters, nothing stops, and memory is
//! bounded.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use thalweg_server::cluster::Credentials;

use crate::{
    Cluster, Founding, Links, PATIENCE, Tokens,
    node::{self, Node, command, free_address},
    put, until,
};

const STRANGERS: usize = 10_000;
/// Most connections that wait in a handshake of one node: without an accepted hello, and behind it.
const MAX_WAITING: usize = 2 * 256;
/// Descriptors of this process for everything else.
const OTHER_FILES: u64 = 1_000;
/// Growth of the node's memory that the connections may cause: 4 KiB for each that waits, and what the allocator, the
/// runtime and the writes of the test keep.
const MAX_GROWTH_KIB: u64 = 64 * 1024;

/// Raises the limit of open files, which a node that is started later inherits. Returns false if it is too low.
fn may_open(files: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take a structure that lives through them.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 && limit.rlim_cur >= files
    }
}

/// Returns the first frame that a node with this join token sends to the port that it joins.
fn hello(cluster: &Cluster, token: &str) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let join = listener.local_addr().unwrap().to_string();
    let mut binary = command();
    binary.env("THALWEG_JOIN_TOKEN", token);
    let data = cluster.root.join("stranger");
    let node = Node::start_of(binary, &data, &["--cluster", &free_address(), "--join", &join, "--cluster-tls"]);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut header = [0; 16];
    stream.read_exact(&mut header).expect("a hello");
    let length = u32::from_le_bytes(header[..4].try_into().unwrap()) as usize;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a hello");
    node.kill();
    fs::remove_dir_all(data).unwrap();
    [&header[..], &body].concat()
}

/// Returns the memory of a node's process in KiB.
fn memory_kib(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a process has memory");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn ten_thousand_strangers_stop_nothing() {
    if !may_open(STRANGERS as u64 + OTHER_FILES) {
        node::skip("10,000 strangers at the port for nodes", "the limit of open files is too low");
        return;
    }
    let mut cluster = Cluster::start_with(3, Founding::Together, Links::Secret);
    // Without the secret, and with it, but recorded, so that the proof is missing.
    let id = Credentials::parse(&cluster.tokens.join).unwrap().cluster;
    let wrong = Credentials::of_cluster(id).unwrap().0.join_token();
    let wrong_secret = hello(&cluster, &wrong);
    let recorded = hello(&cluster, &cluster.tokens.join);
    let other_cluster = hello(&cluster, &Tokens::create().join);
    let kinds: [&[u8]; 7] = [
        b"",
        &recorded[..20],
        &recorded,
        &wrong_secret,
        &other_cluster,
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        &[0xff; 64],
    ];
    let leader = cluster.leader();
    let write = |cluster: &Cluster, key: usize| {
        let url = cluster.url(leader, &format!("/v1/kv/k/{key}"));
        until("a write is acknowledged", || put(&url, "value").is_some_and(|(status, _)| status == 204));
    };
    (0..100).for_each(|key| write(&cluster, key));
    let before = memory_kib(cluster.node(leader));
    let mut strangers = Vec::with_capacity(STRANGERS);
    let mut most = before;
    for number in 0..STRANGERS {
        let mut stream = TcpStream::connect(&cluster.addresses[leader]).expect("the port accepts");
        // The node may have closed the connection already.
        let _ = stream.write_all(kinds[number % kinds.len()]);
        strangers.push(stream);
        if number % 100 == 0 {
            write(&cluster, number);
            most = most.max(memory_kib(cluster.node(leader)));
        }
    }
    // All but the newest were closed by the node. The last one that is shows that it has seen those before it.
    let old = STRANGERS - kinds.len() * MAX_WAITING;
    for stream in &mut strangers[..old] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "the oldest are given up");
        assert!(rest.len() < 512, "a reason or the beginning of TLS at most, and not {rest:?}");
    }
    most = most.max(memory_kib(cluster.node(leader)));
    println!("{} MiB before the strangers, at most {} MiB with them", before / 1024, most / 1024);
    assert!(most < before + MAX_GROWTH_KIB, "{before} KiB before, {most} KiB with strangers");
    // A member that starts now gets in among them.
    let restarted = cluster.follower();
    cluster.take(restarted).stop();
    cluster.restart(restarted);
    until("the member is back", || cluster.status(restarted)["leader"].is_string());
    cluster.until_voters(3);
    write(&cluster, STRANGERS);
    assert_eq!(cluster.members().len(), 3, "nobody joined");
    drop(strangers);
}
