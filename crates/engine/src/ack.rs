//! Acknowledgements of writes.

use std::thread;

use thalweg_replica::{Committed, Replica};
use thalweg_types::{
    Durability, Revision,
    command::{AppendedAt, Outcome},
};

use crate::error::{WriteError, refusal};

/// Returns the durability level that a write with the requested `level` reaches. On a member it is `quorum` for every
/// level but `none`, because a member acknowledges a command only after the command is committed.
pub(crate) fn raised(level: Durability, replica: &Replica) -> Durability {
    match replica.member() {
        Some(_) if level > Durability::None => Durability::Quorum,
        _ => level,
    }
}

/// Acknowledgement of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Durability level that the write reached.
    pub durability: Durability,
    /// Revision that the write used. `None` for commands without a revision (creating, trimming, configuring or
    /// deleting a stream) and at level `none`, which answers before the outcome is known.
    pub revision: Option<Revision>,
    /// Stream, first offset and count of each append in the commit; empty at level `none`.
    pub appends: Vec<AppendedAt>,
    /// True if a producer repeated a write that had already taken effect. The ack then repeats the first answer, and
    /// `appends` contains only the appends of producers.
    pub duplicate: bool,
}

/// Rejects a conditional request at durability level `none`, because such a request would be acknowledged before its
/// outcome is known.
pub(crate) fn check_outcome_known(conditional: bool, level: Durability) -> Result<(), WriteError> {
    if conditional && level == Durability::None { Err(WriteError::LevelTooLow) } else { Ok(()) }
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
    /// Fills the ack from the outcome of a successful command, and returns `None`. Returns any other outcome unchanged.
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
