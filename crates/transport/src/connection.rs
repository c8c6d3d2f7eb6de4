//! A connection: what channels belong to.

use std::{fmt, io, net::SocketAddr};

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
}

impl Connection {
    pub(crate) fn single(channel: &Channel) -> Self {
        Self { kind: channel.kind(), peer: channel.peer() }
    }

    /// Opens another channel. `None`: this connection has only the one that it came with.
    pub async fn open(&self) -> io::Result<Option<Channel>> {
        Ok(None)
    }

    /// The next channel that the peer opens. `None`: there will be no other.
    pub async fn accept(&self) -> io::Result<Option<Channel>> {
        Ok(None)
    }

    /// Ends the connection with all its channels, at once: what was not delivered is lost. Nothing over TCP and TLS:
    /// their channel is closed instead.
    pub fn close(&self) {}

    /// Whether it can have more than one channel.
    #[must_use]
    pub fn is_multiplexed(&self) -> bool {
        self.kind == Kind::Quic
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
