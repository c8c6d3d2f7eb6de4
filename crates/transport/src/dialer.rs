//! Connecting to a server.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

use crate::{
    channel::Channel,
    connection::{Connection, Kind},
    error::DialError,
};

/// Whom to connect to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    address: String,
    kind: Kind,
}

impl Endpoint {
    /// `host:port` over TCP, without encryption.
    #[must_use]
    pub fn tcp(address: impl Into<String>) -> Self {
        Self { address: address.into(), kind: Kind::Tcp }
    }

    /// `host:port`, as given.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What the connection goes over.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// Dials. Keep one: over QUIC its connections share a socket.
#[derive(Clone, Debug)]
pub struct Dialer {
    connect_timeout: Duration,
}

impl Default for Dialer {
    fn default() -> Self {
        Self::new()
    }
}

impl Dialer {
    /// With the default timeout of 5 s.
    #[must_use]
    pub fn new() -> Self {
        Self { connect_timeout: Duration::from_secs(5) }
    }

    /// Longest time until a connection is there, with its handshake, over all addresses of the name.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout }
    }

    /// Connects, and opens the first channel.
    pub async fn dial(&self, endpoint: &Endpoint) -> Result<(Connection, Channel), DialError> {
        let all = async {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in resolve(&endpoint.address).await? {
                match self.dial_address(address, endpoint).await {
                    Ok(dialled) => return Ok(dialled),
                    Err(error) => last = error,
                }
            }
            Err(DialError::Connect { address: endpoint.address.clone(), error: last })
        };
        match timeout(self.connect_timeout, all).await {
            Ok(dialled) => dialled,
            Err(_) => Err(DialError::TimedOut { address: endpoint.address.clone(), after: self.connect_timeout }),
        }
    }

    async fn dial_address(&self, address: SocketAddr, endpoint: &Endpoint) -> io::Result<(Connection, Channel)> {
        match endpoint.kind {
            Kind::Tcp => {
                let channel = Channel::tcp(TcpStream::connect(address).await?);
                Ok((Connection::single(&channel), channel))
            }
            Kind::Tls | Kind::Quic => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

async fn resolve(address: &str) -> Result<Vec<SocketAddr>, DialError> {
    match lookup_host(address).await {
        Ok(found) => Ok(found.collect()),
        Err(error) => Err(DialError::Resolve { address: address.to_owned(), error }),
    }
}
