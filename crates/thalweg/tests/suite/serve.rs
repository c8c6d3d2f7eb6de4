//! The server as a process: start, stop, signals, and rejected configurations.

use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader, Read as _, Write},
    os::unix::fs::OpenOptionsExt as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::node::{Node, PATIENCE, command, pause, run, wait_for};

#[test]
fn the_startup_line_says_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let node = Node::start(&data);
    for part in ["thalweg ", "http://127.0.0.1:", data.to_str().unwrap(), "durability disk", "new"] {
        assert!(node.line.contains(part), "{part:?} in {:?}", node.line);
    }
    node.cli(&["put", "k", "a", "1"]).ok();
    node.stop();
    let node = Node::start(&data);
    assert!(node.line.contains("closed cleanly"), "{:?}", node.line);
    assert_eq!(node.cli(&["get", "k", "a"]).ok(), "1");
    node.kill();
    let node = Node::start(&data);
    assert!(node.line.contains("recovered"), "{:?}", node.line);
    assert_eq!(node.cli(&["get", "k", "a"]).ok(), "1");
    assert!(node.cli(&["status"]).ok().contains("health"));
}

#[test]
fn a_node_does_not_mind_that_nobody_reads_what_it_prints() {
    // The address is known only from a node before; in between another test may take the port.
    assert!((0..5).any(|_| serves_unread()), "the node ended each time");
}

/// Starts a node whose output is closed. Returns true once it answers, and false if it ends.
fn serves_unread() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&dir.path().join("a"));
    let address = node.url.trim_start_matches("http://").to_owned();
    let url = node.url.clone();
    node.stop();
    let mut deaf = command();
    deaf.args(["serve", "--http", &address, "--data", dir.path().join("b").to_str().unwrap()]);
    let mut deaf = deaf.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((deaf.stdout.take(), deaf.stderr.take()));
    let up = || run(command().args(["put", "k", "a", "1", "--server", &url]), b"").code == Some(0);
    while !up() {
        if deaf.try_wait().unwrap().is_some() {
            return false;
        }
    }
    deaf.kill().unwrap();
    deaf.wait().unwrap();
    true
}

#[test]
fn signals_while_the_directory_is_opened_end_with_0() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let count = commit_expensive_transactions(&node);
    node.kill();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut serve = command();
        serve.args(["serve", "--http", "127.0.0.1:0", "--native", "off", "--data", dir.path().to_str().unwrap()]);
        let mut child = serve.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(log.any(|line| line.contains("opening the data directory")), "the process says what it does");
        // SAFETY: kill takes no pointers, and the pid is of a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) }, 0);
        let rest: Vec<String> = log.collect();
        let status = wait_for(&mut child, PATIENCE).expect("it ends in time");
        assert_eq!(status.code(), Some(0), "{status}\n{}", rest.join("\n"));
        let is_met = rest.iter().any(|line| line.contains("stopping on a signal while the data directory is opened"));
        assert!(is_met, "the directory was open before the signal arrived\n{}", rest.join("\n"));
    }
    let node = Node::start(dir.path());
    assert_eq!(node.cli(&["get", "k", "last"]).ok(), (count - 1).to_string());
}

