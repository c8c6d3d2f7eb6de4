//! `PUBLISH` and `SPUBLISH`. [`Publishing`](super::pubsub::Publishing) contains the messages
//! that are gathered into a batch.

use std::sync::Arc;

use thalweg_transport::Outbox;

use super::{
    pubsub::publishing::{Room, Run, receivers, try_publish},
    session::{CommandProgress, Session},
};

/// Error reply to a `PUBLISH` that can't wait, for example in a transaction, if a subscriber whose policy blocks
/// publishers has no room.
const BLOCKED: &str =
    "ERR the queue of a subscriber that blocks publishers is full: no subscriber got the message, publish it again";

impl Session {
    /// Handles `PUBLISH` and `SPUBLISH` outside of transactions. Successive messages to one channel are gathered
    /// and published as one batch.
    pub(crate) fn publish(&mut self, arguments: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        if !self.burst.is_empty() {
            return CommandProgress::Again;
        }
        let (channel, payload) = (arguments[1], arguments[2]);
        if self.muted {
            self.flush_published(out);
            return self.publish_alone(arguments, out);
        }
        if self.publishing.try_join(channel, payload) {
            return CommandProgress::Done;
        }
        self.flush_published(out);
        if self.publishing.is_blocked() {
            return CommandProgress::Again;
        }
        match self.publishing.begin(channel, payload) {
            Ok(run) => self.publishing.run = Some(run),
            Err(text) => self.error(&text, out),
        }
        CommandProgress::Done
    }

    /// Handles a `PUBLISH` in a transaction, or one whose reply the client does not want. Publishes the message
    /// immediately, or fails if a subscriber that blocks publishers has no room.
    pub(crate) fn publish_alone(&mut self, arguments: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        let batch = self.publishing.begin(arguments[1], arguments[2]).and_then(Run::finish);
        match batch.map(|batch| (try_publish(&self.resp.app.views, &batch, None), batch)) {
            Ok((Some(published), batch)) => {
                let count = receivers(published, batch.subject(), &self.resp.subscriptions);
                // A client that is its own subscriber gets the message before the reply.
                self.deliver(out);
                self.write_reply(out, |writer| writer.integer(count));
            }
            Ok((None, _)) => self.error(BLOCKED, out),
            Err(text) => self.error(&text, out),
        }
        CommandProgress::Done
    }

    /// Publishes the gathered messages and writes the replies to their commands. If a subscriber that blocks
    /// publishers has no room, keeps the messages until it has room.
    pub(crate) fn flush_published(&mut self, out: &mut Outbox) {
        let Some(run) = self.publishing.run.take() else { return };
        let count = run.writer.count();
        match run.finish() {
            Ok(batch) => {
                self.publishing.blocked = Some(batch);
                self.retry_published(out);
            }
            Err(text) => (0..count).for_each(|_| self.error(&text, out)),
        }
    }

    /// Publishes the batch that waits for room in a subscriber's queue, if there is room now. Returns true if the
    /// batch was published.
    pub(crate) fn retry_published(&mut self, out: &mut Outbox) -> bool {
        let Some(batch) = &self.publishing.blocked else { return false };
        let views = &self.resp.app.views;
        // There is nearly always room, and then no waiter is needed.
        let published = match (try_publish(views, batch, None), &mut self.publishing.waiter) {
            (Some(published), _) => Some(published),
            (None, waiter) => {
                let client = &self.registered.client;
                try_publish(views, batch, Some(waiter.get_or_insert_with(|| Arc::new(Room(Arc::clone(client))))))
            }
        };
        let (Some(published), Some(batch)) = (published, self.publishing.blocked.take_if(|_| published.is_some()))
        else {
            return false;
        };
        let count = receivers(published, batch.subject(), &self.resp.subscriptions);
        let messages = batch.messages();
        self.deliver(out);
        let was_muted = std::mem::replace(&mut self.muted, false);
        for _ in 0..messages {
            self.write_reply(out, |writer| writer.integer(count));
        }
        self.muted = was_muted;
        true
    }
}
