//! A socket that is served: what the task of a connection does for it whatever protocol it speaks.
//!
//! Owns: the channel's last phases, the alarms (ticks, and the stop of the server), when the socket was last heard, drained or
//! stuck. Does not own the requests, nor what a protocol does at a tick beside that.
//!
//! ```text
//! open ─► lingering ─► over        a lost or stuck socket is over from any phase
//! ```
//! The task [begins](Served::begin) each of its polls, then reads, answers and writes in turns until nothing moves.
//!
//! Invariant: while the socket is not over, a tick is on its way.

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

/// Longest time of [`Phase::Lingering`].
const LINGER: Duration = Duration::from_millis(500);

/// How far the socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is read and written.
    Open,
    /// All has been said. What the client still sends is read and thrown away for a moment: a socket that is closed on unread
    /// bytes resets the connection, and the client may lose the last replies.
    Lingering { since: Instant },
    /// Over.
    Over,
}

/// What is heard whatever else waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// It is time to look at the clocks.
    Tick,
    /// The server stops.
    Stop,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing for now: the socket wakes the task.
    Nothing,
    /// So many bytes.
    Bytes(usize),
    /// The client sends no more, and may still take what is under way.
    End,
    /// Nothing, and the socket is over.
    Lost,
}

/// A socket and its clocks.
#[derive(Debug)]
pub struct Served {
    io: Channel,
    /// To the log.
    whose: &'static str,
    phase: Phase,
    alarms: FuturesUnordered<Pin<Box<dyn Future<Output = Alarm> + Send>>>,
    /// Alarms may have come, or are not listened for yet.
    has_alarms: bool,
    write_timeout: Duration,
    pause: Duration,
    opened: Instant,
    /// The time of this turn, as the protocol last looked.
    pub now: Instant,
    heard_since_tick: bool,
    /// The socket had nothing more when it was last asked in this poll, and will wake this task.
    is_drained: bool,
    /// Since when the client has taken nothing of what waits for it.
    stuck_since: Option<Instant>,
    /// Since when part of a request has been there without the rest.
    pub partial_since: Option<Instant>,
}

impl Served {
    /// Serves a channel. A client that takes nothing for `write_timeout` is cut off. `pause` is the time between ticks.
    pub fn new(
        io: Channel,
        whose: &'static str,
        mut stopping: watch::Receiver<bool>,
        write_timeout: Duration,
        pause: Duration,
    ) -> Self {
        let now = Instant::now();
        let mut served = Self {
            io,
            whose,
            phase: Phase::Open,
            alarms: FuturesUnordered::new(),
            has_alarms: true,
            write_timeout,
            pause,
            opened: now,
            now,
            heard_since_tick: false,
            is_drained: false,
            stuck_since: None,
            partial_since: None,
        };
        served.tick_after(pause);
        served.alarms.push(Box::pin(async move {
            // A sender that is gone is a server that is gone.
            let _ = stopping.wait_for(|stopping| *stopping).await;
            Alarm::Stop
        }));
        served
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.io.peer()
    }

    /// True while requests may come and replies go.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// True once there is nothing more to do.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// True while what comes is read and thrown away.
    pub fn lingers(&self) -> bool {
        matches!(self.phase, Phase::Lingering { .. })
    }

    /// True if alarms may have come that were not looked at.
    pub fn has_alarms(&self) -> bool {
        self.has_alarms
    }

    /// True if the socket wakes the task when more comes.
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// How long the socket has been served.
    pub fn age(&self) -> Duration {
        self.now - self.opened
    }

    /// How long part of a request has waited for the rest.
    pub fn partial_for(&self) -> Duration {
        self.waited(self.partial_since)
    }

    fn waited(&self, since: Option<Instant>) -> Duration {
        since.map_or(Duration::ZERO, |since| self.now - since)
    }

    /// The task is polled.
    pub fn begin(&mut self) {
        (self.has_alarms, self.is_drained) = (true, false);
    }

    /// The next alarm that has gone off.
    pub fn alarm(&mut self, cx: &mut Context<'_>) -> Option<Alarm> {
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
            Alarm::Tick
        }));
    }

    /// Reads once.
    pub fn read(&mut self, cx: &mut Context<'_>, buffer: &mut BytesMut) -> Received {
        match self.io.poll_read(cx, buffer) {
            Poll::Pending => {
                self.is_drained = true;
                Received::Nothing
            }
            Poll::Ready(Ok(0)) => Received::End,
            Poll::Ready(Ok(read)) => {
                self.heard_since_tick = true;
                Received::Bytes(read)
            }
            Poll::Ready(Err(error)) => {
                self.lost(&error);
                Received::Lost
            }
        }
    }

    /// Writes what waits, as far as the client takes it; `sent` is told each time how many bytes went. Returns true if anything
    /// moved.
    pub fn write(&mut self, cx: &mut Context<'_>, out: &mut Outbox, mut sent: impl FnMut(usize)) -> bool {
        let mut moved = false;
        while self.is_open() && !out.is_empty() {
            match self.io.poll_write(cx, out) {
                Poll::Ready(Ok(written)) => {
                    sent(written);
                    (moved, self.stuck_since) = (true, None);
                }
                Poll::Ready(Err(error)) => {
                    self.lost(&error);
                    moved = true;
                }
                Poll::Pending => {
                    self.stuck_since.get_or_insert_with(Instant::now);
                    return moved;
                }
            }
        }
        moved
    }

    /// Says that nothing more comes, then lingers. Returns true if that is said.
    pub fn close(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_open() || self.io.poll_close(cx).is_pending() {
            return false;
        }
        self.phase = Phase::Lingering { since: Instant::now() };
        // The next tick is far off: another one ends the lingering.
        self.tick_after(LINGER);
        true
    }

    /// Throws away what still comes. Returns true if anything did.
    pub fn linger(&mut self, cx: &mut Context<'_>) -> bool {
        let Phase::Lingering { since } = self.phase else { return false };
        let read = self.io.poll_read(cx, &mut BytesMut::with_capacity(4096));
        let goes_on = matches!(read, Poll::Ready(Ok(read)) if read > 0) && self.now < since + LINGER;
        if read.is_ready() && !goes_on {
            self.phase = Phase::Over;
        }
        read.is_ready()
    }

    /// Looks at what concerns the socket at a tick. Returns false if there is nothing else to look at.
    pub fn tick(&mut self) -> bool {
        match self.phase {
            Phase::Lingering { since } if self.now >= since + LINGER => self.phase = Phase::Over,
            Phase::Open if self.waited(self.stuck_since) >= self.write_timeout => {
                tracing::debug!(peer = %self.peer(), whose = self.whose, "cut: the client does not take what it is sent");
                self.phase = Phase::Over;
            }
            Phase::Open => return true,
            Phase::Lingering { .. } | Phase::Over => {}
        }
        false
    }

    /// Ends a tick: what is idle keeps no memory for replies, and the next tick is on its way.
    pub fn ticked(&mut self, out: &mut Outbox) {
        if !std::mem::take(&mut self.heard_since_tick) && out.is_empty() {
            out.shrink();
        }
        self.tick_after(self.pause);
    }

    fn lost(&mut self, error: &io::Error) {
        tracing::debug!(peer = %self.peer(), whose = self.whose, %error, "connection lost");
        self.phase = Phase::Over;
    }
}
