//! The server that the HTTP suite measures: one that runs already, or one that the benchmark starts in a process of its
//! own.
//!
//! Owns: `Target` with the requests for the server's build, metrics and use of the disk, and the choice of free ports.
//! Does not own: the server's process (`process`), the search for the process of a server that runs already
//! (`listener`), or load.

use std::{
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use thalweg_lab::Build;

use super::{
    client::Client,
    listener::other_process,
    metrics::Metrics,
    process::{ServerProcess, free_port},
};
use crate::{BenchError, Progress, live::FsyncCount};

/// A running server that is measured.
#[derive(Debug)]
pub struct Target {
    /// Address of the server's HTTP port.
    pub address: SocketAddr,
    /// Value of the `Host` header in requests.
    pub host: String,
    /// Address of the server's native port, if the benchmark started the server with one.
    pub native: Option<SocketAddr>,
    /// Process of the server, if the benchmark started it.
    process: Option<ServerProcess>,
    /// Id of the process of a server that ran already; `None` if it is not on this machine.
    found: Option<u32>,
}

/// Native port of a server that the benchmark starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativePort {
    /// The server gets no native port.
    Off,
    /// The server gets a free port number. TCP and UDP use the same number.
    Free,
}

/// Options of a server that the benchmark starts, when no target is given.
#[derive(Clone, Debug, clap::Args)]
pub struct StartOptions {
    /// Command to start as `COMMAND serve` when no target is given; by default this program.
    #[arg(long)]
    pub server_binary: Option<PathBuf>,
    /// Additional arguments for the started server.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub server_arg: Vec<String>,
    /// Directory below which the started server keeps its data. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

impl Target {
    /// Returns the target for a server that runs already, given as `http://host:port` or `host:port`.
    pub fn running(url: &str) -> Result<Self, BenchError> {
        let fail = BenchError::target(url);
        if url.starts_with("https://") {
            return Err(fail("the load generator speaks plain HTTP only: give an http:// address".to_owned()));
        }
        let host = authority(url, "http").map_err(&fail)?.to_owned();
        if host.contains('/') {
            return Err(fail("give only host and port; --api chooses the path".to_owned()));
        }
        let address = resolve(&host).map_err(&fail)?;
        TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .map_err(|error| fail(format!("{error}; is the server running?")))?;
        Ok(Self { address, host, native: None, process: None, found: other_process(address) })
    }

    /// Starts `binary serve` on a free port of the loopback interface, with its data in the directory `data`. If
    /// `binary` is `None`, starts this program. Waits until the server is ready. The server's log goes to `server.log`
    /// in the parent directory of `data`.
    pub fn start(
        binary: Option<&Path>,
        data: &Path,
        native: NativePort,
        more: &[String],
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        let native = match native {
            NativePort::Off => None,
            NativePort::Free => Some(free_port_of_both().map_err(BenchError::files("127.0.0.1:0"))?),
        };
        let binary = match binary {
            Some(binary) => binary.to_owned(),
            None => std::env::current_exe().map_err(BenchError::files("the running command"))?,
        };
        progress.step(&format!("starting {} serve {}", binary.display(), more.join(" ")));
        let address = free_port().map_err(BenchError::files("127.0.0.1:0"))?;
        let log_path: PathBuf = data.with_file_name("server.log");
        let log = std::fs::File::create(&log_path).map_err(BenchError::files(&log_path))?;
        let mut command = Command::new(&binary);
        let native_name = native.map_or("off".to_owned(), |native| native.to_string());
        command.args(["serve", "--http", &address.to_string(), "--data"]).arg(data).stderr(log);
        command.arg(format!("--native={native_name}")).args(more);
        let remedy = "name the command with --server-binary, or give --target";
        let mut target = Self { address, host: address.to_string(), native, process: None, found: None };
        let is_ready = || target.get("/ready").is_some_and(|(status, _)| status == 200);
        let fail = BenchError::target(format!("{} serve", binary.display()));
        let process = ServerProcess::start(&mut command, remedy, is_ready);
        target.process = Some(process.map_err(|error| fail(format!("{error}; it said: {}", tail(&log_path))))?);
        Ok(target)
    }

    /// Returns the id of the server's process; `None` if the process is not on this machine.
    pub fn process(&self) -> Option<u32> {
        self.process.as_ref().map(ServerProcess::id).or(self.found)
    }

    /// Describes the build of the server, according to the server's status.
    pub fn build(&self) -> String {
        let status = self.get("/v1/status").filter(|(status, _)| *status == 200);
        status
            .and_then(|(_, text)| build_of(&text))
            .unwrap_or_else(|| "unknown: the server does not name it".to_owned())
    }

    /// Returns the server's use of the disk for each kind of file; empty if the server does not report it.
    pub fn disk_use(&self) -> Vec<DiskUse> {
        let space = self.get("/v1/space").filter(|(status, _)| *status == 200);
        space.map_or_else(Vec::new, |(_, text)| kinds_of(&text))
    }

    /// Returns the source of the number of fsyncs of the server's log.
    pub fn fsyncs(&self) -> FsyncCount {
        let address = self.address;
        FsyncCount::new(move || {
            let (_, text) = get(address, "/metrics").filter(|(status, _)| *status == 200)?;
            Some(Metrics::parse(&text).sum("thalweg_log_syncs_total", &[])? as u64)
        })
    }

