//! The task of a channel: reads frames, calls their handlers, and writes replies. A connection has one channel over
//! TCP, and can have several over QUIC.
//!
//! Owns: the order of these steps, backpressure, keepalive and the end of the channel. Does not own: the execution of
//! requests (`dispatch` and the handlers), pending requests (`requests`), the socket and its timers
//! (`thalweg_serving::served_socket`).
//!
//! ```text
//! one turn:  read once ─► frames ─► finished replies ─► subjects ─► write
//! ```
//! Frames that arrive in one read are therefore answered in one write, and their commands are committed together.
//! Turns repeat until no step makes progress. Then the task sleeps until its socket, a finished reply, the broker or
//! its timer tick wakes it.
//!
//! Backpressure: while [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) or more bytes wait for the client, the
//! task reads nothing, handles no frame and takes nothing from the broker. The memory used by a client that does not
//! read its replies is therefore bounded. The task handles no frame either while too many writes wait for rows from the
//! disk (`write_queue`).

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use thalweg_serving::{
    admission::{Reservation, Resource},
    bulk::{BulkSeat, Slice},
    cluster::{ClusterError, ConnectionBarrier, Gate},
    error::ApiError,
    limits::{DEFAULT_WAIT, MAX_TURNS},
    served_socket::{Output, Received, ServedSocket, SocketEvent},
    spare,
};
use thalweg_transport::Channel;
use thalweg_types::{Action, ReadLevel};
use thalweg_wire::{
    CancelMode, ClientFrame, Credit, Decoder, Fields, FrameError, Goodbye, HEADER_BYTES, Kind, Ping, Pong, READ_BYTES,
    Reason, SharedFrame,
    handshake::{KeepAlive, KeepAliveAction, goodbye},
};

use super::{
    dispatch::{self, Consistency},
    failure::{self, Failure},
    groups, members,
    publishing::InputState,
    replies::Replies,
    request::{Request, RequestId},
    requests::{Finished, IdUse, PendingRequest, Requests},
    session::Session,
    subjects::Subjects,
    subscription::{NextAction, Subscription},
    turn::{Handled, Reply, Turn, Writes},
    write,
};

/// Longest time for which a read waits for its barrier, whatever timeout its request has.
const MAX_BARRIER: Duration = Duration::from_secs(600);

/// Number of keepalive intervals for which the last messages of a client that has said goodbye wait for room at
/// subscribers, as long as a silent client keeps its connection.
const LEAVE_INTERVALS: u32 = 3;

/// Phase of a channel's life, from open to closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelPhase {
    /// The channel handles frames of its client.
    Open,
    /// The channel handles no more frames. Pending requests are answered; then the channel sends a goodbye frame, if
    /// the client can still receive it.
    Finishing { goodbye: Option<Reason> },
    /// The client has said goodbye, and its last messages wait for room at subscribers whose policy blocks publishers.
    /// The channel publishes them, until this time at most, and does nothing else.
    Leaving { until: Instant },
    /// The last bytes and the end of the byte stream are being written. After that the [socket](ServedSocket) lingers,
    /// so that the client can read them.
    Closing,
}

/// A channel with its pending requests and subscriptions.
#[derive(Debug)]
pub(crate) struct ChannelTask {
    session: Session,
    socket: ServedSocket,
    decoder: Decoder,
    /// Memory reservation for the frame that is arriving; `None` if that frame is small.
    arriving: Option<Reservation>,
    out: Replies,
    requests: Requests,
    writes: Writes,
    subjects: Subjects,
    /// Number of the channel, unique on this server.
    number: u64,
    /// True if no other channel on this server has been active recently.
    is_sole_client: bool,
    phase: ChannelPhase,
    /// Time of the last request.
    active_at: Instant,
    /// Barrier of the reads of the received frames. Unused on a node without a cluster.
    barrier: ConnectionBarrier,
    /// Error with which the barrier failed; the read in the next frame is answered with it.
    barred: Option<ClusterError>,
    /// Keepalive of the connection. `None` on all channels except the first, whose keepalive covers the whole
    /// connection.
    keep_alive: Option<KeepAlive>,
}