/// Commits transactions that are short, but take most of the steps that a command may take, so their replay takes long
/// enough for a signal to meet it. Returns the number of transactions.
fn commit_expensive_transactions(node: &Node) -> usize {
    const COUNT: usize = 300;
    let agent = ureq::Agent::new_with_defaults();
    let scans = vec![r#"{"op":"scan","keyspace":"k","limit":1}"#; 900].join(",");
    for count in 0..COUNT {
        let put = format!(r#"{{"op":"put","keyspace":"k","key":"last","value":"{count}"}}"#);
        let request = agent.post(format!("{}/v1/txn", node.url)).header("content-type", "application/json");
        let mut reply = request.send(format!(r#"{{"then":[{put},{scans}],"durability":"os"}}"#)).unwrap();
        reply.body_mut().read_to_string().unwrap();
    }
    COUNT
}

#[test]
fn sigterm_and_sigint_end_with_0_within_10_s_whatever_goes_on() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(dir.path());
        node.cli(&["append", "events", "a"]).ok();
        let tail = command()
            .args(["tail", "events", "--from", "0", "--server", &node.url])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let url = node.url.clone();
        let writer = std::thread::spawn(move || {
            let agent = ureq::Agent::new_with_defaults();
            let put = |n: u64| agent.put(format!("{url}/v1/kv/k/{n}")).send(&n.to_le_bytes()[..]);
            (0..).take_while(|n| put(*n).is_ok()).count() as u64
        });
        while node.cli(&["get", "k", "20"]).code != Some(0) {}
        let asked = Instant::now();
        node.signal(signal);
        let (status, log) = node.wait(Duration::from_secs(10));
        assert!(status.success(), "signal {signal} after {:?}: {status}\n{log}", asked.elapsed());
        let acked = writer.join().unwrap();
        let mut tail = tail;
        tail.kill().unwrap();
        tail.wait().unwrap();
        let node = Node::start(dir.path());
        assert!(node.line.contains("closed cleanly"), "{:?}", node.line);
        for n in [0, acked / 2, acked - 1] {
            assert_eq!(node.cli(&["get", "k", &n.to_string()]).bytes, n.to_le_bytes());
        }
    }
}

/// A supervisor starts a node again after this exit code, and not after that of a wrong configuration.
#[test]
fn a_port_in_use_is_no_wrong_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for option in ["--http", "--native", "--resp", "--cluster"] {
        let mut serve = command();
        serve.env("THALWEG_HTTP", "127.0.0.1:0").env("THALWEG_NATIVE", "off");
        serve.args(["serve", option, &address, "--data"]).arg(dir.path().join(&option[2..]));
        if option == "--cluster" {
            serve.arg("--cluster-init");
        }
        let refused = run(&mut serve, b"").fails(5);
        assert!(refused.contains(&format!("another address with {option}")), "{refused}");
    }
}

#[test]
fn one_directory_belongs_to_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let node = Node::start(dir.path());
    let second = run(command().args(["serve", "--data", data, "--http", "127.0.0.1:0"]), b"");
    assert!(second.fails(5).contains("in use"));
    let client = run(command().args(["get", "k", "a", "--data", data]), b"");
    let refused = client.fails(5);
    assert!(refused.contains("in use") && refused.contains("leave out --data"), "{refused}");
    node.cli(&["put", "k", "a", "1"]).ok();
    node.stop();
    assert_eq!(run(command().args(["get", "k", "a", "--data", data]), b"").ok(), "1");
}

#[test]
fn a_taken_port_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&dir.path().join("a"));
    let address = node.url.trim_start_matches("http://");
    let data = dir.path().join("b");
    let second = run(command().args(["serve", "--data", data.to_str().unwrap(), "--http", address]), b"");
    let complaint = second.fails(5);
    assert!(complaint.contains(address) && complaint.contains("--http"), "{complaint}");
}

#[test]
fn a_deleted_directory_is_made_again_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("deep/er");
    let node = Node::start(&data);
    node.cli(&["put", "k", "a", "1"]).ok();
    node.stop();
    std::fs::remove_dir_all(&data).unwrap();
    let node = Node::start(&data);
    node.cli(&["get", "k", "a"]).fails(3);
    node.cli(&["put", "k", "a", "2"]).ok();
    assert_eq!(node.cli(&["get", "k", "a"]).ok(), "2");
}

#[test]
fn a_tail_shows_records_as_they_come_and_outlives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    node.cli(&["append", "events", "one"]).ok();
    let port = node.url.rsplit(':').next().unwrap().to_owned();
    let mut tail = command();
    tail.args(["tail", "events", "--from", "0", "--limit", "3", "--payload-only", "--server", &node.url]);
    let mut tail = tail.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(tail.stdout.take().unwrap());
    let mut first = String::new();
    shown.read_line(&mut first).unwrap();
    node.cli(&["append", "events", "two"]).ok();
    node.stop();
    let address = format!("127.0.0.1:{port}");
    let node = Node::start_with(dir.path(), &["--http", &address]);
    node.cli(&["append", "events", "three"]).ok();
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    let ended = tail.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(first + &rest, "one\ntwo\nthree\n");
}

