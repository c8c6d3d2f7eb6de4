//! The driver of a socket: the part of a connection's task that does not depend on the protocol.
//!
//! Owns: reading, writing and closing the socket; the time for which a closed socket is still read; the alarms
//! (periodic ticks, and the stop of the server); and the times of the last byte received, the last byte that the client
//! accepted, and the oldest incomplete request. Does not own: requests, or the checks that a protocol adds at a tick.
//!
//! ```text
//! open ─► lingering ─► over        a lost or stuck socket goes from any phase to over
//! ```
//! The task calls [`ServedSocket::begin`] at the start of each poll. Then it alternately reads, answers and writes
//! until the socket neither has bytes to read nor accepts bytes. At the end it calls [`ServedSocket::rest`].
//!
//! Replies are written immediately, up to [`REPLY_BYTES`] of them. Deliveries, and further replies, are [bulk
//! output](crate::bulk): connections take turns to send them, so that the thread serves the requests of other
//! connections in between.
//!
//! Invariant: while the socket is not over, a tick is scheduled.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use futures_util::{Stream as _, stream::FuturesUnordered};
use thalweg_transport::{Channel, Outbox};
use tokio::sync::watch;

use crate::{
    bulk::{BulkSeat, REPLY_BYTES},
    config::Config,
    pace::Pace,
};

/// Maximum time for which a closed socket is still read (see [`SocketPhase::Lingering`]).
const LINGER: Duration = Duration::from_millis(500);

/// Phase in the life of a client's socket, from open to closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketPhase {
    /// The server reads requests from the socket and writes replies to it.
    Open,
    /// The server has closed its sending side, and for a moment still reads and discards bytes from the client. If it
    /// closed the socket with unread bytes, the kernel would reset the connection, and the client could lose the last
    /// replies.
    Lingering { since: Instant },
    /// The socket is closed or lost.
    Over,
}

/// An event that a connection's task has to handle: a tick of the clock, or the stop of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// A periodic tick: the timeouts of the connection are due for a check.
    Tick,
    /// The server is stopping.
    Stop,
}

/// Result of a read from the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// No bytes are available now; the socket will wake the task.
    Nothing,
    /// This number of bytes was read from the socket.
    Bytes(usize),
    /// The client sends no more bytes, but may still read replies.
    End,
    /// The connection failed; the socket cannot be used any more.
    Lost,
}

/// Type of the output that waits for a client: replies, or also deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Replies to requests. Up to [`REPLY_BYTES`] of them are sent immediately and do not count as bulk output.
    Replies,
    /// Deliveries of subscriptions, with or without replies between them. All their bytes count as bulk output.
    Deliveries,
}

/// A client's socket, and the times from which its timeouts are computed.
#[derive(Debug)]
pub struct ServedSocket {
    io: Channel,
    /// Name of the type of the socket's client (such as native or Redis) in log lines.
    client_kind: &'static str,
    phase: SocketPhase,
    alarms: FuturesUnordered<Pin<Box<dyn Future<Output = SocketEvent> + Send>>>,
    /// True if a tick or a stop may have happened since the task last polled for them.
    has_alarms: bool,
    pause: Duration,
    opened: Instant,
    /// Time at which the current step of the connection's task began. The protocol's code sets it.
    pub now: Instant,
    heard_since_tick: bool,
    /// Time of the first tick after which the client has sent nothing; `None` if the client sent something since the
    /// last tick.
    quiet_since: Option<Instant>,
    /// True if the last read in this poll of the task found no bytes. The socket then wakes the task when bytes arrive.
    is_drained: bool,
    /// Membership of the connection in its thread's queue for turns to send bulk output (deliveries and other long
    /// output).
    bulk: BulkSeat,
    /// Measurement of the rate at which the client accepts bytes that wait to be sent.
    sending: Pace,
    /// Measurement of the rate at which the remaining bytes of an incomplete request arrive.
    receiving: Pace,
    /// Time since which an incomplete request waits for its remaining bytes; `None` if there is no incomplete request.
    pub partial_since: Option<Instant>,
}

impl ServedSocket {
    /// Creates the driver of a client's socket. `pause` is the time between ticks. `bulk` distributes turns to send
    /// bulk output among the connections of this thread. The driver cuts off a client that accepts waiting bytes more
    /// slowly than the configured rate.
    pub fn new(
        io: Channel,
        client_kind: &'static str,
        mut stopping: watch::Receiver<bool>,
        config: &Config,
        pause: Duration,
        bulk: BulkSeat,
    ) -> Self {
        let now = Instant::now();
        let mut served = Self {
            io,
            client_kind,
            phase: SocketPhase::Open,
            alarms: FuturesUnordered::new(),
            has_alarms: true,
            pause,
            opened: now,
            now,
            heard_since_tick: false,
            quiet_since: None,
            is_drained: false,
            bulk,
            sending: Pace::new(config.reply_rate()),
            receiving: Pace::new(config.body_rate()),
            partial_since: None,
        };
        served.tick_after(pause);
        served.alarms.push(Box::pin(async move {
            // If the sender was dropped, the server has ended.
            let _ = stopping.wait_for(|stopping| *stopping).await;
            SocketEvent::Stop
        }));
        served
    }

