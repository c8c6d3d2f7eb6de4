//! Real server processes and commands for tests.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod count;
mod skip;

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

#[allow(unused_imports, reason = "each test file uses a part")]
pub use skip::skip;

/// Path of the binary under test.
pub const THALWEG: &str = env!("CARGO_BIN_EXE_thalweg");

/// Maximum wait for an event that should take a moment. Only failures take this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pauses a loop that waits for another thread or process. Without the pause, the loop takes a processor from it.
pub fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// Pauses a loop that waits for another process, after a check that began at `began`. Many checks start a process or
/// give the awaited one work. The pause is three times as long as the check, so checks take at most a quarter of a
/// processor.
pub fn pause_after(began: Instant) {
    std::thread::sleep((began.elapsed() * 3).clamp(Duration::from_millis(1), Duration::from_millis(300)));
}

/// A server process, killed when dropped.
pub struct Node {
    child: Child,
    pub url: String,
    /// Startup line that the server printed when it was ready.
    pub line: String,
    /// Lines that the server has written to stderr so far.
    lines: Arc<Mutex<String>>,
    /// Thread that reads the server's stderr to its end.
    log: Option<std::thread::JoinHandle<()>>,
}

impl Node {
    /// Starts a server on a free port and waits for its startup line.
    pub fn start(data: &Path) -> Self {
        Self::start_with(data, &[])
    }

    /// Starts a server like [`start`](Self::start), with more flags.
    pub fn start_with(data: &Path, flags: &[&str]) -> Self {
        Self::start_of(command(), data, flags)
    }

    /// Starts a server like [`start_with`](Self::start_with), from another binary.
    pub fn start_of(mut binary: Command, data: &Path, flags: &[&str]) -> Self {
        let mut child = binary
            .arg("serve")
            .arg("--data")
            .arg(data)
            .args(if flags.contains(&"--http") { &[][..] } else { &["--http", "127.0.0.1:0"] })
            // A member's segments must hold every entry that another one may propose.
            .args(["--segment-bytes", if flags.contains(&"--cluster") { "17MiB" } else { "4MiB" }])
            .args(["--spare-segments", "2", "--reserve-bytes", "1MiB"])
            .args(flags)
            // The default is the port after HTTP's, which may be in use if the test fixes HTTP's port.
            .env("THALWEG_NATIVE", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stderr = child.stderr.take().expect("piped");
        let lines = Arc::<Mutex<String>>::default();
        let text = Arc::clone(&lines);
        let log = std::thread::spawn(move || {
            let (mut stderr, mut line) = (BufReader::new(stderr), Vec::new());
            while stderr.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                text.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        let stdout = child.stdout.take().expect("piped");
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut line = receive.recv_timeout(PATIENCE).unwrap_or_default();
        // The first member of a cluster prints its admin token before it opens the directory.
        if line.starts_with("admin token: ") {
            line = receive.recv_timeout(PATIENCE).unwrap_or_default();
        }
        let url = line.split_whitespace().find(|word| word.starts_with("http://")).map(|url| url.trim_end_matches(','));
        let Some(url) = url.map(str::to_owned) else {
            let _ = child.kill();
            let _ = log.join();
            panic!("the server is not ready after {PATIENCE:?}: {line:?}\n{}", lines.lock().unwrap());
        };
        Self { child, url, line, lines, log: Some(log) }
    }

    /// Returns what the server has written to stderr so far.
    pub fn log_so_far(&self) -> String {
        self.lines.lock().unwrap().clone()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes no pointers, and the pid is of a child that has not been waited for.
        let sent = unsafe { libc::kill(self.pid(), signal) };
        assert_eq!(sent, 0, "signal {signal}");
    }

    /// Waits for the process to end without sending it a signal.
    pub fn wait(mut self, at_most: Duration) -> (ExitStatus, String) {
        let status = wait_for(&mut self.child, at_most).expect("the server ends in time");
        if let Some(log) = self.log.take() {
            let _ = log.join();
        }
        (status, self.log_so_far())
    }

    /// Sends SIGTERM and checks that the server ends cleanly.
    pub fn stop(self) {
        self.signal(libc::SIGTERM);
        let (status, log) = self.wait(PATIENCE);
        assert!(status.success(), "{status}\n{log}");
    }

    /// Sends SIGKILL and waits for the process to end.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited");
    }

    /// Runs the command against this server.
    pub fn cli(&self, args: &[&str]) -> Run {
        run(command().args(args).env("THALWEG_SERVER", &self.url), b"")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an address of the loopback at which nothing listens. Its port is below those from which the system chooses
/// for outgoing connections (from 32768 on), so that no connection takes it before the test's server does.
pub fn free_address() -> String {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    const PORTS: Range<u16> = 10_000..32_000;
    let first = u16::try_from(std::process::id() % u32::from(PORTS.end - PORTS.start)).expect("below the end");
    for _ in PORTS {
        let port = (first + TAKEN.fetch_add(1, Ordering::Relaxed) % 10_000) % (PORTS.end - PORTS.start) + PORTS.start;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return format!("127.0.0.1:{port}");
        }
    }
    panic!("no free port in {PORTS:?}");
}

pub fn wait_for(child: &mut Child, at_most: Duration) -> Option<ExitStatus> {
    let pid = libc::c_long::from(child.id());
    // SAFETY: takes a pid and no flags, and the child has not been waited for, so the pid is its own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).expect("a descriptor of the process");
    // SAFETY: the descriptor was just created and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let until = Instant::now() + at_most;
    loop {
        if let Some(status) = child.try_wait().expect("waitable") {
            return Some(status);
        }
        let left = until.checked_duration_since(Instant::now())?;
        let mut ended = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor that is open, in a structure that lives through the call.
        unsafe { libc::poll(&raw mut ended, 1, i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1)) };
    }
}

/// Returns the command without inherited variables that affect it.
pub fn command() -> Command {
    clean(THALWEG)
}

/// Returns a program to run without any variable that the command would read.
pub fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("THALWEG_")) {
        command.env_remove(name);
    }
    command
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub bytes: Vec<u8>,
    pub err: String,
}

