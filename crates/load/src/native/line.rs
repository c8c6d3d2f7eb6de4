//! A client's channel of the native protocol after its handshake. It sends frames, receives frames, and keeps the
//! connection alive.
//!
//! Owns: hello and welcome, pings, and the errors that end a channel. Does not own: the meaning of frames. The load
//! generator speaks the protocol itself and does not use the client crate. The tasks, wakers and reply channels of that
//! crate would cost CPU time for each message, on the cores that the server uses too.

use std::{
    fmt, io,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use thalweg_transport::{Channel, Connection, Dialer, Endpoint, Outbox};
use thalweg_types::limits::MAX_FRAME_BYTES;
use thalweg_wire::{DecodeError, Decoder, Envelope, Frame as _, Kind, Ping, Pong, RawFrame, ServerFrame, handshake};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::BenchError;

/// Longest wait for the server's welcome, and for the reply to a request during setup.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Error after which a channel (a TCP connection or a QUIC stream) is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server ended the connection with a reason.
    #[error("the server said goodbye: {0}")]
    Goodbye(String),
    /// The server ended the connection without a reason.
    #[error("the server closed the connection")]
    Closed,
    /// The server sent something that violates the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// The server rejected a request.
    #[error("refused: {0}")]
    Refused(String),
    /// No reply from the server arrived within this time.
    #[error("no answer within {0:?}")]
    Silent(Duration),
}

impl ChannelError {
    /// Makes the error for received bytes that violate the protocol. For use with `map_err`.
    pub fn protocol(error: impl fmt::Display) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<DecodeError> for ChannelError {
    fn from(error: DecodeError) -> Self {
        Self::protocol(error)
    }
}

/// A channel (a TCP connection or a QUIC stream) whose handshake is complete. It is ready for requests.
#[derive(Debug)]
pub struct ReadyChannel {
    channel: Channel,
    /// The connection of this channel (a TCP connection or a QUIC stream). Other channels may share it. It stays open
    /// until the last of these channels is dropped.
    connection: Rc<Connection>,
    decoder: Decoder,
    /// Outgoing bytes that wait to be sent over the channel (a TCP connection or a QUIC stream).
    pub out: Outbox,
    /// Maximum number of requests in progress on the channel (a TCP connection or a QUIC stream) that the server
    /// accepts.
    pub max_requests: u32,
    keep_alive: Duration,
    ping: Interval,
}

impl ReadyChannel {
    fn new(channel: Channel, connection: Rc<Connection>, keep_alive: Duration, max_requests: u32) -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_bytes(MAX_FRAME_BYTES as u32);
        let ping = pings(keep_alive);
        Self { channel, connection, decoder, out: Outbox::new(), max_requests, keep_alive, ping }
    }

    /// Connects to the server and completes the handshake.
    pub async fn dial(dialer: &Dialer, endpoint: &Endpoint) -> Result<Self, BenchError> {
        let fail = BenchError::target(endpoint.address());
        let (connection, channel) = dialer.dial(endpoint).await.map_err(|error| fail(error.to_string()))?;
        let opened = timeout(SETUP_TIMEOUT, Self::greet(connection, channel)).await;
        opened
            .map_err(|_| fail("the server sent no welcome; is this the native port?".to_owned()))?
            .map_err(|error| fail(format!("{error}; is this the native port, and the transport that it speaks?")))
    }

    /// Opens another channel (a TCP connection or a QUIC stream) on the same connection; `None` if the transport has
    /// only one channel for each connection.
    pub async fn open_sibling(&self) -> Result<Option<Self>, ChannelError> {
        let Some(channel) = self.connection.open().await? else { return Ok(None) };
        Ok(Some(Self::new(channel, Rc::clone(&self.connection), self.keep_alive, self.max_requests)))
    }

    async fn greet(connection: Connection, channel: Channel) -> Result<Self, ChannelError> {
        let hello = handshake::hello("thalweg bench", MAX_FRAME_BYTES as u32, Duration::ZERO, &[]);
        let mut line = Self::new(channel, Rc::new(connection), SETUP_TIMEOUT, 0);
        hello.encode(line.out.buffer(), 0).map_err(ChannelError::protocol)?;
        let (keep_alive, max_requests) = line
            .next(|frame| match frame.frame {
                ServerFrame::Welcome(welcome) => {
                    let agreed = handshake::check_welcome(&welcome).map_err(ChannelError::protocol)?;
                    Ok((agreed.keep_alive, welcome.max_requests))
                }
                other => Err(ChannelError::Protocol(format!("it began with a {} frame", other.kind().name()))),
            })
            .await?;
        line.ping = pings(keep_alive);
        (line.keep_alive, line.max_requests) = (keep_alive, max_requests);
        Ok(line)
    }

