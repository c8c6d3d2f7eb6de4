//! The server, and commands without a server, under the memory limit of a control group (version 1 or 2). If a test may
//! not create a group, it prints that it skips this; `THALWEG_REQUIRE_CGROUP=1` makes that a failure.

use std::{
    fs,
    io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::node::{Node, PATIENCE, THALWEG, clean, run, skip};

const MIB: u64 = 1024 * 1024;

/// A control group with a memory limit, removed on drop.
struct Group(PathBuf);

impl Group {
    /// Creates a group; `None` if that is not permitted here.
    fn with_limit(bytes: u64) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("thalweg-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let versions = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        for (mount, limit) in versions {
            let group = Self(PathBuf::from(mount).join(&name));
            // The limit's file exists only where the kernel has made the directory a group of memory.
            let file = group.0.join(limit);
            if fs::create_dir(&group.0).is_ok() && file.exists() && fs::write(&file, bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        let is_required = std::env::var("THALWEG_REQUIRE_CGROUP").is_ok();
        assert!(!is_required, "THALWEG_REQUIRE_CGROUP is set, and no control group can be created");
        skip("a memory limit", "no control group can be created");
        None
    }

    /// Creates a command that runs the binary inside the group.
    fn command(&self) -> Command {
        let mut inside = clean("sh");
        inside.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.0).arg(THALWEG);
        inside
    }

    /// Starts a server inside the group.
    fn start(&self, data: &std::path::Path, flags: &[&str]) -> Node {
        Node::start_of(self.command(), data, flags)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Writes values of 1,200 bytes over one connection as fast as the server takes them. Returns the number of replies
/// that are `OK`, and the start of the first of the others.
fn load(address: &str, values: usize) -> (usize, String) {
    let replies = TcpStream::connect(address).unwrap();
    let sending = replies.try_clone().unwrap();
    replies.set_read_timeout(Some(PATIENCE)).unwrap();
    let writer = std::thread::spawn(move || {
        let value = "v".repeat(1200);
        let mut out = BufWriter::with_capacity(256 * 1024, &sending);
        for number in 0..values {
            let key = format!("key:{number:012}");
            write!(out, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$1200\r\n{value}\r\n", key.len()).ok()?;
        }
        out.flush().ok()?;
        drop(out);
        sending.shutdown(Shutdown::Write).ok()
    });
    let (mut good, mut other) = (0, String::new());
    for line in BufReader::with_capacity(64 * 1024, replies).lines() {
        match line {
            Ok(line) if line == "+OK" => good += 1,
            Ok(line) if other.is_empty() => other = line,
            Ok(_) => {}
            Err(error) => {
                other = error.to_string();
                break;
            }
        }
    }
    let _ = writer.join();
    (good, other)
}

#[test]
fn a_bulk_load_survives_a_small_memory_limit_with_the_defaults() {
    survives(&[(256 * MIB, 250_000), (512 * MIB, 400_000)]);
}

#[test]
#[ignore = "writes 4 GB: cargo test --release -p thalweg --test suite memory:: -- --ignored --nocapture"]
fn a_bulk_load_survives_2_gib_with_the_defaults() {
    survives(&[(2048 * MIB, 3_000_000)]);
}

/// Loads values into a server with each of the memory limits, and checks that all of them are there.
fn survives(cases: &[(u64, usize)]) {
    for &(limit, values) in cases {
        let Some(group) = Group::with_limit(limit) else { return };
        let dir = tempfile::tempdir().unwrap();
        let node = group.start(&dir.path().join("data"), &["--resp", "127.0.0.1:0"]);
        let address = node.line.split_whitespace().find_map(|word| word.strip_prefix("redis://"));
        let address = address.expect("it says where Redis clients are served").trim_end_matches(',').to_owned();
        let begun = std::time::Instant::now();
        let (good, other) = load(&address, values);
        eprintln!("{} MiB: {good} values of 1.2 kB in {:?}", limit / MIB, begun.elapsed());
        assert_eq!(good, values, "with {} MiB the server did not take all values: {other}", limit / MIB);
        // All of them are there, and a scan of all keys succeeds, too.
        let mut client = TcpStream::connect(&address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"DBSIZE\r\nSTRLEN key:000000000000\r\nKEYS *9999\r\nQUIT\r\n").unwrap();
        let mut replies = String::new();
        client.read_to_string(&mut replies).unwrap();
        let expected = format!(":{values}\r\n:1200\r\n*{}\r\n", values / 10_000);
        assert!(replies.starts_with(&expected), "{replies}");
        node.stop();
    }
}

#[test]
#[ignore = "writes 1.2 GB: cargo test --release -p thalweg --test suite memory:: -- --ignored --nocapture"]
fn an_import_and_a_restore_without_a_server_survive_a_small_memory_limit() {
    const VALUES: usize = 250_000;
    let Some(group) = Group::with_limit(256 * MIB) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (lines, data, backup, restored) = (path("lines"), path("data"), path("backup.tws"), path("restored"));
    let value = "v".repeat(1200);
    let mut out = BufWriter::new(fs::File::create(&lines).unwrap());
    for number in 0..VALUES {
        writeln!(out, "key:{number:012}\t{value}").unwrap();
    }
    out.flush().unwrap();
    let inside = |args: &[&str]| run(group.command().args(args), b"").ok();
    let done = inside(&["import", &lines, "--keyspace", "k", "--format", "lines", "--data", &data, "--json"]);
    assert!(done.contains(&format!("\"records\":{VALUES},")), "{done}");
    // Without compression, the file is large, and the restore uses memtables of the full size.
    inside(&["backup", "--to", &backup, "--compress", "none", "--data", &data]);
    inside(&["restore", &backup, "--data", &restored]);
    for number in [0, VALUES - 1] {
        assert_eq!(inside(&["get", "k", &format!("key:{number:012}"), "--data", &restored]), value);
    }
}

#[test]
fn the_limit_of_a_control_group_is_explained_and_more_is_refused() {
    let Some(group) = Group::with_limit(512 * MIB) else { return };
    let explain = |flags: &[&str]| run(group.command().args(["serve", "--explain"]).args(flags), b"");
    let text = explain(&[]).ok();
    assert!(text.contains("256 MiB of memory, half of the 512 MiB that /sys/fs/cgroup/"), "{text}");
    let line = text.lines().find(|line| line.starts_with("cache_bytes ")).unwrap();
    assert!(line.contains("32MiB") && line.ends_with("memory"), "{line}");
    let complaint = explain(&["--memory", "1GiB"]).fails(2);
    assert!(complaint.contains("memory = 1GiB is above the 512 MiB"), "{complaint}");
}
