//! A redis-server started for a test, without persistence.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use super::connection::Connection;

#[path = "../../../thalweg/tests/node/skip.rs"]
mod skip;

use skip::skip;

/// A running redis-server, killed on drop.
pub struct RedisServer {
    child: Child,
    dir: PathBuf,
}

impl RedisServer {
    /// Starts a redis-server if version 7.0 is installed; other versions reply differently to some commands.
    /// Otherwise reports that the test is skipped, and returns `None`. With `THALWEG_REQUIRE_REDIS=1` a
    /// missing server is a failure.
    pub fn start() -> Option<Self> {
        let version = Command::new("redis-server").arg("--version").output();
        let found = version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("v=7.0."));
        if !found {
            assert!(
                std::env::var("THALWEG_REQUIRE_REDIS").is_err_and(|_| true),
                "THALWEG_REQUIRE_REDIS is set, and redis-server 7.0 is not installed"
            );
            skip(std::thread::current().name().unwrap_or("a comparison"), "redis-server 7.0 is not installed");
            return None;
        }
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("thalweg-redis-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            // With this option, `~` trims exactly, like ours.
            .args(["--stream-node-max-entries", "1", "--unixsocket"])
            .arg(dir.join("socket"))
            .arg("--dir")
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("ready to accept connections"));
        // Reads the server's log continuously, so that it never blocks on a full pipe.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let server = Self { child, dir };
        assert!(ready, "redis-server did not start");
        Some(server)
    }

    /// Path of the server's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// Connects with RESP2 or RESP3.
    pub fn connect(&self, protocol: u8) -> Connection {
        Connection::unix(&self.socket(), protocol)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
