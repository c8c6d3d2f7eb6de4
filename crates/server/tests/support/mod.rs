//! A server in this process, and a small HTTP/1.1 client that shows exactly what is on the wire.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod carried;
pub mod cluster;
pub mod cold;
pub mod gated;
pub mod jobs;
pub mod lagging;
pub mod native;
pub mod resp;

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use thalweg_engine::{BackendKind, Database, Options};
use thalweg_server::{
    Config, Server, ServerError,
    cluster::Cluster,
    config::{AllowedHosts, Backend, ByteSize, Setting as _},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};

/// Longest time of any step of a test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pauses a loop that waits for the server. Without the pause, the loop takes a processor from it.
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Repeats a check until it holds, for changes that no message reports.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            pause().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

pub struct Node {
    pub address: SocketAddr,
    pub native: Option<SocketAddr>,
    pub resp: Option<SocketAddr>,
    pub fingerprint: Option<thalweg_transport::Fingerprint>,
    pub certificate: Option<thalweg_server::native::security::Certificate>,
    pub db: Database,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<(), ServerError>>,
    _dir: Option<TempDir>,
}

/// Name of the metric of bytes held for large replies.
pub const HELD: &str = "http_in_use{bound=\"reply_bytes\"}";

/// Bound of which one address may hold 64 MiB, because a tenth is kept for others.
pub const HELD_BY_ONE_ADDRESS: ByteSize = ByteSize((64 << 20) * 10 / 9 + 1);

pub fn config() -> Config {
    Config {
        http: SocketAddr::from(([127, 0, 0, 1], 0)),
        backend: Backend(Some(BackendKind::Memory)),
        // Tests of QUIC set this, and the directory of the certificate.
        native_quic_sockets: 0,
        // The tests name the host `t`.
        allowed_hosts: AllowedHosts::parse("t").unwrap(),
        ..Config::default()
    }
}

pub fn small_options(config: &Config) -> Options {
    Options {
        segment_bytes: 1 << 20,
        spare_segments: 2,
        reserve_bytes: 1 << 20,
        maintenance_interval: Duration::ZERO,
        ..config.engine_options()
    }
}

impl Node {
    pub async fn start() -> Self {
        Self::with(|_| ()).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_segments(1 << 20, change).await
    }

    /// Starts a node whose log takes values of any permitted size.
    pub async fn with_large_segments(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_segments(32 << 20, change).await
    }

    /// Starts a node whose log segments have this size in bytes.
    pub async fn with_segments(segment_bytes: u32, change: impl FnOnce(&mut Config)) -> Self {
        Self::in_new_directory(segment_bytes, None, change).await
    }

    pub async fn over(config: Config, db: Database) -> Self {
        Self::of_member(config, db, None).await
    }

    /// Starts a node that is a member of this cluster.
    pub async fn in_cluster(cluster: Cluster, change: impl FnOnce(&mut Config)) -> Self {
        Self::in_new_directory(1 << 20, Some(cluster), change).await
    }

    async fn in_new_directory(segment_bytes: u32, cluster: Option<Cluster>, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        let dir = tempfile::tempdir().unwrap();
        let options = Options { segment_bytes, ..small_options(&config) };
        let db = Database::open(dir.path(), options).unwrap();
        let mut node = Self::of_member(config, db, cluster).await;
        node._dir = Some(dir);
        node
    }

    async fn of_member(config: Config, db: Database, cluster: Option<Cluster>) -> Self {
        let server = Server::bind_member(config, &db, cluster).await.unwrap();
        let (address, native, resp) = (server.local_addr(), server.native_addr(), server.resp_addr());
        let (fingerprint, certificate) = (server.fingerprint(), server.certificate());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { address, native, resp, fingerprint, certificate, db, stop: Some(stop), running, _dir: None }
    }

