//! Accepting connections: TCP, with TLS or without, and QUIC, on one port number.

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
    channel::Channel,
    connection::{Connection, Kind},
    error::{EstablishError, ListenError},
    identity::Identity,
    quic::{self, QuicOptions},
    tls,
    trust::Fingerprint,
};

/// Connections that the kernel holds until they are accepted; more wait for their SYN to be sent again.
const BACKLOG: u32 = 1024;
/// With port 0 the system chooses a port for TCP, which somebody may have for UDP. So many are tried.
const PORT_TRIES: usize = 16;
/// Sockets on one port for QUIC, at most.
pub const MAX_QUIC_SOCKETS: usize = 64;

/// What connections over TCP speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpSecurity {
    /// The protocol as it is.
    Plain,
    /// TLS, all of them.
    Tls,
}

/// How a listener listens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Who the server is; needed for TLS and for QUIC.
    pub identity: Option<Identity>,
    /// What connections over TCP speak.
    pub tcp: TcpSecurity,
    /// UDP sockets on the port, each with a task of its own: as many as there are cores that may serve QUIC, 0 for no
    /// QUIC. Each costs twice [`QuicOptions::socket_buffer_bytes`] in the kernel and 2 MiB for what it receives at once.
    pub quic_sockets: usize,
    /// How QUIC connections are.
    pub quic: QuicOptions,
    /// Longest time for a handshake of TLS or QUIC, and over QUIC until the first channel is there.
    pub handshake_timeout: Duration,
}

impl ListenOptions {
    /// Plain TCP alone.
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

/// Accepts connections on one port.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<TlsAcceptor>,
    quic: Vec<Endpoint>,
    quic_acceptor: Option<quic::Acceptor>,
    address: SocketAddr,
    options: ListenOptions,
}

