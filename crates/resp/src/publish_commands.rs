//! `PUBLISH` and `SPUBLISH`. [`Publishing`](super::pubsub::Publishing) holds the messages that are being gathered into
//! a batch.

use thalweg_broker::Batch;
use thalweg_transport::Outbox;

use super::{
    pubsub::publishing::{Run, receivers},
    session::{CommandProgress, Session},
};

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
        match self.publishing.begin(channel, payload) {
            Ok(run) => self.publishing.run = Some(run),
            Err(text) => self.error(&text, out),
        }
        CommandProgress::Done
    }

    /// Handles a `PUBLISH` within a transaction, or a `PUBLISH` whose reply the client does not want. Publishes the
    /// message immediately.
    pub(crate) fn publish_alone(&mut self, arguments: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        match self.publishing.begin(arguments[1], arguments[2]).and_then(Run::finish) {
            Ok(batch) => {
                let count = self.publish_now(&batch, out);
                self.write_reply(out, |writer| writer.integer(count));
            }
            Err(text) => self.error(&text, out),
        }
        CommandProgress::Done
    }

    /// Publishes the gathered messages and writes the replies to their commands.
    pub(crate) fn flush_published(&mut self, out: &mut Outbox) {
        let Some(run) = self.publishing.run.take() else { return };
        let count = run.writer.count();
        match run.finish() {
            Ok(batch) => {
                let receivers = self.publish_now(&batch, out);
                let was_muted = std::mem::replace(&mut self.muted, false);
                for _ in 0..batch.messages() {
                    self.write_reply(out, |writer| writer.integer(receivers));
                }
                self.muted = was_muted;
            }
            Err(text) => (0..count).for_each(|_| self.error(&text, out)),
        }
    }

    /// Publishes a batch, and returns the number of its receivers. If the client subscribes to the channel itself, it
    /// gets the messages before the replies to its commands.
    fn publish_now(&mut self, batch: &Batch, out: &mut Outbox) -> i64 {
        let published = self.resp.app.views.broker.publish_now(batch);
        self.publishing.caused.add(batch.encoded().len(), published.delivered);
        let count = receivers(published, batch.subject(), &self.resp.subscriptions);
        self.deliver(out);
        count
    }
}
