//! Accepting connections.

use std::{io, net::SocketAddr, time::Duration};

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::{
    channel::Channel,
    connection::{Connection, Kind},
    error::{EstablishError, ListenError},
};

/// Connections that the kernel holds until they are accepted; more wait for their SYN to be sent again.
const BACKLOG: u32 = 1024;

/// How a listener listens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Longest time for a handshake of TLS or QUIC, and over QUIC until the first channel is there.
    pub handshake_timeout: Duration,
}

impl ListenOptions {
    /// What holds unless something else is said.
    pub const DEFAULTS: Self = Self { handshake_timeout: Duration::from_secs(10) };
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self::DEFAULTS
    }
}

/// Accepts connections on one port.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    options: ListenOptions,
}

impl Listener {
    /// Binds `address`; with port 0 the system chooses one. Must be called on a tokio runtime.
    pub async fn bind(address: SocketAddr, options: ListenOptions) -> Result<Self, ListenError> {
        let bind = || {
            let tcp = listen(address)?;
            let bound = tcp.local_addr()?;
            Ok((tcp, bound))
        };
        let (tcp, bound) = bind().map_err(|error| ListenError::Bind { address, error })?;
        Ok(Self { tcp, address: bound, options })
    }

    /// Where it listens, with the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, before its handshake. An error is about one connection or about the machine (too many
    /// open files): pause a little and go on. Cancel-safe.
    pub async fn accept(&self) -> io::Result<Incoming> {
        let (stream, peer) = self.tcp.accept().await?;
        Ok(Incoming { stream, peer, handshake_timeout: self.options.handshake_timeout })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A connection that came and has not done its handshake. Dropping it refuses it.
#[derive(Debug)]
pub struct Incoming {
    stream: TcpStream,
    peer: SocketAddr,
    #[expect(dead_code, reason = "TCP alone has no handshake")]
    handshake_timeout: Duration,
}

impl Incoming {
    /// Where it comes from.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What carries it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::Tcp
    }

    /// Does the handshake, within the listener's [`handshake_timeout`](ListenOptions::handshake_timeout). In a task of
    /// its own, or a slow peer holds up the next.
    pub async fn establish(self) -> Result<(Connection, Channel), EstablishError> {
        let channel = Channel::tcp(self.stream);
        Ok((Connection::single(&channel), channel))
    }
}
