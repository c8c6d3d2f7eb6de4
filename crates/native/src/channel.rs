//! The task of a channel: reads frames, calls their handlers, and writes replies. A channel is an ordered sequence of
//! request frames from a client and of reply frames to it. A connection has one channel over TCP, and can have several
//! over QUIC.
//!
//! Owns: the order of these steps, and backpressure. Its modules own the receiving of frames, the handling of requests,
//! the answers, and the ends of the channel, with its keepalive. Does not own: the execution of requests (`dispatch`
//! and the handlers), pending requests (`requests`), the socket and its timers (`thalweg_serving::served_socket`).
//!
//! ```text
//! one turn:  read once ─► frames ─► finished replies ─► subjects ─► write
//! ```
//!
//! So frames that arrive in one read are answered in one write, and their commands are committed together. Turns repeat
//! until no step makes progress. Then the task sleeps until its socket, a finished reply, the broker or its timer tick
//! wakes it.
//!
//! Backpressure: while [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) or more bytes wait for the client, the
//! task reads no bytes, handles no frames and takes no messages from the broker. This bounds the memory of a client
//! that does not read its replies. The task also handles no frames while too many writes wait for rows from the disk
//! (`write_queue`).

mod answering;
mod ends;
mod handling;
mod receiving;

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use thalweg_serving::{
    admission::Reservation,
    bulk::BulkSeat,
    cluster::{ClusterError, ConnectionBarrier},
    limits::MAX_TURNS,
    served_socket::{Output, ServedSocket},
};
use thalweg_transport::Channel;
use thalweg_wire::{Decoder, Reason, handshake::KeepAlive};

use super::{replies::Replies, requests::Requests, session::Session, subjects::Subjects, turn::Writes};

/// Phase in the life of a channel (a TCP connection or a QUIC stream), from open to closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelPhase {
    /// The channel (a TCP connection or a QUIC stream) handles frames of its client.
    Open,
    /// The channel (a TCP connection or a QUIC stream) handles no more frames. It answers pending requests, and then
    /// sends a goodbye frame if the client can still receive one.
    Finishing { goodbye: Option<Reason> },
    /// The client has said goodbye, and its last messages wait until subscribers whose policy blocks publishers have
    /// room. The channel (a TCP connection or a QUIC stream) only publishes these messages, at most until this time.
    Leaving { until: Instant },
    /// The last bytes and the end of the byte stream are being written. Afterwards the [socket](ServedSocket) still
    /// reads for a moment, so that the client can read the last bytes.
    Closing,
}

/// Task of a channel (a TCP connection or a QUIC stream), with the channel's pending requests and subscriptions.
#[derive(Debug)]
pub(crate) struct ChannelTask {
    session: Session,
    socket: ServedSocket,
    decoder: Decoder,
    /// Memory reservation for a large frame that is arriving; `None` if the arriving frame is small.
    arriving: Option<Reservation>,
    out: Replies,
    requests: Requests,
    writes: Writes,
    subjects: Subjects,
    /// Number of the channel (a TCP connection or a QUIC stream), unique on this server.
    number: u64,
    /// True if no other channel or connection of the server has been active recently.
    is_sole_client: bool,
    phase: ChannelPhase,
    /// Time at which the channel (a TCP connection or a QUIC stream) received its last request.
    active_at: Instant,
    /// Confirms for the reads in the received frames that this node's state is recent enough. Unused on a node without
    /// a cluster.
    barrier: ConnectionBarrier,
    /// Error of a read barrier that failed (this node could not confirm that its state is recent). The read in the next
    /// frame gets this error as its answer.
    barred: Option<ClusterError>,
    /// Keepalive of the connection. Only the first channel has it, and it covers the whole connection; `None` on all
    /// others.
    keep_alive: Option<KeepAlive>,
}

impl ChannelTask {
    /// Creates the task of a channel (a TCP connection or a QUIC stream) after the handshake of its connection.
    /// `decoder` contains the bytes that arrived after the handshake.
    #[must_use]
    pub(crate) fn new(session: Session, io: Channel, decoder: Decoder) -> Self {
        let stopping = session.app.stopping.clone();
        let seat = BulkSeat::new(&session.bulk, &session.account);
        let socket = ServedSocket::new(io, "native client", stopping, &session.app.config, session.tick(), seat);
        let keep_alive = session.is_first.then(|| KeepAlive::new(session.keep_alive, Duration::ZERO));
        session.native.metrics.channel_opened();
        let mut barrier = ConnectionBarrier::default();
        barrier.received(decoder.pending_bytes());
        Self {
            out: Replies::new(session.max_send_bytes, Arc::clone(&session.account)),
            requests: Requests::new(session.max_requests),
            writes: Writes::default(),
            subjects: Subjects::new(&session.app, &session.native.metrics, session.account.link_owner()),
            number: session.app.new_number(),
            is_sole_client: false,
            session,
            socket,
            decoder,
            arriving: None,
            phase: ChannelPhase::Open,
            active_at: Instant::now(),
            barrier,
            barred: None,
            keep_alive,
        }
    }

    /// Makes all progress that is possible now: receives, handles, answers and sends. Ready when the channel (a TCP
    /// connection or a QUIC stream) has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.take_turns(cx);
        self.socket.rest();
        polled
    }

    fn take_turns(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.subjects.woken_by(cx);
        self.socket.begin();
        self.socket.now = Instant::now();
        self.is_sole_client = self.session.app.sole_client.report_activity(self.number, self.socket.now);
        for _ in 0..MAX_TURNS {
            let mut may_continue = self.continue_after_work(cx) | self.continue_after_barrier(cx);
            may_continue |= self.continue_after_fetch(cx);
            let heard = self.receive(cx);
            let mut moved = self.answer(cx) | heard | may_continue;
            moved |= self.deliver(cx, heard);
            self.finish();
            moved |= self.send(cx);
            if self.socket.is_over() {
                return Poll::Ready(());
            }
            if !moved {
                return Poll::Pending;
            }
            self.socket.now = Instant::now();
        }
        // Lets other tasks of this thread run before the next turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn is_open(&self) -> bool {
        self.phase == ChannelPhase::Open && self.socket.is_open()
    }

    /// Returns true if the channel (a TCP connection or a QUIC stream) is closing, so that the client gets no further
    /// frames except those in the outbox.
    fn is_closing(&self) -> bool {
        matches!(self.phase, ChannelPhase::Leaving { .. } | ChannelPhase::Closing) || !self.socket.is_open()
    }

    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        let (metrics, age) = (&self.session.native.metrics, self.socket.age());
        let output = if self.requests.subscriptions() > 0 { Output::Deliveries } else { Output::Replies };
        let moved = self.socket.write(cx, self.out.outbox(), output, |written| {
            metrics.sent(written);
            if let Some(alive) = &mut self.keep_alive {
                alive.sent(age);
            }
        });
        if self.out.is_empty() {
            self.subjects.note_sent();
        }
        let may_close = self.phase == ChannelPhase::Closing && self.out.is_empty();
        may_close && self.socket.close(cx) || moved
    }

    /// Puts a frame about the connection itself (such as a pong) into the outbox.
    fn send_control(&mut self, frame: &impl for<'f> thalweg_wire::Frame<'f>) {
        let said = self.out.push(0, frame);
        debug_assert!(said.is_ok(), "small frames: {said:?}");
    }
}

impl Drop for ChannelTask {
    fn drop(&mut self) {
        self.session.native.metrics.channel_closed();
    }
}

#[cfg(test)]
mod tests;
