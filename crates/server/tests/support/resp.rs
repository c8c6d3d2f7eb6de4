//! A Redis client that shows exactly what is on the wire.

use thalweg_server::{
    Config,
    config::{RespAddress, RespDatabases, Setting},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::{Node, PATIENCE};

/// Makes a configuration serve Redis clients: database 0 is durable, database 1 is a cache.
pub fn serving(config: &mut Config) {
    config.resp = RespAddress::parse("127.0.0.1:0").unwrap();
    config.resp_databases = RespDatabases::parse("0=keyspace:redis,1=cache:redis").unwrap();
}

/// Starts a node that serves Redis clients.
pub async fn node() -> Node {
    node_with(|_| ()).await
}

/// Starts a node like [`node`], with changes of its configuration.
pub async fn node_with(change: impl FnOnce(&mut Config)) -> Node {
    Node::with(|config| {
        serving(config);
        change(config);
    })
    .await
}

/// Starts a node with one thread for Redis clients. Database 1 is a cache.
pub async fn node_with_one_thread() -> Node {
    node_with(|config| config.resp_threads = 1).await
}

/// Puts keys `key:000000` and so on into the database 0 or 1.
pub async fn fill(node: &Node, database: &str, keys: usize) {
    let mut client = Resp::connect(node).await;
    assert_eq!(client.call(&format!("SELECT {database}")).await, "+OK");
    for from in (0..keys).step_by(1000) {
        let pairs: Vec<String> = (from..(from + 1000).min(keys)).map(|key| format!("key:{key:06} v")).collect();
        assert_eq!(client.call(&format!("MSET {}", pairs.join(" "))).await, "+OK");
    }
}

/// A connection of a Redis client.
pub struct Resp {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Resp {
    pub async fn connect(node: &Node) -> Self {
        Self::to(node.resp.expect("it serves Redis clients")).await
    }

    pub async fn to(address: std::net::SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Connects with a small receive buffer, so that little of an unread reply leaves the server.
    pub async fn connect_small(node: &Node) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        let stream = socket.connect(node.resp.expect("it serves Redis clients")).await.unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Connects from the loopback address 127.0.0.`last`.
    pub async fn connect_from(node: &Node, last: u8) -> Self {
        let stream = super::dial_from(last, node.resp.expect("it serves Redis clients")).await;
        Self { stream, buffer: Vec::new() }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Returns the next reply as received, with `\r\n` shown as spaces.
    pub async fn reply(&mut self) -> String {
        loop {
            if let Some(end) = whole(&self.buffer) {
                let reply: Vec<u8> = self.buffer.drain(..end).collect();
                return String::from_utf8_lossy(&reply).replace("\r\n", " ").trim_end().to_owned();
            }
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.buffer));
            let read = read.await.expect("a reply comes in time").expect("the connection stays");
            assert!(read > 0, "the connection ended after {:?}", String::from_utf8_lossy(&self.buffer));
        }
    }

    /// Reads and discards bytes up to and including `end`.
    pub async fn discard_until(&mut self, end: &str) {
        let end = end.as_bytes();
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|bytes| bytes == end) {
                self.buffer.drain(..at + end.len());
                return;
            }
            let kept = self.buffer.len().saturating_sub(end.len());
            self.buffer.drain(..kept);
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.buffer));
            assert!(read.await.expect("bytes come in time").expect("the connection stays") > 0);
        }
    }

    /// Sends one command, whose words are separated by spaces, and returns its reply.
    pub async fn call(&mut self, command: &str) -> String {
        self.send(&encode(command)).await;
        self.reply().await
    }

    /// Sends commands in one write, and returns their replies.
    pub async fn pipeline(&mut self, commands: &[&str]) -> Vec<String> {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        self.send(&bytes).await;
        let mut replies = Vec::new();
        for _ in commands {
            replies.push(self.reply().await);
        }
        replies
    }

    /// Repeats a command until its reply contains `part`.
    pub async fn until(&mut self, command: &str, part: &str) {
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            let reply = self.call(command).await;
            if reply.contains(part) {
                return;
            }
            assert!(std::time::Instant::now() < until, "{command}: no {part:?} in {reply}");
        }
    }

    /// Ends the connection with a reset, like a client whose machine was restarted.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Returns everything that the server sends until it closes the connection.
    pub async fn rest(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.buffer);
        let read = tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest));
        let _ = read.await.expect("the server closes the connection in time");
        String::from_utf8_lossy(&rest).replace("\r\n", " ").trim_end().to_owned()
    }
}

/// Encodes a command as an array of bulk strings. `_` is an empty word.
pub fn encode(command: &str) -> Vec<u8> {
    let words: Vec<&str> = command.split(' ').map(|word| if word == "_" { "" } else { word }).collect();
    let mut out = format!("*{}\r\n", words.len());
    for word in words {
        out.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    out.into_bytes()
}

/// Returns the length of the first reply, or `None` if it is incomplete.
fn whole(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut wanted = 1_usize;
    while wanted > 0 {
        let line = bytes[at..].windows(2).position(|pair| pair == b"\r\n")?;
        let text = std::str::from_utf8(&bytes[at + 1..at + line]).unwrap_or("0");
        let kind = bytes[at];
        at += line + 2;
        wanted -= 1;
        let count = || text.parse::<i64>().unwrap_or(0);
        match kind {
            b'$' | b'=' if count() >= 0 => {
                at += count() as usize + 2;
                if at > bytes.len() {
                    return None;
                }
            }
            b'*' | b'~' | b'>' if count() > 0 => wanted += count() as usize,
            b'%' => wanted += 2 * count() as usize,
            _ => {}
        }
    }
    Some(at)
}
