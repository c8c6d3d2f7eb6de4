//! A listener for TCP (with or without TLS) and QUIC on one port number.
//!
//! Owns: binding both sockets to one port, accepting, the time limit of handshakes, and stopping. Does not own: the
//! configuration of TLS and QUIC (`tls`, `quic`), bounds on connections, or the tasks that serve them.

use std::{
    io::{self, Write as _},
    net::{Shutdown, SocketAddr, TcpStream as Socket},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use quinn::Endpoint;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::{
    certificate::Fingerprint,
    channel::{Channel, Kind},
    connection::Connection,
    error::{EstablishError, ListenError},
    identity::Identity,
    quic::{self, MAX_QUIC_SOCKETS, QuicOptions},
    tls,
};

/// Maximum number of connections that the kernel queues until the listener accepts them. The system's limit
/// (`net.core.somaxconn`, 4096 by default) can reduce it. If the queue is full, a client's TCP handshake is delayed by
/// a second. With a shorter queue, a client that opens 2,000 connections at once could cause this delay for other
/// clients.
const BACKLOG: u32 = 4096;
/// Maximum number of attempts to find a port that is free for TCP and UDP. With port 0 the system chooses a
/// port that is free for TCP, but the same port may be in use for UDP.
const PORT_TRIES: usize = 16;

/// Choice between encrypted and unencrypted TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpSecurity {
    /// TCP connections are not encrypted.
    Plain,
    /// All TCP connections use TLS.
    Tls,
}

/// Options of a [`Listener`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Certificate and key of the server. Required for TLS and QUIC.
    pub identity: Option<Identity>,
    /// Choice between encrypted and unencrypted TCP connections.
    pub tcp: TcpSecurity,
    /// Number of UDP sockets on the port, each with its own task. Use one socket for each processor core that
    /// may serve QUIC; 0 disables QUIC. Each socket costs twice [`QuicOptions::socket_buffer_bytes`] in the
    /// kernel, plus a receive buffer of 2 MiB.
    pub quic_sockets: usize,
    /// Options of QUIC connections.
    pub quic: QuicOptions,
    /// Maximum time for a TLS or QUIC handshake. For QUIC this time includes the wait until the client opens
    /// its first channel.
    pub handshake_timeout: Duration,
}

impl ListenOptions {
    /// Default options: TCP without TLS, and no QUIC.
    pub const DEFAULTS: Self = Self {
        identity: None,
        tcp: TcpSecurity::Plain,
        quic_sockets: 0,
        quic: QuicOptions::DEFAULTS,
        handshake_timeout: Duration::from_secs(10),
    };
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self::DEFAULTS
    }
}

/// Accepts connections over TCP, TLS and QUIC at one address and port.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<TlsAcceptor>,
    quic: Vec<Endpoint>,
    quic_acceptor: Option<quic::Acceptor>,
    address: SocketAddr,
    options: ListenOptions,
}

impl Listener {
    /// Binds the listener to `address`; with port 0 the system chooses a port. Must be called within a tokio
    /// runtime.
    pub async fn bind(address: SocketAddr, options: ListenOptions) -> Result<Self, ListenError> {
        let sockets = options.quic_sockets;
        if sockets > MAX_QUIC_SOCKETS {
            return Err(ListenError::TooManySockets { sockets });
        }
        if options.identity.is_none() && (sockets > 0 || options.tcp == TcpSecurity::Tls) {
            return Err(ListenError::NoCertificate);
        }
        let (tcp, quic) = bind_both(address, &options).map_err(|error| ListenError::Bind { address, error })?;
        let bound = tcp.local_addr().map_err(|error| ListenError::Bind { address, error })?;
        let tls = match (&options.identity, options.tcp) {
            (Some(identity), TcpSecurity::Tls) => Some(TlsAcceptor::from(identity.server_config())),
            _ => None,
        };
        let (quic_acceptor, quic) = quic.unzip();
        Ok(Self { tcp, tls, quic: quic.unwrap_or_default(), quic_acceptor, address: bound, options })
    }

    /// Address at which the listener accepts connections, with the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Number of handshakes that each QUIC socket has accepted. The numbers show how the kernel spreads
    /// clients over the sockets.
    #[must_use]
    pub fn accepted_by_socket(&self) -> Vec<u64> {
        self.quic.iter().map(|endpoint| endpoint.stats().accepted_handshakes).collect()
    }

