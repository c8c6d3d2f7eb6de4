//! The cluster of another system (etcd), which does the same puts and gets as Thalweg's cluster, alternately with it. A
//! program of `peers/` starts the members and runs the clients of that system. The program answers each request of the
//! benchmark in JSON, with the figures of one run.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    BenchError,
    counted::Counted,
    load::Validity,
    options::ClusterOptions,
    work::{Kind, RequestLoad, Turn},
};

/// Longest time that the benchmark waits for an answer of the program that runs the compared system (etcd), in addition
/// to the duration of the requested run. The program may first start the system's nodes or store all keys.
const PATIENCE: Duration = Duration::from_secs(240);
const NAME: &str = "etcd";

/// The program that runs the cluster and the clients of the compared system (etcd). The program stops the cluster when
/// its input ends.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    greeting: Greeting,
}

#[derive(Debug, Deserialize)]
struct Greeting {
    etcd: String,
    go: String,
    members: usize,
    connections: usize,
}

#[derive(Debug, Deserialize)]
struct Figures {
    operations: u64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    errors: u64,
    #[serde(default)]
    first_error: String,
    client_cpu_seconds: f64,
    server_cpu_seconds: f64,
}

impl Peer {
    /// Starts the program `binary`, which then starts a cluster of the compared system (etcd) with `members` members.
    /// The data of the members is below `dir`.
    pub(crate) fn start(binary: &Path, dir: &Path, members: usize) -> Result<Self, BenchError> {
        let fail = BenchError::target(binary.display());
        let mut command = Command::new(binary);
        command.arg("-dir").arg(dir).args(["-members", &members.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| fail(format!("{error}; peers/etcd/run.sh builds it")))?;
        let (send, lines) = channel();
        let output = child.stdout.take();
        std::thread::spawn(move || {
            let mut lines = output.into_iter().flat_map(|output| BufReader::new(output).lines().map_while(Result::ok));
            // The thread ends when the program closes its output, or when the receiver is dropped.
            lines.all(|line| send.send(line).is_ok())
        });
        let input = child.stdin.take();
        let greeting = Greeting { etcd: String::new(), go: String::new(), members, connections: 0 };
        let mut peer = Self { child, input, lines, greeting };
        peer.greeting = peer.answer(Duration::ZERO)?;
        Ok(peer)
    }

    /// Returns the name and version of the compared system (etcd), and how its clients connect.
    pub(crate) fn name(&self) -> String {
        let Greeting { etcd, go, members, connections } = &self.greeting;
        format!(
            "{NAME} {etcd} ({go}), {members} members in processes of their own with its default settings; its Go \
             client, whose concurrent clients share at most {connections} connections (one for each member at least)"
        )
    }

    /// Makes the compared system (etcd) store all keys, before the measurements.
    pub(crate) fn load_keys(&mut self, options: &ClusterOptions) -> Result<(), BenchError> {
        self.request("load", "", "leader", 1, options).map(drop)
    }

    /// Makes the compared system (etcd) do the requests of one row of the report once. Returns the results.
    pub(crate) fn run(&mut self, work: RequestLoad, options: &ClusterOptions) -> Result<Turn, BenchError> {
        let (name, level) = match work.kind {
            Kind::Put => ("put", ""),
            Kind::Get(level) => ("get", level.name()),
        };
        let figures = self.request(name, level, work.place.name(), work.clients, options)?;
        let each = |seconds: f64| seconds * 1e6 / figures.operations as f64;
        Ok(Turn {
            rate: figures.per_second,
            p50_us: figures.p50_us,
            p95_us: f64::NAN,
            p99_us: figures.p99_us,
            mean_us: f64::NAN,
            node_cpu_us: each(figures.server_cpu_seconds),
            client_cpu_us: each(figures.client_cpu_seconds),
            busiest: f64::NAN,
            link_bytes: f64::NAN,
            counted: Counted::default(),
            validity: match figures.errors {
                0 => Validity::Good,
                errors => Validity::Errors(format!("{errors} errors; first: {}", figures.first_error)),
            },
        })
    }

    fn request(
        &mut self,
        work: &str,
        level: &str,
        node: &str,
        clients: usize,
        options: &ClusterOptions,
    ) -> Result<Figures, BenchError> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = json!({
            "work": work, "level": level, "node": node, "clients": clients, "keys": options.keys,
            "millis": millis(options.duration), "warm_millis": millis(options.warmup),
            "value_bytes": options.value_size, "seed": options.seed,
        });
        let sent = self.input.as_mut().map(|input| writeln!(input, "{request}"));
        sent.transpose().map_err(BenchError::subject(NAME, "taking a request"))?;
        self.answer(options.duration + options.warmup)
    }

    fn answer<T: DeserializeOwned>(&self, beyond: Duration) -> Result<T, BenchError> {
        let fail = BenchError::subject(NAME, "answering");
        let line = self.lines.recv_timeout(PATIENCE + beyond);
        let line = line.map_err(|error| fail(format!("{error}; its messages are above")))?;
        serde_json::from_str(&line).map_err(|error| fail(format!("{error} in {line}")))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Closing the input makes the program stop its members and end. If it hangs and its output does not end, it is
        // killed.
        self.input = None;
        while self.lines.recv_timeout(Duration::from_secs(60)).is_ok() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
