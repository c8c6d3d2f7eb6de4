//! A connection to another node, in plain TCP or in a TLS session.
//!
//! Owns: beginning a session on a connection. Does not own: certificates and their verification (`transport::PeerTls`),
//! or the moment at which a session begins (`handshake`).

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use thalweg_transport::{PeerStream, PeerTls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection to another node, over plain TCP or in a TLS session.
#[derive(Debug)]
pub(crate) enum Secured<S> {
    /// A connection over plain TCP.
    Plain(S),
    /// A connection in a TLS session.
    Tls(Box<PeerStream<S>>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Secured<S> {
    /// Begins a TLS session on a connection that this node has dialled. `host` is the dialled host. Without `tls`,
    /// returns the plain connection.
    pub(crate) async fn connect(stream: S, tls: Option<&PeerTls>, host: &str) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self::Plain(stream)) };
        // Boxed, so that connections without a session take no memory for one.
        Ok(Self::Tls(Box::new(Box::pin(tls.connect(stream, host)).await?)))
    }

    /// Begins a TLS session on a connection that this node has accepted. Without `tls`, returns the plain connection.
    pub(crate) async fn accept(stream: S, tls: Option<&PeerTls>) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self::Plain(stream)) };
        Ok(Self::Tls(Box::new(Box::pin(tls.accept(stream)).await?)))
    }

    /// Returns the value that identifies the TLS session to both sides; empty over plain TCP.
    pub(crate) fn binding(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Plain(_) => Ok(Vec::new()),
            Self::Tls(stream) => Ok(stream.binding()?.to_vec()),
        }
    }

    /// Returns true if the certificate of the peer names one of these hosts.
    pub(crate) fn peer_is_any<'a>(&self, mut hosts: impl Iterator<Item = &'a str>) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => hosts.any(|host| stream.peer_is(host)),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
