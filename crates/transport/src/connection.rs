//! A connection: what channels belong to.

use std::{fmt, io, net::SocketAddr};

use quinn::{ConnectionError, VarInt};

use crate::channel::Channel;

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// TCP as it is: nothing is encrypted, and nobody is who they say.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// QUIC, which always has TLS.
    Quic,
}

impl Kind {
    /// `tcp`, `tls` or `quic`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Quic => "quic",
        }
    }

    /// Whether nobody on the way can read along.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        !matches!(self, Self::Tcp)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A connection that was accepted or dialled. Its first [`Channel`] comes with it; over TCP and TLS that is the only
/// one. Cheap to clone.
///
/// Over TCP and TLS it ends with its channel; over QUIC when it is closed, or when the last clone and the last
/// channel are dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    kind: Kind,
    peer: SocketAddr,
    quic: Option<Quic>,
}

#[derive(Clone, Debug)]
struct Quic {
    connection: quinn::Connection,
    /// What the peer may have in flight once it is known.
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

    /// Opens another channel. `None`: this connection has only the one that it came with. Waits while the peer permits no
    /// more. The peer learns of the channel when something is written to it.
    pub async fn open(&self) -> io::Result<Option<Channel>> {
        let Some(Quic { connection, .. }) = &self.quic else { return Ok(None) };
        let (send, receive) = connection.open_bi().await?;
        Ok(Some(Channel::quic(self.peer, send, receive)))
    }

    /// The next channel that the peer opens. `None`: there will be no other, because this connection has only the one
    /// that it came with, or was closed by either side. Cancel-safe.
    pub async fn accept(&self) -> io::Result<Option<Channel>> {
        let Some(Quic { connection, .. }) = &self.quic else { return Ok(None) };
        match connection.accept_bi().await {
            Ok((send, receive)) => Ok(Some(Channel::quic(self.peer, send, receive))),
            Err(ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The peer is known: it may have `channels` channels at a time, and in flight what the listener's options say. Until
    /// then one, and little. Nothing over TCP and TLS.
    pub fn permit(&self, channels: u32) {
        if let Some(Quic { connection, receive_window_bytes }) = &self.quic {
            connection.set_receive_window(VarInt::from_u32(*receive_window_bytes));
            connection.set_max_concurrent_bi_streams(VarInt::from_u32(channels));
        }
    }

    /// Ends the connection with all its channels, at once: what was not delivered is lost, so close channels first. Nothing
    /// over TCP and TLS: their channel is dropped instead.
    pub fn close(&self) {
        if let Some(Quic { connection, .. }) = &self.quic {
            connection.close(VarInt::from_u32(0), b"");
        }
    }

    /// Waits until the connection has ended, for whatever reason. Over TCP and TLS the channel tells instead, and this waits for
    /// ever.
    pub async fn closed(&self) {
        match &self.quic {
            Some(Quic { connection, .. }) => drop(connection.closed().await),
            None => std::future::pending().await,
        }
    }

    /// Bytes of the largest datagram that is sent at present: more once it is known what the way to the peer takes. `None` over
    /// TCP and TLS.
    #[must_use]
    pub fn datagram_bytes(&self) -> Option<u16> {
        self.quic.as_ref().map(|quic| quic.connection.stats().path.current_mtu)
    }

    /// Whether it can have more than one channel.
    #[must_use]
    pub fn is_multiplexed(&self) -> bool {
        self.quic.is_some()
    }

    /// What carries it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The other side's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}
