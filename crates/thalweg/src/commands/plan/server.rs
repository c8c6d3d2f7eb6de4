//! Server processes for measurements: a node alone or a cluster, in a temporary directory. Also the figures that the
//! kernel and the node report about the measured node.
//!
//! Owns: the processes, their directory, the choice of ports, and the counters of the measured node. Does not own: the
//! runs (`measure`).
//!
//! Invariant: dropping the server ends its processes and removes its directory.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener},
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use crate::{
    args::ServerArgs,
    commands::top::Metrics,
    failure::{Exit, Failure},
    session::Session,
};

/// Maximum time that a server may take to start in an empty directory.
const START: Duration = Duration::from_secs(60);
/// Unit of times in `/proc/PID/stat`, in seconds. The kernel always shows hundredths of a second there.
const TICK_SECONDS: f64 = 0.01;

/// Interval at which the measurement checks if a new cluster has a leader.
const LOOK: Duration = Duration::from_millis(50);
/// Ports at which a cluster's nodes listen for each other. They lie below the ports that the kernel chooses for
/// outgoing connections. So no outgoing connection takes a node's port before the node starts.
const PORTS: Range<u16> = 12_000..32_000;

/// Server processes of a measurement, with their directory: a node alone, or the nodes of a cluster.
pub(super) struct Server {
    nodes: Vec<Child>,
    directory: PathBuf,
    /// HTTP address of the measured node. In a cluster this is the leader.
    url: String,
    /// Index of the measured node among the processes.
    measured: usize,
}

/// Counters that the kernel and the node report about the measured server, read at one point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub cpu_seconds: f64,
    pub commands: f64,
    pub log_bytes: f64,
    pub syncs: f64,
    pub state_bytes: f64,
    pub peak_memory_bytes: u64,
}

