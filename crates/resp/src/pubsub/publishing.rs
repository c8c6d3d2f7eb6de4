//! `PUBLISH`. Messages to one channel that arrive in one read from a client form one batch.
//!
//! Owns: the *run*, which is the list of messages gathered for one channel. Does not own the choice of receivers.
//!
//! Invariants: the replies to a run are written when the run is published, and before any other reply. A run is
//! published before any command that is not a publish to the same channel, and at the end of the received commands. A
//! publish of a Redis client never waits for a subscriber. After its publishes have caused many deliveries, the client
//! waits for a turn on its thread. If the queue of a subscriber of another protocol is full, this subscriber misses the
//! messages, even if its policy is to block publishers.

use thalweg_broker::{Batch, Published, Subject};
use thalweg_redis::channels::subject_of;
use thalweg_serving::bulk::CausedWork;
use thalweg_wire::{BatchWriter, Checksum};

use super::Registry;

/// Total size in bytes at which the messages gathered for a channel are published.
const MAX_RUN_BYTES: usize = 256 * 1024;
/// Number of messages gathered for a channel at which they are published.
const MAX_RUN_MESSAGES: u32 = 1024;

/// Publishing state of a client: the messages that are being gathered.
#[derive(Default)]
pub(crate) struct Publishing {
    pub(crate) run: Option<Run>,
    /// Deliveries that the client's publishes have caused, and time of its requests, since the client last waited for
    /// other clients of its thread.
    pub(crate) caused: CausedWork,
    /// Subject to which the client published last. Cached because publishers usually stay with one channel.
    last: Option<Subject>,
}

impl std::fmt::Debug for Publishing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publishing").field("last", &self.last).finish_non_exhaustive()
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

    /// Adds a message for `channel` to the messages that the client is gathering. Returns false if the gathered
    /// messages are for another channel, or have reached their limit.
    pub(crate) fn try_join(&mut self, channel: &[u8], payload: &[u8]) -> bool {
        let Some(run) = &mut self.run else { return false };
        let is_same = subject_of(channel).is_ok_and(|name| *name == *run.subject.as_bytes());
        is_same
            && run.writer.count() < MAX_RUN_MESSAGES
            && run.writer.byte_len() < MAX_RUN_BYTES
            && run.writer.push_payload(payload).is_ok()
    }
}

/// Returns the number of Redis clients and other subscriptions that have received a published message.
pub(crate) fn receivers(published: Published, subject: &Subject, registry: &Registry) -> i64 {
    published.delivered.saturating_sub(registry.unmatched_globs(subject)) as i64
}
