//! The address of a server: a TCP port or a Unix socket.

use std::{
    fmt, io,
    net::{SocketAddr, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use crate::server::resolve;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of a server: a TCP port or a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// IP address and TCP port of the server.
    Tcp(SocketAddr),
    /// Path of a Unix socket in the file system.
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

impl Address {
    /// Connects to the server. TCP connections get `TCP_NODELAY`. A Unix socket is returned as a `TcpStream` too,
    /// because it is read and written with the same system calls.
    pub fn connect(&self) -> io::Result<TcpStream> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }
            Self::Unix(path) => Ok(OwnedFd::from(UnixStream::connect(path)?).into()),
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
