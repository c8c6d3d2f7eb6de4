//! Answers of a channel to its client: replies that become ready, frames of subscriptions, and messages of subjects.
//!
//! Owns: the order in which these answers enter the outbox, and the end of subscriptions. Does not own: the contents of
//! the answers (`requests`, `subscription`, `subjects`), or the write to the socket.

use std::task::{Context, Poll};

use thalweg_serving::served_socket::SocketEvent;
use thalweg_types::Action;
use thalweg_wire::Reason;

use super::{ChannelPhase, ChannelTask};
use crate::{
    failure::Failure,
    publishing::InputState,
    request::RequestId,
    requests::{Finished, IdUse},
    subscription::NextAction,
};

impl ChannelTask {
    /// Puts the results of completed futures into the outbox, as long as the outbox has room: replies to requests, and
    /// the next frames of subscriptions. Returns true if there was progress.
    pub(super) fn answer(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(alarm) = self.socket.alarm(cx) {
            match alarm {
                SocketEvent::Tick => self.tick(),
                SocketEvent::Stop => self.stop(),
            }
            moved = true;
        }
        while self.out.has_room() {
            // Replies come before the frames of subscriptions, which need a turn for bulk output.
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

    /// Begins to produce the next frame of a subscription, if the client's credit and the subscription's limit permit
    /// it.
    pub(super) fn begin_step(&mut self, id: u32) {
        let Some(IdUse::Subscription(subscription)) = self.requests.get_mut(id) else { return };
        match subscription.next(self.session.max_send_bytes as usize) {
            NextAction::Step(step) => self.requests.step(id, step),
            NextAction::Wait => {}
            NextAction::End(failure) => self.end_subscription(id, &failure),
        }
    }

    pub(super) fn end_subscription(&mut self, id: u32, why: &Failure) {
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
            // The request fails, and the subscription has not begun for the client yet.
            false => {
                let mut failure = why.clone();
                failure.name_subject(self.session.app.db.blocking());
                self.out.fail(id, &failure);
            }
        }
    }

    /// Logs that a fault of the server has ended a subscription, with the name of the request that began it.
    #[cold]
    fn log_lost_subscription(&mut self, id: u32, why: &Failure) {
        if let Some(IdUse::Subscription(subscription)) = self.requests.get_mut(id) {
            let request_id = RequestId { trace: subscription.trace(), channel: self.number, id };
            let (peer, code) = (self.socket.peer(), why.code());
            tracing::warn!(%peer, %request_id, code, "a subscription ends: {}", why.message());
        }
    }

    /// Moves batches of messages for the client's subscriptions to subjects into the outbox. Returns true if there was
    /// progress.
    pub(super) fn deliver(&mut self, cx: &mut Context<'_>, heard: bool) -> bool {
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
}
