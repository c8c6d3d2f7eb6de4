//! Tests of `thalweg backup` and `restore`, against servers and directories.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::node::{self, Node, Target, command, run};

fn cli(args: &[&str]) -> node::Run {
    run(command().args(args), b"")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn files_and_directories_from_servers_and_directories() {
    let root = tempfile::tempdir().unwrap();
    for (number, place) in Target::both(root.path()).into_iter().enumerate() {
        let at = |name: &str| root.path().join(format!("{number}-{name}"));
        let (file, dir, data) = (at("one.tws"), at("many"), at("data"));
        place.cli(&["put", "k", "a", "1"]).ok();
        let said: serde_json::Value =
            serde_json::from_str(&place.cli(&["backup", "--to", text(&file), "--json"]).ok()).unwrap();
        assert_eq!((said["kind"].as_str(), said["verified"].as_bool()), (Some("full"), Some(true)));
        place.cli(&["backup", "--to", text(&file)]).fails(2);
        place.cli(&["backup", "--to", text(&file), "--incremental"]).fails(2);
        place.cli(&["backup"]).fails(2);
        place.cli(&["backup", "--to", text(&dir), "--incremental", "--compress", "lz4"]).ok();
        assert!(place.cli(&["backup", "--to", text(&dir), "--incremental"]).ok().contains("nothing was written since"));
        place.cli(&["put", "k", "a", "2"]).ok();
        place.cli(&["backup", "--to", text(&dir), "--incremental"]).ok();
        place.cli(&["put", "k", "a", "3"]).ok();
        let both = place.cli(&["backup", "--to", text(&dir)]).ok();
        assert!(both.contains("increment up to LSN") && both.contains("full backup up to LSN"), "{both}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 4, "nothing unfinished is left");
        assert_eq!(cli(&["backup", "verify", text(&dir)]).ok().lines().count(), 4);
        cli(&["restore", text(&dir), "--data", text(&data)]).ok();
        assert_eq!(cli(&["get", "k", "a", "--data", text(&data)]).ok(), "3");
        cli(&["restore", text(&dir), "--data", text(&data)]).fails(2);
        cli(&["restore", text(&dir), "--data", text(&at("x")), "--to-lsn", "99999"]).fails(2);
        cli(&["restore", text(&dir), "--data", text(&at("x")), "--to-lsn", "1"]).fails(2);
        cli(&["restore", text(&at("nowhere")), "--data", text(&at("x"))]).fails(3);
        assert!(!at("x").exists(), "nothing is left behind");
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&file, bytes).unwrap();
        let bad = cli(&["backup", "verify", text(&file), "--json"]).fails(1);
        assert!(bad.contains("snapshot_corrupt"), "{bad}");
        cli(&["restore", text(&file), "--data", text(&at("y"))]).fails(1);
        let unfinished = cli(&["get", "k", "a", "--data", text(&at("y"))]).fails(2);
        assert!(unfinished.contains("did not finish"), "{unfinished}");
        cli(&["restore", text(&dir), "--data", text(&at("y")), "--backend", "memory"]).ok();
        assert_eq!(cli(&["get", "k", "a", "--data", text(&at("y"))]).ok(), "3");
        if let Target::Server(node) = place {
            let other = Target::Directory(at("y"));
            let mixed = other.cli(&["backup", "--to", text(&dir)]).fails(2);
            assert!(mixed.contains("holds backups of node"), "{mixed}");
            node.stop();
        }
    }
}

/// Starts a proxy that cuts the first `cuts` connections after `cut_after` bytes of the reply.
fn cutting_proxy(to: String, cut_after: usize, cuts: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let mut server = TcpStream::connect(&to).unwrap();
            let (mut up_from, mut up_to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut up_from, &mut up_to));
            let mut client = client;
            thread::spawn(move || {
                let mut left = if number < cuts { cut_after } else { usize::MAX };
                let mut buffer = [0; 16 * 1024];
                while let Ok(read @ 1..) = server.read(&mut buffer) {
                    let passed = read.min(left);
                    if client.write_all(&buffer[..passed]).is_err() {
                        break;
                    }
                    left -= passed;
                    if left == 0 {
                        break;
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    (address, connections)
}

#[test]
fn a_backup_goes_on_when_its_connection_breaks() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    let lines: String = (0..120_000_u64)
        .map(|at| {
            format!("{:016x}{:016x}\n", at.wrapping_mul(0x9e37_79b9_7f4a_7c15), at.wrapping_mul(0xbf58_476d_1ce4_e5b9))
        })
        .collect();
    let source = root.path().join("lines");
    fs::write(&source, &lines).unwrap();
    node.cli(&["import", text(&source), "--stream", "s", "--format", "lines"]).ok();
    let (address, connections) = cutting_proxy(node.url.trim_start_matches("http://").to_owned(), 1_300_000, 2);
    let file = root.path().join("cut.tws");
    cli(&["backup", "--to", text(&file), "--compress", "none", "--server", &address]).ok();
    assert!(connections.load(Ordering::SeqCst) >= 3, "it was cut twice");
    node.stop();
    let data = root.path().join("restored");
    cli(&["restore", text(&file), "--data", text(&data)]).ok();
    let back = cli(&["export", "--stream", "s", "--format", "lines", "--data", text(&data)]).ok();
    assert!(back == lines, "every record is there");
}

/// Starts a server that sends a snapshot's first bytes and then drops it `forgets` times, and then sends all of it.
fn forgetful_server(snapshot: Vec<u8>, forgets: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(client.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let reply = if head.starts_with(b"GET /v1/snapshot?resume=") {
                let gone = r#"{"code":"snapshot_gone","retry":"fix","message":"not kept any more"}"#;
                format!("HTTP/1.1 410 Gone\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{gone}", gone.len()).into_bytes()
            } else {
                let number = counted.fetch_add(1, Ordering::SeqCst);
                let sent = if number < forgets { snapshot.len() / 2 } else { snapshot.len() };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nthalweg-snapshot: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    snapshot.len()
                );
                [head.as_bytes(), &snapshot[..sent]].concat()
            };
            let _ = client.write_all(&reply);
            let _ = client.shutdown(Shutdown::Both);
        }
    });
    (address, begun)
}

