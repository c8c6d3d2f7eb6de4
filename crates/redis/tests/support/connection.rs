//! Targets that execute commands, and connections to servers.

use std::{
    io::{BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use super::frame::Frame;

/// Arguments of a command, name first.
pub type Args = Vec<Vec<u8>>;

/// Executes commands.
pub trait Target {
    fn ask(&mut self, args: &[Vec<u8>]) -> Frame;
}

/// Maximum time for a reply before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

trait Socket: Read + Write {}
impl<S: Read + Write> Socket for S {}

/// A connection to a server.
pub struct Connection {
    stream: BufReader<Box<dyn Socket>>,
}

impl Connection {
    /// Connects to a Unix socket, speaking RESP2 or RESP3.
    pub fn unix(path: &Path, protocol: u8) -> Self {
        let stream = UnixStream::connect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::over(Box::new(stream), protocol)
    }

    /// Connects over TCP.
    pub fn tcp(address: impl std::net::ToSocketAddrs, protocol: u8) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::over(Box::new(stream), protocol)
    }

    fn over(stream: Box<dyn Socket>, protocol: u8) -> Self {
        let mut connection = Self { stream: BufReader::new(stream) };
        if protocol == 3 {
            let hello = connection.ask(&[b"HELLO".to_vec(), b"3".to_vec()]);
            assert!(matches!(hello, Frame::Many(b'%', Some(_))), "{hello:?}");
        }
        connection
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Receives the next reply.
    pub fn receive(&mut self) -> Frame {
        Frame::read(&mut self.stream).unwrap()
    }
}

/// Encodes a request.
pub fn encode(args: &[Vec<u8>], to: &mut Vec<u8>) {
    to.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        to.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        to.extend_from_slice(arg);
        to.extend_from_slice(b"\r\n");
    }
}

impl Target for Connection {
    fn ask(&mut self, args: &[Vec<u8>]) -> Frame {
        let mut bytes = Vec::new();
        encode(args, &mut bytes);
        self.send(&bytes);
        self.receive()
    }
}
