//! QUIC: sockets, configuration, and writes that do not copy shared bytes.
//!
//! Owns: the sockets of a port, the limits of a connection before and after the native protocol's handshake, and the
//! writer of a channel. Does not own: accepting (`listener`), dialling (`dialer`), or TLS (`tls`).
//!
//! **Several sockets on one port.** A quinn endpoint is one socket with one task, which would limit the throughput of a
//! port. So a listener binds several sockets with `SO_REUSEPORT`, each with its own endpoint. The kernel chooses the
//! socket of a packet by a hash of both addresses and ports. While a client's address stays the same, all packets of
//! its connection reach the endpoint that knows the connection. After a change of the address, packets could reach
//! another endpoint. So connection migration is off: a client whose address changes must reconnect. A further socket
//! would change the kernel's choice for existing connections. So all sockets are bound before the first one serves, and
//! none is added later.
//!
//! **Datagrams** are as large as the path to the peer permits: see `datagrams.rs`.
//!
//! **Before the native protocol's handshake** a peer may have one stream and [`UNTRUSTED_WINDOW_BYTES`] in flight.
//! Afterwards [`Connection::permit`](crate::Connection::permit) raises these limits to those of the options.

use std::{
    future::Future as _,
    io,
    net::{SocketAddr, UdpSocket},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use quinn::{
    Connecting, ConnectionError, Endpoint, IdleTimeout, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    datagrams,
    identity::Identity,
    outbox::{MAX_WRITE_BYTES, Outbox},
    trust::Trust,
};

/// Maximum number of QUIC sockets on one port.
pub const MAX_QUIC_SOCKETS: usize = 64;
/// Maximum number of bytes in flight from a peer that has not yet completed the native protocol's handshake.
pub const UNTRUSTED_WINDOW_BYTES: u32 = 64 * 1024;
/// Maximum number of connections of one socket that wait for their handshake to begin. Further connections
/// are rejected.
const MAX_INCOMING: usize = 1024;
/// Maximum bytes of packets that are kept for one connection before its handshake begins. All connections of a socket
/// together keep at most `INCOMING_BYTES_TOTAL`.
const INCOMING_BYTES: u64 = 16 * 1024;
const INCOMING_BYTES_TOTAL: u64 = 4 * 1024 * 1024;
/// Maximum number of shared pieces (byte buffers that several channels share) in one write to QUIC. Further pieces
/// follow in the next write.
const WRITE_PIECES: usize = 32;
/// Maximum number of bytes of small frames in one write to QUIC. Small frames are copied, unlike large shared buffers.
const WRITE_GATHERED_BYTES: usize = 64 * 1024;

/// Options of QUIC connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicOptions {
    /// Maximum number of bytes that a peer may have in flight on one channel. Costs that much memory if the
    /// receiver does not read.
    pub stream_window_bytes: u32,
    /// Maximum number of bytes that a peer may have in flight on all channels of a connection together.
    pub receive_window_bytes: u32,
    /// Maximum number of bytes written to a connection but not acknowledged by the peer. Costs that much
    /// memory; a small window makes the sender wait for round trips.
    pub send_window_bytes: u32,
    /// Maximum time without received packets; then the connection ends. The shorter of both sides' timeouts applies.
    /// This timeout detects peers that disappear. The native protocol's own keepalive detects them sooner.
    pub idle_timeout: Duration,
    /// Bytes of the kernel's buffer for each socket, in each direction. The system's limit
    /// (`net.core.rmem_max`) can reduce this size; then bursts lose packets.
    pub socket_buffer_bytes: usize,
}

impl QuicOptions {
    /// Default options of QUIC connections. Over loopback, windows of 1, 2, 4 and 8 MiB have the same
    /// throughput, also with peers that acknowledge less often (`examples/throughput.rs`). A window of 4 MiB
    /// fills a path of 10 Gbit/s with a round trip of 3 ms.
    pub const DEFAULTS: Self = Self {
        stream_window_bytes: 2 * 1024 * 1024,
        receive_window_bytes: 4 * 1024 * 1024,
        send_window_bytes: 4 * 1024 * 1024,
        idle_timeout: Duration::from_secs(3600),
        socket_buffer_bytes: 4 * 1024 * 1024,
    };

    fn transport(&self, peer: Peer, address: SocketAddr) -> Arc<TransportConfig> {
        let (channels, window) = match peer {
            Peer::Client => (1, self.receive_window_bytes.min(UNTRUSTED_WINDOW_BYTES)),
            // Servers do not open channels.
            Peer::Server => (0, self.receive_window_bytes),
        };
        let idle = u32::try_from(self.idle_timeout.as_millis()).unwrap_or(u32::MAX);
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(channels))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(self.stream_window_bytes))
            .receive_window(VarInt::from_u32(window))
            .send_window(u64::from(self.send_window_bytes))
            .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))));
        datagrams::Size::towards(address).apply(&mut transport);
        Arc::new(transport)
    }
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self::DEFAULTS
    }
}

