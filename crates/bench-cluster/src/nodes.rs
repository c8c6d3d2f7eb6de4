//! The nodes of the measured cluster: processes that the benchmark starts, or nodes that run already.
//!
//! Owns: founding a cluster of processes on the loopback in a temporary directory, killing and restarting single nodes,
//! adding and removing one, and asking for the leader. Every wait is bounded by [`PATIENCE`]. Dropping [`Nodes`] kills
//! the processes. The caller removes the directory with their data.

use std::{
    fs::File,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    BenchError, Progress,
    options::ClusterOptions,
    relay::Relay,
    server::{Client, Metrics, NativePort, ServerProcess, Target, tail},
    usage::{MeasuredProcess, Usage},
};

/// Longest time for which the benchmark waits for a change that the cluster makes by itself, such as an election. A
/// busy machine may need this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two attempts to change the members while another change is in progress.
const CHANGE_RETRY: Duration = Duration::from_millis(100);
/// Interval at which the benchmark asks nodes for their state while it waits for a change.
const LOOK: Duration = Duration::from_millis(20);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of attempts to found a cluster. An attempt fails if another program takes the port that was chosen
/// for a node, before the node listens there.
const FOUNDINGS: u32 = 3;
/// Maximum number of nodes that found a cluster together.
const MAX_FOUNDERS: usize = 7;
/// First port of the nodes. The ports lie below those from which the kernel chooses for outgoing connections (32768 and
/// above), so that no connection takes the port of a node while the node is down.
const FIRST_PORT: u16 = 12_000;
const PORTS: u16 = 20_000;

/// Choice of a port for Redis clients on the nodes that the benchmark starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RespPort {
    /// The nodes get no port for Redis clients.
    Off,
    /// Each node gets a free port for Redis clients.
    Free,
}

/// Way in which a new cluster is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Founding {
    /// All nodes are founders: they create the cluster together.
    Together,
    /// The first node creates the cluster, and the others join it.
    ByFirst,
}

/// Parameters of the nodes that the benchmark starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup<'a> {
    /// Name of the directory below `dir` that has the data of all nodes.
    pub name: &'a str,
    pub count: usize,
    /// Command to start as `COMMAND serve`; `None` for the running program.
    pub binary: Option<&'a Path>,
    /// Directory below which the nodes keep their data.
    pub dir: &'a Path,
    /// Additional arguments of `serve` for each node.
    pub args: &'a [String],
    pub native: NativePort,
    pub resp: RespPort,
    /// Delay of all bytes between two nodes, in each direction. If it is zero, the nodes connect directly, without
    /// relays.
    pub delay: Duration,
    pub founding: Founding,
    /// Data directory of each node, in the order of the nodes' numbers. If empty, the data is below `dir`.
    pub disks: &'a [PathBuf],
}

impl<'a> Setup<'a> {
    /// Returns the setup that the suite's options describe. The nodes serve HTTP only, and their network has no delay.
    pub(crate) fn new(name: &'a str, dir: &'a Path, options: &'a ClusterOptions) -> Self {
        Self {
            name,
            count: options.count,
            binary: options.server_binary.as_deref(),
            dir,
            args: &options.server_arg,
            native: NativePort::Off,
            resp: RespPort::Off,
            delay: Duration::ZERO,
            founding: Founding::Together,
            disks: &[],
        }
    }
}

/// The nodes of the measured cluster, and the settings with which the benchmark starts further nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    all: Vec<Node>,
    own: Option<NodeLauncher>,
}

/// A node of the measured cluster: its addresses and, if the benchmark started it, its process.
#[derive(Debug)]
pub(crate) struct Node {
    /// Address of the node's HTTP port.
    pub http: SocketAddr,
    /// Address of the node's native port, if it has one.
    pub native: Option<SocketAddr>,
    /// Address of the node's port for Redis clients, if it has one.
    pub resp: Option<SocketAddr>,
    /// Address at which the node listens for other nodes. Unused if the benchmark did not start the node.
    peer: SocketAddr,
    /// Relay through which the other nodes connect to this node, and which delays the bytes; `None` if the network has
    /// no delay.
    relay: Option<Relay>,
    /// Process of the node; `None` if it is down, or if the benchmark did not start it.
    process: Option<ServerProcess>,
}