    /// Sends all waiting bytes. Returns pending while the peer accepts no more bytes.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ChannelError>> {
        while !self.out.is_empty() {
            ready!(self.channel.poll_write(cx, &mut self.out))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once from the channel (a TCP connection or a QUIC stream). The caller must then call
    /// [`frame`](Self::frame) until it returns no more frames.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, ChannelError>> {
        match ready!(self.channel.poll_read(cx, self.decoder.buffer()))? {
            0 => Poll::Ready(Err(ChannelError::Closed)),
            count => Poll::Ready(Ok(count)),
        }
    }

    /// Appends a ping to the waiting bytes if the keep-alive interval has passed.
    pub fn keep_alive(&mut self, cx: &mut Context<'_>) {
        while self.ping.poll_tick(cx).is_ready() {
            // A ping always fits: it has no field of variable length.
            let _ = Ping { token: 0 }.encode(self.out.buffer(), 0);
        }
    }

    /// Returns the next received frame; `None` if no complete frame has arrived. Handles frames about the connection
    /// itself: answers pings, and returns an error for a goodbye.
    #[inline]
    pub fn frame(&mut self) -> Result<Option<RawFrame<'_>>, ChannelError> {
        // The header is checked first, because the borrow of a frame that is returned cannot be given back.
        while let Some(header) = self.decoder.peek() {
            if header.kind != Kind::Ping as u16
                && header.kind != Kind::Pong as u16
                && header.kind != Kind::Goodbye as u16
            {
                break;
            }
            let Some(raw) = self.decoder.next_borrowed().map_err(ChannelError::protocol)? else { return Ok(None) };
            match ServerFrame::decode(raw)?.frame {
                ServerFrame::Ping(ping) => {
                    Pong { token: ping.token }.encode(self.out.buffer(), 0).map_err(ChannelError::protocol)?;
                }
                ServerFrame::Goodbye(goodbye) => return Err(ChannelError::Goodbye(goodbye.message.to_owned())),
                _ => {}
            }
        }
        self.decoder.next_borrowed().map_err(ChannelError::protocol)
    }

    /// Sends the waiting bytes and passes the next received frame to `read`. Only for setup, in which one request is
    /// sent at a time.
    pub async fn next<T>(
        &mut self,
        read: impl FnOnce(Envelope<'_, ServerFrame<'_>>) -> Result<T, ChannelError>,
    ) -> Result<T, ChannelError> {
        let arrived = std::future::poll_fn(|cx| {
            loop {
                if let Poll::Ready(Err(error)) = self.poll_send(cx) {
                    return Poll::Ready(Err(error));
                }
                match self.decoder.peek() {
                    Some(header)
                        if self.decoder.pending_bytes() >= thalweg_wire::HEADER_BYTES + header.len as usize =>
                    {
                        return Poll::Ready(Ok(()));
                    }
                    _ => {
                        ready!(self.poll_receive(cx))?;
                    }
                }
            }
        });
        timeout(SETUP_TIMEOUT, arrived).await.map_err(|_| ChannelError::Silent(SETUP_TIMEOUT))??;
        let Some(raw) = self.frame()? else {
            return Err(ChannelError::Protocol("a ping instead of an answer".to_owned()));
        };
        match ServerFrame::decode(raw)? {
            Envelope { frame: ServerFrame::Failed(failed), .. } => {
                Err(ChannelError::Refused(format!("{}: {}", failed.code, failed.message)))
            }
            envelope => read(envelope),
        }
    }

    /// Sends a request with id 1 and reads its reply. Only for setup, in which one request is sent at a time.
    pub async fn ask<'a, F: thalweg_wire::Frame<'a>, T>(
        &mut self,
        request: &F,
        read: impl FnOnce(ServerFrame<'_>) -> Option<T>,
    ) -> Result<T, ChannelError> {
        request.encode(self.out.buffer(), 1).map_err(ChannelError::protocol)?;
        self.next(|envelope| {
            let kind = envelope.frame.kind();
            read(envelope.frame)
                .ok_or_else(|| ChannelError::Protocol(format!("it answered with a {} frame", kind.name())))
        })
        .await
    }
}

fn pings(keep_alive: Duration) -> Interval {
    let mut pings = interval(keep_alive);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset();
    pings
}

/// Returns a frame's body: the bytes after the optional fields. The load generator uses none of these fields.
#[inline]
pub fn body<'a>(raw: &RawFrame<'a>) -> &'a [u8] {
    raw.payload.get(usize::from(raw.header.fields)..).unwrap_or_default()
}

/// Returns the error for a frame that the server must not send at this point.
pub fn unexpected(raw: RawFrame<'_>) -> ChannelError {
    match ServerFrame::decode(raw) {
        Err(error) => error.into(),
        Ok(envelope) => match envelope.frame {
            ServerFrame::Ended(ended) => ChannelError::Refused(format!("{}: {}", ended.code, ended.message)),
            ServerFrame::Failed(failed) => ChannelError::Refused(format!("{}: {}", failed.code, failed.message)),
            other => ChannelError::Protocol(format!("the server sent an unrequested {} frame", other.kind().name())),
        },
    }
}
