//! Ends of a channel: timeouts, keepalive, the stop of the server, and the goodbye of the client or the server.
//!
//! Owns: the transitions between the phases of a channel, and the last frame that its client gets. Does not own: the
//! closing of the socket, or the socket's own timeouts (`thalweg_serving::served_socket`).

use thalweg_serving::admission::Resource;
use thalweg_types::Action;
use thalweg_wire::{
    CancelMode, FrameError, Goodbye, Ping, Reason,
    handshake::{KeepAliveAction, goodbye},
};

use super::{ChannelPhase, ChannelTask};
use crate::{
    failure::{self, Failure},
    requests::IdUse,
    session::Session,
};

/// Number of keepalive intervals for which a channel (a TCP connection or a QUIC stream) keeps trying to publish the
/// last messages of a client that has said goodbye. A silent client keeps its connection for the same time.
const LEAVE_INTERVALS: u32 = 3;

impl ChannelTask {
    pub(super) fn tick(&mut self) {
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
            // The channel does not read now, so silence is no sign of a dead client. This lasts as long as the client's
            // messages wait for a slow subscriber.
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

    /// Returns true if the server should close the channel. This is so if the channel is idle, the server runs short of
    /// connections, and the client's address holds more connections than one address should. Returns false for the
    /// first channel of a connection that has other channels, because these would end too.
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

    /// Begins to stop the channel (a TCP connection or a QUIC stream): it handles no new frames, ends its subscriptions
    /// and answers pending requests.
    pub(super) fn stop(&mut self) {
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

    /// Begins to close the channel (a TCP connection or a QUIC stream) after the goodbye of its client. The client's
    /// waiting messages are published first.
    pub(super) fn leave(&mut self) {
        self.subjects.flush();
        self.commit_waiting();
        self.phase = ChannelPhase::Closing;
        if !self.subjects.is_done() {
            // The client accepts no more messages, so its subscriptions must not block other publishers or the client
            // itself.
            self.subjects.close();
            self.requests.drop_subscriptions();
            self.phase = ChannelPhase::Leaving { until: self.socket.now + LEAVE_INTERVALS * self.session.keep_alive };
        }
    }

    /// Closes the channel if no work is left. A channel that is stopping must have answered all requests and ended all
    /// subscriptions. A channel whose client has said goodbye must have published the client's last messages, or the
    /// time limit for this must have passed.
    pub(super) fn finish(&mut self) {
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
        // The end of the client's sending side also ends its subscriptions.
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

    /// Ends the channel (a TCP connection or a QUIC stream) because the client violated the protocol. The client gets
    /// `message` in a goodbye frame.
    pub(super) fn protocol(&mut self, message: &str) {
        self.close_with_goodbye(Reason::Protocol, Action::Fix, message);
    }

    pub(super) fn too_large(&mut self, error: &FrameError) {
        let FrameError::TooLarge { id, .. } = *error;
        self.out.fail(id, &Failure::of(error));
        self.protocol(&error.to_string());
    }

    /// Puts a goodbye frame with this reason into the outbox as the last frame, and begins to close the channel (a TCP
    /// connection or a QUIC stream).
    pub(super) fn close_with_goodbye(&mut self, reason: Reason, class: Action, message: &str) {
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
