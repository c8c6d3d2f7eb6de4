//! A server in a process of its own. So its CPU time and memory can be distinguished from those of the load generator.

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval at which the benchmark checks the state of the server's process. The process offers no event to wait for.
const LOOK: Duration = Duration::from_millis(20);

/// Handle of a server process. Dropping it stops the process.
#[derive(Debug)]
pub struct ServerProcess(Child);

impl ServerProcess {
    /// Starts a command without standard input and output, and waits until `is_ready` returns true. `remedy` tells the
    /// user what to do if the command cannot be started.
    pub fn start(command: &mut Command, remedy: &str, is_ready: impl Fn() -> bool) -> Result<Self, String> {
        let mut process = Self::spawn(command, remedy)?;
        process.wait_until(is_ready)?;
        Ok(process)
    }

    /// Starts a command without standard input and output. `remedy` tells the user what to do if that fails.
    pub fn spawn(command: &mut Command, remedy: &str) -> Result<Self, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        child.map(Self).map_err(|error| format!("{error}; {remedy}"))
    }

    /// Waits until `is_ready` returns true. Returns an error if the process ends first, or if it is not ready within
    /// a minute.
    pub fn wait_until(&mut self, is_ready: impl Fn() -> bool) -> Result<(), String> {
        self.wait_at_most(START_TIMEOUT, is_ready)
    }

    /// Waits until `is_ready` returns true, but at most for `patience`. Returns an error if the process ends first, or
    /// if it is not ready in time.
    pub fn wait_at_most(&mut self, patience: Duration, is_ready: impl Fn() -> bool) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Err(format!("it ended with {status}"));
            }
            if is_ready() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        Err(format!("it was not ready after {patience:?}"))
    }

    /// Ends the process with SIGKILL, and waits for its end.
    pub fn kill(mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Ends the process with SIGTERM, and waits for its end. Returns the time that this took. If the process does not
    /// end within `patience`, kills it and returns `None`.
    pub fn stop(mut self, patience: Duration) -> Option<Duration> {
        let begun = Instant::now();
        self.terminate(patience).then(|| begun.elapsed())
    }

    /// Returns true if the process has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// Sends SIGTERM. If the process has not ended after `patience`, sends SIGKILL. Returns true if SIGTERM was enough.
    fn terminate(&mut self, patience: Duration) -> bool {
        if self.has_ended() {
            return true;
        }
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
        false
    }

    /// Returns the process's id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.terminate(STOP_TIMEOUT);
    }
}

/// Returns a TCP port of the loopback interface that is free now. If another program takes the port first, the server
/// fails to start and reports that.
pub fn free_port() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}