impl ChannelTask {
    /// Creates the task of a channel after the handshake of its connection. `decoder` contains the bytes received
    /// after the handshake.
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

    /// Makes all progress that is possible now: receives, answers and sends. Ready when the channel has ended.
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
        // Yields to the other tasks of this thread.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    // ----- receiving

    /// Returns true if the channel may handle its client's next frame.
    fn listens(&self) -> bool {
        let has_room = self.out.has_room() && !self.writes.is_full();
        self.is_open() && has_room && !self.subjects.is_blocked() && !self.barrier.is_pending()
    }

    /// Proposes and commits writes whose rows are read. Returns true if there were any.
    fn continue_after_fetch(&mut self, cx: &mut Context<'_>) -> bool {
        let any = self.writes.propose_read(cx);
        if any {
            // The timeouts of the requests must fire even if the disk hangs, so this thread does not commit.
            self.session.app.db.commit_queued();
        }
        any
    }

    /// Polls the barrier of reads. Returns true if it has ended.
    fn continue_after_barrier(&mut self, cx: &mut Context<'_>) -> bool {
        self.barrier.is_pending() && self.barrier.poll(cx).is_ready()
    }

    /// Lets a client continue whose requests have taken long or caused many deliveries, if it has a turn now. Returns
    /// true if it may continue.
    fn continue_after_work(&mut self, cx: &Context<'_>) -> bool {
        let may_continue = self.subjects.publishing.caused.need_turn() && self.socket.may_deliver(cx);
        if may_continue {
            self.subjects.publishing.caused.had_turn();
        }
        may_continue
    }

    fn is_open(&self) -> bool {
        self.phase == ChannelPhase::Open && self.socket.is_open()
    }

    /// Returns true if the client gets no more frames than those in the outbox.
    fn is_closing(&self) -> bool {
        matches!(self.phase, ChannelPhase::Leaving { .. } | ChannelPhase::Closing) || !self.socket.is_open()
    }

