//! Three processes on the loopback as one cluster.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "how long writes paused")]

#[path = "../node/damage.rs"]
mod damage;
#[path = "../node/mod.rs"]
mod node;

mod changes;
mod clients;
mod continuing;
mod deployed;
mod monitoring;
mod operations;
mod protection;
mod repairs;
mod serving;
mod starting;
mod strangers;

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    time::{Duration, Instant},
};

use node::{Node, Run, command, free_address, pause_after, run};
use serde_json::Value;
use ureq::Agent;

/// Longest time for a change that the cluster makes without a request, such as an election, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tokens of a cluster.
struct Tokens {
    join: String,
    admin: String,
}

impl Tokens {
    fn create() -> Self {
        let tokens = run(command().args(["cluster", "create-token", "--json"]), b"").ok();
        let tokens: Value = serde_json::from_str(&tokens).unwrap();
        let text = |name: &str| tokens[name].as_str().unwrap().to_owned();
        Self { join: text("join_token"), admin: text("admin_token") }
    }
}

/// Way in which the nodes of a cluster come together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Founding {
    /// Node 0 creates the cluster, and the others join it.
    ByFirst,
    /// All nodes found the cluster together.
    Together,
}

/// Protection of the links between the nodes of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    Plain,
    /// TLS with the secret alone.
    Secret,
    /// TLS with an authority, whose files are in `certs` below the directory of the cluster.
    Authority,
}

/// A cluster of processes.
struct Cluster {
    founding: Founding,
    links: Links,
    log_level: Option<&'static str>,
    /// True if nodes that start from now on repair their states without an operator.
    repairs: bool,
    /// More options of each node, by its number.
    options: Vec<Vec<&'static str>>,
    _dir: tempfile::TempDir,
    root: PathBuf,
    tokens: Tokens,
    /// Addresses for the other nodes, by the number of the node.
    addresses: Vec<String>,
    nodes: Vec<Option<Node>>,
}

impl Cluster {
    /// Starts a cluster of this many nodes, and waits until all of them vote.
    fn start(count: usize) -> Self {
        Self::start_as(count, Founding::ByFirst)
    }

    /// Starts a cluster like [`start`](Self::start), in another way.
    fn start_as(count: usize, founding: Founding) -> Self {
        Self::start_with(count, founding, Links::Plain)
    }

    /// Starts a cluster like [`start_as`](Self::start_as), with this protection of the links.
    fn start_with(count: usize, founding: Founding, links: Links) -> Self {
        Self::start_of(count, founding, links, None)
    }

    /// Starts a cluster like [`start`](Self::start), whose nodes log at this level.
    fn start_logging(count: usize, log_level: &'static str) -> Self {
        Self::start_of(count, Founding::ByFirst, Links::Plain, Some(log_level))
    }

    fn start_of(count: usize, founding: Founding, links: Links, log_level: Option<&'static str>) -> Self {
        let mut cluster = Self { log_level, ..Self::prepare(count, founding, links) };
        for _ in 0..count {
            cluster.add();
        }
        cluster.until_voters(count);
        cluster
    }

