//! Connections to a peer. Each connection has one or several channels for its bytes.

use std::{io, net::SocketAddr};

use quinn::{ConnectionError, VarInt};

use crate::channel::{Channel, Kind};

/// A connection that was accepted or dialled. Accepting and dialling return the connection together with its
/// first [`Channel`]; over TCP and TLS a connection has no other channel. Cheap to clone.
///
/// Over TCP and TLS, the connection ends with its channel. Over QUIC, it ends when it is closed, or when its
/// last clone and its last channel are dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    kind: Kind,
    peer: SocketAddr,
    quic: Option<Quic>,
}

#[derive(Clone, Debug)]
struct Quic {
    connection: quinn::Connection,
    /// Size in bytes of the receive window that [`permit`](Connection::permit) sets.
    receive_window_bytes: u32,
}

impl Connection {
    pub(crate) fn single(channel: &Channel) -> Self {
        Self { kind: channel.kind(), peer: channel.peer(), quic: None }
    }

    pub(crate) fn quic(connection: quinn::Connection, receive_window_bytes: u32) -> Self {
        let peer = connection.remote_address();
        Self { kind: Kind::Quic, peer, quic: Some(Quic { connection, receive_window_bytes }) }
    }

    /// Opens another channel on the connection. Returns `None` if the connection supports only its first
    /// channel. Waits while the peer permits no further channel. The peer learns of the channel when the
    /// first bytes are written to it.
    pub async fn open(&self) -> io::Result<Option<Channel>> {
        let Some(Quic { connection, .. }) = &self.quic else { return Ok(None) };
        let (send, receive) = connection.open_bi().await?;
        Ok(Some(Channel::quic(self.peer, send, receive)))
    }

    /// Waits for the next channel that the peer opens. Returns `None` if no further channel can come: the
    /// transport supports only one channel, or either side closed the connection. Cancel-safe.
    pub async fn accept(&self) -> io::Result<Option<Channel>> {
        let Some(Quic { connection, .. }) = &self.quic else { return Ok(None) };
        match connection.accept_bi().await {
            Ok((send, receive)) => Ok(Some(Channel::quic(self.peer, send, receive))),
            Err(ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Raises the limits of an authenticated peer: up to `channels` open channels, and the receive window of
    /// the listener's options. Before this call the peer has one channel and a small window. No effect over
    /// TCP and TLS.
    pub fn permit(&self, channels: u32) {
        if let Some(Quic { connection, receive_window_bytes }) = &self.quic {
            connection.set_receive_window(VarInt::from_u32(*receive_window_bytes));
            connection.set_max_concurrent_bi_streams(VarInt::from_u32(channels));
        }
    }

    /// Closes the connection and all its channels immediately. Undelivered bytes are lost, so close the
    /// channels first. Has no effect over TCP and TLS, where the caller closes the connection by dropping its
    /// channel.
    pub fn close(&self) {
        if let Some(Quic { connection, .. }) = &self.quic {
            connection.close(VarInt::from_u32(0), b"");
        }
    }

    /// Waits until the connection has ended for any reason. Over TCP and TLS this waits forever; there
    /// reading from the channel reports the end.
    pub async fn closed(&self) {
        match &self.quic {
            Some(Quic { connection, .. }) => drop(connection.closed().await),
            None => std::future::pending().await,
        }
    }

    /// Size in bytes of the largest datagram that the connection currently sends. The size grows while QUIC
    /// probes the path to the peer. `None` over TCP and TLS.
    #[must_use]
    pub fn datagram_bytes(&self) -> Option<u16> {
        self.quic.as_ref().map(|quic| quic.connection.stats().path.current_mtu)
    }

    /// Returns true if the connection supports more than one channel.
    #[must_use]
    pub fn is_multiplexed(&self) -> bool {
        self.quic.is_some()
    }

    /// Transport of this connection.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Address of the peer.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}
