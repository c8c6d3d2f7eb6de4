//! QUIC: its sockets, its configuration, and writing to its streams without copying what is shared.
//!
//! **Several sockets on one port.** An endpoint of quinn is one socket and one task, which would cap a port. A listener binds
//! several with `SO_REUSEPORT`, each an endpoint of its own; the kernel chooses by a hash of both addresses and ports, so all
//! packets of a connection reach the endpoint that knows its connection ids, for as long as the client's address stays the
//! same. One that changed would reach an endpoint that has never heard of the connection. So migration is off: a client
//! whose address changes reconnects. For the same reason all sockets are bound before the first is served, and none
//! is added later: that changes whom the hash chooses.
//!
//! **Datagrams** are as large as the way to the peer takes: see `datagrams.rs`.
//!
//! **Before the protocol's handshake** a peer has one stream and [`UNTRUSTED_WINDOW_BYTES`] in flight. Then
//! [`Connection::permit`](crate::Connection::permit) gives it what the options say.

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

use crate::{datagrams, identity::Identity, outbox::Outbox, tls, trust::Trust};

/// Bytes that a peer may have in flight to a server before it is known.
pub const UNTRUSTED_WINDOW_BYTES: u32 = 64 * 1024;
/// Connections of one socket whose handshake has not begun; more are refused.
const MAX_INCOMING: usize = 1024;
/// What is kept of packets that come before a handshake begins: for each connection, and for all of a socket.
const INCOMING_BYTES: u64 = 16 * 1024;
const INCOMING_BYTES_TOTAL: u64 = 4 * 1024 * 1024;
/// Shared pieces that one write takes; more go with the next.
const WRITE_PIECES: usize = 32;
/// Small frames that one write takes, since they are copied.
const WRITE_GATHERED_BYTES: usize = 64 * 1024;

/// How QUIC connections are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicOptions {
    /// Bytes that a peer may have in flight on one channel. Costs that much memory where the receiver does not read.
    pub stream_window_bytes: u32,
    /// The same for all channels of a connection together.
    pub receive_window_bytes: u32,
    /// Bytes that were written to a connection and are not acknowledged. Costs that much memory; too few wait for
    /// the round trip.
    pub send_window_bytes: u32,
    /// A connection of which nothing is heard for so long is over: the lesser of both sides'. For peers that do not notice by
    /// themselves; the protocol above has a keep-alive of its own, which is sooner.
    pub idle_timeout: Duration,
    /// What the kernel holds for each socket, in each direction. The system's limit (`net.core.rmem_max`) may make it
    /// less; then bursts lose packets.
    pub socket_buffer_bytes: usize,
}

impl QuicOptions {
    /// What holds unless something else is said. Over loopback windows of 1, 2, 4 and 8 MiB carry the same, and so do peers
    /// that ack less often (`examples/throughput.rs`); 4 MiB fill 10 Gbit/s over 3 ms.
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
            // Servers open no channels.
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

/// `count` endpoints on one address, which must have a port.
pub(crate) fn listen(
    address: SocketAddr,
    count: usize,
    identity: &Identity,
    options: &QuicOptions,
) -> io::Result<(Acceptor, Vec<Endpoint>)> {
    let crypto = QuicServerConfig::try_from(tls::server_config(identity)).expect("the provider has the first suite");
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

/// A server's half for connections, each of which is as its client's address allows.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    config: Arc<quinn::ServerConfig>,
    options: QuicOptions,
}

impl Acceptor {
    /// Begins the handshake.
    pub(crate) fn accept(&self, incoming: quinn::Incoming) -> Result<Connecting, ConnectionError> {
        let mut config = quinn::ServerConfig::clone(&self.config);
        config.transport_config(self.options.transport(Peer::Client, incoming.remote_address()));
        incoming.accept_with(Arc::new(config))
    }

    /// What a client may have in flight once it is known.
    pub(crate) fn receive_window_bytes(&self) -> u32 {
        self.options.receive_window_bytes
    }
}

/// An endpoint for connections to addresses of the same family as `to`.
pub(crate) fn dialling(to: SocketAddr, options: &QuicOptions) -> io::Result<Endpoint> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    datagrams::endpoint(None, bind(any, options)?)
}

/// A client's half for a connection to a server that `trust` trusts.
pub(crate) fn client_config(trust: &Trust, options: &QuicOptions, to: SocketAddr) -> quinn::ClientConfig {
    let crypto = QuicClientConfig::try_from(Arc::clone(trust.config())).expect("the provider has the first suite");
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(options.transport(Peer::Server, to));
    config
}

fn bind(address: SocketAddr, options: &QuicOptions) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // The system may give less, without an error; then it works, and loses more.
    socket.set_recv_buffer_size(options.socket_buffer_bytes)?;
    socket.set_send_buffer_size(options.socket_buffer_bytes)?;
    if address.port() != 0 {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// What the kernel really holds for a socket with these options, receiving.
pub(crate) fn effective_buffer(options: &QuicOptions) -> io::Result<usize> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(options.socket_buffer_bytes)?;
    // The kernel counts its own bookkeeping too, and says twice what was asked for.
    Ok(socket.recv_buffer_size()? / 2)
}

/// The sending half of a channel.
///
/// What waits in an outbox is made into pieces once, and stays in the outbox until quinn has taken it. `ready` is always
/// what the outbox begins with.
#[derive(Debug)]
pub(crate) struct Writer {
    stream: quinn::SendStream,
    ready: Vec<Bytes>,
    /// Pieces of `ready` that are written. `done <= ready.len()`
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
            if self.ready.is_empty() {
                return Poll::Ready(Ok(0));
            }
        }
        // Cancel-safe: a future that is dropped has written nothing, and has left our waker there.
        let written = ready!(pin!(self.stream.write_chunks(&mut self.ready[self.done..])).poll(cx))?;
        self.done += written.chunks;
        outbox.sent(written.bytes);
        Poll::Ready(Ok(written.bytes))
    }
}
