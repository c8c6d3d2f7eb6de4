//! The state of long work that a client's session does in slices of about a millisecond each, so that its thread serves
//! other clients in between. The module `slices` does the work.

use thalweg_redis::Reply;
use thalweg_serving::admission::Reservation;

use super::{burst::Slot, database::Outcome, pubsub::Kind};

/// Change of a client's subscriptions to channels or patterns, which the command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionChange {
    /// The client subscribes to the channels or patterns that the command names.
    Subscribe,
    /// The client unsubscribes from the channels or patterns that the command names.
    Unsubscribe,
    /// The client unsubscribes from everything of one kind: all channels, all patterns or all sharded channels.
    UnsubscribeAll,
}

/// Long work of a session, done in slices of about a millisecond. Between two slices, the thread serves other clients.
#[derive(Debug)]
pub(crate) enum Ongoing {
    /// Writing the replies to many commands, of a burst (commands that are committed together) or of a transaction.
    Replies(Replying),
    /// Changes of subscriptions to the channels or patterns that one command names.
    Subscriptions(SubscriptionList),
}

/// Replies to a burst (commands of the client that are committed together) or to a transaction, while they are being
/// written. All replies are known; some are already written.
#[derive(Debug)]
pub(crate) struct Replying {
    pub slots: Vec<Slot>,
    pub held: Vec<u8>,
    pub replies: std::vec::IntoIter<Reply>,
    /// Reply that replaces the replies to all commands, because none was executed; `None` if the commands were
    /// executed.
    pub instead: Option<Reply>,
    /// Position in `slots` of the reply that is written next.
    pub at: usize,
    /// Position in `held`, the encoded replies, of the bytes that are written next.
    pub held_at: usize,
    /// Number of following elements of the burst's list of replies (`slots`) that belong to the reply to an `EXEC`.
    pub queued: u32,
    /// Bytes of the written replies that do not count towards the memory limit yet.
    pub uncounted: usize,
}

impl Replying {
    /// Prepares to write the replies to commands with this outcome.
    pub(crate) fn new(slots: Vec<Slot>, held: Vec<u8>, outcome: Outcome) -> Self {
        let (replies, instead) = match outcome {
            Ok(Some(replies)) => (replies, None),
            Ok(None) => (Vec::new(), Some(Reply::NullArray)),
            Err(failure) => (Vec::new(), Some(Reply::Error(failure.0))),
        };
        Self { slots, held, replies: replies.into_iter(), instead, at: 0, held_at: 0, queued: 0, uncounted: 0 }
    }
}

/// Names of channels or patterns in one command that changes subscriptions. Some of the first names may already be
/// handled.
#[derive(Debug)]
pub(crate) struct SubscriptionList {
    pub change: SubscriptionChange,
    pub kind: Kind,
    bytes: Vec<u8>,
    /// Position in `bytes` at which each name of a channel or pattern ends.
    ends: Vec<u32>,
    pub next: usize,
    pub muted: bool,
    _held: Reservation,
}

impl SubscriptionList {
    /// Copies the names of channels or patterns in a command that changes subscriptions.
    pub(crate) fn new(change: SubscriptionChange, kind: Kind, names: &[&[u8]], muted: bool, held: Reservation) -> Self {
        let bytes = names.concat();
        let mut end = 0;
        let ends = names.iter().map(|name| {
            // A request is far smaller than 4 GiB.
            end += name.len() as u32;
            end
        });
        Self { change, kind, ends: ends.collect(), bytes, next: 0, muted, _held: held }
    }

    /// Returns the channel or pattern with the index `at` in this list; `None` after the last one.
    pub(crate) fn name(&self, at: usize) -> Option<&[u8]> {
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        self.ends.get(at).map(|end| &self.bytes[begin as usize..*end as usize])
    }
}
