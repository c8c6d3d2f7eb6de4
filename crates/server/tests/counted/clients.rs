//! Clients that allocate nothing after they have connected.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use crate::support::PATIENCE;

/// A blocking connection with buffers that are large enough for every request and reply of the test.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Connection {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, request: Vec::with_capacity(16 << 10), reply: Vec::with_capacity(16 << 10) }
    }

    /// Sends the request, and receives until `is_complete` returns true for the reply.
    fn exchange(&mut self, is_complete: impl Fn(&[u8]) -> bool) {
        self.stream.write_all(&self.request).unwrap();
        self.request.clear();
        self.reply.clear();
        let mut chunk = [0; 4096];
        while !is_complete(&self.reply) {
            let read = self.stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the server closed the connection");
            self.reply.extend_from_slice(&chunk[..read]);
        }
    }
}

/// Returns the position behind the first `part` of a text.
fn behind(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window.eq_ignore_ascii_case(part)).map(|at| at + part.len())
}

/// Returns true if a reply of HTTP/1.1 with a length is complete.
fn is_complete_http(reply: &[u8]) -> bool {
    let Some(body) = behind(reply, b"\r\n\r\n") else { return false };
    let length = behind(&reply[..body], b"\r\ncontent-length: ").map_or(0, |at| {
        let digits = reply[at..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number, digit| 10 * number + usize::from(digit - b'0'))
    });
    reply.len() >= body + length
}

/// A client of the key-value API over one kept connection.
pub struct HttpClient(Connection);

impl HttpClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self(Connection::to(address))
    }

    pub fn put(&mut self, key: u64, value: &[u8]) {
        let length = value.len();
        write!(
            self.0.request,
            "PUT /v1/kv/counted/k{key:06} HTTP/1.1\r\nhost: t\r\nthalweg-durability: interval\r\n\
             content-length: {length}\r\n\r\n"
        )
        .unwrap();
        self.0.request.extend_from_slice(value);
        self.0.exchange(is_complete_http);
        let status = &self.0.reply[..12];
        assert!(status == b"HTTP/1.1 200" || status == b"HTTP/1.1 201" || status == b"HTTP/1.1 204");
    }

    pub fn get(&mut self, key: u64, value: &[u8]) {
        write!(self.0.request, "GET /v1/kv/counted/k{key:06} HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
        self.0.exchange(is_complete_http);
        assert!(self.0.reply.starts_with(b"HTTP/1.1 200") && self.0.reply.ends_with(value));
    }
}

/// A Redis client that sends all its commands with one write.
pub struct RespClient(Connection);

impl RespClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self(Connection::to(address))
    }

    pub fn set(&mut self, keys: &[u64], value: &[u8]) {
        let length = value.len();
        for key in keys {
            write!(self.0.request, "*3\r\n$3\r\nSET\r\n$7\r\nk{key:06}\r\n${length}\r\n").unwrap();
            self.0.request.extend_from_slice(value);
            self.0.request.extend_from_slice(b"\r\n");
        }
        const OK: &[u8] = b"+OK\r\n";
        self.0.exchange(|reply| reply.len() >= OK.len() * keys.len());
        assert!(self.0.reply.chunks(OK.len()).all(|reply| reply == OK));
    }

    pub fn get(&mut self, keys: &[u64], value: &[u8]) {
        for key in keys {
            write!(self.0.request, "*2\r\n$3\r\nGET\r\n$7\r\nk{key:06}\r\n").unwrap();
        }
        // A reply is the length in a line, the value, and the end of the line.
        let each = "$100\r\n".len() + value.len() + 2;
        self.0.exchange(|reply| reply.len() >= each * keys.len());
        assert!(self.0.reply.chunks(each).all(|reply| &reply[6..6 + value.len()] == value));
    }
}
