//! The dialer: connects to servers over TCP, TLS or QUIC.
//!
//! Owns: `Endpoint` (an address with its transport and trust), the time limit of an attempt, and the UDP sockets that
//! QUIC connections share. Does not own: trust in certificates (`trust`), QUIC's configuration (`quic`), or
//! reconnecting, which callers do.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::pki_types::ServerName;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{TlsConnector, TlsStream};

use crate::{
    channel::{Channel, Kind},
    connection::Connection,
    error::DialError,
    quic::{self, QuicOptions},
    tls,
    trust::Trust,
};

/// Maximum number of UDP sockets of a dialer. Each QUIC connection gets a socket of its own until this number is
/// reached. Further connections share these sockets.
const MAX_SOCKETS: usize = 16;

/// Address of a server, and the transport protocol to use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    address: String,
    server_name: Option<String>,
    security: Security,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Security {
    Plain,
    Tls(Trust),
    Quic(Trust),
}

impl Endpoint {
    /// Returns an endpoint at `host:port` over TCP, without encryption.
    #[must_use]
    pub fn tcp(address: impl Into<String>) -> Self {
        Self { address: address.into(), server_name: None, security: Security::Plain }
    }

    /// Returns an endpoint at `host:port` over TLS.
    #[must_use]
    pub fn tls(address: impl Into<String>, trust: Trust) -> Self {
        Self { address: address.into(), server_name: None, security: Security::Tls(trust) }
    }

    /// Returns an endpoint at `host:port` over QUIC.
    #[must_use]
    pub fn quic(address: impl Into<String>, trust: Trust) -> Self {
        Self { address: address.into(), server_name: None, security: Security::Quic(trust) }
    }

    /// Returns an endpoint at another `host:port` with this endpoint's transport and trust. A name that was set with
    /// [`server_name`](Self::server_name) is kept.
    #[must_use]
    pub fn at(&self, address: impl Into<String>) -> Self {
        Self { address: address.into(), ..self.clone() }
    }

    /// Sets the name that the server's certificate must contain. The default is the host in the address.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Address of the server as given: `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Transport protocol of connections to this endpoint.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.security {
            Security::Plain => Kind::Tcp,
            Security::Tls(_) => Kind::Tls,
            Security::Quic(_) => Kind::Quic,
        }
    }

    /// Server name to verify in the certificate, in the form that TLS expects: an IPv6 address has no
    /// brackets.
    fn verified_name(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        let host = self.server_name.as_deref().unwrap_or(host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }
}

/// Connects to servers. Keep one dialer and clone it, because its QUIC connections share sockets.
#[derive(Clone, Debug)]
pub struct Dialer {
    connect_timeout: Duration,
    quic: QuicOptions,
    sockets: Arc<Mutex<Sockets>>,
}

/// The QUIC endpoints (UDP sockets) of a dialer, and the number of connections that had to share an endpoint.
///
/// Up to [`MAX_SOCKETS`], each connection gets its own endpoint, with its own receiving task and its own port. The
/// kernel of the server uses the port to spread connections over the server's sockets.
#[derive(Debug, Default)]
struct Sockets {
    v4: Vec<quinn::Endpoint>,
    v6: Vec<quinn::Endpoint>,
    dialled: usize,
}

impl Sockets {
    /// Returns the QUIC endpoint for a new connection to an address.
    fn next(&mut self, to: SocketAddr, options: &QuicOptions) -> io::Result<&quinn::Endpoint> {
        let endpoints = if to.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        // An endpoint without connections serves as well as a new one.
        let free = endpoints.iter().position(|endpoint| endpoint.open_connections() == 0);
        let at = match free {
            Some(free) => free,
            None if endpoints.len() < MAX_SOCKETS => {
                endpoints.push(quic::dialling(to, options)?);
                endpoints.len() - 1
            }
            None => {
                self.dialled = self.dialled.wrapping_add(1);
                self.dialled % MAX_SOCKETS
            }
        };
        Ok(&endpoints[at])
    }
}

impl Default for Dialer {
    fn default() -> Self {
        Self::new()
    }
}

impl Dialer {
    /// Creates a dialer with the default timeout of 5 seconds for each connection attempt.
    #[must_use]
    pub fn new() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            quic: QuicOptions::DEFAULTS,
            sockets: Arc::new(Mutex::new(Sockets::default())),
        }
    }

    /// Sets the maximum time for one connection attempt including its handshake. If the host name has several
    /// addresses, the time covers all of them together.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Sets the options of QUIC connections.
    #[must_use]
    pub fn quic(self, quic: QuicOptions) -> Self {
        Self { quic, ..self }
    }

    /// Connects to `endpoint` and opens the first channel.
    pub async fn dial(&self, endpoint: &Endpoint) -> Result<(Connection, Channel), DialError> {
        match timeout(self.connect_timeout, self.dial_any(endpoint)).await {
            Ok(dialled) => dialled,
            Err(_) => Err(DialError::TimedOut { address: endpoint.address.clone(), after: self.connect_timeout }),
        }
    }

    async fn dial_any(&self, endpoint: &Endpoint) -> Result<(Connection, Channel), DialError> {
        let address = &endpoint.address;
        let found = lookup_host(address);
        let found = found.await.map_err(|error| DialError::Resolve { address: address.clone(), error })?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for to in found {
            let dialled = match &endpoint.security {
                Security::Plain => TcpStream::connect(to).await.map(|stream| single(Channel::tcp(stream))),
                Security::Tls(trust) => dial_tls(to, trust, name(endpoint)?).await,
                Security::Quic(trust) => {
                    name(endpoint)?;
                    self.dial_quic(to, trust, endpoint.verified_name()).await
                }
            };
            match dialled {
                Ok(dialled) => return Ok(dialled),
                Err(error) => last = error,
            }
        }
        Err(DialError::of(address, last))
    }

    async fn dial_quic(&self, to: SocketAddr, trust: &Trust, name: &str) -> io::Result<(Connection, Channel)> {
        let config = quic::client_config(trust, &self.quic, to);
        let connecting = {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            sockets.next(to, &self.quic)?.connect_with(config, to, name).map_err(io::Error::other)?
        };
        let connection = connecting.await?;
        let (send, receive) = connection.open_bi().await?;
        let channel = Channel::quic(to, send, receive);
        Ok((Connection::quic(connection, self.quic.receive_window_bytes), channel))
    }
}

async fn dial_tls(to: SocketAddr, trust: &Trust, name: ServerName<'static>) -> io::Result<(Connection, Channel)> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let stream = TlsConnector::from(Arc::clone(trust.config())).connect(name, stream).await?;
    if stream.get_ref().1.alpn_protocol() != Some(tls::ALPN) {
        return Err(io::Error::other(rustls::Error::NoApplicationProtocol));
    }
    Ok(single(Channel::tls(TlsStream::Client(stream))))
}

fn single(channel: Channel) -> (Connection, Channel) {
    (Connection::single(&channel), channel)
}

fn name(endpoint: &Endpoint) -> Result<ServerName<'static>, DialError> {
    let name = endpoint.verified_name();
    ServerName::try_from(name.to_owned()).map_err(|_| DialError::ServerName { name: name.to_owned() })
}
