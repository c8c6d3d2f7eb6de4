//! How large QUIC's datagrams are, and the room to receive them.
//!
//! What a packet costs (a header, a call of the cipher, an acknowledgement, its places in queues) it costs whatever its size. So they
//! are as large as the way to the peer takes. quinn finds that out with probes, up to a bound; beyond 1452 bytes only where
//! the kernel's route to the peer has room for more, because a probe that is lost takes its place in the congestion window until it
//! is known to be. Behind the first router there may be less room: then the probes are lost, which says nothing about
//! congestion, and the size stays what the way has carried. If it later carries less, what is lost tells, and the size falls to
//! 1200 for a minute.
//!
//! | the route takes | datagrams | sent with one call |
//! |---|---|---|
//! | 64 KiB (the loopback) | up to 65,507 bytes, what UDP can carry | 1 |
//! | more than Ethernet's 1500 bytes (jumbo frames) | up to [`OFFLOADED_BYTES`] | 10 |
//! | that, or nobody knows | up to 1452 bytes, over IPv4 1472 | 10 |
//!
//! Memory: a connection keeps the room for what one call sends, [`QUIC_SEND_BYTES`] at most.

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

/// What a connection keeps to send from: one call's.
pub const QUIC_SEND_BYTES: u64 = 64 * 1024;
/// What an endpoint holds to receive at once: what 32 reads bring, each of a datagram or of several that the kernel has put
/// together.
pub const QUIC_RECEIVE_BYTES: u64 = 32 * 64 * 1024;

/// The most that one call sends, and the largest datagram over IPv4.
const CALL_BYTES: u16 = 65_507;
/// Datagrams that quinn sends with one call.
const OFFLOADED: u16 = 10;
/// So large may they be then: the kernel refuses a call with more, and quinn would take them for lost.
const OFFLOADED_BYTES: u16 = CALL_BYTES / OFFLOADED;
/// Room for more than this on a route: no network's.
const LOOPBACK_BYTES: u16 = 32 * 1024;
/// What may be in flight there at first: a probe counts, and what it takes of the window nothing else has, not even the end of a
/// connection.
const LOOPBACK_WINDOW_BYTES: u64 = 4 * 64 * 1024;
/// What quinn looks for by itself, which Ethernet takes.
const ETHERNET_BYTES: u16 = 1_452;
/// The largest that any peer may send.
const MAX_BYTES: u16 = 65_527;

const _: () = assert!(CALL_BYTES as u64 <= QUIC_SEND_BYTES && MAX_BYTES as u64 * 32 <= QUIC_RECEIVE_BYTES);

/// How large datagrams to a peer may be, and whether several go with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Up to so many bytes, one with a call.
    Single(u16),
    /// Up to so many bytes, several with a call.
    Offloaded(u16),
}

impl Size {
    /// By the kernel's route, as it is now. Sends nothing.
    pub(crate) fn towards(peer: SocketAddr) -> Self {
        room(peer).map_or(Self::Offloaded(ETHERNET_BYTES), Self::within)
    }

    /// On a route that takes so many bytes.
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

/// Bytes of the largest datagram that the kernel's route takes.
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

/// An endpoint that receives datagrams of any size.
pub(crate) fn endpoint(server: Option<quinn::ServerConfig>, socket: UdpSocket) -> io::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(MAX_BYTES).expect("a size that quinn allows");
    let socket = Socket(TokioRuntime.wrap_udp_socket(socket)?);
    Endpoint::new_with_abstract_socket(config, server, Arc::new(socket), Arc::new(TokioRuntime))
}

/// A socket of which one read brings 64 KiB at most.
///
/// quinn sets aside as much for each read as the largest datagram, times those that the kernel may put together: 4 MiB. The
/// kernel never puts more together than one datagram could hold.
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
