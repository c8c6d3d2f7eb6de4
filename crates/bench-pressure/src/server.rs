//! The measured server: a process of its own, inside a control group with or without a limit of memory.
//!
//! Owns: starting, stopping, killing and restarting the server on the same data, and reading the kernel's and the
//! server's own counts. The caller owns the directory above the server's data, and removes it. Does not own: requests.
//!
//! The server starts inside its control group. So it sees the limit of memory when it chooses its own memory bounds,
//! and every page of its files counts for the group. The load generator and the disk probes are outside.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    BenchError, Progress,
    control_group::ControlGroup,
    interrupt,
    load::server::{Client, Metrics, ServerProcess, free_port, tail},
    options::PressureOptions,
    usage::{MeasuredProcess, Usage},
};

/// Name of the keyspace with the data, and the number of the RESP database that shows it.
pub(crate) const VALUES: (&str, u32) = ("values", 0);
/// Name of the keyspace with the keys that stay in memory, and the number of the RESP database that shows it.
pub(crate) const RESIDENT: (&str, u32) = ("resident", 1);

/// Longest wait for a server that starts or stops. A starting server may have to read a log of gigabytes.
const PATIENCE: Duration = Duration::from_secs(600);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two readings of the bytes that a server has written, by which the benchmark detects the end of flushes
/// and compactions.
const QUIET_TIME: Duration = Duration::from_secs(3);
/// Number of bytes written between two readings below which a server counts as quiet.
const QUIET_BYTES: u64 = 1 << 20;
const MIB: f64 = 1_048_576.0;

/// Limit of the memory of a server, set by its control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    None,
    Bytes(u64),
}

impl MemoryLimit {
    /// Describes the limit of memory in words.
    pub(crate) fn name(self) -> String {
        match self {
            Self::None => "no limit".to_owned(),
            Self::Bytes(bytes) => format!("{:.0} MiB", bytes as f64 / MIB),
        }
    }
}

/// Default durability of the server's writes: it applies to requests that state no durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Interval,
    Disk,
}

impl Level {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::Disk => "disk",
        }
    }
}

/// A server, running or down, with its data and its control group.
#[derive(Debug)]
pub(crate) struct Server {
    /// Address of the server's HTTP port.
    pub http: SocketAddr,
    /// Address of the server's port for the native protocol.
    pub native: SocketAddr,
    /// Address of the server's port for Redis clients.
    pub resp: SocketAddr,
    pub limit: MemoryLimit,
    /// Memory in bytes that the server intends to use at most, as `serve --explain` prints it. The server chooses this
    /// bound at its start, unless its options set it.
    pub own_bytes: Option<u64>,
    /// Process of the server; `None` while the server is down.
    process: Option<ServerProcess>,
    /// Control group of the server; `None` if no group can be created and there is no limit that needs one. The group
    /// is removed after the process has ended.
    group: Option<ControlGroup>,
    binary: PathBuf,
    directory: PathBuf,
    arguments: Vec<String>,
}

/// Counts of a server's disk reads and processor time since its process started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Number of read operations that the disks did for the server's control group; `None` if the kernel does not count
    /// them.
    pub disk_reads: Option<u64>,
    /// Bytes that the disks read for the server's process; `None` if they are not known.
    pub read_bytes: Option<u64>,
    /// Number of reads that the server passed to its threads for reads that wait for the disk; `None` if the server's
    /// metrics do not have it.
    pub cold_reads: Option<f64>,
    /// Processor time that the server's process used.
    pub cpu: Duration,
}

/// Cost of a request to the server: the increase of the server's counts over a run, divided by the number of requests.
/// A value is NaN if it is not known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerRequest {
    /// Read operations of the disks for each request; NaN if the kernel does not count them.
    pub disk_reads: f64,
    /// KiB that the disks read for each request.
    pub read_kib: f64,
    /// Number of reads for each request that the server passed to its threads for reads that wait for the disk.
    pub cold_reads: f64,
    /// Processor time of the server's process for each request, in microseconds.
    pub cpu_us: f64,
}

impl Counts {
    /// Returns the increase of the counts since the earlier counts `before`, divided by the number of requests.
    pub(crate) fn per_request(&self, before: &Self, requests: u64) -> PerRequest {
        let requests = requests as f64;
        let each = |now: Option<f64>, then: Option<f64>| match now.zip(then) {
            Some((now, then)) if requests > 0.0 => (now - then).max(0.0) / requests,
            _ => f64::NAN,
        };
        let number = |count: Option<u64>| count.map(|count| count as f64);
        let disk_reads = each(number(self.disk_reads), number(before.disk_reads));
        let read_kib = each(number(self.read_bytes), number(before.read_bytes)) / 1024.0;
        PerRequest {
            // If bytes were read but no operations were counted, the kernel does not count the operations of this disk.
            disk_reads: if disk_reads == 0.0 && read_kib > 0.0 { f64::NAN } else { disk_reads },
            read_kib,
            cold_reads: each(self.cold_reads, before.cold_reads),
            cpu_us: each(Some(self.cpu.as_secs_f64()), Some(before.cpu.as_secs_f64())) * 1e6,
        }
    }
}

