//! The state of work that a session does in slices. The module `slices` has the work itself.

use thalweg_redis::Reply;
use thalweg_serving::admission::Reservation;

use super::{burst::Slot, database::Outcome, pubsub::Kind};

/// Change of the client's subscriptions to a list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionChange {
    /// The client subscribes to the names.
    Subscribe,
    /// The client unsubscribes from the names.
    Unsubscribe,
    /// The client unsubscribes from all names of the kind.
    UnsubscribeAll,
}

/// Work that continues in the session's next slice.
#[derive(Debug)]
pub(crate) enum Ongoing {
    /// Replies to a burst or a transaction.
    Replies(Replying),
    /// Names to which the client subscribes, or from which it unsubscribes.
    Subscriptions(SubscriptionList),
}

/// Replies to a burst or a transaction, some of which are written already. The sources of all of them are known.
#[derive(Debug)]
pub(crate) struct Replying {
    pub slots: Vec<Slot>,
    pub held: Vec<u8>,
    pub replies: std::vec::IntoIter<Reply>,
    /// Reply to all commands, if none was executed.
    pub instead: Option<Reply>,
    /// Position of the next slot.
    pub at: usize,
    /// Position of the next bytes in `held`.
    pub held_at: usize,
    /// Number of following slots that belong to an `EXEC`.
    pub queued: u32,
    /// Bytes of the written replies that do not count against the memory limit yet.
    pub uncounted: usize,
}

impl Replying {
    /// Prepares to write the replies of commands with this outcome.
    pub(crate) fn new(slots: Vec<Slot>, held: Vec<u8>, outcome: Outcome) -> Self {
        let (replies, instead) = match outcome {
            Ok(Some(replies)) => (replies, None),
            Ok(None) => (Vec::new(), Some(Reply::NullArray)),
            Err(failure) => (Vec::new(), Some(Reply::Error(failure.0))),
        };
        Self { slots, held, replies: replies.into_iter(), instead, at: 0, held_at: 0, queued: 0, uncounted: 0 }
    }
}

/// Names of channels or patterns in one command. The first of them are handled already.
#[derive(Debug)]
pub(crate) struct SubscriptionList {
    pub change: SubscriptionChange,
    pub kind: Kind,
    bytes: Vec<u8>,
    /// Position in `bytes` at which each name ends.
    ends: Vec<u32>,
    pub next: usize,
    pub muted: bool,
    _held: Reservation,
}

impl SubscriptionList {
    /// Copies the names of a command.
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

    /// Returns the name at a position in the list.
    pub(crate) fn name(&self, at: usize) -> Option<&[u8]> {
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        self.ends.get(at).map(|end| &self.bytes[begin as usize..*end as usize])
    }
}
