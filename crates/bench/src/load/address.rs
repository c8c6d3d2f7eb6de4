//! The address of a server, and a socket connected to it.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use rustix::net::{
    RecvFlags, SendFlags, recv, send,
    sockopt::{Timeout, set_socket_timeout},
};

use crate::server::resolve;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
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
        resolve(text).map(Self::Tcp).map_err(|error| format!("{text:?}: {error}"))
    }
}

/// A connection's socket, over TCP (without delay) or through the file system.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Connects.
    pub fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
                stream.set_nodelay(true)?;
                Ok(Self(stream.into()))
            }
            Address::Unix(path) => Ok(Self(UnixStream::connect(path)?.into())),
        }
    }

    /// Sets how long reads wait.
    pub fn set_waiting(&self, waits: Waits) -> io::Result<()> {
        let timeout = match waits {
            Waits::Never => None,
            Waits::AtMost(time) => Some(time),
        };
        rustix::io::ioctl_fionbio(&self.0, timeout.is_none())?;
        Ok(set_socket_timeout(&self.0, Timeout::Recv, timeout)?)
    }
}

/// Time that reads wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Not at all: the caller waits for many sockets with a [`Poller`](super::poller::Poller).
    Never,
    /// Reads wait at most this long, then they fail.
    AtMost(Duration),
}

impl Read for Socket {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(&self.0, buffer, RecvFlags::empty())?.1)
    }
}

impl Write for Socket {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
