//! A connection to an HTTP server for single requests. Benchmarks use it to read the state of a server, and for load
//! that waits for each reply.

use std::{
    borrow::Cow,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::reply::{self, Body, Incomplete, Reply};

const BLOCK_BYTES: usize = 64 << 10;

/// A connection to an HTTP server with at most one request in flight. The caller must drop it after an error, because a
/// late reply may still arrive.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    stream: TcpStream,
    input: Vec<u8>,
}

impl Client {
    /// Connects to a server. Connecting, and each later wait for a reply, takes at most `timeout`.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        let client = Self { address, stream, input: Vec::new() };
        client.set_timeout(timeout)?;
        Ok(client)
    }

    /// Sets the longest wait for bytes of a reply.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))
    }

    /// Sends a request and returns status and body of the reply. `headers` are complete lines. A request with a body
    /// must be a PUT or a POST.
    pub fn request(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n{headers}{length}\r\n", self.address);
        let reply = self.exchange(&[head.as_bytes(), body].concat())?;
        Ok((reply.status, self.body(&reply).into_owned()))
    }

    /// Sends the bytes of one request and returns the reply. The request must not be a HEAD request.
    pub fn exchange(&mut self, request: &[u8]) -> io::Result<Reply> {
        self.stream.write_all(request)?;
        self.input.clear();
        let mut block = vec![0; BLOCK_BYTES];
        loop {
            match self.stream.read(&mut block)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.input.extend_from_slice(&block[..count]),
            }
            match reply::parse(&self.input, Body::Expected) {
                Ok(reply) => return Ok(reply),
                Err(Incomplete::Malformed(what)) => return Err(io::Error::new(ErrorKind::InvalidData, what)),
                Err(Incomplete::NeedMore) => {}
            }
        }
    }

    /// Returns the body of the last reply.
    pub fn body<'a>(&'a self, reply: &Reply) -> Cow<'a, [u8]> {
        reply.body_bytes(&self.input)
    }

    /// Returns a header of the last reply; `None` if the reply has no such header or the header is not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let head = self.input.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|end| &self.input[..end])?;
        let lines = head.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
        let mut fields = lines.filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}
