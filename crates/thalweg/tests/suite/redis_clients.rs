//! Third-party clients and tools of Redis against a real server.
//!
//! redis-cli and redis-benchmark run where they are installed, redis-py where `python3` (or `THALWEG_PYTHON`) has the
//! package `redis`. The test skips missing programs and prints that it did; `THALWEG_REQUIRE_REDIS=1` and
//! `THALWEG_REQUIRE_REDIS_PY=1` make their absence a failure. go-redis needs Go and, the first time, its module proxy:
//! it runs with `--ignored`, and `THALWEG_REQUIRE_GO=1` makes Go's absence a failure.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use crate::node::{Node, skip};

/// A server for Redis clients: database 0 is durable, database 1 a cache.
struct Server {
    _node: Node,
    address: String,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let databases = "--resp-databases=0=keyspace:redis,1=cache:redis";
        let node = Node::start_with(&dir.path().join("data"), &["--resp", "127.0.0.1:0", databases]);
        let address = node.line.split_whitespace().find_map(|word| word.strip_prefix("redis://"));
        let address = address.expect("it says where Redis clients are served").trim_end_matches(',').to_owned();
        Self { _node: node, address, _dir: dir }
    }

    fn port(&self) -> &str {
        self.address.rsplit_once(':').expect("an address").1
    }

    /// Runs redis-cli with these arguments. Returns its output.
    fn cli(&self, arguments: &[&str], input: &[u8]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", self.port()]).args(arguments);
        let output = run(&mut command, input);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }
}

fn run(command: &mut Command, input: &[u8]) -> Output {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input).expect("it takes its input");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

/// Returns true if a command succeeds. If not, the test is skipped with a message, or fails if `required_by` is set.
fn has(program: &str, arguments: &[&str], required_by: &str) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let found = command.status().is_ok_and(|status| status.success());
    if !found {
        assert!(
            std::env::var_os(required_by).is_none(),
            "{program} {arguments:?} does not work, and {required_by} is set"
        );
        let test = std::thread::current().name().unwrap_or("a Redis client").to_owned();
        skip(&test, &format!("{program} {arguments:?} does not work here"));
    }
    found
}

fn has_redis(program: &str) -> bool {
    has(program, &["--version"], "THALWEG_REQUIRE_REDIS")
}

fn peers() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../peers/redis-clients")
}

#[test]
fn redis_cli_asks_pipes_and_scans() {
    if !has_redis("redis-cli") {
        return;
    }
    let server = Server::start();
    assert_eq!(server.cli(&["PING"], b""), "PONG");
    assert_eq!(server.cli(&["SET", "greeting", "hello world", "EX", "1000"], b""), "OK");
    assert_eq!(server.cli(&["GET", "greeting"], b""), "hello world");
    assert_eq!(server.cli(&["-3", "HSET", "h", "a", "1", "b", "2"], b""), "2");
    assert_eq!(server.cli(&["-3", "HGETALL", "h"], b""), "a 1\nb 2");
    assert_eq!(server.cli(&["-n", "1", "SET", "c", "1"], b""), "OK");
    assert_eq!(server.cli(&["-n", "1", "DBSIZE"], b""), "1");
    assert_eq!(server.cli(&["--raw", "INCR", "greeting"], b""), "ERR value is not an integer or out of range");
    let script = b"MULTI\nINCR n\nINCR n\nEXEC\nXADD s 1-1 f v\nXLEN s\n";
    assert_eq!(server.cli(&[], script), "OK\nQUEUED\nQUEUED\n1\n2\n1-1\n1");
    let mut pipe = Vec::new();
    for number in 0..5000 {
        pipe.extend_from_slice(format!("SET many:{number:04} {number}\r\n").as_bytes());
    }
    assert!(server.cli(&["--pipe"], &pipe).ends_with("errors: 0, replies: 5000"));
    let scanned = server.cli(&["--scan", "--pattern", "many:*"], b"");
    assert_eq!(scanned.lines().collect::<std::collections::BTreeSet<_>>().len(), 5000);
    assert!(server.cli(&["INFO", "server"], b"").contains("redis_version:"));
    let stats = server.cli(&["--bigkeys", "-i", "0"], b"");
    assert!(stats.contains("5002 strings"), "{stats}");
    let stats = server.cli(&["--memkeys", "-i", "0"], b"");
    assert!(stats.contains("5002 strings with ") && stats.contains("1 streams with "), "{stats}");
}

#[test]
fn redis_benchmark_gets_no_errors() {
    if !has_redis("redis-benchmark") {
        return;
    }
    let server = Server::start();
    let bench = |arguments: &[&str]| {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", server.port(), "-n", "3000", "-c", "20", "-P", "4", "-r", "100", "--csv"]).args(arguments);
        let output = run(&mut command, b"");
        // redis-benchmark exits with 1 at the first error reply.
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        let lines = String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.starts_with('"')).count();
        assert!(lines > 1, "{output:?}");
    };
    bench(&["-t", "ping,set,get,incr,hset,mset"]);
    bench(&["-3", "-t", "ping,set,get,incr,hset,mset"]);
    bench(&["--dbnum", "1", "-t", "ping,set,get,incr,mset"]);
    bench(&["XADD", "stream", "*", "field", "value"]);
    bench(&["PUBLISH", "channel", "message"]);
}

#[test]
fn redis_py_finds_what_it_expects() {
    let python = std::env::var("THALWEG_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !has(&python, &["-c", "import redis"], "THALWEG_REQUIRE_REDIS_PY") {
        return;
    }
    let server = Server::start();
    check(Command::new(python).arg(peers().join("check.py")).arg(&server.address));
}

#[test]
#[ignore = "needs Go and, the first time, its module proxy: \
            cargo test -p thalweg --test suite go_redis -- --ignored"]
fn go_redis_finds_what_it_expects() {
    if !has("go", &["version"], "THALWEG_REQUIRE_GO") {
        return;
    }
    let server = Server::start();
    check(Command::new("go").current_dir(peers().join("go")).args(["run", ".", &server.address]));
}

/// Runs a client's test program and checks that it reports no differences.
fn check(command: &mut Command) {
    let output = run(command, b"");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" 0 of "), "{said}");
}