    pub async fn connect(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.unwrap(), buffer: Vec::new() }
    }

    /// Sends a GET on a connection of its own, and receives the head of its reply, whose body is still to come.
    pub async fn open(&self, target: &str, headers: &[(&str, &str)]) -> Client {
        let mut client = self.connect().await;
        client.send("GET", target, headers, b"").await;
        client.head().await.is(200);
        client
    }

    /// Connects to HTTP from the loopback address 127.0.0.`last`.
    pub async fn connect_from(&self, last: u8) -> Client {
        Client { stream: dial_from(last, self.address).await, buffer: Vec::new() }
    }

    /// Connects to HTTP from the loopback address 127.0.0.`last` with a small receive buffer, so that little of an
    /// unread reply leaves the server.
    pub async fn connect_small(&self, last: u8) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Sends a GET from the loopback address 127.0.0.`last`, whose reply the client does not read.
    pub async fn unread(&self, last: u8, target: &str) -> TcpStream {
        let mut stream = self.connect_small(last).await;
        stream.write_all(format!("GET {target} HTTP/1.1\r\nhost: t\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }

    /// Sends eight GETs of a value of 8 MiB, whose replies the client does not read. They take all the room that one
    /// address has.
    pub async fn fill_reply_room(&self, target: &str) -> Vec<TcpStream> {
        let mut greedy = Vec::new();
        for taken in 1..=8 {
            greedy.push(self.unread(1, target).await);
            self.until(HELD, f64::from(taken * (8 << 20))).await;
        }
        greedy
    }

    pub fn signal_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub async fn stopped(self) -> Result<(), ServerError> {
        tokio::time::timeout(PATIENCE, self.running).await.expect("stops in time").unwrap()
    }

    pub async fn stop(mut self) {
        self.signal_stop();
        self.stopped().await.unwrap();
    }

    /// Sends one request on a connection of its own.
    pub async fn call(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.connect().await.call(method, target, headers, body).await
    }

    pub async fn get(&self, target: &str) -> Reply {
        self.call("GET", target, &[], b"").await
    }

    pub async fn put(&self, target: &str, body: &[u8]) -> Reply {
        self.call("PUT", target, &[], body).await
    }

    pub async fn delete(&self, target: &str) -> Reply {
        self.call("DELETE", target, &[], b"").await
    }

    pub async fn post_json(&self, target: &str, body: &Value) -> Reply {
        self.send_json("POST", target, body).await
    }

    pub async fn put_json(&self, target: &str, body: &Value) -> Reply {
        self.send_json("PUT", target, body).await
    }

    /// Returns the value of a line of the server's metrics.
    pub async fn metric(&self, line: &str) -> f64 {
        let text = String::from_utf8(self.get("/metrics").await.is(200).body).unwrap();
        let found = text.lines().find_map(|found| found.strip_prefix(&format!("thalweg_{line} ")));
        found.unwrap_or_else(|| panic!("no {line} in {text}")).parse().unwrap()
    }

    /// Polls the server's metrics until a line has this value.
    pub async fn until(&self, line: &str, wanted: f64) {
        eventually(&format!("{line} is {wanted}"), async || self.metric(line).await == wanted).await;
    }

    /// Polls the server's metrics until a line has at least this value.
    pub async fn until_at_least(&self, line: &str, least: f64) {
        eventually(&format!("{line} is at least {least}"), async || self.metric(line).await >= least).await;
    }

    async fn send_json(&self, method: &str, target: &str, body: &Value) -> Reply {
        self.call(method, target, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }
}

/// Opens a TCP connection from the loopback address 127.0.0.`last`.
pub async fn dial_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    let stream = socket.connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A connection to HTTP.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    /// Chunks of a chunked body.
    pub chunks: Vec<Vec<u8>>,
}

impl Reply {
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no header {name}: {self:?}"))
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn lines(&self) -> Vec<Value> {
        self.body
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{} {:?}", String::from_utf8_lossy(&self.body), self.headers);
        self
    }

    /// Asserts the status and code of an error, and the shape that all errors share.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str, retry: &str) -> Value {
        let reply = self.is(status);
        assert_eq!(reply.header("content-type"), "application/json");
        let error = reply.json();
        assert_eq!((error["code"].as_str(), error["retry"].as_str()), (Some(code), Some(retry)), "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 8), "{error}");
        assert_eq!(error["request_id"].as_str(), Some(reply.header("x-request-id")));
        error
    }
}

impl Client {
    pub async fn call(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.send(method, target, headers, body).await;
        self.reply(method).await
    }

    pub async fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut request = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request.push_str("host: t\r\n");
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !headers.iter().any(|(name, _)| *name == "content-length" || *name == "transfer-encoding") {
            request.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        self.stream.write_all(request.as_bytes()).await.unwrap();
        // A server that rejects early may close while the client still sends.
        let _ = self.stream.write_all(body).await;
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn more(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await;
        read.expect("a reply in time").unwrap_or(0) > 0
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8(self.buffer[..end].to_vec()).unwrap();
                self.buffer.drain(..end + 2);
                return line;
            }
            assert!(self.more().await, "closed within a line: {:?}", String::from_utf8_lossy(&self.buffer));
        }
    }

    async fn take(&mut self, len: usize) -> Vec<u8> {
        while self.buffer.len() < len {
            assert!(self.more().await, "closed within a body");
        }
        self.buffer.drain(..len).collect()
    }

    /// Returns status and headers of the next reply.
    pub async fn head(&mut self) -> Reply {
        let status = self.line().await;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        Reply { status, headers, body: Vec::new(), chunks: Vec::new() }
    }

    pub async fn reply(&mut self, method: &str) -> Reply {
        let mut reply = self.head().await;
        if method == "HEAD" || matches!(reply.status, 204 | 304) {
            return reply;
        }
        if let Some(len) = reply.headers.get("content-length") {
            reply.body = self.take(len.parse().unwrap()).await;
            return reply;
        }
        while let Some(chunk) = self.chunk().await {
            reply.body.extend_from_slice(&chunk);
            reply.chunks.push(chunk);
        }
        reply
    }

    /// Returns the next chunk of a chunked body, or `None` after the last.
    pub async fn chunk(&mut self) -> Option<Vec<u8>> {
        let len = usize::from_str_radix(&self.line().await, 16).unwrap();
        let chunk = self.take(len).await;
        self.line().await;
        (len > 0).then_some(chunk)
    }

    /// Waits until the server closes the connection. Returns the bytes that it sends before.
    pub async fn closed(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.buffer)
    }
}

/// Asserts that a string contains another.
#[track_caller]
pub fn holds(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in {text}");
}