    /// Handles frames that are already received, then reads from the socket once and handles the frames of that read.
    /// Returns true if there was progress.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        if self.socket.lingers() {
            return self.socket.linger(cx);
        }
        let mut moved = self.frames();
        if !self.listens() {
            self.socket.partial_since = None;
            return moved;
        }
        if self.socket.is_drained() {
            return moved;
        }
        match self.socket.read(cx, self.decoder.buffer_or(spare::take)) {
            // An idle channel keeps no buffer.
            Received::Nothing => spare::keep(self.decoder.release()),
            Received::End => {
                // Requests that only wait are dropped: the client can't receive their replies.
                self.phase = ChannelPhase::Finishing { goodbye: None };
                self.requests.stop_waiting();
                moved = true;
            }
            Received::Bytes(read) => {
                self.session.native.metrics.received(read);
                self.barrier.received(read);
                if let Some(alive) = &mut self.keep_alive {
                    alive.record_receipt(self.socket.age());
                }
                self.frames();
                moved = true;
            }
            Received::Lost => return true,
        }
        let is_partial = self.decoder.pending_bytes() > 0 && self.listens();
        self.socket.partial_since = self.socket.partial_since.or(Some(self.socket.now)).filter(|_| is_partial);
        moved
    }

    /// Handles complete frames as long as there are any and the outbox has room, for a [`Slice`] at most. Returns true
    /// if there was progress.
    fn frames(&mut self) -> bool {
        if !self.listens() || self.decoder.pending_bytes() == 0 {
            return false;
        }
        let mut slice = Slice::begin(self.socket.now);
        let moved = self.frames_for(&mut slice);
        if let Some(time) = slice.work() {
            self.socket.worked(time);
            self.subjects.publishing.caused.add_time(time);
        }
        // A thread that was interrupted can use up its time without a frame. Without progress, nothing would ask for
        // the turn that the channel then needs, and bytes that have arrived would wait for the next tick.
        moved | self.subjects.publishing.caused.need_turn()
    }

    fn frames_for(&mut self, slice: &mut Slice) -> bool {
        let (mut moved, mut wrote) = (false, false);
        while self.listens() && slice.has_time() {
            if !self.admit_next() {
                moved = true;
                continue;
            }
            if self.session.app.cluster.is_some() && !self.may_begin() {
                break;
            }
            let header = self.decoder.peek();
            let kind = header.and_then(|header| Kind::from_code(header.kind));
            let travels = matches!(kind, Some(Kind::Publish | Kind::Ask | Kind::WriteAndPublish));
            let handled = if travels { self.shared_frame() } else { self.borrowed_frame() };
            match handled {
                Some(was_write) => wrote |= was_write,
                None => break,
            }
            // A read that does not decode leaves the error of its barrier behind.
            self.barred = None;
            (moved, self.socket.partial_since) = (true, None);
        }
        match wrote {
            true if self.is_sole_client => self.session.app.db.commit_queued_here(),
            true => self.session.app.db.commit_queued(),
            false => {}
        }
        moved
    }

    /// Proposes and commits all writes that wait for rows, because the channel is closing.
    fn commit_waiting(&mut self) {
        if self.writes.propose_all() {
            self.session.app.db.commit_queued();
        }
    }

    /// Reserves memory for the bytes of the next frame that have arrived, if that frame is large. A header alone
    /// reserves nothing, whatever length it announces. If no memory is free, the frame is rejected, its bytes are
    /// skipped as they arrive, and the result is false.
    fn admit_next(&mut self) -> bool {
        let Some(header) = self.decoder.peek() else { return true };
        if (header.len as usize) <= READ_BYTES || header.len > self.session.max_frame_bytes {
            return true;
        }
        // The receive buffer of the channel covers the first bytes.
        let arrived = self.decoder.pending_bytes().min(HEADER_BYTES + header.len as usize);
        if arrived <= READ_BYTES {
            return true;
        }
        let account = &self.session.account;
        let arriving = self.arriving.get_or_insert_with(|| account.empty(Resource::BodyBytes));
        if arriving.grow_to(arrived as u64) {
            return true;
        }
        self.arriving = None;
        self.decoder.skip_frame();
        let message = "too many bytes of requests at a time: retry later";
        self.out.fail(header.id, &Failure::overloaded(message));
        false
    }

    /// Returns true if the next frame may be handled on a node of a cluster. A read first waits for its barrier; the
    /// channel handles no further frame meanwhile, so replies need no order of their own.
    #[cold]
    fn may_begin(&mut self) -> bool {
        let Some(cluster) = &self.session.app.cluster else { return true };
        let Ok(Some(frame)) = self.decoder.peek_frame() else { return true };
        let Some(kind) = Kind::from_code(frame.header.kind) else { return true };
        let Some(Ok(fields)) = frame.payload.get(..usize::from(frame.header.fields)).map(Fields::decode) else {
            return true;
        };
        let level = match dispatch::consistency(kind) {
            Consistency::Read => fields.read.unwrap_or(self.session.app.config.read_level),
            // Such a transaction is answered from the node's state, like any other read.
            Consistency::Local if kind == Kind::Write && write::only_reads(frame.payload, frame.header.fields) => {
                fields.read.unwrap_or(self.session.app.config.read_level)
            }
            // A leader that does not have the group may have been replaced without knowing it.
            Consistency::Names if !cluster.handle.leads() || !groups::has_group(&self.session.app, frame) => {
                ReadLevel::Linearizable
            }
            Consistency::Names | Consistency::Local => return true,
        };
        let (now, timeout_micros) = (self.socket.now, fields.timeout_micros);
        let deadline = || now + timeout_micros.map_or(DEFAULT_WAIT, Duration::from_micros).min(MAX_BARRIER);
        // The frame is at the start of these bytes: the decoder has passed over the rest of a skipped frame.
        let unhandled = self.decoder.pending_bytes();
        match self.barrier.check(&cluster.handle, level, unhandled, deadline) {
            Gate::Open(_) => true,
            Gate::Failed(error) => {
                self.barred = Some(error);
                true
            }
            Gate::Wait => false,
        }
    }

    /// Handles the next frame, which is borrowed from the decoder. Returns `None` if no complete frame has arrived,
    /// and otherwise true if the frame was a write.
    fn borrowed_frame(&mut self) -> Option<bool> {
        // The frame borrows the decoder, so the decoder is moved out of `self` until the frame is handled.
        let mut decoder = std::mem::take(&mut self.decoder);
        let handled = match decoder.next_borrowed() {
            Ok(None) => None,
            Ok(Some(raw)) => Some(self.decoded(ClientFrame::decode(raw), raw.header.id, None)),
            Err(error) => {
                self.too_large(&error);
                Some(false)
            }
        };
        self.decoder = decoder;
        self.arrived(handled)
    }

    fn shared_frame(&mut self) -> Option<bool> {
        let handled = match self.decoder.next_shared() {
            Ok(None) => None,
            Ok(Some(frame)) => Some(self.decoded(ClientFrame::decode(frame.raw()), frame.header.id, Some(&frame))),
            Err(error) => {
                self.too_large(&error);
                Some(false)
            }
        };
        self.arrived(handled)
    }

    fn arrived(&mut self, handled: Option<bool>) -> Option<bool> {
        if handled.is_some() {
            self.arriving = None;
        }
        handled
    }

    /// Handles a frame that was decoded, or reports that it did not decode. Returns true if the frame was a write.
    fn decoded(
        &mut self,
        decoded: Result<thalweg_wire::Envelope<'_, ClientFrame<'_>>, thalweg_wire::DecodeError>,
        id: u32,
        shared: Option<&SharedFrame>,
    ) -> bool {
        let envelope = match decoded {
            Ok(envelope) => envelope,
            Err(error) => {
                // A malformed frame is no request and needs no reply, but its sender should learn of the error.
                self.out.fail(id, &Failure::of(&error));
                return false;
            }
        };
        match envelope.frame {
            ClientFrame::Ping(Ping { token }) => self.send_control(&Pong { token }),
            ClientFrame::Pong(_) => {}
            ClientFrame::Goodbye(_) => self.leave(),
            ClientFrame::Hello(_) => self.protocol("a hello is only valid as the first frame of a connection"),
            ClientFrame::Cancel(cancel) => self.cancel(id, cancel.mode),
            ClientFrame::Credit(credit) => self.credit(id, &credit),
            frame => {
                let (kind, fields) = (frame.kind(), envelope.fields);
                let request = Request { id, kind, fields, received: self.socket.now, shared };
                return self.request(&request, frame);
            }
        }
        false
    }

    // ----- requests

    /// Handles a request of the client. Returns true if it was a write.
    fn request(&mut self, request: &Request<'_>, frame: ClientFrame<'_>) -> bool {
        let Request { id, kind, received, .. } = *request;
        self.active_at = received;
        if id != 0 && self.requests.is_in_use(id) {
            let message = format!("id {id} is in use: wait for its last frame, or choose another");
            self.protocol(&message);
            return false;
        }
        let permit = dispatch::permit_of(&frame);
        let barred = self.barred.take().map_or(Ok(()), |error| Err(ApiError::from(error).into()));
        // Frames of subscriptions may have stated a level since the last reply.
        self.out.take_level();
        let redirected = || match members::wants_redirect(request) {
            true => members::redirect(&self.session.app, request),
            false => Ok(()),
        };
        let admitted = barred.and_then(|()| redirected()).and_then(|()| self.check(request, permit.is_some()));
        let handled = admitted.and_then(|tail| {
            let Self { session, out, subjects, writes, is_sole_client, number, .. } = self;
            let number = *number;
            let mut turn = Turn {
                app: &session.app,
                account: &session.account,
                out,
                subjects,
                writes,
                number,
                is_sole_client: *is_sole_client,
            };
            dispatch::dispatch(&mut turn, request, frame).map(|handled| (handled, tail))
        });
        let waiting = PendingRequest { id, kind, received, trace: request.fields.trace.map(Box::from) };
        let timeout = request.timeout();
        let account = &self.session.account;
        match handled {
            Err(failure) => self.refuse(&waiting, failure),
            Ok((Handled::Replied, _)) => self.count(&waiting, true),
            Ok((Handled::Write(write), _)) => match timeout {
                None => {
                    if let Some((waiting, reply)) = self.requests.write(waiting, write, account) {
                        self.reply(&waiting, reply);
                    }
                }
                Some(_) => {
                    // The timeout must fire even if the disk hangs, so nothing may block this thread.
                    self.is_sole_client = false;
                    let later = Box::pin(async move { Ok(Reply::Outcome(write.await?)) });
                    self.requests.add_write(waiting, later, timeout, account.count(Resource::Requests));
                }
            },
            Ok((Handled::Unstoppable(later), _)) => {
                self.requests.add_write(waiting, later, timeout, account.count(Resource::Requests));
            }
            Ok((Handled::Later(later), _)) => {
                self.requests.add_pending(waiting, later, None, timeout, account.count(Resource::Requests));
            }
            Ok((Handled::LaterWithEffect(later, begun), _)) => {
                self.requests.add_pending(waiting, later, Some(begun), timeout, account.count(Resource::Requests));
            }
            Ok((Handled::Began(source), tail)) => {
                let permit = permit.expect("only frames with a permit begin subscriptions");
                let held = tail.expect("which were counted before they began");
                self.count(&waiting, true);
                let subscription = Subscription::new(source, &permit, request.fields.limit, held, waiting.trace);
                self.requests.subscribed(id, IdUse::Subscription(Box::new(subscription)));
                self.begin_step(id);
            }
            Ok((Handled::BeganSubject, _)) => {
                self.requests.subscribed(id, IdUse::Subject);
                self.count(&waiting, true);
            }
        }
        matches!(kind, Kind::Write | Kind::WriteAndPublish)
    }

    /// Returns an error if a limit forbids a request. A request that begins a subscription reserves one of the
    /// server's tail slots here. Other requests are counted only when they become pending, because most are answered
    /// immediately.
    fn check(&self, request: &Request<'_>, subscribes: bool) -> Result<Option<Reservation>, Failure> {
        if request.fields.space.is_some_and(|space| space.0 != 0) {
            return Err(Failure::invalid(
                "no_such_space",
                "this server has only the default space: leave out the field",
            ));
        }
        if subscribes {
            if request.id == 0 {
                return Err(Failure::invalid(
                    "malformed_frame",
                    "a subscription needs an id above 0, because its pushes carry the id",
                ));
            }
            if self.requests.subscriptions() >= self.session.max_subscriptions as usize {
                return Err(Failure::overloaded("the channel has its maximum number of subscriptions: end one first"));
            }
        } else if !self.requests.has_room() {
            return Err(Failure::overloaded("too many requests in progress on this channel: wait for replies"));
        }
        let account = &self.session.account;
        if matches!(request.kind, Kind::Tail | Kind::Push | Kind::Watch | Kind::WatchCluster) {
            let held = account.take(Resource::Tails, 1);
            return held.map(Some).ok_or_else(|| Failure::overloaded("too many tails at a time: retry later"));
        }
        if account.has_room(Resource::Requests) {
            Ok(None)
        } else {
            Err(Failure::overloaded("too many requests in flight: retry later"))
        }
    }

    fn reply(&mut self, waiting: &PendingRequest, reply: Result<Reply, Failure>) {
        self.out.take_level();
        match reply.and_then(|reply| reply.put(&mut self.out, waiting.id)) {
            Ok(()) => self.count(waiting, true),
            Err(failure) => self.refuse(waiting, failure),
        }
    }

    fn refuse(&mut self, waiting: &PendingRequest, mut failure: Failure) {
        failure.name_subject(self.session.app.db.blocking());
        let failure = &failure;
        let with_leader = match &self.session.app.cluster {
            // The leadership was lost while the command was on its way.
            Some(cluster) if failure.code() == "not_leader" && !failure.has("leader") => {
                Some(members::with_leader(cluster, failure.clone()))
            }
            _ => None,
        };
        let failure = with_leader.as_ref().unwrap_or(failure);
        if failure.is_of_server() {
            let (peer, request_id, kind) = (self.socket.peer(), self.request_id(waiting), waiting.kind.name());
            tracing::warn!(%peer, %request_id, kind, code = failure.code(), "{}", failure.message());
            // With this name the client's user can ask an operator, who finds the request in the log.
            let name = waiting.trace.clone().unwrap_or_else(|| request_id.to_string().into());
            self.out.fail_traced(waiting.id, Some(&name), failure);
        } else {
            self.out.fail_traced(waiting.id, waiting.trace.as_deref(), failure);
        }
        self.count(waiting, false);
    }

    fn count(&mut self, waiting: &PendingRequest, good: bool) {
        let (level, took) = (self.out.take_level(), waiting.received.elapsed());
        self.session.native.metrics.request(waiting.kind, good, level, took);
        tracing::debug!(
            kind = waiting.kind.name(),
            good,
            micros = took.as_micros() as u64,
            request_id = %self.request_id(waiting),
            "native request"
        );
    }

    /// Returns the name of a request in log lines: the client's, or the channel's number and the request's id.
    fn request_id<'w>(&self, waiting: &'w PendingRequest) -> RequestId<'w> {
        RequestId { trace: waiting.trace.as_deref(), channel: self.number, id: waiting.id }
    }

    fn cancel(&mut self, id: u32, mode: CancelMode) {
        match self.requests.get_mut(id) {
            None | Some(IdUse::Request(None)) => {}
            Some(IdUse::Request(Some(stop))) => stop.notify_one(),
            Some(IdUse::Subscription(subscription)) => {
                subscription.end(failure::cancelled(), mode);
                self.begin_step(id);
            }
            Some(IdUse::Subject) => {
                if self.subjects.cancel(id, mode, &mut self.out) {
                    self.requests.unsubscribed(id);
                }
            }
        }
    }

    fn credit(&mut self, id: u32, credit: &Credit) {
        match self.requests.get_mut(id) {
            None | Some(IdUse::Request(_)) => {}
            Some(IdUse::Subscription(subscription)) => {
                subscription.permit(credit);
                self.begin_step(id);
            }
            Some(IdUse::Subject) => self.subjects.credit(id, credit),
        }
    }

    // ----- answering

    /// Puts the results of completed futures (replies and subscription steps) into the outbox, as long as it has room.
    /// Returns true if there was progress.
    fn answer(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(alarm) = self.socket.alarm(cx) {
            match alarm {
                SocketEvent::Tick => self.tick(),
                SocketEvent::Stop => self.stop(),
            }
            moved = true;
        }
        while self.out.has_room() {
            // Replies are sent before the frames of subscriptions, which need a turn.
            let finished = match self.requests.poll_next(cx) {
                Poll::Pending if self.requests.has_steps() && self.socket.may_deliver(cx) => {
                    self.requests.poll_step(cx)
                }
                finished => finished,
            };
            match finished {
                Poll::Pending => break,
                Poll::Ready(finished) => self.finished(finished),
            }
            moved = true;
        }
        moved
    }

    fn finished(&mut self, finished: Finished) {
        match finished {
            _ if self.is_closing() => {}
            Finished::Request(waiting, reply) => self.reply(&waiting, reply),
            Finished::Step(id, source, found) => {
                let Some(IdUse::Subscription(subscription)) = self.requests.get_mut(id) else { return };
                match subscription.stepped(id, source, found, &mut self.out) {
                    Some(over) => self.end_subscription(id, &over),
                    None => self.begin_step(id),
                }
            }
        }
    }

    /// Begins the next step of a subscription, if the client's credit and the subscription's limit allow it.
    fn begin_step(&mut self, id: u32) {
        let Some(IdUse::Subscription(subscription)) = self.requests.get_mut(id) else { return };
        match subscription.next(self.session.max_send_bytes as usize) {
            NextAction::Step(step) => self.requests.step(id, step),
            NextAction::Wait => {}
            NextAction::End(failure) => self.end_subscription(id, &failure),
        }
    }

    fn end_subscription(&mut self, id: u32, why: &Failure) {
        if why.is_of_server() {
            self.log_lost_subscription(id, why);
        }
        let begun = match self.requests.get_mut(id) {
            Some(IdUse::Subscription(subscription)) => !subscription.is_starting(),
            _ => true,
        };
        self.requests.unsubscribed(id);
        match begun {
            true => self.out.end(id, why),
            // The request is refused: its client has no subscription yet.
            false => {
                let mut failure = why.clone();
                failure.name_subject(self.session.app.db.blocking());
                self.out.fail(id, &failure);
            }
        }
    }

    /// Logs the end of a subscription by a fault of the server, under the name of the request that began it.
    #[cold]
    fn log_lost_subscription(&mut self, id: u32, why: &Failure) {
        if let Some(IdUse::Subscription(subscription)) = self.requests.get_mut(id) {
            let request_id = RequestId { trace: subscription.trace(), channel: self.number, id };
            let (peer, code) = (self.socket.peer(), why.code());
            tracing::warn!(%peer, %request_id, code, "a subscription ends: {}", why.message());
        }
    }

    /// Moves pending batches of subscriptions to subjects into the outbox. Returns true if there was progress.
    fn deliver(&mut self, cx: &mut Context<'_>, heard: bool) -> bool {
        if matches!(self.phase, ChannelPhase::Leaving { .. }) {
            return self.subjects.publish_blocked(cx);
        }
        if !self.out.has_room() || self.is_closing() {
            return false;
        }
        let input = if heard && self.is_open() { InputState::Open } else { InputState::Paused };
        let may_take = self.subjects.has_messages() && self.socket.may_deliver(cx);
        let delivered = self.subjects.deliver(cx, input, may_take, &mut self.out);
        for id in delivered.ended {
            self.requests.unsubscribed(id);
        }
        if let Some(message) = delivered.disconnect {
            self.close_with_goodbye(Reason::Slow, Action::Retry, &message);
        }
        delivered.moved
    }

    // ----- sending

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

    // ----- ends

    fn tick(&mut self) {
        if !self.socket.tick() {
            return;
        }
        let is_late = self.socket.partial_for() >= self.session.frame_timeout || self.socket.is_receiving_too_slowly();
        if self.phase == ChannelPhase::Open && is_late {
            self.protocol("the remaining bytes of a frame did not arrive in time");
        }
        let age = self.socket.age();
        let listens = self.listens();
        if let Some(alive) = self.keep_alive.as_mut().filter(|_| !listens) {
            // The channel does not read now, so silence is no sign of a dead client. A client whose messages wait for
            // a subscriber is not read for as long as the subscriber likes.
            alive.record_receipt(age);
        }
        match self.keep_alive.map(|alive| alive.due_action(age)) {
            Some(KeepAliveAction::PeerLost) => {
                self.close_with_goodbye(Reason::Silent, Action::Retry, "the client sent nothing for too long");
            }
            Some(KeepAliveAction::Ping) if self.phase == ChannelPhase::Open => {
                self.send_control(&Ping { token: age.as_micros() as u64 });
            }
            _ => {}
        }
        if self.phase == ChannelPhase::Open && self.is_dispensable() {
            let message = "connections run short, and this one was idle: connect again";
            self.close_with_goodbye(Reason::Overloaded, Action::Retry, message);
        }
        self.socket.ticked(self.out.outbox());
    }

    /// Returns true if the server should close the channel: it is idle, connections run short, and its client's address
    /// holds more than its share. Returns false for the first channel of a connection that has others, because they
    /// would end with it.
    fn is_dispensable(&self) -> bool {
        let Session { account, app, .. } = &self.session;
        account.is_over_share(Resource::Connections)
            && self.socket.now.saturating_duration_since(self.active_at) >= app.config.idle_timeout_when_short.0
            && self.requests.waiting() == 0
            && self.requests.subscriptions() == 0
            && self.decoder.pending_bytes() == 0
            && self.out.is_empty()
            && (!self.session.is_first || account.held(Resource::Connections) <= 1)
    }

    /// Begins to stop the channel: it handles no new frames, ends its subscriptions and answers pending requests.
    fn stop(&mut self) {
        if !matches!(self.phase, ChannelPhase::Open | ChannelPhase::Finishing { .. }) {
            return;
        }
        self.phase = ChannelPhase::Finishing { goodbye: Some(Reason::Stopping) };
        self.subjects.close();
        for id in self.requests.subscribed_ids() {
            match self.requests.get_mut(id) {
                Some(IdUse::Subscription(subscription)) => {
                    subscription.end(failure::stopping(), CancelMode::Now);
                    self.begin_step(id);
                }
                _ => self.end_subscription(id, &failure::stopping()),
            }
        }
    }

    /// Begins to close the channel after the goodbye of its client. Its messages are published before.
    fn leave(&mut self) {
        self.subjects.flush();
        self.commit_waiting();
        self.phase = ChannelPhase::Closing;
        if !self.subjects.is_done() {
            // The client takes no more messages, so it must not hold up other publishers or itself.
            self.subjects.close();
            self.requests.drop_subscriptions();
            self.phase = ChannelPhase::Leaving { until: self.socket.now + LEAVE_INTERVALS * self.session.keep_alive };
        }
    }

    /// Closes a channel that is stopping, once nothing is pending, or one whose client has left.
    fn finish(&mut self) {
        let goodbye = match self.phase {
            ChannelPhase::Finishing { goodbye } => goodbye,
            ChannelPhase::Leaving { until } => {
                if self.subjects.is_done() || self.socket.now >= until {
                    self.phase = ChannelPhase::Closing;
                }
                return;
            }
            ChannelPhase::Open | ChannelPhase::Closing => return,
        };
        // A client that closes its sending side ends its subscriptions.
        if goodbye.is_none() && self.requests.subscriptions() > 0 {
            for id in self.requests.subscribed_ids() {
                self.requests.unsubscribed(id);
            }
        }
        if self.requests.waiting() > 0 || self.requests.subscriptions() > 0 || !self.subjects.is_done() {
            return;
        }
        match goodbye {
            Some(reason) => self.close_with_goodbye(reason, Action::Retry, "the server is stopping: connect again"),
            None => self.phase = ChannelPhase::Closing,
        }
    }

    /// Ends the channel because the client violated the protocol.
    fn protocol(&mut self, message: &str) {
        self.close_with_goodbye(Reason::Protocol, Action::Fix, message);
    }

    fn too_large(&mut self, error: &FrameError) {
        let FrameError::TooLarge { id, .. } = *error;
        self.out.fail(id, &Failure::of(error));
        self.protocol(&error.to_string());
    }

    /// Puts a goodbye frame with this reason into the outbox as the last frame, and begins to close the channel.
    fn close_with_goodbye(&mut self, reason: Reason, class: Action, message: &str) {
        if self.is_closing() {
            return;
        }
        tracing::debug!(peer = %self.socket.peer(), reason = reason.code(), message, "channel ends");
        let said: Result<(), Failure> = self.out.push(0, &goodbye(reason, class, message) as &Goodbye<'_>);
        debug_assert!(said.is_ok(), "{said:?}");
        self.commit_waiting();
        self.phase = ChannelPhase::Closing;
    }
}

impl Drop for ChannelTask {
    fn drop(&mut self) {
        self.session.native.metrics.channel_closed();
    }
}

#[cfg(test)]
mod tests;
