//! What the load goes to: a server that runs already, or one of our own in a separate process, so
//! that its CPU time and memory are told from the generator's.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    BenchError,
    http::reply::{self, Body, Incomplete},
};

/// A server to be loaded.
#[derive(Debug)]
pub struct Target {
    /// Its address.
    pub address: SocketAddr,
    /// What the `Host` header says.
    pub host: String,
    /// Where it speaks the native protocol, if it was told to.
    pub native: Option<SocketAddr>,
    /// Our own server, if it is one.
    child: Option<Child>,
}

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

impl Target {
    /// A server that runs already, given as `http://host:port` or `host:port`.
    pub fn running(url: &str) -> Result<Self, BenchError> {
        let fail = |message: String| BenchError::Target { target: url.to_owned(), message };
        if url.starts_with("https://") {
            return Err(fail("the load generator speaks plain HTTP only: give an http:// address".to_owned()));
        }
        let host = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/').to_owned();
        if host.contains('/') {
            return Err(fail("give only host and port; --api chooses the path".to_owned()));
        }
        let mut addresses = host.to_socket_addrs().map_err(|error| fail(format!("{error}; is it host:port?")))?;
        let address = addresses.next().ok_or_else(|| fail("the name has no address".to_owned()))?;
        TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .map_err(|error| fail(format!("{error}; is the server running?")))?;
        Ok(Self { address, host, native: None, child: None })
    }

    /// Starts `binary serve` on a free port of the loopback with its data in `data`, and waits until
    /// it is ready. What it says goes to `server.log` in `data`'s parent.
    pub fn start(binary: &Path, data: &Path, more: &[String]) -> Result<Self, BenchError> {
        Self::start_on(binary, data, &["--native=off".to_owned()], None, more)
    }

    /// As [`start`](Self::start), with a native port: one number for TCP and UDP.
    pub fn start_with_native(binary: &Path, data: &Path, more: &[String]) -> Result<Self, BenchError> {
        let native = free_port_of_both().map_err(|error| Self::failed(binary, error.to_string()))?;
        Self::start_on(binary, data, &[format!("--native={native}")], Some(native), more)
    }

    fn failed(binary: &Path, message: String) -> BenchError {
        BenchError::Target { target: format!("{} serve", binary.display()), message }
    }

    fn start_on(
        binary: &Path,
        data: &Path,
        ports: &[String],
        native: Option<SocketAddr>,
        more: &[String],
    ) -> Result<Self, BenchError> {
        let fail = |message: String| Self::failed(binary, message);
        // The port is free now and could be taken before the server binds it; then it fails to start and says so.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = address.map_err(|error| fail(error.to_string()))?;
        let log_path: PathBuf = data.with_file_name("server.log");
        let log = std::fs::File::create(&log_path).map_err(BenchError::files(&log_path))?;
        let child = Command::new(binary)
            .args(["serve", "--http", &address.to_string(), "--data"])
            .arg(data)
            .args(ports)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| fail(format!("{error}; name the command with --server-binary, or give --target")))?;
        let mut target = Self { address, host: address.to_string(), native, child: Some(child) };
        target.wait_ready().map_err(|message| fail(format!("{message}; it said: {}", tail(&log_path))))?;
        Ok(target)
    }

    /// The server's process, if it is ours.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Status and body of a GET; for the few requests that are not load.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(2)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.host).ok()?;
        let (mut bytes, mut block) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            // A server need not close although it was asked to: the reply's own end counts.
            match reply::parse(&bytes, Body::Expected) {
                Ok(reply) => {
                    return Some((reply.status, String::from_utf8_lossy(&reply.body_bytes(&bytes)).into_owned()));
                }
                Err(Incomplete::Malformed(_)) => return None,
                Err(Incomplete::NeedMore) => {}
            }
            let count = stream.read(&mut block).ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&block[..count]);
        }
    }

    fn wait_ready(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < START_TIMEOUT {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                return Err(format!("it ended with {status}"));
            }
            if self.get("/ready").is_some_and(|(status, _)| status == 200) {
                return Ok(());
            }
            // Polling another process: there is nothing to wait on.
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("it was not ready after {START_TIMEOUT:?}"))
    }

    fn stop(child: &mut Child) {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begun = Instant::now();
        while begun.elapsed() < STOP_TIMEOUT {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            Self::stop(child);
        }
    }
}

/// A port of the loopback that is free for TCP and for UDP.
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

fn tail(path: &Path) -> String {
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
    fn a_server_that_does_not_start_says_why() {
        let scratch = crate::Scratch::below(None).unwrap();
        let data = scratch.fresh("data").unwrap();
        let error = Target::start(Path::new("/bin/false"), &data, &[]).unwrap_err().to_string();
        assert!(error.contains("ended with"), "{error}");
        assert!(Target::start(Path::new("/does/not/exist"), &data, &[]).is_err());
    }
}