impl Server {
    /// Starts a node, or a cluster of several nodes, in a new directory below `parent`. Waits until the node or the
    /// cluster is ready.
    pub(super) fn start(parent: &Path, replicas: u32) -> Result<Self, Failure> {
        let directory = parent.join(format!("plan-probe-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| Failure::file(&directory, &error))?;
        let mut server = Self { nodes: Vec::new(), directory, url: String::new(), measured: 0 };
        if replicas == 1 {
            server.spawn("data", &mut own_command()?)?;
        } else {
            server.found(replicas)?;
        }
        let urls = server.nodes.iter_mut().map(await_url).collect::<Result<Vec<_>, _>>()?;
        server.await_leader(&urls)?;
        Ok(server)
    }

    /// Starts the nodes of a new cluster. They found the cluster together.
    fn found(&mut self, replicas: u32) -> Result<(), Failure> {
        let peers = free_addresses(replicas)?;
        let all = peers.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let tokens = own_command()?.args(["cluster", "create-token", "--json"]).output()?;
        let tokens: serde_json::Value = serde_json::from_slice(&tokens.stdout).unwrap_or_default();
        let token =
            tokens["join_token"].as_str().ok_or_else(|| Failure::new(Exit::Failed, "token", "there is no token"))?;
        for (number, peer) in peers.iter().enumerate() {
            let (name, peer, count) = (format!("n{}", number + 1), peer.to_string(), replicas.to_string());
            let mut command = own_command()?;
            command.env("THALWEG_JOIN_TOKEN", token);
            let cluster = ["--cluster", &peer, "--advertise", &peer, "--node-name", &name, "--join", &all];
            self.spawn_with(&name, &mut command, &[&cluster[..], &["--expect", &count]].concat())?;
        }
        Ok(())
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> Result<(), Failure> {
        self.spawn_with(name, command, &[])
    }

    fn spawn_with(&mut self, name: &str, command: &mut Command, more: &[&str]) -> Result<(), Failure> {
        command.args(["serve", "--http", "127.0.0.1:0", "--native", "off", "--durability", "disk"]).args(more);
        command.arg("--data").arg(self.directory.join(name));
        self.nodes.push(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
        Ok(())
    }

    /// Waits until one node leads all of the nodes. This node becomes the measured node.
    fn await_leader(&mut self, urls: &[String]) -> Result<(), Failure> {
        let until = Instant::now() + START;
        loop {
            for (number, url) in urls.iter().enumerate() {
                (self.url, self.measured) = (url.clone(), number);
                if self.session().and_then(|session| self.leads(&session)).unwrap_or(false) {
                    return Ok(());
                }
            }
            if Instant::now() >= until {
                return Err(Failure::new(Exit::Failed, "server", "the nodes for the measurement have no leader")
                    .then("measure on a machine without other load"));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Returns true if the measured node is alone, or if it leads all other nodes and all of them are voters.
    pub(super) fn leads(&self, session: &Session) -> Result<bool, Failure> {
        let cluster = &session.status()?["cluster"];
        Ok(self.nodes.len() == 1 || (cluster["leads"] == true && cluster["voters"] == self.nodes.len()))
    }

    /// Opens a connection to the measured node.
    pub(super) fn session(&self) -> Result<Session, Failure> {
        let timeout = Duration::from_secs(30);
        Session::of_server(&ServerArgs { server: Some(self.url.clone()), timeout, json: false })
    }

    /// Reads the counters that the kernel and the node report about the measured node.
    pub(super) fn counters(&self, session: &Session) -> Result<Counters, Failure> {
        let metrics = Metrics::parse(&session.metrics()?);
        let missing = |name: &str| Failure::new(Exit::Failed, "metrics", format!("the server shows no {name}"));
        let figure = |name: &str| metrics.sum(name).ok_or_else(|| missing(name));
        Ok(Counters {
            cpu_seconds: self.cpu_seconds().ok_or_else(|| missing("CPU time"))?,
            commands: figure("commands_total")?,
            log_bytes: figure("log_bytes_total")?,
            syncs: figure("log_syncs_total")?,
            state_bytes: figure("state_memory_bytes")? + figure("state_disk_bytes")?,
            peak_memory_bytes: self.peak_memory_bytes().ok_or_else(|| missing("peak of its memory"))?,
        })
    }

    /// Returns the CPU time that the measured node's process has used, in seconds: of all its threads, in user and
    /// system mode. `None` if the kernel does not report it.
    fn cpu_seconds(&self) -> Option<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.nodes[self.measured].id())).ok()?;
        // The process name in parentheses may contain blanks. So the fields are counted from the last parenthesis.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
        let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
        Some((user + system) as f64 * TICK_SECONDS)
    }

    fn peak_memory_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.nodes[self.measured].id())).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }
}

/// Returns a command that runs this program, without the settings of this program in its environment.
fn own_command() -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let variables = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("THALWEG_"));
    for (name, _) in variables {
        command.env_remove(name);
    }
    Ok(command)
}

/// Returns loopback addresses with ports at which no process listens now.
fn free_addresses(count: u32) -> Result<Vec<SocketAddr>, Failure> {
    let (offset, ports) = (std::process::id() % u32::from(PORTS.end - PORTS.start), PORTS);
    let listeners = ports
        .cycle()
        .skip(offset as usize)
        .take(PORTS.len())
        .filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    // All listeners stay open until the last one is found, so that no port is found twice.
    let listeners: Vec<TcpListener> = listeners.take(count as usize).collect();
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}

/// Waits for a node's startup line, and returns the address in it.
fn await_url(node: &mut Child) -> Result<String, Failure> {
    let (send, lines) = mpsc::channel();
    let stdout = node.stdout.take();
    std::thread::spawn(move || {
        for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    let line = lines.recv_timeout(START).unwrap_or_default();
    let url = line.split_whitespace().find(|word| word.starts_with("http://"));
    let url = url.map(|url| url.trim_end_matches(',').to_owned());
    url.ok_or_else(|| {
        Failure::new(Exit::Failed, "server", "the server for the measurement did not start")
            .then("start one by hand: `thalweg serve --data DIR` with a new directory below the same one")
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        // The nodes are killed. Their data is removed anyway, so they need no clean end.
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}
