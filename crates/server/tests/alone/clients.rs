//! Idle clients, to measure the cost of idle connections. The clients run in a process of their own, so that the
//! measured memory and file descriptors are the server's alone. That process is the test's own program, started again
//! with an ignored test that acts as the clients.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::{SocketAddr, TcpStream},
    process::{Child, ChildStdin, Command, Stdio},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const ADDRESS: &str = "THALWEG_IDLE_ADDRESS";
const COUNT: &str = "THALWEG_IDLE_COUNT";

pub fn raise_file_limit(needed: u64) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let permitted = limit.maximum.unwrap_or(u64::MAX);
    assert!(permitted >= needed, "the hard limit on open files is {permitted}: raise it to {needed}");
}

/// The process with the clients, which stay until its standard input ends.
pub struct Clients {
    process: Child,
    _stdin: ChildStdin,
}

impl Clients {
    /// Starts the process. `test` is the ignored test that calls [`be_the_clients`].
    pub fn start(test: &str, server: SocketAddr, count: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(ADDRESS, server.to_string())
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

/// Acts as the clients. Each must get an answer after it has connected. Does nothing in a process that was not started
/// for this purpose.
#[allow(clippy::print_stdout, reason = "its parent waits for the line")]
pub fn be_the_clients(connect: impl Fn(&str) -> TcpStream) {
    let (Ok(address), Ok(count)) = (std::env::var(ADDRESS), std::env::var(COUNT)) else { return };
    let count: usize = count.parse().unwrap();
    raise_file_limit(count as u64 + 50);
    let all: Vec<TcpStream> = (0..count).map(|_| connect(&address)).collect();
    println!("all welcome");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(all);
}

/// Returns the resident memory of this process in bytes.
pub fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
