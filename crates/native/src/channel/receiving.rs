//! Receiving of a channel's frames.
//!
//! Owns: the read from the socket, the memory of the frame that is arriving, the wait for the barrier of a read, and
//! the conditions under which the channel handles its client's next frame. Does not own: the handling of a request
//! (`handling`), or the boundaries of frames (the decoder of the wire crate).

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

/// Longest time for which a read waits for its barrier, whatever timeout its request has.
const MAX_BARRIER: Duration = Duration::from_secs(600);

impl ChannelTask {
    /// Returns true if the channel may handle its client's next frame.
    pub(super) fn listens(&self) -> bool {
        let has_room = self.out.has_room() && !self.writes.is_full();
        self.is_open() && has_room && !self.subjects.is_blocked() && !self.barrier.is_pending()
    }

    /// Proposes and commits writes whose rows are read. Returns true if there were any.
    pub(super) fn continue_after_fetch(&mut self, cx: &mut Context<'_>) -> bool {
        let any = self.writes.propose_read(cx);
        if any {
            // The timeouts of the requests must fire even if the disk hangs, so this thread does not commit.
            self.session.app.db.commit_queued();
        }
        any
    }

    /// Polls the barrier of reads. Returns true if it has ended.
    pub(super) fn continue_after_barrier(&mut self, cx: &mut Context<'_>) -> bool {
        self.barrier.is_pending() && self.barrier.poll(cx).is_ready()
    }

    /// Lets a client continue whose requests have taken long or caused many deliveries, if it has a turn now. Returns
    /// true if it may continue.
    pub(super) fn continue_after_work(&mut self, cx: &Context<'_>) -> bool {
        let may_continue = self.subjects.publishing.caused.need_turn() && self.socket.may_deliver(cx);
        if may_continue {
            self.subjects.publishing.caused.had_turn();
        }
        may_continue
    }

    /// Handles frames that are already received, then reads from the socket once and handles the frames of that read.
    /// Returns true if there was progress.
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
    pub(super) fn commit_waiting(&mut self) {
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
}
