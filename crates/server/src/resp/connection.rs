//! The task of a connection: reads, has the session do what came, writes.
//!
//! Owns: the order in which that happens, back-pressure, silence and slowness, the end. Does not own what commands do
//! ([`session`](super::session)).
//!
//! ```text
//! one turn:  what is under way ─► commands ─► read, commands (twice at most) ─► write
//! ```
//! So what came with one read is answered with one write, and the second read, which mostly finds nothing, leaves the task to
//! be woken by its socket. Turns follow each other until none of the steps moves anything, or none could;
//! the task is then woken by its socket, by what is under way, or by its clock.
//!
//! Back-pressure: while [`OUTBOX_BYTES`](crate::limits::OUTBOX_BYTES) or more wait for the client, no command of it is
//! looked at, and while `MAX_UNREAD_BYTES` wait to be looked at, nothing is read. A client that does not take its replies
//! is cut off after `write_timeout`, one that sends half a request after `body_timeout`. One that is silent stays.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::{Stream as _, stream::FuturesUnordered};
use thalweg_redis::wire::{Input, READ_BYTES, Trust};
use thalweg_transport::{Channel, Outbox};

use super::session::Session;
use crate::{admission::Held, limits::MAX_TURNS, spare};

/// Bytes that wait to be looked at from which on nothing is read, unless they are less than a request.
const MAX_UNREAD_BYTES: usize = 2 * READ_BYTES;

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Requests are taken.
    Open,
    /// None are taken any more: what is under way is answered and sent.
    Finishing,
    /// All has been said. What the client still sends is read and thrown away for a moment: a socket that is closed on unread
    /// bytes resets the connection, and the client may lose the last replies.
    Lingering { since: Instant },
    /// Over.
    Over,
}

/// Longest time of [`Phase::Lingering`].
const LINGER: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alarm {
    /// It is time to look around.
    Tick,
    /// The server stops.
    Stop,
}

/// A connection and all that is under way on it.
pub struct Connection {
    session: Session,
    io: Channel,
    input: Input,
    out: Outbox,
    /// Room for the request that is arriving, if it is a large one.
    arriving: Option<Held>,
    arriving_bytes: usize,
    /// The place of a client that has not authenticated yet.
    place: Option<Held>,
    phase: Phase,
    alarms: FuturesUnordered<Pin<Box<dyn Future<Output = Alarm> + Send>>>,
    opened: Instant,
    /// When something was last received, or an alarm came.
    now: Instant,
    /// Since when the oldest command is being done whose reply is not sent.
    turn_since: Option<Instant>,
    /// Since when the client has taken nothing of what waits for it.
    stuck_since: Option<Instant>,
    /// Since when part of a request has been there without the rest.
    partial_since: Option<Instant>,
    heard_since_tick: bool,
    /// Alarms may have come, or are not listened for yet.
    has_alarms: bool,
    /// The socket had nothing more when it was last asked in this poll, and will wake this task.
    is_drained: bool,
}

impl Connection {
    /// `place` is among those that are not known yet, if this client must authenticate.
    pub fn new(session: Session, io: Channel, place: Option<Held>) -> Self {
        let now = Instant::now();
        let alarms: FuturesUnordered<Pin<Box<dyn Future<Output = Alarm> + Send>>> = FuturesUnordered::new();
        let mut stopping = session.resp.app.stopping.clone();
        alarms.push(Box::pin(async move {
            // A sender that is gone is a server that is gone.
            let _ = stopping.wait_for(|stopping| *stopping).await;
            Alarm::Stop
        }));
        let mut connection = Self {
            session,
            io,
            input: Input::new(),
            out: Outbox::new(),
            arriving: None,
            arriving_bytes: 0,
            place,
            phase: Phase::Open,
            alarms,
            opened: now,
            now,
            turn_since: None,
            stuck_since: None,
            partial_since: None,
            heard_since_tick: false,
            has_alarms: true,
            is_drained: false,
        };
        connection.tick_after(connection.pause());
        connection
    }

