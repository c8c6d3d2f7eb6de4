//! Commands that run under a lock, a slot or the leadership: as processes, some of which are killed.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    client::json,
    node::{self, Node, PATIENCE, Run, Target},
};

/// Command that prints its token and then runs until its stdin is closed.
const HOLD: &str = "echo $THALWEG_FENCING_TOKEN; read line; true";

fn start() -> (tempfile::TempDir, Node) {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&dir.path().join("data"));
    (dir, node)
}

/// A background process that holds a lock, a slot or the leadership.
struct Holder {
    child: Child,
    out: BufReader<ChildStdout>,
    token: u64,
}

impl Holder {
    /// Starts the holder and waits until it has acquired.
    fn start(node: &Node, args: &[&str], script: &str) -> Self {
        let mut command = node::command();
        command.args(args).args(["--", "sh", "-c", script]).env("THALWEG_SERVER", &node.url);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let token = line.trim().parse().unwrap_or_else(|_| panic!("no token: {line:?}"));
        Self { child, out, token }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill takes no pointers, and the pid is of a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) }, 0);
    }

    /// Waits for the process to end while its command keeps running. Returns its exit code and stderr.
    fn ended(mut self) -> (Option<i32>, String) {
        let stdin = self.child.stdin.take();
        let status = node::wait_for(&mut self.child, PATIENCE).expect("it ends in time");
        drop(stdin);
        let mut complaint = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut complaint).unwrap();
        (status.code(), complaint)
    }

    /// Lets the command end, and waits like [`ended`](Self::ended).
    fn finish(mut self) -> (Option<i32>, String) {
        drop(self.child.stdin.take());
        self.ended()
    }
}

fn token(run: Run) -> u64 {
    run.ok().trim().parse().unwrap()
}

#[test]
fn a_command_runs_with_a_token_and_its_exit_code_is_passed_on() {
    let root = tempfile::tempdir().unwrap();
    for place in Target::both(root.path()) {
        let lock = |script: &str| {
            let mut args = vec!["lock", "job"];
            if let Target::Directory(path) = &place {
                args.extend(["--data", path.to_str().unwrap()]);
            }
            args.extend(["--", "sh", "-c", script]);
            let mut command = node::command();
            if let Target::Server(node) = &place {
                command.env("THALWEG_SERVER", &node.url);
            }
            node::run(command.args(args), b"")
        };
        let first = token(lock("echo $THALWEG_FENCING_TOKEN"));
        assert!(token(lock("echo $THALWEG_FENCING_TOKEN")) > first);
        assert_eq!(lock("echo $THALWEG_LOCK_KEYSPACE ${THALWEG_LOCK_KEY%/*}").ok(), "locks job\n");
        assert_eq!(lock("exit 7").code, Some(7));
        assert_eq!(lock("kill -9 $$").code, Some(128 + 9));
        assert_eq!(place.cli(&["scan", "locks"]).ok(), "", "all have let go");
        assert_eq!(place.cli(&["lease", "list", "--json"]).ok(), "");
    }
}

#[test]
fn what_cannot_run_does_not_hold() {
    let (_dir, node) = start();
    assert!(node.cli(&["lock", "job", "--", "/nowhere/at/all"]).fails(3).contains("/nowhere"));
    node.cli(&["lock", "job", "--ttl", "1ms", "--", "true"]).fails(2);
    node.cli(&["lock", "", "--", "true"]).fails(2);
    node.cli(&["lock", "job"]).fails(2);
    node.cli(&["semaphore", "s", "--slots", "0", "--", "true"]).fails(2);
    node.cli(&["lock", "job", "--wait", "0s", "--", "true"]).ok();
    let nobody = node::run(node::command().args(["lock", "a", "--server", "http://127.0.0.1:1", "--", "true"]), b"");
    nobody.fails(5);
}

#[test]
fn many_processes_take_turns() {
    const PROCESSES: usize = 10;
    let (dir, node) = start();
    let (count, tokens) = (dir.path().join("count"), dir.path().join("tokens"));
    fs::write(&count, "0").unwrap();
    let (count, tokens) = (count.to_str().unwrap(), tokens.to_str().unwrap());
    let script = format!("n=$(cat {count}); echo $THALWEG_FENCING_TOKEN >> {tokens}; echo $((n + 1)) > {count}");
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| node.cli(&["lock", "job", "--", "sh", "-c", &script]).ok());
        }
    });
    assert_eq!(fs::read_to_string(count).unwrap().trim(), PROCESSES.to_string());
    let tokens: Vec<u64> = fs::read_to_string(tokens).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
}

