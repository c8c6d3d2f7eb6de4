//! Acknowledgements of writes.

use std::thread;

use thalweg_replica::Committed;
use thalweg_types::{
    Durability, Revision,
    command::{AppendedAt, Outcome},
};

use crate::error::{WriteError, refusal};

/// Acknowledgement of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Durability level that the write reached.
    pub durability: Durability,
    /// Revision of the command. `None` for commands without one (creating, trimming, configuring or deleting a stream)
    /// and at level `none`, which answers before the outcome is known.
    pub revision: Option<Revision>,
    /// Positions of the commit's appends; empty at level `none`.
    pub appends: Vec<AppendedAt>,
    /// True if a producer sent the write again: it happened before, and this is its first answer. `appends` then
    /// contains only the appends of producers.
    pub duplicate: bool,
}

/// Fails for a conditional request at level `none`, since its outcome would be unknown when it is acknowledged.
pub(crate) fn check_outcome_known(conditional: bool, level: Durability) -> Result<(), WriteError> {
    if conditional && level == Durability::None { Err(WriteError::OutcomeUnknown) } else { Ok(()) }
}

/// Returns the ack of a command that was carried out, or the error of a rejected one.
pub(crate) fn ack(mut committed: Committed) -> Result<Ack, WriteError> {
    let mut ack = Ack { durability: committed.durability, revision: None, appends: Vec::new(), duplicate: false };
    match ack.take(committed.outcome.as_mut()) {
        Some(outcome) => refusal(outcome).map(|_| ack),
        None => Ok(ack),
    }
}

impl Ack {
    /// Takes the contents of a successful outcome; returns any other outcome.
    #[inline]
    pub(crate) fn take(&mut self, outcome: Option<&mut Outcome>) -> Option<Outcome> {
        let outcome = outcome?;
        match outcome {
            Outcome::Committed { revision, appends } => {
                self.revision = Some(*revision);
                self.appends = std::mem::take(appends);
                None
            }
            Outcome::Duplicate { revision, appends } => {
                *self = Self { revision: Some(*revision), appends: std::mem::take(appends), duplicate: true, ..*self };
                None
            }
            Outcome::Dropped { revision } => {
                self.revision = Some(*revision);
                None
            }
            _ => Some(std::mem::replace(outcome, Outcome::Done)),
        }
    }
}

pub(crate) fn unexpected(outcome: Option<&Outcome>) -> WriteError {
    debug_assert!(thread::panicking(), "an outcome of another command: {outcome:?}");
    WriteError::StateFailed { reason: format!("the state answered another command: {outcome:?}") }
}