#[test]
fn an_import_whose_server_dies_says_where_to_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let args = ["import", "-", "--stream", "lines", "--format", "lines", "--batch", "100"];
    let mut import = command()
        .args(args)
        .args(["--server", &node.url])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = import.stdin.take().unwrap();
    let lines: Vec<String> = (0..1000).map(|n| format!("line {n}\n")).collect();
    input.write_all(lines[..501].concat().as_bytes()).unwrap();
    while node.cli(&["read", "lines", "--from", "499", "--payload-only"]).out != "line 499\n" {}
    node.kill();
    let _ = input.write_all(lines[501..].concat().as_bytes());
    drop(input);
    let ended = import.wait_with_output().unwrap();
    let complaint = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(5), "{complaint}");
    assert!(complaint.contains("--skip 500"), "{complaint}");
    let node = Node::start(dir.path());
    let mut again = command();
    again.args(args).args(["--skip", "500", "--server", &node.url]);
    run(&mut again, lines.concat().as_bytes()).ok();
    assert_eq!(node.cli(&["read", "lines", "--payload-only"]).ok(), lines.concat());
}

#[test]
fn bad_configuration_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("thalweg.toml");
    std::fs::write(&file, "max_scams = 3\n").unwrap();
    let refused = |args: &[&str]| run(command().arg("serve").args(args), b"").fails(2);
    assert!(refused(&["--config", file.to_str().unwrap()]).contains("max_scams"));
    // A supervisor starts the node again after another exit code.
    assert!(refused(&["--config", "/no/such/thalweg.toml"]).contains("/no/such/thalweg.toml"));
    assert!(refused(&["--max-scans", "many"]).contains("max_scans"));
    assert!(refused(&["--http", "0.0.0.0:7070"]).contains("allow_unprotected"));
    let mut with_variable = command();
    with_variable.arg("serve").env("THALWEG_SYNC_INTERVAL", "soon");
    assert!(run(&mut with_variable, b"").fails(2).contains("THALWEG_SYNC_INTERVAL"));
}

#[test]
fn explain_shows_values_sources_and_the_sum() {
    let mut explain = command();
    explain.args(["serve", "--explain", "--max-scans", "7"]).env("THALWEG_DURABILITY", "os");
    let text = run(&mut explain, b"").ok();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("max_scans").contains('7') && line("max_scans").contains("--max-scans"), "{text}");
    assert!(line("durability").contains("os") && line("durability").contains("THALWEG_DURABILITY"), "{text}");
    assert!(text.contains("sum"), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("thalweg.toml");
    std::fs::write(&file, run(command().args(["serve", "--example-config"]), b"").ok()).unwrap();
    run(command().args(["serve", "--explain", "--config", file.to_str().unwrap()]), b"").ok();
}

#[test]
fn logs_are_text_or_json_on_stderr() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with(dir.path(), &["--log-format", "json"]);
    node.signal(libc::SIGTERM);
    let (status, log) = node.wait(PATIENCE);
    assert!(status.success());
    assert!(!log.trim().is_empty());
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["level"].is_string() && line["timestamp"].is_string());
    }
}

#[test]
fn a_directory_of_others_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("etc");
    std::fs::create_dir(&data).unwrap();
    for name in ["passwd", "hosts", "fstab", "group"] {
        std::fs::write(data.join(name), name).unwrap();
    }
    let serve = |data: &std::path::Path| {
        run(command().args(["serve", "--http", "127.0.0.1:0", "--data", data.to_str().unwrap()]), b"")
    };
    let complaint = serve(&data).fails(2);
    for part in ["not a Thalweg data directory", "\"fstab\", \"group\", \"hosts\" and 1 more entry", "empty directory"]
    {
        assert!(complaint.contains(part), "{part:?} in {complaint}");
    }
    let mut left: Vec<_> = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["fstab", "group", "hosts", "passwd"], "nothing was written");
    // The top of a file system is empty but for this.
    let mount = dir.path().join("mount");
    std::fs::create_dir_all(mount.join("lost+found")).unwrap();
    Node::start(&mount).stop();
}