#[test]
fn a_killed_holders_lock_goes_to_the_next_with_a_higher_token() {
    let (_dir, node) = start();
    let dead = Holder::start(&node, &["lock", "job", "--ttl", "1s"], HOLD);
    let key = node.cli(&["scan", "locks", "--keys-only"]).ok().trim().to_owned();
    let fenced = |key: &str, token: u64, value: &str| {
        let transaction = serde_json::json!({
            "conditions": [{"keyspace": "locks", "key": key, "expect": {"revision": token}}],
            "then": [{"op": "put", "keyspace": "work", "key": "k", "value": value}],
        });
        node.cli(&["txn", &transaction.to_string()])
    };
    fenced(&key, dead.token, "first").ok();
    assert!(node.cli(&["lock", "job", "--wait", "0s", "--", "true"]).fails(5).contains("--wait"));
    dead.signal(libc::SIGKILL);
    let next = Holder::start(&node, &["lock", "job", "--wait", "20s"], HOLD);
    assert!(next.token > dead.token);
    fenced(&key, dead.token, "stale").fails(4);
    let key = node.cli(&["scan", "locks", "--keys-only"]).ok().trim().to_owned();
    fenced(&key, next.token, "second").ok();
    assert_eq!(node.cli(&["get", "work", "k"]).ok(), "second");
    assert_eq!(next.finish().0, Some(0));
}

#[test]
fn a_command_whose_lock_is_lost_is_ended() {
    let (_dir, node) = start();
    let revoked = Holder::start(&node, &["lock", "job", "--ttl", "1s"], HOLD);
    let lease = json(node.cli(&["lease", "list", "--json"]).ok().trim())["id"].to_string();
    node.cli(&["lease", "revoke", &lease]).ok();
    let token = revoked.token.to_string();
    let (code, complaint) = revoked.ended();
    assert!(code == Some(4) && complaint.contains(&token), "{code:?} {complaint}");
    // After the server's death and the TTL, the process can't know whether it still holds the lock.
    let orphan = Holder::start(&node, &["lock", "job", "--ttl", "1s"], HOLD);
    node.kill();
    assert_eq!(orphan.ended().0, Some(4));
}

#[test]
fn a_command_that_does_not_listen_is_ended_by_force_and_one_that_does_may_tidy_up() {
    let (_dir, node) = start();
    let polite = "trap 'echo bye; exit 3' TERM; echo $THALWEG_FENCING_TOKEN; while :; do sleep 0.01; done";
    let mut holder = Holder::start(&node, &["lock", "job"], polite);
    holder.signal(libc::SIGTERM);
    let mut said = String::new();
    holder.out.read_line(&mut said).unwrap();
    assert_eq!((said.as_str(), holder.ended().0), ("bye\n", Some(3)));
    node.cli(&["lock", "job", "--wait", "0s", "--", "true"]).ok();
    let deaf = "trap '' TERM; echo $THALWEG_FENCING_TOKEN; while :; do sleep 0.01; done";
    let deaf = Holder::start(&node, &["lock", "job", "--ttl", "500ms"], deaf);
    let lease = json(node.cli(&["lease", "list", "--json"]).ok().trim())["id"].to_string();
    node.cli(&["lease", "revoke", &lease]).ok();
    assert_eq!(deaf.ended().0, Some(4));
}

/// Otherwise a command that outlives the signal would continue while the next holder runs.
#[test]
fn a_hangup_reaches_the_command_and_releases_the_lock_after_it() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    if u64::from_str_radix(ignored, 16).unwrap() & 1 != 0 {
        // A shell cannot trap a signal that it was started with ignored, as below `nohup`.
        return;
    }
    let (_dir, node) = start();
    let polite = "trap 'echo bye; exit 3' HUP; echo $THALWEG_FENCING_TOKEN; while :; do sleep 0.01; done";
    let mut holder = Holder::start(&node, &["lock", "job"], polite);
    holder.signal(libc::SIGHUP);
    let mut said = String::new();
    holder.out.read_line(&mut said).unwrap();
    assert_eq!((said.as_str(), holder.ended().0), ("bye\n", Some(3)));
    node.cli(&["lock", "job", "--wait", "0s", "--", "true"]).ok();
}

#[test]
fn so_many_hold_a_semaphore() {
    let (_dir, node) = start();
    let args = ["semaphore", "pool", "--slots", "2"];
    let first = Holder::start(&node, &args, HOLD);
    let second = Holder::start(&node, &args, HOLD);
    assert!(second.token > first.token);
    let third = ["semaphore", "pool", "--slots", "2", "--wait", "100ms", "--", "true"];
    assert!(node.cli(&third).fails(5).contains("2 other clients"));
    thread::scope(|scope| {
        let waits = scope.spawn(|| Holder::start(&node, &args, HOLD));
        while node.cli(&["scan", "semaphores", "--keys-only"]).ok().lines().count() < 3 {}
        assert_eq!(first.finish().0, Some(0));
        let third = waits.join().unwrap();
        assert!(third.token > second.token);
        assert_eq!((second.finish().0, third.finish().0), (Some(0), Some(0)));
    });
}

