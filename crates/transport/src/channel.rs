//! An ordered stream of bytes in each direction, over any transport.
//!
//! Owns: `Channel` over TCP, TLS or one QUIC stream, the socket options of its connection, and the limit of unsent
//! bytes in the kernel. Does not own: the queue of bytes to send (`outbox`), or opening further channels
//! (`connection`).
//!
//! Invariant: bytes leave the outbox over TLS only after a flush to the kernel. So an empty outbox means over TLS, as
//! over TCP, that the kernel has all bytes.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use rustix::net::{RecvFlags, recv};
use tokio::{io::AsyncWrite as _, net::TcpStream};
use tokio_rustls::TlsStream;
use tokio_util::io::poll_read_buf;

use crate::{outbox::Outbox, quic};

/// Transport protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Plain TCP, without encryption or authentication.
    Tcp,
    /// TLS over TCP. The peer's certificate can be verified.
    Tls,
    /// QUIC, which always encrypts with TLS.
    Quic,
}

impl Kind {
    /// Name of the transport: `tcp`, `tls` or `quic`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Quic => "quic",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An ordered stream of bytes in each direction: a TCP connection, a TLS connection, or one bidirectional
/// QUIC stream.
///
/// One task owns a channel and polls it. Dropping a channel closes it and can lose bytes that the peer has
/// not received yet. To avoid that, call [`poll_close`](Self::poll_close) first.
pub struct Channel {
    carrier: ChannelStream,
    peer: SocketAddr,
    /// Number of bytes that must still be written before the channel assumes that its peer reads what it is sent. From
    /// then on, the kernel may hold [`READER_UNSENT_BYTES`] unsent bytes of the channel instead of [`UNSENT_BYTES`].
    until_reader: usize,
}

enum ChannelStream {
    Tcp(TcpStream),
    Tls(Box<Tls>),
    Quic(Box<Quic>),
}

struct Tls {
    stream: TlsStream<TcpStream>,
    /// Number of bytes at the front of the outbox that TLS has encrypted but that may not be in the kernel's
    /// buffer yet.
    encrypted: usize,
}

struct Quic {
    writer: quic::Writer,
    reader: quinn::RecvStream,
    closing: Option<Closing>,
}

/// A future that completes when the peer has received all bytes written to a QUIC channel.
type Closing = Pin<Box<dyn Future<Output = Result<Option<quinn::VarInt>, quinn::StoppedError>> + Send + Sync>>;

impl Channel {
    /// Creates a channel from a TCP connection. Sets `TCP_NODELAY`, because callers already write related
    /// bytes in one call.
    #[must_use]
    pub fn tcp(stream: TcpStream) -> Self {
        let peer = prepare(&stream);
        Self { carrier: ChannelStream::Tcp(stream), peer, until_reader: READER_BYTES }
    }

    /// Creates a channel from a TLS connection whose handshake is complete.
    pub(crate) fn tls(stream: TlsStream<TcpStream>) -> Self {
        let peer = prepare(stream.get_ref().0);
        Self { carrier: ChannelStream::Tls(Box::new(Tls { stream, encrypted: 0 })), peer, until_reader: READER_BYTES }
    }

    pub(crate) fn quic(peer: SocketAddr, send: quinn::SendStream, reader: quinn::RecvStream) -> Self {
        let quic = Quic { writer: quic::Writer::new(send), reader, closing: None };
        Self { carrier: ChannelStream::Quic(Box::new(quic)), peer, until_reader: 0 }
    }

    /// Reads received bytes and appends them to `into`, up to its spare capacity. The caller should reserve
    /// capacity before the call; a buffer without spare capacity grows by 64 bytes. `Ready(Ok(0))` means that
    /// the peer sends no more bytes.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        match &mut self.carrier {
            ChannelStream::Tcp(stream) => poll_read_buf(Pin::new(stream), cx, into),
            ChannelStream::Tls(tls) => poll_read_buf(Pin::new(&mut tls.stream), cx, into),
            ChannelStream::Quic(quic) => poll_read_buf(Pin::new(&mut quic.reader), cx, into),
        }
    }

    /// Returns true if the kernel has received bytes of a TCP connection that were not read yet.
    /// [`poll_read`](Self::poll_read) can be pending even so, because the runtime notices such bytes only when it next
    /// polls its sockets. A socket that the runtime has just registered is always pending at first. Always false over
    /// QUIC.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        let stream = match &self.carrier {
            ChannelStream::Tcp(stream) => stream,
            ChannelStream::Tls(tls) => tls.stream.get_ref().0,
            ChannelStream::Quic(_) => return false,
        };
        let peeked = recv(stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        peeked.is_ok_and(|(read, _)| read > 0)
    }

    /// Writes as many bytes from the front of `outbox` to the connection as possible without waiting, and
    /// removes them from the outbox. `Ready(Ok(n))` means that n bytes were removed; n is 0 only for an empty
    /// outbox. Call again until the outbox is empty. `Pending` means that the peer accepts no bytes at
    /// present.
    ///
    /// A channel has one outbox: always pass the same one, and only append to it between calls.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<io::Result<usize>> {
        let written = match &mut self.carrier {
            ChannelStream::Tcp(stream) => outbox.poll_send(stream, cx),
            ChannelStream::Tls(tls) => tls.poll_write(cx, outbox),
            ChannelStream::Quic(quic) => quic.writer.poll_write(cx, outbox).map(none_is_an_error(outbox)),
        };
        if let Poll::Ready(Ok(count)) = written
            && self.until_reader > 0
        {
            self.count_written(count);
        }
        written
    }

    /// Counts bytes written to the channel. Once [`READER_BYTES`] are written, raises the kernel's limit of unsent
    /// bytes to [`READER_UNSENT_BYTES`].
    fn count_written(&mut self, count: usize) {
        self.until_reader = self.until_reader.saturating_sub(count);
        if self.until_reader == 0 {
            match &self.carrier {
                ChannelStream::Tcp(stream) => set_unsent(stream, READER_UNSENT_BYTES),
                ChannelStream::Tls(tls) => set_unsent(tls.stream.get_ref().0, READER_UNSENT_BYTES),
                ChannelStream::Quic(_) => {}
            }
        }
    }

    /// Ends the sending direction after all bytes were written; the channel still receives. Over QUIC,
    /// dropping a connection also drops bytes in transit, so a QUIC channel waits until the peer has received
    /// all bytes. Callers should apply a timeout.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.carrier {
            ChannelStream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            ChannelStream::Tls(tls) => Pin::new(&mut tls.stream).poll_shutdown(cx),
            ChannelStream::Quic(quic) => quic.poll_close(cx),
        }
    }

    /// Address of the peer.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Transport of this channel.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.carrier {
            ChannelStream::Tcp(_) => Kind::Tcp,
            ChannelStream::Tls(_) => Kind::Tls,
            ChannelStream::Quic(_) => Kind::Quic,
        }
    }
}

