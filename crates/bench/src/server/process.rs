//! A server in a process of its own, so that its CPU time and memory can be told apart from the load generator's.

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval at which the benchmark checks the state of the server's process, which offers no event to wait for.
const LOOK: Duration = Duration::from_millis(20);

/// Handle of a server process, which is stopped when the handle is dropped.
#[derive(Debug)]
pub struct ServerProcess(Child);

impl ServerProcess {
    /// Starts a command without standard input and output, and waits until `is_ready` returns true. `remedy` tells the
    /// user what to do if the command cannot be started.
    pub fn start(command: &mut Command, remedy: &str, is_ready: impl Fn() -> bool) -> Result<Self, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut process = Self(child.map_err(|error| format!("{error}; {remedy}"))?);
        let begun = Instant::now();
        while begun.elapsed() < START_TIMEOUT {
            if let Ok(Some(status)) = process.0.try_wait() {
                return Err(format!("it ended with {status}"));
            }
            if is_ready() {
                return Ok(process);
            }
            std::thread::sleep(LOOK);
        }
        Err(format!("it was not ready after {START_TIMEOUT:?}"))
    }

    /// Returns the process's id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begun = Instant::now();
        while begun.elapsed() < STOP_TIMEOUT {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a TCP port of the loopback interface that is free now. If another program takes the port before the server
/// binds it, the server fails to start and reports that.
pub fn free_port() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}
