//! Connections of the native protocol over TLS and QUIC, for load threads that do not use a runtime.
//!
//! Owns: one task for each connection on the client threads. The task passes bytes between the load thread's socket and
//! the server. Does not own: the frames in these bytes ([`super::place`]). Each byte passes one more socket and one
//! more thread than over plain TCP.
//!
//! ```text
//! load thread <- socket pair -> task of a client thread <- TLS or QUIC -> server
//! ```
//!
//! Memory: the bytes of one read in each direction. A task reads no more bytes from one side until the other side has
//! taken the last ones.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use thalweg_transport::{Channel, Dialer, Outbox};
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, ReadBuf},
    net::UnixStream,
    time::timeout,
};

use super::endpoint::NativeEndpoint;
use crate::{ClientThreads, Connection};

/// Maximum number of bytes that are read at a time, in each direction.
const BLOCK_BYTES: usize = 32 << 10;
/// Longest time that closing a connection waits until the server has received the last bytes.
const CLOSE: Duration = Duration::from_secs(2);

/// Opens connections to one server over TLS or QUIC. The tasks of the connections run on threads of their own.
#[derive(Debug)]
pub struct NativeTunnel {
    endpoint: NativeEndpoint,
    dialer: Dialer,
    threads: ClientThreads,
}

impl NativeTunnel {
    /// Starts this number of threads for connections to the server.
    pub fn start(endpoint: NativeEndpoint, threads: usize) -> io::Result<Self> {
        Ok(Self { endpoint, dialer: Dialer::new(), threads: ClientThreads::start(threads)? })
    }

    /// Returns the address of the server as `host:port`.
    pub(super) fn address(&self) -> &str {
        self.endpoint.endpoint.address()
    }

    /// Opens a connection, without sending the hello. Its socket is blocking. An error describes the problem.
    pub(super) fn open(&self) -> Result<Connection, String> {
        let (own, other) = Connection::to_thread().map_err(|error| error.to_string())?;
        let (dialer, endpoint) = (self.dialer.clone(), self.endpoint.endpoint.clone());
        self.threads.run(async move {
            let (connection, channel) = dialer.dial(&endpoint).await.map_err(|error| error.to_string())?;
            let local = UnixStream::from_std(other).map_err(|error| error.to_string())?;
            tokio::spawn(async move {
                pass(channel, local).await;
                drop(connection);
            });
            Ok(())
        })?;
        Ok(own)
    }
}

/// Passes bytes between the server's channel and the load thread's socket, in both directions, until one of the two has
/// ended. The other one is then closed.
async fn pass(channel: Channel, local: UnixStream) {
    let block = vec![0; BLOCK_BYTES];
    let mut sides = Sides { channel, local, block, to_server: Outbox::new(), from_server: BytesMut::new() };
    let ended = std::future::poll_fn(|cx| sides.poll(cx)).await;
    if ended.is_ok() {
        let closing = std::future::poll_fn(|cx| sides.channel.poll_close(cx));
        // If closing takes too long, dropping the channel closes it.
        let _ = timeout(CLOSE, closing).await;
    }
}

/// The two ends between which a tunnel passes bytes: the channel to the server, and the socket of the load thread. Also
/// holds the bytes that were read from one end and are not written to the other yet.
struct Sides {
    channel: Channel,
    local: UnixStream,
    block: Vec<u8>,
    to_server: Outbox,
    from_server: BytesMut,
}

/// Result of passing bytes in one direction: some bytes were passed, or the end from which they are read has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Bytes,
    End,
}

impl Sides {
    /// Passes bytes in both directions. Returns ready once the server or the load thread has closed its end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let (there, back) = (self.poll_to_server(cx)?, self.poll_from_server(cx)?);
            if [there, back].contains(&Poll::Ready(Passed::End)) {
                return Poll::Ready(Ok(()));
            }
            if there.is_pending() && back.is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn poll_to_server(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Passed>> {
        if self.to_server.is_empty() {
            let mut read = ReadBuf::new(&mut self.block);
            ready!(Pin::new(&mut self.local).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(Passed::End));
            }
            self.to_server.buffer().extend_from_slice(read.filled());
        }
        while !self.to_server.is_empty() {
            ready!(self.channel.poll_write(cx, &mut self.to_server))?;
        }
        Poll::Ready(Ok(Passed::Bytes))
    }

    fn poll_from_server(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Passed>> {
        if self.from_server.is_empty() {
            self.from_server.reserve(BLOCK_BYTES);
            if ready!(self.channel.poll_read(cx, &mut self.from_server))? == 0 {
                return Poll::Ready(Ok(Passed::End));
            }
        }
        while !self.from_server.is_empty() {
            match ready!(Pin::new(&mut self.local).poll_write(cx, &self.from_server))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                written => self.from_server.advance(written),
            }
        }
        Poll::Ready(Ok(Passed::Bytes))
    }
}