/// Program, directory, arguments and tokens with which the benchmark starts its own nodes.
#[derive(Debug)]
struct NodeLauncher {
    binary: PathBuf,
    dir: PathBuf,
    args: Vec<String>,
    tokens: Tokens,
    /// Number of nodes that found the cluster together. Further nodes join it.
    founders: usize,
    /// Data directory of each node, in the order of the nodes' numbers. If empty, the data is below `dir`.
    disks: Vec<PathBuf>,
}

/// Tokens of a cluster that the benchmark founds: one for joining nodes, and one for the administrator.
#[derive(Clone, Debug)]
struct Tokens {
    join: String,
    admin: String,
}

/// Role of a node in the cluster: leader or follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Leader,
    Follower,
}

impl Nodes {
    /// Returns the nodes of a cluster that runs already. `addresses` are those of their HTTP ports.
    pub(crate) fn running(addresses: &[String]) -> Result<Self, BenchError> {
        let node = |url: &String| {
            let http = Target::running(url)?.address;
            Ok(Node { http, native: None, resp: None, peer: http, relay: None, process: None })
        };
        let nodes = Self { all: addresses.iter().map(node).collect::<Result<_, _>>()?, own: None };
        nodes.leader()?;
        Ok(nodes)
    }

    /// Starts nodes that found a cluster. Waits until all of them are voters and know the leader.
    pub(crate) fn start(setup: Setup<'_>, progress: &mut dyn Progress) -> Result<Self, BenchError> {
        let Setup { name, count, dir, args, .. } = setup;
        let binary = match setup.binary {
            Some(binary) => binary.to_owned(),
            None => std::env::current_exe().map_err(BenchError::files("the running command"))?,
        };
        let tokens = create_tokens(&binary)?;
        let mut founding = 1;
        loop {
            let dir = dir.join(format!("{name}{founding}"));
            // A scenario may start several clusters with one name, one after the other. None must continue an earlier
            // one.
            match std::fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(BenchError::files(&dir)(error));
                }
                _ => std::fs::create_dir_all(&dir).map_err(BenchError::files(&dir))?,
            }
            // Only the first [`MAX_FOUNDERS`] nodes found the cluster together; the others join it.
            let founders = if setup.founding == Founding::ByFirst { 1 } else { count.min(MAX_FOUNDERS) };
            let disks = setup.disks.iter().map(|disk| disk.join(format!("{name}{founding}"))).collect();
            let own = NodeLauncher {
                binary: binary.clone(),
                dir,
                args: args.to_vec(),
                tokens: tokens.clone(),
                founders,
                disks,
            };
            progress.step(&format!("starting {count} times {} serve {}", binary.display(), args.join(" ")));
            match Self::found(setup, own) {
                Err(error) if founding < FOUNDINGS => progress.step(&format!("again, because {error}")),
                result => return result,
            }
            founding += 1;
        }
    }

    fn found(setup: Setup<'_>, own: NodeLauncher) -> Result<Self, BenchError> {
        let Setup { count, native, resp, delay, .. } = setup;
        let node = |_| {
            let peer = server_address()?;
            let relay = (!delay.is_zero()).then(|| {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                Relay::start(listener, peer, delay)
            });
            let relay = relay.transpose().map_err(BenchError::files("a relay"))?;
            let native = if native == NativePort::Off { None } else { Some(server_address()?) };
            let resp = if resp == RespPort::Off { None } else { Some(server_address()?) };
            Ok(Node { http: server_address()?, native, resp, peer, relay, process: None })
        };
        let all = (0..count).map(node).collect::<Result<Vec<_>, BenchError>>()?;
        let mut nodes = Self { all, own: Some(own) };
        for number in 0..count {
            nodes.spawn(number)?;
        }
        for number in 0..count {
            nodes.wait_until_ready(number)?;
        }
        nodes.wait("all nodes vote", |nodes| {
            let mut statuses = (0..count).map(|number| nodes.status(number));
            statuses
                .all(|status| status.is_some_and(|status| status["voters"] == count && status["leader"].is_string()))
        })?;
        nodes.leader()?;
        Ok(nodes)
    }

    fn spawn(&mut self, number: usize) -> Result<(), BenchError> {
        let Some(own) = &self.own else { return Ok(()) };
        let founders = own.founders;
        let peers: Vec<_> = self.all[..founders].iter().map(|node| node.reached_at().to_string()).collect();
        let node = &mut self.all[number];
        let log_path = own.log_path(number);
        let log = File::options().create(true).append(true).open(&log_path).map_err(BenchError::files(&log_path))?;
        let mut command = Command::new(&own.binary);
        command.args(["serve", "--http", &node.http.to_string(), "--cluster", &node.peer.to_string()]);
        command.args(["--native", &node.native.map_or("off".to_owned(), |native| native.to_string())]);
        command.args(["--native-quic-sockets", "0", "--advertise", &node.reached_at().to_string()]);
        command.args(node.resp.map(|resp| format!("--resp={resp}")));
        command.arg("--node-name").arg(name(number)).arg("--data").arg(own.data(number));
        if founders == 1 && number == 0 {
            command.arg("--cluster-init");
        } else {
            command.args(["--join", &peers.join(",")]);
        }
        if number < founders && founders > 1 {
            command.args(["--expect", &founders.to_string()]);
        }
        command.args(&own.args).env("THALWEG_JOIN_TOKEN", &own.tokens.join).stderr(log);
        let process = ServerProcess::spawn(&mut command, "name the command with --server-binary");
        node.process = Some(process.map_err(BenchError::target(own.binary.display()))?);
        Ok(())
    }

    fn wait_until_ready(&mut self, number: usize) -> Result<(), BenchError> {
        let (Node { http, process, .. }, Some(own)) = (&mut self.all[number], &self.own) else { return Ok(()) };
        let (http, log) = (*http, own.log_path(number));
        let is_ready = || get(http, "/ready").is_some_and(|(status, _)| status == 200);
        let waited = process.as_mut().map_or(Ok(()), |process| process.wait_until(is_ready));
        waited.map_err(|error| {
            BenchError::target(format!("{} serve", own.binary.display()))(format!("{error}; it said: {}", tail(&log)))
        })
    }

    /// Kills a node with SIGKILL. Returns the time of the signal.
    pub(crate) fn kill(&mut self, number: usize) -> Instant {
        let process = self.all[number].process.take();
        let killed = Instant::now();
        if let Some(process) = process {
            process.kill();
        }
        killed
    }

    /// Stops a node with SIGTERM, as an operator does. Returns after its process has ended.
    pub(crate) fn stop(&mut self, number: usize) {
        // Dropping the process sends SIGTERM and waits for its end.
        drop(self.all[number].process.take());
    }

    /// Starts a killed or stopped node again. Waits until it has caught up, as [`has_caught_up`](Self::has_caught_up)
    /// defines it.
    pub(crate) fn restart(&mut self, number: usize) -> Result<(), BenchError> {
        self.spawn(number)?;
        self.wait_until_ready(number)?;
        self.wait("the restarted node has caught up", |nodes| nodes.has_caught_up(number))
    }

    /// Returns true if a node has applied all committed log entries except a few. Under load, a node always lacks some
    /// entries.
    pub(crate) fn has_caught_up(&self, number: usize) -> bool {
        let Some(leader) = self.leading() else { return false };
        let index = |number: usize, name: &str| self.status(number)?[name].as_u64();
        matches!((index(leader, "commit_index"), index(number, "applied_index")), (Some(committed), Some(applied))
            // Applying a few hundred entries takes only a moment.
            if applied + 500 >= committed)
    }

    /// Returns the id of a node's process; `None` if it is down, or if the benchmark did not start it.
    pub(crate) fn process_id(&self, number: usize) -> Option<u32> {
        self.all[number].process.as_ref().map(ServerProcess::id)
    }

    /// Starts a killed or stopped node again, and returns without waiting for it.
    pub(crate) fn restart_only(&mut self, number: usize) -> Result<(), BenchError> {
        self.spawn(number)
    }

    /// Starts one more node with an empty directory. It joins the cluster as a learner, and the cluster promotes it
    /// once it has caught up. Returns the node's number without waiting for that.
    pub(crate) fn add(&mut self) -> Result<usize, BenchError> {
        let number = self.all.len();
        let node = Node {
            http: server_address()?,
            native: None,
            resp: None,
            peer: server_address()?,
            relay: None,
            process: None,
        };
        self.all.push(node);
        self.spawn(number)?;
        Ok(number)
    }

    /// Removes the last node from the cluster, ends its process and deletes its data. Waits until the others are the
    /// only members. If the node is just becoming a voter, repeats the request, because the cluster makes one change at
    /// a time.
    pub(crate) fn remove_last(&mut self) -> Result<(), BenchError> {
        let (leader, last) = (self.leader()?, self.all.len() - 1);
        let Some(own) = &self.own else { return Ok(()) };
        let fail = BenchError::subject("the cluster", "removing a node");
        let headers = format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\n", own.tokens.admin);
        let body = format!("{{\"node\":\"{}\"}}", name(last));
        let mut client = Client::connect(self.all[leader].http, PATIENCE).map_err(&fail)?;
        let gives_up = Instant::now() + PATIENCE;
        loop {
            let reply = client.request("POST", "/v1/cluster/remove", &headers, body.as_bytes());
            let (status, answer) = reply.map_err(&fail)?;
            let answer = String::from_utf8_lossy(&answer);
            if (200..300).contains(&status) {
                break;
            }
            if !answer.contains("change_in_progress") || Instant::now() > gives_up {
                return Err(BenchError::subject("the cluster", "removing a node")(answer));
            }
            std::thread::sleep(CHANGE_RETRY);
        }
        let data = own.data(last);
        self.kill(last);
        self.all.truncate(last);
        std::fs::remove_dir_all(&data).map_err(BenchError::files(&data))?;
        self.wait("the others are the only members", |nodes| {
            let status = nodes.leading().and_then(|leader| nodes.status(leader));
            status.is_some_and(|status| status["voters"] == last && status["learners"] == 0)
        })
    }

    /// Waits until a node reports that it leads. Returns its number.
    pub(crate) fn leader(&self) -> Result<usize, BenchError> {
        self.wait("the nodes have a leader", |nodes| nodes.leading().is_some())?;
        self.leading().ok_or_else(|| BenchError::target("cluster")("its leader changes all the time"))
    }

    fn leading(&self) -> Option<usize> {
        (0..self.all.len()).find(|number| self.status(*number).is_some_and(|status| status["leads"] == true))
    }

    /// Returns the HTTP addresses of the leader, or of all followers, as `role` says.
    pub(crate) fn of_role(&self, role: Role) -> Result<Vec<SocketAddr>, BenchError> {
        let leader = self.leader()?;
        let is_wanted = |number: usize| (number == leader) == (role == Role::Leader);
        Ok(self.all.iter().enumerate().filter(|(number, _)| is_wanted(*number)).map(|(_, node)| node.http).collect())
    }

    /// Returns the HTTP addresses of all nodes.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.all.iter().map(|node| node.http).collect()
    }

    /// Returns the native addresses of all nodes.
    pub(crate) fn native_addresses(&self) -> Vec<SocketAddr> {
        self.all.iter().filter_map(|node| node.native).collect()
    }

    /// Returns the addresses for Redis clients of all nodes, in the order of the nodes' numbers.
    pub(crate) fn resp_addresses(&self) -> Vec<SocketAddr> {
        self.all.iter().filter_map(|node| node.resp).collect()
    }

    /// Returns the CPU time of all nodes together since their start; `None` if the benchmark did not start them.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let cpu =
            |node: &Node| node.process.as_ref().map(|process| Usage::read(MeasuredProcess::Process(process.id())).cpu);
        self.all.iter().map(cpu).sum()
    }

    /// Returns the cluster's status as the node with this number reports it; `None` if the node does not answer.
    pub(crate) fn status(&self, number: usize) -> Option<Value> {
        self.json(number, "/v1/cluster/status")
    }

    /// Sends a GET to a node. Returns the JSON of the reply; `None` if there is none.
    pub(crate) fn json(&self, number: usize, path: &str) -> Option<Value> {
        let (status, body) = get(self.all[number].http, path)?;
        (status == 200).then(|| serde_json::from_slice(&body).ok()).flatten()
    }

    /// Returns the metrics of a node as text; `None` if the node does not answer.
    pub(crate) fn metrics(&self, number: usize) -> Option<String> {
        let (status, body) = get(self.all[number].http, "/metrics")?;
        (status == 200).then(|| String::from_utf8_lossy(&body).into_owned())
    }

    /// Returns the metrics of all nodes, in the order of their numbers; `None` if a node is down or shows no metrics.
    pub(crate) fn all_metrics(&self) -> Option<Vec<Metrics>> {
        (0..self.all.len()).map(|number| self.metrics(number).map(|text| Metrics::parse(&text))).collect()
    }

    /// Waits until `holds` returns true. After [`PATIENCE`] returns an error that names `what`.
    pub(crate) fn wait(&self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<(), BenchError> {
        let begun = Instant::now();
        while !holds(self) {
            if begun.elapsed() >= PATIENCE {
                return Err(BenchError::target("cluster")(format!("not within {PATIENCE:?}: {what}")));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for number in 0..self.all.len() {
            self.kill(number);
        }
    }
}

impl Node {
    /// Returns the address at which the other nodes connect to this node: that of its relay, if it has one.
    fn reached_at(&self) -> SocketAddr {
        self.relay.as_ref().map_or(self.peer, Relay::address)
    }
}

impl NodeLauncher {
    /// Returns the data directory of the node with this number.
    fn data(&self, number: usize) -> PathBuf {
        self.disks.get(number).cloned().unwrap_or_else(|| self.dir.join(name(number)))
    }

    fn log_path(&self, number: usize) -> PathBuf {
        self.dir.join(format!("{}.log", name(number)))
    }
}

/// Returns the name of the node with this number.
pub(crate) fn name(number: usize) -> String {
    format!("n{}", number + 1)
}

/// Sends one GET on a new connection. Returns the status and the body; `None` if there is no reply.
fn get(address: SocketAddr, path: &str) -> Option<(u16, Vec<u8>)> {
    Client::connect(address, REQUEST_TIMEOUT).ok()?.request("GET", path, "Connection: close\r\n", b"").ok()
}

/// Runs the command that creates two tokens: one with which the nodes join each other, and one for the administrator.
fn create_tokens(binary: &Path) -> Result<Tokens, BenchError> {
    let doing = format!("{} cluster create-token", binary.display());
    let fail = BenchError::target(&doing);
    let made = Command::new(binary).args(["cluster", "create-token", "--json"]).output();
    let made = made.map_err(|error| BenchError::target(&doing)(error.to_string()))?;
    let tokens: Value = serde_json::from_slice(&made.stdout).unwrap_or_default();
    let token = |name: &str| tokens[name].as_str().map(str::to_owned);
    let tokens = token("join_token").zip(token("admin_token")).map(|(join, admin)| Tokens { join, admin });
    tokens.ok_or_else(|| fail(format!("it printed no tokens: {}", String::from_utf8_lossy(&made.stderr).trim())))
}

/// Returns an address of the loopback at which no program listens now.
fn server_address() -> Result<SocketAddr, BenchError> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let from = std::process::id().wrapping_mul(97) as u16 % PORTS;
    for _ in 0..PORTS {
        let port = FIRST_PORT + (from + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS) % PORTS;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().map_err(BenchError::files("127.0.0.1"));
        }
    }
    Err(BenchError::target("127.0.0.1")("no port is free"))
}