    /// How often it looks at its clocks: a bound is passed by a quarter of the shortest at most.
    fn pause(&self) -> Duration {
        let config = &self.session.resp.app.config;
        let shortest = config.body_timeout.0.min(config.write_timeout.0).min(config.header_timeout.0);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    fn tick_after(&mut self, pause: Duration) {
        self.has_alarms = true;
        self.alarms.push(Box::pin(async move {
            tokio::time::sleep(pause).await;
            Alarm::Tick
        }));
    }

    /// Does all that can be done now. Ready when the connection is over.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.session.client().bell.poll(cx).is_ready() && self.session.client().is_killed() {
            return Poll::Ready(());
        }
        (self.has_alarms, self.is_drained) = (true, false);
        for _ in 0..MAX_TURNS {
            let mut moved = self.look_at_clocks(cx);
            moved |= self.session.settle(cx, &mut self.out);
            if self.receive(cx) {
                moved = true;
                // What has been proposed may be done already: then its replies go with the others.
                self.session.settle(cx, &mut self.out);
            }
            moved |= self.send(cx);
            self.count();
            if self.phase == Phase::Over {
                return Poll::Ready(());
            }
            if !moved || self.is_at_rest() {
                return Poll::Pending;
            }
        }
        // Others on this thread have a turn first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether one more turn would find nothing to do, which is plain after most requests: all has been read, done or
    /// proposed, and sent.
    fn is_at_rest(&self) -> bool {
        let all_taken = self.input.pending_bytes() == 0 || self.session.is_under_way();
        let is_quiet = self.phase == Phase::Open && !self.has_alarms && !self.session.wants_a_turn();
        is_quiet && self.is_drained && all_taken && self.out.is_empty()
    }

    fn count(&mut self) {
        let resp = &self.session.resp;
        if let Some(last) = self.session.tally.tell(&resp.metrics) {
            self.session.client().heard(self.now, last);
        }
        if let Some(since) = self.turn_since
            && self.out.is_empty()
            && !self.session.is_busy()
        {
            resp.metrics.turn(since.elapsed());
            self.turn_since = None;
        }
    }