impl Run {
    /// Checks that the command succeeded. Returns its output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// Checks that the command failed with this code. Returns its error output.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self.err
    }
}

/// Runs a command with `input` on its stdin.
pub fn run(command: &mut Command, input: &[u8]) -> Run {
    use std::io::Write;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let Output { status, stdout, stderr } = child.wait_with_output().expect("output");
    feeder.join().expect("fed");
    Run {
        code: status.code(),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        bytes: stdout,
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// A command that runs while its output is collected, killed when dropped.
pub struct Printing {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Printing {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let list = Arc::clone(&lines);
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| list.lock().unwrap().push(line));
        });
        Self { child, lines }
    }

    /// Returns the lines that the command has printed so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Target of a client command; both kinds must behave alike.
pub enum Target {
    Server(Node),
    Directory(PathBuf),
}

impl Target {
    /// Returns both kinds, each with a directory of its own below `root`. A server created the directory that commands
    /// open, with small segments, so that each open scans little.
    pub fn both(root: &Path) -> Vec<Self> {
        Node::start(&root.join("opened")).stop();
        vec![Self::Server(Node::start(&root.join("served"))), Self::Directory(root.join("opened"))]
    }

    pub fn cli(&self, args: &[&str]) -> Run {
        self.cli_with(args, b"")
    }

    pub fn cli_with(&self, args: &[&str], input: &[u8]) -> Run {
        let mut command = command();
        command.args(args);
        match self {
            Self::Server(node) => command.env("THALWEG_SERVER", &node.url),
            Self::Directory(path) => command.arg("--data").arg(path),
        };
        run(&mut command, input)
    }
}