impl PerRequest {
    /// Returns the disk reads for each request. This is the kernel's count for the control group, if the kernel has
    /// one. Otherwise it is the number of reads that the server passed to its threads for reads that wait for the disk;
    /// some of these find their block in the page cache.
    pub(crate) fn reads(&self) -> f64 {
        if self.disk_reads.is_nan() { self.cold_reads } else { self.disk_reads }
    }
}

/// Creates the control group of a server. Without a limit of memory the group only counts, so a failure to create it is
/// no error.
fn create_group(limit: MemoryLimit) -> Result<Option<ControlGroup>, BenchError> {
    match limit {
        MemoryLimit::None => Ok(ControlGroup::with_memory(None).ok()),
        MemoryLimit::Bytes(bytes) => ControlGroup::with_memory(Some(bytes)).map(Some).map_err(|reason| {
            BenchError::Option {
                option: "--memory",
                message: format!(
                    "no control group with a limit of memory can be created: {reason}; run as root on a machine with control \
                     groups (version 1 or 2) that are mounted for writing, or give --no-limit, which measures without a limit"
                ),
            }
        }),
    }
}

impl Server {
    /// Returns an error if a server with this limit of memory cannot be started on this machine. The error suggests
    /// what to change.
    pub(crate) fn check_limit(limit: MemoryLimit) -> Result<(), BenchError> {
        create_group(limit).map(drop)
    }

    /// Starts a server on an empty directory `name` below `dir`, and waits until it is ready.
    pub(crate) fn start(
        options: &PressureOptions,
        dir: &Path,
        name: &str,
        limit: MemoryLimit,
        level: Level,
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        let directory = dir.join(name);
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(BenchError::files(&directory)(error));
            }
            _ => std::fs::create_dir_all(&directory).map_err(BenchError::files(&directory))?,
        }
        let binary = match &options.server_binary {
            Some(binary) => binary.clone(),
            None => std::env::current_exe().map_err(BenchError::files("the running command"))?,
        };
        let databases = [VALUES, RESIDENT].map(|(name, number)| format!("{number}=keyspace:{name}")).join(",");
        let mut arguments = vec![format!("--durability={}", level.name()), format!("--resp-databases={databases}")];
        arguments.extend(options.server_arg.iter().cloned());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self {
            http: any,
            native: any,
            resp: any,
            limit,
            own_bytes: None,
            process: None,
            group: create_group(limit)?,
            binary,
            directory,
            arguments,
        };
        server.own_bytes = server.explained();
        progress.step(&format!(
            "starting {} serve, {}: {}",
            server.binary.display(),
            limit.name(),
            server.arguments.join(" ")
        ));
        server.restart()?;
        Ok(server)
    }

    /// Returns the command that runs the server's program inside its control group.
    fn inside(&self) -> Command {
        self.group.as_ref().map_or_else(|| Command::new(&self.binary), |group| group.command(&self.binary))
    }

    /// Asks the server's program how much memory the server will choose for itself, in bytes; `None` if it does not
    /// tell.
    fn explained(&self) -> Option<u64> {
        let mut command = self.inside();
        command.args(["serve", "--explain"]).args(&self.arguments).stdin(Stdio::null());
        let output = command.output().ok()?;
        memory_of(&String::from_utf8_lossy(&output.stdout))
    }

    /// Starts the server again on its data. Returns the time from the start of the process until the server is ready.
    pub(crate) fn restart(&mut self) -> Result<Duration, BenchError> {
        let port = || free_port().map_err(BenchError::files("127.0.0.1:0"));
        (self.http, self.native, self.resp) = (port()?, port()?, port()?);
        let log_path = self.directory.join("server.log");
        let log = File::options().create(true).append(true).open(&log_path).map_err(BenchError::files(&log_path))?;
        let mut command = self.inside();
        command.args(["serve", "--http", &self.http.to_string(), "--data"]).arg(self.directory.join("data"));
        command.arg(format!("--native={}", self.native)).arg(format!("--resp={}", self.resp));
        command.args(["--native-quic-sockets", "0"]).args(&self.arguments).stderr(log);
        let fail = BenchError::target(format!("{} serve", self.binary.display()));
        let begun = Instant::now();
        let process = ServerProcess::spawn(&mut command, "name the command with --server-binary").map_err(&fail)?;
        interrupt::started(process.id(), self.group.as_ref());
        let http = self.http;
        let process = self.process.insert(process);
        let waited = process.wait_at_most(PATIENCE, || get(http, "/ready").is_some_and(|(status, _)| status == 200));
        let took = begun.elapsed();
        if let Err(error) = waited {
            self.check_alive()?;
            return Err(fail(format!("{error}; it said: {}", tail(&log_path))));
        }
        Ok(took)
    }

    /// Stops the server with SIGTERM. Returns the time until its process has ended; `None` if it had to be killed.
    pub(crate) fn stop(&mut self) -> Option<Duration> {
        let process = self.process.take()?;
        interrupt::ended(process.id());
        process.stop(PATIENCE)
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            interrupt::ended(process.id());
            process.kill();
        }
    }

    /// Returns the id of the server's process; 0 if it is down.
    pub(crate) fn process(&self) -> u32 {
        self.process.as_ref().map_or(0, ServerProcess::id)
    }

    /// Returns the control group of the server, if there is one.
    pub(crate) fn group(&self) -> Option<&ControlGroup> {
        self.group.as_ref()
    }

    /// Returns an error if the server has ended without being stopped. The error states if the kernel killed it for
    /// lack of memory.
    pub(crate) fn check_alive(&mut self) -> Result<(), BenchError> {
        let killed = self.group.as_ref().and_then(ControlGroup::memory).is_some_and(|memory| memory.killed > 0);
        let has_ended = self.process.as_mut().is_some_and(ServerProcess::has_ended);
        if !killed && !has_ended {
            return Ok(());
        }
        let said = tail(&self.directory.join("server.log"));
        let message = if killed {
            format!(
                "the kernel killed it, because it needed more memory than its control group has ({}) and no page could be freed; \
                 give it more with --memory, or let it take less with --server-arg=--memory=BYTES; it said: {said}",
                self.limit.name()
            )
        } else {
            format!("its process has ended; it said: {said}")
        };
        Err(BenchError::subject("the server", "running under load")(message))
    }

    /// Reads the counts of the server's disk reads and processor time from the kernel and from the server's metrics.
    pub(crate) fn counts(&self) -> Counts {
        let usage = Usage::read(MeasuredProcess::Process(self.process()));
        Counts {
            disk_reads: self.group.as_ref().and_then(ControlGroup::disk_reads),
            read_bytes: usage.read_bytes,
            cold_reads: self
                .metrics()
                .and_then(|metrics| metrics.sum("thalweg_reads_handed_over_total", &[("kind", "cold")])),
            cpu: usage.cpu,
        }
    }

    fn metrics(&self) -> Option<Metrics> {
        let (_, text) = get(self.http, "/metrics").filter(|(status, _)| *status == 200)?;
        Some(Metrics::parse(&text))
    }

    /// Waits until the server writes nothing more to the disk, because its flushes and compactions are done. Returns
    /// false if it still writes after `patience`.
    pub(crate) fn settle(&self, patience: Duration) -> bool {
        let written = || Usage::read(MeasuredProcess::Process(self.process())).written_bytes.unwrap_or(0);
        let (begun, mut before) = (Instant::now(), written());
        while begun.elapsed() < patience {
            std::thread::sleep(QUIET_TIME.min(patience));
            let now = written();
            if now.saturating_sub(before) < QUIET_BYTES {
                return true;
            }
            before = now;
        }
        false
    }

    /// Kills the server and removes its data.
    pub(crate) fn discard(mut self) -> Result<(), BenchError> {
        self.kill();
        std::fs::remove_dir_all(&self.directory).map_err(BenchError::files(&self.directory))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A group can be removed only after its processes have ended.
        self.kill();
    }
}