#[derive(Clone, Copy)]
enum Peer {
    Client,
    Server,
}

/// Binds `count` QUIC endpoints (sockets) to one address, which must have a port other than 0.
pub(crate) fn listen(
    address: SocketAddr,
    count: usize,
    identity: &Identity,
    options: &QuicOptions,
) -> io::Result<(Acceptor, Vec<Endpoint>)> {
    let crypto = QuicServerConfig::try_from(identity.server_config()).expect("the provider has the first suite");
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config
        .migration(false)
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
    let sockets: io::Result<Vec<UdpSocket>> = (0..count).map(|_| bind(address, options)).collect();
    let endpoint = |socket| datagrams::endpoint(Some(config.clone()), socket);
    let endpoints = sockets?.into_iter().map(endpoint).collect::<io::Result<_>>()?;
    Ok((Acceptor { config: Arc::new(config), options: *options }, endpoints))
}

/// Server configuration for incoming QUIC connections. The transport settings of each connection depend on
/// the client's address.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    config: Arc<quinn::ServerConfig>,
    options: QuicOptions,
}

impl Acceptor {
    /// Begins the handshake of an incoming QUIC connection.
    pub(crate) fn accept(&self, incoming: quinn::Incoming) -> Result<Connecting, ConnectionError> {
        let mut config = quinn::ServerConfig::clone(&self.config);
        config.transport_config(self.options.transport(Peer::Client, incoming.remote_address()));
        incoming.accept_with(Arc::new(config))
    }

    /// Size in bytes of the receive window that a client gets after its authentication.
    pub(crate) fn receive_window_bytes(&self) -> u32 {
        self.options.receive_window_bytes
    }
}

/// Creates a QUIC endpoint for connections to addresses of the same family (IPv4 or IPv6) as `to`.
pub(crate) fn dialling(to: SocketAddr, options: &QuicOptions) -> io::Result<Endpoint> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    datagrams::endpoint(None, bind(any, options)?)
}

/// Client configuration for a connection to a server; `trust` decides which certificates are accepted.
pub(crate) fn client_config(trust: &Trust, options: &QuicOptions, to: SocketAddr) -> quinn::ClientConfig {
    let crypto = QuicClientConfig::try_from(Arc::clone(trust.config())).expect("the provider has the first suite");
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(options.transport(Peer::Server, to));
    config
}

fn bind(address: SocketAddr, options: &QuicOptions) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // The system may grant smaller buffers without an error. Connections then work, but bursts lose packets.
    socket.set_recv_buffer_size(options.socket_buffer_bytes)?;
    socket.set_send_buffer_size(options.socket_buffer_bytes)?;
    if address.port() != 0 {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Size in bytes that the kernel actually grants for the receive buffer of a socket with these options.
pub(crate) fn effective_buffer(options: &QuicOptions) -> io::Result<usize> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(options.socket_buffer_bytes)?;
    // The kernel includes its own bookkeeping and reports twice the requested size.
    Ok(socket.recv_buffer_size()? / 2)
}

/// Shortens the list `pieces` so that its byte buffers have at most `max_bytes` bytes in total.
fn truncate(pieces: &mut Vec<Bytes>, max_bytes: usize) {
    let mut left = max_bytes;
    for at in 0..pieces.len() {
        pieces[at].truncate(left);
        left -= pieces[at].len();
        if left == 0 {
            return pieces.truncate(at + 1);
        }
    }
}

/// The sending half of a QUIC channel.
///
/// The writer divides the front of the outbox into pieces, which share the outbox's bytes, and passes them to quinn.
/// The bytes stay in the outbox until quinn has accepted them. So the pieces in `ready` that quinn has not accepted
/// always equal the front of the outbox.
#[derive(Debug)]
pub(crate) struct Writer {
    stream: quinn::SendStream,
    ready: Vec<Bytes>,
    /// Number of pieces in `ready` (the pieces that the writer has passed to quinn) that quinn has accepted. `done <=
    /// ready.len()`
    done: usize,
}

impl Writer {
    pub(crate) fn new(stream: quinn::SendStream) -> Self {
        Self { stream, ready: Vec::new(), done: 0 }
    }

    pub(crate) fn stream(&mut self) -> &mut quinn::SendStream {
        &mut self.stream
    }

    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<io::Result<usize>> {
        if self.done == self.ready.len() {
            self.ready.clear();
            self.done = 0;
            outbox.share_large_buffer();
            outbox.pieces(&mut self.ready, WRITE_PIECES, WRITE_GATHERED_BYTES);
            truncate(&mut self.ready, MAX_WRITE_BYTES);
            if self.ready.is_empty() {
                return Poll::Ready(Ok(0));
            }
        }
        // Cancel-safe: a dropped future has written nothing, and its waker stays registered.
        let written = ready!(pin!(self.stream.write_chunks(&mut self.ready[self.done..])).poll(cx))?;
        self.done += written.chunks;
        outbox.sent(written.bytes);
        Poll::Ready(Ok(written.bytes))
    }
}
