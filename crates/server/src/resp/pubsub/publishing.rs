//! `PUBLISH`: what came with one read for one channel is one batch.
//!
//! Owns: the run that is being gathered, and the batch that waits for room. Does not own who gets it.
//!
//! Invariants: a run's replies are written when it is published, and before anything else is answered: at the next command
//! that is no publish to the same channel, and at the end of what has come. While a batch waits for a native subscriber that asks
//! publishers to wait, its client is not listened to.

use std::sync::Arc;

use thalweg_broker::{Batch, Notify, Published, Subject};
use thalweg_redis::channels::subject_of;
use thalweg_transport::Outbox;
use thalweg_wire::{BatchWriter, Checksum};

use super::{Client, Registry};
use crate::{
    resp::session::{Flow, Session},
    views::Views,
};

/// Bytes from which on a run is published.
const MAX_RUN_BYTES: usize = 256 * 1024;
/// Messages at which a run is published.
const MAX_RUN_MESSAGES: u32 = 1024;

/// A subscriber asks publishers to wait, and nothing can wait within a transaction.
const BLOCKED: &str =
    "ERR a subscriber has no room and asks publishers to wait: nobody got the message, publish it again";

/// What a client publishes.
#[derive(Default)]
pub struct Publishing {
    run: Option<Run>,
    blocked: Option<Batch>,
    /// Rung when there may be room. The broker knows those who wait by it.
    waiter: Option<Arc<dyn Notify>>,
    /// What the last run was about: publishers mostly stay with one channel.
    last: Option<Subject>,
}

impl std::fmt::Debug for Publishing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publishing").field("blocked", &self.blocked).finish_non_exhaustive()
    }
}

/// Wakes a publisher that waits for room.
#[derive(Debug)]
struct Room(Arc<Client>);

impl Notify for Room {
    fn notify(&self) {
        self.0.bell.ring();
    }
}

struct Run {
    subject: Subject,
    writer: BatchWriter,
}

impl Run {
    fn finish(self) -> Result<Batch, String> {
        let shared = self.writer.into_shared(Checksum::Without);
        let Some(shared) = shared else { return Err("ERR nothing to publish".to_owned()) };
        Batch::new(self.subject, shared.bytes, shared.count).map_err(|error| format!("ERR {error}"))
    }
}

impl Publishing {
    /// Whether a batch waits for room.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Whether messages are gathered whose replies are not written.
    #[must_use]
    pub fn is_gathering(&self) -> bool {
        self.run.is_some()
    }

    fn begin(&mut self, channel: &[u8], payload: &[u8]) -> Result<Run, String> {
        let name = subject_of(channel).map_err(|error| error.to_string())?;
        let subject = match &self.last {
            Some(last) if last.as_bytes() == &*name => last.clone(),
            _ => Subject::parse(&name).map_err(|error| format!("ERR {error}"))?,
        };
        self.last = Some(subject.clone());
        let writer = BatchWriter::with_capacity(&name, b"", payload.len() + 5);
        let mut writer = writer.map_err(|error| format!("ERR {error}"))?;
        writer.push_payload(payload).map_err(|error| format!("ERR {error}"))?;
        Ok(Run { subject, writer })
    }

    /// Adds to the run, if the message may be in it.
    fn joins(&mut self, channel: &[u8], payload: &[u8]) -> bool {
        let Some(run) = &mut self.run else { return false };
        let is_same = subject_of(channel).is_ok_and(|name| *name == *run.subject.as_bytes());
        is_same
            && run.writer.count() < MAX_RUN_MESSAGES
            && run.writer.byte_len() < MAX_RUN_BYTES
            && run.writer.push_payload(payload).is_ok()
    }
}

/// How many clients and native subscriptions receive a message.
fn receivers(published: Published, subject: &Subject, registry: &Registry) -> i64 {
    published.delivered.saturating_sub(registry.deaf_to(subject)) as i64
}

fn try_publish(views: &Views, batch: &Batch, waiter: Option<&Arc<dyn Notify>>) -> Option<Published> {
    views.broker.publish(batch, waiter).ok()
}

impl Session {
    /// `PUBLISH` and `SPUBLISH`, as they come: gathered.
    pub(in crate::resp) fn publish(&mut self, arguments: &[&[u8]], out: &mut Outbox) -> Flow {
        if !self.burst.is_empty() {
            return Flow::Again;
        }
        let (channel, payload) = (arguments[1], arguments[2]);
        if self.muted {
            self.flush_published(out);
            return self.publish_alone(arguments, out);
        }
        if self.publishing.joins(channel, payload) {
            return Flow::Done;
        }
        self.flush_published(out);
        if self.publishing.is_blocked() {
            return Flow::Again;
        }
        match self.publishing.begin(channel, payload) {
            Ok(run) => self.publishing.run = Some(run),
            Err(text) => self.error(&text, out),
        }
        Flow::Done
    }

    /// The same within a transaction, or where no reply is wanted: published at once or not at all.
    pub(in crate::resp) fn publish_alone(&mut self, arguments: &[&[u8]], out: &mut Outbox) -> Flow {
        let batch = self.publishing.begin(arguments[1], arguments[2]).and_then(Run::finish);
        match batch.map(|batch| (try_publish(&self.resp.app.views, &batch, None), batch)) {
            Ok((Some(published), batch)) => {
                let count = receivers(published, batch.subject(), &self.resp.subscriptions);
                // Who publishes to itself is sent the message before the reply.
                self.deliver(out);
                self.say(out, |writer| writer.integer(count));
            }
            Ok((None, _)) => self.error(BLOCKED, out),
            Err(text) => self.error(&text, out),
        }
        Flow::Done
    }

    /// Publishes what was gathered, and answers it; or keeps it until there is room.
    pub(in crate::resp) fn flush_published(&mut self, out: &mut Outbox) {
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

    /// Publishes what waits for room, if there is some now. Whether it was.
    pub(in crate::resp) fn retry_published(&mut self, out: &mut Outbox) -> bool {
        let Some(batch) = &self.publishing.blocked else { return false };
        let views = &self.resp.app.views;
        // Nearly always there is room, and then no waiter is needed.
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
            self.say(out, |writer| writer.integer(count));
        }
        self.muted = was_muted;
        true
    }
}