#[test]
fn a_mistyped_variable_is_refused() {
    let mut serve = command();
    serve.arg("serve").env("THALWEG_MAX_SCAN", "3");
    let complaint = run(&mut serve, b"").fails(2);
    assert!(complaint.contains("THALWEG_MAX_SCAN") && complaint.contains("max_scans"), "{complaint}");
    let mut explain = command();
    explain.args(["serve", "--explain"]).env("THALWEG_SERVICE_HOST", "10.0.0.1").env("THALWEG_SERVER", "x");
    run(&mut explain, b"").ok();
}

#[test]
fn localhost_is_served_and_the_native_port_makes_room_for_redis_clients() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with(dir.path(), &["--http", "localhost:0"]);
    assert!(node.url.starts_with("http://127.0.0.1:"), "{:?}", node.line);
    node.stop();
    let explained = |flags: &[&str]| run(command().args(["serve", "--explain"]).args(flags), b"");
    explained(&["--http", "127.0.0.1:7070", "--resp", "127.0.0.1:7071"]).ok();
    let complaint = explained(&["--http", "127.0.0.1:7070", "--resp", "127.0.0.1:7070"]).fails(2);
    assert!(complaint.contains("http and resp both have port 7070"), "{complaint}");
}

#[test]
fn sighup_reloads_what_it_can_and_never_ends_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (dir.path().join("thalweg.toml"), dir.path().join("log"));
    std::fs::write(&file, "log_level = \"info\"\n").unwrap();
    let mut server = command()
        .args(["serve", "--http", "127.0.0.1:0", "--native", "127.0.0.1:0", "--native-quic-sockets", "0"])
        .args(["--config", file.to_str().unwrap(), "--data", dir.path().join("data").to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.as_mut().unwrap()), &mut line).unwrap();
    let url =
        line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().trim_end_matches(',').to_owned();
    let until = Instant::now() + PATIENCE;
    let logged = |part: &str| {
        while !std::fs::read_to_string(&log).unwrap().contains(part) {
            assert!(Instant::now() < until, "no {part:?} in {}", std::fs::read_to_string(&log).unwrap());
        }
    };
    let hang_up = || {
        // SAFETY: kill takes no pointers, and the pid is of a child that has not been waited for.
        let sent = unsafe { libc::kill(i32::try_from(server.id()).unwrap(), libc::SIGHUP) };
        assert_eq!(sent, 0);
    };
    std::fs::write(&file, "log_level = \"debug\"\nmax_scans = 5\n").unwrap();
    hang_up();
    logged("reloaded the configuration");
    logged("max_scans");
    let put = |key: &str| run(command().args(["put", "k", key, "1", "--server", &url]), b"").ok();
    put("a");
    // Requests are logged from level debug on.
    logged("DEBUG");
    std::fs::write(&file, "max_scams = 5\n").unwrap();
    hang_up();
    logged("has an error and is unchanged");
    put("b");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_sighup_during_the_start_causes_a_reload_when_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (file, next, log) = (dir.path().join("thalweg.toml"), dir.path().join("next.toml"), dir.path().join("log"));
    // The configuration is a pipe, so the start waits until the test has written it.
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let mut server = command()
        .args(["serve", "--http", "127.0.0.1:0", "--native", "127.0.0.1:0", "--native-quic-sockets", "0"])
        .args(["--config", file.to_str().unwrap(), "--data", dir.path().join("data").to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    // The pipe can be opened once the server reads it.
    let mut pipe = loop {
        match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&file) {
            Ok(pipe) => break pipe,
            Err(error) => assert!(Instant::now() < until, "the server does not read its configuration: {error}"),
        }
        pause();
    };
    // SAFETY: kill takes no pointers, and the pid is of a child that has not been waited for.
    let sent = unsafe { libc::kill(i32::try_from(server.id()).unwrap(), libc::SIGHUP) };
    assert_eq!(sent, 0);
    // The reload reads this file instead of the pipe.
    std::fs::write(&next, "log_level = \"debug\"\n").unwrap();
    std::fs::rename(&next, &file).unwrap();
    pipe.write_all(b"log_level = \"info\"\n").expect("the server still reads its configuration");
    drop(pipe);
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("http://"), "{line:?} {}", std::fs::read_to_string(&log).unwrap());
    while !std::fs::read_to_string(&log).unwrap().contains("reloaded the configuration") {
        assert!(Instant::now() < until, "no reload in {}", std::fs::read_to_string(&log).unwrap());
        pause();
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
