//! `PUBLISH`: messages to one channel that arrive in one read from a client form one batch.
//!
//! Owns: the *run*, which is the messages gathered for one channel, and the batch that waits for room in a
//! subscriber's queue. Does not own the choice of receivers.
//!
//! Invariants: the replies of a run are written when it is published, and before any other reply. A run is
//! published at the next command that is no publish to the same channel, and at the end of the received commands.
//! While a batch waits for a native subscriber whose policy blocks publishers, the session handles no commands of
//! its client.

use std::sync::Arc;

use thalweg_broker::{Batch, Notify, Published, Subject};
use thalweg_redis::channels::subject_of;
use thalweg_serving::views::Views;
use thalweg_wire::{BatchWriter, Checksum};

use super::{Client, Registry};

/// Total size in bytes at which the messages gathered for a channel are published.
const MAX_RUN_BYTES: usize = 256 * 1024;
/// Number of messages gathered for a channel at which they are published.
const MAX_RUN_MESSAGES: u32 = 1024;

/// Publishing state of a client: the messages that are being gathered, and the batch that waits for room in a
/// subscriber's queue.
#[derive(Default)]
pub(crate) struct Publishing {
    pub(crate) run: Option<Run>,
    pub(crate) blocked: Option<Batch>,
    /// Handle that the broker notifies when there may be room for the batch that waits.
    pub(crate) waiter: Option<Arc<dyn Notify>>,
    /// Subject to which the client published last, cached because publishers mostly stay with one channel.
    last: Option<Subject>,
}

impl std::fmt::Debug for Publishing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publishing").field("blocked", &self.blocked).finish_non_exhaustive()
    }
}

/// Handle by which the broker wakes a client whose messages wait for room in a subscriber's queue.
#[derive(Debug)]
pub(crate) struct Room(pub(crate) Arc<Client>);

impl Notify for Room {
    fn notify(&self) {
        self.0.bell.ring();
    }
}

pub(crate) struct Run {
    subject: Subject,
    pub(crate) writer: BatchWriter,
}

impl Run {
    pub(crate) fn finish(self) -> Result<Batch, String> {
        let shared = self.writer.into_shared(Checksum::Without);
        let Some(shared) = shared else { return Err("ERR nothing to publish".to_owned()) };
        Batch::new(self.subject, shared.bytes, shared.count).map_err(|error| format!("ERR {error}"))
    }
}

impl Publishing {
    /// Returns true if a batch of the client waits for room in a subscriber's queue.
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Returns true if the client has gathered messages that are not published yet.
    #[must_use]
    pub(crate) fn is_gathering(&self) -> bool {
        self.run.is_some()
    }

    pub(crate) fn begin(&mut self, channel: &[u8], payload: &[u8]) -> Result<Run, String> {
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

    /// Adds a message to the gathered messages. Returns false if the message is for another channel, or if the
    /// gathered messages have reached their limit.
    pub(crate) fn try_join(&mut self, channel: &[u8], payload: &[u8]) -> bool {
        let Some(run) = &mut self.run else { return false };
        let is_same = subject_of(channel).is_ok_and(|name| *name == *run.subject.as_bytes());
        is_same
            && run.writer.count() < MAX_RUN_MESSAGES
            && run.writer.byte_len() < MAX_RUN_BYTES
            && run.writer.push_payload(payload).is_ok()
    }
}

/// Returns the number of clients and native subscriptions that have received a published message.
pub(crate) fn receivers(published: Published, subject: &Subject, registry: &Registry) -> i64 {
    published.delivered.saturating_sub(registry.unmatched_globs(subject)) as i64
}

pub(crate) fn try_publish(views: &Views, batch: &Batch, waiter: Option<&Arc<dyn Notify>>) -> Option<Published> {
    views.broker.publish(batch, waiter).ok()
}