    /// Sends a GET request that is not part of the load. Returns status and body of the response; `None` if there is
    /// none.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        get(self.address, path)
    }

    /// Returns a counter from the server's metrics, summed over its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics()?.sum(name, &[])
    }

    /// Reads all of the server's metrics; `None` if the server has none.
    pub fn metrics(&self) -> Option<Metrics> {
        let (_, text) = self.get("/metrics").filter(|(status, _)| *status == 200)?;
        Some(Metrics::parse(&text))
    }
}

/// Describes the build that a server's status names; `None` if the text is not a status. Older builds, whose status
/// names no commit, are described by their version only.
fn build_of(status: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Status {
        version: String,
        build: Option<Named>,
    }
    #[derive(serde::Deserialize)]
    struct Named {
        commit: Option<String>,
        dirty: bool,
        profile: String,
    }
    let Status { version, build } = serde_json::from_str(status).ok()?;
    Some(match build {
        Some(Named { commit, dirty, profile }) => Build::name(&version, &profile, commit.as_deref(), dirty),
        None => format!("version {version}, commit unknown"),
    })
}

/// Use of the disk by the files of one kind in a server's directory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct DiskUse {
    /// Name of one kind of files in the server's directory, such as log segments.
    pub kind: String,
    /// Number of files of the kind that `kind` names.
    pub files: u64,
    /// Bytes that the files of the kind `kind` take on the disk.
    pub bytes: u64,
}

/// Parses a server's report about its disk space. Returns the use of the disk by each kind of file; empty if the text
/// is not such a report.
fn kinds_of(space: &str) -> Vec<DiskUse> {
    #[derive(serde::Deserialize)]
    struct Space {
        kinds: Vec<DiskUse>,
    }
    serde_json::from_str(space).map_or_else(|_| Vec::new(), |Space { kinds }| kinds)
}

fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut client = Client::connect(address, Duration::from_secs(2)).ok()?;
    client.set_timeout(Duration::from_secs(5)).ok()?;
    let (status, body) = client.request("GET", path, "Connection: close\r\n", b"").ok()?;
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Extracts `host:port` from an address with or without the protocol's scheme, as a server prints it. If the text is
/// wrong, the error describes the fault.
pub fn authority<'a>(text: &'a str, scheme: &str) -> Result<&'a str, String> {
    let text = text.trim_end_matches([',', '/']);
    match text.split_once("://") {
        None => Ok(text),
        Some((found, rest)) if found == scheme => Ok(rest),
        Some((found, _)) => {
            Err(format!("{found}:// is the address of another protocol: give {scheme}://host:port or host:port"))
        }
    }
}

/// Returns the first address to which `host:port` resolves. If there is none, the error describes the fault.
pub fn resolve(text: &str) -> Result<SocketAddr, String> {
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{error}; is it host:port?"))?;
    addresses.next().ok_or_else(|| "the name has no address".to_owned())
}

/// Returns a port number of the loopback interface that is free for TCP and for UDP.
fn free_port_of_both() -> std::io::Result<SocketAddr> {
    let mut last = std::io::Error::other("no port is free for TCP and UDP at once");
    for _ in 0..16 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        match UdpSocket::bind(listener.local_addr()?) {
            Ok(socket) => return socket.local_addr(),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the last lines of a server's log file.
pub fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_loaded_are_refused_with_a_reason() {
        for (url, part) in [
            ("https://localhost:1", "plain HTTP"),
            ("http://localhost:1/path", "host and port"),
            ("nonsense", "host:port"),
        ] {
            let error = Target::running(url).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_build_is_the_one_that_the_server_names() {
        let named =
            r#"{"version":"9.8","build":{"commit":"0123456789ab","dirty":true,"profile":"release"},"node":"1"}"#;
        assert_eq!(build_of(named).unwrap(), "version 9.8 (release, commit 0123456789ab with changes)");
        assert_eq!(build_of(r#"{"version":"9.8"}"#).unwrap(), "version 9.8, commit unknown");
        assert_eq!(build_of("not found"), None);
    }

    #[test]
    fn the_use_of_the_disk_is_the_one_that_the_server_reports() {
        let space =
            r#"{"backend":"lsm","kinds":[{"kind":"log","files":3,"bytes":192},{"kind":"tables","files":1,"bytes":5}]}"#;
        let found: Vec<_> = kinds_of(space).into_iter().map(|one| (one.kind, one.files, one.bytes)).collect();
        assert_eq!(found, [("log".to_owned(), 3, 192), ("tables".to_owned(), 1, 5)]);
        assert!(kinds_of("not found").is_empty() && kinds_of("{}").is_empty());
    }

    #[test]
    fn a_server_that_does_not_start_says_why() {
        let scratch = crate::Scratch::below(None).unwrap();
        let data = scratch.fresh("data").unwrap();
        let start =
            |binary: &str| Target::start(Some(Path::new(binary)), &data, NativePort::Off, &[], &mut thalweg_lab::Quiet);
        let error = start("/bin/false").unwrap_err().to_string();
        assert!(error.contains("ended with"), "{error}");
        assert!(start("/does/not/exist").is_err());
    }
}
