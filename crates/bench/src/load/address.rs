//! Where a server listens, and a socket to it.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        let mut found = text.to_socket_addrs().map_err(|error| format!("{text:?}: {error}; is it host:port?"))?;
        found.next().map(Self::Tcp).ok_or_else(|| format!("{text:?} has no address"))
    }
}

/// A connection's socket.
#[derive(Debug)]
pub enum Socket {
    /// Over TCP, without delay.
    Tcp(TcpStream),
    /// Through the file system.
    Unix(UnixStream),
}

impl Socket {
    /// Connects.
    pub fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path)?)),
        }
    }

    /// Whether calls return at once when there is nothing to do, and how long those wait that don't.
    pub fn set_waiting(&self, waits: Waits) -> io::Result<()> {
        let (nonblocking, timeout) = match waits {
            Waits::Never => (true, None),
            Waits::AtMost(time) => (false, Some(time)),
        };
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(nonblocking)?;
                stream.set_read_timeout(timeout)
            }
            Self::Unix(stream) => {
                stream.set_nonblocking(nonblocking)?;
                stream.set_read_timeout(timeout)
            }
        }
    }
}

/// How long reading waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Not at all: the caller waits for many at once.
    Never,
    /// So long.
    AtMost(Duration),
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for text in ["127.0.0.1:6379", "unix:/run/redis.sock", "[::1]:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert!("nonsense".parse::<Address>().unwrap_err().contains("host:port"));
    }
}