    // ----- receiving

    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        if let Phase::Lingering { since } = self.phase {
            return self.linger(cx, since);
        }
        let mut moved = self.pump();
        // The second read mostly finds nothing, and has the socket wake this task.
        for _ in 0..2 {
            let is_full = !self.is_hungry() && self.input.pending_bytes() >= MAX_UNREAD_BYTES;
            if self.phase != Phase::Open || self.is_drained || is_full {
                return moved;
            }
            match self.io.poll_read(cx, self.input.buffer_or(spare::take)) {
                Poll::Pending => {
                    self.is_drained = true;
                    // An idle connection keeps no buffer.
                    spare::keep(self.input.release());
                }
                Poll::Ready(Ok(0)) => {
                    // It sends no more, and may still take what is under way. What only waits, waits for nobody.
                    self.phase = Phase::Finishing;
                    self.session.stop_waiting();
                    moved = true;
                }
                Poll::Ready(Ok(read)) => {
                    self.session.resp.metrics.received(read);
                    self.heard_since_tick = true;
                    self.now = Instant::now();
                    self.turn_since = self.turn_since.or(Some(self.now));
                    self.pump();
                    moved = true;
                }
                Poll::Ready(Err(error)) => {
                    self.lost(&error);
                    return true;
                }
            }
        }
        moved
    }

    /// Whether more must be read before anything can be done.
    fn is_hungry(&self) -> bool {
        self.session.listens() && self.out.is_empty() && !self.input.is_unread()
    }

    /// Has the session do what has come.
    fn pump(&mut self) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        let moved = self.session.pump(&mut self.input, &mut self.out);
        if self.session.trust == Trust::Known {
            self.place = None;
        }
        if self.session.is_ending {
            self.phase = Phase::Finishing;
        }
        let is_partial = self.input.pending_bytes() > 0 && self.is_hungry();
        self.partial_since = if is_partial { self.partial_since.filter(|_| !moved).or(Some(self.now)) } else { None };
        self.admit();
        moved
    }

    /// Room for a large request that is arriving; without any the connection ends.
    fn admit(&mut self) {
        let wanted = self.input.wanted_bytes();
        if wanted <= READ_BYTES {
            (self.arriving, self.arriving_bytes) = (None, 0);
            return;
        }
        let more = wanted.saturating_sub(self.arriving_bytes) as u64;
        if more == 0 || self.phase != Phase::Open {
            return;
        }
        let bytes = &self.session.resp.app.admission.body_bytes;
        let has_room = match &mut self.arriving {
            Some(held) => held.grow(more),
            None => {
                self.arriving = bytes.take(more);
                self.arriving.is_some()
            }
        };
        if has_room {
            self.arriving_bytes = wanted;
        } else {
            self.leave("BUSY too many bytes of requests at a time: connect again and retry later");
        }
    }

    // ----- sending

    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        if matches!(self.phase, Phase::Lingering { .. } | Phase::Over) {
            return false;
        }
        let mut moved = false;
        while !self.out.is_empty() {
            match self.io.poll_write(cx, &mut self.out) {
                Poll::Ready(Ok(written)) => {
                    self.session.resp.metrics.sent(written);
                    (moved, self.stuck_since) = (true, None);
                }
                Poll::Ready(Err(error)) => {
                    self.lost(&error);
                    return true;
                }
                Poll::Pending => {
                    self.stuck_since = self.stuck_since.or_else(|| Some(Instant::now()));
                    return moved;
                }
            }
        }
        if self.phase == Phase::Finishing && !self.session.is_busy() && self.io.poll_close(cx).is_ready() {
            self.phase = Phase::Lingering { since: Instant::now() };
            // The next tick is far off: another one ends the lingering.
            self.tick_after(LINGER);
            moved = true;
        }
        moved
    }

    // ----- ends

    fn look_at_clocks(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.has_alarms {
            return false;
        }
        let mut moved = false;
        while let Poll::Ready(Some(alarm)) = Pin::new(&mut self.alarms).poll_next(cx) {
            moved = true;
            self.now = Instant::now();
            match alarm {
                Alarm::Tick => self.tick(),
                Alarm::Stop => {
                    self.session.stop_waiting();
                    if self.phase == Phase::Open {
                        self.phase = Phase::Finishing;
                    }
                }
            }
        }
        self.has_alarms = false;
        moved
    }

    fn tick(&mut self) {
        if let Phase::Lingering { since } = self.phase {
            if self.now >= since + LINGER {
                self.phase = Phase::Over;
            }
            return;
        }
        let config = &self.session.resp.app.config;
        let waited = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| self.now - since);
        if waited(self.stuck_since) >= config.write_timeout.0 {
            tracing::debug!(peer = %self.io.peer(), "Redis client cut: it does not take what it is sent");
            self.phase = Phase::Over;
            return;
        }
        if self.phase == Phase::Open && waited(self.partial_since) >= config.body_timeout.0 {
            self.leave("ERR Protocol error: a request was begun and its rest did not arrive in time");
        }
        let config = &self.session.resp.app.config;
        if self.phase == Phase::Open && self.place.is_some() && self.now - self.opened >= config.header_timeout.0 {
            self.session.resp.metrics.not_authenticated();
            self.leave("NOAUTH Authentication required: it did not come in time");
        }
        if !std::mem::take(&mut self.heard_since_tick) && self.out.is_empty() {
            // An idle connection keeps no memory for replies.
            self.out.shrink();
        }
        self.tick_after(self.pause());
    }

    /// Says why, and nothing after it.
    fn leave(&mut self, why: &str) {
        tracing::debug!(peer = %self.io.peer(), why, "Redis client's connection ends");
        self.session.farewell(why, &mut self.out);
        self.phase = Phase::Finishing;
    }

    fn lost(&mut self, error: &io::Error) {
        tracing::debug!(peer = %self.io.peer(), %error, "Redis client lost");
        self.phase = Phase::Over;
    }

    fn linger(&mut self, cx: &mut Context<'_>, since: Instant) -> bool {
        let mut scratch = bytes::BytesMut::with_capacity(4096);
        match self.io.poll_read(cx, &mut scratch) {
            Poll::Ready(Ok(read)) if read > 0 => {
                if self.now >= since + LINGER {
                    self.phase = Phase::Over;
                }
                true
            }
            Poll::Ready(_) => {
                self.phase = Phase::Over;
                true
            }
            Poll::Pending => false,
        }
    }
}
