//! The task of a connection. It reads requests, passes commands to the session, and writes replies.
//!
//! Owns: the order of these steps, backpressure, timeouts, and the end of the connection. Does not own the execution of
//! commands ([`session`](super::session)), nor the socket and its timers
//! ([`ServedSocket`](thalweg_serving::served_socket::ServedSocket)).
//!
//! ```text
//! one turn:  pending work ─► commands ─► read, commands (twice at most) ─► write
//! ```
//! Commands that arrive in one read are therefore answered in one write. The second read mostly finds nothing and
//! registers the task to be woken by its socket. Turns repeat until no step makes progress, or none could. Then the
//! task sleeps until its socket, its pending work or its timer wakes it.
//!
//! Backpressure: while [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) or more wait for the client, the session
//! handles no command. While `MAX_UNREAD_BYTES` wait to be handled, the task reads nothing. A client that does not read
//! its replies is disconnected after `write_timeout`. A client that sends an incomplete request is disconnected after
//! `body_timeout`. An idle client stays connected, unless the server has few free connections.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use thalweg_redis::wire::{Input, READ_BYTES, Trust};
use thalweg_serving::{
    admission::{Reservation, Resource},
    bulk::{BulkSeat, BulkTurns},
    half_open::Slot,
    limits::MAX_TURNS,
    served_socket::{Output, Received, ServedSocket, SocketEvent},
    spare,
};
use thalweg_transport::{Channel, Outbox};

use super::session::Session;

/// Number of received but unhandled bytes at which the task stops reading from the socket. If these bytes are less than
/// one request, the task goes on reading.
const MAX_UNREAD_BYTES: usize = 2 * READ_BYTES;

/// State of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    /// The connection receives requests, and its session handles them.
    Open,
    /// The client has closed its sending side. The session still handles the requests that were received.
    Received,
    /// The session handles no more requests. It still answers pending requests, and the replies are sent. Then the
    /// [socket](ServedSocket) waits for the client to close the connection.
    Finishing,
}

/// Connection of a Redis client: its socket, its session, and the buffers for requests and replies.
pub(crate) struct Connection {
    session: Session,
    socket: ServedSocket,
    input: Input,
    out: Outbox,
    /// Memory reservation for the bytes of a large request that is being received; `None` if no large request is
    /// arriving.
    arriving: Option<Reservation>,
    /// Slot among the server's connections. A newer connection can take the slot until the client has authenticated and
    /// sent a command.
    place: Slot,
    /// True once the task has read bytes that the client sent.
    has_received: bool,
    phase: ConnectionPhase,
    /// Arrival time of the oldest command without a complete reply; `None` if all commands are answered.
    turn_since: Option<Instant>,
    /// Time at which the task was last woken while its client was blocked in a read; `None` if that has not happened
    /// since the oldest unanswered command arrived. The latency of the commands counts from this time, so that it does
    /// not include the wait.
    blocked_until: Option<Instant>,
}

impl Connection {
    /// Creates the task of a connection. `bulk` distributes turns to send bulk output (deliveries and other long
    /// output) among the connections of the thread. A newer connection can take the slot `place` until the client has
    /// authenticated and sent a command.
    pub(crate) fn new(session: Session, io: Channel, place: Slot, bulk: &Arc<BulkTurns>) -> Self {
        let app = &session.resp.app;
        // The timer's interval is a quarter of the shortest timeout, so a timeout fires late by at most this quarter.
        let shortest = app.config.body_timeout.0.min(app.config.write_timeout.0).min(app.config.header_timeout.0);
        let pause = (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(5));
        let seat = BulkSeat::new(bulk, &session.account);
        let socket = ServedSocket::new(io, "Redis client", app.stopping.clone(), &app.config, pause, seat);
        Self {
            session,
            socket,
            input: Input::new(),
            out: Outbox::new(),
            arriving: None,
            place,
            has_received: false,
            phase: ConnectionPhase::Open,
            turn_since: None,
            blocked_until: None,
        }
    }