    /// Certificate and key of the server; `None` if the listener uses neither TLS nor QUIC.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        let is_used = self.tls.is_some() || !self.quic.is_empty();
        self.options.identity.as_ref().filter(|_| is_used)
    }

    /// Fingerprint of the server's certificate, by which clients can recognise the server; `None` if the
    /// listener uses neither TLS nor QUIC.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.identity().map(Identity::fingerprint)
    }

    /// Size in bytes of the kernel's receive buffer for each UDP socket; `None` without QUIC. If the kernel
    /// grants less than requested, bursts lose packets.
    #[must_use]
    pub fn udp_buffer_bytes(&self) -> Option<usize> {
        (!self.quic.is_empty()).then(|| quic::effective_buffer(&self.options.quic).unwrap_or(0))
    }

    /// Waits for the next connection from a client and returns it before its handshake. An error can concern this
    /// connection alone or the whole machine, for example too many open files. After an error the caller should pause
    /// briefly and call again. Cancel-safe.
    pub async fn accept(&self) -> io::Result<Incoming> {
        let handshake_timeout = self.options.handshake_timeout;
        let mut quic: Vec<_> = self.quic.iter().map(|endpoint| Box::pin(endpoint.accept())).collect();
        std::future::poll_fn(|cx| {
            if let Poll::Ready(accepted) = self.tcp.poll_accept(cx) {
                let (stream, peer) = accepted?;
                let stream = stream.into_std()?;
                let how = match &self.tls {
                    Some(acceptor) => IncomingKind::Tls(stream, acceptor.clone()),
                    None => IncomingKind::Tcp(stream),
                };
                return Poll::Ready(Ok(Incoming { how, peer, handshake_timeout }));
            }
            let Some(acceptor) = &self.quic_acceptor else { return Poll::Pending };
            for endpoint in &mut quic {
                if let Poll::Ready(Some(incoming)) = Pin::as_mut(endpoint).poll(cx) {
                    let peer = incoming.remote_address();
                    let how = IncomingKind::Quic(Box::new(incoming), acceptor.clone());
                    return Poll::Ready(Ok(Incoming { how, peer, handshake_timeout }));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Stops listening: rejects new connections and keeps existing ones.
    #[must_use]
    pub fn stop(mut self) -> StoppedListener {
        StoppedListener { quic: std::mem::take(&mut self.quic) }.stop_accepting()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        refuse(&self.quic);
    }
}

/// Makes QUIC endpoints reject new connections. Without this, an endpoint with open connections would still receive new
/// clients but never answer them.
fn refuse(endpoints: &[Endpoint]) {
    for endpoint in endpoints {
        endpoint.set_server_config(None);
    }
}

/// QUIC endpoints of a stopped listener. They still serve their open connections.
#[derive(Debug)]
pub struct StoppedListener {
    quic: Vec<Endpoint>,
}

impl StoppedListener {
    fn stop_accepting(self) -> Self {
        refuse(&self.quic);
        self
    }

    /// Waits until no QUIC connection is left and all peers were notified of the stop. Returns immediately
    /// without QUIC. Callers should apply a timeout.
    pub async fn wait_idle(&self) {
        for endpoint in &self.quic {
            endpoint.wait_idle().await;
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).field("options", &self.options).finish()
    }
}

/// The QUIC endpoints of a listener, and the configuration with which they accept connections.
type Sockets = (quic::Acceptor, Vec<Endpoint>);

/// Binds a TCP and a UDP socket to the same address. Binds TCP first, because binding TCP fails if the port is in use.
/// The UDP socket has `SO_REUSEPORT` and would share the port instead.
fn bind_both(address: SocketAddr, options: &ListenOptions) -> io::Result<(TcpListener, Option<Sockets>)> {
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        let tcp = listen(address)?;
        let Some(identity) = options.identity.as_ref().filter(|_| options.quic_sockets > 0) else {
            return Ok((tcp, None));
        };
        tries -= 1;
        match quic::listen(tcp.local_addr()?, options.quic_sockets, identity, &options.quic) {
            Ok(quic) => return Ok((tcp, Some(quic))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => {}
            Err(error) => return Err(error),
        }
    }
}

/// Listens on a TCP port; with port 0 the system chooses one. Must be called within a tokio runtime.
///
/// # Errors
/// Returns errors of the operating system, most often because another process listens on the port.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A connection that the listener has accepted, before its handshake. Dropping this value rejects the
/// connection.
pub struct Incoming {
    how: IncomingKind,
    peer: SocketAddr,
    handshake_timeout: Duration,
}

enum IncomingKind {
    /// A TCP socket that is not registered with a runtime yet.
    Tcp(Socket),
    /// A TCP socket that is not registered with a runtime yet, and the TLS configuration for it.
    Tls(Socket, TlsAcceptor),
    Quic(Box<quinn::Incoming>, quic::Acceptor),
}

impl Incoming {
    /// Address of the client. A QUIC client can forge its address until
    /// [`validate_address`](Self::validate_address).
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Transport protocol of the connection.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.how {
            IncomingKind::Tcp(_) => Kind::Tcp,
            IncomingKind::Tls(..) => Kind::Tls,
            IncomingKind::Quic(..) => Kind::Quic,
        }
    }

    /// Makes a QUIC client prove that it can receive at its address, before the server stores or computes
    /// anything for it. The proof costs a round trip; a server should require it while many handshakes are in
    /// progress. Returns `None` if the server has just asked the client for the proof; the client then
    /// connects again.
    #[must_use]
    pub fn validate_address(self) -> Option<Self> {
        let Self { how, peer, handshake_timeout } = self;
        let how = match how {
            IncomingKind::Quic(incoming, acceptor) if !incoming.remote_address_validated() => match incoming.retry() {
                Ok(()) => return None,
                Err(error) => IncomingKind::Quic(Box::new(error.into_incoming()), acceptor),
            },
            how => how,
        };
        Some(Self { how, peer, handshake_timeout })
    }

    /// Rejects the connection. Over plain TCP, sends `last` as a final message first, as far as the socket accepts its
    /// bytes immediately.
    pub fn reject(self, last: &[u8]) {
        if let IncomingKind::Tcp(mut socket) = self.how {
            // A client that has already disconnected does not receive the message.
            let _ = socket.write(last).and_then(|_| socket.shutdown(Shutdown::Write));
        }
    }

    /// Completes the handshake within the listener's [`handshake_timeout`](ListenOptions::handshake_timeout).
    /// Call this in a separate task; otherwise a slow peer delays the next connection. A TCP or TLS
    /// connection belongs to the runtime on which this is called, which can differ from the listener's.
    pub async fn establish(self) -> Result<(Connection, Channel), EstablishError> {
        let limit = self.handshake_timeout;
        match timeout(limit, self.handshake()).await {
            Ok(done) => done,
            Err(_) => Err(EstablishError::TimedOut(limit)),
        }
    }

    async fn handshake(self) -> Result<(Connection, Channel), EstablishError> {
        match self.how {
            IncomingKind::Tcp(socket) => {
                let channel = Channel::tcp(TcpStream::from_std(socket).map_err(EstablishError::Broken)?);
                Ok((Connection::single(&channel), channel))
            }
            IncomingKind::Tls(socket, acceptor) => {
                let stream = TcpStream::from_std(socket).map_err(EstablishError::Broken)?;
                let stream = acceptor.accept(stream).await.map_err(EstablishError::tls)?;
                if stream.get_ref().1.alpn_protocol() != Some(tls::ALPN) {
                    return Err(EstablishError::OtherProtocol);
                }
                let channel = Channel::tls(TlsStream::Server(stream));
                Ok((Connection::single(&channel), channel))
            }
            IncomingKind::Quic(incoming, acceptor) => {
                let connection = acceptor.accept(*incoming).map_err(EstablishError::quic)?;
                let connection = connection.await.map_err(EstablishError::quic)?;
                let (send, receive) = connection.accept_bi().await.map_err(EstablishError::quic)?;
                let channel = Channel::quic(connection.remote_address(), send, receive);
                Ok((Connection::quic(connection, acceptor.receive_window_bytes()), channel))
            }
        }
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("kind", &self.kind()).field("peer", &self.peer).finish_non_exhaustive()
    }
}