    /// Returns the address of the client at the other end of the socket.
    pub fn peer(&self) -> SocketAddr {
        self.io.peer()
    }

    /// Returns true until the server closes its sending side of the socket.
    pub fn is_open(&self) -> bool {
        self.phase == SocketPhase::Open
    }

    /// Returns true once the socket is closed or lost, so that the connection's task may end.
    pub fn is_over(&self) -> bool {
        self.phase == SocketPhase::Over
    }

    /// Returns true while the server still reads and discards bytes after it has closed its sending side.
    pub fn lingers(&self) -> bool {
        matches!(self.phase, SocketPhase::Lingering { .. })
    }

    /// Returns true if a tick or a stop may have happened since the task last polled for them.
    pub fn has_alarms(&self) -> bool {
        self.has_alarms
    }

    /// Returns true if the socket will wake the task when more bytes arrive.
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Returns the time since this driver was created.
    pub fn age(&self) -> Duration {
        self.now - self.opened
    }

    /// Returns the time for which an incomplete request has waited for its remaining bytes; zero if there is no
    /// incomplete request.
    pub fn partial_for(&self) -> Duration {
        self.waited(self.partial_since)
    }

    /// Returns true if the remaining bytes of an incomplete request arrive too slowly. The answer changes only at
    /// ticks.
    pub fn is_receiving_too_slowly(&self) -> bool {
        self.receiving.is_too_slow(self.now)
    }

    fn waited(&self, since: Option<Instant>) -> Duration {
        since.map_or(Duration::ZERO, |since| self.now - since)
    }

    /// Returns the time for which the client has sent nothing and the server had no unsent output for it. The time
    /// changes only at ticks.
    pub fn idle_for(&self) -> Duration {
        self.waited(self.quiet_since)
    }

    /// Prepares the socket for a new poll of the connection's task.
    pub fn begin(&mut self) {
        (self.has_alarms, self.is_drained) = (true, false);
    }

    /// Returns the next alarm (a tick, or the stop of the server), if one is due.
    pub fn alarm(&mut self, cx: &mut Context<'_>) -> Option<SocketEvent> {
        if !self.has_alarms {
            return None;
        }
        match Pin::new(&mut self.alarms).poll_next(cx) {
            Poll::Ready(Some(alarm)) => Some(alarm),
            Poll::Ready(None) | Poll::Pending => {
                self.has_alarms = false;
                None
            }
        }
    }

    fn tick_after(&mut self, pause: Duration) {
        self.has_alarms = true;
        self.alarms.push(Box::pin(async move {
            tokio::time::sleep(pause).await;
            SocketEvent::Tick
        }));
    }

    /// Reads from the socket once, and appends the bytes to `buffer`.
    pub fn read(&mut self, cx: &mut Context<'_>, buffer: &mut BytesMut) -> Received {
        match self.io.poll_read(cx, buffer) {
            Poll::Pending => {
                self.is_drained = true;
                Received::Nothing
            }
            Poll::Ready(Ok(0)) => Received::End,
            Poll::Ready(Ok(read)) => {
                self.heard_since_tick = true;
                self.receiving.moved(read as u64);
                Received::Bytes(read)
            }
            Poll::Ready(Err(error)) => {
                self.lost(&error);
                Received::Lost
            }
        }
    }

