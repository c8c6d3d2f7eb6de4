//! A server process for measurements, in a directory of its own, and the figures that the kernel and the server report
//! about it.
//!
//! Invariant: dropping the server ends its process and removes its directory.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use crate::{
    args::ServerArgs,
    commands::top::Metrics,
    failure::{Exit, Failure},
    session::Session,
};

/// Longest time for the start of a server in an empty directory.
const START: Duration = Duration::from_secs(60);
/// Time of a tick in `/proc/PID/stat`: the kernel shows hundredths of a second, whatever its own clock is.
const TICK_SECONDS: f64 = 0.01;

/// A server process that the measurement has started, with its directory.
pub(super) struct Server {
    child: Child,
    directory: PathBuf,
    url: String,
}

/// Counters of a server at one moment.
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
    /// Starts a server in a new directory below `parent`, and waits until it is ready.
    pub(super) fn start(parent: &Path) -> Result<Self, Failure> {
        let directory = parent.join(format!("plan-probe-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| Failure::file(&directory, &error))?;
        let spawned = Self::spawn(&directory);
        let child = spawned.inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        let mut server = Self { child, directory, url: String::new() };
        server.url = server.await_url()?;
        Ok(server)
    }

    fn spawn(directory: &Path) -> Result<Child, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let variables = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("THALWEG_"));
        for (name, _) in variables {
            command.env_remove(name);
        }
        command.args(["serve", "--http", "127.0.0.1:0", "--native", "off", "--durability", "disk", "--data"]);
        command.arg(directory.join("data")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(command.spawn()?)
    }

    /// Reads the startup line, which has the address.
    fn await_url(&mut self) -> Result<String, Failure> {
        let (send, lines) = mpsc::channel();
        let stdout = self.child.stdout.take();
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

    /// Opens a connection to the server.
    pub(super) fn session(&self) -> Result<Session, Failure> {
        let timeout = Duration::from_secs(30);
        Session::of_server(&ServerArgs { server: Some(self.url.clone()), timeout, json: false })
    }

    /// Reads the counters of the server.
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

    /// Returns the CPU time of all threads of the process, user and system.
    fn cpu_seconds(&self) -> Option<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // The name in parentheses may hold blanks: the fields begin after the last parenthesis.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
        let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
        Some((user + system) as f64 * TICK_SECONDS)
    }

    fn peak_memory_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its data is removed, so there is nothing to end cleanly.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
