//! One ordered stream of bytes each way, whatever carries it.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::{io::AsyncWrite as _, net::TcpStream};
use tokio_rustls::TlsStream;
use tokio_util::io::poll_read_buf;

use crate::{connection::Kind, outbox::Outbox, quic};

/// An ordered stream of bytes each way: a TCP connection, a TLS connection, or one bidirectional QUIC stream.
///
/// Belongs to one task, which polls it. Dropping it ends it, with what the peer has not received yet possibly lost: so
/// [`poll_close`](Self::poll_close) first.
pub struct Channel {
    carrier: Carrier,
    peer: SocketAddr,
}

enum Carrier {
    Tcp(TcpStream),
    Tls(Box<Tls>),
    Quic(Box<Quic>),
}

struct Tls {
    stream: TlsStream<TcpStream>,
    /// What the outbox begins with that is encrypted already, and perhaps not with the kernel yet.
    encrypted: usize,
}

struct Quic {
    writer: quic::Writer,
    reader: quinn::RecvStream,
    closing: Option<Closing>,
}

/// Waits until the peer has received all that was written.
type Closing = Pin<Box<dyn Future<Output = Result<Option<quinn::VarInt>, quinn::StoppedError>> + Send + Sync>>;

impl Channel {
    /// Over a TCP connection; sets `TCP_NODELAY`, since what belongs together is written together.
    #[must_use]
    pub fn tcp(stream: TcpStream) -> Self {
        let peer = prepare(&stream);
        Self { carrier: Carrier::Tcp(stream), peer }
    }

    /// Over TLS whose handshake is done.
    pub(crate) fn tls(stream: TlsStream<TcpStream>) -> Self {
        let peer = prepare(stream.get_ref().0);
        Self { carrier: Carrier::Tls(Box::new(Tls { stream, encrypted: 0 })), peer }
    }

    pub(crate) fn quic(peer: SocketAddr, send: quinn::SendStream, reader: quinn::RecvStream) -> Self {
        let quic = Quic { writer: quic::Writer::new(send), reader, closing: None };
        Self { carrier: Carrier::Quic(Box::new(quic)), peer }
    }

    /// Appends what is there to `into`, as much as it has capacity for: reserve before (without any, 64 bytes are).
    /// `Ready(Ok(0))`: the peer sends no more.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        match &mut self.carrier {
            Carrier::Tcp(stream) => poll_read_buf(Pin::new(stream), cx, into),
            Carrier::Tls(tls) => poll_read_buf(Pin::new(&mut tls.stream), cx, into),
            Carrier::Quic(quic) => poll_read_buf(Pin::new(&mut quic.reader), cx, into),
        }
    }

    /// Writes from the front of `outbox` as much as goes at once, and removes it. `Ready(Ok(n))`: n bytes were removed, and
    /// more than none unless the outbox is empty; call again until it is. Pending: the peer takes nothing at present.
    /// A channel has one outbox, to which one only appends meanwhile: always give the same.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<io::Result<usize>> {
        match &mut self.carrier {
            Carrier::Tcp(stream) => outbox.poll_send(stream, cx),
            Carrier::Tls(tls) => tls.poll_write(cx, outbox),
            Carrier::Quic(quic) => quic.writer.poll_write(cx, outbox).map(none_is_an_error(outbox)),
        }
    }

    /// Says that nothing more comes, after all was written. What the peer sends can still be read. Over QUIC, where dropping
    /// a connection drops what is on its way, this waits until the peer has received everything: give it a time.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.carrier {
            Carrier::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Carrier::Tls(tls) => Pin::new(&mut tls.stream).poll_shutdown(cx),
            Carrier::Quic(quic) => quic.poll_close(cx),
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
            Carrier::Tls(_) => Kind::Tls,
            Carrier::Quic(_) => Kind::Quic,
        }
    }
}

impl Tls {
    /// What TLS has taken is not with the kernel yet, and only a flush gets it there. So bytes stay in the outbox until
    /// they are flushed: an empty outbox means the same over TLS as over TCP.
    fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<io::Result<usize>> {
        if self.encrypted == 0 {
            if outbox.is_empty() {
                return Poll::Ready(Ok(0));
            }
            self.encrypted = match ready!(outbox.poll_write_to(&mut self.stream, cx))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                encrypted => encrypted,
            };
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        let written = std::mem::take(&mut self.encrypted);
        outbox.sent(written);
        Poll::Ready(Ok(written))
    }
}

impl Quic {
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let writer = &mut self.writer;
        let closing = self.closing.get_or_insert_with(|| {
            // Fails only if it is closed already.
            let _ = writer.stream().finish();
            Box::pin(writer.stream().stopped())
        });
        ready!(closing.as_mut().poll(cx))?;
        // What has ended must not be polled again.
        self.closing = Some(Box::pin(std::future::ready(Ok(None))));
        Poll::Ready(Ok(()))
    }
}

/// Sets the options of a connection's socket; says whose it is.
fn prepare(stream: &TcpStream) -> SocketAddr {
    // These fail only where the peer has gone already, which the first read tells.
    let _ = stream.set_nodelay(true);
    stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)))
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