    /// Receives, executes and sends as much as is possible now. Returns `Ready` when the connection has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.take_turns(cx);
        self.socket.rest();
        polled
    }

    fn take_turns(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.session.client().bell.poll(cx).is_ready() && self.session.client().is_killed() {
            return Poll::Ready(());
        }
        if !self.place.is_released() && self.place.poll_lost(cx).is_ready() && !self.keeps_connection(cx) {
            if self.session.trust == Trust::Unknown {
                self.session.resp.metrics.not_authenticated();
            }
            return Poll::Ready(());
        }
        self.socket.begin();
        if self.session.blocked.is_some() {
            self.blocked_until = Some(Instant::now());
        }
        for _ in 0..MAX_TURNS {
            let mut moved = self.check_timeouts(cx);
            moved |= self.session.settle(cx, &mut self.socket, &mut self.out);
            if self.receive(cx) {
                moved = true;
                // A proposed burst may already be committed. Its replies are then sent with the same write.
                self.session.settle(cx, &mut self.socket, &mut self.out);
            }
            moved |= self.send(cx);
            self.count();
            if self.socket.is_over() {
                return Poll::Ready(());
            }
            if !moved || self.is_idle() {
                return Poll::Pending;
            }
        }
        // Yields to the other tasks of this thread.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Handles the received bytes of a client that has lost its slot to a newer connection. Returns true if these bytes
    /// authenticate the client; the client then keeps its connection. Such bytes may be waiting although the client
    /// sent them immediately, because the server can accept many connections before this thread reads.
    ///
    /// Also returns true if the first bytes of the client have arrived but the runtime has not reported them yet. This
    /// can happen in the first poll of a connection's task. The runtime then wakes the task again, and the task handles
    /// these bytes.
    fn keeps_connection(&mut self, cx: &mut Context<'_>) -> bool {
        if self.session.trust == Trust::Known || !self.place.has_share() {
            return false;
        }
        self.socket.begin();
        self.receive(cx);
        self.session.trust == Trust::Known || !self.has_received && self.socket.has_unread()
    }

    /// Returns true if receiving, executing and sending again would certainly find nothing to do. In this case all
    /// bytes are read, all commands are executed or proposed, and all output is sent. This is the case after most
    /// requests.
    fn is_idle(&self) -> bool {
        let all_taken = self.input.pending_bytes() == 0 || self.session.is_under_way();
        let is_quiet = self.phase == ConnectionPhase::Open && !self.socket.has_alarms() && !self.session.has_work();
        is_quiet && self.socket.is_drained() && all_taken && self.out.is_empty()
    }

    fn count(&mut self) {
        let resp = &self.session.resp;
        if let Some(last) = self.session.tally.report(&resp.metrics) {
            self.session.client().record_command(self.socket.now, last);
        }
        if let Some(since) = self.turn_since
            && self.out.is_empty()
            && !self.session.is_busy()
        {
            let now = Instant::now();
            resp.metrics.turn(now - since);
            let begun = self.blocked_until.take().unwrap_or(since);
            self.session.tally.end_turn(&resp.metrics, now.saturating_duration_since(begun));
            self.turn_since = None;
        }
    }

    // ----- receiving

    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        if self.socket.lingers() {
            return self.socket.linger(cx);
        }
        if self.session.listens() && self.input.pending_bytes() > 0 {
            self.socket.now = Instant::now();
        }
        let mut moved = self.run_received();
        // The second read usually finds nothing. It registers the task's waker with the socket.
        for _ in 0..2 {
            let is_full = !self.needs_input() && self.input.pending_bytes() >= MAX_UNREAD_BYTES;
            if self.phase != ConnectionPhase::Open || self.socket.is_drained() || is_full {
                return moved;
            }
            match self.socket.read(cx, self.input.buffer_or(spare::take)) {
                // The connection returns its buffer to the spare ones, so an idle connection keeps none.
                Received::Nothing => spare::keep(self.input.release()),
                Received::End => {
                    // The client has probably gone. So its blocking read is dropped, with the requests after it. Its
                    // waiting attempt to authenticate is dropped too, because it would use up a check of the other
                    // clients of its address.
                    let is_blocked = self.session.blocked.is_some() || self.session.auth_wait.is_some();
                    self.phase = if is_blocked { ConnectionPhase::Finishing } else { ConnectionPhase::Received };
                    self.session.stop_waiting();
                    self.socket.now = Instant::now();
                    self.run_received();
                    moved = true;
                }
                Received::Bytes(read) => {
                    self.has_received = true;
                    self.session.resp.metrics.received(read);
                    self.session.received(read);
                    self.socket.now = Instant::now();
                    self.turn_since = self.turn_since.or(Some(self.socket.now));
                    self.run_received();
                    moved = true;
                }
                Received::Lost => return true,
            }
        }
        moved
    }

    /// Returns true if the session can do nothing until more bytes arrive from the client.
    fn needs_input(&self) -> bool {
        self.session.listens() && self.out.is_empty() && !self.input.is_unread()
    }

    /// Passes the received commands to the session. Returns true if there was progress.
    fn run_received(&mut self) -> bool {
        if self.phase == ConnectionPhase::Finishing {
            return false;
        }
        let moved = self.session.run_received(&mut self.input, &mut self.socket, &mut self.out);
        if moved && self.session.trust == Trust::Known {
            // If a newer connection has already taken this connection's share, this connection ends in its next poll.
            let _ = self.place.release();
        }
        if self.session.is_ending || self.phase == ConnectionPhase::Received && self.needs_input() {
            self.phase = ConnectionPhase::Finishing;
        }
        let is_partial = self.input.pending_bytes() > 0 && self.needs_input();
        let since = self.socket.partial_since.filter(|_| !moved).or(Some(self.socket.now));
        self.socket.partial_since = since.filter(|_| is_partial);
        self.admit();
        moved
    }

    /// Reserves memory for the bytes received so far of a large, incomplete request. Ends the connection if all memory
    /// for requests is in use.
    fn admit(&mut self) {
        let wanted = self.input.wanted_bytes();
        if wanted <= READ_BYTES {
            self.arriving = None;
            return;
        }
        // The connection's own buffer covers the first bytes. Only bytes that have arrived are reserved, not the
        // announced length.
        let arrived = self.input.pending_bytes().min(wanted);
        if arrived <= READ_BYTES || self.phase != ConnectionPhase::Open {
            return;
        }
        let account = &self.session.account;
        let arriving = self.arriving.get_or_insert_with(|| account.empty(Resource::BodyBytes));
        if !arriving.grow_to(arrived as u64) {
            self.close_with_error("BUSY requests use too much memory: connect again and retry later");
        }
    }

    // ----- sending

    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        let metrics = &self.session.resp.metrics;
        let output = if self.session.subscriber.is_subscribed() { Output::Deliveries } else { Output::Replies };
        let moved = self.socket.write(cx, &mut self.out, output, |written| metrics.sent(written));
        let may_close = self.phase == ConnectionPhase::Finishing && self.out.is_empty() && !self.session.is_busy();
        may_close && self.socket.close(cx) || moved
    }

    // ----- ends

    fn check_timeouts(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(alarm) = self.socket.alarm(cx) {
            moved = true;
            self.socket.now = Instant::now();
            match alarm {
                SocketEvent::Tick => self.tick(),
                SocketEvent::Stop => {
                    self.session.stop_waiting();
                    self.phase = ConnectionPhase::Finishing;
                }
            }
        }
        moved
    }

    fn tick(&mut self) {
        if !self.socket.tick() {
            return;
        }
        let config = &self.session.resp.app.config;
        let (body_timeout, header_timeout) = (config.body_timeout.0, config.header_timeout.0);
        let is_late = self.socket.partial_for() >= body_timeout || self.socket.is_receiving_too_slowly();
        if self.phase == ConnectionPhase::Open && is_late {
            self.close_with_error("ERR Protocol error: the request was incomplete for too long");
        }
        let must_authenticate = self.session.trust == Trust::Unknown;
        if self.phase == ConnectionPhase::Open && must_authenticate && self.socket.age() >= header_timeout {
            self.session.resp.metrics.not_authenticated();
            self.close_with_error("NOAUTH Authentication required: no AUTH within the time limit");
        }
        self.socket.ticked(&mut self.out);
        if self.phase == ConnectionPhase::Open && self.is_dispensable() {
            tracing::debug!(peer = %self.socket.peer(), "few connections are free: closing an idle Redis client");
            self.phase = ConnectionPhase::Finishing;
        }
    }

    /// Returns true if the server should close this connection: it is idle, few connections are free, and the client's
    /// address holds more connections than one address should. A subscriber, and a client that waits for a reply, are
    /// never idle.
    fn is_dispensable(&self) -> bool {
        let session = &self.session;
        session.account.is_over_share(Resource::Connections)
            && self.socket.idle_for() >= session.resp.app.config.idle_timeout_when_short.0
            && self.input.pending_bytes() == 0
            && !session.is_busy()
            && !session.subscriber.is_subscribed()
    }

    /// Ends the connection. The client gets an error with the text `why` as its last reply.
    fn close_with_error(&mut self, why: &str) {
        let (peer, request_id) = (self.socket.peer(), self.session.request_id());
        tracing::debug!(%peer, %request_id, why, "closing the connection of a Redis client");
        self.session.end_with_reply(why, &mut self.out);
        self.phase = ConnectionPhase::Finishing;
    }
}

#[cfg(test)]
mod tests;
