//! A redis-server of one's own, without persistence.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use super::connection::Connection;

/// Ended when dropped.
pub struct RedisServer {
    child: Child,
    dir: PathBuf,
}

impl RedisServer {
    /// Starts one, if redis-server 7.0 is installed: others answer some commands differently. If not, says so, and the
    /// test that asked has nothing to do; with `THALWEG_REQUIRE_REDIS=1` that is a failure.
    pub fn start() -> Option<Self> {
        let version = Command::new("redis-server").arg("--version").output();
        let found = version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("v=7.0."));
        if !found {
            assert!(
                std::env::var("THALWEG_REQUIRE_REDIS").is_err_and(|_| true),
                "THALWEG_REQUIRE_REDIS is set, and redis-server 7.0 is not installed"
            );
            println!("skipped: redis-server 7.0 is not installed");
            return None;
        }
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("thalweg-redis-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            // Then `~` trims exactly, as ours does.
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
        // Its log is read on, so that it never waits for that.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let server = Self { child, dir };
        assert!(ready, "redis-server did not start");
        Some(server)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// A connection that speaks RESP2 or RESP3.
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
