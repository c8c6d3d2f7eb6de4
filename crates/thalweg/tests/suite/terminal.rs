//! Output of data on terminals, in pipes, in logs and in metrics.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{FromRawFd, OwnedFd},
    process::Stdio,
};

use crate::node::{self, Node, command};

/// Text that retitles a terminal's window, clears the screen, forges a line, and reorders what follows.
const HOSTILE: &str = "a\x1b]0;owned\x07\x1b[2J\u{9b}31m\r\nforged\u{202e}z\x7f";

/// Runs a command whose stdout and stderr are a terminal. Returns everything that the terminal got.
fn on_terminal(node: &Node, args: &[&str]) -> String {
    on_terminal_with(node, args, None)
}

/// Like [`on_terminal`]; with `typed`, stdin is the terminal, too, at which that is typed.
fn on_terminal_with(node: &Node, args: &[&str], typed: Option<&[u8]>) -> String {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: both descriptors are written by the call, and the other pointers may be null.
    let opened = unsafe {
        libc::openpty(&raw mut ours, &raw mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut())
    };
    assert_eq!(opened, 0, "a terminal");
    // SAFETY: the descriptors were just created and have no other owner.
    let (mut terminal, end) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let mut child = {
        let mut command = command();
        command.args(args).env("THALWEG_SERVER", &node.url).env("NO_COLOR", "1");
        command.stdin(if typed.is_some() { Stdio::from(end.try_clone().unwrap()) } else { Stdio::null() });
        command.stdout(end.try_clone().unwrap()).stderr(end).spawn().expect("the binary starts")
    };
    terminal.write_all(typed.unwrap_or_default()).unwrap();
    let mut shown = Vec::new();
    // The read fails once no process has the other end open.
    let _ = terminal.read_to_end(&mut shown);
    let status = node::wait_for(&mut child, node::PATIENCE).expect("ends in time");
    let shown = String::from_utf8(shown).expect("text");
    assert!(status.success(), "{args:?}: {shown}");
    shown
}

/// Asserts that text acts on nothing that shows it. A terminal gets `\r\n` for each `\n`.
#[track_caller]
fn is_harmless(text: &str, what: &str) {
    let acts = |c: &char| c.is_control() && !matches!(c, '\n' | '\t') || ('\u{202a}'..='\u{202e}').contains(c);
    let found: Vec<char> = text.replace("\r\n", "\n").chars().filter(acts).collect();
    assert!(found.is_empty(), "{what}: {found:?} in {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("forged") && what.contains("name")), "{what}: {text}");
}

#[test]
fn a_command_that_reads_a_terminal_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let shown = on_terminal_with(&node, &["put", "k", "a"], Some(b"one\n\x04"));
    assert!(shown.contains("Ctrl-D ends the input"), "{shown}");
    assert_eq!(node.cli(&["get", "k", "a"]).ok(), "one\n");
    assert!(!on_terminal(&node, &["put", "k", "b"]).contains("Ctrl-D"), "an empty stdin is no terminal");
    node.stop();
}

#[test]
fn nothing_that_was_stored_acts_on_a_terminal() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    node.cli(&["put", "k", HOSTILE, HOSTILE]).ok();
    node.cli(&["append", "s", HOSTILE, "--key", HOSTILE, "--header", &format!("h{HOSTILE}={HOSTILE}")]).ok();
    // The record stays with a member of this name.
    let member = ["--member", HOSTILE, "--limit", "1", "--ack", "none"];
    node.cli(&[&["consume", "s", "--group", "g", "--create"], &member[..]].concat()).ok();
    node.cli(&["cache", "put", HOSTILE, HOSTILE, HOSTILE]).ok();
    for (args, is_name) in [
        (&["get", "k", HOSTILE][..], false),
        (&["get", "k", HOSTILE, "--json"], false),
        (&["scan", "k"], true),
        (&["scan", "k", "--json"], true),
        (&["read", "s"], true),
        (&["read", "s", "--json"], true),
        (&["read", "s", "--payload-only"], false),
        (&["groups", "show", "s", "g"], true),
        (&["cache", "list"], true),
        (&["cache", "keys", HOSTILE], true),
        (&["cache", "get", HOSTILE, HOSTILE], false),
        (&["watch", "k", "--from", "1", "--limit", "1"], true),
        (&["export", "--stream", "s"], true),
        (&["export", "--keyspace", "k", "--format", "ndjson"], true),
        (&["status"], true),
        (&["top", "--once", "--interval", "100ms"], true),
    ] {
        let what = format!("{} of {args:?}", if is_name { "a name" } else { "a value" });
        is_harmless(&on_terminal(&node, args), &what);
    }
    // A key that is not there is named in the error.
    is_harmless(&node.cli(&["get", "k", &format!("no{HOSTILE}")]).fails(3), "an error");
    node.stop();
}

#[test]
fn bytes_are_unchanged_where_no_terminal_shows_them_or_the_user_asks_for_them() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    node.cli(&["put", "k", "a", HOSTILE]).ok();
    node.cli(&["append", "s", HOSTILE]).ok();
    node.cli(&["cache", "put", "c", "a", HOSTILE]).ok();
    for (args, end) in
        [(&["get", "k", "a"][..], ""), (&["cache", "get", "c", "a"], ""), (&["read", "s", "--payload-only"], "\n")]
    {
        let expected = format!("{HOSTILE}{end}");
        assert_eq!(node.cli(args).ok(), expected, "{args:?}");
        let raw = on_terminal(&node, &[args, &["--raw"]].concat());
        assert_eq!(raw.replace("\r\n", "\n"), expected, "{args:?}");
    }
    let text = "two\n\tlines, grün\n";
    node.cli(&["put", "k", "text", text]).ok();
    assert_eq!(on_terminal(&node, &["get", "k", "text"]).replace("\r\n", "\n"), text, "text stays as it is");
    node.stop();
}

#[test]
fn names_in_metrics_and_log_lines_are_escaped() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start_with(&root.path().join("data"), &["--log-level", "debug"]);
    node.cli(&["cache", "put", HOSTILE, "a", "1"]).ok();
    node.cli(&["get", "k", HOSTILE]).fails(3);
    node.cli(&["append", HOSTILE, "1"]).fails(2);
    let mut reply = ureq::get(format!("{}/metrics", node.url)).call().unwrap();
    let metrics = reply.body_mut().read_to_string().unwrap();
    assert!(metrics.contains("forged"), "{metrics}");
    is_harmless(&metrics, "the metrics");
    assert!(!metrics.lines().any(|line| line.starts_with("forged")), "{metrics}");
    node.signal(libc::SIGTERM);
    let (status, log) = node.wait(node::PATIENCE);
    assert!(status.success(), "{log}");
    is_harmless(&log, "the log");
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let full = File::options().write(true).open("/dev/full").expect("the device exists");
    let output = command().arg("--help").stdout(full).stderr(Stdio::piped()).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!output.stderr.is_empty());
    let output = command().arg("--help").output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_mistyped_variable_sends_no_command_to_another_server() {
    let mut mistyped = command();
    let refused = node::run(mistyped.args(["get", "k", "a"]).env("THALWEG_SEVER", "http://127.0.0.1:1"), b"").fails(2);
    assert!(refused.contains("THALWEG_SEVER") && refused.contains("THALWEG_SERVER"), "{refused}");
}
