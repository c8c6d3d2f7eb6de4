//! `thalweg top` as users run it: on a terminal, in a pipe, and as JSON.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    process::{Child, Stdio},
    ptr::null_mut,
    sync::mpsc::{self, Receiver},
    time::Instant,
};

use serde_json::Value;

use crate::node::{self, Node, command, wait_for};

/// A terminal on which a command runs.
struct Terminal {
    /// End of the pseudoterminal that the test uses, in place of a person at a terminal.
    ours: File,
    /// End of the pseudoterminal that the command uses. The test keeps it open to check the terminal's modes.
    theirs: OwnedFd,
    output: Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    fn open(columns: u16, rows: u16) -> Self {
        let (mut ours, mut theirs) = (-1, -1);
        // SAFETY: both descriptors are written by the call, and the other pointers may be null.
        let opened = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, null_mut(), null_mut(), null_mut()) };
        assert_eq!(opened, 0, "a terminal");
        // SAFETY: the descriptors were just created and have no other owner.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let (send, output) = mpsc::channel();
        let mut reader = ours.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if send.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let terminal = Self { ours, theirs, output, shown: String::new() };
        terminal.resize(columns, rows);
        terminal
    }

    fn resize(&self, ws_col: u16, ws_row: u16) {
        let size = libc::winsize { ws_col, ws_row, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and the structure lives through the call.
        let set = unsafe { libc::ioctl(self.ours.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(set, 0);
    }

    fn run(&self, node: &Node, args: &[&str]) -> Child {
        let end = || self.theirs.try_clone().unwrap();
        let mut command = command();
        command.args(args).env("THALWEG_SERVER", &node.url).stdin(end()).stdout(end()).stderr(end());
        command.spawn().expect("the binary starts")
    }

    /// Waits until the command has shown a text, beginning after the output that earlier calls have read. Takes
    /// everything up to it.
    fn await_text(&mut self, wanted: &str) {
        let began = Instant::now();
        loop {
            if let Some(at) = self.shown.find(wanted) {
                self.shown.drain(..at + wanted.len());
                return;
            }
            let left = node::PATIENCE.saturating_sub(began.elapsed());
            let more = self.output.recv_timeout(left);
            let more = more.unwrap_or_else(|_| panic!("{wanted:?} is not shown: {:?}", self.shown));
            self.shown.push_str(&String::from_utf8_lossy(&more));
        }
    }

    /// Returns the local modes, such as echo.
    fn modes(&self) -> libc::tcflag_t {
        let mut state = std::mem::MaybeUninit::<libc::termios>::zeroed();
        // SAFETY: the descriptor is open, the structure lives through the call, and zero is valid for it.
        unsafe {
            assert_eq!(libc::tcgetattr(self.theirs.as_raw_fd(), state.as_mut_ptr()), 0);
            state.assume_init().c_lflag
        }
    }
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

#[test]
fn a_terminal_is_filled_follows_its_size_and_is_restored() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    let mut terminal = Terminal::open(100, 30);
    let former = terminal.modes();
    let mut child = terminal.run(&node, &["top", "--interval", "100ms"]);
    terminal.await_text(ENTER);
    terminal.await_text("log and state");
    assert_eq!(terminal.modes() & (libc::ECHO | libc::ICANON), 0, "keys are not shown");
    node.cli(&["put", "users", "ada", "1815"]).ok();
    // The request appears within one of the next intervals.
    terminal.await_text("commands ");
    terminal.resize(40, 4);
    terminal.await_text("more lines; q quits");
    terminal.ours.write_all(b"q").unwrap();
    assert!(wait_for(&mut child, node::PATIENCE).expect("ends in time").success());
    terminal.await_text(LEAVE);
    assert_eq!(terminal.modes(), former);
    node.stop();
}

#[test]
fn a_signal_restores_the_terminal_and_a_lost_server_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    let mut terminal = Terminal::open(100, 30);
    let former = terminal.modes();
    let mut child = terminal.run(&node, &["top", "--interval", "100ms"]);
    terminal.await_text("log and state");
    node.stop();
    terminal.await_text("no answer: no server listens");
    assert!(child.try_wait().unwrap().is_none(), "it waits for the server");
    // SAFETY: kill takes no pointers, and the pid is of a child that has not been waited for.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGTERM) };
    assert!(wait_for(&mut child, node::PATIENCE).expect("ends in time").success());
    terminal.await_text(LEAVE);
    assert_eq!(terminal.modes(), former);
}

#[test]
fn a_pipe_gets_text_once_or_lines_of_json_again_and_again() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    node.cli(&["append", "events", "a", "b", "c"]).ok();
    node.cli(&["groups", "create", "events", "audit"]).ok();
    let text = node.cli(&["top", "--once", "--interval", "100ms"]).ok();
    assert!(text.starts_with("node ") && text.contains("· good ·") && !text.contains('\x1b'), "{text}");
    assert!(text.contains("consumer groups") && text.contains("audit"), "{text}");
    let mut child = command()
        .args(["top", "--json", "--interval", "100ms", "--server", &node.url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    node.cli(&["put", "users", "ada", "1815"]).ok();
    let views = (0..3).map(|_| serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap());
    let views: Vec<_> = views.collect();
    assert!(
        views.iter().all(|view| view["node"]["health"] == "good" && view["interval_seconds"].as_f64() > Some(0.05))
    );
    let group = &views[0]["groups"][0];
    assert_eq!((group["group"].as_str(), group["lag"].as_f64()), (Some("audit"), Some(3.0)), "{group}");
    assert!(views[0]["storage"]["log_segments"].as_f64() >= Some(1.0) && views[0]["cluster"].is_null());
    let bounds: Vec<_> =
        views[0]["queues"].as_array().unwrap().iter().filter_map(|queue| queue["name"].as_str()).collect();
    assert!(bounds.contains(&"requests") && bounds.contains(&"connections"), "{bounds:?}");
    // The command ends when nothing reads its output any more.
    drop(lines);
    wait_for(&mut child, node::PATIENCE).expect("ends in time");
    node.stop();
}

#[test]
fn wrong_usage_and_no_server_fail() {
    let nothing = format!("http://{}", node::free_address());
    let top = |args: &[&str]| node::run(command().arg("top").args(args), b"");
    assert!(top(&["--interval", "1ms"]).fails(2).contains("100ms"));
    assert!(top(&["--once", "--server", &nothing]).fails(5).contains("no server listens"));
}
