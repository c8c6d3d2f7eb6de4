//! One ordered stream of bytes each way, whatever carries it.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::BytesMut;
use tokio::{io::AsyncWrite as _, net::TcpStream};
use tokio_util::io::{poll_read_buf, poll_write_buf};

use crate::{connection::Kind, outbox::Outbox};

/// An ordered stream of bytes each way: a TCP connection, a TLS connection, or one bidirectional QUIC stream.
///
/// Belongs to one task, which polls it. Dropping it ends it: over TCP at once, with what the peer has not read yet
/// possibly lost, so [`poll_close`](Self::poll_close) first.
pub struct Channel {
    carrier: Carrier,
    peer: SocketAddr,
}

enum Carrier {
    Tcp(TcpStream),
}

impl Channel {
    /// Over a TCP connection; sets `TCP_NODELAY`, since what belongs together is written together.
    #[must_use]
    pub fn tcp(stream: TcpStream) -> Self {
        // Fails only where the peer has gone already, which the first read tells.
        let _ = stream.set_nodelay(true);
        let peer = stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        Self { carrier: Carrier::Tcp(stream), peer }
    }

    /// Appends what is there to `into`, as much as it has capacity for: reserve before (without any, 64 bytes are).
    /// `Ready(Ok(0))`: the peer sends no more.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        match &mut self.carrier {
            Carrier::Tcp(stream) => poll_read_buf(Pin::new(stream), cx, into),
        }
    }

    /// Writes from the front of `outbox` as much as goes at once, and removes it. `Ready(Ok(n))`: n bytes were removed, and
    /// more than none unless the outbox is empty; call again until it is. Pending: the peer takes nothing at present.
    /// A channel has one outbox: always give the same.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<io::Result<usize>> {
        match &mut self.carrier {
            Carrier::Tcp(stream) => poll_write_buf(Pin::new(stream), cx, outbox).map(none_is_an_error(outbox)),
        }
    }

    /// Says that nothing more comes, after all was written. What the peer sends can still be read.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.carrier {
            Carrier::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// The other side's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What carries it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.carrier {
            Carrier::Tcp(_) => Kind::Tcp,
        }
    }
}

/// A write of nothing, though something waits, would be tried again for ever.
fn none_is_an_error(outbox: &Outbox) -> impl FnOnce(io::Result<usize>) -> io::Result<usize> {
    let waits = !outbox.is_empty();
    move |written| match written {
        Ok(0) if waits => Err(io::ErrorKind::WriteZero.into()),
        written => written,
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("kind", &self.kind()).field("peer", &self.peer).finish()
    }
}