#[test]
fn who_leads_is_seen() {
    let (_dir, node) = start();
    assert!(node.cli(&["leader", "boss"]).fails(3).contains("thalweg elect"));
    let mut follower = node::command()
        .args(["leader", "boss", "--follow"])
        .env("THALWEG_SERVER", &node.url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(seen.next().as_deref(), Some("-"));
    let ann = Holder::start(&node, &["elect", "boss", "--value", "ann"], HOLD);
    assert_eq!(seen.next(), Some(format!("{}\tann", ann.token)));
    let shown = json(&node.cli(&["leader", "boss", "--json"]).ok());
    assert_eq!((shown["token"].as_u64(), shown["value"].as_str()), (Some(ann.token), Some("ann")));
    assert_eq!(ann.finish().0, Some(0));
    let bob = Holder::start(&node, &["elect", "boss", "--value", "bob"], HOLD);
    assert_eq!(seen.find(|line| line != "-"), Some(format!("{}\tbob", bob.token)));
    assert_eq!(bob.finish().0, Some(0));
    follower.kill().unwrap();
    follower.wait().unwrap();
}

/// Calls `found` until it returns a value.
fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        let look = Instant::now();
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "not in {PATIENCE:?}");
        node::pause_after(look);
    }
}

/// Returns the id of the lease with this TTL, once its contender is the second one in the queue.
fn lease_of_waiter(node: &Node, ttl_seconds: f64) -> Option<u64> {
    let leases = node.cli(&["lease", "list", "--json"]).ok();
    let lease = leases.lines().map(json).find(|lease| lease["ttl_seconds"].as_f64() == Some(ttl_seconds))?;
    let has_entered = node.cli(&["scan", "locks", "--keys-only"]).ok().lines().count() == 2;
    lease["id"].as_u64().filter(|_| has_entered)
}

#[test]
fn a_waiter_whose_lease_ends_enters_the_queue_again() {
    let (_dir, node) = start();
    let holder = Holder::start(&node, &["lock", "job", "--ttl", "60s"], HOLD);
    let token = holder.token;
    thread::scope(|scope| {
        let waits = scope.spawn(|| Holder::start(&node, &["lock", "job", "--ttl", "1s", "--wait", "60s"], HOLD));
        let lease = until(|| lease_of_waiter(&node, 1.0));
        node.cli(&["lease", "revoke", &lease.to_string()]).ok();
        until(|| lease_of_waiter(&node, 1.0).filter(|again| *again != lease));
        assert_eq!(holder.finish().0, Some(0));
        let next = waits.join().unwrap();
        assert!(next.token > token);
        assert_eq!(next.finish().0, Some(0));
    });
}

#[test]
fn a_waiter_outlasts_a_server_that_is_away_for_longer_than_its_lease() {
    let (dir, address) = (tempfile::tempdir().unwrap(), node::free_address());
    let start = || Node::start_with(&dir.path().join("data"), &["--http", &address]);
    let node = start();
    let holder = Holder::start(&node, &["lock", "job", "--ttl", "60s"], HOLD);
    let mut command = node::command();
    command.args(["lock", "job", "--ttl", "1s", "--wait", "60s", "--", "echo", "mine"]);
    command.env("THALWEG_SERVER", &node.url).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut waiter = command.spawn().unwrap();
    until(|| lease_of_waiter(&node, 1.0));
    node.kill();
    let given_up = node::wait_for(&mut waiter, Duration::from_secs(2));
    assert_eq!(given_up, None, "the waiter does not give up when its lease may have ended");
    let _node = start();
    assert_eq!(holder.finish().0, Some(0));
    let ended = waiter.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "mine\n", "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn commands_that_may_wait_also_wait_for_a_server_that_is_down_at_the_start() {
    let lock = ["lock", "job", "--wait", "60s", "--", "echo", "ran"];
    let consume = ["consume", "events", "--group", "g", "--create", "--follow", "--limit", "1", "--payload-only"];
    for args in [&lock[..], &consume] {
        let (dir, address) = (tempfile::tempdir().unwrap(), node::free_address());
        let mut command = node::command();
        command.args(args).env("THALWEG_SERVER", format!("http://{address}"));
        let mut waits = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(waits.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("no server listens") && said.contains("retrying"), "{args:?}: {said}");
        let node = Node::start_with(&dir.path().join("data"), &["--http", &address]);
        node.cli(&["append", "events", "ran"]).ok();
        let ended = waits.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "ran\n", "{args:?}");
        assert!(ended.status.success(), "{args:?}");
    }
}

#[test]
fn a_lock_without_wait_fails_at_once_if_the_server_is_down_at_the_start() {
    let mut command = node::command();
    command.args(["lock", "job", "--", "true"]).env("THALWEG_SERVER", format!("http://{}", node::free_address()));
    let refused = node::run(&mut command, b"").fails(5);
    assert!(refused.contains("no server listens") && !refused.contains("retrying"), "{refused}");
    let help = node::run(node::command().args(["lock", "--help"]), b"").ok();
    let help: Vec<_> = help.split_whitespace().collect();
    assert!(help.join(" ").contains("fails at once if the server is down at the start"), "{help:?}");
}