/// Sends a GET request to a server, and returns status and body of the reply; `None` if there is no reply.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut client = Client::connect(address, REQUEST_TIMEOUT).ok()?;
    let (status, body) = client.request("GET", path, "Connection: close\r\n", b"").ok()?;
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Extracts the bytes of the server's memory from the output of `serve --explain`.
fn memory_of(explained: &str) -> Option<u64> {
    let mut lines = explained.lines().filter_map(|line| line.split_once(" MiB of memory"));
    let (mib, _) = lines.next()?;
    Some(mib.trim().parse::<u64>().ok()? << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_server_is_read_from_its_explanation() {
        let text = "memory   auto   default\n\n256 MiB of memory, half of the 512 MiB that /sys/fs/cgroup/x permits\n\nworst-case \
                    memory, without the page cache:\n  100.0 MiB  sum\n";
        assert_eq!(memory_of(text), Some(256 << 20));
        assert_eq!(memory_of("error: no such command"), None);
    }

    #[test]
    fn counts_are_those_of_the_run_for_each_request() {
        let before = Counts { disk_reads: Some(10), read_bytes: Some(4096), ..Counts::default() };
        let after = Counts {
            disk_reads: Some(110),
            read_bytes: Some(4096 + 200 * 4096),
            cpu: Duration::from_millis(3),
            cold_reads: Some(5.0),
        };
        let each = after.per_request(&before, 200);
        assert_eq!((each.disk_reads, each.read_kib, each.reads()), (0.5, 4.0, 0.5));
        assert!((each.cpu_us - 15.0).abs() < 1e-9 && each.cold_reads.is_nan());
        assert!(after.per_request(&before, 0).disk_reads.is_nan());
        let silent = Counts { disk_reads: before.disk_reads, ..after };
        assert!(silent.per_request(&before, 200).disk_reads.is_nan(), "bytes were read by no operation");
        let uncounted = PerRequest { disk_reads: f64::NAN, cold_reads: 0.25, ..each };
        assert_eq!(uncounted.reads(), 0.25);
    }

    #[test]
    fn limits_have_names() {
        assert_eq!([MemoryLimit::None, MemoryLimit::Bytes(512 << 20)].map(MemoryLimit::name), ["no limit", "512 MiB"]);
    }
}
