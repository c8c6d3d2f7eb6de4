//! `thalweg backup` and `restore`, against servers and directories.

mod node;

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

use node::{Node, Place, command, run};

fn cli(args: &[&str]) -> node::Run {
    run(command().args(args), b"")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn files_and_directories_from_servers_and_directories() {
    let root = tempfile::tempdir().unwrap();
    for (number, place) in Place::both(root.path()).into_iter().enumerate() {
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
        assert!(unfinished.contains("has not finished"), "{unfinished}");
        cli(&["restore", text(&dir), "--data", text(&at("y")), "--backend", "memory"]).ok();
        assert_eq!(cli(&["get", "k", "a", "--data", text(&at("y"))]).ok(), "3");
        if let Place::Server(node) = place {
            let other = Place::Directory(at("y"));
            let mixed = other.cli(&["backup", "--to", text(&dir)]).fails(2);
            assert!(mixed.contains("holds backups of node"), "{mixed}");
            node.stop();
        }
    }
}

/// Passes bytes on, and cuts the first connections after so many.
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