impl Listener {
    /// Binds `address`; with port 0 the system chooses one. Must be called on a tokio runtime.
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
            (Some(identity), TcpSecurity::Tls) => Some(TlsAcceptor::from(tls::server_config(identity))),
            _ => None,
        };
        let (quic_acceptor, quic) = quic.unzip();
        Ok(Self { tcp, tls, quic: quic.unwrap_or_default(), quic_acceptor, address: bound, options })
    }

    /// Where it listens, with the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Handshakes that each QUIC socket has accepted: how the kernel spreads clients over them.
    #[must_use]
    pub fn accepted_by_socket(&self) -> Vec<u64> {
        self.quic.iter().map(|endpoint| endpoint.stats().accepted_handshakes).collect()
    }

    /// Who it says it is; `None` without TLS and QUIC.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        let is_used = self.tls.is_some() || !self.quic.is_empty();
        self.options.identity.as_ref().filter(|_| is_used)
    }

    /// The certificate's fingerprint, for clients to pin; `None` without TLS and QUIC.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.identity().map(Identity::fingerprint)
    }

    /// What the kernel really holds for a UDP socket in each direction; `None` without QUIC. Less than was asked for
    /// loses packets in bursts.
    #[must_use]
    pub fn udp_buffer_bytes(&self) -> Option<usize> {
        (!self.quic.is_empty()).then(|| quic::effective_buffer(&self.options.quic).unwrap_or(0))
    }

    /// The next connection, before its handshake. An error is about one connection or about the machine (too many
    /// open files): pause a little and go on. Cancel-safe.
    pub async fn accept(&self) -> io::Result<Incoming> {
        let handshake_timeout = self.options.handshake_timeout;
        let mut quic: Vec<_> = self.quic.iter().map(|endpoint| Box::pin(endpoint.accept())).collect();
        std::future::poll_fn(|cx| {
            if let Poll::Ready(accepted) = self.tcp.poll_accept(cx) {
                let (stream, peer) = accepted?;
                let stream = stream.into_std()?;
                let how = match &self.tls {
                    Some(acceptor) => How::Tls(stream, acceptor.clone()),
                    None => How::Tcp(stream),
                };
                return Poll::Ready(Ok(Incoming { how, peer, handshake_timeout }));
            }
            let Some(acceptor) = &self.quic_acceptor else { return Poll::Pending };
            for endpoint in &mut quic {
                if let Poll::Ready(Some(incoming)) = Pin::as_mut(endpoint).poll(cx) {
                    let peer = incoming.remote_address();
                    let how = How::Quic(Box::new(incoming), acceptor.clone());
                    return Poll::Ready(Ok(Incoming { how, peer, handshake_timeout }));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Refuses whoever comes from now on; connections that are there go on.
    #[must_use]
    pub fn stop(mut self) -> Stopped {
        Stopped { quic: std::mem::take(&mut self.quic) }.refusing()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        refuse(&self.quic);
    }
}

/// Without this an endpoint would go on with what it has connections for, and hold those who come for nobody.
fn refuse(endpoints: &[Endpoint]) {
    for endpoint in endpoints {
        endpoint.set_server_config(None);
    }
}

/// What is left of a listener that was stopped.
#[derive(Debug)]
pub struct Stopped {
    quic: Vec<Endpoint>,
}

impl Stopped {
    fn refusing(self) -> Self {
        refuse(&self.quic);
        self
    }

    /// Waits until no QUIC connection is left and all peers have been told; over at once without QUIC. Give it a time.
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

/// Those of QUIC, and how their connections are accepted.
type Sockets = (quic::Acceptor, Vec<Endpoint>);

/// TCP first: it refuses a port that is in use, which sockets with `SO_REUSEPORT` would share.
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

/// Listens on a TCP port; with port 0 the system chooses one. Must be called on a tokio runtime.
///
/// # Errors
/// The system's: mostly that somebody listens there already.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A connection that came and has not done its handshake. Dropping it refuses it.
pub struct Incoming {
    how: How,
    peer: SocketAddr,
    handshake_timeout: Duration,
}

enum How {
    /// Known to no runtime yet.
    Tcp(Socket),
    /// Likewise.
    Tls(Socket, TlsAcceptor),
    Quic(Box<quinn::Incoming>, quic::Acceptor),
}

impl Incoming {
    /// Where it comes from. Over QUIC anybody can say so: see [`prove_address`](Self::prove_address).
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What carries it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.how {
            How::Tcp(_) => Kind::Tcp,
            How::Tls(..) => Kind::Tls,
            How::Quic(..) => Kind::Quic,
        }
    }

    /// For when many handshakes are under way: has a QUIC client prove that it can receive at its address before anything is
    /// kept or computed for it, at the cost of a round trip. `None`: it was sent to do that, and comes again.
    #[must_use]
    pub fn prove_address(self) -> Option<Self> {
        let Self { how, peer, handshake_timeout } = self;
        let how = match how {
            How::Quic(incoming, acceptor) if !incoming.remote_address_validated() => match incoming.retry() {
                Ok(()) => return None,
                Err(error) => How::Quic(Box::new(error.into_incoming()), acceptor),
            },
            how => how,
        };
        Some(Self { how, peer, handshake_timeout })
    }

    /// Refuses it: over plain TCP with these bytes, as far as its socket takes them at once.
    pub fn turn_away(self, last: &[u8]) {
        if let How::Tcp(mut socket) = self.how {
            // Who has gone already does not hear of it.
            let _ = socket.write(last).and_then(|_| socket.shutdown(Shutdown::Write));
        }
    }

    /// Does the handshake, within the listener's [`handshake_timeout`](ListenOptions::handshake_timeout). In a task of
    /// its own, or a slow peer holds up the next. A connection over TCP or TLS belongs to the runtime that this is called on,
    /// which need not be the listener's.
    pub async fn establish(self) -> Result<(Connection, Channel), EstablishError> {
        let limit = self.handshake_timeout;
        match timeout(limit, self.handshake()).await {
            Ok(done) => done,
            Err(_) => Err(EstablishError::TimedOut(limit)),
        }
    }

    async fn handshake(self) -> Result<(Connection, Channel), EstablishError> {
        match self.how {
            How::Tcp(socket) => {
                let channel = Channel::tcp(TcpStream::from_std(socket).map_err(EstablishError::Broken)?);
                Ok((Connection::single(&channel), channel))
            }
            How::Tls(socket, acceptor) => {
                let stream = TcpStream::from_std(socket).map_err(EstablishError::Broken)?;
                let stream = acceptor.accept(stream).await.map_err(EstablishError::tls)?;
                if stream.get_ref().1.alpn_protocol() != Some(tls::ALPN) {
                    return Err(EstablishError::OtherProtocol);
                }
                let channel = Channel::tls(TlsStream::Server(stream));
                Ok((Connection::single(&channel), channel))
            }
            How::Quic(incoming, acceptor) => {
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
