//! Receiving of a channel's frames.
//!
//! Owns: the read from the socket, the memory of the frame that is arriving, the wait of a read for its barrier (the
//! confirmation that this node's state is recent enough), and the conditions on which the channel handles its client's
//! next frame. Does not own: the handling of a request (`handling`), or the boundaries of frames (the decoder of the
//! wire crate).

use std::{task::Context, time::Duration};

use thalweg_serving::{
    admission::Resource, bulk::Slice, cluster::Gate, limits::DEFAULT_WAIT, served_socket::Received, spare,
};
use thalweg_types::ReadLevel;
use thalweg_wire::{ClientFrame, Fields, HEADER_BYTES, Kind, Ping, Pong, READ_BYTES, SharedFrame};

use super::{ChannelPhase, ChannelTask};
use crate::{
    dispatch::{self, Consistency},
    failure::Failure,
    groups,
    request::Request,
    write,
};

/// Maximum time for which a read waits for the confirmation that this node's state is recent enough, even if the
/// timeout of its request is longer.
const MAX_BARRIER: Duration = Duration::from_secs(600);

impl ChannelTask {
    /// Returns true if the channel may handle its client's next frame. Returns false while the outbox is full, too many
    /// writes wait, a publish waits for a subscriber, or a read waits for the confirmation that this node's state is
    /// recent enough.
    pub(super) fn listens(&self) -> bool {
        let has_room = self.out.has_room() && !self.writes.is_full();
        self.is_open() && has_room && !self.subjects.is_blocked() && !self.barrier.is_pending()
    }

    /// Proposes and commits the waiting writes for which other threads have read the needed rows of the state from the
    /// disk. Returns true if there were any.
    pub(super) fn continue_after_fetch(&mut self, cx: &mut Context<'_>) -> bool {
        let any = self.writes.propose_read(cx);
        if any {
            // The timeouts of the requests must fire even if the disk hangs, so this thread leaves the commit to
            // another one.
            self.session.app.db.commit_queued();
        }
        any
    }

    /// Polls the pending confirmation that this node's state is recent enough for reads (the barrier). Returns true if
    /// it has ended.
    pub(super) fn continue_after_barrier(&mut self, cx: &mut Context<'_>) -> bool {
        self.barrier.is_pending() && self.barrier.poll(cx).is_ready()
    }

    /// Returns true if a client that had to wait for other clients of its thread may continue now. A client has to wait
    /// after its requests have taken long or caused many deliveries.
    pub(super) fn continue_after_work(&mut self, cx: &Context<'_>) -> bool {
        let may_continue = self.subjects.publishing.caused.need_turn() && self.socket.may_deliver(cx);
        if may_continue {
            self.subjects.publishing.caused.had_turn();
        }
        may_continue
    }

    /// Handles the frames that have arrived already. Then reads from the socket once, and handles the frames that this
    /// read has brought. Returns true if there was progress.
    pub(super) fn receive(&mut self, cx: &mut Context<'_>) -> bool {
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
            // An idle channel keeps no receive buffer.
            Received::Nothing => spare::keep(self.decoder.release()),
            Received::End => {
                // Requests that only wait are dropped, because the client cannot receive their replies.
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

    /// Handles complete frames while the outbox has room, for at most about two milliseconds ([`Slice`]). Returns true
    /// if there was progress.
    pub(super) fn frames(&mut self) -> bool {
        if !self.listens() || self.decoder.pending_bytes() == 0 {
            return false;
        }
        let mut slice = Slice::begin(self.socket.now);
        let moved = self.frames_for(&mut slice);
        if let Some(time) = slice.work() {
            self.socket.worked(time);
            self.subjects.publishing.caused.add_time(time);
        }
        // If the thread was interrupted, its time may be used up before it has handled a frame. The channel then needs
        // a turn. Without progress it would not request one, and received bytes would wait for the next tick.
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
            // If a read could not be decoded, it has not taken the error of its barrier.
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

    /// Proposes and commits all writes that wait until other threads have read rows for them. Used when the channel (a
    /// TCP connection or a QUIC stream) closes.
    pub(super) fn commit_waiting(&mut self) {
        if self.writes.propose_all() {
            self.session.app.db.commit_queued();
        }
    }

    /// Reserves memory for the received bytes of the next frame, if this frame is large. A frame header alone reserves
    /// no memory, whatever length it announces. If no memory is free, rejects the frame, skips its bytes as they
    /// arrive, and returns false.
    fn admit_next(&mut self) -> bool {
        let Some(header) = self.decoder.peek() else { return true };
        if (header.len as usize) <= READ_BYTES || header.len > self.session.max_frame_bytes {
            return true;
        }
        // The first bytes are in the channel's receive buffer, whose memory is counted with the connection.
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

    /// Returns true if the channel may handle the next frame. On a node of a cluster, a read first waits for the
    /// confirmation that the node's state is recent enough. The channel handles no other frame during this wait, so
    /// replies stay in order.
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
            // Such a transaction reads this node's state, like any other read.
            Consistency::Local if kind == Kind::Write && write::only_reads(frame.payload, frame.header.fields) => {
                fields.read.unwrap_or(self.session.app.config.read_level)
            }
            // A leader may have been replaced without knowing it. So even a leader waits if it does not have the group.
            Consistency::Names if !cluster.handle.leads() || !groups::has_group(&self.session.app, frame) => {
                ReadLevel::Linearizable
            }
            Consistency::Names | Consistency::Local => return true,
        };
        let (now, timeout_micros) = (self.socket.now, fields.timeout_micros);
        let deadline = || now + timeout_micros.map_or(DEFAULT_WAIT, Duration::from_micros).min(MAX_BARRIER);
        // The frame is at the start of these bytes, because the decoder has passed all skipped frames.
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

    /// Handles the next frame, which borrows its bytes from the decoder. Returns true if the frame was a write, and
    /// `None` if no complete frame has arrived.
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

    /// Handles a decoded frame, or reports that decoding it failed. Returns true if the frame was a write.
    fn decoded(
        &mut self,
        decoded: Result<thalweg_wire::Envelope<'_, ClientFrame<'_>>, thalweg_wire::DecodeError>,
        id: u32,
        shared: Option<&SharedFrame>,
    ) -> bool {
        let envelope = match decoded {
            Ok(envelope) => envelope,
            Err(error) => {
                // A malformed frame is no request and gets no reply, but the failure tells its sender of the error.
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
}
