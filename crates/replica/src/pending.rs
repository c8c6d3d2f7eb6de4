//! A proposed command in the queue.
//!
//! Owns: the command, the facts about it that the commit needs, and the guarantee that its proposer gets an answer.
//! Does not own: the order in which proposals are committed (`queue`).

use std::{borrow::Cow, sync::Arc, time::Duration};

use thalweg_log::Purpose;
use thalweg_types::{
    Durability, Term,
    command::{Framed, max_steps_with},
};

use crate::{
    client::Client,
    error::ProposeError,
    slot::{Answer, Slot},
};

#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) command: Framed,
    pub(crate) level: Durability,
    pub(crate) purpose: Purpose,
    /// Slot in which a thread or task waits for the answer; `None` for a command proposed at durability level `none`.
    pub(crate) slot: Option<Arc<Slot>>,
    /// Client for which the command was proposed, if it is known.
    pub(crate) client: Option<Arc<Client>>,
    /// Name of the request in log lines, for a command that may be forwarded.
    pub(crate) request: Option<Arc<str>>,
    /// Cost in steps (units of work) of the existing values that the command reads, writes again or replaces; `None` if
    /// its proposer does not know the cost.
    pub(crate) value_reads: Option<u64>,
    /// Maximum number of steps (units of work) that the command can take: the cached result of [`max_steps_with`];
    /// `None` before the first use.
    pub(crate) steps: Option<u64>,
    /// Number of steps (units of work) that an expensive command will probably take, as estimated when the command was
    /// queued; 0 for a cheap command, which waits in the queue's lane of ready commands.
    pub(crate) counted_steps: u64,
    /// Number of the turn in which a member took this expensive command out of the queue, if the client's address
    /// pauses after the turn; otherwise 0. A turn is one batch of expensive commands.
    pub(crate) turn: u64,
    /// Monotonic time at which the command was queued; zero if this node is alone in its cluster and the command waits
    /// for no fsync.
    pub(crate) queued_at: Duration,
    /// Monotonic time in microseconds at which a member gives the command up; 0 if never.
    pub(crate) expires_micros: u64,
    /// Term in which a member must lead when the command is written; `None` if any leader may write it.
    pub(crate) term: Option<Term>,
}

impl Pending {
    pub(crate) fn new(
        command: Framed,
        level: Durability,
        purpose: Purpose,
        slot: Option<Arc<Slot>>,
        client: Option<Arc<Client>>,
    ) -> Self {
        Self {
            command,
            level,
            purpose,
            slot,
            client,
            request: None,
            value_reads: None,
            steps: None,
            counted_steps: 0,
            turn: 0,
            queued_at: Duration::ZERO,
            expires_micros: 0,
            term: None,
        }
    }

    /// Returns the maximum number of steps (units of work) that the command can take, estimated from its bytes.
    /// Computed at the first call.
    pub(crate) fn steps(&mut self, keeps_history: bool) -> u64 {
        let command = self.command.bytes().get(4..).unwrap_or_default();
        *self.steps.get_or_insert_with(|| max_steps_with(command, keeps_history, self.value_reads))
    }

    /// Returns the length of the framed command in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.command.bytes().len()
    }

    /// Returns the number of steps (units of work) that count against the limit of the client's address while the
    /// expensive command waits in the queue.
    pub(crate) fn counted_steps(&self) -> u64 {
        self.counted_steps
    }

    /// Returns the number of steps (units of work) that the command will probably take; 0 if that is unknown because
    /// the command has no client.
    pub(crate) fn probable_steps(&self) -> u64 {
        let steps = self.steps.unwrap_or(0);
        self.client.as_ref().map_or(0, |client| client.probable_steps(steps))
    }

    /// Sends the answer to the waiting thread or task, if there is one.
    pub(crate) fn answer(&mut self, answer: Answer) {
        if let Some(slot) = self.slot.take() {
            slot.complete(answer);
        }
    }
}

/// Ensures that no thread or task waits forever for its proposal. A proposal can be dropped without an answer if the
/// committing thread panicked, or if the space (Raft group) was dropped without a close; then the waiting thread or
/// task gets an error.
impl Drop for Pending {
    fn drop(&mut self) {
        if self.slot.is_some() {
            let panicking = std::thread::panicking();
            let panicked = || ProposeError::State("the committing thread panicked".to_owned());
            self.answer(Err(if panicking { panicked() } else { ProposeError::Closed }));
        }
    }
}

/// Returns the bytes of a log entry with these commands. For a single command they are the command's frame itself.
pub(crate) fn payload_of(taken: &[Pending]) -> Cow<'_, [u8]> {
    match taken {
        [one] => Cow::Borrowed(one.command.bytes()),
        many => Cow::Owned(many.iter().map(|pending| pending.command.bytes()).collect::<Vec<_>>().concat()),
    }
}

/// Returns the purpose that the log is told when it appends an entry with these commands. Only an entry whose commands
/// all free space may use the disk's reserve.
pub(crate) fn purpose_of(taken: &[Pending]) -> Purpose {
    let all_reclaim = taken.iter().all(|pending| pending.purpose == Purpose::Reclaim);
    if all_reclaim { Purpose::Reclaim } else { Purpose::Data }
}