    /// Makes the tokens, addresses and directories of a cluster, none of whose nodes runs yet.
    fn prepare(count: usize, founding: Founding, links: Links) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let addresses = (0..count).map(|_| free_address()).collect();
        if links == Links::Authority {
            protection::create(&root.join("certs"), count);
        }
        Self {
            founding,
            links,
            log_level: None,
            repairs: false,
            options: Vec::new(),
            _dir: dir,
            root,
            tokens: Tokens::create(),
            addresses,
            nodes: Vec::new(),
        }
    }

    /// Starts one more node. The first one creates the cluster, and the others join at it. Returns its number.
    fn add(&mut self) -> usize {
        let number = self.nodes.len();
        if number == self.addresses.len() {
            self.addresses.push(free_address());
        }
        self.nodes.push(None);
        self.restart(number);
        number
    }

    /// Starts a node that does not run, with the same options as before.
    fn restart(&mut self, number: usize) {
        let name = format!("n{number}");
        let address = self.addresses[number].clone();
        let mut flags = vec!["--cluster", &address, "--node-name", &name, "--resp", "127.0.0.1:0"];
        let all = self.addresses.join(",");
        let count = self.addresses.len().to_string();
        match (self.founding, number) {
            (Founding::ByFirst, 0) => flags.push("--cluster-init"),
            (Founding::ByFirst, _) => flags.extend(["--join", &all]),
            (Founding::Together, _) => flags.extend(["--join", &all, "--expect", &count]),
        }
        let files = protection::flags(&self.root.join("certs"), number);
        match self.links {
            Links::Plain => {}
            Links::Secret => flags.push("--cluster-tls"),
            Links::Authority => flags.extend(files.iter().map(String::as_str)),
        }
        if self.repairs {
            flags.push("--cluster-repair");
        }
        if let Some(level) = self.log_level {
            flags.extend(["--log-level", level]);
        }
        flags.extend(self.options.get(number).into_iter().flatten());
        let mut binary = command();
        binary.env("THALWEG_JOIN_TOKEN", &self.tokens.join);
        self.nodes[number] = Some(Node::start_of(binary, &self.data(number), &flags));
    }

    fn data(&self, number: usize) -> PathBuf {
        self.root.join(format!("n{number}"))
    }

    fn node(&self, number: usize) -> &Node {
        self.nodes[number].as_ref().expect("the node runs")
    }

    /// Takes a node out of the cluster's list, so that the caller can stop or kill it.
    fn take(&mut self, number: usize) -> Node {
        self.nodes[number].take().expect("the node runs")
    }

    fn running(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(number, node)| Some((number, node.as_ref()?)))
    }

    /// Runs `thalweg cluster` against a node, with the admin token.
    fn cli(&self, number: usize, args: &[&str]) -> Run {
        let mut command = command();
        command.arg("cluster").args(args).env("THALWEG_ADMIN_TOKEN", &self.tokens.admin);
        run(command.env("THALWEG_SERVER", &self.node(number).url), b"")
    }

    /// Returns the members as any running node shows them.
    fn members(&self) -> Vec<Value> {
        let (number, _) = self.running().next().expect("a node runs");
        let text = self.cli(number, &["members", "--json"]).ok();
        let members: Value = serde_json::from_str(&text).unwrap();
        members["members"].as_array().unwrap().clone()
    }

    fn until_voters(&self, count: usize) {
        until("all nodes vote", || {
            // A command is a process, so it comes last.
            self.running().all(|(number, _)| self.status(number)["leader"].is_string())
                && self.members().iter().filter(|member| member["role"] == "voter").count() == count
        });
    }

    /// Returns the cluster's status as a node shows it; null if the node does not answer.
    fn status(&self, number: usize) -> Value {
        let reply = get(&format!("{}/v1/cluster/status", self.node(number).url), &[]);
        reply.map_or(Value::Null, |(_, body)| serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Waits until a running node leads, and returns its number.
    fn leader(&self) -> usize {
        let mut leader = None;
        until("a node leads", || {
            leader = self.running().map(|(number, _)| number).find(|number| self.status(*number)["leads"] == true);
            leader.is_some()
        });
        leader.unwrap()
    }

    /// Returns a running node that does not lead.
    fn follower(&self) -> usize {
        let leader = self.leader();
        self.running().map(|(number, _)| number).find(|number| *number != leader).expect("another node runs")
    }

    fn url(&self, number: usize, path: &str) -> String {
        format!("{}{path}", self.node(number).url)
    }

    /// Sends inline commands to the Redis port of a node, and returns the replies.
    fn redis(&self, number: usize, commands: &str) -> String {
        let mut stream = self.redis_stream(number);
        stream.write_all(format!("{commands}QUIT\r\n").as_bytes()).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        replies
    }

    /// Connects to a node as a Redis client.
    fn redis_stream(&self, number: usize) -> TcpStream {
        let line = &self.node(number).line;
        let address = line.split_whitespace().find_map(|word| word.strip_prefix("redis://"));
        let address = address.expect("it says where Redis clients are served").trim_end_matches(',');
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// Repeats a check until it holds.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let began = Instant::now();
        if holds() {
            return;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        pause_after(began);
    }
}

fn agent() -> Agent {
    Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(10))).build().into()
}

/// Sends a GET, and returns status and body; `None` if there was no reply.
fn get(url: &str, headers: &[(&str, &str)]) -> Option<(u16, Vec<u8>)> {
    let mut request = agent().get(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut reply = request.call().ok()?;
    let body = reply.body_mut().read_to_vec().ok()?;
    Some((reply.status().as_u16(), body))
}

/// Sends a GET like [`get`], again as long as the node knows no leader, and returns status and body.
fn read(url: &str, headers: &[(&str, &str)]) -> (u16, Vec<u8>) {
    let mut reply = None;
    until("the node reads", || {
        reply = get(url, headers).filter(|(status, _)| *status != 503);
        reply.is_some()
    });
    reply.unwrap()
}

/// Puts a value, again as long as the cluster does not acknowledge it, and returns the revision.
fn write(url: &str, value: &str) -> Option<u64> {
    let mut revision = None;
    until("the write is acknowledged", || {
        put(url, value).is_some_and(|(status, at)| {
            revision = at;
            assert!(matches!(status, 204 | 503), "status {status}");
            status == 204
        })
    });
    revision
}

/// Sends a PUT, and returns status and revision; `None` if there was no reply.
fn put(url: &str, value: &str) -> Option<(u16, Option<u64>)> {
    let reply = agent().put(url).send(value).ok()?;
    let revision = reply.headers().get("thalweg-revision").and_then(|text| text.to_str().ok()?.parse().ok());
    Some((reply.status().as_u16(), revision))
}