#[test]
fn a_backup_whose_server_forgot_it_is_taken_anew_a_few_times() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    cli(&["put", "k", "a", "1", "--data", text(&data)]).ok();
    let whole = root.path().join("whole.tws");
    cli(&["backup", "--to", text(&whole), "--compress", "none", "--data", text(&data)]).ok();
    let snapshot = fs::read(&whole).unwrap();
    let (address, begun) = forgetful_server(snapshot.clone(), 2);
    let third = root.path().join("third.tws");
    cli(&["backup", "--to", text(&third), "--server", &address]).ok();
    assert_eq!((begun.load(Ordering::SeqCst), fs::read(&third).unwrap() == snapshot), (3, true));
    let (address, begun) = forgetful_server(snapshot, 3);
    let never = root.path().join("never.tws");
    let said = cli(&["backup", "--to", text(&never), "--server", &address]).fails(5);
    assert!(said.contains("lost 3 times") && said.contains("not kept any more"), "{said}");
    assert_eq!(begun.load(Ordering::SeqCst), 3);
    assert!(!never.exists() && fs::read_dir(root.path()).unwrap().count() == 3, "nothing unfinished is left");
}

/// Starts a proxy that calls `before` with the number of the snapshot request, counted from 0, before it passes the
/// request on. If `before` returns false, the proxy closes the connection instead.
fn watching_proxy(to: String, before: impl Fn(usize) -> bool + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (before, requests) = (Arc::new(before), Arc::new(AtomicUsize::new(0)));
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let (to, before, requests) = (to.clone(), before.clone(), requests.clone());
            thread::spawn(move || {
                let mut server = TcpStream::connect(&to).unwrap();
                let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
                let mut buffer = [0; 16 * 1024];
                while let Ok(read @ 1..) = client.read(&mut buffer) {
                    let is_snapshot = buffer[..read].starts_with(b"GET /v1/snapshot");
                    if is_snapshot && !before(requests.fetch_add(1, Ordering::SeqCst)) {
                        break;
                    }
                    if server.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn entries_between_an_increment_and_the_full_backup_after_it_can_be_restored() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    let dir = root.path().join("backups");
    fs::create_dir(&dir).unwrap();
    let at = |name: &str| root.path().join(name);
    node.cli(&["put", "k", "a", "first"]).ok();
    node.cli(&["backup", "--to", text(&dir)]).ok();
    node.cli(&["put", "k", "a", "second"]).ok();
    let url = node.url.clone();
    let proxy = watching_proxy(node.url.trim_start_matches("http://").to_owned(), move |request| {
        // The first request is for the increment, the second for the full backup.
        if request == 1 {
            for value in ["between 1", "between 2"] {
                run(command().args(["put", "k", "a", value]).env("THALWEG_SERVER", &url), b"").ok();
            }
        }
        true
    });
    let taken = cli(&["backup", "--to", text(&dir), "--json", "--server", &proxy]).ok();
    let parts: Vec<serde_json::Value> = taken.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((parts[0]["kind"].as_str(), parts[1]["kind"].as_str()), (Some("increment"), Some("full")));
    let between = parts[0]["lsn"].as_u64().unwrap() + 1;
    assert!(between < parts[1]["lsn"].as_u64().unwrap());
    cli(&["restore", text(&dir), "--data", text(&at("between")), "--to-lsn", &between.to_string()]).ok();
    assert_eq!(cli(&["get", "k", "a", "--data", text(&at("between"))]).ok(), "between 1");
    node.cli(&["put", "k", "a", "after"]).ok();
    node.cli(&["backup", "--to", text(&dir), "--incremental"]).ok();
    cli(&["backup", "verify", text(&dir)]).ok();
    // An older full backup can be restored past the newer one, which may be lost.
    fs::remove_file(parts[1]["file"].as_str().unwrap()).unwrap();
    cli(&["restore", text(&dir), "--data", text(&at("after"))]).ok();
    assert_eq!(cli(&["get", "k", "a", "--data", text(&at("after"))]).ok(), "after");
    node.stop();
}

#[test]
fn an_increment_closes_the_hole_before_a_full_backup() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    let dir = root.path().join("backups");
    fs::create_dir(&dir).unwrap();
    node.cli(&["put", "k", "a", "1"]).ok();
    node.cli(&["backup", "--to", text(&dir)]).ok();
    node.cli(&["put", "k", "a", "2"]).ok();
    node.cli(&["put", "k", "a", "3"]).ok();
    // Earlier versions could leave a directory like this: no increment has the entries before the newer full backup.
    let newer = dir.join("full-newer.tws");
    node.cli(&["backup", "--to", text(&newer)]).ok();
    let show = |dir: &Path| -> Vec<serde_json::Value> {
        let shown = cli(&["backup", "show", text(dir), "--json"]).ok();
        shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let oldest = show(&dir).iter().map(|part| part["lsn"].as_u64().unwrap()).min().unwrap();
    node.cli(&["put", "k", "a", "4"]).ok();
    node.cli(&["backup", "--to", text(&dir), "--incremental"]).ok();
    let increment = show(&dir).into_iter().find(|part| part["kind"] == "increment").unwrap();
    assert_eq!(increment["since"].as_u64(), Some(oldest), "{increment}");
    let data = root.path().join("restored");
    cli(&["restore", text(&dir), "--data", text(&data), "--to-lsn", &(oldest + 1).to_string()]).ok();
    assert_eq!(cli(&["get", "k", "a", "--data", text(&data)]).ok(), "2");
    node.stop();
}

#[test]
fn a_backup_repeats_its_first_request_if_the_connection_breaks() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(&root.path().join("data"));
    node.cli(&["put", "k", "a", "1"]).ok();
    let proxy = watching_proxy(node.url.trim_start_matches("http://").to_owned(), |request| request > 1);
    let file = root.path().join("one.tws");
    let taken = cli(&["backup", "--to", text(&file), "--server", &proxy]);
    assert!(taken.err.contains("requesting the snapshot again"), "{}", taken.err);
    taken.ok();
    cli(&["backup", "verify", text(&file)]).ok();
    node.stop();
    // A server that is not there is a wrong address, not a lost connection.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let failed = cli(&["backup", "--to", text(&root.path().join("x.tws")), "--server", &format!("http://{nobody}")]);
    assert!(failed.fails(5).contains("no server listens"));
}
