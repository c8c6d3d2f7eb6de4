//! Size of QUIC's datagrams, and the buffers that receive them.
//!
//! Every packet has a fixed cost (header, cipher call, acknowledgement, queue slots) that does not depend on its size.
//! So datagrams are as large as the path to the peer permits. quinn finds this size by sending probes, up to an upper
//! bound.
//!
//! The bound is above 1452 bytes only if the kernel's route to the peer permits larger datagrams: a lost probe occupies
//! a part of the congestion window until quinn detects the loss. A router on the path may permit only smaller datagrams
//! than the route does. The probes are then lost without any effect on congestion control, and the size stays at the
//! largest one that the path has carried. If the path later permits only smaller datagrams than before, QUIC detects
//! this by packet loss, and the size falls to 1200 bytes for a minute.
//!
//! | MTU of the route | datagram size | datagrams per send call |
//! |---|---|---|
//! | 64 KiB (the loopback) | up to 65,507 bytes, the maximum of UDP | 1 |
//! | more than Ethernet's 1500 bytes (jumbo frames) | up to [`OFFLOADED_BYTES`] | 10 |
//! | Ethernet's, or unknown | up to 1452 bytes, over IPv4 1472 | 10 |
//!
//! Memory: each connection keeps a send buffer for one call, at most [`QUIC_SEND_BYTES`].

use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use quinn::{
    AsyncUdpSocket, Endpoint, EndpointConfig, MtuDiscoveryConfig, Runtime as _, TokioRuntime, TransportConfig,
    UdpPoller,
    congestion::CubicConfig,
    udp::{RecvMeta, Transmit},
};
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

/// Size in bytes of a connection's send buffer, which holds the datagrams of one send call.
pub const QUIC_SEND_BYTES: u64 = 64 * 1024;
/// Size in bytes of the receive buffer of an endpoint (a UDP socket). The buffer holds 32 reads; each read
/// returns one datagram, or several that the kernel has coalesced.
pub const QUIC_RECEIVE_BYTES: u64 = 32 * 64 * 1024;

/// Maximum number of bytes that one send call passes to the kernel. It is also the size of the largest UDP datagram
/// over IPv4.
const CALL_BYTES: u16 = 65_507;
/// Number of datagrams that quinn (the QUIC library) sends with one call.
const OFFLOADED: u16 = 10;
/// Maximum bytes of a datagram if one send call sends several. The kernel rejects larger calls, and quinn
/// would count their datagrams as lost.
const OFFLOADED_BYTES: u16 = CALL_BYTES / OFFLOADED;
/// MTU (largest packet of a route) in bytes from which a route counts as one over the loopback interface. No network
/// has an MTU this large.
const LOOPBACK_BYTES: u16 = 32 * 1024;
/// Initial congestion window in bytes on the loopback interface. It has room for probes of 64 KiB: they count towards
/// the window, and a smaller window would delay other packets, including the packet that closes a connection.
const LOOPBACK_WINDOW_BYTES: u64 = 4 * 64 * 1024;
/// Largest datagram size in bytes that quinn probes for by default, which fits Ethernet.
const ETHERNET_BYTES: u16 = 1_452;
/// Maximum bytes of a datagram that any peer can send.
const MAX_BYTES: u16 = 65_527;

const _: () = assert!(CALL_BYTES as u64 <= QUIC_SEND_BYTES && MAX_BYTES as u64 * 32 <= QUIC_RECEIVE_BYTES);

/// Maximum size of the datagrams to a peer, and the number of datagrams per send call: one, or several (segmentation
/// offload).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Maximum size in bytes of a datagram. Each send call sends one datagram.
    Single(u16),
    /// Maximum size in bytes of a datagram. One send call can send several datagrams.
    Offloaded(u16),
}

impl Size {
    /// Chooses a datagram size from the kernel's current route to `peer`. Sends no packets.
    pub(crate) fn towards(peer: SocketAddr) -> Self {
        room(peer).map_or(Self::Offloaded(ETHERNET_BYTES), Self::within)
    }

    /// Chooses a datagram size for a route whose MTU permits datagrams of up to `room` bytes.
    fn within(room: u16) -> Self {
        if room >= LOOPBACK_BYTES {
            Self::Single(room.min(CALL_BYTES))
        } else {
            Self::Offloaded(room.clamp(ETHERNET_BYTES, OFFLOADED_BYTES))
        }
    }

    pub(crate) fn apply(self, transport: &mut TransportConfig) {
        let (upper_bound, offload) = match self {
            Self::Single(bytes) => (bytes, false),
            Self::Offloaded(bytes) => (bytes, true),
        };
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(upper_bound);
        transport.mtu_discovery_config(Some(discovery)).enable_segmentation_offload(offload);
        if matches!(self, Self::Single(_)) {
            let mut congestion = CubicConfig::default();
            congestion.initial_window(LOOPBACK_WINDOW_BYTES);
            transport.congestion_controller_factory(Arc::new(congestion));
        }
    }
}

/// Returns the size in bytes of the largest datagram that fits the MTU of the kernel's route to `peer`.
fn room(peer: SocketAddr) -> io::Result<u16> {
    let (mtu, headers) = match peer {
        SocketAddr::V6(peer) if peer.ip().to_ipv4_mapped().is_none() => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.connect(peer)?;
            (ipv6_mtu(&socket)?, 40 + 8)
        }
        _ => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect((peer.ip().to_canonical(), peer.port()))?;
            (ip_mtu(&socket)?, 20 + 8)
        }
    };
    Ok(u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX))
}

/// Creates a QUIC endpoint (a UDP socket and its task) that receives datagrams of any size.
pub(crate) fn endpoint(server: Option<quinn::ServerConfig>, socket: UdpSocket) -> io::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(MAX_BYTES).expect("a size that quinn allows");
    let socket = Socket(TokioRuntime.wrap_udp_socket(socket)?);
    Endpoint::new_with_abstract_socket(config, server, Arc::new(socket), Arc::new(TokioRuntime))
}

/// A UDP socket that returns at most 64 KiB for each read.
///
/// For each read, quinn reserves the size of the largest datagram times the number that the kernel may
/// coalesce: 4 MiB in all. But the kernel never coalesces more bytes than one datagram can hold.
#[derive(Debug)]
struct Socket(Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for Socket {
    fn max_receive_segments(&self) -> usize {
        1
    }

    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.0).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        into: &mut [IoSliceMut<'_>],
        of: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, into, of)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_route() {
        assert_eq!(Size::within(1_472), Size::Offloaded(1_472));
        assert_eq!(Size::within(576), Size::Offloaded(1_452));
        assert_eq!(Size::within(4_000), Size::Offloaded(4_000));
        assert_eq!(Size::within(8_972), Size::Offloaded(6_550));
        assert_eq!(Size::within(65_508), Size::Single(65_507));
    }

    #[test]
    fn the_loopback_takes_all_that_udp_can() {
        for (peer, bytes) in [("127.0.0.1:7", 65_507), ("[::ffff:127.0.0.1]:7", 65_507), ("[::1]:7", 65_488)] {
            let socket = UdpSocket::bind((peer.parse::<SocketAddr>().unwrap().ip(), 0));
            if socket.is_ok() {
                assert_eq!(Size::towards(peer.parse().unwrap()), Size::Single(bytes), "{peer}");
            }
        }
    }
}