    /// Returns true if the kernel holds received bytes that were not read. The runtime may not know of these bytes yet.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.io.has_unread()
    }

    /// Returns true if the connection may prepare deliveries to send now. Otherwise the connection queues for a turn,
    /// and its task is woken when the turn begins.
    #[inline]
    pub fn may_deliver(&mut self, cx: &Context<'_>) -> bool {
        self.bulk.may_send(cx)
    }

    /// Counts the time that long requests of the connection took. It counts like bytes of bulk output, so that other
    /// connections get their turn.
    pub fn worked(&mut self, time: Duration) {
        self.bulk.worked(time);
    }

    /// Ends a poll of the connection's task. If the connection has nothing more to send, also ends its turn to send
    /// bulk output.
    #[inline]
    pub fn rest(&mut self) {
        self.bulk.rest();
    }

    /// Writes the bytes that wait in `out` until the client accepts no more, or until the connection must wait for its
    /// turn to send bulk output. Calls `sent` with the number of bytes of each write. Returns true if any bytes were
    /// written.
    pub fn write(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Outbox,
        output: Output,
        mut sent: impl FnMut(usize),
    ) -> bool {
        let mut moved = false;
        while self.is_open() && !out.is_empty() {
            let is_long = out.len() > REPLY_BYTES;
            if is_long && !self.bulk.may_send(cx) {
                return moved;
            }
            match self.io.poll_write(cx, out) {
                Poll::Ready(Ok(written)) => {
                    if is_long || output == Output::Deliveries {
                        self.bulk.sent(written);
                    }
                    sent(written);
                    self.sending.moved(written as u64);
                    moved = true;
                }
                Poll::Ready(Err(error)) => {
                    self.lost(&error);
                    moved = true;
                }
                Poll::Pending => {
                    self.sending.waits(Instant::now());
                    return moved;
                }
            }
        }
        self.sending.done();
        moved
    }

    /// Closes the sending side of the socket. After that, the server for a moment still reads and discards bytes from
    /// the client. Returns true once the side is closed.
    pub fn close(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_open() || self.io.poll_close(cx).is_pending() {
            return false;
        }
        self.phase = SocketPhase::Lingering { since: Instant::now() };
        // The next tick may be far off, so an additional tick ends the lingering.
        self.tick_after(LINGER);
        true
    }

    /// Reads from a closed socket and discards the bytes. Returns true if there were any, or if the client
    /// closed the connection.
    pub fn linger(&mut self, cx: &mut Context<'_>) -> bool {
        let SocketPhase::Lingering { since } = self.phase else { return false };
        let read = self.io.poll_read(cx, &mut BytesMut::with_capacity(4096));
        let goes_on = matches!(read, Poll::Ready(Ok(read)) if read > 0) && self.now < since + LINGER;
        if read.is_ready() && !goes_on {
            self.phase = SocketPhase::Over;
        }
        read.is_ready()
    }

    /// Checks the timeouts of the socket at a tick. Returns true if the socket is open and stays open; the protocol
    /// must then check its own timeouts.
    pub fn tick(&mut self) -> bool {
        match self.phase {
            SocketPhase::Lingering { since } if self.now >= since + LINGER => self.phase = SocketPhase::Over,
            SocketPhase::Open if self.sending.is_too_slow(self.now) => {
                let peer = self.peer();
                tracing::debug!(%peer, client_kind = self.client_kind, "connection cut: the client does not read its replies");
                self.phase = SocketPhase::Over;
            }
            SocketPhase::Open => {
                match self.partial_since {
                    Some(_) => self.receiving.waits(self.now),
                    None => self.receiving.done(),
                }
                return true;
            }
            // The time of the task may be a little older than the alarm, so the lingering may seem unfinished. Without
            // another alarm, a client that neither sends nor closes would keep the connection.
            SocketPhase::Lingering { since } => self.tick_after((since + LINGER).saturating_duration_since(self.now)),
            SocketPhase::Over => {}
        }
        false
    }

    /// Ends the handling of a tick: releases the memory that an idle connection keeps for replies in `out`, and
    /// schedules the next tick.
    pub fn ticked(&mut self, out: &mut Outbox) {
        if std::mem::take(&mut self.heard_since_tick) || !out.is_empty() {
            self.quiet_since = None;
        } else {
            self.quiet_since.get_or_insert(self.now);
            out.shrink();
        }
        self.tick_after(self.pause);
    }

    fn lost(&mut self, error: &io::Error) {
        tracing::debug!(peer = %self.peer(), client_kind = self.client_kind, %error, "connection lost");
        self.phase = SocketPhase::Over;
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::Arc};

    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::{
        admission::{AddressKey, Admission},
        bulk::{BulkTurns, ROUND_BYTES},
    };

    #[tokio::test]
    async fn a_closed_socket_ends_although_the_clock_of_its_task_was_behind_the_alarm() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let io = Channel::tcp(listener.accept().await.unwrap().0);
        let config = Config::default();
        let account = Admission::new(&config).account(AddressKey::LOCAL);
        let seat = BulkSeat::new(&BulkTurns::new(ROUND_BYTES, &Arc::default()), &account);
        let (_stop, stopping) = watch::channel(false);
        let mut socket = ServedSocket::new(io, "test", stopping, &config, Duration::from_secs(3600), seat);
        assert!(poll_fn(|cx| Poll::Ready(socket.close(cx))).await, "the sending side is closed");
        // The first alarm is scheduled for an earlier time than the close.
        let mut alarms = 0;
        while !socket.is_over() {
            let alarm = poll_fn(|cx| {
                socket.begin();
                socket.alarm(cx).map_or(Poll::Pending, Poll::Ready)
            });
            let alarm = tokio::time::timeout(Duration::from_secs(60), alarm).await.expect("no alarm is left");
            assert_eq!(alarm, SocketEvent::Tick);
            alarms += 1;
            if alarms > 1 {
                socket.now = Instant::now();
            }
            assert!(!socket.tick());
        }
        assert!(alarms > 1);
    }
}