impl Tls {
    /// Writes as many bytes of the outbox as possible. Bytes that TLS has accepted reach the kernel only with
    /// a flush. Therefore bytes stay in the outbox until they are flushed, and an empty outbox means the same
    /// over TLS as over TCP.
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
            // This fails only if the stream is already finished.
            let _ = writer.stream().finish();
            Box::pin(writer.stream().stopped())
        });
        ready!(closing.as_mut().poll(cx))?;
        // A completed future must not be polled again.
        self.closing = Some(Box::pin(std::future::ready(Ok(None))));
        Poll::Ready(Ok(()))
    }
}

/// Maximum number of bytes of a TCP connection that the kernel accepts but has not sent yet, because the peer does not
/// read or the path is busy. The kernel's own limit grows to megabytes for each connection. Bytes that are already in
/// flight do not count, so this limit does not slow down a fast path. Over loopback, a peer that does not read takes
/// 270 KB of the kernel's memory instead of 4.2 MB. The throughput of a peer that reads is unchanged.
pub const UNSENT_BYTES: u32 = 128 * 1024;

/// Limit of unsent bytes in the kernel once the peer has read [`READER_BYTES`]; before that it is [`UNSENT_BYTES`].
/// With the lower limit, the kernel wakes the writer for every 64 KiB. Ten fast subscribers then got a fifth fewer
/// messages per second, and each message took a fifth more of the server's CPU time. With 512 KiB, one subscriber still
/// got a fifth fewer messages per second than with 1 MiB.
const READER_UNSENT_BYTES: u32 = 1024 * 1024;

/// Number of written bytes after which a channel assumes that its peer reads what it is sent. If the peer stops reading
/// afterwards, the unsent bytes take up to [`READER_UNSENT_BYTES`] of the kernel's memory instead of [`UNSENT_BYTES`].
const READER_BYTES: usize = 4 * 1024 * 1024;

/// Limits the bytes of a TCP connection that the kernel accepts but has not sent yet to [`UNSENT_BYTES`].
pub fn limit_unsent(stream: &TcpStream) {
    set_unsent(stream, UNSENT_BYTES);
}

fn set_unsent(stream: &TcpStream, bytes: u32) {
    #[cfg(target_os = "linux")]
    {
        // A kernel without this option keeps its own, higher limit, which only costs memory.
        let _ = socket2::SockRef::from(stream).set_tcp_notsent_lowat(bytes);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, bytes);
}

/// Sets the socket options of a TCP connection and returns the peer's address.
fn prepare(stream: &TcpStream) -> SocketAddr {
    // These calls fail only if the peer has already disconnected. The first read reports that error.
    let _ = stream.set_nodelay(true);
    limit_unsent(stream);
    stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// Returns a function that turns a write of 0 bytes into an error if the outbox has queued bytes. Without this, the
/// caller would retry such a write forever.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::{io::AsyncReadExt as _, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn the_kernel_may_hold_more_for_a_peer_that_has_read_much() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut channel = Channel::tcp(listener.accept().await.unwrap().0);
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 64 * 1024];
            while reader.read(&mut buffer).await.unwrap() > 0 {}
        });
        let unsent_bound = |channel: &Channel| {
            let ChannelStream::Tcp(stream) = &channel.carrier else { panic!("the channel is a TCP connection") };
            socket2::SockRef::from(stream).tcp_notsent_lowat().unwrap()
        };
        let (mut outbox, mut written) = (Outbox::default(), 0);
        while written < READER_BYTES {
            assert_eq!(unsent_bound(&channel), UNSENT_BYTES, "after {written} bytes");
            outbox.buffer().extend_from_slice(&[0; 64 * 1024]);
            written += std::future::poll_fn(|cx| channel.poll_write(cx, &mut outbox)).await.unwrap();
        }
        assert_eq!(unsent_bound(&channel), READER_UNSENT_BYTES);
        drop(channel);
        reading.await.unwrap();
    }
}
